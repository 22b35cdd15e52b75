"""A store that someone else made, with right digests and wrong intentions."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from taftcache.cache.format.digest import canonical, digest, too_deep
from taftcache.cache.format.manifest import MAX_BYTES
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, IntegrityError, RecipeError, StoreError

from .forging import forge, forge_shard
from .making import names, written

IDS = names(10)


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "s", IDS)


def read_all(path) -> None:
    with FeatureStore(path) as store:
        for shard in store.shards:
            shard.tokens(slice(None))
            shard.labels  # noqa: B018
            shard.sample_ids  # noqa: B018
        store.read_object("components/000")


def refused(path, kind: type[Exception] = FormatError, says: str | None = None) -> None:
    with pytest.raises(kind, match=says):
        read_all(path)


def test_forging_nothing_reads(path) -> None:
    forge(path, lambda m: None)
    forge_shard(path, lambda m: None)
    read_all(path)


def listed(kind: str, size: int, count: int) -> dict[str, Any]:
    path = f"lists/{kind}-{'0' * 16}" + ("" if "tombstones" in kind else ".json")
    return {"path": path, "digest": "0" * 64, "size": size, "count": count}


ROOT = {
    "unknown field": lambda m: m.update(extra=1),
    "missing field": lambda m: m.pop("recipe"),
    "path leaves the store": lambda m: m["shards"][0].update(path="../elsewhere"),
    "absolute path": lambda m: m["objects"]["components/000"].update(path="/etc/passwd"),
    "object elsewhere": lambda m: m["objects"]["components/000"].update(path="components/../../x"),
    "object name": lambda m: m["objects"].update({"../x": m["objects"].pop("components/000")}),
    "object in shards": lambda m: m["objects"].update({"shards/000": m["objects"].pop("components/000")}),
    "negative size": lambda m: m["objects"]["components/000"].update(size=-1),
    "size as text": lambda m: m["objects"]["components/000"].update(size="32"),
    "shard name": lambda m: m["shards"][0].update(name="../000"),
    "shard twice": lambda m: m["shards"].append(m["shards"][0]),
    "role": lambda m: m["shards"][0].update(role="secret"),
    "rows": lambda m: m["shards"][0].update(rows=2**62),
    "other rows": lambda m: m["shards"][0].update(rows=11),
    "no rows": lambda m: m["shards"][0].update(rows=0),
    "digest": lambda m: m["shards"][0].update(digest="../" + "0" * 61),
    "tombstones inline": lambda m: m.update(tombstones=[]),
    "tombstones without key": lambda m: m.update(tombstones=listed("tombstones", 32, 1)),
    "tombstones elsewhere": lambda m: m.update(tombstones=listed("../tombstones", 32, 1), tombstone_key="0" * 64),
    "tombstones of more than 128 MiB": lambda m: m.update(
        tombstones=listed("tombstones", 2**28, 2**23), tombstone_key="0" * 64
    ),
    "skipped inline": lambda m: m.update(skipped=[]),
    "skipped elsewhere": lambda m: m.update(skipped={"000": listed("curve", 32, 1)}),
    "more skipped than bytes": lambda m: m.update(skipped={"000": listed("skipped", 3, 2**40)}),
    "curve elsewhere": lambda m: m["objects"]["components/000"].update(curve=listed("curve", 9, 1) | {"path": "/x"}),
    "nothing in a curve": lambda m: m["objects"]["components/000"].update(curve=listed("curve", 2, 0)),
    "ledger": lambda m: m.update(ledger={"entries": 10**12, "head": "0" * 64}),
    "ledger head": lambda m: m.update(ledger={"entries": 1, "head": "../x"}),
    "format": lambda m: m.update(format="something"),
    "version": lambda m: m.update(version=True),
    "older": lambda m: m.update(version=1),
    "newer": lambda m: m.update(version=3),
}


@pytest.mark.law("A stranger's store can be refused, and can do nothing else")
@pytest.mark.parametrize("what", ROOT)
def test_root_manifest(path, what) -> None:
    forge(path, ROOT[what])
    refused(path)


def nested(depth: int) -> Any:
    """Lists ``depth`` deep."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("where", ["identity", "plan", "recipe", "meta"])
