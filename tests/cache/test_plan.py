"""Laws of the plans: who else is in the data decides nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taftcache.cache.format.plan import assign, held_out, sample_key
from taftcache.errors import DataError, RecipeError

IDS = [f"n{i // 100}/{i}.jpg" for i in range(600)]


def where(parts: dict[str, list[str]]) -> dict[str, str]:
    return {i: name for name, part in parts.items() for i in part}


@settings(max_examples=25)
@given(st.sets(st.sampled_from(IDS), min_size=100), st.integers(1, 4), st.integers(-5, 2**40))
def test_hash_plan_moves_nobody(some: set[str], shards: int, seed: int) -> None:
    everyone, part = where(assign(IDS, "hash", shards, seed)), where(assign(sorted(some), "hash", shards, seed))
    assert part == {i: everyone[i] for i in some}


@pytest.mark.parametrize("plan", ["hash", "balanced"])
@pytest.mark.parametrize("shards", [1, 7, 50])
def test_a_plan_is_a_partition_in_canonical_order(plan, shards) -> None:
    parts = assign(IDS, plan, shards, 3)
    assert sorted(i for part in parts.values() for i in part) == sorted(IDS)
    assert list(parts) == sorted(parts)
    assert len(parts) == shards
    assert all(part == sorted(part, key=lambda i: sample_key(i, 3)) for part in parts.values())
    assert parts == assign(IDS[::-1], plan, shards, 3)
    assert shards == 1 or parts != assign(IDS, plan, shards, 4)


@pytest.mark.parametrize("shards", [1, 7, 599, 600])
def test_balanced_sizes(shards) -> None:
    sizes = {len(part) for part in assign(IDS, "balanced", shards, 0).values()}
    assert max(sizes) - min(sizes) <= 1


def test_shard_names_sort_as_numbers() -> None:
    ids = [str(i) for i in range(1500)]
    assert list(assign(ids, "balanced", 1200, 0))[::400] == ["0000", "0400", "0800"]


def test_held_out_depends_on_the_sample_alone() -> None:
    all_of_them = held_out(IDS, 0.25, 1)
    assert 90 < len(all_of_them) < 210
    assert held_out(IDS[::2], 0.25, 1) == all_of_them & set(IDS[::2])
    assert all_of_them <= held_out(IDS, 0.5, 1)
    assert held_out(IDS, 0, 1) == set()
    # being held out must not say which shard a sample would have had
    spread = {len(all_of_them & set(part)) for part in assign(IDS, "hash", 3, 1).values()}
    assert min(spread) > 20


def test_plans_are_fixed() -> None:
    """Another outcome would move samples between the shards of existing recipes."""

    def numbers(ids):
        return [int(i.split("/")[1].removesuffix(".jpg")) for i in ids]

    assert sorted(numbers(held_out(IDS[:12], 0.4, 1))) == [7, 9]
    assert [numbers(part) for part in assign(IDS[:8], "hash", 2, 1).values()] == [[5, 2, 3, 4], [0, 6, 1, 7]]
    assert [numbers(part) for part in assign(IDS[:8], "balanced", 3, 1).values()] == [[0, 7, 4], [5, 6, 3], [1, 2]]


def test_key_is_fixed() -> None:
    """Another value would put the rows of every existing store in another order."""
    assert sample_key("a/b.png", 7) == 0xBC7984DDF70012C141460116AB7593EA
    assert 0 <= sample_key("é", -1) < 2**128


@pytest.mark.parametrize(
    ("ids", "shards", "says"),
    [
        (["a", "b", "a"], 1, "'a'"),
        (["a", "b"], 3, "2 samples for 3 shards"),
        (["a", ""], 1, "''"),
        (["a", "b\n"], 1, r"b\\n"),
        (["a", "b\ud800"], 1, "ud800"),
        (["x" * 1025], 1, "xxx"),
        ([f"i{k}" for k in range(40)], 39, "40 samples over 39 shards, empty: 000"),
    ],
)
def test_bad_ids_are_named(ids, shards, says) -> None:
    with pytest.raises(DataError, match=says):
        assign(ids, "hash", shards, 0)


def test_bad_arguments() -> None:
    with pytest.raises(RecipeError):
        assign(["a"], "random", 1, 0)  # type: ignore[arg-type]
    with pytest.raises(RecipeError):
        assign(["a"], "hash", 0, 0)
    with pytest.raises(RecipeError):
        held_out(["a"], 1.0, 0)
