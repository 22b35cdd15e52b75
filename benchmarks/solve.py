"""Passes over the cache to a relative objective gap and to the final accuracy, against other solvers.

    python benchmarks/solve.py [RECIPE] [--ridges 1e-4] [--whole] [--peers] [--head] [--memory] [--json]

RECIPE is pipelines/caltech101.toml (needs TAFTCACHE_DATA) or, without that folder, pipelines/quickstart.toml;
pipelines/cifar10.toml has 50,000 rows and takes minutes to extract. Its store is made if it is not there. All
training rows are one problem. A pass is one JᵀDJ·v: an adjoint alone counts half, the evaluation at zero, the
building of a preconditioner (as many passes as fit into its seconds, or two) and every look at the true gradient
count, each rounded up. The gap is (F − F*)/(F(0) − F*), with F* from a solve ten thousand times closer; the final
accuracy is that solve's: when the held-out accuracy is first within 0.2 points of it, and from when on it stays
there. ``--whole`` instead times solves as a run makes them, certificate and all, in the space of the rows and without
it. ``--shards`` deals the rows out, solves each part, and goes on from the mean with all of them. ``--peers`` adds
plain conjugate gradients, SciPy's cg and lsmr on the same operator and Adam over 30 epochs; ``--head`` times the
head's path over 20 λ (α = 1, as in scikit-learn) against RidgeCV and Ridge, and cross-entropy against its
LogisticRegression; ``--ridges`` without a number leaves the solvers out;
``--memory`` shows the peak of a solve that streams, at two sizes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes import recipe_parser
from record import print_report

from taftcache.baselines.schedule import Schedule
from taftcache.baselines.tangent_training import Run, train_tangents
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_base
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.named import true_class_weight
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.recipe import load_recipe
from taftcache.solve.head.choice import path_of
from taftcache.solve.inverses.class_kernel import class_kernel_fits
from taftcache.solve.inverses.inverse import approximate_inverse
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.inverses.sampled import SampledInverse, sampled_fits
from taftcache.solve.methods.head import solve_head
from taftcache.solve.methods.newton import newton
from taftcache.solve.methods.row_space import RowSpace
from taftcache.solve.minimise import minimise
from taftcache.solve.pair import ProblemPair
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.stages.extract.extraction import extract
from taftcache.stages.memory import memory_of
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows

GAPS = (1e-3, 1e-6)
LOOKS = (*range(2, 41), *range(45, 121, 15))  # passes at which the accuracy is looked at
WITHIN = 0.2

Trace = list[tuple[int, float]]


class Bench:
    """One problem, its optimum, and the held-out rows."""

    def __init__(self, base: Base, shards: Sequence[Shard], held_out: Shard, loss: RSL, ridge: float, memory: int):
        self.base, self.shards = base, shards
        operator = TangentOperator(base, shards, memory=memory, repeated=True)
        self.narrow = Problem(operator, loss, ridge)
        self.exact = Problem(TangentOperator(base, shards, dtype=torch.float64), loss, ridge)
        self.test = TangentOperator(base, [held_out], memory=memory)
        self.zero = torch.zeros(operator.layout.size, dtype=torch.float64)
        self.at_zero = self.exact.evaluate(self.zero)[0]
        best = minimise(
            base, shards, Objective(loss=loss, ridge=ridge), goal=Goal(max_passes=600),
            arithmetic=Arithmetic(memory=memory),
        )  # fmt: skip
        self.optimum, self.final = best.certificate.objective, self.accuracy(best.value)
        self.gap_bound = best.certificate.gap / (self.at_zero - self.optimum)

    def accuracy(self, delta: torch.Tensor) -> float:
        """Top-1 in percent on the held-out rows."""
        correct = 0
        for (state, labels), change in zip(self.test.blocks(), self.test.matvec(delta), strict=True):
            correct += int(((state.logits + change).argmax(1) == labels).sum())
        return 100 * correct / self.test.rows

    def gap(self, objective: float) -> float:
        """(F − F*)/(F(0) − F*)."""
        return (objective - self.optimum) / (self.at_zero - self.optimum)

    def result(self, name: str, trace: Trace, accuracies: Trace, seconds: float, building: float) -> dict[str, Any]:
        """Passes to every bar, None where it was not met."""
        gaps = [(passes, self.gap(objective)) for passes, objective in trace]
        met = {f"passes_to_gap_{level:.0e}": first(gaps, level) for level in GAPS}
        reached = first([(passes, abs(a - self.final)) for passes, a in accuracies], WITHIN)
        settled = None
        for passes, accuracy in reversed(accuracies):
            if abs(accuracy - self.final) > WITHIN:
                break
            settled = passes
        return {
            "solver": name,
            **met,
            "passes_to_final_accuracy": reached,
            "passes_till_it_stays": settled,
            "passes_building": building,
            "gap_at_end": self.gap(trace[-1][1]),
            "passes": trace[-1][0],
            "seconds": seconds,
        }

    def results(self, passes: int, peers: bool) -> Iterator[dict[str, Any]]:
        """One solver after another."""
        if class_kernel_fits(self.narrow):
            yield self.row_space(passes)
        if sampled_fits(self.narrow):
            yield self.conjugate("a sample's inverse", passes, lambda: SampledInverse(self.narrow))
        yield self.conjugate("kronecker", passes, lambda: KroneckerPreconditioner(self.narrow))
        if not peers:
            return
        yield self.conjugate("plain cg", passes, None)
        yield from self.scipy(passes)
        begin = time.perf_counter()
        schedule = Schedule()
        run = Run(self.exact.loss, schedule.rate, self.exact.ridge)
        (delta,) = train_tangents(self.base, self.shards, [run], schedule)
        yield {
            "solver": f"Adam, {schedule.epochs} epochs",
            "passes": schedule.epochs,
            "gap_at_end": self.gap(self.exact.evaluate(delta)[0]),
            "accuracy": self.accuracy(delta),
            "seconds": time.perf_counter() - begin,
        }

    def from_mean(self, parts: int, passes: int) -> dict[str, Any]:
        """The rows dealt out to so many shards, each solved alone; all rows solved from the mean of those."""
        tokens = np.concatenate([s.tokens(slice(None)) for s in self.shards])
        labels = np.concatenate([s.labels for s in self.shards])
        objective = Objective(loss=self.exact.loss, ridge=self.exact.ridge)
        mean, goal = torch.zeros_like(self.zero), Goal(tolerance=5e-3, max_passes=500)
        for at in range(parts):
            part = ArrayRows(tokens[at::parts], labels[at::parts])
            mean += minimise(self.base, [part], objective, goal=goal).value / parts
        result = self.conjugate("from the mean", passes, lambda: approximate_inverse(self.narrow), mean)
        return {"shards": parts, "accuracy_of_the_mean": self.accuracy(mean), **result}

    def row_space(self, passes: int) -> dict[str, Any]:
        """What ``minimise`` takes."""
        accuracies: Trace = []
        begin, looking = time.perf_counter(), 0.0

        def look(count: int, residual: float) -> None:
            nonlocal looking
            if count in LOOKS:
                at = time.perf_counter()
                accuracies.append((count, self.accuracy(rows.current())))
                looking += time.perf_counter() - at

        rows = RowSpace(ProblemPair(self.narrow, self.exact), passes, look)
        rows.run(1e-5)
        seconds = time.perf_counter() - begin - looking
        building = rows.kernel.passes if rows.kernel else 0  # none where the passes end before it
        return self.result("row space", rows.history, accuracies, seconds, building)

    def conjugate(
        self, name: str, passes: int, make: Callable[[], Any] | None, start: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """Conjugate gradients, plain or under a preconditioner, F by their own recurrence.

        Building a preconditioner counts as many passes as fit into its time, an apply what it takes of the rows.
        """
        x = (self.zero if start is None else start).float().clone()
        self.narrow.hessian(x)
        begin, looking = time.perf_counter(), 0.0
        objective, gradient = self.narrow.evaluate(x)
        one = time.perf_counter() - begin
        made = make() if make else None
        apply, each = (made.apply if made else torch.clone), getattr(made, "passes", 0.0)
        building = (time.perf_counter() - begin) / one - 1
        r = -gradient
        y = apply(r)
        d, rho = y.clone(), (r.double() @ y.double()).item()
        work = 1 + building + each
        trace, accuracies = [(ceil(work), objective)], []
        while trace[-1][0] < passes:
            Hd = self.narrow.hessian(d)
            step = rho / (d.double() @ Hd.double()).item()
            x.add_(d, alpha=step)
            r.sub_(Hd, alpha=step)
            work += 1
            trace.append((ceil(work), trace[-1][1] - 0.5 * step * rho))
            if len(trace) in LOOKS:
                at = time.perf_counter()
                accuracies.append((ceil(work), self.accuracy(x)))
                looking += time.perf_counter() - at
            y = apply(r)
            work += each
            rho, before = (r.double() @ y.double()).item(), rho
            d.mul_(rho / before).add_(y)
        seconds = time.perf_counter() - begin - looking
        return self.result(name, trace, accuracies, seconds, round(building, 1)) | {"seconds_a_pass": one}

    def scipy(self, passes: int) -> Iterator[dict[str, Any]]:
        """SciPy's cg on the Hessian, and lsmr on √(D/N) J with damping √λ, each to that many products."""
        from scipy.sparse.linalg import LinearOperator, cg, lsmr

        operator, ridge = self.exact.operator, self.exact.ridge
        P, K, N = operator.layout.size, operator.classes, operator.rows
        blocks = [(state.logits, y) for state, y in self.narrow.operator.blocks()]
        sizes = [len(y) for _, y in blocks]
        logits, labels = torch.cat([z for z, _ in blocks]).double(), torch.cat([y for _, y in blocks])
        loss, scale = self.exact.loss, self.exact.diagonal(labels, self.zero).sqrt()
        b = -scale * loss.gradient(logits, labels) / loss.hessian(logits, labels, torch.ones_like(logits))

        def forward(v: np.ndarray) -> np.ndarray:
            change = torch.cat(list(self.narrow.operator.matvec(torch.from_numpy(v))))
            return (scale * change).reshape(-1).numpy()

        def back(v: np.ndarray) -> np.ndarray:
            parts = iter((scale * torch.from_numpy(v).view(N, K)).float().split(sizes))
            return self.narrow.operator.accumulate(None, lambda f, c, y: next(parts)).double().numpy()

        J = LinearOperator((N * K, P), forward, back, dtype=np.float64)
        H = LinearOperator(
            (P, P), lambda v: self.narrow.hessian(torch.from_numpy(v)).double().numpy(), dtype=np.float64
        )
        right = -self.exact.evaluate(self.zero)[1].numpy()
        runs: dict[str, Callable[[], Any]] = {
            "scipy cg": lambda: cg(H, right, rtol=0, atol=0, maxiter=passes),
            "scipy lsmr": lambda: lsmr(J, b.reshape(-1).numpy(), sqrt(ridge), atol=0, btol=0, conlim=0, maxiter=passes),
        }
        for name, run in runs.items():
            begin = time.perf_counter()
            x = torch.from_numpy(run()[0])
            seconds = time.perf_counter() - begin
            gap = self.gap(self.exact.evaluate(x)[0])
            yield {"solver": name, "passes": passes, "gap_at_end": gap, "seconds": seconds}


