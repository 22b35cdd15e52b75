"""What a store holds: from its manifests, and activations from a sample of rows. Instant at any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from taftcache.cache.format.fault import DAMAGE, intact
from taftcache.cache.format.manifest import ObjectRef
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import ArgumentError, FormatError, StoreError, TaftcacheError, local_path
from taftcache.model.component_file import read_header
from taftcache.model.meta import checked, meta_of, of_each_class
from taftcache.names import PRIVATE, STATED, component_of, counted, is_component, is_model, shard_of
from taftcache.recipe import Recipe
from taftcache.stages.completeness import still_missing, subtracted, subtracted_notes
from taftcache.stages.estimators import lacks_classes, regressor_note
from taftcache.stages.look.row_table import Sample, every_sample, no_class
from taftcache.stages.look.statistics import Activations, activations
from taftcache.stages.look.vectors import cut_of
from taftcache.stages.train.private.records import Budget, budget_of, read_keys
from taftcache.stages.train.untrained import untrained_notes
from taftcache.tangent.spec import TAIL

# What a report about rows says if their shard's component is private.
UNCOVERED = "its promise bounds what it holds of any sample, but does not cover what is shown of the row itself"
UNPROVEN = "this is what the file says of itself, and nothing was checked: taftcache audit proves it where its rows are"
# The keys of a model's meta that are listed.
LISTED = (
    "base_digest",
    "norm",
    "rows",
    "converged",
    "status",
    "certificate",
    "stats",
    "convergence",
    "coefficients",
    "ridge_choice",
    PRIVATE,
    STATED,
)
T = TypeVar("T")
Saw = Literal["yes", "perhaps"]
NAMED = 10  # how many samples of a shard or a class, and how many missing files, are named
LEFT_OUT = 1000  # skipped samples that are named: a store may have millions


@dataclass(frozen=True, kw_only=True)
class Integrity:
    """What was looked at; bytes are verified when they are read, and all of them by ``taftcache verify``.

    files: how many the manifests name, which are verified. missing: those that are not there. text: the same in words.
    """

    files: int
    missing: list[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class InspectReport:
    """A store's contents in JSON types.

    rows: training rows. held_out_rows: held-out rows. classes: their names; none for a regressor's images.
    rows_per_class: training rows, by class. cut: where the network is cut, and the shape of a row. tangent: how the
    tail's derivative is computed, and why. dtype: the rows' dtype. identity: what decided the rows' bytes: backbone,
    cut, preprocessing, libraries. plan: how samples are split into shards. shards: one object each: name, role, rows,
    bytes, digest and statistics. models: components and compositions: name, digest, certificate and how each was
    solved; of a sum its coefficients, or if it has some for each class, the number of its members. activations:
    statistics; None if none can be read. integrity: which files were looked at. skipped: samples that were left out.
    left_out: the first thousand of those, with id, shard and reason. forgotten: tombstones, one for each sample, class
    and shard that was forgotten, and two for each component. ledger_entries: how many. ledger: the entries. budget:
    what private trainings may spend and have spent; None if there were none.
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
    shards: list[dict[str, Any]]
    models: list[dict[str, Any]]
    activations: Activations | None
    integrity: Integrity
    skipped: int
    left_out: list[dict[str, str]]
    forgotten: int
    ledger_entries: int
    ledger: list[dict[str, Any]]
    budget: Budget | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """One shard.

    shard: name, role, rows, bytes, digest and statistics. rows_per_class: rows, by class. activations: statistics of
    its rows. component: as in ``models`` of a store; None if there is none. first_samples: a few ids. notes: whether
    the shard was subtracted.
    """

    store: Path
    shard: dict[str, Any]
    rows_per_class: dict[str, int]
    activations: Activations
    component: dict[str, Any] | None
    first_samples: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ComponentFileReport:
    """What a component's file says of itself; nothing here proves it.

    base_digest: of its base point. tensors: shapes, by the parameter's name. said: its description. notes: that it is
    not checked.
    """

    file: Path
    bytes: int
    base_digest: str
    tensors: dict[str, list[int]]
    said: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ClassReport:
    """One class.

    rows: its training rows. held_out_rows: its held-out rows. share: its share of all training rows. shards: one object
    each: name, role, rows and share of the class. first_samples: a few ids.
    """

    store: Path
    label: str
    rows: int
    held_out_rows: int
    share: float
    shards: list[dict[str, Any]]
    first_samples: list[str]


