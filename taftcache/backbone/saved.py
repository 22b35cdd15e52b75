"""A backbone as a folder in timm's own layout, which ``timm.create_model("local-dir:…")`` and we read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from timm.models import save_for_hf

from taftcache.backbone.files import weights_folder
from taftcache.backbone.model import Backbone
from taftcache.backbone.spec import BackboneSpec


def save_backbone(backbone: Backbone, spec: BackboneSpec, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``; ``spec`` is what the backbone was loaded by."""
    args: dict[str, Any] = {}
    if backbone.config["weights"] in ("bundled", "folder"):  # such a folder brings arguments of its own
        args = json.loads((weights_folder(spec) / "config.json").read_text("utf-8")).get("model_args", {})
    args |= spec.model_args
    if "num_classes" in args:  # the model may have got another head since
        args["num_classes"] = backbone.model.num_classes
    save_for_hf(backbone.model, str(folder), model_args=args, safe_serialization=True)
