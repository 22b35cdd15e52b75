"""The pipeline's verbs, each a function from a recipe or a store to a report."""

from taftcache.stages.compose import compose
from taftcache.stages.evaluate import evaluate
from taftcache.stages.extract import extract
from taftcache.stages.forget import forget
from taftcache.stages.inspect import inspect
from taftcache.stages.predict import predict
from taftcache.stages.run import run
from taftcache.stages.train import train
from taftcache.stages.verify import verify

__all__ = ["compose", "evaluate", "extract", "forget", "inspect", "predict", "run", "train", "verify"]
