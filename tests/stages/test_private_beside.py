"""What was released privately is remembered beside the store: no store at its place begins with a fresh budget."""

from __future__ import annotations

import shutil

import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import CompositionError, IntegrityError, RecipeError
from taftcache.names import PRIVATE
from taftcache.privacy.budget import PLAN
from taftcache.recipe import parse_recipe
from taftcache.terminal.experiments import show_train_private
from tests.stages.making import PRIVACY, open_store, recipe, settings


def beside(path):
    return path.with_name(f"{path.name}.forgotten")


def remembered(path):
    """``path`` once a writer has opened it: a plain copy of a folder has nothing beside it yet."""
    open_store(path).close()
    return path


def check_spent(path) -> None:
    """Nothing more can be released at ``path``, whose budget of 8 at 1e-5 was spent; and a refusal changes nothing."""
    with open_store(path) as store:
        before = store.root_digest
        for more, said in (
            ({"clip": 2.0}, "of its budget"),
            ({"delta": 0.3}, "delta is 0.3"),
            ({"budget": 20.0}, "20.0"),
        ):
            with pytest.raises(RecipeError, match=said):
                taftcache.train_private(store, settings(store, **more))
        assert store.root_digest == before


@pytest.mark.law("No store at a place begins with a fresh privacy budget: what was released is remembered beside it")
def test_a_store_made_anew_at_the_same_place(private, tmp_path):
    remembered(private)
    shutil.rmtree(private)
    taftcache.extract(recipe(private))
    with FeatureStore(private) as store:
        assert PLAN not in store.manifest.plan
    check_spent(private)
    with open_store(private) as store, pytest.raises(RecipeError, match="add-remove"):
        taftcache.train_private(store, settings(store, relation="add-remove"))
    for name, make in (("copy", taftcache.copy), ("converted", taftcache.convert)):  # what only the file beside knows
        make(private, tmp_path / name, **({} if name == "copy" else {"dtype": "float32"}))
        check_spent(tmp_path / name)


@pytest.mark.law("No store at a place begins with a fresh privacy budget: what was released is remembered beside it")
def test_a_root_put_back(private, finished, tmp_path):
    remembered(private)
    shutil.rmtree(private)
    shutil.copytree(finished, private)
    check_spent(private)
    notes = " ".join(taftcache.audit(private).notes)
    assert "2 private trainings" in notes


def test_a_root_put_back_from_between_two_trainings(store, tmp_path):
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened, epsilon=2.0, budget=2.5), shards=["000"])
    shutil.copytree(store, tmp_path / "old")
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened, epsilon=2.0, clip=2.0), shards=["001"])
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "old", store)
    with open_store(store) as opened:
        with pytest.raises(RecipeError, match="shard 001 would spend"):
            taftcache.train_private(opened, settings(opened, epsilon=2.0), shards=["001"])
        report = taftcache.train_private(opened, settings(opened, epsilon=1.0), shards=["001"])
        assert 2.0 < report.spent["001"] <= 2.5, "what was spent on 001 alone, not on 000"


def test_what_is_left_can_be_spent_by_a_store_made_anew(store):
    with open_store(store) as opened:
        first = taftcache.train_private(opened, settings(opened, epsilon=2.0, budget=8.0))
    shutil.rmtree(store)
    taftcache.extract(recipe(store))
    with open_store(store) as opened:
        again = taftcache.train_private(opened, settings(opened, epsilon=2.0))
        assert again.budget == 8.0
        assert again.spent["000"] > first.spent["000"] * 1.2
        assert opened.manifest.plan[PLAN]["epsilon"] == 8.0
    assert taftcache.audit(store).findings == []


def test_an_import_over_the_place_of_a_private_store(private, finished, tmp_path):
    """The export was written before the first private training, so that it carries no promise."""
    taftcache.export(finished, tmp_path / "rows.h5")
    remembered(private)
    shutil.rmtree(private)
    taftcache.import_(tmp_path / "rows.h5", recipe(private))
    check_spent(private)


