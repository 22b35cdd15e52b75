"""All that is to be measured on a GPU, by one command of less than nine minutes.

    python benchmarks/gpu.py [--part NAME …] [--quick] [--device cuda|cpu] [--scratch FOLDER] [--json]

Parts: extract (stage 1 of ViT-L/16, DeiT-tiny and ConvNeXt-B from synthetic JPEG files to a committed store, beside the
bare forward pass on images that are on the device), product (JᵀDJ·v, the kernel of the rows and Kronecker factors at
ViT-L/16 with 4,096 rows, beside the least time that the device needs and beside torch.func), deep (JᵀDJ·v of ViT-L/16's
last block and last seven on all tokens, in forward passes of them), whole (6,000 images of 224 pixels: extract, ten
shards, the exact model, forget one sample) and agreement (the device against the CPU, and against itself a second
time). Weights are random, and no file is read that the command did not draw.

Each part has a limit, after which it ends with what it has found. Without ``--part`` each runs in a process of its own:
one that fails is reported by its error, and the others go on. Progress goes to stderr. ``--quick`` is everything at a
size of nothing, for the command itself. ``tools/make_gpu.py`` writes docs/gpu.md's tables from the JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import layers
import numpy as np
import psutil
import timm
import torch
from extract import forward_all, run_stage
from PIL import Image
from record import json_parser, record
from safetensors.torch import save_file
from tangent import SHAPES, least, machine_rates, made, measure, median

import taftcache
from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.forward.engine import ImageBatch
from taftcache.backbone.forward.processes import Processes
from taftcache.backbone.model import Precision, in_precision, wrap_model
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.folder import FolderSource
from taftcache.cache.store import FeatureStore
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.recipe import Recipe, parse_recipe
from taftcache.solve.inverses.class_kernel import ClassKernel
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.tangent.device import full_float32
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows

TINY: dict[str, Any] = {"img_size": 32, "depth": 2, "num_classes": 4}
MODELS = ("vit_large_patch16_224", "deit_tiny_patch16_224", "convnext_base")
# In this order, should time be short.
PRECISIONS: dict[Precision, Sequence[str]] = {"float16": MODELS, "bfloat16": MODELS[:1], "float32": MODELS}
TINIEST: dict[Precision, Sequence[str]] = {"float16": ["vit_tiny_patch16_224"]}
SECONDS_EACH = 3.0  # of the bare pass, for how many images a run has
FILE = 8 << 20  # bytes of a chunk's file, about
LIMITS = {"extract": 160, "product": 70, "deep": 60, "whole": 180, "agreement": 40}  # seconds, of nine minutes
SLOW = 20  # more, until a process that does not end by itself is ended
STEP = Callable[[str], None]
FOUND = dict[str, Any]  # what a part has found so far


def extract_part(found: FOUND, device: str, quick: bool, scratch: Path, say: STEP) -> None:
    """Images a second of each model and precision: bare, from files, from memory, and decoding alone."""
    few, count, side = (6, 12, 40) if quick else (512, 12288, 256)  # few: as many as bring decoding processes
    say(f"drawing {count} images")
    source = FolderSource(draw(scratch / "images", count, side, distinct=min(count, 250)))
    found |= {"images": count, "files_on": file_system(scratch)}
    found["disk_bytes_per_s"], found["writer_bytes_per_s"] = disk_rate(scratch, quick), writer_rate(scratch, quick)
    for precision, names in (TINIEST if quick else PRECISIONS).items():
        for name in names:
            say(f"{name} in {precision}")
            torch.manual_seed(0)
            backbone = wrap_model(timm.create_model(name, **(TINY if quick else {})), name, device=device)
            cut = Cut(in_precision(backbone, precision))
            of = of_one_model(cut, source, few, device, scratch, say)
            of["disk"] = found["disk_bytes_per_s"] / (2 * math.prod(cut.tokens_shape))
            found[f"{name} {precision}"] = of | {"fraction": of["files"] / min(of["bare"], of["decoding"], of["disk"])}


def of_one_model(cut: Cut, source: FolderSource, few: int, device: str, scratch: Path, say: STEP) -> dict[str, float]:
    """Images a second beyond what it takes to begin, and the seconds that it takes to begin.

    The bare pass has no cast back to float32 and no copy to the host.
    """
    transform, batch = Preprocess(cut.backbone), min(few, 128)
    args = argparse.Namespace(batch=batch, workers=None, no_store=False, scratch=scratch)
    pixels = torch.stack([transform.pixels(source.read(k)) for k in range(2 * batch)])
    ready = transform.normalise(pixels[:batch].to(device)).to(getattr(torch, cut.backbone.precision))
    passes = partial(forward_all, cut.frozen_rows, [ready] * 4)
    eager = 4 * batch / median(passes, 3, device)
    bare = max(eager, 0.0 if device == "cpu" else batch / median(graph_of(cut, ready), 8, device))
    many = max(2 * few, min(len(source.items), int(SECONDS_EACH * bare)))
    say(f"{bare:.0f} images a second alone; {many} images")
    decoding, _ = beyond_the_start(partial(decode, transform, source), few, len(source.items), device)
    stage = partial(run_stage, cut, transform, source, args)
    files, begin = beyond_the_start(stage, few, many, device)
    found = {
        **forks(transform),
        "bare": bare,
        "eager": eager,
        "files": files,
        "decoding": decoding,
        "images": many,
        "begin_seconds": begin,
        "fraction_of_bare": files / bare,
    }
    if cut.backbone.precision == "float16":  # the fastest pass, which hides least
        # At crop_pct 1 images of the model's size pass through resizing and cropping as they are.
        as_is = Preprocess(replace(cut.backbone, data_config={**cut.backbone.data_config, "crop_pct": 1.0}))
        stage = partial(run_stage, cut, as_is, Repeated(pixels, source), args)
        memory, _ = beyond_the_start(stage, few, many, device)
        found |= {"memory": memory, "memory_fraction_of_bare": memory / bare}
    return found


def beyond_the_start(run: Callable[[int], object], few: int, many: int, device: str) -> tuple[float, float]:
    """Of what runs over so many images: images a second between ``few`` and ``many``, and the seconds before the first.

    Decoding processes and a graph of the forward pass take a second or two, once for all shards.
    """
    short = median(partial(run, few), 1, device)
    begin = time.perf_counter()
    run(many)
    rate = (many - few) / max(time.perf_counter() - begin - short, 1e-9)
    return rate, short - few / rate


def forks(transform: Preprocess) -> dict[str, float]:
    """Seconds that it takes to fork the processes that decode, and to end them."""
    colours, height, width = transform.image_shape
    begin = time.perf_counter()
    made = Processes(lambda span, stop: ImageBatch(), (height, width, colours), os.cpu_count() or 1, 8, 64)
    there = time.perf_counter()
    made.shutdown()
    return {"fork_seconds": there - begin, "fork_end_seconds": time.perf_counter() - there}


class Repeated(Source):
    """A source of so many images in memory, of which few differ: as RGB images of their size."""

    numbered = False

    def __init__(self, pixels: torch.Tensor, like: FolderSource) -> None:
        self._images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
        self.items, self.classes = like.items, like.classes

    def read(self, index: int) -> Image.Image:
        return self._images[index % len(self._images)]


def decode(transform: Preprocess, source: FolderSource, count: int) -> None:
    """Read, decode, resize and crop so many images in as many processes as cores, and drop them."""

    def share(k: int, of: int) -> None:
        torch.set_num_threads(1)
        for index in range(k, count, of):
            transform.pixels(source.read(index))

    cores, context = os.cpu_count() or 1, multiprocessing.get_context("fork")
    forks = [context.Process(target=share, args=(k, cores)) for k in range(cores)]
    for fork in forks:
        fork.start()
    for fork in forks:
        fork.join()


def graph_of(cut: Cut, images: torch.Tensor) -> Callable[[], None]:
    """Replays a graph of the bare pass."""
    with torch.inference_mode(), full_float32(images.device):
        cut.frozen_rows(images)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = cut.frozen_rows(images)
    return partial(_replayed, graph, found)  # which holds what is found as long as the graph


def _replayed(graph: torch.cuda.CUDAGraph, found: torch.Tensor) -> None:
    graph.replay()


def draw(folder: Path, count: int, side: int, distinct: int, classes: int = 10) -> Path:
    """So many JPEG files of smooth noise in a folder a class; ``distinct`` of them, in tens, differ."""
    rng, drawn = np.random.default_rng(0), []
    paths = [folder / f"{k % classes:02d}" / f"{k:05d}.jpg" for k in range(count)]
    for label in range(classes):
        (folder / f"{label:02d}").mkdir(parents=True, exist_ok=True)
    for k in range(distinct):
        label = k % classes
        coarse = rng.integers(0, 256, (8, 8, 3)).astype(np.float32)
        coarse[:, :, label % 3] = 0.6 * coarse[:, :, label % 3] + 10 * label  # something to learn
        drawn.append(coarse.clip(0, 255).astype(np.uint8))

    def save(k: int) -> None:
        Image.fromarray(drawn[k]).resize((side + side // 4, side)).save(paths[k], quality=90)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(save, range(distinct)))
    for k in range(distinct, count):
        os.link(paths[k % distinct // classes * classes + k % classes], paths[k])
    return folder


def file_system(folder: Path) -> str:
    """Of the folder: "ext4", or "tmpfs", which is memory."""
    folder = folder.resolve()
    over = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(over, key=lambda part: len(part.mountpoint)).fstype if over else "unknown"


def disk_rate(scratch: Path, quick: bool) -> float:
    """Bytes a second of plain files of a chunk's size, each fsynced, from four threads."""
    data, count = os.urandom(FILE), 8 if quick else 128

    def write(k: int) -> None:
        with open(scratch / f"plain-{k % 16}", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    begin = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(count)))
    return count * FILE / (time.perf_counter() - begin)


