"""A membership attack, per example, as strong as it gets: it knows every other row, and solves as often as it likes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.model.component import read_base, read_component
from taftcache.objective.rsl import RSL
from taftcache.tangent.operator import TangentOperator
from tests.stages.making import open_store, recipe

SHADOWS = 96
SPLITS = 6
EACH = 40  # rows that are kept, forgotten, and never seen
RIDGE = 1e-4
UNTOLD = 0.65  # area under the curve; of rows that nothing tells apart it is 0.5, and over six splits seldom 0.6


class Rows:
    """Features [n, d+1] and targets [n,K] of the head's least squares, and its solutions from normal equations."""

    def __init__(self, path: Path) -> None:
        with FeatureStore(path) as store:
            self.base = read_base(store, recorded_recipe(store).tangent)
            self.ids = store.sample_ids()
            operator = TangentOperator(self.base, store.shards, trained=self.base.head_layout, dtype=torch.float64)
            blocks = list(operator.blocks())
        self.x = torch.cat([torch.cat([s.feature, torch.ones_like(s.feature[:, :1])], 1) for s, _ in blocks])
        self.labels = torch.cat([labels for _, labels in blocks])
        self.logits = torch.cat([s.logits for s, _ in blocks])
        self.target = -RSL(kappa=15.0).gradient(self.logits, self.labels) * operator.classes / 2

    def solve(self, kept: Tensor) -> Tensor:
        """The head [d+1,K] over the rows of the mask ``kept``."""
        x, K = self.x[kept], self.logits.shape[1]
        scale = 2 / (K * len(x))
        matrix = scale * (x.T @ x) + RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
        return torch.linalg.solve(matrix, scale * (x.T @ self.target[kept]))

    def own_logit(self, head: Tensor) -> Tensor:
        """Each row's logit of its own class [n]."""
        return (self.logits + self.x @ head).gather(1, self.labels[:, None])[:, 0]


def area(members: Tensor, others: Tensor) -> float:
    """Area under the curve that tells the two apart by score."""
    return (members[:, None] > others).double().mean().item()


def interval(areas: list[float]) -> tuple[float, float]:
    """95 % interval of the mean over splits, by Student's t."""
    half = 2.571 * np.std(areas, ddof=1) / np.sqrt(len(areas))
    return np.mean(areas) - half, np.mean(areas) + half


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """AUC over the splits of the most influential rows into kept, forgotten and never seen."""
    root = tmp_path_factory.mktemp("attacked")
    settings = {
        "data": {"source": "digits", "limit": 400},
        "store": {"shards": 4},
        "tangent": {"train": "head"},
        "objective": {"ridge": RIDGE},
    }
    taftcache.extract(recipe(root / "store", **settings))
    rows = Rows(root / "store")
    everyone = torch.ones(len(rows.ids), dtype=torch.bool)
    hat = torch.linalg.inv(rows.x.T @ rows.x + RIDGE * 5 * len(rows.ids) * torch.eye(rows.x.shape[1]).double())
    leverage = ((rows.x @ hat) * rows.x).sum(1)
    residual = (rows.own_logit(rows.solve(everyone)) - 15.0).abs()
    targets = (residual * leverage / (1 - leverage)).topk(3 * EACH).indices
    generator = torch.Generator().manual_seed(0)
    seen, unseen = [[] for _ in rows.ids], [[] for _ in rows.ids]
    for _ in range(SHADOWS):
        mask = everyone.clone()
        mask[targets] = torch.rand(3 * EACH, generator=generator) < 0.5
        logit = rows.own_logit(rows.solve(mask))
        for k in targets.tolist():
            (seen if mask[k] else unseen)[k].append(logit[k].item())
    laws = {
        k: [torch.distributions.Normal(np.mean(s[k]), np.std(s[k]) + 1e-9) for s in (seen, unseen)]
        for k in targets.tolist()
    }

    def scores(path: Path, which: Tensor) -> Tensor:
        """log p(logit | in) − log p(logit | out), each a normal law fitted to the shadows."""
        with FeatureStore(path) as store:
            views = rows.base.head_layout.views(read_component(store, "models/head", rows.base).delta)
        weight, bias = (views[name] for name in rows.base.config.head_names)
        logit = rows.own_logit(torch.cat([weight, bias[:, None]], 1).T)
        ratios = [laws[k][0].log_prob(logit[k]) - laws[k][1].log_prob(logit[k]) for k in which.tolist()]
        return torch.stack(ratios)

    areas: dict[str, list[float]] = {"forgotten": [], "kept": [], "before": []}
    for n in range(SPLITS):
        shuffled = targets[torch.randperm(3 * EACH, generator=generator)]
        kept, forgotten, never = shuffled.split(EACH)
        path = shutil.copytree(root / "store", root / f"split{n}")
        with open_store(path) as store:
            with store.transaction() as change:
                change.erase([rows.ids[k] for k in never.tolist()])  # before training: they were never seen
            taftcache.train(store)
            taftcache.compose(store)
        areas["before"].append(area(scores(path, forgotten), scores(path, never)))
        with open_store(path) as store:
            taftcache.forget(store, [rows.ids[k] for k in forgotten.tolist()])
        areas["forgotten"].append(area(scores(path, forgotten), scores(path, never)))
        areas["kept"].append(area(scores(path, kept), scores(path, never)))
    return areas


@pytest.mark.law(
    "From the new model alone, a membership attack tells the forgotten from the never seen with an AUC below 0.65"
)
def test_forgotten_rows_look_like_rows_never_seen(attacked):
    """Of one head, over splits of the same rows. Whoever has the old model, too, subtracts them."""
    low, high = interval(attacked["forgotten"])
    assert low > 1 - UNTOLD
    assert high < UNTOLD


def test_kept_rows_are_told_apart(attacked):
    assert interval(attacked["kept"])[0] > 0.75


@pytest.mark.law(
    "From the new model alone, a membership attack tells the forgotten from the never seen with an AUC below 0.65"
)
def test_the_attack_sees_rows_that_were_not_forgotten(attacked):
    """The same rows, before they were forgotten, are above the bound of the first test by far."""
    assert interval(attacked["before"])[0] > 0.75 > UNTOLD
