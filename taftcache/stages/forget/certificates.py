"""Whether a certificate is true: everything in it that a bound follows from is computed again from the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from taftcache.cache.read.shard import Shard
from taftcache.model.component import Component
from taftcache.model.meta import CertificateRecord
from taftcache.objective.problem import Problem
from taftcache.solve.solution import Certificate, Solution
from taftcache.stages.forget.finding import Findings
from taftcache.stages.train.settings import Settings

# What another order of the same float64 sums may change: of a recorded figure; and of its scale, where the proof does
# not bound rounding itself.
RELATIVE, ROUNDING = 1e-3, 1e-9
NEAR = 1e-3  # of Δw, what float32 may have put between it and Jᵀα: 2e-5 was the most that was seen
BOUNDS = ("distance_bound", "energy_bound", "gap_bound")


def check_certificate(
    name: str, component: Component, settings: Settings, sources: list[Shard], to: Findings
) -> dict[str, float]:
    """Prove a component's bounds again from the rows, as its solve did, and set what it says beside them.

    Returns ‖∇F‖ as ``recorded`` and ``recomputed``; ``distance_bound``, which is proven now, and ``distance_recorded``.
    A bound that the solve had from dual vectors which the component does not keep is proven by solving again. Where
    that ends with other bytes, as on another machine it may, the bound is held against a lower one, and the upper one
    beside that is returned.

    Raises:
        FormatError: the component's description has not what a solve says.
    """
    said = component.record.certified
    if component.dual is not None and not _is_dual(settings.problem(sources, component), component):
        to.found("stale dual", name, "its dual vectors are not those of the rows that are there")
        component = replace(component, dual=None)  # they would prove what is not so
    if said.residual is not None and component.dual is None:
        component = replace(component, dual=settings.dual_again(sources, component))
    proven = settings.proven(sources, component)
    now, figures = proven.certificate, proven.certificate.as_dict()
    wrong = [*_own_faults(said, component, settings, now), *_shortfalls(said, proven)]
    for problem in wrong:
        to.found("certificate", name, problem)
    return {
        "recorded": said.gradient,
        "recomputed": now.gradient,
        "distance_bound": float(figures["distance_bound"] or 0.0),
        "distance_recorded": said.distance_bound,
    }


def _own_faults(said: CertificateRecord, component: Component, settings: Settings, now: Certificate) -> Iterator[str]:
    """What does not follow from the certificate's own figures, from the settings, or from the numbers of Δw."""
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
            yield f"its {bound} is {claimed:.3e}, its own figures give {follows[bound]:.3e}"


def _shortfalls(said: CertificateRecord, proven: Solution) -> Iterator[str]:
    """Figures that are smaller than what is proven now, by more than rounding; or than what can be true."""
    now, least = proven.certificate, proven.stats.energy_at_least
    slack = now.rounding or ROUNDING * now.gradient_at_zero
    if not now.gradient <= said.gradient * (1 + RELATIVE) + slack:
        yield f"‖∇F‖ is {now.gradient:.3e}, its certificate says {said.gradient:.3e}"
    if said.residual is not None and least is not None:
        if not recorded_certificate(said).energy >= (1 - RELATIVE) * least:
            yield f"‖Δw−Δw*‖_H is {least:.3e} at least, its certificate says {recorded_certificate(said).energy:.3e}"
    elif now.ridge > 0 and not now.distance <= said.distance_bound * (1 + RELATIVE) + slack / now.ridge:
        yield f"‖Δw−Δw*‖ ≤ {now.distance:.3e} is what is proven, its certificate says {said.distance_bound:.3e}"


def recorded_certificate(said: CertificateRecord) -> Certificate:
    """What a component recorded, for what follows from it."""
    return Certificate(**{field.name: getattr(said, field.name) for field in fields(Certificate)})


def _is_dual(problem: Problem, component: Component) -> bool:
    """Whether Δw is about Jᵀα, whose difference the bound has, with one α for each row that is there; half a pass."""
    dual, operator = component.dual, problem.operator
    if dual is None or dual.shape != (operator.rows, operator.classes):
        return False
    return bool((problem.adjoint(dual) - component.delta).norm() <= NEAR * component.delta.norm())
