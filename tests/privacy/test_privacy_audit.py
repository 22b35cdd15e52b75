"""What benchmarks/privacy_audit.py prints of its runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmark_says_how_far_its_bounds_spread(monkeypatch, capsys):
    """Of ten runs of one ε the best showed twice what the least did: a single one is no figure."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    audit = importlib.import_module("privacy_audit")
    claims = {1.0: [(0.5, 0.0), (0.2, 0.1)], 3.0: [(2.0, 1.0)]}
    made = {claim: iter(each) for claim, each in claims.items()}

    def one(epsilon: float, *_: object, **__: object) -> dict[str, float]:
        bound, assuming_less = next(made[epsilon])
        return {"claimed": epsilon, "lower_bound": bound, "without_independence": assuming_less}

    monkeypatch.setattr(audit, "audit", one)
    told = audit.ranges([one(1.0), one(1.0), one(3.0)])
    assert told[0] == {"claimed": 1.0, "runs": 2, "lower_bound": [0.2, 0.5], "without_independence": [0.0, 0.1]}
    made = {claim: iter(each) for claim, each in claims.items()}
    monkeypatch.setattr(sys, "argv", ["privacy_audit.py", "--epsilon", "1", "--runs", "2"])
    audit.main()
    out = capsys.readouterr().out
    assert "2 runs show at least 0.200 to 0.500, and 0.000 to 0.100 without assumptions" in out
    assert "flagged: 0 of 2" in out
