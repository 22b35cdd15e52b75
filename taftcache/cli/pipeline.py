"""The stages of the main job, one command each."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

import taftcache
from taftcache.cli.options import (
    AllowHub,
    Device,
    DeviceName,
    Either,
    ForgottenOf,
    IdsName,
    Json,
    LabelsName,
    Model,
    Overrides,
    RecipePath,
    Scheduler,
    StorePath,
    TestFile,
    TestLabels,
    VectorsName,
    Weights,
    Workers,
    connected,
    consent_to,
    print_report,
    read_either,
    read_recipe,
    store_of,
)
from taftcache.errors import RecipeError
from taftcache.recipe_files import bundled_recipes
from taftcache.recipe_sections import ByRows
from taftcache.report.tables import comma_separated
from taftcache.report.write import write_bytes
from taftcache.rounding import round_rows_alike
from taftcache.stages.writing import writable
from taftcache.terminal.console import bars
from taftcache.terminal.pipeline import show_demo, show_predict

PREDICTIONS = b"image,label,logit"  # what a CSV file of predict begins with; its stage would load torch

commands = typer.Typer()


@commands.command()
def demo(set_: Overrides = None, device: Device = None, as_json: Json = False) -> None:
    """Run the quickstart, on data already installed.

    Runs scikit-learn's 1,797 digits through a small network trained on CIFAR-10, caches the result, trains four shards,
    composes and evaluates, then forgets one sample. Takes less than a minute, and 30 MB in stores/quickstart.

    Example: taftcache demo
    """
    made = read_recipe("run", bundled_recipes()["quickstart"], set_, device)
    with bars(as_json) as progress:
        progress.say(f"the recipe quickstart: 1,797 digits, four shards, into {made.store_path}")
        report = taftcache.run(made, progress=progress)
    print_report(report, as_json, show_demo)


@commands.command()
def init(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="PLACE",
            help="a folder with one subfolder per class (or train/ and test/ with these), a CSV or Parquet file of"
            " paths and labels, a dataset saved by Hugging Face's library, a folder of its Parquet files, or an .npz or"
            " .h5 file of arrays",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="the recipe; named after PLACE by default")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="a timm model, or bundled (32 x 32 pixels); by default the images' size decides",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE", help="the model's weights; timm's pretrained ones by default"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing recipe")] = False,
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write a recipe for your own images.

    Looks at the images, tries a few, chooses shards, a model and what to hold out, and says what it will cost. The
    recipe gives the reason beside each choice; change any there or with --set.

    Example: taftcache init pictures --model bundled --set store.shards=2
    """
    from taftcache.stages.extract.looking import file_for

    file_for(place, output, force)  # before torch is loaded
    chosen = [] if model is None else ["backbone.weights=bundled" if model == "bundled" else f"backbone.model={model}"]
    chosen += [] if weights is None else [f"backbone.weights={weights.absolute()}"]
    with bars(as_json) as progress:
        report = taftcache.init_recipe(
            place, output, overrides=[*chosen, *(set_ or [])], force=force, progress=progress
        )
    print_report(report, as_json)


