"""The file beside a store that outlives it: named by the real place, checked, private, and taken along by copies."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import closing, nullcontext

import pytest

import taftcache
from taftcache.cache.copying import carry_tombstones, convert, copy
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import canonical
from taftcache.cache.place.folder import Folder
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.repair import repair
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import FormatError, IntegrityError, StaleStore, StoreError, StoreWriteError

from .making import create, fill, forget, names, tree

IDS = names(12)
GONE = IDS[3]


@pytest.fixture
def path(tmp_path):
    """A store that forgot ``GONE``; its state from before lies in ``old``."""
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS)
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    forget(tmp_path / "s", GONE)
    return tmp_path / "s"


def put_back(tmp_path) -> None:
    shutil.rmtree(tmp_path / "s")
    shutil.copytree(tmp_path / "old", tmp_path / "s")


def remember(store, key: bytes, ids: list[str]) -> None:
    """A file beside ``store``, which says that ``ids`` were forgotten."""
    TombstoneFile(store).add(key, [ledger.tombstone(i, key) for i in ids])


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ETIMEDOUT, errno.EACCES], ids=errno.errorcode.get)
def test_a_folder_around_the_store_that_cannot_be_read_is_none_without_tombstones(path, tmp_path, monkeypatch, code):
    """An old copy would go unnoticed. Who may not list that folder still sees whether the file is there."""
    put_back(tmp_path)

    def broken(place):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("taftcache.cache.write.tombstones.Folder", broken)
    with pytest.raises(StoreError, match="cannot read the tombstones beside the store"):
        FeatureStore(path)
    (tmp_path / "s.forgotten").unlink()
    if code == errno.EACCES:
        FeatureStore(path).close()


@pytest.mark.law("An old copy is noticed under every name of the place, and never copied over a newer state")
def test_an_old_copy_is_noticed_through_a_link(path, tmp_path) -> None:
    (tmp_path / "link").symlink_to(path)
    put_back(tmp_path)
    for place in (path, tmp_path / "link"):
        with pytest.raises(StaleStore):
            FeatureStore(place)


def test_what_was_forgotten_through_a_link_is_known_of_the_folder(path, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(path)
    shutil.rmtree(tmp_path / "old")
    shutil.copytree(path, tmp_path / "old")
    forget(tmp_path / "elsewhere" / "link", IDS[5])
    assert os.listdir(tmp_path / "elsewhere") == ["link"]
    put_back(tmp_path)
    with pytest.raises(StaleStore):
        FeatureStore(path)


def test_a_store_made_anew_through_a_link_adopts_the_tombstones(path, tmp_path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    (tmp_path / "link").symlink_to(path)
    assert TombstoneFile(tmp_path / "link").holds(GONE)
    with create(tmp_path / "link") as store:
        assert store.is_forgotten(GONE)


def test_a_file_beside_a_link_is_merged(path, tmp_path) -> None:
    """The folder was moved, and a link stands in its place, beside its file; under the same key or another."""
    for key in ((path / "tombstones.key").read_bytes(), b"k" * 32):
        remember(tmp_path / "link", key, [IDS[7]])
        (tmp_path / "link").symlink_to(path)
        with pytest.raises(StaleStore):
            FeatureStore(tmp_path / "link")
        assert (tmp_path / "link.forgotten").exists()
        with FeatureStore(tmp_path / "link", mode="a", stale=True) as store:
            assert store.returned() == [IDS[7]]
            assert store.tombstone_file.key == (path / "tombstones.key").read_bytes(), "its own key is the newest"
        assert not (tmp_path / "link.forgotten").exists()
        (tmp_path / "link").unlink()
        with pytest.raises(StaleStore):
            FeatureStore(path)
        put_back(tmp_path)
        (tmp_path / "s.forgotten").unlink()
        forget(path, GONE)


def test_a_link_above_the_store_names_the_same_file(path, tmp_path) -> None:
    """There is no second file then, and the one there is must not go as one that was merged."""
    (tmp_path / "up").symlink_to(tmp_path)
    forget(tmp_path / "up" / "s", IDS[5])
    FeatureStore(tmp_path / "up" / "s", mode="a").close()
    found = TombstoneFile(path)
    assert found.holds(IDS[5])
    assert found.holds(GONE)


def test_destroying_the_key_reaches_the_file_of_a_link(path, tmp_path) -> None:
    key = (path / "tombstones.key").read_bytes()
    remember(tmp_path / "link", key, [GONE])
    (tmp_path / "link").symlink_to(path)
    with FeatureStore(tmp_path / "link", mode="a") as store, store.transaction() as change:
        change.destroy_key()
    assert not (tmp_path / "link.forgotten").exists()
    assert key.hex().encode() not in (tmp_path / "s.forgotten").read_bytes()


def mended(path) -> tuple[list[str], list[str]]:
    """The files that a repair mends, and those that it leaves."""
    with FeatureStore(path, mode="a") as store:
        done = repair(store.committer(), store.verify(), None)
        return list(done.mended), list(done.left)


@pytest.mark.law("A repair gives back the same bytes, or nothing")
@pytest.mark.parametrize("newest", ["own", "of another store"])
def test_a_lost_key_comes_back_from_the_file_beside_the_store(path, newest) -> None:
    """Without it the store could only be read for good."""
    key, (hashes,) = path / "tombstones.key", (path / "lists").glob("tombstones-*")
    whole = tree(path)
    if newest != "own":
        remember(path, b"k" * 32, ["elsewhere.png"])
    for harm in (key.unlink, lambda: key.write_bytes(b"k" * 32), lambda: key.write_bytes(b"")):
        harm()
        with pytest.raises(IntegrityError, match=r"tombstones\.key") as caught:
            forget(path, IDS[0])
        assert "taftcache verify STORE --repair" in caught.value.do
        assert mended(path) == (["tombstones.key"], [])
        assert (tree(path), stat.S_IMODE(key.stat().st_mode)) == (whole, 0o600)
    key.unlink()
    hashes.unlink()
    assert mended(path) == (["tombstones.key", f"lists/{hashes.name}"], [])
    assert tree(path) == whole
    forget(path, IDS[0])


@pytest.mark.law("A repair gives back the same bytes, or nothing")
def test_no_other_key_comes_from_the_file_beside_the_store(path, tmp_path) -> None:
    beside = tmp_path / "s.forgotten"
    kept = beside.read_bytes()
    key = (path / "tombstones.key").read_bytes()
    (path / "tombstones.key").unlink()
    beside.unlink()
    remember(path, b"k" * 32, [GONE])
    assert mended(path) == ([], ["tombstones.key"])
    (path / "tombstones.key").write_bytes(key)
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.destroy_key()
    beside.write_bytes(kept)
    assert mended(path) == ([], []), "a key that was destroyed is named no more"
    assert not (path / "tombstones.key").exists()


def test_every_flipped_bit_is_an_error(path, tmp_path) -> None:
    file = tmp_path / "s.forgotten"
    raw = file.read_bytes()
    for at in range(len(raw)):
        for bit in range(8):
            file.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
            with pytest.raises((IntegrityError, FormatError)):
                TombstoneFile(path)
    file.write_bytes(raw[:-1])
    with pytest.raises(IntegrityError, match="damaged"):
        FeatureStore(path)
    file.write_bytes(raw + b"\n")
    with pytest.raises(IntegrityError, match="digest"):
        FeatureStore(path)
    file.write_bytes(raw)
    FeatureStore(path).close()


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 10**5, b'{"format":"taftcache-forgotten","version":3}'])
def test_what_is_no_such_file(path, tmp_path, text) -> None:
    (tmp_path / "s.forgotten").write_bytes(text)
    with pytest.raises(StoreError, match="tombstones beside the store"):
        FeatureStore(path)


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("beside", ["s", "link"])
def test_version_1_is_refused(path, tmp_path, mode, beside) -> None:
    """Without a digest, a changed digit in it would go unnoticed: it is neither believed nor passed over."""
    (tmp_path / "link").symlink_to(path)
    pages = [{"key": "0" * 64, "tombstones": ["1" * 64]}]
    first = canonical({"format": "taftcache-forgotten", "version": 1, "pages": pages})
    (tmp_path / f"{beside}.forgotten").write_bytes(first)
    with pytest.raises(FormatError, match="of version 1, and versions 2 and 3 are read"):
        FeatureStore(tmp_path / "link", mode=mode)
    assert (tmp_path / f"{beside}.forgotten").read_bytes() == first


def test_they_are_private(path, tmp_path, monkeypatch) -> None:
    def mode(file) -> int:
        return stat.S_IMODE(file.stat().st_mode)

    (tmp_path / "copy.forgotten.partial").write_bytes(b"of a crash")
    with FeatureStore(path) as store:
        copy(store, tmp_path / "copy")
    for place in (path, tmp_path / "copy"):
        assert mode(place / "tombstones.key") == 0o600
        assert mode(place.with_name(f"{place.name}.forgotten")) == 0o600
    (tmp_path / "s.forgotten").chmod(0o640)
    forget(path, IDS[0])
    assert mode(tmp_path / "s.forgotten") == 0o640, "what the owner allows stays allowed"


def test_nobody_else_has_the_file_open(path, tmp_path) -> None:
    """Whoever made ``.partial`` before kept it, and so the key: as its owner, or by a descriptor."""
    (tmp_path / "s.forgotten").unlink()
    (tmp_path / "s.forgotten.partial").touch()
    with (tmp_path / "s.forgotten.partial").open("rb") as planted:
        forget(path, IDS[0])
        assert planted.read() == b""
        assert not os.path.samestat(os.fstat(planted.fileno()), (tmp_path / "s.forgotten").stat())


def test_a_private_file_is_never_one_that_is_there(tmp_path, monkeypatch) -> None:
    """Another process may make it again once it was removed."""
    monkeypatch.setattr(os, "unlink", lambda *given, **more: None)
    (tmp_path / "key").touch()
    with closing(Folder(tmp_path)) as folder, pytest.raises(StoreWriteError, match="another process has"):
        folder.write("key", b"secret", mode=0o600)
    assert (tmp_path / "key").read_bytes() == b""


def of_another(monkeypatch, *files, user: int | None = None) -> None:
    """Let ``files`` belong to another user."""
    owner = os.geteuid() + 1 if user is None else user
    inodes = {file.stat().st_ino for file in files}

    def as_other(real):
        def status(*given, **more):
            info = real(*given, **more)
            return os.stat_result([*info[:4], owner, *info[5:]]) if info.st_ino in inodes else info

        return status

    for name in ("stat", "fstat"):
        monkeypatch.setattr(os, name, as_other(getattr(os, name)))


def as_anyones(monkeypatch, file) -> None:
    file.chmod(0o666)


STRANGERS = {r"they belong to another user \(.+\)": of_another, "anyone may write to them": as_anyones}


@pytest.mark.parametrize("says", STRANGERS)
def test_a_key_that_another_user_may_have_put_there_is_not_taken_over(tmp_path, monkeypatch, says) -> None:
    """A new store took the planted key, by which its maker could test guesses at what the store forgot."""
    remember(tmp_path / "s", b"k" * 32, ["anything"])
    STRANGERS[says](monkeypatch, tmp_path / "s.forgotten")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=says) as caught:
        create(tmp_path / "s")
    assert (tree(tmp_path), caught.value.got) == (before, str(tmp_path / "s.forgotten"))
    assert not (tmp_path / "s").exists()
    (tmp_path / "own").write_bytes((tmp_path / "s.forgotten").read_bytes())
    (tmp_path / "own").chmod(0o600)
    (tmp_path / "own").replace(tmp_path / "s.forgotten")
    with create(tmp_path / "s") as store:
        assert store.is_forgotten("anything")


@pytest.mark.parametrize("says", STRANGERS)
def test_nothing_is_added_to_a_file_that_another_user_may_have_put_there(path, tmp_path, monkeypatch, says) -> None:
    remember(tmp_path / "planted", b"k" * 32, ["anything"])
    (tmp_path / "planted.forgotten").replace(tmp_path / "s.forgotten")
    STRANGERS[says](monkeypatch, tmp_path / "s.forgotten")
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=says):
        FeatureStore(path, mode="a")
    with FeatureStore(path) as store:
        with pytest.raises(StoreError, match=says):
            copy(store, tmp_path / "copy")
        with pytest.raises(StoreError, match=says):
            convert(store, tmp_path / "converted", identity=store.identity, recipe={}, chunk_rows=16)
        with pytest.raises(StoreError, match=says):
            carry_tombstones(store, tmp_path / "carried")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("says", STRANGERS)
def test_nothing_is_copied_to_where_another_user_may_have_put_a_file(path, tmp_path, monkeypatch, says) -> None:
    remember(tmp_path / "copy", b"k" * 32, ["anything"])
    STRANGERS[says](monkeypatch, tmp_path / "copy.forgotten")
    before = tree(tmp_path)
    with FeatureStore(path) as store:
        with pytest.raises(StoreError, match=says):
            copy(store, tmp_path / "copy")
        with pytest.raises(StoreError, match=says):
            carry_tombstones(store, tmp_path / "copy")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("says", STRANGERS)
def test_a_strangers_key_beside_a_link_is_not_saved_in_the_place_of_the_link(tmp_path, monkeypatch, says) -> None:
    """It came into a file of the user's own, of which nobody would think ill."""
    (tmp_path / "disk" / "store").mkdir(parents=True)
    (tmp_path / "s").symlink_to(tmp_path / "disk" / "store")
    remember(tmp_path / "planted", b"k" * 32, ["anything"])
    (tmp_path / "planted.forgotten").replace(tmp_path / "s.forgotten")
    STRANGERS[says](monkeypatch, tmp_path / "s.forgotten")
    with pytest.raises(StoreError, match=says):
        TombstoneFile(tmp_path / "s").save()
    assert [file.name for file in (tmp_path / "disk").iterdir()] == ["store"]
    assert (tmp_path / "s.forgotten").exists()


