"""Run in a process of its own: samples erased one after the other, some of the erasures killed midway.

    python -m tests.cache.erasing FOLDER SAMPLES KILLS SEED

After every kill, and at the end, no 16-byte piece of an erased row and no erased id is in any file below the store, nor
in what its Zarr groups decode to. Prints what was done; exit status 1 and a traceback for a broken promise.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np
import zarr  # noqa: F401  loaded once, for the children that are forked

from taftcache.cache.store import FeatureStore

from .crash import count_calls, in_fork, killed
from .making import create, fill, holds, names, row, tree

SHARDS = 4
PIECE = 16


def prepare(path: Path, ids: list[str]) -> None:
    with create(path) as store:
        for k in range(SHARDS):
            fill(store, f"{k:03d}", ids[k::SHARDS], batch=64, chunk_rows=32)


def erase(path: Path, sample: str) -> None:
    with FeatureStore(path, mode="a") as store:
        if not store.is_forgotten(sample):
            with store.transaction() as change:
                change.erase([sample])
                change.put("components/000", f"trained without {store.root_digest}".encode())
                change.record({"action": "erase"})


def pieces(sample: str) -> set[bytes]:
    raw = row(sample).astype(np.float16).tobytes()
    return {raw[k : k + PIECE] for k in range(len(raw) - PIECE + 1)}


def check(path: Path, gone: list[str], left: list[str]) -> None:
    """Nothing of ``gone`` is anywhere, all of ``left`` is there."""
    with FeatureStore(path, mode="a") as store:
        assert store.verify() == []
        assert store.strays() == []
        assert holds(store, left[:: max(1, len(left) // 20)])
        assert sorted(store.sample_ids()) == sorted(left)
        assert all(store.is_forgotten(i) for i in gone)
        decoded = {
            f"{s.name}/{name}": np.asarray(array[:]).tobytes()
            for s in store.shards
            for name, array in s.group().arrays()
            if name != "sample_id"
        }
        texts = {i for s in store.shards for i in s.group()["sample_id"][:].tolist()}
    assert not texts & set(gone)
    wanted = {piece for i in gone for piece in pieces(i)}
    for name, data in (tree(path) | decoded).items():
        found = {data[k : k + PIECE] for k in range(len(data) - PIECE + 1)} & wanted
        assert not found, f"{name} holds {len(found)} pieces of erased rows"
        assert not any(i.encode() in data for i in gone), f"{name} names an erased sample"


def main(folder: Path, samples: int, kills: int, seed: int) -> None:
    begin, chance = time.monotonic(), random.Random(seed)
    path = folder / "s"
    ids = names(samples + max(40, samples // 4))  # enough that no shard is left empty
    in_fork(lambda: prepare(path, ids))
    order = chance.sample(ids, samples)
    unlucky = set(chance.sample(range(samples), kills))
    probe = folder / "probe"
    in_fork(lambda: prepare(probe, ids[:8]))
    least = count_calls(probe, lambda p: erase(p, ids[0]))
    undone = 0
    for n, sample in enumerate(order):
        if n in unlucky:
            killed(path, lambda p, i=sample: erase(p, i), chance.randint(1, 2 * least), n % 2 == 1, folder / "progress")
            left = [i for i in ids if i not in order[: n + 1]]

            def look(n: int = n, sample: str = sample, left: list[str] = left) -> None:
                with FeatureStore(path) as store:
                    done = store.is_forgotten(sample)
                check(path, order[: n + done], left if done else [*left, sample])
                (folder / "undone").write_text(str(int(not done)))

            in_fork(look)
            undone += int((folder / "undone").read_text())
        in_fork(lambda i=sample: erase(path, i))
    in_fork(lambda: check(path, order, [i for i in ids if i not in order]))
    print(
        f"{samples} samples erased one by one, {kills} of the erasures killed ({undone} undone, {kills - undone} done):"
        f" 0 pieces of {PIECE} bytes left, {time.monotonic() - begin:.1f} s"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
