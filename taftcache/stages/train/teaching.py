"""Train a small model from images, with a prior from cached features, and report how it compares with others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from taftcache.backbone.files import expand_path
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import DataSpec
from taftcache.cache.format.identity import differences
from taftcache.cache.store import FeatureStore
from taftcache.consent import check_weights_there, followed
from taftcache.errors import BackboneError, StoreError
from taftcache.names import counted, first_few, scaling_of
from taftcache.recipe import Recipe, load_recipe
from taftcache.report.plots import check_plots
from taftcache.report.write import write_json
from taftcache.stages.extract.classes import classes_of
from taftcache.stages.extract.extraction import extract
from taftcache.stages.extract.forgotten import left_out_notes, staying_out
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.writing import alone, check_replaced, writable
from taftcache.teaching.joined import Joined, check_features, join
from taftcache.teaching.recipe import TeachingRecipe, checked_teaching, teacher_name
from taftcache.teaching.spec import TeacherSpec
from taftcache.teaching.students.comparison import compare
from taftcache.teaching.students.pages import FILES
from taftcache.teaching.students.settled import SETTINGS, check_settled, data_settings
from taftcache.teaching.students.students import Students
from taftcache.teaching.students.trainer import OnEpoch


@dataclass(frozen=True, kw_only=True)
class TeachReport(Report):
    """The recipe's student, and what it was compared with.

    folder: where students, tables and plots are. student: the file with the first seed's weights. prior: the one that
    the recipe asks for. beta: its weight, chosen or given. accuracy: of each seed's student, in order. tables: as they
    stand in report.md, by title. Each is a list of rows of plain values. conclusions: sentences on the tables. plots:
    their files. trained, kept: how many students were trained now, and were there already.
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


def teach(recipe: TeachingRecipe, *, progress: Progress | bool | None = None) -> TeachReport:
    """Train the recipe's student for each of its seeds, and everything that its report compares it with, and report.

    Students are kept; what was trained with the same settings, rows and pixels is not trained again, and an interrupted
    training resumes at its last checkpoint.

    Raises:
        StoreError, DataError: teachers that do not join (see ``teaching.joined``).
        IdentityError: the folder has students, or a report, from other settings. StoreLocked: another process trains
            there.
        BackboneError: a student that cannot be built.
        ArgumentError: not a ``TeachingRecipe``.
        RecipeError: no library to draw the report's plots with, or a wrong value in a recipe that was not read from a
            file.
        StoreWriteError: a folder that cannot be written to, that lies within a store, or with a report of others.
    """
    recipe = checked_teaching(recipe)
    check_plots()
    writable(recipe.folder, folder=True, again=True)
    check_replaced(recipe.folder, FILES, own=(recipe.folder / SETTINGS).is_file())
    settings = check_settled(recipe)
    progress = or_silent(progress)
    begin = time.perf_counter()
    with open_students(recipe, progress) as students:
        students.check()
        with alone(recipe.folder):
            check_settled(recipe)
            write_json(recipe.folder / SETTINGS, settings)
            compared = compare(students)
            own = students.settings(recipe.teach.prior, compared.beta, recipe.train.seeds[0])
            return TeachReport(
                folder=recipe.folder,
                student=students.student_file(own),
                prior=recipe.teach.prior,
                beta=compared.beta,
                accuracy=compared.accuracy,
                tables=compared.tables,
                conclusions=compared.conclusions,
                plots=compared.plots,
                trained=students.trained,
                kept=students.kept,
                seconds=time.perf_counter() - begin,
                notes=compared.notes,
            )


