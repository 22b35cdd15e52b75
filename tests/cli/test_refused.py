"""Refusals: exit codes, an error in words on stderr, JSON where a report would be, and a store left as it was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.stages.writing import alone
from tests.cli.making import refused
from tests.stages.making import open_store, toml, tree, write_images


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("forget", "x", "--mode", "retrian"), ("retrain", "subtract", "resolve")),
        (("compose", "x", "--mode", "sum"), ("auto", "mean", "weighted", "exact")),
        (("run", "x", "--device", "tpu"), ("auto", "cpu", "cuda", "mps")),
        (("convert", "x", "y", "--dtype", "bfloat16"), ("float16", "float32", "int8")),
        (("export", "x", "y", "--format", "matlab"), ("hdf5", "parquet", "npz", "embedding-projector")),
    ],
)
def test_a_choice_is_listed_where_it_is_refused_and_in_the_help(cli, arguments, allowed):
    outcome = cli(*arguments)
    refused(outcome, 2, arguments[-2], arguments[-1], *allowed)
    assert f"<{'|'.join(allowed)}>" in cli(arguments[0], "--help").out.replace("[", "<").replace("]", ">")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--wait", "x", "inspect", "s"), "--wait is 'x', but must be a number of at least 0"),
        (("--wait", "-1", "inspect", "s"), "--wait is -1, but must be a number of at least 0"),
        (("train", "s", "--workers", "1.5"), "--workers is '1.5', but must be a whole number of at least 0"),
        (("train", "s", "--rate", "x"), "--rate is 'x', but must be a number"),
        (("inspect", "s", "--top", "0"), "--top is 0, but must be a whole number of at least 1"),
        (("view", "s", "--port", "99999"), "--port is 99999, but must be a whole number of at least 0 and of at most"),
    ],
)
def test_a_number_that_an_option_does_not_take_is_named(cli, arguments, says):
    refused(cli(*arguments), 2, f"taftcache: {says}")


# What a run cannot end with, as the plan of its shards already says.
REFUSED_BY_THE_PLAN = [
    (["objective.class_weights=[1,2]"], 2, ["class_weights has 2 values, the store has 10 classes"]),
    (["compose.weights={'zzz'=1.0}"], 2, ["compose.weights names zzz", "name some of 000, 001"]),
    (["compose.weights={'000'=0.5}"], 2, ["sum to 0.5", "--weight, or compose.weights"]),
    (["compose.mode=weighted", "compose.weights={'000'=1.0}"], 2, ["does not fit the components: 001"]),
    (["objective.radius=1.0", "solver.tolerance=decisive"], 2, ['"decisive" has no estimate']),
    (["forget.samples=['nobody','nothing']"], 5, ["forget.samples names 2 ids that no image has"]),
    (["prior.teachers=['nowhere']"], 5, ["no store at nowhere"]),
    (["prior.teachers=['a/same','b/same']"], 2, ["two teachers must not share a name"]),
]


@pytest.mark.parametrize(
    ("overrides", "code", "says"),
    [
        *REFUSED_BY_THE_PLAN,
        (["solver.tolerence=1"], 2, ["did you mean solver.tolerance?"]),
        (["store.shards"], 2, ["override"]),
        (["objective.kappa=1e100"], 6, ["kappa of the rescaled square loss is above 1e+09"]),
        (["data={source='folder', train='nowhere'}"], 3, ["nowhere"]),
        (["data.limit=5", "store.shards=9", 'store.plan="balanced"'], 3, ["leave shards empty"]),
        (["store.path="], 2, ["store.path is empty", "stores/NAME"]),
        (["store.path=${NOWHERE_SET}/n"], 2, ["NOWHERE_SET, which is not set"]),
        (["store.path=~no-such-user/n"], 2, ["the home of no user"]),
        (['store.path="a\\u0000b"'], 2, ["store.path has characters that no text has"]),
        (["objective.ridge=\udcff"], 2, ["objective.ridge has characters that no text has"]),
        (["backbone.model_args={device='meta'}"], 2, ["cannot say where", "device", "backbone.precision"]),
        (["device=tpu"], 2, ["tpu", "did you mean 'cpu'?"]),
        (["device=gpu"], 2, ["did you mean 'cuda'?"]),
        (["backbone.weights=nowhere.safetensors"], 4, ["nowhere.safetensors"]),
        (["preprocess.input_size=[3, 40, 40]"], 4, ["40"]),
        (["preprocess.mean=[1e308,0,0]"], 2, ["preprocess.mean must be numbers from -1000 to 1000"]),
        (["preprocess.mean=[123.7,116.3,103.5]"], 2, ["preprocess.mean must be", "divide by 255"]),
        (["preprocess.std=[58.4,57.1,57.4]"], 2, ["preprocess.std must be", "divide by 255"]),
        (["preprocess.mean=[nan,0,0]"], 2, ["preprocess.mean must be numbers"]),
        (["preprocess.std=[1e-320,1,1]"], 2, ["preprocess.std must be numbers from 1e-06"]),
        (["preprocess.crop_pct=1e-9"], 2, ["choose a number from 0.1"]),
        (["tangent.blocks=0", "tangent.class_token=reset"], 4, ["a tail of the head alone", 'class_token at "keep"']),
        (["tangent.blocks=0", "store.cache=attended"], 2, ["a tail that is computed as feature"]),
    ],
)
def test_refusals_of_run_make_no_store(cli, tmp_path, monkeypatch, overrides, code, says):
    """Nothing is left that would block the next run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = toml(tmp_path / "tiny.toml", tmp_path / "store", data={"source": "digits", "limit": 30})
    refused(cli("run", file, *(x for o in overrides for x in ("--set", o))), code, *says)
    assert list(tmp_path.iterdir()) == [file]


