"""Blocks of the project's pages, and how each kind is tried."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest

from taftcache.cli import main
from taftcache.recipe import parse_recipe
from taftcache.teaching.recipe import parse_teaching
from taftcache.view.server import ViewServer
from tests.remote.making import UNLIMITED, dask, scheduler

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "pipelines/README.md", ROOT / "stores/README.md"]
)


class BlockOf(NamedTuple):
    """A fenced block: its language, its text, and the line that it begins at."""

    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[BlockOf]:
    """The fenced blocks of a page, in order."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield BlockOf(match[1], match[2], page[: match.start()].count("\n") + 2)


def try_block(block: BlockOf, file: Path, namespace: dict[str, Any]) -> None:
    """Run it, or read it with what it is written for; fails where it is wrong or of a kind that nobody tries."""
    if block.language == "python":
        # Blank lines in front, so that a traceback names the page's own line.
        exec(compile("\n" * (block.line - 1) + block.text, str(file), "exec", dont_inherit=True), namespace)
    elif block.language == "sh":
        for line in block.text.replace("\\\n", " ").splitlines():
            try_command(line, f"{file.name}:{block.line}")
    elif block.language == "toml":
        values = tomllib.loads(block.text)
        (parse_teaching if "teachers" in values else parse_recipe)(values, file.name)
    elif block.language != "text":
        pytest.fail(f"{file.name}:{block.line}: a block is python, sh, toml or text, not {block.language!r}")


def try_command(line: str, where: str, *more: str) -> None:
    """Run a ``taftcache`` command with ``more`` options; of any other, see that what it names is there."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[:2] == ["taftcache", "view"]:
        try_view(words, where)
    elif words[0] == "taftcache" and "--scheduler" in words:
        try_scheduler(words, where)
    elif words[0] == "dask":
        command = importlib.import_module(f"distributed.cli.dask_{words[1]}").main
        command.make_context(words[1], words[2:])
    elif words[0] == "taftcache":
        run_command([*words[1:], *more], f"{where}: {line}")
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[1] in targets, f"{where}: {line}"
    elif words[0] in ("python", "python3"):
        assert words[1] == "-m" or (ROOT / words[1]).is_file(), f"{where}: {line}"
    else:
        installs = words == ["pip", "install", "."]  # tests/test_wheel.py does
        assert installs or words[0] in ("git", "cd", ".ci/run"), f"{where}: nobody tries {line!r}"


def run_command(arguments: list[str], where: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code in (0, None), where


def try_view(words: list[str], where: str) -> None:
    """Serve the page until it was asked for once, for it would go on until Ctrl-C."""
    answered = []

    def ask(server: ViewServer) -> None:
        with urlopen(server.url) as answer:
            answered.append(answer.status)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViewServer, "wait", ask)
        patch.setattr(os, "_exit", sys.exit)  # which ends the process, and here that is the tests'
        run_command([*words[1:], "--no-browser"], where)
    assert answered == [200], where


def try_scheduler(words: list[str], where: str) -> None:
    """Run the command on a scheduler of this machine with one worker, in the place of the page's."""
    at = words.index("--scheduler") + 1
    with scheduler() as (address, _), dask("worker", address, *UNLIMITED):
        try_command(shlex.join([*words[: at - 1], *words[at + 1 :]]), where, "--scheduler", address)


def links(page: str) -> set[str]:
    """Relative links and pictures of a page, without their anchors."""
    found = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", page)
    targets = {(a or b).partition("#")[0] for a, b in found}
    return {t for t in targets if t and not re.match(r"[a-z]+:", t)}


def load_tool(name: str) -> ModuleType:
    """A script of ``tools/`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
