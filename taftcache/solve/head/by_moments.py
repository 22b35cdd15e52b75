"""The head of a quadratic loss from sums over its rows, for more rows than numbers in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.head.at_ridge import OnRows
from taftcache.solve.head.moments import head_moments, own_normals, own_rows
from taftcache.solve.head.own import Changed, Corrections, Factored, Own, Solve
from taftcache.solve.head.size import HeadSize, grouped
from taftcache.solve.head.sweep import swept
from taftcache.solve.head.terms import extended, flat, seen, whole
from taftcache.solve.inverses.cholesky import cholesky, solved


class ByMoments:
    """The head at any λ; one pass, and up to three for each group of classes that have a D of their own.

    Args:
        problem: in float64, one that ``is_closed``; its own λ has no part in it.

    Raises:
        SolveError: features or logits that are not finite.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.moments = problem, head_moments(problem)

    def at(self, ridge: float, only: Sequence[int] | None = None, *, last: bool = False) -> HeadAtMoments:
        """The head at one λ, for all classes or ``only`` for some.

        Args:
            last: whether this is all that is asked of these moments, and of it only ``weights`` and ``common``: it
                takes their memory.

        Raises:
            SolveError: by what it returns, λ is below what rounding takes.
        """
        return HeadAtMoments(self, ridge, only, last)

    def near(self, ridges: Sequence[float]) -> Iterator[Tensor]:
        """W(λ) [K,d+1] for one λ after another, near enough to choose by, if each class has its own D: exact if every
        class has few rows; otherwise without the matrix [n,n] that ``at`` makes for a class. The moments are written
        over."""
        moments, size = self.moments, HeadSize.of(self.problem)
        if not moments.above or int(moments.counts.max()) > size.few_of_a_class(once=True):
            return swept(self.problem, moments, ridges)
        return (self.at(ridge, last=k == len(ridges)).weights for k, ridge in enumerate(ridges, 1))


