"""A student compared with other priors, other teachers and other data: tables, plots, and what they say."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.errors import TaftcacheError
from taftcache.names import counted
from taftcache.report.paired import paired
from taftcache.teaching.evidence import probe
from taftcache.teaching.features import NOISE, TeacherFeatures
from taftcache.teaching.spec import PriorName
from taftcache.teaching.students.measurement import latencies, parameters
from taftcache.teaching.students.pages import CURVES, write_page
from taftcache.teaching.students.students import Students, StudentSettings
from taftcache.teaching.students.trainer import StudentOutcome

Row = dict[str, Any]
FEW = 100  # with fewer images, a choice of β gets a note


@dataclass
class Comparison:
    """What is reported; ``beta`` and ``accuracy`` are the recipe's own student's, one accuracy for each seed."""

    beta: float = 0.0
    accuracy: list[float] = field(default_factory=list)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    conclusions: list[str] = field(default_factory=list)
    plots: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare(students: Students) -> Comparison:
    """Train what the recipe asks for, and write report.md, report.json and the plots into the recipe's folder."""
    recipe, made, tested = students.recipe, Comparison(notes=students.notes), len(students.joined.held_out)
    own = recipe.teach.prior
    wanted: list[PriorName] = list(dict.fromkeys(["none", *recipe.report.priors, own]))
    if own == "none" and not recipe.report.priors:
        wanted = ["none"]
    found: dict[PriorName, list[StudentOutcome]] = {}
    rows = []
    for prior in wanted:
        choice = students.choose(prior)
        found[prior] = _seeds(students, prior, choice.beta)
        values = [outcome.accuracy for outcome in found[prior]]
        above = _above(found[prior], found["none"], tested) if choice.beta else {}
        rows.append(
            {
                "student trained with": TITLES[prior],
                "beta": choice.beta,
                **_over_seeds(values),
                "seeds": len(values),
                "error / STL": _ratio(1 - mean(values), 1 - mean(o.accuracy for o in found["none"])),
                **above,
                "tried on rows held back": choice.accuracy,
            }
        )
        if prior == own:
            made.beta, made.accuracy = choice.beta, values
            made.tables["energy"] = energy(
                students, students.settings(prior, choice.beta, recipe.train.seeds[0]), found[prior]
            )
    made.tables = {"students": rows, **made.tables}
    if recipe.report.probes:
        made.tables["linear probes of the teachers"] = probes(students)
    if recipe.report.latency:
        made.tables["cost"] = costs(students, made.notes)
    curves = recipe.report.curves or [own]
    for title, key in CURVES.items():
        if points := getattr(recipe.report, key):
            made.tables[title] = curve(students, key, points, curves)
    counts = _counts(students, chosen=any(row["tried on rows held back"] for row in rows))
    made.conclusions = [*conclusions(made.tables, counts.get("held back", 0)), *_steps(found)]
    if 0 < counts.get("held back", FEW) < FEW:
        made.notes.append(
            f"beta was chosen on {counted(counts['held back'], 'image')}, of which one is"
            f" {100 / counts['held back']:.1f} points: with other images another beta may be the best; more labelled"
            " images, a larger teach.hold_out or a number for teach.beta is surer"
        )
    energies = _profile(students, found, own)
    made.plots = write_page(recipe.folder, recipe, counts, made.tables, made.conclusions, made.notes, energies)
    return made


def _counts(students: Students, *, chosen: bool) -> dict[str, int]:
    """How many images of how many classes the recipe's own student has, and if ``chosen`` how many of them chose β."""
    settings = students.settings("none", 0.0, students.recipe.train.seeds[0])
    work = students.training_rows(settings)
    counts = {"labelled": len(work.labelled), "unlabelled": len(work.unlabelled), "tested": len(work.tested)}
    if chosen:
        counts["held back"] = len(students.training_rows(replace(settings, held_back=True)).tested)
    return {**counts, "classes": len(students.joined.classes)}


def _seeds(students: Students, prior: PriorName, beta: float, **changes: Any) -> list[StudentOutcome]:
    return [students.outcome(students.settings(prior, beta, seed, **changes)) for seed in students.recipe.train.seeds]


def _over_seeds(values: Sequence[float]) -> Row:
    """Mean and standard deviation (n − 1) of one accuracy per seed."""
    return {"accuracy": mean(values), "deviation": stdev(values) if len(values) > 1 else None}


