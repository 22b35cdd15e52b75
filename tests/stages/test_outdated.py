"""A model that was made from other settings or members than a store has now is named wherever it is used."""

from __future__ import annotations

import json
import shutil
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import app
from taftcache.errors import ArgumentError, CompositionError, IdentityError, RecipeError, StoreError
from taftcache.model.meta import meta_of
from taftcache.model.outdated import differs_by_rows
from taftcache.names import PRIVATE
from taftcache.recipe import parse_recipe
from taftcache.stages.look.leaving import leave_out, moved_by_each
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.progress import Silent
from taftcache.terminal.pipeline import show_predict
from tests.stages.forging import forge_meta
from tests.stages.making import open_store, recipe, settings, write_images


def but_of_few_rows(notes: list[str]) -> list[str]:
    """Notes, but for those on what few held-out rows cannot tell."""
    return [note for note in notes if "held-out row" not in note]


@pytest.mark.law("What a training leaves behind of other settings is named where it is used")
def test_one_shard_under_other_settings_leaves_the_rest_outdated(exact, tmp_path, capsys):
    """``predict`` answered from the exact model of the settings before, and only ``audit`` said so."""
    image = next(iter(sorted(write_images(tmp_path / "images").rglob("*.png"))))
    with open_store(exact) as store:
        assert but_of_few_rows(taftcache.predict(store, [image]).notes) == []
        assert but_of_few_rows(taftcache.evaluate(store).notes) == []
        asked = recipe(exact, objective={"ridge": 0.5})
        report = taftcache.train(store, asked, shards=["000"])
        assert report.trained == ["components/000", "models/head"]
        (note,) = [note for note in report.notes if "not made from the rows and settings" in note]
        assert "components/001" in note
        assert "models/exact, models/mean; next: taftcache train" in note
        scores = taftcache.evaluate(store)
        assert note in scores.notes
        assert sorted(scores.outdated) == ["components/001", "models/exact", "models/mean"]
        told = taftcache.predict(store, [image])
        assert told.model == "models/exact"
        assert but_of_few_rows(told.notes) == [
            "not made from the rows and settings that the store has now: models/exact; next: taftcache train"
        ]
        exported = taftcache.export_model(store, tmp_path / "model")
        assert (exported.model, exported.notes) == (told.model, but_of_few_rows(told.notes))
        show_predict(told)
        assert "next: taftcache train" in " ".join(capsys.readouterr().out.split())
        assert but_of_few_rows(taftcache.predict(store, [image], model="models/head").notes) == []
        gone, note, *_ = taftcache.compose(store).notes
        assert gone.startswith("models/exact is gone")
        assert note.startswith("composed as they are, though not made from the rows and settings")
        assert note.endswith(": components/001; next: taftcache train")
        assert not any("not made from" in note for note in taftcache.train(store).notes)
        assert "models/mean; next: taftcache compose" in taftcache.predict(store, [image]).notes[-1]
        assert not any("not made from" in note for note in taftcache.compose(store).notes)
        assert but_of_few_rows(taftcache.evaluate(store).notes) == []


@pytest.mark.parametrize("new_shard", [False, True])
def test_further_rows_leave_every_sum_outdated(images, tmp_path, new_shard):
    """The hint named ``compose``, which averaged components of the rows from before, or refused for want of one."""
    source = shutil.copytree(images, tmp_path / "images")
    asked = recipe(tmp_path / "store", data={"source": "folder", "train": str(source)})
    taftcache.run(asked)
    for k in range(6):
        shutil.copy(sorted((source / "0").iterdir())[0], source / "1" / f"new{k}.png")
    added = taftcache.append(asked, new_shard=new_shard).added
    with open_store(tmp_path / "store") as store:
        *_, note = taftcache.predict(store, [source / "1" / "new0.png"], model="models/mean").notes
        assert note.endswith(": models/mean; next: taftcache train")
        if new_shard:
            with pytest.raises(CompositionError, match="1 shard without a component"):
                taftcache.compose(store)
        else:
            stale = ", ".join(f"components/{name}" for name in added if name != "held-out")
            assert [n.endswith(f": {stale}; next: taftcache train") for n in taftcache.compose(store).notes] == [True]
        taftcache.train(store)
        assert not any("not made from" in note for note in taftcache.compose(store).notes)
        assert not any("not made from" in note for note in taftcache.evaluate(store).notes)


