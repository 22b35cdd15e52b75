"""Laws of training with a prior: what β = 0 means, what a batch sees, what an interruption leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from base64 import b64decode
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import msgspec
import numpy as np
import pytest
import timm
import torch
from PIL import ImageOps
from safetensors.torch import save_file

import taftcache
from taftcache.backbone.model import weights_digest
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Item
from taftcache.backbone.sources.digits import DigitsSource
from taftcache.backbone.sources.opening import Subset
from taftcache.cache.store import FeatureStore
from taftcache.errors import (
    ArgumentError,
    BackboneError,
    DataError,
    FormatError,
    IdentityError,
    RecipeError,
    SolveError,
    StoreError,
    StoreLocked,
    StoreNotFound,
    StoreWriteError,
)
from taftcache.names import CLASS, GROUP
from taftcache.recipe import Recipe, load_recipe
from taftcache.stages.progress import Silent
from taftcache.stages.train import teaching
from taftcache.stages.train.teaching import open_students, teach
from taftcache.stages.writing import alone
from taftcache.teaching.recipe import TeachingRecipe, checked_teaching, load_teaching, parse_teaching
from taftcache.teaching.spec import PriorName, StudentTrainingSpec, TeacherSpec
from taftcache.teaching.students import measurement
from taftcache.teaching.students.checkpoint import optimiser_tensors, read_tensors, restore_optimiser, write_tensors
from taftcache.teaching.students.images import Images, augmented
from taftcache.teaching.students.students import StudentSettings, per_class
from taftcache.teaching.students.trainer import CHECKPOINT, StudentOutcome, StudentTraining, _Run, measured
from tests.teaching.making import DIGITS, VIT, extract_features, teacher_recipe, teaching_recipe
from tests.test_house.pages import ROOT
from tests.test_surroundings import AROUND


def student_bytes(recipe, settings: StudentSettings | None = None) -> bytes:
    with open_students(recipe, Silent()) as students:
        settings = settings or students.settings(recipe.teach.prior, recipe.teach.beta, 0)
        students.outcome(settings)
        return students.student_file(settings).read_bytes()


class Interrupting(Silent):
    """Presses Ctrl-C when the first student has done so many epochs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left == 0:
            raise KeyboardInterrupt

    def task(self, name, total):
        return nullcontext(Silent() if name == "decode" else self)


@pytest.fixture(scope="module")
def plain(teachers, tmp_path_factory) -> bytes:
    """The student of standard transfer learning."""
    recipe = teaching_recipe(tmp_path_factory.mktemp("plain"), teachers, teach={"prior": "none"})
    return student_bytes(recipe)


@pytest.mark.law("β = 0 is standard transfer learning, byte for byte; an interrupted student ends in the same bytes")
@pytest.mark.parametrize(
    "prior",
    [
        pytest.param(name, marks=[] if name in ("kd", "rkd", "aft-nnls", "aft-dense") else [pytest.mark.full])
        for name in get_args(PriorName)
        if name != "none"
    ],
)
def test_without_weight_a_prior_leaves_no_trace(teachers, tmp_path, plain, prior):
    """β = 0 gives standard transfer learning's bytes; β > 0 does not."""
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": prior, "noise": 3})
    with open_students(recipe, Silent()) as students:
        settings = StudentSettings(prior, 0.0, 0, noise=3)
        students.outcome(settings)
        assert _tensors(students.student_file(settings)) == _tensors_of(plain, tmp_path)
    assert student_bytes(recipe) != plain


def _tensors(file: Path) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in read_tensors(file)[0].items()}


def _tensors_of(data: bytes, tmp_path: Path) -> dict[str, bytes]:
    file = tmp_path / "plain.safetensors"
    file.write_bytes(data)
    return _tensors(file)


def test_an_outcome_says_which_images_were_right(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"})
    with open_students(recipe, Silent()) as students:
        outcome = students.outcome(students.settings("none", 0.0, 0))
        tested = students.joined.held_out
        bits = np.unpackbits(np.frombuffer(b64decode(outcome.right), np.uint8), count=len(tested)).astype(bool)
        held, student = read_tensors(students.student_file(students.settings("none", 0.0, 0)))[0], students.student(0)
        student.model.load_state_dict(held)
        right, losses = measured(student, students._images, tested, students.joined.labels)
        np.testing.assert_array_equal(bits, right)
        one = [measured(student, students._images, tested[k : k + 1], students.joined.labels) for k in range(9)]
        assert [first.item() for first, _ in one] == right[:9].tolist()
        np.testing.assert_allclose([loss.item() for _, loss in one], losses[:9], rtol=1e-5)
        assert outcome.tested_loss == losses.mean()
        assert (losses[~right] > np.log(2)).all(), "another class had more than half"
    assert outcome.accuracy == bits.mean()


def test_a_student_of_fewer_blocks_has_a_key_of_its_own(teachers, tmp_path):
    for blocks in (None, 1):
        recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"}, student={"blocks": blocks})
        with open_students(recipe, Silent()) as students:
            assert students._key(students.settings("none", 0.0, 0))["student"]["blocks"] == blocks


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_report_trains_no_student_for_a_beta_of_zero(teachers, tmp_path, zero):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "kd", "beta": zero}, train={"epochs": 1})
    report = teach(recipe)
    assert (report.trained, report.kept) == (1, 0)
    assert report.student.parent.name == "none-b0-s0"


@pytest.mark.parametrize(("first", "second"), [(1234561.0, 1234562.0), (0.30000001, 0.30000002)])
def test_students_of_two_betas_have_two_folders(teachers, tmp_path, first, second):
    teach_by = {"prior": "kd", "beta": "choose", "grid": [first, second], "hold_out": 0.3}
    recipe = teaching_recipe(tmp_path, teachers, teach=teach_by, train={"epochs": 1, "per_class": 4})
    with open_students(recipe, Silent()) as students:
        assert list(map(float, students.choose("kd").accuracy)) == [0.0, first, second]
    assert len([*tmp_path.glob("students/kd-*/model.safetensors")]) == 2


