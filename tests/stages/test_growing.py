"""Further vectors in a store of vectors: its bytes are those of one that had them from the beginning."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import app, main
from taftcache.errors import ArgumentError, DataError, RecipeError, StoreError
from taftcache.stages.files.growing import append_file
from taftcache.terminal.pipeline import show_append, show_evaluate, show_predict
from tests.stages.making import commits, open_store, tree
from tests.stages.test_append import Interrupting
from tests.stages.test_vectors import IDS, LABELS, SMALL, N, finish, shards, vectors

X, LATER = vectors(), np.arange(N) % 4 == 1
OLD = ~LATER


def some(which: np.ndarray) -> dict:
    """Arguments of an import or append: the rows ``which``."""
    return {"x": X[which], "y": LABELS[which], "ids": [i for i, k in zip(IDS, which, strict=True) if k]}


@pytest.fixture(scope="module")
def early(tmp_path_factory) -> Path:
    """A store of three quarters of the rows. Not to be written to."""
    path = tmp_path_factory.mktemp("early") / "store"
    taftcache.import_vectors(store=path, overrides=SMALL, **some(OLD))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The files of a store of all rows."""
    path = tmp_path_factory.mktemp("whole") / "store"
    taftcache.import_vectors(X, LABELS, path, ids=IDS, overrides=SMALL)
    return tree(path)


@pytest.mark.law("A store of vectors that grew has the bytes of one made at once.")
def test_a_grown_store_of_vectors_is_one_made_at_once(early, whole, tmp_path):
    path = shutil.copytree(early, tmp_path / "store")
    planned = taftcache.append_vectors(store=path, dry_run=True, **some(LATER))
    assert (planned.dry_run, planned.images, planned.root_digest) == (True, 0, planned.root_before)
    assert tree(path) == tree(early)
    report = taftcache.append_vectors(store=path, **some(LATER))
    assert (report.added, report.images, report.known) == (planned.added, LATER.sum(), 0)
    assert tree(path) == whole
    again = taftcache.append_vectors(X, LABELS, path, ids=IDS)
    assert (again.added, again.known, again.root_digest) == ({}, N, report.root_digest)


@pytest.mark.parametrize("calls", [3, 4])
def test_a_killed_append_goes_on(early, whole, tmp_path, calls):
    path = shutil.copytree(early, tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):  # the first steps look at the rows
        taftcache.append_vectors(store=path, progress=Interrupting(calls), **some(LATER))
    taftcache.append_vectors(store=path, **some(LATER))
    assert tree(path) == whole


def test_held_out_rows_of_their_own_stay_alone(tmp_path):
    test = (X[:9], LABELS[:9])
    for name, which in (("all", OLD | LATER), ("some", OLD)):
        taftcache.import_vectors(store=tmp_path / name / "store", test=test, overrides=SMALL, **some(which))
    assert "held-out" not in taftcache.append_vectors(store=tmp_path / "some/store", **some(LATER)).added
    assert tree(tmp_path / "some/store") == tree(tmp_path / "all/store")


def of(which: np.ndarray) -> tuple:
    """The rows ``which`` as held-out rows of their own."""
    return tuple(some(which).values())


