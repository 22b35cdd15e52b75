"""Notes on a request to forget: on what stays as it is, which the receipt keeps, and on what is left afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from taftcache.cache.format.fault import problem_of
from taftcache.cache.store import FeatureStore
from taftcache.consent import refusal
from taftcache.errors import StoreError, TaftcacheError
from taftcache.model.members import imported, twins
from taftcache.names import (
    COMPONENTS,
    GROUP,
    HEAD,
    HELD_OUT,
    MEAN,
    OF_ONE_CLASS,
    PRIVATE,
    WEIGHTED,
    counted,
    first_few,
    is_component,
    is_model,
    shard_of,
    them,
    train_command,
    typed,
)
from taftcache.privacy.statement import forgetting_note
from taftcache.stages.forget.chain import entries_of, left_since
from taftcache.stages.forget.planning import ForgetPlan, changes_training
from taftcache.stages.train.checks import STAYS
from taftcache.stages.train.promises import promised
from taftcache.stages.train.trained_on import compose_anyhow
from taftcache.teaching.rows import open_teachers

OTHER_COLUMNS = (
    "with a class a column leaves every model, which cannot be compared with the one from before: its certified"
    " distance is said, and nothing of what the removal moved"
)


def stays_notes(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """Notes on what the request leaves as it is, known before it is carried out; the receipt keeps them."""
    return [*_damaged_ledger(store), *_imported(store, plan), *_unsearched(plan), *_closing(plan), *_groups(plan)]


def left_notes(
    store: FeatureStore, plan: ForgetPlan, there: Iterable[str], classes: int, *, dry_run: bool = False
) -> list[str]:
    """Notes on what is left, of which the receipt keeps none: models of those that were ``there``, so many classes, and
    held-out rows."""
    is_left = "would be left" if dry_run else "is left"
    return [
        *_unlearned(store, plan, is_left),
        *_untested(plan, is_left),
        *_one_class(plan, classes, is_left),
        *_none_left(store, plan, there, is_left),
        *_unweighed(store, plan, dry_run=dry_run),
    ]


def _unlearned(store: FeatureStore, plan: ForgetPlan, is_left: str) -> list[str]:
    """A note on classes that keep held-out rows alone; not kept in the receipt, which would name them if they left."""
    if not (classes := plan.request.unlearned):
        return []
    names, held = [*classes], sum(classes.values())
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


def _none_left(store: FeatureStore, plan: ForgetPlan, there: Iterable[str], is_left: str) -> list[str]:
    """A note if no model, or only the head, is left of those that were ``there``."""
    before = {name for name in there if is_model(name) and not is_component(name)}
    left = before.difference(plan.destroyed)
    if left == before or left - {HEAD}:
        return []
    which = f"no model but {HEAD}" if left else "no model"
    if any(is_component(name) and name not in plan.destroyed for name in there):
        which += f" {'and' if left else 'but'} components of single shards"
    which += f" {is_left}"
    if {shard.name for shard in store.shards} <= {*plan.request.emptied, *plan.subtracted}:
        return [f"{which}, since every shard is subtracted"]
    return [f"{which}; next: {train_command(store.path, private=bool(promised(store)))}"]


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


def _imported(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """A note on components from elsewhere, which nobody here can solve again."""
    there = [name for name in imported(store) if name not in plan.destroyed]
    return [f"{STAYS}: {', '.join(there)}"] if there else []


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


def _groups(plan: ForgetPlan) -> list[str]:
    """A note if groups leave whole. It names none, because the receipt keeps it."""
    if not (gone := sum(name.startswith(GROUP) for name in plan.request.asked)):
        return []
    return [
        f"{counted(gone, 'group')} forgotten as a whole: append leaves further samples of such a group out, and only "
        "another store takes them"
    ]


def private_notes(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """A note on each private component whose shard loses rows, or that goes."""
    objects, request = store.objects(), plan.request
    notes, entries = [], entries_of(store) if plan.private else []
    for name in plan.private:
        leaving = request.leaving.get(shard_of(name), 0)
        if (gone := name in plan.destroyed) or leaving:
            before = left_since(entries, name)
            notes.append(f"{name}: {forgetting_note(objects[name].meta, leaving, before, not gone)}")
    return notes


def twin_notes(store: FeatureStore, plan: ForgetPlan) -> list[str]:
    """A note on components that stay with the numbers of one that leaves; the receipt does not need their names."""
    objects, rows_left = store.objects(), changes_training(plan.request) and imported(store)
    own = [n for n in (*plan.renewed, *plan.destroyed) if rows_left and is_component(n) and n in objects]
    same = [*plan.request.twins, *twins(store, [n for n in own if PRIVATE not in objects[n].meta])]
    if not (stay := [name for name in dict.fromkeys(same) if name not in plan.destroyed]):
        return []
    options = " ".join(f"--component {shard_of(name)}" for name in stay)
    return [
        f"with the same numbers as what leaves, so that audits fail until it leaves, too: {', '.join(stay)}; next: "
        f"taftcache forget {typed(store.path)} {options}"
    ]


def untaught_note(store: FeatureStore, plan: ForgetPlan) -> list[str]:
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


def subtracted_rows(store: FeatureStore, plan: ForgetPlan) -> dict[str, int]:
    """What the plan leaves subtracted: shard -> rows that stay."""
    return {name: store.shard(name).rows - plan.request.leaving.get(name, 0) for name in plan.subtracted}
