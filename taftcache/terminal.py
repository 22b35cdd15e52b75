"""What people see: bars while something runs, tables when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from taftcache.stages.progress import Progress, Silent, Task

if TYPE_CHECKING:
    from taftcache.stages.appending import AppendReport
    from taftcache.stages.auditing import AuditReport
    from taftcache.stages.collection import CollectReport
    from taftcache.stages.comparison import CompareReport
    from taftcache.stages.composing import ComposeReport
    from taftcache.stages.evaluation import EvaluateReport
    from taftcache.stages.exchange import ExportReport, ImportReport
    from taftcache.stages.extraction import ExtractReport
    from taftcache.stages.federation import ComponentReport
    from taftcache.stages.forgetting import ForgetReport
    from taftcache.stages.influence import QueryInfluence, SampleInfluence
    from taftcache.stages.inspection import ClassReport, InspectReport, SampleReport, ShardReport
    from taftcache.stages.main_job import RunReport
    from taftcache.stages.model_export import ExportModelReport
    from taftcache.stages.prediction import PredictReport
    from taftcache.stages.private_comparison import PrivateTableReport
    from taftcache.stages.private_training import PrivateTrainReport
    from taftcache.stages.statistics import Activations
    from taftcache.stages.teaching import TeachReport
    from taftcache.stages.training import TrainReport
    from taftcache.stages.transfer import ConvertReport, CopyReport
    from taftcache.stages.verification import VerifyReport
    from taftcache.view.report import ReportReport

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


class _Display:
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
        yield _Display(display)


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


def show_train_private(report: PrivateTrainReport) -> None:
    """Promises by component, and what is left of the budget."""
    table = Table("component", "epsilon", "delta", "neighbours", "")
    for name, s in report.statements.items():
        table.add_row(
            name,
            f"{s['epsilon']:.4g}" if s["private"] else "not private",
            f"{s['delta']:g}",
            s["relation"],
            "trained" if name in report.trained else "kept",
        )
    OUT.print(table)
    for name in report.dropped:
        OUT.print(f"dropped {name}: it was made from the same rows without noise", markup=False)
    for shard, total in report.spent.items():
        OUT.print(f"shard {shard}: epsilon {total:.4g} spent in all, of {report.budget:g}", markup=False)
    statements = list(report.statements.values())
    if statements:
        OUT.print(f"not covered: {'; '.join(statements[0]['not_covered'])}", markup=False)


def show_private_table(report: PrivateTableReport) -> None:
    """Accuracy by regime, network and epsilon."""
    title = f"{report.rows} training rows, {report.held_out} held-out rows"
    table = Table("regime", "network", "mechanism", "epsilon", "accuracy", title=title, title_justify="left")
    for cell in report.cells:
        value = f"{100 * cell.mean:.1f} ± {100 * cell.std:.1f} %"
        table.add_row(cell.regime, cell.network, cell.mechanism, f"{cell.epsilon:.3g}", value)
    OUT.print(table)


def show_teach(report: TeachReport) -> None:
    """Students side by side, and what the comparison says."""
    for title, rows in report.tables.items():
        if not rows:
            continue
        columns = [c for c in dict.fromkeys(key for row in rows for key in row) if c != "tried on held-out rows"]
        table = Table(*columns, title=title, title_justify="left")
        for row in rows:
            table.add_row(*(_figure(row.get(column), column) for column in columns))
        OUT.print(table)
    for line in [*report.conclusions, *(f"note: {note}" for note in report.notes)]:
        OUT.print(line, markup=False, soft_wrap=True)
    OUT.print(
        f"{report.trained} students trained, {report.kept} found trained ({report.seconds:.1f} s)\n"
        f"student {report.student}\nreport  {report.folder / 'report.md'}",
        markup=False,
        soft_wrap=True,
    )


def _figure(value: Any, column: str) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    share = column in ("accuracy", "deviation") or "energy" in column
    return f"{100 * value:.2f} %" if share else f"{value:.3g}"


def show_compose(report: ComposeReport) -> None:
    """What was composed, and how far the exact model is from the mean."""
    state = "written" if report.changed else "is current"
    OUT.print(f"{report.model} {state}: mean of {len(report.members)}, identity holds to {report.identity_error:.0e}")
    if report.left_out:
        OUT.print(f"left out, since they were subtracted: {', '.join(report.left_out)}", markup=False)
    if others := [name for name in report.models if name != report.model]:
        OUT.print(f"also: {', '.join(others)}", markup=False)
    if report.certificate is not None:
        OUT.print(
            f"models/exact: {report.passes} passes from the mean, {report.moved:.2g} away from it; "
            + _certified(report.certificate),
            markup=False,
        )


def show_compare(report: CompareReport) -> None:
    """One line a point, and what was chosen."""
    keys = list(dict.fromkeys(key for line in report.lines for key in line))
    table = Table(*keys, title=report.title, title_justify="left")
    for line in report.lines:
        table.add_row(*(f"{v:.2f}" if isinstance(v := line.get(k, ""), float) else str(v) for k in keys))
    OUT.print(table)
    for s in report.settings:
        OUT.print(f"{s['method']}, {s['shards']} shards: chose {s['chosen']}", markup=False)
    OUT.print(
        f"{report.rows} training and {report.held_out} held-out rows, {report.seeds} seeds, {report.seconds:.0f} s"
    )


def show_component(report: ComponentReport) -> None:
    """One component on its way."""
    OUT.print(
        f"{report.component}, {report.rows} rows, base {report.base_digest[:16]}: {_size(report.bytes)}, {report.file}"
        + ("" if report.changed else " (there already)"),
        markup=False,
        soft_wrap=True,
    )


def show_audit(report: AuditReport) -> None:
    """Findings, or that there are none."""
    for f in report.findings:
        OUT.print(f"FAILED  {f.kind}: {f.where}: {f.problem}", markup=False, soft_wrap=True)
    for note in report.notes:
        OUT.print(f"note: {note}", markup=False)
    if report.replayed:
        OUT.print(f"{report.replayed} rows that an old copy brought back were forgotten again")
    table = Table("component", "‖∇F‖ recorded", "recomputed", "‖Δw−Δw*‖ ≤")
    for name, c in report.certificates.items():
        table.add_row(name, f"{c['recorded']:.3e}", f"{c['recomputed']:.3e}", f"{c['distance_bound']:.1e}")
    if report.certificates:
        OUT.print(table)
    OUT.print(
        f"{len(report.findings)} findings; {report.receipts} receipts in one chain, {report.signed} signed;"
        f" {report.tombstones} tombstones\nroot {report.root_digest}"
    )


def show_sample_influence(report: SampleInfluence) -> None:
    """A model with and without one sample."""
    OUT.print(
        f"{report.model} without {report.sample} (class {report.label}, shard {report.shard}):\n"
        f"  Δw moves by {report.moved:.3g}, solved to within {report.distance_bound:.1e} in {report.passes} passes\n"
        f"  its own logit falls from {report.own_logit:.3f} to {report.own_logit_without:.3f};"
        f" label {report.own_label} → {report.own_label_without}\n"
        f"  {report.labels_changed} of {report.held_out} held-out labels change,"
        f" no logit by more than {report.largest_change:.2g}",
        markup=False,
    )


def show_query_influence(report: QueryInfluence) -> None:
    """The samples behind one prediction."""
    OUT.print(f"{report.query}: {report.label}, logit {report.logit:.3f} by {report.model}", markup=False)
    table = Table("sample", "class", "shard", "without it the logit changes by", "solved without it", "±")
    for s in report.samples:
        solved = (f"{s['solved']:+.4f}", f"{s['bound']:.1e}") if "solved" in s else ("", "")
        table.add_row(s["sample"], s["label"], s["shard"], f"{s['change']:+.4f}", *solved)
    OUT.print(table)
    OUT.print(f"{report.method}, residual {report.residual:.0e}, {report.passes} passes")


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
    """A store on one screen, readable at 80 columns."""
    b, cut = report.identity["backbone"], report.cut
    OUT.print(
        f"{report.store}: {report.rows} training rows, {report.held_out_rows} held out, {len(report.classes)} classes,"
        f" {_size(report.bytes)}\n"
        f"backbone  {b['model']} ({b['weights']}, {b['weights_digest'][:16]}), cut at {cut['start']}\n"
        f"cached    the {cut['rows']} of a sample, {cut['shape'][0]}×{cut['shape'][1]} {report.dtype};"
        f" tangent by {report.tangent.get('path', 'nothing yet')}\n"
        f"plan      {report.plan['kind']}, seed {report.plan['seed']}; {report.skipped} skipped,"
        f" {report.forgotten} forgotten\n"
        f"integrity {report.integrity.text}\n"
        f"root      {report.root_digest}",
        markup=False,
    )
    for file in report.integrity.missing:
        OUT.print(f"MISSING   {file}", markup=False)
    table = _table("shard", "role", "rows", "classes", "per class", "size", "max |x|", "digest")
    for s in report.shards:
        table.add_row(
            s["name"], s["role"], str(s["rows"]), str(s["classes"]), _range(s["fewest"], s["most"]), _size(s["bytes"]),
            f"{s['max_abs']:.3g}", s["digest"][:8],
        )  # fmt: skip
    OUT.print(table)
    counts = report.rows_per_class
    fewest, most = min(counts, key=lambda k: counts[k]), max(counts, key=lambda k: counts[k])
    OUT.print(f"training rows per class: {counts[fewest]} ({fewest}) to {counts[most]} ({most})", markup=False)
    if report.activations is not None:
        OUT.print(_activations(report.activations, report.dtype), markup=False)
    if report.models:
        table = _table("model", "size", "‖Δw‖", "‖Δw−Δw*‖ ≤", "passes", "ended", "digest")
        for m in report.models:
            c = m.get("certificate")
            ended = "" if "converged" not in m else "converged" if m["converged"] else "above tolerance"
            table.add_row(
                m["name"], _size(m["bytes"]), f"{m['norm']:.3g}", f"{c['distance_bound']:.1e}" if c else "",
                str(m["stats"]["passes"]) if "stats" in m else "", ended, m["digest"][:8],
            )  # fmt: skip
        OUT.print(table)
        for m in report.models:
            if choice := m.get("ridge_choice"):
                curve = ", ".join(f"{p['ridge']:.1e}: {p['loss']:.4g}" for p in choice["curve"])
                OUT.print(f"{m['name']}: λ by {choice['method']}, mean loss at {curve}", markup=False)
    if not report.ledger:
        OUT.print("ledger: empty")
    for e in report.ledger[-3:]:
        what = f"{e.get('event', '')}, {e['samples']} samples" if "samples" in e else e.get("event", "")
        OUT.print(f"ledger {e['seq']} of {report.ledger_entries}: {e.get('time', '')} {what}", markup=False)


def show_shard(report: ShardReport) -> None:
    """One shard: balance, activations, component."""
    s = report.shard
    OUT.print(
        f"shard {s['name']} ({s['role']}): {s['rows']} rows, {_size(s['bytes'])}, {s['dtype']} in chunks of"
        f" {s['chunk_rows']} rows\ndigest {s['digest']}",
        markup=False,
    )
    _bars(report.rows_per_class)
    OUT.print(_activations(report.activations, s["dtype"]), markup=False)
    if report.component is not None:
        m = report.component
        OUT.print(f"{m['name']}: ‖Δw‖ {m['norm']:.3g}; {_certified(m['certificate'])}", markup=False)
        OUT.print(m["status"], markup=False)
    _first(report.first_samples, s["rows"], f"--shard {s['name']}")


def show_class(report: ClassReport) -> None:
    """One class over the shards."""
    OUT.print(
        f"class {report.label}: {report.rows} training rows ({100 * report.share:.1f} %),"
        f" {report.held_out_rows} held out",
        markup=False,
    )
    _bars({s["name"]: s["rows"] for s in report.shards}, {s["name"]: s["share"] for s in report.shards})
    _first(report.first_samples, report.rows, f"--class {report.label}")


def show_sample(report: SampleReport) -> None:
    """One sample, and what the models say of it."""
    OUT.print(
        f"{report.sample}: class {report.label}, shard {report.shard}, row {report.row}\n"
        f"first token ‖x‖ {report.first_token_norm:.4g}, mean token ‖x‖ {report.mean_token_norm:.4g},"
        f" max |x| {report.max_abs:.4g}",
        markup=False,
    )
    if report.predictions:
        table = _table("model", "class", "logit of its class", "margin")
        for name, p in report.predictions.items():
            right = "✓" if p["label"] == report.label else "✗"
            table.add_row(name, f"{right} {p['label']}", f"{p['logit']:.3f}", f"{p['margin']:+.3f}")
        OUT.print(table)
    if report.moved_bound is not None:
        OUT.print(f"forgetting it moves components/{report.shard} by at most {report.moved_bound:.3g}", markup=False)


def _table(*columns: str) -> Table:
    """Without frames: eight columns fit 80 characters."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))


