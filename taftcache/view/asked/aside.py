"""Work that the page asks for: one piece at a time, in its own thread; if asked again, it says how far the work is."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from taftcache.errors import first_line
from taftcache.view.atlas import Atlas

Tell = Callable[..., None]
"""Hears how far the work is, as fields of the answer: ``tell(passes=3)``."""
Job = Callable[[Tell], dict[str, Any]]
"""Does the work and returns the answer."""
KEPT = 64  # answers that are kept; the oldest goes


class _Closing(RuntimeError):
    """The atlas is being closed: nobody waits for the answer any more."""


class Aside:
    """Answers by key. ``first`` says how far work is that has just begun: ``passes=0``.

    Once the atlas is being closed, the work ends the next time that it tells how far it is.
    """

    def __init__(self, atlas: Atlas, **first: int) -> None:
        self._atlas, self._first = atlas, first
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
            begun = self._answers[key] = {"state": "working", **self._first}
        Thread(target=self._work, args=(key, job), daemon=True).start()
        return begun

    def _work(self, key: str, job: Job) -> None:
        def tell(**said: Any) -> None:
            if self._atlas.closing:
                raise _Closing("the page is closing")
            self._answers[key] = {"state": "working", **said}  # a new one: the last may be on its way to the page

        try:
            answer = {"state": "done", **job(tell)}
        except Exception as error:  # a thread's outermost frame: else the page would be busy for good
            answer = {"state": "failed", "error": first_line(error)}
        with self._alone:
            self._answers[key] = answer
            self._busy = ""
