"""Choosing λ from the rows of a problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log2
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.weights import RowWeights
from taftcache.solve.inverses.class_kernel import class_kernel_fits
from taftcache.solve.inverses.dual import kernel_inverse_fits
from taftcache.solve.inverses.head_path import Unseen, has_path
from taftcache.solve.inverses.head_rows import every_head
from taftcache.solve.inverses.inverse import ShiftedInverse
from taftcache.solve.methods.conjugate import Lazy, pcg
from taftcache.solve.methods.head import quick_heads
from taftcache.solve.methods.many_ridges import ridge_deltas, swept_heads
from taftcache.solve.methods.newton import newton
from taftcache.solve.methods.span_newton import SpanNewton, span_fits
from taftcache.solve.pair import ProblemPair, pose
from taftcache.solve.settings import ARITHMETIC, Arithmetic, Goal, in_full_float32
from taftcache.solve.solution import unless_interrupted
from taftcache.tangent.base import Base
from taftcache.tangent.rows import RowSource, RowSubset

HEAD_GRID = [10.0**e for e in range(-8, 2)]
GRID = [10.0 ** (e / 2) for e in range(-12, 1)]  # 1e-6 … 1
ALONE = 1e-3  # λ of a row that has no other to validate it
MOST_ROWS = 4096  # take part in a choice beyond the head of a square loss
# Losses that differ by less than so much of the least are not told apart. On digits two λ were within a thousandth, and
# which of them was less hung on rounding and on single rows.
TIE = 0.01
# Of values, where no accuracy limits what a tie gives away: at 1 %, coefficients of 10,000 rows were 4.8 of their
# standard errors nearer to zero than where the loss is least.
TIE_OF_VALUES = 0.001
RISES = 2  # of the loss, one after the other, after which no lesser λ is tried where each takes a solve
EVERY = 5  # one row in five validates
BLOCK = 256  # rows read at once
NEAR = 1e-4  # relative gradient to choose by, over the span of all gradients: at 1e-3 no λ below 3e-5 moves anything
STEPS = 10  # passes for the whole path: enough for a choice, too few for a solution
TINY = 1e-300  # of rows that weigh nothing together
FINEST = 1e-6  # relative gradient that a short solve goes down to where a looser one moves nothing
EACH = 12  # passes for one λ beyond the head where each takes a solve: with fewer the least λ wins, whatever the loss


@dataclass(frozen=True)
class TriedRidge:
    """Mean loss and accuracy (None for a regression) at one λ, on rows that did not take part."""

    ridge: float
    loss: float
    accuracy: float | None

    @classmethod
    def of(cls, unseen: Unseen) -> TriedRidge:
        """What is kept of one λ."""
        return cls(unseen.ridge, unseen.loss, _share(unseen.right, unseen.weight))


@dataclass(frozen=True)
class RidgeChoice:
    """λ, how it was found, the whole curve, the passes it took, and the end of the grid that it lies at, if it does."""

    ridge: float
    method: str
    curve: list[TriedRidge]
    passes: int
    end: Literal["least", "largest"] | None = None

    def __str__(self) -> str:
        return f"λ = {self.ridge:.1e} by {self.method}"


@in_full_float32
def choose_ridge(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    *,
    arithmetic: Arithmetic = ARITHMETIC,
    grid: Sequence[float] | None = None,
    hashes: NDArray[np.uint64] | None = None,
    folds: int = 1,
) -> RidgeChoice:
    """The largest λ of a grid that is about the best for rows that did not take part, in loss and accuracy (``_best``).

    The head: exact leave-one-out (``every_head``); where each class would need an eigendecomposition, and there is no
    room for that, one row in five is set aside, and the others are solved for at one λ after another, until the loss
    has risen ``RISES`` times. More than the head: one row in five is set aside, and one run over the others gives every
    λ (``ridge_deltas``; a short solve for each, from the largest down and warm from the last, where that does not fit,
    until then). Of N rows ``MOST_ROWS`` at most take part there, and λN is kept: it is the ratio of the noise's
    variance to the prior's, which does not depend on how many rows are seen, as long as they are fewer than what they
    decide. It is rounded to a power of two, so that a row that leaves does not change λ and with it the problem of all
    the others. A function of the rows alone, like the solve: what is forgotten has no part in it afterwards. Which rows
    take part, and which of them validate, is drawn by a hash of each, so that it stays as it is when others leave, and
    λ with it but where two are about as good. A single row gets ``ALONE``.

    Args:
        base: the expansion point.
        sources: the rows.
        objective: its own λ and ball have no part in the choice.
        arithmetic: its precision has none either.
        grid: λ > 0; ``HEAD_GRID`` or ``GRID`` by default.
        hashes: the rows' own [N], where what is cached of them is not theirs alone.
        folds: how many of the fifths validate, one after the other, at a run each.

    Raises:
        SolveError: an empty grid.
    """
    head = base.trained(objective.train) == base.head_layout
    rows = sum(source.rows for source in sources)
    ridges = sorted(grid if grid is not None else HEAD_GRID if head else GRID)
    if not ridges or ridges[0] <= 0:
        raise SolveError("choosing a ridge needs a grid of λ above 0", got=f"grid {ridges}")
    given = objective.weights
    if given is not None and given.by_sample is not None and len(given.by_sample) == rows and not given.by_sample.all():
        counted = torch.nonzero(given.by_sample)[:, 0]  # a row of weight 0 is none
        by_sample = given.by_sample[counted] * (len(counted) / rows)  # the loss is a mean over those that are left
        places = counted.numpy(force=True)
        sources, rows = [RowSubset(sources, places)], len(counted)
        objective = replace(objective, weights=RowWeights(given.by_class, by_sample))
        hashes = None if hashes is None else hashes[places]
    if rows < 2:
        return RidgeChoice(ALONE, "default, for a row alone", [], 0)
    if head:
        exact = pose(base, sources, replace(objective, ridge=ridges[0]), arithmetic, torch.float64)
        if has_path(exact):
            found = every_head(exact, ridges[0]).leave_one_out(ridges)
            best = _best(found)
            return RidgeChoice(best, "leave-one-out", [*map(TriedRidge.of, found)], 2, _end_of(best, ridges))
    drawn = order_of(sources) if hashes is None else np.argsort(hashes, kind="stable")
    most = rows if head and objective.loss.quadratic else MOST_ROWS
    return _validated(base, sources, objective, arithmetic, ridges, drawn[:most], folds)


def _validated(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    arithmetic: Arithmetic,
    ridges: Sequence[float],
    drawn: NDArray[np.int64],
    folds: int,
) -> RidgeChoice:
    """By the loss on one row in five of those ``drawn``, or on every second where there are fewer than five; by its
    mean over some of the ``folds``."""
    rows, some = sum(source.rows for source in sources), len(drawn)
    held = _validating(some)
    trials = []
    for k in range(min(folds, some // held)):
        aside = slice(k * held, (k + 1) * held)
        test, kept, part = set_aside(base, sources, objective, arithmetic, np.delete(drawn, aside), drawn[aside])
        trials.append((test, _downwards(base, [kept], part, ridges, arithmetic)))
    tried: list[Unseen] = []
    passes = 0
    for found in _until_refused(zip(*(path for _, path in trials), strict=True)):
        tried.insert(
            0,
            _joined([Unseen(at.ridge, *_tested(test, at.delta)) for (test, _), at in zip(trials, found, strict=True)]),
        )
        passes = sum(at.passes for at in found)
        losses = [each.loss for each in tried[: RISES + 1]]
        if found[0].more and len(losses) > RISES and losses == sorted(losses, reverse=True):
            break
    passes, best = ceil((passes + len(trials)) * some / rows), _best(tried)
    curve = [*map(TriedRidge.of, tried)]
    return RidgeChoice(best * 2.0 ** round(log2(some / rows)), "validation", curve, passes, _end_of(best, ridges))


def _validating(rows: int) -> int:
    """How many of some rows are set aside: one in five, or every second where there are fewer than five."""
    return rows // (EVERY if rows >= EVERY else 2)


def set_aside(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    arithmetic: Arithmetic,
    keep: NDArray[np.int64],
    leave: NDArray[np.int64],
) -> tuple[Problem, RowSubset, Objective]:
    """The problem of the rows that validate, the rows to ``keep``, and their objective."""
    kept, aside = (RowSubset(sources, np.sort(part)) for part in (keep, leave))
    mine, others = (_weights_of(objective, part) for part in (kept, aside))
    test = pose(base, [aside], replace(objective, weights=others), arithmetic, torch.float32)
    return test, kept, replace(objective, weights=mine)


def _weights_of(objective: Objective, rows: RowSubset) -> RowWeights | None:
    """The weights of some of the rows."""
    omega = objective.weights
    if omega is None or omega.by_sample is None:
        return omega
    return RowWeights(omega.by_class, omega.by_sample[rows.index])


def _joined(parts: Sequence[Unseen]) -> Unseen:
    """Of several parts of as many rows each, at one λ."""
    right = [part.right for part in parts if part.right is not None]
    weight = [part.weight for part in parts if part.weight is not None]
    loss = sum(part.loss for part in parts) / len(parts)
    return Unseen(parts[0].ridge, loss, torch.cat(right) if right else None, torch.cat(weight) if weight else None)


def _until_refused(found: Iterator[tuple[_Solved, ...]]) -> Iterator[tuple[_Solved, ...]]:
    """One λ after another down to where rounding is larger than it; SolveError where that is the first."""
    some = False
    try:
        for each in found:
            yield each
            some = True
    except SolveError:
        if not some:
            raise


def row_hashes(rows: Iterable[NDArray[Any]]) -> NDArray[np.uint64]:
    """A hash of the bytes of each row [N]."""
    hashes = b"".join(blake3(row.tobytes()).digest(length=8) for row in rows)
    return np.frombuffer(hashes, ">u8").astype(np.uint64)


def order_of(sources: Sequence[RowSource]) -> NDArray[np.int64]:
    """The places of all rows [N] by a hash of what is cached of each: a row that leaves moves up those behind it."""
    blocks = (block.tokens for source in sources for block in source.blocks(BLOCK))
    hashes = row_hashes(row for tokens in blocks for row in np.ascontiguousarray(tokens))
    return np.argsort(hashes, kind="stable")


def ridge_path(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    ridges: Sequence[float],
    *,
    arithmetic: Arithmetic = ARITHMETIC,
) -> list[Tensor]:
    """Δw(λ) [P] for every λ, near enough to choose by and no solution.

    The head gets them in closed form, to rounding or nearly. Another quadratic loss
    gets them from one run in the space of the rows where that fits, other problems from a short solve each, warm from
    the last. The objective's own λ and ball have no part in it.
    """
    found = {at.ridge: at.delta for at in _downwards(base, sources, objective, sorted(ridges), arithmetic)}
    return [found[ridge] for ridge in ridges]


class _Solved(NamedTuple):
    """Δw(λ) [P] at one λ, the passes that it and the larger ones took, and whether a lesser one takes more."""

    ridge: float
    delta: Tensor
    passes: int
    more: bool


def _downwards(
    base: Base, sources: Sequence[RowSource], objective: Objective, ridges: Sequence[float], arithmetic: Arithmetic
) -> Iterator[_Solved]:
    """Each of the increasing ``ridges``, from the last on."""
    asked = replace(objective, ridge=ridges[0])
    pair = ProblemPair(*(pose(base, sources, asked, arithmetic, dtype) for dtype in (torch.float32, torch.float64)))
    if has_path(pair.exact):
        path = every_head(pair.exact, ridges[0])
        for ridge in reversed(ridges):
            yield _Solved(ridge, path.delta(ridge), pair.exact.operator.passes, more=False)
        return
    downwards = ridges[::-1]
    if pair.exact.operator.head_alone and asked.loss.quadratic:
        for ridge, delta in zip(
            downwards, quick_heads(pair.exact, downwards) or swept_heads(pair.exact, downwards), strict=True
        ):
            yield _Solved(ridge, delta, pair.exact.operator.passes, more=True)
        return
    if asked.loss.quadratic and class_kernel_fits(pair.inner):
        found = ridge_deltas(pair, ridges, STEPS)
        passes = 3 + STEPS + (len(ridges) + 1) // 2
        for ridge, delta in zip(reversed(ridges), reversed(found), strict=True):
            yield _Solved(ridge, delta, passes, more=False)
    elif span_fits(pair.exact):
        # Of few rows the directions soon span all that there is, and of a further one float32 leaves only rounding.
        span = SpanNewton(ProblemPair(pair.exact, pair.exact) if kernel_inverse_fits(pair.exact) else pair)
        for ridge in reversed(ridges):
            yield _Solved(ridge, span.under(ridge).near(NEAR, EACH), span.passes, more=True)
    else:
        yield from _short_solves(pair, ridges)


def _short_solves(pair: ProblemPair, ridges: Sequence[float]) -> Iterator[_Solved]:
    delta: Tensor | None = None
    inverse = ShiftedInverse()
    operator, quadratic = pair.exact.operator, pair.exact.loss.quadratic
    head = operator.head_alone  # its passes cost next to nothing
    # Of a head that is not solved that far, lesser λ look better than they are, as if it had been stopped early.
    passes, tolerance = 0, 1e-4 if head else 1e-2
    for ridge in reversed(ridges):
        at = pair.at(ridge)
        if quadratic:
            enough = Goal(tolerance=1e-3, max_passes=EACH)
            solved = unless_interrupted(pcg(at, Lazy(partial(inverse.at, at.inner)), enough, start=delta))
        else:
            most = Goal(tolerance=tolerance, max_passes=1000 if head else 16)
            solved = unless_interrupted(newton(at, most, start=delta))
            # A column far larger than others has nearly all of ∇F(0), beside which no λ seems to move anything.
            while head and tolerance > FINEST and delta is not None and torch.equal(solved.value, delta):
                passes, tolerance = passes + solved.stats.passes, tolerance / 10
                solved = unless_interrupted(newton(at, replace(most, tolerance=tolerance), start=delta))
        delta = solved.value
        passes += solved.stats.passes
        yield _Solved(ridge, delta, passes, more=True)


def _tested(problem: Problem, delta: Tensor) -> tuple[float, Tensor | None, Tensor | None]:
    """Mean loss of Δw [P] on the rows of ``problem``, which of them [N] get their class (None for a regression), and
    what each weighs [N] (None where all weigh one)."""
    loss, right, weights = 0.0, [], []
    operator = problem.operator
    direction, start = operator.direction(delta), 0
    for state, labels in operator.blocks():
        z = problem.logits(state.logits, operator.tangent(state, direction)).double()
        values = problem.loss.value(z, labels)
        if problem.weights is not None:
            weights.append(problem.weights.at(labels, start, values)[:, 0].cpu())
            values = values * weights[-1].to(values)
        loss += values.sum().item()
        start += len(labels)
        if not labels.is_floating_point():
            right.append((z.argmax(1) == labels).cpu())
    return loss / operator.rows, torch.cat(right) if right else None, torch.cat(weights) if weights else None


def _share(right: Tensor | None, weight: Tensor | None) -> float | None:
    """Accuracy, of rows that count as they weigh; None for a regression."""
    if right is None:
        return None
    if weight is None:
        return int(right.sum()) / len(right)
    return ((weight * right).sum() / weight.sum().clamp_min(TINY)).item()


def _end_of(best: float, ridges: Sequence[float]) -> Literal["least", "largest"] | None:
    """At which end of several increasing ``ridges`` the ``best`` lies."""
    if len(ridges) == 1 or ridges[0] < best < ridges[-1]:
        return None
    return "least" if best == ridges[0] else "largest"


def _about_as_good(losses: Sequence[float], *, classes: bool) -> float:
    """The largest loss that is not told apart from the least (``TIE``, or ``TIE_OF_VALUES``); the least itself where
    none is."""
    least = min(losses)
    limit = (1 + (TIE if classes else TIE_OF_VALUES)) * least
    return least if all(loss <= limit for loss in losses) else limit


def _best(tried: Sequence[Unseen]) -> float:
    """Of the λ that are about as good as any the largest, which moves the model least.

    That is of those whose loss is about the least; and whose classes are not worse than those of the most accurate of
    them, by more than the standard error √(b + c) of the difference of two λ that are right b and c times where the
    other is wrong. Of few rows that is next to none of them; of 50,000 of CIFAR-10 all λ from 10⁻⁴ to 3·10⁻³ had about
    the same loss, and 86.4 to 85.0 % of their classes.
    """
    limit = _about_as_good([each.loss for each in tried], classes=tried[0].right is not None)
    alike = [each for each in tried if each.loss <= limit]
    known = [(each.ridge, each.right) for each in alike if each.right is not None]
    if known:
        weight = tried[0].weight
        _, most = max(known, key=lambda each: (_share(each[1], weight), each[0]))
        return max(ridge for ridge, right in known if _no_worse(right, most, weight))
    return max(each.ridge for each in alike)


def _no_worse(right: Tensor, than: Tensor, weight: Tensor | None) -> bool:
    apart = than.double() - right.double()
    if weight is not None:
        apart *= weight
    return bool(apart.sum() <= apart.square().sum().sqrt())
