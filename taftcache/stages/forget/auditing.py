"""Audit what forgetting promised: the receipts' chain, the certificates from the rows, and that nothing is left."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taftcache.cache.format import ledger
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.group import token_norm_sum
from taftcache.errors import StoreError
from taftcache.model.component import Component, read_component
from taftcache.model.composition import compose
from taftcache.names import (
    CLASS,
    COMPONENTS,
    EXACT,
    HEAD,
    MEAN,
    WEIGHTED,
    component_of,
    is_component,
    is_model,
    shard_of,
)
from taftcache.objective.problem import Problem
from taftcache.privacy.statement import EVENT, META
from taftcache.solve.inverses.class_kernel import adjoint
from taftcache.stages.forget.forgetting import forget
from taftcache.stages.forget.receipt import signed_text
from taftcache.stages.forget.signature import is_signed
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.composing import composition_key, exact_key
from taftcache.stages.train.private_claims import claim_problems
from taftcache.stages.train.private_keys import KEYS
from taftcache.stages.train.record import settings_of, subtracted
from taftcache.stages.train.settings import Settings
from taftcache.tangent.spec import TAIL

# What another order of the same float64 sums may change: of the recorded norm, and of its scale.
RELATIVE, ROUNDING = 1e-3, 1e-9
MAX_HEADER = 64 << 20
# What ends a word where an id may be quoted inside a text.
WORDS = re.compile(r"[\s,;:'\"()\[\]{}<>=|]+")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One promise that does not hold: its ``kind``, ``where``, and what is wrong."""

    kind: str
    where: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """``findings`` is empty when every promise holds.

    ``receipts`` are the requests in the ledger, ``signed`` how many carry a valid signature. ``certificates`` has,
    by component, the gradient norm as recorded and as recomputed here. ``replayed`` are rows that an old copy of the
    store had brought back and that were forgotten again. ``notes`` are no failures.
    """

    store: Path
    root_digest: str
    findings: list[Finding]
    receipts: int
    signed: int
    tombstones: int
    certificates: dict[str, dict[str, float]]
    replayed: int = 0
    notes: list[str] = field(default_factory=list)


def audit(
    path: Path | str,
    progress: Progress | None = None,
    *,
    public_key: str | None = None,
    replay: bool = False,
) -> AuditReport:
    """Check a store against what its receipts say; one pass over the rows for each model's certificate.

    Args:
        public_key: hex; every receipt must be signed with it.
        replay: forget again what an old copy of the store brought back, before anything is read.
    """
    progress = progress or Silent()
    replayed = 0
    if replay:
        with FeatureStore(path, mode="a", stale=True) as store:
            back = store.returned()
            replayed = len(back)
            if back:
                forget(store, back, progress)
    with FeatureStore(path, stale=True) as store:
        checks = _Audit(store, progress)
        checks.returned()
        receipts, signatures = checks.ledger(public_key)
        checks.damage()
        checks.leftovers()
        checks.names()
        certificates = checks.models()
        return AuditReport(
            store=store.path,
            root_digest=store.root_digest,
            findings=checks.findings,
            receipts=receipts,
            signed=signatures,
            tombstones=len(store.manifest.tombstones),
            certificates=certificates,
            replayed=replayed,
            notes=checks.notes,
        )


