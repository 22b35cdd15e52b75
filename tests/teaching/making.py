"""Tiny teachers, students and recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file

import taftcache
from taftcache.recipe import parse_recipe
from taftcache.teaching.recipe import TeachingRecipe, parse_teaching

VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
DIGITS = 120


def teacher_recipe(path: Path, *, model_args: dict[str, Any] | None = None, limit: int = DIGITS, **store: Any) -> Any:
    """The recipe of a tiny random ViT's features of the digits; its weights lie beside the store."""
    args = {**VIT, **(model_args or {}), "num_classes": 10}
    weights = path.with_suffix(".safetensors")
    if not weights.exists():
        torch.manual_seed(len(path.name))
        save_file(timm.create_model("vit_tiny_patch16_224", **args).state_dict(), weights)
    return parse_recipe(
        {
            "device": "cpu",
            "data": {"source": "digits", "limit": limit},
            "backbone": {"model": "vit_tiny_patch16_224", "weights": str(weights), "model_args": args},
            "store": {"path": str(path), "cache": "feature", "dtype": "float32", **store},
            "extract": {"workers": 1},
            "tangent": {"train": "head"},
        }
    )


def extract_features(path: Path, **settings: Any) -> Path:
    taftcache.extract(teacher_recipe(path, **settings))
    return path


def teaching_recipe(folder: Path, teachers: dict[str, Path], **sections: dict[str, Any]) -> TeachingRecipe:
    """A recipe of a tiny student, three epochs on the same 120 digits."""
    values: dict[str, Any] = {
        "device": "cpu",
        "path": str(folder),
        "data": {"source": "digits", "limit": DIGITS},
        "teachers": [{"name": name, "store": str(path)} for name, path in teachers.items()],
        "student": {
            "model": "vit_tiny_patch16_224",
            "weights": "random",
            "model_args": {**VIT, "embed_dim": 16, "depth": 1, "drop_rate": 0.1},
        },
        "preprocess": {"input_size": [3, 16, 16]},
        "teach": {"beta": 1.0},
        "train": {"epochs": 3, "batch": 32, "rate": 3e-3, "augment": "shift"},
        "report": {"latency": False, "probes": False},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return parse_teaching(values)
