"""What an audit knows of its store, as it is and as it was, and its verdicts on what was made from it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save

from taftcache.backbone.sources.folder import SUFFIXES
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.kept_keys import TombstoneKeys, is_of_store
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, StoreError
from taftcache.model.component import Component
from taftcache.model.component_file import numbers_digest
from taftcache.model.description import read_description
from taftcache.model.members import MADE_AGAIN, ForgottenNumbers, forgotten_numbers, withdrawn
from taftcache.model.saved import WEIGHTS, under
from taftcache.names import by_receipts, is_model
from taftcache.stages.audit.traces import asking, own_words
from taftcache.stages.forget.chain import DELETE, FORGOTTEN, KEPT
from taftcache.stages.forget.receipts import replaced_shards
from taftcache.stages.texts import listed

# In JSON, also within another text: the root digest that something was made from, and lists of shards' digests.
ROOT = re.compile(r'"(?:root_digest|store)\\*": ?\\*"([0-9a-f]{64})')
SHARDS = re.compile(r'\[\s*((?:\\*"[0-9a-f]{64}\\*",?\s*)+)\]')
DIGEST = re.compile(r"[0-9a-f]{64}")
OWN_SUFFIXES = 16  # of ids, which are tried with the name of every file


@dataclass(frozen=True)
class Verdict:
    """What is to be said of a file or of another store.

    kind: "found" if it holds, or was made from, what was forgotten: ``text`` says how; the others but "fine" are notes.
    of_student: it is of a student, whose files are one finding. do: what to do; None for what is usual. at: how many
    ids, and where.
    """

    kind: Literal["fine", "unsure", "unread", "linked", "common", "left", "kept", "found"]
    text: str = ""
    of_student: bool = False
    do: str | None = None
    at: str = field(default="", compare=False)


FINE, UNSURE, KEPT_BY_STORE = Verdict("fine"), Verdict("unsure"), Verdict("kept")
KEY_LEFT = Verdict("found", f"it has {KEPT}", do=DELETE)
WITHDRAWN = "delete it; if its owner lets you keep it, leave it out: --except PATTERN"


@dataclass(frozen=True, kw_only=True)
class Known:
    """Digests of the store and its shards as they are now, and keyed hashes of those from before each request.

    before, replaced: keyed hash → place of the request's receipt, for the store and for the shards that a request wrote
    anew or dropped; from receipts of earlier releases, ``before`` has plain digests. key: what the hashes are keyed
    with. held: the ids of its rows.
    """

    store: FeatureStore
    keys: TombstoneKeys
    now: frozenset[str]
    shards: frozenset[str]
    before: dict[str, str]
    replaced: dict[str, str]
    key: bytes
    is_own_word: Callable[[str], bool]
    is_forgotten: Callable[[str], bool]
    held: frozenset[str]

    @classmethod
    def of(cls, store: FeatureStore, keys: TombstoneKeys) -> Known:
        requests, key = dict[str, dict[str, Any]](), b""
        with suppress(StoreError):  # `check_ledger` or `check_beside` reports it
            requests = {f"ledger/{e['seq']:06d}": e for e in store.ledger() if e.get("event") == FORGOTTEN}
            key = ledger.read_key(store.root, store.manifest) if store.manifest.tombstone_key else b""
        held = set[str]()
        for ref in store.manifest.shards:
            with suppress(StoreError):  # verify has said it
                held.update(store.shard(ref.name).sample_ids)
        return cls(
            store=store,
            keys=keys,
            now=frozenset({store.root_digest, store.manifest.content_digest}),
            shards=frozenset(ref.digest for ref in store.manifest.shards),
            before={str(entry.get("root_before")): place for place, entry in requests.items()},
            replaced={each: place for place, entry in requests.items() for each in replaced_shards(entry)},
            key=key,
            is_own_word=own_words(store),
            is_forgotten=asking(store),
            held=frozenset(held),
        )

    def judged(self, text: str) -> Verdict | None:
        """The verdict on something that ``text`` describes; None if it does not name what it was made from."""
        if not self.before:
            return FINE
        roots, lists = set(ROOT.findall(text)), [set(DIGEST.findall(match[1])) for match in SHARDS.finditer(text)]
        if place := self._state_before(roots):
            return Verdict("found", f"made from the store as it was before {place}")
        if place := self._shards_before(lists):
            return Verdict("found", f"made from shards as they were before {place}")
        if any(named & self.shards and named - self.shards for named in lists):  # receipts of earlier releases
            return Verdict("found", "made from shards as they were before rows left them")
        if lists and all(named <= self.shards for named in lists):
            return FINE
        if lists or roots - self.now:
            return UNSURE
        return FINE if roots else None

    def _state_before(self, roots: set[str]) -> str | None:
        """The first receipt of which one of these root digests was the state before; None if there is none."""
        old = roots - self.now
        return min((self.before[own] for own in (old | self._keyed(old)) & self.before.keys()), default=None)

    def _shards_before(self, lists: list[set[str]]) -> str | None:
        """The first receipt whose request wrote anew or dropped one of these shards; None if there is none."""
        gone = self._keyed(chain.from_iterable(lists)) & self.replaced.keys()
        return min((self.replaced[own] for own in gone), default=None)

    def _keyed(self, digests: Iterable[str]) -> set[str]:
        return {ledger.tombstone(own, self.key) for own in digests} if self.key else set()

    def of_tombstones(self, file: Path, held: Mapping[bytes, Collection[str]]) -> Verdict:
        """The verdict on a file of tombstones with these keys, and the tombstones under each."""
        if self.keys.file is not None and os.path.realpath(file) == str(self.keys.file):
            return FINE
        states = {self.keys.state(digest(key), under) for key, under in held.items()}
        if "destroyed" in states:
            return KEPT_BY_STORE if is_of_store(file) else KEY_LEFT
        return Verdict("left") if "present" in states and not is_of_store(file) else FINE

    def of_component(self, data: bytes) -> Verdict:
        """The verdict on a file or object that may be a component."""
        own = _numbers(data)
        return FINE if own is None else self._of_numbers(own)

    def of_model(self, folder: Path, by_state: Verdict) -> Verdict:
        """The verdict on an exported model, of which the one ``by_state`` goes by what it names: it may be a component
        that was forgotten; and if it names the store as it is now, it must be the one of that name there."""
        named, weights = read_description(folder).model, folder / WEIGHTS
        if not weights.is_file():
            return UNSURE
        own = numbers_digest(save(under("delta", load_file(weights))))
        if (forgotten := self._of_numbers(own)).kind == "found":
            return forgotten
        there = is_model(named) and named in self.store.objects()
        if by_state != FINE or (there and _numbers(self.store.read_object(named)) == own):
            return by_state
        return Verdict("found", "a model that names the store as it is now, but is not the model of its name there")

    def _of_numbers(self, own: str) -> Verdict:
        """The verdict on numbers with the digest ``own``: what is no model of the store may be one that it forgot, or
        that was made from what it forgot."""
        if own in self._there:
            return FINE
        if (gone := self._forgotten(own)) is None:
            return UNSURE
        if gone.itself:
            text = f"it has the numbers of a component that was forgotten here {by_receipts(gone.receipts)}"
            return Verdict("found", text, do=WITHDRAWN)
        return Verdict("found", f"it has the numbers of {MADE_AGAIN} {by_receipts(gone.receipts)}")

    @cached_property
    def _forgotten(self) -> Callable[[str], ForgottenNumbers | None]:
        return forgotten_numbers(self.store)

    @cached_property
    def suffixes(self) -> frozenset[str]:
        """Those of images, and the commonest of the store's own ids: of ids like ``v1.0042``, each has another."""
        own = Counter(os.path.splitext(i)[1] for i in self.held)
        return SUFFIXES | {end for end, _ in own.most_common(OWN_SUFFIXES)} - {""}

    def listed(self, text: str) -> set[str]:
        """Forgotten ids in those columns and lists of a text that have ids of the store and nothing else."""
        lists = (each for each in listed(text) if all(i in self.held or self.is_forgotten(i) for i in each))
        return {i for each in lists for i in each if self.is_forgotten(i) and not self.is_own_word(i)}

    @cached_property
    def _there(self) -> frozenset[str | None]:
        gone = withdrawn(self.store)
        found = set[str | None]()
        for name in filter(is_model, self.store.objects().keys() - gone.stayed.keys() - gone.own.keys()):
            with suppress(StoreError):  # verify has said it
                found.add(_numbers(self.store.read_object(name)))
        return frozenset(found)


def _numbers(data: bytes) -> str | None:
    """The digest of a component's numbers as a store keeps them; None if the bytes are no component."""
    try:
        component = Component.decode(data)
    except FormatError:
        return None
    return component.numbers
