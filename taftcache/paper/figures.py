"""The lines of the paper's figures: 1a to 1c on forgetting, 2a to 2c on the loss and on what is linearised."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from taftcache.paper.line import ReportLine, cost, over_rows, proof
from taftcache.paper.tables import line
from taftcache.paper.trial import Fitted, Preset, Setting, Trial, percent
from taftcache.paper.uncomposed import of_all_rows, of_shards
from taftcache.paper.workbench import Criterion, Workbench

LOSSES = {"RSL": "rsl", "CE": "cross_entropy", "MSE": "mse"}


def figure1a(work: Workbench) -> Iterator[ReportLine]:
    """TAFT as shards are subtracted, compared with what is solved anew over the rows that remain."""
    yield from _subtracted(work, _tangent(work))


def figure1b(work: Workbench) -> Iterator[ReportLine]:
    """TAFT and SISA as the same shards are subtracted."""
    yield from _subtracted(work, [*_tangent(work), ("SISA", "paper")])


def figure1c(work: Workbench) -> Iterator[ReportLine]:
    """Rows forgotten uniformly: every shard solved again, compared with one model over all rows that remain."""
    for preset in work.spec.presets:
        best = work.tuned("TAFT", preset, tokens=work.tokens())  # one model over all rows has settings of its own
        for shards in work.spec.shards:
            setting = work.tuned("TAFT", preset, shards, tokens=work.tokens())
            for fraction in (0.0, *work.spec.forgotten):
                yield _forgotten(work, preset, shards, fraction, setting, best)


def _forgotten(
    work: Workbench, preset: Preset, shards: int, fraction: float, setting: Setting, best: Setting
) -> ReportLine:
    """One point of Figure 1c."""
    found, scratch = [], []
    fits: list[Fitted] = []
    wholes: list[Fitted] = []
    for seed in work.seeds():
        split = work.trial(shards, seed)
        ids = sorted(i for part in split.parts for i in part)
        gone = set(random.Random(seed).sample(ids, round(fraction * len(ids))))
        left = Trial(split.store, work.recipe, shards, seed, without=sorted(gone)) if gone else split
        fits.append(work.fit([setting], shards, seed, trial=left, key=fraction or None)[setting])
        # This model does not depend on the number of shards, because what was forgotten does not.
        kept = [i for i in ids if i not in gone] if gone else None
        wholes.append(work.one_model(best, seed, kept, ("forgotten", fraction) if gone else None))
        found.append(left.taft(fits[-1], range(len(left.parts))))
        scratch.append(percent(left.taft(wholes[-1], [0])))
    each, alone = mean(mean(f.seconds) for f in fits), mean(f.seconds[0] for f in wholes)
    return ReportLine(
        method="TAFT", preset=preset, shards=shards, forgotten=fraction,
        **over_rows(found),
        from_scratch=mean(scratch),
        seconds_a_shard=each,
        seconds_all_shards=mean(sum(f.seconds) for f in fits),
        seconds_from_scratch=alone,
        times_faster=alone / each,
        **proof([*fits, *wholes]),
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
    """PT: the block as pre-trained or re-initialised; CLS = F."""
    for preset in work.spec.presets:
        for reset in (False, True):
            best = work.tuned("TAFT", preset, resets=(reset,))
            yield line(work, f"PT={'F' if reset else 'T'}", preset, best)


def figure2c(work: Workbench) -> Iterator[ReportLine]:
    """CLS: the class token as it comes, or a fresh one that is trained too; at the better PT."""
    for preset in work.spec.presets:
        chosen = work.tuned("TAFT", preset, tokens=work.tokens())
        for token in work.tokens():
            best = work.tuned("TAFT", preset, resets=(chosen.reset_block,), tokens=(token,))
            yield line(work, f"CLS={'T' if token else 'F'}", preset, best)


def _tangent(work: Workbench) -> list[tuple[Criterion, Preset]]:
    return [("TAFT", preset) for preset in work.spec.presets]


def _subtracted(work: Workbench, methods: Sequence[tuple[Criterion, Preset]]) -> Iterator[ReportLine]:
    """Accuracy after k shards are gone: the mean over random orders of removal; for what is solved anew, one order per
    seed."""
    for shards in work.spec.shards:
        steps = sorted({min(round(k * shards / 10), shards - 1) for k in range(10)})
        orders = [random.Random(n).sample(range(shards), shards) for n in range(work.spec.orders)]
        members: dict[tuple[str, Preset], tuple[Criterion, Setting]] = {
            (method, preset): (method, work.tuned(method, preset, shards, tokens=work.tokens()))
            for method, preset in methods
        }
        members |= {(name, "exact"): ("TAFT", setting) for name, setting in of_shards(work, shards).items()}
        counts: dict[tuple[int, str, Preset], list[NDArray[np.int64]]] = defaultdict(list)
        fits: dict[tuple[str, Preset], list[Fitted]] = defaultdict(list)
        for seed in work.seeds():
            for (name, preset), (criterion, setting) in members.items():
                fitted = work.fit([setting], shards, seed)[setting]
                fits[name, preset].append(fitted)
                trial = work.trial(shards, seed)
                for k in steps:
                    some = [work.right(criterion, trial, setting, fitted, order[k:]) for order in orders]
                    counts[k, name, preset].append(np.sum(some, axis=0))
        for (k, name, preset), found in sorted(counts.items(), key=lambda item: item[0]):
            yield ReportLine(
                method=name, preset=preset, shards=shards, removed=k, **over_rows(found, len(orders)),
                **proof(fits[name, preset]), setting=members[name, preset][1].describe(),
            )  # fmt: skip
        yield from _solved_anew(work, shards, steps, orders)


def _solved_anew(
    work: Workbench, shards: int, steps: Sequence[int], orders: Sequence[Sequence[int]]
) -> Iterator[ReportLine]:
    """The exact model and the exact head of the rows that remain after k shards are gone, in one order per seed."""
    settings = of_all_rows(work)
    found: dict[tuple[str, int], list[NDArray[np.bool_]]] = defaultdict(list)
    fits: dict[tuple[str, int], list[Fitted]] = defaultdict(list)
    for seed in work.seeds() if settings else ():
        parts, order = work.trial(shards, seed).parts, orders[seed % len(orders)]
        for k in steps:
            kept = [i for shard in order[k:] for i in parts[shard]] if k else None
            key = ("without", shards, *sorted(order[:k])) if k else None
            for name, setting in settings.items():
                fits[name, k].append(work.one_model(setting, seed, kept, key))
                found[name, k].append(work.trial(1, seed).taft(fits[name, k][-1], [0]))
    for (name, k), right in found.items():
        yield ReportLine(
            method=name, preset="exact", shards=shards, removed=k,
            **over_rows(right), **cost(fits[name, k]), setting=settings[name].describe(),
        )  # fmt: skip
