"""What a component was trained on, as far as sums depend on it: features, classes, and the scale of its logits.

The base point does not cover this: of the frozen layers it has nothing, of the classes their number. A component of
other features has the right shapes, and makes a sum with it wrong without any sign.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from taftcache.backbone.spec import PreprocessSpec
from taftcache.cache.format.fault import intact
from taftcache.cache.format.identity import differences
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.model.meta import TrainedOn, key_parts, meta_of
from taftcache.names import PRIVATE, counted, first_few, shard_of, typed
from taftcache.objective.named import true_class_weight
from taftcache.recipe_sections import ByRows
from taftcache.tangent.spec import TangentSpec

# Of a store's identity, what leaves with a component. Not its dtype, the libraries or the kind of the weights: they
# round a row or say where it came from. No name of a file, nothing of the rows.
FEATURES = (
    "backbone.model", "backbone.features", "backbone.precision", "backbone.weights_digest", "backbone.file_digest",
    "cut.start", "cut.rows", "cut.shape", "imported.scaling",
    *(f"preprocess.{key}" for key in PreprocessSpec.__struct_fields__),
)  # fmt: skip
DRAWN = ("seed", "init", "reset_block", "reset_norm", "class_token")
ARGUMENTS = "backbone.model_args."
_NAME, _FILE, _WEIGHTS = "backbone.model", "backbone.file_digest", "backbone.weights_digest"
_PRECISION = "backbone.precision"  # it rounds rows, as their dtype does
_USUAL = {"backbone.features": "last", _PRECISION: "float32"}  # identities leave these out
_MOST = 3  # groups of classes in a note
Weights = dict[str, float] | ByRows


def trained_on(store: FeatureStore, name: str) -> TrainedOn:
    """What the component or model ``name`` of a store says when it leaves.

    Of a sum it is what its members have in common, and their rows per class together.
    """
    names = list(store.objects()[name].meta.get("members") or [name])
    if not all(part in store.objects() for part in names):  # of a sum whose members are gone nothing is known
        return TrainedOn()
    objectives = [objective_of(store, part) for part in names]
    known = [said for said in said_rows(store, "class-rows", names).values() if said is not None]
    unchecked = {what for part in names for what in TrainedOn.of(store.objects()[part].meta).unchecked}
    return TrainedOn(
        classes=None if "classes" in unchecked else list(store.classes),
        features=None if "features" in unchecked else features_of(store.identity),
        objective=objectives[0] if all(said == objectives[0] for said in objectives) else None,
        class_rows=[sum(column) for column in zip(*known, strict=True)] if len(known) == len(names) else None,
        tangent=drawn_of(recorded_recipe(store).tangent),
    )


def drawn_of(tangent: TangentSpec) -> dict[str, bool | int | str]:
    """What of a [tangent] section the base point's numbers depend on, beside the cut."""
    return {key: getattr(tangent, key) for key in DRAWN}


