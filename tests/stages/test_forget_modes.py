"""Modes and ways to name what is to be forgotten: each against solving, composing or extracting without the rows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.consent import recorded_recipe
from taftcache.errors import RecipeError, StoreError, UnknownSample
from taftcache.model.component import read_base, read_component
from taftcache.model.composition import compose
from taftcache.model.members import subtracted
from taftcache.model.meta import meta_of
from taftcache.names import is_model
from taftcache.recipe import parse_recipe
from taftcache.solve.head.size import HeadSize
from taftcache.stages.forget import request
from taftcache.stages.forget.request import read_ids
from taftcache.stages.train import duration
from taftcache.stages.train.record import settings_of
from taftcache.terminal.forgetting import forgotten_lines
from taftcache.terminal.pipeline import show_run
from tests.stages.making import commits, deltas, open_store, recipe, tree
from tests.stages.test_damage import chunk_of, flip

EXACT = {"compose": {"mode": "exact"}}


def test_what_leaves_no_model_says_so(exact, capsys):
    """The answer listed "renewed: nothing" and what was destroyed, and nobody read from it that no model was left."""
    with open_store(exact) as store:
        samples = [shard.sample_ids[0] for shard in store.shards]
        assert not any("left, since" in note for note in taftcache.forget(store, samples, dry_run=True).notes)
        one = taftcache.forget(store, samples[:1], mode="subtract", dry_run=True)
        assert not any("left, since" in note for note in one.notes)
        rows = sum(shard.rows for shard in store.shards) - len(samples)
        again = f"taftcache train {exact} --shard 000 --shard 001, then taftcache compose {exact}"
        out = f"subtracted, and so left out of models/mean: 000, 001 (rows: {rows}); to have them in it: {again}"
        planned = taftcache.forget(store, samples, mode="subtract", dry_run=True)
        assert planned.notes == ["no model but models/head would be left, since every shard is subtracted", out]
        with store.transaction() as change:
            change.drop("models/head")
        report = taftcache.forget(store, samples, mode="subtract")
        assert report.notes == ["no model is left, since every shard is subtracted", out]
        assert store.ledger()[-1]["notes"] == []
        assert [name for name in store.objects() if is_model(name)] == []
    for command in again.split(", then "):
        with pytest.raises(SystemExit) as ended:
            main(command.split()[1:])
        assert ended.value.code == 0
    assert taftcache.inspect(exact).notes == []


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


def test_a_run_leaves_a_subtracted_shard_out_until_it_is_trained_by_name(store, capsys):
    direct = shutil.copytree(store, store.parent / "direct")
    with open_store(store) as opened:
        sample = opened.shard("001").sample_ids[0]
        taftcache.forget(opened, [sample], mode="subtract")
    before = tree(store)
    report = taftcache.run(recipe(store))
    assert report.idle
    assert tree(store) == before
    show_run(report)
    assert capsys.readouterr().out.count("left out of models/mean: 001") == 1
    retrained = shutil.copytree(store, store.parent / "retrained")
    with open_store(retrained) as opened:
        taftcache.train(opened, shards=["001"])
        taftcache.compose(opened)
        assert subtracted(opened) == []
    with open_store(direct) as opened:
        taftcache.forget(opened, [sample])
    assert commits(retrained) == commits(direct)


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
def test_cold_is_never_seen_for_the_exact_model_too(images, tmp_path):
    source = shutil.copytree(images, tmp_path / "images")
    sections = {"data": {"source": "folder", "train": str(source)}, **EXACT}
    taftcache.run(recipe(tmp_path / "forgot", **sections))
    with open_store(tmp_path / "forgot") as store:
        gone = [store.shard("000").sample_ids[1], store.shard("001").sample_ids[4]]
        taftcache.forget(store, gone)
    for name in gone:
        (source / name).unlink()
    taftcache.run(recipe(tmp_path / "never", **sections))
    assert commits(tmp_path / "forgot") == commits(tmp_path / "never")


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
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
    assert {(c.moved, c.decisive) for c in report.certificates.values()} == {(None, None)}
    assert sum("nothing of what the removal moved" in note for note in report.notes) == 1
    assert not any("removal moved" in note for note in again.notes)


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
        everyone = [s.sample for s in taftcache.list_samples(store, label=label)]
        taftcache.forget(store, everyone[1:])
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
    assert plan.passes.keys() == done.passes.keys() == plan.expected_seconds.keys()
    of_exact = plan.passes["models/exact"]
    timed = replace(plan, expected_seconds={"components/001": 10.0, "models/exact": 90.0})
    said = "\n".join(forgotten_lines(timed))  # what it took from zero was said of the solve that resumes, too
    assert f"models/exact {of_exact} at most (from where it stands, usually a third to a half)" in said
    assert "about 40 s to 1.7 minutes to solve them" in said
    cold = "\n".join(forgotten_lines(replace(timed, mode="retrain")))
    assert "at most" not in cold
    assert "about 1.7 minutes to solve them" in cold
    assert all(seconds > 0 for seconds in plan.expected_seconds.values())
    assert done.expected_seconds == {}


def planned(store, sample, **options):
    """The dry run of a request for one sample of shard 001, where each pass over a row takes whole seconds."""
    cost = duration._RowCost(first=3.0, again=2.0, exact=100.0, nbytes=10, product=7.0, classes=10, written=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duration, "_row_cost", lambda settings, shards, head: cost)
        return taftcache.forget(store, [sample], dry_run=True, **options)


def test_a_dry_run_counts_rows_and_passes_and_what_memory_holds(exact):
    with open_store(exact) as store:
        sample, rows = store.shard("001").sample_ids[0], store.shard("001").rows - 1
        everyone = sum(shard.rows for shard in store.shards) - 1
        metas = {name: meta_of(ref.meta) for name, ref in store.objects().items() if is_model(name)}
        for memory, each in (("1GB", 2), ("0B", 3)):
            solver = {**store.manifest.recipe["solver"], "memory": memory}
            with store.transaction() as change:
                change.update(recipe=store.manifest.recipe | {"solver": solver})
            found = planned(store, sample).expected_seconds
            assert found.keys() == {"components/001", "models/head", "models/exact"}
            for name, seconds in found.items():
                n = rows if name == "components/001" else everyone
                passes = n * (3 + metas[name].passes * each + metas[name].stats.proof_passes * 100)
                closed = metas[name].stats.solver == "closed form"
                assert closed == (name == "models/head")
                said = settings_of(store)
                products = HeadSize(said.loss, n, said.base.config.width + 1, 10).products(0) if closed else 0
                assert seconds == pytest.approx(passes + 7 * products)


def test_the_passes_of_a_choice_are_over_all_rows(exact):
    """Though no more than 4,096 of them take part in it: two passes over 50,000 rows were taken for 8,192 rows."""
    with open_store(exact) as store:
        meta = meta_of(store.objects()["components/001"].meta)
    cost = duration._RowCost(first=3.0, again=2.0, exact=100.0, nbytes=10, product=7.0, classes=10, written=0)
    without, chosen = (
        cost.of_solve(msgspec.structs.replace(meta, ridge_choice=choice), 50_000, 1 << 30, lambda rows, tried: 0.0)
        for choice in (None, {"passes": 2})
    )
    assert chosen - without == 50_000 * 2 * 2


def test_a_dry_run_counts_the_gradients_that_an_exact_kernel_writes_out(exact):
    with open_store(exact) as store:
        meta = meta_of(store.objects()["components/001"].meta)
    meta = msgspec.structs.replace(meta, stats=msgspec.structs.replace(meta.stats, solver="pcg"))

    def seconds(rows: int, written: int) -> float:
        cost = duration._RowCost(first=3.0, again=2.0, exact=100.0, nbytes=10, product=7.0, classes=10, written=written)
        return cost.of_solve(meta, rows, 1 << 30, lambda rows, tried: 0.0)

    for rows, written, passes, parts in ((50, 300, 5, 1), (50, 1 << 20, 7.5, 2), (50, 1 << 24, 0, 0), (500, 300, 0, 0)):
        multiplied = (10 * rows) ** 2 * written * {0: 0, 1: 1, 2: 3 / 4}[parts]
        more = seconds(rows, written) - seconds(rows, 0)
        assert more == pytest.approx(passes * rows * 100 + multiplied * 7)


def test_a_dry_run_says_of_what_it_knows_no_duration(exact):
    with open_store(exact) as store:
        sample = store.shard("001").sample_ids[0]
        with store.transaction() as change:
            meta = store.meta("components/001") | {"stats": {}}
            change.put("components/001", store.read_object("components/001"), meta)
        report = planned(store, sample)
        assert report.expected_seconds.keys() == {"models/head", "models/exact"}
        assert report.notes == ["how long components/001 would take is not known"]
    flip(chunk_of(exact, "000", 0))
    report = taftcache.forget(exact, [sample], dry_run=True)
    assert report.passes.keys() == {"components/001", "models/head", "models/exact"}
    assert report.expected_seconds == {}
    assert any(note.startswith("how long it would take is not known: ") for note in report.notes)


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
        assert end.value.code == (10 if words[0] == "audit" else 0)  # the imported component saw it
        assert capsys.readouterr().out


def test_the_mean_of_copies_is_the_component(exact):
    now = deltas(exact)
    with FeatureStore(exact) as store:
        base = read_base(store, recorded_recipe(store).tangent)
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
