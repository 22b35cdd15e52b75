"""The head alone: ridge-regularised least squares, solved in closed form, for one λ or for all."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.solve.proof import looked_at
from taftcache.solve.solution import Solution
from taftcache.solve_stats import SolveStats
from taftcache.tangent.operator import TangentOperator

# Bytes that the normal matrices of one group of classes may take when each class has its own.
GROUP_BYTES = 512 << 20


def solve_head(problem: Problem, tolerance: float = 1e-6) -> Solution:
    """Minimise a quadratic F with diagonal D over the head's weight and bias.

    With x̃ = [feature; 1], class k's normal matrix is 1/N Σ_n ω_n D_nk x̃x̃ᵀ + λI: one Cholesky for all classes when D is
    the same for all of them (RSL with α = 1, squared error), one a class otherwise, or what the class's own rows change
    in the one of all (``_solve_updated``). Rows that are few beside their width are written in a basis of their own
    first, as ``_span`` says. Costs 1 + ⌈K/group⌉ passes, and one for that.

    Args:
        problem: in float64, over a layout that holds the head's weight and bias only.
        tolerance: what the recomputed gradient must meet to be called converged, relative to Δw = 0.

    Raises:
        SolveError: a λ below what rounding takes from the normal matrix.
    """
    return looked_at(problem, next(heads_of(problem, [problem.ridge])), tolerance, _closed(problem))


def heads_of(problem: Problem, ridges: Iterable[float]) -> Iterator[Tensor]:
    """Δw(λ) [P] of ``solve_head`` for one λ after another, from the same moments; the errors are the same."""
    basis = _span(problem)
    moments = _moments(problem, basis)
    K, size = moments.right.shape
    for ridge in ridges:
        normal = moments.normal + ridge * torch.eye(size, dtype=torch.float64, device=problem.operator.device)
        if moments.shared:
            solution = torch.cholesky_solve(-moments.right.T, cholesky(normal, ridge)).T
        elif moments.above and _few_of_each(moments.counts, size):
            solution = _solve_updated(problem, moments, cholesky(normal, ridge), basis)
        else:
            groups = (_solve_group(problem, g, normal, moments.right, basis, ridge) for g in _groups(K, size))
            solution = torch.cat(list(groups))
        yield _flat(problem, _whole(solution, basis))


def _closed(problem: Problem) -> SolveStats:
    """What a closed form says of itself before anyone looks at it."""
    return SolveStats(solver="closed form", passes=problem.operator.passes)


def has_path(problem: Problem) -> bool:
    """Whether ``HeadPath`` serves: the head alone, a quadratic loss, one D for all classes or room for each one's."""
    operator = problem.operator
    if not operator.head_alone or not problem.loss.quadratic or not operator.rows:
        return False
    state, labels = next(iter(operator.blocks()))
    z = state.logits.double()
    diagonal = problem.loss.hessian(z, labels, torch.ones_like(z))
    shared = bool((diagonal == _common(diagonal, labels)).all())
    size = operator.rows if _few(problem, state.feature) else state.feature.shape[1] + 1
    return shared or len(list(_groups(operator.classes, size))) == 1


def has_quick_heads(problem: Problem) -> bool:
    """Whether ``heads_of`` serves many λ though there is no ``HeadPath``: a wide feature, and classes of few rows."""
    operator = problem.operator
    if not operator.head_alone or not problem.loss.quadratic:
        return False
    counts = torch.zeros(operator.classes, dtype=torch.int64, device=operator.device)
    for _, labels in operator.blocks():
        if labels.is_floating_point():
            return False
        counts += torch.bincount(labels, minlength=len(counts))
    return _few_of_each(counts, operator.base.config.width + 1)


