"""Read a retrieval task from a folder in BEIR layout: corpus, queries, qrels."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import polars as pl

from stickytoken.corpora.tables import read_table, text_column
from stickytoken.errors import InputError
from stickytoken.tasks._columns import ids, labels, numbers, require_columns
from stickytoken.tasks._ranking import RetrievalTask

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
_PREFERRED = "test"


def read_beir(folder: Path) -> tuple[RetrievalTask, list[str]]:
    """Read corpus.jsonl (_id, title, text), queries.jsonl (_id, text) and qrels/test.tsv.

    Returns:
        The task, and notes on what was left out.

    Raises:
        InputError: a file is missing or cannot be used, an id occurs twice, or the qrels name an unknown
            document or query.
    """
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
    """Read documents by id: title and text, joined by a space.

    Raises:
        InputError: the file cannot be used, or an id occurs twice.
    """
    frame = read_table(path)
    require_columns(frame, ("_id", "text"), path)
    texts = text_column(frame, "text", str(path))
    titles = text_column(frame, "title", str(path)) if _has_titles(frame) else [None] * len(frame)
    joined = [f"{title or ''} {text or ''}".strip() for title, text in zip(titles, texts, strict=True)]
    return dict(zip(ids(frame, "_id", path), joined, strict=True))


def _has_titles(frame: pl.DataFrame) -> bool:
    return "title" in frame.columns and frame["title"].dtype == pl.String


def read_queries(path: Path) -> dict[str, str]:
    """Read queries by id.

    Raises:
        InputError: the file cannot be used, an id occurs twice, or a query is blank.
    """
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
