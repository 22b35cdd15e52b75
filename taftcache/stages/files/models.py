"""Export a store's model to a folder of its own; put such a folder on a model hub, or its model into another form."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, recorded_recipe
from taftcache.errors import RecipeError, local_path
from taftcache.model.card import Part, program_card
from taftcache.model.component import no_model
from taftcache.model.folder import check_only, is_model_folder, may_replace, open_model, origin_of, save_model
from taftcache.model.hub import push_model
from taftcache.model.members import RETURNED, again_notes, recorded_members
from taftcache.model.meta import loss_of, ridge_of
from taftcache.model.outdated import OUTDATED
from taftcache.model.predictor import TangentModel
from taftcache.model.programs import about, check_onnx, write_program
from taftcache.model.saved import ABOUT, CARD, files_in
from taftcache.names import PRIVATE, model_of
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.look.evaluation import held_out_score
from taftcache.stages.report import Report
from taftcache.stages.scaling import check_has_network
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.private.claims import check_claim, check_exported
from taftcache.stages.train.promises import promised
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.trained_on import trained_on
from taftcache.stages.writing import whole, writable


@dataclass(frozen=True, kw_only=True)
class ExportModelReport(Report):
    """A folder with one model, which needs no store.

    folder: where it is. files: names of its files. notes: if the model is outdated, or made with a component that was
    forgotten and imported again.
    """

    store: Path
    root_digest: str
    model: str
    folder: Path
    files: list[str]
    bytes: int
    notes: list[str] = field(default_factory=list)


def export_model(
    store: Place,
    folder: Path | str,
    model: str | None = None,
    *,
    program: bool = False,
    onnx: bool = False,
    force: bool = False,
    consent: Consent | None = None,
) -> ExportModelReport:
    """Write one of the store's models into a new folder that loads without the store.

    A private model's folder says what is promised, and nothing that its promise does not cover: not even the store's
    root digest, which is a digest of all rows, and neither accuracy nor temperature, because no promise covers held-out
    rows.

    For a model that has left its store, or was taught or fitted without one, only the program and ONNX are made, with a
    card and ``about.json``, which has the classes, the preprocessing, and what the model was made from.

    Args:
        store: open, or its place; or a folder with one model, as ``open_model`` takes it.
        folder: where to write it.
        model: its name in the store; by default the store's default model (``model_of``).
        program: beside the weights, the whole model as a torch.export program.
        onnx: beside the weights, the whole model in ONNX, which is run and compared.
        force: replace a saved model that is there, whole or not at all; a folder with other files is left alone.
        consent: as for ``predict``.

    Raises:
        StoreError: no such model. BackboneError: a store of vectors, without a network. StoreWriteError: the folder is
        not empty, or cannot be written. FormatError: the model's claim of privacy does not follow from its noise.
    """
    if isinstance(store, str | os.PathLike) and is_model_folder(place := local_path(store)):
        check_only(place, model, consent)
        return _in_another_form(place, local_path(folder), program, onnx, force)
    return _export_model(store, local_path(folder), model, program, onnx, force, consent)


@dataclass(frozen=True, kw_only=True)
class PushReport(Report):
    """Where the model is now on the hub.

    folder: what was sent. name: the repository's name. revision: its branch; None for the main one. url: its page.
    commit: the hub's digest of the commit. files: names of the files sent.
    """

    folder: Path
    name: str
    revision: str | None
    url: str
    commit: str
    files: list[str]
    bytes: int


def push(folder: Path | str, name: str, *, private: bool = False, revision: str | None = None) -> PushReport:
    """Put a folder that ``export_model`` wrote on the model hub, for ``from_pretrained``.

    The files of an exported model are verified and sent, and no other file in the folder. The snippets in the card name
    the model on the hub. Earlier pushes under the same name stay in the hub's history: a sample that was forgotten
    since is still in the earlier model, until the repository is deleted.

    Args:
        folder: an exported model's folder.
        name: "user/name" on the hub that HF_ENDPOINT names (huggingface.co by default).
        private: make it private; only for a name that is new, or private already.
        revision: a branch, created if it is missing; the main one by default.

    Raises:
        FormatError, IntegrityError: not a saved model, or not as it was saved, or its claim of privacy does not follow
            from its noise. RecipeError: not a name for the hub, or a public repository although ``private`` is asked
            for.
        StoreUnreachable: the hub does not answer, or refuses.
    """
    folder = local_path(folder)
    check_exported(folder)
    done = push_model(folder, name, private=private, revision=revision)
    size = sum((folder / file).stat().st_size for file in done.files)
    return PushReport(
        folder=folder, name=name, revision=revision, url=done.url, commit=done.commit, files=done.files, bytes=size
    )


def _in_another_form(store: Path, folder: Path, program: bool, onnx: bool, force: bool) -> ExportModelReport:
    """Write the program and ONNX of the model in the folder ``store``, a card, and what an audit recognises them by."""
    if not (program or onnx):
        raise RecipeError(
            "a saved model can only be exported in other forms: as a program, or in ONNX",
            got=f"{store}, which is one already",
            do="add --onnx or --program, or name its store instead",
        )
    check_exported(store)
    again = force and may_replace(folder)
    writable(folder, folder=True, again=again)
    origin, model = origin_of(store), open_model(store, device="cpu")
    if onnx:
        check_onnx()
    exported = model.program()
    with _replacing(folder, again) as partial:
        partial.mkdir()
        said = write_program(origin, model, exported, partial, program=program, onnx=onnx)
        (partial / CARD).write_text(program_card(origin, model, said), "utf-8")
        whose = about(origin) | {"classes": model.classes, "preprocess": model.transform.description()}
        (partial / ABOUT).write_text(json.dumps(whose, indent=2) + "\n", "utf-8")
        files = files_in(partial)
    return _report(store, origin.root_digest, origin.name, folder, files)


@contextmanager
def _replacing(folder: Path, again: bool) -> Iterator[Path]:
    """`whole` for a folder; ``again``: in place of a model, to which nobody may have added files by the end."""
    with whole(folder, folder=True, again=again) as partial:
        yield partial
        if again:
            may_replace(folder)


@at_its_place()
def _export_model(
    store: Place,
    folder: Path,
    model: str | None,
    program: bool,
    onnx: bool,
    force: bool,
    consent: Consent | None,
) -> ExportModelReport:
    assert isinstance(store, FeatureStore)
    check_has_classes(store)
    model = model_of(store.objects(), model)
    if model not in store.objects():
        raise no_model(store, model)
    check_has_network(store, model)
    again = force and may_replace(folder)
    writable(folder, folder=True, again=again)
    loaded = TangentModel.read(store, model, "cpu", consent)
    check_claim(store, model, loaded.component.meta)
    parts = _parts(store, model)
    private = {name for name, ref in store.objects().items() if PRIVATE in ref.meta}
    score = None if "private" in parts or model in private else held_out_score(store, model, consent)
    if score is not None and score.calibration is not None:
        loaded.temperature = score.calibration.temperature
    notes = outdated_notes(store, settings_of(store).keys, model)
    back = again_notes(store, [model, *recorded_members(model, store.objects()[model].meta)])
    with _replacing(folder, again) as partial:
        root = "" if private or promised(store) else store.root_digest
        files = save_model(
            loaded,
            partial,
            name=model,
            root_digest=root,
            dataset=_public_dataset(store),
            score=score,
            parts=parts,
            problems=_problems(store, model),
            notes=[*([OUTDATED] if notes else []), *([RETURNED] if back else [])],
            unlearned=_unlearned(store, model),
            program=program,
            onnx=onnx,
        )
        store.check_may_leave()
    return replace(_report(store.path, store.root_digest, model, folder, files), notes=[*notes, *back])


def _report(store: Path, root_digest: str, model: str, folder: Path, files: list[str]) -> ExportModelReport:
    size = sum((folder / file).stat().st_size for file in files)
    return ExportModelReport(store=store, root_digest=root_digest, model=model, folder=folder, files=files, bytes=size)


def _parts(store: FeatureStore, model: str) -> Counter[Part]:
    """The components of a sum by kind; none if it is no sum."""
    objects = store.objects()

    def kind(name: str) -> Part:
        if name not in objects:
            return "gone"
        meta = objects[name].meta
        return "private" if PRIVATE in meta else "imported" if meta.get("imported") else "solved"

    return Counter(kind(name) for name in objects[model].meta.get("coefficients", ()))


def _problems(store: FeatureStore, model: str) -> dict[str, int]:
    """Loss and λ, in words, of the problems that a model was solved for -> of how many components."""
    objects = store.objects()
    metas = [objects[part].meta for part in objects[model].meta.get("members", [model]) if part in objects]
    known = [(loss_of(meta), ridge_of(meta)) for meta in metas if PRIVATE not in meta]
    return dict(Counter(f"loss {loss}, λ = {ridge:.3g}" for loss, ridge in known if loss and ridge is not None))


def _unlearned(store: FeatureStore, model: str) -> dict[str, int]:
    """Classes of which a model had no training row, as far as its rows are known -> their held-out rows."""
    held = {} if store.held_out is None else store.held_out.statistics["rows_per_class"]
    rows = trained_on(store, model).class_rows or []
    return {store.classes[k]: held.get(k, 0) for k, n in enumerate(rows) if not n}


def _public_dataset(store: FeatureStore) -> str | None:
    """The dataset's name if it is public; the name of a folder or file is its owner's, and not given away."""
    data = recorded_recipe(store).data
    if data.source == "digits":
        return "digits"
    if data.source == "published":
        return data.train
    return (data.train or "").removeprefix("hfds/") if data.source == "timm" and "hfds/" in (data.train or "") else None