@dataclass(frozen=True, kw_only=True)
class SampleReport:
    """One sample: where it lies, its class, statistics of its cached rows, and what every model says of it.

    row: its number in the shard, from 0. first_token_norm, mean_token_norm: norm of its first token, and mean norm of
    its tokens. max_abs: its largest absolute value. predictions: by model: class, logit of its own class, margin over
    the best other class. "base" is the untouched one; the margin is None where there is no other class. moved_bound:
    the most that forgetting it can move its shard's component. None for held-out rows, and if the component is not a
    solution of the rows. notes: what the promise of private models does not cover of all this.
    """

    sample: str
    shard: str
    row: int
    label: str
    first_token_norm: float
    mean_token_norm: float
    max_abs: float
    predictions: dict[str, dict[str, Any]]
    moved_bound: float | None
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
    tail = store.objects().get(TAIL)
    classes = [] if lacks_classes(store) else store.classes
    for ref in store.manifest.shards:
        shard = store.shard(ref.name)
        shards.append(_described(shard, store.classes))
        if ref.role == "train":
            per_class.update(shard.statistics["rows_per_class"])
    report = InspectReport(
        store=store.path,
        root_digest=store.root_digest,
        bytes=store.nbytes,
        rows=sum(s["rows"] for s in shards if s["role"] == "train"),
        held_out_rows=sum(s["rows"] for s in shards if s["role"] != "train"),
        classes=classes,
        rows_per_class={name: per_class[k] for k, name in enumerate(classes)},
        cut=cut_of(store),
        tangent={} if tail is None else {k: tail.meta.get(k, "not said") for k in ("path", "why")},
        dtype=store.identity["dtype"],
        identity=store.identity,
        plan=store.manifest.plan,
        shards=shards,
        models=[
            _model(name, ref, read(ref.whole_meta, ref.meta)) for name, ref in store.objects().items() if is_model(name)
        ],
        activations=read(lambda: activations(store), None) if shards else None,
        integrity=look_at_files(store),
        skipped=len(store.manifest.skipped),
        left_out=read(lambda: _left_out(store), []),
        forgotten=len(store.manifest.tombstones),
        ledger_entries=store.manifest.ledger.entries if store.manifest.ledger else 0,
        ledger=read(lambda: _entries(store), []),
        budget=budget,
        notes=[
            *regressor_note(store),
            *still_missing(store),
            *subtracted_notes(store),
            *untrained_notes(store),
            *unknown,
        ],
    )
    return report, damage


@at_its_place()
def inspect_recipe(store: Place) -> Recipe:
    """The recipe that a store was made and last trained with, as it records it.

    What it names is only the store's word: ``run`` and ``extract`` with it open these images and weights.

    Raises:
        FormatError: it has settings that this release does not know.
    """
    assert isinstance(store, FeatureStore)
    return recorded_recipe(store)


def _left_out(store: FeatureStore) -> list[dict[str, str]]:
    skipped = islice(store.manifest.skipped, LEFT_OUT)
    return [{"sample": s.id, "shard": s.shard, "reason": s.reason} for s in skipped]


def _entries(store: FeatureStore) -> list[dict[str, Any]]:
    return [{k: e[k] for k in ("seq", "time", "event", "mode", "samples") if k in e} for e in store.ledger()]


def _budget(store: FeatureStore) -> tuple[Budget | None, list[str]]:
    """The budget of private trainings; or a note on why it is not known."""
    try:
        return budget_of(store), []
    except TaftcacheError as error:
        return None, [f"what private trainings have spent is not known: {error.fault}"]


def look_at_files(store: FeatureStore) -> Integrity:
    """Whether the files that the manifests name are there; reads none of them."""
    named = {ref.path for ref in store.manifest.objects.values()}
    there = {path for path in named if store.root.exists(path)}
    for ref in store.manifest.shards:
        shard = store.shard(ref.name)
        named |= {f"{shard.at}/{name}" for name in shard.manifest.objects}
        there |= set(store.root.walk(shard.at))
    missing = sorted(named - there)
    count = counted(len(named), "file")
    said = f"{len(missing)} of {count} missing" if missing else f"{count} there"
    text = f"manifests verified, {said}; every byte: taftcache verify"
    return Integrity(files=len(named), missing=missing[:NAMED], text=text)


