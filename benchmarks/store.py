"""How fast a store is read and written, beside plain files and other formats, in one run.

    python benchmarks/store.py [--json] [--rows 2048] [--shape 197 1024] [--repeats 7] [--scratch FOLDER]

Everything is measured warm (in the page cache) and in turns, round after round; a figure is the best of its rounds, a
ratio is of two such figures, and ``spread`` gives least, median and most of the single rounds' ratios. Bars:
``first_pass_vs_read`` 0.5, ``read_vs_memmap`` 0.8, ``random_vs_memmap`` 0.5, ``write_vs_raw`` 0.7. Peers: h5py
(contiguous), Zarr's array API on the shard's own group, safetensors, TensorStore (where it is installed) on the same
group. None of them checks a digest.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from record import json_parser, print_figures
from safetensors import safe_open
from safetensors.numpy import save_file

from taftcache.cache.format.plan import in_order
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore

BLOCK = 64
BARS = {"first_pass_vs_read": 0.5, "read_vs_memmap": 0.8, "random_vs_memmap": 0.5, "write_vs_raw": 0.7}


class Bench:
    """One shard's rows in every form."""

    def __init__(self, folder: Path, rows: int, shape: tuple[int, int], blocks: int) -> None:
        self.folder, self.rows, self.shape = folder, rows, shape
        chance = np.random.default_rng(0)
        self.ids = in_order([f"bench/{k:08d}" for k in range(rows)], 0)
        part = chance.standard_normal((min(rows, 256), *shape)).astype(np.float16)
        self.data = np.concatenate([part] * -(-rows // len(part)))[:rows]
        self.data[:, 0, 0] = np.arange(rows) % 2048  # no two chunks alike
        self.starts = chance.integers(0, rows - BLOCK, blocks).tolist()
        self.write_store()
        self.write_raw()
        with h5py.File(folder / "x.h5", "w") as out:
            out["tokens"] = self.data
        save_file({"tokens": self.data}, folder / "x.safetensors")
        with FeatureStore(folder / "store") as store:
            self.group, self.chunk_rows = folder / "store" / store.shards[0].at, store.shards[0].chunk_rows
        self.files = sorted((self.group / "tokens").glob("c.*"))
        self.buffer = np.empty((self.chunk_rows, *shape), np.float16)
        self.block = np.empty((BLOCK, *shape), np.float16)
        self.warm: Shard = FeatureStore(folder / "store").shards[0]
        self.memmap = np.memmap(folder / "x.raw", np.float16, "r", shape=self.data.shape)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def write_store(self) -> None:
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        with (
            FeatureStore.create(
                self.folder / "store", identity={}, classes=["a", "b"], plan={"kind": "hash"}, recipe={}
            ) as store,
            store.writer("000", "train", tokens_shape=self.shape, candidates=self.ids) as writer,
        ):
            for at in range(0, self.rows, BLOCK):
                some = self.ids[at : at + BLOCK]
                writer.append(self.data[at : at + BLOCK], some, np.zeros(len(some), np.int64))
            writer.commit()

    def write_raw(self) -> None:
        """One file, in the same pieces, fsynced once."""
        with open(self.folder / "x.raw", "wb", buffering=0) as out:
            for at in range(0, self.rows, BLOCK):
                out.write(self.data[at : at + BLOCK].data)
            os.fsync(out.fileno())

    def plain_read(self) -> None:
        """The chunk files into one buffer that is used again."""
        for file in self.files:
            with open(file, "rb", buffering=0) as source:
                source.readinto(self.buffer.data)

    def first_pass(self) -> None:
        """A store opened anew: every byte against its digest."""
        with FeatureStore(self.folder / "store") as store:
            for _ in store.shards[0].blocks(self.chunk_rows):
                pass

    def later_pass(self) -> None:
        for block in self.warm.blocks(self.chunk_rows):
            np.copyto(self.buffer[: len(block.tokens)], block.tokens)

    def memmap_pass(self) -> None:
        self._slices(self.memmap)

    def random_blocks(self) -> None:
        for start in self.starts:
            np.copyto(self.block, self.warm.tokens(slice(start, start + BLOCK)))

    def random_memmap(self) -> None:
        for start in self.starts:
            np.copyto(self.block, self.memmap[start : start + BLOCK])

    def h5py_pass(self) -> None:
        with h5py.File(self.folder / "x.h5") as source:
            rows = source["tokens"]
            for at in range(0, self.rows, self.chunk_rows):
                stop = min(at + self.chunk_rows, self.rows)
                rows.read_direct(self.buffer, np.s_[at:stop], np.s_[: stop - at])

    def h5py_random(self) -> None:
        with h5py.File(self.folder / "x.h5") as source:
            for start in self.starts:
                source["tokens"].read_direct(self.block, np.s_[start : start + BLOCK])

    def zarr_pass(self) -> None:
        self._slices(zarr.open_group(self.group, mode="r")["tokens"])

    def zarr_random(self) -> None:
        rows: Any = zarr.open_group(self.group, mode="r")["tokens"]
        for start in self.starts:
            np.copyto(self.block, rows[start : start + BLOCK])

    def safetensors_pass(self) -> None:
        with safe_open(self.folder / "x.safetensors", "np") as source:
            self._slices(source.get_slice("tokens"))

    def safetensors_random(self) -> None:
        with safe_open(self.folder / "x.safetensors", "np") as source:
            rows = source.get_slice("tokens")
            for start in self.starts:
                np.copyto(self.block, rows[start : start + BLOCK])

    def tensorstore_pass(self) -> None:
        rows = self._tensorstore()
        for at in range(0, self.rows, self.chunk_rows):
            found = rows[at : at + self.chunk_rows].read().result()
            np.copyto(self.buffer[: len(found)], found)

    def tensorstore_random(self) -> None:
        rows = self._tensorstore()
        for start in self.starts:
            np.copyto(self.block, rows[start : start + BLOCK].read().result())

    def _tensorstore(self) -> Any:
        import tensorstore

        place = {"driver": "file", "path": f"{self.group / 'tokens'}/"}
        return tensorstore.open({"driver": "zarr3", "kvstore": place}, open=True).result()

    def _slices(self, rows: Any) -> None:
        for at in range(0, self.rows, self.chunk_rows):
            found = rows[at : min(at + self.chunk_rows, self.rows)]
            np.copyto(self.buffer[: len(found)], found)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="taftcache-bench-", dir=args.scratch))
    try:
        bench = Bench(folder, args.rows, tuple(args.shape), args.blocks)
        timed: dict[str, tuple[Callable[[], None], int]] = {
            "plain_read": (bench.plain_read, bench.nbytes),
            "first_pass": (bench.first_pass, bench.nbytes),
            "memmap": (bench.memmap_pass, bench.nbytes),
            "later_pass": (bench.later_pass, bench.nbytes),
            "h5py": (bench.h5py_pass, bench.nbytes),
            "zarr": (bench.zarr_pass, bench.nbytes),
            "safetensors": (bench.safetensors_pass, bench.nbytes),
            "random_memmap": (bench.random_memmap, args.blocks * bench.block.nbytes),
            "random_blocks": (bench.random_blocks, args.blocks * bench.block.nbytes),
            "random_h5py": (bench.h5py_random, args.blocks * bench.block.nbytes),
            "random_zarr": (bench.zarr_random, args.blocks * bench.block.nbytes),
            "random_safetensors": (bench.safetensors_random, args.blocks * bench.block.nbytes),
            "raw_write": (bench.write_raw, bench.nbytes),
            "write": (bench.write_store, bench.nbytes),
        }
        try:
            import tensorstore  # noqa: F401
        except ImportError:
            pass
        else:
            timed["tensorstore"] = (bench.tensorstore_pass, bench.nbytes)
            timed["random_tensorstore"] = (bench.tensorstore_random, args.blocks * bench.block.nbytes)
        bench.later_pass()
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        processor: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(args.repeats):
            for name, (run, _) in timed.items():
                begin, used = time.perf_counter(), time.process_time()
                run()
                seconds[name].append(time.perf_counter() - begin)
                processor[name].append(time.process_time() - used)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rate = {name: size / min(seconds[name]) / 1e9 for name, (_, size) in timed.items()}
    pairs = {
        "first_pass_vs_read": ("plain_read", "first_pass"),
        "read_vs_memmap": ("memmap", "later_pass"),
        "random_vs_memmap": ("random_memmap", "random_blocks"),
        "write_vs_raw": ("raw_write", "write"),
    }
    single = {
        name: sorted(a / b for a, b in zip(seconds[one], seconds[two], strict=True))
        for name, (one, two) in pairs.items()
    }
    return {
        **{name: rate[two] / rate[one] for name, (one, two) in pairs.items()},
        "bars": BARS,
        "spread": {
            name: [round(x[0], 3), round(statistics.median(x), 3), round(x[-1], 3)] for name, x in single.items()
        },
        "gb_per_s": {name: round(value, 3) for name, value in rate.items()},
        "processor_seconds": {name: round(min(values), 4) for name, values in processor.items()},
        "rows": args.rows,
        "shape": args.shape,
        "chunk_rows": bench.chunk_rows,
        "bytes": bench.nbytes,
        "block_rows": BLOCK,
        "repeats": args.repeats,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "cores": os.cpu_count(),
        "load_before": args.load,
        "load_after": round(os.getloadavg()[0], 2),
        "versions": {"zarr": zarr.__version__, "h5py": h5py.__version__},
    }


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--shape", type=int, nargs=2, default=[197, 1024], metavar=("T", "D"))
    parser.add_argument("--blocks", type=int, default=24, help=f"random blocks of {BLOCK} rows a round")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scratch", type=Path, help="where the files are made (default: the system's)")
    args = parser.parse_args()
    args.load = round(os.getloadavg()[0], 2)
    print_figures(measure(args), args.json)


if __name__ == "__main__":
    main()
