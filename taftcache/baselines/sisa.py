"""SISA: an ensemble of networks, one a shard, which votes (Bourtoule et al. 2021); forgetting drops voters."""

from __future__ import annotations

import torch
from torch import Tensor


def sisa(members: Tensor) -> Tensor:
    """Labels [n] of the ensemble for its members' logits [m,n,K]: most votes, ties going to the larger sum of
    probabilities."""
    chances = torch.softmax(members.double(), -1)
    votes = torch.nn.functional.one_hot(members.argmax(-1), members.shape[-1]).sum(0)
    return (votes + chances.mean(0) / 2).argmax(-1)
