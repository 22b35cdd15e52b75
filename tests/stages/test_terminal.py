"""Names that a stranger chose are shown on a terminal, never obeyed."""

from __future__ import annotations

import ast
import io
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import taftcache
from taftcache.cache.format.manifest import FILE, Manifest
from taftcache.cli import main
from taftcache.names import counted, points_text, told_apart
from taftcache.names import shown as shown_text
from taftcache.stages import progress as stages_progress
from taftcache.stages.progress import Progress, Silent, or_silent
from taftcache.terminal import console
from tests.stages.making import open_store, recipe, toml

# ESC with a colour, BEL, CR, backspace, a C1 control, a title, a link, right-to-left override, DEL, markup and emoji
EVIL = "\nFORGED line"
EVIL += (
    "\x1b[31mred\x07\r\b\x9b\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\u202eevil\u2066\x7f[bold]b[/bold] :smile: [/]"
)
PRINTERS = Path(console.__file__).parents[1]


def printable(text: str) -> bool:
    assert "FORGED" not in [line[:6] for line in text.splitlines()], "a newline in a name begins no line of ours"
    return text.replace("\n", "").isprintable()


def forge(path: Path) -> Path:
    """Class names, the shards' and models' names cannot be such, but classes, settings and reasons can."""
    manifest = Manifest.decode((path / FILE).read_bytes())
    classes = [EVIL, *manifest.classes[1:]]
    identity = manifest.identity | {"backbone": {**manifest.identity["backbone"], "model": EVIL}}
    recipe = manifest.recipe | {"data": {**manifest.recipe["data"], "source": "folder", "train": EVIL}}
    recipe |= {"prior": {**manifest.recipe["prior"], "teachers": [EVIL]}}
    changed = manifest.replace(classes=classes, identity=identity, recipe=recipe)
    (path / FILE).write_bytes(changed.encode())
    return path


@pytest.fixture(scope="module")
def hostile(finished, tmp_path_factory) -> Path:
    return forge(shutil.copytree(finished, tmp_path_factory.mktemp("hostile") / "store"))


@pytest.mark.law("Names, ids and errors of a stranger's store are shown on a terminal, never obeyed")
@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "{}"],
        ["inspect", "{}", "--json"],
        ["inspect", "{}", "--class", EVIL],
        ["inspect", "{}", "--shard", "000"],
        ["inspect", "{}", "--ids"],
        ["inspect", "{}", "--class", "none"],
        ["inspect", "{}", "--sample", EVIL],
        ["inspect", "{}", "--sample", EVIL, "--json"],
        ["evaluate", "{}"],
        ["verify", "{}"],
        ["audit", "{}"],
        ["train", "{}"],
        ["trust", "{}"],
        ["append", "{}"],
        ["append", "{}", "--json"],
        ["influence", "{}", "--sample", EVIL],
    ],
    ids=lambda command: " ".join(command).replace(EVIL, "EVIL"),
)
def test_no_control_character_of_a_store_reaches_the_terminal(hostile, tmp_path, capsys, command):
    with pytest.raises(SystemExit):
        main([word.replace("{}", str(hostile)) for word in command])
    said = capsys.readouterr()
    assert printable(said.out)
    assert printable(said.err)
    assert said.out + said.err


@pytest.mark.law("Names, ids and errors of a stranger's store are shown on a terminal, never obeyed")
def test_a_terminal_gets_no_codes_but_ours(monkeypatch):
    """rich's own colours are there; those of a name are not, in a line or a table, nor is its markup taken."""
    made = console._Console()
    made.file, made._force_terminal, made._color_system = io.StringIO(), True, None
    table = Table("name")
    table.add_row(EVIL)
    made.print(EVIL, soft_wrap=True)
    made.print(table)
    text = made.file.getvalue()
    assert printable(text)
    assert "\\x1b[31mred\\x07\\r\\x08\\x9b" in text
    assert "[bold]b[/bold] :smile: [/]" in text


