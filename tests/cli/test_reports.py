"""What commands say: JSON whose keys stay, tables that fit their lines, help with an example."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import app
from taftcache.errors import ArgumentError
from taftcache.stages.certificates import JudgedCertificate
from taftcache.stages.look.inside.shards import ShardFigures
from taftcache.stages.report import Report
from taftcache.stages.train.training import TrainReport
from taftcache.terminal.inspection import shards_table
from taftcache.terminal.pipeline import show_train
from taftcache.terminal.showing import PRINTERS
from tests.cli.making import refused
from tests.stages.making import certificate, toml
from tests.stages.test_damage import chunk_of, flip
from tests.test_house.pages import load_tool

COMMANDS = [name for name, command in get_command(app).commands.items() if not command.hidden]
# One serves until it is ended; the others' reports are read in tests/stages/test_private.py and tests/teaching/.
ELSEWHERE = {"view", "teach", "push"}
RUN = {"store", "root_digest", "extract", "train", "compose", "evaluate", "forget", "seconds"}
EXTRACT = {"store", "root_digest", "shards", "images", "skipped", "seconds", "bytes", "preprocess", "notes"}
TRAIN = {"store", "root_digest", "trained", "kept", "certificates", "composed", "seconds", "notes"}
COMPOSE = {"store", "root_digest", "model", "members", "identity_error", "changed", "models", "made", "left_out"}
COMPOSE |= {"coefficients", "dropped", "held_out", "certificate", "moved", "passes", "seconds", "notes"}
EVALUATE = {"store", "root_digest", "rows", "accuracy", "default", "intervals", "against", "proven", "notes"}
EVALUATE |= {"groups", "outdated", "calibration", "majority", "balanced", "reference", "differences"}
EVALUATE_ON = EVALUATE - {"against", "proven"} | {"data", "by", "values", "unknown", "unreadable"}
PREDICT = {"store", "root_digest", "model", "predictions", "notes", "unreadable"}
PREDICTION = {"image", "labels", "logits", "margin", "alike", "index", "probabilities"}
FIND = {"store", "root_digest", "rows", "found", "notes"}
EXPORT_MODEL = {"store", "root_digest", "model", "folder", "files", "bytes", "notes"}
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
INSPECT |= {"shards", "models", "skipped", "forgotten", "ledger_entries", "ledger", "notes"}
INSPECT |= {"left_out", "tangent", "held_out_rows", "activations", "integrity", "budget", "recipe"}
SAMPLE = {"sample", "shard", "row", "label", "first_token_norm", "mean_token_norm", "max_abs"}
SAMPLE |= {"predictions", "moved_bound", "notes"}
SHARD = {"store", "shard", "rows_per_class", "activations", "component", "first_samples", "notes"}
FIGURES = {"name", "role", "rows", "bytes", "dtype", "chunk_rows", "digest", "max_abs", "mean_token_norm", "classes"}
FIGURES |= {"fewest", "most", "rows_per_class"}
CLASS = {"store", "label", "rows", "held_out_rows", "share", "shards", "first_samples"}
REPORT = {"store", "root_digest", "file", "bytes", "rows", "details", "notes"}
VERIFY = {"store", "root_digest", "bytes", "faults", "strays", "ledger_entries", "mended", "dropped", "reasons"}
VERIFY |= {"left", "again"}
APPEND = {
    "store",
    "root_before",
    "root_digest",
    "added",
    "untouched",
    "known",
    "forgotten",
    "images",
    "skipped",
    "seconds",
    "dry_run",
}
APPEND |= {"unread", "closed", "new_classes", "dropped", "relabelled", "notes", "skipped_ids", "not_in_source"}
COPY = {"store", "root_digest", "files", "bytes", "there", "seconds"}
CONVERT = {"store", "root_digest", "dtype", "chunk_rows", "rows", "bytes", "left", "again", "seconds"}
EXPORT = {"store", "root_digest", "file", "format", "rows", "bytes", "seconds", "notes"}
INIT = {"recipe", "source", "images", "held_out", "classes", "shards", "pixels", "backbone", "features", "estimate"}
INIT |= {"notes"}
IMPORT = {"scaling", "store", "root_digest", "file", "exported", "shards", "tokens", "classes", "trainable", "seconds"}
IMPORT |= {"notes"}
GC = {"store", "root_digest", "dry_run", "removed", "kept"}
FORGET = {"store", "root_before", "root_digest", "forgotten", "already", "shards", "renewed", "certificates", "seconds"}
FORGET |= {"mode", "destroyed", "dropped_shards", "classes", "passes", "bytes", "dry_run", "notes", "copies"}
FORGET |= {"expected_seconds", "matched", "copies_taken", "in_source", "held_out", "groups", "group_taken"}
AUDIT = {"store", "root_digest", "findings", "receipts", "signed", "tombstones", "certificates", "replayed", "notes"}
AUDIT |= {"newest", "signers", "also", "passed", "unsaved", "harmless", "unsure", "imported_again"}
RECEIPTS = {"store", "root_digest", "receipts", "unreadable", "samples", "perhaps", "from_export", "imported_again"}
COMPARE = {"store", "digests", "rows", "held_out", "classes", "backbone", "seeds", "reports", "spent", "seconds"}
COMPARE |= {"machine", "date", "libraries", "recipe", "kept", "notes", "shards"}
INFLUENCE = {"store", "model", "sample", "label", "shard", "moved", "distance_bound", "own_logit", "own_logit_without"}
INFLUENCE |= {"own_label", "own_label_without", "held_out", "labels_changed", "largest_change", "ridge", "passes"}
QUERY = {"store", "model", "query", "label", "logit", "method", "residual", "samples", "passes", "ridges"}
QUERY |= {"predicted", "notes"}
COMPONENT = {"store", "root_digest", "component", "file", "bytes", "base_digest", "rows", "changed", "replaced"}
COMPONENT |= {"next", "notes"}
CERTIFICATE = {"gradient", "gradient_at_zero", "ridge", "objective", "rows"}
CERTIFICATE |= {"relative_gradient", "distance_bound", "gap_bound", "energy_bound"}
CERTIFICATE |= {"constrained", "residual", "rounding", "tightened", "quadratic", "objective_at_most"}


def fields_by_command():
    """Command → the fields of each of its reports that docs/json.md lists."""
    maker = load_tool("make_docs")
    return {
        name: [{field for field, _ in maker.typed_fields(r)} for r in some] for name, some in maker.reports().items()
    }


def test_json_of_every_command(cli, store, images, tmp_path):
    """Scripts read these keys: a change here is a change of the interface."""
    file = toml(tmp_path / "tiny.toml", store)
    sample = FeatureStore(store).shards[0].sample_ids[0]
    few = ["compare.shards=[2]", "compare.seeds=1", "compare.epochs=1", "compare.ridges=[0.1]", "compare.rates=[1e-3]"]
    few += ["compare.resets=[true]", "compare.tokens=[false]"]
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
        (("evaluate", store, "--on", images), EVALUATE_ON),
        (("predict", store, next(images.glob("*/*.png")), "--device", "cpu"), PREDICT),
        (("find", store, next(images.glob("*/*.png"))), FIND),
        (("export-model", store, tmp_path / "model"), EXPORT_MODEL),
        (("inspect", store), INSPECT),
        (("inspect", store, "--sample", sample), SAMPLE),
        (("inspect", store, "--shard", "000"), SHARD),
        (("inspect", store, "--class", "7"), CLASS),
        (("export", store, tmp_path / "out.npz", "--format", "npz"), EXPORT),
        (("report", store, "-o", tmp_path / "report.html", "--no-neighbours"), REPORT),
        (("verify", store), VERIFY),
        (("trust", store), {"store", "named", "removed", "notes"}),
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
        (("compare", file, *(x for o in few for x in ("--set", o))), COMPARE),
        (("forget", store, "--sample", sample), FORGET),
        (("audit", store), AUDIT),
        (("receipts", store, "--sample", sample), RECEIPTS),
        (("export-component", store, "000", tmp_path / "one.safetensors"), COMPONENT),
        (("import-component", store, tmp_path / "one.safetensors"), COMPONENT),
    ]
    seen, on_page = {}, fields_by_command()
    for arguments, keys in calls:
        outcome = cli(*arguments, "--json")
        assert (outcome.code, outcome.err) == (0, ""), arguments
        assert set(outcome.json) == keys, arguments
        assert keys in on_page[arguments[0]], arguments
        seen[arguments[0]] = outcome.json
    assert {c for c, *_ in (a for a, _ in calls)} == set(COMMANDS) - ELSEWHERE
    assert set(seen["run"]["train"]["certificates"]["components/000"]) == CERTIFICATE | {"row_moves", "decisive"}
    assert set(seen["forget"]["certificates"]["components/000"]) == CERTIFICATE | {
        "converged",
        "passes",
        "moved",
        "moved_at_least",
        "decisive",
    }
    assert set(seen["predict"]["predictions"][0]) == PREDICTION
    assert seen["run"]["store"] == str(store)
    assert set(cli("inspect", store, "--shard", "000", "--json").json["shard"]) == FIGURES
    listed = json.loads(cli("inspect", store, "--shard", "000", "--ids", "--json").out)
    assert {frozenset(row) for row in listed} == {frozenset({"sample", "shard", "role", "label"})}


def test_training_ends_at_the_root_that_it_reports(cli, store):
    """Composing, which follows, is a commit of its own."""
    before = FeatureStore(store).root_digest
    reported = cli("train", store, "--set", "objective.kappa=3", "--json").json["root_digest"]
    assert reported == FeatureStore(store).root_digest != before


def test_the_table_of_a_training_has_the_models_that_it_composes(cli, store):
    """It ended with the components, though most of the time may go into the exact model, and people use that."""
    given = ("train", store, "--set", "compose.mode=exact", "--set", "objective.kappa=3")
    for exact, mean in (("solved", "made"), ("current", "current")):
        lines = {line.split()[1]: line.split() for line in cli(*given).out.splitlines() if "models/" in line}
        assert (len(lines["models/exact"]), lines["models/exact"][-2]) == (13, exact)
        assert lines["models/mean"][-2] == mean
    made = cli(*given, "--set", "compose.mode=mean", "--json").json["composed"]
    assert (made["models"], made["made"]) == (["models/mean", "models/exact"], [])
    assert "models/mean" not in cli("train", store, "--shard", "000").out


def test_tables_of_every_command(cli, store, images, tmp_path):
    file = toml(tmp_path / "tiny.toml", store)
    with FeatureStore(store) as opened:
        sample, root = opened.shards[0].sample_ids[0], opened.root_digest
    files = [f"{file},{file.parent.name},{'old' * (k % 2)}" for k, file in enumerate(images.glob("*/*.png"))]
    seen = tmp_path / "seen.csv"
    seen.write_text("\n".join(["path,label,camera", *files]))
    for arguments, says in [
        (("init", images, "-o", tmp_path / "mine.toml"), ["3 classes", "held out", "stores/mine", "run "]),
        (("run", file), ["Nothing to do", "held-out", root[:16], f"evaluate {store} --probe"]),
        (("extract", file), ["Nothing to do", root[:16]]),
        (("train", store, "--set", "objective.kappa=3", "--device", "cpu"), ["components/001", "solved"]),
        (("compose", store), ["models/mean", "mean of 2"]),
        (("evaluate", store), ["before training (new head)", "models/mean", "%"]),
        (("predict", store, next(images.glob("*/*.png"))), [".png"]),
        (("export-model", store, tmp_path / "model"), ["models/mean", "taftcache predict"]),
        (("inspect", store), ["held-out", "components/000", "root "]),
        (("inspect", store, "--sample", sample), [sample, "shard 000"]),
        (("inspect", store, "--class", "7"), ["digits/", "held-out", "training rows"]),
        (("inspect", store, "--shard", "000"), ["digits/", "(train)", "sampled now", "‖Δw−Δw*‖"]),
        (("inspect", store, "--class", "7", "--ids"), ["digits/"]),
        (("evaluate", store, "--without", "001"), ["mean of 1 of 2 components"]),
        (("evaluate", store, "--reference", "components/000"), ["ahead of", "components/000,", " to +"]),
        (("evaluate", store, "--on", seen, "--by", "camera"), [f"42 rows of {seen}", "camera", "(no value)", "T = "]),
        (("export", store, tmp_path / "out.npz", "--format", "npz"), ["out.npz", "rows of root"]),
        (("report", store, "-o", tmp_path / "report.html", "--no-neighbours"), ["report.html", "samples"]),
        (("verify", store), ["every object has the digest"]),
        (("influence", store, "--sample", sample), [sample, "its own logit goes"]),
        (("influence", store, "--query", next(images.glob("*/*.png"))), ["closed form", "digits/"]),
        (("export-component", store, "000", tmp_path / "one.safetensors"), ["components/000"]),
        (
            ("forget", store, "--sample", sample, "--dry-run"),
            ["would be forgotten", sample, "would be renewed: components", "nothing was changed", "s to solve them on"],
        ),
        (("forget", store, "--sample", sample), ["forgotten now", sample, "models/mean"]),
        (
            ("audit", store),
            ["PASSED: nothing of what was forgotten was found in the store", "1 tombstone\n", "components/001"],
        ),
        (("receipts", store, "--sample", sample), [f"{sample}: forgotten by receipt 1 of 20", "not signed; ledger/"]),
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


def test_the_help_of_forget_begins_with_what_matters(cli, monkeypatch):
    """It had 14 options in one list."""
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("forget", "--help").out
    first, *others = [part.splitlines() for part in said.partition("\nOptions:\n")[2].split("\n\n")]
    names = [[line.split()[0] for line in lines if line.startswith("  --")] for lines in (first, *others)]
    assert names[0] == ["--sample", "--file", "--dry-run", "--json", "--help"]
    assert [lines[0] for lines in others] == ["Many at once:", "How models are renewed:", "What proves it:"]
    params = get_command(app).commands["forget"].params
    assert {n for some in names for n in some} == {"--help", *(p.opts[0] for p in params if p.opts[0][0] == "-")}


def test_where_a_command_writes_is_named_alike():
    """A place that has to be given is an argument; one that need not be, an option of one name."""
    commands = get_command(app).commands.items()
    named = {c: p.opts for c, command in commands for p in command.params if {"-o", "--out", "--output"} & {*p.opts}}
    assert named == {name: ["-o", "--output"] for name in ("init", "predict", "report", "compare")}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: taftcache {command}" in result.stdout


def test_repair_and_gc_in_words(cli, store):
    victim = chunk_of(store, "000")
    whole = victim.read_bytes()
    flip(victim)
    (store / "components" / "leftover").write_bytes(b"x" * 10)
    outcome = cli("verify", store)
    assert (outcome.code, f"taftcache verify {store} --repair" in outcome.out) == (10, True)
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
    assert outcome.code == 10
    assert "DAMAGED" in outcome.out
    assert "--repair" not in outcome.out, "it was tried"
    assert "\\n" not in outcome.out, "a reason of several lines"
    assert re.search(r"DAMAGED .*\n {9}\S.*\n {11}got: ", outcome.out)


def test_a_repair_is_advised_where_it_can_mend_something(cli, store, tmp_path):
    """It was for a damaged entry of the ledger, and for the rows of imported vectors."""
    cli("forget", store, "--sample", FeatureStore(store).sample_ids()[0])
    (entry,) = (store / "ledger").iterdir()
    flip(entry)
    vectors = taftcache.import_vectors(np.eye(9), np.arange(9) % 3, tmp_path / "vectors").store
    flip(chunk_of(vectors, "000", 0))
    for path in (store, vectors):
        outcome = cli("verify", path)
        assert (outcome.code, "--repair" in outcome.out) == (10, False)
        assert "\n         nothing else says what its bytes were: restore it from a copy\n" in outcome.out
        assert cli("verify", path, "--repair").out == outcome.out
    flip(chunk_of(store, "000"))
    assert f"try      taftcache verify {store} --repair" in cli("verify", store).out


def test_what_is_lost_is_made_again_by_the_command_that_is_named(cli, store, tmp_path):
    """An imported component was said to be made by train."""
    cli("export-component", store, "000", tmp_path / "one.safetensors")
    cli("import-component", store, tmp_path / "one.safetensors", "--name", "away")
    outcome = cli("convert", store, tmp_path / "wide", "--dtype", "float32")
    again = "FILE --name away"
    assert f"components/away; made again by taftcache import-component {tmp_path / 'wide'} {again}" in outcome.out
    assert "left behind: components/000, components/001, models/head" in outcome.out
    assert f"made again by taftcache train {tmp_path / 'wide'}\n" in outcome.out
    with FeatureStore(store) as opened:
        flip(store / opened.objects()["components/away"].path)
    outcome = cli("verify", store, "--repair")
    assert f"dropped  components/away: taftcache import-component {store} {again} makes it again" in outcome.out
    assert "components/away" not in cli("inspect", store).out


def test_a_command_that_is_named_can_betyped_fields(cli, store, tmp_path):
    """Of a store in a folder with a blank in its name the commands named another place."""
    place, wide = tmp_path / "my store", tmp_path / "my wide"
    assert f"made again by taftcache train '{wide}'" in cli("convert", store, wide, "--dtype", "float32").out
    shutil.copytree(store, place)
    flip(chunk_of(place, "000"))
    assert f"taftcache verify '{place}' --repair\n" in cli("verify", place).out
    assert f"  try: taftcache verify '{place}' --repair, which makes again what it can" in cli("audit", place).out
    spaced = shutil.copytree(store, tmp_path / "a store")
    (spaced / "notes.txt").write_bytes(b"")
    assert f"taftcache gc '{spaced}'" in cli("audit", spaced).out
    gone = FeatureStore(spaced).sample_ids()[0]
    cli("forget", spaced, "--sample", gone)
    assert (
        f"taftcache receipts '{spaced}' --sample {gone}, which says when"
        in cli("inspect", spaced, "--sample", gone).err
    )


def test_ids_are_what_forget_takes(cli, store, tmp_path):
    """Ids alone on stdout: with shard and class beside them, `forget --file` knew none of them. Held-out ones too:
    a list searched for one person's images missed them, and the audit of what was forgotten found nothing."""
    with FeatureStore(store) as opened:
        held_out = opened.held_out
        ids = [i for shard in (*opened.shards, held_out) for i in shard.sample_ids]
    assert (cli("inspect", store, "--ids").out.splitlines(), held_out.rows > 0) == (ids, True)
    of_class = cli("inspect", store, "--shard", "held-out", "--class", "7", "--ids")
    assert set(of_class.out.split()) <= set(held_out.sample_ids)
    (tmp_path / "gone.txt").write_text(cli("inspect", store, "--class", "7", "--ids").out)
    tried = cli("forget", store, "--file", tmp_path / "gone.txt", "--dry-run")
    assert (tried.code, "root " in tried.out) == (0, False), "the root stays"


