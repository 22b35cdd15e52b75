"""What ``inspect`` says, against the rows themselves; and that saying it reads neither all rows nor torch."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import StoreError
from taftcache.names import INTERRUPTED_KEY, is_model
from taftcache.stages.look.inside.statistics import OUTLIER, SAMPLED_CHUNKS, SAMPLED_ROWS, activations
from taftcache.stages.look.inside.stores import look_at_files
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.seen import saw
from tests.stages.forging import forge_meta
from tests.stages.making import open_store, recipe


def all_rows(store):
    shards = [*store.shards, store.held_out]
    return np.concatenate([s.tokens(slice(0, s.rows)) for s in shards]).astype(np.float64)


def test_statistics_of_few_rows_are_those_of_all(finished, monkeypatch):
    """With a sample as large as the store."""
    monkeypatch.setattr("taftcache.stages.look.inside.statistics.SAMPLED_CHUNKS", 50)
    with FeatureStore(finished) as store:
        x, found = all_rows(store), activations(store)
    norms = np.linalg.norm(x, axis=2)
    rms = np.sqrt((x**2).mean((0, 1)))
    s = found.sampled
    assert (s["rows"], s["of"]) == (len(x), len(x))
    assert list(s["norm_quantiles"].values()) == pytest.approx(np.percentile(norms, [0, 5, 50, 95, 100]).tolist())
    assert s["largest_channels"][0] == pytest.approx(
        {"channel": rms.argmax(), "rms": rms.max(), "ratio": rms.max() / np.median(rms)}, rel=1e-5
    )
    assert s["outlier_channels"] == (rms > OUTLIER * np.median(rms)).sum()
    assert s["zeros"] == pytest.approx((x == 0).mean())
    assert s["subnormal"] == pytest.approx(((x != 0) & (np.abs(x) < 2.0**-14)).mean())
    assert s["not_finite"] == 0
    assert found.gathered["max_abs"] == np.abs(x).max()
    assert found.gathered["headroom"] == pytest.approx(65504 / np.abs(x).max())
    assert found.gathered["mean_token_norm"] == pytest.approx(norms.mean(), rel=1e-6)


@pytest.mark.law("A look at a store reads a few chunks at any size, loads no torch and writes nothing")
def test_statistics_read_a_few_chunks_however_many_there_are(tmp_path, monkeypatch):
    from taftcache.cache.read.shard import Shard

    with FeatureStore.create(tmp_path / "many", identity={"cut": {}}, classes=["a", "b"], plan={}, recipe={}) as store:
        rng = np.random.default_rng(0)
        ids = [f"s{k}" for k in range(400)]
        with store.writer("000", "train", chunk_rows=4, tokens_shape=(2, 3), candidates=ids) as writer:
            rows = rng.standard_normal((400, 2, 3)).astype(np.float16)
            rows[:, :, 1] *= 40
            writer.append(rows, ids, np.arange(400) % 2)
            writer.commit()
        read: list[slice] = []
        tokens = Shard.tokens
        monkeypatch.setattr(Shard, "tokens", lambda self, rows: read.append(rows) or tokens(self, rows))
        found = activations(store).sampled
    assert len(read) == SAMPLED_CHUNKS
    assert all(part.stop - part.start <= min(4, SAMPLED_ROWS) for part in read)
    assert (read[0].start, read[-1].stop) == (0, 400)
    assert (found["rows"], found["of"]) == (32, 400)
    assert found["outlier_channels"] == 1
    assert found["largest_channels"][0]["channel"] == 1


def test_a_missing_file_is_seen_without_reading(store):
    with FeatureStore(store) as opened:
        assert taftcache.inspect(opened).integrity.missing == []
        shard = opened.shards[0]
        (store / shard.at / "tokens" / "c.1.0.0").unlink()
        found = taftcache.inspect(opened).integrity
        assert found.missing == [f"{shard.at}/tokens/c.1.0.0"]
        assert "1 of" in found.text
        (store / opened.objects()["models/mean"].path).unlink()
        assert len(look_at_files(opened).missing) == 2


def test_lists_the_key_and_the_ledger_are_among_the_files_that_are_counted(store):
    """They were not, so that "34 files there" was said where the tombstones' key was gone."""
    with open_store(store) as opened:
        taftcache.forget(opened, opened.shards[0].sample_ids[:1])
        taftcache.forget(opened, opened.shards[0].sample_ids[:1])
        (entry, _), (hashes,) = sorted((store / "ledger").iterdir()), (store / "lists").glob("tombstones-*")
        there = {f for f in store.rglob("*") if f.is_file() and f.name not in ("lock", "manifest.json")}
        assert look_at_files(opened).files == len(there)
        for file in (store / "tombstones.key", hashes):
            file.unlink()
            where = file.relative_to(store).as_posix()
            assert where in taftcache.inspect(opened).integrity.missing
        entry.unlink()
        assert look_at_files(opened).missing == ["ledger/000001-*.json", f"lists/{hashes.name}", "tombstones.key"]
        shutil.rmtree(store / "ledger")
        (store / "ledger").write_bytes(b"")
        assert len(look_at_files(opened).missing) == 4


