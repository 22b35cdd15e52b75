"""What a recipe may say about the expansion point; imports no torch, because parsing must stay fast."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from taftcache.errors import RecipeError
from taftcache.expected import check_fields

TAIL = "base/tail"  # where a store keeps the tail's weights, and its description (``TailConfig``) beside them

Init = Literal["timm", "torch", "zero"]
Train = Literal["full", "bitfit", "layernorm", "head"] | list[str]
Depth = Annotated[int, msgspec.Meta(ge=0)]


def check_seed(key: str, seed: int) -> None:
    """RecipeError for a seed that torch's generators do not take."""
    if not -(2**63) <= seed < 2**63:
        raise RecipeError(f"{key} has more than 64 bits", got=f"{seed.bit_length()} bits", do="name a smaller integer")


class TangentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which parameters move, and where the expansion point lies (the paper's switches PT and CLS).

    blocks: the tail is the model's last k blocks, final norm and head (0: the head alone), or everything from the
        module with this timm name on ("blocks.10", "stages.3").
    train: "full" (all of the tail), "bitfit" (its biases and the head), "layernorm" (the affines of its normalisations
        and the head), "head", or timm names and globs (``["*.mlp.*", "head.*"]``).
    reset_block: re-initialise the last block from ``seed`` (PT = F).
    reset_norm: re-initialise the norm after the last block too, as the authors' release does.
    class_token: "reset" (CLS = T) puts a fresh token at the tail's input, shared by all samples and trained.
    init: how the new head and a reset block begin. "timm" draws N(0, 0.02²) truncated at two standard deviations with
        zero biases, "torch" draws U(±1/√fan_in) for weights and biases, as the authors' release does. "zero" is for a
        head that is trained alone: a random head stays random in directions that few rows say anything about.
    seed: for those draws; it is part of the base point, so components with different seeds do not compose.
    """

    blocks: Depth | str = 1
    train: Train = "full"
    reset_block: bool = False
    reset_norm: bool = False
    class_token: Literal["keep", "reset"] = "keep"
    init: Init = "torch"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "tangent")
        check_seed("tangent.seed", self.seed)
        if self.train == [] or self.blocks == "":
            raise RecipeError(
                "nothing would be trained: tangent.train or tangent.blocks is empty",
                got=f"train = {self.train!r}, blocks = {self.blocks!r}",
                do='name parameters, as in train = ["head.*"]',
            )
        if self.init == "zero" and self.blocks != 0 and self.train != "head":
            raise RecipeError(
                "a head at zero passes no gradient to the blocks before it",
                got=f'init = "zero" with blocks = {self.blocks!r}, train = {self.train!r}',
                do='tangent.init = "torch", or tangent.train = "head"',
            )
