"""Vectors that an index has already, so that its documents need not be encoded again."""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data.documents import ID_NAMES, Document
from stickytoken.data.rows import PARQUET, TABLE_SUFFIXES, ParquetFile, format_of, one_line
from stickytoken.data.tables import Table, read_table
from stickytoken.encoders.protocol import has_vector
from stickytoken.errors import InputError, reading
from stickytoken.unit_vectors import Similarity
from stickytoken.validation import file_path, shown
from stickytoken.words import counted

VectorSource: TypeAlias = str | Path | NDArray[np.floating]
Vectors: TypeAlias = NDArray[np.float32]

COMPARED = 32
"""Number of documents whose stored vectors are compared with those of the model."""
# Largest difference between a stored vector and that of the model, relative to its length; for the cosine,
# this is a cosine of 0.999. Vectors in float16 differ by less than 0.001, in int8 by about 0.01.
_LARGEST_DIFFERENCE = 0.045
# Names of a column with vectors, if several columns have some.
_NAMES = ("vector", "vectors", "embedding", "embeddings")
_FAISS = (".faiss", ".index")
# Types of FAISS indexes that have ids for the vectors of an inner index.
_FAISS_ID_MAPS = ("IndexIDMap", "IndexIDMap2")
# Types of FAISS indexes that are read. With other types, FAISS may return wrong vectors or end the process.
_FAISS_READABLE = (
    "IndexFlat", "IndexFlatIP", "IndexFlatL2", "IndexScalarQuantizer", "IndexPQ", "IndexRefineFlat",
    "IndexHNSWFlat", "IndexHNSWSQ", "IndexHNSWPQ", "IndexIVFFlat", "IndexIVFScalarQuantizer", "IndexIVFPQ",
)  # fmt: skip
_SAVE_VECTORS_INSTEAD = "pass the vectors themselves, as .npy or Parquet"
_FORMATS = ", ".join([".npy", *TABLE_SUFFIXES, *_FAISS[:-1]]) + f" or {_FAISS[-1]}"


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """The vectors of an index.

    Attributes:
        name: where they come from.
        rows: the vectors, shape (n, d).
        row_of: the row of each document, keyed by its id; None if the rows are in the order of the documents.
        is_compared: whether the numbers are compared with those of the model; False for the stand-in that
            only counts texts, whose own vectors are artificial.
    """

    name: str
    rows: NDArray[np.floating]
    row_of: Mapping[str, int] | None
    is_compared: bool = True

    def require_rows(self, records: int) -> None:
        """Check that there is a row for each record of the documents, unless documents are found by id."""
        if self.row_of is None and len(self.rows) != records:
            raise InputError(
                f"{self.name} has {counted(len(self.rows), 'vector')} for {counted(records, 'document')}: "
                "pass one for each document, in their order, or a table with a column of ids"
            )

    def require_distinct_documents(self, documents: Sequence[Document]) -> None:
        """Check that no two documents with different texts have the same id, if they are found by it."""
        if self.row_of is None:
            return
        text_of: dict[str, str] = {}
        for document in documents:
            if text_of.setdefault(document.id, document.text) != document.text:
                raise InputError(
                    f"{self.name} has one vector for each id, and the id {document.id!r} is that of several "
                    "documents with different texts: give each an id of its own, in both files"
                )

    def of(self, documents: Sequence[Document]) -> Vectors:
        """Return the vectors of documents, shape (n, d).

        Raises:
            InputError: a document has no vector, or one that no model gives.
        """
        row_numbers = []
        for document in documents:
            row = document.number if self.row_of is None else self.row_of.get(document.id)
            if row is None or row >= len(self.rows):
                and_ids = "" if self.row_of is None else ", with the same ids"
                raise InputError(
                    f"{self.name} has no vector for the document {document.id!r}: pass the vectors of all "
                    f"documents{and_ids}"
                )
            row_numbers.append(row)
        vectors = np.asarray(self.rows[row_numbers], dtype=np.float32)
        is_usable = has_vector(vectors)  # shape (n,)
        if not is_usable.all():
            document = documents[int(np.argmin(is_usable))]  # the first False
            raise InputError(
                f"{self.name} has NaN, infinity or only zeros as the vector of the document {document.id!r}: "
                "encode it again"
            )
        return vectors

    def require_same_vectors(
        self, vectors: Vectors, encoded: Vectors, ids: Sequence[str], similarity: Similarity, model: str
    ) -> float:
        """Compare stored vectors with those that a model gives for the same documents.

        Args:
            vectors: stored vectors of some documents, shape (n, d).
            encoded: the vectors that the model gives for these documents, shape (n, d).
            ids: ids of these documents.
            similarity: how the model compares vectors.
            model: name of the model.

        Returns:
            The largest difference, in relation to the norm of the model's vector; 0 if none was compared.

        Raises:
            InputError: the number of dimensions or a vector differs.
        """
        if vectors.shape[1] != encoded.shape[1]:
            raise InputError(
                f"{self.name} has vectors with {vectors.shape[1]} dimensions, and {model} gives "
                f"{encoded.shape[1]}: pass vectors of this model"
            )
        if not self.is_compared:
            return 0.0
        # Compare them as the search does: for the cosine, by their directions alone.
        expected = similarity.prepared(encoded)
        differences = np.linalg.norm(similarity.prepared(vectors) - expected, axis=1)
        relative_differences = differences / np.linalg.norm(expected, axis=1)
        worst = int(relative_differences.argmax())
        largest_difference = relative_differences[worst]
        if largest_difference > _LARGEST_DIFFERENCE:
            other_count = int((relative_differences > _LARGEST_DIFFERENCE).sum())
            stored_direction = Similarity.COSINE.prepared(vectors[[worst]])
            model_direction = Similarity.COSINE.prepared(encoded[[worst]])
            cosine = (stored_direction @ model_direction.T).item()
            raise InputError(
                f"{self.name} does not fit {model}: of {len(ids)} documents encoded again, "
                f"{other_count} have other vectors (the document "
                f"{ids[worst]!r} a cosine of {cosine:.3f} and a difference of {largest_difference:.0%}); "
                "pass vectors of this model, of whole documents, with the same prompt, or leave them out"
            )
        return float(largest_difference)


