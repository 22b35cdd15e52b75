"""The recipe of a transfer: several stores that teach, and a student that is trained from images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from taftcache.backbone.spec import DataSpec, PreprocessSpec
from taftcache.errors import RecipeError
from taftcache.recipe import apply_overrides, parse_as, parse_bytes, read_toml
from taftcache.teaching.spec import ReportSpec, StudentSpec, TeacherSpec, TrainingSpec, TransferSpec


class TransferRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a transfer needs; only teachers have no default."""

    name: str = "transfer"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    path: str | None = None
    data: DataSpec = DataSpec(source="digits")
    teachers: list[TeacherSpec] = []
    student: StudentSpec = StudentSpec()
    preprocess: PreprocessSpec = PreprocessSpec()
    transfer: TransferSpec = TransferSpec()
    train: TrainingSpec = TrainingSpec()
    report: ReportSpec = ReportSpec()

    @property
    def folder(self) -> Path:
        """Where students and the report are kept; ``stores/transfer/<name>`` by default."""
        return Path(self.path or f"stores/transfer/{self.name}").expanduser()


def load_transfer(path: str | Path, overrides: Iterable[str] = ()) -> TransferRecipe:
    """Read a TOML recipe of a transfer and apply ``section.key=value`` overrides.

    Raises:
        RecipeError: as ``load_recipe``; a transfer also needs a teacher, and teachers of different names.
    """
    values = read_toml(path)
    values.setdefault("name", Path(path).stem)
    return parse_transfer(apply_overrides(values, overrides), str(path))


def parse_transfer(values: Mapping[str, Any], where: str = "recipe") -> TransferRecipe:
    """Typed recipe from plain values; see ``load_transfer`` for the errors."""
    recipe = parse_as(TransferRecipe, values, where)
    parse_bytes(recipe.train.memory)
    if not recipe.teachers:
        raise RecipeError("a transfer has a teacher", got=f"{where}: none", do="add [[teachers]] with a store")
    names = [teacher_name(teacher) for teacher in recipe.teachers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError("every teacher has a name of its own", got=twice, do="set name in [[teachers]]")
    return recipe


def teacher_name(teacher: TeacherSpec) -> str:
    """Its name, or the last part of its store's or recipe's path."""
    return teacher.name or Path(teacher.store or teacher.recipe or "").stem
