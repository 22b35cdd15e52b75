"""ε from noise and noise from ε, by two ways that share no code."""

from __future__ import annotations

from math import exp, inf, isinf

import pytest
from scipy.stats import norm

from taftcache.errors import FormatError, RecipeError, SolveError
from taftcache.privacy import accountant
from taftcache.privacy.accountant import (
    Release,
    calibrate,
    distribution_epsilon,
    epsilon,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from taftcache.privacy.budget import EVENT, Promise, charge, spent, spent_before
from taftcache.privacy.spec import PrivacySpec
from taftcache.privacy.statement import parallel
from taftcache.privacy.trainer import plan
from tests.privacy.test_bugs import sound
from tests.quick import account_coarsely


@pytest.mark.parametrize(("target", "sigma"), [(1, 26.38), (3, 9.83), (8, 4.24)])
def test_noise_of_fifty_full_steps(target, sigma):
    """The values of the literature at δ = 1e-5."""
    z = calibrate(lambda z: [Release(z, 50)], target, 1e-5)
    assert z == pytest.approx(sigma, abs=0.01)
    assert target * 0.999 <= epsilon([Release(z, 50)], 1e-5) <= target


@pytest.mark.parametrize("target", [0.5, 3.0])
def test_noise_of_sampled_rows_is_no_more_than_it_takes(target):
    """Less than all rows alone would take, for who is drawn is a secret, too."""
    z = calibrate(lambda z: [Release(z, 12, 0.125)], target, 1e-5)
    assert target * 0.995 <= epsilon([Release(z, 12, 0.125)], 1e-5) <= target
    assert z < 0.5 * calibrate(lambda z: [Release(z, 12)], target, 1e-5)


@pytest.mark.law("A promise follows from the noise, and the budget of a shard is kept")
@pytest.mark.parametrize("releases", [[Release(4.0, 9)], [Release(1.5), Release(9.0, 30)], [Release(2.0, 40, 0.125)]])
def test_never_below_the_distribution_and_hardly_above(releases):
    other = distribution_epsilon(releases, 1e-5)
    assert other <= epsilon(releases, 1e-5) <= other * 1.001


def test_one_distribution_is_computed_once(monkeypatch):
    """A training asks for each shard, its statements and its audit ask again."""
    from dp_accounting import pld

    releases = [Release(7.5, 3)]
    once = distribution_epsilon(releases, 1e-5)
    monkeypatch.setattr(pld, "PLDAccountant", None)
    assert distribution_epsilon(list(releases), 1e-5) == once
    with pytest.raises(TypeError):
        distribution_epsilon(releases, 1e-6)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 8.0])
def test_closed_form_inverts_itself(mu):
    for delta in (1e-3, 1e-6):
        found = gaussian_epsilon(mu, delta)
        assert gaussian_delta(mu, found) <= delta
        assert gaussian_delta(mu, found * 0.999) > delta


def test_the_ends():
    assert epsilon([], 1e-5) == 0
    assert isinf(epsilon([Release(0.0)], 1e-5))
    assert gaussian_epsilon(inf, 1e-5) == inf
    assert gaussian_delta(0.0, 0.0) == 0
    with pytest.raises(SolveError, match="no amount of noise"):
        calibrate(lambda z: [Release(z), Release(0.5)], 1.0, 1e-5)
    with pytest.raises(SolveError, match=r"privacy\.delta to 1e-12"):
        epsilon([Release(0.6, 9)], 1e-15)


@pytest.mark.parametrize("asked", [{"mechanism": "sampled-descent", "delta": 1e-15}, {"epsilon": 1e-300}])
def test_no_noise_is_enough(asked):
    """The first has an ε by wide steps, and by narrow ones none; the second asks for less than any ε that is found."""
    with pytest.raises(SolveError, match="no amount of noise reaches this epsilon"):
        plan(PrivacySpec(steps=3, **asked))


@pytest.mark.parametrize("asked", [{"rate": 2.4e-10}, {"epsilon": 1e6}, {"epsilon": 1e100}, {"delta": 0.9999999}])
def test_sampled_releases_of_too_little_noise_are_not_searched(asked):
    with pytest.raises(SolveError, match="sampled releases need noise of at least"):
        plan(PrivacySpec(mechanism="sampled-descent", steps=3, **asked))


@pytest.mark.parametrize(("mu", "found"), [(0.3, 1.0), (35.0, 760.0), (141.0, 10_500.0)])
def test_closed_form_where_its_factor_leaves_float64(mu, found):
    """Above 600 its second term was left out, and up to about 740 the two ways disagreed."""
    first, second = norm.logsf(found / mu - mu / 2), found + norm.logsf(found / mu + mu / 2)
    assert gaussian_delta(mu, found) == pytest.approx(exp(first) - exp(second), rel=1e-6)