def test_a_private_component_trained_anew_leaves_its_mean_outdated(finished, tmp_path):
    with open_store(shutil.copytree(finished, tmp_path / "store")) as store:
        taftcache.train_private(store, settings(store, epsilon=2.0, budget=8.0))
        taftcache.compose(store)
        again = taftcache.train_private(store, settings(store, epsilon=3.0, budget=8.0), shards=["000"])
        assert again.trained
        assert any("models/mean; next: taftcache compose" in note for note in again.notes)
        # The mean says what its members promised: that is old and no lie, and the store needs no copy to be put back.
        with pytest.raises(StoreError, match="trained again since") as refused:
            taftcache.export_model(store, tmp_path / "model")
        assert refused.value.do == f"taftcache compose {store.path}"
        (found,) = taftcache.audit(store).findings
        assert (found.kind, found.where, found.do) == ("stale composition", "models/mean", refused.value.do)
        taftcache.compose(store)
        assert taftcache.audit(store).findings == []
        assert not any("not made from" in note for note in taftcache.evaluate(store).notes)
        forge_meta(store.path, "models/mean", lambda meta: {**meta, PRIVATE: {**meta[PRIVATE], "epsilon": 0.1}})
    (found,) = taftcache.audit(tmp_path / "store").findings
    assert found.kind == "privacy statement"
    assert found.do.endswith(f"change.drop('models/mean'); then taftcache compose {tmp_path / 'store'}")


def test_no_advice_for_a_store_with_private_components_is_refused(finished, tmp_path):
    """Beside them plain training is, so the command names the shards, or trains privately what has nothing yet."""
    with open_store(shutil.copytree(finished, tmp_path / "store")) as store:
        asked = settings(store)
        taftcache.train(store, asked)
        taftcache.train_private(store, shards=["000"])
        taftcache.compose(store)
        other = parse_recipe(
            {**store.manifest.recipe, "objective": {**store.manifest.recipe["objective"], "ridge": 1.0}}
        )
        taftcache.compose(store, other)  # records it
        findings = taftcache.audit(store).findings
        assert {f.where: f.do for f in findings} == dict.fromkeys(
            ("components/001", "models/mean"), f"taftcache train {store.path} --shard 001"
        )
        assert taftcache.evaluate(store).notes[0].endswith("taftcache train --shard 001")
        assert taftcache.train(store, shards=["001"]).trained == ["components/001"]
        taftcache.compose(store)
        with store.transaction() as change:
            change.drop("components/001")
        assert taftcache.evaluate(store).notes[0].endswith("taftcache train --private --shard 001")


def test_nothing_is_said_of_a_store_as_training_left_it(exact, private):
    for path in (exact, private):
        with open_store(path) as store:
            assert not any("not made from" in note for note in taftcache.evaluate(store).notes)


def grown(source, path, count=6):
    for k in range(count):
        shutil.copy(sorted((source / "0").iterdir())[0], source / "1" / f"{path.name}{k}.png")
    return taftcache.append(recipe(path, data={"source": "folder", "train": str(source)}))


