"""A backbone as a folder in timm's own layout, which ``timm.create_model("local-dir:…")`` and we read back."""

from __future__ import annotations

import shutil
from pathlib import Path

from timm.models import save_for_hf

from taftcache.backbone.model import Backbone


def save_backbone(backbone: Backbone, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``."""
    args = dict(backbone.config["model_args"])
    if "num_classes" in args:  # the model may have got another head since
        args["num_classes"] = backbone.network.num_classes
    save_for_hf(backbone.network, str(folder), model_args=args, safe_serialization=True)
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors writes for the owner alone
