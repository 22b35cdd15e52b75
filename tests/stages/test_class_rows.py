"""Sums of heads whose members have rows of different classes: each class weighed by the members' rows of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import taftcache
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import CompositionError, IntegrityError, RecipeError, StoreUnreachable
from taftcache.model.component import Component, StoredComponents, put_component, read_component
from taftcache.model.composition import compose
from taftcache.model.meta import TRAINED_ON, meta_of
from taftcache.model.outdated import composition_key
from taftcache.names import MEAN, WEIGHTED
from taftcache.recipe import parse_recipe
from taftcache.stages.audit import models
from taftcache.stages.look.evaluation import certified_distance
from taftcache.stages.train.checks import check_fit
from taftcache.stages.train.compositions import composed, proof_rows, shares_of
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.trained_on import class_rows, said_rows
from taftcache.tangent.parameters import Layout
from tests.stages.forging import forge_meta
from tests.stages.making import commits, open_store, said_of_the_sum, settings

K, WIDTH = 4, 6
PARTS = ["components/000", "components/001", "components/002"]
# Rows by shard and class: only 000 has class 3, and 002 only classes 0 and 1; nobody lacks all of its classes.
ROWS = np.array([[6, 6, 6, 12], [8, 9, 10, 0], [1, 9, 0, 0]])
BY_CLASS = {"compose.mode": "weighted", "compose.weights": "class-rows"}


def rows_of(seed: int, counts: np.ndarray) -> tuple[np.ndarray, list[str], list[str]]:
    """Vectors around a centre for each class, so many of each; their classes and ids."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(K), counts)
    centres = 2 * np.random.default_rng(9).standard_normal((K, WIDTH))
    x = centres[labels] + rng.standard_normal((len(labels), WIDTH))
    return x, [str(k) for k in labels], [f"{seed}/{k}/{n}" for n, k in enumerate(labels)]


def make(path: Path, rows: np.ndarray = ROWS, without: str = "") -> Path:
    """A store of one shard for each row of ``rows``, trained; ``without`` an id that it never sees."""
    for seed, counts in enumerate(rows):
        x, y, ids = rows_of(seed, counts)
        keep = [k for k, name in enumerate(ids) if name != without]
        x, y, ids = x[keep], [y[k] for k in keep], [ids[k] for k in keep]
        if seed:
            taftcache.append_vectors(x, y, path, ids=ids, new_shard=True)
        else:
            asked = {"store.shards": 1, "objective.ridge": 1e-2, "store.dtype": "float32", "compose.mode": "mean"}
            taftcache.import_vectors(x, y, path, ids=ids, test=rows_of(7, np.full(K, 30)), overrides=asked)
    taftcache.train(path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("sites") / "store")


@pytest.fixture
def path(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "store")


def coefficients(path: Path) -> np.ndarray:
    """Those of models/weighted [members, K]."""
    with FeatureStore(path) as store:
        said = store.objects()[WEIGHTED].meta["coefficients"]
    return np.array([said[name] for name in sorted(said)])


@pytest.mark.law("A sum of heads gives each class the members' shares of its rows, and their logits that weighted mean")
def test_each_logit_is_the_mean_of_the_members_weighed_by_their_rows_of_the_class(path):
    report = taftcache.compose(path, overrides=BY_CLASS)
    shares = ROWS / ROWS.sum(0)
    assert np.array([report.coefficients[name] for name in PARTS]) == pytest.approx(shares)
    assert report.identity_error < 1e-12
    with FeatureStore(path) as store:
        base, names = settings_of(store).base, [*PARTS, WEIGHTED]
        x = torch.tensor(store.held_out.tokens(slice(0, 50)))[:, 0].double()
        views = [base.head_layout.views(read_component(store, name, base).delta) for name in names]
        logits = [x @ view["head.weight"].T + view["head.bias"] for view in views]
        expected = sum(torch.from_numpy(c) * z for c, z in zip(shares, logits[:-1], strict=True))
        assert torch.allclose(logits[-1], expected, rtol=1e-12, atol=1e-12)
    assert taftcache.audit(path).findings == []
    root = taftcache.inspect(path).root_digest
    assert not taftcache.compose(path).changed
    assert taftcache.inspect(path).root_digest == root


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_the_shares_of_every_class_sum_to_one(members, classes, data):
    """Of a class without a row, too: there they are shares of all rows."""
    counts = st.lists(st.integers(0, 3), min_size=classes, max_size=classes).filter(any)
    rows = {str(n): data.draw(counts) for n in range(members)}
    shares = np.array([*shares_of(rows).values()])
    assert shares.sum(0) == pytest.approx(1)
    table = np.array([*rows.values()])
    has = table.sum(0) > 0
    assert shares[:, has] == pytest.approx(table[:, has] / table[:, has].sum(0))
    assert shares[:, ~has] == pytest.approx(np.repeat(table.sum(1)[:, None] / table.sum(), (~has).sum(), 1))