def energy(students: Students, settings: StudentSettings, outcomes: Sequence[StudentOutcome]) -> list[Row]:
    """Each teacher's share of Σ ρ² over features and how many of its features carry any; empty without weights."""
    if not outcomes or outcomes[0].energy is None:
        return []
    slices = students.features(settings).slices
    shares = [_shares(slices, outcome) for outcome in outcomes]
    first = np.array(outcomes[0].energy)
    return [
        {
            "teacher": name,
            "features": where.stop - where.start,
            "share of energy": mean(s[name] for s in shares),
            "features in use": int((first[where] > 1e-6 * first.max()).sum()),
        }
        for name, where in slices.items()
    ]


def _shares(slices: Mapping[str, slice], outcome: StudentOutcome) -> dict[str, float]:
    values = np.array(outcome.energy)
    return {name: float(values[where].sum() / max(values.sum(), 1e-300)) for name, where in slices.items()}


def _profile(
    students: Students, found: Mapping[PriorName, Sequence[StudentOutcome]], own: PriorName
) -> dict[str, list[float]]:
    """The own student's energy by teacher and feature, in per cent of all."""
    held = found[own][0].energy
    if held is None:
        return {}
    slices = students.features(students.settings(own, 1.0, students.recipe.train.seeds[0])).slices
    total = max(sum(held), 1e-300)
    return {name: [100 * value / total for value in held[where]] for name, where in slices.items()}


def probes(students: Students) -> list[Row]:
    """Accuracy on the test rows of a ridge regression on each teacher's features, and on all together."""
    joined = students.joined
    rows = students.training_rows(students.settings("none", 0.0, students.recipe.train.seeds[0]))
    features = TeacherFeatures(joined.teachers, rows.labelled)
    labels = torch.from_numpy(joined.labels)
    train = features.rows(rows.labelled, torch.float64)
    test = features.rows(rows.tested, torch.float64)
    parts = dict(features.slices)
    if len(parts) > 1:
        parts["all together"] = slice(0, features.width)
    out = []
    for name, where in parts.items():
        fitted = probe(train[:, where], labels[rows.labelled], len(joined.classes))
        right = fitted(test[:, where]).argmax(1) == labels[rows.tested]
        out.append({"teacher": name, "features": where.stop - where.start, "accuracy": right.double().mean().item()})
    return out


def costs(students: Students, notes: list[str]) -> list[Row]:
    """Parameters and latency of the student and of the teachers' whole models."""
    student = students.student(0).backbone
    models = {f"student ({student.name})": (student.network, student.data_config["input_size"])}
    for teacher in students.joined.teachers:
        try:
            backbone = students.backbone(teacher.name)
        except TaftcacheError as error:  # features are enough to teach; the weights may be gone
            notes.append(f"{teacher.name}: parameters and latency unknown, its model does not load ({error.fault})")
            continue
        models[f"teacher {teacher.name} ({backbone.name})"] = (backbone.network, backbone.data_config["input_size"])
    seconds = latencies([*models.values()])
    return [
        {"model": title, "parameters": parameters(model), "milliseconds an image": 1e3 * one}
        for (title, (model, _)), one in zip(models.items(), seconds, strict=True)
    ]


def curve(students: Students, key: str, values: Sequence[int], priors: Sequence[PriorName]) -> list[Row]:
    """Accuracy (mean and deviation over seeds) of every prior at each value of ``noise``, ``per_class`` or ``repeat``.

    β is chosen anew at each point, as someone who has only that data would.
    """
    rows, seed = [], students.recipe.train.seeds[0]
    for value in values:
        for prior in dict.fromkeys(["none", *priors]):
            beta = students.choose(prior, **{key: value}).beta
            outcomes = _seeds(students, prior, beta, **{key: value})
            row: Row = {key: value, "prior": prior, "beta": beta, **_over_seeds([o.accuracy for o in outcomes])}
            if outcomes[0].energy is not None:
                slices = students.features(students.settings(prior, beta, seed, **{key: value})).slices
                shares = [_shares(slices, outcome) for outcome in outcomes]
                row["noise energy"] = mean(s.get(NOISE, 0.0) for s in shares)
                first = students.joined.teachers[0].name
                row["first teacher's energy"] = mean(
                    sum(share for name, share in s.items() if name.split(" (copy")[0] == first) for s in shares
                )
            rows.append(row)
    return rows


