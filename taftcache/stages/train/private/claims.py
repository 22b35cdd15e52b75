"""Check whether a private model's promise follows from its noise and its members, in a store or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, StoreError
from taftcache.model.component_file import read_meta
from taftcache.model.description import DESCRIPTION, read_description
from taftcache.model.outdated import outdated
from taftcache.names import PRIVATE, typed
from taftcache.privacy.statement import Statement, audit_statement, composition_problems, is_joint
from taftcache.stages.train.record import settings_of

NOT_ALL = "it claims a promise that not all of its members make"


def claim_problems(store: FeatureStore, meta: Mapping[str, Any]) -> list[str]:
    """What is wrong with the privacy statement in a model's ``meta``, one sentence each; empty if it has none.

    A component's ε is derived again from its noise, a composition's promise from those of its members.
    """
    if PRIVATE not in meta:
        return []
    said = meta[PRIVATE]
    if not is_joint(said):
        return audit_statement(meta)
    objects, names = store.objects(), sorted(meta.get("coefficients", {}))
    members = [objects[name].meta for name in names if name in objects and PRIVATE in objects[name].meta]
    if not members or len(members) < len(names):
        return [NOT_ALL]
    found = [f"{name}: {problem}" for name, m in zip(names, members, strict=True) for problem in audit_statement(m)]
    try:
        return [*found, *composition_problems(said, [Statement.from_dict(member[PRIVATE]) for member in members])]
    except FormatError as error:
        return [*found, error.fault]


def check_claim(store: FeatureStore, name: str, meta: Mapping[str, Any]) -> None:
    """Refuse to let the model ``name`` leave the store with a promise that does not follow.

    Raises:
        StoreError: its members were trained anew since it was composed. FormatError: its promise is false.
    """
    if found := claim_problems(store, meta):
        if NOT_ALL not in found and name in outdated(store, settings_of(store).keys, name):
            raise StoreError(
                f"{name} promises what its members did when it was composed, but they were trained again since",
                got="; ".join(found),
                do=f"taftcache compose {typed(store.path)}",
            )
        raise _false(name, found, f"taftcache audit {typed(store.path)}")


def exported_meta(file: Path) -> dict[str, Any]:
    """What an exported component or the description of a saved model says of itself; empty if ``file`` is neither.

    ``audit_statement`` tells whether its promise follows.
    """
    try:
        return read_description(file.parent).component if file.name == DESCRIPTION else read_meta(file)
    except FormatError:
        return {}


def check_exported(folder: Path) -> None:
    """Refuse to pass on the saved model in ``folder`` if its promise does not follow: no digest protects its claim.

    Raises:
        FormatError: its promise is false.
    """
    if found := audit_statement(exported_meta(folder / DESCRIPTION)):
        raise _false(str(folder), found, "export it again from its store")


def _false(name: str, found: list[str], do: str) -> FormatError:
    return FormatError(f"{name} claims a privacy that does not follow from its noise", got="; ".join(found), do=do)
