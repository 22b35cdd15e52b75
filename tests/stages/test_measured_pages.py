"""Pages with figures hold those of the reports that were kept, and the tools that write them say what was measured."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tools():
    """What writes the tables, by name."""
    parts = ("classifier", "defaults", "every_block", "growth", "last_block", "rows", "tangent", "workers")
    names = ("marked", "measured", *(f"measured.{part}" for part in parts))
    names += ("make_measured", "make_alternatives", "make_solvers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        yield {name: importlib.import_module(name) for name in names}
        for name in names:
            del sys.modules[name]


def size(rows: int, classes: int = 10) -> dict:
    """A size whose stages cost 2 ms a row beside their start."""
    stages = ("extract", "train", "inspect", "evaluate", "forget", "page")
    cost = {"seconds": 0.5 + 0.002 * rows, "memory": 1 << 30, "passes": 9, "exact_passes": 7}
    found = {name: cost for name in stages}
    about = {"rows": rows - 1, "held_out": rows, "classes": classes, "bytes": 2e4 * rows}
    return {**found, "start": {"seconds": 0.5}, **about}


def test_growth_becomes_tables_and_a_plan(tools):
    by_rows = {"sizes": [size(1000), size(10000)], "exponents": {"extract": 1.0}}
    by_classes = {"sizes": [size(2000, k) for k in (10, 1000)], "exponents": {}}
    report = {"data": "CIFAR-10", "rows": by_rows, "classes": by_classes}
    text = tools["measured.growth"].tables(report)
    assert "| rows | 1,000 | 10,000 | exponent |" in text
    assert "| classes | 10 | 1,000 | exponent |" in text
    assert "| extract | 2.5 s, 1.0 GiB | 20.5 s, 1.0 GiB | 1.0 |" in text
    assert "| passes, a shard | 9 | 9 |  |" in text
    assert "| passes, the exact model without a sample | 7 | 7 |  |" in text
    plan = tools["measured.growth"].plan(report).splitlines()
    assert plan[0] == "|  | a row | 1,000,000 rows | 100,000,000 rows |"
    assert plan[2] == "| extract | 2.0 ms | 0.6 h | 55.6 h |"
    assert plan[-1] == "| the store | 10.0 kB | 10 GB | 1.0 TB |"
    assert "λ of the exact model" not in text
    assert text.endswith("need not decide. Measured: machine, date, commit not kept.")
    of = {"exact_ridge": 1e-4, "tolerance": "auto", "machine": "Xeon", "date": "2026-01-02", "commit": "1a2b"}
    text = tools["measured.growth"].tables({**report, "rows": {"sizes": [size(1000) | of], "exponents": {}}})
    assert "| λ of the exact model | 1.0e-04 |  |" in text
    assert text.endswith("`solver.tolerance` was auto. Measured: Xeon; 2026-01-02; commit 1a2b.")
    alone = tools["measured.growth"].one_size({"rows": {"sizes": [size(10000)]}})
    assert "| extract | 20 s | 1.0 GiB |" in alone
    assert "10,000 rows, 200 MB. Passes: a shard 9, the exact model 7," in alone


def test_alternatives_become_two_tables(tools):
    tool = tools["make_alternatives"]
    cost = {"clock": 20.0, "processor": 18.0}
    parts = {"seconds": {"prepare": cost, "choose": {"clock": 0}, "train": cost}, "shard": cost, "sample": cost}
    where = {"threads": 1, "machine": "Xeon, AMX"}
    ours = {**parts, **where, "accuracy": [0.9, 0.8, 0.95], "chosen": {}, "sample_retrain": cost}
    against = {"ahead": [-0.02, -0.03, -0.01], "verdict": "behind"}
    probe = {**ours, "chosen": {"C": 1.0}, "taftcache_against_it": against}
    about = {"rows": 3000, "held_out": 50, "classes": 10, "backbone": "vit", "shards": 10}
    data = {"caltech101": {**about, "methods": {"taftcache": ours}}, "cifar10": {**about, "methods": {"probe": probe}}}
    text = tool.short(data)
    assert "|  | Caltech-101, % | CIFAR-10, % | train |" in text
    assert "| logistic regression (scikit-learn) of the last feature |  | 90.0 ± 7.5 |  |  |" in text
    sample = "20 s by `--mode resolve`, 20 s by default"
    assert f"| taftcache, last block, exact model | 90.0 ± 7.5 |  | 40 s | {sample} |" in text
    assert "one thread of Xeon, AMX." in tool.full(data)
    data["caltech101"] |= {"again": {"taftcache": [{**ours, "sample": {"clock": 50.0}}]}}
    data["caltech101"]["methods"]["probe"] = {**probe, "machine": "EPYC"}
    assert (
        "Times are of one run each, for Caltech-101, one thread (repetitions differed by a factor of up to 2.5), and"
        in tool.short(data)
    )
    ran = "40 s and 40 s; 20 s by `--mode resolve`, 20 s by default and 50 s by `--mode resolve`, 20 s by default."
    assert f"\n- Caltech-101, taftcache, last block, exact model: {ran}" in tool.full(data)
    assert "50 held out; one thread.\n" in tool.full(data), "its lines have two machines"
    assert "−2.0 (−3.0 to −1.0): behind | 20 s |  | 20 s |" in tool.full(data)


def test_what_does_not_decide_is_counted(tools):
    tool = tools["measured.defaults"]
    one = {"passes": 9, "moved": 1.0, "distance_bound": 0.01, "decisive": True}
    models = {"components/000": one, "models/head": one, "models/exact": {**one, "decisive": False}}
    found = {
        "rows": 100, "held_out": 50, "verdict": "within noise", "ahead_of_probe": [-0.01, -0.03, 0.01],
        "accuracy": {model: [0.9, 0.8, 0.95] for model in tool.MODELS}, "labels_proven": {"models/exact": 1.0},
        "forget": {
            mode: {"models": models, "labels_proven": {"models/exact": share}}
            for mode, share in (("retrain", 0.95), ("resolve", 0.9))
        },
    }  # fmt: skip
    text = tool.table({"recipes": {"quickstart": found}})
    assert "| default against probe, on the same rows | −1.0 (−3.0 to +1.0): within noise |" in text
    assert "| passes of a removal, `resolve` | shard 9, head 9, all rows 9 |" in text
    assert "after `retrain`, after `resolve` | 100.0 %, 95.0 %, 90.0 % |" in text
    assert "4 of 6 certificates of these removals decide" in text


def test_a_head_stands_beside_the_tangent_and_the_probe_of_its_own_features(tools):
    tool = tools["measured.every_block"]
    models = tool.MODELS
    behind = {"ahead": -0.02, "interval": [-0.03, -0.01], "verdict": "behind"}
    noise = {"ahead": 0.01, "interval": [-0.03, 0.05], "verdict": "within noise"}
    probes = {
        tool.RIDGE: {"accuracy": [0.92, 0.8, 0.95], "exact_against_it": behind},
        tool.LOGISTIC: {"accuracy": [0.89, 0.7, 0.95], "exact_against_it": noise},
    }
    every = {"rows": 100, "held_out": 50, "bytes_per_sample": 100.0, "probes": probes}
    every["accuracy"] = {model: [0.9, 0.8, 0.95] for model in models}
    last = {"bytes_per_sample": 590.0, "accuracy": {model: [0.8, 0.7, 0.85] for model in models}}
    both = {"ahead": 0.1, "interval": [0.05, 0.15], "verdict": "ahead"}
    report = {"data": {"digits": {"every": every, "last": last, "every_against_last": dict.fromkeys(models, both)}}}
    text = tool.table(report)
    ridge = "92.0 (80.0 to 95.0) | −2.0 (−3.0 to −1.0): behind"
    probe = "89.0 (70.0 to 95.0) | +1.0 (−3.0 to +5.0): within noise"
    assert f"| 80.0 (70.0 to 85.0) | +10.0 (+5.0 to +15.0): ahead | {ridge} | {probe} | 100, 590 |" in text
    said = tool.short(report, {"runs": [{"last_block": 80.04}, {"last_block": 81.26}]})
    assert "| digits, bundled ViT | 90.0 | 80.0 (behind) | 92.0 (ahead) | 89.0 (within noise) |" in said
    assert "the interval of digits, bundled ViT begins at +5.00 points" in said
    assert "has 80.0 to 81.3 % over [2 seeds]" in said
    assert "at most 1/5 as large" in said


def test_what_8_bits_cost_becomes_a_table(tools):
    one = {
        "bytes": {"float16": 12480, "int8": 6500}, "accuracy": {"float16": [0.9, 0.8, 0.95], "int8": [0.91, 0.8, 0.95]},
        "ahead": [0.01, -0.02, 0.04], "verdict": "within noise", "changed": 3, "moved": 0.04,
    }  # fmt: skip
    found = {
        "rows": 1000, "held_out": 50, "kinds": {"tokens": one}, "store_bytes": {"float16": 12520.4, "int8": 6541},
        "pass_seconds": {"float16": 0.179, "int8": 0.182},
    }  # fmt: skip
    text = tools["measured.rows"].tables({"stores": {"quickstart": found, "other": found}})
    assert "digits through the bundled ViT: 1,000 rows, 50 held out." in text
    cells = "12,480 → 6,500 | 90.0 (80.0 to 95.0) | 91.0 (80.0 to 95.0) | +1.0 (−2.0 to +4.0): within noise | 3 of 50"
    assert f"| tokens | {cells} |" in text
    assert "12,520 bytes a sample, 6,541 in int8. A pass over 512 rows of tokens: 179 ms, 182 ms in int8" in text


def test_a_product_is_held_against_the_best_batch_of_its_peer(tools):
    of = {"shape": "vit-tiny", "samples": 256, "classes": 10, "from_tokens": True, "ready_s": 0.0391}
    of |= {"product_s": 0.0083, "torch_func_s": 1.234, "torch_func_batch": 32, "ratio_vs_torch_func": 148.7}
    of |= {"roofline_s": 0.0052, "roofline_fraction": 0.62}
    text = tools["measured.tangent"].table({"products": [of], "copy_bytes_per_s": 1e10, "gemm_flop_per_s": 2e11})
    cells = "ViT-tiny, from tokens | 256 | 10 | 39.1 ms | 8.3 ms | 1,234 ms | 32 | 149 | 5.2 ms | 0.62"
    assert f"| {cells} |" in text
    assert "10 GB a second here, and a 4096³ product does 200 GFLOP" in text


def test_a_classifier_is_compared_at_as_many_splits(tools):
    of_one = {"rows": 3000, "features": 64, "classes": 10, "seconds": 2.0, "one_C": 0.1, "one_C_1e-6": 0.2}
    report = {"sizes": [{**of_one, "one_split": split, "five_folds": 4.0, "agreement": 1.0} for split in (1.0, 0.5)]}
    text = tools["measured.classifier"].table({**report, "threads": 1, "machine": "Xeon", "date": "2026-01-02"})
    assert "| 3,000, 64, 10 | 2 s | 1 s | 4 s | 0.1 s | 0.2 s | 100.00 % |" in text
    assert "takes 2.0 to 4.0 times as long as scikit-learn" in text
    assert text.endswith("Measured: Xeon; threads of torch: 1; 2026-01-02; commit not kept.")


@pytest.mark.law("Measured pages are what the kept reports make, and reports say when and where they were measured")
def test_reports_say_where_they_were_measured(monkeypatch, capsys):
    texts = {file.name: file.read_text("utf-8") for file in (ROOT / "benchmarks").glob("*.py")}
    scripts = {name: text for name, text in texts.items() if re.search(r'"--json"|_parser\(__doc__\)', text)}
    assert len(scripts) > 20
    assert not [name for name, text in scripts.items() if not re.search(r"[ *](print_(report|figures)|record)\(", text)]
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    record = importlib.import_module("record")
    record.print_report({"rows": 3})
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["commit", "date", "machine", "torch", "threads", "argv", "rows"]
    assert report["machine"]
    assert report["date"].count("-") == 2
    monkeypatch.setattr(record.shutil, "which", lambda name: None)
    assert record.commit() is None
    del sys.modules["record"]


@pytest.mark.law("Measured pages are what the kept reports make, and reports say when and where they were measured")
def test_the_pages_have_what_was_measured(tools):
    others = tools["make_alternatives"].read(sorted((ROOT / "docs/results").glob("alternatives-*.json")))
    for page, name, text in (
        ("docs/benchmarks.md", "alternatives", tools["make_alternatives"].full(others)),
        ("README.md", "alternatives", tools["make_alternatives"].short(others)),
        *tools["make_measured"].made(),
        *(("docs/solvers.md", name, text) for name, text in tools["make_solvers"].parts().items()),
    ):
        assert f"<!-- {name} -->\n\n{text}\n\n<!-- /{name} -->" in (ROOT / page).read_text("utf-8"), page


def solved(name: str, end: float, **passes: int | None) -> dict:
    """What a solver of 40 passes in 20 s left, and when it was how near."""
    return {"solver": name, "gap_at_end": end, "passes": 40, "seconds": 20.0, **passes}


def test_solves_become_tables(tools):
    tool, about = tools["make_solvers"], {"argv": ["solve.py", "a b", "--json"], "machine": "Xeon"}
    reached = {"passes_to_gap_1e-03": 10, "passes_to_gap_1e-06": 19, "passes_to_final_accuracy": 9}
    half = {"passes_to_gap_1e-03": 34, "passes_to_gap_1e-06": None, "passes_till_it_stays": None}
    results = [
        solved("row space", 1e-12, **reached, passes_till_it_stays=11),
        solved("kronecker", 7.6e-4, **half),
        solved("scipy cg", 2e-4),
        solved("Adam, 30 epochs", 2e-2),
    ]
    problem = {"ridge": 1e-4, "rows": 5000, "parameters": 100, "final_accuracy": 74.5, "results": results}
    text = tool.solves({**about, "problems": [problem]})
    assert text.splitlines()[2:6] == [
        "| 10⁻⁴ | **the space of the rows** (each twice) | 10 | 19 | 9 | 11 | 40 in 20 s |",
        "| 10⁻⁴ | Kronecker factors | 34 | – (7.6·10⁻⁴) | – | – | 40 in 20 s |",
        "| 10⁻⁴ | SciPy's cg | at most 40 | – (2.0·10⁻⁴) | – | – | 40 in 20 s |",
        "| 10⁻⁴ | Adam, 30 epochs | – | – (2.0·10⁻²) | – | – | 40 in 20 s |",
    ]
    assert "5,000 rows, P = 100; accuracy at the optimum 74.50 % at λ = 10⁻⁴. `benchmarks/solve.py 'a b'`." in text
    one = {"ridge": 6.3e-6, "seconds": 65.4, "passes": 46}
    text = tool.whole({**about, "rows": 50000, "whole": [{**one, "method": m} for m in ("auto", "conjugate")]})
    assert "| 6.3·10⁻⁶ | 65 s (46) | 65 s (46) |" in text
    run = {"rows": 298, "classes": 101, "ridge": 1e-3, "passes": 62, "seconds": 2.14, "relative_gradient": 5e-6}
    runs = [{**run, "solver": "span", "converged": True}, {**run, "solver": "newton", "converged": False}]
    text = tool.entropies([{**about, "runs": runs}])
    assert "| 298 of 101 | 10⁻³ | 62, 2.1 s | – (5.0·10⁻⁶ after 62), 2.1 s |  |  |" in text
    times = {"path_of_20": 0.05, "ridge_cv_of_20": 0.13, "one": 0.02, "ridge_of_one": 0.008}
    text = tool.head_alone({"head_seconds": {**times, "same_choice": 1.0, "times_ridge_cv": 2.6}})
    assert "50 ms, scikit-learn's `RidgeCV` 130 ms (2.6 times) for the same λ." in text
    sizes = [{"peak": 700 + n, "before": 300, "of_it_mapped": n, "rows": 500 + n} for n in (0, 100)]
    assert "needs 400 MiB above its start at 500 rows and 400 MiB above its start at 600" in tool.memory(
        {"memory_mib": sizes}
    )
