"""The effect of copies on the documents that have them.

An effect is the mean change of a document's similarity to some queries, in standard deviations of the
similarities between these queries and clean documents.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data import SentenceSource, load_sentences
from stickytoken.data.documents import Document
from stickytoken.detection.run import Run, encoder_for
from stickytoken.encoders.protocol import IdReader, content_limit, similarity_of
from stickytoken.encoders.roles import Role, identity_of_queries, in_role, prompts_of
from stickytoken.encoders.text_encoder import as_id_reader
from stickytoken.errors import InputError
from stickytoken.loading import AnyModel
from stickytoken.machine import digest
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.methods.measures import Severity
from stickytoken.scanning._search import Keeper, Tally
from stickytoken.scanning._workers import KEPT_TEXT
from stickytoken.scanning.results import EffectRecord
from stickytoken.scanning.vectors import COMPARED, StoredVectors, VectorSource, open_vectors
from stickytoken.unit_vectors import Similarity, unit_vectors

# Maximum number of a user's queries to use, and the seed for drawing them if there are more.
_QUERIES_KEPT = 500
_QUERIES_SEED = 42
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
# Minimum shifts of a severe, a serious and a mild effect, in standard deviations of the similarities: a
# large, a medium and half a medium effect (Cohen 1988).
_SEVERE_SHIFT = 0.8
SERIOUS_SHIFT = 0.5
_MILD_SHIFT = 0.25

# Name under which the effects in a batch are stored.
_STORED = "effects"
# Columns of the document table that are determined for each batch, and the name under which a batch has the
# number of documents whose effect depends on text that was not kept.
_COLUMNS = ("shift", "rise", "moves_up")
_UNREAD = "unread"

Vectors: TypeAlias = NDArray[np.float32]
Floats: TypeAlias = NDArray[np.float64]
TokenIds: TypeAlias = tuple[int, ...]


class EffectRequest(NamedTuple):
    """Everything that is needed to determine effects, besides the documents."""

    encoder: IdReader
    run_identity: str
    queries: Sequence[str] | None = None  # the user's queries; if None, first words of clean documents
    queries_from: str = ""  # source of the user's queries
    vectors: StoredVectors | None = None  # the vectors of the documents, if an index has them already
    notes: tuple[str, ...] = ()  # a remark if the model declares another similarity than the cosine


def request_effects(
    run: Run,
    encoder: AnyModel | None,
    queries: SentenceSource | None,
    vectors: VectorSource | StoredVectors | None,
) -> EffectRequest:
    """Load the model and read the queries.

    Raises:
        InputError: queries or vectors cannot be read.
    """
    query_texts: tuple[str, ...] | None = None
    queries_from = ""
    if queries is not None:
        sentences = load_sentences(queries)
        query_texts = sentences.sample(min(len(sentences), _QUERIES_KEPT), _QUERIES_SEED)
        queries_from = sentences.source
    loaded = encoder_for(encoder, run, "scan")
    similarity = similarity_of(loaded)
    notes: tuple[str, ...] = ()
    if similarity is not Similarity.COSINE:
        notes = (f"effects are changes of the cosine similarity; the model declares {similarity.value}",)
    return EffectRequest(
        encoder=as_id_reader(loaded, "an effect"),
        run_identity=run.record.identity,
        queries=query_texts,
        queries_from=queries_from,
        vectors=None if vectors is None else open_vectors(vectors),
        notes=notes,
    )


class PanelTexts(NamedTuple):
    """Queries, and the clean documents that documents with findings are compared with."""

    queries: Sequence[str]
    reference: Sequence[Document]  # clean documents
    queries_from: str  # source of the queries


def choose_panel(request: EffectRequest, tally: Tally, name: str) -> PanelTexts:
    """Choose the queries and the clean documents that documents with findings are compared with.

    Args:
        request: has the user's queries; without any, the first words of some clean documents are used.
        tally: has a random sample of the clean documents.
        name: name of the collection in messages.

    Returns:
        The queries and the clean documents. A document whose first words serve as a query is not one of the
        clean documents.

    Raises:
        InputError: there are too few clean documents, or they have no vectors among those of the index.
    """
    sample = list(tally.sample.values())
    if request.vectors is not None:
        request.vectors.require_rows(tally.documents + tally.skipped)
        request.vectors.of(sample)  # only to raise an error now if one of them has no vector
    # Without the user's queries, one half of the sample gives queries and the other is compared.
    needed = _FEWEST if request.queries is not None else 2 * _FEWEST
    if len(sample) < needed:
        raise InputError(
            f"{name} has {len(sample)} documents without findings, but measuring effects needs {needed}: "
            "pass more documents, or leave effects out"
        )
    if request.queries is not None:
        return PanelTexts(request.queries, sample[:REFERENCE], request.queries_from)
    query_count = min(QUERIES, len(sample) // 2)
    first_words = [" ".join(document.text.split()[:_QUERY_WORDS]) for document in sample[:query_count]]
    reference = sample[query_count : query_count + REFERENCE]
    return PanelTexts(first_words, reference, f"the first words of {query_count} documents")


class Panel(NamedTuple):
    """The vectors of the queries and the clean documents of `PanelTexts`."""

    queries: Vectors  # unit vectors, shape (q, d)
    reference: Vectors  # unit vectors, shape (n, d)
    ranked: Vectors  # similarities of the clean documents to each query, in ascending order, shape (n, q)
    spread: float  # standard deviation of all these similarities


@dataclass
class EffectPass:
    """Measures the effect of copies on the documents of a finished search."""

    request: EffectRequest
    panel_texts: PanelTexts
    keeper: Keeper
    unread: int = 0  # documents whose effect depends on text that was not kept, counted by `run`

    @cached_property
    def panel(self) -> Panel:
        """The vectors of the queries and the clean documents, and the similarities between them."""
        encoder = self.request.encoder
        query_encoder = in_role(encoder, Role.QUERY)
        query_ids = _tokenize(query_encoder, self.panel_texts.queries)
        queries = unit_vectors(query_encoder.encode_ids(query_ids))
        clean_documents = self.panel_texts.reference
        if self.request.vectors is None:
            clean_ids = _tokenize(encoder, [document.text for document in clean_documents])
            reference = unit_vectors(encoder.encode_ids(clean_ids))
        else:
            reference = unit_vectors(self.request.vectors.of(clean_documents))
        similarities = reference @ queries.T  # shape (clean documents, queries)
        spread = float(similarities.std())
        if spread < _SMALLEST_SPREAD:
            raise InputError(
                f"{encoder.name} gives all documents the same similarity to the queries: pass other queries"
            )
        # Sorted for each query, so that the rank of a document with copies can be looked up.
        return Panel(queries, reference, np.sort(similarities, axis=0), spread)

    def run(self, tally: Tally, progress: ProgressCallback) -> None:
        """Determine and store the effects in every batch that has no stored effects yet."""
        documents_done = 0
        documents_computed = 0  # in this call
        texts_encoded = 0
        progress(Progress("effects", done=0, total=tally.with_findings))
        for index, batch_digest in enumerate(tally.digests):
            findings = self.keeper.findings(index, batch_digest)
            if not findings:
                continue
            key = self._key(batch_digest)
            batch_effects = self.keeper.load(_STORED, index, key)
            if batch_effects is None:
                if not documents_computed:
                    # The first call of `_determine_effects` also encodes the queries and the clean documents.
                    texts_encoded += len(self.panel_texts.queries)
                    if self.request.vectors is None:
                        texts_encoded += len(self.panel_texts.reference)
                    else:
                        texts_encoded += self._check_stored_vectors(self.request.vectors, tally)
                batch_effects, texts_of_batch = self._determine_effects(findings)
                self.keeper.save(_STORED, index, key, batch_effects, texts_of_batch)
                documents_computed += len(findings)
                texts_encoded += texts_of_batch
            documents_done += len(findings)
            self.unread += batch_effects[_UNREAD]
            progress(
                Progress("effects", documents_done, tally.with_findings, documents_computed, texts_encoded)
            )

    def columns(self, index: int, batch_digest: str) -> dict[str, list[float | None]] | None:
        """Return the effects in a batch, one list for each of `_COLUMNS`; None if none are stored."""
        stored = self.keeper.load(_STORED, index, self._key(batch_digest))
        return None if stored is None else {name: stored[name] for name in _COLUMNS}

    def _key(self, batch_digest: str) -> str:
        return digest([batch_digest, *self._compared_with])

    @cached_property
    def _compared_with(self) -> list[Any]:
        """Everything besides the documents of a batch that can change its effects."""
        clean_texts = [document.text for document in self.panel_texts.reference]
        parts: list[Any] = [digest([self.panel_texts.queries, clean_texts]), self.request.run_identity]
        query_identity = identity_of_queries(self.request.encoder)
        if query_identity is not None:
            parts.append(asdict(query_identity))
        if self.request.vectors is not None:
            parts.append(self.request.vectors.fingerprint)
        return parts

    def _check_stored_vectors(self, stored: StoredVectors, tally: Tally) -> int:
        """Check that the model gives the stored vectors, and return how many texts were encoded for this.

        Documents with findings are compared too: an index may have them without their copies.
        """
        encoder = self.request.encoder
        clean_documents = self.panel_texts.reference
        # A text of this length may have been cut.
        are_uncut = [len(document.text) < KEPT_TEXT for document in clean_documents]
        compared = _select_read_whole(encoder, clean_documents, are_uncut)
        findings_of_batches = map(self.keeper.findings, count(), tally.digests)
        # A random sample, as digests are practically random; whole texts first.
        findings = heapq.nsmallest(
            COMPARED,
            chain.from_iterable(findings_of_batches),
            key=lambda finding: (not finding["is_text_whole"], finding["digest"]),
        )
        found_documents = _as_documents(findings)
        are_whole = [finding["is_text_whole"] for finding in findings]
        compared += _select_read_whole(encoder, found_documents, are_whole)
        if not compared:
            raise InputError(
                f"{stored.name} cannot be compared with {encoder.name}, which reads more of a document than "
                f"the {KEPT_TEXT:,} characters that a scan keeps, and all are longer: leave the vectors out"
            )
        documents = [document for document, _ in compared]
        stored.require_model(
            stored.of(documents),
            encoder.encode_ids([ids for _, ids in compared]),
            [document.id for document in documents],
            Similarity.COSINE,
            encoder.name,
        )
        return len(compared)

    def _determine_effects(self, findings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
        """Determine the effect of copies on the documents of a batch.

        Returns:
            What the keeper stores: for each of `_COLUMNS`, a list with one entry per document, None if the
            effect cannot be determined, and the number of documents whose effect depends on text that was not
            kept. And the number of texts that were encoded.
        """
        request = self.request
        with_copies, are_texts_read = _tokenize_kept(
            request.encoder,
            [finding["text"] for finding in findings],
            [finding["is_text_whole"] for finding in findings],
        )
        without_copies, are_rests_read = _tokenize_kept(
            request.encoder,
            [finding["rest"] for finding in findings],
            [finding["is_rest_whole"] for finding in findings],
        )
        positions = []  # of the documents whose effect can be determined
        unread_count = 0
        for position in range(len(findings)):
            # Where the model reads more than was kept, the beginning would stand for the whole, and copies
            # behind it for none.
            if not are_texts_read[position] or not are_rests_read[position]:
                unread_count += 1
            # Only documents that have tokens both with and without copies have effects.
            elif with_copies[position] and without_copies[position]:
                positions.append(position)
        effects = self._compute_effects(
            [findings[position] for position in positions],
            [with_copies[position] for position in positions],
            [without_copies[position] for position in positions],
        )
        batch_effects: dict[str, Any] = {}
        for name, values in effects.items():
            column: list[float | None] = [None] * len(findings)
            for position, value in zip(positions, values.tolist(), strict=True):
                column[position] = None if math.isnan(value) else value
            batch_effects[name] = column
        batch_effects[_UNREAD] = unread_count
        # An index has the vectors with copies already.
        encodings_per_document = 2 if request.vectors is None else 1
        return batch_effects, len(positions) * encodings_per_document

    def _compute_effects(
        self,
        findings: Sequence[Mapping[str, Any]],
        with_copies: Sequence[TokenIds],
        without_copies: Sequence[TokenIds],
    ) -> dict[str, Floats]:
        """Return the effects of copies on n documents, shape (n,) for each of `_COLUMNS`; NaN where unknown.

        - ``shift``: mean change that copies cause in a document's cosine to the queries.
        - ``rise``: share of clean documents that the document overtakes because of its copies, averaged
          over the queries.
        - ``moves_up``: share of queries for which the document overtakes at least a tenth of the clean
          documents.
        """
        request = self.request
        panel = self.panel
        if not findings:
            return {name: np.empty(0) for name in _COLUMNS}
        if request.vectors is None:
            vectors_with, are_usable = self._encode(with_copies)
        else:
            vectors_with = unit_vectors(request.vectors.of(_as_documents(findings)))
            are_usable = np.ones(len(findings), dtype=np.bool_)
        vectors_without, are_usable_without = self._encode(without_copies)
        are_usable &= are_usable_without
        # From here on, all arrays have the shape (documents, queries).
        after = vectors_with @ panel.queries.T
        before = vectors_without @ panel.queries.T
        overtaken = (_count_below(after, panel) - _count_below(before, panel)) / len(panel.reference)
        effects = {
            "shift": (after - before).mean(axis=1, dtype=np.float64),
            "rise": overtaken.mean(axis=1),
            "moves_up": (overtaken >= _MOVES_UP).mean(axis=1),
        }
        return {name: np.where(are_usable, values, np.nan) for name, values in effects.items()}

    def _encode(self, ids: Sequence[TokenIds]) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return n unit vectors, shape (n, d), and whether the model gave each of them, shape (n,)."""
        vectors = self.request.encoder.encode_ids(ids, allow_zero=True)
        are_usable = np.linalg.norm(vectors, axis=1) > 0
        vectors[~are_usable] = 1.0  # any vector that can be divided by its length
        return unit_vectors(vectors), are_usable


