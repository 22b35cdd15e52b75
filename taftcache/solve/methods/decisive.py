"""How far the optimum moves when a typical row leaves, and solving until a certificate is tighter than that.

This is an estimate, which sets the goal of a solve and proves nothing: a removal is proven by its own receipt. With
M = (K̃ + λI)⁻¹ and a = Mb, of which a_n [K] belongs to row n,

    ‖Δw₋ₙ − Δw‖² ≈ s_nᵀ(M − λM²)_nn s_n        s_n = M_nn⁻¹ a_n

as in ``taftcache.solve.leave_one_out``, but without the change of λ that a mean over one row less brings. Where M is
exact, −λa/N is added to b to make up for that, and of rows that are all the same none moves anything. In the space of
the rows M is K̂'s: there the estimates for 64 of 371 rows of digits were 1.00 to 1.13 times the truth, although what K̂
leaves out was as large as 90 λ. Where K̂ knows the rows by landmarks, ``RowSpace.row_moves`` extrapolates to all rows.
Elsewhere M_nn is not known, and H⁻¹ times the row's term of the gradient takes its place: without the leverages, so
that rows move farther than it says rather than less. A few conjugate directions find it, preconditioned by factors
that have H right on average; a sample's inverse alone, for many rows through a wide network, gave a hundredth of it.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import msgspec
import torch
from torch import Tensor

from taftcache.objective.cotangent import random_signs
from taftcache.solve.directions import conjugate_solution
from taftcache.solve.inverses.dual import DualInverse
from taftcache.solve.inverses.inverse import inverse_by_weights
from taftcache.solve.inverses.sampled import SampledInverse
from taftcache.solve.methods.conjugate import Lazy, pcg
from taftcache.solve.pair import ProblemPair
from taftcache.solve.settings import DECISIVE, Goal, OnPass
from taftcache.solve.solution import Solution, Status

# A receipt subtracts both models' certified distances from how far the removal moved the model.
SHARE = DECISIVE / (1 + 2 * DECISIVE)
TYPICAL = 0.1  # fraction of the rows that move the optimum less than a typical one
SAMPLE = 64  # rows that are looked at
COLUMNS = 512  # of an inverse that are solved for
FIRST = 1e-2  # relative gradient at which the terms of the gradient are first looked at
STEPS = 5  # conjugate directions; after them ‖H⁻¹v‖ was 0.7 to 0.9 of its limit, in a wide network and a narrow one
TURNS = 4
AGAIN = 50  # passes that a solve may at least go on for, beyond its tolerance


def sample_rows(scale: Tensor, most: int = SAMPLE) -> Tensor:
    """Places of the rows that are looked at [n], spread evenly over those with weight in √(ωD/N) [N,K]: a row without
    weight moves nothing, so no certificate could be decisive for it."""
    counted = torch.nonzero((scale > 0).any(1))[:, 0].cpu()
    count = min(len(counted), max(1, most))
    return counted[torch.arange(count) * len(counted) // count]


def further(passes: int, most: int) -> int:
    """The limit on passes for a solve that goes on beyond its tolerance: as many again or ``AGAIN``, up to ``most``."""
    return min(most, passes + max(passes, AGAIN))


def typical(moves: Tensor) -> float:
    """What all but a tenth of the ``moves`` [n] exceed; 0 if there are none."""
    return moves.quantile(TYPICAL).item() if len(moves) else 0.0


def decisive_pcg(
    pair: ProblemPair,
    inverse: Lazy,
    goal: Goal,
    *,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
) -> Solution:
    """``pcg`` until ‖∇F‖/λ is ``SHARE`` of how far a typical row moves Δw: ``stats.row_moves``, None if it is nothing.

    Whenever a solve to the last estimate has ended, the estimate is made anew. With ``until_decisive`` it is first made
    once the tolerance is met, and whatever follows, the solve counts as converged.
    """
    asked, rounds = goal if goal.until_decisive else replace(goal, tolerance=FIRST), 0
    passes = solving = 0  # of all, and of the solve alone
    most, status, estimate = goal.max_passes, None, _RowMoves(pair, inverse)
    for turn in range(TURNS):

        def shown(done: int, residual: float, before: int = passes) -> None:
            if on_pass is not None:
                on_pass(before + done, residual)

        found = pcg(pair, inverse, asked, start=start, on_pass=shown)
        if goal.until_decisive and turn == 0:
            if not found.converged or not isinstance(inverse.made, DualInverse | SampledInverse):
                return found
            most, status = further(found.stats.passes, most), Status.converged
        solving, rounds = solving + found.stats.passes, rounds + (found.stats.rounds or 0)
        try:
            moves = estimate.at(found.value)
        except KeyboardInterrupt:
            stats = msgspec.structs.replace(found.stats, passes=solving + estimate.passes, rounds=rounds)
            return replace(found, status=Status.interrupted, stats=stats)
        passes = solving + estimate.passes
        # If a row moves nothing, there is nothing to decide.
        wanted = SHARE * moves * pair.exact.ridge or goal.tolerance * found.certificate.gradient_at_zero
        if not found.converged or found.certificate.gradient <= wanted or turn == TURNS - 1:
            break
        relative = 0.9 * wanted / found.certificate.gradient_at_zero
        asked, start = replace(goal, tolerance=relative, max_passes=max(1, most - passes)), found.value
    stats = msgspec.structs.replace(found.stats, passes=passes, rounds=rounds, row_moves=moves or None)
    ended = found.status if status is None or found.status is Status.interrupted else status
    return replace(found, status=ended, stats=stats)


class _RowMoves:
    """How far a typical row moves Δw*, from the residuals at a Δw.

    Args:
        pair: the problem.
        inverse: an approximate H⁻¹, or an exact one.
    """

    def __init__(self, pair: ProblemPair, inverse: Lazy) -> None:
        (self._inner, self._exact), self._inverse = pair, inverse
        self._short: float | None = None  # by how much the inverse's norm falls short; about the same at every Δw
        self.passes = 0

    def at(self, value: Tensor) -> float:
        """The estimate at Δw [P], for two passes, and ``STEPS`` more the first time if the inverse is not exact."""
        exact = self._exact
        self.passes += 2
        _, _, _, z, labels = exact.evaluate_logits(value)
        terms = exact.loss.gradient(z, labels) / len(z)
        if exact.weights is not None:
            terms = terms * exact.weights.at(labels, 0, terms)
        made, scale = self._inverse.made, exact.diagonal(labels, z).sqrt()
        sizes = terms.norm(dim=1)
        if not sizes.any():  # no row counts, or all have reached their targets
            return 0.0
        if isinstance(made, DualInverse):
            rows = sample_rows(scale, COLUMNS // z.shape[1])
            dual = torch.where(scale > 0, terms / (exact.ridge * scale), 0)
            shift = -exact.ridge / len(z) * dual
            return typical(made.moves(rows, (dual + shift / exact.ridge - made.solve(shift))[rows], shift))
        # With a random sign for each row, the mean square is that of the rows' moves; residuals say how these differ.
        mean = self._norm(exact.adjoint(terms * random_signs(terms[:, :1], seed=3))) / sqrt(len(z))
        return float(mean * typical(sizes[(scale > 0).any(1)]) / sizes.square().mean().sqrt().item())

    def _norm(self, vector: Tensor) -> float:
        """About ‖H⁻¹v‖ for v [P], too small rather than too large."""
        made, narrow = self._inverse.made, vector.to(self._inner.operator.dtype)
        by_inverse: float = made.apply(narrow).norm().item()
        if self._short is None and by_inverse:
            self.passes += STEPS
            weights = inverse_by_weights(self._inner) if isinstance(made, SampledInverse) else made
            found = conjugate_solution(self._inner.hessian, weights, narrow, steps=STEPS)
            self._short = found.norm().item() / by_inverse
        return (self._short or 0.0) * by_inverse
