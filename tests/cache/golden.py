"""Makes the golden stores of the present format version: ``python -m tests.cache.golden FOLDER [int8]``.

Run once per format version, and the folder committed as ``stores/golden/v<format>-by-<release>``, or as
``int8-by-<release>`` where its rows are in 8 bits; never run again for a version that is out. Everything in it is fixed
but the tombstones' key, which is random, and what depends on it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from taftcache.cache.format.manifest import PREVIOUS
from taftcache.cache.format.parts import Skipped
from taftcache.cache.store import FeatureStore

from .making import CLASSES, IDENTITY, SHAPE, label, names, row

IDS = names(11, "golden/é")
FORGOTTEN, SKIPPED = IDS[4], IDS[6]
ROWS = {"000": IDS[:4], "001": [IDS[5], IDS[7], IDS[8]], "held-out": IDS[9:]}
CURVE = [[1, 0.5], [2, 0.125]]
DTYPES = {"000": "float16", "001": "float16", "held-out": "float32"}
EIGHT = dict.fromkeys(ROWS, "int8")


def make(path: Path, dtypes: Mapping[str, str] = DTYPES) -> None:
    plan = {"plan": "balanced", "seed": 0, "shards": 2}
    with FeatureStore.create(path, identity=IDENTITY, classes=CLASSES, plan=plan, recipe={"note": "golden"}) as store:
        for name, ids in ROWS.items():
            some = [*ids, FORGOTTEN] if name == "000" else ids
            role = "train" if name != "held-out" else "held-out"
            skipped = [Skipped(SKIPPED, "does not decode")] if name == "001" else []
            everyone = [*some, *(s.id for s in skipped)]
            with store.writer(
                name, role, tokens_shape=SHAPE, chunk_rows=2, dtype=dtypes[name], candidates=everyone
            ) as writer:
                writer.append(np.stack([row(i) for i in some]), some, [label(i) for i in some], skipped)
                writer.commit()
        with store.transaction() as change:
            change.erase([FORGOTTEN])
            change.put("components/000", b"not really safetensors", {"shard": "000", "steps": 3})
            change.record({"action": "erase", "samples": 1})
        with store.transaction() as change:
            change.record({"action": "train", "shards": ["000"]})
            change.put("components/001", b"with a curve", {"steps": 2, "convergence": CURVE})
    for name in ("lock", PREVIOUS):
        (path / name).unlink(missing_ok=True)
    (path / "staging").rmdir()


if __name__ == "__main__":
    make(Path(sys.argv[1]), EIGHT if "int8" in sys.argv[2:] else DTYPES)
