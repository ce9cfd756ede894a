"""Encode a task under every condition, a shard a condition."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.impacts.carriers import Carrier, Treatment, needed_room, prepare
from stickytoken.impacts.conditions import Condition, Kind
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.impacts.tasks.protocol import Outcomes, Scored, Task
from stickytoken.impacts.vectors import VectorStore
from stickytoken.runs.progress import Progress, ProgressCallback
from stickytoken.runs.store import RunFolder, ShardCost

_UNIT = "unit"


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
        encoder: Encoder,
        settings: ImpactSettings,
        conditions: Sequence[Condition],
        folder: RunFolder,
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
        store = VectorStore(self._encoder)
        treatment = Treatment.of(self._settings)

        def outcomes(condition: Condition) -> tuple[Outcomes, int]:
            before = store.encoded
            vectors = encoded(store, treatment, carriers, edited, condition)
            return task.outcomes(vectors, condition.seed), store.encoded - before

        found = run_conditions(
            task.name, task.columns, task.units, self._conditions, outcomes, self._folder, self._progress
        )
        everything = [carrier for each in carriers.values() for carrier in each]
        return TaskOutcomes(
            task,
            found,
            edited=sum(len(carriers[role]) for role in edited),
            cut=sum(carrier.cut for carrier in everything),
            texts=len(everything),
        )


def run_conditions(
    name: str,
    columns: Sequence[str],
    units: int,
    conditions: Sequence[Condition],
    outcomes: Callable[[Condition], tuple[Outcomes, int]],
    folder: RunFolder,
    progress: ProgressCallback,
) -> NDArray[np.float64]:
    """Outcomes under all conditions, shape (conditions, units, columns).

    Args:
        name: of the task.
        columns: of its outcomes.
        units: of its outcomes.
        conditions: all of them.
        outcomes: computes one condition; returns its outcomes and how many texts were encoded.
        folder: where shards are committed.
        progress: told after every shard.
    """
    stage, keys = shard_stage(name), list(range(units))
    found: list[Outcomes] = []
    computed = sequences = 0
    progress(Progress(name, 0, len(conditions)))
    for index, condition in enumerate(conditions):
        frame = folder.read_shard(stage, index, keys, _UNIT)
        if frame is not None:
            found.append(frame.select(columns).to_numpy().astype(np.float64))
        else:
            started = time.perf_counter()
            values, encoded_texts = outcomes(condition)
            rows = [
                {_UNIT: unit, **dict(zip(columns, row, strict=True))}
                for unit, row in zip(keys, values.tolist(), strict=True)
            ]
            folder.write_shard(stage, index, rows, ShardCost(time.perf_counter() - started, encoded_texts))
            found.append(values)
            computed += 1
            sequences += encoded_texts
        progress(Progress(name, index + 1, len(conditions), computed, sequences))
    return np.stack(found)


def shard_stage(name: str) -> str:
    """The name of a task's shards."""
    return "task-" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


def encoded(
    store: VectorStore,
    treatment: Treatment,
    carriers: Mapping[str, Sequence[Carrier]],
    edited: frozenset[str],
    condition: Condition,
) -> dict[str, NDArray[np.float32]]:
    """Vectors of all texts under a condition, by role."""
    clean = Condition(Kind.CLEAN, (), condition.repetition, condition.seed)
    store.begin(condition.tokens)
    return {
        role: store.of(
            [treatment.probe(carrier, condition if role in edited else clean) for carrier in texts],
            keep=role not in edited or not condition.tokens,
        )
        for role, texts in carriers.items()
    }
