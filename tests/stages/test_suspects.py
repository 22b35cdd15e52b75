"""What is listed as wrong, against what is computed from the rows in another way; and what is refused."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import taftcache
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import SolveError, StoreError
from taftcache.objective.problem import Problem
from taftcache.solve.choosing import choose_ridge
from taftcache.solve.head.choice import path_of
from taftcache.stages.look import duplicates as twins
from taftcache.stages.look import outliers as far
from taftcache.stages.look import suspects as judging
from taftcache.stages.look.probe import untouched_base
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.look.vectors import mean_vectors
from taftcache.stages.progress import Silent
from taftcache.stages.train.record import settings_of
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.stages.making import open_store, recipe


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Path:
    """Sixty digits in three trained shards and a held-out one. Not to be written to."""
    path = tmp_path_factory.mktemp("three") / "store"
    taftcache.run(recipe(path, store={"shards": 3}, tangent={"train": "head"}))
    return path


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> Path:
    """Thirty digits in one shard without a component. Not to be written to."""
    path = tmp_path_factory.mktemp("untrained") / "store"
    taftcache.extract(recipe(path, store={"shards": 1}, data={"source": "digits", "limit": 30}))
    return path


def margins(logits: np.ndarray, labels: np.ndarray) -> list[float]:
    return [z[k] - np.delete(z, k).max() for z, k in zip(logits, labels, strict=True)]


@pytest.mark.law("A label is judged by components that did not see its row")
def test_rows_are_judged_by_the_other_shards(three):
    with FeatureStore(three) as store:
        report, scorer, expected = taftcache.suspects(store, top=1000), Scorer(store), {}
        for shard in store.shards:
            others = [f"components/{s.name}" for s in store.shards if s.name != shard.name]
            z, changes = scorer.logits(shard.tokens(slice(0, shard.rows)), others)
            logits = z + changes.mean(0)
            for name, k, says, margin in zip(
                shard.sample_ids, shard.labels, logits.argmax(1), margins(logits, shard.labels), strict=True
            ):
                expected[name] = (store.classes[k], store.classes[says], pytest.approx(margin, abs=1e-4), shard.name)
    assert {s.sample: (s.label, s.says, s.margin, s.shard) for s in report.suspects} == expected
    assert [s.margin for s in report.suspects] == sorted(s.margin for s in report.suspects)
    assert report.disagreeing == sum(s.says != s.label for s in report.suspects)
    assert report.rows == len(expected)
    assert "other shards" in report.method


def test_shards_of_few_classes_are_named(three, monkeypatch):
    with FeatureStore(three) as store:
        assert not [note for note in taftcache.suspects(store).notes if "shards" in note or "not judged" in note]
        few = {"000": 10, "001": 1, "002": 4}
        monkeypatch.setattr(
            Shard, "statistics", property(lambda shard: {"rows_per_class": dict.fromkeys(range(few[shard.name]), 1)})
        )
        unseen, note, *_ = taftcache.suspects(store).notes
    assert note.startswith("shards with less than half of the 10 classes")
    assert note.endswith(": 001 (1), 002 (4)")
    assert "6 rows of 6 classes in one shard alone" in unseen
    assert unseen.endswith(": 4, 5, 6, 7, 8 and 1 more")


def test_rows_of_classes_that_no_judge_has_seen_are_not_judged(tmp_path):
    """A row alone in its class is suspect whatever it shows, and so are rows of a class that one shard has: these
    filled the list, and counted as disagreeing."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 4)), np.arange(60) % 3
    x[np.arange(60), y] += 20
    y[0] = 3
    path = tmp_path / "s"
    taftcache.import_vectors(x, y, path, scaling="none", overrides=["store.shards=2", "data.held_out=0"])
    said = "not judged, for no judge has seen another such row: 1 row of 1 class"
    report = taftcache.suspects(path, top=100)
    assert report.notes == [f"{said} of a single row: 3"]
    assert len(report.suspects) == report.rows == 59
    taftcache.train(path)
    report = taftcache.suspects(path, top=100)
    assert "other shards" in report.method
    assert report.notes == [f"{said} in one shard alone: 3"]
    assert (len(report.suspects), report.rows, report.disagreeing) == (59, 59, 0)


