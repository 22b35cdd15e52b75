"""A run's whole configuration: TOML in, typed sections out, and nothing unknown in between."""

from __future__ import annotations

import copy
import difflib
import os
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from taftcache.backbone.files import expand_path
from taftcache.backbone.spec import BackboneSpec, DataSpec, PreprocessSpec
from taftcache.errors import ArgumentError, RecipeError, check_several
from taftcache.expected import choices, correction, described, hint_at, path_of, plain_fault, shown, value_at
from taftcache.privacy.spec import PrivacySpec
from taftcache.recipe_files import check_sections, parse_toml, read_toml
from taftcache.recipe_sections import (
    CompareSpec,
    ComposeSpec,
    ExtractSpec,
    ForgetSpec,
    ObjectiveSpec,
    PriorSpec,
    SolverSpec,
    StoreSpec,
)
from taftcache.tangent.spec import TangentSpec

Parsed = TypeVar("Parsed", bound=msgspec.Struct)
_LONGEST = 80  # characters of a value in a message
_LESS = "name a smaller value, fewer levels, or plain text (of a file or folder another name)"
Overrides = Iterable[str] | Mapping[str, Any]
"""Changes of single settings: ["objective.ridge=1e-3"], as ``--set`` takes them, or {"objective.ridge": 1e-3}."""
_IMAGES = ("device", "data", "backbone", "preprocess", "store", "extract", "tangent")
_MODELS = ("objective", "solver", "compose", "privacy")
_SUMS = ("device", "objective", "solver", "compose")  # the exact model is solved as components are
OVERRIDES = "the overrides"
_VECTORS = (
    "store.shards",
    "store.plan",
    "store.seed",
    "store.dtype",
    "store.chunk_rows",
    "data.held_out",
    "data.group",
    *_MODELS,
)
_PLACE = ("name", "store.path")
_USED = {
    "run": ("name", *_IMAGES, *_MODELS, "prior", "forget", "compare.reports"),
    "extract": ("name", *_IMAGES, *_MODELS, "prior"),  # what train takes from the store's record, too
    "append": ("name", *_IMAGES),
    "train": ("name", *_IMAGES[:-2], "tangent", *_MODELS, "prior"),  # of images, whether the store was made from them
    "compose": (*_SUMS, "tangent", "prior"),
    "compose on vectors": _SUMS,
    "train on vectors": ("device", *_VECTORS, "tangent.init", "tangent.seed"),
    "compare": ("name", *_IMAGES, "objective", "solver", "privacy", "compare"),
    "import": (*_PLACE, "device", *_VECTORS, "tangent.init", "tangent.seed"),
    "import --recipe": (*_PLACE, "device", *_VECTORS, "backbone", "preprocess", "store.cache", "tangent", "prior"),
    "evaluate": ("data.image_key", "data.label_key", "data.root", "data.unreadable"),  # of other images
    "verify": ("device", "data", "backbone", "preprocess", "extract"),
}
"""Sections, or single keys, of a recipe that a command uses; one that is not here uses all."""
_MEANT = {"gpu": "cuda"}  # "cpu" is spelled alike, and the opposite
_LATER = (("data", "group", None), ("backbone", "precision", "float32"), ("backbone", "features", "last"))
_INSTEAD = {"forget": "taftcache forget, once the store is there", "compare": "taftcache compare"}
_hints = cache(get_type_hints)  # uncached, all sections would cost each look into a store a millisecond


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a run needs; every section and key has a default.

    name: names the store, ``stores/<name>``, unless ``store.path`` does; by default the recipe file's name.
    device: where arithmetic runs; "auto" takes a GPU if there is one (docs/gpu.md).
    """

    name: str = "run"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    data: DataSpec = DataSpec(source="digits")
    backbone: BackboneSpec = BackboneSpec()
    preprocess: PreprocessSpec = PreprocessSpec()
    store: StoreSpec = StoreSpec()
    extract: ExtractSpec = ExtractSpec()
    tangent: TangentSpec = TangentSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    prior: PriorSpec = PriorSpec()
    solver: SolverSpec = SolverSpec()
    compose: ComposeSpec = ComposeSpec()
    privacy: PrivacySpec = PrivacySpec()
    forget: ForgetSpec = ForgetSpec()
    compare: CompareSpec = CompareSpec()

    @property
    def store_path(self) -> Path:
        """The store's folder; RecipeError as for ``place_of``."""
        return place_of(self.name, self.store.path, "stores", "store.path")


