"""Cut a class-token ViT at the raw input of its last block.

Everything before the cut is frozen and run once per image; what follows (last block, final
norm, head) is what the class-row tangent linearises. The cut refuses a model whose tail has
anything that the closed form does not cover, and names it.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from timm.layers import Attention, LayerScale, Mlp
from timm.layers import LayerNorm as TimmLayerNorm
from timm.layers.activations import GELU as TimmGELU
from timm.layers.activations import GELUTanh
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from taftcache.backbone.model import Backbone, state_digest
from taftcache.errors import BackboneError
from taftcache.tangent.class_row_config import ClassRow
from taftcache.tangent.config import TailConfig


class Cut:
    """The two halves of ``backbone`` around the input of its last block.

    block: index of the last block. block_name: its timm name. tokens_shape: (t, d), prefix tokens
    included. Raises BackboneError naming the first thing that the class-row tangent does not cover.
    """

    def __init__(self, backbone: Backbone, blocks: int | str = 1) -> None:
        model = backbone.model
        _check_model(backbone.name, model)
        assert isinstance(model, VisionTransformer)
        self.backbone = backbone
        self.block = len(model.blocks) - 1
        self.block_name = f"blocks.{self.block}"
        _check_block(backbone.name, self.block_name, model.blocks[-1], model.embed_dim)
        self._model = model
        self._image_shape = tuple(backbone.data_config["input_size"])
        # One zero image through the embedding: t depends on padding, registers and the patch layer's options.
        with torch.no_grad():
            try:
                tokens = self._embed(torch.zeros(1, *self._image_shape, device=backbone.device))
            except (AssertionError, RuntimeError) as error:
                raise BackboneError(
                    "The model must accept images of the size that preprocessing makes.",
                    got=f"{backbone.name} with {self._image_shape}: {error}",
                    do="set preprocess.input_size or model_args.img_size",
                ) from error
        self.tokens_shape: tuple[int, int] = (int(tokens.shape[1]), int(tokens.shape[2]))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.backbone.device

    def prefix(self, images: Tensor) -> Tensor:
        """Tokens [n, t, d] that enter the last block, for preprocessed float32 images [n, 3, h, w].

        Bit-equal to what a forward pre-hook on the block sees; the block itself is not run.
        """
        if images.ndim != 4 or tuple(images.shape[1:]) != self._image_shape:
            raise BackboneError(
                f"Images must be [n, {', '.join(map(str, self._image_shape))}].", got=list(images.shape)
            )
        with torch.no_grad():
            return self._model.blocks[:-1](self._embed(images))

    def replay(self, tokens: Tensor) -> Tensor:
        """Logits [n, K] of the model's own last block, norm and head on tokens [n, t, d] (an oracle)."""
        return self._model.forward_head(self._model.norm(self._model.blocks[-1](tokens)))

    def tail_state(self) -> dict[str, Tensor]:
        """Copies of the tail's tensors on the CPU in float32, by timm's names: last block, norm and head."""
        keep = (f"{self.block_name}.", "norm.", "head.")
        state = self._model.state_dict()
        return {k: v.detach().cpu().clone() for k, v in state.items() if k.startswith(keep)}

    def tail_config(self) -> TailConfig:
        """Shape and constants of the tail."""
        model: Any = self._model
        block = model.blocks[-1]
        return TailConfig(
            path="class row",
            start=self.block_name,
            blocks=(self.block_name,),
            shape=self.tokens_shape,
            class_token=True,
            width=self.tokens_shape[1],
            classes=model.num_classes,
            parameters=tuple(name for name in self.tail_state() if not name.startswith("head.")),
            norms=tuple(
                f"{at}.{kind}"
                for at in (f"{self.block_name}.norm1", f"{self.block_name}.norm2", "norm")
                for kind in ("weight", "bias")
            ),
            end=ClassRow(
                prefix=self.block_name,
                width=self.tokens_shape[1],
                heads=block.attn.num_heads,
                eps1=block.norm1.eps,
                eps2=block.norm2.eps,
                eps_final=model.norm.eps,
                gelu=_gelu(block.mlp.act) or "exact",
            ),
        )

    def prefix_digest(self) -> str:
        """BLAKE3 of the weights before the cut: the only ones on which the cached tokens depend."""
        tail = self.tail_state()
        return state_digest({k: v for k, v in self._model.state_dict().items() if k not in tail})

    def _embed(self, images: Tensor) -> Tensor:
        """What ``VisionTransformer.forward_features`` does before its blocks."""
        x = self._model._pos_embed(self._model.patch_embed(images))
        return self._model.norm_pre(self._model.patch_drop(x))


