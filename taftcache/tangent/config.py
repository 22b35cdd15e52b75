"""Shape and constants of the linearised end of a network, as a store keeps them beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TailConfig:
    """Shape and constants of the linearised tail: last block, final norm and head."""

    prefix: str
    width: int
    heads: int
    tokens: int
    classes: int
    eps1: float
    eps2: float
    eps_final: float
    gelu: Literal["exact", "tanh"] = "exact"

    @classmethod
    def from_dict(cls, values: Mapping[str, object], classes: int) -> TailConfig:
        """From the JSON that a store keeps beside the tail's weights; ``classes`` is the new head's."""
        named = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**{**named, "classes": classes})  # type: ignore[arg-type]
