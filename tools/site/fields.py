"""Docstrings of records as the reference shows them: each field with its meaning, and how the record is made."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Extension, Function, Parameter, ParameterKind, Parameters

FIELD = re.compile(r"(?:^|(?<=[.;)] ))([a-z_]+(?:, [a-z_]+)*): ", re.IGNORECASE)
SECTION = re.compile(r"[A-Z]\w+:\n")


class Fields(Extension):
    """Reads ``key, key: text`` in a class's docstring, as the house writes it; msgspec's structs get a signature."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        own = [m for m in cls.members.values() if isinstance(m, Attribute) and "property" not in m.labels]
        fields = [field for field in own if field.annotation is not None and "ClassVar" not in str(field.annotation)]
        if cls.docstring is not None:
            cls.docstring.value = spelt_out(cls.docstring.value, {field.name for field in fields})
        if any(str(base).endswith("Struct") for base in cls.bases):
            shown = [
                field for field in fields if not field.name.startswith("_") and "ClassVar" not in str(field.annotation)
            ]
            made = [_parameter("self")] + [_parameter(field.name, field) for field in shown]
            cls.set_member("__init__", Function("__init__", parameters=Parameters(*made)))


def spelt_out(text: str, fields: set[str]) -> str:
    """A docstring whose ``key, key: text`` of ``fields`` stand in a section of their own."""
    kept: list[str] = []
    meanings: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        marks = [] if SECTION.match(paragraph) else [m for m in FIELD.finditer(line) if {*m[1].split(", ")} <= fields]
        ends = [mark.start() for mark in marks[1:]] + [len(line)]
        for mark, end in zip(marks, ends, strict=True) if marks else ():
            meanings |= dict.fromkeys(mark[1].split(", "), line[mark.end() : end].strip())
        kept += [paragraph] if not marks else [line[: marks[0].start()].strip()]
    if meanings:
        kept.append("\n".join(["Attributes:", *(f"    {name}: {meaning}" for name, meaning in meanings.items())]))
    return "\n\n".join(part for part in kept if part)


def _parameter(name: str, field: Attribute | None = None) -> Parameter:
    kind = ParameterKind.keyword_only if field else ParameterKind.positional_or_keyword
    return Parameter(
        name, annotation=field.annotation if field else None, kind=kind, default=field.value if field else None
    )
