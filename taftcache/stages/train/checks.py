"""Check whether a store can follow the settings of stage 2 that a recipe asks for; nothing is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from taftcache.backbone.device import resolve_device
from taftcache.cache.read.nearest import nearest
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.consent import recorded_recipe
from taftcache.errors import RecipeError, UnknownSample
from taftcache.model.composition import to_one
from taftcache.model.members import imported
from taftcache.names import COMPONENTS, HEAD, HELD_OUT, PRIVATE, WEIGHTED, component_of, counted, is_model, shard_of
from taftcache.objective.named import named_loss, true_class_weight
from taftcache.recipe import Recipe
from taftcache.recipe_sections import ByRows
from taftcache.solve.minimise import has_estimate
from taftcache.stages.extract.identity import check_tail, check_words
from taftcache.stages.extract.plan import PlannedShard
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.trained_on import Weights, uncounted
from taftcache.tangent.config import TailConfig
from taftcache.tangent.selection import select
from taftcache.tangent.spec import TAIL, TangentSpec
from taftcache.teaching.rows import open_teachers

SUMS_TO_ONE = 1e-9


def check_settings(store: FeatureStore, recipe: Recipe) -> None:
    """Refuse everything that would make a later step fail, whatever the rows are.

    Raises:
        IdentityError: other data, another backbone or another plan than the store's. RecipeError: parameters that the
        store's rows do not suffice for, weights for other classes or components, or coefficients that do not sum to
        one. BackboneError: no such device here.
    """
    check_words(store, recipe)
    check_tail(store, recipe)
    components = [*(component_of(shard.name) for shard in store.shards), *imported(store)]
    check_fit(recipe, len(store.classes), components, _tail(store))
    resolve_device(recipe.device)


def check_planned(
    recipe: Recipe, classes: Sequence[str], shards: Mapping[str, PlannedShard], store: FeatureStore | None = None
) -> None:
    """Check what a plan already decides, so that no image is read for a run that would be refused later.

    Args:
        shards: by name, the held-out one too. store: the store, if extraction has begun; None otherwise.

    Raises:
        RecipeError: as ``check_settings`` and ``check_coefficients`` say. StoreError: teachers that
        ``open_teachers`` refuses. UnknownSample: an id to forget that is not in the plan, in the store or among those
        forgotten at its place.
    """
    training = {name: shard for name, shard in shards.items() if name != HELD_OUT}
    there = [] if store is None else [*(shard.name for shard in store.shards), *imported(store)]
    components = {component_of(name) for name in (*training, *there)}
    check_fit(recipe, len(classes), components, _tail(store))
    if recipe.compose.mode == "weighted":
        check_coefficients(recipe.compose.weights, components, store)
    _check_samples(recipe, {i for shard in shards.values() for i in shard.ids}, store)
    # With "skip", a teacher may lack an image that does not decode: the store will lack it, too.
    seen = recipe.data.unreadable == "stop"
    with open_teachers(recipe.prior.teachers, [i for s in training.values() for i in s.ids] if seen else []):
        pass


def _check_samples(recipe: Recipe, planned: Collection[str], store: FeatureStore | None) -> None:
    """UnknownSample for an id of ``forget.samples`` that no row has, had or will have."""
    wanted = [i for i in dict.fromkeys(recipe.forget.samples) if i not in planned]
    if store is None:
        forgotten = TombstoneFile(recipe.store_path)
        unknown = [i for i in wanted if not forgotten.holds(i)]
    else:
        other = {s.id for s in store.manifest.skipped}.union(*store.staged_rows().values())
        unknown = [i for i in wanted if not (store.holds(i) or i in other or store.is_forgotten(i))]
    if unknown:
        close = ", ".join(map(repr, nearest(unknown[0], planned)))
        raise UnknownSample(
            f"forget.samples names {counted(len(unknown), 'id')} that no image has",
            got=", ".join(map(repr, unknown[:8])),
            ids=unknown,
            do=f"did you mean {close}?" if close else "ids as the source has them: docs/guide.md#sources-of-images",
        )


def _tail(store: FeatureStore | None) -> TailConfig | None:
    there = None if store is None else store.objects().get(TAIL)
    return None if there is None else TailConfig.from_dict(there.meta)


def check_fit(recipe: Recipe, classes: int, components: Collection[str], tail: TailConfig | None) -> None:
    """Check a recipe against the number of classes, the names of the store's ``components`` and its ``tail``, which is
    None before extraction."""
    check_class_weights(recipe, classes)
    check_goal(recipe)
    check_class_rows(recipe, tail)
    given = coefficients(recipe.compose.weights)
    if unknown := sorted(set(given) - set(components)):
        raise RecipeError(
            f"compose.weights names {', '.join(map(shard_of, unknown))}, which the store does not have",
            got=", ".join(map(shard_of, given)),
            do=f'name some of {", ".join(shard_of(n) for n in sorted(components))}, or set compose.weights = "rows"',
        )


def check_goal(recipe: Recipe) -> None:
    """RecipeError if the tolerance is "decisive", but these settings have no estimate of what a removal moves.

    SolveError for α or κ that no loss can have.
    """
    asked, method, teachers = recipe.objective, recipe.solver.method, recipe.prior.teachers
    loss = named_loss(asked.loss, true_class_weight(asked.alpha, 1), asked.kappa)  # refuses what float32 cannot hold
    estimated = not teachers and has_estimate(loss, asked.radius, method)
    if recipe.solver.tolerance == "decisive" and not estimated:
        raise RecipeError(
            'solver.tolerance = "decisive" has no estimate of what removing a row moves with these settings',
            got=f"loss = {asked.loss!r}, radius = {asked.radius}, method = {method!r},"
            f" {counted(len(teachers), 'teacher')}",
            do='give a number, or leave out ball and prior, with solver.method = "auto"',
        )


def trains_head(spec: TangentSpec, tail: TailConfig | None) -> bool:
    """Whether a head is trained alone, which has a row of its own for each class. Where there is no ``tail`` yet, globs
    may select that."""
    if tail is None:
        return spec.blocks == 0 or spec.train == "head" or not isinstance(spec.train, str)
    return {*select(tail, spec)} <= {*tail.head_names}


def check_class_rows(recipe: Recipe, tail: TailConfig | None) -> None:
    """RecipeError for weights of each class where the classes share what is trained."""
    if recipe.compose.weights == "class-rows" and not trains_head(recipe.tangent, tail):
        raise RecipeError(
            'compose.weights = "class-rows" is for a head that is trained alone: classes share what is below it',
            got=f"tangent.blocks = {recipe.tangent.blocks!r}, tangent.train = {recipe.tangent.train!r}",
            do='set compose.weights = "rows", or train the head alone: tangent.train = "head"',
        )


def check_class_weights(recipe: Recipe, classes: int) -> None:
    """RecipeError unless a list of class weights has one for each class, and one of them is above 0."""
    given = recipe.objective.class_weights
    if not isinstance(given, str) and not any(given):
        raise RecipeError(
            "objective.class_weights leaves no row a weight: there is nothing to learn from",
            got=given[:8],
            do='give one number above 0 at least, or "balanced"',
        )
    if not isinstance(given, str) and len(given) != classes:
        raise RecipeError(
            f"objective.class_weights has {counted(len(given), 'value')}, the store has {counted(classes, 'class')}",
            got=given[:8],
            do='give one number for each class, or "balanced"',
        )


def coefficients(given: Weights) -> dict[str, float]:
    """``compose.weights`` by component; empty if they are shares of the rows.

    Raises:
        RecipeError: a component named twice, or a sum other than one.
    """
    if isinstance(given, str):
        return {}
    by_name = {component_of(name): float(mu) for name, mu in given.items()}
    if len(by_name) < len(given):
        raise RecipeError("compose.weights names a component twice", got=", ".join(given), do="leave one of them out")
    if not abs(sum(by_name.values()) - 1) <= SUMS_TO_ONE:
        raise RecipeError(
            f"the coefficients of {WEIGHTED} sum to {sum(by_name.values()):.6g}, not to one",
            got=", ".join(f"{name} = {mu}" for name, mu in given.items()),
            do=f"{to_one(sum(by_name.values()))} (--weight, or compose.weights in a recipe)",
        )
    return by_name


def check_coefficients(weights: Weights, names: Iterable[str], store: FeatureStore | None = None) -> None:
    """RecipeError unless each of these components has a coefficient, and their sum is one, or all say how many rows (of
    each class) they were made from.

    Coefficients that the ``store`` recorded need not cover all components: some may have come since.
    """
    given, wanted = coefficients(weights), set(names)
    if isinstance(weights, str):
        if store is not None:
            _check_counted(store, weights, wanted & store.objects().keys())
        return
    known = store is not None and recorded_recipe(store).compose.weights == weights
    if other := sorted(given.keys() - wanted if known else given.keys() ^ wanted):
        raise RecipeError(
            f"compose.weights does not fit the components: {', '.join(map(shard_of, other))}",
            got=f"coefficients of {', '.join(map(shard_of, sorted(given)))}",
            do=f'name {", ".join(map(shard_of, sorted(wanted)))} (0 leaves one out), or set compose.weights = "rows"',
        )


def _check_counted(store: FeatureStore, weights: ByRows, names: Iterable[str]) -> None:
    """RecipeError where a component will never say the number of its rows that ``weights`` ask for."""
    metas = {name: store.objects()[name].meta for name in sorted(names)}
    if weights == "rows" and (unsaid := uncounted(store, weights, metas)):
        raise RecipeError(
            "no weights by rows: a component does not say how many rows it was made from",
            got=", ".join(map(shard_of, unsaid)),
            do="set compose.weights to a coefficient for each component, by its name",
        )
    stay = [name for name, meta in metas.items() if meta.get("imported") or PRIVATE in meta]  # no training renews these
    if weights == "class-rows" and (unsaid := uncounted(store, weights, stay)):
        said = [shard_of(name) + (", trained privately" if PRIVATE in metas[name] else "") for name in unsaid]
        raise RecipeError(
            "no weights by the rows of each class: a component does not say how many it was made from",
            got="; ".join(said),
            do='set compose.weights = "rows", or a coefficient for each component, by its name',
        )


STAYS = "imported, so that nobody here knows what rows it was made from, and it stays as it is"


def orphans(store: FeatureStore, settings: Settings) -> list[str]:
    """Components and models that belong to another base point, or to other parameters, than ``settings`` ask for.

    A store's components are all over the parameters that its recorded settings select.
    """
    others = not _selects_the_same(store, settings)
    return [
        name
        for name, ref in store.objects().items()
        if is_model(name) and (ref.meta.get("base_digest") != settings.base.digest or (others and name != HEAD))
    ]


def _selects_the_same(store: FeatureStore, settings: Settings) -> bool:
    """Whether the store's recorded settings select the parameters that ``settings`` do."""
    recorded = recorded_recipe(store).tangent
    try:
        before = select(TailConfig.from_dict(store.objects()[TAIL].meta), recorded)
    except RecipeError:  # settings that an earlier release recorded though the store cannot follow them
        return recorded.train == settings.train
    return before == select(settings.base.config, settings.base.spec)


