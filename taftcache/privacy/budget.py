"""What a store's private trainings have spent of the budget that the first one fixed: ε for each shard's rows, from the
ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10
from typing import Any

import msgspec

from taftcache.errors import FormatError, RecipeError
from taftcache.names import LARGE_EPSILON, epsilon_text
from taftcache.privacy.accountant import Release, epsilon
from taftcache.privacy.spec import Delta, PrivacySpec, Relation
from taftcache.privacy.statement import AGREES

EVENT = "private training"  # of a ledger entry
PLAN = "private"  # key in a store's plan, which goes wherever its rows go
LARGE_DELTA = 0.1  # δ times the rows, above which a note is made


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all private trainings of a store are held to, shard by shard: the first of them fixes it.

    If δ or the notion of neighbours differed between trainings, no (ε, δ) would bound what a shard has spent in all.
    """

    epsilon: float
    delta: Delta
    relation: Relation

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(msgspec.to_builtins(self))


class _Charged(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger entry of a private training charges, including the ``uncharged`` trials of earlier versions."""

    shards: list[str]
    releases: list[Release]
    uncharged: list[Release] = []
    delta: Delta
    budget: float
    relation: Relation | None = None


def _charged(entries: Iterable[Mapping[str, Any]]) -> list[_Charged]:
    """The private trainings among ``entries``; FormatError for one that is not as taftcache writes it."""
    try:
        return [msgspec.convert(dict(entry), _Charged) for entry in entries if entry.get("event") == EVENT]
    except msgspec.ValidationError as error:
        raise FormatError(
            "an entry of a private training does not say what was released", got=error, do="taftcache audit STORE"
        ) from error


def spent(ledger: Iterable[Mapping[str, Any]], shard: str) -> list[Release]:
    """All charged releases about a shard's rows so far, from the ledger.

    Raises:
        FormatError: an entry is not what taftcache writes.
    """
    return [release for e in _charged(ledger) if shard in e.shards for release in (*e.releases, *e.uncharged)]


def spent_before(others: Iterable[Sequence[Mapping[str, Any]]]) -> list[Release]:
    """The most that any one row may have been charged in ``others``, the ledgers of stores once at this place.

    It is no longer known which of their shards a row was in. In each store it was in one, so for every kind of release
    the most of any shard is charged.
    """
    every = Counter[tuple[float, float]]()
    for entries in others:
        most = Counter[tuple[float, float]]()
        for shard in {name for entry in _charged(entries) for name in entry.shards}:
            own = Counter[tuple[float, float]]()
            for release in spent(entries, shard):
                own[release.multiplier, release.rate] += release.steps
            most |= own
        every += most
    return [Release(z, steps, rate) for (z, rate), steps in sorted(every.items())]


def fixed_promise(
    plan: Mapping[str, Any],
    ledger: Sequence[Mapping[str, Any]],
    relation: Relation,
    before: Iterable[Mapping[str, Any]] = (),
) -> Promise | None:
    """What the private trainings of a store are held to; None if there was none yet.

    Stores of earlier releases of taftcache did not fix it. Theirs is the δ of their first private training, the largest
    budget set for that δ, and ``relation``, because their ledgers do not name one. The same holds for a store that is
    made anew where there was one before: ``before`` are the entries that the old one left.

    Raises:
        RecipeError: the ledger with what was spent is missing. FormatError: the plan is not what taftcache writes.
    """
    entries = _charged(ledger)
    if PLAN in plan:
        if not entries:
            raise RecipeError(
                "the rows were released privately before, and the ledger that says how much was spent is not here",
                got="a store that was imported from an export, which carries no ledger",
                do="train privately in the store that was exported, or in a copy of it (taftcache copy)",
            )
        try:
            return msgspec.convert(plan[PLAN], Promise)
        except msgspec.ValidationError as error:
            raise FormatError("the promise in the store's plan is not one that taftcache writes", got=error) from error
    entries = [*_charged(before), *entries]
    if not entries:
        return None
    first = entries[0]
    budget = max(entry.budget for entry in entries if entry.delta == first.delta)
    return Promise(budget, first.delta, first.relation or relation)


def held_to(fixed: Promise | None, spec: PrivacySpec) -> Promise:
    """The promise that a training with ``spec`` is charged to: ``fixed``, or if there is none, what ``spec`` asks for.

    Raises:
        RecipeError: ``spec`` asks for another δ, relation or budget than was fixed.
    """
    if fixed is None:
        return Promise(spec.budget or spec.epsilon, spec.delta, spec.relation)
    asked = {"delta": spec.delta, "relation": spec.relation, "budget": spec.budget or fixed.epsilon}
    there = {"delta": fixed.delta, "relation": fixed.relation, "budget": fixed.epsilon}
    for name, value in asked.items():
        if value != there[name]:
            raise RecipeError(
                f"privacy.{name} is {value}, but the store's first private training fixed {there[name]}",
                got=f"epsilon {fixed.epsilon:g} at delta {fixed.delta:g} for {fixed.relation}, for all trainings of a "
                "shard together",
                do="leave privacy.budget out" if name == "budget" else f"set privacy.{name} to {there[name]}",
            )
    return fixed


def spending(
    ledger: Sequence[Mapping[str, Any]],
    shards: Iterable[str],
    delta: float,
    earlier: Sequence[Release] = (),
    further: Sequence[Release] = (),
) -> dict[str, float]:
    """ε of each shard at ``delta``, for ``earlier`` releases, those in the ledger and ``further`` ones together."""
    known: dict[tuple[Release, ...], float] = {}  # most shards have one history
    totals: dict[str, float] = {}
    for shard in shards:
        every = (*earlier, *spent(ledger, shard), *further)
        if every not in known:
            known[every] = epsilon(every, delta)
        totals[shard] = known[every]
    return totals


def charge(
    ledger: Sequence[Mapping[str, Any]],
    shards: Sequence[str],
    releases: Sequence[Release],
    promise: Promise,
    earlier: Sequence[Release] = (),
) -> dict[str, float]:
    """ε of each shard once ``releases`` are added to those in the ledger and to ``earlier`` ones that it does not have.

    Raises:
        RecipeError: a shard's ε would be above the budget of the ``promise``.
    """
    delta, budget = promise.delta, promise.epsilon
    begun = bool(earlier or _charged(ledger))
    totals = spending(ledger, shards, delta, earlier, releases)
    for shard, total in totals.items():
        if total > budget * (1 + AGREES):
            before = spending(ledger, [shard], delta, earlier)[shard]
            raise RecipeError(
                f"shard {shard} would spend epsilon {epsilon_text(total)}, more than is left of its budget of"
                f" {budget:g}",
                got=f"epsilon {epsilon_text(before)} at delta {delta:g} is spent already"
                + (", some of it by a store that was here before" if earlier else ""),
                do="keep what is there, or ask for a smaller epsilon; the first private training fixed the budget"
                + (". Other data belongs into another folder" if earlier else "")
                if begun
                else "ask for a smaller epsilon or a larger multiplier, or set privacy.budget now: the first "
                "private training fixes it",
            )
    return totals


def check_delta(delta: float, rows: int) -> None:
    """Raise RecipeError if δ promises nothing for so many rows, before a first private training fixes it.

    Publishing each row whole with probability δ is (0, δ)-private, and out of N rows publishes δN. The message does not
    give the number of rows; it reveals at most its magnitude, to someone who has the store.
    """
    if delta * rows >= 1:
        raise RecipeError(
            "privacy.delta promises nothing here: it is not below one in the rows of the store, so that to publish one "
            "of them whole would keep the promise",
            got=f"privacy.delta = {delta:g}",
            do=f"set privacy.delta to {10.0 ** floor(log10(LARGE_DELTA / rows)):g} or less: the first private training "
            "fixes it",
        )


def weak_promise(epsilon: float, delta: float, rows: int) -> list[str]:
    """Notes if a promise says little for so many rows; none gives their number, which must not become known."""
    notes = []
    if delta * rows >= 1:  # in a store of an earlier release, or one that has grown since
        notes.append(
            f"delta {delta:g} is not below one in the rows: to publish one of them whole would keep such a promise. It "
            "is fixed for this store; another folder can have a smaller privacy.delta"
        )
    elif delta * rows > LARGE_DELTA:
        notes.append(
            f"delta {delta:g} is more than a tenth of one in the rows: to publish one of them whole, one time in ten, "
            "would keep such a promise. The first private training fixes it; another folder can have a smaller "
            "privacy.delta"
        )
    if epsilon > LARGE_EPSILON:
        notes.append(
            f"epsilon {epsilon_text(epsilon)} is above {LARGE_EPSILON}, which bounds next to nothing: an outcome may "
            f"be e^{epsilon_text(epsilon)} times as likely with a row as without it"
        )
    return notes
