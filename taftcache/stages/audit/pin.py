"""Pin the ledger's newest entry in a file outside the store: shows without a key if the ledger is cut or rewritten."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.place.failure import cannot
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, StoreError, StoreWriteError
from taftcache.names import counted
from taftcache.report.write import write_json
from taftcache.stages.forget.finding import Findings

_LARGEST = 4096  # bytes of a file that is read: a pin has some hundred


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ledger's length and end.

    entries: how many. head: digest of the last one, "" if there is none. store: a digest of the store's identity.
    """

    entries: Annotated[int, msgspec.Meta(ge=0)]
    head: str
    store: str

    @classmethod
    def of(cls, store: FeatureStore) -> Pin:
        """The pin of a store as it is now."""
        end = store.manifest.ledger
        return cls(
            entries=end.entries if end else 0,
            head=end.head if end else "",
            store=digest(canonical(store.identity)),
        )


def read_pin(file: Path) -> Pin | None:
    """The pin in ``file``; None where there is no file.

    Raises:
        FormatError: it cannot be read, or is something else.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):  # to read a pipe would wait for a writer
        raise FormatError(f"{file} is not a plain file", do="name a file, or one that is not there yet")
    try:
        with file.open("rb") as stream:
            return msgspec.json.decode(stream.read(_LARGEST), type=Pin)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot("read", file, error, FormatError) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{file} is not a ledger's newest entry as an audit writes it",
            got=error,
            do="restore it from a copy, or name a file that is not there yet",
        ) from error


def is_pin(text: str) -> bool:
    """Whether a text is a ledger's newest entry as an audit writes it: a count and digests, made from no row."""
    try:
        msgspec.json.decode(text, type=Pin)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


def check_pin(store: FeatureStore, file: Path, to: Findings) -> None:
    """Check that the store's ledger continues from the entry that ``file`` names; FormatError as in `read_pin`."""
    pin, now = read_pin(file), Pin.of(store)
    if pin is None:
        return
    if pin.store != now.store:
        to.found("head", str(file), "it was written for another store")
    elif pin.entries > now.entries:
        to.found("head", str(file), f"the ledger had {counted(pin.entries, 'entry')}, and has {now.entries}")
    elif _head_after(store, pin.entries) not in (pin.head, None):
        to.found("head", str(file), f"entry {pin.entries} of the ledger is another than it was")


def note_unpinned(store: FeatureStore, to: Findings) -> None:
    """Note which entry is the newest: signatures do not show that there were others after it."""
    with suppress(StoreError):  # `check_ledger` reports it
        for entry in store.ledger()[-1:]:
            to.notes.append(
                f"the newest entry is ledger/{entry['seq']:06d} of {entry.get('time', 'an unknown date')}: a signature "
                "does not show whether later ones were cut off; --ledger-head FILE would"
            )


def move_pin(store: FeatureStore, file: Path) -> list[str]:
    """Write the newest entry to ``file``, atomically, unless it is there already. Returns the lines of the error if it
    cannot be written, which must not cost the audit's report; else none."""
    try:
        if read_pin(file) != (now := Pin.of(store)):
            write_json(file, now)
    except StoreWriteError as error:
        error.fault = f"the newest entry is not saved: {error.fault}"
        return error.lines()
    return []


def _head_after(store: FeatureStore, entries: int) -> str | None:
    """The digest of the last of the ledger's first ``entries`` entries, "" if none; None if the chain is broken."""
    if entries == 0:
        return ""
    try:
        chain = store.ledger()
    except StoreError:
        return None
    end = store.manifest.ledger
    assert end is not None
    return str(chain[entries]["previous"]) if entries < len(chain) else end.head
