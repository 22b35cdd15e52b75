"""Certificates as reports have them, beside what a removal moves or moved. No torch here: receipts are read without it.

Norms are Euclidean, over all parameters that were trained, and have no unit. F, a mean over the rows and the ridge's
part, is in the loss's units. docs/mathematics.md#certificates has the derivations, and calls ∇F(Δw) g.
"""

from __future__ import annotations

from taftcache.model.meta import CertificateRecord


class JudgedCertificate(CertificateRecord, frozen=True, kw_only=True, omit_defaults=True):
    """A component's certificate, beside what removing one row would move.

    row_moves: about how far Δw* would move if a typical row left, if that was estimated. decisive: whether
    distance_bound is at most a tenth of row_moves.
    """

    row_moves: float | None = None
    decisive: bool | None = None


class RenewedCertificate(CertificateRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The certificate of a component that was solved again after a removal, beside what the removal moved.

    converged: whether the solve met its tolerance. passes: over the rows, that the solve took. moved: ‖Δw_new −
    Δw_old‖. None if there was no component before, or if it had other classes, rows or settings. moved_at_least: the
    least by which the optimum moved, ‖Δw*_new − Δw*_old‖. It is ``moved`` less both components' distance_bound, or 0,
    and None where ``moved`` is. decisive: whether distance_bound is at most a tenth of moved_at_least. With another λ
    it is a tenth of row_moves instead; None where that is not known. ridge_before: the earlier λ, if the rows that stay
    chose another one. That change then accounts for most of ``moved``. row_moves: with another λ, about how far Δw*
    would move if a typical row left, if that was estimated.
    """

    converged: bool
    passes: int
    moved: float | None
    moved_at_least: float | None
    decisive: bool | None
    ridge_before: float | None = None
    row_moves: float | None = None

    @property
    def other_ridge(self) -> bool:
        """Whether the rows that stay chose another λ."""
        return self.ridge_before is not None
