"""Modes and ways to name what is to be forgotten: each against solving, composing or extracting without the rows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import RecipeError, StoreError, UnknownSample
from taftcache.model.component import Component, read_base, read_component
from taftcache.model.composition import compose
from taftcache.recipe import parse_recipe
from taftcache.solve.choosing import choose_ridge
from taftcache.stages.forget import forgetting, renewal, request
from taftcache.stages.forget.renewal import Warm
from taftcache.stages.forget.request import read_ids
from taftcache.stages.look import inspection
from taftcache.stages.progress import Silent
from taftcache.stages.train import record, solving
from taftcache.stages.train.solving import SolveOptions, solve_component
from taftcache.terminal.forgetting import forgotten_lines
from taftcache.terminal.text import certified
from tests.stages.making import commits, open_store, recipe, tree

EXACT = {"compose": {"mode": "exact"}}
FEW = {"data": {"source": "digits", "limit": 30}}


@pytest.fixture
def exact(solved, tmp_path) -> Path:
    return shutil.copytree(solved, tmp_path / "store")


def deltas(path: Path) -> dict[str, torch.Tensor]:
    with FeatureStore(path) as store:
        base = read_base(store, record.adopt(store, None).tangent)
        names = [n for n in store.objects() if n.startswith(("components/", "models/"))]
        return {n: read_component(store, n, base).delta for n in names}


def test_subtract_leaves_the_shard_out_and_solves_nothing_but_the_head(exact):
    with open_store(exact) as store:
        sample = store.shard("000").sample_ids[0]
        report = taftcache.forget(store, [sample], mode="subtract")
        assert report.destroyed == ["components/000", "models/exact"]
        assert list(report.certificates) == ["models/head"]
        assert taftcache.forget(store, [sample], mode="subtract").forgotten == []
        composed = taftcache.compose(store, parse(store, mode="mean"))
        assert (composed.members, composed.left_out, composed.changed) == (["components/001"], ["000"], False)
    now = deltas(exact)
    assert torch.equal(now["models/mean"], now["components/001"])
    assert taftcache.audit(exact).findings == []


def parse(store: FeatureStore, **values):
    from taftcache.recipe import parse_recipe

    return parse_recipe({**store.manifest.recipe, "compose": {**store.manifest.recipe["compose"], **values}})


def test_a_run_leaves_a_subtracted_shard_out_until_it_is_trained_by_name(store):
    direct = shutil.copytree(store, store.parent / "direct")
    with open_store(store) as opened:
        sample = opened.shard("001").sample_ids[0]
        taftcache.forget(opened, [sample], mode="subtract")
    before = tree(store)
    assert taftcache.run(recipe(store)).idle
    assert tree(store) == before
    retrained = shutil.copytree(store, store.parent / "retrained")
    with open_store(retrained) as opened:
        taftcache.train(opened, shards=["001"])
        taftcache.compose(opened)
        assert record.subtracted(opened) == []
    with open_store(direct) as opened:
        taftcache.forget(opened, [sample])
    assert commits(retrained) == commits(direct)


@pytest.mark.full
def test_a_cold_solve_after_a_warm_one_chooses_no_ridge_again(tmp_path, monkeypatch):
    path, cold = tmp_path / "store", tmp_path / "cold"
    taftcache.run(recipe(path, objective={"ridge": "auto"}, **EXACT, **FEW))
    shutil.copytree(path, cold)
    monkeypatch.setattr(renewal, "DECISIVE", 1e-30)
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
        taftcache.forget(store, [sample], mode="resolve", cold=True)
    assert commits(path) == commits(cold)


@pytest.mark.law("A class, a shard, an exact model that were forgotten were never seen")
@pytest.mark.parametrize("mode", [pytest.param("retrain", marks=pytest.mark.full), "resolve"])
def test_cold_is_never_seen_for_the_exact_model_too(images, tmp_path, mode):
    source = shutil.copytree(images, tmp_path / "images")
    sections = {"data": {"source": "folder", "train": str(source)}, **EXACT}
    taftcache.run(recipe(tmp_path / "forgot", **sections))
    with open_store(tmp_path / "forgot") as store:
        gone = [store.shard("000").sample_ids[1], store.shard("001").sample_ids[4]]
        taftcache.forget(store, gone, mode=mode, cold=mode == "resolve")
    for name in gone:
        (source / name).unlink()
    taftcache.run(recipe(tmp_path / "never", **sections))
    assert commits(tmp_path / "forgot") == commits(tmp_path / "never")


@pytest.mark.parametrize("decisive", [True, False, None])
def test_a_loose_certificate_is_said(decisive, tmp_path):
    figures = {"relative_gradient": 1e-2, "distance_bound": 0.5, "moved": 0.7, "decisive": decisive}
    report = forgetting.ForgetReport(
        store=tmp_path, root_before="", root_digest="", certificates={"components/000": figures}
    )
    assert ("too loose to prove" in forgotten_lines(report)[-1]) == (decisive is False)


@pytest.mark.law("A warm re-solve is within a tenth of what the removal moved, or is solved cold")
def test_warm_is_within_a_tenth_of_what_the_removal_moved(exact, tmp_path):
    cold = shutil.copytree(exact, tmp_path / "cold")
    with open_store(exact) as store:
        sample = store.shard("000").sample_ids[2]
        report = taftcache.forget(store, [sample], mode="resolve")
        warm_logits = taftcache.evaluate(store).accuracy["models/exact"]
    with open_store(cold) as store:
        taftcache.forget(store, [sample], mode="resolve", cold=True)
        assert taftcache.evaluate(store).accuracy["models/exact"] == warm_logits
    figures = report.certificates["models/exact"]
    assert figures["decisive"]
    assert figures["distance_bound"] <= renewal.DECISIVE * figures["moved_at_least"]
    ours, theirs = deltas(exact), deltas(cold)
    apart = (ours["models/exact"] - theirs["models/exact"]).norm().item()
    assert apart <= 2 * figures["distance_bound"]
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
    assert figures["decisive"]
    apart = (exact.delta - optimum.delta).norm().item()
    assert apart <= figures["distance_bound"] + optimum.meta["certificate"]["distance_bound"]
    assert exact.dual.shape == (rows - 2, len(store.classes))
    assert Component.decode((tmp_path / "exported").read_bytes(), base).dual is None
    assert taftcache.audit(path).findings == []


@pytest.mark.law("What was trained by a recipe that names no tolerance has receipts that decide")
def test_without_a_tolerance_receipts_decide(tmp_path, monkeypatch):
    """Under a sample of many rows, at 10⁻² of the gradient, they would not."""
    for limit in ("dual.LARGEST_KERNEL", "class_kernel.LARGEST_ROWS"):
        monkeypatch.setattr(f"taftcache.solve.inverses.{limit}", 0)
    monkeypatch.setattr("taftcache.solve.inverses.sampled.LEAST_ROWS", 2)
    monkeypatch.setattr("taftcache.solve.inverses.sampled._count", lambda problem: 256)
    monkeypatch.setattr("taftcache.recipe.SolverSpec.relative", 1e-2)
    ran = taftcache.run(recipe(tmp_path / "store", **EXACT, **FEW))
    trained = [c for name, c in ran.train.certificates.items() if name != "models/head"]
    for certificate in (*trained, ran.compose.certificate):
        assert certificate["decisive"]
        assert certificate["relative_gradient"] < 5e-3
    with open_store(tmp_path / "store") as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]])
    assert all(c["decisive"] for c in report.certificates.values() if c["moved"] > 0)


@pytest.mark.law("What was trained to a decisive tolerance has receipts that decide")
def test_a_decisive_tolerance_has_receipts_that_decide(tmp_path, monkeypatch):
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    path = tmp_path / "store"
    ran = taftcache.run(recipe(path, solver={"tolerance": "decisive"}, **EXACT, **FEW))
    trained = {name: c for name, c in ran.train.certificates.items() if name != "models/head"}  # a closed form
    assert all(c["decisive"] and c["distance_bound"] > 1e-6 * c["row_moves"] for c in trained.values())
    assert "taking out a row moves about" in certified(ran.compose.certificate)
    with open_store(path) as store:
        root, other = store.root_digest, {"loss": "cross_entropy"}
        with pytest.raises(RecipeError, match="has no estimate"):
            taftcache.train(store, recipe(path, solver={"tolerance": "decisive"}, objective=other, **FEW))
        assert store.root_digest == root
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]])
    assert all(c["decisive"] for c in report.certificates.values() if c["moved"] > 0)
    assert taftcache.audit(path).findings == []


@pytest.mark.law("A warm re-solve is within a tenth of what the removal moved, or is solved cold")
def test_a_warm_solve_that_gave_up_is_solved_cold_until_it_decides(tmp_path, monkeypatch):
    """Whatever the recipe's tolerance: the request was for a certificate that decides."""
    for limit in ("dual.LARGEST_KERNEL", "class_kernel.LARGEST_ROWS"):
        monkeypatch.setattr(f"taftcache.solve.inverses.{limit}", 0)
    monkeypatch.setattr("taftcache.solve.inverses.sampled.LEAST_ROWS", 2)
    monkeypatch.setattr("taftcache.solve.inverses.sampled._count", lambda problem: 256)
    monkeypatch.setattr("taftcache.stages.forget.remaking.resolve_warm", lambda *given: Warm(passes=7, failure="why"))
    taftcache.run(recipe(tmp_path / "store", solver={"tolerance": 1e-2}, **EXACT, **FEW))
    with open_store(tmp_path / "store") as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]], mode="resolve")
        moves = store.meta("models/exact")["stats"]["row_moves"]
    assert report.notes == ["models/exact was solved cold after 7 warm passes: why"]
    assert report.certificates["models/exact"]["distance_bound"] <= renewal.DECISIVE * moves


