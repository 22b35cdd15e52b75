"""What a stage reports while it works. The terminal draws it as bars; `Silent` shows nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

from taftcache.errors import ArgumentError


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
    """Something that shows tasks."""

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


def or_silent(progress: Progress | None) -> Progress:
    """``progress``, or `Silent` if there is none; ArgumentError for what is no `Progress`."""
    shown = progress or Silent()
    if not isinstance(shown, Progress):
        raise ArgumentError(
            "progress has no task() and say() that show how far it is",
            got=repr(progress)[:80],
            do="leave it out, or give an object with both, as taftcache.Progress says",
        )
    return shown


def noting(task: Task, name: str, unit: float = 1) -> Callable[[int, int], None]:
    """A callback for (done, total) that notes them beside a task's bar: ``3 of 12 MB``."""
    return lambda done, total: task.note(f"{done / unit:.0f} of {total / unit:.0f} {name}")


def numbered(names: Sequence[str]) -> list[str]:
    """The names of successive tasks, each with its number: ``components/017 (18 of 65)``."""
    return [f"{name} ({k} of {len(names)})" for k, name in enumerate(names, 1)] if len(names) > 1 else [*names]
