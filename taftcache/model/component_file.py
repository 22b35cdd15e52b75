"""What a component's file says beside its numbers; no torch here, because looking into a file must start fast."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from taftcache.cache.format.digest import digest
from taftcache.errors import FormatError

# safetensors keeps metadata in a hash map whose order varies between runs: with one key the bytes are always the same.
KEY = "taftcache"
FLOATS = ("F64", "F32", "F16", "BF16")


class ComponentHeader(msgspec.Struct, frozen=True):
    """What the file says besides its tensors."""

    base_digest: str
    meta: dict[str, Any]


def read_header(file: Path) -> tuple[ComponentHeader, dict[str, list[int]]]:
    """What a component's file says, and the shapes of its tensors by name; its numbers are not read.

    Raises:
        FormatError: not a component.
    """
    try:
        with safe_open(file, "np") as opened:
            slices = {name: opened.get_slice(name) for name in sorted(opened.keys())}
            check_dtypes({name: part.get_dtype() for name, part in slices.items()})
            return header_of(opened.metadata()[KEY]), {name: list(part.get_shape()) for name, part in slices.items()}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise no_component(error) from None


def read_meta(file: Path) -> dict[str, Any]:
    """The ``meta`` of the component in ``file``; FormatError if it is none."""
    return read_header(file)[0].meta


def numbers_digest(data: bytes) -> str:
    """A digest of the numbers in a component's file, whatever the file says of them."""
    return digest(data[8 + int.from_bytes(data[:8], "little") :])


def no_component(error: Exception) -> FormatError:
    """The error for what cannot be read as a component, because of ``error``."""
    return FormatError(
        "not a component: no safetensors file that taftcache wrote",
        got="a file that does not say what it is" if isinstance(error, KeyError | TypeError) else str(error),
        do="name a file that taftcache export-component wrote",
    )


def check_dtypes(dtypes: Mapping[str, str]) -> None:
    """FormatError for tensors, by name, that are not of floating-point numbers."""
    if other := [f"{name}: {dtype}" for name, dtype in dtypes.items() if dtype not in FLOATS]:
        raise FormatError(
            "not a component: its numbers are not floating-point numbers",
            got=", ".join(other[:4]),
            do="name a file that taftcache export-component wrote",
        )


def header_of(text: str) -> ComponentHeader:
    """What a file says. The FormatError for NaN or an infinity names it; the decoder would only give a byte's place."""
    try:
        return msgspec.json.decode(text, type=ComponentHeader)
    except msgspec.DecodeError:
        json.loads(text, parse_constant=_no_number)
        raise


def _no_number(name: str) -> None:
    raise FormatError(
        f"not a component: its metadata holds {name}, which is no number in JSON",
        do="name a file that taftcache export-component wrote",
    )
