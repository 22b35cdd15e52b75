"""What all tests share: processes of tests that do not fight for the processor, and that can be interrupted."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from taftcache.rounding import round_rows_alike
from tests import forked

gc.disable()  # what imports leave behind stays: looking at it again and again is a tenth of a run

# Before anything imports torch, and with or without workers: stores of tests are compared byte by byte.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests say how wide their terminal is and whether it is one, and whether the Hub is asked.
for name in ("COLUMNS", "FORCE_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "GITHUB_ACTIONS", "HF_HUB_OFFLINE"):
    os.environ.pop(name, None)
for name in ("NO_PROXY", "no_proxy"):  # servers of tests are on this machine
    hosts = filter(None, os.environ.get(name, "").split(","))
    os.environ[name] = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))

# On a busy machine an example may take as long as it likes.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

round_rows_alike(every_shape=True)  # for private sums; read when torch multiplies for the first time

# What stores may open is remembered for the user (taftcache.consent): tests have a list of their own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="taftcache-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; commands under test inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files whose tests share what takes seconds to begin (the server that forks, Dask's workers; Chromium; torch.export):
# one worker runs them, one after another.
TOGETHER = {
    "forks": (
        "remote/",
        "backbone/test_processes.py",
        "cache/test_kill.py",
        "cli/test_processes.py",
        "stages/test_export.py",
        "stages/test_file_texts.py",
        "stages/test_history.py",
        "stages/test_kill.py",
        "stages/test_writing.py",
        "test_component.py",
    ),
    "programs": (
        "stages/test_byproducts.py",
        "stages/test_model_export.py",
        "stages/test_programs.py",
        "test_house/test_pages.py",
    ),
    "browser": (
        "view/test_browser.py",
        "view/test_bundle.py",
        "view/test_forgotten.py",
        "view/test_looking.py",
        "view/test_numbers.py",
        "view/test_reach.py",
        "view/test_states.py",
        "view/test_workbench.py",
    ),
}
# What takes longest, in seconds: begun last, one of them would keep a worker busy alone.
LONGEST = {
    "forks": 45,
    "programs": 25,
    "browser": 32,
    "cache/test_bucket.py": 14,
    "stages/test_forget_warm.py": 10,
    "teaching/test_taught.py": 10,
    "test_estimator.py": 10,
    "solve/test_decisive.py": 5,
    "backbone/test_extract.py": 5,
    "stages/test_compare.py": 7,
    "test_estimator_images.py": 7,
    "test_surroundings.py": 7,
    "cli/test_reports.py": 6,
    "solve/test_body_kernel.py": 6,
    "stages/test_forget.py": 6,
    "teaching/test_training.py": 6,
    "test_rounding.py": 6,
    "backbone/test_refused_cuts.py": 5,
    "stages/test_append.py": 5,
    "stages/test_influence.py": 5,
    "stages/test_predict.py": 5,
}


def unit(file: str) -> str:
    """What one worker runs whole: the file (its path below ``tests/``), or what it is in ``TOGETHER`` with."""
    return next((name for name, files in TOGETHER.items() if file.startswith(files)), file)


def pytest_configure(config: pytest.Config) -> None:
    """What is forked ends, and says where it stood, before pytest ends the process that waits for it."""
    if seconds := float(config.getini("faulthandler_timeout")):
        forked.SECONDS = 0.9 * seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test and its fixtures draw does not depend on which tests came before."""
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed asks three times for the stack, which pytest makes deep
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


def pytest_collection_finish() -> None:
    """From here on garbage is collected; what was imported is none, in this process or in one that it forks."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # not at every 700 new objects: that is a twentieth of a run
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries that count what is left at the end shall find nothing."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Long units first, each without a break; workers take them in this order (``--no-loadscope-reorder``)."""
    here = Path(__file__).parent
    units = {path: unit(path.relative_to(here).as_posix()) for path in {item.path for item in items}}
    items.sort(key=lambda item: (-LONGEST.get(units[item.path], 0), units[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers are given units. A test that ended its worker is not run again; xdist's own would end the next, too."""
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(super()._split_scope(nodeid).removeprefix("tests/"))

        def remove_node(self, node: Any) -> str | None:
            work = self.assigned_work.pop(node)
            left = [(tests, test) for tests in work.values() for test, done in tests.items() if not done]
            if not left:
                return None
            tests, crashed = left[0]
            tests[crashed] = True
            self.workqueue.update({scope: tests for scope, tests in work.items() if not all(tests.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

    return Units(config, log)


# Stores that several folders share. What makes them is imported late: the process that hands tests to workers loads
# this file too.


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty digits through every stage: two shards and a held-out one. Not to be written to."""
    import taftcache
    from tests.stages.making import recipe
    from tests.threads import in_one_thread

    path = tmp_path_factory.mktemp("finished") / "store"
    with in_one_thread():  # as the tests that make it again: the last digits are of the number of threads
        taftcache.run(recipe(path))
    return path


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    """A copy of ``finished``."""
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of fourteen PNG files. Not to be written to."""
    from tests.stages.making import write_images

    return write_images(tmp_path_factory.mktemp("images") / "digits")


@pytest.fixture(scope="session")
def photographed(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    """The store of ``images`` after every stage. Not to be written to."""
    import taftcache
    from tests.stages.making import recipe

    path = tmp_path_factory.mktemp("photographed") / "store"
    taftcache.run(recipe(path, data={"source": "folder", "train": str(images)}))
    return path


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch says that it has MPS, whose tensors cannot be made here, and no CUDA."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
