"""The command line: exit codes, what is said on which stream, and JSON whose keys stay."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import app, main
from taftcache.cli.options import complete_recipe
from tests import forked
from tests.stages.conftest import finished, images, photographed, quick, store  # noqa: F401
from tests.stages.making import open_store, recipe, toml, tree, write_images
from tests.stages.test_damage import chunk_of, flip

COMMANDS = [name for name, command in get_command(app).commands.items() if not command.hidden]
# One serves until it is ended; the others' reports are read in tests/stages/test_private.py and tests/teaching/.
ELSEWHERE = {"view", "teach", "push"}


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys, monkeypatch):
    """Call the entry point as a shell would."""
    monkeypatch.setenv("COLUMNS", "200")  # for the tables; errors are never wrapped

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        return Outcome(ended.value.code or 0, *capsys.readouterr())

    return call


def refused(outcome: Outcome, code: int, *says: str) -> None:
    """The exit code, nothing on stdout, and an error in the form that all of them have."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("taftcache: ")
    assert "Traceback" not in outcome.err
    assert "\n  try: " in outcome.err
    for text in says:
        assert text in outcome.err, (text, outcome.err)


RUN = {"store", "root_digest", "extract", "train", "compose", "evaluate", "forget", "seconds"}
EXTRACT = {"store", "root_digest", "shards", "images", "skipped", "seconds", "bytes", "notes"}
TRAIN = {"store", "root_digest", "trained", "kept", "certificates", "seconds", "notes"}
COMPOSE = {"store", "root_digest", "model", "members", "identity_error", "changed", "models", "left_out"}
COMPOSE |= {"certificate", "moved", "passes", "seconds"}
EVALUATE = {"store", "root_digest", "rows", "accuracy", "best", "intervals", "against", "proven", "notes"}
PREDICT = {"store", "root_digest", "model", "predictions"}
EXPORT_MODEL = {"store", "root_digest", "model", "folder", "files", "bytes"}
INSPECT = {
    "store",
    "root_digest",
    "bytes",
    "rows",
    "classes",
    "rows_per_class",
    "cut",
    "tangent",
    "dtype",
    "identity",
    "plan",
}
INSPECT |= {"shards", "models", "skipped", "forgotten", "ledger_entries", "ledger"}
INSPECT |= {"tangent", "held_out_rows", "activations", "integrity"}
SAMPLE = {"sample", "shard", "row", "label", "first_token_norm", "mean_token_norm", "max_abs"}
SAMPLE |= {"predictions", "moved_bound", "notes"}
SHARD = {"store", "shard", "rows_per_class", "activations", "component", "first_samples"}
CLASS = {"store", "label", "rows", "held_out_rows", "share", "shards", "first_samples"}
REPORT = {"store", "root_digest", "file", "bytes", "rows", "details", "notes"}
VERIFY = {"store", "root_digest", "bytes", "faults", "strays", "ledger_entries", "mended", "dropped", "reasons"}
VERIFY |= {"left"}
APPEND = {"store", "root_before", "root_digest", "added", "untouched", "known", "images", "skipped", "seconds", "dry"}
COPY = {"store", "root_digest", "files", "bytes", "there", "seconds"}
CONVERT = {"store", "root_digest", "dtype", "chunk_rows", "rows", "bytes", "left", "seconds"}
EXPORT = {"store", "root_digest", "file", "format", "rows", "bytes", "seconds"}
INIT = {"recipe", "source", "images", "held_out", "classes", "shards", "pixels", "backbone", "estimate", "notes"}
IMPORT = {"scaling", "store", "root_digest", "file", "exported", "shards", "tokens", "classes", "trainable", "seconds"}
GC = {"store", "root_digest", "dry", "removed", "kept"}
FORGET = {"store", "root_before", "root_digest", "forgotten", "already", "shards", "renewed", "certificates", "seconds"}
FORGET |= {"mode", "destroyed", "dropped_shards", "classes", "passes", "bytes", "dry_run", "notes", "proven"}
AUDIT = {"store", "root_digest", "findings", "receipts", "signed", "tombstones", "certificates", "replayed", "notes"}
AUDIT |= {"newest"}
COMPARE = {"store", "digests", "rows", "held_out", "classes", "backbone", "seeds", "reports", "spent", "seconds"}
COMPARE |= {"machine", "libraries", "recipe", "kept", "notes", "shards"}
INFLUENCE = {"store", "model", "sample", "label", "shard", "moved", "distance_bound", "own_logit", "own_logit_without"}
INFLUENCE |= {"own_label", "own_label_without", "held_out", "labels_changed", "largest_change", "passes"}
QUERY = {"store", "model", "query", "label", "logit", "method", "residual", "samples", "passes"}
COMPONENT = {"store", "root_digest", "component", "file", "bytes", "base_digest", "rows", "changed"}
CERTIFICATE = {"gradient", "gradient_at_zero", "ridge", "objective", "rows"}
CERTIFICATE |= {"relative_gradient", "distance_bound", "gap_bound", "energy_bound"}
CERTIFICATE |= {"constrained", "residual", "rounding", "tightened", "quadratic"}


