"""Encode the inputs of all conditions, each distinct input once, and commit the outcomes of tasks."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data import bundled_frame, load_sentences, tasks
from stickytoken.data.metrics import Outcomes, Task, fingerprint
from stickytoken.encoders.protocol import Encoder, WordEncoder
from stickytoken.errors import InputError
from stickytoken.impacts import statistics
from stickytoken.impacts.results import ImpactSettings, TaskRecord, TokenRecord
from stickytoken.impacts.statistics import COPIES, TOP, Carrier, Condition, Rows, needed_room, prepare, probe
from stickytoken.insertion import Probe
from stickytoken.measurement import engine as engines
from stickytoken.measurement.store import ResultFolder, ShardCost, write_atomically
from stickytoken.unit_vectors import exact_unit_vectors

T = TypeVar("T")

# Number of inputs without copies that an engine encodes at a time.
SHARD_PROBES = 8192
UNIT = "unit"
VECTORS = "vectors-"  # begins the names of files with vectors of a measurement that is not finished


@dataclass(frozen=True)
class CleanVectors:
    """Vectors of all distinct inputs without copies, shared by all conditions; shape (n, d)."""

    probes: tuple[Probe, ...]
    vectors: NDArray[np.float32]

    @cached_property
    def places(self) -> dict[Probe, int]:
        return {probe: place for place, probe in enumerate(self.probes)}

    def of(
        self, probes: Sequence[Probe], encoder: Encoder, edited: dict[Probe, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Return the vectors of inputs; what is neither here nor in ``edited`` is encoded and added to it."""
        clean = self.places
        if missing := [each for each in dict.fromkeys(probes) if each not in clean and each not in edited]:
            tokenized = engines.tokenized_probes(encoder, missing)
            edited.update(zip(missing, engines.encode_probes(encoder, tokenized), strict=True))
        return np.stack([self.vectors[clean[each]] if each in clean else edited[each] for each in probes])


@dataclass(frozen=True)
class Shard(Generic[T]):
    index: int
    items: tuple[T, ...]


@dataclass(frozen=True)
class _Encoding:
    name: str

    def prepare(self, shard: Shard[Probe], encoder: Encoder) -> Sequence[Probe]:
        return engines.tokenized_probes(encoder, shard.items)

    def compute(self, prepared: Sequence[Probe], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        return [{"vectors": engines.encode_probes(encoder, prepared)}], len(prepared)


# All repetitions of a token: a session that began between them would form other batches.
Group: TypeAlias = tuple[Condition, ...]


class GroupWork:
    def prepare(self, shard: Shard[Condition], encoder: Encoder) -> Group:
        del encoder  # probes are made when they are encoded, which limits memory
        return shard.items


@dataclass(frozen=True)
class Runner:
    encoder: WordEncoder
    settings: ImpactSettings
    conditions: Sequence[Condition]
    engine: engines.Engine
    folder: ResultFolder
    progress: engines.ProgressCallback
    shards: dict[str, int] = field(default_factory=dict)  # numbers of shards of what was run

    def clean(self, name: str, probes: Sequence[Probe]) -> tuple[CleanVectors, ShardCost]:
        """Encode inputs without copies, or read their vectors from an earlier session: equal batches."""
        distinct, file = tuple(dict.fromkeys(probes)), self.folder.path / f"{VECTORS}{name}.npz"
        found: tuple[NDArray[np.float32], float] | None = None
        try:
            # NumPy leaves a damaged file open if it opened it itself.
            with file.open("rb") as stored, np.load(stored, allow_pickle=False) as content:
                found = content["vectors"], float(content["seconds"])
        except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile):
            pass  # missing or damaged
        if found is None:
            started = time.perf_counter()
            starts = range(0, len(distinct), SHARD_PROBES)
            shards = [Shard(k, distinct[begin : begin + SHARD_PROBES]) for k, begin in enumerate(starts)]
            computed = self.engine.compute(_Encoding(file.stem), shards)
            in_order = sorted(computed, key=lambda each: each.shard.index)
            vectors = np.concatenate([each.rows[0]["vectors"] for each in in_order])
            found = vectors, time.perf_counter() - started
            spent = np.array(found[1])
            write_atomically(file, lambda stream: np.savez(stream, vectors=vectors, seconds=spent))
        return CleanVectors(distinct, found[0]), ShardCost(found[1], len(distinct))

    def run(
        self,
        name: str,
        make_work: Callable[[], tuple[engines.Work[Shard[Condition], Any], ShardCost]],
        units: int,
        columns: Sequence[str],
        conditions: Sequence[Condition],
        title: str,
    ) -> NDArray[np.float64]:
        """Return columns of all units under all conditions, shape (conditions, units, columns)."""
        groups = [Shard(index, each) for index, each in enumerate(statistics.by_tokens(conditions))]
        rows: engines.Rows[Shard[Condition]] = engines.Rows(
            lambda group: [*range(units)] * len(group.items), UNIT, lambda _: 1
        )
        found = engines.run_work(
            name, make_work, groups, rows, self.engine, self.folder, self.progress, title
        )
        self.shards[name] = len(groups)  # of a task that could not be run, there are none
        values = pl.concat(found).select(columns).to_numpy().astype(np.float64)
        return values.reshape(-1, units, len(columns))


