"""Reports of the main job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from taftcache.names import (
    EXACT,
    HEAD,
    HELD_OUT,
    MEAN,
    PROBE,
    UNTOUCHED,
    at_least,
    at_most,
    by_groups_text,
    counted,
    first_few,
    input_text,
    is_component,
    points_text,
    readable_size,
    readable_time,
    shard_of,
    them,
    typed,
    with_counts,
)
from taftcache.terminal.console import OUT, note, print_notes, print_table, say, stacked
from taftcache.terminal.forgetting import forgotten_lines
from taftcache.terminal.text import accuracies
from taftcache.view.wording import NEARER, certified, decides

if TYPE_CHECKING:
    from taftcache.stages.extract.drafting import InitReport
    from taftcache.stages.extract.estimation import EstimateReport
    from taftcache.stages.extract.extraction import ExtractReport
    from taftcache.stages.extract.growth.reporting import AppendReport
    from taftcache.stages.files.labelled_set import EvaluateOnReport
    from taftcache.stages.files.prediction import PredictReport
    from taftcache.stages.look.evaluation import Against, EvaluateReport
    from taftcache.stages.run import RunReport
    from taftcache.stages.train.composing import ComposeReport
    from taftcache.stages.train.training import TrainReport

VALUES = 50  # of --by, that are printed


def show_run(report: RunReport, command: str = "taftcache run") -> None:
    """The closing table of a run, under the command that was given."""
    e, t, c = report.extract, report.train, report.compose
    table = Table("stage", "what was done", "seconds", title=command, title_justify="left")
    rows = sum(e.shards.values())
    extracted = f"{counted(e.images, 'image')} run and cached" if e.images else "nothing: all rows are cached"
    if e.skipped:
        extracted += f"; {e.skipped} skipped, which taftcache inspect names"
    table.add_row(
        "extract",
        stacked(extracted, f"{counted(rows, 'row')} in {_in_shards(e.shards)}, {readable_size(e.bytes)}"),
        f"{e.seconds:.1f}",
    )
    trained = f"{_solved(t.trained)} solved" if t.trained else "nothing: every component is current"
    if t.kept and t.trained:
        trained += f", {len(t.kept)} already up to date"
    worst = max(t.certificates.values(), key=lambda x: x.distance_bound)
    which = f"worst of {len(t.certificates)}: " if len(t.certificates) > 1 else ""
    table.add_row("train", stacked(trained, which + certified(worst)), f"{t.seconds:.1f}")
    table.add_row("compose", stacked(*_composed(c)), f"{c.seconds:.1f}")
    if report.evaluate is not None:
        table.add_row("evaluate", stacked(*_accuracies(report.evaluate)), "")
    if report.forget is not None:
        table.add_row("forget", stacked(*forgotten_lines(report.forget)), f"{report.forget.seconds:.1f}")
    OUT.print(table)
    print_notes([*e.notes, *t.notes, *c.notes, *(report.evaluate.notes if report.evaluate is not None else [])])
    if report.idle:
        what = "Nothing to do (but see the notes)" if e.notes else "Nothing to do"
        OUT.print(f"{what}: every stage was done before ({report.seconds:.1f} s to make sure).")
    say(f"store  {report.store}   root {report.root_digest[:16]}")
    place = typed(report.store)
    say(
        f"next   taftcache inspect {place}",
        f"       taftcache view {place}",
        f"       taftcache verify {place}",
        f"       taftcache forget {place} --sample ID",
        f"       taftcache predict {place} IMAGE   (also: export-model, audit)",
        *([f"       taftcache evaluate {place} --probe"] if report.idle and report.evaluate is not None else []),
    )


def _in_shards(shards: Collection[str]) -> str:
    """``4 shards and the held-out one``: as many as the recipe asks for, and what no recipe counts."""
    training = counted(len([name for name in shards if name != HELD_OUT]), "shard")
    return training + (" and the held-out one" if HELD_OUT in shards else "")


def _solved(names: Collection[str]) -> str:
    """``4 components and models/head``."""
    others = [name for name in names if not is_component(name)]
    components = len(names) - len(others)
    return " and ".join([*([counted(components, "component")] if components else []), *others])


def _composed(report: ComposeReport) -> list[str]:
    """What the components were made into."""
    what = _sum(report) + ("" if report.changed else ", unchanged")
    lines = [f"{what}; Σμf(Δw) = f(ΣμΔw) to {at_most(report.identity_error, '.0e')}"]
    if report.certificate is not None:
        rows = counted(report.certificate.rows, "row")
        lines += [f"model of all {rows} ({EXACT})", certified(report.certificate)]
    return lines if report.held_out is None else [*lines, accuracies(report.held_out)]


def _sum(report: ComposeReport) -> str:
    """How many components the composition is the mean of, or the sum with its coefficients."""
    if report.model == MEAN:
        return f"mean of {counted(len(report.members), 'component')}"
    if any(isinstance(mu, list) for mu in report.coefficients.values()):
        return f"sum of {counted(len(report.members), 'component')}, each class by its own rows"
    return f"sum of {first_few([f'{mu:.4g} × {shard_of(name)}' for name, mu in report.coefficients.items()], 20)}"


def show_demo(report: RunReport) -> None:
    """A run, and where to go from it."""
    show_run(report, "taftcache demo")
    say("your images: taftcache init FOLDER (one subfolder per class)")


def show_init(report: InitReport) -> None:
    """What was found, what was chosen, what it costs."""
    costs, (width, height) = report.estimate, report.pixels
    free = "" if costs.free_bytes is None else f" ({readable_size(costs.free_bytes)} are free there)"
    size, _, colours = input_text(costs.preprocess).partition(", mean ")  # all of it is longer than a line
    small = ", for 32 x 32 pixels; --force --model NAME for another" if report.backbone == "bundled" else ""
    say(
        f"images   {report.images:,} of {len(report.classes)} classes, about {width} x {height} pixels",
        f"classes  {first_few(report.classes)}",
        f"split    {report.images - report.held_out:,} to train on in {counted(report.shards, 'shard')},"
        f" {report.held_out:,} held out to test",
        f"model    {report.backbone}{small}",
        f"input    {size},",
        f"         mean {colours}",
        f"trained  {_trained(report)}, {costs.trained:,} parameters",
        f"cost     about {readable_size(costs.bytes)} of rows, models apart;"
        f" {readable_time(costs.seconds)} to run the frozen layers once",
        f"store    {costs.store}{free}",
    )
    print_notes(report.notes)
    say(f"recipe   {report.recipe} written; each choice has its reason beside it")
    say(f"next     taftcache run {typed(report.recipe)}")


def _trained(report: InitReport) -> str:
    """Which part of the model."""
    if start := report.estimate.start:
        return f"the end of it from {start} on, linearised"
    return f"a head on {'every block' if report.features == 'every block' else 'its last features'}"


def show_estimate(report: EstimateReport) -> None:
    """What an extraction would take."""
    total = sum(report.rows.values())
    free = "" if report.free_bytes is None else f" ({readable_size(report.free_bytes)} are free there)"
    say(
        f"{counted(total, 'image')} of {counted(report.classes, 'class')}; {report.kept}",
        f"input: {input_text(report.preprocess)}",
        f"about {readable_size(report.bytes)} in {report.store}{free}",
        f"about {readable_time(report.seconds)}: {counted(report.tried, 'image')} tried,"
        f" {report.images_per_second:.1f} a second. Nothing was written.",
    )
    print_notes(report.notes)


def show_extract(report: ExtractReport) -> None:
    """What stage 1 did."""
    if report.images:
        speed = report.images / report.seconds if report.seconds else 0
        OUT.print(
            f"{counted(report.images, 'image')} run in {report.seconds:.1f} s ({speed:.0f} a second),"
            f" {report.skipped} skipped{', which taftcache inspect names' if report.skipped else ''}"
        )
    else:
        OUT.print("Nothing to do: every shard is in the store.")
    print_notes(report.notes)
    OUT.print(f"input: {input_text(report.preprocess)}")
    shards = ", ".join(f"{name} {rows}" for name, rows in report.shards.items())
    OUT.print(f"rows: {shards}")
    say(f"store {report.store}: {readable_size(report.bytes)}, root {report.root_digest[:16]}")


def show_append(report: AppendReport) -> None:
    """Which shards got rows."""
    if not report.added and (report.skipped or not report.relabelled):
        if report.skipped:
            named = "" if report.root_digest == report.root_before else ", which taftcache inspect names"
            OUT.print(f"no row more: {counted(report.skipped, 'new sample')} skipped{named}")
        else:
            OUT.print(f"Nothing to do: {_known(report)}.")
    if report.unread:
        left = counted(report.unread, "sample")
        mended = f"once mended, append takes {them(report.unread)} in"
        print_notes([f"{left} skipped before, and not to be read now either; {mended}"])
    print_notes(report.notes)
    for name, rows in report.added.items():
        OUT.print(f"shard {name}: {counted(rows, 'sample')} more")
    for name, rows in report.relabelled.items():
        OUT.print(f"shard {name}: {counted(rows, 'label')} corrected")
    if report.dry_run and (report.added or report.relabelled):
        OUT.print(f"{_known(report)}; nothing was changed, for this was a dry run")
        return
    if report.added:
        made = f"{counted(report.images, 'row')} made in {report.seconds:.1f} s"
        left = f", {counted(report.skipped, 'new sample')} skipped" if report.skipped else ""
        OUT.print(f"{made}{left}, {_known(report)}")
    if report.added or report.relabelled:
        OUT.print(f"shards that kept their files: {', '.join(report.untouched) or 'none'}")
    OUT.print(f"root {report.root_before[:16]} → {report.root_digest[:16]}")
    if report.added or report.relabelled:
        place = typed(report.store)
        left = (
            "there is no model for the classes of now"
            if report.dropped
            else "models are of the rows and labels from before"
        )
        then = f", then taftcache evaluate {place}" if report.dropped else ""  # no accuracy to compare with
        say(f"next   taftcache train {place}{then}   ({left})")


def _known(report: AppendReport) -> str:
    """How many samples were known already, as rows or as forgotten ones."""
    left = f", {report.forgotten} forgotten here, left out" if report.forgotten else ""
    return f"{report.known - report.unread} known{left}"


def show_train(report: TrainReport) -> None:
    """The certificate of each component and model and, if it is known, what it is meant to decide."""
    made, certificates = report.composed, dict(report.certificates)
    solved = {*report.trained, *(made.made if made is not None else ())}
    if made is not None and made.certificate is not None:
        certificates[EXACT] = made.certificate
    beside = any(c.row_moves is not None for c in certificates.values())
    table = Table("component", "rows", "relative gradient", "‖Δw−Δw*‖ ≤", "a row moves" if beside else "F−F* ≤", "")
    for name, c in certificates.items():
        moves = "" if c.row_moves is None else f"{c.row_moves:.1e}"
        table.add_row(
            name,
            str(c.rows),
            at_most(c.relative_gradient),
            at_most(c.distance_bound),
            moves if beside else at_most(c.gap_bound),
            "solved" if name in solved else "current",
        )
    for name in [] if made is None else made.models:
        if name not in certificates:
            table.add_row(name, *[""] * 4, "made" if name in solved else "current")
    print_table(table)
    if loose := {name: c for name, c in certificates.items() if c.decisive is False}:
        lines = [f"{name}: certified to {at_most(c.distance_bound)}, {decides(c)}" for name, c in loose.items()]
        say(*lines, f"  try: {NEARER}")
    if made is not None and made.held_out is not None:
        say(accuracies(made.held_out))
    print_notes([*report.notes, *(made.notes if made is not None else [])])


def show_compose(report: ComposeReport) -> None:
    """What was composed, and how far the model of all rows is from the mean."""
    state = "written" if report.model in report.made else "is current"
    say(f"{report.model} {state}: {_sum(report)}, identity holds to {at_most(report.identity_error, '.0e')}")
    if report.left_out:
        OUT.print(f"left out, since they were subtracted: {', '.join(report.left_out)}")
    if others := [name for name in report.models if name != report.model]:
        OUT.print(f"also: {', '.join(others)}")
    if report.certificate is not None:
        OUT.print(
            f"models/exact: {counted(report.passes, 'pass')}, {report.moved:.2g} away from the mean; "
            + certified(report.certificate),
        )
    if report.held_out is not None:
        say(accuracies(report.held_out))
    print_notes(report.notes)


def show_evaluate(report: EvaluateReport) -> None:
    """Accuracy of every model."""
    proven, beside = ["labels proven"] if report.proven else [], _ahead_of(report)
    title = counted(report.rows, "held-out row")
    columns = ["model", "accuracy", _interval_of(report), *beside, *proven]
    table = Table(*columns, title=title, title_justify="left")
    for name, value in report.accuracy.items():
        share = [f"{at_least(round(100 * report.proven[name], 9), '.3g')} %"] if name in report.proven else []
        shown = _shown(value, report.intervals[name], report.groups)
        called = (
            f"linear probe of {report.against.probe.features}" if report.against and name == PROBE else _titled(name)
        )
        table.add_row(called, *shown, *_ahead(report, name), *share)
    print_table(table)
    if lines := _beside_accuracy(report):
        say(*lines)
    print_notes(report.notes)


def show_evaluate_on(report: EvaluateOnReport) -> None:
    """Accuracy of every model on another labelled set, and of the default one for each value of a column of it."""
    say(counted(report.rows, "row") + (f" of {report.data}" if report.data is not None else ""))
    table = Table("model", "accuracy", _interval_of(report), "balanced", *_ahead_of(report))
    for name, value in report.accuracy.items():
        mean = f"{100 * report.balanced[name]:.2f} %"
        shown = _shown(value, report.intervals[name], report.groups)
        table.add_row(_titled(name), *shown, mean, *_ahead(report, name))
    print_table(table)
    name = _TITLES.get(report.default, report.default)
    if (own := report.calibration.get(report.default)) is not None:
        worth = _worth(own.log_loss, own.error, own.chance, own.telling)
        say(f"{name}: {worth}; T = {own.temperature:g}, of the store's held-out rows: it is not fitted to these")
    if report.values:
        say(f"{name}, the worst first:")
        grouped = report.groups is not None
        table = Table(
            report.by or "value", "rows", *(["groups"] if grouped else []), "accuracy", _interval_of(report, each=True)
        )
        for one in report.values[:VALUES]:
            of = [f"{one.groups or one.rows:,}"] if grouped else []
            shown = _shown(one.accuracy, one.interval, one.groups)
            table.add_row(one.value or "(no value)", f"{one.rows:,}", *of, *shown)
        print_table(table)
        if (more := len(report.values) - VALUES) > 0:
            say(f"and {counted(more, 'value')} more, which --json lists")
    print_notes(report.notes)
    for id, reason in report.unreadable.items():
        note(f"left out: {id}: {reason}")


def _titled(name: str) -> str:
    """A model's name, or words for what has none in the store."""
    return _TITLES[name] if name == UNTOUCHED else name


