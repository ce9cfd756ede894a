"""Run tasks under all conditions on an engine."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data.metrics import Outcomes, RerankingTask, Task
from stickytoken.data.tasks import AnyTask
from stickytoken.encoders import protocol
from stickytoken.encoders.fitting import FittedText, fit_texts
from stickytoken.encoders.protocol import Encoder, similarity_of
from stickytoken.encoders.roles import Role, in_role
from stickytoken.encoders.scoring import encoders_of, find_role
from stickytoken.errors import InputError
from stickytoken.impacts._editing import (
    Condition,
    compute_room,
    edit_as_published,
    group_by_tokens,
    insert_copies,
)
from stickytoken.impacts.results import TaskRecord
from stickytoken.insertion import Insertion, Probe
from stickytoken.measurement import ResultFolder, engine as engines
from stickytoken.measurement.engine import Shard
from stickytoken.measurement.texts import encode_in_shards, encode_probes, tokenize_probes
from stickytoken.settings.impact import Edits, ImpactSettings
from stickytoken.unit_vectors import Similarity

# Number of inputs without copies per shard. Sentences fill batches only if there are many of each length:
# shards of 128 take 1.5 times as long.
_SHARD_TEXTS = 1024
# Shard column with the index of the unit that a row belongs to: a pair, query, text or document.
UNIT = "unit"
# Prefix of the names of stages that encode inputs without copies. Their shards are kept until the measurement
# is finished.
VECTORS = "vectors-"


@dataclass(frozen=True)
class CleanVectors:
    """Vectors of all distinct inputs without copies, which all conditions share.

    Attributes:
        probes: the distinct inputs.
        vectors: the vectors of these inputs, shape (n, d).
    """

    probes: tuple[Probe, ...]
    vectors: NDArray[np.float32]

    @cached_property
    def row_of_probe(self) -> dict[Probe, int]:
        """Row index in `vectors` of each input, keyed by input."""
        return {probe: row for row, probe in enumerate(self.probes)}

    def collect(
        self, probes: Sequence[Probe], encoder: Encoder, edited: dict[Probe, NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Return the vectors of inputs, shape (len(probes), d).

        Args:
            probes: inputs with or without copies.
            encoder: the model.
            edited: known vectors of inputs with copies. Missing vectors are computed and added to ``edited``.
        """
        clean_rows = self.row_of_probe
        distinct = dict.fromkeys(probes)  # a set that keeps the order
        missing = [probe for probe in distinct if probe not in clean_rows and probe not in edited]
        if missing:
            tokenized = tokenize_probes(encoder, missing)
            edited.update(zip(missing, encode_probes(encoder, tokenized), strict=True))
        return np.stack(
            [self.vectors[clean_rows[probe]] if probe in clean_rows else edited[probe] for probe in probes]
        )


# The repetitions of a condition: all conditions with the same tokens. They are in one shard, because a
# session that resumed between two repetitions would form different batches, which changes rounding.
Group: TypeAlias = tuple[Condition, ...]


class GroupWork:
    """Work that is divided into one shard per group of conditions."""

    def prepare(self, shard: Shard[Condition], encoder: Encoder) -> Group:
        del encoder  # inputs are made only just before they are encoded, to limit memory
        return shard.items