def test_a_report_says_what_it_is_at(cli, store, tmp_path, monkeypatch):
    """The neighbour embedding alone takes a minute of some thousand rows."""
    monkeypatch.setattr("taftcache.terminal.console.SOON", 0)
    assert cli("report", store, "-o", tmp_path / "a.html", "--no-neighbours").err.split(" ", 1)[1] == "page …\n"
    assert cli("report", store, "-o", tmp_path / "b.html", "--no-neighbours", "--json").err == ""


def test_a_shard_with_long_values_stays_on_one_line():
    """``678.0 KB`` was folded, and so was the header above it."""
    counts = {"rows": 10_000, "classes": 101, "fewest": 12, "most": 240, "bytes": 678_000, "max_abs": 14.97}
    kept = {"dtype": "float16", "chunk_rows": 64, "mean_token_norm": 20.5, "rows_per_class": {}}
    shard = ShardFigures(name="held-out", role="held-out", digest="b65e4825" * 8, **counts, **kept)
    out = io.StringIO()
    Console(file=out, width=80).print(shards_table([shard]))
    assert len(out.getvalue().split("digest")[1].strip().splitlines()) == 2
    assert "…" not in out.getvalue()


def test_a_run_counts_shards_as_the_recipe_does(cli, store):
    """With the held-out one among them, a recipe of two shards seemed to have made three."""
    said = cli("run", toml(store.parent / "again.toml", store)).out
    with FeatureStore(store) as opened:
        rows = sum(shard.rows for shard in (*opened.shards, opened.held_out))
    assert f"{rows} rows in 2 shards and the held-out one" in said
    fresh = toml(store.parent / "tiny.toml", store.parent / "fresh")
    cli("extract", fresh)
    cli("train", store.parent / "fresh", "--shard", "000")
    said = " ".join(cli("run", fresh).out.replace("│", " ").split())
    assert all(text in said for text in ("1 component solved, 2 already up to date ", " worst of 3: "))
    assert said.startswith("taftcache run ┏")