class HeadPath:
    """The head for every λ from one eigendecomposition, its leverages, and its exact leave-one-out errors.

    With Σ = 1/N Σ ω_n D_n x̃x̃ᵀ = VSVᵀ and R = 1/N Σ ω_n ∂ℓ_n x̃ᵀ at Δw = 0, the head is W(λ) = −R V (S + λ)⁻¹Vᵀ. Leaving
    row n out while λ keeps its meaning as the weight beside the sum over N rows,

        r_n^(−n) = r_n / (1 − h_n)        h_n = (ω_n D_n/N) x̃_nᵀ(Σ + λI)⁻¹x̃_n

    is the residual of its own prediction, without a solve. Where each class has its own D (α ≠ 1) it has its own Σ, V
    and h too: a decomposition a class, from one pass more. Costs one pass, one more for each look at the rows, and one
    where rows are few beside their width: then x̃, Σ and V are those of their own basis (``_span``), of n numbers.

    Args:
        problem: over the head alone; its own λ has no part in it.

    Raises:
        SolveError: a problem that ``has_path`` denies one.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        if not has_path(problem):
            raise SolveError(
                "a head for every λ needs a square loss over the head alone, and memory where each class has its own D",
                got=f"{problem.loss}, {problem.operator.rows} rows, {problem.operator.classes} classes",
                do="a square loss with alpha = 1, or solve each λ on its own",
            )
        self._basis = _span(problem)
        moments = _moments(problem, self._basis)
        everyone = slice(0, problem.operator.classes)
        normal = moments.normal[None]
        if not moments.shared:
            normal = _own_normals(problem, everyone, moments.normal, self._basis)
        self._values, self._vectors = torch.linalg.eigh(normal)  # [C,n], [C,n,n]: one for all classes, or each
        self._values.clamp_min_(0)
        self._right = self._turn(moments.right, self._vectors)

    def weights(self, ridge: float) -> Tensor:
        """W(λ) [K, d+1], the bias last."""
        return _whole(self._own_weights(ridge), self._basis)

    def _own_weights(self, ridge: float) -> Tensor:
        """W(λ) [K,n] for x̃ as they are written here."""
        return -self._turn(self._right / (self._values + ridge), self._vectors.mT)

    def heads(self, ridges: Sequence[float]) -> Tensor:
        """W(λ) [L, K, d+1] for every λ."""
        return torch.stack([self.weights(ridge) for ridge in ridges])

    def delta(self, ridge: float) -> Tensor:
        """W(λ) as Δw [P]."""
        return _flat(self._problem, self.weights(ridge))

    def inverse(self, direction: Tensor, ridge: float) -> Tensor:
        """(Σ + λI)⁻¹ applied to each class's part of a direction [P] of the head: H(λ)⁻¹ j."""
        names = self._problem.operator.base.config.head_names
        weight, bias = (self._problem.operator.layout.views(direction)[name] for name in names)
        whole = torch.cat([weight, bias[:, None]], 1)
        own = whole if self._basis is None else whole @ self._basis
        found = self._turn(self._turn(own, self._vectors) / (self._values + ridge), self._vectors.mT)
        if self._basis is None:
            return _flat(self._problem, found)
        return _flat(self._problem, _whole(found - own / ridge, self._basis) + whole / ridge)

    def leverages(self, ridge: float) -> Tensor:
        """h [N,K] of each row and class, or [N,1] where all classes have the same; in one pass."""
        return torch.cat([block.leverage[:, 0] for block in self._blocks([ridge])])

    def moves(self) -> Tensor:
        """‖W₋ₙ − W(λ)‖ [N] of every row at the problem's λ, in one pass; see ``taftcache.solve.leave_one_out``."""
        problem, N = self._problem, self._problem.operator.rows
        ridge = problem.ridge * (N - 1) / N
        inverse = 1 / (self._values + ridge)  # [C,n]
        shift = self._right * (1 / (self._values + problem.ridge) - inverse)  # of W(λ') − W(λ), in the basis V
        head, found = self._own_weights(ridge).T, []
        for x, base, labels, curvature, leverage in self._blocks([ridge]):
            residual = x @ head + problem.loss.gradient(base, labels) / curvature
            step = curvature / N * residual / (1 - leverage[:, 0]).clamp_min(1e-12)  # [b,K]
            squares = shift.square().sum().expand(len(labels)).clone()
            for c, (V, each) in enumerate(zip(self._vectors, inverse, strict=True)):
                y, k = (x @ V) * each, slice(None) if len(inverse) == 1 else slice(c, c + 1)
                squares += step[:, k].square().sum(1) * y.square().sum(1) + 2 * (step[:, k] * (y @ shift[k].T)).sum(1)
            found.append(squares.clamp_min(0).sqrt())
        return torch.cat(found)

    def correct(self, operator: TangentOperator, ridges: Sequence[float]) -> Tensor:
        """How many of an operator's rows each W(λ) gives their own class [L], in one pass over them."""
        heads = self.heads(ridges).flatten(0, 1).T  # [d+1,L·K]
        count = torch.zeros(len(ridges), dtype=torch.int64, device=heads.device)
        for state, labels in operator.blocks():
            change = (_extended(state.feature) @ heads).view(len(labels), len(ridges), -1)
            base = self._problem.logits(state.logits, None).double()
            count += (change.add_(base[:, None]).argmax(2) == labels[:, None]).sum(0)
        return count

    def leave_one_out(self, ridges: Sequence[float]) -> list[LeaveOneOut]:
        """Mean loss, and accuracy where targets are classes, of predictions made without the row itself.

        They are those of λN, which a λ is chosen for: of N − 1 rows alone its λ is N/(N − 1) times as large.
        """
        losses = torch.zeros(len(ridges), dtype=torch.float64, device=self._values.device)
        correct = torch.zeros_like(losses)
        classes = True
        for labels, curvature, residual, target in self._left_out(ridges):
            losses += 0.5 * (curvature[:, None] * residual.square()).sum((0, 2))  # ℓ = ½ Σ D (z − target)²
            classes = not labels.is_floating_point()
            if classes:
                correct += (residual.add_(target[:, None]).argmax(2) == labels[:, None]).sum(0)
        rows = self._problem.operator.rows
        return [
            LeaveOneOut(ridge, loss / rows, right / rows if classes else None)
            for ridge, loss, right in zip(ridges, losses.tolist(), correct.tolist(), strict=True)
        ]

    def left_out_logits(self, ridge: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [b,K] of every row by the head without that row, and labels [b], block by block in one pass.

        λN stays as it is: λ(N − 1)/N gives the head that N − 1 rows have at λ.
        """
        for labels, _, residual, target in self._left_out([ridge]):
            yield residual[:, 0].add_(target), labels

    def _left_out(self, ridges: Sequence[float]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Labels [b], D [b,K or 1], and what predictions made without the row are off by [b,L,K] from targets [b,K]."""
        heads = torch.cat([self._own_weights(ridge) for ridge in ridges]).T  # [n,L·K]
        for x, base, labels, curvature, leverage in self._blocks(ridges):
            # Where a row alone decides a direction, h is 1 up to rounding: λ > 0 keeps it below.
            held = 1 / (1 - leverage).clamp_min(1e-12)
            change = (x @ heads).view(len(labels), len(ridges), -1)
            away = self._problem.loss.gradient(base, labels) / curvature  # from the target
            yield labels, curvature, change.add_(away[:, None]).mul_(held), base - away

    def _blocks(self, ridges: Sequence[float]) -> Iterator[_Block]:
        """The rows with their leverages at every λ, in one pass."""
        problem = self._problem
        inverses = torch.stack([1 / (self._values + ridge) for ridge in ridges], 1)  # [C,L,n]
        start = 0
        for state, labels in problem.operator.blocks():
            x = _extended(state.feature, self._basis)
            base = problem.logits(state.logits, None).double()
            curvature = problem.loss.hessian(base, labels, torch.ones_like(base))[:, : len(inverses)]
            weight = curvature / problem.operator.rows
            if problem.weights is not None:
                weight = weight * problem.weights.at(labels, start, base)
            own = [(x @ V).square_() @ each.T for V, each in zip(self._vectors, inverses, strict=True)]  # [b,L] each
            yield _Block(x, base, labels, curvature, weight[:, None] * torch.stack(own, 2))
            start += len(labels)

    @staticmethod
    def _turn(rows: Tensor, by: Tensor) -> Tensor:
        """rows [K,n], each times its class's matrix of ``by`` [C,n,n]."""
        if len(by) == 1:
            return rows @ by[0]
        return torch.bmm(rows[:, None], by)[:, 0]


class _Block(NamedTuple):
    """Some rows as ``HeadPath`` sees them."""

    x: Tensor  # [b,n] x̃
    base: Tensor  # [b,K] the base point's logits
    labels: Tensor  # [b]
    curvature: Tensor  # [b,K] D, or [b,1] where it is the same for all classes
    leverage: Tensor  # [b,L,K] h at every λ, or [b,L,1]


@dataclass(frozen=True)
class LeaveOneOut:
    """Errors at one λ: mean loss, and the share of rows whose class is predicted (None for a regression)."""

    ridge: float
    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class _Moments:
    normal: Tensor  # [n,n] 1/N Σ ω D x̃x̃ᵀ, with the D of classes that are not the row's own
    right: Tensor  # [K,n] 1/N Σ ω ∂ℓ/∂z x̃ᵀ at Δw = 0
    shared: bool
    counts: Tensor  # [K] rows of each class
    above: bool  # whether no row's own class has a smaller D than the others


def _few_of_each(counts: Tensor, n: int) -> bool:
    """Whether the rows of each class [K] are cheaper as a change of the common matrix [n,n] than a matrix each is."""
    return len(list(_groups(len(counts), n))) > 1 and int(counts.max()) * 3 <= n


def _few(problem: Problem, feature: Tensor) -> bool:
    """Whether a basis of the rows costs less than matrices of the size of a feature [b,d]."""
    return 2 * problem.operator.rows <= feature.shape[1] + 1


def _span(problem: Problem) -> Tensor | None:
    """An orthonormal basis Q [d+1,N] of what the rows x̃ span, from one pass, where they are few beside their width.

    A ridge takes whatever else there is of W to zero, so that W = W̃Qᵀ with W̃ [K,N] of the rows Qᵀx̃.
    """
    blocks = problem.operator.blocks()
    first, _ = next(blocks)
    if not _few(problem, first.feature):
        return None
    rows = torch.cat([_extended(state.feature) for state in (first, *(state for state, _ in blocks))])
    return torch.linalg.qr(rows.T).Q if torch.isfinite(rows).all() else None


def _whole(own: Tensor, basis: Tensor | None) -> Tensor:
    """[K,d+1] of [K,n] in a basis."""
    return own if basis is None else own @ basis.T


def _moments(problem: Problem, basis: Tensor | None) -> _Moments:
    operator = problem.operator
    K = operator.classes
    normal = right = torch.zeros(())
    shared, above, start = True, True, 0
    counts = torch.zeros(K, dtype=torch.int64, device=operator.device)
    for state, labels in operator.blocks():
        x = _extended(state.feature, basis)
        z = problem.logits(state.logits, None).double()
        gradient, diagonal = problem.loss.gradient(z, labels), problem.loss.hessian(z, labels, torch.ones_like(z))
        if problem.weights is not None:
            weight = problem.weights.at(labels, start, z)
            gradient, diagonal = gradient * weight, diagonal * weight
        if start == 0:
            normal = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
            right = torch.zeros(K, x.shape[1], dtype=torch.float64, device=x.device)
        common = _common(diagonal, labels)
        shared = shared and bool((diagonal == common).all())
        above = above and bool((diagonal >= common).all())
        if not labels.is_floating_point():
            counts += torch.bincount(labels, minlength=K)
        normal += x.T @ (common * x)
        right += gradient.T @ x
        start += len(labels)
    if not (torch.isfinite(normal).all() and torch.isfinite(right).all()):
        raise SolveError(
            "the head's features or logits are not finite",
            got=f"{operator.rows} rows with NaN or infinity among them",
            do="look for extreme numbers in the rows",
        )
    return _Moments(normal / operator.rows, right / operator.rows, shared, counts, above)


def _extended(feature: Tensor, basis: Tensor | None = None) -> Tensor:
    """x̃ [b,d+1], or [b,n] in a basis."""
    whole = torch.cat([feature, torch.ones_like(feature[:, :1])], 1).double()
    return whole if basis is None else whole @ basis


def _flat(problem: Problem, solution: Tensor) -> Tensor:
    weight, bias = problem.operator.base.config.head_names
    return problem.operator.layout.flatten({weight: solution[:, :-1], bias: solution[:, -1]})


def _groups(K: int, size: int) -> Iterator[slice]:
    step = max(1, GROUP_BYTES // (8 * size * size))
    yield from (slice(k, min(K, k + step)) for k in range(0, K, step))


def _common(diagonal: Tensor, labels: Tensor) -> Tensor:
    """ωD [n,1] of the classes that are not the row's own; there alone our losses have another curvature."""
    if diagonal.shape[1] == 1 or labels.is_floating_point():
        return diagonal[:, :1]
    return torch.where(labels[:, None] == 0, diagonal[:, 1:2], diagonal[:, :1])


def _solve_group(
    problem: Problem, classes: slice, common: Tensor, right: Tensor, basis: Tensor | None, ridge: float
) -> Tensor:
    """Rows [len(classes), n] of the solution when each class has its own normal matrix."""
    own = _own_normals(problem, classes, common, basis)
    return torch.cholesky_solve(-right[classes, :, None], cholesky(own, ridge))[:, :, 0]


def _solve_updated(problem: Problem, moments: _Moments, root: Tensor, basis: Tensor | None) -> Tensor:
    """The same for all classes [K,n], by Woodbury's identity from ``root`` [n,n], the Cholesky factor L of C + λI.

    A class's own normal matrix is LLᵀ + UUᵀ with U [n,m] of its m rows, so that with Y = L⁻¹U its solution is
    −L⁻ᵀ(I − Y(I + YᵀY)⁻¹Yᵀ)L⁻¹b. The classes whose rows take GROUP_BYTES together are one group, and one pass.
    """
    turned = torch.linalg.solve_triangular(root, -moments.right.T, upper=False)  # L⁻¹b [n,K]
    held = (moments.counts.cumsum(0) * (8 * len(root)) // GROUP_BYTES).tolist()
    for group in sorted(set(held)):
        mine: dict[int, list[Tensor]] = {k: [] for k in range(len(held)) if held[k] == group}
        for k, extra, x in _own_rows(problem, mine.keys(), basis):
            mine[k].append(extra.sqrt() * x)
        for k, parts in mine.items():
            if parts:
                Y = torch.linalg.solve_triangular(root, torch.cat(parts).T, upper=False)  # [n,m]
                inner = torch.eye(Y.shape[1], dtype=Y.dtype, device=Y.device) + Y.T @ Y
                turned[:, k] -= Y @ torch.cholesky_solve(Y.T @ turned[:, k : k + 1], torch.linalg.cholesky(inner))[:, 0]
    found: Tensor = torch.linalg.solve_triangular(root.T, turned, upper=True)
    return found.T


def _own_normals(problem: Problem, classes: slice, common: Tensor, basis: Tensor | None) -> Tensor:
    """Normal matrices [len(classes), n, n], each ``common`` and what the class's own D adds, in one pass."""
    own = common.repeat(classes.stop - classes.start, 1, 1)
    for k, extra, x in _own_rows(problem, range(classes.start, classes.stop), basis):
        own[k - classes.start] += x.T @ (extra * x)
    return own


def _own_rows(problem: Problem, classes: Container[int], basis: Tensor | None) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Of each block in one pass: a class, what its own ωD/N [m,1] has beyond the others', and its rows x̃ [m,n]."""
    start = 0
    for state, labels in problem.operator.blocks():
        x = _extended(state.feature, basis)
        diagonal = problem.diagonal(labels, x, start)
        extra = diagonal.gather(1, labels[:, None]) - _common(diagonal, labels)
        for k in torch.unique(labels).tolist():
            if k in classes:
                mine = labels == k
                yield k, extra[mine], x[mine]
        start += len(labels)
