"""A served store, and a headless Chromium to look at it with; browser tests are skipped where there is none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.view.atlas import Atlas
from taftcache.view.server import ViewServer
from tests.quick import one_thread, quick  # noqa: F401
from tests.stages.making import recipe

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """The browser's file."""
    return next((found for name in CHROMIUM if (found := shutil.which(name))), None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    """Without a browser no store is made for it."""
    if "chromium" in item.fixturenames and program() is None:
        pytest.skip("no Chromium here: apt-get install chromium")


@pytest.fixture(scope="session")
def seen(tmp_path_factory) -> Path:
    """Sixty digits in three shards and a held-out one, through every stage, with an exact model, one forgotten. Not to
    be written to."""
    path, forget = tmp_path_factory.mktemp("seen") / "store", {"samples": ["digits/0500"], "mode": "resolve"}
    taftcache.run(recipe(path, store={"shards": 3}, compose={"mode": "exact"}, forget=forget))
    return path


@pytest.fixture(scope="session")
def atlas(seen) -> Iterator[Atlas]:
    """All of it computed."""
    with FeatureStore(seen) as store:
        made = Atlas(store)
        made.work()
        assert [state.note for state in made.progress.values()] == [""] * len(made.progress)
        yield made


@pytest.fixture(scope="session")
def server(seen) -> Iterator[ViewServer]:
    with FeatureStore(seen) as store, ViewServer(Atlas(store)) as running:
        yield running


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A context that makes tabs. An empty one of this machine stays open: all of them run in its process, which takes
    a second to start."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--in-process-gpu", "--renderer-process-limit=1"]
        browser = driver.chromium.launch(executable_path=program(), args=arguments, timeout=180_000)
        context = browser.new_context()
        context.set_default_timeout(60_000)
        first = context.new_page()
        first.route("**", lambda asked: asked.fulfill(body=""))
        first.goto("http://127.0.0.1/")
        yield context
        browser.close()


class Page:
    """One tab: what it logged, and every address it asked for."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.logged: list[str] = []
        self.asked: list[str] = []
        tab.on("console", lambda message: self.logged.append(message.text))
        tab.on("pageerror", lambda error: self.logged.append(str(error)))
        tab.on("request", lambda request: self.asked.append(request.url))

    def open(self, url: str, *, done: bool = True) -> Page:
        self.tab.goto(url)
        self.tab.wait_for_selector("body[data-done]" if done else "body[data-ready]", timeout=120_000)
        return self

    def until(self, condition: str) -> Any:
        """Wait until a condition in JavaScript has a value, which is returned; the page's policy forbids playwright's
        own way of waiting."""
        end = time.monotonic() + 60
        while not (value := self.tab.evaluate(condition)):
            assert time.monotonic() < end, condition
            self.tab.wait_for_timeout(50)
        return value

    def composed(self, members: int) -> None:
        """Wait until the composition is the mean of so many components."""
        self.until(f"document.getElementById('composed').textContent.includes('mean of {members} of')")

    def go(self, view: str) -> None:
        self.tab.click(f'nav a[href="#{view}"]')
        self.tab.wait_for_selector(f'main[data-view="{view}"]')


def quiet(pages: list[Page]) -> None:
    """Close them; they logged nothing, and asked nobody outside."""
    for page in pages:
        page.tab.close()
    assert [text for page in pages for text in page.logged] == []
    assert {url.split("/")[2].split(":")[0] for page in pages for url in page.asked if url.startswith("http")} <= {
        "127.0.0.1"
    }


def tab(chromium: Any, width: int = 1280, height: int = 800, scheme: str = "light") -> Page:
    """A tab of a size and colour scheme."""
    made = chromium.new_page()
    made.set_viewport_size({"width": width, "height": height})
    made.emulate_media(color_scheme=scheme)
    return Page(made)


@pytest.fixture
def browse(chromium) -> Iterator[Any]:
    """Make a `Page` of a size and colour scheme; console errors and outside requests fail the test at its end."""
    made: list[Page] = []

    def new(*how: Any, **named: Any) -> Page:
        made.append(tab(chromium, *how, **named))
        return made[-1]

    yield new
    quiet(made)


@pytest.fixture(scope="package")
def opened(chromium, server) -> Iterator[Page]:
    """A page of ``server`` that several tests look at, each going to its view: to open one takes a second."""
    page = tab(chromium).open(server.url)
    yield page
    quiet([page])
