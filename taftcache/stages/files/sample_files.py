"""One row per sample for other tools: ids, labels, predictions, the default model's logits and one vector of features.

HDF5 takes whole cached rows. The files here have what tables, maps and classifiers want: for each sample the class
token (or the only cached row, or the mean of the rows; see ``vectors``).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.names import model_of
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.look.vectors import (
    cut_of,
    describe_vectors,
    first_row_stands,
    has_tail,
    sample_vectors,
    starts_blank,
)

OnRows = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


class SampleBlock(NamedTuple):
    """Consecutive rows of the table.

    rows: their places in the table. vectors [b, d]. base, best: classes [b] that the untrained model and the best one
    predict; logits [b, K] of the best. None where the store has no such model, or its head begins at zero and so tells
    no class from another.
    """

    rows: slice
    vectors: NDArray[np.float32]
    base: NDArray[np.int32] | None
    best: NDArray[np.int32] | None
    logits: NDArray[np.float32] | None


def sample_blocks(store: FeatureStore, table: RowTable, on_rows: OnRows) -> Iterator[SampleBlock]:
    """The rows in order, each verified as it is read."""
    first = first_row_stands(store)
    scorer = Scorer(store) if has_tail(store) else None
    name = model_of(store.objects())
    chosen = [name] if scorer is not None and name in scorer.models else []
    for here, shard, rows in table.steps():
        tokens = table.reader.tokens(shard.name, rows)
        base = best = logits = None
        if scorer is not None:
            z, changes = scorer.logits(tokens, chosen)
            base = None if starts_blank(store) else z.argmax(1).astype(np.int32)
            if chosen:
                logits = z + changes[0]
                best = logits.argmax(1).astype(np.int32)
        yield SampleBlock(here, sample_vectors(tokens, first), base, best, logits)
        on_rows(here.stop, len(table))


def write_parquet(store: FeatureStore, file: Path, on_rows: OnRows) -> int:
    """Columns id, label, class, shard, role, prediction_base, prediction, logits [K], features [d]; the schema's
    metadata says what they are. Predictions are null where there is none (``SampleBlock``).

    Raises:
        RecipeError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise RecipeError(
            "cannot write Parquet without pyarrow",
            got=str(error),
            do="pip install 'taftcache[parquet]', or --format npz",
        ) from None
    table, classes = RowTable.of(store), store.classes
    vector = pa.list_(pa.float32())  # not of fixed size: pyarrow before 26 cannot read such lists if they are null
    names = pa.array(classes)
    shards = pa.array([shard.name for shard in table.shards])
    roles = pa.array([shard.role for shard in table.shards])
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("label", pa.int32()),
            ("class", pa.dictionary(pa.int32(), pa.string())),
            ("shard", pa.dictionary(pa.int32(), pa.string())),
            ("role", pa.dictionary(pa.int32(), pa.string())),
            ("prediction_base", pa.int32()),
            ("prediction", pa.int32()),
            ("logits", vector),
            ("features", vector),
        ],
        metadata={"taftcache": json.dumps({**about(store), "classes": store.classes})},
    )

    def vectors(values: NDArray[np.float32] | None, rows: int) -> Any:
        if values is None:
            return pa.nulls(rows, vector)
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]).cast(vector)

    def numbers(values: NDArray[np.int32] | None, rows: int) -> Any:
        return pa.nulls(rows, pa.int32()) if values is None else pa.array(values)

    with file.open("xb") as out, parquet.ParquetWriter(out, schema) as writer:
        for block in sample_blocks(store, table, on_rows):
            here, n = block.rows, block.rows.stop - block.rows.start
            label, shard = pa.array(table.label[here]), pa.array(table.shard[here])
            columns = [
                pa.array(table.ids[here]),
                label,
                pa.DictionaryArray.from_arrays(label, names),
                pa.DictionaryArray.from_arrays(shard, shards),
                pa.DictionaryArray.from_arrays(shard, roles),
                numbers(block.base, n),
                numbers(block.best, n),
                vectors(block.logits, n),
                vectors(block.vectors, n),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return file.stat().st_size


def write_npz(store: FeatureStore, file: Path, on_rows: OnRows) -> int:
    """Arrays ids, labels, classes, shards, shard (index into shards), held_out, features [n,d], and where the store has
    models prediction_base, prediction, logits [n,K]; ``about`` is JSON. No pickle; written without holding the rows.
    """
    table = RowTable.of(store)
    n = len(table)
    width = cut_of(store)["shape"][1]
    few: dict[str, NDArray[Any]] = {
        "ids": np.array(table.ids),
        "labels": table.label,
        "classes": np.array(store.classes),
        "shards": np.array([shard.name for shard in table.shards]),
        "shard": table.shard,
        "held_out": table.held_out,
        "about": np.array(json.dumps(about(store))),
    }
    base, best = np.empty(n, np.int32), np.empty(n, np.int32)
    with (
        file.open("xb") as out,
        zipfile.ZipFile(out, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        tempfile.TemporaryFile(dir=file.parent) as logits,  # an archive takes one array at a time
    ):
        block = None
        with _array(archive, "features", (n, width)) as stream:
            for block in sample_blocks(store, table, on_rows):
                stream.write(np.ascontiguousarray(block.vectors, "<f4").tobytes())
                if block.base is not None:
                    base[block.rows] = block.base
                if block.best is not None and block.logits is not None:
                    best[block.rows] = block.best
                    logits.write(np.ascontiguousarray(block.logits, "<f4").tobytes())
        if block is not None and block.base is not None:
            few["prediction_base"] = base
        if logits.tell():
            few["prediction"] = best
            logits.seek(0)
            with _array(archive, "logits", (n, len(store.classes))) as stream:
                shutil.copyfileobj(logits, stream)
        for name, values in few.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, values, allow_pickle=False)
    return file.stat().st_size


def write_projector(store: FeatureStore, folder: Path, on_rows: OnRows) -> int:
    """A folder for TensorBoard's Embedding Projector: vectors.tsv, metadata.tsv and projector_config.pbtxt.

    The two tables are also what the projector's own page loads.
    """
    table = RowTable.of(store)
    folder.mkdir()
    flat = [" ".join(name.split()) for name in store.classes]
    with (
        (folder / "vectors.tsv").open("w", encoding="utf-8") as vectors,
        (folder / "metadata.tsv").open("w", encoding="utf-8") as metadata,
    ):
        metadata.write("id\tclass\tshard\trole\tprediction_base\tprediction\n")
        for block in sample_blocks(store, table, on_rows):
            for k, row in enumerate(range(block.rows.start, block.rows.stop)):
                vectors.write("\t".join(f"{v:.6g}" for v in block.vectors[k]) + "\n")
                shard = table.shards[table.shard[row]]
                predicted = ["" if found is None else flat[found[k]] for found in (block.base, block.best)]
                cells = [table.ids[row], flat[table.label[row]], shard.name, shard.role, *predicted]
                metadata.write("\t".join(cells) + "\n")
    (folder / "projector_config.pbtxt").write_text(
        'embeddings {\n  tensor_name: "taftcache"\n  tensor_path: "vectors.tsv"\n  metadata_path: "metadata.tsv"\n}\n'
    )
    return sum(file.stat().st_size for file in folder.iterdir())


def about(store: FeatureStore) -> dict[str, Any]:
    """What the rows are, in JSON types."""
    return {
        "root_digest": store.root_digest,
        "features": describe_vectors(store),
        "model": model_of(store.objects()) if has_tail(store) else None,
        "identity": store.identity,
    }


@contextmanager
def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int, int]) -> Iterator[IO[bytes]]:
    """A float32 array in the archive, to which rows are written one after another."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
        yield stream
