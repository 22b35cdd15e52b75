"""Teachers' features for the rows of a student's own store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from taftcache.backbone.files import expand_path
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import LOST_TEACHER, RecipeError, StoreError, StoreNotFound
from taftcache.names import first_few
from taftcache.teaching.features import TeacherFeatures
from taftcache.teaching.joined import Teacher, check_features


@dataclass(frozen=True)
class TaughtRows:
    """ψ [N,p] in float64, standardised over these rows; each teacher's features in it; a digest of what was read."""

    psi: Tensor
    slices: dict[str, slice]
    digest: str


def taught_rows(teachers: Sequence[str], sources: Sequence[Shard]) -> TaughtRows:
    """Read the teachers' features of the rows of ``sources``, matched by sample id.

    They are standardised over these rows alone, so that no other sample (held out, forgotten or in another shard) has
    a part in them.

    Raises:
        StoreError, RecipeError: as in ``open_teachers``.
    """
    ids = [i for source in sources for i in source.sample_ids]
    with open_teachers(teachers, ids) as stores:
        found = [Teacher(name, store, ids) for name, store in stores.items()]
        rows = np.arange(len(ids))
        hasher = blake3()
        for teacher in found:
            hasher.update(f"{teacher.name}\0{teacher.width}\0".encode())
            hasher.update(np.ascontiguousarray(teacher.rows(rows), "<f4").tobytes())
        features = TeacherFeatures(found, rows)
        return TaughtRows(features.rows(rows, torch.float64), features.slices, hasher.hexdigest())


@contextmanager
def open_teachers(teachers: Sequence[str], ids: Sequence[str]) -> Iterator[dict[str, FeatureStore]]:
    """The teachers' stores by name, open within the context; each has features for all of ``ids``.

    Raises:
        StoreError: no store, or one that holds no features or lacks a sample (the message says if that was forgotten).
        RecipeError: two stores of one name.
    """
    names = [Path(path).name for path in teachers]
    if len(set(names)) < len(names):
        raise RecipeError(
            "two teachers must not share a name, that of their folder", got=", ".join(names), do="rename a folder"
        )
    with ExitStack() as stack:
        stores = {}
        for name, path in zip(names, teachers, strict=True):
            try:
                store = stack.enter_context(FeatureStore(expand_path(path)))
            except StoreNotFound as error:
                do = f"put the store of the teacher {name}, or a link to it, back at that place; {LOST_TEACHER}"
                raise StoreNotFound(error.fault, got=f"prior.teachers = {path!r}", do=do) from error
            check_features(name, store)
            held = store.every_id
            if missing := [i for i in ids if i not in held]:
                gone = [i for i in missing if store.is_forgotten(i)]
                raise StoreError(
                    f"the teacher {name} has forgotten {first_few(gone, 1)}, but the student is trained on it"
                    if gone
                    else f"the teacher {name} has no row of {first_few(missing, 1)}",
                    got=store.path,
                    do="taftcache forget the same samples in the student's store"
                    if gone
                    else "extract the teacher's store from the same data",
                )
            stores[name] = store
        yield stores
