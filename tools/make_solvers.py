"""Write what solves take from what ``benchmarks/solve.py`` and ``benchmarks/cross_entropy.py`` measured.

python tools/make_solvers.py

The reports are what the benchmarks printed with ``--json``, in docs/results/solvers; each table says with which
arguments. They go to docs/solvers.md, between its marks.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from math import floor, log10
from typing import Any

import marked

from taftcache.report.tables import markdown_table

SOLVES = ("caltech101", "cifar10", "two-blocks")
ENTROPIES = ("cross-entropy-caltech101", "cross-entropy-quickstart")
SOLVERS = {
    "row space": "**the space of the rows** (each twice)",
    "a sample's inverse": "a sample's curvature",
    "kronecker": "Kronecker factors",
    "plain cg": "conjugate gradients, plain",
    "scipy cg": "SciPy's cg",
    "scipy lsmr": "SciPy's lsmr",
    "span": "**span of gradients**",
    "newton": "Newton, conjugate gradients",
    "lbfgs in float64": "SciPy's L-BFGS, float64",
    "lbfgs in float32": "SciPy's L-BFGS, float32",
}
LEVELS = {"10⁻³": "passes_to_gap_1e-03", "10⁻⁶": "passes_to_gap_1e-06"}


def power(value: float) -> str:
    """A number as a power of ten, with two digits where it is none."""
    exponent = floor(log10(value) + 1e-9)
    digits, of_ten = value / 10**exponent, f"10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return of_ten if abs(digits - 1) < 0.05 else f"{digits:.1f}·{of_ten}"


def solves(report: dict[str, Any]) -> str:
    """Passes to each gap and to the accuracy, and the seconds of all that were made; a line a λ and solver."""
    head = ["λ", "solver", *(f"gap {level}" for level in LEVELS), "accuracy reached", "… for good", "in all"]
    rows = []
    for problem in report["problems"]:
        for one in problem["results"]:
            accuracy = [str(one.get(key) or "–") for key in ("passes_to_final_accuracy", "passes_till_it_stays")]
            name = SOLVERS.get(one["solver"], one["solver"])
            seconds = f"{one['passes']} in {one['seconds']:.0f} s"
            rows.append([power(problem["ridge"]), name, *met(one), *accuracy, seconds])
    finals = {f"{one['final_accuracy']:.2f} % at λ = {power(one['ridge'])}" for one in report["problems"]}
    (sizes,) = {(one["rows"], one["parameters"]) for one in report["problems"]}
    about = f"{sizes[0]:,} rows, P = {sizes[1]:,}; accuracy at the optimum {', '.join(sorted(finals, reverse=True))}."
    return "\n".join([*markdown_table(head, rows), "", f"{about} {made(report)}"])


def met(one: dict[str, Any]) -> list[str]:
    """The passes to each gap, and what was left where the last was not reached; nobody looks at SciPy's on the way."""
    looked, end = LEVELS["10⁻³"] in one, one["gap_at_end"]
    if looked:
        cells = [str(one[key] or "–") for key in LEVELS.values()]
    else:
        cells = [f"at most {one['passes']}" if end <= float(key.rpartition("_")[2]) else "–" for key in LEVELS.values()]
    return cells if cells[-1] != "–" else [*cells[:-1], f"– ({power(end)})"]


def whole(report: dict[str, Any]) -> str:
    """Seconds and passes of whole solves, in the space of the rows and without it."""
    by_ridge: dict[float, dict[str, str]] = {}
    for one in report["whole"]:
        by_ridge.setdefault(one["ridge"], {})[one["method"]] = f"{one['seconds']:.0f} s ({one['passes']})"
    rows = [[power(ridge), of["auto"], of["conjugate"]] for ridge, of in by_ridge.items()]
    head = ["λ", "the space of the rows", "a sample's curvature"]
    return "\n".join([*markdown_table(head, rows), "", f"{report['rows']:,} rows. {made(report)}"])


def entropies(reports: Iterable[dict[str, Any]]) -> str:
    """Passes and seconds of cross-entropy, a line a problem and a column a solver."""
    solvers = ("span", "newton", "lbfgs in float64", "lbfgs in float32")
    rows, said = [], []
    for report in reports:
        said.append(made(report))
        problems: dict[tuple[int, int, float], dict[str, str]] = {}
        for one in report["runs"]:
            problem = problems.setdefault((one["rows"], one["classes"], one["ridge"]), {})
            ended = "" if one["converged"] else f"– ({power(one['relative_gradient'])} after "
            problem[one["solver"]] = f"{ended}{one['passes']}{')' if ended else ''}, {one['seconds']:.1f} s"
        for (n, classes, ridge), found in problems.items():
            rows.append([f"{n:,} of {classes}", power(ridge), *(found.get(name, "") for name in solvers)])
    head = ["rows, classes", "λ", *(SOLVERS[name] for name in solvers)]
    return "\n".join([*markdown_table(head, rows), "", *(f"- {each}" for each in said)])


def head_alone(report: dict[str, Any]) -> str:
    """The head over 20 λ and at one, beside scikit-learn's."""
    of = report["head_seconds"]
    ms = {key: f"{1000 * of[key]:.0f} ms" for key in ("path_of_20", "ridge_cv_of_20", "one", "ridge_of_one")}
    agree = "the same λ" if of["same_choice"] else "another λ"
    return (
        f"20 λ, exact leave-one-out: {ms['path_of_20']}, scikit-learn's `RidgeCV` {ms['ridge_cv_of_20']} "
        f"({of['times_ridge_cv']:.1f} times) for {agree}. One λ with its certificate: {ms['one']}, scikit-learn's "
        f"`Ridge` without one {ms['ridge_of_one']}."
    )


def memory(report: dict[str, Any]) -> str:
    """Peak of a solve that streams, at two sizes, without what is mapped of the store."""
    own = [(one["peak"] - one["before"] - one["of_it_mapped"], one["rows"]) for one in report["memory_mib"]]
    parts = [f"{size:.0f} MiB above its start at {rows:,} rows" for size, rows in own]
    return f'A solve that streams (`solver.memory = "0B"`, Kronecker factors) needs {" and ".join(parts)}.'


def made(report: dict[str, Any]) -> str:
    """The command, and where it was measured."""
    script, *arguments = report["argv"]
    return f"`benchmarks/{script} {shlex.join(a for a in arguments if a != '--json')}`. {marked.measured(report)}"


def parts() -> dict[str, str]:
    """What stands between each of the page's marks."""

    def kept(name: str) -> Any:
        return marked.kept(f"solvers/{name}.json")

    return {
        **{f"solve-{name}": solves(kept(name)) for name in SOLVES},
        "solve-whole": whole(kept("whole")),
        "cross-entropy": entropies(map(kept, ENTROPIES)),
        "solve-head": head_alone(kept("head")),
        "solve-memory": memory(kept("head")),
    }


def main() -> None:
    """Write the page."""
    for name, text in parts().items():
        marked.put("docs/solvers.md", name, text)


if __name__ == "__main__":
    main()
