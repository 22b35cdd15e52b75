"""What remains of a model behind a cut, as a module from the cached rows to the head's input.

It runs the model's own code. Every call that had ended at the cut is skipped and returns NaN in the shape of its
output: so nothing before the cut is computed, and anything that reaches the head by a way other than the rows shows.
The tensors in the module are empty: the real ones come from a store, by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from taftcache.backbone.cut.trace import Call, CallTrace, Shape, feature

PREFIX = "model."  # before timm's names


class Remainder(nn.Module):
    """Rows [n, …] of the input of ``start`` to the head's input [n,width].

    A copy of ``model`` without its parameters: run it with ``torch.func.functional_call`` and the tensors that ``fill``
    was told of. Not for two threads at once.

    shape: the shape of one row, as the model has it. parameters_live: names of the parameters that the rest may read,
    in forward order. shared: the parameters and buffers that code before the cut may read.
    """

    def __init__(self, model: nn.Module, trace: CallTrace, start: str, image_shape: tuple[int, ...]) -> None:
        super().__init__()
        calls = trace.calls
        (index,) = (k for k, call in enumerate(calls) if call.name == start)
        at = calls[index]
        assert at.given is not None
        self.shape = at.given.lengths[1:]
        self._image_shape, self._calls = image_shape, calls
        around = set(_around(calls, index))
        self._skipped = {
            k
            for k, call in enumerate(calls[:index])
            if (call.parent == -1 or call.parent in around) and call.ended <= index and k not in around
            if _counts(call.output)
        }
        # The rows replace the output that the cut's module is given, because other modules may be given it too.
        self._source = at.source if at.source in self._skipped else None
        run = [k for k in range(len(calls)) if self._skipped.isdisjoint(list(_around(calls, k))[1:])]
        self._plan: dict[str, list[int]] = {}
        for k in run:
            self._plan.setdefault(calls[k].name, []).append(k)
        first = {name: next((k for k in ks if k not in self._skipped), None) for name, ks in self._plan.items()}
        order = {"": -1} | {name: k for name, k in first.items() if k is not None}
        early = {"", *(call.name for call in calls[:index])}
        owners = {name: _owner(name, trace) for name in (*dict(model.named_parameters()), *dict(model.named_buffers()))}
        self.shared = {name for name, owner in owners.items() if owner in early}
        live = [name for name, _ in model.named_parameters() if owners[name] in order]
        self.parameters_live = sorted(live, key=lambda name: order[owners[name]])
        state = model.state_dict()
        self.buffers_live = [name for name, _ in model.named_buffers() if name in state and owners[name] in order]
        empty = {id(p): nn.Parameter(p.new_empty(0), requires_grad=False) for p in model.parameters()}
        self.model = copy.deepcopy(model, dict[int, Any](empty)).requires_grad_(False)
        forget_cached(self.model)
        self._rows: Tensor | None = None
        self._done: dict[str, int] = {}
        self._own: dict[str, Callable[..., Any]] = {}  # forward methods that modules have of their own
        for name in {calls[k].name for k in self._skipped}:
            module = self.model.get_submodule(name)
            if "forward" in vars(module):
                self._own[name] = module.forward
            module.forward = partial(self._unless_skipped, name)  # no closure: models are copied and pickled
        self.model.get_submodule(start).register_forward_pre_hook(self._enter)

    def forward(self, rows: Tensor) -> Tensor:
        """The head's input [n,width] for rows [n,t,d], or of any shape with as many numbers."""
        # A copy, because the model may work in place.
        self._rows, self._done = rows.reshape(len(rows), *self.shape).clone(), {}
        try:
            return feature(self.model, rows.new_full((), torch.nan).expand(len(rows), *self._image_shape))
        finally:
            self._rows = None
            forget_cached(self.model)

    def fill(self, model: nn.Module, held: Collection[str]) -> None:
        """Give live parameters that are not ``held``, and so will not come from outside, their shapes and NaN values.

        Code may look at their shapes, but only code before the cut reads them, and its results are not used.
        """
        for name in set(self.parameters_live) - set(held):
            owner, _, leaf = name.rpartition(".")
            blank = torch.full_like(model.get_parameter(name), torch.nan, requires_grad=False)
            self.model.get_submodule(owner).register_parameter(leaf, nn.Parameter(blank, requires_grad=False))

    def _enter(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return None if self._source is not None else (self._rows, *args[1:])

    def _unless_skipped(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the forward method of the module ``name``, some of whose calls are skipped."""
        k = self._done.get(name, 0)
        self._done[name] = k + 1
        call = self._plan[name][k]
        if call in self._skipped:
            return self._rows if call == self._source else self._nothing(self._calls[call].output)
        if name in self._own:
            return self._own[name](*args, **kwargs)
        module = self.model.get_submodule(name)
        return type(module).forward(module, *args, **kwargs)

    def _nothing(self, output: Any) -> Any:
        """What a skipped call returns: NaN for every number that it would have computed."""
        assert self._rows is not None
        if isinstance(output, Shape):
            dtype = self._rows.dtype if output.dtype.is_floating_point else output.dtype
            fill = torch.nan if dtype.is_floating_point else 0
            return torch.full((), fill, dtype=dtype, device=self._rows.device).expand(output.of(len(self._rows)))
        if isinstance(output, (tuple, list)):
            return type(output)(self._nothing(part) for part in output)
        if isinstance(output, dict):
            return {key: self._nothing(part) for key, part in output.items()}
        return output


def forget_cached(model: nn.Module) -> None:
    """Drop the position biases that some of timm's models keep from one evaluation to the next.

    They have the precision of the first evaluation, and no derivative passes through them.
    """
    for module in model.modules():
        vars(module).get("attention_bias_cache", {}).clear()


def _around(calls: list[Call], k: int) -> Iterator[int]:
    """Call k and the calls that it is inside of."""
    while k != -1:
        yield k
        k = calls[k].parent


def _counts(output: Any) -> bool:
    """Whether any tensor of an output has an axis that counts images."""
    if isinstance(output, Shape):
        return bool(output.counts)
    if isinstance(output, (tuple, list)):
        return any(map(_counts, output))
    return isinstance(output, dict) and any(map(_counts, output.values()))


def _owner(name: str, trace: CallTrace) -> str:
    """The innermost called module around a tensor, "" for the model: code may read a module without calling it."""
    while name := name.rpartition(".")[0]:
        if name in trace.called:
            return name
    return ""
