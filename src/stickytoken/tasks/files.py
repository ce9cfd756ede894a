"""Load tasks from files and the packaged one; the layout determines the kind of task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl

from stickytoken.corpora import text_kinds
from stickytoken.corpora.tables import TABLE_SUFFIXES, read_table
from stickytoken.errors import InputError
from stickytoken.tasks._columns import filled_texts, labels, numbers, require_columns, text_lists
from stickytoken.tasks._labels import ClassificationTask, ClusteringTask
from stickytoken.tasks._ranking import RerankingTask
from stickytoken.tasks.beir import CORPUS, QUERIES, read_beir
from stickytoken.tasks.pairs import PairClassificationTask, SimilarityTask
from stickytoken.tasks.protocol import Task

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
