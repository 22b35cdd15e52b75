"""Commands that forget, and that prove it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import taftcache
from taftcache.cli.options import Grouped, Json, StorePath, print_report
from taftcache.errors import FOUND_CODE, RecipeError, StoreWriteError
from taftcache.terminal.console import bars, complain

commands = typer.Typer()
MANY, RENEWED, PROOF = "Many at once", "How models are renewed", "What proves it"

Samples = Annotated[
    list[str] | None, typer.Option("--sample", metavar="ID", help="a sample's id, or its image's file (repeatable)")
]
IdFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="a text file with one id or image's path per line, without heading, quotes or further columns; - reads "
        "standard input",
    ),
]


@commands.command(cls=Grouped)
def forget(
    store: StorePath,
    sample: Samples = None,
    file: IdFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would happen and what it would cost, and change nothing")
    ] = False,
    shard: Annotated[
        list[str] | None,
        typer.Option("--shard", metavar="NAME", help="all rows of a shard (repeatable)", rich_help_panel=MANY),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="all rows of a class (repeatable)", rich_help_panel=MANY),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match",
            metavar="PATTERN",
            help="all samples whose ids match, such as 'watch/cust0*', whether or not they have a row; not those"
            " forgotten before, whose ids are not kept (repeatable)",
            rich_help_panel=MANY,
        ),
    ] = None,
    component: Annotated[
        list[str] | None,
        typer.Option(
            "--component",
            metavar="NAME",
            help="an imported component: it is destroyed, and what was composed of it is made again (repeatable)",
            rich_help_panel=MANY,
        ),
    ] = None,
    with_copies: Annotated[
        bool,
        typer.Option(
            "--with-copies",
            help="also forget rows with identical bytes under other ids, and components with identical numbers",
            rich_help_panel=MANY,
        ),
    ] = False,
    with_group: Annotated[
        bool,
        typer.Option(
            "--with-group",
            help="also forget all other samples of the groups (data.group) of what is named, and keep further ones out",
            rich_help_panel=MANY,
        ),
    ] = False,
    mode: Annotated[
        Literal["retrain", "subtract", "resolve"],
        typer.Option(
            "--mode",
            help="retrain: solve the affected shards again; subtract: leave them out of the composition;"
            " resolve: retrain, but solve models/exact starting from where it is",
            rich_help_panel=RENEWED,
        ),
    ] = "retrain",
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign", metavar="KEY", help="sign the receipt with this Ed25519 key (PEM)", rich_help_panel=PROOF
        ),
    ] = None,
    destroy_key: Annotated[
        bool,
        typer.Option(
            "--destroy-key",
            help="destroy the list of tombstones and their key, and name where else beside the store the key lies: "
            "without it nobody can ask whether an id was forgotten. Receipts keep their hashes",
            rich_help_panel=PROOF,
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Forget samples and retrain what was trained on them.

    Their rows leave the cache, what was trained on them is solved again without them, and a receipt is kept. The
    original images (or vectors) stay where they are.

    Example: taftcache forget stores/quickstart --sample digits/0042

    Example: taftcache forget stores/quickstart --match 'digits/004*' --dry-run
    """
    ids = _named(sample, file)
    if destroy_key:
        of_rows = {
            "ids": ids is not None, "--shard": shard, "--class": label, "--match": match, "--component": component,
            "--with-copies": with_copies, "--with-group": with_group, "--dry-run": dry_run,
            "--mode": mode != "retrain",
        }  # fmt: skip
        if beside := [name for name, said in of_rows.items() if said]:
            raise RecipeError(
                "--destroy-key cannot be combined with options about rows",
                got=", ".join(beside),
                do="forget first, then destroy the key",
            )
    with bars(as_json) as progress:
        if destroy_key:
            report = taftcache.destroy_key(store, signing_key=sign)
        else:
            report = taftcache.forget(
                store, ids, progress=progress, shards=shard or [], classes=label or [], matching=match or [],
                components=component or [], mode=mode, dry_run=dry_run, signing_key=sign, with_copies=with_copies,
                with_group=with_group,
            )  # fmt: skip
    print_report(report, as_json)


@commands.command()
def audit(
    store: StorePath,
    public_key: Annotated[
        str | None, typer.Option("--public-key", metavar="HEX", help="the key that the ledger must be signed with")
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(
            "--ledger-head",
            metavar="FILE",
            help="check that the ledger still contains the entry saved in FILE; if the audit passes, FILE is brought up"
            " to date, or created (exit code 5 if it cannot be)",
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--also", metavar="FOLDER", help="also search this folder for files made from forgotten rows (repeatable)"
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="fail, too, on what --also cannot search or judge (otherwise a note)")
    ] = False,
    harmless: Annotated[
        list[str] | None,
        typer.Option(
            "--except",
            metavar="PATTERN",
            help="leave files below the folders of --also out of the verdict, and count them: 'ci/*.log' (repeatable)",
        ),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="forget again what an old copy of the store brought back")
    ] = False,
    sign: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help="sign what --replay writes with this Ed25519 key (PEM)")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check what forgetting promised.

    Checks receipts, computes certificates from the rows, and looks for anything left of what was forgotten. Exit code
    10 if it fails.

    Example: taftcache audit stores/quickstart

    Example: taftcache audit stores/quickstart --ledger-head quickstart.head --also exports
    """
    with bars(as_json) as progress:
        report = taftcache.audit(
            store,
            progress=progress,
            public_key=public_key,
            head=head,
            also=also or [],
            strict=strict,
            harmless=harmless or [],
            replay=replay,
            signing_key=sign,
        )
    print_report(report, as_json)
    if not report.passed:
        raise typer.Exit(FOUND_CODE)
    if report.unsaved:
        fault, *more = report.unsaved
        complain(f"taftcache: {fault}", *more)
        raise typer.Exit(StoreWriteError.exit_code)


@commands.command()
def receipts(
    store: StorePath,
    sample: Samples = None,
    file: IdFile = None,
    as_json: Json = False,
) -> None:
    """Say what was forgotten, when, and what proves it.

    Lists the receipts. With ids, says whether each is still held, was forgotten (and by which receipt), or is not
    known, and lists only the receipts of these. Reads the ledger and changes nothing; taftcache audit checks it
    against the rows.

    Example: taftcache receipts stores/quickstart

    Example: taftcache receipts stores/quickstart --sample digits/0042
    """
    print_report(taftcache.receipts(store, _named(sample, file) or []), as_json)


def _named(sample: list[str] | None, file: Path | None) -> list[str] | None:
    """The ids of ``--sample`` and ``--file``; None if neither is given."""
    from taftcache.stages.forget.request import read_ids

    if not sample and file is None:
        return None
    return [*(sample or []), *(read_ids(file) if file else [])]
