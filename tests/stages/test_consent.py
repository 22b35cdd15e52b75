"""What a store names on its reader's machine is opened only where the reader allowed it."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import msgspec
import pytest
import timm

import taftcache
from taftcache import consent
from taftcache.cache.format.manifest import FILE, Manifest
from taftcache.cache.place.bucket import Url
from taftcache.cache.place.folder import Folder
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.consent import Consent, check_architecture, followed, recorded_recipe, refusal
from taftcache.errors import RecipeError, UntrustedStore
from taftcache.model.predictor import TangentModel
from taftcache.recipe import load_recipe
from taftcache.view.atlas import Atlas
from taftcache.view.pictures import Pictures
from tests.stages import forging
from tests.stages.making import toml


def forge(path: Path, **sections: dict) -> None:
    """Name other things in the store's record, with digests as its maker would have them."""
    manifest = Manifest.decode((path / FILE).read_bytes())
    recipe = manifest.recipe | {name: {**manifest.recipe[name], **section} for name, section in sections.items()}
    (path / FILE).write_bytes(manifest.replace(recipe=recipe).encode())


@pytest.fixture
def foreign(photographed, tmp_path) -> Path:
    """A store from elsewhere that names pictures of this machine, by ids that are their names."""
    return shutil.copytree(photographed, tmp_path / "foreign")


def pictures(path: Path, consent: Consent | None = None) -> tuple[bool, str]:
    """Whether the first sample has a picture, and why not."""
    with FeatureStore(path) as store:
        found = Pictures(store, consent)
        return found.encoded(store.shards[0].sample_ids[0]) is not None, found.why_not


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.law("No file is opened and no network asked because a store names it, unless its reader allowed that")
def test_a_strangers_store_shows_no_pictures_of_its_reader(photographed, foreign, images, tmp_path):
    assert pictures(photographed) == (True, "")
    shown, why = pictures(foreign)
    assert not shown
    assert "data.train" in why
    assert "--images" in why
    assert "\n" not in why
    assert pictures(foreign, Consent(images=(images,))) == (True, "")
    with FeatureStore(foreign) as store:
        report = taftcache.write_report(store, tmp_path / "r.html", neighbours=False)
        assert why in report.notes
    assert b"data:image/png" not in (tmp_path / "r.html").read_bytes()


def test_trust_is_of_one_place_and_of_these_names(photographed, foreign, images, capsys):
    assert (
        run(capsys, "trust", foreign, "--json")[1]
        == json.dumps(
            {"store": str(foreign), "named": {"data.train": str(images)}, "removed": False, "notes": []}, indent=2
        )
        + "\n"
    )
    assert pictures(foreign) == (True, "")
    forge(foreign, data={"train": f"{images}/"})
    assert not pictures(foreign)[0]
    shutil.copytree(photographed, foreign.parent / "other")
    assert not pictures(foreign.parent / "other")[0]
    trusted = Path(os.environ["XDG_STATE_HOME"]) / "taftcache" / "trusted"
    assert trusted.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("sections", "here"),
    [
        ({"backbone": {"model": "vit", "weights": "ours.safetensors"}}, ["backbone.weights is {}/ours.safetensors"]),
        (
            {"backbone": {"model": "Local-Dir:net", "weights": "local-dir:nets/x"}, "prior": {"teachers": ["a", "/b"]}},
            ["backbone.weights is {}/nets/x", "backbone.model is {}/net", "prior.teachers is {}/a"],
        ),
        ({"data": {"source": "timm", "train": "torch/cifar10", "root": "r"}}, ["data.root is {}/r"]),
        ({"backbone": {"model": "hf-hub:me/x", "weights": "pretrained"}}, []),
        ({"backbone": {"model": "vit", "weights": "~/ours.safetensors"}}, []),
    ],
    ids=str,
)
def test_trust_says_where_a_relative_place_leads(foreign, tmp_path, monkeypatch, capsys, sections, here):
    """What it allows is the name, which is another file from another folder."""
    monkeypatch.chdir(tmp_path)
    forge(foreign, **sections)
    out = " ".join(run(capsys, "trust", foreign)[1].split())
    assert all(text.format(tmp_path) in out for text in here), out
    assert out.count(" is /") == len(here)
    assert ("relative to the folder that a command runs in" in out) is bool(here)


