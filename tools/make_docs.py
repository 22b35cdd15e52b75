"""Write what is made from the code: the command line, what it prints as JSON, the recipe keys, the list of recipes, the
laws that tests hold, and the public names for type checkers.

python tools/make_docs.py            write them
python tools/make_docs.py --check    exit 1 and name those that are out of date
python tools/make_docs.py --output   run the demo, and show in README.md some lines of what it prints here and now
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import typer

import taftcache
from taftcache import errors
from taftcache.cli import app, groups
from taftcache.expected import choices
from taftcache.model.meta import CertificateRecord
from taftcache.recipe import Recipe
from taftcache.teaching.recipe import TeachingRecipe
from taftcache.terminal.showing import PRINTERS

ROOT = Path(__file__).resolve().parent.parent
COMPLETION = (
    "`taftcache --version` prints the version. `taftcache --install-completion` teaches the shell in use (bash, zsh, "
    "fish, PowerShell) to complete commands, options, choices and the names of recipes with the Tab key; "
    "`--show-completion` prints the script instead, and `_TAFTCACHE_COMPLETE=source_fish taftcache` that of another "
    "shell. `taftcache --wait SECONDS COMMAND` waits up to so long for another process that writes to the store, and "
    "says so once on stderr; without it, a second writer ends at once. "
    "A RECIPE is a TOML file, or the name of one of the "
    "[bundled recipes](../pipelines/README.md): `quickstart`, `published/cub200`. A file of that name wins.",
)
# Fields that mean the same in every report that does not say otherwise.
ALIKE = {
    "store": "the store's folder, or its place in a bucket",
    "root_digest": "names the store's state, as it is after the command",
    "root_before": "the same before the command",
    "seconds": "how long it took, on the wall clock",
    "notes": "sentences worth reading; none of them is an error",
    "dry_run": "whether nothing was changed",
    "passes": "how many passes over the rows the solve took",
    "bytes": "size of what was written, or would be, or is there",
    "file": "path of the file",
    "model": "name of a model, such as `models/mean`",
    "sample": "the sample's id",
    "label": "its class, as text",
    "shard": "name of its shard; that of held-out rows is `held-out`",
    "role": '"train" or "held-out"',
}
# Of commands with several reports, what asks for one.
ASKED = {
    "EstimateReport": "--dry-run",
    "PrivateTrainReport": "--private",
    "EvaluateOnReport": "--on",
    "SampleReport": "--sample",
    "ShardReport": "--shard",
    "ClassReport": "--class",
    "Sample": "--ids",
    "SuspectsReport": "--suspects",
    "OutliersReport": "--outliers",
    "DuplicatesReport": "--duplicates",
    "SampleInfluence": "--sample",
    "QueryInfluence": "--query",
}
JSON_HEAD = """# What --json prints

Made from the reports' classes by `tools/make_docs.py`. Python's functions return the same reports as objects;
`to_json` of such an object is what `--json` prints.

