"""The feature store: the only home of zarr; numpy in, numpy out, no torch."""

from taftcache.cache.fault import Fault
from taftcache.cache.manifest import Manifest, ObjectRef, ShardRef, Skipped
from taftcache.cache.plan import assign, held_out, sample_key
from taftcache.cache.shard import RowBlock, Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.transaction import Transaction
from taftcache.cache.writer import ShardWriter

__all__ = [
    "Fault",
    "FeatureStore",
    "Manifest",
    "ObjectRef",
    "RowBlock",
    "Shard",
    "ShardRef",
    "ShardWriter",
    "Skipped",
    "Transaction",
    "assign",
    "held_out",
    "sample_key",
]
