"""Multi-head self-attention between its two linear maps (TAFT eq. 6-8).

With logits ℓ = s q kᵀ, s = 1/√e (which eq. 6 omits), φ = softmax ℓ and o = φ v, the tangent of the softmax is
φ⊙(δℓ − φ·δℓ) with φ·δℓ one number for each query: the diagonal of ΦΨᵀ in eq. 6 is a sum over each row, and no product
of matrices is needed for it. It is symmetric, so the adjoint is the same map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.tangent.layers.layer import Named, Primitive, Saved, Taker
from taftcache.tangent.layers.norm import Norm
from taftcache.tangent.weights import Entry


class Rotation(Primitive, frozen=True, kw_only=True):
    """Rotary position embedding: pairs of numbers in each query and key turn by an angle that the token's place gives.

    table: name of a tensor [..., t - skip, 2e], sines beside cosines. skip: tokens before it that do not turn.
    half: pairs are (k, k + e/2) instead of neighbours.
    """

    table: str
    skip: int = 0
    half: bool = False

    def turn(self, w: Named, x: Tensor, back: bool = False) -> Tensor:
        """x [n,H,t,e] turned, or turned back: the inverse is the transpose."""
        sin, cos = w[self.table].chunk(2, -1)
        tail = x[:, :, self.skip :]
        across = self._across(tail * sin, True) if back else self._across(tail, False) * sin
        turned = torch.addcmul(across, tail, cos)
        return torch.cat([x[:, :, : self.skip], turned], 2) if self.skip else turned

    def _across(self, x: Tensor, transposed: bool) -> Tensor:
        """Each pair (a, b) to (−b, a), or to (b, −a)."""
        if self.half:
            a, b = x.chunk(2, -1)
            return torch.cat([b, -a] if transposed else [-b, a], -1)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([b, -a] if transposed else [-b, a], -1).flatten(-2)


class Attend(Primitive, frozen=True, kw_only=True, tag="attend"):
    """Packed queries, keys and values [n,t,3He] to the heads' outputs side by side [n,t,He].

    q_norm, k_norm: normalisations of each head's queries and keys.
    rotation: turns both by the tokens' places, after the norms.
    first: only token 0 has a query, and the output is [n,1,He].
    """

    heads: int
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rotation: Rotation | None = None
    first: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters of the norms inside."""
        return tuple(name for norm in (self.q_norm, self.k_norm) if norm for name in norm.names)

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """Keeps q (scaled), k, v [n,H,t,e], φ [n,H,t,t] and what the norms keep."""
        q, k, v = self._split(x)
        scale = q.shape[-1] ** -0.5
        kept_q = kept_k = None
        if self.q_norm is not None:
            q, kept_q = self.q_norm.value(w, q)
        if self.k_norm is not None:
            k, kept_k = self.k_norm.value(w, k)
        q, k = self._turn(w, q, query=True) * scale, self._turn(w, k)
        phi = torch.softmax(_matmul(q, k.mT), -1)
        return _joined(_matmul(phi, v)), (q, k, v, phi, kept_q, kept_k)

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """δφ v + φ δv."""
        q, k, v, phi, kept_q, kept_k = saved
        dq, dk, dv = (None, None, None) if dx is None else self._split(dx)
        if self.q_norm is not None:
            dq = self.q_norm.tangent(w, kept_q, dq, dw)
        if self.k_norm is not None:
            dk = self.k_norm.tangent(w, kept_k, dk, dw)
        dq, dk = self._turn(w, dq, query=True), self._turn(w, dk)
        if dq is None and dk is None:
            return None
        dl = None if dq is None else _matmul(dq * (q.shape[-1] ** -0.5), k.mT)
        if dk is not None:
            dl = _matmul(q, dk.mT) if dl is None else _add_matmul(dl, q, dk.mT)
        do = _matmul(_softmax_tangent(dl, phi), v)
        return _joined(do if dv is None else _add_matmul(do, phi, dv))

    def adjoint(self, w: Named, saved: Saved, g: Tensor, taker: Taker, need_input: bool) -> Tensor | None:
        """Gradients at queries, keys and values, packed as they came; those of the norms go to ``taker``."""
        q, k, v, phi, kept_q, kept_k = saved
        n, H, t, e = k.shape
        go = g.view(n, -1, H, e).transpose(1, 2).contiguous()
        gl = _softmax_tangent(_matmul(go, v.mT), phi)
        gq = self._turn(w, _matmul(gl, k).mul_(e**-0.5), query=True, back=True)
        gk = self._turn(w, _matmul(gl.mT, q), back=True)
        if self.q_norm is not None:
            gq = self.q_norm.adjoint(w, kept_q, gq, taker, need_input)
        if self.k_norm is not None:
            gk = self.k_norm.adjoint(w, kept_k, gk, taker, need_input)
        if not need_input or gq is None or gk is None:
            return None
        gx = gq.new_zeros(n, t, 3, H, e) if self.first else gq.new_empty(n, t, 3, H, e)
        gx[:, : gq.shape[2], 0] = gq.transpose(1, 2)
        gx[:, :, 1] = gk.transpose(1, 2)
        gx[:, :, 2] = _matmul(phi.mT, go).transpose(1, 2)
        at_input: Tensor = gx.view(n, t, -1)
        return at_input

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [n,H,t,e], each contiguous."""
        n, t, _ = x.shape
        parts = x.view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.contiguous()
        return (parts[0][:, :, :1].contiguous() if self.first else q), k, v

    def _turn(self, w: Named, x: Entry, query: bool = False, back: bool = False) -> Entry:
        """Rotation of keys, or of queries: if only token 0 has a query, it is one of the tokens that do not turn."""
        if self.rotation is None or x is None or (query and self.first):
            return x
        return self.rotation.turn(w, x, back)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).view(*a.shape[:-1], b.shape[-1])


def _add_matmul(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    total.flatten(0, 1).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))
    return total


def _softmax_tangent(delta: Tensor | None, phi: Tensor) -> Tensor:
    """φ⊙(δ − φ·δ), row by row."""
    tangent: Tensor = torch.ops.aten._softmax_backward_data(delta, phi, -1, phi.dtype)
    return tangent


def _joined(o: Tensor) -> Tensor:
    """[n,H,t,e] to [n,t,He]."""
    return o.transpose(1, 2).flatten(2)
