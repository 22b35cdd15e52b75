"""Stage 2: one component a shard, solved from the cache, and what is solved over all shards together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from taftcache.backbone.device import resolve_device
from taftcache.baselines.tangent_training import PRESETS, Preset, Run, train_tangents
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, SolveError, StoreError
from taftcache.model.component import Component
from taftcache.names import HEAD, component_of
from taftcache.objective.loss import Loss
from taftcache.objective.named import class_weights, named_loss
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.weights import RowWeights
from taftcache.privacy.statement import META
from taftcache.recipe import Recipe, parse_recipe, recipe_values
from taftcache.solve.choosing import RidgeChoice, choose_ridge
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.minimise import minimise, through_rows
from taftcache.solve.proof import certified
from taftcache.solve.settings import Arithmetic, Goal, OnPass
from taftcache.solve.solution import Solution, Status
from taftcache.stages.executor import Executor, Job
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.checks import check_coefficients, check_kept, check_settings, imported, orphans
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.spec import Train
from taftcache.teaching.rows import taught_rows
from taftcache.teaching.tangent_student import Teachers, minimise_taught, problem_at

if TYPE_CHECKING:
    from taftcache.cache.write.transaction import Transaction

SECTIONS = ("tangent", "objective", "prior", "solver", "compose", "privacy", "device")
"""What a store's record takes over from the recipe that it is trained with."""
INTERRUPTED = "interrupted"  # stands where a component's key would: it is nobody's, so the next run solves again


@dataclass(frozen=True)
class TrainReport:
    """What stage 2 did: ``trained`` now, ``kept`` from before; certificates by component name."""

    store: Path
    root_digest: str
    trained: list[str]
    kept: list[str]
    certificates: dict[str, dict[str, Any]]
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def train(
    store: FeatureStore,
    recipe: Recipe | None = None,
    shards: Sequence[str] | None = None,
    progress: Progress | None = None,
    cluster: Executor | None = None,
) -> TrainReport:
    """Solve every shard (or those named) whose component is missing or was made from other rows or settings.

    What can be refused is refused before the first commit. That one also records the settings, and drops what they
    leave around another base point.

    Args:
        store: opened for writing.
        recipe: settings of stage 2; the store's own by default. They are recorded in the store.
        shards: names of the shards to train; all by default.
        progress: told of every pass.
        cluster: whose workers solve, one component a task; this process by default. The bytes are the same, given the
            same number of threads.

    Raises:
        RecipeError, IdentityError, CompositionError, BackboneError: as ``check_settings`` and ``check_kept`` say, or a
        private component would be replaced. StoreError: no such shard. SolveError: no solution as asked.
    """
    from taftcache.model.component import put_component, read_base

    progress = progress or Silent()
    begin = time.perf_counter()
    recipe = adopt(store, recipe)
    base = read_base(store, recipe.tangent)
    wanted = _wanted(store, shards)
    if shards is None and recipe.compose.mode == "weighted":
        check_coefficients(recipe.compose.weights, [*(component_of(shard.name) for shard in wanted), *imported(store)])
    jobs: list[Job] = [(component_of(shard.name), [shard], recipe.tangent.train) for shard in wanted]
    jobs.append((HEAD, store.shards, "head"))
    check_kept(store, recipe, base, [name for name, _, _ in jobs])
    lost = orphans(store, recipe, base)
    keys = {name: training_key(recipe, base, sources, mode) for name, sources, mode in jobs}
    there = store.objects()
    kept = [n for n, key in keys.items() if n in there and n not in lost and there[n].meta.get("key") == key]
    todo = [job for job in jobs if job[0] not in kept]
    _check_todo(store, recipe, todo)
    for (name, sources, _), component in _solved(store, recipe, base, todo, keys, progress, cluster):
        with store.transaction() as change:
            record_recipe(change, store, recipe)
            for orphan in lost:
                change.drop(orphan)
            put_component(change, name, component)
            still = subtracted(store)
            if name != HEAD and sources[0].name in still:
                still.remove(sources[0].name)
                change.update(plan=plan_without(store, subtracted=still))
        lost = []
        if component.meta["key"] == INTERRUPTED:
            raise KeyboardInterrupt
    if not todo and recorded_values(store, recipe) != store.manifest.recipe:
        with store.transaction() as change:
            record_recipe(change, store, recipe)
            for orphan in lost:
                change.drop(orphan)
    trained = [name for name, _, _ in todo]
    return TrainReport(
        store.path,
        store.root_digest,
        trained,
        kept,
        {n: store.objects()[n].meta["certificate"] for n, _, _ in jobs},
        time.perf_counter() - begin,
        _unfinished({n: store.objects()[n].meta for n, _, _ in jobs}),
    )


