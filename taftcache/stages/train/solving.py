"""One solve: from settings and rows to a component with its certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import msgspec
import torch
from torch import Tensor

from taftcache.backbone.device import float64_device
from taftcache.cache.read.shard import Shard
from taftcache.errors import RecipeError, SolveError
from taftcache.model.component import Component
from taftcache.model.meta import ComponentMeta
from taftcache.names import INTERRUPTED_KEY, readable_size
from taftcache.objective.objective import Objective
from taftcache.recipe import parse_bytes
from taftcache.solve.choosing import RidgeChoice, choose_ridge
from taftcache.solve.head.size import HeadSize
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.minimise import minimise, resume
from taftcache.solve.settings import DECISIVE, Arithmetic, Goal, OnPass
from taftcache.solve.solution import Interrupted, Solution, Status
from taftcache.stages.certificates import JudgedCertificate
from taftcache.stages.memory import free_memory
from taftcache.stages.progress import Progress, Task
from taftcache.stages.train.settings import Settings
from taftcache.tangent.operator import TangentOperator, float64_rows
from taftcache.tangent.spec import Train
from taftcache.teaching.tangent_student import Teachers, minimise_taught

STILL = 10  # points of each half of a curve, at least, that show that its residual has stopped falling
MORE_OF_THE_SAME = (
    "The pass limit was reached, and over the last half of the passes the residual had not even halved: more of them"
    " would not help; raise objective.ridge or the tolerance, or train fewer blocks."
)
CURVE_POINTS = 200  # how many points of a solve's convergence its component keeps


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """How one solve differs from a cold solve in this process to the recipe's goal.

    interrupted: whether a solve that Ctrl-C ended raises KeyboardInterrupt, or is kept with its best iterate and
        marked in ``meta``.
    start: as for ``minimise``. restart: go on from dual vectors instead.
    keep_dual: keep the dual vectors, if the solve has them.
    goal: the goal of a warm solve, in place of the recipe's.
    choice: the choice of λ, if it was already made from these rows.
    operator: makes J over the rows.
    """

    interrupted: Interrupted = "raise"
    start: Tensor | None = None
    restart: Restart | None = None
    keep_dual: bool = False
    goal: Goal | None = None
    choice: RidgeChoice | None = None
    operator: Callable[..., TangentOperator] = TangentOperator


COLD = SolveOptions()


def check_head_fits(
    settings: Settings, sources: Sequence[Shard], mode: Train, *, chosen: bool, left_out: int = 0
) -> int:
    """Refuse a head that needs more memory than is free now, before the system ends the process for it; returns how
    many bytes it needs beside the rows that ``solver.memory`` keeps, 0 if it is not solved in closed form.

    Args:
        settings, sources, mode: as for ``solve_component``.
        chosen: whether λ is still to be chosen.
        left_out: for how many classes each row is also left out in closed form, however the recipe solves.

    Raises:
        SolveError: the closed form of the head needs more than there is. BackboneError: no such device here.
    """
    layout, recipe = settings.base.trained(mode), settings.recipe
    elsewhere = settings.is_taught(mode) and not left_out
    if layout != settings.base.head_layout or not settings.loss.quadratic or elsewhere:
        return 0
    config, rows = settings.base.config, sum(shard.rows for shard in sources)
    size, device = HeadSize(settings.loss, rows, config.width + 1, config.classes), float64_device(recipe.device)

    def bytes_if(chosen: bool) -> int:
        beside = size.left_out_bytes(left_out) if left_out else 0
        return max(size.solve_bytes(chosen=chosen), beside) + size.block_bytes(float64_rows(config), chosen=chosen)

    def kept_if(chosen: bool) -> int:
        if recipe.solver.memory == "auto":  # takes part of what is left
            return 0
        most, every = parse_bytes(recipe.solver.memory), 8 * rows * size.numbers
        if chosen or left_out:
            return min(most, every)
        return every if every <= most // 4 else 0  # a solve at one λ keeps all of them or none

    needed, free, kept = bytes_if(chosen), free_memory(device), kept_if(chosen)
    if needed + kept > free:
        rest = bytes_if(False) + kept_if(False)
        given = f"; with a number for objective.ridge {readable_size(rest)}" if rest < needed + kept else ""
        given += f"; {readable_size(kept)} of it are for rows (solver.memory)" if kept else ""
        raise SolveError(
            "the head reads too many numbers of a row for its closed form to fit in memory",
            got=f"{config.width:,} numbers, {rows:,} rows:"
            f" {readable_size(needed + kept)} needed, {readable_size(free)} free on {device}{given}",
            do='backbone.features = "last" with tangent.blocks = 1, a model of fewer numbers, or more memory'
            + (', or solver.memory = "0B"' if kept else ""),
        )
    return needed


def solve_component(
    settings: Settings,
    sources: Sequence[Shard],
    mode: Train,
    progress: Progress,
    *,
    label: str,
    options: SolveOptions = COLD,
) -> Component:
    """Minimise over the rows of ``sources``: the component [P], its certificate and figures in ``meta``.

    Args:
        label: for ``progress``: the component's name, and which of several it is.
        options: where to begin, when to end, what to keep.

    Raises:
        KeyboardInterrupt: the solve was interrupted, unless ``options`` keep it.
        RecipeError: a prior from teachers within a ball.
        SolveError: as for ``minimise`` and ``check_head_fits``.
    """
    chosen = options.choice is None and settings.chooses_ridge
    needed = check_head_fits(settings, sources, mode, chosen=chosen)
    objective, arithmetic = settings.objective(sources, mode), settings.arithmetic_beside(needed)
    with progress.task(f"solve {label.partition('/')[2]}", None) as task:
        curve = _Curve(task)
        if choice := options.choice or choice_of(settings, sources, mode, beside=needed, note=task.note):
            objective = replace(objective, ridge=choice.ridge)
            task.note(str(choice))
        arithmetic = replace(arithmetic, operator=options.operator)
        solution = _solution(settings, sources, objective, arithmetic, options, curve)
    delta = solution.value.to("cpu", torch.float64)
    meta = {
        **_description(settings, sources, mode, solution),
        "convergence": thinned(curve.points),
        "certificate": solution.certificate.as_dict(),
        "norm": delta.norm().item(),
        **record_of(choice),
    }
    dual = solution.dual.cpu() if options.keep_dual and solution.dual is not None else None
    return Component(settings.base.digest, settings.base.trained(mode), delta, meta, dual)


def choice_of(
    settings: Settings,
    sources: Sequence[Shard],
    mode: Train,
    *,
    beside: int = 0,
    note: Callable[[str], object] = lambda _: None,
) -> RidgeChoice | None:
    """λ as the rows of ``sources`` choose it, None where the settings name it.

    beside: bytes that this needs beside the rows that it keeps. note: see ``choose_ridge``.
    """
    if not settings.chooses_ridge:
        return None
    objective, groups = settings.objective(sources, mode), settings.groups(sources)
    arithmetic = settings.arithmetic_beside(beside)
    return choose_ridge(settings.base, sources, objective, arithmetic=arithmetic, groups=groups, note=note)


def record_of(choice: RidgeChoice | None) -> dict[str, Any]:
    """What a component's ``meta`` says of a choice of λ."""
    return {} if choice is None else {"ridge_choice": asdict(choice)}


