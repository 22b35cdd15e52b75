"""Compositions: any coefficients, the exact model from the mean, and components whose rows are elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import _SIZE, save_file
from typer.testing import CliRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import app, main
from taftcache.consent import recorded_recipe
from taftcache.errors import ArgumentError, CompositionError, FormatError, RecipeError, StoreError, StoreWriteError
from taftcache.model.card import Origin, _summed
from taftcache.model.component import Component, put_component, read_base, read_component
from taftcache.model.meta import meta_of
from taftcache.names import ONE_SETTING, WEIGHTED, at_most, is_model
from taftcache.objective.rsl import RSL
from taftcache.recipe import parse_recipe
from taftcache.stages.look.evaluation import certified_distance
from taftcache.stages.train import record
from taftcache.terminal.pipeline import show_compose
from tests.solve.problems import minimised
from tests.stages.making import open_store, recipe


def asking(store: FeatureStore, **values):
    """The store's recipe with another [compose]."""
    return parse_recipe({**store.manifest.recipe, "compose": values})


def component(store: FeatureStore, name: str) -> Component:
    return read_component(store, name, read_base(store, recorded_recipe(store).tangent))


@pytest.mark.parametrize("weights", [{"000": 1.5, "001": -0.5}, {"components/000": 0.1, "001": 0.9}, "rows"])
def test_any_coefficients(store, weights):
    with open_store(store) as opened:
        report = taftcache.compose(opened, asking(opened, mode="weighted", weights=weights))
        assert report.models == ["models/mean", "models/weighted"]
        first, second, sum_ = (component(opened, n) for n in ("components/000", "components/001", "models/weighted"))
        rows = first.meta["rows"] / (first.meta["rows"] + second.meta["rows"])
        mu = rows if weights == "rows" else next(iter(weights.values()))
        assert torch.allclose(sum_.delta, mu * first.delta + (1 - mu) * second.delta, rtol=1e-12, atol=1e-13)
        assert sum_.meta["identity_error"] < 1e-12
        assert not taftcache.compose(opened).changed
        assert "models/weighted" in opened.objects()
        taftcache.train(opened, parse_recipe({**opened.manifest.recipe, "objective": {"ridge": 1e-2}}))
        assert taftcache.compose(opened, asking(opened, mode="mean")).models == [
            "models/mean"
        ]  # dropped, for it is stale


@pytest.mark.parametrize(("weights", "says"), [({"000": 0.5, "001": 0.6}, "sum to 1.1"), ({"000": 1.0}, "001")])
def test_coefficients_that_do_not_fit(store, weights, says):
    with open_store(store) as opened, pytest.raises(RecipeError, match=says):
        taftcache.compose(opened, asking(opened, mode="weighted", weights=weights))


def test_a_weighted_sum_in_memory_is_what_composing_would_write(store, finished):
    """Of some of the components, too, which ``compose`` leaves nobody out for; and its logits are the sum of theirs."""
    weights = {"000": 1.5, "001": -0.5}
    before = FeatureStore(store).root_digest
    sums = taftcache.weighted_sum(store, weights)
    assert FeatureStore(store).root_digest == before
    held = FeatureStore(store).held_out
    parts = [mu * taftcache.logits(store, held, model=name) for name, mu in weights.items()]
    with open_store(store) as opened:
        one = component(opened, "components/001")
        assert torch.equal(taftcache.weighted_sum(opened, {"001": 1}).delta, one.delta)
        taftcache.compose(opened, asking(opened, mode="weighted", weights=weights))
        assert torch.equal(sums.delta, component(opened, "models/weighted").delta)
        whole = taftcache.logits(opened, opened.held_out, model="models/weighted")
        assert np.array_equal(taftcache.logits(opened, opened.held_out, model="weighted"), whole)
        default = taftcache.logits(opened, opened.held_out)
        assert np.array_equal(taftcache.logits(opened, opened.held_out, model=""), default)
    assert whole == pytest.approx(sum(parts), abs=1e-4)
    for wrong, error, says in (
        ({"000": 0.5}, CompositionError, "sum is 0.5"),
        ({"000": 0.5, "components/000": 0.5}, CompositionError, "twice"),
        ({"none": 1}, StoreError, "no model named components/none.*\n.*\n.*components/000"),
        ({}, CompositionError, "at least one"),
        (["000"], ArgumentError, "no names"),
    ):
        with pytest.raises(error, match=says):
            taftcache.weighted_sum(store, wrong)


