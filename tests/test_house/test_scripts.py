"""The page's scripts keep the rules of .oxlintrc.json, and the rules find what they are for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "taftcache" / "view" / "assets"
LIMIT = 60


def tool(name: str) -> str:
    """A linter or formatter of the dev extra: beside this Python, or on the PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install '.[dev]'")
    return found


def lint(folder: Path) -> tuple[int, str]:
    """The linter's exit code and what it says."""
    command = [tool("oxlint"), "-c", ROOT / ".oxlintrc.json", "--format", "unix", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_scripts_pass_the_linter():
    code, said = lint(ASSETS)
    assert code == 0, said


def test_the_scripts_are_formatted():
    command = [tool("oxfmt"), "-c", ROOT / ".oxfmtrc.json", "--list-different", "."]
    done = subprocess.run(command, cwd=ASSETS, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("max-lines-per-function", "export function one() {\n" + "  one();\n" * (LIMIT - 1) + "}\n"),
        ("max-lines-per-function", "export const one = () => {\n" + "  one();\n" * (LIMIT - 1) + "};\n"),
        ("no-undef", "export const one = () => two();\n"),
        ("no-unused-vars", "const one = 1;\n"),
        ("no-unused-vars", 'import { known } from "./other.js";\n'),
        ("eqeqeq", "export const one = (x) => x == 1;\n"),
        ("prefer-const", "export function one() {\n  let x = 1;\n  return x;\n}\n"),
        ("no-shadow", "export const one = 1;\nexport const two = (one) => one;\n"),
        ("named", 'import { two } from "./other.js";\nexport const one = two;\n'),
        ("no-cycle", 'import { back } from "./back.js";\nexport const one = back;\n'),
    ],
)
def test_a_planted_breach_is_found(tmp_path, rule, text):
    (tmp_path / "planted.js").write_text(text)
    (tmp_path / "other.js").write_text("export const known = 1;\n")
    back = 'import { one } from "./planted.js";\nexport const back = () => one;\n'
    (tmp_path / "back.js").write_text(back if "back" in text else "")
    code, said = lint(tmp_path)
    assert code != 0
    assert f"({rule})" in said, said


def test_a_function_of_the_longest_length_passes(tmp_path):
    (tmp_path / "planted.js").write_text("export function one() {\n" + "  one();\n" * (LIMIT - 2) + "}\n")
    assert lint(tmp_path)[0] == 0
