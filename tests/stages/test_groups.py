"""Samples that belong together stay together: held out, in a shard, and where λ is chosen (``data.group``)."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taftcache
from taftcache.backbone.spec import DataSpec
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.writer import ShardWriter
from taftcache.cli import main
from taftcache.errors import IdentityError, RecipeError, StoreError
from taftcache.model.card import _result, _scored
from taftcache.names import HELD_OUT
from taftcache.recipe import Recipe
from taftcache.report.accuracy import accuracy_interval, judged_rows
from taftcache.report.paired import RowGroups, row_verdict
from taftcache.solve.choosing import ALONE
from taftcache.stages.completeness import is_complete
from taftcache.stages.forget import receipts
from taftcache.stages.forget.request import PartedGroup
from taftcache.stages.look.evaluation import held_out_score
from taftcache.stages.look.probe import _aside, linear_probe
from taftcache.stages.progress import Silent
from taftcache.stages.train.held_out import held_out_hits, predicted_of
from taftcache.stages.train.record import settings_of
from taftcache.terminal.inspection import show_inspect
from taftcache.view import payload
from taftcache.view.asked.comparing import Comparisons
from taftcache.view.asked.composing import rows_right
from taftcache.view.asked.leaving import without_rows
from taftcache.view.atlas import Atlas
from taftcache.view.wording import answer_text, gain_text
from tests.stages.making import open_store, recipe, tree, write_images

PATTERN = "patient([0-9]+)"
PATIENTS, SHOTS, D = 60, 8, 60
IDS = [f"scans/patient{k // SHOTS:02}-{k % SHOTS}.png" for k in range(PATIENTS * SHOTS)]
GROUPED = {"data.group": PATTERN, "store.shards": 3, "device": "cpu"}
EACH = {key: value for key, value in GROUPED.items() if key != "data.group"}


def patient(sample: str) -> str:
    return sample.partition("patient")[2][:2]


def shots() -> tuple[np.ndarray, np.ndarray]:
    """Near-copies of each patient's scan; of three patients in ten, the class has nothing to do with it."""
    rng = np.random.default_rng(0)
    labels = np.arange(PATIENTS) % 4
    scans = rng.standard_normal((PATIENTS, D))
    scans[np.arange(PATIENTS), labels] += 3
    labels = np.where(np.arange(PATIENTS) % 10 < 3, rng.integers(0, 4, PATIENTS), labels)
    every = np.repeat(scans, SHOTS, 0) + 0.02 * rng.standard_normal((PATIENTS * SHOTS, D))
    return every.astype(np.float32), np.repeat(labels, SHOTS)


def made(place: Path, overrides: dict[str, Any], some: slice = slice(None)) -> taftcache.ImportReport:
    x, y = shots()
    return taftcache.import_vectors(x[some], y[some], place, ids=IDS[some], overrides=overrides)


def patients_of(place: Path) -> dict[str, set[str]]:
    with FeatureStore(place) as store:
        return {shard.name: {*map(patient, shard.sample_ids)} for shard in store.every_shard}


def refused(error: type[Exception], says: str, place: Path, call: Callable[[], object]) -> None:
    """The call is refused with these words, and changes nothing at the place."""
    before = tree(place)
    with pytest.raises(error, match=says):
        call()
    assert tree(place) == before


@pytest.fixture(scope="module")
def grouped(tmp_path_factory) -> Path:
    """Not to be written to."""
    place = tmp_path_factory.mktemp("groups") / "store"
    said = f"{len(IDS)} samples of {PATIENTS} groups (data.group), 8 of them held out; "
    assert made(place, GROUPED).notes == [
        f"{said}the largest of these has {SHOTS} of {8 * SHOTS} samples",
        "8 held-out groups (data.group) can say little of others: intervals of accuracies will be wide",
    ]
    return place


@pytest.mark.law("With data.group, no group is in two shards or half held out, but by --new-shard or a test, as noted")
def test_a_group_is_in_one_place(grouped, tmp_path):
    there = patients_of(grouped)
    assert sum(map(len, there.values())) == PATIENTS
    assert 4 <= len(there[HELD_OUT]) <= 20
    made(tmp_path / "each", EACH)
    assert sum(map(len, patients_of(tmp_path / "each").values())) > 2 * PATIENTS, "single rows are spread"


