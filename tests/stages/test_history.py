"""History leaves no trace: whatever was asked, in whatever order and however interrupted, the rows that stay decide."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests import forked


def history(folder: Path, count: int) -> str:
    seed = int(os.environ.get("TAFTCACHE_HISTORY_SEED", random.randrange(10**6)))
    run = forked.run("tests.stages.history", folder, seed, count)
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.mark.law(
    "Whatever was asked, in whatever order and however often killed, a cold request ends in "
    "the bytes of one that was told all at once, with nothing left of their rows"
)
@pytest.mark.slow
def test_a_few_sequences_of_requests(tmp_path):
    assert "sequences" in history(tmp_path, 1)


@pytest.mark.full
def test_two_hundred_sequences_of_requests(tmp_path):
    print(history(tmp_path, 200))
