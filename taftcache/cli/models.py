"""Commands that export models and components from a store, and import components."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import taftcache
from taftcache.cli.options import AllowHub, Force, Json, Model, StorePath, Weights, consent_to, print_report, store_of
from taftcache.terminal.models import show_imported

commands = typer.Typer()


@commands.command("export-model")
def export_model(
    store: Annotated[
        Path,
        typer.Argument(
            metavar="STORE|MODEL", help="a store, or a folder with one model: a student's, say", callback=store_of
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a new folder for the model")],
    model: Model = None,
    program: Annotated[
        bool, typer.Option("--program", help="also as a torch.export program, which needs only torch")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="also in ONNX, run and compared; needs pip install 'taftcache[onnx]'")
    ] = False,
    force: Force = False,
    weights: Weights = None,
    allow_hub: AllowHub = False,
    as_json: Json = False,
) -> None:
    """Save one model for use without its store.

    Writes weights as safetensors, a description and a model card. If only the head has moved, timm loads the folder,
    too. From a folder with one model (exported, a student's, or from TangentClassifier.save), makes --program and
    --onnx.

    Example: taftcache export-model stores/quickstart digits-model --program
    """
    from taftcache.stages.scaling import check_has_network

    allowed = consent_to(weights=weights, hub=allow_hub)
    if taftcache.FeatureStore.exists(store):
        with taftcache.FeatureStore(store) as opened:
            check_has_network(opened, model)  # before the export itself loads torch and timm
    report = taftcache.export_model(store, folder, model, program=program, onnx=onnx, force=force, consent=allowed)
    print_report(report, as_json)


@commands.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="a folder that export-model wrote")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name on the hub, user/name")],
    private: Annotated[bool, typer.Option("--private", help="only its owner sees it; refused if it is public")] = False,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="BRANCH", help="a branch, created if it is missing")
    ] = None,
    as_json: Json = False,
) -> None:
    """Put an exported model on the model hub.

    Uses huggingface_hub: hf auth login, or HF_TOKEN, says who you are. Sends the files of an exported model, and
    nothing else in the folder. Earlier pushes stay in the hub's history, with whatever was forgotten since.

    Example: taftcache push digits-model me/digits --private
    """
    report = taftcache.push(folder, name, private=private, revision=revision)
    print_report(report, as_json)


@commands.command(name="export-component")
def export_component(
    store: StorePath,
    component: Annotated[str, typer.Argument(metavar="COMPONENT", help="a shard's name, or models/mean and the like")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a new file")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write one component to a file.

    For a store elsewhere with the same features and classes, which the file names.

    Example: taftcache export-component stores/quickstart 000 first.safetensors
    """
    print_report(taftcache.export_component(store, component, file, force=force), as_json)


@commands.command(name="import-component")
def import_component(
    store: StorePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a component's file")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="its name here, 1 to 64 of a-z, 0-9 and '-'; by default the file's"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Import a component from a file.

    Its rows are elsewhere; the next compose includes it. It replaces an earlier import of the same name. A component of
    another base point, of other features or of other classes is refused.

    Example: taftcache import-component stores/quickstart first.safetensors --name elsewhere
    """
    print_report(taftcache.import_component(store, file, name), as_json, show_imported)
