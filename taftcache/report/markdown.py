"""The parts of a page in Markdown, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable


def section(title: str, body: Iterable[str]) -> list[str]:
    """A heading of the second level and what stands below it."""
    return [f"## {title}", "", *body, ""]


def bullets(sentences: Iterable[str]) -> list[str]:
    """One item a sentence."""
    return [f"- {sentence}" for sentence in sentences]


def picture(caption: str, address: str) -> list[str]:
    """A plot that lies at ``address``, relative to the page."""
    return [f"![{caption}]({address})", ""]
