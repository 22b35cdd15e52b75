"""Solving models/exact again after a removal: near enough to decide of what left, or cold."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import taftcache
from taftcache.errors import RecipeError
from taftcache.model.component import Component, read_component
from taftcache.solve.choosing import choose_ridge
from taftcache.stages.certificates import RenewedCertificate
from taftcache.stages.forget import forgetting, renewal
from taftcache.stages.forget.renewal import Warm
from taftcache.stages.progress import Silent
from taftcache.stages.train import record, solving
from taftcache.stages.train.solving import SolveOptions, solve_component
from taftcache.terminal.forgetting import forgotten_lines
from taftcache.view.wording import certified
from tests.stages.making import certificate, commits, deltas, open_store, recipe

EXACT = {"compose": {"mode": "exact"}}
FEW = {"data": {"source": "digits", "limit": 30}}


@pytest.fixture
def sampled(monkeypatch):
    """Solves are under the inverse of a sample's curvature, as where rows are many."""
    for limit in ("dual.LARGEST_KERNEL", "class_kernel.LARGEST_LOGITS"):
        monkeypatch.setattr(f"taftcache.solve.inverses.{limit}", 0)
    monkeypatch.setattr("taftcache.solve.inverses.sampled.LEAST_ROWS", 2)
    monkeypatch.setattr("taftcache.solve.inverses.sampled._count", lambda problem: 256)


@pytest.mark.law("A warm re-solve is within a tenth of what the removal moved, or is solved cold")
def test_warm_is_within_a_tenth_of_what_the_removal_moved(exact, tmp_path):
    cold = shutil.copytree(exact, tmp_path / "cold")
    with open_store(exact) as store:
        sample = store.shard("000").sample_ids[2]
        report = taftcache.forget(store, [sample], mode="resolve")
        warm_logits = taftcache.evaluate(store).accuracy["models/exact"]
    with open_store(cold) as store:
        taftcache.forget(store, [sample])
        assert taftcache.evaluate(store).accuracy["models/exact"] == warm_logits
    figures = report.certificates["models/exact"]
    assert figures.decisive
    assert renewal.DECISIVE == 0.1, "a tenth"
    assert figures.distance_bound <= 0.1 * figures.moved_at_least
    ours, theirs = deltas(exact), deltas(cold)
    apart = (ours["models/exact"] - theirs["models/exact"]).norm().item()
    assert apart <= 2 * figures.distance_bound
    assert all(torch.equal(ours[n], theirs[n]) for n in ours if n != "models/exact")
    assert taftcache.audit(exact).findings == []


@pytest.mark.law("A warm re-solve is within a tenth of what the removal moved, or is solved cold")
def test_warm_goes_on_from_the_dual_vectors(tmp_path, monkeypatch):
    """In the space of the rows; the tolerance is loose, so the old model is tightened first."""
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    path = tmp_path / "store"
    taftcache.run(recipe(path, solver={"tolerance": 0.2}, tangent={"reset_block": True}, **EXACT, **FEW))
    with open_store(path) as store:
        gone = [store.shard("000").sample_ids[2], store.shard("001").sample_ids[0]]
        rows = sum(shard.rows for shard in store.shards)
        report = taftcache.forget(store, gone, mode="resolve")
        settings = record.settings_of(store)
        base = settings.base
        exact = read_component(store, "models/exact", base)
        optimum = solve_component(
            settings, store.shards, "full", Silent(), label="models/exact",
            options=SolveOptions(goal=replace(settings.goal, tolerance=1e-4)),
        )  # fmt: skip
        taftcache.export_component(store, "models/exact", tmp_path / "exported")
    figures = report.certificates["models/exact"]
    assert report.notes == []
    assert figures.decisive
    apart = (exact.delta - optimum.delta).norm().item()
    assert apart <= figures.distance_bound + optimum.meta["certificate"]["distance_bound"]
    assert exact.dual.shape == (rows - 2, len(store.classes))
    assert Component.decode((tmp_path / "exported").read_bytes(), base).dual is None
    assert taftcache.audit(path).findings == []


