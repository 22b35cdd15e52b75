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


# Fewer digits, and fewer but longer steps: one seed in a fifth of the time.
SHORTER = ["data.limit=500", "train.rate=5e-3", "train.epochs=15", "train.batch=32"]


PRIORS = {"plain": ("none", 0.0), "kd": ("kd", 1.0), "aft": ("aft-nnls", 1.0)}


def accuracies(tmp_path, seeds, more=(), priors=tuple(PRIORS)):
    """Mean accuracy by prior ("noise": AFT among 512 features of noise), and the share of energy on that noise."""
    limit = [o for o in more if o.startswith("data.")]
    teacher = load_recipe(
        PIPELINES / "teachers/digits-bundled.toml", [f"store.path={tmp_path / 'bundled'}", "device=cpu", *limit]
    )
    taftcache.extract(teacher)
    recipe = load_teaching(PIPELINES / "teach/digits.toml", [f"path={tmp_path / 'out'}", "device=cpu", *more])
    store = replace(recipe.teachers[0], recipe=None, store=str(tmp_path / "bundled"))
    recipe = replace(recipe, teachers=[store])
    with open_students(recipe, Silent()) as students:

        def accuracy(prior, beta, **changes):
            return mean(students.outcome(students.settings(prior, beta, seed, **changes)).accuracy for seed in seeds)

        found = {name: accuracy(*PRIORS[name]) for name in priors}
        found["noise"] = accuracy("aft-nnls", 1.0, noise=512)
        energy = students.outcome(students.settings("aft-nnls", 1.0, seeds[0], noise=512)).energy
    assert len(energy) == 96 + 512
    junk = sum(energy[96:]) / sum(energy)
    print(", ".join(f"{name} {value:.3f}" for name, value in found.items()), f"energy on noise {junk:.4f}")
    return found, junk


@pytest.mark.full
def test_priors_on_few_digits(tmp_path):
    """Among 512 features of noise, whose energy it drops, AFT beats plain training by more than chance."""
    found, junk = accuracies(tmp_path, [0], SHORTER, ["plain"])
    assert found["noise"] > found["plain"] + 0.02
    assert junk <= 0.02


@pytest.mark.slow
@pytest.mark.full
def test_priors_on_the_digits(tmp_path):
    """AFT beats plain training and KD by more than chance, also among 512 features of noise, whose energy it drops."""
    found, junk = accuracies(tmp_path, [0, 1])
    assert found["aft"] > found["plain"] + 0.02
    assert found["aft"] > found["kd"] + 0.02
    assert found["noise"] > found["aft"] - 0.03
    assert junk <= 0.02
