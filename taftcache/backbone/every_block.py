"""The outputs of all blocks of a model as the one feature that a head reads."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from taftcache.errors import BackboneError


class EveryBlock(nn.Module):
    """A timm model whose feature is made of the outputs of all its blocks.

    For each block in turn: its class token, if it has one, and the mean of its other tokens (for a convolutional stage,
    of all places). Each is normalised to mean 0 and variance 1 over its own numbers, so that no statistics of any data
    are in a feature.

    Args:
        network: the model; its ``forward_intermediates`` decides what the blocks are.

    Raises:
        BackboneError: the model has no ``forward_intermediates``.
    """

    num_classes = 0  # a head on this feature is never the network's own

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network
        if not hasattr(network, "forward_intermediates"):
            raise BackboneError(
                f"the blocks of a {type(network).__name__} cannot be looked at one by one",
                got="a model without forward_intermediates",
                do='leave backbone.features at "last", or choose another model',
            )
        forward: Any = self.network.forward_intermediates
        asked = inspect.signature(forward).parameters
        self._class_token = getattr(network, "cls_token", None) is not None
        # timm fails if it is asked for tokens that a model does not have.
        prefixed = self._class_token and "return_prefix_tokens" in asked
        self._prefix = {"return_prefix_tokens": True} if prefixed else {}

    def get_classifier(self) -> nn.Module:
        """The identity: there is no classifier."""
        return nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        """The feature [n,d] of preprocessed images [n,3,h,w], in float32."""
        found = self.network.forward_intermediates(images, output_fmt="NCHW", intermediates_only=True, **self._prefix)
        parts: list[Tensor] = []
        for block in found:
            places, prefix = block if isinstance(block, tuple) else (block, None)
            if self._class_token and prefix is not None:
                parts.append(prefix[:, 0])
            parts.append(places.float().mean((2, 3)))
        return torch.cat([layer_norm(part.float(), part.shape[1:]) for part in parts], 1)

    def forward_head(self, feature: Tensor, pre_logits: bool = True) -> Tensor:
        """The feature: there is nothing between it and a head."""
        return feature
