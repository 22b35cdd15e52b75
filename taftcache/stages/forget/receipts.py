"""Receipts of requests to forget: what the ledger keeps of a request, without any name; and whether an id was
forgotten, when, and by which request."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import frexp, ldexp
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.plan import check_ids
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.nearest import by_ending, in_another_form
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.consent import grouping_recipe
from taftcache.errors import FormatError, IntegrityError, RecipeError, StoreError, several_texts
from taftcache.model.members import withdrawn
from taftcache.names import BEFORE, GROUP, NUMBERS
from taftcache.stages.certificates import RenewedCertificate
from taftcache.stages.completeness import is_from_export
from taftcache.stages.extract.plan import forgotten_group
from taftcache.stages.forget.chain import DESTROYED, FORGOTTEN, is_receipt
from taftcache.stages.forget.finding import Findings
from taftcache.stages.forget.request import Mode, ids_of_files, members_of_groups
from taftcache.stages.report import Report
from taftcache.stages.signature import STORE, is_signed, signed_text, store_digest

if TYPE_CHECKING:
    from taftcache.stages.forget.planning import ForgetPlan  # loads torch

T = TypeVar("T")
State = Literal["held", "skipped", "staged", "forgotten", "unknown"]

CONVENTION = "mean loss + ridge/2 |dw|^2 over the remaining rows"
MAX_IDS = 8192  # a ledger entry has at most 4 MiB; for more ids it keeps only the digest of their sorted hashes
NOT_COVERED = (
    "The images or vectors that the rows were made from; copies, backups and freed disk blocks; models given away "
    "earlier; settings such as the ridge chosen with the rows at hand. Whoever holds the models from before and after "
    "can see what left: forgetting is not differential privacy."
)


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a receipt says of a renewed component: the figures of its `RenewedCertificate` that stay.

    Bounds from above are rounded up to a power of two, what others are held against down to one.

    relative_gradient: ‖∇F(Δw)‖ / ‖∇F(0)‖. distance_bound: a bound on ‖Δw − Δw*‖. converged: whether the solve met its
    tolerance. moved: ‖Δw_new − Δw_old‖; only in receipts from earlier releases, which round nothing. moved_at_least:
    the least by which the optimum moved. decisive: whether the bound is a tenth of that or less, before rounding.
    ridge: λ. ridge_before: λ before; only in receipts from earlier releases. other_ridge: whether the rows that stay
    chose another λ; ``decisive`` is then about ``row_moves``. row_moves: about how far a typical row's removal moves
    Δw.
    """

    relative_gradient: float
    distance_bound: float
    converged: bool | None = None
    moved: float | None = None
    moved_at_least: float | None = None
    decisive: bool | None = None
    ridge: float | None = None
    ridge_before: float | None = None
    other_ridge: bool = False
    row_moves: float | None = None

    @classmethod
    def of(cls, figures: RenewedCertificate) -> Proof:
        """Reduce a new component's figures to those that the receipt keeps.

        With all its digits, how far a removal moved the component would identify the row that left: anyone could guess
        a row, solve with and without it, and compare. The certificate would do the same for rows that are here now and
        leave later. Not kept at all: passes, which after a warm solve depend on where it began; F, ‖∇F‖ and rounding,
        which no bound here needs; the λ from before, and how far a change of λ moved the component, which proves
        nothing about the removal. λ is kept: it says what was minimised, and comes from a short grid. That the rows
        chose another λ is kept, too, because ``decisive`` cannot be read without it: it tells a few bits of the row.
        """
        other, least, moves = figures.other_ridge, figures.moved_at_least, figures.row_moves
        return cls(
            relative_gradient=_power_of_two(figures.relative_gradient, up=True),
            distance_bound=_power_of_two(figures.distance_bound, up=True),
            converged=figures.converged,
            moved_at_least=None if other or least is None else _power_of_two(least, up=False),
            decisive=figures.decisive,
            ridge=figures.ridge,
            other_ridge=other,
            row_moves=None if moves is None else _power_of_two(moves, up=False),
        )


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """One receipt of the ledger, without the hashes of its ids.

    seq: its number. file: its path in the store. digest: what the next entry names it by. event: what it records.
    listed: whether it has a hash of every id, not one of them all. signature: what it is worth, "unchecked" without the
    package cryptography. public_key: the key it was signed with. time: when it was committed, after all solves. mode:
    how models were renewed. samples: how many were forgotten. shards: rows that left, by shard. dropped_shards: shards
    that became empty. classes_removed: how many. renewed: what was made again. destroyed: what was not made again.
    certificates: by component, rounded. copies: rows with the same bytes under other ids, which stayed then.
    copies_taken: samples that were not named, but had the same bytes. root_before, content_before, content_after: keyed
    hashes of the store's digests. In receipts from earlier releases, the digests themselves. not_covered: what the
    receipt does not promise.
    """

    seq: int
    file: str
    digest: str
    event: str
    listed: bool
    signature: Literal["none", "valid", "wrong", "unchecked"]
    public_key: str | None = None
    time: str = ""
    mode: Mode | Literal[""] = ""
    samples: int = 0
    shards: dict[str, int] = {}
    dropped_shards: list[str] = []
    classes_removed: int = 0
    renewed: list[str] = []
    destroyed: list[str] = []
    certificates: dict[str, Proof] = {}
    copies: int = 0
    copies_taken: int = 0
    notes: list[str] = []
    root_before: str = ""
    content_before: str = ""
    content_after: str = ""
    not_covered: str = ""


