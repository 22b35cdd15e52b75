"""Vectors of other tools: every format gives the same store, it goes through every stage, and bad ones are refused."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.sparse import csr_array
from typer.testing import CliRunner

import taftcache
from taftcache.cache.columns import Columns
from taftcache.cache.store import FeatureStore
from taftcache.cli import app
from taftcache.consent import recorded_recipe, refusal
from taftcache.errors import (
    ArgumentError,
    BackboneError,
    CompositionError,
    DataError,
    IdentityError,
    RecipeError,
    StoreError,
)
from taftcache.model.component import read_base, read_component
from taftcache.model.predictor import TangentModel
from taftcache.recipe import apply_overrides, parse_recipe
from taftcache.stages.files.vectors.importing import recipe_of_vectors
from taftcache.stages.files.vectors.opening import open_vectors
from taftcache.stages.look.inside.samples import inspect_sample, list_samples
from taftcache.stages.look.scoring import margins
from taftcache.stages.scaling import scaled
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TAIL
from taftcache.terminal.inspection import show_sample
from taftcache.terminal.pipeline import show_evaluate
from taftcache.terminal.stores import show_import
from tests.stages.making import commits, open_store, tree

N, D = 96, 6
SMALL = ["store.shards=2", "store.chunk_rows=8", "device=cpu"]
IDS = [f"clip/{k}" for k in range(N)]
LABELS = np.array(["ant", "bee", "cat"])[np.arange(N) % 3]


def vectors(n: int = N) -> np.ndarray:
    """Three classes, of lengths over several powers of two."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, D)) + 4.0 * np.eye(D)[np.arange(n) % 3]
    return (rows * 2.0 ** rng.integers(-3, 4, (n, 1))).astype(np.float32)


