"""What leaves a store with a private model: no function of the rows but what the promise covers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import app
from taftcache.consent import recorded_recipe
from taftcache.errors import FormatError
from taftcache.model.card import _promise
from taftcache.model.component import PUBLIC, Component, put_component, read_base, read_component
from taftcache.model.description import Description
from taftcache.model.folder import open_model
from taftcache.model.meta import TRAINED_ON
from taftcache.names import PRIVATE, epsilon_text
from taftcache.privacy.statement import NOT_COVERED
from taftcache.stages.train.private import preparing
from taftcache.stages.train.private.records import KEYS, read_keys
from taftcache.stages.train.record import settings_of
from taftcache.terminal.forgetting import show_audit
from tests.keys import make_key
from tests.seeded import seeded_noise
from tests.stages.making import open_store, settings

COMPONENT = {"kind", "train", "shards", "rows", "stats", "norm", "privacy"}
COMPOSITION = {"kind", "coefficients", "norm", "privacy"}
STATEMENT = {
    "private", "relation", "mechanism", "epsilon", "delta", "releases", "clip", "sensitivity", "unit", "shards",
    "noise", "tuning", "not_covered",
}  # fmt: skip
ADDED = {TRAINED_ON, "numbers"}  # to what the store has: the second is a digest of Δw
# Settings and the frozen layers: nothing here is a function of the rows.
FEATURE_NAMES = {
    "backbone.model", "backbone.features", "backbone.precision", "backbone.weights_digest", "backbone.file_digest",
    "cut.start", "cut.rows", "cut.shape", "preprocess.input_size", "preprocess.mean", "preprocess.std",
    "preprocess.interpolation", "preprocess.crop_pct", "preprocess.crop_mode",
    *(f"backbone.model_args.{key}" for key in ("img_size", "patch_size", "embed_dim", "depth", "num_heads",
                                               "global_pool")),
}  # fmt: skip
JOINT = {"private", "relation", "epsilon", "delta", "composition", "members", "not_covered"}


def header(file: Path) -> dict[str, Any]:
    """All that a component's file says beside its numbers."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["taftcache"])


def digests_of_rows(store: FeatureStore) -> set[str]:
    """Every digest in the store's manifests that depends on the rows."""
    manifest = store.manifest
    found = {manifest.digest, manifest.content_digest}
    for ref in manifest.shards:
        found |= {ref.digest, *(part.digest for part in store.shard(ref.name).manifest.objects.values())}
    return found


def leave(store: FeatureStore, folder: Path) -> list[Path]:
    """Everything private that may leave: both kinds of files, for a component and for the composition."""
    folder.mkdir()
    for name in ("components/000", "models/mean"):
        leaf = name.partition("/")[2]
        taftcache.export_component(store, name, folder / f"{leaf}.safetensors")
        taftcache.export_model(store, folder / leaf, name)
    return [file for file in folder.rglob("*") if file.is_file()]


def test_no_digest_of_the_rows_leaves(private, tmp_path):
    with FeatureStore(private) as store:
        digests = digests_of_rows(store)
        for file in leave(store, tmp_path / "out"):
            data = file.read_bytes()
            assert [d for d in digests if d[:16].encode() in data] == [], file
    assert open_model(tmp_path / "out" / "mean", device="cpu").component.meta[PRIVATE]["epsilon"] <= 8
    report = taftcache.export_model(tmp_path / "out" / "mean", tmp_path / "program", program=True)
    assert (report.files, report.root_digest) == (["README.md", "about.json", "program.pt2"], "")
    assert "differential privacy" in (tmp_path / "program" / "README.md").read_text(encoding="utf-8")
    about = (tmp_path / "program" / "about.json").read_text(encoding="utf-8")
    assert [d for d in digests if d[:16] in about] == []


