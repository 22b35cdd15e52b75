"""The two streams, and bars while something runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from taftcache.stages.progress import Progress, Silent, Task

OUT = Console(highlight=False)
ERR = Console(stderr=True, highlight=False)
LONG = 20.0  # seconds of a task that a log has a line for


def complain(text: str) -> None:
    """To stderr, as it is."""
    ERR.print(text, style="red", markup=False, soft_wrap=True)


def print_notes(notes: Iterable[str]) -> None:
    """A line each."""
    for note in notes:
        OUT.print(f"note: {note}", markup=False)


class _Bar:
    def __init__(self, display: Any, task: Any) -> None:
        self._display, self._task = display, task

    def advance(self, steps: int = 1) -> None:
        self._display.advance(self._task, steps)

    def note(self, text: str) -> None:
        self._display.update(self._task, note=text)


class _Display:
    def __init__(self, display: Any) -> None:
        self._display = display

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Task]:
        task = self._display.add_task(name, total=total, note="")
        yield _Bar(self._display, task)
        self._display.update(task, visible=False)

    def say(self, text: str) -> None:
        self._display.console.print(text, highlight=False)


class _Log(Silent):
    """For a file or pipe: a line on stderr when a task ends that took long, and nothing of any other."""

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Silent]:
        begin = time.monotonic()
        yield self
        took = time.monotonic() - begin
        if took >= LONG:
            ERR.print(f"{time.strftime('%H:%M:%S')} {name}: {took:.0f} s", markup=False, soft_wrap=True)


@contextmanager
def bars(silent: bool = False) -> Iterator[Progress]:
    """Progress bars on stderr while the context lasts, which leave no trace behind; in a file or pipe, see ``_Log``."""
    if silent:
        yield Silent()
        return
    if not ERR.is_terminal:
        yield _Log()
        return
    # late: only a terminal that shows bars needs them
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Display

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Display(*columns, console=ERR, transient=True) as display:
        yield _Display(display)
