"""Bounds in few digits: what is printed is never nearer than what was proven."""

from __future__ import annotations

import ast
import re
from decimal import Decimal
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import taftcache
from taftcache.model.card import _made
from taftcache.model.meta import CertificateRecord, ComponentMeta
from taftcache.names import at_least, at_most, epsilon_text
from taftcache.stages.certificates import RenewedCertificate
from taftcache.stages.forget.receipts import Proof
from taftcache.view.wording import proof_text

PACKAGE = Path(taftcache.__file__).parent
FIGURES = {"rows": 60, "objective": 0.2, "ridge": 1e-3, "gradient": 1e-9, "gradient_at_zero": 1.0, "gap_bound": 1e-24}
# What bounds something, by its name; not the ends of a confidence interval.
BOUND = re.compile(r"_(bound|at_least|recorded)$|^(bound|identity_error|largest_change)$")
CLAIMED = {("stages/forget/certificates.py", "said.distance_bound")}  # what is said there was found too small


@pytest.mark.law("A bound that is printed holds: upper ones are rounded up, lower ones down")
@given(st.floats(1e-300, 1e300), st.sampled_from([".0e", ".1e", ".3e", ".2g", ".3g", ".4g"]))
def test_nothing_is_rounded_to_the_wrong_side_nor_further_than_a_digit(value, form):
    above, below = Decimal(at_most(value, form)), Decimal(at_least(value, form))
    said = Decimal(repr(value))
    digits = int(form[1]) + (form[2] == "e")
    assert below <= said <= above
    assert above - below <= Decimal(10) ** (said.adjusted() - digits + 1)
    assert Decimal(format(value, form)) in (above, below)


@pytest.mark.law("A bound that is printed holds: upper ones are rounded up, lower ones down")
def test_what_needs_no_rounding_stays_as_it_is():
    for text in ("2.0e-03", "1.0e-01", "9.9e-13", "0.0e+00", "1.0e+00", "7.0e+300"):
        assert at_most(float(text)) == at_least(float(text)) == text
    assert (at_most(9.91e-13), at_least(9.99e-13), at_most(inf)) == ("1.0e-12", "9.9e-13", "inf")
    assert (epsilon_text(8 * (1 + 1e-15)), epsilon_text(8.001), epsilon_text(8.0001), epsilon_text(0)) == (
        "8", "8.001", "8.001", "0",
    )  # fmt: skip


@pytest.mark.law("A bound that is printed holds: upper ones are rounded up, lower ones down")
def test_receipts_answers_and_cards_say_no_less_than_was_proven():
    receipt = Proof(relative_gradient=2.0**-23, distance_bound=2.0**-38, moved_at_least=2.0**-6, decisive=True)
    text = proof_text("models/exact", receipt)
    assert "‖∇F‖ 2e-07 of" in text
    assert "≤ 3.7e-12;" in text
    assert "by 1.5e-02 at least (decisive)" in text
    certificate = CertificateRecord(**FIGURES, relative_gradient=1.12e-9, distance_bound=8.606e-13)
    assert "gradient 1.2e-09 of" in (card := _made(ComponentMeta(certificate=certificate), {}))
    assert card.endswith("at most 8.7e-13.")
    renewed = RenewedCertificate(
        **FIGURES, relative_gradient=1.12e-9, distance_bound=2.3004e-12, converged=True, passes=1, moved=0.1,
        moved_at_least=0.1, decisive=True,
    )  # fmt: skip
    assert "≤ 2.4e-12;" in proof_text("models/exact", renewed)


@pytest.mark.law("A bound that is printed holds: upper ones are rounded up, lower ones down")
def test_no_text_rounds_a_bound_to_the_nearest_digit():
    """In f-strings: the others have no digits to spare."""
    found, seen = set(), 0
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            seen += isinstance(node, ast.Call) and ast.unparse(node.func) in ("at_most", "at_least")
            if not (isinstance(node, ast.FormattedValue) and node.format_spec is not None):
                continue
            named = ast.unparse(node.value)
            if BOUND.search(re.split(r"[.\[]", named)[-1].strip("'\"]")):
                found.add((str(file.relative_to(PACKAGE)), named))
    assert found == CLAIMED
    assert seen > 20
