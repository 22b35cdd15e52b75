"""Every error taftcache raises on purpose.

    TaftcacheError                 exit code 1
    ├── RecipeError           2    a recipe, an option or an argument is wrong
    │   └── ArgumentError     2    an argument of a call; a ValueError, too
    ├── DataError             3    images, labels or ids that cannot be used
    │   └── UnreadableImage   3    one file that does not decode
    ├── BackboneError         4    a model that cannot be loaded, cut or linearised; other weights than expected
    ├── StoreError            5    the feature store
    │   ├── StoreNotFound     5    no store at that place
    │   ├── FormatError       5    not a store this version reads, or one that breaks the format's rules
    │   ├── IdentityError     5    the store was made from something else (names what differs)
    │   ├── IntegrityError    5    damage: names shard, array, chunk and file
    │   ├── StaleStore        5    an old copy with rows that were forgotten since
    │   ├── StoreLocked       9    another process is writing: try again
    │   ├── StoreUnreachable  5    a file, an object store or a model hub that does not answer, or refuses
    │   │   └── StoreChanged  9    another process committed while the store was read: try again
    │   ├── StoreWriteError   5    disk full or an I/O error; the last commit is intact
    │   ├── UntrustedStore    5    it names files of this machine that its user did not allow it
    │   ├── UnknownName       5    no shard, class, component, model or object of that name
    │   └── UnknownSample     5    no row of that id
    ├── SolveError            6    a problem that has no solution as posed
    ├── CompositionError      7    components that do not share one base
    └── ClusterError          8    workers that cannot be reached, are lost, or are not alike

An error's text says what went wrong, what was got, and what to try.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from numbers import Integral
from pathlib import Path, PurePath
from typing import Any

INTERRUPTED = "interrupted; what was committed is kept, and the same command resumes from there"
INTERRUPTED_CODE = 130  # the one that shells use
LOST_TEACHER = (
    "if one is lost: without it, taftcache train STORE --set 'prior.teachers=[]'; forget --mode subtract needs none"
)
NETWORK = frozenset(  # errors of a network file system that does not answer now
    getattr(errno, name)
    for name in (
        *("ESTALE", "ENOTCONN", "ECONNRESET", "ECONNABORTED", "ETIMEDOUT"),
        *("EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH"),
    )
)
FOUND_CODE = 10  # of verify and audit, which did what they were asked to and found something
_ADDRESS = re.compile(r"[Ss]3:|[A-Za-z][A-Za-z0-9+.-]+:/")


class TaftcacheError(Exception):
    """Root of the tree: what went wrong (``fault``), what was ``got``, what to ``do`` about it."""

    exit_code = 1

    def __init__(self, fault: str, *, got: object = None, do: str | None = None) -> None:
        super().__init__(fault, got, do)
        self.fault, self.got, self.do = fault, got, do

    def __reduce__(self) -> tuple[Any, ...]:
        got = None if self.got is None else str(self.got)
        return _remade, (type(self), self.fault, got, self.do), self.__dict__ | {"got": got}

    def __repr__(self) -> str:
        said = [repr(self.fault)] + [
            f"{name}={self.__dict__[name]!r}"
            for name in ("got", "do", "ids", "names")
            if self.__dict__.get(name) not in (None, [])
        ]
        return f"{type(self).__name__}({', '.join(said)})"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """What went wrong, what was got, what to try: a line each."""
        lines = [self.fault]
        if self.got is not None:
            lines.append(f"  got: {self.got}")
        if self.do is not None:
            lines.append(f"  try: {self.do}")
        return lines


class RecipeError(TaftcacheError):
    """A recipe, an option or an argument is wrong."""

    exit_code = 2


class ArgumentError(RecipeError, ValueError):
    """An argument of a call is wrong; also a ValueError, which callers of scikit-learn catch."""


class DataError(TaftcacheError):
    """Images, labels or ids that cannot be used."""

    exit_code = 3


class UnreadableImage(DataError):
    """One image that does not decode."""


class BackboneError(TaftcacheError):
    """A model that cannot be loaded, cut or linearised, or weights other than those expected."""

    exit_code = 4


class StoreError(TaftcacheError):
    """Something is wrong with the feature store; subclasses say what."""

    exit_code = 5


class StoreNotFound(StoreError):
    """No store at that place."""


class FormatError(StoreError):
    """Not a store this version reads, or one that breaks the format's rules."""


class IdentityError(StoreError):
    """The store was made from other weights, data, cut or preprocessing."""


class IntegrityError(StoreError):
    """An object of the store is missing or does not have the digest its manifest names."""


class StaleStore(StoreError):
    """An old copy of a store was put back: it holds rows that were forgotten since."""


class UntrustedStore(StoreError):
    """The store names files or models that this user has not allowed it to open on this machine."""


class StoreLocked(StoreError):
    """Another process holds the writer's lock of the store, or of a folder of students or of a comparison; the same
    command succeeds later."""

    exit_code = 9


