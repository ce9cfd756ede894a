"""The index of an audit: documents and queries, truncated as the model truncates them, and their vectors."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stickytoken.audits.results import RELEVANCE_JUDGEMENTS, IndexRecord
from stickytoken.audits.vectors import COMPARED, StoredVectors, Vectors
from stickytoken.cleaning import Cleaner, key_function
from stickytoken.data.documents import Document, DocumentSource, NamedColumns, open_documents
from stickytoken.data.metrics import fingerprint
from stickytoken.data.rows import GZIP, Meter, Skipped, list_columns, plain_or_gzipped
from stickytoken.data.tasks import CORPUS, QUERIES, holds_judgements, read_retrieval
from stickytoken.encoders.fitting import FittedText, fit_texts
from stickytoken.encoders.protocol import WordEncoder, similarity_of
from stickytoken.encoders.roles import Role, in_role
from stickytoken.encoders.text_encoder import require_whole_texts_read
from stickytoken.errors import InputError
from stickytoken.insertion import Probe, Token
from stickytoken.measurement.texts import encode_probes, tokenize_probes
from stickytoken.methods.runner import Runner
from stickytoken.search import TOP, ExactSearch
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.reading import ColumnChoice, Columns, columns_of
from stickytoken.validation import file_path
from stickytoken.words import counted

# Minimum and maximum length, in words (see `_WORD`), of a query taken from a document's first sentence. A
# shorter sentence is too vague for a query, and a longer one is truncated.
_LEAST_QUERY_WORDS = 4
_MOST_QUERY_WORDS = 30
# Maximum number of queries that are taken from documents, to limit the computing time.
_DRAWN_QUERIES = 200
# Characters of scripts that do not separate words by spaces: Thai, Lao, Burmese, Khmer, Chinese and Japanese.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
# A character of a word, in scripts that separate words by spaces.
_WORD_CHARACTER = rf"[^\W{_UNSPACED}]"
# A word between spaces or, in the other scripts, a character with the marks and punctuation behind it.
_WORD = re.compile(rf"(?=\w)[{_UNSPACED}][^\w\s]*|(?:(?!(?=\w)[{_UNSPACED}])\S)+")
_END_OF_SENTENCE = re.compile(r"(?<=[.?!])\s|(?<=[\u3002\uff01\uff1f])")

AnyQuery = TypeVar("AnyQuery")


@dataclass(frozen=True)
class Queries:
    """The queries of an index.

    Attributes:
        texts: the queries.
        asked: number of queries, at the beginning of ``texts``, that are searched. Any queries behind them
            are first sentences of documents, which only show whether a document is found by its first
            sentence.
        answers: for each query, the index positions of the documents that answer it, as far as known.
        own_documents: index positions of the document that a query is itself, and of its duplicates, keyed by
            index of the query. They are no results of it.
        source: where the queries come from, in words.
        answers_source: how it is known which documents answer which queries, in words.
        normalizer: the normaliser of the model's tokenizer; see `key_function`.
    """

    texts: Sequence[str]
    asked: int
    answers: Sequence[frozenset[int]]
    source: str
    answers_source: str
    own_documents: Mapping[int, frozenset[int]] = field(default_factory=dict)
    normalizer: str | None = None

    @cached_property
    def _key_of(self) -> Callable[[str], str]:
        key_of = key_function(self.normalizer)
        # A model that keeps case has tokens in both, and a document with either may answer the query.
        return lambda text: key_of(text).casefold()

    @cached_property
    def _keys(self) -> list[str]:
        return [self._key_of(query) for query in self.texts]

    def with_duplicates(self, duplicates: Mapping[int, Sequence[int]]) -> Queries:
        """Return these queries, with the duplicates of all documents that answer one or are one."""
        return replace(
            self,
            answers=[_with_duplicates(positions, duplicates) for positions in self.answers],
            own_documents={
                query: _with_duplicates(positions, duplicates)
                for query, positions in self.own_documents.items()
            },
        )

    def mark_those_without(self, token: Token) -> NDArray[np.bool_]:
        """Return for each query whether it is without the token, so that no copies of it answer the query.

        Both are compared as the model's normaliser writes them. A word counts only as a whole word, and
        anything else wherever it stands. A blank token is in no query.
        """
        text = self._key_of(token.text)
        if not text:
            return np.ones(len(self.texts), dtype=np.bool_)
        # A token that begins or ends with a letter must not be a part of a longer word there.
        before = rf"(?<!{_WORD_CHARACTER})" if re.match(_WORD_CHARACTER, text[0]) else ""
        after = rf"(?!{_WORD_CHARACTER})" if re.match(_WORD_CHARACTER, text[-1]) else ""
        pattern = re.compile(before + re.escape(text) + after)
        return np.array([pattern.search(key) is None for key in self._keys])


@dataclass(frozen=True)
class Index:
    """Documents and queries.

    A *number* counts all documents of the collection that have text. A *position* counts only the documents
    in the index, which may be a sample of them.

    Attributes:
        record: what the audit records about the index.
        documents: all documents of the collection that have text.
        document_numbers: for each position, the number of the document.
        queries: the queries.
        truncated: the document at each position, truncated where the model truncates it.
        truncated_queries: the queries, truncated where the model truncates them.
        duplicates: positions of all documents of which the model reads the same text as of a document, itself
            included, keyed by position. One without duplicates has no entry.
        distinct: positions of documents with different texts: of several duplicates, the first.
        stored: the vector of the document at each position, if an index has them already; else None.
        stored_is_exact: whether the stored vectors are the model's but for rounding, and not compressed.
        notes: what was left out of queries and judgements, in words.
    """

    record: IndexRecord
    documents: tuple[Document, ...]
    document_numbers: tuple[int, ...]
    queries: Queries
    truncated: tuple[FittedText, ...]
    truncated_queries: tuple[FittedText, ...]
    duplicates: Mapping[int, Sequence[int]]
    distinct: frozenset[int]
    stored: Vectors | None = None
    stored_is_exact: bool = True
    notes: Sequence[str] = ()

    def document_at(self, position: int) -> Document:
        """Return the document at a position in the index."""
        return self.documents[self.document_numbers[position]]


def read_index(
    source: DocumentSource,
    queries: DocumentSource | None,
    column: ColumnChoice,
    source_column: str | None,
    encoder: WordEncoder,
    settings: AuditSettings,
    cleaner: Cleaner,
    vectors: StoredVectors | None = None,
) -> Index:
    """Read documents and queries, and truncate them where the model truncates them.

    Args:
        source: the documents.
        queries: the queries. If None, the queries of a BEIR folder are used, or else the first sentences of
            documents.
        column: the column that contains the text of the documents.
        source_column: the column with the source of documents.
        encoder: the model.
        settings: settings of the audit.
        cleaner: finds copies; a first sentence that has some is no query.
        vectors: the vectors of the documents, if an index has them already.

    Returns:
        The documents and queries, not yet encoded. If the collection has more documents than the settings
        allow, the index has a random sample of them.

    Raises:
        InputError: the documents, queries or vectors cannot be read, or there are too few of them.
    """
    collection = open_documents(source, NamedColumns(column, source_column=source_column))
    meter = Meter()  # collects which columns were read
    records = list(collection.read(meter))
    if vectors is not None:
        vectors.require_rows(len(records))
    skipped = [record for record in records if isinstance(record, Skipped)]
    readable = [record for record in records if isinstance(record, Document)]
    documents = tuple(document for document in readable if document.text.strip())
    if vectors is not None:
        vectors.require_distinct_documents(documents)
    if queries is None and isinstance(source, (str, Path)):
        queries_of_beir = plain_or_gzipped(file_path("documents", source) / QUERIES)
        queries = queries_of_beir if queries_of_beir.is_file() else None
    key_of = key_function(cleaner.rules.normalizer)
    judged_queries, notes = _read_judged_queries(queries, documents, collection.name, settings, key_of)

    # Which documents are in the index, and where does the model truncate them?
    sampled = _sample_documents(documents, judged_queries, settings)
    truncated_by_number = _truncate_documents(documents, sampled, encoder, settings, collection.name)
    document_numbers = tuple(truncated_by_number)
    truncated = tuple(truncated_by_number.values())
    indexed = [documents[number] for number in document_numbers]
    duplicates = _find_duplicates([text.as_probe(settings.inserted_as) for text in truncated])
    distinct = _find_distinct(len(indexed), duplicates, collection.name)

    # Which queries are searched, and which documents answer them?
    if judged_queries:
        chosen_queries = _locate_answers(judged_queries, indexed, Path(str(queries)).name)
    else:
        # Queries have other columns, but the delimiter is that of the user's files.
        query_columns = Columns(delimiter=columns_of(column).delimiter)
        chosen_queries, query_notes = _choose_queries(
            queries,
            query_columns,
            indexed,
            distinct,
            collection.name,
            settings,
            cleaner,
        )
        notes += query_notes
    chosen_queries = replace(chosen_queries.with_duplicates(duplicates), normalizer=cleaner.rules.normalizer)
    truncated_queries = fit_texts(
        in_role(encoder, Role.QUERY),
        chosen_queries.texts,
        room=0,
        insertion=settings.inserted_as,
        name=chosen_queries.source,
    )

    stored_vectors = None if vectors is None else vectors.of(indexed)
    without_text = len(readable) - len(documents)
    without_tokens = len(sampled) - len(document_numbers)
    record = IndexRecord(
        name=collection.name if not isinstance(source, (str, Path)) else Path(source).absolute().name,
        read=len(readable),
        documents=len(document_numbers),
        cut=sum(text.cut for text in truncated),
        blank=without_text + without_tokens,
        skipped=len(skipped),
        skipped_first=f"{skipped[0].place}: {skipped[0].reason}" if skipped else None,
        text_columns=tuple(meter.columns),
        unread_columns=tuple(meter.unread),
        queries=chosen_queries.asked,
        queries_from=chosen_queries.source,
        answers_from=chosen_queries.answers_source,
        vectors=None if vectors is None else Path(vectors.name).name,
        fingerprint=_hash_content(documents, chosen_queries, stored_vectors),
    )
    return Index(
        record=record,
        documents=documents,
        document_numbers=document_numbers,
        queries=chosen_queries,
        truncated=truncated,
        truncated_queries=tuple(truncated_queries),
        duplicates=duplicates,
        distinct=distinct,
        stored=stored_vectors,
        notes=notes,
    )


def _truncate_documents(
    documents: Sequence[Document],
    numbers: Sequence[int],
    encoder: WordEncoder,
    settings: AuditSettings,
    name: str,
) -> dict[int, FittedText]:
    """Return the documents with these numbers, truncated where the model truncates them, keyed by number.

    Documents without tokens are left out. ``name`` is the name of the collection.
    """
    # Leave no room for copies here: the documents that receive copies are truncated again.
    truncated = fit_texts(
        encoder,
        [documents[number].text for number in numbers],
        room=0,
        insertion=settings.inserted_as,
        name=name,
    )
    # A text has no tokens if the tokenizer drops all of its characters.
    return {number: text for number, text in zip(numbers, truncated, strict=True) if text.content.words}


def _find_duplicates(probes: Sequence[Probe]) -> dict[int, list[int]]:
    groups: dict[Probe, list[int]] = defaultdict(list)
    for index, probe in enumerate(probes):
        groups[probe].append(index)
    return {index: group for group in groups.values() if len(group) > 1 for index in group}


def _find_distinct(count: int, duplicates: Mapping[int, Sequence[int]], name: str) -> frozenset[int]:
    """Return the positions of documents with different texts; raise an InputError if there are too few.

    ``count`` is the number of documents, ``duplicates`` is as in `Index`.
    """
    distinct = frozenset(
        position for position in range(count) if duplicates.get(position, [position])[0] == position
    )
    if len(distinct) <= 2 * TOP:  # otherwise, every top 10 would have half of the documents or more
        raise InputError(
            f"{name} has {counted(len(distinct), 'document')} with different texts: to rank the top {TOP}, "
            f"pass more than {2 * TOP}"
        )
    return distinct


def _with_duplicates(positions: frozenset[int], duplicates: Mapping[int, Sequence[int]]) -> frozenset[int]:
    return positions.union(*(duplicates.get(position, ()) for position in positions))


def _sample_documents(
    documents: Sequence[Document], judged_queries: Sequence[_JudgedQuery], settings: AuditSettings
) -> list[int]:
    """Return the numbers of the documents to index, ascending: all, or as many as the settings allow.

    Documents that answer a query are drawn first, because only they show whether queries still find answers.
    """
    answering_ids = _collect_answering_ids(judged_queries)
    order = np.random.default_rng([settings.seed, len(documents)]).permutation(len(documents)).tolist()
    # The sort keeps the random order among documents that answer a query, and among the rest.
    order.sort(key=lambda number: documents[number].id not in answering_ids)
    return sorted(order[: settings.documents])


# Increase this version when the same files no longer give the same index.
AUDIT_INDEX_VERSION = 7


def _hash_content(documents: Sequence[Document], queries: Queries, stored: Vectors | None) -> str:
    """Hash everything in the user's files that can change a number of the audit."""
    hashes_of_vectors = []  # without an entry for vectors if there are none
    if stored is not None:
        hashes_of_vectors.append(hashlib.sha256(stored.tobytes()).hexdigest())
    return fingerprint(
        AUDIT_INDEX_VERSION,
        [[document.id, document.text] for document in documents],
        queries.texts,
        [sorted(positions) for positions in queries.answers],
        [[query, sorted(positions)] for query, positions in sorted(queries.own_documents.items())],
        [document.source for document in documents],
        *hashes_of_vectors,
    )


