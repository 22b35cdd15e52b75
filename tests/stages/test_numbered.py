"""Ids that are numbers of rows: once a row has moved, nothing is relabelled, added, forgotten or kept out by them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, IdentityError, StoreError, TaftcacheError
from taftcache.remote.jobs import RowJob
from taftcache.remote.rows import _loaded
from taftcache.remote.task import portable
from taftcache.stages.extract.forgotten import BY_NUMBER
from taftcache.stages.extract.moving import _remade
from taftcache.stages.progress import Silent
from taftcache.stages.train.teaching import open_students
from taftcache.view.pictures import Pictures
from tests.stages.making import digits, recipe, tree, write_images, write_inside
from tests.teaching.making import teaching_recipe

ROWS = 42
GONE = 10
LESS = [k for k in range(ROWS) if k != GONE]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Three classes of fourteen files."""
    return write_images(tmp_path_factory.mktemp("numbered") / "digits")


def by_label(images: Path) -> list[int]:
    """The rows of a table that is sorted by label."""
    files = sorted(images.glob("*/*.png"), key=lambda file: file.name)
    return sorted(range(ROWS), key=lambda k: (files[k].parent.name, k))


def asked(path: Path, table: Path, **data):
    named = {"source": "table", "train": str(table), "image_key": "image", "label_key": "label"}
    return recipe(path, data=named | data)


@pytest.fixture
def made(tmp_path, images):
    """A store of a table without ids, which has forgotten a row; its recipe and the table."""
    table = write_inside(tmp_path / "set.parquet", images)
    asking = asked(tmp_path / "store", table)
    report = taftcache.run(asking).extract
    assert [note.startswith("ids are numbers of rows") for note in report.notes] == [True]
    assert taftcache.run(asking).extract.notes == []
    told = taftcache.forget(tmp_path / "store", [f"set/{GONE:04d}"])
    assert told.in_source == [f"set/{GONE:04d}"]
    assert "blanking it in place" in told.notes[-1]
    assert "never removing a row" in told.notes[-1]
    assert "if none has moved" in told.notes[-1]
    return asking, table


@pytest.mark.law("Where ids are numbers of rows, a table whose rows have moved changes nothing in a store")
@pytest.mark.parametrize("order", ["removed", "sorted and removed", "turned", "added in front", "relabelled and moved"])
def test_rows_that_moved_are_refused(made, images, order):
    asking, table = made
    if order == "sorted and removed":
        write_inside(table, images, order=by_label(images))
        asking = asked(table.with_name("sorted"), table)
        taftcache.run(asking)
        rows = [k for at, k in enumerate(by_label(images)) if at != GONE]
    else:
        rows = {
            "removed": LESS,
            "turned": [ROWS - 1, *range(ROWS - 1)],
            "added in front": [5, *range(ROWS)],
            "relabelled and moved": [*range(ROWS - 2), ROWS - 1, ROWS - 2],
        }[order]
    write_inside(table, images, order=rows)
    before = tree(asking.store_path)
    for again in (taftcache.extract(asking), taftcache.run(asking).extract):
        (note,) = again.notes
        assert note.startswith(f"rows of {table} have moved: ids are numbers of rows")
        assert "relabel" not in note
    for options in ({"relabel": True}, {}, {"dry_run": True, "relabel": True}, {"new_shard": True}):
        with pytest.raises(IdentityError, match="have moved") as caught:
            taftcache.append(asking, **options)
        assert "data.id_key" in caught.value.do
    assert tree(asking.store_path) == before


def test_a_table_as_it_was_is_taken(made, images):
    """A row that was blanked or replaced in place, new rows at the end, and corrected labels."""
    asking, table = made
    said = taftcache.extract(asking).notes
    assert [note.startswith("1 row still in the source, forgotten here") for note in said] == [True]
    write_inside(table, images, order=[*range(GONE), 0, *range(GONE + 1, ROWS), 3])
    assert taftcache.append(asking).added
    write_inside(table, images, order=[*range(ROWS), 3][: ROWS - 2])
    said = taftcache.extract(asking).notes
    gone = "not in the source now: 3 rows of the store; ids are numbers of rows there, so which images are gone"
    assert [note.startswith(gone) for note in said] == [True, False]


