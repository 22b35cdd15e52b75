"""Pages with a generated part between two marks, and the reports that it is made from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPPOSITE = {"ahead": "behind", "behind": "ahead", "within noise": "within noise"}


def kept(name: str) -> Any:
    """A report that is kept in docs/results."""
    return json.loads((ROOT / "docs" / "results" / name).read_text(encoding="utf-8"))


def measured(*reports: Mapping[str, Any]) -> str:
    """A sentence on where and of what reports were measured, as far as they say."""
    said = {
        "machine": "{}",
        "threads": "threads of torch: {}",
        "torch": "torch {}",
        "date": "{}",
        "commit": "commit {}",
    }
    each = {key: dict.fromkeys(str(of[key]) for of in reports if of.get(key) is not None) for key in said}
    there = [text.format(" and ".join(each[key])) for key, text in said.items() if each[key]]
    lost = [key for key in ("machine", "date", "commit") if not each[key]]
    return "Measured: " + "; ".join([*there, *([f"{', '.join(lost)} not kept"] if lost else [])]) + "."


def seconds(value: float) -> str:
    """Two digits of what is short; whole seconds of what takes longer."""
    return f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"


def interval(values: Sequence[float]) -> str:
    """An accuracy in percent with its interval."""
    value, low, high = (100 * each for each in values)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def signed(values: Sequence[float]) -> str:
    """A difference in points with its interval."""
    ahead, low, high = (f"{100 * each:+.1f}".replace("-", "−") for each in values)
    return f"{ahead} ({low} to {high})"


def put(page: str, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- /name -->`` in a page of the repository."""
    path, begin, end = ROOT / page, f"<!-- {name} -->", f"<!-- /{name} -->"
    before, opened, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    assert opened, f"{page} has no place for {name}"
    assert closed, f"{page} has no place for {name}"
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
