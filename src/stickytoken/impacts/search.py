"""Exact search in an index, and how often documents with copies intrude into the search results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import bundled_frame, load_sentences, tasks as task_data
from stickytoken.data.metrics import Values, fingerprint
from stickytoken.encoders.fitting import FittedText, fit_texts
from stickytoken.encoders.protocol import Encoder, similarity_of
from stickytoken.errors import InputError
from stickytoken.impacts import statistics
from stickytoken.impacts.editing import needed_room, single_tokens, with_copies
from stickytoken.impacts.results import TokenRecord
from stickytoken.impacts.running import CleanVectors, Group, GroupWork, Runner, as_rows, shard_stage
from stickytoken.impacts.statistics import COPIES, TOP, Rows
from stickytoken.insertion import Probe
from stickytoken.measurement import ShardCost
from stickytoken.settings.impact import ImpactSettings
from stickytoken.unit_vectors import Similarity

# Maximum number of texts that are drawn as queries from a corpus that comes without queries.
_QUERIES = 200
# Maximum number of documents into which copies are inserted, one document at a time.
TARGETS = 50


@dataclass(frozen=True)
class ExactSearch:
    """An index that compares every query with every document.

    Attributes:
        queries: vectors of the queries, as returned by `Similarity.prepared`, shape (Q, d).
        documents: vectors of the documents, as returned by `Similarity.prepared`, shape (N, d).
        similarity: how the model compares vectors.
    """

    queries: Values
    documents: Values
    similarity: Similarity

    @cached_property
    def similarities(self) -> Values:
        """Similarity of every query to every document, shape (Q, N)."""
        return self.similarity.of_all(self.queries, self.documents)

    @cached_property
    def _ascending(self) -> Values:
        return np.sort(self.similarities, axis=1)

    def ranks(self, vectors: NDArray[np.floating], places: Sequence[int]) -> NDArray[np.int64]:
        """Return the rank that each given vector would have among the search results of each query.

        The search results are the documents in descending order of their similarity to the query. If a
        document is as similar to the query as the given vector, the given vector ranks before the document.

        Args:
            vectors: n vectors as returned by the model, shape (n, d). The rank of a vector does not depend
                on the other vectors.
            places: index of the document that each vector replaces; -1 for a vector that is added to the
                index and replaces no document.

        Returns:
            The ranks for each query, counted from 1, shape (Q, n).
        """
        similarities = self.similarity.of_all(self.queries, self.similarity.prepared(vectors))
        documents_above = np.empty(similarities.shape, dtype=np.int64)
        for query, ascending in enumerate(self._ascending):
            at_most_as_similar = np.searchsorted(ascending, similarities[query], side="right")
            documents_above[query] = len(ascending) - at_most_as_similar
        replaced = np.asarray(places, dtype=np.intp)
        # A replaced document is no longer in the index, so it must not be counted among the documents above
        # its replacement. The index -1 selects the last document, so these entries are masked.
        is_above = self.similarities[:, replaced] > similarities
        replaced_above = is_above & (replaced >= 0)
        return 1 + documents_above - replaced_above

    def ranks_of_documents(self, places: Sequence[int]) -> NDArray[np.int64]:
        """Return the ranks, among all documents, of the documents at ``places``; shape (Q, len(places))."""
        of_documents = self.similarities[:, list(places)]
        ranks = np.empty(of_documents.shape, dtype=np.int64)
        for query, ascending in enumerate(self._ascending):
            ranks[query] = 1 + len(ascending) - np.searchsorted(ascending, of_documents[query], side="right")
        return ranks


class SearchCorpus(NamedTuple):
    """Queries, and the documents that they search."""

    name: str
    queries: Sequence[str]
    documents: Sequence[str]
    fingerprint: str


def load_search_corpus(source: str | Path, seed: int) -> SearchCorpus:
    """Read a BEIR folder, or draw queries from the texts of a file or from the bundled sentences.

    Raises:
        InputError: the source has too few documents or queries, or the folder is not a BEIR folder.
    """
    if str(source) == "bundled":
        name, queries, documents = _bundled_corpus(seed)
    elif (path := Path(source).expanduser()).is_dir():
        name, queries, documents = _corpus_of_folder(path)
    else:
        name, queries, documents = _corpus_of_file(path, seed)
    if len(documents) <= 2 * TOP or not queries:
        raise InputError(
            f"{name} has {len(documents)} documents and {len(queries)} queries: "
            f"a top {TOP} needs more than {2 * TOP} documents and at least one query"
        )
    return SearchCorpus(name, queries, documents, fingerprint("intrusion", queries, documents, COPIES, TOP))


def _bundled_corpus(seed: int) -> tuple[str, list[str], list[str]]:
    """Return the name, the queries and the documents of the bundled corpus.

    The queries are the first sentences of random paraphrase pairs. All other sentences are the documents.
    """
    pairs = bundled_frame().group_by("pair_id", maintain_order=True).agg("sentence")["sentence"]
    chosen = np.random.default_rng(seed).permutation(len(pairs))[:_QUERIES]
    queries = [pairs[int(pair_number)][0] for pair_number in sorted(chosen)]
    distinct = set(queries)
    documents = [sentence for pair in pairs for sentence in pair if sentence not in distinct]
    return "bundled sentences", queries, documents


def _corpus_of_folder(folder: Path) -> tuple[str, list[str], list[str]]:
    """Return the name, the queries and the documents of a BEIR folder."""
    corpus_file = folder / task_data.CORPUS
    queries_file = folder / task_data.QUERIES
    if not corpus_file.is_file() or not queries_file.is_file():
        raise InputError(
            f"the folder {folder} does not contain {corpus_file.name} and {queries_file.name}: pass a BEIR "
            "folder or a file"
        )
    documents = [text for text in task_data.read_texts(corpus_file, titles=True).values() if text]
    queries = list(task_data.read_queries(queries_file).values())
    return folder.resolve().name, queries, documents


def _corpus_of_file(path: Path, seed: int) -> tuple[str, list[str], list[str]]:
    """Return the name of a file, random texts from it as queries, and all remaining texts as documents."""
    sentences = load_sentences(path)
    order = np.random.default_rng(seed).permutation(len(sentences))
    count = min(_QUERIES, len(sentences) // 3)
    queries = [sentences.texts[number] for number in sorted(order[:count])]
    documents = [sentences.texts[number] for number in sorted(order[count:])]
    return path.resolve().stem, queries, documents


# Columns of the shards, which have one row per target document. For each number of copies, a column of hits
# counts the queries that have the document in their top 10, and a column of ranks has the median of the
# document's ranks over queries. All columns of hits come first.
_COLUMNS = tuple(f"{kind}_{copies}" for kind in ("hits", "rank") for copies in COPIES)


@dataclass(frozen=True)
class _IntrusionWork(GroupWork):
    """Inserts copies into one document at a time, and counts the queries that find the document.

    Attributes:
        name: name under which the shards are stored.
        targets: the target documents, into which copies are inserted.
        target_numbers: index of each target among the documents.
        settings: settings of the measurement.
        queries: the queries, as inputs of the model.
        documents: all documents without copies, as inputs of the model.
        clean: vectors of the queries and of all documents without copies.
        similarity: how the model compares vectors.
    """

    name: str
    targets: Sequence[FittedText]
    target_numbers: Sequence[int]
    settings: ImpactSettings
    queries: Sequence[Probe]
    documents: Sequence[Probe]
    clean: CleanVectors
    similarity: Similarity

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[Rows, int]:
        """Measure how well each target is found with each number of copies of the condition's token.

        Returns:
            One row per target, with the columns `_COLUMNS`, and the number of encoded texts.
        """
        (condition,) = prepared
        probes = [
            with_copies(self.settings, target, condition, copies)
            for target in self.targets
            for copies in COPIES
        ]
        # `clean.of` adds the vectors of all inputs that it encodes to this dict.
        new_vectors: dict[Probe, NDArray[np.float32]] = {}
        vectors = self.clean.of(probes, encoder, new_vectors)
        # Every target is ranked once per number of copies, each time in place of the original document.
        replaced_documents = np.repeat(self.target_numbers, len(COPIES)).tolist()
        ranks = self._search.ranks(vectors, replaced_documents)  # shape (queries, targets times COPIES)
        shape = (len(self.targets), len(COPIES))
        hits = (ranks <= TOP).sum(axis=0).reshape(shape)
        median_ranks = np.median(ranks, axis=0).reshape(shape)
        rows = as_rows(_COLUMNS, np.hstack([hits, median_ranks]).astype(np.float64))
        return rows, len(new_vectors)

    @cached_property
    def _search(self) -> ExactSearch:
        return ExactSearch(
            queries=self._prepared_vectors(self.queries),
            documents=self._prepared_vectors(self.documents),
            similarity=self.similarity,
        )

    def _prepared_vectors(self, probes: Sequence[Probe]) -> Values:
        """Return the vectors of inputs without copies, as `Similarity.prepared` returns them."""
        rows = self.clean.rows
        return self.similarity.prepared(self.clean.vectors[[rows[probe] for probe in probes]])


def intrusion_title(corpus: SearchCorpus) -> str:
    """Return the name of the intrusion measurement in the progress display."""
    return f"intrusion into {corpus.name}"


def run_intrusion(
    runner: Runner, corpus: SearchCorpus, tokens_by_id: Mapping[int, TokenRecord]
) -> dict[str, Rows]:
    """Measure for each token how many queries find random documents after copies of the token are added.

    Args:
        runner: runs the measurement under all conditions. Only the conditions with a single token are used.
        corpus: the queries and the documents.
        tokens_by_id: the tokens, keyed by id.

    Returns:
        The rows of the tables ``intrusion`` and ``intrusion_curves``, keyed by name of the table.
    """
    encoder = runner.encoder
    settings = runner.settings
    insertion = settings.insertion
    name = f"intrusion-{shard_stage(corpus.name)}"
    conditions = single_tokens(runner.conditions)
    # Choose the target documents, into which copies are inserted.
    document_count = len(corpus.documents)
    shuffled = np.random.default_rng([settings.seed, document_count]).permutation(document_count)
    target_numbers = sorted(shuffled[:TARGETS].tolist())
    target_texts = [corpus.documents[number] for number in target_numbers]
    room = needed_room(encoder, conditions, max(COPIES), insertion)
    targets = fit_texts(encoder, target_texts, room, insertion, corpus.name)

    def inputs_without_copies(texts: Sequence[str]) -> list[Probe]:
        """Return the texts, truncated to the model's limit, as inputs of the model."""
        fitted_texts = fit_texts(encoder, texts, room=0, insertion=insertion, name=corpus.name)
        return [fitted.clean(insertion) for fitted in fitted_texts]

    documents = inputs_without_copies(corpus.documents)
    queries = inputs_without_copies(corpus.queries)

    def make_work() -> tuple[_IntrusionWork, ShardCost]:
        """Encode all texts without copies.

        Returns:
            The work object, which has the vectors of these texts and encodes the targets with copies, and the
            cost of encoding the texts without copies.
        """
        # A target may be truncated to make room for copies, so its input differs from that of the document.
        targets_without_copies = [target.clean(insertion) for target in targets]
        vectors, cost = runner.clean_vectors(name, [*queries, *documents, *targets_without_copies])
        work = _IntrusionWork(
            name=name,
            targets=targets,
            target_numbers=target_numbers,
            settings=settings,
            queries=queries,
            documents=documents,
            clean=vectors,
            similarity=similarity_of(encoder),
        )
        return work, cost

    title = intrusion_title(corpus)
    outcomes = runner.run(name, make_work, len(targets), _COLUMNS, conditions, title)
    truncated_count = sum(target.cut for target in targets)
    return statistics.intrusion_rows(
        corpus.name, outcomes, conditions, settings, tokens_by_id, truncated_count
    )
