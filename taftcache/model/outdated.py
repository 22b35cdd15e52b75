"""What decides the bytes of a store's components and models, and which were made from other rows, members or settings
than the store has now. No torch here, for looking must start fast."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import StoreError
from taftcache.model.members import recorded_members, subtracted, untrained
from taftcache.model.meta import Coefficient, ComponentMeta, key_parts, of_each_class
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, is_component, shard_of
from taftcache.recipe import Recipe, recipe_values
from taftcache.tangent.spec import Train

OUTDATED = "not made from the rows and settings that the store has now"
_SOLVER = ("method", "tolerance", "max_passes", "proof_passes", "precision")


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Keys: texts of everything that decides the bytes of a component or model under a recipe.

    recipe: its settings of stage 2. base: digest of the base point. taught: gives the digest of the teachers' features
    of rows. Without these two, a key has what the key that is there says of them (``Keys.recorded``).
    """

    recipe: Recipe
    base: str | None = None
    taught: Callable[[Sequence[Shard]], str] | None = None

    @classmethod
    def recorded(cls, store: FeatureStore) -> Keys:
        """Those of the settings that the store records, without its base point and its teachers, which take torch.

        What leaves a store with another base point drops all that was made around the old one.
        """
        return cls(recipe=recorded_recipe(store))

    def key(self, sources: Sequence[Shard], mode: Train, there: object = None) -> str:
        """The key of a component over the rows of ``sources``: if it is the one that is ``there``, nothing needs to be
        solved again."""
        solver = recipe_values(self.recipe)["solver"]
        key = self.posed(sources, mode, there) | {"solver": {name: solver[name] for name in _SOLVER}}
        if "prior" in key:
            said = key_parts(there).get("prior")
            rows = said.get("rows") if isinstance(said, dict) else None
            key["prior"] |= {"rows": self.taught(sources) if self.taught else rows}
        return json.dumps(key, sort_keys=True)

    def posed(self, sources: Sequence[Shard], mode: Train, there: object = None) -> dict[str, Any]:
        """What is minimised and over which rows, but not how it is solved."""
        values = recipe_values(self.recipe)
        problem = {
            "base": self.base or key_parts(there).get("base"),
            "rows": [shard.digest for shard in sources],
            "train": mode,
            "objective": values["objective"],
        }
        # a prior from teachers' features does not change features, so the head alone has none
        return problem | ({"prior": values["prior"]} if self.recipe.prior.teachers and mode != "head" else {})

    def exact(self, shards: Sequence[Shard], members: Mapping[str, str], there: object = None) -> str:
        """The key of the exact model: the rows, the settings, and the mean of ``members`` that it starts from, as their
        digests by name."""
        solved = json.loads(self.key(shards, self.recipe.tangent.train, there))
        return json.dumps(solved | {"start": dict(members)}, sort_keys=True)

    def of(self, store: FeatureStore, name: str) -> str | None:
        """The key that the component or model ``name`` would have if it were made now; None if it has no key.

        Of a composition it is that of the same members as they are now; components imported since are not among them.

        Raises:
            StoreError: a teacher of its prior is gone, or lacks a row.
        """
        objects = store.objects()
        meta = objects[name].meta if name in objects else {}
        there = meta.get("key")
        if name in (MEAN, WEIGHTED, EXACT):
            members = recorded_members(name, meta)
            return self.composition(store, name, {m: objects[m].digest for m in members if m in objects})
        if name == HEAD:
            return self.key(store.shards, "head", there)
        if not is_component(name) or not store.has_shard(shard_of(name)):
            return None
        shard = store.shard(shard_of(name))
        return self.key([shard], self.recipe.tangent.train, there) if shard.role == "train" else None

    def composition(self, store: FeatureStore, name: str, members: Mapping[str, str]) -> str:
        """The key that the composition ``name`` has when it is current, with ``members`` as their digests by name."""
        meta = store.manifest.objects[name].meta
        if name == EXACT:
            return self.exact(store.shards, members, meta.get("key"))
        return composition_key(members, meta.get("coefficients") if name == WEIGHTED else None)


def composition_key(members: Mapping[str, str], weights: Mapping[str, Coefficient] | None) -> str:
    """What decides the bytes of a sum of components."""
    said: Any = dict(weights) if weights else "uniform"
    if of_each_class(weights):  # the meta has them: twice would be megabytes
        said = digest(canonical(said))
    return json.dumps({"members": dict(members), "weights": said}, sort_keys=True)


def outdated(store: FeatureStore, keys: Keys, model: str | None = None) -> list[str]:
    """Names of the store's outdated components and models; if ``model`` is given, of that one at most."""
    # A sum with an outdated part is outdated, too, and so is one that lacks a shard.
    sums = {MEAN, WEIGHTED} if stale_parts(store, keys) else set()
    there = [name for name in store.objects() if model in (None, name)]
    return [name for name in there if name in sums or is_outdated(store, keys, name)]


def is_outdated(store: FeatureStore, keys: Keys, name: str) -> bool:
    """Whether ``name`` was made from other rows, members or settings. A private component never was: its noise is not
    drawn anew for other settings."""
    meta = store.manifest.objects[name].meta
    if PRIVATE in meta and is_component(name):
        return False
    try:
        return keys.of(store, name) not in (None, meta.get("key"))
    except StoreError:  # ``taftcache audit`` reports that
        return False


def stale_parts(store: FeatureStore, keys: Keys) -> list[str]:
    """Components of the shards in compositions that are missing, or were made from other rows or settings than the
    store has now. Private ones do not count: their noise is not drawn anew for other settings."""
    objects, out = store.objects(), {*subtracted(store), *untrained(store)}
    parts = [component_of(shard.name) for shard in store.shards if shard.name not in out]
    return [name for name in parts if name not in objects or is_outdated(store, keys, name)]


def differs_by_rows(meta: ComponentMeta, key: str) -> bool:
    """Whether a component was made with the settings of ``key``, so that only its rows can differ."""
    of_rows = ("rows", "start")  # where the exact model's solve starts follows from the rows
    before, now = ({k: v for k, v in key_parts(text).items() if k not in of_rows} for text in (meta.key, key))
    return before == now
