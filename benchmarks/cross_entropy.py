"""Cross-entropy beyond the head: passes and seconds until the gradient is small, against other solvers.

    python benchmarks/cross_entropy.py [RECIPE] [--ridges 1e-3] [--rows shard|all] [--peers] [--removal]
                                       [--set KEY=VALUE] [--json]

RECIPE is pipelines/caltech101.toml (needs TAFTCACHE_DATA) or, without that folder, pipelines/quickstart.toml, with
cross-entropy in place of its loss; its store is made if it is not there. The rows are those of the first shard, of all
shards, or (by default) first the one and then the other. Each solver goes on until the gradient, recomputed in float64,
is 10⁻⁶ of that at Δw = 0, or for 1,000 passes. A pass is one product with J and one with Jᵀ.

span: what runs, Newton over the span of all gradients so far. newton: Newton in a trust region with conjugate
gradients inside, which takes its place where that does not fit. lbfgs (``--peers``): SciPy's L-BFGS-B with as many
pairs as the span has directions, on F and ∇F in float32, where it may end early, and in float64.

With ``--removal`` the solve goes on until its certificate decides of a typical row, as "auto" does; a row is then taken
out, and the rest solved again as far, from zero (cold), and on from the old dual vectors until the distance is a tenth
of what the removal moved (warm).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from recipes import extracted, recipe_parser
from record import print_report
from scipy.optimize import minimize as scipy_minimise

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_base
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.objective import Objective
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.methods.span_newton import DIRECTIONS
from taftcache.solve.minimise import Method, minimise, resume
from taftcache.solve.pair import pose
from taftcache.solve.settings import DECISIVE, Arithmetic, Goal
from taftcache.solve.solution import Solution
from taftcache.stages.memory import memory_of
from taftcache.tangent.base import Base
from taftcache.tangent.rows import RowSubset

TOLERANCE, PASSES = 1e-6, 1000
WAYS: dict[str, Method] = {"span": "auto", "newton": "conjugate"}


def by(way: str, base: Base, shards: Sequence[Shard], objective: Objective, arithmetic: Arithmetic) -> dict[str, Any]:
    """One solve, from opening its rows to its certificate."""
    begin = time.perf_counter()
    goal = Goal(tolerance=TOLERANCE, max_passes=PASSES)
    return figures(way, minimise(base, shards, objective, method=WAYS[way], goal=goal, arithmetic=arithmetic), begin)


def figures(name: str, found: Solution, begin: float) -> dict[str, Any]:
    """What is told of a solve that began at a time."""
    c = found.certificate
    return {
        "solver": name,
        "converged": found.converged,
        "passes": found.stats.passes,
        "seconds": time.perf_counter() - begin,
        "relative_gradient": c.relative_gradient,
        "objective": c.objective,
        "distance": c.distance,
    }


def removal(
    base: Base, shards: Sequence[Shard], objective: Objective, arithmetic: Arithmetic
) -> Iterator[dict[str, Any]]:
    """A solve that decides, and those after the row in the middle has left."""
    goal = Goal(until_decisive=True, max_passes=PASSES)
    begin = time.perf_counter()
    old = minimise(base, shards, objective, goal=goal, arithmetic=arithmetic)
    yield figures("span, until it decides", old, begin) | {"row_moves": old.stats.row_moves}
    stays = torch.ones(sum(shard.rows for shard in shards), dtype=torch.bool)
    stays[len(stays) // 2] = False
    left = [RowSubset(shards, torch.nonzero(stays)[:, 0].numpy())]
    begin = time.perf_counter()
    cold = minimise(base, left, objective, goal=goal, arithmetic=arithmetic)
    yield figures("without a row, cold", cold, begin)

    def enough(moved: float) -> float:
        return DECISIVE * (moved - old.certificate.distance) / (1 + DECISIVE)

    assert old.dual is not None
    begin = time.perf_counter()
    warm = resume(base, left, objective, Restart(shards, old.value, old.dual, stays, enough), arithmetic=arithmetic)
    yield figures("without a row, warm", warm, begin) | {"moved": (warm.value - old.value).norm().item()}


def by_lbfgs(
    base: Base, shards: Sequence[Shard], objective: Objective, arithmetic: Arithmetic, dtype: torch.dtype
) -> dict[str, Any]:
    """The same by SciPy, with products in ``dtype``."""
    begin, passes = time.perf_counter(), 0
    inner, exact = (pose(base, shards, objective, arithmetic, of) for of in (dtype, torch.float64))
    zero = torch.zeros(exact.operator.layout.size, dtype=torch.float64)
    at_zero = exact.evaluate(zero)[1].norm().item()

    def evaluate(value: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal passes
        passes += 1
        objective, gradient = inner.evaluate(torch.from_numpy(value))
        return objective, gradient.double().numpy()

    reached: list[NDArray[np.float64]] = []

    def watched(value: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        found = evaluate(value)
        if np.linalg.norm(found[1]) <= TOLERANCE * at_zero:  # its own rule is on the largest entry
            reached.append(value.copy())
            raise StopIteration
        return found

    options = {"maxcor": DIRECTIONS, "maxfun": PASSES, "maxiter": PASSES, "ftol": 0.0, "gtol": 0.0}
    try:
        value = scipy_minimise(watched, zero.numpy(), jac=True, method="L-BFGS-B", options=options).x
    except StopIteration:
        value = reached[0]
    seconds = time.perf_counter() - begin
    final, gradient = exact.evaluate(torch.from_numpy(value))
    return {
        "solver": f"lbfgs in {str(dtype).removeprefix('torch.')}",
        "converged": gradient.norm().item() <= 1.1 * TOLERANCE * at_zero,
        "passes": passes,
        "seconds": seconds,
        "relative_gradient": gradient.norm().item() / at_zero,
        "objective": final,
    }


def runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every solver for every λ, for one shard and for all of them."""
    recipe = extracted(options)
    with FeatureStore(recipe.store_path) as store:
        base = read_base(store, recipe.tangent)
        names = [shard.name for shard in store.manifest.shards if shard.role == "train"]
        for rows, some in (("shard", names[:1]), ("all", names)):
            if options.rows not in (None, rows):
                continue
            shards = [store.shard(name) for name in some]
            arithmetic = Arithmetic(memory=memory_of(recipe))
            for ridge in options.ridges:
                objective = Objective(loss=CrossEntropy(), ridge=ridge)
                about = {"rows": sum(shard.rows for shard in shards), "classes": base.config.classes, "ridge": ridge}
                for way in WAYS:
                    yield about | by(way, base, shards, objective, arithmetic)
                for solve in removal(base, shards, objective, arithmetic) if options.removal else ():
                    yield about | solve
                for dtype in (torch.float32, torch.float64) if options.peers else ():
                    yield about | by_lbfgs(base, shards, objective, arithmetic, dtype)


def main() -> None:
    parser = recipe_parser(__doc__)
    parser.add_argument("--ridges", nargs="+", type=float, default=[1e-3])
    parser.add_argument("--rows", choices=["shard", "all"])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--removal", action="store_true")
    options = parser.parse_args()
    found = []
    for run in runs(options):
        found.append(run)
        if not options.json:
            print(
                f"{run['rows']} rows of {run['classes']} classes, λ = {run['ridge']:g}, {run['solver']}: "
                f"{run['passes']} passes, {run['seconds']:.1f} s, gradient {run['relative_gradient']:.1e}",
                flush=True,
            )
    if options.json:
        print_report({"runs": found})


if __name__ == "__main__":
    main()
