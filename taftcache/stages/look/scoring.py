"""Logits of cached rows under the base point and every model of a store, and how far rows can have moved a solution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.backbone.device import float64_device, resolve_device
from taftcache.cache.format.fault import DAMAGE, problem_of
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import grouping_recipe, groups_here, recorded_recipe
from taftcache.errors import RecipeError
from taftcache.model.component import StoredComponents
from taftcache.model.meta import meta_of
from taftcache.model.outdated import outdated
from taftcache.names import PRIVATE, component_of, is_component, is_model, one_of_trained, shard_of
from taftcache.report.paired import RowGroups
from taftcache.stages.look.row_table import STEP_ROWS, Reader, RowTable
from taftcache.stages.memory import memory_of_models
from taftcache.stages.progress import Progress
from taftcache.stages.train.record import settings_of
from taftcache.tangent.class_row.tail import ClassRowTail
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import RowSource
from taftcache.tangent.tail import row_norms

# For the logits of held-out rows, kept for composing; if they need more, rows are left out evenly.
KEPT_BYTES = 256 << 20
# The rounding error of a float64 sum, as a share of its terms: 2⁻⁵³ for each of up to a million.
ROUNDING = 1e-10


class Scorer:
    """The base point and models of a store, ready for blocks of rows; the store stays open. Several threads may use it
    in turn. Models that ``solver.memory`` has no room for are read again when they are asked for.

    models: names of components and models, as the store lists them. layouts: the parameters that each is over.
    outdated: those that were made from other rows or settings. damaged: models left out because their files are
    damaged, and how; without ``skip_damaged`` that is an error.
    """

    def __init__(self, store: FeatureStore, *, skip_damaged: bool = False) -> None:
        settings = settings_of(store)
        self.outdated = outdated(store, settings.keys)
        self.recipe, self.base, self.loss = settings.recipe, settings.base, settings.loss
        self.models = [name for name in store.objects() if is_model(name)]
        self.operator = TangentOperator(self.base, [], device=resolve_device(self.recipe.device))
        objective = self.recipe.objective
        # whether a row enters the gradient of F through ∂ℓ alone: no class weights, no ball, f₀ not left out
        self.plain = objective.class_weights == "none" and not objective.jvp_only and not objective.radius
        self.layouts: dict[str, Layout] = {}
        self._stored = StoredComponents(store, self.models, self.base)
        self._metas = self._stored.metas()
        self._memory = self._room = memory_of_models(self.recipe)
        self._directions: dict[str, Any] = {}  # the most recently used one is the last
        self.damaged: dict[str, str] = {}
        for name in list(self.models):  # fail on damaged files now, not at the first use
            try:
                self._direction(name)
            except DAMAGE as error:
                if not skip_damaged:
                    raise
                self.damaged[name] = problem_of(error)
                self.models.remove(name)
        self._stored = self._stored.of(self.models)
        self._alone = Lock()  # the operator's way to a device serves one thread, and so do the directions

    def is_private(self, name: str) -> bool:
        """Whether ``name`` is a component or model that makes a promise of privacy."""
        return PRIVATE in self._metas.get(name, {})

    def is_weighed(self, name: str) -> bool:
        """Whether ``moved_at_most`` has a bound for the component ``name``: it must be a solution over several rows, of
        an objective without weights, ball, jvp_only or prior, and not outdated. A private component has noise in it, so
        it is no solution and needs no such bound. A damaged or missing component has none either."""
        there = name in self.models and name not in self.outdated
        solved = there and {"certificate", "rows"} <= self._metas[name].keys()
        return self.plain and not self.recipe.prior.teachers and solved and meta_of(self._metas[name]).row_count > 1

    def state(self, tokens: NDArray[Any]) -> Any:
        """The base model's state on rows [b,t,d]."""
        with self._alone:
            return self.operator.prepare(tokens)

    def logits(self, tokens: NDArray[Any], names: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """f_w [b,K] and J Δw [m,b,K] of the models ``names`` on rows [b,t,d]."""
        state = self.state(tokens)
        return _array(state.logits), np.stack([_array(self._tangent(state, n)) for n in names]) if names else np.empty(
            (0, *state.logits.shape), np.float32
        )

    def moved_at_most(self, tokens: NDArray[Any], labels: NDArray[np.int32], name: str) -> NDArray[np.float64]:
        """How far each training row [b,t,d] of the component ``name`` can at most have moved it [b], in float64.

        The optimum without row n is at most (‖N∇F(Δw)‖ + ‖J_nᵀ∂ℓ_n + λΔw‖) / ((N − 1)λ) from Δw: F without the row is
        λ-strongly convex too, and N − 1 times its gradient at Δw is N∇F(Δw) − (J_nᵀ∂ℓ_n + λΔw). NaN where
        ``is_weighed`` says that there is no bound.
        """
        if not self.is_weighed(name):
            return np.full(len(tokens), np.nan)
        component = self._stored[name]
        said = component.record
        certificate, N = said.certified, said.row_count
        ridge, norm = certificate.ridge, component.delta.norm().item()
        device = float64_device(self.recipe.device)
        operator = TangentOperator(self.base, [], trained=component.layout, dtype=torch.float64, device=device)
        state = operator.prepare(tokens)
        change = operator.tangent(state, operator.direction(component.delta))
        r = self.loss.gradient(state.logits + change, torch.from_numpy(labels.astype(np.int64)).to(device))
        norms = row_norms(operator.tail, operator.layout, operator.weights, state, r)
        along, own = ridge * (r * change).sum(1), (ridge * norm) ** 2
        # ‖Jᵀ∂ℓ‖² + 2λ ∂ℓᵀJΔw + λ²‖Δw‖² may cancel: add what rounding may have taken from it
        squares = norms.square() + 2 * along + own + ROUNDING * (norms.square() + 2 * along.abs() + own)
        moved = (N * certificate.gradient + squares.clamp_min(0).sqrt()) / ((N - 1) * ridge)
        return np.asarray(moved.cpu().numpy())

    def head_over(self, sources: Sequence[RowSource]) -> TangentOperator:
        """The head's operator over rows, where float64 is."""
        device = float64_device(self.recipe.device)
        return TangentOperator(self.base, sources, trained=self.base.head_layout, device=device)

    def norm(self, name: str) -> float:
        """‖Δw‖ of the component or model ``name``."""
        return float(self._stored[name].delta.norm())

    def attention(self, tokens: NDArray[Any]) -> tuple[NDArray[np.float32] | None, str]:
        """φ [H,t]: how much each head of the class row takes of each token, for row 0 of [b,t,d]; or None and why."""
        config = self.base.config
        rows = "feature" if config.path == "feature" else config.rows
        if rows != "tokens":
            return None, f"the store caches the {rows} of a sample, which holds no attention over the image"
        if not isinstance(self.base.tail, ClassRowTail):
            return None, f"this model's tail has no class row ({config.path}): {config.why}"
        spec = self.base.spec
        for drawn, part, setting in (
            (spec.reset_block, "last block", "tangent.reset_block"),
            (spec.class_token == "reset", "class token", "tangent.class_token"),
        ):
            if drawn:
                return None, f"its {part} was drawn from a seed ({setting}), so it attends at random before training"
        return _array(self.state(tokens).phi[0]), ""

    def tangent(self, tokens: NDArray[Any], layout: Layout, delta: torch.Tensor) -> NDArray[np.float32]:
        """J δ [b,K] on rows [b,t,d] for any direction δ over ``layout``."""
        state = self.state(tokens)
        with self._alone:
            return _array(self.operator.tangent(state, self.operator.direction(delta, layout)))

    def groups(self) -> Iterator[list[str]]:
        """``models`` in order, in groups that fit in memory: a pass over many rows takes one group at a time."""
        return self._stored.groups(self._memory)

    def _tangent(self, state: Any, name: str) -> torch.Tensor:
        with self._alone:
            return self.operator.tangent(state, self._direction(name))

    def _direction(self, name: str) -> Any:
        """Δw of a model in the tail's form. The most recently used ones are held, as many as there is memory for."""
        if name in self._directions:
            direction = self._directions.pop(name)
        else:
            component = self._stored[name]
            self.layouts[name] = component.layout
            self._room -= self._stored.size(name)
            while self._room < 0 and self._directions:
                first = next(iter(self._directions))
                del self._directions[first]
                self._room += self._stored.size(first)
            direction = self.operator.direction(component.delta, component.layout)
        self._directions[name] = direction
        return direction


@dataclass(frozen=True, kw_only=True)
class HeldOutLogits:
    """Base logits [n,K] and each component's tangent [S,n,K] on the held-out rows, so that any mean of them is cheap.

    rows: which of the held-out shard's ``of`` rows these are (all, unless that would not fit in memory).
    others: predictions [n] of the store's other models. margins: those models' margins [n], see ``margins``. groups: of
    the rows, see ``shown_groups``; or whether they are ``unsearched``.
    """

    rows: NDArray[np.int64]
    of: int
    labels: NDArray[np.int32]
    base: NDArray[np.float32]
    tangents: NDArray[np.float32]
    components: list[str]
    others: dict[str, NDArray[np.int64]]
    margins: dict[str, NDArray[np.float32]]
    groups: RowGroups | None = None
    unsearched: bool = False

    def logits(self, without: Iterable[str] = ()) -> NDArray[np.float32]:
        """Logits [n,K] of the mean of all components but those of the shards named ``without``.

        RecipeError when a shard is unknown or none is left.
        """
        kept = kept_components(self.components, without)
        index = [self.components.index(name) for name in kept]
        return np.asarray(self.base + self.tangents[index].mean(0))

    def predictions(self, without: Iterable[str] = ()) -> NDArray[np.int64]:
        """The classes [n] with the largest of these logits."""
        return np.asarray(self.logits(without).argmax(1))

    def accuracy(self, predictions: NDArray[np.int64]) -> float:
        """The fraction that is right."""
        return float((predictions == self.labels).mean())


def held_out_logits(store: FeatureStore, scorer: Scorer, shard: Shard, reader: Reader) -> HeldOutLogits:
    """Score the held-out rows, in one pass or in one for each group of the scorer's models."""
    components = [name for name in scorer.models if is_component(name)]
    others = [name for name in scorer.models if not is_component(name)]
    a_row = 4 * len(store.classes) * (len(components) + 1)
    count = min(shard.rows, max(1, KEPT_BYTES // a_row))
    rows = np.linspace(0, shard.rows - 1, count).round().astype(np.int64)
    base = np.empty((count, len(store.classes)), np.float32)
    tangents = np.empty((len(components), *base.shape), np.float32)
    place = {name: k for k, name in enumerate(components)}
    found = {name: np.empty(count, np.int64) for name in others}
    ahead = {name: np.empty(count, np.float32) for name in others}
    for names, k in product(scorer.groups(), range(0, count, STEP_ROWS)):
        here = slice(k, min(k + STEP_ROWS, count))
        base[here], changes = scorer.logits(reader.tokens(shard.name, rows[here]), names)
        for name, change in zip(names, changes, strict=True):
            if name in place:
                tangents[place[name], here] = change
            else:
                found[name][here] = (base[here] + change).argmax(1)
                ahead[name][here] = margins(base[here] + change, shard.labels[rows[here]])
    return HeldOutLogits(
        rows=rows,
        of=shard.rows,
        labels=shard.labels[rows],
        base=base,
        tangents=tangents,
        components=components,
        others=found,
        margins=ahead,
        groups=shown_groups(store, np.asarray(shard.sample_ids)[rows].tolist()),
        unsearched=unsearched(store),
    )


def shown_groups(store: FeatureStore, ids: Sequence[str]) -> RowGroups | None:
    """Which rows with these ``ids`` belong together, where a store is only looked at (``groups_here``); None where no
    two are known to."""
    return RowGroups.of(groups_here(store, ids))


def unsearched(store: FeatureStore) -> bool:
    """Whether rows may belong together, but which do is not looked for where a store is only looked at."""
    return recorded_recipe(store).data.group is not None and grouping_recipe(store) is None


def margins(logits: NDArray[np.float32], labels: NDArray[np.int32]) -> NDArray[np.float32]:
    """How far the logit of each row's class is above the largest other one [n], from logits [n,K]; NaN for K = 1."""
    if logits.shape[1] == 1:
        return np.full(len(logits), np.nan, logits.dtype)
    rows, others = np.arange(len(logits)), logits.copy()
    others[rows, labels] = -np.inf
    return np.asarray(logits[rows, labels] - others.max(1))


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What one model says of rows: their ``classes`` [n], and the ``margins`` [n] of their labels, see ``margins``."""

    classes: NDArray[np.int32]
    margins: NDArray[np.float32]


def predictions_of(scorer: Scorer, table: RowTable, model: str | None, progress: Progress) -> Predictions:
    """What a model of the scorer's store, or the base point (None), says of every row of its table, in one pass."""
    names = [] if model is None else [model]
    classes, ahead = np.empty(len(table), np.int32), np.empty(len(table), np.float32)
    with progress.task("predictions", len(table)) as task:
        for here, shard, rows in table.steps():
            z, changes = scorer.logits(table.reader.tokens(shard.name, rows), names)
            logits = z + changes[0] if names else z
            classes[here], ahead[here] = logits.argmax(1), margins(logits, table.label[here])
            task.advance(here.stop - here.start)
    return Predictions(classes=classes, margins=ahead)


def kept_components(components: Sequence[str], without: Iterable[str]) -> list[str]:
    """The components but those of the shards ``without``; RecipeError for an unknown shard, or when none is left."""
    out = {component_of(name) for name in without}
    if unknown := sorted(out - set(components)):
        raise RecipeError(
            "no component of the shard to leave out",
            got=", ".join(shard_of(name) for name in unknown),
            do=one_of_trained([shard_of(name) for name in components]),
        )
    kept = [name for name in components if name not in out]
    if not kept:
        raise RecipeError(
            "no component is left to compose", got=f"{len(out)} of {len(components)} left out", do="leave out fewer"
        )
    return kept


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.asarray(tensor.float().cpu().numpy())
