"""The command line: parse, one library call, print."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from taftcache import terminal
from taftcache.errors import RecipeError, TaftcacheError
from taftcache.recipe import Recipe, load_recipe


class _Commands(TyperGroup):
    """Says how an interrupted command ended, before typer ends the process in its own way."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            terminal.complain(
                "taftcache: interrupted; what was committed is kept, and the same command goes on from there"
            )
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

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="a recipe in TOML, see pipelines/")]
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="a store: its folder, or s3://bucket/prefix")]
Target = Annotated[Path, typer.Argument(metavar="TARGET", help="a new folder, or s3://bucket/prefix")]
Either = Annotated[Path, typer.Argument(metavar="RECIPE|STORE", help="a recipe in TOML, or a store")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="override one value of the recipe")
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or mps; the recipe's by default")]
Json = Annotated[bool, typer.Option("--json", help="print the report as JSON, and nothing else")]


@app.command()
def run(recipe: RecipePath, set_: Overrides = None, device: Device = None, as_json: Json = False) -> None:
    """Every stage of a recipe: extract, train, compose, evaluate, forget. Repeats nothing that is done.

    Example: taftcache run pipelines/quickstart.toml --set store.path=stores/mine
    """
    from taftcache import stages

    with terminal.bars(as_json) as progress:
        report = stages.run(_recipe(recipe, set_, device), progress)
    _print(report, as_json, terminal.show_run)


@app.command()
def extract(recipe: RecipePath, set_: Overrides = None, device: Device = None, as_json: Json = False) -> None:
    """Stage 1: run the frozen layers once and cache what the trained ones need. Resumes where it stopped.

    Example: taftcache extract pipelines/quickstart.toml
    """
    from taftcache import stages

    with terminal.bars(as_json) as progress:
        report = stages.extract(_recipe(recipe, set_, device), progress)
    _print(report, as_json, terminal.show_extract)


