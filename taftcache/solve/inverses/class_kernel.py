"""The kernel of the rows, taken apart into one small kernel for each direction of the classes.

Below the head all logits read the same features, so the tangent kernel of that part is J(x)J(x')ᵀ ≈ κ(x,x')·Ω: nearly
the same function of two rows for every class, as in the infinitely wide network, times one matrix Ω [K,K] that couples
the classes. The head's own part is κ_head(x,x')·I exactly. In the eigenbasis u_j of Ω (eigenvalues ω_j) the kernel
K̃ = J̃J̃ᵀ of N·K rows therefore falls apart into K kernels of N rows,

    u_jᵀ K̃ u_j ≈ √D̄ (κ_head + ω_j κ) √D̄ / N

and one eigendecomposition of κ serves all of them, and every λ. Ω is the mean of J(x)J(x)ᵀ over a few rows; κ comes
from one random probe (``body_kernel``).

Where D differs between the classes of a row (α ≠ 1), √D = √D̄ R, and what is inverted is R (√D̄ J Jᵀ √D̄ + λR⁻²) R. Only
one entry of R differs in each row, that of its true class: with E those N columns of the identity, R⁻² = cI − EΓEᵀ, and

    (A − λEΓEᵀ)⁻¹ = A⁻¹ + A⁻¹E (I − λΓG)⁻¹λΓ Eᵀ A⁻¹        A = √D̄ J Jᵀ √D̄ + λcI    G = EᵀA⁻¹E [N,N]

(Woodbury). Of G only the blocks between rows of one class are kept, made with the mean of A⁻¹ over the classes'
directions: three shards of Caltech-101 took as many passes as with G itself, and twice as many with R⁻² replaced by its
mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.cotangent import random_signs
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.body_kernel import Kernels, class_metric, kernels
from taftcache.solve.inverses.landmarks import LANDMARKS
from taftcache.solve.inverses.row_basis import row_basis

# r·K over P, at most, for r directions of the rows: an apply costs N·r·K and a pass N·P, and beyond this a method with
# more but cheaper passes wins.
APPLY_EACH = 4
LARGEST_LOGITS = 1 << 21  # numbers in a direction: 64 of them and their products take a gigabyte
BLOCK = 256  # rows for which the inverse's diagonal is taken at once
# The least shift, as a multiple of what rounding does to the largest eigenvalue. Without it, 1,430 rows of digits lost
# a round of 35 passes at λ = 10⁻⁶ and then stopped far from the end. 8 and 16 served as well, 32 did not.
ROUNDING = 4.0
LITTLE = 0.01  # fraction of the noise that is not worth the pass to measure it: solves take as many passes without it
LARGEST_BASIS = 512 << 20  # bytes of what is known of all rows; there are two such matrices at once
FEWER = 4  # every fourth landmark serves a second estimate, which tells how the first would change with more of them


def class_kernel_fits(problem: Problem) -> bool:
    """Whether the rows are few enough, and an apply is cheap compared with a pass; there may be more logits than
    parameters.

    A fresh class token has, through its LayerNorm, a gradient a thousand times the others', which no such kernel fits.
    """
    operator = problem.operator
    if operator.base.config.token_name in operator.layout:
        return False
    rows, numbers = operator.rows, LANDMARKS + operator.base.config.width
    if min(rows, numbers) * operator.classes > APPLY_EACH * operator.layout.size:
        return False
    return rows * operator.classes <= LARGEST_LOGITS and 4 * rows * numbers <= LARGEST_BASIS


class _Inverse(NamedTuple):
    """A⁻¹ in the eigenbases: ``fast`` [K,r] for body and shift, from which the head subtracts by ``inner`` [K,h,h].

    ``beyond`` [K] multiplies what is orthogonal to the basis of the rows, 0 if nothing is. ``among`` has an entry for
    the rows of each class; none if R = I or its mean stands for it.
    """

    fast: Tensor
    inner: Tensor | None
    beyond: Tensor
    among: list[_Among]


class _Among(NamedTuple):
    """(I − λΓG)⁻¹λΓ for a class's rows, as ``matrix`` [n,n]; if they are more than the vectors of the basis U, as
    e + e U Q Uᵀe with e = ``each`` [n] and Q = ``matrix`` [r,r]."""

    matrix: Tensor
    each: Tensor | None = None

    def apply(self, rows: Tensor, vector: Tensor) -> Tensor:
        """Times ``vector`` [n]; ``rows`` are U's [n,r]."""
        if self.each is None:
            return self.matrix @ vector
        weighted = self.each * vector
        return weighted + self.each * (rows @ (self.matrix @ (weighted @ rows)))


