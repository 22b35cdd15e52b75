"""The scikit-learn face: its own checks, and agreement with what it wraps."""

from __future__ import annotations

import subprocess
import sys
import warnings
from fractions import Fraction
from functools import partial
from typing import get_type_hints

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from taftcache.errors import ArgumentError, DataError, RecipeError, SolveError, TaftcacheError
from taftcache.estimator import TangentClassifier, TangentRegressor, _moments
from taftcache.objective.rsl import RSL
from taftcache.solve.minimise import minimise
from taftcache.tangent.spec import TangentSpec
from tests.pictures import pictures
from tests.quick import known  # noqa: F401
from tests.solve.problems import case, labels, minimised, rows, tokens

WEIGHTS = "check_sample_weight_equivalence_on_dense_data"


pytestmark = pytest.mark.usefixtures("known")


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [TangentClassifier(), TangentRegressor()],
    expected_failed_checks=lambda _: {WEIGHTS: "a row that is there twice is left out once where λ is chosen"},
)
@pytest.mark.parametrize("ridges", [[1e-6, 1e-3, 1.0], pytest.param(None, marks=pytest.mark.full)], ids=["few", "all"])
def test_sklearns_own_checks(estimator, check, ridges, monkeypatch):
    """They are about what an estimator does, not about how well it chooses λ."""
    if ridges and check.func.__name__ != WEIGHTS:
        monkeypatch.setattr("taftcache.solve.choosing.HEAD_GRID", ridges)
        monkeypatch.setattr("taftcache.estimator_base.EVERY", 1)
    check(estimator)


