"""The command line: parse, one library call, print.

Public names are called as ``taftcache.<name>``, which loads their module on first use. The few imports inside commands
are of modules that have no public name and load numpy, zarr, torch or Dask: ``--help`` and a wrong option must be
answered before any of these is loaded.

With ``--json`` an error is printed to stdout as JSON, too: {"error", "fault", "got", "try", "exit_code"}, and "ids"
if the command named unknown samples.
"""

from __future__ import annotations

import difflib
import io
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from errno import EPIPE
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

import taftcache
from taftcache.cache.place.failure import cannot
from taftcache.cache.place.lock import waiting
from taftcache.cli import experiments, forgetting, inspection, models, pipeline, stores
from taftcache.errors import (
    INTERRUPTED,
    INTERRUPTED_CODE,
    RecipeError,
    StoreChanged,
    StoreUnreachable,
    StoreWriteError,
    TaftcacheError,
    first_line,
)
from taftcache.terminal.console import OUT, ShownRecord, Unwritten, complain, note, note_warning, print_json

# click's, or typer's own copy of it, whichever this typer has
UsageError: Any = typer.BadParameter.__base__
UNWRITTEN = StoreWriteError.exit_code
AGAIN = 2  # how often a command starts again if another process has committed meanwhile
READING = {"evaluate", "predict", "inspect", "find", "report", "influence", "receipts", "audit"}  # commit nothing
EXHAUSTED = "memory ran out; what was committed is kept, and the same command resumes from there"
NO_MEMORY = re.compile("out of memory|(allocate|not enough) memory|failed to map segment")  # of torch and the loader
LESS = "end other programs; --set solver.memory=0B needs less to train, --set extract.workers=1 to decode images"
LESS_TO_TEACH = "end other programs; --set train.memory=0B, a smaller train.batch or less teach.noise needs less"
HELP = {"--help", "--show-completion"}
NAME, COMPLETES = "taftcache", "_TAFTCACHE_COMPLETE"  # typer's variable, in which a shell asks for completions
PIPE_CODE = 141  # what a shell reports if nobody reads standard output any more
EXHAUSTED_CODE = 137  # what a shell reports if the system kills a process for its memory


class _Commands(TyperGroup):
    """Lists the commands by what people do with them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each with the first sentence of its help."""
        given = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        seen = {name: command for name, command in given.items() if command and not command.hidden}
        widest = max(map(len, seen))
        for title, names in groups().items():
            rows = [(name, seen[name].get_short_help_str(formatter.width - widest - 6)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in rows])


def _has_folder() -> bool:
    """Whether the current folder is still there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _plain(text: str) -> str:
    """A sentence of typer's in the form of the other errors: lower case, no full stop."""
    text = text.replace("Value error, ", "")
    return text[:1].lower() + text[1:].rstrip(".")


def _wrong_number(error: Any) -> str | None:
    """What a number should have been, as of a recipe's key; None for an error of another kind.

    typer hands on pydantic's sentence, which does not name the value.
    """
    errors = getattr(error.__cause__, "errors", None)
    said = errors()[0] if errors else {}
    kind, value = said.get("type"), said.get("input")
    whole, number = kind == "int_parsing", kind == "float_parsing"
    shown = repr(value) if whole or number else value
    for limit in (said.get("ctx", {}).get(name) for name in ("ge", "le")):
        whole, number = whole or isinstance(limit, int), number or isinstance(limit, float)
    if not (whole or number):
        return None
    limits = {"of at least": getattr(error.param, "min", None), "of at most": getattr(error.param, "max", None)}
    bounds = " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)
    may_be = f"a {'whole ' if whole else ''}number {bounds}".rstrip()
    return f"{error.param.opts[0]} is {shown}, but must be {may_be}"


# What people do → the files with the commands for it, in the order of the help.
PARTS = {
    "From images to a model": (pipeline,),
    "Look": (inspection,),
    "Forget": (forgetting,),
    "Move and keep": (stores, models),
    "Research": (experiments,),
}


def groups() -> dict[str, list[str]]:
    """What people do → the names of the commands for it, without hidden ones."""
    return {
        title: [
            info.name or info.callback.__name__.replace("_", "-")
            for part in parts
            for info in part.commands.registered_commands
            if info.callback and not info.hidden
        ]
        for title, parts in PARTS.items()
    }


