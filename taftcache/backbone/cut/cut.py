"""Cut a timm model before any module that it calls: frozen layers on one side, the tail on the other.

What is before the cut runs once per image, and its result is cached; what follows is linearised. The model decides how
it is linearised; ``path`` and ``why`` of the tail's description say so.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from functools import partial
from threading import local
from typing import Any

import torch
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call

from taftcache.backbone.cut.describe import DescribedTail, describe
from taftcache.backbone.cut.locate import WITHOUT_HEAD, check_linear, classifier_of, elsewhere, locate
from taftcache.backbone.cut.remainder import PREFIX, Remainder
from taftcache.backbone.cut.trace import feature, trace
from taftcache.backbone.model import Backbone
from taftcache.backbone.spec import EVERY_BLOCK
from taftcache.errors import BackboneError, RecipeError
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.config import Linearisation, TailConfig
from taftcache.tangent.device import full_float32

AGREEMENT = 1e-5  # relative, of prefix and rest with the whole model in float32; a leak would show as NaN


class _Reached(Exception):
    """The cut's module is about to run on ``rows``; nothing from there on needs to run."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows


class _Asked(local):
    """What this thread wants of a model: to stop before the module ``start`` or, under torch.export, to leave ``rows``.

    An exception cannot leave modules that are being traced, so they run to the end; torch.export then removes what was
    computed for nothing.
    """

    start = ""
    rows: Tensor | None = None


_asked = _Asked()


