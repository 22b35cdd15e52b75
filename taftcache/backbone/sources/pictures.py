"""Pictures that a program passes in: paths, PIL images, uint8 arrays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from taftcache.backbone.sources.base import no_memory, unreadable
from taftcache.backbone.sources.rgb import Picture, as_rgb
from taftcache.errors import DataError, UnreadableImage, first_line

T = TypeVar("T")
LIST = "put it into a list"
LEAVE_OUT = "leave it out"


def listed(given: Iterable[T]) -> list[T]:
    """What is given, as a list; DataError for one image or one name in place of several."""
    if isinstance(given, str | Path) or not np.iterable(given):
        raise DataError("images are not given as a list", got=repr(given)[:80], do=LIST)
    shape = list(getattr(given, "shape", ()))
    if len(shape) == 2:  # iterating over a data frame would give the names of its columns
        got, do = f"{type(given).__name__} {shape}", "give one column of paths, or arrays [h, w, 3]"
        raise DataError("images are not given as a list, but as a table", got=got, do=do)
    if len(shape) == 3 and shape[2] in (3, 4):
        raise DataError("images are not given as a list, but as one picture", got=str(shape), do=LIST)
    return list(given)


def called(picture: Picture, index: int) -> str:
    """The name that messages and predictions give the picture at an index; that of a file is its path, unless empty."""
    return (str(picture) if isinstance(picture, str | Path) else "") or f"at index {index}"


def decoded(picture: Picture, index: int | None = None) -> Image.Image:
    """A picture, perhaps the one at ``index`` of several, in RGB.

    UnreadableImage if it does not decode, or is of a kind that has no pixels.
    """
    try:
        return as_rgb(picture)
    except MemoryError as error:
        raise no_memory(called(picture, index or 0)) from error
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
        if isinstance(picture, str | Path):
            raise unreadable(called(picture, index or 0), error, LEAVE_OUT) from None
        name = "the image" if index is None else f"the image {called(picture, index)}"
        kind = f"{picture.dtype} {list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise UnreadableImage(
            f"{name} cannot be read",
            got=f"{kind}: {first_line(error)}",
            do="give a path, a PIL image, or an array of uint8 [h, w, 3]",
        ) from None