def test_warm_goes_on_where_the_tolerance_is_loose(tmp_path, monkeypatch):
    """Both the old model and the new one are solved further than the recipe asks, until the removal is proven."""
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    path = tmp_path / "store"
    loose = {"solver": {"tolerance": 3e-3, "method": "conjugate"}, "objective": {"ridge": 1.0}, **EXACT, **FEW}
    taftcache.run(recipe(path, **loose))
    with open_store(path) as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[2]], mode="resolve")
    figures = report.certificates["models/exact"]
    assert figures["decisive"]
    assert figures["relative_gradient"] < 1.5e-3
    assert report.notes == []


@pytest.mark.law("A warm re-solve is within a tenth of what the removal moved, or is solved cold")
def test_warm_falls_back_to_cold(exact, tmp_path, monkeypatch):
    cold = shutil.copytree(exact, tmp_path / "cold")
    monkeypatch.setattr(renewal, "DECISIVE", 1e-30)
    with open_store(exact) as store:
        sample = store.shard("000").sample_ids[2]
        report = taftcache.forget(store, [sample], mode="resolve")
        assert "was solved cold" in store.ledger()[-1]["notes"][0]
    assert report.notes
    with open_store(cold) as store:
        taftcache.forget(store, [sample], mode="resolve", cold=True)
    assert commits(exact) == commits(cold)


