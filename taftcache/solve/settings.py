"""How near to the optimum a solve is to come, and how its products are computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Literal, ParamSpec, TypeVar

import torch

from taftcache.errors import SolveError
from taftcache.tangent.device import full_float32
from taftcache.tangent.operator import TangentOperator

P = ParamSpec("P")
T = TypeVar("T")

# A certified distance above this fraction of what a removal moved would prove nothing.
DECISIVE = 0.1

OnPass = Callable[[int, float], None]
"""Called after every pass with the passes so far and the relative residual."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """When a solve ends.

    Args:
        tolerance: the float64 gradient's norm to stop at, relative to its norm at Δw = 0.
        max_passes: limit on passes over the rows, one JᵀDJ·v each, besides those of the proof.
        proof_passes: passes spent after the solve on a closer bound (quadratic, no ball).
        decisive: go on, instead, until the certified distance is at most ``DECISIVE`` times how far taking out a
            typical row would move Δw, by an estimate (no ball; the head's closed form has no goal). ``Solution.stats``
            has that estimate as ``row_moves``; a solve in the space of the rows always has it, because there it costs
            no pass.
        until_decisive: go on beyond the tolerance to that distance, for at most as many passes again or fifty, if the
            estimate is good: in the space of the rows, over the span of the gradients, under the rows' exact kernel,
            and under a sample's curvature. Elsewhere this has no effect.
    """

    tolerance: float = 1e-6
    max_passes: int = 1000
    proof_passes: int = 0
    decisive: bool = False
    until_decisive: bool = False

    @property
    def decides(self) -> bool:
        """Whether a certificate that decides is asked for, instead of the tolerance or beyond it."""
        return self.decisive or self.until_decisive

    def __post_init__(self) -> None:
        for name, least in (("max_passes", 1), ("proof_passes", 0)):
            value = getattr(self, name)
            if not (isinstance(value, Integral) and least <= int(value) <= sys.maxsize):
                raise SolveError(
                    f"{name} must be a whole number of at least {least}, and at most {sys.maxsize}",
                    got=f"{name} = {value!r:.80}",
                )
        if not (isinstance(self.tolerance, Real) and self.tolerance >= 0):
            raise SolveError(
                "tolerance must be a number of at least 0",
                got=f"tolerance = {self.tolerance!r}",
                do="1e-6, the default",
            )


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How products with J are computed; the certificate is always float64.

    Args:
        precision: that of the inner products.
        memory: bytes that may hold prepared rows between passes; the result has the same bytes whatever it is.
        device: where products and sums run; one with float64.
        operator: makes J over the rows; another one computes the same bits elsewhere.
    """

    precision: Literal["float32", "float64"] = "float32"
    memory: int = 2 << 30
    device: torch.device | str = "cpu"
    operator: Callable[..., TangentOperator] = TangentOperator

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "float64"):
            raise SolveError("there is no such precision", got=repr(self.precision), do="float32 or float64")
        if not (isinstance(self.memory, Integral) and self.memory >= 0):
            raise SolveError("memory must be a number of bytes of at least 0", got=repr(self.memory), do="2 << 30")
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError):
            raise SolveError("torch knows no such device", got=repr(self.device), do="cpu, cuda or cuda:N") from None
        if device.type == "mps":
            raise SolveError("MPS has no float64, which gradients are summed in", got=repr(self.device), do="cpu")
        if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
            raise SolveError(
                f"torch does not see the device {device} on this machine",
                got=f"GPUs that torch sees: {count}",
                do="cpu",
            )

    @property
    def dtype(self) -> torch.dtype:
        """Torch's name of the precision."""
        return torch.float64 if self.precision == "float64" else torch.float32


def in_full_float32(verb: Callable[P, T]) -> Callable[P, T]:
    """``verb`` in full float32 on the device of its ``arithmetic``, whatever precision the calling program has set."""

    @wraps(verb)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        arithmetic = kwargs.get("arithmetic", ARITHMETIC)
        if not isinstance(arithmetic, Arithmetic):
            raise SolveError("arithmetic must be an Arithmetic", got=repr(arithmetic), do="leave it out")
        with full_float32(arithmetic.device):
            return verb(*args, **kwargs)

    return guarded


GOAL, ARITHMETIC = Goal(), Arithmetic()
