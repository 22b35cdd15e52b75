"""Tables as text: Markdown for people, comma-separated values for programs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

# As in the page's CSV (files.js), but a number as text stays as it is: a class may be called -1. Where semicolons or
# tabs separate cells, one begins after each of them, even in quotes: after a comma, these count for nothing.
_NUMBER = r"[+-]?[\d.]+(?:[eE][+-]?\d+)?(?:[;\t\r\n]|\Z)"
_FORMULA = re.compile(rf"(?<![^;\t\r\n])(?!{_NUMBER})(?=[=+\-@\t\r\uff1d\uff0b\uff0d\uff20])")


def columns_of(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Every key of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table; each row has one text for each column."""
    return [_bar(columns), "|" + "---|" * len(columns), *(_bar(row) for row in rows)]


def comma_separated(rows: Sequence[Mapping[str, object]]) -> str:
    """CSV with a header; a key that a row lacks leaves its field empty.

    A text that a spreadsheet would compute gets an apostrophe: the name of an image or a class may be anybody's.
    """
    columns = columns_of(rows)
    return _line(columns) + "".join(_line(row.get(column) for column in columns) for row in rows)


def _line(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(map(_defused, cells))  # puts texts with either sign in quotes
    return out.getvalue().removesuffix("\r\n") + "\n"


def _defused(value: object) -> object:
    return _FORMULA.sub("'", value) if isinstance(value, str) else value


def _bar(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
