"""Reports of the main job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.table import Table

from taftcache.names import EXACT, HEAD, MEAN, is_component
from taftcache.terminal.console import OUT, print_notes
from taftcache.terminal.forgetting import forgotten_lines
from taftcache.terminal.text import certified, readable_size, some

if TYPE_CHECKING:
    from taftcache.stages.extract.appending import AppendReport
    from taftcache.stages.extract.drafting import InitReport
    from taftcache.stages.extract.estimation import EstimateReport
    from taftcache.stages.extract.extraction import ExtractReport
    from taftcache.stages.look.evaluation import EvaluateReport
    from taftcache.stages.look.prediction import PredictReport
    from taftcache.stages.run import RunReport
    from taftcache.stages.train.composing import ComposeReport
    from taftcache.stages.train.training import TrainReport


def show_run(report: RunReport) -> None:
    """The closing table of a run."""
    e, t, c = report.extract, report.train, report.compose
    table = Table("stage", "what was done", "seconds", title="taftcache run", title_justify="left")
    rows = sum(e.shards.values())
    extracted = f"{e.images} images run and cached" if e.images else "nothing: all rows are cached"
    table.add_row(
        "extract", f"{extracted}\n{rows} rows in {len(e.shards)} shards, {readable_size(e.bytes)}", f"{e.seconds:.1f}"
    )
    trained = f"{len(t.trained)} solved" if t.trained else "nothing: every component is current"
    worst = max(t.certificates.values(), key=lambda x: x["distance_bound"])
    table.add_row("train", f"{trained}, {len(t.kept)} kept\n{certified(worst)}", f"{t.seconds:.1f}")
    what = f"mean of {len(c.members)} components" + ("" if c.changed else ", unchanged")
    table.add_row("compose", f"{what}\nΣμf(Δw) = f(ΣμΔw) to {c.identity_error:.0e}", "")
    if report.evaluate is not None:
        table.add_row("evaluate", _accuracies(report.evaluate), "")
    if report.forget is not None:
        table.add_row("forget", forgotten_lines(report.forget), f"{report.forget.seconds:.1f}")
    OUT.print(table)
    print_notes([*e.notes, *t.notes])
    if report.idle:
        OUT.print(f"Nothing to do: every stage was done before ({report.seconds:.1f} s to make sure).")
    OUT.print(f"store  {report.store}   root {report.root_digest[:16]}", soft_wrap=True)
    OUT.print(
        f"next   taftcache inspect {report.store}\n"
        f"       taftcache verify {report.store}\n"
        f"       taftcache forget {report.store} --sample ID",
        soft_wrap=True,
    )


def show_demo(report: RunReport) -> None:
    """A run, and where to go from it."""
    show_run(report)
    OUT.print(
        f"page   taftcache view {shlex.quote(str(report.store))}\n"
        "yours  taftcache init FOLDER   (a folder of images with one folder for each class)",
        soft_wrap=True,
    )


def show_init(report: InitReport) -> None:
    """What was found, what was chosen, what it costs."""
    costs, (width, height) = report.estimate, report.pixels
    free = "" if costs.free_bytes is None else f" ({readable_size(costs.free_bytes)} are free there)"
    small = ", for 32 x 32 pixels; --model NAME for another" if report.backbone == "bundled" else ""
    shards = "1 shard" if report.shards == 1 else f"{report.shards} shards"
    OUT.print(
        f"images   {report.images:,} of {len(report.classes)} classes ({some(report.classes, 5)}),"
        f" about {width} x {height} pixels\n"
        f"split    {report.images - report.held_out:,} to train on in {shards}, {report.held_out:,} held out to test\n"
        f"model    {report.backbone}{small}\n"
        f"cost     about {readable_size(costs.bytes)} in {costs.store}{free},"
        f" {_duration(costs.seconds)} to run the frozen layers once",
        soft_wrap=True,
    )
    print_notes(report.notes)
    OUT.print(f"recipe   {report.recipe} written; each choice has its reason beside it", soft_wrap=True)
    OUT.print(f"next     taftcache run {shlex.quote(str(report.recipe))}", soft_wrap=True)


def _duration(seconds: float) -> str:
    """About so long."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{max(seconds, 1):.0f} s"


