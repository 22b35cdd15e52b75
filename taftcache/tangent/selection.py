"""Which parameters are trained, and how little of a sample is exact for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from taftcache.errors import RecipeError
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.config import Rows, TailConfig
from taftcache.tangent.spec import TangentSpec, Train

ROWS: tuple[Rows, ...] = ("tokens", "attended", "residual", "feature")
"""What may be cached of a sample, most first.

tokens: the tail's input [t,d]; exact for everything.
attended: the class token and the heads' attended means ū_h, [H+1,d]; exact for what comes after the softmax.
residual: the class row after attention [1,d]; exact for MLP, norms after it and head.
feature: the head's input [1,width]; exact for the head.
"""


def select(config: TailConfig, spec: TangentSpec, train: Train | None = None) -> list[str]:
    """The names that ``train`` (by default ``spec.train``) selects, checked against what the store caches.

    Raises:
        RecipeError: the rows do not suffice for them, a glob matches nothing, or the tail begins too late.
    """
    train = spec.train if train is None else train
    token = [config.token_name] if spec.class_token == "reset" else []
    everything = [*token, *config.parameters, *config.head_names]
    names = trained_names(config, in_scope(config, everything, spec.blocks), train)
    least = smallest_rows(config, names)
    if ROWS.index(config.rows) > ROWS.index(least):
        raise RecipeError(
            f"the store's cached rows are not enough to train {train!r}",
            got=f"the {config.rows} of each sample, where tangent.train needs the {least}",
            do="extract into a new store with store.cache = "
            + ('"tokens"' if least == "tokens" else f'"{least}", or "tokens", which serve everything'),
        )
    return names


def in_scope(config: TailConfig, available: Iterable[str], blocks: int | str) -> list[str]:
    """The names among ``available`` that ``TangentSpec.blocks`` lets move: a store may begin at an earlier layer.

    Raises:
        RecipeError: the store's tail does not reach that far, or its rows are for a head alone.
    """
    names = list(available)
    if blocks == 0:
        return [name for name in names if name in config.head_names]
    if config.path == "feature":
        raise RecipeError(
            "the store's rows are for a head that is trained alone: there is no tail before it",
            got=f"tangent.blocks = {blocks!r}",
            do='set tangent.blocks = 0 (and tangent.init = "zero"), or extract into a new store with this '
            'tangent.blocks and backbone.features = "last"',
        )
    if isinstance(blocks, str):
        reaches = blocks == config.start or blocks in config.blocks
        frozen = config.blocks[: config.blocks.index(blocks)] if blocks in config.blocks else ()
    else:
        reaches = blocks <= len(config.blocks)
        frozen = config.blocks[:-blocks]
    if not reaches:
        raise RecipeError(
            "the store begins above the first trained block: its input is not cached",
            got=f"tangent.blocks = {blocks!r}, the store begins at {config.start}",
            do="extract into a new store with this tangent.blocks",
        )
    return [name for name in names if not name.startswith(tuple(f"{block}." for block in frozen))]


def trained_names(config: TailConfig, available: Iterable[str], train: Train) -> list[str]:
    """The names among ``available`` (of parameters, in the tail's order) that ``train`` selects.

    The head is new, so every named set includes it; a list of globs includes it if one of them matches.

    timm packs queries, keys and values into one matrix; a glob that matches none of timm's names may select the value
    part alone, as "*.attn.v.*" does.

    Raises:
        RecipeError: a glob that matches nothing, or another word.
    """
    names = list(available)
    head, token = set(config.head_names), config.token_name
    if isinstance(train, list | tuple):
        chosen: set[str] = set()
        for glob in train:
            found = [n for n in names if fnmatchcase(n, glob)] or [n for n in values(config) if fnmatchcase(n, glob)]
            if not found:
                near = difflib.get_close_matches(glob, names, n=3, cutoff=0.3)
                raise RecipeError(
                    f"tangent.train matches no parameter of the tail: {glob}",
                    got=glob,
                    do=f"parameters are named like {', '.join(near or names[:3])}",
                )
            chosen.update(found)
        parts = [n for n in values(config) if n in chosen and n.replace(".v.", ".qkv.") not in chosen]
        return parts + [name for name in names if name in chosen]
    if train == "full":
        return names
    if train == "head":
        return [name for name in names if name in head]
    if train == "bitfit":  # "q_bias" and its like have no module of their own
        return [n for n in names if n in head or n == token or n.endswith("bias")]
    if train == "layernorm":
        return [n for n in names if n in head or n == token or n in config.norms]
    raise RecipeError(
        f"nothing is trained under the name {train!r}",
        got=repr(train),
        do='one of "full", "bitfit", "layernorm" and "head", or a list of names and globs',
    )


def values(config: TailConfig) -> list[str]:
    """Names of the value part of the class row's packed attention matrix, which may be trained without the rest."""
    if not isinstance(config.end, ClassRow):
        return []
    packed = [f"{config.end.prefix}.attn.qkv.{kind}" for kind in ("weight", "bias")]
    return [name.replace(".qkv.", ".v.") for name in packed if name in config.parameters]


def smallest_rows(config: TailConfig, trained: Iterable[str]) -> Rows:
    """The least that must be cached of a sample so that J is exact for the ``trained`` names.

    Everything but the whole tokens depends on the base point's frozen weights.
    """
    names = set(trained)
    if names <= set(config.head_names):
        return "feature"
    if not isinstance(config.end, ClassRow) or config.path != "class row":
        return "tokens"
    before = {f"{config.end.prefix}.{n}" for n in ("norm1.weight", "norm1.bias", "cls_token")}
    packed = {f"{config.end.prefix}.{n}" for n in ("attn.qkv.weight", "attn.qkv.bias")}
    if names & (before | packed):
        return "tokens"
    if any(name.startswith((f"{config.end.prefix}.attn.", f"{config.end.prefix}.ls1")) for name in names):
        return "attended"
    return "residual"


def row_shape(config: TailConfig, rows: Rows) -> tuple[int, int]:
    """Shape of one stored row: the array of a shard is [n, *shape]."""
    if rows == "feature":
        return 1, config.width
    if rows == "tokens" or not isinstance(config.end, ClassRow):
        size = 1
        for length in config.shape:
            size *= length
        return size // config.shape[-1], config.shape[-1]
    return (config.end.heads + 1 if rows == "attended" else 1), config.end.width
