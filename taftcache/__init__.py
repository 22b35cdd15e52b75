"""taftcache: convex, composable, forgettable fine-tuning from cached features.

Every public name is below and loads on first use: ``import taftcache`` alone imports neither torch nor
timm nor zarr. No name is also a module's, so none changes its meaning with what was imported first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taftcache.cache import FeatureStore
    from taftcache.component import Component
    from taftcache.errors import (
        BackboneError,
        ClusterError,
        CompositionError,
        DataError,
        FormatError,
        IdentityError,
        IntegrityError,
        RecipeError,
        SolveError,
        StaleStore,
        StoreError,
        StoreLocked,
        StoreNotFound,
        StoreUnreachable,
        StoreWriteError,
        TaftcacheError,
        UnknownSample,
        UnreadableImage,
    )
    from taftcache.estimator import TangentClassifier, TangentRegressor
    from taftcache.model import TangentModel
    from taftcache.model_folder import open_model, save_model
    from taftcache.objective.cross_entropy import CrossEntropy
    from taftcache.objective.rsl import RSL
    from taftcache.objective.squared_error import SquaredError
    from taftcache.objective.weights import RowWeights
    from taftcache.recipe import Recipe, load_recipe
    from taftcache.solve.minimise import minimise
    from taftcache.stages import (
        append,
        audit,
        compare,
        compose,
        convert,
        copy,
        destroy_key,
        estimate,
        evaluate,
        export,
        export_component,
        export_model,
        extract,
        forget,
        gc,
        import_,
        import_component,
        inspect,
        predict,
        private_table,
        query_influence,
        run,
        sample_influence,
        teach,
        train,
        train_private,
        verify,
    )
    from taftcache.tangent.base import make_base
    from taftcache.tangent.operator import TangentOperator
    from taftcache.view import StoreView, write_report

    __version__: str

__all__ = [
    "RSL",
    "BackboneError",
    "ClusterError",
    "Component",
    "CompositionError",
    "CrossEntropy",
    "DataError",
    "FeatureStore",
    "FormatError",
    "IdentityError",
    "IntegrityError",
    "Recipe",
    "RecipeError",
    "RowWeights",
    "SolveError",
    "SquaredError",
    "StaleStore",
    "StoreError",
    "StoreLocked",
    "StoreNotFound",
    "StoreUnreachable",
    "StoreView",
    "StoreWriteError",
    "TaftcacheError",
    "TangentClassifier",
    "TangentModel",
    "TangentOperator",
    "TangentRegressor",
    "UnknownSample",
    "UnreadableImage",
    "__version__",
    "append",
    "audit",
    "compare",
    "compose",
    "convert",
    "copy",
    "destroy_key",
    "estimate",
    "evaluate",
    "export",
    "export_component",
    "export_model",
    "extract",
    "forget",
    "gc",
    "import_",
    "import_component",
    "inspect",
    "load_recipe",
    "make_base",
    "minimise",
    "open_model",
    "predict",
    "private_table",
    "query_influence",
    "run",
    "sample_influence",
    "save_model",
    "teach",
    "train",
    "train_private",
    "verify",
    "write_report",
]

_HOMES = {
    "Component": "component",
    "FeatureStore": "cache",
    "CrossEntropy": "objective.cross_entropy",
    "RSL": "objective.rsl",
    "RowWeights": "objective.weights",
    "SquaredError": "objective.squared_error",
    "TangentClassifier": "estimator",
    "TangentRegressor": "estimator",
    "Recipe": "recipe",
    "StoreView": "view",
    "TangentModel": "model",
    "TangentOperator": "tangent.operator",
    "load_recipe": "recipe",
    "make_base": "tangent.base",
    "minimise": "solve.minimise",
    "open_model": "model_folder",
    "save_model": "model_folder",
    "write_report": "view",
}  # of the other names, classes are errors and functions stages


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("taftcache")
    if name in __all__:
        return getattr(
            import_module(f"taftcache.{_HOMES.get(name, 'errors' if name[0].isupper() else 'stages')}"), name
        )
    raise AttributeError(f"module 'taftcache' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