def test_exact_is_the_optimum_over_all_rows_wherever_it_starts(store):
    with open_store(store) as opened:
        report = taftcache.compose(opened, asking(opened, mode="exact"))
        assert report.models == ["models/mean", "models/exact"]
        assert report.certificate.rows == sum(s.rows for s in opened.shards)
        assert report.moved > 1000 * report.certificate.distance_bound
        exact = component(opened, "models/exact")
        base = read_base(opened, recorded_recipe(opened).tangent)
        zero = minimised(base, opened.shards, RSL(kappa=15.0), 1e-3, tolerance=1e-10).value
        bound = exact.meta["certificate"]["distance_bound"]
        assert (exact.delta - zero).norm().item() <= 1.01 * bound + 1e-9
        assert not taftcache.compose(opened).changed
        assert taftcache.evaluate(opened).accuracy.keys() >= {"models/mean", "models/exact"}


def test_one_shard_alone_is_its_own_composition(tmp_path):
    path = tmp_path / "store"
    taftcache.run(recipe(path, store={"shards": 1}, compose={"mode": "exact"}))
    with FeatureStore(path) as opened:
        one = component(opened, "components/000").delta
        assert torch.equal(component(opened, "models/mean").delta, one)
        assert torch.equal(component(opened, "models/exact").delta, one)  # the start is the optimum already


def test_what_a_composition_does_to_the_accuracy(store, capsys):
    """Of what predict takes before and after, on the rows held out both times; in words, too."""
    with open_store(store) as opened:
        before = taftcache.evaluate(opened)
        report = taftcache.compose(opened, asking(opened, mode="exact"))
        after = taftcache.evaluate(opened)
        found = report.held_out
        assert found.models == (before.default, after.default) == ("models/mean", "models/exact")
        assert found.accuracy == (before.accuracy["models/mean"], after.accuracy["models/exact"])
        show_compose(report)
        was, now = (f"{100 * value:.2f} %" for value in found.accuracy)
        said = " ".join(capsys.readouterr().out.split())
        assert f"held-out accuracy {was} (models/mean) → {now} (models/exact) of the same 15 rows;" in said
        again = taftcache.compose(opened, asking(opened, mode="exact"))
        assert (again.changed, again.held_out) == (False, None)


def test_of_a_first_composition_there_is_no_accuracy_before(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "store")
    with open_store(path) as opened:
        with opened.transaction() as change:
            change.drop("models/mean")  # the head of all rows is no model that a composition follows
        assert taftcache.compose(opened).held_out is None


def test_another_model_that_does_better_is_named(store):
    """What predict takes follows an order of names, and not accuracy."""
    with open_store(store) as opened:
        weights = {"000": 30.0, "001": -29.0}
        taftcache.compose(opened, asking(opened, mode="weighted", weights=weights))
        report = taftcache.evaluate(opened)
        assert report.default == "models/weighted"
        assert report.accuracy["models/mean"] - report.accuracy["models/weighted"] > 0.3
        (note,) = (n for n in report.notes if n.startswith("models/mean does better than models/weighted, which pred"))
        assert note.endswith("; --model models/mean")
        taftcache.compose(opened, asking(opened, mode="mean"))
        with opened.transaction() as change:
            change.drop("models/weighted")
        report = taftcache.evaluate(opened)
        assert (report.default, report.outdated) == ("models/mean", [])
        assert not any("does better" in note for note in report.notes)


@pytest.fixture
def parcel(store, tmp_path) -> Path:
    """Shard 001's component as a file."""
    with FeatureStore(store) as opened:
        report = taftcache.export_component(opened, "001", tmp_path / "parcel.safetensors")
        assert report.changed
        assert report.bytes == report.file.stat().st_size
        assert not taftcache.export_component(opened, "001", report.file).changed
        with pytest.raises(StoreWriteError, match="exists already"):
            taftcache.export_component(opened, "000", report.file)
    return tmp_path / "parcel.safetensors"


def test_a_component_arrives_where_its_rows_are_not(store, parcel):
    """Two parties with the same base: one has no rows of the other's shard and composes the same mean."""
    with open_store(store) as opened:
        whole = component(opened, "models/mean").delta
        with opened.transaction() as change:
            change.drop_shard("001")
            for name in ("components/001", "models/mean", "models/head"):
                change.drop(name)
            change.update(plan=record.plan_without(opened, subtracted=[], dropped=1))
        assert taftcache.import_component(opened, parcel, "elsewhere").changed
        assert not taftcache.import_component(opened, parcel, "elsewhere").changed
        report = taftcache.compose(opened)
        assert report.members == ["components/000", "components/elsewhere"]
        assert torch.equal(component(opened, "models/mean").delta, whole)
    assert taftcache.audit(store).findings == []