@app.command()
def train(
    target: Either,
    shard: Annotated[list[str] | None, typer.Option("--shard", help="train only this shard (repeatable)")] = None,
    private: Annotated[
        bool, typer.Option("--private", help="with differential privacy, as the recipe's [privacy] says")
    ] = False,
    set_: Overrides = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Stage 2: one certified component a shard, from the cache alone, and their composition.

    Example: taftcache train stores/quickstart --set objective.ridge=1e-3
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore

    recipe, path = _either(target, set_, device)
    with FeatureStore(path, mode="a") as store, terminal.bars(as_json) as progress:
        if private:
            spent = stages.train_private(store, recipe, shard, progress)
        else:
            report = stages.train(store, recipe, shard, progress)
        if not shard:
            stages.compose(store, recipe)
    if private:
        _print(spent, as_json, terminal.show_train_private)
    else:
        _print(report, as_json, terminal.show_train)


@app.command()
def private_table(
    store: StorePath,
    epsilon: Annotated[list[float] | None, typer.Option("--epsilon", help="1, 3 and 8 by default (repeatable)")] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="of the base point; 0, 1 and 2 by default (repeatable)")
    ] = None,
    regime: Annotated[
        list[str] | None, typer.Option("--regime", help="full, bitfit, layernorm or head; all by default (repeatable)")
    ] = None,
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """The paper's Table 3: private fine-tuning of the tangent model beside the network's own. Writes no model.

    Example: taftcache private-table stores/quickstart --epsilon 3 --seed 0 --regime head
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore
    from taftcache.recipe import apply_overrides, parse_recipe
    from taftcache.stages.private_comparison import REGIMES

    with FeatureStore(store) as opened, terminal.bars(as_json) as progress:
        recipe = parse_recipe(apply_overrides(opened.manifest.recipe, set_ or []), str(store))
        report = stages.private_table(
            opened,
            recipe,
            epsilons=epsilon or (1.0, 3.0, 8.0),
            seeds=seed or (0, 1, 2),
            regimes=regime or REGIMES,
            progress=progress,
        )
    _print(report, as_json, terminal.show_private_table)


@app.command()
def transfer(recipe: RecipePath, set_: Overrides = None, device: Device = None, as_json: Json = False) -> None:
    """Train a small model from images with a prior from cached features of others, and report what the prior did.

    Students are kept: the same command goes on where it was, and trains nothing twice. The recipe is of its own kind,
    see docs/transfer.md.

    Example: taftcache transfer pipelines/transfer/quick.toml
    """
    from taftcache import stages
    from taftcache.transfer.recipe import load_transfer

    made = load_transfer(recipe, [*(set_ or []), *_device(device)])
    with terminal.bars(as_json) as progress:
        report = stages.teach(made, progress)
    _print(report, as_json, terminal.show_teach)


@app.command()
def compose(
    store: StorePath,
    mode: Annotated[
        str | None, typer.Option("--mode", help="mean, weighted (also models/weighted) or exact (also models/exact)")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="COMPONENT=COEFFICIENT", help="for weighted, one for each component"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compose the shards' components into models/mean and check the identity that allows it.

    The mode is kept in the store: whatever changes a component later renews what the mode asks for.

    Example: taftcache compose stores/quickstart --mode weighted
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore
    from taftcache.recipe import apply_overrides, parse_recipe

    changes = [] if mode is None else [f"compose.mode={mode}"]
    with FeatureStore(store, mode="a") as opened, terminal.bars(as_json) as progress:
        values = apply_overrides(opened.manifest.recipe, changes)
        if weight:
            values["compose"] |= {"mode": "weighted", "weights": dict(map(_weight, weight))}
        report = stages.compose(opened, parse_recipe(values, str(store)), progress)
    _print(report, as_json, terminal.show_compose)


@app.command()
def compare(
    recipe: RecipePath,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write the report as Markdown too")] = None,
    set_: Overrides = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """The paper's Table 2 or Figure 1 on the recipe's data: TAFT, model soup and SISA from one cache.

    Example: taftcache compare pipelines/quickstart.toml --set compare.shards=[20] --set compare.epochs=1 --set compare.seeds=1
    """  # noqa: E501
    from taftcache import stages

    with terminal.bars(as_json) as progress:
        report = stages.compare(_recipe(recipe, set_, device), progress)
    if out is not None:
        try:
            out.write_text(report.markdown(), encoding="utf-8")
        except OSError as error:
            raise RecipeError("a report is written to a file", got=f"{out}: {error.strerror}") from error
    _print(report, as_json, terminal.show_compare)


@app.command(name="export-component")
def export_component(
    store: StorePath,
    component: Annotated[str, typer.Argument(metavar="COMPONENT", help="a shard's name, or models/mean and the like")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file that is not there yet")],
    as_json: Json = False,
) -> None:
    """Write one component to a file, for a store elsewhere that shares the base point.

    Example: taftcache export-component stores/quickstart 000 first.safetensors
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore

    with FeatureStore(store) as opened:
        report = stages.export_component(opened, component, file)
    _print(report, as_json, terminal.show_component)


@app.command(name="import-component")
def import_component(
    store: StorePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a component's file")],
    name: Annotated[str | None, typer.Option("--name", help="its name here; the file's by default")] = None,
    as_json: Json = False,
) -> None:
    """Take a component in whose rows are elsewhere; the next compose adds it. Another base point is refused.

    Example: taftcache import-component stores/quickstart first.safetensors --name elsewhere
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore

    with FeatureStore(store, mode="a") as opened:
        report = stages.import_component(opened, file, name)
    _print(report, as_json, terminal.show_component)


@app.command()
def evaluate(
    store: StorePath,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="SHARD", help="also the mean without it (repeatable)")
    ] = None,
    as_json: Json = False,
) -> None:
    """Accuracy on the held-out rows: base model, head only, every component, the composition.

    Example: taftcache evaluate stores/quickstart --json
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore

    with FeatureStore(store) as opened, terminal.bars(as_json) as progress:
        report = stages.evaluate(opened, progress, without=without or [])
    _print(report, as_json, terminal.show_evaluate)


