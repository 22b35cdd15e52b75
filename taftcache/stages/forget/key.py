"""Destroy the key of a store's tombstones, here and in files that are left around the store."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.kept_keys import KeptKey, TombstoneKeys
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.names import typed
from taftcache.stages.forget.chain import DESTROYED
from taftcache.stages.forget.forgetting import ForgetReport
from taftcache.stages.signature import signed, signer_of


@at_its_place("a")
def destroy_key(store: Place, *, signing_key: Path | str | None = None) -> ForgetReport:
    """Destroy the tombstones and their key: nobody can ask any more whether an id was forgotten.

    Nobody can then guess the ids behind the hashes that receipts keep. The key also goes from files of tombstones in
    the same folder that were left of a store that is not there any more, as after a move. Notes name other stores and
    files there that have it, too; copies and backups elsewhere keep theirs. The price: a forgotten sample is taken in
    again if it is extracted again, and an old copy of the store is no longer noticed.
    """
    assert isinstance(store, FeatureStore)
    before, keys = store.root_digest, TombstoneKeys(store)
    signer = signer_of(signing_key)
    notes = ["there was no key to destroy: nothing was forgotten here, or its key is destroyed already"]
    own = store.manifest.tombstone_key  # an old copy may lack a key that the file beside has
    if own := own or (digest(store.tombstone_file.key) if store.tombstone_file.key else ""):
        with store.transaction() as change:
            entry = {
                "event": DESTROYED,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "tombstones": len(store.manifest.tombstones),
                ledger.DESTROYED_KEY: own,
            }
            change.destroy_key()
            entry |= change.commitment()
            change.record(signed(store, entry, signer))
        notes = []
    return ForgetReport(
        store=store.path,
        root_before=before,
        root_digest=store.root_digest,
        mode="destroy-key",
        notes=[*notes, *_destroyed_beside(keys)],
    )


def _destroyed_beside(keys: TombstoneKeys) -> list[str]:
    """Destroy the ``keys`` in files that are left in the folder around the store; notes on these, and on all else there
    that has a key or may have it. After the commit: if this is killed before, the same command again does it."""
    notes = []
    try:
        for at in keys.beside():
            notes.append(_destroyed_at(at))
    except StoreError as error:
        notes.append(f"{error.fault}, {error.got}: whether a file there has the key, too, is not known")
    return notes


def _destroyed_at(at: KeptKey) -> str:
    if at.state == "unread":
        return f"{at.path} cannot be read here, and may have the key, too"
    has = f"{at.path} still has the key, with which anyone can ask about the ids behind the receipts' hashes"
    if at.is_store:
        return f"{has}; taftcache forget {typed(at.path)} --destroy-key, or delete it if it is an old copy"
    if at.is_left:
        try:
            at.destroy()
        except StoreError as error:
            return f"{has}, and could not be changed: {error.fault}"
        left = "left of a store that is not there any more"
        return f"{at.path} had the key, too, {left}: the key is destroyed there as well"
    return f"{has}, and may be that of another store; delete it if none needs it"
