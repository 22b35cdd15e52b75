"""Commands that look into a store and change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import webbrowser
from contextlib import ExitStack, nullcontext
from pathlib import Path
from shutil import which
from typing import Annotated

import typer

import taftcache
from taftcache.cli.options import AllowHub, Images, Json, Model, StorePath, Weights, consent_to, print_report, store_of
from taftcache.errors import RecipeError
from taftcache.recipe import without_defaults
from taftcache.recipe_files import toml_text
from taftcache.stages.writing import writable
from taftcache.terminal.console import bars, complain
from taftcache.terminal.inspection import show_address, show_recipe

commands = typer.Typer()


@commands.command()
def inspect(
    store: Annotated[
        Path,
        typer.Argument(
            metavar="STORE|FILE",
            help="a store (its folder, s3://bucket/prefix, or the recipe that made it), or a component's file",
            callback=store_of,
            readable=False,
        ),
    ],
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="ID", help="one sample: where it lies, what is cached, what the models say"),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="NAME", help="one shard: balance, activations, component")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="one class: its rows in every shard")
    ] = None,
    ids: Annotated[
        bool,
        typer.Option(
            "--ids",
            help="list the ids of all samples (or those of the shard or class), with held-out and skipped ones,"
            " one per line, for forget --file",
        ),
    ] = False,
    recipe: Annotated[
        bool,
        typer.Option("--recipe", help="the recipe that the store was made and last trained with, as a file has it"),
    ] = False,
    suspects: Annotated[
        bool, typer.Option("--suspects", help="training rows whose label the others contradict, worst first")
    ] = False,
    duplicates: Annotated[
        bool,
        typer.Option("--duplicates", help="nearly identical rows, and training rows nearly identical to held-out ones"),
    ] = False,
    outliers: Annotated[bool, typer.Option("--outliers", help="rows far from all others, farthest first")] = False,
    top: Annotated[
        int | None, typer.Option("--top", min=1, metavar="N", help="how many rows these three list; 20 by default")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold", metavar="SIMILARITY", help="the least similarity for --duplicates, up to 1; 0.95 by default"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is in a store, a shard, a class or a sample.

    Shows shards, rows, classes, activations, components with certificates, integrity and the ledger. Reads manifests
    and a sample of rows. --ids lists the samples, for scripts; --json adds the shard, role and class of each.
    --suspects, --duplicates and --outliers read all rows, and rank what may be wrong with the data.

    --recipe prints what taftcache extract takes as a file, to go on in the same store.

    Of a file that export-component wrote, shows what it says of itself, before it is imported.

    Example: taftcache inspect stores/quickstart --class 7
    """
    of_rows = {"--suspects": suspects, "--duplicates": duplicates, "--outliers": outliers}
    of_parts = {"--sample": sample, "--shard": shard, "--class": label, "--ids": ids, "--recipe": recipe}
    asked, beside = ([name for name, given in options.items() if given] for options in (of_rows, of_parts))
    if store.is_file() and (asked or beside):
        raise RecipeError(
            f"{(asked + beside)[0]} is for a store, and {store} is a file",
            got=" ".join(asked + beside),
            do="leave it out to see what a component's file says, or name a store",
        )
    if asked or top is not None or threshold is not None:
        _check_reading(asked, beside, threshold)
        _read_rows(store, asked[0], top or 20, threshold, as_json)
    else:
        if sample is not None or recipe:
            _check_alone(beside)
        if store.is_file():
            print_report(taftcache.inspect_component(store), as_json)
        else:
            _show_part(store, sample, shard, label, ids, recipe, as_json)


def _show_part(
    path: Path, sample: str | None, shard: str | None, label: str | None, ids: bool, recipe: bool, as_json: bool
) -> None:
    """Print what ``inspect`` says about a store, or about the part of it that is named."""
    with taftcache.FeatureStore(path) as store:
        if recipe:
            from taftcache.stages.look.inside.stores import other_settings

            found = taftcache.inspect_recipe(store)
            text = toml_text(without_defaults(found))
            others = other_settings(store)
            print_report(found, as_json, lambda _: show_recipe(text, store.identity, others))
        elif sample is not None:
            print_report(taftcache.inspect_sample(store, sample), as_json)
        elif ids or (shard is not None and label is not None):
            print_report(taftcache.list_samples(store, shard=shard, label=label), as_json)
        elif shard is not None:
            print_report(taftcache.inspect_shard(store, shard), as_json)
        elif label is not None:
            print_report(taftcache.inspect_class(store, label), as_json)
        else:
            print_report(taftcache.inspect(store), as_json)


def _check_reading(asked: list[str], others: list[str], threshold: float | None) -> None:
    """RecipeError unless exactly one option that reads all rows is ``asked`` for, and none of the ``others``."""
    if not asked:
        raise RecipeError(
            "--top and --threshold have nothing to list",
            got="neither --suspects, --duplicates nor --outliers",
            do="name one of the three",
        )
    _check_alone(asked + others)
    if threshold is not None and asked != ["--duplicates"]:
        raise RecipeError("--threshold is only for --duplicates", got=asked[0], do="--duplicates --threshold")


def _check_alone(options: list[str]) -> None:
    """RecipeError for more options than the first, beside which no other says anything."""
    if len(options) > 1:
        raise RecipeError("these options cannot be combined", got=" ".join(options), do=options[0])


