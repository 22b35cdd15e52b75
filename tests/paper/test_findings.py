"""What is said of figures: each pair of models once, with its interval and verdict."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from taftcache.paper.findings import findings
from taftcache.paper.line import ReportLine, Tuned, at_their_ends, over_rows
from taftcache.paper.pages import said as part
from taftcache.paper.uncomposed import EXACT, HEAD, HEADS

ROWS = 1000


def line(method, preset, accuracy, **keys):
    """A line of two seeds with so many per cent of the rows right, the same rows in both."""
    right = np.arange(ROWS) < 10 * accuracy
    setting = keys.pop("setting", {"preset": preset})
    return ReportLine(method=method, preset=preset, **over_rows([right, right]), setting=setting, **keys)


def sentences(reports):
    """All that is said, claims as sentences."""
    return [one if isinstance(one, str) else one.text for subject in findings(reports) for one in subject.said]


def said(reports, start):
    (found,) = [sentence for sentence in sentences(reports) if sentence.startswith(start)]
    return found.removeprefix(start)


def test_a_claim_has_its_interval_and_its_verdict():
    table = [line("FC", "paper", 81.0), line("TAFT-1", "paper", 80.0), line("NLFT-1", "paper", 70.0)]
    found = said({"table1": table}, "TAFT-1 above FC (paper): ")
    assert found.startswith("contradicted, -1.0 (-1.6 to -0.4), 80.0 ± 0.0 against 81.0")
    found = said({"table1": table}, "TAFT-1 above NLFT-1 (paper): ")
    assert found.startswith("holds, +10.0 (")
    assert found.endswith("[84.3 against 85.0].")
    even = [line("FC", "paper", 80.1), table[1]]
    assert "within noise, -0.1 (-0.4 to +0.2)" in said({"table1": even}, "TAFT-1 above FC (paper): ")


def test_lines_of_other_rows_have_no_interval():
    bare = [ReportLine(method=m, preset="paper", accuracy=a, std=0.5) for m, a in (("FC", 81.0), ("TAFT-1", 80.0))]
    assert "rows not comparable, -1.0, 80.0 ± 0.5" in said({"table1": bare}, "TAFT-1 above FC (paper): ")


@pytest.mark.law("What a comparison says of two presets counts each pair of models once")
def test_a_pair_of_models_is_counted_once():
    """The model of Table 1 under three names, the composed one of three reports; another depth is another model."""
    one = [line("TAFT-1", preset, accuracy) for preset, accuracy in (("paper", 80.0), ("exact", 85.0))]
    deep = [line("TAFT-7", preset, accuracy, depth=7) for preset, accuracy in (("paper", 80.0), ("exact", 75.0))]
    again = {
        name: [keyed(x, method=other) for x in one] for name, other in (("figure2c", "CLS=F"), ("figure2b", "PT=F"))
    }
    composed = [line("TAFT", preset, 70.0, shards=10) for preset in ("paper", "exact")]
    reports = {
        "table1": [*one, *deep], "table2": composed, **again,
        "figure1a": [keyed(x, removed=k) for x in composed for k in (0, 5)],
        "figure1c": [keyed(x, forgotten=0.0) for x in composed],
    }  # fmt: skip
    assert said(reports, "The exact preset above the paper's: ") == (
        "of 4 pairs 1 hold, 2 are within noise, 1 are contradicted."
    )
    ends = {"paper": "largest rate", "exact": "least λ"}
    reports["table1"] = [keyed(x, end=None if x is one[1] else ends[x.preset]) for x in reports["table1"]]
    assert said(reports, "The exact preset above the paper's: ").endswith(
        "1 are contradicted; in 2 of them a choice lies at the end of what was tried (largest rate 2, least λ 1)."
    )
    assert said(reports, "Below it: ").startswith("table1, TAFT-7: 75.0 ± 0.0 against 80.0 ± 0.0, -5.0 (")


def keyed(one, **keys):
    """The same figures under another name or place."""
    return msgspec.structs.replace(one, **keys)


def test_what_needs_no_composition_stands_first():
    table = [
        line(EXACT, "exact", 90.0, seconds=27.6, passes=9.0), line(HEAD, "exact", 87.0, seconds=1.0, passes=3.0),
        line("TAFT", "exact", 86.9, shards=10, seconds=16.0, passes=8.0), line(HEADS, "exact", 84.0, shards=10),
    ]  # fmt: skip
    first = sentences({"table2": table, "table1": [line("TAFT-1", "exact", 90.0)]})[:4]
    assert first[0].startswith("The exact model of all rows above the mean of 10 components: holds, +3.1 (")
    assert "27.6 s against 16.0 s [84.3 against 81.3 (one TAFT model)]." in first[0]
    assert first[1].startswith("The mean of 10 components above the exact head of all rows: within noise, -0.1 (")
    assert first[2].startswith("The mean of 10 components above the mean of 10 heads: holds, +2.9 (")
    assert first[3].startswith("The exact model of all rows above the exact head of all rows: holds, +3.0 (")
    better = line("FC", "exact", 88.0, setting={"loss": "cross_entropy"})
    first = sentences({"table2": table, "table1": [line("TAFT-1", "exact", 90.0), better]})[:4]
    assert first[1].startswith("The mean of 10 components above the best exact head of all rows: ")
    assert "86.9 ± 0.0 against 88.0 ± 0.0 (its loss 87.0, cross entropy 88.0)" in first[1]
    assert "above FC (exact)" in first[3]  # one pair, one claim


def test_the_order_of_losses_in_a_ball_is_the_papers_or_not():
    table = [line(loss, "exact", a, radius=r) for loss, r, a in (("CE", 1.0, 40), ("RSL", 1.0, 31), ("CE", 10.0, 90))]
    table.append(line("RSL", "exact", 90.1, radius=10.0))
    assert said({"table7": table}, "RSL above CE at R = 1 (exact): ").startswith("contradicted, -9.0 (")
    assert said({"table7": table}, "CE above RSL at R = 10 (exact): ").startswith("within noise, -0.1 (")


def test_sisa_on_average_and_point_by_point():
    gaps = {0: -2.0, 1: 3.0, 2: 5.0}
    lines = [line("TAFT", "paper", 80.0 - k, shards=3, removed=k) for k in gaps]
    lines += [line("SISA", "paper", 80.0 - k - gap, shards=3, removed=k) for k, gap in gaps.items()]
    found = said({"figure1b": lines}, "TAFT above SISA on average over the shards removed, 3 shards (paper): ")
    assert found.startswith("holds, +2.0 (")
    assert "from -2.0 to +5.0; of 3 pairs 2 hold, 0 are within noise, 1 are contradicted [+11.0" in found


def test_nothing_is_claimed_of_a_model_that_stopped_early():
    early = {"converged": False, "gradient": 0.03, "tolerance": 0.02}
    table = [line("RSL", "exact", 80.0, radius=10.0), line("CE", "exact", 90.0, radius=10.0, **early)]
    found = said({"table7": table}, "CE above RSL at R = 10 (exact): ")
    assert found.startswith("withheld: CE stopped at ‖∇F‖ 3.0e-02 ‖∇F(0)‖, tolerance 0.02, +10.0, 90.0 ± 0.0 (stopped")
    pair = [line("TAFT-1", "exact", 85.0, **early), line("TAFT-1", "paper", 80.0)]
    found = said({"table1": pair}, "The exact preset above the paper's: ")
    assert found.startswith("of 1 pairs 0 hold, 0 are within noise, 0 are contradicted, 1 have no verdict.")
    lines = [line("TAFT", "exact", 80.0 - k, shards=3, removed=k, **early) for k in (0, 1)]
    lines += [line("SISA", "paper", 70.0 - k, shards=3, removed=k) for k in (0, 1)]
    found = said({"figure1b": lines}, "TAFT above SISA on average over the shards removed, 3 shards (exact): ")
    assert found.startswith("withheld: TAFT stopped at")
    found = said({"figure1a": lines}, "1 of 3 shards dropped (exact): ")
    assert found.startswith("79.0 after 80.0, -1.0 (withheld: TAFT stopped at")


def test_a_claim_says_where_the_end_of_a_list_was_chosen():
    """That a larger rate was not tried may decide it."""
    rates = [{"preset": "paper", "rate": rate} for rate in (1e-3, 1e-4)]
    taft, soup = line("TAFT", "paper", 65.0, shards=10, setting=rates[0]), line("Soup", "paper", 85.0, shards=10)
    chosen = [Tuned(method="TAFT", depth=1, shards=10, chosen=rates[0], tried=rates)]
    lines = at_their_ends([taft, soup], chosen)
    assert [one.end for one in lines] == ["largest rate", None]
    assert ", TAFT: largest rate" in said({"table2": lines}, "composed TAFT of 10 shards above soup (paper): ")
    assert at_their_ends([keyed(taft, shards=25)], chosen)[0].end == "largest rate"  # whose list is the same
    counts = part(
        {"table1": [line("TAFT-1", "paper", 90.0)], "table2": [*lines, line("TAFT", "exact", 70.0, shards=10)]}
    )
    assert counts[0] == "| claims about | holds | within noise | contradicted | chosen at the end of what was tried |"
    assert "| Composed models beside souped networks | 0 | 0 | 2 | 1 |" in counts
    assert "| One model of all rows beside composed ones | 1 | 0 | 0 | 1 |" in counts
