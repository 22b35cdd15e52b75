"""The layers of a tail as a store describes them: a tagged union, in JSON types."""

from __future__ import annotations

import msgspec

from taftcache.tangent.layers.linear import Linear
from taftcache.tangent.layers.norm import Norm
from taftcache.tangent.layers.residual import Pool, Residual

LayerSpec = Residual | Linear | Norm
"""The layers before the end of a tail, each from [n,t,d] to [n,t,d]."""


class Readout(msgspec.Struct, frozen=True, kw_only=True, tag="readout"):
    """Tokens [n,t,d] to the head's input [n,width]: pooling, with a normalisation before or after it."""

    layers: tuple[Norm | Pool, ...]
