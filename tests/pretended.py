"""A device that is not there: on a machine without CUDA, code runs as if its tensors were on a GPU, or on a Mac's.

Tensors "on cuda" are tensors of the CPU with a mark. A mode of torch sees every call: what is made for, moved to or
computed from the device is marked. ``WrongDevice`` is raised by what CUDA would refuse (tensors on two devices, a
generator of another one, memory that numpy cannot read) and by a float32 product in TF32. Places where the program
waits for the device (``.item()``, ``bool(tensor)``, copies to the host, masks) are noted in ``waits``. A pretended
MPS has no float64, as the real one, and raises ``TypeError``. What torch
computes below Python, inside ``torch.func`` say, is not seen: a call's results are marked by its arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from taftcache.tangent import functional
from taftcache.tangent.class_row import block

_functorch = torch._C._functorch
PACKAGE = str(Path(__file__).resolve().parent.parent / "taftcache")
DEVICE = torch.device("cuda", 0)
WAITING = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero", "unique"}
WAITING |= {"equal", "allclose", "masked_select"}
ANYWHERE = {"copy_", "is_set_to", "_has_compatible_shallow_copy_type"}  # take tensors of two devices
INDEXED = {"__getitem__", "__setitem__", "index_put_", "index_put"}  # indexes and what is put may be on the CPU
PRODUCTS = {"matmul", "mm", "bmm", "addmm", "baddbmm", "addmm_", "baddbmm_", "linear", "__matmul__", "einsum"}
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
TO_NUMPY = {"numpy", "__array__"}


class WrongDevice(AssertionError):
    """What CUDA would have refused."""


class PretendedDevice(TorchFunctionMode):
    """Inside, ``device`` is one. ``waits``: for each wait, "file:line what"."""

    def __init__(self, device: torch.device = DEVICE) -> None:
        super().__init__()
        self.device = device
        self.waits: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if (getter := _GETTERS.get(func)) is not None:
            found = getter(args[0], self.device)
            return func(*args, **kwargs) if found is None else found
        name = getattr(func, "__name__", "")
        if name == "__set__":  # x.data = y
            _mark(args[0], _there(args[1]))
            return func(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        target = any(map(_there, tensors))
        if target and (name in WAITING or _masked(name, args)):
            self.waits.append(f"{_caller()} {name}")
        if name in TO_NUMPY and target and not kwargs.get("force"):  # which copies first
            raise WrongDevice(f"{_caller()}: numpy cannot read memory of the device")
        if name in ("to", "cpu", "cuda"):
            return self._held(name, self._moved(func, name, args, kwargs))
        if (device := kwargs.pop("device", None)) is not None:
            target = self._is_there(device)
            kwargs["device"] = device if str(device) == "meta" else "cpu"
        elif name.startswith("new_") or name.endswith("_like"):
            target = _there(args[0])
        self._check(name, args, kwargs, tensors, target)
        self._precise(name, tensors)
        kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        # What works in place returns a tensor that is where it was.
        if name not in ("item", "tolist") and not (name.endswith("_") and not name.endswith("__")):
            for leaf in _tensors(result):
                if leaf.device.type == "cpu":
                    _mark(leaf, target)
        return self._held(name, result)

    def _held(self, name: str, result: Any) -> Any:
        """What the device can hold."""
        for leaf in _tensors(result) if self.device.type == "mps" else ():
            if leaf.dtype == torch.float64 and _there(leaf):
                raise TypeError(f"{_caller()}: {name} makes float64 on MPS")
        return result

    def _is_there(self, device: Any) -> bool:
        return torch.device(device).type == self.device.type

    def _precise(self, name: str, tensors: list[Tensor]) -> None:
        """No product in float32 is one in TF32."""
        if any(t.dtype == torch.float32 and _there(t) for t in tensors):
            low = torch.get_float32_matmul_precision() != "highest" if name in PRODUCTS else False
            if low or (name in CONVOLUTIONS and torch.backends.cudnn.allow_tf32):
                raise WrongDevice(f"{_caller()}: {name} of float32 tensors in TF32")

    def _check(self, name: str, args: Any, kwargs: Any, tensors: list[Tensor], target: bool) -> None:
        generator = kwargs.get("generator")
        if generator is not None and target:
            raise WrongDevice(f"{_caller()}: {name} on the device with a generator of the CPU")
        if name in INDEXED:
            if _there(args[0]) or not any(map(_there, _tensors(args[1]))):
                return
            raise WrongDevice(f"{_caller()}: a tensor of the CPU is indexed by one of the device")
        if name in ANYWHERE or name.endswith("_like") or name.startswith("new_") or not any(map(_there, tensors)):
            return
        if strange := [t for t in tensors if not _there(t) and t.ndim and t.device.type != "meta"]:
            shapes = ", ".join(str(tuple(t.shape)) for t in strange)
            raise WrongDevice(f"{_caller()}: {name} of tensors on the device and on the CPU ({shapes})")

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
        """``to``, ``cpu`` and ``cuda``: another memory where the device changes."""
        x, rest, target = args[0], [], _there(args[0])
        if name != "to":
            rest, target = list(args[1:]), name == "cuda"
        for argument in args[1:] if name == "to" else ():
            if isinstance(argument, torch.device | str):
                target = self._is_there(argument)
                rest.append("meta" if str(argument) == "meta" else "cpu")
            elif isinstance(argument, Tensor):
                target = _there(argument)
                rest.append(argument.dtype)
            else:
                rest.append(argument)
        if (other := kwargs.pop("other", None)) is not None:
            target, kwargs["dtype"] = _there(other), other.dtype
        if (device := kwargs.get("device")) is not None:
            target, kwargs["device"] = self._is_there(device), "meta" if str(device) == "meta" else "cpu"
        if _there(x) and not target:
            self.waits.append(f"{_caller()} {name}")
        changes = target != _there(x)
        result = x.to(*rest, **kwargs) if rest or kwargs else x
        return _mark(result.clone() if changes and result is x else result, target) if result is not x or changes else x


def _tensors(value: Any) -> list[Tensor]:
    """Those in a value's tuples, lists and dicts; torch's own way takes half of all the time here."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [leaf for each in value for leaf in _tensors(each)]


