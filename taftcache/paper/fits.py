"""What a comparison has trained so far: in memory, or in a folder where the same comparison finds it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3
from torch import Tensor

from taftcache.errors import FormatError
from taftcache.teaching.students.checkpoint import read_tensors, write_tensors

Found = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and plain figures."""


class Fits:
    """Tensors and figures, by the JSON of all that decides them.

    ``found`` counts what was asked for and lay in the folder already, without what this run put there.

    Args:
        folder: made when the first is put there; without one, they stay in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[str, Found | None] = {}
        self.found = 0

    def get(self, key: Mapping[str, Any]) -> Found | None:
        """Tensors and figures; None if there are none.

        Raises:
            FormatError: a file that is damaged, or holds something else.
        """
        name = _name(key)
        if self._held.get(name) is not None:
            return self._held[name]
        file = self._file(name)
        if file is None or not file.is_file():
            return None
        tensors, meta = read_tensors(file)
        if meta.get("key") != json.loads(_text(key)):
            raise FormatError(f"{file} was trained with other settings than its name says", do="delete it")
        if name not in self._held:
            self._held[name] = None
            self.found += 1
        return tensors, meta["figures"]

    def put(
        self,
        key: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        figures: dict[str, Any],
        shards: Sequence[str] = (),
    ) -> None:
        """Keep a fit, with the digests of the ``shards`` that it was made from, by which an audit recognises it.

        Raises:
            StoreWriteError: the disk is full or failed.
        """
        name = _name(key)
        file = self._file(name)
        self._held[name] = (dict(tensors), figures) if file is None else None
        if file is not None:
            write_tensors(file, tensors, {"key": json.loads(_text(key)), "figures": figures, "shards": [*shards]})

    def _file(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name}.safetensors"


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _name(key: Mapping[str, Any]) -> str:
    return blake3(_text(key).encode()).hexdigest(length=16)
