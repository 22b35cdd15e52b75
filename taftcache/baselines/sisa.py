"""SISA: an ensemble of networks, one a shard, which votes (Bourtoule et al. 2021); forgetting drops voters."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Rule = Literal["vote", "mean"]


def sisa(members: Tensor, rule: Rule = "vote") -> Tensor:
    """Labels [n] of the ensemble for its members' logits [m,n,K].

    "vote" counts labels, ties going to the larger sum of probabilities; "mean" averages probabilities.
    """
    chances = torch.softmax(members.double(), -1)
    if rule == "mean":
        return chances.sum(0).argmax(-1)
    votes = torch.nn.functional.one_hot(members.argmax(-1), members.shape[-1]).sum(0)
    return (votes + chances.mean(0) / 2).argmax(-1)