def _ahead_of(report: EvaluateReport | EvaluateOnReport) -> list[str]:
    """The heading of ``_ahead``, if models were compared with one of them."""
    judged = "95 %" + (f",{by_groups_text(report.groups)}" if report.groups else "")
    return [f"ahead of {report.reference}, in points ({judged})"] if report.differences else []


def _interval_of(report: EvaluateReport | EvaluateOnReport, *, each: bool = False) -> str:
    """The heading of intervals; of ``each`` value, whose groups have a column of their own."""
    if each:
        return "95 % interval" + ("" if report.groups is None else " by groups")
    return f"95 % interval{by_groups_text(report.groups)}"


def _ahead(report: EvaluateReport | EvaluateOnReport, name: str) -> list[str]:
    """By how many points a model is ahead of the one that it was compared with, and the interval of that."""
    if not report.differences:
        return []
    found = report.differences.get(name)
    return ["" if found is None else points_text(found.ahead, found.interval, found.groups, brief=True)]


def _shown(accuracy: float, interval: tuple[float, float], groups: int | None) -> tuple[str, str]:
    """An accuracy and its 95 % interval, in per cent; rows of one of the ``groups`` that it was judged by have none."""
    low, high = interval
    return f"{100 * accuracy:.2f} %", "none" if groups == 1 else f"{100 * low:.1f} to {100 * high:.1f}"


