"""Stage 2: one component a shard, solved from the cache, and what is solved over all shards together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError
from taftcache.names import HEAD, component_of
from taftcache.recipe import Recipe, parse_recipe, recipe_values
from taftcache.stages.executor import Executor, Job
from taftcache.stages.extract.extraction import check_words
from taftcache.stages.progress import Progress, Silent

if TYPE_CHECKING:
    from torch import Tensor

    from taftcache.model.component import Component
    from taftcache.objective.loss import Loss
    from taftcache.objective.problem import Problem
    from taftcache.objective.weights import RowWeights
    from taftcache.solve.methods.row_space import Restart
    from taftcache.solve.solution import Solution
    from taftcache.tangent.base import Base
    from taftcache.tangent.operator import TangentOperator
    from taftcache.tangent.spec import Train

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

    Args:
        store: opened for writing.
        recipe: settings of stage 2; the store's own by default. They are recorded in the store.
        shards: names of the shards to train; all by default.
        progress: told of every pass.
        cluster: whose workers solve, one component a task; this process by default. The bytes are the same, given the
            same number of threads.
    """
    from taftcache.model.component import put_component, read_base

    progress = progress or Silent()
    begin = time.perf_counter()
    recipe = adopt(store, recipe)
    base = read_base(store, recipe.tangent)
    out = subtracted(store)
    wanted = [s for s in store.shards if (s.name not in out if shards is None else s.name in shards)]
    if unknown := sorted(set(shards or []) - {shard.name for shard in wanted}):
        raise StoreError(
            "a shard to train is one of the store's",
            got=", ".join(unknown),
            do=f"one of {', '.join(shard.name for shard in store.shards)}",
        )
    if not wanted:
        raise StoreError("there is a shard to train", got=f"{store.path} has none", do="taftcache extract")
    jobs: list[Job] = [(component_of(shard.name), [shard], recipe.tangent.train) for shard in wanted]
    jobs.append((HEAD, store.shards, "head"))
    keys = {name: training_key(recipe, base, sources, mode) for name, sources, mode in jobs}
    there = store.objects()
    kept = [name for name, key in keys.items() if name in there and there[name].meta["key"] == key]
    todo = [job for job in jobs if job[0] not in kept]
    for (name, sources, _), component in _solved(store, recipe, base, todo, keys, progress, cluster):
        with store.transaction() as change:
            put_component(change, name, component)
            still = subtracted(store)
            if name != HEAD and sources[0].name in still:
                still.remove(sources[0].name)
                change.update(plan=plan_without(store, subtracted=still))
        if component.meta["key"] == INTERRUPTED:
            raise KeyboardInterrupt
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
    """The recipe to train with; a given one replaces stage 2's sections in the store's record of it.

    Raises:
        IdentityError: the recipe asks for other data, another backbone or another plan than the store holds.
    """
    if recipe is None:
        return parse_recipe(store.manifest.recipe, str(store.path))
    check_words(store, recipe)
    values = store.manifest.recipe | {
        s: recipe_values(recipe)[s] for s in ("tangent", "objective", "prior", "solver", "compose", "privacy", "device")
    }
    if values != store.manifest.recipe:
        with store.transaction() as change:
            change.update(recipe=values)
    return parse_recipe(values, str(store.path))


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
        from taftcache.teaching.rows import taught_rows

        settings["prior"] = recipe_values(recipe)["prior"] | {
            "rows": taught_rows(recipe.prior.teachers, sources).digest
        }
    return json.dumps(settings, sort_keys=True)


def loss_of(recipe: Recipe) -> Loss:
    """The loss that the recipe asks for."""
    from taftcache.objective.named import named_loss

    return named_loss(recipe.objective.loss, recipe.objective.alpha, recipe.objective.kappa)


def weights_of(recipe: Recipe, base: Base, sources: Sequence[Shard]) -> RowWeights | None:
    """The weights that the recipe asks for, of the rows of ``sources``."""
    import numpy as np
    import torch

    from taftcache.objective.named import class_weights

    labels = torch.from_numpy(np.concatenate([np.asarray(shard.labels, np.int64) for shard in sources]))
    return class_weights(recipe.objective.class_weights, labels, base.config.classes)


