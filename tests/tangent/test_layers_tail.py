"""Laws of the closed-form layers, whole tails at a time, over every kind of model of the registry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import GluMlp, LayerNorm, Mlp, RmsNorm, SwiGLU, SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer

from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.solution import Status
from taftcache.tangent.base import Base
from taftcache.tangent.factors import add_gradients, factor_norms
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.solve.problems import minimised
from tests.tangent.blocks import MODELS, Case, make_case

TOLERANCE = 1e-12  # relative, float64
every_model = pytest.mark.parametrize("name", MODELS)
# One of each kind of layer, for what follows from layers that are right; the others are in the full form.
KINDS = ["plain", "norm-then-average", "qk-rms", "inner-norms", "swiglu-packed", "glu", "post-norm", "eva", "dinov3"]
each_kind = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in KINDS else [pytest.mark.full]) for name in MODELS]
)


def case_of(name: str, **options) -> Case:
    kind, switches = MODELS[name]
    return make_case(kind, switches, **options)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def parameters(case: Case) -> dict[str, torch.Tensor]:
    return {name: case.base.state[name] for name in case.base.layout}


def jacobian_product(case: Case, vector: torch.Tensor) -> torch.Tensor:
    tail, base = case.base.tail, case.base
    w = tail.bind(base.state)
    return tail.tangent(w, tail.value(w, case.tokens), tail.bind(base.layout.views(vector)))


def transposed_product(case: Case, r: torch.Tensor) -> torch.Tensor:
    tail, base = case.base.tail, case.base
    w = tail.bind(base.state)
    out = torch.zeros(base.layout.size, dtype=r.dtype)
    tail.adjoint(w, tail.value(w, case.tokens), r, tail.bind(base.layout.views(out)))
    return out


def direction(case: Case, seed: int = 3) -> torch.Tensor:
    return torch.randn(case.base.layout.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cotangent(case: Case, seed: int = 4) -> torch.Tensor:
    return torch.randn(len(case.tokens), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_against_torch_func(case: Case, tolerance: float = TOLERANCE) -> None:
    """f, J v and Jᵀ r are the model's own, and so are both at once."""
    tail, base = case.base.tail, case.base
    state, v, r = parameters(case), direction(case), cotangent(case)
    oracle, change = torch.func.jvp(case.forward, (state,), (base.layout.views(v),))
    w = tail.bind(base.state)
    value = tail.value(w, case.tokens)
    assert relative(value.logits, oracle) < tolerance
    assert relative(jacobian_product(case, v), change) < tolerance
    both = tail.value_and_tangent(w, case.tokens, tail.bind(base.layout.views(v)))
    assert relative(both[0], oracle) < tolerance
    assert relative(both[1], change) < tolerance
    _, vjp = torch.func.vjp(case.forward, state)
    assert relative(transposed_product(case, r), base.layout.flatten(vjp(r)[0])) < tolerance


@every_model
@pytest.mark.parametrize("blocks", [pytest.param(1, marks=pytest.mark.full), 2])
def test_the_tail_is_torch_func(name, blocks):
    check_against_torch_func(case_of(name, blocks=blocks))


@pytest.mark.parametrize("name", ["plain", "average", "eva", "qk-norm"])
def test_with_a_class_token_of_its_own(name):
    check_against_torch_func(case_of(name, token=True))


architectures = st.fixed_dictionaries(
    {
        "num_heads": st.sampled_from([1, 2, 3, 6]),
        "mlp_ratio": st.sampled_from([0.5, 1.0, 3.0]),
        "qkv_bias": st.booleans(),
        "proj_bias": st.booleans(),
        "init_values": st.sampled_from([None, 0.3]),
        "reg_tokens": st.integers(0, 2),
        "qk_norm": st.booleans(),
        "scale_attn_norm": st.booleans(),
        "scale_mlp_norm": st.booleans(),
        "norm_layer": st.sampled_from([LayerNorm, RmsNorm]),
        "act_layer": st.sampled_from(["gelu", "gelu_tanh", "silu", "quick_gelu"]),
        "mlp_layer": st.sampled_from([Mlp, SwiGLU, SwiGLUPacked, GluMlp]),
        "global_pool": st.sampled_from(["token", "avg"]),
        "fc_norm": st.sampled_from([None, True, False]),
    }
)


