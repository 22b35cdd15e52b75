"""What ``attacks.py`` attacks with: commands in children of this process, stores to spoil, files that mean harm."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main as taftcache_main
from taftcache.errors import TaftcacheError
from taftcache.recipe import parse_recipe

PATIENCE = 90.0  # seconds until a command counts as hung
REFUSED = range(1, 9)  # exit codes of taftcache's own errors


@dataclass
class Tally:
    """What became of one class of attacks; ``said`` names what was not survived."""

    tried: int = 0
    survived: int = 0
    lost: int = 0
    tracebacks: int = 0
    seconds: float = 0.0
    said: list[str] = field(default_factory=list)

    def note(self, label: str, fault: str | None) -> None:
        self.tried += 1
        if fault is None:
            self.survived += 1
            return
        if fault.startswith("traceback"):
            self.tracebacks += 1
        else:
            self.lost += 1
        self.said.append(f"{label}: {fault}")


class Ended(NamedTuple):
    """How a child ended: its exit code (negative: the signal), and the two streams."""

    code: int
    out: str
    err: str

    def fault(self, *allowed: int) -> str | None:
        """What is wrong with it, unless it did its work, was refused, or ended as ``allowed``."""
        if "Traceback" in self.err:
            return f"traceback: {self.err.strip().splitlines()[-1][:150]}"
        good = self.code == 0 or self.code in REFUSED or self.code in allowed
        return None if good else f"ended with {self.code}: {self.err.strip()[:150]}"


def child(work: Callable[[], Any], kill_after: float | None = None) -> Ended:
    """Run ``work`` in a forked process; -9 after ``kill_after`` seconds, or when it hangs."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if not pid:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            finish(work)
        end = time.monotonic() + (PATIENCE if kill_after is None else kill_after)
        while not (done := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.002)
        if not done[0]:
            os.kill(pid, signal.SIGKILL)
            done = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        return Ended(os.waitstatus_to_exitcode(done[1]), out.read(), err.read())


def finish(work: Callable[[], Any]) -> None:
    """Do it, and end the process with the exit code of a command."""
    code = 99
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except TaftcacheError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def command(*words: object, before: Callable[[], None] | None = None, kill_after: float | None = None) -> Ended:
    """One command line in a child."""

    def work() -> None:
        if before:
            before()
        taftcache_main([str(word) for word in words])

    return child(work, kill_after)


def refused(ended: Ended) -> str | None:
    """What is wrong with a command that must not do its work."""
    return ended.fault() or ("taken in silently" if ended.code == 0 else None)


class Bench:
    """A finished store, and a recipe that makes it."""

    def __init__(self, folder: Path, full: bool, seed: int) -> None:
        self.folder, self.full, self.chance = folder, full, random.Random(seed)
        self.good, self.bare, self.bad = folder / "good", folder / "bare", folder / "bad"
        taftcache.extract(self.recipe(self.bare))
        shutil.copytree(self.bare, self.good)
        with FeatureStore(self.good, mode="a") as store:
            taftcache.train(store)
            taftcache.compose(store)
            self.ids = sorted(i for shard in store.shards for i in shard.sample_ids)
            self.gone = self.ids.pop()
            taftcache.forget(store, [self.gone])
        self.forgotten = self.good.with_name("good.forgotten")

    def recipe(self, path: Path) -> Any:
        data = {"source": "digits", "limit": 60}
        values = {"name": "attacks", "device": "cpu", "data": data, "objective": {"ridge": 1e-3}}
        return parse_recipe(values | {"store": {"shards": 2, "chunk_rows": 8, "path": str(path)}})

    def times(self, quick: int, full: int) -> range:
        return range(full if self.full else quick)

    def copy(self, of: Path | None = None) -> Path:
        """A fresh copy to attack, with what it has forgotten beside it."""
        of = of or self.good
        for old in self.folder.glob("bad*"):
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()
        shutil.copytree(of, self.bad)
        if of == self.good:
            shutil.copy(self.forgotten, self.folder / "bad.forgotten")
        return self.bad

    def sound(self) -> str | None:
        """What is wrong with the attacked store after all."""
        ended = command("verify", self.bad)
        return ended.fault() or (f"verify: {ended.out.strip()[:150]}" if ended.code else None)

    def holds(self, path: Path | None = None) -> Any:
        """What a store has, but for its ledger and the times in it."""
        with FeatureStore(path or self.bad) as store:
            named = store.manifest
            return [named.shards, {k: (r.digest, r.size) for k, r in named.objects.items()}, len(named.tombstones)]


def recipes() -> dict[str, str]:
    """Recipes that are none."""
    return {
        "unclosed lists": "x = " + "[" * 50_000,
        "deep table": "[" + ".".join("a" * 50_000) + "]",
        "endless integer": "[store]\nseed = " + "9" * 10_000,
        "large seed": f"[store]\nseed = {2**127}",
        "2 MiB": "#" * (2 << 20),
        "no text": "\x00",
    }


def sources(made: Path) -> dict[str, tuple[str, Path]]:
    """Name -> (kind of source, file)."""
    pixels, labels = np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8), np.arange(6) % 3
    os.mkfifo(made / "pipe")
    for name in "ab":
        (made / "images" / name).mkdir(parents=True)
        os.mkfifo(made / "images" / name / "1.png")
    np.savez_compressed(made / "torn.npz", images=pixels, labels=labels)
    raw = bytearray((made / "torn.npz").read_bytes())
    raw[60:90] = bytes(30)
    (made / "torn.npz").write_bytes(raw)
    np.savez(made / "objects.npz", images=pixels, labels=np.array([{}] * 6, object), allow_pickle=True)
    with zipfile.ZipFile(made / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as member:
            shape = {"descr": "|u1", "fortran_order": False, "shape": (6, 1 << 12, 1 << 13)}
            np.lib.format.write_array_header_1_0(member, shape)
            for _ in range(6):
                member.write(bytes(1 << 25))
        with archive.open("labels.npy", "w") as member:
            np.save(member, labels)
    with h5py.File(made / "circle.h5", "w") as file:
        file["images"], file["labels"] = h5py.SoftLink("/labels"), h5py.SoftLink("/images")
    with h5py.File(made / "elsewhere.h5", "w") as file:
        file["images"], file["labels"] = h5py.ExternalLink("circle.h5", "images"), labels
    with h5py.File(made / "unwritten.h5", "w") as file:
        file.create_dataset("images", (6, 8, 8), "u1")
        file["labels"] = labels
    with h5py.File(made / "vast.h5", "w") as file:
        file["images"] = pixels
        file.create_dataset("labels", (2**40,), "i8", chunks=(2**20,))
    found = {p.name: ("npz" if p.suffix == ".npz" else "hdf5", p) for p in sorted(made.glob("*.npz"))}
    found |= {p.name: ("hdf5", p) for p in sorted(made.glob("*.h5"))}
    return found | {"pipe.npz": ("npz", made / "pipe"), "pipes as images": ("folder", made / "images")}
