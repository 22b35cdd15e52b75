"""What was made of rows and lies outside of the store: found once the rows are forgotten, and not before."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle
import re
import shutil
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO
from unicodedata import normalize

import h5py
import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

import taftcache
from taftcache.backbone.files import file_digest
from taftcache.cache import hdf5
from taftcache.cache.format.parts import Skipped
from taftcache.cache.kept_keys import TombstoneKeys
from taftcache.cache.place.folder import Folder
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreWriteError
from taftcache.model.component import Component
from taftcache.model.description import DESCRIPTION, read_description
from taftcache.model.members import MADE_AGAIN, RETURNED
from taftcache.model.programs import PROGRAM
from taftcache.model.saved import CARD, WEIGHTS
from taftcache.names import EXACT, HEAD, MEAN
from taftcache.paper.fits import Fits
from taftcache.report.write import write_bytes
from taftcache.stages import file_texts
from taftcache.stages.audit import byproducts, judging
from taftcache.stages.file_texts import FileTexts, read_texts
from taftcache.stages.forget.finding import Findings
from taftcache.terminal.forgetting import show_audit
from tests.stages.forging import forge_ledger
from tests.stages.making import open_store, recipe
from tests.teaching.making import VIT

HAS_PARQUET = find_spec("pyarrow") is not None


def spread(path: Path, place: Path) -> str:
    """Exports, a model, a comparison's models, a student's checkpoint, a report, a copy and unfinished files."""
    with open_store(path) as store:
        gone = store.shard("000").sample_ids[2]
        digests = [shard.digest for shard in store.shards]
        taftcache.export_model(store, place / "model")
        key = {"store": store.root_digest, "setting": "any"}
        Fits(place / "compared").put(key, {"mean": torch.zeros(2)}, {}, digests)
        Fits(place / "alien").put({"store": "1" * 64}, {"mean": torch.zeros(2)}, {}, ["2" * 64])
        taught = {"prior": {"teachers": [["vit", 1.0, digests]]}}
        Fits(place / "taught").put(taught, {"mean": torch.zeros(2)}, {})
    for file, form in (("rows.h5", "hdf5"), ("rows.npz", "npz"), ("tables", "embedding-projector")):
        taftcache.export(path, place / file, format=form)
    escaped = json.dumps({"ids": [gone]}).replace("/", "\\u002f")
    if HAS_PARQUET:
        taftcache.export(path, place / "rows.parquet", format="parquet")
    write_bytes(place / "report.html", f'<p class="it\'s">\n<script>{escaped}</script>'.encode())
    shutil.copytree(path, place / "copy")
    (place / "notes.txt").write_text("nothing of anyone")
    return gone


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_by_products_of_forgotten_rows(store, tmp_path):
    place = tmp_path / "elsewhere"
    place.mkdir()
    gone = spread(store, place)
    report = taftcache.audit(store, also=[place], head=place / "pinned.head")  # which says nothing of any row
    assert report.findings == []
    assert [note for note in report.notes if str(place) in note] == []
    with open_store(store) as opened:
        taftcache.forget(opened, [gone])
    (place / "x.h5.partial").write_bytes(b"")
    report = taftcache.audit(store, also=[place])
    assert {finding.kind for finding in report.findings} == {"by-product"}
    found = {Path(f.where).relative_to(place).parts[0]: f.problem.partition(" (")[0] for f in report.findings}
    assert sorted(set(found) - {"rows.parquet"}) == [
        "compared", "copy", "model", "report.html", "rows.h5", "rows.npz", "tables", "taught", "x.h5.partial",
    ]  # fmt: skip
    assert found.get("rows.parquet") == ("it holds forgotten ids: 1" if HAS_PARQUET else None)
    assert found["model"] == found["compared"] == "made from the store as it was before ledger/000001"
    assert found["taught"] == "made from shards as they were before ledger/000001"
    assert found["rows.h5"] == found["rows.npz"] == "it holds forgotten ids: 1"
    assert found["copy"] == "a store with rows of forgotten ids: 1"
    assert [str(place) in note for note in report.notes if "no receipt" in note] == [True]  # the alien one
    (note,) = [note for note in report.notes if "no receipt" in note]
    assert note.startswith(f"{place}: 1 file (alien/")
    assert note.endswith("before a request has what was forgotten; delete it, and export it again")
    with pytest.raises(RecipeError, match="not a folder"):
        taftcache.audit(store, also=[place / "nowhere"])


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("mode", ["retrain", "subtract", "resolve"])
def test_files_of_components_and_models_that_were_trained_on_what_was_forgotten(store, tmp_path, mode):
    """They name neither rows nor a state. A note said that the file may be from before append, under a verdict that
    nothing of what was forgotten was found in the folder."""
    taftcache.compose(store, overrides={"compose.mode": "exact"})
    (out := tmp_path / "out").mkdir()
    names = ["components/000", "components/001", MEAN, EXACT, HEAD]
    files = {name: out / f"{name.replace('/', '-')}.safetensors" for name in names}
    for name, file in files.items():
        taftcache.export_component(store, name, file)
    other = shutil.copytree(store, tmp_path / "partner")
    taftcache.import_component(other, files["components/000"], "site")
    with open_store(store) as opened:
        gone, held = opened.shard("000").sample_ids[0], opened.held_out.sample_ids[0]
    taftcache.forget(store, [held])
    report = taftcache.audit(store, also=[out])
    assert (report.findings, report.unsure) == ([], 0), "nothing was trained on a held-out row"
    taftcache.forget(store, [gone], mode=mode)
    report = taftcache.audit(store, also=[out])
    text = f"it has the numbers of {MADE_AGAIN} by receipt 2"
    assert [(f.where, f.problem) for f in report.findings] == [
        (str(file), text) for name, file in sorted(files.items()) if name != "components/001"
    ]
    assert report.unsure == 0
    for file in files.values():
        file.unlink()
    assert taftcache.audit(store, also=[out]).findings == []
    shutil.move(other, out / "partner")
    taftcache.forget(out / "partner", [held, gone])
    (found,) = taftcache.audit(store, also=[out]).findings
    assert found.problem == "a store with components that were forgotten here: 1"


def test_what_was_trained_on_forgotten_rows_is_known_again_within_the_store(store, tmp_path):
    """A component that was exported, and imported into its own store, kept what was forgotten, and audits passed."""
    file = taftcache.export_component(store, "000", tmp_path / "site.safetensors").file
    taftcache.import_component(store, file, "site")
    with open_store(store) as opened:
        gone = opened.shard("000").sample_ids[0]
    for dry_run in (True, False):
        notes = taftcache.forget(store, [gone], dry_run=dry_run).notes
        assert [n.endswith(f"components/site; next: taftcache forget {store} --component site")
                for n in notes if "same numbers" in n] == [True]  # fmt: skip
    (found,) = taftcache.audit(store).findings
    assert (found.kind, found.where) == ("forgotten component", "components/site")
    taftcache.forget(store, components=["site"])
    assert taftcache.audit(store).findings == []
    notes = taftcache.import_component(store, file, "again").notes
    (note,) = [n for n in notes if "very" in n]
    assert note.startswith("components/again: this very component was forgotten here by receipt 1, by receipt 2, and")


def test_an_old_component_of_the_stores_own_is_found_when_it_is_imported_after_the_request(store, tmp_path):
    """Only its rows were forgotten, so nobody has let it in again: it was taken for an owner's change of mind."""
    (out := tmp_path / "out").mkdir()
    file = taftcache.export_component(store, "000", out / "site.safetensors").file
    with open_store(store) as opened:
        gone = opened.shard("000").sample_ids[0]
    taftcache.forget(store, [gone])
    (note,) = [n for n in taftcache.import_component(store, file, "old").notes if "for what was forgotten here" in n]
    assert note.startswith("components/old: its numbers are those of a component or model of this store that was made")
    assert "by receipt 1, and compositions take them in again" in note
    found = taftcache.audit(store, also=[out]).findings
    assert {Path(one.where).name for one in found} == {"old", "site.safetensors"}
    taftcache.forget(store, components=["old"])
    assert taftcache.audit(store).findings == []


