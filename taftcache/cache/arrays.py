"""A store's rows for other tools, read when they are asked for: Dask arrays, an xarray dataset, a dataset for torch."""

from __future__ import annotations

import json
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format.fault import changed
from taftcache.cache.place.address import open_home
from taftcache.cache.read.contents import Contents, read_manifest
from taftcache.cache.read.shard import Shard
from taftcache.errors import RecipeError
from taftcache.names import counted


@dataclass(frozen=True)
class ShardAt:
    """A shard's address, for other processes: it opens exactly the rows that it was made from, or none."""

    store: str
    name: str
    digest: str
    rows: int

    def open(self) -> Shard:
        """The shard; StoreChanged if it is gone or has other rows by now, perhaps because some were forgotten."""
        root, staging = open_home(self.store)
        if staging is not root:
            staging.close()
        manifest = read_manifest(root)
        for ref in manifest.shards:
            if (ref.name, ref.digest) == (self.name, self.digest):
                return Contents(root, manifest).open(ref)
        raise changed(root)


class DaskRows(NamedTuple):
    """tokens [n,t,d] and labels [n] as Dask arrays, a block for each chunk of a shard; ids [n]."""

    tokens: Any
    labels: Any
    ids: NDArray[np.str_]

    def __repr__(self) -> str:
        return f"DaskRows(tokens={self.tokens!r}, labels={self.labels!r}, ids=[{len(self.ids)}])"


@dataclass(frozen=True)
class ShardRows:
    """Rows of shards, one after another, of a store with the root digest ``root``."""

    shards: Sequence[Shard]
    store: str
    classes: list[str]
    root: str

    @property
    def parts(self) -> list[ShardAt]:
        """The shards by their addresses."""
        return [ShardAt(self.store, shard.name, shard.digest, shard.rows) for shard in self.shards]

    def to_dask(self) -> DaskRows:
        """See ``FeatureStore.to_dask``."""
        try:
            import dask.array as da
        except ImportError as error:
            raise RecipeError(
                "a Dask array needs Dask, which is not installed", got=str(error), do="pip install 'taftcache[dask]'"
            ) from None
        array: Any = da
        shape = self.shards[0].tokens_shape
        dtype = np.dtype(np.float32)  # Dask adds up in the dtype of its blocks, and float16 ends at 65,504
        sizes = tuple(min(s.chunk_rows, s.rows - k) for s in self.shards for k in range(0, s.rows, s.chunk_rows))
        tokens = array.map_blocks(
            _read,
            self.parts,
            dtype=dtype,
            chunks=(sizes, *((n,) for n in shape)),
            meta=np.empty((0, 0, 0), dtype),
            name=f"taftcache-{self.root[:16]}-{'-'.join(shard.name for shard in self.shards)}",
        )
        labels = array.from_array(np.concatenate([shard.labels for shard in self.shards]), chunks=(sizes,))
        return DaskRows(tokens, labels, np.array([i for shard in self.shards for i in shard.sample_ids]))

    def to_xarray(self) -> Any:
        """See ``FeatureStore.to_xarray``."""
        try:
            import xarray
        except ImportError as error:
            raise RecipeError(
                "an xarray dataset needs xarray, which is not installed",
                got=str(error),
                do="pip install 'taftcache[xarray]'",
            ) from None
        rows = self.to_dask()
        shards = np.repeat([shard.name for shard in self.shards], [shard.rows for shard in self.shards])
        labels = np.concatenate([shard.labels for shard in self.shards])
        return xarray.Dataset(
            {"tokens": (("sample", "token", "feature"), rows.tokens)},
            coords={"sample": rows.ids, "label": ("sample", labels), "shard": ("sample", shards)},
            attrs={"root_digest": self.root, "classes": json.dumps(self.classes)},
        )


def _read(parts: Sequence[ShardAt], block_info: Any = None) -> NDArray[Any]:
    """One block of ``ShardRows.to_dask``: its shard is opened for it and let go, so that no process keeps rows."""
    start, stop = block_info[None]["array-location"][0]
    ends = list(accumulate(part.rows for part in parts))
    k = bisect_right(ends, start)
    first = start - (ends[k] - parts[k].rows)
    return np.array(parts[k].open().tokens(slice(first, first + stop - start)), np.float32)


Row = tuple[NDArray[np.float32], int, str]
"""Tokens float32 [t,d] of a sample, the number of its class, its id."""


@dataclass(frozen=True)
class RowDataset:
    """Rows as (tokens float32 [t,d], label, id), for ``torch.utils.data.DataLoader`` and anything else that indexes.

    It has all that a loader calls, but is no subclass of torch's ``Dataset``, because reading a store loads no torch; a
    type checker asks for one: ``cast("Dataset[Any]", store.dataset())``. It travels to other processes as an address;
    each opens the shards for itself, and verifies what it reads.
    """

    parts: Sequence[ShardAt]
    classes: list[str]
    _open: dict[int, Shard] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        held = ((len(self), "row"), (len(self.parts), "shard"), (len(self.classes), "class"))
        return f"RowDataset({', '.join(counted(count, thing) for count, thing in held)})"

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Row | list[Row]:
        """One row, or a list of rows for a slice."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self.__getitems__([index])[0]

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))

    def __getitems__(self, indexes: Sequence[SupportsIndex]) -> list[Row]:
        """Several rows at once, as torch's loaders ask for a batch."""
        ends, found = list(accumulate(part.rows for part in self.parts)), list[Row]()
        for index in map(operator.index, indexes):
            place = index + len(self) if index < 0 else index
            if not 0 <= place < len(self):
                raise IndexError(f"there is no row {index} among {len(self)}")
            k = bisect_right(ends, place)
            shard, row = self._shard(k), place - (ends[k] - self.parts[k].rows)
            tokens = np.array(shard.tokens(slice(row, row + 1))[0], np.float32)
            found.append((tokens, int(shard.labels[row]), shard.sample_ids[row]))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "classes": self.classes, "_open": {}}

    def _shard(self, k: int) -> Shard:
        if k not in self._open:
            self._open[k] = self.parts[k].open()
        return self._open[k]
