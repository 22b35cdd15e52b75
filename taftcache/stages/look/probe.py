"""The strongest simple baseline: the better of scikit-learn's linear probes on the features that the head reads."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.calibration import Calibration, calibration_of
from taftcache.model.component import read_base
from taftcache.names import PRIVATE, scaling_of
from taftcache.solve.choosing import whole_groups
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.train.held_out import KeptLogits
from taftcache.stages.train.settings import Settings
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.spec import TangentSpec

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

RIDGE, LOGISTIC = "ridge", "logistic regression"
# What is tried first on standardised features: scikit-learn's alpha, and its C, the inverse of a ridge. Of probes that
# do equally well the first is taken.
STRENGTHS = {RIDGE: (0.1, 1.0, 10.0, 100.0), LOGISTIC: (0.01, 0.1, 1.0, 10.0)}
APART, MOST_FURTHER = 10.0, 2  # the ratio of neighbouring strengths; how many are tried beyond the first four
EVERY = 5  # one row in five chooses, as λ is chosen with ridge = "auto"
MOST_STEPS = 300
# Rows times features: with more, a probe is chosen on, and fitted to, as many rows as fit, taken evenly.
MOST_CHOOSING, MOST_FITTED = 1 << 26, 1 << 28
# Rows times features times classes: a core does some 2³¹ such products a second, so more take over ten minutes.
MOST_QUICK = 1 << 34


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Ridge classification or logistic regression on the standardised features that the head reads (with ``features =
    "every block"``, those of every block): which of them, and how strong its ridge is, chosen on one row in five.

    kind: "ridge" or "logistic regression". accuracy: on the held-out rows, which had no part in the choice. strength:
    scikit-learn's alpha of a ridge, or its C of logistic regression. tried: the best share of the rows which chose
    that each kind had right. rows: how many it was fitted to. of: how many training rows there are. seconds: for choice
    and fit. calibration: what its probabilities are worth, with a temperature of their own; None if the held-out rows
    have a class that it never saw. features: what it was fitted to: "the head's features", or "the vectors" of a store
    of such.
    """

    kind: str
    accuracy: float
    strength: float
    tried: dict[str, float]
    rows: int
    of: int
    seconds: float
    calibration: Calibration | None = None
    features: Literal["the head's features", "the vectors"] = "the head's features"


def no_probe(store: FeatureStore, groups: NDArray[np.uint64] | None = None) -> str | None:
    """Why there can be no probe over a store's training rows, of these ``groups``; None where there can be one."""
    if any(PRIVATE in ref.meta for ref in store.objects().values()):
        return "it would read the rows of private components without noise"
    labels = np.concatenate([np.asarray(shard.labels) for shard in store.shards])
    if len(np.unique(labels[~_aside(len(labels), groups)])) < 2:
        return "it needs rows of two classes besides those that choose its strength"
    return None


def is_quick(store: FeatureStore, base: Base) -> bool:
    """Whether a probe over a store's training rows takes minutes at most; its products grow with the classes."""
    features = sum(shard.rows for shard in store.shards) * base.config.width
    return min(features, MOST_FITTED) * len(store.classes) <= MOST_QUICK


def untouched_base(store: FeatureStore, settings: Settings) -> Base:
    """The network before anything is reset, if the store keeps its tail's whole input; else its own base point."""
    if settings.base.config.rows == "tokens":
        return read_base(store, TangentSpec(blocks=settings.recipe.tangent.blocks))
    return settings.base


def best_of(
    values: Sequence[float], score: Callable[[float], float], apart: float, most: int
) -> tuple[float, dict[float, float]]:
    """The value with the best score (the first tried, of equals), and all scores.

    While the best lies at an end, one further by the factor ``apart`` is tried, up to ``most`` times.
    """
    scores = {value: score(value) for value in values}
    for _ in range(most):
        best = max(scores, key=lambda value: scores[value])
        if min(scores) < best < max(scores):
            break
        further = best * apart if best == max(scores) else best / apart
        scores[further] = score(further)
    return max(scores, key=lambda value: scores[value]), scores


