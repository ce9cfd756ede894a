"""Encode the inputs of all conditions, each distinct input once."""

from __future__ import annotations

import hashlib
import io
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, WordEncoder
from stickytoken.impacts.conditions import Carrier, Condition, Treatment, grouped, needed_room, prepare
from stickytoken.impacts.results import ImpactSettings
from stickytoken.insertion import Probe
from stickytoken.measurement.atomic import write_atomically
from stickytoken.measurement.engine import Engine, Rows, Work, encode_probes, run_work, tokenized_probes
from stickytoken.measurement.stage import ProgressCallback
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.tasks.metrics import Outcomes, Scored, Task

NO_COST = ShardCost(0, 0)
# Number of inputs without copies that an engine encodes at a time.
SHARD_PROBES = 8192


@dataclass(frozen=True)
class CleanVectors:
    """Vectors of all inputs without copies, shared by all conditions.

    Attributes:
        probes: distinct inputs.
        vectors: shape (n, d).
    """

    probes: tuple[Probe, ...]
    vectors: NDArray[np.float32]

    @cached_property
    def places(self) -> dict[Probe, int]:
        """Row index of each input."""
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
            vectors = encode_probes(self._encoder, tokenized_probes(self._encoder, missing))
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
    """Work that encodes inputs unchanged."""

    name: str

    def prepare(self, shard: _ProbeShard, encoder: Encoder) -> Sequence[Probe]:
        """Tokenize the inputs that are texts."""
        return tokenized_probes(encoder, shard.probes)

    def compute(self, prepared: Sequence[Probe], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Encode the inputs; return one row with all vectors."""
        return [{"vectors": encode_probes(encoder, prepared)}], len(prepared)


def clean_vectors(
    probes: Iterable[Probe], file: Path, engine: Engine, shard_probes: int = SHARD_PROBES
) -> tuple[CleanVectors, ShardCost]:
    """Encode inputs without copies, or read the vectors that an earlier session committed.

    Sharing the vectors keeps the batches of a continued measurement the same as without an interruption.
    """
    distinct = tuple(dict.fromkeys(probes))
    key = hashlib.sha256(repr(list(distinct)).encode("utf-8", "surrogatepass")).hexdigest()
    found = _read(file, key)
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


def _read(file: Path, key: str) -> tuple[NDArray[np.float32], float] | None:
    """Read committed vectors; None if they are missing, damaged or belong to other inputs."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as content:
            vectors: NDArray[np.float32] = content["vectors"]  # reading to the end verifies the checksum
            return (vectors, float(content["seconds"])) if str(content["key"]) == key else None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None


UNIT = "unit"
_VECTORS = "vectors-"


@dataclass(frozen=True)
class TaskOutcomes:
    """Outcomes of a task under all conditions.

    Attributes:
        task: the task.
        outcomes: shape (conditions, units, columns).
        edited: number of texts that get copies.
        cut: number of texts truncated, the same in every condition.
        texts: number of all texts.
    """

    task: Scored
    outcomes: NDArray[np.float64]
    edited: int
    cut: int
    texts: int


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
        """Return the shard unchanged."""
        del encoder
        return shard


class GroupRunner:
    """Computes groups of conditions and commits them to a folder, skipping those committed before."""

    def __init__(self, engine: Engine, folder: ResultFolder, progress: ProgressCallback) -> None:
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
        make_work: Callable[[], tuple[Work[Group, Any], ShardCost]],
        units: int,
        conditions: Sequence[Condition],
        title: str,
    ) -> pl.DataFrame:
        """Return the rows of all conditions, grouped by condition."""
        groups = [Group(index, tuple(group)) for index, group in enumerate(grouped(conditions))]
        rows: Rows[Group] = Rows(lambda group: [*range(units)] * len(group.conditions), UNIT, lambda _: 1)

        found = run_work(name, make_work, groups, rows, self._engine, self._folder, self._progress, title)
        self._shards[name] = len(groups)
        return pl.concat(found)

    @staticmethod
    def outcomes(frame: pl.DataFrame, columns: Sequence[str], units: int) -> NDArray[np.float64]:
        """Return rows as an array of shape (conditions, units, columns)."""
        values = frame.select(columns).to_numpy().astype(np.float64)
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
    treatment: Treatment
    clean: CleanVectors

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Encode the edited texts and compute the outcomes."""
        vectors, rows = EditedVectors(encoder, self.clean), []
        for condition in prepared.conditions:
            by_role = {role: vectors.of(self._probes(role, condition)) for role in self.carriers}
            rows += as_rows(self.task.columns, self.task.outcomes(by_role, condition.seed))
        return rows, vectors.encoded

    def _probes(self, role: str, condition: Condition) -> list[Probe]:
        if role not in self.edited or not condition.tokens:
            return [self.treatment.clean(carrier) for carrier in self.carriers[role]]
        return [self.treatment.probe(carrier, condition) for carrier in self.carriers[role]]


def as_rows(columns: Sequence[str], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return outcomes as rows of a shard, one per unit."""
    return [
        {UNIT: unit, **dict(zip(columns, row, strict=True))} for unit, row in enumerate(outcomes.tolist())
    ]


class TaskRunner:
    """Computes tasks under all conditions."""

    def __init__(
        self,
        encoder: WordEncoder,
        settings: ImpactSettings,
        conditions: Sequence[Condition],
        runner: GroupRunner,
    ) -> None:
        self._encoder = encoder
        self._settings = settings
        self._conditions = conditions
        self._runner = runner
        tokens = {token for condition in conditions for token in condition.tokens}
        self._room = needed_room(
            encoder, sorted(tokens, key=lambda token: token.id), settings.copies, settings.insertion
        )

    def run(self, task: Task) -> TaskOutcomes:
        """Compute all conditions of a task."""
        edited = task.edited(self._settings.side)
        carriers = {
            role: prepare(
                self._encoder, texts, self._room if role in edited else 0, self._settings.insertion, task.name
            )
            for role, texts in task.texts.items()
        }
        treatment, name = Treatment.of(self._settings), shard_stage(task.name)

        def make_work() -> tuple[TaskWork, ShardCost]:
            probes = [treatment.clean(carrier) for texts in carriers.values() for carrier in texts]
            clean, spent = self._runner.clean(name, probes)
            return TaskWork(name, task, carriers, edited, treatment, clean), spent

        frame = self._runner.run(name, make_work, task.units, self._conditions, task.name)
        outcomes = self._runner.outcomes(frame, task.columns, task.units)
        return TaskOutcomes(task, outcomes, **_counts(carriers, edited))


def _counts(carriers: Mapping[str, Sequence[Carrier]], edited: frozenset[str]) -> dict[str, int]:
    everything = [carrier for each in carriers.values() for carrier in each]
    return {
        "edited": sum(len(carriers[role]) for role in edited),
        "cut": sum(carrier.cut for carrier in everything),
        "texts": len(everything),
    }


def shard_stage(name: str) -> str:
    """Return the name of a task's shards."""
    return "task-" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


def remove_vectors(folder: Path) -> None:
    """Delete the vectors of a finished measurement, whose shards contain all its outcomes."""
    for path in folder.glob(f"{_VECTORS}*.npz"):
        path.unlink(missing_ok=True)