def test_a_mean_leaves_with_the_number_of_its_members_rows(store, tmp_path):
    """It said of itself that it was made from one row, and counted for one where rows weigh."""
    with open_store(store) as opened:
        taftcache.compose(opened, asking(opened, mode="weighted", weights="rows"))
        rows = sum(shard.rows for shard in opened.shards)
        for name in ("mean", "weighted"):
            report = taftcache.export_component(opened, f"models/{name}", tmp_path / f"{name}.safetensors")
            assert report.rows == rows
            assert taftcache.import_component(opened, report.file, f"their-{name}").rows == rows
            assert opened.objects()[f"components/their-{name}"].meta["rows"] == rows


@pytest.mark.law("Of a sum, neither its members' names nor their shares or digests leave")
def test_what_leaves_with_a_sum_says_nothing_of_single_members(store, parcel, tmp_path):
    """Partners were named, and with the rows in all, a share gave theirs."""
    with open_store(store) as opened:
        taftcache.import_component(opened, parcel, "berlin")
        taftcache.compose(opened, asking(opened, mode="weighted", weights="rows"))
        member = opened.objects()["components/berlin"].digest
        share = component(opened, "models/weighted").meta["coefficients"]["components/berlin"]
        taftcache.export_component(opened, "models/weighted", tmp_path / "sum.safetensors")
        taftcache.export_model(opened, tmp_path / "model")
        problem = f"(loss rsl, λ = {opened.manifest.recipe['objective']['ridge']:g})"
    files = [tmp_path / "sum.safetensors", *(file for file in (tmp_path / "model").rglob("*") if file.is_file())]
    for file in files:
        assert not any(said.encode() in file.read_bytes() for said in ("berlin", member, str(share))), file
    said = " ".join((tmp_path / "model" / "README.md").read_text("utf-8").split())
    solved = f"2 of them each the minimiser of its own shard's convex problem {problem}"
    elsewhere = "1 of them imported from another store, and trained in a way that is not known here"
    assert f"a weighted sum of 3 components: {solved}; {elsewhere}. It is no minimiser" in said
    assert "Composed of 3 components, 2 of them with a certificate in the store; the sum has no ε." in said
    taftcache.save_model(taftcache.open_model(tmp_path / "model"), tmp_path / "again", name="models/weighted")
    again = " ".join((tmp_path / "again" / "README.md").read_text("utf-8").split())
    assert "is a weighted sum of components, and how they were trained is not known here. It is no" in again
    assert "Composed of components: it has no certificate and no ε." in again


def test_the_card_of_a_sum_says_each_of_several_alone():
    one, two = (_summed(Origin(name="models/weighted", parts={"solved": n, "imported": 1})) for n in (1, 2))
    assert ": 1 of them the minimiser of its own" in one
    assert ": 2 of them each the minimiser of its own" in two


@pytest.mark.parametrize("said", [None, 0, -3])
def test_a_component_that_does_not_say_how_many_rows_it_has_is_not_weighed_by_them(store, parcel, tmp_path, said):
    given = Component.decode(parcel.read_bytes())
    meta = {k: v for k, v in given.meta.items() if k != "rows"} | ({} if said is None else {"rows": said})
    parcel.write_bytes(replace(given, meta=meta).encode())
    with open_store(store) as opened:
        taftcache.compose(opened, asking(opened, mode="weighted", weights="rows"))
        report = taftcache.import_component(opened, parcel, "elsewhere")
        assert report.rows is None
        what = f"says that it was made from {said} rows, which cannot be" if said else "does not say how many rows"
        assert (what if said != 0 else "from 0 rows, which cannot be") in report.notes[0]
        root, asked = opened.root_digest, asking(opened, mode="weighted", weights="rows")
        for refused in (taftcache.compose, taftcache.train):
            with pytest.raises(RecipeError, match="how many rows it was made from\n  got: elsewhere"):
                refused(opened, asked)
        assert opened.root_digest == root
        forgotten = taftcache.forget(opened, [opened.shard("000").sample_ids[0]])
        assert "models/weighted" in forgotten.renewed
        assert set(opened.objects()["models/weighted"].meta["coefficients"]) == {"components/000", "components/001"}
        taftcache.export_model(opened, tmp_path / "away", "components/elsewhere")
        report = taftcache.compose(opened, asking(opened, mode="mean"))
        for name in ("models/mean", "elsewhere"):
            file = tmp_path / f"{Path(name).name}.safetensors"
            assert taftcache.export_component(opened, name, file).rows is None
        weights = {"000": 0.5, "001": 0.3, "elsewhere": 0.2}
        assert "models/weighted" in taftcache.compose(opened, asking(opened, mode="weighted", weights=weights)).models
        taftcache.inspect(opened)
    assert taftcache.audit(store).findings == []