def _without_numbers(store: Path) -> None:
    """Receipts as earlier releases wrote them."""
    forge_ledger(store, lambda entries: [{k: v for k, v in e.items() if k != "numbers_before"} for e in entries])


def test_a_receipt_of_an_earlier_release_knows_no_numbers(store, tmp_path, capsys):
    """Such a file is in a note, and the verdict does not clear the folder that it lies in."""
    (out := tmp_path / "out").mkdir()
    taftcache.export_component(store, "000", out / "site.safetensors")
    with open_store(store) as opened:
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]])
    assert len(taftcache.audit(store, also=[out]).findings) == 1
    _without_numbers(store)
    report = taftcache.audit(store, also=[out])
    assert (report.findings, report.unsure) == ([], 1)
    show_audit(report)
    said = capsys.readouterr().out
    assert said.startswith(
        f"PASSED: nothing of what was forgotten was found in the store and {out}, but for 1 file that nothing here can"
    )
    assert "or a component exported before a request of an earlier release: whatever" in said


def test_an_exported_model_is_known_to_be_a_component_that_was_forgotten(store, tmp_path):
    """It names a state that no receipt knows, and a note said no more."""
    file = taftcache.export_component(store, "000", tmp_path / "site.safetensors").file
    part = Component.decode(file.read_bytes())
    file.write_bytes(replace(part, delta=-part.delta, meta={}).encode())
    taftcache.import_component(store, file, "site")
    (out := tmp_path / "out").mkdir()
    for model in ("000", "site"):
        taftcache.export_model(store, out / model, model=model)
    taftcache.compose(store)
    taftcache.forget(store, components=["site"])
    report = taftcache.audit(store, also=[out])
    assert [(f.where, f.problem) for f in report.findings] == [
        (str(out / "site" / DESCRIPTION), "it has the numbers of a component that was forgotten here by receipt 1")
    ]
    taftcache.import_component(store, file, "again")
    taftcache.compose(store)
    for model, said in (("mean", 1), ("again", 1), ("000", 0)):
        notes = taftcache.export_model(store, out / f"then-{model}", model=model).notes
        assert len([n for n in notes if n.startswith("components/again: this very component was forgotten")]) == said
        text = (out / f"then-{model}" / CARD).read_text("utf-8")
        assert text.count(f"- When it left its store, it was {RETURNED}.\n") == said
    assert [note for note in report.notes if f"000/{DESCRIPTION}" in note]


def test_a_program_is_judged_by_the_model_that_it_was_exported_with(store, tmp_path):
    """It cannot be searched, so that a strict audit never passed over an export that had one."""

    def export(name: str) -> Path:
        taftcache.export_model(store, tmp_path / "out" / name)
        program, about = tmp_path / "out" / name / PROGRAM, tmp_path / "out" / name / DESCRIPTION
        with zipfile.ZipFile(program, "w") as zipped:
            zipped.writestr("weights", b"any")
        said = json.loads(about.read_text())
        about.write_text(json.dumps(said | {"files": {**said["files"], PROGRAM: file_digest(program)}}))
        return program

    def found() -> list[tuple[str, str]]:
        return [(f.kind, f.where) for f in taftcache.audit(store, also=[tmp_path / "out"], strict=True).findings]

    old = export("old")
    with open_store(store) as opened:
        taftcache.forget(opened, [opened.shard("000").sample_ids[2]])
    new = export("new")
    assert {where for kind, where in found() if kind == "by-product"} >= {str(old), str(old.with_name(DESCRIPTION))}
    shutil.rmtree(old.parent)
    assert found() == []
    new.write_bytes(new.read_bytes() + b" ")
    assert found() == [("undecided", str(tmp_path / "out"))]


def test_a_model_that_claims_the_present_root_has_the_numbers_that_are_there(store, tmp_path):
    """One edited line of an old export made an audit pass."""
    taftcache.export_model(store, tmp_path / "old")
    with open_store(store) as opened:
        taftcache.forget(opened, [opened.shard("000").sample_ids[2]])
    about, now = (tmp_path / name / DESCRIPTION for name in ("old", "new"))
    about.write_text(json.dumps(json.loads(about.read_text()) | {"root_digest": taftcache.inspect(store).root_digest}))
    (found,) = taftcache.audit(store, also=[tmp_path / "old"]).findings
    assert found.problem.startswith(f"it has the numbers of {MADE_AGAIN}")
    _without_numbers(store)
    taftcache.export_model(store, tmp_path / "new")
    present = {"root_digest": read_description(now.parent).root_digest}
    about.write_text(json.dumps(json.loads(about.read_text()) | present))
    (found,) = taftcache.audit(store, also=[tmp_path]).findings
    assert (found.kind, found.where) == ("by-product", str(about))
    assert "is not the model of its name there" in found.problem
    for name in "", "components/zzz":
        about.write_text(json.dumps(json.loads(about.read_text()) | {"model": name}))
        assert [f.where for f in taftcache.audit(store, also=[tmp_path]).findings] == [str(about)]
    about.write_text(json.dumps(json.loads(about.read_text()) | {"model": read_description(now.parent).model}))
    about.with_name(WEIGHTS).rename(tmp_path / "elsewhere")
    assert [f.kind for f in taftcache.audit(store, also=[about.parent], strict=True).findings] == ["undecided"]
    shutil.copy(tmp_path / "new" / WEIGHTS, about.with_name(WEIGHTS))
    assert taftcache.audit(store, also=[tmp_path], strict=True).passed


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_an_onnx_file_on_its_own_is_found(tmp_path, monkeypatch):
    """As it is served: without the folder that says what it was made from. Of a network of one block: converting one
    takes seconds a block."""
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    store, weights, args = tmp_path / "store", tmp_path / "vit.safetensors", VIT | {"depth": 1, "num_classes": 10}
    save_file(timm.create_model("vit_tiny_patch16_224", **args).state_dict(), weights)
    backbone = {"model": "vit_tiny_patch16_224", "weights": str(weights), "model_args": args}
    digits, size = {"source": "digits", "limit": 30}, {"input_size": [3, 16, 16]}
    taftcache.run(recipe(store, backbone=backbone, data=digits, preprocess=size))
    convert, converted = torch.onnx.export, []

    def once(*arguments: Any, **named: Any) -> Any:
        """The same network again: its operations are those that were found before, and nothing else of it stays."""
        if not converted:
            converted.append(convert(*arguments, **named))
        converted[0].model.metadata_props.clear()
        return converted[0]

    monkeypatch.setattr(torch.onnx, "export", once)
    old, again, bare = (tmp_path / name / "served.onnx" for name in ("old", "again", "bare"))
    taftcache.export_model(store, tmp_path / "model", onnx=True)
    taftcache.export_model(tmp_path / "model", tmp_path / "form", onnx=True)
    for file, made in ((old, "model"), (again, "form"), (bare, "model")):
        file.parent.mkdir()
        shutil.copy(tmp_path / made / "model.onnx", file)
    earlier = onnx.load(bare)
    (about,) = [entry for entry in earlier.metadata_props if entry.key == "about"]
    said = json.loads((tmp_path / "model" / DESCRIPTION).read_text())
    expected = {"model": said["model"], "temperature": said["temperature"], "root_digest": said["root_digest"]}
    assert json.loads(about.value) == expected | {name: said["versions"][name] for name in ("taftcache", "torch")}
    assert expected.items() <= json.loads((tmp_path / "form" / "about.json").read_text()).items()
    earlier.metadata_props.remove(about)
    onnx.save(earlier, bare)
    for made in ("model", "form"):
        shutil.rmtree(tmp_path / made)
    assert not taftcache.audit(store, also=[tmp_path], strict=True).findings
    with open_store(store) as opened:
        taftcache.forget(opened, [opened.shard("000").sample_ids[2]])
    findings = taftcache.audit(store, also=[old.parent, again.parent, bare.parent], strict=True).findings
    assert [(f.kind, f.where) for f in findings] == [
        ("by-product", str(old)),
        ("by-product", str(again)),
        ("undecided", str(bare.parent)),
    ]


