"""Files that are whole or absent: written beside their place, then renamed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from taftcache.cache.place.durable import make_durable
from taftcache.cache.place.failure import cannot


def write_bytes(file: Path, data: bytes) -> None:
    """Write atomically: after a crash the file is the old one or the new one; missing folders are made.

    Raises:
        StoreWriteError: the disk is full or failed, or the folder cannot be written to.
    """
    partial = file.with_name(f"{file.name}.partial")  # what a killed run left is overwritten by the next
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as out:
            out.write(data)
            out.flush()
            make_durable(out.fileno())
        os.replace(partial, file)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise cannot("write", file, error) from error


def write_json(file: Path, report: object) -> None:
    """A record or plain values as indented JSON, atomically; paths as text. See ``write_bytes`` for the errors."""
    plain = msgspec.to_builtins(report, enc_hook=str)
    write_bytes(file, json.dumps(plain, indent=1, ensure_ascii=False).encode())
