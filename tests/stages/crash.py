"""Run in a process of its own: kill -9 the pipeline's own stages again and again, at random moments.

    python -m tests.stages.crash FOLDER KILLS SEED

A command is killed and run again until it comes through: extract, then train and compose, then forget, then append.
After each kill the store must be whole, hold every row that was acknowledged before, and leave no stray file behind
once it is opened for writing; in the end it has the bytes of a store that nobody disturbed. Then the next store.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.journal import Journal
from tests.cache.crash import check_end, in_fork
from tests.stages.making import commits, recipe, tree, write_images

# loaded here, once, for the children that are forked
import taftcache.stages.extract.growth.appending  # isort: skip
import taftcache.stages.forget.forgetting  # isort: skip


def asked(path: Path, images: Path):  # type: ignore[no-untyped-def]
    return recipe(path, data={"source": "folder", "train": str(images)}, store={"chunk_rows": 2})


def extract(path: Path, images: Path) -> None:
    taftcache.extract(asked(path, images / "few"))


def train(path: Path, images: Path) -> None:
    with FeatureStore(path, mode="a") as store:
        taftcache.train(store)
        taftcache.compose(store)


def forget(path: Path, images: Path) -> None:
    with FeatureStore(path, mode="a") as store:
        taftcache.forget(store, victims(images))


def append(path: Path, images: Path) -> None:
    taftcache.append(asked(path, images / "all"))


def victims(images: Path) -> list[str]:
    files = sorted(p for p in (images / "few").glob("*/*.png"))[2:20:7]
    return [f.relative_to(images / "few").as_posix() for f in files]


JOBS: dict[str, Callable[[Path, Path], None]] = {"extract": extract, "train": train, "forget": forget, "append": append}


def rows(path: Path) -> dict[str, int]:
    """Shard -> rows that were acknowledged: committed, or durable in a writer's journal."""
    if not FeatureStore.exists(path):
        return {}
    with FeatureStore(path) as store:
        found = {ref.name: ref.rows for ref in store.manifest.shards}
        for name, _ in store.staging.entries("staging"):
            header, lines, _ = Journal(store.staging, f"staging/{name}").read()
            if header is not None:
                found[f"journal of {header.name}"] = sum(len(line.ids) for line in lines)
        return found


def look(path: Path, before: dict[str, int], job: str, gone: list[str]) -> None:
    """What a kill may leave."""
    if not FeatureStore.exists(path):
        assert not before
        return
    now = rows(path)
    with FeatureStore(path) as store:
        assert store.verify() == [], store.verify()
        forgotten = [store.is_forgotten(i) for i in gone]
        assert all(forgotten) or not any(forgotten), "half of a request to forget"
    for name, count in before.items():
        shard = name.removeprefix("journal of ")
        if name == shard:
            assert now.get(name, 0) >= count - (len(gone) if job == "forget" else 0), (name, count, now)
        else:
            assert now.get(name, 0) >= count or shard in now, f"{count} durable rows of {shard}, now {now}"
    with FeatureStore(path, mode="a") as store:
        assert store.strays() == []


def disturb(
    path: Path,
    images: Path,
    length: dict[str, float],
    final: dict[str, Any],
    count: dict[str, int],
    chance: random.Random,
    attempts: int,
) -> None:
    """One store through all jobs, each killed until it comes through, or so many times."""
    for job, work in JOBS.items():
        gone = victims(images) if job == "forget" else []
        for _ in range(attempts):
            before = rows(path)
            if (child := os.fork()) == 0:
                with open(os.devnull, "w") as silence:
                    os.dup2(silence.fileno(), 2)
                work(path, images)
                os._exit(0)
            time.sleep(chance.random() * length[job])
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            check_end(status)
            if status == 0:
                break  # it was through already
            count[job] += 1
            in_fork(partial(look, path, before, job, gone))
        in_fork(partial(work, path, images))
        found = tree(path) if job in ("extract", "train") else commits(path)
        assert found == final[job], f"after {job}"
    shutil.rmtree(path)


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    chance, begin = random.Random(seed), time.monotonic()
    images = folder / "images"
    write_images(images / "all", 14)
    shutil.copytree(images / "all", images / "few")
    for file in sorted((images / "few").glob("*/*.png"))[::4]:
        file.unlink()
    calm = folder / "calm"
    length: dict[str, float] = {}
    final: dict[str, Any] = {}
    for job, work in JOBS.items():
        start = time.monotonic()
        in_fork(partial(work, calm, images))
        length[job] = time.monotonic() - start
        final[job] = tree(calm) if job in ("extract", "train") else commits(calm)
    count = dict.fromkeys(JOBS, 0)
    stores = 0
    while sum(count.values()) < kills:
        disturb(folder / f"store{stores}", images, length, final, count, chance, min(12, kills))
        stores += 1
    spread = ", ".join(f"{job} {n}" for job, n in count.items())
    print(f"{sum(count.values())} kills ({spread}) over {stores} stores, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
