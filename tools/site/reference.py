"""The pages of the Python reference: every public name once, in the area where one looks for it."""

from __future__ import annotations

import inspect
import types
from typing import Any, NamedTuple, get_args, get_type_hints

import taftcache


class Area(NamedTuple):
    """One page: its file's stem, its title, a sentence, and its names in the order in which one meets them. The report
    that a function returns stands below it."""

    stem: str
    title: str
    text: str
    names: str


AREAS = (
    Area(
        "recipes",
        "Recipes and runs",
        "A recipe says which images, which model and what is minimised. Its keys with their defaults: "
        "[Recipe keys](../recipe.md).",
        "load_recipe init_recipe estimate run Recipe DataSpec BackboneSpec PreprocessSpec StoreSpec TangentSpec "
        "ObjectiveSpec PriorSpec SolverSpec ComposeSpec PrivacySpec Progress Task Silent",
    ),
    Area(
        "store",
        "The store",
        "Rows go in, are read and verified, move elsewhere, and come out in other formats.",
        "FeatureStore Shard waiting extract append append_vectors import_ import_vectors Columns export copy convert "
        "verify gc trust distrust Consent",
    ),
    Area(
        "training",
        "Training and composing",
        "One component for each shard, models that are made of components, and components that travel.",
        "train compose weighted_sum train_private Component export_component import_component",
    ),
    Area(
        "teaching",
        "Teaching",
        "A small model is trained from images, with a prior from cached features. The recipe's keys with their "
        "defaults: [Recipe keys](../recipe.md#teaching-recipes).",
        "load_teaching teach TeachingRecipe TeacherSpec StudentSpec TeachSpec StudentTrainingSpec TeachReportSpec",
    ),
    Area(
        "models",
        "Models",
        "A model that was trained: used here, as a folder of its own, on a hub.",
        "TangentModel predict Prediction logits open_model save_model export_model push from_pretrained",
    ),
    Area(
        "looking",
        "Looking",
        "How good the models are, what the rows say, which samples matter, and the paper's tables.",
        "evaluate evaluate_on inspect inspect_recipe inspect_shard inspect_class inspect_component inspect_sample "
        "list_samples find suspects duplicates outliers sample_influence query_influence show to_json StoreView "
        "write_report compare",
    ),
    Area(
        "forgetting",
        "Forgetting",
        "Samples leave with a receipt, and an audit checks it.",
        "forget audit destroy_key receipts",
    ),
    Area(
        "solver",
        "The solver",
        "It knows nothing of stores and images: rows, a base point and an objective go in, a certified Δw comes out.",
        "minimise Solution Certificate Status Objective RSL SquaredError CrossEntropy RowWeights Goal Arithmetic "
        "RowSource ArrayRows read_base make_base TangentOperator TailConfig",
    ),
    Area(
        "estimators",
        "scikit-learn",
        "The same solver behind scikit-learn's interface.",
        "TangentClassifier TangentRegressor",
    ),
    Area(
        "records",
        "Records and types",
        "What reports hold, and what arguments may be, to annotate a program with.",
        "Place Picture Overrides Loss Executor Layout Score Calibration Alike Match Against Difference ValueAccuracy "
        "Probe Fault Integrity ShardFigures ClassInShard Activations Suspect Outlier Pair InfluentialSample "
        "RidgeChoice SolveStats JudgedCertificate RenewedCertificate CheckedCertificate HeldOutChange Receipt Proof "
        "Answer Finding PartedGroup Pin Budget CompareSpec ExtractSpec ForgetSpec",
    ),
    Area(
        "errors",
        "Errors",
        "One tree. The exit code that a command ends with stands in [the command line](../cli.md#exit-codes).",
        "TaftcacheError RecipeError ArgumentError DataError UnreadableImage UnknownName UnknownSample BackboneError "
        "SolveError CompositionError StoreError StoreNotFound FormatError IdentityError IntegrityError StaleStore "
        "StoreChanged StoreLocked StoreUnreachable StoreWriteError UntrustedStore ClusterError",
    ),
)


_PLACES = {
    name: f"taftcache.{module}.{name}" for module, names in vars(taftcache)["NAMES"].items() for name in names.split()
}


def reference_pages() -> dict[str, str]:
    """Place in the repository → text in Markdown, as mkdocstrings reads it."""
    return {f"docs/api/{area.stem}.md": _page(area) for area in AREAS}


def contents() -> dict[str, str]:
    """Title → place, for the site's navigation."""
    return {area.title: f"docs/api/{area.stem}.md" for area in AREAS}


def _page(area: Area) -> str:
    lines = [f"# {area.title}", "", area.text, ""]
    told: set[str] = set()
    for name in area.names.split():
        thing = getattr(taftcache, name)
        lines += [*_entry(_PLACES[name], 2), ""]
        for report in _returned(thing):
            if report.__qualname__ not in told:
                told.add(report.__qualname__)
                lines += [*_entry(f"{report.__module__}.{report.__qualname__}", 3), ""]
    return "\n".join(lines)


def _entry(place: str, level: int) -> list[str]:
    return [f"::: {place}", "    options:", f"      heading_level: {level}"]


def _returned(verb: Any) -> list[type]:
    """The package's own classes that a function returns and that no area names: its report."""
    if not isinstance(verb, types.FunctionType):
        return []
    result = get_type_hints(verb).get("return")
    parts = [result, *get_args(result)]
    return [
        part
        for part in parts
        if inspect.isclass(part)
        and part.__module__.startswith("taftcache")
        and part.__name__ not in {name for area in AREAS for name in area.names.split()}
    ]
