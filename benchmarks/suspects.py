"""How many planted mistakes ``taftcache inspect --suspects``, ``--duplicates`` and ``--outliers`` list first.

    python benchmarks/suspects.py [--seeds 1] [--json]

scikit-learn's digits as PNG files, a fifth of them held out, through the bundled backbone with the quickstart's
settings, in temporary folders. Each figure is a precision at k: of the k that are listed first, where k were planted,
the share that was planted.

labels: 5 % of the training labels are another class. ``other shards`` and ``head, leave-one-out`` are what
``suspects`` does after and before training; ``mean, in sample`` is the margin under the mean of all components, which
saw the row. The peers work on scikit-learn's logistic regression, standardised, five-fold cross-validated, on the
features of the untouched network, its C the one of least cross-validated loss: its margin, cleanlab's
``get_label_quality_scores``, and cleanlab's ``find_label_issues``, of which precision and recall are given for as many
as it lists, too. Those two are left out where cleanlab is not installed (``pip install 'taftcache[bench]'``).

duplicates: 40 training images again, a little darker and with noise, among the training images (``pairs``), and 40
among the held-out ones (``leaks``). What is listed first may also be digits that are as alike by themselves.

outliers: 30 images that are no digits: shuffled pixels, negatives, noise. The peer is scikit-learn's
LocalOutlierFactor on the same vectors.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from record import json_parser, print_report
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import taftcache
from taftcache import FeatureStore, load_recipe
from taftcache.stages.look.probe import LOGISTIC, STRENGTHS, head_features, untouched_base
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.look.vectors import mean_vectors
from taftcache.stages.progress import Silent
from taftcache.stages.train.record import settings_of

FLIPPED = 0.05
COPIES = 40
STRANGE = 10  # of each kind
QUICKSTART = Path(__file__).resolve().parents[1] / "pipelines/quickstart.toml"


def digits(rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """Images [n,8,8], labels [n], and which are held out [n]."""
    loaded = load_digits()
    images = np.round(loaded.images * (255 / 16)).astype(np.uint8)
    return images, loaded.target, rng.random(len(images)) < 0.2


def write(folder: Path, name: str, image: NDArray[Any], label: int) -> None:
    """One PNG file in the folder of its class."""
    place = folder / str(label)
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).convert("RGB").save(place / f"{name}.png")


def extracted(root: Path) -> Path:
    """The store of ``root``/train and ``root``/test, before training."""
    path = root / "store"
    places = {"data.source": "folder", "data.train": root / "train", "data.test": root / "test", "store.path": path}
    recipe = load_recipe(QUICKSTART, [*(f"{key}={value}" for key, value in places.items()), "compose.mode=mean"])
    taftcache.extract(recipe)
    return path


def stem(sample: str) -> str:
    """What ``write`` called the file of a sample."""
    return Path(sample).stem


def labels(root: Path, seed: int) -> dict[str, Any]:
    """Precision at k of every way to find wrong labels."""
    rng = np.random.default_rng(seed)
    images, truth, held = digits(rng)
    train = np.flatnonzero(~held)
    wrong = rng.permutation(train)[: round(FLIPPED * len(train))]
    given = truth.copy()
    given[wrong] = (truth[wrong] + rng.integers(1, 10, len(wrong))) % 10
    for n, image in enumerate(images):
        write(root / ("test" if held[n] else "train"), f"{n:04d}", image, given[n])
    planted = {f"{n:04d}" for n in wrong}
    path, found, seconds = extracted(root), {}, {}
    for name in ("head, leave-one-out", "other shards"):
        if name == "other shards":
            with FeatureStore(path, mode="a") as store:
                taftcache.train(store)
                taftcache.compose(store)
        with FeatureStore(path) as store:
            begin = time.perf_counter()
            report = taftcache.suspects(store, top=len(planted))
            seconds[name] = time.perf_counter() - begin
        assert ("leave-one-out" in report.method) == ("leave-one-out" in name)
        found[name] = float(np.mean([stem(s.sample) in planted for s in report.suspects]))
    with FeatureStore(path) as store:
        table = RowTable.of(store)
        flags = np.array([stem(sample) in planted for sample in table.ids])[~table.held_out]
        found["mean, in sample"] = _first(_in_sample(store, table), flags)
        features, shown = head_features(untouched_base(store, settings_of(store)), store.shards)
    begin = time.perf_counter()
    tried = [cross_validated(features, shown, C) for C in STRENGTHS[LOGISTIC]]
    probabilities = min(tried, key=lambda found: log_loss(shown, found))
    own = probabilities[np.arange(len(shown)), shown]
    others = np.where(np.arange(probabilities.shape[1]) == shown[:, None], -1, probabilities).max(1)
    found["logistic regression, margin"] = _first(own - others, flags)
    seconds["logistic regression"] = time.perf_counter() - begin
    more = _cleanlab(shown, probabilities, flags) if find_spec("cleanlab") else {}
    return {"rows": len(flags), "planted": len(planted), "precision": found | more.pop("precision", {}), **more,
            "seconds": seconds}  # fmt: skip


def cross_validated(features: NDArray[np.float32], shown: NDArray[np.int64], C: float) -> NDArray[np.float64]:
    """Probabilities [n,K] of each row by a logistic regression that did not see it."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=300))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: NDArray[np.float64] = cross_val_predict(probe, features, shown, cv=5, method="predict_proba")
    return found