def test_the_card_of_another_form_names_the_licence(finished, tmp_path, monkeypatch):
    """The form itself takes seconds to make, and says nothing of it."""
    monkeypatch.setattr("taftcache.model.predictor.TangentModel.program", lambda model: None)
    monkeypatch.setattr("taftcache.stages.files.models.write_program", lambda *_, **__: {})
    taftcache.export_model(finished, tmp_path / "model")
    taftcache.export_model(tmp_path / "model", tmp_path / "form", program=True)
    assert "- Licence of the backbone's weights: `apache-2.0`." in (tmp_path / "form" / CARD).read_text()


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_what_names_only_shards_that_all_lost_rows_is_found(store, tmp_path):
    """No shard of it is there any more, by which it would be known for this store's; and not for a key's destroyer."""
    place = tmp_path / "elsewhere"
    with open_store(store) as opened:
        digests = [shard.digest for shard in opened.shards]
        gone = [shard.sample_ids[0] for shard in opened.shards]
    Fits(place).put({"any": 1}, {"mean": torch.zeros(2)}, {}, digests)
    assert not taftcache.audit(store, also=[place]).findings
    for sample in gone:
        taftcache.forget(store, [sample])
    (finding,) = taftcache.audit(store, also=[place]).findings
    assert finding.problem == "made from shards as they were before ledger/000001"
    with open_store(store) as opened:
        assert not [each for entry in opened.ledger() for each in digests if each in json.dumps(entry)]
        taftcache.destroy_key(opened)
    assert not taftcache.audit(store, also=[place]).findings


