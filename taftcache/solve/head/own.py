"""What classes of a larger or smaller D have of their own in a head's inverses, and what that adds to a solve.

Letters are those of ``HeadAtMoments``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.solve.inverses.cholesky import solved


class Solve:
    """A⁻¹ of each class's row of ``full`` [K,n], to which each group of classes adds what these have of their own."""

    def __init__(self, full: Tensor, root: Callable[[], Tensor]) -> None:
        self.full, self._root = full, root
        self.less: dict[int, Tensor] = {}  # what a class's own rows take of C⁻¹ times its row [n]
        self.replaced: dict[int, Tensor] = {}  # A⁻¹ times the class's row [n], where A itself is factored

    @cached_property
    def turned(self) -> Tensor:
        """L⁻¹ times each row [n,K], less what the classes' own rows take of that."""
        found: Tensor = torch.linalg.solve_triangular(self._root(), self.full.T, upper=False)
        return found

    @property
    def rows(self) -> Tensor:
        """[K,n], once every group was there."""
        found: Tensor = torch.linalg.solve_triangular(self._root().mT, self.turned, upper=True).T
        for k, row in self.less.items():
            found[k] -= row
        for k, row in self.replaced.items():
            found[k] = row
        return found


class Factored(NamedTuple):
    """Some classes with the factors of their own A [C,n,n]."""

    classes: Sequence[int]
    roots: Tensor

    def solve(self, beside: Solve) -> None:
        rows = solved(self.roots, beside.full[self.classes, :, None])[:, :, 0]
        beside.replaced.update(zip(self.classes, rows, strict=True))

    def leverages(self, x: Tensor, common: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each class, x̃ᵀA⁻¹x̃ [b] of rows [b,n]."""
        for k, root in zip(self.classes, self.roots, strict=True):
            yield k, torch.linalg.solve_triangular(root, x.T, upper=False).square_().sum(0)

    def squares(self, x: Tensor, common: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each class, ‖A⁻¹x̃‖² [b] of rows [b,n]."""
        for k, root in zip(self.classes, self.roots, strict=True):
            yield k, solved(root, x.T).square_().sum(0)


class Changed(NamedTuple):
    """Yᵀ [m,n] and M [m,m] of some classes: for one solve."""

    parts: dict[int, tuple[Tensor, Tensor]]

    def solve(self, beside: Solve) -> None:
        for k, (Y, M) in self.parts.items():
            column = beside.turned[:, k]
            column -= (torch.cholesky_solve((Y @ column)[:, None], M).T @ Y)[0]


class Corrections(NamedTuple):
    """Bᵀ [m,n] of some classes, and all of them one below the other: for many rows."""

    parts: dict[int, Tensor]
    joined: Tensor

    def solve(self, beside: Solve) -> None:
        for k, B in self.parts.items():
            beside.less[k] = (beside.full[k] @ B.T) @ B

    def leverages(self, x: Tensor, common: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each class, x̃ᵀA⁻¹x̃ [b] of rows [b,n]; ``common``: x̃ᵀC⁻¹x̃."""
        parts = (x @ self.joined.T).square_().split([len(B) for B in self.parts.values()], 1)
        for k, part in zip(self.parts, parts, strict=True):
            yield k, common - part.sum(1)

    def squares(self, x: Tensor, common: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each class, ‖A⁻¹x̃‖² [b] of rows [b,n]; ``common``: C⁻¹x̃ of each."""
        for k, B in self.parts.items():
            yield k, torch.addmm(common, x @ B.T, B, alpha=-1).square_().sum(1)


Own = Factored | Changed | Corrections