@pytest.mark.law("A store that an extraction has not finished says so wherever it is read")
def test_a_store_that_is_not_finished_says_so(store, capsys):
    with FeatureStore(store) as whole:
        assert taftcache.inspect(whole).notes == []
        assert taftcache.audit(store).notes == []
    with open_store(store) as opened:
        with opened.transaction() as change:
            change.drop_shard("held-out")
        said = "shards here: 2 of 3; taftcache extract, run again, makes the others; without the file of the recipe: "
        file = f"{store.name}-recipe.toml"
        said += f"taftcache inspect {store} --recipe > {file} && taftcache extract {file}"
        assert taftcache.inspect(opened).notes == [said]
        assert taftcache.train(opened).notes == [said]
        with pytest.raises(StoreError, match="no held-out rows") as error:
            taftcache.evaluate(opened)
        assert error.value.do == said
    assert said in taftcache.audit(store).notes
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", str(store)])
    assert "shards here: 2 of 3" in " ".join(capsys.readouterr().out.split())


def test_a_class_and_a_shard(finished):
    with FeatureStore(finished) as store:
        table = RowTable.of(store)
        for label in ("3", "7"):
            report = taftcache.inspect_class(store, label)
            rows = table.label == int(label)
            assert (report.rows, report.held_out_rows) == (
                (rows & ~table.held_out).sum(),
                (rows & table.held_out).sum(),
            )
            assert report.share == pytest.approx((rows & ~table.held_out).sum() / (~table.held_out).sum())
            assert {store.locate(i)[0].labels[store.locate(i)[1]] for i in report.first_samples} <= {int(label)}
        shard = taftcache.inspect_shard(store, "001")
        assert sum(shard.rows_per_class.values()) == shard.shard.rows == store.shard("001").rows
        assert shard.component["name"] == "components/001"
        assert taftcache.inspect_shard(store, "held-out").component is None
        with pytest.raises(StoreError):
            taftcache.inspect_class(store, "cat")


def test_a_samples_predictions_are_those_of_evaluate(finished):
    with FeatureStore(finished) as store:
        held = store.held_out
        reports = [taftcache.inspect_sample(store, name) for name in held.sample_ids]
        accuracy = taftcache.evaluate(store).accuracy
        for name in ("models/mean", "components/000"):
            right = np.mean([r.predictions[name]["label"] == r.label for r in reports])
            assert right == pytest.approx(accuracy[name])
        assert all(
            (r.predictions[n]["margin"] > 0) == (r.predictions[n]["label"] == r.label)
            for r in reports
            for n in r.predictions
        )
        assert reports[0].moved_bound is None
        assert taftcache.inspect_sample(store, store.shards[0].sample_ids[0]).moved_bound > 0


def test_convergence_is_kept_and_thinned(tmp_path):
    from taftcache.stages.train.solving import thinned

    taftcache.run(recipe(tmp_path / "store", solver={"tolerance": 1e-4}, data={"source": "digits", "limit": 80}))
    with FeatureStore(tmp_path / "store") as store:
        (model, *_) = [m for m in taftcache.inspect(store).models if m["name"] == "components/000"]
    assert all(len(point) == 2 for point in model["convergence"])
    long = [[k, 1.0 / k] for k in range(1, 1001)]
    assert len(thinned(long)) <= 200
    assert (thinned(long)[0], thinned(long)[-1]) == (long[0], long[-1])
    assert thinned(long[:200]) == long[:200]


