"""The paper's Table 3 on any store: private fine-tuning of the tangent model beside that of the network itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.paper.fits import Fits
from taftcache.recipe import Recipe
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.record import adopt

if TYPE_CHECKING:
    from taftcache.privacy.network import Network

Kind = Literal["tangent", "ordinary"]
REGIMES = ("full", "bitfit", "layernorm", "head")
KINDS: tuple[Kind, ...] = ("tangent", "ordinary")
SAID = ("epsilon", "delta", "multiplier", "learning_rate")  # by a run's statement


@dataclass
class Cell:
    """One regime, network and ε: held-out accuracy by seed of the base point, every run with fresh noise."""

    regime: str
    network: Kind
    mechanism: str
    epsilon: float
    delta: float
    multiplier: float
    learning_rate: float | None
    accuracy: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return mean(self.accuracy)

    @property
    def std(self) -> float:
        """Over the seeds, with n − 1."""
        return stdev(self.accuracy) if len(self.accuracy) > 1 else 0.0


@dataclass(frozen=True)
class PrivateTableReport:
    """All cells, in the order in which they were first run."""

    store: Path
    root_digest: str
    rows: int
    held_out: int
    cells: list[Cell]
    seconds: float


def private_table(
    store: FeatureStore,
    recipe: Recipe | None = None,
    *,
    epsilons: Sequence[float] = (1.0, 3.0, 8.0),
    seeds: Sequence[int] = (0, 1, 2),
    regimes: Sequence[str] = REGIMES,
    kinds: Sequence[Kind] = KINDS,
    progress: Progress | None = None,
    told: Callable[[Cell], None] | None = None,
    fits: Fits | None = None,
) -> PrivateTableReport:
    """Train every cell on all training rows and test it on the held-out ones; nothing is written to the store.

    The head's regime is linear whatever the network, so it runs once; beside plain descent it runs with least squares
    on noisy sufficient statistics. A table compares settings on the same rows: it is no private release of them.

    Args:
        told: called with a cell after each of its runs.
        fits: knows runs from before, and is told of each.

    Raises:
        StoreError: the store has no held-out rows.
    """
    progress = progress or Silent()
    begin = time.perf_counter()
    recipe = recipe or adopt(store, None)
    if store.held_out is None:
        raise StoreError("an accuracy needs held-out rows", got=f"{store.path} has none", do="extract with data.test")
    cells: dict[tuple[str, ...], Cell] = {}
    runs = [
        (seed, regime, kind, mechanism, epsilon)
        for seed in seeds
        for regime in regimes
        for kind in (kinds if regime != "head" else kinds[:1])
        for mechanism in (
            (recipe.privacy.mechanism, "least-squares") if regime == "head" else (recipe.privacy.mechanism,)
        )
        for epsilon in epsilons
    ]
    fits, about = fits or Fits(), _about(store, recipe)
    with progress.task("private table", len(runs)) as task:
        for seed, regime, kind, mechanism, epsilon in runs:
            key = (regime, kind, mechanism, f"{epsilon:g}")
            place = {"private": [*key, seed], **about}
            if (known := fits.get(place)) is None:
                known = {}, _run(store, recipe, seed, regime, kind, mechanism, epsilon)
                fits.put(place, *known)
            figures = known[1]
            accuracy = figures["accuracy"]
            if key not in cells:
                cells[key] = Cell(regime, kind, mechanism, *(figures[name] for name in SAID))
            cells[key].accuracy.append(accuracy)
            task.advance()
            task.note(f"{' '.join(key)}: {accuracy:.3f}")
            if told is not None:
                told(cells[key])
    return PrivateTableReport(
        store.path,
        store.root_digest,
        sum(shard.rows for shard in store.shards),
        store.held_out.rows,
        list(cells.values()),
        time.perf_counter() - begin,
    )


def _run(
    store: FeatureStore, recipe: Recipe, seed: int, regime: Any, kind: Kind, mechanism: Any, epsilon: float
) -> dict[str, Any]:
    """One cell with one seed: its accuracy, and what its statement says."""
    from taftcache.backbone.device import resolve_device
    from taftcache.model.component import read_base
    from taftcache.privacy.network import OrdinaryNetwork, TangentNetwork, accuracy
    from taftcache.privacy.trainer import train_privately
    from taftcache.stages.train.private_training import private_loss

    base = read_base(store, msgspec.structs.replace(recipe.tangent, seed=seed, train="full"))
    layout, device = base.trained(regime), resolve_device(recipe.device)
    assert store.held_out is not None
    network: Network
    test: Network
    if kind == "tangent":
        memory = recipe.memory_bytes
        network = TangentNetwork(base, store.shards, layout, device=device, memory=memory)
        test = TangentNetwork(base, [store.held_out], layout, device=device)
    else:
        network = OrdinaryNetwork(base, store.shards, layout, device=device)
        test = OrdinaryNetwork(base, [store.held_out], layout, device=device)
    logits = recipe.privacy.logits if kind == "tangent" else "full"
    spec = msgspec.structs.replace(recipe.privacy, mechanism=mechanism, epsilon=epsilon, multiplier=None, logits=logits)
    trained = train_privately(base, network, private_loss(recipe), spec, shards=[shard.name for shard in store.shards])
    said = trained.statement
    return {
        "accuracy": accuracy(test, trained.delta),
        "epsilon": said.epsilon,
        "delta": said.delta,
        "multiplier": said.releases[0].multiplier,
        "learning_rate": trained.stats.get("learning_rate"),
    }


def _about(store: FeatureStore, recipe: Recipe) -> dict[str, Any]:
    """What decides a run beside its place in the table."""
    settings = {"privacy": recipe.privacy, "tangent": recipe.tangent, "objective": recipe.objective}
    return msgspec.to_builtins({**settings, "store": store.root_digest, "taftcache": version("taftcache")})