def show_estimate(report: EstimateReport) -> None:
    """What an extraction would take."""
    total = sum(report.rows.values())
    free = "" if report.free_bytes is None else f" ({readable_size(report.free_bytes)} are free there)"
    OUT.print(
        f"{total} images of {report.classes} classes; {report.kept}\n"
        f"about {readable_size(report.bytes)} in {report.store}{free}\n"
        f"about {_duration(report.seconds)}: {report.tried} images tried, {report.images_per_second:.1f} a second."
        " Nothing was written.",
        soft_wrap=True,
    )


def show_extract(report: ExtractReport) -> None:
    """What stage 1 did."""
    if report.images:
        speed = report.images / report.seconds if report.seconds else 0
        OUT.print(
            f"{report.images} images run in {report.seconds:.1f} s ({speed:.0f} a second), {report.skipped} skipped"
        )
    else:
        OUT.print("Nothing to do: every shard is in the store.")
    print_notes(report.notes)
    shards = ", ".join(f"{name} {rows}" for name, rows in report.shards.items())
    OUT.print(
        f"rows: {shards}\nstore {report.store}: {readable_size(report.bytes)}, root {report.root_digest[:16]}",
    )


def show_append(report: AppendReport) -> None:
    """Which shards got rows."""
    if not report.added:
        OUT.print(f"Nothing to do: all {report.known} images are in the store.")
    for name, rows in report.added.items():
        OUT.print(f"shard {name}: {rows} samples more")
    if report.added:
        OUT.print(
            f"{report.images} images run in {report.seconds:.1f} s, {report.skipped} skipped, {report.known} known"
        )
        OUT.print(f"shards that kept their files: {', '.join(report.untouched) or 'none'}")
    OUT.print(f"root {report.root_before[:16]} → {report.root_digest[:16]}")


def show_train(report: TrainReport) -> None:
    """Certificates by component."""
    table = Table("component", "rows", "relative gradient", "‖Δw−Δw*‖ ≤", "F−F* ≤", "")
    for name, c in report.certificates.items():
        table.add_row(
            name,
            str(c["rows"]),
            f"{c['relative_gradient']:.1e}",
            f"{c['distance_bound']:.1e}",
            f"{c['gap_bound']:.1e}",
            "solved" if name in report.trained else "kept",
        )
    OUT.print(table)
    print_notes(report.notes)


def show_compose(report: ComposeReport) -> None:
    """What was composed, and how far the exact model is from the mean."""
    state = "written" if report.changed else "is current"
    OUT.print(f"{report.model} {state}: mean of {len(report.members)}, identity holds to {report.identity_error:.0e}")
    if report.left_out:
        OUT.print(f"left out, since they were subtracted: {', '.join(report.left_out)}")
    if others := [name for name in report.models if name != report.model]:
        OUT.print(f"also: {', '.join(others)}")
    if report.certificate is not None:
        OUT.print(
            f"models/exact: {report.passes} passes from the mean, {report.moved:.2g} away from it; "
            + certified(report.certificate),
        )


def show_evaluate(report: EvaluateReport) -> None:
    """Accuracy of every model."""
    table = Table("model", "accuracy", title=f"{report.rows} held-out rows", title_justify="left")
    for name, value in report.accuracy.items():
        table.add_row(name, f"{100 * value:.2f} %")
    OUT.print(table)


def show_predict(report: PredictReport) -> None:
    """Classes of every image."""
    for p in report.predictions:
        classes = ", ".join(f"{label} ({logit:.2f})" for label, logit in zip(p.labels, p.logits, strict=True))
        OUT.print(f"{p.image}: {classes}", soft_wrap=True)


def _accuracies(report: EvaluateReport) -> str:
    shards = [v for name, v in report.accuracy.items() if is_component(name)]
    lines = [
        f"{100 * value:6.2f} %  {_TITLES.get(name, name)}"
        for name, value in report.accuracy.items()
        if not is_component(name)
    ]
    if shards:
        lines.append(f"{100 * sum(shards) / len(shards):6.2f} %  one shard's component alone (mean of {len(shards)})")
    return "\n".join([f"{report.rows} held-out images:", *lines])


_TITLES = {
    MEAN: "composed tangent model",
    EXACT: "exact tangent model of all shards",
    HEAD: "head only, all shards, exact",
}
