"""Work that the page asks for: one piece at a time, in its own thread; if asked again, it says how far the work is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

from taftcache.errors import first_line
from taftcache.stages.progress import Progress, Silent
from taftcache.view.atlas import Atlas

Job = Callable[[Progress], dict[str, Any]]
"""Does the work, shows how far it is, and returns the answer."""
BEGUN: dict[str, Any] = {"state": "working", "doing": "", "done": 0, "total": 0, "steps": 0}
KEPT = 64  # answers that are kept; the oldest goes


class _Closing(RuntimeError):
    """The atlas is being closed: nobody waits for the answer any more."""


class _Steps(Silent):
    """A progress that makes an answer of each step: see ``Aside``."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell, self._said = tell, BEGUN

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[_Steps]:
        """See ``Progress``."""
        self._said = {**self._said, "doing": name, "done": 0, "total": total or 0}
        self.advance(0)
        yield self

    def advance(self, steps: int = 1) -> None:
        """See ``Task``."""
        done, every = self._said["done"] + steps, self._said["steps"] + steps
        self._said = {**self._said, "done": done, "steps": every}  # a new one: the last may be on its way to the page
        self._tell(self._said)


class Aside:
    """Answers by key. While work is under way, ``doing`` is its task, of whose ``total`` steps (0: unknown) so many are
    ``done``, and ``steps`` counts those of all its tasks so far.

    Once the atlas is being closed, the work ends at its next step.
    """

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._alone = Lock()
        self._answers: dict[str, dict[str, Any]] = {}
        self._busy = ""

    def ask(self, key: str, job: Job) -> dict[str, Any]:
        """``{"state": "working" | "busy" | "done" | "failed", …}``; begins ``job`` if there is no answer to ``key`` and
        no other job runs. If busy, ``with`` is that job's key."""
        with self._alone:
            if key in self._answers:
                return self._answers[key]
            if self._busy:
                return {"state": "busy", "with": self._busy}
            self._busy = key
            while len(self._answers) >= KEPT:
                del self._answers[next(iter(self._answers))]
            begun = self._answers[key] = BEGUN
        Thread(target=self._work, args=(key, job), daemon=True).start()
        return begun

    def _work(self, key: str, job: Job) -> None:
        def tell(said: dict[str, Any]) -> None:
            if self._atlas.closing:
                raise _Closing("the page is closing")
            self._answers[key] = said

        try:
            answer = {"state": "done", **job(_Steps(tell))}
        except Exception as error:  # a thread's outermost frame: else the page would be busy for good
            answer = {"state": "failed", "error": first_line(error)}
        with self._alone:
            self._answers[key] = answer
            self._busy = ""
