"""Choosing R of a ball from the rows of a problem, as λ is chosen: by the loss of rows that did not take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np

from taftcache.objective.objective import Objective
from taftcache.solve.choosing import (
    MOST_ROWS,
    RidgeChoice,
    about_as_good,
    end_of,
    order_of,
    set_aside,
    share,
    tested,
    validating,
)
from taftcache.solve.minimise import minimise_in_balls
from taftcache.solve.settings import ARITHMETIC, Arithmetic, Goal, in_full_float32
from taftcache.tangent.base import Base
from taftcache.tangent.rows import RowSource

NEAR = Goal(tolerance=1e-2, max_passes=200)  # enough for a choice


@dataclass(frozen=True)
class RadiusPoint:
    """Mean loss and accuracy (None for a regression) at one R, on rows that did not take part, and the multiplier ν of
    the ball: 0 where it does not bind."""

    radius: float
    multiplier: float
    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class RadiusChoice:
    """R, how it was found, the whole curve, the passes it took, and the end of the list that it lies at, if it does and
    the ball binds there."""

    radius: float
    method: str
    curve: list[RadiusPoint]
    passes: int
    end: Literal["least", "largest"] | None = None

    def __str__(self) -> str:
        return f"R = {self.radius:g} by {self.method}"

    @property
    def taken(self) -> dict[str, Any]:
        """What was chosen, by the name of its setting."""
        return {"radius": self.radius}


Choice = RidgeChoice | RadiusChoice
"""How λ or R was chosen from the rows of a solve."""


@in_full_float32
def choose_radius(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    radii: Sequence[float],
    *,
    arithmetic: Arithmetic = ARITHMETIC,
) -> RadiusChoice:
    """The R of some radii with the least mean loss on one row in five, which is set aside; of about equals the least.

    The other rows are solved within every radius by one run (``minimise_in_balls``). Which rows take part, and that λN
    is kept where they are fewer than all, is as ``choose_ridge`` has it. A single row, which has no other to validate
    it, gets the least R.

    Args:
        base: the expansion point.
        sources: the rows.
        objective: its own ball has no part in the choice.
        radii: R > 0, increasing.
        arithmetic: as ``minimise`` has it.

    Raises:
        SolveError: as ``minimise_in_balls`` has it.
    """
    rows = sum(source.rows for source in sources)
    if rows < 2:
        return RadiusChoice(radii[0], "default, for a row alone", [], 0)
    drawn = order_of(sources)[:MOST_ROWS]
    some = len(drawn)
    held = validating(some)
    part = replace(objective, ridge=objective.ridge * rows / some)
    test, kept, part = set_aside(base, sources, part, arithmetic, np.delete(drawn, slice(held)), drawn[:held])
    curve, passes = [], 1
    for radius, found in zip(
        radii, minimise_in_balls(base, [kept], part, radii, goal=NEAR, arithmetic=arithmetic), strict=True
    ):
        loss, right, weight = tested(test, found.value)
        assert found.stats.multiplier is not None
        curve.append(RadiusPoint(radius, found.stats.multiplier, loss, share(right, weight)))
        passes += found.stats.passes
    limit = about_as_good([point.loss for point in curve], classes=curve[0].accuracy is not None)
    best = next(point for point in curve if point.loss <= limit)
    end = end_of(best.radius, radii) if best.multiplier > 0 else None
    return RadiusChoice(best.radius, "validation", curve, ceil(passes * some / rows), end)