@pytest.mark.parametrize("says", STRANGERS)
def test_a_key_that_was_taken_over_from_another_user_can_be_destroyed(tmp_path, monkeypatch, says) -> None:
    """By what the refusal says."""
    remember(tmp_path / "s", b"k" * 32, ["anything"])
    create(tmp_path / "s").close()
    STRANGERS[says](monkeypatch, tmp_path / "s.forgotten")
    with pytest.raises(StoreError, match=says) as caught:
        FeatureStore(tmp_path / "s", mode="a")
    assert f"move it away and, if the store may have its key, taftcache forget {tmp_path / 's'} --" in caught.value.do
    (tmp_path / "s.forgotten").rename(tmp_path / "away")
    taftcache.destroy_key(tmp_path / "s")
    with FeatureStore(tmp_path / "s") as store:
        assert not store.manifest.tombstone_key
    assert TombstoneFile(tmp_path / "s").under(b"k" * 32) == frozenset()


@pytest.mark.parametrize("owner", [0, 4321, 4322])
def test_root_and_the_owner_of_the_folder_around_are_no_strangers(tmp_path, monkeypatch, owner) -> None:
    """They could replace the store itself."""
    remember(tmp_path / "s", b"k" * 32, ["anything"])
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    of_another(monkeypatch, tmp_path, user=4321)
    of_another(monkeypatch, tmp_path / "s.forgotten", user=owner)
    with pytest.raises(StoreError, match="another user") if owner == 4322 else nullcontext():
        TombstoneFile(tmp_path / "s").check_owner()


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_that_anyone_may_write_to_tells_of_a_store_that_is_yet_to_be_made(tmp_path, mode) -> None:
    """Unless only owners may remove there, as in /tmp: then there are modes, and they mean something."""
    remember(tmp_path / "s", b"k" * 32, ["anything"])
    (tmp_path / "s.forgotten").chmod(0o666)
    tmp_path.chmod(mode)
    file = TombstoneFile(tmp_path / "s")
    with pytest.raises(StoreError, match="anyone may write to them") if mode & stat.S_ISVTX else nullcontext():
        file.check_owner()


