"""The page's grid of pictures and its lists of what may be wrong, in a real browser."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter

import pytest

import taftcache
from taftcache.view.bundle import bundle
from tests.view.test_browser import PLACES
from tests.view.test_bundle import ASSETS

pytestmark = pytest.mark.slow


CELLS = """() => [...document.querySelectorAll("#grid .cell")]
  .sort((a, b) => a.ariaPosInSet - b.ariaPosInSet).map((one) => one.id.slice(5))"""


def cells(page) -> list[int]:
    """Rows of the cells that are in the document, in order."""
    return list(map(int, page.tab.evaluate(CELLS)))


@pytest.mark.law("The page's grid shows the samples that its map and table show, and holds only those in sight")
def test_the_grid_shows_what_the_map_shows(browse, server, atlas):
    page = browse(1440, 900).open(server.url + "#map")
    page.tab.wait_for_selector("#grid .cell img")
    everyone = len(atlas.table)
    assert int(page.tab.get_attribute("#grid .cell", "aria-setsize")) == everyone
    assert 0 < len(cells(page)) < everyone
    page.tab.evaluate("document.getElementById('grid').scrollTop = 1e6")
    page.until(f"document.getElementById('cell-{everyone - 1}') !== null")
    assert 0 not in cells(page)
    page.tab.select_option("#class", "3")
    threes = (atlas.table.label == 3).nonzero()[0].tolist()
    page.tab.evaluate("document.getElementById('grid').scrollTop = 0")
    page.until(f"document.getElementById('cell-{threes[0]}') !== null")
    assert cells(page) == threes[: len(cells(page))]
    page.tab.select_option("#order", "margin")
    assert cells(page) == sorted(threes, key=lambda k: (atlas.margin[k], k))[: len(cells(page))]
    label, prediction, margin = page.tab.locator(f"#cell-{threes[0]} .name").all_inner_texts()
    assert (label, atlas.classes_by["model"][threes[0]], prediction) == ("3", 3, "3 fitted")  # no ✓: it saw the label
    held = next(k for k in threes if atlas.table.held_out[k])
    page.tab.select_option("#shard", label="held-out")
    says = atlas.classes_by["model"][held]
    page.until(f"document.getElementById('cell-{held}') !== null")
    assert page.tab.inner_text(f"#cell-{held} .name >> nth=1") == f"{'✓' if says == 3 else '✗'} {says}"
    shown = page.tab.locator("table[aria-label='Samples'] td:nth-child(4)").all_inner_texts()
    assert all(text[0] in "✓✗" and "trained" not in text for text in shown)
    page.tab.select_option("#shard", label="000")
    shown = page.tab.locator("table[aria-label='Samples'] td:nth-child(4)").all_inner_texts()
    assert all("✓" not in text and text.endswith("trained on this row") for text in shown)
    assert float(margin.removeprefix("margin ")) == pytest.approx(atlas.margin[threes[0]], rel=0.01)


@pytest.mark.full
def test_the_grid_by_keyboard(browse, server, atlas):
    page = browse(1440, 900).open(server.url + "#map")
    page.tab.wait_for_selector("#grid .cell img")
    page.tab.focus("#grid")
    keys, active = page.tab.keyboard, "document.getElementById('grid').getAttribute('aria-activedescendant')"
    columns = page.tab.evaluate("new Set([...document.querySelectorAll('.cell')].map((c) => c.offsetLeft +"
                                " new DOMMatrix(getComputedStyle(c).transform).e)).size")  # fmt: skip
    for key, row in (("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowLeft", columns), ("End", 999), ("Home", 0)):
        keys.press(key)
        row = min(row, len(atlas.table) - 1)
        assert page.tab.evaluate(active) == f"cell-{row}"
        assert page.tab.locator(f"#cell-{row}").is_visible()
    keys.press("ArrowRight")
    keys.press("Space")
    assert page.tab.get_attribute("#cell-1", "aria-selected") == "true"
    assert page.tab.get_attribute("#picked", "data-count") == "1"
    page.tab.select_option("#only", "basket")
    assert page.tab.get_attribute("#chosen", "data-count") == "1"
    page.tab.focus("#grid")
    keys.press("Enter")
    page.tab.wait_for_selector(f"aside h2 >> text={atlas.table.ids[1]}")
    keys.press("Space")
    assert page.tab.get_attribute("#chosen", "data-count") == "0"


@pytest.mark.full
def test_a_picture_follows_the_mouse(browse, server, atlas):
    page = browse(1440, 900).open(server.url + "#map")
    page.tab.hover("#grid .cell >> nth=2")
    page.tab.wait_for_selector(".peek[data-row='2'] img")
    page.tab.locator("#list tbody tr >> nth=4").scroll_into_view_if_needed()
    page.until("document.querySelector('.peek') === null")  # scrolling has ended it
    page.tab.hover("#list tbody tr >> nth=4")
    page.tab.wait_for_selector(".peek[data-row='4'] img")
    page.tab.hover("h1")
    page.until("document.querySelector('.peek') === null")
    box, (x, y) = page.tab.locator("#map").bounding_box(), page.tab.evaluate(PLACES)[0]
    page.tab.mouse.move(box["x"] + x - 1, box["y"] + y)
    page.tab.mouse.move(box["x"] + x, box["y"] + y)
    page.tab.wait_for_selector(".peek img")


@pytest.mark.full
def test_where_there_are_no_pictures_the_page_says_why(browse, server):
    page, why = browse(1440, 900), "the images cannot be reached: no folder"
    page.tab.route("**/pictures?*", lambda asked: asked.fulfill(json={"why_not": why}))
    page.open(server.url + "#map")
    assert page.tab.inner_text("#no-pictures") == f"No grid of pictures: {why}."
    assert page.tab.locator("#grid").count() == 0
    assert page.tab.locator("#list tbody tr").count() > 0
    page.go("check")
    page.tab.wait_for_selector("#check tbody button.thumb")
    assert page.tab.locator("#check img").count() == 0
    assert not any("/picture?" in url for url in page.asked)


def listed(page, name) -> list[list[str]]:
    """The lines of a list, each the texts of its cells but the first."""
    page.tab.click(f"[data-name={name}]")
    page.tab.wait_for_selector("#lines")
    rows = "[...document.querySelectorAll('#check tbody tr')].map((r) => [...r.cells].slice(1).map((c) => c.innerText))"
    return page.tab.evaluate(rows)


@pytest.mark.law("The page's lists of what may be wrong are those of the command line")
def test_the_lists_of_what_may_be_wrong(browse, server, atlas):
    page, store = browse(1440, 900).open(server.url + "#check"), atlas.store
    found = [row[:3] + row[4:] for row in listed(page, "suspects")]
    report = taftcache.suspects(store, top=1000)
    wrong = [s for s in report.suspects if s.margin < 0]
    assert found == [[s.sample, s.label, s.says, s.shard] for s in wrong]
    assert f"{report.disagreeing} of {report.rows} rows" in page.tab.inner_text("#check")
    far = taftcache.outliers(store, top=1000).outliers
    assert [row[0] for row in listed(page, "outliers")] == [o.sample for o in far][:200]
    page.tab.select_option("#check-class", "3")
    kept = [o.sample for o in far if o.label == "3"]
    assert page.tab.get_attribute("#lines", "data-count") == str(len(kept))
    with page.tab.expect_download() as saved:
        page.tab.click("#check >> text=/^Save [0-9]+ id/")
    assert saved.value.path().read_text(encoding="utf-8").split() == kept
    page.tab.click("#check th >> text=distance")
    near = sorted((o for o in far if o.label == "3"), key=lambda o: -o.distance)
    with page.tab.expect_download() as saved:
        page.tab.click("#check >> text=Save as CSV")
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0] == "sample,class,times the median,distance,shard"
    assert [line.split(",")[0] for line in lines[1:]] == [o.sample for o in near]
    page.tab.check("#check tbody tr >> nth=1 >> input")
    assert page.tab.get_attribute("#picked", "data-count") == "1"
    page.tab.click("#check .thumb >> nth=1")
    page.tab.wait_for_selector(f"aside h2 >> text={near[1].sample}")
    page.tab.click("text=Show them on the map")
    page.tab.wait_for_selector(f"#list tbody tr >> text={near[1].sample}")
    assert page.tab.get_attribute("#chosen", "data-count") == "1"
    whose = page.tab.inner_text("#whose")
    assert "the store's best model: model of all rows." in whose
    assert whose.endswith(f"Check the data are judged by others: {report.method}.")
    page.tab.click("#clear")
    assert report.method not in page.tab.inner_text("#whose")


def test_a_table_that_is_saved_has_no_text_that_a_spreadsheet_computes(opened):
    """An id may be =HYPERLINK(…) and whatever a stranger likes; a number below zero stays one."""
    texts = ["=1+1", "+1", "-1", "@a", '=a("b", 1)', "a=1", "'=1", "", "a;=1", "＝1", "a;＠\t+b", "\t=1"]
    rows = json.dumps([[text, -1.5] for text in texts])
    run = f'import {{ saveTable }} from "./files.js";\nsaveTable("t.csv", ["=t", "n"], {rows});\n'
    code = bundle("run.js", lambda name: run if name == "run.js" else (ASSETS / name).read_text(encoding="utf-8"))
    with opened.tab.expect_download() as saved:
        opened.tab.evaluate(code)
    with saved.value.path().open(newline="") as file:
        title, *rows = csv.reader(file)
    assert title == ["'=t", "n"]
    begins = re.compile(r"(?<![^;\t])(?=[=+@＝＠\t-])")
    assert rows == [[begins.sub("'", text), "-1.5"] for text in texts]


@pytest.mark.full
def test_confused_classes_are_those_of_the_held_out_rows(browse, server, atlas):
    page = browse(1440, 900).open(server.url + "#check")
    kept = atlas.held_out
    said = kept.others["models/exact"]
    pairs = Counter((int(a), int(b)) for a, b in zip(kept.labels, said, strict=True) if a != b)
    of = Counter(kept.labels.tolist())
    found = {(int(a), int(b)): rest for a, b, *rest in listed(page, "confused")}
    assert {pair: int(rest[0]) for pair, rest in found.items()} == dict(pairs)
    for (label, _), (rows, share, low, high, _) in found.items():
        p, n = int(rows) / of[label], of[label]
        middle, z2 = p + 3.8415 / (2 * n), 3.8415
        half = (z2 * (p * (1 - p) + z2 / (4 * n)) / n) ** 0.5
        want = [p, (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)]
        assert [share, low, high] == [f"{100 * v:.1f} %" for v in want]
    first = page.tab.get_attribute("#check .thumb", "aria-label")
    shard = atlas.store.held_out
    row = list(shard.sample_ids).index(first)
    assert (int(shard.labels[row]), int(said[row])) == next(iter(found))


@pytest.mark.full
@pytest.mark.law("What was chosen on the page comes back with its address")
def test_the_address_keeps_list_order_and_ticks(browse, server, atlas):
    page = browse(1440, 900).open(server.url + "#check")
    assert listed(page, "outliers")
    page.tab.select_option("#check-class", "3")
    page.tab.click("#check .thumb >> nth=0")
    first = page.tab.get_attribute("#check .thumb >> nth=0", "aria-label")
    page.tab.check("#check tbody input >> nth=0")
    page.go("map")
    page.tab.wait_for_selector(".cell >> nth=0")
    page.tab.select_option("#order", "margin")
    page.tab.click("text=rising")
    leading = cells(page)[0]
    page.tab.hover(f"#cell-{leading}")
    page.tab.click(f"#cell-{leading} .tick")
    ticked = {first, atlas.table.ids[leading]}
    page.tab.reload()
    page.tab.wait_for_selector(".cell >> nth=0")
    assert cells(page)[0] == leading == int(atlas.margin.argmax())
    assert page.tab.get_attribute(f"#cell-{leading}", "aria-selected") == "true"
    assert page.tab.inner_text("#count") == f" ({len(ticked)})"
    page.go("check")
    page.tab.wait_for_selector("#check .thumb")
    assert page.tab.get_attribute("[data-name=outliers]", "aria-pressed") == "true"
    assert page.tab.input_value("#check-class") == "3"
    assert page.tab.get_attribute("#check .thumb >> nth=0", "aria-label") == first
    assert page.tab.is_checked("#check tbody input >> nth=0")
    assert page.tab.inner_text("aside h2") == first
    page.tab.click("text=Open the basket")
    command = page.tab.inner_text("#command")
    assert all(f"--sample {name}" in command for name in ticked)