def test_further_held_out_rows_of_their_own(tmp_path, capsys):
    """There was no way to add any: classes that came later were held out of nothing."""
    held, newer = np.arange(N) % 8 == 2, LABELS == "cat"  # class cat comes later
    trained = {"all": ~held, "some": OLD & ~held & ~newer}
    tests = {"all": held, "some": held & ~newer & (np.arange(N) < 60)}
    for name in trained:
        where = tmp_path / name / "store"
        taftcache.import_vectors(store=where, test=of(tests[name]), overrides=SMALL, **some(trained[name]))
    path = tmp_path / "some/store"
    finish(path)
    assert "1 class more" in taftcache.append_vectors(store=path, new_classes="take", **some(trained["all"])).notes[0]
    with open_store(finish(path)) as store:
        (note, few) = taftcache.predict(store, X[:1]).notes
        assert note == "1 of 3 classes without a held-out row, of which accuracy and probabilities say nothing: cat"
        assert [note, few] == taftcache.evaluate(store).notes
        show_predict(taftcache.predict(store, X[:1]))
        assert f"note: {note}" in " ".join(capsys.readouterr().out.split())
    planned = taftcache.append_vectors(None, None, path, test=of(held), dry_run=True)
    report = taftcache.append_vectors(None, None, path, test=of(held))
    assert planned.added == report.added == {"held-out": (held & ~tests["some"]).sum()}
    assert taftcache.append_vectors(store=path, test=of(held), **some(trained["all"])).added == {}
    assert shards(path) == shards(tmp_path / "all/store")
    with open_store(path) as store:
        assert not any("classes without" in note for note in taftcache.predict(store, X[:1]).notes)


def test_held_out_rows_that_cannot_be_appended(early, tmp_path):
    path, held = tmp_path / "store", np.arange(N) < 9
    taftcache.import_vectors(store=path, test=of(held), overrides=SMALL, **some(OLD & ~held))
    before, x, ids = tree(path), X[:3], ["a", "b", "c"]
    for test, kind, says in (
        ((x[:, :4], LABELS[:3], ids), DataError, "not as wide as .*\n  got: 4 numbers, 6 in the store"),
        ((x, ["dog"] * 3, ids), DataError, "held-out rows are of classes that no other row has"),
        ((x, LABELS[:3], some(OLD & ~held)["ids"][:3]), DataError, "held-out rows have ids that other rows have, too"),
        (
            (x, LABELS[:3], some(LATER & ~held)["ids"][:3]),
            DataError,
            "held-out rows have ids that other rows have, too",
        ),
        ((x + 1, LABELS[:3], some(held)["ids"][:3]), StoreError, "holds other rows"),
        ((x,), ArgumentError, "test is not x and y of held-out rows"),
    ):
        for take in ("refuse", "take"):
            with pytest.raises(kind, match=says):
                taftcache.append_vectors(store=path, test=test, new_classes=take, **some(LATER & ~held))
    given = {"store": path, "test": (x, ["dog", "ant", "ant"], ids), "dry_run": True}
    left = taftcache.append_vectors(None, None, new_classes="skip", **given)
    assert (left.new_classes, left.added) == ({"dog": 1}, {"held-out": 2})
    assert tree(path) == before
    with pytest.raises(StoreError, match="holds rows out by their ids"):
        taftcache.append_vectors(None, None, early, test=(x, LABELS[:3], ids), dry_run=True)


def test_where_nothing_was_held_out_held_out_rows_may_come(tmp_path):
    nothing = [*SMALL, "data.held_out=0"]
    taftcache.import_vectors(store=tmp_path / "all/store", test=of(LATER), overrides=nothing, **some(OLD))
    path = tmp_path / "some/store"
    taftcache.import_vectors(store=path, overrides=nothing, **some(OLD))
    np.savez(tmp_path / "test.npz", **dict(zip(("x", "y", "ids"), map(np.array, of(LATER)), strict=True)))
    result = CliRunner().invoke(app, ["append", str(path), "--test", str(tmp_path / "test.npz")])
    assert (result.exit_code, tree(path)) == (0, tree(tmp_path / "all/store"))
    with open_store(path) as store:
        taftcache.forget(store, store.held_out.sample_ids[:3])
    assert taftcache.append_vectors(None, None, path, test=of(LATER)).forgotten == 3


