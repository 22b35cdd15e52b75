"""What may be an id in a text: a line, a cell of a table, a text in quotes, a value in JSON, or some words of a row."""

from __future__ import annotations

import html
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import taftcache.errors

MAX_JSON = 64 << 20  # signs: a longer text is taken line by line
# What separates words; also typographic and full-width signs. An id with some of them is found as words in a row.
WORD = re.compile(
    r"[^\s,;:'\"()\[\]{}<>=|`&*#?\u2018-\u201f\u2013\u2014\u2026\u2039\u203a\xab\xbb"
    r"\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]+"
)
CLOSING = frozenset(
    "?\u2019\u201d\u2026\u203a\xbb\u3009\u300b\u300d\u300f\u3011\uff01\uff09\uff1f"
)  # may also end an id
UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")  # words that a script writes without blanks
ESCAPED = re.compile("%[0-9A-Fa-f]{2}")  # a byte, in an address
WORDS_OF_AN_ID = 4  # so many words in a row may be an id with blanks in it
BLANK = ' \t\r"'  # around a cell
CELLS = "\t\r,;|"  # signs that separate the cells of a table
_CELL = re.compile(f"[{CELLS}]")
# The names of columns, keys and arrays of ids: id, sample_ids, image.id, userId; and those of other things' ids.
IDS = re.compile(r"(?:.*[^A-Za-z])?(?i:ids?)|.*[a-z]I[dD]s?|(?i:sample)")
OTHERS = re.compile(
    r"(?:.*[^a-z])?(?:class|category|label|experiment|run|process|thread|device|gpu).?ids?", re.IGNORECASE
)
KEYED = re.compile(r"(ids?|sample)[\\\"']*\s{0,3}[:=]\s{0,3}[\\\"']*([^\s,;:'\"()\[\]{}<>=|`&*#\\]+)", re.IGNORECASE)
KEY, LONGEST_KEY = re.compile(r"[\w.-]*\Z"), 64
ENDS = ".!\\"  # may follow a word without being part of it
INNER, SUFFIX = 16, 6  # folders of a path in a line after which it may end, and signs of a suffix
NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
LONG = re.compile(r"[1-9]\d{6,}")  # a number that is seldom there by chance
# Ids that are also numbers, words and dates of anything.
COMMON = re.compile(
    r"[^\W\d_]{1,16}|[+-]?0*\d{1,4}"
    r"|\d{4}([-/.])\d\d?\1\d\d?|\d\d?([-/.])\d\d?\2(?:\d\d){1,2}|\d{4}-\d\d|(?:19|20)\d\d[01]\d[0-3]\d"
)
SEVERAL, MAX_LISTED = 3, 4 << 20  # ids that make a list, and signs of a text that is looked at for one
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


class Told(str):
    """A text in a place that says that it is an id: below the heading of ids, say, or under such a key."""


def is_surely_meant(text: str) -> bool:
    """Whether a forgotten id, as ``text``, is that id and no other thing of this name.

    It is where the place says so. Elsewhere, a number of at most four digits (not counting zeros before it), a date, or
    up to 16 letters and nothing else may mean anything, and so may a number of up to six among other words.
    """
    return isinstance(text, Told) or not (isinstance(text, Number) or COMMON.fullmatch(text))


@lru_cache(1 << 12)
def names_ids(name: str) -> bool:
    """Whether a column, a key or an array with this name has ids of samples."""
    return len(name) <= LONGEST and IDS.fullmatch(name) is not None and not OTHERS.fullmatch(name)


