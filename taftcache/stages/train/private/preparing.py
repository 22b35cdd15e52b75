"""Plan a private training, and refuse whatever must be refused, before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import RecipeError, StoreError
from taftcache.model.meta import meta_of
from taftcache.names import EXACT, HEAD, PRIVATE, component_of, is_component, is_model
from taftcache.privacy.budget import Promise, charge, check_delta, held_to, spent_before, weak_promise
from taftcache.privacy.spec import Relation
from taftcache.privacy.trainer import check_trained, plan
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.train.checks import left_behind, orphans
from taftcache.stages.train.private.records import charges_of, deciding, is_current, read_keys
from taftcache.stages.train.promises import with_noise
from taftcache.stages.train.record import wanted_shards
from taftcache.stages.train.settings import Settings

# Of a mean gradient of norm C; "auto" takes 3000 at most, for one step along features of norm 1 (``MOST_LOGIT``).
LONGEST_STEP = 1e6
_ALWAYS = "digits/"  # ids of scikit-learn's digits, a data set that nobody leaves
_ROW_NUMBER = re.compile(r"(.*/)?\d{4,}")  # how sources number rows that have no id


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a call is going to do, once all checks have passed.

    ``rates``: multiples of the recipe's learning rate; with several, each is tried, the promise is about all of them
    together, and the best on the held-out rows is kept. ``spent``: ε of each shard to train once it is trained.
    ``notes``: what the promise does not say.
    """

    settings: Settings
    rates: Sequence[float]
    wanted: list[Shard]
    todo: list[Shard]
    dropped: list[str]
    promise: Promise
    spent: dict[str, float]
    notes: list[str]


def prepare(
    store: FeatureStore, settings: Settings, shards: Sequence[str] | None, rates: Sequence[float]
) -> Preparation:
    """Check everything that may be refused, before anything is written; errors as for ``train_private``."""
    recipe, base = settings.recipe, settings.base
    spec, objects = recipe.privacy, store.objects()
    wanted = wanted_shards(store, shards)
    _check_settings(store, recipe, rates)
    planned = plan(spec, len(rates))
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
        or not is_current(keys, there.meta, private_key(settings, shard, rates))
    ]
    releases = planned.releases * len(rates)
    spent = charge(ledger, [shard.name for shard in todo], releases, promise, spent_before(others))
    return Preparation(
        settings=settings,
        rates=rates,
        wanted=wanted,
        todo=todo,
        dropped=sorted({*lost_base, *_void(store, [*(shard.name for shard in wanted), *with_noise(store)])}),
        promise=promise,
        spent=spent,
        notes=[
            *_bare_labels(store, wanted, promise.relation),
            *_moving_ids(store, promise.relation),
            *_of_rows(settings.recipe.data.group),
            *weak_promise(max(spent.values(), default=promise.epsilon), promise.delta, rows),
        ],
    )


def _bare_labels(store: FeatureStore, wanted: Sequence[Shard], relation: Relation) -> list[str]:
    """A note if ids name the classes: a row with another label has another id, which replace-one does not cover."""
    ids = ((i, store.classes[label]) for s in wanted for i, label in zip(s.sample_ids, s.labels.tolist(), strict=True))
    if relation != "replace-one" or not all(f"/{name}/" in f"/{i}" for i, name in ids):
        return []
    return [
        "the ids name the classes, as in a folder of classes: replace-one does not protect labels here, for with "
        "another label a row has another id, and perhaps another shard; add-remove does (docs/privacy.md)"
    ]


def _of_rows(group: str | None) -> list[str]:
    """A note if rows belong together, which the promise does not know."""
    said = "the promise is for each row, not for each group of data.group: for a group of k rows it is k times epsilon"
    return [] if group is None else [f"{said}, and a larger delta (docs/privacy.md)"]