def test_the_names_of_students_are_those_of_before():
    betas = (0.0, 1.0, 125.0, 0.3, 1e-7, 2.5e10, 123456.0)
    names = [StudentSettings("kd", beta, 0).name for beta in betas]
    assert names == [f"kd-b{beta:g}-s0" for beta in betas]


def test_students_are_trained_anew_on_images_that_changed_under_their_names(teachers, tmp_path, monkeypatch):
    """They were found trained, and further seeds learned from other images than the first."""
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"})
    before = student_bytes(recipe)
    with open_students(recipe, Silent()) as students:
        kept = students.outcome(settings := students.settings("none", 0.0, 0))
        assert (students.trained, students.kept) == (0, 1)
    read = DigitsSource.read
    monkeypatch.setattr(DigitsSource, "read", lambda self, index: ImageOps.invert(read(self, index)))
    with open_students(recipe, Silent()) as students:
        assert students.outcome(settings) != kept
        assert (students.trained, students.kept) == (1, 0)
        assert students.student_file(settings).read_bytes() != before


@pytest.mark.parametrize("memory", ["1GiB", "0B"])
def test_images_that_are_not_kept_have_the_same_digest(teachers, tmp_path, memory):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"}, train={"memory": memory})
    with open_students(recipe, Silent()) as students:
        whole = Images(students._places, Preprocess(students.student(0).backbone), 1 << 30)
        assert students._images.decode(lambda done: None) == whole.decode(lambda done: None)
        assert (students._images._held is None) == (memory == "0B")


def test_one_process_at_a_time_trains_in_a_folder(teachers, tmp_path, monkeypatch):
    """Both ended well, and one told the accuracy of a student that the other had replaced."""
    recipe = teaching_recipe(
        tmp_path / "out", teachers, teach={"prior": "none"}, report={"latency": False, "probes": False, "priors": []}
    )
    with alone(tmp_path / "out"), pytest.raises(StoreLocked, match=r"writes to it|has it open") as refused:
        teach(recipe)
    assert "or name another folder" in str(refused.value)
    assert not (tmp_path / "out").exists(), "nothing was written"
    teach(recipe)
    assert not (tmp_path / "out" / "lock").exists()


def test_what_a_teacher_has_forgotten_is_counted(teachers, tmp_path):
    """The source still has the image; the note names none, for the report keeps it."""
    stores = {name: shutil.copytree(place, tmp_path / name) for name, place in teachers.items()}
    gone = FeatureStore(stores["wide"]).shards[0].sample_ids[0]
    for store in stores.values():
        taftcache.forget(store, [gone])
    with open_students(teaching_recipe(tmp_path / "out", stores), Silent()) as students:
        assert "1 image left out, forgotten in a teacher's store" in students.notes
        assert gone not in students.joined.ids


def test_an_interrupt_does_not_wait_for_a_decoder_that_stands_still(monkeypatch):
    monkeypatch.setattr("taftcache.backbone.pool.PATIENCE", 0.2)
    here, go_on, before = os.getpid(), threading.Event(), set(threading.enumerate())

    class Still:
        def read(self, index: int) -> None:
            if index == 3:
                time.sleep(0.3)  # Python does not see an interrupt that comes just before it begins to wait
                os.kill(here, signal.SIGINT)
                go_on.wait(60)

    transform = SimpleNamespace(image_shape=(3, 8, 8), pixels=lambda image: torch.zeros(3, 8, 8, dtype=torch.uint8))
    images, begin = Images([(Still(), k) for k in range(8)], transform, 1 << 20), time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            images.decode(lambda done: None)
        assert time.monotonic() - begin < 30
    finally:
        go_on.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)


@pytest.mark.law("β = 0 is standard transfer learning, byte for byte; an interrupted student ends in the same bytes")
@pytest.mark.parametrize("prior", ["aft", "aft-nnls", "kd", "b-tuning"])
def test_an_interrupted_training_ends_in_the_same_bytes(teachers, tmp_path, prior):
    whole = teaching_recipe(tmp_path / "whole", teachers, teach={"prior": prior})
    broken = teaching_recipe(tmp_path / "broken", teachers, teach={"prior": prior})
    settings = StudentSettings(prior, 1.0, 0)
    with open_students(broken, Interrupting(2)) as students, pytest.raises(KeyboardInterrupt):
        students.outcome(settings)
    (checkpoint,) = tmp_path.rglob(CHECKPOINT)
    assert read_tensors(checkpoint)[1]["epoch"] == 2
    assert student_bytes(broken, settings) == student_bytes(whole, settings)
    assert not checkpoint.exists()
    outcomes = [
        json.loads((tmp_path / way / "students" / settings.name / "outcome.json").read_text(encoding="utf-8"))
        for way in ("whole", "broken")
    ]
    for outcome in outcomes:
        outcome["outcome"].pop("seconds")
    assert outcomes[0] == outcomes[1]


def test_a_checkpoint_of_other_settings_is_not_gone_on_from(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers)
    with open_students(recipe, Interrupting(2)) as students, pytest.raises(KeyboardInterrupt):
        students.outcome(StudentSettings("aft", 1.0, 0))
    other = teaching_recipe(tmp_path, teachers, train={"rate": 1e-3})
    fresh = teaching_recipe(tmp_path / "fresh", teachers, train={"rate": 1e-3})
    assert student_bytes(other, StudentSettings("aft", 1.0, 0)) == student_bytes(fresh, StudentSettings("aft", 1.0, 0))


@pytest.mark.parametrize("damage", [b"", b"not safetensors", b"\x02\0\0\0\0\0\0\0{}"])
def test_a_damaged_checkpoint_is_named(teachers, tmp_path, damage):
    recipe = teaching_recipe(tmp_path, teachers)
    with open_students(recipe, Interrupting(1)) as students, pytest.raises(KeyboardInterrupt):
        students.outcome(StudentSettings("aft", 1.0, 0))
    (checkpoint,) = tmp_path.rglob(CHECKPOINT)
    checkpoint.write_bytes(damage)
    with pytest.raises(FormatError, match=r"(?s)is no checkpoint, or damaged.*delete it"):
        student_bytes(recipe, StudentSettings("aft", 1.0, 0))


