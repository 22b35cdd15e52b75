"""Certificates against optima in exact or extended precision: how many are false, by solver.

    python benchmarks/certificates.py [--full] [--json]

The problems are small, rank-deficient and badly scaled, their rows in the formats of a store, and the tolerances reach
from 10⁻² to below what float64 resolves. The optimum of a square loss without a ball is rational for conjugate
gradients, and found with 80-bit sums for the others. A problem counts as violated where any of what the certificate
says is false: the gradient's norm, the distance, the gap, or "converged". 60 problems a solver; --full takes 1,200, and
10,000 of conjugate gradients.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from record import json_parser, print_report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the problems are those of the tests

from tests.solve import refined
from tests.solve.test_certificates import breaches


def measure(full: bool) -> dict[str, Any]:
    """By solver: problems, false certificates, problems whose optimum was not found, what was false, seconds."""
    runs: dict[str, tuple[Callable[[int], list[str] | None], int]] = {
        "conjugate gradients": (lambda seed: breaches(seed)[0], 10_000 if full else 300)
    }
    runs |= {name: (partial(refined.breaches, name), 1_200 if full else 60) for name in refined.SOLVERS}
    found = {}
    for name, (check, problems) in runs.items():
        begin = time.perf_counter()
        results = [check(seed) for seed in range(problems)]
        false = [texts for texts in results if texts]
        found[name] = {
            "problems": problems,
            "violations": len(false),
            "undecided": sum(texts is None for texts in results),
            "said": [text for texts in false for text in texts][:5],
            "seconds": round(time.perf_counter() - begin, 1),
        }
    return {"full": full, "solvers": found, "violations": sum(one["violations"] for one in found.values())}


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--full", action="store_true", help="thousands of problems")
    args = parser.parse_args()
    figures = measure(args.full)
    if args.json:
        print_report(figures)
        return
    print(f"{'solver':24} {'problems':>8} {'false':>6} {'undecided':>10} {'seconds':>8}")
    for name, one in figures["solvers"].items():
        cells = f"{one['problems']:8} {one['violations']:6} {one['undecided']:10} {one['seconds']:8.1f}"
        print("\n".join([f"{name:24} {cells}", *(f"    {text}" for text in one["said"])]))


if __name__ == "__main__":
    main()
