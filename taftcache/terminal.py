"""What people see: bars while something runs, tables when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from taftcache.stages.progress import Progress, Silent, Task

if TYPE_CHECKING:
    from taftcache.stages.appending import AppendReport
    from taftcache.stages.collection import CollectReport
    from taftcache.stages.composing import ComposeReport
    from taftcache.stages.evaluation import EvaluateReport
    from taftcache.stages.exchange import ExportReport, ImportReport
    from taftcache.stages.extraction import ExtractReport
    from taftcache.stages.forgetting import ForgetReport
    from taftcache.stages.inspection import InspectReport, SampleReport
    from taftcache.stages.main_job import RunReport
    from taftcache.stages.model_export import ExportModelReport
    from taftcache.stages.prediction import PredictReport
    from taftcache.stages.training import TrainReport
    from taftcache.stages.transfer import ConvertReport, CopyReport
    from taftcache.stages.verification import VerifyReport

OUT = Console(highlight=False)
ERR = Console(stderr=True, highlight=False)


def complain(text: str) -> None:
    """To stderr, as it is."""
    ERR.print(text, style="red", markup=False, soft_wrap=True)


class _Bar:
    def __init__(self, display: Any, task: Any) -> None:
        self._display, self._task = display, task

    def advance(self, steps: int = 1) -> None:
        self._display.advance(self._task, steps)

    def note(self, text: str) -> None:
        self._display.update(self._task, note=text)


class _Bars:
    def __init__(self, display: Any) -> None:
        self._display = display

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[Task]:
        task = self._display.add_task(name, total=total, note="")
        yield _Bar(self._display, task)
        self._display.update(task, visible=False)

    def say(self, text: str) -> None:
        self._display.console.print(text, highlight=False)


@contextmanager
def bars(silent: bool = False) -> Iterator[Progress]:
    """Progress bars on stderr while the context lasts; they leave no trace behind, and none in a file or pipe."""
    if silent or not ERR.is_terminal:
        yield Silent()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Display

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Display(*columns, console=ERR, transient=True) as display:
        yield _Bars(display)


def show_run(report: RunReport) -> None:
    """The closing table of a run."""
    e, t, c = report.extract, report.train, report.compose
    table = Table("stage", "what was done", "seconds", title="taftcache run", title_justify="left")
    rows = sum(e.shards.values())
    extracted = f"{e.images} images run and cached" if e.images else "nothing: all rows are cached"
    table.add_row(
        "extract", f"{extracted}\n{rows} rows in {len(e.shards)} shards, {_size(e.bytes)}", f"{e.seconds:.1f}"
    )
    trained = f"{len(t.trained)} solved" if t.trained else "nothing: every component is current"
    worst = max(t.certificates.values(), key=lambda x: x["distance_bound"])
    table.add_row("train", f"{trained}, {len(t.kept)} kept\n{_certified(worst)}", f"{t.seconds:.1f}")
    what = f"mean of {len(c.members)} components" + ("" if c.changed else ", unchanged")
    table.add_row("compose", f"{what}\nΣμf(Δw) = f(ΣμΔw) to {c.identity_error:.0e}", "")
    if report.evaluate is not None:
        table.add_row("evaluate", _accuracies(report.evaluate), "")
    if report.forget is not None:
        table.add_row("forget", _forgotten(report.forget), f"{report.forget.seconds:.1f}")
    OUT.print(table)
    for note in [*e.notes, *t.notes]:
        OUT.print(f"note: {note}", markup=False)
    if report.idle:
        OUT.print(f"Nothing to do: every stage was done before ({report.seconds:.1f} s to make sure).")
    OUT.print(f"store  {report.store}   root {report.root_digest[:16]}", markup=False, soft_wrap=True)
    OUT.print(
        f"next   taftcache inspect {report.store}\n"
        f"       taftcache verify {report.store}\n"
        f"       taftcache forget {report.store} --sample ID",
        markup=False,
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
    for note in report.notes:
        OUT.print(f"note: {note}", markup=False)
    shards = ", ".join(f"{name} {rows}" for name, rows in report.shards.items())
    OUT.print(
        f"rows: {shards}\nstore {report.store}: {_size(report.bytes)}, root {report.root_digest[:16]}", markup=False
    )


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
    for note in report.notes:
        OUT.print(f"note: {note}", markup=False)


def show_compose(report: ComposeReport) -> None:
    """One line."""
    state = "written" if report.changed else "is current"
    OUT.print(f"{report.model} {state}: mean of {len(report.members)}, identity holds to {report.identity_error:.0e}")


def show_evaluate(report: EvaluateReport) -> None:
    """Accuracy of every model."""
    table = Table("model", "accuracy", title=f"{report.rows} held-out rows", title_justify="left")
    for name, value in report.accuracy.items():
        table.add_row(name, f"{100 * value:.2f} %")
    OUT.print(table)


def show_export_model(report: ExportModelReport) -> None:
    """Where the model lies now, and how to use it."""
    OUT.print(f"{report.model} of {report.store}: {report.folder}, {_size(report.bytes)}", markup=False)
    OUT.print(f"files  {', '.join(report.files)}", markup=False)
    if "taftcache.json" in report.files:
        OUT.print(f"next   taftcache predict {report.folder} IMAGE", markup=False)
    else:
        OUT.print(f'next   timm.create_model("local-dir:{report.folder}", pretrained=True)', markup=False)


def show_predict(report: PredictReport) -> None:
    """Classes of every image."""
    for p in report.predictions:
        classes = ", ".join(f"{label} ({logit:.2f})" for label, logit in zip(p.labels, p.logits, strict=True))
        OUT.print(f"{p.image}: {classes}", markup=False, soft_wrap=True)


def show_inspect(report: InspectReport) -> None:
    """A store in two tables."""
    b, cut = report.identity["backbone"], report.cut
    OUT.print(
        f"{report.store}: {report.rows} training rows, {len(report.classes)} classes, {_size(report.bytes)}\n"
        f"backbone {b['model']} ({b['weights']}, {b['weights_digest'][:16]}), cut at {cut['start']}\n"
        f"caches the {cut['rows']} of a sample, {cut['shape'][0]}×{cut['shape'][1]} {report.dtype};"
        f" tangent by {report.tangent.get('path', 'nothing yet')}\n"
        f"plan {report.plan['kind']}, seed {report.plan['seed']}; {report.skipped} skipped,"
        f" {report.forgotten} forgotten, {report.ledger_entries} ledger entries\nroot {report.root_digest}",
        markup=False,
    )
    table = Table("shard", "role", "rows", "classes", "size", "max |x|", "mean ‖x‖", "digest")
    for s in report.shards:
        table.add_row(
            s["name"], s["role"], str(s["rows"]), str(s["classes"]), _size(s["bytes"]),
            f"{s['max_abs']:.3g}", f"{s['mean_token_norm']:.3g}", s["digest"][:12],
        )  # fmt: skip
    OUT.print(table)
    if report.models:
        table = Table("model", "size", "λ", "‖Δw‖", "‖Δw−Δw*‖ ≤", "passes", "digest")
        for m in report.models:
            c = m.get("certificate")
            table.add_row(
                m["name"], _size(m["bytes"]), f"{c['ridge']:.1e}" if c else "", f"{m['norm']:.3g}",
                f"{c['distance_bound']:.1e}" if c else "", str(m["stats"]["passes"]) if "stats" in m else "",
                m["digest"][:12],
            )  # fmt: skip
        OUT.print(table)
        for m in report.models:
            if choice := m.get("ridge_choice"):
                curve = ", ".join(f"{p['ridge']:.1e}: {p['loss']:.4g}" for p in choice["curve"])
                OUT.print(f"{m['name']}: λ by {choice['method']}, mean loss at {curve}", markup=False)
    counts = report.rows_per_class
    fewest, most = min(counts, key=lambda k: counts[k]), max(counts, key=lambda k: counts[k])
    OUT.print(f"rows per class: {counts[fewest]} ({fewest}) to {counts[most]} ({most})", markup=False)


def show_sample(report: SampleReport) -> None:
    """One sample."""
    OUT.print(
        f"{report.sample}: class {report.label}, shard {report.shard}, row {report.row}\n"
        f"first token ‖x‖ {report.first_token_norm:.4g}, mean token ‖x‖ {report.mean_token_norm:.4g},"
        f" max |x| {report.max_abs:.4g}",
        markup=False,
    )


def show_samples(rows: list[dict[str, str]]) -> None:
    """Ids, one a line, with tabs between the columns as other tools want them."""
    for row in rows:
        print(f"{row['sample']}\t{row['shard']}\t{row['label']}")


def show_verify(report: VerifyReport) -> None:
    """Faults, or that there are none."""
    for file, how in report.mended.items():
        OUT.print(f"mended   {file}: {how}", markup=False, soft_wrap=True)
    for name in report.dropped:
        OUT.print(f"dropped  {name}: taftcache train {report.store} makes it again", markup=False, soft_wrap=True)
    for fault in report.faults:
        reason = report.reasons.get(fault.file)
        OUT.print(f"DAMAGED  {fault}" + (f"\n         {reason}" if reason else ""), markup=False, soft_wrap=True)
    for stray in report.strays:
        OUT.print(f"stray    {stray} (no manifest names it; taftcache gc tells more)", markup=False)
    state = (
        f"{len(report.faults)} damaged objects" if report.faults else "every object has the digest its manifest names"
    )
    OUT.print(f"{_size(report.bytes)} read: {state}; ledger of {report.ledger_entries} in one chain")
    OUT.print(f"root {report.root_digest}")


def show_append(report: AppendReport) -> None:
    """Which shards got rows."""
    if not report.added:
        OUT.print(f"Nothing to do: all {report.known} images are in the store.")
    for name, rows in report.added.items():
        OUT.print(f"shard {name}: {rows} samples more", markup=False)
    if report.added:
        OUT.print(
            f"{report.images} images run in {report.seconds:.1f} s, {report.skipped} skipped, {report.known} known"
        )
        OUT.print(f"shards that kept their files: {', '.join(report.untouched) or 'none'}", markup=False)
    OUT.print(f"root {report.root_before[:16]} → {report.root_digest[:16]}")


def show_copy(report: CopyReport) -> None:
    """How much was copied."""
    OUT.print(
        f"{report.files} files copied, {_size(report.bytes)} in {report.seconds:.1f} s; {report.there} were there\n"
        f"store {report.store}: every file has the digest that its manifest names; root {report.root_digest[:16]}",
        markup=False,
        soft_wrap=True,
    )


def show_convert(report: ConvertReport) -> None:
    """The new store in two lines."""
    sizes = ", ".join(map(str, sorted(set(report.chunk_rows.values()))))
    OUT.print(
        f"store {report.store}: {report.rows} rows in {report.dtype}, chunks of {sizes} rows, {_size(report.bytes)},"
        f" root {report.root_digest[:16]} ({report.seconds:.1f} s)",
        markup=False,
        soft_wrap=True,
    )
    if report.left:
        OUT.print(f"left behind: {', '.join(report.left)}; taftcache train {report.store} makes them", markup=False)


def show_export(report: ExportReport) -> None:
    """The file."""
    OUT.print(
        f"{report.file}: {report.rows} rows of root {report.root_digest[:16]} as {report.format},"
        f" {_size(report.bytes)} ({report.seconds:.1f} s)",
        markup=False,
        soft_wrap=True,
    )


def show_import(report: ImportReport) -> None:
    """The store."""
    came = "an export, shards as they were" if report.exported else "someone else's features"
    shards = ", ".join(f"{name} {rows}" for name, rows in report.shards.items())
    OUT.print(
        f"{report.file}: {came}\nrows: {shards}; {report.tokens[0]}×{report.tokens[1]}, {report.classes} classes\n"
        f"store {report.store}: root {report.root_digest[:16]} ({report.seconds:.1f} s)",
        markup=False,
        soft_wrap=True,
    )
    if not report.trainable:
        OUT.print("It has no base to train from: import with --recipe to name the backbone that made the features.")


def show_gc(report: CollectReport) -> None:
    """What went, and what stays though nothing names it."""
    for path, size in report.removed.items():
        verb = "would go" if report.dry else "removed "
        OUT.print(f"{verb} {path}  {_size(size)}", markup=False, soft_wrap=True)
    for path, size in report.kept.items():
        OUT.print(f"kept     {path}  {_size(size)}", markup=False, soft_wrap=True)
    total = _size(sum(report.removed.values()))
    OUT.print(
        f"{len(report.removed)} {'to remove' if report.dry else 'removed'}, {total}; root {report.root_digest[:16]}"
    )


def show_forget(report: ForgetReport) -> None:
    """What a request changed and what it proves."""
    OUT.print(_forgotten(report), markup=False)
    OUT.print(f"root {report.root_before[:16]} → {report.root_digest[:16]}   ({report.seconds:.1f} s)")


def _forgotten(report: ForgetReport) -> str:
    lines = []
    if report.already:
        lines.append(f"forgotten before: {', '.join(report.already)}")
    if report.forgotten:
        lines.append(f"forgotten now: {', '.join(report.forgotten)} (shard {', '.join(report.shards)})")
        lines.append(f"renewed: {', '.join(report.renewed) or 'nothing was made from these rows'}")
    for name, c in report.certificates.items():
        lines.append(f"{name}: {_certified(c)}; the removal moved it by {c['moved']:.1e}")
    return "\n".join(lines)


def _accuracies(report: EvaluateReport) -> str:
    shards = [v for name, v in report.accuracy.items() if name.startswith("components/")]
    lines = [
        f"{100 * value:6.2f} %  {_TITLES.get(name, name)}"
        for name, value in report.accuracy.items()
        if not name.startswith("components/")
    ]
    if shards:
        lines.append(f"{100 * sum(shards) / len(shards):6.2f} %  one shard's component alone (mean of {len(shards)})")
    return "\n".join([f"{report.rows} held-out images:", *lines])


_TITLES = {
    "models/mean": "composed tangent model",
    "models/exact": "exact tangent model of all shards",
    "models/head": "head only, all shards, exact",
}


def _certified(c: dict[str, Any]) -> str:
    return f"‖∇F‖ {c['relative_gradient']:.0e} of its start in float64, so ‖Δw−Δw*‖ ≤ {c['distance_bound']:.1e}"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
