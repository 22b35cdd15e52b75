"""The known ids that are most like an unknown one."""

from __future__ import annotations

import difflib
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterable

from taftcache.names import shown

_ENOUGH = 5000


def nearest(sample_id: object, known: Collection[str], count: int = 3) -> list[str]:
    """Up to ``count`` of ``known``, most alike first; of a large set only the neighbours in sorted order are tried."""
    pool, sought = list(known), str(sample_id)
    if len(pool) > _ENOUGH:
        pool.sort()
        at = bisect_left(pool, sought)
        pool = pool[max(0, at - _ENOUGH // 2) : at + _ENOUGH // 2]
    return difflib.get_close_matches(sought, pool, n=count, cutoff=0.5)


def in_another_form(sample_ids: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """For each of ``sample_ids``, which are not ``known``: the known id with the same letters in another Unicode form
    (such as é for e and an accent), or of which it is what a terminal shows, if there is one."""
    by_letters = {unicodedata.normalize("NFC", form): i for i in known for form in {shown(i), i}}
    found = {i: by_letters.get(unicodedata.normalize("NFC", str(i))) for i in sample_ids}
    return {i: same for i, same in found.items() if same is not None}