def finish(path: Path) -> Path:
    with open_store(path) as store:
        taftcache.train(store)
        taftcache.compose(store)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store of vectors after every stage. Not to be written to."""
    path = tmp_path_factory.mktemp("vectors") / "store"
    report = taftcache.import_vectors(vectors(), LABELS, path, ids=IDS, overrides=SMALL)
    assert (report.trainable, report.tokens, report.classes, report.file) == (True, [1, D], 3, None)
    return finish(path)


def shards(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(path).items() if name.startswith("shards/")}


def write(folder: Path, form: str) -> tuple[Path, Columns]:
    """The vectors as a file of some form, and what must be said of it."""
    x, ids = vectors(), np.array(IDS)
    file = folder / form
    if form == "own.npy":
        np.save(file, np.asfortranarray(x))
        lines = ["id,label", *(f"{i},{c}" for i, c in zip(IDS, LABELS, strict=True))]
        (folder / "labels.csv").write_text("\n".join(lines) + "\n")
        return file, Columns(labels=str(folder / "labels.csv"))
    if form == "plain.npy":
        np.save(file, x)
        np.save(folder / "y.npy", LABELS)
        np.save(folder / "i.npy", ids)
        return file, Columns(labels=str(folder / "y.npy"), ids=str(folder / "i.npy"))
    if form.endswith(".npz"):
        (np.savez if form == "stored.npz" else np.savez_compressed)(file, x=x, y=LABELS, ids=ids)
    elif form.endswith(".h5"):
        with h5py.File(file, "w") as out:
            out["embeddings"] = x
            out["label"], out["id"] = LABELS.astype(h5py.string_dtype()), ids.astype(h5py.string_dtype())
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        kind = pa.list_(pa.float32(), D) if form == "fixed.parquet" else pa.list_(pa.float32())
        table = pa.table({"vector": pa.array(list(x), kind), "label": LABELS.tolist(), "id": IDS})
        parquet.write_table(table, file, row_group_size=20)
    return file, Columns()


@pytest.mark.parametrize("form", ["plain.npy", "stored.npz", "packed.npz", "own.h5", "own.parquet", "singular.csv"])
def test_predict_reads_every_format_by_its_ids(made, tmp_path, form):
    """Only .npy was read, and predictions had to be joined by position."""
    if form == "singular.csv":
        file, columns = tmp_path / form, None
        heads = ["id", "label", *(f"x{k}" for k in range(D))]
        rows = (map(str, row) for row in zip(IDS, LABELS, *vectors().astype(float).T, strict=True))
        file.write_text("\n".join(map(",".join, [heads, *rows])))
    else:
        file, columns = write(tmp_path, form)
        columns = Columns(ids=columns.ids) if form == "plain.npy" else None
    found = taftcache.predict(made, [file], columns=columns).predictions
    by_position = taftcache.predict(made, vectors()).predictions
    assert [p.image for p in found] == list(IDS)
    assert [p.labels for p in found] == [p.labels for p in by_position]
    assert [p.logits for p in found] == [pytest.approx(p.logits, rel=1e-5) for p in by_position]
    np.savez(tmp_path / "few.npz", embedding=vectors()[:3])
    (again, *_) = taftcache.predict(made, [tmp_path / "few.npz"]).predictions
    assert (again.image, again.logits) == (f"{tmp_path / 'few.npz'}/00000000", by_position[0].logits)


def test_an_id_in_two_files_is_refused(made, tmp_path):
    """`find` gave the answers of the second file alone."""
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for file in files:
        np.savez(file, x=vectors()[:2], ids=IDS[:2])
    for verb in (taftcache.predict, taftcache.find):
        with pytest.raises(DataError, match=rf"b.npz has ids that an earlier file has, too(?s:.*){IDS[0]}"):
            verb(made, files)
    with pytest.raises(ArgumentError, match="an array has no columns to name"):
        taftcache.predict(made, vectors(), columns=Columns(ids="who"))


def test_labels_are_passed_over_unread(made, tmp_path):
    """Labels with Python objects, and a column of other labels, stopped `predict`."""
    np.savez(tmp_path / "objects.npz", x=vectors()[:2], ids=IDS[:2], y=np.array([None, 1], object), allow_pickle=True)
    assert [p.image for p in taftcache.predict(made, [tmp_path / "objects.npz"]).predictions] == list(IDS[:2])
    rows = [
        ",".join(["species", "id", *(f"x{k}" for k in range(D))]),
        ",".join(["wren", "a", *("1" for _ in range(D))]),
    ]
    (tmp_path / "new.csv").write_text("\n".join(rows))
    words = ["predict", str(made), str(tmp_path / "new.csv"), "--labels", "species", "--json"]
    assert [p["image"] for p in json.loads(CliRunner().invoke(app, words).stdout)["predictions"]] == ["a"]


def test_names_of_columns_are_for_vectors_alone(made, photographed, tmp_path):
    np.savez(tmp_path / "new.npz", numbers=vectors(), who=IDS)
    named = ["--vectors", "numbers", "--ids", "who", "--json"]
    said = CliRunner().invoke(app, ["predict", str(made), str(tmp_path / "new.npz"), *named]).stdout
    assert [p["image"] for p in json.loads(said)["predictions"]] == list(IDS)
    with pytest.raises(RecipeError, match="takes images, and names of columns"):
        taftcache.predict(photographed, [], columns=Columns(ids="who"))


FORMS = ["own.npy", "plain.npy", "stored.npz", "packed.npz", "own.h5", "own.parquet", "fixed.parquet"]


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_rows(made, tmp_path, form):
    file, columns = write(tmp_path, form)
    asked = recipe_of_vectors(tmp_path / "s", SMALL)
    report = taftcache.import_(file, asked, columns=columns)
    assert (report.scaling, report.trainable) == ("row", True)
    assert shards(tmp_path / "s") == shards(made)
    assert taftcache.import_(file, asked, columns=columns).root_digest == report.root_digest
    values = {"store.shards": np.int64(2), "store.chunk_rows": 8, "device": "cpu"}
    for place, changes in (("texts", SMALL), ("values", values)):
        assert taftcache.import_(file, tmp_path / place, overrides=changes, columns=columns).trainable
        assert shards(tmp_path / place) == shards(made)
    with FeatureStore(tmp_path / "s") as store:
        assert store.identity["imported"] == {"file": form, "scaling": "row"}
    with pytest.raises(IdentityError, match="other data"):
        taftcache.import_(file, asked, columns=columns, scaling="none")


@pytest.mark.law("Rows that are imported into a store that is there are its own, or are refused.")
def test_a_store_is_not_taken_for_that_of_other_rows(made, tmp_path):
    path, x = shutil.copytree(made, tmp_path / "store"), vectors()
    with open_store(path) as store:
        gone = store.shards[0].sample_ids[2]
        taftcache.forget(store, [gone])
        root = store.root_digest
    again = taftcache.import_vectors(x, LABELS, path, ids=IDS, overrides=SMALL)
    assert again.root_digest == root, "the forgotten row stays out"
    turned, few = np.roll(LABELS, 1), slice(0, N - 1)
    unlike = {
        "masked values": [(np.ma.masked_greater(x, 1), LABELS), (x, np.ma.masked_equal(LABELS, LABELS[0]))],
        "(?s)sparse.*to_dense": [(torch.tensor(x).to_sparse(), LABELS)],
        "without values": [(torch.empty(N, D, device="meta"), LABELS)],
        "(?s)float32 .96, 0..*one number at least": [(x[:, :0], LABELS)],
    }
    for says, given in ((says, given) for says, several in unlike.items() for given in several):
        with pytest.raises(DataError, match=says):
            taftcache.import_vectors(*given, tmp_path / "masked", ids=IDS, overrides=SMALL)
    assert not (tmp_path / "masked").exists()
    for rows, labels, ids, says in (
        (-x, LABELS, IDS, "has other numbers there"),
        (x, turned, IDS, "is 'ant' there and 'cat' here"),
        (x[few], LABELS[few], IDS[few], f"1 sample of shard .* in one alone.*{IDS[-1]}"),
    ):
        with pytest.raises(StoreError, match="holds other rows") as refused:
            taftcache.import_vectors(rows, labels, path, ids=ids, overrides=SMALL)
        assert re.search(says, str(refused.value))
    with FeatureStore(path) as store:
        assert store.root_digest == root
    taftcache.export(made, tmp_path / "whole.h5")
    with pytest.raises(StoreError, match="of it forgotten at"):
        taftcache.import_(tmp_path / "whole.h5", recipe_of_vectors(path, SMALL))


def test_an_import_again_records_other_settings_or_says_why_not(made, tmp_path):
    """They were left out without a word, and training said that everything was current."""
    path, given = tmp_path / "s", (vectors(), LABELS)
    taftcache.import_vectors(*given, path, ids=IDS, overrides=[*SMALL, "objective.ridge=1e-1"])
    root = FeatureStore(path).root_digest
    assert taftcache.import_vectors(*given, path, ids=IDS).root_digest == root, "what is not said is as it was"
    again = taftcache.import_vectors(*given, path, ids=IDS, overrides=["objective.ridge=1e-4", "solver.max_passes=7"])
    (note,) = again.notes
    assert "recorded for the training" in note
    assert "objective.ridge 0.1 → 0.0001, solver.max_passes" in note
    with FeatureStore(path) as store:
        recorded = store.manifest.recipe
        assert (recorded["objective"]["ridge"], recorded["solver"]["max_passes"]) == (1e-4, 7)
        assert (recorded["store"]["chunk_rows"], recorded["device"]) == (8, "cpu")
    trained = shutil.copytree(made, tmp_path / "made")
    root = FeatureStore(trained).root_digest
    with pytest.raises(StoreError, match=r"(?s)objective.ridge.*train.*made --set objective.ridge=….*overrides=\["):
        taftcache.import_vectors(*given, trained, ids=IDS, overrides=["objective.ridge=1e-4"])
    with pytest.raises(StoreError, match=r"(?s)begun with another plan.*'chunk_rows': 9"):
        taftcache.import_vectors(*given, trained, ids=IDS, overrides=["store.chunk_rows=9"])
    assert taftcache.import_vectors(*given, trained, ids=IDS).notes == []
    assert FeatureStore(trained).root_digest == root
    np.savez(tmp_path / "x.npz", x=given[0], y=LABELS, ids=np.array(IDS))
    for loss, says in (("rsl", False), ("mse", True)):
        line = ["import", str(tmp_path / "x.npz"), str(tmp_path / "typed"), "--set", f"objective.loss={loss}"]
        result = CliRunner().invoke(app, line)
        assert (result.exit_code, "objective.loss 'rsl' → 'mse'" in " ".join(result.output.split())) == (0, says)


def test_an_import_again_takes_nothing_at_a_strangers_word(made, tmp_path):
    """Settings that an import leaves open are the store's, and were allowed to it as the caller's own."""
    path = shutil.copytree(made, tmp_path / "s")
    with open_store(path) as store, store.transaction() as change:
        recorded = store.manifest.recipe
        named = {"data": {**recorded["data"], "source": "folder", "train": "/pictures"}, "prior": {"teachers": ["/t"]}}
        change.update(recipe=recorded | named)
    taftcache.import_vectors(vectors(), LABELS, path, ids=IDS)
    with FeatureStore(path) as store:
        assert {kind: refusal(store, kind, recorded_recipe(store)) is not None for kind in ("images", "teachers")} == {
            "images": True,
            "teachers": True,
        }


def test_what_can_be_mapped_is_never_read_whole(tmp_path):
    for form in ("plain.npy", "stored.npz", "own.parquet"):
        assert isinstance(open_vectors(*write(tmp_path, form), tmp_path).values, np.memmap), form
    assert {p.name for p in tmp_path.iterdir()} == {"plain.npy", "y.npy", "i.npy", "stored.npz", "own.parquet"}


def test_a_row_is_scaled_by_itself_alone():
    rows = vectors()[:, None, :]
    whole = scaled(rows, "row", IDS)
    alone = [scaled(rows[k : k + 1], "row", IDS[k : k + 1])[0] for k in range(N)]
    assert np.array_equal(whole, alone)
    assert np.allclose(np.square(whole).mean((1, 2)), 1, atol=1e-6)
    assert np.array_equal(scaled(rows.astype(np.float64) * 2.0**600, "row", IDS), whole), "no square overflows"
    assert not scaled(np.zeros((1, 1, D)), "row", ["zero"]).any()
    assert scaled(rows, "none", IDS) is rows
    given = rows.astype(np.float64)
    given.flags.writeable = False
    assert np.array_equal(scaled(given, "row", IDS), whole), "what was given is not changed"
    for how in ("row", "none"):
        assert scaled(np.ones((1, 1, D), np.int8), how, ["a"]).dtype.kind == "f"
        with pytest.raises(DataError, match="'clip/1': NaN or infinity"):
            scaled(np.stack([rows[0], rows[1] + np.inf]), how, IDS)


@pytest.mark.law("A head that is solved for alone begins at zero: nothing drawn is left where rows say nothing.")
def test_a_direction_that_no_row_has_moves_no_logit(tmp_path):
    x = np.concatenate([vectors(), np.zeros((N, 2), np.float32)], 1)
    taftcache.import_vectors(x, LABELS, tmp_path / "s", ids=IDS, overrides=[*SMALL, "data.held_out=0"])
    with FeatureStore(finish(tmp_path / "s")) as store:
        base = read_base(store, parse_recipe(store.manifest.recipe).tangent)
        moved = read_component(store, "models/mean", base)
    weight = base.state["head.weight"] + moved.layout.views(moved.delta)["head.weight"]
    assert weight[:, :D].abs().min() > 0
    assert not weight[:, D:].any()


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
def test_a_forgotten_vector_leaves_no_trace(made, tmp_path):
    path = shutil.copytree(made, tmp_path / "store")
    with open_store(path) as store:
        gone = store.shards[0].sample_ids[3]
        report = taftcache.forget(store, [gone])
        assert report.certificates["components/000"].decisive
    kept = np.array([i != gone for i in IDS])
    ids = [i for i in IDS if i != gone]
    taftcache.import_vectors(vectors()[kept], LABELS[kept], tmp_path / "never/store", ids=ids, overrides=SMALL)
    finish(tmp_path / "never/store")
    assert commits(path) == commits(tmp_path / "never/store")
    assert taftcache.audit(path).findings == []


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
@pytest.mark.parametrize("anew", [False, True], ids=["elsewhere", "at its own place"])
def test_what_was_forgotten_is_left_out_when_vectors_are_imported_again(made, tmp_path, anew):
    old, file = shutil.copytree(made, tmp_path / "old" / "store"), tmp_path / "all.npz"
    with open_store(old) as store:
        gone = [i for i in store.shards[0].sample_ids if LABELS[IDS.index(i)] != "ant"][:2]
        taftcache.forget(store, gone, classes=[store.classes[0]])
        left = np.array([not store.is_forgotten(i) for i in IDS]) & (LABELS != "ant")
    path = old if anew else tmp_path / "new" / "store"
    if anew:
        taftcache.export(old, tmp_path / "e.h5")
        with pytest.raises(StoreError, match="from which nothing can be left out"):
            taftcache.import_(tmp_path / "e.h5", recipe_of_vectors(tmp_path / "s", SMALL), forgotten_of=old)
        shutil.rmtree(old)
        with pytest.raises(DataError, match="all of its samples were forgotten"):
            taftcache.import_vectors(vectors()[~left], LABELS[~left], old, ids=list(np.array(IDS)[~left]))
        assert not old.exists()
    np.savez(file, vectors=vectors(), labels=LABELS, ids=np.array(IDS))
    given = ["import", str(file), str(path), *(part for text in SMALL for part in ("--set", text))]
    for _ in range(2):
        result = CliRunner().invoke(app, given if anew else [*given, "--forgotten-of", str(old)])
        assert result.exit_code == 0, result.output
        assert f"{(~left).sum()} samples left out, forgotten before" in result.output
    never = {"ids": [i for i, kept in zip(IDS, left, strict=True) if kept], "overrides": SMALL}
    taftcache.import_vectors(vectors()[left], LABELS[left], tmp_path / "never/store", **never)
    assert shards(path) == shards(tmp_path / "never/store")
    with FeatureStore(path) as store:
        assert all(map(store.is_forgotten, gone))
        assert "ant" not in store.classes


def test_the_command_that_the_export_of_a_network_names_writes_the_head(made, tmp_path, monkeypatch):
    """As it is pasted: a placeholder in it became a file's name."""
    path = shutil.copytree(made, tmp_path / "my vectors")
    with pytest.raises(BackboneError, match="no network to export") as refused:
        taftcache.export_model(path, tmp_path / "model")
    command, says, _ = refused.value.do.partition(" writes the head")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert (result.exit_code, bool(says)) == (0, True)
    assert set(load_file(tmp_path / "head.safetensors")) == {"head.weight", "head.bias"}
    monkeypatch.setattr(taftcache, "export_model", None)  # it loads torch and timm, which took seconds
    assert str(CliRunner().invoke(app, ["export-model", str(path), "model"]).exception) == str(refused.value)


