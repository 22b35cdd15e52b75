"""Names that several rooms share, for modules that must load no heavy library.

Objects of a store that are components and models, what stands for a shard, class, component or group among the
tombstones, and how the vectors of a store were scaled; what says in a component's meta that it is private, and its
promise in words; bounds in few digits.
"""

import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from math import floor, log10
from pathlib import PurePath
from typing import Any
from unicodedata import normalize

BASE = "base/"  # what training starts from
COMPONENTS = "components/"
MODELS = "models/"
HEAD = f"{MODELS}head"
MEAN = f"{MODELS}mean"
WEIGHTED = f"{MODELS}weighted"
EXACT = f"{MODELS}exact"
OF_ONE_CLASS = "every image gets it, so accuracy is 100 % whatever the model"
UNTOUCHED = "base model untouched"  # in an evaluation: before training, with a new head
PROBE = "linear probe of the head's features"
HELD_OUT = "held-out"  # the shard that a plan keeps for testing, and its role
# In the files of a student of `teach`: its settings, and by teacher the digests of the shards it was trained on.
ROWS_OF = "rows of"  # the key under which a student's files name what it was trained on
META = "taftcache"  # the one key of the metadata of its weights, in which that stands
PRIVATE = "privacy"  # the key of a private component's statement in its meta
AGAIN = "again"  # the key of the last receipt that forgot what an imported component has, when it was taken in again
STATED = "stated"  # the key of what an imported component's file stated of its privacy, which nothing here checks
BUDGET_ALLOWS = "as far as the privacy budget allows that"  # said of trainings that a shard may have no ε left for
ONE_SETTING = "one setting was tried; how it was chosen is not known here"  # a tuning that adds nothing to ε
BY_HELD_OUT = "by accuracy on held-out rows"  # how one of several learning rates was chosen
INTERRUPTED_KEY = "interrupted"  # in place of a component's key: no key equals it, so the next run solves again
# Ids have no control characters, so that these can stand before the name of a shard, class, component or group (of
# data.group) among them.
SHARD = "\x1fshard\x1f"
CLASS = "\x1fclass\x1f"
COMPONENT = "\x1fcomponent\x1f"
GROUP = "\x1fgroup\x1f"
NUMBERS = "\x1fnumbers\x1f"  # before the digest of a component's numbers
BEFORE = "numbers_before"  # where a receipt has the keyed hashes of those that what it renewed or destroyed had


def default_model(objects: Container[str]) -> str | None:
    """The model that stands for a store with these objects if nobody names one; None if none can.

    The exact model if there is one, then a weighted sum that somebody asked for, the mean, the head.
    """
    return next((name for name in (EXACT, WEIGHTED, MEAN, HEAD) if name in objects), None)


def is_from_macos(name: str) -> bool:
    """Whether a file has a name that macOS gives to its own: how a folder is shown, or what a disk cannot hold."""
    return name == ".DS_Store" or name.startswith("._")


def model_of(objects: Container[str], name: str | None = None) -> str:
    """The model that ``name`` means: also "exact" for "models/exact", and a shard's name, "000", for its component.

    Without a name, ``default_model`` or, if there is none, the one that is to be made first.
    """
    if name is None or name == "":
        return default_model(objects) or MEAN
    if "/" in (name := str(name)):
        return name
    return model if (model := f"{MODELS}{name}") in objects else component_of(name)


def is_component(name: str) -> bool:
    """Whether an object is the component of a shard, or one that was imported."""
    return name.startswith(COMPONENTS)


def is_model(name: str) -> bool:
    """Whether an object is a change of weights: a component, or a model made from them or from all rows."""
    return name.startswith((COMPONENTS, MODELS))


def component_of(shard: str) -> str:
    """The name of a shard's component ("000" to "components/000"); a component's own name stays."""
    return shard if is_component(shard) else f"{COMPONENTS}{shard}"


def shard_of(component: str) -> str:
    """The name of a component's shard ("components/000" to "000"); a shard's own name stays."""
    return component.removeprefix(COMPONENTS)


def scaling_of(identity: Mapping[str, Any]) -> str | None:
    """How the vectors that a store was made of were scaled, as its identity says; None for a store of anything else."""
    imported = identity.get("imported")
    scaling = imported.get("scaling") if isinstance(imported, dict) else None
    return scaling if isinstance(scaling, str) else None


