"""The lines of the paper's figures: 1a to 1c on forgetting, 2a to 2c on what is linearised, and with which loss."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import mean

from taftcache.paper.line import ReportLine, over_seeds
from taftcache.paper.tables import line
from taftcache.paper.trial import Preset, Setting, Trial
from taftcache.paper.workbench import Criterion, Workbench

LOSSES = {"RSL": "rsl", "CE": "cross_entropy", "MSE": "mse"}


def figure1a(work: Workbench) -> Iterator[ReportLine]:
    """TAFT as shards are subtracted."""
    yield from _subtracted(work, _tangent(work))


def figure1b(work: Workbench) -> Iterator[ReportLine]:
    """TAFT and SISA as shards are subtracted, the same ones."""
    yield from _subtracted(work, [*_tangent(work), ("SISA", "paper")])


def figure1c(work: Workbench) -> Iterator[ReportLine]:
    """Rows forgotten uniformly; every shard solved again, against one model over all rows that remain."""
    work.check_shards(work.spec.shards)
    for preset in work.spec.presets:
        for shards in work.spec.shards:
            setting = work.tuned("TAFT", preset, shards)
            for fraction in (0.0, *work.spec.forgotten):
                found = defaultdict(list)
                for seed in work.seeds():
                    split = work.trial(shards, seed)
                    ids = sorted(i for part in split.parts for i in part)
                    gone = random.Random(seed).sample(ids, round(fraction * len(ids)))
                    left = Trial(split.store, work.recipe, shards, seed, without=gone) if gone else split
                    key = fraction or None
                    fitted = work.fit([setting], shards, seed, trial=left, key=key)[setting]
                    whole = [sorted(i for part in left.parts for i in part)]
                    # What was forgotten does not depend on the number of shards, and neither does this model.
                    alone = work.fit([setting], 1, seed, trial=left, parts=whole, key=("whole", key))[setting]
                    found["accuracy"].append(left.taft(fitted, range(len(left.parts))))
                    found["scratch"].append(left.taft(alone, [0]))
                    found["seconds"].append(mean(fitted.seconds))
                    found["seconds_scratch"].append(alone.seconds[0])
                yield ReportLine(
                    method="TAFT", preset=preset, shards=shards, forgotten=fraction,
                    **over_seeds(found["accuracy"]),
                    from_scratch=mean(found["scratch"]),
                    seconds_a_shard=mean(found["seconds"]),
                    seconds_from_scratch=mean(found["seconds_scratch"]),
                    times_faster=mean(found["seconds_scratch"]) / mean(found["seconds"]),
                    setting=setting.describe(),
                )  # fmt: skip


def figure2a(work: Workbench) -> Iterator[ReportLine]:
    """The loss, at the base point that Table 1's tangent model chose."""
    for preset in work.spec.presets:
        chosen = work.tuned("TAFT", preset, tokens=work.tokens())
        for name, loss in LOSSES.items():
            if loss == chosen.loss:
                best = chosen
            else:
                at = Setting("TAFT", 0.0, loss=loss, kappa=1.0 if loss == "mse" else chosen.kappa)
                best = work.tuned(
                    "TAFT", preset, template=at, resets=(chosen.reset_block,), tokens=(chosen.reset_token,)
                )
            yield line(work, name, preset, best)


def figure2b(work: Workbench) -> Iterator[ReportLine]:
    """PT: the pre-trained block, or one that is re-initialised; CLS = F."""
    for preset in work.spec.presets:
        for reset in (False, True):
            best = work.tuned("TAFT", preset, resets=(reset,))
            yield line(work, f"PT={'F' if reset else 'T'}", preset, best)


def figure2c(work: Workbench) -> Iterator[ReportLine]:
    """CLS: the class token as it comes, or a fresh one that is linearised too; at the better PT."""
    for preset in work.spec.presets:
        chosen = work.tuned("TAFT", preset, tokens=work.tokens())
        for token in work.tokens():
            best = work.tuned("TAFT", preset, resets=(chosen.reset_block,), tokens=(token,))
            yield line(work, f"CLS={'T' if token else 'F'}", preset, best)


def _tangent(work: Workbench) -> list[tuple[Criterion, Preset]]:
    return [("TAFT", preset) for preset in work.spec.presets]


def _subtracted(work: Workbench, methods: Sequence[tuple[Criterion, Preset]]) -> Iterator[ReportLine]:
    """Accuracy after k shards are gone, the mean over random orders in which they go."""
    work.check_shards(work.spec.shards)
    for shards in work.spec.shards:
        steps = sorted({min(round(k * shards / 10), shards - 1) for k in range(10)})
        values: dict[tuple[int, Criterion, Preset], list[float]] = defaultdict(list)
        settings = {(m, p): work.tuned(m, p, shards) for m, p in methods}
        for seed in work.seeds():
            orders = [random.Random(n).sample(range(shards), shards) for n in range(work.spec.orders)]
            for (method, preset), setting in settings.items():
                fitted = work.fit([setting], shards, seed)[setting]
                trial = work.trial(shards, seed)
                for k in steps:
                    some = [work.score(method, trial, setting, fitted, order[k:]) for order in orders]
                    values[k, method, preset].append(mean(some))
        for (k, method, preset), found in sorted(values.items()):
            yield ReportLine(
                method=method, preset=preset, shards=shards, removed=k, **over_seeds(found),
                setting=settings[method, preset].describe(),
            )  # fmt: skip