def test_classes_whose_rows_mostly_get_another_are_named(tmp_path):
    """All rows of a rare class were listed as wrong, and nothing said that its judge may not know it."""
    rng, path = np.random.default_rng(0), tmp_path / "s"
    x, y = rng.standard_normal((200, 4)), np.repeat(["crab", "other"], [10, 190])
    x[y == "crab", 0] += 1
    taftcache.import_vectors(x, y, path, overrides=["store.shards=1", "data.held_out=0"])
    report = taftcache.suspects(path)
    assert {s.label for s in report.suspects[:10]} == {"crab"}
    (note,) = report.notes
    crab = "either most of these labels are wrong, or the judge does not know it: crab (10 of 10 rows, 5.0 % of all)"
    assert note == (
        f"most rows of 1 class get another class than their label; {crab}; "
        'objective.class_weights = "balanced" weighs rare classes up'
    )
    taftcache.train(path, overrides=["objective.class_weights=[1,1]"])
    (note,) = taftcache.suspects(path).notes
    assert note.endswith("of all)"), "classes have weights already"


def test_most_rows_are_more_than_half_and_three_or_all():
    labels = np.repeat(np.arange(6), [2, 3, 4, 6, 1, 2])
    differs = np.array([*"11", *"110", *"1110", *"111000", *"1", *"00"]) == "1"
    (note,) = judging._unknown("abcdef", labels, differs, [4], alike=True)
    assert note.endswith(": a (2 of 2 rows, 11.1 % of all), c (3 of 4 rows, 22.2 % of all)"), "none is rare"
    assert judging._unknown("abcdef", labels, differs & (labels > 2), [4], alike=True) == []


def test_a_margin_is_over_the_best_other_class():
    logits = torch.tensor([[-3.0, -1.0, -2.0], [-3.0, -1.0, -2.0], [5.0, 4.0, 1.0]])
    says, found = judging._judged(logits, torch.tensor([0, 1, 1]))
    assert (says.tolist(), found.tolist()) == ([1, 1, 0], [-2.0, 1.0, -1.0])


def test_a_subtracted_shard_judges_nobody(three, tmp_path):
    path = shutil.copytree(three, tmp_path / "store")
    with open_store(path) as store:
        with store.transaction() as change:
            change.update(plan={**store.manifest.plan, "subtracted": ["002"]})
        report, scorer, shard = taftcache.suspects(store, top=1000), Scorer(store), store.shard("000")
        z, changes = scorer.logits(shard.tokens(slice(0, shard.rows)), ["components/001"])
    found = {s.sample: s.margin for s in report.suspects}
    assert [found[name] for name in shard.sample_ids] == pytest.approx(margins(z + changes[0], shard.labels), abs=1e-4)


