"""Forgotten is never seen: a store after an erasure against one whose source never had the sample."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import taftcache
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, RecipeError, SolveError, StoreError, UnknownName, UnknownSample, UntrustedStore
from taftcache.names import counted
from taftcache.stages.forget import forgetting
from taftcache.stages.train import held_out
from taftcache.terminal.forgetting import forgotten_lines
from tests.cache.making import create, fill, names
from tests.stages.making import commits, open_store, recipe, tree

SETTINGS = {
    "mean": {},
    "exact": {"compose": {"mode": "exact"}, "objective": {"alpha": 3.0}},
    "head-only": {"tangent": {"train": "head"}},
    "class-token": {"tangent": {"class_token": "reset", "reset_block": True}},
}


def some_ids(path: Path) -> dict[str, list[str]]:
    """Requests by what they touch."""
    with FeatureStore(path) as store:
        first, second, held = ([*part.sample_ids] for part in (*store.shards, store.held_out))
    return {
        "one": [first[3]],
        "several": [first[0], first[-1], second[2]],
        "held-out": [held[1]],
        "both": [held[-1], second[0]],
    }


def forget(path: Path, *samples: str):
    with open_store(path) as store:
        return taftcache.forget(store, samples)


def never_seen(photographed: Path, images: Path, tmp_path: Path, which: str, sections: dict) -> tuple[Path, Path]:
    """Two stores of the same settings: one that forgot ``which``, one whose source never had it."""
    source = shutil.copytree(images, tmp_path / "images")
    sections = {"data": {"source": "folder", "train": str(source)}, **sections}
    gone = some_ids(photographed)[which]
    taftcache.run(recipe(tmp_path / "forgot", **sections))
    forget(tmp_path / "forgot", *gone)
    for name in gone:
        (source / name).unlink()
    taftcache.run(recipe(tmp_path / "never", **sections))
    return tmp_path / "forgot", tmp_path / "never"


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
@pytest.mark.parametrize(
    ("which", "settings"),
    [("several", "exact"), ("both", "mean"), ("several", "class-token")]
    + [pytest.param(which, "mean", marks=pytest.mark.full) for which in ("one", "several", "held-out")]
    + [pytest.param("several", "head-only", marks=pytest.mark.full)],
)
def test_forgotten_is_never_seen(photographed, images, tmp_path, which, settings):
    forgot, never = never_seen(photographed, images, tmp_path, which, SETTINGS[settings])
    assert commits(forgot) == commits(never)
    assert taftcache.run(recipe_of(forgot, tmp_path)).idle


def recipe_of(path: Path, tmp_path: Path):
    from taftcache.recipe import parse_recipe

    with FeatureStore(path) as store:
        values = dict(store.manifest.recipe)
    values["store"] = {**values["store"], "path": str(path)}
    return parse_recipe(values)


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
def test_a_store_without_a_recipe_forgets(tmp_path):
    ids = names(12)
    for name, kept in (("forgot", ids), ("never", ids[1:])):
        with create(tmp_path / name) as store:
            fill(store, "000", kept[:-6])
            fill(store, "001", ids[6:])
    forget(tmp_path / "forgot", ids[0])
    assert commits(tmp_path / "forgot") == commits(tmp_path / "never")
    assert taftcache.forget(tmp_path / "forgot", classes=["bee"]).classes == ["bee"]
    assert taftcache.forget(tmp_path / "forgot", shards=["001"]).dropped_shards == ["001"]
    assert taftcache.audit(tmp_path / "forgot").findings == []


def test_what_knows_the_forgotten_is_said_to_lie_outside_of_a_volume(tmp_path, monkeypatch):
    """A container that has its volume mounted as the store keeps the file beside it in its own layer."""
    for name, state in (("s", "plain"), ("m", "mount point"), ("r", "unwritable")):
        with create(tmp_path / name) as store:
            fill(store, "000", names(12))
        with monkeypatch.context() as patch:
            if state == "mount point":
                patch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "m"))
            if state == "unwritable":
                (tmp_path / "r.forgotten.partial").mkdir()
            notes = [n for n in forget(tmp_path / name, names(12)[0]).notes if f"{name}.forgotten" in n]
        assert [state in n.replace("lacks some of", "unwritable") for n in notes] == [True] * (state != "plain")


def test_one_by_one_is_all_at_once(photographed, tmp_path):
    once, twice = (shutil.copytree(photographed, tmp_path / name) for name in ("once", "twice"))
    gone = some_ids(photographed)["several"]
    forget(once, *gone)
    for sample in gone:
        forget(twice, sample)
    assert commits(once) == commits(twice)


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
def test_nothing_of_the_sample_is_left(photographed, tmp_path):
    path = shutil.copytree(photographed, tmp_path / "store")
    (gone,) = some_ids(path)["one"]
    with FeatureStore(path) as store:
        shard, row = store.locate(gone)
        pixels = shard.tokens(slice(row, row + 1))[0, 1:].tobytes()  # the class token's row is every image's
    assert any(pixels in data for data in tree(path).values())
    report = forget(path, gone)
    for name, data in tree(path).items():
        assert gone.encode() not in data, name
        assert pixels not in data, name
    assert report.forgotten == [gone]
    with FeatureStore(path) as store:
        assert store.is_forgotten(gone)
        assert not store.holds(gone)
        assert store.verify() == store.strays() == []


def test_ledger_has_the_receipt(photographed, tmp_path):
    path = shutil.copytree(photographed, tmp_path / "store")
    gone = some_ids(path)["several"]
    report = forget(path, *gone)
    with FeatureStore(path) as store:
        (receipt,) = store.ledger()
        assert store.root_digest == report.root_digest
    assert receipt["event"] == "forget"
    assert receipt["samples"] == 3
    assert report.root_before not in str(receipt)
    assert receipt["renewed"] == report.renewed == ["components/000", "components/001", "models/head", "models/mean"]
    assert receipt["certificates"].keys() == report.certificates.keys()
    for certificate in report.certificates.values():
        assert certificate.converged
        assert 0 < certificate.distance_bound < certificate.moved
    assert not any(sample in str(receipt) for sample in gone)


def test_only_what_was_made_from_the_rows_is_renewed(store):
    with FeatureStore(store) as opened:
        before = {name: ref.digest for name, ref in opened.objects().items()}
        sample = opened.shard("001").sample_ids[0]
    report = forget(store, sample)
    with FeatureStore(store) as opened:
        after = {name: ref.digest for name, ref in opened.objects().items()}
    assert [name for name in before if before[name] == after[name]] == ["base/tail", "components/000"]
    assert (report.shards, report.renewed) == (["001"], ["components/001", "models/head", "models/mean"])


def test_held_out_rows_renew_the_mean_that_was_proved_on_them(store):
    with FeatureStore(store) as opened:
        sample = opened.held_out.sample_ids[0]
    planned = taftcache.forget(store, [sample], dry_run=True)
    report = forget(store, sample)
    assert (report.shards, report.renewed) == (["held-out"], ["models/mean"])
    assert planned.renewed == report.renewed


def test_a_mean_that_stays_as_it_was_is_not_renewed(tmp_path, monkeypatch):
    """It is made again with any held-out row, but checked on the first 32 alone. A dry run makes it only then, and
    answers even if it cannot."""
    x, y, path = np.random.default_rng(0).normal(size=(60, 6)), np.arange(60) % 2, tmp_path / "store"
    taftcache.import_vectors(x, y, path, overrides=["store.shards=2", "data.held_out=0.6", "compose.mode=mean"])
    taftcache.train(path)
    taftcache.compose(path)
    with FeatureStore(path) as opened:
        last, before = opened.held_out.sample_ids[-1], opened.objects()["models/mean"].digest
    assert taftcache.forget(path, [last], dry_run=True).renewed == []
    with FeatureStore(path, mode="a") as opened, opened.transaction() as change:
        change.drop("models/head")  # so that the mean alone is made again whatever leaves
    with monkeypatch.context() as patched:
        patched.setattr(forgetting, "remake", refused := Mock(side_effect=UntrustedStore("the hub is not allowed")))
        assert taftcache.forget(path, [last], dry_run=True).renewed == ["models/mean"]
        assert taftcache.forget(path, shards=["000"], dry_run=True).renewed == ["models/mean"]
        assert taftcache.forget(path, shards=["000"], mode="subtract", dry_run=True).renewed == ["models/mean"]
    assert refused.call_count == 1
    assert forget(path, last).renewed == []
    with FeatureStore(path) as opened:
        assert opened.ledger()[-1]["renewed"] == []
        assert opened.objects()["models/mean"].digest == before


def some_id(path: Path, shard: str) -> str:
    with FeatureStore(path) as opened:
        return {s.name: s for s in [*opened.shards, opened.held_out]}[shard].sample_ids[0]


def test_the_accuracy_before_and_after_is_what_evaluate_measures(store):
    with FeatureStore(store) as opened:
        z = taftcache.logits(opened, opened.held_out, device="cpu")
    before = taftcache.evaluate(store)
    report = forget(store, some_id(store, "001"))
    found, after = report.held_out, taftcache.evaluate(store)
    with FeatureStore(store) as opened:
        moved = taftcache.logits(opened, opened.held_out, device="cpu")
    changed = int((z.argmax(1) != moved.argmax(1)).sum())
    assert (found.labels_changed, found.largest_change) == (changed, pytest.approx(np.abs(moved - z).max(), rel=1e-4))
    assert forgotten_lines(report)[-1 - len(report.notes)] == (
        f"of these rows {counted(changed, 'label')} changed, and the largest change of a logit is "
        f"{found.largest_change:.2g}"
    )
    assert found.models == (before.default, after.default) == ("models/mean", "models/mean")
    assert found.rows == before.rows
    assert found.accuracy == (before.accuracy[before.default], after.accuracy[after.default])
    assert found.gain == pytest.approx(found.accuracy[1] - found.accuracy[0])
    assert found.interval[0] <= found.gain <= found.interval[1]


def test_of_a_held_out_row_that_leaves_nothing_counts_before(store, monkeypatch):
    gone = some_id(store, "held-out")

    def only_first(opened, name, rows, consent=None, kept=None):
        """The row that leaves is the only one that was right."""
        wrong = (rows.labels + 1) % len(opened.classes)
        return np.where(np.asarray(rows.sample_ids) == gone, rows.labels, wrong)

    monkeypatch.setattr(held_out, "predicted_of", only_first)
    found = forget(store, gone).held_out
    assert (found.accuracy, found.verdict) == ((0.0, 0.0), "within noise")


def test_another_best_model_after_it_is_named(store):
    taftcache.compose(store, recipe(store, compose={"mode": "exact"}))
    report = taftcache.forget(store, shards=["001"], mode="subtract")
    assert report.held_out.models == ("models/exact", "models/mean")
    assert report.held_out.accuracy[1] == taftcache.evaluate(store).accuracy["models/mean"]


def test_no_accuracy_is_no_reason_to_keep_a_row(store, monkeypatch):
    """That it is not known is said, whether it is the first or the second that cannot be had."""
    hits = held_out.held_out_hits
    for measured in (0, 1):
        gone, left = some_id(store, "001"), [True] * measured

        def damaged(opened, left=left):
            if left.pop() if left else False:
                return hits(opened)
            raise StoreError("a chunk is damaged")

        monkeypatch.setattr(held_out, "held_out_hits", damaged)
        report = forget(store, gone)
        assert report.forgotten == [gone]
        assert report.held_out is None
        assert "what became of the held-out accuracy is not known: a chunk is damaged" in report.notes
        with FeatureStore(store) as opened:
            assert gone not in opened.shard("001").sample_ids


def test_forgetting_twice_changes_nothing(store):
    with FeatureStore(store) as opened:
        first, second = opened.shard("000").sample_ids[:2]
    forget(store, first)
    before = tree(store)
    again = forget(store, first, first)
    assert (again.already, again.forgotten, again.renewed) == ([first], [], [])
    assert again.root_before == again.root_digest
    assert tree(store) == before
    both = forget(store, first, second)
    assert (both.already, both.forgotten) == ([first], [second])


def test_a_forgotten_sample_does_not_come_back(photographed, images, tmp_path):
    path = shutil.copytree(photographed, tmp_path / "store")
    forget(path, gone := some_ids(path)["one"][0])
    before = tree(path)
    report = taftcache.run(recipe(path, data={"source": "folder", "train": str(images)}))
    assert report.idle
    assert report.extract.notes == [f"1 image still in the source, forgotten here: {gone}; deleting it is yours to do"]
    assert tree(path) == before


def test_extracting_a_shard_again_leaves_the_forgotten_out(photographed, images, tmp_path):
    path = shutil.copytree(photographed, tmp_path / "store")
    forget(path, *some_ids(path)["several"])
    whole = commits(path)
    with open_store(path) as store, store.transaction() as change:
        change.drop_shard("001")
    taftcache.run(recipe(path, data={"source": "folder", "train": str(images)}))
    assert commits(path) == whole


@pytest.mark.parametrize("extra", [False, True])
def test_unknown_id_names_near_ones_and_changes_nothing(store, extra):
    with FeatureStore(store) as opened:
        known = opened.shard("000").sample_ids[0]
    before = tree(store)
    with pytest.raises(UnknownSample) as caught:
        forget(store, *([known] if extra else []), known[:-1] + "x")
    assert "digits/" in caught.value.do
    assert tree(store) == before


def test_no_sample_named(store):
    with open_store(store) as opened, pytest.raises(RecipeError, match="nothing to forget"):
        taftcache.forget(opened)


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
@pytest.mark.parametrize("shard", ["001", "held-out"])
def test_an_emptied_shard_goes_as_a_whole(store, shard):
    with FeatureStore(store) as opened:
        everyone = list(opened.shard(shard).sample_ids)
    once, by_name = store, shutil.copytree(store, store.parent / "by-name")
    report = forget(once, *everyone)
    assert report.dropped_shards == [shard]
    with open_store(by_name) as opened:
        assert taftcache.forget(opened, shards=[shard]).forgotten == everyone
        assert not opened.has_shard(shard)
        assert f"components/{shard}" not in opened.objects()
        again = taftcache.forget(opened, shards=[shard])
        assert (again.forgotten, again.already) == ([], [f"shard {shard}"])
        assert opened.verify() == opened.strays() == []
    assert commits(once) == commits(by_name)
    assert not any(i.encode() in data for i in everyone for data in tree(once).values())


def test_that_no_held_out_row_is_left_is_said(store):
    """Accuracies end with them, so nobody is offered their shard who mistypes another."""
    with open_store(store) as opened:
        held = list(opened.held_out.sample_ids)
        with pytest.raises(UnknownName, match=r"no shard '007'; nothing is changed\n  try: one of 000, 001$"):
            taftcache.forget(opened, shards=["007"])
        for wish, dry_run, said in (
            ({"samples": held[1:]}, True, []),
            ({"samples": held}, True, ["would be"]),
            ({"shards": ["held-out"]}, True, ["would be"]),
            ({"shards": ["held-out"]}, False, ["is"]),
        ):
            notes = [n for n in taftcache.forget(opened, dry_run=dry_run, **wish).notes if "no accuracies" in n]
            assert [note.partition(" left, so that")[0] for note in notes] == [f"no held-out row {be}" for be in said]
    with pytest.raises(StoreError, match=f"(?s)no held-out rows.*try: taftcache evaluate {store} --on DATA"):
        taftcache.evaluate(store)


def test_the_last_training_row_stays(store):
    with FeatureStore(store) as opened:
        everyone = opened.sample_ids()
    before = tree(store)
    with pytest.raises(DataError, match="without a training row"):
        forget(store, *everyone)
    assert tree(store) == before


@pytest.mark.law("A request to forget that fails leaves the store as it was")
@pytest.mark.parametrize("error", [SolveError("no"), KeyboardInterrupt(), OSError(28, "disk full")], ids=type)
@pytest.mark.parametrize("at", [pytest.param("components/000", marks=pytest.mark.full), "models/head"])
def test_failure_in_the_middle_leaves_the_store_as_it_was(store, monkeypatch, error, at):
    from taftcache.stages.forget import remaking

    def failing(*args, label: str, **options):
        if label.startswith(at):
            raise error
        return solve(*args, label=label, **options)

    solve = remaking.solve_component
    with FeatureStore(store) as opened:
        sample = opened.shard("000").sample_ids[4]
    before = tree(store)
    with monkeypatch.context() as patch:
        patch.setattr(remaking, "solve_component", failing)
        with pytest.raises(type(error)):
            forget(store, sample)
    assert tree(store) == before
    assert forget(store, sample).forgotten == [sample]


def test_forgetting_before_training(finished, tmp_path):
    path = tmp_path / "store"
    taftcache.extract(recipe(path))
    with FeatureStore(path) as opened:
        sample = opened.shard("000").sample_ids[0]
    report = forget(path, sample)
    assert (report.forgotten, report.renewed) == ([sample], [])
    trained = shutil.copytree(finished, tmp_path / "trained")
    forget(trained, sample)
    taftcache.run(recipe(path))
    assert commits(path) == commits(trained)


def test_run_forgets_what_the_recipe_names(finished, tmp_path):
    with FeatureStore(finished) as opened:
        sample = opened.shard("000").sample_ids[0]
    path = tmp_path / "store"
    wishes = recipe(path, forget={"samples": [sample]})
    first = taftcache.run(wishes)
    assert first.forget.forgotten == [sample]
    assert not any(sample.encode() in data for data in tree(path).values())
    again = taftcache.run(wishes)
    assert again.idle
    assert again.root_digest == first.root_digest


def test_a_store_made_anew_where_one_forgot(store, tmp_path, monkeypatch):
    """Whoever deletes a store and runs again does not get back what was forgotten, shard and class included."""
    with open_store(store) as opened:
        sample, shard, name = opened.shard("000").sample_ids[4], opened.shards[-1].name, opened.classes[3]
        taftcache.forget(opened, [sample], shards=[shard], classes=[name])
        content, shards = opened.manifest.content_digest, [ref.name for ref in opened.manifest.shards]
        rows = sum(ref.rows for ref in opened.manifest.shards)
        everyone = sum(1 for _ in open_source(recipe(store).data)[0].items)
    shutil.rmtree(store)

    def stopped(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FeatureStore, "transaction", stopped)  # what is to be left out is not known to the store yet
        with pytest.raises(KeyboardInterrupt):
            taftcache.extract(recipe(store))
    report = taftcache.run(recipe(store))
    assert report.extract.notes == [f"{everyone - rows} samples left out, forgotten before"]
    with open_store(store) as opened:
        assert [ref.name for ref in opened.manifest.shards] == shards
        assert opened.manifest.content_digest == content
        again = taftcache.forget(opened, [sample], shards=[shard], classes=[name])
        assert (again.already, again.forgotten) == ([sample, f"shard {shard}", f"class {name}"], [])
    assert taftcache.audit(store).findings == []
