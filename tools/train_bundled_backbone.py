"""Train the backbone that ships inside the package, on CIFAR-10.

    TAFTCACHE_DATA=<folder> python tools/train_bundled_backbone.py --out taftcache/backbone/bundled

Reads ``cifar10_train_jpeg.npz`` and ``cifar10_test_jpeg.npz`` (keys ``blob``, ``offset``,
``label``, ``classes``) and writes timm's folder layout: ``config.json`` and
``model.safetensors`` (float16, about 1.4 MB). Activations and gradients are bfloat16,
whose products CPUs with matrix units do about ten times faster than float32.

The accuracy printed at the end, and written to ``config.json``, is that of the float16
file read back and run in float32: what a user of the package gets.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.layers.config import set_fused_attn
from torch.nn import functional as F

ARCHITECTURE = "vit_tiny_patch16_224"
MODEL_ARGS: Any = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3, "num_classes": 10}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def read_split(path: Path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Decode one CIFAR-10 archive to uint8 images [n, 3, 32, 32], labels [n] and class names."""
    with np.load(path) as archive:
        blob, offset, label = archive["blob"].tobytes(), archive["offset"], archive["label"]
        classes = [str(name) for name in archive["classes"]]
    decoded = [np.asarray(Image.open(io.BytesIO(blob[a:b])).convert("RGB")) for a, b in pairwise(offset)]
    images = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(label.astype(np.int64)), classes


def normalise(images: torch.Tensor) -> torch.Tensor:
    """uint8 [n, 3, 32, 32] to float32, CIFAR-10 mean and deviation."""
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    return (images.float() / 255 - mean) / std


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random shift by up to four pixels (reflected) and a horizontal flip, per image."""
    n = len(images)
    padded = F.pad(images.float(), (4, 4, 4, 4), mode="reflect").to(torch.uint8)
    dy, dx = torch.randint(0, 9, (2, n), generator=generator)
    columns = dx[:, None] + torch.arange(32)
    flipped = torch.rand(n, generator=generator) < 0.5
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    rows = dy[:, None] + torch.arange(32)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Top-1 of ``model`` in float32."""
    model.eval()
    with torch.inference_mode():
        predicted = torch.cat([model(normalise(batch)).argmax(1) for batch in images.split(500)])
    return (predicted == labels).float().mean().item()


def train(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, test: tuple[torch.Tensor, torch.Tensor],
    args: argparse.Namespace,
) -> torch.nn.Module:  # fmt: skip
    """AdamW with warm-up and a cosine; returns the exponential moving average of the weights."""
    decayed = [p for p in model.parameters() if p.ndim > 1 and p.shape[0] != 1]
    plain = [p for p in model.parameters() if not (p.ndim > 1 and p.shape[0] != 1)]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
    steps = args.epochs * (len(images) // args.batch)
    warm = min(1000, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda k: min(k / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, k / steps)))) + 1e-4
    )
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    # bfloat16 activations and gradients over float32 weights: a 30 % shorter step than autocast.
    worker = copy.deepcopy(model).to(torch.bfloat16)
    pairs = list(zip(model.parameters(), worker.parameters(), strict=True))
    generator = torch.Generator().manual_seed(args.seed)
    for epoch in range(args.epochs):
        start, total = time.perf_counter(), 0.0
        order = torch.randperm(len(images), generator=generator)
        for index in order[: len(order) // args.batch * args.batch].split(args.batch):
            batch = normalise(augment(images[index], generator))
            logits = worker(batch.to(torch.bfloat16)).float()
            loss = F.cross_entropy(logits, labels[index], label_smoothing=args.label_smoothing)
            worker.zero_grad(set_to_none=True)
            loss.backward()
            for master, copied in pairs:
                assert copied.grad is not None
                master.grad = copied.grad.float()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            with torch.no_grad():
                for master, copied in pairs:
                    copied.copy_(master)
            schedule.step()
            average.update_parameters(model)
            total += loss.item()
        seconds = time.perf_counter() - start
        shown = f"{accuracy(average.module, *test):.4f}" if epoch % 5 == 4 or epoch == args.epochs - 1 else "-"
        print(
            f"epoch {epoch + 1:3d}/{args.epochs}  loss {total / (len(images) // args.batch):.4f}"
            f"  test (averaged) {shown}  {seconds:.0f} s",
            flush=True,
        )
    return average.module


def save(model: torch.nn.Module, folder: Path, classes: list[str]) -> None:
    """Write timm's folder layout with float16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.to(torch.float16).contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors"
    )
    config = {
        "architecture": ARCHITECTURE,
        "num_classes": 10,
        "num_features": MODEL_ARGS["embed_dim"],
        "global_pool": "token",
        "model_args": MODEL_ARGS,
        "pretrained_cfg": {
            "tag": "taftcache_cifar10",
            "custom_load": False,
            "input_size": [3, 32, 32],
            "fixed_input_size": True,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": list(MEAN),
            "std": list(STD),
            "num_classes": 10,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": "apache-2.0",
            "label_names": classes,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("TAFTCACHE_DATA"), help="folder with the two archives"
    )
    parser.add_argument("--out", type=Path, default=Path("taftcache/backbone/bundled"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="train on the first LIMIT shuffled images only (a trial run)")
    args = parser.parse_args()
    if args.data is None:
        parser.error("name the folder with --data or TAFTCACHE_DATA")
    torch.manual_seed(args.seed)
    set_fused_attn(False)  # the fused kernel's backward takes half of a step on CPUs
    images, labels, classes = read_split(Path(args.data) / "cifar10_train_jpeg.npz")
    kept = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed))[: args.limit]
    images, labels = images[kept], labels[kept]
    test = read_split(Path(args.data) / "cifar10_test_jpeg.npz")[:2]
    model = timm.create_model(ARCHITECTURE, **MODEL_ARGS)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(images):,} images", flush=True)
    start = time.perf_counter()
    trained = train(model, images, labels, test, args)
    save(trained, args.out, classes)
    stored = timm.create_model(ARCHITECTURE, **MODEL_ARGS)
    stored.load_state_dict(load_file(args.out / "model.safetensors"))
    final = accuracy(stored, *test)
    config = json.loads((args.out / "config.json").read_text())
    config["pretrained_cfg"]["description"] = (
        f"CIFAR-10, {args.epochs} epochs, seed {args.seed}; top-1 on {len(test[1]):,} test images: {final:.4f}"
    )
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"test accuracy of the stored file: {final:.4f}  ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
