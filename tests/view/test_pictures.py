"""Pictures of samples: small ones for the grid, kept within bounds."""

from __future__ import annotations

import io
import itertools

import pytest
from PIL import Image

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.view import pictures as module
from taftcache.view.atlas import Atlas
from taftcache.view.pictures import NUMBERED, Pictures
from taftcache.view.server import ViewServer
from tests.stages.making import recipe, write_images, write_inside

ROWS = 42


def photo(side: int) -> Image.Image:
    return Image.effect_noise((side, side), 40).convert("RGB")


@pytest.mark.parametrize(
    ("side", "longest", "kind"),
    [(96, 96, "jpeg"), (192, 192, "jpeg"), (8, 96, "png"), (64, 96, "png"), (384, 384, "png")],
)
def test_thumbnails_are_small_and_tiny_pictures_exact(seen, monkeypatch, side, longest, kind):
    image = photo(side)
    monkeypatch.setattr(module, "seen", lambda *_: image.copy())
    with FeatureStore(seen) as store:
        found = Pictures(store).encoded(store.sample_ids()[0], longest)
    again = Image.open(io.BytesIO(found.body))
    assert (found.kind, again.size) == (f"image/{kind}", image.size)
    assert kind == "jpeg" or again.convert("RGB").tobytes() == image.tobytes()


def test_a_part_that_is_seen_is_square_and_never_empty():
    """Of one pixel by four, none were left: its sides were rounded apart."""
    as_cropped = {"crop_mode": "center", "input_size": (3, 32, 32), "crop_pct": 0.8}
    for width, height in [(1, 5000), (5000, 1), *itertools.product(range(1, 14), repeat=2)]:
        kept = module.seen(Image.new("RGB", (width, height), (9, 9, 9)), as_cropped)
        side = max(1, round(0.8 * min(width, height)))
        assert (kept.size, kept.getcolors()) == ((side, side), [(side * side, (9, 9, 9))]), "no black beyond the edge"


def test_the_last_pictures_are_kept_within_bounds(seen, monkeypatch):
    """As many bytes as two pictures and a half have; then fewer than one has."""
    image, times = photo(8), []
    monkeypatch.setattr(module, "seen", lambda *_: times.append(1) or image.copy())
    with FeatureStore(seen) as store:
        first, *others = store.sample_ids()[:5]
        size = len(Pictures(store).encoded(first, 8).body)

        def is_decoded(name):
            before = len(times)
            pictures.encoded(name, 8)
            return len(times) > before

        monkeypatch.setattr(module, "KEPT_BYTES", size * 5 // 2)
        pictures = Pictures(store)
        assert is_decoded(first)
        for name in others:
            assert is_decoded(name)
            assert not is_decoded(first)  # what is asked for again stays
        assert [is_decoded(name) for name in (others[3], first, others[2])] == [False, False, True]
        monkeypatch.setattr(module, "KEPT_BYTES", size - 1)
        pictures = Pictures(store)
        assert is_decoded(first)
        assert is_decoded(first)


def test_a_picture_is_decoded_once(seen, monkeypatch):
    with FeatureStore(seen) as store:
        pictures, name, times = Pictures(store), store.sample_ids()[0], []
        monkeypatch.setattr(module, "seen", lambda image, preprocess: times.append(1) or image)
        first = pictures.encoded(name, 96)
        assert pictures.encoded(name, 96) == first
        assert pictures.encoded(name, 8) == first  # as large as it is
    assert len(times) == 2


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Three classes of fourteen files."""
    return write_images(tmp_path_factory.mktemp("pictures") / "digits")


def extracted(place, images, **how):
    """A store of a table with ``images`` in it, and the table."""
    table = write_inside(place / "set.parquet", images, **how)
    data = {"source": "table", "train": str(table), "image_key": "image", "label_key": "label"}
    taftcache.extract(recipe(place / "store", data=data))
    return place / "store", table


def pictured(path) -> tuple[dict[str, bytes], str, str]:
    """Pictures by id, why there are none, and the note on them."""
    with FeatureStore(path) as store:
        pictures = Pictures(store)
        found = {name: pictures.encoded(name) for name in store.every_id}
        return {name: one.body for name, one in found.items() if one}, pictures.why_not, pictures.note


@pytest.mark.law("The page shows a sample's own picture, or says that rows may have moved")
def test_pictures_by_id_stay_and_those_by_number_are_doubted(tmp_path, images):
    for kind, paths in (("ids", True), ("numbers", False)):
        (tmp_path / kind).mkdir()
        path, table = extracted(tmp_path / kind, images, paths=paths)
        before = pictured(path)
        assert len(before[0]) == ROWS
        assert before[1:] == ("", "" if paths else NUMBERED)
        write_inside(table, images, paths=paths, order=range(ROWS - 1, -1, -1))
        after = pictured(path)
        if paths:
            assert after == before
        else:
            assert after[0] == {}
            assert "ids are numbers of rows" in after[1]
            assert "rows have moved or labels were corrected" in after[1]
            assert after[2] == ""
            assert any(note == after[1] for note in taftcache.write_report(path, tmp_path / "page.html").notes)


@pytest.mark.law("One damaged file hides nothing on the page that can be read without it, and is no data")
@pytest.mark.parametrize("file", ["labels/c.0", "sample_id/c.0"])
def test_a_damaged_shard_leaves_the_pictures_of_others(tmp_path, images, file):
    path, _ = extracted(tmp_path, images)
    with FeatureStore(path) as store:
        shard, ids = store.shards[0], store.shards[1].sample_ids
        (broken,) = path.glob(f"shards/{shard.name}-*/{file}")
    broken.write_bytes(broken.read_bytes()[:-1] + b"?")
    with FeatureStore(path) as store:
        pictures = Pictures(store)
        assert all(map(pictures.encoded, ids))
        assert (pictures.why_not, pictures.note) == ("", NUMBERED)


def test_a_report_says_that_its_pictures_go_by_number(tmp_path, images):
    path, _ = extracted(tmp_path, images)
    report = taftcache.write_report(path, tmp_path / "page.html", neighbours=False)
    assert NUMBERED in report.notes
    assert f'"picture_note":"{NUMBERED}"' in report.file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_says_once_that_pictures_go_by_number(browse, tmp_path, images):
    path, _ = extracted(tmp_path, images)
    report = taftcache.write_report(path, tmp_path / "page.html", neighbours=False)
    with FeatureStore(path) as store, ViewServer(Atlas(store)) as server:
        for url in (server.url, f"file://{report.file}"):
            page = browse().open(url + "#map", done=False)
            for view in ("map", "check"):
                page.go(view)
                page.until("!document.getElementById('picture-note').hidden")
                assert page.tab.inner_text("main").count(NUMBERED.replace("p", "P", 1) + ".") == 1
            page.tab.goto("about:blank")


@pytest.mark.slow
def test_the_page_has_no_note_on_pictures_that_go_by_id(opened):
    opened.go("map")
    opened.tab.wait_for_selector("#grid img")
    assert opened.tab.locator("#picture-note").is_hidden()
