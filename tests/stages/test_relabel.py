"""Corrected labels: without being asked for they are named, and with it the store is one extracted with them."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, IdentityError, StoreError, UnreadableImage
from taftcache.model.outdated import OUTDATED
from taftcache.names import EXACT, MEAN, WEIGHTED
from taftcache.stages.look import seen
from taftcache.stages.progress import Silent
from taftcache.stages.train.private.records import read_keys
from taftcache.terminal.pipeline import show_append, show_run
from tests.backbone.test_table import write
from tests.stages.making import commits, open_store, recipe, settings, tree, write_images
from tests.stages.test_append import Interrupting


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Three classes of fourteen files."""
    return write_images(tmp_path_factory.mktemp("labelled") / "digits")


def labels_of(images: Path, but: int = 0) -> dict[str, str]:
    """Each file's class, and of the last ``but`` files none."""
    files = sorted(images.glob("*/*.png"), key=lambda file: file.name)
    return {file.relative_to(images).as_posix(): file.parent.name for file in files[: len(files) - but]}


def listed(place: Path, labels: dict[str, str]) -> Path:
    """A table of the images."""
    place.parent.mkdir(exist_ok=True)
    return write(place, {"path": list(labels), "label": list(labels.values())})


def asked(path: Path, table: Path, images: Path, unreadable: str = "stop", **sections):
    columns = {"image_key": "path", "label_key": "label", "root": str(images), "unreadable": unreadable}
    return recipe(path, data={"source": "table", "train": str(table), **columns}, **sections)


def corrected(labels: dict[str, str], every: int = 4) -> dict[str, str]:
    """Some of another class: of training rows and of held-out ones."""
    others = {i: "021"[int(label)] for i, label in list(labels.items())[::every]}
    return labels | others


@pytest.mark.law("A store whose labels were corrected has the bytes of one extracted with them")
@pytest.mark.parametrize("more", [0, 5], ids=["alone", "with new images"])
def test_corrected_labels_are_named_and_taken_in(tmp_path, images, more, capsys):
    table, right = tmp_path / "labels.csv", corrected(labels_of(images))
    made = asked(tmp_path / "store", listed(table, labels_of(images, but=more)), images)
    taftcache.run(made)
    before = tree(tmp_path / "store")
    listed(table, right)
    wrong = {i: own for i, own in labels_of(images, but=more).items() if right[i] != own}
    note = f"{len(wrong)} rows of another class than the data says now (first: {min(wrong)}, '{wrong[min(wrong)]}' in"
    for report in (taftcache.extract(made), taftcache.run(made).extract, taftcache.append(made, dry_run=True)):
        (said,) = (text for text in report.notes if text.startswith(note))
        assert "append --relabel takes corrected labels in; if it was another table that corrected the store's" in said
    assert tree(tmp_path / "store") == before
    planned = taftcache.append(made, relabel=True, dry_run=True)
    assert tree(tmp_path / "store") == before
    report = taftcache.append(made, relabel=True)
    assert planned.relabelled == report.relabelled
    assert "held-out" in report.relabelled
    assert sum(report.relabelled.values()) == len(wrong)
    assert (sum(report.added.values()), planned.added) == (more, report.added)
    assert not [text for text in report.notes if "another class" in text]
    assert not set(report.relabelled) & set(report.untouched)
    show_append(planned)
    show_append(report)
    said = capsys.readouterr().out
    assert "corrected" in said
    assert "nothing was changed" in said
    assert "Nothing to do" not in said
    again = taftcache.append(made, relabel=True)
    assert (again.relabelled, again.root_digest) == ({}, report.root_digest)
    trained = taftcache.run(made).train.trained
    assert {f"components/{name}" for name in report.relabelled if name != "held-out"} <= {*trained}
    taftcache.run(asked(tmp_path / "fresh", table, images))
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")