def test_json_of_every_command(cli, store, images, tmp_path):  # noqa: F811
    """Scripts read these keys: a change here is a change of the interface."""
    file = toml(tmp_path / "tiny.toml", store)
    sample = FeatureStore(store).shards[0].sample_ids[0]
    few = ["compare.shards=[2]", "compare.seeds=1", "compare.epochs=1", "compare.ridges=[0.1]", "compare.rates=[1e-3]"]
    short = ["data.limit=60", "forget.samples=[]", "store.shards=2", f"store.path={tmp_path / 'demo'}"]
    calls = [
        (("demo", *(x for o in short for x in ("--set", o))), RUN),
        (("init", images, "-o", tmp_path / "mine.toml"), INIT),
        (("run", file), RUN),
        (("extract", file), EXTRACT),
        (("train", file), TRAIN),
        (("train", store), TRAIN),
        (("compose", store), COMPOSE),
        (("evaluate", store), EVALUATE),
        (("predict", store, next(images.glob("*/*.png")), "--device", "cpu"), PREDICT),
        (("export-model", store, tmp_path / "model"), EXPORT_MODEL),
        (("inspect", store), INSPECT),
        (("inspect", store, "--sample", sample), SAMPLE),
        (("inspect", store, "--shard", "000"), SHARD),
        (("inspect", store, "--class", "7"), CLASS),
        (("export", store, tmp_path / "out.npz", "--format", "npz"), EXPORT),
        (("report", store, "-o", tmp_path / "report.html", "--no-neighbours"), REPORT),
        (("verify", store), VERIFY),
        (("trust", store), {"store", "named", "removed"}),
        (("verify", store, "--repair"), VERIFY),
        (("append", file), APPEND),
        (("append", store, "--new-shard"), APPEND),
        (("copy", store, tmp_path / "copy"), COPY),
        (("convert", store, tmp_path / "wide", "--dtype", "float32", "--chunk-rows", "auto"), CONVERT),
        (("export", store, tmp_path / "features.h5"), EXPORT),
        (("import", tmp_path / "features.h5", tmp_path / "imported"), IMPORT),
        (("gc", store, "--dry-run"), GC),
        (("influence", store, "--sample", sample), INFLUENCE),
        (("influence", store, "--query", next(images.glob("*/*.png"))), QUERY),
        (("export-component", store, "000", tmp_path / "one.safetensors"), COMPONENT),
        (("import-component", store, tmp_path / "one.safetensors"), COMPONENT),
        (("compare", file, *(x for o in few for x in ("--set", o))), COMPARE),
        (("forget", store, "--sample", sample), FORGET),
        (("audit", store), AUDIT),
    ]
    seen = {}
    for arguments, keys in calls:
        outcome = cli(*arguments, "--json")
        assert (outcome.code, outcome.err) == (0, ""), arguments
        assert set(outcome.json) == keys, arguments
        seen[arguments[0]] = outcome.json
    assert {c for c, *_ in (a for a, _ in calls)} == set(COMMANDS) - ELSEWHERE
    assert set(seen["run"]["train"]["certificates"]["components/000"]) == CERTIFICATE
    assert set(seen["forget"]["certificates"]["components/000"]) == CERTIFICATE | {
        "converged",
        "passes",
        "moved",
        "moved_at_least",
        "decisive",
    }
    assert set(seen["predict"]["predictions"][0]) == {"image", "labels", "logits"}
    assert seen["run"]["store"] == str(store)
    listed = json.loads(cli("inspect", store, "--shard", "000", "--ids", "--json").out)
    assert {frozenset(row) for row in listed} == {frozenset({"sample", "shard", "label"})}