class _Audit:
    """The checks, each adding to ``findings``."""

    def __init__(self, store: FeatureStore, progress: Progress) -> None:
        self.store, self.progress = store, progress
        self.findings: list[Finding] = []
        self.notes: list[str] = []

    def found(self, kind: str, where: str, problem: str) -> None:
        self.findings.append(Finding(kind=kind, where=where, problem=problem))

    def returned(self) -> None:
        """Rows that an old copy brought back; and whether such a copy would be noticed."""
        store = self.store
        if back := store.returned():
            self.found("returned rows", str(store.path), f"{len(back)} rows were forgotten at this place; --replay")
        if store.manifest.tombstone_key:
            try:
                key = ledger.read_key(store.root, store.manifest)
            except StoreError as error:
                self.found("tombstones", ledger.KEY_FILE, error.fault)
            else:
                beside = store.tombstone_file
                if beside.file is not None and not beside.covers(key, store.manifest.tombstones):
                    self.notes.append(
                        f"{beside.file} does not know all tombstones, so that an old copy put back here would go "
                        "unnoticed; the next command that writes to the store completes it"
                    )

    def ledger(self, public_key: str | None) -> tuple[int, int]:
        """The chain and its signatures; the numbers of receipts and of valid signatures."""
        try:
            entries = self.store.ledger()
        except StoreError as error:
            self.found("ledger", "ledger/", error.fault)
            return 0, 0
        valid = 0
        for entry in entries:
            where = f"ledger/{entry['seq']:06d}"
            if "signature" not in entry:
                if public_key is not None and entry.get("event") != EVENT:  # a private training is no receipt
                    self.found("signature", where, "the receipt is not signed")
                continue
            if not is_signed(signed_text(entry), str(entry["signature"]), str(entry.get("public_key"))):
                self.found("signature", where, "the signature is not that of the receipt")
            elif public_key is not None and entry["public_key"] != public_key:
                self.found("signature", where, f"signed with another key, {entry['public_key']}")
            else:
                valid += 1
        if entries and entries[-1].get("content_after") not in (None, self.store.manifest.content_digest):
            self.notes.append("the store has changed since its last receipt")
        return sum(entry.get("event") != EVENT for entry in entries), valid

    def damage(self) -> None:
        """Bytes that have not their digest, and statistics that are not those of the rows."""
        with self.progress.task("verify", None):
            for fault in self.store.verify():
                self.found("damage", fault.file, str(fault))
            for ref in self.store.manifest.shards:
                try:
                    shard = self.store.shard(ref.name)
                    wrong = _wrong_statistics(shard)
                except StoreError:
                    continue  # verify has said it
                if wrong:
                    self.found("statistics", f"shard {ref.name}", wrong)

    def leftovers(self) -> None:
        """Files that no manifest names: the next writer sweeps them, until then they may hold anything."""
        for path in self.store.strays():
            self.found("leftover file", path, "no manifest names it")

    def names(self) -> None:
        """Forgotten ids and classes, wherever a name may stand."""
        store = self.store
        for ref in store.manifest.shards:
            for i in store.shard(ref.name).sample_ids:
                if store.is_forgotten(i):
                    self.found("forgotten row", f"shard {ref.name}", "a row of a forgotten id")
        for name in store.classes:
            if store.is_forgotten(CLASS + name):
                self.found("class", "manifest.json", "a class that left stands in the list")
        texts: list[tuple[str, Any]] = [
            (f"manifest.json, {name}", getattr(store.manifest, name)) for name in ("identity", "plan", "recipe")
        ]
        with suppress(StoreError):  # verify has said it
            texts += [("lists/skipped", [s.id for s in store.manifest.skipped])]
        for name, thing in store.objects().items():
            try:
                texts += [(f"manifest.json, {name}", store.meta(name))]
                texts += [(thing.path, header) for header in _headers(store.read_object(name))]
            except StoreError:
                continue  # verify has said it
        with suppress(StoreError):  # the chain's own finding says it
            texts += [(f"ledger/{entry['seq']:06d}", entry) for entry in store.ledger()]
        for where, value in texts:
            if any(store.is_forgotten(text) for text in _texts(value)):
                self.found("forgotten id", where, "a forgotten id stands there in plain text")

    def models(self) -> dict[str, dict[str, float]]:
        """Whether every component and model comes from the rows that are there, and how far from its optimum it is."""
        store = self.store
        if TAIL not in store.objects():  # imported rows without a backbone: nothing can have been made from them
            return {}
        settings = settings_of(store)
        shards = {shard.name: shard for shard in store.shards}
        components = self._components(settings)
        private = self._private(components)
        self._origins(shards, private)
        keys = self._keys(settings, shards)
        checked: dict[str, dict[str, float]] = {}
        for name, component in components.items():
            if name in private:  # noise is no optimum, and the rows that it was made from may be forgotten since
                continue
            if name in keys and component.meta.get("key") != keys[name]:
                kind = "stale composition" if name in (MEAN, WEIGHTED) else "stale component"
                self.found(kind, name, "it was not made from the rows, components and settings that are there")
            elif name in (MEAN, WEIGHTED):
                self._check_sum(name, component, components)
            elif name in keys:
                sources = [shards[shard_of(name)]] if is_component(name) else store.shards
                checked[name] = self._check_gradient(name, component, settings, sources)
        return checked

    def _components(self, settings: Settings) -> dict[str, Component]:
        """All components and models around the base point that the settings give."""
        components: dict[str, Component] = {}
        for name, ref in self.store.objects().items():
            if not is_model(name):
                continue
            if ref.meta["base_digest"] != settings.base.digest:
                self.found("base point", name, "it was made around another base point than the settings give")
                continue
            components[name] = read_component(self.store, name, settings.base)
        return components

    def _origins(self, shards: Mapping[str, Shard], private: Collection[str]) -> None:
        """Whether each object says that it was made from rows that are there."""
        store, rows = self.store, {shard.digest for shard in shards.values()}
        for name, ref in store.objects().items():
            if name.startswith("base/") or name == KEYS or ref.meta.get("imported"):
                continue
            own = shards.get(shard_of(name)) if is_component(name) else None
            if is_component(name) and own is None:
                self.found("kept component", name, "the store has no shard of that name")
            elif own is not None and own.name in subtracted(store):
                self.found("kept component", name, "its shard was subtracted")
            elif name not in (MEAN, WEIGHTED, EXACT, *private) and not _made_from(ref.meta, rows):
                self.found("stale object", name, "it does not say that it was made from the rows that are there")

    def _keys(self, settings: Settings, shards: Mapping[str, Shard]) -> dict[str, str]:
        """The key of each component and model, by its name, as it would be made now."""
        every, objects = list(shards.values()), self.store.objects()
        keys = {component_of(name): settings.key([shard], settings.train) for name, shard in shards.items()}
        keys[HEAD] = settings.key(every, "head")
        return keys | {n: self._composed_key(n, settings, every) for n in (MEAN, WEIGHTED, EXACT) if n in objects}

    def _private(self, components: Mapping[str, Component]) -> set[str]:
        """Components trained privately; whether each promise follows from its noise, and is in the ledger.

        So of what the manifest says and of what the file says, which is what leaves the store.
        """
        store = self.store
        names = {n for n, ref in store.objects(COMPONENTS).items() if META in ref.meta}
        charged = [e for e in store.ledger() if e.get("event") == EVENT] if names else []
        for name, component in sorted(components.items()):
            there = {key: value for key, value in store.meta(name).items() if key != "base_digest"}
            if META not in there and META not in component.meta:
                continue
            if component.meta != there:
                self.found("privacy statement", name, "its file does not say of it what the manifest says")
            for problem in dict.fromkeys([*claim_problems(store, there), *claim_problems(store, component.meta)]):
                self.found("privacy statement", name, problem)
            if name in names and not any(_is_entry(entry, name, there[META]) for entry in charged):
                self.found("privacy statement", name, "the ledger does not have what its training released")
        return names

    def _composed_key(self, name: str, settings: Settings, shards: list[Shard]) -> str:
        """The key of a composition whose members are as they are now; it may have been made before one was imported."""
        objects = self.store.objects()
        meta = objects[name].meta
        if name == EXACT:
            try:
                members = json.loads(meta["key"])["start"]
            except (KeyError, TypeError, ValueError):
                members = {}
        else:
            members = meta.get("members", {})
        now = {member: objects[member].digest for member in members if member in objects}
        if name == EXACT:
            return exact_key(settings, shards, now)
        return composition_key(now, meta.get("coefficients") if name == WEIGHTED else None)

    def _check_sum(self, name: str, total: Component, components: dict[str, Component]) -> None:
        """Whether a composition's numbers are the sum of its members'."""
        mu = total.meta["coefficients"]
        if not mu.keys() <= components.keys():
            return
        again = compose({n: components[n] for n in mu}, mu)
        if not (again.delta - total.delta).abs().max() <= 1e-12 * total.delta.abs().max():
            self.found("stale composition", name, "it is not the sum of its members")

    def _check_gradient(
        self, name: str, component: Component, settings: Settings, sources: list[Shard]
    ) -> dict[str, float]:
        """The gradient norm at the component, from the rows, in float64 and one pass; half a one for dual vectors."""
        problem = settings.problem(sources, component)
        with self.progress.task(f"certify {name}", None):
            _, gradient = problem.evaluate(component.delta)
            if component.dual is not None and not _is_dual(problem, component):
                self.found("stale dual", name, "its dual vectors are not those of the rows that are there")
        recorded = component.meta["certificate"]
        now = gradient.norm().item()
        if not now <= recorded["gradient"] * (1 + RELATIVE) + ROUNDING * recorded["gradient_at_zero"]:
            self.found("certificate", name, f"‖∇F‖ is {now:.3e}, its certificate says {recorded['gradient']:.3e}")
        return {"recorded": recorded["gradient"], "recomputed": now, "distance_bound": recorded["distance_bound"]}