@contextmanager
def open_students(recipe: TeachingRecipe, progress: Progress) -> Iterator[Students]:
    """The recipe's students; the teachers' stores, made if missing, are open and joined with the images meanwhile."""
    with ExitStack() as stack:
        for spec in recipe.teachers:
            if spec.store is not None:  # refused before another teacher's images are run
                with FeatureStore(expand_path(spec.store)) as store:
                    check_features(teacher_name(spec), store)
        stores = {
            teacher_name(spec): stack.enter_context(FeatureStore(_teacher_store(spec, recipe, progress)))
            for spec in recipe.teachers
        }
        opened = open_source(recipe.data, lambda sample: any(store.knows(sample) for store in stores.values()))
        sources = [source for source in opened if source is not None]
        images, notes = _images(recipe.data, sources, list(stores.values()))
        places = {item.id: (source, k) for source in sources for k, item in enumerate(source.items)}
        joined = join(stores, images, {teacher_name(t): t.weight for t in recipe.teachers})
        digests = {name: [shard.digest for shard in store.every_shard] for name, store in stores.items()}
        records = {name: partial(_with_backbone, store) for name, store in stores.items()}

        @contextmanager
        def bar(name: str, total: int) -> Iterator[OnEpoch]:
            with progress.task(name, total) as task:

                def on_epoch(steps: int, text: str) -> None:
                    task.advance(steps)
                    if text:
                        task.note(text)

                yield on_epoch

        of_row = [places[i] for i in joined.ids]
        notes += _split_notes(recipe, joined, stores)
        yield Students(recipe, joined, of_row, digests, records, bar, notes)


def _images(
    data: DataSpec, sources: Sequence[Source], stores: Sequence[FeatureStore]
) -> tuple[dict[str, str], list[str]]:
    """The class of every image by id, without images that no store has and one would never take: their class or group
    was forgotten there, or only test images have the class. Notes on these, and on how many were forgotten: the report
    keeps them, so they name none."""
    images, aside, gone, grouped = classes_of(*sources), set[str](), set[str](), set[str]()
    for store in stores:
        out = staying_out(store.is_forgotten, data, *sources, known=store.classes)
        if held := sorted(i for i in out.grouped if not store.holds(i) and any(one.holds(i) for one in stores)):
            raise StoreError(
                f"the teacher {store.path} has forgotten the group of {first_few(held, 3)}, but another still holds it",
                do="forget it there, too: taftcache forget STORE --sample ID --with-group",
            )
        gone |= {*out.ids, *out.grouped}
        grouped |= {*out.grouped}
        aside |= out.closed.keys() | {i for i, name in out.strange.items() if name in out.alone}
    left = {i: images.pop(i) for i in aside | grouped if not any(store.holds(i) for store in stores)}
    kind = "classes that a teacher has forgotten, or lacks while only test images have them"
    forgotten = [f"{counted(len(gone), 'image')} left out, forgotten in a teacher's store"] if gone else []
    closed = [name for i, name in left.items() if i not in grouped]
    return images, forgotten + left_out_notes(closed, kind, "append takes none of them")


def _with_backbone(store: FeatureStore) -> Recipe:
    """The recipe that a teacher's store keeps; BackboneError where no backbone made its features."""
    if scaling_of(store.identity) is not None:
        raise BackboneError(f"{store.path} was made from vectors, without a backbone")
    recipe = followed(store, "weights", naming="none")
    check_weights_there(store, recipe, "none")
    return recipe


def _split_notes(recipe: TeachingRecipe, joined: Joined, stores: Mapping[str, FeatureStore]) -> list[str]:
    """A note if the stores hold out another fraction than the recipe says: that of the stores counts."""
    asked = recipe.data.held_out
    said = {store.manifest.recipe.get("data", {}).get("held_out", asked) for store in stores.values()}
    if recipe.data.test is not None or said == {asked}:
        return []
    return [
        f"data.held_out = {asked:g} has no effect: the teachers' stores hold out "
        f"{len(joined.held_out)} of {counted(len(joined.ids), 'image')}, and students are measured on these"
    ]


def _teacher_store(spec: TeacherSpec, recipe: TeachingRecipe, progress: Progress) -> Path:
    """The place of a teacher's store, which is extracted first if its recipe is named."""
    if spec.recipe is None:
        return expand_path(spec.store or "")
    made = load_recipe(spec.recipe, [f"device={recipe.device}"])
    if differ := differences("data", data_settings(made.data), data_settings(recipe.data), "the teacher"):
        raise StoreError(
            f"the teacher {spec.recipe} sees other images than the student: its [data] section differs",
            got="; ".join(differ),
            do="make the two sections equal",
        )
    extract(made, progress=progress)
    return made.store_path
