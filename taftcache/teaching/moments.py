"""Kernels of all rows compared through moments: nothing is ever n by n.

With K_φ = ΦΦᵀ and K_T = Ψ diag(q) Ψᵀ over the pairs i ≠ j, means over these pairs are

    A_ab = mean ψ_ia ψ_ja ψ_ib ψ_jb = [ (ΨᵀΨ)²_ab − Σ_i ψ²_ia ψ²_ib ] / n(n−1)
    b_a  = mean K_φ(i,j) ψ_ia ψ_ja  = [ ‖(ΦᵀΨ)_:,a‖² − Σ_i ‖φ_i‖² ψ²_ia ] / n(n−1)
    k    = mean K_φ(i,j)²           = [ ‖ΦᵀΦ‖² − Σ_i ‖φ_i‖⁴ ] / n(n−1)

    mean (K_φ − K_T)² = k − 2bᵀq + qᵀAq

The diagonal is left out because there every feature, noise too, agrees with every kernel: b_a of a feature that is
independent of φ has mean zero over the pairs, and is n times positive with the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from taftcache.errors import SolveError


def teacher_moment(blocks: Iterable[Tensor]) -> Tensor:
    """A [p,p] in float64 from blocks of ψ."""
    second = fourth = None
    n = 0
    for psi in blocks:
        psi = psi.double()
        square = psi.square()
        one, two = psi.T @ psi, square.T @ square
        second, fourth = (one, two) if second is None or fourth is None else (second + one, fourth + two)
        n += len(psi)
    if second is None or fourth is None or n < 2:
        raise SolveError(f"kernels cannot be compared over fewer than two rows: {n}")
    return (second.square() - fourth) / (n * (n - 1))


def student_moments(blocks: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
    """b [p] and k in float64 from blocks of (φ, ψ), φ centred."""
    cross = own = None
    diagonal = quartic = None
    n = 0
    for phi, psi in blocks:
        phi, psi = phi.double(), psi.double()
        norms = phi.square().sum(1)
        parts = phi.T @ psi, phi.T @ phi, norms @ psi.square(), norms.square().sum()
        if cross is None:
            cross, own, diagonal, quartic = parts
        else:
            cross, own = cross + parts[0], own + parts[1]  # type: ignore[operator]
            diagonal, quartic = diagonal + parts[2], quartic + parts[3]  # type: ignore[operator]
        n += len(phi)
    if cross is None or own is None or diagonal is None or quartic is None or n < 2:
        raise SolveError(f"kernels cannot be compared over fewer than two rows: {n}")
    pairs = n * (n - 1)
    return (cross.square().sum(0) - diagonal) / pairs, ((own.square().sum() - quartic) / pairs).item()