@commands.command()
def run(
    recipe: RecipePath,
    set_: Overrides = None,
    device: Device = None,
    forgotten_of: ForgottenOf = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Go through all stages of a recipe.

    Extract, train, compose, evaluate, forget; what is already done is not repeated. A recipe that names reports in
    [compare] is for taftcache compare.

    Example: taftcache run quickstart --set store.path=stores/mine
    """
    made = read_recipe("run", recipe, set_, device)
    if made.compare.reports:
        raise RecipeError(
            f"{recipe} is a recipe for comparisons, which run does not make",
            got=f"compare.reports = {list(made.compare.reports)}",
            do=f"taftcache compare {shlex.quote(str(recipe))}",
        )
    with bars(as_json) as progress, connected(workers, scheduler, progress) as cluster:
        report = taftcache.run(made, progress=progress, cluster=cluster, forgotten_of=forgotten_of)
    print_report(report, as_json)


@commands.command()
def extract(
    recipe: RecipePath,
    set_: Overrides = None,
    device: Device = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="try a few images, and say how much time and disk all of them would take"),
    ] = False,
    forgotten_of: ForgottenOf = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Run the frozen layers once, and cache their output.

    Keeps only what the tail (the trained layers) needs. A run that was stopped resumes where it left off.

    Example: taftcache extract quickstart
    """
    made = read_recipe("extract", recipe, set_, device)
    if dry_run:
        from taftcache.stages.extract.estimation import check_disk

        costs = taftcache.estimate(made, forgotten_of=forgotten_of)
        if not taftcache.FeatureStore.exists(costs.store):
            check_disk(costs.store, costs.bytes)
        print_report(costs, as_json)
        return
    with bars(as_json) as progress, connected(workers, scheduler, progress) as cluster:
        report = taftcache.extract(made, progress=progress, cluster=cluster, forgotten_of=forgotten_of)
    print_report(report, as_json)


@commands.command()
def append(
    target: Either,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="for a store of vectors: more of them, .npy, .npz, .csv, .tsv, .parquet or HDF5"
        ),
    ] = None,
    new_shard: Annotated[
        bool,
        typer.Option(
            "--new-shard", help="add them as one more shard; the others and their components stay as they are"
        ),
    ] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="say what would be added, and add nothing")] = False,
    relabel: Annotated[
        bool, typer.Option("--relabel", help="give existing rows the labels that the data now has for them")
    ] = False,
    new_classes: Annotated[
        Literal["refuse", "skip", "take"],
        typer.Option(
            help="samples of classes that the store does not have: refuse to append, leave these out, or add the"
            " classes, which drops all models"
        ),
    ] = "refuse",
    vectors: VectorsName = None,
    labels: LabelsName = None,
    ids: IdsName = None,
    test: TestFile = None,
    test_labels: TestLabels = None,
    set_: Overrides = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Add images or vectors that the store does not hold yet.

    Without --new-shard, the store ends up with the same bytes as one made from all samples at once; shards that get no
    new rows keep their files, and existing rows are copied, not run again. Samples are recognised by their ids. If the
    recipe has plan = "balanced", new training samples need --new-shard.

    Vectors: taftcache append stores/clip more.npy --labels more.csv

    Example: taftcache append quickstart

    Example: taftcache append stores/quickstart --new-shard
    """
    if file is not None or test is not None:
        if set_ or device:
            raise RecipeError(
                "vectors take no settings other than the store's", got="--set or --device", do="leave it out"
            )
        from taftcache.cache.columns import Columns
        from taftcache.stages.files.growing import append_file

        columns = Columns(vectors=vectors, labels=labels, ids=ids)
        with bars(as_json) as progress:
            report = append_file(
                file, store_of(target), progress, columns=columns, test=test, test_labels=test_labels,
                new_shard=new_shard, dry_run=dry, relabel=relabel, new_classes=new_classes,
            )  # fmt: skip
        print_report(report, as_json)
        return
    if vectors or labels or ids or test_labels:
        named = "--vectors, --labels, --ids or --test-labels"
        raise RecipeError("no file of vectors is given", got=named, do="append STORE FILE")
    recipe, _ = read_either("append", target, set_, device, opens=("images", "weights"))
    with bars(as_json) as progress:
        report = taftcache.append(
            recipe, progress=progress, new_shard=new_shard, dry_run=dry, relabel=relabel, new_classes=new_classes
        )
    print_report(report, as_json)


@commands.command()
def train(
    target: Either,
    shard: Annotated[
        list[str] | None, typer.Option("--shard", metavar="NAME", help="train only this shard (repeatable)")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="train with differential privacy, as the recipe's [privacy] says")
    ] = False,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            "--rate",
            metavar="FACTOR",
            help="with --private: a factor on the learning rate to try (repeatable); held-out rows decide between"
            " them, and all trials share epsilon",
        ),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="with --private: sign the ledger's entries with this key (PEM)"),
    ] = None,
    set_: Overrides = None,
    device: Device = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Train one certified component for each shard.

    Uses cached rows only, then composes the components; with --shard, that is left to taftcache compose.

    Example: taftcache train stores/quickstart --set objective.ridge=1e-3
    """
    if private:
        round_rows_alike(every_shape=True)
    _check_private(private, {"--sign": sign, "--rate": rate}, workers, scheduler)
    recipe, path = read_either("train", target, set_, device)
    with (
        taftcache.FeatureStore(path, mode="a") as store,
        bars(as_json) as progress,
        connected(workers, scheduler, progress) as cluster,
    ):
        if private:
            spent = taftcache.train_private(
                store, recipe, shards=shard, progress=progress, rates=rate or [1.0], signing_key=sign
            )
        else:
            report = taftcache.train(store, recipe, shards=shard, progress=progress, cluster=cluster)
        composed = None if shard else taftcache.compose(store, recipe, progress=progress, cluster=cluster)
        root = store.root_digest
    if private:
        notes = [*spent.notes, *(composed.notes if composed is not None else [])]
        print_report(replace(spent, root_digest=root, notes=notes), as_json)
    else:
        print_report(replace(report, root_digest=root, composed=composed), as_json)


