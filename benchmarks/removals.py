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

import json
from pathlib import Path
from typing import Any

import numpy as np
from recipes import extracted, recipe_parser
from record import print_report

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_base
from taftcache.names import component_of
from taftcache.solve.settings import DECISIVE
from taftcache.stages.forget.renewal import certificate_of
from taftcache.stages.progress import Silent
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import solve_component
from taftcache.stages.train.without import Without

QUANTILES = (0, 5, 50, 95)


def removals(settings: Settings, shard: Shard, rows: list[int], kept: Path | None) -> list[dict[str, Any]]:
    """What leaving out each of ``rows`` gives; what an earlier run kept in a file is not solved again."""
    found: dict[str, Any] = json.loads(kept.read_text("utf-8")) if kept is not None and kept.is_file() else {}
    label = component_of(shard.name)
    left = [row for row in rows if str(row) not in found]
    if left:
        old = solve_component(settings, [shard], settings.train, Silent(), label=label)
    for row in left:
        without: Any = Without(shard, row)
        new = solve_component(settings, [without], settings.train, Silent(), label=label)
        entry = certificate_of(new, old)
        figures = {key: entry[key] for key in ("distance_bound", "moved", "moved_at_least", "decisive", "passes")}
        found[str(row)] = {**figures, "same_ridge": new.record.certified.ridge == old.record.certified.ridge}
        if kept is not None:
            kept.write_text(json.dumps(found), encoding="utf-8")
    return [found[str(row)] for row in rows]


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
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    found = []
    with FeatureStore(recipe.store_path) as store:
        settings = Settings(recipe=recipe, base=read_base(store, recipe.tangent))
        for shard in store.shards:
            count = shard.rows if args.full else min(shard.rows, args.rows)
            rows = np.unique(np.linspace(0, shard.rows - 1, count).round().astype(int)).tolist()
            kept = None if args.keep is None else args.keep / f"{shard.name}-{shard.digest[:16]}.json"
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
