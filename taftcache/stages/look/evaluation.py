"""Accuracy of every model of a store on its held-out rows, and the share of labels that are proven."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, recorded_recipe
from taftcache.errors import ArgumentError, RecipeError, StoreError, check_several
from taftcache.model.calibration import FEW, Calibration, calibration_of
from taftcache.model.card import Score
from taftcache.model.component import StoredComponents, no_model, read_component
from taftcache.model.composition import compose
from taftcache.model.members import imported
from taftcache.model.meta import ComponentMeta, magnitude, meta_of
from taftcache.model.outdated import outdated
from taftcache.names import (
    BY_HELD_OUT,
    OF_ONE_CLASS,
    PRIVATE,
    PROBE,
    UNTOUCHED,
    counted,
    first_few,
    is_component,
    is_model,
    model_of,
    points_text,
    told_apart,
    typed,
)
from taftcache.report.accuracy import accuracy_interval, balanced
from taftcache.report.paired import LEVEL, RowGroups, row_verdict
from taftcache.solve.labels import proven_labels
from taftcache.stages.completeness import still_missing, subtracted_notes
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.extract.classes import classes_in, unshared_notes
from taftcache.stages.extract.plan import groups_of
from taftcache.stages.look.duplicates import Hashes
from taftcache.stages.look.probe import Probe, is_quick, linear_probe, no_probe
from taftcache.stages.look.scoring import kept_components
from taftcache.stages.look.seen import kept_notes
from taftcache.stages.look.vectors import starts_blank
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.train.held_out import KeptLogits, predicted_by, predicted_of, row_groups
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.promises import promised
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.tangent.operator import TangentOperator

UNEVEN = 0.8  # above this share of the commonest class, accuracy says little of the others
LITTLE = 0.02  # of what naming the commonest class leaves to learn, which a model has to exceed
SEVERAL = 3  # times the rows of another class, above which weights of classes may matter
SEARCHED = 1 << 30  # bytes of a store, all of which are read for copies in seconds


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One model beside another, on the same rows.

    ahead: by how much its accuracy is larger. interval: 95 % interval of that. From the rows on which only one of the
    two is right (Agresti and Min, 2005: half a row is added to each cell). verdict: what the interval says. groups: how
    many groups (``data.group``) both were judged by; None where no two rows share one; of 1 there is no interval, which
    is then from −1 to 1.
    """

    ahead: float
    interval: tuple[float, float]
    verdict: Literal["ahead", "within noise", "behind"]
    groups: int | None = None


@dataclass(frozen=True, kw_only=True)
class Against(Difference):
    """The store's default model beside the linear probe.

    ahead, interval, verdict, groups: see ``Difference``. probe: the linear probe.
    """

    model: str
    probe: Probe


@dataclass(frozen=True, kw_only=True)
class EvaluateReport(Report):
    """Top-1 accuracy by model over ``rows`` held-out rows.

    rows: how many. majority: the share of them that the commonest class has, which is the accuracy of always naming it.
    balanced: by model, the mean of its accuracies on each class that has held-out rows. accuracy: by model, 0 to 1.
    Also for the untouched network with its new head; if that begins at zero, and so tells no class from another, only
    as long as there is no model. default: the model that ``predict`` takes unless one is named, if there is any. See
    ``model_of``. intervals: 95 % interval of each accuracy (Wilson's). groups: how many groups (``data.group``) these
    were judged by; None where no two rows share one; of 1 there are none, and they are then from 0 to 1.
    calibration: what the probabilities
    softmax(logits / T) of each composed model and of the probe are worth. against: the linear probe, if it was asked
    for and the rows allow one. reference: the model that was named to compare the others with. differences: every other
    model's, by name, and the probe's, beside it. proven: the share of labels that the certificates show to be those of
    the exact optimum, by model. It is there if it was asked for. outdated: models that were solved from other rows than
    the store has now. notes: why there is no probe or no proof, which model does better than the default one, and more.
    Which held-out rows hold the bytes of a training row (looked for beside the probe, or if the store is a folder of at
    most 1 GiB), which classes only they or only training rows have, whether probabilities rest on few of them, and
    which private models have a learning rate that they chose.
    """

    store: Path
    root_digest: str
    rows: int
    majority: float
    accuracy: dict[str, float]
    balanced: dict[str, float]
    default: str | None
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    groups: int | None = None
    calibration: dict[str, Calibration] = field(default_factory=dict)
    against: Against | None = None
    reference: str | None = None
    differences: dict[str, Difference] = field(default_factory=dict)
    proven: dict[str, float] = field(default_factory=dict)
    outdated: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@at_its_place()
