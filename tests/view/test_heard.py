"""What a screen reader hears of the page, and where the keyboard is after a key."""

from __future__ import annotations

import json

import pytest

from taftcache import StoreView
from taftcache.cache.store import FeatureStore
from tests.view.test_browser import PLACES, changed

pytestmark = pytest.mark.slow

# What is heard: texts that change where a live region already stands. One that comes with its element is not read out.
LISTEN = """new MutationObserver((changes) => {
  for (const { target } of changes) {
    const one = target.nodeType === 1 ? target : target.parentElement;
    const live = one?.closest("[role=status], [aria-live=polite]");
    if (live?.textContent) (window.heard ??= []).push(live.textContent);
  }
}).observe(document, { childList: true, characterData: true, subtree: true })"""
HEARD = "(window.heard ??= [])"
ACTIVE = "document.activeElement.id || document.activeElement.tagName"
SPACED = "* { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }"
IN_SIGHT = """(() => { const { top, bottom } = document.activeElement.getBoundingClientRect();
  return document.activeElement.tagName === "H2" && top > 0 && bottom < innerHeight; })()"""


def listening(page):
    page.tab.add_init_script(LISTEN)
    return page


def told(page, text: str) -> None:
    """Wait until the page's one status says so."""
    page.until(f"document.getElementById('told').textContent === {json.dumps(text)}")


def test_a_sample_that_is_chosen_is_told_and_in_the_title(browse, server, atlas, seen):
    page = listening(browse()).open(server.url + "#map")
    page.tab.focus("#map")
    page.tab.evaluate("heard = []")
    ids = []
    for key in ("Enter", "Shift+ArrowRight"):
        page.tab.keyboard.press(key)
        ids.append(page.tab.get_attribute("aside", "data-sample"))
        row = atlas.table.ids.index(ids[-1])
        shard = atlas.table.shards[atlas.table.shard[row]].name
        by = "" if atlas.table.held_out[row] else ", by a model that was trained on it"
        taken = f"taken for {atlas.classes_by['model'][row]}{by}"
        told(page, f"{ids[-1]}, class {atlas.table.label[row]}, shard {shard}, {taken}")
        assert page.tab.title() == f"{ids[-1]} · {seen}"
        assert page.tab.evaluate(ACTIVE) == "map"
    assert ids[0] != ids[1]
    assert page.tab.evaluate("heard.length") == 2  # and nothing that is as it was
    titles = [page.go(view) or page.tab.title() for view in ("overview", "classes", "compare", "ledger")]
    assert titles == [f"{name} · {seen}" for name in ("Overview", "Classes", "Two models compared", "Ledger")]


def test_a_lasso_is_put_away_and_what_is_in_view_is_taken_by_keyboard(browse, server):
    page = browse().open(server.url + "#map?class=3")
    pressed = "document.getElementById('lasso').ariaPressed"
    for off in ("Escape", "Enter"):
        page.tab.focus("#lasso")
        page.tab.keyboard.press("Enter")
        assert page.tab.evaluate(pressed) == "true"
        page.tab.evaluate("document.getElementById('map').dataset.points = ''")
        page.tab.keyboard.press(off)
        assert page.tab.evaluate(pressed) == "false"
        assert page.tab.get_attribute("#map", "data-points")  # it was drawn anew
    assert page.tab.input_value("#class") == "3"
    page.tab.focus("#map")
    page.tab.keyboard.press("+")
    page.tab.keyboard.press("+")
    wide, high = page.tab.evaluate("(({ clientWidth, clientHeight }) => [clientWidth, clientHeight])(map)")
    places = page.tab.evaluate(PLACES)
    page.tab.focus("#take")
    page.tab.keyboard.press("Enter")
    inside = sum(8 < x < wide - 8 and 8 < y < high - 8 for x, y in places)
    assert int(page.tab.get_attribute("#chosen", "data-count")) == inside < len(places)
    assert "inside the lasso" in page.tab.inner_text("#chosen")
    assert page.tab.evaluate(ACTIVE) == "take"
    assert "lasso=pca" in page.tab.url


