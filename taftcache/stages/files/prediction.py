"""Classify image files or vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.backbone.device import resolve_device
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.arrays import to_numpy
from taftcache.backbone.sources.folder import SUFFIXES, images_below, unread_notes
from taftcache.backbone.sources.npz import FAULTS, mapped
from taftcache.backbone.sources.pictures import listed
from taftcache.backbone.sources.rgb import Picture
from taftcache.cache.columns import Columns
from taftcache.cache.hdf5 import FeatureFile, StoredRows
from taftcache.cache.opening import Place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, check_weights_there, followed, recorded_recipe
from taftcache.errors import (
    ArgumentError,
    DataError,
    RecipeError,
    StoreError,
    UnreadableImage,
    check_counts,
    check_path,
    first_line,
    local_path,
)
from taftcache.model.calibration import FIRST, temperature_of
from taftcache.model.component import no_model, read_base, read_component
from taftcache.model.folder import check_only, is_model_folder, open_model
from taftcache.model.predictor import Alike, Prediction, TangentModel, check_weights, warn_if_outdated
from taftcache.names import counted, first_few, model_of, scaling_of
from taftcache.recipe import Recipe
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.extract.frozen import load_frozen, same_rows
from taftcache.stages.files.vectors.opening import open_features
from taftcache.stages.look.evaluation import few_rows_note, unshared_by
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.scaling import scaled
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.trained_on import features_of, other_features
from taftcache.tangent.operator import TangentOperator

LEAST_ALIKE = (5, 20)  # rows: fewer than the first give no useful share; more than the second, only if a tenth of all
_REDUCED = "reduced_by"  # which frozen weights a row was reduced by
ROUNDED = 0.01  # by what share an image's margin may exceed that of its own cached row, whose numbers were rounded


@dataclass(frozen=True, kw_only=True)
class PredictReport(Report):
    """Predictions of one model; where the store has held-out rows, each with probabilities and with how often such a
    margin was right.

    root_digest: that of the store that the model was read from, or saved from. predictions: one for each image.
    unreadable: images that were left out, and why. notes: if the model is outdated, what the held-out rows cannot tell
    of the probabilities, and on files of other types in a folder.
    """

    store: Path
    root_digest: str
    model: str
    predictions: list[Prediction]
    unreadable: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def records(self) -> list[dict[str, object]]:
        """The predictions as rows of a table, for a CSV file or ``pandas.DataFrame``: one for each image, in order.

        image; label, logit, probability, and label_2, logit_2, probability_2, … for the next ones; margin; of the
        held-out rows with such a margin (``Alike``) how many are right, alike_right, of how many, alike_rows, and the
        largest margin of all of them, alike_largest. Images that were left out come last, with the reason as left_out
        alone. What a prediction lacks, its row lacks.
        """
        rows: list[dict[str, object]] = []
        for p in self.predictions:
            row: dict[str, object] = {"image": p.image, "label": p.labels[0], "logit": p.logits[0]}
            row |= {} if p.probabilities is None else {"probability": p.probabilities[0]}
            row |= {} if p.margin is None else {"margin": p.margin}
            row |= {} if p.alike is None else {f"alike_{name}": value for name, value in asdict(p.alike).items()}
            for rank, (label, logit) in enumerate(zip(p.labels[1:], p.logits[1:], strict=True), 2):
                row |= {f"label_{rank}": label, f"logit_{rank}": logit}
                row |= {} if p.probabilities is None else {f"probability_{rank}": p.probabilities[rank - 1]}
            rows.append(row)
        for image, reason in self.unreadable.items():
            rows.append({"image": image, "left_out": reason})
        return rows


def predict(
    store: Place,
    images: Iterable[Picture],
    *,
    model: str | None = None,
    top: int = 3,
    device: str = "auto",
    consent: Consent | None = None,
    unreadable: Literal["stop", "skip"] = "stop",
    columns: Columns | None = None,
    progress: Progress | bool | None = None,
) -> PredictReport:
    """Classify image files end to end: preprocessing, frozen layers, base and Δw.

    Probabilities are softmax(logits / T). T is fitted to the first thousand held-out rows of the store, or was saved
    with the model; where neither is there, there are no probabilities.

    A store of vectors classifies every row of an array or of files [n, d], scaled as its own were; labels in a file are
    passed over, and ids name its rows. Class names are texts, whatever the labels were; a prediction's ``index`` is a
    number. ``logits`` gives all logits.

    Args:
        store: an open store, a store's folder, or a folder with one model: from ``export_model``, or a student's.
        images: image files, folders of them (at any depth), PIL images or arrays of uint8 [h,w,3]; for a store of
            vectors, numbers [n, d] (an array, a tensor or a table) or files of them, as for ``import_``.
        model: which of the store's models ("models/exact", or "000" for the component of that shard); by default the
            store's default model (``model_of``).
        top: how many classes for each image.
        device: where the model runs.
        consent: weights instead of those that the store names, or permission to ask the model hub for them.
        unreadable: "stop" at an image that cannot be read, or "skip" it and name it in the report.
        columns: the names of arrays or columns in files of vectors; or the file of their ids.
        progress: shows how far it is.

    Raises:
        DataError: a folder without images. UnreadableImage: an image that cannot be read, or none that can. StoreError:
        no such model, or a store without classes. RecipeError: another model, or weights, are named beside a folder
        with one model; or ``columns`` for images.
    """
    check_counts(top=top)
    if unreadable not in ("stop", "skip"):
        raise ArgumentError(f"unreadable cannot be {unreadable!r}", got=repr(unreadable), do='"stop" or "skip"')
    if isinstance(store, FeatureStore):
        check_has_classes(store)
        model = model_of(store.objects(), model)
        scaling = scaling_of(store.identity)
        if scaling is not None:
            (known, notes), left = _known(store, model, device, consent), dict[str, str]()
            temperature = None if known is None else known.temperature
            answers = _of_vectors(store, images, model, scaling, columns)
            each = ((i, row) for ids, z in answers for i, row in zip(ids, z, strict=True))
            found = [Prediction.of(i, row, store.classes, top, temperature) for i, row in each]
        else:
            _check_no_columns(store.path, columns)
            images, others = files_of(images)
            loaded = TangentModel.read(store, model, device, consent)
            known, notes = _known(store, model, device, consent)
            notes = [*others, *notes]
            loaded.temperature = None if known is None else known.temperature
            found, left = _classified(loaded, images, top, unreadable, progress)
        return PredictReport(
            store=store.path,
            root_digest=store.root_digest,
            model=model,
            predictions=found if known is None else _beside_held_out(known, found),
            unreadable=left,
            notes=[*notes, *outdated_notes(store, settings_of(store).keys, model)],
        )
    if not is_model_folder(store):
        with FeatureStore(store) as opened:
            return predict(
                opened,
                images,
                model=model,
                top=top,
                device=device,
                consent=consent,
                unreadable=unreadable,
                columns=columns,
                progress=progress,
            )
    origin = check_only(store, model, consent)
    _check_no_columns(store, columns)
    images, notes = files_of(images)
    found, left = _classified(open_model(store, device=device), images, top, unreadable, progress)
    return PredictReport(
        store=Path(store),
        root_digest=origin.root_digest,
        model=origin.name,
        predictions=found,
        unreadable=left,
        notes=notes,
    )


def _check_no_columns(store: Place, columns: Columns | None) -> None:
    if columns is not None:
        raise RecipeError(
            f"{store} takes images, and names of columns of vectors mean nothing there",
            got=str(columns),
            do="leave them out: --vectors, --ids, or columns=…",
        )


def logits(
    store: Place,
    images: Iterable[Picture] | Shard,
    *,
    model: str | None = None,
    device: str = "auto",
    consent: Consent | None = None,
) -> NDArray[np.float32]:
    """Logits [n, K] of images or vectors, one row for each, in the order of the store's classes; see ``predict``.

    A warning says if the model is outdated.

    Args:
        images: as for ``predict``; or a shard, ``store.shard("000")`` or ``store.shard("held-out")``, whose cached rows
            need no backbone: logits in the order of its ``sample_ids``. It may be one of another store whose rows hold
            the same features; their classes play no part.
        device: where the model runs; for vectors, the recipe decides.

    Raises:
        DataError, UnreadableImage: as ``predict``; also a shard that its store no longer has, or of other features.
        StoreError: no such model.
    """
    if not isinstance(store, FeatureStore) and not is_model_folder(store):
        with FeatureStore(store) as opened:
            return logits(opened, images, model=model, device=device, consent=consent)
    if not isinstance(store, FeatureStore):
        if isinstance(images, Shard):
            raise DataError(
                f"{store} is one model, which takes images, not cached rows", got="a Shard", do="give the shard's store"
            )
        check_only(store, model, consent)
        return open_model(store, device=device).logits(files_of(images)[0])
    check_has_classes(store)
    model = model_of(store.objects(), model)
    warn_if_outdated(store, model)
    if isinstance(images, Shard):
        _check_features(store, images)
        found = [z.float().cpu().numpy() for z, _ in row_logits(store, model, images, device, consent)]
        return np.concatenate(found)
    if (scaling := scaling_of(store.identity)) is None:
        return TangentModel.read(store, model, device, consent).logits(files_of(images)[0])
    found = [z for _, z in _of_vectors(store, images, model, scaling)]
    return np.concatenate([np.empty((0, len(store.classes)), np.float32), *found])


def _check_features(store: FeatureStore, shard: Shard) -> None:
    """DataError unless the shard is one that its store has now, and its rows hold the features of this store's."""
    with nullcontext(store) if shard.store_path == store.path else FeatureStore(shard.store_path) as own:
        if shard.digest not in {ref.digest for ref in own.manifest.shards}:
            raise DataError(
                f"the shard {shard.name} is not one of {own.path}, whose rows have changed since",
                got=repr(shard),
                do=f"open the store again: FeatureStore({str(own.path)!r}).shard({shard.name!r})",
            )
        theirs, ours = (
            {**features_of(s.identity), _REDUCED: s.identity.get("cut", {}).get(_REDUCED)} for s in (own, store)
        )
    different, _ = other_features(theirs, ours)
    if different:
        raise DataError(
            f"the shard {shard.name} of {own.path} has other features than {store.path}: {different[0]}",
            got="; ".join(different[:6]),
            do="extract its images with the model, weights, preprocessing and [tangent] of this store",
        )


