"""Write a first recipe for a user's own images: look at them, estimate the cost, and give a reason for each choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taftcache.backbone.files import local_folder
from taftcache.backbone.model import named_by
from taftcache.backbone.sources.base import Source
from taftcache.backbone.spec import EVERY_BLOCK, DataSpec, Features
from taftcache.cache.place.address import is_bucket
from taftcache.errors import BackboneError, check_path
from taftcache.names import HELD_OUT, counted, first_few, input_text, readable_size, readable_time, typed
from taftcache.recipe import Overrides, Recipe, apply_overrides, as_mapping, parse_recipe
from taftcache.recipe_files import toml_value
from taftcache.stages.extract.classes import classes_of, doubtful_classes_notes, unshared_notes
from taftcache.stages.extract.estimation import EstimateReport, estimate
from taftcache.stages.extract.forgotten import open_images
from taftcache.stages.extract.looking import (
    Pixels,
    check_there,
    data_section,
    file_for,
    full_path,
    look_at,
    unused_notes,
)
from taftcache.stages.extract.plan import PER_CLASS, ROWS, SHARDS, groups_of, shards_for, split
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.writing import whole

FROM_ARRAYS = (
    'a folder or a file of images; arrays go to a file first: np.savez("pictures.npz", images=x, labels=y), then '
    'init_recipe("pictures.npz")'
)
PRETRAINED = "deit_tiny_patch16_224.fb_in1k"
SMALL = 64  # the longest side, in pixels, of images that the bundled backbone, which sees 32 x 32, is good enough for
UNEVEN = 10  # above so many images of one class for each of another, the recipe says how to weigh them alike
WIDE = 10_000  # at this many numbers per feature, or rows if these span less, a closed form has matrices of 0.8 GB
LAST: Features = "last"
TANGENT: dict[Features, dict[str, Any]] = {LAST: {"reset_block": True}, EVERY_BLOCK: {"blocks": 0, "init": "zero"}}
COMMENTS = {
    "data.source": "Where the images are.",
    "data.id_key": "The column that names each image for good; numbers of rows change when a row is removed.",
    "data.held_out": "The part of the images that is kept for testing; which ones follows from their names.",
    "data.unreadable": "Images that do not decode are left out, and listed; without this line they stop the run.",
    "backbone.weights": "The frozen network whose output is cached once.",
    "backbone.features": "What comes out of every block is kept: smaller than tokens, and more accurate where tried.",
    "store.path": "Where the cache, the models and the receipts are kept: a full path, the same from anywhere.",
    "store.shards": "Parts of the data, each trained, and retrained after forgetting, on its own:"
    f" {ROWS} images or more in each, and {PER_CLASS} of a class; {SHARDS} parts at most.",
    "tangent.blocks": "A head is trained on it. For the last block's tangent: init with --set tangent.blocks=1.",
    "tangent.init": "The head starts from zero.",
    "tangent.reset_block": "Trains the last block from a new start: better on Caltech-101 and digits; not on CIFAR-10.",
    "objective.ridge": 'How strongly the weights are held back: "auto" chooses it from the rows; a number is quicker.',
    "solver.tolerance": 'How near the optimum a solve comes: "auto" goes on until receipts decide.',
    "compose.mode": '"auto" also solves one model of all rows, models/exact; "mean" is quicker and less accurate.',
}


@dataclass(frozen=True, kw_only=True)
class InitReport(Report):
    """A recipe that was written, what it was made from, and what it costs.

    recipe: its file. source: the kind of data, as ``data.source``. images: how many in all. held_out: how many of them
    are for testing. classes: their names. shards: how many. pixels: width and height of the image in the middle.
    backbone: the model, or its weights. features: what the head reads. estimate: bytes and seconds of the extraction,
    measured on a few images.
    """

    recipe: Path
    source: str
    images: int
    held_out: int
    classes: list[str]
    shards: int
    pixels: tuple[int, int]
    backbone: str
    features: Features
    estimate: EstimateReport
    notes: list[str]


def init_recipe(
    place: Path | str,
    file: Path | str | None = None,
    *,
    overrides: Overrides = (),
    force: bool = False,
    progress: Progress | bool | None = None,
) -> InitReport:
    """Look at the images of ``place``, try a few of them, and write a recipe that ``run`` takes as it is.

    Args:
        place: a folder with one subfolder per class (or train/ and test/ with these), a table of paths and labels, a
            dataset saved by Hugging Face's library, a folder of its Parquet files, or a file of arrays.
        file: where to write it; by default the place's name and .toml, in the current folder.
        overrides: as for ``load_recipe``; they take precedence over what would be chosen.
        force: replace an existing file.

    Raises:
        DataError: no images with labels there, or images that a table lists are missing. BackboneError: the model that
            was named cannot be had.
        RecipeError: the file exists already. StoreWriteError: it cannot be written.
    """
    check_path("the place of the images", place, FROM_ARRAYS)
    place, progress, overrides = Path(place), or_silent(progress), as_mapping(overrides)
    file = file_for(place, file, force)
    given = apply_overrides({}, overrides)
    values: dict[str, Any] = {"data": data_section(place, given.get("data", {}))}
    data = parse_recipe({"data": apply_overrides(values, overrides)["data"]}, str(place)).data
    overrides |= _full_paths(overrides, data)
    source, test, aside = open_images(data, None)
    sources = [part for part in (source, test) if part is not None]
    if given.get("data", {}).get("unreadable") != "skip":
        check_there(place, sources)
    progress.say("looking whether the images decode")
    pixels, count = look_at(sources), sum(len(part.items) for part in sources)
    groups = len(groups_of(data, (item.id for item in source.items)))
    values = _chosen(values["data"], file.stem, pixels, len(source.items), groups, len(source.classes), given)
    values, costs, changed = _tried(values, overrides, progress)
    recipe, notes = _recipe(values, overrides), [*aside, *unused_notes(place, data), *changed]
    skip = recipe.data.unreadable == "skip"
    if pixels.unreadable:
        fault = f"of {pixels.tried:,} looked at, {counted(len(pixels.unreadable), 'image')} cannot be decoded"
        notes.append(f"{fault}; {'left out' if skip else 'a run stops there'}: {first_few(pixels.unreadable)}")
    if pixels.tried < count:
        then = "left out" if skip else 'what stops a run, unless data.unreadable = "skip"'
        notes.append(f"{pixels.tried:,} of {count:,} images were looked at; another that does not decode is {then}")
    notes += [*_alike(source.classes), *doubtful_classes_notes(source), *_unshared(recipe, source, test)]
    notes += [note for note in costs.notes if note not in notes]
    facts = f"{count:,} images of {len(source.classes)} classes, about {pixels.width} x {pixels.height} pixels"
    with whole(file, again=force) as partial:
        text = _text(apply_overrides(values, overrides), place, file, facts, costs, _uneven(source))
        partial.write_text(text, encoding="utf-8")
    return InitReport(
        recipe=file,
        source=recipe.data.source,
        images=count,
        held_out=costs.rows.get(HELD_OUT, 0),
        classes=source.classes,
        shards=recipe.store.shards,
        pixels=(pixels.width, pixels.height),
        backbone=recipe.backbone.model or recipe.backbone.weights,
        features=recipe.backbone.features,
        estimate=costs,
        notes=notes,
    )


def _full_paths(overrides: Mapping[str, Any], data: DataSpec) -> dict[str, str]:
    """Those of the overrides that are relative paths, as full ones: the recipe means the same from any folder."""
    keys = ("store.path", "backbone.weights", *(f"data.{key}" for key in data.places))
    paths = {key: value for key in keys if isinstance(value := overrides.get(key), str)}
    if paths.get("backbone.weights") in ("bundled", "pretrained", ""):
        del paths["backbone.weights"]
    return {
        key: str(full_path(Path(local_folder(value) or value)))
        for key, value in paths.items()
        if "$" not in value and not is_bucket(value)
    }


def _alike(classes: list[str]) -> list[str]:
    """A note on names that differ only in upper and lower case: usually they are one class, spelt in two ways."""
    spelt: dict[str, list[str]] = {}
    for name in classes:
        spelt.setdefault(name.casefold(), []).append(name)
    alike = [" and ".join(names) for names in spelt.values() if len(names) > 1]
    said = "are classes of their own, and differ only in upper and lower case; rename one if they are the same"
    return [f"{first_few(alike)} {said}"] if alike else []


def _uneven(source: Source) -> str | None:
    """A comment where one class has far more images than another that has a few."""
    counts = [pair for pair in Counter(item.label for item in source.items).most_common() if pair[1] >= PER_CLASS]
    if not counts or counts[0][1] <= UNEVEN * counts[-1][1]:
        return None
    (large, many), (small, few) = ((source.classes[k], n) for k, n in (counts[0], counts[-1]))
    return (
        f'{many} images of {large!r}, {few} of {small!r}: class_weights = "balanced" gives each class the same weight.'
    )


def _unshared(recipe: Recipe, source: Source, test: Source | None) -> list[str]:
    """Notes on classes of which all images are held out, or none is."""
    labels = classes_of(source, test)
    tested = None if test is None else [item.id for item in test.items]
    training, held_out = split(recipe, [item.id for item in source.items], tested)
    if held_out is None:
        return []
    trained, held = ({labels[i] for i in some} for some in (training, held_out.ids))
    return unshared_notes(list(dict.fromkeys(labels.values())), trained, held, of="image")


def _chosen(
    data: dict[str, Any], name: str, pixels: Pixels, images: int, groups: int, classes: int, given: Mapping[str, Any]
) -> dict[str, Any]:
    """All sections of the recipe, chosen by the number and the size of the images."""
    if "test" not in {**data, **given.get("data", {})}:
        data["held_out"] = given.get("data", {}).get("held_out", 0.2)
    if pixels.unreadable:
        data["unreadable"] = "skip"
    said = dict(given.get("backbone", {}))
    weights = Path(str(said.get("weights", "")))
    if weights.suffix == ".safetensors" and "model" not in said and (named := named_by(weights)):
        said["model"] = named
    small = max(pixels.width, pixels.height) <= SMALL
    if "weights" in said or "model" in said:
        backbone = {"weights": "pretrained", **said}
    else:
        backbone = ({"weights": "bundled"} if small else {"weights": "pretrained", "model": PRETRAINED}) | said
    of_rows = given.get("tangent") or "cache" in given.get("store", {})
    wide = said.get("features", LAST if of_rows else EVERY_BLOCK) == EVERY_BLOCK  # other values are checked later
    head = given.get("tangent", {}).get("train") == "head" or given.get("tangent", {}).get("blocks") == 0
    last = {} if head else TANGENT[LAST]  # a head alone reads the last block as it was pretrained
    rows, groups = (int(each * (1 - data.get("held_out", 0))) for each in (images, groups))
    return {
        "data": data,
        "backbone": backbone | ({"features": EVERY_BLOCK} if wide else {}),
        "store": {"path": str(Path(f"stores/{name}").absolute()), "shards": shards_for(rows, classes, groups)},
        "tangent": TANGENT[EVERY_BLOCK] if wide else last,
        "objective": {"ridge": "auto"},
        "solver": {"tolerance": "auto"},
        "compose": {"mode": "auto"},
    }


def _tried(
    values: dict[str, Any], overrides: dict[str, Any], progress: Progress
) -> tuple[dict[str, Any], EstimateReport, list[str]]:
    """The sections that work on this machine, what they cost, and notes on what was changed to get there."""
    recipe = _recipe(values, overrides | {"data.unreadable": "skip"})
    hub = "; its weights are looked for here and on the model hub" if recipe.backbone.weights == "pretrained" else ""
    progress.say(f"trying a few images with {recipe.backbone.model or 'the bundled model'}{hub}")
    try:
        costs = estimate(recipe)
    except BackboneError as error:
        if recipe.backbone.model != PRETRAINED or any(key.startswith("backbone") for key in overrides):
            raise
        note = (
            f"{error.fault}; the recipe takes the bundled model, which sees 32 x 32 pixels and is far less accurate on "
            f"photographs; taftcache init PLACE --force --model {PRETRAINED} --weights FILE.safetensors takes weights "
            "from a file"
        )
        backbone = values["backbone"] | {"weights": "bundled"}
        del backbone["model"]
    else:
        rows = sum(count for name, count in costs.rows.items() if name != HELD_OUT)
        asked = "backbone.features" in overrides
        if recipe.backbone.features != EVERY_BLOCK or asked or min(costs.numbers, 2 * rows) <= WIDE:
            return values, costs, []
        note = (
            f"the blocks of {recipe.backbone.model} say {costs.numbers:,} numbers of an image, many for a head in "
            f"closed form; the recipe takes the last block's tangent; --set 'backbone.features={EVERY_BLOCK}' takes it "
            "all the same"
        )
        backbone = {key: value for key, value in values["backbone"].items() if key != "features"}
        values["tangent"] = TANGENT[LAST]
    values, costs, notes = _tried(values | {"backbone": backbone}, overrides, progress)
    return values, costs, [note, *notes]


def _recipe(values: Mapping[str, Any], overrides: Overrides) -> Recipe:
    return parse_recipe(apply_overrides(values, overrides))


def _text(
    values: Mapping[str, Any], place: Path, file: Path, facts: str, costs: EstimateReport, uneven: str | None
) -> str:
    """The recipe as TOML, a comment above each choice."""
    lines = [
        f"# {facts}, from {_line(place)}",
        f"# The cache takes about {readable_size(costs.bytes)}, and {readable_time(costs.seconds)} to make.",
        f"# Run it with: taftcache run {typed(_line(file))}",
    ]
    said = _comments(values, costs.preprocess)
    for section, keys in values.items():
        if not isinstance(keys, Mapping):
            lines[3:3] = ["", f"{section} = {toml_value(keys)}"]
            continue
        lines += ["", f"[{section}]"]
        if section == "objective" and uneven is not None and "class_weights" not in keys:
            lines.append(f"# {uneven}")
        for key, value in keys.items():
            if value is None:  # possible in a mapping of overrides; TOML has no such value
                continue
            lines += [f"# {said[f'{section}.{key}']}"] if f"{section}.{key}" in said else []
            lines += [f"{key} = {toml_value(value)}"]
    if values["backbone"].get("weights") == "bundled":
        at = lines.index('weights = "bundled"')
        lines[at:at] = [f'# For larger pictures: weights = "pretrained" and model = "{PRETRAINED}".']
    return "\n".join([*lines, ""])


def _comments(values: Mapping[str, Any], preprocess: Mapping[str, Any]) -> dict[str, str]:
    """``COMMENTS``, changed where these choices make them untrue."""
    said, data, backbone = dict(COMMENTS), values["data"], values["backbone"]
    if "model" in backbone and Path(backbone["weights"]).suffix == ".safetensors":
        said["backbone.weights"] += (
            f" Its file does not say how images are prepared. Here: {input_text(preprocess)}; what [preprocess] leaves "
            f"out is what timm takes for {backbone['model']}."
        )
    if data.get("group"):
        said["data.held_out"] = "The part of the groups that is kept for testing; which ones follows from their names."
    if data.get("id_key") == data.get("image_key"):
        said["data.id_key"] = "Ids are the paths kept beside the images; numbers of rows change when a row is removed."
    if values["tangent"].get("blocks") != 0:
        said["tangent.blocks"] = "How many of the last blocks are trained, with the head: their tangent."
    if values["store"]["shards"] == 1:
        said["compose.mode"] = "Of one shard, its model is that of all rows; of more, models/exact is solved, too."
    return said


def _line(path: Path) -> str:
    """A path in a comment, which must stay on its line."""
    return str(path) if str(path).isprintable() else ascii(str(path))