def writer_rate(scratch: Path, quick: bool) -> float:
    """Bytes a second of rows in memory, ViT-L/16's tokens in float16, to a committed store."""
    shape, rows = ((17, 64), 256) if quick else ((197, 1024), 4096)
    data = np.random.default_rng(0).standard_normal((128, *shape)).astype(np.float16)
    ids = [f"{k:06d}" for k in range(rows)]
    begin = time.perf_counter()
    with (
        FeatureStore.create(scratch / "written", identity={}, classes=["a"], plan={}, recipe={}) as store,
        store.writer("000", "train", tokens_shape=shape, candidates=ids) as writer,
    ):
        for at in range(0, rows, 128):
            writer.append(data[: rows - at], ids[at : at + 128], np.zeros(min(128, rows - at), np.int64))
        writer.commit()
    return float(rows * data[0].nbytes / (time.perf_counter() - begin))


def product_part(found: FOUND, device: str, quick: bool, scratch: Path, say: STEP) -> None:
    """Seconds at ViT-L/16 with 4,096 rows, and how much of them the device cannot do without."""
    name, n, classes = ("bundled", 32, 4) if quick else ("vit-large", 4096, 101)
    shape = SHAPES[name] | {"samples": n}
    say("roofs")
    copy, gemm = machine_rates(device, 256 if quick else 8192)
    found |= {"rows": n, "classes": classes, "copy_bytes_per_s": copy, "gemm_flop_per_s": gemm}
    say("beside torch.func")  # in a block of rows: it takes forty times as much memory as the rows
    few = argparse.Namespace(
        samples=8 if quick else 128, classes=classes, device=device, repeats=5, peer_repeats=2, tokens=False
    )
    found["torch_func"] = measure(name, few, copy, gemm)
    base = made(shape, classes, device)[1]
    tokens = np.random.default_rng(0).standard_normal((n, *base.config.shape), np.float32).astype(np.float16)
    rows, v = [ArrayRows(tokens, np.arange(n) % classes)], torch.randn(base.layout.size, device=device)
    moved, operations = least(shape, classes, base.layout.size)
    found["upload_bytes_per_s"] = upload = upload_rate(device, 1 << (20 if quick else 28))
    for where, memory, come in (("resident", 1 << 40, 0), ("streamed", 0, tokens.nbytes)):
        roof = max(moved / copy, operations / gemm, come / upload)
        say(f"products, rows {where}")
        problem = Problem(TangentOperator(base, rows, device=device, memory=memory), RSL(), 1e-6)
        out = torch.empty_like(v)
        taken = median(partial(problem.hessian, v, out), 1 if quick else 5, device)
        found[where] = {"seconds": taken, "least": roof, "fraction": roof / taken}
        if where == "resident":
            found |= built(problem, gemm, device, say)
    found["torch_func"]["ratio_at_all_rows"] = (
        found["torch_func"]["torch_func_s"] / few.samples * n / found["resident"]["seconds"]
    )


