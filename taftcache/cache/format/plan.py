"""Which shard a sample belongs to, and where in it: decided by keyed hashes of its group, which is by default its own,
and of its id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache
from itertools import count
from typing import Literal
from unicodedata import normalize

from blake3 import blake3

from taftcache.errors import DataError, RecipeError
from taftcache.names import counted

Grouping = Callable[[str], str]  # from an id to its group; by default the id itself
BITS = 128
MAX_ID_BYTES = 1024


def sample_key(sample_id: str, seed: int) -> int:
    """The place of a sample in the canonical order of rows: 128 bits of a keyed BLAKE3 of its id."""
    return _key("order", sample_id, seed)


def assign(
    ids: Sequence[str], plan: Literal["hash", "balanced"], shards: int, seed: int, group: Grouping = str
) -> dict[str, list[str]]:
    """Shard name ("000", "001", ...) -> its ids in canonical order.

    ``"hash"``: shard = keyed hash of the id's ``group`` mod ``shards``, so adding or removing other samples moves none.
    ``"balanced"``: the paper's uniform split without replacement; sizes differ by at most one.
    DataError for an id that comes twice or is invalid, and for a shard left empty.
    """
    if shards < 1:
        raise RecipeError("a store must have at least one shard", got=shards, do="set shards to 1 or more")
    check_ids(ids)
    if len(ids) < shards:
        raise DataError(
            f"{counted(len(ids), 'sample')} for {counted(shards, 'shard')} would leave shards empty",
            do="use fewer shards or more samples",
        )
    names = shard_names(shards)
    parts: dict[str, list[str]] = {name: [] for name in names}
    if plan == "hash":
        for i in ids:
            parts[shard_of(group(i), shards, seed)].append(i)
    elif plan == "balanced":
        # sorting by a keyed hash is a seeded shuffle that does not depend on the order in which the ids came
        for place, i in enumerate(sorted(ids, key=lambda i: (_key("balanced", i, seed), i))):
            parts[names[place % shards]].append(i)
    else:
        raise RecipeError(f"there is no plan {plan!r}", do='use one of "hash", "balanced"')
    empty = [name for name, part in parts.items() if not part]
    if empty:
        raise DataError(
            f"the plan leaves {counted(len(empty), 'shard')} empty",
            got=f"{counted(len(ids), 'sample')} over {counted(shards, 'shard')}, empty: {', '.join(empty[:8])}",
            do='use fewer shards, another seed, or plan = "balanced" (without data.group)',
        )
    return {name: in_order(part, seed) for name, part in parts.items()}


def shard_of(group: str, shards: int, seed: int) -> str:
    """The shard of a group's samples under the plan ``"hash"``."""
    return _name(_key("shard", group, seed) % shards, shards)


def next_name(names: Sequence[str], taken: Container[str] = ()) -> str:
    """The name for one more training shard, none of those ``taken``; RecipeError if it would not sort after
    ``names``."""
    numbers = [int(name) for name in names if name.isdecimal()]
    width = max((len(name) for name in names), default=3)
    further = (f"{number:0{width}d}" for number in count(max(numbers, default=-1) + 1))
    name = next(name for name in further if name not in taken)
    if names and name <= max(names):
        raise RecipeError(
            "a further shard would not come last in the order of names",
            got=f"{name} after {max(names)}",
            do="make a new store with more shards",
        )
    return name


def held_out(ids: Sequence[str], fraction: float, seed: int, group: Grouping = str) -> set[str]:
    """The ids kept for testing: about ``fraction`` of their groups, each by its own keyed hash alone."""
    if not 0 <= fraction < 1:
        raise RecipeError("the held-out fraction must be at least 0 and below 1", got=fraction, do="0.2, say")
    check_ids(ids)
    bound = int(fraction * 2**BITS)
    return {i for i in ids if _key("held-out", group(i), seed) < bound}


def in_order(ids: Sequence[str], seed: int) -> list[str]:
    """``ids`` in the canonical order of rows."""
    return sorted(ids, key=lambda i: (sample_key(i, seed), i))


def shard_names(shards: int) -> list[str]:
    """ "000", "001", ...: with enough digits that names sort as their numbers do."""
    return [_name(k, shards) for k in range(shards)]


def _name(k: int, shards: int) -> str:
    return f"{k:0{max(3, len(str(shards - 1)))}d}"


def check_ids(ids: Sequence[str]) -> None:
    """DataError for an id that comes twice, is empty, too long, has control characters or is not Unicode."""
    for i in ids:
        check_id(i)
    if len(set(ids)) != len(ids):
        twice = [i for i, n in Counter(ids).items() if n > 1]
        raise DataError(
            "sample ids come more than once",
            got=f"{counted(len(twice), 'id')} more than once: {', '.join(map(repr, twice[:5]))}",
            do="give every sample an id of its own",
        )


def check_id(sample_id: str) -> None:
    """`check_ids` for one id."""
    try:
        size = len(sample_id.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_ID_BYTES or any(ord(c) < 32 or ord(c) == 127 for c in sample_id):
        raise DataError(
            f"a sample id must be Unicode text of 1 to {MAX_ID_BYTES} bytes without control characters",
            got=repr(sample_id[:80]),
            do="rename the sample",
        )


def check_forms(ids: Iterable[str], known: Iterable[str] = (), kind: str = "sample ids") -> None:
    """DataError if one of ``ids`` is another of them, or one that a store has, the ``known`` ones, in another Unicode
    form. They may be classes, too, as ``kind`` says. The NFC form may be ASCII: that of the kelvin sign is K."""
    seen = dict[str, str]()
    given = ((i, normalize("NFC", i)) for i in ids)
    pairs = [(i, "", other) for i, form in given if (other := seen.setdefault(form, i)) != i]
    pairs += [(own, "in the store ", i) for own, i in other_forms(seen.values(), known).items()]
    if pairs:
        one, where, other = min(pairs)
        raise DataError(
            f"two {kind} are the same text in different Unicode forms",
            got=f"{counted(len(pairs), 'pair')}, the first: {one!a}, and {where}{other!a}",
            do="leave out one of each pair, or rename it: as the store has it, or, if it is another one, otherwise",
        )


def other_forms(ids: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Those of ``ids`` that are among the ``known`` ones in another Unicode form: id -> the known one."""
    forms = {normalize("NFC", i): i for i in ids}
    there = ((i, normalize("NFC", i)) for i in known) if forms else ()
    return {own: i for i, form in there if (own := forms.get(form, i)) != i}


def _key(purpose: str, sample_id: str, seed: int) -> int:
    return int.from_bytes(blake3(sample_id.encode(), key=_purpose_key(purpose, seed)).digest(BITS // 8), "big")


@cache
def _purpose_key(purpose: str, seed: int) -> bytes:
    material = int(seed).to_bytes(16, "big", signed=True)
    return blake3(material, derive_key_context=f"taftcache plan v1 {purpose}").digest()
