"""Tables of comparisons and private training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from taftcache.names import ONE_SETTING, at_most, counted, epsilon_text, typed
from taftcache.terminal.console import OUT, print_notes, say

if TYPE_CHECKING:
    from taftcache.paper.comparison import CompareReport
    from taftcache.stages.train.private.training import PrivateTrainReport
    from taftcache.stages.train.teaching import TeachReport


def show_train_private(report: PrivateTrainReport) -> None:
    """The promise of each component, and what is left of the budget."""
    table = Table("component", "epsilon", "delta", "neighbours", "")
    for name, s in report.statements.items():
        table.add_row(
            name,
            epsilon_text(s["epsilon"]) if s["private"] else "not private",
            at_most(s["delta"], ".6g"),
            s["relation"],
            "trained" if name in report.trained else "kept",
        )
    OUT.print(table)
    if report.dropped:
        why = "made without noise from the same rows, or around another base point"
        OUT.print(f"dropped what was {why}: {', '.join(report.dropped)}")
    for shard, total in report.spent.items():
        OUT.print(f"shard {shard}: epsilon {epsilon_text(total)} spent in all, of {report.budget:g}")
    for name, s in report.statements.items():
        if s["tuning"] != ONE_SETTING:
            OUT.print(f"{name}: {s['tuning']}")
    print_notes(report.notes)
    statements = list(report.statements.values())
    if statements:
        OUT.print(f"not covered: {'; '.join(statements[0]['not_covered'])}")
    if report.trained:
        OUT.print("no certificate: only its accuracy says whether noise and steps let a private component learn")
        say(f"next   taftcache evaluate {typed(report.store)}")


def show_compare(report: CompareReport) -> None:
    """One table a report, one line a figure."""
    for made in report.reports:
        lines = [line.figures() for line in made.lines]
        keys = [k for k in dict.fromkeys(key for line in lines for key in line) if k not in made.aside]
        table = Table(*(key.replace("_", " ") for key in keys), title=made.title, title_justify="left")
        for line in lines:
            table.add_row(*(f"{v:.2f}" if isinstance(v := line.get(k, ""), float) else str(v) for k in keys))
        OUT.print(table)
        if made.early:
            OUT.print(made.early)
        for tuned in made.settings:
            chosen = ", ".join(f"{k} {v}" for k, v in tuned.chosen.items())
            which, _, what = (tuned.end or "").partition(" ")
            end = f"; its {what} is the {which} that was tried" if which else ""
            OUT.print(f"{tuned.method}, {counted(tuned.shards, 'shard')}: chose {chosen} of {len(tuned.tried)}{end}")
    say(
        f"{report.rows} training and {report.held_out} held-out rows, {counted(report.seeds, 'seed')},"
        f" {report.seconds:.0f} s on {report.machine}"
    )
    print_notes(report.notes)


def show_teach(report: TeachReport) -> None:
    """Students side by side, and what the comparison says."""
    for title, rows in report.tables.items():
        if not rows:
            continue
        columns = dict.fromkeys(key for row in rows for key, value in row.items() if value is not None and value != {})
        table = Table(*columns, title=title, title_justify="left")
        for row in rows:
            table.add_row(*(_figure(row.get(column), column) for column in columns))
        OUT.print(table)
    for line in [*report.conclusions, *(f"note: {note}" for note in report.notes)]:
        say(line)
    say(
        f"{counted(report.trained, 'student')} trained, {report.kept} found trained ({report.seconds:.1f} s)",
        f"student {report.student.parent}",
        f"report  {report.folder / 'report.md'}",
        f"next    taftcache predict {typed(report.student.parent)} IMAGE",
    )


def _figure(value: Any, column: str) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {100 * share:.1f}" for name, share in value.items())
    if not isinstance(value, float):
        return "" if value is None else str(value)
    share = column in ("accuracy", "deviation") or "energy" in column
    return f"{100 * value:.2f} %" if share else f"{value:.3g}"
