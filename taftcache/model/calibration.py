"""Probabilities from a model's logits: softmax(z / T) with one temperature T, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, inf, log

import numpy as np
from numpy.typing import NDArray

TELLING = 10  # rows from which the calibration error is worth a word: that of fewer is chance's
FEW = 30  # rows, all right, show no more than 90 % (95 % sure; the rule of three: up to 3 / n may be wrong)
LARGEST = 1e6  # a temperature lies between 1 / LARGEST and LARGEST
FIRST = 1000  # rows that T is fitted to; they lie in the order of a hash, so that the first ones are a random sample
PARTS, BINS = 5, 15
DRAWS = 200  # of what chance alone does to the calibration error
STEPS, CLOSE = 100, 1e-6  # Newton's at most, and the step in log T at which they end: its square is the error left
AT_ONCE = 1 << 18  # logits that are in float64 at a time, so that they stay in a processor's cache


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What the probabilities softmax(logits / T) of a model are worth on held-out rows.

    temperature: T, as ``temperature_of``. log_loss: the mean of −log p of a row's own class, in nats; guessing all K
    classes alike has log K. error: by how much the probability of the predicted class is off, 0 to 1: the expected
    calibration error over 15 equal bins. chance: the error of probabilities like these that are exactly right, in the
    mean over labels drawn from them: nothing less is to be had from so many rows. rows: of how many held-out rows. For
    log_loss, error and chance each fifth of the rows has the temperature of the other four, so no row's own label
    decides its probabilities. Where ``evaluate_on`` judges another set, the rows are that set's, and T is that of the
    held-out rows for all of them.
    """

    temperature: float
    log_loss: float
    error: float
    chance: float
    rows: int

    @property
    def telling(self) -> bool:
        """Whether the rows are enough for ``error`` to say something."""
        return self.rows >= TELLING


def probabilities(logits: NDArray[np.floating], temperature: float) -> NDArray[np.float64]:
    """softmax(z / T) over the last axis of ``logits`` [..., K], in float64."""
    weights = np.exp((logits - logits.max(-1, keepdims=True)).astype(np.float64) / temperature)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def fitted_temperature(logits: NDArray[np.floating], labels: NDArray[np.integer], start: float = 1.0) -> float:
    """The temperature T with which softmax(z / T) suits rows with logits z [n,K] and ``labels`` [n] best.

    It minimises Σ_n −log softmax(z_n / T)[y_n] + (log T)². The first term is Guo et al. (2017). The second is a prior,
    log T ~ N(0, ½): rows that are few, or all right, would otherwise make T as small as it can be, and −log p of a
    later row's class infinite. A hundred rows outweigh it; without rows T is 1.

    Found by Newton's method in u = −log T from ``start``, in float64: with β = eᵘ, the derivative is
    β Σ (E_p z − z_y) + 2u, and the second one β² Σ Var_p z + β Σ (E_p z − z_y) + 2. This may be negative, so the root
    stays enclosed, and where a step would leave the enclosure, that is halved.
    """
    low, high, u = -log(LARGEST), log(LARGEST), -log(start)
    for _ in range(STEPS):
        beta, surplus, variance = exp(u), 0.0, 0.0
        for z, y in _blocks(logits, labels):
            weights = np.exp(beta * z)
            sums = weights.sum(1)
            mean = np.einsum("nk,nk->n", weights, z) / sums
            weights *= z
            surplus += float((mean - z[np.arange(len(y)), y]).sum())
            variance += float((np.einsum("nk,nk->n", weights, z) / sums - np.square(mean)).sum())
        slope, curvature = beta * surplus + 2 * u, beta**2 * variance + beta * surplus + 2
        low, high = (low, u) if slope > 0 else (u, high)
        step = u - slope / curvature if curvature > 0 else inf
        before, u = u, step if low <= step <= high else (low + high) / 2
        if abs(u - before) < CLOSE:
            break
    return exp(-u)


def temperature_of(logits: NDArray[np.floating], labels: NDArray[np.integer]) -> float | None:
    """``fitted_temperature`` of the first ``FIRST`` rows; None without rows, or if a logit is not finite.

    It has three digits, because it leaves the store with exported models: with all of its digits, those of two exports
    would tell which row had been forgotten in between.
    """
    if not len(labels) or not np.isfinite(logits).all():
        return None
    return float(f"{fitted_temperature(logits[:FIRST], labels[:FIRST]):.3g}")


def calibration_of(logits: NDArray[np.floating], labels: NDArray[np.integer]) -> Calibration | None:
    """The ``Calibration`` of rows with logits [n,K] and ``labels`` [n]; None where there is no temperature.

    Row n is in part n mod 5: the rows must lie in no order that knows of their labels, as a store's do. The calibration
    error follows Naeini et al. (2015) and Guo et al. (2017): Σ over bins of the predicted class's probability of
    |rows that are right − sum of their probabilities| / n.
    """
    if (of_all := temperature_of(logits, labels)) is None:
        return None
    found, n = ProbabilitySums(), len(labels)
    for part in range(min(PARTS, n)):
        others = np.flatnonzero(np.arange(n) % PARTS != part)[:FIRST]
        found.add(logits[part::PARTS], labels[part::PARTS], fitted_temperature(logits[others], labels[others], of_all))
    return found.calibration(of_all)


class ProbabilitySums:
    """Sums over rows of what their probabilities are worth, a block of rows at a time."""

    def __init__(self) -> None:
        self.rows, self._loss = 0, 0.0
        self._gaps, self._drawn, self._draw = np.zeros(BINS), np.zeros((DRAWS, BINS)), np.random.default_rng(0)

    def add(self, logits: NDArray[np.floating], labels: NDArray[np.integer], temperature: float) -> None:
        """Take in rows with logits [b,K] and ``labels`` [b], whose probabilities are softmax(z / ``temperature``)."""
        self.rows += len(labels)
        for z, y in _blocks(logits, labels):
            sums = np.exp(z / temperature).sum(1)
            self._loss += float((np.log(sums) - z[np.arange(len(y)), y] / temperature).sum())
            surest = 1 / sums  # the largest logit is 0
            bins = np.clip(np.ceil(surest * BINS).astype(np.int64) - 1, 0, BINS - 1)
            self._gaps += np.bincount(bins, (z.argmax(1) == y) - surest, BINS)
            for gap in self._drawn:
                gap += np.bincount(bins, (self._draw.random(len(y)) < surest) - surest, BINS)

    def calibration(self, temperature: float) -> Calibration:
        """The ``Calibration`` of all rows so far, which says that this is the ``temperature``."""
        error, chance = (float(np.abs(sums).sum(-1).mean()) / self.rows for sums in (self._gaps, self._drawn))
        return Calibration(
            temperature=temperature, log_loss=self._loss / self.rows, error=error, chance=chance, rows=self.rows
        )


def _blocks(
    logits: NDArray[np.floating], labels: NDArray[np.integer]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.integer]]]:
    """Some rows at a time, in float64: logits [b,K], less the largest of their row, and labels [b]."""
    rows = max(1, AT_ONCE // max(1, logits.shape[1]))
    for start in range(0, len(labels), rows):
        z = logits[start : start + rows].astype(np.float64)
        yield z - z.max(1, keepdims=True), labels[start : start + rows]
