"""A component: one trained Δw, as one safetensors file with timm's parameter names; and how a store keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.consent import Consent, check_architecture
from taftcache.errors import CompositionError, FormatError, StoreError, UnknownName
from taftcache.model.component_file import KEY, check_dtypes, header_of, no_component, numbers_digest
from taftcache.model.meta import ComponentMeta, meta_of
from taftcache.names import PRIVATE, is_model, one_of_trained, typed
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.parameters import Layout
from taftcache.tangent.spec import TAIL, TangentSpec

DUAL = "taftcache.dual"  # no parameter has this name

# What a component or model says about itself outside its store. Its key has digests of its rows, so it stays behind.
# ``export_component`` adds what another store compares (``stages/train/trained_on.py``), which has a list of its own.
PUBLIC = (
    "kind", "train", "shards", "rows", "converged", "status", "stats", "convergence", "certificate", "norm",
    "ridge_choice", "identity_error", "start", "from_mean",
)  # fmt: skip
# Not ``coefficients`` and ``members``: they have the names that a store gives its partners, digests of their files and,
# in shares of rows, how many each has. Nobody needs them elsewhere but to derive the promise of a private sum again,
# whose members are all of its own store.
# For a private one, only what its noise and its settings decide; ``rows`` is the number that was released with noise,
# or may be known.
PUBLIC_IF_PRIVATE = ("kind", "train", "shards", "rows", "stats", "norm", "coefficients", PRIVATE)
PRIVATE_STATS = ("rows_said", "learning_rate")


def public_fields(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a component's ``meta`` that may leave its store: no field that is not listed above."""
    if PRIVATE not in meta:
        return {key: meta[key] for key in PUBLIC if key in meta}
    kept = {key: meta[key] for key in PUBLIC_IF_PRIVATE if key in meta}
    if "stats" in kept:
        kept["stats"] = {key: kept["stats"][key] for key in PRIVATE_STATS if key in kept["stats"]}
    return kept


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Component:
    """Δw [P] in float64 around the base with ``base_digest``; ``meta`` is JSON that says where it came from.

    It is float64 because the certificate is about exactly these numbers. ``dual`` is α [N,K] with Δw = Jᵀα, if the
    exact model keeps it as a start for solving again when rows leave. It says something about single rows, so it stays
    in their store.

    After a solve, ``layout`` is the base's layout of what the objective trained: ``base.trained(objective.train)``.

    Raises:
        CompositionError: Δw has more or fewer numbers than the parameters of ``layout``.
    """

    base_digest: str
    layout: Layout
    delta: Tensor
    meta: dict[str, Any] = field(default_factory=dict)
    dual: Tensor | None = None

    def __post_init__(self) -> None:
        if self.delta.shape != (self.layout.size,):
            raise CompositionError(
                "Δw does not have as many numbers as the parameters that it is said to move",
                got=f"shape {list(self.delta.shape)}, {self.layout!r}",
                do="take the layout of what was trained: base.trained(objective.train)",
            )

    @property
    def record(self) -> ComponentMeta:
        """What ``meta`` says, typed; FormatError for a value of another type."""
        return meta_of(self.meta)

    @property
    def numbers(self) -> str:
        """A digest of Δw as every file of it has it, by which such a file is known again."""
        return numbers_digest(replace(self, dual=None).encode())

    def encode(self) -> bytes:
        """The file's bytes; the same component gives the same bytes."""
        header = json.dumps({"base_digest": self.base_digest, "meta": self.meta}, sort_keys=True)
        tensors = {name: view.contiguous() for name, view in self.layout.views(self.delta.cpu()).items()}
        if self.dual is not None:
            tensors[DUAL] = self.dual.cpu().contiguous()
        return save(tensors, {KEY: header})

    @classmethod
    def decode(cls, data: bytes, within: Base | Layout | None = None) -> Component:
        """Read a component; its parameters are in the order of ``within``, because the file has none.

        Raises:
            FormatError: not a component, or over parameters that ``within`` does not have.
        """
        try:
            tensors = load(data)  # first, for its errors say what is wrong with a file of another kind
            size = int.from_bytes(data[:8], "little")
            described = json.loads(data[8 : 8 + size])
            header = header_of(described["__metadata__"][KEY])
            check_dtypes({name: said["dtype"] for name, said in described.items() if name != "__metadata__"})
        except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise no_component(error) from error
        dual = tensors.pop(DUAL, None)
        if dual is not None and (dual.ndim != 2 or dual.dtype != torch.float64):
            raise FormatError(
                "the dual vectors are not [rows, classes] in float64", got=f"{tuple(dual.shape)}, {dual.dtype}"
            )
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        layout = Layout(dict(sorted(found.items())))
        if within is not None:
            try:
                layout = within.named(found)
            except KeyError as error:
                raise FormatError(
                    "the component has a parameter that is not of its base", got=str(error.args[0])
                ) from error
            if layout.shapes != found:
                wrong = sorted(set(found.items()) ^ set(layout.shapes.items()))[:4]
                raise FormatError("the component's parameters have other shapes than those of its base", got=wrong)
        return cls(header.base_digest, layout, layout.flatten(tensors, torch.float64), header.meta, dual)