def test_ids_that_no_image_has_are_listed(cli, tmp_path):
    file = toml(tmp_path / "tiny.toml", tmp_path / "store", data={"source": "digits", "limit": 30})
    told = cli("run", file, "--set", "forget.samples=['nobody','digits/0084','nothing']", "--json")
    assert (told.code, told.json["ids"]) == (5, ["nobody", "nothing"])


@pytest.mark.parametrize("taken", ["other", "file", "file/x"])
def test_a_dry_run_refuses_a_place_that_the_run_would(cli, tmp_path, monkeypatch, taken):
    monkeypatch.chdir(tmp_path)
    file = toml(tmp_path / "tiny.toml", taken, data={"source": "digits", "limit": 30})
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("mine")
    for more in ([], ["--dry-run"]):
        refused(cli("extract", file, *more), 5, f"cannot create a store at {taken}")


@pytest.mark.parametrize(
    "line", [["forget", "", "--sample", "digits/0001", "--dry-run"], ["predict", "STORE", ""], ["export", "STORE", ""],
             ["report", "STORE", "--output="], ["export-component", "STORE", "", "new"]],
)  # fmt: skip
def test_an_empty_argument_is_not_the_current_folder(cli, store, monkeypatch, line):
    """A script's variable that was not set: the command went to work on the folder that it was started in."""
    monkeypatch.chdir(store)
    before = tree(store)
    refused(cli(*(store if word == "STORE" else word for word in line)), 2, "an argument is empty\n  got: taftcache")
    assert tree(store) == before


