"""What a program has asked of torch around our calls changes no number of ours, and comes back as it was."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import taftcache
from taftcache import BackboneError, BackboneSpec, TangentClassifier, TangentRegressor
from taftcache.backbone.build import build
from taftcache.backbone.model import load_backbone
from tests.pictures import pictures
from tests.pretended import a_gpu


@contextmanager
def by_default(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def coarse_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


AROUND: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "float64": lambda: by_default(torch.float64),
    "medium": coarse_products,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "device": lambda: torch.device("meta"),  # one that is everywhere, in place of a GPU as the default
}


def answers(folder: str, device: str = "cpu") -> tuple[np.ndarray, ...]:
    """Of a classifier of vectors, its rows; of a regressor, its rows and predictions; of a saved model, its logits. λ
    is given: tests/solve/test_devices.py chooses one."""
    images, labels = pictures(8)
    pixels = [np.asarray(image).reshape(-1) for image in images]
    head = TangentClassifier(ridge=1e-2, device=device).fit(pixels, labels)
    fitted = TangentRegressor("bundled", ridge=1e-2, device=device).fit(images, labels)
    said = [prediction.logits for prediction in taftcache.open_model(folder, device=device).predict(images)]
    again = TangentClassifier.load(folder, device=device).predict_proba(images)
    return head.coef_, fitted.coef_, fitted.predict(images), again, np.array(said)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("saved") / "model"
    TangentClassifier("bundled", ridge=1e-2).fit(*pictures(8)).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def expected(saved: str) -> tuple[np.ndarray, ...]:
    return answers(saved)


@pytest.mark.law("What a program has asked of torch changes no prediction")
@pytest.mark.parametrize("around", AROUND)
def test_what_is_asked_of_torch_changes_no_number(saved, expected, around):
    """An estimator's own rows were in bfloat16 under autocast, and what fit had cached in float32."""
    with AROUND[around]():
        found = answers(saved)
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_not_rounded_to_a_default(dtype):
    with by_default(dtype), pytest.raises(BackboneError, match=f"would round them .*\n  got: {dtype}"):
        load_backbone(BackboneSpec(weights="bundled"))


def test_an_estimator_on_a_gpu_keeps_to_float32(saved, expected):
    """The convolution of ``predict`` ran in TF32, as cuDNN does by default, and that of a classifier's ``fit`` not."""
    with a_gpu():
        found = answers(saved, "cuda")
    assert all(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(found, expected, strict=True))


def test_a_model_traced_under_autocast_says_nothing_of_it(saved):
    model = taftcache.open_model(saved, device="cpu")
    images = torch.rand(2, *model.transform.image_shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program = model.program()
    assert torch.allclose(program.module()(images), model(images), atol=1e-4)


def test_random_numbers_of_a_program_go_on(saved):
    images, labels = pictures(8)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    taftcache.open_model(saved, device="cpu")
    TangentClassifier("bundled", ridge=1e-2).fit(images, labels).predict(images)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_what_another_thread_builds_is_not_counted(monkeypatch):
    """Its layers made the model of ours too large, and the error went to that thread."""
    began, raised = threading.Event(), []
    make = nn.LayerNorm.__init__

    def slow(self: nn.LayerNorm, *args: object, **named: object) -> None:
        if threading.current_thread() is not threading.main_thread() or began.is_set():
            make(self, *args, **named)
            return
        began.set()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        make(self, *args, **named)

    def other() -> None:
        try:
            nn.Linear(1000, 1000)
        except Exception as error:
            raised.append(error)

    monkeypatch.setattr(nn.LayerNorm, "__init__", slow)
    monkeypatch.setattr("taftcache.backbone.build.NUMBERS", 500_000)
    build("vit_tiny_patch16_224", {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 2})
    assert began.is_set()
    assert not raised
