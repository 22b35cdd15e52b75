"""Sources of rows: blocks are full and in order, whatever the rows were picked from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from taftcache.errors import DataError
from taftcache.tangent.rows import ArrayBlock, ArrayRows, RowSubset

N = 40
TOKENS = np.arange(N * 6, dtype=np.float32).reshape(N, 3, 2)
LABELS = np.arange(N) % 7
INDEX = {
    "all": np.arange(N),
    "one in five": np.arange(4, N, 5),
    "all others": np.flatnonzero(np.arange(N) % 5 != 4),
    "the last": [N - 1],
    "a gap over a source": [0, 1, 2, 30, 39],
    "none": [],
}


class Watched(ArrayRows):
    """Counts the blocks that were read of it."""

    read = 0

    def blocks(self, size: int, start: int = 0) -> Iterator[ArrayBlock]:
        for block in super().blocks(size, start):
            self.read += 1
            yield block


def sources(sizes: tuple[int, ...]) -> list[Watched]:
    ends = np.cumsum(sizes)[:-1]
    return [Watched(x, y) for x, y in zip(np.split(TOKENS, ends), np.split(LABELS, ends), strict=True)]


@pytest.mark.parametrize("which", INDEX)
@pytest.mark.parametrize("sizes", [(N,), (16, 24), (3, 0, 5, 32)])
@pytest.mark.parametrize("size", [4, 7, 100])
@pytest.mark.parametrize("start", [0, 7])
def test_a_subset_has_its_rows_in_full_blocks(which, sizes, size, start):
    subset, index = RowSubset(sources(sizes), INDEX[which]), np.asarray(INDEX[which], np.int64)
    got = list(subset.blocks(size, start))
    assert subset.rows == len(index)
    assert np.array_equal(np.concatenate([TOKENS[:0], *(b.tokens for b in got)]), TOKENS[index[start:]])
    assert np.array_equal(np.concatenate([LABELS[:0], *(b.labels for b in got)]), LABELS[index[start:]])
    assert all(len(block.labels) == size for block in got[:-1])
    values = np.linspace(0, 1, len(index))
    given = RowSubset(sources(sizes), INDEX[which], values)
    assert np.array_equal(np.concatenate([[], *(b.labels for b in given.blocks(size, start))]), values[start:])


def test_what_no_row_is_wanted_of_is_not_read():
    parts = sources((10, 20, 10))
    list(RowSubset(parts, [31, 32, 33]).blocks(2))
    assert [part.read for part in parts] == [0, 0, 2]


def test_a_whole_block_is_no_copy():
    rows = ArrayRows(TOKENS, LABELS)
    (first, second) = RowSubset([rows], np.arange(N)).blocks(N // 2)
    assert np.shares_memory(first.tokens, TOKENS)
    assert np.shares_memory(second.labels, LABELS)


@pytest.mark.parametrize("index", [[3, 2], [1, 1], [-1, 0], [N]])
def test_places_that_are_no_rows_are_refused(index):
    with pytest.raises(ValueError, match="increasing places"):
        RowSubset(sources((N,)), index)


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [(TOKENS, LABELS[:32]), (TOKENS[:32], LABELS), (TOKENS[:, 0], LABELS), (TOKENS, LABELS[:, None, None]), (1.0, 1)],
    ids=["labels", "tokens", "features", "axes", "numbers"],
)
def test_arrays_that_are_not_rows_and_their_labels_are_refused(tokens, labels):
    """Of more tokens than labels the first were taken, where a block ended with the labels."""
    with pytest.raises(DataError, match=r"tokens \[n, t, d\] and their labels do not go together\n  got: tokens \["):
        ArrayRows(tokens, labels)


def test_a_subset_takes_a_label_for_each_of_its_rows():
    with pytest.raises(ValueError, match="not a label for each row: 4 for 5"):
        RowSubset(sources((N,)), np.arange(5), LABELS[:4])
