"""Laws of the functional tail, over a module that is no network of timm's, and against the class row by hand."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from taftcache.backbone.cut.cut import Cut
from taftcache.errors import SolveError
from taftcache.objective.rsl import RSL
from taftcache.tangent import functional as functional_tail
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.functional import FunctionalTail
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec
from taftcache.tangent.tail import row_norms
from tests.backbone.registry import images, small_backbone
from tests.solve.problems import minimised
from tests.threads import at_once

TOLERANCE = 1e-12
T, D, WIDTH, K, N = 4, 6, 5, 3, 7


class Model(nn.Module):
    """Two layers with fused attention between them, a statistic that is a buffer, and a table that no state has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(D, D), nn.Linear(D, WIDTH), nn.BatchNorm1d(WIDTH)
        self.register_buffer("table", torch.linspace(-1, 1, D * D).view(D, D), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) @ self.table
        x = x + nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return torch.relu(self.norm(self.second(x).mean(1)))


class Wrapped(nn.Module):
    """``Model`` as a remainder holds it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Model().eval()
        self.model.norm.running_mean.normal_()
        self.model.norm.running_var.uniform_(0.5, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.model(rows)


def make(class_token: str = "keep", dtype: torch.dtype = torch.float64) -> Base:
    module = Wrapped()
    state = dict(module.model.state_dict())
    config = TailConfig(
        path="functional",
        start="first",
        blocks=("second",),
        shape=(T, D),
        class_token=True,
        width=WIDTH,
        classes=K,
        parameters=tuple(n for n, _ in module.model.named_parameters()),
        norms=("norm.weight", "norm.bias"),
        buffers=("norm.running_mean", "norm.running_var"),
    )
    return make_base(state, config, K, TangentSpec(seed=2, class_token=class_token), module).to(dtype)


def tokens(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(N, T, D, dtype=dtype, generator=torch.Generator().manual_seed(5))


def whole(base: Base, rows: Tensor):
    """Logits as a function of the named tensors, written down once more."""
    module = Wrapped().double().model

    def forward(named: dict[str, Tensor]) -> Tensor:
        named, x = dict(named), rows
        if "first.cls_token" in named:
            x = torch.cat([named.pop("first.cls_token").expand(len(x), 1, D), x[:, 1:]], 1)
        weight, bias = named.pop("head.weight"), named.pop("head.bias")
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            fixed = {n: base.state[n] for n in base.config.buffers}
            return functional_call(module, named | fixed, (x,)) @ weight.T + bias

    return forward


def jacobian_product(base: Base, rows: Tensor, v: Tensor) -> Tensor:
    w = base.tail.bind(base.state)
    return base.tail.tangent(w, base.tail.value(w, rows), base.tail.bind(base.layout.views(v)))


def transposed_product(base: Base, rows: Tensor, r: Tensor) -> Tensor:
    w, out = base.tail.bind(base.state), torch.zeros(base.layout.size, dtype=rows.dtype)
    base.tail.adjoint(w, base.tail.value(w, rows), r, base.tail.bind(base.layout.views(out)))
    return out


def vectors(base: Base) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(6)
    v = torch.randn(base.layout.size, dtype=torch.float64, generator=generator)
    return v, torch.randn(N, K, dtype=torch.float64, generator=generator)


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("class_token", ["keep", "reset"])
@pytest.mark.parametrize("numbers", [1, 3 * T * D, 1 << 21])
def test_value_tangent_and_adjoint_in_pieces_of_any_size(class_token, numbers, monkeypatch):
    monkeypatch.setattr(functional_tail, "PIECE_NUMBERS", numbers)
    base, rows = make(class_token), tokens()
    v, r = vectors(base)
    at = {name: base.state[name] for name in base.layout}
    value, tangent = torch.func.jvp(whole(base, rows), (at,), (base.layout.views(v),))
    adjoint = base.layout.flatten(torch.func.vjp(whole(base, rows), at)[1](r)[0])
    assert relative(base.tail.value(base.tail.bind(base.state), rows).logits, value) < TOLERANCE
    assert relative(jacobian_product(base, rows, v), tangent) < TOLERANCE
    assert relative(transposed_product(base, rows, r), adjoint) < TOLERANCE
    assert ("first.cls_token" in base.layout) == (class_token == "reset")


def test_adjoint_identity():
    base, rows = make("reset"), tokens()
    v, r = vectors(base)
    assert torch.isclose((jacobian_product(base, rows, v) * r).sum(), v @ transposed_product(base, rows, r), rtol=1e-12)


def test_each_parameter_alone_and_what_is_frozen_is_not_differentiated(monkeypatch):
    base, rows = make("reset"), tokens()
    tail, w = base.tail, base.tail.bind(base.state)
    s, (_, r) = tail.value(w, rows), vectors(base)
    everything = base.layout.views(transposed_product(base, rows, r))
    seen: list[set[str]] = []
    forward = functional_tail.jvp
    monkeypatch.setattr(functional_tail, "jvp", lambda f, at, moved: seen.append(set(at[0])) or forward(f, at, moved))
    for name in base.layout:
        d = torch.randn_like(base.state[name])
        padded = torch.zeros(base.layout.size, dtype=torch.float64)
        base.layout.views(padded)[name].copy_(d)
        seen.clear()
        alone = tail.tangent(w, s, {name: d})
        assert seen == ([] if name in base.config.head_names else [{name}])
        assert torch.allclose(alone, jacobian_product(base, rows, padded), rtol=1e-12, atol=1e-13)
        out = {name: torch.zeros_like(d)}
        tail.adjoint(w, s, r, out)
        assert torch.allclose(out[name], everything[name], rtol=1e-12, atol=1e-13)


def test_float32_is_float64_rounded_with_every_constant_moved():
    base, rows = make(), tokens()
    v, r = vectors(base)
    narrow = base.to(torch.float32)
    assert jacobian_product(narrow, rows.float(), v.float()).dtype == torch.float32
    assert relative(jacobian_product(narrow, rows.float(), v.float()).double(), jacobian_product(base, rows, v)) < 1e-5
    assert (
        relative(transposed_product(narrow, rows.float(), r.float()).double(), transposed_product(base, rows, r)) < 1e-5
    )


def test_in_inference_mode():
    base = make()
    v, r = vectors(base)
    expected = jacobian_product(base, tokens(), v), transposed_product(base, tokens(), r)
    with torch.inference_mode():
        there = make()
        assert torch.equal(jacobian_product(there, tokens(), v.clone()), expected[0])
        assert torch.equal(transposed_product(there, tokens(), r.clone()), expected[1])


def test_rows_and_module_stay_as_they_were():
    base, rows = make(), tokens()
    before = {n: t.clone() for n, t in base.module.state_dict().items()}
    v, r = vectors(base)
    jacobian_product(base, rows, v), transposed_product(base, rows, r)
    assert torch.equal(rows, tokens())
    assert all(torch.equal(t, before[n]) for n, t in base.module.state_dict().items())


@pytest.mark.law("Threads that call models at once get the bits that each gets alone, and keep their torch settings")
def test_threads_that_share_a_tail_or_have_another():
    bases, rows = [make("reset"), make("reset")], tokens()
    v, r = vectors(bases[0])
    expected = jacobian_product(bases[0], rows, v), transposed_product(bases[0], rows, r)

    def ask(k: int) -> bool:
        base = bases[k % 2]
        found = jacobian_product(base, rows, v), transposed_product(base, rows, r)
        return all(map(torch.equal, found, expected))

    assert all(at_once(4, lambda k: all(ask(k) for _ in range(4))))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads: that is the point
def test_a_child_that_was_forked_during_a_pass_can_make_its_own(monkeypatch):
    base, rows, inside = make(), tokens(), threading.Event()
    (v, _), run, asked = vectors(base), FunctionalTail._run, os.getpid()
    expected = jacobian_product(base, rows, v)

    def slowly(*args):
        inside.set()
        if os.getpid() == asked:
            threading.Event().wait(0.1)
        return run(*args)

    monkeypatch.setattr(FunctionalTail, "_run", slowly)
    other = threading.Thread(target=jacobian_product, args=(base, rows, v))
    other.start()
    inside.wait()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            os._exit(not torch.equal(jacobian_product(base, rows, v), expected))
        finally:
            os._exit(2)
    other.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("mask", [{}, {"attn_mask": torch.eye(T) == 0}, {"attn_mask": torch.eye(T)}, {"scale": 0.3}])
def test_attention_is_written_out_in_the_tails_own_thread_alone(mask):
    x = torch.randn(2, 3, T, 8, generator=torch.Generator().manual_seed(1))

    def attention() -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, **mask)

    fused = attention()
    with sdpa_kernel(SDPBackend.MATH):
        written = attention()
    with functional_tail._exact(x), ThreadPoolExecutor(1) as other:
        assert torch.equal(attention(), written)
        assert torch.equal(other.submit(attention).result(), fused)
    assert not torch.equal(fused, written)


def test_torchs_own_attention_module_is_written_out_too():
    """Inside its function no mode is on, and forward mode raised NotImplementedError."""
    module, x = nn.MultiheadAttention(8, 2).eval(), torch.randn(T, 2, 8, generator=torch.Generator().manual_seed(2))
    weights = {name: p.detach() for name, p in module.named_parameters()}

    def value(w: dict[str, Tensor]) -> Tensor:
        return functional_call(module, w, (x, x, x), {"need_weights": False})[0]

    with functional_tail._exact(x):
        _, moved = jvp(value, (weights,), ({name: torch.ones_like(p) for name, p in weights.items()},))
    step = 1e-3
    ends = [value({name: p + sign * step for name, p in weights.items()}) for sign in (1, -1)]
    assert torch.allclose(moved, (ends[0] - ends[1]) / (2 * step), atol=1e-2)


def test_no_factors():
    base = make()
    assert not base.tail.factored
    with pytest.raises(SolveError):
        _ = base.tail.factor_width


@pytest.mark.parametrize("class_token", ["keep", "reset"])
def test_norms_of_the_rows_gradients(class_token):
    base, rows = make(class_token), tokens()
    w, (_, r) = base.tail.bind(base.state), vectors(base)
    found = row_norms(base.tail, base.layout, w, base.tail.value(w, rows), r)
    expected = [transposed_product(base, rows[n : n + 1], r[n : n + 1]).norm() for n in range(N)]
    assert relative(found, torch.stack(expected)) < TOLERANCE


@pytest.mark.law("J and Jᵀ of every family are those of `torch.func` on the whole, uncut model")
@pytest.mark.parametrize("options", [{}, {"init_values": 0.3, "reg_tokens": 2}], ids=["plain", "layer-scale"])
@pytest.mark.parametrize("class_token", ["keep", "reset"])
def test_it_agrees_with_the_class_row_by_hand(options, class_token):
    cut = Cut(small_backbone(**options))
    spec = TangentSpec(seed=1, class_token=class_token)
    base = make_base(cut.tail_state(), cut.tail_config(), K, spec).to(torch.float64)
    if class_token == "reset":
        base.state[base.config.token_name].normal_(generator=torch.Generator().manual_seed(1))
    rows = cut.prefix(images(N)).double()
    other = FunctionalTail(base.config, cut.module())
    v, r = vectors(base)
    w, out = other.bind(base.state), torch.zeros_like(v)
    s = other.value(w, rows)
    other.adjoint(w, s, r, other.bind(base.layout.views(out)))
    assert relative(s.logits, base.tail.value(base.tail.bind(base.state), rows).logits) < TOLERANCE
    assert relative(other.tangent(w, s, other.bind(base.layout.views(v))), jacobian_product(base, rows, v)) < TOLERANCE
    assert relative(out, transposed_product(base, rows, r)) < TOLERANCE


@pytest.mark.parametrize(
    "train", ["full", *(pytest.param(t, marks=pytest.mark.full) for t in ("layernorm", ["second.*"]))]
)
def test_a_solve_is_the_dense_optimum(train):
    """The probed preconditioner leads to where the normal equations lead."""
    base = make()
    x = np.concatenate([tokens().numpy()] * 6) + np.random.default_rng(0).normal(size=(6 * N, T, D))
    y = np.arange(6 * N) % K
    rows, loss, ridge = ArrayRows(x, y), RSL(alpha=2.0, kappa=3.0), 1e-2
    solution = minimised(base, [rows], loss, ridge, train=train, tolerance=1e-10, precision="float64")
    assert solution.converged
    layout = base.trained(train)
    operator = TangentOperator(base, [rows], trained=layout, dtype=torch.float64)
    J = torch.stack([torch.cat(list(operator.matvec(e))).reshape(-1) for e in torch.eye(layout.size).double()], 1)
    state, labels = next(operator.blocks())
    d = loss.curvature(state.logits, labels).reshape(-1) / len(y)
    g = loss.gradient(state.logits, labels).reshape(-1) / len(y)
    dense = torch.linalg.solve(J.T @ (d[:, None] * J) + ridge * torch.eye(layout.size), -J.T @ g)
    assert relative(solution.value, dense) < 1e-7