class Saying(Silent):
    """Progress that keeps what it is told to say."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class InterruptingOnceStaged(Interrupting):
    """Progress that presses Ctrl-C when rows are in a journal: new ones, or those that the store holds."""

    def __init__(self, store: Path, held: bool) -> None:
        super().__init__(0)
        self._store, self._held, self._batches, self.staged = store, held, 0, list[str]()

    def advance(self, steps: int = 1) -> None:
        self._batches += 1
        until = time.monotonic() + 60  # what is on its way to the disk is not in the journal yet
        while self._batches > 1 and time.monotonic() < until:
            with FeatureStore(self._store) as store:
                rows = [i for some in store.staged_rows().values() for i in some]
                self.staged = [i for i in rows if store.holds(i) == self._held]
            if self.staged:
                raise KeyboardInterrupt
            time.sleep(0.01)


def test_corrections_and_new_images_may_all_be_of_one_class(tmp_path, images):
    """They were refused, with the advice to add a class, whatever classes the store has."""
    labels = labels_of(images)
    some = list(labels)[:8]
    held = {i: labels[i] for i in labels if i not in some[:4]}
    taftcache.extract(asked(tmp_path / "store", listed(tmp_path / "labels.csv", held), images))
    table = listed(tmp_path / "one.csv", dict.fromkeys(some, "2"))
    with pytest.raises(DataError, match=r"one\.csv has fewer than two classes"):
        taftcache.extract(asked(tmp_path / "new", table, images))
    one = asked(tmp_path / "store", table, images)
    assert sum(taftcache.append(one).added.values()) == 4
    assert sum(taftcache.append(one, relabel=True).relabelled.values()) == sum(labels[i] != "2" for i in some[4:])
    listed(table, dict.fromkeys(some, "bird"))
    with pytest.raises(DataError, match="8 samples of 1 class that"):
        taftcache.append(one, relabel=True)


def test_rows_on_their_way_do_not_bring_the_old_labels_back(tmp_path, images, monkeypatch):
    """A killed append leaves old rows, with their labels, in its journal."""
    monkeypatch.setattr("taftcache.stages.extract.frozen.default_batch", lambda cut: 2)
    table, small = tmp_path / "labels.csv", {"store": {"chunk_rows": 2}}
    made = asked(tmp_path / "store", listed(table, labels_of(images, but=12)), images, **small)
    taftcache.extract(made)
    listed(table, labels_of(images))
    with pytest.raises(KeyboardInterrupt):
        taftcache.append(made, progress=InterruptingOnceStaged(tmp_path / "store", held=True))
    listed(table, corrected(labels_of(images), every=1))
    taftcache.append(made, relabel=True)
    taftcache.extract(asked(tmp_path / "fresh", table, images, **small))
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
@pytest.mark.parametrize("mode", ["exact", "weighted"])
def test_a_class_that_lost_its_rows_to_corrected_labels_leaves_every_model(tmp_path, images, mode):
    """models/mean stayed as it was, around another base point: no command could predict, and the audit failed."""
    table, store, merged = tmp_path / "labels.csv", tmp_path / "store", {"1": "2"}
    sections = {"compose": {"mode": mode}}
    made = asked(store, listed(table, labels_of(images)), images, **sections)
    taftcache.run(made)
    listed(table, {i: merged.get(label, label) for i, label in labels_of(images).items()})
    (bare,) = [n for n in taftcache.append(made, relabel=True).notes if n.startswith("without a row")]
    assert bare.startswith("without a row, though the store keeps the class: 1; forget --class")
    models = {name for name in taftcache.run(made).compose.models if name in (MEAN, WEIGHTED, EXACT)}
    planned = taftcache.forget(store, classes=["1"], dry_run=True)
    report = taftcache.forget(store, classes=["1"])
    assert planned.renewed == report.renewed
    assert models <= {*report.renewed}
    assert taftcache.audit(store).findings == []
    taftcache.run(asked(tmp_path / "never", table, images, **sections))
    assert commits(store) == commits(tmp_path / "never")


def test_a_renamed_folder_is_noticed_and_a_table_with_the_old_ids_keeps_its_rows(tmp_path, images, capsys):
    """Each image of it was a second row, and nothing said so; the store's own rows were away without a word."""
    source, store = shutil.copytree(images, tmp_path / "images"), tmp_path / "store"
    made = recipe(store, data={"source": "folder", "train": str(source)})
    taftcache.run(made)
    ids = sorted(file.relative_to(source).as_posix() for file in source.glob("*/*.png"))
    other = shutil.copytree(store, tmp_path / "other")
    (source / "1").rename(source / "7")
    away = [i for i in ids if i.startswith("1/")]
    gone = f"in the store, but not in the source that the recipe names: {len(away)} rows (first: {away[0]})"
    renamed = f"by their file names, the images of 1 ({len(away)}) lie in 7 now: "
    begins = [gone, renamed]
    for choice in ("take", "skip"):  # as the note on such rows says, which a plain append refuses
        planned = taftcache.append(made, new_classes=choice, dry_run=True)
        assert planned.not_in_source == away
    assert "taftcache append RECIPE --new-classes skip --dry-run --json" in "".join(planned.notes)
    for notes in (planned.notes, taftcache.extract(made).notes):
        assert [any(note.startswith(begin) for note in notes) for begin in begins] == [True, True]
    said = Saying()
    with pytest.raises(DataError, match="1 class that"):
        taftcache.append(made, progress=said)
    assert [text.startswith(renamed) for text in said.said] == [True]
    where = [i if i not in away else "7" + i[1:] for i in ids]
    table = write(tmp_path / "ids.csv", {"path": where, "label": [i.partition("/")[0] for i in where], "id": ids})
    columns = {"image_key": "path", "label_key": "label", "id_key": "id", "root": str(source)}
    kept = recipe(store, data={"source": "table", "train": str(table), **columns})
    with pytest.raises(DataError) as refused:
        taftcache.append(kept, relabel=True)
    assert "taftcache append --relabel --new-classes take" in refused.value.do
    report = taftcache.append(kept, relabel=True, new_classes="take")
    assert (sum(report.relabelled.values()), report.added, report.images) == (len(away), {}, 0)
    assert report.not_in_source == [], "another place may have new images alone"
    show_append(report)
    assert f"then taftcache evaluate {store}" in capsys.readouterr().out
    taftcache.run(made)
    with pytest.raises(IdentityError, match="other settings"):
        taftcache.run(kept)
    again = taftcache.run(made)
    for news, does in ((again.extract.notes, "Nothing to do (but see the notes): "), ([], "Nothing to do: ")):
        show_run(replace(again, extract=replace(again.extract, notes=news)))
        assert f"{does}every stage was done before" in capsys.readouterr().out
    with open_store(store) as there:
        assert (sorted(there.every_id), there.classes) == (ids, ["0", "1", "2", "7"])
        taftcache.forget(there, classes=["1"])
        assert there.classes == ["0", "2", "7"]
    again = recipe(other, data={"source": "folder", "train": str(source)})
    assert sum(taftcache.append(again, new_classes="take").added.values()) == len(away)
    report = taftcache.forget(other, classes=["1"])
    assert (sorted(report.forgotten), len(report.copies)) == (away, len(away))
    for path in (store, other):
        taftcache.train(path)
        assert taftcache.audit(path).findings == []


