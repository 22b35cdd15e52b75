"""What becomes of samples that a store is given, and of the store; decided before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from taftcache.cache.format.plan import check_forms
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import DataError, StoreError
from taftcache.names import BASE, PRIVATE, component_of, counted, first_few, is_model, with_counts
from taftcache.recipe import Recipe
from taftcache.stages.completeness import is_complete, making_of, making_others, planned_shards
from taftcache.stages.extract.classes import Growth, check_blanks, check_classes
from taftcache.stages.extract.forgotten import StayOut
from taftcache.stages.extract.plan import PlannedShard, plan_more


@dataclass(frozen=True, kw_only=True)
class AppendPlan:
    """What becomes of samples that a store is given, and of the store.

    root_before, rows: the store's root digest, and the rows of each shard, before anything is changed.
    growth: how the store grows. keeps_labels: whether its rows keep their labels, which are indexes of classes.
    lost: objects that have no column for the new classes, with their descriptions. outlived: those of them that
        ``compose.weights`` names, and that no training makes again.
    labels: shard -> id -> the class that this row gets.
    shards: the new samples by the shard that they go to, in the order of names.
    known: how many samples were there before. unread: how many of those had been skipped. forgotten: how many samples
        stay out because they were forgotten. grouped: the groups of those that do because their group was, one name for
        each sample.
    closed, strange: the classes of samples that are left out, one name for each sample; ``alone`` as in `StayOut`.
    unlabelled: the classes that rows would get if the store had them, one name for each row.
    """

    root_before: str
    rows: dict[str, int]
    growth: Growth
    keeps_labels: bool
    lost: dict[str, dict[str, Any]]
    outlived: list[str]
    labels: dict[str, dict[str, str]]
    shards: list[PlannedShard]
    known: int
    unread: int
    forgotten: int
    grouped: list[str]
    closed: list[str]
    strange: list[str]
    unlabelled: list[str]
    alone: Collection[str]


def plan_append(
    store: FeatureStore,
    recipe: Recipe,
    given: tuple[Sequence[str], Sequence[str] | None],
    out: StayOut,
    growth: Growth,
    *,
    mended: Collection[str] = (),
    relabelled: Mapping[str, tuple[str, str]] | None = None,
) -> AppendPlan:
    """Decide which of the ``given`` samples a store takes, and into which shard; nothing is changed.

    Args:
        given: ids to train on, and those of a second source that is for testing, as ``split`` takes them.
        out: those of them that stay out.
        growth: how the store grows.
        mended: those of them that were skipped, but decode now: each goes to the shard that left it out.
        relabelled: rows of the store, as `other_classes` returns them, that get the class given for them.

    Raises:
        StoreError: a store that is not finished. RecipeError: a balanced plan has no place for further samples.
        DataError: the store does not have the class of a new sample, or the one that a row is to get; or it has a new
            sample's id, or a new class, in another Unicode form.
    """
    if not is_complete(store):
        raise StoreError(
            f"cannot append to {store.path}: the {making_of(store)} that makes it is not finished",
            got=f"{len(store.manifest.shards)} of {planned_shards(store)} shards",
            do=making_others(store),
        )
    skipped = {sample.id: sample.shard for sample in store.manifest.skipped}
    rows = store.every_id
    kinds = _by_kind(rows, [*given[0], *(given[1] or ())], out, skipped.keys(), mended)
    check_forms([*kinds["new"], *kinds["strange"]], chain(rows, skipped))
    corrected = relabelled or {}
    strange, unlabelled = ([out.strange[i] for i in ids if i in out.strange] for ids in (kinds["strange"], corrected))
    check_forms(dict.fromkeys([*strange, *unlabelled, *growth.added]), store.classes, "classes")
    check_blanks(store, [*strange, *unlabelled, *growth.added])
    if growth.new_classes == "refuse":
        check_classes(store, [*strange, *unlabelled], relabel=bool(corrected))
    lost = {n: ref.meta for n, ref in store.objects().items() if growth.added and not n.startswith(BASE)}
    weights, new = recorded_recipe(store).compose.weights, {*kinds["new"]}
    named = () if isinstance(weights, str) else weights
    training, test = ([i for i in ids if i in new] if ids is not None else None for ids in given)
    return AppendPlan(
        root_before=store.root_digest,
        rows={ref.name: ref.rows for ref in store.manifest.shards},
        growth=growth,
        keeps_labels=growth.classes[: len(store.classes)] == store.classes,
        lost=lost,
        outlived=[n for n in named if lost.get(component_of(n), {}).get("imported")],
        labels=_by_shard(store, {i: c for i, c in corrected.items() if i not in out.strange}, growth.classes),
        shards=plan_more(
            store,
            recipe,
            training or [],
            test,
            mended={i: skipped[i] for i in kinds["mended"]},
            new_shard=growth.new_shard,
        ),
        known=len(kinds["known"]) + len(kinds["unread"]),
        unread=len(kinds["unread"]),
        forgotten=len(kinds["forgotten"]),
        grouped=[out.grouped[i] for i in kinds["forgotten"] if i in out.grouped],
        closed=[out.closed[i] for i in kinds["closed"]],
        strange=strange,
        unlabelled=unlabelled,
        alone=out.alone,
    )


_Kind = Literal["known", "unread", "forgotten", "closed", "strange", "mended", "new"]


def _by_kind(
    rows: Collection[str], given: Sequence[str], out: StayOut, skipped: Collection[str], mended: Collection[str]
) -> Mapping[_Kind, list[str]]:
    """Sort the ``given`` samples into kinds. The store has the ``rows`` of those that are "known", skipped those that
    are "unread", and takes only those that are "mended" or "new"."""

    def kind(sample: str) -> _Kind:
        if sample in rows:
            return "known"
        if sample in skipped and sample not in mended:
            return "unread"
        if sample in out.ids or sample in out.grouped:
            return "forgotten"
        if sample in out.closed:
            return "closed"
        if sample in out.strange:
            return "strange"
        return "mended" if sample in skipped else "new"

    kinds: dict[_Kind, list[str]] = {kind: [] for kind in get_args(_Kind)}
    for sample in given:
        kinds[kind(sample)].append(sample)
    return kinds


def _by_shard(
    store: FeatureStore, relabelled: Mapping[str, tuple[str, str]], classes: Collection[str]
) -> dict[str, dict[str, str]]:
    """Shard -> id -> the class that this row gets; DataError if a class was forgotten."""
    if gone := sorted(i for i, (_, given) in relabelled.items() if given not in classes):
        raise DataError(
            f"{store.path} has forgotten the class that the data now has for {counted(len(gone), 'row')}",
            got=f"the first: {gone[0]!r}, now {relabelled[gone[0]][1]!r}",
            do="forget these rows too, or leave their labels as they were",
        )
    shards = store.every_shard if relabelled else []
    labels = {s.name: {i: relabelled[i][1] for i in s.sample_ids if i in relabelled} for s in shards}
    return {name: some for name, some in labels.items() if some}


def class_notes(plan: AppendPlan) -> list[str]:
    """Notes on classes that are added, and on the models that go."""
    if not (more := plan.growth.added):
        return []
    models = {name: meta for name, meta in plan.lost.items() if is_model(name)}
    private = [name for name, meta in models.items() if PRIVATE in meta]
    foreign = [name for name, meta in models.items() if meta.get("imported")]
    gone = (
        f"models that have no column for them, and go: {first_few(list(models))}; until taftcache train, the store "
        "predicts nothing: an export-model or a copy made before does"
    )
    return [
        f"{counted(len(more), 'class')} more: {with_counts(more)}",
        *([gone] if models else []),
        *([f"trained privately, and what was spent stays spent: {first_few(private)}"] if private else []),
        *([f"imported, which nobody here can make again: {first_few(foreign)}"] if foreign else []),
        *([f"compose.weights is by rows now, for it names {first_few(plan.outlived)}"] if plan.outlived else []),
    ]