def test_tables_of_every_command(cli, store, images, tmp_path):  # noqa: F811
    file = toml(tmp_path / "tiny.toml", store)
    with FeatureStore(store) as opened:
        sample, root = opened.shards[0].sample_ids[0], opened.root_digest
    for arguments, says in [
        (("init", images, "-o", tmp_path / "mine.toml"), ["3 classes", "held out", "KB in stores/mine", "run "]),
        (("run", file), ["Nothing to do", "held-out", root[:16]]),
        (("extract", file), ["Nothing to do", root[:16]]),
        (("train", store, "--set", "objective.kappa=3", "--device", "cpu"), ["components/001", "solved"]),
        (("compose", store), ["models/mean", "mean of 2"]),
        (("evaluate", store), ["base model untouched", "models/mean", "%"]),
        (("predict", store, next(images.glob("*/*.png"))), [".png"]),
        (("export-model", store, tmp_path / "model"), ["models/mean", "taftcache predict"]),
        (("inspect", store), ["held-out", "components/000", "root "]),
        (("inspect", store, "--sample", sample), [sample, "shard 000"]),
        (("inspect", store, "--class", "7"), ["digits/", "held-out", "training rows"]),
        (("inspect", store, "--shard", "000"), ["digits/", "(train)", "sampled now", "‖Δw−Δw*‖"]),
        (("inspect", store, "--class", "7", "--ids"), ["digits/", "\t7"]),
        (("evaluate", store, "--without", "001"), ["mean of 1 of 2 components"]),
        (("export", store, tmp_path / "out.npz", "--format", "npz"), ["out.npz", "rows of root"]),
        (("report", store, "-o", tmp_path / "report.html", "--no-neighbours"), ["report.html", "samples"]),
        (("verify", store), ["every object has the digest"]),
        (("influence", store, "--sample", sample), [sample, "its own logit goes"]),
        (("influence", store, "--query", next(images.glob("*/*.png"))), ["closed form", "digits/"]),
        (("export-component", store, "000", tmp_path / "one.safetensors"), ["components/000"]),
        (("forget", store, "--sample", sample, "--dry-run"), ["would be forgotten", sample, "nothing was changed"]),
        (("forget", store, "--sample", sample), ["forgotten now", sample, "models/mean"]),
        (("audit", store), ["0 findings", "components/001"]),
        (("forget", store, "--sample", sample), ["forgotten before"]),
    ]:
        outcome = cli(*arguments)
        assert outcome.code == 0, (arguments, outcome)
        for text in says:
            assert text in outcome.out, (arguments, text, outcome.out)


