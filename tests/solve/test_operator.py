"""What decides an operator's bytes: the block size and where sources end, and neither memory nor who sums a source."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from taftcache.objective.cotangent import (
    Cotangent,
    Given,
    GradientUnderSigns,
    HessianUnderSigns,
    LossGradient,
    LossHessian,
)
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights
from taftcache.tangent.operator import RowSum, TangentOperator
from taftcache.tangent.rows import ArrayBlock, ArrayRows
from tests.solve.problems import N, case, make_problem, minimised, rows, tokens

SPLITS = {"one": (N,), "two": (16, 24), "many": (8,) * 5, "uneven": (24, 8, 8)}
BLOCK = 8
DTYPES = [torch.float32, torch.float64]


def block_bytes(dtype: torch.dtype, repeated: bool = False) -> int:
    """What one prepared block takes."""
    operator = make_problem(dtype=dtype, repeated=repeated).operator
    ((state, _), *_) = operator.blocks()
    return sum(tensor.numel() * tensor.element_size() for tensor in operator.tail.tensors(state))


def outcomes(dtype: torch.dtype, memory: int, sizes: tuple[int, ...], repeated: bool = False) -> list[torch.Tensor]:
    """Gradients and a product, some of them from blocks that were kept."""
    problem = make_problem(dtype=dtype, memory=memory, sizes=sizes, repeated=repeated)
    v = torch.randn(problem.operator.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (value, gradient), product, (again, later) = problem.evaluate(v), problem.hessian(v), problem.evaluate(v)
    return [torch.tensor([value, again], dtype=torch.float64), gradient, product, later]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", BLOCK)


@cache
def without_memory(dtype, split, repeated=False):
    return outcomes(dtype, 0, SPLITS[split], repeated)


@pytest.mark.law("A solve's bytes depend on neither memory nor who sums a shard")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("blocks_kept", [0, 1, 2.5, 99])
def test_bytes_do_not_depend_on_memory(small_blocks, dtype, split, blocks_kept):
    got = outcomes(dtype, int(blocks_kept * block_bytes(dtype)), SPLITS[split])
    assert all(torch.equal(a, b) for a, b in zip(without_memory(dtype, split), got, strict=True))


@pytest.mark.law("A solve's bytes depend on neither memory nor who sums a shard")
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("blocks_kept", [2.5, 99])
def test_nor_do_those_of_rows_made_ready_for_many_passes(small_blocks, monkeypatch, split, blocks_kept):
    monkeypatch.setattr("taftcache.tangent.class_row.tail.FEW", 9.0)
    dtype = torch.float32
    got = outcomes(dtype, int(blocks_kept * block_bytes(dtype, repeated=True)), SPLITS[split], repeated=True)
    streamed = without_memory(dtype, split, repeated=True)
    assert all(torch.equal(a, b) for a, b in zip(streamed, got, strict=True))
    assert not torch.equal(streamed[2], without_memory(dtype, split)[2])  # they are ready indeed


RESPONSES = {
    "slope": lambda terms, z: LossGradient(keep=True, **terms),
    "bend": lambda terms, z: LossHessian(point=None, **terms),
    "bend at a point": lambda terms, z: LossHessian(point=z, **terms),
    "under signs": lambda terms, z: GradientUnderSigns(seed=3, point=None, **terms),
    "bend, under signs": lambda terms, z: HessianUnderSigns(seed=3, point=None, **terms),
    "given": lambda terms, z: Given(values=z),
}


@pytest.mark.law("A solve's bytes depend on neither memory nor who sums a shard")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", ["two", "many", "uneven"])
@pytest.mark.parametrize("kind", RESPONSES)
def test_a_pass_is_the_sum_of_its_sources_passes_bit_for_bit(small_blocks, kind, dtype, split):
    operator = make_problem(dtype=dtype, sizes=SPLITS[split]).operator
    generator = torch.Generator().manual_seed(0)
    v, z = torch.randn(operator.layout.size, generator=generator), torch.randn(N, operator.classes, generator=generator)
    weights = RowWeights(torch.arange(1.0, operator.classes + 1), torch.arange(1.0, N + 1))
    terms = {"loss": RSL(alpha=3.0), "weights": weights, "rows": N, "jvp_only": False}

    def response() -> Cotangent:
        return RESPONSES[kind](terms, z.to(dtype))

    whole, start = response(), 0
    expected = operator.sums(RowSum(v, whole, 0.5 * v.to(dtype)))[0]
    got, notes = 0.5 * v.to(dtype), []
    for source in operator.sources:
        alone = TangentOperator(operator.base, [source], dtype=dtype)
        part = pickle.loads(pickle.dumps(response().part(start, source.rows)))
        got += alone.accumulate(v, part)
        notes += part.notes
        start += source.rows
    assert torch.equal(got, expected)
    assert [value for value, _, _ in notes] == [value for value, _, _ in whole.notes]
    assert all(
        torch.equal(a, b) for x, y in zip(notes, whole.notes, strict=True) for a, b in zip(x[1:], y[1:], strict=True)
    )


def test_block_size_decides_the_bytes(monkeypatch):
    whole = outcomes(torch.float32, 0, (N,))
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", BLOCK)
    pieces = outcomes(torch.float32, 0, (N,))
    assert not torch.equal(whole[1], pieces[1])
    assert torch.allclose(whole[1], pieces[1], rtol=1e-3, atol=1e-4)


def test_more_rows_at_a_time_where_they_are_made_ready(monkeypatch):
    def rows_of(dtype=torch.float32, repeated=True) -> int:
        return make_problem(dtype=dtype, repeated=repeated).operator.block_rows

    assert (rows_of(), rows_of(repeated=False), rows_of(torch.float64)) == (1024, 256, 256)
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_BYTES", 300 * 4 * tokens()[0].size)
    assert rows_of() == 300
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_BYTES", 1)
    assert rows_of() == 256
    monkeypatch.undo()
    monkeypatch.setattr("taftcache.tangent.class_row.tail.READY_BYTES", 0)
    assert rows_of() == 256


class Counting(ArrayRows):
    """Rows that count how often each block is read."""

    reads = 0

    def blocks(self, size: int, start: int = 0) -> Iterator[ArrayBlock]:
        for block in super().blocks(size, start):
            self.reads += 1
            yield block


@pytest.mark.parametrize(("kept", "reads"), [(0, 15), (2.5, 5 + 3 + 3), (99, 5)])
def test_rows_kept_in_memory_are_not_read_again(small_blocks, kept, reads):
    problem = make_problem(memory=int(kept * block_bytes(torch.float64)))
    source = Counting(*vars(rows()[0]).values())
    problem.operator.sources[:] = [source]
    for _ in range(3):
        problem.evaluate(torch.zeros(problem.operator.layout.size))
    assert (source.reads, problem.operator.passes) == (reads, 3)


def test_rows_of_a_cache_are_left_as_they_are(small_blocks):
    """A cache hands out views of mapped files: torch must not get memory that it could write to."""
    frozen = tokens()
    frozen.flags.writeable = False
    problem = make_problem()
    problem.operator.sources[:] = [ArrayRows(frozen, rows()[0].labels)]
    zero = torch.zeros(problem.operator.layout.size)
    assert torch.equal(problem.evaluate(zero)[1], make_problem().evaluate(zero)[1])


@pytest.mark.parametrize("loss", [RSL(alpha=3.0), CrossEntropy()], ids=["square", "entropy"])
@pytest.mark.parametrize("sizes", [(N,), (N // 3, N - N // 3)])
def test_float64_may_take_fewer_rows_at_a_time_than_float32(monkeypatch, loss, sizes):
    base, sources = case().base, rows(sizes=sizes)
    alike = minimised(base, sources, loss, 1e-2, tolerance=1e-8)
    monkeypatch.setattr("taftcache.tangent.operator.WIDE_BYTES", 1)
    monkeypatch.setattr("taftcache.tangent.operator.LEAST_ROWS", 7)
    assert [make_problem(dtype=dtype).operator.block_rows for dtype in DTYPES] == [256, 7]
    apart = minimised(base, sources, loss, 1e-2, tolerance=1e-8)
    assert alike.converged
    assert apart.converged
    assert torch.allclose(alike.value, apart.value, rtol=0, atol=1e-6 * alike.value.norm().item())
    assert alike.certificate.objective == pytest.approx(apart.certificate.objective, rel=1e-12)
