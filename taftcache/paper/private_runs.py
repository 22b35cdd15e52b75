"""One private training of a comparison, on some rows of a store, tested on others; the store is never written to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import msgspec
from torch import Tensor

from taftcache.backbone.device import float64_device
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, SolveError
from taftcache.model.component import read_base
from taftcache.paper.fits import Fits
from taftcache.paper.trial import Chosen, Trial
from taftcache.privacy.network import Network, OrdinaryNetwork, TangentNetwork, right
from taftcache.privacy.spec import Mechanism, PrivacySpec
from taftcache.privacy.trainer import plan, train_privately
from taftcache.recipe import Recipe
from taftcache.stages.memory import memory_of
from taftcache.stages.progress import Progress, Task
from taftcache.stages.train.private.training import private_loss
from taftcache.tangent.rows import RowSource

Kind = Literal["tangent", "ordinary"]
Regime = Literal["full", "bitfit", "layernorm", "head"]
# Keys of the recipe's privacy and tangent sections that a run sets itself or only a store's budget reads.
RUNS_OWN = {"epsilon", "multiplier", "mechanism", "budget", "seed", "train", "reset_block"}


@dataclass(frozen=True, kw_only=True)
class PrivateRun:
    """One training with fresh noise.

    reset_block: PT = F. rate: multiplies the recipe's learning rate. seed: of the base point. validate: test on the
        fifth of the training rows that settings are chosen on, and train on the others.
    """

    regime: Regime
    network: Kind
    mechanism: Mechanism
    epsilon: float
    reset_block: bool
    rate: float = 1.0
    seed: int = 0
    validate: bool = False

    def describe(self) -> dict[str, Any]:
        """What was chosen, for a report."""
        return {"PT": "F" if self.reset_block else "T", "rate": self.rate}

    def text(self) -> str:
        """For a progress bar."""
        where = "choosing" if self.validate else f"seed {self.seed}"
        settings = " ".join(f"{name} {value}" for name, value in self.describe().items())
        return f"{self.regime} {self.network} {self.mechanism}, ε = {self.epsilon:g}, {settings}, {where}"


class Made(NamedTuple):
    """Which of the test rows got their own class [n], 0 or 1, and what the run's statement says."""

    right: Tensor
    figures: dict[str, Any]

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * float(self.right.double().mean())


def check_promises(recipe: Recipe) -> None:
    """RecipeError if no noise, or too little of it, keeps one of the promises that a private table makes."""
    for mechanism in (recipe.privacy.mechanism, "least-squares"):
        for epsilon in recipe.compare.epsilons:
            try:
                plan(_promise(recipe, mechanism, epsilon))
            except SolveError as error:
                raise RecipeError(
                    f"the private table cannot keep compare.epsilons = {epsilon:g}: {error.fault}",
                    got=error.got,
                    do=error.do,
                ) from error


def _promise(recipe: Recipe, mechanism: Mechanism, epsilon: float) -> PrivacySpec:
    return msgspec.structs.replace(recipe.privacy, mechanism=mechanism, epsilon=epsilon, multiplier=None, budget=None)


class PrivateRuns:
    """Runs over one store, each made once.

    Both networks go through the same code: the rows, the start that ``privacy.logits`` names, mechanism, noise, test.

    Args:
        expected: how many runs there will be, to estimate the time left.
    """

    def __init__(self, store: FeatureStore, recipe: Recipe, fits: Fits, progress: Progress, expected: int) -> None:
        self.store, self.recipe, self.fits = store, recipe, fits
        self._progress, self._expected = progress, expected
        self._done, self._made, self._seconds = 0, 0, 0.0

    def __call__(self, run: PrivateRun, task: Task) -> Made:
        """A run from before, or made now."""
        key = {"private": asdict(run), **self._about}
        found = self.fits.get(key)
        if found is None:
            begin = time.perf_counter()
            with self._progress.task(f"{run.text()}: {self._done} of {self._expected} done{self._left()}", None):
                made = self._run(run)
            self._made, self._seconds = self._made + 1, self._seconds + time.perf_counter() - begin
            digests = [ref.digest for ref in self.store.manifest.shards]
            self.fits.put(key, {"right": made.right}, made.figures, digests)
        else:
            made = Made(found[0]["right"], found[1])
        self._done += 1
        task.advance()
        task.note(f"{run.text()}: {made.accuracy:.1f}{self._left()}")
        return made

    def _left(self) -> str:
        if not self._made:
            return ""
        minutes = self._seconds / self._made * (self._expected - self._done) / 60
        return f", about {minutes:.0f} min left"

    def _run(self, run: PrivateRun) -> Made:
        recipe, store = self.recipe, self.store
        spec = msgspec.structs.replace(recipe.tangent, seed=run.seed, reset_block=run.reset_block, train="full")
        base = read_base(store, spec)
        layout, device = base.trained(run.regime), float64_device(recipe.device)
        rows, tests = self._apart if run.validate else self._whole
        network: Network
        test: Network
        if run.network == "tangent":
            network = TangentNetwork(base, rows, layout, device=device, memory=memory_of(recipe))
            test = TangentNetwork(base, tests, layout, device=device)
        else:
            network = OrdinaryNetwork(base, rows, layout, device=device)
            test = OrdinaryNetwork(base, tests, layout, device=device)
        promise = _promise(recipe, run.mechanism, run.epsilon)
        loss = private_loss(recipe, base.config.classes)
        trained = train_privately(base, network, loss, promise, factor=run.rate)
        statement = trained.statement
        figures = {
            "epsilon": statement.epsilon,
            "delta": statement.delta,
            "multiplier": statement.releases[0].multiplier,
            "learning_rate": trained.stats.learning_rate,
        }
        return Made(right(test, trained.delta).byte(), figures)

    @property
    def _whole(self) -> tuple[Sequence[RowSource], Sequence[RowSource]]:
        assert self.store.held_out is not None
        return self.store.shards, [self.store.held_out]

    @cached_property
    def _apart(self) -> tuple[Sequence[RowSource], Sequence[RowSource]]:
        trial = Trial(self.store, self.recipe, 1, 0, validate=True)
        return [Chosen(self.store, trial.parts[0])], [trial.test]

    @cached_property
    def _about(self) -> dict[str, Any]:
        """What decides a run besides its own fields."""
        sections = [msgspec.to_builtins(section) for section in (self.recipe.privacy, self.recipe.tangent)]
        shared = [{name: value for name, value in held.items() if name not in RUNS_OWN} for held in sections]
        loss = msgspec.to_builtins(self.recipe.objective) if self.recipe.privacy.loss == "rsl" else None
        held = {"privacy": shared[0], "tangent": shared[1], "objective": loss}
        return {**held, "store": self.store.root_digest, "taftcache": version("taftcache")}
