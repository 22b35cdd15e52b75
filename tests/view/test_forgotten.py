"""What was forgotten, on the page: receipts and what is known of an id in the command's words, and a store that changes
behind an open page."""

from __future__ import annotations

import shutil

import pytest

import taftcache
from taftcache import write_report
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.view import payload
from taftcache.view.atlas import Atlas
from taftcache.view.server import ViewServer
from tests.stages.forging import forge_ledger
from tests.view.test_browser import NARROW, WIDE

pytestmark = pytest.mark.slow


def receipts_say(capsys, path, *asked) -> list[str]:
    """The lines of ``taftcache receipts``, without their margins."""
    with pytest.raises(SystemExit) as ended:
        main(["receipts", str(path), *asked])
    assert not ended.value.code
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_the_ledger_has_the_words_of_receipts(opened, seen, capsys):
    page = opened
    page.go("ledger")
    said = page.tab.locator(".entry > summary, .entry li").all_inner_texts()
    rounded, not_covered, promise = receipts_say(capsys, seen)[len(said) :]
    assert [line[0].lower() + line[1:] for line in said] == receipts_say(capsys, seen)[: len(said)]
    assert [line for line in said if line.startswith("models/exact") and "(decisive)" in line]
    shown = page.tab.inner_text("main")
    assert rounded[1:] in shown
    assert not_covered[1:].partition(" (in full")[0] in shown
    assert "are keyed" in shown
    assert promise.startswith("1 receipt;")


def test_an_entry_is_open_on_paper_and_so_is_what_is_kept_of_it(browse, server):
    page = browse().open(server.url + "#ledger")
    page.tab.evaluate("document.querySelector('.entry').open = false")
    assert not page.tab.is_visible(".entry li >> nth=0")
    page.tab.emulate_media(media="print")
    assert page.tab.is_visible(".entry li >> nth=0")
    assert page.tab.is_visible(".entry pre >> nth=0")


def test_an_entry_of_another_program_is_shown_as_it_is_kept(seen, tmp_path):
    path = shutil.copytree(seen, tmp_path / "store")
    forge_ledger(path, lambda entries: [*entries[:-1], entries[-1] | {"copies": "xxx"}])
    with FeatureStore(path) as store:
        said, entries = payload.ledger(Atlas(store)), store.ledger()
    for entry in entries:
        assert entry.pop("ids"), "a list of keyed hashes"
        assert entry.pop("shards_before"), "another"
        assert entry.pop("numbers_before"), "a third"
    assert said["entries"] == [{"kept": entry, "lines": []} for entry in entries]
    assert "no request to forget writes" in said["notes"][0]


def answer_of(capsys, path, name) -> str:
    return next(line for line in receipts_say(capsys, path, "--sample", name) if line.startswith(f"{name}: "))


@pytest.mark.parametrize("name", ["digits/0500", "nobody"])
def test_an_id_without_a_sample_is_answered_as_by_receipts(browse, server, seen, capsys, name):
    said, page = answer_of(capsys, seen, name), browse().open(server.url + "#map")
    page.tab.fill("#search", name)
    page.until(f"document.getElementById('known').textContent === {said!r}")
    assert page.tab.inner_text("#matches") == "0 matches"
    page.tab.click("#clear")
    assert page.tab.inner_text("#matches") == page.tab.inner_text("#known") == ""
    page.open(f"{server.url}?again#map/{name.replace('/', '%2F')}")
    page.until(f"document.querySelector('aside p').textContent === {said!r}")


def test_the_address_keeps_an_id_without_a_sample(browse, server):
    page = browse().open(server.url + "#map/digits%2F0500")
    for _ in range(2):
        assert page.tab.inner_text("aside h2") == "Not in this store"
        assert page.tab.evaluate("location.hash").startswith("#map/digits%2F0500")
        page.tab.reload()
        page.tab.wait_for_selector("body[data-done]")
    page.go("overview")
    page.go("map")
    assert page.tab.inner_text("aside").startswith("Choose a sample")
    page.tab.go_back()
    page.tab.go_back()
    page.tab.wait_for_selector("main[data-view=map]")
    assert page.tab.inner_text("aside h2") == "Not in this store"
    for empty in ("#map/", "#map"):
        page.tab.evaluate(f"location.hash = '{empty}'")
        page.until("document.querySelector('aside').textContent.startsWith('Choose a sample')")


