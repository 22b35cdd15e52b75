"""Attacks on stores, commands, parsers and the page, counted: what was tried, survived, lost, or ended in a traceback.

    python benchmarks/attacks.py [--json] [--full] [--only flips kills ...] [--seed 0] [--scratch FOLDER]

All of it runs on a store of sixty digits that it makes itself, in a new folder, from the bundled backbone. An attack is
survived when no data is wrong and whatever could not be done was refused by an error of taftcache's own; lost is wrong
or unnoticed damage, a store that cannot be read, a hang, a crash; tracebacks are counted apart from both. The short
form takes some minutes on two cores; --full repeats each class many times.
"""

from __future__ import annotations

import argparse
import http.client
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from attacking import Bench, Tally, child, command, finish, recipes, refused, sources
from PIL import Image
from record import json_parser, print_report
from returning import budgets, readers, returns

import taftcache
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.store import FeatureStore
from taftcache.cli import main as taftcache_main
from taftcache.errors import StoreLocked, TaftcacheError
from taftcache.view.atlas import Atlas
from taftcache.view.server import ViewServer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.fuzz.mutating import mutated


def flips(bench: Bench, tally: Tally) -> None:
    """One bit of one file; then everything is read, evaluated, verified and audited."""
    files = [p.relative_to(bench.good) for p in sorted(bench.good.rglob("*")) if p.is_file() and p.name != "lock"]
    files = [
        p for p in [*files, Path("../bad.forgotten")] if p.name.endswith("forgotten") or (bench.good / p).stat().st_size
    ]
    for number in bench.times(24, 300):
        file = files[number % len(files)] if bench.full else bench.chance.choice(files)
        path = bench.copy()
        data = bytearray((path / file).read_bytes())
        at = bench.chance.randrange(len(data))
        data[at] ^= 1 << bench.chance.randrange(8)
        (path / file).write_bytes(data)
        ended = child(partial(_look, path))
        fault = ended.fault() or (None if ended.code else "unnoticed")
        tally.note(f"{file}, byte {at}", fault)


def _look(path: Path) -> None:
    """Every way of reading a store; exit code 5 when one of them noticed."""
    noticed = 0
    for work in (_rows, taftcache.evaluate, taftcache.inspect):
        try:
            with FeatureStore(path) as store:
                work(store)
        except TaftcacheError:
            noticed += 1
    try:
        noticed += bool(taftcache.verify(path).faults) + bool(taftcache.audit(path).findings)
    except TaftcacheError:
        noticed += 1
    sys.exit(5 if noticed else 0)


def _rows(store: FeatureStore) -> None:
    for shard in store.shards:
        for _ in shard.blocks(16):
            pass


def kills(bench: Bench, tally: Tally) -> None:
    """SIGKILL somewhere in a command; then the same command again, and what the store has is what it would have had."""
    out = bench.folder / "out"
    lines: dict[str, tuple[Path, list[object]]] = {
        "train": (bench.bare, ["train", bench.bad]),
        "forget": (bench.good, ["forget", bench.bad, "--sample", bench.ids[0]]),
        "compose": (bench.good, ["compose", bench.bad, "--mode", "exact"]),
        "export-model": (bench.good, ["export-model", bench.bad, out]),
        "export-component": (bench.good, ["export-component", bench.bad, "000", out]),
        "export npz": (bench.good, ["export", bench.bad, out, "--format", "npz"]),
    }
    for name, (store, words) in lines.items():
        bench.copy(store)
        begin = time.monotonic()
        if fault := command(*words).fault():
            tally.note(name, fault)
            continue
        took, wanted = time.monotonic() - begin, bench.holds()
        for number in bench.times(3, 15):
            _clear(out)
            bench.copy(store)
            command(*words, kill_after=took * bench.chance.random())
            again = command(*words)
            done = (
                again.code == 0 or "forgotten already" in again.err or (out.exists() and "exists already" in again.err)
            )
            fault = again.fault() or bench.sound() or (None if done else f"again: {again.err.strip()[:150]}")
            if fault is None and bench.holds() != wanted:
                fault = "the store has something else"
            tally.note(f"{name}, kill {number}", fault)
    _clear(out)


