"""The same results on a GPU: a real one to rounding, a pretended one to the bit, where the device of every tensor is
looked at (``tests.pretended``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taftcache.baselines.tangent_training import Run, Schedule, train_tangents
from taftcache.objective.cotangent import Given
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights
from taftcache.privacy.descent import clipped_sum
from taftcache.privacy.network import OrdinaryNetwork, TangentNetwork
from taftcache.solve.choosing import choose_ridge
from taftcache.solve.inverses.class_kernel import ClassKernel
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.inverses.probed import ProbedPreconditioner
from taftcache.solve.inverses.sampled import SampledInverse
from taftcache.solve.leave_one_out import moves
from taftcache.solve.minimise import certify
from taftcache.solve.settings import Arithmetic
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.pretended import PretendedDevice, WrongDevice, a_gpu
from tests.privacy.making import descent
from tests.solve.problems import K, N, case, minimised, rows
from tests.tangent import blocks, test_functional_tail
from tests.tangent.vits import SPECS, VITS, make_case

REAL = torch.cuda.is_available()
RSL5, WEIGHTED = RSL(alpha=1.0, kappa=5.0), RSL(alpha=3.0, kappa=5.0)
WEIGHTS = RowWeights(torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.linspace(0.5, 1.5, N).double())


@pytest.fixture
def gpu() -> Iterator[PretendedDevice | None]:
    with a_gpu() as mode:
        yield mode


def alike(there: Tensor, here: Tensor, tolerance: float = 1e-9) -> None:
    """The same bits of a device that computes with this processor, the same numbers to rounding of another one."""
    assert there.is_cuda
    if REAL:
        assert (there.cpu() - here).norm() <= tolerance * here.norm()
    else:
        assert torch.equal(there.cpu(), here)


def products(base: Base, tokens: Tensor, device: str, dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    """J v, JᵀJ v, and the second pass over rows that stayed on the device."""
    source = [ArrayRows(tokens.numpy(), np.arange(len(tokens)) % base.config.classes)] * 2
    operator = TangentOperator(base, source, dtype=dtype, device=device, memory=1 << 30)
    v = torch.randn(base.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        yield torch.cat(list(operator.matvec(v)))
        yield operator.accumulate(v, lambda f, change, y: change)


def check_products(base: Base, tokens: Tensor) -> None:
    for there, here in zip(products(base, tokens, "cuda"), products(base, tokens, "cpu"), strict=True):
        alike(there, here)


def quick(names: Iterable[str], *few: str) -> list[Any]:
    """``names``, all but a few of which belong to the full form."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.full) for name in names]


@pytest.mark.parametrize("vit", quick(VITS, "all"))
@pytest.mark.parametrize("spec", SPECS)
def test_products_of_the_class_row(vit, spec, gpu):
    made = make_case(vit, spec, n=9)
    check_products(made.base, made.tokens)


@pytest.mark.parametrize("model", quick(blocks.MODELS, "swiglu-packed", "eva-average"))
def test_products_of_layers(model, gpu):
    made = blocks.make_case(*blocks.MODELS[model])
    check_products(made.base, made.tokens)


@pytest.mark.parametrize("token", ["keep", "reset"])
def test_products_of_a_module(token, gpu):
    check_products(test_functional_tail.make(token), test_functional_tail.tokens())


SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {},
    "head": {"train": "head"},
    "weights": {"weights": WEIGHTS},
    "conjugate": {"method": "conjugate", "proof_passes": 4},
    "ball": {"radius": 0.5},
    "token": {"spec": "class-token"},
}
LOSSES = {"rsl": RSL5, "alpha": WEIGHTED, "cross-entropy": CrossEntropy()}


@pytest.mark.parametrize("loss", quick(LOSSES, "rsl"))
@pytest.mark.parametrize("settings", quick(SETTINGS, "auto", "head", "token"))
def test_solutions_and_their_certificates(loss, settings, gpu):
    loss, settings = LOSSES[loss], {"max_passes": 30} | SETTINGS[settings]
    spec = settings.pop("spec", "keep")
    base, sources = case("narrow-mlp", spec).base, rows("narrow-mlp", spec, (25, 15))
    there, here = (minimised(base, sources, loss, 1e-2, device=device, **settings) for device in ("cuda", "cpu"))
    assert there.value.dtype == torch.float64
    if REAL:
        bound = here.certificate.distance + there.certificate.distance
        assert (there.value.cpu() - here.value).norm() <= bound * (1 + 1e-9)
    else:
        alike(there.value, here.value)
        assert there.certificate == here.certificate
        assert there.stats == here.stats


def problem(device: str, dtype: torch.dtype = torch.float64) -> Problem:
    operator = TangentOperator(case().base, rows(sizes=(25, 15)), dtype=dtype, device=device, memory=1 << 30)
    return Problem(operator, RSL5, 1e-2, WEIGHTS)