@pytest.mark.parametrize("his", ["ledger/*.json", "manifest.json", "shards/*.json"])
def test_several_may_write_to_one_store(path, tmp_path, monkeypatch, his) -> None:
    """The file belongs to the last one who forgot; so does his entry of the ledger."""
    (tmp_path / "s.forgotten").chmod(0o640)
    of_another(monkeypatch, tmp_path / "s.forgotten", *path.glob(his))
    forget(path, IDS[0])
    assert TombstoneFile(path).holds(IDS[0])
    assert stat.S_IMODE((tmp_path / "s.forgotten").stat().st_mode) == 0o640


def test_a_store_that_anyone_may_write_to(path, tmp_path) -> None:
    """On a file system without modes, all files are so."""
    path.chmod(0o777)
    (tmp_path / "s.forgotten").chmod(0o666)
    forget(path, IDS[0])
    assert TombstoneFile(path).holds(IDS[0])


def test_a_reader_who_may_not_read_it_is_told_so(path, tmp_path, monkeypatch) -> None:
    real = os.open

    def opened(name, *given, **more):
        if name == "s.forgotten":
            raise PermissionError(13, "Permission denied")
        return real(name, *given, **more)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(StoreError, match="cannot read the tombstones") as caught:
        FeatureStore(path)
    assert "chmod g+r" in str(caught.value)


