"""Model soup: the mean of the weights of fine-tuned networks (Wortsman et al. 2022), uniform."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def soup(deltas: Sequence[Tensor]) -> Tensor:
    """The weights [P] of the soup: the network is not linear, so nothing says that it is its members' ensemble."""
    return torch.stack(list(deltas)).mean(0)