def test_warm_goes_on_where_the_tolerance_is_loose(tmp_path, monkeypatch):
    """Both the old model and the new one are solved further than the recipe asks, until the removal is proven."""
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    path = tmp_path / "store"
    loose = {"solver": {"tolerance": 3e-3, "method": "conjugate"}, "objective": {"ridge": 1.0}, **EXACT, **FEW}
    taftcache.run(recipe(path, **loose))
    with open_store(path) as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]], mode="resolve")
    figures = report.certificates["models/exact"]
    assert figures.decisive
    assert figures.relative_gradient < 1.5e-3
    assert report.notes == []


@pytest.mark.law("A warm re-solve is within a tenth of what the removal moved, or is solved cold")
def test_warm_falls_back_to_cold(exact, tmp_path, monkeypatch):
    cold = shutil.copytree(exact, tmp_path / "cold")
    for module in (renewal, solving):
        monkeypatch.setattr(module, "DECISIVE", 1e-30)
    with open_store(exact) as store:
        sample = store.shard("000").sample_ids[2]
        report = taftcache.forget(store, [sample], mode="resolve")
        assert "was solved cold" in store.ledger()[-1]["notes"][0]
    assert report.notes
    with open_store(cold) as store:
        taftcache.forget(store, [sample])
    assert commits(exact) == commits(cold)


@pytest.mark.full
def test_a_cold_solve_after_a_warm_one_chooses_no_ridge_again(tmp_path, monkeypatch):
    path, cold = tmp_path / "store", tmp_path / "cold"
    taftcache.run(recipe(path, objective={"ridge": "auto"}, **EXACT, **FEW))
    shutil.copytree(path, cold)
    for module in (renewal, solving):
        monkeypatch.setattr(module, "DECISIVE", 1e-30)
    rows = []

    def counted(base, shards, *more, **how):
        rows.append(len(shards))
        return choose_ridge(base, shards, *more, **how)

    monkeypatch.setattr(solving, "choose_ridge", counted)
    with open_store(path) as store:
        sample = store.shard("000").sample_ids[2]
        assert "was solved cold" in taftcache.forget(store, [sample], mode="resolve").notes[0]
    assert sorted(rows) == [1, 2, 2]  # the shard's, the head's and the exact model's
    with open_store(cold) as store:
        taftcache.forget(store, [sample])
    assert commits(path) == commits(cold)


@pytest.mark.law("A warm re-solve is within a tenth of what the removal moved, or is solved cold")
def test_a_warm_solve_that_gave_up_is_solved_cold_until_it_decides(sampled, tmp_path, monkeypatch):
    """Whatever the recipe's tolerance: the request was for a certificate that decides."""
    monkeypatch.setattr("taftcache.stages.forget.remaking.resolve_warm", lambda *given: Warm(passes=7, failure="why"))
    taftcache.run(recipe(tmp_path / "store", solver={"tolerance": 1e-2}, **EXACT, **FEW))
    with open_store(tmp_path / "store") as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]], mode="resolve")
        moves = store.meta("models/exact")["stats"]["row_moves"]
    assert report.notes == ["models/exact was solved cold: why"]
    assert report.certificates["models/exact"].distance_bound <= 0.1 * moves


@pytest.mark.law("What was trained to a decisive tolerance, or to none that is named, has receipts that decide")
def test_without_a_tolerance_receipts_decide(sampled, tmp_path, monkeypatch):
    """Under a sample of many rows, at 10⁻² of the gradient, they would not."""
    monkeypatch.setattr("taftcache.recipe.SolverSpec.relative", 1e-2)
    ran = taftcache.run(recipe(tmp_path / "store", **EXACT, **FEW))
    trained = [c for name, c in ran.train.certificates.items() if name != "models/head"]
    for proven in (*trained, ran.compose.certificate):
        assert proven.decisive
        assert proven.relative_gradient < 5e-3
    with open_store(tmp_path / "store") as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]])
    assert all(c.decisive for c in report.certificates.values() if c.moved > 0)


