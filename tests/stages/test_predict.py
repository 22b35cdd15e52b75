"""From an image file to logits: the same as from the cached row."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, recorded_recipe
from taftcache.errors import DataError, RecipeError, UnreadableImage
from taftcache.model.calibration import calibration_of
from taftcache.model.component import read_base, read_component
from taftcache.model.folder import open_model, origin_of
from taftcache.model.predictor import Alike, TangentModel
from taftcache.stages.files import prediction
from taftcache.stages.files.prediction import Answers
from taftcache.stages.progress import Silent
from taftcache.tangent.operator import TangentOperator
from taftcache.terminal.pipeline import show_predict
from tests.stages.making import open_store, recipe


def from_cache(path: Path, name: str) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    """Ids, labels and logits of every row, in float64 from the cached tokens."""
    with FeatureStore(path) as store:
        base = read_base(store, recorded_recipe(store).tangent)
        component = read_component(store, name, base)
        rows = [*store.shards, store.held_out]
        operator = TangentOperator(base, rows, trained=component.layout, dtype=torch.float64, memory=1 << 30)
        changes = torch.cat(list(operator.matvec(component.delta)))
        blocks = list(operator.blocks())
        ids = [i for shard in rows for i in shard.sample_ids]
        return ids, torch.cat([y for _, y in blocks]), torch.cat([state.logits for state, _ in blocks]) + changes


def worst(path: Path, images: Path, name: str) -> float:
    """Largest difference of logits, relative to the largest logit."""
    ids, _, cached = from_cache(path, name)
    model = TangentModel.load(path, name, "cpu")
    predictions = model.predict([images / i for i in ids], top=3, batch=16)
    logits = model.logits([images / i for i in ids], batch=16)
    assert (logits.shape, model.logits([]).shape) == ((len(ids), len(model.classes)), (0, len(model.classes)))
    assert [[float(z[model.classes.index(k)]) for k in p.labels] for z, p in zip(logits, predictions, strict=True)] == [
        p.logits for p in predictions
    ]
    seen = torch.tensor([[dict(zip(p.labels, p.logits, strict=True))[c] for c in model.classes] for p in predictions])
    return ((seen - cached).abs().max() / cached.abs().max()).item()


def test_logits_of_the_rows_of_a_shard_need_no_image(photographed, tmp_path):
    for name in ("components/000", "models/mean"):
        ids, _, z = from_cache(photographed, name)
        with FeatureStore(photographed) as store:
            for shard in (*store.shards, store.held_out):
                of = torch.stack([z[ids.index(i)] for i in shard.sample_ids]).numpy()
                found = taftcache.logits(store, shard, model=name, device="cpu")
                assert found.dtype == np.float32
                assert found == pytest.approx(of, abs=1e-4 * np.abs(of).max())
    taftcache.export_model(photographed, tmp_path / "model")
    with pytest.raises(DataError, match="one model, which takes images"):
        taftcache.logits(tmp_path / "model", FeatureStore(photographed).held_out)


def test_a_pool_of_images_without_labels_is_cached_once_and_judged_by_its_rows(photographed, images, tmp_path):
    """Its one class was refused, and logits took no shard of another store."""
    pool = tmp_path / "pool"
    shutil.copytree(images / "0", pool / "any")
    given = {"source": "folder", "train": str(pool)}
    with pytest.raises(DataError, match=r"(?s)fewer than two classes.*--set data.held_out=0"):
        taftcache.extract(recipe(tmp_path / "store", data=given))
    (note,) = taftcache.extract(recipe(tmp_path / "store", data=given | {"held_out": 0.0})).notes
    assert "a pool without labels: all images are of the class 'any'" in note
    with FeatureStore(photographed) as store, FeatureStore(tmp_path / "store") as cached:
        root = cached.root_digest
        for shard in cached.shards:
            found = taftcache.logits(store, shard, device="cpu")
            files = [pool / i for i in shard.sample_ids]
            again = taftcache.logits(store, files, device="cpu")
            assert np.abs(found - again).max() < 0.01 * np.abs(found).max()
        gone = cached.shards[0]
        for call in (taftcache.predict, taftcache.find):
            with pytest.raises(DataError, match=r"(?s)cached rows of a shard are not images.*logits\(store, shard\)"):
                call(store, gone)
    assert FeatureStore(tmp_path / "store").root_digest == root
    shutil.copy(pool / "any" / files[0].name, pool / "any" / "copy.png")
    assert taftcache.append(recipe(tmp_path / "store", data=given | {"held_out": 0.0})).images == 1
    taftcache.forget(tmp_path / "store", [gone.sample_ids[0]])
    with pytest.raises(DataError, match=r"is not one of .*, whose rows have changed since"):
        taftcache.logits(photographed, gone)
    for name, other in {"blocks": {"tangent": {"blocks": 2}}, "size": {"preprocess": {"crop_pct": 0.5}}}.items():
        taftcache.extract(recipe(tmp_path / name, data=given | {"held_out": 0.0}, **other))
        with FeatureStore(tmp_path / name) as cached, pytest.raises(DataError, match=r"has other features than"):
            taftcache.logits(photographed, cached.shards[0])


def test_a_folder_of_one_model_has_no_other(photographed, tmp_path):
    taftcache.export_model(photographed, tmp_path / "model")
    name, picture = origin_of(tmp_path / "model").name, [np.zeros((8, 8, 3), np.uint8)]
    for own in (None, name, name.removeprefix("models/")):
        assert taftcache.predict(tmp_path / "model", picture, model=own).model == name
    for asked in ({"model": "components/999"}, {"consent": Consent(weights="other.safetensors")}):
        for call in (
            lambda more: taftcache.predict(tmp_path / "model", picture, **more),
            lambda more: taftcache.logits(tmp_path / "model", picture, **more),
            lambda more: taftcache.export_model(tmp_path / "model", tmp_path / "new", program=True, **more),
        ):
            with pytest.raises(RecipeError, match=f"holds one model.*\n.*(999|other).*\n.*{name}"):
                call(asked)


@pytest.fixture(scope="module", params=["float16", "int8", "head"])
def searched(request, photographed, images, tmp_path_factory):
    """A store of ``images``: tokens in float16, in 8 bits, or the head's feature alone. Not to be written to."""
    if request.param == "float16":
        return photographed
    path = tmp_path_factory.mktemp("searched") / "store"
    kind = {"store": {"dtype": "int8"}} if request.param == "int8" else {"tangent": {"train": "head"}}
    taftcache.extract(recipe(path, data={"source": "folder", "train": str(images)}, **kind))
    return path