app = typer.Typer(
    name="taftcache",
    cls=_Commands,
    help="Convex, composable, forgettable fine-tuning from cached features.\n\n"
    "Try it:  taftcache demo.  Your own images:  taftcache init FOLDER",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for parts in PARTS.values():
    for part in parts:
        app.add_typer(part.commands)


def _version(asked: bool) -> None:
    if asked:
        OUT.print(f"taftcache {taftcache.__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="Wait up to SECONDS for another writer of the store."),
    ] = 0,
) -> None:
    """Options that stand before a command."""
    if wait:
        ctx.with_resource(waiting(wait, note))


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point. Whatever ends a command is reported here, in taftcache's form and with its exit code: its own errors
    go to stderr without a traceback. typer's ``main`` would report in a form of its own."""
    before = logging.getLogRecordFactory(), warnings.showwarning
    _prepare()
    try:
        _answer(sys.argv[1:] if argv is None else argv)
    finally:  # for a program that goes on
        logging.setLogRecordFactory(before[0])
        warnings.showwarning = before[1]


def _answer(words: Sequence[str]) -> NoReturn:
    try:
        try:
            _check_start(words)
            _run(words)
        finally:
            OUT.file.flush()  # a failed write shows here, and not only when the process exits
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:
        said = "interrupted" if _only_reads(words) else INTERRUPTED
        complain(f"taftcache: {said}")
        _report(words, "KeyboardInterrupt", said, INTERRUPTED_CODE)
        sys.exit(INTERRUPTED_CODE)
    except UsageError as error:
        _refuse(words, error)
    except TaftcacheError as error:
        _end(words, error)
    except OSError as error:
        # typer prints the help: an error without a file name is then one of writing it
        if isinstance(error, Unwritten) or (error.filename is None and not HELP.isdisjoint(words)):
            _unwritten(error)
        if error.filename is not None:  # a name that is too long, say, wherever it was looked at first
            _end(words, cannot("open", error.filename, error, StoreUnreachable))
        _unforeseen(words, error)
        raise
    except Exception as error:
        if _exhausts(error):
            less = LESS_TO_TEACH if "teach" in words[:1] else LESS
            complain(f"taftcache: {EXHAUSTED}", f"  got: {first_line(error)}", f"  try: {less}")
            _report(words, "MemoryError", EXHAUSTED, EXHAUSTED_CODE, got=error, do=less)
            sys.exit(EXHAUSTED_CODE)
        _unforeseen(words, error)
        raise
    sys.exit(0)


def _prepare() -> None:
    """Set what libraries read when they are loaded, how they log, and mend standard output."""
    logging.setLogRecordFactory(ShownRecord)
    warnings.showwarning = note_warning
    # Linear algebra threads that spin while they wait occupy the cores that they wait for: beside other work a solve
    # took several times as long. So they spin only a hundredth as long as libgomp's default. libgomp reads this when
    # torch is loaded. If the user has set OMP_WAIT_POLICY, that holds.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # timm 1.0 decorates two layers with torch.jit.script: a user can do nothing about this warning.
    warnings.filterwarnings("ignore", r".torch\.jit\.script", FutureWarning)
    # Pillow warns of large images, but refuses only those with twice as many pixels.
    warnings.filterwarnings("ignore", "Image size .* exceeds limit of", RuntimeWarning)
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # × is not ASCII; stderr escapes so of its own accord


def _check_start(words: Sequence[str]) -> None:
    """Refuse what no command can be given: a folder that is gone, in which libraries end the process without a word of
    that; and an empty argument. As a path that would be the current folder, as a name the usual one."""
    if HELP.isdisjoint(words) and not _has_folder():
        raise RecipeError("the current folder is not there any more: it was deleted", do="cd to another")
    if any(re.fullmatch(r"(--[a-z-]+=)?", word) for word in words):
        raise RecipeError(
            "an argument is empty",
            got=shlex.join(["taftcache", *words]),
            do='give it a value, or leave it out; the current folder is "."',
        )