def _thinned(curve: list[list[float]], most: int = 200) -> list[list[float]]:
    """At most so many points of a curve, its last among them."""
    return curve[:: -(-len(curve) // most)][: most - 1] + curve[-1:] if len(curve) > most else curve


def problem_of(recipe: Recipe, base: Base, sources: Sequence[Shard], component: Component) -> Problem:
    """The problem, in float64, that a component is the solution of, over ``sources`` and under its own ridge."""
    import torch

    from taftcache.objective.problem import Problem
    from taftcache.tangent.operator import TangentOperator

    ridge, weights = component.meta["certificate"]["ridge"], weights_of(recipe, base, sources)
    if taught(recipe, component.meta["train"]):
        from taftcache.teaching.rows import taught_rows
        from taftcache.teaching.tangent_student import problem_at

        psi, loss = taught_rows(recipe.prior.teachers, sources).psi, loss_of(recipe)
        more: dict[str, Any] = {"train": component.meta["train"], "weights": weights}
        more["jvp_only"] = recipe.objective.jvp_only
        return problem_at(component.delta, base, sources, loss, ridge, psi, recipe.prior, **more)
    operator = TangentOperator(base, sources, trained=component.layout, dtype=torch.float64)
    return Problem(operator, loss_of(recipe), ridge, weights, recipe.objective.jvp_only)


def starts_at_zero(recipe: Recipe, base: Base, sources: Sequence[Shard], mode: Train) -> bool:
    """Whether a solve goes through the space of the rows, which begins at zero and needs few passes from there."""
    from taftcache.objective.problem import Problem
    from taftcache.solve.minimise import through_rows
    from taftcache.tangent.operator import TangentOperator

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


def _minimise_taught(
    recipe: Recipe, base: Base, sources: Sequence[Shard], loss: Loss, ridge: float, shared: dict[str, Any]
) -> Solution:
    """The solve with the recipe's prior, which knows one method and no ball."""
    from taftcache.teaching.rows import taught_rows
    from taftcache.teaching.tangent_student import minimise_taught

    if recipe.objective.radius is not None or recipe.solver.method not in ("auto", "conjugate"):
        raise RecipeError(
            "with a prior from teachers the solve has one method, and no ball",
            got=f"objective.radius = {recipe.objective.radius}, solver.method = {recipe.solver.method!r}",
            do="leave both out, or leave [prior] out",
        )
    rows = taught_rows(recipe.prior.teachers, sources)
    settings = {name: value for name, value in shared.items() if name != "device"}
    return minimise_taught(base, sources, loss, ridge, rows.psi, recipe.prior, rows.slices, **settings)


def solve_component(
    recipe: Recipe,
    base: Base,
    sources: Sequence[Shard],
    mode: Train,
    progress: Progress,
    *,
    label: str,
    interrupted: Literal["raise", "keep"] = "raise",
    start: Tensor | None = None,
    restart: Restart | None = None,
    keep_dual: bool = False,
    tolerance: float | None = None,
    max_passes: int | None = None,
    operator: Callable[..., TangentOperator] | None = None,
) -> Component:
    """Minimise over the rows of ``sources`` from ``start`` (zero): the component, its certificate in ``meta``.

    ``restart``, ``tolerance`` and ``max_passes`` are for a warm solve, which has goals of its own. A solve that Ctrl-C
    ended raises KeyboardInterrupt, or is kept with its best iterate, marked in ``meta``.
    ``operator`` is that of ``minimise``.
    """
    import torch

    from taftcache.backbone.device import resolve_device
    from taftcache.model.component import Component
    from taftcache.solve.choosing import Choice, choose_ridge
    from taftcache.solve.minimise import minimise
    from taftcache.solve.solution import Status
    from taftcache.tangent.operator import TangentOperator

    objective, solver = recipe.objective, recipe.solver
    loss = loss_of(recipe)
    shared: dict[str, Any] = {
        "train": mode,
        "weights": weights_of(recipe, base, sources),
        "jvp_only": objective.jvp_only,
        "memory": recipe.memory_bytes,
        "device": resolve_device(recipe.device),
    }
    choice: Choice | None = None
    ridge = objective.ridge
    curve: list[list[float]] = []
    with progress.task(f"solve {label.partition('/')[2]}", None) as task:

        def told(passes: int, residual: float) -> None:
            curve.append([passes, float(f"{residual:.3g}")])
            task.advance()
            task.note(f"pass {passes}, residual {residual:.1e}")

        if ridge == "auto":
            choice = choose_ridge(base, sources, loss, **shared)
            ridge = choice.ridge
            task.note(f"λ = {ridge:.1e} by {choice.method}")
        shared |= {
            "tolerance": tolerance or solver.tolerance,
            "max_passes": max_passes or solver.max_passes,
            "precision": solver.precision,
            "start": start,
            "progress": told,
        }
        if taught(recipe, mode):
            solution: Solution = _minimise_taught(recipe, base, sources, loss, ridge, shared)
        else:
            solution = minimise(
                base,
                sources,
                loss,
                ridge,
                radius=objective.radius,
                method=solver.method,
                proof_passes=solver.proof_passes,
                restart=restart,
                operator=operator or TangentOperator,
                **shared,
            )
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
