"""How much memory prepared rows take where nobody says it."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
import torch

from taftcache.recipe import parse_recipe
from taftcache.remote.components import solve_job
from taftcache.stages import memory
from taftcache.stages.memory import free_memory, memory_of

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 8 GB free; returns a function that puts it into a container with a limit and a use."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8_000_000_000))
    monkeypatch.setattr(memory, "GROUP", tmp_path)

    def contain(most: str, now: str, files: str = "0") -> None:
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text(f"{now}\n")
        (tmp_path / "memory.stat").write_text(f"anon 17\ninactive_file {files}\nactive_file 3\n")

    return contain


def test_auto_is_a_quarter_of_what_is_free(machine):
    recipe = parse_recipe({"device": "cpu"})
    assert recipe.solver.memory == "auto"
    assert memory_of(recipe) == 2_000_000_000
    machine("3000000000", "1000000000")
    assert memory_of(recipe) == 500_000_000


@pytest.mark.parametrize(("most", "now", "free"), [("max", "5", 8_000_000_000), ("7", "9", 0), ("10", "4", 6)])
def test_a_container_leaves_no_more_than_its_limit(machine, most, now, free):
    machine(most, now)
    assert free_memory(CPU) == free


def test_files_that_were_read_are_no_memory_in_use(machine):
    machine("3000000000", "2900000000", "2400000000")
    assert free_memory(CPU) == 2_500_000_000
    machine("3000000000", "100", "2400000000")  # read one after the other, they need not agree
    assert free_memory(CPU) == 3_000_000_000


def test_what_the_recipe_leaves_open_is_shared_by_the_workers(machine):
    workers = {f"worker {k}": object() for k in range(4)}
    cluster = SimpleNamespace(workers=lambda: workers, threads=1)
    store, base = SimpleNamespace(path="/somewhere"), SimpleNamespace(digest="0" * 64)
    shared, said = (
        memory_of(parse_recipe(solve_job(cluster, store, parse_recipe(values), base).recipe))
        for values in ({"device": "cpu"}, {"device": "cpu", "solver": {"memory": "3GB"}})
    )
    assert (shared, said) == (500_000_000, 3_000_000_000)
