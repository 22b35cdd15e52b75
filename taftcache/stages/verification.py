"""Read every byte of a store again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taftcache.cache import Fault, FeatureStore
from taftcache.stages.progress import Progress, Silent


@dataclass(frozen=True)
class VerifyReport:
    """Faults found (none: every object has the digest its manifest names) and files that no manifest names."""

    store: Path
    root_digest: str
    bytes: int
    faults: list[Fault]
    strays: list[str]
    ledger_entries: int


def verify(path: Path | str, progress: Progress | None = None, expect: str | None = None) -> VerifyReport:
    """Check every object under the store's root digest, and the ledger's chain.

    Args:
        expect: the root digest that you noted; a store rolled back to an older state has another.
    """
    with FeatureStore(path, expect=expect) as store:
        refs = store.manifest.shards
        with (progress or Silent()).task("verify", None) as task:
            faults = store.verify(lambda done, total: task.note(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"))
        damaged = {fault.shard for fault in faults}
        sizes = sum(store.shard(ref.name).nbytes for ref in refs if ref.name not in damaged)
        return VerifyReport(
            store.path,
            store.root_digest,
            sizes + sum(ref.size for ref in store.objects().values()),
            faults,
            store.strays(),
            store.manifest.ledger.entries if store.manifest.ledger else 0,
        )
