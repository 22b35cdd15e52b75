"""All students of one recipe: each trained once, kept on disk with what it was trained under, chosen β included."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from taftcache.backbone.model import Backbone, load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Source
from taftcache.backbone.student import Student, build_student
from taftcache.cache.format.plan import held_out, in_order
from taftcache.errors import DataError, FormatError
from taftcache.recipe import parse_bytes, parse_recipe
from taftcache.report.write import write_bytes
from taftcache.teaching.features import TeacherFeatures
from taftcache.teaching.joined import Joined
from taftcache.teaching.moments import teacher_moment
from taftcache.teaching.recipe import TransferRecipe
from taftcache.teaching.spec import PriorName
from taftcache.teaching.students.images import Images
from taftcache.teaching.students.kernels import unit_rows
from taftcache.teaching.students.priors import make_prior
from taftcache.teaching.students.trainer import STUDENT, Outcome, Schoolwork, Told, train

OUTCOME = "outcome.json"
# A number of its own: a store's held-out rows are chosen by the same hash under the store's seed, and what is left
# of them under that seed is nothing.
HOLD_OUT_SEED = 0x7EAC4
Bar = Callable[[str, int], AbstractContextManager[Told]]
"""(name, epochs) to something that shows a training while the context lasts."""


@dataclass(frozen=True)
class Desk:
    """One student: everything in which it differs from the others of its recipe.

    held_back: whether a part of the training rows is held back and tested on (to choose β) instead of the test rows.
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
        parts = [self.prior, f"b{self.beta:g}", f"s{self.seed}"]
        parts += [f"noise{self.noise}"] if self.noise else []
        parts += [f"n{self.per_class}"] if self.per_class else []
        parts += [f"x{self.repeat}"] if self.repeat > 1 else []
        return "-".join([*parts, "choice"] if self.held_back else parts)


class Choice(NamedTuple):
    """The chosen β, and the accuracy on the held-back rows of everything tried."""

    beta: float
    accuracy: dict[str, float]


