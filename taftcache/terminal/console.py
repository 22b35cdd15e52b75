"""The two streams, and bars while something runs: whatever is printed goes through here.

A stranger's store or model chooses names, ids and texts of errors. On a terminal, control characters in them could move
the cursor, change the title, hide what stands before them or imitate a line of ours, and rich would take "[red]" for a
colour. So what is not printable is shown by its code instead, and no text is markup.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taftcache.errors import ArgumentError
from taftcache.names import shown
from taftcache.stages.progress import SOON, Followed, Progress, Silent, Task


def stacked(*texts: str) -> Text:
    """One text a line."""
    return Text("\n".join(map(shown, texts)))


class Unwritten(OSError):
    """Standard output took no more; ``errno`` says why."""


class _Stream:
    """A stream of this process. When it takes no more it raises ``Unwritten``, or nothing if it is ``dispensable``."""

    def __init__(self, stream: Any, dispensable: bool) -> None:
        self._stream, self._dispensable = stream, dispensable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """See io.TextIOBase."""
        with self._trying():
            try:
                self._stream.write(text)
            except UnicodeEncodeError:  # × is not ASCII: the command sets how to escape it, other programs may not
                coding = self._stream.encoding
                self._stream.write(text.encode(coding, "backslashreplace").decode(coding))
        return len(text)

    def flush(self) -> None:
        """See io.TextIOBase."""
        with self._trying():
            self._stream.flush()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """What stderr does not take is lost, because a full disk under a log is no reason to stop working."""
        try:
            yield
        except OSError as error:
            if not self._dispensable:
                raise Unwritten(error.errno, error.strerror) from error
            # never try again, not even when the process ends: Python would then end it with a code of its own
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115


class _Console(Console):
    """Prints texts as they are: no markup, no emoji codes, and no character that a terminal would obey."""

    def __init__(self, *, stderr: bool = False) -> None:
        columns = os.environ.get("COLUMNS", "")
        # with fewer columns, rich folds every letter or shows nothing at all
        width = 80 if columns.isdigit() and int(columns) < NARROWEST else None
        # in a notebook, too, it is text on a stream: rich would display HTML, which nothing can catch
        super().__init__(stderr=stderr, highlight=False, emoji=False, width=width, force_jupyter=False)

    @property
    def file(self) -> Any:
        """Where it prints to."""
        return _Stream(super().file, dispensable=self.stderr)

    @file.setter
    def file(self, new: Any) -> None:
        self._file = new

    def print(self, *objects: Any, **options: Any) -> None:
        """See rich; in a file or pipe, unless a width is set, no sentence is broken, so that a search finds it."""
        free = not self.is_terminal and "COLUMNS" not in os.environ
        if free and all(isinstance(one, str | Text) for one in objects):
            options["soft_wrap"] = True
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """See rich; every string goes through here, those in the cells of tables too."""
        return super().render_str(shown(text), **(options | {"markup": False, "emoji": False}))


NARROWEST = 10  # columns
_CONTROL, _MARK = re.compile(r"[\x00-\x1f\x7f]"), "\ufeff"
OUT = _Console()
ERR = _Console(stderr=True)
_LONGEST = 1_000_000  # characters of a line in a file or pipe
LONG = 20.0  # seconds after which a log says that a task has ended
BEAT = 5.0  # seconds between two checks on a task that tells nothing
QUIET = 60.0  # seconds after which a log that said nothing says how far the task is


class ShownRecord(logging.LogRecord):
    """What libraries log, as ``shown``, whoever prints it, for some bring handlers of their own: timm's log has the
    names of tensors in a file."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        if self.exc_info:  # the lines of a traceback stay lines
            text = logging.Formatter().formatException(self.exc_info)
            self.exc_text = "\n".join(map(shown, text.split("\n")))

    def getMessage(self) -> str:
        """See logging."""
        return shown(super().getMessage())


def note_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_also: object, **_named: object
) -> None:
    """In place of `warnings.showwarning`: one line, as ``shown``, for warnings, too, have texts of strangers."""
    text = f"{filename}:{lineno}: {category.__name__}: {' '.join(str(message).split())}"
    if sys.stderr is not None:
        # Not by `ERR`: a fork may have got its lock as a thread of the parent held it.
        print(shown(text), file=_Stream(sys.stderr, dispensable=True))


def complain(*texts: str) -> None:
    """To stderr, one a line."""
    ERR.print(stacked(*texts), style="red", soft_wrap=True)


def note(text: str) -> None:
    """To stderr, for what is no error."""
    ERR.print(f"taftcache: {text}", soft_wrap=True)


def say(*texts: str) -> None:
    """To stdout, one a line, however long: what is copied from there must not be cut."""
    OUT.print(stacked(*texts), soft_wrap=True)