def open_vectors(source: VectorSource | StoredVectors) -> StoredVectors:
    """Open the vectors of an index.

    Args:
        source: an array; a npy file; a Parquet, jsonl, json, csv or tsv file with a column of vectors, and
            one of ids if they are not in the order of the documents; or an index of FAISS (.faiss or .index).

    Raises:
        InputError: there are no vectors.
    """
    if isinstance(source, StoredVectors):
        return source
    if isinstance(source, np.ndarray):
        return StoredVectors("the given array", _require_matrix(source, "the given array"), row_of=None)
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"vectors is {shown(source)}: pass a file, or an array of NumPy")
    path = file_path("vectors", source)
    suffix = path.suffix.lower()
    with reading(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass a file with vectors ({_FORMATS})")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r}")
        if suffix == ".npz":
            raise _archive_error(path)
        if suffix == ".npy":
            return StoredVectors(str(path), _require_matrix(_read_npy(path), str(path)), row_of=None)
        if suffix in _FAISS:
            return _open_faiss(path)
    table_suffix, _ = format_of(path)
    if table_suffix not in TABLE_SUFFIXES:
        raise InputError(f"{path} is in no format in which vectors can be read: pass {_FORMATS}")
    return _open_table(path)


def _archive_error(path: Path) -> InputError:
    return InputError(
        f"{path} is an archive, which may have several arrays: save the one with vectors as .npy (numpy.save)"
    )


