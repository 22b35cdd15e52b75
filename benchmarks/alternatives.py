"""Beside taftcache: linear probes, LoRA, and fine-tuning of the last block and of the whole network.

    python benchmarks/alternatives.py [--data NAME …] [--full] [--only METHOD …] [--bfloat16] [--keep FOLDER] [--json]

All start from the same pre-trained network with a new head, have the same training and held-out rows and the same
preprocessing. NAME is digits (scikit-learn's, through the bundled ViT; what runs without a switch), caltech101 or
cifar10 (both through DeiT-tiny, from TAFTCACHE_DATA; ``--full`` is both). Of CIFAR-10 there are 3,000 training and
2,000 held-out images, and not the bundled ViT, which was trained on CIFAR-10.

probe, ridge: scikit-learn's logistic regression and its ridge classification on the untouched features, C or alpha from
four and up to two beyond the end at which the best lies. every-block ridge: the same ridge on what the head on every
block reads. last block: the last block, the final norm and the head, from the store's tokens, which are cached for it
too, and through its class row alone, which is all that the head reads; from the pre-trained block and from one that is
drawn as taftcache's is, whichever is the better on the rows that choose. lora: peft's, rank 8 on every qkv, α 16, and
the head. all: every weight. These three are AdamW on float32 weights, batches of 32, with a warm-up over a tenth of
the steps and a cosine to zero; ``--bfloat16`` has their products in bfloat16, half as fast again on a processor that
can. The rate is the best on a training row in five, at half of the epochs, of three and of up to two more beyond the
end at which the best one lies; ``at_end`` says where it still does.
Nothing is augmented unless ``--augment`` says that lora and all see each image flipped and shifted at random.
taftcache: the recipe as it is (its last block is drawn anew), in ten shards: the mean of their components (``mean``)
and the exact model of all rows. every block: taftcache's head on every block, as `taftcache init` drafts it, on the
same images and in as many shards, from a store of its own.

Seconds are of the clock and of the processor: ``prepare`` (features or decoded images), ``choose`` and ``train``. Then
what a removal costs. taftcache solves one shard again, or forgets one sample in all of its models by either mode. The
probes are fitted again to the cached features. Those three have one model of all rows and no shards, so that what
one shard or one sample did leaves them only by a training from the start, at the rate that was chosen before.

``--keep FOLDER`` keeps what each method gave, and each training of a choice; what was measured with the same settings
is not measured again. LoRA needs peft (``pip install 'taftcache[bench]'``) and is left out without it. Beside other
processes set GOMP_SPINCOUNT=3000, as taftcache's commands do: threads that wait for each other take processor time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record import json_parser, print_report, record, timed
from rivals import BATCH, DATA, RIVALS, SHARDS, Case, added, rival

import taftcache
from taftcache import FeatureStore
from taftcache.names import MEAN, component_of, model_of
from taftcache.report.accuracy import accuracy_interval
from taftcache.report.paired import row_verdict
from taftcache.stages.look.probe import LOGISTIC, RIDGE, head_features, linear_probe, unfitted, untouched_base
from taftcache.stages.progress import Silent
from taftcache.stages.train.held_out import predicted_of
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.solving import solve_component

METHODS = ("probe", "ridge", *RIVALS, "taftcache", "every block", "every-block ridge")


def probe(case: Case, kind: str = LOGISTIC) -> dict[str, Any]:
    """One of the two probes that ``evaluate --probe`` chooses from."""
    return probed(case.recipe.store_path, kind, case.prepared["tokens"])


def every_block_probe(case: Case) -> dict[str, Any]:
    """The ridge on what the head on every block reads, from the store that this was measured with."""
    path, prepare = case.drafted_store()
    return probed(path, RIDGE, prepare)


def probed(path: Path, kind: str, prepare: dict[str, float]) -> dict[str, Any]:
    """The probe of that kind over a store, and one fit more without the first row."""
    with FeatureStore(path) as store:
        settings = settings_of(store)
        assert store.held_out is not None
        (found, right), seconds = timed(partial(linear_probe, store, settings, store.held_out, kinds=[kind]))
        features, labels = head_features(untouched_base(store, settings), store.shards)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in the probe itself
        _, refit = timed(lambda: unfitted(kind, found.strength).fit(features[1:], labels[1:]))
    again = {"how": "a fit at the chosen strength, from the cached features", **refit}
    choose = {part: seconds[part] - refit[part] for part in refit}
    return {
        "right": right.astype(int).tolist(),
        "chosen": {"C" if kind == LOGISTIC else "alpha": found.strength},
        "seconds": {"prepare": prepare, "choose": choose, "train": refit},
        "shard": again,
        "sample": again,
    }


def ours(case: Case) -> dict[str, Any]:
    """The recipe's model."""
    return trained(case.folder / "trained", case.recipe.store_path, case.prepared["tokens"])


def every_block(case: Case) -> dict[str, Any]:
    """The head on every block."""
    path, prepare = case.drafted_store()
    return trained(case.folder / "trained-every-block", path, prepare)


