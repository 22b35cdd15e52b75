"""What mkdocs does not do by itself: gather pages from all over the repository, and set formulas without a script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath
from typing import Any

from math_core import LatexToMathML
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify
from reference import contents, reference_pages

ROOT = Path(__file__).resolve().parents[2]
FONT = "STIXTwoMath-Regular.ttf"
FORMULA = re.compile(r'<(div|span) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL)
NOTEBOOK = re.compile(r"(\]\([\w./]*)\.ipynb\b")
CELL = re.compile(r"<td>.*?</td>")
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Put the reference's pages where the navigation says API; anchors are spelt as code hosts spell them."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    for section in config.nav:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else ():
                for title, target in entry.items():
                    if target == "API":
                        entry[title] = [{name: place} for name, place in contents().items()]
    return config


def on_files(found: Files, config: Any) -> Files:
    """Add the navigation's pages under their places in the repository, and every file that they link to."""
    reference = reference_pages()
    pages = {place: reference.get(place) or page_text(place) for place in places(config.nav)}
    for place, text in pages.items():
        found.append(File.generated(config, place, content=text))
    linked = {target for place, text in pages.items() for target in targets(place, text)}
    for place in sorted(linked - pages.keys()):
        if (ROOT / place).is_file():
            found.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    with as_file(files("ziamath.fonts") / FONT) as font:
        found.append(File.generated(config, FONT, content=font.read_bytes()))
    return found


def on_page_content(html: str, **_: Any) -> str:
    """Every formula in MathML, which browsers draw themselves; bars in cells of tables without their backslash."""
    made = LatexToMathML()

    def drawn(match: re.Match[str]) -> str:
        return str(made.convert_with_local_state(unescape(match[3]).strip(), displaystyle=match[2] == "["))

    html = CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
    return FORMULA.sub(drawn, html)


def places(nav: Any) -> Iterator[str]:
    """Every page that a navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from places(part)


def page_text(place: str) -> str:
    """A page of the repository in Markdown; a notebook stands there as .ipynb."""
    notebook = (ROOT / place).with_suffix(".ipynb")
    if notebook.is_file():
        return notebook_text(json.loads(notebook.read_text(encoding="utf-8")), notebook.name)
    text = (ROOT / place).read_text(encoding="utf-8").replace("<details>", "<details markdown>")
    text = NOTEBOOK.sub(r"\1.md", text)
    return f"---\nhide: [navigation]\n---\n{text}" if place == "README.md" else text  # the tabs are enough there


def notebook_text(notebook: dict[str, Any], name: str) -> str:
    """Cells as Markdown: text as it is, code as a block, and below it what it printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(NOTEBOOK.sub(r"\1.md", text) if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [shown(output) for output in cell.get("outputs", ())]
    parts.insert(1, f"*This page is a notebook: [{name}]({name}).*")
    return "\n\n".join(parts)


def shown(output: dict[str, Any]) -> str:
    """One output of a cell: a picture, or text."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f'<div class="output">{"".join(data["image/svg+xml"])}</div>'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```{{.text .output}}\n{text.rstrip()}\n```"


def targets(place: str, text: str) -> Iterator[str]:
    """Places in the repository that a page links to."""
    for link in LINK.findall(text):
        if ":" not in link:
            parts: list[str] = []
            for part in (PurePosixPath(place).parent / link).parts:
                parts = parts[:-1] if part == ".." else [*parts, part]
            yield "/".join(parts)
