"""Stage 2: one component a shard, solved from the cache, and what is solved over all shards together."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taftcache.cache import FeatureStore, Shard
from taftcache.errors import StoreError
from taftcache.recipe import Recipe, parse_recipe, recipe_values
from taftcache.stages.extraction import check_words
from taftcache.stages.progress import Progress, Silent

if TYPE_CHECKING:
    from torch import Tensor

    from taftcache.component import Component
    from taftcache.solve.solution import Solution
    from taftcache.tangent.base import Base
    from taftcache.tangent.spec import Train

COMPONENTS = "components/"
HEAD = "models/head"
EXACT = "models/exact"
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
) -> TrainReport:
    """Solve every shard (or those named) whose component is missing or was made from other rows or settings.

    Args:
        store: opened for writing.
        recipe: settings of stage 2; the store's own by default. They are recorded in the store.
        shards: names of the shards to train; all by default.
        progress: told of every pass.
    """
    from taftcache.component import put_component, read_base

    progress = progress or Silent()
    begin = time.perf_counter()
    recipe = adopt(store, recipe)
    base = read_base(store, recipe.tangent)
    wanted = [shard for shard in store.shards if shards is None or shard.name in shards]
    if unknown := sorted(set(shards or []) - {shard.name for shard in wanted}):
        raise StoreError(
            "a shard to train is one of the store's",
            got=", ".join(unknown),
            do=f"one of {', '.join(shard.name for shard in store.shards)}",
        )
    if not wanted:
        raise StoreError("there is a shard to train", got=f"{store.path} has none", do="taftcache extract")
    jobs: list[tuple[str, list[Shard], Train]] = [
        (f"{COMPONENTS}{shard.name}", [shard], recipe.tangent.train) for shard in wanted
    ]
    jobs.append((HEAD, store.shards, "head"))
    if recipe.compose.mode == "exact" and shards is None:
        jobs.append((EXACT, store.shards, recipe.tangent.train))
    elif EXACT in store.objects():
        _drop_stale(store, EXACT, training_key(recipe, base, store.shards, recipe.tangent.train))
    trained, kept = [], []
    for name, sources, mode in jobs:
        key = training_key(recipe, base, sources, mode)
        if name in store.objects() and store.objects()[name].meta["key"] == key:
            kept.append(name)
            continue
        component = solve_component(recipe, base, sources, mode, progress, label=name, interrupted="keep")
        with store.transaction() as change:
            put_component(change, name, component)
        if component.meta["key"] == INTERRUPTED:
            raise KeyboardInterrupt
        trained.append(name)
    return TrainReport(
        store.path,
        store.root_digest,
        trained,
        kept,
        {n: store.objects()[n].meta["certificate"] for n, _, _ in jobs},
        time.perf_counter() - begin,
        _unfinished({n: store.objects()[n].meta for n, _, _ in jobs}),
    )


def _unfinished(metas: Mapping[str, dict[str, Any]]) -> list[str]:
    """One note for each way in which solves ended above the tolerance, with the components it befell."""
    by_status: dict[str, list[str]] = {}
    for name, meta in metas.items():
        if not meta["converged"]:
            by_status.setdefault(meta["status"], []).append(name)
    return [f"{len(names)} of {len(metas)} solves ({', '.join(names)}): {s}" for s, names in by_status.items()]


def _drop_stale(store: FeatureStore, name: str, key: str) -> None:
    """Drop a model that this run does not renew, unless it is what the settings ask for."""
    if store.objects()[name].meta["key"] != key:
        with store.transaction() as change:
            change.drop(name)


def adopt(store: FeatureStore, recipe: Recipe | None) -> Recipe:
    """The recipe to train with; a given one replaces stage 2's sections in the store's record of it.

    Raises:
        IdentityError: the recipe asks for other data, another backbone or another plan than the store holds.
    """
    if recipe is None:
        return parse_recipe(store.manifest.recipe, str(store.path))
    check_words(store, recipe)
    values = store.manifest.recipe | {
        s: recipe_values(recipe)[s] for s in ("tangent", "objective", "solver", "compose", "privacy", "device")
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
    return json.dumps(settings, sort_keys=True)


def solve_component(
    recipe: Recipe,
    base: Base,
    sources: Sequence[Shard],
    mode: Train,
    progress: Progress,
    *,
    label: str,
    interrupted: Literal["raise", "keep"] = "raise",
) -> Component:
    """Minimise over the rows of ``sources``: the component, its certificate in ``meta``.

    A solve that Ctrl-C ended raises KeyboardInterrupt, or is kept with its best iterate, marked in ``meta``.
    """
    import numpy as np
    import torch

    from taftcache.backbone.device import resolve_device
    from taftcache.component import Component
    from taftcache.objective.named import class_weights, named_loss
    from taftcache.solve.choosing import Choice, choose_ridge
    from taftcache.solve.minimise import minimise
    from taftcache.solve.solution import Status

    objective, solver = recipe.objective, recipe.solver
    loss = named_loss(objective.loss, objective.alpha, objective.kappa)
    labels = torch.from_numpy(np.concatenate([np.asarray(shard.labels, np.int64) for shard in sources]))
    shared: dict[str, Any] = {
        "train": mode,
        "weights": class_weights(objective.class_weights, labels, base.config.classes),
        "jvp_only": objective.jvp_only,
        "memory": recipe.memory_bytes,
        "device": resolve_device(recipe.device),
    }
    choice: Choice | None = None
    ridge = objective.ridge
    with progress.task(f"solve {label.partition('/')[2]}", None) as task:

        def told(passes: int, residual: float) -> None:
            task.advance()
            task.note(f"pass {passes}, residual {residual:.1e}")

        if ridge == "auto":
            choice = choose_ridge(base, sources, loss, **shared)
            ridge = choice.ridge
            task.note(f"λ = {ridge:.1e} by {choice.method}")
        solution: Solution = minimise(
            base,
            sources,
            loss,
            ridge,
            radius=objective.radius,
            method=solver.method,
            tolerance=solver.tolerance,
            max_passes=solver.max_passes,
            proof_passes=solver.proof_passes,
            precision=solver.precision,
            progress=told,
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
        "certificate": solution.certificate.as_dict(),
        "norm": delta.norm().item(),
        **({} if choice is None else {"ridge_choice": choice.as_dict()}),
    }
    return Component(base.digest, base.trained(mode), delta, meta)