@app.command("export-model")
def export_model(
    store: StorePath,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a new folder for the model")],
    model: Annotated[str, typer.Option("--model", help="which of the store's models")] = "models/mean",
    merged: Annotated[
        bool, typer.Option("--merged", help="an ordinary timm model, where only the head has moved")
    ] = False,
    program: Annotated[
        bool, typer.Option("--program", help="also as a torch.export program, which needs torch alone")
    ] = False,
    as_json: Json = False,
) -> None:
    """Save one model for use without its store: weights as safetensors, a description, a model card.

    Example: taftcache export-model stores/quickstart digits-model --program
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore

    with FeatureStore(store) as opened:
        report = stages.export_model(opened, folder, model, merged=merged, program=program)
    _print(report, as_json, terminal.show_export_model)


@app.command()
def predict(
    store: Annotated[Path, typer.Argument(metavar="STORE|MODEL", help="a store's folder, or an exported model's")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="image files")],
    model: Annotated[str, typer.Option("--model", help="which of the store's models")] = "models/mean",
    top: Annotated[int, typer.Option("--top", min=1, help="classes to show for each image")] = 3,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Classify image files end to end with one of the store's models, or with an exported one.

    Example: taftcache predict stores/quickstart digit.png
    """
    from taftcache import stages

    report = stages.predict(store, images, model, top, device or "auto")
    _print(report, as_json, terminal.show_predict)


@app.command()
def inspect(
    store: StorePath,
    sample: Annotated[
        str | None, typer.Option("--sample", help="one sample: where it lies, what is cached, what models say")
    ] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="one shard: balance, activations, component")] = None,
    label: Annotated[str | None, typer.Option("--class", help="one class: its rows in every shard")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="list the ids (of the shard, of the class), one a line")] = False,
    as_json: Json = False,
) -> None:
    """What is in a store: shards, rows, classes, activations, components with certificates, integrity, ledger.

    Read from manifests and a sample of rows, so it is instant at any size. With --ids the samples, for scripts.

    Example: taftcache inspect stores/quickstart --class 7
    """
    from taftcache.cache import FeatureStore
    from taftcache.stages import inspection as stage

    with FeatureStore(store) as opened:
        if sample is not None:
            _print(stage.inspect_sample(opened, sample), as_json, terminal.show_sample)
        elif ids or (shard is not None and label is not None):
            _print(stage.list_samples(opened, shard, label), as_json, terminal.show_samples)
        elif shard is not None:
            _print(stage.inspect_shard(opened, shard), as_json, terminal.show_shard)
        elif label is not None:
            _print(stage.inspect_class(opened, label), as_json, terminal.show_class)
        else:
            _print(stage.inspect(opened), as_json, terminal.show_inspect)


@app.command()
def view(
    store: StorePath,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page in a browser")] = True,
) -> None:
    """Look into a store on a page: map, samples, classes, shards, training, ledger. Ctrl-C ends it.

    Served to this machine alone, under an address with a random token; the page loads nothing from elsewhere.
    From another machine: ssh -L PORT:127.0.0.1:PORT, with --port PORT.

    Example: taftcache view stores/quickstart
    """
    from taftcache.cache import FeatureStore
    from taftcache.view import Atlas, ViewServer

    with FeatureStore(store) as opened, ViewServer(Atlas(opened), port) as server:
        try:
            terminal.show_address(server.url)
            if browser:
                typer.launch(server.url)
            server.wait()
        except KeyboardInterrupt:
            terminal.complain("taftcache: the page is closed")


@app.command()
def report(
    store: StorePath,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="the file to write")] = Path(
        "report.html"
    ),
    sample: Annotated[
        list[str] | None, typer.Option("--sample", help="carry all details of this sample (repeatable)")
    ] = None,
    neighbours: Annotated[
        bool, typer.Option("--neighbours/--no-neighbours", help="the neighbour embedding too, the slowest part")
    ] = True,
    as_json: Json = False,
) -> None:
    """The page as one HTML file that needs neither server nor network.

    It holds ids and pictures: what is forgotten later stays in it.

    Example: taftcache report stores/quickstart -o report.html --no-neighbours
    """
    from taftcache.cache import FeatureStore
    from taftcache.view import write_report

    with FeatureStore(store) as opened:
        written = write_report(opened, output, sample or [], neighbours=neighbours)
    _print(written, as_json, terminal.show_report)


