"""A block made ready for many products gives the products that it gave before."""

from __future__ import annotations

import msgspec
import pytest
import torch

from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.tangent.base import Base
from taftcache.tangent.class_row import tail as class_row
from taftcache.tangent.class_row.tail import ClassRowTail
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout
from tests.solve.problems import K, N, case, rows
from tests.tangent.vits import SPECS, VITS

EVERYTHING, HEAD = "*", "head.*"
TRAINED = {
    "everything but the token": [EVERYTHING],
    "attention and the norm before it": ["*.norm1.*", "*.attn.*"],
    "the norm before attention alone": ["*.norm1.weight"],
    "biases of attention": ["*.qkv.bias"],
    "values and what follows": ["*.attn.v.*", "*.mlp.*", HEAD],
    "what follows attention": ["*.attn.proj.*", "*.mlp.*", "norm.*", HEAD],
}
THERE = [
    (vit, trained)
    for vit, options in VITS.items()
    for trained in TRAINED
    if options.get("qkv_bias", True) or trained != "biases of attention"
]


@pytest.fixture(params=["logits", "o"])
def into(request, monkeypatch):
    monkeypatch.setattr(class_row, "FEW", {"logits": K * 3.0, "o": 0.0}[request.param])
    return request.param


def layout_of(base: Base, globs: list[str]) -> Layout:
    names = [name for name in base.layout if not name.endswith("cls_token")]
    return base.named(names) if globs == [EVERYTHING] else base.trained(globs)


def made(vit: str, spec: str, globs: list[str], repeated: bool) -> TangentOperator:
    base = case(vit, spec).base
    layout = layout_of(base, globs)
    return TangentOperator(base, rows(vit, spec), trained=layout, dtype=torch.float64, repeated=repeated)


@pytest.mark.law("J and Jᵀ are those of `torch.func` on the real model, and of finite differences")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("vit", "trained"), THERE)
def test_the_products_are_the_same(into, vit, spec, trained):
    plain, ready = (made(vit, spec, TRAINED[trained], repeated) for repeated in (False, True))
    assert ready.ready is not None
    v = torch.randn(plain.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, got = (torch.cat(list(operator.matvec(v))) for operator in (plain, ready))
    assert torch.allclose(got, expected, rtol=1e-11, atol=1e-11 * expected.abs().max().item())
    expected, got = (Problem(operator, RSL(kappa=5.0), 1e-2).hessian(v) for operator in (plain, ready))
    assert torch.allclose(got, expected, rtol=1e-11, atol=1e-11 * expected.abs().max().item())


@pytest.mark.parametrize("trained", TRAINED)
def test_the_rows_gradients_are_the_same(into, trained):
    plain, ready = (made("layerscale", "keep", TRAINED[trained], repeated) for repeated in (False, True))
    r = torch.randn(N, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ((before, _),), ((after, _),) = plain.blocks(), ready.blocks()
    for expected, got in zip(plain.factors(before, r), ready.factors(after, r), strict=True):
        for one, other in zip(expected, got, strict=True):
            for a, b in zip(one, other, strict=True):
                assert torch.allclose(a, b, rtol=1e-10, atol=1e-12) if isinstance(a, torch.Tensor) else a == b
    some = torch.tensor([3, 1])
    picked = ready.tail.select(after, some)
    v = ready.direction(torch.ones(ready.layout.size, dtype=torch.float64))
    assert torch.allclose(ready.tangent(picked, v), ready.tangent(after, v)[some], rtol=1e-12, atol=1e-13)


def test_what_is_ready_holds_no_tokens(into):
    plain, ready = (made("plain", "keep", [EVERYTHING], repeated) for repeated in (False, True))
    ((before, _),), ((after, _),) = plain.blocks(), ready.blocks()
    assert (after.f_by_c is None, after.o_by_c is None) == (into == "o", into == "logits")
    t, d = before.u.shape[1:]
    assert any(tensor.shape == (N, t, d) for tensor in plain.tail.tensors(before))
    for tensor in ready.tail.tensors(after):
        assert t not in tensor.shape
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 8  # nothing larger is kept alive behind it


def tail_of(base: Base, **changes: object) -> ClassRowTail:
    return ClassRowTail(msgspec.structs.replace(base.config, **changes))


def test_what_keeps_the_tokens():
    base = case("plain", "class-token").base
    layout = layout_of(base, [EVERYTHING])
    width, heads = base.config.width, 3
    assert base.tail.ready(layout, N) is not None
    assert base.tail.ready(base.layout, N) is None  # the class token is among these
    wide = (width - 1, width)  # fewer tokens than their width
    most = int(class_row.FEW * wide[0] / heads)
    assert tail_of(base, shape=wide, classes=most).ready(layout, N) is not None
    many = tail_of(base, shape=wide, classes=most + 1)
    assert many.ready(layout, N) is None
    assert many.ready(layout_of(base, [HEAD]), N) is not None  # nothing reads the tokens
    for classes, instead in ((1, heads), (100, width)):
        rows = class_row.READY_BYTES // (4 * width * (instead + heads + 17))
        tail = tail_of(base, classes=classes)
        assert tail.ready(layout, rows) is not None
        assert tail.ready(layout, rows + 1) is None
