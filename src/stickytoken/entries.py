"""What tokenizer and weights say of a vocabulary before a text is encoded."""

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
import safetensors
from numpy.typing import NDArray

from stickytoken import vocabulary as vocabularies
from stickytoken.encoders.loading.resolution import Origin, explained, hub_repositories, resolve_model
from stickytoken.errors import ModelError
from stickytoken.methods.statistics import Estimates, Null, q_values
from stickytoken.vocabulary import Category, RoundTripTokenizer, Vocabulary

__all__ = ["EntryWeights", "entry_weights", "fertility", "script_shares"]

_FALSE_DISCOVERIES = 0.05
# With fewer ordinary entries, what is ordinary cannot be estimated.
_LEAST_ORDINARY = 200
# An entry is no farther from the untrained rows than all but this share of them are from their own mean.
_UNTRAINED_QUANTILE = 0.95
# Rows that are copied out of the file at a time.
_ROWS = 8192
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_INPUT_NAMES = ("word_embeddings", "embed_tokens", "wte", "shared", "tok_embeddings", "embed")
_OUTPUT_NAMES = ("lm_head", "embed_out", "predictions.decoder", "output")


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
            there are none, distances, q values and verdicts are null.
        tokens: one row per vocabulary entry: token_id, token, decoded, category; norm (Euclidean length);
            distance (Euclidean, to the mean of the untrained rows); cosine_distance (to the same mean, after
            the first principal component is removed, in the output matrix where there is one); q_value;
            under_trained.
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
    called under-trained if ordinary entries hardly ever lie so near, with false discoveries controlled over
    the vocabulary, and if it lies as near as those rows themselves. The ordinary distribution is estimated
    from the logarithms of the distances of entries that text can produce (Efron 2004).

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
    columns: dict[str, Any] = {"norm": norms[ids]} | dict.fromkeys(
        ("distance", "cosine_distance", "q_value", "under_trained")
    )
    if len(untrained):
        distances, cosines = _distances(rows, untrained, squares, covariance)
        if output is not None:
            cosines = _distances(output, untrained, *output.moments())[1]
        columns |= {"distance": distances[ids], "cosine_distance": cosines[ids]}
        ordinary = np.array([category.available for category in vocabulary.categories])
        columns |= _under_trained(distances[ids], ordinary, distances[untrained])
    types = dict.fromkeys(("norm", "distance", "cosine_distance", "q_value"), pl.Float64)
    frame = vocabulary.frame().hstack(
        pl.DataFrame(
            {
                name: pl.repeat(None, len(ids), eager=True) if column is None else column
                for name, column in columns.items()
            },
            schema_overrides=types | {"under_trained": pl.Boolean},
        )
    )
    named = output.name if output else None
    return EntryWeights(rows.name, named, rows.dtype, rows.shape[1], tuple(untrained.tolist()), frame)


def _under_trained(
    distances: NDArray[np.float64], ordinary: NDArray[np.bool_], of_untrained: NDArray[np.float64]
) -> dict[str, Any]:
    nearness = -np.log(np.maximum(distances, np.finfo(np.float64).tiny))
    if ordinary.sum() < _LEAST_ORDINARY or not nearness[ordinary].std() > 0:
        return {}
    null = Null.fit(nearness[ordinary], 0.0)
    if null.spread == 0:
        return {}
    exact = Estimates(nearness, np.zeros_like(nearness), nearness, nearness)
    found = q_values(null.exceedance(exact), len(distances))
    near = distances <= np.quantile(of_untrained, _UNTRAINED_QUANTILE)
    return {"q_value": found, "under_trained": (found <= _FALSE_DISCOVERIES) & near}


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


# It is read, not mapped, so that memory stays small, and without torch, which BF16 would need elsewhere.
class _Matrix:
    def __init__(self, path: Path, name: str, dtype: str, shape: Sequence[int], offset: int) -> None:
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self._path, self._offset = path, offset

    def __len__(self) -> int:
        return self.shape[0]

    def parts(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        for start in range(0, len(self), _ROWS):
            part = self._read(start)
            yield slice(start, start + len(part)), part

    def _read(self, start: int) -> NDArray[np.float64]:
        stored, width = np.dtype(_STORED[self.dtype]), self.shape[1]
        count = min(_ROWS, len(self) - start) * width
        numbers = np.fromfile(
            self._path, stored, count, offset=self._offset + start * width * stored.itemsize
        )
        if self.dtype == "BF16":  # the upper half of a float32
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        return numbers.reshape(-1, width).astype(np.float64)

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
        try:
            with safetensors.safe_open(path, framework="np"), path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
        except (OSError, safetensors.SafetensorError) as error:
            raise ModelError(f"{path} is no readable safetensors file: {error}") from error
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            dtype, shape = tensor["dtype"], tensor["shape"]
            if dtype in _STORED:
                if len(shape) == 2 and shape[0] >= entries:
                    wide.append(_Matrix(path, name, dtype, shape, 8 + size + tensor["data_offsets"][0]))
            elif any(part in name for part in _INPUT_NAMES[:-1]):
                quantized = f": {name} is quantized ({dtype})"
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
        vocabulary cannot spell.
    """
    content = files("stickytoken.data").joinpath("bundled/languages.csv").read_bytes()
    sentences = pl.read_csv(content, schema={"language": pl.String, "sentence": pl.String})
    encoded = tokenizer.encode_many(sentences["sentence"].to_list())
    lengths = pl.Series([len(ids) for ids in encoded], dtype=pl.Int64)
    unknown = pl.Series([sum(k in tokenizer.special_ids for k in ids) for ids in encoded], dtype=pl.Int64)
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
