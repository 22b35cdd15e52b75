"""Where the commands start: the script ``taftcache``, and ``python -m taftcache`` where it is not on the path."""

import faulthandler
import os
import signal
import sys
import threading
from collections import namedtuple
from contextlib import suppress
from types import FrameType

from taftcache.errors import INTERRUPTED, INTERRUPTED_CODE

_DECODING = "taftcache-batch", "taftcache-decode"  # threads; see taftcache.backbone.pool
_PATIENCE = 2.0  # seconds that an interrupt may take before a message says that it was heard


def main() -> None:
    """Run a command. Ctrl-C is answered in words, even while the commands are still being loaded, which takes part of a
    second. SIGTERM, with which batch systems end a job, counts as Ctrl-C, and so does SIGHUP, which a closed terminal
    sends, unless nohup has it ignored."""
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # stderr is closed, or no file
        faulthandler.enable()  # a library that crashes would end the process without a word
    try:
        _run()
    except BaseException as end:
        code = end.code if isinstance(end, SystemExit) else 1
        if code and any(thread.name.startswith(_DECODING) for thread in threading.enumerate()):
            # Python would wait for that thread, which may hang for ever; all else is said, written and closed
            with suppress(AttributeError, OSError, ValueError):
                if not isinstance(end, SystemExit):
                    sys.excepthook(type(end), end, end.__traceback__)
                sys.stdout.flush()
            os._exit(code if isinstance(code, int) else 1)
        raise
    finally:
        with suppress(ValueError):  # not in the main thread: no handler was set
            signal.signal(signal.SIGALRM, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Python's own handler, with a timer: a solve still looks at where it stands, and a pool ends what it has begun."""
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    raise KeyboardInterrupt


def _say_heard(number: int, frame: FrameType | None) -> None:
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # stderr is closed, or being written to
        sys.stderr.write("taftcache: stopping once what was begun is put in order; the same once more stops at once\n")
        sys.stderr.flush()


def _run() -> None:
    try:
        signal.signal(signal.SIGALRM, _say_heard)
        signal.signal(signal.SIGTERM, _interrupt)
        for number in (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        from taftcache.cli import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write(f"taftcache: {INTERRUPTED}\n")
        sys.exit(INTERRUPTED_CODE)


if __name__ == "__main__":
    try:
        main()
    finally:
        # An interrupt that passes through exec or eval of a text, as when dataclasses and named tuples are made, leaves
        # a mark in CPython, because of which ``python -m`` ends by SIGINT whatever its exit code is. The next such call
        # removes the mark: here, making this named tuple.
        namedtuple("Ended", ())
