"""What is made anew when rows leave: cold, as if they had never been there, or warm, until the removal is proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

from taftcache.cache import Shard
from taftcache.stages.names import EXACT
from taftcache.stages.progress import Progress
from taftcache.stages.training import solve_component

if TYPE_CHECKING:
    from taftcache.component import Component
    from taftcache.recipe import Recipe
    from taftcache.tangent.base import Base

# A certified distance above this fraction of what the removal moved would prove nothing.
DECISIVE = 0.1
WARM_ROUNDS = 6
LEAST_PASSES = 12
SHORT_SHARE = 0.3


@dataclass(frozen=True)
class Warm:
    """A warm re-solve: its component where it became decisive, the passes it took, and why it did not.

    ``old`` is the model that it began from, as far as that was tightened.
    """

    component: Component | None
    passes: int
    failure: str = ""
    old: Component | None = None


def certificate_of(new: Component, old: Component | None) -> dict[str, Any]:
    """A renewed component's certificate, beside how far the removal moved it.

    ``moved`` is ‖Δw_new − Δw_old‖; ``moved_at_least`` takes both certified distances off, so that it bounds the
    distance between the two optima from below; ``decisive``: the certified distance is at most a tenth of that.
    All three are None where the classes, and so the parameters, are others.
    """
    entry: dict[str, Any] = {
        **new.meta["certificate"],
        "converged": new.meta["converged"],
        "passes": new.meta["stats"].get("passes"),
        "moved": None,
        "moved_at_least": None,
        "decisive": None,
    }
    if old is not None and old.layout == new.layout and "certificate" in old.meta:
        bound = new.meta["certificate"]["distance_bound"]
        moved = (new.delta - old.delta).norm().item()
        least = max(0.0, moved - bound - old.meta["certificate"]["distance_bound"])
        entry |= {"moved": moved, "moved_at_least": least, "decisive": bound <= DECISIVE * least}
    return entry


def resolve_warm(
    recipe: Recipe, base: Base, before: Sequence[Shard], shards: Sequence[Shard], old: Component, progress: Progress
) -> Warm:
    """Minimise over ``shards`` from the exact model of ``before`` until the certificate is decisive.

    What the removal moves is a distance between two optima, so the old model's certificate counts too: where that is
    the loose one, it is tightened on the old rows, which are still there. It gives up after about twice
    the passes of a cold solve, or 0.6 times them where that goes through the space of the rows.
    """
    tolerance, stats = recipe.solver.tolerance, old.meta["stats"]
    share = SHORT_SHARE if "row space" in stats["solver"] else 1.0
    left = max(LEAST_PASSES, round(share * stats["passes"]))
    reached = old.meta["certificate"]["relative_gradient"]
    passes = 0
    new = old
    for _ in range(WARM_ROUNDS):
        new = _solve(recipe, base, shards, new, tolerance, left - passes, progress)
        passes += new.meta["stats"]["passes"]
        figures = certificate_of(new, old)
        if figures["decisive"]:
            return Warm(new, passes, old=old)
        # Half of the goal, for what the removal moved is known only roughly until both bounds are below it.
        bounds = [c.meta["certificate"]["distance_bound"] for c in (old, new)]
        goal = max(0.5 * DECISIVE * figures["moved"], 0.05 * max(bounds))
        # A cold solve to that goal takes longer than the old model did, by about as many more digits of the gradient;
        # twice that, for here both models may have to get there.
        digits = log(_tolerance(new, goal)) / log(max(1e-15, min(0.5, reached)))
        left = max(left, round(2 * share * stats["passes"] * digits))
        if bounds[0] > 2 * goal and left - passes >= LEAST_PASSES:
            old = _solve(recipe, base, before, old, _tolerance(old, goal), left - passes, progress)
            passes += old.meta["stats"]["passes"]
        if left - passes < LEAST_PASSES or not (new.meta["converged"] and old.meta["converged"]):
            break
        tolerance = min(0.5 * tolerance, _tolerance(new, goal))
    return Warm(None, passes, "The certified distance did not fall below a tenth of what the removal moved.")


def _solve(
    recipe: Recipe,
    base: Base,
    shards: Sequence[Shard],
    start: Component,
    tolerance: float,
    max_passes: int,
    progress: Progress,
) -> Component:
    return solve_component(
        recipe, base, shards, recipe.tangent.train, progress,
        label=EXACT, start=start.delta, tolerance=tolerance, max_passes=max_passes,
    )  # fmt: skip


def _tolerance(component: Component, distance: float) -> float:
    """The relative gradient at which the certified distance falls to ``distance``, for it is proportional to it."""
    figures = component.meta["certificate"]
    return figures["relative_gradient"] * distance / figures["distance_bound"]
