"""What the page shows of stores that are not all it expects: no composed model, damaged files, no classes, privacy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import taftcache
from taftcache import TangentRegressor, write_report
from taftcache.cache.store import FeatureStore
from taftcache.errors import IntegrityError, RecipeError, StoreError
from taftcache.stages.estimators import HOLDS
from taftcache.stages.progress import Silent
from taftcache.tangent.spec import TangentSpec
from taftcache.view import payload
from taftcache.view.asked.comparing import Comparisons
from taftcache.view.asked.composing import rows_right
from taftcache.view.atlas import NONE, Atlas
from taftcache.view.pictures import Pictures
from taftcache.view.server import ViewServer
from tests.view.test_browser import changed
from tests.view.test_comparing import compared
from tests.view.test_server import ask, at

NOT_YET = "No composed model yet: taftcache compose STORE."


@pytest.fixture(scope="module")
def components(tmp_path_factory) -> Path:
    """Vectors in three shards, trained and not composed; ten held-out ones are training rows, too."""
    x, y = load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("components") / "store"
    test = x[110:150], np.where(np.arange(40), y[110:150], 9 - y[110])  # one of another label
    taftcache.import_vectors(x[:120], y[:120], path, test=test, overrides=["store.shards=3", "objective.ridge=1e-3"])
    taftcache.train(path)
    return path


@pytest.fixture(scope="module")
def valued(tmp_path_factory) -> Path:
    """The store of a regressor."""
    path = tmp_path_factory.mktemp("valued") / "store"
    images = np.random.default_rng(0).integers(0, 255, (12, 32, 32, 3)).astype(np.uint8)
    model = TangentRegressor("bundled", tangent=TangentSpec(train="bitfit"), ridge=1e-3, store=path)
    model.fit(list(images), np.linspace(-1, 1, 12))
    return path


FILES = {"model": "models/exact-*", "rows": "shards/001-*/tokens/c.0.0.0", "ledger": "ledger/*.json"}


@pytest.fixture
def damaged(seen, tmp_path):
    """A copy of a store with a byte of one of its files changed."""

    def of(kind: str) -> Path:
        path = shutil.copytree(seen, tmp_path / kind)
        (file,) = path.glob(FILES.get(kind, f"{kind}-*"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        return path

    return of


def worked(store: FeatureStore) -> Atlas:
    made = Atlas(store)
    made.work(skip=("head path", "neighbours"))
    return made


def test_without_a_composed_model_there_is_none_to_name(components, tmp_path):
    with FeatureStore(components) as store:
        assert payload.overview(Atlas(store))["model"] is None  # nor before the models are read
        atlas = worked(store)
        said = Comparisons(atlas).offer()
        shown = payload.sample(atlas, atlas.table.ids[0], Pictures(store))["models"]
        written = write_report(store, tmp_path / "report.html", neighbours=False)
    found = payload.overview(atlas)
    assert (found["model"], found["leaked"]) == (None, 10)
    assert (said["before"], said["after"]) == ("here:components/000", "here:components/002")
    names = [f"components/00{k}" for k in range(3)]  # without the base point, whose head is zero
    assert said["sides"]["here"]["models"] == list(payload.held_out(atlas)["models"]) == list(shown) == names
    assert {said[key].partition(":")[2] for key in ("before", "after")} <= set(said["sides"]["here"]["models"])
    assert (atlas.classes_by["model"] == NONE).all()
    assert (atlas.classes_by["own"] != NONE).any()
    assert written.bytes


@pytest.mark.slow
def test_before_composing_the_page_says_what_is_to_be_done(browse, components):
    with FeatureStore(components) as store, ViewServer(Atlas(store)) as server:
        page = browse().open(server.url)
        assert page.tab.inner_text("#best > p >> nth=0") == NOT_YET
        page.go("map")
        assert NOT_YET in page.tab.inner_text("main")
        page.go("classes")
        assert page.tab.input_value("#model") == "components/000"
        page.go("overview")
        assert page.tab.inner_text("#leaks").startswith("10 of 40 held-out rows hold the very bytes of a training row")
        page.tab.click("#leaks button")
        page.tab.wait_for_selector("#lines")
        kinds = page.tab.locator("#check td:first-child").all_inner_texts()
        assert (kinds[0], set(kinds[1:])) == ("leak, other label", {"leak"})
        boxes = page.tab.locator("#check tbody tr >> nth=0 >> input")
        boxes.nth(1).check()
        page.tab.click("#put")
        assert [box.is_checked() for box in boxes.all()] == [False, True]
        page.tab.click('button[data-name="confused"]')
        assert NOT_YET in page.tab.inner_text("#check")
        page.tab.goto("about:blank")
        page.open(server.url + "#compare?after=here:models%2Fmean")  # nor one that an old address names
        page.tab.wait_for_selector("#changes")
        assert page.tab.input_value("#after") == "here:components/002"
        page.tab.goto("about:blank")


@pytest.mark.law("One damaged file hides nothing on the page that can be read without it, and is no data")
def test_a_damaged_model_is_left_out(damaged):
    with FeatureStore(damaged("model")) as store:
        atlas = worked(store)
        said = Comparisons(atlas).offer()
    assert payload.overview(atlas)["model"] == "models/mean"
    assert [name for name in payload.held_out(atlas)["models"] if name.startswith("models/")] == [
        "models/head", "models/mean"
    ]  # fmt: skip
    assert said["after"] == "here:models/mean"
    assert "here:models/exact" not in said["sides"]["here"]["models"]
    assert (atlas.classes_by["model"] != NONE).all()
    (problem,) = payload.overview(atlas)["damage"]
    assert problem.startswith("file models/exact")


@pytest.mark.law("One damaged file hides nothing on the page that can be read without it, and is no data")
def test_a_damaged_model_of_a_second_store_is_left_out(damaged, atlas):
    with FeatureStore(damaged("model")) as other:
        comparisons = Comparisons(atlas, other)
        said = comparisons.offer()
        assert said["before"] == "there:models/mean"
        assert "models/exact" not in said["sides"]["there"]["models"]
        assert "models/exact" in said["sides"]["here"]["models"]
        assert said["damage"][0].startswith("file models/exact")
        assert compared(comparisons, "there:base", "here:base")["groups"]["all"]["changed"] == 0
        with pytest.raises(RecipeError, match="no such model"):
            comparisons.ask("there:models/exact", "here:base")


@pytest.mark.law("One damaged file hides nothing on the page that can be read without it, and is no data")
def test_of_a_second_store_without_its_tail_no_model_is_offered(damaged, atlas):
    with FeatureStore(damaged("base/tail")) as other:
        comparisons = Comparisons(atlas, other)
        said = comparisons.offer()
        assert said["sides"]["there"]["models"] == []
        assert said["damage"][0].startswith("file base/tail")
        assert compared(comparisons, said["before"], said["after"])["state"] == "done"


@pytest.mark.law("One damaged file hides nothing on the page that can be read without it, and is no data")
def test_a_damaged_component_takes_the_influence_of_its_own_rows_alone(damaged, atlas):
    with FeatureStore(damaged("components/001")) as store:
        made = worked(store)
        scorer = made.scorer()
    assert made.progress["influence"].note == ""
    assert payload.held_out(made)["components"] == ["000", "002"]
    assert payload.held_out(made)["damaged"] == ["001"]
    lost = made.table.shard == 1
    assert np.isnan(made.moved[lost]).all()
    assert np.array_equal(made.moved[~lost], atlas.moved[~lost], equal_nan=True)
    assert np.isfinite(made.moved).any()
    assert not scorer.is_weighed("components/001")


@pytest.mark.law("One damaged file hides nothing on the page that can be read without it, and is no data")
def test_damaged_rows_have_no_place_and_the_others_have(damaged, atlas, monkeypatch):
    with FeatureStore(damaged("rows")) as store:
        made = Atlas(store)
        made.work(skip=("head path",))
        said = payload.overview(made)
        lost = made.table.shard == 1
        assert (np.isnan(made.place[:, 0]) == lost).all()
        assert (np.isnan(made.neighbours[:, 0]) == lost).all()
        assert ((made.classes_by["model"] == NONE) == lost).all()
        assert made.held_out.accuracy(made.held_out.predictions()) == atlas.held_out.accuracy(
            atlas.held_out.predictions()
        )
        assert said["report"]["activations"] is None
        assert all(problem.startswith("shard 001, array tokens") for problem in said["damage"])
        assert said["damage"]
        monkeypatch.setattr(payload, "NEIGHBOURS", len(lost))
        near = {n["id"] for n in payload.neighbours(made, int((~lost).argmax()))}
        assert len(near) == (~lost).sum() - 1
        assert not near & {made.table.ids[k] for k in np.flatnonzero(lost)}
        with pytest.raises(IntegrityError):
            payload.sample(made, made.table.ids[int(lost.argmax())], Pictures(store))
        with pytest.raises(IntegrityError):
            taftcache.inspect(store)


@pytest.mark.law("One damaged file hides nothing on the page that can be read without it, and is no data")
def test_a_damaged_ledger_is_not_an_empty_one(damaged, tmp_path):
    with FeatureStore(damaged("ledger")) as store:
        said = payload.overview(Atlas(store))
        written = write_report(store, tmp_path / "report.html", neighbours=False)
        with pytest.raises(IntegrityError):
            taftcache.inspect(store)
    assert said["ledger"] is None
    assert said["damage"][0].startswith("file ledger/")
    assert [note for note in written.notes if note.startswith("damaged: file ledger/")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_damage_is_an_alert_and_every_view_opens(browse, damaged, kind):
    with FeatureStore(damaged(kind)) as store, ViewServer(Atlas(store)) as server:
        page = browse().open(server.url)
        file = FILES[kind].split("/")[0]
        assert f"file {file}/" in page.tab.inner_text("#damage[role=alert]")
        assert f"✗ Damaged: {'shard 001' if kind == 'rows' else f'file {file}/'}" in page.tab.inner_text("#integrity")
        assert "held-out rows right" in page.tab.inner_text("#best")
        for view in ("map", "classes", "shards", "training", "compare", "ledger"):
            page.go(view)
            assert page.tab.inner_text("h1")
        last = page.tab.inner_text("main")
        assert ("1 entry in one chain" in last) == (kind != "ledger")
        assert "Empty" not in last
        page.tab.goto("about:blank")


def test_shards_whose_components_are_damaged_are_named(browse, damaged):
    with FeatureStore(damaged("components/001")) as store, ViewServer(Atlas(store)) as server:
        page = browse().open(server.url + "#shards")
        page.until("document.getElementById('composed').textContent.endsWith('mean of 2 of 3 components')")
        assert page.tab.inner_text("#left-out") == "Left out, for its component is damaged: 001."
        page.until("document.querySelector('main [aria-label*=\"with all shards but 001 to\"]')")
        page.tab.goto("about:blank")


def test_a_whole_store_has_no_damage(atlas):
    assert payload.overview(atlas)["damage"] == []


def test_a_regressors_store_is_not_scored(valued, tmp_path):
    with FeatureStore(valued) as store:
        atlas = worked(store)
        said, sample = payload.overview(atlas), payload.sample(atlas, atlas.table.ids[0], Pictures(store))
        assert Pictures(store).why_not.startswith("no pictures: the images were given to an estimator")
        assert Comparisons(atlas).offer()["sides"]["here"]["models"] == []
        report = write_report(store, tmp_path / "report.html", neighbours=False)
    assert str(valued) not in report.file.read_text(encoding="utf-8")  # its own notes name its place
    assert said["what"] == f"The store {HOLDS}"
    assert atlas.progress["predictions"].note == said["what"]
    assert (sample["models"], sample["picture"]) == ({}, False)
    assert set(payload.columns(atlas)["columns"]) == {"x", "y", "norm"}
    with pytest.raises(StoreError, match=HOLDS):
        taftcache.suspects(valued)
    assert {one.label for one in taftcache.outliers(valued).outliers} == {"no class"}


@pytest.mark.slow
def test_a_regressors_page_says_what_it_is(browse, valued):
    with FeatureStore(valued) as store, ViewServer(Atlas(store)) as server:
        page = browse().open(server.url + "#classes")
        assert page.tab.get_attribute("main", "data-view") == "overview"
        assert page.tab.inner_text("#best") == f"The store {HOLDS}."
        assert "class" not in page.tab.inner_text("main .cards")
        shown = [link.inner_text() for link in page.tab.locator("nav a").all() if link.is_visible()]
        assert shown == ["Overview", "Map", "Check the data", "Basket", "Ledger"]
        page.go("map")
        page.tab.wait_for_selector("#no-pictures")
        page.tab.click("#list button.link")
        page.until("document.querySelector('aside h3')")
        assert page.tab.input_value("#colour") == "shard"
        assert not page.tab.is_visible("#taken")
        assert "–" not in page.tab.inner_text("aside")
        page.tab.goto("about:blank")


@pytest.mark.law("Accuracies on the page are those of the command line")
def test_the_compositions_that_are_drawn_are_those_of_evaluate(atlas, server):
    names = [shard.name for shard in atlas.store.shards]
    found = rows_right(atlas, Silent())
    outs = {"fewer": [names[3 - k :] for k in range(3)], "without": [[name] for name in names]}
    for key, of in outs.items():
        assert found[key] == [
            round(payload.composed(atlas, out)["accuracy"] * len(atlas.held_out.labels)) for out in of
        ]
    server.shown.atlas.ready["held-out predictions"].wait(60)
    while (said := json.loads(ask(server, at(server, "compositions"))[1]))["state"] == "working":
        assert said["done"] <= said["total"]
    assert (said["state"], said["fewer"], said["without"]) == ("done", found["fewer"], found["without"])


@pytest.mark.slow
def test_the_shards_view_asks_once_and_its_curve_has_intervals(browse, server):
    page = browse().open(server.url + "#shards")
    page.until("document.querySelectorAll('main [_echarts_instance_]').length == 2")
    asked = [url.rsplit("/", 1)[1].split("?")[0] for url in page.asked]
    assert asked.count("compose") == 1  # what the slider says
    drawn = page.tab.evaluate("""echarts.getInstanceByDom(document.querySelector("main .chart")).getOption()
      .series.map((one) => [one.type, one.data])""")
    assert [kind for kind, _ in drawn] == ["line", "custom"]
    for (k, accuracy), (at_, same, low, high) in zip(drawn[0][1], drawn[1][1], strict=True):
        assert (k, accuracy) == (at_, same)
        assert low < accuracy < high
    assert not page.tab.query_selector("main progress")


@pytest.mark.slow
def test_what_is_being_composed_says_how_far_it_is(browse, server):
    page = browse()
    page.tab.route("**/compositions*", lambda asked: asked.fulfill(json={"state": "working", "done": 7, "total": 600}))
    page.open(server.url + "#shards")
    page.tab.wait_for_selector("main progress")
    assert "Being composed: 7 of 600 …" in page.tab.inner_text("main")
    page.go("ledger")


@pytest.mark.slow
def test_a_list_that_begins_does_not_wait_for_another(browse, server):
    page, said = browse(), [{"state": "working"}]
    page.tab.route("**/check?*", lambda asked: asked.fulfill(json=said[0]))
    page.open(server.url + "#check")
    page.until("document.querySelector('#check .quiet').textContent === 'starting …'")
    said[0] = {"state": "busy", "with": "outliers"}
    page.until("document.querySelector('#check .quiet').textContent === 'waiting for another list …'")
    page.go("ledger")


@pytest.mark.slow
def test_a_view_that_was_left_asks_no_more(browse, server):
    page, asked = browse(), []
    begun = {"compositions": "shards", "check": "check", "compare": "compare"}

    def answer(route):
        asked.append(route.request.url)
        route.fulfill(json={"state": "working", "doing": "rows", "done": 1, "total": 9})

    for route in begun:
        page.tab.route(f"**/{route}?*", answer)
    page.open(server.url + "#ledger")
    for route, view in begun.items():
        page.go(view)
        asked.clear()
        while len(asked) < 3:
            page.tab.wait_for_timeout(50)
        assert all(f"/{route}?" in url for url in asked), view
    page.go("ledger")
    asked.clear()
    page.tab.wait_for_timeout(1000)
    assert asked == []


@pytest.mark.slow
def test_views_say_that_the_server_has_ended(browse, server, atlas):
    page, ended = browse(), "The server has ended; start taftcache view again."
    page.open(server.url + "#shards?basket=" + atlas.table.ids[0])
    for route in ("compose", "compositions", "check", "comparable", "sample", "leave-many"):
        page.tab.route(f"**/{route}?*", lambda asked: asked.abort())
    page.tab.locator("input[value='000']").uncheck()
    page.until(f"document.getElementById('composed').textContent === {json.dumps(ended)}")
    page.go("compare")
    page.until(f"document.getElementById('compared').textContent === {json.dumps(ended)}")
    page.go("check")
    page.until(f"document.getElementById('why').textContent === {json.dumps('None: ' + ended)}")
    page.go("basket")
    page.tab.click("#solve-many")
    page.until(f"document.getElementById('change').textContent === {json.dumps(ended)}")
    page.go("shards")
    page.until(f"document.querySelector('main').textContent.split({json.dumps(ended)}).length === 3")
    assert {text.split(": ", 1)[1] for text in page.logged} == {"net::ERR_FAILED"}
    page.logged.clear()


@pytest.mark.slow
def test_the_overview_says_what_a_promise_leaves_open(browse, server):
    def private(body):
        body["report"]["models"][0]["privacy"] = {"not_covered": ["held-out rows", "ids"]}

    page = changed(browse(), privacy=private).open(server.url)
    assert "their promise does not cover: held-out rows; ids." in page.tab.inner_text("main")
    page = browse().open(server.url)
    assert "promise" not in page.tab.inner_text("main")
