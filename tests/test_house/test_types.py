"""What the pages show has the right types; a file of its own, for it begins last, when ``make check`` has left mypy's
memory of the libraries."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.test_house.pages import PAGES, ROOT, blocks

OWN = """[[tool.mypy.overrides]]
module = {pages}
allow_redefinition = true
allow_untyped_calls = true
allow_untyped_defs = true
disallow_any_generics = false
warn_unused_ignores = false
"""
# docs/store.md says so, and how to write it for a type checker
KNOWN = 'Argument 1 to "DataLoader" has incompatible type "RowDataset"'


@pytest.mark.slow
def test_python_blocks_have_the_right_types():
    """A type checker refused what the pages show: a tensor as images, rows of a store in a loop."""
    folder = ROOT / ".mypy_cache" / "pages"  # always the same, for mypy keeps what it said of a file
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [""] * text.count("\n")
        for block in (b for b in blocks(text) if b.language == "python"):
            own = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(own)] = own
        if any(lines):  # the numbers of lines are those of the page, whose first one is its name
            lines[0] = "from typing import Any"
            typed = re.sub("^import (timm|zarr)$", r"\1: Any", "\n".join(lines), flags=re.MULTILINE)
            name = re.sub("[^a-z]", "_", str(page.relative_to(ROOT)).removesuffix(".md").lower())
            (folder / f"{name}.py").write_text(f"{typed}\n", encoding="utf-8")
    files = sorted(folder.glob("*.py"))
    # Settings of the pages alone: what mypy knows of a module serves whoever asks with the same ones.
    own = OWN.format(pages=[file.stem for file in files])
    config = folder / "mypy.toml"
    config.write_text(f"{(ROOT / 'pyproject.toml').read_text(encoding='utf-8')}\n{own}", encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", f"--config-file={config}", *files], cwd=ROOT, capture_output=True, text=True
    )
    place = str(folder.relative_to(ROOT))
    found = [line for line in checked.stdout.splitlines() if line.startswith(place) and ": error: " in line]
    assert [line for line in found if KNOWN not in line] == []
    assert len(found) == 1, checked.stdout + checked.stderr