def frozen_of(store: FeatureStore, consent: Consent | None) -> tuple[Recipe, tuple[Reduction, Preprocess]]:
    """The frozen layers that make rows like the store's, and the recipe to run them by.

    BackboneError, IdentityError, UntrustedStore: as for ``TangentModel.load``.
    """
    recipe = same_rows(store, followed(store, "weights", consent))
    check_weights_there(store, recipe, "options")
    frozen = load_frozen(recipe, store.classes)
    check_weights(store, frozen[0].backbone, recipe.backbone)
    return recipe, frozen


def files_of(images: Iterable[Picture]) -> tuple[list[Picture], list[str]]:
    """The images, each folder replaced by those in it; and notes on the folders' other files."""
    found, others = list[Picture](), list[str]()
    for picture in listed(_but_no_shard(images)):
        if isinstance(picture, str):
            check_path("the place of an image", picture)
        if not (isinstance(picture, str | Path) and Path(picture).is_dir()):
            found.append(picture)
            continue
        inside, more = images_below(Path(picture))
        if not inside:
            raise DataError(
                f"the folder {picture} has no images",
                got=f"{counted(len(more), 'file')} of types that are not read",
                do=f"name one with files ending in {', '.join(sorted(SUFFIXES))}",
            )
        found += inside
        others += more
    return found, unread_notes(others)