def test_a_class_that_one_member_has_is_not_held_down_and_the_note_says_how(path, capsys):
    report = taftcache.compose(path)
    (note,) = report.notes
    assert note.startswith("class 2: no rows in 002; class 3: no rows in 001, 002; the sum holds such a class down")
    tried = note.partition("; try weighing each class by its own rows: ")[2]
    before = right_of(path, MEAN)
    with pytest.raises(SystemExit):
        main(tried.split()[1:])
    first, *_ = (said := capsys.readouterr().out).splitlines()
    assert first.startswith("models/weighted written: sum of 3 components, each class by its own rows, identity")
    assert "no rows in" not in said
    after = right_of(path, WEIGHTED)
    assert after[3] > before[3] + 0.2
    assert after.mean() > before.mean()
    taftcache.compose(path, overrides={"compose.mode": "exact"})
    assert taftcache.compose(path, overrides={"compose.mode": "exact"}).notes == []


def right_of(path: Path, model: str) -> np.ndarray:
    """The share of each class's held-out rows that a model gets right [K]."""
    with FeatureStore(path) as store:
        shard = store.held_out
        right = taftcache.logits(store, shard, model=model).argmax(1) == shard.labels
        return np.array([right[shard.labels == k].mean() for k in range(K)])


@pytest.mark.parametrize("mode", ["retrain", "subtract"])
def test_the_shares_follow_what_is_forgotten(path, tmp_path, mode):
    """Also when the only row of a class leaves a shard; and the store is then one that never had it."""
    taftcache.compose(path, overrides=BY_CLASS)
    (single,) = [name for name in rows_of(2, ROWS[2])[2] if name.startswith("2/0/")]
    with open_store(path) as store:
        report = taftcache.forget(store, [single], mode=mode)
    assert {MEAN, WEIGHTED} <= set(report.renewed)
    left = ROWS - np.array([[0] * K, [0] * K, [1, 0, 0, 0]]) if mode == "retrain" else ROWS[:2]
    assert coefficients(path) == pytest.approx(left / left.sum(0))
    assert (taftcache.audit(path).findings, not taftcache.compose(path).changed) == ([], True)
    if mode == "retrain":
        never = make(tmp_path / "never", without=single)
        taftcache.compose(never, overrides=BY_CLASS)
        assert commits(path)["objects"] == commits(never)["objects"]


def test_the_shares_follow_a_class_that_leaves(path):
    taftcache.compose(path, overrides=BY_CLASS)
    gone = [i for seed in range(3) for i in rows_of(seed, ROWS[seed])[2] if "/2/" in i]
    with open_store(path) as store:
        held = [i for i in store.held_out.sample_ids if "/2/" in i]
        assert taftcache.forget(store, [*gone, *held]).classes == ["2"]
    left = np.delete(ROWS, 2, 1)
    assert coefficients(path) == pytest.approx(left / left.sum(0))
    assert taftcache.audit(path).findings == []


def test_a_shard_whose_rows_changed_is_trained_first(path):
    taftcache.compose(path, overrides=BY_CLASS)
    x, y, ids = rows_of(5, np.array([0, 0, 5, 0]))
    taftcache.append_vectors(x, y, path, ids=ids)
    root = taftcache.inspect(path).root_digest
    with pytest.raises(RecipeError, match="no weights by class-rows: a component does not say") as refused:
        taftcache.compose(path)
    assert refused.value.do.startswith("taftcache train, if rows came or left since")
    assert taftcache.inspect(path).root_digest == root
    taftcache.train(path)
    taftcache.compose(path)
    with FeatureStore(path) as store:
        now = np.array([np.bincount(shard.labels, minlength=K) for shard in store.shards])
    assert now.sum() == ROWS.sum() + 5
    assert coefficients(path) == pytest.approx(now / now.sum(0))


