"""Commands as processes: how they start, how they are ended, and what an interrupted one leaves."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.cli.options import complete_recipe
from taftcache.errors import INTERRUPTED
from taftcache.terminal.console import note_warning
from tests import forked
from tests.cli.making import refused
from tests.stages.making import recipe, toml, tree


def test_version_and_completion(cli):
    assert cli("--version").out == f"taftcache {taftcache.__version__}\n"
    asked = [sys.executable, "-m", "taftcache", "--version"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == cli("--version").out
    assert "quickstart" in complete_recipe("qui")
    shown = subprocess.run(
        [sys.executable, "-c", "from taftcache.cli import main; main()"],
        env={**os.environ, "_TAFTCACHE_COMPLETE": "complete_bash", "COMP_WORDS": "taftcache forg", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
    )
    assert shown.stdout.split() == ["forget"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "asked", [["--version"], ["inspect", "STORE", "--json"], ["--help"], ["inspect", "--help"]], ids=" ".join
)
def test_a_report_that_cannot_be_written(finished, asked):
    """Nobody reads it: one line, and no traceback, at the end of the process neither."""
    command = [sys.executable, "-m", "taftcache", *(str(finished) if word == "STORE" else word for word in asked)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 5
    assert [line.split(":")[0] for line in ended.stderr.splitlines()] == ["taftcache", "  got"]


STREAMS = {
    "nobody reads on": (["bash", "-c", '"$@" | true; exit $PIPESTATUS', "bash"], 141),
    "closed": (["bash", "-c", '"$@" >&-', "bash"], 0),
    "of a locale without a character": (["env", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"], 0),
}


@pytest.mark.parametrize("how", STREAMS)
def test_a_standard_output_that_is_not_as_usual(finished, how):
    before, code = STREAMS[how]
    command = [*before, sys.executable, "-m", "taftcache", "inspect", str(finished)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert bool(ended.stdout) == (how == "of a locale without a character")


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        (["inspect", "nowhere", "--json"], "2>/dev/full"),
        (["inspct"], "2> >(exec true)"),
        (["verify", "STORE"], "2>/dev/full"),
    ],
    ids=["an error", "nobody reads on", "progress"],
)
def test_a_standard_error_that_takes_nothing_changes_no_outcome(cli, finished, tmp_path, monkeypatch, how, asked):
    """A log on a full disk ended the work, with a code that no page lists."""
    monkeypatch.chdir(tmp_path)
    place = shutil.copytree(finished, tmp_path / "STORE")
    usual = cli(*asked)
    told = f"{sys.executable} -c '{PROGRESS}' {' '.join(asked)} {how}"
    ended = subprocess.run(["bash", "-c", told], stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (usual.code, usual.out)
    assert tree(place) == tree(finished)


# A log has a line of each task at once.
PROGRESS = "from taftcache.terminal import console; console.SOON = -1; from taftcache.cli import main; main()"


@pytest.mark.parametrize("columns", ["0", "3", "x", ""])
def test_no_width_of_a_terminal_hides_what_is_said(tmp_path, columns):
    """rich shows nothing at all in a width of 0."""
    command = [sys.executable, "-m", "taftcache", "inspect", str(tmp_path / "nowhere")]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": columns})
    assert ended.returncode == 5
    assert ended.stderr.startswith(f"taftcache: no store at {tmp_path}/nowhere: there is no such folder\n  try: ")


@pytest.mark.parametrize("line", ["inspect {below}", "evaluate {finished}"])
def test_a_folder_that_was_deleted_is_named(finished, tmp_path, line):
    """It was taken for a report that could not be written; torch's libraries end the process where they are loaded."""
    (tmp_path / "gone").mkdir()
    line = line.format(finished=finished, below=os.path.relpath(finished, tmp_path / "gone"))
    told = f"cd {tmp_path}/gone; rmdir ../gone; {sys.executable} -m taftcache {line}; exit $?"
    # from a folder without it, Python cannot import what lies there
    ended = subprocess.run(["bash", "-c", told], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT})
    assert ended.returncode == 2
    assert ended.stderr.endswith(
        "taftcache: the current folder is not there any more: it was deleted\n  try: cd to another\n"
    )


