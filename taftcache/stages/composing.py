"""Compose the shards' components into one model and prove the identity that allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from taftcache.cache import FeatureStore, Shard
from taftcache.errors import CompositionError
from taftcache.stages.training import COMPONENTS, adopt

if TYPE_CHECKING:
    from taftcache.component import Component
    from taftcache.recipe import Recipe
    from taftcache.tangent.base import Base

MEAN = "models/mean"
# Σ μ f(Δw_i) = f(Σ μ Δw_i) is checked in float64 on this many rows; it fails by rounding only.
PROOF_ROWS = 32
PROOF_TOLERANCE = 1e-9


@dataclass(frozen=True)
class ComposeReport:
    """The composition: members, and how far the identity was off on the rows it was checked on."""

    store: Path
    root_digest: str
    model: str
    members: list[str]
    identity_error: float
    changed: bool


def compose(store: FeatureStore, recipe: Recipe | None = None) -> ComposeReport:
    """Write the mean of all shards' components as the model ``models/mean``; nothing happens when it is current.

    Raises:
        CompositionError: a shard has no component, or components do not share one base.
    """
    from taftcache.component import put_component, read_base, read_component

    recipe = adopt(store, recipe)
    names = [f"{COMPONENTS}{shard.name}" for shard in store.shards]
    missing = [name for name in names if name not in store.objects()]
    if missing:
        raise CompositionError(
            "every shard has a component before they are composed", got=missing, do="taftcache train"
        )
    members = {name: store.objects()[name].digest for name in names}
    before = store.objects().get(MEAN)
    if before is not None and before.meta["members"] == members:
        return ComposeReport(store.path, store.root_digest, MEAN, names, before.meta["identity_error"], False)
    base = read_base(store, recipe.tangent)
    components = {name: read_component(store, name, base) for name in names}
    mean = mean_of(components, members, base, store.held_out or store.shards[0])
    with store.transaction() as change:
        put_component(change, MEAN, mean)
    return ComposeReport(store.path, store.root_digest, MEAN, names, mean.meta["identity_error"], True)


def mean_of(components: Mapping[str, Component], members: dict[str, str], base: Base, rows: Shard) -> Component:
    """The mean with its proof in ``meta``; ``members`` are the components' digests by name."""
    import torch

    from taftcache.composition import compose as weighted
    from taftcache.composition import identity_error
    from taftcache.privacy.statement import META, Statement, parallel
    from taftcache.tangent.operator import TangentOperator
    from taftcache.tangent.rows import ArrayRows

    mean = weighted(components)
    few = ArrayRows(rows.tokens(slice(0, PROOF_ROWS)), rows.labels[:PROOF_ROWS])
    operator = TangentOperator(base, [few], trained=mean.layout, dtype=torch.float64, memory=1 << 30)

    def logits(delta: torch.Tensor) -> torch.Tensor:
        (change,) = operator.matvec(delta)
        ((state, _),) = operator.blocks()
        return state.logits + change

    mu = [mean.meta["coefficients"][name] for name in sorted(components)]
    error = identity_error([logits(components[n].delta) for n in sorted(components)], mu, logits(mean.delta))
    if not error <= PROOF_TOLERANCE:
        raise CompositionError(
            "the composed model's logits are the weighted sum of its members'",
            got=f"relative error {error:.1e} on {few.rows} rows",
        )
    mean.meta.update(
        members=members,
        identity_error=error,
        norm=mean.delta.norm().item(),
    )
    if all(META in component.meta for component in components.values()):
        mean.meta[META] = parallel([Statement.from_dict(c.meta[META]) for c in components.values()])
    return mean
