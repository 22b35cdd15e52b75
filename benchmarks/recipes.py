"""What benchmarks of a recipe's store share: which recipe, and accuracy on held-out rows."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from record import json_parser

from taftcache.recipe import Recipe, load_recipe
from taftcache.stages.extract.extraction import extract
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import RowSource

PIPELINES = Path(__file__).resolve().parents[1] / "pipelines"


def recipe_parser(doc: str | None) -> argparse.ArgumentParser:
    """Arguments of a script with this docstring: a recipe and changes of it."""
    parser = json_parser(doc)
    default = "caltech101.toml" if os.environ.get("TAFTCACHE_DATA") else "quickstart.toml"
    parser.add_argument("recipe", nargs="?", type=Path, default=PIPELINES / default)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    return parser


def extracted(args: argparse.Namespace, *before: str) -> Recipe:
    """The recipe that was asked for, with ``before`` where ``--set`` says nothing else; its store is made."""
    recipe = load_recipe(args.recipe, [*before, *args.set])
    extract(recipe)
    return recipe


def accuracy(base: Base, layout: Layout, delta: torch.Tensor, rows: RowSource) -> float:
    """Top-1 in percent of base + Δw on ``rows``."""
    operator = TangentOperator(base, [rows], trained=layout)
    correct = 0
    for (state, labels), change in zip(operator.blocks(), operator.matvec(delta), strict=True):
        correct += int(((state.logits + change).argmax(1) == labels).sum())
    return 100 * correct / rows.rows