def grown(path: Path, weights: str, new_shards: int = 0) -> Path:
    """A store with a sum of two shards, to each of which rows came since; and with so many further shards."""
    for seed in range(2 + new_shards):
        x, y, ids = rows_of(seed, np.full(K, 8))
        if seed:
            taftcache.append_vectors(x, y, path, ids=ids, new_shard=seed > 1)
        else:
            asked = {"store.shards": 2, "objective.ridge": 1e-2, "data.held_out": 0.2}
            taftcache.import_vectors(x, y, path, ids=ids, overrides=asked)
            taftcache.train(path)
            with FeatureStore(path) as store:
                before = [shard.rows for shard in store.shards]
            taftcache.compose(path, overrides={**BY_CLASS, "compose.weights": weights})
    with FeatureStore(path) as store:
        assert all(shard.rows > rows for shard, rows in zip(store.shards, before, strict=False))
    return path


def first_of(path: Path, shard: str) -> str:
    with FeatureStore(path) as store:
        return store.shard(shard).sample_ids[0]


def test_no_member_is_left_out_because_its_shard_grew(tmp_path):
    """The sum became one of the shard alone that lost a row, and the recipe one by rows, without a word."""
    path = grown(tmp_path / "store", "class-rows")
    sample = first_of(path, "000")
    (would, *_) = taftcache.forget(path, [sample], dry_run=True).notes
    assert would.startswith(
        "models/weighted would be gone: nothing says how many rows of each class 001 had when trained"
    )
    report = taftcache.forget(path, [sample])
    assert report.destroyed == [WEIGHTED]
    (note,) = [note for note in report.notes if note.startswith("models/weighted is gone")]
    assert note.endswith(f"next: taftcache train {path}, then taftcache compose {path}")
    with FeatureStore(path) as store:
        assert store.manifest.recipe["compose"]["weights"] == "class-rows"
        assert store.objects()[MEAN].meta["members"].keys() == {*PARTS[:2]}
    assert not any(WEIGHTED in note for note in taftcache.forget(path, [first_of(path, "000")]).notes)
    taftcache.train(path)
    taftcache.compose(path)
    with FeatureStore(path) as store:
        now = np.array([np.bincount(shard.labels, minlength=K) for shard in store.shards])
    assert coefficients(path) == pytest.approx(now / now.sum(0))
    assert taftcache.audit(path).findings == []
    by_rows = grown(tmp_path / "rows", "rows")
    assert taftcache.forget(by_rows, [sample]).destroyed == []
    assert len(coefficients(by_rows)) == 2


def test_a_sum_of_nobody_is_not_made(tmp_path):
    """The shard that loses a row is no member of it yet, and nothing says the rows of its members: it was refused."""
    path = grown(tmp_path / "store", "class-rows", new_shards=2)
    taftcache.train(path, shards=["002"])
    report = taftcache.forget(path, [first_of(path, "002")])
    assert report.destroyed == [WEIGHTED]
    assert any("how many rows of each class 000, 001 had when trained" in note for note in report.notes)
    with FeatureStore(path) as store:
        assert store.objects()[MEAN].meta["members"].keys() == {*PARTS[:2]}


def test_a_damaged_shard_is_named(path):
    """By compose, which advised to train; a request to forget changes nothing either."""
    sample = first_of(path, "000")
    taftcache.compose(path, overrides=BY_CLASS)
    with FeatureStore(path) as store:
        (path / store.shard("001").at / "zarr.json").write_bytes(b"{}")
    root = FeatureStore(path).root_digest
    for asked in (lambda: taftcache.compose(path), lambda: taftcache.forget(path, [sample])):
        with pytest.raises(IntegrityError, match="shard 001"):
            asked()
    assert FeatureStore(path).root_digest == root
    assert [(f.kind, f.where) for f in taftcache.audit(path).findings if f.where == WEIGHTED] == [
        ("stale composition", WEIGHTED)
    ]