def swap_a_row(path: Path) -> None:
    """Another row under an id of shard 000, and nothing else: a neighbour of the store."""
    with open_store(path) as store:
        old = store.shard("000")
        tokens, labels = old.tokens(slice(0, old.rows)).copy(), old.labels.copy()
        ids, shape, size = old.sample_ids, old.tokens_shape, old.chunk_rows
        tokens[3], labels[3] = tokens[4] + 1, (labels[3] + 1) % len(store.classes)
        with store.transaction() as change:
            change.drop_shard("000")
        with store.writer("000", "train", chunk_rows=size, tokens_shape=shape, candidates=ids) as writer:
            writer.append(tokens, ids, labels)
            writer.commit()


@contextmanager
def trained_copy(finished: Path, path: Path) -> Iterator[FeatureStore]:
    """A copy of the store at ``path``, trained with the same noise as any; one called "other" has another row."""
    shutil.copytree(finished, path)
    if path.name == "other":
        swap_a_row(path)
    with open_store(path) as store:
        with seeded_noise():
            taftcache.train_private(store, settings(store))
        taftcache.compose(store)
        yield store


def test_neighbours_leave_alike_but_for_what_is_noisy(finished, tmp_path):
    """With the same noise in both: beside Δw and its norm, all that leaves is equal to the byte."""
    said = []
    for name in ("one", "other"):
        with trained_copy(finished, tmp_path / name) as store:
            leave(store, tmp_path / f"{name}-out")
        out = tmp_path / f"{name}-out"
        told = [header(out / f"{leaf}.safetensors") for leaf in ("000", "mean")]
        told += [json.loads((out / leaf / "taftcache.json").read_text(encoding="utf-8")) for leaf in ("000", "mean")]
        assert [t.pop("digest", "") == "" for t in told] == [True, True, False, False]  # of Δw
        for described in told[2:]:  # a moved head is part of the network, whose digests are of Δw, too
            assert described.pop("weights_digest")
            assert described["files"].pop("model.safetensors")
        assert all((t.get("meta") or t["component"]).pop("norm") > 0 for t in told)
        assert len({t["meta"].pop("numbers") for t in told[:2]}) == 2  # of Δw, too
        said.append((told, [(out / leaf / "README.md").read_text(encoding="utf-8") for leaf in ("000", "mean")]))
    assert said[0] == said[1]


def test_what_the_store_itself_says_of_a_component_is_random_or_noisy(finished, tmp_path):
    metas, keys = [], []
    for name in ("one", "other"):
        with trained_copy(finished, tmp_path / name) as store:
            objects = {n: dict(ref.meta) for n, ref in store.objects().items() if PRIVATE in ref.meta}
            keys += [objects[f"components/00{k}"].pop("key") for k in (0, 1)]
            assert set(read_keys(store)) == set(keys[-2:])
        for meta in objects.values():
            for of_the_numbers in (
                "norm",
                "members",
                "key",
                "identity_error",
            ):  # members' digests: of their numbers and random keys
                meta.pop(of_the_numbers, None)
        metas.append(objects)
    assert metas[0] == metas[1]
    assert len(set(keys)) == 4
    assert all(len(key) == 32 for key in keys)


