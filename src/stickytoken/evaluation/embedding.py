"""Embed a file of texts into a Parquet file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from stickytoken.corpora.files import all_texts
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.measurement.atomic import write_atomically

_CHUNK = 2048


def texts_of_file(path: Path, column: str | None = None) -> list[str]:
    """Read all texts of a file in order, including repeated and blank ones.

    Args:
        path: A txt file with one text per line, or csv, tsv, jsonl, parquet.
        column: Column of a table; None takes ``sentence``, ``text``, or the only text column.

    Raises:
        InputError: The file or the column cannot be used, or a row has no text.
    """
    texts, _ = all_texts(path, column)
    for row, text in enumerate(texts, start=1):
        if text is None:
            raise InputError(f"{path}: row {row} has no text")
    return [str(text) for text in texts]


def require_new_file(path: Path) -> None:
    """Refuse a file that cannot be written or would be overwritten.

    Raises:
        InputError: The suffix is not .parquet, the file exists, or its folder is missing or not writable.
    """
    if path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: vectors are written as .parquet")
    if path.exists():
        raise InputError(f"{path} already exists: name another file, or delete it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r} to write {path.name} to")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def embed_file(
    encoder: Encoder,
    texts: Sequence[str],
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Encode texts and write one row per text: ``text``, and ``vector`` as an array of float32.

    Args:
        encoder: The model.
        texts: Texts to encode.
        path: A new Parquet file.
        progress: Called with the number of texts done and in total.

    Returns:
        The number of components of a vector.

    Raises:
        InputError: The file would be overwritten.
        EncodingError: A text has no usable vector; nothing is written.
    """
    require_new_file(path)
    parts = []
    progress(0, len(texts))
    for start in range(0, len(texts), _CHUNK):
        parts.append(encoder.encode(texts[start : start + _CHUNK]))
        progress(min(start + _CHUNK, len(texts)), len(texts))
    vectors = np.concatenate(parts) if parts else np.empty((0, encoder.dimension), np.float32)
    size = int(vectors.shape[1])
    frame = pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "vector": pl.Series(vectors, dtype=pl.Array(pl.Float32, size)),
        }
    )
    write_atomically(path, frame.write_parquet)
    return size