@pytest.mark.parametrize("multiplier", [0.22, 0.01, 1e-9])
def test_an_epsilon_that_promises_nothing_is_said_all_the_same(multiplier, monkeypatch):
    account_coarsely(monkeypatch)
    mu = gaussian_mu([Release(multiplier, 50)])
    assert mu**2 / 2 < epsilon([Release(multiplier, 50)], 1e-5) < mu**2 / 2 + 4.3 * mu
    assert epsilon([Release(1e-200)], 1e-5) == inf


@pytest.mark.parametrize(
    ("mechanism", "relation"),
    [(mechanism, "add-remove") for mechanism in ("descent", "sampled-descent", "least-squares", "covariance")]
    + [("descent", "replace-one"), ("sampled-descent", "replace-one")]
    + [pytest.param(mechanism, "replace-one", marks=pytest.mark.full) for mechanism in ("least-squares", "covariance")],
)
def test_a_plan_spends_what_was_asked_for(mechanism, relation):
    if (mechanism, relation) == ("sampled-descent", "replace-one"):
        with pytest.raises(RecipeError, match="only adding and removing"):
            PrivacySpec(mechanism=mechanism, relation=relation)
        return
    spec = PrivacySpec(mechanism=mechanism, relation=relation, epsilon=2.0, steps=8)
    planned = plan(spec)
    assert 2.0 * 0.995 <= epsilon(planned.releases, spec.delta) <= 2.0
    assert (planned.size is None) == (relation == "replace-one")


def test_many_sampled_steps_spend_what_was_asked_for(monkeypatch):
    """Searched in wide steps, of which each adds its own error, five thousand came to 0.974."""
    monkeypatch.setattr(accountant, "INTERVAL", 1e-4)
    monkeypatch.setattr(accountant.distribution_epsilon, "__defaults__", (1e-4,))
    planned = plan(PrivacySpec(mechanism="sampled-descent", rate=0.01, steps=5000, epsilon=1.0))
    assert 0.998 <= epsilon(planned.releases, 1e-5) <= 1.0


def test_several_runs_share_one_promise():
    spec = PrivacySpec(epsilon=2.0, relation="replace-one")
    assert gaussian_mu(plan(spec, 4).releases * 4) == pytest.approx(gaussian_mu(plan(spec).releases), rel=1e-3)


def test_trainings_of_a_shard_add_up_and_stay_within_its_budget():
    release = Release(20.0, 50)
    entry = {"event": EVENT, "shards": ["000"], "releases": [{"multiplier": 20.0, "steps": 50, "rate": 1.0}]}
    entry |= {"delta": 1e-5, "budget": 5.0}
    five = Promise(5.0, 1e-5, "add-remove")
    ledger = [{"event": "forget"}, entry, {**entry, "shards": ["001"]}]
    assert spent(ledger, "000") == [release]
    assert spent([{**entry, "uncharged": entry["releases"]}], "000") == [release, release]
    twice = charge(ledger, ["000"], [release], five)["000"]
    assert twice == pytest.approx(epsilon([Release(20.0, 100)], 1e-5), rel=1e-3)
    assert charge(ledger, ["002"], [release], five)["002"] < twice
    with pytest.raises(RecipeError, match=r"of its budget.*\n.*\n.*training fixed the budget"):
        charge(ledger, ["000"], [release], Promise(twice * 0.99, 1e-5, "add-remove"))
    with pytest.raises(RecipeError, match=r"or set privacy\.budget now"):
        charge(ledger[:1], ["000"], [release], Promise(1.0, 1e-5, "add-remove"))


def test_of_a_store_that_was_there_before_the_most_of_any_shard_is_charged():
    def entry(shard, *releases):
        said = [{"multiplier": z, "steps": steps, "rate": 1.0} for z, steps in releases]
        return {"event": EVENT, "shards": [shard], "releases": said, "delta": 1e-5, "budget": 5.0}

    one = [entry("000", (20.0, 50)), entry("000", (9.0, 2)), entry("001", (20.0, 70))]
    assert spent_before([one]) == [Release(9.0, 2), Release(20.0, 70)]
    assert spent_before([one, [entry("000", (20.0, 5))]]) == [Release(9.0, 2), Release(20.0, 75)]
    assert spent_before([]) == []
    with pytest.raises(FormatError, match="does not say what was released"):
        spent_before([[{**entry("000"), "releases": ["much"]}]])
    with pytest.raises(FormatError, match="does not say what was released"):
        spent_before([[entry("000", (20.0, 0))]])


def test_disjoint_shards_compose_to_the_weakest_promise():
    first, second = sound(), sound(epsilon=5.0, shards=["001"])
    assert parallel([first, second])["epsilon"] == 5.0
    assert parallel([first, sound(delta=1e-3, shards=["001"])])["delta"] == 1e-3
    assert parallel([first, second])["private"]
    assert not parallel([first, sound(private=False, shards=["001"])])["private"]
    for other in (sound(), sound(shards=["001"], relation="replace-one")):
        with pytest.raises(RecipeError, match="disjoint"):
            parallel([first, other])
