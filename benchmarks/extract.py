"""Throughput of stage 1 (decode, forward, append to a store) against the bare forward pass.

    python benchmarks/extract.py [--data DIR] [--images N] [--batch B] [--json]

With DIR, or TAFTCACHE_DATA in the environment, DeiT-tiny over the Caltech-101 of that folder;
without, the bundled backbone over scikit-learn's digits. Repeats are interleaved, figures are medians.

What is timed
    bare forward     the frozen prefix (all blocks but the last) on the same images, decoded,
                     normalised and in memory; same batch, same torch threads, nothing else
    core forward     the same with the product's schedule on a CPU: whole batches, one core each
    whole forward    the model to its logits, likewise: what a program without a cut would run
    decoding         reading, decoding, resizing and cropping alone, with all decoding threads
    from files       the product: source -> threads -> prefix -> store, commit included
    from memory      the same over images that are already model-sized uint8 arrays: what is left
                     is the pipeline's own overhead

What is reported
    fraction_of_bare_forward            from files / bare forward
    fraction_of_core_forward            from files / core forward
    fraction_of_whole_forward           from files / whole forward
    fraction_of_decode_plus_forward     from files / (decoding, then core forward, one after the other)
    memory_fraction_of_bare_forward     from memory / bare forward
    memory_fraction_of_core_forward     from memory / core forward

Where processors do both, decoding is work that the bare forward pass does not have and no overlap can
hide: there ``fraction_of_decode_plus_forward`` says how good the pipeline is, and ``fraction_of_bare_forward``
can exceed it, even 1, because whole batches per core beat products split over cores. On a GPU the core
forward is the bare forward.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import json_parser, print_figures

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.device import resolve_device
from taftcache.backbone.forward.engine import CpuEngine, ImageBatch
from taftcache.backbone.forward.extract import default_batch, extract
from taftcache.backbone.model import load_backbone, wrap_model
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.arrays import ArraySource, AskedArrays, split_of
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import BackboneSpec, DataSpec, PreprocessSpec
from taftcache.cache.store import FeatureStore
from taftcache.tangent.device import full_float32


class NullSink:
    """Takes the rows and forgets them (``--no-store``)."""

    def __init__(self) -> None:
        self.consumed = 0

    def append(self, tokens: Any, ids: Any, labels: Any, skipped: Any = ()) -> None:
        self.consumed += len(ids) + len(skipped)


def run_stage(
    cut: Cut, transform: Preprocess, source: Source, args: argparse.Namespace, count: int | None = None
) -> None:
    """One whole extraction, of the first ``count`` images, into a new store, which is thrown away."""
    order = range(len(source.items) if count is None else count)
    options = {"batch": args.batch, "workers": args.workers, "dtype": "float16"}  # the store's, as the product has it
    if args.no_store:
        extract(cut, transform, source, order, NullSink(), **options)
        return
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        identity = {"weights": cut.backbone.weights_digest}
        store = FeatureStore.create(
            Path(folder) / "store", identity=identity, classes=source.classes, plan={}, recipe={}
        )
        ids = [source.items[k].id for k in order]
        with store, store.writer("all", "train", tokens_shape=cut.tokens_shape, candidates=ids) as writer:
            extract(cut, transform, source, order, writer, **options)
            writer.commit()


def decode_all(transform: Preprocess, source: Source, workers: int) -> torch.Tensor:
    """uint8 [n, 3, h, w] with ``workers`` threads."""
    with ThreadPoolExecutor(workers) as pool:
        decoded = pool.map(lambda k: transform.pixels(source.read(k)), range(len(source.items)))
        return torch.stack(list(decoded))


def forward_all(run: Callable[[torch.Tensor], torch.Tensor], batches: list[torch.Tensor]) -> None:
    with torch.inference_mode(), full_float32(batches[0].device):
        for batch in batches:
            run(batch)
        if batches[0].device.type == "cuda":
            torch.cuda.synchronize()


class Ready:
    """``Work`` for images that are ready: the forward pass alone, on the product's engine."""

    batch = 1

    def __init__(self, cut: Cut, batches: list[torch.Tensor]) -> None:
        self._cut, self._batches = cut, batches

    def decode(self, span: Sequence[int], stop: bool) -> ImageBatch:
        return ImageBatch(indexes=list(span))

    def forward(self, done: ImageBatch) -> None:
        with torch.inference_mode():
            self._cut.prefix(self._batches[done.indexes[0]])


