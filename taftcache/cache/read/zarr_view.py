"""A shard as a read-only Zarr store whose every read is verified."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from taftcache.cache.format.fault import Fault

_NODES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class VerifiedStore(Store):
    """Zarr's view of a shard's files: what the shard manifest names, with the digest it names, and nothing else.

    Plain Zarr takes a missing chunk for one that was never written and gives its fill value. Here a chunk is a
    verified file or an IntegrityError.
    """

    def __init__(self, shard: str, objects: Mapping[str, object], read: Callable[[str], bytes]) -> None:
        super().__init__(read_only=True)
        self._shard, self._objects, self._read = shard, objects, read

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifiedStore) and other._objects is self._objects

    def __repr__(self) -> str:
        return f"VerifiedStore({self._shard!r})"

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if key not in self._objects:
            if key.rpartition("/")[2] in _NODES:
                return None  # Zarr looks for nodes that need not exist
            raise Fault(shard=self._shard, file=key, problem="the shard manifest does not name it").error()
        return prototype.buffer.from_bytes(self._read(key)[_slice(byte_range)])

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return key in self._objects

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
        for key in self._objects:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._objects:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        heads = (k.removeprefix(prefix).split("/")[0] for k in self._objects if k.startswith(prefix))
        for head in dict.fromkeys(heads):
            yield head


def open_group(shard: str, objects: Mapping[str, object], read: Callable[[str], bytes]) -> zarr.Group:
    """A shard's Zarr group over its files ``objects``; ``read`` gives the verified bytes of one."""
    return zarr.open_group(VerifiedStore(shard, objects, read), mode="r", zarr_format=3, use_consolidated=False)


def _slice(wanted: Any) -> slice:
    if isinstance(wanted, RangeByteRequest):
        return slice(wanted.start, wanted.end)
    if isinstance(wanted, OffsetByteRequest):
        return slice(wanted.offset, None)
    if isinstance(wanted, SuffixByteRequest):
        return slice(-wanted.suffix, None) if wanted.suffix else slice(0, 0)
    return slice(None)
