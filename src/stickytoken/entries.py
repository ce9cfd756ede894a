"""What tokenizer and weights say of a vocabulary before a text is encoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    static_rows,
    stored_tensors,
)
from stickytoken.errors import ModelError
from stickytoken.token_vectors import UNUSUAL_DEVIATION, robust_deviations, vector_deviations_of
from stickytoken.vocabulary import Category, RoundTripTokenizer, Vocabulary

__all__ = ["EntryWeights", "entry_weights", "fertility", "script_shares"]

# With fewer ordinary entries, what is ordinary cannot be estimated.
_LEAST_ORDINARY = 200
# An entry is no farther from the untrained rows than all but this share of them are from their own mean.
_UNTRAINED_QUANTILE = 0.95
# Rows that are copied out of the file at a time.
_ROWS = 8192
_INPUT_NAMES = ("word_embeddings", "embed_tokens", "wte", "shared", "tok_embeddings", "embed")
_OUTPUT_NAMES = ("lm_head", "embed_out", "predictions.decoder", "output")


# What is measured of each entry; null where it cannot be.
_COLUMNS = {
    "norm": pl.Float64,
    "distance": pl.Float64,
    "cosine_distance": pl.Float64,
    "vector_deviation": pl.Float64,
    "under_trained": pl.Boolean,
}


@dataclass(frozen=True)
class EntryWeights:
    """Indicators of every row of a model's embedding matrix, computed from its weight file alone.

    Attributes:
        tensor: name of the embedding matrix in the file.
        output: name of a separate output matrix, whose rows give the cosine distance; None if the file has
            none, because it is tied to the embedding matrix or was not kept.
        dtype: precision of the stored rows, such as ``F32``.
        dimensions: length of a row.
        untrained: rows that cannot have been trained: reserved entries and rows beyond the vocabulary. If
            there are none, distances and verdicts are null.
        tokens: one row per vocabulary entry: token_id, token, decoded, category; norm (Euclidean length);
            distance (Euclidean, to the mean of the untrained rows); cosine_distance (to the same mean, after
            the first principal component is removed, in the output matrix where there is one);
            vector_deviation (how unusual the row is, see `stickytoken.token_vectors`; null for entries that
            text cannot produce); under_trained.
    """

    tensor: str
    output: str | None
    dtype: str
    dimensions: int
    untrained: tuple[int, ...]
    tokens: pl.DataFrame

    @property
    def judged(self) -> bool:
        """Whether untrained rows and enough ordinary ones were there to judge entries by."""
        return self.tokens["under_trained"].null_count() == 0

    @property
    def reachable(self) -> pl.DataFrame:
        """The under-trained rows of ``tokens`` that text can produce, nearest to the untrained rows first."""
        available = [category.value for category in Category if category.available]
        return self.tokens.filter("under_trained", pl.col("category").is_in(available)).sort(
            "distance", "token_id"
        )


def entry_weights(model: str | Path, vocabulary: Vocabulary, *, revision: str | None = None) -> EntryWeights:
    """Compute the indicators of under-trained entries from a model's weights; nothing is encoded.

    The indicators are those of Land and Bartolo, "Fishing for Magikarp" (EMNLP 2024), sections 3.2 and 3.3:
    rows that training has hardly moved lie near the mean of rows that it cannot have moved. An entry is
    called under-trained if it lies as near as those rows themselves, and nearer than ordinary entries by at
    least six median absolute deviations of the logarithm of the distance. Ordinary are the entries that text
    can produce.

    Args:
        model: folder or name of a model whose weights are ``*.safetensors`` files, whole or in shards.
        vocabulary: the categories of its entries; see `stickytoken.analyze_vocabulary`.
        revision: branch, tag or commit on the hub.

    Raises:
        ModelError: There are no such files, one is missing or damaged, or none has a floating-point matrix
            with a row for every entry.
        InputError: A revision is given for a folder.
    """
    rows, output = _matrices(str(model), revision, vocabulary.ids[-1] + 1)
    mark = vocabularies.word_mark(vocabulary.tokens)
    facts = zip(vocabulary.ids, vocabulary.tokens, vocabulary.decoded, vocabulary.categories, strict=True)
    trained = np.zeros(len(rows), bool)
    trained[ids := np.array(vocabulary.ids)] = True
    for k, token, text, category in facts:
        if token[:1] in ("[", "<"):
            trained[k] = vocabularies.kind_of(token, text, category, mark) is not vocabularies.Kind.UNUSED
    untrained = np.flatnonzero(~trained)
    squares, covariance = rows.moments(products=len(untrained) > 0 and output is None)
    norms = np.sqrt(squares)
    if not np.isfinite(norms).all():
        row = int(np.flatnonzero(~np.isfinite(norms))[0])
        raise ModelError(f"row {row} of {rows.name} in {str(model)!r} is not finite: the weights are damaged")
    is_available = np.array([category.available for category in vocabulary.categories])
    columns: dict[str, Any] = {"norm": norms[ids]}
    if len(untrained):
        distances, cosines = _distances(rows, untrained, squares, covariance)
        if output is not None:
            cosines = _distances(output, untrained, *output.moments())[1]
        columns["distance"] = distances[ids]
        columns["cosine_distance"] = cosines[ids]
        columns["under_trained"] = _under_trained(distances[ids], is_available, distances[untrained])
    of_available = _deviations(rows, ids[is_available])
    if of_available is not None:
        deviations = np.full(len(ids), np.nan)
        deviations[is_available] = of_available
        columns["vector_deviation"] = deviations
    measured = []
    for name, dtype in _COLUMNS.items():
        values = columns.get(name)
        series = pl.Series(name, [None] * len(ids) if values is None else values, dtype=dtype)
        measured.append(series.fill_nan(None) if dtype == pl.Float64 else series)
    frame = vocabulary.frame().hstack(measured)
    named = output.name if output else None
    return EntryWeights(rows.name, named, rows.dtype, rows.shape[1], tuple(untrained.tolist()), frame)


def _under_trained(
    distances: NDArray[np.float64], ordinary: NDArray[np.bool_], of_untrained: NDArray[np.float64]
) -> NDArray[np.bool_] | None:
    """Say which entries lie as near to the untrained rows as those do, and far nearer than ordinary ones.

    Returns:
        None if there are too few ordinary entries, or if their distances do not differ.
    """
    nearness = -np.log(np.maximum(distances, np.finfo(np.float64).tiny))
    if ordinary.sum() < _LEAST_ORDINARY:
        return None
    deviations = robust_deviations(nearness, reference=nearness[ordinary])
    if deviations is None:
        return None
    is_near = distances <= np.quantile(of_untrained, _UNTRAINED_QUANTILE)
    is_unlike_ordinary = deviations >= UNUSUAL_DEVIATION
    under_trained: NDArray[np.bool_] = is_near & is_unlike_ordinary
    return under_trained


def _deviations(rows: _Matrix, available: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Measure how unusual the rows of the available entries are, reading the file block by block."""

    def blocks() -> Iterator[NDArray[np.float64]]:
        for place, part in rows.parts():
            first, last = np.searchsorted(available, (place.start, place.stop))
            yield part[available[first:last] - place.start]

    return vector_deviations_of(blocks, len(available), rows.shape[1])