def features_of(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What leaves of a store's identity with a component: ``FEATURES``, flat."""
    sections = {key: value for key, value in identity.items() if isinstance(value, dict)}
    flat = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    if (model := flat.get("backbone.model")) in (None, "none", "unknown"):  # imported rows
        flat = {key: value for key, value in flat.items() if not key.startswith("backbone.")}
    else:
        # Its tag names weights, which have digests; a name on a hub may be private.
        flat |= {_NAME: None if set(":/") & set(str(model)) else str(model).partition(".")[0]}
        flat = _USUAL | flat
    arguments = flat.get(ARGUMENTS[:-1])
    said = {key: flat[key] for key in FEATURES if flat.get(key) is not None}
    if isinstance(arguments, dict):  # those of the network's own head change no feature
        said |= {f"{ARGUMENTS}{key}": value for key, value in arguments.items() if key != "num_classes"}
    return said


def other_features(given: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """In what a component's features differ from a store's, one line each: what is refused, and what is only noted.

    An argument that one side leaves out may have its usual value there, so it is noted; so is another name of the same
    weights.
    """
    both = [key for key in given if key in ours]
    if {_FILE, _WEIGHTS} <= {*both}:  # one file may give other tensors where positions are resampled
        both.remove(_WEIGHTS if given[_FILE] == ours[_FILE] else _FILE)
    named = [_NAME] if any(key in both and given[key] == ours[key] for key in (_WEIGHTS, _FILE)) else []
    theirs, here = ({key: _short(key, said[key]) for key in both} for said in (given, ours))
    refused = differences("", theirs, here, "the component")
    noted = [line for line in refused if line.partition(": ")[0] in (_PRECISION, *named)]
    for key in sorted((given.keys() ^ ours.keys()).difference([_FILE, *named])):
        side, other, said = ("there", "here", given) if key in given else ("here", "there", ours)
        noted.append(f"{key}: {_short(key, said[key])!r} {side}, not said {other}")
    return [line for line in refused if line not in noted], noted


def unsaid_features(given: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """What a component leaves out of what this store's features must agree in."""
    return [key for key in ours if key not in given and key not in (_NAME, _FILE) and not key.startswith(ARGUMENTS)]


def other_classes(given: Sequence[str], ours: Sequence[str]) -> str:
    """How the classes of a component differ from a store's; empty if they do not."""
    if len(given) != len(ours):
        only = [f"{name!r} only {where}" for a, b, where in ((given, ours, "there"), (ours, given, "here"))
                for name in a if name not in {*b}]  # fmt: skip
        return f"{counted(len(given), 'class')} there, {len(ours)} here" + (f" ({first_few(only, 3)})" if only else "")
    wrong = [k for k, name in enumerate(given) if name != ours[k]]
    if not wrong:
        return ""
    order = ", the same names in another order" if sorted(given) == sorted(ours) else ""
    more = f", and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
    return f"class {wrong[0]} is {given[wrong[0]]!r} there, {ours[wrong[0]]!r} here{more}{order}"


def objective_said(loss: str, alpha: float | str, kappa: float, classes: int) -> dict[str, Any]:
    """What decides the scale of logits, in plain values."""
    return {"loss": loss} | ({"alpha": true_class_weight(alpha, classes), "kappa": kappa} if loss == "rsl" else {})


def objective_of(store: FeatureStore, name: str) -> dict[str, Any] | None:
    """Loss, α and κ of a component; None if it does not say them."""
    meta = store.objects()[name].meta
    if (said := TrainedOn.of(meta).objective) is not None:
        return said
    try:
        asked = key_parts(meta.get("key"))["objective"]
        return objective_said(asked["loss"], asked["alpha"], asked["kappa"], len(store.classes))
    except (KeyError, TypeError, ValueError):
        return None


def class_rows(meta: Mapping[str, Any], shards: Sequence[Shard], classes: int) -> list[int] | None:
    """How many rows of each of so many ``classes`` the component with this ``meta`` was made from; None if it does not
    say, or is private, or if those of the ``shards`` that it names have other rows now.

    Raises:
        StoreError: such a shard cannot be read, or ``meta`` is not what taftcache writes.
    """
    if PRIVATE in meta:
        return None
    said = meta_of(meta)
    if said.imported:
        stated = TrainedOn.of(meta).class_rows or []
        adds_up = bool(said.rows) and sum(stated) == said.rows and min(stated) >= 0
        return stated if adds_up and len(stated) == classes else None
    own, counts = [shard for shard in shards if shard.name in (said.shards or [])], Counter[int]()
    if not own or said.row_digests != [shard.digest for shard in own]:  # rows came or left since
        return None
    for shard in own:
        counts.update(shard.statistics["rows_per_class"])
    return [counts[k] for k in range(classes)]


def member_rows(
    weights: Weights, metas: Mapping[str, Mapping[str, Any]], shards: Sequence[Shard], classes: int
) -> dict[str, list[int] | None]:
    """What ``weights`` by rows depend on, by component: its rows, as one number or as one [K] for each class that the
    ``shards`` have; None if it does not say.

    Raises:
        StoreError: as ``class_rows`` says: a sum that is made now must not take damage for a component that says
        nothing, as ``said_rows`` does.
    """
    if weights == "class-rows":
        return {name: class_rows(meta, shards, classes) for name, meta in metas.items()}
    return {name: [rows] if (rows := meta.get("rows")) else None for name, meta in metas.items()}


def said_rows(store: FeatureStore, weights: Weights, names: Iterable[str]) -> dict[str, list[int] | None]:
    """``member_rows`` of a store's components; None where they are damaged, which stops neither an export nor a request
    to forget."""
    objects, shards, classes = store.objects(), store.shards, len(store.classes)

    def said(name: str) -> list[int] | None:
        return member_rows(weights, {name: objects[name].meta}, shards, classes)[name]

    return {name: intact(partial(said, name)) for name in names}


def uncounted(store: FeatureStore, weights: Weights, names: Iterable[str]) -> list[str]:
    """Those of a store's components that do not say what ``weights`` depend on; none if these are coefficients."""
    if not isinstance(weights, str):
        return []
    return [name for name, said in said_rows(store, weights, names).items() if said is None]


def compose_anyhow(store: FeatureStore, names: Iterable[str]) -> str:
    """The command that composes all these components again, whatever they leave out of what recorded weights need."""
    how = "--mode mean" if uncounted(store, "rows", names) else "--weight rows"
    return f"taftcache compose {typed(store.path)} {how}"


def scale_notes(objectives: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """A note if components that are added up were trained to logits of other scales; those that say nothing do not
    count."""
    known = {shard_of(name): said for name, said in objectives.items() if said is not None}
    parts = []
    for key in ("loss", "alpha", "kappa"):
        by_value: dict[str, list[str]] = {}
        for name, value in ((name, said[key]) for name, said in known.items() if key in said):
            by_value.setdefault(f"{value:g}" if isinstance(value, float) else str(value), []).append(name)
        if len(by_value) > 1:
            parts.append(f"{key} is " + ", ".join(f"{v} in {first_few(names, 3)}" for v, names in by_value.items()))
    if not parts:
        return []
    return [
        f"components with logits of other scales are added up: {'; '.join(parts)}; the larger logits decide: train all "
        "with the same objective.loss, alpha and kappa"
    ]


def class_notes(
    classes: Sequence[str], counts: Mapping[str, Sequence[int] | None], better: str | None = None
) -> list[str]:
    """A note if members of a sum, by name with their rows per class, have no rows of a class that others have;
    ``better``: a command that may help."""
    known = {shard_of(name): said for name, said in counts.items() if said is not None}
    lacking: dict[tuple[str, ...], list[str]] = {}
    for k, name in enumerate(classes):
        without = tuple(member for member, said in known.items() if not said[k])
        if without and len(without) < len(counts):
            lacking.setdefault(without, []).append(name)
    if not lacking:
        return []
    groups = [f"class {first_few(names, 3)}: no rows in {first_few(who, 3)}" for who, names in lacking.items()]
    rest = sum(map(len, [*lacking.values()][_MOST:]))
    said = "; ".join([*groups[:_MOST], *([f"{counted(rest, 'class')} more in others"] if rest else [])])
    tip = f"; try weighing each class by its own rows: {better}" if better else ""
    return [
        f"{said}; the sum holds such a class down: the model of a member that has its rows, or a model of all rows, is "
        f"better at it{tip}"
    ]


def _short(key: str, value: Any) -> Any:
    return value[:16] if key.endswith("digest") and isinstance(value, str) else value
