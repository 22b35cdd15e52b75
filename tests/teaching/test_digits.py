"""The digits, taught by the bundled backbone: two seeds of pipelines/teach/digits.toml."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
from msgspec.structs import replace

import taftcache
from taftcache.recipe import load_recipe
from taftcache.stages.progress import Silent
from taftcache.stages.train.teaching import open_students
from taftcache.teaching.recipe import load_teaching

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"


PRIORS = {"plain": ("none", 0.0), "kd": ("kd", 1.0), "aft": ("aft-nnls", 1.0)}


@pytest.mark.slow
@pytest.mark.full
def test_priors_on_the_digits(tmp_path):
    """AFT beats plain training and KD by more than chance, also among 512 features of noise, whose energy it drops."""
    teacher = load_recipe(
        PIPELINES / "teachers/digits-bundled.toml", [f"store.path={tmp_path / 'bundled'}", "device=cpu"]
    )
    taftcache.extract(teacher)
    recipe = load_teaching(PIPELINES / "teach/digits.toml", [f"path={tmp_path / 'out'}", "device=cpu"])
    recipe = replace(recipe, teachers=[replace(recipe.teachers[0], recipe=None, store=str(tmp_path / "bundled"))])
    with open_students(recipe, Silent()) as students:

        def accuracy(prior, beta, **changes):
            return mean(students.outcome(students.settings(prior, beta, seed, **changes)).accuracy for seed in (0, 1))

        found = {name: accuracy(*PRIORS[name]) for name in PRIORS}
        noisy = accuracy("aft-nnls", 1.0, noise=512)
        energy = students.outcome(students.settings("aft-nnls", 1.0, 0, noise=512)).energy
    assert len(energy) == 96 + 512
    assert found["aft"] > found["plain"] + 0.02
    assert found["aft"] > found["kd"] + 0.02
    assert noisy > found["aft"] - 0.03
    assert sum(energy[96:]) <= 0.02 * sum(energy)