def test_corrected_labels_are_still_taken(tmp_path, images):
    table, labels = tmp_path / "set.parquet", [k % 3 for k in range(ROWS)]
    asking = asked(tmp_path / "store", write_inside(table, images, other=labels), label_key="other")
    taftcache.extract(asking)
    write_inside(table, images, other=[1, *labels[1:]])
    assert "append --relabel" in taftcache.extract(asking).notes[0]
    assert sum(taftcache.append(asking, relabel=True).relabelled.values()) == 1


def test_a_corrected_label_does_not_hide_rows_that_moved(tmp_path, images):
    """The corrected row is where it was; others of one class changed places."""
    table, labels = tmp_path / "set.parquet", [k % 2 for k in range(ROWS)]
    asking = asked(tmp_path / "store", write_inside(table, images, other=labels), label_key="other")
    taftcache.extract(asking)
    write_inside(table, images, other=[1, *labels[1:]], order=[*range(ROWS - 3), ROWS - 1, ROWS - 2, ROWS - 3])
    with pytest.raises(IdentityError, match="have moved"):
        taftcache.append(asking, relabel=True)


def test_images_that_changed_with_their_labels_are_not_relabelled(tmp_path, images):
    """Of a table with ids, too: the row would get the label of another image."""
    table, names = tmp_path / "set.parquet", [f"c{k}" for k in range(ROWS)]
    asking = asked(tmp_path / "store", write_inside(table, images, n=names), id_key="n")
    taftcache.extract(asking)
    write_inside(table, images, n=["c1", "c0", *names[2:]], order=range(ROWS))
    before = tree(tmp_path / "store")
    (note,) = taftcache.extract(asking).notes
    assert note.startswith(f"images at {table} have changed under their ids")
    assert taftcache.append(asking).notes == [note]
    with pytest.raises(IdentityError, match="have changed under their ids"):
        taftcache.append(asking, relabel=True)
    assert tree(tmp_path / "store") == before


def test_a_label_is_corrected_of_an_image_that_moved_to_the_other_table(tmp_path, images):
    first, test, names = tmp_path / "a.parquet", tmp_path / "b.parquet", [f"c{k}" for k in range(ROWS)]
    labels = [k % 3 for k in range(ROWS)]
    for table, rows in ((first, range(30)), (test, range(30, ROWS))):
        write_inside(table, images, n=names, other=labels, order=rows)
    asking = asked(tmp_path / "store", first, test=str(test), id_key="n", label_key="other")
    taftcache.extract(asking)
    labels[29], labels[30] = labels[30], labels[29]
    for table, rows in ((first, [*range(29), 30]), (test, [29, *range(31, ROWS)])):
        write_inside(table, images, n=names, other=labels, order=rows)
    assert sum(taftcache.append(asking, relabel=True).relabelled.values()) == 2
    with FeatureStore(asking.store_path) as store:
        made, mixed = _remade(store, asking, Silent()), ["c31", "c0", "c30"]
        alone = np.concatenate([made.rows("000", [i]) for i in mixed])
        assert np.allclose(made.rows("000", mixed), alone, atol=1e-3)


def test_what_cannot_be_made_again_is_not_relabelled(made, images, monkeypatch):
    asking, table = made
    write_inside(table, images, order=LESS)

    def fails(*args):
        raise StoreError("no network")

    monkeypatch.setattr("taftcache.stages.extract.reextraction.load_frozen", fails)
    assert "relabel" in str(taftcache.extract(asking).notes)
    before = tree(asking.store_path)
    with pytest.raises(StoreError, match="no network"):
        taftcache.append(asking, relabel=True)
    assert tree(asking.store_path) == before


def test_an_extraction_does_not_go_on_with_rows_that_moved(made, images):
    asking, table = made
    with FeatureStore(asking.store_path, mode="a") as store, store.transaction() as change:
        change.drop_shard("001")
    write_inside(table, images, order=LESS)
    with pytest.raises(IdentityError, match="have moved"):
        taftcache.extract(asking)


