"""Any tail: forward and reverse mode of ``torch.func`` on the model's own code, with the head in closed form.

The paths that know the layers' equations are faster by one or two orders of magnitude; this one is for models without
such a path. A pass costs one forward pass of the tail for f, about two for J and three for Jᵀ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from taftcache.errors import SolveError
from taftcache.tangent.config import TailConfig
from taftcache.tangent.device import full_float32, process_lock
from taftcache.tangent.factors import Direct, RankOne
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rules import linear_adjoint, linear_tangent
from taftcache.tangent.tail import Tail

# Rows go through the tail in pieces of about this many numbers; a few dozen times that are in use at once. Sums run
# over pieces, so this decides the result's bytes and is not a tuning knob.
PIECE_NUMBERS = 1 << 21
ON_GPU = 8  # times as many there, because each piece takes some hundred launches; not measured
PREFIX = "model."  # of timm's names inside the module

Named = dict[str, Tensor]

# One pass at a time: torch's forward mode has one level for all threads of a process, and during a pass a module holds
# that pass's tensors and rows.
_turn = process_lock()


class FunctionalState(NamedTuple):
    """The cached rows [n,t,d], the head's input [n,width] and the logits [n,K]."""

    rows: Tensor
    feature: Tensor
    logits: Tensor


class FunctionalTail(Tail):
    """``module`` from rows to the head's input under the state's tensors, then a linear head.

    Args:
        config: of the tail; names in the state are the module's without the leading "model.".
        module: a function of rows alone, in evaluation mode. Those of its tensors that the state does not name are
            constants.
    """

    factored = rank_one = False
    block_rows = 256

    def __init__(self, config: TailConfig, module: nn.Module) -> None:
        self.config, self.module = config, module
        self._numbers = torch.Size(config.shape).numel()
        held = {f"{PREFIX}{name}" for name in (*config.parameters, *config.buffers)}
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._constants = {name: tensor for name, tensor in tensors.items() if name not in held}
        self._moved: dict[tuple[torch.dtype, torch.device], Named] = {}

    def bind(self, named: Mapping[str, Tensor]) -> Named:
        """The tensors as they are."""
        return dict(named)

    def value(self, w: Named, rows: Tensor) -> FunctionalState:
        """The base model on ``rows`` [n,t,d]."""
        rows = _usable(rows)
        with _exact(rows), torch.no_grad():
            feature = torch.cat([self._run(w, {}, piece) for piece in self._pieces(rows)])
        weight, bias = (w[name] for name in self.config.head_names)
        return FunctionalState(rows, feature, torch.addmm(bias, feature, weight.T))

    def tangent(self, w: Named, state: FunctionalState, delta: Named) -> Tensor:
        """J Δw [n,K]: forward mode through the names that ``delta`` has."""
        weight, bias = self.config.head_names
        moved = {name: _usable(d) for name, d in delta.items() if name not in (weight, bias)}
        du = None
        if moved:
            at = {name: _usable(w[name]) for name in moved}

            def change(piece: Tensor) -> Tensor:
                du: Tensor = jvp(lambda p: self._run(w, p, piece), (at,), (moved,))[1]
                return du

            with _exact(state.rows), torch.no_grad():
                du = torch.cat([change(piece) for piece in self._pieces(state.rows)])
        out = linear_tangent(w[weight], state.feature, du, delta.get(weight), delta.get(bias))
        return torch.zeros_like(state.logits) if out is None else out

    def adjoint(self, w: Named, state: FunctionalState, r: Tensor, out: Named) -> None:
        """Add Jᵀ r to ``out`` in place, for r [n,K]: reverse mode through the names that ``out`` has."""
        weight, bias = self.config.head_names
        linear_adjoint(r, state.feature, out.get(weight), out.get(bias))
        at = {name: _usable(w[name]) for name in out if name not in (weight, bias)}
        if not at:
            return
        back = _usable(r @ w[weight])
        for piece, g in zip(self._pieces(state.rows), self._pieces(back), strict=True):
            with _exact(piece):
                linearised: tuple[Any, ...] = vjp(lambda p, piece=piece: self._run(w, p, piece), at)
                (gradients,) = linearised[1](g)
            for name, gradient in gradients.items():
                out[name] += gradient

    @property
    def factor_width(self) -> int:
        """Not available: see ``factored``."""
        raise SolveError(_NO_FACTORS)

    def factors(
        self, layout: Layout, w: Named, state: FunctionalState, r: Tensor
    ) -> tuple[list[RankOne], list[Direct]]:
        """Not available: see ``factored``."""
        raise SolveError(_NO_FACTORS)

    def _pieces(self, rows: Tensor) -> tuple[Tensor, ...]:
        """``rows``, or a tensor with as many rows, split into pieces for the device."""
        most = PIECE_NUMBERS * ON_GPU if rows.is_cuda else PIECE_NUMBERS
        return torch.split(rows, max(1, most // self._numbers))

    def _run(self, w: Named, moving: Named, rows: Tensor) -> Tensor:
        """The head's input for a piece of rows, at the base point with ``moving`` in place of its namesakes."""
        named = {name: moving.get(name, tensor) for name, tensor in w.items() if name not in self.config.head_names}
        token = named.pop(self.config.token_name, None)
        if token is not None:
            rows = torch.cat([token.view(1, 1, -1).expand(len(rows), 1, -1), rows[:, 1:]], 1)
        tensors = self._constant(rows) | {f"{PREFIX}{name}": tensor for name, tensor in named.items()}
        feature: Tensor = functional_call(self.module, tensors, (rows,))
        return feature

    def _constant(self, rows: Tensor) -> Named:
        """The module's own tensors, in the precision and on the device of ``rows``."""
        key = rows.dtype, rows.device
        if key not in self._moved:
            self._moved[key] = {
                name: _usable(t.to(rows.device, rows.dtype if t.is_floating_point() else None))
                for name, t in self._constants.items()
            }
        return self._moved[key]


_NO_FACTORS = "a functional tail has no factored gradients; solvers ask `factored` first"


@contextmanager
def _exact(rows: Tensor) -> Iterator[None]:
    """Inside, no other thread makes a pass, and derivatives of every kind exist: without inference mode, and with
    attention written out.

    Full float32 is for the convolutions in the model's own code.
    """
    with _turn, torch.inference_mode(False), _WrittenOut(), full_float32(rows.device):
        yield


class _WrittenOut(TorchFunctionMode):
    """Inside, attention is computed step by step, because forward mode through fused attention does not exist.

    In this thread alone: torch's own switch, ``sdpa_kernel``, would change what other threads compute meanwhile.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is multi_head_attention_forward:  # inside it this mode is off, so there is no way but torch's switch
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **(kwargs or {}))
        return (_attention if func is scaled_dot_product_attention else func)(*args, **(kwargs or {}))


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *more: Any, **named: Any
) -> Tensor:
    """What ``scaled_dot_product_attention`` does for ``SDPBackend.MATH``, to the bit."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    out: Tensor = torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, *more, **named)[0]
    return out


def _usable(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy that autograd may use if it was made in inference mode."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()
