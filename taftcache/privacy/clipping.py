"""Norms of rows' gradients in closed form, and sums of the clipped gradients in exact integers.

A row's gradient of a matrix is out ⊗ into, so ‖g‖² = Σ ‖out‖² (‖into‖² + [bias]) + Σ ‖rows‖² costs no more than
reading the factors, and clipping scales one of them before the sum is formed. Where a gradient is a sum of such
products over the row's tokens, it is formed for a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from taftcache.errors import BackboneError
from taftcache.privacy.grid import Grid
from taftcache.tangent.factors import Direct, Factor, RankOne, TokenSum

Clipping = Literal["clip", "normalise"]
FLUSH_ROWS = 1 << 12  # 2^40 units each: a float64 still adds them exactly
FORMED_BYTES = 64 << 20  # of gradients of one matrix that are formed at once, where they must be
# Products and norms are rounded by a few parts in 10^15; staying this far below C makes that irrelevant.
SLACK = 1 - 2.0**-30


def scales(norms: Tensor, grid: Grid, clipping: Clipping) -> Tensor:
    """What each row's gradient is multiplied by [n], so that none is longer than C; 0 for a norm that is not finite.

    "clip": min(1, C/‖g‖). "normalise": C/‖g‖, whatever the norm (Bu et al., 2023), and 0 for a zero gradient.
    """
    ratio = grid.clip / norms
    if clipping == "clip":
        ratio = ratio.clamp(max=1.0)
    return torch.where(torch.isfinite(norms) & (norms > 0), ratio * SLACK, 0.0)


class ClippedSum:
    """Σ_n c_n g_n on the grid, an int64 vector [P]; order, batches and threads change no bit of it.

    In every outer product, ``into`` is scaled by a power of two and ``out`` by what makes up for that, so that each
    gets half of the product's bits, and both are rounded towards zero. So products are integers of at most 2^40, which
    float64 adds without rounding. Rounded magnitudes never exceed the true ones, so the norm of a row's part stays at
    most C.
    """

    def __init__(self, size: int, grid: Grid, device: torch.device | str = "cpu") -> None:
        self.grid = grid
        self._whole: Tensor | None = None  # until then all is in ``_part``
        self._part = torch.zeros(size, dtype=torch.float64, device=device)
        self._space: dict[str, Tensor] = {}
        self._rows = 0

    def _like(self, name: str, tensor: Tensor) -> Tensor:
        """Float64 memory of this shape, reused by name: fresh memory would cost more than the computation."""
        there = self._space.get(name)
        if there is None or there.shape != tensor.shape:
            there = self._space[name] = torch.empty(tensor.shape, dtype=torch.float64, device=tensor.device)
        return there

    def _wide(self, name: str, tensor: Tensor) -> Tensor:
        return self._like(name, tensor).copy_(tensor)

    def add(
        self, factors: Sequence[Factor], direct: Sequence[Direct], live: Tensor, clipping: Clipping = "clip"
    ) -> Tensor:
        """Add a block's clipped rows, except those that are not ``live`` [n]. Returns their norms before that [n]."""
        disjoint(factors, direct)
        self._rows += len(live)
        if self._rows > FLUSH_ROWS:
            self.flush()
            self._rows = len(live)
        products = [self._product(i, m) for i, m in enumerate(m for m in factors if isinstance(m, RankOne))]
        sums = [m for m in factors if isinstance(m, TokenSum)]
        small = [(part, self._wide(f"rows {i}", part.rows)) for i, part in enumerate(direct)]
        norms = _norms(products, sums, [rows for _, rows in small])
        scale = torch.where(live, scales(norms, self.grid, clipping), 0.0)
        units, kept = scale / self.grid.unit, scale > 0
        whole = bool(kept.all())
        for product in products:
            self._add_product(product if whole else product.where(kept), units, kept)
        for part, rows in small:
            self._part[part.where] += (rows if whole else _kept(rows, kept)).mul_(units[:, None]).trunc_().sum(0)
        for each in sums:
            self._add_sum(each, units, kept)
        return norms

    def _product(self, place: int, m: RankOne) -> _Product:
        out, into = self._wide(f"out {place}", m.out), self._wide(f"into {place}", m.into)
        return _Product(m.weight, m.bias, out, into, out.norm(dim=-1), into.norm(dim=-1))

    def _add_product(self, m: _Product, units: Tensor, kept: Tensor) -> None:
        """Add the rows of one matrix times ``units``; overwrites ``m``."""
        if m.bias is not None:
            own = torch.mul(m.out, units[:, None, None], out=self._like(f"bias {m.out.shape}", m.out))
            self._part[m.bias] += own.trunc_().sum(0).reshape(-1)
        split = torch.where(kept[:, None] & (m.length > 0), units[:, None] * m.other / m.length, 1.0)
        shift = torch.ldexp(torch.ones_like(m.length), torch.frexp(split).exponent // 2)
        whole = m.into.mul_(shift[..., None]).trunc_()
        fine = m.out.mul_((units[:, None] / shift)[..., None]).trunc_()
        _, H, o = fine.shape
        onto = self._part[m.weight].view(H, o, -1)
        if H == 1:
            onto[0].addmm_(fine[:, 0].T, whole[:, 0])
        else:
            onto.baddbmm_(fine.permute(1, 2, 0), whole.transpose(0, 1))

    def _add_sum(self, m: TokenSum, units: Tensor, kept: Tensor) -> None:
        """Add the rows of one matrix whose gradients are sums over tokens, times ``units``."""
        for rows, g in _formed(m):
            g = _kept(g, kept[rows]).mul_(units[rows, None, None]).trunc_()
            self._part[m.weight] += g.sum(0).reshape(-1)
        if m.bias is not None:
            own = _kept(m.out.double().sum(1), kept)
            self._part[m.bias] += own.mul_(units[:, None]).trunc_().sum(0)

    def flush(self) -> None:
        """Move what float64 holds to the integers."""
        part = self._part.to(torch.int64)
        self._whole = part if self._whole is None else self._whole.add_(part)
        self._part.zero_()

    def total(self) -> Tensor:
        """The sum so far, in units."""
        self.flush()
        self._rows = 0
        assert self._whole is not None
        return self._whole


class _Product(NamedTuple):
    """A matrix's ``RankOne`` in float64: out [n,H,o], into [n,H,i], and the lengths of both [n,H]."""

    weight: slice
    bias: slice | None
    out: Tensor
    into: Tensor
    other: Tensor
    length: Tensor

    def where(self, kept: Tensor) -> _Product:
        """With zeros in the rows that are not ``kept`` [n]: a NaN times zero would still be NaN."""
        return self._replace(out=_kept(self.out, kept), into=_kept(self.into, kept))


def _norms(products: Sequence[_Product], sums: Sequence[TokenSum], small: Sequence[Tensor]) -> Tensor:
    """‖g‖ of each row [n], over all parts of its gradient."""
    squares = [rows.square().sum(1) for rows in small]
    squares += [(m.other.square() * (m.length.square() + (m.bias is not None))).sum(-1) for m in products]
    for each in sums:
        squares.append(torch.cat([g.square().sum((1, 2)) for _, g in _formed(each)]))
        if each.bias is not None:
            squares.append(each.out.double().sum(1).square().sum(1))
    return torch.stack(squares).sum(0).sqrt_()


def disjoint(factors: Sequence[Factor], direct: Sequence[Direct]) -> None:
    """Check that no two pieces touch the same parameter: only then do squared norms add up over pieces.

    Raises:
        BackboneError: two do.
    """
    spans = [m.weight for m in factors] + [m.bias for m in factors if m.bias is not None] + [d.where for d in direct]
    ends = sorted((span.start, span.stop) for span in spans)
    for before, after in pairwise(ends):
        if after[0] < before[1]:
            raise BackboneError(
                "two pieces of the gradient are of one parameter, so their norms do not add up",
                got=f"{before} and {after} overlap",
            )


def _formed(m: TokenSum) -> Iterator[tuple[slice, Tensor]]:
    """Gradients [k,o,i] in float64, a few rows at a time; the same numbers at every call."""
    n, _, o = m.out.shape
    step = max(1, FORMED_BYTES // (8 * o * m.into.shape[2]))
    for k in range(0, n, step):
        rows = slice(k, k + step)
        yield rows, torch.bmm(m.out[rows].double().mT, m.into[rows].double())


def _kept(rows: Tensor, alive: Tensor) -> Tensor:
    return torch.where(alive.view(-1, *[1] * (rows.ndim - 1)), rows, 0.0)
