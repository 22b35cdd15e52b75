"""A store in 8 bits through every stage: the same promises as one of floats, in half the bytes."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

import taftcache
from taftcache.cache.format.encoding import as_read
from taftcache.cache.store import FeatureStore
from taftcache.errors import IdentityError
from tests.stages.making import open_store, recipe, tree
from tests.stages.test_append import MEMORY
from tests.stages.test_growing import LATER, OLD, SMALL, some
from tests.stages.test_transfer import shards
from tests.stages.test_vectors import IDS, LABELS, vectors

EIGHT = {"dtype": "int8"}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    """The digits of ``finished``, extracted in 8 bits. Not to be written to."""
    path = tmp_path_factory.mktemp("eight") / "store"
    taftcache.extract(recipe(path, store=EIGHT))
    return path


def test_a_float16_store_becomes_the_one_in_8_bits(finished, extracted, tmp_path):
    """The same bytes as an extraction in 8 bits, which rounds to float16 on the way."""
    assert taftcache.convert(finished, tmp_path / "eight", dtype="int8").dtype == "int8"
    assert shards(tmp_path / "eight") == shards(extracted)
    assert taftcache.extract(recipe(tmp_path / "eight", store=EIGHT)).images == 0
    with FeatureStore(finished) as theirs, FeatureStore(extracted) as store:
        assert 1.8 < sum(s.nbytes for s in theirs.shards) / sum(s.nbytes for s in store.shards) < 2
        for ours, of_floats in zip(store.shards, theirs.shards, strict=True):
            want = as_read(of_floats.tokens(slice(None)).astype(np.float32), "int8")
            assert np.array_equal(ours.tokens(slice(None)), want)
        files = [f for s in (*store.shards, store.held_out) for f in s.manifest.objects.items()]
        kept = sum(file.size for name, file in files if name.startswith(("tokens/c.", "scales/c.")))
        weights = store.objects()["base/tail"].size
    there = [f for f in extracted.rglob("*") if f.is_file()]
    rounding = os.statvfs(tmp_path).f_frsize * len(there)  # each takes whole blocks
    assert kept < taftcache.estimate(recipe(tmp_path / "other", store=EIGHT)).bytes <= kept + weights + rounding


def test_8_bits_made_floats_are_not_taken_for_an_extraction(extracted, tmp_path):
    taftcache.convert(extracted, tmp_path / "wide", dtype="float16")
    with pytest.raises(IdentityError, match="extracted in int8"):
        taftcache.extract(recipe(tmp_path / "wide"))


@pytest.mark.full
def test_float32_in_8_bits_is_not_taken_for_an_extraction(tmp_path):
    taftcache.extract(recipe(tmp_path / "float32", store={"dtype": "float32"}))
    taftcache.convert(tmp_path / "float32", tmp_path / "once", dtype="int8")
    with pytest.raises(IdentityError, match="extracted in float32"):
        taftcache.extract(recipe(tmp_path / "once", store=EIGHT))


def test_what_was_trained_on_8_bits_is_certified_and_forgets(extracted, tmp_path):
    path = shutil.copytree(extracted, tmp_path / "store")
    with open_store(path) as store:
        assert taftcache.train(store).trained
        taftcache.compose(store)
        sample = store.shards[0].sample_ids[3]
        assert taftcache.forget(store, [sample], mode="retrain").certificates
    assert taftcache.audit(path).findings == []
    rest = shutil.copytree(extracted, tmp_path / "never")
    with FeatureStore(rest, mode="a") as store:
        with store.transaction() as change:
            change.erase([sample])
        taftcache.train(store)
        taftcache.compose(store)
    assert tree(path, but=MEMORY) == tree(rest, but=MEMORY)


def test_vectors_in_8_bits_grow_as_they_are_made_at_once(tmp_path):
    settings, whole, grown = [*SMALL, "store.dtype=int8"], tmp_path / "a" / "store", tmp_path / "b" / "store"
    taftcache.import_vectors(vectors(), LABELS, whole, ids=IDS, overrides=settings)
    taftcache.import_vectors(store=grown, overrides=settings, **some(OLD))
    taftcache.append_vectors(store=grown, **some(LATER))
    assert tree(grown) == tree(whole)
    assert taftcache.append_vectors(vectors(), LABELS, grown, ids=IDS).known == len(IDS)
