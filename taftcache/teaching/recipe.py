"""The recipe for `taftcache teach`: several stores that teach, and a student that is trained from images."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from taftcache.backbone.spec import DataSpec, PreprocessSpec
from taftcache.errors import RecipeError
from taftcache.names import typed
from taftcache.recipe import Overrides, apply_overrides, built_values, parse_as, parse_bytes, place_of
from taftcache.recipe_files import check_sections, read_toml
from taftcache.recipe_sections import check_place
from taftcache.teaching.spec import StudentSpec, StudentTrainingSpec, TeacherSpec, TeachReportSpec, TeachSpec


class TeachingRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that teaching a student needs; only teachers have no default.

    ``load_teaching`` reads one from a file. ``teach`` checks one that is built from its sections in Python.

    name: names the folder, ``stores/teach/<name>``, unless ``path`` does; by default the recipe file's name.
    device: where students are trained; "auto" takes a GPU if there is one.
    path: the folder in which students and the report are kept. ``${VAR}`` and ``~`` are expanded.
    """

    name: str = "teach"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    path: str | None = None
    data: DataSpec = DataSpec(source="digits")
    teachers: list[TeacherSpec] = []
    student: StudentSpec = StudentSpec()
    preprocess: PreprocessSpec = PreprocessSpec()
    teach: TeachSpec = TeachSpec()
    train: StudentTrainingSpec = StudentTrainingSpec()
    report: TeachReportSpec = TeachReportSpec()

    def __post_init__(self) -> None:
        check_place("path", self.path, "stores/teach")

    @property
    def folder(self) -> Path:
        """Where students and the report are kept; RecipeError as for ``place_of``."""
        return place_of(self.name, self.path, "stores/teach", "path")


def load_teaching(path: str | os.PathLike[str], overrides: Overrides = ()) -> TeachingRecipe:
    """Read a TOML recipe that names teachers and change single settings of it.

    Args:
        path: a file, or the name of a bundled recipe (``teach/quick``).
        overrides: as for ``load_recipe``.

    Raises:
        RecipeError: as for ``load_recipe``, with [data] and [student] needed; also no teacher, or two with the same
            name.
    """
    values = read_toml(path)
    values.setdefault("name", Path(path).stem)
    values = apply_overrides(values, overrides)
    if "backbone" in values and not {"teachers", "student"} & values.keys():
        raise RecipeError(
            f"{path} is a recipe without teachers and a student",
            got="[backbone]",
            do=f"taftcache run {typed(path)}",
        )
    recipe = parse_teaching(values, str(path))
    check_sections(values, ("data", "student"), path)
    return recipe


def parse_teaching(values: Mapping[str, Any], where: str = "recipe") -> TeachingRecipe:
    """Typed recipe from plain values; see ``load_teaching`` for the errors."""
    recipe = parse_as(TeachingRecipe, values, where)
    parse_bytes(recipe.train.memory)
    if not recipe.teachers:
        raise RecipeError(f"{where} has no teacher", do="add [[teachers]] with a store")
    names = [teacher_name(teacher) for teacher in recipe.teachers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError("two teachers must not share a name", got=", ".join(twice), do="set name in [[teachers]]")
    return recipe


def checked_teaching(recipe: object) -> TeachingRecipe:
    """The recipe, with every value checked as if it were read from a file, which Python itself does not do.

    Raises:
        ArgumentError: not a recipe of this kind.
        RecipeError: as in ``load_teaching``, except that [data] and [student] have defaults.
    """
    return parse_teaching(built_values(recipe, TeachingRecipe, "load_teaching"))


def teacher_name(teacher: TeacherSpec) -> str:
    """The teacher's name, or the last part of its store's or recipe's path."""
    return teacher.name or Path(teacher.store or teacher.recipe or "").stem
