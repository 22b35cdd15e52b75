"""Images in a NumPy archive."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from taftcache.backbone.sources.arrays import ArraySource
from taftcache.errors import DataError


def open_npz(file: Path, image_key: str, label_key: str, prefix: str = "") -> ArraySource:
    """Read ``file`` into memory; arrays of Python objects are refused, for they are pickles."""
    if not file.is_file():
        raise DataError(f"no npz file at {file}", got=str(file), do="correct data.train or data.test")
    wanted = {image_key, label_key, "blob", "offset", "label", "classes", "id", "ids"}
    try:
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{file} is not an npz archive but a single array")
            # Only what is used is inflated; other names are kept for the message that lists them.
            arrays = {key: archive[key] if key in wanted else np.empty(0) for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        # RuntimeError: encrypted, or (as NotImplementedError) packed in a way that zipfile does not know
        raise DataError(f"{file} cannot be read as npz without Python objects", got=str(error)) from error
    return ArraySource("npz", file, arrays, image_key, label_key, prefix)
