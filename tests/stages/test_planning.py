"""The plan of a request to forget: each object of the store is renewed, destroyed, or has nothing of the rows."""

from __future__ import annotations

import pytest

import taftcache
from taftcache.errors import RecipeError
from taftcache.names import EXACT, HEAD, MEAN
from taftcache.stages.forget.planning import plan_forgetting
from taftcache.stages.forget.request import resolve_request
from tests.stages.making import open_store, recipe, tree

FIRST, SECOND, TAIL = "components/000", "components/001", "base/tail"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Sixty digits with an exact model and held-out rows. Not to be written to."""
    path = tmp_path_factory.mktemp("planned") / "store"
    taftcache.run(recipe(path, compose={"mode": "exact"}, data={"source": "digits", "limit": 60, "held_out": 0.2}))
    return path


def planned(path, mode="retrain", held_out=False, **wanted):
    with open_store(path) as store:
        if not wanted:
            wanted = {"samples": [(store.held_out if held_out else store.shard("000")).sample_ids[0]]}
        return plan_forgetting(store, resolve_request(store, **wanted), mode), set(store.objects())


@pytest.mark.parametrize(
    ("mode", "renewed", "destroyed"),
    [
        ("retrain", [FIRST, HEAD, MEAN, EXACT], []),
        ("resolve", [FIRST, HEAD, MEAN, EXACT], []),
        ("subtract", [HEAD, MEAN], [FIRST, EXACT]),
    ],
)
def test_a_row(path, mode, renewed, destroyed):
    before = tree(path)
    plan, there = planned(path, mode)
    assert (plan.renewed, plan.destroyed, plan.rewritten) == (renewed, destroyed, ["000"])
    assert there - {*plan.renewed, *plan.destroyed} == ({SECOND, TAIL})
    assert plan.subtracted == (["000"] if mode == "subtract" else [])
    assert tree(path) == before


def test_a_held_out_row_is_in_no_solution(path):
    """But the identity of the mean may have been checked on it."""
    plan, _ = planned(path, held_out=True)
    assert (plan.solve, plan.renewed, plan.destroyed, plan.rewritten) == ([], [MEAN], [], ["held-out"])


def test_a_shard_goes_with_its_component(path):
    plan, _ = planned(path, shards=["000"])
    assert (plan.destroyed, plan.members) == ([FIRST], [SECOND])
    assert "000" not in plan.rewritten
    assert plan.renewed[-3:] == [HEAD, MEAN, EXACT]


def test_a_class_takes_a_column_of_every_component(path):
    plan, _ = planned(path, classes=["7"])
    assert plan.renewed == [FIRST, SECOND, HEAD, MEAN, EXACT]
    with pytest.raises(RecipeError, match="cannot forget a class"):
        planned(path, "subtract", classes=["7"])
