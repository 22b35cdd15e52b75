"""How every saved folder is read back: its description, digests of its files, the backbone, and parts that must fit.

Nothing in a folder is trusted. Saved models (``folder.py``) and saved estimators are two kinds of such folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from safetensors import SafetensorError
from torch import Tensor

from taftcache.backbone.files import WEIGHTS_NAME, file_digest
from taftcache.errors import FormatError, IntegrityError, RecipeError, first_line
from taftcache.names import is_from_macos
from taftcache.tangent.parameters import Layout

BACKBONE = "backbone"
CONFIG = "config.json"
WEIGHTS = "tangent.safetensors"
CARD = "README.md"
ESTIMATOR = "estimator.json"
TENSORS = "estimator.safetensors"
ABOUT = "about.json"
NETWORKS = {f"{place}{name}" for place in ("", f"{BACKBONE}/") for name in (CONFIG, WEIGHTS_NAME)}


class _Description(Protocol):
    @property
    def format(self) -> int: ...


# What torch and timm raise for parts that do not fit.
_UNFIT = (ArithmeticError, AttributeError, LookupError, RecipeError, RuntimeError, TypeError, ValueError)
D = TypeVar("D", bound=_Description)


def files_in(folder: Path) -> list[str]:
    """The names of the files below ``folder``, in order, without those of macOS."""
    files = (file for file in folder.rglob("*") if file.is_file() and not is_from_macos(file.name))
    return sorted(file.relative_to(folder).as_posix() for file in files)


def under(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of a file's tensors called ``kind/<name>``, by that name."""
    return {name.removeprefix(f"{kind}/"): t for name, t in tensors.items() if name.startswith(f"{kind}/")}


@dataclass(frozen=True)
class Saved:
    """A kind of folder in the words of its errors: what it holds, and what to do about one that cannot be read."""

    kind: str
    do: str

    def described(self, file: Path, form: type[D], known: int) -> D:
        """What ``file`` says about its folder; FormatError if that is not of this kind, or of another format."""
        with self.fitting(file.parent):
            said = msgspec.json.decode(file.read_bytes(), type=form)
        if said.format != known:
            raise FormatError(
                f"the saved {self.kind} has format {said.format}, which this release does not know",
                got=str(file.parent),
                do="use a newer release",
            )
        return said

    def check(self, folder: Path, files: Mapping[str, str], known: Set[str]) -> None:
        """FormatError for a name that is not ``known``; IntegrityError for a file that is missing or changed."""
        if files.keys() - known:
            raise self.unfit(f"its description names other files than a saved {self.kind} has")
        for name in files:
            if not (folder / name).is_file() or file_digest(folder / name) != files[name]:
                raise self.changed(folder / name)

    def flat(self, moved: Mapping[str, Tensor], layout: Layout) -> Tensor:
        """Δw [P] put together from its parts; FormatError unless they are those of ``layout``."""
        if not moved or layout.shapes != {name: tuple(tensor.shape) for name, tensor in moved.items()}:
            raise self.unfit("what was trained has other shapes than the parameters of the tail, or is not there")
        return layout.flatten(moved)

    @contextmanager
    def fitting(self, folder: Path) -> Iterator[None]:
        """Whatever torch, timm and msgspec raise for a folder that they cannot read, as a FormatError."""
        try:
            yield
        except (OSError, SafetensorError, msgspec.DecodeError) as error:
            said = first_line(error)
            got = f"{str(error.strerror).lower()}: {error.filename}" if isinstance(error, OSError) else said
            raise FormatError(f"no saved {self.kind} at {folder}", got=got, do=self.do) from None
        except _UNFIT as error:
            raise self.unfit(f"{type(error).__name__}: {error}") from error

    def changed(self, file: Path) -> IntegrityError:
        """The error for a file that is missing or changed."""
        return IntegrityError(
            f"a file of the saved {self.kind} is not as it was saved", got=str(file), do="copy it again"
        )

    def unfit(self, got: str) -> FormatError:
        """The error for parts that were never saved together."""
        return FormatError(f"the parts of the saved {self.kind} do not fit together", got=got, do=self.do)