def test_parquet_of_others_and_what_cannot_be_searched(store, tmp_path, monkeypatch):
    """Ids in columns of any name, also in lists; damaged files, and all of them without the library, are counted."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    place = tmp_path / "elsewhere"
    place.mkdir()
    with open_store(store) as opened:
        gone = opened.shard("000").sample_ids[2]
        taftcache.forget(opened, [gone])
    tables = {"plain": ["a", gone], "lists": [["b"], ["c", gone]], "large": pa.array([gone, "d"], pa.large_string())}
    for name, column in {**tables, "other": ["a", "b"]}.items():
        parquet.write_table(pa.table({"n": [1, 2], "who": column}), place / f"{name}.parquet")
    whole = (place / "plain.parquet").read_bytes()
    (place / "damaged.parquet").write_bytes(whole[: len(whole) // 2])
    # For what the file says of this column pyarrow would end the process.
    (place / "damaged-too.parquet").write_bytes(whole.replace(b"\x02\x18\x03who", b"\x06\x18\x03who"))
    report = taftcache.audit(store, also=[place])
    assert {Path(finding.where).stem for finding in report.findings} == set(tables)
    assert ["2 files (damaged" in note for note in report.notes if "not searched" in note] == [True]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    report = taftcache.audit(store, also=[place])
    assert report.findings == []
    assert ["6 files" in note for note in report.notes if "not searched" in note] == [True]


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_copy_that_was_cut_off_is_found(store, tmp_path, monkeypatch):
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "shards").mkdir()  # of someone who calls a folder so
    (place / "shards" / "notes.txt").write_text("nothing of anyone")

    def cut_off(self: Folder, name: str, data: bytes) -> None:
        raise StoreWriteError("killed")

    with monkeypatch.context() as killed:
        killed.setattr(Folder, "swap", cut_off)
        with pytest.raises(StoreWriteError, match="killed"):
            taftcache.copy(store, place / "copy")
    for models in ("components", "models"):  # which name the shards that they are of, and may not have come yet
        shutil.rmtree(place / "copy" / models)
    assert taftcache.audit(store, also=[place]).findings == []
    with open_store(store) as opened:
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]])
    (found,) = taftcache.audit(store, also=[place]).findings
    assert (found.where, "cut off" in found.problem) == (str(place / "copy"), True)
    taftcache.copy(store, place / "copy")
    assert taftcache.audit(store, also=[place]).findings == []


def test_what_a_killed_write_left_is_replaced_by_the_next(tmp_path):
    (tmp_path / "report.md.partial").write_bytes(b"rows")
    write_bytes(tmp_path / "report.md", b"report")
    assert [file.name for file in tmp_path.iterdir()] == ["report.md"]


def some_vectors(path: Path, ids: list[str]) -> Path:
    x = np.random.default_rng(0).normal(size=(len(ids), 6))
    taftcache.import_vectors(x, np.arange(len(ids)) % 2, path, ids=ids, overrides=["store.shards=2"])
    taftcache.train(path)
    return path


ODD = ["Berg, Ada/1", 'the "b', "d e", "e'f", "two  blanks", " at its ends ", '=sum("a", 1)', "-1"]


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("odd", ODD)
def test_ids_of_any_signs_are_found_in_files_of_any_name(tmp_path, monkeypatch, odd):
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    store = some_vectors(tmp_path / "store", [odd, *(f"u/{k}" for k in range(20))])
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "ids").write_text(f"u/1\n{odd}\r\nu/2\n")
    with (place / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["u/3", 1], ["u/4", 1], [f"'{odd}" if odd[0] in "=-" else odd, 2]]
        )  # as the page writes it
    np.save(place / "ids.npy", np.array(["u/1", odd]))
    np.savez(place / "others.npz", id=np.array(["u/1", odd]), x=np.zeros(2))
    taftcache.export(store, place / "rows.bin", format="hdf5")
    taftcache.export(store, place / "samples.bin", format="npz")
    taftcache.export(store, place / "table", format="embedding-projector")
    taftcache.forget(store, [odd])
    found = {Path(f.where).relative_to(place).parts[0] for f in taftcache.audit(store, also=[place]).findings}
    assert found == {"ids", "rows.csv", "ids.npy", "others.npz", "rows.bin", "samples.bin", "table"}


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_ids_are_found_wherever_a_file_has_texts(tmp_path, monkeypatch):
    """Under any name, in fields of records, as bytes, in UTF-16, and at the end of a longer path."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    gone = "c0/s 1.png"
    store = some_vectors(tmp_path / "store", [gone, *(f"u/{k}" for k in range(20))])
    place = tmp_path / "elsewhere"
    place.mkdir()
    ids = np.array(["u/1", gone])
    records = np.array([(i, (i, 1.0)) for i in ids], dtype=[("x", "S20"), ("y", [("z", "U20"), ("w", "f4")])])
    with h5py.File(place / "named.h5", "w") as file:
        file["deep/er"], file["x"] = np.array(ids, dtype="S20"), np.zeros((2, 3))
    with h5py.File(place / "records.h5", "w") as file:
        file["all"] = np.array([(i, 1.0) for i in ids], dtype=[("id", h5py.string_dtype()), ("x", "f4")])
    with h5py.File(place / "alone.h5", "w") as file:
        file["description"] = gone
    with h5py.File(place / "record.h5", "w") as file:
        file["one"] = np.array((gone, 1.0), dtype=[("name", h5py.string_dtype()), ("x", "f4")])
    np.savez(place / "second.npz", ids=np.array(["a", "b"]), names=ids, x=np.zeros(2))
    np.savez_compressed(place / "beside.npz", names=ids, odd=np.array([{}], dtype=object))
    np.save(place / "records.npy", records)
    np.save(place / "bytes.npy", ids.astype("S20"))
    for form in ("utf-8-sig", "utf-16", "utf-32"):
        (place / f"{form}.tsv").write_text(f"{gone}\t0\n", form)
    (place / "absolute.txt").write_text(f"u/1\n/data/pics/{gone}\n")
    (place / "windows.csv").write_text("D:\\pics\\" + gone.replace("/", "\\") + ",1\n")
    (place / "slashes.txt").write_text("/" * 100_000 + "\n" + "/" * 4000)
    formed = {"named", "records", "second", "beside", "bytes", "utf-8-sig", "utf-16", "utf-32", "absolute", "windows"}
    formed |= {"alone", "record"}
    if HAS_PARQUET:
        formed |= arrow_files(place, gone)
    with h5py.File(place / "pickled.h5", "w") as file:
        file.create_dataset("rows", (1,), h5py.vlen_dtype(np.uint8))[0] = np.frombuffer(b"any", np.uint8)
    with h5py.File(place / "bomb.h5", "w") as file:
        file.create_dataset("ids", (12,), "i8", chunks=(1 << 24,), maxshape=(None,), compression="gzip")[:] = range(12)
    taftcache.forget(store, [gone])
    report = taftcache.audit(store, also=[place])
    assert {Path(finding.where).stem for finding in report.findings} == formed
    assert {finding.problem.partition(" (")[0] for finding in report.findings} == {"it holds forgotten ids: 1"}
    unread = ["2 files (bomb.h5, pickled.h5)", "3 files (a.feather, bomb.h5, pickled.h5)"][HAS_PARQUET]
    assert [unread in note for note in report.notes if "not searched" in note] == [True]


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_ids_of_one_sign_are_not_found_by_chance(tmp_path):
    """A picture or a model has every sign somewhere between two spaces; and a text in it is still found."""
    store = some_vectors(tmp_path / "store", [*map(str, range(10)), "u/1", "u/2"])
    place = tmp_path / "elsewhere"
    place.mkdir()
    noise = np.random.default_rng(0).bytes(1 << 20)
    assert all(re.search(rb"[\s,;:=]%d[\s,;:=]" % k, noise) for k in range(3))
    (place / "weights.bin").write_bytes(noise)
    Image.fromarray(np.frombuffer(noise[: 3 << 16], np.uint8).reshape(256, 256, 3)).save(place / "picture.png")
    for sample in ("0", "1", "2", "u/1"):
        taftcache.forget(store, [sample])
    assert not taftcache.audit(store, also=[place], strict=True).findings
    (place / "weights.bin").write_bytes(noise + b'{"made from": ["u/2", "u/1"], "rows": 2}' + noise)
    (finding,) = taftcache.audit(store, also=[place]).findings
    assert finding.where == str(place / "weights.bin")


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_number_that_is_an_id_is_found_where_it_is_no_other_number(tmp_path, monkeypatch):
    """1000 is the limit of a solve's passes, and a checkpoint has a thousand classes."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    x, y = np.random.default_rng(0).normal(size=(20, 6)), np.array(["cat", "dog"] * 10)
    ids = ["cat", *(f"{k:04d}" for k in range(990, 1009))]
    taftcache.import_vectors(x, y, store := tmp_path / "store", ids=ids, overrides=["store.shards=2"])
    place = tmp_path / "elsewhere"
    place.mkdir()
    texts = {
        "ids.txt": "0999\n1000\n1001\n",
        "table.csv": "1000,3\n0990,3\n1002,1\n",
        "table.tsv": "3\t1000\n1\t1001\n3\t1004\n",
        "list.json": '{"of": ["0999", "1000", "1003"]}',
        "some.txt": "0999\n1000\n",
        "packed.json": json.dumps({"key": json.dumps({"id": "1000"})}),
        "page.html": '<script>{"id":"1000"}</script>',
        "class.json": '["cat"]',
        "number.json": '{"passes": 1000}',
        "numbers.json": "[\n1,\n1000,\n2]",
        "number.txt": "The limit is 1000 (passes).",
        "number.html": "<p>1,1000,2</p>",
        "many.json": "[" * 100_000 + '"' + "]" * 100_000,
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    header = json.dumps({"head": {"dtype": "U8", "shape": [1000], "data_offsets": [0, 1000]}}).encode()
    (place / "one.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1000))
    np.save(place / "said.npy", np.array(["1000 cats"]))
    taftcache.forget(store, ["cat", "1000"])
    assert not taftcache.audit(store).findings
    report = taftcache.audit(store, also=[place])
    found = {Path(finding.where).name for finding in report.findings}
    assert found == {"ids.txt", "table.csv", "table.tsv", "list.json", "packed.json", "page.html"}
    (note,) = [note for note in report.notes if "may mean something else" in note]
    assert "6 files (class.json, number.html, number.json, number.txt, numbers.json and 1 more)" in note


def test_numbers_and_classes_in_a_models_folder_are_no_ids(store, tmp_path, monkeypatch):
    """The description says what the model is of; but of a copy of its card, say, nobody knows."""
    place = tmp_path / "model"
    with open_store(store) as opened:
        taftcache.forget(opened, [opened.shard("000").sample_ids[2]])
        taftcache.export_model(opened, place)
        shutil.copy(place / CARD, place / "other.md")
        texts = [FileTexts(about=file.read_text()) for file in place.rglob("*.*") if file.suffix in (".md", ".json")]
        told = [each.forgotten(lambda _: True) for each in texts]
        common = {number for _, numbers in told for number in numbers}
        common = common.difference(*(ids for ids, _ in told)).union(opened.classes)
        monkeypatch.setattr(FeatureStore, "asker", lambda _: common.__contains__)
        found = Findings(store=store)
        byproducts.check_folders(opened, TombstoneKeys(opened), [place], found)
    assert not found.findings
    assert [note.partition(" with a forgotten id")[0] for note in found.notes] == [f"{place}: 1 file (other.md)"]


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\0", b"\x7f", b"\xff", b"\xc3\xa9", b"a" * 5, b"b" * 40]), max_size=60),
    st.integers(1, 200),
)
def test_texts_between_bytes_of_other_kinds(tmp_path_factory, pieces, block):
    """As a regular expression finds them, wherever a block ends."""
    path, data = tmp_path_factory.mktemp("one") / "file", b"\1\0" + b"".join(pieces)
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_texts, "BLOCK", block)
        read = read_texts(path)
    assert read.about == "\n".join(re.findall("[^\0\1\x7f\ufffd]{32,}", data.decode("utf-8", "replace")))


def test_a_file_of_any_size_is_searched_for_the_text_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(file_texts, "MAX_TEXT", 100)
    (tmp_path / "file").write_bytes(b"\1" + b"\0" * 1000 + b"u" * 60 + b"\0" * 1000)
    assert read_texts(tmp_path / "file") == FileTexts(about="u" * 60)
    for more in (b"\1\0" + b"u" * 101, b"\1\0" + b"u" * 60 + b"\0" + b"u" * 60, b"u" * 101):
        (tmp_path / "file").write_bytes(more)
        assert not read_texts(tmp_path / "file").whole


def test_of_a_file_that_is_no_text_no_more_is_looked_at_than_tells_it(tmp_path, monkeypatch):
    monkeypatch.setattr(file_texts, "BLOCK", 50)
    looked_at, blocks = list[list[bytes]](), file_texts._blocks

    def looking(file: BinaryIO) -> Iterator[bytes]:
        looked_at.append([])
        for block in blocks(file):
            looked_at[-1].append(block)
            yield block

    monkeypatch.setattr(file_texts, "_blocks", looking)
    (tmp_path / "file").write_bytes(b"u" * 50 + b"\1" * 50 + b"\0" * 50 + b"u" * 1000)
    assert read_texts(tmp_path / "file").about == "\n".join(["u" * 50, "u" * 1000])
    assert looked_at[0] == [b"u" * 50, b"\1" * 50, bytes(4)]
    assert len(looked_at[1]) == 3 + 1000 // 50


def test_an_array_of_more_than_may_be_taken_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(file_texts, "MAX_TEXT", 100)
    read, whole = list[str](), hdf5.read_whole
    monkeypatch.setattr(hdf5, "read_whole", lambda *of: read.append(of[1]) or whole(*of))
    record = [("id", "i8"), ("x", "f4", 50)]
    for rows, kind in ((13, "i8"), (13, record), (13, [("short", "S4"), ("id", "i8")]), (12, "i8"), (12, record)):
        with h5py.File(tmp_path / "f.h5", "w") as file:
            file["ids"] = np.arange(rows) if kind == "i8" else np.zeros(rows, kind)
        assert read_texts(tmp_path / "f.h5").whole == (rows == 12)
        assert read == ["ids"] * (rows == 12)
        read.clear()


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_no_text_too_long_for_an_id_is_looked_up(tmp_path, monkeypatch):
    """It was kept for the whole audit, with every other text."""
    gone = "\u0390" * 512  # 1,024 bytes; taken apart, 1,536 characters
    store = some_vectors(tmp_path / "store", [gone, *(f"u/{k}" for k in range(20))])
    place = tmp_path / "elsewhere"
    place.mkdir()
    apart = normalize("NFD", gone)
    (place / "ids.csv").write_text(f"id,label\n{apart},3\n")
    (place / "page.html").write_text(f'<img src="{"A" * 5000}">\n<p>{"of some words " * 500}')
    with zipfile.ZipFile(place / "names.npz", "w") as zipped:
        zipped.writestr("n" * 5000, b"")
    taftcache.forget(store, [gone])
    asked, asker = Counter[str](), FeatureStore.asker

    def counting(self: FeatureStore) -> Callable[[str], bool]:
        ask = asker(self)
        return lambda text: asked.update([text]) or ask(text)

    monkeypatch.setattr(FeatureStore, "asker", counting)
    (found,) = taftcache.audit(store, also=[place]).findings
    assert (found.where, found.problem) == (str(place / "ids.csv"), "it holds forgotten ids: 1 (line 2)")
    assert max(map(len, asked)) == len(apart) == 1536
    assert asked["words"] == 1  # which comes again


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_folder_that_may_not_be_read_is_noted(tmp_path, monkeypatch):
    store = some_vectors(tmp_path / "store", [f"u/{k}" for k in range(20)])
    (tmp_path / "elsewhere" / "closed").mkdir(parents=True)
    scandir = os.scandir

    def refused(at: str | int) -> object:
        if str(at).endswith("closed"):
            raise PermissionError(13, "Permission denied", at)
        return scandir(at)

    monkeypatch.setattr(os, "scandir", refused)
    assert not [n for n in taftcache.audit(store, also=[tmp_path / "elsewhere"]).notes if "closed" in n]
    taftcache.forget(store, ["u/1"])
    for also in (tmp_path / "elsewhere", tmp_path / "elsewhere" / "closed"):
        (note,) = [n for n in taftcache.audit(store, also=[also]).notes if "not searched" in n]
        assert note.startswith(f"{also}: 1 folder ({'closed' if also.name == 'elsewhere' else '.'}) not searched")


def test_what_may_not_be_looked_at_is_noted(tmp_path, monkeypatch):
    """A folder that may be listed but not entered, and a link into it; a file that no library reads."""
    store = some_vectors(tmp_path / "store", ["cust/0007", *(f"u/{k}" for k in range(20))])
    (closed := tmp_path / "elsewhere" / "closed").mkdir(parents=True)
    for name in ("a.csv", "cust"):
        (closed / name).write_text("any")
    (tmp_path / "elsewhere" / "link.csv").symlink_to(closed / "a.csv")
    (tmp_path / "elsewhere" / "nowhere.csv").symlink_to(tmp_path / "nothing")
    (tmp_path / "elsewhere" / "odd.txt").write_text("any")
    real, opened = os.stat, Path.open

    def refused(at: str | int, *args: object, **options: object) -> os.stat_result:
        if not isinstance(at, int) and ("closed/" in os.fspath(at) or os.fspath(at).endswith("link.csv")):
            raise PermissionError(13, "Permission denied", at)
        return real(at, *args, **options)

    def odd(self: Path, *args: object, **options: object) -> object:
        if "closed/" in str(self) or self.name == "link.csv":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **options)

    def texts(path: Path) -> FileTexts:
        if path.name == "odd.txt":
            raise ValueError("a fault of a library")
        return read_texts(path)

    taftcache.forget(store, ["cust/0007"])
    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(Path, "open", odd)
    monkeypatch.setattr(judging, "read_texts", texts)
    report = taftcache.audit(store, also=[tmp_path / "elsewhere"])
    (note,) = [n for n in report.notes if "not searched" in n]
    assert "4 files (link.csv, odd.txt, a.csv, cust) not searched" in note.replace("closed/", "")
    assert report.findings == []


def test_a_sign_with_a_number_without_end_hides_no_id(tmp_path):
    store = some_vectors(tmp_path / "store", ["Anna Müller", *(f"u/{k}" for k in range(20))])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "page.html").write_text(f"<td>&#{'9' * 5000};</td><td>Anna M&uuml;ller</td>")
    taftcache.forget(store, ["Anna Müller"])
    (finding,) = taftcache.audit(store, also=[tmp_path / "elsewhere"]).findings
    assert finding.problem == "it holds forgotten ids: 1"


PLAIN = {
    "semi.csv": "id;label\nAnna Müller;3\n",
    "bar.md": "| id | label |\n|---|---|\n| Anna Müller | 3 |\n",
    "after a comma.csv": "3, Anna Müller, x\n",
    "ends.log": "removed Anna Müller.\n",
    "equals.log": "sample=Anna Müller kind=7\n",
    "colours.log": "\x1b[32mAnna Müller\x1b[0m removed\n",
    "ticks.md": "Worst: `Anna Müller`, **u/1**\n",
    "address.log": "GET /x?id=Anna Müller&k=1\n",
    "repr.log": "forgotten: ['u/1', 'Anna Müller']\n",
    "page.html": "<td>Anna M&uuml;ller</td>",
    "lines.json": json.dumps({"log": ["start\nAnna Müller\nend", 3]}),
    "said.json": json.dumps({"log": "see `Anna Müller`, twice"}),
    "escaped.jsonl": json.dumps({"message": json.dumps({"id": "Anna Müller"})}) + "\n{}\n",
    "unclosed.log": 'a "quote\nin "Anna Müller" and "another\n',
    "apart.csv": "id\nAnna Mu\u0308ller\n",
    "apart.txt": "/data/of/Anna Mu\u0308ller\n",
    "latin.csv": "id,label\nAnna Müller,3\n".encode("latin-1"),
    "unmarked.csv": "id\r\nAnna Müller\r\n".encode("utf-16-le"),
    "cut.log": b"\0" * 100 + "Anna Müller removed\n".encode(),
}


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_an_id_of_two_words_is_found_in_any_text(tmp_path, monkeypatch):
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    store = some_vectors(tmp_path / "store", ["Anna Müller", "O'Brien, Pat", *(f"u/{k}" for k in range(20))])
    place = tmp_path / "elsewhere"
    place.mkdir()
    for name, text in PLAIN.items():
        (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (place / "values.sql").write_text("INSERT INTO t VALUES (1,'O''Brien, Pat');\n")
    (place / "other.txt").write_text("Anna is not Müller, nor is Pat O'Brien\n")
    taftcache.forget(store, ["Anna Müller", "O'Brien, Pat"])
    found = {Path(finding.where).name for finding in taftcache.audit(store, also=[place]).findings}
    assert found == {*PLAIN, "values.sql"}


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_ids_that_are_whole_numbers_are_found_in_arrays_and_columns(tmp_path, monkeypatch):
    """The very file that a store was imported from passed; of a number that is perhaps an id, a note is made."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    store = some_vectors(tmp_path / "store", ["203", *map(str, range(1000, 1020))])
    place = tmp_path / "elsewhere"
    place.mkdir()
    ids, labels, pixels = np.arange(1000, 1020), np.arange(20) % 2 + 1003, np.full((2, 3, 4), 1003)
    np.savez(place / "a.npz", id=ids, labels=labels)
    np.savez(place / "no ids.npz", labels=labels, x=pixels, y=ids.astype(float), z=np.arange(200, 220, dtype=np.uint8))
    np.save(place / "ids.npy", ids)
    np.save(place / "perhaps.npy", ids)
    records = np.array([(1003, 1.0)], dtype=[("sample_id", "i4"), ("x", "f4")])
    np.save(place / "records.npy", records)
    np.savez(place / "records.npz", of=records)
    with h5py.File(place / "records.h5", "w") as file:
        file["of"] = records
    with h5py.File(place / "a.h5", "w") as file:
        file["deep/sample_ids"], file["labels"] = ids[:, None], labels
    with h5py.File(place / "bytes.h5", "w") as file:
        file["id"], file["z"] = np.array([203, 1], np.uint8), np.arange(200, 220, dtype=np.uint8)
    with h5py.File(place / "perhaps.h5", "w") as file:
        file["deep/of"], file["x"] = ids, pixels
    found = {"a.npz", "ids.npy", "records.npy", "records.npz", "records.h5", "a.h5", "bytes.h5"}
    perhaps = "perhaps.h5, perhaps.npy"
    if HAS_PARQUET:
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({"id": ids, "label": labels, "at": pa.array(ids, pa.timestamp("s"))})
        parquet.write_table(table, place / "a.parquet")
        parquet.write_table(table.rename_columns(["of", "label", "at"]), place / "perhaps.parquet")
        with pa.ipc.new_stream(place / "saved.arrow", table.schema) as writer:
            writer.write_table(table)
        found |= {"a.parquet", "saved.arrow"}
        perhaps = "perhaps.h5, perhaps.npy, perhaps.parquet"
    taftcache.forget(store, ["203", "1003"])
    report = taftcache.audit(store, also=[place])
    assert {Path(finding.where).name for finding in report.findings} == found
    assert [f"({perhaps}) with a forgotten id that may" in note for note in report.notes if "may mean" in note] == [
        True
    ]


