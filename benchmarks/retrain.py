"""What forgetting costs: one shard solved again from the cache, and one sample taken out of the exact model.

    python benchmarks/retrain.py [RECIPE] [--part shard|sample] [--samples 3] [--json]

RECIPE is pipelines/caltech101.toml (needs TAFTCACHE_DATA) or, without that folder, pipelines/quickstart.toml; its
store is made if it is not there.

**Shard.** Seconds, preconditioner included, until the accuracy on the held-out rows is within 0.2 points of where it
ends: of one shard from the cache, against (a) its images extracted again first, (b) 30 epochs over the shard's images
through the whole network without a cache, from measured steps (`speedup_vs_images`), (c) all rows solved again from
the cache (`speedup_vs_full_solve`).

**Sample.** Passes over all rows that `forget --mode resolve` takes from the exact model until the certified distance
is a tenth of what the removal moved, over those of a cold solve from zero to the same certified distance
(`forget_fraction`).
Times depend on what else the machine does; passes do not.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from recipes import accuracy, extracted, recipe_parser
from record import print_report, timed

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import Component, read_base
from taftcache.names import EXACT
from taftcache.recipe import Recipe
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Goal
from taftcache.solve.solution import Solution
from taftcache.stages.forget.renewal import resolve_warm
from taftcache.stages.progress import Silent
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import SolveOptions, solve_component
from taftcache.stages.train.without import Without
from taftcache.tangent.base import Base

PASSES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
EPOCHS = 30
POINTS = 0.2


def time_to_accuracy(recipe: Recipe, base: Base, rows: Sequence[Shard], test: Shard) -> dict[str, Any]:
    """The shortest solve that ends within POINTS of where the accuracy ends, by the limit on passes."""

    settings = Settings(recipe=recipe, base=base)
    objective = settings.objective(rows, settings.train)

    def solve(limit: int) -> tuple[Solution, float]:
        goal = Goal(tolerance=recipe.solver.relative, max_passes=limit)
        found, took = timed(lambda: minimise(base, rows, objective, goal=goal, arithmetic=settings.arithmetic))
        return found, took["clock"]

    whole, seconds = solve(recipe.solver.max_passes)
    final = accuracy(base, base.layout, whole.value, test)
    found = {"final_accuracy": final, "passes": whole.stats.passes, "seconds": seconds, "seconds_to_end": seconds}
    for limit in PASSES:
        if limit >= whole.stats.passes:
            break
        some, seconds = solve(limit)
        reached = accuracy(base, base.layout, some.value, test)
        if abs(reached - final) <= POINTS:
            return {**found, "passes": some.stats.passes, "seconds": seconds, "accuracy": reached}
    return {**found, "accuracy": final}


def epoch_from_images(recipe: Recipe, base: Base, images: int) -> dict[str, float]:
    """Seconds an image that training without a cache takes: decode, frozen layers, and a step of the tail."""
    from taftcache.backbone.cut.cut import Cut
    from taftcache.backbone.model import load_backbone
    from taftcache.backbone.preprocess import Preprocess
    from taftcache.backbone.sources.opening import open_source
    from taftcache.baselines.fine_tuning import logits

    source, _ = open_source(recipe.data)
    backbone = load_backbone(recipe.backbone, recipe.preprocess, "cpu")
    cut, transform = Cut(backbone, recipe.tangent.blocks), Preprocess(backbone)
    layout = base.trained(recipe.tangent.train)
    delta = torch.zeros(layout.size, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=1e-4)
    whole = base.to(torch.float32).unreduced()

    def step(index: Sequence[int]) -> None:
        batch = torch.stack([transform(source.read(k)) for k in index])
        labels = torch.tensor([source.items[k].label for k in index])
        with torch.no_grad():
            tokens = cut.prefix(batch)
        loss = torch.nn.functional.cross_entropy(logits(whole, layout, delta, tokens), labels)
        adam.zero_grad()
        loss.backward()
        adam.step()

    def epoch() -> None:
        for k in range(0, len(few), 32):
            step(few[k : k + 32])

    few = list(range(min(images, len(source.items))))
    step(few[:8])
    seconds = timed(epoch)[1]["clock"]
    return {"seconds_an_image": seconds / len(few), "images_measured": len(few)}


def shard_part(store: FeatureStore, recipe: Recipe, base: Base, images: int) -> dict[str, Any]:
    shard, test = store.shards[0], store.held_out
    assert test is not None
    one = time_to_accuracy(recipe, base, [shard], test)
    full = time_to_accuracy(recipe, base, store.shards, test)
    measured = epoch_from_images(recipe, base, images)
    rows = sum(s.rows for s in store.shards)
    again = measured["seconds_an_image"] * shard.rows + one["seconds"]
    from_images = EPOCHS * shard.rows * measured["seconds_an_image"]
    return {
        "shard_rows": shard.rows,
        "rows": rows,
        "shard": one,
        "full_solve": full,
        **measured,
        "seconds_extracting_again": again,
        "seconds_from_images": from_images,
        "speedup_vs_extracting_again": again / one["seconds"],
        "speedup_vs_images": from_images / one["seconds"],
        "speedup_vs_full_solve": full["seconds"] / one["seconds"],
    }


def cold_to(settings: Settings, rows: Sequence[Any], figures: dict[str, Any]) -> Component:
    """A solve from zero that ends at the certified distance of ``figures``, or at its gradient elsewhere."""
    options = SolveOptions(goal=replace(settings.goal, tolerance=figures["relative_gradient"]))
    if settings.starts_at_zero(rows, settings.train):
        count = sum(source.rows for source in rows)
        zero, all_stay = torch.zeros(count, settings.base.config.classes), torch.ones(count, dtype=torch.bool)
        nowhere = torch.zeros(settings.base.trained(settings.train).size, dtype=torch.float64)
        options = SolveOptions(restart=Restart(rows, nowhere, zero, all_stay, lambda moved: figures["distance_bound"]))
    return solve_component(settings, rows, settings.train, Silent(), label=EXACT, options=options)


def sample_part(store: FeatureStore, recipe: Recipe, base: Base, samples: int, tight: float) -> dict[str, Any]:
    settings, progress, shards = Settings(recipe=recipe, base=base), Silent(), store.shards
    known = SolveOptions(goal=replace(settings.goal, tolerance=tight), keep_dual=True)
    exact = solve_component(settings, shards, settings.train, progress, label=EXACT, options=known)
    runs = []
    for k in range(samples):
        shard = shards[k % len(shards)]
        left: list[Any] = [Without(s, k) if s.name == shard.name else s for s in shards]
        stays = np.concatenate([np.arange(s.rows) != (k if s.name == shard.name else -1) for s in shards])
        warm = resolve_warm(settings, shards, left, stays, exact, progress)
        run: dict[str, Any] = {"sample": k, "shard": shard.name, "warm_passes": warm.passes, "failure": warm.failure}
        if warm.component is not None:
            figures = warm.component.meta["certificate"]
            cold = cold_to(settings, left, figures)
            run |= {
                "moved": (warm.component.delta - exact.delta).norm().item(),
                "certified_distance": figures["distance_bound"],
                "cold_passes": cold.meta["stats"]["passes"],
                "cold_distance": cold.meta["certificate"]["distance_bound"],
                "forget_fraction": warm.passes / cold.meta["stats"]["passes"],
            }
        runs.append(run)
    found = [run["forget_fraction"] for run in runs if "forget_fraction" in run]
    return {
        "exact": {**exact.meta["certificate"], **exact.meta["stats"]},
        "runs": runs,
        "forget_fraction": statistics.median(found) if found else None,
    }


def main() -> None:
    parser = recipe_parser(__doc__)
    parser.add_argument("--part", choices=["shard", "sample", "both"], default="both")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--images", type=int, default=96, help="images that an epoch is measured on")
    parser.add_argument("--tight", type=float, default=1e-7, help="relative gradient of the exact model to begin with")
    args = parser.parse_args()
    recipe = extracted(args, "objective.ridge=1e-3")  # one λ for all that is compared
    with FeatureStore(recipe.store_path) as store:
        base = read_base(store, recipe.tangent)
        report: dict[str, Any] = {
            "recipe": args.recipe.name,
            "ridge": recipe.objective.ridge,
        }
        if args.part in ("shard", "both"):
            report["shard"] = shard_part(store, recipe, base, args.images)
        if args.part in ("sample", "both"):
            report["sample"] = sample_part(store, recipe, base, args.samples, args.tight)
    if args.json:
        print_report(report)
        return
    if s := report.get("shard"):
        print(f"one shard of {s['shard_rows']} rows: {s['shard']['seconds']:.2f} s, {s['shard']['passes']} passes")
        print(f"  extracted again first: {s['speedup_vs_extracting_again']:.0f} times as long")
        print(f"  all rows from the cache: {s['speedup_vs_full_solve']:.1f} times")
        print(f"  {EPOCHS} epochs over its images: {s['speedup_vs_images']:.0f} times")
    if s := report.get("sample"):
        for run in s["runs"]:
            print(json.dumps(run))
        print(f"forget_fraction {s['forget_fraction']}")


if __name__ == "__main__":
    main()
