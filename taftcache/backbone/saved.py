"""A backbone as a folder in timm's own layout, which ``timm.create_model("local-dir:…")`` and we read back."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timm.models import save_for_hf
from timm.models._hub import save_config_for_hf

from taftcache.backbone.model import Backbone


def name_classes(model: Any, classes: Sequence[str], data_config: Mapping[str, Any]) -> None:
    """Put the classes' names and the preprocessing where timm looks for them."""
    # Leave out settings for tests at other sizes and crops, and the description of other weights.
    own = {k: v for k, v in model.pretrained_cfg.items() if not k.startswith("test_") and k != "description"}
    model.pretrained_cfg = {**own, **data_config, "num_classes": len(classes), "label_names": list(classes)}


def save_backbone(backbone: Backbone, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors``."""
    save_for_hf(backbone.network, str(folder), model_args=_options(backbone), safe_serialization=True)
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors lets only the owner read


def save_config(backbone: Backbone, folder: Path) -> None:
    """Write ``config.json`` beside weights that are there."""
    save_config_for_hf(backbone.network, str(folder / "config.json"), model_args=_options(backbone))


def _options(backbone: Backbone) -> dict[str, Any]:
    """What timm builds the model with."""
    args = dict(backbone.config["model_args"])
    if "num_classes" in args:  # the model may have got another head since
        args["num_classes"] = backbone.network.num_classes
    return args
