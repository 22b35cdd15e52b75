"""taftcache: convex, composable, forgettable fine-tuning from cached features.

Every public name is in one table below and loads on first use: ``import taftcache`` alone imports neither torch nor
timm nor zarr. No name is also a module's, so none changes its meaning with what was imported first.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from taftcache.rounding import round_rows_alike

NAMES = {
    "backbone.sources.rgb": "Picture",
    "backbone.spec": "BackboneSpec DataSpec PreprocessSpec",
    "cache.columns": "Columns",
    "cache.format.fault": "Fault",
    "cache.opening": "Place",
    "cache.place.lock": "waiting",
    "cache.read.shard": "Shard",
    "cache.store": "FeatureStore",
    "consent": "Consent",
    "errors": (
        "ArgumentError BackboneError ClusterError CompositionError DataError FormatError IdentityError IntegrityError "
        "RecipeError SolveError StaleStore StoreChanged StoreError StoreLocked StoreNotFound StoreUnreachable "
        "StoreWriteError TaftcacheError UnknownName UnknownSample UnreadableImage UntrustedStore"
    ),
    "estimator": "TangentClassifier TangentRegressor",
    "model.calibration": "Calibration",
    "model.card": "Score",
    "model.component": "Component read_base",
    "model.composition": "weighted_sum",
    "model.folder": "open_model save_model",
    "model.hub": "from_pretrained",
    "model.predictor": "Alike Prediction TangentModel",
    "objective.cross_entropy": "CrossEntropy",
    "objective.loss": "Loss",
    "objective.objective": "Objective",
    "objective.rsl": "RSL",
    "objective.squared_error": "SquaredError",
    "objective.weights": "RowWeights",
    "paper.comparison": "CompareReport compare",
    "privacy.spec": "PrivacySpec",
    "recipe": "Overrides Recipe load_recipe",
    "recipe_sections": "CompareSpec ComposeSpec ExtractSpec ForgetSpec ObjectiveSpec PriorSpec SolverSpec StoreSpec",
    "solve.choosing": "RidgeChoice",
    "solve.minimise": "minimise",
    "solve.settings": "Arithmetic Goal",
    "solve.solution": "Certificate Solution Status",
    "solve_stats": "SolveStats",
    "stages.audit.auditing": "AuditReport audit",
    "stages.audit.pin": "Pin",
    "stages.certificates": "JudgedCertificate RenewedCertificate",
    "stages.executor": "Executor",
    "stages.extract.drafting": "InitReport init_recipe",
    "stages.extract.estimation": "EstimateReport estimate",
    "stages.extract.extraction": "ExtractReport extract",
    "stages.extract.growth.appending": "append",
    "stages.extract.growth.reporting": "AppendReport",
    "stages.files.collection": "CollectReport gc",
    "stages.files.components": "ComponentReport export_component import_component",
    "stages.files.copying": "ConvertReport CopyReport convert copy",
    "stages.files.exchange": "ExportReport export",
    "stages.files.growing": "append_vectors",
    "stages.files.labelled_set": "EvaluateOnReport ValueAccuracy evaluate_on",
    "stages.files.models": "ExportModelReport PushReport export_model push",
    "stages.files.trusting": "TrustReport distrust trust",
    "stages.files.vectors.importing": "ImportReport import_ import_vectors",
    "stages.files.verification": "VerifyReport verify",
    "stages.forget.certificates": "CheckedCertificate",
    "stages.forget.finding": "Finding",
    "stages.forget.forgetting": "ForgetReport forget",
    "stages.forget.key": "destroy_key",
    "stages.forget.receipts": "Answer Proof Receipt ReceiptsReport receipts",
    "stages.forget.request": "PartedGroup",
    "stages.look.duplicates": "DuplicatesReport Pair duplicates",
    "stages.look.evaluation": "Against Difference EvaluateReport evaluate",
    "stages.look.influence": "InfluentialSample QueryInfluence SampleInfluence query_influence sample_influence",
    "stages.look.inside.classes": "ClassInShard ClassReport inspect_class",
    "stages.look.inside.component_files": "ComponentFileReport inspect_component",
    "stages.look.inside.samples": "SampleReport inspect_sample list_samples",
    "stages.look.inside.shards": "ShardFigures ShardReport inspect_shard",
    "stages.look.inside.statistics": "Activations",
    "stages.look.inside.stores": "InspectReport Integrity inspect inspect_recipe",
    "stages.look.outliers": "Outlier OutliersReport outliers",
    "stages.files.prediction": "PredictReport logits predict",
    "stages.look.probe": "Probe",
    "stages.look.row_table": "Sample",
    "stages.files.similar": "FindReport Match find",
    "stages.look.suspects": "Suspect SuspectsReport suspects",
    "stages.progress": "Progress Silent Task",
    "stages.run": "RunReport run",
    "stages.train.composing": "ComposeReport compose",
    "stages.train.held_out": "HeldOutChange",
    "stages.train.private.records": "Budget",
    "stages.train.private.training": "PrivateTrainReport train_private",
    "stages.train.teaching": "TeachReport teach",
    "stages.train.training": "TrainReport train",
    "tangent.base": "Base make_base",
    "tangent.config": "TailConfig",
    "tangent.operator": "TangentOperator",
    "tangent.parameters": "Layout",
    "tangent.rows": "ArrayRows RowSource",
    "tangent.spec": "TangentSpec",
    "teaching.recipe": "TeachingRecipe load_teaching",
    "teaching.spec": "StudentSpec StudentTrainingSpec TeacherSpec TeachReportSpec TeachSpec",
    "terminal.console": "to_json",
    "terminal.showing": "show",
    "view.notebook": "StoreView",
    "view.report": "PageReport write_report",
}
_MODULES = {name: module for module, names in NAMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, "__version__"])

round_rows_alike()  # rows that a store keeps must not depend on their neighbours


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("taftcache")
    if name in _MODULES:
        return getattr(import_module(f"taftcache.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'taftcache' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
