"""What was spent of a store's budget, and what the keys of private components stand for.

A component's key, made of settings and digests of rows, tells whether the component is current. But digests depend on
the private rows without noise: whoever knows all rows but one, and two candidates for that one, could compute the
digest for each and know for certain. So a private component's key is a random number; what it stands for lies in an
object of its own, which is never exported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.errors import FormatError
from taftcache.names import COMPONENTS, PRIVATE
from taftcache.privacy.budget import Promise, fixed_promise, spending, spent_before
from taftcache.privacy.spec import Relation

KEYS = "state/private-keys"
_READ_BY_LEAST_SQUARES = ("mechanism", "epsilon", "delta", "multiplier", "relation")  # of [privacy]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What all private trainings of a shard may spend together.

    epsilon, delta: what they may spend together, and its δ. relation: what neighbouring data sets differ in. spent: the
    ε spent so far, by shard.
    """

    epsilon: float
    delta: float
    relation: Relation
    spent: dict[str, float]


class Charges(NamedTuple):
    """What was released at a store's place: its ledger's entries, lost ones included; the entries of the ledgers of
    stores that were here before; and the promise that all trainings are held to (None if there were none)."""

    ledger: list[dict[str, Any]]
    others: list[list[dict[str, Any]]]
    fixed: Promise | None


def charges_of(store: FeatureStore, relation: Relation) -> Charges:
    """The charges; ``relation`` is used if neither ledger nor components name one. Errors as for ``fixed_promise``."""
    ledger = store.ledger()
    lost, others = store.lost_charges(ledger)
    ledger += lost
    said = [ref.meta[PRIVATE]["relation"] for ref in store.objects().values() if PRIVATE in ref.meta]
    fixed = fixed_promise(store.manifest.plan, ledger, said[0] if said else relation, chain(*others))
    return Charges(ledger, others, fixed)


def budget_of(store: FeatureStore) -> Budget | None:
    """What private trainings of a store may spend and have spent; None if there were none.

    Raises:
        RecipeError: dp-accounting is not installed, or the ledger that says what was spent is missing. FormatError: the
            plan or the ledger has entries that taftcache does not write.
    """
    ledger, others, fixed = charges_of(store, "replace-one")
    if fixed is None:
        return None
    spent = spending(ledger, [shard.name for shard in store.shards], fixed.delta, spent_before(others))
    return Budget(epsilon=fixed.epsilon, delta=fixed.delta, relation=fixed.relation, spent=spent)


def read_keys(store: FeatureStore) -> dict[str, str]:
    """From random key to the rows and settings that it stands for; empty if there are none.

    Raises:
        FormatError: the object is not what ``put_keys`` writes.
    """
    if KEYS not in store.objects():
        return {}
    try:
        return msgspec.json.decode(store.read_object(KEYS), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{KEYS} is not what taftcache writes", got=error) from error


def is_current(keys: Mapping[str, str], meta: Mapping[str, Any], settings: str) -> bool:
    """Whether a component with ``meta`` was made from the rows and settings given, with noise that nobody can know."""
    private = bool(meta.get(PRIVATE, {}).get("private"))
    return private and deciding(settings) == deciding(keys.get(str(meta.get("key", "")), ""))


def deciding(settings: str) -> str:
    """The part of ``settings``, a text, that private training reads: a change of the rest spends nothing."""
    try:
        values = json.loads(settings)
        privacy, objective = dict(values["privacy"]), values["objective"]
        if privacy.get("mechanism") == "least-squares":
            privacy = {k: privacy[k] for k in _READ_BY_LEAST_SQUARES if k in privacy}
        elif privacy.get("mechanism") != "sampled-descent":
            privacy.pop("rate", None)
        read = {k: objective[k] for k in ("alpha", "kappa") if k in objective} if privacy.get("loss") == "rsl" else {}
        return json.dumps({**values, "privacy": privacy, "objective": read}, sort_keys=True)
    except (KeyError, TypeError, ValueError):
        return settings  # not a text of ``private_key``


def new_key() -> str:
    """A random key, which reveals nothing."""
    return os.urandom(16).hex()


def put_keys(change: Transaction, store: FeatureStore, new: Mapping[str, str], lost: Collection[str]) -> None:
    """Stage ``new`` keys beside those of the store's private components, except the ``lost``; drop all others."""
    stays = (ref.meta for name, ref in store.objects(COMPONENTS).items() if name not in lost)
    kept = {meta.get("key") for meta in stays if PRIVATE in meta}
    there = read_keys(store)
    keys = {key: settings for key, settings in there.items() if key in kept} | dict(new)
    if keys:
        change.put(KEYS, msgspec.json.encode(dict(sorted(keys.items()))), suffix=".json")
    elif KEYS in store.objects():
        change.drop(KEYS)
