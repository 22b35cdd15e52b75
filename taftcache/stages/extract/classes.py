"""Compare the classes that the data gives its samples with those that a store has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from taftcache.backbone.sources.base import FEW, REGRESSION, Labelled, name_order
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import ArgumentError, DataError, RecipeError
from taftcache.names import CLASS, counted, first_few, in_quotes, typed, with_counts
from taftcache.stages.completeness import is_complete, making_of
from taftcache.stages.extract.plan import forgotten_group

_MISSING = ("nan", "none", "na", "<na>", "n/a", "null")  # what pandas, NumPy and R write where a value is missing
NewClasses = Literal["refuse", "skip", "take"]


def classes_of(*sources: Labelled | None) -> dict[str, str]:
    """The class of every sample of some sources, by id."""
    return {item.id: source.classes[item.label] for source in sources if source is not None for item in source.items}


def classes_with(store: FeatureStore, new: Collection[str], source: Labelled) -> list[str]:
    """The store's classes and the ``new`` ones of a source.

    In the source's order, as in a store made from it, if it names all of the store's; else sorted by name if the
    store's are, or with the new ones last.
    """
    if {*store.classes} <= {*source.classes}:
        return [name for name in source.classes if name in new or name in store.classes]
    every = [*store.classes, *(name for name in source.classes if name in new)]
    for order in (name_order, None):
        if store.classes == sorted(store.classes, key=order):
            return sorted(every, key=order)
    return every


def other_classes(store: FeatureStore, given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Rows of a class that is not the one ``given`` for their ids: id -> (the store's, the given one)."""
    parts = store.every_shard
    there = ((i, store.classes[k]) for part in parts for i, k in zip(part.sample_ids, part.labels, strict=True))
    return {i: (own, given[i]) for i, own in there if given.get(i, own) != own}


def other_classes_note(found: Mapping[str, tuple[str, str]]) -> list[str]:
    """A note on what `other_classes` found; none where it found nothing."""
    if not found:
        return []
    first = min(found)
    own, given = in_quotes(*found[first])
    return [
        f"{counted(len(found), 'row')} of another class than the data says now (first: {first}, {own} in the store, "
        f"{given} in the data); taftcache append --relabel takes corrected labels in; if it was another table that "
        "corrected the store's, correct this one, too"
    ]


def doubtful_classes_notes(source: Labelled) -> list[str]:
    """Notes if most samples of a source have a class of their own, and there are at least ``FEW`` samples; on classes
    that are called as programs call what is missing; and if the classes are numbers, of which one is -1."""
    counts = Counter(item.label for item in source.items)
    missing = [name for name in source.classes if name.casefold() in _MISSING]
    if "-1" in source.classes and all(name.isdecimal() for name in source.classes if name != "-1"):
        missing.append("-1")
    if missing:
        return [
            f"{counted(counts[source.classes.index(name)], 'sample')} of the class {name}, which often means that a "
            "label is not given; leave them out if so"
            for name in missing
        ]
    alone, samples = sum(n == 1 for n in counts.values()), len(source.items)
    if samples < FEW or 2 * alone <= samples:
        return []
    numbers = not any(name_order(name)[0] for name in source.classes)
    return [
        f"{alone} of {samples} samples have a class of their own, so no other sample can check what is learned of it"
        + (f"; if the labels are numbers to be predicted: {REGRESSION}" if numbers else "")
    ]


def unshared_notes(
    classes: Sequence[str], trained: Collection[str], held_out: Collection[str], *, of: Literal["image", "row"]
) -> list[str]:
    """Notes on classes that only the held-out images or rows have, and on those that only training ones have."""
    unlearned, untold = (
        [c for c in classes if c in a and c not in b] for a, b in ((held_out, trained), (trained, held_out))
    )
    said = {
        f"held out without a training {of}, which cannot be learned": unlearned,
        f"without a held-out {of}, of which accuracy and probabilities say nothing": untold,
    }
    return [
        f"{len(names)} of {counted(len(classes), 'class')} {what}: {first_few(names)}"
        for what, names in said.items()
        if names
    ]


def unlearned_notes(store: FeatureStore) -> list[str]:
    """A note on classes that only held-out rows have; none while training rows may be still to come."""
    if not is_complete(store):
        return []
    trained, every = (classes_in(store, shards) for shards in (store.shards, store.every_shard))
    return unshared_notes(store.classes, trained, every, of="row")


