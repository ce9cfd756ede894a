"""Load tasks from files and the packaged one; the layout determines the kind of task."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.corpora import text_kinds
from stickytoken.corpora.files import TABLE_SUFFIXES, read_table, text_column
from stickytoken.errors import InputError
from stickytoken.insertion import Side
from stickytoken.tasks.metrics import (
    ClassificationTask,
    ClusteringTask,
    Outcomes,
    RerankingTask,
    RetrievalTask,
    Task,
    distinct,
    fingerprint,
)
from stickytoken.unit_vectors import exact_unit_vectors


def filled_texts(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Read texts of a column."""
    values = frame[column]
    if values.dtype != pl.String:
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not text")
    for row, text in enumerate(values.to_list(), start=1):
        if not (text or "").strip():
            raise InputError(
                f"{path}: {column} in row {row} is missing or blank: fill it in or remove the row"
            )
    return tuple(values.to_list())


def numbers(frame: pl.DataFrame, column: str, path: Path) -> tuple[float, ...]:
    """Read finite numbers of a column."""
    values = frame[column]
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric() and values.dtype != pl.Boolean:
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not numbers")
    found = values.cast(pl.Float64, strict=False).to_list()
    for row, number in enumerate(found, start=1):
        if number is None or not math.isfinite(number):
            raise InputError(
                f"{path}: {column} in row {row} is {values[row - 1]!r}, not a finite number: "
                "correct or remove the row"
            )
    return tuple(found)