@pytest.mark.law("A class, a shard, an exact model that were forgotten were never seen")
def test_a_class_that_leaves_is_never_seen(images, tmp_path):
    source = shutil.copytree(images, tmp_path / "images")
    sections = {"data": {"source": "folder", "train": str(source)}, **EXACT}
    forgot, never = tmp_path / "forgot", tmp_path / "never"
    taftcache.run(recipe(forgot, **sections))
    with open_store(forgot) as store:
        report = taftcache.forget(store, classes=["1"])
        assert report.classes == ["1"]
        assert store.classes == ["0", "2"]
        assert {store.classes[k] for part in store.shards for k in part.labels} == {"0", "2"}
        again = taftcache.forget(store, classes=["1"])
        assert (again.forgotten, again.already) == ([], ["class 1"])
        with pytest.raises(StoreError, match="has no class"):
            taftcache.forget(store, classes=["one"])
        with pytest.raises(RecipeError, match="retrain"):
            taftcache.forget(store, classes=["2"], mode="subtract")
    shutil.rmtree(source / "1")
    taftcache.run(recipe(never, **sections))
    assert commits(forgot) == commits(never)
    assert all(c["moved"] is None for c in report.certificates.values())


def test_a_shard_extracted_after_a_class_left_has_the_labels_of_the_others(images, tmp_path):
    path = tmp_path / "store"
    settings = recipe(path, data={"source": "folder", "train": str(images)})
    taftcache.run(settings)
    with open_store(path) as store:
        taftcache.forget(store, classes=["1"])
    whole = commits(path)
    with open_store(path) as store, store.transaction() as change:
        change.drop_shard("001")
    taftcache.run(settings)  # the source still has the class, and its images
    assert commits(path) == whole


