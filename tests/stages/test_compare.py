"""Comparisons on tiny data: what they compute, not who wins."""

from __future__ import annotations

import csv
import json
import random
import re
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import BackboneError, DataError, RecipeError, StoreError, StoreWriteError
from taftcache.objective.objective import MOST
from taftcache.objective.rsl import LARGEST
from taftcache.paper import figures as paper_figures
from taftcache.paper import trial as paper_trial
from taftcache.paper.comparison import REPORTS, TITLES, compare
from taftcache.paper.line import ReportLine, Tuned
from taftcache.paper.pages import BRACKETS, about, check_pages, page, write_pages
from taftcache.paper.tables import table1
from taftcache.paper.trial import Chosen, Setting, Trial
from taftcache.paper.uncomposed import EXACT, HEAD, HEADS
from taftcache.paper.workbench import SPLIT, Workbench
from taftcache.stages.look.probe import head_features
from taftcache.stages.progress import Silent
from taftcache.tangent.operator import TangentOperator
from taftcache.terminal.experiments import show_compare
from tests.stages.making import recipe, toml, write_images

SMALL = {
    "shards": [2, 3], "seeds": 2, "epochs": 1, "ridges": [1e-1], "head_ridges": [1e-1], "rates": [1e-2], "orders": 3,
    "forgotten": [0.5],
}  # fmt: skip
QUICK = {"tolerance": 5e-3, "max_passes": 10}
ALL = [name for name in TITLES if name != "table3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("compared") / "store"
    taftcache.extract(recipe(path))
    return path


@pytest.fixture(scope="module")
def whole(place):
    """Every report of one comparison."""
    return compare(recipe(place, solver=QUICK, compare={**SMALL, "seeds": 1, "reports": ALL}))


@pytest.fixture(scope="module")
def written(whole, tmp_path_factory):
    """A folder with the pages of ``whole``, and their files."""
    folder = tmp_path_factory.mktemp("written")
    return folder, write_pages(whole, folder)


def lines(report, name):
    return next(made.lines for made in report.reports if made.report == name)


def test_every_report_has_its_figures(whole):
    assert [made.report for made in whole.reports] == ALL
    for made in whole.reports:
        assert all(0 <= line.accuracy <= 100 and line.std >= 0 and line.setting for line in made.lines)
        assert {line.preset for line in made.lines} == {"paper", "exact"}
    methods = {name: {line.method for line in lines(whole, name)} for name in ALL}
    assert methods["table1"] == {"NLFT-1", "TAFT-1", "FC"}
    assert methods["table2"] == {"TAFT", "Soup", HEADS, HEAD, EXACT}
    assert methods["figure1a"] == {"TAFT", HEADS, HEAD, EXACT}
    assert methods["figure1b"] == {"TAFT", "SISA", HEADS, HEAD, EXACT}
    assert methods["figure2a"] == {"RSL", "CE", "MSE"}
    assert methods["figure2b"] == {"PT=T", "PT=F"}
    assert methods["figure2c"] == {"CLS=T", "CLS=F"}
    assert {(line.method, line.radius) for line in lines(whole, "table7")} == {
        (loss, radius) for loss in ("CE", "RSL") for radius in (1.0, 10.0)
    }
    removed = {(line.shards, line.removed) for line in lines(whole, "figure1a")}
    assert removed == {(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)}  # a model of no shard is none
    assert {line.forgotten for line in lines(whole, "figure1c")} == {0.0, 0.5}
    assert whole.digests == {"store": FeatureStore(whole.store).root_digest}


def test_reports_agree_where_they_say_the_same(whole):
    def at(name, **keys):
        return [x.accuracy for x in lines(whole, name) if all(getattr(x, k) == v for k, v in keys.items())]

    for preset in ("paper", "exact"):
        for shards in (2, 3):
            same = {"method": "TAFT", "preset": preset, "shards": shards}
            composed = at("table2", **same)
            assert composed == at("figure1a", removed=0, **same) == at("figure1b", removed=0, **same)
            assert composed == at("figure1c", forgotten=0.0, **same)
        assert at("table1", method="TAFT-1", preset=preset) == at("figure2a", method="RSL", preset=preset)
    for name in (EXACT, HEAD):  # whatever the number of shards: of all rows there is one such model
        (all_rows,) = at("table2", method=name)
        assert {all_rows} == {*at("figure1a", method=name, removed=0), *at("figure1b", method=name, removed=0)}
    assert at("table2", method=EXACT) == at("table1", method="TAFT-1", preset="exact")
    scratch = {x.from_scratch for x in lines(whole, "figure1c") if x.forgotten == 0.0}
    assert scratch == {*at("table1", method="TAFT-1")}  # and from scratch is as good as one model gets
    assert at("table2", method=HEADS, shards=2) == at("figure1a", method=HEADS, shards=2, removed=0)


@pytest.mark.law("A head that others are held against is solved from zero, as another tool would solve it")
def test_an_exact_head_is_ridge_regression(place):
    with FeatureStore(place) as store:
        trial = Trial(store, recipe(place), 2, 0)
        setting = Setting("FC", 1e-2, loss="mse")
        found = trial.fit([setting])[setting]
        base = trial.base(setting)
        X, y = head_features(base, [Chosen(store, trial.parts[0])])
        Z, _ = head_features(base, [trial.test])
    K = base.config.classes
    # The loss is a mean over rows and classes, the ridge λ/2; scikit-learn has sums of both and the whole of λ.
    fit = Ridge(alpha=1e-2 * len(X) * K / 2, fit_intercept=False).fit(ones(X), np.eye(K)[y])
    assert np.allclose(found.logits[0], fit.predict(ones(Z)), atol=1e-4)


def ones(features):
    """With a column for the bias, which the ridge is on too."""
    return np.concatenate([features, np.ones((len(features), 1), features.dtype)], 1).astype(np.float64)


@pytest.mark.law("Rows that choose a setting train nothing; what reports share is trained once")
def test_what_reports_share_is_trained_once(place, monkeypatch):
    calls = []
    fit = Trial.fit
    monkeypatch.setattr(
        Trial, "fit", lambda self, s, parts=None: calls.append((self.seed, list(s))) or fit(self, s, parts)
    )
    small = {**SMALL, "shards": [2], "seeds": 1, "presets": ["paper"], "resets": [True], "tokens": [False]}
    compare(recipe(place, compare={**small, "reports": ["table2", "figure1a", "figure1b"]}))
    # one split for TAFT and one for the fine-tuned networks of soup and SISA; there is nothing to choose from
    assert len(calls) == 2
    calls.clear()
    small["rates"] = [1e-2, 1e-3]
    compare(recipe(place, compare={**small, "reports": ["table2", "figure1a", "figure1b"]}))
    assert len(calls) == 4  # and a choice for each, of both rates in one call
    assert [len(settings) for _, settings in calls] == [2, 1, 2, 1]


def test_what_reports_share_is_counted_once(place):
    with Workbench(recipe(place, compare={**SMALL, "ridges": [1e-2, 1e-1]}), Silent()) as work:
        work.tuned("TAFT", "exact", 2)
        before = dict(work.spent)
        assert before["TAFT, exact"] > 0
        work.tuned("TAFT", "exact", 2, resets=(True,))  # of which the same run over the rows told
        assert work.spent == before


@pytest.mark.parametrize("radius", [None, 0.5], ids=["plain", "ball"])
def test_of_an_interrupted_solve_nothing_is_kept(place, tmp_path, monkeypatch, radius):
    def stop(passes: int, residual: float) -> None:
        raise KeyboardInterrupt

    for name in ("minimise", "minimise_in_balls"):
        monkeypatch.setattr(paper_trial, name, partial(getattr(paper_trial, name), on_pass=stop))
    asked = Setting("TAFT", 1e-2, radius=radius)
    with Workbench(recipe(place, compare=SMALL), Silent(), tmp_path) as work, pytest.raises(KeyboardInterrupt):
        work.fit([asked], 2, 0)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.law("Settings that share a pass are what each would be alone, and torch's own Adam makes the same")
def test_settings_in_one_pass_are_those_trained_alone(place):
    with FeatureStore(place) as store:
        trial = Trial(store, recipe(place, compare=SMALL), 2, 0)
        some = [
            Setting("TAFT", 1e-3, True, "paper"),
            Setting("TAFT", 1e-2, True, "paper", loss="cross_entropy"),
            Setting("TAFT", 1e-2, True, "paper", kappa=5.0, radius=0.1),
        ]
        together = trial.fit(some)
        for setting in some:
            alone = trial.fit([setting])[setting]
            assert torch.equal(together[setting].mean, alone.mean)
            assert torch.equal(together[setting].logits, alone.logits)
        assert together[some[2]].mean.norm() <= 0.1 * (1 + 1e-6)
        assert together[some[1]].mean.norm() > 0.1


def test_radii_solved_together_are_each_within_its_tolerance(place):
    with FeatureStore(place) as store:
        trial = Trial(store, recipe(place, compare=SMALL, solver={"tolerance": 1e-5}), 1, 0)
        some = [Setting("TAFT", 0.0, True, kappa=5.0, radius=radius) for radius in (2.0, 0.5, 1.0)]
        together = trial.fit(some)
        alone = {setting: trial.fit([setting])[setting] for setting in some}
        for setting in some:
            difference = (together[setting].mean - alone[setting].mean).norm()
            assert difference <= 1e-3 * setting.radius
            assert together[setting].mean.norm() == pytest.approx(setting.radius, rel=1e-6)
            assert together[setting].gradient <= 1e-5
        passes = [sum(sum(fit.passes) for fit in fits.values()) for fits in (together, alone)]
        assert passes[0] < 0.9 * passes[1]


def test_the_mean_of_logits_is_the_composed_model(place):
    with FeatureStore(place) as store:
        trial = Trial(store, recipe(place), 3, 0)
        setting = Setting("TAFT", 1e-2, True)
        fitted = trial.fit([setting])[setting]
        base = trial.base(setting)
        direct = trial.tangent_logits(base, fitted.mean[None])[0]
        assert torch.allclose(fitted.logits.mean(0), direct, atol=1e-4)
        operator = TangentOperator(base, [trial.test])
        assert np.array_equal(trial.taft(fitted, range(3)), trial.right(direct.argmax(1)))
        assert sum(s.rows for s in operator.sources) == len(trial.labels)


@pytest.mark.law("Rows that choose a setting train nothing; what reports share is trained once")
def test_validation_rows_train_nothing(place):
    with FeatureStore(place) as store:
        everyone, part = Trial(store, recipe(place), 3, 0), Trial(store, recipe(place), 3, 0, validate=True)
        ids = [i for p in everyone.parts for i in p]
        trained = [i for p in part.parts for i in p]
        assert sorted(ids) == sorted(store.sample_ids())
        assert set(trained) < set(ids)
        assert part.test.rows == len(ids) - len(trained)
        gone = ids[:5]
        assert not {i for p in Trial(store, recipe(place), 3, 0, without=gone).parts for i in p} & set(gone)


def test_a_depth_that_the_model_does_not_have_is_refused_before_anything_is_trained(place, monkeypatch):
    monkeypatch.setattr(Workbench, "tuned", lambda *_, **__: pytest.fail("something is trained"))
    made = recipe(place, compare={**SMALL, "depths": [99]})
    with Workbench(made, Silent()) as work, pytest.raises(BackboneError, match="99"):
        list(table1(work))


def test_settings_are_never_chosen_on_the_rows_that_are_reported(place, monkeypatch):
    """Of a few training rows a fifth, each by its own hash, may be none."""
    monkeypatch.setattr(paper_trial, "held_out", lambda *_: set())
    with FeatureStore(place) as store, pytest.raises(DataError, match="no row is set aside"):
        Trial(store, recipe(place), 1, 0, validate=True)


def test_a_shard_of_which_all_rows_are_forgotten_is_dropped(place):
    one = {"shards": [16], "seeds": 1, "presets": ["exact"], "forgotten": [0.8], "resets": [False], "tokens": [False]}
    made = recipe(place, solver=QUICK, compare={**SMALL, **one})
    with Workbench(made, Silent()) as work:
        line = list(paper_figures.figure1c(work))[-1]
    assert line.seconds_all_shards < 16 * line.seconds_a_shard
    assert 0 < line.accuracy <= 100


def test_the_exact_preset_takes_the_ridge_of_least_loss_and_the_base_point_by_accuracy(place):
    with Workbench(recipe(place, compare={**SMALL, "ridges": [1e-3, 1e-1, 1e1]}), Silent()) as work:
        best = work.tuned("TAFT", "exact", 2)
        (logged,) = work.settings
        losses = {(t["ridge"], t["PT"]): t["loss"] for t in logged.tried}
        assert len(losses) == 6
        point = "F" if best.reset_block else "T"
        assert losses[best.strength, point] == min(loss for (_, at), loss in losses.items() if at == point)
        right = {(t["ridge"], t["PT"]): t["accuracy"] for t in logged.tried}
        least = {at: min((loss, ridge) for (ridge, x), loss in losses.items() if x == at)[1] for at in "TF"}
        assert right[best.strength, point] == max(right[least[at], at] for at in "TF")


@pytest.mark.parametrize("twice", [{"rates": [1e-2] * 2}, {"resets": [True] * 2}, {"tokens": [True] * 2}])
def test_a_value_that_is_listed_twice_is_tried_once(place, twice):
    few = {**SMALL, "rates": [1e-2, 1e-3], "resets": [False], "tokens": [False], **twice}
    with Workbench(recipe(place, compare=few), Silent()) as work:
        work.tuned("NLFT", "paper", tokens=work.tokens())
    tried = [str(one) for one in work.settings[0].tried]
    assert len(tried) == len(set(tried)) == (1 if "rates" in twice else 2)


def test_pages_say_what_was_measured(whole, written):
    folder, files = written
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "| times faster, one shard | times faster, all shards |" in text
    (line,) = [x for x in lines(whole, "figure1c") if x.forgotten == 0.5][:1]
    assert line.all_times_faster == pytest.approx(line.seconds_from_scratch / line.seconds_all_shards)
    assert "(mean over the radii)" in text
    assert whole.digests["store"] in text
    assert whole.machine in text
    assert "over 1 seed of the split and the base point; of one, ± 0.0 says nothing, and no interval is for" in text
    assert text.count(BRACKETS) == 1, "beside what the paper found"
    assert re.search(r"\b1 (seeds|epochs|passes|threads)\b", text) is None
    for made in whole.reports:
        assert f"## {made.title}" in text
        rows = list(csv.DictReader((folder / f"{made.report}.csv").read_text(encoding="utf-8").splitlines()))
        assert [float(row["accuracy"]) for row in rows] == [line.accuracy for line in made.lines]
        assert all(row["digest"] == whole.digests["store"] and row["depth"] == "1" for row in rows)
        assert all(row["setting.preset"] for row in rows)
        assert {row["converged"] for row in rows} <= {"", "True", "False"}
        assert all((row["preset"] == "exact") == bool(row["tolerance"]) == bool(row["converged"]) for row in rows)
    plots = [file for file in files if file.suffix == ".svg"]
    assert {p.name for p in plots} == {
        *(f"figure1{x}-{n}.svg" for x in "ab" for n in (2, 3)), "figure1c.svg", *(f"figure2{x}.svg" for x in "abc"),
    }  # fmt: skip
    assert all("<svg" in p.read_text(encoding="utf-8") and f"]({p.name})" in text for p in plots)
    kept = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert kept["recipe"]["compare"]["epochs"] == 1
    assert kept["recipe"]["privacy"]["steps"] == 50
    assert "τ = 0.005; 0.0005 if CLS = T and for cross-entropy without a ball; 0.001 for a head;" in text
    assert len(kept["reports"]) == len(ALL)
    (row,) = [r for r in text.split("## Table 1")[1].splitlines() if r.startswith("| exact")][:1]
    assert row == "| exact |  | " + " | ".join(
        x.spread()
        for name in ("TAFT-1", "FC") for x in lines(whole, "table1") if (x.method, x.preset) == (name, "exact")
    ) + " |"  # fmt: skip


def test_a_choice_at_an_end_of_its_list_is_named(whole, capsys):
    """A model that a larger λ would make better is no measure of the one beside it."""

    def tuned(chosen, *tried, **keys):
        said = [{"preset": "exact", "ridge": ridge, "loss": "rsl"} for ridge in tried]
        return Tuned(**{"method": "FC", "depth": 1, "shards": 1, **keys}, chosen=said[chosen], tried=said)

    some = [tuned(0, 1e-1, 1e-2, 1e-3), tuned(1, 1e-1, 1e-2, 1e-3), tuned(0, 1e-1, 1e-2), tuned(0, 1e-1)]
    some += [tuned(2, 1e-1, 1e-2, 1e-3, method="TAFT", shards=shards) for shards in (25, 50, 50)]
    rates = [{"preset": "paper", "rate": rate, "loss": "rsl"} for rate in (1e-3, 1e-4)]
    some += [Tuned(method="TAFT", depth=1, shards=10, chosen=rates[0], tried=rates)]
    rates = [{"PT": "T", "rate": rate} for rate in (0.3, 1.0, 3.0)]
    some += [Tuned(method="full, tangent, ε = 1", depth=1, shards=1, chosen=rates[0], tried=rates)]
    made = replace(whole, reports=[replace(whole.reports[0], settings=some)])
    assert [line for line in about(made) if "another may be better" in line] == [
        "- λ of FC (rsl, 1 shard) is the largest that was tried; another may be better",
        "- λ of TAFT (rsl, 25, 50 shards) is the least that was tried; another may be better",
        "- rate of TAFT (rsl, 10 shards) is the largest that was tried; another may be better",
        "- rate of full, tangent, ε = 1 is the least that was tried; another may be better",
    ]
    assert not any("another may be better" in line for line in about(whole))
    show_compare(made)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("its λ is the largest that was tried") == 1
    assert printed.count("its λ is the least that was tried") == 3
    assert printed.count("its rate is the largest that was tried") == 1


def test_what_is_solved_anew_is_the_model_of_the_rows_that_remain(whole, place):
    """One order a seed, the rows of the shards that are gone left out, solved cold."""
    found = {(x.method, x.shards, x.removed): x for x in lines(whole, "figure1a") if x.preset == "exact"}
    one = found[EXACT, 3, 1]
    setting = Setting("TAFT", one.setting["ridge"], one.setting["PT"] == "F", reset_token=one.setting["CLS"] == "T")
    with FeatureStore(place) as store:
        split = Trial(store, recipe(place, solver=QUICK), 3, 0)
        order = random.Random(0).sample(range(3), 3)
        fitted = split.fit([setting], [sorted(i for shard in order[1:] for i in split.parts[shard])])[setting]
        assert np.array_equal(split.taft(fitted, [0]), one.right.shares()[0])
    assert one.passes == fitted.passes[0]
    assert found["TAFT", 3, 1].right.of == 3  # orders
    assert found["TAFT", 3, 1].passes is None


def test_from_scratch_is_the_setting_that_one_model_chose(place, monkeypatch):
    """What shards are best solved with is no measure of a full solve's time."""
    chosen = {1: Setting("TAFT", 1e-1), 2: Setting("TAFT", 1e-2, True)}
    made = recipe(place, solver=QUICK, compare={**SMALL, "shards": [2], "seeds": 1, "presets": ["exact"]})
    asked = []
    fit = Workbench.fit
    monkeypatch.setattr(Workbench, "tuned", lambda self, criterion, preset, shards=1, **_: chosen[shards])
    monkeypatch.setattr(
        Workbench, "fit", lambda self, s, shards, *a, **k: asked.append((shards, *s)) or fit(self, s, shards, *a, **k)
    )
    with Workbench(made, Silent()) as work:
        last = list(paper_figures.figure1c(work))[-1]
    assert set(asked) == set(chosen.items())
    assert last.seconds_all_shards == pytest.approx(2 * last.seconds_a_shard)
    assert last.times_faster == pytest.approx(last.seconds_from_scratch / last.seconds_a_shard)


@pytest.mark.law("A comparison trains, solves and measures on the recipe's device")
def test_everything_runs_on_the_recipes_device(place, monkeypatch):
    asked, seen = torch.device("cpu", 0), set()
    monkeypatch.setattr(paper_trial, "float64_device", lambda name: asked if name == "cpu" else None)
    names = ("fine_tune", "predict", "train_tangents", "minimise", "ridge_path", "TangentOperator")

    def watched(name, real):
        def call(*arguments, **keys):
            seen.add((name, keys["device"] if "arithmetic" not in keys else keys["arithmetic"].device))
            return real(*arguments, **keys)

        return call

    for name in names:
        monkeypatch.setattr(paper_trial, name, watched(name, getattr(paper_trial, name)))
    with FeatureStore(place) as store:
        trial = Trial(store, recipe(place, solver=QUICK, compare=SMALL), 2, 0, validate=True)
        settings = [Setting("NLFT", 1e-2, preset="paper"), Setting("TAFT", 1e-2, preset="paper"), Setting("TAFT", 1e-1)]
        fitted = trial.fit(settings)
        trial.path(settings[2], [1e-1])
        trial.soup(settings[0], fitted[settings[0]])
    assert seen == {(name, asked) for name in names}


def test_a_line_keeps_the_rows_that_were_right(whole, written):
    folder, _ = written
    kept = msgspec.json.decode((folder / "report.json").read_bytes(), type=dict)
    for made, written in zip(whole.reports, kept["reports"], strict=True):
        for line, raw in zip(made.lines, written["lines"], strict=True):
            assert line.right.rows == whole.held_out
            assert line.accuracy == pytest.approx(100 * line.right.shares().mean(), abs=1e-9)
            assert msgspec.convert(raw, ReportLine) == line
        assert "right" not in (folder / f"{made.report}.csv").read_text(encoding="utf-8").splitlines()[0]


def test_any_folder_and_any_backbone(tmp_path):
    """Nothing knows the bundled data: a folder of images, random weights, pooling without a class token."""
    images = write_images(tmp_path / "images", per_class=8)
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "global_pool": "avg"}
    made = compare(
        recipe(
            tmp_path / "store",
            data={"source": "folder", "train": str(images), "held_out": 0.25},
            backbone={
                "model": "vit_tiny_patch16_224",
                "weights": str(random_weights(tmp_path / "random.safetensors", shape)),
                "model_args": {**shape, "class_token": False},
            },
            solver=QUICK,
            compare={
                **SMALL, "shards": [2], "seeds": 1, "resets": [True], "depths": [1, 2],
                "reports": ["table1", "table2", "figure1a", "figure2c"],
            },
        )
    )  # fmt: skip
    assert {line.method for line in made.reports[0].lines} == {"NLFT-1", "TAFT-1", "NLFT-2", "TAFT-2", "FC"}
    assert set(made.digests) == {"store", "store-2"}  # a depth, a store
    assert {line.method for line in made.reports[3].lines} == {"CLS=F"}  # there is no token to reset
    assert "vit_tiny_patch16_224" in page(made)
    files = write_pages(made, tmp_path / "written")
    (table,) = [file for file in files if file.name == "table1.csv"]
    for row in csv.DictReader(
        table.read_text(encoding="utf-8").splitlines()
    ):  # of every line its own depth and its store
        deep = row["method"].endswith("-2")
        assert (row["depth"], row["digest"]) == (
            ("2", made.digests["store-2"]) if deep else ("1", made.digests["store"])
        )


