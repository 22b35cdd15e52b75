"""The public face: what ``taftcache`` offers, and that no name changes its meaning with the order of imports."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import subprocess
import sys

import pytest

import taftcache
from taftcache import errors, stages

VERBS = stages.__all__


@pytest.mark.parametrize("name", taftcache.__all__)
def test_a_public_name_resolves(name):
    thing = getattr(taftcache, name)
    assert getattr(thing, "__name__", name).split(".")[-1] == name
    assert isinstance(thing, str) or inspect.getdoc(thing)


def test_public_names_are_listed_once_and_no_other():
    assert len(set(taftcache.__all__)) == len(taftcache.__all__)
    assert dir(taftcache) == sorted(taftcache.__all__)
    namespace: dict[str, object] = {}
    exec("from taftcache import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(taftcache.__all__)


def test_every_error_is_public():
    tree = {name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)}
    assert tree <= set(taftcache.__all__)
    assert all(f" {name} " in errors.__doc__ for name in tree)


@pytest.mark.parametrize("package", [taftcache, stages], ids=lambda package: package.__name__)
def test_no_public_name_is_also_a_module(package):
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)


def test_the_verbs_are_those_of_stages():
    assert sorted(VERBS) == VERBS
    assert set(VERBS) <= set(taftcache.__all__)
    assert all(inspect.isfunction(getattr(taftcache, verb)) for verb in VERBS)
    assert all(getattr(taftcache, verb) is getattr(stages, verb) for verb in VERBS)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = taftcache.nothing_like_it


@pytest.mark.parametrize(
    "first", ["taftcache.composition", "taftcache.backbone.extract", "taftcache.stages", "taftcache.cli"]
)
def test_names_mean_the_same_whatever_was_imported_first(first):
    code = (
        f"import types, {first}\nimport taftcache\n"
        f"assert all(isinstance(getattr(taftcache, v), types.FunctionType) for v in {VERBS})\n"
        f"from taftcache import {', '.join(VERBS)}\n"
        "assert compose is taftcache.stages.compose and taftcache.extract is extract"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_for_type_checkers_are_those_that_load():
    tree = ast.parse(inspect.getsource(taftcache))
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    told = {(a.name, n.module) for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert {name for name, _ in told} | {"__version__"} == set(taftcache.__all__)
    for name, module in told:
        assert module is not None
        thing = getattr(taftcache, name)
        assert getattr(sys.modules[module], name) is thing
