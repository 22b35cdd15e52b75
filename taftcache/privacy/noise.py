"""The discrete Gaussian over the integers, sampled exactly from random bits.

    P(x) = exp(−x²/2σ²) / Σ_i exp(−i²/2σ²),  x ∈ Z,  σ = 2^b

A floating-point Gaussian has holes in its support that reveal the value it was added to (Mironov, 2012); here neither
noise nor sum has a fraction. With x = ±(kσ + j), the sampler draws k ≥ 0 with probability ∝ exp(−k²/2), j uniformly
below σ, and a sign, and accepts with probability exp(−(2kσj + j²)/2σ²) (Karney, 2016; Canonne, Kamath and Steinke,
2020, for its privacy). Each choice compares a uniform number, of which only the first bits are drawn, with a constant
that floating point knows to within a proven margin. The few numbers within the margin are decided in decimal
arithmetic, with as many further bits as that takes. So the result is exact, and fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from taftcache.errors import SolveError

CHUNK = 1 << 16  # proposals at a time, so that their arrays stay in a core's cache
BITS = range(8, 51)  # b: below, k would not fit beside j; above, σ·k overflows 64 bits
# exp and its argument are right to a few units of 2^-53, relative; the margin is a thousand times that.
MARGIN = 2.0**-42
_DIGITS = Context(prec=400)


class Bits(Protocol):
    """A source of independent fair bits."""

    private: bool
    """Whether nobody can know the bits: True only for the operating system's generator."""

    def draw(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        ...


class SystemBits:
    """The operating system's generator."""

    private = True

    def draw(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        return os.urandom(size)


def discrete_gaussian(size: int, b: int, bits: Bits) -> NDArray[np.int64]:
    """``size`` independent draws with σ = 2^b, exactly.

    Raises:
        SolveError: b outside of ``BITS``.
    """
    if b not in BITS:
        raise SolveError(f"the noise's width must be 2^b units with b from {BITS[0]} to {BITS[-1]}", got=b)
    out = np.empty(size, dtype=np.int64)
    done = 0
    while done < size:
        found = _accepted(min(CHUNK, int((size - done) * 1.42) + 64), b, bits)[: size - done]
        out[done : done + len(found)] = found
        done += len(found)
    return out


def bernoulli(size: int, probability: float, bits: Bits) -> NDArray[np.bool_]:
    """``size`` independent draws that are True with exactly ``probability``, a multiple of 2^-32.

    Raises:
        SolveError: another probability.
    """
    threshold = probability * 2.0**32
    if not 0 <= probability <= 1 or threshold != int(threshold):
        raise SolveError("a sampling rate must be a multiple of 2^-32 from 0 to 1", got=probability)
    return np.frombuffer(bits.draw(4 * size), dtype="<u4").astype(np.int64) < int(threshold)


def _accepted(size: int, b: int, bits: Bits) -> NDArray[np.int64]:
    """Those of ``size`` proposals that are accepted, in order."""
    first = np.frombuffer(bits.draw(8 * size), dtype="<u8")
    second = np.frombuffer(bits.draw(2 * size), dtype="<u2").astype(np.float64)
    negative = (first & np.uint64(1)).astype(bool)
    j = ((first >> np.uint64(1)) & np.uint64((1 << b) - 1)).astype(np.int64)
    k = _steps((first >> np.uint64(b + 1)).astype(np.int64), 63 - b, bits)
    u = j * 2.0**-b
    e = np.exp(-u * (k + 0.5 * u)) * 2.0**16
    accept = second + 1 <= e * (1 - MARGIN)
    for i in np.flatnonzero(~accept & (second < e * (1 + MARGIN))):
        accept[i] = _below(int(second[i]), 16, _weight(int(k[i]), int(j[i]), b), bits)
    accept &= ~(negative & (k == 0) & (j == 0))  # zero has one sign
    x = (k << b) | j
    signed: NDArray[np.int64] = np.where(negative, -x, x)[accept]
    return signed


def _steps(v: NDArray[np.int64], width: int, bits: Bits) -> NDArray[np.int64]:
    """k with P(k) ∝ exp(−k²/2) for uniform numbers whose first ``width`` bits are ``v``."""
    k = np.zeros(len(v), dtype=np.int64)
    ends = []
    for i in range(20):
        end = int(_DIGITS.multiply(Decimal(1 << width), _cumulative(i)))
        if end in ends:  # beyond the numbers' resolution
            break
        ends.append(end)
        k += v > end
    for at in np.flatnonzero(np.isin(v, ends)):
        k[at] = _step(int(v[at]), width, bits)
    return k


def _step(v: int, width: int, bits: Bits) -> int:
    """k for the uniform number that begins with ``v``, which lies at a boundary."""
    k = 0
    draws: list[int] = []

    def shared(size: int) -> bytes:
        """More bits of the same number: every boundary is compared with the same bits."""
        while len(draws) < size:
            draws.extend(bits.draw(8))
        return bytes(draws[:size])

    while not _less(v, width, _cumulative(k), shared):
        k += 1
    return k


_SUMS: list[Decimal] = []


def _cumulative(k: int) -> Decimal:
    """P(i ≤ k) where P(i) ∝ exp(−i²/2)."""
    if not _SUMS:
        terms = [_DIGITS.exp(Decimal(-i * i) / 2) for i in range(64)]  # what is left out is below 1e-880
        total = sum(terms, Decimal(0))
        for i in range(64):
            _SUMS.append(_DIGITS.divide(sum(terms[: i + 1], Decimal(0)), total))
    return _SUMS[k] if k < 40 else Decimal(1)  # 1 − P(i ≤ 40) is below 1e-340, beyond any number of bits drawn here


def _weight(k: int, j: int, b: int) -> Decimal:
    """exp(−(2kσj + j²)/2σ²)."""
    return _DIGITS.exp(_DIGITS.divide(Decimal(-(2 * k * (j << b) + j * j)), Decimal(1 << (2 * b + 1))))


def _below(v: int, width: int, bound: Decimal, bits: Bits) -> bool:
    """Whether the uniform number whose first bits are ``v`` is below ``bound``; draws more bits until that is clear."""
    more = b""

    def longer(size: int) -> bytes:
        nonlocal more
        more += bits.draw(size - len(more))
        return more

    return _less(v, width, bound, longer)


def _less(v: int, width: int, bound: Decimal, more: Callable[[int], bytes]) -> bool:
    scaled = _DIGITS.multiply(bound, Decimal(1 << width))
    size = 0
    while v <= scaled < v + 1:
        if bound == 1:
            return True
        size += 8
        drawn = more(size)[-8:]
        v = (v << 64) | int.from_bytes(drawn, "little")
        width += 64
        scaled = _DIGITS.multiply(bound, Decimal(1 << width))
    return v + 1 <= scaled
