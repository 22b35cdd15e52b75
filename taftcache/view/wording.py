"""Certificates, receipts and what is known of an id, in the words of the commands and of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taftcache.names import at_least, at_most, by_receipts, counted, first_few, is_component, points_text, short_key

if TYPE_CHECKING:
    from taftcache.stages.certificates import JudgedCertificate, RenewedCertificate
    from taftcache.stages.forget.receipts import Answer, Proof, Receipt, ReceiptsReport

SIGNATURES = {
    "none": "not signed",
    "valid": "signed by {key}",
    "wrong": "ITS SIGNATURE IS WRONG",
    "unchecked": "signed by {key}, says the entry; not checked: pip install 'taftcache[sign]'",
}
NOT_EXPORTED = "the rows came from an export: what was forgotten before it is not known here"
NOT_COVERED = (
    "not covered: the images or vectors themselves, copies and backups, models given away earlier, settings chosen with"
    " the rows at hand"
)
ROUNDED = (
    "receipts round to powers of two, bounds up and what they are held against down, so that no guess at a row can be"
    " proven from them; forget printed the figures themselves"
)
UNKNOWN = "; nothing says whether that decides, for what a row moves was not estimated"
NEARER = 'train with solver.tolerance = "decisive", or with a larger objective.ridge'
LOOSE = f", which this certificate is too loose to prove: {NEARER}"


def bounded(relative_gradient: float, distance_bound: float) -> str:
    """What a certificate proves, in one clause."""
    gradient = at_most(relative_gradient, ".0e")
    return f"‖∇F‖ {gradient} of its start in float64, so ‖Δw−Δw*‖ ≤ {at_most(distance_bound)}"


def certified(c: JudgedCertificate | RenewedCertificate | Proof) -> str:
    """The same and, if it is known, what removing a typical row moves."""
    said = bounded(c.relative_gradient, c.distance_bound)
    return said if c.row_moves is None else f"{said}; {decides(c)}"


def decides(c: JudgedCertificate | RenewedCertificate | Proof) -> str:
    """What removing a typical row moves, beside a certified distance."""
    return f"removing a row moves it by about {c.row_moves:.1e}: {'decisive' if c.decisive else 'not decisive'}"


def gain_text(gain: float, interval: tuple[float, float], verdict: str, groups: int | None = None) -> str:
    """What became of an accuracy: its difference, and whether that is more than noise; ``groups``: see
    ``points_text``."""
    return f"{points_text(gain, interval, groups)}: {({'ahead': 'better', 'behind': 'worse'}).get(verdict, verdict)}"


def answer_text(answer: Answer, report: ReceiptsReport) -> str:
    """What the store that ``report`` is of can say of one id, and of its group and others in it, and no more."""
    said = _state_text(answer, report)
    if answer.group_receipts is not None:
        out = ", so append leaves it out" if answer.state == "unknown" else ""
        said += f"; its group was forgotten as a whole {by_receipts(answer.group_receipts)}{out}"
    return said if not answer.in_group else f"{said}; of its group it has {counted(answer.in_group, 'other sample')}"


def _state_text(answer: Answer, report: ReceiptsReport) -> str:
    texts = {r.seq: f"receipt {r.seq} of {r.time}" for r in (*report.receipts, *report.perhaps)}
    named = " and ".join(texts.get(seq, f"entry {seq}") for seq in answer.receipts)
    if answer.state == "forgotten":
        if named:
            return f"forgotten by {named}" + (f", as {answer.alike!a}, which looks the same" if answer.alike else "")
        if answer.beside:
            return "forgotten at this place, says the file beside the store; the receipt is not in this store"
        if answer.perhaps:
            may = [
                f"{texts[seq]}, which keeps only a digest of its ids"
                if seq in texts
                else f"before entry {seq}, which took over what an earlier store here had forgotten"
                for seq in answer.perhaps
            ]
            return f"forgotten, but no receipt lists it; it was {'; or '.join(may)}"
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
    if answer.same_end:
        ends = [f"{i!r} ({state})" for i, state in answer.same_end.items()]
        return f"not known as it is written here; did you mean {first_few(ends)}?"
    if report.unreadable:
        return f"not held; whether {_either(report.unreadable)} forgot it cannot be told, for the key is destroyed"
    unknown = "not known: no row and no tombstone has this id"
    if answer.outside:
        return f"{unknown}, but the path is outside of the data.train that the store names: ask by the id of then"
    if report.from_export:
        return f"{unknown}; {NOT_EXPORTED}"
    return f"{unknown}; it was never here, or is written otherwise"


def _either(seqs: list[int]) -> str:
    return f"entry {seqs[0]}" if len(seqs) == 1 else f"one of the entries {', '.join(map(str, seqs))}"


def receipt_lines(r: Receipt, unreadable: bool) -> list[str]:
    """A receipt in lines, the first with its number; ``unreadable``: its key is destroyed."""
    if r.event == "destroy-key":
        lines = [f"receipt {r.seq}, {r.time}: the key and the list of tombstones were destroyed"]
    elif r.event == "forget":
        rows = ", ".join(f"{counted(n, 'row')} of {name}" for name, n in r.shards.items()) or "no row"
        without = r.samples - sum(r.shards.values())  # skipped samples, and those of an unfinished extraction
        rows += " removed" + (f", {without} had no row in a shard" if without > 0 else "")
        what = taken_text({"samples": r.samples, "classes_removed": r.classes_removed, "destroyed": r.destroyed})
        lines = [f"receipt {r.seq}, {r.time}: {what} forgotten by {r.mode}; {rows}"]
        lines.append(renewed_text(r.renewed))
    else:
        lines = [f"receipt {r.seq}, {r.time}: {r.event}"]
    lines += gone_lines(r.destroyed, r.dropped_shards)
    if r.classes_removed:
        lines.append(f"out of the list of classes: {counted(r.classes_removed, 'class')}")
    if r.copies_taken:
        lines.append(
            f"{r.copies_taken} of the ids not named, but with the very same bytes as one that was (--with-copies)"
        )
    if r.copies:
        lines.append(f"{counted(r.copies, 'row')} of other ids held the very same bytes, and stayed then")
    lines += [proof_text(name, c) for name, c in r.certificates.items()]
    lines += [f"note: {note}" for note in r.notes]
    if unreadable:
        lines.append("its key is destroyed: no id can be looked up in it")
    elif r.event == "forget" and not r.listed:
        lines.append("it keeps a digest of its ids: give all of them with --file, and it is recognised")
    return [*lines, f"{SIGNATURES[r.signature].format(key=short_key(r.public_key or ''))}; {r.file}"]


def taken_text(entry: Mapping[str, Any]) -> str:
    """What an entry of the ledger says that a request took."""
    return counted(*_taken(entry))


def _taken(entry: Mapping[str, Any]) -> tuple[int, str]:
    """How many ids; or components, if it took none but these, for a sample's request destroys some, too."""
    samples = entry.get("samples")
    if not samples and not entry.get("classes_removed") and isinstance(destroyed := entry.get("destroyed"), list):
        components = sum(isinstance(name, str) and is_component(name) for name in destroyed)
        if components:
            return components, "component"
    return samples if isinstance(samples, int) else 0, "id"


