"""One folder per class, images below it at any depth."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image

from taftcache.backbone.sources.base import SKIP, SPLITS, TRAIN, Item, Source, SourceInfo, check_items, decoding
from taftcache.backbone.sources.columns import is_table
from taftcache.backbone.sources.rgb import open_rgb
from taftcache.errors import DataError
from taftcache.names import counted, first_few

# Fixed, whatever else the installed Pillow reads: the machine must not decide which rows there are.
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_RAW = {".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".rw2", ".srw"}
UNREAD = frozenset({".avif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".tga"} | _RAW)  # images, but not read
_DEEPEST = 100  # folders within each other


class FolderSource(Source):
    """Classes are the folders in ``root`` sorted by name, ids the paths below ``root`` with ``/``; folders without
    an image are classes too.

    prefix: put before every id, to tell two roots apart. skip: leave out images whose paths are not printable text.
    Names that begin with a dot and files without an image's suffix are left out. ``info.aside`` has images that are:
    those that ``skip`` leaves out, those of types that are not read, and those beside the folders. Links are followed,
    but not in circles, and not to nothing.
    """

    numbered = False

    def __init__(self, root: Path, prefix: str = "", *, skip: bool = False) -> None:
        if not root.is_dir():
            raise DataError(
                f"no folder of images at {root}", do="name where they lie, by --set data.train=… or in the recipe"
            )
        self._root, self._prefix = root, prefix
        entries = _entries(root)
        folders = sorted(e.name for e in entries if _leads_to_folder(e))
        if not folders:
            raise DataError(
                f"{root} has no folders of classes",
                do='it is a table of images: set data.source = "table"; taftcache init FOLDER writes such a recipe'
                if is_table(root)
                else "sort the images into folders named after their classes",
            )
        names = set(map(str.lower, folders))
        # One problem hardly has both "train" and "test" as classes, whatever else there is.
        if names <= SPLITS or (names.intersection(TRAIN) and names & SPLITS.difference(TRAIN)):
            first = next(name for name in folders if name.lower() in (names.intersection(TRAIN) or SPLITS))
            raise DataError(
                f"the folders in {root} look like splits, not classes",
                got=first_few(folders),
                do=f"set train and test to those folders, for example --set data.train={root / first}",
            )
        self.classes, self.items, empty = folders, list[Item](), list[str]()
        loose = sorted(e.name for e in entries if suffix(e.name) in SUFFIXES | UNREAD and e.name not in folders)
        aside = [prefix + name for name in loose]
        for label, name in enumerate(folders):
            paths = sorted(_images(root / name, name, [_identity(root)]))
            found = [path for path in paths if suffix(path) in SUFFIXES and (path.isprintable() or not skip)]
            self.items += [Item(prefix + path, label) for path in found]
            empty += [] if found else [name]
            aside += [prefix + path for path in sorted({*paths}.difference(found))]
        self.info = SourceInfo(empty=empty, aside=aside)
        if not self.items and aside:
            raise DataError(
                f"the folders of {root} have no images of a type that is read",
                got=f"{counted(len(aside), 'file')} left out, the first: {aside[0]}",
                do=f"put files of these types there: {', '.join(sorted(SUFFIXES))}",
            )
        check_items(str(root), self.classes, self.items, f"; or {SKIP}")

    def read(self, index: int) -> Image.Image:
        id = self.items[index].id
        file = self._root / id.removeprefix(self._prefix)
        with decoding(id, lambda: not file.is_symlink()):  # one of those was dead before
            return open_rgb(file)


def images_below(folder: Path) -> tuple[list[Path], list[str]]:
    """The images below a folder, at any depth and in the order of their paths; and the paths of images of types that
    are not read."""
    paths = sorted(_images(folder, "", []))
    found = [folder / path.removeprefix("/") for path in paths if suffix(path) in SUFFIXES]
    return found, [path for path in paths if suffix(path) in UNREAD]


def unread_notes(files: Iterable[str]) -> list[str]:
    """A note on those of ``files`` that are images of types that are not read; none if there are none."""
    types = Counter(suffix(file) for file in files if suffix(file) in UNREAD)
    if not types:
        return []
    named = ", ".join(f"{name} {n}" for name, n in sorted(types.items(), key=lambda item: (-item[1], item[0])))
    left = counted(types.total(), "file")
    return [f"{left} left out, of types that are not read: {named}; convert them, to .png or .jpg"]


def suffix(name: str) -> str:
    """``.jpg`` of ``a/b.JPG``."""
    return os.path.splitext(name)[1].lower()


def unreachable(link: Path) -> DataError:
    """The error for a link to what is not there."""
    return DataError(
        f"what the link {link} leads to cannot be reached",
        got=os.readlink(link),
        do="mount or restore it, or remove the link",
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, but for names that begin with a dot.

    DataError for a link to what is not there, which may be a folder of images; those named as images fail when read.
    """
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    for entry in entries:
        if suffix(entry.name) not in SUFFIXES | UNREAD and entry.is_symlink() and not os.path.exists(entry):
            raise unreachable(folder / entry.name)
    return entries


def _images(folder: Path, relative: str, above: list[tuple[int, int]]) -> Iterator[str]:
    """Paths of all images below ``folder``; ``above`` identifies the folders that lead to it."""
    if len(above) > _DEEPEST:
        raise DataError(
            f"the folders below {folder} are nested too deeply", got=f"{_DEEPEST} deep", do="move the images up"
        )
    identity = _identity(folder)
    if identity in above:
        link = next((path for path in (folder, *folder.parents) if path.is_symlink()), folder)
        raise DataError(f"the link {link} must not lead back to a folder above it", do="remove the link")
    for entry in _entries(folder):
        path = f"{relative}/{entry.name}"
        if _leads_to_folder(entry):
            yield from _images(folder / entry.name, path, [*above, identity])
        elif suffix(entry.name) in SUFFIXES | UNREAD:
            regular = entry.is_file(follow_symlinks=False) or os.path.isfile(entry)
            if not regular and os.path.exists(entry):  # opening a pipe would wait for a writer for ever
                raise DataError(
                    f"{folder / entry.name} is a pipe, socket or device, not an image",
                    got=stat.filemode(os.stat(entry).st_mode),
                    do="remove it",
                )
            yield path


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one. A link that leads back to itself, or through a file, leads nowhere."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return False


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