def test_what_init_and_demo_say_fits_its_lines(cli, images, tmp_path, monkeypatch):
    """A path or a list of classes may be longer than a line, but then it is all of it."""
    monkeypatch.chdir(tmp_path)
    lines = cli("init", images, "-o", "mine.toml").out.splitlines()
    assert [line.split()[0] for line in lines][:9] == [
        "images",
        "classes",
        "split",
        "model",
        "input",
        "mean",
        "trained",
        "cost",
        "store",
    ]
    assert max(len(line) for line in lines if not line.startswith("store")) <= 80
    few = ("data.limit=60", "store.shards=2", "solver.tolerance=1e-3", "forget.samples=[]")
    said = cli("demo", *(x for o in few for x in ("--set", o))).out
    assert max(map(len, said[said.index("\nstore") :].splitlines())) <= 80
    assert said.splitlines()[0].strip() == "taftcache demo"
    assert "2 components and models/head solved " in said


def test_a_store_on_eighty_columns(cli, store, monkeypatch):
    """Nothing is cut off, and no line is longer."""
    for arguments in (("inspect", store), ("inspect", store, "--shard", "000"), ("inspect", store, "--class", "7")):
        cli("inspect", store, "--ids")
        monkeypatch.setenv("COLUMNS", "80")
        out = cli(*arguments).out.replace(str(store), "stores/x")
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
        assert [line for line in out.splitlines() if re.search(r"\S…", line)] == []
    assert "components/000" in cli("inspect", store).out