@dataclass
class TaskRunner:
    """Runs work under all conditions, and stores the shards of the work in a folder.

    Attributes:
        encoder: the model.
        settings: settings of the measurement.
        conditions: the conditions. The repetitions of a condition have the same tokens, and are consecutive.
        engine: computes the shards.
        folder: folder of the measurement.
        progress: called at every step.
    """

    encoder: protocol.WordEncoder
    settings: ImpactSettings
    conditions: Sequence[Condition]
    engine: engines.Engine
    folder: ResultFolder
    progress: engines.ProgressCallback

    def run(
        self, work: engines.Work[Condition, Any], units: int, columns: Sequence[str], title: str
    ) -> NDArray[np.float64]:
        """Measure under all conditions, and return the outcomes, shape (conditions, units, columns).

        A repetition is a condition of its own. Conditions with the same tokens form one shard, which stores
        one row per condition and unit. In the progress display, every shard counts as one unit.

        Args:
            work: computes the outcomes. The shards are stored under its name.
            units: number of units (pairs, queries, texts or documents), each with a row per condition.
            columns: columns to return.
            title: name of the stage in the progress display.
        """
        shards = [Shard(index, group) for index, group in enumerate(group_by_tokens(self.conditions))]

        def unit_of_each_row(shard: Shard[Condition]) -> list[int]:
            """Return the numbers of the units, once for each condition of the shard."""
            return list(range(units)) * len(shard.items)

        rows: engines.Rows[Condition] = engines.Rows(keys=unit_of_each_row, column=UNIT, size=lambda _: 1)
        tables = engines.run_work(
            work,
            shards,
            rows,
            self.engine,
            self.folder,
            self.progress,
            title=title,
        )
        # The rows are in the order of the conditions, and within a condition in the order of the units.
        outcomes = pl.concat(tables).select(columns).to_numpy().astype(np.float64)
        return outcomes.reshape(-1, units, len(columns))


@dataclass(frozen=True)
class TaskWork(GroupWork):
    """Computes the outcomes of a task on edited texts."""

    name: str
    task: Task
    texts: Mapping[str, Sequence[FittedText]]  # keyed by role in the task
    edited_roles: frozenset[str]  # roles of the texts that get copies
    settings: ImpactSettings
    clean: Mapping[Role | None, CleanVectors]  # vectors of all texts without copies
    similarity: Similarity

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Return the outcomes for a group of conditions as rows, and the number of encoded texts."""
        # `CleanVectors.collect` adds the vectors of all inputs that it encodes to these dicts.
        new_vectors: dict[Role | None, dict[Probe, NDArray[np.float32]]] = {role: {} for role in self.clean}
        rows = []
        for condition in prepared:
            vectors = {}
            for text_role, fitted_texts in self.texts.items():
                role = find_role(self.task, text_role)  # None if the task has no queries
                encoder_of_role = in_role(encoder, role)
                copies = self.settings.copies if text_role in self.edited_roles else 0
                if condition.draws_token and copies:
                    probes = self._make_published_probes(text_role, condition, encoder_of_role)
                else:
                    probes = [
                        insert_copies(self.settings, fitted, condition, copies) for fitted in fitted_texts
                    ]
                vectors[text_role] = self.clean[role].collect(probes, encoder_of_role, new_vectors[role])
            outcomes = self.task.outcomes(vectors, condition.seed, self.similarity)
            rows += make_rows(self.task.columns, outcomes)
        return rows, sum(map(len, new_vectors.values()))

    def _make_published_probes(self, role: str, condition: Condition, encoder: Encoder) -> list[Probe]:
        # Returns the texts of a role, edited as by Chen et al. (2025) and then truncated.
        texts = list(self.task.texts[role])
        indices = find_edited_indices(self.task, role)
        to_edit = [texts[index] for index in indices]
        tokens = [token.text for token in condition.tokens]
        edited_texts = edit_as_published(to_edit, tokens, random.Random(condition.seed))
        for index, edited_text in zip(indices, edited_texts, strict=True):
            texts[index] = edited_text
        word_encoder = protocol.require_words(encoder, "impact")
        # No room is left for copies, because the texts have them already.
        fitted_texts = fit_texts(word_encoder, texts, 0, Insertion.TEXT, self.task.name)
        return [fitted.as_probe(Insertion.TEXT) for fitted in fitted_texts]


def find_edited_indices(task: Task, role: str) -> list[int]:
    """Return the indices of the texts of a role that Chen et al. (2025) edit.

    These are all texts, but in reranking only the documents that answer no query.
    """
    if not isinstance(task, RerankingTask):
        return list(range(len(task.texts[role])))
    answers = find_answers(task.relevant)
    return [index for index, document in enumerate(task.documents) if document not in answers]


def find_answers(judgements: Mapping[str, Mapping[str, float]]) -> set[str]:
    """Return the documents that answer any query: those with a relevance above 0.

    ``judgements`` has the relevance of documents, keyed by query and document.
    """
    answers: set[str] = set()
    for relevance_by_document in judgements.values():
        answers |= {document for document, relevance in relevance_by_document.items() if relevance > 0}
    return answers


def make_rows(columns: Sequence[str], outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return outcomes of shape (units, columns) as rows of a shard."""
    return [
        {UNIT: unit, **dict(zip(columns, values, strict=True))}
        for unit, values in enumerate(outcomes.tolist())
    ]


