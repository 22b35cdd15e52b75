"""The recipe that a store records, given back: every command goes on with it in that store."""

from __future__ import annotations

import json
import shutil
import subprocess

import msgspec
import numpy as np
import pytest

import taftcache
from taftcache.cache.write.writer import ShardWriter
from taftcache.cli import main
from taftcache.errors import IdentityError, RecipeError, StoreError, UnknownName, UnknownSample
from taftcache.names import INTERRUPTED_KEY, is_model
from taftcache.recipe import Recipe, parse_recipe, recipe_values, without_defaults
from taftcache.recipe_files import parse_toml, recipe_file, toml_text
from tests.stages.forging import forge
from tests.stages.making import DIGITS, open_store, recipe, write_images


@pytest.mark.law("The recipe that a store gives back goes on in that store, from any folder")
def test_a_recorded_recipe_goes_on_in_its_store(store, tmp_path, monkeypatch):
    monkeypatch.chdir(store.parent)
    recorded = taftcache.inspect_recipe(store.name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert recorded.store_path == store
    before = taftcache.inspect(store).root_digest
    done = taftcache.extract(recorded)
    assert (done.store, done.images, done.root_digest) == (store, 0, before)
    with open_store(store) as opened:
        with opened.transaction() as change:
            change.drop_shard("held-out")
        assert taftcache.inspect_recipe(opened) == recorded
    assert taftcache.extract(recorded).images == 15
    assert taftcache.train(store, recorded).trained == []
    ran = taftcache.run(recorded)
    assert (ran.store, ran.idle) == (store, True)
    assert list(elsewhere.iterdir()) == []


def test_a_recorded_recipe_appends_to_its_store(photographed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = shutil.copytree(photographed, tmp_path / "store")
    report = taftcache.append(taftcache.inspect_recipe(path))
    assert (report.store, report.known, report.added) == (path, 42, {})
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def printed(capsys, *options) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", *map(str, options)])
    return capsys.readouterr().out


@pytest.mark.law("inspect STORE --recipe prints a file that names the store, its data and all settings again")
@pytest.mark.parametrize("of", ["finished", "photographed"])
def test_a_store_gives_its_recipe_back_as_a_file(of, request, tmp_path, capsys):
    path = shutil.copytree(request.getfixturevalue(of), tmp_path / "store")
    recorded = taftcache.inspect_recipe(path)
    file = tmp_path / "again.toml"
    file.write_text(printed(capsys, path, "--recipe"), encoding="utf-8")
    assert taftcache.load_recipe(file) == recorded
    assert msgspec.convert(json.loads(printed(capsys, path, "--recipe", "--json")), Recipe) == recorded
    report = taftcache.inspect(path)
    assert report.recipe == recipe_values(recorded)
    with open_store(path) as opened, opened.transaction() as change:
        change.drop_shard("held-out")
    with pytest.raises(SystemExit, match="0"):
        main(["extract", str(file)])
    assert taftcache.inspect(path).held_out_rows == report.held_out_rows > 0


def test_a_store_of_vectors_gives_its_recipe_back(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(30, 8)).astype("float32")
    vectors, path, file = tmp_path / "clip.npz", tmp_path / "store", tmp_path / "again.toml"
    np.savez(vectors, vectors=x, labels=np.arange(30) % 3)
    made = taftcache.import_(vectors, path, overrides={"store.shards": 2, "data.held_out": 0.3})
    file.write_text(said := printed(capsys, path, "--recipe"), encoding="utf-8")
    assert "imported from clip.npz" in said
    assert taftcache.import_(vectors, taftcache.load_recipe(file)).root_digest == made.root_digest
    with pytest.raises(IdentityError, match="were imported, and no images") as caught:
        taftcache.extract(taftcache.load_recipe(file))
    assert f"taftcache append {path} FILE" in caught.value.do
    with pytest.raises(SystemExit, match="0"):
        main(["train", str(file), "--set", "objective.ridge=0.5"])
    assert taftcache.inspect_recipe(path).objective.ridge == 0.5


def test_every_value_of_a_recipe_is_told(tmp_path):
    told = recipe(
        tmp_path / 'a "b" \\ é',
        data={"source": "folder", "train": "/x/\x7f\x9b\u202e\U000e0041\n'", "limit": 7, "unreadable": "skip"},
        backbone={"weights": "pretrained", "model": "m", "model_args": {"img_size": [8, 8], "a b": {"c": 1e-30}}},
        preprocess={"mean": [0.1, 0.2, 1e-05]},
        objective={"class_weights": [1, 2.5]},
        compose={"mode": "weighted", "weights": {"000": 0.25, "components/x": 0.75}},
    )
    text = toml_text(without_defaults(told))
    assert text.replace("\n", "").isprintable()
    assert parse_recipe(parse_toml(text)) == told
    assert "chunk_rows = 8" in text
    assert "tolerance" not in text


def test_what_a_store_was_made_from_is_shown(finished, photographed, images, tmp_path, capsys):
    assert "\ndata      digits, at most 60, 0.2 held out\n" in printed(capsys, finished)
    assert f"\ndata      folder {images}, " in printed(capsys, photographed)
    foreign = shutil.copytree(finished, tmp_path / "foreign")
    named = {"data": {"source": "folder", "train": "~/a", "test": "b\x1b"}, "backbone": {"weights": "~/w.safetensors"}}
    forge(foreign, recipe=named)
    said = printed(capsys, foreign)
    assert "\ndata      folder ~/a, test b\\x1b\n" in said
    assert "\nweights   ~/w.safetensors\n" in said
    forge(foreign, recipe=named | {"unheard": {}})
    assert "note: the recipe is not known: " in (said := printed(capsys, foreign))
    assert "\ndata " not in said
    assert taftcache.inspect(foreign).recipe == {}


@pytest.mark.law("What an unfinished store says to type makes the rest of it, without the file that it was made from")
def test_an_extraction_goes_on_without_its_file(finished, tmp_path, monkeypatch, capsys):
    path = shutil.copytree(finished, tmp_path / "a store")
    with open_store(path) as opened, opened.transaction() as change:
        change.drop_shard("001")
    with pytest.raises(StoreError, match="is not finished") as unfinished:
        taftcache.append(taftcache.inspect_recipe(path))
    with pytest.raises(RecipeError, match="is a store") as named:
        recipe_file(path)
    note, outdated = taftcache.inspect(path).notes
    assert outdated.startswith("not made from the rows and settings that the store has now: models/")
    typed = note.partition("recipe: ")[2]
    file = "'a store-recipe.toml'"
    assert typed == f"taftcache inspect '{path}' --recipe > {file} && taftcache extract {file}"
    assert typed in unfinished.value.do
    assert typed in named.value.do
    (mine := tmp_path / "recipe.toml").write_text("mine")
    shell = f"taftcache() {{ printf '%s\\0' \"$@\" >&2; echo >&2; }}; {typed}"
    called = subprocess.run(["bash", "-ec", shell], cwd=tmp_path, check=True, capture_output=True, text=True)
    told, goes_on = (line.split("\0")[:-1] for line in called.stderr.splitlines())
    assert {each.name for each in tmp_path.iterdir()} == {path.name, mine.name, "a store-recipe.toml"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a store-recipe.toml").write_text(printed(capsys, *told[1:]), encoding="utf-8")
    with pytest.raises(SystemExit, match="0"):
        main(goes_on)
    assert mine.read_text() == "mine"
    assert taftcache.inspect(path).held_out_rows + taftcache.inspect(path).rows == DIGITS


def test_what_is_to_be_typed_names_the_store(store):
    with pytest.raises(UnknownSample) as caught:
        taftcache.inspect_sample(store, "\u2603")
    assert caught.value.do == f"taftcache inspect {store} --ids lists all"
    with pytest.raises(UnknownName) as caught:
        taftcache.forget(store, matching=["\u2603*"])
    assert caught.value.do.startswith(f"taftcache inspect {store} --ids lists all ids; ")
    with open_store(store) as opened, opened.transaction() as change:
        change.drop_shard("000")
        change.drop_shard("001")
    with pytest.raises(StoreError, match="has no shard to train") as caught:
        taftcache.train(store)
    assert caught.value.do.startswith("shards here: 1 of 3; taftcache extract, run again, ")


def test_a_training_that_is_not_over_says_so(store, tmp_path):
    train, compose = f"taftcache train {store}", f"taftcache compose {store}"
    with open_store(store) as opened:
        parts = opened.objects("components/")
        models = [name for name in opened.objects() if is_model(name)]
        kept = opened.read_object("components/000"), parts["components/000"].meta
        with opened.transaction() as change:
            for name in models:
                change.drop(name)
        assert taftcache.inspect(opened).notes == [f"no model yet: {train}"]
        with opened.transaction() as change:
            change.put("components/000", *kept)
        assert taftcache.inspect(opened).notes == [f"not trained to the end: 001; to go on: {train}"]
        taftcache.train(opened)
        assert taftcache.inspect(opened).notes == [f"no model of the components yet: {compose}"]
        taftcache.compose(opened)
        assert taftcache.inspect(opened).notes == []
        with opened.transaction() as change:
            change.put("components/000", kept[0], {**kept[1], "key": INTERRUPTED_KEY})
        assert taftcache.inspect(opened).notes == [
            f"not trained to the end: 000; to go on: {train}",
            "not made from the rows and settings that the store has now: components/000, models/mean; "
            "next: taftcache train",
        ]


def test_work_that_was_stopped_is_shown(photographed, images, tmp_path, monkeypatch):
    path = shutil.copytree(photographed, tmp_path / "store")
    more = write_images(tmp_path / "more", per_class=20)
    values = recipe_values(taftcache.inspect_recipe(path))
    asked = parse_recipe({**values, "data": {**values["data"], "train": str(more)}})

    def stop(*_: object, **_named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ShardWriter, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            taftcache.append(asked)
    (note,) = taftcache.inspect(path).notes
    assert note.startswith("a command was stopped at shard-000: run it again, and it goes on from there; ")
    with open_store(path):  # then one is at work
        assert taftcache.inspect(path).notes == []
    taftcache.append(asked)
    (note,) = taftcache.inspect(path).notes
    assert note.startswith("not made from the rows and settings that the store has now: components/000")
