"""What workers bring, from what ``benchmarks/workers.py`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.report.tables import markdown_table

STAGES = {"extract": "extract", "train": "train ten shards, and the head", "compose": "the mean and the exact model"}


def table(report: dict[str, Any]) -> str:
    """A line for each number of workers: seconds, processor seconds and the share of the cores' time that was lost."""
    rows = [
        [
            named(run["workers"]),
            *(cell(run, stage) for stage in STAGES),
            f"{run['start']:.1f} s" if "start" in run else "",
        ]
        for run in report["runs"]
    ]
    lines = markdown_table(["", *STAGES.values(), "until workers answer"], rows)
    return "\n".join([*lines, "", marked.measured(report)])


def cell(run: dict[str, Any], stage: str) -> str:
    """One stage; one worker and none lose nothing by definition."""
    said = f"{run[stage]['clock']:.1f} s ({run[stage]['processor']:.1f} s)"
    return f"{said}, {100 * run['lost'][stage]:.0f} % lost" if run["workers"] > 1 else said


def named(workers: int) -> str:
    """The first cell of a line."""
    return "without workers" if not workers else f"{workers} worker{'s' if workers > 1 else ''}"
