"""Prediction with a tangent model against the plain model's forward pass.

    python benchmarks/inference.py [--model NAME]... [--blocks K]... [--images N] [--device cpu|cuda] [--json]

``ratio_vs_forward`` is the time of f(x) + J(x) Δw, from preprocessed images to logits, over that of the same
timm model's own forward pass on the same images, in turns in one run. ``blocks`` is how many of the last blocks
are linearised ("all": every one). The frozen layers cost the same either way; of the linearised ones, those before
the last cost a value and a tangent at all tokens, and the last only its class row. Logits are compared with
``torch.func.jvp`` of the whole model.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
from typing import Any

import timm
import torch
from record import json_parser, print_report, seconds
from torch.func import functional_call, jvp

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import wrap_model
from taftcache.backbone.preprocess import Preprocess
from taftcache.model.component import Component
from taftcache.model.predictor import TangentModel
from taftcache.tangent.base import make_base
from taftcache.tangent.spec import TangentSpec

MODELS = ["deit_tiny_patch16_224", "vit_base_patch16_224"]


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--model", action="append", help=f"repeatable; {' and '.join(MODELS)} by default")
    parser.add_argument("--blocks", action="append", help='repeatable; a number or "all"; 1 and all by default')
    parser.add_argument("--images", type=int, default=16, help="in one batch")
    parser.add_argument("--classes", type=int, default=101)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    report: dict[str, Any] = {
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "images": args.images,
        "models": [
            measure(name, blocks, args) for name in args.model or MODELS for blocks in args.blocks or ["1", "all"]
        ],
    }
    if args.json:
        print_report(report)
        return
    for r in report["models"]:
        print(
            f"{r['model']}, last {r['blocks']} of {r['depth']} blocks ({r['path']}): {1e3 * r['tangent_s']:.0f} ms,"
            f" plain forward {1e3 * r['forward_s']:.0f} ms: {r['ratio_vs_forward']:.2f}x;"
            f" logits differ from torch.func by {r['relative_difference']:.1e}"
        )


def measure(name: str, blocks: str, args: argparse.Namespace) -> dict[str, Any]:
    """Both at one model and depth, in turns."""
    torch.manual_seed(0)
    plain: Any = timm.create_model(name, num_classes=args.classes).eval().to(args.device)
    depth = len(plain.blocks)
    k = depth if blocks == "all" else int(blocks)
    backbone = wrap_model(copy.deepcopy(plain), name, device=args.device)
    cut = Cut(backbone, k)
    base = make_base(cut.tail_state(), cut.tail_config(), args.classes, TangentSpec(blocks=k))
    delta = 0.02 * torch.randn(base.layout.size, dtype=torch.float64)
    model = TangentModel(
        cut, Preprocess(backbone), base, Component(base.digest, base.layout, delta), list(map(str, range(args.classes)))
    )
    weight, bias = base.config.head_names
    plain.load_state_dict({weight: base.state[weight], bias: base.state[bias]}, strict=False)
    images = torch.randn(args.images, *model.transform.image_shape, device=args.device)
    forward, tangent = [], []
    with torch.inference_mode():
        for _ in range(args.repeats + 2):
            forward.append(seconds(lambda: plain(images), args.device))
            tangent.append(seconds(lambda: model(images), args.device))
    few = images[:2]
    for module in plain.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False  # forward-mode AD does not go through the fused kernel
    named = {n: t.to(args.device) for n, t in base.state.items()}
    direction = {n: t.to(args.device, torch.float32) for n, t in base.layout.views(delta).items()}
    value, change = jvp(lambda w: functional_call(plain, w, (few,)), (named,), (direction,))[:2]
    oracle = (value + change).detach()
    return {
        "model": name,
        "blocks": k,
        "depth": depth,
        "path": base.config.path,
        "forward_s": statistics.median(forward[2:]),
        "tangent_s": statistics.median(tangent[2:]),
        "ratio_vs_forward": statistics.median(tangent[2:]) / statistics.median(forward[2:]),
        "relative_difference": ((model(few) - oracle).norm() / oracle.norm()).item(),
    }


if __name__ == "__main__":
    main()
