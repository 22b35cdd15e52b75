"""Noise that repeats itself, which no product may have: whoever knows the seed can take it off again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from blake3 import blake3


class SeededBits:
    """The same bits for the same seed, as ``taftcache.privacy.noise.Bits``."""

    private = False

    def __init__(self, seed: int) -> None:
        self._hash, self._at = blake3(f"taftcache noise for tests {seed}".encode()), 0

    def draw(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        drawn = self._hash.digest(length=size, seek=self._at)
        self._at += size
        return drawn


@contextmanager
def seeded_noise() -> Iterator[None]:
    """Private training draws its noise from a seed, and says of what it makes that it is not private."""
    with patch("taftcache.privacy.trainer.SystemBits", lambda: SeededBits(0)):
        yield
