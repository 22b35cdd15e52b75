"""Imports point one way, and every outside library has one home."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.test_house.imports import (
    HOMES,
    LATE,
    LIGHT,
    MAY_IMPORT,
    PACKAGE,
    arrows,
    breaches,
    circles,
    imported_libraries,
    late_imports,
    module_name,
    room_of,
)

FILES = sorted(PACKAGE.rglob("*.py"))


folders = pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=lambda folder: folder.name)


def found_in(folder, look):
    """Module → what ``look`` finds in its text, where it finds something."""
    found = {m: look(m, f.read_text(encoding="utf-8")) for f in folder.glob("*.py") for m in [module_name(f)]}
    return {module: wrong for module, wrong in found.items() if wrong}


@pytest.mark.law("Imports point one way; each outside library has one home")
@folders
def test_a_module_imports_only_what_lies_below_it(folder):
    assert found_in(folder, breaches) == {}


@folders
def test_imports_stand_at_the_top(folder):
    assert found_in(folder, late_imports) == {}


def test_a_late_import_is_seen():
    assert late_imports("objective.rsl", "def f():\n    import torch")
    assert not late_imports("cli.models", "def f():\n    import torch")
    assert all(any((PACKAGE / f"{place.replace('.', '/')}{end}").exists() for end in (".py", "")) for place in LATE)


def test_no_files_import_each_other_in_a_circle():
    assert circles(arrows()) == []


def test_a_circle_is_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"e2"}, "e2": set()}) == [["a", "b", "c"]]


def table():
    """The map in ARCHITECTURE.md: the rooms of each row, and the outside libraries that it names."""
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|.*\|(.*)\|$", page, re.MULTILINE)
    return [
        (re.findall(r"\w[\w.]*", re.sub("/(?=\\w)", ".", rooms)), set(re.findall(r"[\w-]+", last)))
        for rooms, last in rows
    ]


def row_of(room, rows):
    """The number of the row that has a room, or the nearest folder around it."""
    within = {n: max((len(r) for r in rooms if f"{room}.".startswith(f"{r}.")), default=0) for n, (rooms, _) in rows}
    assert any(within.values()), f"{room} is not in ARCHITECTURE.md"
    return max(within, key=within.__getitem__)


def test_the_map_has_the_rooms_in_the_order_of_imports():
    rows = list(enumerate(table()))
    low = [
        f"{room} imports {other}, which stands below it in ARCHITECTURE.md"
        for room, allowed in MAY_IMPORT.items()
        for other in allowed & MAY_IMPORT.keys()
        if room != "__main__" and row_of(other, rows) > row_of(room, rows)
        if not (f"{other}.".startswith(f"{room}.") or f"{room}.".startswith(f"{other}."))
    ]
    assert low == []


def test_the_map_names_the_libraries_of_each_room():
    called = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting", "distributed": "dask", "onnxruntime": "onnx"}
    rows = list(enumerate(table()))
    known = {called.get(name, name) for name in HOMES}
    used = [set() for _ in rows]
    for file in FILES:
        if (room := room_of(module_name(file))) in MAY_IMPORT and room != "__main__":
            found = imported_libraries(file.read_text(encoding="utf-8")) & HOMES.keys()
            used[row_of(room, rows)] |= {called.get(name, name) for name in found}
    assert [named & known for _, (_, named) in rows] == used


def test_every_folder_has_its_row():
    folders = {module_name(file) for file in PACKAGE.rglob("__init__.py")} - {""}
    files = {module_name(file) for file in PACKAGE.glob("*.py")} - {""}
    assert folders | files == MAY_IMPORT.keys()


@pytest.mark.parametrize("folder", sorted({room_of(module_name(file)) for file in FILES} - {""}))
def test_a_folder_shows_one_idea_at_a_glance(folder):
    """About a dozen files; a reader who opens it sees what it is for."""
    place = PACKAGE / folder.replace(".", "/")
    assert len([file for file in place.glob("*.py") if file.name != "__init__.py"]) <= 14


@pytest.mark.law("Nothing that can run code is ever read: no pickle, no `torch.load`, no `eval`")
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("tangent.operator", "from taftcache.cache.store import FeatureStore"),
        ("cache.store", "from taftcache.tangent.rows import Block"),
        ("cache.store", "import torch"),
        ("cache.store", "def f():\n    from taftcache.recipe import Recipe"),
        ("errors", "import taftcache.cache"),
        ("objective.rsl", "from taftcache.solve.methods.conjugate import pcg"),
        ("solve.minimise", "from taftcache.stages.progress import Progress"),
        ("recipe", "from taftcache.backbone.model import load_backbone"),
        ("backbone.cut", "from taftcache.model.component import TAIL"),
        ("terminal", "from taftcache.cli import app"),
        ("stages.run", "from rich.table import Table"),
        ("stages.run", "import typer"),
        ("stages.extract.extraction", "import timm"),
        ("stages.extract.extraction", "from taftcache.remote.rows import RemoteRows"),
        ("stages.extract.filling", "from taftcache.stages.files.exchange import import_"),
        ("stages.extract.extraction", "from taftcache.stages.train.training import train"),
        ("stages.extract.plan", "from taftcache.solve.minimise import minimise"),
        ("stages.files.exchange", "from taftcache.stages.forget.forgetting import forget"),
        ("stages.files.exchange", "from taftcache.cli.stores import import_"),
        ("stages.files.exchange", "import h5py"),
        ("stages.files.copying", "import pyarrow"),
        ("stages.executor", "from taftcache.remote.cluster import Cluster"),
        ("stages.look.scoring", "from taftcache.stages.forget.request import Request"),
        ("stages.train.training", "from taftcache.stages.look.scoring import Scorer"),
        ("stages.train.composing", "from taftcache.stages.forget.planning import ForgetPlan"),
        ("stages.audit.auditing", "from taftcache.stages.files.exchange import export"),
        ("cache.write.writer", "from taftcache.cache.store import FeatureStore"),
        ("view.atlas", "from taftcache.solve.minimise import minimise"),
        ("backbone.model", "from sklearn.datasets import load_digits"),
        ("model.component", "import zarr"),
        ("cache.store", "from . import plan"),
        ("cache.store", "import pickle"),
        ("model.component", "import torch\ntorch.load('x')"),
        ("model.component", "from torch import load"),
        ("cache.shard", "import numpy as np\nnp.load('x', allow_pickle=True)"),
        ("recipe", "eval('1')"),
        ("elsewhere", ""),
    ],
)
def test_a_breach_is_seen(module, line):
    assert breaches(module, line)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("cache.store", "from taftcache.cache.format.plan import assign\nimport zarr"),
        ("recipe", "from taftcache.backbone.spec import DataSpec"),
        ("stages.train.training", "from taftcache.solve.minimise import minimise"),
        ("backbone.sources.digits", "from sklearn.datasets import load_digits"),
        ("cache.shard", "np.load('x', allow_pickle=False)"),
    ],
)
def test_what_is_allowed_is_no_breach(module, line):
    assert breaches(module, line) == []


@pytest.mark.law("A recipe, `--help` and `import taftcache` load neither torch nor timm nor zarr")
def test_light_modules_load_no_heavy_library():
    """One after another in one process: the first that loads one is named."""
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
        "    print(name, *{'torch', 'timm', 'zarr', 'h5py', 'sklearn'} & set(sys.modules))"
    )
    modules = ["taftcache", *(f"taftcache.{name}" for name in LIGHT)]
    assert run_python("-c", code, *modules).stdout.splitlines() == modules


def test_what_solves_and_forgets_and_an_audit_loads_no_timm():
    """timm and torchvision take as long to start as torch."""
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
        "    print(name, *{'timm', 'torchvision', 'zarr', 'h5py', 'sklearn'} & set(sys.modules))"
    )
    code += "\nimport taftcache.stages.audit.auditing\nprint('audit', *{'timm', 'torchvision'} & set(sys.modules))"
    rooms = ("train.training", "train.composing", "look.evaluation", "forget.forgetting")
    modules = [f"taftcache.stages.{name}" for name in rooms]
    assert run_python("-c", code, *modules).stdout.splitlines() == [*modules, "audit"]


def test_help_loads_no_torch():
    code = (
        "import sys\nfrom taftcache.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit as end:\n"
        "    heavy = {'torch', 'timm', 'zarr', 'h5py', 'sklearn'} & set(sys.modules)\n"
        "    print('ended', end.code, *heavy)"
    )
    assert run_python("-c", code).stdout.splitlines()[-1].split() == ["ended", "0"]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)


def test_paths_are_followed_without_an_error_of_their_own():
    """Path's own ways raise RuntimeError for links in a circle and for a user who is not there; os.path's do not."""
    own = re.compile(r"\.(expanduser|resolve)\(\)")
    assert [file.name for file in FILES if own.search(file.read_text(encoding="utf-8"))] == []