@pytest.mark.law("Forgetting names the imported components, which it does not reach")
def test_forgetting_names_what_was_imported(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "store")
    with open_store(path) as store:
        parcel = taftcache.export_component(store, "000", tmp_path / "first.safetensors").file
        (note,) = taftcache.import_component(store, parcel, "elsewhere").notes
        assert "components/000" in note
        taftcache.compose(store)
        sample = store.shard("000").sample_ids[0]
        root = store.root_digest
        planned = taftcache.forget(store, [sample], dry_run=True)
        assert store.root_digest == root
        report = taftcache.forget(store, [sample])
        assert planned.notes == report.notes
        assert "components/elsewhere" in report.notes[0]
        assert store.ledger()[-1]["notes"] == report.notes[:1]
    assert taftcache.audit(path).notes[-1] == report.notes[0]


def test_a_conversion_whose_coefficients_name_what_stayed_behind_says_what_to_set(store, parcel, tmp_path):
    with open_store(store) as opened:
        taftcache.import_component(opened, parcel, "elsewhere")
        weights = {"000": 0.5, "001": 0.3, "elsewhere": 0.2}
        taftcache.compose(opened, asking(opened, mode="weighted", weights=weights))
    converted = taftcache.convert(store, tmp_path / "converted", dtype="float32").store
    with pytest.raises(RecipeError, match="elsewhere") as refused:
        taftcache.train(converted)
    assert 'compose.weights = "rows"' in str(refused.value)
    with FeatureStore(converted) as opened:
        asked = asking(opened, mode="weighted", weights="rows")
    taftcache.train(converted, asked)
    assert "models/weighted" in taftcache.compose(converted, asked).models


def test_an_import_says_what_it_replaces_and_what_a_component_may_be_called(store, parcel, capsys):
    def told(*words: object) -> str:
        with pytest.raises(SystemExit):
            main(["import-component", str(store), *map(str, words)])
        return " ".join("".join(capsys.readouterr()).split())

    other = parcel.with_name("siteB_001.safetensors")
    given = Component.decode(parcel.read_bytes())
    negative = replace(given, delta=-given.delta)
    other.write_bytes(replace(negative, meta=given.meta | {"numbers": negative.numbers}).encode())
    assert "got: 'siteB_001' try: rename it, to siteb-001 say" in told(other)
    first = told(parcel, "--name", "siteb-001")
    assert "in place of" not in first
    assert f"next taftcache compose {store}" in first
    taftcache.compose(store)
    again = told(parcel, "--name", "siteb-001")
    assert "(there already)" in again
    assert "next" not in again
    second = told(other, "--name", "siteb-001")
    assert "in place of the one of that name" in second
    assert "left without a receipt" in second
    assert "without a receipt" not in again
    assert f"next taftcache compose {store}" in second
    assert taftcache.compose(store).made == ["models/mean"]
    assert taftcache.import_component(store, parcel, "siteb-001").replaced


def test_what_a_composition_drops_is_named(exact, tmp_path, capsys):
    """models/exact was gone after an import, or in the morning after rows came, and nothing had said so."""
    with open_store(exact) as opened:
        parcel = taftcache.export_component(opened, "001", tmp_path / "parcel.safetensors").file
        automatic = asking(opened, mode="auto")
        taftcache.compose(opened, asking(opened, mode="weighted"))
        kept = taftcache.compose(opened, automatic)
        assert kept.models == ["models/mean", "models/weighted", "models/exact"], "what is current stays in every mode"
        assert (kept.changed, kept.dropped, kept.notes) == (False, [], [])
        taftcache.import_component(opened, parcel, "elsewhere")
        report = taftcache.compose(opened)
        assert (report.dropped, report.models) == (["models/weighted", "models/exact"], ["models/mean"])
        show_compose(report)
        said = " ".join(capsys.readouterr().out.split())
        for model, why in (("weighted", ""), ("exact", " beside imported components")):
            (note,) = [note for note in report.notes if note.startswith(f"models/{model} is gone: ")]
            again = f'compose.mode = "auto" makes none anew{why}; to have it: taftcache compose {exact} --mode {model}'
            assert note.endswith(again)
            assert note in said
        assert any(note.startswith("the same component under 2 names") for note in report.notes)
        assert len(taftcache.compose(opened).notes) == 1, "of classes without rows where there is no model of all"
        assert taftcache.compose(opened, asking(opened, mode="exact")).models == ["models/mean", "models/exact"]
    told = CliRunner().invoke(app, ["train", str(exact), "--set", "objective.ridge=1e-2", "--set", "compose.mode=mean"])
    assert (
        'models/exact is gone: it was not of the components and settings that are there now, and compose.mode = "mean"'
        in " ".join(told.output.split())
    )