@pytest.mark.parametrize("how", ["copy", "copy --update", "convert"])
def test_copies_bring_it_along(private, finished, tmp_path, how):
    target = tmp_path / "target"
    if how == "convert":
        taftcache.convert(private, target, dtype="float32")
    else:
        taftcache.copy(private, target)
        if how == "copy --update":
            beside(target).unlink()
            taftcache.copy(finished, target, update=True)  # an older state, over the one that spent
            check_spent(target)
    shutil.rmtree(target)
    shutil.copytree(finished, target)
    check_spent(target)


def test_it_is_written_by_the_training_and_completed_by_the_next_writer(store):
    assert not beside(remembered(store)).exists()
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened), shards=["000"])
    raw = beside(store).read_bytes()
    assert b'"version":3' in raw
    assert b"000" in raw
    beside(store).unlink()
    assert "fresh budget" in " ".join(taftcache.audit(store).notes)
    assert beside(remembered(store)).read_bytes() == raw
    beside(store).write_bytes(raw.replace(b'"budget":8.0', b'"budget":9.0'))
    with pytest.raises(IntegrityError, match="digest"):
        FeatureStore(store)


def test_destroying_the_tombstones_key_leaves_what_was_spent(private):
    with open_store(private) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[0]])
        taftcache.destroy_key(store)
    found = TombstoneFile(private)
    assert not found.key
    assert len(found.charges) == 2


# ---- models without noise, beside private components ----


@pytest.fixture(scope="module")
def heads(finished, tmp_path_factory):
    """A finished store whose components are of the head, so that private ones share their base point."""
    path = shutil.copytree(finished, tmp_path_factory.mktemp("heads") / "store")
    with open_store(path) as store:
        values = store.manifest.recipe | {"privacy": PRIVACY}
        recipe = parse_recipe(values | {"tangent": {**values["tangent"], "train": "head"}})
        taftcache.train(store, recipe)
        taftcache.compose(store, recipe)
    return path


@pytest.fixture
def half(heads, tmp_path):
    """Shard 000 trained privately, 001 as it was."""
    path = shutil.copytree(heads, tmp_path / "half")
    with open_store(path) as store:
        report = taftcache.train_private(store, shards=["000"])
    assert report.dropped == ["components/000", "models/head", "models/mean"]
    return path


def test_what_was_dropped_is_said_once(heads, tmp_path, capsys):
    """A line with the same reason for each of them hid which models were gone."""
    with open_store(shutil.copytree(heads, tmp_path / "store")) as store:
        report = taftcache.train_private(store)
    show_train_private(report)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("dropped what was") == 1
    assert "base point: components/000, components/001, models/head, models/mean shard 000" in said
    assert said.endswith(f"let a private component learn next taftcache evaluate {report.store}")


@pytest.mark.law("Beside a private component nothing is kept, made or exported that saw its rows without noise")
def test_other_shards_keep_what_never_saw_the_private_rows(half):
    with open_store(half) as store:
        models = [name for name in store.objects() if name.startswith(("components/", "models/"))]
        assert models == ["components/000", "components/001"]
        assert PRIVATE in store.objects()["components/000"].meta
        taftcache.compose(store)
        assert "models/mean" in store.objects()
        assert taftcache.train_private(store, shards=["000"]).dropped == [], "its member of 000 is the private one"
        assert taftcache.train_private(store).dropped == ["components/001", "models/mean"]
    assert taftcache.audit(half).findings == []


@pytest.mark.law("Beside a private component nothing is kept, made or exported that saw its rows without noise")
def test_a_mean_goes_though_its_component_without_noise_went_before(heads, tmp_path):
    with open_store(shutil.copytree(heads, tmp_path / "store")) as store:
        with store.transaction() as change:
            change.drop("components/000")
        assert taftcache.train_private(store, shards=["000"]).dropped == ["models/head", "models/mean"]


@pytest.mark.law("Beside a private component nothing is kept, made or exported that saw its rows without noise")
def test_training_other_shards_makes_no_head_of_the_private_rows(half):
    with open_store(half) as store:
        with store.transaction() as change:
            change.drop("components/001")
        with pytest.raises(CompositionError, match="--private"):
            taftcache.compose(store)
        with pytest.raises(RecipeError, match="the other shards alone: --shard 001"):
            taftcache.train(store)
        assert taftcache.train(store, shards=["001"]).trained == ["components/001"]
        assert "models/head" not in store.objects()
