"""Work that the page asks for, whatever becomes of it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from taftcache.view.asked.aside import Aside


@pytest.mark.parametrize("error", [ValueError("no such row"), KeyError("k"), MemoryError(), ZeroDivisionError("by 0")])
def test_work_that_fails_in_any_way_leaves_room_for_the_next(error):
    def fail(tell):
        raise error

    aside = Aside(SimpleNamespace(closing=False), passes=0)
    assert aside.ask("a", fail) == {"state": "working", "passes": 0}
    deadline = time.monotonic() + 10
    while (answer := aside.ask("a", fail))["state"] == "working":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert answer["state"] == "failed"
    assert answer["error"]
    assert aside.ask("b", lambda tell: {"rows": 3})["state"] == "working"


def test_work_ends_once_the_page_is_closed():
    atlas, closed = SimpleNamespace(closing=False), threading.Event()

    def work(tell):
        closed.wait(60)
        tell(passes=1)
        return {}

    aside = Aside(atlas, passes=0)
    aside.ask("a", work)
    atlas.closing = True
    closed.set()
    deadline = time.monotonic() + 10
    while (answer := aside.ask("a", work))["state"] == "working":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert answer == {"state": "failed", "error": "the page is closing"}
