"""What a private training is refused, that a refusal changes nothing, and what holds all trainings of a store."""

from __future__ import annotations

import math
import re
import shutil
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import FormatError, RecipeError, SolveError, StoreError
from taftcache.model.members import subtracted
from taftcache.names import ONE_SETTING, PRIVATE, at_least, epsilon_text
from taftcache.privacy import trainer
from taftcache.privacy.accountant import epsilon
from taftcache.privacy.budget import EVENT, PLAN, Promise, fixed_promise, held_to, spent, weak_promise
from taftcache.privacy.spec import PrivacySpec
from taftcache.recipe import parse_recipe
from taftcache.stages.progress import Silent
from taftcache.stages.train.private.records import Budget, deciding
from taftcache.terminal.inspection import show_inspect
from tests.stages.making import PRIVACY, open_store, recipe, settings


def other_base(store: FeatureStore, seed: int = 9, **privacy: Any):
    """The private settings around another base point."""
    values = store.manifest.recipe | {"privacy": {**PRIVACY, **privacy}}
    return parse_recipe(values | {"tangent": {**values["tangent"], "train": "head", "seed": seed}})


# ---- a command that is refused changes nothing ----

SETS = [f"--set=privacy.{key}={value}" for key, value in PRIVACY.items()] + ['--set=tangent.train="head"']
SPENT = {
    "over budget": ["--set=privacy.clip=2.0"],
    "other base, over budget": ["--set=tangent.seed=9"],
    "another delta": ["--set=privacy.delta=0.3", "--set=privacy.multiplier=1.2"],
    "another relation": ["--set=privacy.relation=add-remove"],
    "a larger budget": ["--set=privacy.budget=100", "--set=privacy.clip=2.0"],
    "one shard around another base": ["--shard", "000", "--set=tangent.seed=9", "--set=privacy.multiplier=1e6"],
}
ALWAYS = {
    "no such shard": ["--shard", "999", "--set=tangent.seed=9"],
    "too much noise": ["--set=privacy.epsilon=1e-9"],
    "statistics of a full tail": ['--set=tangent.train="full"', "--set=privacy.mechanism=least-squares"],
    "no head": ['--set=tangent.train=["*.mlp.*"]'],
    "exact": ["--set=compose.mode=exact"],
}


@pytest.mark.parametrize(
    ("state", "why"),
    [("private", why) for why in SPENT | ALWAYS]
    + [("plain", "exact")]
    + [pytest.param("plain", why, marks=pytest.mark.full) for why in ALWAYS if why != "exact"],
)
def test_a_refused_command_changes_nothing(store, private, why, state, capsys):
    path = store if state == "plain" else private
    with FeatureStore(path) as opened:
        before = opened.root_digest
    with pytest.raises(SystemExit) as end:
        main(["train", str(path), "--private", *SETS, *(SPENT | ALWAYS)[why]])
    assert end.value.code != 0
    assert "Traceback" not in capsys.readouterr().err
    with FeatureStore(path) as opened:
        assert opened.root_digest == before


def test_all_shards_are_charged_before_the_first_is_trained(private):
    with open_store(private) as store:
        with store.transaction() as change:  # 000 could be trained: nothing of it was spent by the ledger's next entry
            change.drop("components/000")
        before = store.root_digest
        with pytest.raises(RecipeError, match="of its budget"):
            taftcache.train_private(store, settings(store, clip=2.0))
        assert store.root_digest == before


@pytest.mark.parametrize("mechanism", ["descent", "least-squares"])
def test_more_rows_than_a_sum_holds_are_refused_before_the_first_is_trained(store, monkeypatch, mechanism):
    with open_store(store) as opened:
        with opened.transaction() as change:  # the first shard is to have no more than it may
            change.erase(opened.shard("000").sample_ids[opened.shard("001").rows - 1 :])
        monkeypatch.setattr(trainer, "MAX_ROWS", max(shard.rows for shard in opened.shards) - 1)
        before = opened.root_digest
        with pytest.raises(SolveError, match="too many rows"):
            taftcache.train_private(opened, settings(opened, mechanism=mechanism))
        assert opened.root_digest == before


