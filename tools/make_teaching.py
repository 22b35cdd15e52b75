"""Write the table of docs/teaching-results.md from what `taftcache teach` reported.

python tools/make_teaching.py [--check] [FOLDER …]

A FOLDER is where `taftcache teach teach/NAME` left its report and its students (stores/teach/NAME). Its figures are
kept in docs/results/teach/NAME.json: settings, accuracies of every seed, and differences on the same images with their
intervals; no row of data. The page is of all that is kept there. `--check` writes nothing, and exits 1 where the page
is not what the kept figures make.
"""

from __future__ import annotations

import argparse
import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import marked
import numpy as np
from numpy.typing import NDArray

import taftcache
from taftcache.report.paired import paired
from taftcache.report.tables import markdown_table
from taftcache.report.write import write_json
from taftcache.teaching.spec import PriorName
from taftcache.teaching.students.comparison import TITLES
from taftcache.teaching.students.students import OUTCOME, StudentSettings

KEPT, PAGE = marked.ROOT / "docs" / "results" / "teach", "docs/teaching-results.md"
PRIORS = {title: prior for prior, title in TITLES.items()}
# Of a curve: its table in the report, and its point in words.
CURVES = {
    "noise": ("noise features", "{} features of noise added"),
    "per_class": ("labelled images of a class", "{} labelled images of a class"),
    "repeat": ("times the first teacher is given", "the first teacher given {} times"),
}
# Each: students of this prior are above those of that one; all are set beside those of none.
CLAIMS: tuple[tuple[PriorName, PriorName], ...] = (
    ("aft", "kd"),
    ("aft-nnls", "kd"),
    ("aft", "kd-logits"),
    ("aft-nnls", "kd-logits"),
    ("aft", "aft-fixed"),
    ("aft-nnls", "aft"),
)
Figures = dict[str, Any]


class Right(NamedTuple):
    """Which tested images a prior's students get right, 1 or 0 [seeds, images]; ``students`` are their names."""

    students: tuple[str, ...]
    images: NDArray[np.float64]


def kept(folder: Path) -> Figures:
    """The figures of a report: of its students, and of each point of its curves."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    recipe, tables = report["recipe"], report["tables"]
    own = {"noise": recipe["teach"]["noise"], "per_class": recipe["train"]["per_class"]}
    rows = [{**row, "prior": PRIORS[row["student trained with"]]} for row in tables["students"]]
    base, right = students(folder, report, rows, own)
    points = {}
    for key, (title, _) in CURVES.items():
        for value in dict.fromkeys(row[key] for row in tables.get(title, [])):
            found = [row for row in tables[title] if row[key] == value]
            made, there = students(folder, report, found, {**own, key: value})
            itself = {prior: against(there[prior], right[prior]) for prior in there if prior in right}
            points[f"{key} {value}"] = {"students": made, "claims": claims(there), "itself": itself}
    return {
        "version": taftcache.__version__,
        "recipe": {key: value for key, value in recipe.items() if key not in ("device", "path", "report")},
        "rows": report["rows"],
        "students": base,
        "claims": claims(right),
        "points": points,
        "probes": tables.get("linear probes of the teachers", []),
        "energy": tables.get("energy", []),
    }


def students(
    folder: Path, report: Figures, rows: Sequence[Figures], changes: Figures
) -> tuple[Figures, dict[str, Right]]:
    """What became of each prior's students, and which images they get right; both by prior."""
    made, right = {}, {}
    for row in rows:
        prior, seeds = row["prior"], report["recipe"]["train"]["seeds"]
        names = tuple(named(prior, row["beta"], seed, changes) for seed in seeds)
        outcomes = [outcome(folder, name) for name in names]
        tested = report["rows"]["tested"]
        right[prior] = Right(names, np.stack([bits(each["right"], tested) for each in outcomes]))
        made[prior] = {
            "beta": row["beta"],
            "tried": row.get("tried on rows held back") or {},
            "accuracy": [each["accuracy"] for each in outcomes],
            "loss": mean(each["loss"] for each in outcomes),
            "noise energy": row.get("noise energy"),
            "against STL": against(right[prior], right["none"]),
        }
    return made, right


def named(prior: Any, beta: float, seed: int, changes: Figures) -> str:
    """A student's folder; with β = 0 it is the plain one's, whatever the teachers were."""
    if beta == 0:
        prior, changes = "none", {"per_class": changes["per_class"]}
    return StudentSettings(prior, float(beta), seed, **changes).name


def outcome(folder: Path, name: str) -> Figures:
    """What is kept of one student."""
    held: Figures = json.loads((folder / "students" / name / OUTCOME).read_text(encoding="utf-8"))["outcome"]
    if not held.get("right"):
        raise SystemExit(f"{folder}: {name} was trained before it was kept which images a student gets right")
    return held


def bits(text: str, count: int) -> NDArray[np.float64]:
    """1 or 0 for each tested image."""
    return np.unpackbits(np.frombuffer(b64decode(text), np.uint8), count=count).astype(np.float64)


def against(ours: Right, theirs: Right) -> Figures:
    """By how many points one is ahead of the other, on the same images and seeds; "same": they are one (β = 0)."""
    if ours.students == theirs.students:
        return {"ahead": 0.0, "interval": [0.0, 0.0], "verdict": "same"}
    found = paired(ours.images, theirs.images)
    return {"ahead": found.ahead, "interval": list(found.interval), "verdict": found.verdict}


