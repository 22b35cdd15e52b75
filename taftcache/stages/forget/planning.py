"""What a request to forget makes of a store: decided as a whole before the first row is erased."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, counted, is_component, shard_of
from taftcache.recipe import Recipe
from taftcache.stages.forget.request import Request
from taftcache.stages.train.checks import Weights, imported
from taftcache.stages.train.composing import remaining_weights
from taftcache.stages.train.private_keys import KEYS
from taftcache.stages.train.record import adopt, subtracted

Mode = Literal["subtract", "retrain", "resolve"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class ForgetPlan:
    """Which objects a request renews, and which it destroys. What is in neither list has nothing of the rows in it.

    request: rows, shards and classes that leave.
    mode, cold: as ``forget`` has them.
    recipe: the store's, without the weights of classes that leave.
    solve: components that are solved again, for their shards lose rows, or all of them a column of the head.
    private: components that were trained privately. They are not solved again: the promise bounds what they hold of a
        row, and training again would spend more of their budget.
    subtracted: shards that are left out of compositions from now on.
    members: components that compositions are made of afterwards, sorted.
    weights: ``compose.weights`` of those members; empty where nothing is left of them.
    renewed: all that is made again, in that order: ``solve``; the head, for it has all rows in it; sums of members;
        the exact model, which has all rows in it too, but "subtract" does not pay for it.
    destroyed: what has rows in it that leave, or sums of such, and is not made again.
    rewritten: groups of rows that stay, and are written anew without rows, or with other class numbers.
    """

    request: Request
    mode: Mode
    cold: bool
    recipe: Recipe
    solve: list[str]
    private: list[str]
    subtracted: list[str]
    members: list[str]
    weights: Weights
    renewed: list[str]
    destroyed: list[str]
    rewritten: list[str]


def plan_forgetting(store: FeatureStore, request: Request, mode: Mode, cold: bool) -> ForgetPlan:
    """Decide what becomes of every object; nothing is changed.

    Raises:
        RecipeError: the mode cannot do what is asked.
    """
    _check_mode(store, request, mode)
    objects = store.objects()
    recipe = _without_classes(adopt(store, None), store.classes, request.classes)
    private = [name for name, ref in objects.items() if is_component(name) and PRIVATE in ref.meta]

    # Shards: those that stay, those of them whose component has rows in it that leave, those left out of compositions.
    stay = [shard.name for shard in store.shards if shard.name not in request.emptied]
    touched = set(stay) if request.classes else {name for name in stay if name in request.leaving}
    out = sorted((set(subtracted(store)) & set(stay)) | (touched if mode == "subtract" else set()))

    # Components: where a class goes, private and imported ones go, for they cannot lose their column of the head.
    parts = [component_of(name) for name in stay if name not in out]
    parts = [name for name in parts if name not in private] if request.classes else parts
    solve = [n for n in parts if shard_of(n) in touched and n in objects and n not in private]
    foreign = [] if request.classes else imported(store)
    members = sorted({*(name for name in parts if name in objects), *foreign})
    weights = remaining_weights(recipe, members)

    # Models: what stood before is made again, sums only where every shard has its component.
    trained = bool(request.trained) or bool(request.classes)
    whole = bool(request.leaving) and bool(members) and all(name in objects for name in parts)
    due = {
        HEAD: trained,
        MEAN: whole,
        WEIGHTED: whole and bool(weights),
        EXACT: trained and mode != "subtract" and bool(members),
    }
    renewed = [*solve, *(name for name, wanted in due.items() if wanted and name in objects)]
    untouched = [name for name in members if name not in solve] + ([] if trained else [HEAD, EXACT])
    return ForgetPlan(
        request=request,
        mode=mode,
        cold=cold,
        recipe=recipe,
        solve=solve,
        private=private,
        subtracted=out,
        members=members,
        weights=weights,
        renewed=renewed,
        destroyed=[n for n in objects if n not in renewed and not _stays(n, request, untouched)],
        rewritten=[
            ref.name
            for ref in store.manifest.shards
            if ref.name not in request.emptied and (request.classes or ref.name in request.leaving)
        ],
    )


def _stays(name: str, request: Request, untouched: Collection[str]) -> bool:
    """Whether an object that is not renewed has nothing of the rows that leave in it."""
    if name.startswith("base/") or name == KEYS or not request.leaving:  # KEYS are cleared by themselves
        return True
    return name in untouched


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
    if mode == "resolve" and EXACT not in store.objects():
        raise RecipeError(
            f'mode "resolve" needs an exact model of all shards, and {store.path} has none',
            got=f"no {EXACT}",
            do="taftcache compose STORE --mode exact, or use --mode retrain",
        )
