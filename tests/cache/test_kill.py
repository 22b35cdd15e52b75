"""kill -9 at any point: the last commit or the new one, and the same command again ends in the same bytes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests import forked


def crash(folder: Path, kind: str, points: str, *dtype: str) -> str:
    seed = os.environ.get("TAFTCACHE_CRASH_SEED", str(random.randrange(10**6)))
    run = forked.run("tests.cache.crash", folder, kind, seed, points, *dtype)
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
@pytest.mark.parametrize("kind", ["write", "erase", "add", "back"])
def test_kill_at_some_points(tmp_path, kind) -> None:
    assert "kills at" in crash(tmp_path, kind, "4")


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
@pytest.mark.full
@pytest.mark.parametrize("kind", ["write", "erase", "add", "back"])
def test_kill_at_every_point(tmp_path, kind) -> None:
    print(crash(tmp_path, kind, "all"))


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
@pytest.mark.full
@pytest.mark.parametrize("kind", ["write", "erase"])
def test_kill_at_every_point_of_rows_in_8_bits(tmp_path, kind) -> None:
    print(crash(tmp_path, kind, "all", "int8"))


@pytest.mark.parametrize(
    ("samples", "kills"),
    [pytest.param(10, 2, id="short"), pytest.param(1000, 50, id="long", marks=pytest.mark.full)],
)
def test_erasures_one_by_one_some_of_them_killed(tmp_path, samples, kills) -> None:
    seed = os.environ.get("TAFTCACHE_CRASH_SEED", str(random.randrange(10**6)))
    run = forked.run("tests.cache.erasing", tmp_path, samples, kills, seed)
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}\n{run.stderr}"
    assert f"{samples} samples erased" in run.stdout
    print(run.stdout)
