"""Changed files, by the thousand: read, or refused by an error of taftcache's own, in little time and memory."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

from taftcache.errors import TaftcacheError
from tests.cache.hostile import forget, peak
from tests.fuzz.mutating import mutated
from tests.fuzz.targets import TARGETS, Run

SECONDS, MIB = 5.0, 256.0  # of a processor: a second on a quiet machine
# The HDF5 library asks for as much memory as a file says that a text of variable length has, and only then looks.
MORE = {"hdf5": (10.0, 8192.0)}
FOUND = {
    "model_folder": (44, 238),
    "journal": (50, 141, 594, 1388, 1575),
    "hdf5": (527,),
    "vectors": (497,),
}  # cases that once ended in a traceback, or the process
# libhdf5 2.0 reads a heap whose free space claims no bytes without end, in C, where nothing here can stop it
# (SECURITY.md says so).
ENDLESS = {"hdf5": {560, 730}}


def attack(name: str, folder: Path, cases: Sequence[int]) -> list[str]:
    """What went wrong, in a process of its own: a decoder in C that crashes takes only that with it."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(300 + len(cases) // 2)
            _attack(name, folder, cases)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    log = folder / "log"
    found = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    if code:
        found.append(f"{name} ended with {code} in case {(folder / 'case').read_text(encoding='utf-8')}")
    return found


def _attack(name: str, folder: Path, cases: Sequence[int]) -> None:
    valid, run = TARGETS[name](folder)
    if valid:
        run(valid, random.Random(0))
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + (3 << 30), have + (3 << 30)))
    with (folder / "log").open("w") as log, (folder / "case").open("w") as case:
        for number in cases:
            case.seek(0)
            case.write(f"{number}      ")
            case.flush()
            chance = random.Random(f"{name}/{number}")
            if fault := _one(run, mutated(valid, chance), chance, *MORE.get(name, (SECONDS, MIB))):
                log.write(json.dumps(f"{name}, case {number}: {fault}") + "\n")
                log.flush()


def _one(run: Run, data: bytes, chance: random.Random, most: float, room: float) -> str | None:
    """What is wrong with how one changed file is taken."""
    base, begin = forget(), time.process_time()
    try:
        run(data, chance)
    except TaftcacheError:
        pass
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)
        place = [f"{Path(f.filename).name}:{f.lineno}" for f in at[-4:]]
        return f"{type(error).__name__}: {str(error)[:100]} at {' '.join(place)}"
    seconds, more = time.process_time() - begin, peak() - base
    return f"{seconds:.1f} s and {more:.0f} MiB" if seconds > most or more > room else None


@pytest.mark.law("A changed file is read or refused, soon and in little memory, and never ends in a traceback")
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("most", [15, pytest.param(2000, marks=pytest.mark.full)])
def test_a_changed_file_is_read_or_refused(name, most, tmp_path) -> None:
    cases = [case for case in range(most) if case not in ENDLESS.get(name, ())]
    assert attack(name, tmp_path, [*FOUND.get(name, ()), *cases]) == []