@pytest.mark.law("Leave-one-out is solving without the row")
def test_without_components_a_row_is_judged_by_a_head_solved_without_it(untrained):
    with FeatureStore(untrained) as store:
        report, (shard,) = taftcache.suspects(store, top=1000), store.shards
        found, made = {s.sample: s.margin for s in report.suspects}, settings_of(store)
        base, objective = untouched_base(store, made), made.objective(store.shards, "head")
        ridge = choose_ridge(base, [shard], objective, arithmetic=made.arithmetic).ridge
        assert f"leave-one-out, λ = {ridge:.1e}" in report.method
        tokens, labels = shard.tokens(slice(0, shard.rows)), np.asarray(shard.labels)
        places = [n for n, name in enumerate(shard.sample_ids) if name in found]
        for n in (places[0], places[len(places) // 2], places[-1]):
            keep = np.arange(shard.rows) != n
            operator = TangentOperator(
                base, [ArrayRows(tokens[keep], labels[keep])], trained=base.head_layout, dtype=torch.float64
            )
            head = path_of(Problem.of(objective, operator)).weights(ridge)
            row = TangentOperator(base, [ArrayRows(tokens[[n]], labels[[n]])], dtype=torch.float64)
            ((state, _),) = row.blocks()
            z = state.logits + torch.cat([state.feature, state.feature.new_ones(1, 1)], 1) @ head.T
            (margin,) = margins(z.numpy(), labels[[n]])
            assert found[shard.sample_ids[n]] == pytest.approx(margin, abs=1e-5)


@pytest.mark.parametrize(
    ("objective", "error"), [({"loss": "cross_entropy"}, "square loss"), ({"radius": 1.0}, "square loss")]
)
def test_where_nobody_can_judge_that_is_said(untrained, tmp_path, monkeypatch, objective, error):
    with FeatureStore(untrained) as store:
        made = settings_of(store)
        asked = replace(made, recipe=recipe(untrained, objective=objective))
        monkeypatch.setattr("taftcache.stages.look.suspects.settings_of", lambda store: asked)
        with pytest.raises(SolveError, match=error):
            taftcache.suspects(store)


def test_a_row_alone_is_judged_by_nobody(tmp_path):
    """Rounding was said to be larger than its ridge."""
    x, how = np.random.default_rng(0).normal(size=(6, 4)), ["data.held_out=0.5", "store.shards=1"]
    taftcache.import_vectors(x, np.arange(6) % 2, tmp_path / "s", scaling="none", overrides=how)
    with FeatureStore(tmp_path / "s") as store:
        _, *others = store.shards[0].sample_ids
    taftcache.forget(tmp_path / "s", others)
    with pytest.raises(StoreError, match=r"(?s)no label can be judged.*no class with two rows"):
        taftcache.suspects(tmp_path / "s")


def test_a_private_component_alone_is_not_gone_round(trained, tmp_path):
    path = shutil.copytree(trained, tmp_path / "store")
    with open_store(path) as store:
        assert "does not cover" in taftcache.suspects(store).notes[0]
        with store.transaction() as change:
            change.drop("components/000")
        with pytest.raises(StoreError, match="without noise"):
            taftcache.suspects(store)
        for look in (taftcache.duplicates, taftcache.outliers):
            assert "components/001" in look(store).notes[0]


@pytest.mark.parametrize("block", [7, 2048])
def test_pairs_are_those_of_plain_distances(finished, monkeypatch, block):
    monkeypatch.setattr(twins, "BLOCK", block)
    with FeatureStore(finished) as store:
        table = RowTable.of(store)
        rows = mean_vectors(table, Silent()).astype(np.float64)
        report = taftcache.duplicates(store, top=10_000, threshold=0.5)
        few = taftcache.duplicates(store, top=2, threshold=0.5)
    squares = np.square(rows[:, None] - rows).sum(2)
    similarity, held = 1 - squares / squares.mean(), table.held_out
    for found, kind, shorter in (
        (report.leaks, held[:, None] != held, few.leaks),
        (report.pairs, held[:, None] == held, few.pairs),
    ):
        expected = {(table.ids[i], table.ids[j]) for i, j in np.argwhere((similarity >= 0.5) & kind) if i < j}
        assert {pair.samples for pair in found} == expected
        assert [p.similarity for p in found] == sorted((p.similarity for p in found), reverse=True)
        assert shorter == found[:2]
        for pair in found:
            i, j = (table.places[name] for name in pair.samples)
            assert pair.similarity == pytest.approx(similarity[i, j], abs=1e-4)
            assert pair.roles == tuple("held-out" if held[n] else "train" for n in (i, j))
            assert pair.shards == tuple(table.shards[table.shard[n]].name for n in (i, j))
    assert (few.leaks_found, few.pairs_found) == (len(report.leaks), len(report.pairs))
    leaks, pairs = (sum(p.labels[0] != p.labels[1] for p in found) for found in (report.leaks, report.pairs))
    assert 1 < leaks < pairs
    assert few.notes == [f"with two different labels: {leaks} leaks, {pairs} pairs"]
    assert few.leaks_found > 2


@pytest.mark.parametrize("vectors", [np.ones((3, 4)), np.eye(4)[[0, 1, 1, 2]], np.zeros((2, 3)), np.empty((0, 3))])
def test_copies_are_found_wherever_they_lie(vectors):
    """Also where all rows are the same."""
    found = [
        pair
        for i, j, _ in twins._reaching(twins._scaled(vectors.astype(np.float32)), 1.0, Silent())
        for pair in zip(i.tolist(), j.tolist(), strict=True)
    ]
    n = len(vectors)
    assert found == [(i, j) for i in range(n) for j in range(i + 1, n) if (vectors[i] == vectors[j]).all()]


def test_comparing_holds_the_vectors_once(monkeypatch):
    """50,000 of 4,608 numbers, 0.9 GB, took 3.8."""
    monkeypatch.setattr(twins, "BLOCK", 16)
    vectors = np.random.default_rng(0).standard_normal((2048, 256)).astype(np.float32)
    tracemalloc.start()
    found = sum(len(i) for i, _, _ in twins._reaching(twins._scaled(vectors), 0.99, Silent()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == 0
    assert peak < 0.2 * vectors.nbytes


@pytest.mark.parametrize("many", [1, 2, 5])
def test_rows_beside_which_all_others_look_alike_are_named(tmp_path, capsys, many):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((120, 16)), np.arange(120) % 3
    notes = []
    for far_out in (1, 1e4):
        x[5 : 5 + many] *= far_out
        path = tmp_path / f"{far_out:g}"
        taftcache.import_vectors(x, y, path, scaling="none", overrides=["store.dtype=float32", "data.held_out=0"])
        found = taftcache.duplicates(path)
        assert (found.pairs_found > 0) == (len(found.notes) > 0)
        notes += [note for note in found.notes if "two different labels" not in note]
    assert len(notes) == 1
    farthest = f"rows/{np.square(x - x.mean(0)).sum(1).argmax():08d}"
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(path), "--duplicates", "--top", "1"])
    assert f"rows far out, {farthest} the farthest" in " ".join(capsys.readouterr().out.split())


def test_copies_are_no_rows_beside_others_far_out(tmp_path):
    x = np.repeat(np.eye(8)[:2], [110, 10], axis=0)
    taftcache.import_vectors(x, np.arange(120) % 3, tmp_path / "s", scaling="none", overrides=["data.held_out=0"])
    found = taftcache.duplicates(tmp_path / "s")
    assert (found.pairs_found, found.notes) == (110 * 109 // 2 + 45, ["with two different labels: 4066 pairs"])


@pytest.mark.parametrize("step", [5, 4096])
def test_outliers_are_those_of_plain_distances(finished, monkeypatch, step):
    monkeypatch.setattr(far, "STEP", step)
    monkeypatch.setattr(far, "NEIGHBOUR", 3)
    with FeatureStore(finished) as store:
        table = RowTable.of(store)
        x = mean_vectors(table, Silent()).astype(np.float64)
        report = taftcache.outliers(store, top=1000)
    train = np.flatnonzero(~table.held_out)
    all_distances = np.linalg.norm(x[:, None] - x, axis=2)
    np.fill_diagonal(all_distances, np.inf)
    third = np.sort(all_distances[:, train], axis=1)[:, 2]
    whole = np.median(third[train])
    assert len(report.outliers) == len(table)
    for o in report.outliers:
        n = table.places[o.sample]
        assert o.distance == pytest.approx(third[n], rel=1e-3)
        others = third[[k for k in train if k != n and table.label[k] == table.label[n]]]
        assert o.times == pytest.approx(third[n] / (np.median(others) if len(others) else whole), rel=2e-3)
        assert (o.role == "held-out") == table.held_out[n]
    assert [o.times for o in report.outliers] == sorted((o.times for o in report.outliers), reverse=True)


@pytest.mark.parametrize("alone", [1, 2, 3])
def test_an_outlier_of_a_small_class_stands_out(tmp_path, alone):
    """Alone in its class it was one of its own medians, as usual as could be; beside a row or two hardly less."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((120, 4)), np.arange(120) % 3
    y[:alone], x[0] = 3, 50
    taftcache.import_vectors(x, y, tmp_path / "s", scaling="none", overrides=["store.shards=2", "data.held_out=0"])
    found = taftcache.outliers(tmp_path / "s", top=3)
    assert found.outliers[0].sample.endswith("00000000")
    assert found.outliers[0].times > 20
    assert found.outliers[1].times < 5


def test_many_copies_leave_distances_finite():
    copies = np.zeros((6, 2), np.float32)
    np.testing.assert_array_equal(far._distances(copies, 6, 3, Silent()), np.zeros(6))
    found = far._relative(np.zeros(6), np.zeros(6, np.int32), np.ones(6, bool))
    np.testing.assert_array_equal(found, np.zeros(6))


@pytest.mark.parametrize("what", ["suspects", "duplicates", "outliers"])
def test_the_command_lists_what_the_function_finds(three, capsys, what):
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(three), f"--{what}", "--top", "3", "--json"])
    printed = json.loads(capsys.readouterr().out)
    with FeatureStore(three) as store:
        found = getattr(taftcache, what)(store, top=3)
    assert printed["rows"] == found.rows
    key = {"duplicates": "pairs"}.get(what, what)
    assert len(printed[key]) == len(getattr(found, key)) <= 3
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(three), f"--{what}", "--top", "3"])
    out = capsys.readouterr().out
    listed = getattr(found, key)
    assert all((row.samples[0] if what == "duplicates" else row.sample) in out for row in listed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--suspects", "--outliers"], "cannot be combined"),
        (["--suspects", "--ids"], "cannot be combined"),
        (["--outliers", "--threshold", "0.9"], "only for --duplicates"),
        (["--top", "3"], "nothing to list"),
        (["--duplicates", "--threshold", "1.5"], "not a similarity"),
    ],
)
def test_options_that_mean_nothing_together(three, capsys, options, said):
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", str(three), *options])
    assert said in capsys.readouterr().err