def _distances(
    matrix: _Matrix,
    untrained: NDArray[np.int64],
    squares: NDArray[np.float64],
    covariance: NDArray[np.float64] | None,
) -> tuple[NDArray[np.float64], Any]:
    """Distances to the mean untrained row, and cosine ones without the first component of a covariance."""
    centre = matrix.mean(untrained)
    directions = left = np.zeros((len(centre), 0))
    if covariance is not None:
        component = np.linalg.eigh(covariance)[1][:, -1]
        left = centre - (centre @ component) * component
        directions = np.stack([component, left], axis=1)
    distances, products = np.empty(len(matrix)), np.empty((len(matrix), directions.shape[1]))
    for place, part in matrix.parts():
        products[place] = part @ directions
        apart = part - centre
        distances[place] = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    if covariance is None:
        return distances, None
    # What is left of a row is orthogonal to the component.
    lengths = np.sqrt(np.maximum(squares - products[:, 0] ** 2, 0.0)) * np.linalg.norm(left)
    # A row of zeros has no direction.
    similarities = np.divide(products[:, 1], lengths, out=np.zeros(len(matrix)), where=lengths > 0)
    return distances, 1 - similarities


# It is read, not mapped, so that memory stays small, and without torch.
class _Matrix:
    def __init__(self, rows: TokenRows) -> None:
        self.name = rows.matrix.name
        self.dtype = rows.dtype
        self.shape = (len(rows), rows.width)
        self._rows = rows

    def __len__(self) -> int:
        return self.shape[0]

    def parts(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        for start in range(0, len(self), _ROWS):
            part = self._read(start)
            yield slice(start, start + len(part)), part

    def _read(self, start: int) -> NDArray[np.float64]:
        return self._rows.read(start, min(start + _ROWS, len(self))).astype(np.float64)

    def moments(self, *, products: bool = True) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        squares = np.empty(len(self))
        total, squared = np.zeros(self.shape[1]), np.zeros((self.shape[1], self.shape[1]))
        for place, part in self.parts():
            squares[place] = np.einsum("ij,ij->i", part, part)
            if products:
                total += part.sum(axis=0)
                squared += part.T @ part
        return squares, squared - np.outer(total, total) / len(self) if products else None

    def mean(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        # Places ascend.
        total = np.zeros(self.shape[1])
        blocks = np.split(places, np.searchsorted(places, np.arange(_ROWS, len(self), _ROWS)))
        for start, block in zip(range(0, len(self), _ROWS), blocks, strict=True):
            if len(block):
                total += self._read(start)[block - start].sum(axis=0)
        return total / len(places)


def _matrices(model: str, revision: str | None, entries: int) -> tuple[_Matrix, _Matrix | None]:
    wide: list[_Matrix] = []
    quantized = ""
    for path in _weight_files(model, revision):
        tensors = stored_tensors(path)
        folded = static_rows(tensors)
        for tensor in tensors:
            rows = TokenRows(tensor)
            if folded is not None and tensor == folded.matrix:
                rows = folded
            if rows.dtype in FLOATING_TYPES:
                if len(tensor.shape) == 2 and len(rows) >= entries:
                    wide.append(_Matrix(rows))
            elif any(part in tensor.name for part in _INPUT_NAMES[:-1]):
                quantized = f": {tensor.name} is quantized ({tensor.dtype})"
    inputs = [each for part in _INPUT_NAMES for each in wide if part in each.name]
    if not inputs:
        raise ModelError(
            f"the weights of {model!r} have no floating-point embedding matrix with {entries:,} rows"
            f"{quantized}: use the original weights and their own tokenizer"
        )
    alike = [each for each in wide if each.shape == inputs[0].shape]
    outputs = [each for each in alike if any(part in each.name for part in _OUTPUT_NAMES)]
    return inputs[0], outputs[-1] if outputs else None


def _weight_files(model: str, revision: str | None) -> list[Path]:
    source = resolve_model(model, revision)
    folder = Path(source.location)
    if source.origin is Origin.HUB:
        with explained(source, "model"):
            folder = _downloaded(source.name, revision)
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    for place in places:
        found = sorted(place.glob("*.safetensors"))
        for index in place.glob("*.safetensors.index.json"):
            try:
                listed = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelError(f"{index} is no index of shards: {error!r}") from error
            if missing := sorted(listed - {path.name for path in found}):
                raise ModelError(
                    f"{model!r} is incomplete: {index.name} names {missing[0]}, which is missing"
                )
        if found:
            return found
    raise ModelError(f"{model!r} has no *.safetensors file: save its weights in that format")


def _downloaded(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    *preferred, last = hub_repositories(name)
    wanted = ["*.safetensors", "*.safetensors.index.json"]
    for repository in preferred:
        with suppress(RepositoryNotFoundError):
            return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
    return Path(snapshot_download(last, revision=revision, allow_patterns=wanted))


def script_shares(vocabulary: Vocabulary) -> pl.DataFrame:
    """Count the entries that text can produce by the script of most of their letters.

    Returns:
        One row per script, most entries first: script (``none`` without letters), entries, share.
    """
    entries = zip(vocabulary.decoded, vocabulary.categories, strict=True)
    scripts = [vocabularies.script_of(text) for text, category in entries if category.available]
    counted = pl.Series("script", scripts, pl.String).value_counts(name="entries")
    share = pl.col("entries") / max(1, len(scripts))
    return counted.with_columns(share.alias("share")).sort("entries", "script", descending=[True, False])


def fertility(tokenizer: RoundTripTokenizer) -> pl.DataFrame:
    """Count the tokens that a tokenizer needs for the same twenty plain sentences in ten languages.

    A language with many tokens per word (fertility; Rust et al., "How Good is Your Tokenizer?", ACL 2021) is
    split into small pieces: the entries for it are few and short. The ratio to English compares whole
    sentences of the same meaning (the premium of Petrov et al., "Language Model Tokenizers Introduce
    Unfairness Between Languages", NeurIPS 2023), and so includes languages without spaces.

    Returns:
        One row per language: language, unit (``word``, or ``character`` for languages without spaces), units,
        tokens, tokens_per_unit, times_english, and unknown: how many of the tokens stand for text that the
        vocabulary cannot spell, and how many characters the tokenizer drops.
    """
    content = files("stickytoken.data").joinpath("bundled/languages.csv").read_bytes()
    sentences = pl.read_csv(content, schema={"language": pl.String, "sentence": pl.String})
    texts = sentences["sentence"].to_list()
    encoded = tokenizer.encode_many(texts)
    lengths = pl.Series([len(ids) for ids in encoded], dtype=pl.Int64)
    unknown_tokens = [sum(token_id in tokenizer.special_ids for token_id in ids) for ids in encoded]
    dropped = [0] * len(texts)
    if isinstance(tokenizer, SpanTokenizer):
        dropped = [
            0 if spans is None else int(unread_characters(text, ids, spans, None))
            for text, (ids, spans) in zip(texts, tokenizer.encode_with_spans(texts), strict=True)
        ]
    unknown = pl.Series(unknown_tokens, dtype=pl.Int64) + pl.Series(dropped, dtype=pl.Int64)
    unspaced = pl.col("language").is_in(("Chinese", "Japanese"))  # counted per character
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
