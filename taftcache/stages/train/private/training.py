"""Stage 2 with differential privacy: one private component a shard, its statement, and the ledger's budget."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from math import inf
from numbers import Real
from pathlib import Path
from typing import Any

import msgspec

from taftcache.backbone.device import float64_device
from taftcache.cache.opening import at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.errors import ArgumentError, RecipeError, StoreError, check_several
from taftcache.model.component import Component, put_component
from taftcache.model.meta import meta_of
from taftcache.names import BY_HELD_OUT, EXACT, HEAD, PRIVATE, component_of, is_component, is_model
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.loss import Loss
from taftcache.objective.named import true_class_weight
from taftcache.objective.rsl import RSL
from taftcache.privacy.accountant import Release
from taftcache.privacy.network import TangentNetwork, accuracy
from taftcache.privacy.spec import Relation
from taftcache.privacy.statement import (
    EVENT,
    PLAN,
    Promise,
    Statement,
    after,
    charge,
    check_delta,
    held_to,
    spent_before,
    weak_promise,
)
from taftcache.privacy.trainer import check_trained, plan, train_privately
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.memory import memory_of
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.signature import Signer, signed, signer_of
from taftcache.stages.train.checks import orphans
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.private.records import (
    budget_of,
    charges_of,
    deciding,
    is_current,
    new_key,
    put_keys,
    read_keys,
)
from taftcache.stages.train.record import (
    plan_with,
    record_recipe,
    recorded_values,
    settings_of,
    wanted_shards,
    with_noise,
)
from taftcache.stages.train.settings import Settings


@dataclass(frozen=True, kw_only=True)
class PrivateTrainReport:
    """What was ``trained`` now and ``kept`` from before; statements by component.

    ``spent``: of each shard that was asked for, the ε of all its trainings.
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


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the learning rate is chosen.

    rates: multiples of the recipe's; with several, each is tried and the best on the held-out rows is kept.
    charged: whether the promise is about all that were tried together.
    """

    rates: tuple[float, ...] = (1.0,)
    charged: bool = True

    @property
    def runs(self) -> int:
        """Trainings that the promise is about."""
        return len(self.rates) if self.charged else 1


@at_its_place("a")
def train_private(
    store: FeatureStore,
    recipe: Recipe | None = None,
    *,
    overrides: Iterable[str] = (),
    shards: Sequence[str] | None = None,
    progress: Progress | None = None,
    rates: Sequence[float] = (1.0,),
    charged: bool = True,
    signing_key: Path | str | None = None,
) -> PrivateTrainReport:
    """Train a private component on every shard (or those named) that has none of these rows and settings.

    Component and ledger entry become visible in one commit, so what is released is always charged. Models of the
    same rows that were made without noise are dropped with the first: beside them the promise would be void. Whatever
    is refused is refused before anything is written.

    Args:
        store: opened for writing, or its place.
        recipe: settings of stage 2; the store's own by default.
        overrides: as for ``train``.
        shards: names of the shards to train; all but those that were subtracted by default.
        rates: multiples of the learning rate, above 0; with several, each is tried and the best on the held-out rows is
            kept.
        charged: whether the promise is about all that were tried together. Otherwise each spends all of epsilon, and
            component and ledger say that its tuning was not charged.
        signing_key: a file with the Ed25519 key that the ledger's entries are signed with.

    Raises:
        RecipeError: no such key, or the budget of a shard does not suffice, or the promise is another than the one
            that the store's first private training fixed, or the plan cannot keep it, or no such rates. StoreError:
            several rates, and no held-out rows to choose by, or a teacher is not there. SolveError: the noise that
            epsilon needs is out of reach.
    """
    check_several(shards=shards)
    if not isinstance(rates, Iterable) or not all(isinstance(rate, Real) for rate in rates):
        raise ArgumentError("rates must be a list of numbers", got=repr(rates), do="rates=[1.0]")
    check_has_classes(store)
    progress = progress or Silent()
    begin = time.perf_counter()
    signer = signer_of(signing_key)
    settings, tuning = settings_of(store, recipe, overrides), Tuning(rates=tuple(rates), charged=charged)
    if settings.is_taught(settings.train) and settings.refusal is None:
        settings.taught(store.shards)  # private training does without, but the record that names them must be followed
    work = _prepare(store, settings, shards, tuning)
    if work.todo:
        for note in work.notes:
            progress.say(note)  # while nothing is fixed yet
    for shard in work.todo:
        component = private_component(store, settings, shard, tuning, progress)
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
            *([] if shards is None else outdated_notes(store, settings)),
        ],
    )


def _spent(store: FeatureStore, work: _Work) -> dict[str, float]:
    """ε of each shard that was asked for, once it is trained."""
    budget = budget_of(store)
    return {} if budget is None else {shard.name: budget.spent[shard.name] for shard in work.wanted}


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What a call is going to do, once nothing stands against it.

    ``spent``: ε of each shard to train once it is trained. ``uncharged``: releases of each that are not in it.
    ``uncharged_before``: shards of which earlier ones are not. ``notes``: what the promise does not say.
    """

    settings: Settings
    tuning: Tuning
    wanted: list[Shard]
    todo: list[Shard]
    dropped: list[str]
    promise: Promise
    spent: dict[str, float]
    uncharged: list[Release]
    uncharged_before: set[str]
    notes: list[str]