def test_an_audit_between_append_and_train_passes_and_names_what_evaluate_names(images, tmp_path):
    """It said "stale component" three times and ended with 5, the code of personal data that was left behind."""
    source, path, copy = shutil.copytree(images, tmp_path / "images"), tmp_path / "store", tmp_path / "copy"
    taftcache.run(recipe(path, data={"source": "folder", "train": str(source)}, compose={"mode": "exact"}))
    with open_store(path) as store:
        taftcache.forget(store, [store.shards[0].sample_ids[0]])
    grown(source, path)
    report = taftcache.audit(path)
    assert report.findings == []
    (note,) = [note for note in report.notes if note.startswith("not trained yet on the rows that were added: ")]
    (said,) = [note for note in taftcache.evaluate(path).notes if note.startswith("not made from")]
    old = said.removeprefix("not made from the rows and settings that the store has now: ").split("; ")[0]
    assert old == "components/000, models/exact, models/head, models/mean"
    assert old == note.removeprefix("not trained yet on the rows that were added: ").split("; ")[0]
    assert "models/exact" not in report.certificates, "nothing is proven over other rows"
    # What a request took a row from since is no such thing.
    shutil.copytree(path, copy)
    with open_store(path) as store:
        between = store.read_object("components/000"), dict(store.objects()["components/000"].meta)
        taftcache.train(store)
        taftcache.compose(store)
        before = store.read_object("components/000"), dict(store.objects()["components/000"].meta)
        taftcache.forget(store, [store.shards[0].sample_ids[0]])
    grown(source, path, 9)
    with open_store(path) as store, store.transaction() as change:
        assert store.shards[0].rows > before[1]["rows"]
        change.put("components/000", *before)
    assert ("stale component", "components/000") in {(f.kind, f.where) for f in taftcache.audit(path).findings}
    # Nor is one of more rows than there are now, of a state that no receipt names.
    with open_store(path) as store:
        taftcache.forget(store, [i for i in store.shards[0].sample_ids if i.startswith("1/")])
        with store.transaction() as change:
            change.put("components/000", *between)
    assert ("stale component", "components/000") in {(f.kind, f.where) for f in taftcache.audit(path).findings}
    # Nor is it where nobody can ask any more from which shards rows were taken.
    taftcache.destroy_key(copy)
    assert ("stale component", "models/exact") in {(f.kind, f.where) for f in taftcache.audit(copy).findings}


def test_an_exact_model_differs_by_rows_though_it_would_start_elsewhere():
    """As after append, once some of the shards were trained again."""
    made, now = ({"rows": [k], "start": {"components/000": k}, "train": "head"} for k in "ab")
    meta = meta_of({"key": json.dumps(made)})
    assert differs_by_rows(meta, json.dumps(now))
    assert not differs_by_rows(meta, json.dumps(now | {"train": "full"}))


def test_other_settings_stay_a_finding_and_the_mean_of_such_components_is_one(exact):
    with open_store(exact) as store:
        taftcache.train(store, recipe(exact, objective={"ridge": 0.5}), shards=["000"])
    findings = taftcache.audit(exact).findings
    assert [f.where for f in findings] == ["components/001", "models/exact", "models/mean"]
    assert {f.do for f in findings} == {f"taftcache train {exact}"}


def test_training_says_which_setting_replaced_what_was_there(exact):
    """A recipe that was changed and run again replaced every model without a word."""
    asked = recipe(exact, objective={"ridge": 0.02}, compose={"mode": "exact"})
    (note,) = [note for note in taftcache.run(asked).train.notes if "trained again" in note]
    assert note == (
        "objective.ridge 0.001 → 0.02: components/000, components/001, models/head trained again in place of what was "
        "there, and what is composed of it"
    )
    assert not any("trained again" in note for note in taftcache.run(asked).train.notes)


@pytest.mark.law("An override in Python does what --set does")
def test_overrides_of_a_function_are_those_of_its_command(finished, tmp_path):
    """The settings of one training: ``train(store, Recipe(objective=…))`` asks for other rows, too."""
    changes = ["objective.loss=mse", "objective.ridge=0.02"]
    typed, called, mapped = (shutil.copytree(finished, tmp_path / name) for name in ("typed", "called", "mapped"))
    for lines in (
        ["train", str(typed), "--set", changes[0], "--set", changes[1]],
        ["compose", str(typed), "--mode=mean"],
    ):
        assert CliRunner().invoke(app, lines).exit_code == 0
    assert taftcache.train(called, overrides=iter(changes)).trained
    assert taftcache.compose(called, overrides=["compose.mode=mean"]).models == ["models/mean"]
    assert taftcache.train(mapped, overrides={"objective.loss": "mse", "objective.ridge": np.float64(0.02)}).trained
    assert taftcache.compose(mapped, overrides={"compose.mode": "mean"}).models == ["models/mean"]
    for there in (called, mapped):
        with FeatureStore(typed) as one, FeatureStore(there) as other:
            assert one.manifest.recipe == other.manifest.recipe
            assert one.manifest.recipe["objective"]["loss"] == "mse"
            digests = [{name: ref.digest for name, ref in opened.objects().items()} for opened in (one, other)]
        assert digests[0] == digests[1]
        recorded = taftcache.inspect_recipe(there)
        assert recorded.objective.ridge == 0.02
        assert recorded.store.shards == len(FeatureStore(there).shards)
    whole = recipe(called, objective={"loss": "mse", "ridge": 0.5})
    assert taftcache.train(called, whole, overrides=changes[1:]).trained == [], "of the recipe, where one is given"
    root = FeatureStore(called).root_digest
    for wrong, error, says in (
        (["objective.los=rsl"], RecipeError, "did you mean objective.loss"),
        ("objective.loss=rsl", ArgumentError, "must be a list"),
    ):
        for verb in (taftcache.train, taftcache.train_private, taftcache.compose):
            with pytest.raises(error, match=says):
                verb(called, overrides=wrong)
    for verb, error, says in (
        (taftcache.train, IdentityError, "store.shards: the store has 2, the recipe 3"),
        (taftcache.train_private, IdentityError, "store.shards: the store has 2, the recipe 3"),
        (taftcache.compose, RecipeError, r"compose does not use store\.shards"),
    ):
        with pytest.raises(error, match=says):
            verb(called, overrides=["store.shards=3"])
    assert FeatureStore(called).root_digest == root
    with pytest.raises(RecipeError, match=r"(?s)is a store, not a recipe.*train\('.*called', overrides="):
        taftcache.load_recipe(called)


