"""How cost grows with rows and with classes: each stage of a run in a process of its own, and the exponent of each.

    python benchmarks/growth.py [--rows N …] [--classes K …] [--set SECTION.KEY=VALUE …] [--full] [--keep FOLDER]
                                [--json]

Rows: CIFAR-10 through the bundled backbone where TAFTCACHE_DATA names it, else generated images of ten classes. Of more
than CIFAR-10's 50,000 images each is there several times, under ids of their own, in an HDF5 file of pixels.
Classes: 2,000 generated images, each its class's picture and noise. The store has ten shards, and a recipe's defaults
but ``tangent.reset_block``, as in pipelines/cifar10.toml: a solve goes on until its certificate decides about a
removal. ``train`` solves the shards and the exact model, whose λ are kept; ``start`` only opens the store. Seconds are
the processor's, those of all threads together; memory is the largest resident size of the stage's process, libraries
included. An exponent is the slope of log seconds against log size between the two largest sizes, with the seconds of
``start`` taken off. --full: 1,000 to 50,000 rows and 10 to 1,000 classes, about half an hour of one core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from record import Kept, json_parser, print_report, record

from taftcache.backbone.sources.arrays import AskedArrays
from taftcache.backbone.sources.npz import open_npz
from taftcache.cache.store import FeatureStore
from taftcache.names import EXACT
from taftcache.recipe import load_recipe

IMAGES = 2000  # of the stores that differ in classes
HELD_OUT = 500  # one of each class at least
CIFAR = (50000, 10000)  # images for training and testing
# What the system says of an ended process has the memory of the one that it was forked from, too.
COMMAND = """
import sys
from pathlib import Path
from taftcache.cli import main
file = sys.argv.pop(1)
try:
    main()
finally:
    Path(file).write_text(Path("/proc/self/status").read_text())
"""


def generated(file: Path, images: int, classes: int) -> None:
    """An npz file of small pictures: that of the class under noise."""
    g = np.random.default_rng(0)
    pictures, labels = g.integers(0, 256, (classes, 32, 32, 3)), np.arange(images) % classes
    noisy = 0.5 * pictures[labels] + 0.5 * g.integers(0, 256, (images, 32, 32, 3))
    np.savez(file, images=noisy.astype(np.uint8), labels=labels)


def repeated(file: Path, npz: Path, images: int) -> None:
    """An HDF5 file of the pictures of ``npz``, from the first again until there are ``images``."""
    source = open_npz(AskedArrays(npz, "images", "labels"))
    once = np.stack([np.asarray(source.read(k)) for k in range(len(source.items))])
    with h5py.File(file, "w") as out:
        to = out.create_dataset("images", (images, *once.shape[1:]), np.uint8)
        for at in range(0, images, len(once)):
            to[at : at + len(once)] = once[: images - at]
        out["labels"] = np.resize([item.label for item in source.items], images)
        out["classes"] = np.array(source.classes, dtype=h5py.string_dtype())


def recipe(folder: Path, rows: int, classes: int | None) -> list[str]:
    """Arguments that make a recipe of one size; ``classes`` None for CIFAR-10."""
    kind = "npz"
    if classes is None:
        data = Path(os.environ["TAFTCACHE_DATA"])
        train, test = data / "cifar10_train_jpeg.npz", data / "cifar10_test_jpeg.npz"
        if rows > CIFAR[0]:
            kind, npz = "hdf5", (train, test)
            train, test = folder / "train.h5", folder / "test.h5"
            for made, source, images in zip((train, test), npz, (rows, CIFAR[1]), strict=True):
                if not made.exists():
                    repeated(made, source, images)
    else:
        train, test = folder / "train.npz", folder / "test.npz"
        generated(train, rows, classes)
        generated(test, max(HELD_OUT, classes), classes)
    text = f"""
[data]
source = "{kind}"
train = "{train}"
test = "{test}"
limit = {rows}

[backbone]
weights = "bundled"

[store]
path = "{folder / "store"}"
shards = 10