def test_a_store_of_vectors_is_looked_at_like_any_other(made, tmp_path, capsys):
    x = vectors()
    with FeatureStore(made) as store:
        scores = taftcache.evaluate(store, probe=True)
        assert scores.accuracy["models/exact"] > 0.8
        show_evaluate(scores)
        assert "linear probe of the vectors" in capsys.readouterr().out
        assert scores.accuracy["models/exact"] >= scores.accuracy["linear probe of the head's features"] - 0.1
        predictions = inspect_sample(store, store.sample_ids()[0]).predictions
        assert ("models/exact" in predictions, "base" in predictions) == (True, False)
        page = taftcache.write_report(store, tmp_path / "page.html", neighbours=False)
        assert page.file.stat().st_size > 0
        np.save(tmp_path / "new.npy", 8 * x)
        found = taftcache.predict(store, [tmp_path / "new.npy"], top=2).predictions
        np.save(tmp_path / "same.npy", x)
        again = taftcache.predict(store, [tmp_path / "same.npy"], top=2).predictions
        (tmp_path / "other").mkdir()
        np.save(tmp_path / "other" / "new.npy", x[:1])
        both = taftcache.predict(store, [tmp_path / "new.npy", tmp_path / "other" / "new.npy"]).predictions
        assert len({p.image for p in both}) == len(both)
        assert [p.logits for p in found] == [p.logits for p in again]
        right = [p.labels[0] == label for p, label in zip(found, LABELS, strict=True)]
        assert (len(found[1].labels), np.mean(right) > 0.8) == (2, True)
        assert found[1].image == f"{tmp_path / 'new.npy'}/00000001"
        for dtype in ("<f8", ">f4"):
            np.save(tmp_path / "same.npy", x.astype(dtype))
            assert [p.logits for p in taftcache.predict(store, [tmp_path / "same.npy"], top=2).predictions] == [
                p.logits for p in found
            ]
        halved = torch.tensor(x).bfloat16()
        assert len(taftcache.predict(store, halved, top=2).predictions) == len(x)
        for array in (x, torch.tensor(x)):
            here = taftcache.predict(store, array, top=2).predictions
            assert [p.logits for p in here] == [p.logits for p in found]
        assert here[-1].image == f"at index {len(x) - 1}"
        for array in (x[:, 1:], x[:0], x[:, None], x.astype(str)):
            with pytest.raises(DataError, match="no vectors like"):
                taftcache.predict(store, array)
        with pytest.raises(DataError, match="neither an array"):
            taftcache.predict(store, x[0])
        with pytest.raises(DataError, match="masked values"):
            taftcache.predict(store, np.ma.masked_greater(x, 1))
        np.save(tmp_path / "wide.npy", np.ones((2, D + 1)))
        np.save(tmp_path / "empty.npy", np.ones((0, D)))
        np.save(tmp_path / "nan.npy", np.full((1, D), np.nan))
        for wrong, says in (
            ("wide.npy", "no vectors like"),
            ("page.html", "it is not HDF5"),
            ("empty.npy", "no vectors like"),
            ("nan.npy", "nan.npy/00000000': NaN"),
            ("gone.npy", "not a file"),
        ):
            with pytest.raises(DataError, match=says):
                taftcache.predict(store, [tmp_path / wrong])
        with pytest.raises(BackboneError, match=f"export-component {made} models/exact head.safetensors"):
            taftcache.export_model(store, tmp_path / "model")
        taftcache.export_component(store, "models/exact", tmp_path / "head.safetensors")
        head, rows = load_file(tmp_path / "head.safetensors"), vectors() / np.sqrt((vectors() ** 2).mean(1))[:, None]
        best = (rows @ head["head.weight"].T + head["head.bias"]).argmax(1)
        assert [store.classes[k] for k in best] == [
            p.labels[0] for p in taftcache.predict(store, vectors()).predictions
        ]
        recipe = parse_recipe(store.manifest.recipe | {"store": store.manifest.recipe["store"] | {"path": str(made)}})
    with pytest.raises(StoreError, match=r"rows were imported\n  try: taftcache append .* FILE"):
        taftcache.append(recipe)


