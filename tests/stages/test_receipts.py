"""Whether an id was forgotten, when and by which receipt: what a store can say of it, and what it cannot."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

import taftcache
from taftcache.cache.format.ledger import tombstone
from taftcache.cache.read.nearest import by_ending
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import DataError, IntegrityError, UnknownSample
from taftcache.stages.forget import receipts
from taftcache.stages.forget.receipts import Answer
from taftcache.terminal.forgetting import show_receipts
from taftcache.terminal.inspection import show_inspect
from tests.cache.making import create
from tests.keys import make_key
from tests.stages.making import open_store, recipe, tree, write_images


@dataclass(frozen=True)
class Asked:
    """A store with two receipts, the first signed, the second with a digest of its ids alone. Not to be written to."""

    path: Path
    first: str
    back: str
    others: list[str]
    every: list[str]
    signer: str


@pytest.fixture(scope="module")
def asked(finished, tmp_path_factory) -> Asked:
    root = tmp_path_factory.mktemp("receipts")
    signer = make_key(root / "key.pem")
    path = shutil.copytree(finished, root / "store")
    with open_store(path) as store:
        every = [i for s in (*store.shards, store.held_out) for i in s.sample_ids]
        first, back, *others = store.shard("000").sample_ids[:4]
        tokens = store.shard("000").tokens(slice(1, 2))
        taftcache.forget(store, [first, back], signing_key=root / "key.pem")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(receipts, "MAX_IDS", 1)
            taftcache.forget(store, others, mode="subtract")
        with store.writer("002", "train", tokens_shape=tokens.shape[1:], candidates=[back]) as writer:
            writer._check = lambda *args: None
            writer.append(tokens, [back], np.zeros(1, np.int32))
            writer.commit()
    return Asked(path, first, back, others, every, signer)


def answers(path: Path, *samples: str) -> list[Answer]:
    with FeatureStore(path) as store:
        return taftcache.receipts(store, samples).samples


@pytest.mark.law("A store says of an id whether it is held, forgotten and by which receipt, or not known")
def test_each_kind_of_id_has_its_answer(asked):
    before = tree(asked.path.parent)
    held = next(i for i in asked.every if i not in {asked.first, asked.back, *asked.others})
    first, back, one, here, unknown = answers(asked.path, asked.first, asked.back, asked.others[0], held, "digits/x")
    assert first == Answer(sample=asked.first, state="forgotten", receipts=[1])
    assert back == Answer(sample=asked.back, state="held", shard="002", receipts=[1])
    assert one == Answer(sample=asked.others[0], state="forgotten", perhaps=[2])
    assert (here.state, here.receipts) == ("held", [])
    assert unknown == Answer(sample="digits/x", state="unknown")
    # of a digest alone, the whole request is recognised, among others too
    whole = answers(asked.path, held, asked.first, *asked.others)
    assert [a.receipts for a in whole] == [[], [1], [2], [2]]
    with pytest.raises(DataError, match="must be Unicode"):
        answers(asked.path, "\udcff")
    assert tree(asked.path.parent) == before
    report = taftcache.receipts(asked.path, [asked.first, asked.others[0]])
    assert ([r.seq for r in report.receipts], [r.seq for r in report.perhaps]) == ([1], [2]), "certain, and not"


@pytest.mark.law("A list of receipts names no id but those that were asked about")
def test_no_other_id_is_named(asked, capsys):
    with FeatureStore(asked.path) as store:
        alone, report = taftcache.receipts(store, [asked.first]), taftcache.receipts(store)
        taken = [entry["ids"] for entry in store.ledger() if "ids" in entry]
    assert alone.receipts == report.receipts[:1], "the answer about one sample can be handed on"
    show_receipts(alone)
    show_receipts(report)
    said = json.dumps([msgspec.to_builtins(r) for r in report.receipts]) + capsys.readouterr().out
    assert not [i for i in asked.every if i in said and i != asked.first]
    assert not [hashed for ids in taken for hashed in ids if hashed in said]
    assert [(r.seq, r.samples, r.listed, r.signature, r.mode) for r in report.receipts] == [
        (1, 2, True, "valid", "retrain"),
        (2, 2, False, "none", "subtract"),
    ]
    assert report.receipts[0].certificates["components/000"].decisive
    assert (asked.path / report.receipts[1].file).is_file()


def test_what_a_person_reads(asked, capsys):
    with FeatureStore(asked.path) as store:
        show_receipts(taftcache.receipts(store, [asked.first, asked.back, asked.others[0], "x"]))
        said = capsys.readouterr().out
        show_receipts(taftcache.receipts(store))
        every = capsys.readouterr().out
    for text in (
        f"{asked.first}: forgotten by receipt 1 of 20",
        f"{asked.back}: held, in shard 002; forgotten by receipt 1 of 20",
        f"{asked.others[0]}: forgotten, but no receipt lists it; it was receipt 2 of 20",
        "maybe receipt 2, 20",
        "1 receipt about what was asked, and 1 that may be; taftcache audit",
        "x: not known: no row and no tombstone",
    ):
        assert f"\n{text}" in f"\n{said}"
    for text in (
        "receipt 1, 20",
        "2 ids forgotten by retrain; 2 rows of 000 removed",
        "(decisive)",
        f"  signed by {asked.signer[:8]}; ledger/",
    ):
        assert text in every
    assert "destroyed: components/000" in every
    assert every.count("receipts round to powers of two") == 1
    assert "  not signed; ledger/000002" in every


def destroyed(path: Path) -> None:
    with open_store(path) as store:
        taftcache.destroy_key(store)


def emptied(path: Path) -> None:
    """A store made anew where one had forgotten."""
    shutil.rmtree(path)
    create(path).close()


def adopted(path: Path) -> None:
    """And then the key destroyed, of a store that forgot nothing itself."""
    emptied(path)
    destroyed(path)


def beside(path: Path) -> None:
    """Only the file beside the store knows of it."""
    emptied(path)
    key = os.urandom(32)
    TombstoneFile(path).add(key, [tombstone("gone", key)])


def nobody(path: Path) -> None:
    """And then all keys are destroyed, not the store's own alone."""
    beside(path)
    destroyed(path)