def labels(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Read labels of a column as text."""
    values = frame[column]
    if not (values.dtype == pl.String or values.dtype.is_integer() or values.dtype == pl.Boolean):
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not labels")
    found = values.cast(pl.String).to_list()
    for row, label in enumerate(found, start=1):
        if label is None or not label.strip():
            raise InputError(f"{path}: {column} in row {row} is missing: fill it in or remove the row")
    return tuple(found)


def text_lists(frame: pl.DataFrame, column: str, path: Path) -> list[tuple[str, ...]]:
    """Read lists of texts of a column, with at least one text each."""
    values = frame[column]
    if values.dtype != pl.List(pl.String):
        raise InputError(f"column {column!r} of {path} contains {values.dtype}, not lists of texts")
    found = [tuple(texts or ()) for texts in values.to_list()]
    for row, texts in enumerate(found, start=1):
        if not texts or not all((text or "").strip() for text in texts):
            raise InputError(f"{path}: {column} in row {row} is empty or has a blank text")
    return found


def ids(frame: pl.DataFrame, column: str, path: Path) -> tuple[str, ...]:
    """Read distinct ids of a column as text."""
    found = labels(frame, column, path)
    seen: set[str] = set()
    for row, each in enumerate(found, start=1):
        if each in seen:
            raise InputError(f"{path}: {column} {each!r} in row {row} is a duplicate: ids must be distinct")
        seen.add(each)
    return found


def require_columns(frame: pl.DataFrame, columns: tuple[str, ...], path: Path) -> None:
    """Check that a table has columns."""
    for column in columns:
        if column not in frame.columns:
            raise InputError(f"{path} has no column {column!r}: it has {', '.join(frame.columns) or 'none'}")


@dataclass(frozen=True)
class _Pairs:
    """Sentence pairs with a number each."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: tuple[float, ...]

    layout: ClassVar[str]
    unit = "pairs"
    columns = ("similarity",)

    @property
    def units(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the pairs."""
        return fingerprint(self.layout, self.first, self.second, self.gold)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Distinct sentences of each side."""
        return {"query": self._queries[0], "document": self._documents[0]}

    def edited(self, side: Side) -> frozenset[str]:
        """Return the chosen side, or both."""
        return side.roles

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the cosine of each pair."""
        del seed
        queries, documents = exact_unit_vectors(vectors["query"]), exact_unit_vectors(vectors["document"])
        left, right = queries[self._queries[1]], documents[self._documents[1]]
        cosines: Outcomes = (left * right).sum(axis=1, keepdims=True)
        return cosines

    @cached_property
    def _queries(self) -> tuple[tuple[str, ...], NDArray[np.intp]]:
        return distinct(self.first)

    @cached_property
    def _documents(self) -> tuple[tuple[str, ...], NDArray[np.intp]]:
        return distinct(self.second)

    @cached_property
    def _gold(self) -> NDArray[np.float64]:
        return np.array(self.gold, dtype=np.float64)


class SimilarityTask(_Pairs):
    """STS: correlation of cosines with human similarity scores."""

    layout = "sts"
    metrics = ("spearman", "pearson")

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute Spearman's or Pearson's correlation; NaN if one side is constant."""
        from scipy.stats import rankdata

        rows = np.vstack([self._gold, outcomes[:, :, 0]])
        if sample is not None:
            rows = rows[:, sample]
        if metric == "spearman":
            rows = rankdata(rows, axis=1)
        centered = rows - rows.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(centered, axis=1)
        scale = norms[0] * norms[1:]
        flat = scale <= np.finfo(np.float64).eps * max(1, rows.shape[1])
        return np.where(flat, np.nan, centered[1:] @ centered[0] / np.where(flat, 1, scale))


class PairClassificationTask(_Pairs):
    """Pairs that match or not: average precision of the cosine."""

    layout = "pair-classification"
    metrics = ("average_precision",)

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute the average precision; NaN if no pair or every pair matches."""
        del metric
        from sklearn.metrics import average_precision_score

        gold, cosines = self._gold, outcomes[:, :, 0]
        if sample is not None:
            gold, cosines = gold[sample], cosines[:, sample]
        if not 0 < gold.sum() < len(gold):
            return np.full(len(cosines), np.nan)
        return np.array([average_precision_score(gold, row) for row in cosines])


CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
_PREFERRED = "test"


def read_beir(folder: Path) -> tuple[RetrievalTask, list[str]]:
    """Read corpus.jsonl (_id, title, text), queries.jsonl (_id, text) and qrels/test.tsv."""
    documents = read_documents(folder / CORPUS)
    queries = read_queries(folder / QUERIES)
    path = _qrels_file(folder / QRELS)
    relevant = _read_qrels(path, documents, queries)
    judged = {query: text for query, text in queries.items() if query in relevant}
    if not judged:
        raise InputError(f"{path}: no query has a relevant document: add judgements with a positive score")
    notes = []
    if left_out := len(queries) - len(judged):
        notes.append(
            f"{folder.name}: {left_out} of {len(queries)} queries have no relevant document and are left out"
        )
    return RetrievalTask(
        folder.resolve().name, judged, documents, {query: relevant[query] for query in judged}
    ), notes


def read_documents(path: Path) -> dict[str, str]:
    """Read documents by id: title and text, joined by a space."""
    frame = read_table(path)
    require_columns(frame, ("_id", "text"), path)
    texts = text_column(frame, "text", str(path))
    titles = text_column(frame, "title", str(path)) if _has_titles(frame) else [None] * len(frame)
    joined = [f"{title or ''} {text or ''}".strip() for title, text in zip(titles, texts, strict=True)]
    return dict(zip(ids(frame, "_id", path), joined, strict=True))


def _has_titles(frame: pl.DataFrame) -> bool:
    return "title" in frame.columns and frame["title"].dtype == pl.String


def read_queries(path: Path) -> dict[str, str]:
    """Read queries by id."""
    frame = read_table(path)
    require_columns(frame, ("_id", "text"), path)
    texts = text_column(frame, "text", str(path))
    found = dict(zip(ids(frame, "_id", path), texts, strict=True))
    for query, text in found.items():
        if not (text or "").strip():
            raise InputError(f"{path}: the query {query!r} is blank: fill it in or leave it out")
    return {query: str(text).strip() for query, text in found.items()}


def _qrels_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.tsv")) if folder.is_dir() else []
    preferred = [path for path in files if path.stem == _PREFERRED]
    chosen = preferred or files
    if len(chosen) == 1:
        return chosen[0]
    found = ", ".join(path.name for path in files) or "none"
    raise InputError(f"{folder} must contain {_PREFERRED}.tsv, or a single .tsv file: it contains {found}")


def _read_qrels(path: Path, documents: dict[str, str], queries: dict[str, str]) -> dict[str, dict[str, int]]:
    frame = read_table(path)
    columns = ("query-id", "corpus-id", "score")
    require_columns(frame, columns, path)
    relevance = numbers(frame, "score", path)
    found: dict[str, dict[str, int]] = defaultdict(dict)
    rows = zip(labels(frame, columns[0], path), labels(frame, columns[1], path), relevance, strict=True)
    for row, (query, document, score) in enumerate(rows, start=1):
        for name, known, file in ((query, queries, QUERIES), (document, documents, CORPUS)):
            if name not in known:
                raise InputError(
                    f"{path}: id {name!r} in row {row} is not in {file}: correct one of the two files"
                )
        if score != int(score):
            raise InputError(f"{path}: the score in row {row} is {score}, not a whole number")
        if document in found[query]:
            raise InputError(
                f"{path}: row {row} judges document {document!r} for query {query!r} again: remove it"
            )
        found[query][document] = int(score)
    return {query: judged for query, judged in found.items() if any(score > 0 for score in judged.values())}


LAYOUTS = (
    "STS: sentence1, sentence2, score",
    "pair classification: sentence1, sentence2, label (0 or 1)",
    "reranking: query, positive, negative (lists of texts)",
    "classification: text, label, split (train or test); or a folder with a train and a test file",
    "clustering: text, label",
    "retrieval: a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, as in BEIR",
)
PACKAGED_TASK = "kinds of text"
_LEAST_PAIRS = 3
_SPLITS = ("train", "test", "dev", "validation")


def load_task(path: Path) -> tuple[Task, list[str]]:
    """Read a task from a csv, tsv, jsonl or parquet file, or from a folder.

    Returns:
        The task, and notes on what was left out.

    Raises:
        InputError: the layout is unknown, or the content cannot be used.
    """
    if path.is_dir():
        return _from_folder(path)
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise InputError(f"{path}: a task is a folder or a {', '.join(TABLE_SUFFIXES)} file. {_known()}")
    frame = read_table(path)
    for columns, build in _BUILDERS:
        if set(columns) <= set(frame.columns):
            if frame.is_empty():
                raise InputError(f"{path} has no rows")
            return build(frame, path), []
    found = ", ".join(frame.columns) or "(none)"
    raise InputError(f"{path} has an unknown layout, with columns {found}. {_known()}")


def task_name(path: Path) -> str:
    """Return the name of the file or folder; a file such as test.csv is prefixed with its folder."""
    if path.stem in _SPLITS:
        return f"{path.resolve().parent.name}-{path.stem}"
    return path.resolve().stem


def _known() -> str:
    return f"Known layouts: {'; '.join(LAYOUTS)}"


def _from_folder(folder: Path) -> tuple[Task, list[str]]:
    if (folder / CORPUS).is_file() and (folder / QUERIES).is_file():
        return read_beir(folder)
    splits = {name: _split_file(folder, name) for name in ("train", "test")}
    train, test = splits["train"], splits["test"]
    if train is None or test is None:
        raise InputError(f"the folder {folder} has an unknown layout. {_known()}")
    return _classification(_texts_and_labels(train), _texts_and_labels(test), folder), []


def _split_file(folder: Path, name: str) -> Path | None:
    found = [folder / f"{name}{suffix}" for suffix in TABLE_SUFFIXES]
    return next((path for path in found if path.is_file()), None)


def _texts_and_labels(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    frame = read_table(path)
    require_columns(frame, ("text", "label"), path)
    return filled_texts(frame, "text", path), labels(frame, "label", path)


def _similarity(frame: pl.DataFrame, path: Path) -> Task:
    gold = numbers(frame, "score", path)
    first, second = filled_texts(frame, "sentence1", path), filled_texts(frame, "sentence2", path)
    if len(gold) < _LEAST_PAIRS or len(set(gold)) == 1:
        raise InputError(f"{path}: a correlation needs at least {_LEAST_PAIRS} pairs, and scores that differ")
    return SimilarityTask(task_name(path), first, second, gold)


def _pair_classification(frame: pl.DataFrame, path: Path) -> Task:
    gold = numbers(frame, "label", path)
    first, second = filled_texts(frame, "sentence1", path), filled_texts(frame, "sentence2", path)
    if set(gold) != {0.0, 1.0}:
        raise InputError(f"{path}: labels of pairs must be 0 or 1, and both must occur")
    return PairClassificationTask(task_name(path), first, second, gold)


def _reranking(frame: pl.DataFrame, path: Path) -> Task:
    queries = filled_texts(frame, "query", path)
    positive, negative = text_lists(frame, "positive", path), text_lists(frame, "negative", path)
    documents: dict[str, str] = {}
    candidates: dict[str, tuple[str, ...]] = {}
    relevant: dict[str, dict[str, int]] = {}
    ids: dict[str, str] = {}
    for row, (good, bad) in enumerate(zip(positive, negative, strict=True)):
        if common := set(good) & set(bad):
            raise InputError(
                f"{path}: row {row + 1} has {min(common)[:80]!r} among both positives and negatives"
            )
        for text in (*good, *bad):
            documents.setdefault(ids.setdefault(text, f"d{len(ids)}"), text)
        query = f"q{row}"
        candidates[query] = tuple(dict.fromkeys(ids[text] for text in (*good, *bad)))
        relevant[query] = {ids[text]: 1 for text in good}
    names = {f"q{row}": text for row, text in enumerate(queries)}
    return RerankingTask(task_name(path), names, documents, relevant, candidates)


def _classification_in_one(frame: pl.DataFrame, path: Path) -> Task:
    splits = labels(frame, "split", path)
    if unknown := sorted(set(splits) - set(_SPLITS)):
        raise InputError(f"{path}: split {unknown[0]!r} is unknown: use train and test")
    parts = {name: frame.filter(pl.Series(splits) == name) for name in ("train", "test")}
    for name, part in parts.items():
        if part.is_empty():
            raise InputError(f"{path} has no rows of the split {name!r}")
    train, test = ((filled_texts(part, "text", path), labels(part, "label", path)) for part in parts.values())
    return _classification(train, test, path)


def _classification(
    train: tuple[tuple[str, ...], tuple[str, ...]], test: tuple[tuple[str, ...], tuple[str, ...]], path: Path
) -> Task:
    counts = Counter(train[1])
    for label in sorted({*train[1], *test[1]}):
        if counts[label] < 2:
            problem = "occurs only once in" if counts[label] else "is missing from"
            raise InputError(
                f"{path}: the label {label!r} {problem} the training texts: "
                "remove its texts, or merge it with another label"
            )
    if len(counts) < 2:
        raise InputError(f"{path}: all texts have the label {train[1][0]!r}: at least two labels are needed")
    return ClassificationTask(task_name(path), *train, *test)


def _clustering(frame: pl.DataFrame, path: Path) -> Task:
    texts, groups = filled_texts(frame, "text", path), labels(frame, "label", path)
    counts = Counter(groups)
    if len(counts) < 2:
        raise InputError(f"{path}: all texts have the label {groups[0]!r}: at least two labels are needed")
    for label, count in counts.items():
        if count < 2:
            raise InputError(
                f"{path}: the label {label!r} occurs only once: "
                "remove the text, or merge the label with another"
            )
    return ClusteringTask(task_name(path), texts, groups)


_BUILDERS: tuple[tuple[tuple[str, ...], Callable[[pl.DataFrame, Path], Task]], ...] = (
    (("sentence1", "sentence2", "score"), _similarity),
    (("sentence1", "sentence2", "label"), _pair_classification),
    (("query", "positive", "negative"), _reranking),
    (("text", "label", "split"), _classification_in_one),
    (("text", "label"), _clustering),
)


def kinds_task() -> ClassificationTask:
    """Return a classification of the bundled texts of ten kinds; every second text trains the classifier."""
    corpus = text_kinds()
    seen: dict[str, int] = {}
    splits: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for text, kind in zip(corpus.texts, corpus.topics or (), strict=True):
        place = seen[kind] = seen.get(kind, -1) + 1
        splits[place % 2].append((text, kind))
    (train, train_kinds), (test, test_kinds) = (zip(*split, strict=True) for split in splits)
    return ClassificationTask(PACKAGED_TASK, train, train_kinds, test, test_kinds)