@pytest.mark.law("What a store has forgotten by number of row is kept out of another, or the other is refused")
def test_forgotten_of_a_table_whose_rows_moved(made, images, tmp_path):
    asking, table = made
    old = asking.store_path
    new = asked(tmp_path / "new", table)
    said = taftcache.extract(new, forgotten_of=old).notes
    assert [note for note in said if note.startswith(f"{BY_NUMBER}; a few rows of {old}")]
    assert not FeatureStore(tmp_path / "new").holds(f"set/{GONE:04d}")
    shutil.rmtree(tmp_path / "new")
    beside = taftcache.extract(new).notes
    assert BY_NUMBER in beside
    shutil.rmtree(tmp_path / "new")
    write_inside(table, images, order=[ROWS - 1, *range(ROWS - 1)])
    for refused in (taftcache.extract, taftcache.estimate, taftcache.run):
        with pytest.raises(TaftcacheError, match=r"cannot be found in .* rows have moved"):
            refused(new, forgotten_of=old)
    assert not (tmp_path / "new").exists()


def test_forgotten_of_a_store_that_held_rows_out_by_a_recipe_with_a_test(images, tmp_path):
    table = write_inside(tmp_path / "set.parquet", images)
    asking = asked(tmp_path / "store", table, held_out=0.6)
    taftcache.extract(asking)
    taftcache.forget(asking.store_path, [f"set/{GONE:04d}"])
    test = write_inside(tmp_path / "test.parquet", images, paths=True, order=range(5))
    new = asked(tmp_path / "new", table, test=str(test))
    assert f"a few rows of {asking.store_path}" in str(taftcache.extract(new, forgotten_of=asking.store_path).notes)
    assert not FeatureStore(tmp_path / "new").holds(f"set/{GONE:04d}")


def test_with_ids_a_removed_row_is_nothing_to_speak_of(tmp_path, images):
    table = write_inside(tmp_path / "set.parquet", images, paths=True)
    asking = asked(tmp_path / "store", table)
    taftcache.extract(asking)
    ids = sorted(FeatureStore(asking.store_path).sample_ids())
    gone = sorted(file.name for file in images.glob("*/*.png"))[GONE]
    told = taftcache.forget(asking.store_path, [gone])
    assert "deleting it is yours to do" in told.notes[-1]
    write_inside(table, images, paths=True, order=[*LESS[::-1]])
    assert taftcache.extract(asking).notes == []
    assert taftcache.append(asking, relabel=True).relabelled == {}
    other = asked(tmp_path / "other", write_inside(tmp_path / "other.parquet", images, paths=True, order=range(9, 20)))
    taftcache.extract(other, forgotten_of=asking.store_path)
    assert not FeatureStore(tmp_path / "other").holds(gone)
    assert set(FeatureStore(tmp_path / "other").sample_ids()) <= {*ids} - {gone}


def test_ids_of_another_kind_are_refused(made, images, tmp_path):
    """Otherwise every image would be a new one, and one that was forgotten would come back."""
    asking, table = made
    before = tree(asking.store_path)
    write_inside(table, images, paths=True)  # the store's ids are numbers
    for command in (taftcache.extract, taftcache.append):
        with pytest.raises(IdentityError, match="ids of another kind now"):
            command(asking)
    split = asked(asking.store_path, table, train_split="dev")  # which one table does not have
    with pytest.raises(IdentityError, match="ids of another kind now"):
        taftcache.append(split)
    with pytest.raises(IdentityError) as caught:
        taftcache.append(asked(asking.store_path, table, id_key="image"))
    assert "data.id_key" in caught.value.got
    assert tree(asking.store_path) == before
    named = asked(tmp_path / "named", table)
    taftcache.extract(named)
    write_inside(table, images, paths=True, order=[*range(ROWS), 0])  # a path that comes twice names no image
    for command in (taftcache.extract, taftcache.append):
        with pytest.raises(IdentityError, match="ids of another kind now"):
            command(named)
    write_inside(table, images, paths=True, order=range(3))
    assert "39 rows (first: " in str(taftcache.extract(named).notes), "fewer images are no other kind"


def test_each_of_two_tables_keeps_its_kind_of_ids(images, tmp_path):
    """Else the rows of one, all of them new, came in beside those of the other, which had stayed."""
    first = write_inside(tmp_path / "a.parquet", images, order=range(30))
    test = write_inside(tmp_path / "b.parquet", images, paths=True, order=range(30, ROWS))
    asking = asked(tmp_path / "store", first, test=str(test))
    taftcache.extract(asking)
    write_inside(first, images, paths=True, order=range(30))
    for command in (taftcache.extract, taftcache.append):
        with pytest.raises(IdentityError, match="ids of another kind now") as caught:
            command(asking)
        assert "'train/" in caught.value.got
    other = write_inside(tmp_path / "c.parquet", images, order=range(30))
    numbered = asked(tmp_path / "numbered", write_inside(first, images, order=range(30)), test=str(test))
    write_inside(test, images, order=range(30, ROWS))
    taftcache.extract(numbered)
    taftcache.forget(tmp_path / "numbered", ["a/0003"])
    with pytest.raises(IdentityError, match="cannot be found in"):
        taftcache.extract(asked(tmp_path / "new", other, test=str(test)), forgotten_of=tmp_path / "numbered")


