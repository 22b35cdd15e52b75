"""The frozen layers of a recipe, and which of their properties decide a row's bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Literal

import msgspec
from numpy.typing import NDArray

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.forward.engine import Engine, Engines
from taftcache.backbone.forward.extract import RowCounts, Sink, default_batch
from taftcache.backbone.forward.extract import extract as run_forward
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Source
from taftcache.cache.store import FeatureStore
from taftcache.recipe import Recipe

# Libraries whose versions change the numbers: kernels, the model's code, decoding and resizing.
LIBRARIES = ("torch", "torchvision", "timm", "pillow")


def load_frozen(recipe: Recipe, classes: Sequence[str]) -> tuple[Reduction, Preprocess]:
    """The recipe's frozen layers, up to what is kept of a sample, and the preprocessing of its images."""
    backbone = load_backbone(recipe.backbone, recipe.preprocess, recipe.device)
    cut = Cut(backbone, recipe.tangent.blocks)
    kept = Reduction(cut, len(classes), recipe.tangent, recipe.store.cache, recipe.store.dtype)
    return kept, Preprocess(backbone)


def engines_of(model: tuple[Reduction, Preprocess], recipe: Recipe) -> Engines:
    """This process's engines, with which `run_frozen` makes one shard after another; the caller closes them."""
    frozen, transform = model
    return Engines(frozen, transform, default_batch(frozen.cut), recipe.extract.workers or None, frozen.computed)


def run_frozen(
    model: tuple[Reduction, Preprocess],
    recipe: Recipe,
    source: Source,
    order: Sequence[int],
    sink: Sink,
    on_batch: Callable[[int], None] | None = None,
    unreadable: Literal["stop", "skip"] = "stop",
    engine: Engine | None = None,
) -> RowCounts:
    """Put the rows of some of a source's items into ``sink``, as ``backbone.forward.extract`` makes them."""
    frozen, transform = model
    return run_forward(
        frozen,
        transform,
        source,
        order,
        sink,
        batch=default_batch(frozen.cut),
        workers=recipe.extract.workers or None,
        unreadable=unreadable,
        on_batch=on_batch,
        dtype=frozen.computed,
        engine=engine,
    )


def made_from(recipe: Recipe, frozen: Reduction, transform: Preprocess) -> dict[str, Any]:
    """A store's identity: all that decides a row's bytes, apart from the image."""
    config = frozen.config
    kept = {"rows": config.rows, "shape": list(frozen.tokens_shape), "reduced_by": config.reduced_by}
    return {
        "backbone": frozen.backbone.config,
        "cut": {"start": config.start, **kept},
        "preprocess": transform.description(),
        "dtype": recipe.store.dtype,
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def same_rows(store: FeatureStore, recipe: Recipe) -> Recipe:
    """The recipe, changed to ask for the kind of rows that the store has, whatever has been trained on them since."""
    cut = store.identity.get("cut", {})
    tangent = msgspec.structs.replace(recipe.tangent, blocks=cut.get("start", recipe.tangent.blocks) or 0)
    kept = msgspec.structs.replace(recipe.store, cache=cut.get("rows", recipe.store.cache))
    return msgspec.structs.replace(recipe, store=kept, tangent=tangent)


class Collected:
    """A sink that keeps the rows in memory."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[Any]] = []
        self.consumed = 0

    def append(
        self, tokens: NDArray[Any], ids: Sequence[str], labels: Sequence[int], skipped: Sequence[Any] = ()
    ) -> None:
        """Add rows in order; none is skipped, because an image that does not decode stops the run."""
        self.blocks.append(tokens)
        self.consumed += len(ids)
