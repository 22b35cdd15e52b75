"""What a source of labelled images is, and what every source checks."""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple, Protocol

from PIL import Image

from taftcache.errors import NETWORK, DataError, UnreadableImage
from taftcache.names import counted, first_few

TRAIN = ("train", "training")  # the usual names of a part to train on
# and of one to test on, which is the first of these that there is
TEST = ("test", "testing", "val", "valid", "validation", "dev", "development")
SPLITS = frozenset({*TRAIN, *TEST})
SPLIT = "split"  # the column of a table that says which of them a row belongs to

Knows = Callable[[str], bool] | None  # whether a store has a row of an id, or had one; None: there is no store


class Item(NamedTuple):
    """One image: its stable id, and its label as an index into the source's classes."""

    id: str
    label: int


@dataclass(frozen=True, kw_only=True)
class SourceInfo:
    """What a source says of the place that it reads, besides its images.

    empty: classes whose folders have no image. unused: classes that only rows of splits which are not used have.
    aside: images that are left out, by the ids that they would have.
    splits: those that have files or arrays of their own; ``""`` among them if the images are of none.
    rows_by_split: how many rows have each value of a column that names splits.
    of_split: whether the images are those of one split, which the recipe names.
    """

    empty: Collection[str] = ()
    unused: Collection[str] = ()
    aside: Sequence[str] = ()
    splits: Collection[str] = ()
    rows_by_split: Mapping[str, int] = field(default_factory=dict)
    of_split: bool = False


class Labelled(Protocol):
    """Samples with labels, indexes to ``classes``."""

    @property
    def classes(self) -> list[str]: ...

    @property
    def items(self) -> list[Item]: ...

    @property
    def info(self) -> SourceInfo: ...


class Source(Protocol):
    """Labelled images in a fixed order; ``read`` may be called from several threads at once, and in forked processes.

    Those share the place at which an open file is read: so ``read`` opens the file anew, or reads by ``os.pread``. Both
    lists may be replaced: where forgotten images are left out, say.

    numbered: whether ids are numbers of rows in a file that its owner may change: if a row is removed or moved, others
        get its id. info: what else it says of its place.
    """

    classes: list[str]
    items: list[Item]
    numbered: bool
    info: SourceInfo = SourceInfo()

    def read(self, index: int) -> Image.Image:
        """The image ``items[index]`` in RGB; UnreadableImage, naming it, if it does not decode."""
        ...

    def missing(self) -> list[str]:
        """Ids of images whose files are not there; most sources list only files that are."""
        return []

    def column(self, name: str) -> Sequence[Any]:
        """What a table has for each of ``items`` in its column ``name``; DataError where no table lists the images."""
        raise DataError(
            f"the images are of no table, and have no column {name!r}",
            got=f"images such as {self.items[0].id}",
            do="list them in a table (.csv, .tsv, .parquet) with their paths, their labels and this column",
        )


def any_numbered(*sources: Source | None) -> bool:
    """Whether any of these sources is ``numbered``."""
    return any(source.numbered for source in sources if source is not None)


def shortest_ids(*sources: Source | None) -> list[str]:
    """An id of each source: of numbers of rows, one with the fewest digits."""
    return [min((item.id for item in source.items), key=len) for source in sources if source is not None]


def check_two_classes(place: str, classes: Sequence[str]) -> None:
    """DataError unless training images have at least two classes; those of a test may all be of one."""
    if len(classes) < 2:
        raise DataError(
            f"{place} has fewer than two classes",
            got=", ".join(classes) or "no class",
            do="add a class; or make a pool without labels, of which nothing is held out: --set data.held_out=0",
        )


def first_usual(names: Iterable[str], usual: Sequence[str]) -> str | None:
    """Of these names, the one that comes first among the ``usual`` ones, whatever its case."""
    there = {name.lower(): name for name in names}
    return next((there[name] for name in usual if name in there), None)


def splits_note(trained: str | None, tested: str | None, left: Sequence[str]) -> list[str]:
    """A note on what each split is used for, unless that is plain: none is left over, and one called test is held out.
    ``trained`` is "" for arrays of no split; None for what is not there."""
    if not left and (tested or "").lower() in TEST[:2]:
        return []
    uses = [] if trained is None else [f"{repr(trained) if trained else 'the arrays of none'} for training"]
    uses += [] if tested is None else [f"{tested!r} for testing"]
    return [f"split: {', '.join(uses)}" + (f"; used for neither: {first_few(left)}" if left else "")]


