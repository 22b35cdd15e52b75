"""The page's data in JSON types, in one form for the server's answers and for what a report carries along."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format.fault import intact, problem_of
from taftcache.cache.read.shard import Shard
from taftcache.errors import FormatError, StoreError
from taftcache.names import BEFORE, PRIVATE, component_of, is_component, is_model, promise_text, shard_of
from taftcache.stages.forget.receipts import receipts
from taftcache.stages.look.inside.shards import outdated_recorded
from taftcache.stages.look.inside.stores import inspect_intact
from taftcache.stages.look.seen import UNCOVERED, private_keys, saw
from taftcache.stages.look.vectors import describe_vectors, has_tail, starts_blank
from taftcache.view.atlas import NONE, Atlas
from taftcache.view.embedding import nearest
from taftcache.view.pictures import Pictures, patch_grid
from taftcache.view.wording import again_lines, answer_text, caveats, forgotten_text, receipt_lines

if TYPE_CHECKING:
    from taftcache.stages.look.scoring import HeldOutLogits

NEIGHBOURS = 8
# Lists of keyed hashes in the ledger's entries: they say nothing to a reader, and an audit of a report with them would
# take them for the digests of shards that it was made from.
HASHES = ("ids", "shards_before", BEFORE)


def packed(array: NDArray[Any]) -> dict[str, str]:
    """An array as base64 of its little-endian bytes, with the name of JavaScript's typed array."""
    kinds = {"f": ("Float32Array", "<f4"), "i": ("Int32Array", "<i4"), "u": ("Uint8Array", "u1")}
    name, dtype = kinds[array.dtype.kind]
    return {"type": name, "data": base64.b64encode(np.ascontiguousarray(array, dtype).tobytes()).decode()}


def overview(atlas: Atlas) -> dict[str, Any]:
    """What ``taftcache inspect`` reports, the default model, which shards' rows each model saw, what the map is made
    of, the ledger (None if it is damaged), a note on outdated models, what was forgotten, and all that is known of
    damage."""
    report, damage = inspect_intact(atlas.store)
    axes, keys = atlas.axes, private_keys(atlas.store)
    models = [{**m, "promise": promise_text(m[PRIVATE])} if m.get(PRIVATE) else m for m in report.models]
    said = {key: value for key, value in asdict(report).items() if key != "recipe"}  # a page goes to others
    return {
        "report": {**said, "store": str(report.store), "models": models},
        "outdated": outdated_recorded(atlas.store),
        "forgotten": forgotten_text(report.forgotten, report.ledger, whole=len(report.ledger) == report.ledger_entries),
        "damage": list(dict.fromkeys([*map(problem_of, damage), *atlas.damage])),
        "leaked": len(atlas.leaked),
        "what": atlas.what,
        "model": atlas.model,
        "trained": {name: saw(atlas.store, name, keys) for name in atlas.store.objects() if is_model(name)},
        "shards": [{"name": s.name, "role": s.role} for s in atlas.table.shards],
        "vectors": describe_vectors(atlas.store),
        "explained": [] if axes is None else [float(x) for x in axes.explained],
        "ledger": intact(lambda: ledger(atlas)),
        "objective": atlas.store.manifest.recipe.get("objective", {}),
        "path": [p._asdict() for p in atlas.path],
        "head_ridges": atlas.head_ridges,
    }


def ledger(atlas: Atlas) -> dict[str, Any]:
    """The ledger's entries, the oldest first: as they are kept, but without ``HASHES``, with the lines of ``taftcache
    receipts`` for those that are receipts; and notes on what was imported again and on all of them."""
    entries, said, notes = atlas.store.ledger(), {}, []
    try:
        found = receipts(atlas.store)
    except FormatError as error:  # another program's entry: they are shown as they are kept
        notes = [str(error)]
    else:
        said = {r.seq: receipt_lines(r, r.seq in found.unreadable) for r in found.receipts}
        notes = [*again_lines(found.imported_again), *caveats(found.receipts, "in each entry as it is kept")]
    kept = [{field: value for field, value in entry.items() if field not in HASHES} for entry in entries]
    return {"entries": [{"kept": entry, "lines": said.get(entry["seq"], [])} for entry in kept], "notes": notes}


