"""What Table 3 is said to show, from rows that are set by hand."""

from __future__ import annotations

import numpy as np

from taftcache.paper.findings import findings
from taftcache.paper.line import ReportLine, over_rows

ROWS = 400


def line(method, preset, epsilon, share, shift=0):
    """Three seeds with the same share of the rows right, from row ``shift`` on."""
    right = np.roll(np.arange(ROWS) < round(share * ROWS), shift).astype(np.uint8)
    return ReportLine(method=method, preset=preset, epsilon=epsilon, **over_rows([right] * 3))


def test_each_pair_is_counted_once_with_its_verdict():
    lines = [
        line("full", "tangent", 1.0, 0.70), line("full", "ordinary", 1.0, 0.60),
        line("bitfit", "tangent", 1.0, 0.60), line("bitfit", "ordinary", 1.0, 0.70),
        line("layernorm", "tangent", 1.0, 0.65), line("layernorm", "ordinary", 1.0, 0.65, shift=20),
        line("head", "tangent", 1.0, 0.5), line("head, least squares", "tangent", 1.0, 0.2),
        line("full", "tangent", 8.0, 0.9), line("full", "ordinary", 8.0, 0.9, shift=7),
    ]  # fmt: skip
    (subject,) = findings({"table3": lines})
    assert subject.title == "Private training"
    claims, found = subject.said[:4], subject.said[4:]
    assert {claim.what: claim.verdict for claim in claims} == {
        "full at ε = 1, tangent above ordinary": "holds",
        "bitfit at ε = 1, tangent above ordinary": "contradicted",
        "layernorm at ε = 1, tangent above ordinary": "within noise",
        "full at ε = 8, tangent above ordinary": "within noise",
    }
    assert claims[0].figures == "70.0 ± 0.0 against 60.0 ± 0.0"
    assert claims[0].ahead.startswith("+10.0 (+")
    assert found[0].startswith(
        "The tangent model above the ordinary network holds in 1 of 4 regimes and ε, is within noise in 2 and"
        " contradicted in 1;"
    )
    assert found[1] == "Best at ε = 1: full tangent, 70.0 ± 0.0; within noise of it: bitfit ordinary."
    assert found[2] == "Best at ε = 8: full tangent, 90.0 ± 0.0; within noise of it: full ordinary."
    assert len(found) == 3


def test_a_report_without_single_rows_says_nothing():
    old = ReportLine(method="full", preset="tangent", epsilon=1.0, accuracy=60.0, std=1.0)
    assert findings({"table3": [old]}) == []
    (subject,) = findings({"table3": [line("head", "tangent", 3.0, 0.5)]})
    assert subject.said == ["Best at ε = 3: head, 50.0 ± 0.0."]
