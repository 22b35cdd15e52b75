"""What differs between what a store was made from and what it is asked for."""

from __future__ import annotations

from typing import Any


def differences(at: str, ours: Any, theirs: Any, owner: str = "the store") -> list[str]:
    """One line for each leaf in which two JSON values differ, with its path below ``at``; ``owner`` says whose ``ours``
    is."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted(ours.keys() | theirs.keys())
        return [
            line
            for k in keys
            for line in differences(f"{at}.{k}" if at else str(k), ours.get(k, _ABSENT), theirs.get(k, _ABSENT), owner)
        ]
    theirs = list(theirs) if isinstance(theirs, tuple) else theirs
    return [] if ours == theirs else [f"{at}: {owner} has {ours!r}, here it is {theirs!r}"]


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()
