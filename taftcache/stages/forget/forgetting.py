"""Forget samples: rows out of the cache, everything made from them renewed or destroyed, in one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.names import CLASS, EXACT, HEAD, MEAN, WEIGHTED, component_of, is_component, shard_of
from taftcache.privacy.statement import META, forgetting_note
from taftcache.stages.forget.receipt import receipt_of, signed
from taftcache.stages.forget.renewal import certificate_of, resolve_warm
from taftcache.stages.forget.request import Request, resolve_request
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.composing import (
    composed,
    exact_key,
    proof_rows,
    remaining_weights,
    solve_exact,
    weights_of_rows,
)
from taftcache.stages.train.private_keys import KEYS, put_keys
from taftcache.stages.train.training import adopt, plan_without, solve_component, subtracted
from taftcache.tangent.spec import TAIL

if TYPE_CHECKING:
    from taftcache.cache.write.transaction import Transaction
    from taftcache.model.component import Component
    from taftcache.recipe import Recipe
    from taftcache.stages.forget.signature import Signer
    from taftcache.tangent.base import Base

Mode = Literal["subtract", "retrain", "resolve"]
MODES = ("subtract", "retrain", "resolve")


@dataclass(frozen=True)
class ForgetReport:
    """What was forgotten now, what had been before, what was renewed and destroyed, and what proves it.

    ``certificates[name]`` has the certificate's fields and those of `renewal.certificate_of`. ``passes`` counts
    passes over the rows of what was solved. A dry run changes nothing: its certificates are empty and ``passes``
    is an estimate, what the present components took; ``bytes`` is what would be rewritten.
    """

    store: Path
    root_before: str
    root_digest: str
    forgotten: list[str]
    already: list[str]
    shards: list[str]
    renewed: list[str]
    certificates: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    mode: str = "retrain"
    destroyed: list[str] = field(default_factory=list)
    dropped_shards: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    passes: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    dry_run: bool = False
    notes: list[str] = field(default_factory=list)


def forget(
    store: FeatureStore,
    samples: Sequence[str] = (),
    progress: Progress | None = None,
    *,
    shards: Sequence[str] = (),
    classes: Sequence[str] = (),
    mode: Mode = "retrain",
    cold: bool = False,
    dry_run: bool = False,
    signing_key: Path | None = None,
) -> ForgetReport:
    """Erase rows, and renew or destroy what was made from them, in one commit: after a crash, all of it or nothing.

    mode "retrain" solves the affected shards, head and exact model again from the remaining rows alone: they have
    the bytes that they would have if the rows had never been seen. "subtract" leaves the affected shards out of the
    composition and solves only the head. "resolve" is "retrain", but the exact model goes on from where it is until
    the certificate is decisive (see `renewal.resolve_warm`), and is solved cold where it does not become so, or
    ``cold`` asks for it. A shard without rows goes as a whole; so does a class, and then every component is solved
    again, for the head has a column less.

    ``signing_key`` is a file with an Ed25519 key that the receipt is signed with.

    A private component stays as it is: its promise already bounds what it holds of a sample, and training it again
    would spend more of its budget; the receipt says so. Where a class goes, it goes too.

    Raises:
        RecipeError: nothing named, a mode that cannot do it, or no such key. UnknownSample, StoreError: something
        named is neither stored nor was forgotten before. DataError: no training row would be left.
    """
    begin = time.perf_counter()
    if mode not in MODES:
        raise RecipeError(f"a forget's mode is {', '.join(MODES[:-1])} or {MODES[-1]}", got=mode)
    signer = signer_of(signing_key)
    request = resolve_request(store, samples, shards, classes)
    if not request.samples and not request.asked:
        before = store.root_digest
        return ForgetReport(
            store.path, before, before, [], request.already, [], [], mode=mode, dry_run=dry_run,
            seconds=time.perf_counter() - begin,
        )  # fmt: skip
    work = _Forgetting(store, request, mode, cold, progress or Silent())
    report = work.estimate() if dry_run else work.carry_out(signer)
    return ForgetReport(**{**vars(report), "seconds": time.perf_counter() - begin})


def destroy_key(store: FeatureStore, signing_key: Path | None = None) -> ForgetReport:
    """Destroy the tombstones and their key: nobody can ask any more whether an id was forgotten.

    The receipts' hashes then stand for nothing that could be guessed. The price: a forgotten sample that is extracted
    again is taken in, and an old copy of the store is no longer noticed.
    """
    before = store.root_digest
    signer = signer_of(signing_key)
    if store.manifest.tombstone_key:
        with store.transaction() as change:
            entry = {
                "event": "destroy-key",
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "root_before": before,
                "tombstones": len(store.manifest.tombstones),
            }
            change.destroy_key()
            change.record(entry if signer is None else signed(store, entry, signer))
    return ForgetReport(store.path, before, store.root_digest, [], [], [], [], mode="destroy-key")


def signer_of(file: Path | None) -> Signer | None:
    """The key in ``file``."""
    if file is None:
        return None
    from taftcache.stages.forget.signature import Signer

    return Signer(file)


class _Forgetting:
    """One request on its way: which objects it touches, and their new selves."""

    def __init__(self, store: FeatureStore, request: Request, mode: Mode, cold: bool, progress: Progress) -> None:
        self.store, self.request, self.mode, self.progress = store, request, mode, progress
        self.cold = cold
        self.tight: Component | None = None  # the old exact model, where a warm solve had to know it better
        self.recipe: Recipe = adopt(store, None)
        if request.classes:
            self.recipe = _without_classes(self.recipe, store.classes, request.classes)
        self.objects = store.objects()
        out = set(subtracted(store))
        stay = [shard.name for shard in store.shards if shard.name not in request.emptied]
        touched = set(stay) if request.classes else {n for n in stay if n in request.leaving}
        trained = bool(request.trained) or bool(request.classes)
        if mode == "subtract" and request.classes:
            raise RecipeError(
                "a class without rows takes its column of the head along, which changes every component",
                got=f'mode "subtract" for {len(request.classes)} classes',
                do="use --mode retrain",
            )
        if mode == "resolve" and EXACT not in self.objects:
            raise RecipeError(
                "resolve re-solves the exact model of all shards",
                got=f"{store.path} has no {EXACT}",
                do="taftcache compose STORE --mode exact, or use --mode retrain",
            )
        self.subtracted = sorted((out & set(stay)) | (touched if mode == "subtract" else set()))
        kept = [component_of(n) for n in stay if n not in self.subtracted]
        # A private component's promise bounds what it holds of a row; training it again would spend more of its budget.
        self.private = [n for n, ref in self.objects.items() if is_component(n) and META in ref.meta]
        if request.classes:  # it cannot lose its column of the head either, so it goes
            kept = [n for n in kept if n not in self.private]
        due = {n for n in kept if shard_of(n) in touched and n in self.objects}
        self.solve = [n for n in kept if n in due and n not in self.private]
        foreign = [n for n, ref in self.objects.items() if is_component(n) and ref.meta.get("imported")]
        self.members = sorted({*(n for n in kept if n in self.objects), *([] if request.classes else foreign)})
        self.head = trained and HEAD in self.objects
        self.exact = trained and mode != "subtract" and EXACT in self.objects and bool(self.members)
        compose = bool(request.leaving) and bool(self.members) and all(n in self.objects for n in kept)
        self.weights = remaining_weights(self.recipe, self.members)
        self.compositions = [
            n for n in (MEAN, WEIGHTED) if compose and n in self.objects and (n == MEAN or self.weights)
        ]
        self.renewed = [
            *self.solve, *([HEAD] if self.head else []), *self.compositions, *([EXACT] if self.exact else []),
        ]  # fmt: skip
        self.destroyed = [n for n in self.objects if n not in self.renewed and not self._stays(n, trained, stay)]

    def _stays(self, name: str, trained: bool, stay: Sequence[str]) -> bool:
        """Whether an object that is not renewed has nothing of the rows that leave in it."""
        if name.startswith("base/") or name == KEYS or not self.request.leaving:  # KEYS are cleared by themselves
            return True
        if is_component(name):
            return name in self.members and name not in self.solve
        return name in (HEAD, EXACT) and not trained

    def estimate(self) -> ForgetReport:
        """What would happen; nothing is changed."""
        request = self.request
        rewritten = [ref.name for ref in self.store.manifest.shards if ref.name not in request.emptied]
        rewritten = [n for n in rewritten if request.classes or n in request.leaving]
        passes = {
            n: self.objects[n].meta.get("stats", {}).get("passes", 1) for n in self.renewed if n not in (MEAN, WEIGHTED)
        }
        return self._report(
            self.store.root_digest,
            {},
            passes,
            bytes=sum(self.store.shard(n).nbytes for n in rewritten),
            dry_run=True,
        )

    def carry_out(self, signer: Signer | None) -> ForgetReport:
        """Do it."""
        from taftcache.model.component import put_component, read_base, read_component

        store, request, recipe = self.store, self.request, self.recipe
        before = store.root_digest
        bare = TAIL not in store.objects()  # imported rows without a backbone: nothing can have been made from them
        old_base = None if bare else read_base(store, recipe.tangent)
        notes: list[str] = []
        with store.transaction() as change:
            new = self._erase(change)
            made = {} if bare else self._renew(new, notes)
            certificates = {}
            for name, component in made.items():
                put_component(change, name, component)
                if "certificate" in component.meta:
                    assert old_base is not None
                    tight = self.tight if name == EXACT else None
                    old = tight or read_component(store, name, old_base)
                    certificates[name] = certificate_of(component, old)
            for name in self.destroyed:
                change.drop(name)
            if KEYS in self.objects and request.leaving:  # those of shards that lose rows speak of rows that left
                lost = [n for n in self.private if n in self.destroyed or shard_of(n) in request.leaving]
                put_keys(change, store, {}, lost)
            for name in self.private:
                leaving = request.leaving.get(shard_of(name), 0)
                if (gone := name in self.destroyed) or leaving:
                    notes.append(f"{name}: {forgetting_note(self.objects[name].meta, leaving, not gone)}")
            if self.mode == "subtract" or request.emptied:
                plan = plan_without(store, subtracted=self.subtracted, dropped=len(request.emptied))
                change.update(plan=plan)
            self._record(change)
            entry = receipt_of(
                store, change, request, self.mode + (" cold" if self.cold else ""), self.renewed, self.destroyed,
                certificates, recipe.objective.ridge, notes,
            )  # fmt: skip
            change.record(entry if signer is None else signed(store, entry, signer))
        passes = {n: c["passes"] for n, c in certificates.items()}
        return self._report(before, certificates, passes, notes=notes)

    def _renew(self, new: Mapping[str, Shard], notes: list[str]) -> dict[str, Component]:
        """What is made again, from the rows that stay."""
        from taftcache.model.component import read_base

        store, request, recipe = self.store, self.request, self.recipe
        base = read_base(store, recipe.tangent, len(store.classes) - len(request.classes))
        rows = [new.get(s.name, s) for s in store.shards if s.name not in request.emptied]
        made: dict[str, Component] = {}
        for name in self.solve:
            (own,) = (s for s in rows if component_of(s.name) == name)
            made[name] = solve_component(recipe, base, [own], recipe.tangent.train, self.progress, label=name)
        if self.head:
            made[HEAD] = solve_component(recipe, base, rows, "head", self.progress, label=HEAD)
        self._compose(made, base, new)
        if self.exact:
            made[EXACT] = self._exact(made, base, rows, notes)
        return made

    def _erase(self, change: Transaction) -> dict[str, Shard]:
        """Rows, emptied shards and classes without rows, out of the store; the shards that were written anew."""
        request, store = self.request, self.store
        whole = {i for name in request.emptied for i in store.shard(name).sample_ids}
        new = change.erase([i for i in request.samples if i not in whole])
        for name in request.emptied:
            change.drop_shard(name)
        change.add_tombstones([*whole, *request.asked, *(CLASS + name for name in request.classes)])
        if request.classes:
            gone = set(request.classes)
            new = change.relabel([name for name in store.classes if name not in gone])
        return new

    def _record(self, change: Transaction) -> None:
        """The settings without coefficients and weights of what leaves."""
        values = self.store.manifest.recipe
        compose, objective = dict(values["compose"]), dict(values["objective"])
        if self.weights != self.recipe.compose.weights:
            compose["weights"] = self.weights or "rows"
        if not isinstance(self.recipe.objective.class_weights, str):
            objective["class_weights"] = list(self.recipe.objective.class_weights)
        if (compose, objective) != (values["compose"], values["objective"]):
            change.update(recipe={**values, "compose": compose, "objective": objective})

    def _compose(self, made: dict[str, Component], base: Base, new: Mapping[str, Shard]) -> None:
        """The compositions of what was renewed and what stays."""
        from taftcache.model.component import read_component

        if not self.compositions and not self.exact:
            return
        components = {n: made.get(n) or read_component(self.store, n, base) for n in self.members}
        self.digests = {n: _digest(made[n]) if n in made else self.objects[n].digest for n in self.members}
        held = self.store.held_out
        held = None if held is None or held.name in self.request.emptied else new.get(held.name, held)
        first = next(s for s in self.store.shards if s.name not in self.request.emptied)
        rows = proof_rows(held or new.get(first.name, first), base)
        for name in self.compositions:
            weights, parts = None, components
            if name == WEIGHTED:
                given = self.weights
                if given != "rows":  # a component that was imported since has no coefficient yet
                    parts = {n: c for n, c in components.items() if {n, shard_of(n)} & given.keys()}
                weights = weights_of_rows(given, {n: c.meta["rows"] for n, c in parts.items()})
            made[name] = composed(parts, {n: self.digests[n] for n in parts}, base, rows, weights)
        self.mean = made.get(MEAN) or composed(components, self.digests, base, rows)

    def _exact(self, made: Mapping[str, Component], base: Base, rows: Sequence[Shard], notes: list[str]) -> Component:
        """The exact model over the remaining rows, warm where the mode says so and it can be proven."""
        import numpy as np

        from taftcache.model.component import read_component

        recipe, store = self.recipe, self.store
        if self.mode == "resolve" and not self.cold and not self.request.classes:
            old = read_component(store, EXACT, base)
            gone = set(self.request.samples)
            stays = np.array([i not in gone for shard in store.shards for i in shard.sample_ids])
            warm = resolve_warm(recipe, base, store.shards, rows, stays, old, self.progress)
            if warm.component is not None:
                exact, self.tight = warm.component, warm.old
                exact.meta["stats"] = {**exact.meta["stats"], "passes": warm.passes}
                exact.meta.update(
                    key=exact_key(recipe, base, rows, self.digests),
                    start=EXACT,
                    from_mean=(exact.delta - self.mean.delta).norm().item(),
                )
                return exact
            notes.append(f"{EXACT} was solved cold after {warm.passes} warm passes: {warm.failure}")
        return solve_exact(recipe, base, rows, self.mean, self.digests, self.progress)

    def _report(
        self,
        before: str,
        certificates: dict[str, dict[str, Any]],
        passes: dict[str, int],
        *,
        bytes: int = 0,
        dry_run: bool = False,
        notes: Sequence[str] = (),
    ) -> ForgetReport:
        request = self.request
        return ForgetReport(
            self.store.path,
            before,
            self.store.root_digest,
            request.samples,
            request.already,
            sorted(request.leaving),
            self.renewed,
            certificates,
            mode=self.mode,
            destroyed=self.destroyed,
            dropped_shards=request.emptied,
            classes=request.classes,
            passes=passes,
            bytes=bytes,
            dry_run=dry_run,
            notes=list(notes),
        )


def _without_classes(recipe: Recipe, classes: Sequence[str], gone: Sequence[str]) -> Recipe:
    """The recipe without the class weights of the classes that are ``gone``."""
    given = recipe.objective.class_weights
    if isinstance(given, str) or len(given) != len(classes):
        return recipe
    kept = [weight for name, weight in zip(classes, given, strict=True) if name not in gone]
    replace = msgspec.structs.replace
    return replace(recipe, objective=replace(recipe.objective, class_weights=kept))


def _digest(component: Component) -> str:
    from taftcache.cache.format.digest import digest

    return digest(component.encode())