def test_rows_that_come_later_join_their_group(grouped, tmp_path):
    """The store has the bytes of one that was made of all rows at once."""
    x, y = shots()
    made(tmp_path / "s", GROUPED, slice(0, None, 2))
    report = taftcache.append_vectors(x[1::2], y[1::2], tmp_path / "s", ids=IDS[1::2])
    assert report.notes == []
    assert patients_of(tmp_path / "s") == patients_of(grouped)
    shards = [{k: v for k, v in tree(p).items() if k.startswith("shards/")} for p in (tmp_path / "s", grouped)]
    assert shards[0] == shards[1]
    (note,) = taftcache.append_vectors(x[:1], y[:1], tmp_path / "s", ids=["nobody"]).notes
    assert note == "data.group matches no part of 1 id, each a group of its own: nobody"


@pytest.mark.law("With data.group, no group is in two shards or half held out, but by --new-shard or a test, as noted")
def test_groups_that_a_shard_of_their_own_parts_are_counted(tmp_path):
    x, y = shots()
    made(tmp_path / "s", GROUPED | {"data.held_out": 0}, slice(0, None, 2))
    some = slice(1, 10 * SHOTS, 2)
    given = {"store": tmp_path / "s", "ids": [*IDS[some], "patient99"], "new_shard": True}
    for dry_run in (True, False):
        (note,) = taftcache.append_vectors([*x[some], x[0]], [*y[some], y[0]], dry_run=dry_run, **given).notes
        assert note.startswith("10 groups of the new samples have rows in other shards, too")
    there = patients_of(tmp_path / "s")
    assert sum(map(len, there.values())) == PATIENTS + 10 + 1


def test_groups_of_another_labelled_set_that_models_were_trained_on_are_named(grouped, tmp_path):
    """Near-copies of training rows were judged as new ones: only rows of the very bytes were found."""
    store, (x, y) = shutil.copytree(grouped, tmp_path / "s"), shots()
    taftcache.train(store, overrides=["objective.ridge=1e-3"])
    taftcache.compose(store)
    held = min(patients_of(store)[HELD_OUT])
    known = sorted({*map(patient, IDS)} - patients_of(store)[HELD_OUT])[0]
    ids = [f"later/patient{held}-{k}" for k in range(3)] + [f"later/patient{known}-{k}" for k in range(2)]
    said = (
        "1 of 2 groups here (data.group) have training rows, so that accuracy on their 2 rows says little of new groups"
    )
    for rows, expected in ((5, [f"{said}: {known}"]), (3, [])):
        np.savez(tmp_path / "new.npz", x=x[:rows] + 1, y=y[:rows], ids=ids[:rows])
        report = taftcache.evaluate_on(store, tmp_path / "new.npz", reference=store)
        again = [f"{store}: {note}" for note in expected]
        assert [note for note in report.notes if "have training rows" in note] == expected + again


