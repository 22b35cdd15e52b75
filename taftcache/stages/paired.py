"""What the rows that two models share say of the difference between the two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def row_difference(ahead: NDArray[np.floating]) -> tuple[float, float]:
    """Middle and variance of a mean difference, of which row n has ``ahead`` [n] in [−1, 1].

    Agresti and Min (2005) for rows on which one of two models is right and the other not: two rows more, of which a
    half goes to each, so that models that never differ on few rows are not said to be the same.
    """
    rows = len(ahead) + 2
    middle = float(ahead.sum()) / rows
    return middle, ((float(np.square(ahead).sum()) + 1) / rows - middle**2) / rows
