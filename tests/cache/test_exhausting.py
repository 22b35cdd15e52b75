"""A stranger's store that would cost a reader time or memory, and manifests edited anywhere."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taftcache.cache.format.digest import digest
from taftcache.cache.format.manifest import MAX_BYTES
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, TaftcacheError

from .forging import CLONE, forge, forge_shard
from .making import kept, names, written

IDS = names(10)


@pytest.fixture
def good(tmp_path) -> Path:
    return written(tmp_path / "good", IDS, a=1)


def _filled(text: bytes, size: int) -> bytes:
    return text * (size // len(text))


def _raw_root(path, **parts: bytes) -> None:
    """Write the root manifest with these fields' JSON as it is, and its right digest."""
    fields = msgspec.json.decode((path / "manifest.json").read_bytes(), type=dict[str, msgspec.Raw])
    fields |= {name: msgspec.Raw(text) for name, text in parts.items()}
    fields.pop("digest")
    body = b",".join(b'"%s":%s' % (name.encode(), bytes(fields[name])) for name in sorted(fields))
    own = b'"digest":"%s",' % digest(b"{" + body + b"}").encode()
    at = body.index(b'"format":')
    (path / "manifest.json").write_bytes(b"{" + body[:at] + own + body[at:] + b"}")


def _many_objects(fields, count: int, entry: str) -> None:
    fields["objects"] |= {f"tokens/c.{k}.0.0": {"digest": entry, "size": 2} for k in range(count)}


SIZE = MAX_BYTES - (1 << 16)
EXHAUSTING = {
    "67 million chunks": lambda p: forge_shard(p, lambda m: m.update(rows=67 << 20, chunk_rows=1, tokens_shape=[1, 1])),
    "67 million rows": lambda p: forge(p, lambda m: m["shards"][0].update(rows=67 << 20)),
    "many tiny chunks": lambda p: forge_shard(p, lambda m: _many_objects(m, 100_000, "0" * 64)),
    "chunk of a terabyte": lambda p: forge_shard(p, lambda m: m.update(tokens_shape=[2**20, 2**20])),
    "sparse chunk": lambda p: os.truncate(next(p.glob("shards/*/tokens/c.0*")), 1 << 40),
    "sparse manifest": lambda p: os.truncate(p / "manifest.json", 1 << 40),
    "sparse shard manifest": lambda p: os.truncate(next(p.glob("shards/*.json")), 1 << 40),
    "sparse object": lambda p: os.truncate(next(p.glob("components/*")), 1 << 40),
    "object of a terabyte": lambda p: (
        forge(p, lambda m: m["objects"]["components/000"].update(size=1 << 40)),
        os.truncate(next(p.glob("components/*")), 1 << 40),
    ),
    "empty lists": lambda p: _raw_root(p, identity=b'{"a":[' + _filled(b"[],", SIZE) + b"[]]}"),
    "empty lists in an unknown field": lambda p: _raw_root(p, zzz=b"[" + _filled(b"[],", SIZE) + b"[]]"),
    "meta": lambda p: _raw_root(
        p,
        objects=b'{"components/000":{"digest":"","meta":{"a":[' + _filled(b"{},", SIZE) + b'{}]},"path":"","size":0}}',
    ),
    "short classes": lambda p: _raw_root(p, classes=b"[" + _filled(b'"a",', SIZE) + b'"b"]'),
    "short tombstones": lambda p: _raw_root(p, tombstones=b"[" + _filled(b'"a",', SIZE) + b'"b"]'),
    "numbers for shards": lambda p: _raw_root(p, shards=b"[" + _filled(b"1,", SIZE) + b"1]"),
    "depth": lambda p: _raw_root(p, plan=b"[" * (1 << 20) + b"]" * (1 << 20)),
    "one long text": lambda p: _raw_root(p, format=b'"' + b"x" * SIZE + b'"'),
    "rows per class": lambda p: forge_shard(
        p, lambda m: m["statistics"].update(rows_per_class={str(k): 1 for k in range(1 << 18)})
    ),
    "ids": lambda p: forge_shard(p, lambda m: None, {"sample_id/c.0": b"\xff" * 78}),
    "ledger": lambda p: forge(p, lambda m: m.update(ledger={"entries": 2**31 - 1, "head": "0" * 64})),
    "path": lambda p: forge(p, lambda m: m["shards"][0].update(path="../../../etc")),
    "key": lambda p: forge_shard(p, lambda m: m["objects"].update({"../../x": m["objects"]["labels/c.0"]})),
}


