"""Two models sample by sample, of one store or of two whose samples are matched by id."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format import ledger
from taftcache.cache.format.fault import DAMAGE, problem_of
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError
from taftcache.names import MEAN, default_model, is_model, one_of_trained
from taftcache.stages.estimators import lacks_classes
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.seen import in_groups_of_one, saw
from taftcache.stages.look.vectors import has_tail, starts_blank
from taftcache.stages.progress import Progress
from taftcache.view.asked.aside import Aside
from taftcache.view.atlas import Atlas
from taftcache.view.late import importing
from taftcache.view.payload import packed
from taftcache.view.wording import taken_text

if TYPE_CHECKING:
    from taftcache.stages.look.scoring import Predictions, Scorer

HERE, THERE = "here", "there"
BASE = "base"
SAW = ("", "yes", "perhaps")  # whether a model was trained on a row, as numbers
KEPT = 12  # models of which every row's class and margin are kept


class Side:
    """One of the stores: its rows, and its models, loaded on first use by ``load``."""

    def __init__(self, store: FeatureStore, table: RowTable, load: Callable[[], Scorer]) -> None:
        self.store, self.table, self.scorer = store, table, load
        scored = has_tail(store) and not lacks_classes(store)
        trained = [name for name in store.objects() if is_model(name)]
        base = [] if trained and starts_blank(store) else [BASE]
        self.models = [*base, *trained] if scored else []
        self.said: dict[str, Predictions] = {}

    def leave_damaged(self) -> list[str]:
        """Read the models, leave out those whose files are damaged, and return what is wrong with these."""
        try:
            damaged = self.scorer().damaged if self.models else {}
        except DAMAGE as error:  # to something that every model needs
            self.models = []
            return [problem_of(error)]
        self.models = [name for name in self.models if name not in damaged]
        return list(damaged.values())

    def best(self) -> str:
        """The model to begin with: the store's default one, or the last of those that there are."""
        return default_model(self.models) or (self.models or [BASE])[-1]

    def other(self) -> str:
        """A model to set beside ``best``: the mean, or the first of those that there are."""
        return MEAN if MEAN in self.models and self.best() != MEAN else (self.models or [BASE])[0]

    def say(self, model: str, progress: Progress) -> Predictions:
        """What a model predicts for every row, computed once; the last few models' predictions are kept."""
        with importing:
            from taftcache.stages.look.scoring import predictions_of

        if model not in self.said:
            found = predictions_of(self.scorer(), self.table, None if model == BASE else model, progress)
            while len(self.said) >= KEPT:
                del self.said[next(iter(self.said))]
            self.said[model] = found
        return self.said[model]

    def trained(self, model: str) -> NDArray[np.uint8]:
        """Whether a model was trained on each row [n] of the table: places in ``SAW``."""
        seen = {} if model == BASE else saw(self.store, model)
        by_shard = np.array([SAW.index(seen.get(shard.name, "")) for shard in self.table.shards], np.uint8)
        return np.asarray(by_shard[self.table.shard])


