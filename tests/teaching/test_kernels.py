"""Laws of the priors' kernels, and of the moments that stand for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls as scipy_nnls

from taftcache.errors import SolveError
from taftcache.teaching.evidence import posterior, probe
from taftcache.teaching.moments import student_moments, teacher_moment
from taftcache.teaching.students.kernels import cosine_distance, cosine_rows, gaussian_distance, relations
from taftcache.teaching.students.nnls import nnls
from taftcache.teaching.students.priors import chance

DISTANCES = [cosine_distance, gaussian_distance, relations]


def features(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(d: int) -> torch.Tensor:
    return torch.linalg.qr(features(d, d, 5))[0]


@pytest.mark.parametrize("distance", DISTANCES, ids=lambda f: f.__name__)
def test_scale_and_rotation_of_the_student_do_not_matter(distance):
    phi, psi = features(12, 6), features(12, 9, 1)
    value = distance(phi, psi)
    assert value > 0.01
    torch.testing.assert_close(distance(7.5 * phi @ rotation(6), psi), value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("distance", DISTANCES, ids=lambda f: f.__name__)
def test_scale_and_rotation_of_the_teacher_do_not_matter(distance):
    phi, psi = features(12, 6), features(12, 9, 1)
    torch.testing.assert_close(distance(phi, 0.2 * psi @ rotation(9)), distance(phi, psi), rtol=1e-6, atol=0)


@pytest.mark.parametrize("distance", DISTANCES, ids=lambda f: f.__name__)
def test_a_student_that_is_its_teacher_is_at_the_least(distance):
    phi = features(12, 6)
    assert distance(phi, phi) <= 1.1e-4  # √1e-8 is the floor of the authors' root
    assert distance(phi, phi) < distance(phi, features(12, 6, 3))


def test_the_authors_form():
    """R of the released code, written with loops."""
    phi, psi = features(7, 3), features(7, 5, 1)
    one, two = (x - x.mean(0) for x in (phi, psi))
    total = 0.0
    for i in range(7):
        for j in range(7):
            cos = [(x[i] @ x[j]) / (x[i].norm() * x[j].norm()) for x in (one, two)]
            total += (cos[0] - cos[1]).item() ** 2
    assert cosine_distance(phi, psi).item() == pytest.approx((total / 49 + 1e-8) ** 0.5, rel=1e-9)


def test_relations_are_the_published_ones():
    """Distances and angles of RKD, written with loops."""
    phi, psi = features(5, 3), features(5, 4, 1)
    distances, angles = [], []
    for x in (phi, psi):
        d = torch.cdist(x, x)
        distances.append(d / d[d > 0].mean())
        unit = torch.zeros(5, 5, x.shape[1], dtype=torch.float64)
        for i in range(5):
            for j in range(5):
                if i != j:
                    unit[i, j] = (x[j] - x[i]) / (x[j] - x[i]).norm()
        angles.append(torch.einsum("ijd,ikd->ijk", unit, unit))
    huber = torch.nn.functional.smooth_l1_loss
    expected = huber(*distances) + 2 * huber(*angles)
    assert relations(phi, psi).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("distance", DISTANCES, ids=lambda f: f.__name__)
def test_gradients_are_finite_where_rows_coincide(distance):
    phi = torch.zeros(6, 4, dtype=torch.float64)
    phi[3:] = 1.0
    phi.requires_grad_()
    distance(phi, features(6, 5)).backward()
    assert torch.isfinite(phi.grad).all()


@pytest.mark.law("Moments are those of explicit kernels; the least squares are SciPy's")
@pytest.mark.parametrize("block", [1, 7, 40])
def test_moments_are_those_of_explicit_kernels(block):
    phi, psi = features(40, 6), features(40, 9, 1)
    pairs = ~torch.eye(40, dtype=torch.bool)
    K = (phi @ phi.T)[pairs]
    kernels = torch.stack([torch.outer(column, column)[pairs] for column in psi.T])
    A = teacher_moment(psi[k : k + block] for k in range(0, 40, block))
    b, k = student_moments((phi[j : j + block], psi[j : j + block]) for j in range(0, 40, block))
    count = len(K)
    torch.testing.assert_close(A, kernels @ kernels.T / count, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(b, kernels @ K / count, rtol=1e-12, atol=1e-12)
    assert k == pytest.approx((K @ K / count).item(), rel=1e-12)
    q = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    explicit = (K - ((psi * q) @ psi.T)[pairs]).square().mean()
    torch.testing.assert_close(k - 2 * b @ q + q @ A @ q, explicit, rtol=1e-12, atol=1e-12)


def problem(p: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    X = features(n, p, seed) @ (torch.eye(p) + 0.3 * features(p, p, seed + 1))
    A = teacher_moment([X])
    b, _ = student_moments([(X[:, : p // 3] @ features(p // 3, 4, seed + 2), X)])
    return A, b


@pytest.mark.law("Moments are those of explicit kernels; the least squares are SciPy's")
@pytest.mark.parametrize(("p", "n", "seed"), [(1, 9, 0), (12, 60, 1), (60, 300, 2), (150, 400, 3)])
def test_nnls_is_scipys(p, n, seed):
    A, b = problem(p, n, seed) if p > 2 else (torch.eye(1).double(), torch.ones(1).double())
    L = torch.linalg.cholesky(A)
    right = torch.linalg.solve_triangular(L, b[:, None], upper=False)[:, 0]
    expected, _ = scipy_nnls(L.T.numpy(), right.numpy(), maxiter=100 * p)
    found = nnls(A, b)
    assert np.abs(found.q.numpy() - expected).max() <= 1e-8 * max(np.abs(expected).max(), 1e-12)
    assert found.violation <= 1e-10
    assert ((found.q == 0).numpy() == (expected == 0)).all()
    assert found.support == (expected > 0).sum()


@pytest.mark.parametrize("seed", range(6))
def test_nnls_where_exchanges_go_in_circles(seed):
    """Ill-conditioned problems, on which plain block exchanges do not always end."""
    generator = torch.Generator().manual_seed(seed)
    B = torch.rand(14, 12, dtype=torch.float64, generator=generator) + 3
    b = torch.randn(12, dtype=torch.float64, generator=generator)
    found = nnls(B.T @ B, b)
    slope = B.T @ B @ found.q - b
    assert found.q.min() >= 0
    assert slope.min() >= -1e-6
    assert (found.q * slope).abs().max() <= 1e-6


def test_copies_of_a_feature_share_one_sum():
    A, b = problem(12, 60, 1)
    alone = nnls(A, b).q
    twice = torch.cat([torch.arange(12), torch.arange(12)])
    both = nnls(A[twice][:, twice], b[twice]).q
    torch.testing.assert_close(both[:12] + both[12:], alone, rtol=1e-8, atol=1e-10)


def test_noise_gets_no_weight():
    """Of 64 features of noise beside 16 that the student is made of, hardly any energy is kept; none, less chance."""
    psi, noise = features(2000, 16), features(2000, 64, 9)
    both = torch.cat([psi, noise], 1)
    b, k = student_moments([(psi @ features(16, 8, 2), both)])
    A = teacher_moment([both])
    q = nnls(A, b).q
    assert 0 < q[16:].sum() <= 0.02 * q.sum()
    assert q[:16].min() > 0
    q = nnls(A, b - chance(A, k, 2000)).q
    assert q[16:].sum() == 0
    assert q[:16].min() > 0


def test_what_chance_reaches():
    """b of features that are independent of the student: of the deviation that is said, and seldom above the bound."""
    n, p = 300, 400
    noise, phi = features(n, p, 4), features(n, 5, 6)
    phi = phi - phi.mean(0)
    b, k = student_moments([(phi, noise)])
    A = teacher_moment([noise])
    deviation = chance(A, k, n) / (2 * np.log(p)) ** 0.5
    assert 0.85 < (b / deviation).std() < 1.15
    assert (b > chance(A, k, n)).sum() <= 3


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(SolveError, match="finite"):
        nnls(torch.full((2, 2), torch.nan), torch.ones(2))
    with pytest.raises(SolveError, match="two rows"):
        teacher_moment([torch.ones(1, 3)])


def test_centred_rows_have_length_one():
    rows = cosine_rows(features(9, 4))
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(9, dtype=torch.float64))


def test_leave_one_out_is_what_leaving_out_gives():
    """The ridge that the probe picks is the one that explicit leave-one-out fits pick."""
    psi = features(30, 6)
    labels = (psi[:, 0] + 0.5 * features(30, 1, 4)[:, 0] > 0).long()
    ridges = (1e-3, 1e-1, 1.0, 10.0)
    errors = []
    for ridge in ridges:
        error = 0.0
        scale = (psi - psi.mean(0)).square().sum().item() / 6
        for i in range(30):
            keep = torch.arange(30) != i
            X, Y = psi[keep], torch.nn.functional.one_hot(labels, 2).double()[keep]
            # the probe's mean is that of all rows: leaving out is of a row of the augmented design
            design = torch.cat([torch.ones(29, 1, dtype=torch.float64), X - psi.mean(0)], 1)
            penalty = torch.diag(torch.tensor([0.0] + [ridge * scale] * 6, dtype=torch.float64))
            weights = torch.linalg.solve(design.T @ design + penalty, design.T @ Y)
            one = torch.cat([torch.ones(1, dtype=torch.float64), psi[i] - psi.mean(0)])
            error += (one @ weights - torch.nn.functional.one_hot(labels[i], 2)).square().sum().item()
        errors.append(error)
    chosen = probe(psi, labels, 2, ridges)
    best = probe(psi, labels, 2, (ridges[int(np.argmin(errors))],))
    torch.testing.assert_close(chosen.weight, best.weight)


def test_evidence_prefers_the_teacher_that_knows():
    psi = features(80, 5)
    labels = (psi @ features(5, 3, 7)).argmax(1)
    informed, ignorant = posterior(psi, labels, 3), posterior(features(80, 5, 8), labels, 3)
    assert informed.evidence > ignorant.evidence + 0.05
    assert (informed.readout(psi).argmax(1) == labels).double().mean() > 0.8


def test_evidence_is_that_of_the_dense_gaussian():
    """log N(y; 0, 1/γ I + 1/α ΨΨᵀ) at the fixed point's α and γ, by scikit-learn's Bayesian ridge."""
    from sklearn.linear_model import BayesianRidge

    psi = features(60, 4)
    labels = (psi[:, 0] > 0).long()
    found = posterior(psi, labels, 2)
    X, y = (psi - psi.mean(0)).numpy(), (labels == 0).double().numpy()
    model = BayesianRidge(
        max_iter=300, tol=1e-12, compute_score=True, fit_intercept=False,
        alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0,
    ).fit(X, y - y.mean())  # fmt: skip
    assert found.evidence * 60 == pytest.approx(model.scores_[-1], rel=1e-4)
    np.testing.assert_allclose(found.readout.weight[:, 0].numpy(), model.coef_, rtol=1e-2)


def test_exchanges_that_end_elsewhere_are_said_so(monkeypatch):
    monkeypatch.setattr("taftcache.teaching.students.nnls.LIMIT", 1)
    with pytest.raises(SolveError, match="not found"):
        nnls(*problem(60, 300, 2))
