"""What a store holds, from its manifests and a sample of rows, instantly at any size."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from taftcache.cache.format.fault import DAMAGE
from taftcache.cache.format.ledger import KEY_FILE
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.sweep import unfinished
from taftcache.consent import recorded_recipe
from taftcache.errors import FormatError, StoreError, TaftcacheError
from taftcache.model.meta import key_parts
from taftcache.names import counted, first_few, is_component, is_model, readable_size, resized_notes, typed
from taftcache.recipe import Recipe, recipe_values, stored_at
from taftcache.stages.completeness import is_complete, still_missing, subtracted_notes, unsolved_notes, untrained_notes
from taftcache.stages.estimators import lacks_classes, regressor_note
from taftcache.stages.extract.classes import absent_notes, unlearned_notes
from taftcache.stages.look.inside.shards import ShardFigures, describe_model, describe_shard, outdated_recorded
from taftcache.stages.look.inside.statistics import Activations, activations
from taftcache.stages.look.vectors import cut_of
from taftcache.stages.report import Report
from taftcache.stages.train.private.records import Budget, budget_of
from taftcache.tangent.spec import TAIL

T = TypeVar("T")
MISSING = 10  # missing files that are named
LEFT_OUT = 1000  # skipped samples that are named: a store may have millions


@dataclass(frozen=True, kw_only=True)
class Integrity:
    """What was looked at; bytes are verified when they are read, and all of them by ``taftcache verify``.

    files: how many the manifests name, which are verified: those of shards, objects, lists and the ledger, and the
    tombstones' key. missing: those that are not there (of entries of the ledger, the numbers). text: the same in words.
    """

    files: int
    missing: list[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class InspectReport(Report):
    """A store's contents in JSON types.

    rows: training rows. held_out_rows: held-out rows. classes: their names; none for a regressor's images.
    rows_per_class: training rows, by class. cut: where the network is cut, and the shape of a row. tangent: how the
    tail's derivative is computed, and why. dtype: the rows' dtype. identity: what decided the rows' bytes: backbone,
    cut, preprocessing (with the values that a recipe leaves to timm), libraries. plan: how samples are split into
    shards. shards: those of held-out rows, too. models: components and compositions: name, digest, certificate and how
    each was solved, or that it was imported; of a sum its coefficients, or if it has some for each class, the number of
    its members. activations: statistics; None if none can be read. integrity: which files were looked at. skipped:
    samples that were left out. left_out: the first thousand of those, with id, shard and reason. forgotten: tombstones,
    one for each sample, class, shard and group that was forgotten, and two for each component; 0 once their key is
    destroyed, whatever the receipts say. ledger_entries: how many. ledger: the entries. budget: what private trainings
    may spend and have spent; None if there were none. recipe: what the store was made from and last trained with, as it
    records it; ``store.path`` is its place. Empty if this release does not know its settings.
    """

    store: Path
    root_digest: str
    bytes: int
    rows: int
    held_out_rows: int
    classes: list[str]
    rows_per_class: dict[str, int]
    cut: dict[str, Any]
    tangent: dict[str, str]
    dtype: str
    identity: dict[str, Any]
    plan: dict[str, Any]
    shards: list[ShardFigures]
    models: list[dict[str, Any]]
    activations: Activations | None
    integrity: Integrity
    skipped: int
    left_out: list[dict[str, str]]
    forgotten: int
    ledger_entries: int
    ledger: list[dict[str, Any]]
    budget: Budget | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@at_its_place()
def inspect(store: Place) -> InspectReport:
    """Shards, classes, fingerprints, components, certificates, activations, integrity and the ledger's entries."""
    assert isinstance(store, FeatureStore)
    report, damage = inspect_intact(store)
    if damage:
        raise damage[0]
    return report


def inspect_intact(store: FeatureStore) -> tuple[InspectReport, list[StoreError]]:
    """The report of ``inspect`` from what can be read, and the errors of the files that are damaged.

    What a damaged file holds is missing: activations, ledger entries, names of skipped samples, or a solve's curve.
    """
    shards, per_class = [], Counter[int]()
    damage = list[StoreError]()

    def read(part: Callable[[], T], otherwise: T) -> T:
        try:
            return part()
        except DAMAGE as error:
            damage.append(error)
            return otherwise

    budget, unknown = _budget(store)
    recipe, unread = _recipe(store)
    tail = store.objects().get(TAIL)
    classes = [] if lacks_classes(store) else store.classes
    for ref in store.manifest.shards:
        shard = store.shard(ref.name)
        shards.append(describe_shard(shard, store.classes))
        if ref.role == "train":
            per_class.update(shard.statistics["rows_per_class"])
    report = InspectReport(
        store=store.path,
        root_digest=store.root_digest,
        bytes=store.nbytes,
        rows=sum(s.rows for s in shards if s.role == "train"),
        held_out_rows=sum(s.rows for s in shards if s.role != "train"),
        classes=classes,
        rows_per_class={name: per_class[k] for k, name in enumerate(classes)},
        cut=cut_of(store),
        tangent={} if tail is None else {k: tail.meta.get(k, "not said") for k in ("path", "why")},
        dtype=store.identity["dtype"],
        identity=store.identity,
        plan=store.manifest.plan,
        shards=shards,
        models=[
            describe_model(name, ref, read(ref.whole_meta, ref.meta))
            for name, ref in store.objects().items()
            if is_model(name)
        ],
        activations=read(lambda: activations(store), None) if shards else None,
        integrity=look_at_files(store),
        skipped=len(store.manifest.skipped),
        left_out=read(lambda: _left_out(store), []),
        forgotten=len(store.manifest.tombstones),
        ledger_entries=store.manifest.ledger.entries if store.manifest.ledger else 0,
        ledger=read(lambda: _entries(store), []),
        budget=budget,
        recipe=recipe,
        notes=[
            *resized_notes(store.identity),
            *regressor_note(store),
            *still_missing(store),
            *subtracted_notes(store),
            *untrained_notes(store),
            *unlearned_notes(store),
            *absent_notes(store),
            *unsolved_notes(store, private=budget is not None),
            *outdated_recorded(store),
            *_stopped(store),
            *unknown,
            *unread,
        ],
    )
    return report, damage


