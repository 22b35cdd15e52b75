"""What a solver sees of the linearised end of a network, whichever way its derivative is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from taftcache.tangent.factors import AddGradients, Direct, Factor, add_gradients, factor_norms
from taftcache.tangent.parameters import Layout


class State(Protocol):
    """What one pass over a block of n rows keeps of the base point, for J and Jᵀ."""

    @property
    def logits(self) -> Tensor:
        """f_w(x) [n,K]."""
        ...

    @property
    def feature(self) -> Tensor:
        """The head's input [n,d]."""
        ...


class Tail(Protocol):
    """f, J and Jᵀ of the tail of a network on cached rows.

    Weights, a direction Δw and a summed gradient are all mappings of timm's names to tensors. ``bind`` puts each once
    into the form that the tail computes with. A name that is missing is frozen: it is zero in a direction, is not
    formed in a gradient, and costs nothing.
    """

    def bind(self, named: Mapping[str, Tensor]) -> Any:
        """Views of ``named`` in the tail's own form; writing to them writes to ``named``."""
        ...

    converts: bool = False
    """Whether ``value`` takes rows of any float dtype and converts them itself; otherwise they need the weights'."""

    def value(self, w: Any, rows: Tensor) -> Any:
        """The ``State`` of the base model on a block of cached rows [n,t,d]."""
        ...

    def ready(self, layout: Layout, rows: int) -> Callable[[Any, Any], Any] | None:
        """A function of the weights and a state that makes the state ready for many products over ``layout``.

        None if no work done once makes them cheaper. The choice depends on the arguments and the tail's shape alone,
        because products with a ready state have different bits.
        """
        return None

    def tangent(self, w: Any, state: Any, delta: Any) -> Tensor:
        """J Δw [n,K]."""
        ...

    def value_and_tangent(self, w: Any, rows: Tensor, delta: Any) -> tuple[Tensor, Tensor]:
        """f_w(x) and J Δw, both [n,K], for one direction; nothing has to be kept for further products."""
        state = self.value(w, rows)
        logits: Tensor = state.logits
        return logits, self.tangent(w, state, delta)

    def adjoint(self, w: Any, state: Any, r: Tensor, out: Any) -> None:
        """Add Jᵀ r to ``out`` in place, for r [n,K]."""
        ...

    @property
    def factored(self) -> bool:
        """Whether per-row gradients are available in factored form; if not, ``factors`` raises SolveError."""
        ...

    @property
    def rank_one(self) -> bool:
        """Whether gradients are factored, and every matrix's factor is a ``RankOne``."""
        ...

    @property
    def block_rows(self) -> int:
        """Rows to compute at once, at most."""
        ...

    @property
    def factor_width(self) -> int:
        """About how many numbers the factors of one row's gradient hold."""
        ...

    def factors(self, layout: Layout, w: Any, state: Any, r: Tensor) -> tuple[Sequence[Factor], list[Direct]]:
        """Each row's Jᵀ r in factored form, for r [n,K]."""
        ...

    def tensors(self, state: Any) -> Iterator[Tensor]:
        """All tensors that ``state`` holds in memory."""
        return iter(state)

    def select(self, state: Any, rows: Tensor) -> Any | None:
        """The state of only some of its rows; None for a tail that keeps too much of each row to hold many."""
        return type(state)(*(tensor[rows] for tensor in state))


def row_norms(tail: Tail, layout: Layout, w: Any, state: Any, r: Tensor) -> Tensor:
    """‖Jᵀ r‖ of each row [n], for r [n,K]: from the factors, or if a tail has none, by one Jᵀ for each row."""
    if tail.factored:
        return factor_norms(*tail.factors(layout, w, state, r))
    norms = [gradient.norm() for gradient in _each(tail, layout, w, state, r)]
    return torch.stack(norms) if norms else r.new_zeros(0)


def collect_gradients(tail: Tail, layout: Layout, w: Any, state: Any, r: Tensor, add: AddGradients) -> None:
    """Hand Jᵀ r of each row, for r [n,K], to ``add``, piece by piece."""
    if tail.factored:
        add_gradients(*tail.factors(layout, w, state, r), add)
        return
    for n, gradient in enumerate(_each(tail, layout, w, state, r)):
        add(slice(n, n + 1), slice(0, layout.size), gradient[None])


def _each(tail: Tail, layout: Layout, w: Any, state: Any, r: Tensor) -> Iterator[Tensor]:
    """The rows' gradients one after the other, by one Jᵀ each."""
    for n in range(len(r)):
        row, gradient = torch.tensor([n], device=r.device), r.new_zeros(layout.size)
        tail.adjoint(w, tail.select(state, row), r[row], tail.bind(layout.views(gradient)))
        yield gradient
