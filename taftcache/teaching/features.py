"""What a prior sees of the teachers: one row of concatenated features for each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from taftcache.errors import DataError
from taftcache.teaching.joined import Teacher

BLOCK_ROWS = 256
NOISE = "noise"
CONSTANT = 1e-6  # a deviation below this fraction of a feature's size is rounding


class TeacherFeatures:
    """ψ [n,p]: the teachers' features side by side, standardised over the rows in use, then weighted; then noise.

    Each feature is brought to mean 0 and deviation 1 over ``used``, with sums in float64 (``standardise = False``
    leaves its deviation as cached). A feature that is constant there becomes 0. Noise features are independent standard
    normal numbers, drawn once for each row of the join. ``power`` [p] is each feature's mean square over ``used``.

    Args:
        teachers: over the rows of one join.
        used: rows of the join whose mean and deviation count: those that train.
        standardise: see above.
        noise: how many features of noise follow.
        repeat: how often the first teacher is taken.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        used: np.ndarray,
        *,
        standardise: bool = True,
        noise: int = 0,
        repeat: int = 1,
    ) -> None:
        if not len(used):
            raise DataError("no rows to standardise the teachers' features over")
        self.names = [f"{teachers[0].name} (copy {k})" for k in range(2, repeat + 1)]
        self.names = [teachers[0].name, *self.names, *(t.name for t in teachers[1:])]
        self._teachers = [*[teachers[0]] * repeat, *teachers[1:]]
        widths = [teacher.width for teacher in self._teachers]
        self._noise = np.zeros((teachers[0].count, 0), np.float32)
        if noise:
            self.names.append(NOISE)
            widths.append(noise)
            drawn = torch.randn(
                teachers[0].count, noise, generator=torch.Generator().manual_seed(0), dtype=torch.float32
            )
            self._noise = drawn.numpy()
        ends = np.cumsum(widths).tolist()
        self.slices = {n: slice(end - w, end) for n, w, end in zip(self.names, widths, ends, strict=True)}
        self.width = ends[-1]
        self._mean, deviation = self._standard(used)
        varies = deviation > 0
        self._scale = np.where(varies, 1 / np.where(varies, deviation, 1) if standardise else 1.0, 0.0)
        self.power = np.where(varies, 1.0 if standardise else deviation**2, 0.0)
        for name, teacher in zip(self.names, self._teachers, strict=False):
            self._scale[self.slices[name]] *= teacher.weight
            self.power[self.slices[name]] *= teacher.weight**2

    def rows(self, index: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor:
        """ψ [len(index), p]."""
        return torch.from_numpy((self._raw(index) - self._mean) * self._scale).to(dtype)

    def blocks(self, index: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
        """For each block of rows, its place in ``index``, and its ψ in float64."""
        for at in range(0, len(index), BLOCK_ROWS):
            part = slice(at, min(at + BLOCK_ROWS, len(index)))
            yield part, self.rows(index[part], torch.float64)

    def _raw(self, index: np.ndarray) -> np.ndarray:
        parts = [teacher.rows(index) for teacher in self._teachers]
        return np.concatenate([*parts, self._noise[index]], 1).astype(np.float64)

    def _standard(self, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each feature (0 if constant), in two passes, so that a large mean costs no digits."""
        parts = [used[k : k + BLOCK_ROWS] for k in range(0, len(used), BLOCK_ROWS)]
        mean, square = np.zeros(self.width), np.zeros(self.width)
        for part in parts:
            mean += self._raw(part).sum(0) / len(used)
        for part in parts:
            square += ((self._raw(part) - mean) ** 2).sum(0) / len(used)
        deviation = np.sqrt(square)
        return mean, np.where(deviation > CONSTANT * np.maximum(np.abs(mean), 1e-300), deviation, 0)
