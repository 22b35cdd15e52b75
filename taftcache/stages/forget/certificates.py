"""Check a certificate: compute every figure that its bounds follow from again from the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import msgspec

from taftcache.cache.read.shard import Shard
from taftcache.model.component import Component
from taftcache.model.meta import CertificateRecord
from taftcache.names import at_least, at_most
from taftcache.objective.problem import Problem
from taftcache.solve.solution import Certificate, Solution
from taftcache.stages.forget.finding import Findings
from taftcache.stages.train.settings import Settings

# How much another order of the same float64 sums may change a figure: relative to the recorded figure; and relative to
# its scale, where the proof does not bound rounding itself.
RELATIVE, ROUNDING = 1e-3, 1e-9
NEAR = 1e-3  # the fraction of ‖Δw‖ by which float32 may separate Δw and Jᵀα: the most that was seen is 2e-5
BOUNDS = ("distance_bound", "energy_bound", "gap_bound")


class CheckedCertificate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A component's certificate as it is recorded, beside what is proven now from the rows.

    recorded, recomputed: ‖∇F(Δw)‖. distance_bound: a bound on ‖Δw − Δw*‖, proven now. distance_recorded: the recorded
    one. row_moves: about how far Δw* would move if a typical row left, if its solve estimated that.
    """

    recorded: float
    recomputed: float
    distance_bound: float
    distance_recorded: float
    row_moves: float | None = None


def check_certificate(
    name: str, component: Component, settings: Settings, sources: list[Shard], to: Findings
) -> CheckedCertificate:
    """Prove a component's bounds again from the rows, as its solve did, and compare them with what it records.

    If the recorded bound rests on dual vectors that the component does not keep, it is proven by solving again. That
    solve may end with other bytes, for example on another machine: then the recorded bound is only compared with a
    lower bound on the distance, and the upper one that is proven is returned.

    Raises:
        FormatError: the component's description lacks what a solve records.
    """
    said = component.record.certified
    if component.dual is not None and not _is_dual(settings.problem(sources, component), component):
        to.found("stale dual", name, "its dual vectors are not those of the rows that are there")
        component = replace(component, dual=None)  # a proof from them would be wrong
    if said.residual is not None and component.dual is None:
        component = replace(component, dual=settings.dual_again(sources, component))
    proven = settings.proven(sources, component)
    now, figures = proven.certificate, proven.certificate.as_dict()
    wrong = [*_own_faults(said, component, settings, now), *_shortfalls(said, proven)]
    for problem in wrong:
        to.found("certificate", name, problem)
    return CheckedCertificate(
        recorded=said.gradient,
        recomputed=now.gradient,
        distance_bound=float(figures["distance_bound"] or 0.0),
        distance_recorded=said.distance_bound,
        row_moves=component.record.stats.row_moves,
    )


def _own_faults(said: CertificateRecord, component: Component, settings: Settings, now: Certificate) -> Iterator[str]:
    """What contradicts the certificate's own figures, the settings, or the numbers of Δw."""
    ridge, radius = settings.recipe.objective.ridge, settings.recipe.objective.radius
    norm = component.delta.norm().item()
    if ridge != "auto" and said.ridge != ridge:
        yield f"its λ is {said.ridge:g}, the settings say {ridge:g}"
    if radius is not None and not norm <= radius * (1 + RELATIVE):
        yield f"‖Δw‖ is {norm:.6g}, outside of the ball of radius {radius:g}"
    if not abs((component.record.norm or 0.0) - norm) <= ROUNDING * norm:
        yield f"‖Δw‖ is {norm:.6g}, it says {component.record.norm}"
    for field in ("rows", "gradient_at_zero", "objective"):
        known, claimed = getattr(now, field), getattr(said, field)
        if not abs(claimed - known) <= RELATIVE * abs(known):
            yield f"{field} is {known:.6g}, its certificate says {claimed:.6g}"
    follows = recorded_certificate(said).as_dict()
    for bound in BOUNDS:
        claimed = getattr(said, bound)
        if claimed is not None and not claimed >= (1 - ROUNDING) * (follows[bound] or 0.0):
            yield f"its {bound} is {claimed:.3e}, its own figures give {at_most(follows[bound] or 0.0, '.3e')}"


def _shortfalls(said: CertificateRecord, proven: Solution) -> Iterator[str]:
    """Recorded figures that are smaller, by more than rounding, than what is proven now or than what can be true."""
    now, least = proven.certificate, proven.stats.energy_at_least
    slack = now.rounding or ROUNDING * now.gradient_at_zero
    if not now.gradient <= said.gradient * (1 + RELATIVE) + slack:
        yield f"‖∇F‖ is {now.gradient:.3e}, its certificate says {said.gradient:.3e}"
    if said.residual is not None and least is not None:
        if not recorded_certificate(said).energy >= (1 - RELATIVE) * least:
            claimed = recorded_certificate(said).energy
            yield f"‖Δw−Δw*‖_H is {at_least(least, '.3e')} at least, its certificate says {claimed:.3e}"
    elif now.ridge > 0 and not now.distance <= said.distance_bound * (1 + RELATIVE) + slack / now.ridge:
        near = at_most(now.distance, ".3e")
        yield f"‖Δw−Δw*‖ ≤ {near} is what is proven, its certificate says {said.distance_bound:.3e}"


def recorded_certificate(said: CertificateRecord) -> Certificate:
    """A component's recorded figures as a certificate, which derives its bounds from them."""
    return Certificate(**{field.name: getattr(said, field.name) for field in fields(Certificate)})


def _is_dual(problem: Problem, component: Component) -> bool:
    """Whether there is one α for each row, and Δw is close to Jᵀα: the bound contains their difference. Half a pass."""
    dual, operator = component.dual, problem.operator
    if dual is None or dual.shape != (operator.rows, operator.classes):
        return False
    return bool((problem.adjoint(dual) - component.delta).norm() <= NEAR * component.delta.norm())
