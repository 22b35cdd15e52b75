"""Processes that begin with the libraries loaded: forked from one that has loaded them, has no threads and ran nothing.

Loading torch and timm takes three seconds of a processor in every process. Tests whose point is how a process starts
(what it imports, hash seeds, encodings) start one of their own.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
import tempfile
import traceback
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

ROOT = Path(__file__).parents[1]
LOADED = [
    "h5py",
    "numpy.ctypeslib",  # which numpy loads when it is first asked, in every child anew
    "sklearn.datasets",
    "zarr",
    "taftcache.cli",
    "taftcache.remote.cluster",
    "taftcache.stages.files.exchange",
    "taftcache.stages.files.models",
    "taftcache.stages.audit.auditing",
    "taftcache.stages.run",
]
# Another hash seed than this process has: no byte that is written may depend on it.
SEED = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
SECONDS = 540.0  # that one may take; tests/conftest.py has it end before pytest ends this process
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": SEED, "PYTHONPATH": str(ROOT)}


def context() -> ForkServerContext:
    """One server for each process that asks: begun here, it also forks what Dask asks of it, with the same modules."""
    made = get_context("forkserver")
    made.set_forkserver_preload(LOADED)
    with mock.patch.dict(os.environ, ENVIRONMENT):
        forkserver.ensure_running()
    return made


def run(program: str, *arguments: object) -> CompletedProcess[str]:
    """What ``python -m program`` does with these arguments, or ``python -c program`` where it is several lines.

    AssertionError, with where it stands, when it takes longer than ``SECONDS``.
    """
    words = [str(a) for a in arguments]
    with tempfile.TemporaryDirectory() as folder:
        process = context().Process(target=_work, args=(program, words, folder, dict(os.environ)))
        process.start()
        process.join(SECONDS)
        if hangs := process.is_alive():
            os.kill(process.pid or 0, signal.SIGABRT)  # at which it says where it stands
            process.join()
        out, err = (Path(folder, stream).read_text(encoding="utf-8") for stream in ("out", "err"))
    assert not hangs, f"{program} {words} took longer than {SECONDS:g} s:\n{err}"
    assert process.exitcode is not None
    return CompletedProcess([program, *words], process.exitcode, out, err)


def _work(program: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Never returns to multiprocessing, whose own end of a process is not that of an interpreter."""
    os.environ.clear()
    os.environ.update(environment | ENVIRONMENT)
    os.chdir(ROOT)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with open(Path(folder, name), "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    faulthandler.enable()
    code = 0
    try:
        sys.argv = ["-c", *arguments]
        if "\n" in program:
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv[0] = program
            runpy.run_module(program, run_name="__main__", alter_sys=False)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
