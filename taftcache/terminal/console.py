"""The two streams, and bars while something runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from taftcache.stages.progress import Progress, Silent, Task

OUT = Console(highlight=False)
ERR = Console(stderr=True, highlight=False)


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


@contextmanager
def bars(silent: bool = False) -> Iterator[Progress]:
    """Progress bars on stderr while the context lasts; they leave no trace behind, and none in a file or pipe."""
    if silent or not ERR.is_terminal:
        yield Silent()
        return
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
