"""Norms of rows' gradients in closed form, and sums of the clipped gradients in exact integers.

A row's gradient of a matrix is out ⊗ into, so ‖g‖² = Σ ‖out‖² (‖into‖² + [bias]) + Σ ‖rows‖² costs no more than
reading the factors (math.md §3), and clipping scales one of them before the sum is formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from taftcache.errors import BackboneError
from taftcache.privacy.grid import CLIP_BITS, Grid
from taftcache.tangent.factors import Direct, RankOne

Clipping = Literal["clip", "normalise"]
INTO_BITS = CLIP_BITS // 2
FLUSH_ROWS = 1 << 12  # 2^40 units each: a float64 still adds them exactly
# Products and norms are rounded by a few parts in 10^15; this much less than C makes that irrelevant.
SLACK = 1 - 2.0**-30


def row_norms(matrices: Sequence[RankOne], direct: Sequence[Direct]) -> Tensor:
    """‖g‖ of each row [n] in float64, in which no square of a float32 number leaves the range."""
    squares: list[Tensor] = [part.rows.double().square().sum(1) for part in direct]
    for m in matrices:
        into = m.into.double().square_().sum(-1)
        if m.bias is not None:
            into += 1
        squares.append((m.out.double().square_().sum(-1) * into).sum(-1))
    return _total(squares).sqrt_()


def scales(norms: Tensor, grid: Grid, clipping: Clipping = "clip") -> Tensor:
    """What each row's gradient is multiplied by [n], so that none is longer than C; 0 for a norm that is not finite.

    "clip": min(1, C/‖g‖). "normalise": C/‖g‖, whatever the norm (Bu et al., 2023), with 0 for no gradient.
    """
    ratio = grid.clip / norms
    if clipping == "clip":
        ratio = ratio.clamp(max=1.0)
    return torch.where(torch.isfinite(norms) & (norms > 0), ratio * SLACK, 0.0)


class ClippedSum:
    """Σ_n c_n g_n on the grid, an int64 vector [P]: no order, batch or thread changes a bit of it.

    Of every outer product, ``into`` is scaled by a power of two to at most 2^20 and rounded towards zero, ``out`` to
    what makes up for that: their products are integers of at most 2^40, which float64 adds without rounding. Rounded
    magnitudes are never above the true ones, so a row's part keeps a norm of at most C.
    """

    def __init__(self, size: int, grid: Grid, device: torch.device | str = "cpu") -> None:
        self.grid = grid
        self._whole = torch.zeros(size, dtype=torch.int64, device=device)
        self._part = torch.zeros(size, dtype=torch.float64, device=device)
        self._rows = 0

    def add(
        self, matrices: Sequence[RankOne], direct: Sequence[Direct], live: Tensor, clipping: Clipping = "clip"
    ) -> Tensor:
        """Add a block's rows, clipped, but those that are not ``live`` [n]. Returns what each was scaled by [n]."""
        disjoint(matrices, direct)
        self._rows += len(live)
        if self._rows > FLUSH_ROWS:
            self.flush()
            self._rows = len(live)
        outs, intos = [m.out.double() for m in matrices], [m.into.double() for m in matrices]
        rows = [part.rows.double() for part in direct]
        lengths = [into.norm(dim=-1) for into in intos]
        squares = [part.square().sum(1) for part in rows]
        for m, out, length in zip(matrices, outs, lengths, strict=True):
            squares.append((out.square().sum(-1) * (length.square() + (m.bias is not None))).sum(-1))
        scale = torch.where(live, scales(_total(squares).sqrt_(), self.grid, clipping), 0.0)
        if not bool((scale > 0).all()):  # a NaN times zero would still be one
            outs, intos, rows = ([_kept(x, scale > 0) for x in part] for part in (outs, intos, rows))
        units = scale / self.grid.unit
        for m, out, into, length in zip(matrices, outs, intos, lengths, strict=True):
            if m.bias is not None:
                self._part[m.bias] += (out * units[:, None, None]).trunc_().sum(0).reshape(-1)
            exponent = torch.frexp(torch.where(scale[:, None] > 0, length, 1.0)).exponent
            shift = torch.ldexp(torch.ones_like(length), INTO_BITS - exponent)
            whole = into.mul_(shift[..., None]).trunc_()
            fine = out.mul_((units[:, None] / shift)[..., None]).trunc_()
            _, H, o = fine.shape
            onto = self._part[m.weight].view(H, o, -1)
            if H == 1:
                onto[0].addmm_(fine[:, 0].T, whole[:, 0])
            else:
                onto.baddbmm_(fine.permute(1, 2, 0), whole.transpose(0, 1))
        for part, own in zip(direct, rows, strict=True):
            self._part[part.where] += own.mul_(units[:, None]).trunc_().sum(0)
        return scale

    def flush(self) -> None:
        """Move what float64 holds to the integers."""
        self._whole += self._part.to(torch.int64)
        self._part.zero_()

    def total(self) -> Tensor:
        """The sum so far, in units."""
        self.flush()
        self._rows = 0
        return self._whole


def disjoint(matrices: Sequence[RankOne], direct: Sequence[Direct]) -> None:
    """Norms add up over parameters only where no two pieces touch one.

    Raises:
        BackboneError: two do, or a piece is of a kind that has no closed form here.
    """
    if strange := [type(m).__name__ for m in matrices if not isinstance(m, RankOne)]:
        raise BackboneError(
            "private training clips rows whose gradients are outer products",
            got=f"{strange[0]}: gradients that are sums over a row's tokens",
            do='train the last block of a token-pooled ViT, or tangent.train = "head"',
        )
    spans = [m.weight for m in matrices] + [m.bias for m in matrices if m.bias is not None] + [d.where for d in direct]
    ends = sorted((span.start, span.stop) for span in spans)
    for before, after in zip(ends, ends[1:], strict=False):
        if after[0] < before[1]:
            raise BackboneError("a parameter's gradient comes in one piece", got=f"{before} and {after} overlap")


def _total(squares: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(squares)).sum(0)


def _kept(rows: Tensor, alive: Tensor) -> Tensor:
    return torch.where(alive.view(-1, *[1] * (rows.ndim - 1)), rows, 0.0)
