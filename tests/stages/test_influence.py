"""Leave-one-out against solving again without the row, and what the stage says of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.consent import recorded_recipe
from taftcache.errors import ArgumentError, SolveError, UnknownName, UnknownSample
from taftcache.model.component import read_base, read_component
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.inverses import class_kernel, dual
from taftcache.solve.leave_one_out import leave_one_out, moves
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.stages.look import influence
from taftcache.stages.look.influence import CHOSEN_AGAIN
from taftcache.stages.look.inside.samples import inspect_sample
from taftcache.stages.look.leaving import moved_by_each
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.progress import Silent
from taftcache.stages.train.without import ModelParts
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.terminal.inspection import show_sample_influence
from taftcache.view.asked.leaving import without_row
from taftcache.view.atlas import Atlas
from tests.solve.problems import minimised
from tests.stages.making import digits, open_store, recipe

RIDGE = 1e-3


@pytest.fixture(scope="module")
def problem(finished):
    """One shard's base, rows and a direction: the gradient of one held-out row's logit."""
    with FeatureStore(finished) as store:
        base = read_base(store, recorded_recipe(store).tangent)
        shard, held = store.shard("001"), store.held_out
        rows = ArrayRows(shard.tokens(slice(0, 20)), shard.labels[:20])
        query = ArrayRows(held.tokens(slice(0, 1)), held.labels[:1])
    return base, rows, query


@pytest.mark.law("Leave-one-out is solving without the row")
@pytest.mark.parametrize("train", ["full", "head"])
@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_closed_form_is_solving_without_the_row(problem, train, alpha):
    base, rows, query = problem
    loss = RSL(alpha=alpha, kappa=15.0)
    layout = base.trained(train)
    operator = TangentOperator(base, [query], trained=layout, dtype=torch.float64)
    unit = torch.zeros(1, operator.classes, dtype=torch.float64)
    unit[0, 4] = 1
    direction = operator.accumulate(None, lambda z, change, labels: unit)
    whole = minimised(base, [rows], loss, RIDGE, train=train, tolerance=1e-12)
    objective, loose = Objective(loss=loss, ridge=RIDGE, train=train), Goal(tolerance=1e-2)
    found = leave_one_out(base, [rows], objective, direction, delta=whole.value, goal=loose)
    assert found.method == "closed form"
    assert found.residual < 1e-7
    moved = moves(Problem(TangentOperator(base, [rows], trained=layout, dtype=torch.float64), loss, RIDGE))
    for n in (0, 7, 19):
        keep = [k for k in range(20) if k != n]
        without = minimised(
            base, [ArrayRows(rows.tokens[keep], rows.labels[keep])], loss, RIDGE, train=train, tolerance=1e-12
        )
        change = (direction @ (without.value - whole.value)).item()
        assert found.change[n].item() == pytest.approx(change, rel=1e-6, abs=1e-9)
        assert moved[n].item() == pytest.approx((without.value - whole.value).norm().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("largest", "method", "most", "alpha"),
    [
        (4096, "estimated leverages", 0.15, 1.0),
        (4096, "estimated leverages", 0.15, 3.0),
        (0, "first order", 0.65, 3.0),
        pytest.param(0, "first order", 0.65, 1.0, marks=pytest.mark.full),
    ],
)
def test_without_a_closed_form_changes_are_about_its(problem, monkeypatch, largest, method, most, alpha):
    base, rows, query = problem
    loss, ridge = RSL(kappa=15.0, alpha=alpha), 0.1
    operator = TangentOperator(base, [query], dtype=torch.float64)
    direction = operator.accumulate(None, lambda z, change, labels: torch.eye(operator.classes, dtype=z.dtype)[:1])
    whole = minimised(base, [rows], loss, ridge, tolerance=1e-12).value
    exact = leave_one_out(base, [rows], Objective(loss=loss, ridge=ridge), direction, delta=whole)
    monkeypatch.setattr(dual, "LARGEST_KERNEL", 0)
    monkeypatch.setattr(class_kernel, "LARGEST_LOGITS", largest)
    rough = leave_one_out(base, [rows], Objective(loss=loss, ridge=ridge), direction, delta=whole)
    assert rough.method == method
    assert rough.residual < 1e-3
    assert (rough.change - exact.change).norm() < most * exact.change.norm()


class CountedRows(ArrayRows):
    """Rows that know how often they were read from the first on."""

    reads = 0

    def blocks(self, size, start=0):
        self.reads += start == 0
        return super().blocks(size, start)


@pytest.mark.parametrize(("train", "largest"), [("head", None), ("full", None), ("full", 0)])
def test_passes_are_counted_once(problem, monkeypatch, train, largest):
    base, rows, _ = problem
    if largest is not None:
        monkeypatch.setattr(dual, "LARGEST_KERNEL", largest)
        monkeypatch.setattr(class_kernel, "LARGEST_LOGITS", largest)
    objective = Objective(loss=RSL(kappa=15.0), ridge=0.1, train=train)
    counted, direction = CountedRows(rows.tokens, rows.labels), torch.ones(base.trained(train).size).double()
    wide = Arithmetic(precision="float64")
    start = minimise(base, [counted], objective, goal=Goal(tolerance=1e-4), arithmetic=wide).value
    shrunk = replace(objective, ridge=0.1 * 19 / 20)
    counted.reads = 0
    passes = 0
    if largest is not None:  # in closed form nothing is solved for beforehand
        passes = minimise(base, [counted], shrunk, start=start, arithmetic=wide).stats.passes
    alone, counted.reads = counted.reads, 0
    # One block of rows, never kept: each pass reads them once. Kronecker factors read them for themselves.
    found = leave_one_out(base, [counted], objective, direction, delta=start, memory=0)
    assert found.passes - passes == counted.reads - alone


def test_a_sample_is_compared_with_having_forgotten_it(finished, tmp_path):
    with FeatureStore(finished) as store:
        sample = store.shard("000").sample_ids[5]
        told = taftcache.sample_influence(store, sample)
        base = read_base(store, recorded_recipe(store).tangent)
        before = read_component(store, "models/mean", base).delta
    assert told.own_logit_without < told.own_logit
    assert told.held_out > 0
    path = shutil.copytree(finished, tmp_path / "store")
    with open_store(path) as store:
        taftcache.forget(store, [sample])
        after = read_component(store, "models/mean", base).delta
    assert told.moved == pytest.approx((after - before).norm().item(), rel=1e-4)
    assert told.distance_bound < 0.1 * told.moved


def test_another_ridge_is_said_beside_what_a_sample_moves(tmp_path, capsys):
    """Without some rows the others choose another λ, which moves the model far more than the row does."""
    rng = np.random.default_rng(2)
    x, y, path = rng.standard_normal((60, 5)), np.arange(60) % 3, tmp_path / "store"
    taftcache.import_vectors(x, y, path, overrides=["store.shards=2"])
    taftcache.train(path)
    with FeatureStore(path) as store:
        shard, name = store.shards[0], f"components/{store.shards[0].name}"
        told = {sample: taftcache.sample_influence(store, sample, model=name) for sample in shard.sample_ids}
        atlas = Atlas(store)
        atlas.work(skip=("head path", "neighbours"))
        for row, (sample, one) in enumerate(told.items()):
            alone = atlas.moved[atlas.table.find(sample)]  # under the component's own λ
            assert (one.moved == pytest.approx(alone, rel=1e-3)) == (one.ridge[0] == one.ridge[1])
            if one.ridge[0] != one.ridge[1]:
                assert without_row(atlas, shard, row, Silent()).ridge == one.ridge
    others = [sample for sample, one in told.items() if one.ridge[0] != one.ridge[1]]
    assert 0 < len(others) < len(told)
    for sample in (others[0], next(sample for sample in told if sample not in others)):
        with pytest.raises(SystemExit, match="0"):
            main(["influence", str(path), "--model", name, "--sample", sample])
        assert ("with another λ" in " ".join(capsys.readouterr().out.split())) == (sample in others)


def test_a_query_names_the_samples_that_moved_it(finished, tmp_path):
    with FeatureStore(finished) as store:
        query = store.held_out.sample_ids[2]
        report = taftcache.query_influence(store, query, top=4)
        assert report.method == "closed form"
        (first, *_) = report.samples
        told = taftcache.sample_influence(store, first.sample)
        assert told.shard == first.shard
        base = read_base(store, recorded_recipe(store).tangent)
        shard, row = store.locate(query)
        few = ArrayRows(shard.tokens(slice(row, row + 1)), shard.labels[row : row + 1])
        mean = read_component(store, "models/mean", base)
    path = shutil.copytree(finished, tmp_path / "store")
    with open_store(path) as store:
        taftcache.forget(store, [first.sample])
        after = read_component(store, "models/mean", base)
    operator = TangentOperator(base, [few], dtype=torch.float64)
    (moved,) = operator.matvec(after.delta - mean.delta)
    k = [str(c) for c in range(10)].index(report.label)
    assert first.change == pytest.approx(moved[0, k].item(), rel=1e-4)
    assert [abs(s.change) for s in report.samples] == sorted((abs(s.change) for s in report.samples), reverse=True)


def test_an_image_file_is_a_query_too(finished, tmp_path):
    from PIL import Image

    with pytest.raises(UnknownSample, match=r"neither a file nor a sample: no row has the id 'digit\.pgn'"):
        taftcache.query_influence(finished, "digit.pgn")
    images, _ = digits()
    file = tmp_path / "digit.png"
    Image.fromarray(images[3]).convert("RGB").save(file)
    with FeatureStore(finished) as store:
        report = taftcache.query_influence(store, file, model="models/head", top=2)
        in_memory = taftcache.query_influence(store, np.repeat(images[3][..., None], 3, 2), model="models/head", top=2)
    assert len(report.samples) == 2
    assert report.method == "closed form"
    assert in_memory.query == "at index 0"
    assert in_memory.samples == report.samples


def test_a_query_of_a_store_of_vectors_is_an_id(tmp_path, capsys):
    """As it is written: a path would make one slash of two."""
    x, y = np.random.default_rng(0).standard_normal((20, 5)), np.arange(20) % 2
    ids = [f"https://example.org/{k}" for k in range(20)]
    taftcache.import_vectors(x, y, tmp_path / "s", ids=ids, overrides=["store.shards=1"])
    taftcache.train(tmp_path / "s")
    taftcache.compose(tmp_path / "s")
    with pytest.raises(SystemExit, match="0"):
        main(["influence", str(tmp_path / "s"), "--query", ids[3], "--json"])
    assert json.loads(capsys.readouterr().out)["query"] == ids[3]
    with pytest.raises(UnknownSample, match=r"^no row has the id 'https:"):
        taftcache.query_influence(tmp_path / "s", "https://example.org/33")
    for given, kind in ((ids[3:4], "list"), (x[0], "ndarray")):
        with pytest.raises(ArgumentError, match=rf"(?s)store of vectors must be one id, a text.*of type {kind}"):
            taftcache.query_influence(tmp_path / "s", given)


def test_where_there_is_no_closed_form_the_first_are_solved(tmp_path, monkeypatch):
    path = tmp_path / "store"
    taftcache.run(recipe(path, data={"source": "digits", "limit": 30}, objective={"ridge": 1.0}))
    monkeypatch.setattr(dual, "LARGEST_KERNEL", 0)
    monkeypatch.setattr(influence, "SOLVED", 1)
    with FeatureStore(path) as store:
        report = taftcache.query_influence(store, store.held_out.sample_ids[0], top=3)
    assert report.method == "estimated leverages"
    assert [s.solved is not None for s in report.samples] == [True, False, False]
    first = report.samples[0]
    assert first.bound < abs(first.solved)
    assert (first.ridge, report.samples[1].ridge, {*report.ridges.values()}, report.notes) == (1.0, None, {1.0}, [])
    (told,) = influence._notes(ModelParts(FeatureStore(path), "models/mean", Silent()), [replace(first, bound=9.0)])
    assert told.endswith("--set solver.tolerance=decisive")


def test_a_query_says_at_which_ridge_its_changes_hold(tmp_path, capsys):
    """A forget chose λ = 0.01 in place of 0.1, and moved a logit by twice what was said, without a word."""
    x, y = load_digits(return_X_y=True)
    some = np.random.default_rng(3).permutation(len(x))[:69]
    path, ids = tmp_path / "s", [f"r{k:03}" for k in range(69)]
    taftcache.import_vectors(x[some], y[some], path, ids=ids, overrides=["store.shards=1"])
    taftcache.train(path)
    taftcache.compose(path)
    with FeatureStore(path) as store:
        query = store.held_out.sample_ids[0]
        report = taftcache.query_influence(store, query, top=69)
        one = next(
            s for s in report.samples if (own := taftcache.sample_influence(store, s.sample)).ridge[0] != own.ridge[1]
        )
        ridge = own.ridge[0]
    assert (report.method, report.ridges, report.notes) == ("closed form", {"components/000": ridge}, [CHOSEN_AGAIN])
    assert one.ridge is None
    with pytest.raises(SystemExit, match="0"):
        main(["influence", str(path), "--query", query])
    said = " ".join(capsys.readouterr().out.split())
    assert f"closed form at λ = {ridge:.1e}, held fixed" in said
    assert "forget chooses it again" in said


def test_without_a_sample_the_exact_model_goes_on_from_its_dual_vectors(tmp_path, monkeypatch):
    """From Δw alone there are only Kronecker factors, a thousand passes, and a bound that says nothing."""
    monkeypatch.setattr(dual, "LARGEST_KERNEL", 0)
    path = tmp_path / "store"
    few = {"source": "digits", "limit": 60}
    taftcache.run(recipe(path, store={"shards": 2}, data=few, objective={"ridge": 1e-5}, compose={"mode": "exact"}))
    with FeatureStore(path) as store:
        sample = store.shards[1].sample_ids[2]
        parts = ModelParts(store, "models/exact", Silent())
        (part,) = parts.parts
        bare = replace(part, component=replace(part.component, dual=None))
        cold, warm = (parts.solve_without(p, *store.locate(sample)) for p in (bare, part))
        told = taftcache.sample_influence(store, sample)
    assert told.model == "models/exact"
    assert warm.record.passes == told.passes < 0.7 * cold.record.passes
    assert told.distance_bound < 0.1 * told.moved
    apart = (warm.delta - cold.delta).norm().item()
    assert apart <= warm.record.certified.distance_bound + cold.record.certified.distance_bound
    assert told.moved == pytest.approx((cold.delta - part.component.delta).norm().item(), abs=apart)


@pytest.mark.parametrize(
    ("model", "shard", "error", "says"),
    [
        ("models/nothing", "000", UnknownName, "no model named models/nothing"),
        ("models/mean", "held-out", ArgumentError, "it is held out"),
        ("components/000", "001", ArgumentError, "(?s)shard 001 has no part .*train .* --shard 001"),
    ],
)
def test_what_has_no_influence_is_refused(finished, model, shard, error, says):
    """An id that the store has is no unknown sample, whatever it has no influence on."""
    with FeatureStore(finished) as store, pytest.raises(error, match=says):
        taftcache.sample_influence(store, store.shard(shard).sample_ids[0], model=model)


def test_the_only_row_of_a_shard_takes_its_component_along(tmp_path):
    """Forgetting it drops the component: the mean becomes that of the others; without it there is no component."""
    x, y = np.random.default_rng(0).standard_normal((3, 5)), np.array([0, 1, 0])
    three = ["store.shards=3", "store.plan=balanced", "data.held_out=0"]
    taftcache.import_vectors(x, y, tmp_path / "s", overrides=three)
    taftcache.train(tmp_path / "s")
    taftcache.compose(tmp_path / "s")
    with FeatureStore(tmp_path / "s") as store:
        sample = store.shards[1].sample_ids[0]  # of a class that has another row
        assert inspect_sample(store, sample).moved_bound is None
        assert [moved for _, moved in moved_by_each(store, Scorer(store), store.shards)] == [None] * 3
        with pytest.raises(SolveError, match="no rows but those left out"):
            taftcache.sample_influence(store, sample, model="components/001")
        with pytest.raises(SolveError, match="needs another beside it"):
            taftcache.query_influence(store, sample, model="components/001")
        assert taftcache.sample_influence(store, sample, model="models/exact").moved > 0
        query = store.shards[0].sample_ids[0]
        asked = taftcache.query_influence(store, query, model="models/mean")
        told = taftcache.sample_influence(store, sample, model="models/mean")
    gone = shutil.copytree(tmp_path / "s", tmp_path / "gone")
    taftcache.forget(gone, [sample])
    after = taftcache.query_influence(gone, query, model="models/mean", label=asked.label)
    assert [s.sample for s in asked.samples].count(sample) == 1 < len(asked.samples) == 3
    (mine,) = [s for s in asked.samples if s.sample == sample]
    assert mine.change == pytest.approx(after.logit - asked.logit, rel=1e-5)
    with FeatureStore(tmp_path / "s") as store, FeatureStore(gone) as left:
        mean, rest = (read_component(each, "models/mean", read_base(store, recorded_recipe(store).tangent)).delta
                      for each in (store, left))  # fmt: skip
    assert told.moved == pytest.approx((rest - mean).norm().item(), rel=1e-5)
    assert (told.passes, told.ridge[0]) == (0, told.ridge[1])
    assert 0 < told.distance_bound < told.moved
    with open_store(tmp_path / "s") as store:
        taftcache.compose(store, overrides={"compose.mode": "weighted"})
        weighed = taftcache.query_influence(store, query, model="models/weighted")
    assert (weighed.samples, weighed.notes[-1][:61]) == (
        [],
        "not listed, for without it its component is gone: the only ro",
    )


def test_any_class_can_be_asked_about(finished, capsys):
    """What each row adds to a logit is the same whichever class is predicted."""
    with FeatureStore(finished) as store:
        query = store.held_out.sample_ids[2]
        usual = taftcache.query_influence(store, query, top=3)
        other = next(name for name in store.classes if name != usual.label)
        asked = taftcache.query_influence(store, query, label=other, top=3)
        same = taftcache.query_influence(store, query, label=usual.label, top=3)
        with pytest.raises(UnknownName, match="has no class 77"):
            taftcache.query_influence(store, query, label="77")
    assert same == usual
    assert (usual.predicted, asked.predicted, asked.label) == (usual.label, usual.label, other)
    assert asked.logit < usual.logit
    assert asked.samples != usual.samples
    with pytest.raises(SystemExit, match="0"):
        main(["influence", str(finished), "--query", query, "--class", other])
    assert f"{query}: {other}, logit {asked.logit:.3f}" in (said := " ".join(capsys.readouterr().out.split()))
    assert f"({usual.label} is predicted)" in said
    with pytest.raises(SystemExit, match="2"):
        main(["influence", str(finished), "--sample", query, "--class", other])


def test_a_query_of_another_objective_names_the_way_out(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((20, 5)), np.arange(20) % 2
    settings = {"store.shards": 1, "objective.class_weights": "balanced"}
    taftcache.import_vectors(x, y, tmp_path / "s", overrides=settings)
    taftcache.train(tmp_path / "s")
    with pytest.raises(SolveError, match=r"(?s)no jvp_only.*jvp_only = False.*influence \S+ --sample ID"):
        taftcache.query_influence(tmp_path / "s", "rows/00000003", model="components/000")


def test_a_relative_tolerance_that_is_met_beforehand_is_no_answer(tmp_path, capsys):
    """Under cross-entropy "Δw moves by 0" was said of samples that move it: the old Δw met the tolerance as it was."""
    g = np.random.default_rng(0)
    x, y = g.normal(size=(120, 6)).astype(np.float32), np.arange(120) % 3
    x[np.arange(120), y] += 1
    settings = ["store.shards=1", "data.held_out=0", "objective.loss=cross_entropy", "objective.ridge=1e-4"]
    found = {}
    for tolerance in ("1e-2", "1e-9"):
        path = tmp_path / tolerance
        taftcache.import_vectors(x, y, path, overrides=[*settings, f"solver.tolerance={tolerance}"])
        taftcache.train(path)
        taftcache.compose(path)
        found[tolerance] = taftcache.sample_influence(path, "rows/00000017", model="components/000")
        show_sample_influence(found[tolerance])
    loose, close = found.values()
    assert abs(loose.moved - close.moved) <= loose.distance_bound + close.distance_bound, "of two optima"
    assert close.distance_bound < 0.2 * close.moved
    assert capsys.readouterr().out.count("nothing tells what the sample moves") == (loose.moved <= loose.distance_bound)
    assert loose.moved <= loose.distance_bound
    # of a removal that is another problem, as with another λ, the old Δw is no answer either
    parts = ModelParts(FeatureStore(tmp_path / "1e-2"), "components/000", Silent())
    (part,) = parts.parts
    without = parts.solve_without(part, part.shards[0], range(100))
    bound = without.record.certified.distance_bound
    moved = (without.delta - part.component.delta).norm().item()
    assert bound <= max(0.1 * moved, part.component.record.certified.distance_bound)