def test_advice_fits_why_it_cannot_be_read(tmp_path) -> None:
    """The store's own name may be as long as names can be; that of the file beside it is longer."""
    with pytest.raises(StoreError, match=r"cannot read the tombstones .*the name is too long") as caught:
        TombstoneFile(tmp_path / ("n" * 254))
    assert caught.value.do == "name a place with a shorter path"


def test_a_copy_takes_the_tombstones_along(path, tmp_path) -> None:
    """Those of the manifest, and those that only the file knows."""
    remember(tmp_path / "old", b"k" * 32, ["from an earlier store"])
    beside = TombstoneFile(path)
    beside.merge(TombstoneFile(tmp_path / "old"))
    beside.save()
    with FeatureStore(path) as store:
        copy(store, tmp_path / "copy")
    found = TombstoneFile(tmp_path / "copy")
    assert found.holds(GONE)
    assert found.match(["from an earlier store"], []) == ["from an earlier store"]
    shutil.rmtree(tmp_path / "copy")
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    with pytest.raises(StaleStore):
        FeatureStore(tmp_path / "copy")


@pytest.mark.law("An old copy is noticed under every name of the place, and never copied over a newer state")
@pytest.mark.parametrize("beside", [True, False], ids=["file", "manifest alone"])
def test_an_older_state_is_not_copied_over_a_newer_one(path, tmp_path, beside) -> None:
    """With the file beside the target, and where only the target's manifest knows (a copy of an earlier version)."""
    if not beside:
        (tmp_path / "s.forgotten").unlink()
    before = tree(path)
    with FeatureStore(tmp_path / "old") as store, pytest.raises(StaleStore, match="1 row forgotten at"):
        copy(store, path, update=True)
    assert tree(path) == before
    if beside:
        shutil.rmtree(path)
        with FeatureStore(tmp_path / "old") as store:
            with pytest.raises(StaleStore):
                copy(store, path)
            assert not path.exists()
            path.mkdir()
            with pytest.raises(StaleStore):
                copy(store, path)
        assert list(path.iterdir()) == [], "no lock file either"