def test_a_picture_finds_its_sample(searched, images, tmp_path):
    """The very file its row, to the byte; one that was scaled and saved again comes nearest to it."""
    files = sorted(images.glob("*/*.png"))[::9]
    again = tmp_path / "again.jpg"
    Image.open(files[0]).resize((40, 40)).save(again)
    report = taftcache.find(searched, [*files, again], top=3)
    with FeatureStore(searched) as store:
        places = {str(file): store.locate(str(file.relative_to(images)))[0] for file in files}
    assert list(report.found) == [*map(str, files), str(again)]
    for file in files:
        first, *others = report.found[str(file)]
        assert (first.sample, first.similarity, first.same) == (str(file.relative_to(images)), 1.0, True)
        assert (first.shard, first.role, first.label) == (
            places[str(file)].name,
            places[str(file)].role,
            file.parent.name,
        )
        assert [m.similarity for m in others] == sorted((m.similarity for m in others), reverse=True)
        assert not any(m.same for m in others)
    nearest = report.found[str(again)][0]
    assert (nearest.sample, nearest.same) == (str(files[0].relative_to(images)), False)
    assert 0.5 < nearest.similarity < 1


def test_it_is_as_similar_as_duplicates_are(photographed, images):
    pairs = [*(found := taftcache.duplicates(photographed, top=400, threshold=0.3)).pairs, *found.leaks]
    alike = {frozenset(pair.samples): pair.similarity for pair in pairs}
    assert len(alike) > 20
    for name in sorted({pair.samples[0] for pair in pairs})[:5]:
        (matches,) = taftcache.find(photographed, [images / name], top=60).found.values()
        by_pair = {frozenset((name, m.sample)): m.similarity for m in matches}
        shared = by_pair.keys() & alike.keys()
        assert shared
        for pair in shared:
            assert by_pair[pair] == pytest.approx(alike[pair], abs=1e-5)


def test_vectors_find_theirs(tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 8))
    taftcache.import_vectors(x, np.arange(40) % 2, tmp_path / "store", ids=[f"v{n:02}" for n in range(40)])
    np.save(tmp_path / "new.npy", 3 * x[5:7])  # of another length, which scaling takes off
    report = taftcache.find(tmp_path / "store", [tmp_path / "new.npy"], top=2)
    assert [(m[0].sample, m[0].same) for m in report.found.values()] == [("v05", True), ("v06", True)]
    assert list(report.found) == [f"{tmp_path / 'new.npy'}/0000000{k}" for k in range(2)]
    with pytest.raises(DataError, match="no vectors like"):
        taftcache.find(tmp_path / "store", x[:, :3])
    assert taftcache.find(tmp_path / "store", []).found == {}