def test_a_manifest_nested_too_deep(path, where) -> None:
    """Code that compares or copies such a value calls itself once for each level."""
    for depth in (99, 100, 300, 900):

        def change(fields, depth=depth) -> None:
            place = fields["objects"]["components/000"]["meta"] if where == "meta" else fields[where]
            place["x"] = nested(depth)

        forge(path, change)
        if depth == 99:
            read_all(path)
        else:
            refused(path, FormatError, "more than 100 deep")


def test_depth_is_that_of_the_values_whatever_texts_hold() -> None:
    texts = ['"', "\\", '\\"', "[", "{", "}]", "\n", "[[[["]
    chance = random.Random(0)

    def value(left: int) -> Any:
        if not left or chance.random() < 0.02:
            return chance.choice([1, None, "".join(chance.choices(texts, k=3))])
        kin = [value(left - 1) for _ in range(1 + (chance.random() < 0.01))]
        return kin if chance.random() < 0.5 else {"".join(chance.choices(texts, k=2)): some for some in kin}

    def depth(some: Any) -> int:
        inner = some.values() if isinstance(some, dict) else some
        return 1 + max(map(depth, inner), default=0) if isinstance(some, list | dict) else 0

    found = [value(chance.randint(90, 110)) for _ in range(300)]
    assert {too_deep(canonical(some)) for some in found} == {True, False}
    assert all(
        too_deep(text) == (depth(some) > 100) for some in found for text in (canonical(some), json.dumps(some).encode())
    )


def test_a_ledger_entry_nested_too_deep(path) -> None:
    for depth, good in ((99, True), (100, False), (900, False)):
        raw = canonical({"seq": 1, "previous": "", "x": nested(depth)})
        (path / "ledger").mkdir(exist_ok=True)
        (path / f"ledger/000001-{digest(raw)[:16]}.json").write_bytes(raw)
        forge(path, lambda m, raw=raw: m.update(ledger={"entries": 1, "head": digest(raw)}))
        with FeatureStore(path) as store:
            if good:
                assert len(store.ledger()) == 1
            else:
                with pytest.raises(IntegrityError, match="no ledger entry"):
                    store.ledger()


EDITED: dict[str, Callable[[bytes], bytes]] = {
    "a key twice": lambda raw: b'{"a":"everything was erased",' + raw[1:],
    "a space": lambda raw: raw.replace(b",", b", "),
    "another order": lambda raw: raw.replace(b'"a":1,', b"")[:-1] + b',"a":1}',
    "an escape": lambda raw: raw.replace(b'"a"', rb'"\u0061"'),
    "a line after it": lambda raw: raw + b"\n",
}


@pytest.mark.parametrize("how", EDITED)
def test_a_ledger_entry_in_another_text_of_the_same_values(path, how) -> None:
    """Signatures are over values. The first of two equal keys would be a text for the eye that nobody signed."""
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.record({"a": 1})
    (file,) = (path / "ledger").iterdir()
    raw = file.read_bytes()
    edited = EDITED[how](raw)
    assert msgspec.json.decode(edited) == msgspec.json.decode(raw)
    assert edited != raw
    file.unlink()
    (path / f"ledger/000001-{digest(edited)[:16]}.json").write_bytes(edited)
    forge(path, lambda m: m["ledger"].update(head=digest(edited)))
    with FeatureStore(path) as store:
        with pytest.raises(IntegrityError, match="not canonical JSON"):
            store.ledger()
        assert [f.problem for f in store.verify()] == ["it is not canonical JSON"]


