"""The page's text: one document with its style, scripts and chart library inside, for the server and for reports."""

from __future__ import annotations

import html
import json
from functools import cache
from importlib.resources import files
from typing import Any

from taftcache.view.atlas import Atlas
from taftcache.view.bundle import bundle

# Apache ECharts draws the map and every chart; see echarts/LICENSE and ARCHITECTURE.md.
LIBRARY = "echarts/echarts.min.js"
# A page is passed on alone, and these licences ask to go wherever the library goes.
LICENCES = tuple(f"echarts/{name}" for name in ("NOTICE", "LICENSE", "LICENSE-zrender", "LICENSE-d3"))
STYLES = ("page.css", "pictures.css", "charts.css", "print.css")
# The module that runs first; the others are found by its imports.
ENTRY = "main.js"
# A report may run the scripts inside it and load nothing, from anywhere.
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)


def beginning() -> bytes:
    """What every page begins with, by which a file is known to be one."""
    return _asset("page.html").partition("{{")[0].encode()


def live_page(atlas: Atlas, nonce: str) -> bytes:
    """The page for a server, whose policy allows the scripts that carry ``nonce``."""
    return _fill(f"taftcache view · {atlas.store.path}", nonce=nonce).encode(errors="replace")


def report_page(title: str, data: dict[str, Any], view: str = "") -> bytes:
    """A page that carries its ``data``; ``view`` shows that one alone, without the header."""
    # "<" would end the script's element; U+2028 and U+2029 are escaped by json already
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    embedded = f'<script id="data" type="application/json">{text}</script>'
    return _fill(title, data=embedded, policy=REPORT_POLICY, view=view).encode(errors="replace")


def _fill(title: str, *, data: str = "", policy: str = "", nonce: str = "", view: str = "") -> str:
    mark = f' nonce="{nonce}"' if nonce else ""
    parts = {
        "title": html.escape(title),
        "view": html.escape(view),
        "policy": f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else "",
        "style": "".join(map(_asset, STYLES)),
        "data": data,
        "scripts": f"<script{mark}>{_library()}</script>\n<script{mark}>{script()}</script>",
    }
    out = []
    for k, piece in enumerate(_asset("page.html").split("{{")):
        name, _, rest = piece.partition("}}") if k else ("", "", piece)
        out.append((parts[name] if k else "") + rest)
    return "".join(out)


@cache
def _library() -> str:
    """The chart library, with its licences before it."""
    return "\n".join(("/*", *map(_asset, LICENCES), "*/", _asset(LIBRARY)))


@cache
def script() -> str:
    """The page's own modules as one script."""
    return bundle(ENTRY, _asset)


@cache
def _asset(name: str) -> str:
    return files("taftcache.view").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")