def test_a_column_of_splits_says_what_is_held_out(early, tmp_path):
    """It was passed over, and a model trained on the test rows compared with one that was not."""
    held, aside = np.isin(np.arange(N) % 16, [1, 2]), np.arange(N) % 8 == 6
    taftcache.import_vectors(store=tmp_path / "told/store", test=of(held), overrides=SMALL, **some(~held & ~aside))

    def written(name: str, which: np.ndarray) -> list[str]:
        names = np.where(held, "Test", np.where(aside, "val", "train"))[which]
        lines = zip(some(which)["ids"], LABELS[which], names, strict=True)
        (tmp_path / f"{name}.csv").write_text("id,label,split\n" + "".join(f"{','.join(line)}\n" for line in lines))
        np.save(tmp_path / f"{name}.npy", X[which])
        at = tmp_path / name
        return [f"{at}.npy", str(at / "store"), "--labels", f"{at}.csv"]

    def ran(*words: str) -> str:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    small = [word for key in SMALL for word in ("--set", key)]
    noted = "split: 'train' for training, 'Test' for testing; used for neither: val"
    assert f"{noted} ({aside.sum()})" in ran("import", *written("all", OLD | LATER), *small)
    told = shards(tmp_path / "told/store")
    assert shards(tmp_path / "all/store") == told
    ran("import", *written("some", OLD), *small)
    for name, which in (("tests", held), ("more", LATER)):  # rows for testing alone, and both kinds
        file, _, *labels = written(name, which)
        ran("append", str(tmp_path / "some/store"), file, *labels)
    assert shards(tmp_path / "some/store") == told
    unused = "the column split beside the labels of"
    asked = ran("import", *written("asked", OLD), *small, "--set", "data.held_out=0.2")
    assert unused in asked
    assert unused in ran("import", *written("asked", OLD)), "what is left open is the store's"
    assert shards(tmp_path / "asked/store") == shards(early)
    assert unused in ran("append", str(early), file, *labels, "--dry-run")


@pytest.mark.parametrize("calls", [3, 5, 7])  # without a shard, with one, with both
def test_a_killed_import_goes_on_with_its_column_of_splits(tmp_path, calls):
    lines = (f"{k},{LABELS[k]},{k + 1},1,{('train', 'test')[k % 5 == 0]}\n" for k in range(N))
    (tmp_path / "w.csv").write_text("id,label,v0,v1,split\n" + "".join(lines))
    places = [tmp_path / name / "store" for name in ("whole", "killed")]
    with pytest.raises(KeyboardInterrupt):
        taftcache.import_(tmp_path / "w.csv", places[1], overrides=SMALL, progress=Interrupting(calls))
    for place in places:
        taftcache.import_(tmp_path / "w.csv", place, overrides=SMALL)
    assert tree(places[0]) == tree(places[1])


def test_a_column_of_splits_in_a_file_of_held_out_rows_is_not_used(tmp_path):
    (tmp_path / "test.csv").write_text("id,label,v0,v1,split\na,cat,1,2,train\nb,bee,2,1,test\n")
    (tmp_path / "train.csv").write_text("id,label,v0,v1\n" + "".join(f"{k},{LABELS[k]},{k + 1},1\n" for k in range(9)))
    place, test = tmp_path / "s", tmp_path / "test.csv"
    said = f"the column split beside the labels of {test} is not used: test (1), train (1); all rows of this file"
    report = taftcache.import_(tmp_path / "train.csv", place, test=test, overrides={"device": "cpu"})
    assert [note.startswith(said) for note in report.notes if "split" in note] == [True]
    report = append_file(None, place, test=test)
    assert [note.startswith(said) for note in report.notes] == [True]


@pytest.mark.parametrize("own", [True, False])
def test_where_all_held_out_rows_are_forgotten_further_ones_go_as_before(early, tmp_path, own):
    path = tmp_path / "store"
    if own:
        taftcache.import_vectors(store=path, test=(X[:3], LABELS[:3]), overrides=SMALL, **some(OLD))
    else:
        shutil.copytree(early, path)
    with open_store(path) as store:
        taftcache.forget(store, store.held_out.sample_ids)
        assert store.held_out is None
    assert ("held-out" in taftcache.append_vectors(store=path, **some(LATER)).added) is not own


