"""SISA: an ensemble of networks, one per shard, which vote (Bourtoule et al. 2021); forgetting drops voters."""

from __future__ import annotations

import torch
from torch import Tensor


def sisa(members: Tensor) -> Tensor:
    """The ensemble's labels [n] from its members' logits [m,n,K]: most votes, and for ties the larger sum of
    probabilities."""
    chances = torch.softmax(members.double(), -1)
    votes = torch.nn.functional.one_hot(members.argmax(-1), members.shape[-1]).sum(0)
    return (votes + chances.mean(0) / 2).argmax(-1)