def test_a_store_that_does_not_answer_says_nothing_of_its_rows(path, tmp_path, monkeypatch):
    """It counted as one that does not say them: a file left without its counts, and a sum without a member."""
    taftcache.compose(path, overrides=BY_CLASS)
    root, sample = FeatureStore(path).root_digest, first_of(path, "000")

    def unreachable(shard):
        if shard.name == "001":
            raise StoreUnreachable("the object store does not answer")
        return own(shard)

    own = Shard.statistics.fget
    monkeypatch.setattr(Shard, "statistics", property(unreachable))
    for asked in (
        lambda: taftcache.compose(path),
        lambda: taftcache.forget(path, [sample]),
        lambda: taftcache.audit(path),
        lambda: taftcache.export_component(path, "001", tmp_path / "one.safetensors"),
    ):
        with pytest.raises(StoreUnreachable):
            asked()
    monkeypatch.undo()
    monkeypatch.setattr(models, "member_rows", lambda *given: unreachable(FeatureStore(path).shard("001")))
    with pytest.raises(StoreUnreachable):
        taftcache.audit(path)
    assert FeatureStore(path).root_digest == root


def replaced(path: Path, change, members=PARTS) -> None:
    """Another models/weighted, as a program may write it: true to its own coefficients, which its key has, too."""
    with open_store(path) as store:
        base, objects = settings_of(store).base, store.objects()
        digests = {name: objects[name].digest for name in members}
        said = change(dict(objects[WEIGHTED].meta["coefficients"]))
        parts = StoredComponents(store, members, base)
        with store.transaction() as write:
            put_component(write, WEIGHTED, composed(parts, digests, base, proof_rows(store.held_out, base), said))


def test_an_audit_counts_the_rows_again(path):
    taftcache.compose(path, overrides=BY_CLASS)
    assert taftcache.audit(path).findings == []
    replaced(path, lambda said: {**said, PARTS[0]: said[PARTS[1]], PARTS[1]: said[PARTS[0]]})
    (found,) = taftcache.audit(path).findings
    assert (found.kind, found.where) == ("stale composition", WEIGHTED)
    assert found.problem == "its coefficients are not its members' shares of the rows of each class"


@pytest.mark.parametrize("forged", [["6", 6, 6, 12], [7, 6, 6, 12], [-6, 12, 12, 12], [0] * K])
def test_an_audit_goes_on_past_counts_that_make_no_sense(path, tmp_path, forged):
    """It ended with an error, where it should have found."""
    file = taftcache.export_component(path, "000", tmp_path / "site.safetensors").file
    taftcache.import_component(path, file, "site")
    taftcache.compose(path, overrides=BY_CLASS)
    name = "components/site"
    forge_meta(path, name, lambda meta: meta | {TRAINED_ON: {**meta[TRAINED_ON], "class_rows": forged}})
    replaced(path, lambda said: said, [*PARTS, name])
    with FeatureStore(path) as store:
        assert said_rows(store, "class-rows", [name]) == {name: None}
    found = [f for f in taftcache.audit(path).findings if f.where == WEIGHTED]
    assert [f.kind for f in found] == ["stale composition"]
    with pytest.raises(RecipeError, match="no weights by the rows of each class"):
        taftcache.compose(path)


def test_no_share_of_nothing():
    """Members that say zero rows of every class say nothing: no sum divides by their number."""
    meta = {"kind": "component", "imported": True, "rows": 0, TRAINED_ON: {"class_rows": [0] * K}}
    assert class_rows(meta, [], K) is None
    assert class_rows({**meta, "rows": 2, TRAINED_ON: {"class_rows": [2, 0, 0, 0]}}, [], K) == [2, 0, 0, 0]


def test_coefficients_of_each_class_stand_once_in_the_manifest(path):
    taftcache.compose(path, overrides=BY_CLASS)
    with FeatureStore(path) as store:
        meta = store.objects()[WEIGHTED].meta
        assert len(meta["coefficients"][PARTS[0]]) == K
        assert len(json.loads(meta["key"])["weights"]) == 64
    (listed,) = [model for model in taftcache.inspect(path).models if model["name"] == WEIGHTED]
    assert listed["coefficients"] == 3


@pytest.mark.parametrize(
    "forged",
    [
        {PARTS[0]: [], PARTS[1]: 0.5, PARTS[2]: 0.5},
        {PARTS[0]: [0.5]},
        {PARTS[0]: [0.5] * (K + 1)},
        {PARTS[0]: [1.0] * K},
        dict.fromkeys(PARTS, [1 / 3] * (K + 1)),
    ],
    ids=["of no class", "of one", "of one more", "a sum of two", "all of one more"],
)
def test_an_audit_names_coefficients_that_make_no_sum(path, forged):
    taftcache.compose(path, overrides=BY_CLASS)

    def change(meta):
        said = meta["coefficients"] | forged
        return {**meta, "coefficients": said, "key": composition_key(meta["members"], said)}

    forge_meta(path, WEIGHTED, change)
    assert [(f.kind, f.where) for f in taftcache.audit(path).findings] == [("stale composition", WEIGHTED)]


