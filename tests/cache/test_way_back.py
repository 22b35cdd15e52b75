"""The root manifest before the last commit: kept where that only added, gone before anything is forgotten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from taftcache.cache.collect import collect
from taftcache.cache.copying import copy
from taftcache.cache.format.manifest import FILE, PREVIOUS
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.previous import go_back
from taftcache.errors import IntegrityError, RecipeError, StoreError, StoreNotFound
from taftcache.stages.files.verification import verify

from .making import CLASSES, create, fill, holds, names, tree

IDS, MORE = names(9), names(6, "more")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store with an erasure behind it, a component that can be replaced, and one that the last commit added."""
    path = tmp_path_factory.mktemp("way") / "s"
    with create(path) as store:
        fill(store, "000", [*IDS, "goner"])
        with store.transaction() as change:
            change.erase(["goner"])
            change.record({"action": "erase"})
        with store.transaction() as change:
            change.put("components/000", b"first", {"convergence": [[1, 0.5]]})
        with store.transaction() as change:
            change.put("components/001", b"second", {"convergence": [[1, 0.25]]})
    return path


@pytest.fixture
def path(made, tmp_path) -> Path:
    for name in ("s", "s.forgotten"):
        place = tmp_path / name
        shutil.copytree(made, place) if name == "s" else shutil.copy(made.with_name(name), place)
    return tmp_path / "s"


def commit(path: Path, work) -> tuple[str, str]:
    """One commit; the root digests before and after."""
    with FeatureStore(path, mode="a") as store:
        before = store.root_digest
        with store.transaction() as change:
            work(change)
        return before, store.root_digest


ADDING = {
    "a component": lambda c: c.put("components/002", b"third", {"convergence": [[2, 0.5]]}),
    "settings": lambda c: c.update(recipe={"new": 1}),
}
OTHERS = {
    "a row forgotten": lambda c: c.erase([IDS[0]]),
    "a name forgotten": lambda c: c.add_tombstones(["x"]),
    "the key destroyed": lambda c: c.destroy_key(),
    "an entry in the ledger": lambda c: c.record({"action": "release"}),
    "a component replaced": lambda c: c.put("components/000", b"again"),
    "a component dropped": lambda c: c.drop("components/000"),
    "other classes": lambda c: c.update(classes=[*CLASSES, "dog"]),
}


@pytest.mark.law("Where a commit only added to a store, the one before can be gone back to")
@pytest.mark.parametrize(
    ("what", "damage"),
    [("settings", "none"), *[("a component", damage) for damage in ("none", "damaged", "empty", "gone")]],
)
def test_back_from_a_commit_that_added(path, what, damage) -> None:
    there = tree(path)
    before, after = commit(path, ADDING[what])
    raw = (path / FILE).read_bytes()
    if damage == "gone":
        (path / FILE).unlink()
    else:
        (path / FILE).write_bytes({"none": raw, "damaged": raw.replace(b"ant", b"bnt"), "empty": b""}[damage])
    report = verify(path, back=True)
    assert (report.root_digest, report.left) == (before, after if damage == "none" else "")
    assert report.faults == report.strays == []
    assert tree(path, but=["staging/"]) == there
    with pytest.raises(StoreError, match="no root manifest from before"):
        go_back(path)


def test_back_from_a_further_shard(path) -> None:
    there = tree(path)
    with FeatureStore(path, mode="a") as store:
        fill(store, "001", MORE, bad=[MORE[0]])
    go_back(path)
    assert tree(path, but=["staging/"]) == there
    with FeatureStore(path, mode="a") as store:
        fill(store, "001", MORE)
        assert holds(store, MORE)


@pytest.mark.law("No way leads back past an erasure, a receipt or a private release")
@pytest.mark.parametrize("what", OTHERS)
def test_no_way_back_from_other_commits(path, what) -> None:
    kept, root = (path / PREVIOUS).read_bytes(), (path / FILE).read_bytes()
    commit(path, OTHERS[what])
    assert not (path / PREVIOUS).exists()
    with pytest.raises(StoreError, match="cannot go back"):
        verify(path, back=True)
    # nor where someone puts an older manifest there, the present one damaged or not
    for older in (kept, root):
        (path / PREVIOUS).write_bytes(older)
        with FeatureStore(path) as store:
            assert store.strays() == [PREVIOUS]
        now = tree(path)
        with pytest.raises(StoreError, match="cannot go back"):
            go_back(path)
        assert tree(path) == now
    raw = (path / FILE).read_bytes()
    (path / FILE).write_bytes(b"")
    if what != "other classes":
        with pytest.raises(StoreError, match="cannot go back"):
            go_back(path)
    (path / FILE).write_bytes(raw)
    FeatureStore(path, mode="a").close()
    assert not (path / PREVIOUS).exists(), "a writer removes it"


