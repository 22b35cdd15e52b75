"""What the last block gains over the head, from what ``benchmarks/last_block.py`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.report.tables import markdown_table


def table(report: dict[str, Any]) -> str:
    """A line a seed, and the mean."""
    head = ["seed", "λ of the head", "head only", "λ of the last block", "last block", "margin", "passes"]
    rows = []
    for run in report["runs"]:
        ridges = [f"{ridge:.1e}" for ridge in run["ridges"]]
        accuracies = [f"{run[part]:.2f} %" for part in ("head_only", "last_block")]
        margin, passes = f"{run['margin']:.2f}", str(run["passes"])
        rows.append([str(run["seed"]), ridges[0], accuracies[0], ridges[1], accuracies[1], margin, passes])
    mean, deviation = report["margin_mean"], report["margin_std"]
    said = (
        f"{report['training_rows']:,} training and {report['held_out_rows']:,} test images. The margin is {mean:.2f}"
        f" points, ± {deviation:.2f} over the seeds. {marked.measured(report)}"
    )
    return "\n".join([*markdown_table(head, rows), "", said])
