"""The form of every error's first line, one plain sentence that says what went wrong, and of its advice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from taftcache import errors

KINDS = {name for name, of in vars(errors).items() if isinstance(of, type) and issubclass(of, Exception)} | {
    "ValueError",
    "TypeError",
    "KeyError",
    "RuntimeError",
    "NotImplementedError",
}
THINGS = "samples|ids|rows|images|classes|shards|labels|components|workers|tombstones|files|entries|receipts|vectors"
GAP = "\N{HORIZONTAL ELLIPSIS}"  # stands where an f-string fills something in
# A log that keeps one line must say that something failed: one of these words is in it, or two things are set
# against each other ("class_weights has 2 values, the store has 10 classes").
FAILURE = re.compile(
    r"\b(not|no|none|nothing|never|neither|nor|cannot|\w+n't|must|needs?|without|already|missing|unknown|only|but|too|"
    r"twice|differs?|different|disagrees?|damaged|refused|invalid|fails?|failed|instead|more|less|fewer|exceeds?|beyond|"
    r"outside|lost|stopped|unreadable|empty|wrong|another|other|stale|full|forgotten|locked|left|unexpected|broken|"
    r"interrupted|ended|changed|above|below|in use|NaN|infinit\w+|did you mean)\b"
    r"|\b(has|have|is|are|was|were)\b.*[,;:].*\b(has|have|is|are|was|were)\b"
)


class Message(NamedTuple):
    """An error's first line as it stands in the code, what an f-string fills in left open."""

    line: int
    kind: str
    text: str


def messages(source: str) -> Iterator[Message]:
    """The first line of every error that a file makes, where its text stands in the call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            text = _text(node.args[0]) if name in KINDS else None
            if text is not None:
                yield Message(node.lineno, name, text)


def without_advice(source: str, kinds: Iterable[str] = ("RecipeError", "ArgumentError")) -> Iterator[int]:
    """Lines on which a file makes an error of these kinds, a user's own mistake, and does not say what to try."""
    for node in ast.walk(ast.parse(source)):
        made = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in kinds
        if made and not any(keyword.arg in ("do", None) for keyword in node.keywords):
            yield node.lineno


def uncounted(source: str) -> list[str]:
    """Numbers of things in f-strings that would be wrong of one: `names.counted` says them."""
    return re.findall(rf"(?<!of )(?<!of the ){{len\([^{{}}]*\)}} (?:(?!of)[a-z-]+ )?(?:{THINGS})\b", source)


def advice(source: str) -> Iterator[Message]:
    """What to try after every error that a file makes, where its text stands in the call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "do":
            either = isinstance(node.value, ast.IfExp)
            for value in (node.value.body, node.value.orelse) if either else (node.value,):
                if text := _text(value):
                    yield Message(node.lineno, "try:", text)


def faults(text: str) -> list[str]:
    """What is wrong with the form of a first line."""
    found = form(text)
    if not text.strip():
        found.append("is empty")
    if "\n" in text:
        found.append("has several lines")
    if not FAILURE.search(text) and text.strip(GAP):
        found.append("does not say that something went wrong")
    return found


def form(text: str) -> list[str]:
    """What is wrong with how a line of an error begins and ends."""
    found = ["begins with a capital"] if re.match(r"[A-Z][a-z]+ ", text) else []
    return found + (["ends in a full stop"] if text.rstrip().endswith((".", "!")) else [])


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(p.value if isinstance(p, ast.Constant) else GAP for p in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None and right is None else f"{left or GAP}{right or GAP}"
    return None
