"""The digits, taught by the bundled backbone: the short form of pipelines/teach/digits.toml."""

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


@pytest.mark.slow
def test_priors_on_the_digits(tmp_path):
    """AFT beats plain training and KD by more than chance, also among 512 features of noise, whose energy it drops."""
    teacher = load_recipe(
        PIPELINES / "teachers/digits-bundled.toml", [f"store.path={tmp_path / 'bundled'}", "device=cpu"]
    )
    taftcache.extract(teacher)
    recipe = load_teaching(PIPELINES / "teach/digits.toml", [f"path={tmp_path / 'out'}", "device=cpu"])
    store = replace(recipe.teachers[0], recipe=None, store=str(tmp_path / "bundled"))
    recipe = replace(recipe, teachers=[store])
    with open_students(recipe, Silent()) as students:

        def accuracy(prior, beta, **changes):
            return mean(students.outcome(students.settings(prior, beta, seed, **changes)).accuracy for seed in (0, 1))

        plain, distilled, taught = accuracy("none", 0.0), accuracy("kd", 1.0), accuracy("aft-nnls", 1.0)
        noisy = accuracy("aft-nnls", 1.0, noise=512)
        energy = students.outcome(students.settings("aft-nnls", 1.0, 0, noise=512)).energy
        junk = sum(energy[96:]) / sum(energy)
    print(f"STL {plain:.3f}, KD {distilled:.3f}, AFT {taught:.3f}, with noise {noisy:.3f}, energy on noise {junk:.4f}")
    assert len(energy) == 96 + 512
    assert taught > plain + 0.02
    assert taught > distilled + 0.02
    assert noisy > taught - 0.03
    assert junk <= 0.02
