"""Laws of the class-row tangent, over every ViT and base point of the registry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taftcache.tangent.class_row.block import adjoint, reduce, tangent, value
from taftcache.tangent.weights import tail_weights
from tests.tangent.vits import SPECS, VITS, Case, make_case

TOLERANCE = 1e-12  # relative, float64
REDUCED = ("attended", "residual")
every_case = pytest.mark.parametrize(("vit", "spec"), [(v, s) for v in VITS for s in SPECS])


def push(case: Case, vector: torch.Tensor) -> torch.Tensor:
    """J v by hand."""
    base = case.base
    w = tail_weights(base.config.end, base.state)
    return tangent(w, value(base.config.end, w, case.tokens), tail_weights(base.config.end, base.layout.views(vector)))


def pull(case: Case, r: torch.Tensor) -> torch.Tensor:
    """Jᵀ r by hand."""
    base = case.base
    w = tail_weights(base.config.end, base.state)
    out = torch.zeros(base.layout.size, dtype=r.dtype)
    adjoint(w, value(base.config.end, w, case.tokens), r, tail_weights(base.config.end, base.layout.views(out)))
    return out


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def direction(case: Case, seed: int = 3) -> torch.Tensor:
    return torch.randn(case.base.layout.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_case
def test_value_is_the_models_own(vit, spec):
    case = make_case(vit, spec)
    w = tail_weights(case.base.config.end, case.base.state)
    assert relative(value(case.base.config.end, w, case.tokens).logits, case.forward(case.base.state)) < TOLERANCE


@pytest.mark.law("J and Jᵀ are those of `torch.func` on the real model, and of finite differences")
@every_case
def test_tangent_is_torch_func_jvp(vit, spec):
    case = make_case(vit, spec)
    v = direction(case)
    _, oracle = torch.func.jvp(case.forward, (case.base.state,), (case.base.layout.views(v),))
    assert relative(push(case, v), oracle) < TOLERANCE


@pytest.mark.law("J and Jᵀ are those of `torch.func` on the real model, and of finite differences")
@every_case
def test_adjoint_is_torch_func_vjp(vit, spec):
    case = make_case(vit, spec)
    r = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    _, vjp = torch.func.vjp(case.forward, case.base.state)
    oracle = vjp(r)[0]
    mine = case.base.layout.views(pull(case, r))
    for name, expected in oracle.items():
        # The key bias has no effect on the softmax: autograd leaves rounding there, the closed form a zero.
        scale = expected.norm() if "qkv.bias" not in name else case.base.layout.flatten(oracle).norm()
        assert (mine[name] - expected).norm() <= TOLERANCE * scale, name


@every_case
def test_adjoint_identity(vit, spec):
    case = make_case(vit, spec)
    v, r = direction(case), torch.randn(5, 4, dtype=torch.float64)
    left, right = (push(case, v) * r).sum(), v @ pull(case, r)
    assert abs(left - right) <= TOLERANCE * abs(left)


@settings(max_examples=15)
@given(st.floats(-3, 3), st.floats(-3, 3), st.integers(0, 9))
def test_linear(a, b, seed):
    case = make_case("all", "class-token", n=2)
    u, v = direction(case, seed), direction(case, seed + 100)
    expected = a * push(case, u) + b * push(case, v)
    assert torch.allclose(push(case, a * u + b * v), expected, rtol=1e-11, atol=1e-10)


@pytest.mark.law("J and Jᵀ are those of `torch.func` on the real model, and of finite differences")
@every_case
def test_finite_differences_of_the_real_model(vit, spec):
    case = make_case(vit, spec)
    v = direction(case)
    v /= v.norm()
    if spec == "class-token":  # drawn at 1e-6, where LayerNorm bends within any usable step: move elsewhere
        case.base.state["blocks.1.cls_token"].copy_(torch.randn(1, 1, 12, dtype=torch.float64))
    h = 1e-5
    step = case.base.layout.views(h * v)
    up, down = (case.forward({n: w + sign * step[n] for n, w in case.base.state.items()}) for sign in (1, -1))
    assert relative(push(case, v), (up - down) / (2 * h)) < 1e-6


@every_case
def test_float32_agrees_to_its_rounding(vit, spec):
    wide, narrow = make_case(vit, spec), make_case(vit, spec)
    narrow.base, narrow.tokens = wide.base.to(torch.float32), wide.tokens.float()
    v = direction(wide)
    if spec == "class-token":
        for case in (wide, narrow):
            case.base.state["blocks.1.cls_token"].fill_(0.5)[..., ::2] = -0.5
    assert relative(push(narrow, v.float()).double(), push(wide, v)) < 1e-4


@pytest.mark.parametrize("spec", SPECS)
def test_each_parameter_alone(spec):
    """A frozen parameter is a zero direction and is missing from the adjoint, whatever else is frozen."""
    case = make_case("all", spec)
    base = case.base
    w = tail_weights(base.config.end, base.state)
    s = value(base.config.end, w, case.tokens)
    r = torch.randn(5, 4, dtype=torch.float64)
    everything = base.layout.views(pull(case, r))
    for name, tensor in base.state.items():
        d = torch.randn_like(tensor)
        padded = torch.zeros(base.layout.size, dtype=torch.float64)
        base.layout.views(padded)[name].copy_(d)
        alone = tangent(w, s, tail_weights(base.config.end, {name: d}))
        assert torch.allclose(alone, push(case, padded), rtol=1e-12, atol=1e-13), name
        g = torch.zeros_like(tensor)
        adjoint(w, s, r, tail_weights(base.config.end, {name: g}))
        assert torch.allclose(g, everything[name], rtol=1e-12, atol=1e-13), name


def test_tokens_in_pieces_give_the_same(monkeypatch):
    case = make_case("plain", "class-token")
    v, r = direction(case), torch.randn(5, 4, dtype=torch.float64)
    whole = push(case, v), pull(case, r)
    monkeypatch.setattr("taftcache.tangent.class_row.block.PIECE_BYTES", 1)
    assert torch.allclose(push(case, v), whole[0], rtol=1e-13, atol=1e-13)
    assert torch.allclose(pull(case, r), whole[1], rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("size", [1, 1 << 30])
@every_case
def test_stored_rows_are_converted_before_anything_is_computed(monkeypatch, vit, spec, size):
    monkeypatch.setattr("taftcache.tangent.class_row.block.PIECE_BYTES", size)
    case = make_case(vit, spec)
    config, w = case.base.config.end, tail_weights(case.base.config.end, case.base.state)
    stored = case.tokens.half()
    kinds = {"tokens": stored} | {kind: reduce(config, w, stored.double(), kind).half() for kind in REDUCED}
    for kind, rows in kinds.items():
        got, wanted = (value(config, w, given, kind) for given in (rows, rows.double()))
        for name, mine, theirs in zip(got._fields, got, wanted, strict=True):
            assert (mine is None) == (theirs is None), name
            assert mine is None or (mine.dtype == torch.float64 and torch.equal(mine, theirs)), (kind, name)
