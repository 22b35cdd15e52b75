"""The page's modules as one script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taftcache.view.bundle import bundle, parse
from taftcache.view.page import ENTRY, LIBRARY, script

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "taftcache" / "view" / "assets"
FILES = sorted(p.relative_to(ASSETS).as_posix() for p in ASSETS.rglob("*.js") if p.parent.name != "echarts")


def bundled(**files):
    """``a="…"`` is the file a.js, ``in_b`` in/b.js; a.js begins."""
    texts = {name.replace("_", "/") + ".js": text for name, text in files.items()}
    return bundle("a.js", texts.__getitem__)


def test_modules_come_after_what_they_import():
    text = bundled(
        a='import { one } from "./in/b.js";\nimport { two } from "./c.js";\none(two);\n',
        in_b='import { two } from "../c.js";\nexport function one() {\n  return two;\n}\n',
        c="export const two = 2;\n",
    )
    assert [line[3:] for line in text.splitlines() if line.startswith("// ")] == ["c.js", "in/b.js", "a.js"]
    assert "import" not in text
    assert "export" not in text
    assert text.count("const { two } = module0;") == 2
    assert text.startswith('(() => {\n"use strict";')


def test_it_runs_and_names_stay_apart(chromium):
    """Both files have a private ``hidden``; a function is used before the line that declares it."""
    text = bundled(
        a='import {\n  one,\n  Two,\n} from "./b.js";\n'
        "const hidden = 1;\nwindow.found = [hidden, one(), new Two().x];\n",
        b="const hidden = early();\nexport async function later() {}\nexport const one = () => hidden;\n"
        "export class Two {\n  x = 3;\n}\nfunction early() {\n  return 2;\n}\n",
    )
    tab = chromium.new_page()
    tab.set_content(f"<script>{text}</script>")
    assert tab.evaluate("window.found") == [1, 2, 3]
    assert tab.evaluate("typeof hidden + typeof one") == "undefinedundefined"
    tab.close()


@pytest.mark.parametrize(
    "line",
    [
        'import all from "./b.js";',
        'import * as all from "./b.js";',
        'import "./b.js";',
        'import { one } from "b";',
        'import { one } from "https://example.com/b.js";',
        'const all = await import("./b.js");',
        "const here = import.meta.url;",
        "export default function one() {}",
        "export let one = 1;",
        "export { one };",
        'export { one } from "./b.js";',
        "export const { one } = two;",
    ],
)
def test_other_forms_are_refused(line):
    with pytest.raises(ValueError, match="another form"):
        parse("a.js", f"const before = 1;\n{line}\n")


def test_words_in_texts_and_comments_are_none():
    text = (
        '// export const x = 1;\nconst a = "import { x } from y";\n// imports: none\nconst important = exported(a);\n'
    )
    assert parse("a.js", text) == (text, {}, [])


def test_a_name_that_is_not_exported_is_refused():
    with pytest.raises(ValueError, match=r"what b\.js does not export: two"):
        bundled(a='import { one, two } from "./b.js";\n', b="export const one = 1;\nconst two = 2;\n")
    with pytest.raises(ValueError, match="does not export: one as other"):
        bundled(a='import { one as other } from "./b.js";\n', b="export const one = 1;\n")


def test_a_circle_is_refused():
    with pytest.raises(ValueError, match=r"a\.js → b\.js → a\.js"):
        bundled(a='import { b } from "./b.js";\n', b='import { a } from "./a.js";\nexport const b = 1;\n')


def test_the_library_is_cut_to_what_the_page_draws():
    """What tools/charts/entry.js names, no chart more and none less; a browser cannot tell what it leaves out."""
    entry = (ROOT / "tools" / "charts" / "entry.js").read_text(encoding="utf-8")
    cut = {name.lower() for name in re.findall(r"\b([A-Z][a-z]+)Chart\b", entry)}
    used = set(re.findall(r'type: "(bar|custom|heatmap|line|scatter|pie|map|graph|boxplot|radar)"', script()))
    assert cut == used
    assert len((ASSETS / LIBRARY).read_text(encoding="utf-8")) < 700_000


def test_every_file_is_in_the_page():
    found = [line[3:] for line in script().splitlines() if line.startswith("// ") and line.endswith(".js")]
    assert sorted(found) == FILES
    assert found[-1] == ENTRY
    assert "</script" not in script()
