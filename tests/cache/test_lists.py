"""Curves, skipped samples and tombstones: files of their own, read when asked for, converted from version 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taftcache.cache.copying import convert, copy
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.manifest import Manifest
from taftcache.cache.format.parts import Skipped, Tombstones, part_path
from taftcache.cache.place.folder import Folder
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.previous import go_back
from taftcache.cache.write.repair import repair
from taftcache.errors import FormatError, IntegrityError, StoreError

from .forging import forge
from .making import IDENTITY, create, fill, names, tree

IDS, MORE = names(9), names(8, "more")
BAD = [MORE[2], MORE[5]]
META = {"kind": "component", "rows": 9}
CURVE = [[1, 0.5], [2, 0.25], [3, 1e-9]]
WHOLE = META | {"convergence": CURVE}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("lists") / "s"
    with create(path) as store:
        fill(store, "000", [*IDS, "a", "b"])
        fill(store, "001", MORE, bad=BAD)
        with store.transaction() as change:
            change.erase(["a", "b"])
            change.put("components/000", b"trained", WHOLE)
            change.put("base/tail", b"tail", {"path": "feature"})
    return path


@pytest.fixture
def path(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path / "s")
    shutil.copy(made.with_name("s.forgotten"), tmp_path)
    return tmp_path / "s"


@pytest.fixture
def first(path) -> Path:
    """The same store in version 1."""
    with FeatureStore(path) as store:
        text = store.manifest.replace(version=1).text()
    (path / "manifest.json").write_bytes(text)
    shutil.rmtree(path / "lists")
    return path


def whole(path) -> None:
    with FeatureStore(path) as store:
        assert store.verify() == store.strays() == []
        assert store.meta("components/000") == WHOLE
        assert store.objects()["components/000"].meta == META
        assert list(store.manifest.skipped) == [Skipped(i, "unreadable", "001") for i in sorted(BAD)]
        assert store.is_forgotten("a")
        assert store.is_forgotten("b")
        assert not store.is_forgotten("c")
        assert len(store.manifest.tombstones) == 2


def test_lists_come_back(path) -> None:
    whole(path)
    kinds = {name.split("-")[0] for name in tree(path) if name.startswith("lists/")}
    assert kinds == {"lists/curve", "lists/skipped", "lists/tombstones"}


@pytest.mark.law("Curves, skipped samples and tombstones are read when they are asked for, and verified then")
def test_opening_reads_no_list(path, monkeypatch) -> None:
    read: list[str] = []
    real = Folder.read

    def noted(self: Folder, name: str, limit: int) -> bytes:
        read.append(name)
        return real(self, name, limit)

    monkeypatch.setattr(Folder, "read", noted)
    path.with_name("s.forgotten").unlink()
    with FeatureStore(path) as store:
        assert len(store.manifest.skipped) == 2
        assert len(store.manifest.tombstones) == 2
        assert store.objects()["components/000"].meta == META
        assert not any(name.startswith("lists/") for name in read)
        store.meta("components/000")
        assert [name.split("-")[0] for name in read if name.startswith("lists/")] == ["lists/curve"]


def test_an_ordinary_commit_writes_no_list_again(path) -> None:
    before = {name: (path / name).stat().st_mtime_ns for name in tree(path) if name.startswith("lists/")}
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.put("components/001", b"more", META)
    assert {name: (path / name).stat().st_mtime_ns for name in tree(path) if name.startswith("lists/")} == before


@pytest.mark.law("A forgotten sample leaves no list that has it behind")
def test_what_is_forgotten_leaves_its_list(path) -> None:
    old = {name for name in tree(path) if name.startswith(("lists/skipped", "lists/tombstones"))}
    with FeatureStore(path, mode="a") as store:
        with store.transaction() as change:
            change.erase([BAD[0]])
        assert [s.id for s in store.manifest.skipped] == [BAD[1]]
        assert not old & tree(path).keys()
        with store.transaction() as change:
            change.erase([BAD[1]])
        assert len(store.manifest.skipped) == 0
        assert not any(name.startswith("lists/skipped") for name in tree(path))
        with store.transaction() as change:
            change.put("components/000", b"again")
        assert not any(name.startswith("lists/curve") for name in tree(path))
        with store.transaction() as change:
            change.destroy_key()
        assert not any(name.startswith("lists/") for name in tree(path))
    assert not any(i.encode() in data for i in BAD for data in tree(path).values())


@pytest.mark.parametrize("kind", ["curve", "skipped", "tombstones"])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_damaged_list(path, kind, how) -> None:
    (file,) = (path / "lists").glob(f"{kind}-*")
    raw = file.read_bytes()
    file.unlink() if how == "gone" else file.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    read = {
        "curve": lambda s: s.meta("components/000"),
        "skipped": lambda s: list(s.manifest.skipped),
        "tombstones": lambda s: s.is_forgotten("a"),
    }[kind]
    with FeatureStore(path) as store:
        assert [fault.file for fault in store.verify()] == [f"lists/{file.name}"]
        with pytest.raises(IntegrityError, match=f"lists/{kind}-") as caught:
            read(store)
        assert ("taftcache verify STORE --repair" in caught.value.do) == (kind != "skipped")
    with FeatureStore(path, mode="a") as store:
        done = repair(store.committer(), store.verify(), None)
        assert (list(done.mended), list(done.left)) == (
            ([], [f"lists/{file.name}"]) if kind == "skipped" else ([f"lists/{file.name}"], [])
        )
        assert (store.verify() == []) == (kind != "skipped")
        if kind == "tombstones":
            assert file.read_bytes() == raw
        elif kind == "curve":
            assert store.meta("components/000") == META
            assert store.read_object("components/000") == b"trained"


def forged(path, kind: str, data: bytes, count: int) -> None:
    ref = {"path": part_path(kind, digest(data)), "digest": digest(data), "size": len(data), "count": count}
    (path / ref["path"]).write_bytes(data)

    def change(fields) -> None:
        if kind == "curve":
            fields["objects"]["components/000"]["curve"] = ref
        else:
            fields.update({"tombstones": ref} if kind == "tombstones" else {"skipped": {"001": ref}})

    forge(path, change)


NO_LISTS = {
    "tombstones in no order": ("tombstones", b"b" * 32 + b"a" * 32, 2),
    "a tombstone twice": ("tombstones", b"a" * 64, 2),
    "more tombstones than bytes": ("tombstones", b"a" * 32, 2),
    "half a tombstone": ("tombstones", b"a" * 33, 1),
    "skipped in no order": ("skipped", b'[["b",""],["a",""]]', 2),
    "skipped of three": ("skipped", b'[["b","",""]]', 1),
    "more skipped than there are": ("skipped", b'[["b",""]]', 2),
    "skipped in another spelling": ("skipped", b'[["b", ""]]', 1),
    "no list of skipped": ("skipped", b'{"a":1}', 1),
    "no list of points": ("curve", b'{"a":1}', 1),
    "fewer points": ("curve", b"[[1,2]]", 2),
    "points too deep": ("curve", b"[" * 200 + b"]" * 200, 1),
    "no JSON": ("curve", b"[[", 1),
}


@pytest.mark.law("A stranger's store can be refused, and can do nothing else")
@pytest.mark.parametrize("what", NO_LISTS)
def test_a_list_that_someone_else_made(path, what) -> None:
    forged(path, *NO_LISTS[what])
    path.with_name("s.forgotten").unlink()
    with FeatureStore(path) as store:
        assert len(store.verify()) == 1
        with pytest.raises(FormatError):
            _ = store.meta("components/000"), list(store.manifest.skipped), store.is_forgotten("a")


def test_version_1_reads_and_is_copied_as_it_is(first, tmp_path) -> None:
    whole(first)
    with FeatureStore(first) as store:
        assert store.manifest.version == 1
        content = store.manifest.content_digest
        fields = msgspec.json.decode(store.manifest.text())
        fields |= {"tombstones": [], "tombstone_key": "", "ledger": None}
        del fields["digest"]
        assert content == digest(canonical(fields)), "what receipts of then say"
        copy(store, tmp_path / "copy")
        with convert(store, tmp_path / "c", identity=IDENTITY, recipe={}, chunk_rows=16) as made:
            assert made.is_forgotten("a")
            assert made.verify() == []
    assert tree(tmp_path / "copy") == tree(first)


def test_the_next_write_converts_version_1_and_can_be_undone(first, tmp_path) -> None:
    before = tree(first)
    with FeatureStore(first, mode="a") as store:
        assert store.strays() == []
        assert tree(first) == before, "opening changes nothing"
        with store.transaction() as change:
            change.put("components/001", b"new", WHOLE)
        assert store.manifest.version == 2
    whole(first)
    with FeatureStore(first) as store:
        assert store.objects()["components/001"].curve == store.objects()["components/000"].curve
    go_back(first)
    assert tree(first, but=["staging/"]) == before


def test_a_manifest_without_its_store(path) -> None:
    named = Manifest.decode((path / "manifest.json").read_bytes())
    assert named.replace(tombstones=[], tombstone_key="").digest == named.content_digest
    with pytest.raises(StoreError, match="without its store"):
        list(named.skipped)


EVEN = [bytes([k]) * 32 for k in (0, 1, 127, 128, 255)]


@given(st.sets(st.binary(min_size=32, max_size=32)), st.sets(st.sampled_from(EVEN)))
def test_tombstones_are_a_sorted_set(some, others) -> None:
    one, two = {x.hex() for x in some | {b"\0" * 31 + b"\1", b"a" * 31 + b"\0"}}, {x.hex() for x in others}
    made = Tombstones.of(one)
    assert list(made) == sorted(one)
    assert list(made.plus(two)) == sorted(one | two)
    assert all(x in made for x in one)
    assert [x in made for x in two] == [x in one for x in two]
    assert Tombstones.of([*one, *one]) == made
