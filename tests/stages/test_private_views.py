"""Looking into a store that was trained privately: every command works, and says what the promise does not cover."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import RecipeError, StoreError
from taftcache.names import promise_text
from taftcache.view import payload
from taftcache.view.asked.leaving import SideSolves
from taftcache.view.atlas import Atlas
from taftcache.view.pictures import Pictures
from tests.stages.making import open_store, settings


@pytest.fixture(scope="module")
def private(tmp_path_factory, finished) -> Path:
    """Two private shards, their mean, and one of them again as an imported component. Not to be written to."""
    path = shutil.copytree(finished, tmp_path_factory.mktemp("private") / "store")
    with open_store(path) as store:
        taftcache.train_private(store, settings(store))
        taftcache.export_component(store, "000", path.parent / "one.safetensors")
        taftcache.import_component(store, path.parent / "one.safetensors", "away")
        taftcache.compose(store)
        with (
            store.transaction() as change
        ):  # the mean with the imported one has no promise, so that both kinds are here
            change.drop("components/away")
        taftcache.compose(store)
        taftcache.import_component(store, path.parent / "one.safetensors", "away")
    return path


def told(capsys, *arguments: str) -> str:
    """What a command prints, on one line; it must end well."""
    with pytest.raises(SystemExit, match="0"):
        main(list(arguments))
    return " ".join(capsys.readouterr().out.split())


def sample(path: Path) -> str:
    with FeatureStore(path) as store:
        return store.shard("000").sample_ids[0]


def test_inspect(private, capsys):
    out = told(capsys, "inspect", str(private))
    assert re.search(r"components/000, components/001, models/mean: epsilon 8 at delta 1e-05, replace-one", out)
    assert "not covered: the cache, which holds the rows as they are" in out
    assert "away" in out
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(private), "--json"])
    models = {m["name"]: m for m in json.loads(capsys.readouterr().out)["models"]}
    assert models["components/000"]["privacy"]["private"]


def test_inspect_a_shard(private, capsys):
    out = told(capsys, "inspect", str(private), "--shard", "000")
    assert "components/000: ‖Δw‖" in out
    assert "epsilon 8 at delta" in out
    assert "not covered" in out


def test_inspect_a_sample(private, capsys):
    out = told(capsys, "inspect", str(private), "--sample", sample(private))
    assert "components/000 is private" in out
    assert "does not cover" in out
    assert "moves components/000" not in out
    with FeatureStore(private) as store:
        report = taftcache.inspect_sample(store, sample(private))
        assert report.moved_bound is None
        assert report.predictions.keys() >= {"base", "components/000", "models/mean"}
        assert taftcache.inspect_sample(store, store.held_out.sample_ids[0]).notes == []


def test_report(private, tmp_path, capsys):
    out = told(capsys, "report", str(private), "-o", str(tmp_path / "report.html"), "--no-neighbours")
    assert "promise does not cover this file" in out
    assert (tmp_path / "report.html").stat().st_size > 0


def test_the_work_behind_the_page(private):
    with FeatureStore(private) as store:
        atlas = Atlas(store)
        atlas.work(skip=("neighbours",))
        assert {name: state.note for name, state in atlas.progress.items() if state.note} == {}
        assert (atlas.classes_by["own"][~atlas.table.held_out] >= 0).all()
        assert not (atlas.moved == atlas.moved).any()
        shown = payload.sample(atlas, sample(private), Pictures(store))
        assert shown["forget"] is None
        assert "components/000 is private" in shown["private"]
        assert payload.sample(atlas, store.held_out.sample_ids[0], Pictures(store))["private"] == ""
        models = {m["name"]: m for m in payload.overview(atlas)["report"]["models"]}
        assert models["models/mean"]["privacy"]["not_covered"]
        assert models["models/mean"]["promise"] == "epsilon 8 at delta 1e-05, replace-one"
        said = {**models["models/mean"]["privacy"], "epsilon": 3.00001, "tuning": "NOT charged"}
        assert promise_text(said) == "epsilon 3.001 at delta 1e-05, replace-one (NOT charged)"
        with pytest.raises(StoreError, match="compared with noise"):
            SideSolves(atlas).ask(sample(private))


def test_influence_is_refused_in_a_line(private, capsys):
    with FeatureStore(private) as store:
        for model in ("models/mean", "components/000"):
            with pytest.raises(RecipeError, match=r"the noise of .*components/000"):
                taftcache.sample_influence(store, sample(private), model=model)
            with pytest.raises(RecipeError, match=r"the noise of .*components/000"):
                taftcache.query_influence(store, sample(private), model=model)
    for question in ("--sample", "--query"):
        with pytest.raises(SystemExit, match="2"):
            main(["influence", str(private), question, sample(private)])
        assert "with a solve without noise" in capsys.readouterr().err


def test_other_commands(private, capsys, tmp_path):
    for arguments in (["evaluate"], ["verify"], ["audit"], ["inspect", "--class", "3"], ["export"]):
        more = [str(tmp_path / "rows.npz"), "--format", "npz"] if arguments == ["export"] else arguments[1:]
        told(capsys, arguments[0], str(private), *more)
