"""The rows of an impact measurement: search results that copies intrude into, and the effects on tasks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import bundled_frame, load_sentences, tasks
from stickytoken.data.metrics import Scored, fingerprint
from stickytoken.encoders.protocol import Encoder, WordEncoder
from stickytoken.errors import InputError
from stickytoken.impacts import statistics
from stickytoken.impacts._vectors import (
    CleanVectors,
    EditedVectors,
    Group,
    GroupRunner,
    GroupWork,
    as_rows,
    grouped,
    shard_stage,
)
from stickytoken.impacts.results import ImpactSettings
from stickytoken.impacts.statistics import Carrier, Condition, Kind, combine, present
from stickytoken.insertion import Probe, Token
from stickytoken.measurement.store import ShardCost
from stickytoken.unit_vectors import exact_unit_vectors

COPIES = (0, 1, 2, 4, 8, 16, 32)
TOP = 10
_TARGETS = 50
_QUERIES = 200
# Hits, then median ranks, for each number of copies.
_COLUMNS = tuple(f"{kind}_{copies}" for kind in ("hits", "rank") for copies in COPIES)

Rows = list[dict[str, Any]]


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


def load_search_corpus(source: str | Path, seed: int) -> SearchCorpus:
    """Read a BEIR folder, a file of documents, or the bundled sentences.

    A file has no queries: up to 200 random documents of it are used as queries instead. Of the bundled
    sentences, one of each pair of paraphrases is.
    """
    if str(source) == "bundled":
        pairs = bundled_frame().group_by("pair_id", maintain_order=True).agg("sentence")["sentence"]
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:_QUERIES]
        queries = [pairs[int(place)][0] for place in sorted(chosen)]
        documents = [sentence for pair in pairs for sentence in pair if sentence not in set(queries)]
        return SearchCorpus("bundled sentences", tuple(queries), tuple(documents))
    path = Path(source).expanduser()
    if path.is_dir():
        texts, searched = path / tasks.CORPUS, path / tasks.QUERIES
        if not texts.is_file() or not searched.is_file():
            raise InputError(
                f"the folder {path} does not contain {texts.name} and {searched.name}: pass a BEIR folder or "
                "a file"
            )
        documents = [text for text in tasks.read_documents(texts).values() if text]
        queries, name = list(tasks.read_queries(searched).values()), path.resolve().name
    else:
        sentences = load_sentences(path)
        order = np.random.default_rng(seed).permutation(len(sentences))
        count = min(_QUERIES, len(sentences) // 3)
        queries, documents = (
            [sentences.texts[place] for place in sorted(part)] for part in (order[:count], order[count:])
        )
        name = path.resolve().stem
    if len(documents) <= 2 * TOP or not queries:
        raise InputError(
            f"{name} has {len(documents)} documents and {len(queries)} queries: "
            f"a top {TOP} needs more than {2 * TOP} documents and at least one query"
        )
    return SearchCorpus(name, tuple(queries), tuple(documents))


@dataclass(frozen=True)
class _IntrusionWork(GroupWork):
    """Ranks of documents with copies, token by token; ``places`` are their indices in the corpus."""

    name: str
    places: tuple[int, ...]
    targets: tuple[Carrier, ...]
    settings: ImpactSettings
    queries: tuple[Probe, ...]
    documents: tuple[Probe, ...]
    clean: CleanVectors

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[Rows, int]:
        """Count the queries with a document in their top 10, and take its median rank."""
        (condition,) = prepared.conditions
        vectors = EditedVectors(encoder, self.clean)
        probes = [
            statistics.probe(self.settings, target, condition, copies)
            for target in self.targets
            for copies in COPIES
        ]
        # Rank each vector among the other documents, shape (queries, vectors); it wins ties.
        queries, similarities, in_order = self._searched
        found = queries @ exact_unit_vectors(vectors.of(probes)).T
        own = np.repeat(self.places, len(COPIES))
        above = [
            len(row) - np.searchsorted(row, each, side="right")
            for row, each in zip(in_order, found, strict=True)
        ]
        ranks = 1 + np.stack(above) - (similarities[:, own] > found)
        shape = len(self.targets), len(COPIES)
        hits = (ranks <= TOP).sum(axis=0).reshape(shape)
        middle = np.median(ranks, axis=0).reshape(shape)
        return as_rows(_COLUMNS, np.hstack([hits, middle]).astype(np.float64)), vectors.encoded

    @cached_property
    def _searched(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Query vectors, their similarities to all documents, and the sorted similarities."""
        places = self.clean.places
        queries, documents = (
            exact_unit_vectors(self.clean.vectors[[places[probe] for probe in probes]])
            for probes in (self.queries, self.documents)
        )
        similarities = queries @ documents.T
        return queries, similarities, np.sort(similarities, axis=1)


