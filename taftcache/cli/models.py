"""Commands by which models and components leave a store, and come in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import taftcache
from taftcache.cli.options import AllowHub, Json, Model, StorePath, Weights, consent_to, print_report
from taftcache.terminal.models import show_component, show_export_model

commands = typer.Typer()


@commands.command("export-model")
def export_model(
    store: StorePath,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a new folder for the model")],
    model: Model = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="an ordinary timm model, where only the head has moved")
    ] = False,
    program: Annotated[
        bool, typer.Option("--program", help="also as a torch.export program, which needs torch alone")
    ] = False,
    weights: Weights = None,
    allow_hub: AllowHub = False,
    as_json: Json = False,
) -> None:
    """Save one model for use without its store.

    Weights as safetensors, a description, a model card.

    Example: taftcache export-model stores/quickstart digits-model --program
    """
    with taftcache.FeatureStore(store) as opened:
        allowed = consent_to(weights=weights, hub=allow_hub)
        report = taftcache.export_model(opened, folder, model, merged=merged, program=program, consent=allowed)
    print_report(report, as_json, show_export_model)


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
    with taftcache.FeatureStore(store) as opened:
        report = taftcache.export_component(opened, component, file)
    print_report(report, as_json, show_component)


@commands.command(name="import-component")
def import_component(
    store: StorePath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a component's file")],
    name: Annotated[str | None, typer.Option("--name", help="its name here; the file's by default")] = None,
    as_json: Json = False,
) -> None:
    """Take in a component from a file.

    Its rows are elsewhere; the next compose adds it. A component of another base point is refused.

    Example: taftcache import-component stores/quickstart first.safetensors --name elsewhere
    """
    with taftcache.FeatureStore(store, mode="a") as opened:
        report = taftcache.import_component(opened, file, name)
    print_report(report, as_json, show_component)