def test_a_file_forms_a_shard_of_its_own_and_forgotten_rows_stay_out(early, tmp_path):
    path = shutil.copytree(early, tmp_path / "store")
    np.savez(tmp_path / "more.npz", **(some(LATER) | {"ids": np.array(some(LATER)["ids"])}))
    assert append_file(tmp_path / "more.npz", path, new_shard=True, dry_run=True).added.keys() >= {"002"}
    report = append_file(tmp_path / "more.npz", path, new_shard=True)
    assert set(report.added) == {"002", "held-out"}
    with open_store(path) as store:
        gone = store.shard("002").sample_ids[1]
        taftcache.train(store)
        taftcache.forget(store, [gone])
        root = store.root_digest
    assert append_file(tmp_path / "more.npz", path, new_shard=True).root_digest == root
    assert taftcache.audit(path).findings == []
    assert taftcache.verify(path).faults == []


def test_a_further_shard_has_the_name_of_no_component_and_a_component_that_of_no_shard_to_come(early, tmp_path):
    """Training the shard replaced the component of a partner without a word."""
    path = shutil.copytree(early, tmp_path / "store")
    with open_store(path) as store:
        taftcache.train(store)
        file = taftcache.export_component(store, "000", tmp_path / "partner.safetensors").file
        for name in ("002", "003", "zebra"):
            taftcache.import_component(store, file, name)
        before = store.objects()["components/002"].digest
    report = taftcache.append_vectors(store=path, new_shard=True, **some(LATER))
    assert report.added.keys() - {"held-out"} == {"004"}
    with open_store(path) as store:
        taftcache.train(store)
        assert store.objects()["components/002"].digest == before
        names = ("000", "001", "002", "003", "004", "zebra")
        assert taftcache.compose(store).members == [f"components/{name}" for name in names]
        taftcache.forget(store, shards=["001"])
        with pytest.raises(RecipeError, match="a shard may get that name, which the store's plan has"):
            taftcache.import_component(store, file, "001")


def test_forgotten_samples_are_counted_as_such(early, tmp_path, capsys):
    """They were counted as samples that were there before, and no note said that they stay out."""
    path, old = shutil.copytree(early, tmp_path / "store"), some(OLD)
    gone = old["ids"][:2]
    with open_store(path) as store:
        taftcache.forget(store, gone)
    for which, shown in (
        (OLD, f"Nothing to do: {OLD.sum() - 2} known, 2 forgotten here, left out."),
        (OLD | LATER, f"rows made in .* s, {OLD.sum() - 2} known, 2 forgotten here, left out"),
    ):
        report = taftcache.append_vectors(store=path, **some(which))
        assert (report.known, report.forgotten) == (OLD.sum() - 2, 2)
        show_append(report)
        assert re.search(shown, " ".join(capsys.readouterr().out.split()))


def test_further_vectors_of_a_forgotten_class_are_left_out_and_named(early, tmp_path):
    path, later = shutil.copytree(early, tmp_path / "store"), some(LATER)
    with open_store(path) as store:
        gone = store.classes[0]
        taftcache.forget(store, classes=[gone])
    of_it = sum(str(label) == gone for label in later["y"])
    report = taftcache.append_vectors(store=path, **later)
    assert (report.closed, report.known, report.images) == ({gone: of_it}, 0, LATER.sum() - of_it)
    assert "left out" in report.notes[0]


def test_what_is_forgotten_after_growing_leaves_no_trace(early, tmp_path):
    path = shutil.copytree(early, tmp_path / "store")
    taftcache.append_vectors(store=path, **some(LATER))
    gone = some(LATER)["ids"][0]
    kept = np.array([i != gone for i in IDS])
    with open_store(path) as store:
        taftcache.forget(store, [gone])
    taftcache.import_vectors(store=tmp_path / "never/store", overrides=SMALL, **some(kept))
    assert commits(path) == commits(tmp_path / "never/store")


