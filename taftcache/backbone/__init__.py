"""Stage 1: a frozen timm model, its preprocessing, sources of images, and the extraction of tokens.

Names load on first use: ``BackboneSpec`` and its like cost nothing, the model's half imports torch and timm.
The function ``extract`` is in the module ``extract``: a package cannot offer both under one name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taftcache.backbone.spec import BackboneSpec, DataSpec, PreprocessSpec

if TYPE_CHECKING:
    from taftcache.backbone.cut import Cut
    from taftcache.backbone.device import full_float32, resolve_device
    from taftcache.backbone.extract import ExtractStats, LeftOut, Sink, default_batch
    from taftcache.backbone.files import expand_path, file_digest, weights_file
    from taftcache.backbone.model import Backbone, load_backbone, state_digest, wrap_model
    from taftcache.backbone.preprocess import Preprocess, transform_description
    from taftcache.backbone.sources import Item, Source, open_source

__all__ = [
    "Backbone",
    "BackboneSpec",
    "Cut",
    "DataSpec",
    "ExtractStats",
    "Item",
    "LeftOut",
    "Preprocess",
    "PreprocessSpec",
    "Sink",
    "Source",
    "default_batch",
    "expand_path",
    "file_digest",
    "full_float32",
    "load_backbone",
    "open_source",
    "resolve_device",
    "state_digest",
    "transform_description",
    "weights_file",
    "wrap_model",
]

_HOMES = {
    "Cut": "cut",
    "ExtractStats": "extract",
    "LeftOut": "extract",
    "default_batch": "extract",
    "Sink": "extract",
    "Backbone": "model",
    "load_backbone": "model",
    "state_digest": "model",
    "wrap_model": "model",
    "resolve_device": "device",
    "full_float32": "device",
    "expand_path": "files",
    "file_digest": "files",
    "weights_file": "files",
    "Preprocess": "preprocess",
    "transform_description": "preprocess",
    "Item": "sources",
    "Source": "sources",
    "open_source": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
