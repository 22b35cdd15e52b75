"""Iterative refinement: each round proposes a correction in the products' precision, and judges it in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from taftcache.solve.solution import Status

REDUCTION = 1e-4  # of what is left, by one round: its products are float32, and its recurrence drifts


class Refined(Protocol):
    """A solve that stands at a ``point`` known in float64, with its ``objective``."""

    point: Any

    @property
    def passes(self) -> int:
        """Passes so far."""
        ...

    def arrive(self) -> Any:
        """The point that the last proposal leads to, in float64; an interrupted proposal leads as far as it got."""
        ...


def refine(
    solve: Refined,
    far: Callable[[Any], float],
    wanted: Callable[[], float],
    propose: Callable[[float, float], None],
    *,
    max_passes: int,
    least: int,
    at_least: int = 0,
) -> Status:
    """Rounds until the point is no farther than ``wanted()``, or for as long as passes and rounding allow.

    Args:
        far: how far a point is from the optimum, in float64 and in the measure of the goal.
        wanted: the goal in that measure; it may depend on where the solve stands.
        propose: given the goal and ``far`` of the point, work out a correction; may be interrupted.
        least: passes that a round needs.
        at_least: rounds that are made in any case.
    """
    try:
        while (before := far(solve.point)) > (goal := wanted()) or at_least > 0:
            at_least -= 1
            if solve.passes + least > max_passes:
                return Status.max_passes
            interrupted = False
            try:
                propose(goal, before)
            except KeyboardInterrupt:  # the correction so far is as good as any: it is looked at, and the solve ends
                interrupted = True
            new = solve.arrive()
            # Rounding can turn a round into a step back. Along a whole round F falls, though a norm need not.
            if new.objective < solve.point.objective or far(new) < before:
                solve.point = new
            if interrupted:
                return Status.interrupted
            # If a round brings the point less than half of the way, its products carry no more digits, unless it was
            # the limit that ended it.
            if far(solve.point) > max(goal, 0.5 * before):
                return Status.max_passes if solve.passes + least > max_passes else Status.stalled
    except KeyboardInterrupt:
        return Status.interrupted
    return Status.converged
