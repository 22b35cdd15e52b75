"""Sections of a recipe: what each key may be, and means."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from taftcache.errors import RecipeError
from taftcache.tangent.spec import check_seed

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e100)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e100)]
Float32 = Annotated[float, msgspec.Meta(gt=0, le=1e30)]  # float32 holds it, and ten times it: Adam's first step
Radius = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]  # the bounds of a solve, which this may not import
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Stored = Literal["float16", "float32", "int8"]


def check_place(key: str, path: str | None, below: str) -> None:
    """RecipeError for an empty ``path`` of a recipe, its ``key``; without one, the folder lies in ``below``."""
    if path is not None and not str(path).strip():  # a program may give a Path
        raise RecipeError(
            f"{key} is empty",
            got=f"{key} = {path!r}",
            do=f"name a folder; without {key} it is {below}/NAME, with the recipe's name",
        )


class StoreSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where features are kept and how the samples are split into shards.

    path: the store's folder, ``stores/<recipe name>`` by default; a relative path starts from the current folder.
        ``${VAR}`` and ``~`` are expanded.
    shards: how many parts the training samples are split into; without a recipe, ``import`` counts rows and classes.
    plan: "hash" places a sample by a keyed hash of its id, "balanced" is the paper's uniform split.
    seed: for the hashes that split, hold out and order the samples.
    cache: what is kept of a sample. "auto" picks the least that is exact for tangent.train: the "tokens" that enter the
        tail, the "attended" means of its heads, the "residual" row after attention, or the "feature" that enters the
        head. Only "tokens" serve every base point and every choice of parameters.
    dtype: the dtype of cached activations; "int8" keeps each token's numbers in 8 bits, with a scale for each token.
    chunk_rows: rows per chunk; "auto" aims at 8 MiB.
    """

    path: str | None = None
    shards: Count = 4
    plan: Literal["hash", "balanced"] = "hash"
    seed: int = 0
    cache: Literal["auto", "tokens", "attended", "residual", "feature"] = "auto"
    dtype: Stored = "float16"
    chunk_rows: Count | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        check_seed("store.seed", self.seed)
        check_place("store.path", self.path, "stores")


class ExtractSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How stage 1 runs; none of it changes a byte of what is stored.

    workers: threads that decode and, on a CPU, run the layers; 0 picks one per core.
    """

    workers: Annotated[int, msgspec.Meta(ge=0)] = 0


class ObjectiveSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is minimised: mean loss + λ/2 ‖Δw‖², within a ball if asked for.

    loss: the loss for classes. "rsl" is the rescaled square loss RSL(α, κ), "mse" is the same with α = κ = 1: squared
        error against one-hot classes; or "cross_entropy".
    alpha: weight of the true class in "rsl"; "auto" is √K for K classes, or 1 when repeating the paper, which states
        none.
    kappa: the logit that "rsl" pulls the true class to.
    ridge: λ; because the loss is a mean, λ means the same when samples leave. "auto" chooses it for each solve, from
        its own rows alone.
    radius: R of a ball ‖Δw‖ ≤ R.
    class_weights: "none", "balanced" (from the rows of each solve), or one number for each class.
    jvp_only: leave the base model's logits out of the loss, as differentially private training does; predictions
        include them.
    """

    loss: Literal["rsl", "mse", "cross_entropy"] = "rsl"
    alpha: Positive | Literal["auto"] = "auto"
    kappa: Positive = 15.0
    ridge: Positive | Literal["auto"] = "auto"
    radius: Positive | None = None
    class_weights: Literal["none", "balanced"] | list[NotNegative] = "none"
    jvp_only: bool = False


class PriorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A prior on the tangent model's features, convex together with the loss (see docs/teaching.md).

    β/v [ 1/2 mean ‖φ − Bᵀψ‖² + ν/2 ‖B‖² + τ Σ_a ‖B_a‖ ] is added to the objective, where v is the features' mean
    square at the base point. B_a is what teacher feature a contributes; where it does not help, B_a = 0 exactly.

    teachers: folders of stores whose features (kind "feature") teach; without any there is no prior.
    beta: β.
    sparsity: τ, relative to the least value that would make every feature useless at the base point.
    shrinkage: ν; teacher features have mean square 1.
    """

    teachers: list[str] = []
    beta: Positive = 1.0
    sparsity: NotNegative = 0.05
    shrinkage: Positive = 1e-2


class SolverSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When the solve ends and how it computes.

    method: "auto" picks one to suit the problem (docs/solvers.md); "conjugate" takes conjugate gradients on the
        parameters, not in the space of the rows.
    tolerance: the gradient norm to stop at, in float64, relative to the norm at Δw = 0. "decisive" goes on instead
        until the certified distance is a twelfth of how far removing a typical row would move Δw, by an estimate, so
        that a receipt can decide about its removal; "auto" goes to 1e-6, and then on to that distance if the estimate
        is good.
    max_passes: the most passes over the shard's rows in one solve, besides those that choose λ and those of the proof.
    proof_passes: passes spent on closer bounds after a solve.
    precision: how inner products are computed; certificates are always float64.
    memory: bytes ("2GiB") that may hold prepared rows between passes, and models that are scored together; "auto" is a
        quarter of what is free when that begins. The rest streams, and the result has the same bytes.
    """

    method: Literal["auto", "conjugate"] = "auto"
    tolerance: Share | Literal["auto", "decisive"] = "auto"
    max_passes: Count = 1000
    proof_passes: Annotated[int, msgspec.Meta(ge=0)] = 0
    precision: Literal["float32", "float64"] = "float32"
    memory: Annotated[str, msgspec.Meta(description='a size such as "2GiB", or "auto"')] = "auto"

    @property
    def relative(self) -> float:
        """``tolerance`` as a number; if it is a word, that of a solve that decides about no removal."""
        return 1e-6 if isinstance(self.tolerance, str) else self.tolerance


