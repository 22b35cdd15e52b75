"""The benchmark that sets other methods beside taftcache: what it goes on with, what it trains on, what it writes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts():
    """The benchmark, what it imports, and the tool that writes its tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.syspath_prepend(str(ROOT / "tools"))
        yield [importlib.import_module(name) for name in ("alternatives", "rivals", "make_alternatives")]
        for name in ("alternatives", "rivals", "make_alternatives"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (2, [1, 2, 4]),
        (4, [1, 2, 4, 16]),
        (16, [1, 2, 4, 16, 64]),
        (256, [1, 2, 4, 16, 64]),
        (0.2, [1, 2, 4, 0.25, 0.0625]),
    ],
)
def test_a_rate_at_an_end_has_others_tried_beyond_it(scripts, best, tried):
    _, rivals, _ = scripts
    rate, scores = rivals.best_of((1, 2, 4), lambda rate: -abs(np.log(rate / best)), rivals.APART, rivals.MOST_FURTHER)
    assert list(scores) == tried
    assert rate == min(tried, key=lambda one: abs(np.log(one / best)))


def test_what_is_kept_is_measured_once_for_its_settings(scripts, tmp_path):
    kept, measured = scripts[1].Kept(tmp_path, rows=[1, 2]), []

    def measure():
        measured.append(1)
        return {"right": [1, 0]}

    for one in (kept, kept, kept.having(rate=0.1), kept.having(rate=0.1), kept):
        assert one.once("last block", measure) == {"right": [1, 0]}
    assert len(measured) == 3  # the last had the settings of the first, but not the file
    assert kept.having(rate=0.1).get("last block") is None


def test_the_rate_rises_and_falls_to_nothing(scripts):
    factors = [scripts[1].factor(step, 100) for step in range(100)]
    assert factors[9] == factors[10] == max(factors) == 1
    assert factors[:10] == sorted(factors[:10])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[0] == pytest.approx(0.1)
    assert factors[-1] < 1e-3
    assert scripts[1].factor(0, 1) == 1


def test_augmented_images_are_flips_and_shifts(scripts):
    image = torch.arange(16 * 16).reshape(1, 1, 16, 16).to(torch.uint8)
    made = scripts[1].augmented(image.repeat(64, 3, 1, 1), torch.Generator().manual_seed(0))
    inner = made[:, 0, 2:14, 2:14]  # which no reflection reaches
    steps = inner.diff(dim=2).int()
    right, left = (steps == 1).all((1, 2)), (steps == 255).all((1, 2))
    assert (right | left).all()
    assert 16 < right.sum() < 48
    assert (inner.diff(dim=1) == 16).all()
    assert len({int(one[0, 0]) for one in inner}) > 10


def asked(scripts, place, *words):
    arguments = ["--keep", str(place), "--epochs", "1", "--set", "data.limit=90", *words]
    return scripts[0].arguments(arguments)


def test_the_last_block_trains_on_what_enters_it(scripts, tmp_path):
    """From the store's tokens it has the logits that the whole network has from the images."""
    case = scripts[1].Case("digits", tmp_path, asked(scripts, tmp_path, "--only", "probe"))
    rows = torch.arange(0, 90, 6)
    whole, last = case.network("all").eval(), case.network("last block").eval()
    with torch.no_grad():
        images, tokens = whole(case.batch("pixels", rows)), last(case.batch("tokens", rows))
    assert torch.allclose(images, tokens, atol=5e-3 * float(images.abs().max()))  # tokens are float16
    moved = {name.split(".")[1] for name, p in last.named_parameters() if p.requires_grad}
    assert moved == {"blocks", "norm", "head"}
    assert not any(p.requires_grad for p in last.model.blocks[:-1].parameters())
    anew = case.network("last block", fresh=True).model.state_dict()
    changed = {name.split(".")[1] for name, t in last.model.state_dict().items() if not torch.equal(t, anew[name])}
    assert changed == {str(len(last.model.blocks) - 1)}
    assert 10 < int(case.held.sum()) < 30