def told(value: Any) -> Any:
    """A text, or each text of a list, as `Told`; anything else as it is."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return Told(value.decode())
    if isinstance(value, list):
        return [Told(each) if isinstance(each, str) else each for each in value]
    return Told(value) if isinstance(value, str) else value


def numeral(text: str) -> str:
    """A number that may mean anything, as `Number`; any other text as it is."""
    return Number(text) if NUMBER.fullmatch(text) and not LONG.fullmatch(text) else text


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too, and what may be an id in it; also bytes that are UTF-8."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, bytes):
            with suppress(UnicodeDecodeError):
                value = value.decode()
        if isinstance(value, Number) or (isinstance(value, Told) and NUMBER.fullmatch(value)):
            yield value
        elif isinstance(value, str):
            yield value
            if (inner := _json(value)) is not None:
                left.append(inner)
            elif len(value) > 1:
                yield from _of_text(value)
        elif isinstance(value, dict):
            left += _pairs(value.items())
        elif isinstance(value, list | tuple):
            left += value


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
    """Keys and values of an object: ids where the key says so, and of several samples a list."""
    return tuple(
        (key, told(value) if names_ids(str(key)) or (isinstance(value, list) and key == "samples") else value)
        for key, value in pairs
    )


def meant(texts: Iterable[str]) -> Iterator[str]:
    """Each text; without the apostrophes that keep a spreadsheet from computing it; and of a path, its endings."""
    for text in texts:
        yield text
        if "'" in text and (plain := DEFUSED.sub(r"\1", text)) != text:
            yield type(text)(plain)
        if ("/" in text or "\\" in text) and len(text) <= LONGEST:
            yield from map(type(text), _endings(text.replace("\\", "/")))


def names_in(name: str) -> Iterator[str]:
    """What may be an id in the name of a file, an array or a column: the name and, if it is a path, its endings, each
    with its suffix and without."""
    for text in meant((name, os.path.splitext(name)[0])):
        yield numeral(text)


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
            if "%" in line and ESCAPED.search(line):
                yield from _of_words(unquote(line))
            if not line.isascii() and UNSPACED.search(line):
                yield from _of_words(UNSPACED.sub(" ", line))
        yield from _keyed(form)
    for quoted in QUOTED.finditer(text):
        with suppress(ValueError):
            said = json.loads(f'"{quoted[1]}"').encode("utf-8", "replace").decode()  # a lone surrogate is in no id
            yield numeral(said) if is_markup else said
            if (inner := _json(said)) is not None:
                yield from texts_in(inner)
    yield from (cell[1].replace('""', '"') for cell in DOUBLED.finditer(text) if '""' in cell[1])


def _cells(line: str, heading: str) -> Iterator[str]:
    """The cells of a line: ids below a heading that says so, and a number beside others is seldom one below another."""
    if heading == line:
        heading = ""
    if _is_of_ids(heading):
        yield Told(line.strip(BLANK))
    for by in CELLS:
        if by not in line:
            continue
        of_ids = {k for k, title in enumerate(heading.split(by)) if _is_of_ids(title)}
        for k, cell in enumerate(line.split(by)):
            if k in of_ids:
                yield from map(Told, (cell, cell.strip(), cell.strip(BLANK)))
            else:
                yield from (numeral(text) if heading else text for text in (cell, cell.strip()))


def _keyed(text: str) -> Iterator[str]:
    """What a key of ids in a text has as its value, as in ``id=7``, ``sample_id: 7`` or ``"id": 7``."""
    for found in KEYED.finditer(text):
        before = KEY.search(text[max(0, found.start() - LONGEST_KEY) : found.start()])
        if names_ids((before[0] if before else "") + found[1]):
            yield Told(found[2].rstrip(ENDS))


def _is_heading(line: str, before: str) -> bool:
    """Whether a line names columns: one of ids, or any, without a number, where no line ``before`` did."""
    if before and "id" not in line.lower():
        return False
    cells = [cell.strip() for cell in _CELL.split(line)]
    return any(map(_is_of_ids, cells)) or not (before or len(cells) == 1 or any(map(NUMBER.fullmatch, cells)))


def _is_of_ids(title: str) -> bool:
    return names_ids(title.strip(BLANK))


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
    """Each word, and up to ``WORDS_OF_AN_ID`` in a row with what is between them; of a path, also its beginnings."""
    starts = deque[int](maxlen=WORDS_OF_AN_ID - 1)
    for word in WORD.finditer(line):
        begin, text = word.start(), word[0]
        for end in (*_ends(text), *([len(text) + 1] if line[word.end() : word.end() + 1] in CLOSING else ())):
            last = begin + end
            yield numeral(line[begin:last])
            yield from (line[start:last] for start in starts)
        if "/" in text and text.count("/") <= INNER:
            at = text.find("/", text.find("/") + 1)
            while at > 0:
                yield text[:at]
                at = text.find("/", at + 1)
        starts.append(begin)


def _ends(word: str) -> Iterable[int]:
    """Where an id in a word may end: with it, before signs that end a sentence, a suffix, or a folder's name."""
    whole = len(word)
    if "." not in word and "/" not in word and word[-1] not in ENDS:
        return (whole,)
    ends = {whole, len(word.rstrip(ENDS))}
    if 0 < (dot := word.rfind(".")) >= whole - SUFFIX and not NUMBER.fullmatch(word):
        ends.add(dot)
    ends.add(word.find("/"))
    return ends - {0, -1}


def listed(text: str) -> Iterator[list[str]]:
    """The columns of a text, and its lists in JSON, of ``SEVERAL`` texts or more."""
    if len(text) > MAX_LISTED:
        return
    lines = [line for line in text.split("\n") if line.strip()]
    for by in ("\n", *filter(text.__contains__, CELLS)):
        columns = zip(*(line.split(by) for line in lines), strict=False)  # a cell that is not there is no id
        long = (column for column in columns if len(column) >= SEVERAL)
        yield from ([DEFUSED.sub(r"\1", cell.strip(BLANK)) for cell in column] for column in long)
    left = [_json(text)]
    while left:
        if isinstance(value := left.pop(), list | tuple):
            left += value
            if len(value) >= SEVERAL and all(type(each) is str for each in value):
                yield [*value]


def _json(text: str) -> Any:
    """The object or list that a text writes in JSON, with numbers as ``Number`` and an object as its pairs; None if it
    writes neither."""
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MAX_JSON:
        return None
    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_int=numeral, parse_float=Number)
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
