"""Run in a process of its own: random requests to forget, some killed, against one cold request for the same rows.

    python -m tests.stages.history FOLDER SEED COUNT

Each sequence mixes samples, shards and classes, all modes, repeats, and kill -9 at random changes of the disk. It ends
in a cold request. Then the store must have the bytes of one that was told everything at once, and no trace of what
left. Prints what was done; exit status 1 and a traceback for a broken promise.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.model.members import subtracted
from taftcache.names import EXACT
from tests.cache.crash import check_end, hook, in_fork
from tests.cache.making import tree
from tests.stages.making import commits, recipe

# loaded here, once, for the children that are forked
import taftcache.stages.audit.auditing  # isort: skip
import taftcache.stages.forget.forgetting  # isort: skip

SETTINGS = {
    "data": {"source": "digits", "limit": 54},
    "store": {"shards": 3, "chunk_rows": 8},
    "compose": {"mode": "exact"},
}


@dataclass
class Request:
    """Arguments of one ``forget``."""

    samples: list[str] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    mode: str = "retrain"


def carry_out(path: Path, request: Request) -> None:
    with FeatureStore(path, mode="a") as store:
        taftcache.forget(store, request.samples, shards=request.shards, classes=request.classes, mode=request.mode)


def draw(path: Path, chance: random.Random, gone: list[str]) -> Request:
    """A request that the store can carry out."""
    with FeatureStore(path) as store:
        training, held = store.sample_ids(), store.held_out
        ids = training + (held.sample_ids if held else [])
        modes = ["retrain", "subtract"] + (["resolve"] if EXACT in store.objects() else [])
        mode = chance.choice(modes)
        what = chance.random()
        names = [shard.name for shard in store.shards]
        if what < 0.1 and len(names) > 1:
            name = chance.choice(names)
            if leaving(store, store.shard(name).sample_ids):
                mode = "retrain"
            return Request(shards=[name], mode=mode)
        if what < 0.2 and len(store.classes) > 3:
            return Request(classes=[chance.choice(store.classes)], mode="retrain")
        some = chance.sample(ids, min(len(ids), chance.choice([1, 1, 2, 3])))
        if gone and chance.random() < 0.3:
            some.append(chance.choice(gone))
        if leaving(store, some):
            mode = "retrain"
        return Request(some, mode=mode)


def leaving(store: FeatureStore, ids: list[str]) -> bool:
    """Whether a class goes with them: subtracting cannot take one out."""
    stays = {k for part in _parts(store) for i, k in zip(part.sample_ids, part.labels, strict=True) if i not in ids}
    return not {k for part in _parts(store) for k in part.labels} <= stays


def _parts(store: FeatureStore) -> list:
    return [*store.shards, *([store.held_out] if store.held_out else [])]


def settle(path: Path) -> None:
    """End a sequence: train what was subtracted, compose, and forget one more row cold."""
    with FeatureStore(path, mode="a") as store:
        if out := subtracted(store):
            taftcache.train(store, shards=out)
        taftcache.compose(store)
        last = store.sample_ids()[0]
        taftcache.forget(store, [last])


def left(path: Path) -> set[str]:
    with FeatureStore(path) as store:
        return {i for part in _parts(store) for i in part.sample_ids}


def check(base: Path, path: Path, folder: Path) -> None:
    """Byte for byte a store that was told everything at once, and no trace."""
    with FeatureStore(base) as store:
        rows = {i: part.tokens(slice(k, k + 1))[0] for part in _parts(store) for k, i in enumerate(part.sample_ids)}
        classes = store.classes
    gone = sorted(rows.keys() - left(path))
    cold = shutil.copytree(base, folder / "cold")
    carry_out(cold, Request(gone))
    ours, theirs = commits(path), commits(cold)
    assert ours == theirs, [k for k in ours if ours[k] != theirs[k]]
    report = taftcache.audit(path)
    assert report.findings == [], report.findings
    files = tree(path)
    with FeatureStore(path) as store:
        out = [name for name in classes if name not in store.classes]
        assert all(store.is_forgotten(i) for i in gone)
    for name, data in files.items():
        for i in gone:
            assert i.encode() not in data, (name, i)
            raw = rows[i][1:].tobytes()  # the class token's row is every image's
            assert not any(raw[k : k + 48] in data for k in range(0, len(raw) - 48, 480)), (name, i)
    assert not any(f'"{name}"'.encode() in files["manifest.json"] for name in out)
    shutil.rmtree(cold)


def main(folder: Path, seed: int, count: int) -> None:
    torch.set_num_threads(1)
    base = folder / "base"
    in_fork(lambda: taftcache.run(recipe(base, **SETTINGS)) and None)
    done: Counter[str] = Counter()
    begin = time.monotonic()
    for n in range(count):
        chance = random.Random(seed + n)
        path = shutil.copytree(base, folder / f"run{n}")
        with FeatureStore(base) as store:
            everyone = {i for part in _parts(store) for i in part.sample_ids}
        try:
            for _ in range(chance.randint(2, 5)):
                request = draw(path, chance, sorted(everyone - left(path)))
                done[request.mode] += 1
                if chance.random() < 0.4:
                    kill(path, request, chance.randint(1, 100))
                    done["kills"] += 1
                in_fork(lambda path=path, request=request: carry_out(path, request))
                if chance.random() < 0.3:
                    in_fork(lambda path=path, request=request: carry_out(path, request))
                    done["repeats"] += 1
            in_fork(lambda path=path: settle(path))
            in_fork(lambda path=path: check(base, path, folder))
        except AssertionError:
            print(f"seed {seed + n}", flush=True)
            raise
        shutil.rmtree(path)
        path.with_name(f"{path.name}.forgotten").unlink()
        (folder / "cold.forgotten").unlink()
    print(f"{count} sequences, {dict(done)}, {time.monotonic() - begin:.1f} s")


def kill(path: Path, request: Request, point: int) -> None:
    """Fork one that carries the request out and is killed before its ``point``-th change of the disk."""
    if (child := os.fork()) == 0:
        hook(point, point % 2 == 1)
        carry_out(path, request)
        os._exit(0)
    check_end(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