def test_no_picture_finds_none(photographed):
    assert taftcache.find(photographed, []).found == {}


@pytest.mark.parametrize("name", ["models/mean", "models/head", "components/001"])
def test_logits_from_the_image_are_those_from_the_cache(photographed, images, name):
    """To the rounding of the cache: float16 keeps eleven bits."""
    assert worst(photographed, images, name) < 4 * 2**-11


def test_float32_cache_agrees_to_float32(images, tmp_path):
    path = tmp_path / "store"
    taftcache.run(recipe(path, data={"source": "folder", "train": str(images)}, store={"dtype": "float32"}))
    assert worst(path, images, "models/mean") < 1e-4


@pytest.mark.parametrize(
    "train", ["bitfit", pytest.param(["blocks.4.mlp.*", "head.*"], marks=pytest.mark.full)], ids=str
)
def test_several_blocks(images, tmp_path, train):
    """A tail of two blocks, and then the last of them alone from the same store."""
    path = tmp_path / "store"
    made = {
        "data": {"source": "folder", "train": str(images)},
        "store": {"dtype": "float32"},
        "objective": {"ridge": 1.0},
    }
    deep = recipe(path, tangent={"blocks": 2, "train": train}, solver={"tolerance": 0.1}, **made)
    taftcache.run(deep)
    assert worst(path, images, "models/mean") < 1e-4
    shallow = recipe(path, tangent={"blocks": 1}, solver={"tolerance": 0.1}, **made)
    assert taftcache.run(shallow).extract.images == 0
    with FeatureStore(path) as store:
        names = list(read_component(store, "components/000", read_base(store, shallow.tangent)).layout)
    assert names
    assert not any(name.startswith("blocks.4.") for name in names)
    assert worst(path, images, "models/mean") < 1e-4


def test_evaluate_counts_what_the_logits_say(photographed):
    with FeatureStore(photographed) as store:
        report = taftcache.evaluate(store)
        n = store.held_out.rows
    for name in ("models/mean", "models/head", "components/000"):
        _, labels, logits = from_cache(photographed, name)
        right = (logits.argmax(1) == labels)[-n:].double().mean().item()
        assert report.accuracy[name] == pytest.approx(right, abs=1e-6)
    assert set(report.accuracy) == {
        "base model untouched",
        "models/mean",
        "models/head",
        "components/000",
        "components/001",
    }


def test_no_model_is_the_best_before_there_is_one(tmp_path):
    path = tmp_path / "store"
    taftcache.extract(recipe(path))
    assert taftcache.evaluate(path).default is None
    taftcache.train(path)
    assert taftcache.evaluate(path).default == "models/head"


def test_predict_stage_sorts_classes(photographed, images):
    file = next(iter(sorted(images.glob("1/*.png"))))
    with FeatureStore(photographed) as store:
        (found,) = taftcache.predict(store, [file], top=2, device="cpu").predictions
    assert found.logits == sorted(found.logits, reverse=True)
    assert len(found.labels) == 2


def know(patch: pytest.MonkeyPatch, margins: np.ndarray, right: np.ndarray, temperature: float = 1.0) -> None:
    """Let ``predict`` find these held-out rows."""
    known = Answers(margins=margins, right=right, temperature=temperature)
    patch.setattr(prediction, "held_out_answers", lambda *_: known)


@pytest.mark.law("What predict says of a margin is counted on held-out rows")
def test_a_margin_is_held_against_the_held_out_rows(photographed, images, monkeypatch, capsys):
    file = next(iter(sorted(images.glob("1/*.png"))))
    with FeatureStore(photographed) as store:
        known = prediction.held_out_answers(store, "models/mean", "cpu")
        margins, right = known.margins, known.right
        (plain,) = taftcache.predict(store, [file], model="models/mean", device="cpu").predictions
        nearest = np.argsort(np.abs(margins - plain.margin), kind="stable")[:5]
        assert plain.alike == Alike(right=int(right[nearest].sum()), rows=5, largest=float(margins.max()))
        others = plain.margin + np.array([-0.1, 9, 0.2, -8, 0.05])
        monkeypatch.setattr(prediction, "LEAST_ALIKE", (3, 20))
        know(monkeypatch, others, np.array([1, 0, 1, 0, 0], bool), temperature=1e6)
        report = taftcache.predict(store, [file], model="models/mean", top=1, device="cpu")
    _, labels, logits = (part[-len(right) :] for part in from_cache(photographed, "models/mean"))
    best = logits.sort(1, descending=True).values
    assert np.allclose(margins, best[:, 0] - best[:, 1], atol=1e-4)
    assert np.array_equal(right, logits.argmax(1) == labels)
    assert report.predictions[0].alike == Alike(right=2, rows=3, largest=float(others.max()))
    show_predict(report)
    said = f"{plain.labels[0]} (33.3 %). Held-out rows with such a margin: 2 of 3 right."
    assert said in capsys.readouterr().out


