"""Commands that check, move and convert stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import taftcache
from taftcache.cli.options import (
    Force,
    ForgottenOf,
    IdsName,
    Json,
    LabelsName,
    Overrides,
    StorePath,
    Target,
    TestFile,
    TestLabels,
    VectorsName,
    print_report,
)
from taftcache.errors import FOUND_CODE, RecipeError
from taftcache.recipe import check_used, load_recipe
from taftcache.recipe_sections import Stored
from taftcache.terminal.console import bars

commands = typer.Typer()


@commands.command()
def verify(
    store: StorePath,
    root: Annotated[
        str | None,
        typer.Option(
            "--root",
            metavar="DIGEST",
            help="the root digest you noted, or its first 16 digits: detects a store rolled back",
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="make damaged files again from their images; only bytes with the right digest are written"
        ),
    ] = False,
    back: Annotated[
        bool, typer.Option("--back", help="first undo the last commit, if it only added to the store")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="for --repair: change the recipe, to say where the data is now"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read every byte again and name what is damaged.

    Also names what is missing or swapped; exit code 10 if anything is. If the store cannot be opened, the exit code is
    5: its root manifest is damaged or has another root digest, or an old copy was put back.

    With --repair, damaged chunks are extracted again from the images of their rows, and put in place only if their
    digest is the one that the manifest names. Damaged components are dropped; the report says what makes each again.

    With --back, the root manifest from before the last commit replaces the present one, damaged or not. A commit that
    only added to the store (a first training, an import, a further shard) keeps the old manifest; one that replaced or
    forgot anything, or wrote to the ledger, leaves no way back.

    Example: taftcache verify stores/quickstart

    Example: taftcache verify stores/quickstart --repair

    Example: taftcache verify stores/quickstart --back
    """
    with bars(as_json) as progress:
        report = taftcache.verify(store, progress=progress, expect=root, repair=repair, back=back, overrides=set_ or [])
    print_report(report, as_json)
    if report.faults:
        raise typer.Exit(FOUND_CODE)


@commands.command()
def gc(
    store: StorePath,
    dry: Annotated[bool, typer.Option("--dry-run", help="list the files, and remove nothing")] = False,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="also interrupted extractions")] = False,
    foreign: Annotated[bool, typer.Option("--foreign", help="also files that are not part of the format")] = False,
    hours: Annotated[
        float, typer.Option("--hours", min=0, metavar="N", help="in a bucket, keep files younger than this")
    ] = 24.0,
    as_json: Json = False,
) -> None:
    """Remove leftovers of crashes and interrupted copies.

    These are the files of the store's own kinds that no manifest names, and the previous manifest, which verify --back
    needs to undo a last commit that only added.

    Example: taftcache gc stores/quickstart --dry-run
    """
    report = taftcache.gc(store, unfinished=unfinished, foreign=foreign, hours=hours, dry_run=dry)
    print_report(report, as_json)