def test_labels_that_cannot_be_taken_in(tmp_path, images):
    table, labels = tmp_path / "labels.csv", labels_of(images)
    made = asked(tmp_path / "store", listed(table, labels), images)
    taftcache.extract(made)
    one = next(iter(labels))
    listed(table, labels | {one: "bird"})
    before = tree(tmp_path / "store")
    for dry_run in (True, False):
        with pytest.raises(DataError, match=r"1 sample of 1 class that(.|\n)*bird"):
            taftcache.append(made, relabel=True, dry_run=dry_run)
    report = taftcache.append(made, relabel=True, new_classes="skip")
    assert (report.new_classes, report.relabelled) == ({"bird": 1}, {})
    assert report.notes == [
        "labels kept: 1 row, for which the data has classes that the store does not have: bird (1); --new-classes take "
        "takes it in"
    ]
    assert tree(tmp_path / "store") == before
    taken = taftcache.append(
        asked(shutil.copytree(tmp_path / "store", tmp_path / "taken"), table, images), relabel=True, new_classes="take"
    )
    assert (taken.new_classes, sum(taken.relabelled.values())) == ({"bird": 1}, 1)
    assert taftcache.append(made, new_classes="take").new_classes == {}  # of rows that keep their labels
    taftcache.extract(asked(tmp_path / "fresh", table, images))
    assert tree(tmp_path / "taken") == tree(tmp_path / "fresh")
    assert tree(tmp_path / "store") == before
    moved = asked(tmp_path / "store", listed(tmp_path / "moved.csv", corrected(labels)), images)
    with pytest.raises(IdentityError) as caught:
        taftcache.run(moved)
    assert "append --relabel" in caught.value.do
    taftcache.append(moved, relabel=True)
    assert "the images lie at" in taftcache.extract(moved).notes[0]
    with open_store(tmp_path / "store") as store:
        taftcache.forget(store, classes=["2"])
    listed(tmp_path / "moved.csv", {i: "2" for i in labels} | {i: "1" for i in list(labels)[::2]})
    with pytest.raises(DataError, match="has forgotten the class"):
        taftcache.append(moved, relabel=True)