def test_a_ledger_that_goes_on_forbids_it_without_the_root(path) -> None:
    root = (path / FILE).read_bytes()
    commit(path, OTHERS["an entry in the ledger"])
    (path / PREVIOUS).write_bytes(root)
    (path / FILE).unlink()
    with pytest.raises(StoreError, match="something was forgotten"):
        go_back(path)


def test_what_is_remembered_beside_forbids_it_without_the_root(path) -> None:
    root, (hashes,) = (path / FILE).read_bytes(), (path / "lists").glob("tombstones-*")
    raw = hashes.read_bytes()
    commit(path, OTHERS["a name forgotten"])
    (path / FILE).unlink()
    (path / PREVIOUS).write_bytes(root)
    hashes.write_bytes(raw)
    with pytest.raises(StoreError, match="something was forgotten"):
        go_back(path)


def test_no_way_back_where_a_file_is_missing(path) -> None:
    commit(path, ADDING["a component"])
    now = tree(path)
    gone = next(path.glob("components/000-*"))
    raw = gone.read_bytes()
    gone.unlink()
    with pytest.raises(StoreError, match="1 file missing that the root manifest before names"):
        go_back(path)
    gone.write_bytes(raw)
    assert tree(path) == now


def test_a_damaged_root_says_that_there_is_a_way(path) -> None:
    raw = (path / FILE).read_bytes()
    (path / FILE).write_bytes(raw.replace(b"ant", b"bnt"))
    with pytest.raises(IntegrityError, match="verify STORE --back"):
        FeatureStore(path)
    (path / PREVIOUS).unlink()
    with pytest.raises(IntegrityError, match="restore the file from a copy") as caught:
        FeatureStore(path)
    assert "--back" not in str(caught.value)


def test_gc_and_copies_leave_none(path, tmp_path) -> None:
    with FeatureStore(path, mode="a") as store:
        copy(store, tmp_path / "copy")
        assert not (tmp_path / "copy" / PREVIOUS).exists()
        (tmp_path / "copy" / PREVIOUS).write_bytes((path / PREVIOUS).read_bytes())
        assert PREVIOUS in collect(store, dry=True).removed
        assert (path / PREVIOUS).exists()
        assert PREVIOUS in collect(store).removed
        assert not (path / PREVIOUS).exists()
        with store.transaction() as change:
            change.erase([IDS[0]])
        copy(store, tmp_path / "copy", update=True)
        assert not (tmp_path / "copy" / PREVIOUS).exists()


def test_where_there_is_no_store(tmp_path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreNotFound):
            go_back(place)
    assert tree(tmp_path) == {}


def test_back_to_another_root_than_expected_changes_nothing(path) -> None:
    old, new = commit(path, ADDING["a component"])
    before = tree(path)
    for wrong in (new, "0123456789abcdef"):
        with pytest.raises(IntegrityError, match="not the one that was expected") as caught:
            verify(path, back=True, expect=wrong)
        assert "nothing was changed" in caught.value.got
        assert tree(path) == before
    for none in (old[:15], ""):
        with pytest.raises(RecipeError, match="is no root digest"):
            verify(path, back=True, expect=none)
        assert tree(path) == before
    assert verify(path, back=True, expect=old[:16]).root_digest == old


def test_an_error_after_the_way_back_says_that_it_was_gone(path, monkeypatch) -> None:
    old, _ = commit(path, ADDING["a component"])

    def refuse(*_: object) -> None:
        raise StoreError("a file does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(FeatureStore, "verify", refuse)
        with pytest.raises(StoreError, match=r"went back to .*; a file does not answer"):
            verify(path, back=True)
    assert verify(path).root_digest == old
