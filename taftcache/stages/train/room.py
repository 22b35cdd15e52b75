"""Whether there is memory for the matrices of a closed form."""

from __future__ import annotations

from collections.abc import Sequence

from taftcache.backbone.device import float64_device
from taftcache.cache.read.shard import Shard
from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.head_moments import GROUP_BYTES
from taftcache.solve.methods.head import head_bytes
from taftcache.stages.memory import free_memory
from taftcache.stages.train.settings import Settings
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.spec import Train


def check_head_fits(settings: Settings, sources: Sequence[Shard], mode: Train, *, chosen: bool) -> None:
    """Refuse a head whose matrices are larger than what is free now, before the system ends the process for them.

    Those of up to GROUP_BYTES are never refused, and ``solver.memory`` has no part in it: it is for rows.

    Args:
        settings, sources, mode: as ``solve_component`` has them.
        chosen: whether λ is still to be chosen.

    Raises:
        SolveError: the closed form of the head needs more than there is. BackboneError: no such device here.
    """
    layout, recipe = settings.base.trained(mode), settings.recipe
    closed = recipe.solver.method in ("auto", "conjugate") and settings.loss.quadratic and not settings.is_taught(mode)
    if layout != settings.base.head_layout or not closed:
        return
    problem = Problem(TangentOperator(settings.base, sources, trained=layout), settings.loss, 1.0)
    needed = head_bytes(problem, chosen=chosen)
    device = float64_device(recipe.device)
    if needed > max(GROUP_BYTES, free := free_memory(device)):
        rest = head_bytes(problem, chosen=False)
        given = f", and a number for objective.ridge needs {rest / 1e9:.1f} GB" if rest < needed else ""
        raise SolveError(
            "the head reads so many numbers of a row that its closed form has no room in memory",
            got=f"{settings.base.config.width:,} numbers, {problem.operator.rows:,} rows:"
            f" {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free on {device}",
            do='backbone.features = "last" with tangent.blocks = 1, a model of fewer numbers,'
            f" or more memory (solver.memory is for rows, and changes nothing here){given}",
        )