def forward_by_core(cut: Cut, batches: list[torch.Tensor], workers: int | None) -> None:
    if cut.device.type != "cpu":
        forward_all(cut.prefix, batches)
        return
    engine = CpuEngine(Ready(cut, batches), workers, stop=True)  # type: ignore[arg-type]
    try:
        for _ in engine.batches(range(len(batches))):
            pass
    finally:
        engine.close()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    device = resolve_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.data is None:
        spec, data = BackboneSpec(), DataSpec(source="digits", limit=args.images)
    else:
        weights = str(args.data / "deit_tiny_patch16_224.safetensors")
        spec = BackboneSpec(model="deit_tiny_patch16_224", weights=weights)
        data = DataSpec(source="folder", train=str(args.data / "caltech101" / "train"), limit=args.images)
    backbone = load_backbone(spec, device=device)
    cut, transform, source = Cut(backbone), Preprocess(backbone), open_source(data)[0]
    args.batch = args.batch or default_batch(cut)
    decoders = args.workers or (torch.get_num_threads() if device.type == "cpu" else os.cpu_count() or 1)

    pixels = decode_all(transform, source, decoders)
    n = len(pixels) // args.batch * args.batch
    if n < len(source.items):
        raise SystemExit(f"--images must be a multiple of --batch that the data has: {len(source.items)} came")
    batches = [transform.normalise(part.to(device)) for part in pixels.split(args.batch)]
    arrays = {"images": pixels.numpy(), "labels": np.array([source.classes[i.label] for i in source.items])}
    asked = AskedArrays(Path("memory.npz"), "images", "labels")
    memory = ArraySource(asked, arrays, split_of(asked, arrays))
    # At crop_pct 1 images of the model's size pass through resizing and cropping as they are.
    as_is = Preprocess(wrap_model(backbone.model, backbone.name, PreprocessSpec(crop_pct=1.0), device))

    timed: dict[str, Callable[[], Any]] = {
        "bare_forward": lambda: forward_all(cut.prefix, batches),
        "whole_forward": lambda: forward_all(backbone.model, batches),
        "core_forward": lambda: forward_by_core(cut, batches, args.workers),
        "decoding": lambda: decode_all(transform, source, decoders),
        "from_files": lambda: run_stage(cut, transform, source, args),
        "from_memory": lambda: run_stage(cut, as_is, memory, args),
    }
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for repeat in range(args.repeats + 1):
        for name, run in timed.items():
            begin = time.perf_counter()
            run()
            if repeat > 0:  # the first round warms caches and thread pools up
                seconds[name].append(time.perf_counter() - begin)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    rate = {name: n / value for name, value in median.items()}
    return {
        "images_per_s": rate["from_files"],
        "bare_images_per_s": rate["bare_forward"],
        "fraction_of_bare_forward": rate["from_files"] / rate["bare_forward"],
        "fraction_of_whole_forward": rate["from_files"] / rate["whole_forward"],
        "fraction_of_core_forward": rate["from_files"] / rate["core_forward"],
        "fraction_of_decode_plus_forward": (median["decoding"] + median["core_forward"]) / median["from_files"],
        "memory_images_per_s": rate["from_memory"],
        "memory_fraction_of_bare_forward": rate["from_memory"] / rate["bare_forward"],
        "memory_fraction_of_core_forward": rate["from_memory"] / rate["core_forward"],
        "core_forward_images_per_s": rate["core_forward"],
        "whole_forward_images_per_s": rate["whole_forward"],
        "decoding_images_per_s": rate["decoding"],
        "seconds": {name: [round(v, 4) for v in values] for name, values in seconds.items()},
        "model": backbone.name,
        "data": data.source,
        "images": n,
        "tokens_shape": list(cut.tokens_shape),
        "batch": args.batch,
        "repeats": args.repeats,
        "store": "none" if args.no_store else "taftcache.cache.store.FeatureStore, float16",
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "working_threads": decoders,
        "cores": os.cpu_count(),
        "load_before": args.load,
    }


def main() -> None:
    parser = json_parser(__doc__)
    folder = os.environ.get("TAFTCACHE_DATA")
    parser.add_argument("--data", type=Path, default=Path(folder) if folder else None, help="folder of the data")
    parser.add_argument("--images", type=int, help="how many, a multiple of the batch (default 256, digits 1024)")
    parser.add_argument("--batch", type=int, help="rows of a forward pass (default: the product's own)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, help="working threads (default: the product's own)")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scratch", type=Path, help="where the stores are made (default: the system's)")
    parser.add_argument("--no-store", action="store_true", help="throw the rows away instead of storing them")
    args = parser.parse_args()
    args.images = args.images or (1024 if args.data is None else 256)
    args.load = round(os.getloadavg()[0], 2)
    print_figures(measure(args), args.json)


if __name__ == "__main__":
    main()
