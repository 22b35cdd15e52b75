"""The command line: parse, one library call, print.

Public names are called as ``taftcache.<name>``, which loads their module on first use. The few imports inside commands
are of modules that have no public name and load numpy, zarr, torch or Dask: ``--help`` and a wrong option must be
answered before any of these is there.

With ``--json`` an error is printed to stdout as JSON, too: {"error", "fault", "got", "try", "exit_code"}.
"""

from __future__ import annotations

import io
import sys
import warnings
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from taftcache.cli import experiments, forgetting, inspection, models, pipeline, stores
from taftcache.cli.options import print_error
from taftcache.errors import TaftcacheError
from taftcache.terminal.console import complain

# click's, or typer's own copy of it, whichever this typer has
UsageError: Any = typer.BadParameter.__base__
INTERRUPTED = "interrupted; what was committed is kept, and the same command resumes from there"


class _Commands(TyperGroup):
    """Says how a command ended that was interrupted or misspelt, before typer ends the process in its own way."""

    as_json = False

    def main(self, *arguments: Any, **named: Any) -> Any:
        given = named.get("args", next(iter(arguments), None))
        self.as_json = "--json" in (sys.argv[1:] if given is None else given)
        try:
            return super().main(*arguments, **named)
        except TaftcacheError as error:
            fault, *more = error.lines()
            complain(f"taftcache: {fault}", *more)
            self._report(type(error).__name__, error.fault, error.exit_code, error.got, error.do)
            sys.exit(error.exit_code)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain(f"taftcache: {INTERRUPTED}")
            self._report("KeyboardInterrupt", INTERRUPTED, 130)
            sys.exit(130)
        except UsageError as error:
            fault = error.format_message().rstrip(".")
            self._report("UsageError", fault[:1].lower() + fault[1:], error.exit_code, do=_help(error))
            raise

    def _report(self, kind: str, fault: str, exit_code: int, got: object = None, do: str | None = None) -> None:
        if self.as_json:
            print_error(kind, fault, exit_code, got, do)


def _help(error: Any) -> str:
    return f"{error.ctx.command_path if error.ctx else 'taftcache'} --help"


app = typer.Typer(
    name="taftcache",
    cls=_Commands,
    help="Convex, composable, forgettable fine-tuning from cached features.\n\n"
    "Start with:  taftcache run pipelines/quickstart.toml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for part in (pipeline, inspection, forgetting, stores, models, experiments):
    app.add_typer(part.commands)


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors of taftcache's own go to stderr without a traceback, each with its exit code."""
    # timm 1.0 decorates two layers with torch.jit.script, which is nothing that a user could act on.
    warnings.filterwarnings("ignore", r".torch\.jit\.script", FutureWarning)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # × is not ASCII; stderr escapes so of its own accord
    _command()(args=argv, standalone_mode=True)


@cache
def _command() -> Any:
    """All commands, read once from their functions' signatures."""
    return get_command(app)
