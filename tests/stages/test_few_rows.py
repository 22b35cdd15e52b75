"""Many classes of few rows each, as in a gallery of faces or products: what is said of them is true, and of use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.errors import StoreError
from taftcache.model.meta import ComponentMeta
from taftcache.stages.train.solving import ridge_notes

K, D = 24, 12
CENTRES = np.random.default_rng(0).normal(size=(K, D))


def vectors(labels: np.ndarray, noise: float = 0.3) -> tuple[np.ndarray, list[str]]:
    """A row near its class's centre for each label, and the names of their classes."""
    x = CENTRES[labels] + noise * np.random.default_rng(len(labels)).normal(size=(len(labels), D))
    return x, [f"person {k:02}" for k in labels]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory) -> Path:
    """One row of each class, and 48 others held out; trained. Not to be written to."""
    path = tmp_path_factory.mktemp("gallery") / "s"
    test = vectors(np.arange(2 * K) % K)
    report = taftcache.import_vectors(*vectors(np.arange(K)), path, test=test, overrides=["store.shards=2"])
    said = "so no other sample can check what is learned of it"
    assert report.notes == [f"{K} of {K} samples have a class of their own, {said}"], "names are no values"
    taftcache.train(path)
    taftcache.compose(path)
    return path


def test_of_single_rows_much_is_learned(gallery):
    """It was said that nothing could be."""
    assert taftcache.evaluate(gallery).accuracy["models/exact"] > 0.8


def test_single_rows_choose_no_ridge_and_all_models_are_named(gallery):
    """Only shards' components were named, and that λ lay at an end of those tried."""
    for report, names in (
        (taftcache.train(gallery), "components/000, components/001"),
        (taftcache.compose(gallery), "models/exact"),
    ):
        (note,) = report.notes
        assert note.startswith(f"λ of {names} could not be chosen from the rows: left out, none was right")


@pytest.mark.parametrize(
    ("right", "end", "said"),
    [([0.0, 0.5], "least", "λ of a is the least that was tried"), ([0.0, 0.5], None, ""), ([0.0, 0.0], None, "λ of a")],
)
def test_what_is_said_of_a_chosen_ridge(right, end, said):
    chosen = ComponentMeta(ridge_choice={"end": end, "curve": [{"accuracy": share} for share in right]})
    notes = ridge_notes({"a": chosen, "b": ComponentMeta()})
    assert [note.startswith(said) for note in notes] == [True] * bool(said)


def test_where_each_class_has_a_row_there_are_no_suspects(gallery):
    """All rows were given another class, said the headline."""
    with pytest.raises(StoreError, match=r"(?s)no label can be judged.*no class with rows in two shards"):
        taftcache.suspects(gallery)
