"""A classifier of features, beside scikit-learn's LogisticRegression: the same features, the same cross-entropy.

    python benchmarks/classifier.py [--full] [--json]

The features are normal numbers, and a class is drawn by the logits of a linear model. taftcache:
``TangentClassifier()`` as it is, which chooses λ and ends with a certificate in float64. one C: scikit-learn's
LogisticRegression behind a StandardScaler at C = 1/(Nλ) for that λ, to its own tolerance of 10⁻⁴ and to 10⁻⁶. chosen C:
its LogisticRegressionCV, with the ten C that it tries by default in five folds, by the loss. ``agreement``: of the
predictions on the training rows, with those of one C to 10⁻⁶. ``--full`` has the largest two sizes, too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from taftcache import TangentClassifier

SIZES = [(3000, 192, 10), (20_000, 64, 10), (200_000, 3, 3)]  # rows, features, classes
LARGE = [(50_000, 192, 10), (30_000, 192, 60)]
NOISE = 2.0  # of the logits by which classes are drawn
MOST_STEPS = 1000


def drawn(rows: int, features: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """X [N,d] and y [N]."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features)).astype(np.float32)
    logits = X @ rng.normal(size=(features, classes)) + NOISE * rng.gumbel(size=(rows, classes))
    return X, logits.argmax(1)


def clock(fit: Callable[[], Any]) -> tuple[Any, float]:
    """What ``fit`` gives, and its seconds."""
    begin = time.perf_counter()
    return fit(), time.perf_counter() - begin


def measured(rows: int, features: int, classes: int) -> dict[str, Any]:
    """Seconds of each on one size."""
    X, y = drawn(rows, features, classes)
    ours, seconds = clock(lambda: TangentClassifier().fit(X, y))

    def one(tolerance: float) -> tuple[Any, float]:
        model = LogisticRegression(C=1 / (rows * ours.ridge_), max_iter=MOST_STEPS, tol=tolerance)
        return clock(lambda: make_pipeline(StandardScaler(), model).fit(X, y))

    (_, usual), (near, close) = one(1e-4), one(1e-6)
    searched = LogisticRegressionCV(cv=5, scoring="neg_log_loss", max_iter=MOST_STEPS)
    _, chosen = clock(lambda: make_pipeline(StandardScaler(), searched).fit(X, y))
    return {
        "rows": rows, "features": features, "classes": classes, "ridge": ours.ridge_, "seconds": seconds,
        "passes": ours.solution_.stats.passes, "distance": ours.solution_.certificate.distance,
        "one_C": usual, "one_C_1e-6": close, "chosen_C": chosen,
        "ratio_to_one_C": seconds / close, "ratio_to_chosen_C": seconds / chosen,
        "agreement": float((near.predict(X) == ours.predict(X)).mean()),
    }  # fmt: skip


def main() -> None:
    """Measure and print a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # of what LogisticRegressionCV will call its arguments
    found = [measured(*size) for size in SIZES + (LARGE if options.full else [])]
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), "cores": os.cpu_count(), "sizes": found}, indent=2))
        return
    print("| rows, features, classes | taftcache, λ chosen | one C, 10⁻⁴ | one C, 10⁻⁶ | chosen C | same predictions |")
    print("|---|--:|--:|--:|--:|--:|")
    for at in found:
        size = f"{at['rows']:,}, {at['features']}, {at['classes']}"
        times = [f"{at[key]:.2g} s" for key in ("seconds", "one_C", "one_C_1e-6", "chosen_C")]
        print(f"| {size} | {' | '.join(times)} | {100 * at['agreement']:.2f} % |")


if __name__ == "__main__":
    main()
