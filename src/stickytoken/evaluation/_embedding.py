"""Embed the texts of a file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data.documents import DocumentSource, NamedColumns, open_documents
from stickytoken.data.rows import Meter, Skipped
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import Encoder, has_vector, reads_ids
from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Insertion
from stickytoken.measurement.store import write_atomically
from stickytoken.settings.reading import ColumnChoice

# Number of texts that are encoded between two progress reports.
_TEXTS_AT_A_TIME = 2048


@dataclass(frozen=True, slots=True)
class TextFile:
    """The texts to embed.

    Attributes:
        texts: One text per record, in order; None for a record that cannot be read. In a text file, blank
            lines before the last text are empty texts, so that the rows of the output are its lines.
        skipped: The records that cannot be read.
        meter: What was read.
    """

    texts: tuple[str | None, ...]
    skipped: tuple[Skipped, ...]
    meter: Meter


def read_text_file(source: DocumentSource, column: ColumnChoice = None) -> TextFile:
    """Read all texts of a file, as every command reads documents.

    Raises:
        InputError: The file cannot be read, or none of its records.

    Examples:
        >>> from stickytoken.evaluation import read_text_file
        >>> read_text_file("documents.jsonl").texts[0]
        'A plain text about rivers and boats.'
    """
    meter = Meter()
    collection = open_documents(source, NamedColumns(column))
    records = list(collection.read(meter))
    skipped = tuple(record for record in records if isinstance(record, Skipped))
    if len(skipped) == len(records):
        reason = f"; {skipped[0].place}: {skipped[0].reason}" if skipped else ""
        raise InputError(f"{collection.name} has no readable text{reason}")
    readable = next(record for record in records if not isinstance(record, Skipped))
    is_text_file = not readable.columns and not readable.is_whole_file
    texts: list[str | None] = []
    for record in records:
        if is_text_file and record.line is not None:
            # Row n of the output must be line n of the file. Blank lines are no records, so those before this
            # line are added as empty texts.
            texts += [""] * (record.line - 1 - len(texts))
        texts.append(None if isinstance(record, Skipped) else record.text)
    return TextFile(tuple(texts), skipped, meter)


def require_new_file(path: Path) -> None:
    """Raise an error unless vectors can be written to a new file at this path.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import require_new_file
        >>> require_new_file(Path("new.parquet"))
    """
    if path.suffix.lower() != ".parquet":
        raise InputError(f"{path}: vectors are written to a .parquet file, so end the name in .parquet")
    if path.exists():
        raise InputError(f"{path} already exists: name another file, or delete it")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r} to write {path.name} to")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()  # it is deleted at once
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """The result of `embed_file`.

    Attributes:
        dimension: Number of components in each vector.
        without_vector: Texts without a vector: a server returned none, or the model's is zero.
        truncated: Number of texts that were truncated to the length that the model reads.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import embed_file
        >>> embed_file(model, ["the river", None], Path("more.parquet")).truncated
        0
    """

    dimension: int
    without_vector: tuple[str, ...]
    truncated: int = 0


def embed_file(
    encoder: Encoder,
    texts: Sequence[str | None],
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EmbeddedFile:
    """Encode texts, and write a Parquet file with one row per text.

    The columns are ``text``, and ``vector`` as an array of float32. The vector is null for a text without a
    usable vector, and for a missing text. A text that is too long is truncated after the last token that the
    model reads, as sentence-transformers does.

    Args:
        encoder: The encoder.
        texts: The texts.
        path: The file to write, which must not exist.
        progress: Called with the number of texts encoded so far and the total number.

    Raises:
        InputError: The file exists or cannot be written.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.evaluation import embed_file
        >>> embed_file(model, ["the river", None], Path("vectors.parquet")).dimension
        384
    """
    require_new_file(path)
    vector_chunks = [np.empty((0, encoder.dimension), np.float32)]  # so that no texts can be concatenated too
    truncated = 0
    progress(0, len(texts))
    for start in range(0, len(texts), _TEXTS_AT_A_TIME):
        chunk = texts[start : start + _TEXTS_AT_A_TIME]
        vectors = np.full((len(chunk), encoder.dimension), np.nan, np.float32)
        rows_with_text = [row for row, text in enumerate(chunk) if text is not None]
        encoded, truncated_in_chunk = _encode(encoder, [text for text in chunk if text is not None])
        vectors[rows_with_text] = encoded
        truncated += truncated_in_chunk
        vector_chunks.append(vectors)
        progress(start + len(chunk), len(texts))
    all_vectors = np.concatenate(vector_chunks)
    usable = has_vector(all_vectors)
    dimension = int(all_vectors.shape[1])
    frame = pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "vector": pl.Series(all_vectors, dtype=pl.Array(pl.Float32, dimension)),
            "usable": usable,
        }
    )
    # `when` without `otherwise` gives null.
    frame = frame.select("text", pl.when("usable").then("vector").alias("vector"))
    write_atomically(path, frame.write_parquet)
    unusable_texts = [texts[row] for row in np.flatnonzero(~usable).tolist()]
    without_vector = tuple(text for text in unusable_texts if text is not None)
    return EmbeddedFile(dimension, without_vector, truncated)


def _encode(encoder: Encoder, texts: Sequence[str]) -> tuple[NDArray[np.float32], int]:
    # Returns the vectors of texts, shape (texts, d), NaN without a vector; and the number of truncated texts.
    if not reads_ids(encoder):  # the encoder truncates or refuses long texts itself
        return encoder.encode(texts, allow_zero=True), 0
    fitted_texts = fit_texts(encoder, texts, room=0, insertion=Insertion.IDS, name="the texts")
    contents = [fitted.content.ids for fitted in fitted_texts]
    vectors = np.full((len(texts), encoder.dimension), np.nan, np.float32)
    with_tokens = [row for row, content in enumerate(contents) if content]
    without_tokens = [row for row, content in enumerate(contents) if not content]
    vectors[with_tokens] = encoder.encode_ids([contents[row] for row in with_tokens], allow_zero=True)
    if without_tokens:
        # All texts without tokens have the same vector. A model without special tokens gives no vector for
        # them.
        with suppress(EncodingError):
            vectors[without_tokens] = encoder.encode_ids([()], allow_zero=True)
    truncated_count = sum(fitted.cut for fitted in fitted_texts)
    return vectors, truncated_count