def test_a_body_that_classes_share_is_refused(store, capsys):
    root = FeatureStore(store).root_digest
    with pytest.raises(SystemExit):
        main(["compose", str(store), "--weight", "class-rows"])
    said = capsys.readouterr().err
    assert 'compose.weights = "class-rows" is for a head that is trained alone: classes share what is below it' in said
    with pytest.raises(RecipeError, match="for a head that is trained alone"):
        taftcache.run(parse_recipe({"data": {"source": "digits"}, "compose": {"weights": "class-rows"}}))
    assert FeatureStore(store).root_digest == root
    assert not any("--weight class-rows" in note for note in taftcache.compose(store).notes)
    layout = Layout({"norm.weight": (3,), "head.weight": (4, 3), "head.bias": (4,)})
    part = Component("ab", layout, torch.ones(layout.size, dtype=torch.float64))
    with pytest.raises(CompositionError, match="for a head alone"):
        compose({"a": part}, {"a": [1.0] * 4})


def test_a_head_that_globs_select_is_weighed_by_class(store):
    """It was refused for its words. Before extraction, nobody knows what they select."""
    train = {"tangent.train": ["head.*"]}
    check_fit(parse_recipe({"tangent": {"train": ["head.*"]}, "compose": {"weights": "class-rows"}}), 10, [], None)
    taftcache.train(store, overrides=train)
    taftcache.compose(store, overrides=BY_CLASS)
    assert taftcache.audit(store).findings == []
    root = FeatureStore(store).root_digest
    for words in (["head.*", "*.mlp.*"], "full"):
        with pytest.raises(RecipeError, match="for a head that is trained alone"):
            taftcache.train(store, overrides={"tangent.train": words})
    assert FeatureStore(store).root_digest == root


def test_a_component_that_does_not_say_its_rows_of_each_class_is_refused(path, tmp_path):
    file = taftcache.export_component(path, "000", tmp_path / "site.safetensors").file
    taftcache.import_component(path, file, "site")
    taftcache.compose(path, overrides=BY_CLASS)
    both = np.vstack([ROWS, ROWS[:1]])
    assert coefficients(path) == pytest.approx(both / both.sum(0))
    part = Component.decode(file.read_bytes())
    meta = {**part.meta, TRAINED_ON: {k: v for k, v in part.meta[TRAINED_ON].items() if k != "class_rows"}}
    file.write_bytes(replace(part, meta=meta).encode())
    taftcache.import_component(path, file, "unsaid")
    root = taftcache.inspect(path).root_digest
    for refused in (taftcache.compose, taftcache.train):
        with pytest.raises(RecipeError, match="no weights by the rows of each class") as caught:
            refused(path)
        assert caught.value.got == "unsaid"
    assert taftcache.inspect(path).root_digest == root
    sample = rows_of(0, ROWS[0])[2][0]
    taftcache.forget(path, [sample])  # goes on with those that say
    left = both - np.array([[1, 0, 0, 0], *[[0] * K] * 3])
    assert coefficients(path) == pytest.approx(left / left.sum(0))
    taftcache.compose(path, overrides={"compose.weights": "rows"})
    assert not any("--weight class-rows" in note for note in taftcache.compose(path).notes)


@pytest.mark.parametrize("weights", ["rows", "class-rows"])
def test_a_component_is_forgotten_though_those_that_are_left_do_not_say_their_rows(path, tmp_path, weights):
    """The request was refused: a sum of nobody has no coefficients."""
    file = taftcache.export_component(path, "000", tmp_path / "site.safetensors").file
    x, y, ids = rows_of(6, np.full(K, 2))
    centre = taftcache.import_vectors(
        x, y, tmp_path / "centre", ids=ids, overrides={"store.shards": 1, "data.held_out": 0}
    ).store
    taftcache.train(centre)
    taftcache.import_component(centre, file, "site")
    with open_store(centre) as store:
        taftcache.forget(store, ids[:1], mode="subtract")
    taftcache.compose(centre, overrides={**BY_CLASS, "compose.weights": weights})
    part = Component.decode(file.read_bytes())
    file.write_bytes(replace(part, meta={}, delta=part.delta / 2).encode())
    taftcache.import_component(centre, file, "unsaid")
    report = taftcache.forget(centre, components=["site"])
    assert report.destroyed == ["components/site", WEIGHTED]
    assert report.renewed == [MEAN]
    assert taftcache.audit(centre).findings == []


