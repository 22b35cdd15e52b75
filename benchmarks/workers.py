"""Extraction, training by shard and the exact solve on Dask's workers of this machine, against this process alone.

    python benchmarks/workers.py [--rows N] [--workers N …] [--full] [--json]

CIFAR-10 through the bundled backbone where TAFTCACHE_DATA names it, else generated images; ten shards, λ = 10⁻², a
tolerance of 10⁻³. Every worker and this process compute with one thread; ``alone`` is this
process without workers, whose extraction runs a batch on each core all the same. ``lost`` is the share of the cores'
time that brought nothing: 1 − seconds of one worker / (seconds × the smaller of workers and cores). ``processor`` is of
all processes together. ``start`` is the time until the workers answer. The root digests of all stores must be one.
--full: 20,000 rows.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from record import json_parser, print_report

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before torch is loaded

import psutil
from growth import recipe

import taftcache
from taftcache import FeatureStore, load_recipe
from taftcache.remote.cluster import Cluster

STAGES = ("extract", "train", "compose")


def processor() -> float:
    """Seconds of the processor that this process and those below it have taken."""
    own = psutil.Process()
    times = [p.cpu_times() for p in (own, *own.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the clock and of the processor."""
    clock, before = time.perf_counter(), processor()
    work()
    return {"clock": round(time.perf_counter() - clock, 2), "processor": round(processor() - before, 2)}


@contextmanager
def connected(workers: int, found: dict[str, Any]) -> Iterator[Cluster | None]:
    """Workers, and how long they took to come; None for none."""
    if not workers:
        yield None
        return
    begun = time.perf_counter()
    with Cluster.local(workers, threads=1) as cluster:
        found["start"] = round(time.perf_counter() - begun, 2)
        yield cluster


def run(folder: Path, rows: int, real: bool, workers: int) -> dict[str, Any]:
    """The three stages once, into a store of their own."""
    folder.mkdir()
    (toml,) = recipe(folder, rows, None if real else 10)
    settings = load_recipe(toml, ["objective.ridge=1e-2", "solver.tolerance=1e-3"])
    found: dict[str, Any] = {"workers": workers}
    with connected(workers, found) as cluster:
        found["extract"] = timed(lambda: taftcache.extract(settings, cluster=cluster))
        with FeatureStore(settings.store_path, mode="a") as store:
            found["train"] = timed(lambda: taftcache.train(store, cluster=cluster))
            found["compose"] = timed(lambda: taftcache.compose(store, cluster=cluster))
            found["root"] = store.root_digest
    return found


def lost(found: list[dict[str, Any]], cores: int) -> None:
    """Of each number of workers and stage the share of the cores' time that one worker would not have taken."""
    one = next((f for f in found if f["workers"] == 1), None)
    for f in found:
        if one is not None and f["workers"]:
            used = min(f["workers"], cores)
            f["lost"] = {s: round(1 - one[s]["clock"] / (f[s]["clock"] * used), 3) for s in STAGES}


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--rows", type=int, help="training images; 5,000 by default")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4], help="0: this process alone")
    parser.add_argument("--full", action="store_true", help="20,000 rows")
    args = parser.parse_args()
    real, cores = "TAFTCACHE_DATA" in os.environ, len(os.sched_getaffinity(0))
    rows = args.rows or (20000 if args.full else 5000)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for workers in args.workers:  # in one place, for its name is part of a root digest
            shutil.rmtree(place := Path(scratch) / "run", ignore_errors=True)
            found.append(run(place, rows, real, workers))
            print(f"{workers} workers done", file=sys.stderr, flush=True)
    if len(roots := {f["root"] for f in found}) > 1:
        raise SystemExit(f"the stores differ: {', '.join(sorted(root[:16] for root in roots))}")
    lost(found, cores)
    if args.json:
        print_report({"data": "CIFAR-10" if real else "generated", "rows": rows, "cores": cores, "runs": found})
        return
    print(f"{rows} rows, {cores} cores; seconds of the clock (of the processor), share of the cores' time lost")
    for f in found:
        share = f.get("lost", {})
        cells = [f"{s} {f[s]['clock']:.1f} ({f[s]['processor']:.1f}) {share.get(s, '')}".strip() for s in STAGES]
        print(
            f"{f['workers'] or 'alone':>6} | {' | '.join(cells)}" + (f" | start {f['start']}" if "start" in f else "")
        )


if __name__ == "__main__":
    main()
