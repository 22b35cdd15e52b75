"""The features' weights in closed form: beside SciPy's NNLS on the same normal equations, and beside R's own least.

    python benchmarks/nnls.py [--features 3000] [--peer 500] [--json]

The moments are those of correlated features and of a student that a fifth of them explain, over as many rows. SciPy
takes a factor of the matrix (its Cholesky, not counted) and is an active-set method that takes one feature at a
time; it is run at the smaller size ``--peer``, where both are timed and their results compared.

The closed form has the least of another distance than R (docs/mathematics.md). R at its weights stands beside the
least R that Adam reaches over the weights, from equal ones and from these, where the teacher's features explain all,
half or none of the student's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from record import json_parser, print_report, timed
from scipy.optimize import nnls as scipy_nnls

from taftcache.teaching.moments import student_moments, teacher_moment
from taftcache.teaching.students.kernels import cosine_distance, unit_rows
from taftcache.teaching.students.nnls import nnls
from taftcache.teaching.students.priors import ClosedForm

STUDENT = 96
ROWS, FEATURES, STEPS, RATE = 400, 40, 600, 0.03  # of the comparison with R's own least


def drawer() -> Callable[..., torch.Tensor]:
    """A function that draws normal numbers of a shape, the same ones each time that it is made anew."""
    return partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def moments(p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and b of p correlated features over 2p rows."""
    draw = drawer()
    psi = draw(2 * p, p) @ (torch.eye(p) + draw(p, p) / p**0.5)
    phi = psi[:, : p // 5] @ draw(p // 5, STUDENT)
    return teacher_moment([psi]), student_moments([(phi - phi.mean(0), psi)])[0]


def least_distance(phi: torch.Tensor, psi: torch.Tensor, s: torch.Tensor) -> float:
    """The least R that Adam reaches over ρ = exp(s)."""
    s = s.clone().requires_grad_()
    optimiser, least = torch.optim.Adam([s], lr=RATE), float("inf")
    for _ in range(STEPS):
        optimiser.zero_grad()
        distance = cosine_distance(phi, psi * s.exp())
        distance.backward()
        optimiser.step()
        least = min(least, distance.item())
    return least


def distances(explained: float) -> dict[str, float]:
    """R at equal weights, at those of the closed form, and at its least, for a student explained in part."""
    draw = drawer()
    psi = draw(ROWS, FEATURES)
    taught = psi[:, : FEATURES // 2] @ draw(FEATURES // 2, STUDENT) / (FEATURES // 2) ** 0.5
    phi = explained**0.5 * taught + (1 - explained) ** 0.5 * draw(ROWS, STUDENT)
    prior = ClosedForm(teacher_moment([unit_rows(psi)]))
    prior.refresh(phi, lambda part: psi[part])
    energy = prior.energy()
    assert energy is not None
    q = energy.double()
    starts = torch.zeros(FEATURES, dtype=torch.float64), q.clamp_min(1e-6).log() / 2
    return {
        "explained": explained,
        "equal": cosine_distance(phi, psi).item(),
        "closed_form": cosine_distance(phi, psi * q.sqrt()).item(),
        "least": min(least_distance(phi, psi, s) for s in starts),
    }


def measure(features: int, peer: int) -> dict[str, Any]:
    """Figures of both sizes."""
    A, b = moments(features)
    found, took = timed(lambda: nnls(A, b))
    small, right = moments(peer)
    factor = torch.linalg.cholesky(small)
    target = torch.linalg.solve_triangular(factor, right[:, None], upper=False)[:, 0].numpy()
    ours, our_time = timed(lambda: nnls(small, right))
    (theirs, _), their_time = timed(lambda: scipy_nnls(factor.T.numpy(), target, maxiter=100 * peer))
    difference = abs(ours.q.numpy() - theirs).max() / theirs.max()
    return {
        "features": features, "seconds": took["clock"], "processor_seconds": took["processor"],
        "factorisations": found.factorisations, "support": found.support, "violation": found.violation,
        "peer_features": peer, "peer_seconds": their_time["clock"], "our_seconds": our_time["clock"],
        "largest_difference": float(difference), "threads": torch.get_num_threads(),
        "distances": [distances(explained) for explained in (1.0, 0.5, 0.0)],
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = json_parser(__doc__)
    parser.add_argument("--features", type=int, default=3000)
    parser.add_argument("--peer", type=int, default=500)
    options = parser.parse_args()
    found = measure(options.features, options.peer)
    if options.json:
        print_report(found)
        return
    print(
        f"{found['features']} features: {found['seconds']:.2f} s ({found['processor_seconds']:.2f} s processor time), "
        f"{found['factorisations']} factorisations, {found['support']} in use, conditions to {found['violation']:.0e}"
    )
    print(
        f"{found['peer_features']} features: {found['our_seconds']:.3f} s, SciPy {found['peer_seconds']:.3f} s, "
        f"largest difference {found['largest_difference']:.0e} of the largest weight"
    )
    for at in found["distances"]:
        print(
            f"{100 * at['explained']:.0f} % of the student explained: R {at['closed_form']:.4f} at the closed form, "
            f"{at['least']:.4f} at its least, {at['equal']:.4f} at equal weights"
        )


if __name__ == "__main__":
    main()
