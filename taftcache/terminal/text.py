"""What the tables of several commands share."""

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


def accuracies(change: HeldOutChange) -> str:
    """What became of the default model, in a line."""
    (was, now), (first, second) = change.accuracy, change.models
    points = gain_text(change.gain, change.interval, change.verdict, change.groups)
    before = "" if first == second else f" ({first})"
    rows = counted(change.rows, "row")
    return f"held-out accuracy {100 * was:.2f} %{before} → {100 * now:.2f} % ({second}) of the same {rows}; {points}"