def _run(words: Sequence[str]) -> None:
    """Run a command; again if another process committed meanwhile: it only reads, for a writer holds the lock, or was
    about to make the store that the other has made."""
    command = _command()
    if os.environ.get(COMPLETES):
        command.main(args=list(words), prog_name=NAME)  # answers the shell, and ends the process

    def once() -> None:
        with command.make_context(NAME, list(words)) as context:
            command.invoke(context)

    for _ in range(AGAIN):
        try:
            return once()
        except StoreChanged as error:
            note(f"{error.fault}: once more")
    return once()


def _end(words: Sequence[str], error: TaftcacheError) -> NoReturn:
    fault, *more = error.lines()
    complain(f"taftcache: {fault}", *more)
    unknown = {part: named for part in ("ids", "names") if (named := getattr(error, part, None))}
    _report(words, type(error).__name__, error.fault, error.exit_code, error.got, error.do, unknown)
    sys.exit(error.exit_code)


def _exhausts(error: Exception) -> bool:
    """Whether memory ran out; torch, computing or being loaded, says so in an error of another class."""
    said = isinstance(error, RuntimeError | ImportError) and NO_MEMORY.search(str(error)) is not None
    return said or isinstance(error, MemoryError)


def _unforeseen(words: Sequence[str], error: Exception) -> None:
    """Report an error that taftcache has no message for as JSON; Python's traceback follows on stderr."""
    _report(words, type(error).__name__, first_line(error), 1)


def _refuse(words: Sequence[str], error: Any) -> NoReturn:
    """End a command that typer cannot parse."""
    if type(error).__name__ == "NoArgsIsHelpError":  # no error: typer prints the help
        error.show()
        sys.exit(error.exit_code)
    fault = _wrong_number(error) or _plain(error.format_message())
    do = f"{error.ctx.command_path if error.ctx else 'taftcache'} --help"
    asked = re.fullmatch("no such command '(.*)'", fault)
    if asked and (near := difflib.get_close_matches(asked[1], _command().list_commands(error.ctx), n=1)):
        do = f"did you mean {near[0]}? {do}"
    option = getattr(error, "option_name", None)
    if error.ctx and error.ctx.parent and any(option in own.opts for own in _command().params):
        do = f"it stands before the command: taftcache {option} … {error.ctx.info_name}"
    elif option and (file := next((w for w in words if w.startswith(option) and os.path.exists(w)), None)):
        do = f"-- goes before names that begin with a dash: {error.ctx.command_path} … -- {shlex.quote(file)}"
    complain(f"taftcache: {fault}", f"  try: {do}")
    if error.ctx:
        complain(*error.ctx.get_usage().splitlines())
    _report(words, "UsageError", fault, error.exit_code, do=do)
    sys.exit(error.exit_code)


def _report(
    words: Sequence[str],
    kind: str,
    fault: str,
    exit_code: int,
    got: object = None,
    do: str | None = None,
    unknown: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Print an error as JSON if the command has ``--json``; the text goes to stderr all the same."""
    if "--json" not in words:
        return
    try:
        said = {"error": kind, "fault": fault, "got": None if got is None else str(got), "try": do}
        print_json({**said, "exit_code": exit_code} | dict(unknown or {}))
        OUT.file.flush()
    except Unwritten as error:
        _unwritten(error, exit_code)


def _unwritten(error: OSError, exit_code: int | None = None) -> NoReturn:
    """End a command whose report could not be written; ``exit_code`` is that of the error that it was to report."""
    nobody_reads = error.errno == EPIPE
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # so that Python does not try again at exit
    if not nobody_reads:  # a reader that closed the pipe needs no message
        complain(
            "taftcache: the report could not be written to standard output; what was committed is kept",
            f"  got: {error.strerror}",
        )
    sys.exit(exit_code or (PIPE_CODE if nobody_reads else UNWRITTEN))


def _only_reads(words: Sequence[str]) -> bool:
    """Whether a command, after options for all commands, commits nothing."""
    name = next((word for word in words if word in _command().commands), "")
    return name in READING or (name == "verify" and "--repair" not in words)


@cache
def _command() -> Any:
    """All commands, read once from their functions' signatures."""
    return get_command(app)
