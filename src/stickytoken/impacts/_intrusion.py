"""Measure how far copies of a token push a random document into search results."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import bundled_frame, load_sentences
from stickytoken.encoders.protocol import Encoder, WordEncoder
from stickytoken.errors import InputError
from stickytoken.impacts._vectors import CleanVectors, EditedVectors, Group, GroupWork, TaskOutcomes, as_rows
from stickytoken.impacts.conditions import Carrier, Condition, Kind, Treatment, needed_room, prepare
from stickytoken.impacts.results import ImpactSettings
from stickytoken.impacts.statistics import (
    Comparison,
    Interval,
    bootstrap_samples,
    combine,
    compare,
    contrast_intervals,
    corrected,
    resampled,
)
from stickytoken.insertion import Probe, Token
from stickytoken.tasks.files import CORPUS, QUERIES, read_documents, read_queries
from stickytoken.tasks.metrics import fingerprint
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


def intrusion_rows(
    outcomes: NDArray[np.float64],
    conditions: Sequence[Condition],
    names: Mapping[int, str],
    named: Collection[int] = (),
) -> list[dict[str, Any]]:
    """Return one row per token and number of copies: top-10 hits and median rank of a random document."""
    return [
        {
            "kind": condition.label(named),
            "token_id": condition.tokens[0].id,
            "token": names[condition.tokens[0].id],
            "copies": copies,
            "hits": float(found[:, place].mean()),
            "median_rank": float(np.median(found[:, len(COPIES) + place])),
        }
        for condition, found in zip(conditions, outcomes, strict=True)
        for place, copies in enumerate(COPIES)
    ]


def intrusion_summary(
    outcomes: NDArray[np.float64], conditions: Sequence[Condition], settings: ImpactSettings, name: str
) -> list[dict[str, Any]]:
    """Return one row per number of copies: sticky and benign hits, with intervals over documents.

    ``ratio`` divides the mean hits of sticky copies by those of benign copies; it is null if not finite.
    Ranks are medians over queries and documents, averaged over tokens.
    """
    kinds = np.array([condition.kind for condition in conditions])
    hits, ranks = outcomes[:, :, : len(COPIES)], np.median(outcomes[:, :, len(COPIES) :], axis=1)
    hits_of = {kind: hits[kinds == kind].mean(axis=0) for kind in (Kind.STICKY, Kind.BENIGN)}
    ranks_of = {kind: ranks[kinds == kind].mean(axis=0) for kind in (Kind.STICKY, Kind.BENIGN)}
    samples = bootstrap_samples(
        outcomes.shape[1], settings.resamples, [settings.seed, zlib.crc32(name.encode())]
    )
    rows = []
    for place, copies in enumerate(COPIES):
        sticky, benign = (hits_of[kind][:, place] for kind in (Kind.STICKY, Kind.BENIGN))
        drawn = np.array([_ratio(sticky[sample], benign[sample]) for sample in samples])
        ratio = _ratio(sticky, benign)
        tail = (1 - settings.confidence) / 2
        # An order statistic: some samples have no benign hit, so their ratio is infinite.
        low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf").tolist()
        rows.append(
            {
                "corpus": name,
                "copies": copies,
                "hits_sticky": float(sticky.mean()),
                "hits_benign": float(benign.mean()),
                "ratio": _finite(ratio),
                "ratio_low": _finite(low),
                "ratio_high": _finite(high),
                "rank_sticky": float(ranks_of[Kind.STICKY][place]),
                "rank_benign": float(ranks_of[Kind.BENIGN][place]),
                "documents": len(sticky),
            }
        )
    return rows


def copies_needed(outcomes: NDArray[np.float64]) -> list[int | None]:
    """Return how many copies bring half of the documents into at least one more top 10; None if 32 do not."""
    hits = outcomes[:, :, : len(COPIES)]
    share = (hits > hits[:, :, :1]).mean(axis=1)
    return [
        next((copies for copies, part in zip(COPIES, row, strict=True) if part >= 0.5), None) for row in share
    ]


def _ratio(sticky: NDArray[np.float64], benign: NDArray[np.float64]) -> float:
    """Divide mean sticky by mean benign hits; infinite if only the latter are 0, NaN if both are."""
    above, below = float(sticky.mean()), float(benign.mean())
    if below > 0:
        return above / below
    return math.inf if above > 0 else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_LEAST_UNITS = 2
_UNKNOWN = Interval(None, None, None)


class TaskEffects:
    """Rows of one task. Every metric is resampled once, for all rows."""

    def __init__(
        self,
        found: TaskOutcomes,
        conditions: Sequence[Condition],
        settings: ImpactSettings,
        names: Mapping[int, str],
        named: Collection[int] = (),
    ) -> None:
        self._task = found.task
        self._outcomes = found.outcomes
        self._conditions = conditions
        self._settings = settings
        self._names = names
        self._named = named
        self._key = [settings.seed, zlib.crc32(found.task.name.encode())]

    def score_rows(self) -> list[dict[str, Any]]:
        """Return one row per metric, condition and repetition: the score."""
        return [
            {
                "task": self._task.name,
                "metric": metric,
                **_labels(condition, self._names, self._named),
                "repetition": condition.repetition,
                "score": _present(value),
            }
            for metric in self._task.metrics
            for condition, value in zip(self._conditions, self._scores[metric][0].tolist(), strict=True)
        ]

    def condition_rows(self) -> list[dict[str, Any]]:
        """Return one row per metric and condition, averaged over repetitions: score and drop from clean."""
        means = np.array([self._mean_of(group) for group in self._groups.values()])
        rows = []
        for metric in self._task.metrics:
            scores = combine(means, self._scores[metric][0])
            drops = self._intervals(metric, self._clean - means)
            for ((kind, _), group), score, drop in zip(self._groups.items(), scores, drops, strict=True):
                rows.append(
                    {
                        "task": self._task.name,
                        "metric": metric,
                        **_labels(self._conditions[group[0]], self._names, self._named),
                        "score": _present(float(score)),
                        **_ends("drop", _UNKNOWN if kind is Kind.CLEAN else drop),
                    }
                )
        return rows

    def effect_rows(self) -> list[dict[str, Any]]:
        """Return one row per metric, the main one first: mean drops, their difference, and its test."""
        return [self._effect_row(metric) for metric in self._task.metrics]

    def _effect_row(self, metric: str) -> dict[str, Any]:
        clean = self._clean
        sticky, benign = (self._single(kind).mean(axis=0) for kind in (Kind.STICKY, Kind.BENIGN))
        contrasts = np.array([clean - sticky, clean - benign, benign - sticky])
        drop_sticky, drop_benign, difference = self._intervals(metric, contrasts)
        scores = combine(np.array([clean, sticky, benign]), self._scores[metric][0]).tolist()
        score_clean, score_sticky, score_benign = (_present(score) for score in scores)
        test = self._test(metric)
        return {
            "task": self._task.name,
            "layout": self._task.layout,
            "metric": metric,
            "main": metric == self._task.metrics[0],
            "unit": self._task.unit,
            "units": self._task.units,
            "clean": score_clean,
            "sticky": score_sticky,
            "benign": score_benign,
            **_ends("drop_sticky", drop_sticky),
            **_ends("drop_benign", drop_benign),
            **_ends("difference", difference),
            "drop_sticky_relative": _share(drop_sticky.value, score_clean),
            "drop_benign_relative": _share(drop_benign.value, score_clean),
            "tokens": len(self._single(Kind.STICKY)),
            "benign_tokens": len(self._single(Kind.BENIGN)),
            "effect_size": test.effect_size,
            "p_value": test.p_value,
        }

    def _test(self, metric: str) -> Comparison:
        """Test each sticky token against its matches."""
        values = self._scores[metric][0]
        sticky, benign = (
            combine(self._clean - self._single(kind), values) for kind in (Kind.STICKY, Kind.BENIGN)
        )
        # The first match of every sticky token comes first, then the second.
        return compare(np.vstack([sticky, benign.reshape(-1, len(sticky))]).T, self._key)

    def _intervals(self, metric: str, contrasts: NDArray[np.float64]) -> list[Interval]:
        return contrast_intervals(self._scores[metric], contrasts, self._settings.confidence)

    @cached_property
    def _scores(self) -> dict[str, NDArray[np.float64]]:
        """Scores of all conditions by metric, on all units and then on each sample of them."""
        enough = self._task.units >= _LEAST_UNITS
        count = self._settings.resamples if enough else 0
        samples = bootstrap_samples(self._task.units, count, self._key)
        return {
            metric: resampled(
                lambda sample, metric=metric: self._task.scores(metric, self._outcomes, sample),  # type: ignore[misc]
                samples,
            )
            for metric in self._task.metrics
        }

    @cached_property
    def _groups(self) -> dict[tuple[Kind, tuple[int, ...]], list[int]]:
        """Indices of the repetitions of each condition."""
        groups: dict[tuple[Kind, tuple[int, ...]], list[int]] = {}
        for place, condition in enumerate(self._conditions):
            key = (condition.kind, tuple(token.id for token in condition.tokens))
            groups.setdefault(key, []).append(place)
        return groups

    @cached_property
    def _clean(self) -> NDArray[np.float64]:
        return self._mean_of(self._groups[(Kind.CLEAN, ())])

    def _single(self, kind: Kind) -> NDArray[np.float64]:
        """Return weights for the mean over repetitions of each single token, shape (tokens, conditions)."""
        return np.array(
            [
                self._mean_of(group)
                for (each, tokens), group in self._groups.items()
                if each is kind and len(tokens) == 1
            ]
        )

    def _mean_of(self, places: Sequence[int]) -> NDArray[np.float64]:
        weights = np.zeros(len(self._conditions))
        weights[list(places)] = 1 / len(places)
        return weights


def with_q_values(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add p-values corrected over tasks to effect rows; only main metrics count as tests."""
    main = [row["p_value"] if row["main"] else None for row in rows]
    return [row | {"q_value": q_value} for row, q_value in zip(rows, corrected(main), strict=True)]


def _labels(condition: Condition, names: Mapping[int, str], named: Collection[int]) -> dict[str, Any]:
    alone = condition.tokens[0] if len(condition.tokens) == 1 else None
    return {
        "kind": condition.label(named),
        "token_id": None if alone is None else alone.id,
        "token": None if alone is None else names[alone.id],
    }


def _ends(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _present(value: float) -> float | None:
    return None if np.isnan(value) else value


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
