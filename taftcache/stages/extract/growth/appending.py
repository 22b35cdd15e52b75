"""Add new samples to an existing store: other shards keep their files, and existing rows are not run again."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, nullcontext, suppress
from functools import cached_property, partial

from taftcache.backbone.sources.base import Source, any_numbered
from taftcache.cache.store import FeatureStore
from taftcache.consent import check_weights_there
from taftcache.errors import StoreError, TaftcacheError, UnreadableImage
from taftcache.names import typed
from taftcache.recipe import Recipe, checked_recipe
from taftcache.stages.extract.away import Away, renamed_notes, rows_away
from taftcache.stages.extract.classes import NewClasses, classes_of, growth_of, other_classes, other_classes_note
from taftcache.stages.extract.extraction import ImageRows
from taftcache.stages.extract.forgotten import in_source_note, numbered_note, open_images, staying_out
from taftcache.stages.extract.frozen import engines_of, load_frozen, made_from, same_rows
from taftcache.stages.extract.growth.carrying_out import carry_out
from taftcache.stages.extract.growth.planning import plan_append
from taftcache.stages.extract.growth.reporting import AppendReport, append_report
from taftcache.stages.extract.identity import check_words, elsewhere
from taftcache.stages.extract.moving import check_kind, follow_weights, is_moved, moved_rows
from taftcache.stages.progress import Progress, or_silent

# Keys of [data] that say where images lie and how they are read: new ones may lie elsewhere. The other keys decide
# which rows go where; so does whether there is a ``test`` at all, which also decides the ids. At one place, ``id_key``
# has to stay: with other ids, every image would be a new one.
PLACES = ("source", "train", "root", "image_key", "label_key", "train_split", "test_split", "unreadable")


def append(
    recipe: Recipe,
    *,
    progress: Progress | bool | None = None,
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
            must hold out and limit as before. Its weights may lie elsewhere: once new rows are there that were
            made with them, the store names that place.
        new_shard: put all new training samples into one more shard, so that the others keep their files and their
            components. The only way for a balanced plan, in which one more sample would move others.
        dry_run: say what would be added, and add nothing.
        relabel: give existing rows the classes that the data now has for them. Each shard with such rows is written
            anew, in a commit of its own, with the bytes of one that was extracted with these labels, and what was
            trained on it becomes outdated. All new images are decoded before the first of these commits. Without
            ``relabel`` a note counts these rows.
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
        images, classes = _Images(source, test), classes_of(source, test)
        others = other_classes(store, classes)
        check_kind(store, recipe, source, test)
        numbered = any_numbered(source, test)
        moved = None
        with nullcontext() if numbered or relabel else suppress(TaftcacheError):  # without either, only a note needs it
            moved = moved_rows(store, recipe, (source, test), others, progress) if others or numbered else None
        if moved is not None and (numbered or relabel):
            raise moved
        readable = partial(images.decodes, stop=recipe.data.unreadable == "stop")
        growth = growth_of(
            store, source, test, new_shard=new_shard, relabel=relabel, new_classes=new_classes, readable=readable
        )
        out = staying_out(store.is_forgotten, recipe.data, source, test, known=growth.classes)

        def origin() -> ImageRows:
            check_weights_there(store, recipe)
            model = load_frozen(same_rows(store, recipe), store.classes)
            store.check_identity(made_from(recipe, *model))
            engines = stack.enter_context(closing(engines_of(model, recipe)))
            return ImageRows(recipe=recipe, model=model, source=source, test=test, engines=engines, verb="append")

        notes += in_source_note(recipe, out.ids, numbered=numbered)
        alone = moved_there and store.every_id.isdisjoint(classes)  # another place may have new images alone
        away = Away([], []) if alone else rows_away(store, classes.keys(), numbered=numbered)
        renamed = renamed_notes(store, away, classes, out.gone)
        for note in renamed:  # now, too: before it is refused, or rows are made
            progress.say(note)
        notes += [*away.notes, *renamed]
        if not relabel:
            notes += other_classes_note(others) if moved is None else [f"{moved.fault} ({moved.got}); {moved.do}"]
        # ids of samples that were skipped, and decode now
        mended = {s.id for s in store.manifest.skipped if s.id in images and images.decodes(s.id)}
        plan = plan_append(store, recipe, given, out, growth, mended=mended, relabelled=others if relabel else {})
        if growth.added or plan.labels:  # whose commits come first, so an image must not be refused after them
            unasked = [i for shard in plan.shards for i in shard.ids if classes[i] not in growth.added]
            with progress.task("decode", len(unasked)) as task:
                for sample in unasked:
                    readable(sample)
                    task.advance()
        counts = None if dry_run else carry_out(store, recipe, plan, origin, progress)
        notes += follow_weights(store, recipe) if counts else []
        return append_report(store, plan, counts, begin, notes, away.ids)


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
