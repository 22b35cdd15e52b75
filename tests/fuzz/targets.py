"""What reads files of others: for each, a valid file, and what is done with a changed one.

A changed file whose digest no longer fits is refused for that alone; so half of them get their right digest again,
as a stranger would give it. The members of a zip have right checksums in three cases of five.
"""

from __future__ import annotations

import io
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import h5py
import msgspec
import numpy as np
import torch
from PIL import Image

from taftcache.backbone.sources.arrays import ArraySource, AskedArrays
from taftcache.backbone.sources.hdf5 import open_hdf5
from taftcache.backbone.sources.npz import open_npz
from taftcache.cache.columns import Columns
from taftcache.cache.format.digest import SHORT, canonical, digest
from taftcache.cache.format.manifest import CURVE
from taftcache.cache.hdf5 import FeatureFile, export
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import DataError
from taftcache.model.component import Component
from taftcache.model.description import DESCRIPTION, read_description
from taftcache.privacy.budget import EVENT, fixed_promise, spent_before
from taftcache.recipe import load_recipe
from taftcache.stages.files.vectors.opening import open_vectors, vectors_of_hdf5
from taftcache.tangent.parameters import Layout
from tests.cache.hostile import read_all
from tests.cache.making import create, fill, names
from tests.fuzz.mutating import mutated

IDS = names(6)
Run = Callable[[bytes, random.Random], None]


class Target(NamedTuple):
    """A valid file, and what reads one that was changed: it returns, or raises an error of taftcache's own."""

    valid: bytes
    run: Run


def _resealed(raw: bytes, **there: str) -> bytes:
    """JSON with the digest of its other fields, where it is JSON at all."""
    try:
        fields = msgspec.json.decode(raw)
        if isinstance(fields, dict):
            fields.pop("digest", None)
            fields |= there
            return canonical(fields | {"digest": digest(canonical(fields))})
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        pass
    return raw


def _store(folder: Path) -> Path:
    """Three chunks, a component, a ledger of two entries, a tombstone."""
    with create(folder / "good") as store:
        fill(store, "000", IDS)
        with store.transaction() as change:
            change.put("components/000", b"x" * 32, {"a": 1, "b": [1.5, "text"]})
            change.erase(IDS[:1])
            change.record({"action": "erase", "samples": 1})
        with store.transaction() as change:
            change.record({"action": "train", "shards": ["000"], "seconds": 1.5})
    return folder / "good"


def _fresh(good: Path) -> Path:
    path = good.with_name("bad")
    shutil.rmtree(path, ignore_errors=True)
    path.with_name("bad.forgotten").unlink(missing_ok=True)
    shutil.copytree(good, path)
    return path


def root_manifest(folder: Path) -> Target:
    good = _store(folder)

    def run(data: bytes, chance: random.Random) -> None:
        path = _fresh(good)
        (path / "manifest.json").write_bytes(_resealed(data) if chance.random() < 0.6 else data)
        read_all(path)

    return Target((good / "manifest.json").read_bytes(), run)


def shard_manifest(folder: Path) -> Target:
    good = _store(folder)
    with FeatureStore(good) as store:
        at = store.shards[0].at

    def run(data: bytes, chance: random.Random) -> None:
        path = _fresh(good)
        (path / f"{at}.json").write_bytes(data)
        if chance.random() < 0.8:
            fields = msgspec.json.decode((path / "manifest.json").read_bytes())
            to = f"shards/000-{digest(data)[:SHORT]}"
            fields["shards"][0] |= {"digest": digest(data), "path": to}
            (path / at).rename(path / to)
            (path / f"{at}.json").rename(path / f"{to}.json")
            (path / "manifest.json").write_bytes(_resealed(canonical(fields)))
        read_all(path)

    return Target((good / f"{at}.json").read_bytes(), run)


def ledger_entry(folder: Path) -> Target:
    good = _store(folder)
    (last,) = (good / "ledger").glob("000002-*.json")

    def run(data: bytes, chance: random.Random) -> None:
        path = _fresh(good)
        (path / "ledger" / last.name).unlink()
        (path / "ledger" / f"000002-{digest(data)[:SHORT]}.json").write_bytes(data)
        fields = msgspec.json.decode((path / "manifest.json").read_bytes())
        fields["ledger"]["head"] = digest(data)
        (path / "manifest.json").write_bytes(_resealed(canonical(fields)))
        with FeatureStore(path) as store:
            store.ledger()

    return Target(last.read_bytes(), run)


