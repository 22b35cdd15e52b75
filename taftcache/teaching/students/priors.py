"""The priors R(θ): how far a student's features are from what the teachers' features can explain.

Every prior is a module with its own parameters and buffers, drawn from its own seed, so that a student's training
draws the same numbers whatever the prior. Letters: φ [b,d] student, ψ [b,p] teachers; logits [b,K] of φ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import log, sqrt

import torch
from torch import Tensor, nn

from taftcache.teaching.evidence import LinearReadout, posterior, softmax_regression
from taftcache.teaching.moments import student_moments
from taftcache.teaching.spec import PriorName
from taftcache.teaching.students.kernels import cosine_distance, cosine_rows, gaussian_distance, relations, unit_rows
from taftcache.teaching.students.nnls import nnls

TeacherRows = Callable[[slice], Tensor]
"""ψ in float64 for a slice of the training rows, in the order of φ [n,d]."""

BLOCK_ROWS = 256


class Prior(nn.Module, ABC):
    """R and the parameters it learns. ``refreshes``: whether it needs the features of all rows now and then."""

    refreshes = False

    @abstractmethod
    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        """R of a batch, a scalar."""

    def refresh(self, phi: Tensor, teachers: TeacherRows) -> None:
        """Update from the student's features φ [n,d] of all training rows; nothing by default."""

    def energy(self) -> Tensor | None:
        """What a teacher feature of mean square 1 contributes [p], ≥ 0; None if R does not weigh features."""
        return None


class Kernel(Prior):
    """AFT as its authors run it: T = ψ⊙ρ, ρ = σ(s), s = 0 at the start and learned with the student.

    R = √(mean_ij (K_φ − K_T)² + 1e-8), with rows centred over the batch and of length one. With ``learned = False``,
    ρ keeps its first value; ``gaussian`` takes the kernel exp(cos − 1) instead of cos.
    """

    def __init__(self, width: int, *, learned: bool = True, gaussian: bool = False) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.zeros(width, dtype=torch.float32), requires_grad=learned)
        self._distance = gaussian_distance if gaussian else cosine_distance

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        return self._distance(phi, psi * self.s.sigmoid())

    def energy(self) -> Tensor | None:
        energy: Tensor = self.s.detach().sigmoid().square()
        return energy


class ClosedForm(Prior):
    """AFT with ρ in closed form: R as in ``Kernel``, ρ² = q by non-negative least squares of K_φ on the features.

    q is solved for anew at each refresh, from moments over all training rows and off the diagonal, on which batches and
    step size have no influence. For these kernels to be R's, φ is centred there, and the rows of φ and of ψ are scaled
    to length one. If no feature agrees with the student at all (q = 0), the weights stay as they were.

    Even for a feature that is independent of φ, b differs from zero by chance, with variance 2 k A_aa / n(n−1), so half
    of all such features would be let in. Therefore √(2 log p) of these deviations, which the largest of p reaches
    (Donoho and Johnstone 1994), are subtracted from b first.

    Args:
        moment: A [p,p] of ``teacher_moment``, of rows of length one.
    """

    refreshes = True

    def __init__(self, moment: Tensor) -> None:
        super().__init__()
        self._moment = moment
        self.register_buffer("q", torch.ones(len(moment), dtype=torch.float64))

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        return cosine_distance(phi, psi * self.get_buffer("q").sqrt().to(psi))

    def refresh(self, phi: Tensor, teachers: TeacherRows) -> None:
        rows = unit_rows(phi.double() - phi.double().mean(0))
        parts = [slice(k, min(k + BLOCK_ROWS, len(rows))) for k in range(0, len(rows), BLOCK_ROWS)]
        b, k = student_moments((rows[part], unit_rows(teachers(part))) for part in parts)
        found = nnls(self._moment, b.to(self._moment) - chance(self._moment, k, len(rows)))
        if found.support:
            self.get_buffer("q").copy_(found.q / found.q.max())  # R does not depend on the scale; the largest is 1

    def energy(self) -> Tensor | None:
        return self.get_buffer("q")


def chance(moment: Tensor, k: float, n: int) -> Tensor:
    """What b [p] reaches by chance for the largest of p features that are independent of the student.

    Args:
        moment: A [p,p]. k: mean square of K_φ over pairs. n: rows.
    """
    deviation = (2 * max(k, 0.0) * moment.diagonal() / (n * (n - 1))).sqrt()
    largest: float = (2 * log(max(2, len(moment)))) ** 0.5
    return largest * deviation


class Dense(Prior):
    """AFT without a kernel: the student's rows are a dense linear map of the teachers', √(mean ‖φ̂ − T̂‖² + 1e-8)."""

    def __init__(self, width: int, into: int, generator: torch.Generator) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.randn(into, width, generator=generator, dtype=torch.float32) / sqrt(width))

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        difference = cosine_rows(phi) - cosine_rows(psi @ self.map.T)
        return (difference.square().sum(1).mean() + 1e-8).sqrt()

    def energy(self) -> Tensor | None:
        return self.map.detach().square().sum(0)


