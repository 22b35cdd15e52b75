"""A classifier of features, beside scikit-learn's LogisticRegression: the same features, the same cross-entropy.

    python benchmarks/classifier.py [--full] [--json]

The features are normal numbers, and a class is drawn by the logits of a linear model. taftcache:
``TangentClassifier()`` as it is, which chooses λ on one row in five and ends with a certificate in float64. one C:
scikit-learn's LogisticRegression behind a StandardScaler at C = 1/(Nλ) for that λ, to its own tolerance of 10⁻⁴ and to
10⁻⁶. one split, five folds: its LogisticRegressionCV, with the ten C that it tries by default, by the loss on one row
in five as taftcache does, and in the five folds that are its default. Seconds are the processor's, all threads
together. ``agreement``: of the predictions on the training rows, with those of one C to 10⁻⁶. ``--full`` has the
largest two sizes, too.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from record import json_parser, print_report, timed
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from taftcache import TangentClassifier

SIZES = [(1200, 4096, 10), (3000, 192, 10), (20_000, 64, 10), (200_000, 3, 3)]  # rows, features, classes
LARGE = [(50_000, 192, 10), (30_000, 192, 60)]
NOISE = 2.0  # of the logits by which classes are drawn
MOST_STEPS = 1000
PEERS = ("one_C", "one_C_1e-6", "one_split", "five_folds")


def drawn(rows: int, features: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """X [N,d] and y [N]."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features)).astype(np.float32)
    logits = X @ rng.normal(size=(features, classes)) + NOISE * rng.gumbel(size=(rows, classes))
    return X, logits.argmax(1)


def measured(rows: int, features: int, classes: int) -> dict[str, Any]:
    """Processor seconds of each on one size."""
    X, y = drawn(rows, features, classes)
    ours, took = timed(lambda: TangentClassifier().fit(X, y))

    def one(tolerance: float) -> tuple[Any, dict[str, float]]:
        model = LogisticRegression(C=1 / (rows * ours.ridge_), max_iter=MOST_STEPS, tol=tolerance)
        return timed(lambda: make_pipeline(StandardScaler(), model).fit(X, y))

    def searched(splits: Any) -> float:
        model = LogisticRegressionCV(cv=splits, scoring="neg_log_loss", max_iter=MOST_STEPS)
        return timed(lambda: make_pipeline(StandardScaler(), model).fit(X, y))[1]["processor"]

    (_, usual), (near, close) = one(1e-4), one(1e-6)
    return {
        "rows": rows, "features": features, "classes": classes, "ridge": ours.ridge_, "seconds": took["processor"],
        "passes": ours.solution_.stats.passes, "distance": ours.solution_.certificate.distance,
        "one_C": usual["processor"], "one_C_1e-6": close["processor"],
        "one_split": searched(ShuffleSplit(1, test_size=0.2, random_state=0)), "five_folds": searched(5),
        "agreement": float((near.predict(X) == ours.predict(X)).mean()),
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = json_parser(__doc__)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # of what LogisticRegressionCV will call its arguments
    found = [measured(*size) for size in SIZES + (LARGE if options.full else [])]
    if options.json:
        print_report({"sizes": found})
        return
    for at in found:
        times = ", ".join(f"{key} {at[key]:.2g} s" for key in ("seconds", *PEERS))
        size = f"{at['rows']:,} rows, {at['features']} features, {at['classes']} classes"
        print(f"{size}: {times}; the same predictions in {100 * at['agreement']:.2f} %")


if __name__ == "__main__":
    main()