class Comparisons:
    """Compares models of the atlas's store, and of ``against`` if there is one; the answers are those of ``Aside``.

    Models are named "here:models/mean", "there:base".
    """

    def __init__(self, atlas: Atlas, against: FeatureStore | None = None) -> None:
        self._atlas = atlas
        self.sides = {HERE: Side(atlas.store, atlas.table, atlas.scorer)}
        if against is not None:
            self.sides[THERE] = Side(against, RowTable.of(against), _once(against))
        self._aside = Aside(atlas)

    def offer(self) -> dict[str, Any]:
        """Models that can be compared, rows that both stores have, which pair to begin with, how the stores are
        related, and what is damaged in the second."""
        here, there = self.sides[HERE], self.sides.get(THERE)
        # the atlas reads the models of its own store, and the page says what is damaged there
        here.models = [name for name in here.models if self._atlas.is_whole(name)]
        damage = there.leave_damaged() if there else []
        return {
            "sides": {
                name: {"store": str(side.store.path), "root": side.store.root_digest, "models": side.models}
                for name, side in self.sides.items()
            },
            "rows": [len(side.table) for side in self.sides.values()],
            "shared": len(_matched(here.table, (there or here).table)[0]),
            "before": f"{THERE}:{there.best()}" if there and there.models else f"{HERE}:{here.other()}",
            "after": f"{HERE}:{here.best()}",
            "receipt": _receipt(here.store, there.store) if there else "",
            "damage": damage,
        }

    def ask(self, before: str, after: str) -> dict[str, Any]:
        """Compare two models on every row that the stores of both have.

        Raises:
            RecipeError: no such model.
        """
        pair = self._side(before), self._side(after)
        return self._aside.ask(f"{before} {after}", lambda progress: self._compare(pair, progress))

    def _side(self, name: str) -> tuple[Side, str]:
        side, _, model = name.partition(":")
        if side not in self.sides or model not in self.sides[side].models:
            known = [f"{key}:{one}" for key, each in self.sides.items() for one in each.models]
            raise RecipeError("no such model to compare", got=name, do=one_of_trained(known))
        return self.sides[side], model

    def _compare(self, pair: tuple[tuple[Side, str], tuple[Side, str]], progress: Progress) -> dict[str, Any]:
        with importing:
            from taftcache.report.accuracy import changes_of
            from taftcache.stages.look.scoring import shown_groups, unsearched

        here = self.sides[HERE]
        other = next((side for side, _ in pair if side is not here), here)
        rows, theirs = _matched(here.table, other.table)
        if not len(rows):
            raise StoreError("the two stores share no sample", got=f"{here.store.path}, {other.store.path}")
        names = list(dict.fromkeys([*here.store.classes, *other.store.classes]))
        labels = _renamed(here, names)[here.table.label[rows]]
        same = labels == _renamed(other, names)[other.table.label[theirs]]
        columns: list[dict[str, NDArray[Any]]] = []
        for side, model in pair:
            said, at = side.say(model, progress), rows if side is here else theirs
            # margins are those of the class that the sample has here
            ahead = said.margins[at] if side is here else np.where(same, said.margins[at], np.nan)
            columns.append(
                {
                    "class": _renamed(side, names)[said.classes[at]],
                    "margin": ahead.astype(np.float32),
                    "trained": side.trained(model)[at],
                }
            )
        # held out in one store alone, a row was seen by the other's models: it is in neither group
        held, theirs_held = here.table.held_out[rows], other.table.held_out[theirs]
        both = held & theirs_held
        ids = [here.table.ids[k] for k in rows]
        known = both & in_groups_of_one(here.store, other.store, ids) if other is not here else np.zeros_like(both)
        before, after = (column["class"] for column in columns)
        groups = {"held-out": both & ~known, "training": ~(held | theirs_held), "all": np.ones(len(rows), bool)}
        of = shown_groups(here.store, ids) or shown_groups(other.store, ids)
        alone = of is None and any(unsearched(side.store) for side in (here, other))
        found = {
            name: changes_of(labels[part], before[part], after[part], of and of.take(part))
            for name, part in groups.items()
        }
        return {
            "classes": names,
            "rows": packed(rows.astype(np.int32)),
            "label": packed(labels),
            "relabelled": int((~same).sum()),
            "held_out_once": int((held != theirs_held).sum()),
            "known": int(known.sum()),
            "in": {name: packed(part.astype(np.uint8)) for name, part in groups.items()},
            "groups": {name: changes and asdict(changes) for name, changes in found.items()},
            "unsearched": alone,
            **{
                key: {name: packed(values) for name, values in column.items()}
                for key, column in zip(("before", "after"), columns, strict=True)
            },
        }


def _once(store: FeatureStore) -> Callable[[], Scorer]:
    """A function that loads the store's models once, when first called; for one thread at a time."""

    @cache
    def load() -> Scorer:
        with importing:
            from taftcache.stages.look.scoring import Scorer

        return Scorer(store, skip_damaged=True)

    return load


def _matched(here: RowTable, there: RowTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the two tables that have the same ids, in the order of the first."""
    pairs = [(k, there.places[name]) for k, name in enumerate(here.ids) if name in there.places]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _renamed(side: Side, names: list[str]) -> NDArray[np.int32]:
    """The number that each class of a store has among ``names``."""
    return np.array([names.index(name) for name in side.store.classes], np.int32)


def _receipt(here: FeatureStore, there: FeatureStore) -> str:
    """Which receipt leads from one store to the other, in words; "" where none does."""
    for first, second, when in ((there, here, "before"), (here, there, "after")):
        key = b""
        with suppress(StoreError):  # without the key, only receipts of earlier releases can be matched
            key = ledger.read_key(second.root, second.manifest) if second.manifest.tombstone_key else b""
        for entry in second.ledger():
            if ledger.names_state(entry.get("root_before"), first.root_digest, key):
                what = f"{entry['event']} of {taken_text(entry)} at {entry.get('time', '')}"
                return f"The second store is this one {when} entry {entry['seq']} of the ledger ({what})."
    return ""
