"""How vectors of other tools become rows: each by itself, so that no row holds anything of another.

Statistics over the rows (a mean, deviations) would be a better match for a solver's λ, but they belong to the base
point, which outlives a forget: they would keep a trace of every row that ever had a part in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.store import FeatureStore
from taftcache.errors import BackboneError, DataError
from taftcache.names import model_of, scaling_of, typed

Scaling = Literal["row", "none"]
SCALINGS: tuple[Scaling, ...] = ("row", "none")


def check_has_network(store: FeatureStore, name: str | None) -> None:
    """BackboneError for a model, as ``model_of`` names it, of a store made from vectors."""
    model = model_of(store.objects(), name)
    if scaling_of(store.identity) is not None and model in store.objects():
        raise BackboneError(
            f"{store.path} was made from vectors, and has no network to export",
            got=model,
            do=f"taftcache export-component {typed(store.path)} {model} head.safetensors writes the head "
            "alone: its weight and bias",
        )


def check_finite(rows: NDArray[Any], ids: Sequence[str]) -> None:
    """DataError for a row of [b, t, d] with NaN or infinity, by its id."""
    if (bad := ~np.isfinite(rows).all((1, 2))).any():
        raise DataError(f"{ids[int(bad.argmax())]!r}: NaN or infinity in its vector", do="leave the sample out")


def scaled(rows: NDArray[Any], scaling: str, ids: Sequence[str]) -> NDArray[Any]:
    """Rows [b, t, d] as they are stored: with "row", each divided by its root mean square (zeros stay zeros); with any
    other word, as they are, but never integers.

    Raises:
        DataError: a row with NaN or infinity, by its id.
    """
    check_finite(rows, ids)
    if scaling != "row":
        return rows if rows.dtype.kind == "f" else rows.astype(np.float64)
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    largest = np.abs(flat).max(1, keepdims=True)  # divided by first, for squares of large numbers overflow
    flat = flat / np.where(largest > 0, largest, 1)
    size = np.sqrt(np.square(flat).mean(1, keepdims=True))
    return (flat / np.where(size > 0, size, 1)).astype(np.float32).reshape(rows.shape)
