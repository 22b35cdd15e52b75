"""The known ids that are most like an unknown one."""

from __future__ import annotations

import difflib
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence

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


def by_ending(
    sample_ids: Iterable[str], known: Collection[str], forgotten: Callable[[str], bool]
) -> dict[str, list[str]]:
    """For each of ``sample_ids``, none of which is there: the ids with which it has most last parts in common, as a
    path has once its images have moved; at least a folder and a name, or all parts of the one or the other.

    Of ids that are ``forgotten`` only hashes are left, so they are sought below the folders of ``known`` ids, if those
    are not too many.
    """
    by_name: dict[str, list[str]] = {}
    above: dict[int, set[str]] = {1: set(), 2: set()}
    for i in known:
        parts = unicodedata.normalize("NFC", i).split("/")
        by_name.setdefault(parts[-1], []).append(i)
        for last, heads in above.items():
            if len(parts) > last:
                heads.add("/".join(parts[:-last]) + "/")
    found = {}
    for sample in sample_ids:
        parts = _parts(sample)
        least = max(1, min(2, len(parts)))
        heads, end = above[least], "/".join(parts[-least:])
        tried = ["/".join(parts[k:]) for k in range(len(parts))]
        tried += [head + end for head in heads] if len(heads) <= _ENOUGH else []
        near = {
            i: _common(parts, _parts(i)) for i in [*by_name.get(end.rpartition("/")[2], []), *filter(forgotten, tried)]
        }
        near = {i: n for i, n in near.items() if n >= least or n == len(_parts(i))}
        found[sample] = sorted(i for i, n in near.items() if n == max(near.values()))
    return {sample: ids for sample, ids in found.items() if ids}


def _parts(path: str) -> list[str]:
    return [part for part in unicodedata.normalize("NFC", path).split("/") if part not in ("", ".", "..")]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many of their last parts are the same."""
    return next(
        (n for n, (a, b) in enumerate(zip(reversed(one), reversed(other), strict=False)) if a != b),
        min(len(one), len(other)),
    )
