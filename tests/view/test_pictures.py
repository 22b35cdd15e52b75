"""Pictures of samples: small ones for the grid, kept within bounds."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from taftcache.cache.store import FeatureStore
from taftcache.view import pictures as module
from taftcache.view.pictures import Pictures


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
