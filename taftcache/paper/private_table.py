"""The paper's Table 3 on any store: private fine-tuning of the tangent model beside that of the network itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import msgspec

from taftcache.backbone.device import resolve_device
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.component import read_base
from taftcache.paper.fits import Fits
from taftcache.privacy.network import Network, OrdinaryNetwork, TangentNetwork, accuracy
from taftcache.privacy.trainer import train_privately
from taftcache.recipe import Recipe
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.private_training import private_loss
from taftcache.stages.train.record import adopt

Kind = Literal["tangent", "ordinary"]
REGIMES = ("full", "bitfit", "layernorm", "head")
KINDS: tuple[Kind, ...] = ("tangent", "ordinary")
STATED = ("epsilon", "delta", "multiplier", "learning_rate")  # by a run's statement


@dataclass(kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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
    progress: Progress | None = None,
    fits: Fits | None = None,
) -> PrivateTableReport:
    """Train every cell on all training rows and test it on the held-out ones; nothing is written to the store.

    The head's regime is linear whatever the network, so it runs once; beside plain descent it runs with least squares
    on noisy sufficient statistics. A table compares settings on the same rows: it is no private release of them.

    Args:
        fits: runs from before, which are not run again; each new run is kept there.

    Raises:
        StoreError: the store has no held-out rows.
    """
    progress = progress or Silent()
    begin = time.perf_counter()
    recipe = recipe or adopt(store, None)
    if store.held_out is None:
        raise StoreError(f"a table needs held-out rows, but {store.path} has none", do="extract with data.test")
    cells: dict[tuple[str, ...], Cell] = {}
    runs = [
        (seed, regime, kind, mechanism, epsilon)
        for seed in seeds
        for regime in regimes
        for kind in (KINDS if regime != "head" else KINDS[:1])
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
            if key not in cells:
                stated = {name: figures[name] for name in STATED}
                cells[key] = Cell(regime=regime, network=kind, mechanism=mechanism, **stated)
            cells[key].accuracy.append(figures["accuracy"])
            task.advance()
            task.note(f"{' '.join(key)}: {figures['accuracy']:.3f}")
    return PrivateTableReport(
        store=store.path,
        root_digest=store.root_digest,
        rows=sum(shard.rows for shard in store.shards),
        held_out=store.held_out.rows,
        cells=list(cells.values()),
        seconds=time.perf_counter() - begin,
    )


def _run(
    store: FeatureStore, recipe: Recipe, seed: int, regime: Any, kind: Kind, mechanism: Any, epsilon: float
) -> dict[str, Any]:
    """One cell with one seed: its accuracy, and what its statement says."""
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
    trained = train_privately(
        base, network, private_loss(recipe, base.config.classes), spec, shards=[shard.name for shard in store.shards]
    )
    statement = trained.statement
    return {
        "accuracy": accuracy(test, trained.delta),
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "multiplier": statement.releases[0].multiplier,
        "learning_rate": trained.stats.get("learning_rate"),
    }


def _about(store: FeatureStore, recipe: Recipe) -> dict[str, Any]:
    """What decides a run beside its place in the table."""
    settings = {"privacy": recipe.privacy, "tangent": recipe.tangent, "objective": recipe.objective}
    held = {**settings, "store": store.root_digest, "taftcache": version("taftcache")}
    plain: dict[str, Any] = msgspec.to_builtins(held)
    return plain
