"""Read every byte of a store again, and mend what can be made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from taftcache.cache.format.fault import Fault
from taftcache.cache.opening import Place
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.previous import go_back
from taftcache.cache.write.repair import Maker, hopeless
from taftcache.cache.write.repair import repair as mend
from taftcache.errors import RecipeError, TaftcacheError
from taftcache.names import made_by
from taftcache.recipe import Overrides, Recipe, apply_overrides, as_mapping, check_used, parse_recipe
from taftcache.stages.progress import Progress, noting, or_silent
from taftcache.stages.report import Report


@dataclass(frozen=True, kw_only=True)
class VerifyReport(Report):
    """Whether every object has the digest that its manifest names, and which files no manifest names.

    faults: damaged objects; after a repair, those that remain. strays: files that no manifest names. ledger_entries:
    how many were read. mended: for each mended file, where its bytes came from. dropped: damaged components and models
    that were dropped. again: the command that makes each of these again. reasons: why a file cannot be mended, or was
    left damaged. left: the root that --back went back from, if it did. It is "" if its manifest could not be read.
    """

    store: Path
    root_digest: str
    bytes: int
    faults: list[Fault]
    strays: list[str]
    ledger_entries: int
    mended: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    again: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    left: str | None = None


def verify(
    store: Place,
    *,
    progress: Progress | bool | None = None,
    expect: str | None = None,
    repair: bool = False,
    back: bool = False,
    overrides: Overrides = (),
) -> VerifyReport:
    """Check every object under the store's root digest, and the ledger's chain.

    Args:
        expect: the root digest that you noted, or its first 16 digits or more; it reveals a store rolled back to an
            older state.
        repair: make damaged files again: chunks from the images of their rows, the tail from the backbone, metadata
            from the manifests. Nothing is put in place unless it has the digest that the manifest names.
        back: first go back to the root manifest from before the last commit, which is kept only by commits that add to
            a store; what that commit added is removed. Refused, with nothing changed, unless that state is the one of
            ``expect``.
        overrides: changes to the store's recipe for the repair, such as {"data.train": "/where/it/lies/now"}.
    """
    progress, changes = or_silent(progress), as_mapping(overrides)
    check_used("verify", changes, placed=True)
    if changes and not repair:
        raise RecipeError(
            "settings are for a repair, and nothing is repaired", got=", ".join(changes), do="ask for one: --repair"
        )
    left = go_back(store, expect)[0] if back else None
    try:
        return _verified(store, progress, expect, repair, changes, left)
    except TaftcacheError as error:
        if back:
            error.fault = f"went back to the root manifest before the last commit; {error.fault}"
        raise


def _verified(
    place: Place, progress: Progress, expect: str | None, repair: bool, changes: Mapping[str, Any], left: str | None
) -> VerifyReport:
    with FeatureStore(place, mode="a" if repair else "r", expect=expect) as store:
        recipe = _changed(store, changes) if changes else None  # refused before an hour of reading
        faults = _faults(store, progress)
        if not (repair and faults):
            return _report(store, faults, left)
        before = store.objects()
        outcome = mend(store.committer(), faults, _maker(store, recipe, changes, progress))
    with FeatureStore(place) as store:
        return replace(
            _report(store, _faults(store, progress), left),
            mended=outcome.mended,
            dropped=outcome.dropped,
            again={name: made_by(store.path, name, before[name].meta) for name in outcome.dropped},
            reasons=outcome.left,
        )


def _changed(store: FeatureStore, changes: Mapping[str, Any]) -> Recipe:
    return parse_recipe(apply_overrides(store.manifest.recipe, changes), str(store.path))


def _maker(store: FeatureStore, recipe: Recipe | None, changes: Mapping[str, Any], progress: Progress) -> Maker | None:
    """What makes rows again; None if they were imported, because nothing here can make those."""
    if "imported" in store.identity:
        return None
    from taftcache.stages.extract.reextraction import Reextraction  # imports torch, which only a repair needs

    return Reextraction(store, recipe or _changed(store, {}), progress, changes)


def _faults(store: FeatureStore, progress: Progress) -> list[Fault]:
    with progress.task("verify", None) as task:
        return store.verify(noting(task, "MB", 1e6))


def _report(store: FeatureStore, faults: list[Fault], left: str | None) -> VerifyReport:
    damaged = {fault.shard for fault in faults}
    sizes = sum(store.shard(ref.name).nbytes for ref in store.manifest.shards if ref.name not in damaged)
    return VerifyReport(
        store=store.path,
        root_digest=store.root_digest,
        bytes=sizes + sum(ref.size for ref in store.objects().values()),
        faults=faults,
        strays=store.strays(),
        ledger_entries=store.manifest.ledger.entries if store.manifest.ledger else 0,
        reasons=hopeless(faults, "imported" not in store.identity),
        left=left,
    )
