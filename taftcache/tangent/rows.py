"""Where tangent and cache meet: ordered blocks of rows, as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np


class Block(Protocol):
    """Consecutive rows of one source."""

    @property
    def tokens(self) -> np.ndarray:
        """Raw input [b,t,d] of the linearised block."""
        ...

    @property
    def labels(self) -> np.ndarray:
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


class ArrayBlock(NamedTuple):
    """Rows of ``ArrayRows``."""

    tokens: np.ndarray
    labels: np.ndarray


class ArrayRows:
    """Rows held in memory: tokens [n,t,d], labels [n]."""

    def __init__(self, tokens: np.ndarray, labels: np.ndarray) -> None:
        self.tokens, self.labels = tokens, labels

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def blocks(self, size: int, start: int = 0) -> Iterator[ArrayBlock]:
        """Blocks of ``size`` rows, views of the arrays."""
        for k in range(start, self.rows, size):
            yield ArrayBlock(self.tokens[k : k + size], self.labels[k : k + size])