def _is_entry(entry: Mapping[str, Any], name: str, said: Mapping[str, Any]) -> bool:
    """Whether a ledger's entry is of the training that made the component ``name``, and calls it private as it does."""
    of = entry["component"], entry["releases"], entry.get("private", said.get("private"))
    return of == (name, said.get("releases"), said.get("private"))


def _is_dual(problem: Problem, component: Component) -> bool:
    """Whether Δw = Jᵀα with one α for each row that is there."""
    dual, operator = component.dual, problem.operator
    if dual is None or dual.shape != (operator.rows, operator.classes):
        return False
    return bool((adjoint(problem, dual) - component.delta).norm() <= 1e-9 * component.delta.norm())


def _wrong_statistics(shard: Shard) -> str:
    """What a shard's statistics say of other rows than its own."""
    largest, norms = 0.0, []
    for block in shard.blocks(shard.chunk_rows):
        largest = max(largest, float(np.abs(block.tokens).max()))
        norms.append(token_norm_sum(block.tokens))
    mean = float(f"{math.fsum(norms) / (shard.rows * shard.tokens_shape[0]):.9g}")
    recorded = shard.statistics
    if (recorded["max_abs"], recorded["mean_token_norm"]) != (largest, mean):
        return "max_abs and mean_token_norm are not those of its rows"
    return ""


def _made_from(meta: dict[str, Any], rows: set[str]) -> bool:
    """Whether an object's key names shards by digest, and only those that are there."""
    try:
        named = json.loads(meta["key"])["rows"]
        return bool(named) and set(named) <= rows
    except (KeyError, TypeError, ValueError):
        return False


def _headers(data: bytes) -> Iterator[Any]:
    """Texts inside an object: the header of a safetensors file, or all of one that is short."""
    size = int.from_bytes(data[:8], "little")
    if 2 <= size <= min(MAX_HEADER, len(data) - 8) and data[8:9] == b"{":
        yield data[8 : 8 + size].decode("utf-8", "replace").replace('\\"', '"')
    elif len(data) <= 1 << 20:
        yield data.decode("utf-8", "replace")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, whole and word by word, keys too."""
    if isinstance(value, str):
        yield value
        words = WORDS.split(value)
        if len(words) > 1:
            yield from (word for word in words if word)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
