"""Kernels of all rows compared through their moments, so that nothing is ever n by n.

With K_φ = ΦΦᵀ and K_T = Ψ diag(q) Ψᵀ over the pairs i ≠ j, means over these pairs are

    A_ab = mean ψ_ia ψ_ja ψ_ib ψ_jb = [ (ΨᵀΨ)²_ab − Σ_i ψ²_ia ψ²_ib ] / n(n−1)
    b_a  = mean K_φ(i,j) ψ_ia ψ_ja  = [ ‖(ΦᵀΨ)_:,a‖² − Σ_i ‖φ_i‖² ψ²_ia ] / n(n−1)
    k    = mean K_φ(i,j)²           = [ ‖ΦᵀΦ‖² − Σ_i ‖φ_i‖⁴ ] / n(n−1)

    mean (K_φ − K_T)² = k − 2bᵀq + qᵀAq

The diagonal is left out because there every feature, even noise, agrees with every kernel: for a feature that is
independent of φ, b_a has mean zero over the pairs i ≠ j, while the diagonal would add n positive terms.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add

from torch import Tensor

from taftcache.errors import SolveError


def teacher_moment(blocks: Iterable[Tensor]) -> Tensor:
    """A [p,p] in float64 from blocks of ψ."""

    def terms(psi: Tensor) -> tuple[Tensor, ...]:
        psi, square = psi.double(), psi.double().square()
        return psi.T @ psi, square.T @ square

    n, (second, fourth) = _summed((len(psi), terms(psi)) for psi in blocks)
    return (second.square() - fourth) / (n * (n - 1))


def student_moments(blocks: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, float]:
    """b [p] and k in float64 from blocks of (φ, ψ), φ centred."""

    def terms(phi: Tensor, psi: Tensor) -> tuple[Tensor, ...]:
        phi, psi, norms = phi.double(), psi.double(), phi.double().square().sum(1)
        return phi.T @ psi, phi.T @ phi, norms @ psi.square(), norms.square().sum()

    n, (cross, own, diagonal, quartic) = _summed((len(phi), terms(phi, psi)) for phi, psi in blocks)
    pairs = n * (n - 1)
    return (cross.square().sum(0) - diagonal) / pairs, ((own.square().sum() - quartic) / pairs).item()


def _summed(blocks: Iterable[tuple[int, tuple[Tensor, ...]]]) -> tuple[int, tuple[Tensor, ...]]:
    """The number of rows in all blocks, and the sums of their terms."""
    n, sums = 0, tuple[Tensor, ...]()
    for rows, terms in blocks:
        n, sums = n + rows, tuple(map(add, sums, terms)) if sums else terms
    if n < 2:
        raise SolveError(f"kernels cannot be compared over fewer than two rows: {n}")
    return n, sums