@at_its_place()
def inspect_recipe(store: Place) -> Recipe:
    """The recipe that a store was made and last trained with, as it records it; ``store.path`` is the store's place.

    What it names is only the store's word: ``run`` and ``extract`` with it open these images and weights, and go on in
    this store.

    Raises:
        FormatError: it has settings that this release does not know.
    """
    assert isinstance(store, FeatureStore)
    return stored_at(store.place, recorded_recipe(store))


def other_settings(store: FeatureStore) -> dict[str, dict[str, list[str]]]:
    """Settings other than those that the store records, by key: "objective.ridge" -> {"0.01": names of what was made
    with that}."""
    recipe = recorded_recipe(store)
    values = recipe_values(recipe) | {"tangent": {"train": recipe.tangent.train}}
    found: dict[str, dict[str, list[str]]] = {}
    for name, ref in store.objects().items():
        made = key_parts(ref.meta.get("key"))
        said = made | ({"tangent": {"train": made["train"]}} if is_component(name) and "train" in made else {})
        for section in ("tangent", "objective", "prior", "solver"):
            for key, value in dict(said.get(section, {})).items():
                if key in values[section] and values[section][key] != value:
                    found.setdefault(f"{section}.{key}", {}).setdefault(json.dumps(value), []).append(name)
    return found


def _left_out(store: FeatureStore) -> list[dict[str, str]]:
    skipped = islice(store.manifest.skipped, LEFT_OUT)
    return [{"sample": s.id, "shard": s.shard, "reason": s.reason} for s in skipped]


def _entries(store: FeatureStore) -> list[dict[str, Any]]:
    fields = ("seq", "time", "event", "mode", "samples", "classes_removed", "destroyed")
    return [{k: e[k] for k in fields if k in e} for e in store.ledger()]


def _budget(store: FeatureStore) -> tuple[Budget | None, list[str]]:
    """The budget of private trainings; or a note on why it is not known."""
    try:
        return budget_of(store), []
    except TaftcacheError as error:
        return None, [f"what private trainings have spent is not known: {error.fault}"]


def _stopped(store: FeatureStore) -> list[str]:
    """A note on the work of a command that was stopped in a store that has all its shards, unless one is at work."""
    paths = unfinished(store.staging)
    if not paths or not is_complete(store) or store.is_written:
        return []
    names, size = [path.removeprefix("staging/") for path in paths], sum(map(store.staging.size, paths))
    return [
        f"a command was stopped at {first_few(names)}: run it again, and it goes on from there; or, to remove what it "
        f"left ({readable_size(size)}): taftcache gc {typed(store.path)} --unfinished"
    ]


def _recipe(store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
    """The values of the recorded recipe; or none, and a note on why they are not known."""
    try:
        return recipe_values(inspect_recipe(store)), []
    except TaftcacheError as error:
        return {}, [f"the recipe is not known: {error.fault}"]


def look_at_files(store: FeatureStore) -> Integrity:
    """Whether the files that the manifests name are there; reads none of them."""
    manifest = store.manifest
    named = manifest.files()
    for ref in manifest.shards:
        named.remove(ref.path)
        named |= {f"{ref.path}/{name}" for name in store.shard(ref.name).manifest.objects}
    there = {path for folder in {path.partition("/")[0] for path in named} for path in _below(store, folder)}
    if manifest.tombstone_key:
        named.add(KEY_FILE)
        there |= {KEY_FILE} if store.root.exists(KEY_FILE) else set()
    # an entry's digest is in the one after it, which is not read here
    named |= {f"ledger/{seq + 1:06d}-*.json" for seq in range(manifest.ledger.entries if manifest.ledger else 0)}
    there |= {f"{path.partition('-')[0]}-*.json" for path in _below(store, "ledger")}
    missing = sorted(named - there)
    count = counted(len(named), "file")
    said = f"{len(missing)} of {count} missing" if missing else f"{count} there"
    text = f"manifests verified, {said}; every byte: taftcache verify"
    return Integrity(files=len(named), missing=missing[:MISSING], text=text)


def _below(store: FeatureStore, folder: str) -> list[str]:
    """The files below one of the store's folders: none if a file or a link is in its place."""
    try:
        return [*store.root.walk(folder)]
    except FormatError:
        return []