def _but_no_shard(given: Iterable[Picture]) -> Iterable[Picture]:
    """What is given; DataError for a shard, of which only ``logits`` takes the rows."""
    if isinstance(given, Shard):
        do = "logits(store, shard), whose argmax(1) are places in store.classes"
        raise DataError("the cached rows of a shard are not images or vectors", got=repr(given), do=do)
    return given


def _classified(
    model: TangentModel,
    images: list[Picture],
    top: int,
    unreadable: Literal["stop", "skip"],
    progress: Progress | bool | None,
) -> tuple[list[Prediction], dict[str, str]]:
    """The model's predictions, and by name the images that could not be read, with the reason."""
    errors: dict[str, UnreadableImage] = {}
    found = list[Prediction]()
    with or_silent(progress).task("predict", len(images)) as task:

        def left_out(name: str, error: UnreadableImage) -> None:
            errors[name] = error
            task.advance()

        for prediction in model.predictions(images, top, on_unreadable=left_out if unreadable == "skip" else None):
            found.append(prediction)
            task.advance()
    if errors and not found:
        raise next(iter(errors.values()))
    return found, {name: f"{error.fault}: {error.got}" if error.got else error.fault for name, error in errors.items()}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What one model says of held-out rows.

    margins: how far each row's largest logit is above the second [n]. right: whether its class was right [n].
    temperature: of its probabilities, see ``temperature_of``.
    """

    margins: NDArray[np.float32]
    right: NDArray[np.bool_]
    temperature: float | None


def held_out_answers(
    store: FeatureStore, name: str, device: str = "auto", consent: Consent | None = None
) -> Answers | None:
    """What one model says of the ``FIRST`` held-out rows.

    None if there are no held-out rows, or only one class. Errors as for ``held_out_score``.
    """
    if store.held_out is None or len(store.classes) < 2:
        return None
    blocks, rows = list[NDArray[np.float32]](), 0
    for logits, _ in row_logits(store, name, store.held_out, device, consent):
        blocks.append(logits.float().cpu().numpy())
        rows += len(logits)
        if rows >= FIRST:
            break
    z, labels = np.concatenate(blocks)[:FIRST], store.held_out.labels[:FIRST]
    second, first = np.partition(z, -2)[:, -2:].T
    return Answers(margins=first - second, right=z.argmax(1) == labels, temperature=temperature_of(z, labels))


def row_logits(
    store: FeatureStore, name: str, rows: Shard, device: str = "auto", consent: Consent | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits [b,K] of one model on cached rows, and their labels [b], block by block; errors as ``held_out_score``."""
    base = read_base(store, recorded_recipe(store).tangent, consent=consent)
    component = read_component(store, name, base)
    operator = TangentOperator(base, [rows], trained=component.layout, device=resolve_device(device))
    direction = operator.direction(component.delta)
    for state, labels in operator.blocks():
        yield state.logits + operator.tangent(state, direction), labels


