"""From looking to doing in a real browser: what is clicked is filtered, what is chosen is kept, what is put aside is
priced, and two models are compared."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections import Counter

import numpy as np
import pytest

from taftcache import write_report
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.view.atlas import Atlas
from taftcache.view.server import ViewServer
from tests.view.test_browser import MAP, NARROW, POINTS

pytestmark = pytest.mark.slow

CELL = """(node, y, p) => {
  const made = echarts.getInstanceByDom(document.querySelector("main .chart"));
  return made.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [p, y]);
}"""


def listed(page) -> int:
    return int(page.tab.get_attribute("#chosen", "data-count"))


def column(page, table: str, k: int) -> list[str]:
    """The texts of a table's column, as they are shown."""
    return page.tab.locator(f'table[aria-label="{table}"] tbody td:nth-child({k})').all_inner_texts()


def saved_ids(page, button: str = "text=Save the ids as a file") -> list[str]:
    with page.tab.expect_download() as saved:
        page.tab.click(button)
    return saved.value.path().read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.law("A cell of the page's confusion lists the samples that it counts")
@pytest.mark.parametrize("model", ["components/001", pytest.param("models/exact", marks=pytest.mark.full)])
def test_a_cell_shows_its_samples(browse, server, atlas, model):
    page = browse().open(server.url + "#classes")
    page.tab.select_option("#model", model)
    kept = atlas.held_out
    said = kept.others.get(model)
    if said is None:
        said = (kept.base + kept.tangents[kept.components.index(model)]).argmax(1)
    k = int(np.flatnonzero(said != kept.labels)[0])
    y, p = int(kept.labels[k]), int(said[k])
    want = [atlas.table.ids[atlas.table.start(3) + row] for row in kept.rows[(kept.labels == y) & (said == p)]]
    x, top = page.tab.evaluate(f"({CELL})(null, {y}, {p})")
    page.tab.locator("main .chart").first.click(position={"x": x, "y": top})
    page.tab.wait_for_selector('main[data-view="map"]')
    assert saved_ids(page) == want
    assert ("as component 001 says" in page.tab.inner_text("#chosen")) == (model != "models/exact")
    heads = page.tab.locator("table[aria-label='Samples'] th").all_inner_texts()
    assert heads[3] == ("prediction" if model == "models/exact" else "prediction of component 001")
    assert ("margin" in heads) == (model == "models/exact")  # the default model's is none of it
    assert column(page, "Samples", 4) == [f"✗ {p}"] * len(want)
    assert page.tab.locator(".cell .name:nth-of-type(4)").all_inner_texts() == [f"✗ {p}"] * len(want)
    whose = {
        "models/exact": "the store's best model: model of all rows",
        "components/001": "chosen under Classes: component 001.",
    }
    assert whose[model] in page.tab.inner_text("#whose")
    page.tab.select_option("#colour", "error")
    assert page.tab.evaluate(f"{MAP}.getOption().series.map((one) => one.name)") == ["wrong"]
    page.tab.click("#clear")
    assert "the store's best model: model of all rows" in page.tab.inner_text("#whose")
    page.tab.go_back()
    page.tab.wait_for_selector('main[data-view="classes"]')
    assert page.tab.input_value("#model") == model