def test_the_head_over_all_rows_has_one_name(tmp_path):
    """Where heads are all that is trained, models/exact and models/head were the same numbers."""
    sums = ["components/000", "components/001", "models/mean"]
    for mode, model in (("auto", "models/exact"), ("mean", "models/head")):
        path = tmp_path / mode
        taftcache.import_vectors(vectors(), LABELS, path, ids=IDS, overrides=[*SMALL, f"compose.mode={mode}"])
        assert sorted(FeatureStore(finish(path)).objects()) == sorted([TAIL, *sums, model])
    with open_store(path) as store:
        recipe = parse_recipe(apply_overrides(store.manifest.recipe, ["compose.mode=exact"]))
        assert taftcache.train(store, recipe).trained == []
        taftcache.compose(store)
        assert sorted(store.objects()) == sorted([TAIL, *sums, "models/exact"])


def test_a_head_around_another_base_point_goes_where_none_is_to_be(finished, tmp_path):
    """It was to go for two reasons, and went twice, which was an error."""
    path = shutil.copytree(finished, tmp_path / "store")
    with open_store(path) as store:
        changes = ["tangent.train=head", "tangent.reset_block=true", "compose.mode=exact"]
        assert store.objects()["models/head"]
        taftcache.train(store, parse_recipe(apply_overrides(store.manifest.recipe, changes)))
        assert "models/head" not in store.objects()