def evaluate(
    store: Place,
    *,
    progress: Progress | bool | None = None,
    without: Sequence[str] = (),
    probe: bool | Literal["quick"] = False,
    proven: bool = False,
    reference: str | None = None,
) -> EvaluateReport:
    """Top-1 accuracy of the base point, every component and every model on the held-out group, in one pass, or in
    several if the models together take more than ``solver.memory``.

    Args:
        without: names of shards; the mean of all other shards' components is evaluated as well.
        probe: also fit scikit-learn's linear probe (ridge or logistic regression) to all training rows, compare the
            default model with it, and look for training rows among the held-out group of a store of any size. "quick":
            unless it would take long, which a note then says.
        proven: also say for each model how many of the rows' labels its certificate shows to be the exact optimum's.
        reference: a model that each of the others is compared with, row by row.

    Raises:
        StoreError: the store has no held-out rows, no classes, or no model ``reference``. RecipeError: ``without``
            names no component, or leaves none over; ``reference`` is a place, which only ``evaluate_on`` takes.
    """
    assert isinstance(store, FeatureStore)
    check_several(without=without)
    check_has_classes(store)
    if probe not in (True, False, "quick"):
        raise ArgumentError("probe cannot have this value", got=repr(probe), do='True, False or "quick"')
    progress, rows = or_silent(progress), _held_out(store)
    settings = settings_of(store)
    names = [name for name in store.objects() if is_model(name)]
    check_reference(store, reference)
    models = StoredComponents(store, names, settings.base)
    groups = row_groups(store, rows.sample_ids)
    notes = [*outdated_notes(store, settings.keys), *kept_notes(store), *subtracted_notes(store)]
    notes += [*unshared_by(store, rows), *_tuned(models.metas())]
    default = model_of(names)
    if without:
        models = _with_mean(store, names, without, settings)
    whole = [name for name in names if not is_component(name)]
    logits = KeptLogits.of(rows, whole if len(store.classes) > 1 else (), len(store.classes))
    predicted = predicted_by(settings.base, settings.recipe, rows, models, progress, logits)
    hits = {name: found == rows.labels for name, found in predicted.items()}
    if names and starts_blank(store):
        del hits[UNTOUCHED]
    if probe or (store.root.stable and store.nbytes <= SEARCHED):  # a bucket would send all of it
        notes += _leaked(store, Hashes.of(store, progress).leaked(), rows)
    against = None
    if probe:
        against, said = _beside_probe(store, settings, rows, groups, default, hits, progress, any_time=probe != "quick")
        notes += [*said, *_few_rows(store, against)]
    found = ((name, calibration_of(z, rows.labels[: logits.rows])) for name, z in logits.logits.items())
    calibration = {name: of for name, of in found if of is not None}
    notes += few_rows_note(rows) if calibration else []
    if calibration and logits.rows < rows.rows:
        notes.append(f"probabilities are judged on the first {logits.rows:,} of {rows.rows:,} held-out rows")
    if against is not None and against.probe.calibration is not None:
        calibration[PROBE] = against.probe.calibration
    shares = proven_shares(rows, store, settings, whole, progress) if proven else {}
    notes += _unproven(store, [name for name in whole if name not in shares]) if proven else []
    notes += _of_groups(store, rows, groups)
    lacking = {"no linear probe": probe and not no_probe(store), "no label is proven": proven}
    if not whole and any(lacking.values()):
        without, verb = " and ".join(what for what, asked in lacking.items() if asked), "compose" if names else "train"
        notes.append(f"{without}: no model is composed yet; next: taftcache {verb} {typed(store.path)}")
    notes += ahead_notes(default, {name: hits[name] for name in whole if name in hits}, groups)
    notes += _uneven(store, rows, hits)
    return EvaluateReport(
        store=store.path,
        root_digest=store.root_digest,
        rows=rows.rows,
        majority=float(np.bincount(rows.labels).max() / rows.rows),
        accuracy={name: float(hit.mean()) for name, hit in hits.items()},
        balanced={name: balanced(hit, rows.labels) for name, hit in hits.items()},
        default=default if default in hits else None,
        intervals={name: accuracy_interval(hit, groups) for name, hit in hits.items()},
        groups=groups and groups.count,
        calibration=calibration,
        against=against,
        reference=reference,
        differences=differences(reference, hits, groups),
        proven=shares,
        outdated=outdated(store, settings.keys),
        notes=notes,
    )