def test_rows_of_a_shard_that_changed_since_are_perhaps_trained_on(browse, server, atlas):
    def changed(route):
        body = route.fetch().json()
        body["trained"]["models/exact"]["001"] = "perhaps"
        del body["trained"]["models/exact"]["002"]
        route.fulfill(json=body)

    page = browse()
    page.tab.route("**/overview*", changed)
    page.open(server.url + "#map?colour=error")
    table, right = atlas.table, atlas.classes_by["model"] == atlas.table.label
    groups = page.tab.evaluate(f"{MAP}.getOption().series.map((one) => [one.name, one.data.length / 2])")
    marks = {0: "trained on, ", 1: "perhaps trained on, ", 2: "", 3: ""}
    names = [marks[shard] + (("its label" if ok else "another label") if shard < 2 else ("right" if ok else "wrong"))
             for shard, ok in zip(table.shard, right, strict=True)]  # fmt: skip
    assert dict(groups) == Counter(names)
    for shard, mark in (("000", " trained on this row"), ("001", " perhaps trained on this row"), ("002", "")):
        page.tab.select_option("#shard", label=shard)
        said = column(page, "Samples", 4)
        assert all(re.sub(r"^([✓✗] )?\d", "", text) == mark for text in said), shard
        assert any("✓" in text for text in said) == (not mark)
    assert "1 shard (001) has changed since it was trained" in page.tab.inner_text("#worth")
    sample = table.ids[int((table.shard == 1).argmax())]
    page.tab.goto(server.url + "#map/" + sample.replace("/", "%2F"))
    page.tab.wait_for_selector("aside table")
    (line,) = [text for text in page.tab.locator("aside tr").all_inner_texts() if text.startswith("model of all rows")]
    assert "perhaps trained on this row" in line
    meaning = "nothing says which rows the model saw"
    assert meaning in page.tab.inner_text("aside")

    def perhaps(route):
        body = route.fetch().json()
        if body["state"] == "done":
            body["before"]["trained"]["data"] = base64.b64encode(bytes([2] * len(table))).decode()
        route.fulfill(json=body)

    page.tab.route("**/compare?*", perhaps)
    page.go("compare")
    page.tab.wait_for_selector("#changes")
    assert meaning in page.tab.inner_text("main")


@pytest.mark.full
def test_bars_classes_and_shards_filter(browse, server, atlas):
    page = browse().open(server.url)
    page.tab.click('table[aria-label="Shards"] >> text="001"')
    page.tab.wait_for_selector('main[data-view="map"]')
    assert listed(page) == (atlas.table.shard == 1).sum()
    page.go("classes")
    page.tab.click('table[aria-label="Accuracy of each class by model"] button.link >> text="7"')
    page.tab.wait_for_selector('main[data-view="map"]')
    assert listed(page) == (atlas.table.label == 7).sum()


@pytest.mark.law("What was chosen on the page comes back with its address")
def test_reload_and_back_restore_what_was_chosen(browse, server, atlas):
    page = browse().open(server.url + "#map")
    page.tab.select_option("#class", "3")
    page.tab.select_option("#colour", "shard")
    page.tab.select_option("#space", "neighbours")
    page.tab.click('th >> text="margin"')
    page.tab.fill("#search", "digits/0")
    page.tab.press("#search", "Enter")
    page.tab.wait_for_selector("aside h2")
    page.tab.click("#put")
    before = (page.tab.inner_text("aside h2"), listed(page), column(page, "Samples", 5))
    margins = [float(text) for text in before[2]]
    assert margins == sorted(margins, reverse=True)
    assert before[0] == column(page, "Samples", 1)[0]
    address = page.tab.url

    def same() -> None:
        assert page.tab.input_value("#class") == "3"
        assert page.tab.input_value("#colour") == "shard"
        assert page.tab.input_value("#space") == "neighbours"
        assert page.tab.input_value("#search") == "digits/0"
        assert (page.tab.inner_text("aside h2"), listed(page), column(page, "Samples", 5)) == before
        assert f"({before[1]})" in page.tab.inner_text("nav")

    page.tab.reload()
    page.tab.wait_for_selector("body[data-done]")
    same()
    page.go("shards")
    page.tab.fill("#subtract", "1")
    page.composed(2)
    page.go("map")
    page.tab.click("#clear")
    assert listed(page) == len(atlas.table)
    page.tab.go_back()
    page.composed(2)
    page.tab.go_back()
    page.tab.wait_for_selector('main[data-view="map"]')
    same()
    other = browse().open(address)  # another tab
    assert (other.tab.inner_text("aside h2"), listed(other), column(other, "Samples", 5)) == before


