"""All students of one recipe: each trained once and kept on disk with the settings it was trained under and its β."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from taftcache.backbone.device import float64_device
from taftcache.backbone.files import STUDENT, WEIGHTS_NAME, file_digest, weights_file, weights_kind
from taftcache.backbone.model import Backbone, load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.saved import name_classes, save_config
from taftcache.backbone.sources.base import Source
from taftcache.backbone.spec import BackboneSpec
from taftcache.backbone.student import RANDOM, Student, build_student
from taftcache.cache.format.plan import held_out, in_order
from taftcache.errors import DataError, FormatError, SolveError
from taftcache.names import ROWS_OF
from taftcache.recipe import Recipe, parse_bytes
from taftcache.report.write import write_bytes
from taftcache.tangent.device import full_float32
from taftcache.teaching.features import TeacherFeatures
from taftcache.teaching.joined import Joined
from taftcache.teaching.moments import teacher_moment
from taftcache.teaching.recipe import TeachingRecipe
from taftcache.teaching.spec import PriorName
from taftcache.teaching.students.checkpoint import write_tensors
from taftcache.teaching.students.images import Images
from taftcache.teaching.students.kernels import unit_rows
from taftcache.teaching.students.priors import make_prior
from taftcache.teaching.students.trainer import (
    CHECKPOINT,
    OnEpoch,
    StudentOutcome,
    StudentTraining,
    TrainingRows,
    train,
)

OUTCOME = "outcome.json"
# A seed of its own: a store's held-out rows are chosen by the same hash under the store's seed, so among the remaining
# rows that seed would choose none.
HOLD_OUT_SEED = 0x7EAC4
Bar = Callable[[str, int], AbstractContextManager[OnEpoch]]
"""(name, epochs) to a context that shows a training while it lasts."""


@dataclass(frozen=True)
class StudentSettings:
    """Everything in which a student differs from the others of its recipe.

    held_back: whether the student is tested on a part of the labelled rows that is held back, to choose β, instead of
        on the test rows.
    """

    prior: PriorName
    beta: float
    seed: int
    noise: int = 0
    per_class: int | None = None
    repeat: int = 1
    held_back: bool = False

    @property
    def name(self) -> str:
        """Its folder."""
        parts = [self.prior, f"b{_text(self.beta)}", f"s{self.seed}"]
        parts += [f"noise{self.noise}"] if self.noise else []
        parts += [f"n{self.per_class}"] if self.per_class else []
        parts += [f"x{self.repeat}"] if self.repeat > 1 else []
        return "-".join([*parts, "choice"] if self.held_back else parts)


class BetaChoice(NamedTuple):
    """The chosen β, and the accuracy on the held-back rows for each β that was tried."""

    beta: float
    accuracy: dict[str, float]


class Students:
    """Trains the recipe's students on one join, and keeps them.

    Args:
        recipe: settings.
        joined: rows of the teachers.
        places: for each row of the join, its source and the image's index there.
        shards: digests of each teacher's shards, by its name.
        records: gives the recipe that a teacher's store keeps, if its weights may be opened.
        bar: shows a training.
        notes: about the rows, for the report.
    """

    def __init__(
        self,
        recipe: TeachingRecipe,
        joined: Joined,
        places: list[tuple[Source, int]],
        shards: Mapping[str, list[str]],
        records: Mapping[str, Callable[[], Recipe]],
        bar: Bar,
        notes: Sequence[str] = (),
    ) -> None:
        self.recipe, self.joined, self._places, self._bar, self.notes = recipe, joined, places, bar, [*notes]
        self._shards, self._records = dict(shards), dict(records)
        self._moments: dict[tuple[Any, ...], Tensor] = {}
        self._made: dict[str, bool] = {}

    @cached_property
    def _images(self) -> Images:
        preprocess = Preprocess(self.student(self.recipe.train.seeds[0]).backbone)
        return Images(self._places, preprocess, parse_bytes(self.recipe.train.memory))

    @cached_property
    def _rows(self) -> str:
        """A digest of all rows: their ids, classes, parts and pixels, for an image may change under its name."""
        joined, hasher = self.joined, blake3()
        for i, label in zip(joined.ids, joined.labels.tolist(), strict=True):
            hasher.update(json.dumps([i, joined.classes[label]]).encode() + b"\n")
        for part in (joined.training, joined.held_out):
            hasher.update(np.ascontiguousarray(part, "<i8").tobytes())
        with self._undisturbed(), self._bar("decode", len(self._places)) as decoded:
            hasher.update(self._images.decode(lambda n: decoded(n, "")).encode())
        return hasher.hexdigest()

    def settings(self, prior: PriorName, beta: float, seed: int, **changes: Any) -> StudentSettings:
        """A student with the recipe's own settings except for ``changes``."""
        own = {"noise": self.recipe.teach.noise, "per_class": self.recipe.train.per_class, **changes}
        return StudentSettings(prior if beta else "none", float(beta) if prior != "none" else 0.0, seed, **own)

    def outcome(self, settings: StudentSettings) -> StudentOutcome:
        """A student's outcome; it is trained now unless it was trained before under the same settings.

        A student of other settings or rows stays in its place, with its record, until the new one is trained.
        """
        settings = _plain(settings)
        folder = self.student_file(settings).parent
        key = self._key(settings)
        found = _read_outcome(folder / OUTCOME, key) if (folder / WEIGHTS_NAME).is_file() else None
        if found is not None:
            self._made.setdefault(settings.name, False)
            return found
        with self._undisturbed(), self._bar(settings.name, self.recipe.train.epochs) as on_epoch:
            student = self.student(settings.seed)
            # From the shards an audit tells whether a file was trained on forgotten rows, even without a prior.
            meta = {"key": key, ROWS_OF: self._shards}
            outcome = self._train(student, settings, folder / CHECKPOINT, meta, on_epoch)
        self._keep(student, outcome, folder, meta)
        self._made[settings.name] = True
        return outcome

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """The calling program's torch settings are in no key, so they must not affect a student's bytes."""
        with torch.inference_mode(False), torch.enable_grad(), full_float32(float64_device(self.recipe.device)):
            yield

    def check(self) -> None:
        """Raise, before anything is written or trained, what would end the first training or the choice of β.

        Raises:
            BackboneError: a student that cannot be built; where students are kept, this shows later.
            DataError: β is to be chosen, also for a curve, and no row or every one would be held back.
        """
        recipe = self.recipe
        if recipe.teach.beta == "choose" and {recipe.teach.prior, *recipe.report.priors} != {"none"}:
            for count in {recipe.train.per_class, *recipe.report.per_class}:
                own = self.settings("none", 0.0, recipe.train.seeds[0], held_back=True, per_class=count)
                self.training_rows(own)
        if not (recipe.folder / "students").is_dir():
            self.student(recipe.train.seeds[0])

    @property
    def trained(self) -> int:
        """How many of the students asked for were trained in this run."""
        return sum(self._made.values())

    @property
    def kept(self) -> int:
        """How many of the students asked for had been trained before."""
        return len(self._made) - self.trained

    def _keep(self, student: Student, outcome: StudentOutcome, folder: Path, meta: dict[str, Any]) -> None:
        """Write a trained student over what is there; last its record, which says that the student is complete."""
        (folder / OUTCOME).unlink(missing_ok=True)
        write_tensors(folder / WEIGHTS_NAME, student.model.state_dict(), meta)
        name_classes(student.model, self.joined.classes, student.backbone.data_config)
        save_config(student.backbone, folder)
        told = {"outcome": asdict(outcome), "classes": self.joined.classes, "preprocess": student.backbone.data_config}
        write_bytes(folder / OUTCOME, json.dumps(meta | told, indent=1, sort_keys=True).encode())
        (folder / CHECKPOINT).unlink(missing_ok=True)

    def student_file(self, settings: StudentSettings) -> Path:
        """Where a trained student lies."""
        return self.recipe.folder / "students" / _plain(settings).name / WEIGHTS_NAME

    def backbone(self, teacher: str) -> Backbone:
        """A teacher's whole model, as its store's recipe names it."""
        recipe = self._records[teacher]()
        return load_backbone(recipe.backbone, recipe.preprocess, float64_device(self.recipe.device))

    def choose(self, prior: PriorName, **changes: Any) -> BetaChoice:
        """β by accuracy on a part of the labelled rows that is held back; 0 is always tried.

        If few rows are labelled, few are held back, and many students are as accurate as the best. Among these the
        least cross entropy there decides, then the smallest β. A training that fails counts as the worst, and is noted.

        Raises:
            SolveError: all trainings fail.
        """
        spec = self.recipe.teach
        if prior == "none" or spec.beta != "choose":
            return BetaChoice(float(spec.beta or 0.0) if prior != "none" else 0.0, {})  # 0.0 for -0.0, too
        seed = self.recipe.train.seeds[0]
        tried: dict[float, StudentOutcome] = {}
        failed: dict[float, SolveError] = {}
        for beta in sorted({0.0, *spec.grid}):
            try:
                tried[beta] = self.outcome(self.settings(prior, beta, seed, held_back=True, **changes))
            except SolveError as error:
                failed[beta] = error
        if not tried:
            raise next(iter(failed.values()))
        said = [f"{error.fault}: no beta is worse" for error in failed.values()]
        self.notes += [line for line in said if line not in self.notes]
        best = max(tried, key=lambda beta: (tried[beta].accuracy, -tried[beta].tested_loss))
        accuracy = {beta: tried[beta].accuracy if beta in tried else 0.0 for beta in sorted({*tried, *failed})}
        return BetaChoice(best, {_text(beta): value for beta, value in accuracy.items()})

    def training_rows(self, settings: StudentSettings) -> TrainingRows:
        """Which rows a student is trained and tested on."""
        joined, spec = self.joined, self.recipe.train
        rows, tested, ids = joined.training, joined.held_out, joined.ids
        labelled, rest = rows, rows[:0]
        if settings.per_class is not None:
            labelled = per_class(rows, [ids[k] for k in rows], joined.labels, settings.per_class)
            rest = np.setdiff1d(rows, labelled) if spec.unlabelled == "use" else rest
        if settings.held_back:
            data, part = self.recipe.data, self.recipe.teach.hold_out
            held = held_out([ids[k] for k in labelled], part, HOLD_OUT_SEED, data.group_of)
            back = np.array([ids[k] in held for k in labelled])
            if not back.any() or back.all():
                raise DataError(
                    f"β cannot be chosen: {part:g} of {len(labelled)} labelled training images holds back"
                    f" {int(back.sum())}",
                    do="change teach.hold_out, or give teach.beta a number",
                )
            labelled, tested = labelled[~back], labelled[back]
        return TrainingRows(labelled=labelled, unlabelled=rest, tested=tested, labels=joined.labels)

    def features(self, settings: StudentSettings) -> TeacherFeatures:
        """What a prior of this student sees of the teachers."""
        return TeacherFeatures(
            self.joined.teachers,
            self.training_rows(settings).used,
            standardise=self.recipe.teach.standardise,
            noise=settings.noise,
            repeat=settings.repeat,
        )

    def student(self, seed: int) -> Student:
        """A fresh student."""
        spec = self.recipe.student
        return build_student(
            spec.model,
            spec.weights,
            spec.model_args,
            self.recipe.preprocess,
            len(self.joined.classes),
            seed,
            self.recipe.device,
            spec.blocks,
        )

    def _train(
        self, student: Student, settings: StudentSettings, checkpoint: Path, meta: dict[str, Any], on_epoch: OnEpoch
    ) -> StudentOutcome:
        recipe, rows = self.recipe, self.training_rows(settings)
        features = self.features(settings)

        def moment() -> Tensor:
            at = (settings.noise, settings.per_class, settings.repeat, settings.held_back)
            if at not in self._moments:
                self._moments[at] = teacher_moment(unit_rows(psi) for _, psi in features.blocks(rows.used))
            return self._moments[at]

        def labelled() -> tuple[Tensor, Tensor, int]:
            known = torch.from_numpy(rows.labels[rows.labelled])
            return features.rows(rows.labelled, torch.float64), known, len(self.joined.classes)

        prior = make_prior(
            settings.prior,
            width=features.width,
            student=student.width,
            seed=settings.seed,
            slices=features.slices,
            moment=moment,
            labelled=labelled,
        )
        training = StudentTraining(
            student=student,
            prior=prior,
            beta=settings.beta,
            rows=rows,
            images=self._images,
            features=features,
            spec=recipe.train,
            seed=settings.seed,
            refresh=recipe.teach.refresh,
            name=settings.name,
            chosen=recipe.teach.beta == "choose",
        )
        return train(training, checkpoint, meta, on_epoch)

    def _key(self, settings: StudentSettings) -> dict[str, Any]:
        """All that decides a student's bytes."""
        recipe = self.recipe
        spec = msgspec.to_builtins(recipe.train)
        student = msgspec.to_builtins(recipe.student)
        if recipe.student.weights != RANDOM:
            weights = BackboneSpec(model=recipe.student.model, weights=recipe.student.weights)
            if weights_kind(weights, STUDENT) in ("file", "folder") and (file := weights_file(weights)) is not None:
                student["weights"] = file_digest(file)  # because other weights may come to lie there
        decides: dict[str, Any] = {
            "settings": asdict(settings),
            "rows": self._rows,
            "student": student,
            "preprocess": recipe.preprocess,
            "train": {k: spec[k] for k in ("epochs", "batch", "rate", "weight_decay", "augment")},
        }
        if settings.held_back:
            decides["hold_out"] = [recipe.teach.hold_out, HOLD_OUT_SEED]
        if settings.prior != "none":
            decides["prior"] = {
                "teachers": [[t.name, t.weight, self._shards[t.name]] for t in self.joined.teachers],
                "standardise": recipe.teach.standardise,
                "refresh": recipe.teach.refresh,
                "rate": recipe.train.prior_rate,
                "unlabelled": recipe.train.unlabelled,
            }
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(decides))
        return plain


def _text(beta: float) -> str:
    """β in six digits, or in all of its digits if it has more: no two β have one text, and so one folder."""
    return short if float(short := f"{beta:g}") == beta else repr(beta)


def _plain(settings: StudentSettings) -> StudentSettings:
    """Without a prior no teacher is read, so one student serves every noise and repeat."""
    return replace(settings, noise=0, repeat=1) if settings.prior == "none" else settings


def per_class(rows: np.ndarray, ids: list[str], labels: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` rows of each class: the first in order of a hash of their ids."""
    place = dict(zip(ids, rows.tolist(), strict=True))
    taken: list[int] = []
    seen: dict[int, int] = {}
    for i in in_order(ids, 0):
        label = int(labels[place[i]])
        if seen.get(label, 0) < count:
            seen[label] = seen.get(label, 0) + 1
            taken.append(place[i])
    return np.array(sorted(taken), np.int64)


def _read_outcome(file: Path, key: dict[str, Any]) -> StudentOutcome | None:
    """The outcome that is kept, if it was made under ``key``."""
    if not file.is_file():
        return None
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return msgspec.convert(held["outcome"], StudentOutcome) if held["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise FormatError(f"{file} is no outcome of a student, or damaged", got=error, do="delete it") from error