def trained(path: Path, extracted: Path, prepare: dict[str, float]) -> dict[str, Any]:
    """Training and composition of a copy of a store, one shard again, and a sample forgotten by both modes."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(extracted, path)
    with FeatureStore(path, mode="a") as store:
        assert store.held_out is not None
        _, training = timed(lambda: taftcache.train(store))
        _, composing = timed(lambda: taftcache.compose(store))
        name = model_of(store.objects())
        labels = store.held_out.labels
        right, of_mean = (predicted_of(store, each, store.held_out) == labels for each in (name, MEAN))
        shard, settings = store.shards[0], settings_of(store)
        again = partial(solve_component, settings, [shard], settings.train, Silent(), label=component_of(shard.name))
        _, alone = timed(again)
        sample = shard.sample_ids[0]
    forget = {mode: forgotten(path, sample, mode) for mode in ("retrain", "resolve")}
    prepared = {"prepare": prepare, "choose": added()}
    one_shard = {"how": "its component alone, solved again", **alone}
    return {
        "right": right.astype(int).tolist(),
        "chosen": {"model": name},
        "seconds": {**prepared, "train": added(training, composing)},
        "mean": {
            "right": of_mean.astype(int).tolist(),
            "chosen": {},
            "seconds": {**prepared, "train": training},
            "shard": one_shard,
            "sample": one_shard,
        },
        "shard": one_shard,
        "sample": {"how": "forget --mode resolve: rows, component, head, mean and exact model", **forget["resolve"]},
        "sample_retrain": {"how": "forget --mode retrain: all of these from zero", **forget["retrain"]},
    }


def forgotten(path: Path, sample: str, mode: Any) -> dict[str, float]:
    """Seconds of one removal, on a copy."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy = shutil.copytree(path, Path(folder) / "store")
        with FeatureStore(copy, mode="a") as store:
            return timed(lambda: taftcache.forget(store, [sample], mode=mode))[1]


def recorded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it finds, and of what, when and where."""
    return {**work(), **record()}


OWN: dict[str, Callable[[Case], dict[str, Any]]] = {
    "probe": probe,
    "ridge": partial(probe, kind=RIDGE),
    "every block": every_block,
    "every-block ridge": every_block_probe,
}


def measured(name: str, place: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The methods that are asked for, and those that were measured before with the same settings."""
    case = Case(name, place, args)
    found: dict[str, Any] = {}
    for method in METHODS:
        kept, work = case.kept, partial(OWN.get(method, ours), case)
        if method in RIVALS:
            kept = kept.having(
                **{key: value for key, value in asdict(RIVALS[method]).items() if value},
                epochs=case.epochs,
                augment=args.augment,
                bfloat16=args.bfloat16,
                seed=args.seed,
                batch=BATCH,
            )
            work = partial(rival, case, method, kept)
        if method in args.only:
            print(f"{name}: {method}", file=sys.stderr, flush=True)
            found[method] = kept.once(method, partial(recorded, work))
        elif (before := kept.get(method)) is not None:
            found[method] = before
    for method, title in (("taftcache", "mean"), ("every block", "every block, mean")):
        if "mean" in found.get(method, {}):
            found[title] = {**{key: found[method][key] for key in record()}, **found[method].pop("mean")}
    held = int(case.held.sum())
    about = {"rows": len(case.ids) - held, "held_out": held, "classes": case.classes, "backbone": case.backbone}
    return {**about, "shards": SHARDS, "methods": compared(found)}


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """Of each method the accuracy with its interval, and taftcache against it, in place of which rows were right."""
    right: dict[str, NDArray[np.bool_]] = {m: np.array(of["right"], bool) for m, of in found.items()}
    report: dict[str, dict[str, Any]] = {}
    for method, of in found.items():
        low, high = accuracy_interval(right[method])
        report[method] = {"accuracy": [float(right[method].mean()), low, high]}
        if method != "taftcache" and "taftcache" in right:
            ahead, interval, verdict, _ = row_verdict(right["taftcache"], right[method])
            report[method]["taftcache_against_it"] = {"ahead": [ahead, *interval], "verdict": verdict}
        report[method] |= {key: value for key, value in of.items() if key != "right"}
    return report


def show(name: str, found: dict[str, Any]) -> None:
    """One data set, for people."""
    print(f"{name}, {found['backbone']}: {found['rows']} training rows, {found['held_out']} held out")
    for method, of in found["methods"].items():
        value, low, high = (100 * x for x in of["accuracy"])
        clock, processor = (sum(part[kind] for part in of["seconds"].values()) for kind in ("clock", "processor"))
        print(f"  {method:<11}{value:6.2f} %  ({low:.1f} to {high:.1f})  {clock:8.1f} s, processor {processor:.1f} s")
        if against := of.get("taftcache_against_it"):
            ahead, low, high = (100 * x for x in against["ahead"])
            print(f"  {'':<11}taftcache: {ahead:+.2f} points ({low:+.1f} to {high:+.1f}), {against['verdict']}")
        print(f"  {'':<11}one shard again {of['shard']['clock']:.1f} s, one sample out {of['sample']['clock']:.1f} s")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for; exits where it cannot be had."""
    parser = json_parser(__doc__)
    parser.add_argument("--data", nargs="+", choices=DATA)
    parser.add_argument("--full", action="store_true", help="caltech101 and cifar10")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", type=int, help="of lora and all; the last block has three times as many")
    parser.add_argument("--augment", action="store_true", help="flip and shift the images of lora and all")
    parser.add_argument("--bfloat16", action="store_true", help="products of lora, all and the last block in bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="of the recipe")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="go on there where a run before was stopped")
    args = parser.parse_args(words)
    args.data = args.data or (["caltech101", "cifar10"] if args.full else ["digits"])
    if set(args.data) != {"digits"} and not os.environ.get("TAFTCACHE_DATA"):
        parser.error("TAFTCACHE_DATA does not name the folder of caltech101 and cifar10")
    if "lora" in args.only and find_spec("peft") is None:
        args.only.remove("lora")
        print("lora is left out, for peft is missing: pip install 'taftcache[bench]'", file=sys.stderr)
    return args


def main(words: Sequence[str] | None = None) -> None:
    """Print the report."""
    args = arguments(words)
    report: dict[str, Any] = {"data": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.data:
            report["data"][name] = measured(name, args.keep or Path(folder), args)
            if not args.json:
                show(name, report["data"][name])
    if args.json:
        print_report(report)


if __name__ == "__main__":
    main()