def upload_rate(device: str, size: int) -> float:
    """Bytes a second of pinned memory to the device."""
    here = torch.empty(size, dtype=torch.uint8, pin_memory=device == "cuda")
    there = torch.empty(size, dtype=torch.uint8, device=device)
    return size / median(lambda: there.copy_(here, non_blocking=True), 5, device)


def built(problem: Problem, gemm: float, device: str, say: STEP) -> dict[str, Any]:
    """Seconds of the kernel of the rows and of Kronecker factors, and their products' least time alone.

    What decompositions take is in the seconds and not in the least.
    """
    operator = problem.operator
    state, n = next(iter(operator.blocks()))[0], operator.rows
    factors = operator.factors(state, torch.ones_like(state.logits))[0]
    sides = [(m.out.shape[1], m.out.shape[2], m.into.shape[2]) for m in factors]
    scale = torch.full((n, operator.classes), 0.1, device=device)
    gram = sum(2 * n * n * H * (o + i) for H, o, i in sides) / gemm
    sampled = 2 * min(n, 1024)  # rows times probes
    moments = sum(2 * sampled * H * (2 * o * o + 2 * i * i + o * i) for H, o, i in sides) / gemm
    found = {}
    for name, make, roof in (
        ("kernel", lambda: ClassKernel(problem, scale), gram),
        ("kronecker", lambda: KroneckerPreconditioner(problem), moments),
    ):
        say(name)
        taken = median(make, 1, device)
        found[name] = {"seconds": taken, "least": roof, "fraction": roof / taken}
    return found


