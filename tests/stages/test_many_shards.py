"""Many small shards: what is solved in a few seconds is committed together, and none of it is lost."""

from __future__ import annotations

import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.commit import Committer
from taftcache.errors import SolveError
from taftcache.names import is_model
from taftcache.stages.train import training
from tests.stages.making import open_store, tree
from tests.stages.test_vectors import IDS, LABELS, vectors

SHARDS = 6
SOLVED = SHARDS + 1  # and the head over all rows


@pytest.fixture
def place(tmp_path):
    overrides = [f"store.shards={SHARDS}", "device=cpu", "objective.ridge=0.01", 'compose.mode="mean"']
    taftcache.import_vectors(vectors(), LABELS, tmp_path / "store", ids=IDS, overrides=overrides)
    return tmp_path / "store"


@pytest.fixture
def commits(monkeypatch) -> list[int]:
    """How many components and models the store had after each commit."""
    found, publish = list[int](), Committer.publish

    def counted(self, *args, **options):
        publish(self, *args, **options)
        found.append(sum(map(is_model, self.manifest.objects)))

    monkeypatch.setattr(Committer, "publish", counted)
    return found


def test_components_of_a_few_seconds_are_one_commit(place, commits, monkeypatch):
    monkeypatch.setattr(training, "UNCOMMITTED", 3600.0)
    taftcache.train(place)
    assert commits == [SOLVED]


@pytest.mark.parametrize("limit", ["UNCOMMITTED", "UNCOMMITTED_BYTES"])
def test_a_long_solve_or_a_large_component_is_committed_at_once(place, commits, monkeypatch, limit):
    monkeypatch.setattr(training, "UNCOMMITTED", 3600.0)
    monkeypatch.setattr(training, limit, 0)
    taftcache.train(place)
    assert commits == list(range(1, SOLVED + 1))


@pytest.mark.law(
    "What was solved before a solve fails or is interrupted is kept, and the same command ends in the same bytes"
)
@pytest.mark.parametrize("error", [SolveError("no solution"), KeyboardInterrupt()])
def test_what_was_solved_before_an_error_is_kept(place, commits, monkeypatch, error):
    solve, calls = training.solve_component, []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            raise error
        return solve(*args, **options)

    monkeypatch.setattr(training, "UNCOMMITTED", 3600.0)
    with monkeypatch.context() as patch:
        patch.setattr(training, "solve_component", failing)
        with pytest.raises(type(error)):
            taftcache.train(place)
    with FeatureStore(place) as store:
        assert list(store.objects("components/")) == [f"components/00{k}" for k in range(3)]
    assert taftcache.train(place).kept == [f"components/00{k}" for k in range(3)]
    assert commits == [3, SOLVED]
    ended = tree(place)
    with open_store(place) as store, store.transaction() as change:
        for name in filter(is_model, store.objects()):
            change.drop(name)
    taftcache.train(place)
    assert tree(place) == ended