FOLDERS = ("exact", "mean", "mixed", "outdated")
OTHERWISE = "not made from the rows and settings that the store has now: "


@pytest.mark.law("What a training leaves behind of other settings is named where it is used")
def test_influence_of_a_model_of_other_settings_is_refused(exact):
    """It solved again under the new loss, and took the whole difference for the doing of one sample."""
    with open_store(exact) as store:
        sample = store.shards[0].sample_ids[0]
        assert taftcache.sample_influence(store, sample).ridge[0] == taftcache.sample_influence(store, sample).ridge[1]
        taftcache.train(store, overrides={"objective.loss": "cross_entropy"})
        for model in ("models/exact", "models/mean"):
            with pytest.raises(RecipeError, match=f"{OTHERWISE}{model}\n") as refused:
                taftcache.sample_influence(store, sample, model=model)
            assert refused.value.do == f"taftcache train {store.path}, then taftcache compose {store.path}"
            with pytest.raises(RecipeError, match=OTHERWISE):
                taftcache.query_influence(store, sample, model=model)
        taftcache.sample_influence(store, sample, model="components/000")
        taftcache.compose(store)
        taftcache.sample_influence(store, sample)
        taftcache.train(store, overrides={"objective.loss": "rsl"}, shards=["001"])
        report = taftcache.inspect_sample(store, sample)
        assert report.moved_bound is None, "its component is no solution of the problem that the store poses now"
        assert OTHERWISE in report.notes[0]
        scorer = Scorer(store)
        with pytest.raises(RecipeError, match=f"{OTHERWISE}components/000\n"):
            leave_out(store, scorer, store.shards[0], 0, None, Silent())
        assert [moved is None for _, moved in moved_by_each(store, scorer, store.shards)] == [True, False]


@pytest.mark.law("What a training leaves behind of other settings is named where it is used")
def test_what_looks_at_an_outdated_model_says_so(exact, tmp_path):
    """Only evaluate, predict and export_model did."""
    with open_store(exact) as store:
        sample = store.shards[0].sample_ids[0]

        def told() -> dict[str, list[str]]:
            taftcache.export(store, tmp_path / "rows.npz")
            (tmp_path / "rows.npz").unlink()
            return {
                "inspect": taftcache.inspect(store).notes,
                "sample": taftcache.inspect_sample(store, sample).notes,
                "report": taftcache.write_report(store, tmp_path / "report.html", neighbours=False).notes,
                "export": taftcache.export(store, tmp_path / "rows.npz").notes,
            }

        assert [*told().values()] == [[], [], [], []]
        (tmp_path / "rows.npz").unlink()
        taftcache.TangentModel.load(store)
        taftcache.logits(store, store.held_out)
        taftcache.train(store, overrides={"objective.ridge": 0.1})
        both, one = f"{OTHERWISE}models/exact, models/mean; next: taftcache compose", f"{OTHERWISE}models/exact; next"
        assert {name: [note[: len(both)] for note in notes] for name, notes in told().items()} == {
            "inspect": [both], "sample": [both], "report": [both], "export": [f"{one}: taftcache compose"]
        }  # fmt: skip
        assert f'"outdated":["{both}"]' in (tmp_path / "report.html").read_text().replace(": [", ":[")
        warned = "models/exact was not made from the rows and settings that the store has now: train and compose again"
        with pytest.warns(UserWarning, match=warned) as warnings:
            taftcache.TangentModel.load(store)
        assert [warning.filename for warning in warnings] == [__file__]
        with pytest.warns(UserWarning, match=warned) as warnings:
            taftcache.logits(store, store.held_out)
        assert [warning.filename for warning in warnings] == [__file__]
        taftcache.TangentModel.load(store, "components/000")


