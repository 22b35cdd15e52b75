"""Export components from the store that has their rows, and import them into one that does not."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from taftcache.cache.format.naming import check_name
from taftcache.cache.format.plan import shard_names
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import ArgumentError, CompositionError, FormatError, RecipeError, StoreWriteError, local_path
from taftcache.model.component import Component, public_fields, put_component, read_base, read_component
from taftcache.model.component_file import numbers_digest, read_header
from taftcache.model.members import (
    again_note,
    again_notes,
    forgotten_numbers,
    imported,
    numbers_of,
    own_note,
    recorded_members,
)
from taftcache.model.meta import TRAINED_ON, ComponentMeta, Stated, TrainedOn, checked, stated_rows
from taftcache.names import (
    AGAIN,
    COMPONENTS,
    EXACT,
    HEAD,
    MEAN,
    MODELS,
    PRIVATE,
    STATED,
    WEIGHTED,
    component_of,
    counted,
    first_few,
    model_of,
    shard_of,
    typed,
)
from taftcache.recipe_sections import ComposeSpec
from taftcache.stages.report import Report
from taftcache.stages.train.private.claims import check_claim
from taftcache.stages.train.trained_on import (
    compose_anyhow,
    drawn_of,
    features_of,
    objective_of,
    other_classes,
    other_features,
    scale_notes,
    trained_on,
    uncounted,
    unsaid_features,
)
from taftcache.stages.writing import whole
from taftcache.tangent.base import Base
from taftcache.tangent.spec import Train

MAX_BYTES = 16 << 30
_OF_MODELS = {"models", *(name.removeprefix(MODELS) for name in (HEAD, MEAN, WEIGHTED, EXACT))}
_EXPORT_AGAIN = "export it again from where it was trained"
_EXPORTED = "name a file that taftcache export-component wrote"
NO_RECEIPT = (
    "the earlier one of that name left without a receipt, so that no audit finds what was exported with it; if its "
    "site forgot something, delete those exports, and next time first: taftcache forget {store} --component {name}"
)
NO_PROMISE = "it promises no privacy, so no sum with it has an ε, whatever the private components of this store promise"
TWIN = "its numbers are those of {other}: a sum counts its rows twice, and what is forgotten there stays in {name}"
PROMISE_STAYS = "its promise of privacy is not taken over: no ledger here has its releases, and a mean with it has no ε"


OF_VECTORS = "no store knows the model that made its vectors: check yourself that it is the same on both sides"


@dataclass(frozen=True, kw_only=True)
class ComponentReport(Report):
    """A component that was written to a file, or imported from one.

    component: its name in the store. base_digest: digest of its base point. rows: how many it was trained on; None if
    it does not say. changed: whether anything was written. replaced: whether it replaced another of that name. next:
    the command that takes an imported one into compositions; empty if nothing was written.
    """

    store: Path
    root_digest: str
    component: str
    file: Path
    bytes: int
    base_digest: str
    rows: int | None
    changed: bool
    replaced: bool = False
    next: str = ""
    notes: list[str] = field(default_factory=list)


def _is_component(file: Path) -> bool:
    with suppress(FormatError):
        return bool(read_header(file))
    return False


@at_its_place()
def export_component(store: Place, name: str, file: Path | str, *, force: bool = False) -> ComponentReport:
    """Write a component or model ("000", "components/000", "models/mean") to a new file; a file that already has these
    bytes is left as it is. ``force`` replaces another component that is there, whole or not at all.

    The file has the numbers that the store keeps, except the exact model's dual vectors, which say something about
    single rows. Of what is recorded with them, it has only what ``component.public_fields`` lists: no digest of the
    rows, least of all of private ones. To that it adds ``TrainedOn`` and a digest of the numbers, which the store that
    imports it compares.

    Raises:
        ArgumentError: an empty name. StoreError: no such component. StoreWriteError: the file is there already with
            other bytes, or cannot be written. FormatError: its claim of privacy does not follow from its noise.
    """
    assert isinstance(store, FeatureStore)
    if name is None or name == "":  # for other verbs, that is the model of all rows
        raise ArgumentError("no component is named", got=repr(name), do='a shard\'s name, "000", or "models/mean"')
    name, file = model_of(store.objects(), name), local_path(file)
    component = read_component(store, name, read_base(store, recorded_recipe(store).tangent))
    check_claim(store, name, component.meta)
    said = public_fields(component.meta)
    if rows := stated_rows(said) or _rows_of_members(store, component.record):
        said["rows"] = rows  # of private members, the sum of what each was released with
    said |= {TRAINED_ON: trained_on(store, name).as_dict(), "numbers": component.numbers}
    data = replace(component, meta=said, dual=None).encode()
    store.check_may_leave()
    if changed := not (file.is_file() and file.read_bytes() == data):  # it is there if the stage runs again
        if force and file.is_file() and not _is_component(file):
            raise StoreWriteError(
                f"cannot replace {file}: it is no component", do="name another file, or delete it first"
            )
        with whole(file, again=force) as partial:
            partial.write_bytes(data)
            store.check_may_leave()
    return ComponentReport(
        store=store.path,
        root_digest=store.root_digest,
        component=name,
        file=file,
        bytes=len(data),
        base_digest=component.base_digest,
        rows=rows,
        changed=changed,
        notes=again_notes(store, [name, *recorded_members(name, store.objects()[name].meta)]),
    )


@at_its_place("a")
def import_component(store: Place, file: Path | str, name: str | None = None) -> ComponentReport:
    """Import a component under ``name`` (by default the file's) for the next composition.

    The rows that it was made from are not needed: only base point, features and classes must be the same. What the
    file says about its solve is not taken over, because no row here can prove it: the component has no certificate in
    this store.

    Raises:
        RecipeError: no such file, or a name that belongs to a shard or a composition, or that the plan has for a
            shard. FormatError: not a component as taftcache writes it, or its numbers have another norm or digest than
            it states.
            CompositionError: of other classes or features than the store's, around another base point, of other
            parameters, or with numbers that are not finite in float32.
    """
    assert isinstance(store, FeatureStore)
    file = local_path(file)
    name = check_name(file.stem if name is None else name)
    if store.has_shard(name) or name in shard_names(store.manifest.plan.get("shards", 0)):  # training replaces it
        state = "has that name already" if store.has_shard(name) else "may get that name, which the store's plan has"
        raise RecipeError(f"cannot import a component as {name!r}: a shard {state}", do="choose --name")
    if name in _OF_MODELS:  # both would have one short name
        raise RecipeError(f"cannot import a component as {name!r}: compositions are called so", do="choose --name")
    data = _read(file)
    recipe = recorded_recipe(store)
    base = read_base(store, recipe.tangent)
    given = _decoded(file, data)
    said, harmless = _checked(store, file, given)
    given = _fitting(file, data, given, base, recipe.tangent.train)
    rows = stated_rows(given.meta)
    own = {"kind": "component", "norm": given.delta.norm().item(), "imported": True, TRAINED_ON: said.as_dict()}
    own |= {} if rows is None else {"rows": rows}
    promise = Stated.of(given.meta)
    own |= {} if promise is None else {STATED: msgspec.to_builtins(promise)}
    numbers = given.numbers
    gone = forgotten_numbers(store)(numbers)
    own |= {AGAIN: max(gone.receipts, default=0)} if gone and gone.itself else {}
    component = Component(base.digest, given.layout, given.delta, own)
    full = component_of(name)
    there = store.objects().get(full)
    encoded, earlier = component.encode(), None if there is None else store.read_object(full)
    changed = encoded != earlier
    other = earlier is not None and numbers_digest(earlier) != numbers
    others = numbers_of(store, (n for n in store.objects(COMPONENTS) if n != full))
    same = [n for n, each in others.items() if each == numbers]
    objectives = {n: objective_of(store, n) for n in store.objects(COMPONENTS)} | {full: said.objective}
    noisy = any(PRIVATE in ref.meta for ref in store.objects(COMPONENTS).values())
    if changed:
        with store.transaction() as change:
            put_component(change, full, component)
    command, unweighed = _composing(store, recipe.compose)
    return ComponentReport(
        store=store.path,
        root_digest=store.root_digest,
        component=full,
        file=file,
        bytes=len(data),
        base_digest=base.digest,
        rows=rows,
        changed=changed,
        replaced=changed and there is not None,
        next=command if changed else "",
        notes=[
            *_uncounted(given.meta),
            *unweighed,
            *harmless,
            *scale_notes(objectives),
            *([NO_RECEIPT.format(store=typed(store.path), name=name)] if other else []),
            *(TWIN.format(other=name, name=full) for name in same),
            *([(again_note if gone.itself else own_note)(store, full, gone.receipts)] if gone else []),
            *([PROMISE_STAYS] if PRIVATE in given.meta else [NO_PROMISE] if noisy else []),
        ],
    )


def _checked(store: FeatureStore, file: Path, given: Component) -> tuple[TrainedOn, list[str]]:
    """What the store keeps of what ``given`` was trained on, and notes on what may differ or cannot be compared.

    Raises:
        CompositionError: other classes or features than the store's. FormatError: no such description.
    """
    try:
        said = checked(given.meta)
    except FormatError as error:
        raise FormatError(f"cannot import {file}: {error.fault}", got=error.got, do=_EXPORTED) from error
    rows, ours = stated_rows(given.meta), features_of(store.identity)
    counts = None if rows is None else said.class_rows
    if said.classes is not None and (wrong := other_classes(said.classes, store.classes)):
        raise CompositionError(
            f"{file} was trained on other classes than this store's: {wrong}",
            got=f"there {first_few(said.classes)}; here {first_few(store.classes)}",
            do="use the same classes in the same order on both sides; a class may lack rows on one of them",
        )
    if counts is not None and len(counts) != len(store.classes):
        raise FormatError(
            f"cannot import {file}: it has rows per class of {len(counts)} classes, not {len(store.classes)}",
            got=counts[:5],
            do=_EXPORTED,
        )
    different, noted = other_features(ours if said.features is None else said.features, ours)
    if different and all(line.startswith("cut.") for line in different):  # of the same network
        raise CompositionError(
            f"{file} was trained with other tangent.blocks than this store's: {different[0]}",
            got="; ".join(different[:6]),
            do="extract with the same tangent.blocks on both sides, and train it again there",
        )
    if different:
        raise CompositionError(
            f"{file} was trained on other features than this store's: {different[0]}",
            got="; ".join(different[:6]),
            do="extract with the same model, weights and preprocessing on both sides, and train it again there",
        )
    unchecked = [] if said.classes is not None else ["classes"]
    unchecked += ["features"] if said.features is None or unsaid_features(said.features, ours) else []
    unsaid = [*unchecked, *([] if said.objective else ["objective"])]
    unsaid += [] if counts is not None or PRIVATE in given.meta else ["rows per class"]
    return TrainedOn(objective=said.objective or None, class_rows=counts, unchecked=unchecked), [
        *([f"the file does not say its {', '.join(unsaid)}, which could not be checked"] if unsaid else []),
        *([f"its features may differ from this store's: {'; '.join(noted)}"] if noted else []),
        *([OF_VECTORS] if "imported.scaling" in ours else []),
    ]


def _fitting(file: Path, data: bytes, given: Component, base: Base, train: Train) -> Component:
    """The component with its parameters in the order of the store's; CompositionError if they are others, or around
    another base point, or not finite. FormatError if they are not what it states."""
    if given.base_digest != base.digest:
        said, ours = TrainedOn.of(given.meta).tangent or {}, drawn_of(base.spec)
        if different := [f"tangent.{key}: {said[key]!r} there, {ours[key]!r} here" for key in ours
                         if key in said and said[key] != ours[key]]:  # fmt: skip
            raise CompositionError(
                f"{file} was made around another base point than this store's components: {different[0]}",
                got="; ".join(different),
                do="use the same [tangent] section on both sides, and train it again there",
            )
        raise CompositionError(
            f"{file} was made around another base point than this store's components",
            got=f"base {given.base_digest[:16]}, this store's settings make {base.digest[:16]}",
            do="use the same backbone, classes, scaling of vectors and [tangent] section on both sides",
        )
    given = _decoded(file, data, base)
    if given.layout != base.trained(train):  # else compose and forget would fail
        raise CompositionError(
            f"{file} has other parameters than this store's components",
            got=f"{counted(len(given.layout.shapes), 'tensor')}; tangent.train = {train!r} has "
            f"{len(base.trained(train).shapes)}",
            do="use the same [tangent] section on both sides",
        )
    if not (largest := given.delta.abs().max().item()) <= torch.finfo(torch.float32).max:
        raise CompositionError(
            f"cannot import {file}: it has numbers that are not finite in float32, in which models answer",
            got=f"{largest:.3g}",
            do=_EXPORT_AGAIN,
        )
    _check_numbers(file, given)
    return given


def _check_numbers(file: Path, given: Component) -> None:
    """FormatError if the numbers do not have the norm that the file states or, unless it was rounded since, the digest.

    The norm alone misses a sign that flipped.
    """
    norm, said, held = given.delta.norm().item(), given.record, _coarsest(given.delta)
    if said.norm is not None and not abs(norm - said.norm) <= _norm_rounding(given.delta.numel(), norm, held):
        what, got, stated = "norm", f"‖Δw‖ = {norm:.6g}", f"{said.norm:.6g}"
    elif said.numbers is not None and held == torch.float64 and given.numbers != said.numbers:
        what, got, stated = "digest", given.numbers[:16], said.numbers[:16]
    else:
        return
    raise FormatError(
        f"cannot import {file}: it is damaged or was changed, for its numbers do not have the {what} that it states",
        got=f"{got}, stated {stated}",
        do=_EXPORT_AGAIN,
    )


def _composing(store: FeatureStore, asked: ComposeSpec) -> tuple[str, list[str]]:
    """The command that takes an import into compositions, and a note if the store's weights cannot be followed: this
    component, or one that came before, may not say its rows."""
    unsaid = uncounted(store, asked.weights, imported(store)) if asked.mode == "weighted" else []
    if not unsaid:
        return f"taftcache compose {typed(store.path)}", []
    command = compose_anyhow(store, store.objects(COMPONENTS))
    each = " of each class" if asked.weights == "class-rows" else ""
    return command, [
        f'compose and train refuse this store\'s compose.weights = "{asked.weights}", for nothing says how many '
        f"rows{each} {first_few([shard_of(name) for name in unsaid])} came from; next: {command}, or give each "
        "component a coefficient (--weight NAME=COEFFICIENT)"
    ]


def _coarsest(delta: Tensor) -> torch.dtype:
    """The coarsest type that holds all of the numbers as they are."""
    coarse = (torch.bfloat16, torch.float16, torch.float32)
    return next((dtype for dtype in coarse if torch.equal(delta, delta.to(dtype).double())), torch.float64)


def _norm_rounding(n: int, norm: float, held: torch.dtype) -> float:
    """How far the ``norm`` of ``n`` numbers may be from one that was taken in another order, and before they were
    rounded to the type ``held``.

    With u = eps/2 of float64, a sum of n squares is off by n u of it in any order, its root by half of that and u more:
    both norms by (n + 2) u. A square may be lost if it is below the least normal number (tiny). A type's rounding moves
    a number by u of its own, or by its own tiny. eps in place of u leaves room for higher orders.
    """
    double, own = torch.finfo(torch.float64), torch.finfo(held)
    return ((n + 2) * double.eps + own.eps) * norm + sqrt(n) * (sqrt(double.tiny) + own.tiny)


def _uncounted(meta: Mapping[str, Any]) -> list[str]:
    """A note if a component gives no possible number of rows."""
    if stated_rows(meta) is not None:
        return []
    said = meta.get("rows")
    what = "it does not say how many rows it was made from"
    what = what if said is None else f"it says that it was made from {said} rows, which cannot be"
    return [f"{what}, so no sum can weigh it by its rows"]


def _read(file: Path) -> bytes:
    """The bytes of a component's file."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe may never end, and a device is no component
            raise RecipeError(f"{file} is not a file", got=stat.filemode(status.st_mode), do=_EXPORTED)
        if status.st_size > MAX_BYTES:
            raise RecipeError(
                f"{file} has more than the {MAX_BYTES} bytes that a component may have",
                got=f"{status.st_size} bytes",
                do=_EXPORTED,
            )
        return file.read_bytes()
    except OSError as error:
        raise RecipeError(
            f"cannot read {file}: {(error.strerror or str(error)).lower()}", got=file, do=_EXPORTED
        ) from None


def _decoded(file: Path, data: bytes, base: Base | None = None) -> Component:
    try:
        return Component.decode(data, base)
    except FormatError as error:
        raise FormatError(f"cannot import {file}: {error.fault}", got=error.got, do=error.do) from error


def _rows_of_members(store: FeatureStore, said: ComponentMeta) -> int | None:
    """How many rows the members of a sum have together; None if one is gone, or does not say."""
    there = store.objects()
    counts = [there[name].meta.get("rows", 0) if name in there else 0 for name in said.members or ()]
    return sum(counts) if counts and all(counts) else None
