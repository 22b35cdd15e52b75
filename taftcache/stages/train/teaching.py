"""A small model is trained from images with a prior from cached features; and the report that sets it beside others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.recipe import load_recipe
from taftcache.report.plots import check_plots
from taftcache.stages.extract.extraction import extract
from taftcache.stages.progress import Progress, Silent
from taftcache.teaching.recipe import TransferRecipe, teacher_name

if TYPE_CHECKING:
    from taftcache.teaching.students.students import Classroom
    from taftcache.teaching.students.trainer import Told


@dataclass(frozen=True)
class TeachReport:
    """The recipe's student, and what it was set beside.

    folder: students, tables and plots. student: file of the first seed's weights. beta: chosen or given.
    tables: as they stand in report.md, by title; each a list of rows of plain values.
    plots: files. trained, kept: students trained now and found trained.
    """

    folder: Path
    student: Path
    prior: str
    beta: float
    accuracy: list[float]
    tables: dict[str, list[dict[str, Any]]]
    conclusions: list[str]
    plots: list[Path]
    trained: int
    kept: int
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def teach(recipe: TransferRecipe, progress: Progress | None = None) -> TeachReport:
    """Train the recipe's student for each of its seeds, everything that its report compares it with, and report.

    Students are kept; what was trained under the same settings and rows is not trained again, and a training that
    was interrupted goes on at its last checkpoint.

    Raises:
        StoreError, DataError: teachers that do not join (see ``transfer.joined``).
        BackboneError: a student that cannot be built.
        RecipeError: no library to draw the report's plots with.
    """
    from taftcache.teaching.students.comparison import compare

    check_plots()
    progress = progress or Silent()
    begin = time.perf_counter()
    with open_classroom(recipe, progress) as room:
        compared = compare(room)
        desk = room.desk(recipe.transfer.prior, compared.beta, recipe.train.seeds[0])
        return TeachReport(
            recipe.folder,
            room.student_file(desk),
            recipe.transfer.prior,
            compared.beta,
            compared.accuracy,
            compared.tables,
            compared.conclusions,
            compared.plots,
            room.trained,
            room.kept,
            time.perf_counter() - begin,
            compared.notes,
        )


@contextmanager
def open_classroom(recipe: TransferRecipe, progress: Progress) -> Iterator[Classroom]:
    """Teachers' stores (made from their recipes where they are missing) joined with the images, while it lasts."""
    from taftcache.teaching.joined import every_shard, join
    from taftcache.teaching.students.students import Classroom

    with ExitStack() as stack:
        stores: dict[str, FeatureStore] = {}
        for spec in recipe.teachers:
            if spec.recipe is not None:
                made = load_recipe(spec.recipe, [f"device={recipe.device}"])
                if recipe.data != made.data:
                    raise StoreError(
                        "teachers and student see the same images",
                        got=f"{spec.recipe}: another [data] section",
                        do="make the two sections equal",
                    )
                extract(made, progress)
                path = made.store_path
            else:
                path = Path(spec.store or "").expanduser()
            stores[teacher_name(spec)] = stack.enter_context(FeatureStore(path))
        images: dict[str, str] = {}
        places: dict[str, tuple[Source, int]] = {}
        for source in open_source(recipe.data):
            if source is not None:
                images |= {item.id: source.classes[item.label] for item in source.items}
                places |= {item.id: (source, k) for k, item in enumerate(source.items)}
        joined = join(stores, images, {teacher_name(t): t.weight for t in recipe.teachers})
        digests = {name: [shard.digest for shard in every_shard(store)] for name, store in stores.items()}
        records = {name: store.manifest.recipe for name, store in stores.items()}

        @contextmanager
        def bar(name: str, total: int) -> Iterator[Told]:
            with progress.task(name, total) as task:

                def told(steps: int, text: str) -> None:
                    task.advance(steps)
                    if text:
                        task.note(text)

                yield told

        yield Classroom(recipe, joined, [places[i] for i in joined.ids], digests, records, bar)
