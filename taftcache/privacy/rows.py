"""Rows as private training reads them: blocks of one size, so that a row's numbers depend on nothing but the row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taftcache.tangent.operator import BLOCK_ROWS
from taftcache.tangent.rows import RowSource


class FilledBlock(NamedTuple):
    """Rows of which the first ``live`` are real and the rest zeros."""

    tokens: NDArray[Any]
    labels: NDArray[Any]
    live: int


class FilledRows:
    """The rows of ``sources`` one after another, or those ``chosen`` of them, in blocks of one size.

    Kernels round by the size of a product. With one size, a row that comes or goes does not change what the
    others contribute; the last block is filled up with zeros, which contribute nothing.
    """

    def __init__(self, sources: Sequence[RowSource], chosen: NDArray[np.bool_] | None = None) -> None:
        self.sources, self.chosen = list(sources), chosen
        self._rows = sum(s.rows for s in self.sources) if chosen is None else int(chosen.sum())

    @property
    def rows(self) -> int:
        """Number of rows, without the zeros at the end."""
        return self._rows

    def blocks(self, size: int, start: int = 0) -> Iterator[FilledBlock]:
        """Blocks of exactly ``size`` rows from row ``start``, a multiple of ``size``."""
        tokens: list[NDArray[Any]] = []
        labels: list[NDArray[Any]] = []
        held, skip = 0, start
        for x, y in self._pieces():
            while len(y):
                take = min(size - held, len(y))
                tokens.append(x[:take])
                labels.append(y[:take])
                held, x, y = held + take, x[take:], y[take:]
                if held == size:
                    if skip == 0:
                        yield _filled(tokens, labels, held, size)
                    skip -= min(skip, size)
                    tokens, labels, held = [], [], 0
        if held and skip == 0:
            yield _filled(tokens, labels, held, size)

    def _pieces(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        at = 0
        for source in self.sources:
            for block in source.blocks(BLOCK_ROWS):
                x, y = np.asarray(block.tokens), np.asarray(block.labels)
                if self.chosen is not None:
                    mine = self.chosen[at : at + len(y)]
                    at += len(y)
                    x, y = x[mine], y[mine]
                yield x, y


def _filled(tokens: list[NDArray[Any]], labels: list[NDArray[Any]], live: int, size: int) -> FilledBlock:
    if len(tokens) == 1 and live == size:
        return FilledBlock(tokens[0], labels[0], live)
    x = np.zeros((size, *tokens[0].shape[1:]), tokens[0].dtype)
    y = np.zeros(size, np.int64)
    np.concatenate(tokens, out=x[:live])
    np.concatenate(labels, out=y[:live], casting="unsafe")
    return FilledBlock(x, y, live)