def place_of(name: str, path: str | None, below: str, key: str) -> Path:
    """The folder that a recipe's ``path`` names (its ``key``), or else the one called ``name`` in the folder ``below``.

    Raises:
        RecipeError: a ``name`` that leads elsewhere, or as for ``expand_path``.
    """
    if not path and not {"", ".", ".."}.isdisjoint(name.strip().split("/")):
        raise RecipeError(
            f"the recipe's name names no folder below {below}/",
            got=f"name = {name!r}",
            do=f"give it another, or name the folder by {key}",
        )
    return expand_path(path or f"{below}/{name}")


def load_recipe(
    path: str | os.PathLike[str], overrides: Overrides = (), *, needs: Sequence[str] = ("data", "backbone")
) -> Recipe:
    """Read a TOML recipe and change single settings of it.

    Args:
        path: a file, or the name of a bundled recipe (``quickstart``).
        overrides: texts ["objective.ridge=1e-3"], or a mapping {"objective.ridge": 1e-3}, whose numbers may be numpy's.
        needs: sections that must be given, in the file or by an override; none of them is guessed.

    Raises:
        RecipeError: no such file, not TOML, an unknown key (the nearest right one is named), a wrong value, or a
            section of ``needs`` that is missing or empty.
    """
    values = read_toml(path)
    values.setdefault("name", Path(path).stem)
    values = apply_overrides(values, overrides)
    if {"teachers", "student"} <= values.keys():
        raise RecipeError(
            f"{path} is not to be run: it is for a student", do=f"taftcache teach {shlex.quote(str(path))}"
        )
    recipe = parse_recipe(values, str(path))
    check_sections(values, needs, path)
    return recipe


def checked_recipe(recipe: object) -> Recipe:
    """A recipe that a program made, checked as one from a file is.

    Raises:
        ArgumentError: no Recipe, but the name of one, say. RecipeError: a value that it cannot have.
    """
    return parse_recipe(built_values(recipe, Recipe, "load_recipe"))


def built_values(recipe: object, kind: type[msgspec.Struct], reader: str) -> Any:
    """The plain values of a recipe that a program built; ArgumentError, which names its ``reader``, for anything but a
    ``kind``."""
    if not isinstance(recipe, kind):
        name = repr(str(recipe)) if isinstance(recipe, str | Path) else None
        got = name or f"a {type(recipe).__name__}"
        raise ArgumentError(f"the recipe is not a {kind.__name__}", got=got, do=f"{reader}({name or 'FILE'})")
    return msgspec.to_builtins(recipe, enc_hook=_builtin)


