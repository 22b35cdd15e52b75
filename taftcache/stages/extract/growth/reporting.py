"""What an append changed, and what it left behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taftcache.backbone.forward.extract import RowCounts
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.names import BUDGET_ALLOWS, PRIVATE, component_of, counted, first_few, is_model, with_counts
from taftcache.stages.completeness import subtracted_among
from taftcache.stages.extract.forgotten import NOT_THERE, OF_GROUPS, left_out_notes, taking
from taftcache.stages.extract.growth.planning import AppendPlan, class_notes
from taftcache.stages.extract.plan import more_group_notes
from taftcache.stages.report import Report


@dataclass(frozen=True, kw_only=True)
class AppendReport(Report):
    """New samples in a store, and what they changed.

    added: new rows in each shard. relabelled: rows with a corrected label, by shard. untouched: shards that kept their
    files. known: samples that were there before. unread: how many of those had been skipped. forgotten: samples left
    out because they, or their whole group, were forgotten. images: images or vectors that became rows. skipped: how
    many new samples did not decode. skipped_ids: their ids. closed: new samples of forgotten classes, left out, by
    class. new_classes: samples of classes that the store did not have, by class. dropped: models removed because they
    have no column for the new classes. dry_run: whether all of this is only planned. Then it is as if every new sample
    could be read. not_in_source: ids of rows whose images the recipe's source does not have now, but for ids that are
    numbers of rows; empty for vectors, and for another source than the store names if that has new images alone.
    """

    store: Path
    root_before: str
    root_digest: str
    added: dict[str, int] = field(default_factory=dict)
    relabelled: dict[str, int] = field(default_factory=dict)
    untouched: list[str] = field(default_factory=list)
    known: int = 0
    unread: int = 0
    forgotten: int = 0
    images: int = 0
    skipped: int = 0
    skipped_ids: list[str] = field(default_factory=list)
    seconds: float = 0.0
    dry_run: bool = False
    closed: dict[str, int] = field(default_factory=dict)
    new_classes: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    not_in_source: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def append_report(
    store: FeatureStore,
    plan: AppendPlan,
    counts: Sequence[RowCounts] | None,
    begin: float,
    notes: Sequence[str] = (),
    not_in_source: Sequence[str] = (),
) -> AppendReport:
    """What was done since ``begin``, a value of ``time.perf_counter``; ``counts`` is None after a dry run."""
    if counts is None:
        added = {shard.name: len(shard.ids) for shard in plan.shards}
    else:
        now = {ref.name: ref.rows for ref in store.manifest.shards}
        added = {shard.name: now.get(shard.name, 0) - plan.rows.get(shard.name, 0) for shard in plan.shards}
    skipped = sum(count.skipped for count in counts or ())
    touched = {name for name, rows in added.items() if rows} | plan.labels.keys()
    present = {name: plan.rows.get(name, 0) + added.get(name, 0) for name in touched}
    return AppendReport(
        store=store.path,
        root_before=plan.root_before,
        root_digest=store.root_digest,
        added={name: rows for name, rows in added.items() if rows},
        relabelled={name: len(labels) for name, labels in plan.labels.items()},
        untouched=[name for name in plan.rows if plan.keeps_labels and name not in touched],
        known=plan.known,
        unread=plan.unread,
        forgotten=plan.forgotten,
        images=sum(count.rows for count in counts or ()),
        skipped=skipped,
        skipped_ids=_skipped(store, plan) if skipped else [],  # only then: it reads the ids of every shard that grew
        seconds=time.perf_counter() - begin,
        dry_run=counts is None,
        closed=dict(sorted(Counter(plan.closed).items())),
        new_classes=plan.growth.added or dict(sorted(Counter([*plan.strange, *plan.unlabelled]).items())),
        dropped=list(filter(is_model, plan.lost)),
        not_in_source=list(not_in_source),
        notes=[
            *notes,
            *class_notes(plan),
            *_label_notes(store, plan),
            *subtracted_among(store, present),
            *more_group_notes(recorded_recipe(store).data, store, plan.shards),
            *left_out_notes(plan.grouped, OF_GROUPS),
            *left_out_notes(plan.closed),
            *left_out_notes(plan.strange, NOT_THERE, taking(len(plan.strange), plan.alone)),
            *_unlabelled_note(plan),
            *([] if counts is None else _unmade_notes(store, plan)),
        ],
    )


def _skipped(store: FeatureStore, plan: AppendPlan) -> list[str]:
    """Ids of new samples that no row was made of."""
    rows = {i for shard in plan.shards if store.has_shard(shard.name) for i in store.shard(shard.name).sample_ids}
    return [i for shard in plan.shards for i in shard.ids if i not in rows]


def _unmade_notes(store: FeatureStore, plan: AppendPlan) -> list[str]:
    """Notes on further shards that were not made."""
    return [
        f"no shard {shard.name} was made: none of its {counted(len(shard.ids), 'sample')} can be read (first: "
        f"{min(shard.ids)}); the next append tries again"
        for shard in plan.shards
        if not store.has_shard(shard.name)
    ]


def _unlabelled_note(plan: AppendPlan) -> list[str]:
    """A note on rows that keep their labels."""
    if not (names := plan.unlabelled):
        return []
    kept = f"labels kept: {counted(len(names), 'row')}, for which the data has {NOT_THERE}"
    return [f"{kept}: {with_counts(Counter(names))}; {taking(len(names), plan.alone)}"]


def _label_notes(store: FeatureStore, plan: AppendPlan) -> list[str]:
    """Notes on what corrected labels leave behind: private components, and classes without a row."""
    if not plan.labels:
        return []
    objects, own = store.objects(), [component_of(name) for name in plan.labels]
    private = [name for name in own if name in objects and PRIVATE in objects[name].meta]
    kept = f"of the labels from before, until train --private, {BUDGET_ALLOWS}"
    notes = [f"{kept}: {', '.join(private)}"] if private else []
    has, names = set[str](), store.classes
    for shard in map(store.shard, plan.rows):
        corrected = plan.labels.get(shard.name, {})
        has |= {corrected.get(i, names[k]) for i, k in zip(shard.sample_ids, shard.labels, strict=True)}
    if bare := [name for name in names if name not in has]:
        notes.append(
            f"without a row, though the store keeps the class: {first_few(bare)}; forget --class takes it off the "
            "list, and closes its name"
        )
    return notes
