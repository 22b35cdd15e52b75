"""What a request changed and proves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table

from taftcache.names import counted, first_few, told_apart
from taftcache.terminal.console import OUT, print_line, print_notes, print_table, say, stacked
from taftcache.terminal.text import accuracies, certified, readable_size, readable_time

if TYPE_CHECKING:
    from taftcache.stages.forget.auditing import AuditReport
    from taftcache.stages.forget.forgetting import ForgetReport
    from taftcache.stages.forget.receipts import Answer, Receipt, ReceiptsReport

SIGNATURES = {
    "none": "not signed",
    "valid": "signed",
    "wrong": "ITS SIGNATURE IS WRONG",
    "unchecked": "signed; not checked: pip install 'taftcache[sign]'",
}
NOT_COVERED = (
    "not covered: the images or vectors themselves, copies and backups, models given away earlier, settings chosen with"
    " the rows at hand (in full: --json)"
)
ROUNDED = (
    "receipts round to powers of two, bounds up and what they are held against down, so that no guess at a row can be"
    " proven from them; forget printed the figures themselves"
)
UNKNOWN = "; nothing says whether that decides, for what a row moves was not estimated"
LOOSE = ', which this certificate is too loose to prove: train with solver.tolerance = "decisive" or a smaller one'


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
        print_table(table)
    marks = ", one for each sample, and for each class or shard forgotten as a whole" if report.tombstones > 1 else ""
    say(
        f"{counted(report.receipts, 'receipt')} in one chain, {report.signed} signed;"
        f" {counted(report.tombstones, 'tombstone')}{marks}"
    )
    OUT.print(f"root {report.root_digest}")
    if report.newest.entries:
        OUT.print(f"newest entry {report.newest.entries}: {report.newest.head}")


def _verdict(report: AuditReport) -> str:
    """Whether every promise holds, and of what that was checked."""
    if report.findings:
        return f"FAILED: {counted(len(report.findings), 'finding')}"
    if report.tombstones:
        places = ["the store", *(str(folder) for folder in report.also)]
        said = f"nothing of what was forgotten was found in {' and '.join(places)}"
    elif report.receipts:
        said = "the key is destroyed, so that no forgotten id could be looked for"
    else:
        said = "nothing was forgotten here so far"
    receipts = f"{counted(report.receipts, 'receipt')} in order, " if report.receipts else ""
    proven = f"{counted(len(report.certificates), 'certificate')} proven"
    looser = f", {len(report.looser)} of them more loosely than recorded" if report.looser else ""
    return f"PASSED: {said}; every file whole, {receipts}{proven}{looser}"


def forgotten_lines(report: ForgetReport) -> list[str]:
    """A request's outcome, without the store's digests."""
    lines = []
    if report.mode == "destroy-key":
        lines.append("the tombstones and their key are destroyed")
    elif not (report.already or report.forgotten or report.dropped_shards or report.classes):
        lines.append("nothing to forget")
    if report.already:
        lines.append(f"forgotten before: {first_few(told_apart(report.already), 8)}")
    if report.forgotten:
        now = "would be forgotten" if report.dry_run else "forgotten now"
        where = f" (shard {', '.join(report.shards)})" if report.shards else ""
        lines.append(f"{now}: {first_few(told_apart(report.forgotten), 8)}{where}")
        if report.dry_run:
            lines += [f"{pattern} matches: {', '.join(told_apart(ids))}" for pattern, ids in report.matched.items()]
        lines += _copies(report)
        lines.append(("would be " if report.dry_run else "") + _renewed(report.renewed))
    lines += _gone(report.destroyed, report.dropped_shards)
    if report.classes:
        lines.append(f"out of the list of classes: {', '.join(report.classes)}")
    if report.dry_run:
        passes = ", ".join(f"{name} {n}" for name, n in report.passes.items())
        lines.append(f"passes, about: {passes or 'none'}; {readable_size(report.bytes)} rewritten; nothing was changed")
        if times := report.expected_seconds.values():
            lines.append(f"an estimate: about {readable_time(sum(times))} to solve them on this machine")
    lines += [_proof(name, c) for name, c in report.certificates.items()]
    if report.held_out is not None:
        lines.append(accuracies(report.held_out))
    for name, share in report.proven.items():
        lines.append(f"{name}: {100 * share:.1f} % of held-out labels are provably those of a full retrain")
    return [*lines, *(f"note: {note}" for note in report.notes)]


def _copies(report: ForgetReport) -> list[str]:
    """Rows with the very bytes of those that were named; all of them in a dry run, to be looked through."""
    lines, most = [], 8
    if report.dry_run:
        most = len(report.forgotten) + len(report.copies)
    if taken := report.copies_taken:
        which = first_few(told_apart(taken), most)
        lines.append(f"{len(taken)} of them not named, but with the very same bytes as one that was: {which}")
    if report.copies:
        left, copies = "stays" if len(report.copies) == 1 else "stay", counted(len(report.copies), "row")
        stay, how = ("would stay", "--with-copies") if report.dry_run else (left, "taftcache forget STORE --sample ID")
        lines.append(f"{copies} with the very same bytes {stay}: {first_few(told_apart(report.copies), most)} ({how})")
    return lines


def show_receipts(report: ReceiptsReport) -> None:
    """What the store knows of the ids that were asked about, and the receipts that name them; without ids all."""
    times = {r.seq: r.time for r in report.receipts}
    for answer in report.samples:
        print_line(f"{answer.sample}: {_answer(answer, times, report.unreadable)}")
    asked = {seq for a in report.samples for seq in (*a.receipts, *a.perhaps)}
    shown = [receipt for receipt in report.receipts if receipt.seq in asked or not report.samples]
    for receipt in shown:
        say(*_receipt(receipt, receipt.seq in report.unreadable))
    if any(proof.moved is None for receipt in shown for proof in receipt.certificates.values()):
        say(ROUNDED)
    if any(receipt.not_covered for receipt in shown):
        say(NOT_COVERED)
    say(f"{counted(len(report.receipts), 'receipt')}; taftcache audit checks what they promise")


def _answer(answer: Answer, times: dict[int, str], unreadable: list[int]) -> str:
    """What the store can say of one id, and no more."""
    named = " and ".join(f"receipt {seq} of {times.get(seq)}" for seq in answer.receipts)
    if answer.state == "forgotten":
        if named:
            return f"forgotten by {named}"
        if answer.beside:
            return "forgotten at this place, says the file beside the store; the receipt is not in this store"
        if answer.perhaps:
            return f"forgotten by {_either(answer.perhaps)}, which does not list its ids"
        return "forgotten; no entry of the ledger says when"
    before = f"; forgotten by {named}, and taken in again since" if named else ""
    if answer.state == "held":
        return f"held, in shard {answer.shard}{before}"
    if answer.state == "skipped":
        return f"not held: it could not be used when shard {answer.shard} was made (taftcache inspect says why){before}"
    if answer.state == "staged":
        return f"held in staging, by the stopped extraction of shard {answer.shard}{before}"
    if named:
        return f"not held, and {named} names it, but its tombstone is gone: taftcache audit"
    if answer.alike is not None:
        return f"not known as it is written here, {answer.sample!a}; {answer.alike!a}, which looks the same, is"
    if unreadable:
        return f"not held; whether {_either(unreadable)} forgot it cannot be told, for the key is destroyed"
    return "not known: no row and no tombstone has this id; it was never here, or is written otherwise"


def _either(seqs: list[int]) -> str:
    return f"entry {seqs[0]}" if len(seqs) == 1 else f"one of the entries {', '.join(map(str, seqs))}"


def _receipt(r: Receipt, unreadable: bool) -> list[str]:
    """A receipt in lines, the first with its number."""
    if r.event == "destroy-key":
        lines = [f"receipt {r.seq}, {r.time}: the tombstones and their key were destroyed"]
    elif r.event == "forget":
        rows = ", ".join(f"{counted(n, 'row')} of {name}" for name, n in r.shards.items()) or "no row"
        without = r.samples - sum(r.shards.values())  # skipped samples, and those of an unfinished extraction
        rows += " removed" + (f", {without} had no row in a shard" if without > 0 else "")
        lines = [f"receipt {r.seq}, {r.time}: {counted(r.samples, 'id')} forgotten by {r.mode}; {rows}"]
        lines.append(f"  {_renewed(r.renewed)}")
    else:
        lines = [f"receipt {r.seq}, {r.time}: {r.event}"]
    lines += [f"  {line}" for line in _gone(r.destroyed, r.dropped_shards)]
    if r.classes_removed:
        lines.append(f"  out of the list of classes: {counted(r.classes_removed, 'class')}")
    if r.copies_taken:
        lines.append(
            f"  {r.copies_taken} of the ids not named, but with the very same bytes as one that was (--with-copies)"
        )
    if r.copies:
        lines.append(f"  {counted(r.copies, 'row')} of other ids held the very same bytes, and stayed")
    lines += [f"  {_proof(name, msgspec.structs.asdict(c))}" for name, c in r.certificates.items()]
    lines += [f"  note: {note}" for note in r.notes]
    if unreadable:
        lines.append("  its key is destroyed: no id can be looked up in it")
    elif r.event == "forget" and not r.listed:
        lines.append("  it keeps a digest of its ids: give all of them with --file, and it is recognised")
    return [*lines, f"  {SIGNATURES.get(r.signature, r.signature)}; {r.file}"]


def _renewed(names: Sequence[str]) -> str:
    return f"renewed: {', '.join(names) or 'nothing'}"  # what was made of the rows may be private, and stay, or be gone


def _gone(destroyed: Sequence[str], shards: Sequence[str]) -> list[str]:
    """What a request left nothing of."""
    lines = [f"destroyed: {', '.join(destroyed)}"] if destroyed else []
    return lines + ([f"dropped, for no row is left: shard {', '.join(shards)}"] if shards else [])


def _proof(name: str, c: dict[str, Any]) -> str:
    """A renewed component's certificate beside what the removal moved."""
    moved = ""
    if c["moved"] is not None:
        moved = f"; the removal moved it by {c['moved']:.1e}"
    elif c.get("moved_at_least") is not None:  # of a receipt, which has no more
        moved = f"; the removal moved it by {c['moved_at_least']:.1e} at least"
    other = c.get("other_ridge", False)
    if c.get("ridge_before") is not None:
        moved += f", with another λ: the rows that stay chose {c['ridge']:.1e}, with these {c['ridge_before']:.1e}"
        other = True
    elif other:
        moved += f", with another λ: the rows that stay chose {c['ridge']:.1e}"
    loose = LOOSE if c["decisive"] is False else UNKNOWN if other and c["decisive"] is None else ""
    # Beside what a row moves it is said.
    decides = " (decisive)" if c["decisive"] and c.get("row_moves") is None else ""
    return f"{name}: {certified(c)}{moved}{loose}{decides}"
