"""One student's training: CE + β·R, from images and cached teacher features, resumable to the same bytes.

Everything random in an epoch comes from (seed, epoch): the order, the augmentation, dropout. So a checkpoint holds no
generator state, and an interrupted run ends with the same bytes as an undisturbed one.
"""

from __future__ import annotations

import math
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from taftcache.backbone.student import Student
from taftcache.errors import SolveError
from taftcache.teaching.features import TeacherFeatures
from taftcache.teaching.spec import StudentTrainingSpec
from taftcache.teaching.students.checkpoint import optimiser_tensors, read_tensors, restore_optimiser, write_tensors
from taftcache.teaching.students.images import Images
from taftcache.teaching.students.priors import Prior

EVALUATION_BATCH = 256
CHECKPOINT = "checkpoint.safetensors"

OnEpoch = Callable[[int, str], None]
"""Called with the epochs done since the last call and a figure to show."""


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """What a student is trained on: rows of a join.

    labelled: rows whose label counts. unlabelled: rows that only R sees. tested: rows that accuracy is measured on.
    labels: of all rows of the join.
    """

    labelled: np.ndarray
    unlabelled: np.ndarray
    tested: np.ndarray
    labels: np.ndarray

    @property
    def used(self) -> np.ndarray:
        """Rows that train, in ascending order."""
        return np.sort(np.concatenate([self.labelled, self.unlabelled]))


@dataclass(frozen=True, kw_only=True)
class StudentTraining:
    """What a student is trained with.

    prior, beta: R and its weight; without a prior, or with β = 0, no row of ``features`` is read.
    refresh: epochs between two readings of all rows' features by the prior.
    name, chosen: the student's name, and whether β was or is to be chosen; for errors.
    """

    student: Student
    prior: Prior | None
    beta: float
    rows: TrainingRows
    images: Images
    features: TeacherFeatures
    spec: StudentTrainingSpec
    seed: int
    refresh: int = 1
    name: str = ""
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class StudentOutcome:
    """A trained student: accuracy on the tested rows, the last epoch's mean loss and R, energy by feature.

    energy: the prior's weight for each feature (such as ρ²) times the feature's mean square, which includes its
        teacher's weight.
    tested_loss: mean cross entropy on the tested rows.
    right: which of them it gets right, in their order: one bit per row, packed, base64.
    """

    accuracy: float
    loss: float
    penalty: float
    epochs: int
    steps: int
    seconds: float
    energy: list[float] | None = None
    tested_loss: float = float("nan")
    right: str = ""


def train(training: StudentTraining, checkpoint: Path, meta: dict[str, Any], on_epoch: OnEpoch) -> StudentOutcome:
    """Train to the end, going on from the file ``checkpoint`` if it was made under the same ``key`` of ``meta``.

    β = 0 is standard transfer learning: no prior, teacher or unlabelled image is read, and the student's weights do not
    depend on them. The checkpoint stays until the student is kept.

    Raises:
        SolveError: a loss that is not finite. KeyboardInterrupt: when interrupted; the last checkpoint is kept.
    """
    begin = time.perf_counter()
    training = replace(training, prior=None) if training.beta == 0 else training
    spec, prior, rows = training.spec, training.prior, training.rows
    run = _Run(training)
    start = 0
    if checkpoint.is_file():
        tensors, held = read_tensors(checkpoint)
        if held["key"] == meta["key"]:
            start = held["epoch"]
            run.restore(tensors)
    on_epoch(start, "")
    for epoch in range(start, spec.epochs):
        if prior is not None and prior.refreshes and epoch % training.refresh == 0:
            prior.refresh(run.features(), run.teachers)
        loss, penalty = run.epoch(epoch)
        if not math.isfinite(loss + penalty):
            raise SolveError(
                f"the loss of the student {training.name} is not finite in epoch {epoch}",
                got=f"cross entropy {loss}, R {penalty}",
                do="lower train.rate" + ("" if prior is None else f" or teach.{'grid' if training.chosen else 'beta'}"),
            )
        run.history.append([loss, penalty])
        if (epoch + 1) % spec.checkpoint == 0 and epoch + 1 < spec.epochs:
            write_tensors(checkpoint, run.tensors(), {**meta, "epoch": epoch + 1})
        on_epoch(1, f"loss {loss:.3f}, R {penalty:.3f}")
    energy = None if prior is None else prior.energy()
    loss, penalty = run.history[-1] if run.history else (float("nan"), 0.0)
    right, losses = measured(training.student, training.images, rows.tested, rows.labels)
    return StudentOutcome(
        accuracy=int(right.sum()) / len(right) if len(right) else float("nan"),
        loss=loss,
        penalty=penalty,
        epochs=spec.epochs,
        steps=run.steps,
        seconds=time.perf_counter() - begin,
        energy=None if energy is None else (energy.double().cpu().numpy() * training.features.power).tolist(),
        tested_loss=float(losses.mean()) if len(losses) else float("nan"),
        right=b64encode(np.packbits(right).tobytes()).decode(),
    )