@pytest.mark.full
@pytest.mark.slow
def test_all_of_it_on_a_few_digits(scripts, tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft")
    benchmark, rivals, tool = scripts
    words = ["--keep", str(tmp_path), "--epochs", "1", "--set", "data.limit=120", "--json"]
    benchmark.main(words)
    report = json.loads(capsys.readouterr().out)
    methods = report["data"]["digits"]["methods"]
    assert list(methods) == [*benchmark.METHODS, "mean", "every block, mean"]
    assert len(methods["last block"]["chosen"]["other_scores"]) >= 3
    for method, of in methods.items():
        low, high = of["accuracy"][1:]
        assert low <= of["accuracy"][0] <= high
        assert of["shard"]["clock"] > 0 < of["sample"]["clock"]
        assert ("taftcache_against_it" in of) == (method != "taftcache")
    for name in ("trained", "rival"):
        monkeypatch.setattr(rivals, name, None)  # all of it is kept
    benchmark.main(words)
    assert json.loads(capsys.readouterr().out) == report
    (tmp_path / "report.json").write_text(json.dumps(report))
    monkeypatch.setattr(tool.marked, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/benchmarks.md"):
        (tmp_path / page).write_text("before\n\n<!-- alternatives -->\n\nold\n\n<!-- /alternatives -->\n\nafter\n")
    tool.main([str(tmp_path / "report.json")])
    for page in ("README.md", "docs/benchmarks.md"):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert text.startswith("before\n")
        assert text.endswith("\nafter\n")
        assert "\nold\n" not in text
        of_page = (
            tool.METHODS if page.startswith("docs") else {m: tool.READS.get(m, tool.METHODS[m]) for m in tool.BRIEF}
        )
        assert all(f"\n| {title} |" in text for method, title in of_page.items() if method != "every block")
        assert "\n| taftcache" in text


def test_a_table_says_who_is_ahead_and_leaves_out_what_was_not_measured(scripts):
    tool = scripts[2]
    spent = {"clock": 12.34, "processor": 20.0}

    def entry(accuracy, **more):
        parts = {"prepare": spent, "choose": {"clock": 0, "processor": 0}, "train": spent}
        made = {"accuracy": accuracy, "chosen": {"C": 1.0}, "seconds": parts, "shard": spent, "sample": spent}
        return {**made, "threads": 1, **more}

    against = {"ahead": [-0.02, -0.03, -0.01], "verdict": "behind"}
    ours = entry([0.9, 0.88, 0.92], sample_retrain=spent) | {"chosen": {"model": "models/exact"}}
    about = {"rows": 2975, "held_out": 1395, "classes": 101, "backbone": "deit"}
    theirs = entry([0.92, 0.9, 0.94], taftcache_against_it=against)
    data = {"caltech101": {**about, "methods": {"probe": theirs, "taftcache": ours}}}
    own, probe = tool.short(data).splitlines()[2:4]
    assert probe == "| logistic regression (scikit-learn) of the last feature | 92.0 ± 2.0 | 25 s | 12 s |"
    both = "12 s by `--mode resolve`, 12 s by default"
    assert own == f"| taftcache, last block, exact model | 90.0 ± 2.0 | 25 s | {both} |"
    assert "LoRA" not in tool.short(data)
    # half of the interval: 1.96 √((0.9·0.1 + p(1 − p)) / 1,395), 2.117 points for p = 0.9212 and 2.335 for 0.8766
    for share, verdict in ((0.9212, "ahead"), (0.9211, "within noise"), (0.8767, "within noise"), (0.8766, "behind")):
        data["caltech101"]["methods"] |= {"every block": {**ours}, "probe": entry([share, 0.8, 1.0])}
        head, _, probe = tool.short(data).splitlines()[2:5]
        assert head.startswith("| taftcache, head on every block, exact model | 90.0 ± 2.0 | ")
        assert f" ± 10.0 ({verdict}) | 25 s |" in probe
    data["caltech101"]["methods"]["probe"] = theirs
    row = next(line for line in tool.full(data).splitlines() if "logistic" in line)
    assert "| 92.0 (90.0 to 94.0) | −2.0 (−3.0 to −1.0): behind | 12 s |  | 12 s |" in row


def test_what_a_report_lacks_comes_from_a_later_one_and_what_both_have_ran_again(scripts, tmp_path):
    tool, spent = scripts[2], {"clock": 2.0, "processor": 2.0}
    parts = {"seconds": {"train": spent}, "shard": spent, "sample": spent, "sample_retrain": spent}
    made = {"accuracy": [0.9, 0.88, 0.92], "threads": 1, "chosen": {"model": "models/exact"}, **parts}
    tuned = made | {"epochs": 1, "augmented": False, "bfloat16": False}
    chosen = {"rate": 1.0, "scores": [[1.0, 0.9]], "at_end": False}
    about = {"rows": 9, "held_out": 5, "classes": 2, "backbone": "deit"}
    reports = (
        {
            "last block": tuned | {"chosen": chosen | {"fresh": True}, "machine": "m"},
            "taftcache": made | {"machine": "m"},
        },
        {
            "last block": tuned | {"chosen": chosen},
            "all": tuned | {"chosen": chosen, "date": "2026-11-28"},
            "taftcache": made,
        },
    )
    files = [tmp_path / f"{k}.json" for k in range(2)]
    for file, methods in zip(files, reports, strict=True):
        file.write_text(json.dumps({"data": {"digits": {**about, "methods": methods}}}))
    data = tool.read(files)
    text = tool.full(data)
    assert "5 held out; one thread of m." in text
    assert "\n| fine-tuning of all of it¹ | 90.0" in text
    assert "\n¹ Measured apart from the other lines, on the same images (2026-11-28).\n" in text
    assert "\n| fine-tuning of the last block | 90.0" in text
    assert text.split("What ran more than once")[1].count("\n- ") == 1  # the other fine-tuning was another way
    assert "Measured apart: fine-tuning of all of it on digits." in tool.short(data)
    for other in ({**about, "rows": 8}, {**about, "methods": {"taftcache": made | {"accuracy": [0.8, 0.7, 0.9]}}}):
        files[1].write_text(json.dumps({"data": {"digits": {"methods": {}, **other}}}))
        with pytest.raises(SystemExit, match=r"1\.json: its digits, or its model of it, is not that of the reports"):
            tool.read(files)


@pytest.mark.law("Measured pages are what the kept reports make, and reports say when and where they were measured")
def test_the_pages_have_what_was_measured(scripts):
    tool = scripts[2]
    data = tool.read(sorted((ROOT / "docs" / "results").glob("alternatives-*.json")))
    for page, table in (("README.md", tool.short(data)), ("docs/benchmarks.md", tool.full(data))):
        assert f"<!-- alternatives -->\n\n{table}\n\n<!-- /alternatives -->" in (ROOT / page).read_text("utf-8")
