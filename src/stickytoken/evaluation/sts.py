"""Semantic textual similarity: pairs of sentences that people scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.errors import InputError
from stickytoken.sentences.tables import TABLE_SUFFIXES, read_table, text_column

_COLUMNS = ("sentence1", "sentence2", "score")
_LEAST_PAIRS = 3


@dataclass(frozen=True)
class StsTask:
    """Pairs with scores.

    Attributes:
        name: where they came from.
        first: one sentence of each pair.
        second: the other.
        scores: the higher the more alike, float64, shape (pairs,).
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)


def read_sts(path: Path) -> StsTask:
    """Read a csv, tsv, jsonl or parquet with the columns sentence1, sentence2 and score.

    Raises:
        InputError: the file cannot be read, a column is missing, a sentence or a score is none.
    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise InputError(f"{path}: tasks are read from {', '.join(TABLE_SUFFIXES)}")
    frame = read_table(path)
    if missing := [column for column in _COLUMNS if column not in frame.columns]:
        raise InputError(
            f"{path} lacks the column {missing[0]!r}: a task of similarity has {', '.join(_COLUMNS)}, "
            f"this has {', '.join(frame.columns) or 'none'}"
        )
    sides = [_sentences(text_column(frame, column, str(path)), path) for column in _COLUMNS[:2]]
    scores = _scores(frame["score"], path)
    if len(scores) < _LEAST_PAIRS:
        raise InputError(f"{path} has {len(scores)} pairs: a correlation needs at least {_LEAST_PAIRS}")
    if np.ptp(scores) == 0:
        raise InputError(f"all scores of {path} are {scores[0]}: a correlation needs different ones")
    return StsTask(str(path), sides[0], sides[1], scores)


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row with its partner over the last axis."""
    left, right = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    found: NDArray[np.float64] = (left * right).sum(axis=-1) / norms
    return found


def spearman(similarities: NDArray[np.float64], scores: NDArray[np.float64]) -> float | None:
    """Spearman correlation x 100, as SentEval reports it; None where all similarities are equal."""
    from scipy.stats import spearmanr

    if np.ptp(similarities) == 0:
        return None
    return float(100 * spearmanr(similarities, scores).statistic)


def _sentences(values: Sequence[str | None], path: Path) -> tuple[str, ...]:
    for row, value in enumerate(values, start=1):
        if value is None:
            raise InputError(f"{path}: pair {row} lacks a sentence")
    return tuple(str(value) for value in values)


def _scores(values: pl.Series, path: Path) -> NDArray[np.float64]:
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric():
        raise InputError(f"column 'score' of {path} holds {values.dtype}, not numbers")
    found = values.cast(pl.Float64, strict=False).to_list()
    for row, score in enumerate(found, start=1):
        if score is None or not np.isfinite(score):
            raise InputError(f"{path}: the score of pair {row} is no number")
    return np.array(found, dtype=np.float64)