def test_a_folder_of_parquet_files_keeps_its_kind_of_ids(images, tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    for split, rows in (("train", range(30)), ("test", range(30, ROWS))):
        write_inside(folder / f"{split}.parquet", images, order=rows)
    asking = asked(tmp_path / "store", folder, test=str(folder), test_split="test")
    taftcache.extract(asking)
    for split, rows in (("train", range(30)), ("test", range(30, ROWS))):
        write_inside(folder / f"{split}.parquet", images, paths=True, order=rows)
    with pytest.raises(IdentityError, match="ids of another kind now"):
        taftcache.append(asking)


class OfTimm(list):
    """A dataset without names of files or classes."""

    def __init__(self, rows: range) -> None:
        pixels, labels = digits()
        super().__init__((Image.fromarray(pixels[k]), labels[k] % 3) for k in rows)
        self.targets = [label for _, label in self]


@pytest.mark.parametrize("kind", ["files", "column", "arrays", "timm"])
def test_another_split_is_appended(images, tmp_path, monkeypatch, kind):
    """Its ids are other numbers, and no kind of their own."""
    place, more = tmp_path / "hub", {}
    splits = {"train": range(30), "validation": range(30, ROWS - 4), "test": range(ROWS - 4, ROWS)}
    if kind == "files":
        place.mkdir()
        for split, rows in splits.items():
            write_inside(place / f"{split}.parquet", images, order=rows)
    elif kind == "column":
        place, more = place.with_suffix(".parquet"), {"test": str(place.with_suffix(".parquet")), "test_split": "test"}
        write_inside(place, images, split=[split for split, rows in splits.items() for _ in rows])
    elif kind == "timm":
        opened = lambda name, *, root, split: OfTimm(splits[split])  # noqa: E731
        monkeypatch.setattr("taftcache.backbone.sources.timm_dataset.create_dataset", opened)
        place, more = Path("torch/of"), {"source": "timm", "root": str(tmp_path)}
    else:
        place, (pixels, labels) = place.with_suffix(".npz"), digits()
        parts = {split: (pixels[rows], labels[rows] % 3) for split, rows in splits.items()}
        np.savez(place, **{f"{s}_{key}": a for s, two in parts.items() for key, a in zip(("x", "y"), two, strict=True)})
        more = {"source": "npz", "image_key": "x", "label_key": "y"}
    taftcache.extract(asked(tmp_path / "store", place, **more))
    other = asked(tmp_path / "store", place, **more, train_split="validation")
    assert sum(taftcache.append(other).added.values()) == ROWS - 34
    with pytest.raises(IdentityError, match=r"data\.train_split"):
        taftcache.extract(other)


def test_paths_that_get_a_split_before_them_are_no_new_images(images, tmp_path):
    """As tables in two folders that were read before their paths were told apart."""
    first, test = tmp_path / "a" / "t.csv", tmp_path / "b" / "t.csv"
    files = sorted(images.glob("*/*.png"))
    for table, part in ((first, files[::2]), (test, files[1::2])):
        table.parent.mkdir()
        lines = [f"{file.name},{file.parent.name}" for file in part]
        for file in part:
            shutil.copy(file, table.parent)
        table.write_text("\n".join(["image,label", *lines]) + "\n")
    before = asked(tmp_path / "store", first)
    taftcache.extract(before)
    with FeatureStore(tmp_path / "store", mode="a") as store, store.transaction() as change:
        recorded = store.manifest.recipe
        change.update(recipe=recorded | {"data": recorded["data"] | {"test": str(test)}})
    with pytest.raises(IdentityError, match="ids of another kind now"):
        taftcache.append(asked(tmp_path / "store", first, test=str(test)))


def test_rows_of_another_table_are_not_said_to_be_gone(tmp_path, images):
    first = write_inside(tmp_path / "a.parquet", images, order=range(30))
    asking = asked(tmp_path / "store", first)
    taftcache.extract(asking)
    more = write_inside(tmp_path / "b.parquet", images, order=range(30, ROWS))
    appended = taftcache.append(asked(tmp_path / "store", more)).notes
    assert [note.startswith("ids are numbers of rows") for note in appended] == [True]
    said = taftcache.extract(asking).notes
    assert [n.startswith("in the store, but not in the source that the recipe names: 12 rows") for n in said] == [True]
    assert "appended from elsewhere or gone since" in said[0]


def test_numbers_of_arrays_are_as_those_of_tables(tmp_path, images):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (30, 8, 8, 3), np.uint8), np.arange(30) % 2
    file = tmp_path / "set.npz"

    def write(rows, **more):
        np.savez(file, images=pixels[rows], labels=labels[rows], **more)

    write(range(30))
    asking = recipe(tmp_path / "store", data={"source": "npz", "train": str(file)})
    (note,) = taftcache.extract(asking).notes
    assert "an array of them, named id" in note
    write([k for k in range(30) if k != 4])
    with pytest.raises(IdentityError, match="have moved"):
        taftcache.append(asking, relabel=True)
    write(range(30), id=[f"c{k}" for k in range(30)])
    with pytest.raises(IdentityError, match="ids of another kind now"):
        taftcache.append(asking)
    with pytest.raises(DataError, match="no array named 'x'"):
        taftcache.extract(recipe(tmp_path / "x", data={"source": "npz", "train": str(file), "id_key": "x"}))