def _check_private(private: bool, own: dict[str, object], workers: int | None, scheduler: str | None) -> None:
    """RecipeError for options of private training without ``--private``, and for workers with it."""
    given = [name for name, value in own.items() if value]
    if given and not private:
        raise RecipeError(
            f"{given[0]} is only for private training",
            got=f"{given[0]} without --private",
            do="leave it out, or add --private",
        )
    if private and (workers is not None or scheduler is not None):
        raise RecipeError(
            "private training cannot run on workers, only in one process",
            got="--private with workers",
            do="leave one out",
        )


@commands.command()
def compose(
    store: StorePath,
    mode: Annotated[
        Literal["auto", "mean", "weighted", "exact"] | None,
        typer.Option("--mode", help="which models to make from the components"),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            "--weight",
            metavar="COMPONENT=COEFFICIENT",
            help="for weighted: a component's coefficient, one option for each; or rows: each its share of the rows; "
            "or class-rows: for each class, each its share of that class's rows",
        ),
    ] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: Json = False,
) -> None:
    """Make one model from the shards' components.

    Makes their mean, after checking the identity that allows it, and a model of all rows, models/exact ("auto": if the
    rows are here, in several shards, and none is private). The store keeps the mode: whatever changes a component later
    also renews the models that the mode asks for.

    Example: taftcache compose stores/quickstart --mode weighted
    """
    changes = [] if mode is None else [f"compose.mode={mode}"]
    if weight:
        if mode not in (None, "weighted"):
            raise RecipeError(
                "--weight is only for --mode weighted", got=f"--mode {mode}", do="leave out --mode, or each --weight"
            )
        changes = ["compose.mode=weighted", f"compose.weights={_weights(weight)}"]
    with (
        taftcache.FeatureStore(store, mode="a") as opened,
        bars(as_json) as progress,
        connected(workers, scheduler, progress) as cluster,
    ):
        report = taftcache.compose(opened, overrides=changes, progress=progress, cluster=cluster)
    print_report(report, as_json)


