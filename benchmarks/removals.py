"""Whether the receipt of a removal decides, one training row at a time: each shard's component solved without it.

    python benchmarks/removals.py [RECIPE] [--rows 3] [--full] [--keep FOLDER] [--json]

RECIPE is pipelines/caltech101.toml (needs TAFTCACHE_DATA) or, without that folder, pipelines/quickstart.toml; its
store is made if it is not there. Of every shard so many rows are left out, spread evenly over it; --full: all of them.
Each time the component is solved again from zero, as ``forget --mode retrain`` does, λ chosen anew where the recipe
says so. A receipt decides where the certified distance of the new component is at most a tenth of what the removal
moved at least. ``slack`` is how many times it is below that. Where the rows that stay choose another λ, the removal
moves the component by that, too; those are counted apart.
"""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from recipes import extracted, recipe_parser
from record import Kept, print_report

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import Component, read_base
from taftcache.names import component_of
from taftcache.solve.settings import DECISIVE
from taftcache.stages.forget.renewal import certificate_of
from taftcache.stages.progress import Silent
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import solve_component
from taftcache.stages.train.without import Without

QUANTILES = (0, 5, 50, 95)


def removals(settings: Settings, shard: Shard, rows: list[int], kept: Kept) -> list[dict[str, Any]]:
    """What leaving out each of ``rows`` gives; what an earlier run kept is not solved again."""

    def solved(source: Any) -> Component:
        return solve_component(settings, [source], settings.train, Silent(), label=component_of(shard.name))

    whole = cache(lambda: solved(shard))

    def figures(row: int) -> dict[str, Any]:
        old, new = whole(), solved(Without(shard, row))
        entry = certificate_of(new, old)
        said = {key: getattr(entry, key) for key in ("distance_bound", "moved", "moved_at_least", "decisive", "passes")}
        return {**said, "same_ridge": new.record.certified.ridge == old.record.certified.ridge}

    return [kept.once(f"{shard.name}-{shard.digest[:16]}-{row}", partial(figures, row)) for row in rows]


def counted(found: list[dict[str, Any]]) -> dict[str, Any]:
    """How many decide, and how clearly."""
    same = [one for one in found if one["same_ridge"]]
    slack = [DECISIVE * one["moved_at_least"] / one["distance_bound"] for one in same]
    return {
        "removals": len(found),
        "decisive": sum(one["decisive"] is True for one in found),  # None: of another λ, and nothing says
        "another_ridge": len(found) - len(same),
        "passes": int(np.median([one["passes"] for one in found])),
        "moved": dict(zip(QUANTILES, np.percentile([one["moved"] for one in same], QUANTILES).tolist(), strict=True)),
        "slack": dict(zip(QUANTILES, np.percentile(slack, QUANTILES).tolist(), strict=True)),
    }


def main() -> None:
    parser = recipe_parser(__doc__)
    parser.add_argument("--rows", type=int, default=3, help="of every shard")
    parser.add_argument("--full", action="store_true", help="all rows of every shard")
    parser.add_argument("--keep", type=Path, help="where what was solved stays, so that a run can go on")
    args = parser.parse_args()
    recipe = extracted(args)
    found = []
    with FeatureStore(recipe.store_path) as store, tempfile.TemporaryDirectory() as scratch:
        kept = Kept(args.keep or Path(scratch), recipe=args.recipe.name, set=args.set)
        settings = Settings(recipe=recipe, base=read_base(store, recipe.tangent))
        for shard in store.shards:
            count = shard.rows if args.full else min(shard.rows, args.rows)
            rows = np.unique(np.linspace(0, shard.rows - 1, count).round().astype(int)).tolist()
            found += removals(settings, shard, rows, kept)
    report = {"recipe": args.recipe.name, "tolerance": recipe.solver.tolerance, **counted(found)}
    if args.json:
        print_report(report)
        return
    print(f"{report['decisive']} of {report['removals']} receipts decide; {report['another_ridge']} chose another λ")
    print(f"median passes {report['passes']}")
    for name in ("moved", "slack"):
        print(f"{name}: " + ", ".join(f"{q} %: {value:.3g}" for q, value in report[name].items()))


if __name__ == "__main__":
    main()
