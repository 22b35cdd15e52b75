"""Every text and every control of the page stands out from what is behind it: WCAG 2.2, level AA, in both themes."""

from __future__ import annotations

import re
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "taftcache" / "view" / "assets"
STYLE = (ASSETS / "page.css").read_text(encoding="utf-8")
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


def drawn(name: str, theme: str) -> list[str]:
    """The colours of a theme that charts are drawn with."""
    _, _, rest = (ASSETS / "palette.js").read_text(encoding="utf-8").partition(f"const {name} = {{")
    (block,) = re.findall(rf"{theme}: \[([^\]]*)\]", rest.partition("};")[0])
    return re.findall(r"#[0-9a-f]{6}", block)


@pytest.mark.parametrize(("name", "theme"), [*product(("PALETTE", "RAMP"), THEMES)])
def test_what_charts_draw_stands_out(name, theme):
    """A point of the least margin was nearly as dark as the dark theme."""
    colours = drawn(name, theme)
    assert len(colours) >= 9
    grounds = [ground if len(ground) == 7 else "#ffffff" for ground in (THEMES[theme]["back"], THEMES[theme]["panel"])]
    assert {c: contrast(c, ground) for c in colours for ground in grounds if contrast(c, ground) < 3} == {}


# Of linear red, green and blue, what is left to people without one kind of cones: Machado, Oliveira and Fernandes 2009.
SEEN_BY = {
    "all cones": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


def lab(colour: str, sight: str) -> np.ndarray:
    """CIE L*a*b* of what is seen of a colour."""
    rgb = np.clip(np.asarray(SEEN_BY[sight]) @ linear(colour), 0, 1)
    parts = np.asarray(XYZ) @ rgb / (0.95047, 1, 1.08883)
    x, y, z = np.where(parts > 0.008856, np.cbrt(parts), 7.787 * parts + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.law("No two colours of a chart are the same to a reader without one kind of cones")
@pytest.mark.parametrize(("theme", "sight"), [*product(THEMES, SEEN_BY)])
def test_no_two_colours_look_the_same(theme, sight):
    """A class's green was another's red under deuteranopia."""
    seen = {colour: lab(colour, sight) for colour in drawn("PALETTE", theme)}
    alike = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(seen, 2)}
    assert min(alike.values()) > 14, min(alike, key=alike.__getitem__)
    assert np.all(np.diff([lab(colour, sight)[0] for colour in drawn("RAMP", theme)]) > 2)


def test_links_of_the_documentation_stand_out():
    """The theme's own teal did not, on white nor behind white."""
    style = (ROOT / "tools" / "site" / "assets" / "style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"(--md-[\w-]+): (#[0-9a-f]{6});", style))
    for name in ("--md-primary-fg-color", "--md-typeset-a-color", "--md-accent-fg-color"):
        assert min(contrast(colours[name], ground) for ground in ("#ffffff", "#f5f5f5")) >= 4.5, name
    assert "text-decoration: underline" in style
