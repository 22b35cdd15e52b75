"""What all tests share: several processes of tests do not fight for the processor."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("COLUMNS", None)  # tests say how wide their terminal is