def tombstone_file(folder: Path) -> Target:
    good = _store(folder)
    release = {"multiplier": 2.0, "steps": 3, "rate": 1.0}
    spent = {"shards": ["000"], "releases": [release], "delta": 1e-5, "budget": 3.0, "relation": "add-remove"}
    with FeatureStore(good, mode="a") as store, store.transaction() as change:
        change.record({"event": EVENT, **spent})
    file = good.with_name("good.forgotten")

    def run(data: bytes, chance: random.Random) -> None:
        good.with_name("bad.forgotten").write_bytes(_resealed(data) if chance.random() < 0.6 else data)
        found = TombstoneFile(good.with_name("bad"))
        found.holds(IDS[0])
        found.match(IDS, [])
        found.more_than([])
        said = [charge.said for charge in found.charges]
        spent_before([said])
        fixed_promise({}, [], "add-remove", said)

    return Target(file.read_bytes(), run)


def _list(kind: str, folder: Path) -> Target:
    """A file of ``lists/``, in which a manifest keeps what would make it grow without end."""
    with create(folder / "good") as store:
        fill(store, "000", IDS, bad=IDS[4:])
        with store.transaction() as change:
            points = [[float(k), {"loss": 1.0 / (k + 1)}] for k in range(8)]
            change.put("components/000", b"x" * 32, {CURVE: points})
            change.erase(IDS[:2])
    good = folder / "good"
    (file,) = (good / "lists").glob(f"{kind}-*")

    def run(data: bytes, chance: random.Random) -> None:
        path = _fresh(good)
        (path / "lists" / file.name).unlink()
        named = file.name
        text = (path / "manifest.json").read_bytes()
        if chance.random() < 0.8:
            old = digest(file.read_bytes())
            text = text.replace(old.encode(), digest(data).encode())
            text = text.replace(old[:SHORT].encode(), digest(data)[:SHORT].encode())
            text = text.replace(b'"size":%d' % file.stat().st_size, b'"size":%d' % len(data))
            if chance.random() < 0.5:
                text = re.sub(rb'"count":\d+', b'"count":%d' % chance.randrange(9), text)
            named = named.replace(old[:SHORT], digest(data)[:SHORT])
        (path / "lists" / named).write_bytes(data)
        (path / "manifest.json").write_bytes(_resealed(text))
        read_all(path)
        with FeatureStore(path, mode="a") as store:
            store.meta("components/000")
            assert [*store.manifest.skipped, *store.manifest.tombstones]
            with store.transaction() as change:
                change.erase(IDS[2:3])

    return Target(file.read_bytes(), run)


def list_of_tombstones(folder: Path) -> Target:
    return _list("tombstones", folder)


def list_of_skipped(folder: Path) -> Target:
    return _list("skipped", folder)


def list_of_points(folder: Path) -> Target:
    return _list("curve", folder)


def journal(folder: Path) -> Target:
    with create(folder / "good") as store:
        fill(store, "000", IDS, batch=2, chunk_rows=2, stop=2)
    file = "staging/shard-000/journal"

    def run(data: bytes, chance: random.Random) -> None:
        path = _fresh(folder / "good")
        if chance.random() < 0.6:
            texts = [line.partition(b" ")[2] for line in data.split(b"\n")]
            data = b"".join(digest(text)[:SHORT].encode() + b" " + text + b"\n" for text in texts)
        (path / file).write_bytes(data)
        with FeatureStore(path, mode="a") as store:
            fill(store, "000", IDS, batch=2, chunk_rows=2)

    return Target((folder / "good" / file).read_bytes(), run)


def component(folder: Path) -> Target:
    layout = Layout({"head.weight": (3, 8), "head.bias": (3,)})
    meta = {"kind": "component", "rows": 6, "norm": 1.5, "stats": {"passes": 3}, "converged": True}
    made = Component("0" * 64, layout, torch.ones(27, dtype=torch.float64), meta, torch.ones(6, 3, dtype=torch.float64))

    def run(data: bytes, chance: random.Random) -> None:
        if chance.random() < 0.6:  # the header's length right again
            size = max(0, len(data) - 27 * 8 - 18 * 8 - 8)
            data = size.to_bytes(8, "little") + data[8:]
        Component.decode(data)
        Component.decode(data, layout).record  # noqa: B018

    return Target(made.encode(), run)


def model_folder(folder: Path) -> Target:
    (folder / "model").mkdir()
    fields = {
        "format": 2, "model": "models/mean", "classes": ["a", "b"], "backbone": "vit", "weights_digest": "0" * 64,
        "preprocess": {}, "tangent": {}, "tail": {"start": 5}, "base_digest": "0" * 64, "digest": "0" * 64,
        "component": {"rows": 6}, "root_digest": "", "versions": {"torch": "2"}, "files": {},
    }  # fmt: skip

    def run(data: bytes, chance: random.Random) -> None:
        (folder / "model" / DESCRIPTION).write_bytes(data)
        read_description(folder / "model")

    return Target(msgspec.json.encode(fields), run)


