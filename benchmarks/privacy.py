"""What privacy costs a step: clipping in closed form, against the same gradient without it and against Opacus.

    python benchmarks/privacy.py --rows 1024 --json

Random weights and rows at the size of DeiT-tiny, one block, final norm and head; all of it is trained. Everything runs
on one thread, alternating, and the best of several rounds counts. ``step_ratio`` is a private step (norms, clipped sum
in integers, and what of the noise is not drawn beside it) over the gradient without privacy on the same rows at the
same point, with the rows' states in memory for both. Opacus trains the network itself, hence its own gradient without
privacy is given too; it is left out where it is not installed (``pip install opacus``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import timm
import torch
from record import json_parser, print_report
from tangent import class_row
from torch import Tensor, nn

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.privacy.descent import Descent, clipped_sum, descend
from taftcache.privacy.grid import Grid
from taftcache.privacy.network import TangentNetwork
from taftcache.privacy.noise import SystemBits, discrete_gaussian
from taftcache.tangent.base import make_base
from taftcache.tangent.rows import ArrayRows

TOKENS, WIDTH, CLASSES = 197, 192, 101


class Tail(nn.Module):
    """timm's own block, norm and head on the class row."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.block, self.norm, self.head = model.blocks[-1], model.norm, model.head
        self.block.attn.fused_attn = False

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.block(rows))[:, 0])
        return logits


def best(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Least seconds of each, alternating."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            found[name] = min(found[name], time.perf_counter() - begin)
    return found


def opacus_steps(tail: nn.Module, rows: Tensor, labels: Tensor, batch: int) -> dict[str, Callable[[], None]]:
    """A clipped sum by Opacus with per-sample gradients (hooks) and with ghost norms, without noise."""
    try:
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    except ImportError:
        return {}
    import copy
    import warnings

    warnings.simplefilter("ignore")
    loss = nn.CrossEntropyLoss(reduction="none")
    hooks = GradSampleModule(copy.deepcopy(tail))
    ghost = GradSampleModuleFastGradientClipping(copy.deepcopy(tail), max_grad_norm=1.0, use_ghost_clipping=True)

    def by_hooks() -> None:
        for k in range(0, len(rows), batch):
            hooks.zero_grad(set_to_none=True)
            loss(hooks(rows[k : k + batch]), labels[k : k + batch]).sum().backward()
            parts = [p.grad_sample for p in hooks.parameters()]
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in parts]).norm(dim=0)
            factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
            for g in parts:
                torch.einsum("n,n...->...", factor, g)

    def by_ghost_norms() -> None:
        for k in range(0, len(rows), batch):
            ghost.zero_grad(set_to_none=True)
            each = loss(ghost(rows[k : k + batch]), labels[k : k + batch])
            each.sum().backward(retain_graph=True)
            factor = ghost.get_clipping_coef()
            ghost.zero_grad(set_to_none=True)
            ghost.disable_hooks()
            (factor * each).sum().backward()
            ghost.enable_hooks()

    return {"opacus_hooks": by_hooks, "opacus_ghost": by_ghost_norms}


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64, help="rows at a time for Opacus")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_patch16_224", depth=1, num_classes=CLASSES)
    base = make_base(*class_row(model, TOKENS), CLASSES)
    tokens = np.random.default_rng(0).normal(0, 1, (options.rows, TOKENS, WIDTH)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, CLASSES, options.rows)
    network = TangentNetwork(base, [ArrayRows(tokens, labels)], base.layout, memory=8 << 30)
    loss, size = CrossEntropy(), base.layout.size
    delta = torch.zeros(size, dtype=torch.float64)
    run = Descent(Grid(1.0, 1.0, 9.83), 1, 1.0, options.rows)
    bits = SystemBits()

    def plain() -> None:
        network.operator.accumulate(delta, lambda z, dz, y: loss.gradient(z if dz is None else z + dz, y))

    ours = {
        "gradient": plain,
        "clipped_sum": lambda: clipped_sum(network, loss, delta, run),
        "private_step": lambda: descend(network, loss, run, bits),
        "noise": lambda: discrete_gaussian(size, run.grid.width, bits),
    }
    tail = Tail(model)
    rows, targets = torch.from_numpy(tokens), torch.from_numpy(labels)

    def plain_network() -> None:
        for k in range(0, len(rows), options.batch):
            tail.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(
                tail(rows[k : k + options.batch]), targets[k : k + options.batch], reduction="sum"
            ).backward()

    peers = opacus_steps(tail, rows, targets, options.batch)
    peers |= {"opacus_own_gradient": plain_network} if peers else {}
    for function in (*ours.values(), *peers.values()):
        function()
    seconds = best(ours, options.rounds) | best(peers, max(1, options.rounds // 3))
    report = {
        "rows": options.rows,
        "parameters": size,
        "seconds": seconds,
        "step_ratio": seconds["private_step"] / seconds["gradient"],
        "clipped_sum_ratio": seconds["clipped_sum"] / seconds["gradient"],
        "noise_ratio": seconds["noise"] / seconds["gradient"],
        "opacus_over_ours": {n: seconds[n] / seconds["private_step"] for n in peers if n != "opacus_own_gradient"},
        "opacus_over_its_gradient": {
            n: seconds[n] / seconds["opacus_own_gradient"] for n in peers if n != "opacus_own_gradient"
        },
    }
    if options.json:
        print_report(report)
    else:
        for name, value in seconds.items():
            print(f"{name:<22} {value:.3f} s")
        print(f"step ratio {report['step_ratio']:.2f}")


if __name__ == "__main__":
    main()
