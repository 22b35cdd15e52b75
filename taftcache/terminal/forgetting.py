"""What a request changed and proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from taftcache.names import (
    EXACT,
    at_most,
    counted,
    first_few,
    readable_size,
    readable_time,
    short_key,
    told_apart,
)
from taftcache.stages.forget.finding import UNFINISHED
from taftcache.terminal.console import OUT, print_line, print_notes, print_table, say, stacked
from taftcache.terminal.text import accuracies
from taftcache.view.wording import (
    NOT_EXPORTED,
    again_lines,
    answer_text,
    caveats,
    gone_lines,
    proof_text,
    receipt_lines,
    renewed_text,
)

if TYPE_CHECKING:
    from taftcache.stages.audit.auditing import AuditReport
    from taftcache.stages.forget.forgetting import ForgetReport
    from taftcache.stages.forget.receipts import ReceiptsReport

RESOLVED = "at most (from where it stands, usually a third to a half)"
DESTROYED = (
    "the key and the list of tombstones are destroyed, here and in the file beside the store; receipts keep their "
    "hashes of ids, which say nothing without the key"
)


def show_forget(report: ForgetReport) -> None:
    """What a request changed and what it proves."""
    OUT.print(stacked(*forgotten_lines(report)))
    if not report.dry_run:
        OUT.print(f"root {report.root_before[:16]} → {report.root_digest[:16]}   ({report.seconds:.1f} s)")


def show_audit(report: AuditReport) -> None:
    """The verdict first, then what was found and what to do about it, and the figures last."""
    say(_verdict(report))
    for f in report.findings:
        say(f"{f.kind}: {f.where}: {f.problem}", f"  try: {f.do}")
    print_notes(report.notes)
    if report.replayed:
        OUT.print(f"forgotten again: {report.replayed} of its samples and components, brought back by an old copy")
    table = Table("component", "‖∇F‖ recorded", "recomputed", "‖Δw−Δw*‖ ≤ recorded", "proven now")
    for name, c in report.certificates.items():
        table.add_row(
            name,
            f"{c.recorded:.3e}",
            f"{c.recomputed:.3e}",
            at_most(c.distance_recorded),
            at_most(c.distance_bound),
        )
    if report.certificates:
        print_table(table)
    marks = (
        ", one for each sample, and for each class, shard or group forgotten as a whole, two for a component"
        if report.tombstones > 1
        else ""
    )
    by = f" by {' and '.join(map(short_key, report.signers))}" if report.signers else ""
    say(
        f"{counted(report.receipts, 'receipt')} in one chain,"
        f" {report.signed} of {counted(report.newest.entries, 'entry')} signed{by};"
        f" {counted(report.tombstones, 'tombstone')}{marks}"
    )
    OUT.print(f"root {report.root_digest}")
    if report.newest.entries:
        OUT.print(f"newest entry {report.newest.entries}: {report.newest.head}")


def _verdict(report: AuditReport) -> str:
    """Whether every promise holds, and for what that was checked."""
    if report.findings:
        only = {finding.kind for finding in report.findings} == {UNFINISHED}
        alone = ", of unfinished work alone, which is no part of the store" if only else ""
        return f"FAILED: {counted(len(report.findings), 'finding')}{alone}"
    if report.tombstones:
        places = ["the store", *(str(folder) for folder in report.also)]
        said = f"nothing of what was forgotten was found in {' and '.join(places)}"
        but = [f"{counted(report.harmless, 'file')} left out"] if report.harmless else []
        if report.unsure:
            but.append(f"{counted(report.unsure, 'file')} that nothing here can judge")
        if back := len(report.imported_again):
            but.append(f"{counted(back, 'component')} imported again since")
        said += f", but for {' and '.join(but)}" if but else ""
    elif report.receipts:
        said = "the key is destroyed, so that no forgotten id could be looked for"
    else:
        said = "nothing was forgotten here so far"
    receipts = f"{counted(report.receipts, 'receipt')} in order, " if report.receipts else ""
    proven = f"{counted(len(report.certificates), 'certificate')} proven"
    looser = f", {len(report.looser)} of them more loosely than recorded" if report.looser else ""
    loose = f", {len(report.undecided)} of them not decisive" if report.undecided else ""
    return f"PASSED: {said}; every file whole, {receipts}{proven}{looser}{loose}"


def forgotten_lines(report: ForgetReport) -> list[str]:
    """A request's outcome, without the store's digests."""
    lines = []
    if report.mode == "destroy-key":
        lines += [DESTROYED] if report.root_digest != report.root_before else []
    elif not (report.already or report.forgotten or report.dropped_shards or report.classes or report.destroyed):
        lines.append("nothing to forget")
    if report.already:
        lines.append(f"forgotten before: {first_few(told_apart(report.already), 8)}")
    if report.forgotten:
        now = "would be forgotten" if report.dry_run else "forgotten now"
        where = f" (shard {', '.join(report.shards)})" if report.shards else ""
        listed = {i for ids in report.matched.values() for i in ids} if report.dry_run else set[str]()
        others = [i for i in report.forgotten if i not in listed]
        which = f"{counted(len(report.forgotten), 'sample')}{', among them ' if others else ''}" if listed else ""
        lines.append(f"{now}: {which}{first_few(told_apart(others), 8)}{where}")
        if report.dry_run:
            lines += [f"{pattern} matches: {', '.join(told_apart(ids))}" for pattern, ids in report.matched.items()]
        lines += _copies(report)
    if report.forgotten or report.destroyed:
        lines.append(("would be " if report.dry_run else "") + renewed_text(report.renewed))
    lines += gone_lines(report.destroyed, report.dropped_shards)
    if report.classes:
        lines.append(f"out of the list of classes: {', '.join(report.classes)}")
    if report.dry_run:
        warm = EXACT if report.mode == "resolve" else None
        known = report.passes.items()
        passes = ", ".join(f"{name} {n}{f' {RESOLVED}' if name == warm else ''}" for name, n in known)
        lines.append(f"passes, about: {passes or 'none'}; {readable_size(report.bytes)} rewritten; nothing was changed")
        if times := report.expected_seconds:
            upper, lower = sum(times.values()), sum(t / 3 if name == warm else t for name, t in times.items())
            span = [readable_time(lower), readable_time(upper)] if warm in times else [readable_time(upper)]
            lines.append(f"an estimate: about {' to '.join(dict.fromkeys(span))} to solve them on this machine")
    lines += [proof_text(name, c) for name, c in report.certificates.items()]
    if report.held_out is not None:
        fewer = f", with {counted(len(report.classes), 'class')} fewer to choose from" if report.classes else ""
        lines.append(accuracies(report.held_out) + fewer)
        labels = counted(report.held_out.labels_changed, "label")
        moved = report.held_out.largest_change
        most = "" if moved is None else f", and the largest change of a logit is {moved:.2g}"
        lines.append(f"of these rows {labels} changed{most}")
    return [*lines, *(f"note: {note}" for note in report.notes)]


def _copies(report: ForgetReport) -> list[str]:
    """Rows with the very bytes of those that were named; all of them in a dry run, to be looked through."""
    lines, most = [], 8
    if report.dry_run:
        most = len(report.forgotten) + len(report.copies)
    if taken := report.copies_taken:
        which = first_few(told_apart(taken), most)
        lines.append(f"{len(taken)} of them not named, but with the very same bytes as one that was: {which}")
    if group := report.group_taken:
        which = first_few(told_apart(group), most)
        lines.append(f"{len(group)} of them not named, but of the group of one that was: {which}")
    if report.copies:
        left, copies = "stays" if len(report.copies) == 1 else "stay", counted(len(report.copies), "row")
        stay, how = ("would stay", "--with-copies") if report.dry_run else (left, "taftcache forget STORE --sample ID")
        lines.append(f"{copies} with the very same bytes {stay}: {first_few(told_apart(report.copies), most)} ({how})")
    return lines


def show_receipts(report: ReceiptsReport) -> None:
    """What the store knows of the ids that were asked about, and the receipts that name them; without ids, all."""
    for answer in report.samples:
        print_line(f"{answer.sample}: {answer_text(answer, report)}")
    every = [*report.receipts, *report.perhaps]
    for receipt in every:
        first, *rest = receipt_lines(receipt, receipt.seq in report.unreadable)
        say(f"{'maybe ' if receipt in report.perhaps else ''}{first}", *(f"  {line}" for line in rest))
    for line in (*again_lines(report.imported_again), *caveats(every, "--json")):
        say(line)
    if report.from_export:
        say(f"note: {NOT_EXPORTED}")
    about = " about what was asked" if report.samples else ""
    about += f", and {len(report.perhaps)} that may be" if report.perhaps else ""
    say(f"{counted(len(report.receipts), 'receipt')}{about}; taftcache audit checks what they promise")