@pytest.mark.law("A store says of an id whether it is held, forgotten and by which receipt, or not known")
@pytest.mark.parametrize(
    ("change", "state", "unreadable", "says"),
    [
        (destroyed, "unknown", [1, 2], "whether one of the entries 1, 2 forgot it cannot be told, for the key is"),
        (adopted, "unknown", [1], "whether entry 1 forgot it cannot be told, for the key is destroyed"),
        (emptied, "forgotten", [], "forgotten, but no receipt lists it; it was before entry 1, which took over what"),
        (nobody, "unknown", [1], "whether entry 1 forgot it cannot be told, for the key is destroyed"),
        (beside, "forgotten", [], "says the file beside the store; the receipt is not in this store"),
    ],
)
def test_what_cannot_be_told(
    asked, tmp_path, capsys, change: Callable[[Path], None], state: str, unreadable: list[int], says: str
):
    path = shutil.copytree(asked.path, tmp_path / "store")
    shutil.copy(f"{asked.path}.forgotten", f"{path}.forgotten")
    change(path)
    with FeatureStore(path) as store:
        report = taftcache.receipts(store, ["gone" if change in (beside, nobody) else asked.first])
    assert (report.samples[0].state, report.samples[0].receipts) == (state, [])
    assert report.unreadable == unreadable
    show_receipts(report)
    assert says in capsys.readouterr().out


def test_a_receipt_from_before_the_key_was_destroyed_is_not_suspected(asked, tmp_path, monkeypatch):
    path = shutil.copytree(asked.path, tmp_path / "store")
    monkeypatch.setattr(receipts, "MAX_IDS", 0)
    destroyed(path)
    with open_store(path) as store:
        two = store.shard("001").sample_ids[:2]
        taftcache.forget(store, two, mode="subtract")
        assert [a.perhaps for a in taftcache.receipts(store, two[:1]).samples] == [[len(store.ledger())]]