def test_intervals_and_verdicts_count_groups(grouped, tmp_path, capsys):
    """In evaluate, on other rows, beside another model and the probe, after forgetting, and on the model's card."""
    place = tmp_path / "s"
    shutil.copytree(grouped, place)
    taftcache.train(place)
    taftcache.compose(place)
    with FeatureStore(place) as store:
        held = [patient(i) for i in store.held_out.sample_ids]
        report = taftcache.evaluate(store, reference="components/000", probe=True)
        right = held_out_hits(store).right
        other = predicted_of(store, "components/000", store.held_out) == store.held_out.labels
        score = held_out_score(store, report.default)
    groups = RowGroups.of(held)
    assert report.groups == len({*held}) == groups.count
    assert report.intervals[report.default] == accuracy_interval(right, groups) == score.interval
    assert report.intervals[report.default] != accuracy_interval(right)
    assert tuple(asdict(report.differences[report.default]).values()) == row_verdict(right, other, groups)
    assert report.against.groups == score.groups == groups.count
    assert f"Wilson's interval at 95% by {groups.count} groups)" in _scored(score)[0]
    assert _result(score, None)["metrics"][0]["args"]["groups"] == groups.count
    assert "groups" not in _result(replace(score, groups=None), None)["metrics"][0]["args"]
    assert _scored(replace(score, groups=1))[0].endswith("(no interval, for all are of one group).")
    said = f"by {groups.count} groups"
    (note,) = [line for line in report.notes if "(data.group)" in line]
    assert note.endswith("; the rows of a group are alike, so intervals and verdicts count groups, not rows")
    taftcache.show(report)
    assert capsys.readouterr().out.count(said) == 3
    x, y = shots()
    file, seen = tmp_path / "new.npz", slice(0, 20 * SHOTS, 3)
    np.savez(file, x=x[seen], y=y[seen], ids=IDS[seen], half=np.arange(len(y[seen])) // 30)
    found = taftcache.evaluate_on(place, file, by="half", reference="components/000")
    assert found.groups == found.differences[found.default].groups == 20
    assert sorted(one.groups for one in found.values) == [9, 11]
    assert any(line.startswith("the 54 rows are of 20 groups") for line in found.notes)
    taftcache.show(found)
    assert "by 20 groups" in capsys.readouterr().out
    gone = next(i for i in IDS if patient(i) not in held)
    forgotten = taftcache.forget(place, [gone])
    assert forgotten.held_out.groups == groups.count
    taftcache.show(forgotten)
    assert f"interval {said}" in capsys.readouterr().out
    one = next(iter(held))
    x, y, ids = (np.array(each)[[patient(i) == one for i in IDS]] for each in (x, y, IDS))
    np.savez(file, x=x, y=y, ids=ids)
    alone = taftcache.evaluate_on(place, file, reference="components/000")
    assert alone.groups == 1
    assert {(of.interval, of.verdict) for of in alone.differences.values()} == {((-1, 1), "within noise")}
    assert {*alone.intervals.values()} == {(0, 1)}
    taftcache.show(alone)
    assert "(no interval)" in capsys.readouterr().out


@pytest.mark.parametrize("loss", ["mse", "rsl", "cross_entropy"])
def test_what_is_measured_and_chosen_is_honest(grouped, tmp_path, loss):
    """Of single rows 100 % were right that were held out, by a λ of 1e-8: each has near-copies among the others."""
    found = {}
    for name, overrides in (("groups", GROUPED), ("each", EACH)):
        made(tmp_path / name, overrides | {"store.shards": 1})
        with open_store(tmp_path / name) as store:
            taftcache.train(store, overrides={"objective.ridge": "auto", "objective.loss": loss})
            choice = store.objects()["components/000"].meta["ridge_choice"]
            report = taftcache.evaluate(store)
        found[name] = choice, report.accuracy["components/000"]
        note = [line for line in report.notes if "(data.group)" in line]
        assert len(note) == (name == "groups")
    (apart, honest), (alike, all_right) = found["groups"], found["each"]
    assert all_right > 0.95
    assert honest < 0.6
    assert apart["ridge"] > 100 * alike["ridge"]
    of_head = loss != "cross_entropy"
    assert apart["method"] == ("leave-one-group-out" if of_head else "validation on whole groups")
    assert alike["method"] == ("leave-one-out" if of_head else "validation")


def test_no_copy_chooses_the_linear_probe_that_a_model_is_compared_with(tmp_path):
    share = {}
    for name, overrides in (("groups", GROUPED), ("each", EACH)):
        made(tmp_path / name, overrides)
        with FeatureStore(tmp_path / name) as store:
            share[name] = linear_probe(store, settings_of(store), store.held_out, kinds=["ridge"])[0].tried["ridge"]
    assert share["groups"] < 0.7 < 0.95 < share["each"]


@pytest.mark.parametrize("sizes", [[1] * 20 + [80] + [1] * 20, [9, 1, 1, 30, 2, 50, 7], [40, 3], [7]])
def test_about_a_fifth_of_the_rows_chooses_the_probe_in_whole_groups(sizes):
    """It was every fifth group, which may have most of the rows, or hardly any."""
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes))
    aside, rows = _aside(len(groups), groups), len(groups)
    assert not {*groups[aside]} & {*groups[~aside]}
    ends = np.cumsum(sizes)[: len(sizes) - 1]
    assert aside.sum() == (min(ends, key=lambda end: abs(end - rows // 5)) if len(ends) else rows)


def test_a_shard_of_one_group_has_no_other_to_choose_by(tmp_path):
    rng = np.random.default_rng(0)
    ids = [f"patient {k // 20}-{k}" for k in range(120)]
    made_of = rng.standard_normal((120, 6)).astype(np.float32), np.arange(120) % 3
    over = {"data.group": "patient ([0-9])", "data.held_out": 0, "store.shards": 3, "device": "cpu"}
    taftcache.import_vectors(*made_of, tmp_path / "s", ids=ids, overrides=over)
    with open_store(tmp_path / "s") as store:
        taftcache.train(store, overrides={"objective.ridge": "auto"})
        said = [store.objects()[f"components/00{k}"].meta["ridge_choice"] for k in range(3)]
        assert [len({i[:9] for i in shard.sample_ids}) for shard in store.shards] == [1, 3, 2]
    assert (said[0]["method"], said[0]["ridge"]) == ("default, for a group alone", ALONE)
    assert {said[k]["method"] for k in (1, 2)} == {"leave-one-group-out"}


def test_another_group_is_refused(grouped, tmp_path):
    other = {**GROUPED, "data.group": "(patient[0-9]+)"}
    refused(StoreError, "begun with another plan", grouped, lambda: made(grouped, other))
    assert made(grouped, {"device": "cpu"}).notes == [], "what is left open is the store's"
    refused(IdentityError, "data.group", grouped, lambda: taftcache.train(grouped, overrides=["data.group=patient"]))
    refused(
        RecipeError, "^a balanced plan", tmp_path, lambda: made(tmp_path / "s", {**GROUPED, "store.plan": "balanced"})
    )
    empty = {**GROUPED, "data.group": "(patient)?"}
    refused(RecipeError, "^data.group matches the empty text", tmp_path, lambda: made(tmp_path / "s", empty))
    whole = {**GROUPED, "data.group": ".*"}
    refused(RecipeError, "^data.group matches every id as a whole", tmp_path, lambda: made(tmp_path / "s", whole))
    nothing = {**GROUPED, "data.group": "visit[0-9]"}
    refused(
        RecipeError, "^data.group matches a part of none of 480 ids", tmp_path, lambda: made(tmp_path / "s", nothing)
    )


def shown_by_groups(place: Path, stranger: Path) -> None:
    """What the page draws, compares and solves counts groups, but for a store that may not open its images here."""
    shutil.copytree(place, stranger)
    with FeatureStore(place) as store, FeatureStore(stranger) as other:
        groups = RowGroups.of([i[:5] for i in store.held_out.sample_ids])
        report, atlas = taftcache.evaluate(store), Atlas(store)
        atlas.work(skip=("predictions", "head path", "influence", "neighbours"))
        assert atlas.held_out.groups.number.tolist() == groups.number.tolist()
        assert payload.held_out(atlas)["groups"] is not None
        assert not payload.held_out(atlas)["unsearched"]
        found = rows_right(atlas, Silent())
        hits = atlas.held_out.predictions() == store.held_out.labels
        assert found["of"][0] == judged_rows(hits, groups)[0]
        assert report.groups == groups.count
        gain = without_rows(atlas, [0, 1], Silent()).gain
        assert gain.groups == groups.count
        assert f" by {groups.count} groups " in gain_text(*gain)
        compared = Comparisons(atlas)
        said = compared._compare((compared._side("here:models/head"), compared._side("here:models/mean")), Silent())
        assert said["groups"]["held-out"]["groups"] == groups.count
        assert not said["unsearched"]
        alone = Atlas(other)
        alone.work(skip=("predictions", "head path", "influence", "neighbours"))
        assert payload.held_out(alone)["groups"] is None
        assert payload.held_out(alone)["unsearched"]


def test_images_of_a_group_stay_together(tmp_path, monkeypatch, capsys):
    """Images of a class whose numbers begin alike are taken for those of one person."""
    images = write_images(tmp_path / "images", per_class=12)
    data = {"source": "folder", "train": str(images), "held_out": 0.4, "group": "[0-9]/0[0-9]{2}"}
    asked = recipe(tmp_path / "s", data=data, store={"seed": 1})
    assert taftcache.extract(asked).notes[0].startswith("36 samples of 23 groups (data.group)")
    with FeatureStore(tmp_path / "s") as store:
        places = [{i[:5] for i in shard.sample_ids} for shard in store.every_shard]
    assert sum(map(len, places)) == len(set().union(*places))
    show_inspect(taftcache.inspect(tmp_path / "s"))
    assert "groups by [0-9]/0[0-9]{2}" in capsys.readouterr().out
    with FeatureStore(tmp_path / "s") as store:
        ids = [i for shard in store.every_shard for i in shard.sample_ids]
    group, members = Counter(i[:5] for i in ids).most_common(1)[0]
    asked_about = [next(i for i in ids if i[:5] == group), f"{group}x.png", "nobody"]
    answers = taftcache.receipts(tmp_path / "s", asked_about)
    assert [one.in_group for one in answers.samples] == [members - 1, members, 0]
    assert answer_text(answers.samples[1], answers).endswith(f"; of its group it has {members} other samples")
    shutil.copytree(tmp_path / "s", tmp_path / "stranger")
    assert {one.in_group for one in taftcache.receipts(tmp_path / "stranger", asked_about).samples} == {None}
    with monkeypatch.context() as unsearched:
        unsearched.setattr(DataSpec, "group_of", None)
        assert taftcache.audit(tmp_path / "stranger").findings == []
    taftcache.train(tmp_path / "s")
    taftcache.compose(tmp_path / "s")
    shown_by_groups(tmp_path / "s", tmp_path / "another stranger")
    other = recipe(tmp_path / "s", data={**data, "group": "00([0-9])"}, store={"seed": 1})
    says = "data.group: the store has .*, the recipe '00"
    refused(IdentityError, says, tmp_path / "s", lambda: taftcache.append(other))
    refused(IdentityError, says, tmp_path / "s", lambda: taftcache.extract(other))


@pytest.mark.law("A group that is forgotten in part is named, and forgotten as a whole where that is asked for")
def test_what_stays_of_a_group_is_named(grouped, tmp_path, capsys):
    """Five of a patient's six scans were forgotten without a word on the sixth."""
    store = shutil.copytree(grouped, tmp_path / "s")
    of_07 = [f"scans/patient07-{k}.png" for k in range(SHOTS)]
    how = "; to forget all of it: the same command with --with-group"
    for dry_run, stays in ((True, "would stay"), (False, "stays")):
        report = taftcache.forget(store, of_07[:-1], dry_run=dry_run)
        assert report.notes[0] == f"group 07: 1 of 8 samples {stays}: {of_07[-1]}{how}"
        assert report.groups == [PartedGroup(group="07", stays=of_07[-1:], of=8)]
    with FeatureStore(store) as opened:
        assert of_07[-1] not in str(opened.ledger()), "its id would remain in the ledger"
    again = taftcache.forget(store, of_07[:-1])
    assert (again.notes[0], again.forgotten) == (f"group 07: 1 of 1 sample stays: {of_07[-1]}{how}", [])
    with pytest.raises(SystemExit):
        main(["forget", str(store), "--match", "scans/patient0[78]-[01].png", "--sample", of_07[0], "--with-group"])
    assert "7 of them not named, but of the group of one that was: scans/patient0" in capsys.readouterr().out
    with FeatureStore(store) as opened:
        assert [i for i in IDS if patient(i) in ("07", "08") and opened.holds(i)] == []
    assert taftcache.forget(store, of_07).notes == []
    (note,) = taftcache.forget(store, ["scans/patient10-0.png"], dry_run=True).notes
    assert (note.count("patient10-"), " and 4 more; to forget" in note) == (3, True)
    (note,) = taftcache.forget(store, [f"scans/patient{k}-0.png" for k in range(10, 14)], dry_run=True).notes
    assert note.startswith(
        "4 groups (data.group) stay in part, with so many of their samples: 10 (7 of 8), 11 (7 of 8), "
    )
    (note,) = [n for n in taftcache.forget(store, matching=["*-0.png"], dry_run=True).notes if "group" in n]
    assert note.startswith("58 groups")
    assert "04 (7 of 8) and 53 more; to" in note
    made(tmp_path / "each", EACH, slice(80))
    refused(
        RecipeError, "belong together", tmp_path / "each",
        lambda: taftcache.forget(tmp_path / "each", of_07[:1], with_group=True),
    )  # fmt: skip


def test_the_groups_of_copies_and_the_copies_of_groups_leave_together(grouped, tmp_path):
    """The copy of a patient's scan was forgotten, and the rest of that copy's patient stayed without a word."""
    store, (x, y) = shutil.copytree(grouped, tmp_path / "s"), shots()
    of = {"patient80-0": 56, "patient80-1": 1, "patient81-0": 1}  # as which rows; 56 is patient07-0
    taftcache.append_vectors(x[[*of.values()]], y[[*of.values()]], store, ids=[*of])
    first, asked = "scans/patient07-0.png", {"dry_run": True}
    alone = taftcache.forget(store, [first], **asked)
    assert (alone.copies, [each.group for each in alone.groups]) == (["patient80-0"], ["07"])
    copied = taftcache.forget(store, [first], with_copies=True, **asked)
    assert [(each.group, each.stays) for each in copied.groups][1] == ("80", ["patient80-1"])
    whole = taftcache.forget(store, [first], with_group=True, **asked)
    assert (whole.copies, whole.groups, len(whole.forgotten)) == (["patient80-0"], [], SHOTS)
    both = taftcache.forget(store, [first], with_copies=True, with_group=True)
    assert both.copies == both.groups == []
    assert {patient(i) for i in both.forgotten} == {"00", "07", "80", "81"}
    assert {*both.copies_taken} == {"patient80-0", "patient81-0", IDS[1]}
    with FeatureStore(store) as opened:
        assert not [i for i in opened.every_id if patient(i) in ("00", "07", "80", "81")]
    again = taftcache.forget(store, [first], with_copies=True, with_group=True)
    assert (again.forgotten, again.already) == ([], [first])


LEFT_OUT = "1 sample left out, of forgotten groups (data.group): {} (1); only another store takes them"


@pytest.mark.law("Further samples of a group that was forgotten as a whole stay out, and are counted")
def test_a_forgotten_group_takes_no_further_vectors(grouped, tmp_path, monkeypatch):
    """Further photographs of a forgotten patient were taken in, and audited, without a word."""
    store, (x, y) = shutil.copytree(grouped, tmp_path / "s"), shots()

    def more(*ids: str, **options: Any) -> tuple[int, int, list[str]]:
        report = taftcache.append_vectors(x[: len(ids)], y[: len(ids)], store, ids=[*ids], **options)
        return sum(report.added.values()), report.forgotten, [note for note in report.notes if "data.group" in note]

    asked = taftcache.forget(store, [IDS[7 * SHOTS]], with_group=True)
    assert asked.notes[0].startswith("1 group forgotten as a whole: append leaves further samples")
    for dry_run in (True, False):
        assert more("patient07-90", "patient61-0", dry_run=dry_run) == (1, 1, [LEFT_OUT.format("07")])
    strange = taftcache.append_vectors(x[:1], ["new"], store, ids=["patient07-91"], new_classes="take")
    assert (strange.new_classes, strange.forgotten) == ({}, 1)
    taftcache.forget(store, IDS[8 * SHOTS : 9 * SHOTS])
    assert more("patient08-90") == (1, 0, []), "nobody asked for more than the samples that there were"
    taftcache.forget(store, ["patient08-90"])
    closing = taftcache.forget(store, ["patient08-90"], with_group=True)
    assert (closing.forgotten, closing.already, len(closing.notes)) == ([], ["patient08-90"], 1)
    assert more("patient08-91") == (0, 1, [LEFT_OUT.format("08")])
    before = tree(store)
    assert taftcache.forget(store, ["patient08-90"], with_group=True).notes == []
    assert tree(store) == before, "there is nothing more to forget"
    with FeatureStore(store) as opened:
        assert all(text not in str(opened.ledger()) for text in ("patient", "'07'", "x1f"))
    assert taftcache.audit(store).findings == []
    answers = taftcache.receipts(store, ["patient07-90", "patient08-91", "patient99-1"])
    assert [one.group_receipts for one in answers.samples] == [[1], [4], None]
    assert answer_text(answers.samples[0], answers).endswith("as a whole by receipt 1, so append leaves it out")
    monkeypatch.setattr(receipts, "MAX_IDS", 2)  # a receipt of more keeps a digest, by which all of its ids find it
    taftcache.forget(store, [IDS[9 * SHOTS]], with_group=True)
    answers = taftcache.receipts(store, IDS[9 * SHOTS : 10 * SHOTS])
    assert {(*one.receipts, *one.group_receipts) for one in answers.samples} == {(5,)}
    assert answer_text(answers.samples[0], answers).endswith("; its group was forgotten as a whole before")
    few = {"ids": [IDS[0], IDS[SHOTS], "patient07-92"], "overrides": GROUPED | {"store.shards": 1, "data.held_out": 0}}
    given = x[[0, SHOTS, 0]], y[[0, SHOTS, 0]]
    for place, options in ((tmp_path / "anew", {"forgotten_of": store}), (store, {})):
        if not options:
            shutil.rmtree(store)  # the file beside it stays
        assert LEFT_OUT.format("07") in taftcache.import_vectors(*given, place, **few, **options).notes
        assert patients_of(place) == {"000": {"00", "01"}}


@pytest.mark.law("Further samples of a group that was forgotten as a whole stay out, and are counted")
def test_an_audit_finds_samples_of_a_forgotten_group(grouped, tmp_path, monkeypatch):
    """Those of an old copy, of which the store had some never, or no more, when the group was forgotten."""
    old, store, (x, y) = shutil.copytree(grouped, tmp_path / "old"), shutil.copytree(grouped, tmp_path / "s"), shots()
    taftcache.append_vectors(x[:1], y[:1], old, ids=["patient07-90"])
    taftcache.forget(store, [IDS[7 * SHOTS]], with_group=True)
    remembered = (tmp_path / "s.forgotten").read_bytes()
    for replays in (SHOTS + 1, 1):  # all that the old copy has of the group; the one alone
        shutil.rmtree(store)
        shutil.copytree(old, store)
        (tmp_path / "s.forgotten").write_bytes(remembered)
        found = {finding.kind: finding for finding in taftcache.audit(store).findings}
        assert found["forgotten row"].problem == "1 sample of groups (data.group) that were forgotten as a whole"
        assert ("returned rows" in found) == (replays > 1)
        assert "--replay" in found["forgotten row"].do
        again = taftcache.audit(store, replay=True)
        assert (again.replayed, again.findings) == (replays, [])
        assert taftcache.append_vectors(x[:1], y[:1], store, ids=["patient07-91"]).forgotten == 1
        taftcache.forget(old, IDS[7 * SHOTS : 8 * SHOTS])
    (tmp_path / "elsewhere").mkdir()
    stranger = shutil.copytree(store, tmp_path / "elsewhere" / "s")
    monkeypatch.setattr(DataSpec, "group_of", None)  # its expression may take for ever
    assert taftcache.audit(stranger).findings == []
    assert taftcache.receipts(stranger, ["patient07-90"]).samples[0].group_receipts is None


def extracted_until(asked: Recipe, after: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that an extraction made before it was interrupted at the one that follows ``after``."""
    made, commit = list[str](), ShardWriter.commit

    def stop(self: ShardWriter, **options: Any) -> None:
        if len(made) == after:
            raise KeyboardInterrupt
        made.append(self.name)
        commit(self, **options)

    with monkeypatch.context() as interrupted, suppress(KeyboardInterrupt):
        interrupted.setattr(ShardWriter, "commit", stop)
        taftcache.extract(asked)
    return made


@pytest.mark.law("Further samples of a group that was forgotten as a whole stay out, and are counted")
@pytest.mark.parametrize("after", [1, 3], ids=["resumed", "whole"])
def test_a_forgotten_group_takes_no_further_images(tmp_path, monkeypatch, after):
    """Nor does a repair take them for rows that were lost."""
    images = write_images(tmp_path / "images", per_class=12)
    data = {"source": "folder", "train": str(images), "held_out": 0.4, "group": "[0-9]/0[0-9]{2}"}
    asked = recipe(tmp_path / "s", data=data, store={"seed": 1})
    name = extracted_until(asked, after, monkeypatch)[0]
    with FeatureStore(tmp_path / "s") as store:
        sample = next(i for i in store.shard(name).sample_ids if i[:5] != store.shard(name).sample_ids[0][:5])
    (gone := taftcache.forget(tmp_path / "s", [sample], with_group=True).forgotten)
    shutil.copy(images / sample, images / f"{sample[:5]}x.png")
    left = LEFT_OUT.format(sample[:5])
    assert left in taftcache.extract(asked).notes
    report = taftcache.append(asked)
    assert (report.images, report.forgotten, left in report.notes) == (0, len(gone) + 1, True)
    assert left in taftcache.extract(asked).notes
    note = next(note for note in report.notes if "still in the source" in note)
    assert f"{sample[:5]}x" not in note, "it was not forgotten itself"
    other = recipe(tmp_path / "other", data=data, store={"seed": 1})
    assert f"forgotten in {tmp_path / 's'}, and taken in here: {len(gone) + 1} samples; " in str(
        taftcache.extract(other).notes
    )
    with FeatureStore(tmp_path / "s") as store:
        lost = tmp_path / "s" / store.shard(name).at / "sample_id" / "c.0"
    lost.write_bytes(bytes(len(lost.read_bytes())))
    assert taftcache.verify(tmp_path / "s", repair=True).faults == []
    assert taftcache.audit(tmp_path / "s").findings == []


@pytest.mark.law("With data.group, no group is in two shards or half held out, but by --new-shard or a test, as noted")
def test_groups_on_both_sides_of_a_test_of_its_own_are_named(tmp_path):
    x, y = shots()
    test = x[::40], y[::40], [f"again/{i}" for i in IDS[::40]]
    over = {**GROUPED, "data.held_out": 0}
    report = taftcache.import_vectors(x, y, tmp_path / "s", ids=IDS, test=test, overrides=over)
    said = "12 groups of the test samples have training samples, too"
    assert report.notes[1].startswith(said)
    made(tmp_path / "later", over)
    for dry_run in (True, False):
        report = taftcache.append_vectors(None, None, tmp_path / "later", test=test, dry_run=dry_run)
        assert [note.startswith(said) for note in report.notes] == [True]


def test_a_shard_whose_only_group_was_forgotten_before_it_was_made_is_not_waited_for(tmp_path, monkeypatch):
    """The store stayed unfinished: append refused it, and extract changed nothing."""
    images = write_images(tmp_path / "images", per_class=12)
    data = {"source": "folder", "train": str(images), "held_out": 0.4, "group": "[0-9]/"}
    asked = recipe(tmp_path / "s", data=data, store={"seed": 2})
    extracted_until(asked, 1, monkeypatch)
    with FeatureStore(tmp_path / "s") as store:
        gone = next(i for ids in store.staged_ids().values() for i in ids)
    taftcache.forget(tmp_path / "s", [gone], with_group=True)
    taftcache.extract(asked)
    assert taftcache.append(asked).images == 0
    with FeatureStore(tmp_path / "s") as store:
        assert is_complete(store)
        assert gone[:2] not in {i[:2] for i in store.every_id}


def test_a_conversion_does_not_forget_what_its_place_remembers(tmp_path):
    """The place's memory was replaced by the source's, and what had been forgotten there was taken in again."""
    made(tmp_path / "one", {})
    made(tmp_path / "other", {})
    taftcache.forget(tmp_path / "one", IDS[:1])
    beside = tmp_path / "one.forgotten"
    before = beside.read_bytes()
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(StoreError, match="requests to forget are remembered there"):
        taftcache.convert(tmp_path / "other", tmp_path / "one", chunk_rows=4)
    assert (beside.read_bytes(), (tmp_path / "one").exists()) == (before, False)
    taftcache.forget(tmp_path / "other", IDS[:1])
    shutil.copy(tmp_path / "other.forgotten", beside)
    assert taftcache.convert(tmp_path / "other", tmp_path / "one", chunk_rows=4).rows