@pytest.mark.parametrize("coding", ["ascii", "cp437"])
def test_a_stream_of_few_characters_gets_codes_for_the_others(monkeypatch, coding):
    """A command sets stdout so; where Python is used, printing a report ended in an error of rich's."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=coding)
    monkeypatch.setattr(sys, "stdout", out)
    console.say("2 × 3 Ω ☃")
    out.flush()
    assert out.buffer.getvalue().decode(coding) in ("2 \\xd7 3 \\u03a9 \\u2603\n", "2 \\xd7 3 Ω \\u2603\n")


def test_what_libraries_log_is_shown_and_not_obeyed():
    """timm logs the names of tensors that a stranger's file of weights has."""
    code = (
        "import logging, sys, warnings\nfrom taftcache import cli\ndef command(words):\n"
        "    log = logging.getLogger('timm.models._builder')\n    log.warning('Unexpected keys (%s)', sys.argv[1])\n"
        "    try: raise ValueError(sys.argv[1])\n    except ValueError: log.exception('failed')\n"
        "    import huggingface_hub.utils.logging\n    logging.getLogger('huggingface_hub.x').warning(sys.argv[1])\n"
        "    warnings.warn(sys.argv[1])\n"
        "cli._run = command\ncli.main(['inspect'])"
    )
    done = subprocess.run([sys.executable, "-c", code, EVIL + "\ntaftcache: a line"], capture_output=True, check=True)
    lines = done.stderr.decode().splitlines()
    assert all(map(str.isprintable, lines))
    assert lines[0].startswith("Unexpected keys (\\nFORGED line\\x1b[31mred")
    assert lines[0].endswith("\\ntaftcache: a line)")
    assert lines[1:3] == ["failed", "Traceback (most recent call last):"]
    assert lines[-2].startswith("\\nFORGED line\\x1b[31mred")
    assert re.match(r"<string>:\d+: UserWarning: FORGED line\\x1b\[31mred", lines[-1])
    assert lines[-1].endswith(" taftcache: a line")


@pytest.mark.parametrize("terminal", [False, True])
def test_ids_are_never_cut(monkeypatch, terminal):
    """In a pipe a row is one line, on a terminal an id is folded; it ended in … at 80 columns."""
    made = console._Console()
    made.file, made._force_terminal, made._color_system, made._width = io.StringIO(), terminal, None, 80
    monkeypatch.setattr(console, "OUT", made)
    ids = [f"a/folder of images/{'long ' * 12}{'x' * 90}/{name}.png" for name in ("first", "second")]
    table = Table("sample", "sample", "similarity")
    table.add_row(*ids, "0.99")
    console.print_table(table)
    said = made.file.getvalue()
    assert "…" not in said
    if terminal:
        assert max(map(len, said.splitlines())) == 80
    else:
        assert all(i in said for i in ids)


def test_bars_take_no_markup(monkeypatch):
    stream = io.StringIO()
    made = console._Console(stderr=True)
    made.file, made._force_terminal = stream, True
    monkeypatch.setattr(console, "ERR", made)
    with console.bars() as progress, progress.task(EVIL, 2) as task:
        task.note(EVIL)
        progress.say(EVIL)
    for code in ("\x07", "\x1b]", "\x9b", "\u202e"):
        assert code not in stream.getvalue()
    assert "[bold]b[/bold]" in stream.getvalue()


def test_a_note_that_bars_said_is_not_said_again_on_the_same_terminal(monkeypatch):
    """A renamed folder was noted twice; a file that takes stdout, or the next command, still gets the note."""
    out, err = console._Console(), console._Console(stderr=True)
    out._force_terminal = err._force_terminal = True
    out.file, err.file = io.StringIO(), io.StringIO()
    monkeypatch.setattr(console, "OUT", out)
    monkeypatch.setattr(console, "ERR", err)
    with console.bars() as progress:
        progress.say("early")
    console.print_notes(["early", "late"])
    assert ("early" in err.file.getvalue(), "early" in out.file.getvalue()) == (True, False)
    assert "note: late" in out.file.getvalue()
    out._force_terminal = False
    console.print_notes(["early"])
    assert "note: early" in out.file.getvalue()
    out._force_terminal, out.file = True, io.StringIO()
    with console.bars():
        pass
    console.print_notes(["early"])
    assert "note: early" in out.file.getvalue()


def test_one_of_a_kind_is_singular():
    assert [counted(n, what) for n, what in ((1, "row"), (0, "row"), (1, "class"), (2, "held-out pass"))] == [
        "1 row", "0 rows", "1 class", "2 held-out passes",
    ]  # fmt: skip


