"""The page in a real browser: what it draws, chooses and computes, by mouse and by keyboard, at two sizes."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise

import numpy as np
import pytest

import taftcache
from taftcache import StoreView, write_report
from taftcache.cache.store import FeatureStore
from taftcache.view.server import leading_to
from tests.view.test_contrast import contrast

pytestmark = pytest.mark.slow

CHARTS = {
    "overview": 1,
    "map": 1,
    "check": 0,
    "classes": 1,
    "shards": 2,
    "training": 1,
    "compare": 1,
    "basket": 0,
    "ledger": 0,
}
MAP = "echarts.getInstanceByDom(document.getElementById('map'))"
POINTS = """() => echarts.getInstanceByDom(document.getElementById("map")).getOption().series
  .filter((one) => !["selected", "found"].includes(one.id)).reduce((sum, one) => sum + one.data.length / 2, 0)"""
TOOLTIPS = """() => [...document.querySelectorAll("main [_echarts_instance_]")].map((node) => {
  const [{ renderMode, confine }] = echarts.getInstanceByDom(node).getOption().tooltip;
  return [renderMode, confine];
})"""
# Shows a tooltip over each series of every chart; the texts of all of them.
TOLD = """() => [...document.querySelectorAll("main [_echarts_instance_]")].flatMap((node) => {
  const made = echarts.getInstanceByDom(node);
  return made.getOption().series.map((_, seriesIndex) => {
    made.dispatchAction({ type: "showTip", seriesIndex, dataIndex: 0 });
    return made.getZr().storage.getDisplayList(true).map((one) => one.style.text ?? "").join(" ");
  });
})"""
RINGS = """() => echarts.getInstanceByDom(document.getElementById("map")).getOption().series
  .find((one) => one.id === "found")?.data.length ?? 0"""
PLACES = """() => {
  const made = echarts.getInstanceByDom(document.getElementById("map")), out = [];
  for (const one of made.getOption().series) for (let i = 0; i < one.data.length; i += 2)
    out.push(made.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [one.data[i], one.data[i + 1]]));
  return out;
}"""


def right(page) -> tuple[int, int]:
    shown = page.tab.wait_for_selector("#composed[data-right]")
    return int(shown.get_attribute("data-right")), int(shown.get_attribute("data-rows"))


def evaluated(path, without=()):
    """(right, rows) of the composition by the command line's own pass over the store."""
    with FeatureStore(path) as store:
        report = taftcache.evaluate(store, without=list(without))
    name = "models/mean" if not without else f"mean of {3 - len(without)} of 3 components"
    return round(report.accuracy[name] * report.rows), report.rows


WIDE, NARROW = (1280, 800), (390, 844)


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        (WIDE, "light"),
        (NARROW, "dark"),
        pytest.param(WIDE, "dark", marks=pytest.mark.full),
        pytest.param(NARROW, "light", marks=pytest.mark.full),
    ],
    ids=str,
)
def test_every_view_at_every_size(browse, server, size, scheme):
    page = browse(*size, scheme).open(server.url)
    for view in CHARTS:
        page.go(view)
        assert page.tab.inner_text("h1")
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= size[0], view
        page.until(f"document.querySelectorAll('main [_echarts_instance_]').length == {CHARTS[view]}")
        assert page.tab.evaluate(TOOLTIPS) == [["richText", True]] * CHARTS[view], view
    back = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == (scheme == "dark")


