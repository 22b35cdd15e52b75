"""Bugs that private training is known for, put in one at a time: at least one check must see each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from taftcache.errors import SolveError
from taftcache.privacy import accountant, clipping, descent, statement, trainer
from tests.privacy import checks
from tests.privacy.checks import CHECKS
from tests.quick import account_coarsely

Bug = Callable[[pytest.MonkeyPatch], None]
# By name: the bug, and the check that is asked first.
BUGS: dict[str, tuple[Bug, Callable[[], None]]] = {}


def bug(first: Callable[[], None]) -> Callable[[Bug], Bug]:
    def put(function: Bug) -> Bug:
        BUGS[function.__name__] = function, first
        return function

    return put


def around(patch: pytest.MonkeyPatch, owner: object, name: str, wrong: Callable) -> None:
    """Replace ``owner.name`` by ``wrong(right, *args)``."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: wrong(right, *args, **kwargs))


@bug(checks.sums_are_those_of_clipped_gradients)
def mean_instead_of_sum(patch):
    def wrong(right, network, *args, **kwargs):
        return right(network, *args, **kwargs) // max(1, network.rows)

    around(patch, descent, "clipped_sum", wrong)
    around(patch, __import__("tests.privacy.making", fromlist=["making"]), "clipped_sum", wrong)


@bug(checks.sums_are_those_of_clipped_gradients)
def clip_after_averaging(patch):
    def wrong(right, norms, grid, clipping="clip"):
        return torch.where(torch.isfinite(norms), grid.clip / norms[torch.isfinite(norms)].sum(), 0.0)

    around(patch, clipping, "scales", wrong)


@bug(checks.sums_are_those_of_clipped_gradients)
def no_clipping(patch):
    around(patch, clipping, "scales", lambda right, norms, *rest: torch.ones_like(norms))


@bug(checks.sums_are_those_of_clipped_gradients)
def clip_norm_a_little_large(patch):
    around(patch, clipping, "scales", lambda right, norms, *rest: right(norms, *rest) * 1.01)


@bug(checks.sums_are_those_of_clipped_gradients)
def clip_each_matrix_alone(patch):
    def wrong(right, self, factors, direct, live, kind="clip"):
        for factor in factors:
            right(self, [factor], [], live, kind)
        for part in direct:
            right(self, [], [part], live, kind)

    around(patch, clipping.ClippedSum, "add", wrong)


@bug(checks.sums_are_those_of_clipped_gradients)
def bias_forgotten_in_the_norm(patch):
    def wrong(right, self, factors, direct, live, kind="clip"):
        bare = clipping.ClippedSum(len(self._part), self.grid).add
        norms = _original(bare.__self__, [f._replace(bias=None) for f in factors], direct, live, kind)
        patch.setattr(clipping, "scales", lambda n, grid, k="clip": _scales(norms, grid, k))
        try:
            return right(self, factors, direct, live, kind)
        finally:
            patch.setattr(clipping, "scales", _scales)

    _original, _scales = clipping.ClippedSum.add, clipping.scales
    around(patch, clipping.ClippedSum, "add", wrong)


@bug(checks.one_row_moves_the_sum_by_no_more_than_declared)
def rows_that_are_not_numbers_pass(patch):
    def wrong(right, norms, grid, kind="clip"):
        return torch.where(torch.isnan(norms), 1.0, right(norms, grid, kind))

    around(patch, clipping, "scales", wrong)


@bug(checks.nothing_but_the_rows_decides_the_sum)
def sum_in_floating_point(patch):
    def wrong(right, self, factors, direct, live, kind="clip"):
        norms = right(self, factors, direct, live, kind)
        self._part.copy_(self._part.float())
        return norms

    around(patch, clipping.ClippedSum, "add", wrong)


@bug(checks.sums_are_those_of_clipped_gradients)
def padding_counts_as_rows(patch):
    def wrong(right, self, factors, direct, live, kind="clip"):
        return right(self, factors, direct, torch.ones_like(live), kind)

    around(patch, clipping.ClippedSum, "add", wrong)


@bug(checks.statements_follow_from_the_noise)
def replacing_counted_as_removing(patch):
    def wrong(right, spec, releases, grid, *rest):
        return right(spec, releases, type(grid)(grid.clip, grid.clip, grid.multiplier), *rest)

    around(patch, trainer, "_statement", wrong)


