"""Pages with a generated part between two marks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def put(page: str, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- /name -->`` in a page of the repository."""
    path, begin, end = ROOT / page, f"<!-- {name} -->", f"<!-- /{name} -->"
    before, opened, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    assert opened, f"{page} has no place for {name}"
    assert closed, f"{page} has no place for {name}"
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
