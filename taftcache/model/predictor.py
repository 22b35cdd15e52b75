"""The tangent model: from an image to logits, base and Δw in one pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from typing import Any, Self
from warnings import warn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.files import weights_file
from taftcache.backbone.forward.extract import default_batch
from taftcache.backbone.model import Backbone, load_backbone
from taftcache.backbone.pool import one_core_pool
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.pictures import called, listed
from taftcache.backbone.sources.rgb import Picture
from taftcache.backbone.spec import BackboneSpec
from taftcache.cache.opening import Place
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, check_weights_there, followed
from taftcache.errors import (
    ArgumentError,
    BackboneError,
    CompositionError,
    IdentityError,
    RecipeError,
    UnreadableImage,
    check_counts,
    first_line,
)
from taftcache.model.calibration import probabilities
from taftcache.model.component import Component, read_base, read_component
from taftcache.model.outdated import OUTDATED, Keys, outdated
from taftcache.names import counted, model_of, scaling_of
from taftcache.tangent.base import Base
from taftcache.tangent.device import full_float32


@dataclass(frozen=True)
class Alike:
    """The held-out rows with the nearest margins.

    right: how many of them got their own class. rows: how many; 0 beyond the largest margin. largest: the largest
    margin of all held-out rows.
    """

    right: int
    rows: int
    largest: float


@dataclass(frozen=True)
class Prediction:
    """The classes of one image, the largest logit first. A logit is no probability: softmax of the logits gives one
    only if they are divided by a temperature that suits held-out rows.

    image: the file, a vector's id, or where it was given. For an image in memory its place in the list: "at index 3";
    for a row of a file of vectors without ids the path and the row's number: "new.npy/00000003". labels: as texts, "7"
    for a class that was given as 7. logits: of these labels. index: place of the first label among the model's classes.
    margin: by how much the first logit exceeds the second; None for one class. alike: how often such a margin was
    right, if held-out rows tell. probabilities: of these labels, among all classes, if there are two and held-out rows
    gave a temperature: to ``taftcache.predict``, or to ``export_model``, whose folder keeps it.
    """

    image: str
    labels: list[str]
    logits: list[float]
    index: int
    margin: float | None = None
    alike: Alike | None = None
    probabilities: list[float] | None = None

    @classmethod
    def of(
        cls, image: str, logits: np.ndarray, classes: Sequence[str], top: int, temperature: float | None = None
    ) -> Prediction:
        """From logits [K] of all ``classes``: the ``top`` of them."""
        order = np.argsort(-logits, kind="stable")
        margin = float(logits[order[0]] - logits[order[1]]) if len(classes) > 1 else None
        best, likely = order[:top], None
        if temperature is not None and margin is not None:
            likely = probabilities(logits, temperature)[best].tolist()
        return cls(
            image,
            [classes[k] for k in best],
            [float(logits[k]) for k in best],
            int(best[0]),
            margin,
            probabilities=likely,
        )


def check_weights(store: FeatureStore, backbone: Backbone, spec: BackboneSpec) -> None:
    """IdentityError if a backbone, as ``spec`` names it, has other weights than those that made the store's rows."""
    made_with = str(store.identity.get("backbone", {}).get("weights_digest", "none named"))
    if backbone.weights_digest != made_with:
        raise IdentityError(
            "the backbone has other weights than those that made the store's features",
            got=f"{backbone.name} with digest {backbone.weights_digest[:16]}, the store's is {made_with[:16]}; opened"
            f" was {weights_file(spec) or spec.weights}",
            do="put the original weights back there, or name where they lie (--weights FILE; in Python "
            "Consent(weights=…))",
        )


def warn_if_outdated(store: FeatureStore, name: str | None) -> None:
    """Warn whoever called the caller if the model ``name`` of a store is outdated."""
    if old := outdated(store, Keys.recorded(store), model_of(store.objects(), name)):
        warn(f"{old[0]} was {OUTDATED}: train and compose again", stacklevel=3)


