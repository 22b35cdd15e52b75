"""Who decides that a file is opened because a store names it: the person who reads the store, never the store.

A store's record of its recipe names images, weights and teachers' stores on whatever machine made it. A store that
came from elsewhere may name anything: followed without asking, ``~/Pictures`` ends up in a report, and a model's name
reaches the network. So a name in a record is followed only if this user allowed it on this machine. ``extract``,
``import`` and ``train`` with the user's own recipe allow what that recipe names, ``copy`` and ``convert`` take it over
from their source, and ``taftcache trust`` allows what a store names. What is allowed stands in one file, a line for
each: store, kind and the very names, so that neither another store put in its place nor other names are covered.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from taftcache.backbone.files import WEIGHTS_NAME, file_digest, local_folder, missing_place
from taftcache.cache.place.address import is_bucket, spelled
from taftcache.cache.place.failure import AVOID
from taftcache.cache.place.folder import PRIVATE, Folder, writing
from taftcache.errors import (
    LOST_TEACHER,
    ArgumentError,
    BackboneError,
    FormatError,
    RecipeError,
    StoreWriteError,
    TaftcacheError,
    UntrustedStore,
    check_several,
)
from taftcache.recipe import (
    OVERRIDES,
    Overrides,
    Recipe,
    apply_overrides,
    as_mapping,
    check_names,
    check_used,
    parse_recipe,
    recipe_values,
)

if TYPE_CHECKING:
    from taftcache.cache.store import FeatureStore

Kind = Literal["images", "weights", "teachers"]
KINDS: tuple[Kind, ...] = ("images", "weights", "teachers")
SECTION = {"images": "data", "weights": "backbone", "teachers": "prior"}
Naming = Literal["options", "set", "none"]
"""How a command lets its user name what it opens: by options of its own, by ``--set``, or not at all."""


class _Line(msgspec.Struct, frozen=True):
    """A line of the list."""

    store: str = ""
    kind: Kind = "images"
    names: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Consent:
    """What one call may open instead of what the store names.

    images: a folder or file for each one that the store was made from (training, then test), of the same kind of
        source; for a published dataset, its root. weights: a .safetensors file or a folder in timm's layout. hub:
        whether the model hub may be asked for what the store names.
    """

    images: tuple[Path | str, ...] = ()
    weights: Path | str | None = None
    hub: bool = False

    def __post_init__(self) -> None:
        check_several(images=self.images)


def check_consent(consent: object) -> None:
    """ArgumentError for what is no ``Consent``, and not None."""
    if not isinstance(consent, Consent | None):
        raise ArgumentError(
            "consent is not a Consent", got=repr(consent)[:80], do="leave it out, or Consent(hub=True), say"
        )


def recorded_recipe(store: FeatureStore) -> Recipe:
    """The recipe as the store records it; what it names is only the store's word, not to be followed without asking.

    FormatError for settings that this release does not have.
    """
    recorded, where = store.manifest.recipe, str(store.path)
    try:
        check_names(recorded, where)
    except RecipeError as error:
        raise FormatError(
            f"the recipe that the store records is none of this release: {error.fault}",
            got=error.got,
            do="use the release that made the store, or extract its images again",
        ) from error
    return parse_recipe(recorded, where)


def grouping_recipe(store: FeatureStore) -> Recipe | None:
    """The recipe that says which samples of a store belong together; None without ``data.group``, and in a stranger's
    store, which is only looked at: its expression may take for ever.

    A stranger's is one that may not open its images here or, if it names none, with nothing beside it that a request to
    forget at this place has left.
    """
    with suppress(TaftcacheError):  # a store that no stage made may record anything
        recipe = recorded_recipe(store)
        own = refusal(store, "images", recipe) is None if names(recipe, "images") else bool(store.tombstone_file.key)
        return recipe if own and recipe.data.group is not None else None
    return None


def groups_here(store: FeatureStore, ids: Iterable[str]) -> list[str] | None:
    """The group of each sample, where a store is only looked at: by ``grouping_recipe``; None where there is none."""
    with suppress(RecipeError):  # the expression finds the empty text in one of them
        return None if (recipe := grouping_recipe(store)) is None else recipe.data.groups(ids)
    return None


def overridden(command: str, store: FeatureStore, overrides: Overrides, recipe: Recipe | None = None) -> Recipe:
    """``recipe``, or else the one that the store records, with each override applied.

    RecipeError for what is no override, or not one that a recipe takes or that ``command`` uses for this store.
    """
    overrides = as_mapping(overrides)
    of_vectors = command in ("train", "compose") and "scaling" in store.identity.get("imported", {})
    check_used(f"{command} on vectors" if of_vectors else command, overrides, placed=True)
    values = recipe_values(recorded_recipe(store) if recipe is None else recipe)
    return parse_recipe(apply_overrides(values, overrides), OVERRIDES)


def followed(store: FeatureStore, kind: Kind, consent: Consent | None = None, naming: Naming = "options") -> Recipe:
    """The store's own recipe, with what ``consent`` names in place of its names; ``naming`` is what a refusal advises.

    Raises:
        UntrustedStore: it names something of this kind that nobody allowed. RecipeError: other images than it has, or
            no ``Consent``.
    """
    check_consent(consent)
    consent = consent or Consent()
    recipe = recorded_recipe(store)
    own: dict[str, str] = {}
    if kind == "images" and consent.images:
        own = _places(recipe, consent.images)
        recipe = msgspec.structs.replace(recipe, data=msgspec.structs.replace(recipe.data, **own))
    if kind == "weights" and consent.weights is not None:
        own = {"weights": _own_weights(store, recipe, Path(os.path.abspath(consent.weights)))}
        recipe = msgspec.structs.replace(recipe, backbone=msgspec.structs.replace(recipe.backbone, **own))
    own_keys = [f"{SECTION[kind]}.{key}" for key in own]
    if (refused := refusal(store, kind, recipe, own_keys, hub=consent.hub, naming=naming)) is not None:
        raise refused
    return recipe


def refusal(
    store: FeatureStore,
    kind: Kind,
    recipe: Recipe,
    own: Collection[str] = (),
    *,
    hub: bool = False,
    naming: Naming = "set",
) -> UntrustedStore | None:
    """Why what ``recipe`` names is not opened: only the store names it, and nobody allowed it here. None if it may be.

    Names that differ from the store's are the caller's own, and so are those under the keys ``own`` ("data.train").
    ``hub`` allows what only the model hub is asked for. What to do depends on the ``naming``.
    """
    recorded = names(recorded_recipe(store), kind)
    foreign = {key: value for key, value in names(recipe, kind).items() if recorded.get(key) == value}
    foreign = {key: value for key, value in foreign.items() if f"{SECTION[kind]}.{key}" not in own}
    if hub:
        foreign = {k: v for k, v in foreign.items() if not _from_hub(k, v)}
    if not foreign or _line(store.place, kind, recorded) in _allowed():
        return None
    return UntrustedStore(
        f"the store names {kind} that this user has not allowed it to open here",
        got=", ".join(f"{SECTION[kind]}.{key} = {value!r}" for key, value in foreign.items()),
        do=f"{_instead(kind, foreign, naming)}taftcache trust {shlex.quote(str(store.path))}, where you know who made "
        f"it (that list is {_file() or 'in your home, and there is none'})",
    )


def _instead(kind: Kind, foreign: Mapping[str, Any], naming: Naming) -> str:
    """What to do rather than to trust a store: how a command is told all that is ``foreign``."""
    if kind == "teachers":
        return f"train with a recipe of your own ({LOST_TEACHER}), or "
    if naming == "set":
        ways = " ".join(f"--set {SECTION[kind]}.{key}=…" for key in foreign)
    elif naming == "none" or local_folder(str(foreign.get("model"))):
        ways = ""  # no option names a folder that a model's code is taken from
    elif kind == "images":
        ways = "--images PLACE; in Python Consent(images=…)"
    else:
        file = {"--weights FILE": "weights=…"} if foreign.get("weights") not in (None, "pretrained") else {}
        options = file | ({"--allow-hub": "hub=True"} if any(_from_hub(k, v) for k, v in foreign.items()) else {})
        ways = f"{' '.join(options)}; in Python Consent({', '.join(options.values())})" if options else ""
    return f"name them yourself ({ways}), or " if ways else ""


def _own_weights(store: FeatureStore, recipe: Recipe, place: Path) -> str:
    """Where the weights are that a caller named instead of the store's: for a file of a folder (``recipe`` names no
    model) that folder, which also says the model.

    BackboneError for another file: nothing says of which model it is.
    """
    if recipe.backbone.model is not None or not place.is_file():
        return str(place)
    made, is_bundled = store.identity.get("backbone", {}), recipe.backbone.weights == "bundled"
    if file_digest(place) != made.get("file_digest"):
        raise BackboneError(
            f"these weights are not those of the store's backbone, {made.get('model')}",
            got=str(place),
            do="leave them out: the store's are bundled with taftcache"
            if is_bundled
            else f"name the store's folder of weights in timm's layout, whose {WEIGHTS_NAME} has the BLAKE3 digest "
            f"{made.get('file_digest')}",
        )
    return "bundled" if is_bundled else str(place.parent)


def check_weights_there(store: FeatureStore, recipe: Recipe, naming: Naming = "set") -> None:
    """BackboneError, with what to look for, if there is nothing where ``recipe`` names the weights of ``store``."""
    if (nowhere := missing_place(recipe.backbone)) is None:
        return
    digest = store.identity.get("backbone", {}).get("file_digest")
    ways = {"options": "--weights FILE; in Python Consent(weights=…)", "set": "--set backbone.weights=FILE"}
    raise BackboneError(
        f"no weights at {nowhere}",
        got=f"backbone.weights = {recipe.backbone.weights!r}",
        do=(f"name where they lie ({ways[naming]})" if naming in ways else "put them back there")
        + (f": the .safetensors file has the BLAKE3 digest {digest}" if digest else ""),
    )


def check_architecture(store: FeatureStore, consent: Consent | None = None) -> None:
    """UntrustedStore if building the model of a store's tail would ask the hub or a folder, and nobody allowed it.

    A name from timm's own list has no colon, and is built from timm's code alone.
    """
    name = str(store.identity.get("backbone", {}).get("model", ""))
    naming: Naming = "none" if consent is None else "options"
    if ":" in name and followed(store, "weights", consent, naming).backbone.model != name:
        raise UntrustedStore("the store was made with another model than the one its record names", got=name, do=AVOID)


def remember(path: Path | str, recipe: Recipe, kinds: Iterable[Kind] = KINDS, *, must: bool = False) -> None:
    """Allow the store at ``path`` what ``recipe`` names, from now on; nothing happens if the list cannot be written.

    Raises:
        StoreWriteError: the list cannot be written, and ``must`` be.
    """
    known = _allowed()
    named = ((kind, names(recipe, kind)) for kind in kinds)
    lines = [line for kind, what in named if what and (line := _line(path, kind, what)) not in known]
    file = _file()
    if not lines or file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(file):
            place = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(place, "".join(f"{line}\n" for line in lines).encode())
            finally:
                os.close(place)
    except OSError as error:
        # Users without a writable home must still be able to extract; a later refusal says how to name the files.
        if must:
            raise StoreWriteError(
                f"cannot write {file}, the list of what stores may open",
                got=error.strerror,
                do="make its folder writable, or name another in XDG_STATE_HOME",
            ) from error


def take_back(path: Path | str) -> dict[str, Any]:
    """Allow the store at ``path`` nothing any more, whether or not it still exists; returns what it was allowed.

    Raises:
        StoreWriteError: the list cannot be written.
    """
    file, store = _file(), _place(path)
    if file is None or not _own(store):
        return {}
    with writing(file.parent), _alone(file), closing(Folder(file.parent)) as folder:
        own = _own(store)
        rest = [line for line in _lines() if line not in own]
        folder.swap(file.name, "".join(f"{line}\n" for line in rest).encode(), mode=PRIVATE)
    taken: dict[str, Any] = {}
    for fields in map(_fields, own):
        taken |= {f"{SECTION[fields.kind]}.{key}": value for key, value in fields.names.items()}
    return taken


def take_over(source: FeatureStore, target: FeatureStore) -> None:
    """Allow ``target``, made from ``source``, what ``source`` is allowed."""
    recipe = recorded_recipe(source)
    remember(target.place, recipe, [kind for kind in KINDS if refusal(source, kind, recipe) is None])


def names(recipe: Recipe, kind: Kind) -> dict[str, Any]:
    """What a recipe names outside of taftcache and the libraries that it installs, by key; empty for none."""
    data, backbone = recipe.data, recipe.backbone
    if kind == "teachers":
        return {"teachers": list(recipe.prior.teachers)} if recipe.prior.teachers else {}
    if kind == "weights":
        model = {"model": backbone.model} if backbone.weights == "pretrained" or ":" in (backbone.model or "") else {}
        return {} if backbone.weights == "bundled" else {"weights": backbone.weights, **model}
    keys = ("train", "test", "root") if data.source == "timm" else data.places  # timm's names lead to code
    return {key: getattr(data, key) for key in keys if getattr(data, key) is not None}


def _places(recipe: Recipe, images: tuple[Path | str, ...]) -> dict[str, str]:
    """The paths in ``images`` by the key of the recipe that they stand for."""
    data = recipe.data
    keys = ["root"] if data.places == ("root",) else list(names(recipe, "images"))
    if len(images) != len(keys):
        raise RecipeError(
            "the store was made from another number of folders or files of images",
            got=f"{len(images)} named; its source is {data.source!r} with {', '.join(keys) or 'no place'}",
            do=f"name {len(keys)}: {', '.join(keys)}" if keys else "leave --images out",
        )
    return {key: os.path.abspath(place) for key, place in zip(keys, images, strict=True)}


def _from_hub(key: str, value: Any) -> bool:
    return value == "pretrained" if key == "weights" else key == "model" and not local_folder(str(value))


def _line(path: Path | str, kind: Kind, named: Mapping[str, Any]) -> str:
    return json.dumps({"store": _place(path), "kind": kind, "names": dict(named)}, sort_keys=True)


def _place(path: Path | str) -> str:
    return spelled(path) if is_bucket(path) else os.path.realpath(path)


def _fields(line: str) -> _Line:
    """What a line of the list says; an invalid line says nothing of any store."""
    try:
        return msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _Line()


def _own(store: str) -> list[str]:
    """The lines that allow something to one store."""
    return [line for line in _lines() if _fields(line).store == store]


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Keep other processes from changing the list meanwhile: they would write back what they had read before."""
    lock = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _allowed() -> frozenset[str]:
    return frozenset(_lines())


def _lines() -> list[str]:
    """The lines of the list; none where there is no list, or nobody can read it."""
    file = _file()
    try:
        return [] if file is None else file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _file() -> Path | None:
    """``$XDG_STATE_HOME/taftcache/trusted``; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "taftcache" / "trusted"
    except RuntimeError:
        return None