class _JudgedQuery(NamedTuple):
    """A query for which it was judged which documents are relevant to it."""

    text: str
    answering_ids: frozenset[str]  # ids of the relevant documents
    own_ids: frozenset[str]  # ids of the document that the query is itself, as in ArguAna


def _collect_answering_ids(judged_queries: Sequence[_JudgedQuery]) -> frozenset[str]:
    return frozenset[str]().union(*(query.answering_ids for query in judged_queries))


def _read_judged_queries(
    source: DocumentSource | None,
    documents: Sequence[Document],
    name: str,
    settings: AuditSettings,
    key_of: Callable[[str], str],
) -> tuple[list[_JudgedQuery], list[str]]:
    """Return the queries of a BEIR folder, or a random sample of them, and notes on what was left out.

    There are no queries unless ``source`` is the file of queries in such a folder, beside judgements of some
    of these documents. ``name`` is the name of the collection. Queries whose texts have the same key are one
    query, and all that answers one of them answers it.
    """
    if not isinstance(source, (str, Path)):
        return [], []
    path = file_path("queries", source)
    if path.name.removesuffix(GZIP) != QUERIES or not holds_judgements(path.parent):
        return [], []
    retrieval = read_retrieval(path.parent)
    query_of_key: dict[str, _JudgedQuery] = {}
    for query_id, text in retrieval.queries.items():
        scores = retrieval.relevant[query_id]  # relevance of each judged document; 0 if it is not relevant
        answering_ids = frozenset(document_id for document_id, score in scores.items() if score > 0)
        own_ids = frozenset([query_id]).intersection(retrieval.unranked)
        key = _query_key(text, key_of)
        earlier = query_of_key.get(key, _JudgedQuery(text, answering_ids, own_ids))
        query_of_key[key] = _JudgedQuery(
            earlier.text, earlier.answering_ids | answering_ids, earlier.own_ids | own_ids
        )
    sampled = _sample_queries(list(query_of_key.values()), settings)
    all_answering_ids = _collect_answering_ids(sampled)
    answering = [document for document in documents if document.id in all_answering_ids]
    if documents and not answering:
        return [], [
            f"the judgements beside {path.name} are not used, because no relevant document (such as "
            f"{min(all_answering_ids)!r}) has the id of one of these (such as {documents[0].id!r}): all "
            "results of these queries count as wrong"
        ]
    _require_judged_texts(answering, retrieval.documents, name, path.parent / CORPUS)
    notes = [note.removeprefix(f"{path.parent.name}: ") for note in retrieval.notes]
    return sampled, [*notes, *_note_repeated(len(retrieval.queries), len(query_of_key))]


