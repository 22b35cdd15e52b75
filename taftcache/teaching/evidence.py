"""Linear models of teachers' features: probes, the evidence that ranks teachers, and their predictions.

Probes and evidence are ridge regressions on one-hot labels, through one decomposition of the features; predictions
are those of a softmax regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor

RIDGES = tuple(10.0**k for k in range(-6, 5))  # relative to the mean eigenvalue
ROUNDS = 50
RIDGE = 1e-2  # of the softmax regression
STEPS = 500  # of L-BFGS, at most; a few dozen are usually enough


@dataclass(frozen=True)
class LinearReadout:
    """ŷ = (ψ − mean) weight + offset: weight [p,K]."""

    weight: Tensor
    mean: Tensor
    offset: Tensor

    def __call__(self, psi: Tensor) -> Tensor:
        """Scores [n,K]."""
        return (psi.to(self.weight) - self.mean) @ self.weight + self.offset


def probe(psi: Tensor, labels: Tensor, classes: int, ridges: Sequence[float] = RIDGES) -> LinearReadout:
    """Ridge regression on one-hot labels, its ridge chosen by the exact leave-one-out error.

    Args:
        psi: [n,p]. labels: [n]. classes: K.
        ridges: candidates, relative to the mean eigenvalue of the features' second moment.
    """
    psi = psi.double()
    mean = psi.mean(0)
    U, s, Vh = torch.linalg.svd(psi - mean, full_matrices=False)
    Y = torch.nn.functional.one_hot(labels, classes).double()
    offset = Y.mean(0)
    target = U.T @ (Y - offset)
    scale = s.square().sum().item() / max(1, psi.shape[1])
    best: tuple[float, LinearReadout] | None = None
    for ridge in ridges:
        shrink = s.square() / (s.square() + ridge * scale + 1e-300)
        fitted = U @ (shrink[:, None] * target)
        leverage = (U.square() @ shrink + 1 / len(psi)).clamp_max(1 - 1e-9)
        error = (((Y - offset - fitted) / (1 - leverage)[:, None]).square().mean()).item()
        if best is None or error < best[0]:
            weight = Vh.T @ ((s / (s.square() + ridge * scale + 1e-300))[:, None] * target)
            best = error, LinearReadout(weight, mean, offset)
    assert best is not None
    return best[1]


def softmax_regression(psi: Tensor, labels: Tensor, classes: int, ridge: float = RIDGE) -> LinearReadout:
    """The minimiser of mean cross entropy + ridge/2 ‖weight‖², by L-BFGS in float64; the offset is not penalised.

    Args:
        psi: [n,p], each feature with a deviation of about one. labels: [n]. classes: K.
    """
    psi, mean = psi.double(), psi.double().mean(0)
    rows = psi - mean
    weight = torch.zeros(psi.shape[1], classes, dtype=torch.float64, requires_grad=True)
    offset = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, offset], max_iter=STEPS, tolerance_grad=1e-7, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(rows @ weight + offset, labels)
        value = value + ridge / 2 * weight.square().sum()
        torch.autograd.backward(value)
        return value

    optimiser.step(loss)
    return LinearReadout(weight.detach(), mean, offset.detach())


@dataclass(frozen=True)
class Posterior:
    """The posterior mean of a Bayesian linear model, and its log evidence per label (LogME, You et al. 2021)."""

    readout: LinearReadout
    evidence: float


def posterior(psi: Tensor, labels: Tensor, classes: int) -> Posterior:
    """The model whose precisions α of the weights and γ of the noise maximise the evidence for each class, by MacKay's
    fixed point."""
    psi = psi.double()
    n, p = psi.shape
    mean = psi.mean(0)
    U, s, Vh = torch.linalg.svd(psi - mean, full_matrices=False)
    squares = s.square()
    Y = torch.nn.functional.one_hot(labels, classes).double()
    offset = Y.mean(0)
    columns, total = [], 0.0
    for y in (Y - offset).T:
        z = U.T @ y
        alpha = gamma = torch.ones((), dtype=torch.float64, device=psi.device)
        for _ in range(ROUNDS):
            effective = (gamma * squares / (alpha + gamma * squares)).sum()
            weights = gamma * s * z / (alpha + gamma * squares)
            residual = y.square().sum() - z.square().sum() + (z - s * weights).square().sum()
            before = alpha / gamma
            alpha = effective / weights.square().sum().clamp_min(1e-12)
            gamma = (n - effective) / residual.clamp_min(1e-12)
            if abs(alpha / gamma - before) <= 1e-3 * before:
                break
        weights = gamma * s * z / (alpha + gamma * squares)
        residual = y.square().sum() - z.square().sum() + (z - s * weights).square().sum()
        spread = torch.log(alpha + gamma * squares).sum() + (p - len(s)) * torch.log(alpha)
        value = n * torch.log(gamma) + p * torch.log(alpha) - n * log(2 * pi) - gamma * residual
        total += (0.5 * (value - alpha * weights.square().sum() - spread)).item() / n
        columns.append(Vh.T @ weights)
    return Posterior(LinearReadout(torch.stack(columns, 1), mean, offset), total / classes)
