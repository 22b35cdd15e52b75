"""What a command said, and the form that every refusal has."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


def refused(outcome: Outcome, code: int, *says: str) -> None:
    """The exit code, nothing on stdout, and an error in the form that all of them have."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("taftcache: ")
    assert "Traceback" not in outcome.err
    assert "\n  try: " in outcome.err
    for text in says:
        assert text in outcome.err, (text, outcome.err)
