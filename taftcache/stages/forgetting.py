"""Forget samples: rows out of the cache, everything made from them renewed, in one commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taftcache.cache import FeatureStore, Shard
from taftcache.errors import RecipeError
from taftcache.stages.composing import MEAN, mean_of
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.training import COMPONENTS, EXACT, HEAD, adopt, solve_component

if TYPE_CHECKING:
    from taftcache.component import Component


@dataclass(frozen=True)
class ForgetReport:
    """What was forgotten now, what had been before, and the certificate of each renewed component.

    ``certificates[name]`` has the certificate's fields, ``moved``: how far the removal moved the
    component, ‖Δw_new − Δw_old‖, and ``decisive``: whether the certified distance to the exact
    optimum without the rows is at most a tenth of that.
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


def forget(store: FeatureStore, samples: Sequence[str], progress: Progress | None = None) -> ForgetReport:
    """Erase ``samples`` and re-solve, from zero, what was made from them (mode "retrain").

    A private component stays as it is: its promise already bounds what it holds of a sample, and training it again
    would spend more of its budget; the receipt says so. The new components depend on the remaining rows alone: they
    have the bytes that they would have if the samples had never been seen. Rows, components, models and the ledger's
    receipt change in one
    commit: a crash leaves all of it undone, or done.

    Raises:
        RecipeError: no sample named. UnknownSample: an id that is neither stored nor forgotten before.
        DataError: a shard would be left without rows.
    """
    from taftcache.component import put_component, read_base, read_component
    from taftcache.privacy.statement import META, forgetting_note

    begin = time.perf_counter()
    progress = progress or Silent()
    if not samples:
        raise RecipeError(
            "a request to forget names samples", got="none", do="give ids as taftcache inspect lists them"
        )
    wanted = list(dict.fromkeys(samples))
    already = [i for i in wanted if store.is_forgotten(i)]
    wanted = [i for i in wanted if i not in already]
    before = store.root_digest
    if not wanted:
        return ForgetReport(store.path, before, before, [], already, [], [], seconds=time.perf_counter() - begin)
    recipe = adopt(store, None)
    base = read_base(store, recipe.tangent)
    objects = store.objects()
    with store.transaction() as change:
        new = change.erase(wanted)
        shards: list[Shard] = [new.get(shard.name, shard) for shard in store.shards]
        touched = [shard.name for shard in shards if shard.name in new]
        renewed: dict[str, Component] = {}
        for shard in shards:
            name = f"{COMPONENTS}{shard.name}"
            if shard.name in touched and name in objects and META not in objects[name].meta:
                renewed[name] = solve_component(recipe, base, [shard], recipe.tangent.train, progress, label=name)
        for name in (HEAD, EXACT):
            if touched and name in objects:
                renewed[name] = solve_component(recipe, base, shards, objects[name].meta["train"], progress, label=name)
        certificates = {}
        for name, component in renewed.items():
            put_component(change, name, component)
            moved = (component.delta - read_component(store, name, base).delta).norm().item()
            bound = component.meta["certificate"]["distance_bound"]
            certificates[name] = {
                **component.meta["certificate"],
                "converged": component.meta["converged"],
                "moved": moved,
                "decisive": bound <= 0.1 * moved,
            }
        mean_moves = bool(new) and MEAN in objects  # its proof speaks of held-out rows, so they renew it too
        if mean_moves:
            members = {f"{COMPONENTS}{shard.name}": store.objects()[f"{COMPONENTS}{shard.name}"] for shard in shards}
            components = {n: renewed.get(n) or read_component(store, n, base) for n in members}
            digests = {n: _digest(renewed[n]) if n in renewed else ref.digest for n, ref in members.items()}
            rows = new.get("held-out", store.held_out)
            mean = mean_of(components, digests, base, rows or shards[0])
            put_component(change, MEAN, mean)
        names = sorted(renewed) + ([MEAN] if mean_moves else [])
        receipt = {
            "event": "forget",
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "mode": "retrain",
            "samples": len(wanted),
            "root_before": before,
            "shards": {n: {"digest": s.digest, "rows": s.rows} for n, s in new.items()},
            "renewed": names,
            "certificates": certificates,
            "convention": "mean loss + ridge/2 |dw|^2 over the remaining rows",
            "private": {
                name: forgetting_note(objects[name].meta)
                for name in (f"{COMPONENTS}{n}" for n in touched)
                if name in objects and META in objects[name].meta
            },
            "not_covered": "the class list, and whoever kept a copy of the earlier models; forgetting is not privacy",
        }
        change.record(receipt)
    return ForgetReport(
        store.path,
        before,
        store.root_digest,
        wanted,
        already,
        sorted(new),
        names,
        certificates,
        time.perf_counter() - begin,
    )


def _digest(component: Component) -> str:
    from taftcache.cache.digest import digest

    return digest(component.encode())
