"""The entry point, called as a shell would."""

from __future__ import annotations

import pytest

from taftcache.cli import main
from tests.cli.making import Outcome
from tests.quick import one_thread, quick  # noqa: F401


@pytest.fixture
def cli(capsys, monkeypatch):
    """Call the entry point as a shell would."""
    monkeypatch.setenv("COLUMNS", "200")  # for the tables; errors are never wrapped

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        return Outcome(ended.value.code or 0, *capsys.readouterr())

    return call
