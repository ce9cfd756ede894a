"""Encode a task under every condition, a shard for the repetitions of a token."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdEncoder
from stickytoken.impacts.carriers import Carrier, Treatment, needed_room, prepare
from stickytoken.impacts.conditions import Condition, grouped
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.impacts.vectors import VectorStore
from stickytoken.insertion import Probe
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.tasks.protocol import Outcomes, Scored, Task

_UNIT = "unit"
_VECTORS = "vectors-"

GroupOutcomes: TypeAlias = tuple[list[Outcomes], int]
"""Outcomes of each repetition, and how many texts were encoded for them."""


@dataclass(frozen=True)
class TaskOutcomes:
    """What came of a task.

    Attributes:
        task: the task.
        outcomes: shape (conditions, units, columns).
        edited: texts that get copies.
        cut: texts that were cut, in every condition alike.
        texts: texts in all.
    """

    task: Scored
    outcomes: NDArray[np.float64]
    edited: int
    cut: int
    texts: int


class TaskRunner:
    """Computes tasks into a folder; what is committed is not computed again.

    Args:
        encoder: the model.
        settings: of the measurement.
        conditions: all of them, those of a token together.
        folder: where shards are committed; the caller holds its lock.
        progress: told after every shard.
    """

    def __init__(
        self,
        encoder: IdEncoder,
        settings: ImpactSettings,
        conditions: Sequence[Condition],
        folder: ResultFolder,
        progress: ProgressCallback,
    ) -> None:
        self._encoder = encoder
        self._settings = settings
        self._conditions = conditions
        self._folder = folder
        self._progress = progress
        tokens = {token for condition in conditions for token in condition.tokens}
        self._room = needed_room(
            encoder, sorted(tokens, key=lambda token: token.id), settings.copies, settings.insertion
        )

    def run(self, task: Task) -> TaskOutcomes:
        """All conditions of a task.

        Raises:
            InputError: copies leave no room for a text.
            EncodingError: a text without a usable vector.
        """
        edited = task.edited(self._settings.side)
        carriers = {
            role: prepare(
                self._encoder, texts, self._room if role in edited else 0, self._settings.insertion, task.name
            )
            for role, texts in task.texts.items()
        }
        treatment, stage = Treatment.of(self._settings), shard_stage(task.name)
        clean = {role: [treatment.clean(carrier) for carrier in texts] for role, texts in carriers.items()}
        store = VectorStore(
            self._encoder,
            (probe for role in clean.values() for probe in role),
            vectors_file(self._folder, stage),
        )

        def probes(role: str, condition: Condition) -> list[Probe]:
            if role not in edited or not condition.tokens:
                return clean[role]
            return [treatment.probe(carrier, condition) for carrier in carriers[role]]

        def outcomes(group: Sequence[Condition]) -> GroupOutcomes:
            before, found = store.edited, []
            store.begin(group[0].tokens)
            for condition in group:
                vectors = {role: store.of(probes(role, condition)) for role in carriers}
                found.append(task.outcomes(vectors, condition.seed))
            return found, store.edited - before + (0 if group[0].tokens else store.clean)

        found = run_groups(
            Stage(stage, task.name, task.columns, task.units),
            self._conditions,
            outcomes,
            self._folder,
            self._progress,
        )
        return TaskOutcomes(task, found, **_counts(carriers, edited))


def _counts(carriers: Mapping[str, Sequence[Carrier]], edited: frozenset[str]) -> dict[str, int]:
    everything = [carrier for each in carriers.values() for carrier in each]
    return {
        "edited": sum(len(carriers[role]) for role in edited),
        "cut": sum(carrier.cut for carrier in everything),
        "texts": len(everything),
    }


@dataclass(frozen=True)
class Stage:
    """What is computed in shards.

    Attributes:
        key: of its files.
        name: for people.
        columns: of its outcomes.
        units: of its outcomes.
    """

    key: str
    name: str
    columns: Sequence[str]
    units: int


def run_groups(
    stage: Stage,
    conditions: Sequence[Condition],
    outcomes: Callable[[Sequence[Condition]], GroupOutcomes],
    folder: ResultFolder,
    progress: ProgressCallback,
) -> NDArray[np.float64]:
    """Outcomes under all conditions, shape (conditions, units, columns).

    A shard holds all repetitions of a token: they share texts, so that a session that began in
    their middle would form other batches than one that computed all of them.

    Args:
        stage: what is computed.
        conditions: all of them.
        outcomes: computes the repetitions of one token.
        folder: where shards are committed.
        progress: told after every shard.
    """
    groups = grouped(conditions)
    found: list[NDArray[np.float64]] = []
    computed = sequences = 0
    progress(Progress(stage.name, 0, len(groups)))
    for index, group in enumerate(groups):
        units = list(range(stage.units)) * len(group)
        frame = folder.read_shard(stage.key, index, units, _UNIT)
        if frame is not None:
            values = frame.select(stage.columns).to_numpy().astype(np.float64)
        else:
            started = time.perf_counter()
            each, encoded = outcomes(group)
            values = np.concatenate(each)
            rows = [
                {_UNIT: unit, **dict(zip(stage.columns, row, strict=True))}
                for unit, row in zip(units, values.tolist(), strict=True)
            ]
            folder.write_shard(stage.key, index, rows, ShardCost(time.perf_counter() - started, encoded))
            computed += 1
            sequences += encoded
        found.append(values.reshape(len(group), stage.units, len(stage.columns)))
        progress(Progress(stage.name, index + 1, len(groups), computed, sequences))
    return np.concatenate(found)


def shard_stage(name: str) -> str:
    """The key of a task's files."""
    return "task-" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


def vectors_file(folder: ResultFolder, stage: str) -> Path:
    """Where a stage commits vectors of texts without copies."""
    return folder.path / f"{_VECTORS}{stage}.npz"


def remove_vectors(folder: ResultFolder) -> None:
    """Delete the vectors of a finished measurement: its shards hold all that comes of them."""
    for path in folder.path.glob(f"{_VECTORS}*.npz"):
        path.unlink(missing_ok=True)