@pytest.mark.law("What was chosen on the page comes back with its address")
def test_a_long_basket_stays_in_the_tab(browse, server, atlas):
    page, table = browse(), atlas.table

    def answer(route):
        body = route.fetch().json()
        route.fulfill(json={**body, "ids": [name + "x" * 500 for name in body["ids"]]})

    page.tab.route("**/ids*", answer)
    page.tab.route("**/pictures*", lambda asked: asked.fulfill(json={"why_not": "no image has such an id"}))
    page.open(server.url + "#map")
    page.tab.select_option("#class", "3")
    page.tab.click("#put")
    page.go("basket")
    count = (table.label == 3).sum()
    assert count * 500 > 2000 > len(page.tab.url)
    assert "stays in this tab" in page.tab.inner_text("main")
    page.tab.reload()
    page.tab.wait_for_selector("body[data-done]")
    assert f"{count} samples" in page.tab.inner_text("main")
    assert page.tab.inner_text("#count") == f" ({count})"
    other = browse()
    other.tab.route("**/ids*", answer)
    other.tab.route("**/pictures*", lambda asked: asked.fulfill(json={"why_not": "no image has such an id"}))
    other.open(page.tab.url)
    for _ in range(2):
        assert other.tab.inner_text("#lost") == "Too long for the address, and not in this tab: the basket."
        assert "it stayed in the tab where it was filled" in other.tab.inner_text("main")
        assert "Empty" not in other.tab.inner_text("main")
        other.go("map")
        assert not other.tab.query_selector("#lost")
        other.go("basket")
        other.tab.reload()
        other.tab.wait_for_selector("body[data-done]")
    other.go("map")
    other.tab.click("#put")
    other.tab.click("#empty")
    other.go("basket")
    assert "Empty" in other.tab.inner_text("main")


def test_a_basket_that_no_browser_keeps_says_so(browse, server):
    page = browse()

    def answer(route):
        body = route.fetch().json()
        route.fulfill(json={**body, "ids": [name + "x" * 500 for name in body["ids"]]})

    page.tab.route("**/ids*", answer)
    page.tab.route("**/pictures*", lambda asked: asked.fulfill(json={"why_not": "no image has such an id"}))
    page.tab.add_init_script("Storage.prototype.setItem = () => { throw new Error('full'); };")
    page.open(server.url + "#map?class=3")
    page.tab.click("#put")
    page.go("basket")
    assert "it goes when the page is loaded again, so save the ids" in page.tab.inner_text("main")
    page.tab.reload()
    page.tab.wait_for_selector("body[data-done]")
    assert "the basket" in page.tab.inner_text("#lost")


@pytest.mark.law("The page's basket prints the command that forgets it")
def test_a_basket_is_priced_and_its_command_runs(browse, server, atlas, seen, capsys):
    page = browse().open(server.url + "#map")
    row = int((~atlas.table.held_out).argmax())
    page.tab.fill("#search", atlas.table.ids[row])
    page.tab.press("#search", "Enter")
    page.tab.click('aside >> text="Put in the basket"')
    page.go("basket")
    text = page.tab.inner_text("#command")
    assert text == f"taftcache forget {shlex.quote(str(seen))} --sample {atlas.table.ids[row]}"
    page.tab.wait_for_selector("#cost h2")
    cost = page.tab.inner_text("#cost")
    assert f"{(atlas.table.shard == 0).sum() - 1} rows are written again" in cost
    page.tab.click("#solve-many")
    page.tab.wait_for_selector("#change table")
    change = page.tab.inner_text("#change")
    assert re.search(r"accuracy .* points, 95 % interval .*: (better|worse|within noise)", change)
    assert "is another: model of all rows" in change
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(text)[1:], "--dry-run", "--json"])
    assert not ended.value.code
    said = json.loads(capsys.readouterr().out)
    assert said["forgotten"] == [atlas.table.ids[row]]
    assert sum(said["passes"].values()) == int(re.search(r"took (\d+) passes", cost)[1])
    page.tab.click("text=take out")
    assert "Empty" in page.tab.inner_text("main")
    assert page.tab.inner_text("#count") == ""


def test_a_mean_of_what_stays_takes_no_solve(browse, server):
    """Private components stay as they are: their solves were said to have taken 0 passes."""
    page = browse()

    def answer(route):
        found = {**route.fetch().json(), "renewed": ["models/mean"], "passes": {}, "notes": ["components/000: kept"]}
        route.fulfill(json=found)

    page.tab.route("**/cost*", answer)
    page.open(server.url + "#map")
    page.tab.locator("#list button.link").first.click()
    page.tab.click('aside >> text="Put in the basket"')
    page.go("basket")
    page.tab.wait_for_selector("#cost h2")
    cost = page.tab.inner_text("#cost")
    assert "Made again: mean of the components. That takes no solve." in cost
    assert "Note: components/000: kept." in cost
    assert "0 passes" not in cost