def _power_of_two(figure: float, up: bool) -> float:
    """A figure ≥ 0, rounded ``up`` to a power of two, or else down to one; 0 stays 0."""
    if figure == 0:
        return 0.0
    fraction, exponent = frexp(figure)  # figure = fraction · 2^exponent, 1/2 ≤ fraction < 1
    return ldexp(1.0, exponent - (not up or fraction == 0.5))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a store knows of one id.

    state: "held" (a row of ``shard`` has it), "skipped" (the shard left it out), "staged" (a stopped extraction has
    it), "forgotten", or "unknown" (none of these). shard: None if none has it. receipts: numbers of those that name it.
    If it is held, it was taken in again since. perhaps: numbers of the entries one of which forgot it, if no receipt
    names it. These are receipts that keep only a digest of their ids, and tombstones taken over from an earlier store
    at this place. beside: whether only the file beside the store knows that it was forgotten. Its receipt is then not
    in this store. alike: an id that differs only in its Unicode form, or of which it is what a terminal shows, if
    there is one. Given for an unknown id if the store has the other one, for a forgotten one if a request named it.
    in_group: how many other samples of its group (``data.group``) the store has. None without groups, in a store that
    may not open its images here, and in one of vectors where nothing was forgotten.
    group_receipts: numbers of the receipts that forgot its whole group, so that no further sample of it is taken in;
    empty if none lists that. None if it was not forgotten, or where ``in_group`` is None.
    same_end: for an unknown id: the ids that end as it does, as a path does whose images have moved, and the state of
    each. outside: whether it is unknown and a path that does not lie in the folder of images that the store names.
    """

    sample: str
    state: State
    shard: str | None = None
    receipts: list[int] = field(default_factory=list)
    perhaps: list[int] = field(default_factory=list)
    beside: bool = False
    alike: str | None = None
    in_group: int | None = None
    group_receipts: list[int] | None = None
    same_end: dict[str, State] = field(default_factory=dict)
    outside: bool = False


@dataclass(frozen=True, kw_only=True)
class ReceiptsReport(Report):
    """The receipts of a store, oldest first, and its answers for ids.

    receipts: one for each request; if ids were asked about, those alone that are certainly about one of them.
    unreadable: numbers of entries from before their key was destroyed. These are receipts and adopted tombstones: for
    an id that is "unknown", nobody can tell whether one of them forgot it.
    samples: an answer for each id that was asked about, in the same order. perhaps: receipts that may be about one of
    them, since they keep only a digest of their ids. from_export: whether the rows came from the
    export of another store: what that had forgotten is not known here. imported_again: the receipts that forgot a
    component which was imported again since, by its present name; empty if ids were asked about.
    """

    store: Path
    root_digest: str
    receipts: list[Receipt]
    unreadable: list[int]
    samples: list[Answer]
    perhaps: list[Receipt]
    from_export: bool = False
    imported_again: dict[str, list[int]] = field(default_factory=dict)


class _Ids(msgspec.Struct, frozen=True):
    """What an entry says about the ids that its request forgot, the shards that it wrote anew or dropped, and the
    numbers that its components and models had."""

    seq: int
    event: str = ""
    ids: list[str] = []
    ids_digest: str = ""
    shards_before: list[str] = []
    numbers_before: list[str] = []


def receipt_of(
    store: FeatureStore,
    change: Transaction,
    plan: ForgetPlan,
    certificates: Mapping[str, RenewedCertificate],
    notes: Sequence[str],
    numbers: Collection[str],
) -> dict[str, Any]:
    """The ledger's entry for a request. Ids, and shards and classes that were named as such, are in it as keyed hashes;
    so are the digests of the ``numbers`` of what was made from what leaves, by which its files are known again.

    The rest tells little about what left: how many rows of which shards, which also have new file names; and how many
    rows with the same bytes stayed, which are still in the store for anyone to see.
    """
    manifest, request = store.manifest, plan.request
    hashes = change.tombstones([*request.samples, *request.asked])
    every = change.tombstones([*request.samples, *(name for name in request.asked if not name.startswith(GROUP))])
    # Keyed, too: a plain digest would confirm to anyone who guesses a row that it was there. So would that of the
    # content after, for rows that later requests forget.
    replaced, gone = change.tombstones(change.replaced()), change.tombstones(NUMBERS + own for own in numbers)
    states = {
        name: change.tombstones([own])[0]
        for name, own in (
            ("root_before", manifest.digest),
            ("content_before", manifest.content_digest),
            ("content_after", change.content_digest()),
        )
    }
    return {
        "event": FORGOTTEN,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mode": plan.mode,
        "samples": len(request.samples),
        "ids": hashes if len(hashes) <= MAX_IDS else [],
        "ids_digest": digest(canonical(every)),  # without groups: all ids of the request tell that it is theirs
        **change.commitment(),
        **states,
        "shards_before": replaced if len(replaced) <= MAX_IDS else [],
        BEFORE: gone if len(gone) <= MAX_IDS else [],
        "copies": len(request.copies),  # their ids would remain here
        "copies_taken": len(request.copies_taken),
        "shards": dict(request.leaving),
        "dropped_shards": list(request.emptied),
        "classes_removed": len(request.classes),
        "renewed": list(plan.renewed),
        "destroyed": list(plan.destroyed),
        "certificates": {name: msgspec.to_builtins(Proof.of(c)) for name, c in certificates.items()},
        "ridge": plan.recipe.objective.ridge,
        "convention": CONVENTION,
        "notes": list(notes),
        "not_covered": NOT_COVERED,
    }


@at_its_place()
def receipts(store: Place, samples: Sequence[str] = ()) -> ReceiptsReport:
    """Read the ledger's receipts, and ask about ``samples``; the store stays as it is.

    Raises:
        DataError: what is asked about cannot be an id. IntegrityError: the ledger, the tombstones or their key are
            damaged. FormatError: an entry of the ledger is of an unknown kind.
    """
    assert isinstance(store, FeatureStore)
    samples = list(dict.fromkeys(ids_of_files(store, several_texts("samples", samples))))
    check_ids(samples)
    entries = store.ledger()
    every = ledger.digests(entries, store.manifest.ledger)
    of_store = store_digest(store)
    read = [_read(entry, own, of_store) for entry, own in zip(entries, every, strict=True)]
    said = [ids for ids, _ in read]
    destroyed = max((s.seq for s in said if s.event == DESTROYED), default=0)
    later = [s for s in said if s.seq > destroyed]
    answers = _with_groups(store, _answers(store, samples, later), later) if samples else []
    named = {seq for answer in answers for seq in answer.receipts}
    perhaps = {seq for answer in answers for seq in answer.perhaps} - named
    again = dict[str, list[int]]()
    if not samples:
        with suppress(StoreError):  # a key that cannot be read: without ids, the receipts need none
            again = withdrawn(store).again
    return ReceiptsReport(
        store=store.path,
        root_digest=store.root_digest,
        receipts=[one for _, one in read if one is not None and (one.seq in named or not samples)],
        unreadable=[s.seq for s in said if s.event in (FORGOTTEN, ledger.ADOPT) and s.seq < destroyed],
        samples=answers,
        perhaps=[one for _, one in read if one is not None and one.seq in perhaps],
        from_export=is_from_export(store),
        imported_again=again,
    )


def replaced_shards(entry: Mapping[str, Any]) -> list[str]:
    """Keyed hashes of the digests that shards had before a request wrote them anew or dropped them."""
    with suppress(FormatError):  # ``check_receipts`` says it
        return _converted("", entry, _Ids).shards_before
    return []


def may_have_lost_rows(store: FeatureStore, digests: Sequence[str]) -> bool:
    """Whether a request may have taken rows from a shard that had one of ``digests``.

    It is False only if no request wrote one of these shards anew or dropped it, and the receipt of every request that
    took rows still says which shards those were.
    """
    gone = set(digests) - {ref.digest for ref in store.manifest.shards}
    if not gone:
        return not digests
    try:
        entries = store.ledger()
        key = ledger.read_key(store.root, store.manifest) if store.manifest.tombstone_key else b""
    except StoreError:  # `check_ledger` or `check_beside` reports it
        return True
    hashes = {ledger.tombstone(each, key) for each in gone} if key else set()
    destroyed = max((e["seq"] for e in entries if e.get("event") == DESTROYED), default=0)
    for entry in entries:
        if entry.get("event") == FORGOTTEN and entry.get("shards"):
            replaced = replaced_shards(entry)
            if entry["seq"] < destroyed or not replaced or hashes.intersection(replaced):
                return True
    return False


def check_receipts(store: FeatureStore, to: Findings) -> None:
    """Check that the entries of requests can be read; those that other programs write are not checked."""
    with suppress(IntegrityError):  # `check_ledger` reports it
        entries, of_store = store.ledger(), store_digest(store)
        for entry, own in zip(entries, ledger.digests(entries, store.manifest.ledger), strict=True):
            try:
                if entry.get("event") in (FORGOTTEN, DESTROYED):
                    _read(entry, own, of_store)
            except FormatError as error:
                to.found("ledger", ledger.entry_path(entry["seq"], own), error.fault)


def _read(entry: Mapping[str, Any], own: str, of_store: str) -> tuple[_Ids, Receipt | None]:
    """What an entry with the digest ``own`` says about ids, and its receipt, in a store with the ``store_digest``
    ``of_store``; FormatError if it has another shape."""
    file = ledger.entry_path(entry["seq"], own)
    ids = _converted(file, entry, _Ids)
    if not is_receipt(entry):
        return ids, None
    signature = "none"
    if "signature" in entry:
        try:
            valid = is_signed(signed_text(entry), str(entry["signature"]), str(entry.get("public_key")))
            valid = valid and entry.get(STORE, of_store) == of_store
        except RecipeError:
            signature = "unchecked"
        else:
            signature = "valid" if valid else "wrong"
    beside = {"file": file, "digest": own, "listed": bool(ids.ids), "signature": signature}
    return ids, _converted(file, {**entry, **beside}, Receipt)


def _converted(file: str, entry: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise FormatError(
            f"the ledger has an entry that no request to forget writes: {error}",
            got=f"{file}, whose bytes are whole",
            do="read the file: other programs, and later releases, may write entries of their own",
        ) from None


def _with_groups(store: FeatureStore, answers: list[Answer], said: Sequence[_Ids]) -> list[Answer]:
    """The answers with what the store has of each group and which of the entries ``said`` to forget all of it; as they
    are in a stranger's store."""
    if (recipe := grouping_recipe(store)) is None:
        return answers
    with suppress(RecipeError):  # the expression finds the empty text in what is asked about
        ids = [answer.sample for answer in answers]
        groups, of_forgotten = members_of_groups(store, ids), forgotten_group(recipe.data, store.is_forgotten)
        key = ledger.read_key(store.root, store.manifest) if store.manifest.tombstone_key else b""
        whole = {i: ledger.tombstone(GROUP + group, key) if key else "" for i in ids if (group := of_forgotten(i))}
        by = {i: [entry.seq for entry in said if own in entry.ids] for i, own in whole.items()}
        others = {i: sum(one != i for one in groups.get(recipe.data.group_of(i), ())) for i in ids}
        return [replace(a, in_group=others[a.sample], group_receipts=by.get(a.sample)) for a in answers]
    return answers


