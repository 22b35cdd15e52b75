"""What a typed setting may be, in words: read from the annotations of the struct that it belongs to."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from taftcache.errors import RecipeError

_NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a number", type(None): "left out"}
_BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
_DEPTH = 32  # levels of a table in another
_VAST = 1e99  # a bound above it only keeps infinity out

Path = list[str | int]
"""Names of sections and keys, and places in lists, from the top."""


def check_fields(struct: msgspec.Struct, section: str) -> None:
    """RecipeError for a value that its annotation does not allow: msgspec checks none that a program gives."""
    for name, hint in _types(type(struct)):
        try:
            msgspec.convert(getattr(struct, name), hint)
        except msgspec.ValidationError:
            raise RecipeError(
                f"{section}.{name} must be {described(hint)}",
                got=f"{section}.{name} = {getattr(struct, name)!r}",
                do=f"give {name} another value, or leave it out",
            ) from None


@cache
def _types(struct: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in msgspec.structs.fields(struct)]


def path_of(pointer: str) -> Path:
    """The path in msgspec's ``$.compare.reports[0]``; it ends at a table whose key msgspec does not say."""
    path: Path = []
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", pointer):
        if index == "...":
            break
        path.append(name or int(index))
    return path


def shown(path: Path) -> str:
    """``compare.reports[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def value_at(values: Any, path: Path) -> Any:
    """What stands at ``path`` in nested mappings and lists."""
    for part in path:
        values = values[part]
    return values


def hint_at(struct: type[msgspec.Struct], path: Path) -> Any:
    """The annotation of what ``path`` leads to."""
    hint: Any = struct
    for part in path:
        members = [_bare(member) for member in _members(hint)]
        if isinstance(part, int):
            (hint,) = [_item(member, part) for member in members if get_origin(member) in (list, tuple)]
        else:
            (owner,) = [member for member in members if _is_section(member)]
            hint = get_type_hints(owner, include_extras=True)[part]
    return hint


def choices(hint: Any) -> list[Any]:
    """The values that an annotation lists one by one; empty if it lists none."""
    bare = [_bare(member) for member in _members(hint)]
    return [value for member in bare if get_origin(member) is Literal for value in get_args(member)]


def described(hint: Any, value: object = None) -> str:
    """``a number above 0 or "auto"``; with a vast bound if ``value`` is beyond it."""
    parts = [f'"{value}"' if isinstance(value, str) else str(value) for value in choices(hint)]
    for member in _members(hint):
        if get_origin(_bare(member)) is not Literal and _bare(member) is not type(None):
            parts.insert(0, _kind(member, value))
    return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def correction(struct: type[msgspec.Struct], path: Path, name: str) -> str:
    """What to do about a wrong value of the setting ``name`` at ``path``: where to set it, and what its default is."""
    if _is_section(_bare(hint_at(struct, path))):
        return f"write [{name}] and its keys below it, or --set {name}.KEY=…"
    inside = any(isinstance(part, int) for part in path)  # inside a list, which is given as a whole
    unsaid = msgspec.NODEFAULT if inside else _default(struct, path)
    said = "" if unsaid is msgspec.NODEFAULT else f"; without it, it is {msgspec.json.encode(unsaid).decode()}"
    if unsaid is None:
        said = ", or leave it out"
    return f"correct it in the recipe, or with --set {name.partition('[')[0]}=…{said}"


def _default(struct: type[msgspec.Struct], path: Path) -> Any:
    """A setting's default; ``msgspec.NODEFAULT`` for one that must be given."""
    owner = _bare(hint_at(struct, path[:-1]))
    if not _is_section(owner):
        return msgspec.NODEFAULT
    (field,) = [field for field in msgspec.structs.fields(owner) if field.name == path[-1]]
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _kind(member: Any, value: object) -> str:
    bare, bounds = _bare(member), _bounds(member, value)
    if said := [meta.description for meta in _metas(member) if meta.description]:
        return said[0]
    if get_origin(bare) in (list, tuple):
        items = [item for item in get_args(bare) if item is not Ellipsis]
        fixed = get_origin(bare) is tuple and Ellipsis not in get_args(bare)
        several = f"a list of {len(items)}" if fixed else "a list"
        if any(meta.min_length for meta in _metas(member)):
            several = "a list that is not empty"
        return f"{several}, each {described(items[0])}"
    if get_origin(bare) is dict or bare is dict:
        _, item = get_args(bare) or (str, Any)
        return "a table" if item is Any else f"a table of names, each {described(item)}"
    if _is_section(bare):
        return f"a section with {', '.join(bare.__struct_fields__)}"
    return f"{_NAMES.get(bare, 'a value')} {' and '.join(bounds)}".rstrip()


def _bounds(member: Any, value: object) -> list[str]:
    vast = isinstance(value, int | float) and value > _VAST
    limits = [(word, getattr(meta, name)) for meta in _metas(member) for name, word in _BOUNDS.items()]
    return [f"{word} {limit}" for word, limit in limits if limit is not None and (vast or limit < _VAST)]


def _metas(member: Any) -> list[msgspec.Meta]:
    return [meta for meta in getattr(member, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]


def _members(hint: Any) -> Sequence[Any]:
    """The alternatives of a union; the annotation itself if it is no union."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else [hint]


def _bare(hint: Any) -> Any:
    """An annotation without its bounds."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _item(hint: Any, index: int) -> Any:
    items = get_args(hint)
    return items[0] if get_origin(hint) is list or Ellipsis in items else items[index]


def plain_fault(values: Mapping[str, Any]) -> str | None:
    """What is wrong with plain values whatever they are for: nested too deeply, no text, or an integer of more than 64
    bits."""
    todo: list[tuple[Path, Any]] = [([], values)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, str) and ("\0" in value or value.encode(errors="ignore").decode() != value):
            return f"{shown(path)} has characters that no text has: NUL, or bytes that are not UTF-8"
        if len(path) > _DEPTH:
            return f"{shown(path[:2])} is nested more than {_DEPTH} levels deep"
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            bits = 1 + (value if value > 0 else ~value).bit_length()
            return f"{shown(path)} needs {bits} bits, more than the 64 of an integer"
        if isinstance(value, Mapping):
            todo += [([*path, str(key)], inner) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            todo += [([*path, place], inner) for place, inner in enumerate(value)]
    return None