def test_what_is_exported_after_a_request_passes_whatever_the_ids_are(tmp_path):
    """Names of shards and words of taftcache's own stand in every export and report."""
    store = some_vectors(tmp_path / "store", ["000", "mean", "train", "held-out", "id", "-1", *map(str, range(30))])
    taftcache.compose(store)
    taftcache.forget(store, ["000", "mean", "train", "held-out", "id", "-1"])
    place = tmp_path / "after"
    place.mkdir()
    for file, form in (("rows.h5", "hdf5"), ("rows.npz", "npz"), ("tables", "embedding-projector")):
        taftcache.export(store, place / file, format=form)
    taftcache.write_report(store, place / "page.html")
    taftcache.export_component(store, "000", place / "part.safetensors")
    assert not [f for f in taftcache.audit(store, also=[place]).findings if f.kind == "by-product"]


def arrow_files(place: Path, gone: str) -> set[str]:
    """Tables with that id, one of them packed; the names of the others."""
    import pyarrow as pa
    from pyarrow import feather, parquet

    table = pa.table({"image": [{"path": "u/1"}, {"path": gone}], "x": [[1.0], [2.0]]})
    with pa.ipc.new_stream(place / "saved.arrow", table.schema) as writer:
        writer.write_table(table)
    parquet.write_table(pa.table({"who": pa.array([b"\xff", gone.encode()])}), place / "binary.parquet")
    feather.write_feather(table, str(place / "a.feather"))
    return {"saved", "binary"}