def check_items(place: str, classes: Sequence[str], items: Sequence[Item], otherwise: str = "") -> None:
    """DataError unless there are images, classes with distinct names, and unique printable ids; ``otherwise`` is what
    else helps against ids that are not printable."""
    if not items:
        raise DataError(f"no images at {place}", do="check the path")
    for what, names in (("class", classes), ("id", [item.id for item in items])):
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise DataError(f"{place} has the {what} {name!r} more than once", got=f"{times} times", do="rename")
    if unprintable := [item.id for item in items if not item.id or not item.id.isprintable()]:
        raise DataError(
            f"{place} has ids that are not printable text",
            got=f"{len(unprintable)}: {', '.join(map(ascii, unprintable[:8]))}",
            do=f"rename the files or the ids: stores, ledgers and requests to forget carry them{otherwise}",
        )
    if outside := [item for item in items if not 0 <= item.label < len(classes)]:
        first = outside[0]
        unknown = "-1 often means that no label is given: leave these images out, and data.test if it names them"
        raise DataError(
            f"{first.id} has the label {first.label}, but {place} has {counted(len(classes), 'class')}",
            got=f"{len(outside)} of {counted(len(items), 'label')} outside of 0 to {len(classes) - 1}",
            do=unknown if first.label == -1 else "correct the labels or the list of classes",
        )


REGRESSION = "values are fitted by TangentRegressor"
_LONGEST = 100  # text that sorts as a number
_NUMERIC = re.compile(r"-?\d+(\.\d+)?")
FEW = 20  # in so few samples, most may well have a class of their own


def check_labels(place: object, labels: Sequence[str]) -> None:
    """DataError if labels, one a row, differ only in blanks, or look like values of a regression: fractions, more than
    a few of them and mostly different."""
    bare: dict[str, str] = {}
    for text in labels:
        if (other := bare.setdefault(text.strip(), text)) != text:
            raise DataError(
                f"labels of {place} differ only in blanks at their ends",
                got=f"{other!r} and {text!r}",
                do="write each class in one way",
            )
    different = sorted(set(labels))
    if len(labels) < FEW or 2 * len(different) <= len(labels):
        return
    try:
        numbers = [float(name) for name in different]
    except ValueError:
        return
    if any(isfinite(number) and not number.is_integer() for number in numbers):
        raise DataError(
            f"the labels of {place} are values, not classes",
            got=f"{counted(len(different), 'different number')} for {counted(len(labels), 'row')}, such as "
            f"{different[0]}",
            do=f"name the column or array of classes; {REGRESSION}",
        )


def name_order(text: str) -> tuple[bool, Decimal, str]:
    """The key by which names of classes are sorted: numbers, also fractions, come first, in their own order. Longer
    texts than `_LONGEST` sort as texts."""
    number = len(text) <= _LONGEST and _NUMERIC.fullmatch(text)
    return not number, Decimal(text if number else 0), text


# Errors of a mount or disk that is not there, or of a process that may open no more files; not every system has all.
_UNREACHABLE = NETWORK | {
    getattr(errno, name)
    for name in ("EIO", "EREMOTEIO", "ENODEV", "ENXIO", "EKEYEXPIRED", "EMFILE", "ENFILE", "ENOMEM")
    if hasattr(errno, name)
}
SKIP = 'set data.unreadable = "skip" to leave such images out and have them listed'


@contextmanager
def decoding(id: str, gone: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Whatever goes wrong inside becomes the UnreadableImage of ``id``; a lack of memory becomes a MemoryError with it.

    A disk that does not answer is a DataError, and so is a file that is missing because it is ``gone`` since it was
    found: the image may be good, and would be skipped for ever.
    """
    try:
        yield
    except MemoryError as error:
        raise no_memory(id) from error
    except Exception as error:  # decoders and HDF5 filters raise OSError, SyntaxError, struct.error and more
        missing = isinstance(error, FileNotFoundError)
        if (missing and gone()) or (isinstance(error, OSError) and error.errno in _UNREACHABLE):
            raise DataError(
                f"the image {id} cannot be reached any more",
                got=f"{type(error).__name__}: {error}",
                do="check that its folder, disk or mount is there, then run this again, or remove the file",
            ) from error
        raise unreadable(id, error) from error


def no_memory(id: str) -> MemoryError:
    """The error for one image that does not fit in memory."""
    return MemoryError(f"no memory to decode the image {id}")


def unreadable(id: str, error: BaseException | str, otherwise: str = SKIP) -> UnreadableImage:
    """The error for one image that cannot be read, with what helps against its cause, or ``otherwise``."""
    reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    if isinstance(error, PermissionError):
        return UnreadableImage(
            f"no permission to read the image {id}", got=reason, do=f"let this user read the file, or {otherwise}"
        )
    if isinstance(error, FileNotFoundError):
        return UnreadableImage(f"the image {id} is missing", got=reason, do=f"put the file back, or {otherwise}")
    if isinstance(error, IsADirectoryError):
        return UnreadableImage(f"{id} is a folder, not an image", do=f"name the images in it, or {otherwise}")
    return UnreadableImage(
        f"the image {id} does not decode", got=reason, do=f"replace or remove the file, or {otherwise}"
    )
