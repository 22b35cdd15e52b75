"""Each closed-form layer alone against ``torch.func`` on timm's (or torch's) own module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.layers import Attention, GluMlp, LayerNorm, LayerScale, Mlp, RmsNorm, SwiGLU, SwiGLUPacked
from timm.layers.activations import QuickGELU
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models.eva import EvaAttention
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from taftcache.tangent.layers.activation import Activation, Gate, derivative
from taftcache.tangent.layers.attention import Attend, Rotation
from taftcache.tangent.layers.layer import Layer, Sum, chain_adjoint, chain_tangent, chain_value
from taftcache.tangent.layers.linear import Linear
from taftcache.tangent.layers.norm import Norm
from taftcache.tangent.layers.residual import Pool, Residual

TOLERANCE = 1e-12  # relative, float64
D, HEADS, TOKENS = 12, 3, 7


class Scaled(nn.Module):
    """A norm, a linear map and a LayerScale, which one layer takes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.ls = LayerNorm(D), nn.Linear(D, 8), LayerScale(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.ls(self.fc(self.norm(x)))


class Skip(nn.Module):
    """A residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = RmsNorm(D), nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(self.norm(x))


class Mean(nn.Module):
    """Average pooling without prefix tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 2:].mean(1)


class Turned(nn.Module):
    """EVA's attention with a rotary embedding."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.attn = EvaAttention(D, HEADS, qkv_bias=False, scale_norm=False, rotate_half=half)
        self.register_buffer("table", torch.randn(TOKENS - 1, 2 * D // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x, rope=self.table)


def lin(at: str, *, bias: bool = True, **folded: str) -> Linear:
    return Linear(weights=(f"{at}.weight",), biases=(f"{at}.bias",) if bias else (), **folded)


ATTENTION = (lin("qkv"), Attend(heads=HEADS), lin("proj"))
NORMED = Attend(heads=HEADS, q_norm=Norm(eps=1e-6, weight="q_norm.weight", bias="q_norm.bias"),
                k_norm=Norm(eps=1e-6, weight="k_norm.weight", bias="k_norm.bias"))  # fmt: skip
NORMED_RMS = Attend(heads=HEADS, q_norm=Norm(eps=1e-6, kind="rms", weight="q_norm.weight"),
                    k_norm=Norm(eps=1e-6, kind="rms", weight="k_norm.weight"))  # fmt: skip


def turned(half: bool) -> tuple[Any, ...]:
    core = Attend(heads=HEADS, rotation=Rotation(table="table", skip=1, half=half))
    return lin("attn.qkv", bias=False), core, lin("attn.proj")


LAYERS: dict[str, tuple[Any, tuple[Layer, ...]]] = {
    "linear": (lambda: nn.Linear(D, 8), (lin("x"),)),
    "linear-no-bias": (lambda: nn.Linear(D, 8, bias=False), (lin("x", bias=False),)),
    "layer-norm": (lambda: LayerNorm(D, eps=1e-2), (Norm(eps=1e-2, weight="x.weight", bias="x.bias"),)),
    "layer-norm-bare": (lambda: LayerNorm(D, affine=False), (Norm(eps=1e-6),)),
    "rms-norm": (lambda: RmsNorm(D, eps=1e-2), (Norm(eps=1e-2, kind="rms", weight="x.weight"),)),
    "norm-linear-scale": (
        Scaled,
        (Norm(eps=1e-6), lin("fc", gamma="norm.weight", beta="norm.bias", scale="ls.gamma")),
    ),
    "gelu": (nn.GELU, (Activation(kind="gelu"),)),
    "gelu-tanh": (lambda: nn.GELU(approximate="tanh"), (Activation(kind="gelu_tanh"),)),
    "silu": (nn.SiLU, (Activation(kind="silu"),)),
    "quick-gelu": (QuickGELU, (Activation(kind="quick_gelu"),)),
    "relu": (nn.ReLU, (Activation(kind="relu"),)),
    "sigmoid": (nn.Sigmoid, (Activation(kind="sigmoid"),)),
    "attention": (lambda: Attention(D, HEADS, qkv_bias=True), ATTENTION),
    "attention-no-bias": (lambda: Attention(D, HEADS), (lin("qkv", bias=False), *ATTENTION[1:])),
    "attention-qk-norm": (
        lambda: Attention(D, HEADS, qkv_bias=True, qk_norm=True, norm_layer=LayerNorm),
        (lin("qkv"), NORMED, lin("proj")),
    ),
    "attention-qk-rms": (
        lambda: Attention(D, HEADS, qkv_bias=True, qk_norm=True, norm_layer=RmsNorm),
        (lin("qkv"), NORMED_RMS, lin("proj")),
    ),
    "attention-inner-norm": (
        lambda: Attention(D, HEADS, qkv_bias=True, scale_norm=True, norm_layer=LayerNorm),
        (*ATTENTION[:2], Norm(eps=1e-6), lin("proj", gamma="norm.weight", beta="norm.bias")),
    ),
    "attention-rope": (lambda: Turned(False), turned(False)),
    "attention-rope-half": (lambda: Turned(True), turned(True)),
    "mlp": (lambda: Mlp(D, 20), (lin("fc1"), Activation(kind="gelu"), lin("fc2"))),
    "glu": (lambda: GluMlp(D, 20), (lin("fc1"), Gate(kind="sigmoid", last=True), lin("fc2"))),
    "swiglu-packed": (lambda: SwiGLUPacked(D, 20), (lin("fc1"), Gate(kind="silu"), lin("fc2"))),
    "swiglu": (
        lambda: SwiGLU(D, 20),
        (
            Linear(weights=("fc1_g.weight", "fc1_x.weight"), biases=("fc1_g.bias", "fc1_x.bias")),
            Gate(kind="silu"),
            lin("fc2"),
        ),
    ),
    "residual": (
        Skip,
        (Residual(layers=(Norm(eps=1e-6, kind="rms"), lin("fc", bias=False, gamma="norm.weight"))),),
    ),
    "average": (Mean, (Pool(kind="avg", skip=2),)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def prepare(name: str) -> tuple[Any, tuple[Layer, ...], dict[str, Tensor], dict[str, Tensor], Tensor, Any]:
    """Module, layers, parameters, all tensors, input, and the module as a function of parameters and input."""
    torch.manual_seed(0)
    make, layers = LAYERS[name]
    module = make().double().eval()
    for part in module.modules():
        if isinstance(getattr(part, "fused_attn", None), bool):
            part.fused_attn = False
    alone = layers[0].names and layers[0].names[0].startswith("x.")
    named = {f"x.{n}" if alone else n: p.detach() + 0.5 * torch.randn_like(p) for n, p in module.named_parameters()}
    tensors = named | {n: b for n, b in module.named_buffers() if n == "table"}

    def call(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, {n.removeprefix("x."): t for n, t in parameters.items()}, (x,))

    return module, layers, named, tensors, torch.randn(2, TOKENS, D, dtype=torch.float64), call


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm().clamp_min(1e-300)).item()


@every_layer
def test_value_and_tangent(name):
    _, layers, named, w, x, call = prepare(name)
    dx, dw = torch.randn_like(x), {n: torch.randn_like(t) for n, t in named.items()}
    before = dx.clone()
    y, kept = chain_value(layers, w, x)
    zero = {n: torch.zeros_like(t) for n, t in named.items()}
    for moved, change, both in (((dw, dx), dw, dx), ((zero, dx), {}, dx), ((dw, 0 * dx), dw, None)):
        oracle, tangent = jvp(call, (named, x), moved)
        assert relative(y, oracle) < TOLERANCE
        mine = chain_tangent(layers, w, kept, both, change)
        assert relative(torch.zeros_like(y) if mine is None else mine, tangent) < TOLERANCE
    assert torch.equal(dx, before)
    assert chain_tangent(layers, w, kept, None, {}) is None


@pytest.mark.law(
    "Closed-form layers are those of `torch.func`, one by one and whole tails of any "
    "architecture; a frozen parameter costs nothing"
)
@every_layer
def test_adjoint(name):
    _, layers, named, w, x, call = prepare(name)
    y, kept = chain_value(layers, w, x)
    g = torch.randn_like(y)
    before = g.clone()
    _, back = vjp(call, named, x)
    gw, gx = back(g)
    out = {n: torch.zeros_like(t) for n, t in named.items()}
    mine = chain_adjoint(layers, w, kept, g, Sum(out), need_input=True)
    assert mine is not None
    assert relative(mine, gx) < TOLERANCE
    assert torch.equal(g, before)
    scale = max([t.norm() for t in gw.values()], default=0)
    for n, expected in gw.items():
        assert (out[n] - expected).norm() <= TOLERANCE * scale, n
        alone = {n: torch.ones_like(expected)}  # added to what is there
        assert chain_adjoint(layers, w, kept, g, Sum(alone), need_input=False) is None
        assert (alone[n] - 1 - expected).norm() <= TOLERANCE * (1 + scale), n


def test_attention_of_the_first_token_alone():
    """Its output is row 0 of the whole one; nothing else asks."""
    x = torch.randn(2, TOKENS, 3 * D, dtype=torch.float64)
    w = {"table": torch.randn(TOKENS - 1, 2 * D // HEADS, dtype=torch.float64)}
    for rotation in (None, Rotation(table="table", skip=1)):
        whole, first = (Attend(heads=HEADS, rotation=rotation, first=first) for first in (False, True))
        (y, kept), (row, kept_row) = whole.value(w, x), first.value(w, x)
        assert relative(row, y[:, :1]) < TOLERANCE
        dx = torch.randn_like(x)
        a, b = (part.tangent(w, saved, dx, {}) for part, saved in ((whole, kept), (first, kept_row)))
        assert relative(b, a[:, :1]) < TOLERANCE
        g = torch.zeros_like(y)
        g[:, 0] = 1
        a, b = (
            part.adjoint(w, saved, grad, Sum({}), True)
            for part, saved, grad in ((whole, kept, g), (first, kept_row, g[:, :1]))
        )
        assert relative(b, a) < TOLERANCE


def test_rotation_is_the_models_own():
    x = torch.randn(2, HEADS, TOKENS, 4, dtype=torch.float64)
    table = torch.randn(TOKENS, 8, dtype=torch.float64)
    for half in (False, True):
        turned = Rotation(table="table", half=half).turn({"table": table}, x)
        assert relative(turned, apply_rot_embed_cat(x, table, half=half)) < TOLERANCE


def test_slopes_at_zero():
    """The release's GELU(x)/(x + 1e-8) is wrong there."""
    zero = torch.zeros(1, dtype=torch.float64)
    gradients = {"gelu": 0.5, "gelu_tanh": 0.5, "silu": 0.5, "quick_gelu": 0.5, "relu": 0.0, "sigmoid": 0.25}
    assert {kind: derivative(kind, zero).item() for kind in gradients} == gradients  # type: ignore[arg-type]
