"""Whether this machine computes a row's numbers from the row alone, which every sensitivity rests on.

On some processors, some kernels for matrix products round a row in the middle of a block differently from one at its
edge. Then a row that comes or goes changes the last digits of the others' gradients, and so moves a sum on a grid by
more than its own contribution.
"""

from __future__ import annotations

import numpy as np
import torch

from taftcache.errors import SolveError
from taftcache.objective.loss import Loss
from taftcache.privacy.descent import Descent, clipped_sum
from taftcache.privacy.grid import Grid
from taftcache.privacy.network import TangentNetwork
from taftcache.rounding import VARIABLE, strictest
from taftcache.tangent.base import Base
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.selection import row_shape


def check_alone(base: Base, network: TangentNetwork, loss: Loss) -> None:
    """Sum clipped gradients of random rows in two orders, as ``network`` would for its own: the bits must agree.

    No row of ``network`` is read, so the answer depends only on the machine.

    Raises:
        SolveError: they do not agree.
    """
    operator = network.operator
    rng = np.random.default_rng(0)
    n, K = operator.block_rows, base.config.classes
    tokens = rng.normal(0.0, 1.0, (n, *row_shape(base.config, base.config.rows))).astype(np.float32)
    labels = rng.integers(0, K, n)
    delta = 0.05 * torch.randn(network.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    descent = Descent(Grid(1.0, 1.0, 1.0), steps=1, learning_rate=1.0, size=float(n))
    sums = []
    for order in (np.arange(n), rng.permutation(n)):
        rows = ArrayRows(tokens[order], labels[order])
        probe = TangentNetwork(base, [rows], network.layout, dtype=operator.dtype, device=operator.device)
        sums.append(clipped_sum(probe, loss, delta, descent))
    if not torch.equal(*sums):
        raise SolveError(
            "cannot train privately here: a row's gradient depends on the row's place in a block",
            got=f"sums of the same rows in two orders differ on {operator.device}",
            do=f"set the environment variable {VARIABLE}={strictest()} before Python starts",
        )
