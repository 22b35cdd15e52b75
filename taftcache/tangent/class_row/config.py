"""Shape and constants of the class row, as a store keeps them beside the tail's weights."""

from __future__ import annotations

from typing import Literal

import msgspec


class ClassRow(msgspec.Struct, frozen=True, kw_only=True, tag="class row"):
    """A plain transformer block of which only the class row is formed, then final norm and head.

    prefix: timm's name of the block. width, heads: d and H. eps1, eps2, eps_final: of its LayerNorms.
    """

    prefix: str
    width: int
    heads: int
    eps1: float
    eps2: float
    eps_final: float
    gelu: Literal["exact", "tanh"] = "exact"
