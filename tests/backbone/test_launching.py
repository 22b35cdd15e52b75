"""What the thread that launches forward passes does beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.forward.engine import Work
from taftcache.backbone.preprocess import Preprocess
from taftcache.tangent.device import full_float32
from tests.backbone.registry import NoiseSource, small_backbone
from tests.pretended import a_gpu


class OnTheHost(TorchFunctionMode):
    """``found``: what torch was asked for of tensors that are all on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if tensors and all(t.device.type == "cpu" for t in tensors):
            self.found.add(func.__name__)
        return func(*args, **(kwargs or {}))


def test_it_leaves_the_hosts_arithmetic_to_numpy():
    """Torch's threads wait for each other while those that decode have the cores: most of an extraction's time."""
    with a_gpu(), full_float32("cuda"):
        backbone = small_backbone()
        backbone = replace(backbone, model=backbone.model.to("cuda"))
        work = Work(Cut(backbone), Preprocess(backbone), NoiseSource(6), 8, "float16")
        for _ in range(2):  # the first time copies constants there
            done = work.decode(range(6), True)
            with OnTheHost() as asked:
                work.forward(done)
        assert done.tokens().shape == (6, *work.cut.tokens_shape)
    assert asked.found <= {"__get__", "numpy", "to"}
