"""What forgetting one sample would change, by doing it on the side: its shard solved without it, nothing written."""

from __future__ import annotations

from threading import Lock, Thread
from typing import Any

import numpy as np

from taftcache.cache.read.shard import Shard
from taftcache.errors import StoreError, TaftcacheError
from taftcache.names import component_of, is_component
from taftcache.stages.look.influence import Without
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import Scorer
from taftcache.view.atlas import Atlas


class Leaving:
    """Leave-one-out solves on request, one at a time, each in a thread; asked again, it says how far it is."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._alone = Lock()
        self._answers: dict[str, dict[str, Any]] = {}
        self._busy = ""

    def ask(self, sample: str) -> dict[str, Any]:
        """``{"state": "working" | "busy" | "done" | "failed", …}``; begins the solve when none runs.

        Raises:
            UnknownSample: no row of that id. StoreError: it is held out, or its shard has no component.
        """
        atlas = self._atlas
        k = atlas.table.find(sample)
        shard = atlas.table.shards[atlas.table.shard[k]]
        scorer = atlas.scorer()
        if not scorer.plain:
            raise StoreError(
                "a row is left out on the side under the plain objective", got="weights, a ball or jvp_only"
            )
        if shard.role == "held-out" or component_of(shard.name) not in scorer.models:
            raise StoreError("a row that can be left out is one that a component was trained on", got=sample)
        own = component_of(shard.name)
        if not scorer.is_weighed(own):
            raise StoreError(
                f"{own} was trained privately, so a solve without a row would be compared with noise",
                got=sample,
                do="its promise bounds what it holds of any sample",
            )
        with self._alone:
            if sample in self._answers:
                return self._answers[sample]
            if self._busy:
                return {"state": "busy", "sample": self._busy}
            self._busy = sample
            self._answers[sample] = {"state": "working", "passes": 0}
        Thread(target=self._solve, args=(sample, shard, int(atlas.table.row[k])), daemon=True).start()
        return self._answers[sample]

    def _solve(self, sample: str, shard: Shard, row: int) -> None:
        try:
            answer = leave_out(self._atlas, shard, row, lambda n: self._answers[sample].update(passes=n))
        except (TaftcacheError, RuntimeError, MemoryError) as error:
            answer = {"state": "failed", "error": str(error).splitlines()[0]}
        with self._alone:
            self._answers[sample] = answer
            self._busy = ""


def leave_out(atlas: Atlas, shard: Shard, row: int, told: Any = None) -> dict[str, Any]:
    """Solve the shard without the row, as ``taftcache forget`` would, and compare.

    ``moved``: ‖Δw without it − Δw‖; ``distance_bound``: how exact the new one is; ``before`` and ``after``: the
    sample's logits under component and composition; ``accuracy``: of the composition on the held-out rows, before and
    after; ``changed``: held-out rows whose composed class changes.
    """
    import torch

    from taftcache.objective.objective import Objective
    from taftcache.solve.minimise import minimise
    from taftcache.solve.settings import Arithmetic, Goal

    scorer, name = atlas.scorer(), component_of(shard.name)
    old, solver = scorer.components[name], scorer.recipe.solver
    solution = minimise(
        scorer.base,
        [Without(shard, row)],
        Objective(loss=scorer.loss, ridge=scorer.ridge(name), train=scorer.recipe.tangent.train),
        goal=Goal(tolerance=solver.tolerance, max_passes=solver.max_passes),
        arithmetic=Arithmetic(
            precision=solver.precision, memory=scorer.recipe.memory_bytes, device=scorer.operator.device
        ),
        on_pass=None if told is None else lambda passes, residual: told(passes),
    )
    delta = solution.value.to("cpu", torch.float64) - old.delta
    members = [n for n in scorer.models if is_component(n)]
    tokens = shard.tokens(slice(row, row + 1))
    z, changes = scorer.logits(tokens, members)
    step = _tangent(scorer, tokens, delta, name)
    mean = z + changes.mean(0)
    own = z + changes[members.index(name)]
    out: dict[str, Any] = {
        "state": "done",
        "status": solution.status.value,
        "passes": solution.stats.get("passes"),
        "moved": float(delta.norm()),
        "norm": float(old.delta.norm()),
        "distance_bound": solution.certificate.distance,
        "before": {"component": own[0].tolist(), "mean": mean[0].tolist()},
        "after": {"component": (own + step)[0].tolist(), "mean": (mean + step / len(members))[0].tolist()},
        "changed": None,
    }
    kept, held = atlas.held_out, atlas.store.held_out
    if kept is not None and held is not None:
        before = kept.base + kept.tangents.mean(0)
        parts = [
            _tangent(scorer, held.tokens(kept.rows[k : k + STEP_ROWS]), delta, name)
            for k in range(0, len(kept.rows), STEP_ROWS)
        ]
        after = before + np.concatenate(parts) / len(members)
        out["changed"] = int((after.argmax(1) != before.argmax(1)).sum())
        out["accuracy"] = [kept.accuracy(before.argmax(1)), kept.accuracy(after.argmax(1))]
        out["held_out"] = len(kept.rows)
    return out


def _tangent(scorer: Scorer, tokens: np.ndarray, delta: Any, name: str) -> np.ndarray:
    """J δ [b,K] for a change δ of the component ``name``."""
    return scorer.tangent(tokens, scorer.components[name].layout, delta)
