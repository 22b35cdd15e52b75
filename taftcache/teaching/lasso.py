"""The row group lasso of features on features, from moments, by block coordinate descent and Newton steps.

    min_B  ½ tr Bᵀ(C + νI)B − tr DᵀB + τ Σ_a ‖B_a‖        C = ΨᵀΨ/N,  D = ΨᵀΦ/N,  B_a the row of teacher feature a

For one row, the others fixed, the minimiser is B_a = (1 − τ/‖r‖)₊ r / (C_aa + ν) with r = D_a − Σ_{b≠a} C_ab B_b.
A row with ‖r‖ ≤ τ is exactly zero. Because τΣ‖B_a‖ = min_q ½Σ(‖B_a‖²/q_a + τ² q_a), the weights of the kernel
Ψdiag(q)Ψᵀ are the minimisers q_a = ‖B_a‖/τ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
SWEEPS = 2000


def subgradient(C: Matrix, D: Matrix, B: Matrix, shrinkage: float, sparsity: float) -> Matrix:
    """The subgradient of least norm at B [p,d]; zero exactly at the minimiser."""
    gradient = C @ B + shrinkage * B - D
    sizes = np.linalg.norm(B, axis=1, keepdims=True)
    active = gradient + sparsity * B / np.where(sizes > 0, sizes, 1)
    norms = np.linalg.norm(gradient, axis=1, keepdims=True)
    inactive = gradient * np.maximum(1 - sparsity / np.where(norms > 0, norms, 1), 0)
    return np.where(sizes > 0, active, inactive)


def group_lasso(
    C: Matrix, D: Matrix, shrinkage: float, sparsity: float, tolerance: float, start: Matrix | None = None
) -> Matrix:
    """The minimiser B [p,d], to a subgradient of norm ≤ ``tolerance`` or as far as rounding allows.

    Sweeps go over the rows in use until these are settled, then over all. D − CB is kept up to date, so a sweep costs
    p·d for each row in use.

    Args:
        C: [p,p]. D: [p,d]. shrinkage: ν. sparsity: τ.
        tolerance: on the Frobenius norm of the least subgradient.
        start: B to begin from; zero by default.
    """
    p = len(C)
    B = np.zeros_like(D) if start is None else start.copy()
    rest = D - C @ B  # D − CB
    curvature = C.diagonal() + shrinkage
    best, best_norm = B.copy(), np.inf
    rows = np.arange(p)
    for sweep in range(SWEEPS):
        for a in rows:
            r = rest[a] + C[a, a] * B[a]
            size = float(np.sqrt(r @ r))
            new = r * ((1 - sparsity / size) / curvature[a]) if size > sparsity else np.zeros_like(r)
            step = new - B[a]
            if step.any():
                B[a] = new
                rest -= np.outer(C[:, a], step)
        least = subgradient(C, D, B, shrinkage, sparsity)
        norm = float(np.linalg.norm(least))
        if norm < best_norm:
            best, best_norm = B.copy(), norm
        if norm <= tolerance:
            break
        outside = np.linalg.norm(np.delete(least, rows, axis=0)) if len(rows) < p else 0.0
        inside = np.linalg.norm(least[rows])
        # Rows out of use are looked at again once much of what is left to gain lies in them.
        rows = np.arange(p) if outside >= 0.5 * inside else np.flatnonzero(B.any(1))
        if not len(rows):
            rows = np.arange(p)
        if sweep % 20 == 19:
            used = np.flatnonzero(B.any(1))
            if len(used):  # with fewer samples than features, it would take tens of thousands of sweeps alone
                B[used] = _newton(C[np.ix_(used, used)], D[used], B[used], shrinkage, sparsity)
            rest = D - C @ B  # anew, because sums of many steps drift
    return best


def _newton(C: Matrix, D: Matrix, B: Matrix, shrinkage: float, sparsity: float) -> Matrix:
    """A Newton step towards the minimiser among the B whose rows are all in use; ``B`` itself if no step leads down.

    The Hessian is P − Σ_a τ/‖B_a‖ b_a b_aᵀ with P = C + νI + diag(τ/‖B_a‖) and b_a = B_a/‖B_a‖. It is solved by
    conjugate gradients, preconditioned by P.
    """
    sizes = np.linalg.norm(B, axis=1, keepdims=True)
    bend, unit = sparsity / sizes, B / sizes
    smooth = C + shrinkage * np.eye(len(C))
    inverse = np.linalg.inv(smooth + np.diag(bend[:, 0]))
    slope = smooth @ B + sparsity * unit - D
    step, left = np.zeros_like(B), -slope
    goal = 1e-3 * np.linalg.norm(left)
    z = inverse @ left
    along, decrease = z, float((left * z).sum())
    for _ in range(100):
        if np.linalg.norm(left) <= goal or not decrease > 0:
            break
        product = smooth @ along + bend * (along - unit * (unit * along).sum(1, keepdims=True))
        length = decrease / float((along * product).sum())
        step, left = step + length * along, left - length * product
        z = inverse @ left
        before, decrease = decrease, float((left * z).sum())
        along = z + decrease / before * along

    def change(step: Matrix) -> float:
        """By how much the objective changes."""
        longer = np.linalg.norm(B + step, axis=1) - sizes[:, 0]
        return float((step * (smooth @ (B + 0.5 * step) - D)).sum() + sparsity * longer.sum())

    for _ in range(20):
        if change(step) < 0:
            return np.asarray(B + step)
        step = 0.5 * step
    return B