# Whether something on the page reaches over its right edge, or is hidden by a list that scrolls.
CUT = """() => [...document.querySelectorAll("main .scroll, main table, main .chart, main canvas")]
  .filter((n) => n.scrollHeight > n.clientHeight + 2 && n.matches(".scroll")
    || n.getBoundingClientRect().right > innerWidth).map((n) => n.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("scheme", ["dark", pytest.param("light", marks=pytest.mark.full)])
def test_paper_cuts_nothing_off_and_is_white(browse, server, scheme):
    page = browse(*WIDE, scheme).open(server.url)
    for view in CHARTS:
        page.go(view)
        page.until(f"document.querySelectorAll('main [_echarts_instance_]').length == {CHARTS[view]}")
        page.until("!document.querySelector('main progress')")
        page.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.tab.emulate_media(media="print", color_scheme=scheme)
        page.tab.set_viewport_size({"width": 680, "height": 1000})
        assert page.tab.evaluate(CUT) == [], view
        assert not page.tab.is_visible("nav")
        dark = page.tab.evaluate("getComputedStyle(document.querySelector('main h1')).color")
        assert sum(map(int, dark[4:-1].split(","))) < 200
        page.tab.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        page.tab.emulate_media(media="screen", color_scheme=scheme)
        page.tab.evaluate("dispatchEvent(new Event('afterprint'))")


def test_a_view_that_was_left_is_freed(browse, server):
    page = browse().open(server.url)
    tools = page.tab.context.new_cdp_session(page.tab)

    def nodes() -> int:
        for view in ("map", "check", "ledger"):
            page.go(view)
        tools.send("HeapProfiler.collectGarbage")
        return tools.send("Memory.getDOMCounters")["nodes"]

    once = max(nodes() for _ in range(2))
    assert min(nodes() for _ in range(2)) < once + 500


def test_the_arrow_of_a_header_is_not_read_aloud(opened):
    opened.go("overview")
    tools = opened.tab.context.new_cdp_session(opened.tab)
    read = [node["name"]["value"] for node in tools.send("Accessibility.getFullAXTree")["nodes"]
            if node["role"]["value"] == "columnheader" and not node["ignored"]]  # fmt: skip
    assert read[:3] == ["shard", "role", "rows"]


# Of an element's text and ground, as they are drawn: in a reader's own colours a text has a plate behind it, in the
# page's ground, unless it is exempted.
DRAWN = """(query) => { const made = getComputedStyle(document.querySelector(query));
  return { text: made.color, ground: made.backgroundColor, plated: made.forcedColorAdjust !== "none",
    line: made.outlineStyle }; }"""


def test_in_a_readers_own_colours_it_is_seen_what_is_chosen(browse, server):
    page = browse()
    page.tab.emulate_media(forced_colors="active")
    page.open(server.url + "#check")
    pressed, other = (page.tab.evaluate(DRAWN, f'main button[aria-pressed="{state}"]') for state in ("true", "false"))
    assert pressed["ground"] != other["ground"]
    assert not pressed["plated"]
    assert pressed["text"] != pressed["ground"]
    page.tab.click("main tbody button.thumb")
    page.until("document.querySelector('tr[aria-current=true]')")
    assert page.tab.evaluate(DRAWN, 'tr[aria-current="true"]')["line"] == "solid"
    assert page.tab.evaluate(DRAWN, "nav a[aria-current]")["line"] == "solid"
    page.go("map")
    page.tab.click(".cell .name")
    page.tab.wait_for_selector(".cell.open")
    assert page.tab.evaluate(DRAWN, ".cell.open")["line"] == "solid"
    tick = page.tab.evaluate(DRAWN, ".cell.open .tick")
    assert tick["text"] == tick["ground"]  # it is not in the basket
    page.tab.click(".cell.open .tick")
    page.tab.wait_for_selector('.cell.open[aria-selected="true"]')
    tick = page.tab.evaluate(DRAWN, ".cell.open .tick")
    assert not tick["plated"]
    assert tick["text"] != tick["ground"]


def test_a_screen_reader_hands_the_map_its_keys(opened):
    opened.go("map")
    tools = opened.tab.context.new_cdp_session(opened.tab)
    (map_,) = [node for node in tools.send("Accessibility.getFullAXTree")["nodes"]
               if node.get("name", {}).get("value", "").startswith("Map of 59 samples")]  # fmt: skip
    assert map_["role"]["value"] == "application"
    assert "Shift and arrow keys" in map_["description"]["value"]


def test_a_models_long_name_stays_on_a_phone(browse, server):
    name = "eva02_large_patch14_448.mim_m38m_ft_in22k_in1k"
    page = changed(browse(360, 740), model=lambda body: body["report"]["identity"]["backbone"].update(model=name))
    page.open(server.url)
    assert name in page.tab.inner_text("main")
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_map_draws_every_sample_in_every_colour(browse, server, atlas):
    page = browse().open(server.url + "#map")
    for colour in ("class", "shard", "model", "error", "margin", "moved", "norm"):
        page.tab.select_option("#colour", colour)
        assert page.tab.evaluate(POINTS) == len(atlas.table), colour
    page.tab.select_option("#space", "neighbours")
    assert page.tab.evaluate(POINTS) == len(atlas.table)
    page.tab.select_option("#class", "3")
    assert page.tab.evaluate(POINTS) == (atlas.table.label == 3).sum()
    page.tab.select_option("#only", "wrong")
    wrong = (atlas.table.label == 3) & (atlas.classes_by["model"] != 3)
    assert int(page.tab.get_attribute("#chosen", "data-count")) == wrong.sum()
    page.tab.select_option("#only", "")
    found = sum("1" in atlas.table.ids[k] for k in np.flatnonzero(atlas.table.label == 3))
    for text, rings in (("1", found), ("", 0)):
        page.tab.fill("#search", text)
        page.until(f"({RINGS})() === {rings}")  # round what a search has found
    assert found


def test_a_lasso_filters_the_table(browse, server, atlas):
    page = browse().open(server.url + "#map")
    everyone = len(atlas.table)
    assert int(page.tab.get_attribute("#chosen", "data-count")) == everyone
    box = page.tab.locator("#map").bounding_box()
    places = page.tab.evaluate(PLACES)
    xs = sorted(x for x, _ in places)[everyone // 4 : -everyone // 4]
    _, edge = max((b - a, (a + b) / 2) for a, b in pairwise(xs))  # round what is left of a gap near the middle
    top, bottom = 44, box["height"] - 12
    corners = [(12, top), (edge, top), (edge, bottom), (12, bottom)]
    for line in ("half", "whole"):
        page.tab.click("#lasso")
        page.tab.mouse.move(box["x"] + 12, box["y"] + top)
        page.tab.mouse.down()
        if line == "half":
            for x, y in corners[1:3]:
                page.tab.mouse.move(box["x"] + x, box["y"] + y, steps=4)
            page.tab.keyboard.press("Escape")
            page.tab.mouse.up()
            assert page.tab.evaluate(f"{MAP}.getModel().getComponent('brush').areas") == []
    for x, y in [*corners[1:], corners[0]]:
        page.tab.mouse.move(box["x"] + x, box["y"] + y, steps=8)
    page.tab.mouse.up()
    page.until(f"document.getElementById('chosen').dataset.count != '{everyone}'")
    inside = sum(12 < x < edge and top < y < bottom for x, y in places)
    assert int(page.tab.get_attribute("#chosen", "data-count")) == inside < everyone
    assert page.tab.locator("#list tbody tr").count() == inside
    with page.tab.expect_download() as saved:
        page.tab.click("text=Save the ids as a file")
    assert len(saved.value.path().read_text(encoding="utf-8").split()) == inside
    page.tab.click("#clear")
    assert int(page.tab.get_attribute("#chosen", "data-count")) == everyone


def changed(page, **changes):
    """The page asks the server, and gets the overview with parts of it changed."""

    def answer(route):
        body = route.fetch().json()
        for change in changes.values():
            change(body)
        route.fulfill(json=body)

    page.tab.route("**/overview*", answer)
    return page


NAMES = [f"a_dish_of_some_kind_{k:03d}" for k in range(101)]
# [x, y, wide, high, turned] of every class name that a chart draws.
LABELS = """(node) => echarts.getInstanceByDom(node).getZr().storage.getDisplayList(true)
  .filter((one) => one.type === "tspan" && one.style.text.startsWith("a_dish")).map((one) => {
    const r = one.getBoundingRect(), m = one.transform || [1, 0, 0, 1, 0, 0];
    const [x, y] = [r.x, r.y].map((_, k) => m[k] * r.x + m[2 + k] * r.y + m[4 + k]);
    return [x, y, r.width, Math.max(r.height, 12), Math.abs(m[1]) > 0.1];
  })"""


def overprinted(labels) -> list[tuple[list[float], list[float]]]:
    """Pairs of names that touch; turned by 60 degrees, they lie beside one another when far enough apart."""

    def touch(a, b):
        if a[4]:
            return abs(a[0] - b[0]) * 0.866 < a[3]
        return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]

    return [(a, b) for k, a in enumerate(labels) for b in labels[:k] if touch(a, b)]


@pytest.mark.law("An id or a name of a class is text on the page, whatever it holds")
def test_names_are_no_html(browse, server):
    evil = '<b class="evil">'

    def ids(route):
        body = route.fetch().json()
        route.fulfill(json=body | {"ids": [evil + name for name in body["ids"]]})

    def classes(body):
        report = body["report"]
        report["rows_per_class"] = {evil + name: rows for name, rows in report["rows_per_class"].items()}
        report["classes"] = [evil + name for name in report["classes"]]

    page = changed(browse(), classes=classes)
    page.tab.route("**/ids*", ids)
    page.tab.route("**/picture?*", lambda asked: asked.fulfill(body=""))  # the server has none of such an id
    page.open(server.url + "#compare?show=all&rows=all")
    page.tab.wait_for_selector("#margins canvas")
    assert sum(evil + "digits/" in text for text in page.tab.evaluate(TOLD)) >= 2
    for view in ("map", "classes", "overview"):
        page.go(view)
        assert any(evil in text for text in page.tab.evaluate(TOLD)), view
        assert page.tab.locator(".evil").count() == 0, view


@pytest.mark.parametrize("size", [WIDE, pytest.param(NARROW, marks=pytest.mark.full)], ids=str)
def test_a_hundred_names_do_not_overprint(browse, server, size):
    page = changed(
        browse(*size), names=lambda body: body["report"].update(classes=NAMES, rows_per_class=dict.fromkeys(NAMES, 6))
    )
    page.open(server.url)
    for view in ("overview", "classes"):
        page.go(view)
        node = page.tab.wait_for_selector("main .chart[_echarts_instance_]")
        labels = page.tab.evaluate(LABELS, node)
        assert len(labels) > 4
        assert overprinted(labels) == [], view
        assert min(x for x, *_ in labels) >= 0, view


def test_bars_are_the_rows_of_each_class(browse, server, atlas):
    names = ["constructor", "__proto__", "10", "2", "a", "b", "c", "d", "e", "f"]

    def named(body):
        body["report"]["classes"] = names
        for shard in body["report"]["shards"]:
            shard["rows_per_class"] = {names[int(k)]: n for k, n in shard["rows_per_class"].items()}

    page = changed(browse(), names=named).open(server.url)
    node = page.tab.wait_for_selector("main .chart[_echarts_instance_]")
    bars = page.tab.evaluate("(node) => echarts.getInstanceByDom(node).getOption().series.map((x) => x.data)", node)
    table = atlas.table
    assert bars == [np.bincount(table.label[table.shard == k], minlength=10).tolist() for k in range(len(table.shards))]


TEXTS = """(node) => echarts.getInstanceByDom(node).getModel().getComponent("%s", 0).axis.getViewLabels()
  .map((one) => one.formattedLabel)"""


def test_ticks_of_accuracies_that_hardly_differ(browse, server):
    def narrow(body):
        for k, point in enumerate(body["path"]):
            point.update(train=0.984 - 1e-4 * k, held_out=0.972 - 1e-4 * k)

    page = changed(browse(), path=narrow).open(server.url + "#training")
    texts = page.tab.evaluate(TEXTS % "yAxis", page.tab.query_selector_all("main .chart[_echarts_instance_]")[-1])
    assert len(texts) == len(set(texts)) > 1
    ridges = page.tab.evaluate(TEXTS % "xAxis", page.tab.query_selector_all("main .chart[_echarts_instance_]")[-1])
    assert ridges == [f"1e{k:+}" for k in range(-8, 3, 2)]


def test_a_sum_and_what_was_imported_are_called_so(browse, server):
    """A weighted sum was called the mean of the components."""

    def imported(body):
        by_name = {model["name"]: model for model in body["report"]["models"]}
        body["report"]["models"] += [
            {**by_name["models/mean"], "name": "models/weighted", "coefficients": {"a": 0.25, "b": 0.75}},
            {**by_name["models/mean"], "name": "models/other", "coefficients": 2},
            {"name": "components/a", "norm": 1.5, "imported": True},
        ]

    page = changed(browse(), imported=imported).open(server.url + "#training")
    said = page.tab.eval_on_selector_all("main tbody tr", "(rows) => rows.map((row) => row.lastChild.innerText)")
    assert "the mean of 3 components" in said
    sums = ["a weighted sum of 2 components", "a sum of 2 components, each class weighed by its rows"]
    assert said[-3:] == [*sums, "imported, unproven"]


HEADS = {"models/exact": 1e-5}, {"components/000": 1e-3, "components/001": 1e-3, "components/002": 1e-2}


@pytest.mark.parametrize(
    ("heads", "said", "at"),
    [
        (None, "λ = 1e-3, that of the head alone, of all rows", [1e-3]),
        (HEADS[0], "λ = 1e-5, that of the model of all rows", [1e-5]),
        pytest.param(HEADS[1], "λ = 1e-3, that of the 2 components; λ = 1e-2, that of the component 002", [1e-3, 1e-2],
                     marks=pytest.mark.full),
        pytest.param({}, "λ = 1e-3, that of the recipe", [1e-3], marks=pytest.mark.full),
    ],
    ids=["stored", "whole", "components", "none"],
)  # fmt: skip
def test_the_ridge_that_was_chosen_is_marked(browse, server, heads, said, at):
    page = changed(browse(), heads=lambda body: heads is None or body.update(head_ridges=heads))
    page.open(server.url + "#training")
    assert page.tab.inner_text("#ridges") == f"Marked: {said}."
    node = page.tab.query_selector_all("main .chart[_echarts_instance_]")[-1]
    series = page.tab.evaluate("(node) => echarts.getInstanceByDom(node).getOption().series.map((x) => x.data)", node)
    assert [line[0][0] for line in series[2:]] == at


# [row of the class, column of the prediction, colour] of every cell of the confusion, and what stands along it.
CELLS = """(node) => { const made = echarts.getInstanceByDom(node), found = [];
  for (const one of made.getModel().getSeries()) for (let k = 0; k < one.getData().count(); k++)
    found.push([one.getData().get("y", k), one.getData().get("x", k), one.getData().getItemVisual(k, "style").fill]);
  return found; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_row_of_the_confusion_is_seen(browse, server, atlas, scheme):
    page = browse(400, 844, scheme)

    def answer(route):  # of a class with many rows, one that is taken for another, and a class with more of them
        body = route.fetch().json()
        y, p = np.repeat(np.arange(10, dtype="<i4"), 40), np.repeat(np.arange(10, dtype="<i4"), 40)
        p[0], p[40:50] = 9, 0
        labels, models = body["labels"], body["models"]
        for packed, array in ((labels, y), (models["models/exact"], p)):
            packed["data"] = base64.b64encode(array.tobytes()).decode()
        route.fulfill(json={**body, "models": {"models/exact": models["models/exact"]}, "components": []})

    page.tab.route("**/held-out*", answer)
    page.open(server.url + "#classes")
    node = page.tab.wait_for_selector("main .chart[_echarts_instance_]")
    cells = {(y, p): hexed(colour) for y, p, colour in page.tab.evaluate(CELLS, node)}
    assert len(cells) == 12
    back = hexed(page.tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    one, ten, right = cells[0, 9], cells[1, 0], cells[2, 2]
    assert contrast(one, back) > 1.2
    assert contrast(ten, back) > contrast(one, back)
    assert min(far(one, right), far(ten, right)) > 60  # what is wrong has another hue
    option = page.tab.evaluate("(node) => { const o = echarts.getInstanceByDom(node).getOption();"
                               "return [o.xAxis[0].name, o.yAxis[0].name]; }", node)  # fmt: skip
    assert option == ["predicted", "class"]


def hexed(colour: str) -> str:
    parts = re.findall(r"[\d.]+", colour)[:3]
    return colour if colour.startswith("#") else "#" + "".join(f"{round(float(v)):02x}" for v in parts)


def far(a: str, b: str) -> float:
    pairs = [(int(a[k : k + 2], 16), int(b[k : k + 2], 16)) for k in (1, 3, 5)]
    return sum((x - y) ** 2 for x, y in pairs) ** 0.5


@pytest.mark.parametrize(("top", "step"), [(1, 0.0033), (1, 0), (0.9815, 0)])
def test_no_tick_is_beyond_all_rows(browse, server, top, step):
    """Nor is half of the chart empty where a curve is level."""

    def steep(body):
        for k, point in enumerate(body["path"]):
            point.update(train=top - step * k, held_out=top - step * k)

    page = changed(browse(), path=steep).open(server.url + "#training")
    texts = page.tab.evaluate(TEXTS % "yAxis", page.tab.query_selector_all("main .chart[_echarts_instance_]")[-1])
    assert max(float(text.rstrip(" %")) for text in texts if text) <= 100
    assert texts.count("") < 2


def test_a_part_of_the_held_out_rows_is_said_and_classes_without_one_come_last(browse, server, atlas):
    page = browse()

    def answer(route):
        body = route.fetch().json()
        labels = np.full(atlas.held_out.of, 3, "<i4")
        body["of"] = 12_345
        body["labels"]["data"] = base64.b64encode(labels.tobytes()).decode()
        route.fulfill(json=body)

    page.tab.route("**/held-out*", answer)
    page.open(server.url)
    rows = f"{atlas.held_out.of} held-out rows, spread over all 12,345,"
    assert rows in page.tab.inner_text("#best")
    page.go("check")
    page.tab.click('button[data-name="confused"]')
    assert rows in page.tab.inner_text("#check")
    page.go("classes")
    first = page.tab.inner_text(
        'table[aria-label="Accuracy of each class by model"] tbody tr:first-child td:first-child'
    )
    assert first == "3"


@pytest.mark.parametrize("explained", [(0.15, 0.04), pytest.param((0.15, 0.06), marks=pytest.mark.full)], ids=str)
def test_the_map_opens_on_neighbours_where_axes_say_little(browse, server, explained):
    page = changed(browse(), axes=lambda body: body.update(explained=explained)).open(server.url + "#map")
    few = sum(explained) < 0.2
    page.until(f"document.getElementById('axes').textContent.includes('{'t-SNE' if few else 'principal'}')")
    assert page.tab.input_value("#space") == ("neighbours" if few else "pca")
    page.tab.select_option("#space", "pca")
    assert "of the variance" in page.tab.inner_text("#axes")


def test_one_is_no_plural(opened):
    page = opened
    page.go("overview")
    assert "1\nledger entry" in page.tab.inner_text("main .cards")
    assert "Forgotten: 1 id by 1 receipt; 1 tombstone." in page.tab.inner_text("main")
    page.go("ledger")
    assert "1 entry in one chain" in page.tab.inner_text("main")
    assert ": 1 id forgotten" in page.tab.inner_text("main summary >> nth=0")


@pytest.mark.law("What the page's map hides is not selected")
def test_a_class_hidden_in_the_legend_is_not_selected(browse, server, atlas):
    page = browse().open(server.url + "#map")
    shown = [atlas.table.ids[k] for k in (atlas.table.label != 3).nonzero()[0]]
    page.tab.evaluate(f"""{MAP}.dispatchAction({{ type: "legendToggleSelect", name: "3" }})""")
    assert int(page.tab.get_attribute("#chosen", "data-count")) == len(shown)
    assert "1 hidden in the legend" in page.tab.inner_text("#chosen")
    page.tab.fill("#search", "digits")  # what is drawn anew hides the same
    with page.tab.expect_download() as saved:
        page.tab.click("text=Save the ids as a file")
    assert saved.value.path().read_text(encoding="utf-8").split() == shown
    page.tab.click("#clear")
    assert int(page.tab.get_attribute("#chosen", "data-count")) == len(atlas.table)
    page.tab.evaluate(f"""{MAP}.dispatchAction({{ type: "legendToggleSelect", name: "3" }})""")
    page.tab.select_option("#colour", "model")  # the names of another colour's groups
    assert int(page.tab.get_attribute("#chosen", "data-count")) == len(atlas.table)


@pytest.mark.law("Accuracies on the page are those of the command line")
def test_the_sliders_accuracy_is_the_command_lines(opened, seen):
    page = opened
    page.go("shards")
    assert right(page) == evaluated(seen)
    for count, out in ((1, ["002"]), (2, ["001", "002"])):
        page.tab.fill("#subtract", str(count))
        page.until(f"document.getElementById('composed').textContent.includes('mean of {3 - count} of')")
        assert right(page) == evaluated(seen, out)
    page.tab.check("input[value='002']")
    page.tab.uncheck("input[value='000']")
    page.composed(1)
    assert right(page) == evaluated(seen, ["000", "001"])


@pytest.mark.law("Accuracies on the page are those of the command line")
def test_accuracies_have_their_intervals(opened, seen):
    with FeatureStore(seen) as store:
        report = taftcache.evaluate(store)
    said = {name: (f"{100 * report.accuracy[name]:.2f} %", *(f"{100 * v:.1f} %" for v in interval))
            for name, interval in report.intervals.items()}  # fmt: skip
    page = opened
    page.go("overview")
    text = page.tab.inner_text("#best")
    assert all(part in text for part in said["models/exact"]), text
    assert "model of all rows" in text  # as a run says
    page.go("classes")
    assert page.tab.input_value("#model") == "models/exact"
    for name in ("models/exact", "components/001"):
        page.tab.select_option("#model", name)
        text = page.tab.inner_text("#main p")
        assert all(part in text for part in said[name]), text
    page.go("shards")
    page.until("document.querySelectorAll('main [_echarts_instance_]').length == 2")
    alone = page.tab.evaluate("""echarts.getInstanceByDom(document.getElementById("alone")).getOption()
      .series.map((one) => [one.type, one.data])""")
    assert [kind for kind, _ in alone] == ["custom", "custom"]
    for k, (_, *found) in enumerate(alone[0][1]):
        name = f"components/{k:03d}"
        assert found == pytest.approx([report.accuracy[name], *report.intervals[name]])


def test_a_sample_is_shown_whole(browse, server, atlas):
    row = int((~atlas.table.held_out).argmax())
    page = browse().open(server.url + "#map/" + atlas.table.ids[row].replace("/", "%2F"))
    side = page.tab.locator("aside.side")
    side.locator("img.picture").wait_for()
    assert atlas.table.ids[row] in side.inner_text()
    assert side.locator(".heads figure").count() == 3
    assert side.locator(".heads rect").count() == 3 * 64
    assert side.locator(".near button").count() == 8
    table = side.locator("table").first
    marked = [text for text in table.locator("tr").all_inner_texts() if "trained on this row" in text]
    own = f"component {atlas.table.shards[atlas.table.shard[row]].name}"
    whose = {text.split("\t")[0].strip() for text in marked}
    assert whose == {own, "mean of the components", "model of all rows", "head alone, of all rows"}
    assert table.evaluate("(t) => t.offsetWidth <= t.parentElement.clientWidth"), "the margins are in sight"
    page.tab.click("#solve")
    page.tab.wait_for_selector("#leave >> text=Solved in")
    before = side.locator("h2").inner_text()
    side.locator(".near button").first.click()
    page.until(f"document.querySelector('aside h2').textContent !== {json.dumps(before)}")


def test_by_keyboard_alone(browse, server, atlas, seen):
    page = browse().open(server.url)
    keys = page.tab.keyboard

    def tab_to(selector: str) -> None:
        for _ in range(60):
            keys.press("Tab")
            if page.tab.evaluate("(s) => document.activeElement.matches(s)", selector):
                return
        pytest.fail(f"{selector} is not reached by Tab")

    tab_to(".skip")
    tab_to('nav a[href="#map"]')
    keys.press("Enter")
    page.tab.wait_for_selector('main[data-view="map"]')
    tab_to("#colour")
    keys.press("ArrowDown")
    tab_to("#search")
    wanted = atlas.table.ids[5]
    keys.type(wanted)
    page.until("document.getElementById('chosen').dataset.count == '1'")
    keys.press("Enter")
    page.tab.wait_for_selector(f"aside h2 >> text={wanted}")
    tab_to("#clear")
    keys.press("Enter")
    tab_to("#map")
    zoom = f"JSON.stringify({MAP}.getOption().dataZoom.map((z) => [z.start, z.end]))"
    whole = page.tab.evaluate(zoom)
    keys.press("+")
    closer = page.tab.evaluate(zoom)
    keys.press("ArrowLeft")
    assert len({whole, closer, page.tab.evaluate(zoom)}) == 3
    keys.press("0")
    assert page.tab.evaluate(zoom) == whole
    tab_to("#list button.link")
    keys.press("Enter")
    page.go("shards")
    tab_to("#subtract")
    keys.press("ArrowRight")
    page.composed(2)
    assert right(page) == evaluated(seen, ["002"])
    tab_to("input[value='000']")
    keys.press("Space")
    page.composed(1)
    assert right(page) == evaluated(seen, ["000", "002"])


@pytest.mark.parametrize("logits", ["all", pytest.param("none", marks=pytest.mark.full)])
def test_a_report_shows_the_same_without_a_server(browse, seen, atlas, tmp_path, logits, monkeypatch):
    if logits == "none":
        monkeypatch.setattr("taftcache.view.report.LOGIT_BYTES", 0)
    with FeatureStore(seen) as store:
        written = write_report(store, tmp_path / "report.html", neighbours=False)
    page = browse().open(f"file://{tmp_path}/report.html", done=False)
    page.go("map")
    assert page.tab.evaluate(POINTS) == len(atlas.table)
    said = page.tab.inner_text("#no-pictures")
    assert re.fullmatch(r"No grid of pictures: a report .* \d+ samples .* shows all\.", said)
    page.tab.fill("#search", written.details[0])
    page.tab.press("#search", "Enter")
    page.tab.wait_for_selector("aside .heads figure")
    page.go("shards")
    assert right(page) == evaluated(seen)
    page.tab.fill("#subtract", "2")
    page.composed(1)
    assert right(page) == evaluated(seen, ["001", "002"])
    for view in ("check", "classes", "training", "ledger", "overview"):
        page.go(view)
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []


def test_a_panel_in_a_notebook(browse, seen, atlas, tmp_path):
    with FeatureStore(seen) as store:
        view = StoreView(store)
    cell = view.panel("map")._repr_html_()
    assert len(cell) < 1_100_000
    (tmp_path / "cell.html").write_text(f"<!doctype html>{cell}")
    page = browse()
    page.tab.goto(f"file://{tmp_path}/cell.html")
    frame = page.tab.frame_locator("iframe")
    frame.locator("#chosen").wait_for()
    assert frame.locator("#map").get_attribute("data-points") == str(len(atlas.table))
    assert not frame.locator("header").is_visible()


def test_the_file_that_a_browser_is_started_with_leads_to_the_page(browse, server):
    with leading_to(server.url) as file:
        page = browse()
        page.tab.goto(file.as_uri())
        page.tab.wait_for_url(server.url)
        page.tab.wait_for_selector("body[data-ready]", timeout=120_000)
