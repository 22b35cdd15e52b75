"""Many classes of few rows each, as in a gallery of faces or products: what is said of them is true, and of use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.meta import ComponentMeta, meta_of
from taftcache.names import PRIVATE
from taftcache.solve.solution import Certificate, Status
from taftcache.stages.extract.plan import shards_for
from taftcache.stages.look.evaluation import _few_rows, _uneven
from taftcache.stages.train.solving import ridge_notes, unfinished

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
        end, blind = report.notes
        assert end.startswith(f"λ of {names} is the largest that was tried")
        assert blind.startswith(f"λ of {names} was chosen by the loss alone: left out, no row was right")


@pytest.mark.parametrize(
    ("right", "end", "said"),
    [
        ([0.0, 0.5], "least", ["is the least that was tried"]),
        ([0.0, 0.5], None, []),
        ([0.0, 0.0], None, ["was chosen by the loss alone"]),
        ([0.0, 0.0], "largest", ["is the largest that was tried", "was chosen by the loss alone"]),
    ],
)
def test_what_is_said_of_a_chosen_ridge(right, end, said):
    chosen = ComponentMeta(ridge_choice={"end": end, "curve": [{"accuracy": share} for share in right]})
    notes = ridge_notes({"a": chosen, "b": ComponentMeta()})
    assert [note.startswith(f"λ of a {begin}") for note, begin in zip(notes, said, strict=True)] == [True] * len(said)


def test_where_each_class_has_a_row_there_are_no_suspects(gallery):
    """All rows were given another class, said the headline."""
    with pytest.raises(StoreError, match=r"(?s)no label can be judged.*no class with rows in two shards"):
        taftcache.suspects(gallery)


def test_an_import_says_which_classes_it_holds_out_whole_and_how_not_to(tmp_path):
    """Only an evaluation said it, after training."""
    labels = np.repeat(np.arange(K), 1 + np.arange(K) % 2)
    report = taftcache.import_vectors(*vectors(labels), tmp_path / "s")
    (note,) = report.notes
    assert "of 24 classes held out without a training row, which cannot be learned: person" in note
    assert note.endswith("; in a new store, --test FILE or --set data.held_out=0 leaves all rows to train on")
    assert taftcache.import_vectors(*vectors(labels), tmp_path / "s").notes == [note], "again"
    alone = taftcache.import_vectors(*vectors(labels), tmp_path / "t", overrides=["data.held_out=0"])
    assert (alone.notes, alone.shards) == ([], {"000": 36})


@pytest.mark.parametrize(
    ("rows", "classes", "shards"), [(100, 10, 1), (199, 2, 1), (200, 2, 2), (400, 40, 3), (500, 300, 1), (9999, 2, 10)]
)
def test_shards_are_as_many_as_rows_and_classes_suggest(rows, classes, shards):
    assert shards_for(rows, classes, rows) == shards
    assert shards_for(rows, classes, 25) == min(2, shards)


def test_an_import_counts_rows_and_classes_unless_it_is_told(tmp_path):
    """Single rows of 500 classes were split into four shards all the same."""
    rows = np.arange(300)

    def made(name: str, classes: int, **more: Any) -> int:
        """How many shards for training there are."""
        report = taftcache.import_vectors(*vectors(rows % classes), tmp_path / name, **more)
        return len(report.shards.keys() - {"held-out"})

    assert made("a", 4) == 2, "a fifth is held out"
    assert made("b", 4, overrides={"data.held_out": 0}) == 3
    assert made("c", 4, test=vectors(np.arange(8) % 4)) == 3
    assert made("d", 24) == 2
    assert made("e", 4, overrides=["store.shards=5"]) == 5
    assert made("e", 4) == 5, "what is there stays"
    np.savez(tmp_path / "f.npz", x=vectors(rows % 4)[0], labels=rows % 4)
    assert {*taftcache.import_(tmp_path / "f.npz", tmp_path / "f").shards} == {"000", "001", "held-out"}


def test_what_may_help_is_named_where_the_probe_is_ahead(tmp_path, monkeypatch):
    """``evaluate`` said that the model loses, and no more."""
    labels = np.repeat(np.arange(K), 1 + np.arange(K) % 3 * 4)
    path = tmp_path / "s"
    test = vectors(np.arange(200) % K)
    taftcache.import_vectors(*vectors(labels), path, test=test, overrides={"data.held_out": 0})
    behind, best = SimpleNamespace(verdict="behind"), SimpleNamespace(rows=1, of=1, calibration=None)
    monkeypatch.setattr("taftcache.stages.look.evaluation.linear_probe", lambda *_: (best, np.ones(200, bool)))
    weights, loss = "--set objective.class_weights=balanced", "--set objective.loss=cross_entropy"
    with FeatureStore(path, mode="a") as store:
        assert _few_rows(store, None) == _few_rows(store, SimpleNamespace(verdict="within noise")) == []
        (note,) = _few_rows(store, behind)
        assert "classes have 1 to 9 training rows" in note
        assert note.endswith(f"next: taftcache train {path} {weights}, or with {loss}")
        taftcache.train(store)
        taftcache.compose(store)
        assert taftcache.evaluate(store, probe=True).notes == [note]
        taftcache.train(store, overrides={"objective.class_weights": "balanced"})
        assert _few_rows(store, behind)[0].endswith(f"train {path} {loss}")
        taftcache.train(store, overrides={"objective.loss": "cross_entropy"})
        assert _few_rows(store, behind) == []


def test_of_equal_classes_no_weights_are_advised(gallery):
    with FeatureStore(gallery) as store:
        assert _few_rows(store, SimpleNamespace(verdict="behind")) == []
        wrong = {"models/exact": np.zeros(store.held_out.rows, bool)}
        (note,) = _uneven(store, store.held_out, wrong)
    assert "no fewer than models/exact" in note
    assert "next:" not in note


def test_a_private_model_that_learned_next_to_nothing_is_named(gallery):
    """It was right on a few rows more than the commonest class has, and nothing was said."""
    rows = SimpleNamespace(labels=np.arange(480) % K, rows=480)
    right = {count: {"models/mean": np.arange(480) < count} for count in (20, 29, 30)}
    objects = {"models/mean": SimpleNamespace(meta={PRIVATE: {}})}
    with FeatureStore(gallery) as store:
        assert "no fewer than models/mean; balanced" in _uneven(store, rows, right[20])[0]
        (note,) = _uneven(store, rows, right[29])
        assert "hardly fewer than models/mean; balanced" in note
        assert "noise" not in note
        assert _uneven(store, rows, right[30]) == []
        (note,) = _uneven(SimpleNamespace(classes=store.classes, objects=lambda: objects), rows, right[29])
    assert note.endswith("learned next to nothing: it takes more rows of each class, or a larger privacy.epsilon")


def test_a_solve_that_stands_still_is_not_told_to_take_more_passes():
    status = Status.max_passes.value

    def note(curve: list[list[float]], moves: float | None = 1.0) -> str:
        given = Certificate(gradient=1e-3, gradient_at_zero=1.0, ridge=1e-5, objective=0.1, rows=93)
        said = {"converged": False, "status": status, "convergence": curve, "certificate": given.as_dict()}
        (found,) = unfinished({"models/exact": meta_of({**said, "stats": {"row_moves": moves}})})
        return found

    falling, still = ([[k, 0.5 ** (k * fall)] for k in range(100)] for fall in (1, 1e-3))
    assert status in note(falling)
    assert status not in note(still)
    assert "more of them would not help" in note(still)
    assert "decisive" not in note(still)
    assert "nothing says that the certificate is decisive" in note(still, None)
