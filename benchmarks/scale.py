"""What a sample costs in a store: bytes, processor seconds, memory; and what a million, 10⁸ and 10⁹ of them would.

    python benchmarks/scale.py [--json] [--scratch FOLDER]

For each kind of row a store is written at two sizes, each in a process of its own; a cost per sample is the difference
between the two over the difference in rows, so that what does not grow drops out. Processor seconds are those of all
threads together. ``ids_memory`` is what a reader holds of ids and labels, ``writer_memory`` what a process holds that
also knows where every sample lies, as writing and erasing need it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from record import json_parser, print_report

from taftcache.cache.format.plan import in_order
from taftcache.cache.store import FeatureStore

KINDS = {
    "tokens": ((197, 1024), (256, 1280)),
    "attended": ((17, 1024), (4096, 16384)),
    "feature": ((1, 1024), (16384, 98304)),
}
BATCH = 64
SIZES = (10**6, 10**8, 10**9)


def child(folder: Path, rows: int, shape: tuple[int, int]) -> dict[str, float]:
    """Write, read and look into one store of one shard."""
    ids = in_order([f"n{k // 1000:08d}/img_{k:09d}.jpeg" for k in range(rows)], 0)
    data = np.random.default_rng(0).standard_normal((BATCH, *shape)).astype(np.float16)
    found: dict[str, float] = {}
    begin = time.process_time()
    with (
        FeatureStore.create(folder, identity={}, classes=["a", "b"], plan={}, recipe={}) as made,
        made.writer("000", "train", tokens_shape=shape, candidates=ids) as writer,
    ):
        for at in range(0, rows, BATCH):
            some = ids[at : at + BATCH]
            writer.append(data[: len(some)], some, np.zeros(len(some), np.int64))
        writer.commit()
    found["write_seconds"] = time.process_time() - begin
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    found["bytes"] = sum(files.values())
    found["chunk_files"] = sum("/tokens/c." in name for name in files)
    found["manifest_bytes"] = sum(s for n, s in files.items() if n.endswith(".json") and n.count("/") < 2)
    found["id_and_label_bytes"] = sum(s for n, s in files.items() if n.endswith("/c.0"))
    begin = time.process_time()
    store = FeatureStore(folder)
    shard = store.shards[0]
    shard.chunk_rows  # noqa: B018  the manifest
    found["open_seconds"] = time.process_time() - begin
    begin = time.process_time()
    tracemalloc.start()
    shard.sample_ids, shard.labels  # noqa: B018
    found["ids_memory"] = tracemalloc.get_traced_memory()[0]
    store.holds("nobody")
    found["writer_memory"] = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    found["ids_seconds"] = time.process_time() - begin
    begin = time.process_time()
    for _ in shard.blocks(shard.chunk_rows):
        pass
    found["first_pass_seconds"] = time.process_time() - begin
    begin = time.process_time()
    with FeatureStore(folder, mode="a") as again, again.transaction() as change:
        change.erase([ids[rows // 2]])
    found["erase_one_seconds"] = time.process_time() - begin
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for kind, (shape, sizes) in KINDS.items():
        runs = []
        for rows in sizes:
            folder = Path(tempfile.mkdtemp(prefix="taftcache-scale-", dir=args.scratch))
            command = [sys.executable, __file__, "--child", str(folder / "s"), str(rows), *map(str, shape)]
            try:
                runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            finally:
                shutil.rmtree(folder)
        more = sizes[1] - sizes[0]
        each = {name: (runs[1][name] - runs[0][name]) / more for name in runs[0]}
        out[kind] = {
            "shape": shape,
            "rows": sizes,
            "per_sample": {name: float(f"{value:.4g}") for name, value in each.items()},
            "total": {
                f"{n:.0e}": {
                    "terabytes": float(f"{each['bytes'] * n / 1e12:.4g}"),
                    "write_core_hours": float(f"{each['write_seconds'] * n / 3600:.3g}"),
                    "first_pass_core_hours": float(f"{each['first_pass_seconds'] * n / 3600:.3g}"),
                    "chunk_files": float(f"{each['chunk_files'] * n:.3g}"),
                    "ids_gigabytes": float(f"{each['ids_memory'] * n / 1e9:.3g}"),
                    "writer_gigabytes": float(f"{each['writer_memory'] * n / 1e9:.3g}"),
                }
                for n in SIZES
            },
        }
    return out


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        folder, rows, t, d = sys.argv[2:]
        print(json.dumps(child(Path(folder), int(rows), (int(t), int(d)))))
        return
    parser = json_parser(__doc__)
    parser.add_argument("--scratch", type=Path, help="where the stores are made (default: the system's)")
    args = parser.parse_args()
    found = measure(args)
    if args.json:
        print_report(found)
        return
    for kind, figures in found.items():
        print(kind, figures["shape"], f"measured at {figures['rows'][0]} and {figures['rows'][1]} rows")
        for name, value in figures["per_sample"].items():
            print(f"  {name:24} {value:.4g} a sample")
        for n, total in figures["total"].items():
            print(f"  {n} samples: " + ", ".join(f"{name} {value:g}" for name, value in total.items()))


if __name__ == "__main__":
    main()