class _Class(NamedTuple):
    """Some rows of a class: their places [n], the rows in the eigenbasis [n,r], and their Γ [n]."""

    label: int
    where: Tensor
    rows: Tensor
    gap: Tensor


class _Spectrum(NamedTuple):
    """K̂ for R = I in the eigenbases: the part below the head [K,r], the head's factor [r,h], and the part [K] that is
    orthogonal to the basis of the rows, ``rows`` [N,r]; ``whole`` if nothing is."""

    rows: Tensor
    below: Tensor
    head: Tensor
    beyond: Tensor
    whole: bool

    @classmethod
    def of(cls, found: Kernels, row: Tensor, omega: Tensor, dtype: torch.dtype) -> _Spectrum:
        """For rows weighted by √D̄ = ``row`` [N,1] and the classes' ``omega`` [K], with the basis in ``dtype``."""
        rows, sigma, head, beyond = row_basis(found, row, dtype)
        return cls(rows, omega[:, None] * sigma, head, omega * beyond, rows.shape[0] == rows.shape[1])

    def inverse(self, shift: float) -> _Inverse:
        """(K̂ + shift)⁻¹."""
        inverses, dtype = 1 / (self.below + shift), self.rows.dtype
        inner = [_inner(self.head, inverse) for inverse in inverses] if self.head.shape[1] else []
        of_head = torch.stack(inner).to(dtype) if inner else None
        beyond = torch.zeros_like(self.beyond) if self.whole else 1 / (self.beyond + shift)
        return _Inverse(inverses.to(dtype), of_head, beyond.to(dtype), [])

    def of_some(self, places: Tensor) -> _Spectrum:
        """The same for some of the rows alone."""
        return self._replace(rows=self.rows[places])

    def diagonals(self, inverse: _Inverse) -> tuple[Tensor, Tensor]:
        """The diagonals of an ``inverse`` and of its square, in the classes' eigenbasis, [N,K] each."""
        basis = self.rows
        outside = (1 - basis.square().sum(1)).clamp_min(0)  # the part of each row beyond the basis
        head, diagonal, square = self.head.to(basis), [], []
        for k, fast in enumerate(inverse.fast):
            columns = basis * fast
            if inverse.inner is not None:
                columns -= ((columns @ head) @ inverse.inner[k]) @ (head.T * fast)
            diagonal.append((columns * basis).sum(1) + inverse.beyond[k] * outside)
            square.append(columns.square().sum(1) + inverse.beyond[k] ** 2 * outside)
        return torch.stack(diagonal, 1).double(), torch.stack(square, 1).double()


