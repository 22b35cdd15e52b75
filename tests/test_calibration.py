"""Temperatures and what probabilities are worth: beside searches and loops that are written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taftcache.model import calibration
from taftcache.model.calibration import Calibration, calibration_of, fitted_temperature, probabilities, temperature_of
from taftcache.model.card import Origin, Score, _calibrated
from taftcache.stages.train.held_out import KeptLogits
from taftcache.terminal.pipeline import _worth


def rows(n: int, scale: float = 1.0, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Logits [n,K] in float32, and labels [n] that their softmax at T = ``scale`` / 1.7 would give."""
    draw = np.random.default_rng(0)
    z = draw.standard_normal((n, classes))
    p = np.exp(1.7 * z)
    labels = [draw.choice(classes, p=row / row.sum()) for row in p]
    return (scale * z).astype(np.float32), np.array(labels, np.int32)


def losses(z: np.ndarray, y: np.ndarray, temperature: float) -> np.ndarray:
    """−log p of each row's own class [n]."""
    z = z.astype(np.float64) / temperature
    return np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1) - z[np.arange(len(y)), y]


SEPARABLE = np.eye(4, dtype=np.float32)[np.arange(40) % 4]


@pytest.mark.parametrize(
    ("z", "y"),
    [
        *(rows(*shape) for shape in ((30,), (400, 5.0), (400, 0.05), (400, 400.0, 3), (1,))),
        (9 * SEPARABLE, np.arange(40) % 4),
        (-9 * SEPARABLE, np.arange(40) % 4),
        (9e4 * SEPARABLE, np.arange(40) % 4),
    ],
)
def test_the_temperature_is_the_best_of_a_fine_grid(z, y, monkeypatch):
    """Also where all rows are right, or all wrong, and however few rows are looked at at a time."""
    monkeypatch.setattr(calibration, "AT_ONCE", 64)
    logs = np.linspace(-14, 14, 2801)
    best = logs[np.argmin([losses(z, y, np.exp(at)).sum() + at**2 for at in logs])]
    around = np.linspace(best - 0.02, best + 0.02, 2001)
    best = around[np.argmin([losses(z, y, np.exp(at)).sum() + at**2 for at in around])]
    assert np.log(fitted_temperature(z, y)) == pytest.approx(best, abs=2e-5)
    assert fitted_temperature(z, y, start=1e-5) == pytest.approx(fitted_temperature(z, y), rel=1e-9)


def test_without_rows_it_is_one():
    assert fitted_temperature(np.empty((0, 3), np.float32), np.empty(0, np.int32)) == 1


def test_larger_logits_have_a_larger_temperature_and_the_same_probabilities():
    (z, y), n = rows(4000), 4000
    one, three = calibration_of(z, y), calibration_of(3 * z, y)
    assert three.temperature == pytest.approx(3 * one.temperature, rel=2e-2)  # the prior alone knows of the scale
    assert one.temperature == pytest.approx(1 / 1.7, rel=0.05)
    p = probabilities(z, one.temperature)
    assert probabilities(3 * z, three.temperature) == pytest.approx(p, abs=5e-3)
    assert p.sum(1) == pytest.approx(np.ones(n))
    assert three.log_loss == pytest.approx(one.log_loss, abs=1e-3)
    assert one.error < 0.03 < calibration_of(z, (y + 1) % 5).error
    assert probabilities(1e30 * z[0], 1e-6).max() == 1


@pytest.mark.parametrize("n", [3, 203])
def test_what_probabilities_are_worth_is_judged_on_rows_that_had_no_part_in_the_fit(n):
    z, y = rows(n, 4.0)
    loss, bins = 0.0, np.zeros(15)
    for row in range(n):
        others = np.arange(n) % 5 != row % 5
        p = probabilities(z[row], fitted_temperature(z[others], y[others]))
        loss -= np.log(p[y[row]]) / n
        (bin_,) = [b for b in range(15) if b / 15 < p.max() <= (b + 1) / 15]
        bins[bin_] += ((p.argmax() == y[row]) - p.max()) / n
    found = calibration_of(z, y)
    assert (found.log_loss, found.error) == pytest.approx((loss, np.abs(bins).sum()))
    assert (found.temperature, found.rows) == (temperature_of(z, y), n)


def test_the_temperature_is_that_of_the_first_rows_with_three_digits(monkeypatch):
    """However many rows are judged: so `predict`, which reads no more, and an exported model have the same one."""
    z, y = rows(300, 4.0)
    monkeypatch.setattr(calibration, "FIRST", 100)
    first = fitted_temperature(z[:100], y[:100])
    assert calibration_of(z, y).temperature == temperature_of(z, y) == float(f"{first:.3g}") != first
    assert temperature_of(z, y) != pytest.approx(fitted_temperature(z, y), rel=1e-3)
    assert calibration_of(z, y).rows == 300


@pytest.mark.parametrize(("n", "told"), [(9, False), (10, True)])
def test_of_few_rows_how_far_probabilities_are_off_is_not_told(n, told):
    """Of one row it was "off by 0.7 points (by chance alone 2.2)"."""
    of = Calibration(temperature=1.0, log_loss=0.5, error=0.01, chance=0.02, rows=n)
    score = Score(accuracy=1.0, interval=(0.5, 1.0), level=0.95, rows=n, calibration=of)
    for text in (
        _worth(0.5, 0.01, 0.02, of.telling),
        "\n".join(_calibrated(Origin(name="a", temperature=1.0, score=score))),
    ):
        assert "log-loss 0.500" in text
        assert ("1.0 points" in text) == ("by chance alone 2.0" in text) == told


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_gives_no_probability(wrong):
    z, y = rows(30)
    z[7, 2] = wrong
    assert temperature_of(z, y) is calibration_of(z, y) is calibration_of(z[:0], y[:0]) is None


def test_chance_alone_is_the_error_of_probabilities_that_are_right():
    """Labels drawn anew from the probabilities have it, and those that a shift has made wrong have more."""
    z, _ = rows(400)
    p, draw = probabilities(z, 1.0), np.random.default_rng(1)
    found = [calibration_of(z, np.array([draw.choice(5, p=row) for row in p])) for _ in range(20)]
    errors, chance = [each.error for each in found], [each.chance for each in found]
    assert np.mean(errors) == pytest.approx(np.mean(chance), rel=0.15)
    assert calibration_of(z, p.argmin(1)).error > 3 * np.mean(chance)


@pytest.mark.parametrize(("room", "fitted"), [(10, 3), (3, 10)])
def test_of_too_many_rows_the_first_are_kept(monkeypatch, room, fitted):
    """At least those that a temperature is fitted to: predict takes them all, and would have another than evaluate."""
    monkeypatch.setattr("taftcache.stages.train.held_out.KEPT_BYTES", 4 * 3 * room)
    monkeypatch.setattr("taftcache.stages.train.held_out.FIRST", fitted)
    z = torch.arange(300.0).reshape(100, 3)

    class Shard:
        rows = 100

    kept = KeptLogits.of(Shard(), ["a", "b"], 3)  # type: ignore[arg-type]
    for start in range(0, 100, 7):
        for name in ("a", "c", "b"):
            kept.take(name, start, z[start : start + 7] + (name == "b"))
    assert kept.rows == 10
    assert np.array_equal(kept.logits["a"], z[:10].numpy())
    assert np.array_equal(kept.logits["b"], z[:10].numpy() + 1)
    assert kept.logits.keys() == {"a", "b"}
