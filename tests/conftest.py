"""What all tests share: processes of tests that do not fight for the processor, and that can be interrupted."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from typing import Any

from taftcache.privacy.spec import ROUNDING

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("COLUMNS", None)  # tests say how wide their terminal is

os.environ.setdefault(*ROUNDING)  # private sums depend on it on some processors; read when torch is loaded

# What stores may open is remembered for the user (taftcache.consent): tests have a list of their own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="taftcache-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; commands under test inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest, in seconds of one core: begun last, one of them would keep a worker busy alone.
LONGEST = {
    "test_pages.py": 105,
    "test_private.py": 70,
    "test_private_budget.py": 69,
    "test_identity.py": 58,
    "test_private_leaks.py": 58,
    "test_failure.py": 58,
    "test_model_export.py": 54,
    "test_taught.py": 53,
    "test_cli.py": 50,
    "test_bugs.py": 46,
    "test_export.py": 45,
    "test_digits.py": 45,
    "test_browser.py": 40,
    "test_families.py": 37,
    "test_bucket.py": 30,
    "test_history.py": 27,
}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Long files first; workers take them in this order (``--no-loadscope-reorder``)."""
    items.sort(key=lambda item: -LONGEST.get(item.path.name, 0))
