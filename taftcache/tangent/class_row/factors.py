"""The rows' gradients of a class row in factored form: rank one per matrix and head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from taftcache.tangent.class_row.block import BlockState, Cotangents, gain
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.factors import Direct, RankOne
from taftcache.tangent.parameters import Layout
from taftcache.tangent.weights import Entry, TailWeights


def row_gradients(
    config: ClassRow, layout: Layout, w: TailWeights, s: BlockState, g: Cotangents
) -> tuple[list[RankOne], list[Direct]]:
    """All of J's rows in factored form, for the cotangents ``g`` of one direction per row."""
    p, d = config.prefix, config.width
    where = layout.slices
    matrices: list[RankOne] = []
    small: list[Direct] = []

    def add(name: str, out: Entry, into: Tensor) -> None:
        bias = where.get(f"{name}.bias")
        if f"{name}.weight" in layout:
            matrices.append(RankOne(where[f"{name}.weight"], bias, out[:, None], into[:, None], name == "head"))
        elif bias is not None:
            small.append(Direct(bias, out))

    add("head", g.logits, s.feature)
    add(f"{p}.mlp.fc2", g.branch2, s.g)
    add(f"{p}.mlp.fc1", g.z, torch.addcmul(w.beta2, s.u2, w.gamma2))
    add(f"{p}.attn.proj", g.branch1, s.o)
    xbar: Entry = None if s.ubar is None else torch.addcmul(w.beta1, s.ubar, w.gamma1)
    qkv, bias = f"{p}.attn.qkv.weight", f"{p}.attn.qkv.bias"
    value, value_bias = f"{p}.attn.v.weight", f"{p}.attn.v.bias"
    if qkv in layout:
        weights = [_third(where[qkv], k) for k in range(3)]
        biases = [_third(where[bias], k) if bias in layout else None for k in range(3)]
        q = g.q.transpose(0, 1).reshape(-1, 1, d)
        matrices.append(RankOne(weights[0], biases[0], q, s.xhat[:, None]))
        matrices.append(RankOne(weights[1], None, s.q.transpose(0, 1), g.c * gain(w, w.gamma1), follows="into"))
        matrices.append(RankOne(weights[2], biases[2], g.o.transpose(0, 1), xbar))
    elif bias in layout:
        small.append(Direct(_third(where[bias], 0), g.q.transpose(0, 1).reshape(-1, d)))
        small.append(Direct(_third(where[bias], 2), g.o.transpose(0, 1).reshape(-1, d)))
    if value in layout and qkv not in layout:
        matrices.append(
            RankOne(where[value], where.get(value_bias), g.o.transpose(0, 1), torch.addcmul(w.beta1, s.ubar, w.gamma1))
        )
    elif value_bias in layout and bias not in layout:
        small.append(Direct(where[value_bias], g.o.transpose(0, 1).reshape(-1, d)))
    rules: dict[str, Callable[[], Tensor]] = {
        f"{p}.cls_token": lambda: g.x0,
        f"{p}.norm1.weight": lambda: _of_gamma1(w, s, g),
        f"{p}.norm1.bias": lambda: g.o.transpose(0, 1).flatten(1) @ w.Wv.flatten(0, 1) + g.xhat,
        f"{p}.ls1.gamma": lambda: g.h * s.branch1,
        f"{p}.norm2.weight": lambda: g.x2 * s.u2,
        f"{p}.norm2.bias": lambda: g.x2,
        f"{p}.ls2.gamma": lambda: g.y * s.branch2,
        "norm.weight": lambda: g.feature * s.uf,
        "norm.bias": lambda: g.feature,
    }
    return matrices, small + [Direct(where[name], rule()) for name, rule in rules.items() if name in layout]


def _of_gamma1(w: TailWeights, s: BlockState, g: Cotangents) -> Tensor:
    """The gradients of γ₁ [n,d], which enters the values, the keys and the query."""
    values = torch.bmm(g.o, w.Wv).transpose(0, 1) * s.ubar
    keys = torch.bmm(s.q, w.Wk).transpose(0, 1) * g.c
    found: Tensor = (values + gain(w, keys)).sum(1) + g.xhat * s.u[:, 0]
    return found


def _third(whole: slice, k: int) -> slice:
    size = (whole.stop - whole.start) // 3
    return slice(whole.start + k * size, whole.start + (k + 1) * size)