def test_models_work_after_a_refusal(private):
    """Settings around another base point were once recorded before the budget was looked at."""
    with open_store(private) as store:
        before = taftcache.evaluate(store).accuracy
        with pytest.raises(RecipeError, match="of its budget"):
            taftcache.train_private(store, other_base(store))
        assert taftcache.evaluate(store).accuracy == before


def test_a_failure_while_training_leaves_models_and_settings(store, monkeypatch):
    from taftcache.stages.train.private import training as private_training

    def fail(*arguments, **keywords):
        raise SolveError("no memory is left")

    monkeypatch.setattr(private_training, "train_privately", fail)
    with open_store(store) as opened:
        before = opened.root_digest
        with pytest.raises(SolveError):
            taftcache.train_private(opened, settings(opened))
        assert opened.root_digest == before


def test_models_without_noise_go_with_the_first_private_component(store):
    with open_store(store) as opened:
        report = taftcache.train_private(opened, settings(opened), shards=["001"])
        assert "components/000" in report.dropped, "it is around another base point"
        assert {n for n in opened.objects() if not n.startswith(("base/", "state/"))} == {"components/001"}
        again = taftcache.train_private(opened, shards=["001"])
        assert (again.trained, again.kept, again.dropped) == ([], ["components/001"], [])
        with opened.transaction() as change:
            change.put("models/head", b"", {"base_digest": ""})
        assert taftcache.train_private(opened, shards=["001"]).dropped == ["models/head"]
        assert "models/head" not in opened.objects()


def test_nothing_to_do_writes_nothing(private):
    with open_store(private) as store:
        before = store.root_digest
        taftcache.train_private(store)
        taftcache.compose(store)
        assert store.root_digest == before


# ---- the pair is fixed ----


def test_the_first_training_fixes_budget_delta_and_relation(store, capsys):
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened, epsilon=3.0, budget=8.0), shards=["000"])
        assert opened.manifest.plan[PLAN] == {"epsilon": 8.0, "delta": 1e-5, "relation": "replace-one"}
        (entry,) = opened.ledger()
        assert (entry["budget"], entry["delta"], entry["relation"]) == (8.0, 1e-5, "replace-one")
        for other, said in (
            ({"delta": 1e-4}, "privacy.delta is 0.0001"),
            ({"relation": "add-remove"}, "privacy.relation is add-remove"),
            ({"budget": 9.0}, "privacy.budget is 9.0"),
            ({"budget": 7.0}, "privacy.budget is 7.0"),
        ):
            with pytest.raises(RecipeError, match=re.escape(said)):
                taftcache.train_private(opened, settings(opened, epsilon=1.0, **other), shards=["001"])
        more = taftcache.train_private(
            opened, settings(opened, epsilon=2.0), shards=["000"]
        )  # no budget said: the fixed one
        assert 3.0 < more.spent["000"] <= 8.0
        assert more.budget == 8.0
        again = taftcache.train_private(opened, settings(opened, epsilon=2.0), shards=["000"])
        assert (again.trained, again.spent) == ([], more.spent), "what is spent is said though nothing was trained"
        told = taftcache.inspect(opened)
        assert told.budget == Budget(
            epsilon=8.0, delta=1e-5, relation="replace-one", spent={"000": more.spent["000"], "001": 0.0}
        )
        show_inspect(told)
    said = " ".join(capsys.readouterr().out.split())
    assert "budget epsilon 8 at delta 1e-05 (replace-one) of each shard" in said
    so_far, left = epsilon_text(more.spent["000"]), at_least(8 - more.spent["000"], ".4g")
    assert f"{so_far} spent, {left} left: 000 0 spent, 8 left: 001" in said


def test_what_a_store_without_its_ledger_spent_is_not_known(private, monkeypatch):
    """And is no reason not to show the rest of it."""

    def fails(*given):
        raise RecipeError("the ledger is not here")

    assert taftcache.inspect(private).budget.spent["000"] > 0
    monkeypatch.setattr("taftcache.stages.train.private.records.fixed_promise", fails)
    told = taftcache.inspect(private)
    assert told.budget is None
    assert "what private trainings have spent is not known: the ledger is not here" in told.notes


