"""What a stage reports while it works. The terminal draws it as bars; `Silent` shows nothing, `Lines` plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from shutil import get_terminal_size
from typing import Protocol, runtime_checkable

from taftcache.errors import ArgumentError
from taftcache.names import shown

SOON = 2.0  # seconds after which a task is worth a line that stays
EVERY = 0.5  # seconds between two states of a line that is written over


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, steps: int = 1) -> None:
        """This many more of its steps are done."""
        ...

    def note(self, text: str) -> None:
        """A short figure to show beside the bar."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Something that shows tasks: whatever has these two methods. ``progress=True`` shows lines on stderr: in a
    terminal or notebook one that is written over, elsewhere one when a task of two seconds or more ends. Another::

        class Percent:
            @contextmanager
            def task(self, name, total):
                self.name, self.total, self.done = name, total, 0
                yield self
            def advance(self, steps=1):
                self.done += steps
                print(self.name, f"{100 * self.done / self.total:.0f} %" if self.total else self.done)
            def note(self, text): pass
            def say(self, text): print(text)

        extract(recipe, progress=Percent())
    """

    def task(self, name: str, total: int | None) -> AbstractContextManager[Task]:
        """Show a task of ``total`` steps (None: unknown) while the context lasts."""
        ...

    def say(self, text: str) -> None:
        """Show a sentence that stays."""
        ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Silent]:
        """A task that nobody sees."""
        yield self

    def say(self, text: str) -> None:
        """Ignored."""

    def advance(self, steps: int = 1) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""


class Followed:
    """A task of ``total`` steps that knows how far it is; ``look`` is called with it whenever that changes."""

    def __init__(self, name: str, total: int | None, look: Callable[[Followed], object]) -> None:
        self.name, self.begin = name, time.monotonic()
        self._total, self._look = total, look
        self._steps, self._note = 0, ""

    def advance(self, steps: int = 1) -> None:
        """See ``Task``."""
        self._steps += steps
        self._look(self)

    def note(self, text: str) -> None:
        """See ``Task``."""
        self._note = text
        self._look(self)

    def state(self, ended: str = "") -> str:
        """``extract 000: 1,200 of 5,036, 12 passes``: what is known of it, and how it ``ended``."""
        done = f"{self._steps:,} of {self._total:,}" if self._total else ""
        known = ", ".join(part for part in (done, self._note, ended) if part)
        return f"{self.name}: {known}" if known else f"{self.name} …"


class Lines:
    """Lines on stderr. In a terminal or notebook, where a line can be written over, the present task has one; what took
    ``SOON`` seconds leaves one behind, here and in a file or pipe."""

    def __init__(self) -> None:
        self._drawn, self._width = 0.0, 0  # when the line that is written over was drawn, and its characters

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Followed]:
        """See ``Progress``."""
        task = Followed(name, total, self._look)
        self._look(task)
        try:
            yield task
        finally:
            took = time.monotonic() - task.begin
            self._write(f"{task.state(f'{took:.0f} s')}\n" if took >= SOON else "")

    def say(self, text: str) -> None:
        """See ``Progress``."""
        self._write(f"{text}\n")

    def _look(self, task: Followed) -> None:
        live = sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")
        if live and time.monotonic() - self._drawn >= EVERY:
            self._drawn = time.monotonic()
            self._write(task.state()[: get_terminal_size().columns - 1])

    def _write(self, text: str) -> None:
        """Over the line that is there; an empty text takes it away."""
        stays, said = text.endswith("\n"), shown(text.removesuffix("\n"))
        blanks = " " * (self._width - len(said))
        over = f"\r{said}{blanks}" if self._width or not stays else said
        self._width = 0 if stays else len(said)
        if text or blanks:
            print(over if said else f"{over}\r", end="\n" if stays else "", file=sys.stderr, flush=True)


def or_silent(progress: Progress | bool | None) -> Progress:
    """``progress``, `Lines` for True, or `Silent` if there is none; ArgumentError for what is no `Progress`."""
    given: object = Lines() if progress is True else progress or Silent()
    if not isinstance(given, Progress):
        raise ArgumentError(
            "progress has no task() and say() that show how far it is",
            got=repr(progress)[:80],
            do="progress=True, which shows lines, or an object with both, as taftcache.Progress says",
        )
    return given


def noting(task: Task, name: str, unit: float = 1) -> Callable[[int, int], None]:
    """A callback for (done, total) that notes them beside a task's bar: ``3 of 12 MB``."""
    return lambda done, total: task.note(f"{done / unit:.0f} of {total / unit:.0f} {name}")


def numbered(names: Sequence[str]) -> list[str]:
    """The names of successive tasks, each with its number: ``components/017 (18 of 65)``."""
    return [f"{name} ({k} of {len(names)})" for k, name in enumerate(names, 1)] if len(names) > 1 else [*names]
