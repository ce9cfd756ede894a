"""Measure how far copies of a token push a random document into search results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import bundled_frame, load_sentences
from stickytoken.encoders.protocol import Encoder, WordEncoder
from stickytoken.errors import InputError
from stickytoken.impacts._compute import Group, GroupWork, as_rows
from stickytoken.impacts._vectors import CleanVectors, EditedVectors
from stickytoken.impacts.carriers import Carrier, Treatment, needed_room, prepare
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Probe, Token
from stickytoken.tasks.beir import CORPUS, QUERIES, read_documents, read_queries
from stickytoken.tasks.protocol import fingerprint
from stickytoken.unit_vectors import exact_unit_vectors

COPIES = (0, 1, 2, 4, 8, 16, 32)
TOP = 10
_TARGETS = 50
_QUERIES = 200
_BUNDLED = "bundled"


@dataclass(frozen=True)
class SearchCorpus:
    """Documents and queries that search them."""

    name: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of queries and documents."""
        return fingerprint("intrusion", self.queries, self.documents, COPIES, TOP)

    def targets(self, seed: int) -> list[int]:
        """Draw the indices of the documents that get copies."""
        drawn = np.random.default_rng([seed, len(self.documents)]).permutation(len(self.documents))
        return sorted(drawn[:_TARGETS].tolist())


def load_search_corpus(source: str | Path, seed: int) -> SearchCorpus:
    """Read a BEIR folder, a file of documents, or the bundled sentences.

    A file has no queries: up to 200 random documents of it are used as queries instead. Of the bundled
    sentences, one of each pair of paraphrases is.
    """
    if str(source) == _BUNDLED:
        pairs = bundled_frame().group_by("pair_id", maintain_order=True).agg("sentence")["sentence"]
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:_QUERIES]
        queries = [pairs[int(place)][0] for place in sorted(chosen)]
        documents = [sentence for pair in pairs for sentence in pair if sentence not in set(queries)]
        return SearchCorpus("bundled sentences", tuple(queries), tuple(documents))
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / CORPUS).is_file() or not (path / QUERIES).is_file():
            raise InputError(
                f"the folder {path} does not contain {CORPUS} and {QUERIES}: pass a BEIR folder or a file"
            )
        texts = tuple(text for text in read_documents(path / CORPUS).values() if text)
        return _large_enough(
            SearchCorpus(path.resolve().name, tuple(read_queries(path / QUERIES).values()), texts)
        )
    sentences = load_sentences(path)
    order = np.random.default_rng(seed).permutation(len(sentences))
    count = min(_QUERIES, len(sentences) // 3)
    return _large_enough(
        SearchCorpus(
            path.resolve().stem,
            tuple(sentences.texts[place] for place in sorted(order[:count])),
            tuple(sentences.texts[place] for place in sorted(order[count:])),
        )
    )


def _large_enough(corpus: SearchCorpus) -> SearchCorpus:
    if len(corpus.documents) <= 2 * TOP or not corpus.queries:
        raise InputError(
            f"{corpus.name} has {len(corpus.documents)} documents and {len(corpus.queries)} queries: "
            f"a top {TOP} needs more than {2 * TOP} documents and at least one query"
        )
    return corpus


@dataclass(frozen=True)
class Intrusion:
    """Documents that get copies, and the corpus that they compete with.

    Attributes:
        name: name of the shards.
        places: indices of the documents that get copies.
        targets: these documents.
        treatment: how documents are edited; `COPIES` replace its number of copies.
        queries: encoder input of the queries.
        documents: encoder input of all documents.
    """

    name: str
    places: tuple[int, ...]
    targets: tuple[Carrier, ...]
    treatment: Treatment
    queries: tuple[Probe, ...]
    documents: tuple[Probe, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the outcomes: hits, then median ranks, for each number of copies."""
        return tuple(f"{kind}_{copies}" for kind in ("hits", "rank") for copies in COPIES)

    @property
    def clean(self) -> list[Probe]:
        """All inputs without copies."""
        return [*self.queries, *self.documents, *(self.treatment.clean(target) for target in self.targets)]

    @property
    def cut(self) -> int:
        """Number of documents truncated to make room for the copies."""
        return sum(carrier.cut for carrier in self.targets)


def plan_intrusion(
    name: str, encoder: WordEncoder, settings: ImpactSettings, corpus: SearchCorpus, tokens: Sequence[Token]
) -> Intrusion:
    """Choose the documents that get copies, and truncate them so that the copies fit."""
    treatment, insertion = Treatment.of(settings), settings.insertion
    places = corpus.targets(settings.seed)
    room = needed_room(encoder, tokens, COPIES[-1], insertion)
    targets = prepare(encoder, [corpus.documents[place] for place in places], room, insertion, corpus.name)
    documents, queries = (
        tuple(treatment.clean(carrier) for carrier in prepare(encoder, texts, 0, insertion, corpus.name))
        for texts in (corpus.documents, corpus.queries)
    )
    return Intrusion(name, tuple(places), tuple(targets), treatment, queries, documents)


@dataclass(frozen=True)
class IntrusionWork(GroupWork):
    """Ranks of documents with copies, token by token."""

    plan: Intrusion
    clean: CleanVectors

    @property
    def name(self) -> str:
        """Name of the shards."""
        return self.plan.name

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Count the queries with a document in their top 10, and take its median rank."""
        (condition,) = prepared.conditions
        vectors = EditedVectors(encoder, self.clean)
        probes = [
            replace(self.plan.treatment, copies=copies).probe(target, condition)
            for target in self.plan.targets
            for copies in COPIES
        ]
        ranks = self._ranks(exact_unit_vectors(vectors.of(probes)))
        shape = len(self.plan.targets), len(COPIES)
        hits = (ranks <= TOP).sum(axis=0).reshape(shape)
        middle = np.median(ranks, axis=0).reshape(shape)
        return as_rows(self.plan.columns, np.hstack([hits, middle]).astype(np.float64)), vectors.encoded

    def _ranks(self, vectors: NDArray[np.float64]) -> NDArray[np.intp]:
        """Rank each vector among the other documents, shape (queries, vectors); it wins ties."""
        queries, similarities, in_order = self._searched
        found = queries @ vectors.T
        own = np.repeat(self.plan.places, len(COPIES))
        above = np.stack(
            [
                len(row) - np.searchsorted(row, each, side="right")
                for row, each in zip(in_order, found, strict=True)
            ]
        )
        return 1 + above - (similarities[:, own] > found)

    @cached_property
    def _searched(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Query vectors, their similarities to all documents, and the sorted similarities."""
        places = self.clean.places
        queries, documents = (
            exact_unit_vectors(self.clean.vectors[[places[probe] for probe in probes]])
            for probes in (self.plan.queries, self.plan.documents)
        )
        similarities = queries @ documents.T
        return queries, similarities, np.sort(similarities, axis=1)
