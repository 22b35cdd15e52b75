"""Composition: a weighted sum of components is the component of the weighted sum.

Σ_i μ_i f_lin(·; Δw_i) = f_lin(·; Σ_i μ_i Δw_i)   when Σ_i μ_i = 1 and all share one base point

Of a head, logit k depends on row k of Δw alone, so it holds for every logit by itself, with coefficients μ_ik whose sum
over i is one for every class k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, prod

import torch
from torch import Tensor

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import ArgumentError, CompositionError
from taftcache.model.component import Component, StoredComponents, read_base
from taftcache.model.meta import Coefficient, ComponentMeta
from taftcache.names import model_of
from taftcache.tangent.parameters import Layout


def compose(components: Mapping[str, Component], coefficients: Mapping[str, Coefficient] | None = None) -> Component:
    """Σ_i μ_i Δw_i, summed in the order of the names; the uniform mean without ``coefficients``.

    Raises:
        CompositionError: no components, other bases or parameters, coefficients for other names, or of each class where
            the parameters do not fall apart by classes.
    """
    if not components:
        raise CompositionError("a composition needs at least one component", got="none", do="train the shards first")
    names = sorted(components)
    mu = dict[str, Coefficient](dict.fromkeys(names, 1 / len(names)) if coefficients is None else coefficients)
    if sorted(mu) != names:
        raise CompositionError("coefficients are not for exactly the components", got=sorted(set(mu) ^ set(names)))
    if off := [total for total in _sums(mu) if not abs(total - 1) <= 1e-9]:
        raise CompositionError(
            f"the coefficients' sum is {off[0]}, but must be 1",
            got=f"{off[0]}",
            do=to_one(off[0]),
        )
    meta = ComponentMeta(kind="composition", coefficients={name: mu[name] for name in names}).as_dict()
    total: Component | None = None
    for name in names:
        part = components[name]  # asked for once, and let go after its turn: it may be read from a store
        if total is None:
            total = Component(part.base_digest, part.layout, torch.zeros_like(part.delta), meta)
        if part.base_digest != total.base_digest:
            raise CompositionError(
                f"{name} has another base point than {names[0]}",
                got=f"{names[0]}: base {total.base_digest[:16]}, {name}: base {part.base_digest[:16]}",
                do="train both from one store with the same [tangent] section",
            )
        if part.layout != total.layout:
            raise CompositionError(f"{name} has other parameters than {names[0]}", got=f"{names[0]}, {name}")
        if isinstance(c := factors(mu[name], part.layout), Tensor):
            total.delta.add_(part.delta * c)
        else:
            total.delta.add_(part.delta, alpha=c)
    assert total is not None, "there are components"
    return total


def factors(coefficient: Coefficient, layout: Layout) -> float | Tensor:
    """What each number of Δw [P] is multiplied by: one number, or [P] where classes have coefficients of their own.

    Raises:
        CompositionError: parameters that do not fall apart by classes, or another number of them.
    """
    if not isinstance(coefficient, list):
        return coefficient
    if any(shape[:1] != (len(coefficient),) for shape in layout.shapes.values()):
        raise CompositionError(
            "coefficients of each class are for a head alone, which has a row for each",
            got=f"{len(coefficient)} coefficients, {', '.join(f'{n} {list(s)}' for n, s in layout.shapes.items())}",
        )
    each = torch.tensor(coefficient, dtype=torch.float64)
    return torch.cat([each.repeat_interleave(prod(shape[1:])) for shape in layout.shapes.values()])


def _sums(coefficients: Mapping[str, Coefficient]) -> list[float]:
    """Σ_i μ_i [1], or [K] of each class."""
    given = [mu if isinstance(mu, list) else [mu] for mu in coefficients.values()]
    if len({*map(len, given)} - {1}) > 1 or not all(given):
        raise CompositionError("the coefficients are not all of the same classes", got=[*map(len, given)])
    return [sum(mu[k % len(mu)] for mu in given) for k in range(max(map(len, given)))]


def to_one(total: float) -> str:
    """What to do about coefficients whose sum is ``total`` and not one."""
    can = isfinite(total) and abs(total) > 1e-9
    do = "divide them by their sum" if can else "give numbers whose sum is one"
    return f"{do}: each component brings the base model along"


@at_its_place()
def weighted_sum(store: Place, weights: Mapping[str, float]) -> Component:
    """Σ_i μ_i Δw_i of some of a store's components or models, in memory: unlike ``compose``, it writes nothing.

    The result says nothing about how its parts were made: it has no certificate nor, for private ones, their promise.

    Args:
        weights: μ by name ("000", "components/000", "models/exact"), summing to one; {"000": 1} is a single Δw.

    Raises:
        StoreError: no such model. CompositionError: a sum other than one, a name twice, or other bases or parameters.
    """
    assert isinstance(store, FeatureStore)
    if not isinstance(weights, Mapping):
        raise ArgumentError("the weights have no names", got=type(weights).__name__, do='{"000": 0.5, "001": 0.5}')
    there = store.objects()
    try:
        mu = {model_of(there, name): float(share) for name, share in weights.items()}
    except (TypeError, ValueError) as error:
        raise ArgumentError("the weights are not numbers", got=str(error), do='{"000": 0.5, "001": 0.5}') from error
    if len(mu) < len(weights):
        raise CompositionError("the weights name a component twice", got=", ".join(weights), do="leave one of them out")
    base = read_base(store, recorded_recipe(store).tangent)
    return compose(StoredComponents(store, mu, base), mu)


def identity_error(
    base: Tensor, changes: Sequence[Tensor], coefficients: Sequence[Coefficient], composed: Tensor
) -> float:
    """max |Σ μ_i f(·;Δw_i) − f(·;ΣμΔw)| over rows and classes, relative to the largest |f_w| + Σ |μ_i J Δw_i|.

    Args:
        base: f_w of the rows [n,K]. changes: J Δw_i [n,K] of each component. composed: f(·;ΣμΔw) [n,K].
    """
    parts = list(zip(map(base.new_tensor, coefficients), changes, strict=True))
    summed = sum((mu * (base + change) for mu, change in parts), torch.zeros_like(composed))
    # Not relative to the logits: a private Δw takes the head away, and where it learned little they are so near to zero
    # that what the terms were rounded by looks large beside them.
    size = sum(((mu * change).abs() for mu, change in parts), base.abs())
    return ((summed - composed).abs().max() / size.max().clamp_min(1e-300)).item()
