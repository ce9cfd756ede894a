"""Sentence pairs: sampled evenly by similarity, then chosen below the mean similarity.

Step 1 of the Sticky Token Detector (Chen et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.corpora.corpus import LONGEST_SENTENCE
from stickytoken.corpora.files import TABLE_SUFFIXES, read_table, text_column
from stickytoken.errors import InputError
from stickytoken.machine import digest
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import shown


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two sentences and their cosine similarity.

    Attributes:
        sentence1: The anchor, which is left unchanged.
        sentence2: The carrier, into which tokens are inserted.
        similarity: Cosine similarity of the two under the model.
    """

    sentence1: str
    sentence2: str
    similarity: float

    @property
    def sentences(self) -> tuple[str, str]:
        """The anchor and the carrier."""
        return self.sentence1, self.sentence2


def sample_pairs(sentences: Sequence[str], vectors: NDArray[np.floating], count: int) -> list[SentencePair]:
    """Sample pairs evenly over the range of all pairwise similarities.

    Each of ``count`` evenly spaced target similarities takes the nearest pair that no earlier target
    took. Of all n (n - 1) / 2 pairs only the similarities are held in memory.
    """
    if len(sentences) < 2:
        raise InputError(f"pairs need at least 2 sentences, got {len(sentences)}")
    units = unit_vectors(vectors)
    rows, columns = np.triu_indices(len(sentences), k=1)
    similarities = (units @ units.T).astype(np.float64)[rows, columns]
    order = np.argsort(similarities, kind="stable")
    ascending = similarities[order]
    chosen = nearest_free(ascending, np.linspace(ascending[0], ascending[-1], min(count, len(order))))
    return [
        SentencePair(sentences[rows[k]], sentences[columns[k]], float(similarities[k]))
        for k in order[sorted(chosen)]
    ]


def select_pairs(pairs: Sequence[SentencePair], mean_similarity: float, count: int) -> list[SentencePair]:
    """Choose pairs evenly over the lower 80% of the range below the mean similarity.

    Each of ``count`` evenly spaced targets in [min, min + 0.8 (u - min)] takes the nearest pair with a
    similarity below u. Where pairs are sparse, one is taken more than once, as in the published runs:
    the choice is even over similarity, not over pairs.
    """
    below = sorted(
        (pair for pair in pairs if pair.similarity < mean_similarity),
        key=lambda pair: (pair.similarity, *pair.sentences),
    )
    if not below:
        raise InputError(
            f"none of the {len(pairs)} sentence pairs has a similarity below the model's mean "
            f"{mean_similarity:.4f}: use sentences on more varied subjects"
        )
    ascending = np.array([pair.similarity for pair in below])
    low = ascending[0]
    targets = np.linspace(low, low + 0.8 * (mean_similarity - low), min(count, len(below)))
    return [below[int(np.abs(ascending - target).argmin())] for target in targets]


def nearest_free(ascending: NDArray[np.float64], targets: NDArray[np.float64]) -> list[int]:
    """Find, for each target in turn, the index of the nearest value that no earlier target took."""
    # Links that skip taken values, with path halving: near-constant time per step.
    size = len(ascending)
    before = np.arange(-1, size)  # before[k + 1]: the nearest free index <= k, or -1
    after = np.arange(size + 1)  # after[k]: the nearest free index >= k, or size

    def free_before(k: int) -> int:
        while (position := before[k + 1]) != k:
            before[k + 1] = before[position + 1]
            k = int(position)
        return k

    def free_after(k: int) -> int:
        while (position := after[k]) != k:
            after[k] = after[position]
            k = int(position)
        return k

    chosen: list[int] = []
    for target in targets:
        right = free_after(int(np.searchsorted(ascending, target)))
        left = free_before(min(right, size) - 1)
        if left < 0 and right >= size:
            raise InputError(f"{len(targets)} targets, but only {size} values to choose from")
        is_left = right >= size or (left >= 0 and target - ascending[left] <= ascending[right] - target)
        k = left if is_left else right
        before[k + 1] = k - 1
        after[k] = k + 1
        chosen.append(k)
    return chosen


def pairs_fingerprint(pairs: Sequence[SentencePair]) -> str:
    """Return the SHA-256 over pairs in order."""
    return digest([[pair.sentence1, pair.sentence2, pair.similarity] for pair in pairs])


_COLUMNS = ("sentence1", "sentence2", "similarity")
_LIMIT = 1.001


def pairs_from_file(path: Path) -> list[SentencePair]:
    """Read pairs from a table with the columns sentence1, sentence2 and similarity.

    Raises:
        InputError: The file cannot be read, a column is missing, a sentence is blank, or a similarity is
            not a cosine.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise InputError(f"{path}: pairs are read from {', '.join(TABLE_SUFFIXES)}")
    frame = read_table(path)
    missing = [column for column in _COLUMNS if column not in frame.columns]
    if missing:
        raise InputError(
            f"{path} lacks the column {missing[0]!r}: pairs need {', '.join(_COLUMNS)}, "
            f"it has {', '.join(frame.columns)}"
        )
    first = text_column(frame, "sentence1", str(path))
    second = text_column(frame, "sentence2", str(path))
    similarities = _numbers(frame["similarity"], path)
    pairs = [
        checked_pair(left, right, similarity, where=f"{path}: pair {row}")
        for row, (left, right, similarity) in enumerate(zip(first, second, similarities, strict=True), 1)
    ]
    if not pairs:
        raise InputError(f"{path} has no pairs")
    return pairs


def checked_pair(sentence1: object, sentence2: object, similarity: object, where: str) -> SentencePair:
    """Check the parts of a pair and put them together."""
    texts = []
    for sentence in (sentence1, sentence2):
        if not isinstance(sentence, str | None):
            raise InputError(f"{where} has {shown(sentence)} for a sentence: pass text")
        if not (sentence or "").strip():
            raise InputError(f"{where} has a blank sentence")
        if len(str(sentence)) > LONGEST_SENTENCE:
            raise InputError(f"{where} has a sentence longer than {LONGEST_SENTENCE:,} characters")
        texts.append(str(sentence))
    # Rounded similarities of equal sentences may lie a little above 1.
    if not isinstance(similarity, (int, float, np.number)) or not -_LIMIT <= float(similarity) <= _LIMIT:
        raise InputError(f"{where} has the similarity {shown(similarity)}: it must be between -1 and 1")
    return SentencePair(texts[0], texts[1], float(similarity))


def _numbers(values: pl.Series, path: Path) -> list[float | None]:
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric() and values.dtype != pl.Null:
        raise InputError(f"column 'similarity' of {path} contains {values.dtype}, not numbers")
    return values.cast(pl.Float64, strict=False).to_list()
