"""What is asked of a head at one λ, and of a head at every λ, whichever way it is solved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

OnRows = Callable[[int], None]


class HeadAt(Protocol):
    """The head at one λ, by the inverse of each class's A = 1/N Σ ω D x̃x̃ᵀ + λI, and what each row decides of it."""

    @property
    def weights(self) -> Tensor:
        """W(λ) [K,d+1], the bias last."""
        ...

    def common(self, places: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """C⁻¹x̃ [d+1,m] of some rows ``x`` [m,d+1] at ``places``, and C⁻¹λW/N [d+1,K]: C is A with the D that all
        classes have in common."""
        ...

    def inverse(self, full: Tensor) -> Tensor:
        """A⁻¹ of each class's row of ``full`` [K,d+1]."""
        ...

    def along(self, full: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A⁻¹ of each class's row of ``full`` [K,d+1], and each row's products with them, x̃ᵀA⁻¹f [N,K]; with what the
        last step of refinement added to these."""
        ...

    def moved(self, shift: Tensor, step: Tensor) -> Tensor:
        """Σ_k ‖c_k + s_nk A_k⁻¹x̃_n‖² of each row [N], for c = ``shift`` [K,d+1] and s = ``step`` [N,K]."""
        ...

    @property
    def rounding(self) -> float:
        """About what fraction of what a row decides rounding can take."""
        ...

    def left_out_logits(self, on_rows: OnRows | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [b,K] of every row by the head solved without that row, with the same λN, and labels [b].

        Args:
            on_rows: called with how many more rows are done.
        """
        ...


class Unseen(NamedTuple):
    """Errors at one λ on rows that were not solved for: mean loss, which of them [N] get their own class (None for a
    regression), and what each weighs [N], unless all weigh one."""

    ridge: float
    loss: float
    right: Tensor | None
    weight: Tensor | None = None


class EveryHead(Protocol):
    """The head at every λ, near enough to choose by."""

    def weights(self, ridge: float) -> Tensor:
        """W(λ) [K,d+1], the bias last."""
        ...

    def leave_one_out(self, ridges: Sequence[float]) -> list[Unseen]:
        """Mean loss, and which rows get their own class, for predictions made without the row itself; each row counts
        by its weight in the problem.

        λN is kept, because that is what is chosen: as a problem of N − 1 rows, its λ is N/(N − 1) times as large.
        """
        ...
