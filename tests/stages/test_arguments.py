"""Arguments of the functions of Python that cannot be meant: refused in words before anything is read or changed."""

from __future__ import annotations

import numpy as np
import pytest

import taftcache
from taftcache.errors import ArgumentError
from taftcache.model.predictor import TangentModel


@pytest.mark.parametrize("wrong", [-1, 2.5, "3", None], ids=str)
def test_counts_are_whole_numbers_that_leave_nothing_out(finished, wrong):
    """A slice takes any of them, and -1 dropped the last of what there is."""
    picture = [np.zeros((8, 8, 3), np.uint8)]
    model = TangentModel.load(finished, device="cpu")
    calls = [
        lambda n: taftcache.predict(finished, picture, top=n),
        lambda n: model.predict(picture, top=n),
        lambda n: model.predict(picture, batch=n),
        lambda n: taftcache.outliers(finished, n),
        lambda n: taftcache.outliers(finished, neighbour=n),
        lambda n: taftcache.query_influence(finished, "digits/0001", top=n),
    ]
    for call in calls:
        for n in (wrong, 0):
            with pytest.raises(ArgumentError, match="must be a whole number of at least 1"):
                call(n)
    for call in (
        lambda n: taftcache.suspects(finished, n),
        lambda n: taftcache.duplicates(finished, n),
        lambda n: taftcache.query_influence(finished, "digits/0001", solve=n),
    ):
        with pytest.raises(ArgumentError, match="must be a whole number of at least 0"):
            call(wrong)
    assert taftcache.suspects(finished, 0).disagreeing  # what is counted needs no list
    assert len(model.predict(picture, top=np.int64(2))[0].labels) == 2