def _clear(out: Path) -> None:
    for old in out.parent.glob(f"{out.name}*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()


def writers(bench: Bench, tally: Tally) -> None:
    """Two processes change one store at once: one is refused, or waits its turn."""
    for number in bench.times(3, 12):
        path, codes = bench.copy(), []
        pids = []
        for name in bench.ids[:2]:
            if not (pid := os.fork()):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.dup2(2, 1)
                finish(partial(taftcache_main, ["forget", str(path), "--sample", name]))
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        fair = 0 in codes and set(codes) <= {0, StoreLocked.exit_code}
        tally.note(f"pair {number}", bench.sound() or (None if fair else f"ended with {codes}"))


def disk_errors(bench: Bench, tally: Tally) -> None:
    """The nth write, fsync or rename of a forget fails; the store is whole, and the same command then succeeds."""
    for number in bench.times(6, 40):
        name, at = ("write", "fsync", "replace")[number % 3], 1 + bench.chance.randrange(12)
        code = bench.chance.choice((5, 28))  # EIO, ENOSPC
        words = ("forget", bench.copy(), "--sample", bench.ids[number % len(bench.ids)])
        ended = command(*words, before=partial(_failing, name, at, code))
        fault = ended.fault() or bench.sound()
        if fault is None and ended.code:
            again = command(*words)
            fault = again.fault() or (None if again.code == 0 or "already" in again.err else again.err.strip()[:150])
        tally.note(f"{name} {at}, error {code}", fault)


def _failing(name: str, at: int, code: int) -> None:
    real, seen = getattr(os, name), []

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if not (name == "write" and arguments[0] < 3):
            seen.append(name)
            if len(seen) == at:
                raise OSError(code, os.strerror(code))
        return real(*arguments, **named)

    setattr(os, name, wrapped)


def full_disk(bench: Bench, tally: Tally) -> None:
    """Files may have 2,000 bytes: exports and changes fail in one line, leave nothing, and the store is whole."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    out = bench.folder / "out"
    formats = ("hdf5", "npz", "parquet", "embedding-projector")
    lines: list[list[object]] = [["export", bench.bad, out, "--format", f] for f in formats]
    lines += [["export-model", bench.bad, out], ["export-component", bench.bad, "000", out]]
    lines += [["report", bench.bad, "-o", out, "--no-neighbours"], ["forget", bench.bad, "--sample", bench.ids[0]]]
    lines += [["copy", bench.bad, out], ["convert", bench.bad, out, "--dtype", "float32"]]
    for words in lines:
        bench.copy()
        ended = command(*words, before=limit)
        left = [] if words[0] in ("copy", "convert") else list(out.parent.glob("out*"))
        fault = ended.fault() or bench.sound() or (f"left {left[0].name}" if left else None)
        tally.note(" ".join(map(str, words[:1] + words[3:])), fault or (None if ended.code else "nobody said so"))
        _clear(out)


def inputs(bench: Bench, tally: Tally) -> None:
    """Recipes, archives, HDF5 files and folders that are made to harm: refused, quickly."""
    made = bench.folder / "inputs"
    made.mkdir()
    for name, text in recipes().items():
        (made / "a.toml").write_text(text)
        tally.note(f"recipe, {name}", refused(command("extract", made / "a.toml")))
    deep = "store.shards=" + "[" * 50_000
    (made / "a.toml").write_text("")
    tally.note("override, nested", refused(command("extract", made / "a.toml", "--set", deep)))
    for name, (kind, file) in sources(made).items():
        words = ["--set", f"data.source={kind}", "--set", f"data.train={file}", "--set", f"store.path={made / 'store'}"]
        words += ["--set", "backbone.weights=bundled"]
        tally.note(f"data, {name}", refused(command("extract", made / "a.toml", *words)))
    for name in ("import-component", "predict", "import"):
        files = [made / "pipe"] if name != "import" else [made / "pipe", made / "store"]
        ended = command(name, *([] if name == "import" else [bench.good]), *files)
        tally.note(f"{name} of a pipe", refused(ended))


def models(bench: Bench, tally: Tally) -> None:
    """Changed model folders, which predict or are refused, and changed components, after which the store is whole."""
    folder, file = bench.folder / "model", bench.folder / "component.safetensors"
    command("export-model", bench.good, folder)
    command("export-component", bench.good, "000", file)
    picture = bench.folder / "picture.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(picture)
    whole, component = (folder / "taftcache.json").read_bytes(), file.read_bytes()
    for number in bench.times(10, 100):
        (folder / "taftcache.json").write_bytes(mutated(whole, bench.chance))
        tally.note(f"folder {number}", command("predict", folder, picture).fault())
    for number in bench.times(10, 100):
        size = int.from_bytes(component[:8], "little")
        header = mutated(component[8 : 8 + size], bench.chance)
        file.write_bytes(len(header).to_bytes(8, "little") + header + component[8 + size :])
        path = bench.copy()
        ended = command("import-component", path, file, "--name", "new")
        fault = ended.fault()
        if fault is None and ended.code == 0:
            fault = command("compose", path).fault() or command("inspect", path).fault()
        tally.note(f"component {number}", fault or bench.sound())


def strangers(bench: Bench, tally: Tally) -> None:
    """A store whose root manifest was changed and has its right digest again: read or refused."""
    whole = (bench.good / "manifest.json").read_bytes()
    for number in bench.times(15, 150):
        path = bench.copy()
        data = mutated(whole, bench.chance)
        with suppress(msgspec.MsgspecError, ValueError, RecursionError, AttributeError):
            fields = msgspec.json.decode(data)
            fields.pop("digest", None)
            data = canonical(fields | {"digest": digest(canonical(fields))})
        (path / "manifest.json").write_bytes(data)
        word = ("inspect", "verify", "audit", "evaluate", "train")[number % 5]
        tally.note(f"{word} {number}", command(word, path).fault())


def page(bench: Bench, tally: Tally) -> None:
    """Requests from elsewhere, malformed or endless: refused, answered, and never a dropped connection."""
    ended = child(lambda: _requests(bench.good))
    lines = ended.out.splitlines()
    for line in lines:
        label, _, fault = line.partition("\t")
        tally.note(label, fault or None)
    if ended.fault() or not lines:
        tally.note("the server", ended.fault() or "no answer at all")


def _requests(path: Path) -> None:
    with FeatureStore(path) as store, ViewServer(Atlas(store)) as server:
        own, token = f"127.0.0.1:{server.port}", server.token
        for label, method, target, headers, allowed in _asked(own, token):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                connection.putrequest(method, target, skip_host=True)
                for key, value in headers.items():
                    connection.putheader(key, value)
                connection.endheaders()
                status = connection.getresponse().status
                print(label, "" if status in allowed else f"answered {status}", sep="\t")
            except (OSError, http.client.HTTPException) as error:
                print(label, f"dropped: {type(error).__name__}", sep="\t")


def _asked(own: str, token: str) -> Iterator[tuple[str, str, str, dict[str, str], range]]:
    """(label, method, target, headers, statuses that are right)."""
    host, refused, any_ = {"Host": own}, range(400, 500), range(200, 500)
    yield "the page", "GET", f"/{token}/", host, range(200, 201)
    yield "another host", "GET", f"/{token}/", {"Host": "evil.example"}, refused
    yield "no host", "GET", f"/{token}/", {}, refused
    yield "another origin", "GET", f"/{token}/overview", host | {"Origin": "http://evil.example"}, refused
    yield "from another site", "GET", f"/{token}/overview", host | {"Sec-Fetch-Site": "cross-site"}, refused
    yield "no token", "GET", "/overview", host, refused
    yield "another token", "GET", f"/{token[:-1]}x/", host, refused
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        yield method, method, f"/{token}/", host, range(400, 502)
    for target in ("../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "assets/../../../etc/passwd", "\\..\\x"):
        yield f"path {target}", "GET", f"/{token}/{target}", host, refused
    for query in ("sample?id=" + "x" * 5000, "sample?id=%00", "compose?without=no", "leave-out?id=no", "sample"):
        yield f"query {query[:20]}", "GET", f"/{token}/{query}", host, any_
    for size in ("%C2%B2", "9" * 5000, "-1", "0", "1e9"):
        yield f"picture of size {size[:8]}", "GET", f"/{token}/picture?id=digits/0&size={size}", host, any_
    yield "an address that is none", "GET", f"http://[/{token}/", host, refused


CLASSES: dict[str, Callable[[Bench, Tally], None]] = {
    made.__name__: made
    for made in (
        *(flips, kills, writers, readers, returns, budgets),
        *(disk_errors, full_disk, inputs, models, strangers, page),
    )
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="taftcache-attacks-", dir=args.scratch))
    begin, found = time.monotonic(), {}
    try:
        bench = Bench(folder, args.full, args.seed)
        for name in args.only or CLASSES:
            tally, start = Tally(), time.monotonic()
            CLASSES[name](bench, tally)
            tally.seconds = round(time.monotonic() - start, 1)
            found[name] = tally
            if not args.json:
                print(_line(name, tally), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "attacks": msgspec.to_builtins(found),
        "seconds": round(time.monotonic() - begin, 1),
        "full": args.full,
        "seed": args.seed,
        "cores": os.cpu_count(),
    }


def _line(name: str, tally: Tally) -> str:
    figures = f"{tally.tried:6} {tally.survived:9} {tally.lost:5} {tally.tracebacks:11} {tally.seconds:8.1f}"
    return "\n".join([f"{name:12} {figures}", *(f"    {text}" for text in tally.said)])


def main() -> None:
    parser = json_parser(__doc__)
    parser.add_argument("--full", action="store_true", help="many repeats of each class")
    parser.add_argument("--only", nargs="+", choices=CLASSES, metavar="CLASS", help=f"some of {', '.join(CLASSES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="where stores are made (default: the system's)")
    args = parser.parse_args()
    if not args.json:
        print(f"{'attack':12} {'tried':>6} {'survived':>9} {'lost':>5} {'tracebacks':>11} {'seconds':>8}")
    found = measure(args)
    if args.json:
        print_report(found)


if __name__ == "__main__":
    main()