def test_numbers_of_vectors_are_said_to_keep_out_by_number(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    taftcache.import_vectors(x, y, tmp_path / "a")
    assert BY_NUMBER not in taftcache.import_vectors(x, y, tmp_path / "b", forgotten_of=tmp_path / "a").notes
    taftcache.forget(tmp_path / "a", [sorted(FeatureStore(tmp_path / "a").sample_ids())[0]])
    assert BY_NUMBER in taftcache.import_vectors(x, y, tmp_path / "c", forgotten_of=tmp_path / "a").notes
    assert BY_NUMBER not in taftcache.import_vectors(x, y, tmp_path / "a").notes, "every row is compared"


@pytest.fixture
def one_digit(monkeypatch):
    """Numbers of rows have one digit at least in place of four, so that ten rows are as many as ten thousand."""
    monkeypatch.setattr("taftcache.backbone.sources.arrays._DIGITS", 1)


def write_rows(file: Path, rows: int) -> Path:
    """An npz file of the first digits, of three classes."""
    pixels, labels = digits()
    np.savez(file, images=pixels[:rows], labels=labels[:rows] % 3)
    return file


def grown(tmp_path: Path, images: Path, kind: str):
    """A recipe of nine rows, whose store has forgotten one; and what writes as many rows in place of them."""
    if kind == "npz":
        write, named = partial(write_rows, tmp_path / "set.npz"), {"source": "npz"}
    else:
        write = lambda rows: write_inside(tmp_path / "set.parquet", images, order=range(rows))  # noqa: E731
        named = {"source": "table", "image_key": "image", "label_key": "label"}
    data = {"train": str(write(9)), "held_out": 0.0} | named
    asking = recipe(tmp_path / "store", data=data, store={"cache": "feature"}, tangent={"train": "head"})
    taftcache.extract(asking)
    taftcache.forget(asking.store_path, ["set/4"])
    return asking, write


def ids_of(path: Path) -> list[str]:
    return sorted(FeatureStore(path).sample_ids())


def numbered(rows: int, *gone: int, digits: int = 1) -> list[str]:
    return sorted(f"set/{k:0{digits}d}" for k in range(rows) if k not in gone)


@pytest.mark.law(
    "A file whose ids are numbers of rows may grow past their digits, and shrink, and each row keeps its id"
)
@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_a_file_grows_past_its_digits(one_digit, tmp_path, images, kind):
    asking, write = grown(tmp_path, images, kind)
    write(30)
    (new, gone) = taftcache.extract(asking).notes
    assert new.startswith("not in the store: 21 images of the source (first: set/10)")
    assert "1 row still in the source, forgotten here: set/4;" in gone
    assert sum(taftcache.append(asking).added.values()) == 21
    assert ids_of(asking.store_path) == numbered(30, 4)
    with FeatureStore(asking.store_path) as store:
        assert all(map(Pictures(store).encoded, numbered(30, 4)))
    for file in asking.store_path.glob("shards/*/labels/c.0"):
        file.rename(file.with_name("away"))
    with FeatureStore(asking.store_path) as store:  # which still knows its ids
        assert all(map(Pictures(store).encoded, numbered(30, 4)))
    for file in asking.store_path.glob("shards/*/labels/away"):
        file.rename(file.with_name("c.0"))
    assert [note.startswith("1 row still") for note in taftcache.extract(asking).notes] == [True]
    assert taftcache.append(asking).added == {}
    assert taftcache.forget(asking.store_path, ["set/7"]).in_source == ["set/7"]
    other = msgspec.structs.replace(asking, store=msgspec.structs.replace(asking.store, path=str(tmp_path / "other")))
    assert sum(taftcache.estimate(other, forgotten_of=asking.store_path).rows.values()) == 28
    taftcache.extract(other, forgotten_of=asking.store_path)
    shutil.rmtree(asking.store_path)
    taftcache.extract(asking)  # the place remembers what was forgotten
    assert ids_of(asking.store_path) == ids_of(other.store_path) == numbered(30, 4, 7)


def test_nothing_is_asked_where_there_is_no_store_and_nothing_is_remembered(one_digit, tmp_path, images, monkeypatch):
    """For a file of a million images, four million ids."""
    asking, _ = grown(tmp_path, images, "npz")
    other = msgspec.structs.replace(asking, store=msgspec.structs.replace(asking.store, path=str(tmp_path / "other")))
    monkeypatch.setattr("taftcache.backbone.sources.arrays._first_numbers", lambda *rows: pytest.fail("it is asked"))
    assert sum(taftcache.estimate(other).rows.values()) == 9
    taftcache.extract(other)
    assert ids_of(other.store_path) == numbered(9)


def test_workers_and_students_see_the_ids_of_the_store(one_digit, tmp_path, images):
    asking, write = grown(tmp_path, images, "npz")
    data = {"source": "npz", "train": str(write(30)), "limit": None}
    taftcache.append(asking)
    taught = teaching_recipe(tmp_path / "students", {"t": asking.store_path}, data=data)
    with open_students(taught, Silent()) as students:
        assert sorted(students.joined.ids) == numbered(30, 4)
    shutil.rmtree(asking.store_path)

    class Asked(Exception):
        pass

    class Cluster:
        def rows(self, *asked):
            raise Asked(*asked)

    with pytest.raises(Asked) as caught:
        taftcache.extract(asking, cluster=Cluster())
    _, classes, identity, known = caught.value.args
    job = RowJob(recipe=portable(asking), classes=classes, identity=identity, known=known, threads=1)
    assert sorted(item.id for item in _loaded(job).sources[0].items) == numbered(30)


def test_a_file_shrinks_below_its_digits(one_digit, tmp_path, images):
    asking = recipe(tmp_path / "store", data={"source": "npz", "train": str(write_rows(tmp_path / "set.npz", 30))})
    taftcache.extract(asking)
    taftcache.forget(asking.store_path, ["set/04"])
    write_rows(tmp_path / "set.npz", 8)
    assert taftcache.extract(asking).notes[0].startswith("not in the source now: 22 rows of the store")
    assert taftcache.append(asking).added == {}
    shutil.rmtree(asking.store_path)
    taftcache.extract(asking)
    with FeatureStore(asking.store_path) as store:
        assert sorted(store.every_id) == numbered(8, 4, digits=2)


def test_rows_past_the_digits_that_moved_are_refused(one_digit, tmp_path, images):
    asking, write = grown(tmp_path, images, "parquet")
    write(30)
    taftcache.append(asking)
    files = sorted(images.glob("*/*.png"), key=lambda file: file.name)
    twin = next(k for k in (28, 26, 25, 24, 22, 21, 20) if files[k].parent == files[29].parent)  # of one class
    order = [{twin: 29, 29: twin}.get(k, k) for k in range(30)]
    write_inside(tmp_path / "set.parquet", images, order=order)
    with pytest.raises(IdentityError, match="have moved"):
        taftcache.append(asking)