def unshared_by(store: FeatureStore, rows: Shard) -> list[str]:
    """Notes on classes that only the held-out ``rows`` have, and on those that only training rows have."""
    trained, held = (classes_in(store, shards) for shards in (store.shards, [rows]))
    return unshared_notes(store.classes, trained, held, of="row")


def few_rows_note(rows: Shard) -> list[str]:
    """A note on probabilities that rest on few held-out ``rows``."""
    told = f"probabilities rest on {counted(rows.rows, 'held-out row')}, too few to tell 90 % from certainty"
    return [told] if rows.rows < FEW else []


def _with_mean(store: FeatureStore, names: list[str], without: Sequence[str], settings: Settings) -> StoredComponents:
    """The models ``names``, and the mean of all components except those of the shards ``without``."""
    every = [name for name in names if is_component(name)]
    kept = kept_components(every, without)
    rest = f"mean of {len(kept)} of {len(every)} components"
    mean = compose(StoredComponents(store, kept, settings.base))
    return StoredComponents(store, [*names, rest], settings.base, {rest: mean})


def _beside_probe(
    store: FeatureStore,
    settings: Settings,
    rows: Shard,
    groups: RowGroups | None,
    default: str,
    hits: dict[str, NDArray[np.bool_]],
    progress: Progress,
    *,
    any_time: bool,
) -> tuple[Against | None, list[str]]:
    """The default model beside the linear probe, whose hits join ``hits``; and notes, such as why there is no probe."""
    if reason := no_probe(store, settings.groups(store.shards)):
        return None, [f"no linear probe: {reason}"]
    if default not in hits:
        return None, []
    if not (any_time or is_quick(store, settings.base)):
        long = f"no linear probe: of {len(store.classes):,} classes it takes long"
        return None, [f"{long}; next: taftcache evaluate {typed(store.path)} --probe"]
    fitted, hits[PROBE] = linear_probe(store, settings, rows, progress)
    notes = []
    if fitted.rows < fitted.of:
        notes.append(
            f"the linear probe was fitted to {fitted.rows} of {fitted.of} training rows, evenly taken: more of its "
            "features have no room in memory"
        )
    found = row_verdict(hits[default], hits[PROBE], groups)
    return Against(model=default, probe=fitted, **found._asdict()), notes


def _few_rows(store: FeatureStore, against: Against | None) -> list[str]:
    """A note on what may help where the probe is ahead and some classes have several times the rows of others."""
    least, most = _rows_of_classes(store)
    if against is None or against.verdict != "behind" or most < SEVERAL * least:
        return []
    given = recorded_recipe(store).objective
    ways = ["--set objective.class_weights=balanced"] if given.class_weights == "none" else []
    ways += ["--set objective.loss=cross_entropy"] if given.loss != "cross_entropy" else []
    if not ways:
        return []
    said = f"the probe is ahead, and classes have {least} to {most} training rows, which may ask for other settings"
    return [f"{said}; next: taftcache train {typed(store.path)} {', or with '.join(ways)}"]


def _rows_of_classes(store: FeatureStore) -> tuple[int, int]:
    """The fewest and the most training rows of a class that has any."""
    counts = sum((Counter(shard.statistics["rows_per_class"]) for shard in store.shards), Counter[int]())
    return min(counts.values(), default=0), max(counts.values(), default=0)


def check_reference(store: FeatureStore, reference: str | None) -> None:
    """StoreError if a model is named that the store does not have; RecipeError for a place, where others may be."""
    if reference is None or is_model_of(store, reference):
        return
    if os.path.exists(reference):
        raise RecipeError(
            f"{reference} is not one of the models of {store.path}, and its held-out rows judge only those",
            do="name labelled images or vectors that judge both: --on DATA; in Python evaluate_on(store, data, …)",
        )
    raise no_model(store, reference)