def test_fields_that_leave_are_listed(private, finished, tmp_path):
    """A field more is a decision: it must be shown to be no function of the rows, and then listed here too."""
    with FeatureStore(private) as store:
        leave(store, tmp_path / "out")
    for leaf, fields, statement in (("000", COMPONENT, STATEMENT), ("mean", COMPOSITION, JOINT)):
        file, folder = header(tmp_path / "out" / f"{leaf}.safetensors"), tmp_path / "out" / leaf
        described = json.loads((folder / "taftcache.json").read_text(encoding="utf-8"))
        assert set(file) == {"base_digest", "meta"}
        assert set(file["meta"]) == {*fields, "rows", *ADDED}, "of a mean, the sum of what its members released"
        assert set(file["meta"][TRAINED_ON]) == {"classes", "features", "objective", "tangent"}, "no rows per class"
        assert set(file["meta"][TRAINED_ON]["features"]) == FEATURE_NAMES
        assert set(described["component"]) == fields
        assert set(file["meta"]["privacy"]) == set(described["component"]["privacy"]) == statement
        for member in file["meta"]["privacy"].get("members", ()):
            assert set(member) == STATEMENT - {"not_covered"}
        assert set(file["meta"].get("stats", {"rows_said", "learning_rate"})) == {"rows_said", "learning_rate"}
        assert described["root_digest"] == ""
        model = open_model(folder, device="cpu")
        model.temperature = 2.0  # held-out rows, to which one is fitted, are not covered
        taftcache.save_model(model, tmp_path / f"again-{leaf}", name=leaf, root_digest="1" * 64)
        again = json.loads((tmp_path / f"again-{leaf}" / "taftcache.json").read_text(encoding="utf-8"))
        assert again["root_digest"] == ""
        assert again.keys() == described.keys()
        assert "softmax" not in (tmp_path / f"again-{leaf}" / "README.md").read_text(encoding="utf-8")
    # "features" is a setting of the recipe's, said where it is another than the usual; "notes", where one is outdated.
    assert set(Description.__struct_fields__) - {"features", "temperature", "notes"} == set(described) == {
        "format", "model", "classes", "backbone", "weights_digest", "preprocess", "tangent", "tail", "base_digest",
        "digest", "component", "root_digest", "versions", "files",
    }  # fmt: skip
    with FeatureStore(finished) as store:
        taftcache.export_component(store, "000", tmp_path / "plain.safetensors")
        plain = header(tmp_path / "plain.safetensors")["meta"]
        assert set(plain) == {
            "kind", "train", "shards", "rows", "converged", "status", "stats", "convergence", "certificate", "norm",
            *ADDED,
        }  # fmt: skip
        assert set(plain) - ADDED < set(PUBLIC)
        report = taftcache.export_model(store, tmp_path / "plain")
        assert open_model(report.folder, device="cpu").component.meta.keys() <= set(PUBLIC)
        said = json.loads((report.folder / "taftcache.json").read_text(encoding="utf-8"))
        assert said.keys() == described.keys() | {"temperature"}
        assert said["root_digest"] == store.root_digest


def rewritten(store: FeatureStore, name: str, **fields: Any) -> None:
    """The component with other fields in file and manifest."""
    component = read_component(store, name, read_base(store, recorded_recipe(store).tangent))
    meta = {**component.meta, **fields}
    with store.transaction() as change:
        put_component(change, name, Component(component.base_digest, component.layout, component.delta, meta))


def test_a_field_more_stays(private, tmp_path):
    with open_store(private) as store:
        meta = store.objects()["components/000"].meta
        rewritten(store, "components/000", largest=[1.5], stats={**meta["stats"], "clipped": 0.25})
        taftcache.export_component(store, "000", tmp_path / "one.safetensors")
    assert set(header(tmp_path / "one.safetensors")["meta"]) == {*COMPONENT, *ADDED}
    assert set(header(tmp_path / "one.safetensors")["meta"]["stats"]) == {"rows_said", "learning_rate"}


def test_forgetting_clears_what_the_key_stood_for(private):
    with open_store(private) as store:
        old, other = store.shard("000").digest, store.shard("001").digest
        keys = read_keys(store)
        taftcache.forget(store, [store.shard("000").sample_ids[0]])
        left = read_keys(store)
        assert left == {key: text for key, text in keys.items() if other in text}
        assert not any(old.encode() in store.read_object(name) for name in store.objects())
        assert KEYS not in store.ledger()[-1]["destroyed"]
        kept = taftcache.train_private(store, shards=["001"])
        assert kept.kept == ["components/001"]
        taftcache.forget(store, [store.shard("001").sample_ids[0]])
        assert KEYS not in store.objects()
    assert taftcache.audit(private).findings == []


