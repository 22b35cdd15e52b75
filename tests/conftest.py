"""What all tests share: processes of tests that do not fight for the processor, and that can be interrupted."""

from __future__ import annotations

import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("COLUMNS", None)  # tests say how wide their terminal is

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; commands under test inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
