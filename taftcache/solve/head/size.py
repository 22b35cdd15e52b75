"""How large a head's closed form is: which way it is solved, and how much memory and time that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.objective.loss import Loss
from taftcache.objective.problem import Problem
from taftcache.tangent.operator import first_target

# Bytes that a group of classes may take, for their normal matrices if each has its own, or for their rows.
GROUP_BYTES = 512 << 20
# Blocks of rows in float64 that are in memory beside the matrices at most, with what the allocator keeps of freed ones:
# measured at 600 to 6,000 rows of 3,500 to 50,000 numbers, for a given λ and with a choice of λ before.
BLOCKS, BLOCKS_TO_CHOOSE = 14, 24
# A decomposition of [n,n] takes as long as so many Cholesky factors, a product in one of many small matrices as so many
# in a large one, and a number that is read and written on the way to them as so many products: measured.
DECOMPOSED, BATCHED, READ = 30, 4, 100
# Products that leaving each row or each group out may take, whatever a decomposition takes: half a minute, or some
# seconds. Above, it may take so many times what a validation takes.
ROWS_OUT, GROUPS_OUT, TIMES = 2**39, 2**37, 6
MOST_TIMES = 1e5  # above, groups are not left out by own rows: ten of sixteen digits go
FEW = 3  # times the rows of a class: if a row has as many numbers, one solve is cheaper from what they change


def _class_zero() -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device="cpu")


@dataclass(frozen=True)
class HeadSize:
    """What decides how a head is solved.

    loss: a quadratic one.
    rows: N. numbers: d+1, which a head reads of each row. classes: K.
    target: that of one row, [1] or [1,K].
    """

    loss: Loss
    rows: int
    numbers: int
    classes: int
    target: Callable[[], Tensor] = _class_zero

    @classmethod
    def of(cls, problem: Problem) -> HeadSize:
        """The size of a problem over the head alone."""
        operator, config = problem.operator, problem.operator.base.config
        target = partial(first_target, operator.sources, config.classes)
        return cls(problem.loss, operator.rows, config.width + 1, config.classes, target)

    @property
    def by_rows(self) -> bool:
        """Whether there are no more rows than numbers in each: their products with each other are cheaper."""
        return self.rows <= self.numbers

    @property
    def side(self) -> int:
        """n of the head's matrices [n,n]."""
        return min(self.rows, self.numbers)

    @cached_property
    def _diagonal(self) -> tuple[float, float]:
        """The loss's D for a row's own class, and for the others."""
        z, target = torch.zeros(1, self.classes, dtype=torch.float64, device="cpu"), self.target()
        diagonal = self.loss.hessian(z, target, torch.ones_like(z))[0]
        own = 0 if target.is_floating_point() else int(target)
        return diagonal[own].item(), diagonal[own - 1].item()

    @property
    def extra(self) -> float:
        """How much larger the loss's D is for a row's own class than for the others; 0 if all have the same."""
        own, other = self._diagonal
        return own - other

    @property
    def times(self) -> float:
        """How many times as large it is."""
        own, other = self._diagonal
        return own / other

    @property
    def together(self) -> int:
        """How many matrices GROUP_BYTES hold, at least one."""
        return max(1, GROUP_BYTES // (8 * self.side**2))

    @property
    def decomposes(self) -> bool:
        """Whether there is room to decompose all matrices at once: one for all classes or, if D differs, one each."""
        return not self.extra or self.classes <= self.together

    def few_of_a_class(self, *, once: bool) -> int:
        """The most rows of a class whose D is larger that only change the matrix of all classes, in place of a matrix
        for the class: for ``once``, one solve; or for what each row decides."""
        if once:  # with room for all matrices, they are cheapest
            return 0 if self.decomposes else self.numbers // FEW
        return self.numbers - 1

    @property
    def own_columns(self) -> int:
        """The most columns [n] that classes have of their own together, where rows are many: one for each row, or n for
        a class with n rows or with a smaller D of its own; 0 if all classes have the same D."""
        every = self.classes * self.numbers
        return 0 if not self.extra else every if self.extra < 0 else min(self.rows, every)

    def solve_bytes(self, *, chosen: bool) -> int:
        """About how many bytes ``solve_head`` takes at most at once, in matrices over its rows and over their numbers.

        chosen: whether λ is chosen first by decompositions, if there is room. LAPACK takes two more matrices for them.
        """
        n = self.side
        if self.by_rows:
            # The rows; their products, which the inverse replaces; and what classes have of their own. To choose, both
            # products and inverse, or what LAPACK takes.
            return 8 * n * (self.numbers + (1 + bool(self.extra) + 2 * chosen) * n)
        own = min(self.together, self.classes) if self.extra else 0
        return 8 * n * n * (1 + own + (2 if chosen and self.decomposes else 0))

    def block_bytes(self, block_rows: int, *, chosen: bool) -> int:
        """About how many bytes the rows that are read take at most at once, beside the matrices; of few rows, no more
        than these and two blocks. Read in blocks of so many rows; ``chosen`` as for ``solve_bytes``."""
        blocks = BLOCKS_TO_CHOOSE if chosen else BLOCKS
        return 8 * self.numbers * min(blocks * block_rows, self.rows + 2 * min(self.rows, block_rows))

    def left_out_bytes(self, asked: int) -> int:
        """About how many bytes leaving out each row takes at most at once if so many classes are ``asked`` for: the
        sums and their factor, the columns of a group of classes, and some numbers for each row and class; for few rows,
        as many as a choice of λ."""
        if self.by_rows:
            return self.solve_bytes(chosen=True)
        n = self.numbers
        columns = min(self.own_columns, max(n, GROUP_BYTES // (8 * n)))
        return 8 * n * (2 * n + columns) + 24 * self.rows * asked

    def products(self, tried: int, choice: float | None = None) -> float:
        """About how many products of two float64 numbers ``solve_head`` takes besides its passes, with a choice among
        ``tried`` λ before it, which takes ``choice`` (by default that of a validation): sums over the rows, and for
        each λ factors [n,n]."""
        n, most, own = self.side, max(self.rows, self.numbers), self._matrices
        sums, factor = self._sums, n**3 / 6
        each = 3 * factor if self.by_rows else min(own * factor, factor + n * n * self.rows / 2)
        if choice is None:
            decomposed = own == 1 or (not self.by_rows and self.decomposes)
            choice = self._decomposed if decomposed else sums + tried * each
        return sums + each + 3 * n * most * self.classes * (1 + tried) + (choice if tried else 0.0)

    def left_out(self, tried: int, groups: NDArray[np.int64] | None = None, largest: int = 0) -> float | None:
        """About how many products leaving each row out takes for so many λ, or each of ``groups`` of so many rows,
        ``largest`` rows in one class. None if it is not done: if there is no room for all decompositions or, of groups
        of many rows, in GROUP_BYTES for what is read and for the largest; or if many rows make it far dearer than a
        validation. By rows, numbers and classes alone, so λ does not depend on the machine."""
        if not self.decomposes:
            return None
        if groups is None:
            found, least = self._rows_out(tried), ROWS_OUT
        else:
            found, least = min(self._groups_out(tried, groups), self._own_rows_out(tried, groups, largest)), GROUPS_OUT
            at_once = 2 * int(groups.max()) * self.numbers * self._matrices
            read = self.rows * (2 * self.numbers + (4 + tried) * self.classes)
            if not self.by_rows and 8 * (read + at_once) > GROUP_BYTES:
                return None
        return found if self.by_rows or found <= max(least, TIMES * self._decomposed) else None

    def by_own_rows(self, tried: int, groups: NDArray[np.int64], largest: int) -> bool:
        """Whether groups are left out by what classes' own rows change in one matrix (``PathByOwnRows``), and not by a
        decomposition of each class's."""
        return self._own_rows_out(tried, groups, largest) < self._groups_out(tried, groups)

    def _rows_out(self, tried: int) -> float:
        n = self.side
        if self.by_rows and self.extra:  # by a factor for each λ
            return self._sums + tried * n * n * (n / 2 + 2 * self.classes)
        return self._decomposed + self._matrices * self.rows * n * ((0 if self.by_rows else n) + 2 * tried)

    def _groups_out(self, tried: int, groups: NDArray[np.int64]) -> float:
        n, g = self.side, groups.astype(np.float64)
        each = np.where(g <= n, g * n * (BATCHED * g + READ) + BATCHED * g**3 / 3, n * n * (g + BATCHED * n))
        turned = 0 if self.by_rows else self.rows * n * n
        return float(self._decomposed + self._matrices * (turned + tried * each.sum()))

    def _own_rows_out(self, tried: int, groups: NDArray[np.int64], largest: int) -> float:
        """inf if that is no way: all classes have the same D, rows are few, a class has more than numbers, GROUP_BYTES
        do not hold the classes' rows, each as many as the ``largest`` has, five times, or so large a D of a row's own
        class takes too many digits."""
        n, K, m, g = self.numbers, self.classes, largest, groups.astype(np.float64)
        room = 5 * 8 * K * m * n <= GROUP_BYTES
        if not self.extra or self.by_rows or m > n or not room or self.times > MOST_TIMES:
            return inf
        each = g * (BATCHED * (g * m + g * g / 3) + 3 * READ * (m + g))
        own = self.rows * m * n + m * m * n + m**3
        return float(self._sums + DECOMPOSED * n**3 / 6 + tried * K * (each.sum() + own))

    @property
    def _matrices(self) -> int:
        return self.classes if self.extra else 1

    @property
    def _sums(self) -> float:
        return self.side**2 * max(self.rows, self.numbers) / 2

    @property
    def _decomposed(self) -> float:
        """Products of all matrices' sums and decompositions."""
        return self._sums + DECOMPOSED * self._matrices * self.side**3 / 6


def grouped(columns: Mapping[int, int], n: int) -> list[list[int]]:
    """The keys of ``columns``, in order, in groups whose columns [n] take GROUP_BYTES together, or which are one."""
    groups: list[list[int]] = []
    room = 0
    for key, count in columns.items():
        room -= 8 * n * count
        if room < 0 or not groups:
            groups.append([])
            room = GROUP_BYTES - 8 * n * count
        groups[-1].append(key)
    return groups
