"""Plots of a report, as SVG files.

leather draws them: pure Python without dependencies, and the same numbers give the same bytes. It is an optional
library, so it is imported where a chart is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from taftcache.errors import RecipeError
from taftcache.report.write import write_bytes

WIDTH, HEIGHT = 720, 420
COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#a6761d", "#666666", "#1f78b4", "#b15928")


def check_plots() -> None:
    """Raise RecipeError unless plots can be drawn: before hours of work, not after them."""
    _chart("")


def curves(file: Path, title: str, x: str, y: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """One line for each name through its points (x, y)."""
    chart = _chart(title)
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
    chart = _chart(title)
    known = list(dict.fromkeys((groups or {}).values()))

    def colour(bar: Any) -> str:
        return COLOURS[known.index(groups[bar.y]) % len(COLOURS)] if groups else COLOURS[0]

    chart.add_bars([(value, name) for name, value in reversed(list(values.items()))], fill_color=colour)
    chart.add_x_scale(0, max(max(values.values(), default=0.0), 1e-9))
    chart.add_x_axis(name=x)
    return _write(chart, file)


def profile(file: Path, title: str, y: str, groups: Mapping[str, Sequence[float]]) -> Path:
    """Each group's values, largest first, over their rank."""
    chart = _chart(title)
    for colour, (name, values) in zip(cycle(COLOURS), groups.items(), strict=False):
        ranked = sorted(values, reverse=True)
        chart.add_line(list(enumerate(ranked, 1)), name=name, stroke_color=colour)
    chart.add_x_axis(name="feature, by rank in its teacher")
    chart.add_y_axis(name=y)
    return _write(chart, file)


def _chart(title: str) -> Any:
    """An empty chart of leather's."""
    try:
        import leather
    except ImportError as error:
        raise RecipeError(
            "cannot draw plots: the library leather is not installed",
            got=str(error),
            do="pip install 'taftcache[plots]'",
        ) from error
    return leather.Chart(title)


def _write(chart: Any, file: Path) -> Path:
    write_bytes(file, chart.to_svg(width=WIDTH, height=HEIGHT).encode())
    return file