def test_a_relative_place_is_that_of_the_folder_the_store_was_opened_in(photographed, images, tmp_path, monkeypatch):
    """After a change of the folder, as in a notebook, the list of what may be opened has no store at that place."""
    shutil.copytree(photographed, tmp_path / "here" / "store")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    taftcache.trust("store")
    with FeatureStore("store", mode="a") as store:
        monkeypatch.chdir(tmp_path / "there")
        assert refusal(store, "images", recorded_recipe(store)) is None
        sample = store.shard("000").sample_ids[0]
        notes = taftcache.forget(store, [sample], dry_run=True).notes
        assert not [note for note in notes if "not searched" in note], notes
        assert [note for note in notes if "still in the source" in note], notes
        assert taftcache.export(store, tmp_path / "rows.npz").rows
        taftcache.distrust(store)
        assert refusal(store, "images", recorded_recipe(store)) is not None
        taftcache.trust(store)
    assert refusal(FeatureStore(tmp_path / "here" / "store"), "images", recorded_recipe(store)) is None


def test_trust_that_cannot_be_kept_is_no_success(foreign, tmp_path, monkeypatch, capsys):
    (tmp_path / "state").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code, out, err = run(capsys, "trust", foreign)
    assert (code, out) == (5, "")
    assert "the list of what stores may open" in err
    assert not pictures(foreign)[0]


def test_trust_is_taken_back_of_one_place(foreign, images, capsys):
    """With whatever names it was given, also of a store that is gone; leave of others stays, odd lines too."""
    trusted = Path(os.environ["XDG_STATE_HOME"]) / "taftcache" / "trusted"
    run(capsys, "trust", foreign)
    with trusted.open("a") as file:
        file.write('no JSON\n{"store": 5}\n')
    before = trusted.read_text(encoding="utf-8").splitlines()
    forge(foreign, data={"train": "elsewhere\nin two lines"})
    run(capsys, "trust", foreign)
    shutil.move(foreign, foreign.parent / "gone")
    code, out, _ = run(capsys, "trust", foreign, "--remove", "--json")
    assert (code, json.loads(out)["removed"]) == (0, True)
    assert json.loads(out)["named"]["data.train"] == "elsewhere\nin two lines"
    assert trusted.read_text(encoding="utf-8").splitlines() == [line for line in before if str(foreign) not in line]
    assert trusted.stat().st_mode & 0o777 == 0o600
    shutil.move(foreign.parent / "gone", foreign)
    assert not pictures(foreign)[0]
    assert "no leave" in run(capsys, "trust", foreign, "--remove")[1]


@pytest.mark.parametrize("change", [consent.take_back, consent.remember])
def test_two_that_change_the_list_at_once_lose_nothing(change, tmp_path, monkeypatch):
    """What one took back between the other's look and its writing was allowed again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asked = load_recipe("quickstart", ['data.source="folder"', 'data.train="/images"'])
    consent.remember("/a", asked)
    consent.remember("/b", asked)
    swap, others = Folder.swap, []

    def slow(*arguments, **options):
        if not others:
            others.append(Thread(target=change, args=["/b"] if change is consent.take_back else ["/c", asked]))
            others[0].start()
            others[0].join(0.5)
        return swap(*arguments, **options)

    monkeypatch.setattr(Folder, "swap", slow)
    consent.take_back("/a")
    others[0].join()
    stores = {
        json.loads(line)["store"]
        for line in (tmp_path / "taftcache" / "trusted").read_text(encoding="utf-8").splitlines()
    }
    assert stores == (set() if change is consent.take_back else {"/b", "/c"})


def test_a_bucket_is_one_place_however_it_is_written(tmp_path, monkeypatch):
    """A Path drops a slash: what a recipe allowed did not hold for its store, and what was revoked stayed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asked = load_recipe("quickstart", ['data.source="folder"', 'data.train="/images"'])
    ways = ["s3://bk/mine", "s3://bk/mine/", Path("s3://bk/mine"), Url("s3:/bk/mine")]
    for allowed in ways:
        consent.remember(allowed, asked)
        before = (tmp_path / "taftcache" / "trusted").read_text(encoding="utf-8")
        for known in ways:
            consent.remember(known, asked)
            assert (tmp_path / "taftcache" / "trusted").read_text(encoding="utf-8") == before
            assert consent.take_back(known) == {"data.train": "/images"}
            consent.remember(allowed, asked)
        assert consent.take_back(Path("s3://bk/other")) == {}
        consent.take_back(allowed)
        assert str(taftcache.distrust(known).store) == "s3://bk/mine"


def test_a_copy_may_what_its_source_may(photographed, foreign, tmp_path):
    taftcache.copy(photographed, tmp_path / "mine")
    taftcache.copy(foreign, tmp_path / "theirs")
    taftcache.convert(photographed, tmp_path / "wide", dtype="float32")
    assert [pictures(tmp_path / name)[0] for name in ("mine", "theirs", "wide")] == [True, False, True]


