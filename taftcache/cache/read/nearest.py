"""The known ids most like one that is not known."""

from __future__ import annotations

import difflib
import unicodedata
from bisect import bisect_left
from collections.abc import Collection

_ENOUGH = 5000


def nearest(sample_id: object, known: Collection[str], count: int = 3) -> list[str]:
    """Up to ``count`` of ``known``, most alike first; of a large set only the neighbours in sorted order are tried."""
    pool, sought = list(known), str(sample_id)
    if len(pool) > _ENOUGH:
        pool.sort()
        at = bisect_left(pool, sought)
        pool = pool[max(0, at - _ENOUGH // 2) : at + _ENOUGH // 2]
    return difflib.get_close_matches(sought, pool, n=count, cutoff=0.5)


def in_another_form(sample_id: object, known: Collection[str]) -> str | None:
    """Of ``known``, the id of the same letters in another Unicode form, such as é for e and an accent; None of none."""
    letters = unicodedata.normalize("NFC", str(sample_id))
    return next((i for i in known if i != sample_id and unicodedata.normalize("NFC", i) == letters), None)
