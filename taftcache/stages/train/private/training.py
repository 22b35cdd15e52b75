"""Stage 2 with differential privacy: one private component per shard, its statement, and its charge in the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any

import msgspec

from taftcache.backbone.device import float64_device
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.errors import ArgumentError, check_several
from taftcache.model.component import Component, put_component
from taftcache.model.meta import TRAINED_ON
from taftcache.names import BY_HELD_OUT, PRIVATE, component_of, is_component
from taftcache.objective.loss import Loss
from taftcache.objective.named import named_loss, true_class_weight
from taftcache.privacy.budget import EVENT, PLAN
from taftcache.privacy.network import TangentNetwork, accuracy
from taftcache.privacy.statement import Statement, after
from taftcache.privacy.trainer import train_privately
from taftcache.recipe import Overrides, Recipe
from taftcache.stages.completeness import subtracted_notes
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.memory import memory_of
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.signature import Signer, signed, signer_of
from taftcache.stages.train.compositions import check_composes
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.private.preparing import Preparation, prepare, private_key
from taftcache.stages.train.private.records import (
    budget_of,
    new_key,
    put_keys,
)
from taftcache.stages.train.record import (
    beside_notes,
    plan_with,
    record_recipe,
    recorded_values,
    settings_of,
)
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.trained_on import objective_said


@dataclass(frozen=True, kw_only=True)
class PrivateTrainReport(Report):
    """What private training did.

    trained: components trained now. kept: components from before. dropped: models that were dropped. statements: what
    each component promises, by name. spent: for each shard that was asked for, the ε of all its trainings. budget: the
    ε that a shard's trainings may spend together.
    """

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


@at_its_place("a")
def train_private(
    store: Place,
    recipe: Recipe | None = None,
    *,
    overrides: Overrides = (),
    shards: Sequence[str] | None = None,
    progress: Progress | bool | None = None,
    rates: Sequence[float] = (1.0,),
    signing_key: Path | str | None = None,
) -> PrivateTrainReport:
    """Train a private component on every shard (or those named) that has none for its rows and these settings.

    Component and ledger entry become visible in one commit, so what is released is always charged. The first commit
    drops models of the same rows that were made without noise: beside them the promise would be void. Whatever is
    refused is refused before anything is written.

    Args:
        store: opened for writing, or its place.
        recipe: settings of stage 2; the store's own by default.
        overrides: as for ``train``.
        shards: names of the shards to train; by default all that were not subtracted.
        rates: multiples of the learning rate, above 0; with several, each is tried and the best on the held-out rows is
            kept; the promise covers all that were tried together.
        signing_key: a file with the Ed25519 key that the ledger's entries are signed with.

    Raises:
        RecipeError: no such key, a shard's budget does not suffice, the promise is not the one that the store's first
            private training fixed, the plan cannot keep it, or the rates are wrong. StoreError: several rates but no
            held-out rows to choose by, or a missing teacher. SolveError: the noise that epsilon needs is out of reach.
        CompositionError: a sum with what was trained could not be proven.
    """
    assert isinstance(store, FeatureStore)
    check_several(shards=shards)
    if not isinstance(rates, Iterable) or not all(isinstance(rate, Real) for rate in rates):
        raise ArgumentError("rates must be a list of numbers", got=repr(rates), do="rates=[1.0]")
    check_has_classes(store)
    progress = or_silent(progress)
    begin = time.perf_counter()
    signer = signer_of(signing_key)
    settings, rates = settings_of(store, recipe, overrides), tuple(rates)
    if settings.is_taught(settings.train) and settings.refusal is None:
        settings.taught(store.shards)  # not used here, but the record that names them must be followed
    work = prepare(store, settings, shards, rates)
    if work.todo:
        for note in work.notes:
            progress.say(note)  # while nothing is fixed yet
    for shard in work.todo:
        component = private_component(store, settings, shard, rates, progress)
        check_composes(component, settings.base)
        with store.transaction() as change:
            _put(change, store, work, shard, component, signer)
    if not work.todo and (work.dropped or recorded_values(store, settings.recipe) != store.manifest.recipe):
        with store.transaction() as change:
            _put_settings(change, store, work, store.manifest.plan)
    objects, names = store.objects(), [component_of(shard.name) for shard in work.wanted]
    trained = [component_of(shard.name) for shard in work.todo]
    return PrivateTrainReport(
        store=store.path,
        root_digest=store.root_digest,
        trained=trained,
        kept=[name for name in names if name not in trained],
        dropped=work.dropped,
        statements={name: objects[name].meta[PRIVATE] for name in names},
        spent=_spent(store, work),
        budget=work.promise.epsilon,
        seconds=time.perf_counter() - begin,
        notes=[
            *work.notes,
            *subtracted_notes(store),
            *([] if shards is None else outdated_notes(store, settings.keys)),
            *beside_notes(store),
        ],
    )


def _spent(store: FeatureStore, work: Preparation) -> dict[str, float]:
    """ε of each shard that was asked for, once it is trained."""
    budget = budget_of(store)
    return {} if budget is None else {shard.name: budget.spent[shard.name] for shard in work.wanted}


def _put_settings(change: Transaction, store: FeatureStore, work: Preparation, plan: dict[str, Any]) -> None:
    """Record the settings, and ``plan`` with the fixed promise; drop the models that would make it void."""
    record_recipe(change, store, work.settings.recipe)
    change.update(plan=plan | {PLAN: work.promise.as_dict()})
    objects = store.objects()
    for name in work.dropped:  # unless a private component of that name was made since
        if name in objects and not (is_component(name) and PRIVATE in objects[name].meta):
            change.drop(name)


def _put(
    change: Transaction,
    store: FeatureStore,
    work: Preparation,
    shard: Shard,
    component: Component,
    signer: Signer | None,
) -> None:
    """Stage a component, what its key stands for, and what it cost."""
    name, statement = component_of(shard.name), Statement.from_dict(component.meta[PRIVATE])
    said = after(statement, work.spent[shard.name], work.promise.epsilon).as_dict()
    component = replace(component, meta={**component.meta, PRIVATE: said})
    _put_settings(change, store, work, plan_with(store, [shard.name]))
    put_component(change, name, component)
    put_keys(change, store, {component.meta["key"]: private_key(work.settings, shard, work.rates)}, lost=[name])
    entry = {
        "event": EVENT,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "component": name,
        "shards": [shard.name],
        "relation": said["relation"],
        "releases": said["releases"],
        "delta": work.promise.delta,
        "budget": work.promise.epsilon,
        "spent": work.spent[shard.name],
        "private": said["private"],
        "tuning": said["tuning"],
    }
    change.record(signed(store, entry, signer))


def private_component(
    store: FeatureStore,
    settings: Settings,
    shard: Shard,
    rates: Sequence[float],
    progress: Progress,
) -> Component:
    """Train on one shard's rows, once for each rate; the best component, with its privacy statement in ``meta``."""
    recipe, base = settings.recipe, settings.base
    device = float64_device(recipe.device)  # integers are summed in float64, exactly
    layout = base.trained(settings.train)
    network = TangentNetwork(base, [shard], layout, device=device, memory=memory_of(recipe))
    with progress.task(f"train {shard.name} privately", recipe.privacy.steps * len(rates)) as task:
        found = [
            train_privately(
                base,
                network,
                private_loss(recipe, base.config.classes),
                recipe.privacy,
                shards=[shard.name],
                runs=len(rates),
                factor=factor,
                progress=lambda step: task.advance(),
            )
            for factor in rates
        ]
    result = found[0]
    statement = result.statement
    if len(rates) > 1:
        assert store.held_out is not None
        judge = TangentNetwork(base, [store.held_out], layout, device=device)
        result = max(found, key=lambda each: accuracy(judge, each.delta))
        how = f"the best of {len(rates)} learning rates {BY_HELD_OUT}, which are not covered; all of them are charged"
        statement = msgspec.structs.replace(result.statement, tuning=how)
    meta = {
        "kind": "component",
        "train": settings.train,
        "shards": [shard.name],
        "rows": result.stats.rows_said,
        "key": new_key(),
        "stats": msgspec.to_builtins(result.stats),
        "norm": result.delta.norm().item(),
        TRAINED_ON: {"objective": _objective(recipe, base.config.classes)},
        PRIVATE: statement.as_dict(),
    }
    return Component(base.digest, layout, result.delta, meta)


def _objective(recipe: Recipe, classes: int) -> dict[str, Any]:
    """What the component says of its loss, in the words of [objective]."""
    return objective_said(_loss(recipe), recipe.objective.alpha, recipe.objective.kappa, classes)


def private_loss(recipe: Recipe, classes: int) -> Loss:
    """The loss that ``privacy.loss`` names."""
    return named_loss(_loss(recipe), true_class_weight(recipe.objective.alpha, classes), recipe.objective.kappa)


def _loss(recipe: Recipe) -> str:
    """``privacy.loss``, as [objective] calls it."""
    return recipe.privacy.loss.replace("-", "_")