ROOT = str(Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("asked", "unbuffered"), [(["inspect", "nowhere"], ""), (["train", "nowhere"], "1"), (["inspct"], "")]
)
def test_an_error_as_json_that_nobody_reads_ends_as_it_would(cli, tmp_path, monkeypatch, asked, unbuffered):
    """With its own exit code, and its text on stderr alone."""
    monkeypatch.chdir(tmp_path)
    usual = cli(*asked)
    before, _ = STREAMS["nobody reads on"]
    command = [*before, sys.executable, "-m", "taftcache", *asked, "--json"]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (ended.returncode, ended.stderr) == (usual.code, usual.err)


def test_threads_that_wait_spin_but_shortly():
    """The library that torch's threads are of is loaded by itself, a tenth of the time."""
    library = next((Path(torch.__file__).parent / "lib").glob("libgomp*"), None)
    load = "import torch" if library is None else f"import ctypes; ctypes.CDLL({str(library)!r})"
    code = f"from taftcache.cli import main\ntry: main(['--version'])\nexcept SystemExit: {load}"
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")} | {
        "OMP_DISPLAY_ENV": "verbose"
    }
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stderr
    assert "GOMP_SPINCOUNT = '3000'" in said


SLOW = """
import os, signal, time
from taftcache import __main__, cli

def command():
    try:
        os.kill(os.getpid(), signal.{signal})
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep({takes})
        raise

__main__._PATIENCE, cli.main = {patience}, command
__main__.main()
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("patience", "takes"), [(0.05, 1.0), (60.0, 0.0)], ids=["slow", "soon"])
def test_an_interrupt_that_takes_long_says_that_it_was_heard(number, patience, takes):
    ended = forked.run(SLOW.format(signal=number, patience=patience, takes=takes))
    heard = [line for line in ended.stderr.splitlines() if "once more stops at once" in line]
    assert (ended.returncode, len(heard)) == (130, int(takes > 0))
    assert ended.stderr.endswith(f"taftcache: {INTERRUPTED}\n")


@pytest.mark.parametrize("stage", ["extract", "train"])
def test_interruption(cli, finished, tmp_path, monkeypatch, stage):
    """Ctrl-C ends with 130 and keeps what was committed; the same command goes on to the same bytes."""
    path = tmp_path / "store"
    file = toml(tmp_path / "tiny.toml", path)

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    places = {
        "extract": "taftcache.cache.write.writer.ShardWriter.append",
        "train": "taftcache.solve.methods.conjugate._Round.iterate",
    }
    with monkeypatch.context() as patch:
        patch.setattr(places[stage], interrupt)
        outcome = cli("run", file)
    assert outcome.code == 130, outcome
    assert "interrupted" in outcome.err
    with FeatureStore(path) as opened:
        there = [ref.meta for name, ref in opened.objects().items() if name.startswith("components/")]
        # Ctrl-C keeps a solve's best iterate, marked so that nobody takes it for the component.
        assert [(meta["key"], meta["converged"]) for meta in there] == [("interrupted", False)] * (stage == "train")
    assert cli("run", file).code == 0
    assert tree(path) == tree(finished)


LOADED = """
import runpy, signal, sys
class Interrupting:
    def find_spec(self, name, *more):
        if name == "typer":
            END
sys.meta_path.insert(0, Interrupting())
sys.argv = ["taftcache", "forget", "x"]
runpy.run_module("taftcache", run_name="__main__")
"""
READ = """
import signal, sys
import taftcache.cli
from taftcache.__main__ import main
def interrupt():
    END