# Share of the words of the shorter text that two texts of the same document have in common at least. One may
# be a chunk, have no title or have been cleaned.
_COMMON_WORDS = 0.5


def _require_judged_texts(
    documents: Sequence[Document], judged_texts: Mapping[str, str], name: str, corpus: Path
) -> None:
    """Raise an InputError if most documents are not those that were judged, but merely share their ids.

    Numbers are ids in many collections, and texts in a list are counted from 0.
    """
    other_ids = []
    compared_count = 0
    for document in documents:
        if document.id not in judged_texts:  # the collection itself may lack what was judged
            continue
        compared_count += 1
        words = Counter(re.findall(r"\w+", document.text.casefold()))
        judged_words = Counter(re.findall(r"\w+", judged_texts[document.id].casefold()))
        shorter_length = min(words.total(), judged_words.total())
        if (words & judged_words).total() < _COMMON_WORDS * shorter_length:
            other_ids.append(document.id)
    if 2 * len(other_ids) > compared_count:
        raise InputError(
            f"{name}: {len(other_ids)} of {compared_count} documents that were judged, such as "
            f"{other_ids[0]!r}, have another text in {corpus}. Pass documents with the ids of this file, or "
            "a copy of the queries in a folder without judgements"
        )


def _query_key(text: str, key_of: Callable[[str], str]) -> str:
    return " ".join(key_of(text).split())


