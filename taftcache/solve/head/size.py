"""How large a head's closed form is: which way it is solved, and how much memory and time that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from taftcache.objective.loss import Loss
from taftcache.objective.problem import Problem
from taftcache.tangent.operator import first_target

# Bytes that a group of classes may take, for their normal matrices if each has its own, or for their rows.
GROUP_BYTES = 512 << 20
# Blocks of rows in float64 that are in memory beside the matrices at most, with what the allocator keeps of freed ones:
# measured at 600 to 6,000 rows of 3,500 to 50,000 numbers, for a given λ and with a choice of λ before.
BLOCKS, BLOCKS_TO_CHOOSE = 14, 24
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
    def extra(self) -> float:
        """How much larger the loss's D is for a row's own class than for the others; 0 if all have the same."""
        z, target = torch.zeros(1, self.classes, dtype=torch.float64, device="cpu"), self.target()
        diagonal = self.loss.hessian(z, target, torch.ones_like(z))
        own = 0 if target.is_floating_point() else int(target)
        return (diagonal[0, own] - diagonal[0, own - 1]).item()

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

    def products(self, tried: int) -> float:
        """About how many products of two float64 numbers ``solve_head`` takes besides its passes, with a choice among
        ``tried`` λ before it: sums over the rows, and for each λ factors [n,n]; a decomposition takes as long as 30."""
        n, most, own = self.side, max(self.rows, self.numbers), self.classes if self.extra else 1
        sums, factor = n * n * most / 2, n**3 / 6
        each = 3 * factor if self.by_rows else min(own * factor, factor + n * n * self.rows / 2)
        decomposed = own == 1 or (not self.by_rows and self.decomposes)
        choice = sums + (30 * own * factor if decomposed else tried * each) if tried else 0.0
        return sums + each + 3 * n * most * self.classes * (1 + tried) + choice


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