def run_intrusion(
    encoder: WordEncoder,
    settings: ImpactSettings,
    corpus: SearchCorpus,
    conditions: Sequence[Condition],
    names: Mapping[int, str],
    named: Collection[int],
    runner: GroupRunner,
) -> tuple[Rows, Rows]:
    """Put copies of each single token into random documents; return the rows of both tables."""
    conditions = [each for each in conditions if len(each.tokens) == 1 and each.repetition == 0]
    tokens: list[Token] = [each.tokens[0] for each in conditions]
    insertion, name = settings.insertion, f"intrusion-{shard_stage(corpus.name)}"
    drawn = np.random.default_rng([settings.seed, len(corpus.documents)]).permutation(len(corpus.documents))
    places = sorted(drawn[:_TARGETS].tolist())
    room = statistics.needed_room(encoder, tokens, COPIES[-1], insertion)
    chosen = [corpus.documents[place] for place in places]
    targets = statistics.prepare(encoder, chosen, room, insertion, corpus.name)
    documents, queries = (
        [each.clean(insertion) for each in statistics.prepare(encoder, texts, 0, insertion, corpus.name)]
        for texts in (corpus.documents, corpus.queries)
    )

    def make_work() -> tuple[_IntrusionWork, ShardCost]:
        probes = [*queries, *documents, *(target.clean(insertion) for target in targets)]
        clean, spent = runner.clean(name, probes)
        work = _IntrusionWork(
            name, tuple(places), tuple(targets), settings, tuple(queries), tuple(documents), clean
        )
        return work, spent

    title = f"intrusion into {corpus.name}"
    found = runner.run(name, make_work, len(targets), _COLUMNS, conditions, title)
    hits, ranks = found[:, :, : len(COPIES)], found[:, :, len(COPIES) :]
    curves = [
        {
            "corpus": corpus.name,
            "kind": condition.label(named),
            "token_id": token.id,
            "token": names[token.id],
            "copies": copies,
            "hits": float(hits[row, :, place].mean()),
            "median_rank": float(np.median(ranks[row, :, place])),
            "copies_needed": needed,
        }
        for row, (condition, token, needed) in enumerate(
            zip(conditions, tokens, copies_needed(hits), strict=True)
        )
        for place, copies in enumerate(COPIES)
    ]
    summary = intrusion_summary(hits, ranks, conditions, settings, corpus.name)
    cut = sum(target.cut for target in targets)
    return [row | {"cut": cut} for row in summary], curves


def intrusion_summary(
    hits: NDArray[np.float64],
    ranks: NDArray[np.float64],
    conditions: Sequence[Condition],
    settings: ImpactSettings,
    name: str,
) -> Rows:
    """Return one row per number of copies: sticky and benign hits, with intervals over documents.

    ``ratio`` divides the mean hits of sticky copies by those of benign copies; it is null if not finite.
    Ranks are medians over queries and documents, averaged over tokens.
    """
    sticky, benign = (
        np.array([each.kind is kind for each in conditions]) for kind in (Kind.STICKY, Kind.BENIGN)
    )
    middle = np.median(ranks, axis=1)
    samples = statistics.bootstrap_samples(
        hits.shape[1], settings.resamples, [settings.seed, zlib.crc32(name.encode())]
    )
    tail = (1 - settings.confidence) / 2
    rows = []
    for place, copies in enumerate(COPIES):
        above, below = (hits[kind, :, place].mean(axis=0) for kind in (sticky, benign))
        drawn = [_ratio(above[sample], below[sample]) for sample in samples]
        # An order statistic: some samples have no benign hit, so their ratio is infinite.
        low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf").tolist()
        rows.append(
            {
                "corpus": name,
                "copies": copies,
                "hits_sticky": float(above.mean()),
                "hits_benign": float(below.mean()),
                "ratio": _finite(_ratio(above, below)),
                "ratio_low": _finite(low),
                "ratio_high": _finite(high),
                "rank_sticky": float(middle[sticky, place].mean()),
                "rank_benign": float(middle[benign, place].mean()),
                "documents": len(above),
            }
        )
    return rows


def copies_needed(hits: NDArray[np.float64]) -> list[int | None]:
    """Return how many copies bring half of the documents into at least one more top 10; None if 32 do not."""
    half = (hits > hits[:, :, :1]).mean(axis=1) >= 0.5
    return [COPIES[int(row.argmax())] if row.any() else None for row in half]


