"""What the exact last-block solution gains over the head alone, over seeds of the base point.

    python benchmarks/last_block.py [RECIPE] [--seeds 3] [--ridge λ] [--json]

RECIPE is pipelines/caltech101.toml (needs TAFTCACHE_DATA) or, without that folder,
pipelines/quickstart.toml; its store is made if it is not there. For each seed of the new head and the
reset block, both problems are solved over the training rows of all shards with the same loss, each under the
ridge that these rows choose for it (``--ridge`` for one of both), and both solutions are tested on the held-out
rows. ``margin`` is in points of top-1 accuracy.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from typing import Any

import msgspec
from recipes import accuracy, extracted, recipe_parser
from record import print_report

from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_base
from taftcache.objective.named import true_class_weight
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.solve.choosing import choose_ridge
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.stages.memory import memory_of


def main() -> None:
    parser = recipe_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ridge", type=float)
    args = parser.parse_args()
    recipe = extracted(args)
    runs: list[dict[str, Any]] = []
    with FeatureStore(recipe.store_path) as store:
        assert store.held_out is not None
        asked, solver = recipe.objective, recipe.solver
        arithmetic = Arithmetic(memory=memory_of(recipe))
        loss = RSL(alpha=true_class_weight(asked.alpha, len(store.classes)), kappa=asked.kappa)
        for seed in range(args.seeds):
            base = read_base(store, msgspec.structs.replace(recipe.tangent, seed=seed))
            problems = [Objective(loss=loss, ridge=args.ridge or 0.0, train=part) for part in ("head", "full")]
            if args.ridge is None:
                chosen = [choose_ridge(base, store.shards, one, arithmetic=arithmetic).ridge for one in problems]
                problems = [replace(one, ridge=ridge) for one, ridge in zip(problems, chosen, strict=True)]
            head = minimise(base, store.shards, problems[0])
            begin = time.perf_counter()
            goal = Goal(tolerance=solver.relative, max_passes=solver.max_passes)
            block = minimise(base, store.shards, problems[1], goal=goal, arithmetic=arithmetic)
            seconds = time.perf_counter() - begin
            of_head = accuracy(base, base.head_layout, head.value, store.held_out)
            of_block = accuracy(base, base.layout, block.value, store.held_out)
            runs.append(
                {
                    "seed": seed,
                    "head_only": of_head,
                    "last_block": of_block,
                    "margin": of_block - of_head,
                    "ridges": [one.ridge for one in problems],
                    "seconds": seconds,
                    "passes": block.stats.passes,
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
            "kappa": loss.kappa,
            "margin_mean": statistics.mean(margins),
            "margin_std": statistics.stdev(margins) if len(margins) > 1 else 0.0,
            "runs": runs,
        }
    if args.json:
        print_report(report)
    else:
        print(f"margin {report['margin_mean']:.2f} ± {report['margin_std']:.2f} points over {len(runs)} seeds")


if __name__ == "__main__":
    main()
