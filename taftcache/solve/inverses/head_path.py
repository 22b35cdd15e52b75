"""The head alone, from its normal matrices: at every λ by an eigendecomposition, with leave-one-out errors; at one λ by
its inverse Hessian, with what each row decides of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.solve.inverses.head_moments import (
    FewRows,
    HeadMoments,
    extended,
    flat,
    groups,
    head_moments,
    in_full,
    matrices,
    own_normals,
    own_rows,
    row_groups,
    span,
)
from taftcache.tangent.operator import TangentOperator

OnRows = Callable[[int], None]


def is_closed(problem: Problem) -> bool:
    """Whether there are rows, the head alone is trained on them, and the loss is quadratic."""
    return problem.operator.head_alone and problem.loss.quadratic and problem.operator.rows > 0


def has_path(problem: Problem) -> bool:
    """Whether ``HeadPath`` serves: for the head alone, a quadratic loss, and one D for all classes or room for each."""
    if not is_closed(problem):
        return False
    return len(list(groups(*matrices(problem)))) == 1


class HeadPath:
    """The head for every λ from one eigendecomposition, its leverages, and its exact leave-one-out errors.

    With Σ = 1/N Σ ω_n D_n x̃x̃ᵀ = VSVᵀ and R = 1/N Σ ω_n ∂ℓ_n x̃ᵀ at Δw = 0, the head is W(λ) = −R V (S + λ)⁻¹Vᵀ. Leaving
    row n out while λ keeps its meaning as the weight beside the sum over N rows,

        r_n^(−n) = r_n / (1 − h_n)        h_n = (ω_n D_n/N) x̃_nᵀ(Σ + λI)⁻¹x̃_n

    is the residual of its own prediction, without a solve. If each class has its own D (α ≠ 1), it has its own Σ, V and
    h too: one decomposition for each class, from one more pass. Costs one pass, one more each time the rows are looked
    at, and one if they are few compared with their width: then x̃, Σ and V have n numbers in a basis of the rows
    (``span``).

    Args:
        problem: over the head alone; its own λ has no part in it.

    Raises:
        SolveError: a problem without ``has_path``.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        if not has_path(problem):
            raise SolveError(
                "a head for every λ needs a square loss over the head alone, and memory where each class has its own D",
                got=f"{problem.loss}, {problem.operator.rows} rows, {problem.operator.classes} classes",
                do="a square loss with alpha = 1, or solve each λ on its own",
            )
        self._basis = span(problem)
        moments = head_moments(problem, self._basis)
        normal = moments.normal.mT[None].mT  # with strides [n²,1,n], or eigh would copy it
        if not moments.shared:
            normal = own_normals(problem, range(problem.operator.classes), moments.normal, self._basis)
        values = normal.new_empty(normal.shape[:2])
        # [C,n] and, in the memory of what is decomposed, [C,n,n]: C is 1 for all classes, or K
        self._values, self._vectors = torch.linalg.eigh(normal, out=(values, normal))
        self._values.clamp_min_(0)
        self._right = _turn(moments.right, self._vectors)

    def weights(self, ridge: float) -> Tensor:
        """W(λ) [K, d+1], the bias last."""
        return in_full(self._own_weights(ridge), self._basis)

    def _own_weights(self, ridge: float) -> Tensor:
        """W(λ) [K,n] for the x̃ used here, in their basis if there is one."""
        return -_turn(self._right / (self._values + ridge), self._vectors.mT)

    def heads(self, ridges: Sequence[float]) -> Tensor:
        """W(λ) [L, K, d+1] for every λ."""
        return torch.stack([self.weights(ridge) for ridge in ridges])

    def delta(self, ridge: float) -> Tensor:
        """W(λ) as Δw [P]."""
        return flat(self._problem, self.weights(ridge))

    def correct(self, operator: TangentOperator, ridges: Sequence[float]) -> Tensor:
        """How many of an operator's rows each W(λ) gives their own class [L], in one pass over them."""
        heads = self.heads(ridges).flatten(0, 1).T  # [d+1,L·K]
        count = torch.zeros(len(ridges), dtype=torch.int64, device=heads.device)
        for state, labels in operator.blocks():
            change = (extended(state.feature) @ heads).view(len(labels), len(ridges), -1)
            base = self._problem.logits(state.logits, None).double()
            count += (change.add_(base[:, None]).argmax(2) == labels[:, None]).sum(0)
        return count

    def leave_one_out(self, ridges: Sequence[float]) -> list[Unseen]:
        """Mean loss, and which rows get their own class, for predictions made without the row itself; each row counts
        by its weight in the problem.

        λN is kept, because that is what is chosen: as a problem of N − 1 rows, its λ is N/(N − 1) times as large.
        """
        losses = torch.zeros(len(ridges), dtype=torch.float64, device=self._values.device)
        right, weights, omega, start = [], [], self._problem.weights, 0
        for labels, curvature, residual, target in self._left_out(ridges):
            loss = 0.5 * (curvature[:, None] * residual.square()).sum(2)  # ℓ = ½ Σ D (z − target)²
            if omega is not None:
                weights.append(omega.at(labels, start, loss)[:, 0].cpu())
                loss *= weights[-1].to(loss)[:, None]
            losses += loss.sum(0)
            start += len(labels)
            if not labels.is_floating_point():
                right.append((residual.add_(target[:, None]).argmax(2) == labels[:, None]).cpu())
        each = torch.cat(right).T if right else [None] * len(ridges)
        mean, weight = (losses / self._problem.operator.rows).tolist(), torch.cat(weights) if weights else None
        return [Unseen(*found, weight) for found in zip(ridges, mean, each, strict=True)]

    def _left_out(self, ridges: Sequence[float]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Labels [b], D [b,K or 1], by how much predictions made without the row are off [b,L,K], and targets [b,K]."""
        heads = torch.cat([self._own_weights(ridge) for ridge in ridges]).T  # [n,L·K]
        for x, base, labels, curvature, leverage in self._blocks(ridges):
            # If one row alone decides a direction, h is 1 up to rounding; without rounding, λ > 0 keeps it below.
            held = 1 / (1 - leverage).clamp_min(1e-12)
            change = (x @ heads).view(len(labels), len(ridges), -1)
            away = self._problem.loss.gradient(base, labels) / curvature  # from the target
            yield labels, curvature, change.add_(away[:, None]).mul_(held), base - away

    def _blocks(self, ridges: Sequence[float]) -> Iterator[_Block]:
        """The rows with their leverages at every λ, in one pass."""
        inverses = torch.stack([1 / (self._values + ridge) for ridge in ridges], 1)  # [C,L,n]

        def inner(x: Tensor, start: int) -> Tensor:
            return torch.stack([(x @ V).square_() @ S.T for V, S in zip(self._vectors, inverses, strict=True)], 2)

        return _seen(self._problem, self._basis, inner)


def _seen(problem: Problem, basis: FewRows | None, inner: Callable[[Tensor, int], Tensor]) -> Iterator[_Block]:
    """The rows with their leverages, in one pass. ``inner`` takes rows x̃ [b,n] and the place of the first, and gives
    x̃ᵀA⁻¹x̃ [b,L,C] for each class's A, or for the one of all."""
    start = 0
    for state, labels in problem.operator.blocks():
        x = extended(state.feature, basis, start)
        own = inner(x, start)
        base = problem.logits(state.logits, None).double()
        curvature = problem.loss.hessian(base, labels, torch.ones_like(base))[:, : own.shape[2]]
        weight = curvature / problem.operator.rows
        if problem.weights is not None:
            weight = weight * problem.weights.at(labels, start, base)
        yield _Block(x, base, labels, curvature, weight[:, None] * own)
        start += len(labels)


class _Block(NamedTuple):
    """Some rows as a head sees them."""

    x: Tensor  # [b,n] x̃
    base: Tensor  # [b,K] the base point's logits
    labels: Tensor  # [b]
    curvature: Tensor  # [b,K] D, or [b,1] where it is the same for all classes
    leverage: Tensor  # [b,L,K] h at every λ, or [b,L,1]


def _turn(rows: Tensor, by: Tensor) -> Tensor:
    """rows [K,n], each times its class's matrix of ``by`` [C,n,n]."""
    if len(by) == 1:
        return rows @ by[0]
    return torch.bmm(rows[:, None], by)[:, 0]


class HeadNormals:
    """The head at any λ, and exactly what each row decides of it, from factors of the normal matrices; one pass.

    Args:
        problem: one that ``is_closed``; its own λ has no part in it.

    Raises:
        SolveError: features or logits that are not finite.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._moments = problem, head_moments(problem)

    def at(self, ridge: float, only: Sequence[int] | None = None) -> HeadInverse:
        """The head at one λ, for all classes or ``only`` for some.

        Raises:
            SolveError: λ is below what rounding takes.
        """
        return HeadInverse(self._problem, self._moments, ridge, only)


class HeadInverse:
    """The head at one λ, by the inverse of each class's A = 1/N Σ ω D x̃x̃ᵀ + λI.

    For class k, A_k = C + U_kU_kᵀ: C is made with the D that all classes have in common, and U_k [n,m] are the class's
    own rows, each times the root of what its own ωD/N has beyond that. So

        A_k⁻¹ = C⁻¹ − B_kB_kᵀ        B_k = C⁻¹U_kL⁻ᵀ        LLᵀ = I + U_kᵀC⁻¹U_k

    and over N rows, a class takes N·n·m operations where A_k⁻¹ itself takes N·n². A_k⁻¹ itself is made for classes of n
    rows or more, and for all classes if a row's own class has the smaller D. Classes are gone through in groups of
    GROUP_BYTES, with up to three passes each.

    Args:
        problem, moments, ridge: the problem, its moments, and λ.
        only: the classes that are asked for. The results for others mean nothing.

    Raises:
        SolveError: λ is below what rounding takes.
    """

    def __init__(self, problem: Problem, moments: HeadMoments, ridge: float, only: Sequence[int] | None) -> None:
        self._problem, self._moments, self._ridge = problem, moments, ridge
        self._common = _inverted(moments.normal.clone(), ridge)
        self._asked = list(range(len(moments.counts)) if only is None else only)
        self._groups = self._grouped()
        self._last: tuple[list[int], _Own] | None = None

    def _grouped(self) -> list[list[int]]:
        """If D differs, the classes that are asked for and have rows, grouped by the memory that they take."""
        moments, n = self._moments, len(self._common)
        own = [] if moments.shared else [k for k in self._asked if moments.counts[k]]
        sizes = moments.counts[own].clamp(max=n) if moments.above else moments.counts.new_full((len(own),), n)
        held = row_groups(sizes, n)
        return [[k for k, at in zip(own, held, strict=True) if at == group] for group in dict.fromkeys(held)]

    def _own(self) -> Iterator[_Own]:
        """What each group of classes has of its own; the last one made is kept, which serves if there is only one."""
        for classes in self._groups:
            if self._last is None or self._last[0] != classes:
                self._last = None  # free its memory before another takes as much
                self._last = classes, self._made(classes)
            yield self._last[1]

    def _made(self, classes: Sequence[int]) -> _Own:
        moments, n = self._moments, len(self._common)
        changed = {k: int(moments.counts[k]) for k in classes if moments.above and moments.counts[k] < n}
        places = dict(zip(changed, accumulate(changed.values(), initial=0), strict=False))
        U = self._common.new_empty(sum(changed.values()), n)
        ends = dict(places)
        for k, extra, x in own_rows(self._problem, changed) if changed else ():
            torch.mul(extra.sqrt(), x, out=U[ends[k] : ends[k] + len(x)])
            ends[k] += len(x)
        found = U @ self._common  # [Σm,n]
        for k, start in places.items():
            mine = slice(start, ends[k])
            inner = found[mine] @ U[mine].T
            inner.diagonal().add_(1)
            found[mine] = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), found[mine], upper=False)
        del U
        whole = [k for k in classes if k not in changed]
        inverses = {}
        if whole:
            normals = own_normals(self._problem, whole, moments.normal)
            inverses = {k: _inverted(normal, self._ridge) for k, normal in zip(whole, normals, strict=True)}
        return _Own(changed, found, inverses)

    @property
    def weights(self) -> Tensor:
        """W(λ) [K,d+1]."""
        return -self.inverse(self._moments.right)

    def inverse(self, full: Tensor) -> Tensor:
        """A⁻¹ of each class's row of ``full`` [K,d+1]."""
        found = full @ self._common
        for own in self._own():
            own.solve(full, found)
            del own
        return found

    def squares(self) -> Tensor:
        """‖A⁻¹x̃‖² for each row and each class asked for [N,A], or [N,1] if it is the same for all classes."""
        return self._of_each_row(
            lambda x: (x @ self._common).square_().sum(1),
            lambda own, x, _: own.squares(x, x @ self._common),
        )

    def _of_each_row(
        self,
        common: Callable[[Tensor], Tensor],
        own: Callable[[_Own, Tensor, Tensor], Iterator[tuple[int, Tensor]]],
        on_rows: OnRows | None = None,
        beside: Callable[[_Own], None] = lambda _: None,
    ) -> Tensor:
        """A number for each row and each class asked for [N,A], or [N,1] if it is the same for all classes. ``common``
        computes it [b] from rows x̃ [b,n]; from what a group has of its own, x̃ and that result, ``own`` computes what
        replaces it, by class. ``beside`` is called for each group."""
        operator = self._problem.operator
        first = torch.cat([common(extended(state.feature)) for state, _ in operator.blocks()])[:, None]
        found = first if self._moments.shared else first.repeat(1, len(self._asked))
        places = {k: place for place, k in enumerate(self._asked)}
        if on_rows is not None and not self._groups:
            on_rows(operator.rows)
        done = told = 0
        for group in self._own():
            beside(group)
            start = 0
            for state, labels in operator.blocks():
                here = slice(start, start + len(labels))
                for k, values in own(group, extended(state.feature), first[here, 0]):
                    found[here, places[k]] = values
                start, done = start + len(labels), done + len(labels)
                if on_rows is not None:
                    on_rows(done // len(self._groups) - told)
                    told = done // len(self._groups)
            del group
        return found

    def left_out_logits(self, on_rows: OnRows | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [b,K] of every row by the head solved without that row, with the same λN, and labels [b].

        Args:
            on_rows: called with how many more rows are done.
        """
        right, K = self._moments.right, self._problem.operator.classes
        solved = right @ self._common
        leverages = self._of_each_row(
            lambda x: (x @ self._common).mul_(x).sum(1), _Own.leverages, on_rows, lambda own: own.solve(right, solved)
        )
        weights = -solved

        def known(x: Tensor, start: int) -> Tensor:
            here = leverages[start : start + len(x), None]
            if self._moments.shared:
                return here
            return here.new_zeros(len(x), 1, K).index_copy_(2, torch.tensor(self._asked, device=here.device), here)

        for x, base, labels, curvature, leverage in _seen(self._problem, None, known):
            away = self._problem.loss.gradient(base, labels) / curvature  # from the target
            yield base - away + (x @ weights.T + away) / (1 - leverage[:, 0]).clamp_min(1e-12), labels


class _Own(NamedTuple):
    """What each class of a group has of its own: Bᵀ [m,n] for its m rows, stacked one below the other, or A⁻¹ [n,n]."""

    changed: dict[int, int]
    joined: Tensor
    inverses: dict[int, Tensor]

    def solve(self, full: Tensor, found: Tensor) -> None:
        """In ``found``, replace C⁻¹ times the classes' rows of ``full`` [K,n] by A⁻¹ times them."""
        for k, B in self._changes():
            found[k] -= (full[k] @ B.T) @ B
        for k, A in self.inverses.items():
            found[k] = full[k] @ A

    def leverages(self, x: Tensor, common: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each class, x̃ᵀA⁻¹x̃ [b] of rows [b,n]; ``common``: x̃ᵀC⁻¹x̃."""
        parts = (x @ self.joined.T).square_().split([*self.changed.values()], 1)
        for k, part in zip(self.changed, parts, strict=True):
            yield k, common - part.sum(1)
        for k, A in self.inverses.items():
            yield k, (x @ A).mul_(x).sum(1)

    def squares(self, x: Tensor, common: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For each class, ‖A⁻¹x̃‖² [b] of rows [b,n]; ``common``: C⁻¹x̃ of each."""
        for k, B in self._changes():
            yield k, torch.addmm(common, x @ B.T, B, alpha=-1).square_().sum(1)
        for k, A in self.inverses.items():
            yield k, (x @ A).square_().sum(1)

    def _changes(self) -> Iterator[tuple[int, Tensor]]:
        """Bᵀ [m,n] for each class."""
        return zip(self.changed, self.joined.split([*self.changed.values()]), strict=True)


def _inverted(matrix: Tensor, ridge: float) -> Tensor:
    """(matrix + λI)⁻¹ [n,n], from the lower triangle of ``matrix``, which is overwritten.

    Raises:
        SolveError: λ is below what rounding takes.
    """
    matrix.diagonal().add_(ridge)
    return torch.cholesky_inverse(cholesky(matrix, ridge, out=matrix), out=matrix)


class Unseen(NamedTuple):
    """Errors at one λ on rows that were not solved for: mean loss, which of them [N] get their own class (None for a
    regression), and what each weighs [N], unless all weigh one."""

    ridge: float
    loss: float
    right: Tensor | None
    weight: Tensor | None = None