def _wanted(store: FeatureStore, shards: Sequence[str] | None) -> list[Shard]:
    """The shards to train: those named, or all that were not subtracted.

    Raises:
        StoreError: a name that no shard has, or nothing to train.
    """
    names, out = [shard.name for shard in store.shards], subtracted(store)
    if unknown := sorted(set(shards or []) - set(names)):
        raise StoreError(
            f"{store.path} has no shard {', '.join(unknown)} to train",
            got=", ".join(unknown),
            do=f"one of {', '.join(names)}" if names else "taftcache extract",
        )
    wanted = [s for s in store.shards if (s.name not in out if shards is None else s.name in shards)]
    if not wanted:
        raise StoreError(
            f"{store.path} has no shard to train",
            got=f"subtracted: {', '.join(out)}" if out else "no rows to train on",
            do=f"name one that is to be trained again: --shard {out[0]}" if out else "taftcache extract",
        )
    return wanted


def _check_todo(store: FeatureStore, recipe: Recipe, jobs: Sequence[Job]) -> None:
    """Refuse before the first solve what a later one would fail with, or would take away.

    Raises:
        RecipeError: a private component would be replaced by one that saw its rows without noise. SolveError: too few
        rows to choose a ridge from.
    """
    there = store.objects()
    if private := [name for name, _, _ in jobs if name in there and META in there[name].meta]:
        raise RecipeError(
            f"{', '.join(private)}: trained privately, and would be replaced by what is made without noise",
            got="taftcache train without --private",
            do="taftcache train --private, or train a store of the same rows that was extracted elsewhere",
        )
    for name, sources, _ in jobs:
        rows = sum(shard.rows for shard in sources)
        if recipe.objective.ridge == "auto" and rows < 2:
            raise SolveError(
                f"{name} has {rows} row, too few to choose a ridge from",
                got='objective.ridge = "auto"',
                do="give a number, or forget the shard",
            )


def _solved(
    store: FeatureStore,
    recipe: Recipe,
    base: Base,
    jobs: Sequence[Job],
    keys: Mapping[str, str],
    progress: Progress,
    cluster: Executor | None,
) -> Iterator[tuple[Job, Component]]:
    """Each job with its component, as they are solved: here one after the other, or by workers."""
    if cluster is None:
        for job in jobs:
            name, sources, mode = job
            yield (
                job,
                solve_component(recipe, base, sources, mode, progress, label=name, interrupted="keep"),
            )
    else:
        with progress.task(f"solve on {len(cluster.workers())} workers", len(jobs)) as task:
            yield from cluster.components(store, recipe, base, jobs, keys, task)


def _unfinished(metas: Mapping[str, dict[str, Any]]) -> list[str]:
    """One note for each way in which solves ended above the tolerance, with the components it befell."""
    by_status: dict[str, list[str]] = {}
    for name, meta in metas.items():
        if not meta["converged"]:
            by_status.setdefault(meta["status"], []).append(name)
    return [f"{len(names)} of {len(metas)} solves ({', '.join(names)}): {s}" for s, names in by_status.items()]


def subtracted(store: FeatureStore) -> list[str]:
    """Names of shards that a request to forget left out of the composition: trained again only by name."""
    return list(store.manifest.plan.get("subtracted", []))


def plan_without(store: FeatureStore, *, subtracted: Sequence[str], dropped: int = 0) -> dict[str, Any]:
    """The store's plan with these shards left out of compositions, and so many groups fewer."""
    plan = {k: v for k, v in store.manifest.plan.items() if k != "subtracted"}
    plan["groups"] -= dropped
    return plan | ({"subtracted": list(subtracted)} if subtracted else {})


def adopt(store: FeatureStore, recipe: Recipe | None) -> Recipe:
    """The recipe that would be in force: the store's, with stage 2's sections of a given one. Nothing is written.

    Raises:
        IdentityError, RecipeError, CompositionError, BackboneError: the store cannot follow the given recipe, as
        ``check_settings`` says.
    """
    if recipe is None:
        return parse_recipe(store.manifest.recipe, str(store.path))
    check_settings(store, recipe)
    return parse_recipe(recorded_values(store, recipe), str(store.path))


def recorded_values(store: FeatureStore, recipe: Recipe) -> dict[str, Any]:
    """What the store's record of its recipe is once it was trained with ``recipe``."""
    given = recipe_values(recipe)
    return store.manifest.recipe | {section: given[section] for section in SECTIONS}


def record_recipe(change: Transaction, store: FeatureStore, recipe: Recipe) -> None:
    """Put stage 2's sections of ``recipe`` into the store's record, where they differ from it.

    It belongs into the transaction that first writes something made with them: a command that is refused records none.
    """
    values = recorded_values(store, recipe)
    if values != store.manifest.recipe:
        change.update(recipe=values)


