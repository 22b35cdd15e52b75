"""Commands by which models and components leave a store, and come in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import taftcache
from taftcache.cli.options import AllowHub, Json, Model, StorePath, Weights, consent_to, print_report, store_of
from taftcache.terminal.models import show_component, show_export_model, show_imported, show_push

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
        bool, typer.Option("--program", help="also as a torch.export program, which needs torch alone")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="also in ONNX, run and compared; pip install 'taftcache[onnx]'")
    ] = False,
    weights: Weights = None,
    allow_hub: AllowHub = False,
    as_json: Json = False,
) -> None:
    """Save one model for use without its store.

    Weights as safetensors, a description, a model card. Where the head alone has moved, timm loads the folder, too.
    Of a folder with one model (exported, a student's, or of TangentClassifier.save): --program and --onnx.

    Example: taftcache export-model stores/quickstart digits-model --program
    """
    allowed = consent_to(weights=weights, hub=allow_hub)
    report = taftcache.export_model(store, folder, model, program=program, onnx=onnx, consent=allowed)
    print_report(report, as_json, show_export_model)


@commands.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="a folder that export-model wrote")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="on the hub, user/name")],
    private: Annotated[bool, typer.Option("--private", help="for its owner alone; refused where it is public")] = False,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="BRANCH", help="a branch, made where it is not there")
    ] = None,
    as_json: Json = False,
) -> None:
    """Put an exported model on the model hub.

    Through huggingface_hub: hf auth login, or HF_TOKEN, says who you are. The files of an exported model go there,
    and nothing else that lies in the folder. Models of earlier pushes stay in the hub's history, with whatever was
    forgotten since.

    Example: taftcache push digits-model me/digits --private
    """
    report = taftcache.push(folder, name, private=private, revision=revision)
    print_report(report, as_json, show_push)


@commands.command(name="export-component")
def export_component(
    store: StorePath,
    component: Annotated[str, typer.Argument(metavar="COMPONENT", help="a shard's name, or models/mean and the like")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file that is not there yet")],
    as_json: Json = False,
) -> None:
    """Write one component to a file.

    For a store elsewhere that shares the base point.

    Example: taftcache export-component stores/quickstart 000 first.safetensors
    """
    print_report(taftcache.export_component(store, component, file), as_json, show_component)


@commands.command(name="import-component")
def import_component(
    store: StorePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a component's file")],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="its name here, 1 to 64 of a-z, 0-9 and '-'; the file's by default"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take in a component from a file.

    Its rows are elsewhere; the next compose adds it. One of the same name that was imported before is replaced. A
    component of another base point is refused.

    Example: taftcache import-component stores/quickstart first.safetensors --name elsewhere
    """
    print_report(taftcache.import_component(store, file, name), as_json, show_imported)
