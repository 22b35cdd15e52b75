"""The page of results: one command makes the reports and the page, and a second one trains nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import taftcache
from taftcache.paper.trial import Trial
from tests.stages.making import recipe, toml
from tests.test_house.pages import load_tool

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_results.py"
TINY = {
    "shards": [2], "seeds": 1, "epochs": 1, "ridges": [1e-1], "head_ridges": [1e-1], "rates": [1e-2], "orders": 2,
    "forgotten": [0.5], "resets": [False], "tokens": [False],
}  # fmt: skip


@pytest.fixture
def maker(tmp_path, monkeypatch):
    """The tool, with a place of its own for the page."""
    spec = importlib.util.spec_from_file_location("make_results", TOOL)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(made, "PAGE", tmp_path / "docs" / "results.md")
    monkeypatch.setattr(made, "FILES", tmp_path / "docs" / "results")
    monkeypatch.setattr(made, "ELSEWHERE", tmp_path / "docs" / "elsewhere.md")
    monkeypatch.setattr(made, "GROUPS", {"single": ("figure2b",), "composed": ("table2",)})
    return made


@pytest.mark.law("The page of results is made by one command, which goes on where it was and trains nothing twice")
def test_one_command_makes_reports_and_page(maker, tmp_path, monkeypatch, capsys):
    taftcache.extract(recipe(tmp_path / "store"))
    solver = {"tolerance": 5e-3, "max_passes": 10}
    asked = ["--recipe", str(toml(tmp_path / "tiny.toml", tmp_path / "store", solver=solver, compare=TINY))]
    maker.main(["--run", str(tmp_path / "made"), "--only", "single", *asked])
    text = maker.PAGE.read_text()
    assert "## Figure 2b" in text
    assert "Not run for this page: table1, table2" in text
    maker.main(["--run", str(tmp_path / "made"), *asked])
    text = maker.PAGE.read_text()
    for said in ("## Figure 2b", "## Table 2", "The exact model of all rows above the mean of 2"):
        assert said in text
    assert {file.name for file in maker.FILES.iterdir()} == {
        "figure2b.csv", "table2.csv", "figure2b.svg",
    }  # fmt: skip
    monkeypatch.setattr(Trial, "fit", None)  # all models are there
    maker.main(["--run", str(tmp_path / "made"), *asked])
    plots = {file: file.read_bytes() for file in maker.FILES.glob("*.svg")}
    for file in plots:
        (tmp_path / "made" / "single" / file.name).write_text("of an earlier release")
    maker.main([str(tmp_path / "made" / "single"), str(tmp_path / "made" / "composed")])
    assert {file: file.read_bytes() for file in plots} == plots  # drawn from report.json, not copied
    assert maker.PAGE.read_text().partition("## Where it ran")[0] == text.partition("## Where it ran")[0]
    maker.main(["--elsewhere", str(tmp_path / "made" / "composed")])
    other = maker.ELSEWHERE.read_text()
    for said in ("## store", "### Table 2", "| The exact model of all rows above the mean of 2", "store/table2.csv"):
        assert said in other
    assert (maker.FILES / "store" / "table2.csv").is_file()
    maker.main(["--elsewhere", "--check"])
    maker.ELSEWHERE.write_text(other.replace("holds", "does not").replace("noise", "none"))
    with pytest.raises(SystemExit, match=r"elsewhere\.md is not what the kept reports make"):
        maker.main(["--elsewhere", "--check"])


@pytest.mark.law("The page of results on other data is made of the reports that are kept")
def test_the_page_of_other_data_is_what_its_reports_make():
    load_tool("make_results").main(["--elsewhere", "--check"])


@pytest.mark.parametrize(
    "words", [[], ["--only", "single", "a"], ["--run", "a", "b"], ["--elsewhere", "--check", "a"], ["--check", "a"]]
)
def test_what_it_cannot_do_it_refuses(maker, words, capsys):
    with pytest.raises(SystemExit):
        maker.main(words)
    assert "usage" in capsys.readouterr().err
