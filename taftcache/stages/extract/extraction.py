"""Stage 1: images in, one verified shard of cached activations each out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from taftcache.backbone.files import file_digest, weights_file
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.plan import assign, held_out, in_order
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import DataError, IdentityError
from taftcache.names import CLASS
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.executor import Executor, RowEngines
from taftcache.stages.extract.classes import Relabelled, class_indexes
from taftcache.stages.progress import Progress, Silent
from taftcache.tangent.spec import TAIL

if TYPE_CHECKING:
    from taftcache.backbone.engine import Engine
    from taftcache.backbone.extract import ExtractStats
    from taftcache.backbone.preprocess import Preprocess
    from taftcache.backbone.reduction import Reduction

HELD_OUT = "held-out"
# Libraries whose versions change the numbers: kernels, the model's code, decoding and resizing.
LIBRARIES = ("torch", "torchvision", "timm", "pillow")


@dataclass(frozen=True)
class ExtractReport:
    """What stage 1 did; ``images`` were run through the model now, the rest was there."""

    store: Path
    root_digest: str
    shards: dict[str, int]
    images: int = 0
    skipped: int = 0
    seconds: float = 0.0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


def extract(recipe: Recipe, progress: Progress | None = None, cluster: Executor | None = None) -> ExtractReport:
    """Run the frozen layers over the recipe's images and cache what the trained ones need.

    Resumes where a killed run stopped and does nothing when the store is complete. The layers run on the workers of
    ``cluster`` where one is given; the same bytes are stored.

    Raises:
        IdentityError: the folder holds a store made with other settings, weights or libraries.
        DataError, BackboneError, StoreError, ClusterError: as the parts do; what was committed is left as it was.
    """
    progress = progress or Silent()
    begin = time.perf_counter()
    path = recipe.store_path
    exists = FeatureStore.exists(path)
    if exists:
        with FeatureStore(path) as store:
            _check_request(store, recipe)
            check_tail(store, recipe)
            if is_complete(store):
                return _report(store, notes=_news(store, recipe))
    source, test = open_source(recipe.data)
    groups = plan_groups(recipe, source, test)
    from safetensors.torch import save

    with ExitStack() as stack:
        there = stack.enter_context(FeatureStore(path, mode="a")) if exists else None
        forgotten = TombstoneFile(path).holds if there is None else there.is_forgotten
        groups, classes, notes = _without_forgotten(forgotten, groups, source.classes)
        frozen, transform = load_frozen(recipe, classes)
        identity = made_from(recipe, frozen, transform)
        if there is None:
            plan = {"kind": recipe.store.plan, "shards": recipe.store.shards, "seed": recipe.store.seed}
            plan["groups"] = len(groups)
            recorded = _record(recipe)
            new = FeatureStore.create(path, identity=identity, classes=classes, plan=plan, recipe=recorded)
            store = stack.enter_context(new)
        else:
            there.check_identity(identity)
            store = there
        if TAIL not in store.objects():
            with store.transaction() as change:
                change.put(TAIL, save(frozen.tail_state()), frozen.config.as_dict())
        progress.say(f"caching the {frozen.describe()}")
        remote = None if cluster is None else cluster.rows(recipe, classes, identity)
        images = sum(
            _fill(store, recipe, name, *group, (frozen, transform), progress, group[1] is test, remote)
            for name, group in groups.items()
            if not store.has_shard(name)
        )
        return _report(store, images, time.perf_counter() - begin, notes)


def load_frozen(recipe: Recipe, classes: Sequence[str]) -> tuple[Reduction, Preprocess]:
    """The recipe's frozen layers, up to what is kept of a sample, and the preprocessing of its images."""
    from taftcache.backbone.cut.cut import Cut
    from taftcache.backbone.model import load_backbone
    from taftcache.backbone.preprocess import Preprocess
    from taftcache.backbone.reduction import Reduction

    backbone = load_backbone(recipe.backbone, recipe.preprocess, recipe.device)
    cut = Cut(backbone, recipe.tangent.blocks)
    kept = Reduction(cut, len(classes), recipe.tangent, recipe.store.cache, recipe.store.dtype)
    return kept, Preprocess(backbone)