@pytest.mark.law(
    "Closed-form layers are those of `torch.func`, one by one and whole tails of any "
    "architecture; a frozen parameter costs nothing"
)
@settings(max_examples=25)
@given(architectures, st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_any_architecture_is_torch_func(options, blocks, token, seed):
    case = make_case(VisionTransformer, options, depth=3, blocks=blocks, n=2, token=token, seed=seed)
    check_against_torch_func(case, tolerance=1e-10)  # a norm that is drawn may divide by next to nothing


@each_kind
def test_adjoint_identity(name):
    case = case_of(name)
    v, r = direction(case), cotangent(case)
    left, right = (jacobian_product(case, v) * r).sum(), v @ transposed_product(case, r)
    assert abs(left - right) <= TOLERANCE * abs(left)


@settings(max_examples=10)
@given(st.floats(-3, 3), st.floats(-3, 3), st.integers(0, 9), st.sampled_from(["eva", "qk-norm"]))
def test_linear(a, b, seed, name):
    case = case_of(name, n=2)
    u, v = direction(case, seed), direction(case, seed + 100)
    expected = a * jacobian_product(case, u) + b * jacobian_product(case, v)
    assert torch.allclose(jacobian_product(case, a * u + b * v), expected, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("name", ["plain", "average", "swiglu", "eva"])
def test_finite_differences_of_the_real_model(name):
    case = case_of(name)
    v = direction(case)
    v /= v.norm()
    h = 1e-5
    step = case.base.layout.views(h * v)
    up, down = (case.forward({n: w + s * step[n] for n, w in parameters(case).items()}) for s in (1, -1))
    assert relative(jacobian_product(case, v), (up - down) / (2 * h)) < 1e-6


@each_kind
def test_float32_agrees_to_its_rounding(name):
    wide, narrow = case_of(name), case_of(name)
    narrow.base, narrow.tokens = wide.base.to(torch.float32), wide.tokens.float()
    v, r = direction(wide), cotangent(wide)
    assert relative(jacobian_product(narrow, v.float()).double(), jacobian_product(wide, v)) < 1e-4
    assert relative(transposed_product(narrow, r.float()).double(), transposed_product(wide, r)) < 1e-4


@each_kind
def test_each_parameter_alone(name):
    """A frozen parameter is a zero direction and is missing from the gradient, whatever else is frozen."""
    case = case_of(name, token=MODELS[name][1].get("class_token", True))
    tail, base = case.base.tail, case.base
    w = tail.bind(base.state)
    s = tail.value(w, case.tokens)
    r = cotangent(case)
    everything = base.layout.views(transposed_product(case, r))
    scale = transposed_product(case, r).norm()
    for n, tensor in parameters(case).items():
        d = torch.randn_like(tensor)
        padded = torch.zeros(base.layout.size, dtype=torch.float64)
        base.layout.views(padded)[n].copy_(d)
        alone, whole = (tail.tangent(w, s, tail.bind(x)) for x in ({n: d}, base.layout.views(padded)))
        assert (alone - whole).norm() <= 1e-12 * (1 + whole.norm()), n
        g = torch.zeros_like(tensor)
        tail.adjoint(w, s, r, tail.bind({n: g}))
        assert (g - everything[n]).norm() <= 1e-12 * scale, n


@pytest.mark.law(
    "Closed-form layers are those of `torch.func`, one by one and whole tails of any "
    "architecture; a frozen parameter costs nothing"
)
@pytest.mark.parametrize("name", ["plain", "average", "eva"])
def test_nothing_is_computed_below_the_deepest_trained_parameter(name, monkeypatch):
    case = case_of(name)
    tail, base = case.base.tail, case.base
    w = tail.bind(base.state)
    s = tail.value(w, case.tokens)
    seen: list[str] = []
    for kind in {type(part) for layer in tail.layers for part in getattr(layer, "layers", [layer])}:
        for method in ("input_adjoint", "contract"):
            known = getattr(kind, method)

            def spy(self, *args, known=known, method=method):
                seen.append(f"{method} {' '.join(self.names)}")
                return known(self, *args)

            monkeypatch.setattr(kind, method, spy)
    for deepest, below in (("blocks.0.mlp.fc2.bias", ("blocks.0.mlp.fc1", "attn")), ("head.bias", ("blocks", "norm"))):
        seen.clear()
        tail.adjoint(w, s, cotangent(case), tail.bind({deepest: torch.zeros_like(base.state[deepest])}))
        early = [call for call in seen if "blocks.1" not in call]
        assert not any(part in call for part in below for call in early), early
        assert "input_adjoint blocks.0.mlp.fc2.weight" not in " ".join(seen)


@pytest.mark.law("Factors are each row's gradient, and its norm follows from them")
@pytest.mark.parametrize("train", ["full", "bitfit", "layernorm", "scales"])
@each_kind
def test_factors_are_the_rows_of_the_jacobian(name, train):
    """Rebuilt gradients, and the norms that never form them, row by row."""
    case = case_of(name, token=MODELS[name][1].get("class_token", True))
    base, r = case.base, cotangent(case)
    layout = base.trained(train) if train != "scales" else base.layout
    if train == "scales":
        layout = layout.named([n for n in layout if ".ls" in n or "gamma_" in n or n == "head.weight"])
    tail = base.tail
    w = tail.bind(base.state)
    state = tail.value(w, case.tokens)
    matrices, direct = tail.factors(layout, w, state, r)
    n = len(case.tokens)
    rebuilt = torch.zeros(n, layout.size, dtype=torch.float64)
    add_gradients(matrices, direct, lambda rows, where, values: rebuilt[rows, where].add_(values))
    expected = torch.zeros_like(rebuilt)
    for k in range(n):
        alone = torch.zeros_like(r)
        alone[k] = r[k]
        tail.adjoint(w, state, alone, tail.bind(layout.views(expected[k])))
    assert relative(rebuilt, expected) < TOLERANCE
    assert relative(factor_norms(matrices, direct), expected.norm(dim=1)) < TOLERANCE


@pytest.mark.law("Factors are each row's gradient, and its norm follows from them")
def test_factor_norms_are_vmap_of_grad():
    case = case_of("plain")
    base, r = case.base, cotangent(case)
    state = parameters(case)

    def of_row(tokens: torch.Tensor, r: torch.Tensor) -> dict[str, torch.Tensor]:
        return torch.func.grad(lambda named: (case.on(named, tokens[None])[0] * r).sum())(state)

    grads = torch.func.vmap(of_row)(case.tokens, r)
    squares = sum(g.flatten(1).square().sum(1) for g in grads.values())
    tail = base.tail
    w = tail.bind(base.state)
    factors = tail.factors(base.layout, w, tail.value(w, case.tokens), r)
    assert relative(factor_norms(*factors), squares.sqrt()) < TOLERANCE


def test_an_operator_solves_with_it():
    """Blocks, memory and labels as for any tail: J and Jᵀ of the operator are the tail's."""
    case = case_of("average", n=4)
    operator = TangentOperator(
        case.base, [ArrayRows(case.tokens.numpy(), np.arange(4) % 4)], dtype=torch.float64, memory=1 << 30
    )
    v, r = direction(case), cotangent(case)
    for _ in range(2):
        assert torch.equal(torch.cat(list(operator.matvec(v))), jacobian_product(case, v))
        assert torch.equal(operator.accumulate(None, lambda *_: r), transposed_product(case, r))
    held = list(case.base.tail.tensors(next(operator.blocks())[0]))
    assert len({id(tensor) for tensor in held}) == len(held)


@pytest.mark.parametrize("largest", [0, 2048], ids=["Kronecker factors", "exact kernel"])
@pytest.mark.parametrize("name", ["plain", "average"])
def test_a_solve_ends_at_the_minimiser(name, largest, monkeypatch):
    """With what is made of sums over tokens; certified, and where a dense solve of the same problem ends."""
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_WRITTEN", largest)
    case = case_of(name, n=8)
    base = Base(case.base.config, {n: t.float() for n, t in case.base.state.items()}, case.base.spec)
    rows, labels, ridge = case.tokens.float(), np.arange(8) % 4, 1e-1
    loss = RSL()
    solution = minimised(base, [ArrayRows(rows.numpy(), labels)], loss, ridge, tolerance=1e-8)
    assert solution.status is Status.converged
    assert (solution.stats.passes < 8) == bool(largest)
    operator = TangentOperator(base, [ArrayRows(rows.numpy(), labels)], dtype=torch.float64)
    assert not operator.tail.rank_one
    problem = Problem(operator, loss, ridge)
    _, gradient = problem.evaluate(torch.zeros(base.layout.size, dtype=torch.float64))
    units = torch.eye(8 * 4, dtype=torch.float64).view(-1, 8, 4)
    J = torch.stack([operator.accumulate(None, lambda *_, unit=unit: unit) for unit in units])
    ((state, y),) = operator.blocks()
    A = (loss.curvature(state.logits, y).view(-1, 1) / 8).sqrt() * J
    small = torch.linalg.solve(A @ A.T + ridge * torch.eye(len(A), dtype=torch.float64), A @ gradient)
    assert relative(solution.value, -(gradient - A.T @ small) / ridge) < 1e-6  # Woodbury
