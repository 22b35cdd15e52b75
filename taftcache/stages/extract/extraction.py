"""Stage 1: run images through the frozen layers, and cache the activations in verified shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save

from taftcache.backbone.forward.extract import RowCounts, Sink
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Source, any_numbered, shortest_ids
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.layout import resolve_chunk_rows
from taftcache.cache.format.plan import check_forms, other_forms
from taftcache.cache.opening import Place
from taftcache.cache.place.address import is_bucket
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe, remember
from taftcache.errors import DataError, TaftcacheError
from taftcache.names import BASE, counted, is_model, resized_notes, them
from taftcache.recipe import Recipe, checked_recipe, recipe_values
from taftcache.stages.completeness import is_complete
from taftcache.stages.executor import Executor, RowEngines
from taftcache.stages.extract.away import renamed_notes, rows_away
from taftcache.stages.extract.classes import (
    absent_notes,
    classes_of,
    doubtful_classes_notes,
    other_classes,
    other_classes_note,
)
from taftcache.stages.extract.estimation import bytes_of, check_disk
from taftcache.stages.extract.filling import fill_missing
from taftcache.stages.extract.forgotten import (
    OF_GROUPS,
    forgotten_beside,
    in_source_note,
    left_out_notes,
    misnamed_notes,
    open_images,
    remembered,
    staying_out,
    taking,
    without_forgotten,
)
from taftcache.stages.extract.frozen import engines_of, load_frozen, made_from, run_frozen
from taftcache.stages.extract.identity import are_weights_elsewhere, check_request, check_tail, elsewhere
from taftcache.stages.extract.moving import (
    LIES_AT,
    check_kind,
    follow,
    follow_weights,
    is_moved,
    moved_rows,
    notes_on_numbers,
)
from taftcache.stages.extract.plan import PlannedShard, group_notes, plan_images
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.tangent.spec import TAIL


@dataclass(frozen=True, kw_only=True)
class ExtractReport(Report):
    """What stage 1 did.

    shards: rows, by shard. images: how many went through the model now; the rest were there. skipped: images that could
    not be read. bytes: size of the store without models. preprocess: what becomes of an image before the network sees
    it, by timm's values or the recipe's.
    """

    store: Path
    root_digest: str
    shards: dict[str, int]
    images: int = 0
    skipped: int = 0
    seconds: float = 0.0
    bytes: int = 0
    preprocess: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def extract(
    recipe: Recipe,
    *,
    progress: Progress | bool | None = None,
    cluster: Executor | None = None,
    check: Callable[[Recipe, Sequence[str], Mapping[str, PlannedShard], FeatureStore | None], None] | None = None,
    forgotten_of: Place | None = None,
) -> ExtractReport:
    """Run the frozen layers over the recipe's images and cache what the trained ones need.

    Resumes where a killed run stopped, and does nothing if the store is complete, unless its images are now elsewhere:
    then a few rows are made again, to see that they are the same, and the store names the new place. Of weights that
    are elsewhere, the file must have the digest of the store's. The layers run on the workers of ``cluster`` if one is
    given; the same bytes are stored. ``check`` may refuse the recipe before a store is made or filled: it is called
    with the recipe, the classes, the planned shards by name, and what there is of the store. A new store leaves out the
    samples and classes that the store ``forgotten_of`` has forgotten, as one at that store's place would.

    Raises:
        IdentityError: the folder holds a store made with other settings, weights or libraries.
        DataError, BackboneError, StoreError, ClusterError: as its parts raise them; what was committed is left as it
            was.
    """
    progress, recipe = or_silent(progress), checked_recipe(recipe)
    begin = time.perf_counter()
    path = recipe.store_path
    exists = FeatureStore.exists(path)
    if exists and (done := _complete(recipe, forgotten_of, progress, begin)) is not None:
        remember(path, recipe)
        return done
    if not exists:
        recipe.preprocess.check_scale()
    source, test, aside = open_images(recipe.data, path, forgotten_of=forgotten_of)
    shards = plan_images(recipe, source, test)
    beside, unasked = remembered(path, forgotten_of, source, test)
    unasked += [] if exists else notes_on_numbers(recipe, (source, test), beside, forgotten_of, progress)
    with ExitStack() as stack:
        there = stack.enter_context(FeatureStore(path, mode="a")) if exists else None
        shards, classes, notes = without_forgotten(beside, there, recipe.data, shards, source, test)
        if there is None:
            early = [] if forgotten_of is not None else forgotten_beside(path, recipe.data, source, test)
            early += [*doubtful_classes_notes(source), *group_notes(recipe.data, shards.values())]
            unasked += early
            for note in early:  # now, too: before the work starts
                progress.say(note)
        notes = [*aside, *unasked, *notes]
        if check is not None:
            check(recipe, classes, shards, there)
        model = load_frozen(recipe, classes)
        identity = made_from(recipe, *model)
        if there is None:
            check_disk(path, bytes_of((len(shard.ids) for shard in shards.values()), model[0], recipe))
            beside.save()  # nothing refuses the recipe any more
            store = stack.enter_context(create_store(recipe, identity, classes, len(shards)))
            for note in (resized := resized_notes(identity)):  # now, too: before the work starts
                progress.say(note)
            notes += [*resized, *_place_notes(path)]
        else:
            there.check_identity(identity)
            check_kind(there, recipe, source, test)
            if any_numbered(source, test) and (moved := moved_rows(there, recipe, (source, test), {}, progress)):
                raise moved
            store = there
            _record_skipping(store, recipe)
        remember(path, recipe)  # which was not refused
        put_tail(store, model[0])
        progress.say(f"caching the {model[0].describe()}")
        engines: RowEngines
        if cluster is None:
            engines = stack.enter_context(closing(engines_of(model, recipe)))
        else:
            engines = cluster.rows(recipe, classes, identity, shortest_ids(source, test))
        origin = ImageRows(recipe=recipe, model=model, source=source, test=test, engines=engines)
        images = fill_missing(store, recipe, shards.values(), origin, progress)
        notes += [] if there is None else follow_weights(store, recipe)  # not before: an image may refuse to decode
        return _report(store, images, time.perf_counter() - begin, [*notes, *absent_notes(store)])


def _complete(recipe: Recipe, forgotten_of: Place | None, progress: Progress, begin: float) -> ExtractReport | None:
    """The report on an existing store that is complete, once its record names where images or weights are now; None if
    the store is not complete."""
    path = recipe.store_path
    remembered(path, forgotten_of)
    with FeatureStore(path) as store:
        whole = is_complete(store)
        check_request(store, recipe, but=elsewhere(store, recipe, LIES_AT) if whole else ())
        check_tail(store, recipe)
        store.check_files(store.every_shard, store.objects(BASE))
        if not whole:
            return None
        moved = is_moved(store, recipe)
        if not (moved or are_weights_elsewhere(store, recipe)):
            return _report(store, notes=_news(store, recipe, progress))
    with FeatureStore(path, mode="a") as store:
        notes = [follow(store, recipe, progress)] if moved else []
        notes += follow_weights(store, recipe)
        return _report(store, seconds=time.perf_counter() - begin, notes=[*notes, *_news(store, recipe, progress)])


def create_store(recipe: Recipe, identity: dict[str, Any], classes: Sequence[str], shards: int) -> FeatureStore:
    """An empty store at the recipe's place, open for writing; it is complete once it has this number of ``shards``.

    FormatError, before it is made, if chunks would be too large.
    """
    resolve_chunk_rows(recipe.store.chunk_rows, identity["cut"]["shape"], recipe.store.dtype)
    return FeatureStore.create(
        recipe.store_path, identity=identity, classes=classes, plan=plan_record(recipe, shards), recipe=_record(recipe)
    )


def _place_notes(path: Path) -> list[str]:
    """A note on where a new store lies, if its path is relative: from another folder it would name another store."""
    if is_bucket(path) or path.is_absolute():
        return []
    return [f"created {path.absolute()} (store.path is relative to the current folder)"]


def plan_record(recipe: Recipe, shards: int) -> dict[str, Any]:
    """What a store keeps of its plan."""
    spec = recipe.store
    return {"kind": spec.plan, "shards": spec.shards, "seed": spec.seed, "groups": shards}


def _record_skipping(store: FeatureStore, recipe: Recipe) -> None:
    """Record in an unfinished store that unreadable images are skipped from now on, if they were not before."""
    recorded = store.manifest.recipe
    if recorded_recipe(store).data.unreadable != recipe.data.unreadable:
        with store.transaction() as change:
            change.update(recipe=recorded | {"data": recorded["data"] | {"unreadable": recipe.data.unreadable}})


def put_tail(store: FeatureStore, frozen: Reduction) -> None:
    """Commit the weights of the trainable layers, unless they are there."""
    if TAIL not in store.objects():
        with store.transaction() as change:
            change.put(TAIL, save(frozen.tail_state()), frozen.config.as_dict())


@dataclass(frozen=True, kw_only=True)
class ImageRows:
    """Rows of images, as the frozen layers make them.

    test: the data's second source, if it has one. engines: what runs the layers; by default this process, which starts
    anew for each shard.
    """

    recipe: Recipe
    model: tuple[Reduction, Preprocess]
    source: Source
    test: Source | None
    engines: RowEngines | None = None
    verb: str = "extract"

    @property
    def tokens_shape(self) -> tuple[int, int]:
        """(t, d) of a row."""
        return self.model[0].tokens_shape

    def classes(self, shard: PlannedShard) -> Sequence[str]:
        """The classes of the source that has the shard's images."""
        return self._source_of(shard).classes

    def labels(self, shard: PlannedShard) -> dict[str, int]:
        """The labels of all of that source's images."""
        return {item.id: item.label for item in self._source_of(shard).items}

    def run(self, shard: PlannedShard, sink: Sink, on_rows: Callable[[int], None]) -> RowCounts:
        """The shard's images through the frozen layers."""
        source, unreadable = self._source_of(shard), self.recipe.data.unreadable
        index = {item.id: k for k, item in enumerate(source.items)}
        order = [index[i] for i in shard.ids]
        engine = None if self.engines is None else self.engines.engine(source, shard.from_test, unreadable == "stop")
        return run_frozen(self.model, self.recipe, source, order, sink, on_rows, unreadable, engine)

    def _source_of(self, shard: PlannedShard) -> Source:
        return self.test if shard.from_test and self.test is not None else self.source


