"""A comparison that is asked for again: what was trained for it is kept, and taken where it is the same."""

from __future__ import annotations

import pytest

from taftcache.errors import FormatError
from taftcache.paper.comparison import compare
from taftcache.paper.trial import Trial
from tests.stages.making import recipe
from tests.stages.test_compare import QUICK, SMALL


@pytest.mark.law("A comparison goes on with models of the very settings and rows, undamaged, or trains them")
def test_a_comparison_goes_on_where_it_was(finished, tmp_path, monkeypatch):
    small = {**SMALL, "shards": [2], "seeds": 1, "ridges": [1e-2, 1e-1], "tokens": [False], "resets": [True]}
    made = recipe(finished, solver=QUICK, compare={**small, "reports": ["table2", "figure1c"]})

    class Stopped(Exception):
        pass

    def stop(report):
        raise Stopped

    with pytest.raises(Stopped):
        compare(made, done=stop, keep=tmp_path)
    there = len(list(tmp_path.iterdir()))
    assert there > 0
    calls = []
    fit, path = Trial.fit, Trial.path
    monkeypatch.setattr(Trial, "fit", lambda self, s, parts=None: calls.extend(s) or fit(self, s, parts))
    monkeypatch.setattr(Trial, "path", lambda self, s, ridges: calls.append(s) or path(self, s, ridges))
    second = compare(made, keep=tmp_path)
    assert second.kept == there
    assert len(calls) == len(list(tmp_path.iterdir())) - there > 0
    calls.clear()
    third = compare(made, keep=tmp_path)
    assert not calls
    assert (third.kept, third.spent) == (len(list(tmp_path.iterdir())), second.spent)
    fresh = compare(made)
    accuracies = [[line.accuracy for made in report.reports for line in made.lines] for report in (fresh, third)]
    assert accuracies[0] == accuracies[1]
    assert fresh.kept == 0
    assert calls


@pytest.mark.law("A comparison goes on with models of the very settings and rows, undamaged, or trains them")
def test_kept_models_are_those_of_the_same_settings(finished, tmp_path):
    small = {**SMALL, "shards": [2], "seeds": 1, "resets": [True], "presets": ["paper"], "reports": ["table2"]}
    small["tokens"] = [False]
    compare(recipe(finished, compare=small), keep=tmp_path)
    for changed in ({"epochs": 2}, {"batch": 16}, {"decay": 1e-3}, {"rates": [1e-3]}):
        assert compare(recipe(finished, compare={**small, **changed}), keep=tmp_path).kept == 0, changed
    for changed in ({"seed": 5}, {"reset_norm": True}):
        assert compare(recipe(finished, compare=small, tangent=changed), keep=tmp_path).kept == 0, changed
    assert compare(recipe(finished, compare=small, objective={"alpha": 5.0}), keep=tmp_path).kept == 0
    assert compare(recipe(finished, compare=small, solver={"tolerance": 1e-4}), keep=tmp_path).kept == 2


@pytest.mark.law("A comparison goes on with models of the very settings and rows, undamaged, or trains them")
def test_a_damaged_model_is_found(finished, tmp_path):
    small = {**SMALL, "shards": [2], "seeds": 1, "resets": [True], "presets": ["paper"], "reports": ["table2"]}
    compare(recipe(finished, compare=small), keep=tmp_path)
    file = next(tmp_path.iterdir())
    sound = file.read_bytes()
    for place_of in (20, len(sound) // 2, len(sound) - 1):
        damaged = bytearray(sound)
        damaged[place_of] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(FormatError, match="delete it"):
            compare(recipe(finished, compare=small), keep=tmp_path)
