"""The class-row tangent: J and Jᵀ of one token-pooled block, final norm and head, by hand.

Only the class row of the last block reaches the head, so keys and values are never formed. With u_j the tokens
normalised without affine, head h's attention logits are s(γ₁⊙a_h)·u_j with a_h = W_k,hᵀ q_h, and its value input is
ū_h = Σ_j φ_hj u_j. Their tangent needs the tokens in only one place, the covariance Cov_φh(u) c_h. That map is
symmetric, so the adjoint reads the tokens through the same operator. A sample costs 4Htd operations for the tokens and
about 24d² for the rest, each way.
γ₁ and β₁ multiply the heads' small matrices, never [n,H,d] numbers: those passes over memory were a tenth of a product.

Everything here is a function of tensors. Rows n, tokens t, width d, heads H of width e, classes K.
The formulas are those of TAFT eq. 6-12, corrected for the 1/√e of attention, LayerNorm's eps and GELU's density.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.config import Rows
from taftcache.tangent.rules import (
    affine_tangent,
    gelu,
    gelu_derivative,
    linear_adjoint,
    linear_tangent,
    normalise,
    normalise_tangent,
    plus,
    scaled,
)
from taftcache.tangent.weights import Entry, TailWeights

# On a CPU, token products run over pieces of about this many bytes, so that the second read in a covariance product
# finds the tokens in a shared cache; smaller pieces starve the threads. A GPU takes a whole block: a piece would be
# some microseconds of work, less than its launches take.
PIECE_BYTES = 8 << 20


class BlockState(NamedTuple):
    """What one pass over a block of rows needs of the base point; everything but ``u`` is O(H(t + d)) per row.

    For reduced rows, the entries that come before them are None. ``folding.folded`` keeps only the class row of u and
    r, and has ``f_by_c`` or ``o_by_c`` in place of the other tokens and of φ.
    """

    u: Entry  # [n,t,d] normalised tokens, no affine
    r: Entry  # [n,t,1] 1/std of the tokens
    xhat: Entry  # [n,d] x̂₀ = γ₁⊙u₀ + β₁
    q: Entry  # [H,n,e] queries of the class row
    phi: Entry  # [n,H,t] attention of the class row
    ubar: Entry  # [n,H,d] Σ_j φ_hj u_j
    o: Entry  # [n,d] attention output before the projection
    branch1: Entry  # [n,d] projection's output before LayerScale
    u2: Tensor  # [n,d]
    r2: Tensor  # [n,1]
    gelu_derivative: Tensor  # [n,m] GELU'(z)
    g: Tensor  # [n,m] GELU(z)
    branch2: Tensor  # [n,d] MLP's output before LayerScale
    uf: Tensor  # [n,d]
    rf: Tensor  # [n,1]
    feature: Tensor  # [n,d] the head's input, γ⊙u_f + β
    logits: Tensor  # [n,K] f_w(x)
    f_by_c: Entry = None  # [n,K,H·d] the logits' derivative by c, the tangent of γ₁⊙a_h/√e
    o_by_c: Entry = None  # [n,H,e,d] that of o_h by c_h, W_v,h γ₁ Cov_φh(u)


def value(config: ClassRow, w: TailWeights, rows: Tensor, kind: Rows = "tokens") -> BlockState:
    """The base model on ``rows``, keeping what J and Jᵀ need.

    rows: depending on ``kind``, the raw input of the block [n,t,d]; x₀ and the heads' attended means ū_h [n,1+H,d]; or
    the class row after attention [n,1,d]. Smaller rows are exact for the parameters that come after them. They may have
    any float dtype; results have that of the weights.
    """
    n = rows.shape[0]
    u = r = xhat = q = phi = ubar = o = branch1 = None
    if kind == "tokens" and w.token is not None:  # CLS = T: the shared, trained token is row 0 of every sample
        rows = torch.cat([w.token.expand(n, 1, -1), rows[:, 1:].to(w.token)], 1)
    h = rows[:, 0].to(w.gamma)
    if kind == "tokens":
        xhat = torch.addcmul(w.beta1, normalise(h, config.eps1)[0], w.gamma1)
        q = torch.matmul(xhat, w.Wq.transpose(1, 2))
        if w.bq is not None:
            q = q + w.bq[:, None]
        u, r, phi, ubar = _attended(rows, _keys(w, q).contiguous(), config.eps1)
    elif kind == "attended":
        ubar = rows[:, 1:].to(w.gamma).contiguous()
    if ubar is not None:
        xbar = torch.addcmul(w.beta1, ubar, w.gamma1)
        o = torch.bmm(xbar.transpose(0, 1), w.Wv.transpose(1, 2))
        if w.bv is not None:
            o = o + w.bv[:, None]
        o = _rows(o)
        branch1 = torch.addmm(w.bo, o, w.Wo.T)
        h = h + (branch1 if w.ls1 is None else w.ls1 * branch1)
    u2, r2 = normalise(h, config.eps2)
    z = torch.addmm(w.b1, torch.addcmul(w.beta2, u2, w.gamma2), w.W1.T)
    g = gelu(z, config.gelu)
    branch2 = torch.addmm(w.b2, g, w.W2.T)
    uf, rf = normalise(h + (branch2 if w.ls2 is None else w.ls2 * branch2), config.eps_final)
    feature = torch.addcmul(w.beta, uf, w.gamma)
    logits = torch.addmm(w.bh, feature, w.Wh.T)
    rise = gelu_derivative(z, config.gelu)
    return BlockState(u, r, xhat, q, phi, ubar, o, branch1, u2, r2, rise, g, branch2, uf, rf, feature, logits)


def reduce(config: ClassRow, w: TailWeights, tokens: Tensor, kind: Rows) -> Tensor:
    """What ``value`` takes as rows of ``kind``, made from the tokens [n,t,d]."""
    s = value(config, w, tokens)
    if kind == "attended":
        return torch.cat([tokens[:, :1], s.ubar], 1)
    if kind == "residual":
        row: Tensor = (tokens[:, 0] + (s.branch1 if w.ls1 is None else w.ls1 * s.branch1))[:, None]
        return row
    return s.feature[:, None]


def tangent(w: TailWeights, s: BlockState, delta: TailWeights, dtokens: Tensor | None = None) -> Tensor:
    """J Δw: the logits' tangent [n,K] for the direction ``delta``; None entries are zero and cost nothing.

    dtokens: tangent [n,t,d] of the block's input, if a trained layer comes before it.
    """
    n = s.logits.shape[0]
    u0: Entry = None if s.u is None else s.u[:, 0]
    du = None if dtokens is None else normalise_tangent(dtokens, s.u, s.r)
    dx = None if delta.token is None else delta.token.expand(n, -1)
    du0 = None if dx is None else normalise_tangent(dx, u0, s.r[:, 0].contiguous())
    if dtokens is not None and du is not None:
        dx, du0 = dtokens[:, 0], du[:, 0]
    dxhat = affine_tangent(w.gamma1, u0, du0, delta.gamma1, delta.beta1)

    dq = None if dxhat is None else torch.matmul(dxhat, w.Wq.transpose(1, 2))
    if delta.Wq is not None:
        dq = plus(dq, torch.matmul(s.xhat, delta.Wq.transpose(1, 2)))
    if delta.bq is not None:
        dq = delta.bq[:, None].expand(-1, n, -1) if dq is None else dq + delta.bq[:, None]
    dkeys = None if delta.Wk is None else delta.Wk * gain(w, w.gamma1)
    if delta.gamma1 is not None:
        dkeys = plus(dkeys, w.Wk * gain(w, delta.gamma1))
    c = None if dq is None else torch.bmm(dq, _key_map(w))
    if dkeys is not None:
        c = torch.bmm(s.q, dkeys) if c is None else c.baddbmm_(s.q, dkeys)
    c = None if c is None else c.transpose(0, 1)

    dlogits = dubar = None
    if s.f_by_c is not None and c is not None:
        dlogits = torch.bmm(c.reshape(n, 1, -1), s.f_by_c.mT)[:, 0]
    elif s.phi is not None and (c is not None or du0 is not None):
        dubar = _covariance(s, c, None if du0 is None else _keys(w, s.q), du0 if du is None else du)
    do = None if s.ubar is None else _values_tangent(w, s.ubar, dubar, delta)
    if s.o_by_c is not None and c is not None:
        do = plus(do, torch.bmm(c.reshape(-1, 1, c.shape[2]), s.o_by_c.flatten(0, 1).mT).view(n, -1))
    if delta.bv is not None:
        bias = delta.bv.reshape(1, -1)
        do = bias.expand(n, -1) if do is None else do + bias

    dh = _branch_tangent(w.Wo, w.ls1, s.o, s.branch1, do, delta.Wo, delta.bo, delta.ls1)
    dh = plus(dx, dh)
    du2 = None if dh is None else normalise_tangent(dh, s.u2, s.r2)
    dx2 = affine_tangent(w.gamma2, s.u2, du2, delta.gamma2, delta.beta2)
    dz = linear_tangent(w.W1, torch.addcmul(w.beta2, s.u2, w.gamma2), dx2, delta.W1, delta.b1)
    dg = None if dz is None else s.gelu_derivative * dz
    dy = plus(dh, _branch_tangent(w.W2, w.ls2, s.g, s.branch2, dg, delta.W2, delta.b2, delta.ls2))
    duf = None if dy is None else normalise_tangent(dy, s.uf, s.rf)
    dfeature = affine_tangent(w.gamma, s.uf, duf, delta.gamma, delta.beta)
    dlogits = plus(dlogits, linear_tangent(w.Wh, s.feature, dfeature, delta.Wh, delta.bh))
    return torch.zeros_like(s.logits) if dlogits is None else dlogits


class Cotangents(NamedTuple):
    """Gradients at every point of one row where a parameter enters; None below the last trained one.

    Each parameter's gradient of one row is a product of one of these with a tensor of ``BlockState``
    (rank one per matrix and head), so sums, norms and second moments over rows all start here.
    """

    logits: Tensor  # [n,K]
    feature: Entry = None  # [n,d] at γ⊙u_f + β
    y: Entry = None  # [n,d] at the block's output
    branch2: Entry = None  # [n,d] at g W₂ᵀ + b₂
    z: Entry = None  # [n,m] at x̂₂ W₁ᵀ + b₁
    x2: Entry = None  # [n,d] at γ₂⊙u₂ + β₂
    h: Entry = None  # [n,d] after the attention branch
    branch1: Entry = None  # [n,d] at o W_oᵀ + b_o
    o: Entry = None  # [H,n,e] at W_v,h x̄_h + b_v,h
    c: Entry = None  # [n,H,d] at γ₁⊙a_h/√e
    q: Entry = None  # [H,n,e] at W_q,h x̂₀ + b_q,h
    xhat: Entry = None  # [n,d] at γ₁⊙u₀ + β₁
    x0: Entry = None  # [n,d] at the class token
    tokens: Entry = None  # [n,t,d] at the block's input


def adjoint(w: TailWeights, s: BlockState, r: Tensor, out: TailWeights) -> None:
    """Add Jᵀ r to ``out`` in place for r [n,K]; None entries of ``out`` are frozen and are not formed."""
    contract(w, s, cotangents(w, s, r, out), out)


def cotangents(w: TailWeights, s: BlockState, r: Tensor, trained: TailWeights, tokens: bool = False) -> Cotangents:
    """Back-propagate r [n,K] through the class row, no further than the deepest entry of ``trained``.

    tokens: go on to the gradient of the block's whole input, for trained layers before it.
    """
    H, e = w.Wq.shape[:2]
    if _frozen(trained[:-2]) and not tokens:
        return Cotangents(r)
    feature = r @ w.Wh
    if _frozen(trained[:-4]) and not tokens:
        return Cotangents(r, feature)
    y = normalise_tangent(feature * w.gamma, s.uf, s.rf)
    branch2 = scaled(w.ls2, y)
    z = (branch2 @ w.W2).mul_(s.gelu_derivative)
    x2 = z @ w.W1
    h = y + normalise_tangent(x2 * w.gamma2, s.u2, s.r2)
    branch1 = scaled(w.ls1, h)
    upper = Cotangents(r, feature, y, branch2, z, x2, h, branch1)
    if _frozen(trained[:8]) and not tokens:
        return upper
    o = (branch1 @ w.Wo).view(-1, H, e).transpose(0, 1)
    upper = upper._replace(o=o)
    before = (trained.token, trained.gamma1, trained.beta1, trained.Wq, trained.Wk, trained.bq)
    if _frozen(before) and not tokens:
        return upper
    shape = s.ubar.shape
    if s.f_by_c is not None:
        c = torch.bmm(r[:, None], s.f_by_c).view(shape)
    elif s.o_by_c is not None:
        c = torch.bmm(o.transpose(0, 1).reshape(-1, 1, e), s.o_by_c.flatten(0, 1)).view(shape)
    else:
        gubar = ubar_cotangent(w, o)
        c, gell = covariance_adjoint(s, gubar)
    q = torch.bmm(c.transpose(0, 1), _key_map(w).mT)
    xhat = _rows(q) @ w.Wq.reshape(H * e, -1)
    upper = upper._replace(c=c, q=q, xhat=xhat)
    if trained.token is None and not tokens:
        return upper
    a = _keys(w, s.q)
    if not tokens:
        u0 = (gell[:, :, :1] * a + s.phi[:, :, :1] * gubar).sum(1) + xhat * w.gamma1
        return upper._replace(x0=h + normalise_tangent(u0, s.u[:, 0], s.r[:, 0].contiguous()))
    # Each token acts twice: as a key, through its logit, and as a value.
    u = torch.bmm(torch.cat([gell, s.phi], 1).transpose(1, 2), torch.cat([a, gubar], 1))
    u[:, 0].addcmul_(xhat, w.gamma1)
    gtokens = normalise_tangent(u, s.u, s.r)
    gtokens[:, 0] += h
    return upper._replace(x0=gtokens[:, 0], tokens=gtokens)


def contract(w: TailWeights, s: BlockState, g: Cotangents, out: TailWeights) -> None:
    """Sum the rows' parameter gradients into ``out`` in place."""
    linear_adjoint(g.logits, s.feature, out.Wh, out.bh)
    _affine_adjoint(g.feature, s.uf, out.gamma, out.beta)
    _affine_adjoint(g.y, s.branch2, out.ls2, None)
    linear_adjoint(g.branch2, s.g, out.W2, out.b2)
    if out.W1 is not None or out.b1 is not None:
        linear_adjoint(g.z, torch.addcmul(w.beta2, s.u2, w.gamma2), out.W1, out.b1)
    _affine_adjoint(g.x2, s.u2, out.gamma2, out.beta2)
    _affine_adjoint(g.h, s.branch1, out.ls1, None)
    linear_adjoint(g.branch1, s.o, out.Wo, out.bo)
    if g.o is not None:
        _values_adjoint(w, s, g.o, out)
    if g.c is not None and (out.Wk is not None or out.gamma1 is not None):
        by_keys = torch.bmm(s.q.transpose(1, 2), g.c.transpose(0, 1))
        if out.Wk is not None:
            out.Wk.addcmul_(by_keys, gain(w, w.gamma1))
        if out.gamma1 is not None:
            out.gamma1.add_(gain(w, (by_keys * w.Wk).sum((0, 1))))
    if out.Wq is not None:
        out.Wq.view(-1, s.xhat.shape[1]).addmm_(_rows(g.q).T, s.xhat)
    if out.bq is not None:
        out.bq.add_(g.q.sum(1))
    if out.gamma1 is not None or out.beta1 is not None:
        _affine_adjoint(g.xhat, s.u[:, 0], out.gamma1, out.beta1)
    if out.token is not None:
        out.token.add_(g.x0.sum(0))


