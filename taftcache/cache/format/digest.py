"""BLAKE3 digests, and the one JSON text that each value has."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
from blake3 import blake3

from taftcache.errors import ArgumentError, RecipeError

SHORT = 16
"""Hex digits of a digest that go into a file's name; the manifests carry all 64."""
_ROOT = re.compile(f"[0-9a-f]{{{SHORT},64}}")


def check_root(noted: object) -> None:
    """ArgumentError unless it is None, or a root digest that somebody noted: all of it, or its first digits."""
    if noted is not None and not (isinstance(noted, str) and _ROOT.fullmatch(noted)):
        raise ArgumentError(
            f"{noted!r} is no root digest",
            got=repr(noted),
            do=f"the {SHORT} to 64 digits that you noted, of 0-9 and a-f, as taftcache inspect shows them",
        )


def digest(data: Any) -> str:
    """BLAKE3 of a contiguous buffer, 64 hex digits."""
    return blake3(memoryview(data).cast("B")).hexdigest()


def digest_without(data: bytes, start: int, stop: int) -> str:
    """`digest` of ``data`` less its bytes ``start .. stop``, without a copy."""
    whole = memoryview(data)
    return blake3(whole[:start]).update(whole[stop:]).hexdigest()


def canonical(value: Any) -> bytes:
    """The canonical JSON of ``value``: keys sorted, no spaces, UTF-8, shortest floats."""
    return msgspec.json.encode(value, order="sorted")


MAX_DEPTH = 100
"""The most levels of nested lists and mappings; from any call stack, a JSON decoder is sure to go a little deeper."""


def too_deep(text: bytes) -> bool:
    """Whether lists and mappings nest more than `MAX_DEPTH` deep in the JSON ``text``, because code that walks such
    values calls itself once for each level. Strips the innermost level again and again, without recursion."""
    left = text.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, delete=_NO_MARKS)
    left = _STRING.sub(b"", left.replace(b'""', b""))  # most texts hold no marks, and are gone at once
    for _ in range(MAX_DEPTH):
        if not left:
            return False
        left = left.replace(b"[]", b"\0").replace(b"{}", b"\0").replace(b"\0", b"")
    return bool(left)


_NO_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_STRING = re.compile(rb'"[^"]*"')


def plain(value: Any, what: str, _depth: int = 0) -> Any:
    """A copy of ``value`` in JSON's own types; RecipeError if it has others, numbers that JSON cannot carry, or lists
    and mappings more than `MAX_DEPTH` deep."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not value.isascii():
            _encodable(value, what)
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise RecipeError(
                "an integer of a manifest has more than 64 bits", got=f"{what}: {value}", do="use a string"
            )
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecipeError("a number of a manifest is not finite", got=f"{what}: {value}", do="use null or a string")
        return float(value)
    if isinstance(value, list | tuple | dict) and _depth == MAX_DEPTH:
        raise RecipeError(
            f"lists and mappings are more than {MAX_DEPTH} deep", got=f"{what:.200}", do="flatten what is to be stored"
        )
    if isinstance(value, list | tuple):
        return [plain(v, f"{what}[{i}]", _depth + 1) for i, v in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise RecipeError("a key of a manifest is not a string", got=f"{what}: {key!r}", do="use a string")
            _encodable(key, what)
        return {k: plain(v, f"{what}.{k}", _depth + 1) for k, v in value.items()}
    raise RecipeError(
        "a manifest cannot hold a value of this type",
        got=f"{what}: {type(value).__name__}",
        do="convert it to strings, numbers, booleans, null, lists and mappings",
    )


def _encodable(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            "a text of a manifest is not valid Unicode", got=f"{what}: {text!r}", do="rename it"
        ) from None
