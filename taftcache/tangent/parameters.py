"""The trained parameters as one flat vector with timm's names on its pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor


class Layout:
    """Order, shapes and offsets of named parameters inside a vector of length ``size``.

    Solvers see only the vector; a component on disk is the same numbers under timm's names.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.slices: dict[str, slice] = {}
        start = 0
        for name, shape in self.shapes.items():
            self.slices[name] = slice(start, start + prod(shape))
            start += prod(shape)
        self.size = start

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and list(self.shapes.items()) == list(other.shapes.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Layout({len(self.shapes)} parameters, {self.size:,} numbers)"

    def named(self, names: Iterable[str]) -> Layout:
        """The layout of ``names`` alone, in this one's order.

        Raises:
            KeyError: a name that is not here.
        """
        wanted = set(names)
        if unknown := wanted - set(self.shapes):
            raise KeyError(", ".join(sorted(unknown)))
        return Layout({name: shape for name, shape in self.shapes.items() if name in wanted})

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Named views [shape] into ``vector`` [size]; writing to a view writes to the vector."""
        return {name: vector[self.slices[name]].view(shape) for name, shape in self.shapes.items()}

    def flatten(self, named: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
        """The vector [size] of the tensors in ``named``, which must hold every name of the layout."""
        return torch.cat([named[name].reshape(-1).to(dtype) for name in self.shapes])
