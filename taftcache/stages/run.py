"""The main job: run every stage of a recipe, and skip those whose result is there already."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from taftcache.cache.opening import Place
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError
from taftcache.recipe import Recipe, checked_recipe
from taftcache.stages.completeness import is_complete
from taftcache.stages.executor import Executor
from taftcache.stages.extract.extraction import ExtractReport, extract
from taftcache.stages.forget.forgetting import ForgetReport, forget
from taftcache.stages.forget.request import resolve_request
from taftcache.stages.look.evaluation import EvaluateReport, evaluate
from taftcache.stages.progress import Progress
from taftcache.stages.report import Report
from taftcache.stages.train.checks import check_planned
from taftcache.stages.train.composing import ComposeReport, compose
from taftcache.stages.train.training import TrainReport, train


@dataclass(frozen=True, kw_only=True)
class RunReport(Report):
    """One report for each stage.

    extract, train, compose: what these stages did. evaluate: None when the store has no held-out rows. forget: None
    when the recipe forgets nothing.
    """

    store: Path
    root_digest: str
    extract: ExtractReport
    train: TrainReport
    compose: ComposeReport
    evaluate: EvaluateReport | None
    forget: ForgetReport | None
    seconds: float

    @property
    def idle(self) -> bool:
        """Whether everything was there already."""
        done = self.extract.images or self.train.trained or self.compose.changed
        return not done and not (self.forget and self.forget.forgotten)


def run(
    recipe: Recipe,
    *,
    progress: Progress | bool | None = None,
    cluster: Executor | None = None,
    forgotten_of: Place | None = None,
) -> RunReport:
    """Extract, train, compose (these on the workers of a ``cluster``), evaluate, and forget what the recipe names.

    ``forgotten_of`` as for ``extract``.
    """
    begin, recipe = time.perf_counter(), checked_recipe(recipe)
    try:
        extracted = extract(recipe, progress=progress, cluster=cluster, check=check_planned, forgotten_of=forgotten_of)
    except DataError as error:
        error.do = "; ".join([*([error.do] if error.do else []), *_without_images(recipe.store_path)]) or None
        raise
    wish = recipe.forget
    with FeatureStore(recipe.store_path, mode="a") as store:
        if wish.samples:
            resolve_request(store, wish.samples)  # refuse a wrong one now, not after the training
        trained = train(store, recipe, progress=progress, cluster=cluster)
        composed = compose(store, recipe, progress=progress, cluster=cluster)
        new = bool(trained.trained) or composed.changed  # else the probe would be the only work
        probe: Literal["quick", False] = "quick" if new else False
        evaluated = evaluate(store, progress=progress, probe=probe) if store.held_out is not None else None
        forgotten = forget(store, wish.samples, progress=progress, mode=wish.mode) if wish.samples else None
        return RunReport(
            store=store.path,
            root_digest=store.root_digest,
            extract=extracted,
            train=trained,
            compose=composed,
            evaluate=evaluated,
            forget=forgotten,
            seconds=time.perf_counter() - begin,
        )


def _without_images(path: Path) -> list[str]:
    """Advice on what a store that has all its rows can do without its images."""
    if not FeatureStore.exists(path):
        return []
    with FeatureStore(path) as store:
        if not is_complete(store):
            return []
    place = shlex.quote(str(path))
    return [f"the store has all its rows, so these need no images: taftcache train {place}, taftcache evaluate {place}"]
