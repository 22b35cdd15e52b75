"""What a report of ``taftcache teach`` concludes from its tables."""

from __future__ import annotations

from typing import Any

from taftcache.teaching.students.comparison import conclusions


def student(title: str, beta: float, accuracy: float, **tried: float) -> dict[str, Any]:
    values = {"student trained with": title, "beta": beta, "accuracy": accuracy, "deviation": 0.01, "seeds": 3}
    return {**values, "tried on held-out rows": {name.removeprefix("b"): value for name, value in tried.items()}}


def test_the_end_of_the_grid_is_named():
    plain = student("STL (no prior)", 0, 0.5)
    inside = student("KD (features)", 5, 0.6, b0=0.5, b5=0.7, b25=0.6)
    ends = [student(name, 25, 0.6, b0=0.5, b5=0.6, b25=0.7) for name in ("KD (logits)", "RKD")]
    lines = conclusions({"students": [plain, inside, *ends]}, 100)
    assert [line for line in lines if "largest" in line] == [
        "beta = 25 of KD (logits), RKD is the largest that was tried; teach.grid can go on."
    ]
    nothing = student("KD (features)", 0, 0.5, b0=0.5)
    given = student("RKD", 2, 0.6)
    assert not any("largest" in line for line in conclusions({"students": [plain, inside, nothing, given]}, 100))
