"""Plots of a report, as SVG files.

leather draws them: pure Python without dependencies, and the same numbers give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import leather

from taftcache.teaching.students.checkpoint import write_bytes

WIDTH, HEIGHT = 720, 420
COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666", "#1f78b4", "#b15928")


def curves(file: Path, title: str, x: str, y: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """One line for each name through its points (x, y)."""
    chart = leather.Chart(title)
    low = min(value for points in lines.values() for _, value in points)
    high = max(value for points in lines.values() for _, value in points)
    room = max(0.05 * (high - low), 1e-3)
    chart.add_y_scale(low - room, high + room)
    for colour, (name, points) in zip(cycle(COLOURS), lines.items(), strict=False):
        chart.add_line(sorted(points), name=name, stroke_color=colour)
    chart.add_x_axis(name=x, ticks=sorted({float(at) for points in lines.values() for at, _ in points}))
    chart.add_y_axis(name=y)
    return _write(chart, file)


def bars(file: Path, title: str, x: str, values: Mapping[str, float], groups: Mapping[str, str] | None = None) -> Path:
    """One bar for each name, the first on top; those of one group have one colour."""
    chart = leather.Chart(title)
    known = list(dict.fromkeys((groups or {}).values()))

    def colour(bar: leather.series.Datum) -> str:
        return COLOURS[known.index(groups[bar.y]) % len(COLOURS)] if groups else COLOURS[0]

    chart.add_bars([(value, name) for name, value in reversed(list(values.items()))], fill_color=colour)
    chart.add_x_scale(0, max(max(values.values(), default=0.0), 1e-9))
    chart.add_x_axis(name=x)
    return _write(chart, file)


def profile(file: Path, title: str, y: str, groups: Mapping[str, Sequence[float]]) -> Path:
    """Each group's values, largest first, over their rank."""
    chart = leather.Chart(title)
    for colour, (name, values) in zip(cycle(COLOURS), groups.items(), strict=False):
        ranked = sorted(values, reverse=True)
        chart.add_line(list(enumerate(ranked, 1)), name=name, stroke_color=colour)
    chart.add_x_axis(name="feature, by rank in its teacher")
    chart.add_y_axis(name=y)
    return _write(chart, file)


def _write(chart: leather.Chart, file: Path) -> Path:
    text = chart.to_svg(width=WIDTH, height=HEIGHT)
    write_bytes(file, text.encode())
    return file