def _cleanlab(shown: NDArray[np.int64], probabilities: NDArray[np.float64], flags: NDArray[np.bool_]) -> dict[str, Any]:
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    issues = find_label_issues(shown, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1)
    k = int(flags.sum())
    return {
        "precision": {
            "cleanlab, get_label_quality_scores": _first(get_label_quality_scores(shown, probabilities), flags),
            "cleanlab, find_label_issues": float(flags[issues[:k]].sum() / k),
        },
        "cleanlab_lists": {
            "rows": len(issues),
            "precision": float(flags[issues].mean()),
            "recall": float(flags[issues].sum() / k),
        },
    }


def _in_sample(store: FeatureStore, table: RowTable) -> NDArray[np.float64]:
    """Margins of the training rows under the mean of all components."""
    scorer, parts = Scorer(store), []
    for _, shard, rows in table.steps():
        if shard.role == "train":
            z, change = scorer.logits(shard.tokens(rows), ["models/mean"])
            logits, own = z + change[0], shard.labels[rows]
            others = np.where(np.arange(logits.shape[1]) == own[:, None], -np.inf, logits).max(1)
            parts.append(logits[np.arange(len(own)), own] - others)
    return np.concatenate(parts)


def _first(scores: NDArray[Any], flags: NDArray[np.bool_]) -> float:
    """The share of planted rows among the k of smallest score, where k are planted."""
    return float(flags[np.argsort(scores, kind="stable")[: int(flags.sum())]].mean())


def copies_and_strangers(root: Path, seed: int) -> dict[str, Any]:
    """Precision at k for planted duplicates, leaks and outliers, in one store that is not trained."""
    rng = np.random.default_rng(seed)
    images, truth, held = digits(rng)
    for n, image in enumerate(images):
        write(root / ("test" if held[n] else "train"), f"{n:04d}", image, truth[n])
    sources = rng.permutation(np.flatnonzero(~held))
    for k, n in enumerate(sources[: 2 * COPIES]):
        again = 0.95 * images[n] + rng.normal(0, 5, images[n].shape)
        write(root / ("train" if k < COPIES else "test"), f"copy-of-{n:04d}", again, truth[n])
    for k, n in enumerate(sources[2 * COPIES :][: 3 * STRANGE]):
        odd = [rng.permutation(images[n].ravel()).reshape(8, 8), 255 - images[n], rng.integers(0, 256, (8, 8))][k % 3]
        write(root / "train", f"strange-{k:04d}", odd, truth[n])
    with FeatureStore(extracted(root)) as store:
        begin = time.perf_counter()
        twins = taftcache.duplicates(store, top=COPIES)
        middle = time.perf_counter()
        odd_ones = taftcache.outliers(store, top=3 * STRANGE)
        seconds = {"duplicates": middle - begin, "outliers": time.perf_counter() - middle}
        table = RowTable.of(store)
        vectors = mean_vectors(table, Silent())
    factor = LocalOutlierFactor(n_neighbors=20).fit(vectors).negative_outlier_factor_
    kinds = {"pairs": twins.pairs, "leaks": twins.leaks}
    precision = {
        name: float(np.mean([is_copy(*pair.samples) for pair in found[:COPIES]])) for name, found in kinds.items()
    }
    precision["outliers"] = float(np.mean(["strange" in o.sample for o in odd_ones.outliers]))
    precision["LocalOutlierFactor"] = _first(factor, np.array(["strange" in sample for sample in table.ids]))
    return {
        "rows": len(table),
        "planted": {"pairs": COPIES, "leaks": COPIES, "outliers": 3 * STRANGE},
        "reaching": {"threshold": twins.threshold, "pairs": twins.pairs_found, "leaks": twins.leaks_found},
        "precision": precision,
        "seconds": seconds,
    }


def is_copy(first: str, second: str) -> bool:
    """Whether one of two samples is the planted copy of the other."""
    return f"copy-of-{stem(first)}" == stem(second) or f"copy-of-{stem(second)}" == stem(first)


def main() -> None:
    """Run all parts and print what they found."""
    parser = json_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="draws of what is planted; figures are means over them")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"labels": [], "rows": []}
    for seed in range(arguments.seeds):
        for name, part in (("labels", labels), ("rows", copies_and_strangers)):
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(part(Path(folder), seed))
    if arguments.json:
        print_report(found)
        return
    for name, runs in found.items():
        print(f"{name}: {runs[0]['rows']} rows, planted {runs[0]['planted']}")
        for way in runs[0]["precision"]:
            print(f"  {np.mean([run['precision'][way] for run in runs]):6.1%}  {way}")
        for extra in ("cleanlab_lists", "reaching", "seconds"):
            if extra in runs[0]:
                print(f"  {extra}: {runs[0][extra]}")


if __name__ == "__main__":
    main()
