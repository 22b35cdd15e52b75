"""What rows in 8 bits cost beside float16: bytes a sample, seconds of a pass, accuracy.

    python benchmarks/rows.py [STORE ...] [--json]

STORE is a store in float16 with an exact model; by default one of the recipe quickstart, and of caltech101 where
TAFTCACHE_DATA names its images, which are made in a temporary folder. Each is converted to int8, which gives the bytes
of an extraction in int8. The exact model of the tokens is solved over its rows with the λ that was chosen for float16,
and held against the store's own on the same held-out rows. The same again for what is left of the tokens where less is
trained: the heads' means, the class row after attention, and the head's input; both models are solved there. A pass is
one gradient over 512 rows at most, read anew from the store, best of five rounds in turns. Only the seconds depend on
the machine; caltech101 took a quarter of an hour of one shared core.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from record import json_parser, print_report

import taftcache
from taftcache.cache.format.encoding import as_read, row_bytes
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_component
from taftcache.names import EXACT
from taftcache.objective.problem import Problem
from taftcache.recipe import load_recipe
from taftcache.report.accuracy import accuracy_interval
from taftcache.report.paired import row_verdict
from taftcache.solve.minimise import minimise
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.tangent.base import Base
from taftcache.tangent.class_row.tail import ClassRowTail
from taftcache.tangent.config import Rows
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource, RowSubset
from taftcache.tangent.selection import ROWS, smallest_rows
from taftcache.tangent.spec import Train

KINDS: tuple[Rows, ...] = ("tokens", "attended", "residual", "feature")
DTYPES = ("float16", "int8")
ROUNDS, MOST = 5, 512


class Bench:
    """A store in float16, and its conversion."""

    def __init__(self, wide: FeatureStore, narrow: FeatureStore) -> None:
        self.stores = dict(zip(DTYPES, (wide, narrow), strict=True))
        settings = settings_of(wide)
        self.exact = read_component(wide, EXACT, settings.base)
        assert self.exact.record.certified is not None
        self.settings: Settings = settings.at(ridge=self.exact.record.certified.ridge)
        self.base = self.settings.base
        assert wide.held_out is not None
        self.held_labels = np.asarray(wide.held_out.labels)

    def report(self) -> dict[str, Any]:
        """Of all kinds of rows."""
        store = self.stores["float16"]
        return {
            "rows": sum(shard.rows for shard in store.shards),
            "held_out": len(self.held_labels),
            "ridge": self.settings.recipe.objective.ridge,
            "store_bytes": {dtype: _bytes_a_row(one) for dtype, one in self.stores.items()},
            "pass_seconds": self.passes(),
            "kinds": {kind: self.kind(kind) for kind in KINDS},
        }

    def kind(self, kind: Rows) -> dict[str, Any]:
        """Bytes of a sample, and the two models' accuracy."""
        base, train = self.reduced(kind), self.trained(kind)
        layout = base.trained(train)
        delta, classes = {}, {}
        for dtype in DTYPES:
            *rows, held = self.sources(kind, dtype)
            if kind == "tokens" and dtype == "float16":
                delta[dtype] = self.exact.delta
            else:
                objective = self.settings.objective(self.stores["float16"].shards, train)
                settings = self.settings
                found = minimise(base, rows, objective, goal=settings.goal, arithmetic=settings.arithmetic)
                assert found.converged, found.status
                delta[dtype] = found.value
            operator = TangentOperator(base, [held], trained=layout)
            way = operator.direction(delta[dtype])
            logits = [state.logits + operator.tangent(state, way) for state, _ in operator.blocks()]
            classes[dtype] = torch.cat(logits).argmax(1).numpy()
        right = {dtype: found == self.held_labels for dtype, found in classes.items()}
        verdict = row_verdict(right["int8"], right["float16"])
        moved = torch.linalg.vector_norm(delta["int8"].double() - delta["float16"].double())
        return {
            "bytes": {dtype: sum(row_bytes(_shape(held), dtype)) for dtype in DTYPES},
            "accuracy": {dtype: [float(hit.mean()), *accuracy_interval(hit)] for dtype, hit in right.items()},
            "ahead": [verdict.ahead, *verdict.interval],
            "verdict": verdict.verdict,
            "changed": int((classes["int8"] != classes["float16"]).sum()),
            "moved": float(moved / torch.linalg.vector_norm(delta["float16"].double())),
        }

    def trained(self, kind: Rows) -> Train:
        """All parameters of the tail that such rows are enough for."""
        if kind == "tokens":
            return self.settings.train
        names = [*self.base.config.parameters, *self.base.config.head_names]
        return [n for n in names if ROWS.index(smallest_rows(self.base.config, [n])) >= ROWS.index(kind)]

    def reduced(self, kind: Rows) -> Base:
        """The base point over such rows."""
        if kind == "tokens":
            return self.base
        made_by = self.base.reduction_digest()
        return replace(self.base, config=msgspec.structs.replace(self.base.config, rows=kind, reduced_by=made_by))

    def sources(self, kind: Rows, dtype: str) -> list[RowSource]:
        """The shards' rows and the held-out ones, as a store of that dtype has them."""
        if kind == "tokens":
            store = self.stores[dtype]
            assert store.held_out is not None
            return [*store.shards, store.held_out]
        store = self.stores["float16"]
        assert store.held_out is not None
        return [self._rows(shard, kind, dtype) for shard in (*store.shards, store.held_out)]

    @torch.no_grad()
    def _rows(self, shard: Shard, kind: Rows, dtype: str) -> ArrayRows:
        tail = self.base.tail
        assert isinstance(tail, ClassRowTail)
        bound = tail.bind(self.base.state)
        made = []
        for block in shard.blocks(128):
            x = torch.from_numpy(block.tokens.astype(np.float32))
            found = tail.value(bound, x).feature[:, None] if kind == "feature" else tail.reduce(bound, x, kind)
            made.append(found.numpy().astype(np.float16))
        rows = np.concatenate(made)
        return ArrayRows(as_read(rows.astype(np.float32), dtype) if dtype == "int8" else rows, shard.labels)

    def passes(self) -> dict[str, float]:
        """Seconds of a gradient over some rows, by dtype."""
        best, layout = dict.fromkeys(DTYPES, float("inf")), self.base.trained(self.settings.train)
        for _ in range(ROUNDS):
            for dtype, store in self.stores.items():
                count = min(MOST, sum(shard.rows for shard in store.shards))
                operator = TangentOperator(self.base, [RowSubset(store.shards, np.arange(count))], trained=layout)
                problem = Problem.of(self.settings.objective(store.shards, self.settings.train), operator)
                begin = time.perf_counter()
                problem.evaluate(torch.zeros(layout.size))
                best[dtype] = min(best[dtype], time.perf_counter() - begin)
        return best


