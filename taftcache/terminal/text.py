"""Numbers, sizes and lists as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from taftcache.names import counted
from taftcache.view.wording import gain_text

if TYPE_CHECKING:
    from taftcache.stages.train.held_out import HeldOutChange


def plain_table(*columns: str) -> Table:
    """A table without frames, so that eight columns fit 80 characters."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)


def readable_size(count: int) -> str:
    """``count`` bytes, in the unit that suits."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def readable_time(seconds: float) -> str:
    """``seconds``, roughly, in the unit that suits."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{max(seconds, 1):.0f} s"


def accuracies(change: HeldOutChange) -> str:
    """What became of the default model, in a line."""
    (was, now), (first, second) = change.accuracy, change.models
    points = gain_text(change.gain, change.interval, change.verdict)
    before = "" if first == second else f" ({first})"
    rows = counted(change.rows, "row")
    return f"held-out accuracy {100 * was:.2f} %{before} → {100 * now:.2f} % ({second}) of the same {rows}; {points}"