@pytest.mark.law("A component of unscaled vectors is not composed with those of scaled ones.")
def test_a_component_of_vectors_with_another_scaling_is_refused(made, tmp_path):
    taftcache.import_vectors(vectors(), LABELS, tmp_path / "s", ids=IDS, scaling="none", overrides=SMALL)
    with open_store(tmp_path / "s") as store, FeatureStore(made) as other:
        taftcache.export_component(other, "000", tmp_path / "one.safetensors")
        with pytest.raises(
            CompositionError, match=r"other features.*imported.scaling: the component has 'row', here it is 'none'"
        ):
            taftcache.import_component(store, tmp_path / "one.safetensors", "elsewhere")
        config = TailConfig.of_vectors(D, start="vectors")
        assert TailConfig.from_dict(other.objects()[TAIL].meta) == config, "the base point of a default import stays"


def test_held_out_rows_of_their_own(tmp_path):
    x = vectors()
    taftcache.import_vectors(x, LABELS, tmp_path / "s", test=(x[:9], LABELS[:9]), overrides=SMALL)
    with FeatureStore(tmp_path / "s") as store:
        assert sorted(store.held_out.sample_ids) == [f"test/{k:08d}" for k in range(9)]
        assert len(store.sample_ids()) == N
    for wrong, says in (((x[:3], ["dog"] * 3), "classes that no other"), ((x[:3, :4], LABELS[:3]), "another shape")):
        with pytest.raises(DataError, match=says):
            taftcache.import_vectors(x, LABELS, tmp_path / "t", test=wrong, overrides=SMALL)
        assert not (tmp_path / "t").exists()
    file, columns = write(tmp_path, "stored.npz")
    asked = recipe_of_vectors(tmp_path / "u", SMALL)
    with pytest.raises(DataError, match="other rows have, too"):
        taftcache.import_(file, asked, columns=columns, test=file)
    file, columns = write(tmp_path, "plain.npy")
    np.save(tmp_path / "t.npy", x)
    with pytest.raises(DataError, match="no labels of their own"):
        taftcache.import_(file, asked, columns=columns, test=tmp_path / "t.npy")
    with pytest.raises(RecipeError, match="labels but no file"):
        taftcache.import_(file, asked, columns=columns, test_labels="t")
    np.save(tmp_path / "z.npy", np.roll(LABELS, 1))
    taftcache.import_(file, asked, columns=columns, test=tmp_path / "t.npy", test_labels=str(tmp_path / "z.npy"))
    with FeatureStore(tmp_path / "u") as store:
        held = store.held_out
        assert dict(zip(held.sample_ids, held.labels.tolist(), strict=True))["t/00000001"] == 0


