"""The verb compose: which compositions are due, what becomes of the others, and what is to be said of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from taftcache.cache.format.manifest import ObjectRef
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.errors import CompositionError, RecipeError
from taftcache.model.component import Component, StoredComponents, put_component, read_component
from taftcache.model.members import imported, numbers_of, subtracted
from taftcache.model.meta import Coefficient, meta_of
from taftcache.model.outdated import OUTDATED, composition_key, stale_parts
from taftcache.names import (
    EXACT,
    MEAN,
    MODELS,
    PRIVATE,
    WEIGHTED,
    component_of,
    first_few,
    shard_of,
    typed,
)
from taftcache.recipe import Overrides, Recipe
from taftcache.stages.certificates import JudgedCertificate
from taftcache.stages.completeness import untrained_notes
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.executor import Executor, same_threads
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.train.checks import check_coefficients, coefficients, orphans, trains_head
from taftcache.stages.train.compositions import (
    composed,
    members_of,
    proof_rows,
    solve_exact,
    weighed,
    weights_of,
)
from taftcache.stages.train.held_out import HeldOutChange, held_out_change, hits_or_note
from taftcache.stages.train.outdated import train_options
from taftcache.stages.train.promises import promised
from taftcache.stages.train.record import record_recipe, recorded_values, settings_of
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import judged, ridge_notes, unfinished
from taftcache.stages.train.trained_on import Weights, class_notes, member_rows, objective_of, said_rows, scale_notes


@dataclass(frozen=True, kw_only=True)
class ComposeReport(Report):
    """The composition ``model``, and what else was made.

    members: components in it. coefficients: of each, one number, or one for each class. identity_error: how far
    Σ μ f(Δw_i) = f(Σ μ Δw_i) was off. changed: whether anything was made or dropped. models: all compositions that are
    current now. made: those that were not current before. dropped: those that are gone. left_out: shards that were
    subtracted. certificate: that of the exact model. moved: ‖Δw_exact − Δw_mean‖. passes: how many the exact model
    took. held_out: what became of the default model's accuracy. None if there was no composition before, or if nothing
    was made or dropped. notes: why models are gone, which members are out of date, and more. They say how to have
    models again, which members have no coefficient or no ε, and why the exact model ended above its tolerance.
    """

    store: Path
    root_digest: str
    model: str
    members: list[str]
    coefficients: dict[str, Coefficient]
    identity_error: float
    changed: bool
    models: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    certificate: JudgedCertificate | None = None
    moved: float = 0.0
    passes: int = 0
    seconds: float = 0.0
    held_out: HeldOutChange | None = None
    notes: list[str] = field(default_factory=list)


@at_its_place("a")
def compose(
    store: Place,
    recipe: Recipe | None = None,
    *,
    overrides: Overrides = (),
    progress: Progress | bool | None = None,
    cluster: Executor | None = None,
) -> ComposeReport:
    """Write ``models/mean``, and the other models that ``compose.mode`` asks for; those that are current are left
    alone.

    A model that the mode does not ask for is dropped once it is not current, and a note says so. Members are the
    components of all shards that were not subtracted, and those that were imported; the latter alone, as a note then
    says, if no shard was ever trained. The passes of the exact solve run on the workers of ``cluster`` if one is given,
    each over the shards that it keeps. ``recipe`` and ``overrides``
    ({"compose.mode": "mean"}) as for ``train``.

    Raises:
        CompositionError: a shard has no component, or components do not share one base. RecipeError: coefficients for
            other components, or whose sum is not one; an exact model beside private ones. StoreError: a store of a
            regressor's images, which have no classes.
    """
    assert isinstance(store, FeatureStore)
    check_has_classes(store)
    progress, begin = or_silent(progress), time.perf_counter()
    settings = settings_of(store, recipe, overrides, "compose")
    recipe = settings.recipe
    names = members_of(store)
    _check(store, settings, names)
    work = _Composing(store, settings, names)
    made, dropped = work.sums()
    wanted = settings.keys.exact(store.shards, work.digests) if asks_exact(store, recipe) else None
    exact = work.is_due(EXACT, wanted, dropped)
    again = {MEAN, WEIGHTED, EXACT} & store.objects().keys() and (made or dropped or exact)
    before, unscored = hits_or_note(store) if again else (None, [])
    if made or dropped or (not exact and recorded_values(store, recipe) != store.manifest.recipe):
        with store.transaction() as change:
            for name in dropped:
                change.drop(name)
            for name, component in made.items():
                put_component(change, name, component)
            if not exact:
                record_recipe(change, store, recipe)
    if exact:
        mean = made.get(MEAN) or read_component(store, MEAN, settings.base)
        operator = None if cluster is None else cluster.operator(store, recipe, settings.base)
        with same_threads(cluster):
            made[EXACT] = solve_exact(settings, store.shards, mean, work.digests, progress, operator)
        with store.transaction() as change:
            put_component(change, EXACT, made[EXACT])
            record_recipe(change, store, recipe)
    report = _report(store, settings, names, list(made), dropped, begin)
    now, unscored = (None, unscored) if before is None else hits_or_note(store)
    seconds = time.perf_counter() - begin
    found = held_out_change(before, now)
    return replace(report, held_out=found, notes=[*report.notes, *unscored], seconds=seconds)


def _report(
    store: FeatureStore, settings: Settings, members: list[str], made: list[str], dropped: list[str], begin: float
) -> ComposeReport:
    """The report on the store's compositions of ``members`` as they are now."""
    objects, asked = store.objects(), settings.recipe.compose
    said = meta_of(objects[EXACT].meta if EXACT in objects else {})
    model = WEIGHTED if asked.mode == "weighted" else MEAN
    summed, given = objects[model].meta, model == WEIGHTED and not isinstance(asked.weights, str)
    stale, again = stale_parts(store, settings.keys), f"taftcache train{train_options(store, settings.keys)}"
    return ComposeReport(
        store=store.path,
        root_digest=store.root_digest,
        model=model,
        members=list(summed["coefficients"]),
        coefficients=summed["coefficients"],
        identity_error=summed["identity_error"],
        changed=bool(made or dropped),
        made=made,
        dropped=dropped,
        models=[name for name in (MEAN, WEIGHTED, EXACT) if name in objects],
        left_out=subtracted(store),
        certificate=judged(said),
        moved=said.from_mean or 0.0,
        passes=said.passes,
        seconds=time.perf_counter() - begin,
        notes=[
            *(_gone_note(store, settings.recipe, name) for name in dropped),
            *(_uncounted_notes(store, asked.weights, members) if model == WEIGHTED else []),
            *([f"composed as they are, though {OUTDATED}: {', '.join(stale)}; next: {again}"] if stale else []),
            *_unpromised_notes(objects),
            *(_twin_notes(store, list(summed["coefficients"])) if made and not given else []),  # reads them all
            *_unlike_notes(store, settings, list(summed["coefficients"])),
            *untrained_notes(store),
            *([*unfinished({EXACT: said}), *ridge_notes({EXACT: said})] if EXACT in objects else []),
        ],
    )