def test_links_that_lead_to_themselves(cli, store, tmp_path, monkeypatch):
    """They are like links that lead nowhere: to a folder or to an image; a file that is to be written is refused."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "pics")
    for name in ("loop", "pics/1/loop.png", "pics/loop", "pics/1/loop"):
        Path(name).symlink_to(Path(name).name)
    for name in ("pics/loop", "pics/1/loop"):
        for line in (f"predict {store} pics --skip-unreadable", "init pics"):
            refused(cli(*line.split()), 3, f"{name} leads to cannot be reached\n  got: loop\n")
        Path(name).unlink()
    refused(cli("predict", store, "pics"), 3, "loop.png")
    predicted = cli("predict", store, "pics", "--skip-unreadable", "--json").json
    assert (len(predicted["predictions"]), len(predicted["unreadable"])) == (42, 1)
    assert cli("init", "pics", "--model", "bundled", "--set", "data.unreadable=skip").code == 0
    for line in (
        "init pics -o loop --set data.unreadable=skip",
        f"report {store} -o loop",
        f"audit {store} --ledger-head loop",
    ):
        refused(cli(*line.split()), 5, " loop")


def test_names_that_are_no_text(cli, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9")
    write_images(tmp_path / name)
    refused(cli("init", name, "--model", "bundled"), 2, "data.train has characters that no text has", "another name")
    shutil.move(store, tmp_path / f"store-{name}")
    assert cli("report", f"store-{name}", "-o", "r.html", "--no-neighbours").code == 0
    assert "taftcache report · store-caf?" in Path("r.html").read_text("utf-8")


def test_what_the_system_refuses_is_no_traceback(cli, store, monkeypatch):
    """Wherever a file is opened: the error has the file's name and the cause."""

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "somewhere/file")

    monkeypatch.setattr("taftcache.inspect", deny, raising=False)
    outcome = cli("inspect", store, "--json")
    assert (outcome.code, outcome.json["error"], outcome.json["fault"]) == (
        5,
        "StoreUnreachable",
        "cannot open somewhere/file: permission denied",
    )
    assert "Traceback" not in outcome.err


def test_refusals_of_run_leave_an_unfinished_store(cli, tmp_path):
    """A store that a stopped run began is neither gone on with nor changed."""
    path, folder = tmp_path / "store", write_images(tmp_path / "images", classes=10)
    bad = sorted((folder / "1").iterdir())[3]
    bad.write_bytes(b"")
    data = {"source": "folder", "train": str(folder), "unreadable": "stop"}
    file = toml(tmp_path / "tiny.toml", path, data=data)
    refused(cli("run", file), 3, bad.name)
    before, root = tree(path), FeatureStore(path).root_digest
    for overrides, code, says in REFUSED_BY_THE_PLAN:
        chosen = [x for o in [*overrides, "data.unreadable=skip"] for x in ("--set", o)]
        refused(cli("run", file, *chosen), code, *says)
        assert (tree(path), FeatureStore(path).root_digest) == (before, root), overrides