def test_a_component_that_came_since_does_not_hold_up_those_that_have_coefficients(store, capsys):
    """train refused for want of a coefficient, and compose, which takes one, for want of training."""
    weights = {"000": 0.25, "001": 0.75}
    with open_store(store) as opened:
        report = taftcache.compose(opened, asking(opened, mode="weighted", weights=weights))
        assert (report.model, report.made) == ("models/weighted", ["models/weighted"])
        assert report.coefficients == {"components/000": 0.25, "components/001": 0.75}
        show_compose(report)
        first, *_ = capsys.readouterr().out.splitlines()
        assert first.startswith("models/weighted written: sum of 0.25 × 000, 0.75 × 001, identity holds to ")
        show_compose(replace(report, coefficients={f"components/site-{k}": k / 78 for k in range(1, 13)}))
        said = " ".join(capsys.readouterr().out.split())
        assert [f"{k / 78:.4g} × site-{k}," in said for k in range(1, 13)] == [True] * 12, "they are agreed on"
        shard = opened.shard("001")
        new = [f"new/{k}" for k in range(8)]
        with opened.writer("002", "train", chunk_rows=8, tokens_shape=shard.tokens_shape, candidates=new) as writer:
            writer.append(shard.tokens(slice(0, 8)), new, shard.labels[:8])
            writer.commit()
    for _ in range(2):
        told = CliRunner().invoke(app, ["train", str(store), "--set", "objective.ridge=1e-2", "--json"])
        assert told.exit_code == 0, told.output
        report = json.loads(told.stdout)["composed"]
        assert report["models"] == ["models/mean", "models/weighted"]
        assert report["members"] == ["components/000", "components/001"]
        note, lacking = report["notes"]
        assert note.startswith("models/weighted leaves out what has no coefficient: components/002; to give one")
        assert lacking.startswith(
            "class 5, 8, 9: no rows in 001; class 6: no rows in 000; the sum holds such a class down"
        )
    with open_store(store) as opened:
        assert list(component(opened, "models/mean").meta["members"]) == [f"components/00{n}" for n in range(3)]
        assert taftcache.audit(opened).findings == []
        other = {"000": 0.5, "001": 0.5}
        for refused in (taftcache.compose, taftcache.train):
            with pytest.raises(RecipeError, match="does not fit the components: 002"):
                refused(opened, asking(opened, mode="weighted", weights=other))
    command = note[note.index("taftcache compose") : note.index(", or weigh")]
    assert command.endswith(" --weight 000=0.25 --weight 001=0.75 --weight 002=0.0")
    told = CliRunner().invoke(app, [*command.split()[1:], "--json"])
    assert [note for note in json.loads(told.stdout)["notes"] if "no coefficient" in note] == []
    command = note[note.rindex("taftcache compose") :]
    assert command.endswith(" --weight rows")
    told = CliRunner().invoke(app, [*command.split()[1:], "--json"])
    rows = {f"components/{ref.name}": ref.rows for ref in FeatureStore(store).manifest.shards if ref.role == "train"}
    assert json.loads(told.stdout)["coefficients"] == {name: n / sum(rows.values()) for name, n in rows.items()}
    with FeatureStore(store) as opened:
        assert "components/002" in opened.objects()["models/weighted"].meta["coefficients"]


def test_composing_needs_no_rows_at_all(store, parcel):
    with open_store(store) as opened:
        with opened.transaction() as change:
            for ref in opened.manifest.shards:
                change.drop_shard(ref.name)
            for name in opened.objects():
                if name != "base/tail":
                    change.drop(name)
        taftcache.import_component(opened, parcel)
        assert taftcache.compose(opened).members == ["components/parcel"]


