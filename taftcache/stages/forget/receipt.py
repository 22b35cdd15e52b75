"""The receipt of one request to forget: what a ledger keeps of it, without a name in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.stages.forget.planning import ForgetPlan

CONVENTION = "mean loss + ridge/2 |dw|^2 over the remaining rows"
MAX_IDS = 8192  # an entry of the ledger is at most 1 MiB; of more ids it has the digest of their sorted hashes alone
NOT_COVERED = (
    "Copies, backups and freed disk blocks; models given away earlier; settings such as the ridge chosen with the rows "
    "at hand. Whoever holds the models from before and after can see what left: forgetting is not differential privacy."
)


def receipt_of(
    store: FeatureStore,
    change: Transaction,
    plan: ForgetPlan,
    certificates: Mapping[str, Mapping[str, Any]],
    notes: Sequence[str],
) -> dict[str, Any]:
    """The ledger's entry; ids, shards and classes that were asked for as such stand in it as keyed hashes."""
    manifest, request = store.manifest, plan.request
    hashes = change.tombstones([*request.samples, *request.asked])
    return {
        "event": "forget",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mode": plan.mode + (" cold" if plan.cold else ""),
        "samples": len(request.samples),
        "ids": hashes if len(hashes) <= MAX_IDS else [],
        "ids_digest": digest(canonical(hashes)),
        **change.commitment(),
        "root_before": manifest.digest,
        "content_before": manifest.content_digest,
        "content_after": change.content_digest(),
        "copies": len(request.copies),  # their ids would remain here
        "shards": dict(request.leaving),
        "dropped_shards": list(request.emptied),
        "classes_removed": len(request.classes),
        "renewed": list(plan.renewed),
        "destroyed": list(plan.destroyed),
        "certificates": {name: dict(c) for name, c in certificates.items()},
        "ridge": plan.recipe.objective.ridge,
        "convention": CONVENTION,
        "notes": list(notes),
        "not_covered": NOT_COVERED,
    }