def _shape(rows: RowSource) -> tuple[int, int]:
    block = next(iter(rows.blocks(1)))
    return block.tokens.shape[1], block.tokens.shape[2]


def _bytes_a_row(store: FeatureStore) -> float:
    """Of all files of the shards, padding and manifests included."""
    shards = [store.shard(ref.name) for ref in store.manifest.shards]
    return sum(shard.nbytes for shard in shards) / sum(shard.rows for shard in shards)


def measured(path: Path, folder: Path) -> dict[str, Any]:
    """One store, converted into ``folder``."""
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        target = Path(inner) / "int8"
        taftcache.convert(path, target, dtype="int8")
        with FeatureStore(path) as wide, FeatureStore(target) as narrow:
            return Bench(wide, narrow).report()


def made(names: Sequence[str], folder: Path) -> list[Path]:
    """Stores of these recipes, with their exact models."""
    for name in names:
        taftcache.run(load_recipe(name, [f"store.path={folder / name}", "forget.samples=[]"]))
    return [folder / name for name in names]


def main() -> None:
    """Print the report."""
    parser = json_parser(__doc__)
    parser.add_argument("stores", nargs="*", type=Path, metavar="STORE")
    args = parser.parse_args()
    default = ["quickstart", "caltech101"] if os.environ.get("TAFTCACHE_DATA") else ["quickstart"]
    report: dict[str, Any] = {"stores": {}}
    with tempfile.TemporaryDirectory() as folder:
        for path in args.stores or made(default, Path(folder)):
            found = report["stores"][path.name] = measured(path, Path(folder))
            if not args.json:
                show(path.name, found)
    if args.json:
        print_report(report)


def show(name: str, found: dict[str, Any]) -> None:
    """One store, for people."""
    seconds = found["pass_seconds"]
    print(f"{name}: a pass {1e3 * seconds['float16']:.0f} ms in float16, {1e3 * seconds['int8']:.0f} ms in int8")
    for kind, one in found["kinds"].items():
        wide, narrow = (100 * one["accuracy"][dtype][0] for dtype in DTYPES)
        ahead, low, high = (100 * value for value in one["ahead"])
        print(
            f"  {kind}: {one['bytes']['float16']} and {one['bytes']['int8']} bytes; {wide:.2f} and {narrow:.2f} %,"
            f" {ahead:+.2f} points ({low:+.2f} to {high:+.2f}), {one['verdict']}; {one['changed']} rows of"
            f" {found['held_out']} get another class; Δw moved by {one['moved']:.1e} of itself"
        )


if __name__ == "__main__":
    main()
