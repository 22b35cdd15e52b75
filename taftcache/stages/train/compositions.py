"""What compositions are made of: members, coefficients, the keys that decide the bytes, the sums, the exact model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import CompositionError, RecipeError
from taftcache.model import composition
from taftcache.model.component import Component, StoredComponents
from taftcache.model.members import imported, subtracted, untrained
from taftcache.model.meta import Coefficient
from taftcache.model.outdated import composition_key
from taftcache.names import EXACT, INTERRUPTED_KEY, MEAN, PRIVATE, component_of, counted, shard_of, train_command, typed
from taftcache.privacy.statement import Statement, parallel
from taftcache.recipe import Recipe
from taftcache.solve.choosing import RidgeChoice
from taftcache.solve.settings import Goal
from taftcache.stages.progress import Progress
from taftcache.stages.train.checks import SUMS_TO_ONE, check_coefficients, coefficients
from taftcache.stages.train.promises import promised
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import SolveOptions, solve_component
from taftcache.stages.train.trained_on import Weights
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource
from taftcache.tangent.selection import row_shape

# Σ μ f(Δw_i) = f(Σ μ Δw_i) is checked in float64 on this many rows; it holds up to rounding.
PROOF_ROWS = 32
PROOF_TOLERANCE = 1e-9


def members_of(store: FeatureStore) -> list[str]:
    """Names of the components that a composition is made of, sorted: of shards that were not subtracted, unless none
    was ever trained, and imported ones.

    Raises:
        CompositionError: one of these shards has no component, or one whose solve was interrupted, or there are no
            components at all.
    """
    out = {*subtracted(store), *untrained(store)}
    names = [component_of(shard.name) for shard in store.shards if shard.name not in out]
    solved = [name for name, ref in store.objects().items() if ref.meta.get("key") != INTERRUPTED_KEY]
    if missing := [name for name in names if name not in solved]:
        raise CompositionError(
            f"{counted(len(missing), 'shard')} without a component that was solved to its end",
            got=", ".join(map(shard_of, missing)),
            do=train_command(store.path, private=bool(promised(store))),
        )
    names += imported(store)
    if not names:
        raise CompositionError(
            f"{store.path} has no components to compose",
            got="no shard that is not subtracted, and no imported component",
            do=f"taftcache train {typed(store.path)}, or taftcache import-component",
        )
    return sorted(names)


def weighed(weights: Weights, names: Iterable[str]) -> list[str]:
    """The components that ``models/weighted`` is a sum of: those that came since may have no coefficient yet."""
    given = coefficients(weights)
    return [name for name in names if name in given or not given]


def weights_of(given: Weights, rows: Mapping[str, list[int] | None]) -> dict[str, Coefficient]:
    """The coefficients of ``models/weighted`` for components made from so many ``rows`` (``member_rows``).

    Raises:
        RecipeError: coefficients for other components, of rows that are not said, or whose sum is not one.
    """
    if not isinstance(given, str):
        check_coefficients(given, rows)
        return dict(coefficients(given))
    said = {name: counts for name, counts in rows.items() if counts is not None}
    if len(said) < len(rows):
        raise RecipeError(
            f"no weights by {given}: a component does not say the rows that it was made from",
            got=", ".join(shard_of(name) for name in rows if name not in said),
            do="taftcache train, if rows came or left since; or set compose.weights to a coefficient for each",
        )
    shares = shares_of(said)
    return dict(shares) if given == "class-rows" else {name: share for name, (share,) in shares.items()}


def shares_of(rows: Mapping[str, Sequence[int]]) -> dict[str, list[float]]:
    """Each component's share [K] of the rows of every class, n_ik / Σ_j n_jk; of a class that has none, its share of
    all rows."""
    of_class = [sum(column) for column in zip(*rows.values(), strict=True)]
    return {
        name: [n / of if of else sum(own) / sum(of_class) for n, of in zip(own, of_class, strict=True)]
        for name, own in rows.items()
    }


def remaining_weights(recipe: Recipe, members: Sequence[str]) -> Weights:
    """``compose.weights`` for the components that are left, divided by their sum; empty when nothing is left of it."""
    given = recipe.compose.weights
    if isinstance(given, str):
        return given
    kept = {name: mu for name, mu in given.items() if component_of(name) in members}
    total = sum(kept.values())
    if len(kept) == len(given):
        return dict(given)
    left = {name: mu / total for name, mu in kept.items()} if total else {}
    return left if abs(sum(left.values()) - 1) <= SUMS_TO_ONE else {}


def solve_exact(
    settings: Settings,
    shards: Sequence[Shard],
    mean: Component | None,
    digests: Mapping[str, str],
    progress: Progress,
    operator: Callable[..., TangentOperator] | None = None,
    choice: RidgeChoice | None = None,
    goal: Goal | None = None,
    label: str = EXACT,
) -> Component:
    """The optimum over all rows, from the mean of the components or, as where there are none, from zero: it depends on
    rows and settings only.

    ``choice``: how λ was chosen from these rows, if it already was. ``goal``: of the solve, by default the settings'.
    ``label``: that of ``solve_component``.
    """
    start = mean.delta if mean is not None and settings.takes_start(shards, settings.train) else None
    options = SolveOptions(start=start, keep_dual=True, operator=operator or TangentOperator, choice=choice, goal=goal)
    exact = solve_component(settings, shards, settings.train, progress, label=label, options=options)
    describe_exact(exact, settings, shards, mean, digests, start="zero" if start is None else MEAN)
    return exact


def describe_exact(
    exact: Component,
    settings: Settings,
    shards: Sequence[Shard],
    mean: Component | None,
    digests: Mapping[str, str],
    start: str,
) -> None:
    """Add to ``meta`` what only the exact model says of itself: its key, its start, its distance from the mean."""
    exact.meta.update(key=settings.keys.exact(shards, digests), start=start)
    if mean is not None:
        exact.meta["from_mean"] = (exact.delta - mean.delta).norm().item()


def proof_rows(rows: Shard | None, base: Base, gone: Collection[str] = ()) -> RowSource:
    """Rows on which the identity is checked: the first of ``rows`` without ``gone`` ids, or noise of their shape where
    there are no rows."""
    labels = np.zeros(PROOF_ROWS, np.int32)  # no logit depends on them
    if rows is None:
        noise = np.random.default_rng(0).standard_normal((PROOF_ROWS, *row_shape(base.config, base.config.rows)))
        return ArrayRows(noise, labels)
    first = [k for k, i in enumerate(rows.sample_ids) if i not in gone][:PROOF_ROWS]
    return ArrayRows(rows.tokens(first), labels[: len(first)])


def composed(
    components: StoredComponents,
    members: Mapping[str, str],
    base: Base,
    rows: RowSource,
    weights: Mapping[str, Coefficient] | None = None,
) -> Component:
    """Σ μ_i Δw_i with its proof in ``meta``, holding two components at a time; ``members`` are their digests by name.

    Raises:
        CompositionError: Σ μ_i f(·; Δw_i) differs from f(·; Σ μ_i Δw_i) on ``rows`` by more than rounding.
    """
    total, metas = composition.compose(components, weights), list(components.metas().values())
    if any(PRIVATE in meta for meta in metas):
        rows = proof_rows(None, base)  # a composition's meta must not depend on private rows
    total.meta.update(
        members=dict(members),
        key=composition_key(members, weights),
        identity_error=_proven(total, components, base, rows),
        norm=total.delta.norm().item(),
    )
    if all(PRIVATE in meta for meta in metas):
        said = [Statement.from_dict(meta[PRIVATE]) for meta in metas]
        if len({statement.relation for statement in said}) == 1:  # of unlike neighbours there is no joint promise
            total.meta[PRIVATE] = parallel(said)
    return total


def check_composes(component: Component, base: Base) -> None:
    """CompositionError if no sum of ``component`` and the base model could be proven: such a component must not be
    charged for, nor drop a model. The error has no number of a component that is private and not charged for."""
    parts = {"trained": component, "untrained": replace(component, delta=torch.zeros_like(component.delta))}
    try:
        _proven(composition.compose(parts), parts, base, proof_rows(None, base))
    except CompositionError:
        raise CompositionError(
            "the trained component cannot be composed, and was not kept: a sum's logits differ from its members' by "
            "more than rounding",
            do="train with a smaller privacy.learning_rate; nothing was charged for this component",
        ) from None


def _proven(total: Component, components: Mapping[str, Component], base: Base, rows: RowSource) -> float:
    """How far Σ μ_i f(·; Δw_i) is from f(·; ``total``) on ``rows``; CompositionError if by more than rounding."""
    operator = TangentOperator(base, [rows], trained=total.layout, dtype=torch.float64, memory=1 << 30)

    def change(delta: Tensor) -> Tensor:
        (moved,) = operator.matvec(delta)
        return moved

    ((state, _),) = operator.blocks()
    names = sorted(components)
    mu = [total.meta["coefficients"][name] for name in names]
    changes = [change(components[name].delta) for name in names]
    error = composition.identity_error(state.logits, changes, mu, state.logits + change(total.delta))
    if not error <= PROOF_TOLERANCE:
        raise CompositionError(
            "the composed model's logits differ from the weighted sum of its members'",
            got=f"relative error {error:.1e} on {counted(rows.rows, 'row')}",
        )
    return error