def random_weights(file, shape):
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(timm.create_model("vit_tiny_patch16_224", **shape, class_token=False).state_dict(), file)
    return file


def test_command(place, tmp_path, capsys):
    settings = {**SMALL, "shards": [2], "seeds": 1, "resets": [True], "reports": ["table2"]}
    file = toml(tmp_path / "tiny.toml", place, compare=settings)
    (tmp_path / "out").mkdir()
    for name in ("report.md", "table2.csv", "table2-notes.csv", "table2.svg", "table1.csv"):
        (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(SystemExit, match="5"):
        main(["compare", str(file), "-o", str(tmp_path / "out")])
    says = "would be replaced, was not written by this command\n  got: report.md, table2.csv\n"
    assert says in capsys.readouterr().err
    for name in ("report.md", "table2.csv"):
        (tmp_path / "out" / name).unlink()
    with pytest.raises(SystemExit, match="0"):
        main(["compare", str(file), "-o", str(tmp_path / "out"), "--json"])
    check_pages(tmp_path / "out", ["table1"])  # which goes on there
    assert (tmp_path / "out" / "table1.csv").read_text() == "mine"
    assert [made["report"] for made in json.loads(capsys.readouterr().out)["reports"]] == ["table2"]
    assert "## Table 2" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert set(REPORTS) == set(TITLES)
    with pytest.raises(SystemExit, match="2"):
        main(["run", str(file)])
    assert f"taftcache compare {file}" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused(place, tmp_path):
    with pytest.raises(RecipeError, match="two rows"):
        compare(recipe(place, compare={"shards": [40]}))
    with pytest.raises(RecipeError, match="all of the tail"):
        compare(recipe(place, tangent={"train": "head"}))
    with pytest.raises(StoreError, match="held-out rows"):
        compare(recipe(tmp_path / "store", data={"source": "digits", "limit": 20, "held_out": 0.0}))
    for features, remedies in (
        ("last", "--set tangent.blocks=1 and"),
        (
            "every block",
            """blocks=1 --set tangent.init=torch
        --set backbone.features="last" and""",
        ),
    ):
        head = {"blocks": 0} if features == "last" else {"blocks": 0, "init": "zero"}
        with pytest.raises(RecipeError, match="trains a head alone") as refused:
            compare(recipe(tmp_path / "none", backbone={"features": features}, tangent=head))
        assert " ".join(remedies.split()) in str(refused.value)


@pytest.mark.parametrize(
    ("reports", "keys", "words"),
    [
        *((["table1", name], {"shards": [2, 40]}, "lower compare.shards") for name in sorted(SPLIT)),
        (["table1", "figure1c"], {"forgotten": [0.5, 0.999]}, "compare.forgotten = 0.999 leaves none of"),
        (["table1", "table3"], {"epsilons": [3.0, 1e-308]}, "compare.epsilons = 1e-308: no amount of noise"),
    ],
)
def test_what_a_later_report_cannot_be_made_of_is_refused_first(place, monkeypatch, reports, keys, words):
    for name in ("fit", "path"):
        monkeypatch.setattr(Trial, name, lambda *_: pytest.fail("a model was trained"))
    with pytest.raises(RecipeError, match=words):
        compare(recipe(place, compare={**SMALL, "reports": reports, **keys}))


@pytest.mark.parametrize(
    ("key", "most", "several"),
    [
        ("ridges", MOST, True),
        ("head_ridges", MOST, True),
        ("rates", MOST, True),
        ("radii", MOST, True),
        ("radii", 1e-30, True),
        ("decay", MOST, False),
        ("ball_kappa", LARGEST, False),
    ],
)
def test_numbers_that_no_solve_takes_are_refused(key, most, several):
    """A recipe allows what its solves do."""
    beyond = most * 2 if most > 1 else most / 2
    recipe("store", compare={key: [1.0, most] if several else most})
    with pytest.raises(RecipeError, match=rf"compare\.{key}.* must be a number"):
        recipe("store", compare={key: [1.0, beyond] if several else beyond})


def test_a_model_that_stopped_early_is_marked_and_nothing_is_said_of_it(place, tmp_path, capsys):
    few = {**SMALL, "shards": [2], "seeds": 1, "resets": [False], "tokens": [False], "ridges": [1e-5]}
    solver, objective = {"tolerance": 1e-6, "max_passes": 3}, {"loss": "cross_entropy"}
    made = compare(
        recipe(place, solver=solver, objective=objective, compare={**few, "reports": ["table2", "figure1a"]})
    )
    (exact,) = [line for line in lines(made, "table2") if line.method == EXACT]
    assert (exact.converged, exact.tolerance) == (False, pytest.approx(1e-7))
    assert exact.gradient > exact.tolerance
    text = page(made)
    assert f"{exact.accuracy:.1f} ± 0.0 (stopped early) |" in text
    assert "\n\nStopped early: a solve ended above its tolerance." in text
    (row,) = [row for row in text.splitlines() if row.startswith("| The exact model of all rows above the exact head")]
    assert "| withheld: Exact stopped at ‖∇F‖ " in row
    assert "tolerance 1e-07" in row
    assert "| no verdict |" in text
    for name in ("table2", "figure1a"):  # of composed models, too, of which the worst shard counts
        composed = [line for line in lines(made, name) if line.method == "TAFT"]
        assert {(line.preset, line.converged) for line in composed} == {("paper", None), ("exact", False)}
    (tmp_path / "figure1a-2.svg").write_text("mine")
    with pytest.raises(StoreWriteError, match=r"(?s)not written by this command.*got: figure1a-2\.svg\n"):
        write_pages(made, tmp_path)
    (tmp_path / "figure1a-2.svg").unlink()
    write_pages(made, tmp_path)
    rows = csv.DictReader((tmp_path / "table2.csv").read_text(encoding="utf-8").splitlines())
    assert {row["converged"] for row in rows if row["method"] == EXACT} == {"False"}
    drawn = (tmp_path / "figure1a-2.svg").read_text(encoding="utf-8")
    names = ("TAFT, exact*", "TAFT, paper", "accuracy, per cent (*: stopped early)")
    assert all(f">{said}<" in drawn for said in names)
    kept = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert False in [line.get("converged") for line in kept["reports"][0]["lines"]]
    show_compare(made)
    assert "Stopped early: " in capsys.readouterr().out


def test_fine_tuning_has_the_papers_preset_whatever_is_compared(place):
    few = {**SMALL, "seeds": 1, "resets": [False], "tokens": [False], "presets": ["exact"], "reports": ["table1"]}
    made = compare(recipe(place, solver=QUICK, compare=few))
    (line,) = [line for line in lines(made, "table1") if line.method == "NLFT-1"]
    assert (line.preset, line.setting["preset"], line.setting["rate"]) == ("paper", "paper", 1e-2)


def test_shards_choose_their_class_token_too(place):
    few = {**SMALL, "shards": [2], "seeds": 1, "resets": [False], "tokens": [True]}
    made = compare(recipe(place, solver=QUICK, compare={**few, "reports": ["table2", "figure1a", "figure1b"]}))
    for name in ("table2", "figure1a", "figure1b"):
        assert {line.setting["CLS"] for line in lines(made, name) if "CLS" in line.setting} == {"T"}


def test_what_a_comparison_sets_itself_is_refused_or_noted(place, tmp_path, capsys):
    few = {**SMALL, "shards": [2], "seeds": 1, "presets": ["paper"], "resets": [True], "tokens": [False]}
    file = toml(tmp_path / "tiny.toml", place, compare={**few, "reports": ["table2"]})
    for given, remedy in (("tangent.class_token=reset", "compare.tokens"), ("objective.jvp_only=true", "leave it out")):
        with pytest.raises(SystemExit):
            main(["compare", str(file), "--set", given])
        said = " ".join(capsys.readouterr().err.split())
        assert f"a comparison does not read {given.partition('=')[0]}" in said
        assert remedy in said
    made = compare(recipe(place, tangent={"reset_block": True}, compare={**few, "reports": ["figure2b"]}))
    assert made.notes == [
        "set in the recipe, but not read by a comparison: tangent.reset_block (compare.resets says it), objective.ridge"
        " (compare.ridges says it)"
    ]
    assert made.notes[0] in page(made)
    assert made.recipe["objective"]["alpha"] == 1.0


def test_alpha_is_recorded_as_the_number_it_stands_for(place):
    few = {**SMALL, "seeds": 1, "presets": ["paper"], "resets": [True], "tokens": [False], "reports": ["figure2b"]}
    made = compare(recipe(place, objective={"alpha": "auto"}, compare=few))
    assert made.recipe["objective"]["alpha"] == 1.0
    assert "- α of RSL: 1" in page(made)
    made.recipe["objective"]["alpha"] = "auto"  # as reports of before
    assert "- α of RSL: 1 (the recipe says 'auto', which a comparison takes as 1)" in page(made)
