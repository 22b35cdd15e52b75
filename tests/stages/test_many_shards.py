"""Many shards: what is solved in a few seconds is committed together and none of it is lost; and no stage that looks at
all models holds all of them."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.commit import Committer
from taftcache.errors import SolveError
from taftcache.model.component import Component
from taftcache.names import is_model
from taftcache.stages import memory
from taftcache.stages.look.evaluation import EvaluateReport
from taftcache.stages.look.row_table import Reader
from taftcache.stages.look.scoring import HeldOutLogits, Scorer, held_out_logits
from taftcache.stages.train import training
from taftcache.tangent.operator import TangentOperator
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


@pytest.fixture
def held(monkeypatch) -> list[int]:
    """How many directions, and components that were read, there were together each time that one more came."""
    alive, found = WeakSet[torch.Tensor](), list[int]()
    decode, direction = Component.decode, TangentOperator.direction

    def decoded(data, within=None):
        component = decode(data, within)
        alive.add(component.delta)
        found.append(len(alive))
        return component

    def directed(self, vector, layout=None):
        made = vector.clone()  # for the tail's form of it need not be an object of its own
        alive.add(made)
        found.append(len(alive))
        return Held(direction(self, made, layout), made)

    def tangent(self, state, delta):
        return self_tangent(self, state, delta.made if isinstance(delta, Held) else delta)

    self_tangent = TangentOperator.tangent
    monkeypatch.setattr(Component, "decode", staticmethod(decoded))
    monkeypatch.setattr(TangentOperator, "direction", directed)
    monkeypatch.setattr(TangentOperator, "tangent", tangent)
    return found


class Held(NamedTuple):
    made: Any
    of: torch.Tensor


def with_memory(place, size: str) -> None:
    """As training with that ``solver.memory`` records it."""
    with open_store(place) as store, store.transaction() as change:
        recipe = store.manifest.recipe
        change.update(recipe=recipe | {"solver": recipe["solver"] | {"memory": size}})


def scored(place) -> tuple[EvaluateReport, HeldOutLogits, list[np.ndarray]]:
    """All that looks at every model: evaluate, the page's held-out rows, and one sample."""
    with FeatureStore(place) as store:
        report = taftcache.evaluate(store, without=["001"])
        scorer, shard = Scorer(store), store.held_out
        kept = held_out_logits(store, scorer, shard, Reader(store))
        return report, kept, list(scorer.logits(shard.tokens(slice(0, 1)), scorer.models))


@pytest.mark.law("Models that memory has no room for together are scored in groups, to the same bits")
@pytest.mark.parametrize(("room", "most"), [(1, 3), (3, 6)])
def test_models_are_scored_in_groups_that_memory_has_room_for(place, held, monkeypatch, room, most):
    monkeypatch.setattr("taftcache.solve.proof.DRAWS", 1)  # which are directions, too, as small as the few columns here
    with open_store(place) as store:
        taftcache.train(store)
        taftcache.compose(store)
        assert max(held) <= 3, "of those that are added up"
        size = max(ref.size for name, ref in store.objects().items() if is_model(name)) // 2
    held.clear()
    report, kept, logits = scored(place)
    assert max(held) > SOLVED
    held.clear()
    monkeypatch.setattr(memory, "MODELS", 0)
    with_memory(place, str(room * size))
    again, kept_again, logits_again = scored(place)
    assert room <= max(held) <= most
    assert (again.accuracy, again.intervals) == (report.accuracy, report.intervals)
    for name, value in vars(kept).items():
        np.testing.assert_equal(vars(kept_again)[name], value)
    np.testing.assert_equal(logits_again, logits)


@pytest.mark.parametrize("look", [taftcache.suspects, taftcache.audit])
def test_models_are_looked_at_in_turn(place, held, monkeypatch, look):
    """An audit and the judges of suspects held all of them, the judges twice."""
    monkeypatch.setattr("taftcache.solve.proof.DRAWS", 1)
    taftcache.train(place)
    taftcache.compose(place)
    held.clear()
    look(place)
    assert 0 < max(held) <= 4, "a sum of them, and the one that is added to it"
