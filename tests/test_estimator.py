"""The scikit-learn face: its own checks, and agreement with what it wraps."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.spec import BackboneSpec, backbone_of
from taftcache.cache.store import FeatureStore
from taftcache.errors import (
    ArgumentError,
    BackboneError,
    DataError,
    RecipeError,
    SolveError,
    StoreError,
    TaftcacheError,
    UnreadableImage,
)
from taftcache.estimator import TangentClassifier, TangentRegressor
from taftcache.objective.rsl import RSL
from taftcache.tangent.spec import TangentSpec
from tests.quick import known  # noqa: F401
from tests.solve.problems import case, labels, minimised, rows, tokens

WEIGHTS = "check_sample_weight_equivalence_on_dense_data"


pytestmark = pytest.mark.usefixtures("known")


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [TangentClassifier(), TangentRegressor()],
    expected_failed_checks=lambda _: {WEIGHTS: "a row that is there twice is left out once where λ is chosen"},
)
def test_sklearns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_a_weight_is_as_many_rows(kind):
    getattr(estimator_checks, WEIGHTS)(kind.__name__, kind(ridge=1e-2, tolerance=1e-12))


def test_the_default_ridge_is_chosen_from_the_rows():
    """In [0, 1] as in [0, 1000]: rows of another scale ask for another λ."""
    X, y = digits()
    small, large = (TangentClassifier(scaling="none", loss="rsl").fit(c * X[:200], y[:200]) for c in (1, 1000))
    assert large.ridge_ >= 100 * small.ridge_
    assert abs(small.score(X[200:], y[200:]) - large.score(1000 * X[200:], y[200:])) < 0.05


def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[:300] / 16, y[:300]


LOADERS = [
    pytest.param(load_iris, marks=pytest.mark.full),
    load_wine,
    pytest.param(load_breast_cancer, marks=pytest.mark.full),
    pytest.param(load_digits, marks=pytest.mark.full),
]


@pytest.mark.parametrize("load", LOADERS)
def test_the_defaults_do_what_a_scaled_logistic_regression_does(load):
    """Within two points over five folds, whatever the units of the columns."""
    X, y = load(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    peer = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    mine, theirs = (cross_val_score(model, X, y, cv=folds).mean() for model in (TangentClassifier(), peer))
    assert mine > theirs - 0.02


@pytest.mark.law("A classifier of features does not depend on the order of its rows.")
def test_the_order_of_the_rows_is_no_matter():
    """λ too: a column's mean has other last bits in another order, which drew other rows to choose λ by."""
    X, y = (part[::2] for part in load_iris(return_X_y=True))
    fitted = [
        TangentClassifier().fit(X[order], y[order]) for order in map(np.random.default_rng(0).permutation, [75] * 2)
    ]
    assert len({one.ridge_ for one in fitted}) == 1
    for other in fitted[1:]:
        assert np.allclose(other.predict_proba(X), fitted[0].predict_proba(X), atol=1e-5)


def test_the_units_of_a_column_are_no_matter():
    X, y = load_iris(return_X_y=True)
    other = X * [1e-3, 1.0, 1e3, 50.0] + [0.0, 5.0, 0.0, -200.0]
    weights = np.linspace(0.5, 2, len(y))
    mine, moved = (TangentClassifier(ridge=1e-3, tolerance=1e-8).fit(rows, y, weights) for rows in (X, other))
    assert np.allclose(mine.predict_proba(X), moved.predict_proba(other), atol=1e-6)
    assert np.allclose(other @ moved.coef_.T + moved.intercept_, moved.decision_function(other))
    fitted = TangentRegressor(ridge=1e-3).fit(other, X @ [1, 2, 3, 4], weights)
    assert np.allclose(other @ fitted.coef_ + fitted.intercept_, fitted.predict(other))
    assert fitted.score(other, X @ [1, 2, 3, 4]) > 0.99
    constant = TangentClassifier(ridge=1e-3, tolerance=1e-8).fit(np.c_[X, np.ones(len(X))], y, weights)
    assert np.allclose(constant.predict_proba(np.c_[X, np.ones(len(X))]), mine.predict_proba(X), atol=1e-6)
    with pytest.raises(RecipeError, match="no scaling"):
        TangentClassifier(scaling="all").fit(X, y)


