"""Every λ and every radius from one Lanczos run.

Krylov spaces do not see a shift: with A = 1/N JᵀDJ and Q the orthonormal basis that Lanczos makes of
span{g, Ag, A²g, …}, QᵀAQ = T is tridiagonal, and the Galerkin solution of (A + λI)Δw = −g is

    Δw(λ) = −‖g‖ Q (T + λI)⁻¹ e₁        ‖∇F‖ = β_k |e_kᵀ(T + λI)⁻¹e₁| ‖g‖

for every λ at once. ‖Δw(λ)‖ falls with λ, so the ridge that meets a radius is one root.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from taftcache.objective.problem import Problem

LARGEST_BASIS = 512


class KrylovPath:
    """Lanczos on a problem without ridge; grows by ``step``, one pass each.

    Holds its basis [k,P] in the problem's precision, and orthogonalises against all of it: without that, rounding
    repeats directions and ‖Δw(λ)‖ would be wrong.

    Args:
        problem: with ridge 0.
        gradient: ∇F(0) [P].
    """

    def __init__(self, problem: Problem, gradient: Tensor) -> None:
        self._problem = problem
        self._norm: float = gradient.norm().item()
        first = gradient / (self._norm or 1.0)
        self._basis = [first.to(problem.operator.dtype)]
        self._alpha: list[float] = []
        self._beta: list[float] = []
        self.exhausted = self._norm == 0
        self._spectrum: tuple[Tensor, Tensor] | None = None

    @property
    def passes(self) -> int:
        """Products so far."""
        return len(self._alpha)

    def step(self) -> bool:
        """One more direction; False where rounding or the limit on the basis ends the run."""
        if self.exhausted or len(self._basis) > LARGEST_BASIS:
            self.exhausted = True
            return False
        self._spectrum = None
        q = self._basis[-1]
        r = self._problem.hessian(q)
        before = r.norm().item()
        self._alpha.append(torch.dot(q.double(), r.double()).item())
        basis = torch.stack(self._basis)
        for _ in range(2):
            r = r - (basis @ r) @ basis
        beta = r.norm().item()
        self._beta.append(beta)
        if not beta > 1e-6 * before if r.dtype == torch.float32 else not beta > 1e-13 * before:
            self._beta[-1], self.exhausted = 0.0, True
            return True
        self._basis.append(r / beta)
        return True

    def norm(self, ridge: float) -> float:
        """‖Δw(λ)‖."""
        values, first = self._eigen()
        return float(self._norm * (first / (values + ridge)).norm().item())

    def residual(self, ridge: float) -> float:
        """‖∇F(Δw(λ))‖, with λ in F, as far as the run's own arithmetic knows."""
        if not self._alpha:
            return self._norm
        return float(self._norm * self._beta[-1] * abs(self._coefficients(ridge)[-1].item()))

    def shift_for(self, radius: float, ridge: float) -> float:
        """The smallest λ + ν with ν ≥ 0 and ‖Δw(λ + ν)‖ ≤ R."""
        floor = max(ridge, 1e-300)
        if self.norm(floor) <= radius:
            return ridge
        high: float
        low, high = floor, max(2 * floor, self._norm / radius)  # ‖Δw(ν)‖ ≤ ‖g‖/ν
        for _ in range(200):
            middle = sqrt(low * high)
            if self.norm(middle) > radius:
                low = middle
            else:
                high = middle
            if high <= low * (1 + 1e-14):
                break
        return high

    def solution(self, ridge: float) -> Tensor:
        """Δw(λ) [P] in float64."""
        weights = self._coefficients(ridge)
        total = torch.zeros_like(self._basis[0], dtype=torch.float64)
        for weight, q in zip(weights.tolist(), self._basis, strict=False):
            total.add_(q.double(), alpha=-self._norm * weight)
        return total

    def _coefficients(self, ridge: float) -> Tensor:
        values, vectors = self._decomposed()
        return vectors @ (vectors[0] / (values + ridge).clamp_min(1e-300))

    def _eigen(self) -> tuple[Tensor, Tensor]:
        values, vectors = self._decomposed()
        return values, vectors[0]

    def _decomposed(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues, not below 0 as A's are not, and eigenvectors of T."""
        if self._spectrum is None:
            k = len(self._alpha)
            off = torch.tensor(self._beta[: k - 1], dtype=torch.float64)
            T = torch.diag(torch.tensor(self._alpha, dtype=torch.float64)) + torch.diag(off, 1) + torch.diag(off, -1)
            values, vectors = torch.linalg.eigh(T)
            self._spectrum = values.clamp_min(0), vectors
        return self._spectrum
