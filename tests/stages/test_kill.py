"""The pipeline itself, killed at random moments and started again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]


@pytest.mark.law("Whole stages killed at any moment lose no acknowledged row and leave no stray file")
@pytest.mark.parametrize("kills", [pytest.param(2, id="short"), pytest.param(500, id="long", marks=pytest.mark.full)])
def test_random_kills(tmp_path, kills):
    seed = os.environ.get("TAFTCACHE_CRASH_SEED", str(random.randrange(10**6)))
    command = [sys.executable, "-m", "tests.stages.crash", str(tmp_path), str(kills), seed]
    run = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}\n{run.stderr}"
    print(run.stdout)