def _ratio(sticky: NDArray[np.float64], benign: NDArray[np.float64]) -> float:
    """Divide mean sticky by mean benign hits; infinite if only the latter are 0, NaN if both are."""
    above, below = float(sticky.mean()), float(benign.mean())
    if below > 0:
        return above / below
    return math.inf if above > 0 else math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def task_rows(
    task: Scored,
    outcomes: NDArray[np.float64],
    conditions: Sequence[Condition],
    settings: ImpactSettings,
    names: Mapping[int, str],
    named: Collection[int] = (),
) -> dict[str, Rows]:
    """Return the rows of a task by table; every metric is resampled once.

    ``scores`` has one row per metric, condition and repetition, ``conditions`` one per metric and condition,
    and ``effects`` one per metric, the main one first.
    """
    key = [settings.seed, zlib.crc32(task.name.encode())]
    # A single unit has no interval.
    samples = statistics.bootstrap_samples(task.units, settings.resamples if task.units > 1 else 0, key)
    groups = [group.conditions for group in grouped(conditions)]
    firsts = [group[0] for group in groups]
    # Weights for the mean over the repetitions of each token, shape (groups, conditions).
    weights = np.vstack([[(each in group) / len(group) for each in conditions] for group in groups])
    clean, sticky, benign = (
        weights[[each.kind is kind and len(each.tokens) <= 1 for each in firsts]] for kind in Kind
    )
    means = np.vstack([each.mean(axis=0) for each in (clean, sticky, benign)])
    contrasts = np.vstack([means[0] - means[1], means[0] - means[2], means[2] - means[1]])
    rows: dict[str, Rows] = {"effects": [], "conditions": [], "scores": []}
    for metric in task.metrics:
        drawn = statistics.resampled(
            lambda sample, metric=metric: task.scores(metric, outcomes, sample),  # type: ignore[misc]
            samples,
        )
        values = drawn[0]
        its: dict[str, Any] = {"task": task.name, "metric": metric}
        for condition, value in zip(conditions, values.tolist(), strict=True):
            labels = its | _labels(condition, names, named)
            rows["scores"].append(labels | {"repetition": condition.repetition, "score": present(value)})
        scores = combine(weights, values).tolist()
        drops = statistics.contrast_intervals(drawn, clean - weights, settings.confidence)
        for condition, value, drop in zip(firsts, scores, drops, strict=True):
            shown = (None, None, None) if condition.kind is Kind.CLEAN else drop
            labels = its | _labels(condition, names, named)
            rows["conditions"].append(labels | {"score": present(value), **_ends("drop", shown)})
        by_kind = [present(score) for score in combine(means, values).tolist()]
        intervals = statistics.contrast_intervals(drawn, contrasts, settings.confidence)
        # The first match of every sticky token comes first, then the second.
        costs = [combine(clean - kind, values).reshape(-1, len(sticky)) for kind in (sticky, benign)]
        p_value, effect_size = statistics.compare(np.vstack(costs).T, key)
        effect = its | {"layout": task.layout, "main": metric == task.metrics[0]}
        effect |= {"unit": task.unit, "units": task.units}
        effect |= zip(("clean", "sticky", "benign"), by_kind, strict=True)
        for name, interval in zip(("drop_sticky", "drop_benign", "difference"), intervals, strict=True):
            effect |= _ends(name, interval)
        for name in ("drop_sticky", "drop_benign"):
            defined = effect[name] is not None and effect["clean"]
            effect[f"{name}_relative"] = effect[name] / effect["clean"] if defined else None
        effect |= {"tokens": len(sticky), "benign_tokens": len(benign)}
        rows["effects"].append(effect | {"effect_size": effect_size, "p_value": p_value})
    return rows


def with_q_values(rows: Rows) -> Rows:
    """Add p-values corrected over tasks to effect rows; only main metrics count as tests."""
    q_values = statistics.corrected([row["p_value"] if row["main"] else None for row in rows])
    return [row | {"q_value": q_value} for row, q_value in zip(rows, q_values, strict=True)]


def _labels(condition: Condition, names: Mapping[int, str], named: Collection[int]) -> dict[str, Any]:
    alone = condition.tokens[0].id if len(condition.tokens) == 1 else None
    token = None if alone is None else names[alone]
    return {"kind": condition.label(named), "token_id": alone, "token": token}


def _ends(name: str, interval: tuple[float | None, float | None, float | None]) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))