def _frozen(entries: Iterable[Tensor | None]) -> bool:
    return all(entry is None for entry in entries)


def _rows(per_head: Tensor) -> Tensor:
    """[H,n,e] to rows [n,H·e], heads side by side as timm's projection wants them."""
    return per_head.transpose(0, 1).reshape(per_head.shape[1], -1)


def pieces(tokens: Tensor, dtype: torch.dtype) -> list[slice]:
    """Row ranges of ``tokens`` [n,t,d] that fit a shared cache in ``dtype``."""
    if torch.compiler.is_exporting() or tokens.is_cuda:  # a program is traced for any number of rows
        return [slice(None)]
    rows = max(1, PIECE_BYTES // (tokens[0].numel() * dtype.itemsize))
    return [slice(k, k + rows) for k in range(0, len(tokens), rows)]


def _attended(tokens: Tensor, a: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """u, r, φ and ū_h of the tokens [n,t,d] in the precision of s γ₁⊙a_h = ``a`` [n,H,d].

    Each piece is converted on its own: writing a whole block of converted tokens to memory, and one of joined pieces,
    and reading them again took a sixth of a float64 pass.
    """

    def attended(piece: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        u, r = normalise(tokens[piece].to(a), eps)
        phi = torch.softmax(along(a[piece], u), -1)
        return u, r, phi, torch.bmm(phi, u)

    cuts = pieces(tokens, a.dtype)
    if len(cuts) == 1:
        return attended(cuts[0])
    (n, t, _), H = tokens.shape, a.shape[1]
    whole = a.new_empty(tokens.shape), a.new_empty(n, t, 1), a.new_empty(n, H, t), torch.empty_like(a)
    for piece in cuts:
        for into, part in zip(whole, attended(piece), strict=True):
            into[piece] = part
    return whole


def _covariance(s: BlockState, c: Tensor | None, a: Tensor | None, du: Tensor | None) -> Tensor:
    """Cov_φh(u) c_h [n,H,d], plus the effect of the tokens' own tangent through keys and values.

    a [n,H,d] is s γ₁⊙a_h; du is δu [n,t,d], or [n,d] if only row 0 moves.
    """
    out = torch.empty_like(s.ubar)
    for piece in pieces(s.u, s.u.dtype):
        u, phi = s.u[piece], s.phi[piece]
        if c is None:
            ell = torch.zeros_like(phi)
        else:
            ell = along(c[piece], u)
        moved = None
        if a is not None and du is not None:
            moved = du[piece] if du.ndim == 3 else du[piece, None]
            keys = along(a[piece], moved)
            ell[:, :, : keys.shape[2]] += keys
        ell -= (phi * ell).sum(-1, keepdim=True)
        out[piece].baddbmm_(ell.mul_(phi), u, beta=0)  # `bmm(out=…)` is traced for one number of rows before torch 2.12
        if moved is not None:
            out[piece].baddbmm_(phi[:, :, : moved.shape[1]], moved)
    return out


def covariance_adjoint(s: BlockState, gubar: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients at c and at the attention logits, for one at ū_h [n,H,d] or several [n,m·H,d]; a symmetric operator."""
    gc, gells = torch.empty_like(gubar), []
    for piece in pieces(s.u, s.u.dtype):
        u, phi = s.u[piece], s.phi[piece, None]
        part = along(gubar[piece], u)
        by_head = part.unflatten(1, (-1, phi.shape[2]))
        by_head -= (phi * by_head).sum(-1, keepdim=True)
        by_head *= phi
        gc[piece].baddbmm_(part, u, beta=0)
        gells.append(part)
    return gc, gells[0] if len(gells) == 1 else torch.cat(gells)


def along(rows: Tensor, tokens: Tensor) -> Tensor:
    """Inner products [n,h,t] of rows [n,h,d] with tokens [n,t,d], in the order that is faster on the device."""
    if tokens.is_cuda:  # on an H100 by a fifth, and what follows by a tenth
        return torch.bmm(tokens, rows.mT).mT
    return torch.bmm(rows, tokens.mT)


def gain(w: TailWeights, gamma1: Tensor) -> Tensor:
    """γ₁/√e [d], what stands between W_k,hᵀ q_h and the logits of attention over u."""
    return gamma1 / sqrt(w.Wq.shape[1])


def _key_map(w: TailWeights) -> Tensor:
    """[H,e,d], from queries to γ₁⊙a_h/√e."""
    return torch.mul(w.Wk, gain(w, w.gamma1))


def _keys(w: TailWeights, q: Tensor) -> Tensor:
    """γ₁⊙a_h/√e [n,H,d] of queries q [H,n,e]."""
    return torch.bmm(q, _key_map(w)).transpose(0, 1)


def _values_tangent(w: TailWeights, ubar: Tensor, dubar: Tensor | None, delta: TailWeights) -> Tensor | None:
    """Tangent [n,d] of the heads' values W_v,h (γ₁⊙ū_h + β₁), without that of b_v."""
    by_ubar = None if delta.Wv is None else delta.Wv * w.gamma1
    constant = None if delta.Wv is None else delta.Wv @ w.beta1
    if delta.gamma1 is not None:
        by_ubar = plus(by_ubar, w.Wv * delta.gamma1)
    if delta.beta1 is not None:
        constant = plus(constant, w.Wv @ delta.beta1)
    out = None if dubar is None else torch.bmm(dubar.transpose(0, 1), (w.Wv * w.gamma1).mT)
    if by_ubar is not None:
        there = ubar.transpose(0, 1)
        out = torch.bmm(there, by_ubar.mT) if out is None else out.baddbmm_(there, by_ubar.mT)
    if constant is not None:
        out = constant[:, None].expand(-1, len(ubar), -1) if out is None else out.add_(constant[:, None])
    return None if out is None else _rows(out)


def ubar_cotangent(w: TailWeights, o: Tensor) -> Tensor:
    """The gradient at ū_h [n,H,d] from that at the heads' outputs, ``o`` [H,n,e]."""
    return torch.bmm(o, w.Wv * w.gamma1).transpose(0, 1)


def _values_adjoint(w: TailWeights, s: BlockState, o: Tensor, out: TailWeights) -> None:
    """Add the gradients of W_v and b_v, and those of γ₁ and β₁ through the values."""
    total = o.sum(1)
    if out.bv is not None:
        out.bv.add_(total)
    if out.Wv is not None or out.gamma1 is not None:
        by_ubar = torch.bmm(o.transpose(1, 2), s.ubar.transpose(0, 1))
        if out.Wv is not None:
            out.Wv.addcmul_(by_ubar, w.gamma1).addcmul_(total[:, :, None], w.beta1)
        if out.gamma1 is not None:
            out.gamma1.add_((by_ubar * w.Wv).sum((0, 1)))
    if out.beta1 is not None:
        out.beta1.add_(total.reshape(-1) @ w.Wv.flatten(0, 1))


def _branch_tangent(
    W: Tensor,
    ls: Tensor | None,
    x: Tensor,
    out: Tensor,
    dx: Tensor | None,
    dW: Tensor | None,
    db: Tensor | None,
    dls: Tensor | None,
) -> Tensor | None:
    """Tangent of ls⊙(x Wᵀ + b), the end of both residual branches."""
    total = scaled(ls, linear_tangent(W, x, dx, dW, db))
    return plus(total, None if dls is None else dls * out)


def _affine_adjoint(g: Tensor | None, u: Entry, ggamma: Tensor | None, gbeta: Tensor | None) -> None:
    """Add the gradients of γ⊙u + β, summed over rows (and heads), to ``ggamma`` and ``gbeta`` in place."""
    if g is None:
        return
    rows = tuple(range(g.ndim - 1))
    if ggamma is not None:
        ggamma.add_((g * u).sum(rows))
    if gbeta is not None:
        gbeta.add_(g.sum(rows))