def test_optimiser_state_returns_through_a_file(tmp_path):
    weights = [torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True) for _ in range(2)]
    optimiser = torch.optim.AdamW(weights, lr=0.1)
    for _ in range(3):
        sum(w.square().sum() for w in weights).backward()
        optimiser.step()
    write_tensors(tmp_path / "a", optimiser_tensors(optimiser), {"epoch": 3})
    fresh = torch.optim.AdamW(weights, lr=0.1)
    restore_optimiser(fresh, read_tensors(tmp_path / "a")[0])
    for before, after in zip(optimiser.state.values(), fresh.state.values(), strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.law("Every image trains once in every epoch, whatever the batch")
@pytest.mark.parametrize("batch", [2, 7, 32, 64, 1000])
def test_every_image_is_seen_once_in_every_epoch(teachers, tmp_path, batch):
    recipe = teaching_recipe(tmp_path, teachers, train={"batch": batch, "per_class": 4, "unlabelled": "use"})
    with open_students(recipe, Silent()) as students:
        settings = students.settings("kd", 1.0, 0)
        work = students.training_rows(settings)
        for prior in (None, torch.nn.Identity()):
            training = StudentTraining(
                student=students.student(0), prior=prior, beta=1.0, rows=work, images=None, features=None,
                spec=recipe.train, seed=0,
            )  # fmt: skip
            run = _Run(training)
            expected = np.sort(work.labelled if prior is None else np.concatenate([work.labelled, work.unlabelled]))
            orders = [np.concatenate(run.order(epoch)) for epoch in range(3)]
            for order in orders:
                np.testing.assert_array_equal(np.sort(order), expected)
            assert (orders[0] != orders[1]).any(), "batches are shuffled anew in every epoch"
            sizes = [len(part) for part in run.order(0)]
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= batch
            assert min(sizes) >= 2 or batch == 2


def test_labels_of_unlabelled_images_are_not_looked_at(teachers, tmp_path):
    """Another label on an unlabelled image changes no byte; another label on a labelled one does."""
    recipe = teaching_recipe(tmp_path / "a", teachers, train={"per_class": 3, "unlabelled": "use"})
    dropped = teaching_recipe(tmp_path / "b", teachers, train={"per_class": 3})
    written = []
    for way in ("as it is", "unlabelled", "labelled"):
        with open_students(recipe, Silent()) as students:
            settings = students.settings("aft-nnls", 1.0, 0)
            work = students.training_rows(settings)
            assert len(work.labelled) <= 30 < len(work.labelled) + len(work.unlabelled)
            labels = work.labels.copy()
            if way != "as it is":
                rows = work.unlabelled if way == "unlabelled" else work.labelled
                labels[rows] = (labels[rows] + 1) % 10
            changed = replace(work, labels=labels)
            students.training_rows = lambda settings, changed=changed: changed
            students.outcome(settings)
            written.append(_tensors(students.student_file(settings)))
            shutil.rmtree(recipe.folder)
    assert written[0] == written[1] != written[2]
    with open_students(dropped, Silent()) as students:
        settings = students.settings("aft-nnls", 1.0, 0)
        students.outcome(settings)
        assert _tensors(students.student_file(settings)) != written[0]


def test_per_class_takes_some_of_each_and_more_takes_them_too():
    labels = np.array([0] * 9 + [1] * 2 + [2] * 6)
    ids = [f"s{k}" for k in range(17)]
    few, more = (per_class(np.arange(17), ids, labels, n) for n in (2, 4))
    assert np.bincount(labels[few]).tolist() == [2, 2, 2]
    assert np.bincount(labels[more]).tolist() == [4, 2, 4]
    assert set(few) <= set(more)


def test_what_is_trained_is_kept_until_rows_or_settings_change(teachers, tmp_path):
    stores = {name: shutil.copytree(path, tmp_path / name) for name, path in teachers.items()}
    recipe = teaching_recipe(tmp_path / "out", stores, teach={"prior": "aft"})
    first, again = teach(recipe), teach(recipe)
    assert (first.trained, again.trained, again.kept) == (2, 0, 2)
    assert first.accuracy == again.accuracy
    with FeatureStore(stores["wide"]) as store:
        gone = store.sample_ids()[0]
    _erase(stores["wide"], gone)
    with pytest.raises(StoreError, match="has forgotten"):
        teach(recipe)
    _erase(stores["other"], gone)
    assert teach(recipe).trained == 2


def _erase(path: Path, sample: str) -> None:
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.erase([sample])
        change.record({"event": "test"})


def test_an_outcome_is_read_by_the_fields_that_are_known(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"}, train={"epochs": 1})
    file = teach(recipe).student.with_name("outcome.json")
    said = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**said, "outcome": {**said["outcome"], "notes": {}}}))  # as once kept
    assert teach(recipe).kept == 1
    del said["outcome"]["accuracy"]
    file.write_text(json.dumps(said))
    with pytest.raises(FormatError, match="or damaged"):
        teach(recipe)


