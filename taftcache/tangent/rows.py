"""Where tangent and cache meet: ordered blocks of rows, as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taftcache.errors import DataError, SolveError


class Block(Protocol):
    """Consecutive rows of one source."""

    @property
    def tokens(self) -> NDArray[Any]:
        """Raw input [b,t,d] of the linearised block."""
        ...

    @property
    def labels(self) -> NDArray[Any]:
        """Class of each row [b], below K; or floating, the values [b] or [b,K] of a regression."""
        ...


class RowSource(Protocol):
    """Anything whose rows can be read again and again in one fixed order: a shard, arrays in memory."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    def blocks(self, size: int, start: int = 0) -> Iterator[Block]:
        """Blocks of ``size`` rows from row ``start`` (the last may be shorter), the same at every call."""
        ...


def blocks_of(source: RowSource, size: int, start: int = 0) -> Iterator[Block]:
    """``source.blocks``; SolveError if they are not what ``RowSource`` promises, because sums over them would be wrong.

    The last block may be filled up to ``size``, as in private training.
    """
    at = start
    for block in source.blocks(size, start):
        found, left = len(block.labels), source.rows - at
        if left <= 0 or found not in (size, left):
            raise _broken_promise(f"{found} rows from row {at} on, where {max(0, min(size, left))} are due")
        if len(block.tokens) != found:
            raise _broken_promise(f"tokens of {len(block.tokens)} rows from row {at} on, and labels of {found}")
        at += found
        yield block
    if at < source.rows:
        raise _broken_promise(f"no rows from row {at} on, of {source.rows}")


def _broken_promise(got: str) -> SolveError:
    return SolveError(
        "a source does not give its rows in the blocks that were asked for",
        got=got,
        do="give blocks of that size from that row on, the same at every call; ArrayRows does, of arrays",
    )


class ArrayBlock(NamedTuple):
    """Rows in memory."""

    tokens: NDArray[Any]
    labels: NDArray[Any]


class ArrayRows:
    """Rows held in memory: tokens [n,t,d] and labels [n], or the values [n] or [n,K] of a regression in floating point.

    Raises:
        DataError: arrays with other axes, or without one label for each row.
    """

    def __init__(self, tokens: ArrayLike, labels: ArrayLike) -> None:
        self.tokens, self.labels = np.asarray(tokens), np.asarray(labels)
        if self.tokens.ndim != 3 or self.labels.ndim not in (1, 2) or len(self.tokens) != len(self.labels):
            raise DataError(
                "tokens [n, t, d] and their labels do not go together",
                got=f"tokens {list(self.tokens.shape)}, labels {list(self.labels.shape)}",
                do="of features [n, d], features[:, None]",
            )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def blocks(self, size: int, start: int = 0) -> Iterator[ArrayBlock]:
        """Blocks of ``size`` rows, views of the arrays."""
        for k in range(start, self.rows, size):
            yield ArrayBlock(self.tokens[k : k + size], self.labels[k : k + size])


class RowSubset:
    """Some rows of ``sources`` as one source; blocks are full however far apart their rows lie.

    Args:
        sources: read in order, as one long source.
        index: places of the rows in it [n], increasing.
        labels: of these rows [n], in place of the sources' own.

    Raises:
        ValueError: places that do not increase or lie outside the sources, or not one label for each.
    """

    def __init__(self, sources: Sequence[RowSource], index: ArrayLike, labels: NDArray[Any] | None = None) -> None:
        self._sources, self.index, self._labels = list(sources), np.asarray(index, np.int64), labels
        whole = sum(source.rows for source in self._sources)
        if self.index.size and (self.index[0] < 0 or self.index[-1] >= whole or (np.diff(self.index) <= 0).any()):
            raise ValueError(f"rows are not increasing places below {whole}")
        if labels is not None and len(labels) != len(self.index):
            raise ValueError(f"there is not a label for each row: {len(labels)} for {len(self.index)}")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.index)

    def blocks(self, size: int, start: int = 0) -> Iterator[ArrayBlock]:
        """Blocks of ``size`` rows: views if one block of a source holds all of them, otherwise copies."""
        tokens: list[NDArray[Any]] = []
        labels: list[NDArray[Any]] = []
        held = 0
        for x, y in self._picked(size, start):
            while len(y):
                take = min(size - held, len(y))
                tokens.append(x[:take])
                labels.append(y[:take])
                held, x, y = held + take, x[take:], y[take:]
                if held == size:
                    yield _joined(tokens, labels)
                    tokens, labels, held = [], [], 0
        if held:
            yield _joined(tokens, labels)

    def _picked(self, size: int, start: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """The rows from the ``start``-th on; those within one ``size`` block of a source come together."""
        at, next_row = 0, start  # the place of the source's first row, and the next of ``index`` that is due
        for source in self._sources:
            end = at + source.rows
            if next_row < self.rows and self.index[next_row] < end:
                first = (self.index[next_row] - at) // size * size
                for k, block in enumerate(source.blocks(size, int(first))):
                    begin, count = at + first + k * size, len(block.labels)
                    due = int(np.searchsorted(self.index, begin + count))
                    here, rows = self.index[next_row:due] - begin, slice(next_row, due)
                    next_row = max(next_row, due)
                    if len(here):
                        at_once = len(here) == count
                        x, y = np.asarray(block.tokens), np.asarray(block.labels)
                        y = (y if at_once else y[here]) if self._labels is None else self._labels[rows]
                        yield (x if at_once else x[here]), y
                    if next_row >= self.rows:
                        return
            at = end


def _joined(tokens: Sequence[NDArray[Any]], labels: Sequence[NDArray[Any]]) -> ArrayBlock:
    if len(labels) == 1:
        return ArrayBlock(tokens[0], labels[0])
    return ArrayBlock(np.concatenate(tokens), np.concatenate(labels))