@pytest.mark.law("What predict says of a margin is counted on held-out rows")
@pytest.mark.parametrize(("held_out", "rows"), [(4, 4), (12, 5), (44, 7), (58, 9), (120, 20), (200, 20), (1000, 100)])
def test_of_few_held_out_rows_only_the_nearest_are_counted(photographed, images, monkeypatch, held_out, rows):
    file = next(iter(sorted(images.glob("1/*.png"))))
    know(monkeypatch, np.linspace(0, 50, held_out), np.zeros(held_out, bool))
    with FeatureStore(photographed) as store:
        (found,) = taftcache.predict(store, [file], device="cpu").predictions
    assert found.alike == Alike(right=0, rows=rows, largest=50)


@pytest.mark.law("What predict says of a margin is counted on held-out rows")
@pytest.mark.parametrize(("largest", "rows"), [(1.001, 5), (0.995, 5), (0.98, 0), (0, 0)])
def test_no_share_is_told_of_a_margin_that_no_held_out_row_has(
    photographed, images, monkeypatch, capsys, largest, rows
):
    """Beyond the largest, that is: by a hundredth it may be above, for a row's own image may be."""
    file = next(iter(sorted(images.glob("1/*.png"))))
    with FeatureStore(photographed) as store:
        margin = taftcache.predict(store, [file], device="cpu").predictions[0].margin
        know(monkeypatch, margin * np.linspace(0, largest, 30), np.ones(30, bool))
        report = taftcache.predict(store, [file], top=1, device="cpu")
    alike = report.predictions[0].alike
    assert alike == Alike(right=rows, rows=rows, largest=pytest.approx(margin * largest))
    assert report.records()[0].items() >= {"alike_rows": rows, "alike_largest": alike.largest}.items()
    show_predict(report)
    beyond = f"No held-out row has such a margin ({margin:.2f}; the largest is {margin * largest:.2f})."
    assert (beyond in capsys.readouterr().out) == (rows == 0)


def test_without_held_out_rows_there_is_the_margin_alone(photographed, images, monkeypatch, capsys, tmp_path):
    file = next(iter(sorted(images.glob("1/*.png"))))
    monkeypatch.setattr(FeatureStore, "held_out", None)
    with FeatureStore(photographed) as store:
        report = taftcache.predict(store, [file], top=2, device="cpu")
        taftcache.export_model(store, tmp_path / "model")
    assert open_model(tmp_path / "model", device="cpu").temperature is None
    (found,) = report.predictions
    assert (found.alike, found.probabilities) == (None, None)
    assert found.margin == pytest.approx(found.logits[0] - found.logits[1])
    show_predict(report)
    assert capsys.readouterr().out == f"{file}: {found.labels[0]} (margin {found.margin:.2f}; next {found.labels[1]})\n"


@pytest.mark.law("Probabilities have the temperature that suits held-out rows, in a store and in an exported model")
def test_probabilities_have_the_temperature_of_held_out_rows(photographed, images, tmp_path):
    files = sorted(images.glob("*/*.png"))[::9]
    with FeatureStore(photographed) as store:
        labels, own = store.held_out.labels, taftcache.logits(store, store.held_out, model="models/mean", device="cpu")
        report = taftcache.predict(store, files, model="models/mean", top=len(store.classes), device="cpu")
        said = taftcache.evaluate(store).calibration
        taftcache.export_model(store, tmp_path / "model", "models/mean")
    assert said["models/mean"] == calibration_of(own, labels)
    assert said.keys() == {"models/mean", "models/head"}
    temperature = said["models/mean"].temperature
    outside = taftcache.predict(tmp_path / "model", files, top=2, device="cpu").predictions
    for found, away, row in zip(report.predictions, outside, report.records(), strict=True):
        p = np.exp(np.array(found.logits) / temperature)
        assert found.probabilities == pytest.approx(p / p.sum(), rel=1e-5)
        assert sum(found.probabilities) == pytest.approx(1)
        assert away.probabilities == pytest.approx(found.probabilities[:2], rel=1e-5)
        assert [row["probability"], row["probability_2"]] == found.probabilities[:2]
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert f"softmax(logits / {temperature:.4g})" in text
    assert f"log-loss {said['models/mean'].log_loss:.3f} nats" in text
    assert origin_of(tmp_path / "model").temperature == temperature