def test_what_a_row_changed_is_not_told_of_models_from_before(early, tmp_path, capsys):
    """Without the check, what 24 further rows moved was told as one row's doing."""
    path = shutil.copytree(early, tmp_path / "store")
    sample = some(OLD)["ids"][0]
    with open_store(path) as store:
        taftcache.train(store)
        taftcache.compose(store)
        told = taftcache.sample_influence(store, sample)
        assert [n for n in taftcache.evaluate(store).notes if "not made from" in n] == []
    taftcache.append_vectors(store=path, **some(LATER))
    with open_store(path) as store:
        with pytest.raises(RecipeError, match="not made from the rows and settings that the store has now"):
            taftcache.sample_influence(store, sample)
        old = taftcache.evaluate(store)
        show_evaluate(old)
        assert "not made from the rows and settings that the store has now" in old.notes[0]
        assert "components/000, components/001, models/exact" in old.notes[0]
        assert old.notes[0][:40] in capsys.readouterr().out
        taftcache.train(store)
        taftcache.compose(store)
        assert [n for n in taftcache.evaluate(store).notes if "not made from" in n] == []
        assert taftcache.sample_influence(store, sample).moved < 2 * told.moved


def test_what_cannot_be_appended(early, finished, tmp_path):
    path, new = shutil.copytree(early, tmp_path / "store"), some(LATER)
    x, y, ids = new.values()
    old = some(OLD)
    for wrong, kind, says in (
        ((x[:, :4], y, ids), DataError, "not as wide as .*\n  got: 4 numbers, 6 in the store"),
        ((x, ["dog", *y[1:]], ids), DataError, "1 sample of 1 class that .* does not have"),
        ((x * [[np.nan]], y, ids), DataError, "'clip/1': NaN"),
        ((x, y, old["ids"][: len(y)]), StoreError, "holds other rows(.|\n)*ids of their own"),
        ((old["x"], np.roll(old["y"], 1), old["ids"]), StoreError, "is .* there and .* here"),
    ):
        with pytest.raises(kind, match=says):
            taftcache.append_vectors(wrong[0], wrong[1], path, ids=wrong[2])
    taftcache.export(path, tmp_path / "e.h5")
    with pytest.raises(DataError, match="the export of a store"):
        append_file(tmp_path / "e.h5", path)
    with pytest.raises(DataError, match="is a recipe, not a file of vectors"):
        append_file(tmp_path / "photos.toml", path)
    assert tree(path) == tree(early)
    taftcache.convert(path, tmp_path / "wide", dtype="float32")
    with pytest.raises(StoreError, match="were converted"):
        taftcache.append_vectors(store=tmp_path / "wide", **new)
    taftcache.import_vectors(store=tmp_path / "even", overrides=[*SMALL, "store.plan=balanced"], **old)
    with pytest.raises(RecipeError, match="--new-shard"):
        taftcache.append_vectors(store=tmp_path / "even", **new)
    one = {"x": x[:1], "y": y[:1], "ids": ids[:1]}
    assert taftcache.append_vectors(store=tmp_path / "even", new_shard=True, **one).images == 1
    with pytest.raises(StoreError, match="not imported from vectors"):
        taftcache.append_vectors(store=finished, dry_run=True, **new)