def test_a_refused_model_leaves_the_labels_as_they_were(tmp_path, images, monkeypatch):
    table = tmp_path / "labels.csv"
    made = asked(tmp_path / "store", listed(table, labels_of(images, but=5)), images)
    taftcache.extract(made)
    before = tree(tmp_path / "store")
    listed(table, corrected(labels_of(images)))

    def refused(*_):
        raise StoreError("no such model")

    monkeypatch.setattr("taftcache.stages.extract.growth.appending.load_frozen", refused)
    with pytest.raises(StoreError, match="no such model"):
        taftcache.append(made, relabel=True)
    assert tree(tmp_path / "store") == before


@pytest.mark.law("A command that is refused leaves the store's root digest and files as they were")
def test_labels_stay_where_a_new_image_does_not_decode(tmp_path, images):
    """They were committed, and models outdated, before any image was looked at."""
    source, table = shutil.copytree(images, tmp_path / "images"), tmp_path / "labels.csv"
    labels = labels_of(images)
    made = asked(tmp_path / "store", listed(table, labels), source)
    taftcache.extract(made)
    before = tree(tmp_path / "store")
    (source / "1" / "zzz.png").write_bytes(b"no image")
    listed(table, corrected(labels) | {"1/zzz.png": "1"})
    for dry_run in (False, True):
        with pytest.raises(UnreadableImage, match="zzz"):
            taftcache.append(made, relabel=True, dry_run=dry_run)
        assert tree(tmp_path / "store") == before
    skipping = asked(tmp_path / "store", table, source, unreadable="skip")
    report = taftcache.append(skipping, relabel=True)
    assert (sum(report.relabelled.values()), report.skipped_ids) == (10, ["1/zzz.png"])


def test_what_corrected_labels_leave_behind_is_said(tmp_path, images):
    """A class that lost its rows stays; a private component is of the labels from before."""
    table, labels = tmp_path / "labels.csv", labels_of(images)
    made = asked(tmp_path / "store", listed(table, labels), images)
    taftcache.run(made)
    with open_store(tmp_path / "store") as store:
        taftcache.train_private(store, settings(store))
    listed(table, {i: "1" if label == "2" else label for i, label in labels.items()})
    report = taftcache.append(made, relabel=True)
    assert report.notes == [
        "of the labels from before, until train --private, as far as the privacy budget allows that: "
        "components/000, components/001",
        "without a row, though the store keeps the class: 2; forget --class takes it off the list, and closes its name",
    ]
    assert taftcache.verify(tmp_path / "store").faults == []
    assert taftcache.evaluate(tmp_path / "store").rows
    with FeatureStore(tmp_path / "store") as store:
        assert store.classes == ["0", "1", "2"]


def test_private_components_of_other_labels_are_named_for_as_long_as_they_are_kept(private):
    """Only the append said it, and until a training that their budget did not allow."""
    with open_store(private) as store:
        shard, wrong = store.shard("000"), store.classes[0]
        label = next(name for name in store.classes if name != wrong)
        sample = next(i for i, k in zip(shard.sample_ids, shard.labels, strict=True) if store.classes[k] == label)

    def noted() -> list[list[str]]:
        audited = taftcache.audit(private)
        assert audited.findings == []
        reports = taftcache.inspect(private), taftcache.evaluate(private), audited, taftcache.suspects(private)
        return [[note for note in report.notes if "rows or labels" in note] for report in reports]

    def relabel(name: str) -> None:
        with open_store(private) as store, store.transaction() as change:
            change.correct("000", {sample: store.classes.index(name)})

    assert noted() == [[]] * 4
    with FeatureStore(private) as store:  # release 0.1.0 had no keys apart
        ref = store.objects()["components/000"]
        old = replace(ref, meta={**ref.meta, "key": read_keys(store)[ref.meta["key"]]})
        assert seen._saw_itself(store, old, {}) == {"000": "yes"}
    relabel(wrong)
    said = noted()
    assert said[0][0].startswith(
        "private, and made before rows or labels of their shards changed: components/000; kept"
    )
    assert said == [said[0]] * 4
    (named,) = (n for n in taftcache.inspect_shard(private, "000").notes if "rows or labels" in n)
    assert [named] == said[0]
    assert not taftcache.inspect_shard(private, "001").notes
    relabel(label)
    assert noted() == [[]] * 4
    relabel(wrong)
    taftcache.forget(private, [next(i for i in shard.sample_ids if i != sample)])  # nothing says any more which rows
    assert noted() == said