def run_frozen(
    model: tuple[Reduction, Preprocess],
    recipe: Recipe,
    source: Source,
    order: Sequence[int],
    sink: Any,
    on_batch: Callable[[int], None] | None = None,
    unreadable: Literal["stop", "skip"] = "stop",
    engine: Engine | None = None,
) -> ExtractStats:
    """The rows of some of a source's items into ``sink``, as ``backbone.extract`` makes them."""
    from taftcache.backbone.extract import default_batch
    from taftcache.backbone.extract import extract as run_forward

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
        dtype=recipe.store.dtype,
        engine=engine,
    )


def plan_groups(recipe: Recipe, source: Source, test: Source | None) -> dict[str, tuple[str, Source, list[str]]]:
    """Group name → (role, source, ids in the order of the rows)."""
    spec = recipe.store
    ids = [item.id for item in source.items]
    kept: set[str] = set() if test is not None else held_out(ids, recipe.data.held_out, spec.seed)
    if test is None and recipe.data.held_out > 0 and not kept:
        raise DataError("a held-out fraction keeps at least one image", got=f"{recipe.data.held_out} of {len(ids)}")
    training = [i for i in ids if i not in kept]
    plan = assign(training, spec.plan, spec.shards, spec.seed)
    groups: dict[str, tuple[str, Source, list[str]]] = {n: ("train", source, part) for n, part in plan.items()}
    if test is not None:
        groups[HELD_OUT] = (HELD_OUT, test, in_order([item.id for item in test.items], spec.seed))
    elif kept:
        groups[HELD_OUT] = (HELD_OUT, source, in_order(sorted(kept), spec.seed))
    return groups


def _without_forgotten(
    forgotten: Callable[[str], bool], groups: dict[str, tuple[str, Source, list[str]]], classes: Sequence[str]
) -> tuple[dict[str, tuple[str, Source, list[str]]], list[str], list[str]]:
    """Groups and classes without what was forgotten at the store's place before, and a note that says how much."""
    kept = {n: (role, source, [i for i in ids if not forgotten(i)]) for n, (role, source, ids) in groups.items()}
    gone = sum(len(ids) for _, _, ids in groups.values()) - sum(len(ids) for _, _, ids in kept.values())
    notes = [f"{gone} images were forgotten here before and stay out"] if gone else []
    return {n: g for n, g in kept.items() if g[2]}, [c for c in classes if not forgotten(CLASS + c)], notes


def _fill(
    store: FeatureStore,
    recipe: Recipe,
    name: str,
    role: str,
    source: Source,
    ids: Sequence[str],
    model: tuple[Reduction, Preprocess],
    progress: Progress,
    is_test: bool,
    remote: RowEngines | None,
) -> int:
    """Extract one group, or what is left of it; the number of images run."""
    unreadable = recipe.data.unreadable
    engine = None if remote is None else remote.engine(source, is_test, unreadable == "stop")
    index = {item.id: k for k, item in enumerate(source.items)}
    with (
        store.writer(
            name,
            role,
            chunk_rows=recipe.store.chunk_rows,
            dtype=recipe.store.dtype,
            tokens_shape=model[0].tokens_shape,
            candidates=ids,
        ) as writer,
        progress.task(f"extract {name}", len(ids)) as task,
    ):
        task.advance(writer.consumed)
        order = [index[i] for i in ids]
        sink = Relabelled(writer, class_indexes(store, source.classes))
        stats = run_frozen(model, recipe, source, order, sink, task.advance, unreadable, engine)
        writer.commit()
    return stats.images


