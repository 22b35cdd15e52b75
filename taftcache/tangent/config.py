"""Shape and constants of the linearised end of a network, as a store keeps them beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from taftcache.errors import FormatError
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.layers.config import LayerSpec, Readout

Linearisation = Literal["class row", "layers", "functional", "feature"]
Rows = Literal["tokens", "attended", "residual", "feature"]


class TailConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The linearised end of a network, from the cached rows to the logits.

    path: how its derivative is computed. why: a sentence on why not in a faster way. start: timm's name of the module
    whose input is cached. blocks: names of the tail's blocks, first to last. shape: of one sample at the cut as the
    model has it, (t, d) or (C, H, W); a store holds [prod/last, last]. class_token: whether row 0 of the tokens is a
    class token. rows: what of a sample is cached; see ``selection.ROWS``. reduced_by: digest of the weights that made
    those rows from the tokens, "" for the tokens themselves. head, width: timm's name for the classifier, and the
    length of its input. classes: K for a base; in a store, that of the timm model that it was taken from, or 0.
    parameters: timm's names in forward order without the head: what may be trained. norms: those of ``parameters`` that
    are affines of normalisation layers. buffers: tensors that belong to the state and are never trained. layers: the
    closed-form layers on all tokens, if the path is "layers". end: the class row, or what pools the tokens into the
    head's input.
    """

    path: Linearisation
    why: str = ""
    start: str
    blocks: tuple[str, ...]
    shape: tuple[int, ...]
    class_token: bool = False
    rows: Rows = "tokens"
    reduced_by: str = ""
    head: str = "head"
    width: int
    classes: int
    parameters: tuple[str, ...]
    norms: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    layers: tuple[LayerSpec, ...] = ()
    end: ClassRow | Readout | None = None

    @classmethod
    def of_vectors(cls, width: int, classes: int = 0, start: str = "vectors") -> TailConfig:
        """A head and nothing before it, on vectors [n,width] of any origin; ``start`` says what they are."""
        return cls(
            path="feature",
            start=start,
            blocks=(),
            shape=(1, width),
            rows="feature",
            width=width,
            classes=classes,
            parameters=(),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TailConfig:
        """From the JSON that a store keeps.

        Raises:
            FormatError: it is not what ``as_dict`` makes.
        """
        try:
            return msgspec.convert(dict(values), cls)
        except msgspec.ValidationError as error:
            raise FormatError(
                "the store's description of its tail is not one of this release",
                got=str(error),
                do="extract into a new store: one of release 0.1 lacks it, and forgets with that release alone",
            ) from error

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(msgspec.to_builtins(self))

    @property
    def head_names(self) -> tuple[str, str]:
        """Names of the head's weight [K,width] and bias [K]."""
        return f"{self.head}.weight", f"{self.head}.bias"

    @property
    def final_norms(self) -> tuple[str, ...]:
        """Those of ``norms`` that come after the last block; all of them if the tail has no block."""
        last = f"{self.blocks[-1]}." if self.blocks else ""
        within = [k for k, name in enumerate(self.parameters) if last and name.startswith(last)]
        after = self.parameters[max(within, default=-1) + 1 :]
        return tuple(name for name in after if name in self.norms)

    @property
    def token_name(self) -> str:
        """Name of the trained class token at the input of the first block."""
        return f"{self.start}.cls_token"