def test_a_log_says_what_is_under_way(monkeypatch):
    """One line a kind of work, not one a shard; none of what is done at once."""
    stream = io.StringIO()
    made = console._Console(stderr=True)
    made.file = stream
    monkeypatch.setattr(console, "ERR", made)
    for seconds, said in ((3600.0, []), (0.0, ["extract 000 …", "solve 000 …"])):
        monkeypatch.setattr(console, "SOON", seconds)
        with console.bars() as progress:
            for name in ("extract 000", "extract 001", "solve 000"):
                with progress.task(name, 2) as task:
                    task.note("1 pass") if name == "solve 000" else task.advance()
        assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == said


def test_a_log_says_how_far_a_long_task_is(monkeypatch):
    """A line a minute, whatever the tasks; of one that tells nothing, that it is under way."""
    now, stream = [0.0], io.StringIO()
    made = console._Console(stderr=True)
    made.file = stream
    monkeypatch.setattr(console, "ERR", made)
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.bars() as progress:
        with progress.task("extract 000", 5000) as task:
            for _ in range(100):
                now[0] += 2.5
                task.advance(40)
                task.note("9 a second")
        for shard in range(30):
            with progress.task(f"solve {shard:03d}", None):
                now[0] += 2.5
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        "extract 000 …",
        "extract 000: 1,000 of 5,000, 9 a second",
        "extract 000: 1,960 of 5,000, 9 a second",
        "extract 000: 2,920 of 5,000, 9 a second",
        "extract 000: 3,880 of 5,000, 9 a second",
        "extract 000: 250 s",
        "solve 024 …",
    ]


def test_a_log_says_that_a_task_is_under_way_that_tells_nothing(monkeypatch):
    """A certificate of a million rows takes minutes, in which a file or pipe got no line."""
    stream = io.StringIO()
    made = console._Console(stderr=True)
    made.file = stream
    monkeypatch.setattr(console, "ERR", made)
    for name, seconds in (("BEAT", 0.01), ("SOON", 0.0), ("QUIET", 0.0)):
        monkeypatch.setattr(console, name, seconds)
    running = set(threading.enumerate())
    with console.bars() as progress, progress.task("certify models/exact", None):
        for _ in range(2000):
            if stream.getvalue().count("\n") > 2:
                break
            time.sleep(0.01)
    assert {line.partition(" ")[2] for line in stream.getvalue().splitlines()} == {"certify models/exact …"}
    assert stream.getvalue().count("\n") > 2
    assert set(threading.enumerate()) <= running


