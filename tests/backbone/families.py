"""The families of timm's models that the page of models lists, from the tool that makes it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from taftcache.backbone.model import Backbone


def _tool() -> Any:
    path = Path(__file__).resolve().parents[2] / "tools" / "make_models_table.py"
    spec = importlib.util.spec_from_file_location("make_models_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


table = _tool()


def small_family(name: str) -> Backbone:
    """A small random model of the first family of this name."""
    made: Backbone = table.small_backbone(next(f for f in table.FAMILIES if f.name == name))
    return made