def deep_part(found: FOUND, device: str, quick: bool, scratch: Path, say: STEP) -> None:
    """Seconds of one product of a tail of one block and of seven, beside a forward pass of it and ``torch.func``."""
    shape = layers.SHAPES["bundled"] | {"samples": 2} if quick else layers.SHAPES["vit-large"] | {"samples": 32}
    with full_float32(device):
        for blocks in (1, 2) if quick else (1, 7):
            say(f"{blocks} blocks")
            found[str(blocks)] = layers.measure(shape, blocks, "token", 3, layers.wall(device), device)


def whole_part(found: FOUND, device: str, quick: bool, scratch: Path, say: STEP) -> None:
    """Minutes and memory of extract, ten shards, the exact model and forgetting one sample."""
    count, shards = (40, 2) if quick else (6000, 10)
    name, args = ("vit_tiny_patch16_224", TINY) if quick else ("vit_large_patch16_224", {"num_classes": 10})
    torch.manual_seed(0)
    weights = timm.create_model(name, **args).state_dict()
    save_file({k: t.contiguous() for k, t in weights.items()}, scratch / "w.safetensors")
    say(f"drawing {count} images")
    draw(scratch / "train", count, 32 if quick else 224, distinct=count)
    recipe = parse_recipe(
        {
            "device": device,
            "data": {"source": "folder", "train": str(scratch / "train"), "held_out": 0.2},
            "backbone": {
                "model": name,
                "weights": str(scratch / "w.safetensors"),
                "model_args": args,
                "precision": "float32" if quick else "float16",
            },
            "store": {"path": str(scratch / "store"), "shards": shards},
            "objective": {"ridge": 1e-3},
            "solver": {"memory": "1GiB" if quick else "24GiB", "tolerance": 1e-4, "max_passes": 300},
        }
    )
    found |= {"images": count, "shards": shards, "model": name}

    def step(what: str, run: Callable[[], Any]) -> None:
        say(what)
        begin = time.perf_counter()
        run()
        found[f"{what}_seconds"] = time.perf_counter() - begin
        found["peak_host_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if device == "cuda":
            found["peak_device_bytes"] = torch.cuda.max_memory_allocated()

    step("extract", lambda: taftcache.extract(recipe))
    with FeatureStore(scratch / "store", mode="a") as store:
        found["store_bytes"] = store.nbytes
        step("train", lambda: taftcache.train(store))
        step("compose", lambda: taftcache.compose(store))
        step("forget", lambda: taftcache.forget(store, [store.shards[0].sample_ids[0]]))


def agreement_part(found: FOUND, device: str, quick: bool, scratch: Path, say: STEP) -> None:
    """How far products, solutions and rows are from the CPU's, beside what is allowed, and whether bytes repeat."""
    shape, n, classes = SHAPES["bundled"], 24 if quick else 256, 4
    base = made(shape, classes, "cpu")[1]
    tokens = np.random.default_rng(1).standard_normal((n, *base.config.shape), np.float32)
    rows, v = [ArrayRows(tokens, np.arange(n) % classes)], torch.randn(base.layout.size, dtype=torch.float64)

    def check(name: str, off: float, allowed: float) -> None:
        found[name] = {"off": off, "allowed": allowed, "holds": bool(off <= allowed)}

    def product(where: str, dtype: torch.dtype) -> torch.Tensor:
        problem = Problem(TangentOperator(base, rows, dtype=dtype, device=where), RSL(), 1e-6)
        return problem.hessian(v.to(where, dtype)).cpu()

    say("products")
    exact = product("cpu", torch.float64)
    for dtype, allowed in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        off = (product(device, dtype).double() - exact).norm() / exact.norm()
        check(f"product in {str(dtype)[6:]}", off.item(), allowed)
    check("product twice", float((product(device, torch.float32) != product(device, torch.float32)).sum()), 0)

    def solved(where: str) -> Any:
        goal, how = Goal(tolerance=1e-5, max_passes=60 if quick else 300), Arithmetic(device=where)
        return minimise(base, rows, Objective(loss=RSL(), ridge=1e-2), goal=goal, arithmetic=how)

    say("solutions")
    here, there, again = solved("cpu"), solved(device), solved(device)
    apart = (there.value.cpu() - here.value).norm().item()
    check("solution, within both certificates", apart, here.certificate.distance + there.certificate.distance)
    check("solution twice", float((there.value != again.value).sum()), 0)
    found["certificate"] = {"gradient_dtype": str(there.value.dtype), "relative": there.certificate.relative_gradient}
    say("stores")
    stores = [store_of(scratch / name, where, quick) for name, where in (("a", device), ("b", device), ("c", "cpu"))]
    check("rows twice", float((stores[0] != stores[1]).sum()), 0)
    off = np.linalg.norm(stores[0].astype(np.float64) - stores[2]) / np.linalg.norm(stores[2].astype(np.float64))
    check("rows against the CPU's", float(off), 1e-5)


def store_of(path: Path, device: str, quick: bool) -> np.ndarray:
    """The float32 rows of the digits, cached with the bundled model on ``device``."""
    data = {"source": "digits", "limit": 24 if quick else 400}
    recipe: Recipe = parse_recipe(
        {"device": device, "data": data, "store": {"path": str(path), "shards": 1, "dtype": "float32"}}
    )
    taftcache.extract(recipe)
    with FeatureStore(path) as store:
        return np.concatenate([block.tokens for shard in store.shards for block in shard.blocks(64)])


PARTS = {
    "product": product_part,
    "agreement": agreement_part,
    "extract": extract_part,
    "deep": deep_part,
    "whole": whole_part,
}


def run_part(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The part's figures, or the line at which it failed."""
    begin = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - begin:6.1f} s  {name}: {what}", file=sys.stderr, flush=True)

    def stop(*_: object) -> None:
        raise TimeoutError

    found: FOUND = {}
    signal.signal(signal.SIGALRM, stop)
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="taftcache-gpu-") as scratch:
        signal.setitimer(signal.ITIMER_REAL, LIMITS[name])
        try:
            PARTS[name](found, args.device, args.quick, Path(scratch), say)
        except TimeoutError:
            found["stopped"] = round(time.perf_counter() - begin, 1)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            say(traceback.format_exc())
            where = f"{Path(last.filename).name}:{last.lineno}"
            found["error"] = f"{type(error).__name__} at {where}: {str(error).partition(chr(10))[0]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return found | {"part_seconds": time.perf_counter() - begin}


