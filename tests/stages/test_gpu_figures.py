"""The command that measures a GPU runs at a size of nothing, and its figures become the page's tables."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("gpu", "make_gpu", "extract", "tangent", "layers")


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
    (tmp_path / "docs/results").mkdir(parents=True, exist_ok=True)
    (tmp_path / "docs/gpu.md").write_text("before\n\n<!-- gpu -->\n\nold\n\n<!-- /gpu -->\n\nafter\n")
    monkeypatch.setattr(tool.marked, "ROOT", tmp_path)
    tool.main([str(tmp_path / "report.json")])
    return (tmp_path / "docs/gpu.md").read_text()


@pytest.mark.parametrize(
    "part", ["product", "extract", "deep", *(pytest.param(p, marks=pytest.mark.full) for p in ("agreement", "whole"))]
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

    monkeypatch.setattr(benchmark, "PARTS", {"extract": broken, "product": lambda *_: None})
    monkeypatch.setattr(benchmark, "apart", benchmark.run_part)
    report = benchmark.main(["--device", "cpu", "--json", "--scratch", str(tmp_path)])
    assert report["parts"]["extract"]["error"].startswith("RuntimeError at test_gpu_figures.py:")
    assert "out of memory" in report["parts"]["extract"]["error"]
    assert "error" not in report["parts"]["product"]
    assert "Not measured: RuntimeError" in written(
        tool, tmp_path, monkeypatch, {**report, "parts": {"extract": report["parts"]["extract"]}}
    )


def test_a_part_that_takes_too_long_ends_with_what_it_has(scripts, tmp_path, monkeypatch):
    benchmark, tool = scripts

    def endless(found, *_):
        found |= {"images": 9, "shards": 2, "model": "a ViT", "extract_seconds": 1.5}
        found |= {"peak_host_bytes": 1e9, "store_bytes": 1e9}
        while True:
            pass

    monkeypatch.setitem(benchmark.PARTS, "whole", endless)
    monkeypatch.setitem(benchmark.LIMITS, "whole", 0.05)
    report = benchmark.main(["--device", "cpu", "--part", "whole", "--json", "--scratch", str(tmp_path)])
    text = written(tool, tmp_path, monkeypatch, report)
    assert "| extract | 1.5 |" in text
    assert "| forget" not in text
    assert re.search(r"Stopped after [\d.]+ seconds, before its end\.", text)


def test_a_process_that_dies_or_hangs_is_a_part_that_failed(scripts, monkeypatch, tmp_path):
    benchmark, _ = scripts
    args = type("Args", (), {"device": "cpu", "quick": True, "scratch": tmp_path})
    monkeypatch.setitem(benchmark.LIMITS, "product", 0.01)
    monkeypatch.setattr(benchmark, "SLOW", 0)
    assert benchmark.apart("product", args)["error"] == "not done after 0.01 seconds"
    monkeypatch.setattr(sys, "executable", "false")
    monkeypatch.setitem(benchmark.LIMITS, "product", 60)
    assert benchmark.apart("product", args)["error"] == "ended with exit code 1 and no figures"


def test_a_later_report_keeps_the_other_parts(scripts, tmp_path, monkeypatch):
    tool = scripts[1]
    machine = {"device": "a GPU", "memory_bytes": None, "cores": 4, "torch": "2.11", "timm": "1.0"}
    checks = {"agreement": {"rows twice": {"off": 0.0, "allowed": 0, "holds": True}}}
    written(tool, tmp_path, monkeypatch, {"quick": False, "machine": machine, "parts": checks})
    failed = {"whole": {"error": "RuntimeError at gpu.py:1: no memory"}, "agreement": {"error": "another"}}
    text = written(tool, tmp_path, monkeypatch, {"quick": False, "machine": machine, "parts": failed})
    assert "| rows twice | 0.0e+00 | 0.0e+00 | holds |" in text
    assert "Not measured: RuntimeError at gpu.py:1: no memory." in text


@pytest.mark.law("Measured pages are what the kept reports make, and reports say when and where they were measured")
def test_the_page_is_made_of_what_is_kept(scripts):
    tool = scripts[1]
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    kept = ROOT / "docs/results/gpu.json"
    assert tool.page(json.loads(kept.read_text()) if kept.exists() else {}) in text
    assert tool.page({}) == tool.NOTHING