def judged(said: ComponentMeta) -> JudgedCertificate | None:
    """A component's certificate beside what removing a row would move; None without one."""
    if said.certificate is None:
        return None
    moves = said.stats.row_moves
    decisive = is_decisive(said.certificate.distance_bound, moves)
    return JudgedCertificate(**msgspec.structs.asdict(said.certificate), row_moves=moves, decisive=decisive)


def is_decisive(bound: float, moves: float | None) -> bool | None:
    """Whether a ``bound`` on the distance is small beside what a removal ``moves``; None if that is not known."""
    return None if moves is None else bound <= DECISIVE * moves


def unfinished(metas: Mapping[str, ComponentMeta]) -> list[str]:
    """One note for each way in which solves ended above the tolerance, with the components concerned."""
    by_status: dict[str, list[str]] = {}
    for name, meta in metas.items():
        if not meta.converged:
            ending = MORE_OF_THE_SAME if _stands_still(meta) else meta.ending
            if meta.certificate is not None and meta.stats.row_moves is None:
                ending += " What removing a row moves is not known, so nothing says that the certificate is decisive."
            by_status.setdefault(ending, []).append(name)
    return [f"{len(names)} of {len(metas)} solves ({', '.join(names)}): {s}" for s, names in by_status.items()]


def _stands_still(meta: ComponentMeta) -> bool:
    """Whether a solve that the pass limit ended had not even halved its residual over the last half of its passes."""
    curve = [residual for _, residual in meta.convergence or ()]
    half = len(curve) // 2
    out_of_passes = meta.status == Status.max_passes.value and half >= STILL
    return out_of_passes and min(curve[half:]) > 0.5 * min(curve[:half])


