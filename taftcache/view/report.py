"""The page as one file: the same views over data that it carries along."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.errors import check_several, local_path
from taftcache.names import shard_of
from taftcache.stages.progress import Progress, Silent, or_silent
from taftcache.stages.report import Report
from taftcache.stages.writing import whole, writable
from taftcache.view import payload
from taftcache.view.asked.composing import rows_right, taken_out
from taftcache.view.atlas import NONE, WORK, Atlas
from taftcache.view.page import beginning, report_page
from taftcache.view.pictures import Pictures

# Samples of which a report carries all details, besides those asked for: the most wrong, the most influential.
DETAILED = 24
# Most bytes of logits that a report carries, so that any shards can be taken out of the composition. Beyond that it
# carries the predictions of `subsets`.
LOGIT_BYTES = 16 << 20
THUMBNAIL, PICTURE = 96, 192


@dataclass(frozen=True, kw_only=True)
class PageReport(Report):
    """The file that was written.

    rows: how many it shows. details: ids of the samples with all their details.
    """

    store: Path
    root_digest: str
    file: Path
    bytes: int
    rows: int
    details: list[str]
    notes: list[str]


@at_its_place()
def write_report(
    store: Place,
    file: Path | str,
    *,
    samples: Sequence[str] = (),
    neighbours: bool = True,
    consent: Consent | None = None,
    progress: Progress | bool | None = None,
) -> PageReport:
    """Write every view of ``store`` into one HTML file that loads nothing from elsewhere.

    The file shows the name of the store, not the rest of its path.

    Args:
        file: where to write it; an existing page is replaced, any other file refused.
        samples: ids of samples to include with all details, beside those chosen by margin and influence.
        neighbours: include the neighbour embedding, the slowest part.
        consent: images instead of those that the store names.

    Raises:
        UnknownSample: one of ``samples`` has no row. StoreWriteError: the file cannot be written, or is
            another there.
    """
    assert isinstance(store, FeatureStore)
    writable(place := local_path(file, "the place of the page"), again=beginning())
    skip = () if neighbours else ("neighbours",)
    atlas, pictures, data = everything(store, samples, skip, consent, or_silent(progress))
    page = report_page(f"taftcache report · {data['overview']['report']['store']}", data)
    with whole(place, again=beginning()) as partial:
        partial.write_bytes(page)
        store.check_may_leave()
    notes = [f"{name}: {state.note}" for name, state in atlas.progress.items() if state.note]
    notes += [f"damaged: {problem}" for problem in data["overview"]["damage"]]
    notes += data["overview"]["outdated"] + pictures.notes
    if any("privacy" in model for model in data["overview"]["report"]["models"]):
        notes.append("the store has private models; their promise does not cover this file, which shows the rows")
    return PageReport(
        store=store.path,
        root_digest=store.root_digest,
        file=place,
        bytes=len(page),
        rows=len(atlas.table),
        details=list(data["samples"]),
        notes=notes,
    )


def everything(
    store: FeatureStore, samples: Sequence[str], skip: tuple[str, ...], consent: Consent | None, progress: Progress
) -> tuple[Atlas, Pictures, dict[str, Any]]:
    """The atlas of a store, worked out now except for the stages to ``skip``, its pictures, and the data that a page
    without a server carries: pages are passed on, and the data name no place of this machine.

    Raises:
        UnknownSample: one of ``samples``, whose details are carried, has no row.
    """
    check_several(samples=samples)
    pictures, atlas = Pictures(store, consent), Atlas(store)
    named = [atlas.table.ids[atlas.table.find(name)] for name in samples]
    with progress.task("page", len(WORK)) as task:
        atlas.work(skip=skip, task=task)
    data = report_data(atlas, list(dict.fromkeys([*named, *telling(atlas)])), pictures)
    outdated = data["overview"]["outdated"]
    data["overview"]["report"] |= {"store": os.path.basename(os.path.abspath(store.path)), "notes": outdated}
    for sample in data["samples"].values():
        sample["why_no_picture"] = None  # it may name one
    return atlas, pictures, data


def telling(atlas: Atlas) -> list[str]:
    """Ids worth a look: held-out rows with the smallest margins, then training rows with the most influence or, if that
    is not known, with the smallest margins too."""
    held = np.flatnonzero(atlas.table.held_out & (atlas.classes_by["model"] != NONE))
    wrong = held[np.argsort(atlas.margin[held], kind="stable")][: DETAILED // 2]
    telling = atlas.moved if np.isfinite(atlas.moved).any() else np.where(atlas.table.held_out, np.nan, -atlas.margin)
    known = np.flatnonzero(np.isfinite(telling))
    strong = known[np.argsort(-telling[known], kind="stable")][: DETAILED - len(wrong)]
    rows = [*wrong, *strong] or np.flatnonzero(np.isfinite(atlas.place[:, 0]))[:DETAILED]
    return [atlas.table.ids[k] for k in rows]


def report_data(atlas: Atlas, details: Sequence[str], pictures: Pictures) -> dict[str, Any]:
    """What the server would answer, for a page without one; JSON types."""
    samples = {name: payload.sample(atlas, name, pictures) for name in details}
    shown: dict[str, int] = {n["id"]: THUMBNAIL for s in samples.values() for n in s["neighbours"]}
    shown |= dict.fromkeys(samples, PICTURE)
    images = {name: pictures.encoded(name, size) for name, size in shown.items()}
    kept = atlas.held_out
    small = kept is not None and kept.base.nbytes + kept.tangents.nbytes <= LOGIT_BYTES
    data = {
        "overview": payload.overview(atlas),
        "progress": payload.progress(atlas),
        "ids": payload.ids(atlas),
        "columns": payload.columns(atlas),
        "held-out": payload.held_out(atlas),
        "logits": payload.logits(atlas) if small else None,
        "compositions": None if kept is None else rows_right(atlas, Silent()),
        "subsets": {} if kept is None or small else subsets(atlas),
        "samples": samples,
        "picture_note": pictures.note,
        "pictures": {
            name: f"data:{image.kind};base64,{base64.b64encode(image.body).decode()}"
            for name, image in images.items()
            if image
        },
    }
    return dict(json.loads(json.dumps(data, default=float)))


def subsets(atlas: Atlas) -> dict[str, Any]:
    """The compositions that the page asks for by itself: the last shards subtracted in turn, and each alone."""
    assert atlas.held_out is not None
    outs = taken_out([shard_of(name) for name in atlas.held_out.components])
    return {",".join(out): payload.composed(atlas, out)["predictions"] for out in outs}