def known(atlas: Atlas, name: str) -> dict[str, str]:
    """What the store says of an id, as ``taftcache receipts --sample``: the state, and that in words.

    Raises:
        DataError: it cannot be an id. IntegrityError, FormatError: the ledger is damaged, or has an unknown entry.
    """
    report = receipts(atlas.store, [name])
    return {"state": report.samples[0].state, "text": answer_text(report.samples[0], report)}


def progress(atlas: Atlas) -> dict[str, Any]:
    """How far the background work is."""
    return {
        "version": atlas.version,
        "stages": {
            name: {**asdict(state), "ready": atlas.ready[name].is_set()} for name, state in atlas.progress.items()
        },
    }


def ids(atlas: Atlas) -> dict[str, Any]:
    """Ids, classes and shards of the rows: what never changes."""
    table = atlas.table
    return {"ids": table.ids, "label": packed(table.label), "shard": packed(table.shard)}


def columns(atlas: Atlas) -> dict[str, Any]:
    """What is known of every row by now; NaN and -1 stand for what is not."""
    named = {
        "x": atlas.place[:, 0],
        "y": atlas.place[:, 1],
        "norm": atlas.norm,
        "margin": atlas.margin,
        "moved": atlas.moved,
        **atlas.classes_by,
    }
    if atlas.neighbours is not None:
        named |= {"nx": atlas.neighbours[:, 0], "ny": atlas.neighbours[:, 1]}
    known = {
        name: column
        for name, column in named.items()
        if (np.isfinite(column).any() if column.dtype.kind == "f" else (column != NONE).any())
    }
    return {"version": atlas.version, "columns": {name: packed(column) for name, column in known.items()}}


def held_out(atlas: Atlas) -> dict[str, Any] | None:
    """Labels and every model's predictions on the held-out rows, with the shards of the components and of those that
    are damaged; None as long as there are none. ``groups``: the number of each row's group, and Student's quantiles
    for 2, 3, … groups; None where no two rows are known to share one. ``unsearched``: as of ``HeldOutLogits``."""
    kept = atlas.held_out
    if kept is None:
        return None
    models = {"base": kept.base.argmax(1), **kept.others}
    if starts_blank(atlas.store) and len(models) + len(kept.components) > 1:
        del models["base"]
    for k, name in enumerate(kept.components):
        models[name] = (kept.base + kept.tangents[k]).argmax(1)
    groups = kept.groups and {"number": packed(kept.groups.number), "quantiles": packed(kept.groups.quantiles())}
    return {
        "of": kept.of,
        "groups": groups,
        "unsearched": kept.unsearched,
        "rows": packed(kept.rows.astype(np.int32)),
        "labels": packed(kept.labels),
        "models": {name: packed(found.astype(np.int32)) for name, found in models.items()},
        "components": [shard_of(name) for name in kept.components],
        "damaged": [shard_of(name) for name in atlas.scorer().damaged if is_component(name)],
    }


def logits(atlas: Atlas) -> dict[str, Any] | None:
    """Base logits [n,K] and components' tangents [S,n,K], for composing without a server."""
    kept = atlas.held_out
    return None if kept is None else {"base": packed(kept.base.ravel()), "tangents": packed(kept.tangents.ravel())}


def scored(atlas: Atlas) -> HeldOutLogits:
    """Logits of the held-out rows; StoreError as long as there are none."""
    if atlas.held_out is None:
        why = atlas.progress["held-out predictions"].note or "they are being scored"
        raise StoreError("no composition to show: the held-out rows are not scored", got=why)
    return atlas.held_out


def composed(atlas: Atlas, without: Iterable[str]) -> dict[str, Any]:
    """Predictions on the held-out rows by the mean of all components except those of some shards, and the accuracy.

    Raises:
        StoreError: the held-out rows are not scored (yet). RecipeError: no such shard, or none left.
    """
    kept = scored(atlas)
    predictions = kept.predictions(without)
    return {"predictions": packed(predictions.astype(np.int32)), "accuracy": kept.accuracy(predictions)}