def class_kernel(made: Problem) -> ClassKernel:
    labels = torch.cat([y for _, y in made.operator.blocks()])
    return ClassKernel(made, made.diagonal(labels, torch.zeros_like(labels, dtype=made.operator.dtype)).sqrt())


@pytest.mark.parametrize(
    "make",
    [KroneckerPreconditioner, ProbedPreconditioner, partial(SampledInverse, gradients=32), class_kernel],
    ids=["kronecker", "probed", "sampled", "class kernel"],
)
def test_approximate_inverses(make, gpu):
    def applied(device: str) -> Tensor:
        made = problem(device)
        size = (N, K) if make is class_kernel else (made.operator.layout.size,)
        v = torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
        found = make(made).apply(v)
        return found[0] if make is class_kernel else found

    # Eigenvectors of nearly equal eigenvalues differ between devices: as a whole the inverse does not.
    alike(applied("cuda"), applied("cpu"), 1e-6)


def looks(device: str, train: Any) -> Iterator[Any]:
    base, sources, arithmetic = case().base, rows(), Arithmetic(device=device, precision="float64")
    objective = Objective(loss=RSL5, ridge=1e-2, train=train)
    yield choose_ridge(base, sources, objective, arithmetic=arithmetic).ridge
    value = minimised(base, sources, RSL5, 1e-2, train=train, device=device).value
    yield certify(base, sources, objective, value, arithmetic=arithmetic).certificate.gradient_at_zero
    operator = TangentOperator(base, sources, trained=base.trained(train), dtype=torch.float64, device=device)
    moved = moves(Problem.of(objective, operator))
    yield None if moved is None else moved.sum().item()


@pytest.mark.parametrize("train", quick(["head", "full"], "head"))
def test_looks_at_the_rows(train, gpu):
    for there, here in zip(looks("cuda", train), looks("cpu", train), strict=True):
        assert there == (pytest.approx(here, rel=1e-6) if REAL else here)


def test_a_module_has_no_convolutions_in_tf32_whoever_calls_it():
    base, seen = test_functional_tail.make(), []
    base.module.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cudnn.allow_tf32))
    base.tail.value(base.tail.bind(base.state), test_functional_tail.tokens())
    assert torch.backends.cudnn.allow_tf32
    assert seen == [False]


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_adams_schedules(memory, gpu, monkeypatch):
    if gpu is not None:  # torch's optimiser asks the driver, which a pretended device does not have
        for kind in ("accelerator", "cuda"):  # the second up to torch 2.10
            asking = f"_{kind}_graph_capture_health_check"
            monkeypatch.setattr(torch.optim.Optimizer, asking, lambda self: None, raising=False)

    def trained(device: str) -> Tensor:
        run = Run(RSL5, 1e-3, ridge=1e-2, radius=0.5)
        return train_tangents(case().base, rows(), [run], Schedule(epochs=1), memory=memory, device=device)[0]

    alike(trained("cuda"), trained("cpu"), 1e-3)


@pytest.mark.parametrize("kind", [TangentNetwork, OrdinaryNetwork])
def test_private_sums_are_integers_on_the_cpu(kind, gpu):
    def summed(device: str) -> Tensor:
        base = case().base.to(torch.float32)
        network = kind(base, rows(), base.layout, device=device)
        delta = 0.05 * torch.randn(base.layout.size, generator=torch.Generator().manual_seed(1)).double()
        return clipped_sum(network, CrossEntropy(), delta, descent())

    there, here = summed("cuda"), summed("cpu")
    assert there.dtype == torch.int64
    assert there.device.type == "cpu"
    difference = (there - here).abs().max()
    assert difference <= (1e-4 * here.abs().max() if REAL else 0)
    assert torch.equal(there, summed("cuda"))


def test_a_product_does_not_wait_for_the_device(gpu):
    if gpu is None:
        pytest.skip("only a pretended device notes who waits")
    made = problem("cuda", torch.float32)
    v = torch.zeros(made.operator.layout.size, device="cuda")
    made.hessian(v)
    made.operator.accumulate(None, Given(values=torch.zeros(N, K, device="cuda")))
    assert gpu.waits == []
    made.evaluate(v)  # F is a number
    assert {wait.partition(":")[0] for wait in gpu.waits} == {"objective/problem.py"}


@pytest.mark.law("on a GPU no pass over the rows computes float32 in TF32, whatever a program has set")
def test_no_product_is_in_tf32(gpu):
    if gpu is None:
        pytest.skip("only a pretended device looks at every product")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(WrongDevice, match="TF32"):
            torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
        list(products(case().base, case().tokens, "cuda", torch.float32))
        base, tokens = test_functional_tail.make(), test_functional_tail.tokens(torch.float32)
        list(products(base, tokens, "cuda", torch.float32))
    finally:
        torch.set_float32_matmul_precision(before)
