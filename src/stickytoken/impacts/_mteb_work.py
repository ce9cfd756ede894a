"""Run MTEB tasks under every condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stickytoken.encoders.protocol import Encoder, IdEncoder, require_ids
from stickytoken.impacts._compute import UNIT, Group, GroupRunner, TaskOutcomes
from stickytoken.impacts._conditions import Condition
from stickytoken.impacts._mteb_encoder import EditingEncoder
from stickytoken.impacts._vectors import NO_COST
from stickytoken.impacts.carriers import needed_room
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Insertion, Placement
from stickytoken.tasks.mteb import MtebTask, evaluate, load_data

# Columns besides the score: numbers of texts encoded and truncated.
_TEXTS, _CUT = "texts", "cut"


@dataclass(frozen=True)
class MtebWork:
    """The main score of a task under the conditions of each group.

    Attributes:
        name: name of the shards.
        task: the task.
        settings: settings of the measurement.
        room: number of tokens kept free for copies in every text.
    """

    name: str
    task: MtebTask
    settings: ImpactSettings
    room: int

    def prepare(self, shard: Group, encoder: Encoder) -> Group:
        """Return the shard unchanged: MTEB reads its data itself."""
        del encoder
        return shard

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Score every repetition; repetitions that edit texts identically are evaluated once.

        Raises:
            UnreachableTaskError: the data of the task cannot be loaded.
        """
        load_data(self.task)
        reading = require_ids(encoder, "impact")
        found: dict[int | None, dict[str, Any]] = {}
        rows: list[dict[str, Any]] = []
        for condition in prepared.conditions:
            edit = condition.seed if self._is_random(condition) else None
            if edit not in found:
                model = EditingEncoder(reading, condition, self.settings, self.room)
                score = evaluate(model, self.task)
                found[edit] = {UNIT: 0, self.task.columns[0]: score, _TEXTS: model.encoded, _CUT: model.cut}
            rows.append(found[edit])
        return rows, sum(row[_TEXTS] for row in found.values())

    def _is_random(self, condition: Condition) -> bool:
        """Whether a seed changes how a condition edits a text."""
        return condition.mixture or (bool(condition.tokens) and self.settings.placement is Placement.RANDOM)


def run_mteb(
    task: MtebTask,
    encoder: IdEncoder,
    settings: ImpactSettings,
    conditions: Sequence[Condition],
    runner: GroupRunner,
) -> TaskOutcomes:
    """Compute the main score of a task under all conditions.

    Raises:
        UnreachableTaskError: the data of the task cannot be loaded.
    """
    tokens = sorted({token for each in conditions for token in each.tokens}, key=lambda token: token.id)
    room = needed_room(encoder, tokens, settings.copies, Insertion.TEXT)
    work = MtebWork(runner.name_of(task.name), task, settings, room)
    frame = runner.run(work.name, lambda: (work, NO_COST), task.units, conditions, task.name)
    outcomes = runner.outcomes(frame, task.columns, task.units)
    texts, cut = (int(frame[column][-1]) for column in (_TEXTS, _CUT))
    return TaskOutcomes(task, outcomes, edited=texts, cut=cut, texts=texts)
