"""The settings that a folder's students were trained with: another recipe's students must not replace them."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec

from taftcache.backbone.files import expand_path, local_folder
from taftcache.backbone.spec import DataSpec
from taftcache.cache.format.identity import differences
from taftcache.errors import FormatError, IdentityError
from taftcache.teaching.recipe import TeachingRecipe, teacher_name

SETTINGS = "teach-settings.json"
# Settings that change no student, or only decide which further students there are.
FREE = {"": ("name", "device", "path", "report"), "teach": ("beta", "grid"), "train": ("seeds", "memory", "checkpoint")}


def check_settled(recipe: TeachingRecipe) -> dict[str, Any]:
    """The recipe's settings that all students of its folder share, to be kept there as ``SETTINGS``.

    Rows are not among them: students whose rows have been forgotten or appended to since are trained anew.

    Raises:
        IdentityError: the folder has students, or a report, with other settings; the message names each.
        FormatError: the folder's settings cannot be read.
    """
    ours, folder = _settings(recipe), recipe.folder
    file = folder / SETTINGS
    if not file.is_file() or not [*folder.glob("students/*/model.safetensors"), *folder.glob("report.json")]:
        return ours
    try:
        theirs = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{file} is not what teach wrote",
            got=error,
            do="put it back, or name another folder with --set path=FOLDER",
        ) from error
    if differ := differences("", theirs, ours, "the folder"):
        raise IdentityError(
            f"{folder} has what was trained with other settings than this recipe's",
            got="; ".join(differ),
            do="name another folder with --set path=FOLDER",
        )
    return ours


def data_settings(data: DataSpec) -> dict[str, Any]:
    """[data] in plain values, in which the same place always has the same spelling."""
    values: dict[str, Any] = msgspec.to_builtins(data)
    if data.group is None:  # as it was written before there was this key
        del values["group"]
    return values | {key: _place(values[key]) for key in data.places if values[key]}


def _settings(recipe: TeachingRecipe) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(msgspec.json.encode(recipe))  # lists for tuples, as they are read back
    for section, keys in FREE.items():
        for key in keys:
            del (values[section] if section else values)[key]
    values["data"] = data_settings(recipe.data)
    values["student"]["weights"] = _name_or_place(recipe.student.weights)
    values["teachers"] = {
        teacher_name(each): {
            "weight": each.weight,
            "store": each.store and _place(each.store),
            "recipe": each.recipe and _name_or_place(each.recipe),
        }
        for each in recipe.teachers
    }
    return values


def _name_or_place(text: str) -> str:
    return text if local_folder(text) or not expand_path(text).exists() else _place(text)


def _place(text: str) -> str:
    return text if "://" in text else os.path.realpath(expand_path(text))  # a bucket has one spelling