def _note_repeated(read: int, kept: int) -> list[str]:
    if read == kept:
        return []
    return [f"{read - kept:,} of {read:,} queries repeat another one and are left out"]


def _sample_queries(queries: Sequence[AnyQuery], settings: AuditSettings) -> list[AnyQuery]:
    order = np.random.default_rng([settings.seed, len(queries)]).permutation(len(queries))
    return [queries[number] for number in sorted(order[: settings.queries].tolist())]


def _locate_answers(
    judged_queries: Sequence[_JudgedQuery], indexed: Sequence[Document], source: str
) -> Queries:
    """Return the judged queries, with their relevant documents as positions in the index."""
    positions_of: dict[str, list[int]] = defaultdict(list)  # several if chunks have the id of their document
    for position, document in enumerate(indexed):
        positions_of[document.id].append(position)

    def locate(ids: frozenset[str]) -> frozenset[int]:
        # The index may be a sample that lacks some of the documents.
        return frozenset(position for document_id in ids for position in positions_of.get(document_id, ()))

    return Queries(
        texts=[query.text for query in judged_queries],
        asked=len(judged_queries),
        answers=[locate(query.answering_ids) for query in judged_queries],
        source=source,
        answers_source=RELEVANCE_JUDGEMENTS,
        own_documents={
            number: own_positions
            for number, query in enumerate(judged_queries)
            if (own_positions := locate(query.own_ids))
        },
    )


