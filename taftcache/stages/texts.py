"""What may be an id in a text: a line, a cell of a table, a text in quotes, a value in JSON, or some words of a row."""

from __future__ import annotations

import html
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import taftcache.errors

MAX_JSON = 64 << 20  # signs: a longer text is taken line by line
WORD = re.compile(r"[^\s,;:'\"()\[\]{}<>=|`&*#]+")
WORDS_OF_AN_ID = 4  # so many words in a row may be an id with blanks in it
CELLS = "\t\r,;|"  # signs that separate the cells of a table
_CELL = re.compile(f"[{CELLS}]")
# The names of columns and arrays of ids: id, sample_ids, image.id.
IDS = re.compile(r"(?:.*[^a-z])?ids?", re.IGNORECASE)
ENDS = ".!?\\"  # may follow a word without being part of it
NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
# Texts in double quotes, as JSON writes them, and cells of a CSV file, in which quotes are doubled. Without "+" after
# their counts, a quote without its other half takes memory for every sign, or a time that grows with the square; for
# the same reason a text may also end with its line, or with the file.
QUOTED = re.compile(r'"([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)(?:"|\\?$)', re.MULTILINE)
DOUBLED = re.compile(r'"((?:[^"]++|"")*+)(?:"|\Z)')
NO_SIGN = re.compile("&#[0-9]{20,};?")  # no sign has so large a number, and Python reads none of 4,301 digits
COLOURS = re.compile(r"\x1b\[[\d;]*m")
SOURCES = {".py", ".js", ".html", ".css"}
# Where a CSV file of ours has an apostrophe before what a spreadsheet would compute.
DEFUSED = re.compile(r"(\A|[;\t\r\n])'(?=[=+\-@\t\r\uff1d\uff0b\uff0d\uff20])")
LONGEST, DEEPEST = 4096, 64  # characters of a path, and how many of its endings are tried


class Number(str):
    """A number in JSON, among other words, or as a name: seldom an id, for nearly every text has numbers."""


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too, and what may be an id in it; also bytes that are UTF-8."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, bytes):
            with suppress(UnicodeDecodeError):
                value = value.decode()
        if isinstance(value, Number):
            yield value
        elif isinstance(value, str):
            yield value
            if (inner := _json(value)) is not None:
                left.append(inner)
            elif len(value) > 1:
                yield from _of_text(value)
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            left += value


def meant(texts: Iterable[str]) -> Iterator[str]:
    """Each text; without the apostrophes that keep a spreadsheet from computing it; and of a path, its endings."""
    for text in texts:
        yield text
        if "'" in text and (plain := DEFUSED.sub(r"\1", text)) != text:
            yield plain
        if ("/" in text or "\\" in text) and len(text) <= LONGEST:
            yield from _endings(text.replace("\\", "/"))


def names_in(name: str) -> Iterator[str]:
    """What may be an id in the name of a file, an array or a column: the name and, if it is a path, its endings, each
    with its suffix and without."""
    for text in meant((name, os.path.splitext(name)[0])):
        yield Number(text) if NUMBER.fullmatch(text) else text


def _endings(path: str) -> Iterator[str]:
    at = path.rfind("/")
    for _ in range(DEEPEST):
        if at < 0:
            break
        yield path[at + 1 :]
        at = path.rfind("/", 0, at)


def _of_text(text: str) -> Iterator[str]:
    """Lines, cells of a table, words, and quoted strings as JSON and CSV write them."""
    is_markup = text.lstrip()[:1] == "<"  # a comma in it separates no cells, and a text in quotes may be a width
    for form in _forms(text):
        heading = ""
        for line in form.split("\n"):
            line = line.removesuffix("\r")
            yield from {line, line.strip()}
            if not is_markup:
                heading = line if _is_heading(line, heading) else heading
                yield from _cells(line, heading)
            yield from _of_words(line)
    for quoted in QUOTED.finditer(text):
        with suppress(ValueError):
            said = json.loads(f'"{quoted[1]}"').encode("utf-8", "replace").decode()  # a lone surrogate is in no id
            yield Number(said) if is_markup and NUMBER.fullmatch(said) else said
            if (inner := _json(said)) is not None:
                yield from texts_in(inner)
    yield from (cell[1].replace('""', '"') for cell in DOUBLED.finditer(text) if '""' in cell[1])


def _cells(line: str, heading: str) -> Iterator[str]:
    """The cells of a line; a number beside others is seldom an id below a ``heading``, unless that has ids there."""
    for by in CELLS:
        if by not in line:
            continue
        of_ids = {k for k, title in enumerate(heading.split(by)) if _is_of_ids(title)}
        for k, cell in enumerate(line.split(by)):
            for text in (cell, cell.strip()):
                yield Number(text) if heading and k not in of_ids and NUMBER.fullmatch(text) else text


def _is_heading(line: str, before: str) -> bool:
    """Whether a line names columns: one of ids, or any, without a number, where no line ``before`` did."""
    if before and "id" not in line.lower():
        return False
    cells = [cell.strip() for cell in _CELL.split(line)]
    return any(map(_is_of_ids, cells)) or not (before or len(cells) == 1 or any(map(NUMBER.fullmatch, cells)))


def _is_of_ids(title: str) -> bool:
    return IDS.fullmatch(title.strip(' "')) is not None


def _forms(text: str) -> Iterator[str]:
    """The text as it is; without a terminal's colours; and with HTML's entities and SQL's doubled quotes as the signs
    that they mean."""
    yield text
    if "\x1b" in text:
        yield COLOURS.sub(" ", text)
    if "&" in text and (plain := html.unescape(NO_SIGN.sub(" ", text))) != text:
        yield plain
    if "''" in text:
        yield text.replace("''", "'")


def _of_words(line: str) -> Iterator[str]:
    """Each word, and up to ``WORDS_OF_AN_ID`` in a row with what is between them."""
    starts = deque[int](maxlen=WORDS_OF_AN_ID - 1)
    for word in WORD.finditer(line):
        for end in dict.fromkeys((word.end(), word.start() + len(word[0].rstrip(ENDS)))):
            last = line[word.start() : end]
            yield Number(last) if NUMBER.fullmatch(last) else last
            yield from (line[start:end] for start in starts)
        starts.append(word.start())


def _json(text: str) -> Any:
    """The object or list that a text writes in JSON, with numbers as ``Number`` and an object as its pairs; None if it
    writes neither."""
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MAX_JSON:
        return None
    try:
        return json.loads(text, object_pairs_hook=tuple, parse_int=Number, parse_float=Number)
    except (ValueError, RecursionError):
        return None


def is_said_anyway(text: str) -> bool:
    """Whether ``text`` is a word in taftcache's own files, or stands in quotes there, such as "mean" or "closed form".

    A store and what is made of it have these, too, whatever its samples are called. A number is no word.
    """
    return text in _said_by_taftcache() and not NUMBER.fullmatch(text)


@cache
def _said_by_taftcache() -> frozenset[str]:
    files = (file for file in Path(taftcache.errors.__file__).parent.rglob("*") if file.suffix in SOURCES)
    texts = (file.read_text("utf-8") for file in files)
    return frozenset(chain.from_iterable((*WORD.findall(text), *QUOTED.findall(text)) for text in texts))
