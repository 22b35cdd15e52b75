"""What a report of ``taftcache teach`` concludes from its tables."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import numpy as np

from taftcache.report.paired import paired
from taftcache.teaching.students.comparison import _above, _steps, conclusions
from taftcache.teaching.students.trainer import StudentOutcome


def student(title: str, beta: float, accuracy: float, **tried: float) -> dict[str, Any]:
    above = {"points above STL": "+1.0", "verdict": "better"}
    values = {"student trained with": title, "beta": beta, "accuracy": accuracy, "seeds": 3, **above}
    return {**values, "tried on rows held back": {name.removeprefix("b"): value for name, value in tried.items()}}


def test_the_end_of_the_grid_is_named():
    plain = student("STL (no prior)", 0, 0.5)
    inside = student("KD (features)", 5, 0.6, b0=0.5, b5=0.7, b25=0.6)
    ends = [student(name, 25, 0.6, b0=0.5, b5=0.6, b25=0.7) for name in ("KD (logits)", "RKD")]
    lines = conclusions({"students": [plain, inside, *ends]})
    assert [line for line in lines if "largest" in line] == [
        "beta = 25 of KD (logits), RKD is the largest that was tried; teach.grid can go on."
    ]
    assert [line for line in lines if "smallest" in line] == [
        "beta = 5 of KD (features) is the smallest above 0 that was tried; teach.grid can begin lower."
    ]
    only = conclusions({"students": [plain, student("RKD", 5, 0.6, b0=0.5, b5=0.7)]}, 1234)
    assert ("largest" in only[2], "smallest" in "".join(only)) == (True, False)
    assert only[1] == "beta was chosen by accuracy on 1,234 labelled images held back."
    nothing = student("KD (features)", 0, 0.5, b0=0.5)
    given = student("RKD", 2, 0.6)
    lines = conclusions({"students": [plain, inside, nothing, given]})
    assert not any("largest" in line for line in lines)
    assert "KD (features): no other beta was better on rows held back, so the student is the plain one." in lines
    assert not any("smallest" in line or "chosen" in line for line in lines)
    assert "RKD above STL: +1.0, better." in lines
    alone = conclusions({"students": [plain, {**given, "seeds": 1}]})
    assert "RKD above STL: +1.0, better (one seed: the interval covers other test images only)." in alone
    assert "RKD: beta = 0 was asked for, so" in conclusions({"students": [plain, student("RKD", 0, 0.5)]})[0]


def outcomes(right: np.ndarray) -> list[StudentOutcome]:
    """Students that get these images right [seeds, images]."""
    texts = [b64encode(np.packbits(one).tobytes()).decode() for one in right]
    return [
        StudentOutcome(accuracy=float(one.mean()), loss=0, penalty=0, epochs=1, steps=1, seconds=0, right=text)
        for one, text in zip(right, texts, strict=True)
    ]


def test_students_of_other_steps_are_named():
    plain, taught = ([replace(one, steps=steps) for one in outcomes(np.ones((1, 8), bool))] for steps in (7, 47))
    assert _steps({"none": plain, "kd": plain}) == []
    assert "STL takes 7 steps and students with a prior 47," in _steps({"none": plain, "kd": taught})[0]


def test_a_difference_between_students_has_the_papers_interval():
    """Two images of 200 more, in each of three seeds, are less than other images would move."""
    plain = np.arange(200)[None] < np.array([[120], [121], [119]])
    ours = np.roll(plain, 4, axis=1) | (np.arange(200) < 2)
    expected = paired(ours.astype(float), plain.astype(float))
    assert expected.verdict == "within noise"
    found = _above(outcomes(ours), outcomes(plain), 200)
    assert found == {"points above STL": expected.text(), "verdict": "within noise"}
    better = plain | (np.arange(200) >= 170)
    assert _above(outcomes(better), outcomes(plain), 200)["verdict"] == "better"
    assert _above(outcomes(plain), outcomes(better), 200)["verdict"] == "worse"
    unsaid = [replace(one, right="") for one in outcomes(plain)]
    assert _above(outcomes(ours), unsaid, 200) == {"points above STL": "images not comparable"}