class StoreUnreachable(StoreError):
    """Whatever holds a file of the store, or the model hub, does not answer, or does not let it be read."""


class StoreChanged(StoreUnreachable):
    """Another process committed since the store was opened, and a file of the commit before is gone; open it again."""

    exit_code = 9


class StoreWriteError(StoreError):
    """The disk is full or failed, the format has no room, or another file is there; the last commit is intact."""


class UnknownName(StoreError):
    """The store has no shard, class, component, model or object of that name, or no id that fits a pattern.

    ``names`` are those that were given and are not there.
    """

    def __init__(self, fault: str, *, got: object = None, do: str | None = None, names: Iterable[str] = ()) -> None:
        super().__init__(fault, got=got, do=do)
        self.names = list(names)


class UnknownSample(StoreError):
    """No row of the store has that sample id.

    ``ids`` are those that were named and have no row.
    """

    def __init__(self, fault: str, *, got: object = None, do: str | None = None, ids: Iterable[str] = ()) -> None:
        super().__init__(fault, got=got, do=do)
        self.ids = list(ids)


class SolveError(TaftcacheError, ValueError):
    """A problem that has no solution as posed; also a ValueError, because an estimator's arguments pose it."""

    exit_code = 6


class CompositionError(TaftcacheError):
    """Components that do not share one base point."""

    exit_code = 7


class ClusterError(TaftcacheError):
    """Workers or a scheduler that cannot be reached, were lost, or are not like the others."""

    exit_code = 8


def first_line(error: Exception) -> str:
    """What an error says, in one line; its kind if it says nothing, as a MemoryError may."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _remade(kind: type[TaftcacheError], fault: str, got: str | None, do: str | None) -> TaftcacheError:
    """Rebuild an error that comes from another process."""
    return kind(fault, got=got, do=do)


def check_path(what: str, given: object, do: str = '"stores/quickstart", say') -> None:
    """ArgumentError for ``what`` names a file, folder or store but is neither text nor a path, or is empty."""
    if not isinstance(given, str | os.PathLike):
        raise ArgumentError(f"{what} is not a path", got=type(given).__name__, do=do)
    if not os.fspath(given):
        raise ArgumentError(f"{what} is empty", got=repr(given), do='name it; the current folder is "."')


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a bucket's address or is meant to be: S3:// and gs:// count too, because a folder of that name
    would not be what was asked for. One slash is enough, for a Path drops the other."""
    return _ADDRESS.match(os.fspath(path)) is not None


def local_path(path: str | os.PathLike[str], what: str = "the place of a file or folder") -> Path:
    """``path`` with a leading ``~`` replaced: of a file or a folder that a function of Python is given.

    Raises:
        ArgumentError: as ``check_path``.
    """
    check_path(what, path)
    return Path(os.path.expanduser(path))


OF_IMAGES = "name a file of vectors; a folder of images is for taftcache init"


def check_file(place: Path, do: str = "correct the path", of_folder: str | None = None) -> None:
    """DataError unless ``place`` is a file; ``of_folder`` is what to do about a folder."""
    if place.is_dir():
        raise DataError(f"cannot read {place}: it is a folder", do=of_folder or do)
    if not place.is_file():
        state = "it is no plain file" if place.exists() else "there is no such file"
        raise DataError(f"cannot read {place}: {state}", do=do)


def check_several(**given: object) -> None:
    """ArgumentError for an argument that takes a list of ids, names or files but is given a single one, or numbers."""
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, str | bytes | PurePath) or not isinstance(value, Iterable):
            raise ArgumentError(f"{name} must be a list", got=repr(value), do=f"{name}=[{str(value)!r}]")
        items = () if isinstance(value, Iterator) else value  # an iterator can be gone through only once
        for item in items:
            if not isinstance(item, str | PurePath):
                raise ArgumentError(
                    f"{name} must be a list of texts",
                    got=f"{item!r}, which is {type(item).__name__}",
                    do="names and ids as text, as taftcache inspect lists them",
                )


def several_texts(name: str, given: Iterable[str]) -> list[str]:
    """The texts of the argument ``name`` as a list; it may also be an array, a column of a table or an iterator.

    Raises:
        ArgumentError: as ``check_several``.
    """
    if given is None:
        raise ArgumentError(f"{name} must be a list", got="None", do=f"{name}=[], or leave it out")
    texts = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | PurePath) else given
    check_several(**{name: texts})
    return [str(text) for text in texts]


def check_counts(least: int = 1, **given: object) -> None:
    """ArgumentError for a count that is not whole, or less than ``least``: a slice would accept it silently."""
    for name, value in given.items():
        if not isinstance(value, Integral) or int(value) < least:
            raise ArgumentError(
                f"{name} must be a whole number of at least {least}", got=f"{name} = {value!r}", do=f"{name}={least}"
            )