def _moving_ids(store: FeatureStore, relation: Relation) -> list[str]:
    """A note if one row more or less would move others to other shards, which add-remove does not cover."""
    data, parts = recorded_recipe(store).data, store.every_shard
    ids = [i for part in parts for i in part.sample_ids]
    if relation != "add-remove" or len(parts) < 2 or all(i.startswith(_ALWAYS) for i in ids):
        return []
    why = []
    if all(map(_ROW_NUMBER.fullmatch, ids)):
        why.append("the ids look like numbers of rows in a file")
    if data.limit is not None:
        why.append("data.limit chose the images")
    if not why:
        return []
    return [
        f"{' and '.join(why)}: with one row less, others would be in other shards or held out, which add-remove does "
        'not cover; privacy.relation = "replace-one" does, and so do ids of the samples\' own (docs/privacy.md)'
    ]


def _of_other_bases(store: FeatureStore, settings: Settings, wanted: Sequence[Shard]) -> list[str]:
    """Models around another base point than the recipe's; RecipeError if private components would be left there."""
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
        raise left_behind(left, f"base {settings.base.digest[:16]}, train = {settings.train!r}")
    return [*plain, *(name for name in private if not is_component(name))]


def _void(store: FeatureStore, shards: Sequence[str]) -> list[str]:
    """Models made without noise from the rows of ``shards``, and compositions of components made that way."""
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


def _check_settings(store: FeatureStore, recipe: Recipe, rates: Sequence[float]) -> None:
    """Refuse settings with which training is not private or chooses no rate; errors as for ``train_private``."""
    named = ", ".join(f"{rate:g}" for rate in rates) or "none"
    if not rates or not all(0 < rate < inf for rate in rates):
        raise RecipeError(
            "a multiple of the learning rate is not a number above 0",
            got=f"rates: {named}",
            do="--rate 0.3 --rate 1, or rates=[0.3, 1.0]",
        )
    spec = recipe.privacy
    step = max(rates) * (1.0 if spec.learning_rate == "auto" else spec.learning_rate * spec.clip)
    if step > LONGEST_STEP:
        raise RecipeError(
            "the learning rate is so large that nothing is learned, and all of epsilon would be spent for it",
            got=f"privacy.learning_rate = {spec.learning_rate!r}, clip = {spec.clip:g}, rates: {named}",
            do='privacy.learning_rate = "auto", with --rate between 0.1 and 10',
        )
    if recipe.privacy.mechanism == "least-squares" and len(rates) > 1:
        raise RecipeError(
            "cannot choose a learning rate: least-squares has none, and every trial would add noise",
            got=f"rates: {named}",
            do="leave the rates out",
        )
    if recipe.compose.mode == "exact":
        raise RecipeError(
            "a model solved over the rows of private components would not be private",
            got='compose.mode = "exact"',
            do='set compose.mode = "mean"',
        )
    if recipe.compose.mode == "weighted" and recipe.compose.weights == "class-rows":
        raise RecipeError(
            "private components cannot be weighed by their rows of each class, which they never say",
            got='compose.weights = "class-rows"',
            do='set compose.weights = "rows", or compose.mode = "mean"',
        )
    kind, shards = store.manifest.plan["kind"], store.manifest.plan["shards"]
    if kind == "balanced" and shards > 1 and recipe.privacy.relation == "add-remove":
        raise RecipeError(
            "in a balanced plan one row more or less moves others to other shards, which add-remove does not cover",
            got=f'store.plan = "balanced" with {shards} shards, privacy.relation = "add-remove"',
            do='set privacy.relation = "replace-one", or extract with store.plan = "hash"',
        )
    if len(rates) > 1 and store.held_out is None:
        raise StoreError(
            f"{store.path} has no held-out rows to choose a learning rate by",
            got=f"{len(rates)} rates",
            do="extract with data.test",
        )


def private_key(settings: Settings, shard: Shard, rates: Sequence[float]) -> str:
    """The rows and settings of a private component, as text: while they are equal, nothing is spent again."""
    values = recipe_values(settings.recipe)
    decisive = {
        "base": settings.base.digest,
        "rows": [shard.digest],
        "train": settings.train,
        "objective": values["objective"],
        "privacy": {k: v for k, v in values["privacy"].items() if k != "budget"},
        "tuning": [*rates, True],  # True once meant that all are charged; without it, all would be trained again
    }
    return deciding(json.dumps(decisive, sort_keys=True))
