"""When rows leave, make components, head, compositions and exact model again from the rows that stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from taftcache.cache.format.digest import digest
from taftcache.cache.format.fault import intact
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import refusal
from taftcache.model.component import Component, StoredComponents, read_base, read_component
from taftcache.model.members import recorded_members
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, is_model
from taftcache.stages.forget.planning import ForgetPlan, changes_training
from taftcache.stages.forget.renewal import OTHERWISE_MADE, Warm, resolve_warm
from taftcache.stages.progress import Progress, numbered
from taftcache.stages.train.compositions import composed, describe_exact, proof_rows, solve_exact, weights_of
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import solve_component
from taftcache.stages.train.trained_on import member_rows
from taftcache.tangent.rows import RowSource


@dataclass(frozen=True, kw_only=True)
class Remade:
    """New components and models by name.

    old_exact: the exact model from before, tightened as far as a warm solve needed it. notes: where the mode could not
    be followed.
    """

    components: dict[str, Component] = field(default_factory=dict)
    old_exact: Component | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Remaining:
    """The rows that stay, with the settings that they are solved with.

    shards: of training rows. held_out: the held-out rows as they were, if some stay. gone: ids of those that leave.
    """

    store: FeatureStore
    settings: Settings
    shards: list[Shard]
    held_out: Shard | None
    gone: frozenset[str]

    @property
    def proof(self) -> RowSource:
        """Rows on which the identity of a composition is checked."""
        return proof_rows(self.held_out or next(iter(self.shards), None), self.settings.base, self.gone)


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Compositions by name; the mean of all members, whether or not it is kept, if there are any; and their digests."""

    made: dict[str, Component]
    mean: Component | None
    digests: dict[str, str]


def remake(store: FeatureStore, plan: ForgetPlan, new: Mapping[str, Shard], progress: Progress) -> Remade:
    """Make again what the plan renews.

    Args:
        store: as it is before the rows leave.
        new: the groups of rows that were written anew, by name. Sums of components alone need none.

    Raises:
        SolveError: no solution as the recipe asks.
    """
    rows = _remaining(store, plan, new)
    settings = rows.settings
    made: dict[str, Component] = {}
    names = [*plan.solve, *({HEAD} & set(plan.renewed))]
    labels = numbered([*names, *({EXACT} & set(plan.renewed))])
    for name, label in zip(names, labels, strict=False):
        own = [shard for shard in rows.shards if name in (HEAD, component_of(shard.name))]
        made[name] = solve_component(settings, own, "head" if name == HEAD else settings.train, progress, label=label)
    if not {MEAN, WEIGHTED, EXACT} & set(plan.renewed):
        return Remade(components=made)
    sums = _compose(rows, plan, made)
    made |= sums.made
    if EXACT not in plan.renewed:
        return Remade(components=made)
    warm = _warm(rows, plan, progress, labels[-1])
    if warm is not None and warm.component is not None:
        made[EXACT] = _described(warm.component, rows, sums, warm.passes)
        return Remade(components=made, old_exact=warm.old)
    if warm is None:
        made[EXACT] = solve_exact(settings, rows.shards, sums.mean, sums.digests, progress, label=labels[-1])
        return Remade(components=made)
    # Whatever the recipe's tolerance is, the request was for a certificate that decides.
    goal = settings.goal if settings.goal.decisive else replace(settings.goal, until_decisive=True)
    made[EXACT] = solve_exact(
        settings, rows.shards, sums.mean, sums.digests, progress, choice=warm.choice, goal=goal, label=labels[-1]
    )
    return Remade(components=made, notes=[f"{EXACT} was solved cold: {warm.failure}"])


def numbers_before(store: FeatureStore, plan: ForgetPlan, remade: Remade) -> set[str]:
    """Digests of the numbers of components and models that were made from what leaves, without those that come out the
    same. A private one may have left the store with its promise, and an imported one has no row from here."""
    there, request = store.objects(), plan.request
    gone = [name for name in (*plan.renewed, *plan.destroyed) if name in there and is_model(name)]
    if not changes_training(request):  # sums are made again although only held-out rows leave
        gone = [name for name in gone if not {*request.components}.isdisjoint(recorded_members(name, there[name].meta))]
    own = [name for name in gone if not (PRIVATE in there[name].meta or there[name].meta.get("imported"))]
    before = {intact(partial(_numbers, store, name)) for name in own}
    return {each for each in before if each} - {component.numbers for component in remade.components.values()}


def _numbers(store: FeatureStore, name: str) -> str:
    return Component.decode(store.read_object(name)).numbers


def _remaining(store: FeatureStore, plan: ForgetPlan, new: Mapping[str, Shard]) -> _Remaining:
    request, held = plan.request, store.held_out
    base = read_base(store, plan.recipe.tangent, len(store.classes) - len(request.classes))
    return _Remaining(
        store=store,
        settings=Settings(recipe=plan.recipe, base=base, refusal=refusal(store, "teachers", plan.recipe)),
        shards=[new.get(shard.name, shard) for shard in store.shards if shard.name not in request.emptied],
        held_out=None if held is None or held.name in request.emptied else held,
        gone=frozenset(request.samples),
    )


def _compose(rows: _Remaining, plan: ForgetPlan, made: Mapping[str, Component]) -> _Sums:
    """The compositions of what was made again and what stays."""
    store, base, proof = rows.store, rows.settings.base, rows.proof
    objects = store.objects()
    parts = StoredComponents(store, plan.members, base, made)
    digests = {name: digest(made[name].encode()) if name in made else objects[name].digest for name in plan.members}
    sums: dict[str, Component] = {}
    if MEAN in plan.renewed:
        sums[MEAN] = composed(parts, digests, base, proof)
    if WEIGHTED in plan.renewed:
        some = parts.of(plan.summed)
        weights = weights_of(plan.weights, member_rows(plan.weights, some.metas(), rows.shards, base.config.classes))
        sums[WEIGHTED] = composed(some, {name: digests[name] for name in some}, base, proof, weights)
    mean = sums.get(MEAN) or (composed(parts, digests, base, proof) if plan.members else None)
    return _Sums(made=sums, mean=mean, digests=digests)


def _warm(rows: _Remaining, plan: ForgetPlan, progress: Progress, label: str) -> Warm | None:
    """The exact model, solved again starting from where it is; None if the request does not start there."""
    store, request = rows.store, plan.request
    if plan.mode != "resolve" or request.classes:
        return None
    old = read_component(store, EXACT, rows.settings.base)
    if not rows.settings.poses(old, store.shards, rows.settings.train):
        return Warm(passes=0, failure=f"it was {OTHERWISE_MADE}")
    gone = set(request.samples)
    stays = np.array([i not in gone for shard in store.shards for i in shard.sample_ids])
    return resolve_warm(rows.settings, store.shards, rows.shards, stays, old, progress, label)


def _described(exact: Component, rows: _Remaining, sums: _Sums, passes: int) -> Component:
    """A warm exact model with its description, which says where it started and counts all of its passes."""
    exact.meta["stats"] = {**exact.meta["stats"], "passes": passes}
    settings, shards = rows.settings, rows.shards
    warm = exact.dual is not None or settings.takes_start(shards, settings.train)
    describe_exact(exact, settings, shards, sums.mean, sums.digests, start=EXACT if warm else "zero")
    return exact