def test_a_larger_delta_does_not_step_around_the_budget(private):
    """3 of 3 spent at 1e-5, then a training with hardly any noise at δ = 0.3 was once accepted."""
    with open_store(private) as store:
        with pytest.raises(RecipeError, match=r"delta is 0\.3"):
            taftcache.train_private(store, other_base(store, delta=0.3, multiplier=1.2))
        assert epsilon(spent(store.ledger(), "000"), 1e-5) <= 8.0


def test_a_copy_and_a_conversion_are_held_to_the_same(private, tmp_path):
    taftcache.copy(private, tmp_path / "copy")
    taftcache.convert(private, tmp_path / "converted", dtype="float32")
    for name in ("copy", "converted"):
        with open_store(tmp_path / name) as store:
            assert store.manifest.plan[PLAN]["epsilon"] == 8.0
            for why in ({"clip": 2.0}, {"delta": 0.3}, {"budget": 20.0, "clip": 2.0}):
                with pytest.raises(RecipeError):
                    taftcache.train_private(store, settings(store, **why))


def test_an_import_knows_that_there_were_private_releases(private, tmp_path):
    taftcache.export(private, tmp_path / "rows.h5")
    taftcache.import_(tmp_path / "rows.h5", recipe(tmp_path / "imported"))
    with open_store(tmp_path / "imported") as store:
        before = store.root_digest
        with pytest.raises(RecipeError, match="the ledger that says how much was spent is not here"):
            taftcache.train_private(store, settings(store))
        taftcache.train(store, parse_recipe(store.manifest.recipe))
        taftcache.forget(store, [store.shard("000").sample_ids[0]])
        with pytest.raises(RecipeError, match="the ledger that says"):
            taftcache.train_private(store, settings(store))
        assert store.root_digest != before
    assert taftcache.audit(tmp_path / "imported").findings == []


def test_an_import_of_a_store_without_private_releases_may_train(store, tmp_path):
    taftcache.export(store, tmp_path / "rows.h5")
    taftcache.import_(tmp_path / "rows.h5", recipe(tmp_path / "imported"))
    with open_store(tmp_path / "imported") as opened:
        assert taftcache.train_private(opened, settings(opened), shards=["000"]).trained == ["components/000"]


def test_samples_that_are_appended_come_under_the_same_promise(tmp_path, images):
    import os

    from PIL import Image

    folder = shutil.copytree(images, tmp_path / "images")
    made = recipe(tmp_path / "store", data={"source": "folder", "train": str(folder)})
    taftcache.run(made)
    with open_store(tmp_path / "store") as store:
        taftcache.train_private(store, settings(store))
    for k in range(6):
        Image.new("RGB", (8, 8), (40 * k, 10, 10)).save(folder / os.listdir(images)[0] / f"new{k}.png")
    taftcache.append(made)
    with open_store(tmp_path / "store") as store:
        assert store.manifest.plan[PLAN]["epsilon"] == 8.0
        grown = [s.name for s in store.shards]
        with pytest.raises(RecipeError, match="of its budget"):
            taftcache.train_private(store, settings(store), shards=grown)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_stores_of_earlier_releases_are_held_to_their_first_training(relation):
    entry = {"event": EVENT, "shards": ["000"], "releases": [], "delta": 1e-6, "budget": 3.0}
    ledger = [{"event": "forget"}, entry, {**entry, "budget": 5.0}, {**entry, "budget": 50.0, "delta": 0.3}]
    assert fixed_promise({}, ledger, relation) == Promise(5.0, 1e-6, relation)
    assert fixed_promise({}, ledger[:1], relation) is None
    assert held_to(None, PrivacySpec(epsilon=2.0, budget=6.0)) == Promise(6.0, 1e-5, "add-remove")
    with pytest.raises(FormatError, match="not one that taftcache writes"):
        fixed_promise({PLAN: {"epsilon": "much"}}, ledger, relation)