@pytest.mark.full
def test_a_quoted_command(browse, server):
    page = changed_store(browse(), "it's a store").open(server.url + "#map")
    page.tab.locator("#list button.link").first.click()
    page.tab.click('aside >> text="Put in the basket"')
    page.go("basket")
    assert shlex.split(page.tab.inner_text("#command"))[2] == "it's a store"


def changed_store(page, name):
    def answer(route):
        body = route.fetch().json()
        body["report"]["store"] = name
        route.fulfill(json=body)

    page.tab.route("**/overview*", answer)
    return page


def test_headers_sort_every_table(opened):
    page = opened
    page.go("overview")
    shards = 'table[aria-label="Shards"]'
    first = column(page, "Shards", 3)
    page.tab.focus(f'{shards} th >> text="rows"')
    page.tab.keyboard.press("Enter")
    assert page.tab.get_attribute(f"{shards} th:nth-child(3)", "aria-sort") == "descending"
    counts = [int(text) for text in column(page, "Shards", 3)]
    assert counts == sorted(counts, reverse=True)
    page.tab.keyboard.press("Enter")
    assert [int(text) for text in column(page, "Shards", 3)] == sorted(counts)
    page.tab.keyboard.press("Enter")
    assert column(page, "Shards", 3) == first
    for view in ("classes", "training", "compare"):
        page.go(view)
        page.tab.wait_for_selector("main table")
        assert page.tab.locator("main th:not(:has(button.sort))").count() == 0, view


@pytest.mark.full
def test_a_search_redraws_the_table_alone_and_once(browse, server, atlas):
    page = browse().open(server.url + "#map")
    page.tab.evaluate(f"""() => {{
        window.drawn = 0;
        {MAP}.on("rendered", () => window.drawn++);
        window.filled = 0;
        const list = document.getElementById("list");
        new MutationObserver(() => window.filled++).observe(list, {{ childList: true, subtree: true }});
    }}""")
    page.tab.locator("#search").press_sequentially(atlas.table.ids[4], delay=5)
    page.until("document.getElementById('chosen').dataset.count == '1'")
    assert page.tab.evaluate("[window.drawn, window.filled]") == [1, 1]  # once, the rings
    assert page.tab.evaluate(POINTS) == len(atlas.table)


@pytest.mark.full
def test_map_and_table_by_keyboard(browse, server):
    page = browse().open(server.url + "#map")
    keys = page.tab.keyboard
    page.tab.focus("#map")
    keys.press("Enter")
    page.tab.wait_for_selector("aside h2")
    first = page.tab.inner_text("aside h2")
    page.tab.focus("#map")
    keys.press("Shift+ArrowRight")
    page.until(f"document.querySelector('aside h2').textContent !== {json.dumps(first)}")
    before = page.tab.evaluate("document.querySelector('aside').dataset.sample")
    assert before != first
    page.tab.locator("#list button.link").first.focus()
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    keys.press("ArrowUp")
    keys.press("Enter")
    assert page.tab.inner_text("aside h2") == column(page, "Samples", 1)[1]


def test_an_address_keeps_any_text(browse, server):
    page = browse().open(server.url + "#map")
    page.tab.fill("#search", "@8")  # as the key of what stays in the tab begins
    page.until("document.getElementById('chosen').dataset.count == '0'")
    page.tab.reload()
    page.tab.wait_for_selector("body[data-done]")
    assert page.tab.input_value("#search") == "@8"


@pytest.mark.parametrize("cut", ["map?sort=1", "map?sort=%5B%5B%22Samples%22%2C5%5D%5D", "compare?rows=trai&show=chan"])
def test_an_address_that_makes_no_sense_opens(browse, server, cut):
    page = browse().open(server.url + "#" + cut)
    page.tab.wait_for_selector("main .big, main #chosen[data-count]")