def test_the_last_row_of_a_class_takes_it_along(exact):
    with open_store(exact) as store:
        label = store.classes[store.shard("000").labels[0]]
        everyone = [s["sample"] for s in inspection.list_samples(store, label=label)]
        k = store.classes.index(label)
        held = [i for i, c in zip(store.held_out.sample_ids, store.held_out.labels, strict=True) if c == k]
        taftcache.forget(store, [*everyone[1:], *held])
        assert label in store.classes
        assert taftcache.forget(store, everyone[:1]).classes == [label]
        assert label not in store.classes
    assert taftcache.audit(exact).findings == []


def test_dry_run_says_what_happens_and_changes_nothing(exact):
    before = tree(exact)
    with open_store(exact) as store:
        samples = store.shard("001").sample_ids[:2]
        plan = taftcache.forget(store, samples, mode="resolve", dry_run=True)
    assert tree(exact) == before
    assert (plan.dry_run, plan.root_before) == (True, plan.root_digest)
    assert plan.bytes > 0
    with open_store(exact) as store:
        done = taftcache.forget(store, samples, mode="resolve")
    for name in ("forgotten", "shards", "renewed", "destroyed", "classes", "dropped_shards"):
        assert getattr(plan, name) == getattr(done, name)
    assert plan.passes.keys() == done.passes.keys()


def test_a_receipt_of_many_ids_has_their_digest(exact, monkeypatch):
    from taftcache.cache.format.digest import canonical, digest
    from taftcache.stages.forget import receipts

    monkeypatch.setattr(receipts, "MAX_IDS", 2)
    with open_store(exact) as store:
        gone = store.shard("000").sample_ids[:3]
        taftcache.forget(store, gone, mode="subtract")
        entry = store.ledger()[-1]
        assert entry["ids"] == []
        assert entry["ids_digest"] == digest(canonical(sorted(store.manifest.tombstones)))
        taftcache.forget(store, store.shard("000").sample_ids[:1], mode="subtract")
        assert len(store.ledger()[-1]["ids"]) == 1


def test_other_state_made_from_the_rows_is_destroyed(exact):
    with open_store(exact) as store:
        with store.transaction() as change:
            change.put("state/preconditioner", b"made from all rows")
            change.put("models/other", store.read_object("models/mean"), store.objects()["models/mean"].meta)
        report = taftcache.forget(store, [store.held_out.sample_ids[0]])
        assert report.destroyed == ["models/other", "state/preconditioner"]
        assert not any(name.startswith("state/") for name in store.objects())
        assert store.ledger()[-1]["destroyed"] == report.destroyed


def test_weights_of_components_that_leave_are_shared_out(exact):
    with open_store(exact) as store:
        taftcache.compose(store, parse(store, mode="weighted", weights={"000": 0.25, "components/001": 0.75}))
        taftcache.forget(store, [store.shard("000").sample_ids[0]], mode="subtract")
        assert store.manifest.recipe["compose"]["weights"] == {"components/001": 1.0}
        assert not taftcache.compose(store).changed
    now = deltas(exact)
    assert torch.equal(now["models/weighted"], now["components/001"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "erase"}, RecipeError),
        ({"samples": ["digits/9999"], "mode": "subtract"}, UnknownSample),
        ({"shards": ["009"]}, StoreError),
        ({"shards": ["000"], "samples": ["digits/9999"]}, UnknownSample),
    ],
)
def test_what_is_unknown_is_refused_before_anything_changes(store, options, error):
    before = tree(store)
    with open_store(store) as opened:
        options = {"samples": [opened.shard("000").sample_ids[0]], **options}
        with pytest.raises(error):
            taftcache.forget(opened, **options)
    assert tree(store) == before