SHARD = {
    "unknown field": lambda m: m.update(extra=1),
    "key leaves the store": lambda m: m["objects"].update({"../x": m["objects"]["labels/c.0"]}),
    "one key more": lambda m: m["objects"].update({"tokens/c.9.0.0": m["objects"]["tokens/c.0.0.0"]}),
    "one chunk less": lambda m: m["objects"].pop("tokens/c.1.0.0"),
    "no metadata": lambda m: m["objects"].pop("labels/zarr.json"),
    "huge shape": lambda m: m.update(tokens_shape=[2**40, 2**40]),
    "huge chunk": lambda m: m.update(chunk_rows=2**40),
    "huge file": lambda m: m["objects"]["tokens/c.0.0.0"].update(size=2**50),
    "huge ids": lambda m: m["objects"]["sample_id/c.0"].update(size=2**50),
    "zero tokens": lambda m: m.update(tokens_shape=[0, 8]),
    "negative": lambda m: m.update(tokens_shape=[-3, -8]),
    "dtype": lambda m: m.update(dtype="object"),
    "other dtype": lambda m: m.update(dtype="float32"),
    "other shape": lambda m: m.update(tokens_shape=[8, 3]),
    "other name": lambda m: m.update(name="001"),
    "other rows": lambda m: m.update(rows=9),
    "nan": lambda m: m["statistics"].update(max_abs=None),
    "version": lambda m: m.update(version=0),
}


@pytest.mark.parametrize("what", SHARD)
def test_shard_manifest(path, what) -> None:
    forge_shard(path, SHARD[what])
    refused(path)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("tokens/zarr.json", b'"name":"bytes"', b'"name":"pickl"'),
        ("tokens/zarr.json", b'"endian":"little"', b'"endian":"bigbig"'),
        ("tokens/zarr.json", b'"separator":"."', b'"separator":"/"'),
        ("tokens/zarr.json", b'"shape":[10,3,8]', b'"shape":[99,3,8]'),
        ("tokens/zarr.json", b'"name":"regular"', b'"name":"ragular"'),
        ("tokens/zarr.json", b'"fill_value":0.0', b'"fill_value":1.0'),
        ("labels/zarr.json", b'"int32"', b'"int64"'),
        ("zarr.json", b'"zarr_format":3', b'"zarr_format":2'),
    ],
)
def test_zarr_metadata_has_one_text(path, file, old, new) -> None:
    with FeatureStore(path) as store:
        raw = (path / store.shards[0].at / file).read_bytes()
    assert old in raw
    forge_shard(path, lambda m: None, {file: raw.replace(old, new)})
    refused(path, FormatError, "one text")


def test_compressed_metadata_is_refused_before_anything_is_inflated(path) -> None:
    with FeatureStore(path) as store:
        raw = (path / store.shards[0].at / "tokens/zarr.json").read_bytes()
    codec = b'{"configuration":{"level":9},"name":"gzip"}'
    forge_shard(path, lambda m: None, {"tokens/zarr.json": raw.replace(b'"codecs":[', b'"codecs":[' + codec + b",")})
    refused(path, FormatError)


@pytest.mark.parametrize("count", [9, 11, 2**32 - 1])
def test_declared_count_of_ids(path, count) -> None:
    with FeatureStore(path) as store:
        raw = (path / store.shards[0].at / "sample_id/c.0").read_bytes()
    forge_shard(path, lambda m: None, {"sample_id/c.0": count.to_bytes(4, "little") + raw[4:]})
    refused(path, FormatError, "one sample id for each row")


def test_declared_length_of_an_id(path) -> None:
    with FeatureStore(path) as store:
        raw = (path / store.shards[0].at / "sample_id/c.0").read_bytes()
    forge_shard(path, lambda m: None, {"sample_id/c.0": raw[:4] + b"\xff\xff\xff\xff" + raw[8:]})
    refused(path, FormatError, "one sample id for each row")


def test_something_in_the_padding(path) -> None:
    with FeatureStore(path) as store:
        raw = (path / store.shards[0].at / "tokens/c.2.0.0").read_bytes()
    forge_shard(path, lambda m: None, {"tokens/c.2.0.0": raw[:-1] + b"\1"})
    with FeatureStore(path) as store:
        assert ["padding" in f.problem for f in store.verify()] == [True]


