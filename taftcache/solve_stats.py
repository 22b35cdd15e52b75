"""Figures of a solve. No torch here, because commands that only list models read them too."""

from __future__ import annotations

from typing import Self

import msgspec


class SolveStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a solve took and met on its way; a field that its solver does not have is left out of the JSON.

    solver: which one, in words. passes: over the rows, those of the proof included.
    rounds: of a solver that recomputes the gradient between them.
    directions, solves: of a ball, those of its span, or the solves without it.
    row_moves: about how far Δw* would move if a typical row left; an estimate.
    norm, radius, multiplier: of a ball, ‖Δw‖, R, and ν, which is 0 where the ball does not bind.
    proof_passes: how many of the passes the proof took.
    energy_at_least: what ‖Δw − Δw*‖_H is not below, where ``certify`` has no dual vectors.
    """

    solver: str | None = None
    passes: int = 0
    rounds: int | None = None
    directions: int | None = None
    solves: int | None = None
    row_moves: float | None = None
    norm: float | None = None
    radius: float | None = None
    multiplier: float | None = None
    proof_passes: int = 0
    energy_at_least: float | None = None

    def with_proof(self, passes: int) -> Self:
        """After so many passes more, for a proof."""
        return msgspec.structs.replace(self, passes=self.passes + passes, proof_passes=self.proof_passes + passes)