@pytest.mark.parametrize("name", ["report.md", "energy-by-teacher.svg", "per-class.svg"])
def test_a_report_of_others_is_not_replaced(teachers, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(StoreWriteError, match="would be replaced, was not written by this command"):
        teach(teaching_recipe(tmp_path, teachers))
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_images_that_no_store_takes_are_left_out(teachers, tmp_path, monkeypatch):
    """Of a class that only test images have, or of a forgotten class or group; ``append``, which was advised, takes
    none of them."""
    places = {name: shutil.copytree(path, tmp_path / name) for name, path in teachers.items()}
    for place in places.values():
        with FeatureStore(place, mode="a") as store, store.transaction() as change:
            change.add_tombstones([CLASS + "gone", GROUP + "closed"])
            change.record({"event": "test"})
    train, classes = Subset(DigitsSource(), DIGITS), [*DigitsSource().classes, "new", "gone"]
    test = SimpleNamespace(classes=classes, items=[Item("test/new", 10), Item("test/gone", 11), Item("closed/1", 3)])
    recipe = teaching_recipe(tmp_path / "made", places, data={"group": "^(closed)/"})
    monkeypatch.setattr(teaching, "open_source", lambda data, knows: (train, test))
    with open_students(recipe, Silent()) as students:
        assert len(students.joined.ids) == DIGITS
        assert "gone (1), new (1); append takes none of them" in students.notes[1]
        assert students.notes[0] == "1 image left out, forgotten in a teacher's store"
    train.classes.append("new")  # one that training images may have is still to be appended
    with (
        pytest.raises(StoreError, match=r"has no row of test/new\n(.*\n)*.*taftcache append"),
        open_students(recipe, Silent()),
    ):
        pass


def test_a_group_that_one_teacher_has_forgotten_and_another_holds_is_said(teachers, tmp_path):
    """``append`` was advised, which leaves the image out."""
    small = extract_features(tmp_path / "small", limit=DIGITS - 1)
    with FeatureStore(small, mode="a") as store, FeatureStore(teachers["wide"]) as wide:
        (last,) = {*wide.every_id} - {*store.every_id}
        with store.transaction() as change:
            change.add_tombstones([GROUP + last])
            change.record({"event": "test"})
    asked = teaching_recipe(tmp_path / "out", {"small": small, "wide": teachers["wide"]}, data={"group": f"({last})"})
    says = f"small has forgotten the group of {last}, but another still holds it"
    with pytest.raises(StoreError, match=says), open_students(asked, Silent()):
        pass


def test_a_student_whose_file_is_gone_is_trained_again(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"}, train={"epochs": 1})
    student = teach(recipe).student
    before = student.read_bytes()
    student.unlink()
    assert teach(recipe).trained == 1
    assert student.read_bytes() == before


def test_a_student_is_trained_again_when_other_weights_lie_at_its_place(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path / "out", teachers, teach={"prior": "none"}, train={"epochs": 1})
    student = teach(recipe).student
    weights = tmp_path / "begin.safetensors"
    begun = msgspec.structs.replace(recipe.student, weights=str(weights))
    further = msgspec.structs.replace(recipe, student=begun, path=str(tmp_path / "further"))
    shutil.copy(student, weights)
    assert [teach(further).trained, teach(further).trained] == [1, 0]
    shutil.copy(teach(further).student, weights)
    assert teach(further).trained == 1


@pytest.mark.parametrize("of", ["bundled", "file", "blocks", "random"])
def test_timm_builds_a_student_from_its_folder(teachers, tmp_path, of):
    """Whatever it was begun from, and with its preprocessing and its classes' names."""
    torch.manual_seed(0)
    weights = tmp_path / "own.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=3, **VIT).state_dict(), weights)
    own = {"model": "vit_tiny_patch16_224", "weights": str(weights), "model_args": VIT}
    bundled = {"model": None, "weights": "bundled", "model_args": {}}
    student = {"bundled": bundled, "file": own, "blocks": {**own, "blocks": 1}, "random": {}}[of]
    size = [3, 32, 32] if of == "bundled" else [3, 16, 16]
    sections = {"student": student, "preprocess": {"input_size": size, "mean": [0.2, 0.3, 0.4]}}
    recipe = teaching_recipe(tmp_path / "out", teachers, teach={"prior": "none"}, train={"epochs": 1}, **sections)
    with open_students(recipe, Silent()) as students:
        settings = students.settings("none", 0.0, 0)
        outcome, file = students.outcome(settings), students.student_file(settings)
        joined, images = students.joined, students._images
    model = timm.create_model(f"local-dir:{file.parent}", pretrained=True).eval()
    assert model.pretrained_cfg["label_names"] == joined.classes
    data = timm.data.resolve_model_data_config(model)
    assert (data["input_size"], data["mean"]) == (tuple(size), [0.2, 0.3, 0.4])
    pixels = images.pixels(joined.held_out) / 255
    mean, std = (torch.tensor(data[key])[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        right = model((pixels - mean) / std).argmax(1).numpy() == joined.labels[joined.held_out]
    assert right.mean() == outcome.accuracy
    said = json.loads((file.parent / "outcome.json").read_text(encoding="utf-8"))
    assert (said["classes"], said["preprocess"]["input_size"]) == (joined.classes, size)


def test_a_student_is_a_model_for_whatever_takes_one(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path / "out", teachers, teach={"prior": "none"}, train={"epochs": 1})
    folder = teach(recipe).student.parent
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    model = taftcache.open_model(folder, device="cpu")
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(images), network(images))
    picture = np.zeros((16, 16, 3), np.uint8)
    report = taftcache.predict(folder, [picture], top=10, device="cpu")
    assert report.predictions == model.predict([picture], top=10)
    assert (report.model, sorted(report.predictions[0].labels)) == ("vit_tiny_patch16_224", [str(k) for k in range(10)])
    assert taftcache.export_model(folder, tmp_path / "program", program=True).files == [
        "README.md", "about.json", "program.pt2",
    ]  # fmt: skip
    program = torch.export.load(tmp_path / "program" / "program.pt2").module()
    torch.testing.assert_close(program(images), model(images))
    with pytest.raises(RecipeError, match="only be exported in other forms"):
        taftcache.export_model(folder, tmp_path / "again")
    made = teacher_recipe(tmp_path / "store", limit=30)
    spec = msgspec.structs.replace(made.backbone, model=None, weights=str(folder), model_args={})
    taftcache.extract(msgspec.structs.replace(made, backbone=spec))
    with FeatureStore(tmp_path / "store") as store:
        assert store.identity["backbone"]["weights_digest"] == weights_digest(network.state_dict())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["pretrained_cfg"]["label_names"] = ["one"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"(?s)do not fit together.*1 names of classes"):
        taftcache.open_model(folder)


def test_an_audit_finds_the_students_of_a_forgotten_row(teachers, tmp_path):
    """Without a prior, too: no row of a store was read, but the image was seen."""
    store = shutil.copytree(teachers["wide"], tmp_path / "wide")
    out = tmp_path / "out"
    recipe = teaching_recipe(out, {"wide": store}, teach={"prior": "kd"}, train={"epochs": 1})
    teach(recipe)
    assert taftcache.audit(store, also=[out]).findings == []
    with FeatureStore(store) as opened:
        gone = opened.shards[0].sample_ids[0]
    taftcache.forget(store, [gone])
    found = taftcache.audit(store, also=[out]).findings
    assert [Path(finding.where).name for finding in found] == ["kd-b1-s0", "none-b0-s0"]
    assert {finding.do for finding in found} == {"delete what teach or export-model wrote there, and make it again"}
    teach(recipe)
    report = taftcache.audit(store, also=[out])
    assert report.findings == [] == [note for note in report.notes if str(out) in note]


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("prior", ["none", "kd"])
@pytest.mark.parametrize("file", ["model.safetensors", "outcome.json", CHECKPOINT])
def test_each_file_of_a_student_is_known_by_itself(teachers, tmp_path, prior, file):
    store = shutil.copytree(teachers["wide"], tmp_path / "wide")
    recipe = teaching_recipe(tmp_path / "out", {"wide": store}, teach={"prior": prior}, train={"epochs": 2})
    progress = Interrupting(2) if file == CHECKPOINT else Silent()
    with (
        open_students(recipe, progress) as students,
        nullcontext() if file != CHECKPOINT else pytest.raises(KeyboardInterrupt),
    ):
        students.outcome(students.settings(prior, 1.0, 0))
    (there,) = (tmp_path / "out").rglob(file)
    elsewhere = tmp_path / "elsewhere" / "student"
    elsewhere.mkdir(parents=True)
    shutil.copy(there, elsewhere)
    with FeatureStore(store) as opened:
        gone = opened.shards[0].sample_ids[0]
    taftcache.forget(store, [gone])
    (found,) = taftcache.audit(store, also=[elsewhere.parent]).findings
    assert found.where == str(elsewhere)
    assert found.problem == "a student, made from shards as they were before ledger/000001"


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_students_program_says_what_it_is_of(teachers, tmp_path):
    store = shutil.copytree(teachers["wide"], tmp_path / "wide")
    recipe = teaching_recipe(tmp_path / "out", {"wide": store}, teach={"prior": "none"}, train={"epochs": 1})
    folder, place = teach(recipe).student.parent, tmp_path / "elsewhere"
    taftcache.export_model(folder, place / "program", program=True)
    about = json.loads((place / "program" / "about.json").read_text(encoding="utf-8"))
    assert (about["classes"], about["preprocess"]["input_size"]) == ([str(k) for k in range(10)], [3, 16, 16])
    card = (place / "program" / "README.md").read_text(encoding="utf-8")
    assert all(text in card for text in ("# vit_tiny_patch16_224", "`9`", "16 x 16", "`program.pt2` is", "Normalize("))
    with FeatureStore(store) as opened:
        taftcache.forget(store, [opened.shards[0].sample_ids[0]])
    (found,) = taftcache.audit(store, also=[place]).findings
    assert (Path(found.where).name, found.problem) == (
        "program",
        "a student, made from shards as they were before ledger/000001",
    )  # fmt: skip
    assert "make it again" in found.do


def test_a_student_stays_until_the_next_is_trained(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"}, train={"epochs": 1})
    settings = StudentSettings("none", 0.0, 0)
    student_bytes(recipe, settings)
    (folder,) = (tmp_path / "students").iterdir()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert before.keys() == {"config.json", "model.safetensors", "outcome.json"}
    failing = msgspec.structs.replace(recipe, train=msgspec.structs.replace(recipe.train, rate=1e30, epochs=4))
    with pytest.raises(SolveError, match="finite"):
        student_bytes(failing, settings)
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert before == {name: after[name] for name in before}


@pytest.mark.law("What a program has asked of torch changes no student")
@pytest.mark.parametrize("prior", ["none", "aft", "kd", "kd-logits"])
@pytest.mark.parametrize("around", AROUND)
def test_what_is_asked_of_torch_changes_no_student(teachers, tmp_path, around, prior):
    one, other = (
        teaching_recipe(tmp_path / name, teachers, teach={"prior": prior, "noise": 3}, train={"epochs": 1})
        for name in ("one", "other")
    )
    with AROUND[around]():
        found = student_bytes(one)
    assert found == student_bytes(other)


def test_energy_counts_a_teachers_weight(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "aft-fixed"}, train={"epochs": 1})
    light = [recipe.teachers[0], msgspec.structs.replace(recipe.teachers[1], weight=0.1)]
    rows = teach(msgspec.structs.replace(recipe, teachers=light)).tables["energy"]
    wide, other = (row["share of energy"] / row["features"] for row in rows)
    assert other / wide == pytest.approx(0.01)


def test_a_teacher_of_vectors_has_no_latency(teachers, tmp_path):
    with FeatureStore(teachers["wide"]) as store:
        shard, held = store.shards[0], store.held_out
        parts = [
            (s.tokens(np.arange(s.rows))[:, 0], [store.classes[k] for k in s.labels.tolist()]) for s in (shard, held)
        ]
        ids = [shard.sample_ids, held.sample_ids]
    taftcache.import_vectors(*parts[0], tmp_path / "own", ids=ids[0], test=(*parts[1], ids[1]))
    own = {"wide": teachers["wide"], "own": tmp_path / "own"}
    recipe = teaching_recipe(tmp_path / "out", own, teach={"prior": "none"}, report={"latency": True})
    report = teach(recipe)
    assert len(report.tables["cost"]) == 2
    assert [note for note in report.notes if "own: parameters and latency unknown" in note and "vectors" in note]


def test_a_teachers_other_rows_do_not_touch_the_plain_student(teachers, tmp_path):
    found = []
    for stores in (teachers, {"wide": teachers["wide"]}):
        with open_students(teaching_recipe(tmp_path, stores), Silent()) as students:
            for prior in ("none", "kd"):
                students.outcome(students.settings(prior, 1.0, 0))
            found.append((students.trained, students.kept))
    assert found == [(2, 0), (1, 1)]


def test_students_of_other_settings_are_not_overwritten(teachers, tmp_path, monkeypatch):
    """Every setting that differs is named; what adds students to those that are there is none of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(teachers["wide"])
    stores = {"wide": teachers["wide"]}
    short = {"epochs": 1, "per_class": 4}
    recipe = teaching_recipe(tmp_path / "out", stores, teach={"prior": "kd", "beta": 1.0}, train=short)
    with pytest.raises(SolveError, match="finite"):
        teach(teaching_recipe(tmp_path / "out", stores, train={**short, "epochs": 4, "rate": 1e30}))
    first = teach(recipe)  # of what failed, no student is there
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    for changes, names in (
        ({"train": {"epochs": 2, "rate": 2e-3}}, ["train.epochs: the folder has 1, here it is 2", "train.rate"]),
        ({"teach": {"prior": "aft"}}, ["teach.prior: the folder has 'kd', here it is 'aft'"]),
        ({"data": {"limit": 90}}, ["data.limit: the folder has 120, here it is 90"]),
        ({"student": {"blocks": 1}}, ["student.blocks: the folder has None, here it is 1"]),
        ({"teachers": [{"store": str(teachers["other"])}]}, ["teachers.other", "teachers.wide"]),
    ):
        values = msgspec.to_builtins(recipe)
        other = {**values, **{k: v if k == "teachers" else {**values[k], **v} for k, v in changes.items()}}
        with pytest.raises(IdentityError, match=r"(?s)trained with other settings.*path=FOLDER") as refused:
            teach(parse_teaching(other))
        told = refused.value.got.split("; ")
        assert [line.startswith(name) for line, name in zip(told, names, strict=True)] == [True] * len(names)
    assert before == {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    more = teaching_recipe(
        Path("out"), {"wide": Path("link")}, teach={"prior": "kd", "beta": 2.0}, train={**short, "seeds": [0, 1]},
        report={"priors": ["aft"]},
    )  # fmt: skip
    assert (first.trained, teach(more).trained) == (2, 5)


def test_a_teacher_of_other_images_says_what_differs(teachers, tmp_path):
    made = tmp_path / "teacher.toml"
    made.write_text(
        '[data]\nsource = "folder"\ntrain = "' + str(tmp_path) + '"\nlimit = 9\n[backbone]\nweights = "bundled"\n'
    )
    spelt = {"source": "folder", "train": f"{tmp_path}/../{tmp_path.name}", "limit": 8}
    recipe = teaching_recipe(tmp_path / "out", {"any": tmp_path}, data=spelt)
    recipe = msgspec.structs.replace(recipe, teachers=[TeacherSpec(recipe=str(made))])
    with pytest.raises(StoreError, match="sees other images") as refused:
        teach(recipe)
    assert refused.value.got == "data.limit: the teacher has 9, here it is 8"


def test_plots_of_an_earlier_report_are_removed(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "aft"}, train={"epochs": 1}, report={"noise": [0, 4]})
    teach(recipe)
    assert {file.name for file in tmp_path.glob("*.svg")} == {
        "energy-by-teacher.svg", "energy-by-feature.svg", "noise.svg",
    }  # fmt: skip
    (tmp_path / "mine.svg").touch()
    plain = msgspec.structs.replace(recipe, teach=msgspec.structs.replace(recipe.teach, beta=0.0))
    teach(msgspec.structs.replace(plain, report=msgspec.structs.replace(recipe.report, noise=[])))
    assert {file.name for file in tmp_path.glob("*.svg")} == {"mine.svg"}


def test_beta_is_chosen_on_held_back_rows_with_zero_among_them(teachers, tmp_path, monkeypatch):
    recipe = teaching_recipe(
        tmp_path, teachers, teach={"prior": "kd", "beta": "choose", "grid": [3.0, 1.0], "hold_out": 0.3}
    )
    with open_students(recipe, Silent()) as students:
        choice = students.choose("kd")
        assert list(choice.accuracy) == ["0", "1", "3"]
        held = students.training_rows(students.settings("kd", 1.0, 0, held_back=True))
        final = students.training_rows(students.settings("kd", 1.0, 0))
        assert set(held.tested) < set(final.labelled)
        assert 0.15 < len(held.tested) / len(final.labelled) < 0.45  # of what the stores' own hash has left
        assert not set(held.tested) & set(held.labelled)
        np.testing.assert_array_equal(final.tested, students.joined.held_out)
        values, losses = {0.0: 0.5, 1.0: 0.7, 3.0: 0.7}, dict.fromkeys((0.0, 1.0, 3.0), 0.1)
        measured = StudentOutcome(accuracy=0, loss=0, penalty=0, epochs=1, steps=1, seconds=0)
        monkeypatch.setattr(
            students,
            "outcome",
            lambda asked: replace(measured, accuracy=values[asked.beta], tested_loss=losses[asked.beta]),
        )
        assert students.choose("kd").beta == 1.0  # the smallest of the best
        losses[3.0] = 0.09
        assert students.choose("kd").beta == 3.0  # which is as often right, and surer
        values[0.0] = 0.8
        assert students.choose("kd").beta == 0.0


@pytest.mark.parametrize("unlabelled", ["drop", "use"])
def test_beta_is_chosen_by_no_label_that_the_student_is_not_given(teachers, tmp_path, unlabelled):
    recipe = teaching_recipe(
        tmp_path, teachers, teach={"beta": "choose", "hold_out": 0.3}, train={"per_class": 4, "unlabelled": unlabelled}
    )
    with open_students(recipe, Silent()) as students:
        held = students.training_rows(students.settings("kd", 1.0, 0, held_back=True))
        final = students.training_rows(students.settings("kd", 1.0, 0))
        assert len(held.tested)
        assert set(held.tested) | set(held.labelled) == set(final.labelled)
        assert not set(held.tested) & set(held.used)
        np.testing.assert_array_equal(held.unlabelled, final.unlabelled)


def test_a_loss_that_is_not_finite_ends_the_training(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, train={"rate": 1e30, "epochs": 4})
    with pytest.raises(SolveError, match="the loss of the student none-b0-s0 is not finite") as ended:
        student_bytes(recipe, StudentSettings("none", 0.0, 0))
    assert ended.value.do == "lower train.rate"
    for beta, key in ((1.0, "teach.beta"), ("choose", "teach.grid")):
        recipe = teaching_recipe(tmp_path, teachers, teach={"beta": beta}, train={"rate": 1e30, "epochs": 4})
        with pytest.raises(SolveError, match="student kd-b1-s0 is not finite") as ended:
            student_bytes(recipe, StudentSettings("kd", 1.0, 0))
        assert ended.value.do == f"lower train.rate or {key}"


def test_a_beta_that_diverges_is_the_worst(teachers, tmp_path):
    teach_by = {"prior": "kd", "beta": "choose", "grid": [0.5, 1e38]}
    recipe = teaching_recipe(tmp_path / "out", teachers, teach=teach_by, train={"epochs": 2})
    report = teach(recipe)
    (note,) = [note for note in report.notes if "finite" in note]
    assert note.startswith("the loss of the student kd-b1e+38-s0-choice is not finite in epoch ")
    tried = report.tables["students"][1]["tried on rows held back"]
    assert (list(tried), tried["1e+38"]) == (["0", "0.5", "1e+38"], 0.0)
    assert note in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    failing = teaching_recipe(tmp_path / "all", teachers, teach=teach_by, train={"epochs": 4, "rate": 1e30})
    with (
        open_students(failing, Silent()) as students,
        pytest.raises(SolveError, match="student none-b0-s0-choice is not finite"),
    ):
        students.choose("kd")


def test_latencies_are_measured_in_turns(monkeypatch):
    """While the machine is slow, it is so for all models: the one that costs less is the faster one."""
    now, calls = [0.0], [0]

    class Model(torch.nn.Module):
        def __init__(self, cost: float) -> None:
            super().__init__()
            self.cost, self.weight = cost, torch.nn.Parameter(torch.zeros(1))

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            now[0] += self.cost * (3 if calls[0] > measurement.ROUNDS + 2 * measurement.WARMING else 1)
            return image

    monkeypatch.setattr(measurement.time, "perf_counter", lambda: now[0])
    slow, fast = measurement.latencies([(Model(3.0), (3, 4, 4)), (Model(2.0), (3, 4, 4))])
    assert slow / fast == pytest.approx(1.5)


@pytest.mark.parametrize("augment", ["flip", "shift"])
def test_augmentation_moves_whole_images(augment):
    pixels = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(1, 3, 8, 8).repeat(16, 1, 1, 1)
    moved = augmented(pixels, augment, torch.Generator().manual_seed(0))
    assert moved.shape == pixels.shape
    ways = {image.numpy().tobytes() for image in moved}
    assert len(ways) == 2 if augment == "flip" else len(ways) > 4
    again = augmented(pixels, augment, torch.Generator().manual_seed(0))
    assert torch.equal(moved, again)
    for image in moved:  # the centre of a moved image is a patch of the image or of its mirror
        centre = image[:, 2:6, 2:6]
        found = any(
            torch.equal(centre, source[:, y : y + 4, x : x + 4])
            for source in (pixels[0], pixels[0].flip(2))
            for y in range(5)
            for x in range(5)
        )
        assert found


def test_the_report_says_all_it_was_asked_for(teachers, tmp_path):
    recipe = teaching_recipe(
        tmp_path,
        teachers,
        teach={"prior": "aft-nnls"},
        train={"epochs": 1, "seeds": [0, 1]},
        report={
            "priors": ["kd"], "probes": True, "latency": True, "noise": [0, 8], "per_class": [2, 5], "repeat": [1, 2],
        },
    )  # fmt: skip
    report = teach(recipe)
    assert report.tables["students"][0]["student trained with"].startswith("STL")
    assert len(report.tables["students"]) == 3
    assert {row["teacher"] for row in report.tables["energy"]} == {"wide", "other"}
    assert sum(row["share of energy"] for row in report.tables["energy"]) == pytest.approx(1)
    assert [row["teacher"] for row in report.tables["linear probes of the teachers"]] == [
        "wide",
        "other",
        "all together",
    ]
    assert all(row["parameters"] > 0 < row["milliseconds an image"] for row in report.tables["cost"])
    assert len(report.tables["cost"]) == 3
    noisy = [row for row in report.tables["noise features"] if row["prior"] == "aft-nnls"]
    assert noisy[0]["noise energy"] == 0 < noisy[1]["noise energy"] + 1e-9
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(title.lower() in text.lower() for title in report.tables)
    assert len(report.plots) == 5
    assert all("<svg" in plot.read_text(encoding="utf-8") and plot.name in text for plot in report.plots)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["tables"] == report.tables
    assert teach(recipe).trained == 0


@pytest.mark.parametrize("held_out", [0.2, 0.5])
def test_a_share_that_the_stores_do_not_hold_out_has_a_note(teachers, tmp_path, held_out):
    recipe = teaching_recipe(tmp_path, teachers, teach={"prior": "none"}, train={"epochs": 1})
    recipe = msgspec.structs.replace(recipe, data=msgspec.structs.replace(recipe.data, held_out=held_out))
    with FeatureStore(teachers["wide"]) as store:
        rows = store.held_out.rows
    note = f"data.held_out = 0.5 has no effect: the teachers' stores hold out {rows} of 120 images"
    notes = [said.partition(",")[0] for said in teach(recipe).notes]
    assert notes == ([note] if held_out == 0.5 else [])
    assert (note in (tmp_path / "report.md").read_text(encoding="utf-8")) == (held_out == 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no teacher"),
        ('[[teachers]]\nname = "a"', "either a store of features or the recipe"),
        ('[[teachers]]\nstore = "x/a"\n[[teachers]]\nstore = "y/a"', "share a name"),
        ('[[teachers]]\nstore = "x"', r"no \[data\]"),
        ('[[teachers]]\nstore = "x"\n[data]\nsource = "digits"', r"no \[student\]"),
        ('[[teachers]]\nstore = "x"\n[teach]\npriors = "aft"', "did you mean"),
        ('[[teachers]]\nstore = "x"\n[teach]\nprior = "ebm"', "must be"),
        ('[[teachers]]\nstore = "x"\n[teach]\nbeta = -1', "at least 0"),
        ('[[teachers]]\nstore = "x"\n[train]\nseeds = [1, 1]', "one twice"),
        ('[[teachers]]\nstore = "x"\n[train]\nseeds = [1, -1]', r"train.seeds\[1\] .* at least 0"),
        ('[[teachers]]\nstore = "x"\n[train]\nrate = 1e39', "train.rate .* at most"),
        ('[[teachers]]\nstore = "x"\n[train]\nprior_rate = 1e39', "train.prior_rate .* at most"),
        ('[[teachers]]\nstore = "x"\n[teach]\nnoise = 9223372036854775807', "teach.noise .* at most"),
        ('[[teachers]]\nstore = "x"\n[report]\nnoise = [1000000000]', r"report.noise\[0\] .* at most"),
        ('path = " "\n[[teachers]]\nstore = "x"', "path is empty.* stores/teach/NAME"),
        ('[[teachers]]\nstore = "x"\n[student]\nweights = "random"', "the name of a model"),
    ],
)
def test_wrong_recipes_are_refused(tmp_path, text, words):
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=f"(?s){words}"):
        load_teaching(file)


def test_beta_cannot_be_chosen_on_nothing(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path, teachers, teach={"beta": "choose", "hold_out": 1e-9})
    with open_students(recipe, Silent()) as students, pytest.raises(DataError, match="β cannot be chosen"):
        students.choose("kd")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"student": {"model": "nosuch"}}, "no model 'nosuch'"),
        ({"student": {"blocks": 2}}, "fewer blocks"),
        ({"student": {"model_args": {**VIT, "global_pool": ""}}}, "does not pool.*global_pool"),
        ({"teach": {"beta": "choose", "hold_out": 1e-9}}, "teach.hold_out"),
        ({"teach": {"prior": "none", "beta": "choose", "hold_out": 1e-9}, "report": {"priors": ["kd"]}}, "hold_out"),
        ({"teach": {"beta": "choose", "hold_out": 0.02}, "report": {"per_class": [30, 1]}}, "of 10 labelled.*hold_out"),
    ],
)
def test_what_is_refused_leaves_no_folder(teachers, tmp_path, sections, words):
    with pytest.raises((BackboneError, DataError), match=f"(?s){words}"):
        teach(teaching_recipe(tmp_path / "out", teachers, **sections))
    assert not (tmp_path / "out").exists()


def test_a_missing_teacher_is_found_before_another_one_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(teaching, "extract", lambda *_: pytest.fail("images were run"))
    missing = TeacherSpec(store=str(tmp_path / "nowhere"))
    recipe = teaching_recipe(tmp_path / "out", {"any": tmp_path})
    recipe = msgspec.structs.replace(
        recipe, data=load_recipe("quickstart").data, teachers=[TeacherSpec(recipe="quickstart"), missing]
    )
    with pytest.raises(StoreNotFound, match="no store at"):
        teach(recipe)


def test_a_recipe_has_defaults():
    recipe = parse_teaching({"teachers": [{"store": "stores/x"}], "name": "here"})
    assert recipe.folder == Path("stores/teach/here")
    assert 0.0 in recipe.teach.grid


def test_a_recipe_that_was_built_is_read_like_a_file():
    for file in sorted((ROOT / "pipelines/teach").glob("*.toml")):
        recipe = load_teaching(file)
        assert checked_teaching(recipe) == recipe
    built = TeachingRecipe(teachers=[TeacherSpec(store=Path("a"))], train=StudentTrainingSpec(rate=1))  # type: ignore[arg-type]
    assert checked_teaching(built) == parse_teaching({"teachers": [{"store": "a"}], "train": {"rate": 1.0}})


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (TeachingRecipe(), "has no teacher"),
        (TeachingRecipe(teachers=[TeacherSpec(store="x/a"), TeacherSpec(store="y/a")]), "share a name"),
        (TeachingRecipe(teachers=[TeacherSpec(store="a")], train=StudentTrainingSpec(rate=-1.0)), "train.rate"),
        (TeachingRecipe(teachers=[TeacherSpec(store="a")], train=StudentTrainingSpec(memory="much")), "much"),
    ],
)
def test_a_wrong_recipe_that_was_built_is_refused(recipe, words):
    with pytest.raises(RecipeError, match=words):
        teach(recipe)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("teach/digits", r"got: 'teach/digits'\n.*load_teaching\('teach/digits'\)"),
        (Path("my.toml"), r"load_teaching\('my.toml'\)"),
        (Recipe(), r"got: a Recipe\n.*load_teaching\(FILE\)"),
    ],
)
def test_what_is_no_recipe_is_told_how_to_read_one(given, words):
    with pytest.raises(ArgumentError, match=f"(?s)the recipe is not a TeachingRecipe.*{words}"):
        teach(given)


@pytest.mark.parametrize(
    ("student", "words"),
    [
        (
            {"model": None, "model_args": {}, "weights": "nowhere"},
            r"got: student.weights = 'nowhere'\n  try: 'random', 'bundled', 'pretrained'",
        ),
        ({"model": None, "model_args": {}, "weights": "x.safetensors"}, "in a recipe student.model"),
        ({"model_args": {"size": 3}}, r"correct student\.model_args"),
    ],
)
def test_errors_of_a_student_name_its_own_keys(teachers, tmp_path, monkeypatch, student, words):
    monkeypatch.chdir(tmp_path)
    save_file({"a": torch.zeros(1)}, "x.safetensors")
    recipe = teaching_recipe(tmp_path / "out", teachers, student=student)
    with pytest.raises(BackboneError, match=f"(?s){words}") as refused:
        student_bytes(recipe)
    assert "backbone." not in str(refused.value)


def test_new_images_are_to_be_appended(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path / "out", teachers, data={"limit": 130})
    with pytest.raises(StoreError, match=r"(?s)has no row of.*new: taftcache append RECIPE"):
        teach(recipe)


def test_what_needs_a_store_says_that_a_student_is_a_model(teachers, tmp_path):
    recipe = teaching_recipe(tmp_path / "out", teachers, teach={"prior": "none"}, train={"epochs": 1})
    student = teach(recipe).student
    for command in (taftcache.evaluate, taftcache.inspect):
        with pytest.raises(
            StoreNotFound, match=r"(?s)the folder of one model.*taftcache predict .*none-b0-s0 IMAGE.*open_model\('"
        ):
            command(student.parent)
    with pytest.raises(StoreNotFound, match=r"(?s)it is a file.*the folder that it is in, .*none-b0-s0$"):
        taftcache.predict(student, [np.zeros((16, 16, 3), np.uint8)])