def _there(tensor: Any) -> bool:
    if not isinstance(tensor, Tensor):
        return False
    mark = tensor.__dict__.get("_there")
    if mark is None and _functorch.is_functorch_wrapped_tensor(tensor):
        return _there(_functorch.get_unwrapped(tensor))
    return bool(mark)


def _mark(tensor: Tensor, there: bool) -> Tensor:
    tensor.__dict__["_there"] = there
    return tensor


def _marked(result: Any, there: bool) -> Any:
    for leaf in _tensors(result):
        _mark(leaf, there)
    return result


def _masked(name: str, args: Any) -> bool:
    """Whether a mask says how many elements there are."""
    return name == "__getitem__" and any(i.dtype == torch.bool for i in _tensors(args[1]))


def _caller() -> str:
    """The innermost line of the package, else of the test."""
    frame = sys._getframe(2)
    first = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return f"{name.removeprefix(PACKAGE)[1:]}:{frame.f_lineno}"
        if first is None and "torch" not in name and name != __file__:
            first = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return first or "?"


_GETTERS: dict[Any, Callable[[Tensor, torch.device], Any]] = {
    Tensor.device.__get__: lambda x, device: device if _there(x) else None,  # type: ignore[attr-defined]
    Tensor.is_cuda.__get__: lambda x, device: device.type == "cuda" if _there(x) else None,  # type: ignore[attr-defined]
    Tensor.is_pinned: lambda x, device: False,
}


class _Nothing:
    """A stream, an event or a graph: everything has happened already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = DEVICE

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: None


@contextmanager
def pretended_cuda() -> Iterator[PretendedDevice]:
    """A machine with one GPU, for the calling thread."""

    @contextmanager
    def stream(_: Any) -> Iterator[None]:
        yield

    faked: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "pretended",
        "synchronize": lambda *_: None,
        "current_stream": _Nothing,
        "Stream": _Nothing,
        "Event": _Nothing,
        "stream": stream,
        "mem_get_info": lambda _: (1 << 30, 1 << 30),
    }
    with ExitStack() as stack:
        for name, value in faked.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        yield stack.enter_context(_pretended(DEVICE))


@contextmanager
def pretended_mps() -> Iterator[PretendedDevice]:
    """A Mac with a GPU, for the calling thread."""
    with patch.object(torch.backends.mps, "is_available", lambda: True), _pretended(torch.device("mps", 0)) as mode:
        yield mode


@contextmanager
def _pretended(device: torch.device) -> Iterator[PretendedDevice]:
    new, jvp, vjp = nn.Parameter.__new__, functional.jvp, functional.vjp

    def jvp_there(function: Any, at: Any, change: Any) -> Any:
        return _marked(jvp(function, at, change), any(map(_there, _tensors(change))))

    def vjp_there(function: Any, *at: Any) -> Any:
        there = any(map(_there, _tensors(at)))
        value, back = vjp(function, *at)
        return _marked(value, there), lambda g: _marked(back(g), there)

    def parameter(cls: Any, data: Tensor | None = None, requires_grad: bool = True) -> Any:
        return _mark(new(cls, data, requires_grad), _there(data))

    with ExitStack() as stack:
        stack.enter_context(patch.object(nn.Parameter, "__new__", parameter))
        stack.enter_context(patch.object(Tensor, "record_stream", lambda *_: None))
        stack.enter_context(patch.object(functional, "jvp", jvp_there))
        stack.enter_context(patch.object(functional, "vjp", vjp_there))
        # The same products the other way round have other last bits here.
        stack.enter_context(patch.object(block, "along", lambda rows, tokens: torch.bmm(rows, tokens.mT)))
        yield stack.enter_context(PretendedDevice(device))


@contextmanager
def a_gpu() -> Iterator[PretendedDevice | None]:
    """Where "cuda" is a device: a real one where torch sees it (None), else a pretended one."""
    if torch.cuda.is_available():
        yield None
        return
    with pretended_cuda() as mode:
        yield mode
