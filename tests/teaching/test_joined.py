"""Teachers are joined by id, whatever their shards and orders; what does not fit is an error that names it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import taftcache
from taftcache.backbone.sources.digits import DigitsSource
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, StoreError
from taftcache.teaching.features import TeacherFeatures
from taftcache.teaching.joined import join
from taftcache.teaching.moments import teacher_moment
from taftcache.teaching.students.kernels import unit_rows
from taftcache.teaching.students.priors import ClosedForm
from tests.stages.making import recipe
from tests.teaching.making import DIGITS, extract_features


@pytest.fixture
def opened(teachers, tmp_path):
    """Copies of the two stores, open for writing."""
    stores = {name: FeatureStore(shutil.copytree(path, tmp_path / name), mode="a") for name, path in teachers.items()}
    yield stores
    for store in stores.values():
        store.close()


@pytest.fixture
def images(opened) -> dict[str, str]:
    """Class by id of the digits that the stores hold."""
    source = DigitsSource()
    held = {i for shard in opened["wide"].every_shard for i in shard.sample_ids}
    return {item.id: source.classes[item.label] for item in source.items if item.id in held}


@pytest.mark.law(
    "Teachers are matched by sample id alone; what is missing, foreign or forgotten in one of them is an error by name"
)
def test_rows_are_matched_by_id(opened, images):
    joined = join(opened, images)
    assert joined.ids == sorted(images)
    assert len(joined.training) + len(joined.held_out) == DIGITS
    assert not set(joined.training) & set(joined.held_out)
    orders = [[i for shard in store.every_shard for i in shard.sample_ids] for store in opened.values()]
    assert orders[0] != orders[1]
    rng = np.random.default_rng(0)
    for teacher, store in zip(joined.teachers, opened.values(), strict=True):
        rows = rng.permutation(len(joined.ids))
        given = teacher.rows(rows)
        for k, row in enumerate(rows[:20]):
            shard, at = store.locate(joined.ids[row])
            np.testing.assert_array_equal(given[k], shard.tokens(slice(at, at + 1))[0, 0])
            assert joined.classes[joined.labels[row]] == images[joined.ids[row]]
            assert (row in joined.training) == (shard.role == "train")


def test_rows_read_from_the_store_are_those_in_memory(opened, images, monkeypatch):
    held = join(opened, images).teachers[1]
    monkeypatch.setattr("taftcache.teaching.joined.HELD_IN_MEMORY", 0)
    read = join(opened, images).teachers[1]
    rows = np.array([5, 3, 77, 3])
    np.testing.assert_array_equal(held.rows(rows), read.rows(rows))


@pytest.mark.law(
    "Teachers are matched by sample id alone; what is missing, foreign or forgotten in one of them is an error by name"
)
def test_an_erased_sample_is_noticed(opened, images):
    """Erased in one store: an error that names store and sample. Erased in all: joined without it."""
    gone = opened["other"].sample_ids()[3]
    with opened["other"].transaction() as change:
        change.erase([gone])
        change.record({"event": "test"})
    with pytest.raises(StoreError, match="has forgotten") as error:
        join(opened, images)
    assert gone in str(error.value)
    assert "other has forgotten" in error.value.fault
    assert "wide" in error.value.do
    with opened["wide"].transaction() as change:
        change.erase([gone])
        change.record({"event": "test"})
    joined = join(opened, images)
    assert gone not in joined.ids
    assert len(joined.ids) == DIGITS - 1


def test_a_missing_row_is_an_error(opened, images):
    more = {**images, "digits/9999": "3"}
    with pytest.raises(StoreError, match=r"has no row of digits/9999"):
        join(opened, more)


def test_stores_of_other_sizes_do_not_join(opened, images, tmp_path):
    few = extract_features(tmp_path / "few", shards=1, limit=60)
    with FeatureStore(few) as store, pytest.raises(StoreError, match="few has no row of"):
        join({"wide": opened["wide"], "few": store}, images)


def test_a_foreign_row_is_an_error(opened, images):
    first = next(iter(images))
    with pytest.raises(DataError, match=f"the student cannot see: {first}"):
        join(opened, {i: label for i, label in images.items() if i != first})


def test_another_label_is_an_error(opened, images):
    first = next(iter(images))
    wrong = {**images, first: "9" if images[first] != "9" else "8"}
    with pytest.raises(DataError, match=f"{first} of another class"):
        join(opened, wrong)


def test_another_split_is_an_error(opened, images, tmp_path):
    other = extract_features(tmp_path / "split", shards=1, seed=5)
    with FeatureStore(other) as store, pytest.raises(StoreError, match="not hold out the same"):
        join({"wide": opened["wide"], "split": store}, images)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, "tokens of each sample"),
        ({"tangent": {"train": "head", "reset_block": True}}, "reset_block"),
        ({"tangent": {"train": "head", "class_token": "reset"}}, "class_token"),
    ],
)
def test_rows_that_are_no_features_are_refused(opened, images, tmp_path, sections, words):
    path = tmp_path / "tokens"
    taftcache.extract(recipe(path, data={"source": "digits", "limit": DIGITS}, **sections))
    with FeatureStore(path) as store, pytest.raises(StoreError, match=f"(?s)teacher.*{words}"):
        join({"wide": opened["wide"], "tokens": store}, images)


def test_features_are_standardised_then_weighed(opened, images):
    joined = join(opened, images, {"other": 0.5})
    used = joined.training
    features = TeacherFeatures(joined.teachers, used, noise=4, repeat=2)
    assert list(features.slices) == ["wide", "wide (copy 2)", "other", "noise"]
    psi = features.rows(used).double()
    varies = psi.std(0) > 0
    torch_std = psi.std(0, correction=0)
    for name, size in {"wide": 1.0, "wide (copy 2)": 1.0, "other": 0.5}.items():
        where = features.slices[name]
        assert psi[:, where].mean(0).abs().max() <= 1e-6
        assert (torch_std[where][varies[where]] - size).abs().max() <= 1e-5
    assert (psi[:, features.slices["wide"]] == psi[:, features.slices["wide (copy 2)"]]).all()
    assert 0.5 < torch_std[features.slices["noise"]].mean() < 1.5


def test_without_deviations_features_keep_their_size_but_not_their_mean(opened, images):
    """Kernels of a batch do not see a mean; moments over all rows would take it for a feature that says nothing."""
    joined = join(opened, images, {"other": 0.5})
    used, first = joined.training, joined.teachers[0]

    def closed(features):
        prior = ClosedForm(teacher_moment(unit_rows(psi) for _, psi in features.blocks(used)))
        prior.refresh(own, lambda part: features.rows(used[part], torch.float64))
        return prior.energy()

    features = TeacherFeatures(joined.teachers, used, standardise=False)
    cached = np.concatenate([first.rows(used), 0.5 * joined.teachers[1].rows(used)], 1)
    np.testing.assert_allclose(features.rows(used), cached - cached.mean(0), atol=1e-5)
    own = features.rows(used)[:, :4]  # a student with four of the teacher's features
    before = closed(features)
    assert (before[:4] > 0).all()
    first._held = first._held + np.float32(64) * (np.arange(first.width) < 2)
    torch.testing.assert_close(
        closed(TeacherFeatures(joined.teachers, used, standardise=False)), before, atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("standardise", [True, False])
def test_the_power_of_a_feature_is_its_mean_square(opened, images, standardise):
    joined = join(opened, images, {"other": 0.5})
    joined.teachers[0]._held[:, 2] = 3.75
    features = TeacherFeatures(joined.teachers, joined.training, standardise=standardise, noise=3)
    psi = features.rows(joined.training, torch.float64).numpy()
    np.testing.assert_allclose(features.power, np.square(psi).mean(0), rtol=1e-9, atol=1e-15)
    assert features.power[2] == 0


def test_a_constant_feature_becomes_zero(opened, images):
    joined = join(opened, images)
    teacher = joined.teachers[0]
    teacher._held = teacher._held.copy()
    teacher._held[:, 2] = 3.75
    features = TeacherFeatures([teacher], joined.training)
    assert (features.rows(joined.held_out)[:, 2] == 0).all()