def test_suspects_names_judges_of_other_labels(store):
    def noted(report) -> list[str]:
        return [note for note in report.notes if note.startswith(OUTDATED)]

    assert noted(taftcache.suspects(store)) == []
    with open_store(store) as there, there.transaction() as change:
        shard = there.shard("000")
        change.correct("000", {shard.sample_ids[0]: int(shard.labels[0] == 0)})
    (note,) = noted(taftcache.suspects(store))
    assert [note] == noted(taftcache.inspect(store))
    assert "components/000" in note


def test_corrected_labels_of_vectors(tmp_path):
    path, fresh = tmp_path / "some" / "store", tmp_path / "fresh" / "store"
    x, y = np.random.default_rng(0).standard_normal((40, 4)), np.arange(40) % 2
    ids = [f"v{k}" for k in range(40)]
    right = np.where(np.arange(40) < 5, 1 - y, y)
    taftcache.import_vectors(x, y, path, ids=ids)
    with pytest.raises(StoreError) as caught:
        taftcache.append_vectors(x, right, path, ids=ids)
    assert "--relabel" in caught.value.do
    with pytest.raises(StoreError, match="other rows"):
        taftcache.append_vectors(x + 1, right, path, ids=ids, relabel=True)
    report = taftcache.append_vectors(x, right, path, ids=ids, relabel=True)
    assert sum(report.relabelled.values()) == 5
    taftcache.import_vectors(x, right, fresh, ids=ids)
    assert tree(path) == tree(fresh)


@pytest.mark.parametrize("choice", ["refuse", "skip", "take"])
def test_a_class_that_differs_from_the_stores_in_blanks_is_refused(tmp_path, choice):
    """It became a class of its own: only the labels that were given together were compared."""
    x, ids = np.random.default_rng(0).standard_normal((20, 4)), [f"v{k}" for k in range(20)]
    taftcache.import_vectors(x, ["0", "1"] * 10, tmp_path / "store", ids=ids)
    before = tree(tmp_path / "store")
    for given in ([*ids[:9], "new"], ids[:10]):
        with pytest.raises(DataError, match=r"differ only in blanks at their ends\n.*'1 ', in the store '1'"):
            taftcache.append_vectors(
                x[:10], ["0", "1 "] * 5, tmp_path / "store", ids=given, relabel=True, new_classes=choice
            )
    assert tree(tmp_path / "store") == before


def test_an_image_that_moved_to_the_folder_of_another_class_is_named(tmp_path, images):
    """It was taken in beside its row with the wrong label, as --relabel had no word for that."""
    source = shutil.copytree(images, tmp_path / "images")
    made = recipe(tmp_path / "store", data={"source": "folder", "train": str(source)})
    taftcache.extract(made)
    moved = min((source / "1").iterdir())
    moved.rename(source / "2" / moved.name)
    begin = f"by their file names, moved to the folder of another class: 1/{moved.name} (2/{moved.name} now); append "
    for notes in (taftcache.extract(made).notes, taftcache.append(made, relabel=True).notes):
        (note,) = (text for text in notes if text.startswith(begin))
        assert note.endswith(f"take the row out: forget --sample 1/{moved.name}")
    assert sum(taftcache.append(made).added.values()) == 0
    taftcache.forget(tmp_path / "store", [f"1/{moved.name}"])
    with FeatureStore(tmp_path / "store") as store:
        assert f"2/{moved.name}" in store.every_id


def test_a_correction_of_what_is_not_there_is_refused(tmp_path, images):
    made = recipe(tmp_path / "store", data={"source": "folder", "train": str(shutil.copytree(images, tmp_path / "i"))})
    taftcache.extract(made)
    with open_store(tmp_path / "store") as store:
        some = store.shard("000").sample_ids[0]
        for labels in ({"none": 0}, {some: 3}, {some: -1}):
            with store.transaction() as change, pytest.raises(DataError, match="cannot correct"):
                change.correct("000", labels)


