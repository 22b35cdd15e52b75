from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch, request):
    """Only a power cut shows what fsync does; here it would only cost time. `test_faults.py` counts the calls."""
    if "real_fsync" not in request.fixturenames:
        monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def real_fsync():
    return None
