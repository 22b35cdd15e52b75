"""The pipeline's verbs, each a function from a recipe or a store to a report."""

from taftcache.stages.appending import append
from taftcache.stages.auditing import audit
from taftcache.stages.collection import gc
from taftcache.stages.comparison import compare
from taftcache.stages.composing import compose
from taftcache.stages.estimation import estimate
from taftcache.stages.evaluation import evaluate
from taftcache.stages.exchange import export, import_
from taftcache.stages.extraction import extract
from taftcache.stages.federation import export_component, import_component
from taftcache.stages.forgetting import destroy_key, forget
from taftcache.stages.influence import query_influence, sample_influence
from taftcache.stages.inspection import inspect
from taftcache.stages.main_job import run
from taftcache.stages.model_export import export_model
from taftcache.stages.prediction import predict
from taftcache.stages.private_comparison import private_table
from taftcache.stages.private_training import train_private
from taftcache.stages.teaching import teach
from taftcache.stages.training import train
from taftcache.stages.transfer import convert, copy
from taftcache.stages.verification import verify

__all__ = [
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
    "predict",
    "private_table",
    "query_influence",
    "run",
    "sample_influence",
    "teach",
    "train",
    "train_private",
    "verify",
]
