"""Examine a vocabulary using only the tokenizer and the stored weights; the model is never run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken import vocabulary as vocabularies
from stickytoken.data import SpanTokenizer, unread_characters
from stickytoken.encoders.loading.resolution import Origin, explained, hub_repositories, resolve_model
from stickytoken.encoders.loading.stored_rows import (
    FLOATING_TYPES,
    TokenRows,
    read_stored_tensors,
    static_rows,
)
from stickytoken.errors import ModelError
from stickytoken.token_vectors import UNUSUAL_DEVIATION, robust_deviations, vector_deviations_of
from stickytoken.vocabulary import Category, RoundTripTokenizer, Vocabulary

__all__ = ["EntryWeights", "entry_weights", "fertility", "script_shares"]

# Minimum number of ordinary entries needed to estimate the spread of their distances from the mean of the
# untrained rows.
_LEAST_ORDINARY = 200
# An entry is near the mean of the untrained rows if its distance from the mean is at most this quantile of
# the untrained rows' own distances.
_UNTRAINED_QUANTILE = 0.95
# Number of rows read from the file at a time.
_ROWS = 8192
# Substrings in the names of input and output embedding matrices, most common first. The last input name,
# ``embed``, also occurs in the names of other tensors, such as position embeddings.
_INPUT_NAMES = ("word_embeddings", "embed_tokens", "wte", "shared", "tok_embeddings", "embed")
_OUTPUT_NAMES = ("lm_head", "embed_out", "predictions.decoder", "output")


# The measurements of each entry. A value that cannot be computed is null.
_COLUMNS = {
    "norm": pl.Float64,
    "distance": pl.Float64,
    "cosine_distance": pl.Float64,
    "vector_deviation": pl.Float64,
    "under_trained": pl.Boolean,
}


@dataclass(frozen=True)
class EntryWeights:
    """Measurements of every vocabulary entry's embedding, computed from the weight files alone.

    Attributes:
        tensor: Name of the embedding matrix in its file.
        output: Name of the output matrix, from whose rows the cosine distances are computed. If the files
            contain no separate output matrix, ``output`` is None, and the cosine distances are computed from
            the embedding matrix.
        dtype: Precision of the stored rows, such as ``F32``.
        dimensions: Number of components in each row.
        untrained: Indices of the rows that cannot have been trained: the rows of reserved entries, and rows
            that belong to no entry. If no row is untrained, distances and verdicts are null.
        tokens: One row per vocabulary entry, with the columns token_id, token, decoded and category; norm
            (Euclidean length of the row); distance (Euclidean distance to the mean of the untrained rows);
            cosine_distance (cosine distance to the mean of the untrained rows after the first principal
            component is removed; computed in the output matrix if there is one); vector_deviation (how
            unusual the row is, see `stickytoken.token_vectors`; null for entries that text cannot produce);
            and under_trained (whether the entry is under-trained).

    Examples:
        >>> from stickytoken.entries import entry_weights
        >>> weights = entry_weights("all-MiniLM-L6-v2", stickytoken.analyze_vocabulary(model))
        >>> weights.tensor, weights.dtype
        ('embeddings.word_embeddings.weight', 'F32')
    """

    tensor: str
    output: str | None
    dtype: str
    dimensions: int
    untrained: tuple[int, ...]
    tokens: pl.DataFrame

    @property
    def judged(self) -> bool:
        """Whether there were enough untrained and ordinary rows to judge the entries."""
        return self.tokens["under_trained"].null_count() == 0

    @property
    def reachable(self) -> pl.DataFrame:
        """The rows of ``tokens`` for under-trained entries that can occur in text.

        The entries nearest to the mean untrained row come first.
        """
        available = [category.value for category in Category if category.available]
        return self.tokens.filter("under_trained", pl.col("category").is_in(available)).sort(
            "distance", "token_id"
        )


def entry_weights(model: str | Path, vocabulary: Vocabulary, *, revision: str | None = None) -> EntryWeights:
    """Find under-trained vocabulary entries from a model's weights, without encoding any text.

    The distances were proposed as indicators of under-trained entries by Land and Bartolo, "Fishing for
    Magikarp" (EMNLP 2024), sections 3.2 and 3.3. Training cannot have changed the rows of unused entries (the
    untrained rows). Rows that training has hardly changed lie near the mean of the untrained rows.

    An entry is under-trained if its distance from the mean of the untrained rows meets two conditions: the
    distance is at most the 95% quantile of the untrained rows' own distances, and the logarithm of the
    distance lies at least six median absolute deviations below the median of ordinary entries. Ordinary
    entries are those that text can produce.

    Args:
        model: Folder or name of a model whose weights are one ``*.safetensors`` file or several shards.
        vocabulary: The vocabulary of the model, from `stickytoken.analyze_vocabulary`.
        revision: Branch, tag or commit on the hub.

    Returns:
        For every vocabulary entry, the length of its row, the distances from the mean of the untrained rows,
        how unusual the row is among the rows of ordinary entries, and whether the entry is under-trained.

    Raises:
        ModelError: The model has no ``*.safetensors`` files, a file is missing or damaged, or no file has a
            floating-point matrix with a row for every entry.
        InputError: A revision is passed, but the model is a folder.

    Examples:
        >>> from stickytoken.entries import entry_weights
        >>> weights = entry_weights("all-MiniLM-L6-v2", stickytoken.analyze_vocabulary(model))
        >>> weights.dimensions, len(weights.untrained)
        (384, 994)
    """
    rows, output = _matrices(str(model), revision, vocabulary.ids[-1] + 1)
    ids = np.array(vocabulary.ids)
    untrained = _find_untrained_rows(vocabulary, len(rows))
    # Euclidean distances are always computed from ``rows``, the input matrix. Cosine distances are computed
    # from the output matrix if there is one, and otherwise from the input matrix. Only cosine distances need
    # a scatter matrix, for the principal component that is removed first.
    needs_scatter = len(untrained) > 0 and output is None
    squared_lengths, scatter = rows.squared_lengths_and_scatter(with_scatter=needs_scatter)
    norms = np.sqrt(squared_lengths)
    if not np.isfinite(norms).all():
        row = int(np.flatnonzero(~np.isfinite(norms))[0])
        raise ModelError(
            f"row {row} of {rows.name} in {str(model)!r} is not finite: the weights are damaged; download or "
            "save them again"
        )
    is_available = np.array([category.available for category in vocabulary.categories])
    columns: dict[str, Any] = {"norm": norms[ids]}
    if len(untrained):
        distances, cosine_distances = _distances(rows, untrained, squared_lengths, scatter)
        if output is not None:
            _, cosine_distances = _distances(output, untrained, *output.squared_lengths_and_scatter())
        columns["distance"] = distances[ids]
        columns["cosine_distance"] = cosine_distances[ids]
        columns["under_trained"] = _under_trained(distances[ids], is_available, distances[untrained])
    available_deviations = _vector_deviations(rows, ids[is_available])
    if available_deviations is not None:
        deviations = np.full(len(ids), np.nan)
        deviations[is_available] = available_deviations
        columns["vector_deviation"] = deviations
    return EntryWeights(
        tensor=rows.name,
        output=output.name if output else None,
        dtype=rows.dtype,
        dimensions=rows.shape[1],
        untrained=tuple(untrained.tolist()),
        tokens=vocabulary.frame().hstack(_as_series(columns, len(ids))),
    )


def _find_untrained_rows(vocabulary: Vocabulary, row_count: int) -> NDArray[np.int64]:
    mark = vocabularies.word_mark(vocabulary.tokens)
    is_trained = np.zeros(row_count, bool)
    is_trained[np.array(vocabulary.ids)] = True
    entries = zip(vocabulary.ids, vocabulary.tokens, vocabulary.decoded, vocabulary.categories, strict=True)
    for token_id, token, text, category in entries:
        # Only an entry that starts with a bracket can be reserved, so other entries skip the slow check.
        if token[:1] in ("[", "<"):
            kind = vocabularies.kind_of(token, text, category, mark)
            is_trained[token_id] = kind is not vocabularies.Kind.UNUSED
    return np.flatnonzero(~is_trained)


def _as_series(columns: dict[str, Any], count: int) -> list[pl.Series]:
    series_list = []
    for name, dtype in _COLUMNS.items():
        values = columns.get(name)
        series = pl.Series(name, [None] * count if values is None else values, dtype=dtype)
        series_list.append(series.fill_nan(None) if dtype == pl.Float64 else series)
    return series_list


def _under_trained(
    distances: NDArray[np.float64],
    is_ordinary: NDArray[np.bool_],
    distances_of_untrained: NDArray[np.float64],
) -> NDArray[np.bool_] | None:
    nearness = -np.log(np.maximum(distances, np.finfo(np.float64).tiny))
    if is_ordinary.sum() < _LEAST_ORDINARY:
        return None
    deviations = robust_deviations(nearness, reference=nearness[is_ordinary])
    if deviations is None:
        return None
    is_near = distances <= np.quantile(distances_of_untrained, _UNTRAINED_QUANTILE)
    is_unlike_ordinary = deviations >= UNUSUAL_DEVIATION
    under_trained: NDArray[np.bool_] = is_near & is_unlike_ordinary
    return under_trained


def _vector_deviations(matrix: _Matrix, available: NDArray[np.int64]) -> NDArray[np.float64] | None:
    def blocks() -> Iterator[NDArray[np.float64]]:
        """Yield the rows of the available entries, one block after the other."""
        for start, block in matrix.blocks():
            # The block holds the rows from ``start`` on; ``available[first:last]`` are the indices of its
            # available rows in the whole matrix.
            first, last = np.searchsorted(available, (start, start + len(block)))
            yield block[available[first:last] - start]

    return vector_deviations_of(blocks, len(available), matrix.shape[1])


def _distances(
    matrix: _Matrix,
    untrained: NDArray[np.int64],
    squared_lengths: NDArray[np.float64],
    scatter: NDArray[np.float64] | None,
) -> tuple[NDArray[np.float64], Any]:
    """Compute the Euclidean and cosine distances of all rows from the mean of the untrained rows.

    Returns:
        The Euclidean distances, and the cosine distances after the first principal component is removed from
        all rows, each of shape (N,). The cosine distances are None if ``scatter`` is None.
    """
    centre = matrix.mean(untrained)
    if scatter is None:
        return matrix.distances_to(centre), None
    component = np.linalg.eigh(scatter)[1][:, -1]
    centre_without_component = centre - (centre @ component) * component
    distances = np.empty(len(matrix))
    along_component = np.empty(len(matrix))
    products = np.empty(len(matrix))
    for start, block in matrix.blocks():
        rows = slice(start, start + len(block))
        along_component[rows] = block @ component
        products[rows] = block @ centre_without_component
        distances[rows] = np.linalg.norm(block - centre, axis=1)
    # By Pythagoras, removing the component reduces the squared length of a row by along_component**2.
    row_lengths = np.sqrt(np.maximum(squared_lengths - along_component**2, 0.0))
    length_products = row_lengths * np.linalg.norm(centre_without_component)
    # The cosine of a zero row is undefined. The cosine is set to 0, so the distance of a zero row is 1.
    cosines = np.divide(products, length_products, out=np.zeros(len(matrix)), where=length_products > 0)
    return distances, 1 - cosines


class _Matrix:
    """A stored matrix that is read block by block, to save memory and to avoid loading torch."""

    def __init__(self, rows: TokenRows) -> None:
        self.name = rows.matrix.name
        self.dtype = rows.dtype
        self.shape = (len(rows), rows.width)
        self._rows = rows

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield blocks of rows, each with the index of its first row."""
        for start in range(0, len(self), _ROWS):
            yield start, self._read(start)

    def _read(self, start: int) -> NDArray[np.float64]:
        return self._rows.read(start, min(start + _ROWS, len(self))).astype(np.float64)

    def distances_to(self, centre: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Euclidean distance of every row to a vector, shape (N,)."""
        return np.concatenate([np.linalg.norm(block - centre, axis=1) for _, block in self.blocks()])

    def squared_lengths_and_scatter(
        self, *, with_scatter: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return the squared length of every row, shape (N,), and the scatter matrix, shape (D, D).

        The scatter matrix is the covariance matrix of the rows times the number of rows. The scatter matrix
        is None if ``with_scatter`` is false.
        """
        squared_lengths = np.empty(len(self))
        total = np.zeros(self.shape[1])
        products = np.zeros((self.shape[1], self.shape[1]))
        for start, block in self.blocks():
            squared_lengths[start : start + len(block)] = np.einsum("ij,ij->i", block, block)
            if with_scatter:
                total += block.sum(axis=0)
                products += block.T @ block
        if not with_scatter:
            return squared_lengths, None
        return squared_lengths, products - np.outer(total, total) / len(self)

    def mean(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the mean of the rows at these indices, which must be in ascending order."""
        total = np.zeros(self.shape[1])
        starts = range(0, len(self), _ROWS)
        rows_by_block = np.split(rows, np.searchsorted(rows, starts[1:]))
        for start, rows_of_block in zip(starts, rows_by_block, strict=True):
            if len(rows_of_block):
                total += self._read(start)[rows_of_block - start].sum(axis=0)
        return total / len(rows)


def _matrices(model: str, revision: str | None, entry_count: int) -> tuple[_Matrix, _Matrix | None]:
    """Find the embedding matrices of a model among the tensors of its weight files.

    Returns:
        The input matrix and the output matrix. The input matrix has the most common name for input matrices
        among all floating-point matrices with enough rows. The output matrix has a usual name for output
        matrices and the same shape as the input matrix; if several matrices qualify, it is the last of them.
        The output matrix is None if no matrix qualifies.

    Raises:
        ModelError: No floating-point matrix has a row for every entry.
    """
    # The last name, ``embed``, also occurs in the names of other tensors.
    unambiguous_names = _INPUT_NAMES[:-1]
    candidates: list[_Matrix] = []
    quantized = ""
    for path in _weight_files(model, revision):
        tensors = read_stored_tensors(path)
        # In some static models, the row of a token is computed from several tensors.
        rows_of_static_model = static_rows(tensors)
        for tensor in tensors:
            rows = TokenRows(tensor)
            if rows_of_static_model is not None and tensor == rows_of_static_model.matrix:
                rows = rows_of_static_model
            if rows.dtype in FLOATING_TYPES:
                if len(tensor.shape) == 2 and len(rows) >= entry_count:
                    candidates.append(_Matrix(rows))
            elif any(name in tensor.name for name in unambiguous_names):
                quantized = f": {tensor.name} is quantized ({tensor.dtype})"
    matrix = _first_named(candidates, _INPUT_NAMES)
    if matrix is None:
        raise ModelError(
            f"the weights of {model!r} have no floating-point embedding matrix with {entry_count:,} rows"
            f"{quantized}: use the original weights and their own tokenizer"
        )
    output = None
    for candidate in candidates:
        is_output = any(name in candidate.name for name in _OUTPUT_NAMES)
        if is_output and candidate.shape == matrix.shape:
            output = candidate
    return matrix, output


def _first_named(matrices: Sequence[_Matrix], names: Sequence[str]) -> _Matrix | None:
    for name in names:
        for matrix in matrices:
            if name in matrix.name:
                return matrix
    return None


def _weight_files(model: str, revision: str | None) -> list[Path]:
    """Return the paths of a model's safetensors files.

    The files are taken from the model's folder or, if the folder contains no safetensors files, from the
    first subfolder with safetensors files.

    Raises:
        ModelError: The model has no safetensors files, or a shard is missing.
    """
    source = resolve_model(model, revision)
    folder = Path(source.location)
    if source.origin is Origin.HUB:
        with explained(source, "model"):
            folder = _download(source.name, revision)
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    for searched_folder in [folder, *subfolders]:
        files_of_weights = sorted(searched_folder.glob("*.safetensors"))
        for index in searched_folder.glob("*.safetensors.index.json"):
            missing = _list_shards(index) - {path.name for path in files_of_weights}
            if missing:
                raise ModelError(
                    f"{model!r} is incomplete: {index.name} lists {min(missing)}, which is missing: download "
                    "or save the model again"
                )
        if files_of_weights:
            return files_of_weights
    raise ModelError(f"{model!r} has no *.safetensors file: save its weights in that format")


def _list_shards(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index} is not an index of shards ({error!r}): download or save the model again"
        ) from error


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    *preferred, last = hub_repositories(name)
    patterns = ["*.safetensors", "*.safetensors.index.json"]
    for repository in preferred:
        with suppress(RepositoryNotFoundError):
            return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    return Path(snapshot_download(last, revision=revision, allow_patterns=patterns))


def script_shares(vocabulary: Vocabulary) -> pl.DataFrame:
    """Count the vocabulary entries of each script; only entries that text can produce are counted.

    The script of an entry is the most frequent script among its letters.

    Returns:
        One row per script, with the most frequent script first. The columns are script (``none`` for entries
        without letters), entries (their number) and share (of all counted entries).

    Examples:
        >>> from stickytoken.entries import script_shares
        >>> shares = script_shares(stickytoken.analyze_vocabulary(model))
        >>> shares["script"][0], round(shares["share"][0], 2)
        ('Latin', 0.93)
    """
    entries = zip(vocabulary.decoded, vocabulary.categories, strict=True)
    scripts = [vocabularies.script_of(text) for text, category in entries if category.available]
    counted = pl.Series("script", scripts, pl.String).value_counts(name="entries")
    share = pl.col("entries") / max(1, len(scripts))
    return counted.with_columns(share.alias("share")).sort("entries", "script", descending=[True, False])


def fertility(tokenizer: RoundTripTokenizer) -> pl.DataFrame:
    """Return how many tokens a tokenizer needs for the same twenty plain sentences in ten languages.

    Fertility is the number of tokens per word (Rust et al., "How Good is Your Tokenizer?", ACL 2021). The
    fertility of a language is high if the vocabulary has few entries in the language, or only short ones. The
    number of tokens relative to English is the premium of Petrov et al., "Language Model Tokenizers Introduce
    Unfairness Between Languages" (NeurIPS 2023). The premium compares translations of the same sentences, so
    it is meaningful for languages without spaces too.

    Returns:
        One row per language, with the columns language; unit (``word``, or ``character`` for languages
        without spaces); units and tokens (the numbers of units and tokens); tokens_per_unit; times_english
        (the number of tokens relative to English); and unknown (the number of unknown tokens, plus the number
        of characters that the tokenizer drops).

    Examples:
        >>> from stickytoken.entries import fertility
        >>> fertility(model.tokenizer).select("language", "tokens").rows()[:2]
        [('English', 143), ('German', 268)]
    """
    content = files("stickytoken.data").joinpath("bundled/languages.csv").read_bytes()
    sentences = pl.read_csv(content, schema={"language": pl.String, "sentence": pl.String})
    texts = sentences["sentence"].to_list()
    encoded = tokenizer.encode_many(texts)
    lengths = pl.Series([len(ids) for ids in encoded], dtype=pl.Int64)
    # The sentences contain no special tokens, so every special token in their encoding is the unknown token.
    special_ids = tokenizer.special_ids
    unknown_counts = [len([token_id for token_id in ids if token_id in special_ids]) for ids in encoded]
    if isinstance(tokenizer, SpanTokenizer):
        for row, (ids, spans) in enumerate(tokenizer.encode_with_spans(texts)):
            if spans is not None:
                # Unknown tokens have already been counted. With ``unknown_id=None``, `unread_characters`
                # counts only dropped characters.
                unknown_counts[row] += int(unread_characters(texts[row], ids, spans, unknown_id=None))
    unknown = pl.Series(unknown_counts, dtype=pl.Int64)
    # Languages without spaces have no word count, so their characters are counted.
    unspaced = pl.col("language").is_in(("Chinese", "Japanese"))
    words = pl.col("sentence").str.split(" ").list.len()
    letters = pl.col("sentence").str.count_matches(r"\p{L}")
    return (
        sentences.with_columns(
            units=pl.when(unspaced).then(letters).otherwise(words), tokens=lengths, unknown=unknown
        )
        .group_by("language", maintain_order=True)
        .agg(pl.col("units", "tokens", "unknown").sum())
        .with_columns(
            unit=pl.when(unspaced).then(pl.lit("character")).otherwise(pl.lit("word")),
            tokens_per_unit=pl.col("tokens") / pl.col("units"),
            times_english=pl.col("tokens") / pl.col("tokens").filter(language="English").first(),
        )
        .select("language", "unit", "units", "tokens", "tokens_per_unit", "times_english", "unknown")
    )