def test_another_base_point_is_refused(finished, store, parcel, tmp_path):
    path = tmp_path / "other"
    taftcache.run(recipe(path, tangent={"seed": 1}))
    with open_store(path) as opened:
        with pytest.raises(CompositionError, match=r"another base point.*: tangent\.seed: 0 there, 1 here\n"):
            taftcache.import_component(opened, parcel)
        given = Component.decode(parcel.read_bytes())
        before = {**given.meta, "trained_on": {k: v for k, v in given.meta["trained_on"].items() if k != "tangent"}}
        old = tmp_path / "old.safetensors"  # as earlier versions wrote it
        old.write_bytes(replace(given, meta=before).encode())
        with pytest.raises(CompositionError, match=r"another base point than this store's components\n"):
            taftcache.import_component(opened, old)
    with open_store(store) as opened:
        with pytest.raises(RecipeError, match="has that name already"):
            taftcache.import_component(opened, parcel, "000")
        broken = tmp_path / "broken.safetensors"
        broken.write_bytes(parcel.read_bytes()[:-8])
        with pytest.raises(FormatError):
            taftcache.import_component(opened, broken)
        given = component(opened, "components/001")
        nan = Component(given.base_digest, given.layout, given.delta * float("nan"), {})
        broken.write_bytes(nan.encode())
        with pytest.raises(CompositionError, match="finite"):
            taftcache.import_component(opened, broken)


def rounded(given: Component, dtype: torch.dtype, file: Path) -> Path:
    """The component as a file in another type, which says what it said."""
    described = json.dumps({"base_digest": given.base_digest, "meta": given.meta})
    views = given.layout.views(given.delta.to(dtype))
    save_file({name: view.clone() for name, view in views.items()}, file, {"taftcache": described})
    return file


@pytest.mark.law("A component whose numbers do not have the norm that it states is refused")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_damaged_component_is_refused(store, parcel, dtype):
    """One exponent bit of a weight, and a sum was wrong without a word; what was merely rounded is taken."""
    given = Component.decode(parcel.read_bytes())
    assert taftcache.import_component(store, rounded(given, dtype, parcel.with_name("a")), "elsewhere").changed
    root = FeatureStore(store).root_digest
    for factor in (2.0**8, *((0.5, 2) if dtype == torch.float64 else ())):
        damaged = given.delta.clone()
        damaged[damaged.abs().argmax()] *= factor
        file = rounded(replace(given, delta=damaged), dtype, parcel.with_name("b"))
        with pytest.raises(FormatError, match=r"damaged or was changed.*\n  got: ‖Δw‖ = .*, stated "):
            taftcache.import_component(store, file, "elsewhere")
    assert FeatureStore(store).root_digest == root


@pytest.mark.law("A component whose numbers do not have the digest that it states is refused")
def test_a_sign_that_flipped_is_found(store, parcel):
    """The norm is as it was."""
    given = Component.decode(parcel.read_bytes())
    root = FeatureStore(store).root_digest
    flipped = torch.cat([-given.delta[:1], given.delta[1:]])
    parcel.write_bytes(replace(given, delta=flipped).encode())
    with pytest.raises(FormatError, match=r"damaged or was changed.* digest that it states\n  got: \w{16}, stated "):
        taftcache.import_component(store, parcel, "elsewhere")
    assert FeatureStore(store).root_digest == root


@pytest.mark.parametrize("number", [1e39, -1e100, float("inf"), float("nan")])
def test_numbers_that_no_model_can_answer_with_are_refused(store, parcel, number):
    given = Component.decode(parcel.read_bytes())
    wrong = torch.cat([torch.tensor([number], dtype=torch.float64), given.delta[1:]])
    parcel.write_bytes(replace(given, delta=wrong, meta={}).encode())
    with pytest.raises(CompositionError, match="not finite in float32"):
        taftcache.import_component(store, parcel, "elsewhere")


def test_a_norm_is_allowed_its_rounding_and_no_more(store, parcel):
    """A file that states none is taken as it is."""
    given = Component.decode(parcel.read_bytes())
    said, eps = given.meta["norm"], torch.finfo(torch.float64).eps
    for meta in ({}, {"norm": said * (1 + given.delta.numel() * eps)}):
        parcel.write_bytes(replace(given, meta=meta).encode())
        taftcache.import_component(store, parcel, "elsewhere")
    parcel.write_bytes(replace(given, meta={"norm": said * (1 + 1e-9)}).encode())
    with pytest.raises(FormatError, match="norm"):
        taftcache.import_component(store, parcel, "elsewhere")


