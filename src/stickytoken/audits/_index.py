"""The index of an audit: documents and queries, truncated as the model truncates them, and their vectors."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.audits.results import IndexRecord
from stickytoken.data.documents import Document, DocumentSource, NamedColumns, open_documents
from stickytoken.data.metrics import fingerprint
from stickytoken.data.rows import Meter, Skipped
from stickytoken.data.tasks import QUERIES
from stickytoken.encoders.fitting import FittedText, fit_texts
from stickytoken.encoders.protocol import Encoder, WordEncoder, similarity_of
from stickytoken.errors import InputError
from stickytoken.impacts.running import UNIT, Shard
from stickytoken.impacts.search import ExactSearch
from stickytoken.impacts.statistics import TOP
from stickytoken.insertion import Probe
from stickytoken.measurement import ResultFolder, ShardCost, engine as engines
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.reading import ColumnChoice, Columns, columns_of

# Minimum and maximum length, in words, of a query taken from a document's first sentence. A shorter sentence
# is too vague for a query, and a longer one is truncated.
_LEAST_QUERY_WORDS = 4
_MOST_QUERY_WORDS = 30
# Maximum number of queries that are taken from documents, to limit the computing time.
_DRAWN_QUERIES = 200
# Number of texts per shard. Encoding one shard takes about 10 seconds on one core.
_SHARD_TEXTS = 128
INDEX = "index"
"""Name of the stage that encodes documents and queries."""

Vectors: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Index:
    """Documents and queries.

    Attributes:
        record: what the audit records about the index.
        documents: all documents of the collection that have text.
        places: for each index position, the position of the indexed document in `documents`.
        queries: the queries.
        owners: for each query, the index position of the document that the query was taken from; -1 for a
            query that was not taken from a document.
        fitted: the indexed documents, truncated where the model truncates them.
        fitted_queries: the queries, truncated where the model truncates them.
    """

    record: IndexRecord
    documents: tuple[Document, ...]
    places: tuple[int, ...]
    queries: tuple[str, ...]
    owners: tuple[int, ...]
    fitted: tuple[FittedText, ...]
    fitted_queries: tuple[FittedText, ...]

    def document_at(self, position: int) -> Document:
        """Return an indexed document by its position, which counts only the indexed documents."""
        return self.documents[self.places[position]]


def read_index(
    source: DocumentSource,
    queries: DocumentSource | None,
    column: ColumnChoice,
    encoder: WordEncoder,
    settings: AuditSettings,
) -> Index:
    """Read documents and queries, and truncate them where the model truncates them.

    Args:
        source: the documents.
        queries: the queries. If None, the queries of a BEIR folder are used, or else the first sentences of
            documents.
        column: the column that contains the text of the documents.
        encoder: the model.
        settings: settings of the audit.

    Returns:
        The documents and queries, not yet encoded. If the collection has more documents than the settings
        allow, the index has a random sample of them.

    Raises:
        InputError: the documents or queries cannot be read, or there are too few of them.
    """
    collection = open_documents(source, NamedColumns(column))
    meter = Meter()
    records = list(collection.read(meter))
    skipped = [record for record in records if isinstance(record, Skipped)]
    read = [record for record in records if isinstance(record, Document)]
    documents = tuple(document for document in read if document.text.strip())
    generator = np.random.default_rng([settings.seed, len(documents)])
    # `sampled` and `places` hold positions in `documents`. `places` leaves out documents without tokens.
    sampled = sorted(generator.permutation(len(documents))[: settings.documents].tolist())
    sampled_texts = [documents[place].text for place in sampled]
    # Leave no room for copies here. `measure_ranks` truncates the documents that receive copies again.
    fitted_texts = fit_texts(
        encoder, sampled_texts, room=0, insertion=settings.insertion, name=collection.name
    )
    fitted_by_place = dict(zip(sampled, fitted_texts, strict=True))
    # A text has no tokens if the tokenizer drops all of its characters.
    places = tuple(place for place in sampled if fitted_by_place[place].content.words)
    if len(places) <= 2 * TOP:
        raise InputError(
            f"{collection.name} has {len(places)} documents with text: to rank the top {TOP}, pass more than "
            f"{2 * TOP} documents"
        )
    if queries is None and isinstance(source, (str, Path)) and (Path(source) / QUERIES).is_file():
        queries = Path(source) / QUERIES
    indexed_texts = [documents[place].text for place in places]
    query_columns = Columns(delimiter=columns_of(column).delimiter)
    chosen_queries = _choose_queries(queries, query_columns, indexed_texts, collection.name, settings)
    content = [[document.id, document.text] for document in documents]
    without_text = len(read) - len(documents)
    without_tokens = len(sampled) - len(places)
    record = IndexRecord(
        name=collection.name if not isinstance(source, (str, Path)) else Path(source).name,
        read=len(records) - len(skipped),
        documents=len(places),
        cut=sum(fitted_by_place[place].cut for place in places),
        blank=without_text + without_tokens,
        skipped=len(skipped),
        skipped_first=f"{skipped[0].place}: {skipped[0].reason}" if skipped else None,
        text_columns=tuple(meter.columns),
        unread_columns=tuple(meter.unread),
        queries=len(chosen_queries.texts),
        queries_from=chosen_queries.source,
        fingerprint=fingerprint(AUDIT_INDEX_VERSION, content, chosen_queries.texts),
    )
    fitted_queries = fit_texts(
        encoder, chosen_queries.texts, room=0, insertion=settings.insertion, name=chosen_queries.source
    )
    return Index(
        record=record,
        documents=documents,
        places=places,
        queries=tuple(chosen_queries.texts),
        owners=tuple(chosen_queries.owners),
        fitted=tuple(fitted_by_place[place] for place in places),
        fitted_queries=tuple(fitted_queries),
    )


# Increase this version when the same files no longer give the same index.
AUDIT_INDEX_VERSION = 1


@dataclass(frozen=True)
class _Queries:
    """The queries of an index.

    Attributes:
        texts: the queries.
        owners: as in `Index.owners`.
        source: where the queries come from, in words.
    """

    texts: list[str]
    owners: list[int]
    source: str


def _choose_queries(
    source: DocumentSource | None,
    columns: Columns,
    indexed_texts: Sequence[str],
    name: str,
    settings: AuditSettings,
) -> _Queries:
    """Read the queries, or take the first sentences of some indexed documents if ``source`` is None.

    Both are random samples if there are more queries or documents than the settings allow.
    ``indexed_texts`` are the texts of the documents in the index, and ``name`` is the name of the collection.
    """
    if source is not None:
        texts = _read_queries(source, columns, settings)
        # None of these queries was taken from a document.
        owners = [-1] * len(texts)
        source_name = "the given list" if not isinstance(source, (str, Path)) else Path(source).name
        return _Queries(texts=texts, owners=owners, source=source_name)
    texts, owners = _first_sentences(indexed_texts, settings)
    if not texts:
        raise InputError(
            f"{name} has no document with a first sentence of {_LEAST_QUERY_WORDS} words or more: pass "
            "queries"
        )
    return _Queries(texts=texts, owners=owners, source=f"first sentences of {len(texts)} of the documents")


def _read_queries(source: DocumentSource, columns: Columns, settings: AuditSettings) -> list[str]:
    """Return the queries of a source, or a random sample if there are more than the settings allow."""
    collection = open_documents(source, NamedColumns(columns))
    texts = [
        record.text
        for record in collection.read(Meter())
        if isinstance(record, Document) and record.text.strip()
    ]
    if not texts:
        raise InputError(f"{collection.name} has no queries: pass a file with one query per line or row")
    chosen = np.random.default_rng([settings.seed, len(texts)]).permutation(len(texts))[: settings.queries]
    return [texts[number] for number in sorted(chosen.tolist())]


def _first_sentences(texts: Sequence[str], settings: AuditSettings) -> tuple[list[str], list[int]]:
    """Return the first sentences of random texts as queries, and the indices of these texts."""
    order = np.random.default_rng([settings.seed, len(texts), 1]).permutation(len(texts)).tolist()
    sentences: dict[int, str] = {}
    for number in order:
        if len(sentences) == min(_DRAWN_QUERIES, settings.queries, len(texts) // 2):
            break
        words = re.split(r"(?<=[.?!])\s", texts[number].strip(), maxsplit=1)[0].split()
        if len(words) >= _LEAST_QUERY_WORDS:
            sentences[number] = " ".join(words[:_MOST_QUERY_WORDS])
    owners = sorted(sentences)
    return [sentences[number] for number in owners], owners


@dataclass(frozen=True)
class _Encoding:
    """Encodes texts; the result has one row per text, with its vector."""

    name: str

    def prepare(self, shard: Shard[Probe], encoder: Encoder) -> tuple[int, Sequence[Probe]]:
        """Return the index of the shard's first text among all texts, and the tokenized texts."""
        return shard.index * _SHARD_TEXTS, engines.tokenized_probes(encoder, shard.items)

    def compute(
        self, prepared: tuple[int, Sequence[Probe]], encoder: Encoder
    ) -> tuple[list[dict[str, Any]], int]:
        """Return one row per text, and the number of encoded texts."""
        first, probes = prepared
        vectors = engines.encode_probes(encoder, probes)
        rows = [{UNIT: first + offset, "vector": vector} for offset, vector in enumerate(vectors)]
        return rows, len(rows)


