"""Recipes as files: found by path, or by name among the bundled ones; read as plain values."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taftcache.cache.format.naming import FILE
from taftcache.errors import RecipeError, check_path, is_address
from taftcache.names import extract_again, recipe_again

# A wheel carries pipelines/ inside the package (pyproject.toml); in a clone it stands beside it.
PLACES = (Path(__file__).parent / "pipelines", Path(__file__).parent.parent / "pipelines")

_LARGEST = 1 << 20  # bytes of a recipe
_ENDLESS = re.compile(r"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){100}""")  # a key of a hundred parts
_FORM = 'correct it there: a line is [section], or key = value, with texts in "quotes"'
_PATH = "correct the path, or let the file be read"
_LINK = "correct the link, or name another file"
_NEEDED = {
    "data": 'add [data] with source = "folder" and train = "FOLDER", or source = "digits" to try things out',
    "backbone": 'add [backbone] with weights = "pretrained" and model = "deit_tiny_patch16_224.fb_in1k", say, '
    'or weights = "bundled", a small model for images of 32 x 32',
    "student": 'add [student] with a timm model and weights = "random", say',
}


def recipe_file(name: str | os.PathLike[str]) -> Path:
    """The recipe's file: the path as it is if there is a file, else the bundled recipe of that name.

    A name is ``quickstart``, ``quickstart.toml`` or ``pipelines/quickstart.toml``; for a recipe in a folder,
    ``published/cub200``, or the last part alone if no other recipe has it.

    Raises:
        RecipeError: neither is there; it names the nearest recipe, and all that there are. ArgumentError: no path.
    """
    check_path("the place of a recipe", name)
    path = Path(name)
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return path
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass  # a name
    except OSError:
        return path  # whoever opens it says why not
    known, alike = bundled_recipes(), named_alike(path)
    if len(alike) == 1:
        return known[alike[0]]
    if (path / FILE).is_file():
        place = shlex.quote(str(path))
        raise RecipeError(
            f"{path} is a store, not a recipe",
            got=str(name),
            do=f"taftcache train, evaluate, predict, forget or inspect {place} (in Python train({str(path)!r}, "
            "overrides=[…])); or give the .toml file that it was made from; "
            f"to have it again: {extract_again(path)}; taftcache append {recipe_again(path)} takes further images in",
        )
    if path.is_dir():
        raise RecipeError(
            f"{path} is a folder, not a recipe",
            got=str(name),
            do=f"name a .toml file; taftcache init {shlex.quote(str(path))} makes one of a folder of images",
        )
    if path.is_symlink():
        raise RecipeError(
            f"no recipe at {path}: it is a link that leads nowhere", got=f"a link to {path.readlink()}", do=_LINK
        )
    near, said = did_you_mean(path), str(name)
    if is_address(said):  # a Path has dropped one of the slashes
        said = re.sub(":/+", "://", said, count=1)
    raise RecipeError(
        f"no recipe at {said}, and no bundled one has this name",
        got=said,
        do=f"{near}otherwise give a path" if near else f"give a path, or one of {', '.join(known)}",
    )


def named_alike(path: Path) -> list[str]:
    """Names of bundled recipes that ``path`` may mean; if it is the whole name of one, only that."""
    known, asked = bundled_recipes(), _asked(path)
    return [asked] if asked in known else [full for full in known if full.rpartition("/")[2] == asked]


def did_you_mean(path: Path) -> str:
    """A question that names the recipe with the nearest name, beside ``path`` or among the bundled ones, or ""."""
    beside = {file.with_suffix("").as_posix(): file for file in path.parent.glob("*.toml")}
    names = difflib.get_close_matches(_asked(path), [*beside, *bundled_recipes()], n=1, cutoff=0.5)
    near = named_alike(path) or [str(beside.get(name, name)) for name in names]
    return f"did you mean {' or '.join(near)}? " if near else ""


def _asked(path: Path) -> str:
    return path.as_posix().removeprefix("pipelines/").removesuffix(".toml")


def bundled_recipes() -> dict[str, Path]:
    """Name (``published/cub200``) → file, those at the top first."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    if folder is None:
        return {}
    found = [*sorted(folder.glob("*.toml")), *sorted(folder.glob("*/*.toml"))]
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in found}


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A recipe's plain values; RecipeError for no such file, or one that is not TOML."""
    path = recipe_file(path)
    try:
        with path.open("rb") as file:  # a pipe may be a recipe, too, but not one without end
            raw = file.read(_LARGEST + 1)
        if len(raw) > _LARGEST:
            raise RecipeError(f"the recipe {path} has more than {_LARGEST} bytes", do="name a file of settings alone")
        return parse_toml(raw.decode("utf-8-sig"))
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {_reason(error)}", got=str(path), do=_PATH) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"the recipe {path} is not UTF-8 text", got=str(error), do="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"the recipe {path} is not TOML", got=str(error), do=_FORM) from None
    except RecursionError as error:
        raise RecipeError(
            f"the recipe {path} is nested too deeply", got="lists or tables within each other", do=_FORM
        ) from error
    except ValueError as error:  # Python reads no integer of more than some thousand digits
        raise RecipeError(
            f"the recipe {path} has an integer of too many digits", got=str(error), do="name a smaller number"
        ) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Plain values; RecursionError if they are nested too deeply, which would take tomllib minutes."""
    if _ENDLESS.search(text):
        raise RecursionError("a key of a hundred parts")
    return tomllib.loads(text)


def toml_value(value: Any) -> str:
    """A value as TOML. JSON's strings, numbers and lists are valid TOML, but for one control character it leaves."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml_value(inner)}' for key, inner in value.items())} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_text(values: Mapping[str, Any]) -> str:
    """A recipe's plain values as TOML, all of it printable."""
    sections = {name: keys for name, keys in values.items() if isinstance(keys, Mapping)}
    lines = [f"{name} = {toml_value(value)}" for name, value in values.items() if name not in sections]
    for section, keys in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in keys.items())]
    # only in a text can a character that is not printable stand, and there TOML has a code for it
    return "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in "\n".join([*lines, ""]))


def check_sections(values: Mapping[str, Any], needed: Sequence[str], where: str | os.PathLike[str]) -> None:
    """RecipeError for a section that is missing or empty: images and models are named, never guessed."""
    for section in needed:
        if not values.get(section):
            there = (
                ", ".join(f"[{name}]" for name, value in values.items() if isinstance(value, Mapping)) or "no section"
            )
            key = "key in " if section in values else ""
            raise RecipeError(f"the recipe {where} has no {key}[{section}]", got=there, do=_NEEDED[section])


def _reason(error: OSError) -> str:
    """What the system says, as part of a sentence."""
    return (error.strerror or "it cannot be opened").lower()
