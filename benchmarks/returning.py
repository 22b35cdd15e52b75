"""Attacks on what a store promises to remember: rows that were forgotten, and privacy that was spent."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from attacking import Bench, Tally, child, command, finish, refused

from taftcache.cache.store import FeatureStore
from taftcache.cli import main as taftcache_main
from taftcache.errors import TaftcacheError


def readers(bench: Bench, tally: Tally) -> None:
    """A store is read as a whole while a forget runs or is killed: each row is its own, or the error is clear."""
    with FeatureStore(bench.good) as store:
        rows = {i: store.locate(i)[0].tokens([store.locate(i)[1]]).tobytes() for i in store.sample_ids()}
    for number in bench.times(2, 14):
        path, name = bench.copy(), bench.ids[number % len(bench.ids)]
        if not (pid := os.fork()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.dup2(2, 1)
            finish(partial(taftcache_main, ["forget", str(path), "--sample", name]))
        end = time.monotonic() + 3 * bench.chance.random() if number % 2 else None
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if end is not None and time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
            ended = child(partial(_same_rows, path, rows))
            tally.note(f"a read during forget {number}", "a row of another" if ended.code == 50 else ended.fault())


def _same_rows(path: Path, rows: dict[str, bytes]) -> None:
    """Exit code 50 where a row is not what it was."""
    with FeatureStore(path) as store:
        for shard in store.shards:
            for at, name in enumerate(shard.sample_ids):
                if shard.tokens([at]).tobytes() != rows[name]:
                    sys.exit(50)


def returns(bench: Bench, tally: Tally) -> None:
    """What was forgotten comes back to its place: an old copy, under any name, or its rows; refused or left out."""
    export, link = bench.folder / "old.h5", bench.folder / "link"
    command("export", bench.bare, export)
    (bench.folder / "recipe.toml").write_text(
        '[data]\nsource = "digits"\nlimit = 60\n[store]\nshards = 2\nchunk_rows = 8\n'
    )
    extract = ["extract", bench.folder / "recipe.toml", "--set", f"store.path={bench.bad}"]
    ways: dict[str, tuple[str, list[object]]] = {
        "an old copy": ("old", ["inspect", bench.bad]),
        "an old copy through a link": ("old", ["evaluate", link]),
        "an old copy, trained": ("old", ["train", bench.bad]),
        "an old state copied over it": ("", ["copy", bench.bare, bench.bad, "--update"]),
        "an old state copied to its place": ("gone", ["copy", bench.bare, bench.bad]),
        "an old state converted": ("gone", ["convert", bench.bare, bench.bad, "--dtype", "float32"]),
        "an old export": ("gone", ["import", export, bench.bad]),
        "extracted anew": ("gone", extract),
    }
    link.symlink_to(bench.bad)
    for label, (before, words) in ways.items():
        bench.copy()
        if before:
            shutil.rmtree(bench.bad)
        if before == "old":
            shutil.copytree(bench.bare, bench.bad)
        ended = command(*words)
        back = before != "old" and FeatureStore.exists(bench.bad) and _holds(bench.bad, bench.gone)
        fault = "it is back" if back else "taken in silently" if before == "old" and not ended.code else None
        tally.note(label, ended.fault() or fault)


def _holds(path: Path, name: str) -> bool:
    with suppress(TaftcacheError), FeatureStore(path) as store:
        return store.holds(name)
    return False


PRIVATE = ["--private", "--set", 'tangent.train="head"', "--set", "privacy.steps=3"]


def budgets(bench: Bench, tally: Tally) -> None:
    """More is asked of a privacy budget that is spent, at its place or a copy's; and trainings are killed."""
    bench.copy(bench.bare)
    spent, copied = bench.folder / "spent", bench.folder / "bad-copy"
    tally.note("the first training", command("train", bench.bad, *PRIVATE).fault())
    shutil.copytree(bench.bad, spent)
    asks = {"clip": "privacy.clip=2.0", "delta": "privacy.delta=0.3", "budget": "privacy.budget=50.0"}
    asks |= {"relation": 'privacy.relation="replace-one"', "base": "tangent.seed=9"}
    for label, ask in asks.items():
        tally.note(f"another {label}", refused(command("train", bench.bad, *PRIVATE, "--set", ask)))
    for label, source in {"a copy": spent, "an old state over a copy": bench.bare}.items():
        tally.note(f"{label} is made", command("copy", source, copied, "--update").fault())
        tally.note(label, refused(command("train", copied, *PRIVATE, "--set", "privacy.clip=2.0")))
    shutil.rmtree(bench.bad)
    shutil.copytree(bench.bare, bench.bad)
    tally.note("an old copy put back", refused(command("train", bench.bad, *PRIVATE)))
    shutil.rmtree(bench.bad)
    command("copy", bench.bare, bench.bad)
    tally.note("a store made anew", refused(command("train", bench.bad, *PRIVATE)))
    shutil.rmtree(spent)
    for number in bench.times(2, 12):
        path = bench.copy(bench.bare)
        command("train", path, *PRIVATE, kill_after=4 * bench.chance.random())
        with FeatureStore(path, mode="a") as store:
            made = [name for name, ref in store.objects("components/").items() if "privacy" in ref.meta]
            charged = [entry["component"] for entry in store.ledger()]
            remembered = len(store.tombstone_file.charges)
        whole = made == charged and remembered == len(made)
        fault = None if whole else f"{made} are there, {charged} are charged, {remembered} remembered"
        tally.note(f"kill {number}", fault or bench.sound())
