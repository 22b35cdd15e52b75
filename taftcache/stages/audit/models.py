"""Check that every component and model was made from the rows in the store, and that what it says of itself is true."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from taftcache.cache.format.manifest import CURVE
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import CompositionError, FormatError, RecipeError, StoreError, StoreUnreachable
from taftcache.model.component import Component, StoredComponents, read_component
from taftcache.model.composition import compose
from taftcache.model.members import imported, subtracted
from taftcache.model.meta import meta_of, of_each_class
from taftcache.model.outdated import differs_by_rows, outdated, stale_parts
from taftcache.names import (
    BASE,
    COMPONENTS,
    MEAN,
    PRIVATE,
    WEIGHTED,
    is_component,
    is_model,
    shard_of,
    typed,
)
from taftcache.privacy.budget import weak_promise
from taftcache.privacy.statement import Statement, kept_note
from taftcache.stages.forget.certificates import CheckedCertificate, check_certificate
from taftcache.stages.forget.chain import entries_of, left_since, training_of
from taftcache.stages.forget.finding import FindingKind, Findings
from taftcache.stages.forget.receipts import may_have_lost_rows
from taftcache.stages.progress import Progress, numbered
from taftcache.stages.train.checks import STAYS
from taftcache.stages.train.compositions import weights_of
from taftcache.stages.train.outdated import train_options
from taftcache.stages.train.private.claims import NOT_ALL, claim_problems
from taftcache.stages.train.private.records import KEYS
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.trained_on import member_rows
from taftcache.tangent.spec import TAIL

CLOSER = 1.01  # a recorded bound that is closer by this factor deserves a note


def check_models(store: FeatureStore, progress: Progress, to: Findings) -> dict[str, CheckedCertificate]:
    """Check all that was made from the rows. Returns, by component, its certificate, recorded and proven now."""
    if TAIL not in store.objects():  # imported rows without a backbone: nothing can have been made from them
        return {}
    try:
        settings = settings_of(store)
    except (FormatError, RecipeError) as error:
        to.found("description", TAIL, f"nothing that was trained can be checked: {error.fault}", error.do)
        return {}
    shards = {shard.name: shard for shard in store.shards}
    metas = _metas(store, settings, to)
    components = StoredComponents(store, metas, settings.base)  # reads one at a time: all may not fit into memory
    old = outdated(store, settings.keys)
    again = f"taftcache train {typed(store.path)}{train_options(store, settings.keys)}"
    private = _private(store, metas, old, to)
    keys = _keys(store, settings, to)
    behind = _behind(store, settings, old, keys)
    _origins(store, shards, {*private, *keys}, to)
    if behind:
        to.notes.append(
            f"not trained yet on the rows that were added: {', '.join(behind)}; no request took a row from what they "
            f"say they were made from, which nothing proves until they are trained; next: {again}"
        )
    if there := imported(store):
        to.notes.append(f"{STAYS}: {', '.join(there)}")
    checked: dict[str, CheckedCertificate] = {}
    for name, label in zip(components, numbered([*components]), strict=True):
        if name in private:  # with its noise it is no optimum, and its rows may have been forgotten since
            continue
        if name in old and name not in behind:
            kind: FindingKind = "stale composition" if name in (MEAN, WEIGHTED) else "stale component"
            problem = "it was not made from the rows, components and settings that are there"
            summed = kind == "stale composition" and not stale_parts(store, settings.keys)
            to.found(kind, name, problem, f"taftcache compose {typed(store.path)}" if summed else again)
        elif name in (MEAN, WEIGHTED):
            _check_sum(name, components, store, to)
        elif name in keys and name not in behind:
            component, sources = components[name], [shards[shard_of(name)]] if is_component(name) else store.shards
            _check_rows(name, component, sources, to)
            with progress.task(f"certify {label}", None):
                try:
                    checked[name] = check_certificate(name, component, settings, sources, to)
                except StoreUnreachable:
                    raise
                except StoreError as error:
                    to.found("certificate", name, error.fault)
    if looser := looser_than_recorded(checked):
        to.notes.append(
            f"{', '.join(looser)}: the recorded bound is closer than the one shown, for it rests on dual vectors, "
            "which only models/exact keeps, and a solve by this version on this machine ends with other bytes; nothing "
            "contradicts it"
        )
    return checked


def looser_than_recorded(certificates: Mapping[str, CheckedCertificate]) -> list[str]:
    """Components whose recorded bound is closer than the one that was proven."""
    return [name for name, c in certificates.items() if c.distance_bound > CLOSER * c.distance_recorded]


def _behind(store: FeatureStore, settings: Settings, old: Sequence[str], keys: Mapping[str, str]) -> list[str]:
    """Those of the ``old`` that only lack rows added since: no request took a row from them, so they break no promise.

    Which rows they were made from is taken from their own description: once other rows have been added, it cannot be
    proven.
    """
    objects = store.objects()

    def lacks_rows(name: str) -> bool:
        meta = meta_of(objects[name].meta)
        now = store.shard(shard_of(name)).rows if is_component(name) else sum(shard.rows for shard in store.shards)
        grown = meta.rows is not None and meta.rows < now and differs_by_rows(meta, keys[name])
        return grown and not may_have_lost_rows(store, meta.row_digests)

    single = [name for name in old if name in keys and name not in (MEAN, WEIGHTED) and lacks_rows(name)]
    whole = all(part in single or part not in objects for part in stale_parts(store, settings.keys))
    sums = [n for n in old if n in (MEAN, WEIGHTED) and whole and objects[n].meta.get("key") == keys.get(n)]
    return [name for name in old if name in {*single, *sums}]


def _metas(store: FeatureStore, settings: Settings, to: Findings) -> dict[str, dict[str, Any]]:
    """The description in the file of each component and model, if it was made around the settings' base point. A
    finding if the manifest describes it differently."""
    metas: dict[str, dict[str, Any]] = {}
    for name, ref in store.objects().items():
        if not is_model(name):
            continue
        if ref.meta.get("base_digest") != settings.base.digest:
            to.found("base point", name, "it was made around another base point than the settings give")
            continue
        try:
            there = dict(store.meta(name))
            digest = there.pop("base_digest")
            component = read_component(store, name, settings.base)
        except StoreError as error:  # verify has said it where bytes are damaged
            to.found("damage", name, error.fault)
            continue
        metas[name] = component.meta
        if CURVE not in there:  # a repair leaves out a damaged curve
            component.meta.pop(CURVE, None)
        if (component.base_digest, component.meta) != (digest, there):
            private = PRIVATE in there or PRIVATE in component.meta
            odd = sorted(
                {k for k in there.keys() | component.meta.keys() if there.get(k) != component.meta.get(k)}
                | ({"base_digest"} if component.base_digest != digest else set())
            )
            problem = f"its file does not say of it what the manifest says: {', '.join(odd)}"
            to.found("privacy statement" if private else "description", name, problem)
    return metas


def _origins(store: FeatureStore, shards: Mapping[str, Shard], known: Collection[str], to: Findings) -> None:
    """Check that each object says that it was made from rows in the store; the key of the ``known`` ones shows it."""
    rows = {shard.digest for shard in shards.values()}
    for name, ref in store.objects().items():
        if name.startswith(BASE) or name == KEYS or ref.meta.get("imported"):
            continue
        own = shards.get(shard_of(name)) if is_component(name) else None
        if is_component(name) and own is None:
            to.found("kept component", name, "the store has no shard of that name")
        elif own is not None and own.name in subtracted(store):
            to.found("kept component", name, "its shard was subtracted")
        elif name not in known and not _made_from(ref.meta, rows):
            to.found("stale object", name, "it does not say that it was made from the rows that are there")


def _keys(store: FeatureStore, settings: Settings, to: Findings) -> dict[str, str]:
    """The key that each component and model would have if it were made now, by name; a finding if it could not be."""
    keys: dict[str, str] = {}
    for name in store.objects():
        try:
            if (key := settings.keys.of(store, name)) is not None:
                keys[name] = key
        except StoreUnreachable:
            raise
        except StoreError as error:  # a teacher of its prior is gone, may not be opened, or lacks a row
            problem = f"it cannot be proven: {error.fault}" + (f" ({error.got})" if error.got else "")
            to.found("teacher", name, problem, error.do)
    return keys


def _private(
    store: FeatureStore, components: Mapping[str, Mapping[str, Any]], old: Collection[str], to: Findings
) -> set[str]:
    """The components that were trained privately; checks that each promise follows from its noise and is in the ledger,
    and notes those whose shards have lost rows since.

    The manifest's description and the file's are both checked: the file is what leaves the store. An ``old``
    composition repeats the promises of its members, which may have been trained again since. That needs no finding
    here: `check_models` reports the composition as stale, and composing again cures both.
    """
    names = {n for n, ref in store.objects(COMPONENTS).items() if PRIVATE in ref.meta}
    entries = entries_of(store) if names else []
    for name, said in sorted(components.items()):
        there = store.meta(name)
        metas = [there] if said.items() <= there.items() else [there, said]
        for problem in dict.fromkeys(problem for meta in metas for problem in claim_problems(store, meta)):
            if name not in old or problem == NOT_ALL:
                to.found("privacy statement", name, problem)
        if name in names and not _is_entry(training_of(entries, name), there):
            to.found("privacy statement", name, "the ledger does not have what its training released")
        elif name in names and (left := left_since(entries, name)):
            with suppress(FormatError):  # a finding of its own
                to.notes.append(f"{name}: {kept_note(there, left)}")
    to.notes.extend(_weak([components[name] for name in sorted(names & components.keys())]))
    return names


def _weak(metas: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes if private components promise little for as many rows as their releases make public."""
    with suppress(FormatError):  # a finding of its own
        claims = [meta for meta in metas if isinstance(meta.get(PRIVATE), Mapping)]
        said = [(Statement.from_dict(meta[PRIVATE]), meta_of(meta).rows or 0) for meta in claims]
        if held := [(s.epsilon, s.delta, rows) for s, rows in said if s.private]:
            epsilons, deltas, rows = zip(*held, strict=True)
            return weak_promise(max(epsilons), max(deltas), sum(rows))
    return []


