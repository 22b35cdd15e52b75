"""The pages say what is so: their blocks run, their links lead somewhere, generated parts are current."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from typing import get_type_hints

import pytest
from typer.main import get_command

from taftcache import load_recipe
from taftcache.cli import app
from taftcache.errors import RecipeError
from taftcache.expected import choices
from taftcache.privacy.spec import PrivacySpec
from taftcache.recipe import Recipe
from taftcache.recipe_sections import SolverSpec
from taftcache.teaching.recipe import TeachingRecipe, load_teaching
from tests.test_house.pages import PAGES, ROOT, BlockOf, blocks, links, load_tool, try_block
from tests.test_house.workplace import made, quick_pages, workplace  # noqa: F401


def _text(name):
    return (ROOT / name).read_text(encoding="utf-8")


NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.law("Documentation is current: blocks run, links lead somewhere, this table names tests that exist")
@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.full) if n == "docs/cluster.md" else n  # a minute of starting workers
        for n in NAMES
        if {b.language for b in blocks(_text(n))} - {"text"}
    ],
)
def test_blocks_run(name, capsys):
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(_text(name)):
        try_block(block, ROOT / name, namespace)


def test_what_is_built_has_the_version_that_is_written_down():
    """A checkout called itself 0.1.0, whose stores it cannot train, beside golden stores by 0.2.0."""
    version = tomllib.loads(_text("pyproject.toml"))["project"]["version"]
    assert re.findall("^## (\\S+)", _text("CHANGELOG.md"), re.MULTILINE)[0] == version
    golden = [store.name.rpartition("-by-")[2] for store in (ROOT / "stores/golden").glob("*-by-*")]
    numbers = [[int(part) for part in text.split(".")] for text in [*golden, version]]
    assert max(numbers) == numbers[-1]


def test_the_guide_lists_the_extras():
    extras = tomllib.loads(_text("pyproject.toml"))["project"]["optional-dependencies"]
    (listed,) = (line for line in _text("docs/guide.md").splitlines() if line.startswith("Optional features are"))
    assert re.findall(r"`(\w+)`", listed) == sorted(extras.keys() - {"bench", "dev", "docs"})


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "import taftcache\ntaftcache.nothing_like_it"),
        ("sh", "taftcache inspect stores/not-there"),
        ("sh", "taftcache dance"),
        ("sh", "make dance"),
        ("sh", "rm -r stores"),
        ("sh", "python tools/not_there.py"),
        ("toml", "[solver]\ntolerence = 1e-3"),
        ("yaml", "a: 1"),
    ],
)
def test_a_wrong_block_is_seen(language, text, capsys):
    with pytest.raises((AttributeError, AssertionError, RecipeError, pytest.fail.Exception)):
        try_block(BlockOf(language, text, 1), ROOT / "README.md", {})


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    missing = {link for link in links(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()}
    assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_no_two_pictures_of_a_page_are_told_alike(name):
    """Three figures of three numbers of shards had one text."""
    told = re.findall(r"!\[([^\]]*)\]\(", _text(name))
    assert len(told) == len(set(told))


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "stores/README.md"])
def test_tests_that_a_page_names_exist(name):
    text = _text(name)
    for file, test in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", text):
        assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8") if test else (ROOT / file).is_file()


def test_generated_pages_are_current():
    maker = load_tool("make_docs")
    for path, text in maker.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: make docs"


def test_options_name_their_values_and_what_turns_them_off():
    """``--workers <int range>``, and no word of ``--no-browser``."""
    page = _text("docs/cli.md")
    for name, command in get_command(app).commands.items():
        hints = get_type_hints(command.callback)
        for option in (p for p in command.params if p.param_type_name == "option"):
            named = option.is_flag or option.metavar or choices(hints[option.name])
            assert named, f"{name} {option.opts[0]} has no metavar"
            assert all(off in page for off in option.secondary_opts)


def test_a_command_names_all_that_it_takes():
    """Options of many commands are explained once, and stand in each one's last line."""
    commands = dict(re.findall(r"^### taftcache (\S+)\n(.*?)(?=^##)", _text("docs/cli.md"), re.MULTILINE | re.DOTALL))
    for name, command in get_command(app).commands.items():
        taken = {p.opts[-1] if p.param_type_name == "option" else p.metavar for p in command.params}
        assert not [word for word in taken if word and word.replace("|", "\\|") not in commands[name]], name


def test_every_command_that_prints_json_is_on_its_page():
    """Its fields stood nowhere but in a test."""
    commands = get_command(app).commands.items()
    asked = {name for name, command in commands if any("--json" in option.opts for option in command.params)}
    assert set(re.findall(r"^## ([a-z-]+)$", _text("docs/json.md"), re.MULTILINE)) == asked


def test_every_field_of_a_report_has_its_meaning():
    maker = load_tool("make_docs")
    lines = [line for line in _text("docs/json.md").splitlines() if line.startswith("- ")]
    assert [line for line in lines if not line.partition(": ")[2].strip()] == []
    for report in {report for some in maker.reports().values() for report in some}:
        named = re.findall(r"`(\w+)`", " ".join(line.partition(" (")[0] for line in maker.fields_of(report)))
        assert sorted(named) == sorted(get_type_hints(report)), report.__name__


@pytest.mark.parametrize("recipe", [Recipe, TeachingRecipe])
def test_every_key_of_a_recipe_is_listed_with_its_meaning(recipe):
    text = load_tool("make_docs").recipe_keys(recipe)
    rows = re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", text, re.MULTILINE)
    assert len(rows) > 30
    keys = {key for key, _ in rows}
    assert keys >= {"name", "device", "seeds"}
    assert ("train" in keys) == (recipe is Recipe), "[data] stands in docs/recipe.md alone"
    assert [key for key, meaning in rows if not meaning.strip()] == []


def test_a_key_is_listed_with_both_its_bounds():
    values = load_tool("make_docs").values
    assert values(get_type_hints(SolverSpec, include_extras=True)["tolerance"]).startswith("number > 0 and < 1 or ")
    assert values(get_type_hints(PrivacySpec, include_extras=True)["steps"]) == "integer ≥ 1 and ≤ 1000000"
    assert values(get_type_hints(PrivacySpec, include_extras=True)["clip"]) == "number ≥ 1e-100"


@pytest.mark.parametrize("file", sorted((ROOT / "pipelines").rglob("*.toml")), ids=lambda file: file.name)
def test_recipes(file):
    recipe = load_teaching(file) if file.parent.name == "teach" else load_recipe(file)
    assert recipe.name == file.stem or "name" in tomllib.loads(file.read_text(encoding="utf-8"))
    assert file.read_text(encoding="utf-8").startswith("# "), "a recipe begins with a comment that says what it is for"


def test_the_readme_shows_the_main_jobs_output():
    readme = _text("README.md")
    _, _, rest = readme.partition("<!-- output:quickstart -->")
    shown, end, _ = rest.partition("<!-- /output:quickstart -->")
    assert end
    (block,) = blocks(shown)
    assert block.language == "text"
    assert all(
        word in block.text for word in ("held-out", "model of all rows", "probe", "forgotten now", "held-out accuracy")
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_unfit_python_is_refused_in_words(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = subprocess.run(["make", "demo", "PYTHON=false"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stdout
    assert not (tmp_path / ".venv").exists()
