"""New samples into a store that is there: other shards keep their files, rows that are there are not run again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.manifest import Skipped
from taftcache.cache.format.plan import held_out, in_order, next_name, shard_of
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.writer import ShardWriter
from taftcache.errors import RecipeError, StoreError
from taftcache.recipe import Recipe
from taftcache.stages.extract.classes import class_indexes
from taftcache.stages.extract.extraction import HELD_OUT, check_words, is_complete, load_frozen, made_from, run_frozen
from taftcache.stages.extract.reextraction import same_rows
from taftcache.stages.progress import Progress, Silent

if TYPE_CHECKING:
    from taftcache.backbone.preprocess import Preprocess
    from taftcache.backbone.reduction import Reduction

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class AppendReport:
    """``added``: shard -> new rows in it; ``untouched`` shards kept their files; ``known`` images were there before.

    ``images`` were run through the model, ``skipped`` of them did not decode.
    """

    store: Path
    root_before: str
    root_digest: str
    added: dict[str, int] = field(default_factory=dict)
    untouched: list[str] = field(default_factory=list)
    known: int = 0
    images: int = 0
    skipped: int = 0
    seconds: float = 0.0


def append(recipe: Recipe, progress: Progress | None = None, *, new_shard: bool = False) -> AppendReport:
    """Extract the images of the recipe's data that its store does not hold yet.

    By default each goes where the plan puts it, and the store ends with the bytes of one made from all images at once.
    A shard that gets rows is written anew, the rows that it had are copied, and each shard is a commit of its own: a
    killed run goes on where it was. Forgotten samples stay out. Images that the plan holds out go to the held-out
    shard in either form.

    Args:
        recipe: asks for what the store was made with; its ``data`` may name another place with further images.
        new_shard: put all new training samples into one further shard, so that the others keep their files and their
            components. The only form for a balanced plan, in which one more sample would move others.

    Raises:
        IdentityError: other weights, preprocessing, dtype or library versions than the store's.
        DataError: a class that the store does not have. StoreError: an extraction that is not finished.
    """
    progress = progress or Silent()
    begin = time.perf_counter()
    with FeatureStore(recipe.store_path, mode="a") as store:
        before = store.root_digest
        check_words(store, recipe, but=("data",))
        if not is_complete(store):
            raise StoreError(
                "Samples are appended to a store whose extraction is finished.",
                got=f"{store.path}: {len(store.manifest.shards)} of {store.manifest.plan['groups']} shards",
                do="taftcache extract first",
            )
        source, test = open_source(recipe.data)
        places, known = _places(store, recipe, source, test, new_shard)
        names = [ref.name for ref in store.manifest.shards]
        if not places:
            return AppendReport(store.path, before, before, {}, names, known, seconds=time.perf_counter() - begin)
        model = load_frozen(same_rows(store, recipe), store.classes)
        store.check_identity(made_from(recipe, *model))
        images = skipped = 0
        for name, (role, origin, new) in places.items():
            rows, left_out = _grow(store, recipe, name, role, origin, new, model, progress)
            images, skipped = images + rows, skipped + left_out
        return AppendReport(
            store.path,
            before,
            store.root_digest,
            {name: len(new) for name, (_, _, new) in places.items()},
            [name for name in names if name not in places],
            known,
            images,
            skipped,
            time.perf_counter() - begin,
        )


def _places(
    store: FeatureStore, recipe: Recipe, source: Source, test: Source | None, new_shard: bool
) -> tuple[dict[str, tuple[str, Source, list[str]]], int]:
    """Shard -> (role, source, new ids), and how many samples are known already."""
    spec = recipe.store
    known = {i for ref in store.manifest.shards for i in store.shard(ref.name).sample_ids}
    known |= {skipped.id for skipped in store.manifest.skipped}
    new = [item.id for item in source.items if item.id not in known and not store.is_forgotten(item.id)]
    kept = held_out(new, recipe.data.held_out, spec.seed) if test is None else set()
    training = in_order([i for i in new if i not in kept], spec.seed)
    places: dict[str, tuple[str, Source, list[str]]] = {}
    if training and new_shard:
        places[next_name([shard.name for shard in store.shards])] = ("train", source, training)
    elif training and spec.plan != "hash":
        raise RecipeError(
            "In a balanced plan one more sample would move others to other shards.",
            got=f"{len(training)} new samples for a store with plan = {spec.plan!r}",
            do="put them into a shard of their own: --new-shard",
        )
    else:
        for i in training:
            places.setdefault(shard_of(i, spec.shards, spec.seed), ("train", source, []))[2].append(i)
    if test is not None:
        fresh = [item.id for item in test.items if item.id not in known and not store.is_forgotten(item.id)]
        origin = test
    else:
        fresh, origin = sorted(kept), source
    if fresh:
        places[HELD_OUT] = (HELD_OUT, origin, in_order(fresh, spec.seed))
    items = len(source.items) + (len(test.items) if test is not None else 0)
    return dict(sorted(places.items())), items - len(new) - (len(fresh) if test is not None else 0)


def _grow(
    store: FeatureStore,
    recipe: Recipe,
    name: str,
    role: str,
    source: Source,
    new: list[str],
    model: tuple[Reduction, Preprocess],
    progress: Progress,
) -> tuple[int, int]:
    """Write a shard with ``new`` samples among its old ones; images run, and those that did not decode."""
    shape = model[0].tokens_shape
    old = store.shard(name) if store.has_shard(name) else None
    if old is not None and old.tokens_shape != shape:
        raise StoreError("A shard's rows have one shape.", got=f"{list(old.tokens_shape)}, {list(shape)}")
    skipped = {s.id: s for s in store.manifest.skipped if s.shard == name}
    candidates = in_order([*(old.sample_ids if old else ()), *skipped, *new], recipe.store.seed)
    index = {item.id: k for k, item in enumerate(source.items)}
    plan = store.manifest.plan
    with (
        store.writer(
            name,
            role,
            chunk_rows=old.chunk_rows if old else recipe.store.chunk_rows,
            dtype=recipe.store.dtype,
            tokens_shape=shape,
            candidates=candidates,
        ) as writer,
        progress.task(f"append {name}", len(new)) as task,
    ):
        sink = _Merged(writer, old, skipped, candidates, set(new), class_indexes(store, source.classes))
        task.advance(sink.consumed)
        order = [index[i] for i in new]
        stats = run_frozen(model, recipe, source, order, sink, task.advance, recipe.data.unreadable)
        sink.finish()
        writer.commit(plan=plan if old else plan | {"groups": plan["groups"] + 1})
    return stats.images, stats.skipped


class _Merged:
    """A sink for the new rows of a shard that puts the old ones between them, in the candidates' order."""

    def __init__(
        self,
        writer: ShardWriter,
        old: Shard | None,
        skipped: dict[str, Skipped],
        candidates: Sequence[str],
        new: set[str],
        classes: Sequence[int],
    ) -> None:
        self._writer, self._old, self._skipped, self._classes = writer, old, skipped, classes
        self._candidates, self._new = candidates, new
        self._at = writer.consumed  # resumed there
        done = candidates[: self._at]
        self.consumed = sum(i in new for i in done)
        self._row = sum(i not in new and i not in skipped for i in done)

    def append(
        self, tokens: NDArray[Any], ids: Sequence[str], labels: Sequence[int], skipped: Sequence[Any] = ()
    ) -> None:
        """New rows [b, t, d] and new samples left out, in order."""
        row = {i: k for k, i in enumerate(ids)}
        left_out = {s[0]: Skipped(*s) for s in skipped}
        for _ in range(len(row) + len(left_out)):
            self._copy()
            i = self._candidates[self._at]
            if i in row:
                k = row[i]
                self._writer.append(tokens[k : k + 1], [i], [self._classes[labels[k]]])
            else:
                self._writer.append(tokens[:0], [], [], [left_out[i]])
            self._at, self.consumed = self._at + 1, self.consumed + 1

    def finish(self) -> None:
        """The old rows after the last new one."""
        self._copy()

    def _copy(self) -> None:
        """Old rows up to the next new sample: they are neighbours in the old shard too."""
        while self._at < len(self._candidates) and self._candidates[self._at] not in self._new:
            stop = self._at
            while (
                stop < min(self._at + _ROWS_AT_ONCE, len(self._candidates)) and self._candidates[stop] not in self._new
            ):
                stop += 1
            some = self._candidates[self._at : stop]
            rows = [i for i in some if i not in self._skipped]
            tokens, labels = np.empty((0,)), np.empty(0, np.int32)
            if self._old is not None and rows:
                span = slice(self._row, self._row + len(rows))
                tokens, labels = self._old.tokens(span), self._old.labels[span]
            self._writer.append(tokens, rows, labels, [self._skipped[i] for i in some if i in self._skipped])
            self._at, self._row = stop, self._row + len(rows)
