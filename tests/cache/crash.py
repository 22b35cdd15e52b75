"""Run in a process of its own: kill -9 a forked writer at chosen points, then look at what it left.

    python -m tests.cache.crash FOLDER write|erase|add|back SEED POINTS|all [DTYPE]

A point is the n-th call of a system function that changes the disk. Half of the points are inside a ``write`` that has
written only part of its bytes. Some more writers are killed by the clock. Prints what was done; exit status 1 and a
traceback for a broken promise.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from taftcache.cache.format.encoding import encode
from taftcache.cache.format.manifest import PREVIOUS, Manifest
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.journal import Journal
from taftcache.cache.write.previous import go_back

from .making import create, fill, holds, kept, names, tree

CHANGES = ("write", "fsync", "mkdir", "replace", "unlink", "rmdir", "ftruncate", "open")
OLD, NEW = names(18, "old"), names(24, "new")
SKIPPED = "skipped/at first.png"
GONE = [OLD[2], OLD[11], OLD[12], SKIPPED]
CHUNK = 4
DTYPE = "float16" if len(sys.argv) < 6 else sys.argv[5]


def prepare(path: Path) -> None:
    """A store with a shard, an object, an erasure behind it (so that the tombstones' random key is set), and a way back
    from its last commit."""
    with create(path) as store:
        fill(store, "000", [*OLD, SKIPPED, "first"], bad=[SKIPPED], dtype=DTYPE)
        with store.transaction() as change:
            change.erase(["first"])
            change.put("components/000", b"trained with all")
        with store.transaction() as change:
            change.put("components/extra", b"imported")


def write(path: Path) -> None:
    with FeatureStore(path, mode="a") as store:
        if not store.has_shard("001"):
            fill(store, "001", NEW, batch=3, bad=NEW[5:7], chunk_rows=CHUNK, dtype=DTYPE)


def erase(path: Path) -> None:
    with FeatureStore(path, mode="a") as store:
        if store.holds(GONE[0]):
            with store.transaction() as change:
                change.erase(GONE)
                change.put("components/000", b"trained without them")
                change.record({"action": "erase", "count": 3})


def add(path: Path) -> None:
    with FeatureStore(path, mode="a") as store:
        if "components/001" not in store.objects():
            with store.transaction() as change:
                change.put("components/001", b"trained", {"convergence": [[1, 0.5], [2, 0.25]]})


def back(path: Path) -> None:
    with FeatureStore(path) as store:
        undone = "components/extra" not in store.objects()
    if not undone:
        go_back(path)


def count_calls(path: Path, work: Callable[[Path], None]) -> int:
    read, out = os.pipe()
    if (child := os.fork()) == 0:
        calls = hook(0, False)
        work(path)
        os.write(out, f"{len(calls)}".encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return int(os.read(read, 32))


def hook(point: int, torn: bool) -> list[str]:
    """Die before the ``point``-th call that changes the disk (``open`` counts where it may create).

    ``torn``: if that call is a write, half of its bytes are written first. Returns the list that collects the calls.
    """
    calls: list[str] = []
    lock = threading.Lock()

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def wrapped(*args, **kwargs):  # type: ignore[no-untyped-def]
            with lock:
                if name != "open" or args[1] & os.O_CREAT:
                    calls.append(name)
                    if len(calls) == point:
                        if torn and name == "write":
                            real(args[0], args[1][: len(args[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, wrapped)

    for name in CHANGES:
        wrap(name)
    return calls


def killed(path: Path, work: Callable[[Path], None], point: int, torn: bool, progress: Path) -> None:
    """Fork a writer that kills itself at its ``point``-th change."""
    if (child := os.fork()) == 0:
        note(progress)
        hook(point, torn)
        work(path)
        os._exit(0)
    check_end(os.waitpid(child, 0)[1])


def note(progress: Path) -> None:
    """Write down, outside the store, how many chunks a writer was told are durable."""
    append, fd, write_bytes = Journal.append, os.open(progress, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), os.write

    def noted(self: Journal, *items) -> None:  # type: ignore[no-untyped-def]
        append(self, *items)
        write_bytes(fd, b"." * len(items))

    Journal.append = noted  # type: ignore[method-assign]


def killed_by_clock(path: Path, work: Callable[[Path], None], after: float, progress: Path) -> None:
    if (child := os.fork()) == 0:
        note(progress)
        work(path)
        os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    check_end(os.waitpid(child, 0)[1])


def check_end(status: int) -> None:
    """A writer was killed or came to its end: one that fails of itself says nothing of kills."""
    assert status in (0, signal.SIGKILL), f"the writer ended with {os.waitstatus_to_exitcode(status)}"


def check(
    path: Path, work: Callable[[Path], None], before: dict[str, bytes], after: dict[str, bytes], chunks: int
) -> str:
    """All that a crash may leave, and that running the same again ends in the same bytes."""
    digests = [Manifest.decode(files["manifest.json"]).digest for files in (before, after)]
    with FeatureStore(path) as store:
        assert store.root_digest in digests, "neither the old state nor the new one"
        state = digests.index(store.root_digest)
        assert store.verify() == [], store.verify()
        assert holds(store, [i for i in OLD if state == 0 or work is not erase or i not in GONE], DTYPE)
        assert store.has_shard("001") == (work is write and state == 1)
    if state == 1 and work is erase:
        assert not (path / PREVIOUS).exists(), "the commit before knows what was erased"
    elif state == 1 and work is add:
        assert Manifest.decode((path / PREVIOUS).read_bytes()).digest == digests[0]
    with FeatureStore(path, mode="a") as store:
        assert store.root_digest == digests[state]
        assert store.strays() == []
        assert store.verify() == []
        if work is write and state == 0:
            good = [i for i in NEW if i not in NEW[5:7]]
            whole = CHUNK * min(chunks, len(good) // CHUNK)  # the journal's last line, the seal, is no chunk
            least = NEW.index(good[whole - 1]) + 1 if whole else 0
            resumed = fill(store, "001", NEW, batch=3, bad=NEW[5:7], chunk_rows=CHUNK, dtype=DTYPE, stop=0)
            assert resumed >= least, f"{chunks} chunks were durable, resumed at {resumed}"
    expected = (before, after)[state]
    left = tree(path, but=("staging/",))
    assert left == expected, sorted(left.keys() ^ expected.keys())
    assert work is write or not any("staging/" in name for name in tree(path))
    work(path)
    final = tree(path)
    assert final == after, sorted(final.keys() ^ after.keys())
    if work is erase:
        raw = [encode(kept(i, DTYPE)[None], DTYPE)[0].tobytes() for i in GONE]
        pieces = [r[k : k + 16] for r in raw for k in range(len(r) - 15)] + [i.encode() for i in GONE]
        assert not any(piece in data for data in final.values() for piece in pieces)
    return "old" if state == 0 else "new"


def main(folder: Path, kind: str, seed: int, points: str) -> None:
    work = {"write": write, "erase": erase, "add": add, "back": back}[kind]
    base, probe = folder / "base", folder / "probe"
    in_fork(lambda: prepare(base))
    shutil.copytree(base, probe)
    # how many journal lines share an fsync depends on the threads: a run may make more calls than this one did
    calls = count_calls(probe, work) + 24
    before, after = tree(base), tree(probe)
    chance = random.Random(seed)
    chosen = range(1, calls + 1) if points == "all" else sorted(chance.sample(range(1, calls + 1), int(points)))
    states = {"old": 0, "new": 0}
    begin = time.monotonic()
    for n, point in enumerate([*chosen, *[-1] * max(2, len(chosen) // 5)]):
        path, progress = folder / f"run{n}", folder / f"progress{n}"
        shutil.copytree(base, path)
        if point > 0:
            killed(path, work, point, n % 2 == 1, progress)
        else:
            killed_by_clock(path, work, chance.random() * 0.08, progress)
        chunks = len(progress.read_bytes()) if progress.exists() else 0
        read, out = os.pipe()

        def look(path: Path = path, out: int = out, chunks: int = chunks) -> None:
            os.write(out, check(path, work, before, after, chunks).encode())

        try:
            in_fork(look)
        except AssertionError:
            print(f"{kind}, seed {seed}: killed at point {point} of {calls}, {n % 2 == 1=}", flush=True)
            raise
        states[os.read(read, 8).decode()] += 1
        os.close(read)
        os.close(out)
        shutil.rmtree(path)
    print(f"{kind}: {sum(states.values())} kills at {calls} points, {states}, {time.monotonic() - begin:.1f} s")


def in_fork(work: Callable[[], None]) -> None:
    """In a child, so that this process stays without threads and can be forked again."""
    if (child := os.fork()) == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "see above"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
