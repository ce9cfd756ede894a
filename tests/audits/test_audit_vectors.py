"""Vectors that an index has already: what is read, and what is refused."""

import json
from dataclasses import replace

import faiss
import numpy as np
import polars as pl
import pytest

import stored_vectors
from naming import naming
from stickytoken.audits.vectors import open_vectors
from stickytoken.data.documents import Document
from stickytoken.errors import InputError
from stickytoken.unit_vectors import Similarity

VECTORS = np.random.default_rng(1).normal(size=(12, 6)).astype(np.float32)
IDS = [str(number) for number in range(12)]
DOCUMENTS = [Document(number, str(number), "text") for number in range(12)]


@pytest.mark.parametrize("name", stored_vectors.NAMES)
def test_every_document_has_its_own_vector(name, tmp_path):
    stored = open_vectors(stored_vectors.save(tmp_path / name, VECTORS, IDS))
    stored.require_rows(12)
    assert np.array_equal(stored.of(DOCUMENTS[::-1]), VECTORS[::-1])


def test_some_documents_of_a_table_with_ids_are_enough(tmp_path):
    stored = open_vectors(stored_vectors.save(tmp_path / "vectors.parquet", VECTORS, IDS))
    stored.require_rows(3)
    assert np.array_equal(stored.of(DOCUMENTS[5:8]), VECTORS[5:8])
    with pytest.raises(InputError, match=naming("'d99'")):
        stored.of([Document(0, "d99", "text")])


def test_rows_in_order_must_be_as_many_as_the_documents():
    with pytest.raises(InputError, match=naming(12, 13)):
        open_vectors(VECTORS).require_rows(13)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_vector_that_no_model_gives_is_refused(value):
    vectors = VECTORS.copy()
    vectors[7] = value
    with pytest.raises(InputError, match=naming("'7'")):
        open_vectors(vectors).of(DOCUMENTS)
    open_vectors(vectors).of(DOCUMENTS[:7])


@pytest.mark.parametrize(
    ("name", "rows", "named"),
    [
        ("ragged.jsonl", [{"vector": [1.0, 2.0]}, {"vector": [1.0]}], ["row 2", 1, 2]),
        ("missing.jsonl", [{"vector": [1.0, 2.0]}, {"vector": None}], ["row 2"]),
        ("first.jsonl", [{"vector": None}, {"vector": [1.0, 2.0]}], ["row 1"]),
        ("first.parquet", [{"vector": None}, {"vector": [1.0, 2.0]}], ["row 1"]),
        ("first.csv", [{"n": 1, "vector": None}, {"n": 2, "vector": "[1, 2]"}], ["row 1"]),
        ("some.csv", [{"n": 1, "vector": "[1]"}, *[{"n": 2, "vector": None}] * 3], ["row 2", "2 more"]),
        ("named.jsonl", [{"_id": "d7", "vector": []}, {"_id": "d8", "vector": [1.0]}], ["row 1", "'d7'"]),
        ("nothing.jsonl", [{"vector": None}], []),
        ("nothing.parquet", [{"vector": None}], []),
        ("two.jsonl", [{"old": [1.0], "new": [2.0]}], ["2 columns", "old", "new"]),
        ("none.jsonl", [{"text": "a"}], ["0 columns", "text"]),
        ("twice.jsonl", [{"id": 1, "vector": [1.0]}] * 2, ["'1'", "'id'"]),
        ("half.csv", [{"vector": "[1, 2]"}, {"vector": "[1, 2"}], ["vector"]),
        ("logical.jsonl", [{"vector": [True, False]}], ["0 columns", "vector"]),
    ],
)
def test_a_table_that_has_no_vectors_is_refused(name, rows, named, tmp_path):
    table = pl.DataFrame(rows)
    format_name = {"csv": "csv", "jsonl": "ndjson", "parquet": "parquet"}[name.split(".")[1]]
    getattr(table, f"write_{format_name}")(tmp_path / name)
    with pytest.raises(InputError, match=naming(tmp_path / name, *named)):
        open_vectors(tmp_path / name)


@pytest.mark.parametrize("other", [3, {"a": 1}, [[1.0]], ["x", "y"], "text"])
def test_a_row_that_is_no_vector_is_refused(other, tmp_path):
    rows = [{"vector": [1.0, 2.0]}] * 3 + [{"vector": other}]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=naming("mixed.jsonl")):
        open_vectors(tmp_path / "mixed.jsonl")


@pytest.mark.parametrize(
    ("name", "content"), [("a.npy", b"no array"), ("a.faiss", b"no index"), ("a.txt", b"1 2"), ("b.npy", b"")]
)
def test_a_file_of_something_else_is_refused(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=naming(tmp_path / name)) as caught:
        open_vectors(tmp_path / name)
    assert "allow_pickle" not in str(caught.value)  # which is advice on numpy.load


def save_faiss(path, kind, ids=None):
    """Write an index with vectors that are enough to train each kind; return the vectors."""
    vectors = np.random.default_rng(2).normal(size=(300, 16)).astype(np.float32)
    index = faiss.index_factory(16, kind)
    index.train(vectors)
    if ids is None:
        index.add(vectors)
    else:
        index.add_with_ids(vectors, np.array(ids))
    faiss.write_index(index, str(path))
    return vectors


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("SQfp16", None), ("HNSW8,Flat", None), ("HNSW8,SQ8", None), ("IVF4,SQ8", None),
        ("IVF4,SQ8,RFlat", None), ("IVF4,Flat", range(299, -1, -1)), ("IDMap,HNSW8,Flat", range(1000, 1300)),
        ("IDMap2,IVF4,Flat", range(1000, 1300)),
    ],
)  # fmt: skip
def test_vectors_of_usual_faiss_indexes_are_read(kind, ids, tmp_path):
    vectors = save_faiss(tmp_path / "a.faiss", kind, ids)
    stored = open_vectors(tmp_path / "a.faiss")
    documents = [Document(id_, str(id_), "text") for id_ in ids or range(300)]
    assert np.allclose(stored.of(documents), vectors, atol=0.05)


