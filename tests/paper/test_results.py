"""The page of results: one command makes the reports and the page, and a second one trains nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import taftcache
from taftcache.paper.comparison import Figures
from taftcache.paper.line import ReportLine
from taftcache.paper.pages import plot
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
    """The tool, with a place of its own for the pages, and recipes that end in seconds."""
    spec = importlib.util.spec_from_file_location("make_results", TOOL)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    tiny = toml(tmp_path / "tiny.toml", tmp_path / "store", solver={"tolerance": 5e-3, "max_passes": 10}, compare=TINY)
    monkeypatch.setattr(made, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(made, "MAIN", "store")
    monkeypatch.setattr(made, "GROUPS", {"single": (tiny, ("figure2b",)), "composed": (tiny, ("table2",))})
    return made


@pytest.mark.law("The page of results is made by one command, which goes on where it was and trains nothing twice")
def test_one_command_makes_reports_and_page(maker, tmp_path, monkeypatch):
    taftcache.extract(recipe(tmp_path / "store"))
    page, files, place = maker.DOCS / "results.md", maker.DOCS / "results" / "store", str(tmp_path / "made")
    maker.main(["--run", place, "--only", "single"])
    text = page.read_text(encoding="utf-8")
    assert "## Figure 2b" in text
    assert "Not run for this page: table1, table2" in text
    maker.main(["--run", place, "--only", "composed"])
    text = page.read_text(encoding="utf-8")
    for said in ("## Figure 2b", "## Table 2", "The exact model of all rows above the mean of 2", "**figure2b**"):
        assert said in text
    assert "`taftcache compare tiny --report table2 -o FOLDER`" in text
    assert not (maker.DOCS / "results-elsewhere.md").exists()
    names = {"figure2b.json", "figure2b.csv", "figure2b.svg", "table2.json", "table2.csv"}
    assert {file.name for file in files.iterdir()} == names
    monkeypatch.setattr(Trial, "fit", None)  # all models are there
    maker.main(["--run", place])
    plot = (files / "figure2b.svg").read_bytes()
    (files / "figure2b.svg").write_text("of an earlier release")
    maker.main([])
    assert (files / "figure2b.svg").read_bytes() == plot  # drawn from what is kept
    assert page.read_text(encoding="utf-8").partition("## Where it ran")[0] == text.partition("## Where it ran")[0]
    monkeypatch.setattr(maker, "MAIN", "other")
    maker.main([])
    other = maker.DOCS / "results-elsewhere.md"
    text = other.read_text(encoding="utf-8")
    for said in ("## store", "### Table 2", "| The exact model of all rows above the mean of 2", "store/table2.csv"):
        assert said in text
    with pytest.raises(SystemExit, match=r"results\.md is not what the kept reports make"):
        maker.main(["--check"])
    page.unlink()  # of whose reports none is kept any more
    maker.main(["--check"])
    other.write_text(text.replace("holds", "does not").replace("noise", "none"), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"elsewhere\.md is not what the kept reports make"):
        maker.main(["--check"])


def test_a_page_shows_some_of_many_lines():
    def line(**keys):
        return ReportLine(method="TAFT", preset="exact", accuracy=90.0, std=0.0, **keys)

    some = load_tool("make_results").some
    removed = [line(shards=s, removed=k) for s in (10, 25) for k in range(0, s, 2)]
    assert [(x.shards, x.removed) for x in some(removed)] == [
        (10, 0),
        (10, 6),
        (25, 0),
        (25, 6),
        (25, 12),
        (25, 18),
        (25, 24),
    ]
    forgotten = [line(shards=10, forgotten=f) for f in (0.0, 0.1, 0.25, 0.5)]
    assert [x.forgotten for x in some(forgotten)] == [0.1, 0.5]
    alone = [line(), line(shards=10)]
    assert some(alone) == alone


def test_the_page_counts_the_lines_that_took_the_larger_rate():
    rates = load_tool("make_results").rates

    def line(method, end, preset="paper"):
        return ReportLine(method=method, preset=preset, accuracy=90.0, std=0.0, end=end)

    made = {
        "table1": [line("TAFT-1", "largest rate"), line("TAFT-1", "least λ", "exact"), line("FC", None)],
        "figure2a": [line("CE", "least rate")],
    }
    assert "Of the 2 lines of the preset `paper` here, 1 took the larger" in rates(made)
    assert "(not CE in Figure 2a)" in rates(made)
    made["figure2a"] = [line("CE", "largest rate")]
    assert "2 took the larger of the paper's two rates, while" in rates(made)
    assert rates({"table1": [line("TAFT-1", "least λ", "exact")]}) == ""


def test_a_plot_marks_lines_that_stopped_early(tmp_path):
    solved, stopped = (
        ReportLine(
            method=loss,
            preset="exact",
            accuracy=90.0,
            std=0.0,
            shards=2,
            forgotten=0.1,
            from_scratch=90.0,
            converged=ok,
        )
        for loss, ok in (("RSL", True), ("CE", False))
    )
    for report, names in (("figure2a", {"RSL, exact", "CE, exact*"}), ("figure1c", {"2 shards, exact*"})):
        made = Figures(report=report, title="a title", lines=[solved, stopped], settings=[], seconds=1.0)
        (file,) = plot(made, tmp_path)
        text = file.read_text(encoding="utf-8")
        assert all(f">{said}<" in text for said in names), text
        assert "(*: stopped early)" in text


@pytest.mark.law("Measured pages are what the kept reports make, and reports say when and where they were measured")
def test_the_pages_are_what_their_reports_make():
    load_tool("make_results").main(["--check"])


@pytest.mark.parametrize("words", [["--only", "single"], ["--run", "a", "b"], ["--run", "--check"], ["--check", "a"]])
def test_what_it_cannot_do_it_refuses(maker, words, capsys):
    with pytest.raises(SystemExit):
        maker.main(words)
    assert "usage" in capsys.readouterr().err


def test_an_older_report_tells_what_it_knows():
    """Above the recipe's own tolerance no solve can have met its own."""
    tool = load_tool("make_results")
    (found,) = [run for run in tool.kept()["digits"] for made in run.reports if made.report == "table7"]
    (made,) = [made for made in found.reports if made.report == "table7"]
    lines = {(line.method, line.preset, line.radius): line for line in made.lines}
    assert lines["CE", "exact", 10.0].stopped
    assert lines["CE", "exact", 1.0].converged is None
    (table,) = [made for made in found.reports if made.report == "table2"]
    ends = {line.end for line in table.lines if line.preset == "paper"}
    assert ends == {"largest rate"}