def test_a_column_far_larger_than_the_others_does_not_hide_what_a_ridge_does():
    """Of wine's gradient at zero nearly all is one column's: a solve that looks at the rest of it as 1 % sees none."""
    X, y = load_wine(return_X_y=True)
    fitted = TangentClassifier(scaling="none").fit(X[::2], y[::2])
    assert len({point.loss for point in fitted.ridge_choice_.curve}) > 2
    assert fitted.score(X[1::2], y[1::2]) > 0.85


def test_a_solve_that_stopped_short_warns():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(ConvergenceWarning, match=r"\(max_passes\): raise max_passes"):
        TangentClassifier(ridge=1e-6, max_passes=3).fit(X, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_columns_that_tell_nothing_are_solved_by_the_base_point(classes):
    """The gradient is rounding at the optimum and at Δw = 0 alike; that was called stalled."""
    y = np.arange(21 * classes) % classes
    fitted = TangentClassifier(ridge=1e-3).fit(np.full((len(y), 3), 7.0), y)
    assert fitted.solution_.converged
    assert fitted.solution_.certificate.distance < 1e-9
    assert fitted.predict_proba([[7.0] * 3]) == pytest.approx(np.full((1, classes), 1 / classes))


@pytest.mark.parametrize("outputs", [None, 3])
def test_regressor_on_features_is_sklearns_ridge(outputs):
    X, y = make_regression(60, 8, n_targets=outputs or 1, bias=300.0, random_state=0)
    # 1/N Σ 1/m ‖·‖² + λ/2 ‖·‖² is 2/(N m) of Ridge's objective
    alpha, mean = 1e-2 * len(X) * (outputs or 1) / 2, y.mean(0)
    mine = TangentRegressor(ridge=1e-2, scaling="none").fit(X, y)
    extended = np.c_[X, np.ones(len(X))]  # the intercept begins at the mean, and is penalised from there
    ridge = Ridge(alpha=alpha, fit_intercept=False).fit(extended, y - mean)
    assert np.allclose(mine.predict(X), ridge.predict(extended) + mean, rtol=1e-9, atol=1e-9)
    assert np.allclose(mine.predict(X), X @ mine.coef_.T + mine.intercept_, rtol=1e-9)
    assert mine.coef_.shape == ((8,) if outputs is None else (3, 8))
    scaled = StandardScaler().fit_transform(X)  # its columns have no mean, so that the intercept stays there
    mine = TangentRegressor(ridge=1e-2).fit(X, y)
    assert np.allclose(mine.predict(X), Ridge(alpha=alpha).fit(scaled, y).predict(scaled), rtol=1e-9, atol=1e-9)


@pytest.mark.law("What values are measured from changes no prediction but by that")
def test_values_may_be_measured_from_anywhere(tmp_path):
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(80, 60)), rng.uniform(size=80)
    y = X @ rng.normal(size=60) * 0.3 + rng.normal(size=80) * 3
    near, far = (TangentRegressor().fit(X, y + shift, weights) for shift in (0.0, 1e5))
    assert near.ridge_ == far.ridge_
    assert np.allclose(far.predict(X) - 1e5, near.predict(X), atol=1e-6)
    far.save(tmp_path / "saved")
    assert np.array_equal(TangentRegressor.load(tmp_path / "saved").predict(X), far.predict(X))
    images, _ = pictures(12)
    spec = TangentSpec(train="head")
    near, far = (
        TangentRegressor("bundled", tangent=spec, ridge=1e-2).fit(images, np.arange(12.0) + s) for s in (0.0, 1e5)
    )
    assert np.allclose(far.predict(images) - 1e5, near.predict(images), atol=1e-5)


def test_a_fit_to_images_keeps_nothing_of_one_to_features():
    fitted = TangentClassifier(ridge=1e-2).fit(*digits())
    assert fitted.intercept_.shape == (10,)
    images, labels = pictures(12)
    assert not hasattr(fitted.set_params(backbone="bundled").fit(images, labels), "intercept_")