@bug(checks.noise_is_as_declared)
def half_the_noise(patch):
    around(patch, descent, "discrete_gaussian", lambda right, *args: right(*args) // 2)


@bug(checks.noise_is_as_declared)
def noise_one_percent_narrow(patch):
    around(patch, descent, "discrete_gaussian", lambda right, *args: (right(*args) * 0.99).astype(np.int64))


@bug(checks.noise_is_as_declared)
def noise_of_half_precision(patch):
    def wrong(right, size, b, bits):
        drawn = right(size, b, bits)
        return ((drawn / 2.0**b).astype(np.float16).astype(np.float64) * 2.0**b).astype(np.int64)

    around(patch, descent, "discrete_gaussian", wrong)


@bug(checks.noise_is_as_declared)
def noise_reused_at_every_step(patch):
    kept = {}

    def wrong(right, size, b, bits):
        return kept.setdefault((size, b), right(size, b, bits))

    around(patch, descent, "discrete_gaussian", wrong)


@bug(checks.noise_is_as_declared)
def one_step_without_noise(patch):
    calls = []

    def wrong(right, *args):
        calls.append(1)
        return right(*args) * (len(calls) % 5 != 0)

    around(patch, descent, "discrete_gaussian", wrong)


@bug(checks.statements_follow_from_the_noise)
def one_step_not_accounted(patch):
    def wrong(right, spec, releases, *rest):
        fewer = [accountant.Release(releases[0].multiplier, releases[0].steps - 1, releases[0].rate), *releases[1:]]
        return right(spec, fewer, *rest)

    around(patch, trainer, "_statement", wrong)


@bug(checks.statements_follow_from_the_noise)
def epsilon_a_little_small(patch):
    around(patch, trainer, "epsilon", lambda right, *args: right(*args) * 0.998)


@bug(checks.the_row_count_is_not_told)
def count_told_exactly(patch):
    around(patch, trainer, "_noisy_count", lambda right, rows, *rest: float(rows))


@bug(checks.rows_come_in_independently)
def shuffled_called_poisson(patch):
    def wrong(right, size, probability, bits):
        chosen = np.zeros(size, dtype=bool)
        chosen[np.random.default_rng(0).permutation(size)[: int(size * probability)]] = True
        return chosen

    around(patch, descent, "bernoulli", wrong)


@bug(checks.seeds_are_not_private)
def seed_called_private(patch):
    around(patch, trainer, "_statement", lambda right, *args: replace(right(*args), private=True))


@pytest.fixture(scope="module", autouse=True)
def coarse() -> Iterator[None]:
    """The same on both sides of what is compared here."""
    with pytest.MonkeyPatch.context() as patch:
        account_coarsely(patch)
        yield


def test_without_a_bug_all_checks_pass():
    for check in CHECKS:
        check()


@pytest.mark.law("Known bugs of private training are seen")
@pytest.mark.parametrize("name", BUGS)
def test_every_bug_is_seen(name, monkeypatch):
    put, first = BUGS[name]
    put(monkeypatch)
    for check in sorted(CHECKS, key=lambda check: check is not first):
        try:
            check()
        except AssertionError:
            return
    pytest.fail(f"no check saw {name}")


def sound(**changes: Any) -> statement.Statement:
    """A statement that holds, but for ``changes``."""
    values: dict[str, Any] = {
        "private": True,
        "relation": "add-remove",
        "mechanism": "descent",
        "epsilon": 3.0,
        "delta": 1e-5,
        "releases": [accountant.Release(9.84, 50)],
        "clip": 1.0,
        "sensitivity": 1.0,
        "unit": 1e-12,
        "shards": ["000"],
        "noise": "",
    }
    return statement.Statement(**(values | changes))


def test_a_statement_that_was_edited_is_seen():
    said = sound().as_dict()
    assert statement.audit_statement({}) == []
    assert statement.audit_statement({"privacy": said}) == []
    for change, word in [
        ({"epsilon": 2.9}, "its noise gives"),
        ({"delta": 1e-6}, "its noise gives"),
        ({"relation": "replace-one"}, "does not go with"),
        (
            {
                "relation": "replace-one",
                "sensitivity": 2.0,
                "releases": [{"multiplier": 9.84, "steps": 50, "rate": 0.5}],
            },
            "adding and removing rows only",
        ),
        ({"not_covered": []}, "leaves out"),
        ({"releases": []}, "lists what was released"),
        ({"clip": "one"}, "as taftcache writes it"),
        ({"delta": -1.0}, "as taftcache writes it"),
        ({"delta": 0.0}, "as taftcache writes it"),
        ({"releases": [{"multiplier": -9.84, "steps": 50}]}, "as taftcache writes it"),
        ({"releases": [{"multiplier": 9.84, "steps": 0}]}, "as taftcache writes it"),
        ({"releases": [{"multiplier": 9.84, "steps": 50, "rate": 0.0}]}, "as taftcache writes it"),
    ]:
        assert any(word in text for text in statement.audit_statement({"privacy": said | change}))


def test_noise_that_cannot_be_accounted_for_is_a_finding(monkeypatch):
    def fail(*_: Any) -> float:
        raise SolveError("two ways of accounting disagree")

    monkeypatch.setattr(statement, "epsilon", fail)
    assert statement.audit_statement({"privacy": sound().as_dict()}) == ["two ways of accounting disagree"]
