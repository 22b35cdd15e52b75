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

from taftcache.privacy.spec import ROUNDING

gc.disable()  # what imports leave behind stays: looking at it again and again is a tenth of a run

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("COLUMNS", None)  # tests say how wide their terminal is

os.environ.setdefault(*ROUNDING)  # private sums depend on it on some processors; read when torch is loaded

# What stores may open is remembered for the user (taftcache.consent): tests have a list of their own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="taftcache-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; commands under test inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest, in seconds: begun last, one of them would keep a worker busy alone.
LONGEST = {
    "test_house/test_pages.py": 26,
    "view/test_browser.py": 25,
    "remote/test_identity.py": 24,
    "cache/test_bucket.py": 20,
    "cli/test_reports.py": 11,
    "stages/test_real_scale.py": 18,
    "stages/test_model_export.py": 15,
    "remote/test_failure.py": 14,
    "teaching/test_taught.py": 13,
    "stages/test_forget_modes.py": 12,
    "view/test_leaving.py": 11,
    "teaching/test_digits.py": 11,
    "stages/test_private.py": 10,
    "privacy/test_bugs.py": 10,
    "stages/test_forget.py": 8,
    "cache/test_kill.py": 8,
}


def pytest_collection_finish() -> None:
    """From here on garbage is collected; what was imported is none, in this process or in one that it forks."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries that count what is left at the end shall find nothing."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Long files first; workers take them in this order (``--no-loadscope-reorder``)."""
    here = Path(__file__).parent
    items.sort(key=lambda item: -LONGEST.get(item.path.relative_to(here).as_posix(), 0))