class Cut:
    """The two halves of ``backbone`` around the input of a module.

    Args:
        backbone: the frozen model.
        blocks: the tail is the last k blocks (0: the head alone), or begins at the module of this timm name.

    start: timm's name for the module whose input is cached, "" for the head. shape: the shape of one sample there, as
    the model has it. tokens_shape: (t, d), the same numbers as a store keeps them: [prod/last, last].

    Raises:
        BackboneError: no such module, or the model cannot be cut there; says why not. RecipeError: a tail of a head
            that reads every block.
    """

    def __init__(self, backbone: Backbone, blocks: int | str = 1) -> None:
        if backbone.features == EVERY_BLOCK and blocks != 0:
            raise RecipeError(
                "a head that reads every block is trained alone: there is no tail between it and the blocks",
                got=f"tangent.blocks = {blocks!r} with backbone.features = {EVERY_BLOCK!r}",
                do='set tangent.blocks = 0 (and tangent.init = "zero"), or backbone.features = "last"',
            )
        self.backbone, self._model = backbone, backbone.model
        self._image_shape = tuple(backbone.data_config["input_size"])
        self._classifier = classifier_of(backbone)
        with torch.inference_mode(False), full_float32(backbone.device):
            self._trace = trace(self._model, backbone.name, self._image_shape)
            assert self._trace.feature is not None
            self.start = locate(backbone.name, self._trace, blocks, self._model, self._fits)
            self._rest: Remainder | None = None
            self.parameters: tuple[str, ...] = ()
            self.buffers: tuple[str, ...] = ()
            self._fixed: tuple[str, ...] = ()  # what the model's own code reads besides the parameters
            self.shape: tuple[int, ...] = self._trace.feature.lengths[1:]
            fault = self._fault() if self.start else ""
            if fault:
                raise BackboneError(
                    f"{backbone.name} cannot be cut before {self.start}: {fault}",
                    do=elsewhere(self._trace, self._model, self.start, self._fits),
                )
            size = torch.Size(self.shape).numel()
            self.tokens_shape: tuple[int, int] = (size // self.shape[-1], self.shape[-1])
            self._closed: DescribedTail | str = ""
            if self.start:
                self._closed = self._describe()
            if self._head()[0] is not None and not isinstance(self._model, VisionTransformerDistilled):
                check_linear(backbone.name, self._model, self._classifier, self._image_shape, do=WITHOUT_HEAD)
            if isinstance(self._closed, DescribedTail):
                self.buffers = tuple(self._closed.buffers)
                self._fix_all_but(self._closed.read)
        self._dtype = getattr(torch, backbone.precision)
        # In half precision the frozen layers are a copy: the tail, and everything examined above, stay in float32.
        self._frozen = self._model if self._dtype == torch.float32 else copy.deepcopy(self._model).to(self._dtype)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.backbone.device

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the tail's blocks, first to last."""
        names = [call.name for call in self._trace.calls]
        after = set(names[names.index(self.start) :]) if self.start else set()
        return tuple(name for name in self._trace.blocks if name in after and names.count(name) == 1)

    def prefix(self, images: Tensor) -> Tensor:
        """Rows [n, t, d] that enter the tail, for preprocessed float32 images [n, 3, h, w].

        Bit-equal to what a forward pre-hook on the module sees; nothing after the cut is run. Several threads may call
        it. The rows are float32, whatever the backbone's precision.
        """
        if images.ndim != 4 or tuple(images.shape[1:]) != self._image_shape:
            raise BackboneError(
                f"images have the shape {list(images.shape)}, but the model takes {['n', *self._image_shape]}"
            )
        if self._frozen is self._model:  # in the model's own precision: a test's oracle may have made it float64
            return self.frozen_rows(images)
        return self.frozen_rows(images.to(self._dtype)).float()

    def frozen_rows(self, images: Tensor) -> Tensor:
        """``prefix`` in the backbone's precision, for images in that precision."""
        with torch.no_grad():
            rows = self._input(images, self._frozen)
            return rows.reshape(images.shape[0], *self.tokens_shape).contiguous()

    def replay(self, rows: Tensor) -> Tensor:
        """Logits [n, K] of the model's own tail and head on rows [n, t, d] (an oracle for tests)."""
        x = rows.flatten(1)
        if self._rest is not None:
            x = functional_call(self._rest, self._held(), (rows,))
        weight, bias = self._head()
        return x if weight is None else nn.functional.linear(x, weight, bias)

    def tail_state(self) -> dict[str, Tensor]:
        """Copies of the tail's tensors on the CPU in float32, by timm's names: parameters, buffers, head."""
        state = self._model.state_dict()
        tables = self._closed.buffers if isinstance(self._closed, DescribedTail) else {}
        named = {name: tables[name] if name in tables else state[name] for name in (*self.parameters, *self.buffers)}
        weight, bias = self._head()
        named |= {f"{self._classifier}.{k}": t for k, t in (("weight", weight), ("bias", bias)) if t is not None}
        return {name: tensor.detach().cpu().clone() for name, tensor in named.items()}

    def tail_config(self) -> TailConfig:
        """What the tail is, and how it is linearised."""
        assert self._trace.feature is not None
        closed = self._closed
        row = isinstance(closed, DescribedTail) and not closed.layers and isinstance(closed.end, ClassRow)
        path: Linearisation = "class row" if row else "layers"
        if isinstance(closed, str):
            path = "functional" if self.start else "feature"
        return TailConfig(
            path=path,
            why=closed if isinstance(closed, str) else "",
            start=self.start,
            blocks=self.blocks,
            shape=self.shape,
            class_token=_has_class_token(self._model, self.start, len(self.shape)),
            head=self._classifier,
            width=self._trace.feature.lengths[1],
            classes=int(self._model.num_classes),  # type: ignore[arg-type]
            parameters=self.parameters,
            norms=tuple(name for name in self.parameters if _is_norm(self._model, name)),
            buffers=self.buffers,
            layers=() if isinstance(closed, str) else closed.layers,
            end=None if isinstance(closed, str) else closed.end,
        )

    def module(self) -> nn.Module | None:
        """The tail up to the head's input, for ``torch.func.functional_call`` with the state's tensors.

        The module holds none of them itself. None if the rows are the head's input.
        """
        return self._rest

    def _describe(self) -> DescribedTail | str:
        """The tail as closed-form layers, or why not."""
        model: Any = self._model
        grid = None
        if type(model) in (VisionTransformer, Eva):
            names = [f"blocks.{k}" for k in range(len(model.blocks))]
            if self.start not in names:
                return f"the tail begins inside the model's last blocks, at {self.start}"
            grid = model.patch_embed.dynamic_feat_size(self._image_shape[1:])
            return describe(model, len(names) - names.index(self.start), grid)
        return describe(model, 1)

    def _fix_all_but(self, read: Container[str]) -> None:
        """Fix the parameters that no layer reads: frequencies of rotary embeddings, which are now in tables."""
        self._fixed += tuple(name for name in self.parameters if name not in read)
        self.parameters = tuple(name for name in self.parameters if name in read)

    def _head(self) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of the model's own classifier on the head's input; None if it has none."""
        if self._model.num_classes == 0:
            return None, None
        heads: Any = [self._model.get_submodule(self._classifier)]
        if isinstance(self._model, VisionTransformerDistilled):
            heads = [self._model.head, self._model.head_dist]
        if isinstance(heads[0], nn.Identity):
            return None, None
        biases = [head.bias for head in heads if head.bias is not None]
        return torch.cat([head.weight for head in heads], 1), sum(biases) / len(biases) if biases else None

    def _input(self, images: Tensor, model: nn.Module) -> Tensor:
        """The input of the cut's module; ``model`` is the backbone's, or a copy of it with its hooks."""
        if not self.start:
            return feature(model, images)
        _asked.start, _asked.rows = self.start, None
        try:
            feature(model, images)
        except _Reached as reached:
            return reached.rows
        finally:
            _asked.start, rows = "", _asked.rows
            _asked.rows = None
        if rows is not None:
            return rows
        raise BackboneError(f"{self.backbone.name} calls other layers than before", got=f"{self.start} was not called")

    def _held(self) -> dict[str, Tensor]:
        """The model's own tensors of the tail, by the names that the rest takes."""
        state = self._model.state_dict()
        return {f"{PREFIX}{name}": state[name] for name in (*self.parameters, *self._fixed)}

    def _fits(self, start: str) -> bool:
        """Whether the model can be cut before ``start``, found by trying it."""
        tried = copy.copy(self)
        tried.start = start
        try:
            return not tried._fault()
        except Exception:  # a model's code may raise anything on what such a cut leaves of it
            return False

    def _fault(self) -> str:
        """Find what the tail depends on by a backward pass; "" if prefix and rest make up the model, else why not."""
        self._rest = rest = Remainder(self._model, self._trace, self.start, self._image_shape)
        self.shape, state = rest.shape, self._model.state_dict()
        self._model.get_submodule(self.start).register_forward_pre_hook(partial(_stop_before, self.start))
        drawn = torch.randn(2, *self._image_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        images = drawn.to(self.device)
        seen: list[Tensor] = []
        hook = self._model.get_submodule(self.start).register_forward_pre_hook(
            lambda _, args: seen.append(args[0].clone())  # some modules work in place
        )
        with torch.no_grad():
            expected = feature(self._model, images)
        hook.remove()
        (rows,) = seen
        live = {name: state[name].detach().requires_grad_() for name in rest.parameters_live}
        fixed = {name: state[name].detach() for name in rest.buffers_live if not name.endswith("num_batches_tracked")}
        tensors = {f"{PREFIX}{name}": tensor for name, tensor in (live | fixed).items()}
        with torch.enable_grad():
            total = functional_call(rest, tensors, (rows,)).sum()
        used = _reached(total, live)
        early = self._before(images[:1], [name for name in used if name in rest.shared])
        self.parameters = tuple(name for name in used if name not in early)
        self.buffers = self._fixed = (*(name for name in used if name in early), *fixed)
        rest.fill(self._model, (*self.parameters, *self._fixed))
        with torch.no_grad():
            found = functional_call(rest, self._held(), (rows,))
        name = self.backbone.name
        if not torch.isfinite(expected).all():
            raise BackboneError(f"the features of {name} are not finite", got="NaN or infinity for random images")
        if not torch.isfinite(found).all():
            return "a residual or parallel branch that reaches the head goes around it"
        if (off := (found - expected).norm() / expected.norm()) > AGREEMENT:
            return f"the two parts compute something else than the model (features {off.item():.1e} off)"
        return ""

    def _before(self, images: Tensor, names: Sequence[str]) -> set[str]:
        """Those of the parameters on which the rows depend too: they stay fixed."""
        parameters = {name: self._model.get_parameter(name) for name in names}
        try:
            for parameter in parameters.values():
                parameter.requires_grad_(True)
            with torch.enable_grad():
                return set(_reached(self._input(images, self._model).sum(), parameters))
        finally:
            for parameter in parameters.values():
                parameter.requires_grad_(False)


def _reached(total: Tensor, named: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that ``total`` was computed from."""
    if not named or not total.requires_grad:
        return []
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return [name for name, gradient in zip(named, gradients, strict=True) if gradient is not None]


def _stop_before(start: str, _: nn.Module, args: tuple[Any, ...]) -> None:
    """A hook on the module ``start``. It refers to no cut, because a copy of the model copies its hooks."""
    if _asked.start == start:
        if not torch.compiler.is_exporting():
            raise _Reached(args[0])
        _asked.rows = args[0].clone()  # some modules work in place


def _has_class_token(model: nn.Module, start: str, axes: int) -> bool:
    """Whether row 0 at ``start`` is a class token."""
    kinds = (VisionTransformer, Eva, Beit)
    return start.startswith("blocks.") and axes == 2 and isinstance(model, kinds) and model.cls_token is not None


def _is_norm(model: nn.Module, name: str) -> bool:
    """Whether a parameter is the affine of a normalisation; timm's own normalisations say so in their class names."""
    module = model.get_submodule(name.rpartition(".")[0])
    kinds = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)
    return isinstance(module, kinds) or "Norm" in type(module).__name__