def conclusions(tables: Mapping[str, list[Row]], held_back: int = 0) -> list[str]:
    """What the tables say, including where a prior does not help; β was chosen on ``held_back`` images."""
    found = []
    students = {row["student trained with"]: row for row in tables["students"]}
    for title, row in students.items():
        if title == TITLES["none"]:
            continue
        if row["beta"] == 0:
            why = (
                "no other beta was better on rows held back"
                if row["tried on rows held back"]
                else "beta = 0 was asked for"
            )
            found.append(f"{title}: {why}, so the student is the plain one.")
        else:
            alone = " (one seed: the interval covers other test images only)" if row["seeds"] == 1 else ""
            verdict = f", {row['verdict']}{alone}" if "verdict" in row else ""
            found.append(f"{title} above STL: {row['points above STL']}{verdict}.")
    if held_back:
        found.append(f"beta was chosen by accuracy on {held_back:,} labelled images held back.")
    found += _at_the_end(students)
    if "linear probes of the teachers" in tables:
        best = max(tables["linear probes of the teachers"], key=lambda row: row["accuracy"])
        top = max(tables["students"], key=lambda row: row["accuracy"])
        ahead = best["accuracy"] - top["accuracy"]
        found.append(
            f"The best linear probe ({best['teacher']}) is {100 * abs(ahead):.1f} points "
            f"{'above' if ahead > 0 else 'below'} the best student, at the teachers' cost for each image."
        )
    for row in tables.get("noise features", []):
        if row["noise"] and "noise energy" in row:
            kept = 100 * row["noise energy"]
            found.append(f"{row['prior']} with {row['noise']} noise features keeps {kept:.1f} % of its energy on them.")
    return found


def _steps(found: Mapping[PriorName, Sequence[StudentOutcome]]) -> list[str]:
    """A line if images without labels give students with a prior more steps than STL."""
    few, many = found["none"][0].steps, max(outcomes[0].steps for outcomes in found.values())
    if many == few:
        return []
    return [
        f"STL takes {few:,} steps and students with a prior {many:,}, for an epoch of theirs has the images without"
        " labels too: part of a difference may be due to that. STL with more train.epochs shows how much."
    ]


def _at_the_end(students: Mapping[str, Row]) -> list[str]:
    """A line for the students whose β is the largest that was tried, and one for the smallest above zero."""
    tried = {title: [b for b in map(float, row["tried on rows held back"]) if b] for title, row in students.items()}
    lines = []
    for end, which, further in ((max, "largest", "go on"), (min, "smallest above 0", "begin lower")):
        several = end is min  # if only one was tried, it is said once
        at = [name for name, betas in tried.items() if len(betas) > several and students[name]["beta"] == end(betas)]
        if at:
            beta = f"beta = {students[at[0]]['beta']:g} of {', '.join(at)}"
            lines.append(f"{beta} is the {which} that was tried; teach.grid can {further}.")
    return lines


def _above(ours: Sequence[StudentOutcome], theirs: Sequence[StudentOutcome], tested: int) -> Row:
    """By how many points the first are ahead on the same images, one student per seed, with the interval and its
    verdict; nothing for outcomes that do not say which images were right."""
    if not all(outcome.right for outcome in (*ours, *theirs)):
        return {"points above STL": "images not comparable"}
    found = paired(*(np.stack([_right(outcome, tested) for outcome in some]) for some in (ours, theirs)))
    return {"points above STL": found.text(), "verdict": VERDICTS[found.verdict]}


def _right(outcome: StudentOutcome, tested: int) -> NDArray[np.float64]:
    """For each of the ``tested`` images, 1 if it was right, else 0."""
    return np.unpackbits(np.frombuffer(b64decode(outcome.right), np.uint8), count=tested).astype(np.float64)


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


VERDICTS = {"holds": "better", "within noise": "within noise", "contradicted": "worse"}
"""A claim's verdicts, in words for a student about which nobody claimed anything."""
TITLES: dict[PriorName, str] = {
    "none": "STL (no prior)",
    "kd": "KD (features)",
    "kd-logits": "KD (logits)",
    "kkd": "KD (kernels)",
    "b-tuning": "B-Tuning",
    "rkd": "RKD",
    "aft": "AFT (learned weights)",
    "aft-nnls": "AFT (weights in closed form)",
    "aft-fixed": "AFT, equal weights",
    "aft-dense": "AFT, dense map, no kernel",
    "aft-rbf": "AFT, Gaussian kernel",
}
