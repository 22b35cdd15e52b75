"""The classes of a source as those of a store, which loses the ones that it has forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError
from taftcache.names import CLASS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taftcache.cache.write.writer import ShardWriter


def class_indexes(store: FeatureStore, theirs: Sequence[str]) -> list[int]:
    """For each class of a source its index in the store, -1 for one that left it.

    Raises:
        DataError: a class that the store never had.
    """
    index = {name: k for k, name in enumerate(store.classes)}
    if unknown := [name for name in theirs if name not in index and not store.is_forgotten(CLASS + name)]:
        raise DataError(
            "A store keeps its classes: labels, the head and every component are indexes to them.",
            got=f"{len(unknown)} other classes, the first: {unknown[0]!r}",
            do="make a new store for the larger set of classes",
        )
    return [index.get(name, -1) for name in theirs]


class Relabelled:
    """A sink that puts rows of a source into a shard under the store's labels; a class that left is refused there."""

    def __init__(self, writer: ShardWriter, classes: Sequence[int]) -> None:
        self._writer, self._classes = writer, classes

    @property
    def consumed(self) -> int:
        """The writer's."""
        return self._writer.consumed

    def append(
        self, tokens: NDArray[Any], ids: Sequence[str], labels: Sequence[int], skipped: Sequence[Any] = ()
    ) -> None:
        """Rows in order."""
        self._writer.append(tokens, ids, [self._classes[k] for k in labels], skipped)