def show_predict(report: PredictReport, file: Path | None = None) -> None:
    """The class of every image, how probable it is, and how often that was right; or the file that has all of it."""
    for p in report.predictions if file is None else ():
        beside = [] if p.margin is None else [f"margin {p.margin:.2f}"]
        beside = [_sure(p.probabilities[0])] if p.probabilities else beside
        beside += [f"next {', '.join(p.labels[1:])}"] if p.labels[1:] else []
        how = f" ({'; '.join(beside)})" if beside else ""
        alike = p.alike and f". Held-out rows with such a margin: {p.alike.right} of {p.alike.rows} right."
        if p.alike and not p.alike.rows:
            alike = f". No held-out row has such a margin ({p.margin:.2f}; the largest is {p.alike.largest:.2f})."
        say(f"{p.image}: {p.labels[0]}{how}{alike or ''}")
    if len(report.predictions) > 1:
        counts = Counter(p.labels[0] for p in report.predictions)
        say(f"{counted(len(report.predictions), 'image')}: {with_counts(counts)}")
    if file is not None:
        say(f"{file}: {counted(len(report.predictions) + len(report.unreadable), 'row')}")
    print_notes(report.notes)
    for reason in report.unreadable.values():
        note(f"left out: {reason}")


def _sure(probability: float) -> str:
    """A probability in per cent, which is never said to be all."""
    return "over 99.9 %" if probability >= 0.9995 else f"{100 * probability:.1f} %"