def _gone_note(store: FeatureStore, recipe: Recipe, name: str) -> str:
    """A note on what is gone, why, and how to get it back."""
    mode, against = recipe.compose.mode, against_exact(store)
    why = f" {against}" if name == EXACT and mode == "auto" else ""
    can = name != EXACT or not under_promises(store)
    how = f"; to have it: taftcache compose {typed(store.path)} --mode {name.removeprefix(MODELS)}"
    return (
        f"{name} is gone: it was not of the components and settings that are there now, and compose.mode = "
        f'"{mode}" makes none anew{why}' + (how if can else "")
    )


def _uncounted_notes(store: FeatureStore, weights: Weights, members: Sequence[str]) -> list[str]:
    """A note on components that came after the coefficients were given, and how to give them one."""
    if not (since := sorted({*members} - {*weighed(weights, members)})):
        return []
    given = coefficients(weights) | dict.fromkeys(since, 0.0)
    command = f"taftcache compose {typed(store.path)}" + "".join(
        f" --weight {shard_of(name)}={mu}" for name, mu in given.items()
    )
    return [
        f"{WEIGHTED} leaves out what has no coefficient: {', '.join(since)}; to give one, with a sum of 1: {command}, "
        f"or weigh all by their rows: taftcache compose {typed(store.path)} --weight rows"
    ]


def _unpromised_notes(objects: Mapping[str, ObjectRef]) -> list[str]:
    """A note for each sum that promises no privacy though some of its members do."""
    notes = []
    for name in (MEAN, WEIGHTED):
        parts = objects[name].meta["coefficients"] if name in objects and PRIVATE not in objects[name].meta else ()
        plain = [part for part in parts if PRIVATE not in objects[part].meta]
        if len(plain) < len(parts):
            why = f"{first_few(plain)} made without" if plain else "its members promise of unlike neighbours"
            notes.append(f"{name} promises no privacy and has no epsilon, beside private members: {why}")
    return notes


def _twin_notes(store: FeatureStore, members: Sequence[str]) -> list[str]:
    """A note for each component that was imported under two names, or beside the shard that it is of."""
    foreign, alike = {*imported(store)}, dict[str, list[str]]()
    for name, numbers in numbers_of(store, members if foreign else ()).items():
        alike.setdefault(numbers, []).append(name)
    return [
        f"the same component under {len(names)} names, so that its rows count as often: {', '.join(names)}"
        for names in alike.values()
        if len(names) > 1 and not foreign.isdisjoint(names)
    ]