def _require_matrix(vectors: NDArray[Any], name: str) -> NDArray[np.floating]:
    if vectors.ndim != 2:
        raise InputError(
            f"{name} has {counted(vectors.ndim, 'dimension')} (the shape {vectors.shape}): pass one with 2, "
            "with one row for each document"
        )
    if not np.issubdtype(vectors.dtype, np.floating):
        is_quantized = vectors.dtype.itemsize == 1 and np.issubdtype(vectors.dtype, np.integer)
        advice = "the vectors as they were before they were quantized" if is_quantized else "vectors"
        raise InputError(
            f"{name} has the type {vectors.dtype}: pass {advice}, in float16, float32 or float64"
        )
    if not len(vectors):
        raise InputError(f"{name} has no vectors: pass one for each document")
    if not vectors.shape[1]:
        raise InputError(f"{name} has vectors with no numbers: pass one for each document")
    return vectors


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "Python objects" in str(error):
            raise InputError(
                f"{path} has Python objects: save the vectors as an array of float16, float32 or float64"
            ) from error
        raise InputError(
            f"{path} is no .npy file of numbers, or is damaged: save the vectors with numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise _archive_error(path)
    return array


def _open_faiss(path: Path) -> StoredVectors:
    if importlib.util.find_spec("faiss") is None:
        raise InputError(f"{path} is an index of FAISS: install faiss-cpu, or save its vectors as npy")
    import faiss

    try:
        outer: Any = faiss.read_index(str(path))
    except RuntimeError as error:
        # The message says first where in FAISS this was noticed.
        _, _, reason = str(error).splitlines()[0].rpartition(" failed: ")
        raise InputError(
            f"{path} is no index of FAISS that can be read ({reason}): {_SAVE_VECTORS_INSTEAD}"
        ) from error
    index = outer  # the index that has the vectors; the outer one owns it, so both must live as long
    row_of = None
    type_name = type(outer).__name__
    if type_name in _FAISS_ID_MAPS:
        ids = [str(document_id) for document_id in faiss.vector_to_array(outer.id_map).tolist()]
        _require_distinct(ids, str(path))
        row_of = {document_id: row for row, document_id in enumerate(ids)}
        index = faiss.downcast_index(outer.index)
        type_name = type(index).__name__
    if type_name not in _FAISS_READABLE:
        raise InputError(
            f"{path} is an index of FAISS of the type {type_name}, of which no vectors can be read: "
            f"{_SAVE_VECTORS_INSTEAD}"
        )
    if isinstance(index, faiss.IndexIVF):
        stored_ids = np.sort(_list_stored_ids(index))
        # As the vector of a number that is no id, FAISS would return what happens to be in memory.
        if not np.array_equal(stored_ids, np.arange(index.ntotal)):
            raise InputError(
                f"{path} has {counted(index.ntotal, 'vector')} with ids from {stored_ids[0]} to "
                f"{stored_ids[-1]}, but each number from 0 to {index.ntotal - 1} must be the id of one: "
                "pass the vectors as Parquet, with a column id"
            )
    rows = index.reconstruct_n(0, index.ntotal)
    return StoredVectors(str(path), _require_matrix(rows, str(path)), row_of)


def _list_stored_ids(index: Any) -> NDArray[np.int64]:
    """Return the ids in an index of FAISS that keeps similar vectors together in lists (IVF)."""
    import faiss

    lists = index.invlists
    ids_by_list = [np.empty(0, dtype=np.int64)]
    for number in range(lists.nlist):
        if lists.list_size(number):  # an empty list has no address to read from
            ids = faiss.rev_swig_ptr(lists.get_ids(number), lists.list_size(number))
            ids_by_list.append(ids.copy())  # the index owns the memory of the original
    return np.concatenate(ids_by_list)


def _open_table(path: Path) -> StoredVectors:
    read_column: Callable[[str], pl.Series]
    first_values: dict[str, Any] = {}  # the first value of each column that isn't empty; None if all are
    suffix, _ = format_of(path)
    if suffix == PARQUET:
        # Only the columns of vectors and ids are read as a whole; of any other file, all columns are.
        file = ParquetFile(path)
        for column in file.columns:
            first_values[column] = file.first_value(column)
        read_column = file.column
    else:
        table = read_table(path)
        for column in table.columns:
            first_values[column] = next(filter(_is_filled, table.values_of(column)), None)
        read_column = partial(_read_column, table)
    vector_column = _choose_vector_column(first_values, path)
    usual_id_columns = [name for name in ID_NAMES if name in first_values]
    ids = None
    row_of = None
    if usual_id_columns:
        id_column = usual_id_columns[0]
        ids = [str(value) for value in read_column(id_column).to_list()]
        _require_distinct(ids, f"the column {id_column!r} of {path}")
        row_of = {document_id: row for row, document_id in enumerate(ids)}
    rows = _make_matrix(read_column(vector_column), path, ids)
    return StoredVectors(str(path), rows, row_of)


def _choose_vector_column(first_values: Mapping[str, Any], path: Path) -> str:
    """Return the column whose first value is a vector, or of several the one with a usual name."""
    columns = [name for name, value in first_values.items() if _are_numbers(value)]
    usual = [name for name in columns if name.lower() in _NAMES]
    if len(columns) > 1 and len(usual) == 1:
        columns = usual
    if all(value is None for value in first_values.values()):
        raise InputError(f"{path} has no rows with values: pass the vectors of all documents")
    if len(columns) != 1:
        raise InputError(
            f"{path} has {counted(len(columns), 'column')} of vectors among {', '.join(first_values)}: pass "
            f"a file with one, or call it {_NAMES[0]!r}"
        )
    return columns[0]


def _require_distinct(ids: Sequence[str], place: str) -> None:
    if len(set(ids)) < len(ids):
        most_frequent_id = Counter(ids).most_common(1)[0][0]
        raise InputError(f"{place} has the id {most_frequent_id!r} twice: ids must be distinct")


def _read_column(table: Table, name: str) -> pl.Series:
    values = [value if _is_filled(value) else None for value in table.values_of(name)]
    return pl.Series(name, values, strict=False)  # ids may be numbers in some rows and texts in others


def _is_filled(value: object) -> bool:
    return value not in (None, "", [])


def _are_numbers(value: object) -> bool:
    if isinstance(value, str) and value.startswith("["):  # as databases write vectors into csv files
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in value)


