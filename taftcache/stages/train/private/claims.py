"""Whether what a private model says of itself follows from the noise and the members that the store knows of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, RecipeError, StoreError
from taftcache.names import PRIVATE, typed
from taftcache.privacy.statement import Statement, audit_statement, parallel
from taftcache.stages.train.outdated import outdated
from taftcache.stages.train.record import settings_of

NOT_ALL = "it claims a promise that not all of its members make"


def claim_problems(store: FeatureStore, meta: Mapping[str, Any]) -> list[str]:
    """What is wrong with the privacy statement in a model's ``meta``, a sentence each; nothing where it makes none.

    A component's ε is derived again from its noise, a composition's promise from those of its members.
    """
    if PRIVATE not in meta:
        return []
    said = meta[PRIVATE]
    if not isinstance(said, Mapping) or "composition" not in said:
        return audit_statement(meta)
    objects, names = store.objects(), sorted(meta.get("coefficients", {}))
    members = [objects[name].meta for name in names if name in objects and PRIVATE in objects[name].meta]
    if not members or len(members) < len(names):
        return [NOT_ALL]
    found = [f"{name}: {problem}" for name, m in zip(names, members, strict=True) for problem in audit_statement(m)]
    try:
        follows = parallel([Statement.from_dict(member[PRIVATE]) for member in members])
    except (FormatError, RecipeError) as error:
        return [*found, error.fault]
    if wrong := [key for key in follows if key != "not_covered" and said.get(key) != follows[key]]:
        claims, gives = (", ".join(f"{key} {of.get(key)}" for key in wrong) for of in (said, follows))
        found.append(f"it claims {claims}; its members give {gives}")
    return found


def check_claim(store: FeatureStore, name: str, meta: Mapping[str, Any]) -> None:
    """Refuse to let the model ``name`` leave the store with a promise that does not follow.

    Raises:
        StoreError: its members were trained anew since it was composed. FormatError: its promise is false.
    """
    if found := claim_problems(store, meta):
        if NOT_ALL not in found and name in outdated(store, settings_of(store), name):
            raise StoreError(
                f"{name} promises what its members did when it was composed, and they were trained anew since",
                got="; ".join(found),
                do=f"taftcache compose {typed(store.path)}",
            )
        raise FormatError(
            f"{name} claims a privacy that does not follow from its noise",
            got="; ".join(found),
            do=f"taftcache audit {typed(store.path)}",
        )
