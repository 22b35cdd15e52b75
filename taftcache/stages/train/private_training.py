"""Stage 2 with differential privacy: one private component a shard, its statement, and the ledger's budget."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError
from taftcache.names import component_of, is_model
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.training import adopt

if TYPE_CHECKING:
    from taftcache.model.component import Component
    from taftcache.objective.loss import Loss
    from taftcache.privacy.noise import Bits
    from taftcache.tangent.base import Base


@dataclass(frozen=True)
class PrivateTrainReport:
    """What was ``trained`` now and ``kept`` from before; statements by component, ε by shard over all its trainings."""

    store: Path
    root_digest: str
    trained: list[str]
    kept: list[str]
    dropped: list[str]
    statements: dict[str, dict[str, Any]]
    spent: dict[str, float]
    budget: float
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def train_private(
    store: FeatureStore,
    recipe: Recipe | None = None,
    shards: Sequence[str] | None = None,
    progress: Progress | None = None,
    *,
    rates: Sequence[float] = (1.0,),
    charged: bool = True,
    bits: Bits | None = None,
) -> PrivateTrainReport:
    """Train a private component on every shard (or those named) that has none of these rows and settings.

    Component and ledger entry become visible in one commit, so what is released is always charged. Models of the
    same rows that were made without noise are dropped: beside them the promise would be void.

    Args:
        store: opened for writing.
        recipe: settings of stage 2; the store's own by default.
        shards: names of the shards to train; all by default.
        rates: multiples of the learning rate; with several, each is tried and the best on the held-out rows is kept.
        charged: whether the promise is about all that were tried together. Otherwise each spends all of epsilon, and
            the component says that its tuning was not charged.
        bits: of the noise; the operating system's by default, any other makes components that say they are not private.

    Raises:
        RecipeError: the budget of a shard does not suffice. StoreError: several rates, and no held-out rows to choose
        by.
    """
    from taftcache.model.component import put_component, read_base
    from taftcache.privacy.statement import EVENT, META, charge
    from taftcache.privacy.trainer import plan

    progress = progress or Silent()
    begin = time.perf_counter()
    recipe = adopt(store, recipe)
    spec = recipe.privacy
    if recipe.compose.mode == "exact":
        raise RecipeError(
            "private components are composed by a mean: a model solved over their rows would not be private",
            got='compose.mode = "exact"',
            do='set compose.mode = "mean"',
        )
    base = read_base(store, recipe.tangent)
    wanted = [shard for shard in store.shards if shards is None or shard.name in shards]
    if unknown := sorted(set(shards or []) - {shard.name for shard in wanted}):
        raise StoreError(
            "a shard to train is one of the store's",
            got=", ".join(unknown),
            do=f"one of {', '.join(shard.name for shard in store.shards)}",
        )
    dropped = [name for name, ref in store.objects().items() if is_model(name) and META not in ref.meta]
    if dropped:
        with store.transaction() as change:
            for name in dropped:
                change.drop(name)
    if len(rates) > 1 and store.held_out is None:
        raise StoreError("tuning chooses by held-out rows", got=f"{store.path} has none", do="extract with data.test")
    runs = len(rates) if charged else 1
    releases = plan(spec, runs).releases * runs
    trained, kept = [], []
    spent: dict[str, float] = {}
    for shard in wanted:
        name, key = component_of(shard.name), private_key(recipe, base, shard, rates, charged)
        there = store.objects().get(name)
        if there is not None and there.meta["key"] == key:
            kept.append(name)
            continue
        budget = spec.budget or spec.epsilon
        spent |= charge(store.ledger(), [shard.name], releases, spec.delta, budget)
        component = private_component(store, recipe, base, shard, progress, rates, charged, bits)
        with store.transaction() as change:
            put_component(change, name, component)
            change.record(
                {
                    "event": EVENT,
                    "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    "component": name,
                    "shards": [shard.name],
                    "releases": component.meta[META]["releases"],
                    "delta": spec.delta,
                    "budget": budget,
                    "spent": spent[shard.name],
                    "private": component.meta[META]["private"],
                }
            )
        trained.append(name)
    return PrivateTrainReport(
        store.path,
        store.root_digest,
        trained,
        kept,
        dropped,
        {component_of(s.name): store.objects()[component_of(s.name)].meta[META] for s in wanted},
        spent,
        spec.budget or spec.epsilon,
        time.perf_counter() - begin,
    )


def private_key(recipe: Recipe, base: Base, shard: Shard, rates: Sequence[float], charged: bool) -> str:
    """Rows and settings of a private component, as text: with equal keys there is nothing to spend again."""
    values = recipe_values(recipe)
    settings = {
        "base": base.digest,
        "rows": [shard.digest],
        "train": recipe.tangent.train,
        "objective": values["objective"],
        "privacy": {k: v for k, v in values["privacy"].items() if k != "budget"},
        "tuning": [*rates, charged],
    }
    return json.dumps(settings, sort_keys=True)


def private_component(
    store: FeatureStore,
    recipe: Recipe,
    base: Base,
    shard: Shard,
    progress: Progress,
    rates: Sequence[float] = (1.0,),
    charged: bool = True,
    bits: Bits | None = None,
) -> Component:
    """Train on one shard's rows, once for each of ``rates``: the best component, its privacy statement in ``meta``."""
    import msgspec

    from taftcache.backbone.device import resolve_device
    from taftcache.model.component import Component
    from taftcache.privacy.network import TangentNetwork, accuracy
    from taftcache.privacy.statement import META
    from taftcache.privacy.trainer import train_privately

    device = resolve_device(recipe.device)
    if device.type == "mps":  # sums of integers need float64
        device = resolve_device("cpu")
    layout = base.trained(recipe.tangent.train)
    network = TangentNetwork(base, [shard], layout, device=device, memory=recipe.memory_bytes)
    found = []
    with progress.task(f"train {shard.name} privately", recipe.privacy.steps * len(rates)) as task:
        for factor in rates:
            result = train_privately(
                base,
                network,
                loss_of(recipe),
                recipe.privacy,
                shards=[shard.name],
                bits=bits,
                runs=len(rates) if charged else 1,
                factor=factor,
                progress=lambda step: task.advance(),
            )
            right = 0.0
            if len(rates) > 1:
                assert store.held_out is not None
                right = accuracy(TangentNetwork(base, [store.held_out], layout, device=device), result.delta)
            found.append((right, result))
    result = max(found, key=lambda pair: pair[0])[1]
    statement = result.statement
    if len(rates) > 1:
        chosen = f"the best of {len(rates)} learning rates by accuracy on held-out rows, which are not covered; "
        how = "all of them are charged" if charged else "NOT charged: epsilon is that of one training"
        statement = msgspec.structs.replace(statement, tuning=chosen + how)
    meta = {
        "kind": "component",
        "train": recipe.tangent.train,
        "shards": [shard.name],
        "rows": result.stats["rows_said"],
        "key": private_key(recipe, base, shard, rates, charged),
        "stats": result.stats,
        "norm": result.delta.norm().item(),
        META: statement.as_dict(),
    }
    return Component(base.digest, layout, result.delta, meta)


def loss_of(recipe: Recipe) -> Loss:
    """The loss that ``privacy.loss`` names."""
    from taftcache.objective.cross_entropy import CrossEntropy
    from taftcache.objective.rsl import RSL

    if recipe.privacy.loss == "rsl":
        return RSL(alpha=recipe.objective.alpha, kappa=recipe.objective.kappa)
    return CrossEntropy()