def apart(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The part in a process of its own: a device that one part has broken is whole for the next."""
    command = [sys.executable, __file__, "--part", name, "--device", args.device, "--json"]
    command += ["--quick"] * args.quick + (["--scratch", str(args.scratch)] if args.scratch else [])
    try:
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMITS[name] + SLOW, check=False)
        found: dict[str, Any] = json.loads(out.stdout)["parts"][name]
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {LIMITS[name] + SLOW} seconds"}
    except (ValueError, KeyError):
        return {"error": f"ended with exit code {out.returncode} and no figures"}
    return found


def machine(device: str) -> dict[str, Any]:
    """What the figures belong to."""
    gpu = device == "cuda"
    return {
        **record(),
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if gpu else None,
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda if gpu else None,
        "timm": timm.__version__,
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = json_parser(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable; all by default")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: says that the command works, not how fast")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--scratch", type=Path, help="where images and stores are made (default: the system's)")
    args = parser.parse_args(arguments)
    if args.scratch:
        args.scratch.mkdir(parents=True, exist_ok=True)
    names = args.part or list(PARTS)
    run = run_part if len(names) == 1 else apart
    report = {"machine": machine(args.device), "quick": args.quick, "parts": {name: run(name, args) for name in names}}
    print(json.dumps(report, indent=2 if args.json else None))
    return report


if __name__ == "__main__":
    main()
