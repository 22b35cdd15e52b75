"""Valid files made invalid, the same way for the same seed."""

from __future__ import annotations

import random
import re

NUMBERS = (b"0", b"-1", b"1e400", b"NaN", b"true", b"null", b'""', b"[]", b"{}", b"4294967296", b"-9223372036854775808")
NUMBERS += (b"18446744073709551616", b"9" * 400, b"1e-320", b"0.5", b"2147483648", b"1" + b"0" * 18)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """``data`` after one to three changes."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        data = chance.choice((_flip, _cut, _splice, _number, _nest, _swap, _zeros))(data, chance)
    return data


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 4, 16))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def _splice(data: bytes, chance: random.Random) -> bytes:
    """A part of the file once more, somewhere else, over what is there or before it."""
    begin, to = (chance.randint(0, len(data)) for _ in range(2))
    part = data[begin : begin + chance.choice((1, 8, 64, 512))]
    return data[:to] + part + data[to + chance.choice((0, len(part))) :]


def _number(data: bytes, chance: random.Random) -> bytes:
    """Another value in a number's place; of a binary file, the bytes of a large one."""
    if places := [m.span() for m in re.finditer(rb"(?<![\w\"])-?\d[\d.e-]*", data[: 1 << 16])]:
        begin, end = chance.choice(places)
        return data[:begin] + chance.choice(NUMBERS) + data[end:]
    at = chance.randint(0, max(0, len(data) - 8))
    return data[:at] + chance.choice((b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f\0\0\0\0")) + data[at + 8 :]


def _nest(data: bytes, chance: random.Random) -> bytes:
    """Lists or mappings within each other, in a value's place."""
    at = chance.choice([m.end() for m in re.finditer(rb"[:=,]", data[: 1 << 16])] or [chance.randint(0, len(data))])
    depth = chance.choice((3, 120, 1100, 30_000))
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}")))
    return data[:at] + opening * depth + b"1" + closing * chance.choice((0, depth)) + data[at:]


def _swap(data: bytes, chance: random.Random) -> bytes:
    """Two words change places: keys, values, names of members."""
    words = [m.span() for m in re.finditer(rb"[\w/.-]{2,}", data[: 1 << 16])]
    if len(words) < 2:
        return data
    (a, b), (c, d) = sorted(chance.sample(words, 2))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _zeros(data: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + bytes(chance.choice((1, 8, 4096))) + data[at:]