def _prepare(store: FeatureStore, settings: Settings, shards: Sequence[str] | None, tuning: Tuning) -> _Work:
    """Everything that may be refused, before anything is written; the errors are those of ``train_private``."""
    recipe, base = settings.recipe, settings.base
    spec, objects = recipe.privacy, store.objects()
    wanted = wanted_shards(store, shards)
    _check_settings(store, recipe, tuning)
    planned = plan(spec, tuning.runs)
    check_trained(base, base.trained(settings.train), spec, planned, max(shard.rows for shard in wanted))
    lost_base = _of_other_bases(store, settings, wanted)
    ledger, others, fixed = charges_of(store, spec.relation)
    promise, rows = held_to(fixed, spec), sum(shard.rows for shard in store.shards)
    if fixed is None:
        check_delta(promise.delta, rows)
    keys = read_keys(store)
    todo = [
        shard
        for shard in wanted
        if (there := objects.get(component_of(shard.name))) is None
        or not is_current(keys, there.meta, private_key(settings, shard, tuning))
    ]
    releases = planned.releases * tuning.runs
    spent = charge(ledger, [shard.name for shard in todo], releases, promise, spent_before(others))
    return _Work(
        settings=settings,
        tuning=tuning,
        wanted=wanted,
        todo=todo,
        dropped=sorted({*lost_base, *_void(store, [*(shard.name for shard in wanted), *with_noise(store)])}),
        promise=promise,
        spent=spent,
        uncharged=planned.releases * (len(tuning.rates) - tuning.runs),
        uncharged_before={name for entry in ledger if "uncharged" in entry for name in entry["shards"]}
        | {s.name for s in todo if any("uncharged" in entry for entry in chain(*others))},
        notes=[
            *_bare_labels(store, wanted, promise.relation),
            *weak_promise(max(spent.values(), default=promise.epsilon), promise.delta, rows),
        ],
    )


def _bare_labels(store: FeatureStore, wanted: Sequence[Shard], relation: Relation) -> list[str]:
    """A note where ids name the classes: then under replace-one no row has a neighbour of another class."""
    ids = ((i, store.classes[label]) for s in wanted for i, label in zip(s.sample_ids, s.labels.tolist(), strict=True))
    if relation != "replace-one" or not all(f"/{name}/" in f"/{i}" for i, name in ids):
        return []
    return [
        "the ids name the classes, as in a folder of classes: replace-one does not protect labels here, for with "
        "another label a row has another id, and perhaps another shard; add-remove does (docs/privacy.md)"
    ]


def _of_other_bases(store: FeatureStore, settings: Settings, wanted: Sequence[Shard]) -> list[str]:
    """Models around another base point than the recipe's; RecipeError where private components would be so."""
    asked = settings.base.digest, settings.train
    objects = store.objects()
    plain = [name for name in orphans(store, settings) if PRIVATE not in objects[name].meta]
    private = [
        name
        for name, ref in objects.items()
        if PRIVATE in ref.meta and (ref.meta["base_digest"], ref.meta.get("train", asked[1])) != asked
    ]
    renewed = [component_of(shard.name) for shard in wanted]
    if left := [name for name in private if is_component(name) and name not in renewed]:
        raise RecipeError(
            f"other [tangent] settings would leave {', '.join(left)} around another base point, or over other "
            "parameters",
            got=f"base {settings.base.digest[:16]}, train = {settings.train!r}",
            do="train all shards together, without --shard, or keep the store's [tangent] section",
        )
    return [*plain, *(name for name in private if not is_component(name))]


def _void(store: FeatureStore, shards: Sequence[str]) -> list[str]:
    """Models made without noise from the rows of ``shards``, or from components so made."""
    objects = store.objects()
    plain = {name: meta_of(ref.meta) for name, ref in objects.items() if is_model(name) and PRIVATE not in ref.meta}
    digests = {shard.digest for shard in store.shards if shard.name in shards}
    own = {component_of(name) for name in shards}
    solved = {
        n for n, m in plain.items() if m.members is None and (n in own | {HEAD, EXACT} or digests & {*m.row_digests})
    }
    noisy = {name: ref.digest for name, ref in objects.items() if PRIVATE in ref.meta}

    def tells(name: str, digest: str) -> bool:
        return name in solved or (name in own and noisy.get(name) != digest)

    return [
        *solved,
        *(n for n, m in plain.items() if m.members and any(tells(*member) for member in m.members.items())),
    ]


