"""The tangent student against dense float64 algebra on timm's own modules, and its life in a store."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, SolveError, StoreError
from taftcache.model.component import read_base, read_component
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.recipe_sections import PriorSpec
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.solve.solution import Status
from taftcache.tangent.rows import ArrayRows
from taftcache.teaching.feature_penalty import PenalisedProblem
from taftcache.teaching.lasso import group_lasso, subgradient
from taftcache.teaching.rows import taught_rows
from taftcache.teaching.tangent_student import Teachers, TeacherUse, certificate_at, minimise_taught
from tests.solve.problems import N, case, dense, minimised, rows
from tests.stages.making import commits, recipe
from tests.tangent.vits import make_case
from tests.teaching.making import extract_features, teacher_recipe

LOSS, RIDGE, P = RSL(alpha=1.0, kappa=5.0), 1e-2, 9
OBJECTIVE = Objective(loss=LOSS, ridge=RIDGE)
PRIOR = PriorSpec(teachers=["x"], beta=2.0, sparsity=0.15, shrinkage=1e-2)
SLICES = {"good": slice(0, 5), "junk": slice(5, P)}
FEW = 60  # digits in a store


def features(*, jacobian: bool) -> tuple[Tensor, Tensor]:
    """J_φ [N·d,P'] (where it is asked for: it takes a second) and φ₀ [N,d] of timm's modules without the head, by
    torch.func."""
    held = case()
    names = [n for n in held.base.layout if n not in held.base.config.head_names]
    d = held.base.config.width
    layout = held.base.layout.named(names)
    fixed = {"head.weight": torch.eye(d).double(), "head.bias": torch.zeros(d).double()}
    flat = layout.flatten(held.base.state)

    def phi(vector: Tensor) -> Tensor:
        return held.forward({**layout.views(vector), **fixed})

    J = torch.func.jacrev(phi)(flat).reshape(N * d, -1).detach() if jacobian else flat.new_zeros(0)
    return J, phi(flat).detach()


@cache
def psi() -> Tensor:
    """Five teacher features that φ₀ follows from, and four of noise; centred, of mean square one."""
    generator = torch.Generator().manual_seed(3)
    _, phi = features(jacobian=False)
    good = phi @ torch.randn(phi.shape[1], 5, dtype=torch.float64, generator=generator)
    both = torch.cat([good, torch.randn(N, P - 5, dtype=torch.float64, generator=generator)], 1)
    both = both - both.mean(0)
    return both / both.square().mean(0).sqrt()


@cache  # the same few solutions are looked at by many tests; nobody changes one
def solve(prior: PriorSpec = PRIOR, tolerance: float = 3e-7, **more):
    goal = Goal(tolerance=tolerance, **{k: more.pop(k) for k in ("max_passes",) if k in more})
    arithmetic = Arithmetic(precision=more.pop("precision", "float64"))
    teachers = Teachers(psi=psi(), prior=prior, slices=SLICES)
    return minimise_taught(case().base, rows(), OBJECTIVE, teachers, goal=goal, arithmetic=arithmetic, **more)


@pytest.mark.law("A taught component meets the optimality conditions of dense algebra, and forgets like any")
def test_the_optimality_conditions_hold_in_dense_algebra():
    """∇_Δw = 0 and 0 ∈ ∂_B, with J and J_φ from torch.func and B from a long run of its own."""
    found = solve()
    assert found.status is Status.converged
    # the cache holds float16 tokens, so the dense Jacobians are those of the rounded rows
    J, phi0 = _rounded()
    quadratic = dense(loss=LOSS, ridge=RIDGE)
    centred = phi0 - phi0.mean(0)
    weight = PRIOR.beta / (centred.square().sum() / N)
    part = J.shape[1]
    phi = centred + (J @ found.value[:part]).view(N, -1)
    C, D = (psi().T @ psi() / N).numpy(), (psi().T @ phi / N).numpy()
    start = np.linalg.norm((psi().T @ centred / N).numpy(), axis=1).max()
    tau = PRIOR.sparsity * start
    B = _slow_lasso(C, D, PRIOR.shrinkage, tau)
    slope = quadratic.gradient(found.value)
    slope[:part] += weight * J.T @ (phi - psi() @ torch.from_numpy(B)).reshape(-1) / N
    assert slope.norm() <= 1e-6 * found.certificate.gradient_at_zero
    value = quadratic.value(found.value) + weight * (
        0.5 * (phi - psi() @ torch.from_numpy(B)).square().sum() / N
        + 0.5 * PRIOR.shrinkage * (B * B).sum()
        + tau * np.linalg.norm(B, axis=1).sum()
    )
    assert found.certificate.objective == pytest.approx(value.item(), rel=1e-9)
    assert found.stats.teachers["good"].in_use == (np.linalg.norm(B, axis=1)[:5] > 0).sum()


@cache
def _rounded() -> tuple[Tensor, Tensor]:
    """J_φ and φ₀ on the rows as a cache holds them."""
    held = case()
    before = held.tokens.clone()
    try:
        held.tokens.copy_(before.half().double())
        return features(jacobian=True)
    finally:
        held.tokens.copy_(before)


def _slow_lasso(C: np.ndarray, D: np.ndarray, nu: float, tau: float) -> np.ndarray:
    """Proximal gradient steps, many."""
    step = 1 / (np.linalg.eigvalsh(C).max() + nu)
    B = np.zeros_like(D)
    for _ in range(4000):
        B = B - step * (C @ B + nu * B - D)
        size = np.linalg.norm(B, axis=1, keepdims=True)
        B = B * np.maximum(1 - step * tau / np.maximum(size, 1e-300), 0)
    return B


def test_group_lasso_is_the_slow_one():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 20)) @ (np.eye(20) + 0.4 * generator.normal(size=(20, 20)))
    C, D = X.T @ X / 60, X.T @ generator.normal(size=(60, 7)) / 60
    tau = 0.3 * np.linalg.norm(D, axis=1).max()
    found, slow = group_lasso(C, D, 1e-2, tau, 1e-12), _slow_lasso(C, D, 1e-2, tau)
    np.testing.assert_allclose(found, slow, atol=1e-9)
    zero = np.linalg.norm(found, axis=1) == 0
    assert 0 < zero.sum() < 20
    assert (zero == (np.linalg.norm(slow, axis=1) < 1e-9)).all()
    assert np.linalg.norm(subgradient(C, D, found, 1e-2, tau)) <= 1e-11
    assert (group_lasso(C, D, 1e-2, 1.01 * np.linalg.norm(D, axis=1).max(), 1e-12) == 0).all()


def test_group_lasso_of_fewer_rows_than_features_is_solved_to_rounding():
    """Sweeps alone take 200,000."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(3, 64))
    X = (X - X.mean(0)) / X.std(0)
    C, D = X.T @ X / 3, X.T @ generator.normal(size=(3, 192)) / 3
    tau = 0.05 * np.linalg.norm(D, axis=1).max()
    found = group_lasso(C, D, 1e-2, tau, 1e-12 * np.linalg.norm(D))
    assert np.linalg.norm(subgradient(C, D, found, 1e-2, tau)) <= 1e-12 * np.linalg.norm(D)


def test_junk_is_exactly_zero_and_what_helps_is_not():
    """Labels that follow from five teacher features; four of noise beside them."""
    n, generator = 300, torch.Generator().manual_seed(3)
    held = make_case("narrow-mlp", "keep", n=n, classes=4)
    d = held.base.config.width
    phi = held.forward({**held.base.state, "head.weight": torch.eye(d).double(), "head.bias": torch.zeros(d).double()})
    good = phi @ torch.randn(d, 5, dtype=torch.float64, generator=generator)
    both = torch.cat([good, torch.randn(n, 4, dtype=torch.float64, generator=generator)], 1)
    both = (both - both.mean(0)) / both.std(0, correction=0)
    known = (both[:, :5] @ torch.randn(5, 4, dtype=torch.float64, generator=generator)).argmax(1).numpy()
    source = [ArrayRows(held.tokens.numpy().astype(np.float16), known)]
    prior = PriorSpec(teachers=["x"], beta=0.5, sparsity=0.1)
    found = minimise_taught(
        held.base, source, OBJECTIVE, Teachers(psi=both, prior=prior, slices=SLICES),
        goal=Goal(tolerance=1e-3), arithmetic=Arithmetic(precision="float64"),
    )  # fmt: skip
    teachers = found.stats.teachers
    assert teachers["junk"] == TeacherUse(features=4, in_use=0, energy=0.0)
    assert teachers["good"].in_use == 5


@pytest.mark.parametrize("tolerance", [1e-1, *(pytest.param(t, marks=pytest.mark.full) for t in (1e-2, 1e-3)), 1e-4])
def test_the_certificates_bounds_are_true(tolerance):
    tight, loose = solve(), solve(tolerance=tolerance)
    assert loose.certificate.relative_gradient <= tolerance
    assert (loose.value - tight.value).norm().item() <= loose.certificate.distance
    assert -1e-12 <= loose.certificate.objective - tight.certificate.objective <= loose.certificate.gap


@pytest.mark.law("A taught certificate allows for what rounding may hide")
def test_the_certificate_allows_for_rounding(monkeypatch):
    """The two ways of computing the gradient are never apart by more; a solve that asks for less is not converged."""
    found = solve()
    certificate = found.certificate
    assert 0 < certificate.rounding < 1e-10 * certificate.gradient_at_zero
    bound = (certificate.gradient + certificate.rounding) / certificate.ridge
    assert certificate.distance == pytest.approx(bound, rel=1e-12)
    less = solve(tolerance=1e-16, max_passes=1100, start=found.value)
    assert less.certificate.gradient <= less.certificate.rounding
    assert less.status is not Status.converged
    # an error in the product that a second way of computing the gradient has not
    hessian = PenalisedProblem.hessian
    wrong = 1e-3 * certificate.gradient_at_zero

    def off(problem, vector, out=None):
        product = hessian(problem, vector, out)
        return product + wrong / len(product) ** 0.5

    monkeypatch.setattr(PenalisedProblem, "hessian", off)
    teachers = Teachers(psi=psi(), prior=PRIOR)
    allowed = certificate_at(found.value, case().base, rows(), OBJECTIVE, teachers).rounding
    assert allowed == pytest.approx(8 * wrong, rel=1e-3)


def test_a_weak_prior_is_none():
    without = minimised(case().base, rows(), LOSS, RIDGE, tolerance=1e-8, precision="float64").value
    weak = solve(PriorSpec(teachers=("x",), beta=1e-9, sparsity=0.1)).value
    strong = solve().value
    assert (weak - without).norm() <= 1e-5 * without.norm()
    assert (strong - without).norm() > 1e-2 * without.norm()


def test_a_strong_prior_brings_features_to_the_teachers():
    """More β, less of the features' change outside what the teachers' features span."""
    J, phi0 = _rounded()
    centred = phi0 - phi0.mean(0)
    span = torch.linalg.qr(psi())[0]

    def outside(beta: float) -> float:
        value = solve(PriorSpec(teachers=("x",), beta=beta, sparsity=0.0), tolerance=1e-2).value
        phi = centred + (J @ value[: J.shape[1]]).view(N, -1)
        return ((phi - span @ (span.T @ phi)).norm() / phi.norm()).item()

    shares = [outside(beta) for beta in (0.01, 0.1, 1.0)]
    assert shares[0] > shares[1] > shares[2]


def test_single_precision_ends_in_the_same_certificate():
    found = solve(tolerance=1e-6, precision="float32")
    assert found.converged
    assert (found.value - solve().value).norm().item() <= found.certificate.distance + solve().certificate.distance


def test_what_cannot_be_taught_is_refused():
    with pytest.raises(RecipeError, match="below the head"):
        minimise_taught(case().base, rows(), replace(OBJECTIVE, train="head"), Teachers(psi=psi(), prior=PRIOR))
    with pytest.raises(SolveError, match="teachers' features of"):
        minimise_taught(case().base, rows(), OBJECTIVE, Teachers(psi=psi()[:-1], prior=PRIOR))
    with pytest.raises(SolveError, match="finite"):
        minimise_taught(case().base, rows(), OBJECTIVE, Teachers(psi=psi() * float("nan"), prior=PRIOR))


def test_a_pass_limit_is_said():
    found = solve(tolerance=1e-12, max_passes=30)
    assert found.status is Status.max_passes
    assert found.certificate.gradient > 0


@pytest.mark.parametrize(("tolerance", "status"), [(1e-8, Status.max_passes), (0.3, Status.converged)])
def test_the_certificate_is_what_an_audit_proves_however_early_the_solve_ended(tolerance, status):
    found = solve(tolerance=tolerance, max_passes=20)
    assert found.status is status
    now = certificate_at(found.value, case().base, rows(), OBJECTIVE, Teachers(psi=psi(), prior=PRIOR))
    assert found.certificate.objective == pytest.approx(now.objective, rel=1e-9)
    assert found.certificate.gradient == pytest.approx(now.gradient, rel=1e-9)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Features of the digits by another model. Not to be written to."""
    return extract_features(tmp_path_factory.mktemp("teacher") / "teacher", shards=2, limit=FEW)


def taught(path, teacher, **sections):
    """A tiny student of its own tokens; the teacher's model is a wider one."""
    student = teacher_recipe(teacher.parent / "student", model_args={"embed_dim": 12})
    settings = {
        "data": {"source": "digits", "limit": FEW},
        "backbone": msgspec.to_builtins(student.backbone),
        "objective": {"ridge": 3.0},
        "solver": {"tolerance": 1e-1, "max_passes": 5000},
        "prior": {"teachers": [str(teacher)], "beta": 0.1, "sparsity": 0.2},
        **sections,
    }
    return recipe(path, **settings)


@pytest.fixture(scope="module")
def finished(teacher, tmp_path_factory):
    """The student's store after every stage. Not to be written to."""
    path = tmp_path_factory.mktemp("finished") / "store"
    taftcache.run(taught(path, teacher))
    return path


@pytest.mark.law("A taught component meets the optimality conditions of dense algebra, and forgets like any")
def test_a_taught_component_composes_and_forgets_like_any(teacher, finished, tmp_path):
    """Forgotten is never seen, byte for byte; and the prior changes the component."""
    mine = shutil.copytree(finished, tmp_path / "mine")
    with FeatureStore(mine) as store:
        taftcache.trust(store)  # as of whoever copied it by hand
        gone = store.shards[0].sample_ids[1]
        meta = store.objects()["components/000"].meta
        assert meta["converged"]
        assert 0 < meta["stats"]["teachers"]["teacher"]["in_use"] <= meta["stats"]["teachers"]["teacher"]["features"]
        assert store.objects()["models/mean"].meta["identity_error"] <= 1e-9
    with FeatureStore(mine, mode="a") as store:
        report = taftcache.forget(store, [gone])
        assert "components/000" in report.renewed
    other = tmp_path / "other"
    taftcache.extract(taught(other, teacher))
    with FeatureStore(other, mode="a") as store:
        taftcache.forget(store, [gone])
        taftcache.train(store, taught(other, teacher))
        taftcache.compose(store)
    assert commits(mine) == commits(other)
    plain = shutil.copytree(finished, tmp_path / "plain")
    with FeatureStore(plain, mode="a") as store:
        assert taftcache.train(store, taught(plain, teacher, prior={})).trained
    with FeatureStore(plain) as one, FeatureStore(mine) as two:
        base = read_base(one, taught(plain, teacher).tangent)
        moved = [read_component(s, "components/001", base).delta for s in (one, two)]
        assert (moved[0] - moved[1]).norm() > 1e-3 * moved[0].norm()


def test_a_component_is_solved_again_when_its_teachers_rows_change(teacher, finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "mine")
    with FeatureStore(path, mode="a") as store:
        taftcache.trust(store)
        assert taftcache.train(store, taught(path, teacher)).trained == []
        changed = taught(path, teacher, prior={"teachers": [str(teacher)], "beta": 0.1, "sparsity": 0.3})
        assert sorted(taftcache.train(store, changed).trained) == ["components/000", "components/001"]


def test_of_what_a_teacher_lacks_only_what_it_forgot_is_called_so(teacher, tmp_path):
    own = shutil.copytree(teacher, tmp_path / "own")
    with FeatureStore(own, mode="a") as store:
        gone = store.shards[0].sample_ids[0]
        with store.transaction() as change:
            change.erase([gone])
            change.record({"event": "test"})
    with pytest.raises(StoreError, match=f"has forgotten {gone}, but"):
        taught_rows([str(own)], [SimpleNamespace(sample_ids=[gone, "digits/9999"])])


@pytest.mark.law("Without its teachers a store still forgets by subtraction, and an audit says what it cannot prove")
def test_a_store_whose_teacher_may_not_be_opened_or_is_lost(teacher, finished, tmp_path):
    path, away = shutil.copytree(finished, tmp_path / "mine"), teacher.with_name("away") / "teacher"
    with FeatureStore(path) as store:
        gone, before = store.shards[0].sample_ids[1], store.root_digest
    away.parent.mkdir()
    for says, do in (
        ("the store names teachers", "trust"),
        ("no store at", "put the store of the teacher teacher, or a"),
    ):
        planned = taftcache.forget(path, [gone], dry_run=True).notes[0]
        assert planned.startswith(f"without --dry-run this request would be refused: {says}")
        assert "prior.teachers=[]" in planned
        assert not [n for n in taftcache.forget(path, [gone], dry_run=True, mode="subtract").notes if "refused" in n]
        with pytest.raises(StoreError, match=says) as refused:
            taftcache.forget(path, [gone])
        assert do in refused.value.do
        assert FeatureStore(path).root_digest == before
        report = taftcache.audit(path)
        assert {f.kind for f in report.findings} == {"teacher"}
        assert {f.where for f in report.findings} >= {"components/000", "components/001"}
        assert all(says in f.problem and do in f.do for f in report.findings)
        assert "models/head" in report.certificates, "what needs no teacher is proven all the same"
        if not away.exists():
            taftcache.trust(path)
            assert not [n for n in taftcache.forget(path, [gone], dry_run=True).notes if "refused" in n]
            teacher.rename(away)
    try:
        taftcache.forget(path, [gone], mode="subtract")
        report = taftcache.audit(path)
        assert ({f.kind for f in report.findings}, report.receipts, report.tombstones) == ({"teacher"}, 1, 1)
        teacher.symlink_to(away)
        assert not taftcache.audit(path).findings, "a link at the old place does"
    finally:
        teacher.unlink(missing_ok=True)
        away.rename(teacher)


def test_a_teacher_that_forgot_is_noticed(teacher, tmp_path):
    path, own = tmp_path / "mine", shutil.copytree(teacher, tmp_path / "own")
    taftcache.run(taught(path, own))
    with FeatureStore(path) as store:
        gone = store.shards[0].sample_ids[0]
    with FeatureStore(own, mode="a") as store, store.transaction() as change:
        change.erase([gone])
        change.record({"event": "test"})
    with FeatureStore(path, mode="a") as store, pytest.raises(StoreError, match="has forgotten") as error:
        taftcache.train(store, taught(path, own))
    assert gone in str(error.value)
    with FeatureStore(path, mode="a") as store:
        found = {finding.where: finding for finding in taftcache.audit(path).findings}
        assert {finding.kind for finding in found.values()} == {"teacher"}
        assert f"has forgotten {gone}" in found["components/" + store.locate(gone)[0].name].problem
        assert gone in taftcache.forget(store, [gone]).forgotten
        assert "components/000" not in taftcache.train(store, taught(path, own)).trained
    assert not taftcache.audit(path).findings
