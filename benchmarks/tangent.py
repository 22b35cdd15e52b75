"""One JᵀDJ·v product: the class-row tangent against torch.func on the same tail and data.

    python benchmarks/tangent.py [--shape vit-large|vit-tiny|bundled] [--classes 101] [--tokens] [--full] [--json]

The product is what one solver iteration costs: a tangent, the loss's curvature, an adjoint, and the
sum over rows. The peer is ``torch.func.jvp`` and ``vjp`` of timm's own last block, final norm and head on
all tokens with eager attention (forward-mode AD does not go through the fused kernel), in batches of the size that
suits it best out of ``PEER_BATCHES``. Both run on the same tokens, weights and direction in float32, and their results
are compared. ``ready_s``: what a solve does once for a block of rows before its products. ``--full``: the shapes of the
documentation, one after the other.

``roofline_fraction`` is the time that the machine needs at least, the larger of bytes over copy
bandwidth and operations over the rate of a large matrix product, both measured in the same run, over
the product's time. Bytes: tokens once, weights, direction and gradient once each.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from record import json_parser, print_report, seconds
from timm.models.vision_transformer import VisionTransformer
from torch.func import functional_call, jvp, vjp

from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.class_row.block import BlockState
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec

SHAPES = {
    "vit-large": {"samples": 64, "tokens": 197, "width": 1024, "heads": 16},
    "vit-tiny": {"samples": 256, "tokens": 197, "width": 192, "heads": 3},
    "bundled": {"samples": 256, "tokens": 65, "width": 96, "heads": 3},
}


PEER_BATCHES = (8, 32, 128, 256)
FULL = (  # shape, rows, classes, whether from the tokens in every product
    ("vit-large", 64, 101, False),
    ("vit-tiny", 256, 101, False),
    ("vit-tiny", 256, 101, True),
    ("vit-tiny", 256, 10, False),
    ("vit-tiny", 256, 10, True),
    ("bundled", 256, 10, False),
    ("bundled", 256, 10, True),
)


def median(run: Callable[[], object], repeats: int, device: str) -> float:
    """Seconds: of ``repeats`` runs after one to warm up."""
    return statistics.median([seconds(run, device) for _ in range(repeats + 1)][1:])


def machine_rates(device: str, side: int = 4096) -> tuple[float, float]:
    """Bytes a second of a copy (read and write counted) and float32 operations a second of a matrix product."""
    source = torch.randn(4 * side * side, device=device)
    target = torch.empty_like(source)
    a = torch.randn(side, side, device=device)
    out = torch.empty_like(a)
    copy = 2 * source.nbytes / median(lambda: target.copy_(source), 7, device)
    gemm = 2 * side**3 / median(lambda: torch.matmul(a, a, out=out), 3, device)
    return copy, gemm


def least(shape: dict[str, int], classes: int, parameters: int, instead: int = 0) -> tuple[float, float]:
    """Bytes and operations that one product cannot do without, J and Jᵀ together.

    instead: how many rows of the width stand in the tokens' place, where they do.
    """
    n, t, d, H = (shape[k] for k in ("samples", "tokens", "width", "heads"))
    # Base, direction and gradient, each as many numbers as there are parameters; the tokens once.
    moved = 4 * (n * (instead or t) * d + 3 * parameters)
    # Two covariance products, each two reads of the tokens against H rows; or two of what is there instead.
    token = 2 * 2 * instead * d if instead else 2 * 4 * H * t * d
    maps = 2 * 4 * (12 * d * d + classes * d)  # every matrix: W δx and δW x forward, Wᵀ g and g ⊗ x back
    return moved, n * (token + maps)


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument(
        "--shape", choices=SHAPES, action="append", help="repeatable; vit-large and vit-tiny by default"
    )
    parser.add_argument("--samples", type=int, help="rows in a block; 64 and 256 by default")
    parser.add_argument("--classes", type=int, default=101)
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peer-repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--full", action="store_true", help="the shapes of the documentation")
    args = parser.parse_args()
    copy, gemm = machine_rates(args.device)
    report: dict[str, object] = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "copy_bytes_per_s": copy,
        "gemm_flop_per_s": gemm,
    }
    named = [(name, args.samples, args.classes, args.tokens) for name in args.shape or ["vit-large", "vit-tiny"]]
    results = []
    for name, *sizes in FULL if args.full else named:
        args.samples, args.classes, args.tokens = sizes
        results.append({"shape": name, "from_tokens": args.tokens, **measure(name, args, copy, gemm)})
    report["products"] = results
    if args.json:
        print_report(report)
        return
    print(f"copy {copy / 1e9:.1f} GB/s, float32 product {gemm / 1e9:.0f} GFLOP/s, {torch.get_num_threads()} threads")
    for r in results:
        print(
            f"{r['shape']}, {r['samples']} rows, {r['classes']} classes: {1e3 * r['product_s']:.1f} ms a product,"
            f" torch.func {1e3 * r['torch_func_s']:.0f} ms in batches of {r['torch_func_batch']}:"
            f" {r['ratio_vs_torch_func']:.0f}x; roofline {1e3 * r['roofline_s']:.1f} ms"
            f" ({r['roofline_fraction']:.2f} of it); relative difference {r['relative_difference']:.1e}"
            + (f"; made ready in {1e3 * r['ready_s']:.1f} ms" if r["ready_s"] else "")
        )


def made(shape: dict[str, int], classes: int, device: str) -> tuple[VisionTransformer, Base]:
    """One block with norm and head of random weights, and the base point around it."""
    t, d, H = (shape[k] for k in ("tokens", "width", "heads"))
    torch.manual_seed(0)
    model = VisionTransformer(img_size=16, patch_size=16, embed_dim=d, depth=1, num_heads=H, num_classes=classes)
    model = model.to(device).eval()
    block: Any = model.blocks[0]
    block.attn.fused_attn = False
    tail, config = class_row(model, t)
    return model, make_base(tail, config, classes, TangentSpec())


def class_row(model: Any, tokens: int) -> tuple[dict[str, torch.Tensor], TailConfig]:
    """The tail of a ViT of timm's that has one block, and its description: all of it but the patches."""
    tail = {k: v for k, v in model.state_dict().items() if k.startswith(("blocks.0.", "norm."))}
    width, heads = model.embed_dim, model.blocks[0].attn.num_heads
    config = TailConfig(
        path="class row",
        start="blocks.0",
        blocks=("blocks.0",),
        shape=(tokens, width),
        class_token=True,
        width=width,
        classes=model.num_classes,
        parameters=tuple(tail),
        end=ClassRow(prefix="blocks.0", width=width, heads=heads, eps1=1e-6, eps2=1e-6, eps_final=1e-6),
    )
    return tail, config


