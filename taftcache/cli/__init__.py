"""The command line: parse, one library call, print."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from taftcache.cli import experiments, forgetting, inspection, models, pipeline, stores
from taftcache.errors import TaftcacheError
from taftcache.terminal.console import complain


class _Commands(TyperGroup):
    """Says how an interrupted command ended, before typer ends the process in its own way."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("taftcache: interrupted; what was committed is kept, and the same command goes on from there")
            sys.exit(130)


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
    try:
        app(args=argv, standalone_mode=True)
    except TaftcacheError as error:
        complain(f"taftcache: {error}")
        sys.exit(error.exit_code)