def _unlike_notes(store: FeatureStore, settings: Settings, members: Sequence[str]) -> list[str]:
    """Notes on members of a sum with logits of other scales; and on those without rows of a class, unless a model of
    all rows stands beside the sum, or it weighs each class by its own rows."""
    notes, asked = scale_notes({name: objective_of(store, name) for name in members}), settings.recipe.compose
    if EXACT in store.objects() or (asked.mode, asked.weights) == ("weighted", "class-rows"):
        return notes
    counts = said_rows(store, "class-rows", members)
    can = trains_head(settings.base.spec, settings.base.config) and None not in counts.values()
    better = f"taftcache compose {typed(store.path)} --weight class-rows" if can else None
    return notes + class_notes(store.classes, counts, better)


class _Composing:
    """The members of a store's compositions, and which compositions are due."""

    def __init__(self, store: FeatureStore, settings: Settings, names: Sequence[str]) -> None:
        self.store, self.settings, self.names = store, settings, names
        self.digests = {name: store.manifest.objects[name].digest for name in names}

    @property
    def members(self) -> StoredComponents:
        """The components, not held together: each is read when it is added."""
        return StoredComponents(self.store, self.names, self.settings.base)

    def is_due(self, name: str, wanted: str | None, dropped: list[str]) -> bool:
        """Whether ``name`` has to be made; one that is not wanted and not current joins the ``dropped``."""
        there = self.store.objects().get(name)
        key = wanted or (there and self.settings.keys.composition(self.store, name, self.digests))
        if there is not None and there.meta.get("key") == key:
            return False
        if there is not None and wanted is None:
            dropped.append(name)
        return wanted is not None

    def sums(self) -> tuple[dict[str, Component], list[str]]:
        """The sums of components that are due, by name, and which are to be dropped."""
        store, base, given = self.store, self.settings.base, self.settings.recipe.compose
        rows = proof_rows(store.held_out or next(iter(store.shards), None), base)
        made: dict[str, Component] = {}
        dropped: list[str] = []
        if self.is_due(MEAN, composition_key(self.digests, None), dropped):
            made[MEAN] = composed(self.members, self.digests, base, rows)
        weights, members = None, self.members
        if given.mode == "weighted":
            members = StoredComponents(store, weighed(given.weights, self.names), base)
            rows_of = member_rows(given.weights, members.metas(), store.shards, len(store.classes))
            weights = weights_of(given.weights, rows_of)
        digests = {name: self.digests[name] for name in members}
        if self.is_due(WEIGHTED, composition_key(digests, weights) if weights else None, dropped):
            made[WEIGHTED] = composed(members, digests, base, rows, weights)
        return made, dropped


def _check(store: FeatureStore, settings: Settings, names: Sequence[str]) -> None:
    """Refuse what cannot be composed, before anything is made.

    Raises:
        CompositionError, RecipeError: as ``compose`` says.
    """
    recipe = settings.recipe
    if lost := sorted(set(orphans(store, settings)) & set(names)):
        raise CompositionError(
            f"the settings make another base point, or train other parameters, than {', '.join(lost)}",
            got=f"base {settings.base.digest[:16]}",
            do=f"taftcache train {typed(store.path)}, which renews every component of another base",
        )
    if recipe.compose.mode == "weighted":
        check_coefficients(recipe.compose.weights, names, store)
    if recipe.compose.mode == "exact" and (private := under_promises(store)):
        raise RecipeError(
            f"a model solved over all rows would leave {', '.join(private)} without privacy",
            got='compose.mode = "exact"',
            do='set compose.mode = "mean" or "weighted"',
        )


def asks_exact(store: FeatureStore, recipe: Recipe, without: Collection[str] = ()) -> bool:
    """Whether the recipe asks for the exact model of all shards, in a store ``without`` these imported components."""
    return recipe.compose.mode == "exact" or (recipe.compose.mode == "auto" and not against_exact(store, without))


def under_promises(store: FeatureStore) -> list[str]:
    """Names of what was trained privately, and of components of shards whose rows are still under a promise."""
    there = {name for name, ref in store.objects().items() if PRIVATE in ref.meta}
    return sorted(there | set(map(component_of, promised(store))))


def against_exact(store: FeatureStore, without: Collection[str] = ()) -> str:
    """Why ``compose.mode`` "auto" makes no exact model, in words; empty if it makes one. That takes the rows of every
    member, without a promise of privacy, and two shards or more: with one, the exact model would be its component."""
    holds = {
        "beside private components": bool(under_promises(store)),
        "beside imported components": not {*imported(store)} <= {*without},
        "where a shard was subtracted": bool(subtracted(store)),
        "of a single shard": len(store.shards) < 2,
    }
    return next((why for why, is_so in holds.items() if is_so), "")