WRONG = {
    "ridge": ["foo", None, True, [0.1, 1]],
    "radius": ["auto", [1.0, 2.0], True],
    "tolerance": ["auto", None],
    "max_passes": [1.5, "10", None],
    "memory": [1.5, "2GiB", None],
    "tangent": ["full", {"blocks": 1}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_arguments_of_another_type_are_named(kind, name, value):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ArgumentError, match=f"^{name} is of no type"):
        kind(**{name: value}).fit(X, y)


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


def test_classifier_on_features_is_sklearns_logistic_regression():
    X, y = digits()
    mine = TangentClassifier(scaling="none", ridge=1e-2, tolerance=1e-8).fit(X, y)
    extended = np.c_[X, np.ones(len(X))]
    peer = LogisticRegression(C=1 / (1e-2 * len(X)), fit_intercept=False, tol=1e-10, max_iter=5000).fit(extended, y)
    assert mine.solution_.converged
    assert np.allclose(mine.predict_proba(X), peer.predict_proba(extended), atol=1e-5)


def test_works_in_pipelines_searches_and_clones():
    X, y = digits()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), TangentClassifier()), {"tangentclassifier__ridge": [1e-3, 1e-1]}, cv=3
    ).fit(X, y)
    assert search.best_score_ > 0.8
    again = clone(search.best_estimator_).fit(X, y)
    assert np.array_equal(again.predict(X), search.best_estimator_.predict(X))
    auto = TangentClassifier(ridge="auto").fit(X, y)
    assert auto.ridge_ == auto.ridge_choice_.ridge > 0
    assert len(auto.ridge_choice_.curve) > 5


def test_cached_rows_give_minimises_own_solution():
    made = case()
    state = {name: tensor.float() for name, tensor in made.base.state.items() if not name.startswith("head.")}
    mine = TangentClassifier((state, made.base.config), tangent=made.base.spec, kappa=5.0, ridge=1e-2)
    mine.fit(tokens(), np.array(list("abcd"))[labels()])
    solution = minimised(mine.base_, rows(), RSL(alpha=2.0, kappa=5.0), 1e-2)  # √4
    assert np.array_equal(mine.coef_, solution.value.numpy())
    assert mine.score(tokens(), np.array(list("abcd"))[labels()]) > 0.9


@pytest.mark.slow
def test_images_through_a_backbone():
    images = load_digits().images[:40].astype(np.float64)
    pictures = [np.repeat((image * 15).astype(np.uint8)[:, :, None], 3, 2) for image in images]
    mine = TangentClassifier(BackboneSpec(weights="bundled"), ridge=1e-3, tolerance=1e-4)
    targets = load_digits().target[:40]
    assert mine.fit(pictures, targets).score(pictures, targets) > 0.9
    assert torch.isfinite(mine.solution_.value).all()


