"""A worker of ``make test`` (tests/workers.py)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest


def test_a_worker_is_forked_and_otherwise_what_pytest_begins(request):
    if sys.platform != "linux" or not request.config.pluginmanager.hasplugin("tests.workers"):
        pytest.skip("make test forks its workers, on Linux")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("this run has no workers")
    assert b"tests.workers" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes(), "execnet begins them in another way"
    assert sys.argv == ["-c"]
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, "the exit codes of its processes would be lost"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
