"""A commit that no reader would take is refused before it is one; and what the limits leave room for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from taftcache.cache.copying import copy
from taftcache.cache.format import layout, ledger, manifest, parts
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.manifest import MAX_CLASSES, MAX_FREE_BYTES, MAX_VALUES
from taftcache.cache.format.parts import Skipped
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, RecipeError, StoreWriteError

from .forging import CLONE, forge
from .making import NO_ROWS, SHAPE, create, fill, names, row, tree, written

IDS = names(9)


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "s", IDS, a=1)


def curve(n: int) -> list[list[float]]:
    return [[k, float(f"{1.234e-3 / (k + 1):.3g}")] for k in range(n)]


META = {
    "kind": "component",
    "shards": ["000"],
    "key": json.dumps({"rows": ["0" * 64], "settings": "x" * 400}),
    "convergence": curve(200),
    "certificate": {f"field_{k}": 1.2345678901234567e-8 for k in range(16)},
    "stats": {f"stat_{k}": k for k in range(24)},
}


def refused(path: Path, work, says: str, kind: type[Exception] = StoreWriteError) -> str:
    """``work`` on the store is refused, and leaves every byte as it was; what the refusal says."""
    before = tree(path)
    with FeatureStore(path, mode="a") as store:
        root = store.root_digest
        with pytest.raises(kind, match=says) as caught:
            work(store)
        assert store.root_digest == root
        assert tree(path) == before, "the staging is given back at once"
        assert store.strays() == []
        with store.transaction() as change:  # the store in hand goes on
            change.record({"a": 2})
    with FeatureStore(path) as store:
        assert store.verify() == []
        assert [entry["a"] for entry in store.ledger()] == [1, 2]
    return str(caught.value)


def put(meta):
    def work(store) -> None:
        with store.transaction() as change:
            change.put("components/evil", b"x", meta)

    return work


@pytest.mark.law("What is committed can be read again: the writer's limits are the reader's")
def test_too_many_values(path) -> None:
    text = refused(path, put({"stats": {"x": [0] * MAX_VALUES}}), "hold 2097[0-9]+ values, and fewer than 2097152")
    assert "objects: 4" in text
    assert "fewer shards" in text


def test_too_much_text(path) -> None:
    refused(path, put({"stats": "x" * MAX_FREE_BYTES}), f"bytes, and {MAX_FREE_BYTES} are read")


def test_an_object_nested_too_deep(path) -> None:
    for deep, good in ((99, True), (100, False), (800, False)):
        value: object = 0
        for _ in range(deep):
            value = [value]
        if good:
            with FeatureStore(path, mode="a") as store:
                put({"x": value})(store)
        else:
            with FeatureStore(path, mode="a") as store, pytest.raises(RecipeError, match="100 deep"):
                put({"x": value})(store)
    with FeatureStore(path) as store:
        assert store.verify() == []


@pytest.mark.law("What is committed can be read again: the writer's limits are the reader's")
def test_too_many_tombstones(path, monkeypatch) -> None:
    def work(store) -> None:
        with store.transaction() as change:
            change.add_tombstones(f"id {k}" for k in range(100))

    monkeypatch.setattr(parts, "MAX_TOMBSTONES", 99)
    assert "--destroy-key" in refused(path, work, "100 tombstones, and 99 are read")


@pytest.mark.parametrize("limit", ["MAX_CURVE_BYTES", "MAX_CURVE_VALUES"])
def test_too_long_a_curve(path, monkeypatch, limit) -> None:
    monkeypatch.setattr(parts, limit, 99)
    text = refused(path, put({"convergence": curve(99)}), "a curve has [0-9]+ bytes and 297 values")
    assert "fewer points" in text


@pytest.mark.law("What is committed can be read again: the writer's limits are the reader's")
@pytest.mark.full
def test_a_store_of_the_documented_sizes(path) -> None:
    """1,700 components with their curves, 500,000 tombstones, 300,000 skipped samples: the root manifest is small."""
    skipped = [Skipped(f"x{k}", "cannot be read: " + "y" * 80) for k in range(300_000)]
    everyone = [*(s.id for s in skipped), "good"]
    with FeatureStore(path, mode="a") as store:
        with store.writer("001", "train", tokens_shape=SHAPE, candidates=everyone) as writer:
            writer.append(NO_ROWS, [], [], skipped)
            writer.append([row("good")], ["good"], [0])
            writer.commit()
        with store.transaction() as change:
            change.add_tombstones(f"id {k}" for k in range(500_000))
            for k in range(1700):
                change.put(f"components/{k:04d}", b"%d" % k, META)
    assert (path / "manifest.json").stat().st_size < 4 << 20
    with FeatureStore(path) as store:
        assert len(store.manifest.skipped) == 300_000
        assert store.verify() == []


@pytest.mark.full
def test_as_many_tombstones_as_are_said(path) -> None:
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.add_tombstones(f"id {k}" for k in range(500_000))
    with FeatureStore(path, mode="a") as store:
        assert (path / "manifest.json").stat().st_size < 4000
        assert len(store.manifest.tombstones) == 500_000
        assert store.is_forgotten("id 499999")
        assert not store.is_forgotten("id 500000")
        with store.transaction() as change:
            change.destroy_key()
    with FeatureStore(path) as store:
        assert store.verify() == []


@pytest.mark.parametrize("entry", [{"x": "y" * (4 << 20)}, {"x": [0] * (1 << 20)}], ids=["bytes", "values"])
def test_too_long_a_ledger_entry(path, entry) -> None:
    def work(store) -> None:
        with store.transaction() as change:
            change.record({"a": 9})
            change.record(entry)

    refused(path, work, "ledger could not be read again")


def test_a_ledger_entry_for_3000_certificates(path) -> None:
    certificates = {f"components/{k:04d}": META["certificate"] for k in range(3000)}
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.record({"certificates": certificates})
    with FeatureStore(path) as store:
        assert store.ledger()[-1]["certificates"] == certificates


def test_too_many_classes(path, tmp_path) -> None:
    many = [f"class {k}" for k in range(MAX_CLASSES + 8)]

    def work(store) -> None:
        with store.transaction() as change:
            change.update(classes=many)

    refused(path, work, "131080 classes, and 131072 are read")
    with pytest.raises(StoreWriteError, match="131080 classes"):
        create(tmp_path / "new", classes=many)
    assert not (tmp_path / "new").exists()
    with create(tmp_path / "new", classes=many[:MAX_CLASSES]) as store:
        assert len(store.classes) == MAX_CLASSES


def test_commas_in_the_names_of_classes_are_no_classes(tmp_path) -> None:
    many = [f'"{k}", that is, {k}", "' for k in range(60_000)]
    create(tmp_path / "s", classes=many).close()
    with FeatureStore(tmp_path / "s") as store:
        assert store.classes == many


@pytest.mark.parametrize("limit", ["MAX_SKIPPED", "MAX_SKIPPED_BYTES"])
def test_too_many_skipped_samples(path, monkeypatch, limit) -> None:
    """Of a shard's writer the work stays, as after any commit that failed, and can be thrown away."""
    skipped = [Skipped(f"x{k}", "cannot be read: " + "y" * 80) for k in range(300)]
    everyone = [*(s.id for s in skipped), "good"]
    monkeypatch.setattr(parts, limit, 299)
    before = tree(path)
    with FeatureStore(path, mode="a") as store:
        with store.writer("001", "train", tokens_shape=SHAPE, candidates=everyone) as writer:
            writer.append(NO_ROWS, [], [], skipped)
            writer.append([row("good")], ["good"], [0])
            with pytest.raises(StoreWriteError, match=f"a shard has 300 skipped samples in .*{limit and 299}"):
                writer.commit()
        assert not store.has_shard("001")
    assert tree(path, but=("staging/",)) == before
    with FeatureStore(path, mode="a") as store:
        assert store.verify() == []
        assert store.strays() == []


