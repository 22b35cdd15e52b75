"""Stage 2: one component per shard, solved from the cache, and a head over all shards."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, check_several
from taftcache.model.component import Component, put_component
from taftcache.model.members import imported
from taftcache.model.meta import meta_of
from taftcache.names import EXACT, HEAD, INTERRUPTED_KEY, component_of, counted, first_few, shard_of
from taftcache.recipe import Overrides, Recipe
from taftcache.stages.certificates import JudgedCertificate
from taftcache.stages.completeness import still_missing, subtracted_notes
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.executor import Executor, Job
from taftcache.stages.progress import Progress, numbered, or_silent
from taftcache.stages.report import Report
from taftcache.stages.train.checks import check_coefficients, check_kept, orphans
from taftcache.stages.train.composing import ComposeReport
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.promises import promised
from taftcache.stages.train.record import (
    changed_settings,
    makes_models,
    plan_with,
    record_recipe,
    recorded_values,
    settings_of,
    wanted_shards,
)
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import (
    SolveOptions,
    check_head_fits,
    judged,
    ridge_notes,
    solve_component,
    unfinished,
)
from taftcache.tangent.spec import Train

UNCOMMITTED = 2.0  # seconds of solving that a kill may undo; a solve that takes longer is committed by itself
UNCOMMITTED_BYTES = 64 << 20

_HEAD_GONE = (
    f"{HEAD} is gone: components that are heads have {EXACT} for the head of all rows, and private ones have none"
)


@dataclass(frozen=True, kw_only=True)
class TrainReport(Report):
    """What stage 2 did.

    trained: components trained now. kept: components from before. certificates: by component, for those that have one.
    composed: what was then made from the components. By the command ``taftcache
    train``; None from ``train``.
    """

    store: Path
    root_digest: str
    trained: list[str]
    kept: list[str]
    certificates: dict[str, JudgedCertificate]
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    composed: ComposeReport | None = None


@at_its_place("a")
def train(
    store: Place,
    recipe: Recipe | None = None,
    *,
    overrides: Overrides = (),
    shards: Sequence[str] | None = None,
    progress: Progress | bool | None = None,
    cluster: Executor | None = None,
) -> TrainReport:
    """Solve every shard (or those named) whose component is missing or was made from other rows or settings.

    What can be refused is refused before the first commit. That commit also records the settings, and drops what is
    then around another base point. ``compose`` makes the models of several shards, ``models/mean`` and
    ``models/exact``: call it next, as the command ``taftcache train`` does.

    Args:
        store: opened for writing, or its place.
        recipe: settings of stage 2; the store's own by default. They are recorded in the store.
        overrides: changes to single settings: {"objective.ridge": 1e-3}, or as with ``--set`` ["objective.ridge=1e-3"].
        shards: names of the shards to train; all by default.
        cluster: its workers solve, one component per task; this process by default. The bytes are the same, given the
            same number of threads.

    Raises:
        RecipeError, IdentityError, BackboneError: as ``check_settings`` and ``check_kept`` say, or a
            private component would be replaced. StoreError: no such shard, or the images of a regressor. SolveError:
            the problem has no solution as posed.
    """
    assert isinstance(store, FeatureStore)
    check_several(shards=shards)
    check_has_classes(store)
    progress = or_silent(progress)
    begin = time.perf_counter()
    settings = settings_of(store, recipe, overrides)
    jobs = _jobs(store, settings, shards)
    there = store.objects()
    outlived = {HEAD} & there.keys() - {job.name for job in jobs}
    lost = {*orphans(store, settings), *outlived}
    keys = {name: ref.meta.get("key") for name, ref in there.items() if name not in lost}
    kept = [job.name for job in jobs if keys.get(job.name) == job.key]
    todo = [job for job in jobs if job.name not in kept]
    replaced = _replaced(store, settings.recipe, todo)
    _check_todo(store, todo)
    if cluster is None:  # a worker checks its own memory
        for job in todo:
            check_head_fits(settings, job.shards, job.train, chosen=settings.chooses_ridge)
    for group in _together(_solved(store, settings, todo, progress, cluster)):
        _put(store, settings.recipe, group, lost)
        lost = set()
        if _is_interrupted(group):
            raise KeyboardInterrupt
    if not todo and (lost or recorded_values(store, settings.recipe) != store.manifest.recipe):
        with store.transaction() as change:
            record_recipe(change, store, settings.recipe)
            for orphan in lost:
                change.drop(orphan)
    said = {job.name: meta_of(store.manifest.objects[job.name].meta) for job in jobs}
    return TrainReport(
        store=store.path,
        root_digest=store.root_digest,
        trained=[job.name for job in todo],
        kept=kept,
        certificates={name: proven for name, one in said.items() if (proven := judged(one))},
        seconds=time.perf_counter() - begin,
        notes=[
            *still_missing(store),
            *subtracted_notes(store),
            *unfinished(said),
            *replaced,
            *([_HEAD_GONE] if outlived else []),
            *ridge_notes(said),
            *([] if shards is None else outdated_notes(store, settings.keys)),
        ],
    )


def _jobs(store: FeatureStore, settings: Settings, shards: Sequence[str] | None) -> list[Job]:
    """What a training of these shards (None: all) is responsible for: their components, and the head over all rows.

    There is no head if a shard is under a promise of privacy: it would tell what the noise hides. Nor if components are
    heads themselves and an exact model is made, which then is the head over all rows.

    Raises:
        StoreError: as ``wanted_shards`` says. RecipeError: coefficients that will not fit the
        components, or what ``check_kept`` says.
    """
    wanted, given = wanted_shards(store, shards), settings.recipe.compose
    if shards is None and given.mode == "weighted":
        names = [*(component_of(shard.name) for shard in wanted), *imported(store)]
        check_coefficients(given.weights, names, store)
    jobs: list[tuple[str, list[Shard], Train]] = [(component_of(s.name), [s], settings.train) for s in wanted]
    check_kept(store, settings, [name for name, _, _ in jobs])
    own = settings.base.trained(settings.train) == settings.base.head_layout and given.mode in ("auto", "exact")
    jobs += [] if own or promised(store) else [(HEAD, store.shards, "head")]
    return [
        Job(name=name, shards=sources, train=train, key=settings.key(sources, train)) for name, sources, train in jobs
    ]


def _replaced(store: FeatureStore, recipe: Recipe, jobs: Sequence[Job]) -> list[str]:
    """A note on what is solved again from the same rows because settings differ from those recorded in the store."""
    said = {name: meta_of(ref.meta) for name, ref in store.objects().items() if name in {job.name for job in jobs}}
    same = [j.name for j in jobs if j.name in said and said[j.name].row_digests == [s.digest for s in j.shards]]
    changed = [f"{key} {how}" for key, how in changed_settings(store, recipe).items() if makes_models(key)]
    if not (same and changed):
        return []
    return [
        f"{', '.join(changed)}: {first_few(same)} trained again in place of what was there, and what is composed of it"
    ]


def _check_todo(store: FeatureStore, jobs: Sequence[Job]) -> None:
    """Refuse, before the first solve, jobs that would break a promise of privacy.

    Raises:
        RecipeError: rows under a promise of privacy would be seen without noise.
    """
    under = promised(store)
    if private := sorted({job.name for job in jobs} & set(map(component_of, under))):
        others = " ".join(f"--shard {shard.name}" for shard in store.shards if shard.name not in under)
        raise RecipeError(
            f"{', '.join(private)}: trained privately, and what is made of these rows without noise would break that "
            "promise",
            got="taftcache train without --private",
            do="taftcache train --private"
            + (f", or without a promise to their rows the other shards alone: {others}" if others else "")
            + ", or train a store of the same rows that was extracted elsewhere",
        )


def _solved(
    store: FeatureStore, settings: Settings, jobs: Sequence[Job], progress: Progress, cluster: Executor | None
) -> Iterator[tuple[Job, Component]]:
    """Each job with its component, as they are solved: here one after the other, or by workers."""
    if cluster is None:
        options = SolveOptions(interrupted="keep")
        for job, label in zip(jobs, numbered([job.name for job in jobs]), strict=True):
            yield job, solve_component(settings, job.shards, job.train, progress, label=label, options=options)
    else:
        with progress.task(f"solve on {counted(len(cluster.workers()), 'worker')}", len(jobs)) as task:
            yield from cluster.components(store, settings.recipe, settings.base, jobs, task)


def _together(solved: Iterable[tuple[Job, Component]]) -> Iterator[dict[str, Component]]:
    """Components by name, in groups of a few seconds of solving, since each commit writes the whole manifest anew.

    What was solved is yielded before the error, or the interruption, that ended solving.
    """
    group: dict[str, Component] = {}
    begin = time.monotonic()
    try:
        for job, component in solved:
            group[job.name] = component
            held = sum(each.delta.nbytes for each in group.values())
            if time.monotonic() - begin >= UNCOMMITTED or held >= UNCOMMITTED_BYTES or _is_interrupted(group):
                yield group
                group, begin = {}, time.monotonic()
    except (Exception, KeyboardInterrupt):
        if group:
            yield group
        raise
    if group:
        yield group


def _is_interrupted(group: Mapping[str, Component]) -> bool:
    """Whether the last component of the group is what Ctrl-C left of a solve."""
    *_, last = group.values()
    return last.record.key == INTERRUPTED_KEY


def _put(store: FeatureStore, recipe: Recipe, group: Mapping[str, Component], lost: Collection[str]) -> None:
    """Commit components and the settings that they were made with; their shards are in compositions again."""
    with store.transaction() as change:
        record_recipe(change, store, recipe)
        for orphan in lost:
            change.drop(orphan)
        for name, component in group.items():
            put_component(change, name, component)
        change.update(plan=plan_with(store, [shard_of(name) for name in group]))