@commands.command()
def evaluate(
    store: StorePath,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="SHARD", help="also evaluate the mean without these shards (repeatable)"),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="also fit scikit-learn's linear probes of the head's features, and compare with the better one",
        ),
    ] = False,
    proven: Annotated[
        bool, typer.Option("--proven", help="say how many labels the certificates show to be the exact optimum's")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="MODEL",
            help="compare each of the others with this one, row by row; with --on also an exported model's folder, or"
            " another store, for its default model",
        ),
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(
            "--on",
            metavar="DATA",
            help="judge these instead: a folder with one subfolder per class, a table of paths and labels, or a file of"
            " arrays; for a store of vectors, a file of vectors with labels",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="of --on: the accuracy for each value of this column of its table"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="of --on: data.image_key or data.label_key, the columns of paths and labels; data.root, what paths"
            " start from; data.unreadable=skip (repeatable)",
        ),
    ] = None,
    vectors: VectorsName = None,
    labels: LabelsName = None,
    ids: IdsName = None,
    weights: Weights = None,
    allow_hub: AllowHub = False,
    as_json: Json = False,
) -> None:
    """Measure accuracy on held-out rows or another set.

    Covers every component and model, and the network before training unless its head begins at zero, each with its 95 %
    interval (by groups, with data.group). Also says how far the default model's probabilities are off.

    With --on, labelled images go through the frozen layers, a batch at a time, and nothing is written to the store.
    Rows of classes that it does not have are left out.

    Example: taftcache evaluate stores/quickstart --probe

    Example: taftcache evaluate stores/quickstart --reference components/000

    Example: taftcache evaluate stores/quickstart --on labels.csv --by species
    """
    of_held_out = {"--without": without, "--probe": probe, "--proven": proven}
    of_vectors = {"--vectors": vectors, "--labels": labels, "--ids": ids}
    of_other = {"--by": by, "--set": set_, **of_vectors, "--weights": weights, "--allow-hub": allow_hub}
    if asked := [name for name, given in (of_other if on is None else of_held_out).items() if given]:
        raise RecipeError(
            f"{asked[0]} is only for {'--on DATA' if on is None else 'the held-out rows, which --on replaces'}",
            got=" ".join(asked),
            do=f"leave it out, or {'name DATA' if on is None else 'leave --on out'}",
        )
    with bars(as_json) as progress:
        if on is None:
            report = taftcache.evaluate(
                store, progress=progress, without=without or [], probe=probe, proven=proven, reference=reference
            )
            print_report(report, as_json)
            return
        columns = taftcache.Columns(vectors=vectors, labels=labels, ids=ids) if any(of_vectors.values()) else None
        allowed = consent_to(weights=weights, hub=allow_hub)
        found = taftcache.evaluate_on(
            store,
            on,
            by=by,
            reference=reference,
            columns=columns,
            overrides=set_ or [],
            consent=allowed,
            progress=progress,
        )
    print_report(found, as_json)


@commands.command()
def predict(
    store: Annotated[Path, typer.Argument(metavar="STORE|MODEL", help="a store's folder, or a model's")],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE…",
            help="image files, and folders of them; for a store of vectors, files of them: .npy, .npz, .csv, .tsv, "
            ".parquet or HDF5",
        ),
    ],
    model: Model = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="classes to show for each image")] = 3,
    skip: Annotated[
        bool, typer.Option("--skip-unreadable", help="leave out images that cannot be read, and classify the others")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="write the predictions to a CSV file, one row per image"),
    ] = None,
    device: Annotated[
        DeviceName,
        typer.Option("--device", help="where to compute; vectors are classified where the recipe says"),
    ] = "auto",
    vectors: VectorsName = None,
    labels: LabelsName = None,
    ids: IdsName = None,
    weights: Weights = None,
    allow_hub: AllowHub = False,
    as_json: Json = False,
) -> None:
    """Classify image files or vectors.

    Uses one of the store's models, an exported one, or a student. Probabilities need held-out rows, or a model that was
    exported with them. Each vector goes by its id, where its file, or the table that --labels names,
    has ids; labels are passed over.

    Example: taftcache predict stores/quickstart digit.png

    Example: taftcache predict stores/quickstart pictures --skip-unreadable -o classes.csv
    """
    if output is not None:  # an image or another table may be named as FILE by mistake
        writable(output, again=PREDICTIONS)
    allowed = consent_to(weights=weights, hub=allow_hub)
    unreadable: Literal["stop", "skip"] = "skip" if skip else "stop"
    with bars(as_json) as progress:
        report = taftcache.predict(
            store,
            images,
            model=model,
            top=top,
            device=device,
            consent=allowed,
            unreadable=unreadable,
            columns=taftcache.Columns(vectors=vectors, labels=labels, ids=ids) if vectors or labels or ids else None,
            progress=progress,
        )
    if output is not None:
        write_bytes(output, comma_separated(report.records()).encode("utf-8", "surrogateescape"))
    print_report(report, as_json, partial(show_predict, file=output))


def _weights(given: list[str]) -> str:
    """The value of ``compose.weights`` in TOML."""
    if len(given) == 1 and given[0] in get_args(ByRows):
        return given[0]
    pairs = [_weight(text) for text in given]
    if len(dict(pairs)) < len(pairs):  # a table has one value for each name, and would take the last
        raise RecipeError("--weight names a component twice", got=", ".join(given), do="leave one of them out")
    return f"{{{', '.join(f'{json.dumps(name)} = {mu}' for name, mu in pairs)}}}"


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise RecipeError(f"{text!r} is not COMPONENT=COEFFICIENT", got=text, do="write it like 000=0.25") from None