@at_its_place()
def read_base(store: Place, spec: TangentSpec, classes: int | None = None, *, consent: Consent | None = None) -> Base:
    """The base point of the store's tail under ``spec``; a functional tail needs timm's code, none needs weights.

    Args:
        store: the store whose rows are to be trained on, or its place.
        spec: which blocks are trained, and from where: ``recipe.tangent``.
        classes: another K than the store's, for a store that is about to lose classes.
        consent: what the store may open; by default what the user has allowed before.

    Raises:
        StoreError: the store has only rows. UntrustedStore: a model hub that nobody allowed would be asked for that
            code.
    """
    assert isinstance(store, FeatureStore)
    if TAIL not in store.objects():
        raise StoreError(
            f"{store.path} has rows alone, without the base point that training starts from",
            do="import its rows with --recipe, which names the backbone that made them",
        )
    state = load(store.read_object(TAIL))
    config = TailConfig.from_dict(store.objects(TAIL)[TAIL].meta)
    module = None
    if config.path == "functional" and config.rows != "feature":
        check_architecture(store, consent)
        from taftcache.backbone.cut.architecture import tail_module  # late: timm, which no other tail needs

        module = tail_module(store.identity, config, state)
    return make_base(state, config, classes or len(store.classes), spec, module)


def put_component(change: Transaction, name: str, component: Component) -> None:
    """Stage a component under ``name``, its meta and its base's digest beside it in the manifest."""
    change.put(name, component.encode(), {**component.meta, "base_digest": component.base_digest})


def no_model(store: FeatureStore, name: str) -> StoreError:
    """The error for a store without the model ``name``, which nobody may have asked for if there is none at all."""
    if not (there := [n for n in store.objects() if is_model(n)]):
        return StoreError(f"no model in {store.path} yet", do=f"taftcache train {typed(store.path)}")
    do = one_of_trained(there, name)
    return UnknownName(f"no model named {name} in {store.path}", got=name, names=[name], do=do)


def read_component(store: FeatureStore, name: str, base: Base) -> Component:
    """The component or model ``name`` of a store ("components/000", "models/mean").

    Raises:
        StoreError: no such name. CompositionError: it was trained around another base.
    """
    ref = store.objects().get(name)
    if ref is None or not is_model(name):
        raise no_model(store, name)
    around = str(ref.meta.get("base_digest", "none named"))
    if around != base.digest:
        raise CompositionError(
            f"{name} was trained around another base point",
            got=f"{name}: base {around[:16]}, the store's settings make {base.digest[:16]}",
            do=f"taftcache train {typed(store.path)}, which renews every component of another base",
        )
    return Component.decode(store.read_object(name), base)


class StoredComponents(Mapping[str, Component]):
    """Components and models by ``names``: a new one from ``made`` if there is one of that name, else the store's, which
    is read each time it is asked for and not kept. Errors are those of ``read_component``.
    """

    def __init__(
        self, store: FeatureStore, names: Iterable[str], base: Base, made: Mapping[str, Component] | None = None
    ) -> None:
        self._store, self._names, self._base, self._made = store, dict.fromkeys(names), base, made or {}

    def __getitem__(self, name: str) -> Component:
        if name not in self._names:
            raise KeyError(name)
        return self._made.get(name) or read_component(self._store, name, self._base)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def of(self, names: Iterable[str]) -> StoredComponents:
        """The same, with ``names`` alone."""
        return StoredComponents(self._store, names, self._base, self._made)

    def metas(self) -> dict[str, dict[str, Any]]:
        """The meta of each, without the curve of its solve; no component is read."""
        objects = self._store.manifest.objects
        return {name: self._made[name].meta if name in self._made else objects[name].meta for name in self._names}

    def size(self, name: str) -> int:
        """Bytes that Δw takes in float32, or slightly more."""
        made = self._made.get(name)
        return self._store.manifest.objects[name].size // 2 if made is None else 4 * made.layout.size

    def groups(self, memory: int) -> Iterator[list[str]]:
        """The names in order, in groups whose Δw together take at most ``memory`` bytes in float32. There is at least
        one group; a name that takes more is alone in its group."""
        group, left = list[str](), memory
        for name in self:
            if group and self.size(name) > left:
                yield group
                group, left = [], memory
            group.append(name)
            left -= self.size(name)
        yield group