def test_resolve_needs_an_exact_model(store):
    with open_store(store) as opened, pytest.raises(RecipeError, match="compose"):
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]], mode="resolve")


def test_a_file_of_ids_is_read_to_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(request, "MAX_FILE", 1 << 16)
    with pytest.raises(RecipeError, match="MiB of ids"):
        read_ids(Path("/dev/zero"))
    (tmp_path / "ids.txt").write_bytes("a\u2028b\r\nc\x0bd".encode())
    assert read_ids(tmp_path / "ids.txt") == ["a\u2028b", "c\x0bd"], "nothing but a newline ends an id"
    (tmp_path / "ids.txt").write_bytes(b"\xff")
    with pytest.raises(RecipeError, match="not UTF-8"):
        read_ids(tmp_path / "ids.txt")


def test_commands(exact, tmp_path, capsys):
    with FeatureStore(exact) as store:
        first, second, third = store.shard("000").sample_ids[:3]
    (tmp_path / "ids.txt").write_text(f"{first}\n\n{second}\n")
    assert read_ids(tmp_path / "ids.txt") == [first, second]

    def run(*words: str) -> dict:
        with pytest.raises(SystemExit) as end:
            main([*words, "--json"])
        assert end.value.code == 0
        return json.loads(capsys.readouterr().out)

    told = run("forget", str(exact), "--file", str(tmp_path / "ids.txt"), "--mode", "subtract", "--dry-run")
    assert (told["forgotten"], told["dry_run"]) == ([first, second], True)
    assert run("forget", str(exact), "--file", str(tmp_path / "ids.txt"))["forgotten"] == [first, second]
    assert run("compose", str(exact), "--weight", "000=0.5", "--weight", "001=0.5")["models"] == [
        "models/mean",
        "models/weighted",
        "models/exact",
    ]
    assert run("audit", str(exact))["findings"] == []
    assert run("influence", str(exact), "--sample", third)["sample"] == third
    run("export-component", str(exact), "000", str(tmp_path / "one.safetensors"))
    told = run("import-component", str(exact), str(tmp_path / "one.safetensors"), "--name", "elsewhere")
    assert told["component"] == "components/elsewhere"
    assert run("forget", str(exact), "--destroy-key")["mode"] == "destroy-key"
    with pytest.raises(SystemExit):
        main(["forget", str(exact), "--destroy-key", "--sample", third])
    run("forget", str(exact), "--sample", third)  # the imported component has no coefficient yet
    with pytest.raises(SystemExit):
        main(["compose", str(exact)])
    for words in (
        ["compose", str(exact), "--mode", "mean"],
        ["audit", str(exact)],
        ["forget", str(exact), "--sample", third],
    ):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
        assert capsys.readouterr().out


def test_the_mean_of_copies_is_the_component(exact):
    now = deltas(exact)
    with FeatureStore(exact) as store:
        base = read_base(store, record.adopt(store, None).tangent)
        one = read_component(store, "components/000", base)
    assert torch.allclose(compose({"a": one, "b": one}).delta, now["components/000"], rtol=0, atol=1e-15)


def test_class_weights_lose_the_weight_of_a_class_that_leaves(store):
    """The settings fit the classes afterwards, so that the next request and the next training work."""
    with open_store(store) as opened:
        values = opened.manifest.recipe
        weights = [1.0 + k for k in range(10)]
        taftcache.train(
            opened, parse_recipe({**values, "objective": {**values["objective"], "class_weights": weights}})
        )
        taftcache.compose(opened)
        taftcache.forget(opened, classes=[opened.classes[3]])
        assert opened.manifest.recipe["objective"]["class_weights"] == weights[:3] + weights[4:]
        assert taftcache.train(opened).trained == []
    assert taftcache.audit(store).findings == []
