"""The site of all pages: nothing is left out of it, its notebooks are those that ran, and it needs no network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
import yaml

import taftcache
from tests.test_house.pages import PAGES, ROOT, links, load_tool

CONFIG = ROOT / "tools/site/mkdocs.yml"
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# Whatever a browser fetches by itself: sources, styles, fonts; a link that is clicked is none of it.
FETCHED = (
    r"<(?:script|img|iframe|source|embed|use)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\">\s]+)",
    r"<link\b(?![^>]*rel=\"?canonical)[^>]*href=\"?((?:https?:)?//[^\">\s]+)",
    r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')\s]+)",
)


def test_every_page_is_in_the_navigation():
    named = Counter(_places(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]))
    pages = {page.relative_to(ROOT).as_posix() for page in [*PAGES, ROOT / "stores/FORMAT.md"]}
    notebooks = {file.with_suffix(".md").relative_to(ROOT).as_posix() for file in NOTEBOOKS}
    assert named == Counter(pages | notebooks | {"API"})


def test_every_public_name_is_in_the_reference():
    reference = load_tool("site/reference")
    named = Counter(name for area in reference.AREAS for name in area.names.split())
    returned = {report.__name__ for name in named for report in reference._returned(getattr(taftcache, name))}
    assert named == Counter(set(taftcache.__all__) - {"__version__"} - returned)
    pages = "\n".join(reference.reference_pages().values())
    shown = re.findall(r"^::: (taftcache[\w.]+)$", pages, re.MULTILINE)
    assert {f"taftcache.{module}.{name}" for module, names in taftcache.NAMES.items() for name in names.split()} <= {
        *shown
    }
    assert "taftcache.stages.look.evaluation.EvaluateReport" in shown, "what a verb returns stands below it"


def test_fields_of_a_record_are_spelt_out():
    pytest.importorskip("griffe")
    text = 'What it is.\n\nkind: "a" or "b",\n    as it likes. low, high: bounds of it; note: this stays.'
    parts = load_tool("site/fields").spelt_out(text, {"kind", "low", "high"}).split("\n\n")
    assert parts[0] == "What it is."
    assert parts[1].splitlines() == [
        "Attributes:",
        '    kind: "a" or "b", as it likes.',
        "    low: bounds of it; note: this stays.",
        "    high: bounds of it; note: this stays.",
    ]


@pytest.mark.law("A committed notebook shows what the code beside it printed, and nothing of the machine it ran on")
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_the_one_that_ran(file):
    tool, text = load_tool("make_notebooks"), file.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert notebook["metadata"] == tool.metadata(notebook), "python tools/make_notebooks.py runs it anew"
    assert notebook["cells"] == [tool.cleaned(cell) for cell in notebook["cells"]]
    assert all(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    printed = json.dumps([cell.get("outputs") for cell in notebook["cells"]], ensure_ascii=False)
    assert not re.search(r"(?<![\w<])/(?:\w+/)+|\bseconds\b|error", printed)
    pages = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert not {link for link in links(pages) if not (file.parent / link).exists()}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file, tmp_path):
    """Each cell twice in a row, and then the whole once more, where the first run left its store."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    tool, notebook = load_tool("make_notebooks"), json.loads(file.read_text(encoding="utf-8"))
    cells = [cell for cell in tool.run(tool.doubled(notebook), tmp_path)["cells"] if not cell["id"].endswith("-again")]
    assert [_shown(cell) for cell in cells] == [_shown(cell) for cell in notebook["cells"]]
    tool.run(notebook, tmp_path)


@pytest.mark.law("The built documentation has no dead link and loads nothing from elsewhere")
@pytest.mark.full
@pytest.mark.slow
def test_the_site_is_built_and_needs_no_network(tmp_path):
    for name in ("material", "mkdocstrings", "math_core", "ziamath"):
        pytest.importorskip(name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIG)]
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path)], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = {
        file.relative_to(tmp_path).as_posix(): file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.html")
    }
    styles = [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.css")]
    fetched = {found for text in [*pages.values(), *styles] for form in FETCHED for found in re.findall(form, text)}
    assert not fetched
    assert "<math" in pages["docs/mathematics.html"]
    assert not [name for name, text in pages.items() if 'class="arithmatex"' in text]
    assert "auto|cpu|cuda|mps" in pages["docs/cli.html"]
    assert "<svg" in pages["docs/notebooks/quickstart.html"]
    reference = "".join(text for name, text in pages.items() if name.startswith("docs/api/"))
    for module, names in taftcache.NAMES.items():
        assert all(f'id="taftcache.{module}.{name}"' in reference for name in names.split()), module


def _places(nav):
    if isinstance(nav, str):
        return [nav]
    return [place for part in (nav.values() if isinstance(nav, dict) else nav) for place in _places(part)]


def _shown(cell):
    """What a cell shows on any machine: figures, and so verdicts, differ with its arithmetic."""
    outputs = json.dumps(cell.get("outputs"), ensure_ascii=False, sort_keys=True)
    return re.sub(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?|within noise|ahead|behind", "#", outputs)