def check_kept(store: FeatureStore, settings: Settings, renewed: Iterable[str]) -> None:
    """RecipeError where settings would leave components behind that are not among the ``renewed``."""
    left = [n for n in orphans(store, settings) if n.startswith(COMPONENTS) and n not in set(renewed)]
    if not left:
        return
    is_foreign = any(name in imported(store) for name in left)
    raise left_behind(left, _differing(store.manifest.recipe.get("tangent", {}), settings.recipe), is_foreign)


def left_behind(names: Sequence[str], got: str, is_foreign: bool = False) -> RecipeError:
    """What to raise where settings would leave components behind; ``is_foreign`` if some of them are imported."""
    return RecipeError(
        f"other [tangent] settings would leave {', '.join(names)} around another base point, or over other parameters",
        got=got,
        do="keep the store's [tangent] section, or train in a store of its own: imported components cannot be renewed"
        if is_foreign
        else "train all shards together, without --shard, or keep the store's [tangent] section",
    )


def _differing(recorded: Mapping[str, object], recipe: Recipe) -> str:
    """The keys of [tangent] that differ from what is recorded."""
    asked = msgspec.to_builtins(recipe.tangent)
    return ", ".join(f"tangent.{k} = {v!r}" for k, v in asked.items() if recorded.get(k) != v) or "settings as recorded"
