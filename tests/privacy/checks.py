"""What must hold of private training, each check an assertion that seeded bugs are run against.

Checks look names up in their modules when they run, so a test can put a bug in.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import numpy as np
import torch

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.privacy import accountant, descent, trainer
from taftcache.privacy.noise import Bits, SystemBits
from taftcache.privacy.spec import PrivacySpec, Relation
from taftcache.privacy.statement import audit_statement
from tests.privacy import making
from tests.seeded import SeededBits


def width_is_right(drawn: np.ndarray, sigma: float) -> bool:
    """Whether the mean square of ``drawn`` is within 1 % of σ²: σ off by 1 % is 2 %."""
    return bool(abs(np.mean((drawn / sigma) ** 2) - 1) < 0.01)


def sums_are_those_of_clipped_gradients() -> None:
    """Against gradients formed one by one, also where rows do not fill a block, and biases dominate."""
    for train, clip in (("full", 1.0), ("bitfit", 0.3), ("head", 1e3)):
        for n in (1, 5):
            source, run = making.rows(n, seed=7), making.descent(clip)
            found = making.total(source, run, train=train, dtype=torch.float64).double() * run.grid.unit
            expected = making.dense(source, run, train=train)
            assert (found - expected).norm() <= 1e-4 * expected.norm() + 1e-6 * clip


def one_row_moves_the_sum_by_no_more_than_declared() -> None:
    """Rows of every size, NaN among them; also when one replaces another."""
    for seed in range(6):
        source = making.rows(4, seed=seed)
        source.tokens[1] *= 1e3
        source.tokens[2] = np.nan if seed % 2 else source.tokens[3]
        for train in ("full", "bitfit"):
            run = making.descent(clip=0.2)
            whole = making.total(source, run, train=train)
            for leaves in range(4):
                less = making.total(making.take(source, np.arange(4) != leaves), run, train=train)
                moved = (whole - less).double().norm().item() * run.grid.unit
                assert moved <= run.grid.sensitivity


def nothing_but_the_rows_decides_the_sum() -> None:
    """No order and no cut into blocks changes a bit."""
    source, run = making.rows(300, seed=3), making.descent()
    once = making.total(source, run)
    assert once.dtype == torch.int64
    assert torch.equal(once, making.total(making.take(source, np.arange(300)[::-1].copy()), run))


def _released(spec: PrivacySpec, n: int, bits: Bits, steps: int = 4) -> tuple[list[np.ndarray], trainer.Trained]:
    net = making.network(making.rows(n, seed=1), vit="plain")
    trace = []
    trained = trainer.train_privately(making.base("plain"), net, CrossEntropy(), spec, bits=bits, trace=trace)
    return [vector.numpy() for vector in trace], trained


def noise_is_as_declared() -> None:
    """Without rows, what is released is noise alone: of the width that the statement has, new at each step, to the
    last bit."""
    # 300 steps of 1,960 numbers: a σ off by 1 %, which is 2 % of σ², lies 5.9 deviations beyond the threshold of 5.
    # What is grossly wrong is seen in twenty steps already.
    for steps in (20, 300):
        _noise_is_as_declared(PrivacySpec(multiplier=5.0, steps=steps, relation="replace-one"))


def _noise_is_as_declared(spec: PrivacySpec) -> None:
    sums, trained = _released(spec, 0, SystemBits())
    said = trained.statement
    sigma = said.releases[0].multiplier * said.sensitivity / said.unit
    every = np.concatenate(sums)
    n = len(every)
    assert abs(np.mean((every / sigma) ** 2) - 1) < 5 * sqrt(2 / n)
    for one in sums:
        assert abs(np.mean((one / sigma) ** 2) - 1) < 6 * sqrt(2 / len(one))
    for one, other in pairwise(sums):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / sqrt(len(one))
    for bit in range(8):
        assert abs(((every >> bit) & 1).mean() - 0.5) < 3 / sqrt(n)


def statements_follow_from_the_noise() -> None:
    """The steps that were taken, the sensitivity of the relation, and an ε that is not below the accountant's."""
    relations: list[tuple[Relation, int]] = [("add-remove", 7), ("replace-one", 3)]
    for relation, steps in relations:
        spec = PrivacySpec(epsilon=3.0, steps=steps, relation=relation)
        sums, trained = _released(spec, 3, SystemBits())
        said = trained.statement
        assert said.private
        assert said.releases[0].steps == len(sums) == steps
        assert said.sensitivity == (2 if relation == "replace-one" else 1) * said.clip
        assert audit_statement({"privacy": said.as_dict()}) == []
        again = accountant.distribution_epsilon(said.releases, said.delta)
        assert again <= said.epsilon <= 3.0
        assert said.epsilon <= again * 1.001


def seeds_are_not_private() -> None:
    """A component whose noise can be drawn again says that it is not private."""
    assert not _released(PrivacySpec(multiplier=5.0, steps=1), 2, SeededBits(0))[1].statement.private


def the_row_count_is_not_told() -> None:
    """Under adding and removing rows, what the learning rate is divided by is noisy, as the statement says."""
    spec = PrivacySpec(multiplier=1.0, steps=1)
    count = trainer.plan(spec).size
    assert count is not None
    found = [trainer._noisy_count(500, count, SeededBits(seed)) for seed in range(60)]
    assert 0.6 < np.std(found) / count.multiplier < 1.5
    assert len({_released(spec, 20, SystemBits())[1].stats.rows_said for _ in range(8)}) > 1


def rows_come_in_independently() -> None:
    """Poisson sampling: the number of rows in a step varies, and no row's turn depends on another's."""
    counts = []
    net = making.network(making.rows(64, seed=2), train="head")
    asked = net.batches

    def watched(delta, chosen=None):
        counts.append(int(chosen.sum()))
        return asked(delta, chosen)

    net.batches = watched  # type: ignore[method-assign]
    run = making.descent(rate=0.25, steps=100)
    descent.descend(net, CrossEntropy(), run, SeededBits(1))
    assert 0.6 < np.var(counts) / (64 * 0.25 * 0.75) < 1.6


CHECKS = [
    sums_are_those_of_clipped_gradients,
    one_row_moves_the_sum_by_no_more_than_declared,
    nothing_but_the_rows_decides_the_sum,
    noise_is_as_declared,
    statements_follow_from_the_noise,
    seeds_are_not_private,
    the_row_count_is_not_told,
    rows_come_in_independently,
]
