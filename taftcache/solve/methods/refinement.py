"""Iterative refinement: each round proposes a correction in the products' precision, and looks at it in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from taftcache.solve.solution import Status

REDUCTION = 1e-4  # of what is left, in one round whose products are float32 and whose recurrence drifts


class Refined(Protocol):
    """A solve that stands at a ``point`` known in float64, with its ``objective``."""

    point: Any

    @property
    def passes(self) -> int:
        """Passes so far."""
        ...

    def arrive(self) -> Any:
        """The point that what was proposed last leads to, in float64; of an interrupted proposal what there is."""
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
    """Rounds until the point is no farther than ``wanted()``, or as far as passes and rounding let it.

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
            # Rounding can make a round a step back; and F falls along a whole round, though a norm need not.
            if new.objective < solve.point.objective or far(new) < before:
                solve.point = new
            if interrupted:
                return Status.interrupted
            # A round that brings less than half of the way is one whose products carry no more digits, unless it was
            # the limit that ended it.
            if far(solve.point) > max(goal, 0.5 * before):
                return Status.max_passes if solve.passes + least > max_passes else Status.stalled
    except KeyboardInterrupt:
        return Status.interrupted
    return Status.converged
