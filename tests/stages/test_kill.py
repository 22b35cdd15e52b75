"""The pipeline itself, killed at random moments and started again."""

from __future__ import annotations

import os
import random

import pytest

from tests import forked


@pytest.mark.law("Whole stages killed at any moment lose no acknowledged row and leave no stray file")
@pytest.mark.parametrize("kills", [pytest.param(1, id="short"), pytest.param(500, id="long", marks=pytest.mark.full)])
def test_random_kills(tmp_path, kills):
    seed = os.environ.get("TAFTCACHE_CRASH_SEED", str(random.randrange(10**6)))
    run = forked.run("tests.stages.crash", tmp_path, kills, seed)
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}\n{run.stderr}"
    print(run.stdout)