With `--json` a command prints one JSON value to stdout, in ASCII, and shows no progress. Errors, and the few things
that have to be said at once, are text on stderr. The [exit codes](cli.md#exit-codes) are the same as without it:
after 0 and 10 stdout has a report, after an error an object:

- `error` (text): its kind, a name from that table, or UsageError, MemoryError, KeyboardInterrupt, FileNotFoundError;
  after exit code 1, an error in taftcache itself, the name of Python's exception
- `fault` (text): what went wrong, in one sentence
- `got` (text or null): what was found instead
- `try` (text or null): what to do about it
- `exit_code` (integer): that of the process
- `ids` (texts): only for UnknownSample: those that were named and are not known
- `names` (texts): only for UnknownName: the same of shards, classes, components and models, and of patterns

Numbers are plain JSON numbers, and paths are text. What is unknown or does not apply is null. "Texts" is a list of
text. An "object of X" has names as keys and X as values; a plain "object" has values of several kinds.

**What stays.** A release may add fields: ignore those that you do not know. Tests pin the fields, so that
none goes or changes its type by accident; if a release changes one, the [changelog](../CHANGELOG.md) says so.

## Fields of many reports

They mean this where a report names them after "Also".
"""
TABLE = ("| argument | meaning |", "|---|---|")
SHARED = 4  # commands with the same option, from which on it stands once
MANY = 12  # quotation marks of values that are not listed twice
NO_BOUND = 1e100  # at which numbers stop whatever they are
# Lines of the demo that README.md shows.
EXCERPT = re.compile(
    "store |evaluate|.*(% +(model of all rows|linear probe)|: log-loss|forgotten now|held-out accuracy|models/exact: )"
)
SAID_ONCE = ("TAFTCACHE_DATA names", "Run it with taftcache compare", "`taftcache extract FILE --dry-run`")
SHOWN, SHOWN_END = "<!-- output:quickstart -->", "<!-- /output:quickstart -->"


def pages() -> dict[Path, str]:
    """Path → the text that it must have."""
    return {
        ROOT / "docs" / "cli.md": command_line(),
        ROOT / "docs" / "json.md": json_reports(),
        ROOT / "docs" / "recipe.md": recipe_reference(),
        ROOT / "pipelines" / "README.md": recipes(ROOT / "pipelines"),
        ROOT / "docs" / "laws.md": laws(ROOT / "tests"),
        ROOT / "taftcache" / "__init__.pyi": public_names(),
    }


def between(page: str, generated: str, begin: str, end: str) -> str:
    """``page`` with what stands between its two marks replaced."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{generated.strip()}\n\n{end}{after}"


def demo_output() -> str:
    """Lines of what `taftcache demo` prints on this machine, without the table's frame, as a block of text."""
    command = [sys.executable, "-c", "from taftcache.cli import main; main()", "demo"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=True
        )
    rows = [line.strip("│").split("│") for line in done.stdout.splitlines()]
    lines = [f"{row[0].strip():8}  {row[1].strip()}" if len(row) > 1 else row[0] for row in rows]
    return "\n".join(["```text", *(line for line in lines if EXCERPT.match(line)), "```"])


def command_line() -> str:
    """The reference of every command, from the typer app."""
    root: Any = typer.main.get_command(app)
    tables = {name: _parameters(root.commands[name]) for names in groups().values() for name in names}
    counts = Counter(row for rows in tables.values() for row in rows)
    # Arguments are never shared: their order is told by where they stand.
    shared = {row for row, count in counts.items() if count >= SHARED and row[0].startswith("`-")}
    origin = "Made from the program by `tools/make_docs.py`. [What --json prints](json.md) has a page of its own."
    lines = ["# Command line", "", origin, "", *COMPLETION, ""]
    lines += ["## Shared options", "", "Each command lists those that it takes after its own.", ""]
    lines += [*TABLE, *(f"| {' | '.join(row)} |" for row in counts if row in shared), ""]
    for title, names in groups().items():
        lines += [f"## {title}", ""]
        for name in names:
            command = root.commands[name]
            lines += [f"### taftcache {name}", "", *_help(command.help)]
            if own := [f"| {' | '.join(row)} |" for row in tables[name] if row not in shared]:
                lines += [*TABLE, *own, ""]
            if also := [row[0].strip("`").split()[0] for row in tables[name] if row in shared]:
                lines += [f"Also: [{', '.join(f'`{word}`' for word in also)}](#shared-options).", ""]
    lines += [
        "## Exit codes",
        "",
        "An error says what went wrong, what was found instead, and what to try. Its kind decides the exit code.",
        "",
        "| code | error | when |",
        "|---|---|---|",
        "| 0 | | done |",
        *(f"| {e.exit_code} | `{e.__name__}` | {_first(e)} |" for e in _error_tree(errors.TaftcacheError)[1:]),
        "| 1 | | an error in taftcache itself, with Python's traceback |",
        "| 2 | | a command, option or argument that does not exist |",
        "| 10 | | verify or audit found something |",
        "| 130 | | interrupted, by Ctrl-C, SIGTERM or SIGHUP; what was committed is kept (view ends with 0) |",
        "| 137 | | memory ran out; what was committed is kept |",
        "| 141 | | nobody reads the output any longer; what was committed is kept |",
    ]
    return "\n".join(lines) + "\n"


def json_reports() -> str:
    """The fields of what each command prints with ``--json``, from the reports' classes and docstrings."""
    types_of = {name: "text" for name in ALIKE} | {"seconds": "number", "passes": "integer", "bytes": "integer"}
    types_of |= {"notes": "texts", "dry_run": "true/false"}
    lines = [JSON_HEAD, *(f"- `{name}` ({types_of[name]}): {meaning}" for name, meaning in ALIKE.items()), ""]
    nested: list[type] = [CertificateRecord]
    places: dict[type, str] = {}
    for name, made in reports().items():
        lines += [f"## {name}", ""]
        for report in sorted(made, key=lambda each: each.__name__ in ASKED):
            asked = f"With `{ASKED[report.__name__]}`" if report.__name__ in ASKED else ""
            if report in places:
                lines += [f"As [{places[report]}](#{places[report]}).", ""]
                continue
            if asked:
                lines += [f"{asked}{', a list of' if report.__name__ == 'Sample' else ''}:", ""]
            lines += [*fields_of(report), ""]
            places[report] = name
            nested += [each for _, hint in typed_fields(report) for each in _records(hint)]
    lines += ["## Records", ""]
    for record in nested:  # which grows
        if record not in places:
            places[record] = record.__name__
            lines += [f"### {record.__name__}", "", *fields_of(record), ""]
            nested += [each for _, hint in typed_fields(record) for each in _records(hint)]
    # A record that is a command's report, too, stands there.
    links = {f"(#{record.__name__.lower()})": f"(#{place.lower()})" for record, place in places.items()}
    return re.sub(r"\(#\w+\)", lambda m: links.get(m[0], m[0]), "\n".join(lines).strip()) + "\n"


def reports() -> dict[str, list[type]]:
    """Command → classes of what it prints: those that the public functions which it calls return."""
    public = {name: getattr(taftcache, name) for name in vars(taftcache)["__all__"]}
    hints = {name: get_type_hints(made).get("return") for name, made in public.items() if inspect.isfunction(made)}
    given = {name: record for name, hint in hints.items() for record in _records(hint) if record.__name__ in PRINTERS}
    commands: Any = typer.main.get_command(app)
    found: dict[str, list[type]] = {}
    for name in (name for names in groups().values() for name in names):
        called = _called(inspect.unwrap(commands.commands[name].callback))
        made = list(dict.fromkeys(given[each] for each in called if each in given))
        parts = {part for record in made for _, hint in typed_fields(record) for part in _records(hint)}
        if made:
            found[name] = [record for record in made if record not in parts]
    return found


def _called(function: Any) -> Iterator[str]:
    """Names of the public functions that a command calls, itself or in a helper of its file."""
    for public, helper in re.findall(r"\btaftcache\.(\w+)\(|\b(_\w+)\(", inspect.getsource(function)):
        yield public
        if inspect.isfunction(used := function.__globals__.get(helper)) and used is not function:
            yield from _called(used)


def fields_of(record: type) -> list[str]:
    """A line for each field with type and meaning; at the end names of those that mean what they always do.

    A record that begins with all fields of another names that.
    """
    _, meanings = described(record)
    base, sparse = record.__bases__[0], issubclass(record, msgspec.Struct) and record.__struct_config__.omit_defaults
    fields = typed_fields(record)[len(getattr(base, "__struct_fields__", ())) :]
    meanings.pop("notes", None)  # for people: one meaning serves all reports
    own: dict[tuple[str, str], list[str]] = {}
    for name, hint in fields:
        if name in meanings or name not in ALIKE:
            own.setdefault((json_type(hint), _short(meanings.get(name, ""))), []).append(f"`{name}`")
    also = [f"`{name}`" for name, _ in fields if name not in meanings and name in ALIKE]
    lines = [f"- {', '.join(names)} ({kind}): {meaning}" for (kind, meaning), names in own.items()]
    lines += [f"- Also: {', '.join(also)}"] if also else []
    if sparse:
        own_fields = [f for f in msgspec.structs.fields(record) if f.name in dict(fields)]
        words = dict.fromkeys(
            {None: "null", False: "false"}.get(f.default, "empty") for f in own_fields if not f.required
        )
        but = [f"`{f.name}`" for f in own_fields if f.required]
        lines.append(f"- Left out where they are {' or '.join(words)}: all{' but ' if but else ''}{', '.join(but)}")
    return [*lines, *([f"- Also: all of {json_type(base)}"] if fields != typed_fields(record) else [])]


def typed_fields(record: type) -> list[tuple[str, Any]]:
    """Name and type of each field of a dataclass or struct."""
    hints, named = get_type_hints(record), getattr(record, "__struct_fields__", None)
    return [(name, hints[name]) for name in named or (field.name for field in dataclasses.fields(record))]


def json_type(hint: Any) -> str:
    """What JSON has for a type of a report, in words; records as links."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(["null" if a is type(None) else json_type(a) for a in arguments])
    if origin is dict:
        return "object" if arguments[1] is Any else f"object of {json_type(arguments[1])}"
    if origin is list:
        kind = json_type(arguments[0])
        return f"{kind}s" if kind in ("text", "integer", "number") else f"list of {kind}"
    if origin is tuple:
        return f"{len(arguments)} {json_type(arguments[0])}s"
    if records := [*_records(hint)]:
        return f"[{records[0].__name__}](#{records[0].__name__.lower()})"
    return "object" if hint is dict else {Path: "text", bool: "true/false"}.get(hint) or values(hint)


def _records(hint: Any) -> Iterator[type]:
    """The classes of records in a type."""
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)):
        yield hint
    for argument in get_args(hint):
        yield from _records(argument)


def _short(meaning: str) -> str:
    """The first sentence, without its full stop, in JSON's words."""
    return re.sub(r"\bNone\b", "null", re.split(r"\. (?=[A-Z\"])", meaning)[0].rstrip(".;"))


def recipe_reference() -> str:
    """The page of every section and key of a recipe, and of one of `taftcache teach`."""
    origin = (
        "Made from the program by `tools/make_docs.py`. [The guide](guide.md#a-run) shows a recipe; those of "
        "`taftcache teach` have [keys of their own](#teaching-recipes)."
    )
    taught = "A recipe of `taftcache teach`, which trains [a small model](teaching.md)."
    own, other = recipe_keys().replace("\n### [", "\n## ["), recipe_keys(TeachingRecipe)
    return "\n\n".join(["# Recipe keys", origin, own, "## Teaching recipes", taught, other]) + "\n"


def recipe_keys(recipe: type[msgspec.Struct] = Recipe) -> str:
    """Every section and key of a recipe with type, default and meaning, from the sections' docstrings.

    Sections that another kind of recipe shares with ``Recipe`` are named.
    """
    defaults, shared = recipe(), [] if recipe is Recipe else [*get_type_hints(Recipe).items()]
    lines = ["| top level | values | default | meaning |", "|---|---|---|---|"]
    sections, own, told = [], described(recipe)[1], dict[str, str]()
    for key, hint in get_type_hints(recipe, include_extras=True).items():
        if get_origin(hint) is list and isinstance(get_args(hint)[0], type):
            sections.append((f"[{key}]", get_args(hint)[0]))
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            sections.append((key, hint))
        else:
            default = _default(getattr(defaults, key))
            lines.append(f"| `{key}` | {values(hint)} | {default} | {_cell(own[key])} |")
    if named := [f"`[{section}]`" for section, struct in sections if (section, struct) in shared]:
        lines += ["", f"{' and '.join(named)} are those of any recipe, above."]
    for section, struct in (each for each in sections if each not in shared):
        summary, meanings = described(struct)
        lines += ["", f"### [{section}]", "", summary, "", "| key | values | default | meaning |", "|---|---|---|---|"]
        given = {field.name: field for field in msgspec.structs.fields(struct)}
        for key, hint in get_type_hints(struct, include_extras=True).items():
            field = given[key]
            made = field.default_factory() if callable(field.default_factory) else field.default
            default = "required" if field.required else _default(getattr(getattr(defaults, section, None), key, made))
            said = values(hint)
            for earlier, place in told.items():
                said = said.replace(earlier, f"those of `{place}`")
            if said.count('"') >= MANY:
                told[said] = f"{section}.{key}"
            lines.append(f"| `{key}` | {said} | {default} | {_cell(meanings.get(key, ''))} |")
    return "\n".join(lines)


def described(struct: type) -> tuple[str, dict[str, str]]:
    """A record's summary, and the meaning of each key that its docstring explains as ``key, key: text``."""
    text = re.sub(r"\s+", " ", (struct.__doc__ or "").strip()).replace("``", "`")
    fields = {name for name, _ in typed_fields(struct)}
    marks = [m for m in re.finditer(r"(?:^|(?<=[.;] ))(\w+(?:, \w+)*): ", text) if {*m[1].split(", ")} <= fields]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    meanings: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        meanings |= dict.fromkeys(mark[1].split(", "), text[mark.end() : end].strip())
    return text[: marks[0].start()].strip() if marks else text, meanings


def values(hint: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        meta = next((m for m in arguments[1:] if isinstance(m, msgspec.Meta)), msgspec.Meta())
        known = ((">", meta.gt), ("≥", meta.ge), ("<", meta.lt), ("≤", meta.le))
        bounds = [f"{sign} {bound}" for sign, bound in known if bound is not None and bound < NO_BOUND]
        return f"{values(arguments[0])} {' and '.join(bounds)}".strip()
    if origin is Literal:
        return ", ".join(f'"{value}"' for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(values(a) for a in arguments if a is not type(None))
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {values(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} × {values(arguments[0])}"
    if origin is list:
        return f"list of {values(arguments[0])}"
    if origin is dict or hint is dict:
        return "table"
    return {str: "text", int: "integer", float: "number", bool: "true, false"}[hint]


def recipes(folder: Path) -> str:
    """The list of recipes, from each one's leading comment."""
    lines = [
        "# Recipes",
        "",
        "`tools/make_docs.py` makes this page from the recipes' leading comments; [Recipe "
        "keys](../docs/recipe.md) explains every key. The recipes are part of the package, so they run by "
        "name: `taftcache run quickstart` (`taftcache extract teachers/digits-bundled` for teachers, "
        "`taftcache teach teach/quick` for students, and `taftcache compare paper --report figure1a` for the "
        "paper's tables and figures, with the [data] and [backbone] of any recipe). `${TAFTCACHE_DATA}` names "
        "a folder with images and weights; `taftcache extract NAME --dry-run` measures how long extraction "
        "takes. Change a value with `--set section.key=value`; divide the work of `run` among processes with "
        "`--workers N` ([when that pays](../docs/cluster.md)).",
        "",
        "| recipe | what it does | data | backbone or student |",
        "|---|---|---|---|",
    ]
    for file in sorted([*folder.glob("*.toml"), *folder.glob("*/*.toml")], key=lambda f: f.relative_to(folder).parts):
        text = file.read_text(encoding="utf-8")
        parsed = tomllib.loads(text)
        data = parsed.get("data", {})
        backbone = parsed.get("student") or parsed.get("backbone", {})
        weights = backbone.get("model") or backbone.get("weights", "bundled")
        train = data.get("train")
        source = f"{data.get('source', 'digits')}" + (f" `{train}`" if train else "")
        name = file.relative_to(folder).as_posix()
        lines.append(f"| [{name}]({name}) | {_cell(_summary(text))} | {source} | {weights} |")
    return "\n".join(lines) + "\n"


def laws(folder: Path) -> str:
    """Every law with the tests that hold it: those marked ``@pytest.mark.law("...")``, by folder."""
    held: dict[str, list[str]] = {}
    rooms: dict[str, str] = {}
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.law":
                    text = ast.literal_eval(mark.args[0])
                    name = file.relative_to(ROOT).as_posix()
                    held.setdefault(text, []).append(f"[`{node.name}`](../{name})")
                    rooms.setdefault(text, file.relative_to(folder).parts[0].removesuffix(".py").removeprefix("test_"))
    lines = ["# Laws", "", "What must always hold, and the tests that hold it; made from the tests' marks by "]
    lines[-1] += "`tools/make_docs.py`. Headings are the folders and files of `tests` that they are in."
    for room in sorted(set(rooms.values())):
        lines += ["", f"## {room}", "", "| law | held by |", "|---|---|"]
        lines += [f"| {_cell(text)} | {', '.join(tests)} |" for text, tests in held.items() if rooms[text] == room]
    return "\n".join(lines) + "\n"


def public_names() -> str:
    """The stub that tells type checkers what ``taftcache`` offers; at run time its one table does."""
    lines = ["# Made from the table in __init__.py by tools/make_docs.py.", ""]
    for module, names in sorted(vars(taftcache)["NAMES"].items()):
        lines += [f"from taftcache.{module} import {name} as {name}" for name in names.split()]
    return "\n".join([*lines, "", "__version__: str", ""])


def _summary(text: str) -> str:
    """The leading comment, without what is said once above the list."""
    return " ".join(s for s in re.split(r"(?<=\.) (?=[A-Z`])", _comment(text)) if not s.startswith(SAID_ONCE))


def _comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def _help(text: str) -> list[str]:
    """Paragraphs; an ``Example:`` line becomes a block of shell."""
    out = []
    for paragraph in (text or "").strip().split("\n\n"):
        line = " ".join(paragraph.split())
        if line.startswith("Example: "):
            out += ["```sh", line.removeprefix("Example: "), "```", ""]
        else:
            out += [line, ""]
    return out


def _parameters(command: Any) -> list[tuple[str, str]]:
    """Spelling and meaning of each argument and option."""
    hints = get_type_hints(command.callback)
    return [(_spelling(p, choices(hints.get(p.name))), _meaning(p)) for p in command.params]


def _spelling(parameter: Any, allowed: list[Any]) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_cell(parameter.metavar or parameter.name.upper())}`"
    shown = "|".join(allowed) or parameter.metavar or parameter.opts[0].strip("-").upper()
    metavar = "" if parameter.is_flag else f" {_cell(shown)}"
    return f"`{', '.join([*parameter.opts, *parameter.secondary_opts])}{metavar}`"


def _meaning(parameter: Any) -> str:
    text = _cell(parameter.help or "")
    if parameter.param_type_name == "argument":
        return text
    notes = ["required"] if parameter.required else []
    if parameter.secondary_opts:
        notes.append(f"default `{(parameter.opts if parameter.default else parameter.secondary_opts)[0]}`")
    elif parameter.default is not None and not parameter.is_flag and not parameter.required:
        notes.append(f"default `{parameter.default}`")
    return text + (f" ({', '.join(notes)})" if notes else "")


def _error_tree(error: type[errors.TaftcacheError]) -> list[type[errors.TaftcacheError]]:
    return [error, *(below for child in error.__subclasses__() for below in _error_tree(child))]


def _first(thing: type) -> str:
    return _cell((thing.__doc__ or "").split("\n")[0].replace("``", "`"))


def _default(value: Any) -> str:
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the pages, compare them, or show the demo's output anew."""
    if "--output" in arguments:
        readme = ROOT / "README.md"
        readme.write_text(
            between(readme.read_text(encoding="utf-8"), demo_output(), SHOWN, SHOWN_END), encoding="utf-8"
        )
        return 0
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)}; write it anew with make docs", file=sys.stderr)
        return 1 if stale else 0
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    print(f"written: {', '.join(str(path.relative_to(ROOT)) for path in stale) or 'nothing was out of date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