def test_a_shard_of_too_many_chunks(path, monkeypatch) -> None:
    ids = names(30, "more")
    before = tree(path)
    with FeatureStore(path, mode="a") as store:
        monkeypatch.setattr(layout, "MAX_BYTES", 1500)
        with pytest.raises(StoreWriteError, match=r"shard 001.*1500 are read"):
            fill(store, "001", ids)
        assert tree(path, but=("staging/",)) == before
        monkeypatch.undo()
        fill(store, "001", ids)
        assert store.verify() == []


def test_no_copy_is_begun_that_no_reader_would_take(path, tmp_path, monkeypatch) -> None:
    with FeatureStore(path) as store:
        monkeypatch.setattr(manifest, "MAX_VALUES", 3)
        with pytest.raises(StoreWriteError, match="fewer than 3"):
            copy(store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.law("What is committed can be read again: the writer's limits are the reader's")
@pytest.mark.parametrize("count", [40, pytest.param(3000, marks=pytest.mark.full)])
def test_components_with_their_curves(path, count) -> None:
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        for k in range(count):
            change.put(f"components/{k:04d}", b"%d" % k, META)
    with FeatureStore(path, mode="a") as store:
        assert len(store.objects("components/")) == count + 1
        assert store.meta("components/0000") == META
        assert "convergence" not in store.objects()["components/0000"].meta
        with store.transaction() as change:
            change.drop("components/0000")


def wide(n: int, item: bytes) -> bytes:
    return b'{"a":[' + b",".join([item] * n) + b"]}"


def worst() -> dict[str, bytes]:
    """Metadata that takes as much as a reader lets through; made on demand, for it takes half a second."""
    return {
        "lists": wide(MAX_VALUES // 2 - 8, b"[]"),
        "lists of one": wide(MAX_VALUES // 2 - 8, b"[1]"),
        "mappings of one": wide(MAX_VALUES // 2 - 8, b'{"a":1}'),
        "lists in lists": wide(MAX_VALUES // 8 - 8, b"[[[[[[[1]]]]]]]"),
        "keys": b"{" + b",".join(b'"%x":1' % k for k in range(1_500_000)) + b"}",
        "texts of four bytes a letter": wide(200_000, '"{}😀"'.format("x" * 70).encode()),
        "one text of four bytes a letter": b'{"a":"' + "😀".encode() + b"x" * (15 << 20) + b'"}',
    }


@pytest.mark.full
def test_what_a_reader_takes_has_an_end_in_memory(path, tmp_path) -> None:
    """The worst that the limits let through: what opening, verifying and reading it takes is what FORMAT.md says."""
    texts = worst()
    for name, text in texts.items():
        shutil.copytree(path, tmp_path / "bad" / name)

        def change(fields, text=text) -> None:
            fields["objects"]["components/000"]["meta"] = msgspec.Raw(canonical(msgspec.json.decode(text)))

        forge(tmp_path / "bad" / name, change)
    bad = sorted(str(p) for p in (tmp_path / "bad").iterdir())
    command = [sys.executable, "-m", "tests.cache.hostile", str(path), *bad]
    run = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    for name, error, seconds, memory in found:
        print(f"{name:40} {error:16} {seconds:6.3f} s  {memory:6.1f} MiB")
    assert [error for _, error, _, _ in found] == ["none"] * len(texts)
    assert max(memory for *_, memory in found) < 384


def test_one_value_more_is_refused_by_the_reader(path) -> None:
    forge(path, lambda m: m["objects"]["components/000"].update(meta={"a": [0] * MAX_VALUES}))
    with pytest.raises(FormatError, match="2097152"):
        FeatureStore(path)


def test_entries_of_the_length_before_are_read_whatever_is_in_them(path) -> None:
    """Up to 1 MiB earlier versions wrote anything."""
    body = b'{"a":[' + b"[]," * 349_400 + b'[]],"previous":"%s","seq":2}'
    with FeatureStore(path) as store:
        ref = store.manifest.ledger
    raw = body % ref.head.encode()
    assert len(raw) < 1 << 20
    (path / ledger.entry_path(2, digest(raw))).write_bytes(raw)
    forge(path, lambda m: m.update(ledger={"entries": 2, "head": digest(raw)}))
    with FeatureStore(path) as store:
        assert len(store.ledger()) == 2