def test_numbers_name_the_classes_that_occur(tmp_path):
    """Of 10, 20, …, 90 and of a few of them alone: no class "0" is asked for."""
    y = 10 * (np.arange(N) % 9 + 1)
    taftcache.import_vectors(X[:64], y[:64], tmp_path / "s", ids=IDS[:64], test=(X[:1], y[:1]), overrides=SMALL)
    assert taftcache.append_vectors(X[72:73], y[72:73], tmp_path / "s", ids=["new"]).images == 1
    with FeatureStore(tmp_path / "s") as store:
        assert store.classes == [str(k) for k in range(10, 100, 10)]
        shard, row = store.locate("new")
        assert store.classes[shard.labels[row]] == "10"
    given = {"x": X[73:75], "y": np.array([15, 5]), "ids": ["other", "another"]}
    assert taftcache.append_vectors(store=tmp_path / "s", new_classes="take", **given).new_classes == {"15": 1, "5": 1}
    with FeatureStore(tmp_path / "s") as store:
        assert store.classes == ["5", "10", "15", *(str(k) for k in range(20, 100, 10))]
        found = {i: store.locate(i) for i in ("new", "other", "another")}
        assert {i: store.classes[shard.labels[row]] for i, (shard, row) in found.items()} == {
            "new": "10", "other": "15", "another": "5",
        }  # fmt: skip


def test_files_are_appended_by_command(early, tmp_path):
    path, new = shutil.copytree(early, tmp_path / "store"), some(LATER)
    np.save(tmp_path / "more.npy", new["x"])
    lines = ["id,label", *(f"{i},{c}" for i, c in zip(new["ids"], new["y"], strict=True))]
    (tmp_path / "more.csv").write_text("\n".join(lines) + "\n")
    recipe = tmp_path / "store.toml"  # the recipe says where the store is
    recipe.write_text(f'[store]\npath = "{path}"\n')
    given = ["append", str(recipe), str(tmp_path / "more.npy"), "--labels", str(tmp_path / "more.csv")]
    for more, says in (
        (["--dry-run"], "nothing was changed"),
        ([], f"{LATER.sum()} rows made"),
        ([], f"Nothing to do: {LATER.sum()} known."),
    ):
        result = CliRunner().invoke(app, [*given, *more])
        assert result.exit_code == 0
        assert says in result.output
        assert ("next   taftcache train" in result.output) == ("rows made" in says)


def test_vectors_of_new_classes_are_left_out_where_that_is_asked_for(early, whole, tmp_path, capsys):
    path, file = shutil.copytree(early, tmp_path / "store"), tmp_path / "more.npz"
    labels = [*LABELS[LATER], "emu", "emu"]
    ids = [*some(LATER)["ids"], "e/1", "e/2"]
    np.savez(file, vectors=np.concatenate([X[LATER], X[:2]]), labels=np.array(labels), ids=np.array(ids))
    with pytest.raises(SystemExit, match="3"):
        main(["append", str(path), str(file), "--dry-run"])
    assert "taftcache append --new-classes take" in capsys.readouterr().err
    result = CliRunner().invoke(app, ["append", str(path), str(file), "--new-classes", "skip"])
    assert (result.exit_code, tree(path)) == (0, whole)
    assert "2 samples left out, of classes that the store does not have: emu (2)" in " ".join(result.output.split())


