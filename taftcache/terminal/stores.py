"""What was checked, moved or converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taftcache.names import counted, readable_size, typed
from taftcache.terminal.console import OUT, print_notes, say

if TYPE_CHECKING:  # some of these load torch, which `--help` does without
    from taftcache.stages.files.collection import CollectReport
    from taftcache.stages.files.copying import ConvertReport, CopyReport
    from taftcache.stages.files.exchange import ExportReport
    from taftcache.stages.files.trusting import TrustReport
    from taftcache.stages.files.vectors.importing import ImportReport
    from taftcache.stages.files.verification import VerifyReport


SCALED = {"row": "vectors, each divided by its root mean square", "none": "vectors as they are"}


def show_trust(report: TrustReport) -> None:
    """What a store may open from now on, or no longer."""
    what = "may no longer open" if report.removed else "may open"
    nothing = " anything; it had no leave" if report.removed else " nothing, for it names nothing"
    say(f"{report.store} {what}{':' if report.named else nothing}")
    for key, value in report.named.items():
        say(f"  {key} = {value!r}")
    print_notes(report.notes)


def show_verify(report: VerifyReport) -> None:
    """Faults, or that there are none."""
    if report.left is not None:
        OUT.print(f"back     from root {report.left or 'that could not be read'}")
    for file, how in report.mended.items():
        say(f"mended   {file}: {how}")
    for name, command in report.again.items():
        say(f"dropped  {name}: {command} makes it again")
    for fault in report.faults:
        reason = report.reasons.get(fault.file, "")
        say(f"DAMAGED  {fault}", *(f"         {line}" for line in reason.splitlines()))
    if any(fault.file not in report.reasons for fault in report.faults):
        say(f"try      taftcache verify {typed(report.store)} --repair")
    for stray in report.strays:
        OUT.print(f"stray    {stray} (no manifest names it; taftcache gc tells more)")
    state = (
        f"{counted(len(report.faults), 'damaged object')}"
        if report.faults
        else "every object has the digest its manifest names"
    )
    OUT.print(f"{readable_size(report.bytes)} read: {state}; ledger of {report.ledger_entries} in one chain")
    OUT.print(f"root {report.root_digest}")


def show_gc(report: CollectReport) -> None:
    """What went, and what stays though nothing names it."""
    for path, count in report.removed.items():
        verb = "would go" if report.dry_run else "removed "
        say(f"{verb} {path}  {readable_size(count)}")
    for path, count in report.kept.items():
        say(f"kept     {path}  {readable_size(count)}")
    total = readable_size(sum(report.removed.values()))
    OUT.print(
        f"{len(report.removed)} {'to remove' if report.dry_run else 'removed'}, {total}; root {report.root_digest[:16]}"
    )


def show_copy(report: CopyReport) -> None:
    """How much was copied."""
    say(
        f"{counted(report.files, 'file')} copied, {readable_size(report.bytes)} in {report.seconds:.1f} s;"
        f" {report.there} were there",
        f"store {report.store}: every file has the digest that its manifest names; root {report.root_digest[:16]}",
    )


def show_convert(report: ConvertReport) -> None:
    """The new store in two lines."""
    sizes = ", ".join(map(str, sorted(set(report.chunk_rows.values()))))
    say(
        f"store {report.store}: {counted(report.rows, 'row')} in {report.dtype}, chunks of {sizes} rows,"
        f" {readable_size(report.bytes)}, root {report.root_digest[:16]} ({report.seconds:.1f} s)"
    )
    for command in sorted(set(report.again.values())):
        names = ", ".join(name for name, by in report.again.items() if by == command)
        say(f"left behind: {names}; made again by {command}")


def show_export(report: ExportReport) -> None:
    """The file."""
    say(
        f"{report.file}: {counted(report.rows, 'row')} of root {report.root_digest[:16]} as {report.format},"
        f" {readable_size(report.bytes)} ({report.seconds:.1f} s)"
    )
    print_notes(report.notes)


def show_import(report: ImportReport) -> None:
    """The store."""
    came = "an export, shards as they were" if report.exported else "features of another tool"
    if report.scaling is not None:
        came = SCALED[report.scaling]
    shards = ", ".join(f"{name} {rows}" for name, rows in report.shards.items())
    say(
        f"{report.file or 'arrays'}: {came}",
        f"rows: {shards}; {report.tokens[0]}×{report.tokens[1]}, {counted(report.classes, 'class')}",
        f"store {report.store}: root {report.root_digest[:16]} ({report.seconds:.1f} s)",
    )
    print_notes(report.notes)
    if report.scaling is not None:
        say(f"next   taftcache train {typed(report.store)}")
    elif not report.trainable:
        OUT.print("It has no base to train from: import with --recipe to name the backbone that made the features.")
