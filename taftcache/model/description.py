"""What the description of a saved model says, without the model: nothing here needs timm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from taftcache.backbone.spec import Features, PreprocessSpec
from taftcache.cache.format.digest import plain
from taftcache.model.calibration import LARGEST
from taftcache.model.saved import Saved
from taftcache.tangent.spec import TangentSpec

DESCRIPTION = "taftcache.json"
FORMAT = 2
SAVED = Saved("model", "name a folder that export-model wrote, or export it again from its store")


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """``taftcache.json``. ``files``: digests of the other files, except the card. ``temperature``: that of the model's
    probabilities; not there for private models, or without held-out rows. ``notes``: what was known of the model when
    it left its store. Readers that do not know these two pass over them."""

    format: int
    model: str
    classes: list[str]
    backbone: str
    weights_digest: str
    preprocess: PreprocessSpec
    tangent: TangentSpec
    tail: dict[str, Any]
    base_digest: str
    digest: str
    component: dict[str, Any]
    root_digest: str
    versions: dict[str, str]
    files: dict[str, str]
    features: Features | UnsetType = UNSET
    notes: list[str] | UnsetType = UNSET
    temperature: Annotated[float, msgspec.Meta(ge=1 / LARGEST, le=LARGEST)] | UnsetType = UNSET


def read_description(folder: str | os.PathLike[str]) -> Description:
    """What ``save_model`` says of the model in ``folder``.

    Raises:
        FormatError: not such a folder, or one of another format.
    """
    described = SAVED.described(Path(folder) / DESCRIPTION, Description, FORMAT)
    with SAVED.fitting(Path(folder)):
        plain(described.component, DESCRIPTION)
    return described