def test_the_list_of_commands_fits_its_lines(cli, monkeypatch):
    """Every command once, under what people do with it, with a sentence that is not cut."""
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("--help").out
    listed = [line.split()[0] for line in said.partition("From images")[2].splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(COMMANDS)
    assert "..." not in said.replace("[ARGS]...", "")
    assert max(map(len, said.splitlines())) <= 80


def test_version_and_completion(cli):
    assert cli("--version").out == f"taftcache {taftcache.__version__}\n"
    asked = [sys.executable, "-m", "taftcache", "--version"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == cli("--version").out
    assert "quickstart" in complete_recipe("qui")
    shown = subprocess.run(
        [sys.executable, "-c", "from taftcache.cli import main; main()"],
        env={**os.environ, "_TAFTCACHE_COMPLETE": "complete_bash", "COMP_WORDS": "taftcache forg", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
    )
    assert shown.stdout.split() == ["forget"]


def test_threads_that_wait_spin_but_shortly():
    code = "from taftcache.cli import main\ntry: main(['--version'])\nexcept SystemExit: import torch"
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")} | {
        "OMP_DISPLAY_ENV": "verbose"
    }
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stderr
    assert "GOMP_SPINCOUNT = '3000'" in said


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("forget", "x", "--mode", "retrian"), ("retrain", "subtract", "resolve")),
        (("compose", "x", "--mode", "sum"), ("auto", "mean", "weighted", "exact")),
        (("run", "x", "--device", "tpu"), ("auto", "cpu", "cuda", "mps")),
        (("convert", "x", "y", "--dtype", "bfloat16"), ("float16", "float32")),
        (("export", "x", "y", "--format", "matlab"), ("hdf5", "parquet", "npz", "embedding-projector")),
    ],
)
def test_a_choice_is_listed_where_it_is_refused_and_in_the_help(cli, arguments, allowed):
    outcome = cli(*arguments)
    refused(outcome, 2, arguments[-2], arguments[-1], *allowed)
    assert f"<{'|'.join(allowed)}>" in cli(arguments[0], "--help").out.replace("[", "<").replace("]", ">")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: taftcache {command}" in result.stdout


@pytest.mark.parametrize(
    ("overrides", "code", "says"),
    [
        (["solver.tolerence=1"], 2, ["did you mean solver.tolerance?"]),
        (["store.shards"], 2, ["override"]),
        (["data={source='folder', train='nowhere'}"], 3, ["nowhere"]),
        (["data.limit=5", "store.shards=9", 'store.plan="balanced"'], 3, ["leave shards empty"]),
        (["device=tpu"], 2, ["tpu", "did you mean 'cpu'?"]),
        (["backbone.weights=nowhere.safetensors"], 4, ["nowhere.safetensors"]),
        (["preprocess.input_size=[3, 40, 40]"], 4, ["40"]),
    ],
)
def test_refusals_of_run_make_no_store(cli, tmp_path, overrides, code, says):
    """Nothing is left that would block the next run."""
    path = tmp_path / "store"
    file = toml(tmp_path / "tiny.toml", path, data={"source": "digits", "limit": 30})
    refused(cli("run", file, *(x for o in overrides for x in ("--set", o))), code, *says)
    assert not path.exists()


def test_one_class_only(cli, tmp_path):
    path, folder = tmp_path / "store", write_images(tmp_path / "images", classes=1)
    file = toml(tmp_path / "tiny.toml", path, data={"source": "folder", "train": str(folder)})
    refused(cli("run", file), 3, "two classes")
    assert not path.exists()
    write_images(tmp_path / "more", classes=2).rename(tmp_path / "both")
    shutil.copytree(tmp_path / "both" / "1", folder / "1")
    assert cli("run", file).code == 0


@pytest.mark.parametrize("cure", ["skip", "remove", pytest.param("replace", marks=pytest.mark.full)])
def test_unreadable_image(cli, tmp_path, cure):
    path, folder = tmp_path / "store", write_images(tmp_path / "images")
    bad = sorted((folder / "1").iterdir())[3]
    good = bad.read_bytes()
    bad.write_bytes(good[:60])
    data = {"source": "folder", "train": str(folder)}
    refused(cli("run", toml(tmp_path / "tiny.toml", path, data=data)), 3, f"1/{bad.name}", 'data.unreadable = "skip"')
    if cure == "replace":
        bad.write_bytes(good)
    elif cure == "remove":
        bad.unlink()
    else:
        path = tmp_path / "other"
        data["unreadable"] = "skip"
    outcome = cli("run", toml(tmp_path / "tiny.toml", path, data=data), "--json")
    assert outcome.code == 0, outcome
    report = outcome.json["extract"]
    assert report["skipped"] == (cure == "skip")
    assert sum(report["shards"].values()) == 42 - (cure != "replace")
    with FeatureStore(path) as opened:
        skipped = [s.id for s in opened.manifest.skipped]
        assert skipped == ([f"1/{bad.name}"] if cure == "skip" else [])
        assert opened.strays() == opened.verify() == []
    before = tree(path)
    assert cli("run", tmp_path / "tiny.toml").code == 0
    assert tree(path) == before