def test_what_a_file_says_of_its_solve_is_not_taken_over(store, parcel):
    with open_store(store) as opened:
        taftcache.import_component(opened, parcel, "elsewhere")
        taken = opened.objects()["components/elsewhere"].meta
        assert taken.keys() == {"kind", "norm", "imported", "rows", "base_digest", "trained_on"}
        assert taken["trained_on"].keys() == {"objective", "class_rows"}, "the rest is the store's own"
        claimed = meta_of({**Component.decode(parcel.read_bytes()).meta, "imported": True})
        assert certified_distance({"elsewhere": claimed}, "elsewhere") == float("inf")
        taftcache.compose(opened)
        report = taftcache.evaluate(opened, proven=True)
        assert "models/mean" not in report.proven
        (note,) = [note for note in report.notes if "is proven" in note]
        why = "for there is no certificate here of components/elsewhere (imported)"
        assert note == f"no label of models/mean is proven, {why}"
        weights = {"000": 0.5, "001": 0.5, "elsewhere": 0}
        taftcache.compose(opened, asking(opened, mode="weighted", weights=weights))
        said = {name: meta_of(ref.meta) for name, ref in opened.objects().items() if is_model(name)}
        bounds = [certified_distance(said, f"components/{name}") for name in ("000", "001")]
        assert certified_distance(said, WEIGHTED) == pytest.approx(sum(bounds) / 2), "0 x infinity is no number"


def test_a_file_says_what_it_holds_before_it_is_imported(parcel, capsys):
    report = taftcache.inspect_component(parcel)
    given = Component.decode(parcel.read_bytes())
    assert (report.base_digest, report.said) == (given.base_digest, given.meta)
    assert report.tensors == {name: list(shape) for name, shape in given.layout.shapes.items()}
    told = CliRunner().invoke(app, ["inspect", str(parcel)]).output
    proven = given.meta["certificate"]["distance_bound"]
    for words in (
        f"component, {given.meta['rows']} rows, base ",
        f"≤ {at_most(proven)}",
        "shards: 001",
        f"certificate.gradient: {given.meta['certificate']['gradient']}",
        "convergence: ",
        "nothing was checked",
    ):
        assert words in told
    as_json = CliRunner().invoke(app, ["inspect", str(parcel), "--json"]).stdout
    assert json.loads(as_json)["said"] == given.meta
    said = {"private": True, "epsilon": 2.0, "delta": 1e-5, "relation": "replace-one"}
    parcel.write_bytes(replace(given, meta={"privacy": said}).encode())
    assert "epsilon 2 at delta 1e-05" in CliRunner().invoke(app, ["inspect", str(parcel)]).output


def test_what_is_no_component_is_called_so_by_whoever_reads_it(store, parcel):
    """Of an empty file or an npz, an import complained of JSON, or of UTF-32."""
    other = parcel.with_name("other.npz")
    np.savez(other, features=np.zeros(9))
    save_file({"weight": torch.zeros(2)}, parcel, {"format": "pt"})
    (empty := parcel.with_name("empty")).write_bytes(b"")
    for file, why in ((empty, "header too small"), (other, "header"), (parcel, "does not say what it is")):
        for reader in (taftcache.inspect_component, partial(taftcache.import_component, store)):
            with pytest.raises(FormatError, match=rf"{file.name}: not a component: .*\n  got: .*{why}"):
                reader(file)


def test_force_replaces_no_file_that_is_no_component(store, parcel):
    """The error advised --force, which had been given."""
    parcel.write_bytes(b"somebody's own")
    for force, advice in ((True, "name another file, or delete it first"), (False, "or replace an earlier one")):
        with pytest.raises(StoreWriteError) as refused:
            taftcache.export_component(store, "000", parcel, force=force)
        assert advice in refused.value.do
    assert parcel.read_bytes() == b"somebody's own"


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ({"rows": "x"}, "wrong type"),
        ({"rows": 2.5}, "wrong type"),
        ({"certificate": {"distance_bound": "none"}}, "wrong type"),
        ({"privacy": {"private": True, "epsilon": "x"}}, "no.* privacy statement"),
        ({"trained_on": {"classes": 3}}, "wrong type"),
        ({"trained_on": {"class_rows": [1, 2]}}, "rows per class"),
    ],
)
def test_looking_into_a_file_and_importing_it_refuse_the_same(store, parcel, says, refused):
    given, root = Component.decode(parcel.read_bytes()), FeatureStore(store).root_digest
    parcel.write_bytes(replace(given, meta=given.meta | says).encode())
    with pytest.raises(FormatError, match=f"cannot look into .*parcel.safetensors: .*{refused}"):
        taftcache.inspect_component(parcel)
    with pytest.raises(FormatError, match=f"cannot import .*parcel.safetensors: .*{refused}"):
        taftcache.import_component(store, parcel, "elsewhere")
    assert FeatureStore(store).root_digest == root


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
def test_a_components_numbers_are_floating_point(store, parcel, dtype):
    with safe_open(parcel, "pt") as opened:
        tensors = {name: opened.get_tensor(name).to(dtype) for name in set(opened.keys())}
        if dtype not in _SIZE:
            pytest.skip("safetensors below 0.7 cannot write it")
        save_file(tensors, other := parcel.with_name("other.safetensors"), opened.metadata())
    for reader in (taftcache.inspect_component, partial(taftcache.import_component, store)):
        with pytest.raises(FormatError, match="its numbers are not floating-point"):
            reader(other)


