"""Forget samples: rows leave the store, and what was made from them is renewed or destroyed, in one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from taftcache.backbone.still_there import still_there
from taftcache.cache.format.digest import digest
from taftcache.cache.format.manifest import ObjectRef
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.consent import names, recorded_recipe, refusal
from taftcache.errors import ArgumentError, RecipeError, TaftcacheError, several_texts
from taftcache.model.component import put_component, read_component
from taftcache.model.meta import meta_of
from taftcache.names import (
    CLASS,
    EXACT,
    HEAD,
    MEAN,
    WEIGHTED,
    counted,
    is_component,
    shard_of,
    yours_to_do,
)
from taftcache.stages.certificates import RenewedCertificate
from taftcache.stages.completeness import subtracted_notes
from taftcache.stages.estimators import fitted_note
from taftcache.stages.forget.notes import (
    left_notes,
    private_notes,
    stays_notes,
    subtracted_rows,
    twin_notes,
    untaught_note,
)
from taftcache.stages.forget.planning import ForgetPlan, changes_training, plan_forgetting
from taftcache.stages.forget.receipts import receipt_of
from taftcache.stages.forget.remaking import Remade, numbers_before, remake
from taftcache.stages.forget.renewal import OTHERWISE_MADE, certificate_of
from taftcache.stages.forget.request import MODES, Mode, PartedGroup, Request, parted_notes, requested
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.signature import Signer, signed, signer_of
from taftcache.stages.train.duration import expected_seconds
from taftcache.stages.train.held_out import HeldOutChange, held_out_change, hits_or_note
from taftcache.stages.train.private.records import KEYS, put_keys
from taftcache.stages.train.record import beside_notes, plan_without, settings_of
from taftcache.tangent.spec import TAIL


@dataclass(frozen=True, kw_only=True)
class ForgetReport(Report):
    """What was forgotten now, what had been before, what was renewed and destroyed, and what proves it.

    forgotten: ids that were forgotten now. already: ids that had been forgotten before. shards: those whose rows left.
    renewed: components that were solved again, and models that were made again and changed (after a dry run, all that
    would be made again). certificates: for each that was solved again; empty after a dry run. mode: how models were
    renewed. destroyed: what was removed and not made again. dropped_shards: shards that became empty, and are gone.
    classes: classes that were forgotten as a whole. passes: over the rows, by what was solved; after a dry run an
    estimate. That is what the present components took. bytes: size, before, of the shards that were or would be written
    anew. copies: ids that stay although their rows have the same bytes as rows that leave. copies_taken: ids in
    ``forgotten`` that left only as such copies. groups: those of ``data.group`` of which samples leave or were named,
    and others stay. group_taken: ids in ``forgotten`` that were not named, but left with their group. in_source: ids
    whose images are still where the recipe names them. As far as that may be opened here, and lists them (see
    ``still_there``).
    expected_seconds: after a dry run, how long each solve would take here, by component. What is not known has none
    (see ``duration.expected_seconds``). matched: ids that each pattern named. held_out: what became of the default
    model's accuracy. None without held-out rows, if nothing was made again or destroyed, and after a dry run.
    """

    store: Path
    root_before: str
    root_digest: str
    forgotten: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    certificates: dict[str, RenewedCertificate] = field(default_factory=dict)
    seconds: float = 0.0
    mode: Mode | Literal["destroy-key"] = "retrain"
    destroyed: list[str] = field(default_factory=list)
    dropped_shards: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    passes: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    dry_run: bool = False
    notes: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    copies_taken: list[str] = field(default_factory=list)
    groups: list[PartedGroup] = field(default_factory=list)
    group_taken: list[str] = field(default_factory=list)
    in_source: list[str] = field(default_factory=list)
    expected_seconds: dict[str, float] = field(default_factory=dict)
    matched: dict[str, list[str]] = field(default_factory=dict)
    held_out: HeldOutChange | None = None


@at_its_place("a")
def forget(
    store: Place,
    samples: Sequence[str] | None = None,
    *,
    progress: Progress | bool | None = None,
    shards: Sequence[str] = (),
    classes: Sequence[str] = (),
    matching: Sequence[str] = (),
    components: Sequence[str] = (),
    mode: Mode = "retrain",
    dry_run: bool = False,
    signing_key: Path | str | None = None,
    with_copies: bool = False,
    with_group: bool = False,
) -> ForgetReport:
    """Erase rows, and renew or destroy what was made from them, in one commit: after a crash, all of it or nothing.

    mode "retrain" solves the affected shards, the head and the exact model again from the remaining rows alone: they
    have the bytes that they would have if the rows had never been seen. "subtract" leaves the affected shards out of
    the composition and solves only the head. "resolve" is "retrain", but solves the exact model starting from where it
    is until the certificate is decisive (see `renewal.resolve_warm`), or from zero if it does not become decisive. A
    shard or class without rows is removed; after a class, every component is solved again, because the head has one
    column less.

    ``samples`` are ids, or files of the folder that the store was made from; these need not exist any more.
    ``matching`` are patterns of ids in the form of `fnmatch.fnmatchcase`: * and ? match any letters, including /, and
    letters with accents match in either of Unicode's forms. They name samples that the store has, with a row or
    without; no id of a forgotten sample is kept that could match.

    ``signing_key`` is a file with an Ed25519 key that the receipt is signed with. ``with_copies``: rows with the same
    bytes under other ids, including held-out ones, and components with the same numbers under other names are forgotten
    too. ``with_group``: so are all samples of the groups (``data.group``) of what is named, also of samples that were
    forgotten before, and further samples of them are left out from then on.

    A private component stays as it is: its promise already bounds what it holds of a sample, and training it again
    would spend more of its budget; the receipt says so. If a class is removed, so is the component.

    ``components`` are imported ones ("partner"). They are destroyed, and what was composed of them is made again
    without them. So is the exact model, if only they stood against it under ``compose.mode``.

    An empty list of samples forgets nothing and changes nothing.

    Raises:
        RecipeError: nothing is named, the mode cannot do it, a shard's component is named, no such key, or
            ``with_group`` in a store without groups.
            UnknownSample, StoreError: something named is neither stored nor was forgotten before, or a pattern matches
            nothing. DataError: no training row would be left.
    """
    assert isinstance(store, FeatureStore)
    begin = time.perf_counter()
    samples = None if samples is None else several_texts("samples", samples)
    shards, classes = several_texts("shards", shards), several_texts("classes", classes)
    matching, components = several_texts("matching", matching), several_texts("components", components)
    if samples is None and not (shards or classes or matching or components):
        raise RecipeError(
            "nothing to forget: no sample, shard, class or component is named",
            do="give ids as taftcache inspect lists them",
        )
    if mode not in MODES:
        raise ArgumentError(f"unknown mode {mode!r} to forget with", got=mode, do=f"one of {', '.join(MODES)}")
    signer, progress = signer_of(signing_key), or_silent(progress)
    request = requested(store, samples or (), shards, classes, matching, components, with_copies, with_group, progress)
    if not request.samples and not request.asked:
        report = ForgetReport(
            store=store.path, root_before=store.root_digest, root_digest=store.root_digest,
            already=request.already, mode=mode, dry_run=dry_run, groups=request.groups,
        )  # fmt: skip
    else:
        plan = plan_forgetting(store, request, mode)
        report = _timed(store, plan) if dry_run else _carry_out(store, plan, signer, progress)
    left, said = _in_source(store, [*report.forgotten, *report.already])
    parted = parted_notes(request.groups, dry_run=dry_run)
    return replace(report, in_source=left, notes=[*parted, *report.notes, *said], seconds=time.perf_counter() - begin)


def estimate(store: FeatureStore, plan: ForgetPlan) -> ForgetReport:
    """What would happen; nothing is changed."""
    objects = store.objects()
    if plan.renewed and not (changes_training(plan.request) or plan.request.components):  # sums may come out the same
        with suppress(TaftcacheError):  # the answer is then what would be made, not what would change by it
            plan = _without_equal(plan, objects, remake(store, plan, {}, or_silent(None)))
    solved = [name for name in plan.renewed if name in objects and name not in (MEAN, WEIGHTED)]
    passes = {name: meta_of(objects[name].meta).passes or 1 for name in solved}
    return replace(
        _report(store, plan, store.root_digest),
        passes=passes,
        bytes=_rewritten(store, plan),
        dry_run=True,
        notes=[
            *stays_notes(store, plan),
            *private_notes(store, plan),
            *twin_notes(store, plan),
            *left_notes(store, plan, objects, len(store.classes) - len(plan.request.classes), dry_run=True),
            *subtracted_notes(store, subtracted_rows(store, plan)),
            *fitted_note(store),
        ],
    )


def _timed(store: FeatureStore, plan: ForgetPlan) -> ForgetReport:
    """What would happen, and about how long it would take."""
    report = estimate(store, plan)
    seconds, unknown = expected_seconds(store, report.passes, plan.request.leaving)
    return replace(report, expected_seconds=seconds, notes=[*untaught_note(store, plan), *report.notes, *unknown])


def _carry_out(store: FeatureStore, plan: ForgetPlan, signer: Signer | None, progress: Progress) -> ForgetReport:
    """Carry out the plan, in one commit."""
    before, size, there = store.root_digest, _rewritten(store, plan), store.objects()
    same = twin_notes(store, plan)
    bare = TAIL not in store.objects()  # imported rows without a backbone: nothing can have been made from them
    with store.transaction() as change:
        hits, unscored = hits_or_note(store) if plan.renewed or plan.destroyed else (None, [])
        new = _erase(change, store, plan.request)
        remade = Remade() if bare else remake(store, plan, new, progress)
        certificates, unknown = _certificates(store, plan, remade)
        for name, component in remade.components.items():
            put_component(change, name, component)
        plan = _without_equal(plan, there, remade)
        for name in plan.destroyed:
            change.drop(name)
        _forget_keys(change, store, plan)
        notes = [*stays_notes(store, plan), *remade.notes, *unknown, *private_notes(store, plan)]
        if plan.mode == "subtract" or plan.request.emptied:
            change.update(plan=plan_without(store, subtracted=plan.subtracted, dropped=len(plan.request.emptied)))
        _record(change, store, plan)
        entry = receipt_of(store, change, plan, certificates, notes, numbers_before(store, plan, remade))
        change.record(signed(store, entry, signer))
    now, unscored = (None, unscored) if hits is None else hits_or_note(store)
    return replace(
        _report(store, plan, before),
        certificates=certificates,
        passes={name: certificate.passes for name, certificate in certificates.items()},
        bytes=size,
        notes=[
            *notes,
            *same,
            *left_notes(store, plan, there, len(store.classes)),
            *subtracted_notes(store),
            *fitted_note(store),
            *beside_notes(store),
            *unscored,
        ],
        held_out=held_out_change(hits, now),
    )


def _without_equal(plan: ForgetPlan, there: Mapping[str, ObjectRef], remade: Remade) -> ForgetPlan:
    """The plan without compositions among ``renewed`` that have the bytes that they had: held-out rows may have left
    on which no sum was checked."""
    sums = {name: made for name, made in remade.components.items() if name in (MEAN, WEIGHTED) and name in there}
    equal = [name for name, made in sums.items() if digest(made.encode()) == there[name].digest]
    return replace(plan, renewed=[name for name in plan.renewed if name not in equal])


def _rewritten(store: FeatureStore, plan: ForgetPlan) -> int:
    """The size, before, of the shards that are written anew."""
    return sum(store.shard(name).nbytes for name in plan.rewritten)


def _erase(change: Transaction, store: FeatureStore, request: Request) -> dict[str, Shard]:
    """Take rows, emptied shards and classes without rows out of the store; returns the shards that it wrote anew."""
    whole = {i for name in request.emptied for i in store.shard(name).sample_ids}
    rowless = {*whole, *request.staged}
    new = change.erase([i for i in request.samples if i not in rowless])
    for name in request.emptied:
        change.drop_shard(name)
    # A staged sample has a tombstone from here on, so the commit sweeps the staged rows that hold it.
    change.add_tombstones([*whole, *request.staged, *request.asked, *(CLASS + name for name in request.classes)])
    if request.classes:
        gone = set(request.classes)
        new = change.relabel([name for name in store.classes if name not in gone])
    return new


def _certificates(
    store: FeatureStore, plan: ForgetPlan, remade: Remade
) -> tuple[dict[str, RenewedCertificate], list[str]]:
    """The certificate of each new component that has one, with how far the removal moved it. A component that moved for
    other reasons, too, has no such distance; a note names it."""
    solved = {name: component for name, component in remade.components.items() if "certificate" in component.meta}
    if not solved:
        return {}, []
    settings = settings_of(store)  # still with the classes that leave, as the old components have them
    certificates, stale = {}, []
    for name, component in solved.items():
        if not (name in store.objects() and changes_training(plan.request)):  # no removal of rows moved it
            certificates[name] = certificate_of(component, None)
            continue
        old = read_component(store, name, settings.base)
        own = [store.shard(shard_of(name))] if is_component(name) else store.shards
        same = settings.poses(old, own, "head" if name == HEAD else settings.train)
        if name == EXACT and remade.old_exact is not None:
            old = remade.old_exact
        certificates[name] = certificate_of(component, old if same else None)
        stale += [] if same else [name]
    note = f"{OTHERWISE_MADE}: {', '.join(stale)}; what the removal moved of it is not known"
    return certificates, [note] if stale else []


def _in_source(store: FeatureStore, forgotten: list[str]) -> tuple[list[str], list[str]]:
    """The ids whose images are still where the store's recipe names them, and a note about these, or about why they are
    not known."""
    recipe = recorded_recipe(store)
    places = names(recipe, "images")
    if not (forgotten and places) or "imported" in store.identity:
        return [], []
    where = ", ".join(f"data.{key} = {place}" for key, place in places.items())
    unseen = f"the source ({where}) was not searched for {counted(len(forgotten), 'forgotten image')}: "
    if refusal(store, "images", recipe) is not None:
        return [], [f"{unseen}the store may not open it (taftcache trust)"]
    try:
        left, numbered = still_there(recipe.data, forgotten)
    except (TaftcacheError, OSError):  # the rows have left, whatever became of their source
        return [], [f"{unseen}it cannot be read"]
    said = (
        f"{len(left)} of {counted(len(forgotten), 'row' if numbered else 'image')} still in the source ({where}): "
        f"{yours_to_do(len(left), numbered=numbered)}"
    )
    return left, [said] if left else []


def _forget_keys(change: Transaction, store: FeatureStore, plan: ForgetPlan) -> None:
    """Drop the keys of private components whose shards lose rows, or that go: they tell which rows those were made
    from."""
    leaving = plan.request.leaving
    if KEYS in store.objects() and (leaving or plan.request.classes):
        put_keys(change, store, {}, [n for n in plan.private if n in plan.destroyed or shard_of(n) in leaving])


def _record(change: Transaction, store: FeatureStore, plan: ForgetPlan) -> None:
    """Record the recipe without the coefficients and class weights of what leaves."""
    values, recipe = dict(store.manifest.recipe), plan.recipe  # the values may be empty if a program made the store
    if plan.weights != recipe.compose.weights:
        values["compose"] = {**values["compose"], "weights": plan.weights or "rows"}
    if not isinstance(recipe.objective.class_weights, str):
        values["objective"] = {**values["objective"], "class_weights": list(recipe.objective.class_weights)}
    if values != store.manifest.recipe:
        change.update(recipe=values)


def _report(store: FeatureStore, plan: ForgetPlan, before: str) -> ForgetReport:
    """What the plan says about the request, whether or not it was carried out."""
    request = plan.request
    return ForgetReport(
        store=store.path,
        root_before=before,
        root_digest=store.root_digest,
        forgotten=request.samples,
        already=request.already,
        shards=sorted(request.leaving),
        renewed=plan.renewed,
        mode=plan.mode,
        destroyed=plan.destroyed,
        dropped_shards=request.emptied,
        classes=request.classes,
        copies=request.copies,
        copies_taken=request.copies_taken,
        groups=request.groups,
        group_taken=request.group_taken,
        matched=request.matched,
    )