class ClassKernel:
    """(K̂ + τI)⁻¹, where K̂ is the kernel without what couples directions of the classes.

    What is left out acts as noise on the small eigenvalues of K̂, the more so the closer N·K comes to P. So τ is λ plus
    a fraction of twice the noise's root mean square there. If there are few logits, K̃ keeps the small eigenvalues of
    K̂, and a shift above λ hides them: with N·K = P/15, the whole noise in τ takes two and a half times as many passes
    as λ alone (docs/solvers.md). τ is at least a few times what rounding does to the largest eigenvalues
    (``ROUNDING``). Deterministic, and a function of the problem's rows alone. ``passes`` counts those it took: one, and
    one more if the noise had to be measured.

    Args:
        problem: quadratic, with a diagonal D.
        scale: √(D/N) [N,K], of the rows J̃ = scale ⊙ J.
        found: what ``kernels`` found, if that pass was made already.
        part: the fraction of twice that root mean square that τ adds to λ; by default min(1, 2N·K/P)⁴.
        sampled: rows [n] whose ``moves`` will be asked for.
        carried: α₀ [N'−N,K] of rows that have left, for ``without``; in ``found`` they follow the problem's.
    """

    def __init__(
        self,
        problem: Problem,
        scale: Tensor,
        found: Kernels | None = None,
        part: float | None = None,
        sampled: Tensor | None = None,
        carried: Tensor | None = None,
    ) -> None:
        operator = problem.operator
        self.dtype = operator.dtype
        found = kernels([problem], class_metric(problem)) if found is None else found
        self.omega, directions = torch.linalg.eigh(found.metric)
        self.omega.clamp_min_(0)
        row = scale.double().square().mean(1, keepdim=True).sqrt()
        rest = torch.where(row > 0, scale.double() / row, 1)
        self._rest = None if (rest - 1).abs().max() < 1e-6 else rest.to(operator.dtype)
        self._lost: tuple[Tensor, float] | None = None
        if carried is not None:
            turned = carried.double() @ directions
            of_head, of_body = turned.to(found.columns), (turned * self.omega).to(found.columns)
            lost = row * found.across(operator.rows, of_head, of_body)
            self._lost = lost.to(operator.dtype), len(carried) / operator.rows
            found = found.first(operator.rows)
        self._sampled = sampled
        self._fewer: _Spectrum | None = None
        if sampled is not None and operator.rows > found.columns.shape[1]:
            # Those for all rows are freed at once, because what follows is as large.
            few = found.by_fewer(FEWER)
            self._fewer = _Spectrum.of(few, row, self.omega, operator.dtype).of_some(sampled)
            self.fewer = max(few.m, 1) / max(found.m, 1)
            del few
        self._all = _Spectrum.of(found, row, self.omega, operator.dtype)
        del found
        self._moves: list[tuple[Tensor, Tensor]] = []
        self._directions = directions.to(operator.dtype)
        self._fast_head = self._all.head.to(operator.dtype)
        self._classes: list[_Class] = []
        self._mean = self._common = 1.0  # of R⁻², and c
        if self._rest is not None:
            of_ridge = rest.pow(-2)
            self._mean, self._common = of_ridge.mean().item(), of_ridge[row[:, 0] > 0].median().item()
            entry = (of_ridge - self._common).abs().argmax(1)
            gap = self._common - of_ridge.gather(1, entry[:, None])[:, 0]
            for k in entry.unique().tolist():
                index = torch.nonzero(entry == k)[:, 0]
                self._classes.append(_Class(k, index, self._all.rows[index], gap[index]))
        self._problem, self._even = problem, scale if self._rest is None else row.expand_as(scale).to(scale)
        self.passes = 1
        self._coupling: float | None = None
        self._part = min(1.0, 2 * scale.numel() / operator.layout.size) ** 4 if part is None else part
        of_head = torch.linalg.eigvalsh(self._all.head.T @ self._all.head)[-1:].sum()
        self._rounding = ROUNDING * torch.finfo(operator.dtype).eps * (self._all.below.max() + of_head).item()
        self.shift(problem.ridge)

    def without(self, dual: Tensor) -> Tensor:
        """(K̂ + λI)⁻¹ (K̃₁₀a₀ + λ(N'/N − 1)a) [N,K]: about what a = ``dual`` gains when rows that ``carried`` α₀ leave.

        Before, K̃a + K̃₁₀a₀ + λ(N'/N)a = b holds for the rows that stay, with the mean over all N' rows; afterwards, with
        the mean over N, it is K̃a + λa = b.
        """
        assert self._lost is not None
        lost, more = self._lost
        across = lost + self._across(self._ridge * more * (dual if self._rest is None else dual / self._rest))
        return self._solve(self._invert(self._ridge), across, across.T @ self._all.rows).double()

    def moves(self, dual: Tensor) -> list[Tensor]:
        """‖Δw₋ₙ − Δw‖ [n] of the ``sampled`` rows from a = (K̃ + λI)⁻¹b = ``dual`` [N,K]; see ``methods.decisive``.

        If the rows are known by landmarks, a second estimate uses a part of these alone, the fraction ``fewer``.
        """
        assert self._sampled is not None
        if not self._moves:
            known = [self._all.of_some(self._sampled), *([] if self._fewer is None else [self._fewer])]
            for spectrum in known:
                own, square = spectrum.diagonals(spectrum.inverse(self._ridge * self._mean))
                self._moves.append((own, own - self._ridge * self._mean * square))
        weighed = dual[self._sampled].double()
        if self._rest is not None:
            weighed *= self._rest[self._sampled]
        turned = weighed @ self._directions.double()
        return [(left * (turned / own).square()).sum(1).clamp_min(0).sqrt() for own, left in self._moves]

    def within(self, vector: Tensor) -> Tensor:
        """M_nn⁻¹ r_n [N,K] for every row n, with r = ``vector`` [N,K] and M_nn the row's own block of (K̂ + λI)⁻¹.

        The row's own R is exact here, and for all others R⁻² is replaced by its mean. Let P be the inverse with that
        mean everywhere: putting λR_n⁻² into row n's own block turns P_nn⁻¹ into P_nn⁻¹ + λ(R_n⁻² − mean).
        """
        directions, inverse, found = self._directions.double(), self._all.inverse(self._ridge * self._mean), []
        rest = torch.ones_like(vector) if self._rest is None else self._rest.to(vector)
        for rows in torch.arange(len(vector), device=vector.device).split(BLOCK):
            beyond = 1 / self._all.of_some(rows).diagonals(inverse)[0] - self._ridge * self._mean
            body = ((rest[rows] * vector[rows]) @ directions * beyond) @ directions.T
            found.append(rest[rows] * body + self._ridge * vector[rows])
        return torch.cat(found)

    def shift(self, ridge: float) -> None:
        """Invert for another λ, on which nothing else here depends."""
        self._ridge = ridge
        self._moves.clear()
        if self._part >= LITTLE and self._coupling is None:
            self._coupling = self._left_out()
            self.passes += 1
        self._now = self._invert(ridge, max(self._part * (self._coupling or 0.0), self._rounding - ridge))

    def steady(self) -> bool:
        """Take the whole noise into τ, so that rounding weighs less; False if τ has it already."""
        if self._part == 1:
            return False
        self._part = 1.0
        self.shift(self._ridge)
        return True

    def _invert(self, ridge: float, noise: float = 0.0) -> _Inverse:
        """(K̂ + τI)⁻¹ for τ = λ + ``noise``; a true class that weighs less than the others gets no more of the noise."""
        shift = ridge + noise
        inverse, head = self._all.inverse(shift * self._common), self._all.head
        if not self._classes:
            return inverse
        fast = (1 / (self._all.below + shift * self._common)).mean(0)
        beside = fast[:, None] * head
        # G = beyond + U seen Uᵀ; h = 0 where the head is frozen.
        beyond = inverse.beyond.double().mean()
        seen = (fast - beyond).diag() - beside @ _inner(head, fast) @ beside.T
        for of in self._classes:
            basis, gap = of.rows.double(), ridge * of.gap + noise * of.gap.clamp_min(0)
            if len(gap) <= len(fast):
                own = basis @ seen @ basis.T
                own.diagonal().add_(beyond)
                matrix = torch.linalg.solve(_eye(own) - gap[:, None] * own, gap.diag())
                inverse.among.append(_Among(matrix.to(of.rows)))
            else:
                each = gap / (1 - gap * beyond)
                within = torch.linalg.solve(_eye(seen) - seen @ (basis.T @ (each[:, None] * basis)), seen)
                inverse.among.append(_Among(within.to(of.rows), each.to(of.rows)))
        return inverse

    def apply(self, vector: Tensor) -> tuple[Tensor, float]:
        """(K̂ + τI)⁻¹ r for r [N,K], and rᵀK̂r, which is about ‖J̃ᵀr‖²."""
        rest = self._rest
        across = self._across(vector if rest is None else vector * rest)
        seen = across.T @ self._all.rows
        squares = seen.double().square()
        energy = (self._all.below * squares).sum()
        if not self._all.whole:
            energy += self._all.beyond @ (across.double().square().sum(0) - squares.sum(1))
        if self._all.head.shape[1]:
            energy += (seen.double() @ self._all.head).square().sum()
        if rest is None:
            return self._solve(self._now, across, seen), energy.item()
        across = self._across(vector / rest)
        return self._solve(self._now, across, across.T @ self._all.rows), energy.item()

    def _solve(self, inverse: _Inverse, across: Tensor, turned: Tensor) -> Tensor:
        """``inverse`` times r, given R⁻¹r in the classes' eigenbasis [N,K] and in both eigenbases [K,r]."""
        out, left = self._solve_turned(inverse, across, turned)
        if self._rest is None:
            return self._back(out, left)
        seen, among, alone = self._directions @ out, torch.zeros_like(out), torch.zeros_like(across)
        for of, own in zip(self._classes, inverse.among, strict=True):
            direction = self._directions[of.label]
            found = own.apply(of.rows, of.rows @ seen[of.label] + left[of.where] @ direction)
            among[of.label] = found @ of.rows
            alone[of.where] = found[:, None] * direction
        more, further = self._solve_turned(inverse, alone, self._directions.T @ among)
        return self._back(out + more, left + further) / self._rest

    def _solve_turned(self, inverse: _Inverse, across: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        """A⁻¹ times a vector that is ``across`` [N,K] in the classes' eigenbasis and ``turned`` [K,r] in both: the
        result's part in both [K,r], and what is added to that [N,K]."""
        out = turned * inverse.fast
        if inverse.inner is not None:
            inner = torch.bmm(inverse.inner, (out @ self._fast_head)[:, :, None])[:, :, 0]
            out -= inverse.fast * (inner @ self._fast_head.T)
        if self._all.whole:
            return out, across.new_zeros(()).expand_as(across)
        left = across - (turned @ self._all.rows.T).T
        # Rounding, in proportion to ``across``, has left something of the basis. ``beyond`` is 1/τ, more than any other
        # eigenvalue of A⁻¹: without this correction, 800 rows at λ = 10⁻⁶ got directions that were little else.
        return out - inverse.beyond[:, None] * (left.T @ self._all.rows), left * inverse.beyond

    def _across(self, vector: Tensor) -> Tensor:
        """[N,K] to the classes' eigenbasis."""
        across: Tensor = vector.to(self._all.rows) @ self._directions
        return across

    def _back(self, turned: Tensor, outside: Tensor | float = 0.0) -> Tensor:
        """[N,K] from ``turned`` [K,r] in both eigenbases plus ``outside`` [N,K] in that of the classes."""
        back: Tensor = ((turned @ self._all.rows.T).T + outside) @ self._directions.T
        return back

    def _left_out(self) -> float:
        """Twice the root mean square of K̃'s rows in the lower half of K̂'s spectrum, or beyond the basis, from one
        random product."""
        signs = random_signs(self._even, seed=1).to(self._all.rows)  # over rows: an eigenvector's own sign is arbitrary
        product = self._across(kernel_product(self._problem, self._even, signs))
        if self._all.whole:
            low = (product.T @ self._all.rows)[:, : max(1, len(product) // 2)].double()
            return 2 * float(low.square().mean().sqrt())
        for _ in range(2):  # twice, because the first projection leaves its own rounding
            product -= ((product.T @ self._all.rows) @ self._all.rows.T).T
        return 2 * float((product.double().square().sum() / (product.numel() - self._all.below.numel())).sqrt())


def _inner(head: Tensor, inverse: Tensor) -> Tensor:
    """(I + HᵀSH)⁻¹ [h,h] for H = ``head`` [N,h] and S = diag(``inverse``)."""
    gram = head.T @ (inverse[:, None] * head)
    return torch.cholesky_inverse(torch.linalg.cholesky(_eye(gram) + gram))


def _eye(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


def kernel_product(problem: Problem, scale: Tensor, vector: Tensor) -> Tensor:
    """J̃J̃ᵀ z [N,K] for z [N,K]: half a pass back and half a pass forward, in the problem's precision."""
    return scale * problem.forward(problem.adjoint(scale * vector))