def test_a_damaged_ledger_is_an_error(asked, tmp_path):
    path = shutil.copytree(asked.path, tmp_path / "store")
    entry = next((path / "ledger").glob("000001-*"))
    entry.write_bytes(entry.read_bytes().replace(b"retrain", b"subtrac"))
    with pytest.raises(IntegrityError, match="damaged: file ledger/000001"):
        answers(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> tuple[Path, Path]:
    """A store of images, one of which it has forgotten, and the place where they lay."""
    root = tmp_path_factory.mktemp("photos")
    images = write_images(root / "pics", per_class=4)
    for folder in images.iterdir():
        for k, file in enumerate(sorted(folder.iterdir())):
            file.rename(folder / f"{k:04d}.png")
    taftcache.extract(recipe(root / "store", data={"source": "folder", "train": str(images)}))
    taftcache.forget(root / "store", ["1/0002.png"])
    return root / "store", images


@pytest.mark.law("No path under which images lie now makes a store say that it never had them")
@pytest.mark.parametrize("there", ["/new/place/pics/", "../pics/", "./", "//", "pics/"])
def test_a_path_of_images_that_moved_names_the_ids_that_end_so(photos, there, capsys):
    report = taftcache.receipts(photos[0], [there + "1/0002.png", there + "2/0003.png", there + "1/0009.png"])
    gone, here, unknown = report.samples
    assert (gone.state, gone.same_end) == ("unknown", {"1/0002.png": "forgotten"})
    assert (here.state, here.same_end) == ("unknown", {"2/0003.png": "held"})
    assert (unknown.state, unknown.same_end, unknown.outside) == ("unknown", {}, there[0] == "/")
    show_receipts(report)
    said = capsys.readouterr().out
    assert "did you mean '1/0002.png' (forgotten)?" in said
    assert "did you mean '2/0003.png' (held)?" in said
    assert said.count("never here") == (there[0] != "/")
    assert said.count("outside of the data.train that the store names") == (there[0] == "/")
    with pytest.raises(UnknownSample, match="no row has") as refused:
        taftcache.forget(photos[0], [there + "1/0002.png"], dry_run=True)
    assert refused.value.do.endswith("did you mean '1/0002.png'?")


def test_a_name_alone_names_every_id_that_ends_so(photos, tmp_path, monkeypatch):
    asked = answers(photos[0], "0002.png", str(photos[1] / "1" / "0009.png"))
    assert asked[0].same_end == {"0/0002.png": "held", "1/0002.png": "forgotten", "2/0002.png": "held"}
    assert (asked[1].sample, asked[1].outside) == ("1/0009.png", False), "a path below data.train is an id"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.png").write_text("")
    assert [answer.outside for answer in answers(photos[0], "x.png", "y.png")] == [True, False], (
        "a file elsewhere is none"
    )


def test_a_root_from_before_a_removal_is_not_called_an_older_copy(photos, tmp_path):
    path = shutil.copytree(photos[0], tmp_path / "store")
    noted = FeatureStore(path).root_digest
    taftcache.forget(path, ["2/0000.png"])
    for root, says, do in (
        (noted, "its root before the removal of ledger entry 2, 20", "moved on since: note its present root"),
        ("0" * 64, "expected 0", "look whether an older copy was put in its place"),
        (noted[:16], "expected", "if it was changed since that was noted"),
    ):
        with pytest.raises(IntegrityError, match="is not the store that was expected") as refused:
            taftcache.verify(path, expect=root)
        assert says in refused.value.got
        assert do in refused.value.do


@pytest.mark.parametrize("of", ["../pics/{}", "/old/pics/{}", "train/{}"])
def test_ids_may_lie_in_folders_of_their_own(of):
    known = {of.format(f"{c}/{k}.png") for c in "abc" for k in range(3)}
    gone, here = of.format("b/7.png"), of.format("b/1.png")
    found = by_ending(["/new/pics/b/7.png", "/new/pics/b/1.png", "/x/q/1.png"], known, [gone].__contains__)
    assert found == {"/new/pics/b/7.png": [gone], "/new/pics/b/1.png": [here]}
    known = {"b/1.png", "pics/b/1.png", "x.png"}
    found = by_ending(["/new/pics/b/1.png", "/new/x.png"], known, set[str]().__contains__)
    assert found == {"/new/pics/b/1.png": ["pics/b/1.png"], "/new/x.png": ["x.png"]}


def test_a_store_from_an_export_does_not_know_what_was_forgotten_before(photos, tmp_path, capsys):
    taftcache.export(photos[0], tmp_path / "rows.h5")
    made = taftcache.import_(tmp_path / "rows.h5", tmp_path / "made").store
    copied = taftcache.copy(made, tmp_path / "copied").store
    for store, says in ((photos[0], False), (made, True), (copied, True)):
        report = taftcache.receipts(store, ["1/0002.png" if says else "9/0009.png"])
        assert (report.samples[0].state, report.from_export) == ("unknown", says)
        show_receipts(report)
        show_inspect(taftcache.inspect(store))
        said = capsys.readouterr().out.replace("\n", " ")
        assert said.count("what was forgotten before it is not known here") == 3 * says
        assert ("never here" in said) is not says
