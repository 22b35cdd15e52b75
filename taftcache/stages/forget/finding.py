"""What an audit collects."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One promise that does not hold: its ``kind``, ``where``, and what is wrong."""

    kind: str
    where: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the checks found, in their order; ``notes`` are no failures."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def found(self, kind: str, where: str, problem: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(kind=kind, where=where, problem=problem))