def test_features_are_fitted_and_kept_without_timm(tmp_path):
    """It took three of seven seconds, again in every worker of a search."""
    code = (
        "import sys; from taftcache import TangentClassifier as C; fitted = C(ridge=1).fit([[0.0], [1.0]], [0, 1]);"
        "fitted.save(sys.argv[1]); print(C.load(sys.argv[1]).predict([[0.0]]), type(fitted.ridge_).__name__, "
        "*{'timm', 'torchvision', 'torch._dynamo', 'huggingface_hub'} & set(sys.modules))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, tmp_path / "head"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "[0] float\n"


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_what_fit_leaves_is_declared(kind):
    """A type checker saw unions of what several lines assign, and no ``n_features_in_`` at all."""
    x, y = load_iris(return_X_y=True)
    fitted = kind(ridge=1e-2).fit(x, y)
    left = {name for name in vars(fitted) if name.endswith("_")}
    assert {"coef_", "intercept_", "n_iter_", "n_features_in_"} <= left <= get_type_hints(kind).keys()
    said = fitted.predict_proba(x) if kind is TangentClassifier else fitted.predict(x)
    assert {said.dtype, fitted.coef_.dtype, fitted.intercept_.dtype} == {np.dtype(np.float64)}


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_a_weight_is_as_many_rows(kind):
    getattr(estimator_checks, WEIGHTS)(kind.__name__, kind(ridge=1e-2, tolerance=1e-12))


@pytest.mark.filterwarnings("ignore:the best ridge is the")
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


def test_a_ridge_at_an_end_of_those_tried_warns():
    """Features of a millionth had the accuracy of a guess, and nothing was said; nor of columns of noise."""
    x, y = load_iris(return_X_y=True)
    with pytest.warns(UserWarning, match="the best ridge is the largest that was tried.*units"):
        TangentClassifier(scaling="none").fit(1e-6 * x, y)
    noise = np.random.default_rng(0).normal(size=(150, 4))
    with pytest.warns(UserWarning, match="the best ridge is the largest that was tried.*next to nothing of y"):
        TangentClassifier().fit(noise, y)
    with pytest.warns(UserWarning, match="the best ridge is the least that was tried.*decides all of y"):
        TangentRegressor().fit(x, x @ np.ones(4))
    for scaling in ("none", "column"):
        with pytest.warns(UserWarning, match="y has one class, and every prediction is that$"):
            TangentClassifier(scaling=scaling).fit(x, np.zeros(150))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TangentClassifier(scaling="none").fit(x, y)
        TangentClassifier().fit(1e-6 * x, y)


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
    y = y if outputs is None else y * [1.0, 1e4, 1e-3]  # in whatever units each has

    def equal(mine, peers):
        return (np.abs(mine - peers).max(0) <= 1e-12 * np.abs(peers).max(0)).all()

    # 1/N Σ 1/m ‖·‖² + λ/2 ‖·‖² is 2/(N m) of Ridge's objective
    alpha, mean = 1e-2 * len(X) * (outputs or 1) / 2, y.mean(0)
    mine = TangentRegressor(ridge=1e-2, scaling="none").fit(X, y)
    extended = np.c_[X, np.ones(len(X))]  # the intercept begins at the mean, and is penalised from there
    ridge = Ridge(alpha=alpha, fit_intercept=False).fit(extended, y - mean)
    assert equal(mine.predict(X), ridge.predict(extended) + mean)
    assert equal(mine.coef_.T, ridge.coef_.T[:-1])
    assert equal(X @ mine.coef_.T + mine.intercept_, mine.predict(X))
    assert mine.coef_.shape == ((8,) if outputs is None else (3, 8))
    scaled = StandardScaler().fit_transform(X)  # its columns have no mean, so that the intercept stays there
    mine = TangentRegressor(ridge=1e-2).fit(X, y)
    assert equal(mine.predict(X), Ridge(alpha=alpha).fit(scaled, y).predict(scaled))
    assert equal(X @ mine.coef_.T + mine.intercept_, mine.predict(X))


@pytest.mark.filterwarnings("ignore:the best ridge is the")
@pytest.mark.law("Neither what values are measured from nor their units change a prediction but by that")
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


@pytest.mark.law("Neither what values are measured from nor their units change a prediction but by that")
def test_values_may_be_in_any_units(tmp_path):
    """On images, R² of one output was 0.56 beside another in metres, and −4,099 beside the same in tenths of
    millimetres; of values that deviate by 1e-3, alone, it was −0.21."""
    images, values = pictures(12)[0], np.random.default_rng(0).normal(size=(12, 2)) + 3
    spec = TangentSpec(train="bitfit", reset_block=True)
    fit = TangentRegressor("bundled", tangent=spec, store=tmp_path / "store", tolerance=1e-9).fit
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the best ridge")
        both = fit(images, values).predict(images)
        assert np.allclose(fit(images, values * [1, 1e4]).predict(images), both * [1, 1e4], rtol=1e-5)
        alone = fit(images, values[:, 0]).predict(images)
        small = fit(images, values[:, 0] * 1e-3)
        assert np.allclose(small.predict(images), alone * 1e-3, rtol=1e-5)
        ball = clone(small).set_params(ridge=1e-6, radius=0.1)
        inside = [ball.fit(images, values[:, 0] * s).predict(images) / s for s in (1.0, 1e3)]
    assert np.allclose(*inside, rtol=1e-5)
    X, y = load_iris(return_X_y=True)
    large = TangentRegressor(ridge=1e-2).fit(X, (y + 2) * 1e200)
    assert np.allclose(large.coef_ / 1e200, TangentRegressor(ridge=1e-2).fit(X, y + 2).coef_)


def test_values_that_are_all_the_same_are_solved():
    """Their mean was an ulp beside them, of which no solve got rid: it stalled, and warned."""
    X, _ = load_iris(return_X_y=True)
    weights = np.random.default_rng(0).uniform(size=150)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (7.3, 1e6 + 0.1, 0.1, 0.0):
            fitted = TangentRegressor(ridge=1e-2).fit(X, np.full((150, 2), value), weights)
            assert np.array_equal(fitted.predict(X), np.full((150, 2), value))


def test_moments_of_values_are_the_same_in_any_order():
    """Else the order of the rows would draw others to validate λ."""
    g = np.random.default_rng(0)
    values, weights, order = g.normal(size=(500, 2)) * 1e5 + 1e7, g.uniform(size=500), g.permutation(500)
    values[:3], weights[:3] = 1e290, 0  # which weigh nothing
    weights /= weights.mean()
    mean, scale = _moments(values, weights)
    assert np.array_equal((mean, scale), _moments(values[order], weights[order]))
    assert np.allclose(mean, np.average(values[3:], axis=0, weights=weights[3:]), rtol=1e-14)
    spread = np.average((values[3:] - mean) ** 2, axis=0, weights=weights[3:]) ** 0.5
    assert np.allclose(scale, spread, rtol=1e-12)


def test_a_chosen_ridge_moves_coefficients_by_less_than_their_standard_error():
    """λ of a loss within 1 % of the least moved them by 4.8 of these."""
    g = np.random.default_rng(1)
    x = g.normal(size=(10_000, 3))
    y = 2 * x[:, 0] - x[:, 1] + 2 * g.normal(size=10_000)
    assert np.abs(TangentRegressor().fit(x, y).coef_ - LinearRegression().fit(x, y).coef_).max() < 2 / 100


WRONG = {
    "ridge": ["foo", None, True, [0.1, 1], 0, -1, np.nan, np.inf],
    "radius": ["auto", [1.0, 2.0], True, 0],
    "tolerance": ["auto", "decisive", None, 0, -1, np.nan],
    "max_passes": [1.5, "10", None, 0, np.inf, 1e308],
    "memory": [1.5, "2GiB", None, -1],
    "tangent": ["full", {"blocks": 1}],
    "backbone": [("state", "config"), ({},)],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_arguments_that_cannot_be_are_named(kind, name, value):
    """With one and the same correction, whatever is wrong with them."""
    X, y = load_iris(return_X_y=True)
    do = []
    for wrong in (value, WRONG[name][0]):
        with pytest.raises(ArgumentError, match=f"^{name} cannot be ") as refused:
            kind(**{name: wrong}).fit(X, y)
        do.append(refused.value.do)
    assert do[0] == do[1]


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_what_has_no_values_of_its_own_is_refused(kind):
    """Of a masked array scikit-learn takes what lies below the mask."""
    X, y = load_iris(return_X_y=True)
    hidden = np.ma.masked_greater(X, 5)
    fitted = kind(ridge=0.1).fit(X, y)
    for call in (
        lambda: kind().fit(hidden, y),
        lambda: kind().fit(X, np.ma.masked_equal(y, 1)),
        lambda: kind().fit(X, y, np.ma.masked_equal(np.ones(len(y)), 1)),
        lambda: fitted.predict(hidden),
    ):
        with pytest.raises(DataError, match="masked values"):
            call()
    for tensor, says in ((torch.tensor(X).to_sparse(), "sparse"), (torch.empty(X.shape, device="meta"), "values")):
        with pytest.raises(DataError, match=says):
            kind().fit(tensor, y)
    assert np.array_equal(kind(ridge=0.1).fit(np.ma.masked_greater(X, 99), y).coef_, fitted.coef_)


def test_class_weights_are_a_mapping():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ArgumentError, match="no mapping of classes"):
        TangentClassifier(class_weight=np.ones(3)).fit(X, y)


def test_whole_numbers_may_be_floats_and_a_ball_needs_no_ridge():
    X, y = load_iris(return_X_y=True)
    assert TangentClassifier(ridge=0, radius=0.5, max_passes=1e3, memory=1e9).fit(X, y).solution_.converged


@pytest.mark.parametrize("name", ["alpha", "kappa"])
def test_a_constant_of_the_loss_is_corrected_by_its_own_words(name):
    with pytest.raises(ArgumentError, match=f"^{name} of") as refused:
        TangentClassifier(loss="rsl", **{name: 0}).fit(*load_iris(return_X_y=True))
    assert (
        refused.value.do
        == {"alpha": "a number above 0: 1 is the paper's", "kappa": "a number above 0: 15 is usual"}[name]
    )


@pytest.mark.parametrize("scaling", ["column", "none"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_coefficients_are_those_of_the_decision_function(classes, scaling, tmp_path):
    X, y = load_iris(return_X_y=True)
    X, y = X[y < classes], y[y < classes]
    fitted = TangentClassifier(ridge=1e-2, scaling=scaling).fit(X, y)
    fitted.save(tmp_path / "saved")
    for model in (fitted, TangentClassifier.load(tmp_path / "saved")):
        rows = 1 if classes == 2 else classes
        assert (model.coef_.shape, model.intercept_.shape) == ((rows, 4), (rows,))
        decided = model.decision_function(X).reshape(len(X), rows)
        assert np.allclose(X @ model.coef_.T + model.intercept_, decided, atol=1e-9)
    assert TangentRegressor(ridge=1e-2).fit(X, np.c_[y, y]).coef_.shape == (2, 4)


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_a_tangent_of_features_is_refused(kind):
    """It had no part in anything."""
    with pytest.raises(ArgumentError, match="of features only a head is"):
        kind(tangent=TangentSpec(train="full")).fit(*load_iris(return_X_y=True))


@pytest.mark.parametrize("classes", [10, 3, 2])
def test_classifier_on_features_is_sklearns_logistic_regression(classes):
    """Where classes weigh alike, and the bias begins at 0, from where it is penalised. Of two classes scikit-learn has
    one vector, the difference of ours: half of its square is that of both."""
    X, y = digits()
    X, y = X[y < classes], y[y < classes]
    mine = TangentClassifier(scaling="none", ridge=1e-2, tolerance=1e-8, class_weight="balanced").fit(X, y)
    extended = np.c_[X, np.ones(len(X))]
    peer = LogisticRegression(
        C=(2 if classes == 2 else 1) / (1e-2 * len(X)),
        fit_intercept=False,
        tol=1e-10,
        max_iter=5000,
        class_weight="balanced",
    ).fit(extended, y)
    assert mine.solution_.converged
    assert np.allclose(mine.predict_proba(X), peer.predict_proba(extended), atol=1e-5)


@pytest.mark.parametrize(("weights", "classes"), [(None, 3), ({0: 1.0, 1: 5.0, 2: 0.5}, 3), ({0: 1.0, 1: 5.0}, 2)])
def test_a_bias_that_is_next_to_unpenalised_makes_sklearns_logistic_regression(weights, classes):
    """Without the large column it is another model: the pages said that it was about the same."""
    X, y = load_iris(return_X_y=True)
    X, y = X[y >= 3 - classes], y[y >= 3 - classes] - (3 - classes)  # of two classes, those that overlap
    X = StandardScaler().fit_transform(X)
    each = np.ones(len(y)) if weights is None else np.array([weights[k] for k in y])
    C = (2 if classes == 2 else 1) / (1e-2 * each.sum())
    peer = LogisticRegression(C=C, tol=1e-10, max_iter=5000, class_weight=weights).fit(X, y)
    mine = TangentClassifier(scaling="none", ridge=1e-2, tolerance=1e-8, class_weight=weights)
    free = np.c_[X, np.full(len(X), 1000.0)]
    assert np.allclose(clone(mine).fit(free, y).predict_proba(free), peer.predict_proba(X), atol=4e-5)
    if weights is None:
        assert np.abs(mine.fit(X, y).predict_proba(X) - peer.predict_proba(X)).max() > 0.1


def rare(seed: int, tells: float) -> tuple[np.ndarray, np.ndarray]:
    """4,000 rows, 3 % of them of a class of which two columns of 30 say something."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(4000, 30))
    score = tells * (0.4 * X[:, 0] + 0.3 * X[:, 1]) + rng.logistic(size=4000)
    return X, np.where(score > np.quantile(score, 0.97), "rare", "usual")


@pytest.mark.filterwarnings("ignore:the best ridge is the largest")
@pytest.mark.parametrize("tells", [0.0, 1.0])
def test_a_rare_class_is_no_worse_than_its_frequency(tells):
    """A bias that was penalised from 0 put log loss at 0.145 where the frequencies have 0.136."""
    mine, prior = [], []
    for seed in range(3):
        X, y = rare(seed, tells)
        fitted = TangentClassifier().fit(X[:2000], y[:2000])
        share = (y[:2000] == "rare").mean()
        mine.append(log_loss(y[2000:], fitted.predict_proba(X[2000:])))
        prior.append(log_loss(y[2000:], np.full((2000, 2), [share, 1 - share])))
    assert np.mean(mine) < np.mean(prior) + 5e-4
    assert not tells or np.mean(mine) < np.mean(prior)


def test_where_a_ridge_leaves_nothing_the_frequencies_are_left(tmp_path):
    """As the loss weighs the rows. A class without weight is as the lightest."""
    X, y = load_iris(return_X_y=True)
    weights = np.where(y == 0, 2.0, 1.0)
    fitted = TangentClassifier(ridge=1e6, class_weight={0: 2, 1: 1, 2: 1}).fit(X, y, weights)
    assert fitted.predict_proba(X) == pytest.approx(np.tile([4 / 6, 1 / 6, 1 / 6], (150, 1)), abs=1e-4)
    fitted.save(tmp_path / "saved")
    assert np.array_equal(TangentClassifier.load(tmp_path / "saved").predict_proba(X), fitted.predict_proba(X))
    none = TangentClassifier(ridge=1e6).fit(X, y, np.where(y == 1, 0, 1 + (y == 2)))
    assert none.predict_proba(X[:1]) == pytest.approx(np.array([[1 / 4, 1 / 4, 2 / 4]]), abs=1e-4)
    assert not TangentClassifier(ridge=1e6, loss="rsl").fit(X, y, weights).base_.state["head.bias"].any()


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


@pytest.mark.usefixtures("mac")
def test_an_estimator_on_a_mac_predicts_where_it_was_solved():
    X, y = load_iris(return_X_y=True)
    found = TangentClassifier(ridge=1e-2, device="auto").fit(X, y).predict(X)
    assert np.array_equal(found, TangentClassifier(ridge=1e-2).fit(X, y).predict(X))


def test_of_class_weights_only_the_ratios_count():
    """Ten times as much for every class divided λ by ten; a weight of a class is one of each of its rows."""
    X, y = load_iris(return_X_y=True)
    made = TangentClassifier(ridge=1e-2, tolerance=1e-10)
    plain = made.fit(X, y).coef_
    assert np.allclose(clone(made).set_params(class_weight=dict.fromkeys(range(3), 10)).fit(X, y).coef_, plain)
    by_class = clone(made).set_params(class_weight={0: 1, 1: 2, 2: 3}, scaling="none").fit(X, y).coef_
    by_row = clone(made).set_params(scaling="none").fit(X, y, y + 1).coef_
    assert np.allclose(by_class, by_row)


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 1, 1: 2, 2: 3}])
def test_a_weight_is_as_many_rows_whatever_classes_weigh(class_weight):
    """ "balanced" counted rows, whatever they weigh."""
    X, y = load_iris(return_X_y=True)
    times = np.arange(150) % 3 * (3 - y)
    made = TangentClassifier(ridge=1e-2, tolerance=1e-10, class_weight=class_weight)
    repeated = made.fit(np.repeat(X, times, axis=0), np.repeat(y, times)).coef_
    assert np.allclose(clone(made).fit(X, y, times).coef_, repeated, atol=1e-6)


def test_a_class_whose_rows_weigh_nothing_is_balanced_with_none():
    X, y = load_iris(return_X_y=True)
    fitted = TangentClassifier(ridge=1e-2, class_weight="balanced").fit(X, y, y != 1)
    assert np.isfinite(fitted.coef_).all()
    assert (fitted.predict(X[y != 1]) == y[y != 1]).all()


@pytest.mark.parametrize("kind", ["regressor", "rsl", "cross_entropy"])
def test_rows_that_weigh_next_to_nothing_have_next_to_no_part_in_lambda(kind):
    """Noise of weight 10⁻⁹ chose λ = 10 for 400 rows that λ = 10⁻⁴ explains: the rows left out all counted alike."""
    random = np.random.default_rng(0)
    X, way = random.standard_normal((500, 20)), random.standard_normal((20, 3))
    y, noise = (X @ way).argmax(1), random.integers(0, 3, 400)
    weights = np.r_[np.ones(100), np.full(400, 1e-9)]
    if kind == "regressor":
        of_x = X[:100] @ way[:, 0] + 0.01 * random.standard_normal(100)
        asked, targets = TangentRegressor(), np.r_[of_x, 10 * random.standard_normal(400)]
    else:
        asked, targets = TangentClassifier(loss=kind), np.r_[y[:100], noise]
    light, none = (clone(asked).fit(X, targets, sample_weight=w).ridge_ for w in (weights, weights * (weights > 0.5)))
    assert 0.05 < light / none < 20  # the next λ at most, for the folds are drawn among all rows


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_rows_of_weight_zero_have_no_part_in_lambda(kind):
    X, y = load_iris(return_X_y=True)
    counted = y > 0
    masked, removed = kind().fit(X, y, counted * 1.0), kind().fit(X[counted], y[counted])
    if kind is TangentRegressor:
        assert masked.ridge_ == removed.ridge_
    assert masked.score(X[counted], y[counted]) >= removed.score(X[counted], y[counted]) - 0.02


def test_data_frames_that_a_notebook_asks_of_transformers_change_nothing():
    pytest.importorskip("pandas")
    X, y = load_iris(return_X_y=True)
    with config_context(transform_output="pandas"):
        fitted = TangentClassifier(ridge=1e-2).fit(X, y)
        assert (fitted.predict(X) == TangentClassifier(ridge=1e-2).fit(X, y).predict(X)).all()


@pytest.mark.parametrize("kind", [TangentClassifier, TangentRegressor])
def test_a_fit_that_is_refused_leaves_the_one_before(kind):
    X, y = load_iris(return_X_y=True)
    model = kind(ridge=1e-2, scaling="none").fit(X, y)
    before, there = model.predict(X), set(vars(model))
    with pytest.raises(SolveError):
        model.fit(X[:, :2] * 1e200, y + 5)
    assert np.array_equal(model.predict(X), before)
    assert set(vars(model)) == there
    new = kind(ridge=1e-2, scaling="none")
    with pytest.raises(SolveError):
        new.fit(X * 1e200, y)
    assert set(vars(new)) == set(new.get_params())


def test_a_fit_that_is_interrupted_leaves_the_one_before(monkeypatch):
    def stop(passes: int, residual: float) -> None:
        raise KeyboardInterrupt

    held = case()
    model = TangentClassifier((held.base.state, held.base.config), ridge=0.1).fit(tokens(), labels())
    before, there = model.predict_proba(tokens()), set(vars(model))
    monkeypatch.setattr("taftcache.estimator_base.minimise", partial(minimise, on_pass=stop))
    with pytest.raises(KeyboardInterrupt):
        model.set_params(ridge=1.0).fit(tokens(), labels())
    assert np.array_equal(model.predict_proba(tokens()), before)
    assert set(vars(model)) == there


@pytest.mark.parametrize("wrong", [{"tolerance": np.nan}, {"tolerance": -1}, {"ridge": np.inf}, {"device": "gpu"}])
def test_numbers_that_no_solve_can_have_are_refused(wrong):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(TaftcacheError, match=f"{next(iter(wrong))}"):
        TangentClassifier(**{"ridge": 1e-2, **wrong}).fit(X, y)


def test_features_beyond_float32_are_named():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(SolveError, match="beyond what float32 holds"):
        TangentClassifier(scaling="none", ridge=1e-2).fit(X * 1e20, y)


def test_rows_that_do_not_fit_the_tail_are_refused():
    held = case()
    with pytest.raises(DataError, match="do not fit the tail"):
        TangentClassifier((held.base.state, held.base.config), ridge=0.1).fit(tokens()[:, :, :-1], labels())


def test_classes_of_bytes_are_named_as_what_is_wrong():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ArgumentError, match="classes cannot be of this type\n  got: bytes_"):
        TangentClassifier().fit(X, np.array([b"a", b"b", b"c"])[y])


@pytest.mark.law("A classifier of features does not depend on the order of its rows.")
def test_equal_rows_of_unequal_weights_have_no_order():
    """Each went into the fold that its place gave it: λ was 0.001 one way round and 1 the other."""
    x, y = np.array([[1.0], [0], [-1], [0], [1], [-1], [0]]), np.array([0, 1, 1, 0, 0, 0, 1])
    w = np.array([7.0, 1, 2, 8, 3, 1, 1])
    with warnings.catch_warnings(action="ignore"):
        one, other = (TangentClassifier().fit(x[::step], y[::step], w[::step]) for step in (1, -1))
    assert one.ridge_ == other.ridge_
    assert np.allclose(one.predict_proba(x), other.predict_proba(x), atol=1e-6)
    for seed in range(6):  # whose sum has other last bits in another order
        g = np.random.default_rng(seed)
        x, y, w, order = g.normal(size=(60, 4)), g.integers(0, 3, 60), g.uniform(size=60), g.permutation(60)
        with warnings.catch_warnings(action="ignore"):
            one, other = (TangentClassifier().fit(x[k], y[k], w[k]) for k in (np.arange(60), order))
        assert one.ridge_ == other.ridge_


def test_of_weights_only_the_ratios_count():
    """Their sum was infinite: the model was zero, certified to 0, or a division by zero."""
    g = np.random.default_rng(0)
    x = g.normal(size=(9, 2))
    y, values = (x[:, 0] > 0).astype(int), x[:, 1] + 1
    plain = TangentClassifier(ridge=0.1).fit(x, y).coef_
    for size in (1e308, 1e-320):
        assert np.allclose(TangentClassifier(ridge=0.1, class_weight={0: size, 1: size}).fit(x, y).coef_, plain)
        assert np.allclose(TangentClassifier(ridge=0.1).fit(x, y, np.full(9, size)).coef_, plain)
        weighed = TangentRegressor(ridge=1.0, scaling="none").fit(x, values, np.full(9, size))
        assert np.allclose(weighed.coef_, TangentRegressor(ridge=1.0, scaling="none").fit(x, values).coef_)
    for wrong, said in (({"class_weight": {0: 0, 1: 0}}, "no row a weight"), ({"tolerance": 2}, "tolerance cannot be")):
        with pytest.raises(ArgumentError, match=said):
            TangentClassifier(ridge=0.1, **wrong).fit(x, y)


def test_the_losses_that_choose_a_ridge_are_of_solved_models():
    """Each was warm from a larger λ and stopped early, so that lesser ones looked regularised: on iris 10⁻⁴ won."""
    x, y = load_iris(return_X_y=True)
    some = np.random.default_rng(1).permutation(150)[:120]
    found = TangentClassifier().fit(x[some], y[some])
    losses = {round(np.log10(at.ridge)): at.loss for at in found.ridge_choice_.curve}
    # by Newton's method in 80 bits on the same folds
    assert losses[-4] == pytest.approx(0.1363, rel=0.01)
    assert losses[-3] == pytest.approx(0.1027, rel=0.01)
    assert found.ridge_ == 1e-3


def test_rounding_in_columns_that_cancel_is_allowed_for():
    """Two columns of 10⁵ that differ by 1: what rounding puts wrong in the gradient was 700 times what was allowed."""
    false = 0
    for seed in range(20):
        u, e = np.random.default_rng(seed).normal(size=(2, 6))
        x = np.c_[np.zeros(6), 1e5 * u, 1e5 * u + e]
        found = TangentRegressor(ridge=1.0, scaling="none", tolerance=1e-6).fit(x, e)
        w = [Fraction(float(v)) for v in found.solution_.value]
        gradient = list(w)  # λ is one
        for row, target in zip(found._rows(x)[:, 0], (e - found.y_mean_) / found.y_scale_, strict=True):
            full = [*(Fraction(float(v)) for v in row), Fraction(1)]
            left = sum(p * q for p, q in zip(full, w, strict=True)) - Fraction(float(target))
            gradient = [g + 2 * left / 6 * p for g, p in zip(gradient, full, strict=True)]
        exact = float(sum(g * g for g in gradient)) ** 0.5
        said = found.solution_.certificate
        false += exact > said.gradient + said.rounding
    assert false == 0