def training_key(recipe: Recipe, base: Base, sources: Sequence[Shard], mode: Train) -> str:
    """Everything that decides a component's bytes, as text: equal keys mean nothing needs to be solved again."""
    solver = recipe_values(recipe)["solver"]
    settings = {
        "base": base.digest,
        "rows": [shard.digest for shard in sources],
        "train": mode,
        "objective": recipe_values(recipe)["objective"],
        "solver": {k: solver[k] for k in ("method", "tolerance", "max_passes", "proof_passes", "precision")},
    }
    if taught(recipe, mode):
        settings["prior"] = recipe_values(recipe)["prior"] | {
            "rows": taught_rows(recipe.prior.teachers, sources).digest
        }
    return json.dumps(settings, sort_keys=True)


def loss_of(recipe: Recipe) -> Loss:
    """The loss that the recipe asks for."""
    return named_loss(recipe.objective.loss, recipe.objective.alpha, recipe.objective.kappa)


def weights_of(recipe: Recipe, base: Base, sources: Sequence[Shard]) -> RowWeights | None:
    """The weights that the recipe asks for, of the rows of ``sources``."""
    labels = torch.from_numpy(np.concatenate([np.asarray(shard.labels, np.int64) for shard in sources]))
    return class_weights(recipe.objective.class_weights, labels, base.config.classes)