[tangent]
reset_block = true
"""
    (folder / "size.toml").write_text(text, encoding="utf-8")
    return [str(folder / "size.toml")]


def stage(arguments: list[str]) -> dict[str, float]:
    """Processor seconds and largest memory of one command, which must end well."""
    with tempfile.NamedTemporaryFile("r") as said:
        command = [sys.executable, "-c", COMMAND, said.name, *arguments, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"taftcache {' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
        peak = next(line for line in said if line.startswith("VmHWM:"))
    return {"seconds": round(used.ru_utime + used.ru_stime, 2), "memory": int(peak.split()[1]) * 1024}


def size(folder: Path, rows: int, classes: int | None, changes: list[str]) -> dict[str, Any]:
    """Every stage of one store; stages that an earlier run measured are not repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    (toml,), store = recipe(folder, rows, classes), str(folder / "store")
    kept = Kept(folder / "figures", changes=changes)
    found: dict[str, Any] = kept.once(
        "record", lambda: {**record(), "tolerance": load_recipe(toml, changes).solver.tolerance}
    )
    runs = {
        "extract": ["extract", toml, *(word for change in changes for word in ("--set", change))],
        "train": ["train", store],
        "start": ["inspect", store, "--shard", "000"],
        "inspect": ["inspect", store],
        "evaluate": ["evaluate", store],
        "forget": ["forget", store],
        "page": ["report", store, "--output", str(folder / "page.html")],
    }
    for name, arguments in runs.items():
        found |= kept.once(name, partial(figures_of, name, arguments, store))
    return found


def figures_of(name: str, arguments: list[str], store: str) -> dict[str, Any]:
    """What a stage costs, and what the store is after it."""
    if name == "forget":
        with FeatureStore(store) as opened:
            arguments = [*arguments, "--sample", opened.shards[0].sample_ids[0]]
    found: dict[str, Any] = {name: stage(arguments)}
    with FeatureStore(store) as opened:
        found["rows"], found["classes"] = sum(s.rows for s in opened.shards), len(opened.classes)
        found["held_out"] = 0 if opened.held_out is None else opened.held_out.rows
        solved = [r.meta for n, r in opened.objects().items() if n.startswith("components/")]
        if name == "train":
            found[name]["passes"] = max(meta["stats"]["passes"] for meta in solved)
            found["ridges"] = sorted({meta["certificate"]["ridge"] for meta in solved})
            found["exact_ridge"] = opened.objects()[EXACT].meta["certificate"]["ridge"]
        if name in ("train", "forget"):
            found[name]["exact_passes"] = opened.objects()[EXACT].meta["stats"]["passes"]
        found["bytes"] = sum(p.stat().st_size for p in Path(store).rglob("*") if p.is_file())
    return found


def exponents(sizes: list[dict[str, Any]], by: str) -> dict[str, float]:
    """The slope of each stage's seconds between the two largest sizes; of stages that take half a second or more."""
    small, large = sizes[-2:]
    found = {}
    for name in ("extract", "train", "inspect", "evaluate", "forget", "page"):
        low, high = (one[name]["seconds"] - one["start"]["seconds"] for one in (small, large))
        if low > 0.5 and high > 0.5:
            found[name] = round(log(high / low) / log(large[by] / small[by]), 2)
    return found


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="*")
    parser.add_argument("--classes", type=int, nargs="*")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="of the recipe")
    parser.add_argument("--full", action="store_true", help="the sizes that the documentation shows")
    parser.add_argument("--keep", type=Path, help="where stores and figures stay, so that a run can go on")
    args = parser.parse_args()
    rows = ([1000, 4000, 16000, 50000] if args.full else [500, 1000, 2000]) if args.rows is None else args.rows
    classes = ([10, 100, 1000] if args.full else [10, 40]) if args.classes is None else args.classes
    real = "TAFTCACHE_DATA" in os.environ
    with tempfile.TemporaryDirectory() as scratch:
        place = args.keep or Path(scratch)
        by_rows = [size(place / f"rows-{n}", n, None if real else 10, args.set) for n in rows]
        by_classes = [size(place / f"classes-{k}", IMAGES, k, args.set) for k in classes]
    figures: dict[str, Any] = {"data": "CIFAR-10" if real else "generated", "cores": os.cpu_count()}
    for name, sizes in {"rows": by_rows, "classes": by_classes}.items():
        figures[name] = {"sizes": sizes, "exponents": exponents(sizes, name) if len(sizes) > 1 else {}}
    if args.json:
        print_report(figures)
        return
    for name in (n for n in ("rows", "classes") if figures[n]["sizes"]):
        print(f"\n{name:>9} | seconds of the processor (memory in MiB)")
        for one in figures[name]["sizes"]:
            cells = [f"{s} {v['seconds']:.1f} ({v['memory'] >> 20})" for s, v in one.items() if isinstance(v, dict)]
            print(f"{one[name]:>9} | {', '.join(cells)}")
        print(f"exponents | {', '.join(f'{s} {e:.2f}' for s, e in figures[name]['exponents'].items())}")


if __name__ == "__main__":
    main()
