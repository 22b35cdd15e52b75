"""Vectors to places on a map: principal axes at once, a neighbour embedding when there is time; and who is near."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# t-SNE works on this many vectors; every other one is put between its nearest neighbours among them.
ANCHORS = 2000
ANCHOR_NEIGHBOURS = 3
# Directions kept before t-SNE, as its authors do.
REDUCED = 50
_SLICE = 2048


class Axes(NamedTuple):
    """Centre [d], orthonormal axes [k,d] by falling variance, and the fraction of the variance along each [k]."""

    centre: NDArray[np.float64]
    axes: NDArray[np.float64]
    explained: NDArray[np.float64]

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Coordinates [n,k] of vectors [n,d]."""
        return ((vectors - self.centre) @ self.axes.T).astype(np.float32)


def principal_axes(vectors: NDArray[np.float32], count: int = 2) -> Axes:
    """The first principal axes of vectors [n,d], n of them at most, each with its largest entry positive."""
    from sklearn.decomposition import PCA

    wide = np.asarray(vectors, np.float64)
    wide = np.repeat(wide, 2, 0) if len(wide) == 1 else wide  # PCA finds no variance in one row
    solver = "covariance_eigh" if wide.shape[0] > wide.shape[1] else "full"  # whichever side is the shorter
    with np.errstate(invalid="ignore"):  # if all rows are equal, each axis has 0/0 of the variance
        found = PCA(min(count, *wide.shape), svd_solver=solver).fit(wide)
    return Axes(found.mean_, found.components_, np.nan_to_num(found.explained_variance_ratio_))


def neighbour_map(vectors: NDArray[np.float16]) -> NDArray[np.float32]:
    """A map [n,2] that keeps neighbours together: t-SNE of ``ANCHORS`` vectors, the others between their nearest."""
    from sklearn.manifold import TSNE
    from sklearn.neighbors import NearestNeighbors

    n = len(vectors)
    chosen = np.sort(np.random.default_rng(0).permutation(n)[:ANCHORS])
    few = vectors[chosen].astype(np.float32)
    axes = principal_axes(few, min(REDUCED, vectors.shape[1]))
    anchors = axes.project(few)
    if not anchors.any():  # all are the same, and t-SNE would divide by their spread
        return np.zeros((n, 2), np.float32)
    planar = np.pad(anchors, ((0, 0), (0, max(0, 2 - anchors.shape[1]))))  # t-SNE begins with two axes
    perplexity = min(30.0, max(2.0, (len(chosen) - 1) / 3), len(chosen) - 1.0)
    placed = TSNE(init="pca", perplexity=perplexity, random_state=0, n_jobs=1).fit_transform(planar)
    search = NearestNeighbors(n_neighbors=min(ANCHOR_NEIGHBOURS, len(anchors)), algorithm="brute").fit(anchors)
    out = np.empty((n, 2), np.float32)
    for k in range(0, n, _SLICE):
        distance, near = search.kneighbors(axes.project(vectors[k : k + _SLICE].astype(np.float32)))
        weight = 1 / (distance + 1e-3 * (distance.mean() + 1e-12))
        out[k : k + _SLICE] = (placed[near] * (weight / weight.sum(1, keepdims=True))[..., None]).sum(1)
    out[chosen] = placed
    return out


def typical_length(vectors: NDArray[np.float32], centre: NDArray[np.float64]) -> float:
    """The median ‖x − centre‖ / √d of vectors [n,d], which a few outliers do not move; always above 0."""
    lengths = np.linalg.norm(vectors - centre, axis=1) / np.sqrt(vectors.shape[1])
    return float(np.median(lengths)) or float(lengths.max()) or 1.0


def in_lengths(vectors: NDArray[np.float32], centre: NDArray[np.float64], length: float) -> NDArray[np.float16]:
    """(x − centre) / length for vectors [n,d]; those too far out for float16 come nearer, in their own direction."""
    moved = (vectors - centre) / length
    largest = np.abs(moved).max(1, keepdims=True, initial=0)
    limit = float(np.finfo(np.float16).max)
    return np.asarray(moved * np.minimum(1, limit / np.maximum(largest, limit)), np.float16)


def nearest(vectors: NDArray[np.float16], row: int, count: int) -> list[tuple[int, float]]:
    """(row, cosine) of the ``count`` vectors [n,d] nearest to ``row``, without itself."""
    # By hand: NearestNeighbors would hold all vectors in float32 for this one row, and take twice the time.
    mine = vectors[row].astype(np.float32)
    cosine = np.empty(len(vectors), np.float32)
    for k in range(0, len(vectors), _SLICE):
        block = vectors[k : k + _SLICE].astype(np.float32)
        cosine[k : k + _SLICE] = block @ mine / np.maximum(np.linalg.norm(block, axis=1) * np.linalg.norm(mine), 1e-12)
    cosine[row] = -np.inf
    count = min(count, len(vectors) - 1)
    best = np.argpartition(-cosine, count - 1)[:count] if count else np.empty(0, np.int64)
    return [(int(k), float(cosine[k])) for k in best[np.argsort(-cosine[best])]]
