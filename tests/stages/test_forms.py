"""Ids whose files went through macOS, an archive or a shared folder: the same letters in another Unicode form."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unicodedata import normalize

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import taftcache
from taftcache.cache.copying import copy
from taftcache.cache.format import ledger
from taftcache.cache.format.plan import check_forms, shard_of
from taftcache.cache.store import FeatureStore
from taftcache.cache.write import sweep
from taftcache.cache.write.writer import ShardWriter
from taftcache.cli import app
from taftcache.errors import DataError, StaleStore
from taftcache.stages.extract.classes import other_classes_note
from taftcache.stages.forget.request import resolve_request
from taftcache.terminal.forgetting import show_receipts
from tests.cache.making import create, fill, forget
from tests.stages.making import digits, open_store, recipe, tree, write_images

ONE = "Zoé Brontë"
OTHER = "Łukasz Żółty"
SMALL = ["store.shards=2", "store.chunk_rows=8", "device=cpu"]
X, Y = np.random.default_rng(0).normal(size=(36, 6)).astype(np.float32), np.arange(36) % 3


def asked(path: Path, images: Path, **sections):
    return recipe(path, data={"source": "folder", "train": str(images), "held_out": 0.2}, **sections)


def parted(path: Path, images: Path, test: Path):
    return recipe(path, data={"source": "folder", "train": str(images), "test": str(test), "held_out": 0.0})


def ids(form: str) -> list[str]:
    """Ids of vectors, two of which have accents."""
    return [*(f"v/{k}" for k in range(34)), f"v/{normalize(form, ONE)}", f"v/{normalize(form, OTHER)}"]


def exact(earlier: pytest.MonkeyPatch) -> None:
    """Ask about exact ids alone, as earlier releases did."""
    earlier.setattr(ledger, "forgotten_form", lambda i, key, known: i if ledger.tombstone(i, key) in known else None)


@contextmanager
def stopped_after_a_shard() -> Iterator[None]:
    real = ShardWriter.commit

    def stop(self: ShardWriter, **options) -> None:
        real(self, **options)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardWriter, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """Stores of vectors, by the form of their ids. Not to be written to."""
    paths = {form: tmp_path_factory.mktemp(form) / "store" for form in ("NFC", "NFD")}
    for form, path in paths.items():
        taftcache.import_vectors(X, Y, path, ids=ids(form), overrides=SMALL)
    return paths


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A folder of images, two of which have accents, composed. Not to be written to."""
    folder = write_images(tmp_path_factory.mktemp("photos") / "photos", per_class=6)
    for digit, name in (("0", ONE), ("1", OTHER)):
        file = min((folder / digit).iterdir())
        file.rename(file.with_name(normalize("NFC", name) + ".png"))
    return folder


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, photos) -> Path:
    """A store of ``photos``. Not to be written to."""
    path = tmp_path_factory.mktemp("extracted") / "store"
    taftcache.extract(asked(path, photos))
    return path