@at_its_place()
def inspect_shard(store: Place, name: str) -> ShardReport:
    """One shard: its description, balance and activations, and its component; StoreError, for an unknown shard, names
    those there are."""
    assert isinstance(store, FeatureStore)
    shard, component = store.shard(name), component_of(name)
    ref = store.objects().get(component)
    described = _described(shard, store.classes)
    return ShardReport(
        store=store.path,
        shard=described,
        rows_per_class=described["rows_per_class"],
        activations=activations(store, name),
        component=_model(component, ref, ref.whole_meta()) if ref is not None else None,
        first_samples=shard.sample_ids[:NAMED],
        notes=subtracted_notes(store, {name: shard.rows}) if name in subtracted(store) else [],
    )


def inspect_component(file: Path | str) -> ComponentFileReport:
    """What the file of a component, which ``export_component`` wrote, says of itself; its numbers are not read.

    Raises:
        FormatError: not a component, or what it says of itself cannot be read, as for an import.
    """
    file = local_path(file)
    try:
        header, shapes = read_header(file)
        checked(header.meta)
    except FormatError as error:
        do = "name a store, or a file that taftcache export-component wrote"
        raise FormatError(f"cannot look into {file}: {error.fault}", got=error.got, do=do) from error
    return ComponentFileReport(
        file=file,
        bytes=file.stat().st_size,
        base_digest=header.base_digest,
        tensors=shapes,
        said=header.meta,
        notes=[UNPROVEN],
    )


@at_its_place()
def inspect_class(store: Place, label: str) -> ClassReport:
    """One class: its rows in every shard; StoreError, for an unknown class, names similar ones."""
    assert isinstance(store, FeatureStore)
    k = _class(store, label)
    shards: list[dict[str, Any]] = []
    first: list[str] = []
    for ref in store.manifest.shards:
        shard = store.shard(ref.name)
        rows = shard.statistics["rows_per_class"].get(k, 0)
        shards.append({"name": ref.name, "role": ref.role, "rows": rows, "share": rows / shard.rows})
        if rows and len(first) < NAMED and ref.role == "train":
            first += [shard.sample_ids[row] for row in (shard.labels == k).nonzero()[0][: NAMED - len(first)]]
    rows = sum(s["rows"] for s in shards if s["role"] == "train")
    total = sum(ref.rows for ref in store.manifest.shards if ref.role == "train")
    return ClassReport(
        store=store.path,
        label=label,
        rows=rows,
        held_out_rows=sum(s["rows"] for s in shards if s["role"] != "train"),
        share=rows / max(total, 1),
        shards=shards,
        first_samples=first,
    )


@at_its_place()
def inspect_sample(store: Place, sample: str) -> SampleReport:
    """Where a sample lies, what is cached of it and what the models say; UnknownSample names similar ids."""
    assert isinstance(store, FeatureStore)
    shard, row = store.locate(sample)
    tokens = shard.tokens(slice(row, row + 1))
    wide = tokens[0].astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    label = int(shard.labels[row])
    predictions: dict[str, dict[str, Any]] = {}
    bound = None
    notes: list[str] = []
    if TAIL in store.objects():
        from taftcache.stages.look.scoring import Scorer, margins  # loads torch

        scorer = Scorer(store)
        z, changes = scorer.logits(tokens, scorer.models)
        logits = np.concatenate([z, (z + changes)[:, 0]])
        beyond = margins(logits, np.full(len(logits), label, np.int32))
        for name, of_model, margin in zip(["base", *scorer.models], logits, beyond, strict=True):
            predictions[name] = {
                "label": store.classes[int(of_model.argmax())],
                "logit": float(of_model[label]),
                "margin": None if np.isnan(margin) else float(margin),
            }
        own = component_of(shard.name)
        if shard.role == "train" and scorer.is_weighed(own):
            bound = float(scorer.moved_at_most(tokens, shard.labels[row : row + 1], own)[0])
        if scorer.is_private(own):
            notes.append(f"{own} is private: {UNCOVERED}")
    return SampleReport(
        sample=sample,
        shard=shard.name,
        row=row,
        label=store.classes[label],
        first_token_norm=float(norms[0]),
        mean_token_norm=float(norms.mean()),
        max_abs=float(np.abs(wide).max()),
        predictions=predictions,
        moved_bound=bound,
        notes=notes,
    )


