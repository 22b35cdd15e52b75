"""What shards, objects and classes may be called, and where an object lies."""

from __future__ import annotations

import re

from taftcache.cache.format.digest import SHORT, plain
from taftcache.errors import RecipeError
from taftcache.names import counted

FILE = "manifest.json"
MAX_BYTES = 32 << 20  # of the root manifest
OBJECT_FOLDERS = ("base", "components", "models", "state")
DERIVED = ("components", "models", "state")  # what training, or another import, makes again

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
SUFFIX = re.compile(r"\.[a-z0-9]{1,16}")


def object_path(name: str, digest: str, suffix: str) -> str:
    """Where the object ``name`` (``components/000``) of that digest lies."""
    return f"{name}-{digest[:SHORT]}{suffix}"


def check_name(name: str) -> str:
    """The name of a shard, or of an object in its folder."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        like = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")[:64]
        raise RecipeError(
            "a name must have 1 to 64 of a-z, 0-9 and '-', and not begin with '-'",
            got=repr(name),
            do=f"rename it, to {like} say" if like else "rename it",
        )
    return name


def check_object(name: str, suffix: str = ".safetensors") -> str:
    """The name of an object: ``<folder>/<name>``."""
    folder, _, leaf = name.partition("/")
    if folder not in OBJECT_FOLDERS or not SUFFIX.fullmatch(suffix):
        raise RecipeError(
            f"an object must be in one of the folders {', '.join(OBJECT_FOLDERS)}, with a suffix like '.safetensors'",
            got=f"{name!r}, suffix {suffix!r}",
            do=f"a name like {OBJECT_FOLDERS[0]}/mine",
        )
    check_name(leaf)
    return name


def check_class_names(classes: list[str]) -> list[str]:
    """Class names: at least one, all different."""
    classes = plain(list(classes), "classes")
    if not classes or len(set(classes)) != len(classes) or not all(isinstance(c, str) and c for c in classes):
        twice = sorted({repr(c) for c in classes if classes.count(c) > 1})[:5]
        raise RecipeError(
            "a store must have at least one class, and no name of a class twice or empty",
            got=counted(len(classes), "class") + (f", twice: {', '.join(twice)}" if twice else ""),
            do="name each class once",
        )
    return classes
