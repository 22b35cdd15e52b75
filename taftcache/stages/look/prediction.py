"""From image files, or files of vectors, to classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.arrays import to_numpy
from taftcache.backbone.sources.folder import SUFFIXES, images_below, unread_notes
from taftcache.backbone.sources.npz import FAULTS, mapped
from taftcache.backbone.sources.pictures import listed
from taftcache.backbone.sources.rgb import Picture
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.errors import DataError, StoreError, UnreadableImage, check_counts
from taftcache.model.folder import is_model_folder, open_model, origin_of
from taftcache.model.predictor import Alike, Prediction, TangentModel
from taftcache.names import counted, model_of, scaling_of
from taftcache.stages.look.evaluation import held_out_margins
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.scaling import scaled
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.record import settings_of

LEAST_ALIKE = (5, 20)  # rows: of fewer no share can be told, and more are wanted only where they lie near


@dataclass(frozen=True, kw_only=True)
class PredictReport:
    """Predictions of one model, each with how often such a margin was right, where the store has held-out rows.

    ``root_digest`` is that of the store it was read from, or was saved from. ``unreadable``: images that were left out,
    and why. notes: that the model is outdated, and on files that a folder has of other types.
    """

    store: Path
    root_digest: str
    model: str
    predictions: list[Prediction]
    unreadable: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def predict(
    store: FeatureStore | Path | str,
    images: Iterable[Picture],
    *,
    model: str | None = None,
    top: int = 3,
    device: str = "auto",
    consent: Consent | None = None,
    unreadable: Literal["stop", "skip"] = "stop",
) -> PredictReport:
    """Classify image files end to end: preprocessing, frozen layers, base and Δw.

    A store of vectors classifies every row of an array or of .npy files [n, d], scaled as its own were. The names of
    classes are texts, whatever the labels were: ``index`` of a prediction is a number. ``logits`` gives all logits.

    Args:
        store: an open store, a store's folder, or a folder with one model: of ``export_model``, or of a student.
        images: image files, folders of them (at any depth), PIL images or arrays of uint8 [h,w,3]; of a store of
            vectors, numbers [n, d] (an array, a tensor or a table) or .npy files of them.
        model: which of the store's models; its default one where none is named (``model_of``).
        top: classes for each image.
        device: where the model runs.
        consent: weights in place of those that the store names, or that the model hub may be asked for them.
        unreadable: "stop" at an image that cannot be read, or "skip" it, and say so in the report.

    Raises:
        DataError: a folder without images. UnreadableImage: an image that cannot be read, or none that can.
    """
    check_counts(top=top)
    if isinstance(store, FeatureStore):
        model = model or model_of(store.objects())
        scaling = scaling_of(store.identity)
        if scaling is not None:
            each = (
                (i, row) for ids, z in _of_vectors(store, images, model, scaling) for i, row in zip(ids, z, strict=True)
            )
            found = [Prediction.of(i, row, store.classes, top) for i, row in each]
            left, notes = dict[str, str](), list[str]()
        else:
            images, notes = _files(images)
            found, left = _classified(TangentModel.load(store, model, device, consent), images, top, unreadable)
        return PredictReport(
            store=store.path,
            root_digest=store.root_digest,
            model=model,
            predictions=_beside_held_out(store, model, found, device, consent),
            unreadable=left,
            notes=[*notes, *outdated_notes(store, settings_of(store), model)],
        )
    if not is_model_folder(store):
        with FeatureStore(store) as opened:
            return predict(opened, images, model=model, top=top, device=device, consent=consent, unreadable=unreadable)
    origin = origin_of(store)
    images, notes = _files(images)
    found, left = _classified(open_model(store, device=device), images, top, unreadable)
    return PredictReport(
        store=Path(store),
        root_digest=origin.root_digest,
        model=origin.name,
        predictions=found,
        unreadable=left,
        notes=notes,
    )


def logits(
    store: FeatureStore | Path | str,
    images: Iterable[Picture],
    *,
    model: str | None = None,
    device: str = "auto",
    consent: Consent | None = None,
) -> NDArray[np.float32]:
    """Logits [n, K] of images or vectors, a row for each, in the order of the store's classes; see ``predict``.

    Of a store's images the device is ``device``; of vectors the recipe's.

    Raises:
        DataError, UnreadableImage: as ``predict``. StoreError: no such model.
    """
    if not isinstance(store, FeatureStore) and not is_model_folder(store):
        with FeatureStore(store) as opened:
            return logits(opened, images, model=model, device=device, consent=consent)
    if not isinstance(store, FeatureStore):
        return open_model(store, device=device).logits(_files(images)[0])
    model = model or model_of(store.objects())
    if (scaling := scaling_of(store.identity)) is None:
        return TangentModel.load(store, model, device, consent).logits(_files(images)[0])
    found = [z for _, z in _of_vectors(store, images, model, scaling)]
    return np.concatenate([np.empty((0, len(store.classes)), np.float32), *found])


def _files(images: Iterable[Picture]) -> tuple[list[Picture], list[str]]:
    """The images, in place of a folder those in it; and notes on what else it has."""
    found, others = list[Picture](), list[str]()
    for picture in listed(images):
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


def _classified(
    model: TangentModel, images: list[Picture], top: int, unreadable: Literal["stop", "skip"]
) -> tuple[list[Prediction], dict[str, str]]:
    """What the model says of the images, and those that it was not asked about, with the reason."""
    if unreadable == "stop":
        return model.predict(images, top), {}
    errors: dict[str, UnreadableImage] = {}
    found = model.predict(images, top, on_unreadable=errors.__setitem__)
    if errors and not found:
        raise next(iter(errors.values()))
    return found, {name: f"{error.fault}: {error.got}" if error.got else error.fault for name, error in errors.items()}


def _beside_held_out(
    store: FeatureStore, model: str, predictions: list[Prediction], device: str, consent: Consent | None
) -> list[Prediction]:
    """Each with how often the model was right on the held-out rows of the nearest margins.

    These are a tenth of the rows; but 20 at least where that is no more than a sixth, and 5 in any case, or all.
    """
    try:
        known = held_out_margins(store, model, device, consent)
    except StoreError:  # damaged rows are no reason not to classify an image
        known = None
    if known is None:
        return predictions
    margins, right = known
    few, enough = LEAST_ALIKE
    rows = min(len(margins), max(few, min(enough, len(margins) // 6), len(margins) // 10))
    found = []
    for prediction in predictions:
        assert prediction.margin is not None  # there are two classes
        nearest = np.argsort(np.abs(margins - prediction.margin), kind="stable")[:rows]
        found.append(replace(prediction, alike=Alike(right=int(right[nearest].sum()), rows=rows)))
    return found


def _vectors(store: FeatureStore, given: Iterable[Picture]) -> Iterator[tuple[Callable[[int], str], NDArray[Any]]]:
    """Rows [n, d] like the store's, and what the k-th is called; DataError for anything else.

    Those of files are mapped, each when it is asked for.
    """
    if getattr(given, "ndim", 0) > 1:
        yield "at index {}".format, _checked(store, "what was given", to_numpy("the vectors", given))
        return
    for file in listed(given):
        if not isinstance(file, str | Path):
            raise DataError(
                f"{store.path} has vectors, which are classified from an array [n, d] or from .npy files",
                got=f"a list with {type(file).__name__} {list(getattr(file, 'shape', []))}",
                do='predict(store, x) with x [n, d], or predict(store, ["new.npy"])',
            )
        file = Path(file).expanduser()
        if not file.is_file():
            raise DataError(f"cannot classify {file}: it is not a file", do="correct the path")
        try:
            rows = mapped(file)
        except FAULTS as error:
            raise DataError(
                f"{file} cannot be read as vectors", got=str(error), do="write numbers [n, d] as .npy"
            ) from error
        yield partial("{}/{:08d}".format, file), _checked(store, str(file), rows)


def _checked(store: FeatureStore, what: str, rows: NDArray[Any]) -> NDArray[Any]:
    width = store.identity["cut"]["shape"][1]
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows) or rows.dtype.kind not in "fiu":
        got = f"{rows.dtype} {list(rows.shape)}"
        raise DataError(f"{what} has no vectors like the store's", got=got, do=f"numbers [n, {width}]")
    return rows


def _of_vectors(
    store: FeatureStore, given: Iterable[Picture], model: str, scaling: str
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """What vectors [n, d] are called, and their logits [b, K], a few at a time."""
    scorer: Scorer | None = None  # what is given comes first: it may be no vectors
    for called, rows in _vectors(store, given):
        scorer = scorer or Scorer(store)
        if model not in scorer.models:
            raise StoreError(f"no model named {model} in {store.path}", got=model, do="taftcache train, then compose")
        for at in range(0, len(rows), STEP_ROWS):
            ids = [called(k) for k in range(at, min(at + STEP_ROWS, len(rows)))]
            z, changes = scorer.logits(scaled(rows[at : at + STEP_ROWS, None, :], scaling, ids), [model])
            yield ids, z + changes[0]