def run_task(runner: TaskRunner, task: Task) -> tuple[NDArray[np.float64], TaskRecord]:
    """Run a task under all conditions.

    Returns:
        The outcomes of the task, shape (conditions, units, columns), and the record of the task with its
        numbers of texts.
    """
    settings = runner.settings
    insertion = settings.inserted_as
    # Copies are inserted only into texts with these roles, for example only into queries.
    edited_roles = task.edited(settings.side)
    name = make_stage_name(task.name)
    encoders = encoders_of(runner.encoder, task)
    # All texts, keyed by role. Texts that get copies are truncated so that the copies fit too.
    fitted_by_role = {}
    for role, texts in task.texts.items():
        encoder = encoders[role]
        room = 0
        if role in edited_roles:
            _require_same_tokenizer(runner.encoder, encoder, insertion)
            room = compute_room(encoder, runner.conditions, settings.copies, insertion)
        fitted_by_role[role] = fit_texts(encoder, texts, room, insertion, task.name)
    all_fitted = list(chain.from_iterable(fitted_by_role.values()))

    # Texts without copies are encoded once for all conditions. Roles in the task that the model encodes in
    # the same way, such as both sentences of a pair, are encoded together.
    inputs_by_role: dict[Role | None, list[Probe]] = {}
    for text_role, fitted_texts in fitted_by_role.items():
        inputs = inputs_by_role.setdefault(find_role(task, text_role), [])
        inputs += [fitted.as_probe(insertion) for fitted in fitted_texts]
    clean_vectors = {}
    for role_of_inputs, inputs in inputs_by_role.items():
        distinct_inputs = tuple(dict.fromkeys(inputs))
        vectors = encode_in_shards(
            name_clean_stage(task, role_of_inputs),
            distinct_inputs,
            runner.engine,
            runner.folder,
            runner.progress,
            role_of_inputs,
            shard_texts=_SHARD_TEXTS,
            allow_missing=True,  # as for texts with copies
        )
        clean_vectors[role_of_inputs] = CleanVectors(distinct_inputs, vectors)
    similarity = similarity_of(runner.encoder)
    work = TaskWork(name, task, fitted_by_role, edited_roles, settings, clean_vectors, similarity)
    outcomes = runner.run(work, task.units, task.columns, task.name)
    edited_count = 0
    for role in edited_roles:
        is_published = settings.edits is Edits.PAPER
        edited_count += len(find_edited_indices(task, role) if is_published else fitted_by_role[role])
    truncated_count = sum(fitted.cut for fitted in all_fitted)
    return outcomes, make_task_record(task, len(all_fitted), edited_count, truncated_count)


def _require_same_tokenizer(measured: Encoder, edited: Encoder, insertion: Insertion) -> None:
    if insertion is Insertion.IDS and measured.identify().tokenizer != edited.identify().tokenizer:
        raise InputError(
            f"{measured.name} reads queries and documents with different tokenizers, so copies cannot be "
            "inserted into both as token ids: set insertion to 'text', or insert them into documents only"
        )


def make_task_record(task: AnyTask, texts: int, edited: int, cut: int) -> TaskRecord:
    """Return the record of a task, as stored with the results.

    Args:
        task: the task.
        texts: total number of texts in the task.
        edited: number of texts that get copies.
        cut: number of texts truncated to make room for copies.
    """
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


def make_stage_name(name: str) -> str:
    """Return the name under which the shards of a task are stored."""
    return "task-" + re.sub(r"[^A-Za-z0-9._]+", "-", name)


def name_clean_stage(task: Task, role: Role | None) -> str:
    """Return the name under which the vectors of a task's inputs without copies are stored, role by role."""
    stage = f"{VECTORS}{make_stage_name(task.name)}"
    # `make_stage_name` returns no plus sign, so the stages of two tasks have different names.
    return stage if role is None else f"{stage}+{role}"