def print_json(value: Any) -> None:
    """To stdout, in ASCII: JSON types, records of them, and paths."""
    print(to_json(value), file=OUT.file)


def to_json(report: Any) -> str:
    """What a function returned, as the JSON in ASCII that its command prints with ``--json``.

    Raises:
        ArgumentError: it is no report, and has a value that JSON has no type for.
    """
    try:
        return json.dumps(report, indent=2, default=_plain).replace("\x7f", "\\u007f")
    except TypeError as error:
        raise ArgumentError(
            "what is to be written is no report", got=str(error), do="give what a function like evaluate returned"
        ) from None


def _plain(value: Any) -> Any:
    """Plain values for what JSON has no type for."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return os.fspath(value)


def print_ids(ids: Sequence[str]) -> None:
    """To stdout, one a line: on a terminal as ``shown``, elsewhere as they are, in UTF-8, as ``forget --file`` takes
    them."""
    lines = [*map(shown, ids)]
    if not OUT.file.isatty():
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        # no id has control characters but in a stranger's store, where a newline must not make one id two
        lines = [_CONTROL.sub(lambda found: shown(found[0]), i) for i in ids]
        if lines and lines[0].startswith(_MARK):
            lines[0] = _MARK + lines[0]  # at the start of a file, the first is a mark, not text
    for line in lines:
        print(line, file=OUT.file)


def print_line(text: str) -> None:
    """To stdout as it is, however long."""
    print(shown(text), file=OUT.file)


def print_table(table: Table) -> None:
    """A table of samples or models, whose names are never cut: folded on a terminal, on one long line in a pipe.

    A name that was cut would find nothing.
    """
    for column in table.columns:
        column.overflow = "fold"
    out = OUT
    if not OUT.is_terminal:
        out = _Console()
        out.file, out.width = OUT.file, _LONGEST
        out.width = max(OUT.width, out.measure(table).maximum)
    out.print(table)


def print_notes(notes: Iterable[str]) -> None:
    """To stdout, one a line; one that several stages have, or that bars on the same terminal said, is printed once."""
    for note in dict.fromkeys(notes):
        if OUT.is_terminal and note in _said:
            continue
        OUT.print(f"note: {note}")


_said = set[str]()  # by the bars of this command, or of the last one that had some


class _Bar:
    def __init__(self, display: Any, task: Any) -> None:
        self._display, self._task = display, task

    def advance(self, steps: int = 1) -> None:
        self._display.advance(self._task, steps)

    def note(self, text: str) -> None:
        self._display.update(self._task, note=shown(text))


class _Display:
    def __init__(self, display: Any) -> None:
        self._display = display

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Task]:
        task = self._display.add_task(shown(name), total=total, note="")
        yield _Bar(self._display, task)
        self._display.update(task, visible=False)

    def say(self, text: str) -> None:
        self._display.console.print(text)
        _said.add(text)


class _Log:
    """For a file or pipe: a line on stderr once the first task of a kind is under way, one a minute on how far the
    present task is, whether it tells anything or not, and one when a long task ends.

    Quick tasks get no line, so that a script's stderr has only errors.
    """

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._said = time.monotonic()
        self._under_way: list[Followed] = []
        self._one_at_a_time = Lock()

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Followed]:
        task = Followed(name, total, self.look)
        self.look(task)
        self._under_way.append(task)
        try:
            yield task
        finally:
            self._under_way.remove(task)
        took = time.monotonic() - task.begin
        if took >= LONG:
            self._line(f"{name}: {took:.0f} s")

    def say(self, text: str) -> None:
        """Ignored."""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at the present task every few seconds, because some tasks tell nothing."""
        ended = Event()

        def look() -> None:
            while not ended.wait(BEAT):
                for task in self._under_way[-1:]:
                    self.look(task)

        thread = Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def look(self, task: Followed) -> None:
        """A line on ``task``, which is still under way, if it is time for one."""
        with self._one_at_a_time:
            now, kind = time.monotonic(), task.name.partition(" ")[0]
            if kind not in self._kinds and now - task.begin >= SOON:
                self._kinds.add(kind)
                self._line(f"{task.name} …")
            elif now - self._said >= QUIET:
                self._line(task.state())

    def _line(self, text: str) -> None:
        self._said = time.monotonic()
        ERR.print(f"{time.strftime('%H:%M:%S')} {text}", soft_wrap=True)


@contextmanager
def bars(silent: bool = False) -> Iterator[Progress]:
    """Progress bars on stderr while the context lasts, which leave no trace behind; in a file or pipe, see ``_Log``."""
    if silent:
        yield Silent()
        return
    if not ERR.is_terminal:
        log = _Log()
        with log.looking():
            yield log
        return
    # late: only a terminal that shows bars needs them
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Display

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[note]}", markup=False),
    )
    _said.clear()
    with Display(*columns, console=ERR, transient=True) as display:
        yield _Display(display)
