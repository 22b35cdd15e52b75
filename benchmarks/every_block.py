"""A head that reads every block, beside the last block's tangent: accuracy, and bytes a sample.

    python benchmarks/every_block.py [DATA ...] [--keep FOLDER] [--json]

DATA is digits, caltech101, caltech101-bundled or cifar10; all but digits need TAFTCACHE_DATA, and are in the default
where it is set; they go through DeiT-tiny, or the bundled ViT where the name says so. Each is run twice with λ chosen
from the rows, as its recipe is (the last block re-initialised and linearised), and with backbone.features =
"every block", tangent.blocks = 0 and tangent.init = "zero". Held against each other, on the same held-out rows: the two
models of all rows, the two means of the components, and each model of all rows and both linear probes of its own
features: scikit-learn's ridge classification and its logistic regression. Nothing of it depends on what else the
machine does.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import json_parser, print_report

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_component
from taftcache.names import EXACT, MEAN
from taftcache.recipe import Recipe, load_recipe
from taftcache.report.accuracy import accuracy_interval
from taftcache.report.paired import row_verdict
from taftcache.stages.look.probe import STRENGTHS, linear_probe
from taftcache.stages.train.record import settings_of
from taftcache.tangent.operator import TangentOperator

CIFAR = ["data.source=npz", "data.limit=3000", "preprocess.interpolation=bicubic"] + [
    f"data.{part}=${{TAFTCACHE_DATA}}/cifar10_{part}_jpeg.npz" for part in ("train", "test")
]
FOLDERS = ["data.source=folder", "store.plan=balanced"] + [
    f"data.{part}=${{TAFTCACHE_DATA}}/caltech101/{part}" for part in ("train", "test")
]
DATA: dict[str, tuple[str, list[str]]] = {
    "digits": ("quickstart", ["forget.samples=[]"]),
    "caltech101": ("caltech101", []),
    "caltech101-bundled": ("cifar10", FOLDERS),
    "cifar10": ("caltech101", CIFAR),
}
USUAL = ["objective.ridge=auto"]
WIDE = [*USUAL, "backbone.features=every block", "tangent.blocks=0", "tangent.init=zero", "tangent.reset_block=false"]


def right(store: FeatureStore, name: str) -> dict[str, bool]:
    """Which held-out rows a model gives their class, by id."""
    assert store.held_out is not None
    base = settings_of(store).base
    component = read_component(store, name, base)
    operator = TangentOperator(base, [store.held_out], trained=component.layout)
    found = [
        (state.logits + change).argmax(1) == labels
        for (state, labels), change in zip(operator.blocks(), operator.matvec(component.delta), strict=True)
    ]
    return dict(zip(store.held_out.sample_ids, torch.cat(found).tolist(), strict=True))


def ran(recipe: Recipe) -> dict[str, Any]:
    """One store, and what its models know."""
    taftcache.extract(recipe)
    taftcache.train(recipe.store_path, recipe)
    taftcache.compose(recipe.store_path, recipe=recipe)
    scores = taftcache.evaluate(recipe.store_path)
    with FeatureStore(recipe.store_path) as store:
        models = {name: right(store, name) for name in (EXACT, MEAN)}
        return {
            "rows": sum(shard.rows for shard in store.shards),
            "held_out": scores.rows,
            "bytes_per_sample": store.shards[0].nbytes / store.shards[0].rows,
            "accuracy": {m: [scores.accuracy[m], *scores.intervals[m]] for m in (EXACT, MEAN)},
            "probes": {kind: probed(store, kind, models[EXACT]) for kind in STRENGTHS},
            "right": models,
        }


def probed(store: FeatureStore, kind: str, exact: dict[str, bool]) -> dict[str, Any]:
    """A probe, and the model of all rows against it; ``exact``: which rows this has right."""
    assert store.held_out is not None
    found, hits = linear_probe(store, settings_of(store), store.held_out, kinds=[kind])
    ahead, interval, verdict, _ = row_verdict(np.array([exact[i] for i in store.held_out.sample_ids]), hits)
    return {
        "accuracy": [found.accuracy, *accuracy_interval(hits)],
        "strength": found.strength,
        "exact_against_it": {"ahead": ahead, "interval": interval, "verdict": verdict},
    }


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Both stores of one data set, and their models against each other."""
    recipe, overrides = DATA[name]
    found = {
        kind: ran(load_recipe(recipe, [*overrides, *said, f"store.path={folder / f'{name}-{kind}'}"]))
        for kind, said in (("last", USUAL), ("every", WIDE))
    }
    usual, wide = (found[kind].pop("right") for kind in ("last", "every"))
    against = {}
    for model in (EXACT, MEAN):
        ids = sorted(usual[model])
        ours, theirs = (np.array([of[model][i] for i in ids]) for of in (wide, usual))
        both = row_verdict(ours, theirs)
        against[model] = {"ahead": both.ahead, "interval": both.interval, "verdict": both.verdict}
    return {**found, "every_against_last": against}


def main() -> None:
    """Print the report."""
    parser = json_parser(__doc__)
    parser.add_argument("data", nargs="*", default=list(DATA) if os.environ.get("TAFTCACHE_DATA") else ["digits"])
    parser.add_argument("--keep", type=Path, help="stores are made there, and found there the next time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measured(name, args.keep or Path(folder)) for name in args.data}
    if args.json:
        print_report({"data": found})
        return
    for name, of in found.items():
        for kind in ("last", "every"):
            shares = of[kind]["accuracy"] | {probe: one["accuracy"] for probe, one in of[kind]["probes"].items()}
            scores = "  ".join(f"{model} {100 * a:.2f} %" for model, (a, *_) in shares.items())
            print(f"{name}, {kind}: {scores}  {of[kind]['bytes_per_sample']:,.0f} bytes a sample")
        for model, both in of["every_against_last"].items():
            low, high = both["interval"]
            print(f"  {model}: {100 * both['ahead']:+.2f} ({100 * low:+.1f} to {100 * high:+.1f}), {both['verdict']}")


if __name__ == "__main__":
    main()