def is_model_of(store: FeatureStore, name: str) -> bool:
    """Whether the store has a model or component of that name."""
    return is_model(name) and name in store.objects()


def differences(
    reference: str | None, hits: Mapping[str, NDArray[np.bool_]], groups: RowGroups | None
) -> dict[str, Difference]:
    """Every model beside ``reference``, from which rows [n] each is right on, of these ``groups``; none if that is not
    among them."""
    if reference is None or reference not in hits:
        return {}
    beside = {name: row_verdict(hit, hits[reference], groups) for name, hit in hits.items() if name != reference}
    return {name: Difference(**found._asdict()) for name, found in beside.items()}


def ahead_notes(default: str, hits: Mapping[str, NDArray[np.bool_]], groups: RowGroups | None) -> list[str]:
    """A note on each model that is right on more rows [n], of these ``groups``, than the default one, by more than
    noise."""
    others = [name for name in hits if name != default and default in hits]
    found = {name: row_verdict(hits[name], hits[default], groups) for name in others}
    return [
        f"{name} does better than {default}, which predict takes where none is named: on the same rows by "
        f"{points_text(said.ahead, said.interval, said.groups)}; --model {name}"
        for name, said in found.items()
        if said.verdict == "ahead"
    ]


def _uneven(store: FeatureStore, rows: Shard, hits: Mapping[str, NDArray[np.bool_]]) -> list[str]:
    """A note where accuracy hides that a class is never found: it is hardly higher than if the commonest class were
    always named, or that class has nearly all rows."""
    if len(store.classes) == 1:
        return [f"there is one class: {OF_ONE_CLASS}"]
    of = np.bincount(rows.labels)
    most, share = of.max(), of.max() / rows.rows
    models = {name: hit for name, hit in hits.items() if name != UNTOUCHED and not is_component(name)}
    low = [name for name, hit in models.items() if hit.sum() <= most + LITTLE * (rows.rows - most)]
    if share == 1 or not models or not (low or share > UNEVEN):  # of a class without rows, another note says so
        return []
    said = f"always naming {store.classes[int(of.argmax())]!r} is right on {100 * share:.2f} % of held-out rows"
    hardly = "no" if all(models[name].sum() <= most for name in low) else "hardly"
    said += f", {hardly} fewer than {first_few(low)}" if low else ""
    means = first_few([f"{name} {100 * balanced(models[name], rows.labels):.2f} %" for name in low or models])
    said += f"; balanced accuracy, the mean over classes: {means}"
    objects = store.objects()
    if low and share <= UNEVEN and all(name in objects and PRIVATE in objects[name].meta for name in low):
        said += "; through the noise of private training they learned next to nothing: it takes more rows of each class"
        return [f"{said}, or a larger privacy.epsilon"]
    fewest, largest = _rows_of_classes(store)
    alike = largest < SEVERAL * fewest
    if recorded_recipe(store).objective.class_weights != "none" or promised(store) or alike:
        return [said]
    return [f"{said}; next: taftcache train {typed(store.path)} --set objective.class_weights=balanced"]


def _of_groups(store: FeatureStore, rows: Shard, groups: RowGroups | None) -> list[str]:
    """A note on the groups that the held-out rows are of, if rows belong together."""
    data = recorded_recipe(store).data
    if data.group is None:
        return []
    both = groups_of(data, rows.sample_ids) & groups_of(data, store.sample_ids())
    known = f", {len(both)} of which have training rows, too" if both else ""
    return [grouped_text(rows.rows, groups, "held-out row", known)]


def grouped_text(rows: int, groups: RowGroups | None, row: str = "row", known: str = "") -> str:
    """How many groups so many rows are of, what else is ``known`` of these, and what that means for intervals."""
    count = rows if groups is None else groups.count
    said = f"the {counted(rows, row)} are of {counted(count, 'group')} (data.group){known}"
    if groups is None:
        return said
    if count == 1:
        return f"{said}: nothing tells how groups differ, so there is no interval, and every difference may be noise"
    return f"{said}; the rows of a group are alike, so intervals and verdicts count groups, not rows"


