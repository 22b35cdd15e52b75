"""Charts for who has no mouse, cannot see them, or has them on paper."""

from __future__ import annotations

import pytest

from tests.view.test_browser import MAP

pytestmark = pytest.mark.slow

# Of each legend on the page, [name, symbol, dashes, colour] of every entry.
LEGENDS = """() => [...document.querySelectorAll("main .key")].map((key) =>
  [...key.querySelectorAll("label")].map((one) => {
  const [sign, line] = ["path[data-symbol]", "path[stroke]"].map((query) => one.querySelector(query));
  return [one.textContent, sign?.dataset.symbol, line?.getAttribute("stroke-dasharray"),
    (sign ?? line).getAttribute(sign ? "fill" : "stroke")];
}))"""
# Of each chart, the names of its series.
SERIES = """() => [...document.querySelectorAll("main [_echarts_instance_]")].map((node) =>
  echarts.getInstanceByDom(node).getOption().series.filter((one) => one.name).map((one) => one.name))"""
TABLE = """() => [...document.querySelectorAll("main .numbers")].map((node) => [
  node.querySelector("summary").textContent,
  ...[...node.querySelectorAll("tr")].map((line) => [...line.cells].map((cell) => cell.textContent)),
])"""


def charted(page, view: str, charts: int) -> None:
    page.go(view)
    page.until(f"document.querySelectorAll('main [_echarts_instance_]').length == {charts}")


@pytest.mark.law("What a chart tells apart differs by more than colour, and its legend is text on the page")
def test_series_differ_by_more_than_their_colours(opened):
    for view, charts in (("overview", 1), ("map", 1), ("shards", 2), ("training", 1), ("compare", 1)):
        charted(opened, view, charts)
        legends, series = opened.tab.evaluate(LEGENDS), opened.tab.evaluate(SERIES)
        assert [[name for name, *_ in one] for one in legends] == [list(dict.fromkeys(names)) for names in series], view
        for one in legends if view != "overview" else []:
            looks = {(symbol, dashes) for _, symbol, dashes, _ in one}
            assert len(looks) == min(len(one), 5), (view, one)
    charted(opened, "map", 1)
    opaque = opened.tab.evaluate(f"{MAP}.getOption().series.map((one) => one.itemStyle.opacity)")
    assert set(opaque) == {1}
    charted(opened, "overview", 1)
    bars = opened.tab.evaluate("""echarts.getInstanceByDom(document.querySelector("main .chart")).getOption().series
      .map((one) => one.itemStyle.borderWidth)""")
    assert set(bars) == {1}


def test_a_legend_is_one_stop_and_hides_by_keyboard(opened, atlas):
    charted(opened, "map", 1)
    keys = opened.tab.keyboard
    assert opened.tab.locator('.key input[tabindex="0"]').count() == 1
    opened.tab.focus('.key input[tabindex="0"]')
    for key, name in (("End", "9"), ("Home", "0"), ("ArrowRight", "1"), ("ArrowDown", "2"), ("ArrowLeft", "1")):
        keys.press(key)
        assert opened.tab.evaluate("document.activeElement.value") == name
    keys.press("Space")
    kept = (atlas.table.label != 1).sum()
    assert int(opened.tab.get_attribute("#chosen", "data-count")) == kept
    assert opened.tab.evaluate("document.activeElement.value") == "1"
    opened.tab.evaluate(f"{MAP}.dispatchAction({{ type: 'legendToggleSelect', name: '1' }})")
    assert opened.tab.is_checked('.key input[value="1"]')
    keys.press("Tab")
    assert opened.tab.evaluate("document.activeElement.id") == "map"


