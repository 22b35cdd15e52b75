"""Numbers in words, as the page writes them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from taftcache.names import at_most, ordinal
from taftcache.report.accuracy import accuracy_interval
from taftcache.report.paired import RowGroups
from taftcache.view.bundle import bundle
from tests.view.test_bundle import ASSETS

SHORT = {
    0: "0", 1: "1", 10: "10", 99.96: "100", 100: "100", 120: "120", -250: "-250", 500: "500", 999: "999",
    1000: "1e+3", 1230: "1.23e+3", 10.5: "10.5", 0.5: "0.5", 0.1: "0.1", 1.203: "1.2", 0.0102: "0.0102",
    0.00120: "0.0012", 1e-7: "1e-7", 65504: "6.55e+4",
}  # fmt: skip


@pytest.fixture(scope="module")
def module(chromium):
    """Evaluates an expression with the exports of one of the page's files."""
    tab = chromium.new_page()

    def evaluate(file: str, names: str, expression: str):
        entry = f'import {{ {names} }} from "./{file}";\nwindow.found = {expression};\n'
        read = {"entry.js": entry}
        text = bundle("entry.js", lambda name: read.get(name) or (ASSETS / name).read_text(encoding="utf-8"))
        tab.set_content(f"<script>{text}</script>")
        return tab.evaluate("window.found")

    yield evaluate
    tab.close()


def test_three_digits_are_those_of_the_number(module):
    assert module("numbers.js", "short", f"{list(SHORT)}.map(short)") == list(SHORT.values())
    whole = list(range(-999, 1000))
    assert module("numbers.js", "short", f"{whole}.map((x) => Number(short(x)))") == whole


@pytest.mark.law("A bound that is printed holds: upper ones are rounded up, lower ones down")
def test_bounds_are_rounded_up_on_the_page_as_in_the_terminal(module):
    bounds = [8.606e-13, 2.3004e-12, 2.0**-38, 0.002, 0.1 + 0.2, 9.96e-5, 0.0, 1.0, 250.0, 1e300, 999.6]
    found = module("numbers.js", "atMost", f"{bounds}.map((x) => [2, 3].map((digits) => atMost(x, digits)))")
    assert found == [[float(at_most(x, f".{digits}g")) for digits in (2, 3)] for x in bounds]
    assert module("numbers.js", "atMost, short", "short(atMost(null, 3))") == "–"


def test_places_are_written_as_they_are_said(module):
    places = list(range(1, 21))
    assert module("numbers.js", "ordinal", f"{places}.map(ordinal)") == [ordinal(k) for k in places]
    said = ["1st", "2nd", "3rd", "10th", "11th", "12th", "13th", "21st", "111th"]
    assert said == [ordinal(int(text[:-2])) for text in said]


@pytest.mark.law("Accuracies on the page are those of the command line")
@pytest.mark.parametrize("sizes", [[5, 1, 30, 2], [4] * 12, [9], [1, 1, 1]])
@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_intervals_by_groups_are_those_of_evaluate(module, sizes, share):
    draw = np.random.default_rng(0)
    number = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    hits, groups = draw.random(len(number)) < share, RowGroups.of(number)
    quantiles = [] if groups is None else groups.quantiles().tolist()
    judged = f"byGroups({hits.astype(int).tolist()}, {number.tolist()}, {quantiles})"
    found = module("by_groups.js", "byGroups", judged)
    assert found is None if groups is None else found["groups"] == groups.count
    both = f"((judged) => interval({hits.sum()}, {len(hits)}, judged))({json.dumps(found)})"
    assert module("accuracy.js", "interval", both) == pytest.approx(accuracy_interval(hits, groups), abs=1e-12)


def test_intervals_end_where_accuracies_do(module):
    found = module(
        "accuracy.js", "interval", "Array.from({ length: 200 }, (_, n) => [0, n + 1].map((k) => interval(k, n + 1)))"
    )
    for rows, (none, every) in enumerate(found, 1):
        for right, (low, high) in ((0, none), (rows, every)):
            hits = np.arange(rows) < right
            assert (low, high) == pytest.approx(accuracy_interval(hits), abs=1e-12)
            assert str(low) != "-0.0"
            assert 0 <= low < high <= 1
