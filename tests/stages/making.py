"""Tiny recipes, their stores, and images on disk."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.consent import recorded_recipe
from taftcache.model.component import read_base, read_component
from taftcache.model.meta import CertificateRecord
from taftcache.names import WEIGHTED
from taftcache.recipe import Recipe, parse_recipe
from tests.cache.making import tree

__all__ = [
    "DIGITS", "PRIVACY", "certificate", "commits", "deltas", "digits", "open_store", "recipe", "settings", "toml",
    "tree", "write_images", "write_inside",
]  # fmt: skip

C = TypeVar("C", bound=CertificateRecord)
SETTINGS: dict[str, Any] = {
    "name": "tiny",
    "device": "cpu",
    "data": {"source": "digits", "limit": 60},
    "backbone": {"weights": "bundled"},
    "store": {"shards": 2, "chunk_rows": 8},
    "extract": {"workers": 1},
    "objective": {"ridge": 1e-3, "alpha": 1.0},
    "compose": {"mode": "mean"},  # most tests are about shards; the default has tests of its own
}
DIGITS = 60
PRIVACY = {"epsilon": 8.0, "steps": 3, "relation": "replace-one"}


def values(path: Path | str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A recipe's values with ``sections`` merged in; ``data`` replaces the default's."""
    merged = {k: dict(v) if isinstance(v, dict) else v for k, v in SETTINGS.items()}
    for name, section in sections.items():
        merged[name] = section if name == "data" else {**merged.get(name, {}), **section}
    merged["store"]["path"] = str(path)
    return merged


def recipe(path: Path | str, **sections: dict[str, Any]) -> Recipe:
    return parse_recipe(values(path, **sections))


def settings(store: FeatureStore, train: str = "head", **privacy: Any) -> Recipe:
    """The store's recipe with a small private training of what ``train`` names."""
    values = store.manifest.recipe | {"privacy": {**PRIVACY, **privacy}}
    return parse_recipe(values | {"tangent": {**values["tangent"], "train": train}})


def certificate(kind: type[C], **said: Any) -> C:
    """One of a class of records; figures that are not said, and have to be there, are 1."""
    return kind(**{f.name: 1 for f in msgspec.structs.fields(kind) if f.required} | said)


def deltas(path: Path) -> dict[str, torch.Tensor]:
    """Δw of every component and model."""
    with FeatureStore(path) as store:
        base = read_base(store, recorded_recipe(store).tangent)
        names = [n for n in store.objects() if n.startswith(("components/", "models/"))]
        return {n: read_component(store, n, base).delta for n in names}


def toml(file: Path, path: Path | str, **sections: dict[str, Any]) -> Path:
    """The same recipe as a file."""
    lines = []
    for name, section in values(path, **sections).items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]
        else:
            lines.insert(0, f"{name} = {_toml(section)}")
    file.write_text("\n".join(lines) + "\n")
    return file


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(part)}' for key, part in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits as uint8 [n,8,8], and their labels."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return np.round(loaded.images * (255 / 16)).astype(np.uint8), loaded.target


def write_images(root: Path, per_class: int = 14, classes: int = 3) -> Path:
    """One folder per digit with ``per_class`` PNG files: root/<digit>/<nnnn>.png."""
    images, labels = digits()
    for digit in range(classes):
        folder = root / str(digit)
        folder.mkdir(parents=True)
        for k in np.flatnonzero(labels == digit)[:per_class]:
            Image.fromarray(images[k]).convert("RGB").save(folder / f"{k:04d}.png")
    return root


def write_inside(file: Path, images: Path, *, paths: bool = False, order: Any = None, **columns: Any) -> Path:
    """A Parquet file with the images of a folder of classes in it, in the order of their names or in ``order``, with
    their paths beside them or without; ``columns`` has a value for each of them, before they are put in order."""
    files = sorted(images.glob("*/*.png"), key=lambda found: found.name)
    cells = [{"bytes": f.read_bytes(), "path": f.name if paths else None} for f in files]
    table = pa.table({"image": cells, "label": [f.parent.name for f in files], **{k: [*v] for k, v in columns.items()}})
    parquet.write_table(table if order is None else table.take([*order]), file)
    return file


def commits(path: Path) -> dict[str, Any]:
    """What a store holds but for the ledger, the tombstones and the digests that cover them."""
    with FeatureStore(path) as store:
        fields = {
            name: getattr(store.manifest, name)
            for name in ("identity", "classes", "plan", "recipe", "shards", "objects", "skipped")
        }
    return fields | {"files": tree(path, but=("manifest.json", "ledger/", "tombstones.key", "lists/tombstones"))}


def open_store(path: Path) -> FeatureStore:
    return FeatureStore(path, mode="a")


def said_of_the_sum(path: Path, component: str) -> list[tuple[str, str]]:
    """The note on ``models/weighted`` of a request to forget this component, and the verb that it takes: first of a dry
    run, then of the request itself. The command that the second names next is run, and succeeds."""
    said = []
    for dry_run in (True, False):
        report = taftcache.forget(path, components=[component], dry_run=dry_run)
        (note,) = [note for note in report.notes if WEIGHTED in note]
        said.append((note, "would be" if dry_run else "is"))
    with pytest.raises(SystemExit) as ended:
        main(note.partition("next: taftcache ")[2].split())
    assert not ended.value.code
    return said
