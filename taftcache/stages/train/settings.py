"""What stage 2 solves with: the recipe's settings, and the base point that they apply to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.backbone.device import float64_device
from taftcache.cache.read.shard import Shard
from taftcache.errors import UntrustedStore
from taftcache.model.component import Component
from taftcache.model.meta import key_parts
from taftcache.model.outdated import Keys
from taftcache.objective.loss import Loss
from taftcache.objective.named import class_weights, named_loss, true_class_weight
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.weights import RowWeights
from taftcache.recipe import Recipe
from taftcache.solve.choosing import row_hashes
from taftcache.solve.methods.span_newton import span_fits
from taftcache.solve.minimise import certify, minimise, through_rows
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.solve.solution import Solution, Status
from taftcache.stages.memory import memory_of
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSource
from taftcache.tangent.spec import Train
from taftcache.teaching.rows import TaughtRows, taught_rows
from taftcache.teaching.tangent_student import Teachers, certificate_at


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A recipe's settings of stage 2 around one base point; they travel together through every solve of a store.

    recipe: [tangent], [objective], [prior], [solver] and [compose] as they are in force.
    base: the base point that its [tangent] section makes of the store's tail.
    refusal: why the recipe's teachers are not opened; None where they are.
    """

    recipe: Recipe
    base: Base
    refusal: UntrustedStore | None = None

    @property
    def train(self) -> Train:
        """Which parameters of the tail move in a component."""
        return self.recipe.tangent.train

    @property
    def loss(self) -> Loss:
        """ℓ."""
        asked = self.recipe.objective
        return named_loss(asked.loss, true_class_weight(asked.alpha, self.base.config.classes), asked.kappa)

    @property
    def chooses_ridge(self) -> bool:
        """Whether λ is chosen from the rows."""
        return self.recipe.objective.ridge == "auto"

    @property
    def goal(self) -> Goal:
        """When a cold solve ends."""
        solver = self.recipe.solver
        return Goal(
            tolerance=solver.relative, max_passes=solver.max_passes, proof_passes=solver.proof_passes,
            decisive=solver.tolerance == "decisive", until_decisive=solver.tolerance == "auto",
        )  # fmt: skip

    @property
    def arithmetic(self) -> Arithmetic:
        """How products with J are computed; BackboneError where the recipe's device is not here."""
        return self.arithmetic_beside(0)

    def arithmetic_beside(self, needed: int) -> Arithmetic:
        """The same, where a solve needs so many bytes beside the rows that it keeps."""
        recipe = self.recipe
        return Arithmetic(
            precision=recipe.solver.precision, memory=memory_of(recipe, needed), device=float64_device(recipe.device)
        )

    def weights(self, sources: Sequence[Shard]) -> RowWeights | None:
        """The weights ω [N] of the rows of ``sources``; None if all are one."""
        labels = torch.from_numpy(np.concatenate([np.asarray(shard.labels, np.int64) for shard in sources]))
        return class_weights(self.recipe.objective.class_weights, labels, self.base.config.classes)

    def groups(self, sources: Sequence[Shard]) -> NDArray[np.uint64] | None:
        """A hash of the group of each row [N] of ``sources``; None if nothing says that rows belong together."""
        data = self.recipe.data
        if data.group is None:
            return None
        names = (data.group_of(i) for shard in sources for i in shard.sample_ids)
        return row_hashes(np.frombuffer(name.encode(), np.uint8) for name in names)

    def at(self, **chosen: Any) -> Settings:
        """The same with other settings of [objective], such as a ``ridge`` that was chosen."""
        structs = msgspec.structs
        objective = structs.replace(self.recipe.objective, **chosen)
        return replace(self, recipe=structs.replace(self.recipe, objective=objective))

    def objective(self, sources: Sequence[Shard], mode: Train) -> Objective:
        """F over the rows of ``sources``; λ is 0 where it is yet to be chosen."""
        asked = self.recipe.objective
        return Objective(
            loss=self.loss,
            ridge=0.0 if asked.ridge == "auto" else asked.ridge,
            train=mode,
            weights=self.weights(sources),
            jvp_only=asked.jvp_only,
            radius=asked.radius,
        )

    def is_taught(self, mode: Train) -> bool:
        """Whether a prior from teachers' features applies: not to the head alone, which does not change features."""
        return bool(self.recipe.prior.teachers) and mode != "head"

    def taught(self, sources: Sequence[Shard]) -> TaughtRows:
        """The teachers' features of the rows; UntrustedStore where nobody allowed the store to open its teachers."""
        if self.refusal is not None:
            raise self.refusal
        return taught_rows(self.recipe.prior.teachers, sources)

    def proven(self, sources: Sequence[Shard], component: Component) -> Solution:
        """Certify a component over ``sources`` as they are now, under its own ridge, and in the way that its solve did.

        FormatError if the component does not say its parameters or its ridge.
        """
        objective = self._own_objective(sources, component)
        if self.is_taught(objective.train):
            teachers = Teachers(psi=self.taught(sources).psi, prior=self.recipe.prior)
            found = certificate_at(component.delta, self.base, sources, objective, teachers)
            return Solution(component.delta, Status.stalled, found)
        return certify(
            self.base, sources, objective, component.delta,
            method=self.recipe.solver.method, goal=self.goal, arithmetic=self.arithmetic, dual=component.dual,
        )  # fmt: skip

    def dual_again(self, sources: Sequence[Shard], component: Component) -> Tensor | None:
        """The dual vectors [N,K] of a component that does not keep them, by solving it again; None if the solve has
        none, or ends with other bytes, as it may on another machine."""
        if not self.starts_at_zero(sources, component.record.train):  # type: ignore[arg-type]
            return None
        objective = self._own_objective(sources, component)
        again = minimise(self.base, sources, objective, goal=self.goal, arithmetic=self.arithmetic)
        same = torch.equal(again.value.to(component.delta), component.delta)
        return again.dual.to(component.delta) if same and again.dual is not None else None

    def problem(self, sources: Sequence[Shard], component: Component) -> Problem:
        """The problem that a component is the solution of, under its own ridge and without a prior, in float64."""
        operator = TangentOperator(self.base, sources, trained=component.layout, dtype=torch.float64)
        return Problem.of(self._own_objective(sources, component), operator)

    def _own_objective(self, sources: Sequence[Shard], component: Component) -> Objective:
        said = component.record
        objective = self.objective(sources, said.train)  # type: ignore[arg-type]
        return replace(objective, ridge=said.certified.ridge)

    def starts_at_zero(self, sources: Sequence[RowSource], mode: Train) -> bool:
        """Whether a solve uses the space of the rows or the span of its gradients: both begin at zero, and need few
        passes from there."""
        recipe, layout = self.recipe, self.base.trained(mode)
        if self.is_taught(mode) or recipe.solver.method != "auto" or recipe.objective.radius is not None:
            return False
        problem = Problem(TangentOperator(self.base, sources, trained=layout), self.loss, 1.0)
        if not self.loss.quadratic:
            return span_fits(problem, of_head=self.goal.decides)
        return layout != self.base.head_layout and through_rows(problem)

    def takes_start(self, sources: Sequence[RowSource], mode: Train) -> bool:
        """Whether a solve goes on from a Δw that it is given: a closed form, a solve within a ball and one that starts
        at zero do not."""
        if self.is_taught(mode):
            return True
        if self.recipe.objective.radius is not None:
            return False
        closed = self.loss.quadratic and self.base.trained(mode) == self.base.head_layout
        return not closed and not self.starts_at_zero(sources, mode)

    def poses(self, component: Component, sources: Sequence[Shard], mode: Train) -> bool:
        """Whether a component is a solution of the problem that these settings pose over ``sources``, to whatever
        tolerance: one with another λ, or solved before rows were added, is not."""
        said = key_parts(component.record.key)
        if isinstance(prior := said.get("prior"), dict):
            prior.pop("rows", None)  # a teacher may have forgotten some of them since
        asked = json.loads(json.dumps(self.keys.posed(sources, mode)))
        return {part: said.get(part) for part in (*asked, "prior")} == {"prior": None, **asked}

    @property
    def keys(self) -> Keys:
        """What decides the bytes of components and models under these settings."""
        return Keys(recipe=self.recipe, base=self.base.digest, taught=lambda sources: self.taught(sources).digest)

    def key(self, sources: Sequence[Shard], mode: Train) -> str:
        """The key of a component: equal keys mean that nothing needs to be solved again."""
        return self.keys.key(sources, mode)