def recipe(folder: Path) -> Target:
    valid = (Path(__file__).parents[2] / "pipelines" / "quickstart.toml").read_bytes()

    def run(data: bytes, chance: random.Random) -> None:
        (folder / "a.toml").write_bytes(data)
        load_recipe(folder / "a.toml")

    return Target(valid, run)


def _pictures() -> dict[str, np.ndarray]:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), np.uint8)
    return {
        "images": pixels,
        "labels": np.arange(6) % 3,
        "id": np.array(list("abcdef")),
        "classes": np.array(list("xyz")),
    }


def _read(source: ArraySource) -> None:
    for index in range(min(len(source.items), 20)):
        source.read(index)


def npz(folder: Path) -> Target:
    files = []
    for write in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        write(buffer, **_pictures())
        files.append(buffer.getvalue())
    png = io.BytesIO()
    Image.fromarray(_pictures()["images"][0]).save(png, "PNG")
    buffer = io.BytesIO()
    blob = np.frombuffer(png.getvalue() * 3, np.uint8)
    np.savez(buffer, blob=blob, offset=np.arange(4) * len(png.getvalue()), label=np.arange(3))
    files.append(buffer.getvalue())

    def run(data: bytes, chance: random.Random) -> None:
        (folder / "a.npz").write_bytes(data)
        _read(open_npz(AskedArrays(folder / "a.npz", "images", "labels")))

    for data in files:
        run(data, random.Random(0))
    return Target(b"", _of_several(files, run, _archive))


def _archive(data: bytes, chance: random.Random) -> bytes:
    """A zip changed itself, or one of its members, which is packed again."""
    if chance.random() < 0.4:
        return mutated(data, chance)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = chance.choice(list(members))
    members[changed] = mutated(members[changed], chance)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return buffer.getvalue()


def hdf5(folder: Path) -> Target:
    export(FeatureStore(_store(folder)), folder / "export.h5")
    with h5py.File(folder / "pictures.h5", "w") as file:
        for name, values in _pictures().items():
            file[name] = [v.encode() for v in values.tolist()] if values.dtype.kind == "U" else values
    with h5py.File(folder / "columns.h5", "w") as file:
        file["tokens"], file["labels"] = np.ones((6, 3, 8), np.float32), np.arange(6) % 3
        file.create_dataset("more", (6, 8), "f4", chunks=(2, 8), compression="gzip")[:] = 1

    def run(data: bytes, chance: random.Random) -> None:
        (folder / "a.h5").write_bytes(data)
        with suppress(DataError):
            _read(open_hdf5(AskedArrays(folder / "a.h5", "images", "labels")))
        with FeatureFile(folder / "a.h5") as features:
            if not features.is_export:
                found = vectors_of_hdf5(features, Columns())
                found.take(range(min(6, len(found.ids))))
                return
            for part in features.shards.values():
                part.tokens[0:4]
            for name in features.objects:
                features.file(name)

    names = ("export.h5", "pictures.h5", "columns.h5")
    return Target(b"", _of_several([(folder / name).read_bytes() for name in names], run))


def vectors(folder: Path) -> Target:
    x, y, files = np.ones((6, 8), np.float32), np.arange(6) % 3, []
    for write in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        write(buffer, x=x, y=y, ids=np.array([f"id{k}" for k in range(6)]))
        files.append((".npz", buffer.getvalue()))
    np.save(folder / "y.npy", y)
    buffer = io.BytesIO()
    np.save(buffer, x)
    files.append((".npy", buffer.getvalue()))
    with suppress(ImportError):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"x": list(x), "y": y.tolist()}), folder / "x.parquet")
        files.append((".parquet", (folder / "x.parquet").read_bytes()))
    suffix = {data: name for name, data in files}

    def read(data: bytes, name: str) -> None:
        file = folder / f"a{name}"
        file.write_bytes(data)
        labels = str(folder / "y.npy") if file.suffix == ".npy" else None
        found = open_vectors(file, Columns(labels=labels), folder)
        found.take(range(min(6, len(found.ids))))

    for data, name in suffix.items():
        read(data, name)

    def run(data: bytes, chance: random.Random) -> None:
        valid = chance.choice(list(suffix))
        name = suffix[valid]
        read((_archive if name == ".npz" else mutated)(valid, chance), name)

    return Target(b"", run)


def _of_several(files: list[bytes], run: Run, change: Callable[[bytes, random.Random], bytes] = mutated) -> Run:
    """Changes one of ``files`` itself, for there is more than one kind of valid file."""
    return lambda _, chance: run(change(chance.choice(files), chance), chance)


TARGETS: dict[str, Callable[[Path], Target]] = {
    made.__name__: made
    for made in (
        *(root_manifest, shard_manifest, ledger_entry, tombstone_file, journal),
        *(list_of_tombstones, list_of_skipped, list_of_points),
        *(component, model_folder, recipe, npz, hdf5, vectors),
    )
}