@pytest.mark.parametrize(
    ("kind", "ids", "named"),
    [
        ("IVF4,Flat", range(1000, 1300), [1000, 1299]),
        ("IVF4,Flat", [0, 0, *range(2, 300)], [0, 299]),
        ("PCA8,IVF4,Flat", range(1000, 1300), ["IndexPreTransform"]),
        ("IVF4,PQ4x4fs", None, ["IndexIVFPQFastScan"]),
        ("ITQ,LSH", None, ["IndexPreTransform"]),
        ("LSH", None, ["IndexLSH"]),
        ("IDMap,LSH", range(300), ["IndexLSH"]),
    ],
)
def test_faiss_indexes_of_which_no_vectors_can_be_read_are_refused(kind, ids, named, tmp_path):
    save_faiss(tmp_path / "a.faiss", kind, ids)
    with pytest.raises(InputError, match=naming(tmp_path / "a.faiss", *named, "Parquet")) as caught:
        open_vectors(tmp_path / "a.faiss")
    assert "faiss::" not in str(caught.value)


def test_a_faiss_index_around_an_index_with_ids_is_refused(tmp_path):
    rotation = faiss.RandomRotationMatrix(6, 6)
    rotation.init(0)
    flat = faiss.IndexFlatIP(6)
    id_map = faiss.IndexIDMap(flat)
    index = faiss.IndexPreTransform(rotation, id_map)
    index.add_with_ids(VECTORS, np.arange(12))
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    with pytest.raises(InputError, match=naming(tmp_path / "a.faiss", "IndexPreTransform")):
        open_vectors(tmp_path / "a.faiss")


def test_a_faiss_index_with_an_id_twice_is_refused(tmp_path):
    save_faiss(tmp_path / "a.faiss", "IDMap,Flat", [7, 7, *range(100, 398)])
    with pytest.raises(InputError, match=naming(tmp_path / "a.faiss", "'7'")):
        open_vectors(tmp_path / "a.faiss")


@pytest.mark.parametrize(
    ("vectors", "named"),
    [
        (VECTORS[0], ["1 dimension", (6,), 2]),
        (VECTORS[None], ["3 dimensions", (1, 12, 6), 2]),
        (VECTORS[:0], ["vectors"]),
        (VECTORS[:, :0], ["numbers"]),
        (VECTORS.astype(np.int8), ["int8", "quantized", "float32"]),
        (VECTORS.astype(np.uint8), ["uint8", "quantized", "float32"]),
        (VECTORS > 0, ["bool", "float32"]),
        (VECTORS.astype(np.complex64), ["complex64", "float32"]),
    ],
)
def test_what_an_array_must_be_is_said(vectors, named, tmp_path):
    np.save(tmp_path / "vectors.npy", vectors)
    for source in (vectors, tmp_path / "vectors.npy"):
        with pytest.raises(InputError, match=naming(*named)):
            open_vectors(source)


def test_a_list_is_refused():
    with pytest.raises(InputError, match=naming("vectors", "NumPy")):
        open_vectors(VECTORS.tolist())


def test_a_folder_and_archives_of_arrays_are_refused_in_words(tmp_path):
    with pytest.raises(InputError, match=naming(tmp_path, "folder")):
        open_vectors(tmp_path)
    np.savez(tmp_path / "vectors.npz", a=VECTORS, b=VECTORS)
    (tmp_path / "renamed.npy").write_bytes((tmp_path / "vectors.npz").read_bytes())
    for name in ("vectors.npz", "renamed.npy"):
        with pytest.raises(InputError, match=naming(tmp_path / name, "archive")):
            open_vectors(tmp_path / name)
    np.save(tmp_path / "objects.npy", np.array([[1.0], None], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=naming(tmp_path / "objects.npy", "objects", "float32")):
        open_vectors(tmp_path / "objects.npy")


@pytest.mark.parametrize("similarity", list(Similarity))
def test_other_vectors_are_refused_and_those_in_half_precision_are_not(similarity):
    stored = open_vectors(VECTORS)
    stored.require_same_vectors(VECTORS.astype(np.float16), VECTORS, IDS, similarity, "model")
    with pytest.raises(InputError, match=naming(6, 3)):
        replace(stored, is_compared=False).require_same_vectors(
            VECTORS, VECTORS[:, :3], IDS, similarity, "model"
        )
    others = VECTORS.copy()
    others[3] = VECTORS[4]
    with pytest.raises(InputError, match=naming(12, 1, "'3'")):
        stored.require_same_vectors(others, VECTORS, IDS, similarity, "model")


def test_the_length_counts_only_if_the_model_compares_lengths():
    open_vectors(VECTORS).require_same_vectors(2 * VECTORS, VECTORS, IDS, Similarity.COSINE, "model")
    with pytest.raises(InputError, match=naming("1.000", "100%")):
        open_vectors(VECTORS).require_same_vectors(2 * VECTORS, VECTORS, IDS, Similarity.DOT, "model")
