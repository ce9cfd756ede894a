"""Files with the vectors of an index."""

import json
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import polars as pl

NAMES = (
    "vectors.npy", "order.faiss", "ids.faiss", "inverted.faiss", "vectors.parquet", "array.parquet",
    "vectors.jsonl", "vectors.csv",
)  # fmt: skip


def save(path: Path, vectors: np.ndarray, ids: Sequence[str]) -> Path:
    """Save vectors as the name of the file says. What has ids has them in another order."""
    if path.suffix == ".npy":
        np.save(path, vectors)
        return path
    if path.suffix == ".faiss":
        faiss.write_index(_index_of(path.stem, vectors), str(path))
        return path
    order = np.random.default_rng(0).permutation(len(vectors)).tolist()
    rows = [vectors[number].tolist() for number in order]
    table = pl.DataFrame({"id": [ids[number] for number in order], "embedding": rows})
    if path.name == "array.parquet":
        table = table.with_columns(pl.col("embedding").cast(pl.Array(pl.Float32, vectors.shape[1])))
    if path.suffix == ".parquet":
        table.write_parquet(path)
    elif path.suffix == ".jsonl":
        table.write_ndjson(path)
    else:  # as pgvector writes vectors into csv files
        table.with_columns(embedding=pl.Series([json.dumps(row) for row in rows])).write_csv(path)
    return path


def _index_of(kind: str, vectors: np.ndarray) -> faiss.Index:
    flat = faiss.IndexFlatIP(vectors.shape[1])
    if kind == "ids":
        index = faiss.IndexIDMap(flat)
        index.add_with_ids(vectors, np.arange(len(vectors)))
        return index
    index = flat
    if kind == "inverted":
        index = faiss.IndexIVFFlat(flat, vectors.shape[1], 4)
        index.train(vectors)
    index.add(vectors)
    return index