@pytest.mark.law("A hostile store is refused within a second and 64 MiB")
def test_refused_before_it_costs_anything(good, tmp_path) -> None:
    """Each within a second and 64 MiB."""
    for k, (name, change) in enumerate(EXHAUSTING.items()):
        shutil.copytree(good, tmp_path / f"{k:02d} {name}")
        change(tmp_path / f"{k:02d} {name}")
    bad = sorted(str(p) for p in tmp_path.iterdir() if p.name[:2].isdecimal())
    command = [sys.executable, "-m", "tests.cache.hostile", str(good), *bad]
    run = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found) == len(EXHAUSTING)
    for name, error, seconds, memory in found:
        print(f"{name:40} {error:16} {seconds:6.3f} s  {memory:6.1f} MiB")
    assert [name for name, error, _, _ in found if error == "none"] == []
    assert max(memory for *_, memory in found) < 64
    # the bar is a second of a quiet machine; the processor time that it takes on a busy one may be some times that
    assert max(seconds for *_, seconds, _ in found) < 10


@pytest.mark.parametrize("key", ["", "x", "-1", "01", "99999999999"])
def test_a_class_that_is_no_number_is_refused(good, tmp_path, key):
    """It was read as one when the statistics were, with a bare error."""
    path = shutil.copytree(good, tmp_path / "bad")
    forge_shard(path, lambda m: m["statistics"]["rows_per_class"].update({key: 1}))
    with FeatureStore(path) as store, pytest.raises(FormatError, match="rows_per_class"):
        store.shards[0].statistics  # noqa: B018


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["../x", "/etc/passwd", "000", "float16", "0" * 64, 2**63 - 1, 2**31, -1, 0, 1, 10**6]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def edits(draw):
    """Where in a manifest (as fractions of the keys on the way), and what is done there."""
    return (
        draw(st.lists(st.floats(0, 0.999), min_size=1, max_size=4)),
        draw(st.sampled_from(["put", "drop", "add", "again", "near", "near", "other", "other"])),
        draw(values),
        draw(st.text(max_size=8)),
        draw(st.floats(0, 0.999)),
    )


def near(value: Any) -> Any:
    """What differs by little: most of what is drawn is refused for its type alone."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case list():
            return value[::-1]
        case dict():
            return dict(zip(value, [*value.values()][::-1], strict=True))
        case str():
            return {"float16": "float32", "float32": "float16", "train": "held-out"}.get(value, value[::-1])
    return value


def alike(node: Any, kind: type) -> list[Any]:
    """Every value of this type in a tree of JSON."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return [node] * (type(node) is kind) + [value for one in inner for value in alike(one, kind)]


def edit(node: Any, where: list[float], what: str, value: Any, key: str, share: float, whole: Any = None) -> None:
    """Change a tree of JSON in place; ``share`` says which of the values of its type in the ``whole`` is put there."""
    whole = node if whole is None else whole
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    if what == "add" and len(where) == 1:
        if isinstance(node, dict):
            node[key] = value
        else:
            node.append(value)
        return
    if not keys:
        return
    chosen = keys[int(where[0] * len(keys))]
    if len(where) > 1 and isinstance(node[chosen], dict | list):
        edit(node[chosen], where[1:], what, value, key, share, whole)
    elif what == "drop":
        del node[chosen]
    elif what == "again" and isinstance(node, list):
        node.append(node[chosen])
    elif what == "near":
        node[chosen] = near(node[chosen])
    elif what == "other":
        found = alike(whole, type(node[chosen]))
        node[chosen] = copy.deepcopy(found[int(share * len(found))])
    else:
        node[chosen] = value


def of(row: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return row.shape, row.tobytes()


@pytest.mark.law("Any manifest, its digests right, is refused or tells the truth")
@pytest.mark.parametrize(
    "examples", [pytest.param(30, id="short"), pytest.param(3000, id="long", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("which", ["root", "shard", "int8"])
def test_any_manifest_is_refused_or_tells_the_truth(tmp_path, which, examples) -> None:
    """Edited anywhere, with all digests right again: a typed refusal, or a store whose rows are those written."""
    dtype = "int8" if which == "int8" else "float16"
    good = written(tmp_path / "good", IDS, dtype, a=1)
    truth = {i: of(kept(i, dtype)) for i in IDS}

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(changes=st.lists(edits(), min_size=1, max_size=3))
    def check(changes) -> None:
        path = tmp_path / "bad"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(good, path)

        def apply(fields: Any) -> None:
            for change in changes:
                edit(fields, *change)

        try:
            if which == "root":
                forge(path, apply)
            else:
                forge_shard(path, apply)
        except (TypeError, KeyError, msgspec.EncodeError, UnicodeError, OverflowError):
            return  # no JSON of 64 bits, or no manifest left to forge
        try:
            with FeatureStore(path) as store:
                faults = store.verify()
                rows = {i: of(s.tokens([k])[0]) for s in store.shards for k, i in enumerate(s.sample_ids)}
        except TaftcacheError:
            return
        assert faults or all(truth.get(i) == data for i, data in rows.items())

    check()
