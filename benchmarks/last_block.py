"""What the exact last-block solution gains over the head alone, over seeds of the base point.

    python benchmarks/last_block.py [RECIPE] [--seeds 3] [--json]

RECIPE is pipelines/caltech101.toml (needs TAFTCACHE_DATA) or, without that folder,
pipelines/quickstart.toml; its store is made if it is not there. For each seed of the new head and the
reset block, both problems are solved over the training rows of all shards with the same loss and ridge,
and both solutions are tested on the held-out rows. ``margin`` is in points of top-1 accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import msgspec
import torch

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_base
from taftcache.objective.named import true_class_weight
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.recipe import load_recipe
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.stages.extract.extraction import extract
from taftcache.stages.memory import memory_of
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout

PIPELINES = Path(__file__).resolve().parents[1] / "pipelines"


def accuracy(base: Base, layout: Layout, delta: torch.Tensor, rows: Shard) -> float:
    """Top-1 in percent of base + Δw on ``rows``."""
    operator = TangentOperator(base, [rows], trained=layout)
    correct = 0
    for (state, labels), change in zip(operator.blocks(), operator.matvec(delta), strict=True):
        correct += int(((state.logits + change).argmax(1) == labels).sum())
    return 100 * correct / rows.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = "caltech101.toml" if os.environ.get("TAFTCACHE_DATA") else "quickstart.toml"
    parser.add_argument("recipe", nargs="?", type=Path, default=PIPELINES / default)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    recipe = load_recipe(args.recipe, ["objective.ridge=1e-3", *args.set])  # one λ for all that is compared
    extract(recipe)
    runs = []
    with FeatureStore(recipe.store_path) as store:
        assert store.held_out is not None
        asked, ridge = recipe.objective, recipe.objective.ridge
        loss = RSL(alpha=true_class_weight(asked.alpha, len(store.classes)), kappa=asked.kappa)
        for seed in range(args.seeds):
            base = read_base(store, msgspec.structs.replace(recipe.tangent, seed=seed))
            head = minimise(base, store.shards, Objective(loss=loss, ridge=ridge, train="head"))
            begin = time.perf_counter()
            solver = recipe.solver
            block = minimise(
                base,
                store.shards,
                Objective(loss=loss, ridge=ridge),
                goal=Goal(tolerance=solver.tolerance, max_passes=solver.max_passes),
                arithmetic=Arithmetic(memory=memory_of(recipe)),
            )
            seconds = time.perf_counter() - begin
            of_head = accuracy(base, base.head_layout, head.value, store.held_out)
            of_block = accuracy(base, base.layout, block.value, store.held_out)
            runs.append(
                {
                    "seed": seed,
                    "head_only": of_head,
                    "last_block": of_block,
                    "margin": of_block - of_head,
                    "seconds": seconds,
                    "passes": block.stats["passes"],
                    "status": block.status.name,
                    "relative_gradient": block.certificate.relative_gradient,
                }
            )
            if not args.json:
                print(json.dumps(runs[-1]), flush=True)
        margins = [run["margin"] for run in runs]
        report = {
            "recipe": args.recipe.name,
            "training_rows": sum(shard.rows for shard in store.shards),
            "held_out_rows": store.held_out.rows,
            "ridge": ridge,
            "kappa": loss.kappa,
            "margin_mean": statistics.mean(margins),
            "margin_std": statistics.stdev(margins) if len(margins) > 1 else 0.0,
            "runs": runs,
        }
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print(f"margin {report['margin_mean']:.2f} ± {report['margin_std']:.2f} points over {len(runs)} seeds")


if __name__ == "__main__":
    main()