def test_the_card_says_the_promise(private, tmp_path):
    with FeatureStore(private) as store:
        leave(store, tmp_path / "out")
        for leaf in ("000", "mean"):
            text = (tmp_path / "out" / leaf / "README.md").read_text(encoding="utf-8")
            said = store.objects()["components/000"].meta[PRIVATE]
            assert f"(ε, δ) = ({epsilon_text(said['epsilon'])}, 1e-05)" in text
            assert "replace-one" in text
            assert all(f"- {line}" in text for line in NOT_COVERED)
            assert "root digest" not in text
            assert "minimiser" not in text
            assert "anything about privacy" not in text


@pytest.mark.parametrize(
    ("relation", "one"),
    [("add-remove", "one row more or less"), ("replace-one", "another row under the id of one")],
)
def test_the_card_says_of_which_data_sets_it_promises_and_of_what_tuning(relation, one):
    said = {"private": True, "relation": relation, "epsilon": 2.0, "delta": 1e-5, "not_covered": [], "tuning": "by eye"}
    card = "\n".join(_promise(said))
    assert f"with {one} in the data" in card
    assert "How the settings were chosen: by eye." in card
    assert "of k of them together it promises k times ε,\nwith a larger δ." in card  # of those forgotten since
    card = "\n".join(_promise({**said, "private": False}))
    assert "None: its noise came from a seed" in card
    assert "(ε, δ)" not in card


def test_components_of_unlike_neighbours_compose_to_a_model_without_a_promise(private):
    with open_store(private) as store:
        said = store.objects()["components/001"].meta[PRIVATE]
        rewritten(store, "components/001", privacy={**said, "relation": "add-remove"})
        (note,) = taftcache.compose(store).notes
        assert note.endswith("its members promise of unlike neighbours")
        assert PRIVATE not in store.objects()["models/mean"].meta


def test_a_mean_of_private_and_other_components_says_what_it_is(private, tmp_path):
    """Not that Δw minimises anything, nor where it is from: the store's root is a digest of the private rows too."""
    with open_store(private) as store:
        parcel = taftcache.export_component(store, "000", tmp_path / "one.safetensors").file
        notes = taftcache.import_component(store, parcel, "away").notes
        assert any("promise of privacy is not taken over" in note for note in notes)
        note, twins = taftcache.compose(store).notes
        assert twins.startswith("the same component under 2 names")
        lost = "models/mean promises no privacy and has no epsilon, beside private members: "
        assert note == lost + "components/away made without"
        assert PRIVATE not in store.objects()["models/mean"].meta
        away = read_component(store, "components/away", read_base(store, recorded_recipe(store).tangent))
        (tmp_path / "plain.safetensors").write_bytes(away.encode())
        (note,) = taftcache.import_component(store, tmp_path / "plain.safetensors", "plain").notes[-1:]
        assert note.startswith("it promises no privacy, so no sum with it has an ε")
        note, _ = taftcache.compose(store).notes
        assert note == lost + "components/away, components/plain made without"
        taftcache.export_model(store, tmp_path / "mean", "models/mean")
        taftcache.export_model(store, tmp_path / "away", "components/away")
        root = store.root_digest
    assert note in " ".join(CliRunner().invoke(app, ["train", str(private), "--private"]).output.split())
    text = (tmp_path / "mean" / "README.md").read_text(encoding="utf-8")
    assert "a weighted sum of 4 components: 2 of them trained with differential privacy, by noisy sums over" in text
    assert "2 of them imported from another store" in text
    assert "Composed of 4 components; the sum has no ε." in text
    assert not any(word in text for word in ("each the minimiser", "certificate", "Held out"))
    text = (tmp_path / "away" / "README.md").read_text(encoding="utf-8")
    assert "Taken in from a file" in text
    assert not any(word in text for word in ("minimiser", "Composed of"))
    for leaf in ("mean", "away"):
        assert all(
            root[:16].encode() not in file.read_bytes() for file in (tmp_path / leaf).iterdir() if file.is_file()
        )