ByRows = Literal["rows", "class-rows"]


class ComposeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How components become one model.

    mode: "mean" makes the paper's uniform average; "weighted" also makes models/weighted; "exact" also makes
        models/exact, the optimum over the rows of all shards; "auto" makes models/exact if the store holds the rows
        of all that is composed, in several shards, and neither privacy nor subtraction forbids it.
    weights: for "weighted": a coefficient for each component, summing to one; "rows", each shard's share of the rows;
        or, for a head that is trained alone, "class-rows", for each class each shard's share of that class's rows.
    """

    mode: Literal["auto", "mean", "weighted", "exact"] = "auto"
    weights: dict[str, float] | ByRows = "rows"


class ForgetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run forgets at its end.

    samples: ids, as ``taftcache inspect`` lists them.
    mode: "retrain" solves the affected shards and models/exact again from zero, without the rows; "subtract" leaves
        those shards out of the composition and solves none of them; "resolve" is "retrain", but solves models/exact
        starting from where it is.
    """

    samples: list[str] = []
    mode: Literal["subtract", "retrain", "resolve"] = "retrain"


Report = Literal[
    "table1", "table2", "table3", "table7", "figure1a", "figure1b", "figure1c", "figure2a", "figure2b", "figure2c"
]


class CompareSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ``taftcache compare`` measures: the paper's tables and figures, from one cache.

    reports: which ones to make (docs/paper.md). What several of them need is trained once. With none, the recipe is not
        a comparison.
    presets: "paper" is the paper's optimiser, schedule and grids; "exact" the certified optimum with λ chosen from the
        rows.
    depths: for "table1": how many of the last blocks are trained, each depth from a store of its own; by default only
        the recipe's own depth.
    shards: numbers of shards; the rows of the store are split anew for each.
    seeds: how many seeds to use for the split and the base point.
    ridges: values of λ that "exact" chooses from. head_ridges: the same for a head alone, whose best λ is higher.
    rates: learning rates that "paper" and fine-tuning choose from.
    resets: whether the block is re-initialised (PT = F); every method chooses.
    tokens: whether the class token is re-initialised (CLS = T); every method chooses, where there is one.
    epochs, batch: of the paper's schedule.
    decay: λ for "paper", which the paper does not state.
    radii: values of R for "table7".
    ball_kappa: κ for "table7".
    orders: how many random orders to subtract shards in.
    forgotten: fractions of the rows that "figure1c" forgets.
    epsilons: values of ε for "table3".
    private_rates: factors on the private learning rate that both networks of "table3" choose from.
    """

    reports: tuple[Report, ...] = ()
    presets: Annotated[tuple[Literal["paper", "exact"], ...], msgspec.Meta(min_length=1)] = ("paper", "exact")
    depths: tuple[Count, ...] = ()
    shards: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)] = (10, 25, 50)
    seeds: Count = 3
    ridges: Annotated[tuple[Float32, ...], msgspec.Meta(min_length=1)] = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
    head_ridges: Annotated[tuple[Float32, ...], msgspec.Meta(min_length=1)] = (
        1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5,
    )  # fmt: skip
    rates: Annotated[tuple[Float32, ...], msgspec.Meta(min_length=1)] = (1e-3, 1e-4)
    resets: Annotated[tuple[bool, ...], msgspec.Meta(min_length=1)] = (False, True)
    tokens: Annotated[tuple[bool, ...], msgspec.Meta(min_length=1)] = (False, True)
    epochs: Count = 30
    batch: Count = 32
    decay: Annotated[float, msgspec.Meta(ge=0, le=1e30)] = 1e-4
    radii: Annotated[tuple[Radius, ...], msgspec.Meta(min_length=1)] = (1.0, 10.0)
    ball_kappa: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 5.0
    orders: Count = 20
    forgotten: tuple[Annotated[float, msgspec.Meta(gt=0, lt=1)], ...] = (0.1, 0.25, 0.5)
    epsilons: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (1.0, 3.0, 8.0)
    private_rates: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (0.3, 1.0, 3.0)