def test_a_folder_that_is_taken_is_left_as_it_was(cli, store, tmp_path):
    """The advice is a folder, and no call of Python's; for a store that lost its manifest, also to put that back."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    (store / "manifest.json").unlink()
    file = toml(tmp_path / "tiny.toml", store)
    for place, advice in ((other, "name a folder that is empty"), (store, "put its manifest.json back")):
        before = tree(place)
        outcome = cli("run", file, "--set", f"store.path={place}")
        refused(outcome, 5, "it is not an empty folder", advice)
        assert "mode=" not in outcome.err
        assert tree(place) == before


def test_a_store_in_place_of_a_recipe_is_called_one(cli, store):
    for command in ("run", "extract"):
        refused(
            cli(command, store), 2, f"{store} is a store, not a recipe", "taftcache train, evaluate, predict, forget"
        )
    name = f"{store.name}-recipe.toml"
    refused(cli("run", store), 2, f"--recipe > {name} &&", f"taftcache append {name} takes further images in")
    refused(cli("run", store.parent), 2, "is a folder, not a recipe")


def test_a_run_without_its_images_says_what_needs_none(cli, tmp_path):
    """Where all rows are there; not of a store that was only begun."""
    path, folder = tmp_path / "store", write_images(tmp_path / "images")
    file = toml(tmp_path / "tiny.toml", path, data={"source": "folder", "train": str(folder)})
    done = cli("run", file)
    assert f"taftcache predict {path} IMAGE   (also: export-model, audit)\n" in done.out
    folder.rename(tmp_path / "elsewhere")
    advice = f"these need no images: taftcache train {path}, taftcache evaluate {path}"
    refused(cli("run", file), 3, "no folder of images", "name where they lie", advice)
    outcome = cli("run", file, "--set", f"store.path={tmp_path / 'other'}")
    refused(outcome, 3, "no folder of images")
    assert advice[:20] not in outcome.err
    assert cli("train", path).code == 0


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
    else:  # as the error says, in the store that the refused run began
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
    if cure == "skip":
        assert cli("extract", toml(tmp_path / "other.toml", tmp_path / "other", data=data)).code == 0
        with FeatureStore(path) as opened, FeatureStore(tmp_path / "other") as at_once:
            assert opened.manifest.recipe == at_once.manifest.recipe
            assert [s.path for s in opened.manifest.shards] == [s.path for s in at_once.manifest.shards]
        refused(
            cli("run", toml(tmp_path / "tiny.toml", path, data=data | {"unreadable": "stop"})), 5, "data.unreadable"
        )


def test_a_finished_store_takes_a_recipe_that_would_skip(cli, tmp_path):
    """Nothing in it was skipped, so it is what that recipe asks for."""
    path, data = tmp_path / "store", {"source": "folder", "train": str(write_images(tmp_path / "images"))}
    assert cli("run", toml(tmp_path / "tiny.toml", path, data=data)).code == 0
    before = tree(path)
    assert cli("run", toml(tmp_path / "tiny.toml", path, data=data | {"unreadable": "skip"})).code == 0
    assert tree(path) == before


def test_a_skipped_image_is_named_and_forgotten(cli, tmp_path):
    path, folder = tmp_path / "store", write_images(tmp_path / "images")
    bad = sorted((folder / "1").iterdir())[3]
    bad.write_bytes(b"")
    data = {"source": "folder", "train": str(folder), "unreadable": "skip"}
    outcome = cli("run", toml(tmp_path / "tiny.toml", path, data=data))
    assert (outcome.code, "41 images run and cached; 1 skipped" in outcome.out) == (0, True)
    assert f"skipped   1/{bad.name}: " in cli("inspect", path).out
    named = cli("inspect", path, "--json").json["left_out"]
    reason = "UnidentifiedImageError: the file is in no format that is read: BMP, "  # neither its place on the disk
    assert [(s["sample"], s["reason"][: len(reason)]) for s in named] == [(f"1/{bad.name}", reason)]
    refused(cli("inspect", path, "--sample", f"1/{bad.name}"), 5, "which was skipped", "in no format")
    said = cli("append", tmp_path / "tiny.toml", "--dry-run").out
    assert "1 sample skipped before, and not to be read now either" in said
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


def test_a_recipe_is_taken_for_its_store(cli, store, tmp_path):
    """Where a store is asked for; and where either is, and neither is there, no list of recipes is the answer."""
    file = toml(tmp_path / "tiny.toml", store)
    assert cli("inspect", file, "--json").json["root_digest"] == cli("inspect", store, "--json").json["root_digest"]
    toml(file, tmp_path / "none")
    refused(cli("inspect", file), 2, "is a recipe, and its store", f"taftcache run {file}")
    outcome = cli("train", tmp_path / "tiny")
    refused(outcome, 2, "neither a store nor a recipe", f"did you mean {file}?")
    assert "published/" not in outcome.err
    assert cli("train", "quickstarts").err.count("quickstart") == 3


def test_options_of_another_labelled_set_and_of_the_held_out_rows_do_not_mix(cli, finished, images):
    refused(cli("evaluate", finished, "--by", "site"), 2, "--by is only for --on DATA", "name DATA")
    refused(
        cli("evaluate", finished, "--on", images, "--probe"),
        2,
        "--probe is only for the held-out rows",
        "leave --on out",
    )


def test_a_store_without_a_model_says_how_to_get_one(cli, tmp_path):
    x = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(30) % 2, ids=np.array([f"r{k}" for k in range(30)]))
    path = tmp_path / "store"
    assert cli("import", tmp_path / "x.npz", path, "--set", "store.shards=2").code == 0
    for arguments in (
        ("influence", path, "--sample", "r1"),
        ("export-component", path, "000", tmp_path / "one.safetensors"),
        ("evaluate", path, "--without", "000"),
        ("compose", path),
    ):
        outcome = cli(*arguments)
        refused(outcome, outcome.code, "try: taftcache train")
    refused(outcome, 7, "2 shards without a component", "got: 000, 001", f"try: taftcache train {path}\n")
    assert cli("train", path).code == 0
    refused(cli("evaluate", path, "--without", "000", "--without", "001"), 2, "leave out fewer")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("convert", "STORE", "new"), 2, "changes nothing"),
        (("convert", "STORE", "new", "--chunk-rows", "-3"), 2, "positive number"),
        (("copy", "nowhere", "new"), 5, "nowhere"),
        (("copy", "STORE", "s3://"), 2, "s3://bucket/prefix"),
        (("copy", "STORE", "s3://bk/../h"), 2, "'s3://bk/../h' is not the address"),
        (("copy", "STORE", "S3://bk/h"), 2, "'S3://bk/h' is not the address"),
        (("copy", "STORE", "gs://bk/h"), 2, "'gs://bk/h' is not the address"),
        (("import", "nowhere.h5", "new"), 3, "nowhere.h5"),
        (("gc", "nowhere"), 5, "nowhere"),
    ],
)
def test_wrong_arguments_of_moving_and_growing(cli, store, tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    refused(cli(*(str(store) if a == "STORE" else a for a in arguments)), code, says)
    assert not (tmp_path / "new").exists()


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


@pytest.mark.parametrize("error", [AttributeError("no buffer"), OSError(5, "input or output")], ids=["any", "os"])
def test_an_error_without_words_of_its_own_is_json_too(store, monkeypatch, capsys, error):
    """A traceback alone, and nothing on stdout, for who parses it."""

    def fails(*_, **__):
        raise error

    monkeypatch.setattr("taftcache.receipts", fails)
    with pytest.raises(type(error)):
        main(["receipts", str(store), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (said["error"], said["exit_code"]) == (type(error).__name__, 1)
    assert str(error) == said["fault"]


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


def test_a_file_whose_name_begins_with_a_dash_is_told_from_an_option(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("-dash.png", "--a dash.png"):
        assert cli("predict", "STORE", name, "--json").json["try"] == "taftcache predict --help"
        Path(name).touch()
        outcome = cli("predict", "STORE", name, "--json")
        file = name if " " not in name else f"'{name}'"
        said = f"-- goes before names that begin with a dash: taftcache predict … -- {file}"
        assert (outcome.code, outcome.json["try"]) == (2, said)


def test_an_option_that_stands_before_the_command_is_sent_there(cli):
    outcome = cli("append", "STORE", "--wait", "60", "--json")
    assert (outcome.code, outcome.json["fault"]) == (2, "no such option: --wait")
    assert outcome.json["try"] == "it stands before the command: taftcache --wait … append"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (MemoryError(), "solver.memory=0B"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "solver.memory=0B"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "solver.memory=0B"),
        (MemoryError("no memory to decode the image a/1.png"), "extract.workers=1"),
    ],
)
def test_the_end_of_memory_is_json_too(cli, monkeypatch, tmp_path, error, advice):
    def stopped(*arguments, **options):
        raise error

    monkeypatch.setattr("taftcache.stages.files.verification.verify", stopped)
    outcome = cli("verify", tmp_path, "--json")
    assert (outcome.code, outcome.json["exit_code"], outcome.json["error"]) == (137, 137, "MemoryError")
    assert "memory ran out" in outcome.err
    assert advice in outcome.json["try"]
    assert outcome.json["got"] == str(error)


def test_the_end_of_memory_while_teaching_names_keys_of_a_teaching_recipe(cli, monkeypatch, tmp_path):
    def stopped(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("taftcache.cli.experiments.load_teaching", stopped)
    advice = cli("teach", tmp_path / "student.toml", "--json").json["try"]
    keys = [key for key in ("train.memory", "train.batch", "teach.noise", "solver.", "extract.") if key in advice]
    assert keys == ["train.memory", "train.batch", "teach.noise"]


def test_an_interruption_is_json_too(cli, monkeypatch, tmp_path):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("taftcache.stages.files.verification.verify", stopped)
    outcome = cli("verify", tmp_path, "--repair", "--json")
    assert outcome.code == 130
    assert outcome.json["exit_code"] == 130
    assert outcome.json["fault"] in outcome.err
    assert "resumes from there" in outcome.err


def test_an_interruption_of_a_command_that_only_reads_promises_nothing(cli, monkeypatch, tmp_path):
    """Influence said that what was committed is kept."""

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("taftcache.cli._run", stopped)
    for words in (["influence"], ["audit"], ["verify"], ["--wait", "1", "evaluate"]):
        outcome = cli(*words, tmp_path, "--json")
        assert (outcome.code, outcome.err) == (130, "taftcache: interrupted\n")
        assert outcome.json["fault"] == "interrupted"


GOLDEN = Path(__file__).parents[2] / "stores" / "golden"
SAMPLE = "golden/é/0006.png"


@pytest.mark.law("A stranger's store can be refused, and can do nothing else")
@pytest.mark.parametrize("name", sorted(file.name for file in GOLDEN.glob("*-by-*")))
def test_a_store_that_no_stage_made_is_read_or_refused_in_words(cli, tmp_path, name):
    """Its recipe, plan and ledger are another program's: they ended in a KeyError, or were said to be damaged."""
    store = shutil.copytree(GOLDEN / name, tmp_path / "golden")
    file, before = toml(tmp_path / "tiny.toml", store), tree(store)
    for arguments in (("train", store), ("append", store), ("append", file), ("extract", file), ("evaluate", store)):
        refused(cli(*arguments), 5, f"is none of this release: unknown key note in {store}")
    refused(cli("compose", store, "--weight", "000=1"), 5, f"is none of this release: unknown key note in {store}")
    for form in ("parquet", "npz", "embedding-projector"):
        refused(cli("export", store, tmp_path / f"rows.{form}", "--format", form), 5, "does not say how its rows were")
    for asked in ((), ("--sample", SAMPLE)):
        refused(cli("receipts", store, *asked), 5, "the ledger has an entry that no request to forget writes", "whole")
    audited = cli("audit", store)
    assert (audited.code, "1 finding" in audited.out, audited.err) == (10, True, "")
    assert [cli(*words).code for words in (("verify", store), ("inspect", store, "--ids"))] == [0, 0]
    assert tree(store) == before


def test_a_plan_that_does_not_count_its_shards_has_those_that_are_there(cli, store):
    with open_store(store) as opened, opened.transaction() as change:
        change.update(plan={k: v for k, v in opened.manifest.plan.items() if k != "groups"})
    with open_store(store) as opened:
        rows = opened.shard("000").sample_ids
        given = [word for i in rows for word in ("--sample", i)]
    for words in (("audit", store), ("inspect", store), ("forget", store, *given), ("audit", store)):
        outcome = cli(*words)
        assert (outcome.code, outcome.err) == (0, "")
    with open_store(store) as opened:
        assert len(opened.manifest.shards) == opened.manifest.plan["groups"]


def test_one_process_at_a_time_writes_a_comparison(cli, finished, tmp_path):
    """Models that are kept there could be another's."""
    with alone(tmp_path / "out"):
        outcome = cli("compare", finished, "-o", tmp_path / "out", "--report", "figure2b")
        refused(outcome, 9, "or name another folder")
        assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "lock"]
    assert not (tmp_path / "out").exists()