def test_the_keyboard_stays_where_a_button_was_pressed(browse, server, atlas):
    page, held, answers = browse(), [], [{"state": "working", "steps": k} for k in range(3)]
    answers.append({"state": "failed", "error": "no luck"})

    def answer(route):  # the first one waits
        held.append(route)
        if len(held) > 1:
            route.fulfill(json=answers.pop(0)) if answers else route.fallback()

    page.tab.route("**/leave-out?*", answer)
    name = atlas.table.ids[0]
    listening(page).open(server.url + "#map/" + name.replace("/", "%2F"))
    page.tab.focus("#solve")
    page.tab.evaluate("heard = []")
    page.tab.keyboard.press("Enter")
    page.tab.keyboard.press("Enter")  # nothing: it is asked for already
    page.until("document.getElementById('told').textContent === 'solving …'")
    assert len(held) == 1
    held[0].fulfill(json=answers.pop(0))
    told(page, "no luck")
    assert page.tab.evaluate("heard") == ["solving …", "no luck"]
    assert page.tab.evaluate(ACTIVE) == "solve"
    page.tab.keyboard.press("Enter")  # again
    page.until("document.getElementById('told').textContent.startsWith('Solved in')")
    assert page.tab.evaluate(ACTIVE) == "solve"

    assert page.tab.locator(".near img[alt='']").count() == 8
    page.tab.add_style_tag(content=SPACED)
    cut = "[...document.querySelectorAll('.near span')].filter((s) => s.scrollWidth > s.clientWidth).length"
    assert page.tab.evaluate(cut) == 0
    page.tab.focus(".near button >> nth=7")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector(f"aside h2:not(:text-is('{name}'))")
    page.tab.wait_for_selector("aside .near")
    page.until(IN_SIGHT)


def test_an_emptied_basket_is_told_and_can_be_filled_again(browse, server):
    page = browse().open(server.url + "#map?class=3")
    page.tab.click("#put")
    full = page.tab.inner_text("#picked")
    assert full.endswith(" samples in the basket")
    for view in ("map", "basket"):
        page.go(view)
        page.tab.focus("#empty")
        page.tab.keyboard.press("Enter")
        told(page, "The basket is empty")
        assert page.tab.evaluate(ACTIVE) == "empty"
        assert page.tab.inner_text("#empty") == "Put them back"
        assert not page.tab.is_visible("text=Open the basket")
        page.tab.keyboard.press("Enter")
        told(page, full)
        assert page.tab.inner_text("#empty") == "Empty the basket"
    for _ in range(int(full.split()[0])):
        page.tab.focus('[aria-label^="take out"]')
        page.tab.keyboard.press("Enter")
    assert page.tab.evaluate(ACTIVE) == "H1"
    assert not page.tab.is_visible("#empty")


def test_what_goes_on_is_told_now_and_then_and_a_result_at_once(browse, server):
    page, asked = listening(browse()), []

    def progress(route):
        asked.append(route.request.url)
        body = route.fetch().json()
        if len(asked) < 8:
            body["stages"]["rows"] = {"ready": False, "note": "", "done": len(asked), "total": 59}
        route.fulfill(json=body)

    page.tab.route("**/progress*", progress)
    page.open(server.url)
    assert page.tab.evaluate(HEARD) == ["rows: 1 of 59", "Everything is computed."]
    assert len(asked) >= 8
    page.go("check")
    page.until(f"{HEARD}.some((text) => /^Suspected labels: \\d+ lines?$/.test(text))")
    page.tab.select_option("#check-class", "3")
    told(page, "Suspected labels: " + page.tab.inner_text("#lines"))
    page.go("compare")
    page.tab.wait_for_selector("#changes")
    told(page, page.tab.text_content("#changes"))
    page.tab.select_option("#show", "all")
    told(page, page.tab.inner_text("#listed"))


def test_a_small_window_is_not_filled_by_the_navigation(browse, server):
    page = changed(browse(320, 256), name=lambda body: body["report"].update(store="a-long-name-of-a-store-" * 3))
    page.open(server.url)
    assert page.tab.evaluate("document.getElementById('root').getBoundingClientRect().right") <= 320
    page.tab.evaluate("scrollTo({ top: 400, behavior: 'instant' })")
    assert page.tab.evaluate("document.querySelector('nav').getBoundingClientRect().bottom") < 0


def test_a_panel_leads_back_to_its_view(browse, seen, tmp_path):
    with FeatureStore(seen) as store:
        cell = StoreView(store).panel("overview")._repr_html_()
    (tmp_path / "cell.html").write_text(f"<!doctype html>{cell}")
    page = browse()
    page.tab.goto(f"file://{tmp_path}/cell.html")
    assert page.tab.get_attribute("iframe", "title") == f"taftcache overview of {seen.name}"
    frame = page.tab.frame_locator("iframe")
    frame.locator('table[aria-label="Shards"] >> text="001"').click()
    frame.locator("#chosen").wait_for()
    frame.locator('nav a[href="#overview"]').click()
    frame.locator('main[data-view="overview"]').wait_for()
