"""Plots of a report, as SVG files.

leather draws them: pure Python without dependencies, and the same numbers give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import leather

from taftcache.transfer.checkpoint import write_bytes

WIDTH, HEIGHT = 720, 420


def curves(file: Path, title: str, x: str, y: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """One line for each name through its points (x, y)."""
    chart = leather.Chart(title)
    low = min(value for points in lines.values() for _, value in points)
    high = max(value for points in lines.values() for _, value in points)
    room = max(0.05 * (high - low), 1e-3)
    chart.add_y_scale(low - room, high + room)
    for name, points in lines.items():
        chart.add_line(sorted(points), name=name)
        chart.add_dots(sorted(points), name=f"{name} (measured)")
    chart.add_x_axis(name=x, ticks=sorted({float(at) for points in lines.values() for at, _ in points}))
    chart.add_y_axis(name=y)
    return _write(chart, file)


def bars(file: Path, title: str, x: str, values: Mapping[str, float]) -> Path:
    """One bar for each name, the first on top."""
    chart = leather.Chart(title)
    chart.add_bars([(value, name) for name, value in reversed(list(values.items()))])
    chart.add_x_scale(0, max(max(values.values(), default=0.0), 1e-9))
    chart.add_x_axis(name=x)
    return _write(chart, file)


def profile(file: Path, title: str, y: str, groups: Mapping[str, Sequence[float]]) -> Path:
    """Each group's values, largest first, over their rank."""
    chart = leather.Chart(title)
    for name, values in groups.items():
        ranked = sorted(values, reverse=True)
        chart.add_line(list(enumerate(ranked, 1)), name=name)
    chart.add_x_axis(name="feature, by rank in its teacher")
    chart.add_y_axis(name=y)
    return _write(chart, file)


def _write(chart: leather.Chart, file: Path) -> Path:
    text = chart.to_svg(width=WIDTH, height=HEIGHT)
    write_bytes(file, text.encode())
    return file
