"""Training one private component: the noise that its promise needs, the descent, and the statement it carries."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from taftcache.errors import RecipeError, SolveError
from taftcache.objective.loss import Loss
from taftcache.privacy.accountant import LEAST_NOISE, Release, calibrate, epsilon, gaussian_mu, too_little_noise
from taftcache.privacy.alone import check_alone
from taftcache.privacy.descent import Descent, Whitening, descend
from taftcache.privacy.grid import MAX_ROWS, Grid
from taftcache.privacy.network import Network, TangentNetwork
from taftcache.privacy.noise import Bits, SystemBits, discrete_gaussian
from taftcache.privacy.spec import PrivacySpec
from taftcache.privacy.statement import Statement, not_covered
from taftcache.privacy.statistics import feature_norm, least_squares, noise_level, release_statistics
from taftcache.tangent.base import Base
from taftcache.tangent.parameters import Layout

# Limits on an automatic learning rate. The noise of all steps together moves a logit by about NOISE_LOGIT, where a
# softmax begins to feel it. The rows' gradients, if all pointed one way, would move it by at most MOST_LOGIT, beyond
# which descent on clipped gradients oscillates.
NOISE_LOGIT = 1.0
MOST_LOGIT = 3000.0
COUNT_SHARE = 0.01  # of μ², for the noisy row count that learning rates are divided by
MOMENT_SHARE = 0.2  # of μ², for the second moment in "covariance"


class Plan(NamedTuple):
    """The noise of every release, before any row is read."""

    step: Release | None  # of the descent
    moment: Release | None  # of the sufficient statistics
    size: Release | None  # of the row count

    @property
    def releases(self) -> list[Release]:
        """The releases that take place."""
        return [r for r in self if r is not None]


class PrivateStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures that may be known: N, or the noisy count released for it, and the learning rate of a descent."""

    rows_said: int
    learning_rate: float | None = None


class Trained(NamedTuple):
    """Δw [P] in float64, what it promises, and figures that may be known."""

    delta: Tensor
    statement: Statement
    stats: PrivateStats


def plan(spec: PrivacySpec, runs: int = 1) -> Plan:
    """The noise for each release of one run: that with which ``runs`` are (ε, δ)-private together, or
    ``spec.multiplier``."""
    rate = round(spec.rate * 2**32) / 2**32 if spec.mechanism == "sampled-descent" else 1.0

    def releases(z: float) -> Plan:
        descends = spec.mechanism != "least-squares"
        step = Release(z, spec.steps, rate) if descends else None
        moment = Release(z) if spec.mechanism == "least-squares" else None
        if spec.mechanism == "covariance":  # the moment's share of μ² is fixed, whatever the number of steps
            moment = Release(z / sqrt(spec.steps * MOMENT_SHARE / (1 - MOMENT_SHARE)))
        count = None
        if spec.relation == "add-remove":
            steps = [Release(z, spec.steps)] if descends else []
            mu = gaussian_mu([*steps, *([moment] if moment else [])]) * rate
            count = Release(1 / (mu * sqrt(COUNT_SHARE)))
        return Plan(step, moment, count)

    z = spec.multiplier or calibrate(lambda z: releases(z).releases * runs, spec.epsilon, spec.delta)
    return releases(z)


def train_privately(
    base: Base,
    network: Network,
    loss: Loss,
    spec: PrivacySpec,
    *,
    shards: Sequence[str] = (),
    bits: Bits | None = None,
    runs: int = 1,
    factor: float = 1.0,
    trace: list[Tensor] | None = None,
    progress: Any = None,
) -> Trained:
    """Train one component over the rows of ``network`` with the promise of ``spec``.

    Args:
        base: the expansion point, which is public.
        shards: names of the rows' shards, for the statement.
        bits: where the noise comes from: the operating system by default. With any other source, the component says
            that it is not private.
        runs: how many such trainings the promise covers together, if the best of several is taken.
        factor: multiplies the learning rate.
        trace: receives what every step releases, as a white-box observer sees it.

    Raises:
        RecipeError: as in ``check_trained``.
        SolveError: this machine computes a row's gradient from more than the row, so no sensitivity would hold; or as
            in ``check_trained``.
    """
    bits = bits or SystemBits()
    planned = plan(spec, runs)
    check_trained(base, network.layout, spec, planned, network.rows)
    if isinstance(network, TangentNetwork):
        check_alone(base, network, loss)
    sensitivity = _sensitivity(spec)
    size = max(1.0, float(network.rows))
    if planned.size is not None:
        size = max(1.0, _noisy_count(network.rows, planned.size, bits))
    norm = feature_norm(base)
    stats = PrivateStats(round(size))
    whitening = None
    if planned.moment is not None:
        moment = _moment(network, spec, planned, sensitivity, norm, bits)
        if planned.step is None:
            delta = without_head(base, network.layout)
            weight = least_squares(moment.A, moment.B, moment.level) / norm
            network.layout.views(delta)[base.config.head_names[0]].add_(weight)
            return Trained(delta, _statement(spec, planned.releases * runs, moment.grid, bits, shards), stats)
        whitening = Whitening(network.layout, base.config.head_names[0], moment.A / size, moment.level / size)
    assert planned.step is not None
    grid = Grid(spec.clip, sensitivity * spec.clip, planned.step.multiplier)
    rate = planned.step.rate
    eta = spec.learning_rate
    if eta == "auto":
        eta = learning_rate(grid, spec.steps, size * rate, norm)
    eta *= factor
    stats = PrivateStats(stats.rows_said, eta)
    descent = Descent(grid, spec.steps, eta, size, rate, spec.momentum, spec.clipping)
    start = without_head(base, network.layout) if spec.logits == "tangent" else None
    delta = descend(network, loss, descent, bits, start=start, whitening=whitening, trace=trace, progress=progress)
    return Trained(delta, _statement(spec, planned.releases * runs, grid, bits, shards), stats)


