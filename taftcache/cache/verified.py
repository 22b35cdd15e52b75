"""A shard as a read-only Zarr store whose every read is verified."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from taftcache.cache import layout
from taftcache.cache.fault import Fault
from taftcache.errors import FormatError

if TYPE_CHECKING:
    from taftcache.cache.shard import Shard

_NODES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class VerifiedStore(Store):
    """Zarr's view of a shard's files: what the shard manifest names, with the digest it names, and nothing else.

    Plain Zarr takes a missing chunk for one that was never written and gives its fill value. Here a chunk is a
    verified file or an IntegrityError.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__(read_only=True)
        self._shard = shard

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifiedStore) and other._shard is self._shard

    def __repr__(self) -> str:
        return f"VerifiedStore({self._shard!r})"

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if key not in self._shard.manifest.objects:
            if key.rpartition("/")[2] in _NODES:
                return None  # a node that does not exist is no data
            raise Fault(self._shard.name, None, None, key, "the shard manifest does not name it").error()
        raw = self._shard.read(key)
        if key == "sample_id/c.0" and not layout.ids_are_bounded(raw, self._shard.rows):
            raise FormatError(
                "A shard has one sample id for each row.", got=repr(self._shard), do="Do not use this store."
            )
        return prototype.buffer.from_bytes(raw[_slice(byte_range)])

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return key in self._shard.manifest.objects

    @property
    def supports_writes(self) -> bool:
        return False

    @property
    def supports_deletes(self) -> bool:
        return False

    @property
    def supports_listing(self) -> bool:
        return True

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def delete(self, key: str) -> None:
        self._check_writable()

    async def list(self) -> AsyncIterator[str]:
        for key in self._shard.manifest.objects:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._shard.manifest.objects:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        heads = (k.removeprefix(prefix).split("/")[0] for k in self._shard.manifest.objects if k.startswith(prefix))
        for head in dict.fromkeys(heads):
            yield head


def open_group(shard: Shard) -> zarr.Group:
    """The shard's Zarr group over a `VerifiedStore`."""
    return zarr.open_group(VerifiedStore(shard), mode="r", zarr_format=3, use_consolidated=False)


def _slice(wanted: Any) -> slice:
    if isinstance(wanted, RangeByteRequest):
        return slice(wanted.start, wanted.end)
    if isinstance(wanted, OffsetByteRequest):
        return slice(wanted.offset, None)
    if isinstance(wanted, SuffixByteRequest):
        return slice(-wanted.suffix, None) if wanted.suffix else slice(0, 0)
    return slice(None)
