"""What packages whose tests run whole stages are spared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taftcache.privacy import accountant
from taftcache.stages.look import probe
from tests.threads import one_thread  # noqa: F401


@pytest.fixture(scope="package", autouse=True)
def quick() -> Iterator[None]:
    """Privacy is accounted for in steps ten times as coarse, in a tenth of the time: ε is a little larger, and as sure
    (``tests/privacy`` has the steps that users have). The probe beside every run chooses from two ridges, not four."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountant, "INTERVAL", 10 * accountant.INTERVAL)
        patch.setattr(accountant.distribution_epsilon, "__defaults__", (accountant.INTERVAL,))
        patch.setattr(probe, "INVERSE_RIDGES", probe.INVERSE_RIDGES[:2])
        yield