def imported_from(identity: Mapping[str, Any]) -> str | None:
    """The file that a store's rows were imported from, as its identity says; None for a store of anything else."""
    imported = identity.get("imported")
    file = imported.get("file") if isinstance(imported, dict) else None
    return file if isinstance(file, str) else None


def input_text(preprocess: object) -> str:
    """What becomes of an image before the network sees it, in words, as ``preprocess`` of a store's identity says it;
    empty if that does not."""
    if not isinstance(preprocess, dict):
        return ""
    try:
        (_, height, width), crop, mode = (preprocess[key] for key in ("input_size", "crop_pct", "crop_mode"))
        colours = [f"{key} {_alike(preprocess[key])}" for key in ("mean", "std")]
        cropped = f"crop {crop:g}" + ("" if mode == "center" else f" ({mode})")
        return ", ".join([f"{width} x {height} pixels", preprocess["interpolation"], cropped, *colours])
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""


def _alike(numbers: Sequence[float]) -> str:
    """Numbers of the three colours, or the one that they share."""
    return " ".join(f"{number:g}" for number in (numbers if len({*numbers}) > 1 else numbers[:1]))


def resized_notes(identity: Mapping[str, Any]) -> list[str]:
    """A note on weights that were resized when the model of a store of this identity was loaded."""
    backbone = identity.get("backbone")
    loading = backbone.get("loading") if isinstance(backbone, dict) else None
    if not isinstance(loading, dict) or "resized" not in loading:
        return []
    way = ""
    if "img_size" in loading:
        way = f"; with img_size = {loading['img_size']} in backbone.model_args they fit as they are"
    return [f"the weights were resized to fit the model, which changes every feature: {loading['resized']}{way}"]


FROM_EXPORT = "from_export"  # in a store's plan: its rows came from the export of another store


def tail_text(backbone: Mapping[str, Any], start: str, numbers: int) -> str:
    """What is trained of a backbone with this config, in words: what follows the module ``start`` or, if that is "", a
    head alone, which reads ``numbers`` numbers of a sample."""
    if start:
        return f"cut at {start}"
    read = "every block" if backbone.get("features") == "every block" else "the model's last features"
    return f"a head on {read} ({counted(numbers, 'number')} a sample)"


def by_groups_text(groups: int | None) -> str:
    """What stands behind an interval that was judged by so many groups of rows."""
    return "" if groups is None else f" by {counted(groups, 'group')}"


def points_text(ahead: float, interval: tuple[float, float], groups: int | None = None, *, brief: bool = False) -> str:
    """``+2.19 points, 95 % interval +0.3 to +4.1``, for the difference of two accuracies; more digits for many rows.

    groups: by how many it was judged, if it was: ``95 % interval by 44 groups +0.3 to +4.1``. brief: ``+2.19 (+0.3 to
    +4.1)``.
    """
    low, high = (100 * end for end in interval)
    digits = max(1, -floor(log10(high - low))) if high > low else 1
    gain, between = f"{100 * ahead:+z.{digits + 1}f}", f"{low:+z.{digits}f} to {high:+z.{digits}f}"
    if groups == 1:
        return f"{gain} (no interval)" if brief else f"{gain} points, no interval of rows of one group"
    return f"{gain} ({between})" if brief else f"{gain} points, 95 % interval{by_groups_text(groups)} {between}"


def counted(count: int, thing: str) -> str:
    """``1 row``, ``2 classes``, ``3 entries``; of several words, the last one changes."""
    if count == 1:
        return f"1 {thing}"
    many = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{count} {many}"


def short_key(public_key: str) -> str:
    """A public key as people tell it from others. Anyone can make another with these digits: a check takes it whole."""
    return public_key[:8]


def by_receipts(numbers: Iterable[int]) -> str:
    """Which receipts forgot something, in words."""
    return ", ".join(f"by receipt {n}" for n in numbers) or "before"


def them(count: int) -> str:
    """The pronoun for ``count`` things."""
    return "it" if count == 1 else "them"


def yours_to_do(count: int, *, numbered: bool) -> str:
    """What is to become of ``count`` forgotten images that are still there; ``numbered`` as of a source."""
    if not numbered:
        return f"deleting {them(count)} is yours to do"
    return (
        f"ids are numbers of rows: if none has moved, blanking {them(count)} in place is yours to do, never removing a "
        "row, for those after it would name other images"
    )


