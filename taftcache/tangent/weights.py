"""The tail's tensors, named by the letters of the equations, whatever vector they are views of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from taftcache.tangent.class_row.config import ClassRow

# A Tensor, or None. Which entries are None follows from the model and from what is trained. The code that reads an
# entry has checked that, but a type checker cannot follow it.
Entry = Any


class TailWeights(NamedTuple):
    """The last block, final norm and head; None where the model has none or the parameter is frozen.

    H heads of width e = d/H. Shapes: Wq, Wk, Wv [H,e,d]; bq, bv [H,e]; Wo [d,d]; W1 [m,d]; W2 [d,m];
    Wh [K,d]; everything else is a vector. The key bias is left out: the softmax cancels it.
    """

    token: Entry
    gamma1: Entry
    beta1: Entry
    Wq: Entry
    Wk: Entry
    Wv: Entry
    bq: Entry
    bv: Entry
    Wo: Entry
    bo: Entry
    ls1: Entry
    gamma2: Entry
    beta2: Entry
    W1: Entry
    b1: Entry
    W2: Entry
    b2: Entry
    ls2: Entry
    gamma: Entry
    beta: Entry
    Wh: Entry
    bh: Entry


def tail_weights(config: ClassRow, named: Mapping[str, Tensor]) -> TailWeights:
    """View ``named`` (timm's names; any may be absent) by the letters of the equations."""
    p, heads, d = config.prefix, config.heads, config.width
    qkv, bias = named.get(f"{p}.attn.qkv.weight"), named.get(f"{p}.attn.qkv.bias")
    q, k, v = (None,) * 3 if qkv is None else qkv.view(3, heads, d // heads, d)
    bq, _, bv = (None,) * 3 if bias is None else bias.view(3, heads, d // heads)
    if (alone := named.get(f"{p}.attn.v.weight")) is not None:  # the value part, trained without the rest
        v = alone.view(heads, d // heads, d)
    if (alone := named.get(f"{p}.attn.v.bias")) is not None:
        bv = alone.view(heads, d // heads)
    token = named.get(f"{p}.cls_token")
    return TailWeights(
        token=None if token is None else token.view(d),
        gamma1=named.get(f"{p}.norm1.weight"),
        beta1=named.get(f"{p}.norm1.bias"),
        Wq=q,
        Wk=k,
        Wv=v,
        bq=bq,
        bv=bv,
        Wo=named.get(f"{p}.attn.proj.weight"),
        bo=named.get(f"{p}.attn.proj.bias"),
        ls1=named.get(f"{p}.ls1.gamma"),
        gamma2=named.get(f"{p}.norm2.weight"),
        beta2=named.get(f"{p}.norm2.bias"),
        W1=named.get(f"{p}.mlp.fc1.weight"),
        b1=named.get(f"{p}.mlp.fc1.bias"),
        W2=named.get(f"{p}.mlp.fc2.weight"),
        b2=named.get(f"{p}.mlp.fc2.bias"),
        ls2=named.get(f"{p}.ls2.gamma"),
        gamma=named.get("norm.weight"),
        beta=named.get("norm.bias"),
        Wh=named.get("head.weight"),
        bh=named.get("head.bias"),
    )