def _activations(a: Activations, dtype: str) -> str:
    """What every value said at extraction, and what a sample of them says."""
    g, s = a.gathered, a.sampled
    quantiles = " / ".join(f"{v:.3g}" for v in s["norm_quantiles"].values())
    worst = ", ".join(f"{c['channel']} ({c['ratio']:.1f}×)" for c in s["largest_channels"][:3])
    return (
        f"activations, every value (at extraction)\n"
        f"  max |x| {g['max_abs']:.4g}: {dtype} overflows at {g['headroom']:.3g} times that; mean ‖x‖"
        f" {g['mean_token_norm']:.4g}\n"
        f"  NaN, infinities, overflow: none, extraction refuses them\n"
        f"activations, {s['rows']} of {s['of']} rows (sampled now)\n"
        f"  ‖x‖ {quantiles}  (at 0 / 5 / 50 / 95 / 100 %)\n"
        f"  {s['outlier_channels']} outlier channels; the largest {worst} the median's\n"
        f"  {100 * s['zeros']:.2g} % zeros, {100 * s['subnormal']:.2g} % subnormal, {s['not_finite']} not finite"
    )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _bars(counts: dict[str, int], shares: dict[str, float] | None = None, most: int = 24) -> None:
    """Counts as bars, the largest first where there are many."""
    largest = max(counts.values(), default=0) or 1
    names = list(counts) if len(counts) <= most else sorted(counts, key=lambda k: -counts[k])[:most]
    width = min(24, max((len(name) for name in names), default=0))
    for name in names:
        share = f"  {100 * shares[name]:5.1f} %" if shares else ""
        bar = "█" * round(30 * counts[name] / largest)
        OUT.print(f"  {name[:width]:{width}} {counts[name]:7d}{share}  {bar}", markup=False)
    if len(names) < len(counts):
        OUT.print(f"  … and {len(counts) - len(names)} with fewer: --json has them all", markup=False)