def first(trace: Trace, most: float) -> int | None:
    """The passes after which a value was first that small."""
    return next((passes for passes, value in trace if value <= most), None)


def whole(base: Base, shards: Sequence[Shard], loss: RSL, ridge: float, memory: int) -> Iterator[dict[str, Any]]:
    """A solve with ``solver.tolerance = "auto"`` as it is by default, and without the space of the rows."""
    goal, asked = Goal(until_decisive=True), Objective(loss=loss, ridge=ridge)
    for method in ("auto", "conjugate"):
        begin = time.perf_counter()
        found = minimise(base, shards, asked, method=method, goal=goal, arithmetic=Arithmetic(memory=memory))
        seconds = time.perf_counter() - begin
        yield {
            "method": method,
            "solver": found.stats.solver,
            "status": found.status.name,
            "passes": found.stats.passes,
            "distance_bound": found.certificate.distance,
            "row_moves": found.stats.row_moves,
            "seconds": seconds,
        }


def head_times(base: Base, shards: Sequence[Shard], loss: RSL) -> dict[str, float]:
    """Seconds for the head, features in memory: every solver sees the same x̃ and the same targets."""
    from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV

    operator = TangentOperator(base, shards, trained=base.head_layout, dtype=torch.float64, memory=8 << 30)
    problem = Problem(operator, loss, 1e-4)
    blocks = ((state.feature, state.logits, y) for state, y in operator.blocks())
    x, base_logits, labels = map(torch.cat, zip(*blocks, strict=True))
    X = torch.cat([x, torch.ones_like(x[:, :1])], 1).numpy()
    target = (loss.kappa * torch.nn.functional.one_hot(labels, operator.classes) - base_logits).numpy()
    ridges = np.logspace(-8, 1, 20)
    alphas = ridges * len(X) * operator.classes / 2

    def timed(run: Callable[[], Any]) -> float:
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return min(times)

    def path() -> None:
        made = path_of(problem)
        made.weights(min(made.leave_one_out(ridges.tolist()), key=lambda e: e.loss).ridge)

    peer = RidgeCV(alphas, fit_intercept=False)
    times = {
        "path_of_20": timed(path),
        "ridge_cv_of_20": timed(lambda: peer.fit(X, target)),
        "one": timed(lambda: solve_head(problem)),
        "ridge_of_one": timed(lambda: Ridge(alphas[9], fit_intercept=False).fit(X, target)),
        "logistic_regression": timed(lambda: LogisticRegression(max_iter=200).fit(X, labels.numpy())),
    }
    chosen = min(path_of(problem).leave_one_out(ridges.tolist()), key=lambda e: e.loss).ridge
    near = TangentOperator(base, shards, trained=base.head_layout, memory=8 << 30)
    pair = ProblemPair(*(Problem(each, CrossEntropy(), 1e-4) for each in (near, operator)))
    solved = newton(pair, Goal(tolerance=1e-3, max_passes=400))
    same = LogisticRegression(C=1e4 / len(X), tol=1e-5, max_iter=1000, fit_intercept=False)
    times |= {
        "cross_entropy": timed(lambda: newton(pair, Goal(tolerance=1e-3, max_passes=400))),
        "cross_entropy_passes": float(solved.stats.passes),
        "cross_entropy_relative_gradient": solved.certificate.relative_gradient,
        "logistic_regression_at_this_ridge": timed(lambda: same.fit(X, labels.numpy())),
    }
    times["same_choice"] = float(abs(chosen / (2 * peer.alpha_ / len(X) / operator.classes) - 1) < 1e-9)
    times["times_ridge_cv"] = times["ridge_cv_of_20"] / times["path_of_20"]
    return times


