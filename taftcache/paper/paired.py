"""Two lines of a report on the same held-out rows and seeds: by how much one is ahead, and whether that holds."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from taftcache.errors import FormatError
from taftcache.stages.paired import LEVEL, row_difference

Verdict = Literal["holds", "within noise", "contradicted"]


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """How often each held-out row got its own class: in every seed, of ``of`` models (orders, say) that are averaged.

    rows: held out. seeds: by seed the counts, each an unsigned integer of as many bytes as ``of`` needs, little-endian,
        zlib, base64.
    """

    rows: int
    of: int
    seeds: list[str]

    @staticmethod
    def counted(counts: Sequence[NDArray[Any]], of: int = 1) -> Right:
        """From counts [n], or who was right of one model, one array a seed."""
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


@dataclass(frozen=True, kw_only=True)
class Paired:
    """By how many points of accuracy one model is ahead of another, and a 95 % interval of that.

    verdict: of the claim that it is ahead. "holds": the interval lies above zero; "contradicted": below it.
    """

    ahead: float
    interval: tuple[float, float]
    verdict: Verdict

    def text(self) -> str:
        """The difference and its interval."""
        return f"{self.ahead:+.1f} ({self.interval[0]:+.1f} to {self.interval[1]:+.1f})"


def paired(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> Paired:
    """The mean over seeds and rows of what ``ours`` [s,n] is ahead of ``theirs`` [s,n], shares right in [0, 1].

    Other rows and other seeds (of the split and the base point) could have been drawn, so the variance is that of a
    mean over two crossed groups: V = V_rows + V_seeds − V_both, and no less than V_rows. V_rows is that of the rows'
    means over the seeds (``stages.paired``), V_seeds that of the seeds' means over the rows, and V_both what is left
    where row and seed are known, which both of the others hold. Each part has Student's quantile for its own degrees of
    freedom, n − 1 for the rows and s − 1 for what the seeds add (Banerjee, 1961): three seeds say little of others, and
    one says nothing, where V is V_rows. With three, the interval holds the truth in 95 to 97 of 100 draws where rows
    decide, and in 91 where seeds alone do.

    Raises:
        FormatError: other rows or seeds.
    """
    if ours.shape != theirs.shape:
        raise FormatError(
            "two lines of a report were measured on other rows or seeds",
            got=f"seeds and rows {ours.shape} and {theirs.shape}",
            do="make both reports again, with the same seeds, from one store",
        )
    apart = np.asarray(ours - theirs, np.float64)
    s, n = apart.shape
    middle, by_rows = row_difference(apart.mean(0))
    by_seeds = 0.0
    if s > 1:
        rest = apart - apart.mean(0) - apart.mean(1, keepdims=True) + apart.mean()
        both = float(np.square(rest).sum()) / max(1, (s - 1) * (n - 1)) / (s * n)
        by_seeds = max(0.0, float(apart.mean(1).var(ddof=1)) / s - both)
    parts = ((by_rows, n - 1), (by_seeds, s - 1))
    half = sqrt(sum(part * _quantile(max(1, freedom)) ** 2 for part, freedom in parts))
    low, high = 100 * (middle - half), 100 * (middle + half)
    return Paired(
        ahead=100 * float(apart.mean()),
        interval=(low, high),
        verdict="holds" if low > 0 else "contradicted" if high < 0 else "within noise",
    )


@cache
def _quantile(freedom: int) -> float:
    """Student's, of both sides at ``LEVEL``."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))


def _kind(of: int) -> np.dtype[np.unsignedinteger]:
    """The least unsigned integer that counts so far."""
    return np.min_scalar_type(of).newbyteorder("<")
