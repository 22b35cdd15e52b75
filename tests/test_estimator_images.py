"""Estimators of images: paths, PIL images and arrays through a backbone, and the store that keeps their rows."""

from __future__ import annotations

import pickle
from importlib.util import find_spec

import msgspec
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import cross_val_score

import taftcache
from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.spec import EVERY_BLOCK, BackboneSpec, backbone_of
from taftcache.cache.store import FeatureStore
from taftcache.errors import (
    ArgumentError,
    DataError,
    RecipeError,
    SolveError,
    StoreError,
    TaftcacheError,
    UnreadableImage,
)
from taftcache.estimator import TangentClassifier, TangentRegressor
from taftcache.estimator_images import extracted
from taftcache.stages.estimators import NO_CLASSES
from taftcache.stages.extract.drafting import TANGENT
from taftcache.stages.forget.forgetting import forget
from taftcache.tangent.spec import TangentSpec
from tests.pictures import pictures
from tests.quick import known  # noqa: F401

pandas = find_spec("pandas")
pytestmark = pytest.mark.usefixtures("known")


def test_a_fit_to_images_keeps_nothing_of_one_to_features():
    X, y = load_iris(return_X_y=True, as_frame=pandas is not None)
    fitted = TangentClassifier(ridge=1e-2).fit(X, y)
    assert fitted.intercept_.shape == (3,)
    assert fitted.n_features_in_ == 4
    images, labels = pictures(12)
    fitted.set_params(backbone="bundled", tangent=TangentSpec(train="head")).fit(images, labels)
    assert not any(hasattr(fitted, name) for name in ("intercept_", "n_features_in_", "feature_names_in_"))


def test_a_store_needs_images():
    with pytest.raises(ArgumentError, match="a store keeps images"):
        TangentClassifier(store="somewhere").fit(*load_iris(return_X_y=True))


def test_a_table_of_paths_is_named_and_grey_pictures_have_one_channel():
    images, labels = pictures(12)
    with pytest.raises(DataError, match="but as a table"):
        TangentClassifier("bundled").fit(np.array([["a.png", "b.png"]] * 12), labels)
    spec = TangentSpec(train="head")
    grey, colour = (
        TangentClassifier("bundled", tangent=spec, ridge=1e-2).fit(given, labels)
        for given in ([image[:, :, :1] for image in images], images)
    )
    assert np.array_equal(grey.coef_, colour.coef_)


@pytest.mark.slow
def test_images_through_a_backbone():
    images = load_digits().images[:40].astype(np.float64)
    pictures = [np.repeat((image * 15).astype(np.uint8)[:, :, None], 3, 2) for image in images]
    mine = TangentClassifier(BackboneSpec(weights="bundled"), ridge=1e-3, tolerance=1e-4)
    targets = load_digits().target[:40]
    assert mine.fit(pictures, targets).score(pictures, targets) > 0.9
    assert torch.isfinite(mine.solution_.value).all()


def test_weights_that_were_resized_are_warned_of(tmp_path):
    options = {"depth": 1, "embed_dim": 48, "num_heads": 3, "patch_size": 8, "img_size": 32}
    save_file(timm.create_model("vit_tiny_patch16_224", **options).state_dict(), tmp_path / "mine.safetensors")
    spec = BackboneSpec(
        model="vit_tiny_patch16_224", weights=str(tmp_path / "mine.safetensors"), model_args=options | {"img_size": 48}
    )
    with pytest.warns(UserWarning, match="pos_embed 1x17x48 to 1x37x48; with img_size = 32") as caught:
        TangentClassifier(spec, tangent=TangentSpec(train="head"), ridge=1e-2).fit(*pictures(12))
    assert [warning.filename for warning in caught] == [__file__]


def test_files_through_a_named_backbone_and_a_store_of_their_own(tmp_path, monkeypatch):
    """Paths, PIL images and arrays are one; a second fit to the same files runs no image; nothing else is left."""
    arrays, targets = pictures()
    images = [Image.fromarray(array) for array in arrays]
    files = [tmp_path / f"{k}.png" for k in range(len(images))]
    for file, image in zip(files, images, strict=True):
        image.save(file)
    mine = TangentClassifier(
        "bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-3, tolerance=1e-4, store=tmp_path / "store"
    )
    weights = np.linspace(0.5, 2, len(files))
    mine.fit(files, targets, weights)
    assert mine.score(files, targets) > 0.9
    with FeatureStore(tmp_path / "store") as store:
        assert sorted(i.rpartition("@")[0] for i in store.sample_ids()) == sorted(map(str, files))
    monkeypatch.setattr(Cut, "prefix", None)
    again = clone(mine).fit([str(file) for file in files], targets, weights)
    assert np.array_equal(again.coef_, mine.coef_)
    monkeypatch.undo()
    others = clone(mine).set_params(store=None).fit(images, targets, weights)
    assert np.allclose(others.decision_function(arrays), mine.decision_function(files), rtol=1e-3, atol=1e-2)
    loaded = pickle.loads(pickle.dumps(mine))
    assert np.array_equal(loaded.predict(files), mine.predict(files))
    (tmp_path / "0.png").write_bytes(b"")
    with pytest.raises(UnreadableImage, match=r"0\.png"):
        clone(mine).set_params(store=None).fit(files, targets)