taftcache.cli._command = interrupt
sys.argv = ["taftcache", "forget", "x"]
main()
"""
ENDS = {
    "Ctrl-C": "raise KeyboardInterrupt",
    "SIGTERM": "signal.raise_signal(signal.SIGTERM)",
    "SIGHUP": "signal.raise_signal(signal.SIGHUP)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("early", [LOADED, READ], ids=["loaded", "read"])
def test_an_interruption_before_a_command_is_known(early, end):
    """While the commands are loaded, and while their options are read: the same words, and no traceback."""
    heard = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # though whoever runs the tests ignores it
    code = heard + early.replace("END", ENDS[end])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"taftcache: {INTERRUPTED}\n")


@pytest.mark.parametrize("end", ENDS)
def test_the_exit_code_of_an_interrupted_module_is_its_own(tmp_path, end):
    """Under ``python -m`` CPython would end by SIGINT where the interrupt passed through exec of a text."""
    heard = "import signal; signal.signal(signal.SIGHUP, signal.default_int_handler)"
    (tmp_path / "typer.py").write_text(f"exec({f'{heard}; {ENDS[end]}'!r})")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(taftcache.__file__).parents[1])])}
    asked = [sys.executable, "-m", "taftcache", "forget", "x"]
    ended = subprocess.run(asked, env=env, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"taftcache: {INTERRUPTED}\n")


def test_a_terminal_that_is_closed_ends_nothing_under_nohup():
    code = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + READ.replace("END", ENDS["SIGHUP"])
    ended = subprocess.run([sys.executable, "-c", f"import signal\n{code}"], capture_output=True, text=True)
    assert INTERRUPTED not in ended.stderr


def test_a_library_that_crashes_is_found():
    """Where it was, on stderr; and a process whose stderr is closed runs all the same."""
    code = READ.replace("END", "os.kill(os.getpid(), signal.SIGSEGV)").replace("import signal", "import os, signal")
    asked = [sys.executable, "-c", code]
    ended = subprocess.run(asked, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in ended.stderr
    assert "in interrupt" in ended.stderr
    closed = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *asked], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (-signal.SIGSEGV, "")


def test_an_interruption_before_a_command_begins(cli, monkeypatch):
    """While a command line is parsed: the same words, and no traceback."""

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.make_context", interrupt)
    outcome = cli("forget", "x", "--json")
    assert (outcome.code, outcome.err) == (130, f"taftcache: {INTERRUPTED}\n")
    assert outcome.json["fault"] == INTERRUPTED


STILL = """
import os, signal, sys, time
import taftcache.backbone.pool as pool
import taftcache.backbone.sources.digits as digits
from taftcache.__main__ import main
pool.PATIENCE = 0.5
read = digits.DigitsSource.read
def still(self, index):
    if self.items[index].id == "{id}":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(120)
    return read(self, index)
digits.DigitsSource.read = still
sys.argv = ["taftcache", "extract", "{file}"]
main()
"""


def test_one_signal_ends_an_extraction_whose_decoder_stands_still(tmp_path):
    """Batch systems send one, and then kill. What was committed is there, and the next command goes on."""
    file, path = toml(tmp_path / "tiny.toml", tmp_path / "store"), tmp_path / "store"
    whole = taftcache.extract(recipe(tmp_path / "whole"))
    with FeatureStore(tmp_path / "whole") as store:
        last = store.shards[-1].sample_ids[-1]
    ended = forked.run(STILL.format(file=file, id=last))
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (130, f"taftcache: {INTERRUPTED}")
    resumed = taftcache.extract(recipe(path))
    assert resumed.root_digest == whole.root_digest
    assert tree(path) == tree(tmp_path / "whole")
    assert 0 < resumed.images < whole.images


STUCK = """
import sys, threading, time
import taftcache.cli
from taftcache.__main__ import main
def ended():
    END
