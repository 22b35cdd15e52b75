"""The features' weights in closed form: block pivoting against SciPy's NNLS on the same normal equations.

    python benchmarks/nnls.py [--features 3000] [--peer 500] [--json]

The moments are those of correlated features and of a student that a fifth of them explain, over as many rows. SciPy
takes a factor of the matrix (its Cholesky, not counted) and is an active-set method that takes one feature at a
time; it is run at the smaller size ``--peer``, where both are timed and their results compared.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from scipy.optimize import nnls as scipy_nnls

from taftcache.teaching.moments import student_moments, teacher_moment
from taftcache.teaching.students.nnls import nnls

STUDENT = 96


def moments(p: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A and b of p correlated features over 2p rows."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    psi = draw(2 * p, p) @ (torch.eye(p) + draw(p, p) / p**0.5)
    phi = psi[:, : p // 5] @ draw(p // 5, STUDENT)
    return teacher_moment([psi]), student_moments([(phi - phi.mean(0), psi)])[0]


def clock(run: Any) -> tuple[Any, float, float]:
    """Result, seconds on the clock, seconds of processor time."""
    begin, own = time.perf_counter(), time.process_time()
    result = run()
    return result, time.perf_counter() - begin, time.process_time() - own


def measure(features: int, peer: int) -> dict[str, Any]:
    """Figures of both sizes."""
    A, b = moments(features)
    found, seconds, processor = clock(lambda: nnls(A, b))
    small, right = moments(peer)
    factor = torch.linalg.cholesky(small)
    target = torch.linalg.solve_triangular(factor, right[:, None], upper=False)[:, 0].numpy()
    ours, ours_seconds, _ = clock(lambda: nnls(small, right))
    (theirs, _), their_seconds, _ = clock(lambda: scipy_nnls(factor.T.numpy(), target, maxiter=100 * peer))
    difference = abs(ours.q.numpy() - theirs).max() / theirs.max()
    return {
        "features": features, "seconds": seconds, "processor_seconds": processor,
        "factorisations": found.factorisations, "support": found.support, "violation": found.violation,
        "peer_features": peer, "peer_seconds": their_seconds, "our_seconds": ours_seconds,
        "largest_difference": float(difference), "threads": torch.get_num_threads(),
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=3000)
    parser.add_argument("--peer", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.features, options.peer)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{found['features']} features: {found['seconds']:.2f} s ({found['processor_seconds']:.2f} s processor time), "
        f"{found['factorisations']} factorisations, {found['support']} in use, conditions to {found['violation']:.0e}"
    )
    print(
        f"{found['peer_features']} features: {found['our_seconds']:.3f} s, SciPy {found['peer_seconds']:.3f} s, "
        f"largest difference {found['largest_difference']:.0e} of the largest weight"
    )


if __name__ == "__main__":
    main()
