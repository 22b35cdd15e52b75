"""Paths that recipes write, and the files that hold a backbone's weights; imports neither torch nor timm."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import blake3

from taftcache.backbone.spec import BackboneSpec
from taftcache.errors import BackboneError, RecipeError, TaftcacheError, is_address

BUNDLED = Path(__file__).parent / "bundled"
WEIGHTS_NAME = "model.safetensors"
STUDENT = "student"  # the section of a teaching recipe that names the model
WeightsKind = Literal["bundled", "pretrained", "file", "folder"]

_CONVERT = (
    "save its tensors as such a file: safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW); of a "
    "checkpoint that holds an epoch or an optimizer, too, only the tensors: torch.load(…)['model'], or ['state_dict']"
)
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
# In the names of variables that hold secrets: a recipe may be a stranger's, and errors and logs show paths.
_SECRET = re.compile("secret(?!ar)|passw|passphrase|credential|(api|access|private)_?key", re.IGNORECASE)
# In those of some that do, if no word at the end says that it is a place. "key" and "token" may be anywhere, but in
# these words; a word may end with "pass" (SSHPASS), but not compass and bypass.
_PERHAPS = re.compile(
    "(?<!mon|don|tur|hoc|joc)(?<!whis)key(?!_?(point|board|frame))|token(?!izer|ized)"
    "|(?<!com)(?<!by)(pass|pwd|pw)([0-9_]|$)"
    "|(^|[0-9_])(pat|o?auth|creds?|bearer|cookies?|dsn|url|proxy|webhook|jwt|session|pem)([0-9_]|$)",
    re.IGNORECASE,
)
_PLACE = re.compile("^(OLD)?PWD$|_(dir|path|root|folder|home|data|images)$", re.IGNORECASE)


def expand_path(text: str) -> Path:
    """``text`` with ``${VAR}`` and a leading ``~`` replaced.

    Raises:
        RecipeError: a variable or a user that is not there; a variable whose name says that it holds a secret; any
            variable in a bucket's address, to whose owner it would be sent.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if is_address(text):
            raise RecipeError(
                f"a bucket's address cannot use an environment variable, here {name}: the bucket's owner would see it",
                got=text,
                do="write the address out, or put the whole beginning into one variable: ${STORES}/NAME",
            )
        if _SECRET.search(name) or (_PERHAPS.search(name) and not _PLACE.search(name)):
            raise RecipeError(
                f"a path cannot use the environment variable {name}, which by its name may hold a secret",
                got=text,
                do="write the path out, or use a variable of another name",
            )
        if not os.environ.get(name):
            raise RecipeError(
                f"a path uses the environment variable {name}, which is not set, or empty",
                got=text,
                do=f"set it (export {name}=...) or write the path out",
            )
        return os.environ[name]

    path = os.path.expanduser(_VARIABLE.sub(value, text))
    if path.startswith("~"):
        raise RecipeError("a path begins with the home of no user of this machine", got=text, do="write the path out")
    return Path(path)


def local_folder(name: str) -> str:
    """FOLDER of a model or of weights that are named ``local-dir:FOLDER``, in letters of either case as for timm; empty
    for any other name."""
    kind, colon, folder = name.partition(":")
    return folder or "." if colon and kind.lower() == "local-dir" else ""


@contextmanager
def as_written(*places: str | None) -> Iterator[None]:
    """Errors show these paths as the recipe has them: the value of a variable may be a secret, whatever its name. Of a
    place that is not there they say which variables to look at."""
    try:
        yield
    except TaftcacheError as error:
        for text in filter(None, (place and (local_folder(place) or place) for place in places)):
            if _VARIABLE.search(text):
                found = Path(os.path.expanduser(_VARIABLE.sub(lambda v: os.environ.get(v[1]) or v[0], text)))
                path = re.compile(rf"(?<![\w.-]){re.escape(str(found))}(?![\w-])")
                shown = partial(path.sub, text.replace("\\", r"\\"))
                error.fault, error.do = shown(error.fault), error.do and shown(error.do)
                error.got = None if error.got is None else shown(str(error.got))
                if error.do and text in error.fault and not os.path.lexists(found):
                    error.do += f"; or look at what {' and '.join(_VARIABLE.findall(text))} names"
                error.args = error.fault, error.got, error.do
        raise


def weights_kind(spec: BackboneSpec, section: str = "backbone") -> WeightsKind:
    """Which of the four forms ``spec.weights`` has; BackboneError if it names nothing that exists.

    ``section`` is the recipe's section that names them: in ``STUDENT``, "random" is possible too.
    """
    with as_written(spec.weights):
        return _kind(spec, section)


def _kind(spec: BackboneSpec, section: str) -> WeightsKind:
    if spec.weights == "bundled":
        return "bundled"
    if spec.weights == "pretrained":
        folder = local_folder(spec.model or "")
        if folder and not (Path(folder) / WEIGHTS_NAME).is_file():
            # timm would load a pickle of the folder
            raise BackboneError(
                f"no {WEIGHTS_NAME} in the folder of the model: other formats can run code while loading",
                got=f"{section}.model = {spec.model!r}",
                do=_CONVERT,
            )
        return "pretrained"
    if (nowhere := missing_place(spec)) is not None:
        raise BackboneError(
            f"no weights at {nowhere}",
            got=f"{section}.weights = {spec.weights!r}",
            do=("'random', " if section == STUDENT else "")
            + "'bundled', 'pretrained', or the path of a .safetensors file or of a folder in timm's layout",
        )
    path = _local(spec.weights)
    if path.is_dir():
        return "folder"
    if path.suffix != ".safetensors":
        # .pth and .bin files are pickles, which run code while they load.
        raise BackboneError(
            "the weights are not a .safetensors file: other formats can run code while loading",
            got=str(path),
            do=_CONVERT,
        )
    return "file"


def missing_place(spec: BackboneSpec) -> Path | None:
    """Where ``spec.weights`` names a file or a folder, from the root on, if neither is there."""
    if spec.weights in ("bundled", "pretrained"):
        return None
    path = _local(spec.weights)
    return None if path.is_dir() or path.is_file() else path.absolute()


def weights_file(spec: BackboneSpec) -> Path | None:
    """The local file of the weights, or None for "pretrained" (timm's hub keeps those).

    Needs neither torch nor timm, so that a re-run can compare ``file_digest`` in milliseconds.
    """
    with as_written(spec.weights):
        return _file(spec)


def _file(spec: BackboneSpec) -> Path | None:
    kind = _kind(spec, "backbone")
    if kind == "pretrained":
        return None
    if kind == "file":
        return _local(spec.weights)
    folder = weights_folder(spec)
    path = folder / WEIGHTS_NAME
    for needed in (path, folder / "config.json"):
        if not needed.is_file():
            raise BackboneError(
                f"no {needed.name} in the folder of weights {folder}",
                got=f"{folder} without {needed.name}",
                do="write the folder with timm.models.save_for_hf(..., safe_serialization=True)",
            )
    return path


def weights_folder(spec: BackboneSpec) -> Path:
    """The folder of "bundled" or of a local-dir path."""
    return BUNDLED if spec.weights == "bundled" else _local(spec.weights)


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:  # no map: a file that is cut off meanwhile would end the process
        return hashlib.file_digest(file, blake3.blake3).hexdigest()  # type: ignore[arg-type]


def _local(weights: str) -> Path:
    return expand_path(local_folder(weights) or weights)
