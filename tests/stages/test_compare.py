"""Comparisons on tiny data: what they compute, not who wins."""

from __future__ import annotations

import json

import pytest
import torch

from taftcache import stages
from taftcache.cache import FeatureStore
from taftcache.cli import main
from taftcache.errors import RecipeError
from taftcache.stages.trial import Setting, Trial
from taftcache.tangent.operator import TangentOperator
from tests.stages.making import recipe, toml

SMALL = {"shards": [2, 3], "seeds": 2, "epochs": 2, "ridges": [1e-2, 1e-1], "rates": [1e-3], "orders": 3}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("compared") / "store"
    stages.extract(recipe(path))
    return path


@pytest.mark.parametrize("report", ["table2", "figure1a", "figure1b", "figure1c"])
def test_reports(place, report):
    sizes = {**SMALL, "shards": [3], "resets": [True]} if report == "figure1c" else SMALL
    told = stages.compare(recipe(place, compare={**sizes, "report": report, "forgotten": [0.5]}))
    assert all(0 <= line["accuracy"] <= 100 and line["std"] >= 0 for line in told.lines)
    methods = {"table2": ["TAFT", "Soup"], "figure1b": ["SISA", "TAFT"]}.get(report, ["TAFT"])
    assert {line["method"] for line in told.lines} == set(methods)
    assert {s["method"] for s in told.settings} == set(methods)
    assert told.markdown().count("\n| ") == 1 + len(told.lines)
    if report.startswith("figure1a"):
        assert {(line["shards"], line["removed"]) for line in told.lines} >= {(2, 0), (2, 1), (3, 0), (3, 2)}
    if report == "figure1c":
        assert [line["forgotten"] for line in told.lines] == [0.0, 0.5]


def test_the_mean_of_logits_is_the_composed_model(place):
    with FeatureStore(place) as store:
        trial = Trial(store, recipe(place), 3, 0)
        setting = Setting("TAFT", 1e-2, True)
        fitted = trial.fit(setting)
        base = trial.base(setting)
        direct = trial.tangent_logits(base, fitted.deltas[:2].mean(0))
        assert torch.allclose(fitted.logits[:2].mean(0), direct, atol=1e-4)
        operator = TangentOperator(base, [trial.test])
        assert trial.taft(fitted, [0, 1]) == trial.accuracy(direct.argmax(1))
        assert sum(s.rows for s in operator.sources) == len(trial.labels)


def test_validation_rows_train_nothing(place):
    with FeatureStore(place) as store:
        whole, part = Trial(store, recipe(place), 3, 0), Trial(store, recipe(place), 3, 0, validate=True)
        everyone = [i for p in whole.parts for i in p]
        trained = [i for p in part.parts for i in p]
        assert sorted(everyone) == sorted(store.sample_ids())
        assert set(trained) < set(everyone)
        assert part.test.rows == len(everyone) - len(trained)
        gone = everyone[:5]
        assert not {i for p in Trial(store, recipe(place), 3, 0, without=gone).parts for i in p} & set(gone)


def test_command(place, tmp_path, capsys):
    file = toml(tmp_path / "tiny.toml", place, compare={**SMALL, "shards": [2], "seeds": 1, "resets": [True]})
    with pytest.raises(SystemExit) as end:
        main(["compare", str(file), "--out", str(tmp_path / "report.md"), "--json"])
    assert end.value.code == 0
    assert json.loads(capsys.readouterr().out)["report"] == "table2"
    assert (tmp_path / "report.md").read_text().startswith("# Table 2")
    with pytest.raises(RecipeError, match="two rows"):
        stages.compare(recipe(place, compare={"shards": [40]}))
