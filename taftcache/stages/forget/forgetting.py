"""Forget samples: rows leave the store, and what was made from them is renewed or destroyed, in one commit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from taftcache.backbone.still_there import still_there
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.format.fault import problem_of
from taftcache.cache.format.manifest import ObjectRef
from taftcache.cache.kept_keys import KeptKey, TombstoneKeys
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.consent import names, recorded_recipe, refusal
from taftcache.errors import ArgumentError, RecipeError, StoreError, TaftcacheError, several_texts
from taftcache.model.component import put_component, read_component
from taftcache.model.members import imported
from taftcache.model.meta import meta_of
from taftcache.names import (
    CLASS,
    COMPONENTS,
    EXACT,
    HEAD,
    HELD_OUT,
    MEAN,
    OF_ONE_CLASS,
    WEIGHTED,
    counted,
    first_few,
    is_component,
    is_model,
    shard_of,
    them,
    train_command,
    typed,
    yours_to_do,
)
from taftcache.privacy.statement import forgetting_note
from taftcache.stages.certificates import RenewedCertificate
from taftcache.stages.completeness import subtracted_notes
from taftcache.stages.estimators import fitted_note
from taftcache.stages.forget.chain import DESTROYED, entries_of, left_since
from taftcache.stages.forget.planning import ForgetPlan, changes_training, plan_forgetting
from taftcache.stages.forget.receipts import receipt_of
from taftcache.stages.forget.remaking import Remade, remake
from taftcache.stages.forget.renewal import OTHERWISE_MADE, certificate_of
from taftcache.stages.forget.request import MODES, Mode, Request, requested
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.signature import Signer, signed, signer_of
from taftcache.stages.train.checks import STAYS
from taftcache.stages.train.duration import expected_seconds
from taftcache.stages.train.held_out import HeldOutChange, held_out_change, hits_or_note
from taftcache.stages.train.private.records import KEYS, put_keys
from taftcache.stages.train.promises import promised
from taftcache.stages.train.record import beside_notes, plan_without, settings_of
from taftcache.stages.train.trained_on import compose_anyhow
from taftcache.tangent.spec import TAIL
from taftcache.teaching.rows import open_teachers

OTHER_COLUMNS = (
    "with a class a column leaves every model, which cannot be compared with the one from before: its certified"
    " distance is said, and nothing of what the removal moved"
)


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
    ``forgotten`` that left only as such copies. in_source: ids whose images are still where the recipe names them. As
    far as that may be opened here, and lists them (see ``still_there``). expected_seconds: after a dry run, how long
    each solve would take here, by component. What is not known has none (see ``duration.expected_seconds``). matched:
    ids that each pattern named. held_out: what became of the default model's accuracy. None without held-out rows, if
    nothing was made again or destroyed, and after a dry run.
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
    too.

    A private component stays as it is: its promise already bounds what it holds of a sample, and training it again
    would spend more of its budget; the receipt says so. If a class is removed, so is the component.

    ``components`` are imported ones ("partner"). They are destroyed, and what was composed of them is made again
    without them. So is the exact model, if only they stood against it under ``compose.mode``.

    An empty list of samples forgets nothing and changes nothing.

    Raises:
        RecipeError: nothing is named, the mode cannot do it, a shard's component is named, or no such key.
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
    request = requested(store, samples or (), shards, classes, matching, components, with_copies, progress)
    if not request.samples and not request.asked:
        report = ForgetReport(
            store=store.path, root_before=store.root_digest, root_digest=store.root_digest,
            already=request.already, mode=mode, dry_run=dry_run,
        )  # fmt: skip
    else:
        plan = plan_forgetting(store, request, mode)
        report = _timed(store, plan) if dry_run else _carry_out(store, plan, signer, progress)
    left, said = _in_source(store, [*report.forgotten, *report.already])
    return replace(report, in_source=left, notes=[*report.notes, *said], seconds=time.perf_counter() - begin)


@at_its_place("a")
def destroy_key(store: Place, *, signing_key: Path | str | None = None) -> ForgetReport:
    """Destroy the tombstones and their key: nobody can ask any more whether an id was forgotten.

    Nobody can then guess the ids behind the hashes that receipts keep. The key also goes from files of tombstones in
    the same folder that were left of a store that is not there any more, as after a move. Notes name other stores and
    files there that have it, too; copies and backups elsewhere keep theirs. The price: a forgotten sample is taken in
    again if it is extracted again, and an old copy of the store is no longer noticed.
    """
    assert isinstance(store, FeatureStore)
    before, keys = store.root_digest, TombstoneKeys(store)
    signer = signer_of(signing_key)
    notes = ["there was no key to destroy: nothing was forgotten here, or its key is destroyed already"]
    own = store.manifest.tombstone_key  # an old copy may lack a key that the file beside has
    if own := own or (digest(store.tombstone_file.key) if store.tombstone_file.key else ""):
        with store.transaction() as change:
            entry = {
                "event": DESTROYED,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "tombstones": len(store.manifest.tombstones),
                ledger.DESTROYED_KEY: own,
            }
            change.destroy_key()
            entry |= change.commitment()
            change.record(signed(store, entry, signer))
        notes = []
    return ForgetReport(
        store=store.path,
        root_before=before,
        root_digest=store.root_digest,
        mode="destroy-key",
        notes=[*notes, *_destroyed_beside(keys)],
    )


def _destroyed_beside(keys: TombstoneKeys) -> list[str]:
    """Destroy the ``keys`` in files that are left in the folder around the store; notes on these, and on all else there
    that has a key or may have it. After the commit: if this is killed before, the same command again does it."""
    notes = []
    try:
        for at in keys.beside():
            notes.append(_destroyed_at(at))
    except StoreError as error:
        notes.append(f"{error.fault}, {error.got}: whether a file there has the key, too, is not known")
    return notes


def _destroyed_at(at: KeptKey) -> str:
    if at.state == "unread":
        return f"{at.path} cannot be read here, and may have the key, too"
    has = f"{at.path} still has the key, with which anyone can ask about the ids behind the receipts' hashes"
    if at.is_store:
        return f"{has}; taftcache forget {typed(at.path)} --destroy-key, or delete it if it is an old copy"
    if at.is_left:
        try:
            at.destroy()
        except StoreError as error:
            return f"{has}, and could not be changed: {error.fault}"
        left = "left of a store that is not there any more"
        return f"{at.path} had the key, too, {left}: the key is destroyed there as well"
    return f"{has}, and may be that of another store; delete it if none needs it"


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
            *_notes(store, plan),
            *_private(store, plan),
            *_twins(store, plan),
            *_unlearned(store, plan, dry_run=True),
            *_untested(plan, "would be left"),
            *_one_class(plan, len(store.classes) - len(plan.request.classes), "would be left"),
            *_none_left(store, plan, there=objects, dry_run=True),
            *_unweighed(store, plan, dry_run=True),
            *subtracted_notes(store, _subtracted(store, plan)),
            *fitted_note(store),
        ],
    )


def _timed(store: FeatureStore, plan: ForgetPlan) -> ForgetReport:
    """What would happen, and about how long it would take."""
    report = estimate(store, plan)
    seconds, unknown = expected_seconds(store, report.passes, plan.request.leaving)
    return replace(report, expected_seconds=seconds, notes=[*_untaught(store, plan), *report.notes, *unknown])


def _untaught(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """A note where the request would be refused, since what it solves again needs teachers that cannot be read."""
    teachers, gone = plan.recipe.prior.teachers, {*plan.request.samples}
    if plan.recipe.tangent.train == "head" or not {*plan.renewed}.difference((HEAD, MEAN, WEIGHTED)):
        return []
    try:
        if (refused := refusal(store, "teachers", plan.recipe)) is not None:
            raise refused
        with open_teachers(teachers, [i for i in store.sample_ids() if i not in gone]):
            return []
    except TaftcacheError as error:
        got = f" ({error.got})" if error.got else ""
        return [f"without --dry-run this request would be refused: {error.fault}{got}; {error.do}"]


def _carry_out(store: FeatureStore, plan: ForgetPlan, signer: Signer | None, progress: Progress) -> ForgetReport:
    """Carry out the plan, in one commit."""
    before, size, there = store.root_digest, _rewritten(store, plan), store.objects()
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
        notes = [*_notes(store, plan), *remade.notes, *unknown, *_private(store, plan)]
        if plan.mode == "subtract" or plan.request.emptied:
            change.update(plan=plan_without(store, subtracted=plan.subtracted, dropped=len(plan.request.emptied)))
        _record(change, store, plan)
        entry = receipt_of(store, change, plan, certificates, notes)
        change.record(signed(store, entry, signer))
    now, unscored = (None, unscored) if hits is None else hits_or_note(store)
    return replace(
        _report(store, plan, before),
        certificates=certificates,
        passes={name: certificate.passes for name, certificate in certificates.items()},
        bytes=size,
        notes=[
            *notes,
            *_twins(store, plan),
            *_unlearned(store, plan),
            *_untested(plan, "is left"),
            *_one_class(plan, len(store.classes), "is left"),
            *_none_left(store, plan, there=there),
            *_unweighed(store, plan),
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


def _notes(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """Notes on what the request leaves as it is; they are known before it is carried out."""
    return [*_damaged_ledger(store), *_imported(store, plan), *_unsearched(plan), *_closing(plan)]


def _none_left(store: FeatureStore, plan: ForgetPlan, *, there: Iterable[str], dry_run: bool = False) -> list[str]:
    """A note if no model, or only the head, is left of those that were ``there``; it is not kept in the receipt."""
    before = {name for name in there if is_model(name) and not is_component(name)}
    left = before.difference(plan.destroyed)
    if left == before or left - {HEAD}:
        return []
    which = f"no model but {HEAD}" if left else "no model"
    if any(is_component(name) and name not in plan.destroyed for name in there):
        which += f" {'and' if left else 'but'} components of single shards"
    which += " would be left" if dry_run else " is left"
    if {shard.name for shard in store.shards} <= {*plan.request.emptied, *plan.subtracted}:
        return [f"{which}, since every shard is subtracted"]
    return [f"{which}; next: {train_command(store.path, private=bool(promised(store)))}"]


def _unlearned(store: FeatureStore, plan: ForgetPlan, *, dry_run: bool = False) -> list[str]:
    """A note on classes that keep held-out rows alone; not kept in the receipt, which would name them if they left."""
    if not (classes := plan.request.unlearned):
        return []
    is_left, names, held = "would be left" if dry_run else "is left", [*classes], sum(classes.values())
    options = " ".join(f"--class {typed(name)}" for name in names[:5])
    return [
        f"no training row {is_left} of {counted(len(names), 'class')}, which cannot be learned: {first_few(names)}; "
        f"{counted(held, 'held-out row')} keep{'s' if held == 1 else ''} {them(len(names))} in the list of classes, "
        f"and count{'s' if held == 1 else ''} in accuracies, and in what probabilities are worth and their temperature;"
        f" to remove both: taftcache forget {typed(store.path)} "
        f"{options}{' and so on' if len(names) > 5 else ''}"
    ]


def _untested(plan: ForgetPlan, is_left: str) -> list[str]:
    """A note if the last held-out rows leave; the receipt names the shard that goes."""
    if HELD_OUT not in plan.request.emptied:
        return []
    return [
        f"no held-out row {is_left}, so that there are no accuracies and no probabilities from now on: append leaves "
        "these ids out, and only other test samples can take their place"
    ]


def _one_class(plan: ForgetPlan, classes: int, is_left: str) -> list[str]:
    """A note if this leaves one class of several: a model of it cannot be wrong."""
    return [f"one class {is_left}: {OF_ONE_CLASS}"] if plan.request.classes and classes == 1 else []


def _unweighed(store: FeatureStore, plan: ForgetPlan, *, dry_run: bool = False) -> list[str]:
    """A note if models/weighted goes because nothing says the rows of some of its members, or because the recorded
    coefficients that are left have no sum to be divided by."""
    if WEIGHTED not in plan.destroyed:
        return []
    is_, are = ("would be", "would be") if dry_run else ("is", "are")
    gone, left = f"{WEIGHTED} {is_} gone", [name for name in store.objects(COMPONENTS) if name not in plan.destroyed]
    command = compose_anyhow(store, left) if left else train_command(store.path, private=bool(promised(store)))
    if not plan.weights:
        why = f"the coefficients that {are} left sum to 0" if left else f"no component {is_} left"
        return [f'{gone}: {why}; compose.weights {is_} "rows" from now on; next: {command}']
    each = " of each class" if plan.weights == "class-rows" else ""
    if foreign := [name for name in plan.unknown if name in imported(store)]:
        names = first_few([shard_of(name) for name in foreign])
        return [f"{gone}: nothing says how many rows{each} {names} came from; next: {command}"]
    if not plan.unknown:
        return []
    names = first_few([shard_of(name) for name in plan.unknown])
    return [
        f"{gone}: nothing says how many rows{each} {names} had when trained, for rows came or left since; next: "
        f"taftcache train {typed(store.path)}, then taftcache compose {typed(store.path)}"
    ]


def _subtracted(store: FeatureStore, plan: ForgetPlan) -> dict[str, int]:
    """What the plan leaves subtracted: shard -> rows that stay."""
    return {name: store.shard(name).rows - plan.request.leaving.get(name, 0) for name in plan.subtracted}


def _damaged_ledger(store: FeatureStore) -> list[str]:
    """A note where earlier receipts cannot be read: the rows leave all the same."""
    try:
        store.ledger()
    except StoreError as error:
        return [
            f"the ledger is damaged: {problem_of(error)}; receipts up to it cannot be read until a copy of that file "
            "is put back, and of it alone, for an old copy of the store brings forgotten rows back"
        ]
    return []


def _rewritten(store: FeatureStore, plan: ForgetPlan) -> int:
    """The size, before, of the shards that are written anew."""
    return sum(store.shard(name).nbytes for name in plan.rewritten)


def _imported(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """A note on components from elsewhere, which nobody here can solve again."""
    there = [name for name in imported(store) if name not in plan.destroyed]
    return [f"{STAYS}: {', '.join(there)}"] if there else []


def _twins(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """A note on components that stay with the numbers of one that leaves; the receipt does not need their names."""
    if not (stay := [name for name in plan.request.twins if name not in plan.destroyed]):
        return []
    options = " ".join(f"--component {shard_of(name)}" for name in stay)
    return [
        f"with the same numbers as what leaves, so that audits fail until it leaves, too: {', '.join(stay)}; next: "
        f"taftcache forget {typed(store.path)} {options}"
    ]


def _unsearched(plan: ForgetPlan) -> list[str]:
    return [f"shard {name} is damaged: it was not searched for copies of the rows" for name in plan.request.unsearched]


def _closing(plan: ForgetPlan) -> list[str]:
    """Notes if classes leave. They name no class, because the receipt keeps them."""
    if not (gone := plan.request.classes):
        return []
    listed = plan.request.listed
    unknown = f"{counted(listed, 'sample')} that extraction skipped stay listed, for nothing here says of which class"
    return [
        *([f"{unknown}: taftcache inspect names them, forget --sample takes them off"] if listed else []),
        f"{counted(len(gone), 'class')} without a row left: append leaves further samples of such a class out, and only"
        " another store takes them",
        *([OTHER_COLUMNS] if plan.renewed else []),
    ]


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


def _private(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """A note on each private component whose shard loses rows, or that goes."""
    objects, request = store.objects(), plan.request
    notes, entries = [], entries_of(store) if plan.private else []
    for name in plan.private:
        leaving = request.leaving.get(shard_of(name), 0)
        if (gone := name in plan.destroyed) or leaving:
            before = left_since(entries, name)
            notes.append(f"{name}: {forgetting_note(objects[name].meta, leaving, before, not gone)}")
    return notes


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
        matched=request.matched,
    )
