"""What a recipe may say about the expansion point; imports no torch, for parsing must stay fast."""

from __future__ import annotations

from typing import Literal

import msgspec

Init = Literal["timm", "torch"]


class TangentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which parameters move, and where the expansion point lies (the paper's switches PT and CLS).

    train: "full" (last block, final norm, head) or "head".
    reset_block: PT = F, the last block is re-initialised from ``seed`` (the final norm is kept).
    class_token: CLS = T ("reset"): a fresh token at the block's input, shared by all samples and trained.
    init: of the new head and a reset block. "timm" draws N(0, 0.02²) truncated at two deviations with zero
        biases, "torch" draws U(±1/√fan_in) for weights and biases, as the authors' release does.
    seed: of those draws; it is part of the base point, and components of other seeds do not compose.
    """

    train: Literal["full", "head"] = "full"
    reset_block: bool = False
    class_token: Literal["keep", "reset"] = "keep"
    init: Init = "torch"
    seed: int = 0