def _answers(store: FeatureStore, samples: Sequence[str], said: Sequence[_Ids]) -> list[Answer]:
    """``said``: the entries since a key was last destroyed, whose hashes are under the store's key."""
    known = store.manifest.tombstones
    hashes: dict[str, str] = {}
    forms: dict[str, str] = {}
    if store.manifest.tombstone_key:
        key = ledger.read_key(store.root, store.manifest)
        forms = {i: ledger.forgotten_form(i, key, known) or i for i in samples}
        hashes = {i: ledger.tombstone(form, key) for i, form in forms.items()}
    skipped = {s.id: s.shard for s in store.manifest.skipped}
    staged = {i: shard for shard, ids in store.staged_ids().items() for i in ids}
    beside = set(store.tombstone_file.match(samples, known))
    by_hash: dict[str, list[int]] = {}
    for entry in said:
        for one in entry.ids:
            by_hash.setdefault(one, []).append(entry.seq)
    gone = {
        i for i in samples if hashes.get(i) in known and not store.holds(i) and i not in skipped and i not in staged
    }
    unlisted = {s.seq: s.ids_digest for s in said if s.event == FORGOTTEN and not s.ids}
    # a receipt that lists no ids is recognised by their digest, if ``samples`` are all the ids of its request
    whole = digest(canonical(sorted({hashes[i] for i in gone if hashes[i] not in by_hash})))
    exact = [seq for seq, own in unlisted.items() if own == whole]
    perhaps = [s.seq for s in said if s.seq in unlisted or s.event == ledger.ADOPT]
    strange = [i for i in samples if not (store.holds(i) or i in skipped or i in staged or i in gone or i in beside)]
    held = [i for shard in store.every_shard for i in shard.sample_ids] if strange else []
    alike = {i: form for i, form in forms.items() if form != i}
    alike |= in_another_form(strange, [*skipped, *staged, *held])

    def state(sample: str) -> tuple[State, str | None]:
        if store.holds(sample):
            return "held", store.locate(sample)[0].name
        if sample in skipped:
            return "skipped", skipped[sample]
        if sample in staged:
            return "staged", staged[sample]
        return "forgotten" if store.is_forgotten(sample) else "unknown", None

    lost = [i for i in strange if i not in alike]
    ends = by_ending(lost, [*skipped, *staged, *held], store.is_forgotten)

    def answer(sample: str) -> Answer:
        named, (what, shard) = by_hash.get(hashes.get(sample, ""), []), state(sample)
        if sample in gone:
            may = [] if named or exact else perhaps
            form = alike.get(sample)
            return Answer(sample=sample, state=what, receipts=named or exact, perhaps=may, alike=form)
        if what == "forgotten":
            return Answer(sample=sample, state=what, beside=True)
        if what != "unknown":
            return Answer(sample=sample, state=what, shard=shard, receipts=named)
        return Answer(
            sample=sample,
            state=what,
            receipts=named,
            alike=alike.get(sample),
            same_end={i: state(i)[0] for i in ends.get(sample, [])},
            outside=os.path.isabs(sample) or os.path.lexists(sample),
        )

    return [answer(sample) for sample in samples]