def _make_matrix(column: pl.Series, path: Path, ids: Sequence[str] | None) -> NDArray[np.float32]:
    """Return a column of vectors, as lists, arrays or JSON, as an array of shape (n, d)."""
    try:
        if column.dtype == pl.String:
            column = column.str.json_decode(pl.List(pl.Float64))
        elif isinstance(column.dtype, pl.Array):
            column = column.arr.to_list()
        vectors = column.cast(pl.List(pl.Float32))
        lengths = vectors.list.len().fill_null(0)  # a missing vector has no numbers
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: {column.name} has a value that is no vector: {one_line(error)}") from error
    rows_without = (lengths == 0).arg_true().to_list()
    if rows_without:
        first_row = rows_without[0]
        place = f"row {first_row + 1}"
        or_remove = ""  # without ids, a row stands for the document at its place
        if ids is not None:
            place += f" (id {ids[first_row]!r})"
            or_remove = ", or remove the row"
        more = f" and in {len(rows_without) - 1:,} more" if len(rows_without) > 1 else ""
        raise InputError(
            f"{path}: {column.name} has no vector in {place}{more}: encode the document{or_remove}"
        )
    dimensions = int(lengths[0])
    rows_of_other_length = (lengths != dimensions).arg_true().to_list()
    if rows_of_other_length:
        row = rows_of_other_length[0]
        raise InputError(
            f"{path}: {column.name} in row {row + 1} has {counted(int(lengths[row]), 'number')}, not "
            f"{dimensions} as the first: correct or remove the row"
        )
    return vectors.list.to_array(dimensions).to_numpy()