@app.command()
def verify(
    store: StorePath,
    root: Annotated[
        str | None, typer.Option("--root", help="the root digest you noted: finds a store rolled back")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="make damaged files again from their images; only bytes with the right digest are written"
        ),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="for --repair: where the data lies now, say"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read every byte again and name whatever is damaged, missing or swapped. Exit code 5 if anything is.

    With --repair, damaged chunks are extracted again from the images of their rows, and put in place only if they come
    out with the digest that the manifest names. Damaged components are dropped, for training makes them again.

    Example: taftcache verify stores/quickstart

    Example: taftcache verify stores/quickstart --repair
    """
    from taftcache.stages import verify as stage

    with terminal.bars(as_json) as progress:
        report = stage(store, progress, root, repair=repair, overrides=set_ or [])
    _print(report, as_json, terminal.show_verify)
    if report.faults:
        raise typer.Exit(5)


@app.command()
def append(
    target: Either,
    new_shard: Annotated[
        bool,
        typer.Option("--new-shard", help="into one further shard; the others and their components stay as they are"),
    ] = False,
    set_: Overrides = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Extract the images that the store does not hold yet, into their shards or into a further one.

    Without --new-shard the store ends with the bytes of one made from all images at once; shards that get nothing keep
    their files, and rows that are there are copied, not run again. Images are known by their ids.

    Example: taftcache append pipelines/quickstart.toml

    Example: taftcache append stores/quickstart --new-shard
    """
    from taftcache import stages

    recipe, _ = _either(target, set_, device)
    with terminal.bars(as_json) as progress:
        report = stages.append(recipe, progress, new_shard=new_shard)
    _print(report, as_json, terminal.show_append)


@app.command()
def copy(
    store: StorePath,
    target: Target,
    update: Annotated[
        bool, typer.Option("--update", help="the target may hold another state of the same store")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a store to a folder or a bucket: the same bytes, the same root digest, verified on the way and at the end.

    A copy that was cut off goes on, and mends files of the target that are damaged. Buckets need the package obstore
    and the usual variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL).

    Source and target may be s3://bucket/prefix.

    Example: taftcache copy stores/quickstart stores/copy
    """
    from taftcache import stages

    with terminal.bars(as_json) as progress:
        report = stages.copy(store, target, progress, update=update)
    _print(report, as_json, terminal.show_copy)


@app.command()
def convert(
    store: StorePath,
    target: Target,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float16 or float32")] = None,
    chunk_rows: Annotated[str | None, typer.Option("--chunk-rows", help='rows a chunk, or "auto"')] = None,
    as_json: Json = False,
) -> None:
    """Write a store's rows into a new one with another dtype or chunk size.

    Components and models stay behind: train makes them from the new rows.

    Example: taftcache convert stores/quickstart stores/float32 --dtype float32
    """
    from taftcache import stages

    if dtype not in (None, "float16", "float32"):
        raise RecipeError("A store's dtype is float16 or float32.", got=dtype, do="--dtype float16")
    if not (chunk_rows is None or chunk_rows == "auto" or (chunk_rows.isdecimal() and int(chunk_rows) > 0)):
        raise RecipeError('The rows of a chunk are a positive number, or "auto".', got=chunk_rows, do="--chunk-rows 16")
    rows: Any = int(chunk_rows) if chunk_rows and chunk_rows != "auto" else chunk_rows
    with terminal.bars(as_json) as progress:
        report = stages.convert(store, target, progress, dtype=dtype, chunk_rows=rows)  # type: ignore[arg-type]
    _print(report, as_json, terminal.show_convert)


@app.command()
def export(
    store: StorePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file (or folder) that is not there yet")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="hdf5: every cached row. parquet, npz, embedding-projector (a folder): a vector a sample, predictions",
        ),
    ] = "hdf5",
    as_json: Json = False,
) -> None:
    """Write features, labels and ids of all shards to one file for other tools.

    Formats other than hdf5 hold predictions and one vector a sample: class token, its one row, or the mean of its rows.

    Example: taftcache export stores/quickstart features.h5

    Example: taftcache export stores/quickstart samples.npz --format npz
    """
    from taftcache import stages

    with terminal.bars(as_json) as progress:
        report = stages.export(store, file, format_, progress)
    _print(report, as_json, terminal.show_export)


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="an HDF5 file of features")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="the new store")],
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", help="a recipe whose backbone made the features: its tail goes on from them"),
    ] = None,
    tokens: Annotated[str, typer.Option("--tokens", help="the dataset of floats [n, t, d] or [n, d]")] = "tokens",
    labels: Annotated[str, typer.Option("--labels", help="the dataset of integers or texts [n]")] = "labels",
    ids: Annotated[
        str, typer.Option("--ids", help="the dataset of ids [n]; rows are numbered without one")
    ] = "sample_id",
    classes: Annotated[str, typer.Option("--classes", help="the dataset of class names, if there is one")] = "classes",
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """Make a store of features that are there already: of an export, or of a file that someone else wrote.

    An export comes back with the bytes and digests of its shards. For other files the recipe, or --set, says how rows
    are split into shards and held out. NaN, overflow, an id twice, rows that were never written, links and plug-ins
    are refused.

    Someone else's file: --tokens feats --labels y --ids name --set store.shards=8

    Example: taftcache import features.h5 stores/imported
    """
    from taftcache import stages
    from taftcache.cache.hdf5 import Columns
    from taftcache.recipe import apply_overrides, parse_recipe

    there = [*(set_ or []), f"store.path={store}"]
    asked = load_recipe(recipe, there) if recipe else parse_recipe(apply_overrides({"name": store.name}, there))
    with terminal.bars(as_json) as progress:
        columns = Columns(tokens, labels, ids, classes)
        report = stages.import_(file, asked, progress, columns=columns, backbone=recipe is not None)
    _print(report, as_json, terminal.show_import)


@app.command()
def gc(
    store: StorePath,
    dry: Annotated[bool, typer.Option("--dry-run", help="list, and remove nothing")] = False,
    work: Annotated[bool, typer.Option("--unfinished", help="interrupted extractions too")] = False,
    strange: Annotated[bool, typer.Option("--foreign", help="files too that the format knows nothing of")] = False,
    hours: Annotated[float, typer.Option("--hours", min=0, help="in a bucket, what is younger stays")] = 24.0,
    as_json: Json = False,
) -> None:
    """Remove what no manifest names: leftovers of crashes and of interrupted copies.

    Example: taftcache gc stores/quickstart --dry-run
    """
    from taftcache import stages

    report = stages.gc(store, work=work, strange=strange, hours=hours, dry=dry)
    _print(report, as_json, terminal.show_gc)


@app.command()
def forget(
    store: StorePath,
    sample: Annotated[list[str] | None, typer.Option("--sample", help="a sample's id (repeatable)")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="a text file with one id a line")] = None,
    shard: Annotated[list[str] | None, typer.Option("--shard", help="all rows of a shard (repeatable)")] = None,
    label: Annotated[list[str] | None, typer.Option("--class", help="all rows of a class (repeatable)")] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="retrain: solve the affected shards again; subtract: leave them out of the composition;"
            " resolve: retrain, and solve models/exact on from where it is",
        ),
    ] = "retrain",
    cold: Annotated[
        bool, typer.Option("--cold", help="for resolve: from the mean, to the bytes of never having seen the rows")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would happen and what it would cost, and change nothing")
    ] = False,
    sign: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help="sign the receipt with this Ed25519 key (PEM)")
    ] = None,
    destroy_key: Annotated[
        bool,
        typer.Option("--destroy-key", help="destroy the key of all tombstones: no id can be asked about any more"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Erase samples from the cache and renew all that was made from them, with a certificate and a receipt.

    Example: taftcache forget stores/quickstart --sample digits/0042

    Example: taftcache forget stores/quickstart --class 7 --dry-run
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore
    from taftcache.stages.request import read_ids

    ids = [*(sample or []), *(read_ids(file) if file else [])]
    if destroy_key and (ids or shard or label):
        raise RecipeError("--destroy-key stands alone", got="ids, shards or classes beside it")
    with FeatureStore(store, mode="a") as opened, terminal.bars(as_json) as progress:
        if destroy_key:
            report = stages.destroy_key(opened, sign)
        else:
            report = stages.forget(
                opened, ids, progress, shards=shard or [], classes=label or [],
                mode=mode,  # type: ignore[arg-type]
                cold=cold, dry_run=dry_run, signing_key=sign,
            )  # fmt: skip
    _print(report, as_json, terminal.show_forget)


@app.command()
def audit(
    store: StorePath,
    public_key: Annotated[
        str | None, typer.Option("--public-key", metavar="HEX", help="the key that every receipt must be signed with")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="forget again what an old copy of the store brought back")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check what forgetting promised: receipts, certificates from the rows, nothing left. Exit code 5 if it fails.

    Example: taftcache audit stores/quickstart
    """
    from taftcache import stages

    with terminal.bars(as_json) as progress:
        report = stages.audit(store, progress, public_key=public_key, replay=replay)
    _print(report, as_json, terminal.show_audit)
    if report.findings:
        raise typer.Exit(5)


@app.command()
def influence(
    store: StorePath,
    sample: Annotated[
        str | None, typer.Option("--sample", help="what the model loses without this training sample")
    ] = None,
    query: Annotated[
        Path | None, typer.Option("--query", metavar="IMAGE", help="which training samples moved its prediction most")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="which of the store's models")] = "models/mean",
    top: Annotated[int, typer.Option("--top", min=1, help="samples to list")] = 10,
    as_json: Json = False,
) -> None:
    """What one training sample changed, or which samples changed one prediction: leave-one-out, exact or bounded.

    Example: taftcache influence stores/quickstart --sample digits/0007
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore

    if (sample is None) == (query is None):
        raise RecipeError("influence asks about one sample or one image", got="both" if sample else "neither")
    with FeatureStore(store) as opened, terminal.bars(as_json) as progress:
        if sample is not None:
            _print(stages.sample_influence(opened, sample, model, progress), as_json, terminal.show_sample_influence)
        else:
            assert query is not None
            report = stages.query_influence(opened, query, model, top, progress)
            _print(report, as_json, terminal.show_query_influence)


@app.command()
def tune(
    store: StorePath,
    rate: Annotated[
        list[float] | None, typer.Option("--rate", help="a multiple of the learning rate to try (repeatable)")
    ] = None,
    uncharged: Annotated[
        bool, typer.Option("--uncharged", help="each trial spends all of epsilon; the component says so")
    ] = False,
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """Private training with several learning rates, of which held-out rows choose one. All trials share epsilon.

    Example: taftcache tune stores/quickstart --rate 0.3 --rate 1 --set privacy.steps=3
    """
    from taftcache import stages
    from taftcache.cache import FeatureStore
    from taftcache.recipe import apply_overrides, parse_recipe

    with FeatureStore(store, mode="a") as opened, terminal.bars(as_json) as progress:
        recipe = parse_recipe(apply_overrides(opened.manifest.recipe, set_ or []), str(store))
        report = stages.train_private(
            opened, recipe, progress=progress, rates=rate or [0.3, 1.0, 3.0], charged=not uncharged
        )
        stages.compose(opened, recipe)
    _print(report, as_json, terminal.show_train_private)


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors of taftcache's own go to stderr without a traceback, each with its exit code."""
    try:
        app(args=argv, standalone_mode=True)
    except TaftcacheError as error:
        terminal.complain(f"taftcache: {error}")
        sys.exit(error.exit_code)


def _recipe(path: Path, overrides: list[str] | None, device: str | None) -> Recipe:
    return load_recipe(path, [*(overrides or []), *_device(device)])


def _either(target: Path, overrides: list[str] | None, device: str | None) -> tuple[Recipe, Path]:
    """The recipe of a file or of a store, and where the store is."""
    if not (target.is_dir() or str(target).startswith("s3:")):
        recipe = _recipe(target, overrides, device)
        return recipe, recipe.store_path
    from taftcache.cache import FeatureStore
    from taftcache.recipe import apply_overrides, parse_recipe

    with FeatureStore(target) as store:
        values = apply_overrides(store.manifest.recipe, [*(overrides or []), *_device(device)])
    values["store"]["path"] = str(target)
    return parse_recipe(values, str(target)), target


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise RecipeError("a weight is COMPONENT=COEFFICIENT", got=text, do="write it like 000=0.25") from None


def _device(device: str | None) -> list[str]:
    return [] if device is None else [f"device={device}"]


def _print(report: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    if as_json:
        print(json.dumps(_plain(report), indent=2))
    else:
        show(report)


def _plain(value: Any) -> Any:
    """JSON types of a report."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value
