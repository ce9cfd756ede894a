"""Encode the inputs of all conditions, each distinct input once, and commit the outcomes of tasks."""

from __future__ import annotations

import hashlib
import io
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data.metrics import Outcomes, Scored, Task
from stickytoken.encoders.protocol import Encoder, WordEncoder
from stickytoken.impacts.results import ImpactSettings, TaskRecord
from stickytoken.impacts.statistics import Carrier, Condition, needed_room, prepare, probe
from stickytoken.insertion import Probe
from stickytoken.measurement import engine as engines
from stickytoken.measurement.store import ResultFolder, ShardCost, write_atomically

NO_COST = ShardCost(0, 0)
# Number of inputs without copies that an engine encodes at a time.
SHARD_PROBES = 8192
UNIT = "unit"
_VECTORS = "vectors-"

# Outcomes of a task under all conditions, shape (conditions, units, columns), and its record.
TaskOutcomes: TypeAlias = tuple[NDArray[np.float64], TaskRecord]


@dataclass(frozen=True)
class CleanVectors:
    """Vectors of all distinct inputs without copies, shared by all conditions; shape (n, d)."""

    probes: tuple[Probe, ...]
    vectors: NDArray[np.float32]

    @cached_property
    def places(self) -> dict[Probe, int]:
        return {probe: place for place, probe in enumerate(self.probes)}


class EditedVectors:
    """Encodes the inputs of all repetitions of a token, each distinct one once."""

    def __init__(self, encoder: Encoder, clean: CleanVectors) -> None:
        self._encoder = encoder
        self._clean = clean
        self._edited: dict[Probe, NDArray[np.float32]] = {}

    @property
    def encoded(self) -> int:
        """Number of inputs with copies that were encoded."""
        return len(self._edited)

    def of(self, probes: Sequence[Probe]) -> NDArray[np.float32]:
        """Return the vectors of inputs in order, shape (n, d)."""
        clean = self._clean.places
        missing = [each for each in dict.fromkeys(probes) if each not in clean and each not in self._edited]
        if missing:
            tokenized = engines.tokenized_probes(self._encoder, missing)
            vectors = engines.encode_probes(self._encoder, tokenized)
            self._edited.update(zip(missing, vectors, strict=True))
        return np.stack(
            [self._clean.vectors[clean[each]] if each in clean else self._edited[each] for each in probes]
        )