def _check_settings(store: FeatureStore, recipe: Recipe, tuning: Tuning) -> None:
    """Settings with which no training is private, or none can choose; the errors are those of ``train_private``."""
    rates = ", ".join(f"{rate:g}" for rate in tuning.rates) or "none"
    if not tuning.rates or not all(0 < rate < inf for rate in tuning.rates):
        raise RecipeError(
            "a multiple of the learning rate is not a number above 0",
            got=f"rates: {rates}",
            do="--rate 0.3 --rate 1, or rates=[0.3, 1.0]",
        )
    if not tuning.charged and len(tuning.rates) == 1:
        raise RecipeError(
            "cannot leave tuning uncharged: a single rate is not tuned",
            got=f"uncharged, rates: {rates}",
            do="leave --uncharged out, or name several rates",
        )
    if recipe.privacy.mechanism == "least-squares" and len(tuning.rates) > 1:
        raise RecipeError(
            "cannot choose a learning rate: least-squares has none, and every trial would add noise",
            got=f"rates: {rates}",
            do="leave the rates out",
        )
    if recipe.compose.mode == "exact":
        raise RecipeError(
            "a model solved over the rows of private components would not be private",
            got='compose.mode = "exact"',
            do='set compose.mode = "mean"',
        )
    kind, shards = store.manifest.plan["kind"], store.manifest.plan["shards"]
    if kind == "balanced" and shards > 1 and recipe.privacy.relation == "add-remove":
        raise RecipeError(
            "in a balanced plan one row more or less moves others to other shards, which add-remove does not cover",
            got=f'store.plan = "balanced" with {shards} shards, privacy.relation = "add-remove"',
            do='set privacy.relation = "replace-one", or extract with store.plan = "hash"',
        )
    if len(tuning.rates) > 1 and store.held_out is None:
        raise StoreError(
            f"{store.path} has no held-out rows to choose a learning rate by",
            got=f"{len(tuning.rates)} rates",
            do="extract with data.test",
        )


def _put_settings(change: Transaction, store: FeatureStore, work: _Work, plan: dict[str, Any]) -> None:
    """The settings, and ``plan`` with the fixed promise; and out with the models that are void beside it."""
    record_recipe(change, store, work.settings.recipe)
    change.update(plan=plan | {PLAN: work.promise.as_dict()})
    objects = store.objects()
    for name in work.dropped:  # once: a component of that name may have been made since
        if name in objects and not (is_component(name) and PRIVATE in objects[name].meta):
            change.drop(name)


def _put(
    change: Transaction, store: FeatureStore, work: _Work, shard: Shard, component: Component, signer: Signer | None
) -> None:
    """A component, what its key stands for, and what it cost."""
    name, statement = component_of(shard.name), Statement.from_dict(component.meta[PRIVATE])
    said = after(statement, work.spent[shard.name], shard.name in work.uncharged_before).as_dict()
    component = replace(component, meta={**component.meta, PRIVATE: said})
    _put_settings(change, store, work, plan_with(store, [shard.name]))
    put_component(change, name, component)
    put_keys(change, store, {component.meta["key"]: private_key(work.settings, shard, work.tuning)}, lost=[name])
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
    if work.uncharged:
        entry["uncharged"] = msgspec.to_builtins(work.uncharged)
    change.record(signed(store, entry, signer))


def private_key(settings: Settings, shard: Shard, tuning: Tuning) -> str:
    """Rows and settings of a private component, as text: with equal ones there is nothing to spend again."""
    values = recipe_values(settings.recipe)
    decisive = {
        "base": settings.base.digest,
        "rows": [shard.digest],
        "train": settings.train,
        "objective": values["objective"],
        "privacy": {k: v for k, v in values["privacy"].items() if k != "budget"},
        "tuning": [*tuning.rates, tuning.charged],
    }
    return deciding(json.dumps(decisive, sort_keys=True))


def private_component(
    store: FeatureStore,
    settings: Settings,
    shard: Shard,
    tuning: Tuning,
    progress: Progress,
) -> Component:
    """Train on one shard's rows, once for each rate: the best component, its privacy statement in ``meta``."""
    recipe, base, rates = settings.recipe, settings.base, tuning.rates
    device = float64_device(recipe.device)  # for sums of integers
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
                runs=tuning.runs,
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
        statement = msgspec.structs.replace(result.statement, tuning=_said_of(tuning))
    meta = {
        "kind": "component",
        "train": settings.train,
        "shards": [shard.name],
        "rows": result.stats.rows_said,
        "key": new_key(),
        "stats": msgspec.to_builtins(result.stats),
        "norm": result.delta.norm().item(),
        PRIVATE: statement.as_dict(),
    }
    return Component(base.digest, layout, result.delta, meta)


def _said_of(tuning: Tuning) -> str:
    """What a component's statement says of how its learning rate was chosen."""
    how = "all of them are charged" if tuning.charged else "NOT charged: epsilon is that of one training"
    return f"the best of {len(tuning.rates)} learning rates {BY_HELD_OUT}, which are not covered; {how}"


def private_loss(recipe: Recipe, classes: int) -> Loss:
    """The loss that ``privacy.loss`` names."""
    if recipe.privacy.loss == "rsl":
        return RSL(alpha=true_class_weight(recipe.objective.alpha, classes), kappa=recipe.objective.kappa)
    return CrossEntropy()
