"""Plots of a report, as SVG files.

matplotlib draws them, without pyplot's state or the user's own settings; text stays text, and the same numbers give the
same bytes. It is an optional library, so it is imported where a plot is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taftcache.errors import RecipeError
from taftcache.report.write import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches; an SVG has 96 pixels an inch, so a plot is 700 wide and its text 13 high.
WIDTH, HEIGHT = 7.3, 3.9
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "taftcache", "font.size": 10, "axes.grid": True, "grid.alpha": 0.35,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "lines.markersize": 5,
    "legend.frameon": False, "errorbar.capsize": 3, "axes.titlesize": 10,
    "figure.constrained_layout.w_pad": 0.1, "figure.constrained_layout.h_pad": 0.1,
}  # fmt: skip
# Okabe and Ito's colours, which people with any colour vision can tell apart, without the yellow that fades on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", ":", "-.")
SPREAD = ", ± deviation over seeds"
MARKED = 50  # most points of a line that gets markers

Point = tuple[float, float, float]


def check_plots() -> None:
    """Raise RecipeError unless plots can be drawn: before hours of work, not after them."""
    _library()


def curves(
    file: Path,
    x: str,
    y: str,
    lines: Mapping[str, Sequence[Point]],
    families: Mapping[str, str] | None = None,
    title: str = "",
) -> Path:
    """One line for each name through its points (x, y, deviation over the seeds), with a band where they deviate.

    Args:
        families: name → family, itself by default; lines of one family have one colour and different dashes.
        title: what neither an axis nor the heading above the plot says.
    """
    from matplotlib.ticker import MaxNLocator

    with _axes(file, title, HEIGHT) as axes:
        for (name, points), style in zip(lines.items(), _styles(lines, families or {}), strict=True):
            at, middle, spread = zip(*sorted(points), strict=True)
            axes.plot(at, middle, label=name, **(style if len(at) <= MARKED else style | {"marker": ""}))
            if any(spread):
                low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
        if all(float(at).is_integer() for points in lines.values() for at, *_ in points):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.set(xlabel=x, ylabel=y + SPREAD * any(spread for points in lines.values() for *_, spread in points))
        if len(lines) > 1:
            axes.figure.legend(loc="outside right upper")
    return file


def dots(
    file: Path,
    x: str,
    values: Mapping[str, tuple[float, float]],
    families: Mapping[str, str] | None = None,
    least: float | None = None,
) -> Path:
    """One value (with its deviation, as a bar) for each name, the first on top; those of one family have one colour.

    Args:
        least: where the axis begins; by default it fits the values.
    """
    with _axes(file, "", 0.9 + 0.42 * len(values)) as axes:
        for row, ((value, spread), style) in enumerate(
            zip(values.values(), _styles(values, families or dict.fromkeys(values, "")), strict=True)
        ):
            axes.errorbar(value, row, xerr=spread or None, color=style["color"], marker=style["marker"])
            axes.annotate(f"{value:.1f}", (value, row), (0, 5), textcoords="offset points", ha="center")
        axes.set_yticks(range(len(values)), list(values))
        axes.set(xlabel=x + SPREAD * any(spread for _, spread in values.values()), ylim=(len(values) - 0.5, -0.7))
        axes.margins(x=0.08)
        axes.set_xlim(left=least)
    return file


def _styles(names: Mapping[str, Any], families: Mapping[str, str]) -> list[dict[str, Any]]:
    """How each name is drawn: its family's colour and marker, and a dash of its own within the family."""
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(families.get(name, name), []).append(name)
    return [
        {
            "color": COLOURS[list(members).index(family) % len(COLOURS)],
            "marker": MARKERS[list(members).index(family) % len(MARKERS)],
            "linestyle": DASHES[members[family].index(name) % len(DASHES)],
        }
        for name in names
        for family in [families.get(name, name)]
    ]


def _library() -> tuple[Any, Any]:
    """matplotlib's styles, and its figure."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecipeError(
            "cannot draw plots: the library matplotlib is not installed",
            got=str(error),
            do="pip install 'taftcache[plots]'",
        ) from error
    return style, Figure


@contextmanager
def _axes(file: Path, title: str, height: float) -> Iterator[Axes]:
    """Axes to draw on, which are in ``file`` when the block ends."""
    style, figure = _library()
    with style.context(["default", STYLE]):
        drawn = figure(figsize=(WIDTH, height), layout="constrained")
        axes = drawn.add_subplot(title=title)
        yield axes
        made = BytesIO()
        drawn.savefig(made, format="svg", metadata={"Date": None, "Creator": None})
    write_bytes(file, made.getvalue())