def test_what_the_options_of_inspect_answer_public_functions_do(solved, capsys):
    sample = FeatureStore(solved).held_out.sample_ids[0]
    for options, found in (
        (["--sample", sample], taftcache.inspect_sample(solved, sample)),
        (["--shard", "001"], taftcache.inspect_shard(solved, "001")),
        (["--class", "7"], taftcache.inspect_class(solved, "7")),
        (["--ids"], taftcache.list_samples(solved)),
        (["--ids", "--shard", "001", "--class", "7"], taftcache.list_samples(solved, shard="001", label="7")),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["inspect", str(solved), *options])
        printed = capsys.readouterr().out
        taftcache.show(found)
        assert capsys.readouterr().out == printed
        assert printed
    taftcache.show([])
    assert capsys.readouterr().out == ""


@pytest.mark.law("A look at a store reads a few chunks at any size, loads no torch and writes nothing")
@pytest.mark.parametrize(
    "code",
    [
        "from taftcache import FeatureStore, inspect; inspect(FeatureStore({path!r}))",
        "from pathlib import Path; "
        "from taftcache import FeatureStore, inspect_class, inspect_component, inspect_shard, list_samples; "
        "s = FeatureStore({path!r}); inspect_shard(s, '000'); inspect_class(s, '7'); list_samples(s); "
        "inspect_component(next(Path({path!r}, 'components').iterdir()))",
        "from taftcache import FeatureStore; from taftcache.view.atlas import Atlas; "
        "from taftcache.view.server import ViewServer; ViewServer(Atlas(FeatureStore({path!r}))).close()",
    ],
)
def test_looking_loads_no_torch(finished, code):
    text = code.format(path=str(finished)) + "; import sys; print({'torch', 'timm', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def seen(store) -> dict[str, dict[str, str]]:
    return {name: saw(store, name) for name in store.objects() if is_model(name)}


@pytest.mark.law("A row that came after a model was trained is not said to be one that it saw")
def test_what_a_model_saw_is_what_its_keys_say(images, tmp_path):
    """It was judged by shard, so that rows appended since counted as trained on, as did shards of later training."""
    source = shutil.copytree(images, tmp_path / "images")
    asked = recipe(tmp_path / "store", data={"source": "folder", "train": str(source)}, compose={"mode": "exact"})
    taftcache.run(asked)
    sums = ("models/mean", "models/exact", "models/head")
    with open_store(tmp_path / "store") as store:
        both = {"000": "yes", "001": "yes"}
        assert seen(store) == {f"components/{k}": {k: "yes"} for k in both} | dict.fromkeys(sums, both)
    shutil.copy(sorted((source / "0").iterdir())[0], source / "1" / "new.png")
    (grown,) = (name for name, rows in taftcache.append(asked).added.items() if rows)
    with open_store(tmp_path / "store") as store:
        perhaps = both | {grown: "perhaps"}
        single = {f"components/{k}": {k: said} for k, said in perhaps.items()}
        assert seen(store) == single | dict.fromkeys(sums, perhaps)
        taftcache.train(store)
        assert seen(store)[f"components/{grown}"] == {grown: "yes"}
        assert {name: saw(store, name) for name in sums[:2]} == dict.fromkeys(sums[:2], perhaps)
        taftcache.compose(store)
        assert {name: saw(store, name) for name in sums} == dict.fromkeys(sums, both)
    shutil.copy(sorted((source / "0").iterdir())[1], source / "1" / "newer.png")
    taftcache.append(asked, new_shard=True)
    with open_store(tmp_path / "store") as store:
        taftcache.train(store)
        assert saw(store, "components/002") == {"002": "yes"}
        assert {name: saw(store, name) for name in sums[:2]} == dict.fromkeys(sums[:2], both)


def test_what_others_saw(exact, private, tmp_path):
    """A private component's key is random; a component from elsewhere saw other rows; one that was stopped has no key;
    and a coefficient may be zero."""
    with open_store(private) as store:
        assert seen(store)["models/mean"] == {"000": "yes", "001": "yes"}
        with store.transaction() as change:
            change.drop("state/private-keys")
        assert seen(store)["components/000"] == {"000": "perhaps"}
    with open_store(exact) as store:
        taftcache.export_component(store, "models/mean", tmp_path / "mean.safetensors")
        taftcache.import_component(store, tmp_path / "mean.safetensors", "elsewhere")
        assert saw(store, "components/elsewhere") == {}
    forge_meta(exact, "components/000", lambda meta: {**meta, "key": INTERRUPTED_KEY})
    forge_meta(exact, "models/mean", lambda meta: {**meta, "coefficients": {"components/000": 0, "components/001": 1}})
    with open_store(exact) as store:
        assert saw(store, "components/000") == {"000": "perhaps"}
        assert saw(store, "models/mean") == {"001": "yes"}
