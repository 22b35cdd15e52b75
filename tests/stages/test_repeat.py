"""Nothing is done twice, and the same settings give the same bytes whatever happened on the way."""

from __future__ import annotations

import shutil

import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import CompositionError, StoreError
from taftcache.model.component import read_base, read_component
from taftcache.names import INTERRUPTED_KEY
from taftcache.recipe import apply_overrides, parse_recipe
from taftcache.stages.progress import Silent
from taftcache.stages.train.record import record_recipe
from tests.stages.making import open_store, recipe, tree, values


def changed(path, *overrides: str):
    """The store's recipe with overrides."""
    with FeatureStore(path) as opened:
        return parse_recipe(apply_overrides(opened.manifest.recipe, overrides))


def objects(path) -> dict[str, str]:
    with FeatureStore(path) as opened:
        return {name: ref.digest for name, ref in opened.objects().items()}


def shards(path) -> dict[str, str]:
    with FeatureStore(path) as opened:
        return {ref.name: ref.digest for ref in opened.manifest.shards}


@pytest.mark.law("A run again does nothing; a killed extraction ends in the same root digest")
def test_a_run_again_does_nothing(store, monkeypatch):
    """It does not even load the backbone."""
    before = tree(store)
    monkeypatch.setattr("taftcache.backbone.model.load_backbone", None)
    report = taftcache.run(recipe(store))
    assert report.idle
    assert (report.extract.images, report.train.trained, report.compose.changed) == (0, [], False)
    assert tree(store) == before


def test_every_stage_reports_the_root_digest(finished):
    with FeatureStore(finished) as opened:
        root = opened.root_digest
        assert taftcache.evaluate(opened).root_digest == taftcache.inspect(opened).root_digest == root
    assert taftcache.verify(finished).root_digest == root
    assert taftcache.extract(recipe(finished)).root_digest == root


@pytest.mark.parametrize("sections", [{"extract": {"workers": 3}}, {"forget": {"samples": ["digits/0001"]}}])
def test_place_workers_and_wishes_change_no_byte(finished, tmp_path, sections):
    """The same data and settings have one root digest, wherever they lie and however they were made."""
    path = tmp_path / "elsewhere" / "store"
    report = taftcache.extract(recipe(path, **sections))
    assert report.images == 60
    with open_store(path) as opened:
        taftcache.train(opened)
        taftcache.compose(opened)
    assert tree(path) == tree(finished)


def test_rows_in_other_chunks_give_the_same_components(finished, tmp_path):
    path = tmp_path / "store"
    taftcache.extract(recipe(path, store={"chunk_rows": 3}))
    with open_store(path) as opened:
        taftcache.train(opened)
    for name in ("components/000", "components/001", "models/head"):
        assert torch.equal(delta(path, name), delta(finished, name))


def delta(path, name: str) -> torch.Tensor:
    with FeatureStore(path) as opened:
        return read_component(opened, name, read_base(opened, recorded_recipe(opened).tangent)).delta


@pytest.mark.law("Stage 2 needs the store alone")
def test_training_needs_the_store_alone(photographed, images, tmp_path, monkeypatch):
    """Neither images nor backbone are opened; the shards keep their bytes, whatever was made from them is renewed."""
    path = shutil.copytree(photographed, tmp_path / "store")
    monkeypatch.setattr("taftcache.backbone.model.load_backbone", None)
    monkeypatch.setattr("taftcache.backbone.sources.opening.open_source", None)
    with open_store(path) as opened:
        report = taftcache.train(opened, changed(path, "objective.ridge=1e-2"))
        taftcache.compose(opened)
    assert report.trained == ["components/000", "components/001", "models/head"]
    assert shards(path) == shards(photographed)
    before, after = objects(photographed), objects(path)
    assert [n for n in before if before[n] == after[n]] == ["base/tail"]
    with FeatureStore(path) as opened:
        now, then = opened.manifest.recipe, FeatureStore(photographed).manifest.recipe
    assert now["objective"]["ridge"] == 1e-2
    assert {k: v for k, v in now.items() if k != "objective"} == {k: v for k, v in then.items() if k != "objective"}


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("solver.memory=1GiB", ["components/000", "components/001", "models/head"]),
        ("compose.mode=mean", ["components/000", "components/001", "models/head"]),
        ("tangent.train=head", ["models/head"]),
        ("objective.kappa=3", []),
        ("solver.tolerance=1e-9", []),
        ("tangent.seed=1", []),
        ("tangent.class_token=reset", []),
    ],
)
def test_only_what_settings_decide_is_solved_again(store, override, kept):
    with open_store(store) as opened:
        assert taftcache.train(opened, changed(store, override)).kept == kept
        assert taftcache.compose(opened).changed == (kept == [] or "head" in override)
        assert taftcache.train(opened).trained == []
        assert not taftcache.compose(opened).changed
        assert taftcache.evaluate(opened).rows > 0


