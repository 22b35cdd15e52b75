"""What a recipe may say about teachers, students and priors; imports no torch, because parsing must stay fast."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from taftcache.errors import RecipeError
from taftcache.recipe_sections import Count, Float32, NotNegative, Positive, Share

NoiseCount = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
PriorName = Literal[
    "none", "aft", "aft-nnls", "kd", "kd-logits", "kkd", "b-tuning", "rkd", "aft-fixed", "aft-dense", "aft-rbf"
]


class TeacherSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One teacher: a store of features, or the recipe that makes it.

    name: its name in tables and plots; by default the store's folder.
    store: the store's folder.
    recipe: instead, a recipe for ``taftcache extract``; the store is made from it if it is missing.
    weight: multiplies the teacher's features after they are standardised; in kernels it counts squared.
    """

    name: str = ""
    store: str | None = None
    recipe: str | None = None
    weight: Positive = 1.0

    def __post_init__(self) -> None:
        if (self.store is None) == (self.recipe is None):
            raise RecipeError(
                "a teacher needs either a store of features or the recipe that makes one, not both",
                got=f"store = {self.store!r}, recipe = {self.recipe!r}",
                do="give one of the two",
            )


class StudentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which model is trained; all of it moves, and its head is new.

    model: a timm architecture; leave it out when the weights name it.
    weights: "random", or as ``backbone.weights``.
    model_args: passed on to ``timm.create_model``.
    blocks: how many of the model's first blocks to keep, with its last norm and the new head; all by default.
    """

    model: str | None = None
    weights: str = "bundled"
    model_args: dict[str, Any] = {}
    blocks: Count | None = None

    def __post_init__(self) -> None:
        if self.weights == "random" and self.model is None:
            raise RecipeError(
                "random weights need the name of a model, and student.model is empty", do="set student.model"
            )


class TeachSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The prior R on the student's features, and how strong it is.

    prior: "aft" is the authors' form, "aft-nnls" finds the features' weights in closed form, "aft-fixed" keeps them
        equal, "aft-dense" maps features without a kernel, "aft-rbf" takes a Gaussian kernel; "kd", "kd-logits", "kkd",
        "b-tuning" and "rkd" are others' methods, "none" is standard transfer learning.
    beta: the weight of R; "choose" picks it by the accuracy on labelled training images that are held out.
    grid: the values of beta to choose from; 0 is always among them.
    hold_out: the part of the labelled training images that is held out for that choice.
    standardise: bring each teacher feature to mean 0 and deviation 1 over the training images; false: only to mean 0.
    refresh: epochs between two solves for the features' weights (aft-nnls).
    noise: how many features of pure noise to add, to see what a prior makes of them.
    """

    prior: PriorName = "aft-nnls"
    beta: NotNegative | Literal["choose"] = "choose"
    grid: list[NotNegative] = msgspec.field(default_factory=lambda: [0.0, 0.2, 1.0, 5.0, 25.0, 125.0])
    hold_out: Share = 0.2
    standardise: bool = True
    refresh: Count = 1
    noise: NoiseCount = 0


class StudentTrainingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ordinary training of the student: Adam, a cosine schedule to zero, batches shuffled anew in every epoch.

    epochs: passes over the training images.
    batch: images in a step; the last batches of an epoch are made equal rather than one left short.
    rate: Adam's step for the student's weights at the start; it falls to zero along a cosine.
    prior_rate: the same for what the prior itself learns beside them: the weights ρ of "aft" and "aft-rbf", the map of
        "aft-dense", "kd" and "kkd", the read-out of "b-tuning". The other priors learn nothing.
    weight_decay: decoupled, for the student's weights.
    augment: "flip" mirrors, "shift" mirrors and moves by up to an eighth; teachers see the images as they are.
    seeds: one student for each; beta is chosen with the first.
    per_class: labelled images kept of each class, chosen by a hash of their ids; all by default.
    unlabelled: whether to drop the other images, or to use them without their labels, because R needs none.
    checkpoint: epochs between two checkpoints.
    memory: bytes that may hold decoded images ("2GiB"); those beyond are decoded anew in every epoch.
    """

    epochs: Count = 30
    batch: Annotated[int, msgspec.Meta(ge=2)] = 128
    rate: Float32 = 1e-3
    prior_rate: Float32 = 1e-2
    weight_decay: NotNegative = 0.0
    augment: Literal["none", "flip", "shift"] = "none"
    seeds: list[Annotated[int, msgspec.Meta(ge=0)]] = msgspec.field(default_factory=lambda: [0])
    per_class: Count | None = None
    unlabelled: Literal["drop", "use"] = "drop"
    checkpoint: Count = 1
    memory: Annotated[str, msgspec.Meta(description='a size such as "2GiB"')] = "2GiB"

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise RecipeError(
                "train.seeds names no seed, or one twice", got=f"seeds = {self.seeds}", do="name each seed once"
            )


class TeachReportSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the student is compared with; each entry trains more students.

    priors: other priors to train with in the same way, for the table.
    probes: linear probes of each teacher and of all together.
    latency: time of one image through the student and through the teachers' whole models.
    noise: numbers of noise features, plotted as a curve for each of ``curves``.
    per_class: numbers of labelled images per class, plotted as a curve for each of ``curves``.
    repeat: how many times to give the first teacher (more than once: the correlated-teacher test).
    curves: priors to plot curves for; the recipe's own by default.
    """

    priors: list[PriorName] = []
    probes: bool = True
    latency: bool = True
    noise: list[NoiseCount] = []
    per_class: list[Count] = []
    repeat: list[Count] = []
    curves: list[PriorName] = []