def measure(name: str, args: argparse.Namespace, copy: float, gemm: float) -> dict[str, Any]:
    """Both products at one shape, and how far apart their results are."""
    shape, device = SHAPES[name] | ({"samples": args.samples} if args.samples else {}), args.device
    n, t, d = (shape[k] for k in ("samples", "tokens", "width"))
    model, base = made(shape, args.classes, device)
    block = model.blocks[0]
    tokens = torch.randn(n, t, d)
    labels = np.arange(n) % args.classes
    rows = ArrayRows(tokens.numpy(), labels)
    operator = TangentOperator(base, [rows], device=device, memory=1 << 40, repeated=not args.tokens)
    loss = RSL()
    problem = Problem(operator, loss, 1e-9)
    v = torch.randn(base.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    tokens = tokens.to(device)
    state = {k: x.to(device) for k, x in base.state.items()}
    named = base.layout.views(v.float())
    curvature = loss.curvature(torch.zeros(n, args.classes), torch.from_numpy(labels)).to(device) / n

    def forward(parameters: dict[str, torch.Tensor], some: torch.Tensor) -> torch.Tensor:
        inner = {k[9:]: x for k, x in parameters.items() if k.startswith("blocks.0.")}
        rows = functional_call(block, inner, (some,))
        rows = functional_call(model.norm, {k[5:]: x for k, x in parameters.items() if k.startswith("norm.")}, (rows,))
        head = {k[5:]: x for k, x in parameters.items() if k.startswith("head.")}
        logits: torch.Tensor = functional_call(model.head, head, (rows[:, 0],))
        return logits

    def peer(batch: int) -> dict[str, torch.Tensor]:
        sums: dict[str, torch.Tensor] = {}
        for some, weights in zip(tokens.split(batch), curvature.split(batch), strict=True):
            part = partial(forward, some=some)
            change, back = jvp(part, (state,), (named,))[1], vjp(part, state)[1]
            sums = {k: x + sums.get(k, 0) for k, x in back(weights * change)[0].items()}
        return sums

    ours = problem.hessian(v) - 1e-9 * v
    batches = [batch for batch in PEER_BATCHES if batch < n] + [n]
    theirs = base.layout.flatten(peer(batches[0]))
    v = v.float()
    out = torch.empty_like(v)
    product = median(lambda: problem.hessian(v, out), args.repeats, device)
    slow = {batch: median(partial(peer, batch), args.peer_repeats, device) for batch in batches}
    best = min(slow, key=lambda batch: slow[batch])
    make_ready, building, instead = operator.ready, 0.0, 0
    if make_ready is not None:
        prepared = operator.prepare(tokens.cpu().numpy())
        building = median(lambda: make_ready(operator.weights, prepared), args.repeats, device)
        ((held, _),) = operator.blocks()
        assert isinstance(held, BlockState)
        instead = d if held.f_by_c is None else args.classes * shape["heads"]
    moved, operations = least(shape, args.classes, base.layout.size, instead)
    roofline = max(moved / copy, operations / gemm)
    return {
        **shape,
        "classes": args.classes,
        "parameters": base.layout.size,
        "product_s": product,
        "ready_s": building,
        "torch_func_s": slow[best],
        "torch_func_batch": best,
        "torch_func_by_batch": {str(batch): took for batch, took in slow.items()},
        "ratio_vs_torch_func": slow[best] / product,
        "roofline_s": roofline,
        "roofline_bytes_s": moved / copy,
        "roofline_flop_s": operations / gemm,
        "roofline_fraction": roofline / product,
        "relative_difference": ((ours - theirs).norm() / theirs.norm()).item(),
    }


if __name__ == "__main__":
    main()
