"""One JᵀDJ·v product of a tail of k blocks: closed-form layers against autograd, in forward passes of that tail.

    python benchmarks/layers.py [--shape vit-tiny] [--blocks 1 --blocks 2] [--pool avg] [--clock cpu] [--json]

A forward pass is timm's own tail without gradients, with fused attention. The product is a tangent, a weight for
each row and an adjoint; "kept" has the base point's state in memory, "streamed" computes it anew each time. Peers on
the same rows (``samples``), weights and direction, with eager attention, through which alone
derivatives of derivatives go: ``torch.func`` (jvp, then vjp) and reverse mode alone (the adjoint of the adjoint for
J v, then the adjoint). All are run in turn, round by round, and the median over the rounds is reported. Results are
compared. With ``--clock cpu`` seconds are the processor's and not the wall's, for a machine that others use too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from record import json_parser, print_report
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from taftcache.backbone.cut.describe import DescribedTail, describe
from taftcache.tangent.base import make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.layers.tail import LayersTail
from taftcache.tangent.operator import ON_GPU
from taftcache.tangent.spec import TangentSpec

SHAPES = {
    "vit-large": {"samples": 4, "side": 14, "width": 1024, "heads": 16},
    "vit-tiny": {"samples": 8, "side": 14, "width": 192, "heads": 3},
    "bundled": {"samples": 64, "side": 8, "width": 96, "heads": 3},
}
Pool = Literal["token", "avg"]


class Tail(nn.Module):
    """timm's blocks, norm, pooling and head on tokens."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.forward_head(self.model.norm(self.model.blocks(tokens)))


def medians(runs: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each, all run in turn in every round after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(rounds + 1):
        for name, run in runs.items():
            begin = clock()
            run()
            if k:
                times[name].append(clock() - begin)
    return {name: statistics.median(found) for name, found in times.items()}


def wall(device: str) -> Callable[[], float]:
    """The wall's seconds once all that the device was asked for is done."""

    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    return now


def measure(
    shape: dict[str, int], blocks: int, pool: Pool, rounds: int, clock: Callable[[], float], device: str = "cpu"
) -> dict[str, float]:
    """All ways at one shape and depth."""
    d, heads, n, K = shape["width"], shape["heads"], shape["samples"], 101
    torch.manual_seed(0)
    model: Any = VisionTransformer(
        img_size=16 * shape["side"], embed_dim=d, depth=blocks, num_heads=heads, num_classes=K, global_pool=pool
    ).eval()
    found = describe(model, blocks)
    assert isinstance(found, DescribedTail)
    names = tuple(f"blocks.{k}" for k in range(blocks))
    state = {
        name: t.to(device)
        for name, t in model.state_dict().items()
        if name.startswith(("blocks.", "norm.", "fc_norm."))
    }
    rows = torch.randn(n, 1 + shape["side"] ** 2, d).to(device)
    config = TailConfig(
        path="layers",
        start=names[0],
        blocks=names,
        shape=tuple(rows.shape[1:]),
        width=d,
        classes=K,
        parameters=tuple(state),
        layers=found.layers,
        end=found.end,
    )
    base = make_base(state, config, K, TangentSpec(blocks=blocks)).to(torch.float32, device)
    tail = LayersTail(config)
    w = tail.bind(base.state)
    vector = 0.01 * torch.randn(base.layout.size).to(device)
    delta, total = tail.bind(base.layout.views(vector)), torch.zeros_like(vector)
    out = tail.bind(base.layout.views(total))
    at_once = tail.block_rows * (ON_GPU if device == "cuda" else 1)
    parts = rows.split(at_once)
    kept = [tail.value(w, part) for part in parts]
    model.load_state_dict(base.state, strict=False)
    model.to(device)
    end = Tail(model)
    parameters = {f"model.{name}": tensor for name, tensor in base.state.items()}
    change = {f"model.{name}": tensor for name, tensor in base.layout.views(vector).items()}

    def fused(on: bool) -> None:
        for block in model.blocks:
            block.attn.fused_attn = on

    def forward() -> None:
        fused(True)
        with torch.no_grad():
            for part in parts:
                end(part)

    def product() -> Tensor:
        total.zero_()
        for held in kept:
            tail.adjoint(w, held, tail.tangent(w, held, delta), out)
        return total

    def streamed() -> None:
        for part in parts:
            held = tail.value(w, part)
            tail.adjoint(w, held, tail.tangent(w, held, delta), out)

    def on(part: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
        fused(False)
        return lambda named: functional_call(end, named, (part,))

    def forward_mode() -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        for part in parts:
            moved, back = jvp(on(part), (parameters,), (change,))[1], vjp(on(part), parameters)[1]
            sums = {name: g + sums.get(name, 0) for name, g in back(moved)[0].items()}
        return sums

    def reverse_mode() -> None:
        for part in parts:
            logits, back = vjp(on(part), parameters)[:2]
            back_of_back = vjp(lambda r, back=back: back(r)[0], torch.zeros_like(logits))[1]
            back(back_of_back(change)[0])

    mine = product().clone()
    theirs = torch.cat([forward_mode()[f"model.{name}"].reshape(-1) for name in base.layout])
    runs: dict[str, Callable[[], object]] = {
        "forward": forward,
        "product": product,
        "streamed": streamed,
        "torch_func": forward_mode,
        "reverse": reverse_mode,
    }
    took = medians(runs, rounds, clock)
    held_bytes = sum(t.nbytes for part in kept for t in tail.tensors(part))
    return {
        "blocks": blocks,
        "samples": n,
        "rows_at_once": at_once,
        "state_bytes_per_sample": held_bytes / n,
        **{f"{name}_s": seconds for name, seconds in took.items()},
        **{f"{name}_in_forwards": seconds / took["forward"] for name, seconds in took.items() if name != "forward"},
        "relative_difference": ((mine - theirs).norm() / theirs.norm()).item(),
    }


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="vit-tiny")
    parser.add_argument("--blocks", type=int, action="append", help="repeatable; 1, 2 and 7 by default")
    parser.add_argument("--pool", choices=get_args(Pool), default="token")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()
    clock = time.process_time if args.clock == "cpu" else wall(args.device)
    shape, depths = SHAPES[args.shape], args.blocks or [1, 2, 7]
    results = [measure(shape, k, args.pool, args.rounds, clock, args.device) for k in depths]
    if args.json:
        print_report({"shape": args.shape, "results": results})
        return
    for r in results:
        print(
            f"{args.shape}, {args.pool} pooling, {r['blocks']} blocks: forward {1e3 * r['forward_s']:.0f} ms; in"
            f" forward passes: product {r['product_in_forwards']:.2f}, streamed {r['streamed_in_forwards']:.2f},"
            f" torch.func {r['torch_func_in_forwards']:.2f}, reverse mode {r['reverse_in_forwards']:.2f}; state"
            f" {r['state_bytes_per_sample'] / 1e6:.2f} MB a sample; relative difference {r['relative_difference']:.1e}"
        )


if __name__ == "__main__":
    main()