def test_no_sentence_is_broken_in_a_pipe(cli, store, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    said = "PASSED: nothing was forgotten here so far; every file whole, 3 certificates proven"
    assert said in cli("audit", store).out.splitlines()


def test_training_says_what_to_do_about_a_certificate_that_decides_nothing(capsys):
    components = {
        name: certificate(JudgedCertificate, distance_bound=1.5, row_moves=5e-3, decisive=decisive)
        for name, decisive in (("components/000", False), ("components/001", True))
    }
    show_train(TrainReport(store=Path("x"), root_digest="", trained=[*components], kept=[], certificates=components))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "components/000: certified to 1.5e+00, removing a row moves it by about 5.0e-03: not decisive",
        '  try: train with solver.tolerance = "decisive", or with a larger objective.ridge',
    ]


def test_a_function_s_report_is_shown_as_its_command_prints_it(cli, store, capsys):
    """In a notebook it was one line of thousands of characters."""
    printed = cli("evaluate", store).out
    capsys.readouterr()
    report = taftcache.evaluate(store)
    taftcache.show(report)
    assert capsys.readouterr().out == printed
    displayed = list[str]()
    report._repr_pretty_(SimpleNamespace(text=displayed.append), False)  # as IPython calls it
    assert displayed == [printed.rstrip()]
    assert capsys.readouterr().out == ""
    assert taftcache.to_json(report) + "\n" == cli("evaluate", store, "--json").out
    for give in (taftcache.show, taftcache.to_json):
        with pytest.raises(ArgumentError, match="no report"):
            give({"accuracy": object()})


