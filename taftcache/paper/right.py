"""Which held-out rows a line of a report got right, by seed: what two lines are compared on."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from taftcache.errors import FormatError


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """How often each held-out row got its own class, in every seed.

    rows: held-out rows. of: how many models (orders, say) are averaged. seeds: each seed's counts, packed. Each is an
    unsigned integer of as many bytes as ``of`` needs, little-endian, zlib, base64.
    """

    rows: int
    of: int
    seeds: list[str]

    @staticmethod
    def counted(counts: Sequence[NDArray[Any]], of: int = 1) -> Right:
        """From counts [n], or for a single model which rows it got right, one array per seed."""
        packed = [zlib.compress(np.asarray(each, _kind(of)).tobytes(), 9) for each in counts]
        return Right(rows=len(counts[0]), of=of, seeds=[b64encode(each).decode() for each in packed])

    def counts(self) -> NDArray[np.int64]:
        """[seeds, rows].

        Raises:
            FormatError: counts of another number of rows.
        """
        found = [np.frombuffer(zlib.decompress(b64decode(each)), _kind(self.of)) for each in self.seeds]
        if any(len(each) != self.rows for each in found):
            raise FormatError(
                "a line of a report counts the right labels of other rows than it says",
                got=f"{[len(each) for each in found]} rows where it says {self.rows}",
                do="make the report again",
            )
        return np.stack(found).astype(np.int64)

    def accuracy(self) -> list[float]:
        """In percent, by seed."""
        return [100 * (int(each.sum()) / (self.of * self.rows)) for each in self.counts()]

    def shares(self) -> NDArray[np.float64]:
        """[seeds, rows], in [0, 1]."""
        return self.counts() / self.of


def _kind(of: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned integer type that counts up to ``of``."""
    return np.min_scalar_type(of).newbyteorder("<")
