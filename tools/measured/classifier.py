"""The classifier of features beside scikit-learn's, from what ``benchmarks/classifier.py`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.report.tables import markdown_table

TIMES = {
    "seconds": "taftcache, λ chosen on one split",
    "one_split": "C chosen on one split",
    "five_folds": "C chosen in five folds",
    "one_C": "one C, 10⁻⁴",
    "one_C_1e-6": "one C, 10⁻⁶",
}


def table(report: dict[str, Any]) -> str:
    """A line a size, and how many times as long taftcache takes where both choose on one split."""
    rows = [
        [
            f"{at['rows']:,}, {at['features']}, {at['classes']}",
            *(marked.seconds(at[key]) for key in TIMES),
            f"{100 * at['agreement']:.2f} %",
        ]
        for at in report["sizes"]
    ]
    lines = markdown_table(["rows, features, classes", *TIMES.values(), "same predictions"], rows)
    ratios = sorted(at["seconds"] / at["one_split"] for at in report["sizes"])
    said = f"With as many splits taftcache takes {ratios[0]:.1f} to {ratios[-1]:.1f} times as long as scikit-learn."
    return "\n".join([*lines, "", said, "", marked.measured(report)])