def _as_documents(findings: Sequence[Mapping[str, Any]]) -> list[Document]:
    return [Document(finding["number"], finding["id"], finding["text"]) for finding in findings]


def _tokenize(encoder: IdReader, texts: Sequence[str]) -> list[TokenIds]:
    limit = content_limit(encoder)
    return [text.ids[:limit] for text in encoder.tokenize(texts)]


def _tokenize_kept(
    encoder: IdReader, texts: Sequence[str], are_uncut: Sequence[bool]
) -> tuple[list[TokenIds], list[bool]]:
    """Tokenize texts that may be cut off, and say for each whether the model reads no further anyway."""
    limit = content_limit(encoder)  # number of ids that the model reads; None for all
    ids = []
    are_read_whole = []
    for text, is_uncut in zip(encoder.tokenize(texts), are_uncut, strict=True):
        ids.append(text.ids[:limit])
        # The last word may have been cut; the ids before it are those of the uncut text.
        unaffected_count = len(text.head) + sum(map(len, text.words[:-1]))
        reads_no_further = limit is not None and unaffected_count >= limit
        are_read_whole.append(is_uncut or reads_no_further)
    return ids, are_read_whole


def _select_read_whole(
    encoder: IdReader, documents: Sequence[Document], are_uncut: Sequence[bool]
) -> list[tuple[Document, TokenIds]]:
    """Return the first documents of which the model reads no more than was kept, with their token ids.

    They are at most `COMPARED`, for the comparison with the stored vectors. Texts without tokens are left
    out.
    """
    ids, are_read_whole = _tokenize_kept(encoder, [document.text for document in documents], are_uncut)
    selected = []
    for document, ids_of_text, is_read_whole in zip(documents, ids, are_read_whole, strict=True):
        if is_read_whole and ids_of_text:
            selected.append((document, ids_of_text))
    return selected[:COMPARED]