class TangentModel(nn.Module):
    """f_w(x) + J(x) Δw: the frozen layers once, then value and tangent of the tail together.

    ``forward`` takes preprocessed images [n,3,h,w] and gives logits [n,K]. Weights are buffers, so that ``to``
    moves the whole model. Evaluation only: no gradient reaches the weights, ``train`` leaves the model as it is, and
    ``load_state_dict`` takes no other weights than those it has. ``temperature`` is that of the probabilities of
    ``predict``, softmax(logits / temperature). A folder of ``export_model`` brings it along, unless the model is
    private; ``load`` fits none: then it is None, and there are no probabilities. ArgumentError where it is set to
    anything else than None or a finite number above 0. ``root_digest`` is the store's when ``load`` read it, None for a
    model from elsewhere. Several threads may call a model at once.

    Raises:
        CompositionError: ``component`` was trained around another base point than ``base``.
    """

    def __init__(
        self, cut: Cut, transform: Preprocess, base: Base, component: Component, classes: Sequence[str]
    ) -> None:
        super().__init__()
        if not base.has_digest(component.base_digest):
            raise CompositionError(
                "the component was trained around another base point",
                got=f"base {component.base_digest[:16]}, the model's is {base.digest[:16]}",
                do="take a component of the model's own store",
            )
        self.cut, self.transform, self.classes = cut, transform, list(classes)
        self._temperature: float | None = None
        self.root_digest: str | None = None
        self.backbone = cut.backbone.model
        self.base, self.component = replace(base.unreduced(), module=cut.module()), component
        self._tail = self.base.tail
        self._base = _Named(self.base.state)
        self._delta = _Named(component.layout.views(component.delta))
        self.register_load_state_dict_pre_hook(_keep_weights)  # type: ignore[no-untyped-call]
        self.to(cut.device).eval()

    @property
    def temperature(self) -> float | None:
        """T in softmax(logits / T); None: no probabilities."""
        return self._temperature

    @temperature.setter
    def temperature(self, given: float | None) -> None:
        if given is not None and not (isinstance(given, Real) and 0 < given < inf):
            raise ArgumentError(
                "a temperature must be a number above 0, or None for no probabilities",
                got=repr(given)[:80],
                do='evaluate(store).calibration["models/exact"].temperature, say',
            )
        self._temperature = given

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation whatever ``mode`` says: some layers in training would use the statistics of each batch."""
        return super().train(False)

    @classmethod
    def load(
        cls,
        store: Place,
        name: str | None = None,
        device: str = "auto",
        consent: Consent | None = None,
    ) -> TangentModel:
        """The model ``name`` of a store ("models/mean", "components/000", …) on its backbone, by default ``model_of``.

        The store is one of images: for a store of vectors, which has no network, there are ``predict`` and ``logits``.
        ``consent`` names weights instead of the store's, or lets the model hub be asked for them. A warning says if the
        model was not made from the rows and settings that the store has now.

        Raises:
            StoreError: no such model. UntrustedStore: only the store names the weights.
            BackboneError: the store was made from vectors, without a backbone.
            IdentityError: the backbone at hand has other weights than the store's.
        """
        with nullcontext(store) if isinstance(store, FeatureStore) else FeatureStore(store) as opened:
            model = cls.read(opened, name, device, consent)
            warn_if_outdated(opened, name)
        return model

    @classmethod
    def read(cls, store: FeatureStore, name: str | None, device: str, consent: Consent | None) -> TangentModel:
        """As ``load``, for reports that say themselves what is outdated."""
        if scaling_of(store.identity) is not None:
            raise BackboneError(
                f"{store.path} was made of vectors, and has no backbone that takes images",
                do="with vectors of the model that made its own: taftcache predict STORE vectors.npy; in Python "
                "predict(store, x) for classes, logits(store, x) for all logits [n, K]",
            )
        recipe = followed(store, "weights", consent)
        check_weights_there(store, recipe, "options")
        backbone = load_backbone(recipe.backbone, recipe.preprocess, device)
        check_weights(store, backbone, recipe.backbone)
        base = read_base(store, recipe.tangent, consent=consent)
        component = read_component(store, model_of(store.objects(), name), base)
        # Cut where the rows were taken, which may be before the layers that are trained.
        cut = Cut(backbone, base.config.start or 0)
        model = cls(cut, Preprocess(backbone), base, component, store.classes)
        model.root_digest = store.root_digest
        return model

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Logits [n,K] of preprocessed images [n,3,h,w]."""
        device = self.cut.device
        images = images.to(device)
        if not torch.compiler.is_exporting() and not len(images):
            return images.new_empty((0, len(self.classes)), dtype=torch.float32)
        # A functional tail makes one pass at a time, and a program is traced in one thread.
        alone = self.base.config.path == "functional" or torch.compiler.is_exporting()
        if alone or device.type != "cpu" or (threads := torch.get_num_threads()) == 1 or len(images) < 2:
            return self._logits(images)
        pieces = images.split(min(default_batch(self.cut), -(-len(images) // threads)))
        with one_core_pool(min(threads, len(pieces)), "taftcache-predict") as pool:
            return torch.cat(list(pool.map(torch.no_grad()(self._logits), pieces)))  # each thread needs no_grad anew

    def _logits(self, images: Tensor) -> Tensor:
        w, delta = self._tail.bind(self._base.named()), self._tail.bind(self._delta.named())
        # The setting of precision is not part of a traced program.
        with nullcontext() if torch.compiler.is_exporting() else full_float32(images.device):
            value, change = self._tail.value_and_tangent(w, self.cut.prefix(images), delta)
            return value + change

    @torch.no_grad()
    def tokens(self, images: Iterable[Picture]) -> NDArray[np.float32]:
        """What the tail takes in, float32 [n,t,d], of images; see ``predict``."""
        inputs = [self.transform(picture, index) for index, picture in enumerate(listed(images))]
        if not inputs:
            return np.empty((0, *self.cut.tokens_shape), np.float32)
        with full_float32(device := self.cut.device):
            return self.cut.prefix(torch.stack(inputs).to(device)).float().cpu().numpy()

    def logits(self, images: Iterable[Picture], batch: int = 32) -> NDArray[np.float32]:
        """Logits float32 [n,K] of images as ``predict`` takes them, in the order of ``classes``.

        Raises:
            UnreadableImage, DataError, ArgumentError: as ``predict``.
        """
        check_counts(batch=batch)
        pictures, found = listed(images), [np.empty((0, len(self.classes)), np.float32)]
        for k in range(0, len(pictures), batch):
            batched = enumerate(pictures[k : k + batch], k)
            inputs = [self.transform(picture, index) for index, picture in batched]
            found.append(self(torch.stack(inputs)).cpu().numpy())
        return np.concatenate(found)

    def predict(
        self,
        images: Iterable[Picture],
        top: int = 3,
        batch: int = 32,
        on_unreadable: Callable[[str, UnreadableImage], None] | None = None,
    ) -> list[Prediction]:
        """The ``top`` classes of each image: image files, PIL images, or arrays of uint8 [h,w,3].

        ``on_unreadable`` is called with the name of each that cannot be read, for which there is then no prediction.

        Raises:
            UnreadableImage: a file that is missing, or an image that does not decode. DataError: one name in place of a
                list.
            ArgumentError: ``top`` or ``batch`` below 1.
        """
        check_counts(top=top, batch=batch)
        return list(self.predictions(listed(images), top, batch, on_unreadable))

    def predictions(
        self,
        pictures: Sequence[Picture],
        top: int = 3,
        batch: int = 32,
        on_unreadable: Callable[[str, UnreadableImage], None] | None = None,
    ) -> Iterator[Prediction]:
        """As ``predict``, each as soon as its batch has been through the model."""
        for k in range(0, len(pictures), batch):
            names, inputs = list[str](), list[Tensor]()
            for index, picture in enumerate(pictures[k : k + batch], k):
                name = called(picture, index)
                try:
                    inputs.append(self.transform(picture, index))
                    names.append(name)
                except UnreadableImage as error:
                    if on_unreadable is None:
                        raise
                    on_unreadable(name, error)
            logits = self(torch.stack(inputs)).cpu().numpy() if inputs else ()
            for name, row in zip(names, logits, strict=True):
                yield Prediction.of(name, row, self.classes, top, self.temperature)

    def merged(self) -> nn.Module:
        """The same function as an ordinary timm model, if there is one: when only the head has moved.

        Raises:
            CompositionError: other parameters moved (a first-order change is not a network with other
                weights), or the base point has a tensor that timm's model does not.
        """
        config = self.base.config
        if moved := [name for name in self.component.layout if name not in config.head_names]:
            raise CompositionError(
                "the model cannot be merged: more than its head has moved",
                got=f"{counted(len(moved), 'other tensor')} moved, {moved[0]} among them",
                do="train the head alone, or save the tangent model itself",
            )
        if (features := self.cut.backbone.features) != "last":
            raise CompositionError(
                "the model cannot be merged: its head reads what timm's model does not give it",
                got=f"backbone.features = {features!r}",
                do="save the tangent model itself",
            )
        model: Any = copy.deepcopy(self.backbone)
        model.reset_classifier(len(self.classes))
        state = self.base.moved(self.component.layout, self.component.delta)
        there = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        for name in set(config.buffers).difference(there):  # tables that timm's model makes, such as that of a RoPE
            del state[name]
        if strange := [name for name, tensor in state.items() if there.get(name) != tuple(tensor.shape)]:
            raise CompositionError(
                "the base point has tensors that timm's model does not have",
                got=strange[:3],
                do="save the tangent model itself",
            )
        model.load_state_dict(state, strict=False)
        merged: nn.Module = model.eval()
        return merged

    def program(self, batch: int = 2) -> torch.export.ExportedProgram:
        """The whole model as a ``torch.export`` program of images [n,3,h,w] that needs neither us nor timm.

        Args:
            batch: rows of the example that it is traced with; n is free afterwards.

        Raises:
            RecipeError: a functional tail. BackboneError: a model that torch.export cannot trace.
        """
        if self.base.config.path == "functional":
            raise RecipeError(
                "torch.export cannot trace a functional tail",
                got=f"a functional tail: {self.base.config.why}",
                do="save the model without the program and ONNX",
            )
        example = torch.zeros(batch, *self.transform.image_shape, dtype=torch.float32, device=self.cut.device)
        shapes = {"images": {0: torch.export.Dim("n", min=1)}}
        try:
            with full_float32(self.cut.device):
                exported = torch.export.export(self, (example,), dynamic_shapes=shapes)
        except Exception as error:  # torch raises its own kinds, and whatever the model's code raises while traced
            raise BackboneError(
                f"torch.export cannot trace {self.cut.backbone.name}",
                got=f"{type(error).__name__}: {first_line(error)}",
                do="save the model without the program and ONNX",
            ) from error
        for module in exported.graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):  # the model's own layers behind the cut: see ``Cut``
                module.graph.eliminate_dead_code(_acts)
                module.recompile()
        return exported

    def __repr__(self) -> str:
        trained = f"classes={len(self.classes)}, trained={self.component.layout.size:,}"
        return f"TangentModel(backbone={self.cut.backbone.name!r}, {trained}, device={str(self.cut.device)!r})"


class _Named(nn.Module):
    """float32 buffers under timm's names, whose dots a buffer's name may not have."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = list(tensors)
        for name, tensor in tensors.items():
            wide = tensor.float() if tensor.is_floating_point() else tensor
            self.register_buffer(name.replace(".", "/"), wide.detach().clone())

    def named(self) -> dict[str, Tensor]:
        """The buffers by name."""
        return {name: self.get_buffer(name.replace(".", "/")) for name in self._names}


def _keep_weights(model: TangentModel, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """CompositionError for a ``state`` with other weights: the model would compute with others than it saves."""
    for name, own in model.state_dict().items():
        given = state.get(prefix + name, own)
        if not torch.equal(given.to(own), own):
            raise CompositionError(
                "a tangent model's weights cannot be replaced by those of a state",
                got=f"another tensor as {prefix}{name}",
                do="make the model that the state was taken from, with TangentModel.load or open_model",
            )


def _acts(node: torch.fx.Node) -> bool:
    """Whether an operation of a program does more than give a result.

    Operations that may draw random numbers draw none in evaluation. A check of a tensor's type counts for inputs only,
    because all other types follow from theirs.
    """
    if node.target is torch.ops.aten._assert_tensor_metadata.default:
        return all(given.op == "placeholder" for given in node.all_input_nodes)
    return node.is_impure() and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
