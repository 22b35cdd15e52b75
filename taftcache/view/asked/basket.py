"""What forgetting the samples in the page's basket would cost, as ``taftcache forget --dry-run`` says it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from taftcache.view.atlas import Atlas
from taftcache.view.late import importing

# The base of row numbers, as JavaScript writes them with toString(36).
RADIX = 36


def rows_of(atlas: Atlas, text: str) -> list[int]:
    """Rows of the table from an address: each as its difference from the one before, with "." between them.

    ValueError if that is no list of rows of the table.
    """
    rows, at = [], 0
    for part in text.split("."):
        if not (part.isascii() and part.isalnum()):
            raise ValueError(text)
        at += int(part, RADIX)
        rows.append(at)
    if at >= len(atlas.table) or len(set(rows)) < len(rows):
        raise ValueError(text)
    return rows


def cost(atlas: Atlas, rows: list[int]) -> dict[str, Any]:
    """The plan of a request to forget rows of the table: nothing is changed, and nothing solved.

    Raises:
        DataError: no training row would be left.
    """
    with importing:
        from taftcache.stages.forget.forgetting import estimate
        from taftcache.stages.forget.planning import plan_forgetting
        from taftcache.stages.forget.request import resolve_request

    table = atlas.table
    request = resolve_request(atlas.store, [table.ids[k] for k in rows])
    report = estimate(atlas.store, plan_forgetting(atlas.store, request, "retrain"))
    leaving = Counter(table.shards[table.shard[k]].name for k in rows)
    whole = {shard.name: shard.rows for shard in table.shards}
    return {
        "samples": len(report.forgotten),
        "shards": [
            {"name": name, "leaving": n, "rewritten": whole[name] - n if name not in report.dropped_shards else 0}
            for name, n in sorted(leaving.items())
        ],
        "renewed": report.renewed,
        "destroyed": report.destroyed,
        "dropped_shards": report.dropped_shards,
        "classes": report.classes,
        "passes": report.passes,
        "bytes": report.bytes,
        "notes": report.notes,
    }