def _count_below(similarities: Vectors, panel: Panel) -> NDArray[np.int64]:
    """Return how many clean documents are less similar to a query than a document is, shape (n, q)."""
    counts_by_query = []
    # One query at a time: the sorted similarities of the clean documents to it, and those of the n documents.
    for clean_similarities, document_similarities in zip(panel.ranked.T, similarities.T, strict=True):
        counts_by_query.append(np.searchsorted(clean_similarities, document_similarities))
    return np.stack(counts_by_query, axis=1)


def grade_effect(effect: float | None) -> Severity | None:
    """Return the grade of an effect in standard deviations; None if it is small or unknown."""
    if effect is None or math.isnan(effect) or effect < _MILD_SHIFT:
        return None
    if effect < SERIOUS_SHIFT:
        return Severity.MILD
    return Severity.SERIOUS if effect < _SEVERE_SHIFT else Severity.SEVERE


def describe_effects(effects: EffectPass, documents: pl.DataFrame) -> EffectRecord:
    """Return a record that describes how the effects on the documents with findings were determined."""
    # An effect is unknown for one of two reasons: the table of documents keeps only the beginning of a text,
    # and the model would read more than that (``unread``); or nothing is left of a text without its copies.
    unknown_effects = documents["effect"].null_count()
    return EffectRecord(
        queries=len(effects.panel_texts.queries),
        queries_from=effects.panel_texts.queries_from,
        reference=len(effects.panel_texts.reference),
        spread=effects.panel.spread,
        nothing_left=unknown_effects - effects.unread,
        unread=effects.unread,
        prompts=prompts_of(effects.request.encoder),
    )