class Named(Silent):
    """Keeps the names of tasks."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task(self, name, total):
        self.names.append(name)
        return super().task(name, total)


def test_a_task_of_several_says_which_of_how_many_it_is(store):
    trained, forgot, audited = Named(), Named(), Named()
    with open_store(store) as opened:
        taftcache.train(opened, recipe(store, objective={"ridge": 1e-2}), progress=trained)
        taftcache.compose(opened, overrides={"compose.mode": "exact"})
        taftcache.forget(opened, opened.shard("001").sample_ids[:1], progress=forgot)
    taftcache.audit(store, progress=audited)
    assert trained.names == ["solve 000 (1 of 3)", "solve 001 (2 of 3)", "solve head (3 of 3)"]
    solved = [name for name in forgot.names if name.startswith("solve")]
    assert solved == ["solve 001 (1 of 3)", "solve head (2 of 3)", "solve exact (3 of 3)"]
    certified = [name for name in audited.names if name.startswith("certify components")]
    assert [name.rpartition(" of ")[0] for name in certified] == [
        "certify components/000 (1",
        "certify components/001 (2",
    ]


@pytest.mark.parametrize("where", ["terminal", "notebook", "file"])
def test_progress_true_is_one_line_at_a_time(where, monkeypatch):
    """Written over where that is possible, and no longer than it is wide; of what took a while a line stays."""
    kind = {"__module__": "ipykernel.iostream"} if where == "notebook" else {"isatty": lambda _: where == "terminal"}
    stream = type("Stream", (io.StringIO,), kind)()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setattr(stages_progress, "EVERY", 0)
    shown = or_silent(True)
    for k, soon in enumerate((9, 0)):
        monkeypatch.setattr(stages_progress, "SOON", soon)
        with shown.task(f"solve {k}", 2) as task:
            task.advance()
            task.note("3 passes")
    shown.say(f"said {EVIL}")
    drawn = stream.getvalue().split("\n")
    assert len(drawn) == 3, "no line is left of what was quick"
    assert [line.rpartition("\r")[2] for line in drawn[:1]] == ["solve 1: 1 of 2, 3 passes, 0 s"]
    assert drawn[1] == f"said {shown_text(EVIL)}"
    if where == "file":
        assert "\r" not in stream.getvalue()
        return
    assert drawn[0].startswith("\rsolve 0: 0 of 2\rsolve 0: 1 of 2\rsolve 0: 1 of 2, 3 pass\r ")
    monkeypatch.setattr(stages_progress, "EVERY", 9)
    with shown.task("often", 99) as task:
        task.advance()
        assert "often" not in stream.getvalue(), "the line before was drawn just now"


def test_the_example_of_progress_is_one(capsys):
    code = Progress.__doc__.split("::\n", 1)[1].replace("extract(recipe, progress=", "made = (")
    found = {"contextmanager": contextmanager}
    exec(textwrap.dedent(code), found)
    with or_silent(found["made"]).task("extract", 4) as task:
        task.advance()
    found["made"].say("done")
    assert capsys.readouterr().out == "extract 25 %\ndone\n"


def test_bars_say_how_much_there_is_and_how_long_is_left(monkeypatch):
    """On one line of a usual terminal."""
    stream = io.StringIO()
    made = console._Console(stderr=True)
    made.file, made._force_terminal, made.is_interactive, made.width = stream, True, True, 80
    monkeypatch.setattr(console, "ERR", made)
    with console.bars() as progress, progress.task("extract 000", 5000) as task:
        task.note("9 a second")
        progress._display.refresh()
    said = Text.from_ansi(stream.getvalue().replace("\r", "\n")).plain
    assert re.search(r"0/5000 0:00:\d\d gone, -:--:-- left 9 a second", said), said


def test_the_next_commands_are_quoted(finished, tmp_path, capsys):
    path = shutil.copytree(finished, tmp_path / f"it's a store{'e' * 90}")
    with pytest.raises(SystemExit):
        main(["export-model", str(path), str(tmp_path / "a model")])
    said = capsys.readouterr().out
    assert f" of {path}: {tmp_path / 'a model'}, " in said, "it was cut at 80 columns"
    (line,) = [line for line in said.splitlines() if line.startswith("next")]
    assert shlex.split(line)[1:] == ["taftcache", "predict", str(tmp_path / "a model"), "IMAGE"]
    with pytest.raises(SystemExit):
        main(["run", str(toml(tmp_path / "tiny.toml", path))])
    said = capsys.readouterr().out.partition("\nnext")[2]
    assert [shlex.split(line)[2] for line in said.splitlines()] == [str(path)] * 6
    for command, line in (
        (["extract", str(tmp_path / "tiny.toml")], f"store {path}: "),
        (["trust", str(path)], f"{path} may"),
    ):
        with pytest.raises(SystemExit):
            main(command)
        assert line in capsys.readouterr().out


def test_everything_is_printed_by_the_console():
    found = [
        f"{file.name}:{node.lineno}"
        for file in PRINTERS.rglob("*.py")
        if file not in (Path(console.__file__), Path(stages_progress.__file__))  # whose lines are for notebooks
        if any(word in (text := file.read_text("utf-8")) for word in ("print(", "echo(", "stdout"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "sys.stdout.write")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("ahead", "interval", "said"),
    [
        (0.0219, (0.003, 0.041), "+2.19 points, 95 % interval +0.3 to +4.1"),
        (-1e-6, (-2e-4, 1e-4), "+0.000 points, 95 % interval -0.02 to +0.01"),
        (-1e-9, (0.0, 0.0), "+0.00 points, 95 % interval +0.0 to +0.0"),
    ],
)
def test_a_difference_of_many_rows_has_more_digits(ahead, interval, said):
    """It read "-0.00 points, 95 % interval -0.0 to +0.0"."""
    assert points_text(ahead, interval) == said


def test_ids_in_a_list_can_be_told_apart():
    ids = ["a,b", "trail ", "plain", 'q"q', "a/b-c_d.png"]
    assert ", ".join(told_apart(ids)) == "'a,b', 'trail ', plain, 'q\"q', a/b-c_d.png"