@pytest.mark.parametrize(
    ("x", "y", "more", "says"),
    [
        (np.ones((4, 2, 2)), [0, 1, 0, 1], {}, "not numbers"),
        (np.ones(4), [0, 1, 0, 1], {}, r"reshape\(-1, 1\) and --scaling none"),
        (np.ones((4, 0)), [0, 1, 0, 1], {}, "not numbers"),
        (np.array([["a", "b"]] * 4), [0, 1, 0, 1], {}, "not numbers"),
        (np.ones((4, 2), bool), [0, 1, 0, 1], {}, r"not numbers.*\n.*bool.*\n.*: turn them .* astype\("),
        (np.ones((4, 2), object), [0, 1, 0, 1], {}, r"not numbers.*\n.*object.*\n.*: turn them .* astype\("),
        (csr_array(np.ones((4, 2))), [0, 1, 0, 1], {}, r"vectors of rows: they are sparse\n.*csr_array\n.*toarray\("),
        (np.ones((4, 2)), [0, 1, 0], {}, "4 vectors, but 3 labels"),
        (np.ones((4, 2)), [0.5, 1, 0, 1], {}, r"(?s)not integers or texts.*; values are fitted by TangentRegressor$"),
        (np.ones((4, 2)), np.array([[0], [1], [0], [1]]), {}, r"int64 \[4, 1\]\n  try: np.ravel\(labels\)$"),
        (np.ones((4, 2)), np.eye(2)[[0, 1, 0, 1]], {}, r"float64 \[4, 2\]\n  try: np.argmax\(labels, 1\)$"),
        (np.ones((4, 2)), np.eye(2)[[0, 1, 0, 1]] / 2, {}, "fitted by TangentRegressor$"),
        (np.ones((4, 2)), np.ones((4, 2), int), {}, "integers or texts, one for each vector$"),
        (np.ones((4, 2)), [0, 1, 0, 1], {"ids": ["a", "b"]}, "4 vectors, but 2 ids"),
        (np.ones((4, 2)), [0, 1, 0, 1], {"ids": [*"abca"]}, "more than once"),
        (np.ones((4, 2)), [0, 0, 0, 0], {}, "a classifier needs two"),
        (np.ones((4, 2)), [0, 1, 0, 1], {"ids": [0.5, 1, 2, 3]}, r"(?s)ids of .* not integers or .* each vector$"),
        (np.ones((4, 2)), [0, 1, 0, 1], {"ids": np.array([["a", "b"]] * 4)}, "ids of rows are not integers or texts"),
        (np.ones((4, 2)), np.array([0, 1, 0, None]), {}, "not all integers or texts\n  got: None for row 3"),
        (np.ones((4, 2)), np.array(["a", "b", float("nan"), "a"], object), {}, "got: nan for row 2"),
        (np.ones((4, 2)), ["a", "b", "", "a"], {}, "empty label\n  got: 'rows/00000002'"),
        (np.ones((24, 2)), [str(k / 4) for k in range(24)], {}, "values, not classes"),
        (np.full((4, 2), np.nan), [0, 1, 0, 1], {}, "NaN"),
        (np.full((4, 2), np.inf), [0, 1, 0, 1], {"scaling": "none"}, "infinity"),
        (np.full((4, 2), 1e6), [0, 1, 0, 1], {"scaling": "none"}, "overflows float16"),
        (np.full((4, 2), 1e-9), [0, 1, 0, 1], {"scaling": "none"}, "lost in float16"),
        (np.arange(4.0)[:, None], [0, 1, 0, 1], {}, "only their signs would be left"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, x, y, more, says):
    with pytest.raises(DataError, match=says):
        taftcache.import_vectors(x, y, tmp_path / "s", overrides=["store.shards=1", "data.held_out=0"], **more)
    assert not (tmp_path / "s").exists(), "nothing is begun"
    with pytest.raises(RecipeError, match="scaling"):
        taftcache.import_vectors(np.ones((4, 2)), [0, 1, 0, 1], tmp_path / "s", scaling="all")


@pytest.mark.parametrize(("rows", "alone", "noted"), [(20, 10, False), (20, 11, True), (19, 19, False), (30, 30, True)])
def test_a_class_for_each_row_is_noted(tmp_path, rows, alone, noted):
    """Prices in whole numbers became hundreds of classes, without a word."""
    labels = np.arange(1000, 1000 + rows)
    labels[alone:] = 1
    x = np.random.default_rng(0).normal(size=(rows, 3))
    with_few = ["store.shards=1", "data.held_out=0"]
    report = taftcache.import_vectors(x, labels, tmp_path / "s", overrides=with_few)
    said = f"{alone} of {rows} samples have a class of their own"
    assert [n.startswith(said) and "TangentRegressor" in n for n in report.notes] == [True] * noted


@pytest.mark.parametrize(
    ("about", "size", "scaling", "dtype", "cure"),
    [
        (0, 1, "none", "float16", None),
        (0, 1, "row", "int8", None),
        (30, 1, "none", "float16", None),
        (1000, 1, "none", "float16", "store.dtype=float32"),
        (1000, 1, "row", "float16", "store.dtype=float32"),
        (1000, 1, "none", "float32", None),
        (0, 1e-9, "none", "float32", "--scaling row"),
        (0, 1e-9, "row", "float32", None),
        (1, 1e-5, "row", "float32", "take their mean off"),
        (1e9, 1, "none", "float32", "take their mean off"),
    ],
)
def test_vectors_that_nothing_tells_apart_are_noted(tmp_path, capsys, about, size, scaling, dtype, cure):
    x = about + size * np.random.default_rng(0).standard_normal((N, D))
    report = taftcache.import_vectors(x, LABELS, tmp_path / "s", scaling=scaling, overrides=[f"store.dtype={dtype}"])
    show_import(report)
    assert len(report.notes) == (cure is not None), report.notes
    if cure is not None:
        assert cure in report.notes[0]
        assert f"note: {report.notes[0]} next" in " ".join(capsys.readouterr().out.split())


def test_a_class_without_a_training_row_is_named(made, tmp_path, capsys):
    """What is held out of it counts as wrong, whatever is trained."""
    with open_store(shutil.copytree(made, tmp_path / "store")) as store:
        (few,) = taftcache.evaluate(store).notes
        cats = [s.sample for s in list_samples(store, label="cat") if s.role == "train"]
        taftcache.forget(store, cats)
        report = taftcache.evaluate(store)
    assert report.notes[:1] == ["1 of 3 classes held out without a training row, which cannot be learned: cat"]
    assert (report.notes[1:], few) == (
        [few],
        "probabilities rest on 20 held-out rows, too few to tell 90 % from certainty",
    )
    show_evaluate(report)
    assert f"note: {report.notes[0]}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["123", "true", "1e3", "[1]", 'a"b', "a = b"])
def test_any_name_of_a_folder_is_a_place(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    report = taftcache.import_vectors(vectors(), LABELS, name, overrides=SMALL)
    assert str(report.store) == name
    assert FeatureStore.exists(tmp_path / name)


def test_tensors_are_arrays_whatever_follows_them(tmp_path):
    x = vectors()
    tensor = torch.tensor(x, requires_grad=True)
    labels = torch.arange(N) % 3
    taftcache.import_vectors(tensor, labels, tmp_path / "s", overrides=SMALL)
    assert taftcache.append_vectors(x, labels.numpy(), tmp_path / "s").known == N
    assert taftcache.append_vectors(tensor, labels, tmp_path / "s").known == N
    halved = tensor.bfloat16()
    taftcache.import_vectors(halved, labels, tmp_path / "half", overrides=SMALL)
    assert taftcache.append_vectors(halved.float(), labels, tmp_path / "half").known == N
    fit = taftcache.TangentClassifier(ridge=0.1).fit(halved.detach(), labels)
    assert np.array_equal(fit.predict(halved.detach()), fit.predict(halved.detach().float()))
    with pytest.raises(DataError, match="there are no vectors"):
        taftcache.import_vectors(x[:0], LABELS[:0], tmp_path / "none")


@pytest.mark.law("All logits are those that predict orders, and an index is a place among the classes")
def test_logits_are_in_the_order_of_the_classes(made, finished, images, tmp_path):
    """``predict`` sorts them, and integers that were given as labels come back as texts."""
    x, labels = vectors(), 3 + 4 * (np.arange(N) % 3)
    taftcache.import_vectors(x, labels, tmp_path / "s", overrides=SMALL)
    finish(tmp_path / "s")
    pictures = sorted(images.rglob("*.png"))[:5]
    for place, given in ((tmp_path / "s", x), (made, x), (finished, pictures)):
        with FeatureStore(place) as store:
            found, classes, model = taftcache.logits(store, given), np.array(store.classes), "components/000"
        assert found.shape == (len(given), len(classes))
        for z, p in zip(found, taftcache.predict(place, given, top=len(classes)).predictions, strict=True):
            order = np.argsort(-z, kind="stable")
            assert p.labels == classes[order].tolist()
            assert p.logits == pytest.approx(z[order].tolist(), abs=1e-5)
            assert p.index == z.argmax()
        assert (taftcache.logits(place, given, model=model) != found).any()
    right = [int(p.labels[0]) for p in taftcache.predict(tmp_path / "s", x).predictions] == labels
    assert right.mean() > 0.8
    np.save(tmp_path / "new.npy", x)
    assert np.array_equal(taftcache.logits(made, [tmp_path / "new.npy"]), taftcache.logits(made, x))
    with pytest.raises(DataError, match="the vectors: they are sparse"):
        taftcache.predict(made, csr_array(x))
    with pytest.raises(BackboneError, match=r"logits\(store, x\)"):
        TangentModel.load(made)


class Column(np.ndarray):
    """An array with an index, as a table or a column of pandas."""

    iloc = None

    def __new__(cls, values, index):
        made = np.asarray(values).view(cls)
        made.index = index
        return made


def stand_in(values, index):
    """What pandas makes of these, by the parts that are asked for."""
    if isinstance(index, range):
        return Column(values, SimpleNamespace(step=index.step, tolist=lambda: list(index)))
    return Column(values, np.array(index, object))


def of_pandas(values, index):
    pandas = pytest.importorskip("pandas")
    return (pandas.DataFrame if np.ndim(values) == 2 else pandas.Series)(values, index=index)


@pytest.mark.parametrize("table", [stand_in, of_pandas])
def test_the_index_of_a_table_names_its_rows(made, tmp_path, table):
    """It was thrown away, and a column in another order was joined to the rows by place."""
    x, turned = vectors(), np.roll(np.arange(N), 1)
    assert taftcache.import_vectors(table(x, IDS), table(LABELS, IDS), tmp_path / "s", overrides=SMALL).notes == []
    assert shards(tmp_path / "s") == shards(made)
    assert taftcache.append_vectors(table(x, IDS), LABELS, tmp_path / "s").known == N
    for number, index in enumerate((range(5, N + 5), [1, *IDS[1:]], [*IDS[:-1], IDS[0]])):
        path = tmp_path / str(number)
        (note,) = taftcache.import_vectors(table(x, list(index)), LABELS, path, overrides=SMALL).notes
        assert "rows are numbered" in note
        assert sorted(FeatureStore(path).sample_ids())[0].startswith("rows/0000000")
        assert taftcache.import_vectors(table(x, list(index)), LABELS, tmp_path / f"{number}s", ids=IDS).notes == []
    other = table(LABELS[turned], np.array(IDS)[turned]), table(np.array(IDS)[turned], np.array(IDS)[turned])
    for what, y, ids in (("labels", other[0], None), ("ids", LABELS, other[1])):
        with pytest.raises(DataError, match=rf"(?s)the {what} of rows are in another order.*row 0 is 'clip/0' of"):
            taftcache.import_vectors(table(x, IDS), y, tmp_path / "no", ids=ids)
    assert not (tmp_path / "no").exists()
    for number, index in enumerate((IDS, range(N))):
        unlike = table(LABELS, range(1, N + 1))  # which says nothing of the order
        path = tmp_path / f"unlike{number}"
        assert taftcache.import_vectors(table(x, index), unlike, path, overrides=SMALL).notes == []


def test_whole_numbers_are_classes_in_any_type_and_fractions_are_not(tmp_path):
    labels = np.arange(N) % 3
    taftcache.import_vectors(vectors(), labels, tmp_path / "s", overrides=SMALL)
    assert taftcache.append_vectors(vectors(), labels.astype(np.float32), tmp_path / "s").known == N
    for wrong in (labels + 0.5, np.where(labels == 0, np.nan, labels), np.where(labels == 0, 1e300, labels)):
        with pytest.raises(DataError, match="not integers or texts"):
            taftcache.append_vectors(vectors(), wrong, tmp_path / "s")


def test_a_sample_of_the_only_class_left_has_no_margin(made, tmp_path, capsys):
    path = shutil.copytree(made, tmp_path / "one")
    taftcache.forget(path, classes=["ant", "bee"])
    with FeatureStore(path) as store:
        report = inspect_sample(store, store.sample_ids()[0])
        assert {p["margin"] for p in report.predictions.values()} == {None}
    assert np.isnan(margins(np.ones((2, 1), np.float32), np.zeros(2, np.int32))).all()  # what the page shows as a dash
    show_sample(report)
    assert "–" in capsys.readouterr().out


def test_a_head_beside_components_that_are_heads_is_named_when_it_goes(tmp_path):
    """An earlier version made one; it went without a word, and who named it was sent to where they came from."""
    path = tmp_path / "s"
    taftcache.import_vectors(vectors(), LABELS, path, ids=IDS, overrides=[*SMALL, "compose.mode=mean"])
    taftcache.train(path)
    taftcache.compose(path)
    report = taftcache.train(path, overrides=["compose.mode=auto"])
    assert any(note.startswith("models/head is gone") for note in report.notes)
    taftcache.compose(path)
    with pytest.raises(StoreError) as caught:
        taftcache.predict(path, vectors()[:1], model="models/head")
    assert "models/exact" in caught.value.do