def test_without_a_home_a_store_is_made_all_the_same(tmp_path, monkeypatch, images):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    file = toml(tmp_path / "r.toml", tmp_path / "store", data={"source": "folder", "train": str(images)})
    with pytest.raises(SystemExit) as ended:
        main(["extract", str(file), "--json"])
    assert not ended.value.code


def test_as_many_places_as_the_store_was_made_from(foreign, images):
    with pytest.raises(RecipeError, match="another number"):
        pictures(foreign, Consent(images=(images,) * 2))
    forge(foreign, data={"source": "digits", "train": None})
    with pytest.raises(RecipeError, match="another number"):
        pictures(foreign, Consent(images=(images,)))


@pytest.mark.parametrize("kind", [str, Path], ids=["text", "path"])
def test_one_place_is_not_read_as_the_letters_of_its_name(kind):
    with pytest.raises(RecipeError, match="images must be a list"):
        Consent(images=kind("x"))


@pytest.mark.law("No file is opened and no network asked because a store names it, unless its reader allowed that")
@pytest.mark.parametrize(
    "named",
    [
        {"weights": "pretrained", "model": "hf-hub:attacker/evil"},
        {"weights": "pretrained", "model": "vit_tiny_patch16_224.augreg_in21k"},
        {"weights": "pretrained", "model": "local-dir:/home/reader"},
        {"weights": "pretrained", "model": "Local-Dir:/home/reader"},
        {"weights": "local-dir:${SECRET}"},
        {"weights": "~/weights.safetensors", "model": "hf-hub:attacker/evil"},
    ],
    ids=str,
)
def test_a_strangers_weights_are_neither_opened_nor_downloaded(foreign, monkeypatch, named):
    monkeypatch.setenv("SECRET", "of-the-reader")
    asked = []

    def create(name, **options):
        asked.append(name)
        raise OSError("no network in a test")

    monkeypatch.setattr(timm, "create_model", create)
    forge(foreign, backbone=named)
    with pytest.raises(UntrustedStore) as refused:
        TangentModel.load(foreign, device="cpu")
    assert "of-the-reader" not in str(refused.value)
    file, by_hub = named["weights"] != "pretrained", named.get("model", "local-dir:")[:10].lower() != "local-dir:"
    assert ("--weights FILE" in refused.value.do) is ("weights=…" in refused.value.do) is file
    assert ("--allow-hub" in refused.value.do) is ("hub=True" in refused.value.do) is by_hub
    assert str(Path(os.environ["XDG_STATE_HOME"]) / "taftcache" / "trusted") in refused.value.do
    assert asked == []
    hub = named["weights"] == "pretrained" and "local-dir:" not in named["model"].lower()
    with pytest.raises(taftcache.BackboneError if hub else UntrustedStore):
        TangentModel.load(foreign, device="cpu", consent=Consent(hub=True))
    assert asked == ([named["model"]] if hub else [])


@pytest.mark.law("No file is opened and no network asked because a store names it, unless its reader allowed that")
def test_the_store_of_a_reference_is_a_strangers_too(photographed, foreign, images):
    """Weights that are named are also its own if it has the same; no option names those of two models."""
    forge(foreign, backbone={"weights": "local-dir:/home/reader"})
    with pytest.raises(UntrustedStore) as same:
        taftcache.evaluate_on(photographed, images, reference=foreign)
    identity = Manifest.decode((foreign / FILE).read_bytes()).identity
    forging.forge(foreign, identity=identity | {"backbone": {**identity["backbone"], "weights_digest": "0" * 64}})
    with pytest.raises(UntrustedStore) as other:
        taftcache.evaluate_on(photographed, images, reference=foreign, consent=Consent(weights=images))
    assert ["--weights" in refused.value.do for refused in (same, other)] == [True, False]
    assert f"taftcache trust {foreign}" in other.value.do


def test_code_is_asked_of_the_hub_for_the_model_that_was_allowed_alone(foreign):
    """A store can record one model, and name another where its tail is built."""
    allowed, other = "hf-hub:friend/model", "hf-hub:attacker/evil"
    forge(foreign, backbone={"weights": "pretrained", "model": allowed})

    def check(model: str, consent: Consent | None = None) -> None:
        identity = Manifest.decode((foreign / FILE).read_bytes()).identity
        forging.forge(foreign, identity=identity | {"backbone": {**identity["backbone"], "model": model}})
        with FeatureStore(foreign) as store:
            check_architecture(store, consent)

    check("vit_tiny_patch16_224")
    check(allowed, Consent(hub=True))
    for model in (allowed, other):
        with pytest.raises(UntrustedStore, match="has not allowed"):
            check(model)
    with pytest.raises(UntrustedStore, match="another model than the one its record names"):
        check(other, Consent(hub=True))