def test_the_browsers_own_keys_stay_its_own(browse, server):
    page = browse().open(server.url + "#map")
    page.tab.wait_for_selector("#grid .cell")
    zoom = f"JSON.stringify({MAP}.getOption().dataZoom.map((z) => [z.start, z.end]))"
    active = "document.getElementById('grid').getAttribute('aria-activedescendant')"
    for node, state, keys in (("#map", zoom, ("Control+=", "Alt+ArrowLeft")), ("#grid", active, ("Alt+ArrowRight",))):
        page.tab.focus(node)
        page.tab.keyboard.press("+")
        before = page.tab.evaluate(state)
        for key in keys:
            page.tab.keyboard.press(key)
            assert page.tab.evaluate(state) == before, key


def test_a_table_stays_where_it_is_when_a_sample_is_opened(browse, server):
    page, at = browse().open(server.url + "#map"), 40
    link = page.tab.locator("#list tbody button").nth(at)
    link.focus()
    name, region = link.inner_text(), page.tab.locator("#list .tall")
    scrolled = region.evaluate("(node) => node.scrollTop")
    assert scrolled > 0
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("aside .near button")
    assert page.tab.evaluate("document.activeElement.textContent") == name
    assert region.evaluate("(node) => node.scrollTop") == scrolled
    page.tab.focus("aside .near button")
    page.tab.keyboard.press("Enter")
    page.until(f"document.querySelector('aside h2').textContent !== {json.dumps(name)}")
    page.tab.wait_for_selector("aside .near button")
    assert page.tab.evaluate("document.activeElement === document.querySelector('aside h2')")


def test_a_basket_stays_where_it_is_when_a_sample_is_taken_out(browse, server, atlas):
    page = browse().open(server.url + "#map")
    page.tab.select_option("#shard", "0")
    page.tab.click("#put")
    page.go("basket")
    out = page.tab.locator('[aria-label^="take out"]')
    last = out.count() - 1
    names = column(page, "Basket", 1)
    out.nth(last - 1).focus()
    region = page.tab.locator('[role="region"][aria-label="Basket"]')
    scrolled = region.evaluate("(node) => node.scrollTop")
    page.tab.keyboard.press("Enter")
    assert column(page, "Basket", 1) == names[: last - 1] + names[last:]
    assert page.tab.evaluate("document.activeElement.ariaLabel") == "take out " + names[last]
    assert 0 < region.evaluate("(node) => node.scrollTop") <= scrolled
    page.tab.keyboard.press("Enter")
    assert page.tab.evaluate("document.activeElement.ariaLabel") == "take out " + names[last - 2]


def test_an_error_has_its_lines(browse, server):
    page = browse().open(server.url + "#map")
    page.tab.click("#put")
    page.go("basket")
    page.until("document.getElementById('cost').innerText.includes('\\ntry: ')")
    assert [text for text in page.logged if "409" not in text] == []
    page.logged.clear()


def test_a_store_that_cannot_be_read_says_why(browse, server):
    page, fault = browse(), "the store is damaged: file ledger/1.json\n  try: restore the file from a copy"
    page.tab.route("**/overview*", lambda route: route.fulfill(status=409, json={"error": fault}))
    page.tab.goto(server.url)
    assert page.tab.inner_text("main p") == fault.replace("  ", "")
    assert [text for text in page.logged if "409" not in text] == []
    page.logged.clear()


@pytest.mark.parametrize("size", [(1280, 800), NARROW], ids=str)
def test_a_long_name_leaves_the_rest_in_sight(browse, server, atlas, size):
    page = browse(*size)

    def rename(route):
        body = route.fetch().json()
        body["report"]["classes"][3] = "x" * 200
        route.fulfill(json=body)

    page.tab.route("**/overview*", rename)
    sample = atlas.table.ids[int((atlas.table.label == 3).argmax())]
    page.open(server.url + "#map/" + sample.replace("/", "%2F") + "?class=" + "x" * 200)
    page.tab.wait_for_selector("aside .near button")
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.tab.evaluate(
        "document.querySelector('aside').scrollWidth <= document.querySelector('aside').clientWidth"
    )
    assert page.tab.locator("#list td").nth(1).bounding_box()["width"] < 400