def _builtin(value: Any) -> Any:
    """A number of numpy's as Python's own; a path as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def as_mapping(overrides: Overrides) -> dict[str, Any]:
    """Overrides as plain values by ``section.key``, in the order in which they are applied."""
    found: dict[str, Any] = {}
    if overrides is None:
        raise ArgumentError("overrides must be a list", got="None", do='leave it out, or ["objective.ridge=1e-3"]')
    if isinstance(overrides, Mapping):
        check_several(overrides=list(overrides))
        plain = {str(key): msgspec.to_builtins(value, enc_hook=_builtin) for key, value in overrides.items()}
        for key, value in plain.items():  # in a whole section, {"objective": {"ridge": 1e-3}}, each key is an override
            of_section = isinstance(value, dict) and "." not in key
            found |= {f"{key}.{inner}": one for inner, one in value.items()} if of_section else {key: value}
        return found
    check_several(overrides=overrides)
    for text in overrides:
        key, value = _parsed(text)
        found.pop(key, None)  # of several for one key the last counts, at its own place in the order
        found[key] = value
    return found


def check_used(command: str, overrides: Overrides, *, placed: bool = False) -> None:
    """RecipeError for an override that ``command`` never uses; ``placed`` where the store itself is named beside it.

    A recipe's file may say more than one command uses, for it is for all of them; an override is for one.
    """
    used = [key for key in _USED[command] if not (placed and key in _PLACE)]
    for key, value in as_mapping(overrides).items():
        section = key.partition(".")[0]
        beside = placed and key in _PLACE
        read = any(one in (section, key) or one.startswith(f"{key}.") for one in used) and not beside
        if section in Recipe.__struct_fields__ and not read:  # what no recipe has, parsing refuses
            raise RecipeError(
                f"{command} does not use {_key(key)}{', for the place of the store is named' if beside else ''}",
                got=f"{_key(key)} = {_short(value)}",
                do=_INSTEAD.get(section, "leave it out" + ("" if beside else f": {command} uses {', '.join(used)}")),
            )


def apply_overrides(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """A copy of plain recipe values with each override applied."""
    if fault := plain_fault(values):
        raise RecipeError(fault, do=_LESS)
    changed = copy.deepcopy(dict(values))
    for key, value in as_mapping(overrides).items():
        _override(changed, key, value)
        if fault := plain_fault(changed):
            raise RecipeError(fault, got=_short(f"{key}={value}"), do=_LESS)
    return changed


def parse_recipe(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Typed recipe from plain values; see ``load_recipe`` for the errors."""
    recipe = parse_as(Recipe, values, where)
    if recipe.solver.memory != "auto":
        parse_bytes(recipe.solver.memory)
    if recipe.data.group is not None and recipe.store.plan == "balanced":
        raise RecipeError(
            "a balanced plan splits samples one by one, and cannot keep groups together",
            got=f'store.plan = "balanced", data.group = {_short(recipe.data.group)}',
            do='set store.plan = "hash", or leave data.group out',
        )
    return recipe


def parse_as(struct: type[Parsed], values: Mapping[str, Any], where: str) -> Parsed:
    """Plain values as ``struct``; RecipeError for an unknown key or a wrong value."""
    if fault := plain_fault(values):
        raise RecipeError(fault, got=where, do=_LESS)
    _check_names(values, struct, struct, "", where)
    try:
        return msgspec.convert(dict(values), struct)
    except msgspec.ValidationError as error:
        raise _wrong_value(values, struct, str(error), where) from error


def check_names(values: Mapping[str, Any], where: str) -> None:
    """RecipeError for plain values with a key that no recipe has."""
    _check_names(values, Recipe, Recipe, "", where)


def stored_at(place: str | Path, recipe: Recipe) -> Recipe:
    """The recipe, with its store at ``place``."""
    return msgspec.structs.replace(recipe, store=msgspec.structs.replace(recipe.store, path=str(place)))


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Plain JSON values of a recipe, with all defaults except those of keys that came in a later release."""
    values: dict[str, Any] = _listed(msgspec.to_builtins(recipe))
    for section, key, usual in _LATER:
        if values[section][key] == usual:  # so that stores from before the key are the same to the byte
            del values[section][key]
    return values


def without_defaults(recipe: Recipe) -> dict[str, Any]:
    """A recipe's plain values as a file needs them: its name, the keys that a file must have, and no other default."""
    usual, needed = recipe_values(Recipe()), {"data": "source", "backbone": "weights"}
    values: dict[str, Any] = {"name": recipe.name}
    for name, value in recipe_values(recipe).items():
        if not isinstance(value, dict):
            values |= {name: value} if value != usual[name] else {}
        elif kept := {k: v for k, v in value.items() if k == needed.get(name) or v != usual[name].get(k)}:
            values[name] = kept
    return values