def saw(store: FeatureStore, model: str, keys: Mapping[str, str] | None = None) -> dict[str, Saw]:
    """Whether a component or model was trained on the rows that each training shard has now; those that are left out
    have none that it saw.

    "perhaps": the shard was written anew since, because rows came or left or got other labels, or the solve was
    interrupted. A component keeps the digests of its shards and no ids, so nothing says which of the rows it saw. One
    from another store names no shard: it was trained on rows of that store. ``keys``: the store's ``private_keys``, for
    a caller with many models; without them they are read.
    """
    objects, keys = store.objects(), private_keys(store) if keys is None else keys
    said = meta_of(objects[model].meta)
    if said.coefficients is None:
        return _saw_itself(store, objects[model], keys)
    found: dict[str, Saw] = {}
    for member in (name for name, mu in said.coefficients.items() if mu):
        if member in objects and objects[member].digest == (said.members or {}).get(member):
            found |= _saw_itself(store, objects[member], keys)
        elif is_component(member) and store.has_shard(shard_of(member)):  # it was made again since, or is gone
            found[shard_of(member)] = "perhaps"
    return found


def private_keys(store: FeatureStore) -> dict[str, str]:
    """What the random keys of private components stand for; none where the object that says it is damaged."""
    return intact(lambda: read_keys(store)) or {}


def _saw_itself(store: FeatureStore, ref: ObjectRef, keys: Mapping[str, str]) -> dict[str, Saw]:
    """``saw`` of what is no sum."""
    said = meta_of(ref.meta)
    if PRIVATE in ref.meta:  # what its random key stands for is kept beside it
        said = msgspec.structs.replace(said, key=keys.get(said.key or ""))
    then = dict(zip(said.shards or [], said.row_digests, strict=False))
    now = {shard.name: shard.digest for shard in store.manifest.shards}
    return {name: "yes" if then.get(name) == now[name] else "perhaps" for name in said.shards or [] if name in now}


def private_parts(store: FeatureStore) -> list[str]:
    """Names of components and models that make a promise of privacy."""
    return [name for name, ref in store.objects().items() if is_model(name) and PRIVATE in ref.meta]


def private_notes(store: FeatureStore) -> list[str]:
    """What a report about rows says if the store has private parts; empty otherwise."""
    parts = private_parts(store)
    return [f"{', '.join(parts)} private: {UNCOVERED}"] if parts else []


@at_its_place()
def list_samples(store: Place, *, shard: str | None = None, label: str | None = None) -> list[Sample]:
    """All samples that can be forgotten, or those of one ``shard``, of the class ``label``.

    Training rows, held-out ones, those that extraction skipped, and those of an unfinished extraction.

    Raises:
        StoreError: no such shard or class.
    """
    assert isinstance(store, FeatureStore)
    if shard is not None and shard not in store.staged_ids():
        store.shard(shard)
    if label is not None:
        _class(store, label)
    return [s for s in every_sample(store, shard) if label in (None, s.label)]


def _class(store: FeatureStore, label: str) -> int:
    if not isinstance(label, str):
        raise ArgumentError(
            "a class must be named by its name, a text",
            got=f"{label!r}, of type {type(label).__name__}",
            do=f"{str(label)!r}" if str(label) in store.classes else "one of the store's classes",
        )
    if label not in store.classes:
        raise no_class(store, label)
    return store.classes.index(label)


def _described(shard: Shard, classes: Sequence[str]) -> dict[str, Any]:
    statistics = shard.statistics
    counts = statistics["rows_per_class"]
    return {
        "name": shard.name,
        "role": shard.role,
        "rows": shard.rows,
        "bytes": shard.nbytes,
        "dtype": shard.stored_as,
        "chunk_rows": shard.chunk_rows,
        "digest": shard.digest,
        "max_abs": statistics["max_abs"],
        "mean_token_norm": statistics["mean_token_norm"],
        "classes": len(counts),
        "fewest": min(counts.values()),
        "most": max(counts.values()),
        "rows_per_class": {classes[k]: n for k, n in counts.items()},
    }


def _model(name: str, ref: ObjectRef, meta: dict[str, Any]) -> dict[str, Any]:
    listed = {k: meta[k] for k in LISTED if k in meta}
    parts = listed.get("coefficients")
    if parts and of_each_class(parts):
        listed["coefficients"] = len(parts)  # there may be hundreds of thousands
    return {"name": name, "bytes": ref.size, "digest": ref.digest, **listed}