def in_form(form: str, folder: Path, to: Path) -> Path:
    """A copy of a folder of classes, its names in another form."""
    for file in folder.glob("*/*.png"):
        (to / normalize(form, file.parent.name)).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to / normalize(form, file.parent.name) / normalize(form, file.name))
    return to


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
@pytest.mark.parametrize(("first", "later"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_forgotten_image_stays_out_in_another_form(photos, tmp_path, first, later, capsys):
    """With the same data, at the same place after the store is gone, and in another store."""
    path, images = tmp_path / "store", in_form(first, photos, tmp_path / "images")
    taftcache.extract(asked(path, images))
    mine = [f"0/{normalize(first, ONE)}.png", f"1/{normalize(first, OTHER)}.png"]
    theirs = [normalize(later, i) for i in mine]
    taftcache.forget(path, mine)
    root = FeatureStore(path).root_digest
    shutil.rmtree(images)
    in_form(later, photos, images)
    appended = taftcache.append(asked(path, images))
    assert (appended.added, appended.root_digest) == ({}, root)
    again = taftcache.extract(asked(path, images))
    for notes in (appended.notes, again.notes):
        said = f"forgotten here in this Unicode form or another: {', '.join(sorted(theirs))}; deleting"
        assert any(f"2 images still in the source, {said}" in note for note in notes)
    taftcache.extract(asked(tmp_path / "other", images), forgotten_of=path)
    shutil.rmtree(path)
    anew = taftcache.extract(asked(path, images))
    assert "2 samples left out, forgotten before in this Unicode form or another" in anew.notes
    for place in (path, tmp_path / "other"):
        with FeatureStore(place) as store:
            assert len(store.every_id) == 16
            assert not store.every_id.intersection([*mine, *theirs])
    receipts = taftcache.receipts(path, theirs)
    assert [a.state for a in receipts.samples] == ["forgotten", "forgotten"]


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_a_forgotten_class_stays_out_in_another_form(photos, tmp_path):
    path, images = tmp_path / "store", shutil.copytree(photos, tmp_path / "images")
    (images / "2").rename(images / normalize("NFC", ONE))
    taftcache.extract(asked(path, images))
    taftcache.forget(path, classes=[normalize("NFC", ONE)])
    (images / normalize("NFC", ONE)).rename(images / normalize("NFD", ONE))
    shutil.copy(images / normalize("NFD", ONE) / "0002.png", images / normalize("NFD", ONE) / "new.png")
    report = taftcache.append(asked(path, images), new_classes="take")
    assert (report.added, report.closed) == ({}, {normalize("NFD", ONE): 1})


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
@pytest.mark.parametrize(("first", "later"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_forgotten_vector_stays_out_in_another_form(made, tmp_path, first, later):
    """Appended, imported again, from a file, and into a new store; an export, which has it, is refused as a whole."""
    path = shutil.copytree(made[first], tmp_path / "store")
    taftcache.forget(path, ids(first)[-2:])
    root = FeatureStore(path).root_digest
    assert taftcache.append_vectors(X, Y, path, ids=ids(later)).added == {}
    assert taftcache.import_vectors(X, Y, path, ids=ids(later), overrides=SMALL).root_digest == root
    np.savez(tmp_path / "rows.npz", vectors=X, labels=Y, ids=np.array(ids(later)))
    taftcache.import_(tmp_path / "rows.npz", tmp_path / "other", overrides=SMALL, forgotten_of=path)
    table = pa.table({"vectors": [*X], "labels": Y, "ids": ids(later)})
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert CliRunner().invoke(app, ["append", str(path), str(tmp_path / "rows.parquet")]).exit_code == 0
    assert FeatureStore(path).root_digest == root
    taftcache.export(made[later], tmp_path / "rows.h5")
    shutil.rmtree(path)
    with pytest.raises(StaleStore, match="2 samples of it forgotten"):
        taftcache.import_(tmp_path / "rows.h5", path)
    with pytest.raises(StaleStore, match="forgotten"):
        copy(FeatureStore(made[later]), path)
    with h5py.File(tmp_path / "vectors.h5", "w") as file:
        for name, values in {"vectors": X, "labels": Y, "ids": ids(later)}.items():
            file[name] = values
    taftcache.import_(tmp_path / "vectors.h5", path, overrides=SMALL)
    for place in (path, tmp_path / "other"):
        with FeatureStore(place) as store:
            assert store.every_id == set(ids(first)[:-2])


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_an_image_that_the_store_has_in_another_form_is_refused(extracted, photos, tmp_path):
    """A folder came back from another system, with one new image in it; also by the classes' names alone."""
    path = shutil.copytree(extracted, tmp_path / "store")
    images, before = in_form("NFD", photos, tmp_path / "images"), tree(path)
    shutil.copy(min((images / "2").iterdir()), images / "2" / "new.png")
    for new_shard in (False, True):
        with pytest.raises(DataError, match="the same text in different Unicode forms") as caught:
            taftcache.append(asked(path, images), new_shard=new_shard)
        assert caught.value.got.startswith("2 pairs, the first: '0/Zoe\\u0301 Bronte\\u0308.png', and in the store ")
        assert caught.value.got.endswith("'0/Zo\\xe9 Bront\\xeb.png'")
        assert tree(path) == before
    for digit, name in (("0", ONE), ("1", OTHER)):
        (images / digit / f"{normalize('NFD', name)}.png").rename(images / digit / f"{normalize('NFC', name)}.png")
    assert sum(taftcache.append(asked(path, images)).added.values()) == 1
    named = shutil.copytree(photos, tmp_path / "named")
    for file in named.glob("[01]/[!0]*.png"):
        file.unlink()
    (named / "2").rename(named / normalize("NFC", ONE))
    taftcache.extract(asked(tmp_path / "classes", named))
    with pytest.raises(DataError, match="Unicode forms"):
        taftcache.append(asked(tmp_path / "classes", in_form("NFD", named, tmp_path / "apart")))


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_an_image_that_was_skipped_in_another_form_is_refused(photos, tmp_path):
    images = shutil.copytree(photos, tmp_path / "images")
    broken = images / "2" / f"{normalize('NFC', ONE)}.png"
    broken.write_bytes(b"no image")
    made = recipe(tmp_path / "store", data={"source": "folder", "train": str(images), "unreadable": "skip"})
    taftcache.extract(made)
    broken.unlink()
    shutil.copy(images / "2" / "0002.png", images / "2" / f"{normalize('NFD', ONE)}.png")
    with pytest.raises(DataError, match="Unicode forms"):
        taftcache.append(made)


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_two_forms_in_one_source_are_refused_unless_both_stay_out(photos, tmp_path):
    path, images = tmp_path / "store", in_form("NFC", photos, tmp_path / "images")
    mine = images / "0" / f"{normalize('NFC', ONE)}.png"
    shutil.copy(images / "0" / "0010.png", mine.with_name(normalize("NFD", mine.name)))
    for call in (taftcache.extract, taftcache.estimate):
        with pytest.raises(DataError, match="Unicode forms") as caught:
            call(asked(path, images))
        assert caught.value.got.startswith("1 pair, the first: ")
        assert "in the store" not in caught.value.got
    assert not path.exists()
    both = ids("NFC")[:-2] + [f"v/{normalize(form, ONE)}" for form in ("NFC", "NFD")]
    with pytest.raises(DataError, match="Unicode forms"):
        taftcache.import_vectors(X, Y, path, ids=both, overrides=SMALL)
    with pytest.raises(DataError, match="Unicode forms"):
        taftcache.import_vectors(X[:-1], Y[:-1], path, ids=both[:-1], test=(X[-1:], Y[-1:], both[-1:]), overrides=SMALL)
    assert not path.exists()
    shutil.move(mine, tmp_path / "aside.png")
    taftcache.extract(asked(path, images))
    taftcache.forget(path, [f"0/{normalize('NFD', ONE)}.png"])
    shutil.move(tmp_path / "aside.png", mine)
    assert taftcache.append(asked(path, images)).added == {}, "neither comes in"


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_an_extraction_does_not_go_on_with_names_in_another_form(photos, tmp_path):
    """Otherwise an image of the first shard would come into the second under its other name."""
    path, images = tmp_path / "store", shutil.copytree(photos, tmp_path / "images")
    shards = {"store": {"shards": 3}}
    with stopped_after_a_shard():
        taftcache.extract(asked(path, images, **shards))
    with FeatureStore(path) as store:
        assert [i for i in store.every_id if not i.isascii()], "it has one of the two"
        before = store.root_digest
    shutil.rmtree(images)
    with pytest.raises(DataError, match=r"Unicode forms(?s:.*)in the store"):
        taftcache.extract(asked(path, in_form("NFD", photos, images), **shards))
    assert FeatureStore(path).root_digest == before


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_the_writer_refuses_it_and_staged_rows_of_it_are_swept(tmp_path, monkeypatch):
    gone, back = (f"a/{normalize(form, ONE)}" for form in ("NFC", "NFD"))
    with create(tmp_path / "store") as store:
        fill(store, "000", ["a/plain", gone])
    forget(tmp_path / "store", gone)
    with open_store(tmp_path / "store") as store:
        with pytest.raises(DataError, match="was forgotten and must not come back"):
            fill(store, "001", [back])
        exact(monkeypatch)
        fill(store, "001", [back, "a/1", "a/2", "a/3", "a/4", "a/5"], stop=1)
        assert back in store.staged_ids()["001"]
        monkeypatch.undo()
    with open_store(tmp_path / "store") as store:
        assert store.staged_ids() == {}


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_an_extraction_does_not_go_on_with_what_it_skipped_in_another_form(photos, tmp_path):
    path, images = tmp_path / "store", shutil.copytree(photos, tmp_path / "images")
    for file in images.glob("[01]/[!0]*.png"):
        file.unlink()
    some = (normalize("NFC", f"{ONE} {k}.png") for k in range(99))
    name = next(name for name in some if shard_of(f"2/{name}", 3, 0) == "000")
    (images / "2" / name).write_bytes(b"no image")
    data = {"source": "folder", "train": str(images), "unreadable": "skip", "held_out": 0.0}
    asking = recipe(path, data=data, store={"shards": 3, "seed": 0})
    with stopped_after_a_shard():
        taftcache.extract(asking)
    assert [s.id for s in FeatureStore(path).manifest.skipped] == [f"2/{name}"]
    (images / "2" / name).unlink()
    shutil.copy(images / "2" / "0002.png", images / "2" / normalize("NFD", name))
    with pytest.raises(DataError, match=r"Unicode forms(?s:.*)in the store"):
        taftcache.extract(asking)


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_an_import_does_not_go_on_with_ids_in_another_form(tmp_path):
    path, some = tmp_path / "store", [f"{ONE} {k}" for k in range(36)]
    composed, apart = ([normalize(form, i) for i in some] for form in ("NFC", "NFD"))
    with stopped_after_a_shard():
        taftcache.import_vectors(X, Y, path, ids=composed, overrides=SMALL)
    with pytest.raises(DataError, match=r"Unicode forms(?s:.*)in the store"):
        taftcache.import_vectors(X, Y, path, ids=apart, overrides=SMALL)
    taftcache.import_vectors(X, Y, path, ids=composed, overrides=SMALL)
    with FeatureStore(path) as store:
        assert store.every_id == {*composed}


def test_what_nobody_can_commit_any_more_is_known_in_another_form(tmp_path, monkeypatch):
    """Where no lock keeps others out: a shard that was put there by a writer who did not know of the request."""
    gone, back = (f"a/{normalize(form, ONE)}" for form in ("NFC", "NFD"))
    for name, ids in (("store", ["a/plain", gone]), ("late", ["a/1", back]), ("other", ["a/2", "a/3"])):
        with create(tmp_path / name) as store:
            fill(store, "000", ids)
    forget(tmp_path / "store", gone)
    for name in ("late", "other"):
        shutil.copytree(tmp_path / name / "shards", tmp_path / "store" / "shards", dirs_exist_ok=True)
    monkeypatch.setattr(sweep, "outdated", lambda root, path: False)
    with FeatureStore(tmp_path / "store") as store:
        late = {path for path in store.strays() if (tmp_path / "late" / path).exists()}
        assert len(store.strays()) == 2 * len(late) == 4
        assert sweep.hopeless(store.root, store.manifest, store.strays()) == late


def test_a_row_that_came_back_in_another_form_is_found_and_can_be_forgotten(made, tmp_path, monkeypatch):
    """Earlier releases asked about exact ids alone, and took it in again."""
    path, (gone, back) = shutil.copytree(made["NFC"], tmp_path / "store"), (ids("NFC")[-1], ids("NFD")[-1])
    taftcache.forget(path, [gone])
    with monkeypatch.context() as earlier:
        exact(earlier)
        assert taftcache.append_vectors(X[-1:], Y[-1:], path, ids=[back]).images == 1
    assert [f.kind for f in taftcache.audit(path).findings] == ["forgotten row"]
    with pytest.raises(DataError, match="1 id would stay") as caught:
        taftcache.forget(path, [gone])
    assert caught.value.got == f"{back!a} for {gone!a}"
    assert taftcache.forget(path, [back]).forgotten == [back]
    assert taftcache.audit(path).findings == []
    assert taftcache.forget(path, [gone, back]).already == [gone, back]


def test_of_two_forms_of_one_id_neither_leaves_alone(tmp_path):
    """A store of an earlier release may have both. What would stay counts as forgotten from then on."""
    kept, apart, skipped = "a/plain", f"a/{normalize('NFD', ONE)}", f"a/{normalize('NFD', OTHER)}"
    composed, other = (normalize("NFC", i) for i in (apart, skipped))
    with create(tmp_path / "store") as store:
        fill(store, "000", [kept, apart, composed, skipped, other], bad=[skipped])
        for one, left in ((composed, apart), (apart, composed), (other, skipped)):
            with pytest.raises(DataError, match="would stay that is named here in another") as caught:
                resolve_request(store, [one])
            assert caught.value.got == f"{left!a} for {one!a}"
        assert resolve_request(store, [composed, apart, other, skipped]).samples == [composed, apart, other, skipped]
        assert resolve_request(store, [kept]).samples == [kept]


@pytest.mark.parametrize("form", ["300K", "300\u212a"])
def test_a_form_in_ascii_is_one_too(tmp_path, form):
    """The NFC form of the kelvin sign is K: once one of both is forgotten, the other counts as forgotten."""
    both = ["300K", "300\u212a"]
    (other,) = {*both} - {form}
    with create(tmp_path / "store") as store:
        fill(store, "000", ["plain", *both])
        with pytest.raises(DataError, match="1 id would stay that is named here in another Unicode form") as caught:
            resolve_request(store, [form])
        assert caught.value.got == f"{other!a} for {form!a}"
        assert resolve_request(store, both).samples == both
    with pytest.raises(DataError, match="Unicode forms"):
        check_forms(both)
    with pytest.raises(DataError, match=r"Unicode forms(?s:.*)in the store"):
        check_forms([form], [other])
    check_forms([form, "plain"], [form, "plain"])


def test_receipts_name_the_form_that_a_request_named(made, tmp_path, capsys):
    path, (gone, asked_for) = shutil.copytree(made["NFC"], tmp_path / "store"), (ids("NFC")[-1], ids("NFD")[-1])
    taftcache.forget(path, [gone])
    report = taftcache.receipts(path, [asked_for, gone])
    assert [(a.state, a.receipts, a.alike) for a in report.samples] == [
        ("forgotten", [1], gone),
        ("forgotten", [1], None),
    ]
    show_receipts(report)
    assert f", as {gone!a}, which looks the same" in capsys.readouterr().out
    assert taftcache.forget(path, [asked_for]).already == [asked_for]
    with open_store(path) as store:
        assert store.is_forgotten(asked_for)


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_what_was_forgotten_in_a_mixture_of_forms_stays_out_in_each(tmp_path):
    """A folder is in one form, a file in it in the other. Receipts know the id, also by the digest of many."""
    mixed = f"v/{normalize('NFC', ONE)}/{normalize('NFD', OTHER)}"
    forms = [mixed, normalize("NFC", mixed), normalize("NFD", mixed)]
    path = tmp_path / "store"
    taftcache.import_vectors(X, Y, path, ids=[*ids("NFC")[:-1], mixed], overrides=SMALL)
    taftcache.forget(path, [mixed])
    for form in forms:
        assert taftcache.append_vectors(X[-1:], Y[-1:], path, ids=[form]).added == {}
        (answer,) = taftcache.receipts(path, [form]).samples
        assert (answer.state, answer.receipts) == ("forgotten", [1])
        assert taftcache.forget(path, [form]).already == [form]
    assert taftcache.audit(path).findings == []


@pytest.mark.law("What was forgotten stays out in every Unicode form, and what is held is refused in another")
def test_a_class_in_another_form_is_refused(photos, tmp_path):
    """It came in as a further class, and counted as forgotten once the other was."""
    path, images = tmp_path / "store", shutil.copytree(photos, tmp_path / "images")
    composed, apart = (normalize(form, ONE) for form in ("NFC", "NFD"))
    (images / "2").rename(images / composed)
    shutil.copytree(images / "1", images / apart)
    refused = "two classes are the same text in different Unicode forms"
    for call in (taftcache.extract, taftcache.estimate):
        with pytest.raises(DataError, match=refused):
            call(asked(path, images))
    assert not path.exists()
    more = shutil.copytree(images, tmp_path / "more")
    shutil.rmtree(images / apart)
    shutil.rmtree(more / composed)
    with pytest.raises(DataError, match=refused):
        taftcache.extract(parted(path, images, more))
    taftcache.extract(asked(path, images))
    before = tree(path)
    for file in (more / apart).iterdir():
        file.rename(file.with_name(f"more {file.name}"))
    for new_classes in ("refuse", "skip", "take"):
        with pytest.raises(DataError, match=refused) as caught:
            taftcache.append(asked(path, more), new_classes=new_classes)
        assert caught.value.got.endswith(f"{apart!a}, and in the store {composed!a}")
    shutil.copytree(more / apart, images / apart)
    (note,) = taftcache.extract(asked(path, images)).notes
    assert note.startswith(f"append takes none of 6 images not in the store: {refused}")
    assert tree(path) == before


def test_of_two_forms_of_one_class_neither_leaves_alone(tmp_path):
    """A store of an earlier release may have both."""
    forms = [normalize(form, ONE) for form in ("NFC", "NFD")]
    path = tmp_path / "store"
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr("taftcache.stages.extract.forgotten.check_forms", lambda *given: None)
        taftcache.import_vectors(X, [["a", *forms][k] for k in Y], path, overrides=SMALL)
    with open_store(path) as store:
        with pytest.raises(DataError, match="1 class would stay that is named here in another Unicode form"):
            resolve_request(store, classes=forms[:1])
        assert resolve_request(store, classes=forms).classes == sorted(forms)


def test_extract_says_once_that_images_are_held_in_another_form(photos, tmp_path):
    """It said that append takes them in, which refuses them, and that their rows are not in the source."""
    made = asked(tmp_path / "store", in_form("NFC", photos, tmp_path / "images"))
    taftcache.extract(made)
    shutil.rmtree(tmp_path / "images")
    images = in_form("NFD", photos, tmp_path / "images")
    (note,) = taftcache.extract(made).notes
    assert note.startswith("2 images have ids of the store in another Unicode form (first: '0/Zoe\\u0301 Bronte")
    assert note.endswith("; append takes nothing until they are named as in the store")
    shutil.copy(min((images / "2").iterdir()), images / "2" / "new.png")
    (note,) = taftcache.extract(made).notes
    assert note.endswith("; append takes nothing (1 other image not in the store) until they are named as in the store")


def test_ids_in_another_form_are_of_the_same_kind(tmp_path):
    """All ids of the training images have accents, and those of the test images are numbers: the former were refused as
    ids of another kind."""
    pixels, labels = digits()
    made = recipe(
        tmp_path / "store",
        data={"source": "npz", "train": str(tmp_path / "a.npz"), "test": str(tmp_path / "b.npz"), "held_out": 0.0},
    )
    some = [f"{ONE} {k}" for k in range(30)]
    for form in ("NFC", "NFD"):
        np.savez(tmp_path / "a.npz", images=pixels[:30], labels=labels[:30], id=[normalize(form, i) for i in some])
        np.savez(tmp_path / "b.npz", images=pixels[30:40], labels=labels[30:40])
        notes = taftcache.extract(made).notes
    assert any(note.startswith("30 images have ids of the store in another Unicode form") for note in notes)


def test_labels_in_another_form_are_told_apart():
    (note,) = other_classes_note({"v/1": (normalize("NFC", ONE), normalize("NFD", ONE))})
    assert "'Zo\\xe9 Bront\\xeb' in the store, 'Zoe\\u0301 Bronte\\u0308' in the data" in note
    (note,) = other_classes_note({"v/1": (ONE, OTHER)})
    assert f"{ONE!r} in the store, {OTHER!r} in the data" in note


def test_the_data_of_another_store_is_known_in_another_form(tmp_path):
    """All ids have accents: it was refused as data that has none of the ids."""
    some = [f"v/{k}/{ONE}" for k in range(12)]
    path, new = tmp_path / "store", tmp_path / "new"
    taftcache.import_vectors(X[:12], Y[:12], path, ids=[normalize("NFC", i) for i in some], overrides=SMALL)
    taftcache.forget(path, [normalize("NFC", some[0])])
    np.savez(tmp_path / "rows.npz", vectors=X[:12], labels=Y[:12], ids=np.array([normalize("NFD", i) for i in some]))
    taftcache.import_(tmp_path / "rows.npz", new, overrides=SMALL, forgotten_of=path)
    with FeatureStore(new) as store:
        assert store.every_id == {normalize("NFD", i) for i in some[1:]}