def shard_count(index: Index) -> int:
    """Return the number of shards in which the documents and queries of an index are encoded."""
    texts = len(index.fitted) + len(index.fitted_queries)
    return math.ceil(texts / _SHARD_TEXTS)


def encode_in_shards(
    name: str,
    probes: Sequence[Probe],
    engine: engines.Engine,
    folder: ResultFolder,
    progress: engines.ProgressCallback,
) -> Vectors:
    """Encode texts shard by shard.

    `run_work` stores the shards in the folder under ``name``. Shards that an interrupted audit has stored are
    not encoded again.

    Returns:
        The vectors, shape (texts, dimensions).
    """

    starts = range(0, len(probes), _SHARD_TEXTS)
    shards = [Shard(index, tuple(probes[start : start + _SHARD_TEXTS])) for index, start in enumerate(starts)]

    def make_work() -> tuple[_Encoding, ShardCost]:
        """Return the work for the engine, and the preparation cost, which is zero."""
        return _Encoding(name), ShardCost(seconds=0, sequences=0)

    def text_numbers(shard: Shard[Probe]) -> list[int]:
        """Return the indices of a shard's texts among all texts, which are the keys of its rows."""
        first = shard.index * _SHARD_TEXTS
        return list(range(first, first + len(shard.items)))

    # A stored shard has one row per text, with the number of the text in the column `UNIT`. Each text is one
    # unit of progress.
    rows: engines.Rows[Shard[Probe]] = engines.Rows(
        keys=text_numbers, column=UNIT, size=lambda shard: len(shard.items)
    )
    frames = engines.run_work(name, make_work, shards, rows, engine, folder, progress)
    return np.concatenate([np.array(frame["vector"].to_list(), dtype=np.float32) for frame in frames])


def encode_index(
    index: Index,
    encoder: WordEncoder,
    settings: AuditSettings,
    engine: engines.Engine,
    folder: ResultFolder,
    progress: engines.ProgressCallback,
) -> ExactSearch:
    """Encode the documents and queries of an index, and return the exact search over them."""
    probes = [fitted.clean(settings.insertion) for fitted in (*index.fitted, *index.fitted_queries)]
    vectors = encode_in_shards(INDEX, probes, engine, folder, progress)
    similarity = similarity_of(encoder)
    documents = similarity.prepared(vectors[: len(index.fitted)])
    queries = similarity.prepared(vectors[len(index.fitted) :])
    return ExactSearch(queries, documents, similarity)