def test_a_forgotten_id_that_others_begin_with_is_answered(browse, server, atlas):
    """Ids that are numbers in a file: 12 is gone, and 120 is there."""
    page, names = browse(), atlas.table.ids
    start = names[0][:-1]
    page.tab.route("**/known*", lambda asked: asked.fulfill(json={"state": states.pop(0), "text": "as told"}))
    states = ["unknown", "forgotten"]
    page.open(server.url + "#map")
    for text, answer in ((names[0][:-2], ""), (start, f"{start}: as told"), (names[0], "")):
        page.tab.fill("#search", text)
        page.until(f"document.getElementById('known').textContent === {answer!r}")
        page.tab.wait_for_timeout(300)
        assert page.tab.inner_text("#matches").split()[0] == str(sum(text in name for name in names))
    assert page.tab.inner_text("#known") == ""
    assert states == []
    page.tab.select_option("#class", str((atlas.table.label[0] + 1) % 10))
    assert page.tab.inner_text("#matches") == "0 matches shown, 1 hidden"


def test_an_address_with_ids_that_are_gone_says_so(browse, server, seen, atlas, capsys):
    kept = atlas.table.ids[0]
    page = browse().open(f"{server.url}#basket?basket={kept}%0Adigits%2F0500".replace(kept, kept.replace("/", "%2F")))
    assert "1 id of the address is not in this store" in page.tab.inner_text("main")
    said = answer_of(capsys, seen, "digits/0500")
    page.until(f"document.querySelector('#missing li').textContent === {said!r}")
    assert page.tab.inner_text("#count") == " (1)"


def test_a_report_leaves_ids_to_the_command(browse, seen, tmp_path):
    write_report(seen, tmp_path / "page.html", neighbours=False)
    page = browse().open(f"file://{tmp_path}/page.html#map", done=False)
    page.tab.fill("#search", "digits/0500")
    page.until("document.getElementById('known').textContent.includes('taftcache receipts')")
    page.go("ledger")
    assert "1 id forgotten by resolve" in page.tab.inner_text("main")


def test_a_report_of_a_store_with_receipts_passes_an_audit(seen, tmp_path, monkeypatch):
    """The lists of keyed hashes in its ledger looked like digests of shards that no receipt knows."""
    monkeypatch.setattr("taftcache.view.page._library", lambda: "")  # two thirds of the page, of every page the same
    write_report(seen, tmp_path / "page.html", neighbours=False)
    audited = taftcache.audit(seen, also=[tmp_path], strict=True)
    assert [found for found in audited.findings if found.where.startswith(str(tmp_path))] == []


@pytest.mark.law("A page that is open serves nothing of a store's earlier state")
@pytest.mark.parametrize("size", [WIDE, pytest.param(NARROW, marks=pytest.mark.full)], ids=str)
def test_an_open_page_says_that_the_store_has_changed(browse, seen, tmp_path, size):
    path = shutil.copytree(seen, tmp_path / "store")
    with FeatureStore(path) as store, ViewServer(Atlas(store)) as server:
        gone, kept = store.shards[0].sample_ids[:2]
        page, other = [browse(*size).open(f"{server.url}#basket?basket={gone}%0A{kept}") for _ in range(2)]
        assert gone in page.tab.inner_text("#command")
        with FeatureStore(path, mode="a") as writing:
            taftcache.forget(writing, [gone])
        page.tab.wait_for_selector('[role="alert"] button')
        assert "has changed" in page.tab.inner_text("#notice")
        assert page.tab.query_selector("#command") is None
        page.tab.set_viewport_size({"width": size[0], "height": 240})
        page.tab.evaluate("scrollTo({ top: 999, behavior: 'instant' })")
        assert page.tab.evaluate("scrollY") > 100
        assert page.tab.locator("#notice").bounding_box()["y"] >= 0
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= size[0]
        other.tab.wait_for_selector("#notice button")
        page.tab.click("#notice button")
        page.tab.wait_for_selector("#command")
        assert page.tab.inner_text("#command").endswith(f" --sample {kept}")
        assert not page.tab.is_visible("#notice")
        for each in (page, other):
            assert [text for text in each.logged if "410" not in text] == []
            each.logged.clear()
            each.tab.goto("about:blank")


@pytest.mark.law("A page that is open serves nothing of a store's earlier state")
def test_a_page_that_another_tab_left_behind_says_so_too(browse, seen, tmp_path):
    """The server has the new store by then, whose rows have other numbers."""
    path = shutil.copytree(seen, tmp_path / "store")
    with FeatureStore(path) as store, ViewServer(Atlas(store)) as server:
        page = browse().open(server.url)
        with FeatureStore(path, mode="a") as writing:
            taftcache.forget(writing, [store.shards[0].sample_ids[0]])
        server.renew()
        page.tab.wait_for_selector("#notice button")
        page.logged.clear()
        page.tab.goto("about:blank")