def _first(ids: list[str], rows: int, option: str) -> None:
    more = f"  … {rows - len(ids)} more: {option} --ids" if rows > len(ids) else ""
    OUT.print(f"samples {', '.join(ids)}{more}", markup=False)


def show_address(url: str) -> None:
    """Where the page is."""
    OUT.print(
        f"{url}\nThe address is for this machine and this run alone; Ctrl-C ends it.", markup=False, soft_wrap=True
    )


def show_report(report: ReportReport) -> None:
    """The file that was written."""
    OUT.print(
        f"{report.file}: {_size(report.bytes)}, {report.rows} samples, all details of {len(report.details)}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    for note in report.notes:
        OUT.print(f"note: {note}", markup=False)


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
    if report.mode == "destroy-key":
        lines.append("the tombstones and their key are destroyed")
    if report.already:
        lines.append(f"forgotten before: {_some(report.already)}")
    if report.forgotten:
        now = "would be forgotten" if report.dry_run else "forgotten now"
        where = f" (shard {', '.join(report.shards)})" if report.shards else ""
        lines.append(f"{now}: {_some(report.forgotten)}{where}")
        lines.append(f"renewed: {', '.join(report.renewed) or 'nothing was made from these rows'}")
    if report.destroyed:
        lines.append(f"destroyed: {', '.join(report.destroyed)}")
    if report.dropped_shards:
        lines.append(f"dropped, for no row is left: shard {', '.join(report.dropped_shards)}")
    if report.classes:
        lines.append(f"out of the list of classes: {', '.join(report.classes)}")
    if report.dry_run:
        passes = ", ".join(f"{name} {n}" for name, n in report.passes.items())
        lines.append(f"about {passes or 'no'} passes; {_size(report.bytes)} rewritten; nothing was changed")
    for name, c in report.certificates.items():
        moved = "" if c["moved"] is None else f"; the removal moved it by {c['moved']:.1e}"
        lines.append(f"{name}: {_certified(c)}{moved}")
    return "\n".join([*lines, *(f"note: {note}" for note in report.notes)])


def _some(names: list[str], most: int = 8) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


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
