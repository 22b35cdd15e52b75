"""Reading the format's JSON files: the version first, then the canonical text of the fields that it has."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import msgspec

from taftcache.cache.format.digest import canonical
from taftcache.cache.format.fault import Fault
from taftcache.cache.place.failure import AVOID
from taftcache.errors import FormatError

T = TypeVar("T")

Hex = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
"""A digest's text; its length is checked while a manifest is decoded, so that no text of millions is ever kept."""


class _Head(msgspec.Struct):
    format: msgspec.Raw = msgspec.Raw(b"")
    version: msgspec.Raw = msgspec.Raw(b"")


def check_version(raw: bytes, form: str, versions: Collection[int], damage: Fault) -> int:
    """The version of a JSON file, one of ``versions``; any other, or another ``format``, is refused. The rest of the
    file is skipped over."""
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except msgspec.ValidationError:
        head = _Head()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise damage.error() from None
    if memoryview(head.format) != canonical(form):
        raise FormatError(
            f"{damage.file} does not have the format {form!r}",
            got=bytes(memoryview(head.format)[:80]).decode("utf-8", "replace") or "something else",
            do="name a store's folder",
        )
    for version in versions:
        if memoryview(head.version) == canonical(version):
            return version
    found = bytes(memoryview(head.version)[:40]).decode("utf-8", "replace")
    read = " and ".join(map(str, versions))
    raise FormatError(
        f"{damage.file} is of version {found} of the format {form!r}, and only version {read} is read",
        do="use the version of taftcache that wrote the store, or a newer one",
    )


def decoded(raw: bytes, kind: type[T], file: str) -> T:
    """The JSON of ``file`` as ``kind``; FormatError if it is not that."""
    with _of_its_version(file):
        return msgspec.json.decode(raw, type=kind)


def decode_strict(raw: bytes, kind: type[T], file: str) -> T:
    """Decode into ``kind``: no unknown or missing field, and the text must be the canonical one."""
    with _of_its_version(file):
        value = msgspec.json.decode(raw, type=kind)
        same = canonical(value) == raw
    if not same:
        raise FormatError(f"{file} is not canonical JSON", do="do not edit a store's files by hand")
    return value


@contextmanager
def _of_its_version(file: str) -> Iterator[None]:
    """FormatError for JSON that does not decode, or nests deeper than it is decoded or written."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{file} does not have the fields of its version", got=str(error), do=AVOID) from None