def _tuned(metas: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A note on the private models whose learning rate the held-out rows chose."""
    names = [name for name, meta in metas.items() if BY_HELD_OUT in meta.get(PRIVATE, {}).get("tuning", "")]
    if not names:
        return []
    return [f"these rows chose the learning rate of {', '.join(names)}, whose accuracy on them is a little too good"]


def _leaked(store: FeatureStore, ids: Sequence[str], rows: Shard) -> list[str]:
    """A note on held-out rows that are training rows, too."""
    if not ids:
        return []
    return [
        f"{len(ids)} of {rows.rows} held-out rows hold the very bytes of a training row, so no accuracy here is of new "
        f"rows alone: {first_few(told_apart(ids))}; next: taftcache inspect {typed(store.path)} --duplicates"
    ]


def held_out_score(store: FeatureStore, name: str, consent: Consent | None = None) -> Score | None:
    """How well one model does on the held-out rows, in one pass; None if there are none, or one class alone.

    Raises:
        StoreError: no such model. UntrustedStore: as for ``read_base``.
    """
    if store.held_out is None or len(store.classes) < 2:
        return None
    rows = store.held_out
    groups = row_groups(store, rows.sample_ids)
    kept = KeptLogits.of(rows, [name], len(store.classes))
    right = predicted_of(store, name, rows, consent, kept) == rows.labels
    return Score(
        accuracy=float(right.mean()),
        interval=accuracy_interval(right, groups),
        level=LEVEL,
        rows=len(right),
        groups=groups and groups.count,
        calibration=calibration_of(kept.logits[name], rows.labels[: kept.rows]),
    )


def proven_shares(
    rows: Shard, store: FeatureStore, settings: Settings, names: Sequence[str], progress: Progress
) -> dict[str, float]:
    """By model, the share of ``rows`` whose class its certificate shows to be the one that the exact optimum gives.

    The distance to the optimum is the certificate's; for a weighted sum of components it is Σ |μ| times theirs, with
    the largest μ over the classes. A model without one (a private component, say) is left out. Costs what
    ``proven_labels`` does over the rows, for each model.
    """
    said = {name: meta_of(ref.meta) for name, ref in store.objects().items() if is_model(name)}
    reach = {name: distance for name in names if (distance := certified_distance(said, name)) < inf}
    shares = {}
    with progress.task("prove labels", len(reach)) as task:
        for name, distance in reach.items():
            component = read_component(store, name, settings.base)
            operator = TangentOperator(settings.base, [rows], trained=component.layout, dtype=torch.float64)
            _, proven = proven_labels(operator, component.delta, distance)
            shares[name] = proven.double().mean().item()
            task.advance(1)
    return shares


def _unproven(store: FeatureStore, names: Sequence[str]) -> list[str]:
    """A note on each of the models ``names``, none of whose labels is proven: which certificates it lacks."""
    said = {name: meta_of(ref.meta) for name, ref in store.objects().items() if is_model(name)}
    known, foreign = {name for name in said if certified_distance(said, name) < inf}, imported(store)
    notes = []
    for name in names:
        parts = said[name].coefficients or {name: 1}
        lacking = [part for part, mu in parts.items() if magnitude(mu) and part not in known]
        of = first_few([f"{part} (imported)" if part in foreign else part for part in lacking])
        notes.append(f"no label of {name} is proven, for there is no certificate here of {of}")
    return notes


def _held_out(store: FeatureStore) -> Shard:
    """The held-out group; StoreError where there is none."""
    if store.held_out is None:
        anew = (
            f"taftcache evaluate {typed(store.path)} --on DATA, with labelled data of your own; or a store that has "
            "some: extract with data.test or data.held_out above 0; import with test rows (--test, test=…) or "
            "data.held_out"
        )
        raise StoreError(
            f"{store.path} has no held-out rows to measure an accuracy on",
            got="training rows only",
            do=next(iter(still_missing(store)), anew),
        )
    return store.held_out


def certified_distance(said: Mapping[str, ComponentMeta], name: str) -> float:
    """The certified bound on a model's ‖Δw − Δw*‖; infinite if nothing is proven about it, or about a member with
    a coefficient other than 0.

    Nothing is proven about an imported model, whatever certificate an earlier version took over: its rows are not here.
    """
    own = said[name]
    if own.coefficients is not None:
        parts = [(magnitude(mu), part) for part, mu in own.coefficients.items()]
        return sum(mu * (certified_distance(said, part) if part in said else inf) for mu, part in parts if mu)
    return inf if own.imported or own.certificate is None else own.certificate.distance_bound