def readable_size(count: int) -> str:
    """``count`` bytes, in the unit that suits."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def readable_time(seconds: float) -> str:
    """``seconds``, roughly, in the unit that suits."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{max(seconds, 1):.0f} s"


def first_few(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def shown(text: str) -> str:
    """A text with whatever is not printable as its code (``\\x1b``), newlines too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def told_apart(ids: Sequence[str]) -> list[str]:
    """Ids for a list with commas; those that could be read as two, or whose ends would not be seen, are in quotes."""
    return [repr(i) if re.search(r"[\s,'\"]", i) else i for i in ids]


def in_quotes(one: str, other: str) -> tuple[str, str]:
    """Two texts in quotes; with codes for their signs if they differ only in their Unicode form, and look alike."""
    show = ascii if normalize("NFC", one) == normalize("NFC", other) else repr
    return show(one), show(other)


def with_counts(counts: Mapping[str, int]) -> str:
    """``cat (3), dog (1)``, and how many more there are."""
    return first_few([f"{name} ({n})" for name, n in sorted(counts.items())], 20)


def typed(place: object) -> str:
    """A place as it is typed in a command."""
    return shlex.quote(str(place))


def recipe_again(place: object) -> str:
    """The file in which `extract_again` writes the recipe of a store, as it is typed in a command."""
    return typed(f"{PurePath(str(place)).name or 'store'}-recipe.toml")


def extract_again(place: object) -> str:
    """The commands that go on with the extraction of a store, if the file of its recipe is not at hand."""
    file = recipe_again(place)
    return f"taftcache inspect {typed(place)} --recipe > {file} && taftcache extract {file}"


def one_of_trained(names: Sequence[str], wanted: str = "") -> str:
    """What to do about a name, ``wanted``, that is none of ``names``, of models or components of a store."""
    made = "taftcache train, which makes it, or " if wanted == MEAN else ""
    return f"{made}one of {', '.join(names)}" if names else "taftcache train, for there is none yet"


def train_command(place: object, *, private: bool) -> str:
    """The command that trains a store's shards."""
    return f"taftcache train {typed(place)}{' --private' if private else ''}"


def made_by(place: object, name: str, meta: Mapping[str, Any]) -> str:
    """The command that makes a store's component or model ``name`` with this ``meta`` again."""
    if meta.get("imported"):
        return f"taftcache import-component {typed(place)} FILE --name {shard_of(name)}"
    return train_command(place, private=PRIVATE in meta)


def ordinal(place: int) -> str:
    """``2nd``, ``11th``, ``21st``."""
    teens = place % 100 // 10 == 1
    return f"{place}" + ("th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th"))


LARGE_EPSILON = 10
"""ε above which a promise bounds next to nothing, which is then said."""


def at_most(bound: float, form: str = ".1e") -> str:
    """A bound from above in the ``form`` of a number (.1e, .3g), rounded up, because a smaller one would not hold.

    What is rounded are the digits that JSON has of it: 0.002 is 2.0e-03, although its bits are a little above that.
    """
    return _towards(ROUND_CEILING, bound, form)


def at_least(bound: float, form: str = ".1e") -> str:
    """A bound from below, rounded down; see ``at_most``."""
    return _towards(ROUND_FLOOR, bound, form)


def _towards(rounding: str, bound: float, form: str) -> str:
    digits = int(form[1:-1]) + (form[-1] == "e")  # "e" counts those after the point
    return format(float(Context(prec=digits, rounding=rounding).create_decimal(repr(float(bound)))), form)


def epsilon_text(value: float) -> str:
    """ε, or the δ of a group, in four digits, rounded up, but for what an accountant's arithmetic may be off by."""
    return at_most(value * (1 - 1e-12), ".4g")


def promise_text(said: Mapping[str, Any]) -> str:
    """What a private model's statement promises, in a line; with its tuning, if that tried more than one setting."""
    if not said["private"]:
        return "noise of a seed, not private"
    tuning = said.get("tuning", ONE_SETTING)
    promise = f"epsilon {epsilon_text(said['epsilon'])} at delta {at_most(said['delta'], '.6g')}, {said['relation']}"
    return promise if tuning == ONE_SETTING else f"{promise} ({tuning})"
