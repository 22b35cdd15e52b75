"""What the page shows is reached by keyboard in few steps, is followed where it goes, and is not cut off in silence."""

from __future__ import annotations

import json

import pytest

from tests.view.test_browser import MAP, NARROW
from tests.view.test_workbench import column

pytestmark = pytest.mark.slow

# Where the ring of the chosen sample stands, in parts of the map's width and height.
RING = f"""(() => {{
  const made = {MAP}, box = made.getModel().getComponent("grid").coordinateSystem.getRect();
  const [at] = made.getOption().series.find((one) => one.id === "selected").data;
  const [x, y] = made.convertToPixel({{ xAxisIndex: 0, yAxisIndex: 0 }}, at);
  return [(x - box.x) / box.width, (y - box.y) / box.height];
}})()"""
ZOOM = f"{MAP}.getOption().dataZoom.map((z) => z.end - z.start)"
FOCUSED = "(s) => document.activeElement.matches(s)"
# Of each view that has one, a table that no font makes as narrow as 400 px.
WIDE_TABLES = {
    "overview": "Shards",
    "map": "Samples",
    "check": "Suspected labels",
    "classes": "Accuracy of each class by model",
    "training": "Certificates",
    "compare": "Samples compared",
}
# Of every table's region: the headers that are not wholly in sight, and what is shown below; null until the table of a
# caption is there, for which some views ask the server, and each region says what it hides, a frame after its layout.
HIDDEN = """(() => {
  const found = [...document.querySelectorAll("main .scroll")].map((region) => {
    const { left, right } = region.getBoundingClientRect();
    const heads = [...region.querySelectorAll("th")].filter((head) => {
      const at = head.getBoundingClientRect();
      return at.left < left - 1 || at.right > right + 1;
    });
    const said = heads.map((head) => head.textContent || "…").join(", ") + (heads.length ? " →" : "");
    const shown = getComputedStyle(region, "::after").content;
    return [region.getAttribute("aria-label"), said, region.dataset.hidden ?? "", shown];
  });
  const there = found.some(([caption]) => caption === %s);
  return there && found.every(([, said, hidden]) => said === hidden) ? found : null;
})()"""


def steps_to(page, selector: str, key: str = "Tab") -> int:
    for step in range(1, 100):
        page.tab.keyboard.press(key)
        if page.tab.evaluate(FOCUSED, selector):
            return step
    raise AssertionError(f"{selector} is not reached by {key}")


def test_tab_stops_at_one_line_of_a_table(browse, server, atlas):
    """From the map to the basket were as many steps as samples."""
    page = browse().open(server.url + "#map")
    keys, every = page.tab.keyboard, len(atlas.table)
    assert every > 40
    page.tab.focus("#map")
    assert steps_to(page, "#list #put") < 20
    assert steps_to(page, "#list tbody button", "Shift+Tab") == 2
    for key, line in (("ArrowDown", 1), ("End", every - 1), ("ArrowUp", every - 2), ("Home", 0), ("ArrowDown", 1)):
        keys.press(key)
        here = page.tab.evaluate("document.activeElement.closest('tr').rowIndex - 1")
        assert here == line, key
    keys.press("Control+End")
    assert page.tab.evaluate("document.activeElement.closest('tr').rowIndex - 1") == 1  # the browser's own
    assert steps_to(page, "#list #put") == 2
    assert steps_to(page, "#list tbody button", "Shift+Tab") == 2
    assert page.tab.evaluate("document.activeElement.closest('tr').rowIndex - 1") == 1  # where it was left
    page.tab.click('#list th >> text="margin"')
    assert page.tab.locator('#list tbody button[tabindex="0"]').count() == 1
    page.go("check")
    page.tab.wait_for_selector("#check tbody tr")
    page.tab.focus("#check tbody tr >> nth=0 >> input")
    keys.press("ArrowDown")
    assert page.tab.evaluate(FOCUSED, "#check tbody tr:nth-child(2) input")  # the same control of the next line


def test_the_map_and_the_table_go_after_the_sample(browse, server):
    page = browse().open(server.url + "#map")
    keys = page.tab.keyboard
    page.tab.focus("#map")
    for _ in range(5):
        keys.press("+")
    keys.press("Enter")
    page.tab.wait_for_selector("aside h2")
    span, ids, passed = page.tab.evaluate(ZOOM), {page.tab.get_attribute("aside", "data-sample")}, 0
    for way in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown"):
        for _ in range(4):
            before = page.tab.evaluate(f"JSON.stringify({MAP}.getOption().dataZoom.map((z) => z.start))")
            keys.press("Shift+" + way)
            assert all(-0.01 <= part <= 1.01 for part in page.tab.evaluate(RING)), way
            passed += before != page.tab.evaluate(f"JSON.stringify({MAP}.getOption().dataZoom.map((z) => z.start))")
            ids.add(page.tab.get_attribute("aside", "data-sample"))
    assert passed > 1
    assert len(ids) > 4
    assert page.tab.evaluate(ZOOM) == pytest.approx(span)
    last = column(page, "Samples", 1)[-1]
    page.tab.goto(server.url + "#map/" + last.replace("/", "%2F"))
    page.tab.wait_for_selector("aside h2")
    line = page.tab.locator('#list tr[aria-current="true"]')
    assert line.locator("button").inner_text() == last
    assert page.tab.evaluate("""() => { const [line, region] = [document.querySelector('#list tr[aria-current="true"]'),
      document.querySelector("#list .tall")].map((node) => node.getBoundingClientRect());
      return line.top >= region.top && line.bottom <= region.bottom + 1; }""")


def test_a_step_from_sample_to_sample_leaves_the_map_in_the_window(browse, server):
    page = browse(*NARROW)
    page.tab.emulate_media(reduced_motion="reduce")  # so that it scrolls at once
    page.open(server.url + "#map")
    page.tab.focus("#map")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("aside .near button")
    page.until("document.querySelector('aside').getBoundingClientRect().top < innerHeight")
    page.tab.evaluate("document.getElementById('map').scrollIntoView()")
    at, first = page.tab.evaluate("scrollY"), page.tab.inner_text("aside h2")
    for _ in range(20):
        page.tab.keyboard.press("Shift+ArrowLeft")
        page.tab.keyboard.press("Shift+ArrowUp")
    page.until(f"document.querySelector('aside h2').textContent !== {json.dumps(first)}")
    page.tab.wait_for_selector("aside .near button")
    assert page.tab.evaluate("scrollY") == at


@pytest.mark.law("A table names the columns that the window has no room for")
def test_no_column_is_cut_off_in_silence(browse, server):
    page = browse(400, 844).open(server.url)
    for view, wide in WIDE_TABLES.items():
        page.go(view)
        found = page.until(HIDDEN % json.dumps(wide))
        assert [said for caption, said, *_ in found if caption == wide] != [""], view
        for _, said, _, shown in found:
            assert shown == (f'"More columns, to the side: {said}"' if said else "none"), view
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= 400, view
    page.go("overview")
    region = page.tab.locator("main .scroll").first
    region.evaluate("(node) => (node.scrollLeft = 1e6)")
    page.until("document.querySelector('main .scroll').dataset.hidden.startsWith('← shard')")
    assert "→" not in region.get_attribute("data-hidden")
    page.tab.set_viewport_size({"width": 1400, "height": 844})
    page.until("document.querySelector('main .scroll').dataset.hidden === undefined")