def _choose_queries(
    source: DocumentSource | None,
    columns: Columns,
    indexed: Sequence[Document],
    distinct: Collection[int],
    name: str,
    settings: AuditSettings,
    cleaner: Cleaner,
) -> tuple[Queries, list[str]]:
    """Read queries without relevance judgements, and take the first sentences of some indexed documents.

    If ``source`` is None, the first sentences are the queries. Otherwise they only show whether a document is
    found by its own first sentence. If there are more queries or first sentences than the settings allow, a
    random sample is taken. ``name`` is the name of the collection, and ``distinct`` are the positions of
    documents with different texts. Notes say what was left out.
    """
    sentence_of = _draw_first_sentences(indexed, distinct, settings)
    if source is None:
        # A query made of copies would find the documents that have such copies: it would seem that they push.
        sentence_of = {
            position: sentence for position, sentence in sentence_of.items() if not cleaner.find(sentence)
        }
    sentences_source = f"first sentences of {len(sentence_of)} of the documents"
    first_sentences = Queries(
        texts=list(sentence_of.values()),
        asked=len(sentence_of),
        answers=[frozenset([position]) for position in sentence_of],
        source=sentences_source,
        answers_source=sentences_source,
    )
    if source is None:
        if not sentence_of:
            raise InputError(
                f"{name} has no document with a first sentence of {_LEAST_QUERY_WORDS} words or more that "
                "begins no other document: pass queries"
            )
        return first_sentences, []
    texts, columns_read, notes = _read_query_texts(source, columns, key_function(cleaner.rules.normalizer))
    asked = _sample_queries(texts, settings)
    no_answers = [frozenset[int]()] * len(asked)  # it is not known which documents answer them
    source_name = "the given list" if not isinstance(source, (str, Path)) else Path(source).name
    chosen_queries = Queries(
        texts=[*asked, *first_sentences.texts],
        asked=len(asked),
        answers=[*no_answers, *first_sentences.answers],
        source=", column ".join([source_name, *columns_read]),
        answers_source=sentences_source,
    )
    return chosen_queries, notes


def _read_query_texts(
    source: DocumentSource, columns: Columns, key_of: Callable[[str], str]
) -> tuple[list[str], list[str], list[str]]:
    """Return queries, one of several whose texts have the same key; their columns; and notes on the rest."""
    collection = open_documents(source, NamedColumns(columns, queries=True))
    meter = Meter()
    records = list(collection.read(meter))
    skipped = [record for record in records if isinstance(record, Skipped)]
    texts = [record.text for record in records if isinstance(record, Document) and record.text.strip()]
    notes = []
    if skipped:
        notes.append(
            f"{len(skipped):,} of {counted(len(records), 'query', 'queries')} could not be read, the first "
            f"of them {skipped[0].place}: {skipped[0].reason}"
        )
    if not texts:
        problem = f" ({notes[0]})" if notes else ""
        raise InputError(
            f"{collection.name} has no queries{problem}: pass a file with one query per line or row"
        )
    text_of_key: dict[str, str] = {}
    for text in texts:
        text_of_key.setdefault(_query_key(text, key_of), text)
    notes += _note_repeated(len(texts), len(text_of_key))
    if meter.unread:
        note = (
            f"the queries are in the column {list_columns(meter.columns)}; not read, although they contain "
        )
        note += f"text: {list_columns(meter.unread)}"
        if meter.columns != ["query"]:
            note += " (if the queries are there, rename that column to 'query')"
        notes.append(note)
    return list(text_of_key.values()), meter.columns, notes