@dataclass(frozen=True)
class _ProbeShard:
    index: int
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class _Encoding:
    """Work that encodes inputs unchanged; one row has all vectors."""

    name: str

    def prepare(self, shard: _ProbeShard, encoder: Encoder) -> Sequence[Probe]:
        return engines.tokenized_probes(encoder, shard.probes)

    def compute(self, prepared: Sequence[Probe], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        return [{"vectors": engines.encode_probes(encoder, prepared)}], len(prepared)


def clean_vectors(
    probes: Iterable[Probe], file: Path, engine: engines.Engine, shard_probes: int = SHARD_PROBES
) -> tuple[CleanVectors, ShardCost]:
    """Encode inputs without copies, or read the vectors that an earlier session committed.

    Sharing the vectors keeps the batches of a continued measurement the same as without an interruption.
    """
    distinct = tuple(dict.fromkeys(probes))
    key = hashlib.sha256(repr(list(distinct)).encode("utf-8", "surrogatepass")).hexdigest()
    found: tuple[NDArray[np.float32], float] | None = None
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as content:
            vectors = content["vectors"]  # reading to the end verifies the checksum
            if str(content["key"]) == key:
                found = vectors, float(content["seconds"])
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        pass  # missing or damaged
    if found is None:
        started = time.perf_counter()
        starts = range(0, len(distinct), shard_probes)
        shards = [_ProbeShard(k, distinct[start : start + shard_probes]) for k, start in enumerate(starts)]
        computed = {each.shard.index: each.rows for each in engine.compute(_Encoding(file.stem), shards)}
        vectors = np.concatenate([computed[shard.index][0]["vectors"] for shard in shards])
        found = vectors, time.perf_counter() - started
        seconds = np.array(found[1])
        write_atomically(
            file, lambda stream: np.savez(stream, vectors=vectors, seconds=seconds, key=np.array(key))
        )
    return CleanVectors(distinct, found[0]), ShardCost(found[1], len(distinct))


@dataclass(frozen=True)
class Group:
    """A shard: all repetitions of a token.

    Repetitions share texts. If a session could start in the middle of them, its batches would differ from
    those of an uninterrupted session.
    """

    index: int
    conditions: tuple[Condition, ...]


class GroupWork:
    """Work on groups; they are prepared when they are computed, because that limits memory."""

    def prepare(self, shard: Group, encoder: Encoder) -> Group:
        del encoder
        return shard


def grouped(conditions: Sequence[Condition]) -> list[Group]:
    """Group the repetitions of each token."""
    groups = groupby(conditions, lambda each: (each.kind, each.tokens))
    return [Group(index, tuple(group)) for index, (_, group) in enumerate(groups)]


class GroupRunner:
    """Computes groups of conditions and commits them to a folder, skipping those committed before."""

    def __init__(
        self, engine: engines.Engine, folder: ResultFolder, progress: engines.ProgressCallback
    ) -> None:
        self._engine = engine
        self._folder = folder
        self._progress = progress
        self._shards: dict[str, int] = {}

    def clean(self, name: str, probes: Sequence[Probe]) -> tuple[CleanVectors, ShardCost]:
        """Return the vectors of inputs without copies, and what they cost."""
        return clean_vectors(probes, self._folder.path / f"{_VECTORS}{name}.npz", self._engine)

    def run(
        self,
        name: str,
        make_work: Callable[[], tuple[engines.Work[Group, Any], ShardCost]],
        units: int,
        columns: Sequence[str],
        conditions: Sequence[Condition],
        title: str,
    ) -> NDArray[np.float64]:
        """Return columns of all units under all conditions, shape (conditions, units, columns)."""
        groups = grouped(conditions)
        rows: engines.Rows[Group] = engines.Rows(
            lambda group: [*range(units)] * len(group.conditions), UNIT, lambda _: 1
        )
        found = engines.run_work(
            name, make_work, groups, rows, self._engine, self._folder, self._progress, title
        )
        self._shards[name] = len(groups)  # of a task that could not be run, there are none
        values = pl.concat(found).select(columns).to_numpy().astype(np.float64)
        return values.reshape(-1, units, len(columns))

    @property
    def cost(self) -> ShardCost:
        """Cost of everything that was run, over all sessions."""
        return self._folder.total_cost(self._shards)


@dataclass(frozen=True)
class TaskWork(GroupWork):
    """Outcomes of a task under the conditions of each group."""

    name: str
    task: Task
    carriers: Mapping[str, Sequence[Carrier]]
    edited: frozenset[str]
    settings: ImpactSettings
    clean: CleanVectors

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        vectors, rows = EditedVectors(encoder, self.clean), []
        for condition in prepared.conditions:
            by_role = {}
            for role, carriers in self.carriers.items():
                copies = self.settings.copies if role in self.edited else 0
                by_role[role] = vectors.of(
                    [probe(self.settings, each, condition, copies) for each in carriers]
                )
            rows += as_rows(self.task.columns, self.task.outcomes(by_role, condition.seed))
        return rows, vectors.encoded


def as_rows(columns: Sequence[str], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return outcomes as rows of a shard, one per unit."""
    return [
        {UNIT: unit, **dict(zip(columns, row, strict=True))} for unit, row in enumerate(outcomes.tolist())
    ]


def room_of(encoder: WordEncoder, conditions: Sequence[Condition], settings: ImpactSettings) -> int:
    """Return how many tokens the copies of any condition may take."""
    tokens = {token for condition in conditions for token in condition.tokens}
    by_id = sorted(tokens, key=lambda token: token.id)
    return needed_room(encoder, by_id, settings.copies, settings.insertion)


def run_task(
    encoder: WordEncoder,
    settings: ImpactSettings,
    conditions: Sequence[Condition],
    runner: GroupRunner,
    task: Task,
) -> TaskOutcomes:
    """Compute all conditions of a task."""
    edited, name = task.edited(settings.side), shard_stage(task.name)
    room, insertion = room_of(encoder, conditions, settings), settings.insertion
    carriers = {
        role: prepare(encoder, texts, room if role in edited else 0, insertion, task.name)
        for role, texts in task.texts.items()
    }
    everything = [carrier for each in carriers.values() for carrier in each]

    def make_work() -> tuple[TaskWork, ShardCost]:
        clean, spent = runner.clean(name, [carrier.clean(insertion) for carrier in everything])
        return TaskWork(name, task, carriers, edited, settings, clean), spent

    outcomes = runner.run(name, make_work, task.units, task.columns, conditions, task.name)
    cut = sum(carrier.cut for carrier in everything)
    return outcomes, task_record(task, len(everything), sum(len(carriers[role]) for role in edited), cut)


def task_record(task: Scored, texts: int, edited: int, cut: int) -> TaskRecord:
    return TaskRecord(
        name=task.name,
        layout=task.layout,
        unit=task.unit,
        units=task.units,
        texts=texts,
        edited=edited,
        cut=cut,
        metrics=list(task.metrics),
    )


def shard_stage(name: str) -> str:
    """Return the name of a task's shards."""
    return "task-" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


def remove_vectors(folder: Path) -> None:
    """Delete the vectors of a finished measurement, whose shards contain all its outcomes."""
    for path in folder.glob(f"{_VECTORS}*.npz"):
        path.unlink(missing_ok=True)