@pytest.mark.parametrize("weights", ["rows", "class-rows"])
@pytest.mark.parametrize("leaves", ["a sample", "a component"])
def test_no_member_is_left_out_because_its_file_came_anew_without_its_rows(path, tmp_path, weights, leaves):
    """The sum, which is the default model, was made again without it, with no note anywhere, and the audit passed."""
    file = taftcache.export_component(path, "000", tmp_path / "site.safetensors").file
    for name in ("berlin", "bern"):
        taftcache.import_component(path, file, name)
    taftcache.compose(path, overrides={**BY_CLASS, "compose.weights": weights})
    part = Component.decode(file.read_bytes())
    kept = {"rows": part.meta["rows"]} if weights == "class-rows" else {}
    file.write_bytes(replace(part, meta=kept, delta=part.delta / 2).encode())
    came = taftcache.import_component(path, file, "berlin")
    (warned,) = [note for note in came.notes if note.startswith("compose and train refuse this store's")]
    instead, each = ("rows", "rows of each class") if kept else ("mean", "rows")
    assert (
        f'compose.weights = "{weights}", for nothing says how many {each} berlin came from; next: {came.next}' in warned
    )
    assert came.next.endswith(f"--weight {instead}" if kept else f"--mode {instead}")
    asked = ([first_of(path, "000")], ()) if leaves == "a sample" else (None, ["bern"])
    would = taftcache.forget(path, asked[0], components=asked[1], dry_run=True)
    report = taftcache.forget(path, asked[0], components=asked[1])
    assert report.destroyed == would.destroyed == [*([] if leaves == "a sample" else ["components/bern"]), WEIGHTED]
    said = f"gone: nothing says how many {each} berlin came from; next: {came.next}"
    assert [said in note for note in (*report.notes, *would.notes)].count(True) == 2
    with pytest.raises(SystemExit):
        main(came.next.split()[1:])
    with FeatureStore(path) as store:
        assert "components/berlin" in store.objects()[WEIGHTED if kept else MEAN].meta["coefficients"]
    saw = ["components/bern"] if leaves == "a sample" else []  # that of 000, which lost the sample
    assert [found.where for found in taftcache.audit(path).findings] == saw
    assert taftcache.import_component(path, file, "berlin").next == ""


@pytest.mark.parametrize("weights", ["rows", "class-rows"])
def test_the_command_after_an_import_works_whatever_earlier_imports_leave_out(path, tmp_path, weights):
    """Only the new component was asked for its rows, so that the command, named without any warning, was refused."""
    file = taftcache.export_component(path, "000", tmp_path / "site.safetensors").file
    part = Component.decode(file.read_bytes())
    unsaid = tmp_path / "unsaid.safetensors"
    unsaid.write_bytes(replace(part, meta={}, delta=part.delta / 2).encode())
    taftcache.compose(path, overrides={**BY_CLASS, "compose.weights": weights})
    taftcache.import_component(path, unsaid)
    file.write_bytes(replace(part, meta={"rows": part.meta["rows"]}).encode())
    came = taftcache.import_component(path, file)
    assert came.next.endswith(" --mode mean")
    (warned,) = [note for note in came.notes if "compose and train refuse this store's" in note]
    assert f"{'unsaid' if weights == 'rows' else 'site, unsaid'} came from; next: {came.next}" in warned
    with pytest.raises(SystemExit) as ended:
        main(came.next.split()[1:])
    assert not ended.value.code