def test_a_newer_state_is_copied_over_an_older_one(path, tmp_path) -> None:
    with FeatureStore(path) as store:
        copy(store, tmp_path / "old", update=True)
    assert TombstoneFile(tmp_path / "old").holds(GONE)
    forget(path, IDS[0])
    with FeatureStore(path) as store:
        copy(store, tmp_path / "old", update=True)
    found = TombstoneFile(tmp_path / "old")
    assert found.holds(GONE)
    assert found.holds(IDS[0])


def test_a_key_that_was_destroyed_goes_with_the_next_copy(path, tmp_path, monkeypatch) -> None:
    """Also where an earlier release left it beside the source: it is not even written for a moment."""
    key = TombstoneFile(path).key
    with FeatureStore(path, mode="a") as store:
        copy(store, tmp_path / "copy")
        assert TombstoneFile(tmp_path / "copy").holds(GONE)
        with store.transaction() as change:
            change.destroy_key()
            change.record({"event": "destroy-key"})
    remember(path, key, [GONE])
    remember(path, b"k" * 32, ["from an earlier store"])
    written = list[bytes]()
    swap = Folder.swap

    def seen(self, name, data, **more):
        written.append(data)
        swap(self, name, data, **more)

    monkeypatch.setattr(Folder, "swap", seen)
    with FeatureStore(path) as store:
        copy(store, tmp_path / "copy", update=True)
    assert [key.hex().encode() in data for data in written] == [False] * 3, "twice beside it, and the manifest"
    assert TombstoneFile(tmp_path / "copy").key == b"k" * 32


def test_what_an_older_state_does_not_know_is_not_taken_for_destroyed(tmp_path) -> None:
    """A state from before the sample came at all brings nothing back, and must not make the target forget."""
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS[:6])
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    with FeatureStore(tmp_path / "s", mode="a") as store:
        fill(store, "001", IDS[6:])
    forget(tmp_path / "s", IDS[8])
    (tmp_path / "s.forgotten").unlink()  # then only the manifest that is replaced knows
    with FeatureStore(tmp_path / "old") as store:
        copy(store, tmp_path / "s", update=True)
    assert TombstoneFile(tmp_path / "s").holds(IDS[8])