@dataclass(frozen=True)
class TaskWork(GroupWork):
    name: str
    task: Task
    carriers: Mapping[str, Sequence[Carrier]]
    edited: frozenset[str]
    settings: ImpactSettings
    clean: CleanVectors

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        edited: dict[Probe, NDArray[np.float32]] = {}
        rows = []
        for condition in prepared:
            by_role = {}
            for role, carriers in self.carriers.items():
                copies = self.settings.copies if role in self.edited else 0
                probes = [probe(self.settings, each, condition, copies) for each in carriers]
                by_role[role] = self.clean.of(probes, encoder, edited)
            rows += as_rows(self.task.columns, self.task.outcomes(by_role, condition.seed))
        return rows, len(edited)


def as_rows(columns: Sequence[str], outcomes: Outcomes) -> list[dict[str, Any]]:
    return [
        {UNIT: unit, **dict(zip(columns, row, strict=True))} for unit, row in enumerate(outcomes.tolist())
    ]


def run_task(runner: Runner, task: Task) -> tuple[NDArray[np.float64], TaskRecord]:
    settings, conditions = runner.settings, runner.conditions
    edited, name, insertion = task.edited(settings.side), shard_stage(task.name), settings.insertion
    room = needed_room(runner.encoder, conditions, settings.copies, insertion)
    carriers = {
        role: prepare(runner.encoder, texts, room if role in edited else 0, insertion, task.name)
        for role, texts in task.texts.items()
    }
    everything = [carrier for each in carriers.values() for carrier in each]

    def make_work() -> tuple[TaskWork, ShardCost]:
        clean, spent = runner.clean(name, [carrier.clean(insertion) for carrier in everything])
        return TaskWork(name, task, carriers, edited, settings, clean), spent

    outcomes = runner.run(name, make_work, task.units, task.columns, conditions, task.name)
    cut = sum(carrier.cut for carrier in everything)
    return outcomes, task_record(task, len(everything), sum(len(carriers[role]) for role in edited), cut)


def task_record(task: tasks.AnyTask, texts: int, edited: int, cut: int) -> TaskRecord:
    about: dict[str, Any] = {name: getattr(task, name) for name in ("name", "layout", "unit", "units")}
    return TaskRecord(texts=texts, edited=edited, cut=cut, metrics=list(task.metrics), **about)


def shard_stage(name: str) -> str:
    return "task-" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


# Documents that search results are filled with.

_TARGETS = 50
_QUERIES = 200
# Hits, then median ranks, for each number of copies.
_COLUMNS = tuple(f"{kind}_{copies}" for kind in ("hits", "rank") for copies in COPIES)


class SearchCorpus(NamedTuple):
    name: str
    queries: Sequence[str]
    documents: Sequence[str]
    fingerprint: str


