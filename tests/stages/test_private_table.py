"""The private table on tiny data: what is run, with which settings, and what is kept; not who wins."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import experiments, main
from taftcache.errors import FormatError, StoreError
from taftcache.paper import tables as paper_tables
from taftcache.paper.comparison import compare
from taftcache.paper.fits import Fits
from taftcache.paper.pages import page
from taftcache.paper.private_runs import PrivateRun, PrivateRuns
from taftcache.paper.private_table import KINDS, Cell, private_cells
from taftcache.paper.workbench import Workbench
from taftcache.privacy import trainer
from taftcache.recipe_sections import CompareSpec
from taftcache.stages.progress import Silent
from tests.seeded import SeededBits
from tests.stages.making import recipe, settings

SMALL = {"epsilons": (8.0,), "seeds": 2}
TWO = ("layernorm", "head")


def cells(store, asked, folder=None, regimes=TWO, **compare):
    """Of some regimes, by a recipe; its runs are kept in the folder."""
    asked = msgspec.structs.replace(asked, compare=CompareSpec(**SMALL | compare))
    with pytest.MonkeyPatch.context() as patch, Workbench(asked, Silent(), folder) as work:
        patch.setattr("taftcache.paper.private_table.REGIMES", regimes)
        patch.setattr(work, "store", lambda: store)
        return private_cells(work)


@pytest.fixture(scope="module")
def opened(finished):
    with FeatureStore(finished) as store:
        yield store


@pytest.fixture(scope="module")
def made(opened, tmp_path_factory):
    """A table of two regimes, where its runs are kept, and what was run in order."""
    folder, runs = tmp_path_factory.mktemp("runs"), []
    train = PrivateRuns._run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateRuns, "_run", lambda self, run: runs.append(run) or train(self, run))
        found = cells(opened, settings(opened), folder)
    return found, folder, runs


def test_the_table_trains_both_networks_and_writes_nothing(opened, made):
    assert [(cell.run.regime, cell.run.network, cell.run.mechanism) for cell in made[0]] == [
        ("layernorm", "tangent", "descent"),
        ("layernorm", "ordinary", "descent"),
        ("head", "tangent", "descent"),
        ("head", "tangent", "least-squares"),
    ]
    for cell in made[0]:
        assert [len(seed) for seed in cell.right] == [opened.held_out.rows] * 2
        assert all(torch.isin(seed, torch.tensor([0, 1])).all() for seed in cell.right)
        assert cell.figures["epsilon"] <= 8.0
    assert opened.root_digest == FeatureStore(opened.path).root_digest


@pytest.mark.law("Both networks of a private comparison begin and choose alike, and with the head alone are one model")
def test_both_networks_choose_from_the_same_settings(made):
    found, _, runs = made
    for cell in found:
        own = [r for r in runs if (r.regime, r.network, r.mechanism) == _place(cell.run)]
        searched = [r for r in own if r.validate]
        assert [(r.reset_block, r.rate, r.seed, r.validate) for r in own if not r.validate] == [
            (cell.run.reset_block, cell.run.rate, seed, False) for seed in range(2)
        ]
        if cell.run.mechanism == "least-squares":
            assert searched == []
        elif cell.run.regime == "head":
            assert {(r.reset_block, r.rate) for r in searched} == {(False, 0.3), (False, 1.0), (False, 3.0)}
        else:
            pt = cell.run.reset_block
            asked = {(False, 1.0), (True, 1.0), (pt, 0.3), (pt, 3.0)}
            assert {(r.reset_block, r.rate) for r in searched} == asked
            scores = {(run.reset_block, run.rate): found for run, found in cell.tried}
            assert scores[pt, 1.0] == max(scores[False, 1.0], scores[True, 1.0])
            assert scores[pt, cell.run.rate] == max(scores[pt, rate] for rate in (0.3, 1.0, 3.0))
    assert len(runs) == len(set(runs))


def test_the_heads_regime_is_the_same_for_both_networks(opened, monkeypatch):
    monkeypatch.setattr(trainer, "SystemBits", lambda: SeededBits(3))
    runs = PrivateRuns(opened, settings(opened), Fits(), Silent(), 2)
    run = PrivateRun(regime="head", network="tangent", mechanism="descent", epsilon=8.0, reset_block=False, rate=1e-3)
    ours, theirs = (runs(replace(run, network=network), Silent()) for network in KINDS)
    assert torch.equal(ours.right, theirs.right)
    assert ours.figures == theirs.figures
    assert 0 < ours.accuracy < 100


def test_rows_to_choose_on_train_nothing_and_are_not_the_held_out_ones(opened):
    runs = PrivateRuns(opened, settings(opened), Fits(), Silent(), 1)
    (rows,), (tests,) = runs._apart
    whole, held_out = runs._whole
    assert rows.rows + tests.rows == sum(shard.rows for shard in whole)
    assert 0 < tests.rows < rows.rows
    trained, chosen_on = ({row.tobytes() for row in source.tokens} for source in (rows, tests))
    measured_on = {row.tobytes() for block in held_out[0].blocks(64) for row in block.tokens}
    assert not trained & chosen_on
    assert not measured_on & (trained | chosen_on)


def test_a_table_trains_nothing_twice(opened, made, monkeypatch):
    found, folder, _ = made
    recipe, runs = settings(opened), []
    run = PrivateRuns._run
    monkeypatch.setattr(PrivateRuns, "_run", lambda self, one: runs.append(one) or run(self, one))
    again = cells(opened, recipe, folder)
    assert runs == []
    assert [(c.run, c.figures, torch.stack(c.right).tolist(), c.tried) for c in again] == [
        (c.run, c.figures, torch.stack(c.right).tolist(), c.tried) for c in found
    ]
    more = settings(opened, steps=recipe.privacy.steps + 1)
    cells(opened, more, folder, ("head",), seeds=1, private_rates=(1.0,))
    assert [(run.mechanism, run.validate) for run in runs] == [("descent", False), ("least-squares", False)]
    cells(opened, settings(opened, budget=99.0), folder)
    assert len(runs) == 2  # a budget decides nothing here
    for file in folder.iterdir():
        file.write_bytes(b"torn")
    with pytest.raises(FormatError):
        cells(opened, recipe, folder)


def _place(run):
    return run.regime, run.network, run.mechanism


def test_private_table_as_a_report(opened, monkeypatch):
    full = PrivateRun(regime="full", network="tangent", mechanism="descent", epsilon=3.0, reset_block=True, rate=0.3)
    said = {"epsilon": 2.9999, "delta": 1e-5, "multiplier": 2.0, "learning_rate": 0.1}
    found = [
        Cell(run=full, figures=said, right=rights(5, 7), tried=[(full, 55.0), (replace(full, rate=1.0), 50.0)]),
        Cell(run=replace(full, network="ordinary"), figures=said, right=rights(5, 5), tried=[]),
        Cell(
            run=replace(full, regime="head", mechanism="least-squares", rate=1.0), figures=said, right=rights(4, 4),
            tried=[],
        ),
    ]  # fmt: skip

    asked = {"seeds": 2, "epsilons": [3.0], "resets": [True], "private_rates": [0.5], "reports": ["table3"]}
    monkeypatch.setattr(paper_tables, "private_cells", lambda work: found)
    made = compare(recipe(opened.path, compare=asked))
    assert {(line.method, line.preset): line.accuracy for line in made.reports[0].lines} == {
        ("full", "tangent"): pytest.approx(60.0),
        ("full", "ordinary"): pytest.approx(50.0),
        ("head, least squares", "tangent"): pytest.approx(40.0),
    }
    (tuned,) = made.reports[0].settings
    assert tuned.chosen == {"PT": "F", "rate": 0.3}
    assert [one["accuracy"] for one in tuned.tried] == [55.0, 50.0]
    text = page(made)
    assert "| epsilon | full, tangent | full, ordinary | head, least squares, tangent |" in text
    assert (
        "- private training: descent of 50 steps, clip at 1, momentum 0, loss cross-entropy, logits tangent, neighbours"
        " add-remove, δ = 1e-05"
    ) in text
    ends = {(line.method, line.preset): line.end for line in made.reports[0].lines}
    assert ends["full", "tangent"] == "least rate"
    del made.recipe["privacy"]  # as reports of before
    assert "- private training: steps, clip, loss, logits and relation are not recorded" in page(made)


def test_the_command_rounds_rows_alike_for_the_table(opened, monkeypatch):
    """As ``train --private`` does: a private sum has as few columns as there are classes."""
    asked = []

    def stop(recipe, **_):
        asked.append(recipe.compare.reports)
        raise StoreError("asked, and that was all")

    monkeypatch.setattr(experiments, "round_rows_alike", lambda *, every_shape: asked.append(every_shape))
    monkeypatch.setattr(taftcache, "compare", stop)
    for report in ("table2", "table3"):
        with pytest.raises(SystemExit):
            main(["compare", str(opened.path), "--report", report])
    assert asked == [("table2",), True, ("table3",)]


def rights(*counts):
    """Which of ten held-out rows were right, by seed."""
    return [(torch.arange(10) < count).byte() for count in counts]


@pytest.mark.usefixtures("mac")
def test_a_mac_makes_the_table_on_its_cpu(opened):
    """Sums are integers that float64 carries."""
    asked = msgspec.structs.replace(settings(opened), device="auto")
    made = cells(opened, asked, regimes=("layernorm",), seeds=1, resets=(False,), private_rates=(1.0,))
    assert [cell.run.network for cell in made] == ["tangent", "ordinary"]
