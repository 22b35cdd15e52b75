"""A model for runtimes that know neither us nor timm: a torch.export program, and ONNX that was run and compared."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from taftcache.errors import BackboneError, RecipeError
from taftcache.model.predictor import TangentModel

PROGRAM = "program.pt2"
ONNX = "model.onnx"
AGREEMENT = 1e-4  # of ONNX's logits with the model's, relative to the largest
_LIBRARIES = ("onnx", "onnxscript")


def write_program(
    model: TangentModel, exported: ExportedProgram, folder: Path, *, program: bool, onnx: bool
) -> dict[str, str]:
    """Write ``model`` as its program ``exported`` and in ONNX; the files' names, and what the card says of them.

    Raises:
        BackboneError: ONNX gives other logits.
    """
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine
    takes = f"normalised images [n, {', '.join(map(str, model.transform.image_shape))}]"
    said = {}
    if program:
        torch.export.save(exported, folder / PROGRAM)
        said[PROGRAM] = (
            f'is the whole model as a program: `torch.export.load("{PROGRAM}").module()` takes\n{takes} and needs'
            " torch alone."
        )
    if onnx:
        apart, by = _write_onnx(model, exported, folder / ONNX)
        said[ONNX] = (
            f"is the whole model in ONNX: `images` are {takes}, `logits` come\nout. Run by {by} on random images its"
            f" logits were within {apart:.0e} of the largest."
        )
    return said


def check_onnx() -> None:
    """RecipeError where the libraries that write ONNX are not installed: asked before long work."""
    if missing := [library for library in _LIBRARIES if find_spec(library) is None]:
        raise RecipeError(
            "ONNX is written by libraries that are not installed",
            got=f"no {' and no '.join(missing)}",
            do="pip install 'taftcache[onnx]'",
        )


def _write_onnx(model: TangentModel, exported: ExportedProgram, file: Path) -> tuple[float, str]:
    """Write ``file``, run it, and say how far its logits are from the model's, and what ran it."""
    names = {"input_names": ["images"], "output_names": ["logits"]}
    written: Any = torch.onnx.export(exported, (), dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
    written.save(str(file), external_data=False)
    # Another number of images than it was traced with, which must be free.
    images = torch.randn(3, *model.transform.image_shape, generator=torch.Generator().manual_seed(0))
    ours = model(images).cpu().numpy()
    theirs, by = _run(file, images.numpy())
    apart = float(np.abs(theirs - ours).max() / np.abs(ours).max())
    if not apart <= AGREEMENT:
        raise BackboneError(
            "the model in ONNX gives other logits than the model",
            got=f"{apart:.1e} of the largest apart, run by {by}",
            do="save the model without ONNX",
        )
    return apart, by


def _run(file: Path, images: np.ndarray) -> tuple[np.ndarray, str]:
    """Logits of the model in ``file``, by onnxruntime where it is installed, otherwise by onnx's own evaluator."""
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        return session.run(None, {"images": images})[0], "onnxruntime"
    from onnx.reference import ReferenceEvaluator

    evaluator: Any = ReferenceEvaluator(str(file))
    return evaluator.run(None, {"images": images})[0], "onnx's reference evaluator"