def peak(recipe: Path, sets: Sequence[str], shards: int) -> dict[str, float]:
    """Peak resident memory, in MiB, of a short streaming solve over some shards, in a process of its own."""
    command = [sys.executable, __file__, str(recipe), "--child", str(shards)]
    for text in sets:
        command += ["--set", text]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def child(base: Base, shards: Sequence[Shard], loss: RSL, ridge: float) -> None:
    """Solve for a few passes with nothing kept, under Kronecker factors; say the peak."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the process that started this one comes along else
    before, mapped = resident("VmRSS"), resident("RssFile")
    goal, streaming = Goal(tolerance=1e-12, max_passes=6), Arithmetic(memory=0)
    minimise(base, shards, Objective(loss=loss, ridge=ridge), method="conjugate", goal=goal, arithmetic=streaming)
    mapped = resident("RssFile") - mapped  # the store's own pages, which the kernel takes back when it needs them
    rows = sum(s.rows for s in shards)
    print(json.dumps({"rows": rows, "before": before, "peak": resident("VmHWM"), "of_it_mapped": mapped}))


def resident(name: str) -> float:
    """MiB of resident memory, now (VmRSS; RssFile of files) or at most (VmHWM)."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = recipe_parser(__doc__)
    parser.add_argument("--ridges", type=float, nargs="*", default=[1e-4])
    parser.add_argument("--passes", type=int, default=160)
    parser.add_argument("--keep", default="6GiB", help="memory for prepared rows")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--shards", type=int, nargs="*", default=[], help="solve from the mean of so many, too")
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    out = sys.stderr if args.json else sys.stdout

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    recipe = load_recipe(args.recipe, [*args.set, f"solver.memory={args.keep}"])
    if not args.child:
        extract(recipe)
    report: dict[str, Any] = {"recipe": args.recipe.name, "problems": []}
    with FeatureStore(recipe.store_path) as store:
        assert store.held_out is not None
        base = read_base(store, recipe.tangent)
        loss = RSL(alpha=true_class_weight(recipe.objective.alpha, len(store.classes)), kappa=recipe.objective.kappa)
        if args.child:
            child(base, store.shards[: args.child], loss, args.ridges[0])
            return
        if args.whole:
            rows = sum(shard.rows for shard in store.shards)
            report["rows"], report["whole"] = rows, []
            for ridge in args.ridges:
                for result in whole(base, store.shards, loss, ridge, memory_of(recipe)):
                    report["whole"].append({"ridge": ridge, **result})
                    say(f"λ = {ridge:g}, {rows} rows  " + json.dumps(result))
        for ridge in [] if args.whole else args.ridges:
            bench = Bench(base, store.shards, store.held_out, loss, ridge, memory_of(recipe))
            rows = bench.narrow.operator.rows
            say(f"λ = {ridge:g}, {rows} rows, final accuracy {bench.final:.2f} %")
            results = []
            for result in chain(
                bench.results(args.passes, args.peers), (bench.from_mean(n, args.passes) for n in args.shards)
            ):
                results.append(result)
                say("  " + json.dumps(result))
            problem = {"ridge": ridge, "rows": rows, "parameters": len(bench.zero), "final_accuracy": bench.final}
            report["problems"].append({**problem, "gap_bound_of_the_optimum": bench.gap_bound, "results": results})
        if args.head:
            report["head_seconds"] = head_times(base, store.shards, RSL(alpha=1.0, kappa=loss.kappa))
            say(json.dumps(report["head_seconds"]))
        if args.memory:
            sizes = (max(1, len(store.shards) // 4), len(store.shards))
            report["memory_mib"] = [peak(args.recipe, args.set, size) for size in sizes]
    if args.json:
        print_report(report)
    elif args.memory:
        print(f"MiB: {report['memory_mib']}")


if __name__ == "__main__":
    main()