def forgotten_text(tombstones: int, entries: Sequence[Mapping[str, Any]], *, whole: bool = True) -> str:
    """What a store with these ledger ``entries`` has forgotten: the receipts' ids and components, and ``tombstones``,
    of which a shard or a class that left has one, too, and which go with their key; ``whole``: whether these are all
    its entries."""
    taken = [_taken(entry) for entry in entries if entry.get("event") == "forget"]
    said = []
    for thing in ("id", "component"):
        counts = [count for count, of in taken if of == thing]
        said += [f"{counted(sum(counts), thing)} by {counted(len(counts), 'receipt')}"] if counts else []
    said += [counted(tombstones, "tombstone")] if tombstones else []
    if any(entry.get("event") == "destroy-key" for entry in entries):
        said.append("the key of earlier ones is destroyed" if tombstones else "the key of the tombstones is destroyed")
    said += [] if whole else ["the rest is not known, for the ledger is damaged"]
    return "; ".join(said) or "nothing"


def again_lines(imported: Mapping[str, Sequence[int]]) -> list[str]:
    """Components that were imported again, with the receipts that forgot them."""
    return [f"forgotten {by_receipts(said)}, and imported again since: {name}" for name, said in imported.items()]


def caveats(receipts: Sequence[Receipt], full: str) -> list[str]:
    """What applies to the figures of ``receipts``, and what none of them covers; ``full``: where all of that stands."""
    proofs = [proof for r in receipts for proof in r.certificates.values()]
    lines = [ROUNDED] if any(proof.moved is None for proof in proofs) else []
    return lines + ([f"{NOT_COVERED} (in full: {full})"] if any(r.not_covered for r in receipts) else [])


def renewed_text(names: Sequence[str]) -> str:
    """Which models a request made anew."""
    return f"renewed: {', '.join(names) or 'nothing'}"  # what the rows made may be private, and stay, or be gone


def gone_lines(destroyed: Sequence[str], shards: Sequence[str]) -> list[str]:
    """What a request left nothing of."""
    lines = [f"destroyed: {', '.join(destroyed)}"] if destroyed else []
    return lines + ([f"dropped, for no row is left: shard {', '.join(shards)}"] if shards else [])


def proof_text(name: str, c: RenewedCertificate | Proof) -> str:
    """A renewed component's certificate beside what the removal moved."""
    moved = ""
    if c.moved is not None:
        moved = f"; the removal moved it by {c.moved:.1e}"
    elif c.moved_at_least is not None:  # a receipt has only this bound
        moved = f"; the removal moved it by {at_least(c.moved_at_least)} at least"
    other = c.other_ridge or c.ridge_before is not None  # receipts have the one or, from earlier releases, the other
    if other:
        before = "" if c.ridge_before is None else f", with these {c.ridge_before:.1e}"
        moved += f", with another λ: the rows that stay chose {c.ridge:.1e}{before}"
    loose = LOOSE if c.decisive is False else UNKNOWN if other and c.decisive is None else ""
    # `certified` has said it already if it says what a row moves.
    decides = " (decisive)" if c.decisive and c.row_moves is None else ""
    return f"{name}: {certified(c)}{moved}{loose}{decides}"
