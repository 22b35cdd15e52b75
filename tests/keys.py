"""Signing keys, as ``openssl genpkey -algorithm ed25519`` makes them."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def make_key(file: Path) -> str:
    """Write a new private key to ``file``; its public key in hex."""
    key = Ed25519PrivateKey.generate()
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return key.public_key().public_bytes_raw().hex()