@pytest.mark.parametrize("there", [0, 30], ids=["extract", "append"])
def test_rows_on_their_way_are_made_again_under_a_label_that_changed(tmp_path, images, monkeypatch, there):
    """A stopped run had made rows of new images, and the next went on with them under the labels of then."""
    monkeypatch.setattr("taftcache.stages.extract.frozen.default_batch", lambda cut: 2)
    table, labels, small = tmp_path / "labels.csv", labels_of(images), {"store": {"chunk_rows": 2}}
    made = asked(tmp_path / "store", listed(table, dict(list(labels.items())[:there]) or labels), images, **small)
    if there:
        taftcache.extract(made)
        listed(table, labels)
    go_on, progress = (
        taftcache.append if there else taftcache.extract,
        InterruptingOnceStaged(tmp_path / "store", held=False),
    )
    with pytest.raises(KeyboardInterrupt):
        go_on(made, progress=progress)
    listed(table, labels | {i: "021"[int(labels[i])] for i in progress.staged})
    go_on(made)
    taftcache.extract(asked(tmp_path / "fresh", table, images, **small))
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")


def lying_in(notes) -> list[str]:
    """The notes on renamed folders."""
    return [note for note in notes if "lie in" in note]


def test_a_relabelled_class_of_a_table_is_no_renamed_folder(tmp_path, images):
    table, labels = tmp_path / "labels.csv", labels_of(images)
    made = asked(tmp_path / "store", listed(table, labels), images)
    taftcache.extract(made)
    first = min(i for i, label in labels.items() if label == "1")
    listed(table, {i: "7" if label == "1" else label for i, label in labels.items() if i != first})
    for choice in ("take", "skip"):
        planned = taftcache.append(made, relabel=True, new_classes=choice, dry_run=True)
        assert (planned.not_in_source, lying_in(planned.notes)) == ([first], [])
    assert lying_in(taftcache.extract(made).notes) == []


def test_a_class_appended_from_elsewhere_is_no_renamed_folder(tmp_path, images):
    """Even if a few of its files are named as those of a class that is new in the store's own source."""
    source, store = shutil.copytree(images, tmp_path / "images"), tmp_path / "store"
    made = recipe(store, data={"source": "folder", "train": str(source)})
    (source / "2").rename(tmp_path / "2")
    taftcache.extract(made)
    elsewhere = shutil.copytree(source, tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "2", elsewhere / "2")
    taftcache.append(recipe(store, data={"source": "folder", "train": str(elsewhere)}), new_classes="take")
    new = shutil.copytree(source / "0", source / "7")
    for file in sorted((tmp_path / "2").glob("*.png"))[:3]:
        shutil.copy(file, new)
    planned = taftcache.append(made, new_classes="skip", dry_run=True)
    assert (len(planned.not_in_source), planned.new_classes, lying_in(planned.notes)) == (14, {"7": 17}, [])
    assert lying_in(taftcache.extract(made).notes) == []


def test_a_folder_in_another_unicode_form_is_no_renamed_one(tmp_path, images):
    source, store = shutil.copytree(images, tmp_path / "images"), tmp_path / "store"
    made = recipe(store, data={"source": "folder", "train": str(source)})
    (source / "1").rename(source / "caf\u00e9")
    taftcache.extract(made)
    (source / "caf\u00e9").rename(source / "cafe\u0301")
    said = Saying()
    with pytest.raises(DataError, match="different Unicode forms"):
        taftcache.append(made, new_classes="take", progress=said)
    assert said.said + lying_in(taftcache.extract(made).notes) == []


def test_a_renamed_folder_is_noticed_below_parts(tmp_path, images):
    """Where there is a test part, ids begin with the part; a folder of it is renamed, too."""
    parts = [shutil.copytree(images, tmp_path / part) for part in ("train", "test")]
    data = {"source": "folder", "train": str(parts[0]), "test": str(parts[1]), "held_out": 0.0}
    made = recipe(tmp_path / "store", data=data)
    taftcache.extract(made)
    for part in parts:
        (part / "1").rename(part / "7")
    (note,) = lying_in(taftcache.append(made, new_classes="skip", dry_run=True).notes)
    assert note.startswith("by their file names, the images of 1 (28) lie in 7 now: ")
