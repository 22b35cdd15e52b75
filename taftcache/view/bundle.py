"""ES modules as one script, for a page that is one document.

The page must also work when it is opened from disk, and its policy admits only scripts that stand in it. A browser
loads no module from a ``file:`` address, and an import map would need ``blob:`` or ``data:`` addresses, which the
policy refuses. So every module becomes a function that is called once, after those that it imports, and that returns
its exports: its other names stay its own, and two modules may use the same one.

Only these forms are understood, each at the start of a line; everything else is refused, never passed on:

    import { name, other } from "./module.js";
    export const name, export function name, export async function name, export class name

An exported variable that is assigned again later (``export let``) would keep its first value elsewhere, so there is
none.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import NamedTuple

_IMPORT = re.compile(r'^import \{([^{}]*)\} from "(\.\.?/[^"]*)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function) ([\w$]+))", re.MULTILINE)
# What is left of them once the forms above are taken away; "import(" and "import.meta" stand anywhere.
_OTHER = re.compile(r"^[ \t]*(?:import|export)\b.*|\bimport ?[(.].*", re.MULTILINE)


class Module(NamedTuple):
    """One file: its text without imports and exports, imported names by file, and the names it exports."""

    text: str
    imports: dict[str, list[str]]
    exports: list[str]


def bundle(entry: str, read: Callable[[str], str]) -> str:
    """The script that runs ``entry``; ``read`` gives the text of a file by its path.

    Raises:
        ValueError: a form that is not understood, a name that its file does not export, or imports in a circle.
    """
    modules: dict[str, Module] = {}
    _collect(entry, read, modules, ())
    number = {name: k for k, name in enumerate(modules)}
    calls = []
    for name, module in modules.items():
        taken = [f"const {{ {', '.join(names)} }} = module{number[file]};" for file, names in module.imports.items()]
        body = "\n".join([*taken, module.text.strip("\n"), f"return {{ {', '.join(module.exports)} }};"])
        calls.append(f"// {name}\nconst module{number[name]} = (() => {{\n{body}\n}})();")
    return "\n".join(['(() => {\n"use strict";', *calls, "})();"])


def parse(name: str, text: str) -> Module:
    """A file's text taken apart; ValueError for a form that is not understood."""
    imports: dict[str, list[str]] = {}
    for names, file in _IMPORT.findall(text):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(name), file))
        imports.setdefault(place, []).extend(part.strip() for part in names.split(",") if part.strip())
    exports = _EXPORT.findall(text)
    rest = _EXPORT.sub("", _IMPORT.sub("", text))
    if found := _OTHER.search(rest):
        raise ValueError(f"{name} has an import or export in another form than the bundle knows: {found[0].strip()}")
    return Module(rest, imports, exports)


def _collect(name: str, read: Callable[[str], str], modules: dict[str, Module], path: tuple[str, ...]) -> None:
    """Put ``name`` into ``modules`` after everything that it imports; ``path`` leads to it."""
    if name in path:
        raise ValueError(f"{name} cannot import itself, as {' → '.join([*path, name])} does")
    if name in modules:
        return
    module = parse(name, read(name))
    for file, names in module.imports.items():
        _collect(file, read, modules, (*path, name))
        if unknown := sorted(set(names) - set(modules[file].exports)):
            raise ValueError(f"{name} imports what {file} does not export: {', '.join(unknown)}")
    modules[name] = module