def _known(store: FeatureStore, model: str, device: str, consent: Consent | None) -> tuple[Answers | None, list[str]]:
    """``held_out_answers``, and notes on what these rows cannot tell; or None and a note, because damaged rows are no
    reason not to classify an image."""
    try:
        known = held_out_answers(store, model, device, consent)
        rows = None if known is None or known.temperature is None else store.held_out
        return known, [] if rows is None else [*unshared_by(store, rows), *few_rows_note(rows)]
    except StoreError as error:
        return None, [f"there are no probabilities, because the held-out rows cannot be read: {first_line(error)}"]


def _beside_held_out(known: Answers, predictions: list[Prediction]) -> list[Prediction]:
    """Each prediction with how often the model was right on the held-out rows with the nearest margins.

    These are a sixth of the rows but no more than 20, or a tenth if that is more; and at least 5, or all if there are
    fewer. For a margin beyond the largest one there are none.
    """
    margins, right = known.margins, known.right
    few, enough = LEAST_ALIKE
    rows = min(len(margins), max(few, min(enough, len(margins) // 6), len(margins) // 10))
    largest = float(margins.max())
    found = []
    for prediction in predictions:
        assert prediction.margin is not None  # there are two classes
        beyond = prediction.margin > (1 + ROUNDED) * largest
        nearest = np.argsort(np.abs(margins - prediction.margin), kind="stable")[: 0 if beyond else rows]
        alike = Alike(right=int(right[nearest].sum()), rows=len(nearest), largest=largest)
        found.append(replace(prediction, alike=alike))
    return found


def vectors_of(
    store: FeatureStore, given: Iterable[Picture], columns: Columns | None = None
) -> Iterator[tuple[Callable[[int], str], NDArray[Any] | StoredRows]]:
    """For each array or file, a function that names its k-th row, and rows [n, d] like the store's; DataError for
    anything else.

    Each file is opened only when its turn comes.
    """
    if getattr(given, "ndim", 0) > 1:
        if columns is not None:
            raise ArgumentError("an array has no columns to name", got=f"columns = {columns!r}", do="leave them out")
        yield "at index {}".format, _checked(store, "what was given", np.asarray(to_numpy("the vectors", given)))
        return
    known = set[str]()  # ids of earlier files
    for file in listed(_but_no_shard(given)):
        if not isinstance(file, str | Path):
            raise DataError(
                f"{store.path} was made from vectors, but what was given is neither an array [n, d] nor files",
                got=f"a list with {type(file).__name__} {list(getattr(file, 'shape', []))}",
                do='x[None] instead of one vector x [d]; ["new.npy"] for files',
            )
        file = local_path(file)
        if not file.is_file():
            raise DataError(f"no vectors at {file}: it is not a file", do="correct the path")
        numbered = partial("{}/{:08d}".format, file)
        with ExitStack() as stack:
            if file.suffix.lower() == ".npy" and columns is None:
                yield numbered, _checked(store, str(file), _mapped(file))
                continue
            found = open_features(stack, file, columns or Columns(), None, labelled=False)
            if isinstance(found, FeatureFile):
                raise DataError(f"{file} is the export of a store, not a file of vectors", do="import it")
            rows = _checked(store, str(file), found.values)
            if found.numbered:
                yield numbered, rows
                continue
            if twice := known.intersection(found.ids):
                raise DataError(
                    f"{file} has ids that an earlier file has, too",
                    got=first_few(sorted(twice)),
                    do="give one at a time",
                )
            known.update(found.ids)
            yield found.ids.__getitem__, rows


def _mapped(file: Path) -> NDArray[Any]:
    try:
        return mapped(file)
    except FAULTS as error:
        raise DataError(
            f"{file} cannot be read as vectors", got=str(error), do="write numbers [n, d] as .npy"
        ) from error


def _checked(store: FeatureStore, what: str, rows: NDArray[Any] | StoredRows) -> NDArray[Any] | StoredRows:
    width = store.identity["cut"]["shape"][1]
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows) or rows.dtype.kind not in "fiu":
        got = f"{rows.dtype} {list(rows.shape)}"
        raise DataError(f"{what} has no vectors like the store's", got=got, do=f"numbers [n, {width}]")
    return rows


def _of_vectors(
    store: FeatureStore, given: Iterable[Picture], model: str, scaling: str, columns: Columns | None = None
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """The names of vectors [n, d] and their logits [b, K], a few rows at a time."""
    scorer: Scorer | None = None  # made only once the first input has proved to be vectors
    for called, rows in vectors_of(store, given, columns):
        scorer = scorer or Scorer(store)
        if model not in scorer.models:
            raise no_model(store, model)
        for at in range(0, len(rows), STEP_ROWS):
            ids = [called(k) for k in range(at, min(at + STEP_ROWS, len(rows)))]
            z, changes = scorer.logits(scaled(rows[at : at + STEP_ROWS][:, None, :], scaling, ids), [model])
            yield ids, z + changes[0]
