"""What a worker keeps from one task to the next: a loaded model, a shard's prepared rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Any, TypeVar

T = TypeVar("T")

_MODELS = 2  # kept of each kind: what an earlier job left behind gives way
_kept: dict[str, OrderedDict[Hashable, Any]] = {}
_guard = Lock()
_making: dict[str, RLock] = {}
_forgotten = 0  # how often everything was let go: what is being made at that moment is not kept


def resident(kind: str, key: Hashable, make: Callable[[], T], most: int = _MODELS) -> T:
    """What ``make`` returns, made once in this process for ``key``; of each kind the ``most`` last used are kept."""
    with _guard:
        alone = _making.setdefault(kind, RLock())
    with alone:
        with _guard:
            there, begun = _kept.setdefault(kind, OrderedDict()), _forgotten
            if key in there:
                there.move_to_end(key)
                found: T = there[key]
                return found
            while len(there) >= most:
                there.popitem(last=False)
        made = make()
        with _guard:
            if begun == _forgotten:
                there[key] = made
        return made


def forget_residents() -> None:
    """Let everything go: rows left in a worker's memory would outlive a request to forget them."""
    global _forgotten
    with _guard:
        _forgotten += 1
        for there in _kept.values():
            there.clear()
