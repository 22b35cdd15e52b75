"""The command that measures a GPU runs at a size of nothing, and its figures become the page's tables."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("gpu", "make_gpu", "extract", "tangent")


@pytest.fixture(scope="module")
def scripts():
    """The benchmark, and the tool that writes its tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.syspath_prepend(str(ROOT / "tools"))
        yield [importlib.import_module(name) for name in NAMES[:2]]
        for name in NAMES:
            del sys.modules[name]


def written(tool, tmp_path, monkeypatch, report) -> str:
    """docs/gpu.md after the tool."""
    (tmp_path / "report.json").write_text(json.dumps(report))
    (tmp_path / "docs").mkdir(exist_ok=True)
    (tmp_path / "docs/gpu.md").write_text("before\n\n<!-- gpu -->\n\nold\n\n<!-- /gpu -->\n\nafter\n")
    monkeypatch.setattr(tool.marked, "ROOT", tmp_path)
    tool.main([str(tmp_path / "report.json")])
    return (tmp_path / "docs/gpu.md").read_text()


@pytest.mark.parametrize(
    "part", ["product", *(pytest.param(p, marks=pytest.mark.full) for p in ("agreement", "extract", "whole"))]
)
def test_each_part_runs_and_is_written(scripts, part, tmp_path, monkeypatch, capsys):
    benchmark, tool = scripts
    report = benchmark.main(["--quick", "--device", "cpu", "--part", part, "--json", "--scratch", str(tmp_path)])
    assert json.loads(capsys.readouterr().out) == report
    found = report["parts"][part]
    assert "error" not in found
    if part == "agreement":
        assert all(of["holds"] for of in found.values() if isinstance(of, dict) and "holds" in of)
    with pytest.raises(SystemExit, match="quick"):
        written(tool, tmp_path, monkeypatch, report)
    text = written(tool, tmp_path, monkeypatch, {**report, "quick": False})
    assert "\nold\n" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert f"### {tool.TITLES[part]}\n\n|" in text
    assert text.count(tool.NOTHING) == len(tool.PARTS) - 1


def test_a_part_that_fails_is_reported_and_the_next_goes_on(scripts, tmp_path, monkeypatch):
    benchmark, tool = scripts

    def broken(*_):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(benchmark, "PARTS", {"extract": broken, "product": lambda *_: {}})
    monkeypatch.setattr(benchmark, "apart", benchmark.run_part)
    report = benchmark.main(["--device", "cpu", "--json", "--scratch", str(tmp_path)])
    assert report["parts"]["extract"]["error"].startswith("RuntimeError at test_gpu_figures.py:")
    assert "out of memory" in report["parts"]["extract"]["error"]
    assert "error" not in report["parts"]["product"]
    assert "Not measured: RuntimeError" in written(
        tool, tmp_path, monkeypatch, {**report, "parts": {"extract": report["parts"]["extract"]}}
    )


def test_a_process_that_dies_or_hangs_is_a_part_that_failed(scripts, monkeypatch, tmp_path):
    benchmark, _ = scripts
    args = type("Args", (), {"device": "cpu", "quick": True, "scratch": tmp_path})
    monkeypatch.setitem(benchmark.LIMITS, "product", 0.01)
    assert benchmark.apart("product", args)["error"] == "not done after 0.01 seconds"
    monkeypatch.setattr(sys, "executable", "false")
    monkeypatch.setitem(benchmark.LIMITS, "product", 60)
    assert benchmark.apart("product", args)["error"] == "ended with exit code 1 and no figures"


def test_the_page_says_that_nothing_was_measured(scripts):
    tool = scripts[1]
    assert tool.page({}) == tool.NOTHING
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    assert (tool.NOTHING in text) == ("No figure of this page has been measured" in text)
