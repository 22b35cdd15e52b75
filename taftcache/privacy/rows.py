"""Rows as private training reads them: in blocks of one size, so that a row's numbers depend on the row alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taftcache.tangent.rows import ArrayBlock, RowSource, RowSubset


class FilledBlock(NamedTuple):
    """Rows of which the first ``live`` are real and the rest zeros."""

    tokens: NDArray[Any]
    labels: NDArray[Any]
    live: int


class FilledRows:
    """The rows of ``sources`` one after another, or only those ``chosen``, in blocks of one size.

    How kernels round depends on the size of a product. With one size, a row that comes or goes does not change what the
    others contribute. The last block is filled up with zeros, which contribute nothing.
    """

    def __init__(self, sources: Sequence[RowSource], chosen: NDArray[np.bool_] | None = None) -> None:
        whole = sum(source.rows for source in sources)
        self._source = RowSubset(sources, np.arange(whole) if chosen is None else np.flatnonzero(chosen))

    @property
    def rows(self) -> int:
        """Number of rows, without the zeros at the end."""
        return self._source.rows

    def blocks(self, size: int, start: int = 0) -> Iterator[FilledBlock]:
        """Blocks of exactly ``size`` rows from row ``start``."""
        for block in self._source.blocks(size, start):
            yield _filled(block, size)


def _filled(block: ArrayBlock, size: int) -> FilledBlock:
    live = len(block.labels)
    if live == size:
        return FilledBlock(block.tokens, block.labels, live)
    tokens = np.zeros((size, *block.tokens.shape[1:]), block.tokens.dtype)
    labels = np.zeros(size, np.int64)
    tokens[:live], labels[:live] = block.tokens, block.labels
    return FilledBlock(tokens, labels, live)
