"""What products of less precision cost a solve, and bring: their error, passes to a certified gradient, seconds.

    python benchmarks/precision.py [--store STORE] [--ridge LAMBDA] [--json]

One shard (of a quickstart store that is extracted into a temporary folder, or of a STORE of yours) is solved by
conjugate gradients under the Kronecker preconditioner, with inner products in float32 and with their matrix
products in bfloat16, accumulated in float32. Rounds restart from the float64 gradient either way, so what is
called converged is so; what changes is how many passes that takes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from record import json_parser, print_report, seconds

from taftcache import FeatureStore, extract, load_recipe
from taftcache.model.component import read_base
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.recipe import parse_recipe
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.methods.conjugate import pcg
from taftcache.solve.pair import ProblemPair
from taftcache.solve.settings import Goal
from taftcache.tangent.operator import TangentOperator

TOLERANCES = [1e-1, 1e-2, 1e-3, 1e-4]


class Bfloat16Problem(Problem):
    """A problem whose Hessian products run in bfloat16 where the machine has units for it."""

    def hessian(self, vector: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        torch.set_float32_matmul_precision("medium")
        try:
            with patch("taftcache.tangent.operator.lowered", lambda: False):  # it goes back to float32 by itself
                return super().hessian(vector, out)
        finally:
            torch.set_float32_matmul_precision("highest")


@contextmanager
def opened(path: Path | None) -> Iterator[FeatureStore]:
    """The store at ``path``, or a new one of the quickstart recipe."""
    if path is not None:
        with FeatureStore(path) as store:
            yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("pipelines/quickstart.toml", [f"store.path={folder}/store"])
        extract(recipe)
        with FeatureStore(recipe.store_path) as store:
            yield store


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--ridge", type=float, default=1e-3)
    parser.add_argument("--max-passes", type=int, default=300)
    args = parser.parse_args()
    loss = RSL(kappa=15.0)
    report = []
    with opened(args.store) as store:
        base = read_base(store, parse_recipe(store.manifest.recipe).tangent)
        rows = [store.shards[0]]
        exact = Problem(TangentOperator(base, rows, dtype=torch.float64, memory=2 << 30), loss, args.ridge)
        inner = TangentOperator(base, rows, dtype=torch.float32, memory=2 << 30)
        preconditioner = KroneckerPreconditioner(Problem(inner, loss, args.ridge))
        v = torch.randn(base.layout.size, generator=torch.Generator().manual_seed(0))
        reference = exact.hessian(v.double())
        for name, kind in (("float32", Problem), ("bfloat16", Bfloat16Problem)):
            problem = kind(inner, loss, args.ridge)
            pair = ProblemPair(problem, exact)
            passes: dict[str, int | None] = {}
            for tolerance in TOLERANCES:
                solution = pcg(pair, preconditioner, Goal(tolerance=tolerance, max_passes=args.max_passes))
                passes[f"{tolerance:.0e}"] = solution.stats.passes if solution.converged else None
            error = ((problem.hessian(v).double() - reference).norm() / reference.norm()).item()
            took = statistics.median([seconds(partial(problem.hessian, v), "cpu") for _ in range(11)][2:])
            report.append({"products": name, "product_error": error, "seconds": took, "passes_to_gradient": passes})
    if args.json:
        print_report({"ridge": args.ridge, "rows": rows[0].rows, "results": report})
        return
    for r in report:
        counts = ", ".join(f"{t}: {p or f'over {args.max_passes}'}" for t, p in r["passes_to_gradient"].items())
        product = f"{1e3 * r['seconds']:.1f} ms, error {r['product_error']:.1e}"
        print(f"{r['products']}: a product takes {product}; passes to a gradient of {counts}")


if __name__ == "__main__":
    main()