def _is_entry(entry: Mapping[str, Any] | None, meta: Mapping[str, Any]) -> bool:
    """Whether a ledger entry records the training that made a component, with the same noise and tuning."""
    said = meta[PRIVATE]
    if entry is None or not isinstance(said, Mapping):
        return False
    told = {key: entry.get(key, said.get(key)) for key in ("private", "tuning")}
    told |= {key: entry.get(key) for key in ("releases", "shards")}
    return all(said.get(key) == value for key, value in told.items()) and meta.get("shards") == told["shards"]


def _check_sum(name: str, components: StoredComponents, store: FeatureStore, to: Findings) -> None:
    """Check that a composition is the sum of its members with its coefficients, that a mean has those of a mean, and
    that coefficients of each class follow from the members' rows."""
    total = components[name]
    mu = total.record.coefficients or {}
    if not mu.keys() <= components.keys():
        return
    rows: Mapping[str, list[int] | None] = {}
    try:
        again = compose(components.of(mu), None if name == MEAN else mu)
        if of_each_class(mu):
            rows = member_rows("class-rows", components.of(mu).metas(), store.shards, len(store.classes))
    except StoreUnreachable:
        raise
    except (CompositionError, StoreError) as error:
        to.found("stale composition", name, error.fault)
        return
    if not (again.delta - total.delta).abs().max() <= 1e-12 * total.delta.abs().max():
        to.found("stale composition", name, "it is not the sum of its members")
    if again.record.coefficients != mu:
        to.found("stale composition", name, "its coefficients are not those of a mean")
    if rows and (None in rows.values() or weights_of("class-rows", rows) != mu):
        to.found("stale composition", name, "its coefficients are not its members' shares of the rows of each class")


def _check_rows(name: str, component: Component, sources: list[Shard], to: Findings) -> None:
    """Check that a component names the shards that it was made from, and the number of their rows."""
    of = [shard.name for shard in sources], sum(shard.rows for shard in sources)
    if (component.meta.get("shards"), component.meta.get("rows")) != of:
        to.found("description", name, "its shards and rows are not those that it was made from")


def _made_from(meta: Mapping[str, Any], rows: set[str]) -> bool:
    """Whether an object's key names shards by digest, and only those that are there."""
    try:
        named = set(meta_of(meta).row_digests)
    except (FormatError, TypeError):
        return False
    return bool(named) and named <= rows
