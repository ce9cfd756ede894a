"""The two passes of a scan: search all documents in batches, and measure the effect of the copies found."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.cleaning.rules import CleaningRules
from stickytoken.cleaning.spans import SpanKind
from stickytoken.data.documents import Document, Documents, Record
from stickytoken.data.rows import Meter, Skipped
from stickytoken.encoders.protocol import IdReader, content_limit
from stickytoken.encoders.roles import Role, identity_of_queries, in_role
from stickytoken.errors import InputError
from stickytoken.machine import digest
from stickytoken.measurement import ResultFolder, ShardCost
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods.statistics import TokenEffects
from stickytoken.scanning._workers import KEPT_TEXT, examined
from stickytoken.scanning.vectors import COMPARED, StoredVectors
from stickytoken.unit_vectors import Similarity, unit_vectors

# Name under which the findings of every batch are stored.
_TOKENS = "tokens"
# Name of the column that holds the number of a batch.
_BATCH = "batch"
# Maximum size of a batch, in documents and in characters, which limits the memory that a scan needs and the
# work that is lost when a scan is interrupted.
_DOCUMENTS = 1024
_CHARACTERS = 4_000_000
# Maximum number of unreadable records that the result names.
_NAMED_RECORDS = 100
# Maximum number of sources to count. A column with more distinct values probably does not name sources.
_MOST_SOURCES = 10_000
# Name of the stage that searches documents, and the unit of its progress.
_SEARCH = "scan"
_SEARCH_UNIT = "documents"


class Keeper:
    """Stores the findings of each batch in the folder of a scan, or in memory if there is no folder.

    Args:
        folder: folder of the scan; if None, the findings are kept in memory.
        begin: called once, just before the first batch is written to the folder.
    """

    def __init__(self, folder: ResultFolder | None = None, begin: Callable[[], None] | None = None) -> None:
        self._folder = folder
        self._begin = begin or (lambda: None)
        self._kept: dict[tuple[str, int, str], dict[str, Any]] = {}

    def load(self, name: str, index: int, digest: str) -> dict[str, Any] | None:
        """Return the stored values of a batch; None if none are stored with this digest."""
        if self._folder is None:
            return self._kept.get((name, index, digest))
        shard = self._folder.read_shard(name, index, [index], _BATCH)
        if shard is None or shard["digest"].item() != digest:
            return None
        return dict(json.loads(shard["values"].item()))

    def save(self, name: str, index: int, digest: str, values: dict[str, Any], encoded: int = 0) -> None:
        """Store the values of a batch, for which ``encoded`` texts were encoded."""
        if self._folder is None:
            self._kept[name, index, digest] = values
            return
        self._begin()
        self._begin = lambda: None
        row = {_BATCH: index, "digest": digest, "values": json.dumps(values)}
        self._folder.write_shard(name, index, [row], ShardCost(0.0, encoded))

    def findings(self, index: int, digest: str) -> list[dict[str, Any]]:
        """Return one row for each document with findings in a batch; empty if no rows are stored."""
        values = self.load(_TOKENS, index, digest)
        return [] if values is None else list(values["found"])


class Batch(NamedTuple):
    """Documents that are searched together."""

    # 0-based position of the batch in the collection.
    number: int
    documents: tuple[Document, ...]
    # Records that could not be read.
    skipped: tuple[Skipped, ...]
    # SHA-256 of each document's text, which decides whether the document is sampled.
    text_hashes: tuple[bytes, ...]
    # Hash of all records of the batch: their texts, and where they stand in the collection.
    digest: str


def batched(records: Iterable[Record]) -> Iterator[Batch]:
    """Divide the records of a collection into batches."""
    index = 0
    size = 0
    pending: list[Record] = []
    for record in records:
        pending.append(record)
        if isinstance(record, Document):
            size += len(record.text)
        if len(pending) >= _DOCUMENTS or size >= _CHARACTERS:
            yield _batch(index, pending)
            index += 1
            size = 0
            pending = []
    if pending:
        yield _batch(index, pending)


def _batch(index: int, records: list[Record]) -> Batch:
    """Return these records as a batch. ``index`` is the 0-based position of the batch in the collection."""
    documents = tuple(record for record in records if isinstance(record, Document))
    skipped = tuple(record for record in records if isinstance(record, Skipped))
    text_hashes = tuple(hashlib.sha256(document.text.encode()).digest() for document in documents)
    content = hashlib.sha256()
    for document, text_hash in zip(documents, text_hashes, strict=True):
        place = (document.number, document.id, document.source, document.path, document.line)
        content.update(repr(place).encode() + text_hash)
    for record in skipped:
        content.update(repr((record.place, record.reason)).encode())
    return Batch(
        number=index,
        documents=documents,
        skipped=skipped,
        text_hashes=text_hashes,
        digest=content.hexdigest(),
    )


@dataclass
class Tally:
    """The totals of a scan, and a sample of documents without findings."""

    # Number of clean documents to sample.
    sampled: int
    # What was read.
    meter: Meter = field(default_factory=Meter)
    # Digests of the batches, in the order of the collection.
    digests: list[str] = field(default_factory=list)
    # Number of documents that were searched.
    documents: int = 0
    # Number of documents with a finding other than suspected copies.
    found: int = 0
    # Number of documents with suspected copies and no other finding.
    suspected: int = 0
    # Number of records that could not be read, and the first of these records.
    skipped: int = 0
    skipped_first: list[Skipped] = field(default_factory=list)
    # Number of documents with findings of a kind, keyed by kind.
    kinds: Counter[str] = field(default_factory=Counter)
    # Number of documents, keyed by source; None if there are too many sources to count.
    sources: Counter[str | None] | None = field(default_factory=Counter)
    # The distinct clean documents with the smallest hashes, keyed by hash. A hash depends only on the text,
    # and hashes are practically random. So the sample is random, but does not depend on the order of the
    # documents.
    sample: dict[int, Document] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of documents with findings of any kind, which is also the number of rows in the table."""
        return self.found + self.suspected

    def add(self, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the numbers of a batch to the totals, and its clean documents to the sample.

        Args:
            batch: the next batch in the order of the collection.
            rows: one row per document with findings.
        """
        self.digests.append(batch.digest)
        self.documents += len(batch.documents)
        suspected = sum(row["kinds"] == [SpanKind.SUSPECTED] for row in rows)
        self.suspected += suspected
        self.found += len(rows) - suspected
        self.skipped += len(batch.skipped)
        self.skipped_first += batch.skipped[: _NAMED_RECORDS - len(self.skipped_first)]
        for row in rows:
            self.kinds.update(row["kinds"])
        if self.sources is not None:
            self.sources.update(document.source for document in batch.documents)
            # With more sources than this, documents are not counted by source.
            if len(self.sources) > _MOST_SOURCES:
                self.sources = None
        if self.sampled:
            with_findings = {row["number"] for row in rows}
            for document, text_hash in zip(batch.documents, batch.text_hashes, strict=True):
                if document.number not in with_findings and document.text.strip():
                    hash_of_text = int.from_bytes(text_hash[:8])
                    kept = Document(document.number, document.id, document.text[:KEPT_TEXT])
                    self.sample[hash_of_text] = kept
            # The texts with the smallest hashes are a random sample, because hashes are practically random.
            self.sample = dict(heapq.nsmallest(self.sampled, self.sample.items()))


def search(
    collection: Documents,
    rules: CleaningRules,
    keeper: Keeper,
    *,
    workers: int,
    sampled: int,
    progress: ProgressCallback,
) -> Tally:
    """Search all documents, except those in batches whose findings are already stored.

    Args:
        collection: the documents.
        rules: what to look for.
        keeper: stores the findings of each batch.
        workers: number of processes.
        sampled: number of documents without findings to sample.
        progress: called before the first batch and after every batch.

    Returns:
        The totals over all documents, including stored batches, and the sample.
    """
    tally = Tally(sampled)
    meter = tally.meter
    # Batches that wait until all earlier batches have been added to the totals, with the rows of each; keyed
    # by batch number.
    waiting: dict[int, tuple[Batch, Sequence[Mapping[str, Any]]]] = {}
    searched = 0  # documents that were searched in this call

    def add_in_order(batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a batch to the totals once all earlier batches have been added, and report progress.

        A stored batch can arrive while earlier batches are still being searched.
        """
        waiting[batch.number] = batch, rows
        while True:
            next_number = len(tally.digests)  # batches are numbered from 0, and the tally has one digest each
            if next_number not in waiting:
                break
            next_batch, next_rows = waiting.pop(next_number)
            tally.add(next_batch, next_rows)
            share = meter.share
            done = tally.documents
            # The reader runs ahead of the search. So at first, ``share`` is too large, and the estimated
            # total is too small.
            total = max(done + 1, round(done / share)) if share else done + 1
            progress(Progress(_SEARCH, done, total, searched, unit=_SEARCH_UNIT))

    def new_batches() -> Iterator[tuple[Batch, list[str]]]:
        """Yield each batch without stored findings, with its texts; add all other batches to the totals."""
        for batch in batched(collection.read(meter)):
            values = keeper.load(_TOKENS, batch.number, batch.digest)
            if values is None:
                yield batch, [document.text for document in batch.documents]
            else:
                add_in_order(batch, values["found"])

    # The number of documents is unknown until they have been read.
    progress(Progress(_SEARCH, done=0, total=1, unit=_SEARCH_UNIT))
    # Close the generator explicitly: an interrupt during its garbage collection would only be printed.
    with closing(examined(new_batches(), rules, workers)) as stream:
        for batch, findings in stream:
            rows = []
            for document, finding in zip(batch.documents, findings, strict=True):
                if finding is not None:
                    rows.append(_finding_row(document, finding))
            keeper.save(_TOKENS, batch.number, batch.digest, {"found": rows})
            searched += len(batch.documents)
            add_in_order(batch, rows)
    if tally.documents:
        progress(Progress(_SEARCH, tally.documents, tally.documents, searched, unit=_SEARCH_UNIT))
    return tally


def _finding_row(document: Document, finding: dict[str, Any]) -> dict[str, Any]:
    line_in_file = document.line
    # A record, such as one of JSONL, keeps the line on which it begins: line breaks of its text may be
    # escaped in the file, so lines of the text are not lines of the file.
    if document.is_whole_file and line_in_file is not None:
        line_in_text = finding["line"]  # counted from 0
        line_in_file += line_in_text
    place = {"number": document.number, "id": document.id, "source": document.source, "path": document.path}
    return place | finding | {"line": line_in_file}


# Maximum number of clean documents whose first words serve as queries.
QUERIES = 100
# Maximum number of clean documents that documents with findings are compared with.
REFERENCE = 200
# Minimum number of clean documents whose first words serve as queries, and minimum number of clean documents
# that documents with findings are compared with.
_FEWEST = 10
# Number of words at the beginning of a document that form a query.
_QUERY_WORDS = 30
# A document "moves up" for a query if its copies lift it past at least this share of the clean documents.
_MOVES_UP = 0.1
# Minimum standard deviation of the clean documents' similarities. Below it, effects would be mere rounding
# errors.
_SMALLEST_SPREAD = 1e-6
# The contraction of a token is the share of a text's meaning that its copies erase. Predictions divide by one
# minus the contraction, so larger contractions are replaced by this value.
_LARGEST_CONTRACTION = 0.9

Vectors: TypeAlias = NDArray[np.float32]
Floats: TypeAlias = NDArray[np.float64]


class Effect(StrEnum):
    """How the effect of copies on a document is determined."""

    MEASURED = "measured"  # Each document is encoded with and without its copies.
    PREDICTED = "predicted"  # Each document is encoded once, unchanged; the effect is computed from the run.


COLUMNS = ("shift", "rise", "moves_up", "predicted")
# Name under which a batch has the number of documents whose effect depends on text that was not kept.
_UNREAD = "unread"


class PanelTexts(NamedTuple):
    """Queries, and the clean documents that documents with findings are compared with."""

    queries: Sequence[str]
    reference: Sequence[Document]  # clean documents
    queries_from: str  # source of the queries


def panel_texts(
    sample: Sequence[Document], queries: Sequence[str] | None, queries_from: str, name: str
) -> PanelTexts:
    """Choose the queries and the clean documents that documents with findings are compared with.

    Args:
        sample: clean documents in random order.
        queries: the user's queries; if None, the first words of some clean documents are used.
        queries_from: source of the user's queries, named in the report.
        name: name of the collection in messages.

    Returns:
        The queries and the clean documents. A document whose first words serve as a query is not one of the
        clean documents.

    Raises:
        InputError: there are too few clean documents.
    """
    needed = _FEWEST if queries is not None else 2 * _FEWEST
    if len(sample) < needed:
        raise InputError(
            f"{name} has {len(sample)} documents without findings, but measuring effects needs {needed}: "
            "pass more documents, or leave effects out"
        )
    if queries is not None:
        return PanelTexts(queries, sample[:REFERENCE], queries_from)
    count = min(QUERIES, len(sample) // 2)
    first_words = [" ".join(document.text.split()[:_QUERY_WORDS]) for document in sample[:count]]
    reference = sample[count : count + REFERENCE]
    return PanelTexts(first_words, reference, f"the first words of {count} documents")


class Panel(NamedTuple):
    """The vectors of the queries and the clean documents of `PanelTexts`."""

    queries: Vectors  # unit vectors, shape (q, d)
    reference: Vectors  # unit vectors, shape (n, d)
    ranked: Vectors  # similarities of the clean documents to each query, in ascending order, shape (n, q)
    spread: float  # standard deviation of all these similarities


@dataclass(frozen=True)
class EffectPass:
    """Measures or predicts the effect of copies on the documents of a finished search."""

    kind: Effect
    encoder: IdReader
    effects: TokenEffects | None  # pull and contraction of tokens; None if the run's method lacks them
    panel_texts: PanelTexts
    identity: str  # identity of the run
    keeper: Keeper
    vectors: StoredVectors | None = None  # the vectors of the documents, if an index has them already

    @cached_property
    def panel(self) -> Panel:
        """The vectors of the queries and the clean documents, and the similarities between them."""
        query_encoder = in_role(self.encoder, Role.QUERY)
        query_ids = _tokenize(query_encoder, self.panel_texts.queries)
        queries = unit_vectors(query_encoder.encode_ids(query_ids))
        reference = self._vectors_of_reference()
        similarities = reference @ queries.T
        spread = float(similarities.std())
        if spread < _SMALLEST_SPREAD:
            raise InputError(
                f"{self.encoder.name} gives all documents the same similarity to the queries: pass other "
                "queries"
            )
        return Panel(queries, reference, np.sort(similarities, axis=0), spread)

    def _vectors_of_reference(self) -> Vectors:
        documents = self.panel_texts.reference
        if self.vectors is not None:
            return unit_vectors(self.vectors.of(documents))
        return unit_vectors(
            self.encoder.encode_ids(_tokenize(self.encoder, [document.text for document in documents]))
        )

    def _check_stored_vectors(self, stored: StoredVectors, tally: Tally) -> int:
        """Check that the model gives the stored vectors, and return how many texts were encoded for this.

        Documents with findings are compared too: an index may have them without their copies.
        """
        clean_documents = self.panel_texts.reference
        # A text of this length may have been cut.
        are_uncut = [len(document.text) < KEPT_TEXT for document in clean_documents]
        documents_and_ids = self._select_read_whole(clean_documents, are_uncut)
        findings = self._draw_findings(tally)
        found_documents = [Document(row["number"], row["id"], row["text"]) for row in findings]
        documents_and_ids += self._select_read_whole(
            found_documents, [row["is_text_whole"] for row in findings]
        )
        if not documents_and_ids:
            raise InputError(
                f"{stored.name} cannot be compared with {self.encoder.name}, which reads more of a document "
                f"than the {KEPT_TEXT:,} characters that a scan keeps, and all are longer: leave the vectors "
                "out"
            )
        chosen = [document for document, _ in documents_and_ids]
        stored.require_model(
            stored.of(chosen),
            self.encoder.encode_ids([ids for _, ids in documents_and_ids]),
            [document.id for document in chosen],
            Similarity.COSINE,
            self.encoder.name,
        )
        return len(documents_and_ids)

    def _select_read_whole(
        self, documents: Sequence[Document], are_uncut: Sequence[bool]
    ) -> list[tuple[Document, tuple[int, ...]]]:
        """Return the first documents of which the model reads no more than was kept, with their token ids.

        They are at most `COMPARED`, for the comparison with the stored vectors. Texts without tokens are left
        out.
        """
        ids, are_read_whole = _tokenize_kept(
            self.encoder, [document.text for document in documents], are_uncut
        )
        pairs = zip(documents, ids, strict=True)
        read = [pair for pair, is_read in zip(pairs, are_read_whole, strict=True) if is_read and pair[1]]
        return read[:COMPARED]

    def _draw_findings(self, tally: Tally) -> list[dict[str, Any]]:
        """Return the findings of a random sample of the documents that have some, whole texts first."""
        rows = (
            row for index, batch in enumerate(tally.digests) for row in self.keeper.findings(index, batch)
        )
        return heapq.nsmallest(COMPARED, rows, key=lambda row: (not row["is_text_whole"], row["digest"]))

    def run(self, tally: Tally, progress: ProgressCallback) -> int:
        """Determine and store the effects in every batch that has no stored effects yet.

        Returns:
            The number of documents whose effect depends on text that was not kept.
        """
        documents_done = 0
        documents_computed = 0  # in this call
        texts_encoded = 0
        documents_unread = 0
        is_panel_encoded = False
        progress(Progress("effects", done=0, total=tally.rows))
        for index, batch_digest in enumerate(tally.digests):
            findings = self.keeper.findings(index, batch_digest)
            if not findings:
                continue
            key = self._key(batch_digest)
            batch_effects = self.keeper.load(self.kind.value, index, key)
            if batch_effects is None:
                if not is_panel_encoded:
                    # The first call of `_determine_effects` also encodes the queries and the clean documents.
                    is_panel_encoded = True
                    texts_encoded += len(self.panel_texts.queries)
                    if self.vectors is None:
                        texts_encoded += len(self.panel_texts.reference)
                    else:
                        texts_encoded_to_check = self._check_stored_vectors(self.vectors, tally)
                        texts_encoded += texts_encoded_to_check
                batch_effects, texts_of_batch = self._determine_effects(findings)
                self.keeper.save(self.kind.value, index, key, batch_effects, texts_of_batch)
                documents_computed += len(findings)
                texts_encoded += texts_of_batch
            documents_done += len(findings)
            documents_unread += batch_effects[_UNREAD]
            progress(Progress("effects", documents_done, tally.rows, documents_computed, texts_encoded))
        return documents_unread

    def columns(self, index: int, batch_digest: str) -> dict[str, Any] | None:
        """Return what `_determine_effects` has found in a batch; None if nothing is stored."""
        return self.keeper.load(self.kind.value, index, self._key(batch_digest))

    def _key(self, batch_digest: str) -> str:
        return digest([batch_digest, *self._compared_with])

    @cached_property
    def _compared_with(self) -> list[Any]:
        """Everything besides the documents of a batch that can change its effects."""
        clean = [document.text for document in self.panel_texts.reference]
        parts: list[Any] = [digest([self.panel_texts.queries, clean]), self.identity]
        queries = identity_of_queries(self.encoder)
        if queries is not None:
            parts.append(asdict(queries))
        if self.vectors is not None:
            parts.append(self.vectors.fingerprint)
        return parts

    def _determine_effects(self, findings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
        """Determine the effect of copies on the documents of a batch.

        Returns:
            The effects, as one list for each name in `COLUMNS`, with the number of documents whose effect
            depends on text that was not kept; and the number of texts that were encoded. Each list has one
            entry per document; the entry is None if the effect cannot be determined.

            - ``shift``: mean change that copies cause in a document's cosine to the queries.
            - ``rise``: share of clean documents that the document overtakes because of its copies, averaged
              over the queries.
            - ``moves_up``: share of queries for which the document overtakes at least a tenth of the clean
              documents.
            - ``predicted``: the value of ``shift`` that is predicted from the run.

            If effects are only predicted, all entries of ``shift``, ``rise`` and ``moves_up`` are None.
        """
        panel = self.panel
        with_copies, are_texts_read = _tokenize_kept(
            self.encoder,
            [finding["text"] for finding in findings],
            [finding["is_text_whole"] for finding in findings],
        )
        without, are_rests_read = _tokenize_kept(
            self.encoder,
            [finding["rest"] for finding in findings],
            [finding["is_rest_whole"] for finding in findings],
        )
        # Where the model reads more than was kept, the beginning would stand for the whole, and copies behind
        # it for none.
        are_read = [*map(all, zip(are_texts_read, are_rests_read, strict=True))]
        # Only documents that have tokens both with and without copies have effects.
        positions = [
            position
            for position, is_read in enumerate(are_read)
            if is_read and with_copies[position] and without[position]
        ]
        columns = {name: np.full(len(findings), np.nan) for name in COLUMNS}
        if positions:
            vectors, has_vectors = self._vectors_with_copies(
                [findings[position] for position in positions],
                [with_copies[position] for position in positions],
            )
            if self.effects is not None:
                removed = [
                    Counter(with_copies[position]) - Counter(without[position]) for position in positions
                ]
                columns["predicted"][positions] = predicted_shifts(vectors, removed, self.effects, panel)
                # If all copies lie beyond the model's input limit, the model reads the same tokens with and
                # without them.
                unaffected = [
                    position for position in positions if with_copies[position] == without[position]
                ]
                columns["predicted"][unaffected] = 0.0
            if self.kind is Effect.MEASURED:
                clean_vectors, has_clean_vectors = self._vectors(
                    [without[position] for position in positions]
                )
                has_vectors &= has_clean_vectors
                after = vectors @ panel.queries.T
                before = clean_vectors @ panel.queries.T
                overtaken = (_ranks(after, panel) - _ranks(before, panel)) / len(panel.reference)
                columns["shift"][positions] = (after - before).mean(axis=1, dtype=np.float64)
                columns["rise"][positions] = overtaken.mean(axis=1)
                columns["moves_up"][positions] = (overtaken >= _MOVES_UP).mean(axis=1)
            # The effect is unknown where the model returned a zero vector.
            for values in columns.values():
                values[positions] = np.where(has_vectors, values[positions], np.nan)
        encodings = (self.vectors is None) + (self.kind is Effect.MEASURED)
        found: dict[str, Any] = {name: _null_for_nan(values) for name, values in columns.items()}
        return found | {_UNREAD: are_read.count(False)}, len(positions) * encodings

    def _vectors_with_copies(
        self, findings: Sequence[Mapping[str, Any]], ids: Sequence[tuple[int, ...]]
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        if self.vectors is None:
            return self._vectors(ids)
        documents = [Document(finding["number"], finding["id"], finding["text"]) for finding in findings]
        return unit_vectors(self.vectors.of(documents)), np.ones(len(documents), dtype=np.bool_)

    def _vectors(self, ids: Sequence[tuple[int, ...]]) -> tuple[Vectors, NDArray[np.bool_]]:
        vectors = self.encoder.encode_ids(ids, allow_zero=True)
        usable = np.linalg.norm(vectors, axis=1) > 0
        vectors[~usable] = 1.0
        return unit_vectors(vectors), usable


def _tokenize(encoder: IdReader, texts: Sequence[str]) -> list[tuple[int, ...]]:
    limit = content_limit(encoder)
    return [text.ids[:limit] for text in encoder.tokenize(texts)]


def _tokenize_kept(
    encoder: IdReader, texts: Sequence[str], are_uncut: Sequence[bool]
) -> tuple[list[tuple[int, ...]], list[bool]]:
    """Tokenize texts that may have been cut off, and say for each whether the model reads no further anyway.

    Args:
        encoder: the model.
        texts: what was kept of each text.
        are_uncut: whether nothing of it was cut off.

    Returns:
        The ids of each text up to the model's limit, and whether those of the uncut text are the same.
    """
    limit = content_limit(encoder)
    ids = []
    are_read_whole = []
    for text, is_uncut in zip(encoder.tokenize(texts), are_uncut, strict=True):
        ids.append(text.ids[:limit])
        # The last word may have been cut; the ids before it are those of the uncut text.
        unaffected = len(text.head) + sum(map(len, text.words[:-1]))
        are_read_whole.append(is_uncut or (limit is not None and unaffected >= limit))
    return ids, are_read_whole


def _ranks(similarities: Vectors, panel: Panel) -> NDArray[np.int64]:
    counts = [
        np.searchsorted(ranked, values) for ranked, values in zip(panel.ranked.T, similarities.T, strict=True)
    ]
    return np.stack(counts, axis=1)


def _null_for_nan(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def predicted_shifts(
    vectors: Vectors, removed: Sequence[Counter[int]], effects: TokenEffects, panel: Panel
) -> Floats:
    """Predict how much copies change the mean similarity of documents to the queries.

    Copies of a token move the vector of every text toward the same point, the target point of the token,
    which is the token's pull divided by its contraction (see `stickytoken.methods.statistics.Effects`). If a
    document has copies of several tokens, the weighted mean of their target points is used. The run has
    measured pull and contraction with short texts, so it does not tell how far copies move a long document.
    The prediction assumes that a document without its copies would be at the mean of the clean documents. The
    document's vector is projected onto the line from the mean of the clean documents to the target point; the
    projection estimates how far the copies have moved the document.

    Args:
        vectors: unit vectors of the documents with their copies, shape (n, d).
        removed: for each document, the number of its copies, keyed by token id.
        effects: pull and contraction of the tokens.
        panel: vectors of queries and clean documents.

    Returns:
        Changes of the mean cosine, shape (n,); NaN where no copied token has a measured effect.
    """
    clean_mean = panel.reference.mean(axis=0, dtype=np.float64)
    mean_query = panel.queries.mean(axis=0, dtype=np.float64)
    shifts = np.full(len(vectors), np.nan)
    for position, copies in enumerate(removed):
        # Find the tokens that have measured effects, and their rows in `effects`.
        ids = np.array(sorted(copies), dtype=np.int64)
        rows = np.searchsorted(effects.ids, ids)
        last_row = len(effects.ids) - 1
        has_effects = effects.ids[np.minimum(rows, last_row)] == ids
        rows = rows[has_effects]
        ids = ids[has_effects]
        contraction = np.minimum(effects.contraction[rows], _LARGEST_CONTRACTION)
        # The vector of a text with one copy consists of the share 1 - k of the text and the share k of the
        # token's target point, where k is the contraction. So a copy has k / (1 - k) times the weight of the
        # text, and n copies have n times this weight: n * k / (1 - k). The target point is pull / k, so the
        # product of weight and target point is n * pull / (1 - k).
        scaled_copies = np.array([copies[token_id] for token_id in ids.tolist()]) / (1 - contraction)
        total_weight = float(scaled_copies @ contraction)
        if total_weight <= 0:  # no token has a measured effect, or the copies do not contract texts
            continue
        point = (scaled_copies @ effects.pull[rows].astype(np.float64)) / total_weight
        to_point = point - clean_mean
        # Position of the document between the mean of the clean documents (0) and the point toward which
        # copies of the tokens move it (1).
        covered = float(
            np.clip((vectors[position] - clean_mean) @ to_point / (to_point @ to_point), 0.0, 1.0)
        )
        # The copies have moved the document by covered * to_point. Its mean cosine to the queries changes by
        # the dot product of this movement and the mean query.
        shifts[position] = covered * float(to_point @ mean_query)
    return shifts