def _accuracies(report: EvaluateReport) -> list[str]:
    shards = [v for name, v in report.accuracy.items() if is_component(name)]
    found = [
        f"{100 * value:6.2f} %  {_TITLES.get(name, name)}"
        for name, value in report.accuracy.items()
        if not is_component(name)
    ]
    if len(shards) > 1:
        found.append(f"{100 * sum(shards) / len(shards):6.2f} %  one shard's component alone (mean of {len(shards)})")
    return [f"{counted(report.rows, 'held-out image')}:", *found, *_beside_accuracy(report)]


def _beside_accuracy(report: EvaluateReport) -> list[str]:
    """The default model and the linear probe: which is more accurate, and how far off their probabilities are."""
    lines = [] if report.against is None else [_verdict(report.against)]
    if report.default is None or (own := report.calibration.get(report.default)) is None:
        return lines
    worth = _worth(own.log_loss, own.error, own.chance, own.telling)
    lines.append(f"{_TITLES.get(report.default, report.default)}: {worth}")
    if report.against is not None and (probes := report.against.probe.calibration):
        lines.append(f"the probe: {_worth(probes.log_loss, probes.error, probes.chance, probes.telling)}")
    return lines


def _worth(log_loss: float, error: float, chance: float, telling: bool) -> str:
    """What a model's probabilities are worth, see ``Calibration``."""
    off = f", probabilities off by {100 * error:.1f} points on average (by chance alone {100 * chance:.1f})"
    return f"log-loss {log_loss:.3f}" + (off if telling else "")


def _verdict(against: Against) -> str:
    """The best model and the linear probe, in a sentence."""
    name = _TITLES.get(against.model, against.model)
    said = {"ahead": "beats", "within noise": "is within noise of", "behind": "loses to"}[against.verdict]
    ahead = points_text(against.ahead, against.interval, against.groups)
    return f"{name} {said} the probe ({against.probe.kind}): {ahead}, on the same rows"


_TITLES = {
    MEAN: "mean of the components",
    EXACT: "model of all rows",
    HEAD: "head alone, of all rows",
    UNTOUCHED: "before training (new head)",
}
