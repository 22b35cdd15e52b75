"""Ed25519 signatures of the ledger's entries: keys in PEM files, public keys and signatures as hex."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.place.failure import advice, cause
from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError, RecipeError, local_path

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_KEY_BYTES = 1 << 16
STORE = "store"
"""The field in which a signed entry says of which store it is; entries that earlier builds signed have none."""
_MAKE = "openssl genpkey -algorithm ed25519 -out"
_ANOTHER = f"name an Ed25519 key, or make one in a new file: {_MAKE} NEW.pem"  # new: no key is overwritten


class Signer:
    """An Ed25519 private key.

    Args:
        file: an unencrypted PKCS #8 PEM file, as ``openssl genpkey -algorithm ed25519`` writes it.

    Raises:
        RecipeError: no such file, another kind of key, or the package cryptography is not installed.
    """

    def __init__(self, file: Path | str) -> None:
        self._key = _private_key(local_path(file))

    @property
    def public_key(self) -> str:
        """The public key, 64 hex digits."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """The signature of ``message``, 128 hex digits."""
        return self._key.sign(message).hex()


def signed(store: FeatureStore, entry: Mapping[str, Any], signer: Signer | None) -> dict[str, Any]:
    """``entry`` with a signature over it, its store and its place in the chain: number, and digest of the entry before.

    Without a ``signer`` it stays as it is. The store must be open, and the entry be the next that is recorded.
    """
    if signer is None:
        return dict(entry)
    ledger = store.manifest.ledger
    said = {**entry, "public_key": signer.public_key, STORE: store_digest(store)}
    placed = {
        **said,
        "seq": ledger.entries + 1 if ledger else 1,
        "previous": ledger.head if ledger else "",
    }
    return {**said, "signature": signer.sign(canonical(placed))}


def store_digest(store: FeatureStore) -> str:
    """What names the store in a signature: the digest of its identity, which says how its rows were made.

    Commands leave this one field of a store as it is, and copies have it too. ``convert`` takes the ledger along and
    changes two of its keys, which are left out. It is made from no row; stores with the same features of other images
    have the same.
    """
    return digest(canonical({key: value for key, value in store.identity.items() if key not in ("dtype", "converted")}))


def signed_text(entry: Mapping[str, Any]) -> bytes:
    """What the signature of a ledger's entry was made over."""
    return canonical({k: v for k, v in entry.items() if k != "signature"})


def signer_of(file: Path | str | None) -> Signer | None:
    """The key in ``file``, if one is named; the errors are those of ``Signer``."""
    return None if file is None else Signer(file)


def checked_public_key(text: str) -> str:
    """A public key in the form that the ledger's entries have it: 64 hex digits in lower case.

    Raises:
        ArgumentError: it is not a public key.
    """
    key = str(text).strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", key):
        raise ArgumentError(
            "the public key does not have 64 hex digits",
            got=repr(key[:80]),
            do="openssl pkey -in KEY -pubout -outform DER | tail -c 32 | xxd -p -c 32",
        )
    return key


def is_signed(message: bytes, signature: str, public_key: str) -> bool:
    """Whether ``signature`` is a valid one of ``message`` under ``public_key``; False if either is malformed.

    Raises:
        RecipeError: the package cryptography is not installed.
    """
    _needs_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private_key(file: Path) -> Ed25519PrivateKey:
    _needs_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with file.open("rb") as opened:
            key = load_pem_private_key(opened.read(MAX_KEY_BYTES), None)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise RecipeError(
            f"cannot read the signing key {file}: {'no such file' if missing else cause(error)}",
            got=str(file),
            do=f"{_MAKE} {file}" if missing else advice(error),
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RecipeError(
            f"{file} is not an Ed25519 private key in an unencrypted PEM file",
            got=str(error),
            do=_ANOTHER,
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RecipeError(
            f"{file} holds another kind of key than Ed25519",
            got=type(key).__name__,
            do=_ANOTHER,
        )
    return key


def _needs_cryptography() -> None:
    if find_spec("cryptography") is None:
        raise RecipeError(
            "cannot sign or check a receipt without the package cryptography",
            got="it is not installed",
            do="pip install 'taftcache[sign]'",
        )
