"""What a worker keeps between tasks, and that nothing stays once it is told to let go."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread

import pytest

from taftcache.remote.resident import forget_residents, resident


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    forget_residents()
    yield
    forget_residents()


def made(kind: str, key: str, **options: int) -> bool:
    """Whether it had to be made."""
    calls: list[str] = []
    resident(kind, key, lambda: calls.append(key) or key, **options)
    return bool(calls)


def test_made_once_and_the_oldest_goes():
    assert [made("rows", key, most=2) for key in "abab"] == [True, True, False, False]
    assert [made("rows", key, most=2) for key in "cba"] == [True, False, True]


def test_one_may_be_made_of_another():
    assert resident("whole", 1, lambda: resident("part", 1, lambda: 7) + 1) == 8
    assert resident("part", 1, lambda: 0) == 7


def test_what_was_begun_before_everything_was_let_go_is_not_kept():
    begun, go_on = Event(), Event()
    found: list[str] = []

    def slow() -> str:
        begun.set()
        assert go_on.wait(10)
        return "rows"

    thread = Thread(target=lambda: found.append(resident("rows", "a", slow)))
    thread.start()
    assert begun.wait(10)
    forget_residents()
    go_on.set()
    thread.join(10)
    assert found == ["rows"]
    assert made("rows", "a")