def _thinned(curve: list[list[float]], most: int = 200) -> list[list[float]]:
    """At most so many points of a curve, its last among them."""
    return curve[:: -(-len(curve) // most)][: most - 1] + curve[-1:] if len(curve) > most else curve


def problem_of(recipe: Recipe, base: Base, sources: Sequence[Shard], component: Component) -> Problem:
    """The problem, in float64, that a component is the solution of, over ``sources`` and under its own ridge."""
    mode, ridge = component.meta["train"], component.meta["certificate"]["ridge"]
    objective = replace(objective_of(recipe, base, sources, mode), ridge=ridge)
    if taught(recipe, mode):
        psi = taught_rows(recipe.prior.teachers, sources).psi
        return problem_at(component.delta, base, sources, objective, Teachers(psi=psi, prior=recipe.prior))
    return Problem.of(objective, TangentOperator(base, sources, trained=component.layout, dtype=torch.float64))


def starts_at_zero(recipe: Recipe, base: Base, sources: Sequence[Shard], mode: Train) -> bool:
    """Whether a solve goes through the space of the rows, which begins at zero and needs few passes from there."""
    layout, loss = base.trained(mode), loss_of(recipe)
    if (
        taught(recipe, mode)
        or recipe.solver.method != "auto"
        or recipe.objective.radius is not None
        or not loss.quadratic
    ):
        return False
    problem = Problem(TangentOperator(base, sources, trained=layout), loss, 1.0)
    return layout != base.head_layout and through_rows(problem)


def taught(recipe: Recipe, mode: Train) -> bool:
    """Whether a prior from teachers' features applies: it moves features, which the head alone does not."""
    return bool(recipe.prior.teachers) and mode != "head"


def objective_of(recipe: Recipe, base: Base, sources: Sequence[Shard], mode: Train) -> Objective:
    """What the recipe asks for over the rows of ``sources``; λ is 0 where it is yet to be chosen."""
    asked = recipe.objective
    return Objective(
        loss=loss_of(recipe),
        ridge=0.0 if asked.ridge == "auto" else asked.ridge,
        train=mode,
        weights=weights_of(recipe, base, sources),
        jvp_only=asked.jvp_only,
        radius=asked.radius,
    )


def _solution(
    recipe: Recipe,
    base: Base,
    sources: Sequence[Shard],
    objective: Objective,
    goal: Goal,
    arithmetic: Arithmetic,
    start: Tensor | Restart | None,
    on_pass: OnPass,
) -> Solution:
    """By the recipe's method, and with its prior from teachers where that applies."""
    method = recipe.solver.method
    if taught(recipe, objective.train):
        if objective.radius is not None or method not in ("auto", "conjugate"):
            raise RecipeError(
                "a prior from teachers has one method only, and no ball",
                got=f"objective.radius = {objective.radius}, solver.method = {method!r}",
                do="leave both out, or leave [prior] out",
            )
        assert not isinstance(start, Restart)
        rows = taught_rows(recipe.prior.teachers, sources)
        teachers = Teachers(psi=rows.psi, prior=recipe.prior, slices=rows.slices)
        return minimise_taught(
            base, sources, objective, teachers, goal=goal, arithmetic=arithmetic, start=start, on_pass=on_pass
        )
    if method == "paper" or method == "release" or method == "adamw":
        return _by_schedule(PRESETS[method], base, sources, objective, goal, arithmetic, on_pass)
    return minimise(
        base, sources, objective, method=method, goal=goal, arithmetic=arithmetic, start=start, on_pass=on_pass
    )


def _by_schedule(
    preset: Preset,
    base: Base,
    sources: Sequence[Shard],
    objective: Objective,
    goal: Goal,
    arithmetic: Arithmetic,
    on_pass: OnPass,
) -> Solution:
    """Adam to the end of its schedule, and the certificate of where that stops."""
    if objective.radius is not None:
        raise SolveError(
            "Adam's schedules have no ball", got=f"radius {objective.radius}", do='solver.method = "projected"'
        )
    schedule, layout, device = preset.schedule, base.trained(objective.train), arithmetic.exact_device
    exact = Problem.of(objective, TangentOperator(base, sources, trained=layout, dtype=torch.float64, device=device))
    run = Run(
        objective.loss, schedule.rate, objective.ridge,
        penalty=preset.penalty, weights=objective.weights, jvp_only=objective.jvp_only,
    )  # fmt: skip
    (delta,) = train_tangents(
        base, sources, [run], schedule, train=objective.train, memory=arithmetic.memory, device=device,
        on_epoch=lambda epoch: on_pass(epoch, nan),
    )  # fmt: skip
    steps = schedule.epochs * -(-exact.operator.rows // schedule.batch)
    stats = {"solver": "adam", "passes": schedule.epochs + 2, "steps": steps}
    return certified(exact, delta, goal.tolerance, stats, above=Status.max_passes)


def solve_component(
    recipe: Recipe,
    base: Base,
    sources: Sequence[Shard],
    mode: Train,
    progress: Progress,
    *,
    label: str,
    interrupted: Literal["raise", "keep"] = "raise",
    start: Tensor | Restart | None = None,
    keep_dual: bool = False,
    tolerance: float | None = None,
    max_passes: int | None = None,
    operator: Callable[..., TangentOperator] | None = None,
) -> Component:
    """Minimise over the rows of ``sources``: the component [P], its certificate and figures in ``meta``.

    Args:
        recipe: objective, prior and solver.
        base: the expansion point.
        sources: the shards.
        mode: which parameters move.
        progress: told of every pass.
        label: the component's name, for ``progress``.
        interrupted: whether a solve that Ctrl-C ended raises KeyboardInterrupt, or is kept with its best iterate and
            marked in ``meta``; one of Adam's schedules raises.
        start: as ``minimise`` has it.
        keep_dual: keep the dual vectors, where the solve has them.
        tolerance, max_passes: of a warm solve, which has goals of its own; the recipe's by default.
        operator: makes J over the rows.

    Raises:
        RecipeError: a prior from teachers with a method or a ball that it does not have.
        SolveError: as ``minimise`` has it.
    """
    solver = recipe.solver
    objective = objective_of(recipe, base, sources, mode)
    goal = Goal(
        tolerance=tolerance or solver.tolerance,
        max_passes=max_passes or solver.max_passes,
        proof_passes=solver.proof_passes,
    )
    arithmetic = Arithmetic(
        precision=solver.precision, memory=recipe.memory_bytes, device=resolve_device(recipe.device)
    )
    choice: RidgeChoice | None = None
    curve: list[list[float]] = []
    with progress.task(f"solve {label.partition('/')[2]}", None) as task:

        def on_pass(passes: int, residual: float) -> None:
            task.advance()
            if isfinite(residual):  # one of Adam's schedules has none
                curve.append([passes, float(f"{residual:.3g}")])
                task.note(f"pass {passes}, residual {residual:.1e}")
            else:
                task.note(f"pass {passes}")

        if recipe.objective.ridge == "auto":
            choice = choose_ridge(base, sources, objective, arithmetic=arithmetic)
            objective = replace(objective, ridge=choice.ridge)
            task.note(f"λ = {choice.ridge:.1e} by {choice.method}")
        arithmetic = replace(arithmetic, operator=operator or TangentOperator)
        solution = _solution(recipe, base, sources, objective, goal, arithmetic, start, on_pass)
    stopped = solution.status is Status.interrupted
    if stopped and interrupted == "raise":  # a component of the full key must be the full solve's
        raise KeyboardInterrupt
    delta: Tensor = solution.value.to("cpu", torch.float64)
    meta = {
        "kind": "component",
        "train": mode,
        "shards": [shard.name for shard in sources],
        "rows": sum(shard.rows for shard in sources),
        "key": INTERRUPTED if stopped else training_key(recipe, base, sources, mode),
        "converged": solution.converged,
        "status": solution.status.value,
        "stats": solution.stats,
        "convergence": _thinned(curve),
        "certificate": solution.certificate.as_dict(),
        "norm": delta.norm().item(),
        **({} if choice is None else {"ridge_choice": choice.as_dict()}),
    }
    dual = solution.dual.cpu() if keep_dual and solution.dual is not None else None
    return Component(base.digest, base.trained(mode), delta, meta, dual)
