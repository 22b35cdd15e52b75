"""Any PIL image as RGB."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile

# Files up to this many bytes are read at once. PIL reads a header in dozens of pieces, and at each of them a thread
# waits for the interpreter: on 16 cores, 16 threads decoded no more than four.
_AT_ONCE = 16 << 20

# Formats that Pillow decodes by itself. Others may start a program (PostScript), hold a file of any further format
# (IPTC, which may hold PostScript) or hand the file to whatever is registered for them (WMF, GRIB). TGA comes last,
# because it has no mark at its beginning; older Pillows lack AVIF.
_COMMON = ("BMP", "DIB", "GIF", "JPEG", "PPM", "PNG")
_FURTHER = ("AVIF", "DDS", "ICO", "JPEG2000", "PCX", "PSD", "QOI", "SGI", "TIFF", "WEBP", "TGA")


class AnyArray(Protocol):
    """What numpy can read as an array: one of its own, or a tensor."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


Picture = str | Path | Image.Image | AnyArray
"""One image: a file, a PIL image, or an array or tensor of uint8 [h,w], [h,w,1] or [h,w,3]. uint16 [h,w] is grey from 0
to 65535."""


def as_rgb(picture: Picture) -> Image.Image:
    """An image file, a PIL image or a uint8 array [h,w], [h,w,1] or [h,w,3] in RGB, see ``to_rgb``."""
    if isinstance(picture, str | Path):
        return open_rgb(picture)
    if isinstance(picture, Image.Image):
        return to_rgb(picture)
    if np.ma.is_masked(picture):
        raise ValueError("it has masked pixels, of which no value is known")
    pixels = np.asarray(picture)
    if pixels.ndim == 3 and pixels.shape[2] > 4:
        raise ValueError(f"channels must come last, and there are {pixels.shape[2]} of them")
    return to_rgb(Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels))


def open_rgb(file: Path | str) -> Image.Image:
    """The image in a file, see ``to_rgb``; a pipe or device is an OSError, because opening it may wait for ever."""
    status = os.stat(file)
    if not stat.S_ISREG(status.st_mode):
        if Path(file).is_dir():
            raise IsADirectoryError(file)
        raise OSError(f"{file} is no image but a pipe, socket or device")
    with open(file, "rb") as opened:  # by name, Pillow 13 maps grey TIFF, and scrambles it in turning
        return decode_rgb(opened.read()) if status.st_size <= _AT_ONCE else _decoded(opened)


def decode_rgb(content: bytes) -> Image.Image:
    """The image that a file of these bytes holds, see ``to_rgb``."""
    return _decoded(io.BytesIO(content))


def _decoded(file: BinaryIO) -> Image.Image:
    try:
        image = _opened(file)
    except UnidentifiedImageError:
        # PIL's text has an address in memory, which is another one every time; stores keep the reason.
        read = ", ".join(_COMMON + _FURTHER)
        raise UnidentifiedImageError(f"the file is in no format that is read: {read}") from None
    with image:
        return to_rgb(image)


def _opened(file: BinaryIO) -> Image.Image:
    try:
        return Image.open(file, formats=_COMMON)
    except UnidentifiedImageError:
        Image.init()
        return Image.open(file, formats=[name for name in _FURTHER if name in Image.OPEN])


def to_rgb(image: Image.Image) -> Image.Image:
    """Decode and convert like timm's datasets do: first frame, alpha dropped, EXIF rotation not applied but to TIFF,
    which PIL turns by itself.

    Two departures: 16-bit and 12-bit grey is scaled to 8 bits, where PIL would clip nearly all of it to white,
    and other deep grey is a ValueError, because its range is not defined. So are an image without pixels, and one in
    PostScript, whatever its file is called: it is a program, which PIL would have another program run.
    """
    if image.format == "EPS":
        raise ValueError("it is PostScript, a program that would have to be run")
    if 0 in image.size:
        raise ValueError("it has no pixels")
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):  # PIL scales any PGM to 16 bits
        # TIFF's comes as it is in the file: 12 bits, or 16 of which 0 is white.
        tags: Mapping[int, Any] = image.tag_v2 if isinstance(image, TiffImageFile) else {}
        grey = np.asarray(image) >> tags.get(BITSPERSAMPLE, [16])[0] - 8
        grey = 255 - grey if tags.get(PHOTOMETRIC_INTERPRETATION) == 0 else grey
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"signed, fractional or 32-bit pixels (mode {image.mode}) have no agreed range")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the same colours as straight to RGB, without PIL's warning
    return image.convert("RGB")