def test_the_tombstones_beside_a_store_are_no_by_product(tmp_path):
    """Their hashes looked like the digests of shards, and a note said that what was forgotten may be in there."""
    store = some_vectors(tmp_path / "store", [f"u/{k}" for k in range(20)])
    taftcache.copy(store, tmp_path / "copy")
    for place in (store, tmp_path / "copy"):
        taftcache.forget(place, ["u/3"])
    beside = tmp_path / "copy.forgotten"
    assert taftcache.audit(store, also=[tmp_path]).notes == []
    changed = beside.read_text(encoding="utf-8").replace('"format"', '"shards": ["' + "1" * 64 + '"], "format"')
    (tmp_path / "other.forgotten").write_text(changed)
    (note,) = taftcache.audit(store, also=[tmp_path]).notes
    assert "1 file (other.forgotten) of rows or a state" in note


@pytest.mark.parametrize("size", [640, 896, 1152, 1408, 0x8B1F])
def test_a_component_whose_first_bytes_are_those_of_a_pickle_is_read(tmp_path, size):
    """A header of 640 bytes begins with 80 02, and the file counted as packed: what it says was not looked at."""
    said = json.dumps({"__metadata__": {"taftcache": "base_digest u/7"}})
    for name in ("one.safetensors", "one"):
        (tmp_path / name).write_bytes(size.to_bytes(8, "little") + said.ljust(size).encode())
        read = read_texts(tmp_path / name)
        assert read.whole
        assert "base_digest u/7" in read.about
    for packed in (
        pickle.dumps({"a": 1}, 2),
        pickle.dumps(["{" * 20], 4),
        gzip.compress(b"{}"),
        b"\x80\x02]q\0(X\x01{",
    ):
        (tmp_path / "packed").write_bytes(packed)
        assert not read_texts(tmp_path / "packed").whole