def measured(student: Student, images: Images, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of ``rows`` the student gives their own label, bool [n], and the cross entropy of each [n]."""
    right, losses = [np.zeros(0, bool)], [np.zeros(0)]
    for index, _, logits in _evaluated(student, images, rows):
        known = torch.from_numpy(labels[index]).to(logits.device)
        right.append((logits.argmax(1) == known).cpu().numpy())
        losses.append(cross_entropy(logits.double(), known, reduction="none").cpu().numpy())
    return np.concatenate(right), np.concatenate(losses)


def _evaluated(student: Student, images: Images, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Row numbers, features and logits in evaluation mode, in blocks."""
    student.model.eval()
    generator = torch.Generator()
    with torch.inference_mode():
        for at in range(0, len(rows), EVALUATION_BATCH):
            index = rows[at : at + EVALUATION_BATCH]
            yield index, *student(images.batch(index, student.backbone.device, "none", generator))


class _Run:
    """The state of a training under way."""

    def __init__(self, training: StudentTraining) -> None:
        rows, spec, prior = training.rows, training.spec, training.prior
        student, self._device = training.student, training.student.backbone.device
        if prior is not None:
            prior.to(self._device)
        self._student, self._prior, self._training = student, prior, training
        # Not sorted: an epoch's order permutes the rows as they stand here.
        self._rows = rows.labelled if prior is None else np.concatenate([rows.labelled, rows.unlabelled])
        self._known = np.zeros(len(rows.labels), bool)
        self._known[rows.labelled] = True
        self._batches = -(-len(self._rows) // spec.batch)
        self.steps = spec.epochs * self._batches
        self.history: list[list[float]] = []
        groups = [{"params": list(student.model.parameters()), "lr": spec.rate, "weight_decay": spec.weight_decay}]
        learned = [p for p in prior.parameters() if p.requires_grad] if prior is not None else []
        if learned:
            groups.append({"params": learned, "lr": spec.prior_rate, "weight_decay": 0.0})
        self._optimiser = torch.optim.AdamW(groups)
        self._rates = [float(group["lr"]) for group in groups]  # type: ignore[arg-type]

    def order(self, epoch: int) -> list[np.ndarray]:
        """The rows of each step of an epoch: all of them, once, in batches whose sizes differ by at most one."""
        rng = np.random.default_rng([self._training.seed, epoch])
        return np.array_split(rng.permutation(self._rows), self._batches)

    def epoch(self, epoch: int) -> tuple[float, float]:
        """One pass; mean cross entropy and mean R."""
        training, prior, seed = self._training, self._prior, self._training.seed
        self._student.model.train()
        generator = torch.Generator().manual_seed(_mixed(seed, epoch))
        losses, penalties = [], []
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(_mixed(seed, epoch) + 1)
            for number, index in enumerate(self.order(epoch)):
                self._set_rate((epoch * self._batches + number) / self.steps)
                x = training.images.batch(index, self._device, training.spec.augment, generator)
                phi, logits = self._student(x)
                known = torch.from_numpy(self._known[index])
                loss = torch.zeros((), device=self._device)
                if known.any():
                    labels = torch.from_numpy(training.rows.labels[index])[known].to(self._device)
                    loss = cross_entropy(logits[known.to(self._device)], labels)
                losses.append(loss.item())
                if prior is not None:
                    penalty = prior(phi, training.features.rows(index).to(self._device), logits)
                    penalties.append(penalty.item())
                    loss = loss + training.beta * penalty
                self._optimiser.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                self._optimiser.step()
        return float(np.mean(losses)), float(np.mean(penalties)) if penalties else 0.0

    def features(self) -> Tensor:
        """φ [n,d] of all rows in use, in evaluation mode and without augmentation."""
        return torch.cat([phi for _, phi, _ in _evaluated(self._student, self._training.images, self._rows)])

    def teachers(self, part: slice) -> Tensor:
        """ψ of some of those rows in float64."""
        return self._training.features.rows(self._rows[part], torch.float64).to(self._device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a resumed training needs: model, prior, optimiser and history."""
        held = {f"model.{n}": t for n, t in self._student.model.state_dict().items()}
        if self._prior is not None:
            held |= {f"prior.{n}": t for n, t in self._prior.state_dict().items()}
        held |= {f"adam.{n}": t for n, t in optimiser_tensors(self._optimiser).items()}
        return held | {"history": torch.tensor(self.history, dtype=torch.float64)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put ``tensors`` back."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        self._student.model.load_state_dict(part("model."))
        if self._prior is not None:
            self._prior.load_state_dict(part("prior."))
        restore_optimiser(self._optimiser, part("adam."))
        self.history = tensors["history"].tolist()

    def _set_rate(self, progress: float) -> None:
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * progress))


def _mixed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