class HeadAtMoments:
    """The head at one λ, by factors of each class's A = 1/N Σ ω D x̃x̃ᵀ + λI.

    For class k, A_k = C + U_kU_kᵀ: C = LLᵀ is made with the D that all classes have in common, and U_k [n,m] are the
    class's own rows, each times the root of what its own ωD/N has beyond that. So with Y_k = L⁻¹U_k

        A_k⁻¹ = L⁻ᵀ(I − Y_k(I + Y_kᵀY_k)⁻¹Y_kᵀ)L⁻¹ = C⁻¹ − B_kB_kᵀ        B_k = L⁻ᵀY_kM⁻ᵀ        MMᵀ = I + Y_kᵀY_k

    and over N rows, a class takes N·n·m operations where A_k⁻¹ itself takes N·n². A_k itself is made and factored for
    classes with too many rows for that (``HeadSize.few_of_a_class``), and for all classes if a row's own class has the
    smaller D. Classes are gone through in groups of GROUP_BYTES.

    Args:
        of, ridge: the moments, and λ.
        only: the classes that are asked for. The results for others mean nothing.
        last: see ``ByMoments.at``.
    """

    def __init__(self, of: ByMoments, ridge: float, only: Sequence[int] | None, last: bool) -> None:
        self._problem, self._moments, self._ridge, self._last = of.problem, of.moments, ridge, last
        moments, n = of.moments, len(of.moments.normal)
        counts = moments.counts.tolist()
        self._asked = list(range(len(counts)) if only is None else only)
        own = {} if moments.shared else {k: counts[k] for k in self._asked if counts[k]}
        most = HeadSize.of(of.problem).few_of_a_class(once=last) if own and moments.above else 0
        changed = {k: m for k, m in own.items() if m <= most}
        factored = {k: n for k in own if k not in changed}
        # Those that are factored come first: the matrix that theirs are made from may then be written over.
        self._groups = [*grouped(factored, n), *grouped(changed, n)]
        self._is_changed = changed.keys()
        # What is made of them, if all fit at once.
        self._kept: dict[int, Own] | None = {} if len(grouped(factored | changed, n)) < 2 else None

    def _own(self, group: int) -> Own:
        """What a group of classes has of its own."""
        if self._kept is not None and group in self._kept:
            return self._kept[group]
        classes = self._groups[group]
        made: Own = (self._changed if classes[0] in self._is_changed else self._factored)(classes)
        if self._kept is not None:
            self._kept[group] = made
        return made

    @cached_property
    def _root(self) -> Tensor:
        """L [n,n], LLᵀ = C."""
        normal = self._moments.normal if self._last else self._moments.normal.clone()
        normal.diagonal().add_(self._ridge)
        return cholesky(normal, self._ridge, out=normal)

    def _factored(self, classes: Sequence[int]) -> Factored:
        assert not (self._last and "_root" in self.__dict__), "what the classes' matrices are made from is written over"
        own = own_normals(self._problem, classes, self._moments.normal, self._ridge)
        return Factored(classes, cholesky(own, self._ridge, out=own))

    def _changed(self, classes: Sequence[int]) -> Changed | Corrections:
        counts = self._moments.counts[classes].tolist()
        ends = dict(zip(classes, accumulate(counts, initial=0), strict=False))
        U = self._root.new_empty(sum(counts), len(self._root))
        for k, extra, x in own_rows(self._problem, ends):
            torch.mul(extra.sqrt(), x, out=U[ends[k] : ends[k] + len(x)])
            ends[k] += len(x)
        Y = torch.linalg.solve_triangular(self._root, U.T, upper=False, out=U.T).T
        parts = dict(zip(classes, Y.split(counts), strict=True))
        roots = {k: _inner_root(y) for k, y in parts.items()}
        if self._last:
            return Changed({k: (y, roots[k]) for k, y in parts.items()})
        torch.linalg.solve_triangular(self._root.mT, Y.T, upper=True, out=Y.T)
        for k, y in parts.items():
            y.copy_(torch.linalg.solve_triangular(roots[k], y, upper=False))
        return Corrections(parts, Y)

    @cached_property
    def weights(self) -> Tensor:
        """W(λ) [K,d+1]."""
        return self.inverse(-self._moments.right)

    def common(self, places: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """As ``HeadAt.common``; the ``places`` have no part in it."""
        shift = self._ridge / self._problem.operator.rows * self.weights.T
        return solved(self._root, x.T), solved(self._root, shift)

    def inverse(self, full: Tensor) -> Tensor:
        """A⁻¹ of each class's row of ``full`` [K,d+1]."""
        found = Solve(full, lambda: self._root)
        for group in range(len(self._groups)):
            self._own(group).solve(found)
        return found.rows

    def along(self, full: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As ``HeadAt.along``."""
        problem = replace(self._problem, ridge=self._ridge)
        first = self.inverse(full)
        step = self.inverse(full - whole(problem, problem.hessian(flat(problem, first))))
        more = problem.forward(flat(problem, step))
        return first + step, problem.forward(flat(problem, first)) + more, more

    def moved(self, shift: Tensor, step: Tensor) -> Tensor:
        """As ``HeadAt.moved``."""
        asked = self._asked
        along = self._problem.forward(flat(self._problem, self.inverse(shift)))  # x̃ᵀA⁻¹c [N,K]
        each = step.square()[:, asked] * self._squares() + 2 * (step * along)[:, asked]
        return (shift[asked].square().sum() + each.sum(1)).clamp_min_(0)

    @property
    def rounding(self) -> float:
        """As ``HeadAt.rounding``."""
        largest = self._moments.normal.diagonal().sum()
        own = max(1.0, HeadSize.of(self._problem).times)  # a class's own rows are a change of C so many times as large
        return float(torch.finfo(torch.float64).eps * largest * own**2 / self._ridge)

    def _squares(self) -> Tensor:
        """‖A⁻¹x̃‖² for each row and each class asked for [N,A], or [N,1] if it is the same for all classes."""
        return self._of_each_row(
            lambda x: solved(self._root, x.T).square_().sum(0),
            lambda own, x, _: own.squares(x, solved(self._root, x.T).T),
        )

    def left_out_logits(self, on_rows: OnRows | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """As ``HeadAt.left_out_logits``, block by block."""
        start, beside = 0, Solve(-self._moments.right, lambda: self._root)
        leverages = self._of_each_row(
            lambda x: torch.linalg.solve_triangular(self._root, x.T, upper=False).square_().sum(0),
            lambda own, x, common: own.leverages(x, common),
            on_rows,
            beside,
        )
        weights = beside.rows
        for x, labels, _, weight, target, away in seen(self._problem):
            here = leverages[start : start + len(labels)]
            if not self._moments.shared:
                places = torch.tensor(self._asked, device=here.device)
                here = torch.zeros_like(weight).index_copy_(1, places, here)
            yield target + (x @ weights.T + away) / (1 - weight * here).clamp_min(1e-12), labels
            start += len(labels)

    def _of_each_row(
        self,
        common: Callable[[Tensor], Tensor],
        own: Callable[[Factored | Corrections, Tensor, Tensor], Iterator[tuple[int, Tensor]]],
        on_rows: OnRows | None = None,
        beside: Solve | None = None,
    ) -> Tensor:
        """A number for each row and each class asked for [N,A], or [N,1] if it is the same for all classes. ``common``
        computes it [b] from rows x̃ [b,n]; from what a group has of its own, x̃ and that result, ``own`` computes what
        replaces it, by class. Each group also solves ``beside``."""
        operator = self._problem.operator
        first = torch.cat([common(extended(state.feature)) for state, _ in operator.blocks()])[:, None]
        found = first if self._moments.shared else first.repeat(1, len(self._asked))
        places = {k: place for place, k in enumerate(self._asked)}
        if on_rows is not None and not self._groups:
            on_rows(operator.rows)
        done = told = 0
        for group in range(len(self._groups)):
            start, made = 0, self._own(group)
            assert not isinstance(made, Changed), "the last λ is only solved for"
            if beside is not None:
                made.solve(beside)
            for state, labels in operator.blocks():
                here = slice(start, start + len(labels))
                for k, values in own(made, extended(state.feature), first[here, 0]):
                    found[here, places[k]] = values
                start, done = start + len(labels), done + len(labels)
                if on_rows is not None:
                    on_rows(done // len(self._groups) - told)
                    told = done // len(self._groups)
            del made  # free its memory before another takes as much
        return found


def _inner_root(Y: Tensor) -> Tensor:
    """M [m,m] of Yᵀ [m,n]."""
    inner = Y @ Y.T
    inner.diagonal().add_(1)
    found: Tensor = torch.linalg.cholesky(inner)
    return found
