"""Run in a process of its own: open stores that a stranger made; how long and how much memory until each is refused.

    python -m tests.cache.hostile GOOD BAD...

Prints a JSON list of [name, error, seconds, MiB above what the process had before].
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from taftcache.cache.store import FeatureStore
from taftcache.errors import TaftcacheError


def read_all(path: Path) -> None:
    with FeatureStore(path) as store:
        for shard in (*store.shards, store.held_out):
            if shard is not None:
                shard.tokens(slice(0, 4))
                shard.labels  # noqa: B018
                shard.sample_ids  # noqa: B018
                shard.group()["tokens"].shape  # noqa: B018
        for name in store.objects():
            store.read_object(name)
        store.ledger()
        store.is_forgotten("someone")
        if faults := store.verify():
            raise faults[0].error()


def peak() -> float:
    """The most memory since the last `forget`, in MiB. (getrusage would tell the parent's, which exec hands on.)"""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget() -> float:
    """Take the present memory for the most, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def main(good: Path, bad: list[Path]) -> None:
    read_all(good)
    found = []
    for path in bad:
        base = forget()
        begin = time.process_time()
        try:
            read_all(path)
            error = "none"
        except TaftcacheError as caught:
            error = type(caught).__name__
        found.append([path.name, error, time.process_time() - begin, peak() - base])
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]])
