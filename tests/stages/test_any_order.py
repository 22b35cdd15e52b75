"""In whatever order commands came: a refusal changes nothing, and the store can still be read and forgotten in.

Hypothesis draws commands, right and wrong ones, and runs them as a shell would on a small store of images.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from PIL import Image

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.model.component import Component
from tests.stages.making import digits, recipe, toml

# A store that was trained in part, or with other settings since, says so in its audit; nothing else may be wrong.
STALE = {"stale component", "stale composition", "stale object"}

SETTINGS = [
    "objective.ridge=0.1",
    "objective.ridge=auto",
    "objective.loss=mse",
    "objective.class_weights=balanced",
    "objective.class_weights=[1,2,3]",
    "objective.class_weights=[1,2]",
    "objective.radius=0.5",
    "tangent.train=head",
    'tangent.train="full"',
    'tangent.train=["nope.*"]',
    "tangent.seed=1",
    "tangent.reset_block=true",
    "tangent.blocks=0",
    "tangent.blocks=1",
    "tangent.blocks=3",
    "solver.memory=1MiB",
    "solver.method=conjugate",
    "compose.mode=auto",
    "compose.mode=mean",
    "compose.mode=weighted",
    "compose.mode=exact",
    "compose.weights={'000'=0.3,'001'=0.7}",
    "compose.weights={'000'=1.0}",
    "compose.weights='rows'",
    "compose.weights='class-rows'",
    "privacy.relation=replace-one",
    "privacy.budget=100",
    "prior.teachers=['nowhere']",
    "store.shards=9",
]
SHARDS = ["000", "001", "002", "999"]
PRIVATELY = ["--private", "--set", "privacy.epsilon=8", "--set", "privacy.steps=2"]


def pictures(folder: Path, start: int, count: int, classes: int = 3) -> None:
    """``count`` digits of each class, from the ``start``-th of it on."""
    images, labels = digits()
    for digit in range(classes):
        (folder / str(digit)).mkdir(parents=True, exist_ok=True)
        for k in np.flatnonzero(labels == digit)[start : start + count]:
            Image.fromarray(images[k]).convert("RGB").save(folder / str(digit) / f"{k:04d}.png")


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    """A folder with images, a store of them after every stage, and files of components. Not to be written to."""
    folder = tmp_path_factory.mktemp("start")
    with contextlib.chdir(folder):
        pictures(Path("images"), 0, 6)
        data = {"source": "folder", "train": "images", "held_out": 0.2}
        toml(Path("store.toml"), "store", data=data)
        taftcache.run(recipe("store", data=data))
        with FeatureStore("store") as store:
            taftcache.export_component(store, "000", Path("good.safetensors"))
            taftcache.export_component(store, "models/head", Path("head.safetensors"))
        good = Component.decode(Path("good.safetensors").read_bytes())
        Path("nan.safetensors").write_bytes(dataclasses.replace(good, delta=good.delta * torch.nan).encode())
        Path("far.safetensors").write_bytes(dataclasses.replace(good, base_digest="0" * 64).encode())
        Path("bare.safetensors").write_bytes(dataclasses.replace(good, meta={}).encode())
        Path("broken.safetensors").write_bytes(b"no component")
    return folder


def machine(start: Path) -> type[RuleBasedStateMachine]:
    """The rules over copies of ``start``."""

    class Commands(RuleBasedStateMachine):
        @initialize()
        def copy(self) -> None:
            self.before = Path.cwd()
            self.folder = Path(tempfile.mkdtemp())
            shutil.copytree(start, self.folder, dirs_exist_ok=True)
            os.chdir(self.folder)
            self.images = 6

        def call(self, *words: str) -> int:
            """A command's exit code; where it is above 0 the store is as it was."""
            root = self.root()
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
                main([*words])
            code = ended.value.code or 0
            assert code in range(9), out.getvalue()
            assert code == 0 or self.root() == root, (words, out.getvalue())
            self.said = out.getvalue()
            return code

        def root(self) -> str:
            with FeatureStore("store") as store:
                return store.root_digest

        def works(self, *words: str) -> None:
            assert self.call(*words) == 0, (words, self.said)

        @rule(
            some=st.lists(st.sampled_from(SETTINGS), max_size=2),
            shards=st.lists(st.sampled_from(SHARDS), max_size=2),
            private=st.sampled_from([False, False, False, True]),
        )
        def train(self, some: list[str], shards: list[str], private: bool) -> None:
            words = [w for s in some for w in ("--set", s)] + [w for s in shards for w in ("--shard", s)]
            self.call("train", "store", *(PRIVATELY if private else []), *words)

        @rule(mode=st.sampled_from(["auto", "mean", "weighted", "exact", "sum"]))
        def compose(self, mode: str) -> None:
            self.call("compose", "store", "--mode", mode)

        @rule(first=st.sampled_from(["0.5", "-1", "2", "x"]), names=st.sampled_from([("000", "001"), ("000",)]))
        def compose_weighted(self, first: str, names: tuple[str, ...]) -> None:
            weights = [f"{names[0]}={first}", *(f"{name}=0.5" for name in names[1:])]
            self.call("compose", "store", *(w for weight in weights for w in ("--weight", weight)))

        @rule(new_shard=st.booleans(), more=st.booleans())
        def append(self, new_shard: bool, more: bool) -> None:
            if more and self.images < 10:
                pictures(Path("images"), self.images, 1)
                self.images += 1
            self.call("append", "store", *(["--new-shard"] if new_shard else []))

        @rule(
            file=st.sampled_from(["good", "head", "nan", "far", "bare", "broken", "out", "missing"]),
            name=st.sampled_from(["000", "x", "y"]),
        )
        def import_component(self, file: str, name: str) -> None:
            self.call("import-component", "store", f"{file}.safetensors", "--name", name)

        @rule(name=st.sampled_from(["000", "001", "x", "models/mean", "models/exact"]))
        def export_component(self, name: str) -> None:
            Path("out.safetensors").unlink(missing_ok=True)
            self.call("export-component", "store", name, "out.safetensors")

        @rule(
            place=st.integers(0, 30),
            count=st.integers(1, 3),
            mode=st.sampled_from(["retrain", "retrain", "subtract", "resolve"]),
        )
        def forget(self, place: int, count: int, mode: str) -> None:
            with FeatureStore("store") as store:
                ids = [*store.sample_ids(), *(store.held_out.sample_ids if store.held_out else [])]
            some = [ids[(place + k) % len(ids)] for k in range(count)]
            code = self.call("forget", "store", *(w for i in some for w in ("--sample", i)), "--mode", mode)
            assert code == 0 or mode != "retrain" or len(ids) < 6, self.said

        @rule(what=st.sampled_from([("--class", "1"), ("--class", "cat"), ("--shard", "001"), ("--shard", "999")]))
        def forget_group(self, what: tuple[str, str]) -> None:
            self.call("forget", "store", *what)

        @rule(what=st.sampled_from([("gc",), ("verify", "--repair"), ("run",), ("extract",)]))
        def tidy(self, what: tuple[str, ...]) -> None:
            self.call(what[0], "store.toml" if what[0] in ("run", "extract") else "store", *what[1:])

        @invariant()
        def can_be_read_and_forgotten_in(self) -> None:
            with FeatureStore("store") as store:
                sample = store.sample_ids()[-1]
                alone = len(store.sample_ids()) == 1
            if not alone:
                self.works("forget", "store", "--sample", sample, "--dry-run")
            self.works("verify", "store")
            found = taftcache.audit("store").findings
            assert {finding.kind for finding in found} <= STALE, found
            self.works("inspect", "store")
            self.works("inspect", "store", "--sample", sample)

        def teardown(self) -> None:
            try:
                self.end()
            finally:
                os.chdir(self.before)
                shutil.rmtree(self.folder)

        def end(self) -> None:
            with FeatureStore("store") as store:
                ids = store.sample_ids()
                held = store.held_out is not None
            self.works("report", "store", "-o", "report.html", "--no-neighbours")
            if held:
                self.works("evaluate", "store")
            if len(ids) > 1:
                self.works("forget", "store", "--sample", ids[0])

    return Commands


def run(start: Path, examples: int, steps: int, **more: object) -> None:
    given = settings(
        phases=[Phase.generate],  # to shrink a failure takes an hour; its steps are printed as they were
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        **more,
    )
    run_state_machine_as_test(machine(start), settings=given)


@pytest.mark.law("In whatever order commands came, a store can be read, verified, audited and forgotten in")
@pytest.mark.slow
def test_a_few_commands_in_any_order(start):
    run(start, examples=2, steps=6, derandomize=True, database=None)


@pytest.mark.full
def test_many_commands_in_any_order(start):
    run(start, examples=300, steps=12)
