"""Every text and every control of the page stands out from what is behind it: WCAG 2.2, level AA, in both themes."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

STYLE = (Path(__file__).resolve().parents[2] / "taftcache" / "view" / "assets" / "page.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block)) for block in re.findall(r":root \{([^}]*)\}", STYLE)
)
THEMES = {"light": LIGHT, "dark": {**LIGHT, **DARK}}
# What the style sets in which colour on which ground: texts need 4.5 to 1, controls and marks 3 to 1.
TEXTS = [*product(("text", "quiet", "accent", "good", "bad"), ("back", "panel")), ("back", "accent"),
         *product(("text",), ("fill", "fill-least", "fault", "fault-least"))]  # fmt: skip
CONTROLS = [*product(("edge", "focus", "accent"), ("back", "panel"))]
CHOSEN = 0.18  # of the accent, behind the line that is chosen


def linear(colour: str) -> list[float]:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]


def contrast(one: str, other: str) -> float:
    """Between relative luminances, as WCAG defines both."""
    high, low = sorted((0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in map(linear, (one, other))), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(one: str, other: str, share: float) -> str:
    pairs = [(int(one[k : k + 2], 16), int(other[k : k + 2], 16)) for k in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def test_contrast_is_that_of_the_standard():
    assert contrast("#fff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.law("Texts of the page have a contrast of 4.5 to 1, controls 3 to 1, in both themes")
@pytest.mark.parametrize("theme", THEMES)
def test_texts_and_controls_stand_out(theme):
    colours = THEMES[theme]
    faint = {pair: contrast(*(colours[name] for name in pair)) for pair in TEXTS}
    assert {pair: ratio for pair, ratio in faint.items() if ratio < 4.5} == {}
    faint = {pair: contrast(*(colours[name] for name in pair)) for pair in CONTROLS}
    assert {pair: ratio for pair, ratio in faint.items() if ratio < 3} == {}
    assert f"color-mix(in srgb, var(--accent) {CHOSEN:.0%}, transparent)" in STYLE
    back = colours["back"] if len(colours["back"]) == 7 else "#ffffff"
    chosen = mixed(colours["accent"], back, CHOSEN)
    for name in ("text", "accent", "good", "bad"):
        assert contrast(colours[name], chosen) >= 4.5, name


def test_the_style_draws_with_these_colours_alone():
    """A colour that stands in a rule itself is in no theme: only what lies behind a picture has one."""
    rules = STYLE.split("* {", 1)[1]
    assert re.findall(r"#[0-9a-f]{3,6}\b", rules) == ["#222"]
    assert set(re.findall(r"var\(--(\w+)\)", rules)) <= set(LIGHT)
