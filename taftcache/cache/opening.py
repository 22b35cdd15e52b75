"""A decorator for functions of an open store, so that they also take the store's place."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, TypeVar, cast

from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])
Place = FeatureStore | str | os.PathLike[str]
"""A store, open or by the place where it lies: a folder, or a prefix in a bucket."""


def at_its_place(mode: Literal["r", "a"] = "r") -> Callable[[F], F]:
    """Let a function of an open store take a place, too: the store there is open in ``mode`` while the call runs.

    A ``dry_run`` only reads. An open store is used as it is: several calls in a row then need not open it again and, in
    mode "a", nobody can write between them. The function's ``store`` is a ``Place``, as editors show it to callers, and
    it asserts, for type checkers, that it was given an open one.

    Raises:
        ArgumentError: neither a store nor a place. Whatever opening it raises.
    """

    def of_either(stage: F) -> F:
        @wraps(stage)
        def opened(store: Place, *args: Any, **named: Any) -> Any:
            if isinstance(store, FeatureStore):
                return stage(store, *args, **named)
            if not isinstance(store, str | os.PathLike):
                raise ArgumentError(
                    f"{stage.__name__.lstrip('_')} was not given a store",
                    got=type(store).__name__,
                    do='give an open FeatureStore, or where it lies: "stores/quickstart"',
                )
            with FeatureStore(store, mode="r" if named.get("dry_run") else mode) as there:
                return stage(there, *args, **named)

        stage.__annotations__["store"] = Place  # what help() shows
        return cast(F, opened)

    return of_either