def test_weights_of_ones_own_take_the_place_of_a_strangers(foreign, images, capsys, tmp_path):
    from taftcache.backbone.files import BUNDLED

    one = next(iter(sorted(images.glob("0/*.png"))))
    expected = json.loads(run(capsys, "predict", foreign, one, "--json")[1])["predictions"]
    forge(foreign, backbone={"weights": "${HOME}/secret"})
    code, out, err = run(capsys, "predict", foreign, one, "--json")
    assert (code, json.loads(out)["error"]) == (5, "UntrustedStore")
    assert os.environ["HOME"] not in err
    found = json.loads(run(capsys, "predict", foreign, one, "--weights", BUNDLED, "--json")[1])
    assert found["predictions"] == expected
    assert run(capsys, "export-model", foreign, tmp_path / "model", "--weights", BUNDLED)[0] == 0


def test_a_file_of_weights_for_those_of_a_folder(foreign, images, capsys, tmp_path):
    """It does not say its model, which nobody can name of a store: it must be the folder's own."""
    from taftcache.backbone.files import BUNDLED

    one, line = min(images.glob("0/*.png")), ("--json", "--weights")
    expected = json.loads(run(capsys, "predict", foreign, one, "--json")[1])["predictions"]
    folder = shutil.copytree(BUNDLED, tmp_path / "folder")
    own, other = folder / "model.safetensors", tmp_path / "other.safetensors"
    other.write_bytes(b"others")
    not_those = "taftcache: these weights are not those of the store's backbone, vit_tiny_patch16_224\n"
    for where, instead in (("bundled", "leave them out"), ("${HOME}/secret", "name the store's folder of weights")):
        forge(foreign, backbone={"weights": where})
        code, _, err = run(capsys, "predict", foreign, one, *line, other)
        assert (code, err.startswith(not_those), instead in err) == (4, True, True), err
        code, out, err = run(capsys, "predict", foreign, one, *line, own)
        assert code == 0, err
        assert json.loads(out)["predictions"] == expected


@pytest.mark.parametrize("command", [["append"], ["verify", "--repair"]])
def test_commands_that_read_images_again_need_them_named(foreign, images, capsys, command):
    if command[0] == "verify":
        next((foreign / "shards").rglob("c.0.0.0")).write_bytes(b"damaged")
    code, out, err = run(capsys, command[0], foreign, *command[1:])
    assert (code, "has not allowed" in out + err) == (10 if command[0] == "verify" else 5, True)
    code, out, err = run(capsys, command[0], foreign, *command[1:], "--set", f"data.train={images}")
    assert code == 0, (out, err)


@pytest.mark.law("No file is opened and no network asked because a store names it, unless its reader allowed that")
@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("folder", ["train", "test"]),
        ("table", ["train", "test", "root"]),
        ("timm", ["train", "test", "root"]),
        ("published", ["root"]),
    ],
)
def test_leave_is_of_every_place_that_a_source_reads(foreign, source, keys):
    places = {key: f"/home/reader/{key}" for key in keys}
    forge(foreign, data={"source": source, "train": "cifar10", **places})
    with FeatureStore(foreign) as store, pytest.raises(UntrustedStore) as refused:
        followed(store, "images")
    assert refused.value.got == ", ".join(f"data.{key} = {place!r}" for key, place in places.items())


@pytest.mark.parametrize("command", [["append"], ["verify", "--repair"], ["compare"]])
@pytest.mark.parametrize("kind", ["images", "weights"])
def test_a_refusal_names_options_that_the_command_has(foreign, images, capsys, command, kind):
    named = {"images": "--set data.train=…", "weights": "--set backbone.weights=…"}[kind]
    if command[0] == "verify":
        next((foreign / "shards").rglob("c.0.0.0")).write_bytes(b"damaged")
    if kind == "weights":
        consent.remember(foreign, recorded_recipe(FeatureStore(foreign)), ["images"])
        forge(foreign, backbone={"weights": "local-dir:nets/x"})
    _, out, err = run(capsys, command[0], foreign, *command[1:])
    said = " ".join((out + err).split())
    assert f"name them yourself ({named}), or taftcache trust {foreign}" in said
    assert not any(word in said for word in ("--images", "--weights", "--allow-hub", "Consent"))


