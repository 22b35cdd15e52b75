"""Adam with the paper's and its release's settings: for parity with what they report, not for an optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.methods.conjugate import Progress
from taftcache.solve.solution import Certificate, Solution, Status


@dataclass(frozen=True)
class Preset:
    """A schedule: the rate falls tenfold at the beginning of each epoch in ``drops`` (counted from 0).

    penalty: "ridge" adds λΔw to every gradient, "decoupled" shrinks Δw beside Adam's step (AdamW), "norm" adds the
        gradient of 10⁻⁵ √(10⁻⁶ + ‖Δw‖²), as the release does.
    """

    rate: float = 1e-3
    batch: int = 32
    epochs: int = 30
    drops: tuple[int, ...] = (15, 25)
    penalty: str = "ridge"


# The release compares with "<" and so drops one epoch late; its schedule ends at 50 epochs.
PRESETS = {
    "paper": Preset(),
    "release": Preset(epochs=50, drops=(26, 41), penalty="norm"),
    "adamw": Preset(penalty="decoupled"),
}


def adam(
    problem: Problem,
    exact: Problem,
    preset: Preset,
    *,
    tolerance: float = 1e-6,
    seed: int = 0,
    progress: Progress | None = None,
) -> Solution:
    """Minimise F by Adam over shuffled batches; one epoch is one pass, and all rows are held in memory.

    The certificate is the float64 gradient at the end: it says how far from the optimum such a schedule stops.

    Args:
        problem: of the batches' products. exact: the same in float64.
        preset: rate, batches, epochs.
        tolerance: for the status alone; the schedule runs to its end.
        seed: of the shuffles.
        progress: told after each epoch.
    """
    operator = problem.operator
    parts = [block for source in operator.sources for block in source.blocks(4096)]
    tokens = np.concatenate([np.asarray(block.tokens) for block in parts])
    labels = torch.from_numpy(np.concatenate([np.asarray(block.labels) for block in parts]))
    labels = labels if labels.is_floating_point() else labels.long()
    zero = torch.zeros(operator.layout.size, dtype=torch.float64, device=operator.device)
    scale = exact.evaluate(zero)[1].norm().item()
    x = zero.to(operator.dtype)
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    generator = torch.Generator().manual_seed(seed)
    rate, steps, status = preset.rate, 0, Status.converged
    try:
        for epoch in range(preset.epochs):
            if epoch in preset.drops:
                rate /= 10
            for batch in torch.randperm(operator.rows, generator=generator).split(preset.batch):
                steps += 1
                gradient = _gradient(problem, x, tokens[batch.numpy()], labels[batch].to(operator.device), batch)
                if preset.penalty == "ridge":
                    gradient.add_(x, alpha=problem.ridge)
                elif preset.penalty == "norm":
                    gradient.add_(x, alpha=1e-5 / (1e-6 + (x @ x).item()) ** 0.5)
                else:
                    x.mul_(1 - rate * problem.ridge)
                first.lerp_(gradient, 0.1)
                second.lerp_(gradient * gradient, 0.001)
                step = (first / (1 - 0.9**steps)) / ((second / (1 - 0.999**steps)).sqrt_() + 1e-8)
                x.sub_(step, alpha=rate)
            if progress is not None:
                progress(epoch + 1, float("nan"))
    except KeyboardInterrupt:
        status = Status.interrupted
    value = x.to(zero)
    objective, slope = exact.evaluate(value)
    if not torch.isfinite(slope).all():
        raise SolveError("the gradient must be finite", got=f"F = {objective}", do="a smaller rate")
    norm = slope.norm().item()
    if status is Status.converged and norm > tolerance * scale:
        status = Status.max_passes
    certificate = Certificate(norm, scale, exact.ridge, objective, operator.rows, quadratic=exact.loss.quadratic)
    return Solution(value, status, certificate, {"solver": "adam", "passes": preset.epochs + 2, "steps": steps})


def _gradient(problem: Problem, x: Tensor, tokens: np.ndarray, labels: Tensor, rows: Tensor) -> Tensor:
    """The mean loss's gradient [P] over one batch."""
    operator = problem.operator
    state = operator.prepare(tokens)
    z = problem.logits(state.logits, operator.tangent(state, operator.direction(x)))
    slope = problem.loss.gradient(z, labels) / len(labels)
    if problem.weights is not None:
        slope = slope * problem.weights.picked(labels, rows, z)
    total = torch.zeros_like(x)
    operator.tail.adjoint(operator.weights, state, slope, operator.tail.bind(operator.layout.views(total)))
    return total