@commands.command()
def trust(
    store: StorePath,
    remove: Annotated[
        bool, typer.Option("--remove", help="revoke everything that the store at this place was allowed")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let a store open the images and weights it names.

    And its teachers, for this user, from now on. Stores that you extracted yourself may do so already, and so may
    copies of stores that may. Use this for a store that was moved, an import, or a store from someone you know: what it
    names may be any file of yours, or a model on the hub.

    Example: taftcache trust stores/quickstart

    Example: taftcache trust stores/quickstart --remove
    """
    print_report(taftcache.distrust(store) if remove else taftcache.trust(store), as_json)


@commands.command()
def copy(
    store: StorePath,
    target: Target,
    update: Annotated[
        bool, typer.Option("--update", help="allow a target that holds another state of the same store")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a store to a folder or a bucket.

    The copy has the same bytes and root digest, verified on the way and at the end. A copy that was cut off resumes,
    and mends damaged files in the target. Buckets need pip install 'taftcache[s3]' and the usual variables
    (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL).

    Source and target may be s3://bucket/prefix.

    Example: taftcache copy stores/quickstart stores/copy
    """
    with bars(as_json) as progress:
        report = taftcache.copy(store, target, progress=progress, update=update)
    print_report(report, as_json)


@commands.command()
def convert(
    store: StorePath,
    target: Target,
    dtype: Annotated[Stored | None, typer.Option("--dtype", help="the dtype of the new rows")] = None,
    chunk_rows: Annotated[str | None, typer.Option("--chunk-rows", metavar="N|auto", help="rows per chunk")] = None,
    as_json: Json = False,
) -> None:
    """Copy a store with another dtype or chunk size.

    The new store has the rows of the old one. Components and models stay behind; the report says which command makes
    them again.

    Example: taftcache convert stores/quickstart stores/float32 --dtype float32
    """
    if not (chunk_rows is None or chunk_rows == "auto" or (chunk_rows.isdecimal() and int(chunk_rows) > 0)):
        raise RecipeError('--chunk-rows must be a positive number or "auto"', got=chunk_rows, do="--chunk-rows 16")
    rows: Any = int(chunk_rows) if chunk_rows and chunk_rows != "auto" else chunk_rows
    with bars(as_json) as progress:
        report = taftcache.convert(store, target, progress=progress, dtype=dtype, chunk_rows=rows)
    print_report(report, as_json)


@commands.command()
def export(
    store: StorePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a new file (or folder)")],
    format_: Annotated[
        Literal["hdf5", "parquet", "npz", "embedding-projector"] | None,
        typer.Option(
            "--format",
            help="hdf5: every cached row. parquet, npz, embedding-projector (a folder): one vector per sample,"
            " predictions. By default FILE's ending decides (.h5, .hdf5, .npz or .parquet); without an ending, hdf5",
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write all rows to one file for other tools.

    Includes labels and ids. Formats other than hdf5 hold predictions and one vector per sample: its class token, its
    one row, or the mean of its rows.

    Example: taftcache export stores/quickstart features.h5

    Example: taftcache export stores/quickstart samples.npz
    """
    with bars(as_json) as progress:
        report = taftcache.export(store, file, format=format_, force=force, progress=progress)
    print_report(report, as_json)


@commands.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="features: .npy, .npz, .csv, .tsv, .parquet or HDF5")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="the new store")],
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--recipe", metavar="RECIPE", help="a recipe whose backbone made the features, and whose tail reads them"
        ),
    ] = None,
    vectors: VectorsName = None,
    labels: LabelsName = None,
    ids: IdsName = None,
    classes: Annotated[
        str | None, typer.Option("--classes", metavar="NAME", help="the same for class names, if there are any")
    ] = None,
    test: TestFile = None,
    test_labels: TestLabels = None,
    scaling: Annotated[
        Literal["row", "none"],
        typer.Option("--scaling", help="divide each vector by its own root mean square, or leave it as it is"),
    ] = "row",
    forgotten_of: ForgottenOf = None,
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """Make a store from vectors or features you have.

    Takes your own vectors, an export, or features that someone else extracted. An HDF5 export gives shards with the
    same bytes and digests again. On vectors [n, d], taftcache train then trains a linear head. Unless you give names,
    the usual ones are tried (vectors, features, embeddings, each also in the singular, x; labels, y; ids). NaN,
    overflow, an id given twice, rows that were never written, pickles, links and plug-ins are refused.

    HDF5 may also hold rows [n, t, d]; --recipe names the backbone whose tail reads them.

    Vectors alone: taftcache import clip.npy stores/clip --labels labels.csv --set store.shards=8

    Example: taftcache import features.h5 stores/imported
    """
    from taftcache.cache.columns import Columns

    overrides = set_ or []
    if recipe is not None:
        check_used("import --recipe", overrides, placed=True)
    asked = None if recipe is None else load_recipe(recipe, [*overrides, f"store.path={store}"], needs=("backbone",))
    with bars(as_json) as progress:
        columns = Columns(vectors=vectors, labels=labels, ids=ids, classes=classes)
        report = taftcache.import_(
            file, asked or store, overrides=overrides, progress=progress, columns=columns,
            backbone=asked is not None, test=test, test_labels=test_labels, scaling=scaling, forgotten_of=forgotten_of,
        )  # fmt: skip
    print_report(report, as_json)