@pytest.mark.law("What was trained to a decisive tolerance, or to none that is named, has receipts that decide")
def test_a_decisive_tolerance_has_receipts_that_decide(tmp_path, monkeypatch):
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    path = tmp_path / "store"
    ran = taftcache.run(recipe(path, solver={"tolerance": "decisive"}, **EXACT, **FEW))
    trained = {name: c for name, c in ran.train.certificates.items() if name != "models/head"}  # a closed form
    assert all(c.decisive and c.distance_bound > 1e-6 * c.row_moves for c in trained.values())
    assert "removing a row moves it by about" in certified(ran.compose.certificate)
    with open_store(path) as store:
        root, other = store.root_digest, {"radius": 1.0}
        with pytest.raises(RecipeError, match="has no estimate"):
            taftcache.train(store, recipe(path, solver={"tolerance": "decisive"}, objective=other, **FEW))
        assert store.root_digest == root
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]])
    assert all(c.decisive for c in report.certificates.values() if c.moved > 0)
    assert taftcache.audit(path).findings == []


@pytest.mark.law("What was trained to a decisive tolerance, or to none that is named, has receipts that decide")
@pytest.mark.parametrize("tolerance", ["auto", "decisive"])
def test_of_cross_entropy_too_the_head_among_them(tmp_path, tolerance):
    path = tmp_path / "store"
    asked = {"objective": {"loss": "cross_entropy", "ridge": 1e-3}, "solver": {"tolerance": tolerance}}
    ran = taftcache.run(recipe(path, **asked, **EXACT, **FEW))
    assert all(c.decisive for c in [*ran.train.certificates.values(), ran.compose.certificate])
    with open_store(path) as store:
        for mode in ("retrain", "resolve"):
            report = taftcache.forget(store, [store.shard("000").sample_ids[2]], mode=mode)
            assert {name for name, c in report.certificates.items() if c.decisive} == set(report.certificates)
            assert {"models/head", "models/exact"} < set(report.certificates)
            assert report.notes == []
    assert taftcache.audit(path).findings == []


def test_of_equal_rows_no_digit_is_left_to_decide_by(tmp_path):
    """∇F is zero, and its logarithm was asked for."""
    x = np.tile(np.arange(1.0, 7.0, dtype=np.float32), (36, 1))
    settings = ["store.shards=2", "data.held_out=0", "objective.loss=cross_entropy", "solver.method=conjugate"]
    path = taftcache.import_vectors(
        x, np.arange(36) % 3 % 2, tmp_path / "store", overrides=[*settings, "objective.class_weights=balanced"]
    ).store
    taftcache.train(path)
    taftcache.compose(path)
    report = taftcache.forget(path, ["rows/00000003"], mode="resolve")
    assert report.forgotten == ["rows/00000003"]
    assert taftcache.audit(path).findings == []


def test_a_model_at_the_floor_of_rounding_has_converged(tmp_path):
    """Its rounds ask for what float64 cannot tell: it was "above tolerance" from then on, with advice that is false."""
    x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    path = taftcache.import_vectors(x, np.arange(90) % 3, tmp_path / "store", overrides=["store.shards=2"]).store
    taftcache.train(path)
    taftcache.compose(path)
    report = taftcache.forget(path, ["rows/00000003"], mode="resolve")
    found = report.certificates["models/exact"]
    assert (found.converged, found.decisive) == (True, True)
    assert not any("Rounding stopped" in note for note in taftcache.train(path).notes + taftcache.compose(path).notes)


@pytest.mark.parametrize("decisive", [True, False, None])
def test_a_loose_certificate_is_said(decisive, tmp_path):
    loose = certificate(RenewedCertificate, decisive=decisive)
    report = forgetting.ForgetReport(
        store=tmp_path, root_before="", root_digest="", certificates={"components/000": loose}
    )
    assert ("too loose to prove" in forgotten_lines(report)[-1]) == (decisive is False)
    assert forgotten_lines(report)[-1].endswith(" (decisive)") == (decisive is True), "as receipts say it"


def test_a_ridge_that_the_rows_choose_again_is_no_reason_to_solve_cold(tmp_path, monkeypatch):
    path = tmp_path / "store"
    taftcache.run(recipe(path, objective={"ridge": "auto"}, **EXACT, **FEW))
    with open_store(path) as store:
        ridge, kept = store.objects()["models/exact"].meta["certificate"]["ridge"], solving.choose_ridge
        # Whether so few rows choose it again, less one of them, depends on the processor's rounding.
        monkeypatch.setattr(solving, "choose_ridge", lambda *a, **k: replace(kept(*a, **k), ridge=ridge))
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]], mode="resolve")
    figures = report.certificates["models/exact"]
    assert figures.decisive
    assert report.notes == []
