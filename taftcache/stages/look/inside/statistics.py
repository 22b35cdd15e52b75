"""Statistics of cached activations, from a sample of rows: instant for a store of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taftcache.cache.store import FeatureStore

# Chunks looked at, and rows taken from each.
SAMPLED_CHUNKS = 8
SAMPLED_ROWS = 32
QUANTILES = (0, 5, 50, 95, 100)
# A channel is called an outlier when its root mean square exceeds the median channel's by this factor.
OUTLIER = 6.0
LISTED = 5


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Statistics of the cached activations in JSON types.

    gathered: from every value, at extraction: ``max_abs``, ``mean_token_norm``, ``headroom``. The last is how many
    times larger a value could be before what is computed for the store overflows. NaN, infinities and overflow never
    get into a store: they are refused at extraction. sampled: from ``rows`` rows out of ``of``: quantiles of the token
    norms, outlier channels and more. Outlier channels stand out by their root mean square, compared with the median
    channel's; the rest are fractions of zeros and of subnormal values (stored with fewer digits), and values that are
    not finite.
    """

    gathered: dict[str, float]
    sampled: dict[str, Any]


def activations(store: FeatureStore, shard: str | None = None) -> Activations:
    """Statistics of one shard's rows, or of the whole store's."""
    parts = [store.shard(ref.name) for ref in store.manifest.shards if shard in (None, ref.name)]
    rows = sum(part.rows for part in parts)
    largest = max(part.statistics["max_abs"] for part in parts)
    # An 8-bit store is extracted through float16, which overflows long before the stored form does.
    limit = float(np.finfo(np.float16 if parts[0].stored_as == "int8" else parts[0].dtype).max)
    gathered = {
        "max_abs": largest,
        "mean_token_norm": sum(part.statistics["mean_token_norm"] * part.rows for part in parts) / rows,
        "headroom": limit / largest if largest else limit,
    }
    norms: list[np.ndarray] = []
    squares = np.zeros(parts[0].tokens_shape[1])
    count = values = zeros = small = odd = 0
    tiny = float(np.finfo(parts[0].dtype).tiny)
    chunks = [(part, k) for part in parts for k in range(0, part.rows, part.chunk_rows)]
    for j in sorted({round(j * (len(chunks) - 1) / (SAMPLED_CHUNKS - 1)) for j in range(SAMPLED_CHUNKS)}):
        part, start = chunks[j]
        block = part.tokens(slice(start, min(start + SAMPLED_ROWS, start + part.chunk_rows, part.rows)))
        wide = block.astype(np.float32)
        size = np.abs(wide)
        norms.append(np.sqrt(np.square(wide).sum(-1, dtype=np.float64)).ravel())
        squares += np.square(wide, dtype=np.float64).sum((0, 1))
        count += len(block)
        values += wide.size
        zeros += int((wide == 0).sum())
        small += int(((size < tiny) & (wide != 0)).sum())
        odd += int((~np.isfinite(wide)).sum())
    rms = np.sqrt(squares / (values / len(squares)))
    middle = float(np.median(rms))
    worst = np.argsort(-rms)
    outliers = [int(c) for c in worst if rms[c] > OUTLIER * middle] if middle > 0 else []
    sampled = {
        "rows": count,
        "of": rows,
        "norm_quantiles": {
            str(q): float(v) for q, v in zip(QUANTILES, np.percentile(np.concatenate(norms), QUANTILES), strict=True)
        },
        "median_channel_rms": middle,
        "outlier_channels": len(outliers),
        "largest_channels": [
            {"channel": int(c), "rms": float(rms[c]), "ratio": float(rms[c] / middle) if middle else 0.0}
            for c in worst[:LISTED]
        ],
        "zeros": zeros / values,
        "subnormal": small / values,
        "not_finite": odd,
    }
    return Activations(gathered=gathered, sampled=sampled)
