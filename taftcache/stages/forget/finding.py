"""What an audit collects."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from taftcache.names import MEAN, WEIGHTED, typed

UNFINISHED: Final = "unfinished work"
FindingKind = Literal[
    "base point", "by-product", "certificate", "class", "damage", "description", "forgotten component", "forgotten id",
    "forgotten row",
    "head", "kept component", "ledger", "leftover file", "privacy statement", "returned rows", "signature",
    "staged row", "stale component", "stale composition", "stale dual", "stale object", "statistics", "teacher",
    "tombstones", "undecided", "unfinished work",
]  # fmt: skip

# train and compose keep an object whose key is right, even if its numbers are wrong: it must be dropped first.
_OUT = (
    'in Python, with taftcache.FeatureStore(…, mode="a") as store, store.transaction() as change: '
    "change.drop({where!r}); then "
)
_DROP = _OUT + "taftcache train {store}{options}"
_DROP_SUM = _OUT + "taftcache compose {store}"
_COPY = "put back a copy of the store that passes; nothing here can make it again"
ADVICE: dict[FindingKind, str] = {
    "base point": "taftcache train {store}{options}",  # which drops every model around another one
    "by-product": "delete it, and export again from the store as it is now what is still needed of it",
    "certificate": _DROP,
    "class": "taftcache forget {store} --class NAME, again; or " + _COPY,
    "damage": "taftcache verify {store} --repair, which makes again what it can",
    "description": _DROP,
    "forgotten id": "write anew without the id what holds it, or " + _COPY,
    "forgotten row": "taftcache forget {store} --sample ID, again; or " + _COPY,
    "head": "if an old copy was put back and replayed, name a file that is not there yet; else find out who wrote to "
    "the ledger since, and " + _COPY,
    "kept component": _DROP,
    "ledger": _COPY,
    "privacy statement": _COPY,
    "returned rows": "taftcache audit {store} --replay, which forgets them again",
    "signature": _COPY,
    "staged row": "taftcache gc {store}",
    "stale composition": _DROP_SUM,
    "stale dual": _DROP,
    "stale object": _DROP,
    "statistics": _COPY,
    "teacher": "put the teacher's store back at its place, or take it out of [prior] and train again",
    "tombstones": _COPY,
    "undecided": "delete what may be older than the last request, and export it again from the store as it is now; "
    "unpack what is packed, or keep elsewhere what is known to be harmless; without --strict it is a note",
}
"""What to do about a finding of each kind, unless the check that made it gives better advice."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One promise that does not hold.

    kind: which one, in a word or two; "unfinished work" is what a stopped command left, and no part of the store.
    where: file or object. problem: what is wrong. do: what to try.
    """

    kind: FindingKind
    where: str
    problem: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the checks found of ``store``, in their order; ``notes`` are no failures.

    private: whether the store has privately trained components, which plain training refuses to replace.
    """

    store: Path
    private: bool = False
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def found(self, kind: FindingKind, where: str, problem: str, do: str | None = None) -> None:
        """Add a finding; without ``do``, its advice is what ``ADVICE`` has for its kind."""
        if do is None:  # composing again also renews what a composition promises
            told = ADVICE["stale composition" if kind == "privacy statement" and where in (MEAN, WEIGHTED) else kind]
            do = told.format(store=typed(self.store), where=where, options=" --private" if self.private else "")
        self.findings.append(Finding(kind=kind, where=where, problem=problem, do=do))
