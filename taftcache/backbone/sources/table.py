"""Images that a table lists: their paths (or their bytes) in one column, their labels in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from PIL import Image

from taftcache.backbone.sources.arrays import label_indexes, numbers
from taftcache.backbone.sources.base import REGRESSION, SPLIT, Item, Knows, Source, SourceInfo, check_items, decoding
from taftcache.backbone.sources.columns import TEXT, Table, no_heading, read_table, splits_in
from taftcache.backbone.sources.folder import SUFFIXES
from taftcache.backbone.sources.rgb import decode_rgb, open_rgb
from taftcache.errors import DataError
from taftcache.names import counted, first_few

_TRIED = 100  # first rows, of whose files at least one must be there


class TableSource(Source):
    """Images that a table lists.

    image_key, label_key, id_key: its columns. Without ``id_key``, the id of a file is its path as the table has it; of
    an image inside the table, the path kept beside it if each row has one of its own, or else the number of its row.
    root: what paths are relative to; the table's folder by default. split: take only rows that have this in the column
    ``split``, or the files of this split in a folder. other: the split that is used beside it. prefix: put before paths
    that are kept beside images, to tell two tables apart; below: before the paths of images below the table's folder.
    name: put before numbers of rows; the split of a folder, or the table's stem, by default. knows: as for `numbers`.
    A table that itself lists its classes has no unused ones.
    """

    def __init__(
        self,
        place: Path,
        image_key: str,
        label_key: str,
        id_key: str | None = None,
        *,
        root: Path | None = None,
        split: str | None = None,
        other: str | None = None,
        prefix: str = "",
        name: str | None = None,
        below: str = "",
        knows: Knows = None,
    ) -> None:
        parts = splits_in(place)
        self._place, self._read = place, partial(read_table, place, split or "")
        table = self._read()
        images = _column(place, table, image_key, "name the column of images: --set data.image_key=COLUMN")
        labels = _column(place, table, label_key, "name the column of labels: --set data.label_key=COLUMN")
        self._root, self._images, self._below = root or (place if parts else place.parent), images, below
        names = table.classes.get(label_key)
        self.classes, indexes = _labels(place, label_key, labels, names)
        self._rows = list(range(len(images))) if split is None or parts else _of_split(place, table, split)
        unused = set[str]()
        if names is None and split is not None and not parts:
            pairs = zip(table.columns[SPLIT], indexes, strict=True)
            unused = {*self.classes} - {self.classes[k] for own, k in pairs if str(own) in (split, other)}
        counts = Counter(map(str, table.columns.get(SPLIT, ())))
        self.info = SourceInfo(unused=unused, splits=parts, rows_by_split=counts, of_split=split is not None)
        self.numbered = False
        if id_key is None:
            named = name or (split if parts and split else place.stem)
            ids = self._ids(place, image_key, prefix, named, knows)
        else:
            column = _column(place, table, id_key, "name the column of ids: --set data.id_key=COLUMN")
            ids = _named(place, id_key, column, prefix)
        self.items = [Item(ids[row], indexes[row]) for row in self._rows]
        if id_key is None:
            self._check_once(place, "image", labels, "")
        else:
            self._check_once(place, "id", labels, ", or give each an id of its own")
        check_items(str(place), self.classes, self.items)
        self._check_places(place, image_key)

    def read(self, index: int) -> Image.Image:
        value = self._images[self._rows[index]]
        with decoding(self.items[index].id, lambda: not self._root.is_dir()):
            content = _content(value)
            if content is None:
                return open_rgb(self._root / _path(value))
            return decode_rgb(content)

    def missing(self) -> list[str]:
        values = [(item.id, self._images[row]) for item, row in zip(self.items, self._rows, strict=True)]
        return [id for id, value in values if _content(value) is None and not (self._root / _path(value)).exists()]

    def column(self, name: str) -> list[Any]:
        # read again, because few commands ask for more columns than a source needs
        values = _column(self._place, self._read(), name, "name one of these")
        return [values[row] for row in self._rows]

    def _ids(self, place: Path, key: str, prefix: str, name: str, knows: Knows) -> list[str]:
        """An id for every row, also of other splits: which kind of ids a table gives does not depend on the split."""
        rows = [(is_inside(value), _path(value)) for value in self._images]
        if (empty := next((row for row in self._rows if not any(rows[row])), None)) is not None:
            raise DataError(
                f"row {empty + 1} of {place} has no image",
                got=f"{str(self._images[empty])[:60]!r} in the column {key!r}",
                do="remove the row, or fill it in; or name another column: --set data.image_key=COLUMN",
            )
        inner = [path for inside, path in rows if inside]
        kept = len(set(inner)) == len(inner) and all(path and path.isprintable() for path in inner)
        self.numbered = not kept and any(rows[row][0] for row in self._rows)
        instead = [prefix + path for _, path in rows] if kept else numbers(name, len(rows), knows)
        return [instead[row] if inside else self._from_root(path) for row, (inside, path) in enumerate(rows)]

    def _from_root(self, path: str) -> str:
        if not Path(path).is_absolute():
            return self._below + path
        inside = Path(path).is_relative_to(self._root)
        return self._below + Path(path).relative_to(self._root).as_posix() if inside else path

    def _check_once(self, place: Path, what: str, labels: Sequence[Any], do: str) -> None:
        """DataError if several rows have one id, with these rows and the ``labels`` that the table gives them."""
        twice = [id for id, times in Counter(item.id for item in self.items).items() if times > 1]
        if not twice:
            return
        rows = [row for item, row in zip(self.items, self._rows, strict=True) if item.id == twice[0]]
        more = f"; {len(twice) - 1} more like it" if twice[1:] else ""
        raise DataError(
            f"{place} has the {what} {twice[0]!r} more than once",
            got=first_few([f"row {row + 1} ({str(labels[row])[:60]})" for row in rows]) + more,
            do=f"remove all of these rows but one{do}",
        )

    def _check_places(self, place: Path, key: str) -> None:
        """DataError if none of the first rows' files is there: then the folder must be the wrong one."""
        first = [self._images[row] for row in self._rows[:_TRIED]]
        paths = [self._root / _path(value) for value in first if _content(value) is None]
        if paths and not any(path.exists() for path in paths):
            path = _path(first[0])
            if path.startswith("file://"):
                do = "list their paths, without file://"
            elif "://" in path:
                do = "download them, and list their paths"
            elif "\\" in path:
                do = "write / in the paths: \\ comes between folders on Windows alone"
            else:
                do = f"set data.root to what the paths start from, or data.image_key, which is {key!r}, to their column"
            raise DataError(
                f"the images that {place} lists are not there", got=path if "://" in path else str(paths[0]), do=do
            )