def test_every_report_can_be_shown():
    """But those of single figures, which are no commands'."""
    functions = [getattr(taftcache, name) for name in taftcache.__all__ if name.islower() and name != "__version__"]
    reports = {f.__annotations__.get("return", "") for f in functions if f.__module__.startswith("taftcache.stages")}
    assert {name for name in reports if name.endswith(("Report", "Influence"))} - PRINTERS.keys() == set()
    assert len(PRINTERS) > 30
    others = {name for name in PRINTERS if not issubclass(getattr(taftcache, name), Report)}
    assert others == {"Sample"}, "which comes in lists; a notebook shows each of the others in words"


def test_a_large_image_is_read_without_pillows_warning_or_refused(cli, store, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for side in (40, 50):
        Image.new("L", (side, side)).save(tmp_path / f"{side}.png")
    outcome = cli("predict", store, tmp_path / "40.png")
    assert (outcome.code, outcome.err) == (0, "")
    assert "exceeds limit of 2000 pixels" in cli("predict", store, tmp_path / "50.png").err


def test_predictions_as_a_file(cli, store, images, tmp_path):
    """A row for each image, what could not be read among them, with what the report has of it."""
    (tmp_path / "new").mkdir()
    given = sorted(images.glob("*/*.png"))[:3]
    for k, image in enumerate(given):
        shutil.copy(image, tmp_path / "new" / f"a,{k}.png")
    (tmp_path / "new" / "broken.png").write_text("none")
    file = tmp_path / "classes.csv"
    command = ("predict", store, tmp_path / "new", "--skip-unreadable", "--top", "2", "-o", file)
    out, report = cli(*command).out, json.loads(cli(*command, "--json").out)
    assert f"{file}: 4 rows" in out.splitlines()
    assert "a,0.png" not in out, "the file has them"
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    for row, said in zip(rows, report["predictions"], strict=False):
        assert (row["image"], row["label"], row["label_2"]) == (said["image"], *said["labels"])
        assert [float(row["logit"]), float(row["logit_2"])] == said["logits"]
        assert float(row["margin"]) == said["margin"]
        assert {name: float(row[f"alike_{name}"]) for name in ("right", "rows", "largest")} == said["alike"]
        assert row["left_out"] == ""
    assert (len(rows), len(report["predictions"])) == (4, 3)
    assert (rows[3]["image"], rows[3]["label"]) == (str(tmp_path / "new" / "broken.png"), "")
    assert "does not decode" in rows[3]["left_out"]
    before, image = file.read_bytes(), given[0].read_bytes()
    assert cli("predict", store, given[1], "-o", given[0]).code == 5, "an image is not written over"
    assert given[0].read_bytes() == image
    (table := tmp_path / "table.csv").write_text("path,label\na.png,1\n")
    refused(
        cli("predict", store, given[1], "-o", table), 5, "not written by this command", "name another file, or delete"
    )
    assert table.read_text() == "path,label\na.png,1\n"
    outcome = cli("predict", store, tmp_path / "new", "-o", store / "classes.csv")
    assert outcome.code == 5, outcome
    assert "name a place outside of it" in outcome.err
    assert file.read_bytes() == before