def linear_probe(
    store: FeatureStore,
    settings: Settings,
    held_out: Shard,
    progress: Progress | bool | None = None,
    kinds: Sequence[str] = tuple(STRENGTHS),
) -> tuple[Probe, NDArray[np.bool_]]:
    """The best probe of ``kinds`` over the training rows of the store, and which of the held-out rows [n] are right.

    The features are what the head of ``untouched_base`` sees. If there are more than MOST_FITTED numbers, the probe is
    fitted to as many rows as fit; if more than MOST_CHOOSING, it is chosen on fewer rows. A strength means the same for
    fewer rows, since scikit-learn's losses are sums over them.
    """
    begin, fits = time.perf_counter(), 1 + sum(len(STRENGTHS[kind]) + MOST_FURTHER for kind in kinds)
    base, rows = untouched_base(store, settings), sum(shard.rows for shard in store.shards)
    with or_silent(progress).task("linear probe", fits) as task, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows per class, or MOST_STEPS reached: still a valid probe
        choosing, fitting = (-(-rows * base.config.width // most) for most in (MOST_CHOOSING, MOST_FITTED))
        features, labels = head_features(base, store.shards, choosing)
        groups = settings.groups(store.shards)
        aside = _aside(len(labels), None if groups is None else groups[::choosing])

        def score(strength: float, kind: str) -> float:
            task.advance(1)
            probe = unfitted(kind, strength).fit(features[~aside], labels[~aside])
            return float(probe.score(features[aside], labels[aside]))

        best = {}
        for kind in kinds:
            strength, scores = best_of(STRENGTHS[kind], partial(score, kind=kind), APART, MOST_FURTHER)
            best[kind] = scores[strength], strength
        kind = max(best, key=lambda each: best[each][0])
        if fitting < choosing:
            features, labels = head_features(base, store.shards, fitting)
        probe = unfitted(kind, best[kind][1]).fit(features, labels)
        task.advance(1)
        unseen, truth = head_features(base, [held_out])
        z = probe.decision_function(unseen)  # once: it overwrites the features
        logits = z if z.ndim == 2 else np.column_stack([np.zeros_like(z), z])  # one number for two classes
        right: NDArray[np.bool_] = np.equal(probe.classes_[logits.argmax(1)], truth)
        kept = KeptLogits.of(held_out, [], len(store.classes)).rows
        own = np.searchsorted(probe.classes_, truth)[:kept]
        calibration = calibration_of(logits[:kept], own) if np.isin(truth, probe.classes_).all() else None
    found = Probe(
        kind=kind,
        accuracy=float(right.mean()),
        strength=best[kind][1],
        tried={each: score for each, (score, _) in best.items()},
        rows=len(labels),
        of=rows,
        seconds=time.perf_counter() - begin,
        calibration=calibration,
        features="the head's features" if scaling_of(store.identity) is None else "the vectors",
    )
    return found, right


def unfitted(kind: str, strength: float) -> Pipeline:
    """A probe that is not fitted yet. It overwrites the features that it is given."""
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if kind == RIDGE:
        return make_pipeline(StandardScaler(copy=False), RidgeClassifier(alpha=strength, copy_X=False))
    return make_pipeline(StandardScaler(copy=False), LogisticRegression(C=strength, max_iter=MOST_STEPS))


def _aside(rows: int, groups: NDArray[np.uint64] | None) -> NDArray[np.bool_]:
    """Which of so many rows choose a probe: whole ones of their ``groups`` [n], as for λ, if rows belong together."""
    if groups is None:
        return np.equal(np.arange(rows) % EVERY, 0)
    order = np.argsort(groups, kind="stable")
    return np.isin(np.arange(rows), order[: whole_groups(groups[order])])


def head_features(base: Base, shards: Sequence[Shard], every: int = 1) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The features [n,d] that the head of ``base`` sees of the shards' rows, or of one in ``every``; and labels [n]."""
    operator, row = TangentOperator(base, shards, trained=base.head_layout), 0
    taken = -(-operator.rows // every)
    features, labels = np.empty((taken, base.config.width), np.float32), np.empty(taken, np.int64)
    for state, classes in operator.blocks():
        mine, onto = slice(-row % every, None, every), -(-row // every)
        part = classes[mine].numpy()
        features[onto : onto + len(part)] = state.feature[mine].numpy()
        labels[onto : onto + len(part)] = part
        row += len(classes)
    return features, labels
