"""The public face: what ``taftcache`` offers, and that no name changes its meaning with the order of imports."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

import taftcache
from taftcache import errors
from tests.test_house.imports import module_name

PACKAGE = Path(taftcache.__file__).parent
VERBS = sorted(name for name in taftcache.__all__ if name.islower() and not name.startswith("_"))


@pytest.mark.parametrize("name", taftcache.__all__)
def test_a_public_name_resolves(name):
    thing = getattr(taftcache, name)
    assert getattr(thing, "__name__", name).split(".")[-1] == name
    assert isinstance(thing, str) or inspect.getdoc(thing)


def test_verbs_call_the_same_thing_the_same():
    """A store was ``path`` to some of them, and a dry run ``dry``."""
    taken = {verb: list(inspect.signature(getattr(taftcache, verb)).parameters) for verb in VERBS}
    assert {v for v, names in taken.items() if names[0] == "path"} == {"load_recipe", "load_teaching"}
    assert not any("dry" in names for names in taken.values())


def test_public_names_are_listed_once_and_no_other():
    assert len(set(taftcache.__all__)) == len(taftcache.__all__)
    assert dir(taftcache) == sorted(taftcache.__all__)
    namespace: dict[str, object] = {}
    exec("from taftcache import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(taftcache.__all__)


@pytest.mark.law("What a public function is called with after what it works on has to be named")
@pytest.mark.parametrize("verb", VERBS)
def test_only_what_a_verb_works_on_may_be_left_unnamed(verb):
    given = inspect.signature(getattr(taftcache, verb)).parameters.values()
    unnamed = [p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert not {"progress", "cluster", "consent"} & {p.name for p in unnamed}
    assert not [p.name for p in unnamed if isinstance(p.default, bool | int | float)]
    assert len(unnamed) <= (5 if verb == "make_base" else 3)


@pytest.mark.law("What a public function returns, and the records in it, can be imported from ``taftcache``, too")
def test_what_a_verb_returns_is_public():
    own: set[type] = set()
    for verb in VERBS:
        _gather(get_type_hints(getattr(taftcache, verb))["return"], own)
    inner = {of for of in own if of.__module__.startswith(("taftcache.paper.", "taftcache.tangent."))}
    assert {of.__name__ for of in own - inner} <= set(taftcache.__all__)
    assert len(own) > 60


@pytest.mark.parametrize(
    ("record", "field"),
    [("Sample", "role"), ("ForgetReport", "mode"), ("Receipt", "mode"), ("Receipt", "signature"), ("Finding", "kind"),
     ("QueryInfluence", "method"), ("ExportReport", "format"), ("Answer", "state")],
)  # fmt: skip
def test_what_has_few_values_says_which(record, field):
    """A comparison with a word that it never is passes no type checker."""
    hint = get_type_hints(getattr(taftcache, record))[field]
    assert {get_origin(part) for part in (get_args(hint) if get_origin(hint) is Union else [hint])} == {Literal}


def _gather(hint, found):
    """The package's own classes in a type, and in the fields of those that are records."""
    for part in get_args(hint):
        _gather(part, found)
    if getattr(hint, "__module__", "").startswith("taftcache.") and inspect.isclass(hint) and hint not in found:
        found.add(hint)
        if dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct):
            for field in get_type_hints(hint).values():
                _gather(field, found)


def test_every_error_is_public():
    tree = {name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)}
    assert tree <= set(taftcache.__all__)
    assert all(f" {name} " in errors.__doc__ for name in tree)


def test_no_public_name_is_also_a_module():
    modules = {module.name for module in pkgutil.iter_modules(taftcache.__path__)}
    assert not modules & set(taftcache.__all__)


def test_a_folder_offers_nothing_by_itself():
    """Names are imported from the file that defines them, so a name has one address."""
    for file in PACKAGE.rglob("*/__init__.py"):
        if file.parent.name != "cli":
            (only,) = ast.parse(file.read_text(encoding="utf-8")).body
            assert isinstance(only, ast.Expr), f"{file.parent.name}/__init__.py holds more than a sentence"


def test_no_two_public_classes_share_a_name():
    homes: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module_name(file))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = taftcache.nothing_like_it


@pytest.mark.law("A public name means the same whatever was imported first")
@pytest.mark.parametrize(
    "first",
    [
        "taftcache.model.composition",
        "taftcache.backbone.forward.extract",
        "taftcache.stages.train.training",
        "taftcache.cli",
    ],
)
def test_names_mean_the_same_whatever_was_imported_first(first, anew):
    import_module(first)
    public = import_module("taftcache")
    assert public is not taftcache
    assert all(isinstance(getattr(public, verb), FunctionType) for verb in VERBS)
    namespace: dict[str, object] = {}
    exec(f"from taftcache import {', '.join(VERBS)}", namespace)
    assert namespace["compose"] is import_module("taftcache.stages.train.composing").compose
    assert all(namespace[verb] is getattr(public, verb) for verb in VERBS)


@pytest.fixture
def anew() -> Iterator[None]:
    """The package as if nobody had imported any of it; what it imports from elsewhere stays loaded."""

    def take() -> dict[str, ModuleType]:
        own = [name for name in sys.modules if name.partition(".")[0] == "taftcache"]
        return {name: sys.modules.pop(name) for name in own}

    before = take()
    yield
    take()
    sys.modules.update(before)


SCRIPTS = sorted(path for folder in ("benchmarks", "tools") for path in (PACKAGE.parent / folder).rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_import_what_there_is(script):
    """Benchmarks take minutes and run in no test: at least their imports do."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taftcache"):
            module = import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{script.name}:{node.lineno}"