def absent_notes(store: FeatureStore) -> list[str]:
    """A note on classes of the list without a row, as a site may have that names the classes of others, too."""
    if not is_complete(store):
        return []
    there = classes_in(store, store.every_shard)
    absent = [name for name in store.classes if name not in there]
    which = f"{len(absent)} of {counted(len(store.classes), 'class')}"
    return [f"no row of {which}, which cannot be learned here: {first_few(absent)}"] if absent else []


def classes_in(store: FeatureStore, shards: Iterable[Shard]) -> set[str]:
    """The classes that have rows in some of a store's shards."""
    return {store.classes[k] for shard in shards for k in shard.statistics["rows_per_class"]}


def class_indexes(store: FeatureStore, theirs: Sequence[str]) -> list[int]:
    """For each class of a source its index in the store, -1 for one that it does not have."""
    index = {name: k for k, name in enumerate(store.classes)}
    return [index.get(name, -1) for name in theirs]


def check_blanks(store: FeatureStore, names: Iterable[str]) -> None:
    """DataError if one of these new names differs from one of the store's only in blanks."""
    bare = {name.strip(): name for name in store.classes}
    for name in names:
        if (own := bare.get(name.strip(), name)) != name:
            raise DataError(
                f"a class of the data and one of {store.path} differ only in blanks at their ends",
                got=f"{name!r}, in the store {own!r}",
                do="write it as the store has it",
            )


def check_classes(store: FeatureStore, classes: Iterable[str], *, relabel: bool = False) -> None:
    """DataError if any of ``classes`` (one name for each sample) is not the store's and was not forgotten; ``relabel``
    as for ``append``."""
    counts = Counter(classes)
    strange = {n: counts[n] for n in counts.keys() - {*store.classes} if not store.is_forgotten(CLASS + n)}
    if strange:
        take = (
            f"taftcache append{' --relabel' if relabel else ''} --new-classes take, which drops all models, or "
            '--new-classes skip; in Python new_classes="take" or "skip"'
        )
        made = making_of(store)
        finish = f"leave them out until taftcache {made} is through, then: taftcache append --new-classes take"
        raise DataError(
            f"{counted(sum(strange.values()), 'sample')} of {counted(len(strange), 'class')} that {store.path} does "
            "not have",
            got=with_counts(strange),
            do=take if is_complete(store) else finish,
        )


@dataclass(frozen=True)
class Growth:
    """How a store grows: ``new_shard`` and ``new_classes`` as for ``append``. ``classes`` are those that it has then,
    ``added`` says how many samples there are of each that it did not have."""

    new_shard: bool
    new_classes: NewClasses
    classes: Sequence[str]
    added: dict[str, int]


def growth_of(
    store: FeatureStore,
    source: Labelled,
    test: Labelled | None = None,
    *,
    new_shard: bool,
    relabel: bool,
    new_classes: NewClasses,
    readable: Callable[[str], bool] = lambda sample: True,
) -> Growth:
    """What becomes of the classes of a store that grows by the samples of ``source``, which has all new classes, and of
    ``test``; the rest as for ``append``.

    ``readable`` says whether a row can be made from a sample of a new class; it may raise.

    Raises:
        ArgumentError: no such way with new classes. RecipeError: the store records a weight for each of its classes.
    """
    if new_classes not in get_args(NewClasses):
        ways = " or ".join(map(repr, get_args(NewClasses)))
        raise ArgumentError(f"new_classes cannot be {new_classes!r}", do=ways)
    given = classes_of(source, test) if new_classes == "take" else {}
    more = {name for name in {*given.values()} - {*store.classes} if not store.is_forgotten(CLASS + name)}
    of_group = forgotten_group(recorded_recipe(store).data, store.is_forgotten)
    new = [i for i, n in given.items() if n in more and not store.is_forgotten(i) and of_group(i) is None]
    added = Counter(given[i] for i in new if (relabel if store.holds(i) else readable(i)))
    weights = recorded_recipe(store).objective.class_weights if added else "none"
    if not isinstance(weights, str):
        raise RecipeError(
            f"the settings of {store.path} have a weight for each class, and none for new ones",
            got=f"objective.class_weights = {weights[:8]}",
            do=f"taftcache train {typed(store.path)} --set objective.class_weights=none, and give weights for all "
            "classes once they are there",
        )
    classes = classes_with(store, added, source) if added else store.classes
    return Growth(new_shard, new_classes, classes, dict(sorted(added.items())))