def test_forget_of_a_skipped_image(cli, tmp_path):
    path, folder = tmp_path / "store", write_images(tmp_path / "images")
    bad = sorted((folder / "1").iterdir())[3]
    bad.write_bytes(b"")
    data = {"source": "folder", "train": str(folder), "unreadable": "skip"}
    assert cli("run", toml(tmp_path / "tiny.toml", path, data=data)).code == 0
    assert cli("forget", path, "--sample", f"1/{bad.name}").code == 0
    assert not any(bad.name.encode() in content for content in tree(path).values())
    assert cli("run", tmp_path / "tiny.toml", "--json").json["extract"]["images"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "{}"),
        ("compose", "{}"),
        ("evaluate", "{}"),
        ("predict", "{}", "x.png"),
        ("inspect", "{}"),
        ("verify", "{}"),
        ("forget", "{}", "--sample", "a"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_no_store_there(cli, tmp_path, arguments, there):
    place = tmp_path / "nothing"
    if there:
        place.mkdir()
    code = 2 if arguments[0] == "train" and not there else 5  # what is no folder is taken for a recipe
    outcome = cli(*(a.format(place) for a in arguments))
    assert outcome.code == code, outcome
    assert str(place) in outcome.err
    assert list(tmp_path.iterdir()) == [place] * there


def test_wrong_arguments_of_store_commands(cli, store, tmp_path):  # noqa: F811
    before = tree(store)
    for arguments, code, says in [
        (("forget", store, "--sample", "digits/00x1"), 5, ["digits/0", "Nearest"]),
        (("forget", store, "--sample", "digits/0001", "--mode", "pretend"), 2, ["retrain"]),
        (("inspect", store, "--sample", "nobody"), 5, ["nobody"]),
        (("inspect", store, "--shard", "9"), 5, ["000"]),
        (("inspect", store, "--class", "cat"), 2, ["cat"]),
        (("predict", store, tmp_path / "x.png", "--device", "cpu"), 3, ["x.png"]),
        (("predict", store, tmp_path / "x.png", "--model", "models/no"), 5, ["models/mean"]),
        (("verify", store, "--root", "ab" * 32), 5, ["expected"]),
        (("train", store, "--set", "objective.ridge=0"), 2, ["ridge"]),
    ]:
        outcome = cli(*arguments)
        assert outcome.code == code, (arguments, outcome)
        assert outcome.err.startswith("taftcache: ")
        assert all(text in outcome.err for text in says), (arguments, outcome.err)
    assert tree(store) == before
    assert cli("forget", store).code == cli("predict", store).code == cli("dance").code == 2


def test_training_asks_for_what_the_store_holds(cli, store):  # noqa: F811
    before = FeatureStore(store).root_digest
    refused(cli("train", store, "--set", "store.shards=9"), 5, "store.shards", "9")
    refused(cli("train", store, "--shard", "000", "--shard", "777"), 5, "777", "000")
    assert FeatureStore(store).root_digest == before


def test_repair_and_gc_in_words(cli, store):  # noqa: F811
    victim = chunk_of(store, "000")
    whole = victim.read_bytes()
    flip(victim)
    (store / "components" / "leftover").write_bytes(b"x" * 10)
    outcome = cli("verify", store)
    assert outcome.code == 5
    outcome = cli("gc", store, "--dry-run")
    assert (outcome.code, (store / "components" / "leftover").exists()) == (0, True)
    assert "would go components/leftover  10 B" in outcome.out
    outcome = cli("gc", store)
    assert "removed  components/leftover  10 B" in outcome.out
    outcome = cli("verify", store, "--repair")
    assert outcome.code == 0
    assert "mended" in outcome.out
    assert "extracted again" in outcome.out
    assert victim.read_bytes() == whole
    flip(victim)
    outcome = cli("verify", store, "--repair", "--set", "data.limit=2")
    assert outcome.code == 5
    assert "DAMAGED" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("convert", "STORE", "new"), 2, "changes nothing"),
        (("convert", "STORE", "new", "--chunk-rows", "-3"), 2, "positive number"),
        (("copy", "nowhere", "new"), 5, "nowhere"),
        (("copy", "STORE", "s3://"), 2, "s3://bucket/prefix"),
        (("import", "nowhere.h5", "new"), 3, "nowhere.h5"),
        (("gc", "nowhere"), 5, "nowhere"),
    ],
)
def test_wrong_arguments_of_moving_and_growing(cli, store, tmp_path, monkeypatch, arguments, code, says):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    refused(cli(*(str(store) if a == "STORE" else a for a in arguments)), code, says)
    assert not (tmp_path / "new").exists()


