"""Whether a store has all shards of its plan, and which of them are in no model: an extraction may have been stopped,
shards may be left out or never have been trained. No torch here, for looking must start fast."""

from __future__ import annotations

from collections.abc import Mapping

from taftcache.cache.store import FeatureStore
from taftcache.model.members import imported, subtracted, untrained
from taftcache.names import (
    EXACT,
    FROM_EXPORT,
    INTERRUPTED_KEY,
    MEAN,
    WEIGHTED,
    component_of,
    extract_again,
    first_few,
    is_model,
    train_command,
    typed,
)
from taftcache.stages.estimators import is_of_estimator
from taftcache.tangent.spec import TAIL


def planned_shards(store: FeatureStore) -> int:
    """How many shards the store's plan has; if it does not say, because no stage made the store, as many as exist."""
    count = store.manifest.plan.get("groups")
    return count if isinstance(count, int) else len(store.manifest.shards)


def is_complete(store: FeatureStore) -> bool:
    """Whether every shard of the store's plan is there."""
    return len(store.manifest.shards) == planned_shards(store)


def making_of(store: FeatureStore) -> str:
    """The command that fills the store: "extract" or "import"."""
    return "import" if "imported" in store.identity else "extract"


def is_from_export(store: FeatureStore) -> bool:
    """Whether the store's rows came from the export of another store, which has no tombstones."""
    return bool(store.manifest.plan.get(FROM_EXPORT))


def making_others(store: FeatureStore) -> str:
    """What makes the shards that are missing."""
    again = f"taftcache {making_of(store)}, run again, makes the others"
    if making_of(store) == "import":
        return again
    return f"{again}; without the file of the recipe: {extract_again(store.path)}"


def still_missing(store: FeatureStore) -> list[str]:
    """A note if shards of the plan are missing."""
    if is_complete(store):
        return []
    there, planned = len(store.manifest.shards), planned_shards(store)
    return [f"shards here: {there} of {planned}; {making_others(store)}"]


def first_rows(store: FeatureStore) -> str:
    """What gives rows to a store that has none to train on."""
    return next(iter(still_missing(store)), "taftcache append takes rows in")


def subtracted_notes(store: FeatureStore, rows: Mapping[str, int] | None = None) -> list[str]:
    """A note on what was subtracted, and how to have it in a model again; else none.

    ``rows``: shard -> rows, of those to be told of; by default all that are subtracted.
    """
    if rows is None:
        out = subtracted(store)
        rows = {ref.name: ref.rows for ref in store.manifest.shards if ref.name in out}
    if not rows:
        return []
    place, names = typed(store.path), " ".join(f"--shard {name}" for name in rows)
    return [
        f"subtracted, and so left out of models/mean: {', '.join(rows)} (rows: {sum(rows.values())}); "
        f"to have them in it: taftcache train {place} {names}, then taftcache compose {place}"
    ]


def subtracted_among(store: FeatureStore, rows: Mapping[str, int]) -> list[str]:
    """``subtracted_notes`` on those of the shards in ``rows`` that are subtracted."""
    return subtracted_notes(store, {name: rows[name] for name in subtracted(store) if name in rows})


def unsolved_notes(store: FeatureStore, *, private: bool) -> list[str]:
    """A note on what a training that never began, or was stopped, has left to do; none where there is nothing to train.

    ``private``: its shards have been trained privately.
    """
    there, out = store.objects(), {*subtracted(store), *untrained(store)}
    if not is_complete(store) or TAIL not in there or is_of_estimator(store):
        return []
    place, models = typed(store.path), [name for name in there if is_model(name)]
    train = train_command(store.path, private=private)
    shards = [ref.name for ref in store.manifest.shards if ref.role == "train" and ref.name not in out]
    solved = {name for name in models if there[name].meta.get("key") != INTERRUPTED_KEY}
    rest = [name for name in shards if component_of(name) not in solved]
    if rest and not models:
        return [f"no model yet: {train}"]
    if rest:
        return [f"not trained to the end: {first_few(rest)}; to go on: {train}"]
    lacking = {MEAN, WEIGHTED, EXACT}.isdisjoint(there) and (shards or imported(store))
    return [f"no model of the components yet: taftcache compose {place}"] if lacking else []


def untrained_notes(store: FeatureStore) -> list[str]:
    """A note on shards that were never trained, and how to have them in a model; else none."""
    if not (rows := untrained(store)):
        return []
    return [
        f"never trained, and so left out of compositions of what was imported: {', '.join(rows)} "
        f"(rows: {sum(rows.values())}); to have them in: taftcache train {typed(store.path)}"
    ]
