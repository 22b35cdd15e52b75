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
        raise DataError("The images must be in an npz file.", got=f"{file} is not a file", do="correct the path")
    wanted = {image_key, label_key, "blob", "offset", "label", "classes", "id", "ids"}
    try:
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError("The images must be in an npz archive.", got=f"{file} is a single array")
            # Only what is used is inflated; other names are kept for the message that lists them.
            arrays = {key: archive[key] if key in wanted else np.empty(0) for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        # RuntimeError: encrypted, or (as NotImplementedError) packed in a way that zipfile does not know
        raise DataError("The images must be in a readable npz file without objects.", got=f"{file}: {error}") from error
    return ArraySource("npz", file, arrays, image_key, label_key, prefix)