def test_what_a_file_stated_of_its_privacy_is_kept_as_no_more_than_that(store, parcel):
    given = Component.decode(parcel.read_bytes())
    said = {"private": True, "epsilon": 2.0, "delta": 1e-5, "relation": "replace-one"}
    with open_store(store) as opened:
        parcel.write_bytes(replace(given, meta={**given.meta, "privacy": said}).encode())
        taftcache.import_component(opened, parcel, "elsewhere")
        (one,) = [m for m in taftcache.inspect(opened).models if m["name"] == "components/elsewhere"]
        assert (one["stated"], "privacy" in one) == ({**said, "tuning": ONE_SETTING}, False)
        (line,) = re.findall("components/elsewhere .*", CliRunner().invoke(app, ["inspect", str(store)]).output)
        assert (one["imported"], "imported" in line) == (True, True)
        assert "privacy" not in component(opened, taftcache.compose(opened).model).meta
        away = taftcache.export_component(opened, "elsewhere", parcel.with_name("away.safetensors")).file
        assert "stated" not in taftcache.inspect_component(away).said
    assert (
        "stated epsilon 2 at delta 1e-05, replace-one; unchecked"
        in CliRunner().invoke(app, ["inspect", str(store)]).output
    )


def test_forgetting_leaves_an_imported_component_alone(store, parcel):
    with open_store(store) as opened:
        taftcache.import_component(opened, parcel, "elsewhere")
        assert taftcache.audit(store).findings == []  # the mean is older than that, and right as it is
        before = opened.objects()["components/elsewhere"].digest
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]])
        assert opened.objects()["components/elsewhere"].digest == before
        assert component(opened, "models/mean").meta["members"].keys() == {
            "components/000",
            "components/001",
            "components/elsewhere",
        }
        assert taftcache.forget(opened, classes=["3"]).destroyed == [
            "components/elsewhere"
        ]  # its head has a column more


def test_a_false_sum_is_refused(store, monkeypatch):
    """The identity is checked at each composition: a mean whose numbers are not the members' does not get through."""
    from taftcache.model import composition

    real = composition.compose

    def wrong(components, coefficients=None):
        total = real(components, coefficients)
        total.delta[0] += 1e-3 * total.delta.abs().max()
        return total

    monkeypatch.setattr(composition, "compose", wrong)
    with open_store(store) as opened:
        given = component(opened, "components/000")
        with opened.transaction() as change:
            put_component(
                change, "components/000", Component(given.base_digest, given.layout, given.delta * 2, given.meta)
            )
        with pytest.raises(CompositionError, match="weighted sum"):
            taftcache.compose(opened)


def test_shards_can_be_added_later(finished, tmp_path):
    """What was there keeps its component; the exact model goes from the new mean."""
    path = tmp_path / "store"
    taftcache.run(recipe(path, compose={"mode": "exact"}))
    with open_store(path) as opened:
        first = opened.objects()["components/000"].digest
        shard = opened.shard("001")
        tokens, ids, labels = shard.tokens(slice(0, 8)), [f"new/{k}" for k in range(8)], shard.labels[:8]
        with opened.writer("002", "train", chunk_rows=8, tokens_shape=shard.tokens_shape, candidates=ids) as writer:
            writer.append(tokens, ids, labels)
            writer.commit()
        assert taftcache.train(opened).trained == ["components/002", "models/head"]
        report = taftcache.compose(opened)
        assert report.changed
        assert report.members == ["components/000", "components/001", "components/002"]
        assert opened.objects()["components/000"].digest == first
    copy = shutil.copytree(path, tmp_path / "copy")
    assert taftcache.audit(copy).findings == []