def test_a_phone_keeps_the_navigation(browse, server):
    page = browse(*NARROW).open(server.url)
    page.tab.evaluate("scrollTo(0, document.body.scrollHeight)")
    links = page.tab.locator("nav a").all()
    for link in links:
        box = link.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= NARROW[0]
        assert 0 <= box["y"] < 120
        assert box["height"] >= 24
    page.go("ledger")
    assert page.tab.evaluate("scrollY") == 0
    page.tab.click("nav >> text=Map")
    page.tab.wait_for_selector('main[data-view="map"]')
    page.tab.locator("#list button.link").first.click()
    page.until("document.querySelector('aside h2').getBoundingClientRect().top < innerHeight")


@pytest.mark.law("Two models compared on the page are what each says of every sample")
def test_two_models_compared(browse, server, atlas):
    page = browse().open(server.url + "#compare?before=here%3Amodels%2Fhead&after=here%3Amodels%2Fexact&rows=all")
    page.tab.wait_for_selector("#changes")
    table, head, best = atlas.table, atlas.classes_by["head"], atlas.classes_by["model"]
    with_head = head != -1
    assert with_head.all()
    assert page.tab.get_attribute("#listed", "data-count") == str((head != best).sum())
    for rows, judged in (("all", False), ("training", False), ("held-out", True), ("all", False)):
        page.tab.select_option("#rows", rows)
        said = page.tab.inner_text("#changes")
        assert ("interval" in said, "points" in said, "by heart" in said) == (judged, judged, not judged), rows
    page.tab.select_option("#show", "all")
    for rows, mark in (("training", "trained on this row"), ("held-out", "")):
        page.tab.select_option("#rows", rows)
        for k in (3, 4):
            said = column(page, "Samples compared", k)
            assert all(text.endswith(mark) and ("✓" in text or "✗" in text or mark) for text in said), (rows, k)
            assert any("✓" in text for text in said) == (not mark)
    page.tab.select_option("#rows", "all")
    page.tab.select_option("#show", "right")
    right = (head != table.label) & (best == table.label)
    assert page.tab.get_attribute("#listed", "data-count") == str(right.sum())
    page.tab.select_option("#show", "all")
    page.tab.click('th >> text="margin after"')
    shown = [table.ids.index(text) for text in column(page, "Samples compared", 1)]
    assert (np.diff(atlas.margin[shown]) <= 1e-4).all()
    first = column(page, "Samples compared", 1)[0]
    page.tab.locator("table[aria-label='Samples compared'] button.link").first.click()
    page.tab.wait_for_selector(f"aside h2 >> text={first}")
    page.tab.go_back()
    page.tab.wait_for_selector("#changes")
    assert page.tab.input_value("#show") == "all"
    assert page.tab.get_attribute("#listed", "data-count") == str(len(table))

    def without_held_out(route):
        body = route.fetch().json()
        body.get("groups", {})["held-out"] = None  # while it is being compared, there are no groups
        route.fulfill(json=body)

    page.tab.route("**/compare?*", without_held_out)
    page.tab.goto(server.url + "#compare?label=3")  # what else is chosen is the page's own
    page.until("document.getElementById('rows')?.value === 'training'")
    chosen = [page.tab.input_value(f"#{name}") for name in ("before", "after")]
    assert chosen == ["here:models/mean", "here:models/exact"]


@pytest.mark.full
def test_a_second_store(browse, seen):
    with FeatureStore(seen) as store, FeatureStore(seen) as same, ViewServer(Atlas(store), against=same) as server:
        page = browse().open(server.url + "#compare")
        page.tab.wait_for_selector("#changes")
        assert "second store" in page.tab.inner_text("#before")
        assert page.tab.inner_text("#changes").startswith("0")
        page.tab.goto("about:blank")


@pytest.mark.full
def test_a_report_keeps_and_sorts_without_a_server(browse, seen, tmp_path):
    with FeatureStore(seen) as store:
        write_report(store, tmp_path / "report.html", neighbours=False)
    page = browse().open(f"file://{tmp_path}/report.html", done=False)
    page.go("map")
    page.tab.select_option("#class", "3")
    page.tab.click("#put")
    count = listed(page)
    page.tab.reload()
    page.tab.wait_for_selector("body[data-ready]")
    assert listed(page) == count
    page.go("basket")
    assert f"{count} sample" in page.tab.inner_text("main")
    page.go("compare")
    assert "Not in this report" in page.tab.inner_text("main")
