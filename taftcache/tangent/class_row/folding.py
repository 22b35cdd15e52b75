"""A block made ready for many products: what the tokens are read for is worked out once."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from taftcache.tangent.class_row.block import BlockState, cotangents, covariance_adjoint, pieces, ubar_cotangent
from taftcache.tangent.weights import TailWeights


def folded(w: TailWeights, s: BlockState, into: Literal["logits", "o", ""]) -> BlockState:
    """``s`` for many products, from which the tokens are gone: they are read for what c does, which is linear.

    That holds where no token is trained. Both products then read once what stands in the tokens' place, and the tokens
    twice.

    into: the "logits", for K adjoints down to the heads' means and K·H numbers where there were t; "o", for a product
        of the tokens with W_v and one with that, and d numbers where there were t; "" where nothing trained moves c.
    """
    f_by_c = _logits_by_c(w, s) if into == "logits" else None
    o_by_c = _o_by_c(w, s) if into == "o" else None
    return s._replace(u=s.u[:, :1].clone(), r=s.r[:, :1].clone(), phi=None, f_by_c=f_by_c, o_by_c=o_by_c)


def _logits_by_c(w: TailWeights, s: BlockState) -> Tensor:
    """[n,K,H·d]."""
    (n, H, d), K = s.ubar.shape, s.logits.shape[1]
    by_ubar = s.ubar.new_empty(n, K, H, d)
    values = w._replace(token=None, gamma1=None, beta1=None, Wq=None, Wk=None, bq=None)
    for k in range(K):
        unit = torch.zeros_like(s.logits)
        unit[:, k] = 1
        by_ubar[:, k] = ubar_cotangent(w, cotangents(w, s, unit, values).o)
    return covariance_adjoint(s, by_ubar.view(n, K * H, d))[0].view(n, K, H * d)


def _o_by_c(w: TailWeights, s: BlockState) -> Tensor:
    """[n,H,e,d]: Σ_j φ_hj (v_j − Σ_i φ_hi v_i) ⊗ u_j with v_j = W_v,h γ₁⊙u_j."""
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