class _Moment(NamedTuple):
    """The head's sufficient statistics A [d,d] and B [K,d] as released, the level of their noise, and its grid."""

    A: Tensor
    B: Tensor
    level: float
    grid: Grid


def _moment(network: Network, spec: PrivacySpec, planned: Plan, sensitivity: float, norm: float, bits: Bits) -> _Moment:
    """Release the statistics; if a descent follows, only A is needed, and takes the whole of a row's weight."""
    if not isinstance(network, TangentNetwork):
        raise RecipeError(
            f"privacy.mechanism {spec.mechanism!r} trains tangent models only",
            got=type(network),
            do='privacy.mechanism = "descent"',
        )
    assert planned.moment is not None
    grid = Grid(1.0, sensitivity, planned.moment.multiplier)
    share = 1.0 if planned.step else 0.5
    A, B = release_statistics(network, grid, norm, bits, share)
    return _Moment(A, B, noise_level(grid, len(A), share), grid)


def check_trained(base: Base, layout: Layout, spec: PrivacySpec, planned: Plan, rows: int) -> None:
    """Check that ``planned`` can be carried out over the parameters ``layout`` and so many rows; none of them is read.

    Raises:
        RecipeError: sufficient statistics, or gradients of a functional tail, for more than the head; or learning from
            J Δw alone without a head.
        SolveError: noise too narrow or too wide for the grid of integers, too little of it for sampled
            releases, or more rows than they can hold.
    """
    if rows > MAX_ROWS:
        raise SolveError(
            f"too many rows for one private sum, which holds {MAX_ROWS:,}",
            got=f"{rows:,}",
            do="extract with more shards",
        )
    if planned.moment is not None:
        if layout != base.head_layout:
            raise RecipeError(
                f"privacy.mechanism {spec.mechanism!r} trains the head alone, and tangent.train asks for more",
                got=f"{layout.size} parameters in {len(layout.shapes)} tensors",
                do='set tangent.train = "head", or privacy.mechanism = "descent"',
            )
        _ = Grid(1.0, _sensitivity(spec), planned.moment.multiplier).width
    if planned.step is not None:
        if planned.step.rate < 1 and planned.step.multiplier < LEAST_NOISE:
            raise too_little_noise(f"privacy.multiplier = {planned.step.multiplier:.3g}")
        if not base.tail.factored and layout != base.head_layout:
            raise RecipeError(
                "cannot clip the gradients of a functional tail row by row: its head alone can be trained privately",
                got=f"{layout.size} parameters in {len(layout.shapes)} tensors",
                do='set tangent.train = "head"',
            )
        _ = Grid(spec.clip, _sensitivity(spec) * spec.clip, planned.step.multiplier).width
        if spec.logits == "tangent":
            without_head(base, layout)


def _sensitivity(spec: PrivacySpec) -> float:
    """Δ/C: how many clip norms a neighbour moves a sum by, at most."""
    return 2.0 if spec.relation == "replace-one" else 1.0


def learning_rate(grid: Grid, steps: int, rows: float, norm: float) -> float:
    """η from numbers that may be known: noise, C, T, rows per step and the norm F of a feature.

    A logit's noise after T steps is about η σ √T F / rows. With less noise, steps may be larger: η grows with ε and
    with the number of rows, the linear scaling rule (Panda et al., 2024), until the rows' own effect η T C F limits it.
    """
    limit = MOST_LOGIT / (steps * grid.clip * norm)
    noise = grid.multiplier * grid.sensitivity * sqrt(steps) * norm / rows
    return min(limit, NOISE_LOGIT / noise) if noise else limit


def without_head(base: Base, layout: Layout) -> Tensor:
    """The Δw [P] that takes the head to zero: from this start on, f + J Δw equals J Δw′, where Δw′ starts at zero.

    f is linear in the head, so learning from J Δw alone (as the paper does) is learning from f + J Δw with this start.

    Raises:
        RecipeError: the head is not trained.
    """
    if missing := [name for name in base.config.head_names if name not in layout]:
        raise RecipeError(
            "the head is frozen, but learning from J Δw alone needs to take the random head away",
            got=f"{', '.join(missing)} is frozen",
            do='train the head too, or set privacy.logits = "full"',
        )
    delta = torch.zeros(layout.size, dtype=torch.float64)
    views = layout.views(delta)
    for name in base.config.head_names:
        views[name].sub_(base.state[name].to("cpu", torch.float64))
    return delta


def _noisy_count(rows: int, release: Release, bits: Bits) -> float:
    """The row count with noise, of sensitivity 1: a row counts a whole number of units, rounded down, never up."""
    width = 50
    whole = int(2.0**width / release.multiplier)
    return (rows * whole + int(discrete_gaussian(1, width, bits)[0])) / whole


def _statement(spec: PrivacySpec, releases: list[Release], grid: Grid, bits: Bits, shards: Sequence[str]) -> Statement:
    return Statement(
        private=bits.private,
        relation=spec.relation,
        mechanism=spec.mechanism,
        epsilon=epsilon(releases, spec.delta),
        delta=spec.delta,
        releases=releases,
        clip=grid.clip,
        sensitivity=grid.sensitivity,
        unit=grid.unit,
        shards=list(shards),
        noise="discrete Gaussian, bits of the operating system's generator"
        if bits.private
        else "discrete Gaussian, bits of a seed: whoever knows it can take the noise off, so this is not private",
        not_covered=not_covered(spec.relation),
    )