def ridge_notes(metas: Mapping[str, ComponentMeta]) -> list[str]:
    """Notes on λ that lie at an end of the tried ones, and on those that nothing but the loss chose, with the
    components concerned."""
    blind, by_end = list[str](), dict[str, list[str]]()
    for name, meta in metas.items():
        choice = meta.ridge_choice or {}
        if {tried.get("accuracy") for tried in choice.get("curve", ())} == {0.0}:
            blind.append(name)
        if end := choice.get("end"):
            by_end.setdefault(end, []).append(name)
    notes = [
        f"λ of {', '.join(names)} is the {end} that was tried; another may be better" for end, names in by_end.items()
    ]
    if blind:
        notes.append(
            f"λ of {', '.join(blind)} was chosen by the loss alone: left out, no row was right under any λ, as where "
            "each has a class of its own; held-out rows can compare numbers: --set objective.ridge=…"
        )
    return notes


def _description(settings: Settings, sources: Sequence[Shard], mode: Train, solution: Solution) -> dict[str, Any]:
    """What a component says of where it came from, and of how its solve ended."""
    stopped = solution.status is Status.interrupted
    return {
        "kind": "component",
        "train": mode,
        "shards": [shard.name for shard in sources],
        "rows": sum(shard.rows for shard in sources),
        "key": INTERRUPTED_KEY if stopped else settings.key(sources, mode),
        "converged": solution.converged,
        "status": solution.status.value,
        "stats": msgspec.to_builtins(solution.stats),
    }


class _Curve:
    """The residual after each pass, shown as it comes; called as ``OnPass``."""

    def __init__(self, task: Task) -> None:
        self.points: list[list[float]] = []
        self._task = task

    def __call__(self, passes: int, residual: float) -> None:
        self._task.advance()
        if isfinite(residual):  # relative to ∇F(0), which may be zero
            self.points.append([passes, float(f"{residual:.3g}")])
            self._task.note(f"pass {passes}, residual {residual:.1e}")
        else:
            self._task.note(f"pass {passes}")


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """At most ``CURVE_POINTS`` points of a curve, its last among them."""
    if len(curve) <= CURVE_POINTS:
        return curve
    return curve[:: -(-len(curve) // CURVE_POINTS)][: CURVE_POINTS - 1] + curve[-1:]


def _solution(
    settings: Settings,
    sources: Sequence[Shard],
    objective: Objective,
    arithmetic: Arithmetic,
    options: SolveOptions,
    on_pass: OnPass,
) -> Solution:
    """Solve by the recipe's method, with its prior from teachers if that applies."""
    base, method, goal = settings.base, settings.recipe.solver.method, options.goal or settings.goal
    interrupted = options.interrupted  # by default an error: only a solve that ran to its end may have the full key
    if settings.is_taught(objective.train):
        teachers = _teachers(settings, sources)
        return minimise_taught(
            base, sources, objective, teachers,
            goal=goal, arithmetic=arithmetic, start=options.start, on_pass=on_pass, interrupted=interrupted,
        )  # fmt: skip
    if options.restart is not None:
        return resume(
            base, sources, objective, options.restart,
            goal=goal, arithmetic=arithmetic, on_pass=on_pass, interrupted=interrupted,
        )  # fmt: skip
    return minimise(
        base, sources, objective, method=method,
        goal=goal, arithmetic=arithmetic, start=options.start, on_pass=on_pass, interrupted=interrupted,
    )  # fmt: skip


def _teachers(settings: Settings, sources: Sequence[Shard]) -> Teachers:
    """The teachers' features of the rows; RecipeError for a ball, which cannot be combined with their prior."""
    prior, radius = settings.recipe.prior, settings.recipe.objective.radius
    if radius is not None:
        raise RecipeError(
            "a prior from teachers cannot be combined with a ball",
            got=f"objective.radius = {radius}",
            do="leave the radius out, or leave [prior] out",
        )
    rows = settings.taught(sources)
    return Teachers(psi=rows.psi, prior=prior, slices=rows.slices)
