"""Manifests that someone else edited, with all digests right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from taftcache.cache.format.digest import canonical, digest

CLONE = Path(__file__).parents[2]


def forge(path, change) -> None:
    """Edit the root manifest and give it its right digest again."""
    fields = msgspec.json.decode((path / "manifest.json").read_bytes())
    change(fields)
    fields.pop("digest", None)
    fields["digest"] = digest(canonical(fields))
    (path / "manifest.json").write_bytes(canonical(fields))


def forge_shard(path, change, files: dict[str, bytes] | None = None) -> None:
    """Edit the shard manifest (and files of the shard), with all digests right."""

    def root(fields: dict[str, Any]) -> None:
        ref = fields["shards"][0]
        inner = msgspec.json.decode((path / f"{ref['path']}.json").read_bytes())
        for name, data in (files or {}).items():
            (path / ref["path"] / name).write_bytes(data)
            inner["objects"][name] = {"digest": digest(data), "size": len(data)}
        change(inner)
        raw = canonical(inner)
        old, ref["digest"] = ref["path"], digest(raw)
        ref["path"] = f"shards/000-{digest(raw)[:16]}"
        (path / old).rename(path / ref["path"])
        (path / f"{ref['path']}.json").write_bytes(raw)

    forge(path, root)