@pytest.mark.law("An old copy that is put back is noticed before its first read")
def test_a_copy_from_before_a_sample_came_does_not_take_it_in_again(early, tmp_path):
    """Forgotten after the copy was made that has neither the sample nor the request: append leaves it out all the same,
    and destroying the key destroys what the file beside the store remembers."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    shutil.copytree(early, copy)
    shutil.copytree(early, path)
    taftcache.append_vectors(store=path, **some(LATER))
    gone = [i for i, k in zip(IDS, LATER, strict=True) if k][:2]
    taftcache.forget(path, gone)
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    with FeatureStore(path) as store:
        assert [store.is_forgotten(i) for i in (*gone, IDS[0])] == [True, True, False]
    assert taftcache.forget(path, gone).already == gone
    assert sum(taftcache.append_vectors(store=path, **some(LATER)).added.values()) == LATER.sum() - 2
    taftcache.train(path)  # the store opens
    assert [f.kind for f in taftcache.audit(path).findings] == ["tombstones"]
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    taftcache.destroy_key(path)
    assert '"keys":[]' in path.with_name("store.forgotten").read_text(encoding="utf-8")
    assert [a.state for a in taftcache.receipts(path, gone).samples] == ["unknown", "unknown"]


def with_emus(which: np.ndarray) -> dict:
    """``some`` of the rows, and three of a further class."""
    given = some(which)
    y, ids = [*given["y"], *["emu"] * 3], [*given["ids"], *(f"e/{k}" for k in range(3))]
    return {"x": np.concatenate([given["x"], -X[:3]]), "y": y, "ids": ids}


@pytest.mark.law("A store of vectors that grew has the bytes of one made at once.")
def test_new_classes_are_taken_and_the_models_trained_again_are_those_of_all_rows(early, tmp_path):
    """By a commit that drops the models, which have no column for them; what is refused changes nothing."""
    path, fresh = shutil.copytree(early, tmp_path / "store"), tmp_path / "fresh" / "store"
    taftcache.train(path)
    taftcache.compose(path)
    before = tree(path)
    with pytest.raises(ArgumentError, match="new_classes cannot be 'all'"):
        taftcache.append_vectors(store=path, new_classes="all", **with_emus(LATER))
    planned = taftcache.append_vectors(store=path, new_classes="take", dry_run=True, **with_emus(LATER))
    assert tree(path) == before
    report = taftcache.append_vectors(store=path, new_classes="take", **with_emus(LATER))
    taftcache.import_vectors(store=fresh, overrides=SMALL, **with_emus(OLD | LATER))
    assert tree(path) == tree(fresh)
    assert (report.new_classes, report.dropped) == ({"emu": 3}, planned.dropped)
    assert {"components/000", "models/mean", "models/exact"} <= {*report.dropped}
    for place in (path, fresh):
        taftcache.train(place)
        taftcache.compose(place)
    assert tree(path) == tree(fresh)
    assert taftcache.audit(path).findings == []
    assert taftcache.predict(path, -X[:1]).predictions[0].labels[0] == "emu"


def test_new_classes_that_are_not_taken(early, tmp_path):
    """Beside a weight for each class; of a class that was forgotten."""
    path = shutil.copytree(early, tmp_path / "store")
    with FeatureStore(path) as store:
        weights = [1.0] * len(store.classes)
    taftcache.train(path, overrides=[f"objective.class_weights={weights}"])
    before = tree(path)
    with pytest.raises(RecipeError, match="a weight for each class") as caught:
        taftcache.append_vectors(store=path, new_classes="take", **with_emus(LATER))
    assert "--set objective.class_weights=none" in caught.value.do
    assert tree(path) == before
    taftcache.train(path, overrides=["objective.class_weights=none"])
    taftcache.append_vectors(store=path, new_classes="take", **with_emus(LATER))
    taftcache.forget(path, classes=["emu"])
    given = with_emus(LATER) | {"ids": [f"again/{k}" for k in range(LATER.sum() + 3)]}
    report = taftcache.append_vectors(store=path, new_classes="take", **given)
    assert (report.closed, report.new_classes, report.dropped) == ({"emu": 3}, {}, [])


def test_coefficients_of_what_goes_for_good_go_with_it(early, tmp_path):
    """Training was refused afterwards: they named an imported component that nobody here can make again."""
    path = shutil.copytree(early, tmp_path / "store")
    taftcache.train(path)
    taftcache.export_component(path, "000", tmp_path / "one.safetensors")
    taftcache.import_component(path, tmp_path / "one.safetensors", "guest")
    with FeatureStore(path) as store:
        names = [*(shard.name for shard in store.shards), "guest"]
    weights = ", ".join(f"{name!r} = {1 / len(names)}" for name in names)
    taftcache.compose(path, overrides=["compose.mode=weighted", f"compose.weights={{{weights}}}"])
    report = taftcache.append_vectors(store=path, new_classes="take", **with_emus(LATER))
    assert any("compose.weights is by rows now, for it names guest" in note for note in report.notes)
    taftcache.train(path)
    assert taftcache.compose(path).coefficients.keys() == {f"components/{name}" for name in names[:-1]}