def load_search_corpus(source: str | Path, seed: int) -> SearchCorpus:
    if str(source) == "bundled":  # one of each pair of paraphrases is a query
        pairs = bundled_frame().group_by("pair_id", maintain_order=True).agg("sentence")["sentence"]
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:_QUERIES]
        queries = [pairs[int(place)][0] for place in sorted(chosen)]
        documents = [sentence for pair in pairs for sentence in pair if sentence not in set(queries)]
        name = "bundled sentences"
    elif (path := Path(source).expanduser()).is_dir():
        texts, searched = path / tasks.CORPUS, path / tasks.QUERIES
        if not texts.is_file() or not searched.is_file():
            raise InputError(
                f"the folder {path} does not contain {texts.name} and {searched.name}: pass a BEIR folder or "
                "a file"
            )
        documents = [text for text in tasks.read_texts(texts, titles=True).values() if text]
        queries, name = list(tasks.read_queries(searched).values()), path.resolve().name
    else:  # random documents of a file are the queries
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
    return SearchCorpus(name, queries, documents, fingerprint("intrusion", queries, documents, COPIES, TOP))


@dataclass(frozen=True)
class _IntrusionWork(GroupWork):
    name: str
    places: Sequence[int]
    targets: Sequence[Carrier]
    settings: ImpactSettings
    queries: Sequence[Probe]
    documents: Sequence[Probe]
    clean: CleanVectors

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[Rows, int]:
        """Count the queries with a document in their top 10, and take its median rank."""
        (condition,) = prepared
        edited: dict[Probe, NDArray[np.float32]] = {}
        probes = [
            probe(self.settings, target, condition, copies) for target in self.targets for copies in COPIES
        ]
        # Rank each vector among the other documents, shape (queries, vectors); it wins ties.
        queries, similarities, in_order = self._searched
        found = queries @ exact_unit_vectors(self.clean.of(probes, encoder, edited)).T
        own = np.repeat(self.places, len(COPIES))
        above = [
            len(row) - np.searchsorted(row, each, side="right")
            for row, each in zip(in_order, found, strict=True)
        ]
        ranks = 1 + np.stack(above) - (similarities[:, own] > found)
        shape = len(self.targets), len(COPIES)
        hits = (ranks <= TOP).sum(axis=0).reshape(shape)
        middle = np.median(ranks, axis=0).reshape(shape)
        return as_rows(_COLUMNS, np.hstack([hits, middle]).astype(np.float64)), len(edited)

    @cached_property
    def _searched(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        places = self.clean.places
        queries, documents = (
            exact_unit_vectors(self.clean.vectors[[places[each] for each in probes]])
            for probes in (self.queries, self.documents)
        )
        similarities = queries @ documents.T
        return queries, similarities, np.sort(similarities, axis=1)


def run_intrusion(runner: Runner, corpus: SearchCorpus, listed: Mapping[int, TokenRecord]) -> dict[str, Rows]:
    encoder, settings = runner.encoder, runner.settings
    conditions = [each for each in runner.conditions if len(each.tokens) == 1 and each.repetition == 0]
    insertion, name = settings.insertion, f"intrusion-{shard_stage(corpus.name)}"
    drawn = np.random.default_rng([settings.seed, len(corpus.documents)]).permutation(len(corpus.documents))
    places = sorted(drawn[:_TARGETS].tolist())
    room = needed_room(encoder, conditions, COPIES[-1], insertion)
    chosen = [corpus.documents[place] for place in places]
    targets = prepare(encoder, chosen, room, insertion, corpus.name)
    documents, queries = (
        [each.clean(insertion) for each in prepare(encoder, texts, 0, insertion, corpus.name)]
        for texts in (corpus.documents, corpus.queries)
    )

    def make_work() -> tuple[_IntrusionWork, ShardCost]:
        probes = [*queries, *documents, *(target.clean(insertion) for target in targets)]
        clean, spent = runner.clean(name, probes)
        return _IntrusionWork(name, places, targets, settings, queries, documents, clean), spent

    title = f"intrusion into {corpus.name}"
    found = runner.run(name, make_work, len(targets), _COLUMNS, conditions, title)
    cut = sum(target.cut for target in targets)
    return statistics.intrusion_rows(corpus.name, found, conditions, settings, listed, cut)
