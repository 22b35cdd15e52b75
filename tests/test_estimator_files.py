"""A fitted estimator as a folder: what comes back answers the same, and what cannot be saved says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

import taftcache
from taftcache import estimator_images
from taftcache.backbone.files import file_digest
from taftcache.errors import ArgumentError, FormatError, IntegrityError, StoreWriteError
from taftcache.estimator import TangentClassifier, TangentRegressor
from taftcache.tangent.spec import TangentSpec
from tests.quick import known  # noqa: F401
from tests.solve.problems import case, labels, tokens

WORDS = np.array(["one", "two", "three"])


pytestmark = pytest.mark.usefixtures("known")


def features(count: int = 45) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(n_class=3, return_X_y=True)
    return X[:count], y[:count]


def pictures(count: int = 12) -> tuple[list[np.ndarray], np.ndarray]:
    X, y = features(count)
    return [np.repeat((x.reshape(8, 8) * 15).astype(np.uint8)[:, :, None], 3, 2) for x in X], y


def same(a: object, b: object, X: object) -> None:
    """Equal arguments, attributes and answers, to the last bit."""
    assert a.get_params() == b.get_params()
    names = ("coef_", "intercept_", "classes_", "n_features_in_", "feature_names_in_", "ridge_", "y_mean_", "y_scale_")
    for name in names:
        assert hasattr(a, name) == hasattr(b, name)
        assert np.array_equal(getattr(a, name, 0), getattr(b, name, 0)), name
    assert (a.base_.digest, a.solution_.certificate) == (b.base_.digest, b.solution_.certificate)
    assert (a.solution_.status, a.n_iter_, a.ridge_choice_) == (b.solution_.status, b.n_iter_, b.ridge_choice_)
    for ask in ("predict", "predict_proba", "decision_function"):
        assert hasattr(a, ask) == hasattr(b, ask)
        if hasattr(a, ask):
            mine, theirs = getattr(a, ask)(X), getattr(b, ask)(X)
            assert mine.dtype == theirs.dtype
            assert mine.tolist() == theirs.tolist()


@pytest.mark.filterwarnings("ignore:the best ridge is the least")  # of classes that these columns tell apart
@pytest.mark.law("A saved estimator answers as before to the last bit, and nothing that can run code is read")
@pytest.mark.parametrize(
    ("fresh", "targets"),
    [
        (TangentClassifier(ridge=1e-2, class_weight={"one": 2.0, "two": 1, "three": 0.5}), lambda y: WORDS[y]),
        (TangentClassifier(), lambda y: WORDS.astype(object)[y]),
        (TangentClassifier(ridge=np.float64(1e-2), scaling="none", loss="rsl"), lambda y: y == 1),
        (TangentRegressor(), lambda y: y * 0.1),
        (TangentRegressor(ridge=1e-2), lambda y: np.stack([y, -y], 1)),
    ],
)
def test_of_features(tmp_path, fresh, targets):
    X, y = features()
    mine = fresh.fit(X.astype(np.float32), targets(y))
    mine.save(tmp_path / "saved")
    assert sorted(f.name for f in (tmp_path / "saved").iterdir()) == ["estimator.json", "estimator.safetensors"]
    name = type(fresh).__name__
    with pytest.raises(FormatError, match=rf"(?s)saved {name}, which commands.*cannot use.*{name}.load, whose coef_"):
        taftcache.export_model(tmp_path / "saved", tmp_path / "onnx", onnx=True)
    same(mine, type(fresh).load(tmp_path / "saved"), X)


def test_of_the_rows_of_a_tail(tmp_path):
    made = case()
    state = {name: tensor.float() for name, tensor in made.base.state.items() if not name.startswith("head.")}
    mine = TangentClassifier((state, made.base.config), tangent=TangentSpec(train="bitfit"), ridge=1e-2)
    mine.fit(tokens(), labels()).save(tmp_path / "saved")
    back = TangentClassifier.load(tmp_path / "saved")
    with pytest.raises(FormatError, match=r"(?s)saved TangentClassifier, .*TangentClassifier.load$"):
        taftcache.open_model(tmp_path / "saved")
    (given, config), back.backbone = back.backbone, mine.backbone
    assert config == made.base.config
    assert given.keys() == state.keys()
    assert all(torch.equal(given[name], state[name]) for name in state)
    same(mine, back, tokens())


@pytest.mark.filterwarnings("ignore:the best ridge is the least")  # of classes that these columns tell apart
@pytest.mark.law("A saved estimator answers as before to the last bit, and nothing that can run code is read")
def test_of_images(tmp_path, monkeypatch):
    """A classifier's folder is a model, too; the backbone is read from the folder, not by its name."""
    images, y = pictures()
    mine = TangentClassifier("bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-2, tolerance=1e-3)
    mine.fit(images, WORDS[y]).save(tmp_path / "saved")
    monkeypatch.setattr(estimator_images, "load_backbone", None)
    same(mine, TangentClassifier.load(tmp_path / "saved", device="cpu"), images[:4])
    model = taftcache.open_model(tmp_path / "saved", device="cpu")
    taftcache.export_model(tmp_path / "saved", tmp_path / "program", program=True)
    program, x = torch.export.load(tmp_path / "program" / "program.pt2").module(), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(program(x), model(x))
    with torch.no_grad():
        logits = model(torch.stack([model.transform(_picture(image)) for image in images[:4]])).numpy()
    assert np.allclose(logits, mine.decision_function(images[:4]), atol=1e-3)


def _picture(image: np.ndarray) -> object:
    from PIL import Image

    return Image.fromarray(image)


def test_values_of_images(tmp_path):
    images, y = pictures()
    mine = TangentRegressor("bundled", tangent=TangentSpec(train="head"), ridge=1e-2).fit(images, y * 0.5)
    mine.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "backbone" / "model.safetensors").is_file()
    same(mine, TangentRegressor.load(tmp_path / "saved"), images[:4])
    file = tmp_path / "saved" / "estimator.json"
    text = file.read_text(encoding="utf-8")
    for change, kind in (({}, "TangentRegressor"), ({"kind": "Other"}, "estimator"), ({"arguments": 1}, "estimator")):
        file.write_text(json.dumps(json.loads(text) | change))
        with pytest.raises(
            FormatError, match=rf"(?s)a saved {kind}, which commands.*cannot use.*TangentRegressor\.load$"
        ):
            taftcache.predict(tmp_path / "saved", images[:1])