def claims(right: dict[str, Right]) -> dict[str, Figures]:
    """Those of ``CLAIMS`` whose two priors were trained, by their two names."""
    return {f"{one} > {other}": against(right[one], right[other]) for one, other in CLAIMS if {one, other} <= {*right}}


def part(reports: dict[str, Figures]) -> str:
    """The whole part of the page: all claims side by side, and what was trained for them."""
    return "\n".join([*side_by_side(reports), "", *(f"- {about(name, found)}" for name, found in reports.items())])


def side_by_side(reports: dict[str, Figures]) -> list[str]:
    """A row for each claim, a column for each set of students."""
    found: dict[str, Figures] = {}
    for name, report in reports.items():
        found |= {name: report} | {f"{name}, {said(point)}": of for point, of in report["points"].items()}
    rows = [["accuracy of STL, %", *(f"{100 * mean(of['students']['none']['accuracy']):.1f}" for of in found.values())]]
    for prior in (prior for prior in TITLES if prior != "none"):
        cells = [verdict(of["students"].get(prior, {}).get("against STL")) for of in found.values()]
        rows.append([f"{TITLES[prior]} above {TITLES['none']}", *cells])
    for one, other in CLAIMS:
        cells = [verdict(of["claims"].get(f"{one} > {other}")) for of in found.values()]
        rows.append([f"{TITLES[one]} above {TITLES[other]}", *cells])
    return markdown_table(["", *found], (row for row in rows if any(row[1:])))


def about(name: str, found: Figures) -> str:
    """What was trained on what."""
    rows, recipe = found["rows"], found["recipe"]
    spec, student = recipe["train"], recipe["student"]
    model = "the bundled backbone" if student["weights"] == "bundled" else student["model"]
    model += f", its first {student['blocks']} blocks" if student.get("blocks") else ""
    start = "from nothing" if student["weights"] == "random" else "pre-trained"
    teachers = " and ".join(each["name"] or Path(each["store"] or each["recipe"]).stem for each in recipe["teachers"])
    unlabelled = f" and {rows['unlabelled']:,} without labels" if rows["unlabelled"] else ""
    grid = ", ".join(f"{beta:g}" for beta in sorted({0.0, *recipe["teach"]["grid"]}))
    return (
        f"`taftcache teach teach/{name}`: {rows['labelled']:,} labelled images of {rows['classes']} classes"
        f"{unlabelled}, {rows['tested']:,} to test on. Teachers: {teachers}. Student: {model}, {start},"
        f" {spec['epochs']} epochs in batches of {spec['batch']} at a rate of {spec['rate']:g}; STL's mean"
        f" cross-entropy in the last epoch is {found['students']['none']['loss']:.2g}{steps(rows, spec)}. β from"
        f" {grid}, chosen on {chosen_by(found)}{at_ends(found)}; {len(spec['seeds'])} seeds;"
        f" version {found['version']}."
    )


def at_ends(found: Figures) -> str:
    """Priors whose β is the least above 0 or the largest that was tried, beyond which another may be better."""
    grid = sorted({float(beta) for beta in found["recipe"]["teach"]["grid"]} - {0.0})
    named: dict[float, list[str]] = {}
    for prior, made in found["students"].items():
        if made["tried"] and made["beta"] in (grid[0], grid[-1]):
            named.setdefault(made["beta"], []).append(TITLES[prior])
    return "".join(
        f", and is {beta:g}, the {'least above 0' if beta == grid[0] else 'largest'}, for {', '.join(priors)}"
        for beta, priors in sorted(named.items())
    )


def steps(rows: Figures, spec: Figures) -> str:
    """How many steps STL takes and how many the others, where images without labels give these more of them."""
    if not rows["unlabelled"]:
        return ""
    few, many = (
        spec["epochs"] * -(-count // spec["batch"])
        for count in (rows["labelled"], rows["labelled"] + rows["unlabelled"])
    )
    return f", after {few:,} steps where a student with a prior takes {many:,}"


def chosen_by(found: Figures) -> str:
    """The images that chose β; reports of 0.1.0 do not say how many they were."""
    held, share = found["rows"].get("held back"), found["recipe"]["teach"]["hold_out"]
    return f"{held:,} of the labelled images" if held else f"{100 * share:g} % of the labelled images"


def verdict(claim: Figures | None) -> str:
    """The difference in points with its interval, and what it says."""
    if claim is None:
        return ""
    if claim["verdict"] == "same":
        return "the same students"
    ahead, low, high = (f"{each:+.1f}".replace("-", "−") for each in (claim["ahead"], *claim["interval"]))
    return f"{ahead} ({low} to {high}): {claim['verdict']}"


def said(point: str) -> str:
    """A point of a curve in words."""
    key, _, value = point.partition(" ")
    return CURVES[key][1].format(f"{int(value):,}")


def main(words: Sequence[str] | None = None) -> None:
    """Keep the reports of the folders, and write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(words)
    KEPT.mkdir(parents=True, exist_ok=True)
    for folder in asked.folders:
        made = kept(folder)
        write_json(KEPT / f"{made['recipe']['name']}.json", made)
    reports = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(KEPT.glob("*.json"))}
    before = (marked.ROOT / PAGE).read_text(encoding="utf-8")
    if asked.check:
        if f"<!-- taught -->\n\n{part(reports)}\n\n<!-- /taught -->" not in before:
            raise SystemExit(f"{PAGE} is not what docs/results/teach makes: python tools/make_teaching.py")
        return
    marked.put(PAGE, "taught", part(reports))


if __name__ == "__main__":
    main()
