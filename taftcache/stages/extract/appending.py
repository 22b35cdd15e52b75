"""New samples into a store that is there: other shards keep their files, rows that are there are not run again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from taftcache.backbone.forward.extract import RowCounts
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.plan import in_order, next_name, shard_of
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError, UnreadableImage
from taftcache.names import HELD_OUT, counted
from taftcache.recipe import Recipe, checked_recipe
from taftcache.stages.completeness import is_complete, making_of, planned_shards
from taftcache.stages.extract.extraction import ImageRows
from taftcache.stages.extract.filling import OldRows, RowOrigin, class_indexes, fill
from taftcache.stages.extract.forgotten import StayOut, check_filled, closed_notes, forgotten_items
from taftcache.stages.extract.frozen import engines_of, load_frozen, made_from, same_rows
from taftcache.stages.extract.identity import check_words, elsewhere
from taftcache.stages.extract.plan import PlannedShard, split
from taftcache.stages.progress import Progress, Silent

# Keys of [data] that say where images lie and how they are read: further ones may lie elsewhere. The others decide
# which rows go where, and so does whether there is a test at all, which also decides the ids.
PLACES = ("source", "train", "root", "image_key", "label_key", "train_split", "test_split", "unreadable")


@dataclass(frozen=True, kw_only=True)
class AppendReport:
    """``added``: shard -> rows more in it; ``untouched`` shards kept their files; ``known`` samples were there before.

    ``images`` (or vectors) were made rows of, ``skipped`` of them did not decode; ``unread`` are those known samples
    that were skipped before. ``closed``: of forgotten classes, how many further samples each has, which were left out.
    ``dry_run``: all of this is planned only, as if every new sample could be read.
    """

    store: Path
    root_before: str
    root_digest: str
    added: dict[str, int] = field(default_factory=dict)
    untouched: list[str] = field(default_factory=list)
    known: int = 0
    unread: int = 0
    images: int = 0
    skipped: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    closed: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def append(
    recipe: Recipe, progress: Progress | None = None, *, new_shard: bool = False, dry_run: bool = False
) -> AppendReport:
    """Extract the images of the recipe's data that its store does not hold yet.

    By default each goes where the plan puts it, and the store ends with the bytes of one made from all images at once.
    A shard that gets rows is written anew, the rows that it had are copied, and each shard is a commit of its own: a
    killed run goes on where it was. Forgotten samples stay out. Images that were skipped and decode now go to the shard
    that left them out, whatever is asked. Images that the plan holds out go to the held-out shard in either form. A
    further shard is not made where none of its images can be read.

    Args:
        recipe: asks for what the store was made with; its ``data`` may name another place with further images, but
            hold out and limit as before.
        new_shard: put all new training samples into one further shard, so that the others keep their files and their
            components. The only form for a balanced plan, in which one more sample would move others.
        dry_run: say what would be added, and add nothing.

    Raises:
        IdentityError: other weights, preprocessing, dtype, split or library versions than the store's.
        DataError: a class that the store does not have. StoreError: an extraction that is not finished.
    """
    progress, recipe = progress or Silent(), checked_recipe(recipe)
    begin = time.perf_counter()
    with FeatureStore(recipe.store_path, mode="r" if dry_run else "a") as store, ExitStack() as stack:
        if imported := store.identity.get("imported"):
            raise StoreError(
                f"cannot append images to {store.path}: its rows were imported",
                do=f"taftcache append {store.path} FILE" if "scaling" in imported else "import all into a new store",
            )
        check_words(store, recipe, but=elsewhere(store, recipe, PLACES))
        source, test = open_source(recipe.data)
        check_filled(store.path, source, test)
        given = [item.id for item in source.items], None if test is None else [item.id for item in test.items]
        out = forgotten_items(store.is_forgotten, source, test)

        def origin() -> ImageRows:
            model = load_frozen(same_rows(store, recipe), store.classes)
            store.check_identity(made_from(recipe, *model))
            engines = stack.enter_context(closing(engines_of(model, recipe)))
            return ImageRows(recipe=recipe, model=model, source=source, test=test, engines=engines, verb="append")

        new = NewSamples(store, recipe, given, out, new_shard, _mended(store, source, test))
        if new.shards:
            class_indexes(store, source.classes)  # before anything is staged, and in a dry run too
        return new.report(begin, None) if dry_run else new.report(begin, new.grow(origin, progress))


def _mended(store: FeatureStore, *sources: Source | None) -> frozenset[str]:
    """Ids of samples that were skipped, and decode now."""
    skipped = {sample.id for sample in store.manifest.skipped}
    found = set()
    for source in sources:
        if source is None or not skipped:
            continue
        for place, item in enumerate(source.items):
            if item.id in skipped:
                with suppress(UnreadableImage):
                    source.read(place)
                    found.add(item.id)
    return frozenset(found)


class NewSamples:
    """What of some samples a store does not know yet, by the shard that it goes to.

    Args:
        given: ids to train on, and those of a second source that is for testing, as ``split`` takes them.
        out: samples that stay out, for they or their classes were forgotten.
        new_shard: as for ``append``.
        mended: ids of samples that were skipped, and are none any more: each goes where it was left out.

    Raises:
        StoreError: a store that is not finished. RecipeError: a balanced plan has no place for further samples.
    """

    def __init__(
        self,
        store: FeatureStore,
        recipe: Recipe,
        given: tuple[Sequence[str], Sequence[str] | None],
        out: StayOut,
        new_shard: bool,
        mended: Collection[str] = (),
    ) -> None:
        if not is_complete(store):
            raise StoreError(
                f"cannot append to {store.path}: the {making_of(store)} that makes it is not finished",
                got=f"{len(store.manifest.shards)} of {planned_shards(store)} shards",
                do=f"taftcache {making_of(store)} first",
            )
        self._store, self._recipe, self._before = store, recipe, store.root_digest
        self._rows = {ref.name: ref.rows for ref in store.manifest.shards}
        rows = {i for name in self._rows for i in store.shard(name).sample_ids}
        skipped = {sample.id: sample.shard for sample in store.manifest.skipped}
        left = skipped.keys() - set(mended)
        self._closed = [name for i, name in out.closed.items() if i not in rows and i not in left]
        mended = set(mended) - out.all
        self._unread = sum(i in left for ids in given for i in ids or ())
        known = rows | skipped.keys() | out.all
        training, test = ([i for i in ids if i not in known] if ids is not None else None for ids in given)
        new = len(training or ()) + len(test or ()) + len(mended) + len(self._closed)
        self._known = sum(len(ids or ()) for ids in given) - new
        placed = self._placed(training or [], test, new_shard)
        self.shards = self._with(placed, {i: skipped[i] for i in mended}, from_test=test is not None)

    def grow(self, origin: Callable[[], RowOrigin], progress: Progress) -> list[RowCounts]:
        """Write the rows that ``origin`` makes, which is called where there are any."""
        if not self.shards:
            return []
        rows = origin()
        return [self._grow(shard, rows, progress) for shard in self.shards]

    def report(self, begin: float, counts: Sequence[RowCounts] | None) -> AppendReport:
        """What was done since ``begin``, a time of the performance counter; None of ``counts`` where nothing was."""
        if counts is None:
            added = {shard.name: len(shard.ids) for shard in self.shards}
        else:
            now = {ref.name: ref.rows for ref in self._store.manifest.shards}
            added = {shard.name: now.get(shard.name, 0) - self._rows.get(shard.name, 0) for shard in self.shards}
        return AppendReport(
            store=self._store.path,
            root_before=self._before,
            root_digest=self._store.root_digest,
            added={name: rows for name, rows in added.items() if rows},
            untouched=[name for name in self._rows if not added.get(name)],
            known=self._known,
            unread=self._unread,
            images=sum(count.rows for count in counts or ()),
            skipped=sum(count.skipped for count in counts or ()),
            seconds=time.perf_counter() - begin,
            dry_run=counts is None,
            closed=dict(sorted(Counter(self._closed).items())),
            notes=[*closed_notes(self._closed), *([] if counts is None else self._unmade())],
        )

    def _unmade(self) -> list[str]:
        return [
            f"no shard {shard.name} was made: none of its {counted(len(shard.ids), 'sample')} can be read (first: "
            f"{min(shard.ids)}); the next append tries again"
            for shard in self.shards
            if not self._store.has_shard(shard.name)
        ]

    def _placed(self, ids: list[str], test: list[str] | None, new_shard: bool) -> list[PlannedShard]:
        spec = self._recipe.store
        training, tested = split(self._recipe, ids, test)
        places: dict[str, list[str]] = {}
        if training and new_shard:
            places[next_name([shard.name for shard in self._store.shards])] = training
        elif training and spec.plan != "hash":
            raise RecipeError(
                "cannot append to the shards of a balanced plan: one more sample would move others to other shards",
                got=f"{counted(len(training), 'new sample')} for a store with plan = {spec.plan!r}",
                do="put them into a shard of their own: --new-shard, or new_shard=True",
            )
        else:
            for i in training:
                places.setdefault(shard_of(i, spec.shards, spec.seed), []).append(i)
        shards = [PlannedShard(name=name, ids=in_order(some, spec.seed)) for name, some in places.items()]
        if tested is not None and tested.ids:
            shards.append(tested)
        return shards

    def _with(self, placed: list[PlannedShard], mended: Mapping[str, str], *, from_test: bool) -> list[PlannedShard]:
        """The shards ``placed`` with the ``mended`` samples, each in its own."""
        ids = {shard.name: list(shard.ids) for shard in placed}
        for sample, name in mended.items():
            ids.setdefault(name, []).append(sample)
        seed = self._recipe.store.seed
        return [
            PlannedShard(name=name, ids=in_order(some, seed), from_test=from_test and name == HELD_OUT)
            for name, some in sorted(ids.items())
        ]

    def _grow(self, shard: PlannedShard, origin: RowOrigin, progress: Progress) -> RowCounts:
        """Write a shard with new samples among its old ones, or a further one."""
        store, recipe = self._store, self._recipe
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
