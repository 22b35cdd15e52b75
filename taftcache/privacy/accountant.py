"""From noise to ε and back: Gaussian releases, by a closed form and by privacy loss distributions.

A release with noise z times its sensitivity is μ-GDP with μ = 1/z, full-batch releases compose to
μ = √(Σ T/z²) exactly (Dong, Roth and Su, 2019), and

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)        (Balle and Wang, 2018)

Poisson-sampled releases have no closed form. dp-accounting composes their privacy loss distributions, rounding so that
ε is never too small. It also checks full-batch releases, and the larger of the two ε is what is claimed. Above ε = 500,
which promises nothing, it needs more than float64 can hold, and gigabytes: there the closed form stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import erfc, exp, hypot, inf, pi, sqrt
from typing import Annotated

import msgspec

from taftcache.errors import RecipeError, SolveError

AGREE = 1e-3  # largest relative difference between closed form and privacy loss distribution
CALIBRATED = 1e-4  # an ε that was asked for is met to within this, from below
INTERVAL = 1e-4  # of the privacy loss distribution
FAR = 500.0  # above this, ε is by the closed form alone
LEAST_NOISE = 0.1  # of sampled releases: with less, where ε is 1,000 and more, accounting takes minutes and gigabytes
MOST_NOISE = 1e9  # where a search for the multiplier ends


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``steps`` releases of a sum with Gaussian noise of ``multiplier`` times its sensitivity.

    rate: probability with which each row takes part in a step; 1 means all rows, always.
    """

    multiplier: Annotated[float, msgspec.Meta(ge=0)]
    steps: Annotated[int, msgspec.Meta(ge=1)] = 1
    rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


def gaussian_mu(releases: Sequence[Release]) -> float:
    """μ of full-batch ``releases`` together: √(Σ T/z²)."""
    if any(r.multiplier == 0 for r in releases):
        return inf
    return hypot(*(sqrt(r.steps) / r.multiplier for r in releases))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a μ-GDP mechanism."""
    if mu == 0:
        return 0.0
    a, b = (epsilon / mu - mu / 2) / sqrt(2), (epsilon / mu + mu / 2) / sqrt(2)
    if epsilon > 600:  # e^ε nears overflow, e^(ε − b²) = e^(−a²) does not; e^(b²) erfc b exceeds two terms of a series
        second = exp(-a * a) * (1 - 0.5 / (b * b)) / (b * sqrt(pi))
    else:
        second = exp(epsilon) * erfc(b)
    return 0.5 * (erfc(a) - second)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least ε for which a μ-GDP mechanism is (ε, δ)-private, rounded up in the last digits."""
    if mu > 1e150:  # ε, about μ²/2, overflows float64
        return inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return _smallest(lambda epsilon: gaussian_delta(mu, epsilon) <= delta)


def epsilon(releases: Sequence[Release], delta: float) -> float:
    """ε at ``delta`` of all ``releases`` together: by privacy loss distribution if any is sampled; else the larger of
    that and the closed form, or above ``FAR`` the closed form alone.

    Raises:
        RecipeError: dp-accounting is not installed. SolveError: the two disagree by more than 0.1 %.
    """
    if not releases:
        return 0.0
    if any(r.multiplier == 0 for r in releases):
        return inf
    if any(r.rate < 1 for r in releases):
        return distribution_epsilon(releases, delta)
    exact = gaussian_epsilon(gaussian_mu(releases), delta)
    if exact > FAR:
        return exact
    numeric = distribution_epsilon(releases, delta)
    if abs(numeric - exact) > AGREE * exact + 10 * INTERVAL:
        raise SolveError(
            "two ways of accounting disagree on full batches",
            got=f"closed form {exact:.6g}, privacy loss distribution {numeric:.6g} at delta {delta:g}",
            do="set privacy.delta to 1e-12 or more: the distributions cut off about 1e-15" if delta < 1e-12 else None,
        )
    return max(numeric, exact)


def distribution_epsilon(releases: Sequence[Release], delta: float, interval: float = INTERVAL) -> float:
    """ε at ``delta`` by dp-accounting's privacy loss distributions, rounded so that it is never too small."""
    return _composed(tuple(releases), delta, interval)


@lru_cache(maxsize=1024)  # half a second each, and asked for again by every shard, statement and audit
def _composed(releases: tuple[Release, ...], delta: float, interval: float) -> float:
    try:
        import dp_accounting  # an extra: taftcache[privacy]
        from dp_accounting import pld
    except ImportError as error:
        raise RecipeError(
            "cannot account for privacy: the package dp-accounting is missing",
            got=f"{error}",
            do="pip install 'taftcache[privacy]'",
        ) from error
    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    for r in releases:
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(r.multiplier)
        if r.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(r.rate, event)
        accountant.compose(event, r.steps)
    return float(accountant.get_epsilon(delta))


def calibrate(make: Callable[[float], Sequence[Release]], target: float, delta: float) -> float:
    """The least multiplier z for which the releases ``make(z)`` are (target, delta)-private: to within 10^-4, or
    2·10^-3 if rows are sampled.

    Raises:
        SolveError: no z is large enough, because releases that do not depend on z spend more; or rows are sampled, and
            z would be below ``LEAST_NOISE``.
    """

    def fits(z: float) -> bool:
        releases = make(z)
        of_all = gaussian_epsilon(gaussian_mu(releases), delta)
        if all(r.rate == 1 for r in releases):
            return of_all <= target * (1 - CALIBRATED)
        # If every step took all rows, ε would be no smaller; that is known at once, however large it is.
        return of_all <= target or distribution_epsilon(releases, delta, 20 * INTERVAL) <= target

    out_of_reach = SolveError(
        "no amount of noise reaches this epsilon",
        got=f"epsilon = {target}, delta = {delta}",
        do="ask for a larger epsilon or delta",
    )
    if not fits(MOST_NOISE):
        raise out_of_reach
    sampled = any(r.rate < 1 for r in make(1.0))
    if sampled and all(fits(z) for z in (1.0, 0.3, LEAST_NOISE)):  # the less noise, the longer this takes
        raise too_little_noise(f"epsilon = {target}, delta = {delta}")
    z = _smallest(fits, CALIBRATED * (10 if sampled else 0.25))
    if sampled and epsilon(make(z), delta) < target * (1 - 20 * CALIBRATED):  # wide steps: over many releases, too wide
        z = _smallest(lambda z: distribution_epsilon(make(z), delta) <= target, CALIBRATED * 10, z)
    while (spent := epsilon(make(z), delta)) > target:
        if not spent / target < MOST_NOISE / z:
            raise out_of_reach
        z *= spent / target + CALIBRATED / 4
    return z


def too_little_noise(got: str) -> SolveError:
    """The error for sampled releases with so little noise that no ε is derived from them."""
    return SolveError(
        f"sampled releases need noise of at least {LEAST_NOISE} times the sensitivity",
        got=got,
        do='ask for a smaller epsilon or delta, or set privacy.mechanism = "descent"',
    )


def _smallest(fits: Callable[[float], bool], tolerance: float = 1e-12, high: float = 1.0) -> float:
    """The least x > 0 that fits, given that all larger ones do, to ``tolerance`` from above; ``high`` is a guess."""
    while not fits(high):
        high *= 2
    low = high / 2
    while low > 1e-9 and fits(low):
        low, high = low / 2, low
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