def _read_rows(path: Path, asked: str, limit: int, threshold: float | None, as_json: bool) -> None:
    """Print what ``inspect`` finds by reading all rows."""
    with taftcache.FeatureStore(path) as store, bars(as_json) as progress:
        if asked == "--suspects":
            print_report(taftcache.suspects(store, top=limit, progress=progress), as_json)
        elif asked == "--outliers":
            print_report(taftcache.outliers(store, top=limit, progress=progress), as_json)
        else:
            from taftcache.stages.look.duplicates import THRESHOLD

            least = THRESHOLD if threshold is None else threshold
            print_report(taftcache.duplicates(store, top=limit, threshold=least, progress=progress), as_json)


@commands.command()
def find(
    store: StorePath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="image files, and folders of them")],
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="samples to list for each image")] = 5,
    weights: Weights = None,
    allow_hub: AllowHub = False,
    as_json: Json = False,
) -> None:
    """Find the samples that are most like an image.

    For a picture whose id nobody knows: it goes through the frozen layers, and its row is compared with all others. The
    original file has the same row; a picture that was scaled or saved again has a similar one. Skipped samples, and
    those of an unfinished extraction, are not found. For a store of vectors, give files of them.

    Example: taftcache find stores/quickstart digit.png
    """
    with bars(as_json) as progress:
        found = taftcache.find(
            store, images, top=top, consent=consent_to(weights=weights, hub=allow_hub), progress=progress
        )
    print_report(found, as_json)


@commands.command()
def view(
    store: StorePath,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="the port to use; 0 takes a free one")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="open the page in a browser, or only print its address")
    ] = True,
    images: Images = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="STORE", help="compare sample by sample with another store's models"),
    ] = None,
) -> None:
    """Look into a store on a page in the browser.

    Shows a map, samples, classes, shards, training, models compared, what forgetting would cost, and the ledger. Ctrl-C
    ends it. Only this machine can open the page, at an address with a random token; the page loads nothing from
    elsewhere. To see it from another machine: --port PORT here, and ssh -L PORT:127.0.0.1:PORT there.

    Example: taftcache view stores/quickstart
    """
    from taftcache.view.atlas import Atlas
    from taftcache.view.server import ViewServer, leading_to

    with ExitStack() as stack:
        opened = stack.enter_context(taftcache.FeatureStore(store))
        other = None if against is None else stack.enter_context(taftcache.FeatureStore(against))
        server = stack.enter_context(ViewServer(Atlas(opened), port, consent_to(images), other))
        try:
            show_address(server.url, [refused] if (refused := server.shown.pictures.refused) else [])
            with leading_to(server.url) if browser else nullcontext() as file:
                if file is not None:
                    _open(file)
                server.wait()
        except KeyboardInterrupt:
            complain("taftcache: the page is closed")
            # End at once, without waiting for the libraries' threads: they take up to a minute to stop, or abort an
            # interpreter that ends before them. The page has written nothing that could be lost.
            sys.stdout.flush()
            os._exit(0)


def _open(file: Path) -> None:
    """Have a browser show a file, if there is one, quietly."""
    if opener := which("xdg-open"):
        subprocess.Popen([opener, str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    else:
        webbrowser.open(file.as_uri())


@commands.command()
def report(
    store: StorePath,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="the file to write")] = Path(
        "report.html"
    ),
    sample: Annotated[
        list[str] | None, typer.Option("--sample", metavar="ID", help="include all details of this sample (repeatable)")
    ] = None,
    neighbours: Annotated[
        bool, typer.Option("--neighbours/--no-neighbours", help="include the neighbour embedding, the slowest part")
    ] = True,
    images: Images = None,
    as_json: Json = False,
) -> None:
    """Write the page of a store as one HTML file.

    The file needs neither server nor network. It holds ids and pictures, and keeps those of samples forgotten later.

    Example: taftcache report stores/quickstart -o report.html --no-neighbours
    """
    from taftcache.view.page import beginning

    writable(output, again=beginning())
    allowed = consent_to(images)
    with bars(as_json) as progress:
        written = taftcache.write_report(
            store, output, samples=sample or [], neighbours=neighbours, consent=allowed, progress=progress
        )
    print_report(written, as_json)


@commands.command()
def influence(
    store: StorePath,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="ID", help="what the model loses without this training sample")
    ] = None,
    query: Annotated[
        str | None,  # not a Path, which would drop a slash from an id that is a URL
        typer.Option("--query", metavar="IMAGE|ID", help="which training samples moved this prediction most"),
    ] = None,
    model: Model = None,
    label: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="with --query: the class whose logit is asked about"),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="samples to list")] = 10,
    weights: Weights = None,
    allow_hub: AllowHub = False,
    as_json: Json = False,
) -> None:
    """Show what one training sample changed.

    Or, with --query, which samples changed one prediction most: leave-one-out, exact or bounded.

    Example: taftcache influence stores/quickstart --sample digits/0007
    """
    if (sample is None) == (query is None):
        raise RecipeError(
            "influence needs either --sample or --query",
            got="both" if sample is not None else "neither",
            do="name one of the two",
        )
    if sample is not None and label is not None:
        raise RecipeError(
            "--class cannot be combined with --sample", got=f"--class {label}", do="leave one of them out"
        )
    with bars(as_json) as progress:
        if sample is not None:
            print_report(taftcache.sample_influence(store, sample, model=model, progress=progress), as_json)
        else:
            assert query is not None
            allowed = consent_to(weights=weights, hub=allow_hub)
            report = taftcache.query_influence(
                store, query, model=model, label=label, top=top, progress=progress, consent=allowed
            )
            print_report(report, as_json)