def pictures(count: int = 40) -> tuple[list[np.ndarray], np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    pixels = (images[:count].reshape(-1, 8, 8) * 15).astype(np.uint8)
    return [np.repeat(image[:, :, None], 3, 2) for image in pixels], labels[:count]


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
        assert sorted(store.sample_ids()) == sorted(map(str, files))
    monkeypatch.setattr(Cut, "prefix", None)
    again = clone(mine).fit([str(file) for file in files], targets, weights)
    assert np.array_equal(again.coef_, mine.coef_)
    monkeypatch.undo()
    others = clone(mine).set_params(store=None).fit(images, targets, weights)
    assert np.allclose(others.decision_function(arrays), mine.decision_function(files), rtol=1e-3, atol=1e-2)
    loaded = pickle.loads(pickle.dumps(mine))
    assert np.array_equal(loaded.predict(files), mine.predict(files))
    with pytest.raises(StoreError, match="other images"):
        clone(mine).fit(files[:30], targets[:30])
    (tmp_path / "0.png").write_bytes(b"")
    with pytest.raises(UnreadableImage, match=r"0\.png"):
        clone(mine).set_params(store=None).fit(files, targets)


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
        ([tmp_path / "text.png"], "text.png does not decode"),
        (
            [arrays[0], np.zeros((8, 8, 3))],
            r"at index 1 is none .*\n  got: float64 \[8, 8, 3\].*\n  try: .* uint8 \[h, w",
        ),
        ([arrays[0]] * 40 + [None], "at index 40 is none that can be read\n  got: NoneType"),
    ):
        with pytest.raises(DataError, match=says):
            mine.predict(images)
        with pytest.raises(DataError, match=says):
            clone(mine).fit(images, ["a"] * len(images))
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
        ("ridge", 0, SolveError),
        ("alpha", "much", SolveError),
        ("alpha", None, SolveError),
        ("alpha", [1.0], SolveError),
        ("alpha", -1.0, SolveError),
        ("kappa", -1.0, SolveError),
        ("loss", "squared_error", SolveError),
        ("class_weight", {"zebra": 2}, ValueError),
        ("class_weight", "much", RecipeError),
        ("class_weight", {"a": -1.0, "b": 1.0}, RecipeError),
        ("scaling", "much", RecipeError),
        ("backbone", 3, RecipeError),
        ("device", "gpu", RecipeError),
    ):
        with pytest.raises(kind) as refused:
            clone(mine).set_params(**{name: wrong}).fit(arrays, targets)
        assert not isinstance(refused.value, TaftcacheError) or refused.value.do or name in ("backbone", "device")
        assert isinstance(refused.value, ValueError) or name in ("backbone", "device"), "as scikit-learn's own are"
    for loss in ("mse", "cross_entropy"):
        with pytest.raises(
            SolveError, match=r"not finite\n  got: (.|\n)*\n  try: look for extreme numbers in the rows"
        ):
            TangentClassifier(scaling="none", loss=loss, ridge=1.0).fit(np.eye(4) * 1e200, targets)
    X, y = digits()
    for fitted in (TangentClassifier(), TangentRegressor()):
        with pytest.raises(ArgumentError, match="sample_weight is negative"):
            fitted.fit(X[:3], y[:3], [1.0, -1.0, 1.0])
    with pytest.raises(ArgumentError, match="types that have no order\n  got: int, str"):
        TangentClassifier().fit(X[:4], np.array(["a", 1, "b", 2], object))
    with pytest.raises(BackboneError, match="unknown device"):
        TangentClassifier(device="gpu").fit(X, y)
    assert TangentClassifier(device="auto").fit(X, y).score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_name_is_a_model_or_its_weights(tmp_path):
    assert backbone_of("bundled") == BackboneSpec(weights="bundled")
    assert backbone_of("deit_tiny_patch16_224") == BackboneSpec(model="deit_tiny_patch16_224", weights="pretrained")
    assert backbone_of(str(tmp_path)) == BackboneSpec(weights=str(tmp_path))
    fitted = TangentClassifier("bundled", ridge=1.0, max_passes=2).fit(pictures()[0][:4], [*"abab"])
    assert fitted.base_.spec.reset_block, "as init writes it"
    assert not clone(fitted).set_params(tangent=TangentSpec()).fit(pictures()[0][:4], [*"abab"]).base_.spec.reset_block
    assert clone(TangentClassifier("deit_tiny_patch16_224")).get_params()["backbone"] == "deit_tiny_patch16_224"


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_rows_of_weight_zero_have_no_part_in_lambda(kind):
    X, y = load_iris(return_X_y=True)
    counted = y > 0
    masked, removed = kind().fit(X, y, counted * 1.0), kind().fit(X[counted], y[counted])
    if kind is TangentRegressor:
        assert masked.ridge_ == removed.ridge_
    assert masked.score(X[counted], y[counted]) >= removed.score(X[counted], y[counted]) - 0.02


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
    with pytest.raises(RecipeError, match="nothing is trained under the name 'foo'"):
        TangentRegressor("bundled", tangent=TangentSpec(train="foo")).fit(images, np.arange(12.0))


def test_one_picture_is_no_list_of_them():
    images, labels = pictures(12)
    fitted = TangentClassifier("bundled", tangent=TangentSpec(train="head"), ridge=1e-2).fit(images, labels)
    with pytest.raises(DataError, match="as one picture"):
        fitted.predict(images[0])


def test_data_frames_that_a_notebook_asks_of_transformers_change_nothing():
    pytest.importorskip("pandas")
    X, y = load_iris(return_X_y=True)
    with config_context(transform_output="pandas"):
        fitted = TangentClassifier(ridge=1e-2).fit(X, y)
        assert (fitted.predict(X) == TangentClassifier(ridge=1e-2).fit(X, y).predict(X)).all()
