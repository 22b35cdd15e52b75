"""Work that the page asks for, whatever becomes of it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from taftcache.view.asked.aside import BEGUN, Aside


@pytest.mark.parametrize("error", [ValueError("no such row"), KeyError("k"), MemoryError(), ZeroDivisionError("by 0")])
def test_work_that_fails_in_any_way_leaves_room_for_the_next(error):
    def fail(progress):
        raise error

    aside = Aside(SimpleNamespace(closing=False))
    assert aside.ask("a", fail) == BEGUN
    deadline = time.monotonic() + 10
    while (answer := aside.ask("a", fail))["state"] == "working":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert answer["state"] == "failed"
    assert answer["error"]
    assert aside.ask("b", lambda progress: {"rows": 3})["state"] == "working"


def test_work_ends_once_the_page_is_closed():
    atlas, closed = SimpleNamespace(closing=False), threading.Event()

    def work(progress):
        closed.wait(60)
        progress.advance()
        return {}

    aside = Aside(atlas)
    aside.ask("a", work)
    atlas.closing = True
    closed.set()
    deadline = time.monotonic() + 10
    while (answer := aside.ask("a", work))["state"] == "working":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert answer == {"state": "failed", "error": "the page is closing"}


def test_it_says_how_far_each_task_is_and_counts_the_steps_of_all():
    aside, told = Aside(SimpleNamespace(closing=False)), []

    def work(progress):
        for name, total in (("rows", 2), ("passes", None)):
            with progress.task(name, total) as task:
                for _ in range(2):
                    task.advance(2)
                    told.append(aside.ask("a", work))
        return {}

    aside.ask("a", work)
    deadline = time.monotonic() + 10
    while aside.ask("a", work)["state"] == "working":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    steps = [(said["doing"], said["done"], said["total"], said["steps"]) for said in told]
    assert steps == [("rows", 2, 2, 2), ("rows", 4, 2, 4), ("passes", 2, 0, 6), ("passes", 4, 0, 8)]
