"""Work that the page asks for, whatever becomes of it."""

from __future__ import annotations

import time

import pytest

from taftcache.view.asked.aside import Aside


@pytest.mark.parametrize("error", [ValueError("no such row"), KeyError("k"), MemoryError(), ZeroDivisionError("by 0")])
def test_work_that_fails_in_any_way_leaves_room_for_the_next(error):
    def fail(tell):
        raise error

    aside = Aside(passes=0)
    assert aside.ask("a", fail) == {"state": "working", "passes": 0}
    deadline = time.monotonic() + 10
    while (answer := aside.ask("a", fail))["state"] == "working":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert answer["state"] == "failed"
    assert answer["error"]
    assert aside.ask("b", lambda tell: {"rows": 3})["state"] == "working"
