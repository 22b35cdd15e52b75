"""Judge a store's models on another labelled set than its held-out rows: images or vectors that it does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taftcache.backbone.forward.extract import LeftOut
from taftcache.backbone.sources.arrays import to_numpy
from taftcache.backbone.sources.base import Labelled, name_order
from taftcache.backbone.sources.columns import is_table, read_table
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import DataSpec
from taftcache.cache.columns import Columns
from taftcache.cache.format.plan import check_forms
from taftcache.cache.hdf5 import FeatureFile
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.group import to_stored
from taftcache.consent import Consent, grouping_recipe, recorded_recipe
from taftcache.errors import ArgumentError, DataError, RecipeError, first_line, local_path
from taftcache.model.calibration import FIRST, Calibration, ProbabilitySums, temperature_of
from taftcache.model.component import no_model
from taftcache.model.outdated import outdated
from taftcache.names import UNTOUCHED, counted, first_few, is_component, model_of, scaling_of, told_apart, with_counts
from taftcache.recipe import Overrides, apply_overrides, as_mapping, check_used, parse_recipe
from taftcache.report.accuracy import accuracy_interval, balanced
from taftcache.report.paired import RowGroups
from taftcache.stages.completeness import subtracted_notes
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.extract.classes import check_blanks, class_indexes
from taftcache.stages.extract.forgotten import NOT_THERE, aside_notes
from taftcache.stages.extract.frozen import run_frozen
from taftcache.stages.extract.looking import check_there, data_section, full_path
from taftcache.stages.extract.plan import groups_of
from taftcache.stages.files.prediction import frozen_of
from taftcache.stages.files.reference import Reference, open_reference
from taftcache.stages.files.vectors.given import Vectors
from taftcache.stages.files.vectors.opening import SUFFIXES, column_of, open_vectors, vectors_of_hdf5
from taftcache.stages.look.duplicates import Hashes, row_hashes
from taftcache.stages.look.evaluation import (
    SEARCHED,
    Difference,
    ahead_notes,
    differences,
    grouped_text,
    is_model_of,
)
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.look.vectors import starts_blank
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.scaling import scaled
from taftcache.stages.train.held_out import row_groups
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.record import settings_of

KEYS = ("image_key", "label_key")
SMALL = 20  # rows with one value: the interval of fewer may be over 40 points wide


@dataclass(frozen=True, kw_only=True)
class ValueAccuracy:
    """How well the default model does on the rows of a labelled set that have one value in a column.

    value: what the column says, as text; empty where it says nothing. rows: how many have it. accuracy: the share of
    them that is right, 0 to 1. interval: 95 % interval of that (Wilson's). groups: how many groups (``data.group``) it
    was judged by; None where no two rows share one; of 1 there is no interval, which is then from 0 to 1.
    """

    value: str
    rows: int
    accuracy: float
    interval: tuple[float, float]
    groups: int | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateOnReport(Report):
    """Top-1 accuracy by model over the ``rows`` of a labelled set of its own, which nothing was trained on or held out
    from.

    data: its folder or file; None for arrays. rows: how many were judged. unknown: rows of classes that the store does
    not have, by class: they are left out. unreadable: images that were left out, and why. majority: the share of rows
    that the commonest class has. accuracy: by model, 0 to 1, as in ``EvaluateReport``. intervals: 95 % interval of each
    accuracy (Wilson's). groups: how many groups (``data.group``, searched in these ids) they were judged by; see
    ``EvaluateReport``. balanced: by model, the mean of its accuracies on each class that has rows. default: the model
    that ``predict`` takes unless one is named. reference, differences: as in ``EvaluateReport``; a model from elsewhere
    has its place as a name, in accuracy, too. calibration: by composed model, what its probabilities are worth here, at
    the temperature of the store's held-out rows; none without these. by: the column that was named. values: the default
    model's accuracy on the rows with each of its values, the worst first. outdated: models that were solved from other
    rows than the store has now. notes: what was left out, which classes have no row, which values have few, and more.
    """

    store: Path
    root_digest: str
    data: Path | None
    rows: int
    majority: float
    accuracy: dict[str, float]
    balanced: dict[str, float]
    default: str
    intervals: dict[str, tuple[float, float]]
    groups: int | None = None
    reference: str | None = None
    differences: dict[str, Difference] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    calibration: dict[str, Calibration] = field(default_factory=dict)
    by: str | None = None
    values: list[ValueAccuracy] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@at_its_place()
def evaluate_on(
    store: Place,
    data: Path | str | tuple[ArrayLike, ArrayLike],
    *,
    by: str | ArrayLike | None = None,
    reference: str | Path | None = None,
    columns: Columns | None = None,
    overrides: Overrides = (),
    consent: Consent | None = None,
    progress: Progress | bool | None = None,
) -> EvaluateOnReport:
    """Top-1 accuracy of the store's models on another labelled set: pictures from elsewhere, say, or blurred ones.

    Each image goes through the frozen layers as in extraction, a batch at a time, and is judged by what the store would
    cache of it. Nothing is written to the store. Rows of classes that the store does not have are left out. Images that
    the store has forgotten are judged like any others. If all models take more than ``solver.memory``, components are
    not judged.

    Args:
        data: a folder with one subfolder per class, a table of paths and labels, or a file of arrays, as ``data.test``
            of a recipe; where it has splits, the one to test on is taken. For a store of vectors: a file of vectors
            with labels, as for ``import_``, or x [n, d] and their classes y [n].
        by: a column of the table (for vectors also of their file, or of the table with their labels), for the accuracy
            on the rows with each of its values; or these values themselves [n], one for each row, in the order of x or
            of the table.
        reference: a model that each of the others is compared with, row by row: one of the store, by its name; or a
            folder with one model, or the place of another store, whose default model it is. It has the same classes.
        columns: the names of arrays or columns in a file of vectors; or the file of their labels.
        overrides: ``data.image_key`` and ``data.label_key``, the columns of paths and labels, if they have no usual
            name, and not that of the store's own table; ``data.root``, what paths start from; ``data.unreadable``, by
            default as for the store's own images.
        consent: weights instead of those that the store names, or permission to ask the model hub for them.

    Raises:
        DataError: no labelled images or vectors there, none of the store's classes, or no such column; or ``reference``
            has other classes.
        UnreadableImage: an image that cannot be read. StoreError: the store has no model, not ``reference``, or no
        classes.
        BackboneError, IdentityError, UntrustedStore: as for ``TangentModel.load``.
    """
    assert isinstance(store, FeatureStore)
    check_has_classes(store)
    progress, default = or_silent(progress), model_of(store.objects())
    if default not in store.objects():
        raise no_model(store, default)
    reference = None if reference is None else str(reference)
    with ExitStack() as stack:
        other = None
        if reference is not None and not is_model_of(store, reference):
            other = open_reference(stack, store, reference, consent)
        if scaling_of(store.identity) is None:
            asked = _images(store, data, by, columns, overrides, consent)
        else:
            asked = _vectors(stack, store, data, by, columns, overrides)
        unknown = _unknown(store, asked)
        scores = _Scores(store, np.array(class_indexes(store, asked.source.classes), np.int32))
        known = [k for k, item in enumerate(asked.source.items) if scores.classes[item.label] >= 0]
        row_groups(store, [asked.source.items[k].id for k in known])  # where it is refused, before the pass
        with progress.task("evaluate", len(known)) as task:
            asked.run(known, scores, task.advance)
        beside = [] if other is None else _of_reference(store, other, asked, scores, progress)
    if not scores.ids:
        raise DataError(f"none of the images of {asked.path} can be read", got=next(iter(scores.unreadable.values())))
    hits = {name: np.concatenate(found) for name, found in scores.hits.items()}
    if starts_blank(store):
        del hits[UNTOUCHED]
    labels = np.concatenate(scores.labels)
    place = {item.id: k for k, item in enumerate(asked.source.items)}
    groups = row_groups(store, scores.ids)
    said = None if asked.values is None else [asked.values[place[i]] for i in scores.ids]
    values = [] if said is None else _by_value(said, hits[default], groups)
    keys = settings_of(store).keys
    return EvaluateOnReport(
        store=store.path,
        root_digest=store.root_digest,
        data=asked.path,
        rows=len(labels),
        majority=float(np.bincount(labels).max() / len(labels)),
        accuracy={name: float(hit.mean()) for name, hit in hits.items()},
        balanced={name: balanced(hit, labels) for name, hit in hits.items()},
        default=default,
        intervals={name: accuracy_interval(hit, groups) for name, hit in hits.items()},
        groups=groups and groups.count,
        reference=reference,
        differences=differences(reference, hits, groups),
        unknown=unknown,
        unreadable=scores.unreadable,
        calibration={name: sums.calibration(scores.temperatures[name]) for name, sums in scores.sums.items()},
        by=by if isinstance(by, str) else None,
        values=values,
        outdated=outdated(store, keys),
        notes=[
            *outdated_notes(store, keys),
            *subtracted_notes(store),
            *asked.notes,
            *scores.notes,
            *_class_notes(store, unknown, labels),
            *_copies(store, scores, progress),
            *_known_groups(store, scores.ids, recorded_recipe(store).data),
            *beside,
            *([] if groups is None else [grouped_text(len(labels), groups)]),
            *ahead_notes(default, {name: hit for name, hit in hits.items() if name in scores.whole}, groups),
            *_small(values),
        ],
    )


@dataclass(frozen=True)
class _Asked:
    """Labelled rows that are to be judged.

    path: None for arrays. values: what ``by`` says of each item of ``source``. run: has rows made of some of its items,
    by their places, hands them over, and says so.
    """

    path: Path | None
    source: Labelled
    values: Sequence[Any] | None
    run: Callable[[Sequence[int], _Scores, Callable[[int], None]], object]
    notes: list[str]


def _images(
    store: FeatureStore,
    data: object,
    by: str | ArrayLike | None,
    columns: Columns | None,
    overrides: Overrides,
    consent: Consent | None,
) -> _Asked:
    """Images, which the frozen layers make rows of."""
    check_used("evaluate", overrides)
    if columns is not None:
        raise RecipeError(
            f"{store.path} was made from images, and names of columns of vectors mean nothing there",
            got=str(columns),
            do="--set data.label_key=COLUMN; in Python overrides=[…]",
        )
    if not isinstance(data, str | Path):
        raise ArgumentError(
            "the labelled images are not named by a path",
            got=type(data).__name__,
            do="name a folder with one subfolder per class, a table of paths and labels, or a file of arrays",
        )
    if not (place := full_path(Path(data))).exists():
        raise DataError(f"nothing at {place}", do="correct the path of the labelled images")
    own = recorded_recipe(store).data
    spec, notes = _data_of(place, own, as_mapping(overrides))
    train, test = open_source(spec)
    source = train if test is None else test
    if spec.unreadable == "stop":
        check_there(Path(data), [source])
    recipe, frozen = frozen_of(store, consent)

    def run(known: Sequence[int], scores: _Scores, advance: Callable[[int], None]) -> None:
        run_frozen(frozen, recipe, source, known, scores, advance, spec.unreadable)

    values = source.column(by) if isinstance(by, str) else _each(by, source)
    return _Asked(Path(data), source, values, run, [*aside_notes([source]), *notes])


def _data_of(place: Path, own: DataSpec, overrides: Mapping[str, Any]) -> tuple[DataSpec, list[str]]:
    """The images at ``place``, or those of the split to test on, and a note on that. Columns of a table are called as
    in the store's ``own`` table, or else as usual."""
    given: dict[str, Any] = apply_overrides({}, overrides).get("data", {})
    if is_table(place) and place.is_file() and own.source == "table":
        there = read_table(place).columns
        given = {key: name for key in KEYS if (name := getattr(own, key)) in there} | given
    section = {"unreadable": own.unreadable} | data_section(place, given) | given
    test, notes = section.pop("test", None), list[str]()
    if test is not None and test == section["train"]:
        section["test"] = test
        notes.append(f"judged on the split {section['test_split']!r} of {place}")
    elif test is not None:
        section |= {"train": test, **({"train_split": split} if (split := section.pop("test_split", None)) else {})}
        notes.append(f"judged on {test}, the part of {place} to test on")
    return parse_recipe({"data": section}, str(place)).data, notes


def _vectors(
    stack: ExitStack,
    store: FeatureStore,
    data: Any,
    by: str | ArrayLike | None,
    columns: Columns | None,
    overrides: Overrides,
) -> _Asked:
    """Vectors, scaled as the store's own were."""
    if overrides:
        raise RecipeError(
            f"{store.path} was made from vectors, and has no settings for images",
            got=", ".join(as_mapping(overrides)),
            do="--vectors, --labels and --ids name columns of vectors; in Python columns=Columns(…)",
        )
    columns, scaling, said = columns or Columns(), scaling_of(store.identity), by
    if isinstance(data, tuple | list):
        if len(data) != 2:
            raise ArgumentError("the vectors are not given with their classes", got=f"{len(data)} values", do="(x, y)")
        path, given = None, Vectors.in_memory("rows", *data)
    elif (path := local_path(data)).suffix.lower() in SUFFIXES:
        given = open_vectors(path, columns, aside=by if isinstance(by, str) else None)
        said = column_of(path, columns, by) if isinstance(by, str) else by
    else:
        file = stack.enter_context(FeatureFile(path))
        if file.is_export:
            raise DataError(f"{path} is the export of a store, not a file of vectors", do="import it into a new store")
        given = vectors_of_hdf5(file, columns)
        if isinstance(by, str) and by not in file:
            raise DataError(f"{path} has no column {by!r}", got="no dataset of this name", do="name another")
        said = file.column(by) if isinstance(by, str) else by
    if list(given.tokens_shape) != (shape := store.identity["cut"]["shape"]):
        raise DataError(
            f"the vectors of {given.path} are not as wide as those of {store.path}",
            got=f"{counted(given.tokens_shape[-1], 'number')}, {shape[-1]} in the store",
            do="give vectors of the same model",
        )
    judged, values, notes = _tested(given, _each(said, given))

    def run(known: Sequence[int], scores: _Scores, advance: Callable[[int], None]) -> None:
        for at in range(0, len(known), STEP_ROWS):
            some = known[at : at + STEP_ROWS]
            ids = [judged.ids[k] for k in some]
            scores.append(scaled(judged.take(some), str(scaling), ids), ids, judged.labels[list(some)].tolist())
            advance(len(some))

    return _Asked(path, judged, values, run, [*given.notes, *notes])


def _tested(given: Vectors, values: list[Any] | None) -> tuple[Vectors, list[Any] | None, list[str]]:
    """The rows of the split to test on, what ``values`` [n] say of them, and a note on that; all without one."""
    _, test = given.parted(None, alone=True)
    if test is None or test.rows is None:
        unused, _ = given.parted("all rows are judged")
        return given, values, list(unused.notes[len(given.notes) :])
    places = test.rows.tolist()
    note = f"judged on the split {given.splits[places[0]]!r} of {given.path}"
    return test, None if values is None else [values[k] for k in places], [note]


def _each(by: Any, source: Labelled) -> list[Any] | None:
    """Values that a program or a file has, one for each item."""
    if by is None:
        return None
    try:
        values = np.asarray(to_numpy("the values of by", by))
    except ValueError as error:  # lists of unlike lengths
        raise DataError(
            "the values of by are not one for each row", got=first_line(error), do="give single texts or numbers [n]"
        ) from None
    if values.shape != (len(source.items),):
        raise ArgumentError(
            "by is neither the name of a column nor a value for each row",
            got=f"{list(values.shape)} values for {counted(len(source.items), 'row')}",
            do='by="site", say, or values [n] in the order of the rows',
        )
    return list(values.tolist())


class _Scores:
    """A sink that keeps what the store's models say of rows, but not the rows.

    classes: the store's index for each class of the source, below 0 for none. names: the models that are judged;
    whole: those of them that are no components. temperatures: by whole model. All lists have a part for each batch.
    """

    def __init__(self, store: FeatureStore, classes: NDArray[np.int32]) -> None:
        self.classes, self.consumed, self.unreadable, self.notes = classes, 0, dict[str, str](), list[str]()
        self._scorer, self._dtype = Scorer(store), store.identity["dtype"]
        self._shape = tuple(store.identity["cut"]["shape"])
        self.names = self._scorer.models
        self.whole = [name for name in self.names if not is_component(name)]
        if len([*self._scorer.groups()]) > 1:  # each batch would read them all again
            self.names = self.whole
            self.notes.append("components are not judged: all models together take more than solver.memory")
        self.temperatures = _temperatures(store, self._scorer, self.whole)
        self.sums = {name: ProbabilitySums() for name in self.temperatures}
        self.hits: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in (UNTOUCHED, *self.names)}
        self.labels, self.ids, self.hashes = list[NDArray[np.int32]](), list[str](), list[bytes]()

    def append(
        self, tokens: NDArray[Any], ids: Sequence[str], labels: Sequence[int], skipped: Sequence[LeftOut] = ()
    ) -> None:
        """See ``Sink``."""
        self.consumed += len(ids) + len(skipped)
        self.unreadable |= {left.id: left.reason for left in skipped}
        if not ids:
            return
        rows, own = to_stored(tokens, self._dtype, self._shape, ids), self.classes[list(labels)]
        base, changes = self._scorer.logits(rows, self.names)
        for name, z in zip(self.hits, (base, *(base + change for change in changes)), strict=True):
            self.hits[name].append(z.argmax(1) == own)
            if name in self.sums:
                self.sums[name].add(z, own, self.temperatures[name])
        self.labels.append(own)
        self.ids += ids
        self.hashes += row_hashes(rows)


def _temperatures(store: FeatureStore, scorer: Scorer, names: Sequence[str]) -> dict[str, float]:
    """By model the temperature that suits the store's held-out rows, as ``predict`` takes it; none without these."""
    held = store.held_out
    if held is None or len(store.classes) < 2:
        return {}
    logits: dict[str, list[NDArray[np.float32]]] = {name: [] for name in names}
    for at in range(0, min(FIRST, held.rows), STEP_ROWS):
        base, changes = scorer.logits(held.tokens(slice(at, min(at + STEP_ROWS, held.rows))), names)
        for name, change in zip(names, changes, strict=True):
            logits[name].append(base + change)
    found = {name: temperature_of(z := np.concatenate(some), held.labels[: len(z)]) for name, some in logits.items()}
    return {name: T for name, T in found.items() if T is not None}


def _unknown(store: FeatureStore, asked: _Asked) -> dict[str, int]:
    """How many rows there are of each class that the store does not have; DataError if all are of such."""
    source = asked.source
    counts = Counter(source.classes[item.label] for item in source.items)
    unknown = {name: n for name, n in sorted(counts.items()) if name not in store.classes}
    check_blanks(store, unknown)
    check_forms(unknown, store.classes, "classes")
    if len(unknown) == len(counts):
        raise DataError(
            f"no label of {asked.path or 'these vectors'} is a class of {store.path}",
            got=f"{first_few([*unknown])}; the store has {first_few(store.classes)}",
            do="write labels as the store has its classes (taftcache inspect lists them), or name another column: "
            "--set data.label_key=COLUMN, of vectors --labels",
        )
    return unknown


def _class_notes(store: FeatureStore, unknown: Mapping[str, int], labels: NDArray[np.int32]) -> list[str]:
    """Notes on rows of other classes than the store's, and on classes of the store without a row."""
    there = {*labels.tolist()}
    without = [name for k, name in enumerate(store.classes) if k not in there]
    left = f"{counted(sum(unknown.values()), 'row')} left out, of {NOT_THERE}: {with_counts(unknown)}"
    none = (
        f"{len(without)} of {counted(len(store.classes), 'class')} without a row here, of which accuracy says nothing"
    )
    return [
        *([f"{left}; no model can be right on them"] if unknown else []),
        *([f"{none}: {first_few(without)}"] if without else []),
    ]


def _copies(store: FeatureStore, scores: _Scores, progress: Progress) -> list[str]:
    """A note on rows that models were trained on."""
    if not store.root.stable or store.nbytes > SEARCHED:  # it would take long, and a bucket would send all of it
        return []
    own = Hashes.of(store, progress)
    trained = own.chosen(~own.table.held_out)
    ids = [i for i, one in zip(scores.ids, scores.hashes, strict=True) if one in trained]
    if not ids:
        return []
    return [
        f"{len(ids)} of {counted(len(scores.ids), 'row')} hold the very bytes of a training row, so no accuracy here "
        f"is of new rows alone: {first_few(told_apart(ids))}"
    ]


def _known_groups(store: FeatureStore, ids: Sequence[str], data: DataSpec) -> list[str]:
    """A note on groups, by ``data``, of the rows ``ids`` whose other rows models of the store were trained on."""
    if data.group is None:
        return []
    both = groups_of(data, filter(data.in_id, ids)) & groups_of(data, store.sample_ids())
    if not both:
        return []
    rows = sum(data.group_of(i) in both for i in ids)
    return [
        f"{len(both)} of {counted(len(groups_of(data, ids)), 'group')} here (data.group) have training rows, so that "
        f"accuracy on their {counted(rows, 'row')} says little of new groups: {first_few(sorted(both))}"
    ]


def _of_reference(
    store: FeatureStore, other: Reference, asked: _Asked, scores: _Scores, progress: Progress
) -> list[str]:
    """Notes on a model from elsewhere, whose hits join those of ``scores``."""
    place, notes = {item.id: k for k, item in enumerate(asked.source.items)}, list(other.notes)
    with progress.task("reference", len(scores.ids)) as task:
        scores.hits[other.name] = [other.hits(asked.source, [place[i] for i in scores.ids], task.advance)]
    if other.store is not None:
        notes += _copies(other.store, scores, progress)
        notes += _known_groups(other.store, scores.ids, (grouping_recipe(other.store) or recorded_recipe(store)).data)
    return [f"{other.name}: {note}" for note in notes]


def _by_value(values: Sequence[Any], hit: NDArray[np.bool_], groups: RowGroups | None) -> list[ValueAccuracy]:
    """The accuracy on the rows with each of the ``values`` [n], the worst first, from which rows are right [n]."""
    names, place = np.unique([_text(value) for value in values], return_inverse=True)
    made = []
    for k, name in enumerate(names.tolist()):
        own = hit[place == k]
        of = groups and groups.take(place == k)
        made.append(
            ValueAccuracy(
                value=name,
                rows=len(own),
                accuracy=float(own.mean()),
                interval=accuracy_interval(own, of),
                groups=of and of.count,
            )
        )
    return sorted(made, key=lambda own: (own.accuracy, -own.rows, name_order(own.value)))


def _text(value: Any) -> str:
    """A cell of a table; whole numbers may come as floats, if their column has missing values."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()


def _small(values: Sequence[ValueAccuracy]) -> list[str]:
    """A note on values of so few rows that their accuracies say little."""
    small = [f"{own.value or 'without a value'} ({own.rows})" for own in values if own.rows < SMALL]
    few = f"{len(small)} of {counted(len(values), 'value')} of fewer than {SMALL} rows, too few to tell"
    return [f"{few}: {first_few(small)}"] if small else []
