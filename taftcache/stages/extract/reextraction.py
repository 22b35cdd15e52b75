"""Make what is in a store again: run the same images through the same layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save

from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.layout import resolve_chunk_rows
from taftcache.cache.format.plan import in_order
from taftcache.cache.store import FeatureStore
from taftcache.consent import Kind, check_weights_there, refusal
from taftcache.errors import DataError, StoreError
from taftcache.names import HELD_OUT
from taftcache.recipe import Recipe
from taftcache.stages.extract.frozen import Collected, load_frozen, made_from, run_frozen, same_rows
from taftcache.stages.extract.plan import forgotten_group, plan_images
from taftcache.stages.progress import Progress
from taftcache.tangent.spec import TAIL


class Reextraction:
    """Makes rows, members and the tail of ``store`` again from the recipe's data and backbone.

    Both are opened when they are first needed; UntrustedStore if only the store names them. Nothing made here is
    trusted: the caller compares it with what the store has.
    """

    def __init__(self, store: FeatureStore, recipe: Recipe, progress: Progress, own: Collection[str]) -> None:
        self._own = own  # the keys of the recipe whose values its user chose
        self._store, self._recipe, self._progress = store, same_rows(store, recipe), progress

    def members(self, shard: str) -> list[str]:
        """Ids of the samples that the plan puts into a shard, if the store has their class and no row or record of them
        elsewhere."""
        store = self._store
        taken = {skipped.id for skipped in store.manifest.skipped}
        for ref in store.manifest.shards:
            if ref.name != shard:
                try:
                    taken.update(store.shard(ref.name).sample_ids)
                except StoreError:
                    continue  # damaged, too: the caller's comparison of digests will show it
        of_group = forgotten_group(self._recipe.data, store.is_forgotten)
        new = (i for i in self._candidates(shard) if i not in taken)
        ids = [i for i in new if not store.is_forgotten(i) and of_group(i) is None]
        return in_order(list(self.labels(ids)), self._recipe.store.seed)

    def labels(self, ids: Sequence[str]) -> dict[str, int]:
        """Labels, in the store's numbering, that the data has now for these samples; it may lack some."""
        index, wanted = {name: k for k, name in enumerate(self._store.classes)}, set(ids)
        return {
            item.id: index[source.classes[item.label]]
            for source in self._sources
            if source is not None
            for item in source.items
            if item.id in wanted and source.classes[item.label] in index
        }

    def rows(self, shard: str, ids: Sequence[str]) -> NDArray[Any]:
        """Tokens [len(ids), t, d] of these samples.

        Raises:
            DataError: an image is not in the source any more, or does not decode. BackboneError: no such weights.
        """
        if gone := [i for i in ids if not any(i in there for there in self._places)]:
            raise DataError(
                f"{len(gone)} of the images of shard {shard} are not in the data source now",
                got=f"the first: {gone[0]!r}",
                do="put them back, or name where the data lies now with --set data.train=…",
            )
        blocks, made = list[NDArray[Any]](), list[str]()
        with self._progress.task(f"extract again {shard}", len(ids)) as task:
            for source, there in zip(self._sources, self._places, strict=True):  # of either, whatever the shard
                own = [i for i in ids if i in there]
                if source is not None and own:
                    sink = Collected()
                    run_frozen(self._model, self._recipe, source, [there[i] for i in own], sink, task.advance)
                    blocks, made = [*blocks, *sink.blocks], [*made, *own]
        rows, place = np.concatenate(blocks), {i: k for k, i in enumerate(made)}
        return rows if made == [*ids] else rows[[place[i] for i in ids]]

    def layout(self, shard: str) -> tuple[tuple[int, int], str, int]:
        """(t, d), dtype and rows per chunk that an extraction gives the shard."""
        spec, (t, d) = self._recipe.store, self._model[0].tokens_shape
        return (t, d), spec.dtype, resolve_chunk_rows(spec.chunk_rows, (t, d), spec.dtype)

    def object(self, name: str) -> bytes | None:
        """The tail's weights; nothing else comes from the backbone."""
        return save(self._model[0].tail_state()) if name == TAIL else None

    def _candidates(self, shard: str) -> list[str]:
        """Ids that the plan puts into the shard; if ``append --new-shard`` made it, all that the plan does not hold
        out."""
        source, test = self._sources
        planned = plan_images(self._recipe, source, test)
        if shard in planned:
            return planned[shard].ids
        kept = set(planned[HELD_OUT].ids) if HELD_OUT in planned and test is None else set()
        return [item.id for item in source.items if item.id not in kept]

    def check_identity(self) -> None:
        """IdentityError if rows would be made differently from the store's."""
        self._store.check_identity(made_from(self._recipe, *self._model))

    @cached_property
    def _places(self) -> list[dict[str, int]]:
        """Where each sample is, in both sources."""
        return [{item.id: k for k, item in enumerate(source.items)} if source else {} for source in self._sources]

    @cached_property
    def _sources(self) -> tuple[Source, Source | None]:
        self._check("images")
        return open_source(self._recipe.data, self._store.knows)

    @cached_property
    def _model(self) -> tuple[Reduction, Preprocess]:
        self._check("weights")
        check_weights_there(self._store, self._recipe)
        return load_frozen(self._recipe, self._store.classes)

    def _check(self, kind: Kind) -> None:
        if (refused := refusal(self._store, kind, self._recipe, self._own)) is not None:
            raise refused