def test_what_is_packed_damaged_or_says_nothing_is_noted(tmp_path):
    store = some_vectors(tmp_path / "store", [f"u/{k}" for k in range(20)])
    place = tmp_path / "elsewhere"
    place.mkdir()
    with open_store(store) as opened:
        gone, shard = opened.shard("000").sample_ids[0], opened.shard("000").at
        taftcache.export_component(opened, "000", place / "before.safetensors")
        taftcache.export_component(opened, "001", place / "stays.safetensors")
    other = some_vectors(place / "other", [f"w/{k}" for k in range(20)])
    taftcache.import_component(other, place / "before.safetensors")
    damaged = shutil.copytree(store, place / "damaged")
    (damaged / f"{shard}.json").write_bytes(b"")
    with tarfile.open(place / "backup.tar.gz", "w:gz") as packed:
        packed.add(store, "store")
    with zipfile.ZipFile(place / "backup.zip", "w") as zipped:
        zipped.writestr("ids.txt", gone)
    (place / "rows.pkl").write_bytes(pickle.dumps([gone]))
    (place / "headed.bin").write_bytes((80 << 20).to_bytes(8, "little") + b"{")
    os.truncate(place / "headed.bin", 81 << 20)  # a header of more than one may have
    taftcache.forget(store, [gone])
    _without_numbers(store)
    report = taftcache.audit(store, also=[place])
    assert [f.where for f in report.findings] == []
    unread, unsure = ([n for n in report.notes if word in n] for word in ("not searched", "no receipt here"))
    assert [note.partition(" (")[0] for note in unread] == [f"{place}: 5 files"]
    assert [note.partition(" (")[0] for note in unsure] == [f"{place}: 2 files"]  # the component, and who took it in
    assert report.unsure == 2
    with pytest.raises(RecipeError, match=r"name one: --also FOLDER$"):
        taftcache.audit(store, strict=True)
    strict = taftcache.audit(store, also=[place], strict=True)
    assert {(f.kind, f.where) for f in strict.findings} == {("undecided", str(place))}
    assert sorted(f"{f.where}: {f.problem}" for f in strict.findings) == sorted([*unread, *unsure])
    assert [n for n in strict.notes if str(place) in n] == []
    (place / "before.safetensors").unlink()
    shutil.rmtree(other)
    assert not [n for n in taftcache.audit(store, also=[place]).notes if "no receipt here" in n]


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_what_was_put_into_another_store_is_found(tmp_path, monkeypatch):
    """Beside what its manifests name; and where it cannot be opened, in all of its folder. No file is read twice."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    gone, place = "cust/0007", tmp_path / "elsewhere"
    store = some_vectors(tmp_path / "store", [f"cust/{k:04d}" for k in range(20)])
    old = shutil.copytree(store, tmp_path / "old")
    taftcache.forget(store, [gone])
    taftcache.copy(store, copy := place / "copy")
    opened = Counter[Path]()
    monkeypatch.setattr(judging, "read_texts", lambda path: (opened.update([path]), read_texts(path))[1])
    assert taftcache.audit(store, also=[place], strict=True).passed
    assert set(opened.values()) == {1}
    assert {path for path in opened if path.is_relative_to(copy)} == {*copy.rglob("*.safetensors")}
    with open_store(copy) as other:
        shard = other.shards[0].at
    (copy / "ids.txt").write_text(f"{gone}\n")
    (copy / shard / "ids.txt").write_text(f"{gone}\n")
    np.savez(copy / "components" / "rows.npz", ids=[gone])
    (copy / "staging" / "old").mkdir(parents=True)
    (copy / "staging" / "old" / "ids.csv").write_text(f"{gone},1\n")
    shutil.copytree(old / "components", copy / "before")
    shutil.copytree(old, copy / "backup" / "of it")
    for name, manifest in (("emptied", b""), ("damaged", b'{"format":"taftcache-store"'), ("app", b'{"name":"app"}')):
        (shutil.copytree(store, place / name) / "manifest.json").write_bytes(manifest)
        (place / name / "ids.txt").write_text(f"{gone}\n")
    (place / "app" / "lock").unlink()
    report = taftcache.audit(store, also=[place])
    found = {str(Path(finding.where).relative_to(place)) for finding in report.findings}
    names = {"ids.txt", f"{shard}/ids.txt", "components/rows.npz", "staging/old/ids.csv", "backup/of it"}
    names |= {f"before/{path.name}" for path in (old / "components").glob("000*")}
    assert found == {
        *(f"copy/{name}" for name in names),
        *(f"{name}/ids.txt" for name in ("emptied", "damaged", "app")),
    }
    (note,) = [note for note in report.notes if "not searched" in note]
    assert note.startswith(f"{place}: 2 folders (damaged, emptied) not searched")


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_forgotten_id_in_the_texts_of_another_store_is_found(tmp_path):
    ids = ["cat", "005", "cust/0007", *(f"u/{k}" for k in range(41))]
    x, y, place = np.random.default_rng(0).normal(size=(44, 6)), np.array(["cat", "dog"] * 22), tmp_path / "elsewhere"
    taftcache.import_vectors(x, y, store := tmp_path / "store", ids=ids, overrides=["store.shards=2"])
    taftcache.import_vectors(x[3:], y[3:], place / "other", ids=ids[3:], overrides=["store.shards=6"])
    taftcache.train(place / "other")  # which has a shard 005
    taftcache.forget(store, ["cat", "005", "cust/0007"])
    for name in ("clean", "recipe", "ledger", "model", "reason"):
        taftcache.copy(store, place / name)
    with open_store(place / "recipe") as other, other.transaction() as change:
        change.update(recipe={**other.manifest.recipe, "forget": {"samples": ["cust/0007"]}})
    with open_store(place / "ledger") as other, other.transaction() as change:
        change.record({"event": "note", "text": "forgot cust/0007, as asked"})
    with open_store(place / "model") as other, other.transaction() as change:
        header = b'{"last": "cust/0007"}'
        change.put("components/other", len(header).to_bytes(8, "little") + header, {})
    with open_store(place / "reason") as other:
        shape = other.shards[0].tokens_shape
        with other.writer("002", "train", tokens_shape=shape, candidates=["new", "odd"]) as writer:
            writer.append(other.shards[0].tokens(slice(0, 1)), ["new"], [0], [Skipped("odd", "as cust/0007")])
            writer.commit()
    findings = taftcache.audit(store, also=[place], strict=True).findings
    assert {(Path(finding.where).name, finding.problem) for finding in findings} == {
        (name, "a store that names forgotten ids: 1") for name in ("recipe", "ledger", "model", "reason")
    }
    (damaged,) = (place / "clean" / "ledger").iterdir()
    damaged.write_bytes(b"")
    report = taftcache.audit(store, also=[place / "clean"])
    assert [note for note in report.notes if "1 folder (.) not searched" in note]


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_ids_that_are_names_are_found(tmp_path, monkeypatch):
    """Of arrays, groups, links, fields, columns and members of an archive; and of the pictures themselves."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    gone, x = "cust/0007", np.zeros(3)
    store = some_vectors(tmp_path / "store", [gone, *(f"u/{k}" for k in range(20))])
    place = tmp_path / "elsewhere"
    for folder in ("cust/0007.d", "of/cust/0007", "of/u/cust"):
        (place / folder).mkdir(parents=True)
    np.savez(place / "keyed.npz", **{"u/1": x, gone: x})
    np.save(place / "fields.npy", np.zeros(2, [("u/1", "f4"), (gone, "f4")]))
    np.savez(place / "fields.npz", rows=np.zeros(2, [(gone, "f4")]))
    for name, key in (("keyed", f"of/{gone}"), ("group", f"{gone}/row"), ("other", "u/cust/00071")):
        with h5py.File(place / f"{name}.h5", "w") as file:
            file["u/1"], file[key], file[b"\xff"] = x, x, x
    for name, link in (("hard", None), ("soft", h5py.SoftLink("/u/1"))):
        with h5py.File(place / f"{name}.h5", "w") as file:
            file["u/1"] = x
            file[gone] = link or file["u/1"]
    with h5py.File(place / "fields.hdf5", "w") as file:
        file["rows"] = np.zeros(2, [(gone, "f4")])
    with zipfile.ZipFile(place / "pictures.zip", "w") as zipped:
        zipped.writestr(f"of/{gone}.png", b"any")
    for name in ("cust/0007", "cust/0007.d/row", "of/cust/0007.png", "of/u/cust/0007.png.txt", "cust/00071.png"):
        (place / name).write_bytes(b"\x89PNG")
    found = {"keyed.npz", "fields.npy", "fields.npz", "keyed.h5", "group.h5", "hard.h5", "soft.h5", "fields.hdf5"}
    found |= {"pictures.zip", "cust/0007", "cust/0007.d", "of/cust/0007", "of/cust/0007.png"}
    if HAS_PARQUET:
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({gone: [1.0]})
        with pa.ipc.new_stream(place / "keyed.arrow", table.schema) as writer:
            writer.write_table(table)
        parquet.write_table(table, place / "keyed.parquet")
        parquet.write_table(pa.table({"rows": [[{gone: [1.0]}]]}), place / "inside.parquet")
        found |= {"keyed.arrow", "keyed.parquet", "inside.parquet"}
    taftcache.forget(store, [gone])
    report = taftcache.audit(store, also=[place])
    assert {str(Path(finding.where).relative_to(place)) for finding in report.findings} == found
    assert {f.problem for f in report.findings if "/" in str(Path(f.where).relative_to(place))} == {
        "its path ends with a forgotten id"
    }


