"""Another labelled set than the held-out rows: judged as they are, also value by value, and nothing is written."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import app
from taftcache.errors import ArgumentError, DataError, RecipeError, StoreError, UnreadableImage
from taftcache.names import HEAD, MEAN
from taftcache.report.paired import row_verdict
from tests.stages.making import digits, open_store, recipe, tree


def table(file: Path, rows: list[tuple], *names: str) -> Path:
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([names, *rows])
    return file


def test_images_of_held_out_rows_have_the_accuracies_of_evaluate(photographed, images, tmp_path):
    """Also for each value of the table's own columns or of values that a program has; the store keeps its bytes."""
    with FeatureStore(photographed) as store:
        held = store.held_out
        rows = [
            (i, store.classes[k], "ab"[n % 2])
            for n, (i, k) in enumerate(zip(held.sample_ids, held.labels, strict=True))
        ]
        logits = taftcache.logits(store, held, device="cpu")
        own = taftcache.evaluate(store)
    before, file = tree(photographed), table(tmp_path / "other.csv", rows, "file", "species", "site")
    keys = {"data.label_key": "species", "data.root": str(images)}
    report = taftcache.evaluate_on(photographed, file, by="site", overrides=keys)
    assert (report.accuracy, report.balanced, report.intervals) == (own.accuracy, own.balanced, own.intervals)
    assert (report.rows, report.majority, report.default) == (own.rows, own.majority, own.default)
    assert (report.unknown, report.unreadable, tree(photographed)) == ({}, {}, before)
    worth = report.calibration[own.default]
    assert (worth.temperature, worth.rows) == (own.calibration[own.default].temperature, own.rows)
    z = logits.astype(float) / worth.temperature
    likely = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert worth.log_loss == pytest.approx(-np.log(likely[np.arange(len(z)), held.labels]).mean(), rel=1e-3)
    right = logits.argmax(1) == held.labels
    assert {g.value: (g.rows, g.accuracy) for g in report.values} == {
        site: (len(right[k::2]), right[k::2].mean()) for k, site in enumerate("ab")
    }
    assert [g.accuracy for g in report.values] == sorted(g.accuracy for g in report.values)
    again = taftcache.evaluate_on(photographed, file, by=[1.0, None] * (len(rows) // 2) + [1.0] * (len(rows) % 2),
                                  overrides=keys)  # fmt: skip
    assert {g.value for g in again.values} == {"1", ""}
    assert "of fewer than 20 rows, too few to tell: " in again.notes[-1]


def test_models_are_compared_with_one_that_is_named(photographed, images, tmp_path, monkeypatch):
    """Row by row, on held-out rows and on others: the gain of each is that of its own hits over the reference's. A
    folder of the name of a model is not asked for."""
    (tmp_path / "components" / "000").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with FeatureStore(photographed) as store:
        held, default = store.held_out, taftcache.evaluate(store).default
        rows = [(i, store.classes[k]) for i, k in zip(held.sample_ids, held.labels, strict=True)]
        right = {
            name: taftcache.logits(store, held, model=name, device="cpu").argmax(1) == held.labels
            for name in ("components/000", default)
        }
        own = taftcache.evaluate(store, reference="components/000")
    file = table(tmp_path / "other.csv", rows, "file", "label")
    other = taftcache.evaluate_on(photographed, file, reference="components/000", overrides={"data.root": str(images)})
    ahead, interval, verdict, _ = row_verdict(right[default], right["components/000"])
    for report in (own, other):
        assert (report.reference, set(report.differences)) == (
            "components/000",
            {*report.accuracy} - {"components/000"},
        )
        found = report.differences[default]
        assert (found.ahead, found.interval, found.verdict) == (ahead, interval, verdict)
    assert not taftcache.evaluate(photographed).differences
    with pytest.raises(StoreError, match="no model named models/none"):
        taftcache.evaluate(photographed, reference="models/none")
    with pytest.raises(StoreError, match=r"no model named models/none(.|\n)*or the folder of a model"):
        taftcache.evaluate_on(photographed, file, reference="models/none")


def test_models_are_compared_with_one_from_elsewhere(photographed, finished, images, tmp_path):
    """An exported model, and another store's default one, which are judged as ``predict`` would."""
    with FeatureStore(photographed) as store:
        held, shard = store.held_out, store.shards[0]
        there = [
            *zip(held.sample_ids, held.labels, strict=True),
            *zip(shard.sample_ids[:2], shard.labels, strict=False),
        ]
        rows = [(images / i, store.classes[k]) for i, k in there]
    file, labels = table(tmp_path / "other.csv", rows, "path", "label"), np.array([name for _, name in rows])
    other = shutil.copytree(photographed, tmp_path / "store")
    with open_store(other) as store, store.transaction() as change:
        change.drop("components/001")
    taftcache.export_model(photographed, tmp_path / "model", "components/000")
    network = tmp_path / "network"  # in timm's layout, whose classes are in an order of its own
    taftcache.export_model(photographed, network, HEAD)
    (network / "taftcache.json").unlink()
    config = json.loads((network / "config.json").read_bytes())
    config["pretrained_cfg"]["label_names"].reverse()
    (network / "config.json").write_text(json.dumps(config))
    for place, notes in (
        (tmp_path / "model", []),
        (network, []),
        (str(other), ["rows and settings that the store has now: models/mean", "2 of 8 rows hold the very bytes"]),
    ):
        report = taftcache.evaluate_on(photographed, file, reference=place)
        said = taftcache.predict(place, [path for path, _ in rows]).predictions
        theirs = np.array([one.labels[0] for one in said]) == labels
        assert (report.reference, report.accuracy[str(place)]) == (str(place), theirs.mean())
        assert set(report.differences) == {*report.accuracy} - {str(place)}
        ours = [one.labels[0] for one in taftcache.predict(photographed, [path for path, _ in rows]).predictions]
        found = report.differences[report.default]
        assert (found.ahead, found.interval, found.verdict) == row_verdict(np.array(ours) == labels, theirs)[:3]
        own = [note.removeprefix(f"{place}: ") for note in report.notes if note.startswith(f"{place}: ")]
        assert len(own) == len(notes)
        assert all(text in note for text, note in zip(notes, own, strict=True))
    words = "evaluate", str(photographed), "--reference", str(tmp_path / "model")
    shown = CliRunner().invoke(app, [*words, "--on", str(file)])
    assert shown.exit_code == 0, shown.output
    assert " ahead of " in shown.output
    assert str(CliRunner().invoke(app, words).exception).splitlines()[1].startswith("  try: name labelled images")
    for place, says in ((finished, "has not the classes of .*\n.*: 3, 4"), (images, "no store at")):
        with pytest.raises(taftcache.TaftcacheError, match=says):
            taftcache.evaluate_on(photographed, file, reference=place)


def test_a_folder_says_what_was_left_out_and_what_was_trained_on(photographed, images, tmp_path, monkeypatch):
    root = shutil.copytree(images, tmp_path / "other")
    shutil.rmtree(root / "1")
    for name in ("9", "2"):  # a class that the store does not have, and a file that is no image
        (root / name).mkdir(exist_ok=True)
    Image.fromarray(digits()[0][9]).save(root / "9" / "one.png")
    (root / "2" / "0.png").write_bytes(b"no image")
    with pytest.raises(UnreadableImage, match=r"2/0\.png"):
        taftcache.evaluate_on(photographed, root)
    named = {"9/one.png": "strange", "2/0.png": "broken"}
    by = [named.get(f"{file.parent.name}/{file.name}", "own") for file in sorted(root.glob("*/*.png"))]
    report = taftcache.evaluate_on(photographed, root, by=by, overrides=["data.unreadable=skip"])
    assert [(g.value, g.rows) for g in report.values] == [("own", 28)]
    own = taftcache.evaluate(photographed).calibration[MEAN]
    assert (report.calibration[MEAN].temperature, report.calibration[MEAN].rows) == (own.temperature, 28)
    assert (report.rows, report.unknown, [*report.unreadable]) == (28, {"9": 1}, ["2/0.png"])
    assert report.balanced[MEAN] == report.accuracy[MEAN], "both classes have as many rows"
    left, without, copies = report.notes
    assert left.startswith("1 row left out, of classes that the store does not have: 9 (1)")
    assert without == "1 of 3 classes without a row here, of which accuracy says nothing: 1"
    with FeatureStore(photographed) as store:
        trained = sum(not i.startswith("1/") for i in store.sample_ids())
    assert copies.startswith(f"{trained} of 28 rows hold the very bytes of a training row")
    monkeypatch.setattr("taftcache.stages.look.scoring.memory_of_models", lambda recipe: 1)
    fewer = taftcache.evaluate_on(photographed, root, overrides=["data.unreadable=skip"])
    assert fewer.accuracy == {name: v for name, v in report.accuracy.items() if "components" not in name}
    assert "components are not judged" in fewer.notes[0]


def test_the_split_to_test_on_is_taken(photographed, images, tmp_path):
    for split, every in (("train", 1), ("test", 2)):
        for file in sorted(images.glob("*/*.png"))[::every]:
            (tmp_path / split / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / split / file.parent.name)
    report = taftcache.evaluate_on(photographed, tmp_path)
    assert (report.rows, report.notes[0]) == (21, f"judged on {tmp_path / 'test'}, the part of {tmp_path} to test on")
    rows = [(file, file.parent.name, "test" if n % 3 else "train") for n, file in enumerate(images.glob("*/*.png"))]
    report = taftcache.evaluate_on(photographed, table(tmp_path / "t.csv", rows, "path", "label", "split"))
    assert (report.rows, report.notes[0]) == (28, f"judged on the split 'test' of {tmp_path / 't.csv'}")


def test_what_cannot_be_judged_is_refused(photographed, images, tmp_path):
    def on(data, **more):
        return lambda: taftcache.evaluate_on(photographed, data, **more)

    files = [(file, file.parent.name) for file in images.glob("*/*.png")]
    other = table(tmp_path / "named.csv", [(file, f"digit {name}") for file, name in files], "path", "label")
    blank = table(tmp_path / "blank.csv", [(file, f"{name} ") for file, name in files], "path", "label")
    for call, error, says in (
        (on(tmp_path / "nowhere"), DataError, "nothing at"),
        (on(other), DataError, r"no label of .*named.csv is a class of .*\n.*digit 0.*the store has 0, 1, 2"),
        (on(blank), DataError, "differ only in blanks"),
        (on(images, by="site"), DataError, "of no table, and have no column 'site'"),
        (on(other, by="site"), DataError, "no column 'site'\n.*path, label"),
        (on(images, by=["a"]), ArgumentError, "a value for each row"),
        (on([1, 2]), ArgumentError, "not named by a path"),
        (on(images, overrides=["data.limit=3"]), RecipeError, "does not use data.limit"),
        (on(images, columns=taftcache.Columns(labels="y")), RecipeError, "--set data.label_key"),
    ):
        with pytest.raises(error, match=says):
            call()
    path = shutil.copytree(photographed, tmp_path / "store")
    with open_store(path) as store, store.transaction() as change:
        for name in (MEAN, HEAD):
            change.drop(name)
    with pytest.raises(StoreError, match="no model named models/mean"):
        taftcache.evaluate_on(path, images)


def test_rows_are_cut_where_the_stores_were_whatever_is_trained_now(images, tmp_path):
    """They were cut where the tail begins now, and said to be of other samples, because both are of one shape."""
    path, data = tmp_path / "store", {"source": "folder", "train": str(images)}
    taftcache.run(recipe(path, data=data, tangent={"blocks": 2}, store={"shards": 1, "cache": "tokens"}))
    taftcache.train(path, overrides=["tangent.blocks=1"])
    taftcache.compose(path)
    file = next(images.glob("*/*.png"))
    assert taftcache.find(path, [file], top=1).found[str(file)][0].same
    report, own = taftcache.evaluate_on(path, images), taftcache.evaluate(path)
    hits = report.accuracy[MEAN] * report.rows
    with FeatureStore(path) as store:
        (shard,) = store.shards
        trained = (taftcache.logits(store, shard, device="cpu").argmax(1) == shard.labels).sum()
    assert hits == pytest.approx(trained + own.accuracy[MEAN] * own.rows)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A store of vectors, and rows, classes and a third value for each that it has not seen."""
    x, y = load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("vectors") / "store"
    taftcache.import_vectors(x[:300], y[:300], path, overrides=["store.shards=1", "store.dtype=float32"])
    taftcache.train(path)
    taftcache.compose(path)
    return path, x[300:500], y[300:500], np.where(np.arange(200) % 3, "s", "n")


@pytest.mark.parametrize("form", ["arrays", "npz", "npy", "csv", "parquet", "h5"])
def test_vectors_in_every_form(vectors, form, tmp_path):
    path, x, y, site = vectors
    file, columns = tmp_path / f"new.{form}", None
    if form == "npz":
        np.savez(file, x=x, y=y, site=site)
    elif form == "npy":
        np.save(file, x)
        labels = table(tmp_path / "labels.csv", [*zip(y, site, strict=True)], "label", "site")
        columns = taftcache.Columns(labels=str(labels))
    elif form == "csv":
        rows = [(*row, *rest) for row, *rest in zip(x, y, site, strict=True)]
        table(file, rows, *(f"x{k}" for k in range(64)), "label", "site")
    elif form == "parquet":
        parquet.write_table(pa.table({"vectors": [*map(list, x)], "label": y, "site": site}), file)
    elif form == "h5":
        with h5py.File(file, "w") as out:
            out["x"], out["y"], out["site"] = x, y, site.astype("S1")
    data, by = ((x, y), site) if form == "arrays" else (file, "site")
    report = taftcache.evaluate_on(path, data, by=by, columns=columns)
    right = taftcache.logits(path, x).argmax(1) == y
    assert (report.rows, report.accuracy[report.default]) == (200, right.mean())
    assert {g.value: (g.rows, g.accuracy) for g in report.values} == {
        name: ((site == name).sum(), right[site == name].mean()) for name in "sn"
    }
    if form != "arrays":
        with pytest.raises(DataError, match=r"no column 'sit'|not part of a vector"):
            taftcache.evaluate_on(path, file, by="sit", columns=columns)


def test_vectors_are_compared_with_another_stores_model(vectors, photographed, tmp_path):
    (path, x, y, _), other, narrow = vectors, tmp_path / "other", tmp_path / "narrow"
    for place, width in ((other, 64), (narrow, 9)):
        taftcache.import_vectors(x[:90, :width], y[:90], place, overrides=["store.shards=1"])
        taftcache.train(place)
        taftcache.compose(place)
    x, y = x[90:], y[90:]
    ours, theirs = (taftcache.logits(place, x).argmax(1) == y for place in (path, other))
    report = taftcache.evaluate_on(path, (x, y), reference=other)
    found = report.differences[report.default]
    assert (found.ahead, found.interval, found.verdict) == row_verdict(ours, theirs)[:3]
    assert not np.array_equal(ours, theirs)
    taftcache.export_model(photographed, tmp_path / "model")
    for place, says in (
        (tmp_path / "narrow", "not as wide as those of"),
        (photographed, "a model of images cannot be compared"),
        (tmp_path / "model", "a model of images cannot be compared"),
    ):
        with pytest.raises(DataError, match=says):
            taftcache.evaluate_on(path, (x, y), reference=place)


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_the_split_of_vectors_to_test_on_is_taken(vectors, form, tmp_path):
    """All rows were judged, those that others train on, too, and no note said so."""
    path, x, y, site = vectors
    split = np.array(["train", "Test", "val"])[np.arange(200) % 7 % 3]
    file, columns, test = tmp_path / f"new.{form}", None, split == "Test"

    def judged(split, by):
        nonlocal columns
        rows = [*zip(y, site, split, strict=True)]
        if form == "csv":
            names = [*(f"x{k}" for k in range(64)), "label", "site", "split"]
            table(file, [(*own, *rest) for own, rest in zip(x, rows, strict=True)], *names)
        else:
            np.savez(file, x=x, site=site)
            columns = taftcache.Columns(labels=str(table(tmp_path / "labels.csv", rows, "label", "site", "split")))
        return taftcache.evaluate_on(path, file, by=by, columns=columns)

    for by in ("site", *([site] if form == "npz" else [])):
        report = judged(split, by)
        own = taftcache.evaluate_on(path, (x[test], y[test]), by=site[test])
        assert report.notes == [f"judged on the split 'Test' of {file}", *own.notes]
        assert (report.rows, report.accuracy, report.values) == (own.rows, own.accuracy, own.values)
    whole = judged(np.where(test, "a", "b"), "site")
    assert (whole.rows, "split beside" in whole.notes[0], "all rows are judged" in whole.notes[0]) == (200, True, True)


def test_ids_may_have_a_name_of_their_own(vectors, tmp_path):
    """A file that import takes with --ids was refused, for a column that is no part of a vector."""
    path, x, y, _ = vectors
    rows = [(f"row {k}", label, *own) for k, (own, label) in enumerate(zip(x, y, strict=True))]
    file = table(tmp_path / "new.csv", rows, "rowname", "label", *(f"x{k}" for k in range(64)))
    words = "evaluate", str(path), "--on", str(file), "--json"
    result = CliRunner().invoke(app, [*words, "--ids", "rowname"])
    assert (result.exit_code, json.loads(result.stdout)["rows"]) == (0, 200), result.output
    alone = CliRunner().invoke(app, ["evaluate", str(path), "--ids", "rowname"])
    assert "--ids is only for --on DATA" in str(alone.exception)


def test_of_vectors_only_vectors_are_judged(vectors, images):
    path, x, y, _ = vectors
    for given, more, says in (
        ((x[:, :9], y), {}, "not as wide as those"),
        ((x, y, y), {}, "not given with their classes"),
        ((x[:2], y[:2]), {"by": [["n"], ["n", "s"]]}, "not one for each row"),
        ((x, y), {"overrides": ["data.label_key=y"]}, "has no settings for images"),
        (images, {}, "it is a folder"),
    ):
        with pytest.raises(taftcache.TaftcacheError, match=says):
            taftcache.evaluate_on(path, given, **more)
