"""What the page says forgetting would cost and change is what ``forget`` does, and the page changes nothing."""

from __future__ import annotations

import shutil
from time import sleep

import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.report.paired import row_verdict
from taftcache.stages.progress import Silent
from taftcache.view.asked import basket
from taftcache.view.asked.leaving import SideSolves, without_rows
from taftcache.view.atlas import Atlas
from tests.cache.making import tree


def chosen(table) -> list[int]:
    """Two rows of the first shard, one of the second, a held-out one; no class is left without a row."""
    held = int(table.held_out.argmax())
    return [*range(2), table.start(1), held]


def test_rows_travel_in_an_address(atlas):
    assert basket.rows_of(atlas, "0.1.a") == [0, 1, 11]
    for text in ("", "x!", "0.0", "²", "zzzz", "0..1", "-1", "z" * 5000):
        with pytest.raises(ValueError, match=r".*"):
            basket.rows_of(atlas, text)


@pytest.mark.law("What the page says of forgetting its basket is what forget does")
def test_the_cost_and_the_change_are_those_of_forget(seen, atlas, tmp_path):
    path, table, rows = shutil.copytree(seen, tmp_path / "store"), atlas.table, chosen(atlas.table)
    before = tree(path)
    with FeatureStore(path) as store:
        mine = Atlas(store)
        mine.work(skip=("predictions", "head path", "influence", "neighbours"))
        cost = basket.cost(mine, rows)
        said = without_rows(mine, rows, Silent())
    assert tree(path) == before
    with FeatureStore(path, mode="a") as store:
        report = taftcache.forget(store, [table.ids[k] for k in rows])
        after = taftcache.evaluate(store)
    assert cost["samples"] == len(report.forgotten) == len(rows)
    assert [shard["name"] for shard in cost["shards"]] == report.shards
    assert [shard["leaving"] for shard in cost["shards"]] == [2, 1, 1]
    assert cost["renewed"] == report.renewed
    assert set(cost["notes"]) <= {*report.notes}
    assert said.held_out == after.rows
    assert said.accuracy is not None
    assert said.accuracy[1] == pytest.approx(after.accuracy["models/mean"])
    assert set(said.solved) == {name for name in report.certificates if name.startswith("components/")}
    for name, one in said.solved.items():
        assert one.moved == pytest.approx(report.certificates[name].moved, rel=1e-2)


def test_an_emptied_shard_leaves_the_mean(atlas):
    table = atlas.table
    said = without_rows(atlas, range(table.start(1)), Silent())
    kept = atlas.held_out
    assert said.dropped == ["components/000"]
    assert said.solved == {}
    assert said.accuracy == (kept.accuracy(kept.predictions()), kept.accuracy(kept.predictions(["000"])))
    assert said.changed == (kept.predictions() != kept.predictions(["000"])).sum()
    assert said.gain == row_verdict(*(kept.predictions(out) == kept.labels for out in (["000"], [])))


def test_a_class_that_would_leave_is_said_so(atlas):
    table = atlas.table
    rows = [int(k) for k in (~table.held_out & (table.label == 3)).nonzero()[0]]
    assert basket.cost(atlas, rows)["classes"] == ([] if (table.held_out & (table.label == 3)).any() else ["3"])
    leaving = SideSolves(atlas)
    while (said := leaving.ask_many(rows))["state"] == "working":
        sleep(0.02)
    assert said["state"] == "failed"
    assert "last training row" in said["error"]