def _listed(value: Any) -> Any:
    """Plain values with lists for tuples, as a store's JSON gives them back."""
    if isinstance(value, dict):
        return {name: _listed(inner) for name, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def parse_bytes(text: str) -> int:
    """Bytes in "512MiB", "2 GiB", "4GB" or "1000"."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().upper()
    try:
        size = int(float(digits) * units[unit])
    except (ValueError, KeyError, OverflowError):
        size = -1
    if size < 0:
        raise RecipeError(f"{_short(text)} is not a size", got=text, do='write it like "512MiB" or "2GB"')
    return size


def _check_names(
    values: Mapping[str, Any], struct: type[msgspec.Struct], root: type[msgspec.Struct], prefix: str, where: str
) -> None:
    """Refuse unknown keys, naming the nearest right one."""
    hints = _hints(struct)
    for key, value in values.items():
        if key not in struct.__struct_fields__:
            near = _anywhere(key, 1.0, root) or difflib.get_close_matches(
                key, struct.__struct_fields__, n=1, cutoff=0.5
            )
            near = near or _anywhere(key, 0.7, root)
            known = f"one of {', '.join(struct.__struct_fields__)}"
            raise RecipeError(
                f"unknown key {prefix}{_key(key)} in {where}",
                got=f"{prefix}{_key(key)} = {_short(value)}",
                do=f"did you mean {prefix if near[0] in struct.__struct_fields__ else ''}{near[0]}?" if near else known,
            )
        inner = hints[key]
        if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _check_names(value, inner, root, f"{prefix}{key}.", where)


def _wrong_value(values: Mapping[str, Any], struct: type[msgspec.Struct], said: str, where: str) -> RecipeError:
    """msgspec's error in the words of a recipe: the setting, what it is, and what it may be."""
    text, _, pointer = said.partition(" - at `$")
    path = path_of(pointer.rstrip("`"))
    name = shown(path)
    if text.startswith("Object missing required field"):
        name = f"{name}.{text.split('`')[1]}".lstrip(".")
        return RecipeError(f"{name} is missing", got=where, do="set it in the recipe, or with --set section.key=value")
    value, hint = value_at(values, path), hint_at(struct, path)
    allowed = [choice for choice in choices(hint) if isinstance(choice, str)]
    near = difflib.get_close_matches(_MEANT.get(value, value), allowed, n=1) if isinstance(value, str) else []
    return RecipeError(
        f"{name} is {_short(value)}; did you mean {near[0]!r}?"
        if near
        else f"{name} is {_short(value)}, but must be {described(hint, value)}",
        got=f"{name} = {_short(value)} in {where}",
        do="correct it there, or leave it out"
        if where == OVERRIDES
        else f"{described(hint)}: in the recipe, or with --set {name.partition('[')[0]}=…"
        if near
        else correction(struct, path, name),
    )


def _short(value: Any) -> str:
    """A value on one line of a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _key(name: str) -> str:
    """A key on one line of a message: as it is written, unless that is not printable."""
    return name if name.isprintable() and len(name) <= _LONGEST else _short(name)


def _anywhere(key: str, cutoff: float, root: type[msgspec.Struct]) -> list[str]:
    """``section.key`` whose key resembles ``key`` most and at least to the degree ``cutoff``, over all sections."""
    paths: dict[str, str] = {}
    for section, inner in _hints(root).items():
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            paths = {name: f"{section}.{name}" for name in inner.__struct_fields__} | paths
    return [paths[name] for name in difflib.get_close_matches(key, paths, n=1, cutoff=cutoff)]


def _parsed(text: str) -> tuple[str, Any]:
    """The key and the value of one ``section.key=value``; the value is TOML, or else a plain string."""
    path, sign, raw = text.partition("=")
    if not sign:
        raise RecipeError(
            "the override is not section.key=value", got=_short(text), do="write it like solver.tolerance=1e-8"
        )
    try:
        return path.strip(), parse_toml(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), raw
    except RecursionError as error:
        raise RecipeError(f"the override of {_key(path)} is nested too deeply", got=_short(text), do=_LESS) from error
    except ValueError as error:  # Python reads no integer of more than some thousand digits
        raise RecipeError(
            f"the override of {_key(path)} has an integer of too many digits", got=_short(text), do=_LESS
        ) from error


def _override(values: dict[str, Any], path: str, value: Any) -> None:
    """Set one key of plain recipe values."""
    keys, said = path.split("."), _short(f"{path}={value}")
    if not all(keys):
        raise RecipeError("the override names no section.key", got=said, do="write it like solver.tolerance=1e-8")
    for key in keys[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise RecipeError(
                f"the override names a key of {_key(key)}, which is not a section", got=said, do=f"write {_key(key)}=…"
            )
        values = inner
    values[keys[-1]] = value