def test_a_name_that_is_a_number_or_a_word_of_taftcache_is_perhaps_no_id(tmp_path):
    """Folders are full of files 0007.png; but of a store whose ids are such names, the picture is found."""
    store = some_vectors(tmp_path / "store", ["7", "0007", "train", "0008.png", *(f"u/{k}" for k in range(20))])
    place = tmp_path / "elsewhere"
    (place / "7").mkdir(parents=True)
    for name in ("0007.png", "7/7.txt", "train.log", "other.png"):
        (place / name).write_bytes(b"\x89PNG")
    np.savez(place / "keyed.npz", **{"7": np.zeros(3)})
    with h5py.File(place / "keyed.h5", "w") as file:
        file["layers/0007"] = np.zeros(3)
    taftcache.forget(store, ["7", "0007", "train", "0008.png"])
    report = taftcache.audit(store, also=[place])
    assert report.findings == []
    (note,) = [note for note in report.notes if "may mean something else" in note]
    assert note.startswith(f"{place}: 5 files (0007.png, keyed.h5, keyed.npz, train.log, 7/7.txt)")
    (place / "0008.png").write_bytes(b"\x89PNG")
    (finding,) = taftcache.audit(store, also=[place]).findings
    assert finding.where == str(place / "0008.png")
    assert "if it only has that name" in finding.do


def test_a_number_beside_others_in_a_text_is_perhaps_no_id(tmp_path):
    store = some_vectors(tmp_path / "store", ["7", *(f"u/{k}" for k in range(20))])
    place = tmp_path / "elsewhere"
    place.mkdir()
    for name, text in (("losses.csv", "epoch,loss\n7,0.3\n"), ("table.md", "|epoch|loss|\n|---|---|\n| 7 | 0.3 |\n")):
        (place / name).write_text(text)
    taftcache.forget(store, ["7"])
    report = taftcache.audit(store, also=[place])
    assert report.findings == []
    (note,) = [note for note in report.notes if "may mean something else" in note]
    assert note.startswith(f"{place}: 2 files (")
    for name, text in (("ids.csv", "loss,sample_id\n0.3,7\n"), ("ids.md", "# A\n\n| id | y |\n|--|--|\n| 7 | 3 |\n")):
        (place / name).write_text(text)
    (place / "list.txt").write_text("u/3\n7\nu/4\n")
    found = {Path(finding.where).name for finding in taftcache.audit(store, also=[place]).findings}
    assert found == {"ids.csv", "ids.md", "list.txt"}


def test_a_plain_word_as_a_name_may_be_that_of_anything(tmp_path):
    """Of a file, of a folder, and of one that lies in another store; and a name with another suffix, of an image."""
    store = some_vectors(
        tmp_path / "store", ["backup", "docs", "0001.jpg", "c/0002.jpg", *(f"u/{k}" for k in range(20))]
    )
    place = tmp_path / "elsewhere"
    taftcache.forget(store, ["backup", "docs", "0001.jpg", "c/0002.jpg"])
    taftcache.copy(store, place / "copy")
    for folder in ("docs", "of/backup", "copy/docs", "of/c"):
        (place / folder).mkdir(parents=True)
    for name in ("backup", "docs/any.txt", "of/0001.txt", "of/0001", "of/c/0002.npy", "of/0002.npy"):
        (place / name).write_text("nothing of anyone")
    report = taftcache.audit(store, also=[place])
    assert report.findings == []
    (note,) = [note for note in report.notes if "may mean something else" in note]
    assert note.startswith(f"{place}: 7 files (")
    for name in ("of/0001.jpg", "of/0001.JPG"):
        (place / name).write_text("nothing of anyone")
    assert [f.where for f in taftcache.audit(store, also=[place]).findings] == [str(place / "of/0001.jpg")]
