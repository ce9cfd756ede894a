"""Read the embedding rows of tokens from weight files, with the values that the model looks up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from stickytoken.errors import ModelError

# NumPy types, keyed by the type name in safetensors. NumPy has no bfloat16: its 16 bits are the upper half of
# a float32.
_NUMPY_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U8": "<u1",
}
FLOATING_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Stored types that a row can be written in, with their names in torch."""

# Tensor names in a static model saved by model2vec. Mapping and weights are optional; see `TokenRows`.
_MODEL2VEC_ROWS = "embeddings"
_MODEL2VEC_MAPPING = "mapping"
_MODEL2VEC_WEIGHTS = "weights"
# Tensor name in a static model saved by sentence-transformers, which takes precedence over the names above.
_SENTENCE_TRANSFORMERS_ROWS = "embedding.weight"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file.

    Attributes:
        file: file that contains the tensor.
        name: name of the tensor.
        dtype: name of the data type in safetensors, such as F32.
        shape: shape of the tensor.
        start: offset of the tensor's first byte in the file.
        size: size in bytes.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    @property
    def row_bytes(self) -> int:
        """Number of bytes per row, or per component if the tensor has one dimension."""
        return int(np.dtype(_NUMPY_TYPES[self.dtype]).itemsize * np.prod(self.shape[1:], dtype=np.int64))

    @property
    def readable(self) -> bool:
        """Whether the tensor's type can be read into NumPy."""
        return self.dtype in _NUMPY_TYPES

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Return rows ``begin`` up to ``end`` (exclusive) in the stored type; bfloat16 becomes float32."""
        row_count = end - begin
        numbers_per_row = int(np.prod(self.shape[1:], dtype=np.int64))
        numbers = np.fromfile(
            self.file,
            _NUMPY_TYPES[self.dtype],
            count=row_count * numbers_per_row,
            offset=self.start + begin * self.row_bytes,
        )
        if self.dtype == "BF16":  # its 16 bits, read as integers, are the upper half of a float32
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        return numbers.reshape(row_count, *self.shape[1:])

    def read_whole(self) -> NDArray[Any]:
        """Return all rows in the stored type; bfloat16 becomes float32."""
        return self.read(0, self.shape[0])


def read_stored_tensors(file: Path) -> list[StoredTensor]:
    """Return the tensors of a safetensors file, without reading their values.

    Raises:
        ModelError: The file is damaged or truncated.
    """
    try:
        with safetensors.safe_open(file, framework="np"), file.open("rb") as stream:
            # A file has the size of its header in 8 bytes, the header, and then the tensors, whose offsets
            # count from the end of the header. `safe_open` checks that the file is complete, but does not say
            # where the tensors are.
            header_size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(header_size))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise ModelError(f"{file} is not a readable safetensors file: {error}") from error
    header.pop("__metadata__", None)
    tensors = []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensor = StoredTensor(
            file, name, entry["dtype"], tuple(entry["shape"]), start=8 + header_size + begin, size=end - begin
        )
        tensors.append(tensor)
    return tensors


@dataclass(frozen=True)
class TokenRows:
    """One embedding row for each token id, as the model looks it up.

    The row of token t is ``matrix[mapping[t]] * weights[t]``. Most models have neither mapping nor weights,
    so the row of token t is ``matrix[t]``.

    Attributes:
        matrix: the stored rows.
        mapping: index of the stored row of each token id, shape (tokens,), in a static model with a quantized
            vocabulary, where several tokens share one row; None if each token has its own row.
        weights: factor for the row of each token id, shape (tokens,), in some static models; None if rows are
            not scaled.
    """

    matrix: StoredTensor
    mapping: StoredTensor | None = None
    weights: StoredTensor | None = None

    def __len__(self) -> int:
        """Return the number of token ids."""
        if self.mapping is not None:
            return self.mapping.shape[0]
        return self.matrix.shape[0]

    @property
    def folded(self) -> bool:
        """Whether there is a mapping or weights, so that the rows of tokens are not stored as they are."""
        return self.mapping is not None or self.weights is not None

    @property
    def width(self) -> int:
        return self.matrix.shape[1]

    @property
    def dtype(self) -> str:
        """Type of the rows that the model looks up; with token weights, at least float32."""
        if self.weights is None or self.matrix.dtype == "F64":
            return self.matrix.dtype
        return "F32"

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Return the rows of the token ids from ``begin`` to ``end`` (exclusive), shape (ids, d).

        The row of token t is ``matrix[mapping[t]] * weights[t]``; without a mapping, it is stored at index t,
        and without weights, it is not scaled. The rows have the type `dtype`; bfloat16 becomes float32.
        """
        if self.mapping is None:
            rows = self.matrix.read(begin, end)
        else:
            rows = self._matrix_in_memory[self._mapping_in_memory[begin:end]]
        if self.weights is None:
            return rows
        dtype = FLOATING_TYPES[self.dtype]
        weight_of_row = self.weights.read(begin, end)[:, None]
        product: NDArray[Any] = rows.astype(dtype, copy=False) * weight_of_row
        return product.astype(dtype, copy=False)  # the weights may have a wider type

    @cached_property
    def _matrix_in_memory(self) -> NDArray[Any]:
        # All rows at once, because `mapping` may assign distant ones to consecutive ids.
        return self.matrix.read_whole()

    @cached_property
    def _mapping_in_memory(self) -> NDArray[np.int64]:
        if self.mapping is None:
            return np.arange(len(self))
        mapping = self.mapping.read_whole().astype(np.int64)
        is_outside = (mapping < 0) | (mapping >= self.matrix.shape[0])
        if is_outside.any():
            token_id = int(np.flatnonzero(is_outside)[0])
            raise ModelError(
                f"{self.matrix.file} is damaged: it assigns row {mapping[token_id]} to token "
                f"{token_id}, but has only {self.matrix.shape[0]} rows"
            )
        return mapping