@pytest.mark.parametrize(("scale", "says"), [([1.0], "other values than outputs"), (None, "y_scale_")])
def test_a_regressor_is_loaded_with_the_scale_of_each_value(tmp_path, scale, says):
    X, y = features()
    TangentRegressor(ridge=1e-2).fit(X, np.stack([y, -y], 1)).save(tmp_path)
    file = tmp_path / "estimator.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    said["state"]["y_scale_"] = scale
    file.write_text(json.dumps(said))
    with pytest.raises(FormatError, match=says):
        TangentRegressor.load(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "saved"
    TangentClassifier(ridge=1e-2).fit(*features()).save(folder)
    return folder


def test_what_cannot_be_saved_or_loaded_is_said(saved, tmp_path):
    X, y = features()
    with pytest.raises(NotFittedError):
        TangentClassifier().save(tmp_path / "none")
    with pytest.raises(ArgumentError, match="classes cannot be saved"):
        TangentClassifier(ridge=1e-2).fit(X, np.datetime64("2020-01-01") + y).save(tmp_path / "none")
    mine = TangentClassifier(ridge=1e-2).fit(X, y)
    with pytest.raises(ArgumentError, match="the argument class_weight cannot be saved"):
        mine.set_params(class_weight={0: torch.ones(1)}).save(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(StoreWriteError, match="exists already"):
        mine.set_params(class_weight=None).save(saved)
    mine.save(tmp_path / "again")
    mine.set_params(ridge=2e-2).fit(X, y).save(tmp_path / "again", force=True)
    assert TangentClassifier.load(tmp_path / "again").ridge == 2e-2
    with pytest.raises(StoreWriteError, match="no saved model"):
        mine.save(tmp_path, force=True)
    with pytest.raises(FormatError, match="no saved estimator"):
        TangentClassifier.load(tmp_path)
    with pytest.raises(FormatError, match="another estimator than a TangentRegressor"):
        TangentRegressor.load(saved)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 2}, "format 2"),
        ({"labels": ["O8", []]}, "do not fit together"),
        ({"arguments": {"backbone": {"eval": "1"}}}, "do not fit together"),
        ({"status": "proven"}, "do not fit together"),
        ({"files": {"estimator.safetensors": "", "../saved/estimator.json": ""}}, "do not fit together"),
        ({"files": {"estimator.safetensors": 64 * "0"}}, "not as it was saved"),
        ({"files": {}}, "do not fit together"),
        ({"files": {"estimator.safetensors": "", "a\0b": ""}}, "do not fit together"),
        ({"files": {"estimator.safetensors": "", 5000 * "a": ""}}, "do not fit together"),
        ({"tail": {}}, "description of its tail"),
        ({"state": {"n_features_in_": 64, "predict": 1}}, "no saved estimator"),
        ({"labels": None}, "do not fit together"),
        ({"labels": ["<i8", [1]]}, "do not fit together"),
        ({"labels": ["object", [[1], [2], [3]]]}, "no saved estimator"),
        ({"labels": ["<U400000000", ["a", "b", "c"]]}, "do not fit together"),
        ({"arguments": {"backbone": "hf-hub:another/model"}}, "do not fit together"),
    ],
)
def test_a_strange_folder_is_refused(saved, tmp_path, change, error):
    for name in ("estimator.json", "estimator.safetensors"):
        (tmp_path / name).write_bytes((saved / name).read_bytes())
    said = json.loads((tmp_path / "estimator.json").read_text(encoding="utf-8")) | change
    (tmp_path / "estimator.json").write_text(json.dumps(said))
    with pytest.raises((FormatError, IntegrityError), match=error):
        TangentClassifier.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("delta/head.bias", float("nan") * torch.ones(3).double()), ("scaler/mean_", None), ("scaler/transform", 1)],
)
def test_strange_tensors_are_refused_or_left_out(saved, tmp_path, name, value):
    tensors = load_file(saved / "estimator.safetensors")
    if value is None:
        del tensors[name]
    else:
        tensors[name] = torch.as_tensor(value)
    save_file(tensors, tmp_path / "estimator.safetensors")
    said = json.loads((saved / "estimator.json").read_text(encoding="utf-8"))
    said["files"]["estimator.safetensors"] = file_digest(tmp_path / "estimator.safetensors")
    (tmp_path / "estimator.json").write_text(json.dumps(said))
    if name == "scaler/transform":
        assert callable(TangentClassifier.load(tmp_path).scaler_.transform)
    else:
        with pytest.raises(FormatError, match="do not fit together"):
            TangentClassifier.load(tmp_path)