# ---- tuning, plans, shards ----


def test_settings_that_private_training_does_not_read_spend_nothing(store):
    with open_store(store) as opened:
        values = msgspec.to_builtins(settings(opened))
        assert taftcache.train_private(opened, settings(opened)).trained
        for section, changed in {
            "objective": {"ridge": 0.5, "class_weights": "balanced"},
            "privacy": {"rate": 0.3, "budget": values["privacy"]["epsilon"]},
        }.items():
            other = parse_recipe(values | {section: {**values[section], **changed}})
            assert not taftcache.train_private(opened, other).trained, changed
        assert len(opened.ledger()) == 2
    text = (
        '{"objective": {"kappa": 5.0, "ridge": 1.0}, "privacy": {"loss": "rsl", "mechanism": "descent", "rate": 0.1}}'
    )
    assert deciding(text) == deciding(text.replace("0.1", "0.2").replace("1.0", "2.0"))
    assert deciding(text) != deciding(text.replace("5.0", "6.0"))
    sampled = text.replace('"descent"', '"sampled-descent"')
    assert deciding(sampled) != deciding(sampled.replace("0.1", "0.2"))
    squares = text.replace('"descent"', '"least-squares", "steps": 3, "epsilon": 7')
    assert deciding(squares) == deciding(squares.replace("3,", "4,").replace("5.0", "6.0").replace("0.1", "0.2"))
    assert deciding(squares) != deciding(squares.replace("7", "8"))


def test_what_was_spent_on_the_same_rows_before_goes_with_the_component(store):
    """Settings that were chosen after a look at the first component hold with what both spent, not with the second; if
    that chose the noise or the second training, with the budget alone."""
    with open_store(store) as opened:
        first = taftcache.train_private(opened, settings(opened, epsilon=2.0, budget=8.0), shards=["000"])
        assert first.statements["components/000"]["tuning"] == ONE_SETTING
        report = taftcache.train_private(
            opened, settings(opened, epsilon=2.0, budget=8.0, learning_rate=5.0), shards=["000"]
        )
        said, (_, entry) = report.statements["components/000"], opened.ledger()
        assert report.spent["000"] > 1.2 * said["epsilon"]
        assert f"epsilon {epsilon_text(report.spent['000'])} in all" in said["tuning"] == entry["tuning"]
        assert "only the budget holds, epsilon 8 (of sampled-descent not even that is proven)" in said["tuning"]
        notes = taftcache.forget(opened, [opened.shard("000").sample_ids[0]]).notes
        assert any(said["tuning"] in note for note in notes)
    assert taftcache.audit(store).findings == []