@pytest.mark.parametrize(
    ("kept", "says"), [((0, 0, 0), True), ((1, -1, 0), True), ((0, 0, 0), False)], ids=["zeros", "1 and -1", "no rows"]
)
def test_coefficients_that_have_no_sum_are_weights_by_rows_from_then_on(path, tmp_path, kept, says):
    """The next composition was one by rows, and no word had been said; then the word was of zeros alone, with a command
    that a component without its rows made fail."""
    file = taftcache.export_component(path, "000", tmp_path / "site.safetensors").file
    taftcache.import_component(path, file, "site")
    weights = dict(zip(["000", "001", "002"], map(float, kept), strict=True)) | {"site": 1.0}
    taftcache.compose(path, overrides={"compose.mode": "weighted", "compose.weights": weights})
    if not says:
        part = Component.decode(file.read_bytes())
        file.write_bytes(replace(part, meta={}, delta=part.delta / 2).encode())
        taftcache.import_component(path, file, "unsaid")
    for note, is_ in said_of_the_sum(path, "site"):
        assert note == (
            f"{WEIGHTED} {is_} gone: the coefficients that {is_.replace('is', 'are')} left sum to 0; compose.weights "
            f'{is_} "rows" from now on; next: taftcache compose {path} {"--weight rows" if says else "--mode mean"}'
        )
    if says:
        assert {*taftcache.compose(path).coefficients.values()} == {n / ROWS.sum() for n in ROWS.sum(1)}


def test_private_components_are_refused(store):
    with open_store(store) as opened:
        head = settings(opened)
        asked = {**opened.manifest.recipe, "privacy": {"epsilon": 8.0, "steps": 3, "relation": "replace-one"}}
        tangent, by_class = {**asked["tangent"], "train": "head"}, {"mode": "weighted", "weights": "class-rows"}
        root = opened.root_digest
        with pytest.raises(RecipeError, match="private components cannot be weighed by their rows of each class"):
            taftcache.train_private(opened, parse_recipe({**asked, "tangent": tangent, "compose": by_class}))
        assert opened.root_digest == root
        taftcache.train_private(opened, head)
        root = opened.root_digest
        with pytest.raises(RecipeError, match="no weights by the rows of each class") as caught:
            taftcache.compose(opened, overrides=BY_CLASS)
        assert caught.value.got == "000, trained privately; 001, trained privately"
        assert opened.root_digest == root


def test_what_reads_a_sum_reads_one_of_each_class(path, tmp_path):
    """Its certificate's bound, the influence of a sample, its file, and what evaluate and inspect say."""
    taftcache.compose(path, overrides=BY_CLASS)
    with FeatureStore(path) as store:
        said = {name: meta_of(store.objects()[name].meta) for name in (*PARTS, WEIGHTED)}
        largest = (ROWS / ROWS.sum(0)).max(1)
        bounds = [said[name].certified.distance_bound for name in PARTS]
        assert certified_distance(said, WEIGHTED) == pytest.approx(largest @ bounds)
        base = settings_of(store).base
        old = {name: read_component(store, name, base) for name in PARTS}
        sample = store.shard("001").sample_ids[0]
        own, query = taftcache.sample_influence(store, sample, model=WEIGHTED), store.held_out.sample_ids[0]
        asked = taftcache.query_influence(store, query, model=WEIGHTED, top=99)
        weights, label = store.objects()[WEIGHTED].meta["coefficients"], store.classes.index(asked.label)
        x = torch.tensor(store.held_out.tokens(slice(0, 1))).double().ravel()
    assert taftcache.evaluate(path, proven=True).proven[WEIGHTED] > 0.5
    gone = shutil.copytree(path, tmp_path / "gone")
    taftcache.forget(gone, [sample])
    with FeatureStore(gone) as store:
        change = read_component(store, PARTS[1], base).delta - old[PARTS[1]].delta
    moved = compose({"a": Component("ab", base.head_layout, change)}, {"a": [1.0] * K}).delta
    parts = base.head_layout.views(moved)
    by_class = torch.tensor(weights[PARTS[1]])
    weighed = torch.cat([(by_class[:, None] * parts["head.weight"]).ravel(), by_class * parts["head.bias"]])
    assert own.moved == pytest.approx(weighed.norm().item(), rel=1e-6)
    (mine,) = [each for each in asked.samples if each.sample == sample]
    logit = (parts["head.weight"] @ x + parts["head.bias"])[label] * by_class[label]
    assert mine.change == pytest.approx(logit.item(), rel=1e-6)
    file = taftcache.export_component(path, WEIGHTED, tmp_path / "sum.safetensors").file
    out = Component.decode(file.read_bytes())
    assert out.meta[TRAINED_ON]["class_rows"] == ROWS.sum(0).tolist()
    assert taftcache.import_component(path, file, "sum").rows == ROWS.sum()
