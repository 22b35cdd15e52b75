"""How much memory prepared rows take where nobody says it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
import pytest
import torch

import taftcache
from taftcache.errors import SolveError
from taftcache.names import readable_size
from taftcache.objective.named import named_loss
from taftcache.recipe import parse_recipe
from taftcache.remote.components import solve_job
from taftcache.solve.head.size import HeadSize
from taftcache.stages import memory
from taftcache.stages.memory import free_memory, memory_of
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import check_head_fits
from taftcache.stages.train.training import train

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 8 GB free; returns a function that puts it into a container with a limit and a use."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8_000_000_000))
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    monkeypatch.setattr(memory, "MINE", tmp_path / "mine")
    (tmp_path / "mine").write_text("0::/\n")

    def contain(most: str, now: str, files: str = "0", read: str = "0") -> None:
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text(f"{now}\n")
        (tmp_path / "memory.stat").write_text(f"anon 17\ninactive_file {files}\nactive_file {read}\n")

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
    machine("3000000000", "2900000000", "2000000000", "400000000")  # read twice, too, as a solve reads its rows
    assert free_memory(CPU) == 2_500_000_000
    machine("3000000000", "100", "2400000000")  # read one after the other, they need not agree
    assert free_memory(CPU) == 3_000_000_000


JOB = ("slurm/job_7/step_0", "slurm/job_7", "slurm", "")


@pytest.mark.parametrize("at", JOB)
@pytest.mark.parametrize("version", [1, 2])
def test_a_jobs_limit_counts_wherever_it_is_set(machine, tmp_path, at, version):
    """Schedulers set it for the job, and a process is in a group below; in a container that group cannot be seen."""
    groups, limit, use, cached = {
        1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file"),
        2: ("", "memory.max", "memory.current", "inactive_file"),
    }[version]
    mine = {1: "9:name=systemd:/\n4:cpu,memory:/slurm/job_7/step_0\n0::/\n", 2: "0::/slurm/job_7/step_0\n"}[version]
    (tmp_path / "mine").write_text(mine)
    for place in JOB:
        folder = tmp_path / groups / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text("900" if place == at else "9223372036854771712" if version == 1 else "max")
        (folder / use).write_text("500")
        (folder / "memory.stat").write_text(f"{cached} 50\n")
    assert free_memory(CPU) == 450
    with (tmp_path / "mine").open("ab") as more:
        more.write(b"7:pids:/of\xff\x0b\xe2\x80\xa8x\n\n")
    assert free_memory(CPU) == 450
    for place in JOB[:-1]:
        (tmp_path / groups / place / limit).unlink()
    assert free_memory(CPU) == (450 if at == "" else 8_000_000_000)


def test_what_the_recipe_leaves_open_is_shared_by_the_workers(machine):
    workers = {f"worker {k}": object() for k in range(4)}
    cluster = SimpleNamespace(workers=lambda: workers, threads=1)
    store, base = SimpleNamespace(place="/somewhere"), SimpleNamespace(digest="0" * 64)
    shared, said = (
        memory_of(parse_recipe(solve_job(cluster, store, parse_recipe(values), base).recipe))
        for values in ({"device": "cpu"}, {"device": "cpu", "solver": {"memory": "3GB"}})
    )
    assert (shared, said) == (500_000_000, 3_000_000_000)


SIDE, ROWS, BLOCKS = 648, 27, 24  # bytes of a matrix, rows of the larger shard, blocks in memory at most
READ = 8 * 9 * 3 * ROWS  # a shard of one block, and two blocks more


@pytest.fixture
def vectors(monkeypatch, tmp_path):
    """A store of vectors of 8 numbers in 2 shards, whose matrices take 648 bytes each, on a machine with
    next to no memory; returns its place and a function that says what is free, at one look after another."""
    x = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    taftcache.import_vectors(x, [0, 1, 2] * 20, tmp_path / "store", overrides=["store.shards=2", "objective.alpha=1.0"])

    def free(*bytes_: int) -> None:
        left = list(bytes_)
        found = lambda _: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731
        monkeypatch.setattr("taftcache.stages.train.solving.free_memory", found)

    return tmp_path / "store", free


def test_a_head_without_room_for_its_matrices_is_refused_before_anything_is_solved(vectors, monkeypatch):
    path, free = vectors
    needed = 3 * SIDE + READ
    for rows, looks in ((ROWS, (needed - 1,)), (20, (needed, 0))):  # at the second component, too
        free(*looks)
        with monkeypatch.context() as patched:
            patched.setattr("taftcache.stages.train.training.solve_component", None)
            with pytest.raises(SolveError, match="to fit in memory") as refused:
                train(path)
        assert f"objective.ridge {readable_size(SIDE + READ * rows // ROWS)}" in str(refused.value)
        assert "solver.memory" not in str(refused.value), "auto is what is left"
    with monkeypatch.context() as patched:  # memory may have gone meanwhile, and a worker has its own
        patched.setattr("taftcache.stages.train.training.check_head_fits", lambda *_, **__: 0)
        with pytest.raises(SolveError, match="to fit in memory"):
            train(path)
    free(needed)
    assert train(path).trained


def test_rows_that_a_number_keeps_are_counted(vectors):
    path, free = vectors
    needed, rows = 3 * SIDE + READ, 8 * 9 * ROWS
    for given, kept in (("1GiB", rows), ("100B", 100), ("0B", 0)):
        with taftcache.FeatureStore(path) as store:
            settings = settings_of(store, None, {"solver.memory": given})
            free(needed + kept)
            assert check_head_fits(settings, store.shards[:1], "head", chosen=True) == needed
            free(needed + kept - 1)
            with pytest.raises(SolveError, match="to fit in memory") as refused:
                check_head_fits(settings, store.shards[:1], "head", chosen=True)
            assert ('or solver.memory = "0B"' in str(refused.value)) == bool(kept)


def test_auto_takes_part_of_what_a_head_leaves(machine):
    recipe = parse_recipe({"device": "cpu"})
    assert memory_of(recipe, 6_000_000_000) == 500_000_000
    assert memory_of(recipe, 9_000_000_000) == 0
    assert memory_of(parse_recipe({"device": "cpu", "solver": {"memory": "3GB"}}), 6_000_000_000) == 3_000_000_000


def test_a_solve_keeps_rows_in_what_its_head_leaves(vectors, monkeypatch):
    path, free = vectors
    free(10**6)
    asked = []
    real = Settings.arithmetic_beside
    monkeypatch.setattr(Settings, "arithmetic_beside", lambda self, n: (asked.append(n), real(self, n))[1])
    train(path)
    assert max(asked) == 3 * SIDE + READ
    assert min(asked) > 3 * SIDE


def test_a_given_ridge_needs_one_matrix_and_cross_entropy_none(vectors):
    path, free = vectors
    for change, room in ({"ridge": 1e-3}, SIDE + READ), ({"loss": "cross_entropy"}, 0):
        free(room)
        with taftcache.FeatureStore(path) as store:
            settings = settings_of(store).at(**change)
            check_head_fits(settings, store.shards[:1], "head", chosen=settings.chooses_ridge)
            if room:
                free(room - 1)
                with pytest.raises(SolveError, match="to fit in memory"):
                    check_head_fits(settings, store.shards[:1], "head", chosen=False)


@pytest.mark.parametrize(("rows", "blocks"), [(60, 5), (64, 5.2), (2000, BLOCKS), (200_000, BLOCKS)])
def test_blocks_of_wide_rows_are_counted_beside_the_matrices(rows, blocks):
    """Of rows in few blocks all of them, and two blocks more."""
    size = HeadSize(named_loss("rsl", 1.0, 5.0), rows, 50_001, 3)
    each = min(rows, 20)
    assert size.block_bytes(20, chosen=True) == 8 * 50_001 * each * blocks
    assert size.block_bytes(20, chosen=False) <= size.block_bytes(20, chosen=True)


def test_what_leaves_rows_out_needs_room_whatever_the_recipe_solves_by(vectors):
    path, free = vectors
    with taftcache.FeatureStore(path) as store:
        made = settings_of(store)
        prior = msgspec.structs.replace(made.recipe.prior, teachers=["teacher"])
        settings = replace(made, recipe=msgspec.structs.replace(made.recipe, prior=prior))
        free(0)
        check_head_fits(settings, store.shards, "full", chosen=True)
        with pytest.raises(SolveError, match="to fit in memory"):
            check_head_fits(settings, store.shards, "full", chosen=True, left_out=3)