def test_trained_class_token_reaches_the_images(images, tmp_path):
    """CLS = T replaces the backbone's class token, in the cache's rows and in the images' alike."""
    path = tmp_path / "store"
    tangent = {"class_token": "reset", "reset_block": True}
    taftcache.run(recipe(path, data={"source": "folder", "train": str(images)}, tangent=tangent))
    assert worst(path, images, "models/mean") < 0.02


def test_sixteen_bits_are_read_as_extraction_reads_them(photographed, images, tmp_path):
    """PIL alone would clip nearly all of such an image to white."""
    file = next(iter(sorted(images.glob("2/*.png"))))
    grey = np.asarray(Image.open(file).convert("L"))
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    model = TangentModel.load(photographed, "models/mean", "cpu")
    plain, deep = model.predict([file, tmp_path / "deep.png"])
    assert plain.logits == deep.logits


@pytest.mark.parametrize("kind", ["missing", "text"])
def test_file_that_does_not_decode(photographed, tmp_path, kind):
    file = tmp_path / "digit.png"
    if kind == "text":
        file.write_text("not an image")
    with FeatureStore(photographed) as store, pytest.raises(UnreadableImage, match=r"digit\.png"):
        taftcache.predict(store, [file], device="cpu")


class Counting(Silent):
    """Progress that counts."""

    def __init__(self) -> None:
        self.totals, self.done = dict[str, int | None](), 0

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Counting]:
        self.totals[name] = total
        yield self

    def advance(self, steps: int = 1) -> None:
        self.done += steps


@pytest.mark.parametrize("where", ["store", "model"])
def test_folders_and_images_that_cannot_be_read(photographed, images, tmp_path, capsys, where):
    folder = shutil.copytree(images, tmp_path / "new")
    (folder / "0" / "broken.png").write_text("not an image")
    (folder / "0" / "a.heic").write_text("not read")
    (folder / "0" / "notes.txt").write_text("none")
    place = photographed
    if where == "model":
        place = tmp_path / "model"
        taftcache.export_model(photographed, place)
    good = sorted(images.glob("*/*.png"))
    with pytest.raises(UnreadableImage, match=r"broken\.png"):
        taftcache.predict(place, [folder], device="cpu")
    given = [folder, good[0], good[0], tmp_path / "gone.png"]
    progress = Counting()
    report = taftcache.predict(place, given, device="cpu", unreadable="skip", progress=progress)
    assert progress.totals["predict"] == progress.done == len(good) + 4, "broken and gone ones too"
    listed = [*(folder / file.relative_to(images) for file in good), good[0], good[0]]
    assert [p.image for p in report.predictions] == [str(file) for file in listed]
    plain = taftcache.predict(place, good, device="cpu").predictions
    assert [p.labels for p in report.predictions[: len(good)]] == [p.labels for p in plain]
    assert list(report.unreadable) == [str(folder / "0" / "broken.png"), str(tmp_path / "gone.png")]
    assert "1 file left out, of types that are not read: .heic 1; convert them, to .png or .jpg" in report.notes
    show_predict(report)
    said = capsys.readouterr()
    assert re.search(rf"^{len(listed)} images: .*0 \(\d+\)", said.out, re.MULTILINE), "how many of each class"
    assert said.err.count("left out: the image") == 2
    assert "broken.png does not decode" in said.err
    assert "broken.png" not in said.out
    with pytest.raises(UnreadableImage):
        taftcache.predict(place, [folder / "0" / "broken.png"], device="cpu", unreadable="skip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no images"):
        taftcache.predict(place, [tmp_path / "empty"], device="cpu")


def test_a_component_is_loaded_by_its_shards_name(photographed):
    loaded = TangentModel.load(photographed, "000", "cpu").component
    assert torch.equal(loaded.delta, TangentModel.load(photographed, "components/000", "cpu").component.delta)


def test_images_are_classified_in_batches(photographed, images):
    model = TangentModel.load(open_store(photographed), "models/mean", "cpu")
    files = sorted(images.glob("*/*.png"))[:5]
    whole, single = model.predict(files), model.predict(files, batch=1)
    for a, b in zip(whole, single, strict=True):
        assert a.labels == b.labels
        assert a.logits == pytest.approx(b.logits, rel=1e-3, abs=1e-3)
