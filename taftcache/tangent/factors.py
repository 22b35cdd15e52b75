"""Each row's gradient as what it is: rank one per matrix and head, and a few vectors.

For a row's cotangents g and state s, the gradient of a matrix (or of one head's part of it) is
``out ⊗ into``. Second moments, kernels and norms of per-row gradients follow from the factors
without any gradient being formed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from taftcache.tangent.class_row import Cotangents, State
from taftcache.tangent.config import ClassRow
from taftcache.tangent.parameters import Layout
from taftcache.tangent.weights import Entry, TailWeights


class RankOne(NamedTuple):
    """A matrix's per-row gradient, out_h ⊗ into_h in the rows that head h owns (one head: the whole matrix)."""

    weight: slice  # of the vector [P]; [H·o, i] row-major
    bias: slice | None  # its gradient is out itself
    out: Tensor  # [n,H,o]
    into: Tensor  # [n,H,i]
    of_head: bool = False  # the classifier's own: out is the cotangent that came in
    follows: Literal["out", "into"] = "out"  # the factor that depends on the cotangents; the other is the state's alone


class Direct(NamedTuple):
    """A small parameter's per-row gradient itself."""

    where: slice
    rows: Tensor  # [n,p]


def row_gradients(
    config: ClassRow, layout: Layout, w: TailWeights, s: State, g: Cotangents
) -> tuple[list[RankOne], list[Direct]]:
    """All of J's rows in factored form, for the cotangents ``g`` of one direction per row."""
    p, d = config.prefix, config.width
    where = layout.slices
    matrices: list[RankOne] = []

    def add(name: str, out: Entry, into: Tensor) -> None:
        if f"{name}.weight" in layout and out is not None:
            bias = where.get(f"{name}.bias")
            matrices.append(RankOne(where[f"{name}.weight"], bias, out[:, None], into[:, None], name == "head"))

    add("head", g.logits, s.feature)
    add(f"{p}.mlp.fc2", g.branch2, s.g)
    add(f"{p}.mlp.fc1", g.z, torch.addcmul(w.beta2, s.u2, w.gamma2))
    add(f"{p}.attn.proj", g.branch1, s.o)
    qkv, bias = f"{p}.attn.qkv.weight", f"{p}.attn.qkv.bias"
    if qkv in layout:
        weights = [_third(where[qkv], k) for k in range(3)]
        biases = [_third(where[bias], k) if bias in layout else None for k in range(3)]
        q = g.q.transpose(0, 1).reshape(-1, 1, d)
        matrices.append(RankOne(weights[0], biases[0], q, s.xhat[:, None]))
        matrices.append(RankOne(weights[1], None, s.q.transpose(0, 1), g.k.transpose(0, 1), follows="into"))
        matrices.append(RankOne(weights[2], biases[2], g.o.transpose(0, 1), s.xbar))
    elif f"{p}.attn.v.weight" in layout:
        out = g.o.transpose(0, 1)
        matrices.append(RankOne(where[f"{p}.attn.v.weight"], where.get(f"{p}.attn.v.bias"), out, s.xbar))
    rules = {
        f"{p}.cls_token": lambda: g.x0,
        f"{p}.norm1.weight": lambda: (g.xbar * s.ubar + g.c * s.a).sum(1) + g.xhat * s.u[:, 0],
        f"{p}.norm1.bias": lambda: g.xbar.sum(1) + g.xhat,
        f"{p}.ls1.gamma": lambda: g.h * s.branch1,
        f"{p}.norm2.weight": lambda: g.x2 * s.u2,
        f"{p}.norm2.bias": lambda: g.x2,
        f"{p}.ls2.gamma": lambda: g.y * s.branch2,
        "norm.weight": lambda: g.feature * s.uf,
        "norm.bias": lambda: g.feature,
    }
    return matrices, [Direct(where[name], rule()) for name, rule in rules.items() if name in layout]


def _third(whole: slice, k: int) -> slice:
    size = (whole.stop - whole.start) // 3
    return slice(whole.start + k * size, whole.start + (k + 1) * size)