def sample(atlas: Atlas, name: str, pictures: Pictures) -> dict[str, Any]:
    """One sample: statistics, logits of every model, attention of the class row, neighbours, what forgetting moves.

    Raises:
        UnknownSample: no row of that id.
    """
    table = atlas.table
    k = table.find(name)
    shard, row = table.shards[table.shard[k]], int(table.row[k])
    tokens = shard.tokens(slice(row, row + 1))
    wide = tokens[0].astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    out: dict[str, Any] = {
        "id": name,
        "row": k,
        "shard": shard.name,
        "role": shard.role,
        "label": int(table.label[k]),
        "rows": {"count": len(norms), "first": norms[0], "mean": norms.mean(), "largest": norms.max()},
        "max_abs": float(np.abs(wide).max()),
        "neighbours": neighbours(atlas, k),
        "models": {},
        "attention": None,
        "why_no_attention": "",
        "forget": None,
        "private": "",
        "unsolved": "",
        "picture": pictures.encoded(name) is not None,
        "why_no_picture": pictures.why_not,
    }
    if has_tail(atlas.store) and not atlas.what:
        scorer = atlas.scorer()
        z, changes = scorer.logits(tokens, scorer.models)
        base = {} if scorer.models and starts_blank(atlas.store) else {"base": z[0].tolist()}
        out["models"] = base | {
            model: (z + change)[0].tolist() for model, change in zip(scorer.models, changes, strict=True)
        }
        out["attention"], out["why_no_attention"] = attention(atlas, tokens)
        own = component_of(shard.name)
        if shard.role == "train" and scorer.is_private(own):
            out["private"] = f"{own} is private: {UNCOVERED}."
        elif shard.role == "train" and own in scorer.outdated:
            out["unsolved"] = f"{own} was not made from the rows and settings that the store has now: taftcache train."
        elif shard.role == "train" and own in scorer.models:
            out["forget"] = forgetting(atlas, tokens, shard, row)
    return out


def neighbours(atlas: Atlas, row: int) -> list[dict[str, Any]]:
    """The samples whose vectors are nearest to that of a row of the table; none until vectors are known."""
    if atlas.vectors is None:
        return []
    table, near = atlas.table, nearest(atlas.vectors, row, NEIGHBOURS)
    return [
        {"id": table.ids[j], "label": int(table.label[j]), "shard": int(table.shard[j]), "cosine": cosine}
        for j, cosine in near
        if np.isfinite(atlas.place[j, 0])
    ]


def forgetting(atlas: Atlas, tokens: NDArray[Any], shard: Shard, row: int) -> dict[str, Any]:
    """How far forgetting a training row moves its shard's component, and can move it and the mean; None: unknown."""
    scorer, own, table = atlas.scorer(), component_of(shard.name), atlas.table
    moved = float(atlas.moved[table.start(table.shards.index(shard)) + row])
    members = sum(is_component(name) for name in scorer.models)
    bound = float(scorer.moved_at_most(tokens, shard.labels[row : row + 1], own)[0])
    known = np.isfinite(bound)
    return {
        "component": own,
        "norm": scorer.norm(own),
        "moved": moved if np.isfinite(moved) else None,
        "bound": bound if known else None,
        "composed_bound": bound / members if known else None,
        "rows": shard.rows,
    }


def attention(atlas: Atlas, tokens: NDArray[Any]) -> tuple[dict[str, Any] | None, str]:
    """φ of the class row per head over the patches, as rows of a grid; or None and why."""
    phi, why = atlas.scorer().attention(tokens)
    if phi is None:
        return None, why
    grid = patch_grid(phi.shape[1], atlas.store.identity.get("preprocess", {}))
    if grid is None:
        return None, f"{phi.shape[1]} tokens fill no grid of the input's shape"
    prefix = phi.shape[1] - grid[0] * grid[1]
    return {
        "grid": list(grid),
        "heads": [[float(f"{v:.4g}") for v in head[prefix:]] for head in phi],
        "prefix": phi[:, :prefix].sum(1).tolist(),
    }, ""