class Distillation(Prior):
    """Feature distillation: all teacher features should follow from the student's, R = mean ‖ψ − Vφ − c‖²/p."""

    def __init__(self, width: int, of: int, generator: torch.Generator) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.randn(width, of, generator=generator, dtype=torch.float32) / sqrt(of))
        self.offset = nn.Parameter(torch.zeros(width, dtype=torch.float32))

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        return (psi - phi @ self.map.T - self.offset).square().mean()


class KernelDistillation(Prior):
    """Feature distillation with a kernel: the kernel of a learned linear map of φ should equal that of all of ψ.

    It is to ``Distillation`` as ``Kernel`` is to ``Dense``. R is the same distance as in ``Kernel``, but the map that
    is learned applies to the student, whose features must contain all that the teachers' do. The map is square, because
    a wider one has no further kernels, and starts as the identity.
    """

    def __init__(self, of: int) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.eye(of, dtype=torch.float32))

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        return cosine_distance(phi @ self.map.T, psi)


class LogitDistillation(Prior):
    """Distillation of predictions (Hinton et al. 2015): R = T² KL(softmax(z/T) ‖ softmax(logits/T)), T = 2.

    z are the logits of a softmax regression on the teachers' features, fitted to the labelled training rows.

    Args:
        teacher: gives z [b,K] from ψ.
    """

    TEMPERATURE = 2.0

    def __init__(self, teacher: LinearReadout) -> None:
        super().__init__()
        self.register_buffer("weight", teacher.weight.float())
        self.register_buffer("offset", (teacher.offset - teacher.mean @ teacher.weight).float())

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        target = ((psi @ self.get_buffer("weight") + self.get_buffer("offset")) / self.TEMPERATURE).log_softmax(1)
        own = (logits / self.TEMPERATURE).log_softmax(1)
        return self.TEMPERATURE**2 * (target.exp() * (target - own)).sum(1).mean()


class BayesianTuning(Prior):
    """B-Tuning (You et al. 2022): a linear read-out of φ is fitted to the teachers' predictions.

    Each teacher predicts one-hot labels by the posterior mean of a Bayesian linear model on its features; the
    predictions are averaged with softmax weights of the models' log evidence (LogME, temperature 0.1).
    R = mean over rows of ‖Uφ + c − ȳ‖².

    Args:
        weight: [p,K] of the averaged prediction ȳ = ψ weight + offset.
    """

    TEMPERATURE = 0.1

    def __init__(self, weight: Tensor, offset: Tensor, of: int) -> None:
        super().__init__()
        self.register_buffer("weight", weight.float())
        self.register_buffer("offset", offset.float())
        # From zero: a random read-out of K classes is far off at first and would shrink the features to nothing.
        self.map = nn.Parameter(torch.zeros(weight.shape[1], of, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(weight.shape[1], dtype=torch.float32))

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        predicted = psi @ self.get_buffer("weight") + self.get_buffer("offset")
        return (phi @ self.map.T + self.bias - predicted).square().sum(1).mean()


class Relations(Prior):
    """RKD (Park et al. 2019): distances and angles among a batch's rows should be those of the teachers."""

    def forward(self, phi: Tensor, psi: Tensor, logits: Tensor) -> Tensor:
        return relations(phi, psi)


def make_prior(
    name: PriorName,
    *,
    width: int,
    student: int,
    seed: int,
    slices: Mapping[str, slice],
    moment: Callable[[], Tensor],
    labelled: Callable[[], tuple[Tensor, Tensor, int]],
) -> Prior | None:
    """The prior of that name; None for "none".

    Args:
        width: p. student: d. seed: for what the prior draws.
        slices: teacher → its features.
        moment: A of the teachers, for "aft-nnls".
        labelled: ψ and labels of the labelled training rows, and K, for "b-tuning" and "kd-logits".
    """
    generator = torch.Generator().manual_seed(seed)
    if name == "none":
        return None
    if name == "aft-nnls":
        return ClosedForm(moment())
    if name == "aft-dense":
        return Dense(width, student, generator)
    if name == "kd":
        return Distillation(width, student, generator)
    if name == "kkd":
        return KernelDistillation(student)
    if name == "kd-logits":
        return LogitDistillation(softmax_regression(*labelled()))
    if name == "rkd":
        return Relations()
    if name == "b-tuning":
        return _bayesian(*labelled(), slices, student)
    return Kernel(width, learned=name != "aft-fixed", gaussian=name == "aft-rbf")


def _bayesian(psi: Tensor, labels: Tensor, classes: int, slices: Mapping[str, slice], student: int) -> BayesianTuning:
    found = {name: posterior(psi[:, where], labels, classes) for name, where in slices.items()}
    evidence = torch.tensor([f.evidence for f in found.values()], dtype=torch.float64)
    shares = torch.softmax(evidence / BayesianTuning.TEMPERATURE, 0)
    weight = torch.zeros(psi.shape[1], classes, dtype=torch.float64)
    offset = torch.zeros(classes, dtype=torch.float64)
    for share, (name, f) in zip(shares, found.items(), strict=True):
        weight[slices[name]] = share * f.readout.weight
        offset += share * (f.readout.offset - f.readout.mean @ f.readout.weight)
    return BayesianTuning(weight, offset, student)
