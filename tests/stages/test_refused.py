"""Refused means unchanged: whatever command ends with an exit code above 0, the store keeps every byte and name."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.model.component import Component
from taftcache.recipe import parse_recipe
from taftcache.stages.train import training
from tests.stages.making import open_store, settings, toml, tree

NO_CUDA = not torch.cuda.is_available()

# A command line, in which {S} is a trained store of two shards and {T} a folder of files, and what the error says.
TRAIN = [
    # objective
    ("--set objective.class_weights=[1,2]", "class_weights has 2 values, the store has 10 classes"),
    ("--set objective.class_weights=[-1]", "class_weights"),
    ("--set objective.class_weights=[0,0,0,0,0,0,0,0,0,0]", "class_weights leaves no row a weight"),
    ("--set objective.ridge=0", "ridge"),
    ("--set objective.loss=hinge", "hinge"),
    ("--set objective.radius=[1,2]", "must be a number above 0"),
    # tangent
    ("--set tangent.blocks=3", "tangent.blocks = 3"),
    ("--set tangent.blocks=stages.1", "stages.1"),
    ('--set tangent.train=["nope.*"]', "nope.*"),
    ("--set tangent.train=[]", "train = []"),
    ("--shard 999 --set tangent.seed=9", "no shard 999"),
    ("--shard 999", "no shard 999"),
    ("--shard held-out", "no shard held-out"),
    ("--shard 000 --set tangent.seed=9", "would leave components/001"),
    ("--shard 000 --set tangent.reset_block=true", "would leave components/001"),
    ("--shard 000 --set tangent.train=head", "would leave components/001"),
    # solver
    ("--set solver.memory=lots", "lots"),
    ("--set solver.tolerance=0", "tolerance"),
    ("--set solver.tolerence=1", "did you mean solver.tolerance"),
    # compose
    ("--set compose.mode=sum", "sum"),
    ("--set compose.mode=weighted --set compose.weights={'000'=1.0} --set objective.ridge=0.1", "does not fit"),
    ("--set compose.weights={'000'=0.5,'001'=0.6}", "sum to 1.1"),
    ("--set compose.weights={'000'=0.5,'components/000'=0.5}", "twice"),
    ("--set compose.weights={'zzz'=1.0}", "zzz"),
    ("--set compose.weights={'000'=nan,'001'=0.5}", "nan"),
    # prior
    ("--set prior.teachers=['{T}/nowhere']", "nowhere"),
    ("--set prior.teachers=['{S}'] --set objective.loss=cross_entropy", "feature"),
    # privacy
    ("--set privacy.epsilon=0", "epsilon"),
    ("--set privacy.delta=2", "delta"),
    ("--private --workers 1", "private"),
    ("--private --rate 1e20", "nothing is learned, and all of epsilon"),
    ("--private --set privacy.learning_rate=1e100", "nothing is learned, and all of epsilon"),
    ("--private --set privacy.learning_rate=1e5 --rate 1 --rate 11", "nothing is learned, and all of epsilon"),
    ("--private --set compose.mode=exact", "private"),
    ("--private --set prior.teachers=['nowhere']", "no store at nowhere"),
    # what the store was made from
    ("--set data.limit=5", "data.limit"),
    ("--set backbone.model=other", "bundled"),
    ("--set store.shards=9", "store.shards"),
    ("--set preprocess.input_size=[3,40,40]", "preprocess.input_size"),
    # what training does not use
    ("--set forget.samples=['digits/0001']", "train does not use forget.samples"),
    ("--set extract.workers=2", "train does not use extract.workers"),
    ("--set compare.seeds=2", "try: taftcache compare"),
    ("--set store.path={T}/new", "train does not use store.path, for the place of the store is named"),
    ("--device tpu", "tpu"),
    pytest.param("--device cuda", "cuda", marks=pytest.mark.skipif(not NO_CUDA, reason="it is there")),
    ("--set nonsense", "override"),
    ("--workers 1 --scheduler tcp://127.0.0.1:1", "--workers"),
]
ONCE = "import {T}/vectors.npz {T}/new"  # a store of vectors is refused before it is made
OTHERS = [
    (f"{ONCE} --set forget.samples=['vectors/00000001']", "try: taftcache forget, once the store is there"),
    (f"{ONCE} --set data.limit=3", "import does not use data.limit"),
    (f"{ONCE} --set backbone.weights=nowhere", "import does not use backbone.weights"),
    (f"{ONCE} --set tangent.blocks=4", "import does not use tangent.blocks"),
    (f"{ONCE} --set store.path=x", "import does not use store.path, for"),
    (f"{ONCE} --set prior.teachers=['nowhere']", "import does not use prior.teachers"),
    (f"{ONCE} --set objective.class_weights=[1]", "class_weights has 1 value, the store has 2 classes"),
    (f"{ONCE} --set data.held_out=0.999", "data.held_out leaves 0 samples for 1 shard"),
    (f"{ONCE} --set data.group=patient(", "taftcache: data.group is no regular expression: missing )"),
    (f"{ONCE} --set data.group=patient", "data.group matches a part of none of "),
    (f"{ONCE} --labels nope", "got: it holds: features, labels"),
    (f"{ONCE} --recipe {{T}}/other.toml --set data.limit=3", "import --recipe does not use data.limit"),
    ("import {T}/vectors.npz {S}", "its rows were made from images"),
    ("import {T}/rows.h5 {T}/new --labels x", "the export of a store comes back as it is"),
    ("import {T}/rows.h5 {T}/new --set store.shards=2", "the export of a store comes back as it is"),
    ("import {T}/rows.h5 {T}/new --scaling none", "the export of a store comes back as it is"),
    ("train {T}/vectors --set data.train=x.npz", "train on vectors does not use data.train"),
    ("train {T}/vectors --set prior.teachers=['nowhere']", "train on vectors does not use prior.teachers"),
    ("train {S} --set preprocess.crop_pct=0.9", "taftcache extract RECIPE --set store.path=NEW --forgotten-of /"),
    ("append {S} --set preprocess.crop_pct=0.9", "taftcache extract RECIPE --set store.path=NEW --forgotten-of /"),
    ("train {T}/other.toml --set forget.samples=['nobody']", "train does not use forget.samples"),
    ("extract {T}/other.toml --set forget.samples=['nobody']", "extract does not use forget.samples"),
    ("extract {T}/other.toml --set backbone.model_args={device='meta'}", "in what precision the model is built"),
    ("extract {T}/same.toml", "data.test must not name what data.train names"),
    ("run {T}/other.toml --set compare.seeds=2", "run does not use compare.seeds"),
    ("append {S} --set objective.ridge=1", "append does not use objective.ridge"),
    ("append {T}/other.toml {T}/vectors.npz", "it was not imported from vectors"),
    ("compare {S} --set compose.mode=mean", "compare does not use compose.mode"),
    ("verify {S} --set nonsense", "override"),
    ("verify {S} --repair --set data.limit=x", "data.limit is 'x'"),
    ("verify {S} --repair --set objective.ridge=1", "verify does not use objective.ridge"),
    ("verify {S} --set data.train=x", "settings are for a repair"),
    ("verify {S} --root 0123456789ABCDEF", "is no root digest"),
    ("verify {S} --root 0123456789abcde", "is no root digest"),
    ("verify {S} --root 0123456789abcdef", "is not the store that was expected"),
    ("inspect {S} --sample {ID} --class 7", "cannot be combined"),
    ("inspect {S} --sample {ID} --ids", "cannot be combined"),
    ("push {T}/nowhere me/x", "got: no such file or directory: "),
    ("forget {S} --sample {ID} --sign {T}/nowhere.pem", "nowhere.pem: no such file\n  got: /"),
    ("compose {S} --mode sum", "sum"),
    ("compose {S} --weight 000=much", "000=much"),
    ("compose {S} --weight 000=1", "does not fit"),
    ("compose {S} --weight 000=0.5 --weight 001=0.6", "sum to 1.1"),
    ("compose {S} --weight zzz=1", "zzz"),
    ("compose {S} --mode mean --weight 000=0.5 --weight 001=0.5", "--weight is only for --mode weighted"),
    ("forget {S}", "nothing to forget"),
    ("forget {S} --sample nobody", "nobody"),
    ("forget {S} --sample {ID} --sample nobody", "nobody"),
    ("forget {S} --sample digits/00x1", "did you mean"),
    ("forget {S} --class cat", "cat"),
    ("forget {S} --shard 999", "999"),
    ("forget {S} --sample {ID} --mode pretend", "pretend"),
    ("forget {S} --sample {ID} --mode resolve", "exact"),
    ("forget {S} --class 7 --mode subtract", "subtract"),
    ("forget {S} --shard 000 --shard 001", "training row"),
    ("forget {S} --file {T}/nowhere.txt", "nowhere.txt"),
    ("forget {S} --file {T}/broken.safetensors", "broken.safetensors"),
    ("forget {S} --sample {ID} --sign {T}/nowhere.pem", "nowhere.pem"),
    ("forget {S} --sample {ID} --sign {T}/full", "/full: a folder is where a file must be"),
    ("audit {S} --ledger-head {T}/full", "/full: a folder is where a file must be"),
    ("forget {S} --sample {ID} --destroy-key", "destroy-key"),
    ("forget {S} --destroy-key --dry-run", "--dry-run"),
    ("forget {S} --destroy-key --mode resolve --shard 000", "--shard, --mode"),
    ("import-component {S} {T}/nowhere.safetensors", "nowhere"),
    ("import-component {S} {T}/broken.safetensors", "broken.safetensors: not a component"),
    ("import-component {S} {T}/said.safetensors --name x", "said.safetensors: not a component: its metadata holds NaN"),
    ("import-component {S} {T}/nan.safetensors --name x", "not finite in float32"),
    ("import-component {S} {T}/base.safetensors --name x", "base"),
    ("import-component {S} {T}/head.safetensors --name x", "other parameters"),
    ("import-component {S} {T}/one.safetensors --name 000", "000"),
    ("import-component {S} {T}/one.safetensors --name a/b", "a/b"),
    *(
        (f"import-component {{S}} {{T}}/one.safetensors --name {name}", f"{name!r}: compositions are called so")
        for name in ("mean", "exact", "weighted", "head", "models")
    ),
    ("import-component {S} {T}/vast.safetensors --name x", "not finite in float32"),
    ("compose {S} --weight 000=0.1 --weight 000=0.5 --weight 001=0.5", "--weight names a component twice"),
    ("compose {S} --weight 000=0.5 --weight 001=-0.5", "try: give numbers whose sum is one"),
    ("compose {S} --weight 000=nan --weight 001=0.5", "try: give numbers whose sum is one"),
    ("compose {S} --weight 000=inf --weight 001=0.5", "try: give numbers whose sum is one"),
    ("compose {S} --weight 000=0.5 --weight 001=1", "try: divide them by their sum"),
    ("inspect {T}/one.safetensors --ids", "--ids is for a store, and"),
    ("inspect {T}/one.safetensors --suspects", "--suspects is for a store, and"),
    ("export-model {T}/vectors {T}/new --model nosuch", "no model in "),
    ("export-component {S} 999 {T}/new.safetensors", "999"),
    ("export-component {S} 001 {T}/one.safetensors", "one.safetensors"),
    ("export-component {S} 000 {T}/nowhere/new.safetensors", "nowhere"),
    ("export-model {S} {T}/new --model models/no", "models/no"),
    ("export-model {S} {T}/full", "full"),
    ("export {S} {T}/one.safetensors", "one.safetensors"),
    ("export {S} {T}/one.safetensors --format npz", "one.safetensors"),
    ("export {S} {T}/new --format csv", "csv"),
    ("convert {S} {T}/full --dtype float32", "full"),
    ("convert {S} {T}/new --dtype int4", "int4"),
    ("convert {S} {S}/within --dtype float32", "it lies in a store"),
    ("copy {S} {S}/models/within", "it lies in a store"),
    ("copy {S} {T}/full", "it is not an empty folder"),
    ("copy {S} {T}/new/..", "it is not an empty folder"),
    ("report {S} -o . --no-neighbours", "it exists already"),
    ("export-component {S} 000 /", "it exists already"),
    ("export-model {S} .", "it exists already"),
    ("report {S} -o {T}/one.safetensors --no-neighbours", "not written by this command"),
    ("predict {S} {T}/nowhere.png -o {T}/vectors.npz", "not written by this command"),
    ("verify {S} --back --root 0123456789abcdef", "cannot go back"),
    # a user who is not there, and names that are too long
    ("train {S} --private --sign ~no-such-user/x", "cannot read the signing key ~no-such-user/x"),
    ("import {T}/vectors.npz {T}/new --test ~no-such-user/x.npz", "cannot read ~no-such-user/x.npz"),
    ("append {S} ~no-such-user/x.npz", "cannot read ~no-such-user/x.npz"),
    ("export {S} ~no-such-user/x.h5", "cannot write ~no-such-user/x.h5: no such folder"),
    ("init ~no-such-user/x", "~no-such-user/x"),
    *(
        (line.format("{S}", "{T}", "x" * 300), "x: the name is too long")
        for line in (
            "init {1}/{2}",
            "init {1}/full -o {2}",
            "predict {0} {1}/vectors.npz --weights {2}",
            "audit {0} --also {2}",
            "import {1}/vectors.npz {1}/new --test {2}",
            "find {0} {2}",
        )
    ),
    ("report {S} -o {S}/manifest.json --no-neighbours", "it lies in a store"),
    ("report {S} -o {S}/models/page.html --no-neighbours", "it lies in a store"),
    ("report {S} -o {S}.forgotten --no-neighbours", "remembers what was forgotten"),
    ("export {S} {S}/rows.npz --format npz", "it lies in a store"),
    ("export-model {S} {S}/model", "it lies in a store"),
    ("export-component {S} 000 {S}/one.safetensors", "it lies in a store"),
    ("audit {S} --ledger-head {S}/head.json", "it lies in a store"),
    ("import {T}/vectors.npz {S}/shards/within", "it lies in a store"),
    ("extract {T}/within.toml", "it lies in a store"),
    ("teach {T}/teach.toml", "it lies in a store"),
    ("teach {T}/teach.toml --set path='{S}'", "it is a store"),
    ("compare paper-digits -o {S}", "it is a store"),
    ("import {T}/broken.safetensors {S}", "broken"),
    ("append {T}/other.toml", "store"),
    ("extract {T}/other.toml", "store.seed"),
    ("extract {T}/deep.toml", "tangent.blocks"),
    ("run {T}/other.toml", "store.seed"),
    ("run {T}/weights.toml", "class_weights"),
    ("run {T}/forget.toml", "nobody"),
    ("evaluate {S} --without 999", "999"),
    ("predict {S}", "IMAGE"),
    ("predict {S} {T}/nowhere.png", "nowhere.png"),
    ("predict {S} {T}/nowhere.png --model models/no", "models/mean"),
    ("inspect {S} --sample nobody", "nobody"),
    ("inspect {S} --shard 9", "000"),
    ("inspect {S} --class cat", "cat"),
    ("dance", "dance"),
    ("verify {S} --root 00", "root"),
    ("influence {S} --sample nobody", "nobody"),
]


@pytest.fixture(scope="module")
def files(finished, tmp_path_factory) -> Path:
    """Component files right and wrong, recipes of the store that ask for something else, and a folder in the way."""
    folder = tmp_path_factory.mktemp("files")
    with FeatureStore(finished) as store:
        taftcache.export_component(store, "000", folder / "one.safetensors")
        taftcache.export_component(store, "models/head", folder / "head.safetensors")
    one = Component.decode((folder / "one.safetensors").read_bytes())
    (folder / "nan.safetensors").write_bytes(dataclasses.replace(one, delta=one.delta * torch.nan).encode())
    (folder / "vast.safetensors").write_bytes(dataclasses.replace(one, delta=one.delta + 1e39).encode())
    (folder / "base.safetensors").write_bytes(dataclasses.replace(one, base_digest="0" * 64).encode())
    (folder / "said.safetensors").write_bytes(dataclasses.replace(one, meta={"norm": math.nan}).encode())
    (folder / "broken.safetensors").write_bytes(b"\xff" * 100)
    np.savez(
        folder / "vectors.npz", features=np.arange(800.0, dtype=np.float32).reshape(200, 4), labels=np.arange(200) % 2
    )
    taftcache.import_(folder / "vectors.npz", folder / "vectors")
    taftcache.export(finished, folder / "rows.h5")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("in the way")
    return folder


def recipes(folder: Path, store: Path) -> None:
    """Recipes of the store that ask for something else."""
    for name, sections in {
        "other": {"store": {"seed": 1}},
        "deep": {"tangent": {"blocks": 3}},
        "weights": {"objective": {"class_weights": [1.0]}},
        "forget": {"forget": {"samples": ["nobody"]}, "objective": {"ridge": 1e-2}},
    }.items():
        toml(folder / f"{name}.toml", store, **sections)
    same = {"source": "folder", "train": str(folder), "test": f"{folder}/full/.."}
    toml(folder / "same.toml", folder / "new", data=same)
    toml(folder / "within.toml", store / "shards" / "within")
    (folder / "teach.toml").write_text(
        f'path = "{store / "taught"}"\n[data]\nsource = "digits"\n[[teachers]]\nname = "t"\nstore = "{store}"\n'
        '[student]\nmodel = "vit_tiny_patch16_224"\nweights = "random"\n'
    )


class Place:
    """A folder with the store ``copy`` and ``files``, which a refused command leaves as they are."""

    def __init__(self, folder: Path, files: Path) -> None:
        self.folder, self.store = folder, folder / "copy"
        shutil.copytree(files, folder / "files")
        recipes(folder / "files", self.store)
        self.before = tree(folder)

    def refused(self, line: str, capsys: pytest.CaptureFixture[str]) -> str:
        """Run a command line; what it said on stderr. Everything on disk must be as it was."""
        with FeatureStore(self.store) as opened:
            root, sample = opened.root_digest, opened.shards[0].sample_ids[0]
        words = [w.format(S=self.store, T=self.folder / "files", ID=sample) for w in _words(line)]
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = capsys.readouterr().err
        assert ended.value.code not in (0, None), said
        with FeatureStore(self.store) as opened:
            assert opened.root_digest == root
        after = tree(self.folder)
        assert after.keys() == self.before.keys()
        assert after == self.before
        return said


@pytest.fixture(scope="module")
def place(finished, files, tmp_path_factory) -> Place:
    """One copy of ``finished`` for all commands: what a command changed, the tests after it find changed too."""
    folder = tmp_path_factory.mktemp("refused")
    shutil.copytree(finished, folder / "copy")
    return Place(folder, files)


@pytest.fixture
def call(place, capsys):
    """A refused command in ``place``."""
    return lambda line: place.refused(line, capsys)


def _words(line: str) -> list[str]:
    """Split at spaces; braces that stand for nothing of ours are doubled, as ``format`` wants it."""
    words = []
    for word in line.split():
        kept = word
        for name in ("{S}", "{T}", "{ID}"):
            kept = kept.replace(name, f"\0{name[1:-1]}\1")
        words.append(kept.replace("{", "{{").replace("}", "}}").replace("\0", "{").replace("\1", "}"))
    return words


@pytest.mark.law("A command that is refused leaves the store's root digest and files as they were")
@pytest.mark.parametrize(("options", "says"), TRAIN)
def test_refused_settings_are_not_recorded(call, options, says):
    assert says in call(f"train {{S}} {options}")


@pytest.mark.law("A command that is refused leaves the store's root digest and files as they were")
@pytest.mark.parametrize(("line", "says"), OTHERS)
def test_refused_commands_change_nothing(call, line, says):
    assert says in call(line)


@pytest.fixture(scope="module")
def private(finished, files, tmp_path_factory) -> Place:
    """The same with private components and their mean."""
    folder = tmp_path_factory.mktemp("refused")
    with open_store(shutil.copytree(finished, folder / "copy")) as opened:
        taftcache.train_private(opened, settings(opened))
        taftcache.compose(opened)
    return Place(folder, files)


# What `train --private` refuses by its budget is in test_private.py.
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train {S}", "components/000, components/001: trained privately"),
        ("train {S} --shard 001", "components/001: trained privately"),
        ("train {S} --shard 001 --set objective.ridge=0.1", "components/001: trained privately"),
        ("train {S} --set tangent.seed=5", "trained privately"),
        ("compose {S} --mode exact", "without privacy"),
    ],
)
def test_private_components_are_not_replaced_unasked(private, capsys, line, says):
    assert says in private.refused(line, capsys)


@pytest.mark.parametrize("line", ["train {S} --set tangent.seed=5", "train {S} --shard 000 --set tangent.train=head"])
def test_imported_components_are_not_left_behind(store, files, tmp_path, capsys, line):
    with open_store(store) as opened:
        taftcache.import_component(opened, files / "one.safetensors", "far")
    said = Place(tmp_path, files).refused(line, capsys)
    assert "components/far" in said


def test_settings_alone_are_recorded_after_all_checks(store):
    with open_store(store) as opened:
        before = opened.manifest.objects
        values = opened.manifest.recipe
        changed = {**values, "solver": {**values["solver"], "memory": "1GiB"}}
        assert taftcache.train(opened, parse_recipe(changed)).trained == []
        assert opened.manifest.recipe == changed
        assert opened.manifest.objects == before


def test_other_settings_drop_what_they_orphan_with_the_first_commit(store, monkeypatch):
    """Killed between two components, a store has none that its recorded settings do not make."""
    solved = training._solved

    def killed(*arguments, **more):
        yield next(solved(*arguments, **more))
        raise MemoryError

    monkeypatch.setattr(training, "_solved", killed)
    with open_store(store) as opened:
        values = opened.manifest.recipe
        changed = parse_recipe({**values, "tangent": {**values["tangent"], "seed": 9}})
        with pytest.raises(MemoryError):
            taftcache.train(opened, changed)
        assert opened.manifest.recipe["tangent"]["seed"] == 9
        assert list(opened.objects()) == ["base/tail", "components/000"]
        taftcache.evaluate(opened)
        sample = opened.shard("001").sample_ids[0]
        assert taftcache.forget(opened, [sample]).forgotten == [sample]
