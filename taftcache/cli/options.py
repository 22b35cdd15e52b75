"""Arguments and options that commands share; how they become a recipe, and a report becomes text."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

import taftcache
from taftcache.consent import Consent, Kind, overridden, refusal, remember
from taftcache.errors import RecipeError
from taftcache.recipe import Recipe, as_mapping, check_used, load_recipe, stored_at
from taftcache.recipe_files import bundled_recipes, did_you_mean, named_alike
from taftcache.terminal import showing
from taftcache.terminal.console import note, print_json

if TYPE_CHECKING:
    from taftcache.remote.cluster import Cluster
    from taftcache.stages.progress import Progress


class Grouped(TyperCommand):
    """A command with many options: its help lists the most important first and the others by panel. typer itself shows
    panels only in colour."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """See click."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            title = getattr(param, "rich_help_panel", None) or "Options"
            if record := param.get_help_record(ctx):
                sections.setdefault("Arguments" if param.param_type_name == "argument" else title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def complete_recipe(incomplete: str) -> list[str]:
    """Names of bundled recipes and of TOML files here, for the shell."""
    here = sorted(str(path) for path in Path().glob("*.toml"))
    return [name for name in [*bundled_recipes(), *here] if name.startswith(incomplete)]


def store_of(place: Path) -> Path:
    """The store that a recipe's file names; any other place is returned as it is.

    Raises:
        RecipeError: the file is no recipe, or its store does not exist.
    """
    from taftcache.cache.place.address import is_bucket

    if place.suffix != ".toml" or not place.is_file():
        return place
    store = load_recipe(place, needs=()).store_path
    if not is_bucket(store) and not store.exists():
        raise RecipeError(
            f"{place} is a recipe, and its store {store} is not there",
            got=str(place),
            do=f"taftcache run {shlex.quote(str(place))} makes it",
        )
    return store


RecipePath = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="a recipe: a TOML file, or the name of a bundled one",
        autocompletion=complete_recipe,
    ),
]
StorePath = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="a store: its folder, s3://bucket/prefix, or the recipe (.toml) that made it",
        callback=store_of,
        readable=False,  # the store itself reports what cannot be read, with advice
    ),
]
Target = Annotated[Path, typer.Argument(metavar="TARGET", help="a new folder, or s3://bucket/prefix")]
Either = Annotated[Path, typer.Argument(metavar="RECIPE|STORE", help="a recipe (a TOML file, or a name), or a store")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="change one value of the recipe (repeatable)"),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="such as models/exact, components/000 or 000; by default the first there is of exact, weighted, mean,"
        " head",
    ),
]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Device = Annotated[
    DeviceName | None,
    typer.Option("--device", help="where to compute; default: the recipe's"),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        metavar="N",
        help="work in N processes on this machine; 0 starts one for each GPU, or without a GPU one for each core",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler, tcp://host:8786"),
]
ForgottenOf = Annotated[
    Path | None,
    typer.Option(
        "--forgotten-of", metavar="STORE", help="leave out of the new store what this other store has forgotten"
    ),
]
Images = Annotated[
    list[Path] | None,
    typer.Option(
        "--images",
        metavar="PLACE",
        help="the folder or file of the images, instead of the one the store names (repeatable: training, test)",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FILE", help="the backbone's weights, instead of those the store names"),
]
AllowHub = Annotated[bool, typer.Option("--allow-hub", help="load from the model hub what a stranger's store names")]
VectorsName = Annotated[
    str | None,
    typer.Option("--vectors", metavar="NAME", help="the dataset, array or column that holds the numbers [n, d]"),
]
LabelsName = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="NAME|FILE",
        help="the same for labels (integers or texts [n]), or a .npy, .csv or .tsv file",
    ),
]
IdsName = Annotated[
    str | None,
    typer.Option("--ids", metavar="NAME|FILE", help="the same for ids [n], or a file; without ids, rows are numbered"),
]
TestFile = Annotated[
    Path | None, typer.Option("--test", metavar="FILE", help="a file of held-out rows, with the same names")
]
TestLabels = Annotated[
    str | None, typer.Option("--test-labels", metavar="NAME|FILE", help="the labels of --test, if --labels is a file")
]
Force = Annotated[bool, typer.Option("--force", help="replace an earlier one that is there, and nothing else")]
Json = Annotated[
    bool,
    typer.Option("--json", help="print only the report, or the error, as JSON; an error also goes to stderr as text"),
]


def read_recipe(command: str, path: Path, overrides: list[str] | None, device: str | None) -> Recipe:
    """The recipe of a file, with what the options change; RecipeError for what the command never uses."""
    check_used(command, overrides or [])
    return load_recipe(path, [*(overrides or []), *device_override(device)])


def consent_to(images: list[Path] | None = None, weights: Path | None = None, hub: bool = False) -> Consent:
    """What ``--images``, ``--weights`` and ``--allow-hub`` allow."""
    return Consent(images=tuple(images or []), weights=weights, hub=hub)


def read_either(
    command: str, target: Path, overrides: list[str] | None, device: str | None, opens: Sequence[Kind] = ()
) -> tuple[Recipe, Path]:
    """The recipe of a file or of a store, and where the store is.

    A recipe's file is the user's own word on what may be opened. A store's recipe is not: UntrustedStore if it alone
    names something of the kinds that the command ``opens``, and nobody has allowed that.
    """
    from taftcache.cache.place.address import is_bucket

    if not (target.exists() or is_bucket(target) or len(named_alike(target)) == 1):
        raise RecipeError(
            f"there is neither a store nor a recipe at {target}",
            got=str(target),
            do=f"{did_you_mean(target)}give a store's folder or a recipe's file; taftcache init FOLDER makes a recipe",
        )
    if not (target.is_dir() or is_bucket(target)):
        recipe = read_recipe(command, target, overrides, device)
        remember(recipe.store_path, recipe)
        return recipe, recipe.store_path
    with taftcache.FeatureStore(target) as store:
        recipe = stored_at(target, overridden(command, store, [*(overrides or []), *device_override(device)]))
        for kind in opens:
            if (refused := refusal(store, kind, recipe, as_mapping(overrides or []))) is not None:
                raise refused
    return recipe, target


def device_override(device: str | None) -> list[str]:
    """``--device`` as a change of the recipe."""
    return [] if device is None else [f"device={device}"]


@contextmanager
def connected(workers: int | None, scheduler: str | None, progress: Progress) -> Iterator[Cluster | None]:
    """The workers that ``--workers`` or ``--scheduler`` asks for; None if neither is given."""
    if workers is None and scheduler is None:
        yield None
        return
    if workers is not None and scheduler is not None:
        raise RecipeError(
            "--workers cannot be combined with --scheduler, which has its own", got="both", do="leave one out"
        )
    from taftcache.remote.cluster import Cluster

    with (
        Cluster.at(scheduler, say=note)
        if scheduler is not None
        else Cluster.local(workers or None, say=note) as cluster
    ):
        progress.say(cluster.describe())
        yield cluster


def print_report(report: Any, as_json: bool, show: Callable[[Any], None] = showing.show) -> None:
    """Print a stage's report, as JSON or as ``show`` draws it, by default with the table of its class."""
    if as_json:
        print_json(report)
    else:
        show(report)
