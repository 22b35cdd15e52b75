"""What a recipe may say about private training; imports no torch, because parsing must stay fast."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from taftcache.errors import RecipeError

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e100)]
# A unit of the grid is 2^40 times smaller; nearer to zero float64 has no digits left for it, and the bound is lost.
Norm = Annotated[float, msgspec.Meta(ge=1e-100, le=1e100)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
# Below these, the sampler has no multiple of 2^-32 and the accountant no tail.
Rate = Annotated[float, msgspec.Meta(ge=2**-32, lt=1)]
Delta = Annotated[float, msgspec.Meta(ge=1e-15, lt=1)]
Mechanism = Literal["descent", "sampled-descent", "least-squares", "covariance"]
Relation = Literal["add-remove", "replace-one"]


class PrivacySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ``taftcache train --private`` promises, and how it keeps it (docs/privacy.md).

    epsilon: ε of the promise (ε, δ) for each shard's component. With ``multiplier``, ε follows from the noise instead.
    delta: δ of that promise.
    multiplier: noise over sensitivity at each step, σ/Δ; by default what epsilon needs. "sampled-descent" takes 0.1 at
        least.
    relation: neighbours differ by one row more or less ("add-remove", Δ = C), or in one row ("replace-one", Δ = 2C).
    mechanism: "descent" takes all rows at each step, "sampled-descent" draws each row with probability ``rate``; for
        the head alone also "least-squares" from noisy sufficient statistics, and "covariance", descent preconditioned
        by the noisy second moment of the features.
    steps: how many steps the descent takes.
    rate: the probability of drawing a row, rounded to a multiple of 2^-32.
    clip: C, the largest norm of one row's gradient.
    clipping: "clip" to at most C, or "normalise" to exactly C.
    learning_rate: step size for the mean of the gradients of norm C; "auto" needs no tuning.
    momentum: heavy-ball momentum.
    loss: "cross-entropy" or "rsl" with the kappa and alpha of [objective].
    logits: "tangent" learns from J Δw alone, as the paper does, which is the same as starting with the head at zero;
        "full" learns from f + J Δw.
    budget: the epsilon that all private trainings of a shard may spend together; by default, epsilon. The first
        training fixes it for the store, with delta and relation.
    """

    epsilon: Positive = 3.0
    delta: Delta = 1e-5
    multiplier: Positive | None = None
    relation: Relation = "add-remove"
    mechanism: Mechanism = "descent"
    steps: Count = 50
    rate: Rate = 0.1
    clip: Norm = 1.0
    clipping: Literal["clip", "normalise"] = "clip"
    learning_rate: Positive | Literal["auto"] = "auto"
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    loss: Literal["cross-entropy", "rsl"] = "cross-entropy"
    logits: Literal["tangent", "full"] = "tangent"
    budget: Positive | None = None

    def __post_init__(self) -> None:
        if self.mechanism == "sampled-descent" and self.relation == "replace-one":
            raise RecipeError(
                "cannot account for sampled-descent under replace-one: only adding and removing rows has an accountant",
                got='relation = "replace-one", mechanism = "sampled-descent"',
                do='set privacy.relation = "add-remove", or privacy.mechanism = "descent"',
            )