def test_labels_outside_the_classes(path) -> None:
    forge_shard(path, lambda m: None, {"labels/c.0": (77).to_bytes(4, "little") * 10})
    with FeatureStore(path) as store:
        assert any("outside the classes" in f.problem for f in store.verify())


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 10**5, b'{"format":"taftcache-store"}']
)
def test_what_is_no_manifest(path, text) -> None:
    (path / "manifest.json").write_bytes(text)
    refused(path, StoreError)


def test_manifest_in_another_spelling(path) -> None:
    raw = (path / "manifest.json").read_bytes()
    for other in (raw + b"\n", raw.replace(b'"version":2', b'"version": 2'), raw[:-1] + b',"version":2}'):
        (path / "manifest.json").write_bytes(other)
        refused(path, StoreError)


def test_huge_manifest_is_not_read(path) -> None:
    os.truncate(path / "manifest.json", MAX_BYTES + 1)
    refused(path, FormatError, "at most .* are read")


@pytest.mark.law("A stranger's store can be refused, and can do nothing else")
@pytest.mark.parametrize("what", ["manifest.json", "shards", "shard", "shard.json", "chunk", "labels", "component"])
def test_links_are_not_followed(path, tmp_path, what) -> None:
    with FeatureStore(path) as store:
        at = store.shards[0].at
        component = store.objects()["components/000"].path
    names = {"shard": at, "shard.json": f"{at}.json", "chunk": f"{at}/tokens/c.0.0.0", "labels": f"{at}/labels"}
    victim = path / (names | {"component": component}).get(what, what)
    shutil.move(victim, tmp_path / "outside")
    victim.symlink_to(tmp_path / "outside")
    refused(path, StoreError, "links are not followed")
    if what != "manifest.json":
        with FeatureStore(path) as store:
            assert store.verify() != []


def test_the_store_itself_may_be_reached_by_a_link(path, tmp_path) -> None:
    (tmp_path / "link").symlink_to(path)
    read_all(tmp_path / "link")


def test_sweeping_follows_no_link(path, tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (path / "shards" / "999-0000").symlink_to(outside)
    (path / "staging" / "link").symlink_to(outside)
    FeatureStore(path, mode="a").close()
    assert not (path / "shards" / "999-0000").is_symlink()
    assert (outside / "precious").read_text() == "x"
    shutil.rmtree(path / "staging")
    (path / "staging").symlink_to(outside)
    with pytest.raises(FormatError, match="links"):
        FeatureStore(path, mode="a")
    assert (outside / "precious").read_text() == "x"


def test_a_fifo_does_not_hang(path) -> None:
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    refused(path, FormatError)


def test_names_stay_below(path) -> None:
    with FeatureStore(path, mode="a") as store:
        for name in ("../manifest.json", "/etc/passwd", "a//b", "./x", "a/..", ""):
            with pytest.raises(FormatError, match="below the store"):
                store.root.read(name, 10)
        with pytest.raises(RecipeError):
            store.writer("..", "train", tokens_shape=(1, 1), candidates=["a"])


def test_a_ledger_whose_first_entry_names_another(path) -> None:
    raw = canonical({"seq": 1, "previous": "0" * 64})
    (path / "ledger").mkdir()
    (path / "ledger" / f"000001-{digest(raw)[:16]}.json").write_bytes(raw)
    forge(path, lambda m: m.update(ledger={"entries": 1, "head": digest(raw)}))
    with FeatureStore(path) as store, pytest.raises(IntegrityError, match="names one before it"):
        store.ledger()


def test_ledger_and_key(path) -> None:
    with FeatureStore(path, mode="a") as store:
        with store.transaction() as change:
            change.erase(IDS[:1])
            change.record({"a": 1})
        with store.transaction() as change:
            change.record({"a": 2})
    os.truncate(path / "tombstones.key", 1 << 20)
    with FeatureStore(path) as store, pytest.raises(StoreError, match=r"tombstones\.key"):
        store.is_forgotten("x")
    # an entry cut out of the middle, its neighbours untouched
    forge(path, lambda m: m["ledger"].update(entries=1))
    with FeatureStore(path) as store:
        with pytest.raises(IntegrityError, match="ledger"):
            store.ledger()
        assert any(f.file.startswith("ledger") for f in store.verify())
