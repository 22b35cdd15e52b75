"""Lower bounds on ε, each from one run: canaries that the auditor recognises in what every step releases.

    python benchmarks/privacy_audit.py --json

The auditor is as strong as the promise allows for: it writes the canaries itself, sees every noisy sum, and knows
everything but which canaries are in. Canary j is a row whose feature is the j-th unit vector, so its clipped gradient
has norm C in a place of its own; each is put in by a fair coin. What the steps released there, along the gradient
that the canary would have had, is its score.

It is the head that is trained, by full-batch descent under add-remove, at a learning rate so small (1e-6) that every
canary's gradient stays what it was: of the other mechanisms, parameters and relation it says nothing. A bound is a
random number, and several runs of each ε show how far it spreads; what is printed is the range.

Two bounds come of the scores. ``lower_bound`` counts canaries above the middle of what being in and being out would
give, which is known beforehand, with exact binomial confidence; a μ-GDP mechanism obeys Φ⁻¹(true positives) −
Φ⁻¹(false positives) ≤ μ, and μ gives ε at δ (Nasr et al., Tight auditing of differentially private machine learning,
2023). It takes the canaries for trials of their own, which places of their own and independent noise make them.
``without_independence`` does not: of r guesses about an (ε, δ)-private mechanism, the number of right ones is below a
binomial with e^ε/(1 + e^ε), up to a term in δ (Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run,
2023); it is always much looser.

``--mutant half-noise`` halves the noise that is added and leaves the claim: the bound must then lie above it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from math import exp
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from record import json_parser, print_report
from scipy import stats

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.privacy import descent
from taftcache.privacy.accountant import gaussian_epsilon
from taftcache.privacy.network import TangentNetwork
from taftcache.privacy.noise import discrete_gaussian
from taftcache.privacy.spec import PrivacySpec
from taftcache.privacy.trainer import train_privately
from taftcache.tangent.base import make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.rows import ArrayRows

CONFIDENCE = 0.99
SIZE = 1e3  # of a canary's feature: its clipped gradient is then in one column but for a thousandth


def audit(epsilon: float, canaries: int, steps: int, seed: int | None = None, half: bool = False) -> dict[str, Any]:
    """One run: the claim, and what the auditor can prove."""
    rng = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
    config = TailConfig(
        path="feature", start="head", blocks=(), shape=(canaries,), width=canaries, classes=2, parameters=()
    )
    base = make_base({}, config, 2)
    coins = rng.random(canaries) < 0.5
    chosen = np.flatnonzero(coins)
    features = np.zeros((len(chosen), 1, canaries), dtype=np.float32)
    features[np.arange(len(chosen)), 0, chosen] = SIZE
    rows = ArrayRows(features, np.zeros(len(chosen), dtype=np.int64))
    spec = PrivacySpec(epsilon=epsilon, steps=steps, learning_rate=1e-6)
    trace, network = list[torch.Tensor](), TangentNetwork(base, [rows], base.head_layout)
    mutant = patch.object(descent, "discrete_gaussian", lambda *args: discrete_gaussian(*args) // 2)
    with mutant if half else nullcontext():
        trained = train_privately(base, network, CrossEntropy(), spec, trace=trace)
    weight = torch.stack(trace).double().sum(0)[: 2 * canaries].view(2, canaries)
    score = (weight[1] - weight[0]).numpy()  # the loss pulls label 0 up and the other down
    claim = trained.statement
    middle = steps * claim.clip / claim.unit / 2**0.5
    bound = gaussian_bound(score > middle, coins, claim.delta)
    return {
        "claimed": claim.epsilon,
        "delta": claim.delta,
        "lower_bound": bound,
        "share": bound / claim.epsilon,
        "without_independence": one_run_bound(score, coins, claim.delta),
    }


def ranges(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each claim the number of runs, and the least and the most that they showed by either bound."""
    claims = dict.fromkeys(run["claimed"] for run in runs)
    same = {claim: [run for run in runs if run["claimed"] == claim] for claim in claims}
    kinds = ("lower_bound", "without_independence")
    return [
        {"claimed": claim, "runs": len(own)} | {k: [f(run[k] for run in own) for f in (min, max)] for k in kinds}
        for claim, own in same.items()
    ]


def gaussian_bound(guessed: np.ndarray, coins: np.ndarray, delta: float) -> float:
    """ε at δ of the least μ-GDP that guesses this good allow for, with ``CONFIDENCE``."""
    level = (1 - CONFIDENCE) / 2
    hits, inside = int(guessed[coins].sum()), int(coins.sum())
    alarms, outside = int(guessed[~coins].sum()), int((~coins).sum())
    true_positives = stats.beta.ppf(level, hits, inside - hits + 1) if hits else 0.0
    false_positives = stats.beta.ppf(1 - level, alarms + 1, outside - alarms) if alarms < outside else 1.0
    mu = float(stats.norm.ppf(true_positives) - stats.norm.ppf(false_positives))
    return gaussian_epsilon(mu, delta) if mu > 0 else 0.0


def one_run_bound(score: np.ndarray, coins: np.ndarray, delta: float) -> float:
    """ε that is below the true one with ``CONFIDENCE``, of the best number of guesses on a grid."""
    order = np.argsort(score)
    m = len(score)
    sizes = sorted({int(r) for r in np.geomspace(10, m, 12)})
    best = 0.0
    for r in sizes:
        low, high = order[: r // 2], order[m - r // 2 :]
        correct = int((~coins[low]).sum() + coins[high].sum())
        best = max(best, _epsilon(m, 2 * (r // 2), correct, delta, (1 - CONFIDENCE) / len(sizes)))
    return best


def _epsilon(m: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """The least ε that ``correct`` right ones of ``guesses`` do not speak against."""
    low, high = 0.0, 30.0
    if _p_value(m, guesses, correct, low, delta) > level:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _p_value(m, guesses, correct, middle, delta) <= level else (low, middle)
    return low


def _p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P(at least ``correct`` right) under (ε, δ), at most (Steinke et al., theorem 5.2)."""
    below = stats.binom(guesses, 1 / (1 + exp(-epsilon)))
    tail = float(below.sf(correct - 1))
    steps = np.arange(1, correct + 1)
    between = below.sf(correct - 1 - steps) - tail  # P(correct > W ≥ correct − i)
    return min(1.0, tail + 2 * m * delta * float(np.max(between / steps, initial=0.0)))


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--canaries", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--runs", type=int, default=10, help="of each epsilon")
    parser.add_argument("--mutant", choices=["none", "half-noise"], default="none")
    options = parser.parse_args()
    half = options.mutant == "half-noise"
    runs = [
        audit(epsilon, options.canaries, options.steps, half=half)
        for epsilon in options.epsilon
        for _ in range(options.runs)
    ]
    report = {
        "canaries": options.canaries,
        "steps": options.steps,
        "confidence": CONFIDENCE,
        "mutant": options.mutant,
        "runs": runs,
        "ranges": ranges(runs),
        "flagged": sum(run["lower_bound"] > run["claimed"] for run in runs),
    }
    if options.json:
        print_report(report)
    else:
        for each in report["ranges"]:
            (low, high), (least, most) = each["lower_bound"], each["without_independence"]
            shown = f"at least {low:.3f} to {high:.3f}, and {least:.3f} to {most:.3f} without assumptions"
            print(f"epsilon {each['claimed']:.3f} claimed; {each['runs']} runs show {shown}")
        print(f"flagged: {report['flagged']} of {len(runs)}")


if __name__ == "__main__":
    main()
