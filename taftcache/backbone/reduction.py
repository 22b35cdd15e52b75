"""What stage 1 keeps of a sample: the tail's whole input, or the least that is exact for what is trained."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
from torch import Tensor

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import Backbone
from taftcache.errors import RecipeError
from taftcache.tangent.base import make_base
from taftcache.tangent.class_row.tail import ClassRowTail
from taftcache.tangent.config import Rows, TailConfig
from taftcache.tangent.selection import ROWS, row_shape, smallest_rows
from taftcache.tangent.spec import TangentSpec

_BYTES = {"float16": (2, 0), "float32": (4, 0), "int8": (1, 4)}  # per number, and on top of that per token


class Reduction:
    """The frozen layers as extraction runs them: a cut, and what is kept of its tokens.

    Whole tokens serve every base point. Anything smaller is computed with the base's own frozen weights; the
    description carries their digest, so that no other base point is ever trained on it.

    Args:
        cut: the frozen layers.
        classes: K.
        tangent: what is trained, and around which base point.
        cache: what is kept; "auto" is the least that is exact for ``tangent.train``.
        dtype: of the numbers that are kept, for their size. ``computed`` is the dtype they are handed over in: 8 bits
            are made from float16, so that converting a store of float16 gives what an extraction in 8 bits writes.

    Raises:
        RecipeError: ``cache`` keeps less than is needed, or rows that this tail does not have.
    """

    def __init__(
        self,
        cut: Cut,
        classes: int,
        tangent: TangentSpec,
        cache: Rows | Literal["auto"] = "auto",
        dtype: Literal["float16", "float32", "int8"] = "float16",
    ) -> None:
        self.cut = cut
        self._state, config = cut.tail_state(), cut.tail_config()
        base = make_base(self._state, config, classes, tangent, cut.module())
        trained = base.trained(tangent.train)
        self.trained = trained.size  # numbers of the parameters that move
        least = smallest_rows(config, trained)
        self.rows: Rows = least if cache == "auto" else cache
        if ROWS.index(self.rows) > ROWS.index(least):
            raise RecipeError(
                f"store.cache = {cache!r} keeps less than tangent.train = {tangent.train!r} needs",
                got=f"{self.rows}, {least} are needed",
                do=f'set store.cache = "auto" or "{least}"',
            )
        if self.rows in ("attended", "residual") and config.path != "class row":
            raise RecipeError(
                f"store.cache = {self.rows!r} is only for a tail that ends in a class row",
                got=f"{cut.backbone.name}: {config.why or f'a tail that is computed as {config.path}'}",
                do='set store.cache = "auto" or "tokens"',
            )
        self._base = base.to(torch.float32, cut.device)
        self._weights = self._base.tail.bind(self._base.state)
        if self.rows != "tokens" and config.path != "feature":
            config = msgspec.structs.replace(config, rows=self.rows, reduced_by=base.reduction_digest())
        self.config: TailConfig = config
        self.tokens_shape = row_shape(config, self.rows)
        (t, d), (number, token) = self.tokens_shape, _BYTES[dtype]
        self.bytes_per_sample = t * (d * number + token)
        self.computed: Literal["float16", "float32"] = "float32" if dtype == "float32" else "float16"

    @property
    def backbone(self) -> Backbone:
        """The cut's."""
        return self.cut.backbone

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample at the cut, as the model has it."""
        return self.cut.shape

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.cut.device

    def tail_state(self) -> dict[str, Tensor]:
        """The tail's tensors by timm's names."""
        return self._state

    def prefix(self, images: Tensor) -> Tensor:
        """Rows [n, *tokens_shape] for preprocessed images [n,3,h,w]."""
        tokens = self.cut.prefix(images)
        if self.config.rows == "tokens":
            return tokens
        tail = self._base.tail
        if isinstance(tail, ClassRowTail):
            return tail.reduce(self._weights, tokens, self.rows)
        value: Tensor = tail.value(self._weights, tokens).feature
        return value[:, None]

    def describe(self) -> str:
        """One line for the user, before anything is run."""
        maps = self.rows == "tokens" and len(self.shape) == 3  # which a store keeps as rows
        what, shape = ("maps", self.shape) if maps else (self.rows, self.tokens_shape)
        kept = f"{what} of each sample, {' x '.join(map(str, shape))}: {self.bytes_per_sample:,} bytes"
        at = f", cut before {self.cut.start}" if self.cut.start else ""
        return f"{kept}; {self.config.path} tangent{at}" + (f" ({self.config.why})" if self.config.why else "")