def test_what_was_made_with_other_settings_is_shown_with_them(exact, capsys):
    """Components at several λ looked alike, and the recipe named one of them for all."""
    with open_store(exact) as store:
        taftcache.train(store, overrides={"objective.ridge": 0.5, "objective.loss": "cross_entropy"}, shards=["000"])
        report = taftcache.inspect(store)
        assert f"{OTHERWISE}components/001, models/exact, models/mean; next: taftcache train" in report.notes
        assert {m["name"]: (m.get("loss"), m.get("ridge")) for m in report.models} == {
            "components/000": ("cross_entropy", 0.5),
            "components/001": ("rsl", 0.001),
            "models/exact": ("rsl", 0.001),
            "models/head": ("cross_entropy", 0.5),
            "models/mean": (None, None),
        }
        taftcache.show(report)
        printed = " ".join(capsys.readouterr().out.split())
        assert "loss cross_entropy, λ 5.0e-01: components/000, models/head" in printed
        assert "loss rsl, λ 1.0e-03: components/001, models/exact" in printed
        assert "models/mean: the mean of 2 components" in printed
        shard = taftcache.inspect_shard(store, "001")
        assert shard.notes == [f"{OTHERWISE}components/001; next: taftcache train"]
        taftcache.show(shard)
        assert "loss rsl, λ 1.0e-03" in capsys.readouterr().out
    assert CliRunner().invoke(app, ["inspect", str(exact), "--recipe"]).exit_code == 0
    lines = CliRunner().invoke(app, ["inspect", str(exact), "--recipe"]).output.splitlines()
    assert lines[lines.index("ridge = 0.5") - 1] == (
        "# objective.ridge was another in components/001, models/exact: 0.001"
    )
    assert any(line.startswith("# objective.loss was another in components/001, models/exact") for line in lines)
    parse_recipe(tomllib.loads("\n".join(lines)))


def test_the_card_of_a_sum_says_what_it_is(exact, tmp_path):
    """It called a mean of components the one minimiser of a convex problem."""
    with open_store(exact) as store:
        taftcache.export_model(store, tmp_path / "exact", "models/exact")
        taftcache.export_model(store, tmp_path / "mean", "models/mean")
        taftcache.train(store, overrides={"objective.ridge": 0.5}, shards=["000"])
        taftcache.compose(store)
        taftcache.export_model(store, tmp_path / "mixed", "models/mean")
        taftcache.train(store, overrides={"objective.ridge": 0.25})
        taftcache.export_model(store, tmp_path / "outdated", "models/mean")
    cards = {name: " ".join((tmp_path / name / "README.md").read_text().split()) for name in FOLDERS}
    said = {name: json.loads((tmp_path / name / "taftcache.json").read_text()) for name in FOLDERS}
    assert "Δw, is the one minimiser of a convex problem (loss rsl, λ = 0.001)." in cards["exact"]
    one = "Δw, is a weighted sum of 2 components, each the minimiser of its own shard's convex problem (loss rsl, λ = "
    assert f"{one}0.001). It is no minimiser over all rows." in cards["mean"]
    assert f"{one}0.5 in 1 of them; loss rsl, λ = 0.001 in 1 of them)." in cards["mixed"]
    assert "minimiser of a convex problem" not in cards["mean"] + cards["mixed"]
    # composed before the other shard was trained, under which settings the mixed one is outdated too
    old = "it was not made from the rows and settings that the store has now."
    assert [name for name, card in cards.items() if old in card] == ["mixed", "outdated"]
    assert {name: one.get("notes") for name, one in said.items()} == {
        "exact": None, "mean": None, "mixed": [OTHERWISE[:-2]], "outdated": [OTHERWISE[:-2]]
    }  # fmt: skip
    assert taftcache.open_model(tmp_path / "outdated").classes
