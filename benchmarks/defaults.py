"""What a run gives without a switch, beside the strongest simple baseline, and what forgetting then costs.

    python benchmarks/defaults.py [RECIPE ...] [--keep FOLDER] [--json]

RECIPE is a recipe file, the name of one that comes along, or a folder of images, for which `taftcache init` writes one,
with DeiT-tiny's weights from TAFTCACHE_DATA. By default quickstart, and where that variable is set the images of
Caltech-101 and the recipe caltech101. Each runs as `taftcache run` would: accuracies on the held-out rows with 95 %
intervals, the best model against scikit-learn's logistic regression on the untouched network's features (its C chosen
as λ is, on one training row in five), and the verdict. Then one sample is forgotten twice, on copies of the store: by
`--mode retrain`, where every model gets the bytes of never having seen it, and by `--mode resolve`, where the exact
model goes on from where it is until the certificate decides. `labels_proven` is the share of held-out labels that the
certificates show to be the exact optimum's, before a removal and after each. Seconds depend on what else the machine
does; all else does not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from record import json_parser, print_report

import taftcache
from taftcache.names import PROBE
from taftcache.recipe import load_recipe
from taftcache.stages.forget.request import Mode

MODES: tuple[Mode, ...] = ("retrain", "resolve")


def measured(name: str, folder: Path) -> dict[str, Any]:
    """One recipe, in a store below ``folder``."""
    path = folder / (f"init-{Path(name).name}" if Path(name).is_dir() else Path(name).stem)
    if Path(name).is_dir():
        weights = Path(os.environ["TAFTCACHE_DATA"]) / "deit_tiny_patch16_224.safetensors"
        drafted = taftcache.init_recipe(name, f"{path}.toml", overrides=[f"backbone.weights={weights}"], force=True)
        name = str(drafted.recipe)
    report = taftcache.run(load_recipe(name, [f"store.path={path}", "forget.samples=[]"]))
    with taftcache.FeatureStore(path) as store:
        sample = store.shards[0].sample_ids[0]
        scores = taftcache.evaluate(store, probe=True, proven=True)
    assert scores.against is not None
    found = {
        "rows": sum(report.extract.shards.values()) - scores.rows,
        "held_out": scores.rows,
        "accuracy": {
            name: [scores.accuracy[name], *scores.intervals[name]]
            for name in ("models/exact", "models/mean", "models/head", PROBE)
            if name in scores.accuracy
        },
        "best": scores.default,
        "ahead_of_probe": [scores.against.ahead, *scores.against.interval],
        "verdict": scores.against.verdict,
        "labels_proven": scores.proven,
        "seconds": {
            "train": report.train.seconds,
            "compose": report.compose.seconds,
            "probe": scores.against.probe.seconds,
        },
        "forget": {mode: forgotten(path, sample, mode) for mode in MODES},
    }
    return found


def forgotten(path: Path, sample: str, mode: Mode) -> dict[str, Any]:
    """Seconds, passes and verdict by renewed model of one removal, and what labels are proven then, on a copy."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy = shutil.copytree(path, Path(folder) / "store")
        with taftcache.FeatureStore(copy, mode="a") as store:
            report = taftcache.forget(store, [sample], mode=mode)
            proven = taftcache.evaluate(store, proven=True).proven
    models = {
        name: {key: getattr(found, key) for key in ("passes", "moved", "distance_bound", "decisive")}
        for name, found in report.certificates.items()
    }
    return {"seconds": report.seconds, "models": models, "labels_proven": proven}


def main() -> None:
    """Print the report."""
    parser = json_parser(__doc__)
    data = os.environ.get("TAFTCACHE_DATA")
    default = ["quickstart", *([f"{data}/caltech101", "caltech101"] if data else [])]
    parser.add_argument("recipes", nargs="*", default=default, metavar="RECIPE")
    parser.add_argument("--keep", type=Path, help="stores are made there, and found there the next time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = args.keep or Path(folder)
        report: dict[str, Any] = {"recipes": {}}
        for name in args.recipes:
            title = f"init {Path(name).name}" if Path(name).is_dir() else name
            found = report["recipes"][title] = measured(name, place)
            if not args.json:
                show(title, found)
    if args.json:
        print_report(report)


def show(name: str, found: dict[str, Any]) -> None:
    """One recipe, for people."""
    print(f"{name}: {found['rows']} training rows, {found['held_out']} held out")
    for model, (value, low, high) in found["accuracy"].items():
        print(f"  {100 * value:6.2f} %  ({100 * low:.1f} to {100 * high:.1f})  {model}")
    ahead, low, high = (100 * value for value in found["ahead_of_probe"])
    print(f"  {found['best']} against the probe: {ahead:+.2f} points ({low:+.1f} to {high:+.1f}), {found['verdict']}")
    for mode, cost in found["forget"].items():
        decisive = all(model["decisive"] for model in cost["models"].values())
        passes = ", ".join(f"{model} {one['passes']}" for model, one in cost["models"].items())
        print(f"  forget by {mode}: {cost['seconds']:.1f} s, passes {passes}; all decisive: {decisive}")


if __name__ == "__main__":
    main()