def test_values_of_images_come_from_a_store_as_classes_do(tmp_path, monkeypatch):
    """A regressor held the rows of all images in memory, and ran the layers over them again in every fit."""
    images, values = pictures(30)[0], np.linspace(-1, 1, 60).reshape(30, 2)
    weights = np.arange(1.0, 31.0)
    mine = TangentRegressor("bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-3, store=tmp_path / "store")
    first = mine.fit(images, values, weights).coef_
    assert np.array_equal(clone(mine).set_params(store=None).fit(images, values, weights).coef_, first)
    cut = mine._cut()
    rows = np.concatenate(list(extracted(cut, images))).astype(np.float16)
    given = clone(mine).set_params(store=None, backbone=(cut.tail_state(), cut.tail_config()))
    assert np.allclose(given.fit(rows, values, weights).predict(rows), mine.predict(images), atol=1e-2)
    monkeypatch.setattr(Cut, "prefix", lambda *_: pytest.fail("an image ran again"))
    assert clone(mine).fit(images[:20], values[:20, 0]).solution_.converged


def test_the_store_of_a_regressor_is_no_classifier(tmp_path, capsys):
    """It was trained as one, whose only answer was the name that stands for none."""
    images, _ = pictures(12)
    place = tmp_path / "store"
    mine = TangentRegressor("bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-3, store=place)
    mine.fit(images, np.linspace(-1, 1, 12))
    uses = {
        "train": lambda: taftcache.train(place),
        "compose": lambda: taftcache.compose(place),
        "evaluate": lambda: taftcache.evaluate(place),
        "predict": lambda: taftcache.predict(place, images[:1]),
        "logits": lambda: taftcache.logits(place, images[:1]),
        "export": lambda: taftcache.export_model(place, tmp_path / "model"),
        "private": lambda: taftcache.train_private(place),
    }
    for name, use in uses.items():
        with pytest.raises(StoreError, match=r"holds images for TangentRegressor; no values are kept in it\n"):
            pytest.fail(f"{name}: {use()}")
    report = taftcache.inspect(place)
    assert (report.rows, report.classes, report.rows_per_class) == (12, [], {})
    assert [note for note in report.notes if "holds images for TangentRegressor" in note]
    taftcache.show(report)
    assert NO_CLASSES[0] not in capsys.readouterr().out
    with FeatureStore(place) as store:
        first = store.sample_ids()[0]
    for dry_run in (True, False):
        said = forget(place, [first], dry_run=dry_run).notes
        assert [note for note in said if "estimators fitted to these images are not in the store" in note]
    with pytest.raises(StoreError, match="holds images for TangentRegressor"):
        taftcache.train(place)


def test_a_classifier_may_have_classes_called_as_those_of_a_regressor(tmp_path):
    images, _ = pictures(12)
    mine = TangentClassifier("bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-3, store=tmp_path / "store")
    mine.fit(images, NO_CLASSES * 6)
    assert taftcache.inspect(tmp_path / "store").rows_per_class == dict.fromkeys(NO_CLASSES, 6)
    assert taftcache.train(tmp_path / "store").trained
    with FeatureStore(tmp_path / "store") as store:
        first = store.sample_ids()[0]
    assert [note for note in forget(tmp_path / "store", [first]).notes if "fit them again" in note]


def test_a_store_of_some_images_takes_the_others_in(tmp_path, monkeypatch):
    """As in a cross-validation: each fold is fitted to its own images alone, and none runs twice."""
    arrays, targets = pictures(60)
    files = [str(tmp_path / f"{k}.png") for k in range(len(arrays))]
    for file, array in zip(files, arrays, strict=True):
        Image.fromarray(array).save(file)
    mine = TangentClassifier("bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-3, store=tmp_path / "store")
    few, weights = slice(10, 40), np.linspace(0.5, 2, 30)
    mine.fit(files[:30], targets[:30])
    again = clone(mine).fit(files[few], targets[few], weights)
    alone = clone(mine).set_params(store=None).fit(files[few], targets[few], weights)
    assert np.array_equal(again.coef_, alone.coef_)
    backwards = clone(mine).fit(files[few][::-1], targets[few][::-1], weights[::-1])
    assert np.array_equal(again.coef_, backwards.coef_)
    with FeatureStore(tmp_path / "store") as store:
        assert len(store.sample_ids()) == 40
    larger = clone(mine).set_params(store=tmp_path / "larger")
    larger.fit([files[k] for k in range(10, 40) if targets[k] != 3], targets[few][targets[few] != 3])
    assert np.array_equal(larger.fit(files[few], targets[few], weights).coef_, again.coef_)  # with a further class
    with FeatureStore(tmp_path / "larger", mode="a") as store, store.transaction() as change:
        change.put("models/head", b"of somebody", {})
    with pytest.raises(DataError, match="does not have"):
        larger.fit(files[:2], ["a", "b"])
    monkeypatch.setattr(Cut, "prefix", None)
    kept = targets[:40] != 3  # the classes that are left have other indexes than in the store
    without = clone(mine).fit(np.array(files[:40])[kept], targets[:40][kept])
    assert without.classes_.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    monkeypatch.undo()
    assert (without.predict(np.array(files[:40])[kept]) == targets[:40][kept]).mean() > 0.9
    assert cross_val_score(mine, files, targets, cv=2).mean() > 0.2
    with pytest.raises(StoreError, match=r"0\.png@.* under another label\n  got: '1', there '0'"):
        clone(mine).fit(files[:2], [1, 0])
    with FeatureStore(tmp_path / "store") as store:
        first = next(i for i in store.sample_ids() if i.startswith(f"{files[0]}@"))
        assert len(store.sample_ids()) == 60
    forget(tmp_path / "store", [first])
    with pytest.raises(StoreError, match=r"has forgotten some of the images\n  got: 1 of them, the first: .*0\.png"):
        clone(mine).fit(files[:2], targets[:2])


def test_a_file_with_other_bytes_is_another_image(tmp_path):
    """A store kept the rows of what had been there under the same name."""
    arrays, targets = pictures()
    files = [tmp_path / f"{k}.png" for k in range(len(arrays))]
    for file, array in zip(files, arrays, strict=True):
        Image.fromarray(array).save(file)
    mine = TangentClassifier("bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-3, store=tmp_path / "store")
    before = mine.fit(files, targets).coef_
    Image.fromarray(arrays[0][::-1]).save(files[0])
    after = clone(mine).fit(files, targets).coef_
    assert not np.allclose(before, after)
    assert np.array_equal(after, clone(mine).set_params(store=None).fit(files, targets).coef_)


def test_what_cannot_be_fitted_or_classified_is_said(tmp_path):
    arrays, targets = pictures()
    arrays, targets = arrays[:4], np.array([*"abab"])
    mine = TangentClassifier("bundled", tangent=TangentSpec(blocks=0, train="head"), ridge=1.0).fit(arrays, targets)
    file = tmp_path / "0.png"
    Image.fromarray(arrays[0]).save(file)
    assert mine.predict([file]).tolist() == mine.predict([str(file)]).tolist() == mine.predict(arrays[:1]).tolist()
    (tmp_path / "text.png").write_text("text")
    for images, says in (
        (str(file), "not given as a list"),
        ([], "no images"),
        ([tmp_path / "none.png"], "none.png is missing"),
        ([tmp_path], "is a folder, not an image\n  try: name the images in it"),
        ([tmp_path / "text.png"], "text.png does not decode"),
        (
            [arrays[0], np.zeros((8, 8, 3))],
            r"at index 1 cannot be read\n  got: float64 \[8, 8, 3\].*\n  try: .* uint8 \[h, w",
        ),
        ([arrays[0]] * 40 + [None], "at index 40 cannot be read\n  got: NoneType"),
    ):
        with pytest.raises(DataError, match=says):
            mine.predict(images)
        with pytest.raises(DataError, match=says):
            clone(mine).fit(images, ["a"] * len(images))
    with pytest.raises(DataError, match="images are not given as a list"):  # whose letters were counted
        clone(mine).fit("a.png", [0])
    for y, says in (
        (targets[:3], "inconsistent numbers"),
        (np.eye(4), "1d array"),
        (np.array(["a", np.nan, "b", "a"], object), "NaN"),
    ):
        with pytest.raises(ValueError, match=says):
            clone(mine).fit(arrays, y)
    with pytest.raises(ValueError, match="NaN"):
        TangentRegressor("bundled").fit(arrays, [np.nan] * 4)
    for name, wrong, kind in (
        ("ridge", "much", RecipeError),
        ("ridge", None, RecipeError),
        ("ridge", True, RecipeError),
        ("ridge", 0, RecipeError),
        ("alpha", "much", ArgumentError),
        ("alpha", None, ArgumentError),
        ("alpha", [1.0], ArgumentError),
        ("alpha", -1.0, ArgumentError),
        ("kappa", -1.0, ArgumentError),
        ("loss", "squared_error", ArgumentError),
        ("class_weight", {"zebra": 2}, ValueError),
        ("class_weight", "much", RecipeError),
        ("class_weight", {"a": -1.0, "b": 1.0}, RecipeError),
        ("scaling", "much", RecipeError),
        ("backbone", 3, RecipeError),
        ("device", "gpu", RecipeError),
    ):
        with pytest.raises(kind) as refused:
            clone(mine).set_params(**{name: wrong}).fit(arrays, targets)
        assert not isinstance(refused.value, TaftcacheError) or refused.value.do or name == "backbone"
        assert isinstance(refused.value, ValueError) or name in ("backbone", "device"), "as scikit-learn's own are"
    for loss in ("mse", "cross_entropy"):
        with pytest.raises(
            SolveError, match=r"not finite\n  got: (.|\n)*\n  try: look for extreme numbers in the rows"
        ):
            TangentClassifier(scaling="none", loss=loss, ridge=1.0).fit(np.eye(4) * 1e200, targets)
    X, y = load_iris(return_X_y=True)
    for fitted in (TangentClassifier(), TangentRegressor()):
        with pytest.raises(ArgumentError, match="sample_weight is negative"):
            fitted.fit(X[:3], y[:3], [1.0, -1.0, 1.0])
    with pytest.raises(ArgumentError, match="types that have no order\n  got: int, str"):
        TangentClassifier().fit(X[:4], np.array(["a", 1, "b", 2], object))
    with pytest.raises(ArgumentError, match="unknown device"):
        TangentClassifier(device="gpu").fit(X, y)
    assert TangentClassifier(device="auto").fit(X, y).score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_name_is_a_model_or_its_weights(tmp_path):
    assert backbone_of("bundled") == BackboneSpec(weights="bundled")
    assert backbone_of("deit_tiny_patch16_224") == BackboneSpec(model="deit_tiny_patch16_224", weights="pretrained")
    assert backbone_of(str(tmp_path)) == BackboneSpec(weights=str(tmp_path))
    with pytest.raises(RecipeError, match="import_vectors"):  # a module's features are what can be fitted
        backbone_of(torch.nn.Flatten())
    fitted = TangentClassifier("bundled", ridge=1.0, max_passes=2).fit(pictures()[0][:4], [*"abab"])
    assert fitted.base_.spec.reset_block, "as init writes it"
    assert not clone(fitted).set_params(tangent=TangentSpec()).fit(pictures()[0][:4], [*"abab"]).base_.spec.reset_block
    assert clone(TangentClassifier("deit_tiny_patch16_224")).get_params()["backbone"] == "deit_tiny_patch16_224"


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_of_every_block_a_head_is_trained_from_zero(kind):
    """As in a recipe of ``init``; it was refused, for it named the last block beside them."""
    images, targets = pictures(12)[0], np.arange(12) % 3
    fitted = kind(BackboneSpec(features="every block"), ridge=1e-2).fit(images, targets)
    assert msgspec.structs.replace(fitted.base_.spec, train="full") == msgspec.convert(
        TANGENT[EVERY_BLOCK], TangentSpec
    )
    assert fitted.base_.spec.train == "head"
    given = clone(fitted).set_params(tangent=fitted.base_.spec).fit(images, targets)
    assert np.array_equal(given.coef_, fitted.coef_)
    assert fitted.score(images, targets) > 0.9


def test_another_tangent_is_another_cut():
    images, _ = pictures(12)
    values = np.arange(12.0)
    fitted = TangentRegressor("bundled", ridge=1e-2, tangent=TangentSpec(blocks=0)).fit(images, values)
    assert fitted.coef_.shape == (97,)
    spec = TangentSpec(blocks=1, reset_block=True)
    again = fitted.set_params(tangent=spec).fit(images, values)
    fresh = TangentRegressor("bundled", ridge=1e-2, tangent=spec).fit(images, values)
    assert np.array_equal(again.coef_, fresh.coef_)


def test_what_is_trained_is_named_and_globs_may_be_a_tuple():
    images, _ = pictures(12)
    listed, tupled = (
        TangentRegressor("bundled", ridge=1e-2, tangent=TangentSpec(train=train)).fit(images, np.arange(12.0)).coef_
        for train in (["*.mlp.*", "head.*"], ("*.mlp.*", "head.*"))
    )
    assert np.array_equal(listed, tupled)
    with pytest.raises(RecipeError, match="must be a list"):
        TangentRegressor("bundled", tangent=TangentSpec(train="foo")).fit(images, np.arange(12.0))


def test_one_picture_is_no_list_of_them():
    images, labels = pictures(12)
    fitted = TangentClassifier("bundled", tangent=TangentSpec(train="head"), ridge=1e-2).fit(images, labels)
    with pytest.raises(DataError, match="as one picture"):
        fitted.predict(images[0])
