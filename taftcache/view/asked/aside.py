"""Work that the page asks for: one piece at a time, in a thread of its own; asked again, it says how far it is."""

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
    """Answers by key. ``first`` is how far work is that has just begun: ``passes=0``.

    Once the atlas is being closed, the work ends where it next tells how far it is.
    """

    def __init__(self, atlas: Atlas, **first: int) -> None:
        self._atlas, self._first = atlas, first
        self._alone = Lock()
        self._answers: dict[str, dict[str, Any]] = {}
        self._busy = ""

    def ask(self, key: str, job: Job) -> dict[str, Any]:
        """``{"state": "working" | "busy" | "done" | "failed", …}``; begins ``job`` when there is no answer to ``key``
        and none runs. Busy, it is ``with`` another key."""
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
            self._answers[key] = {"state": "working", **said}  # a new one: the last is being sent, maybe

        try:
            answer = {"state": "done", **job(tell)}
        except Exception as error:  # a thread's outermost frame: else the page would be busy for good
            answer = {"state": "failed", "error": first_line(error)}
        with self._alone:
            self._answers[key] = answer
            self._busy = ""