def test_only_shards_of_other_rows_are_solved_again(store):
    with open_store(store) as opened:
        with opened.transaction() as change:
            change.erase([opened.shard("001").sample_ids[0]])
        assert taftcache.train(opened).trained == ["components/001", "models/head"]
        assert taftcache.compose(opened).changed


def test_settings_put_back_give_the_bytes_back(store):
    before = tree(store)
    there = changed(store)
    for settings in (changed(store, "objective.ridge=0.1"), there):
        with open_store(store) as opened:
            assert taftcache.train(opened, settings).trained
            taftcache.compose(opened)
    assert tree(store) == before


def test_one_shard(store):
    before = objects(store)
    with open_store(store) as opened:
        assert taftcache.train(opened, changed(store, "objective.kappa=3"), shards=["001"]).trained == [
            "components/001",
            "models/head",
        ]
        assert opened.objects()["components/000"].digest == before["components/000"]
        with pytest.raises(StoreError, match="shard"):
            taftcache.train(opened, shards=["777"])


def test_components_of_another_base_are_not_used_silently(store):
    """An earlier release could record another expansion point than the components have."""
    settings = changed(store, "tangent.seed=1")
    with open_store(store) as opened:
        with opened.transaction() as change:
            record_recipe(change, opened, settings)
        for use in (taftcache.evaluate, taftcache.compose, lambda s: taftcache.forget(s, [s.shards[1].sample_ids[0]])):
            with pytest.raises(Exception, match="base") as caught:
                use(opened)
            assert caught.type.__name__ == "CompositionError"
        assert taftcache.train(opened, settings).trained == ["components/000", "components/001", "models/head"]
        assert taftcache.compose(opened).changed
        assert taftcache.evaluate(opened).rows


class Interrupting(Silent):
    """Progress that presses Ctrl-C in the n-th solve's first pass."""

    def __init__(self, solve: str) -> None:
        self._solve = solve

    def task(self, name: str, total: int | None):
        from contextlib import nullcontext

        return nullcontext(self if name.startswith(f"{self._solve} (") else Silent())

    def advance(self, steps: int = 1) -> None:
        raise KeyboardInterrupt


def test_a_component_that_was_interrupted_is_marked_and_solved_again(finished, tmp_path):
    path = tmp_path / "store"
    taftcache.extract(recipe(path))
    with open_store(path) as opened:
        with pytest.raises(KeyboardInterrupt):
            taftcache.train(opened, progress=Interrupting("solve 001"))
        made = {name: entry.meta.get("key") for name, entry in opened.objects().items() if name != "base/tail"}
        assert list(made) == ["components/000", "components/001"]
        assert [name for name, key in made.items() if key == INTERRUPTED_KEY] == ["components/001"]
        with pytest.raises(CompositionError, match="to its end"):
            taftcache.compose(opened)
    assert taftcache.run(recipe(path)).train.trained == ["components/001", "models/head"]
    assert tree(path) == tree(finished)


def test_values_helper_writes_what_the_recipe_says(tmp_path):
    assert parse_recipe(values(tmp_path)) == recipe(tmp_path)
