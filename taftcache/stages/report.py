"""What the reports of all functions have in common."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import taftcache


class Report:
    """What a function found. Where a notebook's cell, or a line in IPython, ends with it, it is shown in the words of
    ``taftcache.show``; ``repr`` has its fields."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        with redirect_stdout(StringIO()) as words:
            taftcache.show(self)
        printer.text(words.getvalue().rstrip())
