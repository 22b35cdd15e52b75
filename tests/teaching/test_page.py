"""The figures that docs/teaching-results.md is made of, from a small report."""

from __future__ import annotations

import json
from base64 import b64decode

import numpy as np
import pytest

from taftcache.report.paired import paired
from taftcache.stages.train.teaching import teach
from tests.teaching.making import teaching_recipe
from tests.test_house.pages import ROOT, load_tool


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return load_tool("make_teaching")


def test_figures_are_those_of_the_students(teachers, tmp_path, tool):
    """Accuracies, the paired difference and the points of a curve, each from the students' own files."""
    recipe = teaching_recipe(
        tmp_path / "out",
        {"wide": teachers["wide"]},
        teach={"prior": "aft", "beta": 2.0},
        train={"epochs": 2, "seeds": [0, 1], "rate": 1e-2},
        report={"noise": [4]},
    )
    report = teach(recipe)
    made = tool.kept(tmp_path / "out")
    tested = made["rows"]["tested"]

    def right(*names):
        files = [tmp_path / "out" / "students" / name / "outcome.json" for name in names]
        bits = [b64decode(json.loads(file.read_text(encoding="utf-8"))["outcome"]["right"]) for file in files]
        return np.stack([np.unpackbits(np.frombuffer(b, np.uint8), count=tested) for b in bits]).astype(float)

    plain, aft = right("none-b0-s0", "none-b0-s1"), right("aft-b2-s0", "aft-b2-s1")
    noisy = right("aft-b2-s0-noise4", "aft-b2-s1-noise4")
    assert made["students"]["aft"]["accuracy"] == report.accuracy == aft.mean(1).tolist()
    assert made["students"]["none"]["accuracy"] == plain.mean(1).tolist()
    expected = paired(aft, plain)
    assert made["students"]["aft"]["against STL"] == {
        "ahead": expected.ahead,
        "interval": [*expected.interval],
        "verdict": expected.verdict,
    }
    point = made["points"]["noise 4"]
    assert point["itself"]["aft"]["ahead"] == pytest.approx(100 * (noisy - aft).mean())
    assert point["itself"]["none"]["verdict"] == "same"
    page, grid = tool.part({"tiny": made}), {**made["recipe"]["teach"], "grid": [1, 5, 25]}
    assert "|  | tiny | tiny, 4 features of noise added |\n" in page
    assert f"| accuracy of STL, % | {100 * plain.mean():.1f} | {100 * plain.mean():.1f} |" in page
    assert f"{made['rows']['labelled']:,} labelled images of 10 classes" in page
    assert "| AFT (learned weights) above STL (no prior) | " in page
    assert f": {expected.verdict} |" in page
    assert "the least above 0" not in page, "its β was given"
    for beta, which in ((1.0, "least above 0"), (25.0, "largest")):
        of = {"none": made["students"]["none"], "aft": {**made["students"]["aft"], "tried": {"0": 0.5}, "beta": beta}}
        said = tool.part({"tiny": {**made, "recipe": made["recipe"] | {"teach": grid}, "students": of}})
        assert f", and is {beta:g}, the {which}, for AFT (learned weights); 2 seeds;" in said
    assert "on 6 of the labelled images" in tool.part({"tiny": {**made, "rows": {**made["rows"], "held back": 6}}})


def test_a_student_of_beta_zero_is_the_plain_one(teachers, tmp_path, tool):
    recipe = teaching_recipe(
        tmp_path / "out", {"wide": teachers["wide"]}, teach={"prior": "kd", "beta": 0.0}, train={"epochs": 1}
    )
    teach(recipe)
    made = tool.kept(tmp_path / "out")
    assert made["students"]["kd"]["against STL"]["verdict"] == "same"
    assert "the same students" in tool.part({"tiny": made})


def test_the_page_is_what_its_figures_make(tool):
    tool.main(["--check"])
