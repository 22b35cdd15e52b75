"""Plan what a request to forget does to a store: all is decided before the first row is erased."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from taftcache.cache.format.manifest import ObjectRef
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import RecipeError
from taftcache.model.members import imported, recorded_members, subtracted
from taftcache.names import (
    BASE,
    EXACT,
    HEAD,
    MEAN,
    PRIVATE,
    WEIGHTED,
    component_of,
    counted,
    is_component,
    shard_of,
    typed,
)
from taftcache.recipe import Recipe
from taftcache.stages.forget.request import Mode, Request
from taftcache.stages.train.checks import coefficients
from taftcache.stages.train.composing import asks_exact
from taftcache.stages.train.compositions import remaining_weights, weighed
from taftcache.stages.train.private.records import KEYS
from taftcache.stages.train.trained_on import Weights, uncounted


@dataclass(frozen=True, kw_only=True)
class ForgetPlan:
    """Which objects a request renews, and which it destroys. An object in neither list has nothing of the rows in it,
    unless it was trained privately or imported.

    request: rows, shards, classes and components that leave.
    mode: as in ``forget``.
    recipe: the store's, without the weights of classes that leave.
    solve: components that are solved again, because their shards lose rows, or every component a column of the head.
    private: components that were trained privately. They are not solved again: the promise bounds what they hold of a
        row, and training again would spend more of their budget.
    subtracted: shards that are left out of compositions from now on.
    members: components that compositions are made of afterwards, sorted: all, or if a shard has none yet, those of them
        that models/mean is made of.
    weights: ``compose.weights`` of the members; empty if no weight is left.
    summed: members that models/weighted is made of: not those that were imported since and say less of their rows than
        weights by rows need. Empty if it is not made again.
    unknown: other members that do not say the rows that weights by rows need: then it is not made again.
    renewed: all that is made again, in this order: ``solve``; the head, which is made from all rows; sums of members;
        the exact model, also made from all rows (but not by "subtract", which does not pay for that). It is also made
        if there was none only because of the components that leave.
    destroyed: what was made from rows or components that leave, or is a sum of such, and is not made again.
    rewritten: groups of rows that stay, but are written anew with fewer rows or other class numbers.
    """

    request: Request
    mode: Mode
    recipe: Recipe
    solve: list[str]
    private: list[str]
    subtracted: list[str]
    members: list[str]
    weights: Weights
    summed: list[str]
    unknown: list[str]
    renewed: list[str]
    destroyed: list[str]
    rewritten: list[str]


def plan_forgetting(store: FeatureStore, request: Request, mode: Mode) -> ForgetPlan:
    """Decide what becomes of every object; nothing is changed.

    Raises:
        RecipeError: the mode cannot do what is asked.
    """
    _check_mode(store, request, mode)
    objects = store.objects()
    recipe = _without_classes(recorded_recipe(store), store.classes, request.classes)
    private = [name for name, ref in objects.items() if is_component(name) and PRIVATE in ref.meta]
    stay = [shard.name for shard in store.shards if shard.name not in request.emptied]
    touched = {name for name in stay if request.classes or name in request.leaving}
    out = (set(subtracted(store)) & set(stay)) | (touched if mode == "subtract" else set())
    parts = [component_of(name) for name in stay if name not in out]
    foreign = [name for name in imported(store) if name not in request.components]
    if request.classes:  # private and imported components go, for they cannot lose their column of the head
        parts, foreign = [name for name in parts if name not in private], []
    solve = [n for n in parts if shard_of(n) in touched and n in objects and n not in private]
    there = sorted({*(name for name in parts if name in objects), *foreign})
    members, whole = there, all(name in objects for name in parts)
    if MEAN in objects and not whole:  # what came since joins once all are trained
        members = [name for name in there if name in _members(objects, MEAN)]
    weights = remaining_weights(recipe, there)
    unsaid = {*uncounted(store, weights, members)}.difference(solve)
    unknown = sorted(unsaid.difference({*foreign} - {*_members(objects, WEIGHTED)}))
    can_sum = weights and not unknown and coefficients(weights).keys() <= {*members}
    summed = [name for name in weighed(weights, members) if name not in unsaid] if can_sum else []
    held = _composed_with(objects, request.components)
    if MEAN in held and whole and EXACT not in objects and asks_exact(store, recipe, request.components):
        held.add(EXACT)
    due = _due(request, mode, members=members, summed=summed, held=held)
    renewed = [*solve, *(name for name in due if name in objects or name in held)]
    return ForgetPlan(
        request=request,
        mode=mode,
        recipe=recipe,
        solve=solve,
        private=private,
        subtracted=sorted(out),
        members=members,
        weights=weights,
        summed=summed,
        unknown=unknown,
        renewed=renewed,
        destroyed=_destroyed(objects, request, {*renewed, *there}, held),
        rewritten=[
            ref.name
            for ref in store.manifest.shards
            if ref.name not in request.emptied and (request.classes or ref.name in request.leaving)
        ],
    )


def _members(objects: Mapping[str, ObjectRef], composition: str) -> Collection[str]:
    """The members that a composition names; none if it is not there."""
    return recorded_members(composition, objects[composition].meta) if composition in objects else ()


def _composed_with(objects: Mapping[str, ObjectRef], components: Collection[str]) -> set[str]:
    """The compositions with one of these components among their members."""
    return {name for name in (MEAN, WEIGHTED, EXACT) if not {*components}.isdisjoint(_members(objects, name))}


def _due(
    request: Request, mode: Mode, *, members: Sequence[str], summed: Sequence[str], held: Collection[str]
) -> list[str]:
    """Models that are made again, in this order.

    ``held``: compositions that imported components leave; they are made again whether or not rows leave too.
    """
    trained, sums = changes_training(request), _changes_sums(request)
    wanted = {
        HEAD: trained,
        MEAN: bool(members) and (sums or MEAN in held),
        WEIGHTED: bool(summed) and (sums or WEIGHTED in held),
        EXACT: (trained and mode != "subtract") or EXACT in held,  # of rows alone: the last member may have left
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def _destroyed(objects: Iterable[str], request: Request, kept: Collection[str], held: set[str]) -> list[str]:
    """Objects that hold something of what leaves; those ``kept`` are renewed, or are members that stay."""
    if not (_changes_sums(request) or request.components):
        return []
    untouched = set[str]() if changes_training(request) else {HEAD, EXACT}
    if not _changes_sums(request):
        untouched |= {MEAN, WEIGHTED}
    untouched = (untouched - held) | {KEYS}  # forgetting clears KEYS by itself
    return [name for name in objects if name not in {*kept, *untouched} and not name.startswith(BASE)]


def changes_training(request: Request) -> bool:
    """Whether training rows leave, or a class and with it a column of the head."""
    return bool(request.trained or request.classes)


def _changes_sums(request: Request) -> bool:
    """Whether rows leave, held-out ones among them, on which sums are checked, or a class, which may have no row."""
    return bool(request.leaving or request.classes)


def _without_classes(recipe: Recipe, classes: Sequence[str], gone: Sequence[str]) -> Recipe:
    """The recipe without the class weights of the classes that are ``gone``."""
    given = recipe.objective.class_weights
    if not gone or isinstance(given, str) or len(given) != len(classes):
        return recipe
    kept = [weight for name, weight in zip(classes, given, strict=True) if name not in gone]
    replace = msgspec.structs.replace
    return replace(recipe, objective=replace(recipe.objective, class_weights=kept))


def _check_mode(store: FeatureStore, request: Request, mode: Mode) -> None:
    """RecipeError where ``mode`` cannot do what is asked."""
    if mode == "subtract" and request.classes:
        raise RecipeError(
            'mode "subtract" cannot forget a class: its column leaves the head, which changes every component',
            got=f"{counted(len(request.classes), 'class')} would be left without a row",
            do="use --mode retrain",
        )
    if mode != "retrain" and request.components:
        raise RecipeError(
            f'mode "{mode}" is for rows, and an imported component has none here',
            got=f"{counted(len(request.components), 'component')} to forget",
            do="use --mode retrain",
        )
    if mode == "resolve" and EXACT not in store.objects():
        raise RecipeError(
            f'mode "resolve" needs models/exact, the model of all rows, and {store.path} has none',
            got=f"no {EXACT}",
            do=f"taftcache compose {typed(store.path)} --mode exact, or use --mode retrain",
        )