@pytest.mark.law("The numbers of a chart stand below it")
def test_every_number_of_a_chart_is_below_it(opened, atlas):
    for view, charts, tables in (("overview", 1, 1), ("shards", 2, 2), ("training", 1, 1)):
        charted(opened, view, charts)
        opened.until(f"document.querySelectorAll('main .numbers').length === {tables}")
        for summary in opened.tab.query_selector_all(".numbers summary"):
            summary.click()
        opened.until(f"document.querySelectorAll('main .numbers tbody').length === {tables}")
        found = {caption: rest for caption, *rest in opened.tab.evaluate(TABLE)}
        if view == "overview":
            (lines,) = found.values()
            rows = sum(int(cell) for line in lines[1:] for cell in line[1:])
            assert rows == len(atlas.table)
        elif view == "shards":
            assert [len(lines) for lines in found.values()] == [4, 4]
            assert all("%" in cell and " to " in cell for lines in found.values() for cell in lines[1][1:])
        else:
            (lines,) = found.values()
            assert len(lines) == 1 + len(atlas.path)


def test_paper_has_what_the_page_folds(browse, server):
    """Receipts printed closed, and a line of pictures was cut in half."""
    page = browse().open(server.url + "#map")
    page.until("document.querySelectorAll('.cell').length > 8")
    page.tab.focus("#map")
    page.tab.keyboard.press("+")  # the focus is seen
    page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.tab.emulate_media(media="print")
    found = page.tab.evaluate("""(() => {
      const grid = document.getElementById("grid"), { bottom } = grid.getBoundingClientRect();
      const cells = [...grid.querySelectorAll(".cell")].map((cell) => cell.getBoundingClientRect());
      return [cells.filter((at) => at.top < bottom - 3 && at.bottom > bottom + 1).length,
        cells.filter((at) => at.bottom <= bottom + 1).length, grid.nextSibling.textContent];
    })()""")
    assert found[0] == 0
    assert found[2] == f"Pictures 1 to {found[1]} of 59; the page has all."
    assert page.tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"
    assert not page.tab.is_visible("#search")
    page.tab.emulate_media(media="screen")
    page.tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.tab.evaluate("document.getElementById('grid').style.height") == ""
    charted(page, "overview", 1)
    page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.tab.emulate_media(media="print")
    assert page.tab.is_visible(".numbers td")
    assert not page.tab.is_visible(".key input")
    assert page.tab.evaluate("getComputedStyle(document.querySelector('section .chart')).breakInside") == "avoid"
    page.tab.emulate_media(media="screen")
    page.go("ledger")
    page.tab.emulate_media(media="print")
    assert page.tab.locator("pre").bounding_box()["height"] > 100
    assert "not_covered" in page.tab.inner_text("pre")


def test_a_long_table_is_not_printed_and_paper_says_so(browse, server):
    def many(route):
        body = route.fetch().json()
        names = [f"class {k}" for k in range(201)]
        body["report"].update(classes=names, rows_per_class=dict.fromkeys(names, 6))
        route.fulfill(json=body)

    page = browse()
    page.tab.route("**/overview*", many)
    page.open(server.url)
    page.tab.wait_for_selector(".numbers.long")
    page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.tab.emulate_media(media="print")
    assert page.tab.inner_text(".numbers .paper") == "Not printed: 201 lines of 5 columns. The page has them."
    assert page.tab.locator(".numbers td").count() == 0
    page.tab.emulate_media(media="screen")
    page.go("map")
    names = page.tab.locator(".key")
    assert names.bounding_box()["height"] < 120


def test_attention_is_told(browse, server):
    def attended(route):
        body = route.fetch().json()
        share = [0.1] * 5 + [0.4] + [0.1]
        attention = {"grid": [2, 3], "heads": [share[:6], share[1:]], "prefix": [0.1, 0.1]}
        route.fulfill(json=body | {"attention": attention})

    page = browse()
    page.tab.route("**/sample?*", attended)
    page.open(server.url + "#map")
    page.tab.focus("#map")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector(".heads svg")
    said = page.tab.eval_on_selector_all(".heads svg", "(all) => all.map((one) => [one.role, one.ariaLabel])")
    assert said == [["img", f"attention of head {k}, most of it on the patch in row 2 of 2, column {3 - k} of 3"]
                    for k in range(2)]  # fmt: skip
    assert set(page.tab.eval_on_selector_all(".heads img", "(all) => all.map((one) => one.alt)")) <= {""}
