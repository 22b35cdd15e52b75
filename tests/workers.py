"""``pytest -p tests.workers -n 3``: xdist's workers are forked from one process, which has loaded the libraries.

Each worker would load them anew otherwise, for six seconds of a processor. Only on Linux: elsewhere libraries that are
loaded may have threads, or must not be forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.forked import LOADED

# What test files load besides.
MORE = ["hypothesis", "matplotlib.pyplot", "moto.server", "sklearn.utils.estimator_checks", "xdist.remote"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """From here on execnet asks the process begun here for a worker; without it, it would begin a Python."""
    if sys.platform != "linux":
        return
    from execnet import gateway_base, gateway_io

    class Forked(gateway_base.Popen2IO):
        """What execnet knows of a process that it began: its pipes, and how it is waited for and ended."""

        def __init__(self, spec: Any, execmodel: Any) -> None:
            (stdin, write), (read, stdout) = os.pipe(), os.pipe()
            socket.send_fds(line, [b"fork"], [stdin, stdout])
            os.close(stdin)
            os.close(stdout)
            self.pid = int(line.recv(20))
            super().__init__(os.fdopen(write, "wb"), os.fdopen(read, "rb"), execmodel)

        def wait(self) -> None:
            """Until the process is gone: it is another's child, which keeps nothing of it."""
            with contextlib.suppress(ProcessLookupError):
                while True:
                    os.kill(self.pid, 0)
                    time.sleep(0.01)

        def kill(self) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    line, end = socket.socketpair()
    program = f"from tests.workers import serve; serve(); {gateway_io.popen_bootstrapline}"
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    server = subprocess.Popen([sys.executable, "-u", "-c", program], stdin=end, env=environment)
    end.close()
    begin, gateway_io.create_io = gateway_io.create_io, Forked

    def finish() -> None:
        gateway_io.create_io = begin
        line.close()
        server.wait()

    config.add_cleanup(finish)


def serve() -> None:
    """Load the libraries, and fork for each pair of pipes that comes; ends when nobody can ask any more.

    Returns only in the processes that are forked, with the pipes as their standard input and output. From there on they
    are what execnet begins: a Python without threads that reads its program from standard input.
    """
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who are forked
    line = socket.socket(fileno=os.dup(0))
    gc.disable()  # as in tests/conftest.py
    for name in (*LOADED, *MORE):
        with contextlib.suppress(Exception):  # the tests that need it shall say so
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, _bury)
    while pipes := socket.recv_fds(line, 20, 2)[1]:
        if not (pid := os.fork()):
            break
        line.send(str(pid).encode())
        for pipe in pipes:
            os.close(pipe)
    else:
        os._exit(0)
    line.close()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, interrupt)


def _bury(*_: object) -> None:
    """Processes that have ended are gone at once, and their time is counted with this one's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