def _refuse(name: str, what: str) -> BackboneError:
    return BackboneError(
        "The exact class-row tangent covers timm's plain class-token ViTs.",
        got=f"{name}: {what}",
        do="choose a model such as DeiT, ViT or DINOv2 with token pooling",
    )


def _check_model(name: str, model: nn.Module) -> None:
    """Everything outside the last block; types are compared exactly, for a subclass may compute otherwise."""
    if type(model) is not VisionTransformer:
        raise _refuse(name, f"the model is a {type(model).__name__}, not a VisionTransformer")
    if not model.has_class_token:
        raise _refuse(name, "it has no class token")
    if model.global_pool != "token":
        raise _refuse(name, f"global_pool is {model.global_pool!r}, not 'token'")
    if model.attn_pool is not None:
        raise _refuse(name, "it pools by attention")
    if len(model.blocks) == 0:
        raise _refuse(name, "it has no block")
    _check_norm(name, "norm", model.norm)
    if type(model.fc_norm) is not nn.Identity:
        raise _refuse(name, f"fc_norm is a {type(model.fc_norm).__name__}, a norm after pooling")
    if type(model.head) not in (nn.Linear, nn.Identity):
        raise _refuse(name, f"head is a {type(model.head).__name__}, not a Linear")


def _check_block(name: str, at: str, block: nn.Module, width: int) -> None:
    if type(block) is not Block:
        raise _refuse(name, f"{at} is a {type(block).__name__}, not timm's Block")
    _check_norm(name, f"{at}.norm1", block.norm1)
    _check_norm(name, f"{at}.norm2", block.norm2)
    attention = block.attn
    if type(attention) is not Attention:
        raise _refuse(name, f"{at}.attn is a {type(attention).__name__}, not timm's Attention")
    for part in ("q_norm", "k_norm", "norm"):
        found = type(getattr(attention, part))
        if found is not nn.Identity:
            raise _refuse(name, f"{at}.attn.{part} is a {found.__name__} inside attention")
    if getattr(attention, "gate", None) is not None:
        raise _refuse(name, f"{at}.attn.gate is a gate on the attention's output")
    if attention.num_heads * attention.head_dim != width:
        raise _refuse(name, f"{at}.attn is {attention.num_heads} x {attention.head_dim} wide, the model {width}")
    for part in ("ls1", "ls2"):
        found = type(getattr(block, part))
        if found not in (LayerScale, nn.Identity):
            raise _refuse(name, f"{at}.{part} is a {found.__name__}, not a LayerScale")
    mlp = block.mlp
    if type(mlp) is not Mlp:
        raise _refuse(name, f"{at}.mlp is a {type(mlp).__name__}, not timm's Mlp")
    if type(mlp.norm) is not nn.Identity:
        raise _refuse(name, f"{at}.mlp.norm is a {type(mlp.norm).__name__} inside the MLP")
    if _gelu(mlp.act) is None:
        raise _refuse(name, f"{at}.mlp.act is {type(mlp.act).__name__}, not GELU")
    linears = {"attn.qkv": attention.qkv, "attn.proj": attention.proj, "mlp.fc1": mlp.fc1, "mlp.fc2": mlp.fc2}
    for part, layer in linears.items():
        if type(layer) is not nn.Linear:
            raise _refuse(name, f"{at}.{part} is a {type(layer).__name__}, not a Linear")
        if layer.bias is None and part != "attn.qkv":
            raise _refuse(name, f"{at}.{part} has no bias")


def _check_norm(name: str, at: str, norm: nn.Module) -> None:
    if type(norm) not in (nn.LayerNorm, TimmLayerNorm):
        raise _refuse(name, f"{at} is a {type(norm).__name__}, not a LayerNorm")
    if norm.weight is None or norm.bias is None:
        raise _refuse(name, f"{at} lacks its weight or bias")


def _gelu(layer: nn.Module) -> Literal["exact", "tanh"] | None:
    """ "exact", "tanh", or None for any other activation."""
    if type(layer) is nn.GELU:
        return "tanh" if layer.approximate == "tanh" else "exact"
    if type(layer) is TimmGELU:
        return "exact"
    return "tanh" if type(layer) is GELUTanh else None
