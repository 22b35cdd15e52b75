"""What a request changed and proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from taftcache.names import counted
from taftcache.terminal.console import OUT, print_notes, stacked
from taftcache.terminal.text import certified, readable_size, some

if TYPE_CHECKING:
    from taftcache.stages.forget.auditing import AuditReport
    from taftcache.stages.forget.forgetting import ForgetReport


LOOSE = ", which this certificate is too loose to prove: train with a smaller solver.tolerance"


def show_forget(report: ForgetReport) -> None:
    """What a request changed and what it proves."""
    OUT.print(stacked(*forgotten_lines(report)))
    OUT.print(f"root {report.root_before[:16]} → {report.root_digest[:16]}   ({report.seconds:.1f} s)")


def show_audit(report: AuditReport) -> None:
    """Findings, or that there are none."""
    for f in report.findings:
        OUT.print(f"FAILED  {f.kind}: {f.where}: {f.problem}", markup=False, soft_wrap=True)
    print_notes(report.notes)
    if report.replayed:
        OUT.print(f"{counted(report.replayed, 'row')} that an old copy brought back, forgotten again")
    table = Table("component", "‖∇F‖ recorded", "recomputed", "‖Δw−Δw*‖ ≤ recorded", "proven now")
    for name, c in report.certificates.items():
        table.add_row(
            name,
            f"{c['recorded']:.3e}",
            f"{c['recomputed']:.3e}",
            f"{c['distance_recorded']:.1e}",
            f"{c['distance_bound']:.1e}",
        )
    if report.certificates:
        OUT.print(table)
    OUT.print(
        f"{counted(len(report.findings), 'finding')}; {counted(report.receipts, 'receipt')} in one chain,"
        f" {report.signed} signed; {counted(report.tombstones, 'tombstone')}"
    )
    OUT.print(f"root {report.root_digest}")
    if report.newest.entries:
        OUT.print(f"newest entry {report.newest.entries}: {report.newest.head}")


def forgotten_lines(report: ForgetReport) -> list[str]:
    """A request's outcome, without the store's digests."""
    lines = []
    if report.mode == "destroy-key":
        lines.append("the tombstones and their key are destroyed")
    if report.already:
        lines.append(f"forgotten before: {some(report.already)}")
    if report.forgotten:
        now = "would be forgotten" if report.dry_run else "forgotten now"
        where = f" (shard {', '.join(report.shards)})" if report.shards else ""
        lines.append(f"{now}: {some(report.forgotten)}{where}")
        lines.append(f"renewed: {', '.join(report.renewed) or 'nothing was made from these rows'}")
    if report.copies:
        stay, how = ("would stay", "--with-copies") if report.dry_run else ("stay", "taftcache forget --sample ID")
        lines.append(f"{len(report.copies)} rows with the very same bytes {stay}: {some(report.copies)} ({how})")
    if report.destroyed:
        lines.append(f"destroyed: {', '.join(report.destroyed)}")
    if report.dropped_shards:
        lines.append(f"dropped, for no row is left: shard {', '.join(report.dropped_shards)}")
    if report.classes:
        lines.append(f"out of the list of classes: {', '.join(report.classes)}")
    if report.dry_run:
        passes = ", ".join(f"{name} {n}" for name, n in report.passes.items())
        lines.append(f"about {passes or 'no'} passes; {readable_size(report.bytes)} rewritten; nothing was changed")
    for name, c in report.certificates.items():
        moved = "" if c["moved"] is None else f"; the removal moved it by {c['moved']:.1e}"
        loose = "" if c["decisive"] is not False else LOOSE
        lines.append(f"{name}: {certified(c)}{moved}{loose}")
    for name, share in report.proven.items():
        lines.append(f"{name}: {100 * share:.1f} % of held-out labels are provably those of a full retrain")
    return [*lines, *(f"note: {note}" for note in report.notes)]
