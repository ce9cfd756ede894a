"""Embed the texts of a file, and write the vectors to a new file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data.tables import all_texts
from stickytoken.encoders.protocol import Encoder, require_usable, shown
from stickytoken.errors import InputError
from stickytoken.measurement import write_atomically

# Number of texts that are encoded between two progress reports.
_TEXTS_AT_A_TIME = 2048


def texts_of_file(path: Path, column: str | None = None) -> list[str]:
    """Return the texts of a file in order. Raise an error if a row has no text."""
    texts, _ = all_texts(path, column)
    for row, text in enumerate(texts, start=1):
        if text is None:
            raise InputError(f"{path}: row {row} has no text")
    return [str(text) for text in texts]


def require_new_file(path: Path) -> None:
    """Raise an error unless vectors can be written to a new file at this path."""
    if path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: vectors are written to a .parquet file, so end the name in .parquet")
    if path.exists():
        raise InputError(f"{path} already exists: name another file, or delete it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r} to write {path.name} to")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """The result of `embed_file`.

    Attributes:
        dimension: Number of components in each vector.
        without_vector: Texts that the server returned no vector for. In the file, a text without a vector has
            a null in the column ``vector``.
    """

    dimension: int
    without_vector: tuple[str, ...]


def embed_file(
    encoder: Encoder,
    texts: Sequence[str],
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EmbeddedFile:
    """Encode texts, and write a Parquet file with one row per text.

    The columns are ``text``, and ``vector`` as an array of float32. If a server returns no vector for a text,
    the text's ``vector`` is null.

    Args:
        encoder: The encoder.
        texts: The texts.
        path: The file to write, which must not exist.
        progress: Called with the number of texts encoded so far and the total number.

    Returns:
        The length of the vectors, and the texts without a vector.

    Raises:
        EncodingError: A text has a vector that cannot be used, such as a zero vector.
        InputError: The file exists or cannot be written.
    """
    require_new_file(path)
    vector_chunks = [np.empty((0, encoder.dimension), np.float32)]
    progress(0, len(texts))
    for start in range(0, len(texts), _TEXTS_AT_A_TIME):
        chunk = texts[start : start + _TEXTS_AT_A_TIME]
        vectors = encoder.encode(chunk, allow_zero=True)
        _require_no_zero_vectors(encoder, chunk, vectors)
        vector_chunks.append(vectors)
        progress(start + len(chunk), len(texts))
    all_vectors = np.concatenate(vector_chunks)
    is_missing = np.isnan(all_vectors).any(axis=1)
    size = int(all_vectors.shape[1])
    frame = pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "vector": pl.Series(all_vectors, dtype=pl.Array(pl.Float32, size)),
            "missing": is_missing,
        }
    )
    frame = frame.select("text", pl.when(~pl.col("missing")).then("vector").alias("vector"))
    write_atomically(path, frame.write_parquet)
    without_vector = tuple(texts[row] for row in np.flatnonzero(is_missing).tolist())
    return EmbeddedFile(size, without_vector)


def _require_no_zero_vectors(encoder: Encoder, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
    """Raise an error if a vector is zero.

    Vectors of NaN are allowed, because each stands for a text that the server returned no vector for.
    """
    answered = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()
    require_usable(vectors[answered], encoder.name, lambda row: shown(texts[answered[row]]), allow_zero=False)
