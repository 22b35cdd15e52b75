"""A store as someone makes it who may write to all of its folder: other contents, and every digest right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.format.manifest import PREVIOUS, ObjectRef
from taftcache.cache.format.naming import object_path
from taftcache.cache.store import FeatureStore
from taftcache.model.component import Component


def forge(path: Path, **fields: Any) -> None:
    """Other fields of the root manifest."""
    with FeatureStore(path, stale=True) as store:
        before = store.manifest
        made = before.replace(**fields)
        lists = {place: part.data() for place, part in made.parts().items()}
    for place in before.parts().keys() - lists.keys():
        (path / place).unlink()
    for place, data in lists.items():
        (path / place).parent.mkdir(exist_ok=True)
        (path / place).write_bytes(data)
    (path / PREVIOUS).unlink(missing_ok=True)
    (path / "manifest.json").write_bytes(made.encode())


def forge_ledger(path: Path, change: Callable[[list[dict[str, Any]]], Sequence[dict[str, Any]]], **fields: Any) -> None:
    """Another ledger, chained anew."""
    with FeatureStore(path, stale=True) as store:
        entries = change([{k: v for k, v in e.items() if k not in ledger.RESERVED} for e in store.ledger()])
    shutil.rmtree(path / "ledger", ignore_errors=True)
    end = None
    for entry in entries:
        raw, end = ledger.encode_entry(entry, end)
        file = path / ledger.entry_path(end.entries, end.head)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(raw)
    forge(path, ledger=end, **fields)


def forge_meta(
    path: Path,
    name: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    file: bool = True,
    manifest: bool = True,
) -> None:
    """What a component says of itself: in its file, in the manifest, or in both."""
    with FeatureStore(path, stale=True) as store:
        ref, data, whole = store.objects()[name], store.read_object(name), store.meta(name)
        objects = dict(store.manifest.objects)
    if file:
        component = Component.decode(data)
        data = replace(component, meta=change(component.meta)).encode()
    meta = change(whole) if manifest else whole
    made = ObjectRef.of(object_path(name, digest(data), ".safetensors"), digest(data), len(data), meta)
    (path / ref.path).unlink()
    (path / made.path).write_bytes(data)
    forge(path, objects={**objects, name: made})
