"""A linear map on all tokens, with the affine of the normalisation before it and the LayerScale after it.

    y = s ⊙ (W (γ⊙u + β) + b)

Both are folded into the weights, W̃ = s W γ and b̃ = s(Wβ + b). The product then reads the normalised tokens themselves,
nothing else of their size is formed or kept, and the derivatives with respect to γ, β and s follow from those of W̃ by a
few operations on matrices.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from taftcache.tangent.factors import Direct, Factor, RankOne, TokenSum
from taftcache.tangent.layers.layer import Named, Primitive, Saved
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rules import plus, scaled


class Linear(Primitive, frozen=True, kw_only=True, tag="linear"):
    """y = s ⊙ (W(γ⊙u + β) + b).

    weights: names of matrices [o_k,i] whose outputs lie side by side, Σ o_k = o.
    biases: names of vectors of equal length, together [o]; "" stands for a zero vector. Empty if there is no bias.
    gamma, beta: names of the affine [i] of the normalisation before; "" if it has none.
    scale: name of the LayerScale [o] after it, or "".
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...] = ()
    gamma: str = ""
    beta: str = ""
    scale: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n in (self.gamma, self.beta, *self.weights, *self.biases, self.scale) if n)

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """Rows x [...,i] to [...,o]; keeps x."""
        W, b = self._folded(w)
        return _apply(x, W, b), x

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """δu W̃ᵀ + u δW̃ᵀ + δb̃."""
        dW, db = self._folded_tangent(w, dw)
        if dx is not None:
            y = _apply(dx, self._folded(w)[0], db)
            if dW is not None:
                y.view(-1, y.shape[-1]).addmm_(saved.flatten(0, -2), dW.T)
            return y
        if dW is not None:
            return _apply(saved, dW, db)
        return None if db is None else db.expand(*saved.shape[:-1], -1).clone()

    def input_adjoint(self, w: Named, saved: Saved, g: Tensor) -> Tensor:
        """g W̃."""
        return _apply(g, self._folded(w)[0].T, None)

    def contract(self, w: Named, saved: Saved, g: Tensor, out: Named) -> None:
        """The gradient G̃ = Σ g ⊗ u of W̃, passed on to the parameters that W̃ is made of."""
        rows, total = g.flatten(0, -2), g.flatten(0, -2).sum(0)
        W, s, gamma, beta = self._joined(w), self._get(w, self.scale), self._get(w, self.gamma), self._get(w, self.beta)
        summed = total if s is None else s * total
        for name, part in self._bias_parts(out):
            out[name].add_(summed[part])
        if self.beta in out:
            out[self.beta].addmv_(W.T, summed)
        plain = s is None and gamma is None and beta is None
        if plain and len(self.weights) == 1:
            if self.weights[0] in out:
                out[self.weights[0]].addmm_(rows.T, saved.flatten(0, -2))
            return
        if not any(name in out for name in (*self.weights, self.gamma, self.scale)):
            return
        G = rows.T @ saved.flatten(0, -2)
        if self.gamma in out:
            out[self.gamma].add_((G * (W if s is None else W * s[:, None])).sum(0))
        G = G if gamma is None else G.mul_(gamma)  # from here on the gradient of s W
        G = G if beta is None else G.addr_(total, beta)
        if self.scale in out:
            b = self._bias(w)
            out[self.scale].add_((G * W).sum(1) if b is None else torch.addcmul((G * W).sum(1), b, total))
        G = G if s is None else G.mul_(s[:, None])
        for name, part in self._weight_parts(w):
            if name in out:
                out[name].add_(G[part])

    def factors(self, w: Named, saved: Saved, g: Tensor, where: Layout) -> tuple[list[Factor], list[Direct]]:
        """Sums of outer products over tokens; for affine and LayerScale, each row's gradient itself."""
        u, g = (x[:, None] if x.ndim == 2 else x for x in (saved, g))
        W, s = self._joined(w), self._get(w, self.scale)
        out: Tensor = g if s is None else s * g
        x = _affine(u, self._get(w, self.gamma), self._get(w, self.beta))
        slices, matrices, direct = where.slices, list[Factor](), list[Direct]()
        paired = dict(zip(self.weights, self.biases, strict=True)) if len(self.weights) == len(self.biases) else {}
        taken = set()
        for name, part in self._weight_parts(w):
            if name in where:
                bias = slices.get(paired.get(name, ""))
                taken |= {paired[name]} if bias is not None else set()
                if g.shape[1] == 1:  # one token: its gradient is a single outer product
                    matrices.append(RankOne(slices[name], bias, out[..., part], x))
                else:
                    matrices.append(TokenSum(slices[name], bias, out[..., part], x))
        for name, part in self._bias_parts(where):
            if name not in taken:
                direct.append(Direct(slices[name], out[..., part].sum(1)))
        if self.scale in where:
            direct.append(Direct(slices[self.scale], (g * _apply(x, W, self._bias(w))).sum(1)))
        if self.gamma in where:
            direct.append(Direct(slices[self.gamma], ((out @ W) * u).sum(1)))
        if self.beta in where:
            direct.append(Direct(slices[self.beta], out.sum(1) @ W))
        return matrices, direct

    def _get(self, w: Named, name: str) -> Tensor | None:
        return w[name] if name else None

    def _joined(self, w: Named) -> Tensor:
        parts = [w[name] for name in self.weights]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _weight_parts(self, w: Named) -> Iterator[tuple[str, slice]]:
        start = 0
        for name in self.weights:
            yield name, slice(start, start + len(w[name]))
            start += len(w[name])

    def _bias_parts(self, there: Named | Layout) -> Iterator[tuple[str, slice]]:
        """The biases that ``there`` has, and which outputs they move."""
        shapes = there.shapes if isinstance(there, Layout) else {n: t.shape for n, t in there.items()}
        sizes = {name: shapes[name][0] for name in self.biases if name in shapes}
        for k, name in enumerate(self.biases):
            if name in sizes:
                yield name, slice(k * sizes[name], (k + 1) * sizes[name])

    def _bias(self, w: Named) -> Tensor | None:
        """b [o], of the weights or of a direction; None if ``w`` has no part of it."""
        if not any(name in w for name in self.biases):
            return None
        if len(self.biases) == 1:
            return w[self.biases[0]]
        like = next(w[name] for name in self.biases if name in w)
        return torch.cat([w[name] if name in w else torch.zeros_like(like) for name in self.biases])

    def _folded(self, w: Named) -> tuple[Tensor, Tensor | None]:
        """W̃ [o,i] and b̃ [o]."""
        W, b, s = self._joined(w), self._bias(w), self._get(w, self.scale)
        if self.beta:
            b = plus(b, W @ w[self.beta])
        W = W if s is None else W * s[:, None]
        return W if not self.gamma else W * w[self.gamma], scaled(s, b)

    def _folded_tangent(self, w: Named, dw: Named) -> tuple[Tensor | None, Tensor | None]:
        """δW̃ and δb̃, None where they are zero."""
        if not any(name in dw for name in self.names):
            return None, None
        W, s, db = self._joined(w), self._get(w, self.scale), self._bias(dw)
        dW = None
        if any(name in dw for name in self.weights):
            parts = [dw[name] if name in dw else torch.zeros_like(w[name]) for name in self.weights]
            dW = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.beta and dW is not None:
            db = plus(db, dW @ w[self.beta])
        if self.beta in dw:
            db = plus(db, W @ dw[self.beta])
        db = scaled(s, db)
        dW = dW if s is None or dW is None else dW * s[:, None]
        if self.scale in dw:
            dW = plus(dW, W * dw[self.scale][:, None])
            b = self._bias(w)
            b = plus(b, W @ w[self.beta]) if self.beta else b
            db = plus(db, None if b is None else b * dw[self.scale])
        if self.gamma:
            dW = dW if dW is None else dW * w[self.gamma]
            if self.gamma in dw:
                dW = plus(dW, (W if s is None else W * s[:, None]) * dw[self.gamma])
        return dW, db


def _apply(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """x Wᵀ + b over the last axis, with any axes before it."""
    rows = x.flatten(0, -2)
    y = rows @ W.T if b is None else torch.addmm(b, rows, W.T)
    return y.view(*x.shape[:-1], -1)


def _affine(u: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    x = u if gamma is None else u * gamma
    return x if beta is None else x + beta