def test_flipped_byte(cli, store):  # noqa: F811
    flip(chunk_of(store, "001", 0))
    outcome = cli("verify", store)
    assert outcome.code == 5
    for text in ("DAMAGED", "shard 001", "array tokens", "chunk 0"):
        assert text in outcome.out
    (fault,) = cli("verify", store, "--json").json["faults"]
    assert (fault["shard"], fault["array"], fault["chunk"]) == ("001", "tokens", 0)


def test_truncated_chunk_ends_training(cli, store):  # noqa: F811
    with open_store(store) as opened, opened.transaction() as change:
        change.drop("components/001")
    chunk = chunk_of(store, "001", 0)
    chunk.write_bytes(chunk.read_bytes()[:100])
    before = tree(store)
    refused(cli("train", store), 5, "shard 001", "array tokens", "chunk 0", "taftcache verify STORE --repair")
    assert tree(store) == before


def test_other_weights(cli, store, tmp_path):  # noqa: F811
    before = tree(store)
    file = toml(tmp_path / "tiny.toml", store)
    refused(cli("run", file, "--set", "backbone.model_args.depth=5"), 5, "backbone.model_args", "store.path")
    assert tree(store) == before


@pytest.mark.parametrize("stage", ["extract", "train"])
def test_interruption(cli, finished, tmp_path, monkeypatch, stage):  # noqa: F811
    """Ctrl-C ends with 130 and keeps what was committed; the same command goes on to the same bytes."""
    path = tmp_path / "store"
    file = toml(tmp_path / "tiny.toml", path)

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    places = {
        "extract": "taftcache.cache.write.writer.ShardWriter.append",
        "train": "taftcache.solve.methods.conjugate._Round.iterate",
    }
    with monkeypatch.context() as patch:
        patch.setattr(places[stage], interrupt)
        outcome = cli("run", file)
    assert outcome.code == 130, outcome
    assert "interrupted" in outcome.err
    with FeatureStore(path) as opened:
        there = [ref.meta for name, ref in opened.objects().items() if name.startswith("components/")]
        # Ctrl-C keeps a solve's best iterate, marked so that nobody takes it for the component.
        assert [(meta["key"], meta["converged"]) for meta in there] == [("interrupted", False)] * (stage == "train")
    assert cli("run", file).code == 0
    assert tree(path) == tree(finished)