def made_from(recipe: Recipe, frozen: Reduction, transform: Preprocess) -> dict[str, Any]:
    """A store's identity: whatever decides a row's bytes beside the image."""
    config = frozen.config
    kept = {"rows": config.rows, "shape": list(frozen.tokens_shape), "reduced_by": config.reduced_by}
    return {
        "backbone": frozen.backbone.config,
        "cut": {"start": config.start, **kept},
        "preprocess": transform.description(),
        "dtype": recipe.store.dtype,
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def check_words(store: FeatureStore, recipe: Recipe, but: Sequence[str] = ()) -> None:
    """IdentityError unless the recipe asks, in all sections ``but`` these, for what the store was made from."""
    ours, theirs = _request(store.manifest.recipe), _request(recipe_values(recipe))
    _refuse(
        [
            f"{k}: the store has {ours.get(k)!r}, the recipe {theirs.get(k)!r}"
            for k in sorted(ours | theirs)
            if ours.get(k) != theirs.get(k) and k.partition(".")[0] not in but
        ]
    )


def _check_request(store: FeatureStore, recipe: Recipe) -> None:
    """`check_words`, and that the file of weights is the one that made the features; in milliseconds."""
    check_words(store, recipe)
    if "imported" in store.identity:
        _refuse([f"data: the store's rows were imported from {store.identity['imported']['file']}"])
    if "converted" in store.identity:
        _refuse([f"store.dtype: the store's rows were extracted in {store.identity['converted']['from']}"])
    file = weights_file(recipe.backbone)
    stored = store.identity["backbone"]["file_digest"]
    if file is not None and stored != file_digest(file):
        _refuse([f"backbone weights: the store's have the digest {stored}, {file} has {file_digest(file)}"])


def check_tail(store: FeatureStore, recipe: Recipe) -> None:
    """RecipeError unless the rows suffice for what the recipe trains."""
    if TAIL in store.objects():
        from taftcache.tangent.config import TailConfig
        from taftcache.tangent.selection import select

        select(TailConfig.from_dict(store.objects()[TAIL].meta), recipe.tangent)


def _refuse(different: list[str]) -> None:
    if different:
        raise IdentityError(
            "a store is reused only for the data, backbone, preprocessing and plan that it was made with",
            got="; ".join(different[:6]),
            do="give this recipe its own folder with --set store.path=…, or put the old settings back",
        )


def _record(recipe: Recipe) -> dict[str, Any]:
    """What the store keeps of the recipe: not what changes no byte of it, and no id that is to be forgotten."""
    values = recipe_values(recipe)
    values["store"]["path"] = None
    return {name: value for name, value in values.items() if name not in ("extract", "forget", "compare")}


def _request(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide the cached bytes, flat."""
    sections = {"data", "backbone", "preprocess", "store"}
    flat = {f"{s}.{k}": v for s in sections for k, v in msgspec.to_builtins(values[s]).items()}
    return {k: v for k, v in flat.items() if k != "store.path"}


def is_complete(store: FeatureStore) -> bool:
    """Whether every shard of the store's plan is there."""
    return len(store.manifest.shards) == store.manifest.plan["groups"]


def _news(store: FeatureStore, recipe: Recipe) -> list[str]:
    """What the source holds that the store does not, and the other way round."""
    source, test = open_source(recipe.data)
    there = {item.id for part in (source, test) if part is not None for item in part.items}
    known = {i for ref in store.manifest.shards for i in store.shard(ref.name).sample_ids}
    known |= {skipped.id for skipped in store.manifest.skipped}
    notes = []
    if new := sorted(i for i in there - known if not store.is_forgotten(i)):
        notes.append(
            f"{len(new)} images of the source are not in the store (first: {new[0]}); taftcache append takes them in"
        )
    if gone := sorted(known - there):
        notes.append(
            f"{len(gone)} stored samples are not in the source now (first: {gone[0]}); forget them by id to drop them"
        )
    return notes


def _report(store: FeatureStore, images: int = 0, seconds: float = 0.0, notes: Sequence[str] = ()) -> ExtractReport:
    return ExtractReport(
        store.path,
        store.root_digest,
        {ref.name: ref.rows for ref in store.manifest.shards},
        images,
        len(store.manifest.skipped),
        seconds,
        store.nbytes,
        list(notes),
    )