@pytest.mark.parametrize(("value", "text"), [(7.99913, "8"), (10.2146, "10.22"), (2.0, "2"), (0.0999894, "0.09999")])
def test_epsilon_is_rounded_up(value, text):
    assert epsilon_text(value) == text


def test_noise_of_a_seed_is_no_promise_on_the_card(store, tmp_path):
    with open_store(store) as opened:
        with seeded_noise():
            taftcache.train_private(opened, settings(opened))
        taftcache.export_model(opened, tmp_path / "model", "components/000")
    assert "None: its noise came from a seed" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_a_composition_is_proved_on_rows_that_are_not_private(private, monkeypatch):
    """Without held-out rows the identity would be checked on training rows, and its rounding error told."""
    from taftcache.stages.train import compositions

    asked = []
    real = compositions.proof_rows
    monkeypatch.setattr(compositions, "proof_rows", lambda rows, base: asked.append(rows) or real(rows, base))
    with open_store(private) as store:
        with store.transaction() as change:
            change.drop_shard(store.held_out.name)
            change.drop("models/mean")
        taftcache.compose(store)
    assert asked[-1] is None


# ---- claims that do not follow ----


def test_a_claim_in_a_file_that_does_not_follow_is_found_and_stays(private, tmp_path):
    with open_store(private) as store:
        claim = {**store.objects()["models/mean"].meta[PRIVATE], "epsilon": 0.01, "delta": 1e-30}
        mean = read_component(store, "models/mean", read_base(store, recorded_recipe(store).tangent))
        told = Component(mean.base_digest, mean.layout, mean.delta, {**mean.meta, PRIVATE: claim})
        with store.transaction() as change:  # in the file alone; the manifest says what it said
            change.put("models/mean", told.encode(), store.objects()["models/mean"].meta)
        for leaving in (
            lambda: taftcache.export_model(store, tmp_path / "model"),
            lambda: taftcache.export_component(store, "models/mean", tmp_path / "mean.safetensors"),
        ):
            with pytest.raises(FormatError, match="does not follow"):
                leaving()
        assert list(tmp_path.glob("m*")) == []
    problems = [f.problem for f in taftcache.audit(private).findings if f.kind == "privacy statement"]
    assert any("its members give" in problem for problem in problems)
    assert any("file does not say" in problem for problem in problems)


def test_seeded_noise_called_private_is_found(store):
    with open_store(store) as opened:
        with seeded_noise():
            taftcache.train_private(opened, settings(opened), shards=["000"])
        said = opened.objects()["components/000"].meta[PRIVATE]
        rewritten(opened, "components/000", **{PRIVATE: {**said, "private": True}})
    assert [f.problem for f in taftcache.audit(store).findings if f.kind == "privacy statement"] == [
        "the ledger does not have what its training released"
    ]


def test_signed_receipts_beside_private_trainings(private, tmp_path, capsys):
    pytest.importorskip("cryptography")
    key = tmp_path / "key.pem"
    public = make_key(key)
    with open_store(private) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[0]], signing_key=key)
    report = taftcache.audit(private, public_key=public)
    assert (report.findings, report.receipts, report.signed) == ([], 1, 1)
    show_audit(report)  # of two trainings that are not signed, and the receipt
    assert f"1 receipt in one chain, 1 of 3 entries signed by {public[:8]}; " in capsys.readouterr().out


def test_the_mapping_is_text_of_one_kind(private):
    with open_store(private) as store:
        with store.transaction() as change:
            change.put(KEYS, b"[]", suffix=".json")
        with pytest.raises(FormatError, match="not what taftcache writes"):
            taftcache.train_private(store)
        with store.transaction() as change:
            change.drop(KEYS)
        assert read_keys(store) == {}
        key = preparing.private_key(settings_of(store), store.shard("000"), [1.0])
        assert msgspec.json.decode(key)["rows"] == [store.shard("000").digest]
