"""Which predictions a store's certificates prove: whether the exact optimum would say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import torch

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.component import read_component
from taftcache.model.meta import ComponentMeta, meta_of
from taftcache.names import is_model
from taftcache.solve.labels import proven_labels
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.settings import Settings
from taftcache.tangent.operator import TangentOperator


def proven_shares(
    store: FeatureStore, settings: Settings, names: Sequence[str], progress: Progress | None = None
) -> dict[str, float]:
    """By model, the share of held-out rows whose class is provably that of the optimum, which a retrain would reach.

    The distance to the optimum is the certificate's; of a sum of components, Σ |μ| of theirs. A model without one
    (a private component's, say) is left out. Costs K half passes over the held-out rows for each model.

    Raises:
        StoreError: the store has no held-out rows.
    """
    rows = held_out_rows(store)
    said = {name: meta_of(ref.meta) for name, ref in store.objects().items() if is_model(name)}
    reach = {name: distance for name in names if (distance := _distance(said, name)) < inf}
    shares = {}
    with (progress or Silent()).task("prove labels", len(reach)) as task:
        for name, distance in reach.items():
            component = read_component(store, name, settings.base)
            operator = TangentOperator(settings.base, [rows], trained=component.layout, dtype=torch.float64)
            _, proven = proven_labels(operator, component.delta, distance, settings.recipe.objective.jvp_only)
            shares[name] = proven.double().mean().item()
            task.advance(1)
    return shares


def held_out_rows(store: FeatureStore) -> Shard:
    """The held-out group; StoreError where there is none."""
    if store.held_out is None:
        raise StoreError(
            f"{store.path} has no held-out rows to prove labels of",
            got="training rows alone",
            do="extract with data.test, or with data.held_out above 0",
        )
    return store.held_out


def _distance(said: Mapping[str, ComponentMeta], name: str) -> float:
    """The certified bound on ‖Δw − Δw*‖ of a model; infinite where nothing is proven of it, or of a member."""
    own = said[name]
    if own.coefficients is not None:
        return sum(abs(mu) * (_distance(said, part) if part in said else inf) for part, mu in own.coefficients.items())
    return inf if own.certificate is None else own.certificate.distance_bound