def _draw_first_sentences(
    indexed: Sequence[Document], distinct: Collection[int], settings: AuditSettings
) -> dict[int, str]:
    """Return the first sentences of random documents, keyed by position, in the order of the index.

    Documents whose first sentence is too short for a query are passed over, and all but one of several
    duplicates, because the same query twice says no more than once. So are those whose first sentence begins
    others, too, such as a greeting: it asks for none of them.
    """
    # The number at the end of the seed tells this random draw from other draws of an audit.
    order = np.random.default_rng([settings.seed, len(indexed), 1]).permutation(len(indexed)).tolist()
    # From at most half of the documents, so that the other half answers no query.
    most_sentences = min(_DRAWN_QUERIES, settings.queries, len(distinct) // 2)
    # Sorted, the texts that begin with the same sentence stand next to each other.
    texts = sorted(" ".join(indexed[position].text.split()) for position in distinct)
    sentence_of: dict[int, str] = {}
    for position in order:
        if len(sentence_of) == most_sentences:
            break
        if position not in distinct:
            continue
        sentence = _END_OF_SENTENCE.split(indexed[position].text.strip(), maxsplit=1)[0]
        sentence = " ".join(sentence.split())
        word_ends = [word.end() for word in _WORD.finditer(sentence)][:_MOST_QUERY_WORDS]
        if len(word_ends) < _LEAST_QUERY_WORDS:
            continue
        query = sentence[: word_ends[-1]]
        if not _begins_several(query, texts):
            sentence_of[position] = query
    return dict(sorted(sentence_of.items()))


def _begins_several(sentence: str, sorted_texts: Sequence[str]) -> bool:
    first = bisect_left(sorted_texts, sentence)
    return sum(text.startswith(sentence) for text in sorted_texts[first : first + 2]) > 1


# Largest relative difference between stored vectors and the model's that rounding may cause. Half precision
# causes more.
_ROUNDING = 1e-4


def compare_stored(
    index: Index, vectors: StoredVectors, encoder: WordEncoder, settings: AuditSettings
) -> Index:
    """Encode some documents, and compare their vectors with the stored ones.

    Returns:
        The index, which knows whether the stored vectors are exact.

    Raises:
        InputError: the model gives other vectors.
    """
    # `choose_tokens` draws with the same number at the end of the seed, but other things: tokens.
    count = len(index.document_numbers)
    order = np.random.default_rng([settings.seed, count, 2]).permutation(count)
    positions = sorted(order[:COMPARED].tolist())
    documents = [index.document_at(position) for position in positions]
    # In the form in which an index without stored vectors would be encoded.
    probes = [index.truncated[position].as_probe(settings.inserted_as) for position in positions]
    encoded = encode_probes(encoder, tokenize_probes(encoder, probes))
    ids = [document.id for document in documents]
    difference = vectors.require_same_vectors(
        vectors.of(documents), encoded, ids, similarity_of(encoder), encoder.name
    )
    return replace(index, stored_is_exact=difference <= _ROUNDING)


def encode_index(index: Index, encoder: WordEncoder, settings: AuditSettings, runner: Runner) -> ExactSearch:
    """Encode what has no vector yet, and return the exact search over the documents and queries."""
    document_vectors = index.stored
    if document_vectors is None:
        documents = [text.as_probe(settings.inserted_as) for text in index.truncated]
        require_whole_texts_read(encoder, [text.text for text in index.truncated])
        document_vectors = runner.encode("index", documents)
    queries = [text.as_probe(settings.inserted_as) for text in index.truncated_queries]
    query_vectors = runner.encode("queries", queries, Role.QUERY)
    similarity = similarity_of(encoder)
    return ExactSearch(
        queries=similarity.prepared(query_vectors),
        documents=similarity.prepared(document_vectors),
        similarity=similarity,
        excluded=index.queries.own_documents,
        duplicates=index.duplicates,
    )