KILLED = """
import os, signal
import taftcache.backbone.engine  # loaded once, for both that are forked
from taftcache.cache.write.writer import ShardWriter
calls, append, commit, after = 0, ShardWriter.append, ShardWriter.commit, 0

def count(*arguments):
    global calls
    calls += 1
    if calls == after:
        os.kill(os.getpid(), signal.SIGKILL)

def killed_append(self, *a, **k):
    append(self, *a, **k)
    count()

def killed_commit(self, **k):
    count()
    commit(self, **k)

ShardWriter.append, ShardWriter.commit = killed_append, killed_commit
from taftcache.cli import main
for after in (2, 3):
    if (child := os.fork()) == 0:
        main(["extract", "{file}"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


@pytest.mark.law("A run again does nothing; a killed extraction ends in the same root digest")
def test_killed_extraction_goes_on_to_the_same_root(tmp_path):
    """The heavy version is tests/cache/crash.py; here the whole command is killed, in the middle and at a commit."""
    file, path = toml(tmp_path / "tiny.toml", tmp_path / "store"), tmp_path / "store"
    killed = forked.run(KILLED.format(file=file))
    assert killed.returncode == 0, killed.stderr
    resumed = taftcache.extract(recipe(path))
    whole = taftcache.extract(recipe(tmp_path / "whole"))
    assert resumed.root_digest == whole.root_digest
    assert tree(path) == tree(tmp_path / "whole")
    assert 0 < resumed.images < whole.images


def test_module_level_names_are_paths(tmp_path):
    assert isinstance(toml(tmp_path / "a.toml", tmp_path), Path)


def test_a_store_on_eighty_columns(cli, store, monkeypatch):  # noqa: F811
    """Nothing is cut off, and no line is longer."""
    for arguments in (("inspect", store), ("inspect", store, "--shard", "000"), ("inspect", store, "--class", "7")):
        cli("inspect", store, "--ids")
        monkeypatch.setenv("COLUMNS", "80")
        out = cli(*arguments).out.replace(str(store), "stores/x")
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
        assert "…\n" not in out.replace("… ", "")
    assert "components/000" in cli("inspect", store).out


@pytest.mark.parametrize("works", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_page_is_served_until_it_is_ended(store, works):  # noqa: F811
    """The address on stdout, the page at it, and an end without a traceback; in the midst of its work, or without."""
    from urllib.request import urlopen

    idle = "" if works else "from taftcache.view.atlas import Atlas; Atlas.start = lambda self: None; "
    code = f"{idle}from taftcache.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "view", str(store), "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with urlopen(url) as answer:
        assert b"<script nonce=" in answer.read()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (0, False), said
    with pytest.raises(OSError, match="refused"):
        urlopen(url)


ERROR = ["error", "fault", "got", "try", "exit_code"]


def test_an_error_is_json_where_a_report_would_be(cli, tmp_path):
    """stdout holds the JSON alone, stderr the text, and the exit code is the same."""
    plain, outcome = (cli("evaluate", tmp_path / "nowhere", *more) for more in ([], ["--json"]))
    refused(plain, 5, "nowhere")
    assert (outcome.code, outcome.err) == (5, plain.err)
    said = outcome.json
    assert list(said) == ERROR
    assert (said["error"], said["exit_code"]) == ("StoreNotFound", 5)
    assert plain.err.splitlines()[0] == f"taftcache: {said['fault']}"
    got = [] if said["got"] is None else [f"  got: {said['got']}"]
    assert plain.err.splitlines()[1:] == [*got, f"  try: {said['try']}"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evaluate", "--json"], "missing argument 'STORE'"),
        (["evaluate", "STORE", "--jsn", "--json"], "no such option: --jsn"),
        (["evaluat", "--json"], "no such command 'evaluat'"),
        (["--jsn", "evaluate", "--json"], "no such option: --jsn"),
    ],
)
def test_a_misspelt_command_is_json_too(cli, arguments, says):
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert "Usage: " in outcome.err
    assert outcome.err.startswith("taftcache: ")
    assert outcome.json["error"] == "UsageError"
    assert outcome.json["fault"].startswith(says)
    assert outcome.json["try"].endswith("--help")
    assert cli(*(a for a in arguments if a != "--json")).out == ""


def test_an_interruption_is_json_too(cli, monkeypatch, tmp_path):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("taftcache.stages.files.verification.verify", stopped)
    outcome = cli("verify", tmp_path, "--json")
    assert outcome.code == 130
    assert outcome.json["exit_code"] == 130
    assert outcome.json["fault"] in outcome.err


@pytest.mark.parametrize("command", [[], ["view"], ["train"], ["transfer"], ["import"]], ids=str)
def test_help_loads_nothing_heavy(command):
    code = (
        f"import sys, taftcache.cli\ntry: taftcache.cli.main({[*command, '--help']!r})\n"
        "except SystemExit: pass\n"
        "print({'torch', 'timm', 'numpy', 'zarr', 'h5py', 'sklearn', 'dask', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("taken", [True, False])
def test_a_port_that_cannot_be_had(cli, store, monkeypatch, taken):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as other:
        port, says = other.getsockname()[1], "another program is using it"
        if not taken:

            def bind(self):
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr("http.server.ThreadingHTTPServer.server_bind", bind)
            port, says = 80, "only for an administrator"
        outcome = cli("view", store, "--no-browser", "--port", port)
    refused(outcome, 2, f"cannot serve the page at port {port}: ", says, "--port 0 takes a free one")