class Classroom:
    """Trains the recipe's students on one join, and keeps them.

    Args:
        recipe: settings.
        joined: rows of the teachers.
        places: of each row of the join, its source and the image's index there.
        shards: digests of each teacher's shards, by its name.
        records: the recipe that each teacher's store keeps.
        bar: shows a training.
    """

    def __init__(
        self,
        recipe: TransferRecipe,
        joined: Joined,
        places: list[tuple[Source, int]],
        shards: Mapping[str, list[str]],
        records: Mapping[str, dict[str, Any]],
        bar: Bar,
    ) -> None:
        self.recipe, self.joined, self._places, self._bar = recipe, joined, places, bar
        self._shards, self._records = dict(shards), dict(records)
        self._images: Images | None = None
        self._moments: dict[tuple[Any, ...], Tensor] = {}
        self.trained = self.kept = 0
        hasher = blake3()
        for i, label in zip(joined.ids, joined.labels.tolist(), strict=True):
            hasher.update(json.dumps([i, joined.classes[label]]).encode() + b"\n")
        for part in (joined.training, joined.held_out):
            hasher.update(np.ascontiguousarray(part, "<i8").tobytes())
        self._rows = hasher.hexdigest()

    def desk(self, prior: PriorName, beta: float, seed: int, **changes: Any) -> Desk:
        """A student of the recipe's own settings but for ``changes``."""
        own = {"noise": self.recipe.transfer.noise, "per_class": self.recipe.train.per_class, **changes}
        return Desk(prior if beta else "none", float(beta) if prior != "none" else 0.0, seed, **own)

    def outcome(self, desk: Desk) -> Outcome:
        """What became of a student; it is trained unless it was, under the same settings."""
        desk = _plain(desk)
        folder = self.student_file(desk).parent
        key = self._key(desk)
        found = _read_outcome(folder / OUTCOME, key)
        if found is not None:
            self.kept += 1
            return found
        (folder / OUTCOME).unlink(missing_ok=True)
        with self._bar(desk.name, self.recipe.train.epochs) as told:
            outcome = self._train(desk, folder, key, told)
        self.trained += 1
        text = json.dumps({"key": key, "outcome": asdict(outcome)}, indent=1, sort_keys=True)
        write_bytes(folder / OUTCOME, text.encode())
        return outcome

    def student_file(self, desk: Desk) -> Path:
        """Where a trained student lies."""
        return self.recipe.folder / "students" / _plain(desk).name / STUDENT

    def backbone(self, teacher: str) -> Backbone:
        """A teacher's whole model, as its store's recipe names it."""
        recipe = parse_recipe(self._records[teacher], teacher)
        return load_backbone(recipe.backbone, recipe.preprocess, self.recipe.device)

    def choose(self, prior: PriorName, **changes: Any) -> Choice:
        """β by accuracy on a part of the training rows that is held back; the smallest of the best, 0 among them."""
        spec = self.recipe.transfer
        if prior == "none" or spec.beta != "choose":
            return Choice(0.0 if prior == "none" else float(spec.beta), {})
        seed, tried = self.recipe.train.seeds[0], {}
        for beta in sorted({0.0, *spec.grid}):
            tried[beta] = self.outcome(self.desk(prior, beta, seed, held_back=True, **changes)).accuracy
        best = max(tried.values())
        return Choice(
            min(b for b, value in tried.items() if value == best), {f"{b:g}": value for b, value in tried.items()}
        )

    def work(self, desk: Desk) -> Schoolwork:
        """Which rows a student is trained and tested on."""
        joined, spec = self.joined, self.recipe.train
        rows, tested, ids = joined.training, joined.held_out, joined.ids
        if desk.held_back:
            held = held_out([ids[k] for k in rows], self.recipe.transfer.hold_out, HOLD_OUT_SEED)
            back = np.array([ids[k] in held for k in rows])
            if not back.any() or back.all():
                raise DataError(
                    "β is chosen on a part of the training images",
                    got=f"{self.recipe.transfer.hold_out} of {len(rows)} images holds out {int(back.sum())}",
                    do="change transfer.hold_out, or give transfer.beta a number",
                )
            rows, tested = rows[~back], rows[back]
        labelled, rest = rows, rows[:0]
        if desk.per_class is not None:
            labelled = per_class(rows, [ids[k] for k in rows], joined.labels, desk.per_class)
            rest = np.setdiff1d(rows, labelled) if spec.unlabelled == "use" else rest
        return Schoolwork(labelled, rest, tested, joined.labels)

    def features(self, desk: Desk) -> TeacherFeatures:
        """What a prior of this student sees of the teachers."""
        work = self.work(desk)
        return TeacherFeatures(
            self.joined.teachers,
            np.sort(np.concatenate([work.labelled, work.unlabelled])),
            standardise=self.recipe.transfer.standardise,
            noise=desk.noise,
            repeat=desk.repeat,
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
        )

    def _train(self, desk: Desk, folder: Path, key: dict[str, Any], told: Told) -> Outcome:
        recipe, work = self.recipe, self.work(desk)
        student, features = self.student(desk.seed), self.features(desk)
        used = np.sort(np.concatenate([work.labelled, work.unlabelled]))

        def moment() -> Tensor:
            at = (desk.noise, desk.per_class, desk.repeat, desk.held_back)
            if at not in self._moments:
                self._moments[at] = teacher_moment(unit_rows(psi) for _, psi in features.blocks(used))
            return self._moments[at]

        def labelled() -> tuple[Tensor, Tensor, int]:
            known = torch.from_numpy(work.labels[work.labelled])
            return features.rows(work.labelled, torch.float64), known, len(self.joined.classes)

        prior = make_prior(
            desk.prior,
            width=features.width,
            student=student.width,
            seed=desk.seed,
            slices=features.slices,
            moment=moment,
            labelled=labelled,
        )
        if self._images is None:
            self._images = Images(self._places, Preprocess(student.backbone), parse_bytes(recipe.train.memory))
            with self._bar("decode", len(self._places)) as decoded:
                self._images.decode(lambda n: decoded(n, ""))
        return train(
            student,
            prior,
            desk.beta,
            work,
            self._images,
            features,
            recipe.train,
            desk.seed,
            recipe.transfer.refresh,
            folder,
            key,
            told,
        )

    def _key(self, desk: Desk) -> dict[str, Any]:
        """All that decides a student's bytes."""
        recipe = self.recipe
        spec = msgspec.to_builtins(recipe.train)
        settings: dict[str, Any] = {
            "desk": asdict(desk),
            "rows": self._rows,
            "student": recipe.student,
            "preprocess": recipe.preprocess,
            "train": {k: spec[k] for k in ("epochs", "batch", "rate", "weight_decay", "augment")},
        }
        if desk.held_back:
            settings["hold_out"] = [recipe.transfer.hold_out, HOLD_OUT_SEED]
        if desk.prior != "none":
            settings["prior"] = {
                "teachers": [[t.name, t.weight, self._shards[t.name]] for t in self.joined.teachers],
                "standardise": recipe.transfer.standardise,
                "refresh": recipe.transfer.refresh,
                "rate": recipe.train.prior_rate,
                "unlabelled": recipe.train.unlabelled,
            }
        return msgspec.json.decode(msgspec.json.encode(settings))


def _plain(desk: Desk) -> Desk:
    """Without a prior nothing of a teacher is looked at: one student serves every noise and repeat."""
    return replace(desk, noise=0, repeat=1) if desk.prior == "none" else desk


def per_class(rows: np.ndarray, ids: list[str], labels: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` rows of each class: the first in the order of a hash of their ids."""
    place = dict(zip(ids, rows.tolist(), strict=True))
    taken: list[int] = []
    seen: dict[int, int] = {}
    for i in in_order(ids, 0):
        label = int(labels[place[i]])
        if seen.get(label, 0) < count:
            seen[label] = seen.get(label, 0) + 1
            taken.append(place[i])
    return np.array(sorted(taken), np.int64)


def _read_outcome(file: Path, key: dict[str, Any]) -> Outcome | None:
    """What is kept, if it was made under ``key``."""
    if not file.is_file():
        return None
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return Outcome(**held["outcome"]) if held["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError("an outcome is JSON that taftcache wrote", got=f"{file}: {error}", do="delete it") from error