def _record(recipe: Recipe) -> dict[str, Any]:
    """The recipe as the store keeps it: without sections that change no byte of the store, or name ids to forget."""
    values = recipe_values(recipe)
    values["store"]["path"] = None
    return {name: value for name, value in values.items() if name not in ("extract", "forget", "compare")}


def _news(store: FeatureStore, recipe: Recipe, progress: Progress) -> list[str]:
    """What the source holds that the store does not, and the other way round; IdentityError as for `check_kind`."""
    source, test = open_source(recipe.data, store.knows)
    check_kind(store, recipe, source, test)
    there, numbered = classes_of(source, test), any_numbered(source, test)
    rows = store.every_id
    skipped = {left_out.id for left_out in store.manifest.skipped}
    known = rows | skipped
    out = staying_out(store.is_forgotten, recipe.data, source, test, known=store.classes)
    notes = misnamed_notes(source, test)
    new, strange = (sorted(some - known) for some in (there.keys() - out.all, out.strange.keys()))
    held = other_forms([*new, *strange], known)
    away = rows_away(store, there.keys() | {*held.values()}, numbered=numbered)
    others, moved = other_classes(store, there), None
    if others or (numbered and (new or strange or away.by_number)):
        with suppress(TaftcacheError):  # then nothing is said of it here, but append refuses rows that have moved
            moved = moved_rows(store, recipe, (source, test), others, progress)
    if moved is not None:
        notes.append(f"{moved.fault} ({moved.got}); {moved.do}")
        if numbered:
            return notes  # no id says which image is meant
    notes += left_out_notes((n for i, n in out.grouped.items() if i not in known), OF_GROUPS)
    notes += left_out_notes(n for i, n in out.closed.items() if i not in known)
    if held:
        notes.append(_held_note(held, len(new) + len(strange) - len(held)))
        new, strange = [], []
    try:
        check_forms([*new, *strange])
        check_forms(dict.fromkeys(out.strange[i] for i in strange), store.classes, "classes")
    except DataError as refused:
        some = counted(len(new) + len(strange), "image")
        notes.append(f"append takes none of {some} not in the store: {refused.fault} ({refused.got}); {refused.do}")
        new, strange = [], []
    if strange:
        lacking = f"{counted(len({there[i] for i in strange}), 'class')} that the store does not have"
        notes.append(
            f"not in the store: {counted(len(strange), 'image')} of {lacking} (first: {strange[0]}); taftcache append "
            f"RECIPE {taking(len(strange), out.alone)}"
        )
    if new:
        takes = f"taftcache append RECIPE{' --new-classes skip' if strange else ''} takes {them(len(new))} in"
        notes.append(f"not in the store: {counted(len(new), 'image')} of the source (first: {new[0]}); {takes}")
    notes += other_classes_note(others) if moved is None else []
    notes += [*away.notes, *renamed_notes(store, away, there, out.gone)]
    notes += in_source_note(recipe, out.ids, numbered=numbered)
    if unread := sorted(skipped & there.keys()):
        images = f"{counted(len(unread), 'image')} that could not be read (first: {unread[0]})"
        notes.append(f"left out: {images}; taftcache append RECIPE takes in those that can by now")
    return notes


def _held_note(held: Mapping[str, str], others: int) -> str:
    """A note on images whose ids the store has in another Unicode form: id -> the store's; ``others`` are new."""
    first, more = min(held), f" ({counted(others, 'other image')} not in the store)" if others else ""
    have = "has an id" if len(held) == 1 else "have ids"
    return (
        f"{counted(len(held), 'image')} {have} of the store in another Unicode form (first: {first!a}, in the store "
        f"{held[first]!a}); append takes nothing{more} until they are named as in the store"
    )


def _report(store: FeatureStore, images: int = 0, seconds: float = 0.0, notes: Sequence[str] = ()) -> ExtractReport:
    return ExtractReport(
        store=store.path,
        root_digest=store.root_digest,
        shards={ref.name: ref.rows for ref in store.manifest.shards},
        images=images,
        skipped=len(store.manifest.skipped),
        seconds=seconds,
        bytes=store.nbytes - sum(ref.size for name, ref in store.objects().items() if is_model(name)),
        preprocess=store.identity.get("preprocess", {}),
        notes=list(notes),
    )