def test_what_the_hub_is_not_asked_for_is_named_alone(foreign, images, capsys):
    """--allow-hub was advised to who had given it."""
    forge(foreign, backbone={"model": "hf-hub:friend/model", "weights": "ours.safetensors"})
    line = ("predict", foreign, next(images.glob("0/*.png")))
    assert "(--weights FILE --allow-hub; in Python Consent(weights=…, hub=True))" in run(capsys, *line)[2]
    assert "(--weights FILE; in Python Consent(weights=…))" in run(capsys, *line, "--allow-hub")[2]
    given = run(capsys, *line, "--weights", "mine.safetensors")[2]
    assert "(--allow-hub; in Python Consent(hub=True))" in given


def test_weights_that_are_not_there_are_described(foreign, images, tmp_path, monkeypatch, capsys):
    """Where was looked, which file it must be, and how a command is told where it lies."""
    from taftcache.backbone.files import BUNDLED, WEIGHTS_NAME, file_digest

    monkeypatch.chdir(tmp_path)
    forge(foreign, backbone={"weights": "ours.safetensors", "model": "vit_tiny_patch16_224"})
    consent.remember(foreign, recorded_recipe(FeatureStore(foreign)))
    file = f": the .safetensors file has the BLAKE3 digest {file_digest(BUNDLED / WEIGHTS_NAME)}"
    image = next(images.glob("0/*.png"))
    for line, place, way in (
        (("predict", foreign, image), "ours.safetensors", "--weights FILE; in Python Consent(weights=…)"),
        (("find", foreign, image), "ours.safetensors", "--weights FILE; in Python Consent(weights=…)"),
        (
            ("predict", foreign, image, "--weights", "bundled"),
            "bundled",
            "--weights FILE; in Python Consent(weights=…)",
        ),
        (
            ("append", foreign, "--set", f"data.train={images.parent}/more"),
            "ours.safetensors",
            "--set backbone.weights=FILE",
        ),
        (("verify", foreign, "--repair"), "ours.safetensors", "--set backbone.weights=FILE"),
    ):
        if line[0] == "append":
            shutil.copytree(images, images.parent / "more")
            shutil.copy(image, images.parent / "more" / "0" / "new.png")
        if line[0] == "verify":
            next((foreign / "shards").rglob("c.0.0.0")).write_bytes(b"damaged")
        _, out, err = run(capsys, *line)
        said = " ".join((out + err).split())
        assert f"no weights at {tmp_path / place}" in said
        assert f"name where they lie ({way}){file}" in said


def test_names_other_than_the_stores_are_its_readers_own(foreign, images):
    forge(foreign, data={"train": "/home/reader/Pictures"})
    with FeatureStore(foreign) as store:
        named = recorded_recipe(store)
        own = msgspec.structs.replace(named, data=msgspec.structs.replace(named.data, train=str(images)))
        assert refusal(store, "images", named) is not None
        assert refusal(store, "images", own) is None


@pytest.mark.law("No file is opened and no network asked because a store names it, unless its reader allowed that")
def test_a_strangers_teachers_are_not_opened(foreign, photographed, tmp_path):
    forge(foreign, prior={"teachers": [str(photographed)]})
    with FeatureStore(foreign, mode="a") as store:
        for work in (taftcache.train, lambda s: taftcache.forget(s, [s.shards[0].sample_ids[0]])):
            with pytest.raises(UntrustedStore, match="prior"):
                work(store)


@pytest.mark.parametrize(
    "missing", ["norm", "base_digest", "converged", "certificate", "rows", "cut", "backbone", "dtype"]
)
def test_a_record_that_says_too_little_is_no_traceback(finished, tmp_path, capsys, missing):
    path = shutil.copytree(finished, tmp_path / "store")
    manifest = Manifest.decode((path / FILE).read_bytes())

    def without(said: dict) -> dict:
        return {key: value for key, value in said.items() if key != missing}

    objects = {n: replace(o, meta=without(o.meta)) for n, o in manifest.objects.items()}
    (path / FILE).write_bytes(manifest.replace(identity=without(manifest.identity), objects=objects).encode())
    for command in ("inspect", "train"):
        run(capsys, command, path)
    with FeatureStore(path) as store, suppress(taftcache.TaftcacheError):
        Atlas(store).work(skip=("neighbours",))


@pytest.mark.parametrize("name", ["checkpoint_path", "pretrained_cfg", "cache_dir"])
def test_arguments_by_which_timm_loads_are_refused(foreign, name):
    forge(foreign, backbone={"model_args": {name: "/etc/passwd"}})
    with pytest.raises(RecipeError, match="model_args"):
        TangentModel.load(foreign, device="cpu")