def static_matrix(tensors: Sequence[StoredTensor]) -> StoredTensor | None:
    """Return the matrix of a static model saved by model2vec, of any type; None for another kind of model."""
    matrices = [tensor for tensor in tensors if tensor.name == _MODEL2VEC_ROWS and len(tensor.shape) == 2]
    return next(iter(matrices), None)


def static_rows(tensors: Sequence[StoredTensor]) -> TokenRows | None:
    """Find the token rows of a static model among the tensors of its weight file, by their names.

    A file saved by sentence-transformers has one matrix with a row for each token. A file saved by model2vec
    has a matrix and, in some models, a mapping or weights; see `TokenRows`.

    Returns:
        The rows, or None if there is no readable matrix of rows, because the file belongs to another kind of
        model.

    Raises:
        ModelError: The mapping or the weights have a type that cannot be read, or there is not exactly one
            weight for each token.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    readable_by_name = {tensor.name: tensor for tensor in tensors if tensor.readable}
    saved_by_sentence_transformers = readable_by_name.get(_SENTENCE_TRANSFORMERS_ROWS)
    if saved_by_sentence_transformers is not None:
        is_matrix = len(saved_by_sentence_transformers.shape) == 2
        return TokenRows(saved_by_sentence_transformers) if is_matrix else None
    matrix = readable_by_name.get(_MODEL2VEC_ROWS)
    if matrix is None or len(matrix.shape) != 2:
        return None
    rows = TokenRows(matrix, by_name.get(_MODEL2VEC_MAPPING), by_name.get(_MODEL2VEC_WEIGHTS))
    # Without its mapping or weights, the matrix would give wrong rows.
    for tensor in (rows.mapping, rows.weights):
        if tensor is not None and not tensor.readable:
            raise ModelError(
                f"the tensor {tensor.name} in {tensor.file} has the type {tensor.dtype}, which cannot be read"
            )
    if rows.weights is not None and rows.weights.shape != (len(rows),):
        raise ModelError(
            f"{matrix.file} is damaged: it has rows for {len(rows)} tokens, and weights of the shape "
            f"{rows.weights.shape}"
        )
    return rows
