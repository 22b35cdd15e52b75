"""What is in a store, on one screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from rich.table import Table

from taftcache.names import (
    FROM_EXPORT,
    at_least,
    at_most,
    counted,
    epsilon_text,
    first_few,
    imported_from,
    input_text,
    ordinal,
    promise_text,
    readable_size,
    scaling_of,
    typed,
)
from taftcache.terminal.console import OUT, print_ids, print_line, print_notes, print_table, say, stacked
from taftcache.terminal.text import plain_table
from taftcache.view.wording import NOT_EXPORTED, bounded, forgotten_text, taken_text

if TYPE_CHECKING:
    from rich.text import Text

    from taftcache.stages.files.similar import FindReport
    from taftcache.stages.look.duplicates import DuplicatesReport, Pair
    from taftcache.stages.look.influence import QueryInfluence, SampleInfluence
    from taftcache.stages.look.inside.classes import ClassReport
    from taftcache.stages.look.inside.component_files import ComponentFileReport
    from taftcache.stages.look.inside.samples import SampleReport
    from taftcache.stages.look.inside.shards import ShardFigures, ShardReport
    from taftcache.stages.look.inside.statistics import Activations
    from taftcache.stages.look.inside.stores import InspectReport
    from taftcache.stages.look.outliers import OutliersReport
    from taftcache.stages.look.row_table import Sample
    from taftcache.stages.look.suspects import SuspectsReport
    from taftcache.stages.train.private.records import Budget
    from taftcache.view.report import PageReport

FEW = 5  # skipped samples that are named


def show_recipe(text: str, identity: Mapping[str, Any], others: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """The ``text`` of a recipe's file, with what to know of it as the recipe of a store of this ``identity``; beside a
    setting, or after the text if that leaves it out, which models were made with ``others``."""
    said = {
        key: f"# {key} was another in {'; '.join(f'{first_few(names)}: {value}' for value, names in by_value.items())}"
        for key, by_value in others.items()
    }
    print_line("# As the store records it. Commands that take this file open the places it names: look at them first.")
    if (imported := imported_from(identity)) is not None:
        print_line(f"# The rows were imported from {imported}; data.source stands for no images.")
        print_line("# train takes this file, extract does not.")
    section = ""
    for line in text.splitlines():
        section = line.strip("[]") if line.startswith("[") else section
        if (comment := said.pop(f"{section}.{line.partition(' = ')[0]}", None)) is not None:
            print_line(comment)
        print_line(line)
    for comment in said.values():
        print_line(comment)


def show_inspect(report: InspectReport) -> None:
    """A store on one screen, readable at 80 columns."""
    b, cut = report.identity["backbone"], report.cut
    OUT.print(
        stacked(
            f"{report.store}: {counted(report.rows, 'training row')}, {report.held_out_rows} held out,"
            f" {counted(len(report.classes), 'class')}, {readable_size(report.bytes)}",
            f"vectors   of {b['weights']}, scaled by {scaling}"
            if (scaling := scaling_of(report.identity))
            else f"backbone  {b['model']} ({b['weights']}, {b['weights_digest'][:16]}), {cut['tail']}",
            *_data(report),
            *([f"input     {prepared}"] if (prepared := input_text(report.identity.get("preprocess"))) else []),
            f"cached    the {cut['rows']} of a sample, {cut['shape'][0]}×{cut['shape'][1]} {report.dtype};"
            f" tangent by {report.tangent.get('path', 'nothing yet')}",
            f"plan      {report.plan['kind']}, seed {report.plan['seed']}; {report.skipped} skipped",
            f"forgotten {forgotten_text(report.forgotten, report.ledger)}",
            *([f"export    {NOT_EXPORTED}"] if report.plan.get(FROM_EXPORT) else []),
            f"integrity {report.integrity.text}",
            f"root      {report.root_digest}",
        )
    )
    print_notes(report.notes)
    for file in report.integrity.missing:
        OUT.print(f"MISSING   {file}")
    for one in report.left_out[:FEW]:
        say(f"skipped   {one['sample']}: {one['reason']}")
    if report.skipped > FEW:
        OUT.print(f"skipped   … and {report.skipped - FEW} more: --json")
    OUT.print(shards_table(report.shards))
    counts = report.rows_per_class
    if counts:
        fewest, most = min(counts, key=lambda k: counts[k]), max(counts, key=lambda k: counts[k])
        OUT.print(f"training rows per class: {counts[fewest]} ({fewest}) to {counts[most]} ({most})")
    if report.models:
        table = plain_table("model", "size", "‖Δw‖", "‖Δw−Δw*‖ ≤", "passes", "ended", "digest")
        for m in report.models:
            c = m.get("certificate")
            ended = "imported" if m.get("imported") else ""
            ended = ended if "converged" not in m else "converged" if m["converged"] else "above tolerance"
            table.add_row(
                m["name"], readable_size(m["bytes"]), f"{m.get('norm', nan):.3g}",
                at_most(c["distance_bound"]) if c else "", str(m.get("stats", {}).get("passes", "")),
                "private" if "privacy" in m else ended, m["digest"][:8],
            )  # fmt: skip
        OUT.print(table)
        _privacy(report.models)
        for m in report.models:
            if said := m.get("stated"):
                OUT.print(f"{m['name']}: its file stated {promise_text(said)}; unchecked, and no promise here")
        _solved(report.models)
    if report.budget is not None:
        _budget(report.budget)
    if not report.ledger:
        OUT.print("ledger: empty")
    for e in report.ledger[-3:]:
        what = f"{e.get('event', '')}, {taken_text(e)}" if "samples" in e else e.get("event", "")
        OUT.print(f"ledger {e['seq']} of {report.ledger_entries}: {e.get('time', '')} {what}")
    if report.activations is not None:
        OUT.print(_activations(report.activations, report.dtype))


def shards_table(shards: Sequence[ShardFigures]) -> Table:
    """A line for each shard, readable at 80 columns."""
    table = plain_table("shard", "role", "rows", "classes", "per class", "size", "max |x|", "digest")
    for s in shards:
        table.add_row(
            s.name, s.role, str(s.rows), str(s.classes), _range(s.fewest, s.most),
            readable_size(s.bytes), f"{s.max_abs:.3g}", s.digest[:8],
        )  # fmt: skip
    return table


def _data(report: InspectReport) -> list[str]:
    """A line on where the images came from, and one on a file of weights: as the store names them, opened by nothing.
    Vectors have none: their file is named already."""
    if not report.recipe or scaling_of(report.identity):
        return []
    data, weights = report.recipe["data"], report.recipe["backbone"]["weights"]
    named = [f"{key} {data[key]}" for key in ("test", "root") if data[key] is not None]
    named += [f"at most {data['limit']}"] if data["limit"] is not None else []
    own_split = data["test"] is not None or data["source"] == "published"
    named += [] if own_split else [f"{data['held_out']:g} held out"]
    named += [f"groups by {data['group']}"] if data.get("group") else []
    imported = imported_from(report.identity)
    source = data["source"] if data["train"] is None else f"{data['source']} {data['train']}"
    return [
        f"data      imported from {imported}" if imported else f"data      {', '.join([source, *named])}",
        *([] if weights in ("bundled", "pretrained") else [f"weights   {weights}"]),
    ]


def _solved(models: Sequence[Mapping[str, Any]]) -> None:
    """Each λ and loss with the models that have them, and what each sum is a sum of."""
    names = dict[str, list[str]]()
    for m in models:
        if said := _problem(m):
            names.setdefault(said, []).append(m["name"])
    for said, having in names.items():
        OUT.print(f"{said}: {first_few(having, 8)}")
    for m in models:
        if (parts := m.get("coefficients")) is not None:
            OUT.print(f"{m['name']}: {_sum(parts)}")
    if any("ridge_choice" in m for m in models):
        OUT.print("the mean loss at each that was tried: --shard NAME, or --json")


def _problem(m: Mapping[str, Any]) -> str:
    """The loss and λ of a component or model, and how that was chosen; empty if it says none of them."""
    choice = m.get("ridge_choice")
    ridge = [f"λ {m['ridge']:.1e}" + (f" by {choice['method']}" if choice else "")] if "ridge" in m else []
    return ", ".join([*([f"loss {m['loss']}"] if "loss" in m else []), *ridge])


def _tried(choice: Mapping[str, Any]) -> str:
    """The mean loss at each λ that was tried."""
    taken = {True: " (taken)", False: ""}
    curve = [f"{p['ridge']:.1e}: {p['loss']:.4g}{taken[p['ridge'] == choice['ridge']]}" for p in choice["curve"]]
    return f"; mean loss at {', '.join(curve)}" if curve else ""


def _sum(parts: Mapping[str, float] | int) -> str:
    """What a sum is a sum of: coefficients by component, or their number where each class has its own."""
    if isinstance(parts, int):
        return f"a sum of {counted(parts, 'component')}, each class weighed by its rows"
    if len({*parts.values()}) == 1:
        return f"the mean of {counted(len(parts), 'component')}"
    return "a sum of " + first_few([f"{mu:.3g} × {name}" for name, mu in parts.items()], 8)


def show_shard(report: ShardReport) -> None:
    """One shard: balance, activations, component."""
    s = report.shard
    OUT.print(
        f"shard {s.name} ({s.role}): {counted(s.rows, 'row')}, {readable_size(s.bytes)}, {s.dtype}"
        f" in chunks of {counted(s.chunk_rows, 'row')}"
    )
    OUT.print(f"digest {s.digest}")
    _bars(report.rows_per_class)
    OUT.print(_activations(report.activations, s.dtype))
    if report.component is not None:
        m = report.component
        c = m.get("certificate")
        known = f"; {bounded(c['relative_gradient'], c['distance_bound'])}" if c else ""
        OUT.print(f"{m['name']}: ‖Δw‖ {m.get('norm', nan):.3g}{known}")
        if "status" in m:
            OUT.print(m["status"])
        if said := _problem(m):
            OUT.print(said + (_tried(m["ridge_choice"]) if "ridge_choice" in m else ""))
        _privacy([m])
    print_notes(report.notes)
    _first(report.first_samples, s.rows, f"--shard {s.name}")


def show_component_file(report: ComponentFileReport) -> None:
    """What a component's file says of itself."""
    m = report.said
    rows = counted(m["rows"], "row") if m.get("rows") is not None else "rows unknown"
    say(
        f"{report.file}: {m.get('kind', 'component')}, {rows}, base {report.base_digest[:16]}, "
        f"{readable_size(report.bytes)}"
    )
    shapes = [f"{name} {'×'.join(map(str, shape))}" for name, shape in report.tensors.items()]
    say(f"tensors: {first_few(shapes, 8)}")
    if c := m.get("certificate"):
        say(f"certificate as stated: {bounded(c['relative_gradient'], c['distance_bound'])}")
    if said := m.get("privacy"):
        say(f"privacy as stated: {promise_text(said)}")
    say(*(f"{key}: {value}" for key, value in _flat({k: v for k, v in m.items() if k not in ("kind", "rows")})))
    print_notes(report.notes)


