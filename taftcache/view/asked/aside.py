"""Work that the page asks for: one piece at a time, in a thread of its own; asked again, it says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from taftcache.errors import TaftcacheError

Job = Callable[[Callable[[int], None]], dict[str, Any]]
"""Does the work and returns the answer; tells the function that it is given how far it is."""
KEPT = 64  # answers that are kept; the oldest goes


class Aside:
    """Answers by key. ``count`` is what they call how far the work is: ``passes``, ``rows``."""

    def __init__(self, count: str) -> None:
        self._count = count
        self._alone = Lock()
        self._answers: dict[str, dict[str, Any]] = {}
        self._busy = ""

    def ask(self, key: str, job: Job) -> dict[str, Any]:
        """``{"state": "working" | "busy" | "done" | "failed", …}``; begins ``job`` when there is no answer to ``key``
        and none runs."""
        with self._alone:
            if key in self._answers:
                return self._answers[key]
            if self._busy:
                return {"state": "busy", "sample": self._busy}
            self._busy = key
            while len(self._answers) >= KEPT:
                del self._answers[next(iter(self._answers))]
            begun = self._answers[key] = {"state": "working", self._count: 0}
        Thread(target=self._work, args=(key, job, begun), daemon=True).start()
        return begun

    def _work(self, key: str, job: Job, begun: dict[str, Any]) -> None:
        try:
            answer = {"state": "done", **job(lambda n: begun.update({self._count: n}))}
        except (TaftcacheError, ArithmeticError, MemoryError, RuntimeError) as error:
            answer = {"state": "failed", "error": str(error).splitlines()[0]}
        with self._alone:
            self._answers[key] = answer
            self._busy = ""
