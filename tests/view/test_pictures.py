"""Pictures of samples: small ones for the grid, kept within bounds."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from taftcache.cache.store import FeatureStore
from taftcache.view import pictures as module
from taftcache.view.pictures import Encoded, Pictures, _encoded, _Recent


def photo(side: int) -> Image.Image:
    return Image.effect_noise((side, side), 40).convert("RGB")


@pytest.mark.parametrize(
    ("side", "longest", "kind"),
    [(96, 96, "jpeg"), (192, 192, "jpeg"), (8, 96, "png"), (64, 96, "png"), (384, 384, "png")],
)
def test_thumbnails_are_small_and_tiny_pictures_exact(side, longest, kind):
    image = photo(side)
    found = _encoded(image, longest)
    again = Image.open(io.BytesIO(found.body))
    assert (found.kind, again.size) == (f"image/{kind}", image.size)
    assert kind == "jpeg" or again.convert("RGB").tobytes() == image.tobytes()


def test_the_last_pictures_are_kept_within_bounds():
    kept = _Recent(100)
    for k in range(5):
        kept.put((str(k), 8), Encoded("image/png", bytes(40)))
        assert kept.get(("0", 8)) is not None or k > 1
    kept.put(("4", 8), Encoded("image/png", bytes(40)))  # twice is no more
    assert [k for k in range(5) if kept.get((str(k), 8))] == [0, 4]
    kept.put(("large", 8), Encoded("image/png", bytes(101)))
    assert kept.get(("large", 8)) is None


def test_a_picture_is_decoded_once(seen, monkeypatch):
    with FeatureStore(seen) as store:
        pictures, name, times = Pictures(store), store.sample_ids()[0], []
        monkeypatch.setattr(module, "seen", lambda image, preprocess: times.append(1) or image)
        first = pictures.encoded(name, 96)
        assert pictures.encoded(name, 96) == first
        assert pictures.encoded(name, 8) == first  # as large as it is
    assert len(times) == 2