def _flat(said: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a description, which its reader may be about to send, with the path of keys to each."""
    for key, value in said.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", first_few([*map(str, value)], 20) if isinstance(value, list) else value


def show_class(report: ClassReport) -> None:
    """One class over the shards."""
    OUT.print(
        f"class {report.label}: {counted(report.rows, 'training row')} ({100 * report.share:.1f} %),"
        f" {report.held_out_rows} held out",
    )
    _bars({s.name: s.rows for s in report.shards}, {s.name: s.share for s in report.shards})
    _first(report.first_samples, report.rows, f"--class {report.label}")


def show_sample(report: SampleReport) -> None:
    """One sample, and what the models say of it."""
    OUT.print(f"{report.sample}: class {report.label}, shard {report.shard}, row {report.row}")
    OUT.print(
        f"first token ‖x‖ {report.first_token_norm:.4g}, mean token ‖x‖ {report.mean_token_norm:.4g},"
        f" max |x| {report.max_abs:.4g}",
    )
    if report.predictions:
        table = plain_table("model", "class", "logit of its class", "margin")
        for name, p in report.predictions.items():
            right = "✓" if p["label"] == report.label else "✗"
            margin = "–" if p["margin"] is None else f"{p['margin']:+.3f}"
            table.add_row(name, f"{right} {p['label']}", f"{p['logit']:.3f}", margin)
        print_table(table)
    if report.moved_bound is not None:
        OUT.print(f"forgetting it moves components/{report.shard} by at most {at_most(report.moved_bound, '.3g')}")
    print_notes(report.notes)


def show_samples(report: list[Sample]) -> None:
    """Ids, one a line and nothing beside them, as ``forget --file`` takes them."""
    print_ids([one.sample for one in report])


def show_suspects(report: SuspectsReport) -> None:
    """Training rows whose labels may be wrong."""
    OUT.print(
        stacked(
            f"{report.store}: {report.disagreeing} of {report.rows} judged rows get another class than their label",
            f"judged by {report.method}",
        )
    )
    table = plain_table("sample", "label", "says", "margin", "shard")
    for s in report.suspects:
        table.add_row(s.sample, s.label, s.says, f"{s.margin:+.3f}", s.shard)
    print_table(table)
    print_notes(report.notes)


def show_duplicates(report: DuplicatesReport) -> None:
    """Rows that are nearly the same, leaks first."""
    OUT.print(
        stacked(
            f"{report.store}: {counted(report.rows, 'row')}, each with every other",
            f"similarity of {report.threshold:g} and more: 1 is the same, 0 is as two rows at random",
        )
    )
    _pairs(report.leaks, report.leaks_found, "of a training row with a held-out one")
    _pairs(report.pairs, report.pairs_found, "among training rows, or among held-out ones")
    print_notes(report.notes)


def show_find(report: FindReport) -> None:
    """The samples most like each image, and what to do with them."""
    for image, matches in report.found.items():
        say(f"{image}: most like, of {counted(report.rows, 'row')}")
        table = plain_table("sample", "class", "shard", "similarity", "")
        for m in matches:
            where = m.shard if m.role == "train" else m.role
            table.add_row(m.sample, m.label, where, f"{m.similarity:.3f}", "the same row" if m.same else "")
        OUT.print(table)
    print_notes(report.notes)
    say(f"next   taftcache forget {typed(report.store)} --sample ID --dry-run")


def show_outliers(report: OutliersReport) -> None:
    """Rows far from all others."""
    rank = "" if report.neighbour == 1 else f"{ordinal(report.neighbour)} "
    OUT.print(
        stacked(
            f"{report.store}: {counted(report.rows, 'row')} by the distance to the {rank}nearest training row,"
            " in medians of their class",
        )
    )
    table = plain_table("sample", "class", "times the median", "distance", "shard")
    for o in report.outliers:
        table.add_row(o.sample, o.label, f"{o.times:.2f}", f"{o.distance:.4g}", o.shard)
    print_table(table)
    print_notes(report.notes)


def show_address(url: str, notes: list[str]) -> None:
    """Where the page is, and what it does not show."""
    print_notes(notes)
    say(url)
    OUT.print("The address is for this machine and this run alone; Ctrl-C ends it.")


def show_report(report: PageReport) -> None:
    """The file that was written."""
    say(
        f"{report.file}: {readable_size(report.bytes)}, {counted(report.rows, 'sample')},"
        f" all details of {len(report.details)}"
    )
    print_notes(report.notes)


def show_sample_influence(report: SampleInfluence) -> None:
    """A model with and without one sample."""
    OUT.print(
        stacked(
            f"{report.model} without {report.sample} (class {report.label}, shard {report.shard}):",
            f"  Δw moves by {report.moved:.3g}, solved to within {at_most(report.distance_bound)}"
            f" in {counted(report.passes, 'pass')}",
            *_untold(report),
            *_other_ridge(*report.ridge),
            f"  its own logit goes from {report.own_logit:.3f} to {report.own_logit_without:.3f};"
            f" label {report.own_label} → {report.own_label_without}",
            f"  {report.labels_changed} of {report.held_out} held-out labels change,"
            f" no logit by more than {at_most(report.largest_change, '.2g')}",
        )
    )


def _untold(report: SampleInfluence) -> list[str]:
    """A line for when the solves with and without a sample are no nearer to their optima than to each other."""
    if report.moved > report.distance_bound:
        return []
    nearer = f"taftcache train {typed(report.store)} --set solver.tolerance=decisive"
    return [f"  nothing tells what the sample moves, for neither is solved nearer than that: {nearer}"]


def _other_ridge(before: float, after: float) -> list[str]:
    """A line for when it is not the sample alone that moves a model."""
    if before == after:
        return []
    return [f"  with another λ, which moves it too: the rows that stay choose {after:.1e}, with it {before:.1e}"]


def show_query_influence(report: QueryInfluence) -> None:
    """The samples behind one prediction."""
    other = "" if report.label == report.predicted else f" ({report.predicted} is predicted)"
    OUT.print(f"{report.query}: {report.label}, logit {report.logit:.3f} by {report.model}{other}")
    solved = ("solved without it", "±") if any(s.solved is not None for s in report.samples) else ()
    table = Table("sample", "class", "shard", "at this λ, without it the logit changes by", *solved)
    for s in report.samples:
        exact = ("",) * len(solved) if s.solved is None or s.bound is None else (f"{s.solved:+.4f}", at_most(s.bound))
        table.add_row(s.sample, s.label, s.shard, f"{s.change:+.4f}", *exact)
    print_table(table)
    values = first_few([f"{ridge:.1e}" for ridge in dict.fromkeys(report.ridges.values())])
    how = f"{report.method} at λ = {values}, held fixed"
    OUT.print(f"{how}; residual {report.residual:.0e}, {counted(report.passes, 'pass')}")
    for s in report.samples:
        if s.ridge is not None and s.ridge not in report.ridges.values():
            OUT.print(f"  {s.sample} was solved without it at another λ, which moves it too: {s.ridge:.1e}")
    print_notes(report.notes)


def _activations(a: Activations, dtype: str) -> Text:
    """Statistics of all values, kept from extraction, and those of a sample of them."""
    g, s = a.gathered, a.sampled
    quantiles = " / ".join(f"{v:.3g}" for v in s["norm_quantiles"].values())
    worst = ", ".join(f"{c['channel']} ({c['ratio']:.1f}×)" for c in s["largest_channels"][:3])
    return stacked(
        "activations, every value (at extraction)",
        f"  max |x| {g['max_abs']:.4g}: {dtype} overflows at {g['headroom']:.3g} times that; mean token ‖x‖"
        f" {g['mean_token_norm']:.4g}",
        "  NaN, infinities, overflow: none, extraction refuses them",
        f"activations, {s['rows']} of {counted(s['of'], 'row')} (sampled now)",
        f"  ‖x‖ {quantiles}  (at 0 / 5 / 50 / 95 / 100 %)",
        f"  {counted(s['outlier_channels'], 'outlier channel')}; the largest {worst} the median's",
        f"  {100 * s['zeros']:.2g} % zeros, {100 * s['subnormal']:.2g} % subnormal, {s['not_finite']} not finite",
    )


def _pairs(pairs: list[Pair], found: int, where: str) -> None:
    """How many pairs there are, and those that are listed."""
    OUT.print(f"{counted(found, 'pair')} {where}")
    if not pairs:
        return
    table = plain_table("sample", "class", "shard", "sample", "class", "shard", "similarity")
    for p in pairs:
        (a, b), (x, y), (s, t) = p.samples, p.labels, p.shards
        table.add_row(a, x, s, b, y, t, f"{p.similarity:.4f}")
    print_table(table)


def _privacy(models: list[dict[str, Any]]) -> None:
    """Each promise with the models that make it, and what none of them covers."""
    by_promise: dict[str, list[str]] = {}
    uncovered: list[str] = []
    for m in models:
        if said := m.get("privacy"):
            by_promise.setdefault(promise_text(said), []).append(m["name"])
            uncovered = said["not_covered"]
    for promise, names in by_promise.items():
        OUT.print(f"{', '.join(names)}: {promise}")
    if uncovered:
        OUT.print(f"not covered: {'; '.join(uncovered)}")


def _budget(budget: Budget) -> None:
    """What private trainings may spend in all, and what each shard has left of it."""
    by_spent = dict[str, list[str]]()
    for shard, spent in budget.spent.items():
        left = at_least(round(max(0.0, budget.epsilon - spent), 9), ".4g")
        by_spent.setdefault(f"{epsilon_text(spent)} spent, {left} left", []).append(shard)
    OUT.print(f"budget  epsilon {budget.epsilon:g} at delta {budget.delta:g} ({budget.relation}) of each shard")
    for text, shards in by_spent.items():
        OUT.print(f"        {text}: {first_few(shards, 8)}")


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


MOST_BARS = 24


def _bars(counts: dict[str, int], shares: dict[str, float] | None = None) -> None:
    """Counts as bars; if there are many, the largest first."""
    largest = max(counts.values(), default=0) or 1
    names = list(counts) if len(counts) <= MOST_BARS else sorted(counts, key=lambda k: -counts[k])[:MOST_BARS]
    width = min(24, max((len(name) for name in names), default=0))
    for name in names:
        share = f"  {100 * shares[name]:5.1f} %" if shares else ""
        bar = "█" * round(30 * counts[name] / largest)
        OUT.print(f"  {name[:width]:{width}} {counts[name]:7d}{share}  {bar}")
    if len(names) < len(counts):
        OUT.print(f"  … and {len(counts) - len(names)} with fewer: --json has them all")


def _first(ids: list[str], rows: int, option: str) -> None:
    more = f"  … {rows - len(ids)} more: {option} --ids" if rows > len(ids) else ""
    OUT.print(f"samples {', '.join(ids)}{more}")
