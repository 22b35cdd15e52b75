"""A block made ready for many products: what the tokens are read for is computed once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from taftcache.tangent.class_row.block import BlockState, cotangents, covariance_adjoint, pieces, ubar_cotangent
from taftcache.tangent.weights import TailWeights


def folded(w: TailWeights, s: BlockState, into: Literal["logits", "o", ""]) -> BlockState:
    """``s`` without its tokens, for many products: tokens are read only for the effect of c, which is linear.

    That holds if no token is trained. Both products then read what replaces the tokens once, where they would read the
    tokens twice.

    into: "logits" costs K adjoints down to the heads' means and leaves K·H numbers in place of t; "o" costs a product
        of the tokens with W_v and one with the result, and leaves d numbers in place of t; "" is for when no trained
        parameter moves c.
    """
    f_by_c = _logits_by_c(w, s) if into == "logits" else None
    o_by_c = _o_by_c(w, s) if into == "o" else None
    return s._replace(u=s.u[:, :1].clone(), r=s.r[:, :1].clone(), phi=None, f_by_c=f_by_c, o_by_c=o_by_c)


def _logits_by_c(w: TailWeights, s: BlockState) -> Tensor:
    """∂f/∂c [n,K,H·d]."""
    (n, H, d), K = s.ubar.shape, s.logits.shape[1]
    by_ubar = s.ubar.new_empty(n, K, H, d)
    values = w._replace(token=None, gamma1=None, beta1=None, Wq=None, Wk=None, bq=None)
    for k in range(K):
        unit = torch.zeros_like(s.logits)
        unit[:, k] = 1
        by_ubar[:, k] = ubar_cotangent(w, cotangents(w, s, unit, values).o)
    return covariance_adjoint(s, by_ubar.view(n, K * H, d))[0].view(n, K, H * d)


def _o_by_c(w: TailWeights, s: BlockState) -> Tensor:
    """∂o_h/∂c_h [n,H,e,d]: Σ_j φ_hj (v_j − Σ_i φ_hi v_i) ⊗ u_j with v_j = W_v,h γ₁⊙u_j."""
    H = len(w.Wv)
    out = torch.empty(len(s.u), *w.Wv.shape, dtype=s.u.dtype, device=s.u.device)
    values = (w.Wv * w.gamma1).mT
    for piece in pieces(s.u, s.u.dtype):
        u, phi = s.u[piece], s.phi[piece]
        for h in range(H):
            v = torch.matmul(u, values[h])
            v.sub_(torch.bmm(phi[:, h : h + 1], v)).mul_(phi[:, h, :, None])
            torch.bmm(v.mT, u, out=out[piece, h])
    return out
