"""How far a removal moved a component, and the warm solve of the exact model that goes on until that is proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, log

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.cache.read.shard import Shard
from taftcache.model.component import Component
from taftcache.names import EXACT
from taftcache.solve.choosing import RidgeChoice
from taftcache.solve.methods.decisive import AGAIN
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.proof import proven_status
from taftcache.solve.settings import DECISIVE
from taftcache.solve.solution import Status
from taftcache.stages.certificates import RenewedCertificate
from taftcache.stages.forget.certificates import recorded_certificate
from taftcache.stages.progress import Progress
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import (
    SolveOptions,
    choice_of,
    is_decisive,
    record_of,
    solve_component,
)
from taftcache.stages.train.without import FINEST, tolerance_for

WARM_ROUNDS = 6
LEAST_PASSES = 12
# The old model is good enough to compare with if its certified distance is at most this part of what the removal moves.
KNOWN = 0.2
OTHERWISE_MADE = "made from other rows or settings than the store had"
INDECISIVE = "the certified distance did not fall below a tenth of what the removal moved"


@dataclass(frozen=True, kw_only=True)
class Warm:
    """A warm re-solve: its component if it became decisive, or else why it did not; and the passes it took.

    ``old`` is the model that it began from, tightened as far as was needed; ``choice`` is how λ was chosen from the
    rows that stay, if it was.
    """

    passes: int
    component: Component | None = None
    failure: str = ""
    old: Component | None = None
    choice: RidgeChoice | None = None


def certificate_of(new: Component, old: Component | None) -> RenewedCertificate:
    """A renewed component's certificate, with how far the removal moved it since ``old``, if that is to be said."""
    said, now = new.record, new.record.certified
    moved = least = before = moves = None
    if old is not None and (then := old.record.certificate) is not None:
        if old.layout == new.layout:  # a class that left took a column along
            moved = (new.delta - old.delta).norm().item()
            least = max(0.0, moved - now.distance_bound - then.distance_bound)
        if then.ridge != now.ridge:
            before, moves = then.ridge, said.stats.row_moves
    return RenewedCertificate(
        **msgspec.structs.asdict(now),
        converged=said.converged is True,
        passes=said.passes,
        moved=moved,
        moved_at_least=least,
        decisive=is_decisive(now.distance_bound, least if before is None else moves),
        ridge_before=before,
        row_moves=moves,
    )


def resolve_warm(
    settings: Settings,
    before: Sequence[Shard],
    shards: Sequence[Shard],
    stays: NDArray[np.bool_],
    old: Component,
    progress: Progress,
    label: str = EXACT,
) -> Warm:
    """Minimise over ``shards`` from the exact model of ``before`` until the certificate is decisive.

    ``stays`` [N] says which rows of ``before`` stay. What the removal moves is a distance between two optima, so the
    old model's certificate counts, too: if it is the looser one, it is tightened on the old rows, which are still
    there. With dual vectors at hand the solve goes on from them; else from Δw, and then it gives up after about twice
    the passes of a cold solve. If λ is chosen from the rows, it is chosen anew once; another λ is another problem,
    for which the old model is no place to start. ``label`` is that of ``solve_component``.
    """
    choice = choice_of(settings, shards, settings.train)
    if choice is not None:
        if choice.ridge != old.record.certified.ridge:
            return Warm(passes=choice.passes, failure="the rows that stay choose another λ", choice=choice)
        settings = settings.at(ridge=choice.ridge)
    usable = old.dual is not None and old.dual.shape == (len(stays), settings.base.config.classes)
    if usable and all(settings.starts_at_zero(rows, settings.train) for rows in (before, shards)):
        warm = _from_dual(settings, before, shards, stays, old, progress, label)
    else:
        warm = _from_value(settings, before, shards, old, progress, label)
    if warm.component is not None:
        # the rounds had tolerances of their own, perhaps finer than float64 resolves: judge by the recipe's
        proven = recorded_certificate(warm.component.record.certified)
        ended = proven_status(Status.converged, proven, settings.goal.tolerance)
        if ended is Status.converged:
            warm.component.meta.update(converged=True, status=ended.value)
        warm.component.meta.update(record_of(choice))
    return replace(warm, choice=choice)


