"""What packages whose tests run whole stages are spared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
import torch
from blake3 import blake3
from torch import Tensor

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.device import resolve_device
from taftcache.backbone.model import Backbone, load_backbone
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.model import predictor
from taftcache.privacy import accountant
from taftcache.stages.extract import frozen
from taftcache.stages.look import probe
from tests.threads import one_thread  # noqa: F401

AS_TRAINED = PreprocessSpec()
LOADED: dict[bytes, Backbone] = {}
CUT: dict[tuple[int, int | str], Cut] = {}
ROWS: dict[tuple[bytes | str | int, ...], np.ndarray] = {}
MOST = 4_000  # of them, 25 KB each
frozen_layers = Cut.prefix


def loaded(spec: BackboneSpec, preprocess: PreprocessSpec = AS_TRAINED, device: str | torch.device = "cpu") -> Backbone:
    """What ``load_backbone`` makes; the bundled weights, which no test changes, are read once for each device."""
    if spec.weights != "bundled":
        return load_backbone(spec, preprocess, device)
    device = str(resolve_device(str(device)))  # what "auto" is depends on what a test pretends
    key = msgspec.json.encode([spec, preprocess, device])
    if key not in LOADED:
        LOADED[key] = load_backbone(spec, preprocess, device)
    return LOADED[key]


def cut(backbone: Backbone, blocks: int | str) -> Cut:
    """A ``Cut``; of what ``loaded`` keeps, the same one again."""
    if all(backbone is not kept for kept in LOADED.values()):
        return Cut(backbone, blocks)
    key = id(backbone), blocks
    if key not in CUT:
        CUT[key] = Cut(backbone, blocks)
    return CUT[key]


def prefix(self: Cut, images: Tensor) -> Tensor:
    """``Cut.prefix``, which runs the frozen layers once on an image: in a batch of so many, its row does not depend on
    the others (``tests/backbone/test_extract.py``), nor on anything but what a store records of the model."""
    if images.device.type != "cpu" or type(images) is not Tensor:  # what traces a model has tensors of its own kind
        return frozen_layers(self, images)
    of = self.backbone
    recorded = msgspec.json.encode([of.config, of.weights_digest])
    model = recorded, of.features, of.precision, self.start, str(images.dtype), len(images)
    keys = [(*model, blake3(image.numpy().tobytes()).hexdigest()) for image in images.detach()]
    found = [ROWS.get(key) for key in keys]
    if any(row is None for row in found):
        if len(ROWS) > MOST:
            ROWS.clear()
        found = [*frozen_layers(self, images).numpy()]
        ROWS.update(zip(keys, found, strict=True))
    return torch.from_numpy(np.stack(found))


@pytest.fixture(scope="module")
def known() -> Iterator[None]:
    """Estimators find the bundled backbone loaded and cut; what ``load`` reads was saved, and is read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taftcache.estimator_images.load_backbone", loaded)
        patch.setattr("taftcache.estimator_images.Cut", cut)
        patch.setattr(Cut, "prefix", prefix)
        yield


def account_coarsely(patch: pytest.MonkeyPatch) -> None:
    """Privacy is accounted for in steps ten times as coarse, in a tenth of the time: ε is a little larger, and as sure.
    ``tests/privacy/test_accountant.py`` has the steps that users have."""
    patch.setattr(accountant, "INTERVAL", 10 * accountant.INTERVAL)
    patch.setattr(accountant.distribution_epsilon, "__defaults__", (accountant.INTERVAL,))


@contextmanager
def spared() -> Iterator[None]:
    """Privacy is accounted for coarsely. The probe beside every run chooses from two ridges of either kind.
    Extraction and models find the bundled backbone loaded and cut (``tests/backbone`` loads and cuts it anew), and
    the rows of an image again that was there before."""
    with pytest.MonkeyPatch.context() as patch:
        account_coarsely(patch)
        patch.setattr(probe, "STRENGTHS", {kind: found[:2] for kind, found in probe.STRENGTHS.items()})
        patch.setattr(probe, "MOST_FURTHER", 0)
        for user in (frozen, predictor):
            patch.setattr(user, "load_backbone", loaded)
            patch.setattr(user, "Cut", cut)
        patch.setattr(Cut, "prefix", prefix)
        yield


@pytest.fixture(scope="package", autouse=True)
def quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """A package so spared, whose ``conftest.py`` imports this: imported anywhere else, it would last for all tests."""
    assert isinstance(request.node, pytest.Package)
    with spared():
        yield