class Heard(Silent):
    """Keeps what is said, and that a task began."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, text: str) -> None:
        self.heard.append(text)

    def task(self, name: str, total: int | None) -> AbstractContextManager[Silent]:
        self.heard.append("task")
        return super().task(name, total)


def test_a_delta_that_promises_nothing_is_refused_before_anything_is_fixed(store):
    before = FeatureStore(store).root_digest
    with open_store(store) as opened:
        rows = sum(shard.rows for shard in opened.shards)
        with pytest.raises(RecipeError, match="promises nothing here") as refused:
            taftcache.train_private(opened, settings(opened, delta=1 / rows))
        assert opened.root_digest == before
        assert "delta = 0.02" in refused.value.got
        assert "set privacy.delta to 0.001 or less" in refused.value.do
        assert taftcache.train_private(opened, settings(opened, delta=0.001)).notes == []
    assert taftcache.audit(store).notes == []


def test_what_promises_little_is_said_before_it_is_fixed_and_wherever_it_goes(store, tmp_path):
    with open_store(store) as opened:
        rows, heard = sum(shard.rows for shard in opened.shards), Heard()
        asked = settings(opened, delta=0.2 / rows, epsilon=12.0, relation="add-remove")
        notes = taftcache.train_private(opened, asked, progress=heard).notes
        assert [note.split()[0] for note in notes] == ["delta", "epsilon"]
        assert heard.heard[:3] == [*notes, "task"]
        assert not re.search(rf"\b{rows}\b", " ".join(notes))  # which one row more or less would change
        assert taftcache.train_private(opened, asked).notes == notes
        taftcache.export_model(opened, tmp_path / "out", "components/000")
    assert [note.split()[0] for note in taftcache.audit(store).notes] == ["delta", "epsilon"]
    card = " ".join((tmp_path / "out" / "README.md").read_text(encoding="utf-8").split())
    assert "where it is far below one in the rows" in card
    assert "An epsilon above 10 bounds next to nothing" in card


def test_a_delta_that_an_earlier_release_fixed_is_named():
    (note,) = weak_promise(1.0, 0.01, 100)
    assert "fixed for this store" in note
    assert weak_promise(10.0, 0.001, 100) == []


def test_a_balanced_plan_does_not_go_with_rows_that_come_or_go(tmp_path):
    """One row less moved 96 of 120 others to another shard: the promise of each shard said nothing of that."""
    path = tmp_path / "store"
    taftcache.extract(recipe(path, store={"plan": "balanced"}))
    with open_store(path) as store:
        before = store.root_digest
        with pytest.raises(RecipeError, match="moves others to other shards"):
            taftcache.train_private(store, settings(store, relation="add-remove"))
        assert store.root_digest == before
        assert taftcache.train_private(store, settings(store, relation="replace-one")).trained
    one = tmp_path / "one"
    taftcache.extract(recipe(one, store={"plan": "balanced", "shards": 1}))
    with open_store(one) as store:
        assert taftcache.train_private(store, settings(store, relation="add-remove")).trained


def test_a_subtracted_shard_is_trained_by_name_alone(store):
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened, epsilon=1.0, budget=8.0))
        taftcache.compose(opened)
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]], mode="subtract")
        assert taftcache.train_private(opened).kept == ["components/001"]
        assert subtracted(opened) == ["000"]
        assert taftcache.train_private(opened, shards=["000"]).trained == ["components/000"]
        assert subtracted(opened) == []
        assert opened.manifest.plan[PLAN]["epsilon"] == 8.0
        taftcache.compose(opened)
    assert taftcache.audit(store).findings == []


RATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "not a number above 0": ({"rates": [1.0, math.nan]}, {}),
    "got: rates: none": ({"rates": []}, {}),
    "got: rates: 1, 0": ({"rates": [1.0, 0.0]}, {}),
    "got: rates: inf": ({"rates": [math.inf]}, {}),
    "least-squares has none": ({"rates": [0.5, 2.0]}, {"mechanism": "least-squares"}),
}


@pytest.mark.parametrize("said", RATES)
def test_rates_that_choose_nothing_are_refused(store, said):
    given, privacy = RATES[said]
    with open_store(store) as opened:
        before = opened.root_digest
        with pytest.raises(RecipeError, match=said):
            taftcache.train_private(opened, settings(opened, **privacy), **given)
        assert opened.root_digest == before


def test_no_held_out_rows_to_tune_by(tmp_path):
    path = tmp_path / "store"
    taftcache.extract(recipe(path, data={"source": "digits", "limit": 60, "held_out": 0.0}))
    with open_store(path) as store, pytest.raises(StoreError, match="no held-out rows"):
        taftcache.train_private(store, settings(store), rates=[1.0, 2.0])


@pytest.mark.parametrize("compose", [{"mode": "weighted"}, {"mode": "weighted", "weights": {"000": 0.25, "001": 0.75}}])
def test_compositions_of_private_components(private, compose):
    with open_store(private) as store:
        report = taftcache.compose(store, parse_recipe({**store.manifest.recipe, "compose": compose}))
        assert report.models == ["models/mean", "models/weighted"]
        assert store.objects()["models/weighted"].meta[PRIVATE]["epsilon"] <= 8.0
        assert taftcache.evaluate(store).accuracy.keys() >= {"models/weighted", "models/mean", "components/000"}
    assert taftcache.audit(private).findings == []
