"""Add new samples to an existing store: other shards keep their files, and existing rows are not run again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

from taftcache.backbone.forward.extract import RowCounts
from taftcache.backbone.sources.base import Source, any_numbered
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import DataError, StoreError, TaftcacheError, UnreadableImage
from taftcache.names import (
    BASE,
    PRIVATE,
    component_of,
    counted,
    first_few,
    is_model,
    typed,
    with_counts,
)
from taftcache.recipe import Recipe, checked_recipe
from taftcache.stages.completeness import is_complete, making_of, planned_shards, subtracted, subtracted_notes
from taftcache.stages.extract.classes import (
    Growth,
    NewClasses,
    check_classes,
    class_indexes,
    classes_of,
    growth_of,
    other_classes,
    other_classes_note,
)
from taftcache.stages.extract.extraction import ImageRows
from taftcache.stages.extract.filling import OldRows, RowOrigin, fill
from taftcache.stages.extract.forgotten import (
    NOT_THERE,
    StayOut,
    in_source_note,
    left_out_notes,
    numbered_note,
    open_images,
    staying_out,
    taking,
)
from taftcache.stages.extract.frozen import engines_of, load_frozen, made_from, same_rows
from taftcache.stages.extract.identity import check_words, elsewhere
from taftcache.stages.extract.moving import check_kind, is_moved, moved_rows
from taftcache.stages.extract.plan import PlannedShard, plan_more
from taftcache.stages.progress import Progress, or_silent

# Keys of [data] that say where images lie and how they are read: new ones may lie elsewhere. The other keys decide
# which rows go where; so does whether there is a ``test`` at all, which also decides the ids. At one place, ``id_key``
# has to stay: with other ids, every image would be a new one.
PLACES = ("source", "train", "root", "image_key", "label_key", "train_split", "test_split", "unreadable")


@dataclass(frozen=True, kw_only=True)
class AppendReport:
    """New samples in a store, and what they changed.

    added: new rows in each shard. relabelled: rows with a corrected label, by shard. untouched: shards that kept their
    files. known: samples that were there before. unread: how many of those had been skipped. images: images or vectors
    that became rows. skipped: how many new samples did not decode. skipped_ids: their ids. closed: new samples of
    forgotten classes, left out, by class. new_classes: samples of classes that the store did not have, by class.
    dropped: models removed because they have no column for the new classes. dry_run: whether all of this is only
    planned. Then it is as if every new sample could be read.
    """

    store: Path
    root_before: str
    root_digest: str
    added: dict[str, int] = field(default_factory=dict)
    relabelled: dict[str, int] = field(default_factory=dict)
    untouched: list[str] = field(default_factory=list)
    known: int = 0
    unread: int = 0
    images: int = 0
    skipped: int = 0
    skipped_ids: list[str] = field(default_factory=list)
    seconds: float = 0.0
    dry_run: bool = False
    closed: dict[str, int] = field(default_factory=dict)
    new_classes: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def append(
    recipe: Recipe,
    *,
    progress: Progress | None = None,
    new_shard: bool = False,
    dry_run: bool = False,
    relabel: bool = False,
    new_classes: NewClasses = "refuse",
) -> AppendReport:
    """Extract the images of the recipe's data that its store does not hold yet.

    By default each goes where the plan puts it, and the store ends up with the same bytes as one made from all images
    at once. A shard that gets rows is written anew, the rows that it had are copied, and each shard is a commit of its
    own: a killed run resumes where it stopped. Forgotten samples stay out. With ``new_shard`` or without, images that
    were skipped and now decode go to the shard that left them out, and images that the plan holds out go to the
    held-out shard. No new shard is made if none of its images can be read.

    Args:
        recipe: must ask for what the store was made with; its ``data`` may name another place with more images, but
            must hold out and limit as before.
        new_shard: put all new training samples into one more shard, so that the others keep their files and their
            components. The only way for a balanced plan, in which one more sample would move others.
        dry_run: say what would be added, and add nothing.
        relabel: give existing rows the classes that the data now has for them. Each shard with such rows is written
            anew, in a commit of its own, with the bytes of one that was extracted with these labels, and what was
            trained on it becomes outdated. Without ``relabel`` a note counts these rows.
        new_classes: what to do with images of classes that the store does not have. "refuse": nothing is appended.
            "skip": they are left out, a note says how many, and existing rows keep their labels. "take": a first commit
            adds the classes, writes anew the shards whose labels change with them, and drops all models, because none
            has a column for them; rows are not run again. All new images are decoded before that commit. Classes that
            were forgotten stay out.

    Raises:
        IdentityError: other weights, preprocessing, dtype, split or library versions than the store's.
        DataError: classes that the store does not have, if they are neither skipped nor taken; or not skipped, and of
            test images alone.
        RecipeError: the store records a weight for each class, and is to take new ones.
        StoreError: an extraction that is not finished.
    """
    progress, recipe = or_silent(progress), checked_recipe(recipe)
    begin = time.perf_counter()
    with FeatureStore(recipe.store_path, mode="r" if dry_run else "a") as store, ExitStack() as stack:
        if imported := store.identity.get("imported"):
            raise StoreError(
                f"cannot append images to {store.path}: its rows were imported",
                do=f"taftcache append {typed(store.path)} FILE"
                if "scaling" in imported
                else "import all into a new store",
            )
        moved_there = is_moved(store, recipe)
        check_words(store, recipe, but=elsewhere(store, recipe, (*PLACES, "id_key") if moved_there else PLACES))
        source, test, notes = open_images(recipe.data, store.path, new_classes)
        given = [item.id for item in source.items], None if test is None else [item.id for item in test.items]
        notes += numbered_note(recipe.data, source, test) if moved_there else []
        images = _Images(source, test)
        others = other_classes(store, classes_of(source, test))
        check_kind(store, recipe, source, test)
        numbered = any_numbered(source, test)
        moved = None
        with nullcontext() if numbered or relabel else suppress(TaftcacheError):  # without either, only a note needs it
            moved = moved_rows(store, recipe, (source, test), others, progress) if others or numbered else None
        if moved is not None and (numbered or relabel):
            raise moved
        growth = growth_of(
            store, source, test, new_shard=new_shard, relabel=relabel, new_classes=new_classes,
            readable=partial(images.decodes, stop=recipe.data.unreadable == "stop"),
        )  # fmt: skip
        out = staying_out(store.is_forgotten, source, test, known=growth.classes)

        def origin() -> ImageRows:
            model = load_frozen(same_rows(store, recipe), store.classes)
            store.check_identity(made_from(recipe, *model))
            engines = stack.enter_context(closing(engines_of(model, recipe)))
            return ImageRows(recipe=recipe, model=model, source=source, test=test, engines=engines, verb="append")

        notes += in_source_note(recipe, out.ids, numbered=numbered)
        if not relabel:
            notes += other_classes_note(others) if moved is None else [f"{moved.fault} ({moved.got}); {moved.do}"]
        # ids of samples that were skipped, and decode now
        mended = {s.id for s in store.manifest.skipped if s.id in images and images.decodes(s.id)}
        plan = plan_append(store, recipe, given, out, growth, mended=mended, relabelled=others if relabel else {})
        counts = None if dry_run else carry_out(store, recipe, plan, origin, progress)
        return append_report(store, plan, counts, begin, notes)


class _Images:
    """Images of some sources by their ids; the ids are collected when one is first asked for."""

    def __init__(self, *sources: Source | None) -> None:
        self._sources = [source for source in sources if source is not None]

    @cached_property
    def _places(self) -> dict[str, tuple[Source, int]]:
        return {item.id: (source, k) for source in self._sources for k, item in enumerate(source.items)}

    def __contains__(self, sample: str) -> bool:
        return sample in self._places

    def decodes(self, sample: str, *, stop: bool = False) -> bool:
        """Whether an image decodes; with ``stop``, UnreadableImage if it does not."""
        source, place = self._places[sample]
        try:
            source.read(place)
        except UnreadableImage:
            if stop:
                raise
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class AppendPlan:
    """What becomes of samples that a store is given, and of the store.

    root_before, rows: the store's root digest, and the rows of each shard, before anything is changed.
    growth: how the store grows. keeps_labels: whether its rows keep their labels, which are indexes of classes.
    lost: objects that have no column for the new classes, with their descriptions. outlived: those of them that
        ``compose.weights`` names, and that no training makes again.
    labels: shard -> id -> the class that this row gets.
    shards: the new samples by the shard that they go to, in the order of names.
    known: how many samples were there before. unread: how many of those had been skipped.
    closed, strange: the classes of samples that are left out, one name for each sample; ``alone`` as in `StayOut`.
    """

    root_before: str
    rows: dict[str, int]
    growth: Growth
    keeps_labels: bool
    lost: dict[str, dict[str, Any]]
    outlived: list[str]
    labels: dict[str, dict[str, str]]
    shards: list[PlannedShard]
    known: int
    unread: int
    closed: list[str]
    strange: list[str]
    alone: Collection[str]


def plan_append(
    store: FeatureStore,
    recipe: Recipe,
    given: tuple[Sequence[str], Sequence[str] | None],
    out: StayOut,
    growth: Growth,
    *,
    mended: Collection[str] = (),
    relabelled: Mapping[str, tuple[str, str]] | None = None,
) -> AppendPlan:
    """Decide which of the ``given`` samples a store takes, and into which shard; nothing is changed.

    Args:
        given: ids to train on, and those of a second source that is for testing, as ``split`` takes them.
        out: those of them that stay out.
        growth: how the store grows.
        mended: those of them that were skipped, but decode now: each goes to the shard that left it out.
        relabelled: rows of the store, as `other_classes` returns them, that get the class given for them.

    Raises:
        StoreError: a store that is not finished. RecipeError: a balanced plan has no place for further samples.
        DataError: the store does not have the class of a new sample, or the one that a row is to get.
    """
    if not is_complete(store):
        raise StoreError(
            f"cannot append to {store.path}: the {making_of(store)} that makes it is not finished",
            got=f"{len(store.manifest.shards)} of {planned_shards(store)} shards",
            do=f"taftcache {making_of(store)} first",
        )
    skipped = {sample.id: sample.shard for sample in store.manifest.skipped}
    kinds = _by_kind(store, [*given[0], *(given[1] or ())], out, skipped.keys(), mended)
    corrected = relabelled or {}
    strange = [out.strange[i] for i in (*kinds["strange"], *(i for i in corrected if i in out.strange))]
    if growth.new_classes == "refuse":
        check_classes(store, strange)
    lost = {n: ref.meta for n, ref in store.objects().items() if growth.added and not n.startswith(BASE)}
    weights, new = recorded_recipe(store).compose.weights, {*kinds["new"]}
    named = () if isinstance(weights, str) else weights
    training, test = ([i for i in ids if i in new] if ids is not None else None for ids in given)
    return AppendPlan(
        root_before=store.root_digest,
        rows={ref.name: ref.rows for ref in store.manifest.shards},
        growth=growth,
        keeps_labels=growth.classes[: len(store.classes)] == store.classes,
        lost=lost,
        outlived=[n for n in named if lost.get(component_of(n), {}).get("imported")],
        labels=_by_shard(store, {i: c for i, c in corrected.items() if i not in out.strange}, growth.classes),
        shards=plan_more(
            store,
            recipe,
            training or [],
            test,
            mended={i: skipped[i] for i in kinds["mended"]},
            new_shard=growth.new_shard,
        ),
        known=sum(len(kinds[kind]) for kind in ("known", "unread", "forgotten")),
        unread=len(kinds["unread"]),
        closed=[out.closed[i] for i in kinds["closed"]],
        strange=strange,
        alone=out.alone,
    )


_Kind = Literal["known", "unread", "forgotten", "closed", "strange", "mended", "new"]


def _by_kind(
    store: FeatureStore, given: Sequence[str], out: StayOut, skipped: Collection[str], mended: Collection[str]
) -> Mapping[_Kind, list[str]]:
    """Sort the ``given`` samples into kinds. The store has the rows of those that are "known", skipped those that are
    "unread", and takes only those that are "mended" or "new"."""
    rows = store.every_id

    def kind(sample: str) -> _Kind:
        if sample in rows:
            return "known"
        if sample in skipped and sample not in mended:
            return "unread"
        if sample in out.ids:
            return "forgotten"
        if sample in out.closed:
            return "closed"
        if sample in out.strange:
            return "strange"
        return "mended" if sample in skipped else "new"

    kinds: dict[_Kind, list[str]] = {kind: [] for kind in get_args(_Kind)}
    for sample in given:
        kinds[kind(sample)].append(sample)
    return kinds


def _by_shard(
    store: FeatureStore, relabelled: Mapping[str, tuple[str, str]], classes: Collection[str]
) -> dict[str, dict[str, str]]:
    """Shard -> id -> the class that this row gets; DataError if a class was forgotten."""
    if gone := sorted(i for i, (_, given) in relabelled.items() if given not in classes):
        raise DataError(
            f"{store.path} has forgotten the class that the data now has for {counted(len(gone), 'row')}",
            got=f"the first: {gone[0]!r}, now {relabelled[gone[0]][1]!r}",
            do="forget these rows too, or leave their labels as they were",
        )
    shards = store.every_shard if relabelled else []
    labels = {s.name: {i: relabelled[i][1] for i in s.sample_ids if i in relabelled} for s in shards}
    return {name: some for name, some in labels.items() if some}


def carry_out(
    store: FeatureStore, recipe: Recipe, plan: AppendPlan, origin: Callable[[], RowOrigin], progress: Progress
) -> list[RowCounts]:
    """Add classes, correct labels, and write the rows that ``origin`` makes; it is called only if there are any."""
    rows = origin() if plan.shards else None  # it may refuse, so call it before anything is changed
    if plan.growth.added:
        for note in _class_notes(plan):  # now, too: a killed run writes no report, and the next one adds no class
            progress.say(note)
        with store.transaction() as change:
            change.relabel(plan.growth.classes)
            for name in plan.lost:
                change.drop(name)
            if plan.outlived:
                values = store.manifest.recipe
                change.update(recipe={**values, "compose": {**values["compose"], "weights": "rows"}})
    for name, labels in plan.labels.items():
        with store.transaction() as change:
            change.correct(name, dict(zip(labels, class_indexes(store, [*labels.values()]), strict=True)))
    return [] if rows is None else [_grow(store, recipe, shard, rows, progress) for shard in plan.shards]


def _grow(store: FeatureStore, recipe: Recipe, shard: PlannedShard, origin: RowOrigin, progress: Progress) -> RowCounts:
    """Write a shard with new samples among its old ones, or a new shard."""
    if not store.has_shard(shard.name):
        plan = store.manifest.plan | {"groups": planned_shards(store) + 1}
        return fill(store, recipe, shard, origin, progress, plan=plan)
    old = OldRows(store, shard.name, shard.ids)
    if old.shard.tokens_shape != origin.tokens_shape:
        raise StoreError(
            f"the rows of shard {shard.name} have another shape than the new ones",
            got=f"{list(old.shard.tokens_shape)}, new: {list(origin.tokens_shape)}",
        )
    return fill(store, recipe, shard, origin, progress, old=old)


def append_report(
    store: FeatureStore,
    plan: AppendPlan,
    counts: Sequence[RowCounts] | None,
    begin: float,
    notes: Sequence[str] = (),
) -> AppendReport:
    """What was done since ``begin``, a value of ``time.perf_counter``; ``counts`` is None after a dry run."""
    if counts is None:
        added = {shard.name: len(shard.ids) for shard in plan.shards}
    else:
        now = {ref.name: ref.rows for ref in store.manifest.shards}
        added = {shard.name: now.get(shard.name, 0) - plan.rows.get(shard.name, 0) for shard in plan.shards}
    skipped = sum(count.skipped for count in counts or ())
    touched = {name for name, rows in added.items() if rows} | plan.labels.keys()
    left = {name: plan.rows[name] + added.get(name, 0) for name in subtracted(store) if name in touched}
    return AppendReport(
        store=store.path,
        root_before=plan.root_before,
        root_digest=store.root_digest,
        added={name: rows for name, rows in added.items() if rows},
        relabelled={name: len(labels) for name, labels in plan.labels.items()},
        untouched=[name for name in plan.rows if plan.keeps_labels and name not in touched],
        known=plan.known,
        unread=plan.unread,
        images=sum(count.rows for count in counts or ()),
        skipped=skipped,
        skipped_ids=_skipped(store, plan) if skipped else [],  # only then: it reads the ids of every shard that grew
        seconds=time.perf_counter() - begin,
        dry_run=counts is None,
        closed=dict(sorted(Counter(plan.closed).items())),
        new_classes=plan.growth.added or dict(sorted(Counter(plan.strange).items())),
        dropped=list(filter(is_model, plan.lost)),
        notes=[
            *notes,
            *_class_notes(plan),
            *_label_notes(store, plan),
            *subtracted_notes(store, left),
            *left_out_notes(plan.closed),
            *left_out_notes(plan.strange, NOT_THERE, taking(len(plan.strange), plan.alone)),
            *([] if counts is None else _unmade_notes(store, plan)),
        ],
    )


def _skipped(store: FeatureStore, plan: AppendPlan) -> list[str]:
    """Ids of new samples that no row was made of."""
    rows = {i for shard in plan.shards if store.has_shard(shard.name) for i in store.shard(shard.name).sample_ids}
    return [i for shard in plan.shards for i in shard.ids if i not in rows]


def _unmade_notes(store: FeatureStore, plan: AppendPlan) -> list[str]:
    """Notes on further shards that were not made."""
    return [
        f"no shard {shard.name} was made: none of its {counted(len(shard.ids), 'sample')} can be read (first: "
        f"{min(shard.ids)}); the next append tries again"
        for shard in plan.shards
        if not store.has_shard(shard.name)
    ]


def _class_notes(plan: AppendPlan) -> list[str]:
    """Notes on classes that are added, and on the models that go."""
    if not (more := plan.growth.added):
        return []
    models = {name: meta for name, meta in plan.lost.items() if is_model(name)}
    private = [name for name, meta in models.items() if PRIVATE in meta]
    foreign = [name for name, meta in models.items() if meta.get("imported")]
    gone = f"models that have no column for them, and go: {first_few(list(models))}"
    return [
        f"{counted(len(more), 'class')} more: {with_counts(more)}",
        *([gone] if models else []),
        *([f"trained privately, and what was spent stays spent: {first_few(private)}"] if private else []),
        *([f"imported, which nobody here can make again: {first_few(foreign)}"] if foreign else []),
        *([f"compose.weights is by rows now, for it names {first_few(plan.outlived)}"] if plan.outlived else []),
    ]


def _label_notes(store: FeatureStore, plan: AppendPlan) -> list[str]:
    """Notes on what corrected labels leave behind: private components, and classes without a row."""
    if not plan.labels:
        return []
    objects, own = store.objects(), [component_of(name) for name in plan.labels]
    private = [name for name in own if name in objects and PRIVATE in objects[name].meta]
    notes = [f"of the labels from before, until train --private: {', '.join(private)}"] if private else []
    has, names = set[str](), store.classes
    for shard in map(store.shard, plan.rows):
        corrected = plan.labels.get(shard.name, {})
        has |= {corrected.get(i, names[k]) for i, k in zip(shard.sample_ids, shard.labels, strict=True)}
    if bare := [name for name in names if name not in has]:
        notes.append(f"without a row, though the store keeps the class: {first_few(bare)}")
    return notes