def _named(place: Path, key: str, column: Sequence[Any], prefix: str) -> list[str]:
    """The ids in a column; paths that are kept beside images get the prefix."""
    found = [(id_text(value), prefix if isinstance(value, dict) else "") for value in column]
    if (empty := next((row for row, (text, _) in enumerate(found) if not text), None)) is not None:
        value = column[empty]
        raise DataError(
            f"row {empty + 1} of {place} has no id",
            got=f"no path beside the image in {key!r}" if isinstance(value, dict) else f"{key} = {str(value)[:60]!r}",
            do="write an id for each row, text or a whole number; or name another column: data.id_key",
        )
    return [before + text for text, before in found]


def id_text(value: Any) -> str:
    """What a cell of a table says as an id: text, a whole number, or the path beside an image. Empty for all else."""
    value = _path(value) if isinstance(value, dict) else value
    if isinstance(value, float) and value.is_integer():  # whole numbers, if their column has missing values
        value = int(value)
    return str(value) if isinstance(value, str | int | UUID) and not isinstance(value, bool) else ""


def check_heading(place: Path, names: Collection[str]) -> None:
    """DataError if one of the names of columns of a table that is text is the path of an image."""
    if place.suffix.lower() in TEXT and any(Path(name).suffix.lower() in SUFFIXES for name in names):
        raise no_heading(place, [*names], "path,label")


def _column(place: Path, table: Table, key: str, do: str) -> Sequence[Any]:
    if key not in table.columns:
        check_heading(place, table.columns)
        raise DataError(
            f"{place} has no column {key!r}",
            got=f"it has {', '.join(table.columns) or 'none'}",
            do=do,
        )
    return table.columns[key]


def _labels(place: Path, key: str, column: Sequence[Any], names: list[str] | None) -> tuple[list[str], list[int]]:
    """Class names, and each row's index among them; DataError for rows without a label, or with no text or number."""
    if without := [row for row, value in enumerate(column) if _is_missing(value)]:
        raise DataError(
            f"row {without[0] + 1} of {place} has no label",
            got=f"{len(without)} of {counted(len(column), 'row')} without one in the column {key!r}",
            do="remove such rows, or fill them in",
        )
    values = [_label(place, key, row, value) for row, value in enumerate(column)]
    if not all(isinstance(value, int) for value in values):
        values = [str(value) for value in values]
    # texts as objects: in an array of texts, each would take the room of the longest
    return label_indexes(place, np.asarray(values, object if isinstance(values[0], str) else None), names)


def _label(place: Path, key: str, row: int, value: Any) -> int | str:
    """A label as text or a whole number. Whole numbers may come as floats, if their column has missing values."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str | int) and not isinstance(value, bool):
        return value
    raise DataError(
        f"the labels of {place} are not text or whole numbers",
        got=f"{str(value)[:60]!r} in row {row + 1} of the column {key!r}, of the kind {type(value).__name__}",
        do="write the name of a class, or its number, as each row's label; or name another column: data.label_key"
        + (f"; {REGRESSION}" if isinstance(value, float) else ""),
    )


def _is_missing(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _of_split(place: Path, table: Table, split: str) -> list[int]:
    column = _column(place, table, SPLIT, "leave data.test out, or name another table for it")
    values = [str(value) for value in column]
    if split not in values:
        raise DataError(
            f"no row of {place} has the split {split!r}",
            got=f"its column {SPLIT} has {', '.join(sorted(set(values))[:5])}",
            do="set data.train_split and data.test_split",
        )
    return [row for row, value in enumerate(values) if value == split]


def is_inside(value: Any) -> bool:
    """Whether a cell of a column of images holds one, and does not only name its file."""
    return _content(value) is not None


def _content(value: Any) -> bytes | None:
    """The bytes of an image that lies in the table: plain, or in Hugging Face's struct beside a path."""
    inside = value.get("bytes") if isinstance(value, dict) else value
    return inside if isinstance(inside, bytes) else None


def _path(value: Any) -> str:
    path = value.get("path") if isinstance(value, dict) else value
    return path if isinstance(path, str) else ""
