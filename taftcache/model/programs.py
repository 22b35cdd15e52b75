"""A model for runtimes that know neither us nor timm: a torch.export program, and ONNX that was run and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from taftcache.errors import BackboneError, RecipeError, first_line
from taftcache.model.card import Origin, onnx_snippet
from taftcache.model.predictor import TangentModel
from taftcache.names import ROWS_OF, at_most

PROGRAM = "program.pt2"
ONNX = "model.onnx"
AGREEMENT = 1e-4  # of logits in another form with the model's, relative to the largest
_LIBRARIES = ("onnx", "onnxscript")


def about(origin: Origin) -> dict[str, Any]:
    """What a model's other forms say of where it comes from, by which an audit knows it."""
    said = {
        "model": origin.name,
        "temperature": origin.temperature,
        "root_digest": origin.root_digest,
        ROWS_OF: origin.rows_of,
        "taftcache": version("taftcache"),
        "torch": version("torch"),
    }
    return {key: value for key, value in said.items() if value}


def write_program(
    origin: Origin, model: TangentModel, exported: ExportedProgram, folder: Path, *, program: bool, onnx: bool
) -> dict[str, str]:
    """Write ``exported``, the program of ``model``, and ONNX; the files' names, and what the card says of them.

    Raises:
        BackboneError: the model cannot be written in ONNX, which gives other logits or lacks an operation.
    """
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine
    takes = f"normalised images [n, {', '.join(map(str, model.transform.image_shape))}]"
    said = {}
    if program:
        torch.export.save(exported, folder / PROGRAM)
        said[PROGRAM] = (
            f'is the whole model as a program: `torch.export.load("{PROGRAM}").module()` takes\n{takes} with n ≥ 1, and'
            f" needs torch alone, {version('torch')} (which wrote it) or newer."
        )
    if onnx:
        names = {"input_names": ["images"], "output_names": ["logits"]}
        try:
            written: Any = torch.onnx.export(exported, (), dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
        except Exception as error:  # torch and onnxscript raise kinds of their own
            raise BackboneError(
                f"{model.cut.backbone.name} cannot be written in ONNX",
                got=f"{type(error).__name__}: {first_line(error)}",
                do="save the model without ONNX",
            ) from error
        image, temperature = model.transform.description(), origin.temperature
        has = {"classes": model.classes, "preprocessing": image, "temperature": temperature, "about": about(origin)}
        own = {key: json.dumps(value) for key, value in has.items() if value}
        written.model.metadata_props.update(own)
        written.save(str(folder / ONNX), external_data=False)
        apart, by = _checked(model, folder / ONNX)
        said[ONNX] = (
            f"is the whole model in ONNX: `images` are {takes}, `logits` come\nout. Run by {by} on random images its"
            f" logits were within {at_most(apart, '.0e')} of the largest. A runtime has to know opset"
            f" {written.model.opset_imports['']} and IR version {written.model.ir_version}. Its metadata have, as JSON:"
            f" {', '.join(own)}."
        )
        said[ONNX] = "\n".join([said[ONNX], "", *onnx_snippet(ONNX, image, temperature)]).rstrip()
    return said


def check_onnx() -> None:
    """RecipeError if the libraries that write ONNX are not installed: asked before long work."""
    if missing := [library for library in _LIBRARIES if find_spec(library) is None]:
        raise RecipeError(
            "ONNX is written by libraries that are not installed",
            got=f"no {' and no '.join(missing)}",
            do="pip install 'taftcache[onnx]'",
        )


def _checked(model: TangentModel, file: Path) -> tuple[float, str]:
    """Run the ONNX ``file``: how far its logits are from the model's, and what ran it; BackboneError for too far."""
    by, run = _runner(file)
    apart = difference(model, run)
    if not apart <= AGREEMENT:
        raise BackboneError(
            "the model in ONNX gives other logits than the model",
            got=f"{apart:.1e} of the largest apart, run by {by}",
            do="save the model without ONNX",
        )
    return apart, by


@torch.no_grad()
def difference(model: TangentModel, run: Callable[[Tensor], Any]) -> float:
    """How far the logits of ``run``, of random images [n,3,h,w], are from the model's, relative to the largest."""
    # Another number of images than programs are traced with, because the number must be free.
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, *model.transform.image_shape, generator=generator, dtype=torch.float32)
    ours, theirs = model(images).cpu(), torch.as_tensor(run(images)).cpu()
    return float((theirs - ours).abs().max() / ours.abs().max())


def _runner(file: Path) -> tuple[str, Callable[[Tensor], Any]]:
    """onnxruntime where it is installed, otherwise onnx's own evaluator; its name, and from images to logits."""
    runner: Any
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        by, runner = "onnxruntime", onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    else:
        from onnx.reference import ReferenceEvaluator

        by, runner = "onnx's reference evaluator", ReferenceEvaluator(str(file))
    return by, lambda images: runner.run(None, {"images": images.numpy()})[0]