taftcache.cli.main = ended
threading.Thread(target=time.sleep, args=(120,), name="taftcache-decode_0").start()
main()
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("raise KeyboardInterrupt", 130, f"taftcache: {INTERRUPTED}"),
        ("raise RuntimeError('no room')", 1, "RuntimeError: no room"),
        ("sys.exit(5)", 5, None),
    ],
    ids=["interrupt", "error", "exit"],
)
def test_no_end_waits_for_a_decoder_that_stands_still(end, code, said):
    asked = [sys.executable, "-c", STUCK.replace("END", end)]
    ended = subprocess.run(asked, env=os.environ | forked.ENVIRONMENT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == code
    assert ended.stderr.splitlines()[-1:] == [said] * (said is not None)


KILLED = """
import os, signal
import taftcache.backbone.forward.engine  # loaded once, for both that are forked
from taftcache.cache.write.writer import ShardWriter
calls, append, commit, after = 0, ShardWriter.append, ShardWriter.commit, 0

def count(*arguments):
    global calls
    calls += 1
    if calls == after:
        os.kill(os.getpid(), signal.SIGKILL)

def killed_append(self, *a, **k):
    append(self, *a, **k)
    count()

def killed_commit(self, **k):
    count()
    commit(self, **k)

ShardWriter.append, ShardWriter.commit = killed_append, killed_commit
from taftcache.cli import main
for after in (2, 3):
    if (child := os.fork()) == 0:
        main(["extract", "{file}"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


@pytest.mark.law("A run again does nothing; a killed extraction ends in the same root digest")
def test_killed_extraction_goes_on_to_the_same_root(tmp_path):
    """The heavy version is tests/cache/crash.py; here the whole command is killed, in the middle and at a commit."""
    file, path = toml(tmp_path / "tiny.toml", tmp_path / "store"), tmp_path / "store"
    killed = forked.run(KILLED.format(file=file))
    assert killed.returncode == 0, killed.stderr
    resumed = taftcache.extract(recipe(path))
    whole = taftcache.extract(recipe(tmp_path / "whole"))
    assert resumed.root_digest == whole.root_digest
    assert tree(path) == tree(tmp_path / "whole")
    assert 0 < resumed.images < whole.images


@pytest.mark.parametrize("works", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_page_is_served_until_it_is_ended(store, works):
    """The address on stdout, the page at it, and an end without a traceback; in the midst of its work, or without."""
    from urllib.request import urlopen

    idle = "" if works else "from taftcache.view.atlas import Atlas; Atlas.start = lambda self: None; "
    code = f"{idle}from taftcache.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "view", str(store), "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with urlopen(url) as answer:
        assert b"<script nonce=" in answer.read()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (0, False), said
    with pytest.raises(OSError, match="refused"):
        urlopen(url)


OPENER = """#!/bin/sh
{ echo "$@"; stat -c %a "$1" "$(dirname "$1")"; cat "$1"; } > "$0.part"
mv "$0.part" "$0.said"
"""


@pytest.mark.law("No command line shows the page's token: a browser is given a file that only its user can read")
def test_a_browser_is_not_started_with_the_token(store, tmp_path):
    opener = tmp_path / "xdg-open"
    opener.write_text(OPENER)
    opener.chmod(0o700)
    idle = "from taftcache.view.atlas import Atlas; Atlas.start = lambda self: None"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{idle}; from taftcache.cli import main; main()", "view", str(store)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    until = time.monotonic() + 60
    while not (told := tmp_path / "xdg-open.said").exists() and time.monotonic() < until:
        time.sleep(0.05)
    words, mode, above, *page = told.read_text().splitlines()
    assert url.split("/")[3] not in words
    assert (mode, above) == ("600", "700")
    assert f'content="0; url={url}"' in page[0]
    assert Path(words).exists()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (0, False), said
    assert not Path(words).parent.exists()


def test_help_loads_nothing_heavy():
    """One after another in one process: the first that loads something is named."""
    code = (
        "import sys, taftcache.cli\nfor words in sys.argv[1:]:\n"
        "    try: taftcache.cli.main([*words.split(), '--help'])\n    except SystemExit: pass\n"
        "    heavy = {'torch', 'timm', 'numpy', 'zarr', 'h5py', 'sklearn', 'dask', 'PIL'} & set(sys.modules)\n"
        "    print('loaded by', repr(words), *heavy)"
    )
    commands = ["", "view", "train", "teach", "import"]
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("loaded by")]
    assert said == [f"loaded by {words!r}" for words in commands]


@pytest.mark.parametrize("taken", [True, False])
def test_a_port_that_cannot_be_had(cli, store, monkeypatch, taken):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port, says = other.getsockname()[1], "another program is using it"
        if not taken:

            def bind(self):
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr("http.server.ThreadingHTTPServer.server_bind", bind)
            port, says = 80, "only for an administrator"
        outcome = cli("view", store, "--no-browser", "--port", port)
    refused(outcome, 2, f"cannot serve the page at port {port}: ", says, "--port 0 takes a free one")


def test_a_program_that_calls_the_command_keeps_its_own_settings():
    """A notebook, say, whose logs and warnings are its own again."""
    before = logging.getLogRecordFactory(), warnings.showwarning
    with pytest.raises(SystemExit):
        main(["--version"])
    assert (logging.getLogRecordFactory(), warnings.showwarning) == before


def test_a_warning_without_a_stream_is_lost(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    note_warning("Corrupt EXIF", UserWarning, "a.py", 7)