def _from_dual(
    settings: Settings,
    before: Sequence[Shard],
    shards: Sequence[Shard],
    stays: NDArray[np.bool_],
    old: Component,
    progress: Progress,
    label: str,
) -> Warm:
    """Solve in the space of the rows, starting from the dual vectors of those that stay."""
    everyone = torch.ones(len(stays), dtype=torch.bool)
    passes, left = 0, settings.goal.max_passes

    def solve(rows: Sequence[Shard], mask: Tensor, distance: Callable[[float], float]) -> Component:
        nonlocal passes
        assert old.dual is not None
        options = SolveOptions(
            restart=Restart(before, old.delta, old.dual, mask, distance),
            keep_dual=True,
            goal=replace(settings.goal, max_passes=max(1, left - passes), decisive=False, until_decisive=False),
        )
        solved = solve_component(settings, rows, settings.train, progress, label=label, options=options)
        passes += solved.record.passes
        return solved

    for _ in range(WARM_ROUNDS):
        known = old.record.certified.distance_bound
        moved: list[float] = []

        def distance(far: float, known: float = known, moved: list[float] = moved) -> float:
            """The certified distance that decides, given how ``far`` the solve has moved; its first value is about the
            last."""
            moved.append(far)
            return DECISIVE * (far - known) / (1 + DECISIVE) if known <= KNOWN * moved[0] else inf

        new = solve(shards, torch.from_numpy(stays), distance)
        if certificate_of(new, old).decisive:
            return Warm(component=new, passes=passes, old=old)
        if left - passes < LEAST_PASSES or (known <= KNOWN * moved[0] and not new.record.converged):
            break
        old = solve(before, everyone, _constant(0.5 * KNOWN * min(moved[0], known)))
        if not old.record.converged:
            break
    return Warm(passes=passes, failure=INDECISIVE)


def _constant(distance: float) -> Callable[[float], float]:
    return lambda moved: distance


def _from_value(
    settings: Settings,
    before: Sequence[Shard],
    shards: Sequence[Shard],
    old: Component,
    progress: Progress,
    label: str,
) -> Warm:
    """Solve starting from Δw, with finer and finer goals until the certificate is decisive."""
    taken, reached = max(AGAIN, old.record.passes), old.record.certified.relative_gradient
    # If the old model was solved until its certificate decided, its accuracy shows what that takes; it went by an
    # estimate from a sample, so that it is a few times nearer than need be.
    tolerance = reached if settings.goal.decisive else min(settings.goal.tolerance, 5 * reached)
    left = taken
    passes = 0
    new = old
    for _ in range(WARM_ROUNDS):
        new = _solve(settings, shards, new, tolerance, left - passes, progress, label)
        passes += new.record.passes
        figures = certificate_of(new, old)
        if figures.decisive:
            return Warm(component=new, passes=passes, old=old)
        assert figures.moved is not None  # both are over the same parameters
        # What the removal moved is known only roughly until both bounds are below it.
        bounds, moved = [c.record.certified.distance_bound for c in (old, new)], figures.moved
        known, rough = KNOWN * moved, 0.05 * max(bounds)
        goal = max(0.9 * DECISIVE * (moved - known) / (1 + DECISIVE), rough)
        # A cold solve to that goal takes longer than the old model's did, about in proportion to the digits that the
        # gradient loses (few passes say little about that); twice as long, because both models may have to get nearer.
        digits = log(tolerance_for(new, goal)) / log(max(FINEST, min(0.5, reached)))
        left = max(left, round(2 * taken * digits))
        if bounds[0] > max(known, rough) and left - passes >= LEAST_PASSES:
            old = _solve(
                settings, before, old, tolerance_for(old, max(0.9 * known, rough)), left - passes, progress, label
            )
            passes += old.record.passes
        if left - passes < LEAST_PASSES or not (new.record.converged and old.record.converged):
            break
        tolerance = min(0.5 * tolerance, tolerance_for(new, goal))
    return Warm(passes=passes, failure=INDECISIVE)


def _solve(
    settings: Settings,
    shards: Sequence[Shard],
    start: Component,
    tolerance: float,
    max_passes: int,
    progress: Progress,
    label: str,
) -> Component:
    goal = replace(settings.goal, tolerance=tolerance, max_passes=max_passes, decisive=False, until_decisive=False)
    from_zero = settings.starts_at_zero(shards, settings.train)  # which takes fewer passes than from Δw
    options = SolveOptions(start=None if from_zero else start.delta, goal=goal)
    return solve_component(settings, shards, settings.train, progress, label=label, options=options)
