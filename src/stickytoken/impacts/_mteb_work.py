"""Run MTEB tasks under every condition, with a model that inserts copies into the texts it encodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.protocol import Encoder, IdEncoder, require_ids
from stickytoken.hashing import digest
from stickytoken.impacts._compute import UNIT, Group, GroupRunner, GroupWork, TaskOutcomes, shard_stage
from stickytoken.impacts._conditions import Condition
from stickytoken.impacts._vectors import NO_COST
from stickytoken.impacts.carriers import Treatment, needed_room, prepare
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.tasks.mteb import MtebTask, evaluate, load_data, require_module

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_BATCH = 32


class EditingEncoder:
    """MTEB's own wrapper of a SentenceTransformer, which gets edited texts.

    Texts are edited first, so any cache of the inner model is keyed by the edited texts. The name under
    which MTEB stores results differs between conditions. No condition can get vectors or scores of another.

    Args:
        encoder: an encoder made from a SentenceTransformer.
        condition: what is inserted.
        settings: placement, copies and side.
        room: number of tokens kept free for copies, the same under every condition; 0 leaves texts
            unchanged.
    """

    def __init__(self, encoder: IdEncoder, condition: Condition, settings: ImpactSettings, room: int) -> None:
        from mteb.models import SentenceTransformerEncoderWrapper

        model = require_module(encoder)
        self._encoder = encoder
        self._condition = condition
        self._side = settings.side
        self._room = room
        self._treatment = replace(Treatment.of(settings), insertion=Insertion.TEXT)
        self._inner: Any = SentenceTransformerEncoderWrapper(model)
        self.encoded = 0
        self.cut = 0
        identity = [asdict(encoder.identity), asdict(condition), asdict(self._treatment), settings.side, room]
        self.mteb_model_meta = self._inner.mteb_model_meta.model_copy(
            update={"name": f"stickytoken/{condition.kind.value}", "revision": digest(identity)}
        )

    def encode(self, inputs: DataLoader[Any], *, prompt_type: Any = None, **options: Any) -> Any:
        """Edit and encode batches of texts; see `mteb.EncoderProtocol`."""
        if self._edits(prompt_type):
            inputs = self._edited(inputs)
        self.encoded += len(inputs.dataset)  # type: ignore[arg-type]
        return self._inner.encode(inputs, prompt_type=prompt_type, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the model's similarity of all pairs of vectors."""
        return self._inner.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the model's similarity of each vector with its partner."""
        return self._inner.similarity_pairwise(embeddings1, embeddings2)

    def edit(self, texts: Sequence[str]) -> list[str]:
        """Return the edited texts."""
        if not self._condition.tokens and not self._room:
            return list(texts)
        carriers = prepare(self._encoder, texts, self._room, Insertion.TEXT, "an MTEB task")
        self.cut += sum(carrier.cut for carrier in carriers)
        return [str(self._treatment.probe(carrier, self._condition)) for carrier in carriers]

    def _edits(self, prompt_type: Any) -> bool:
        """Whether to edit these texts; tasks without sides always are."""
        return prompt_type is None or self._side is Side.BOTH or str(prompt_type.value) == self._side.value

    def _edited(self, inputs: DataLoader[Any]) -> DataLoader[Any]:
        from datasets import Dataset
        from torch.utils.data import DataLoader as Loader

        texts = [text for batch in inputs for text in batch["text"]]
        return Loader(Dataset.from_dict({"text": self.edit(texts)}), batch_size=inputs.batch_size or _BATCH)


# Columns besides the score: numbers of texts encoded and truncated.
_TEXTS, _CUT = "texts", "cut"


@dataclass(frozen=True)
class MtebWork(GroupWork):
    """The main score of a task under the conditions of each group."""

    name: str
    task: MtebTask
    settings: ImpactSettings
    room: int

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Score every repetition; repetitions that edit texts identically are evaluated once."""
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
    """Compute the main score of a task under all conditions."""
    tokens = sorted({token for each in conditions for token in each.tokens}, key=lambda token: token.id)
    room = needed_room(encoder, tokens, settings.copies, Insertion.TEXT)
    work = MtebWork(shard_stage(task.name), task, settings, room)
    frame = runner.run(work.name, lambda: (work, NO_COST), task.units, conditions, task.name)
    outcomes = runner.outcomes(frame, task.columns, task.units)
    texts, cut = (int(frame[column][-1]) for column in (_TEXTS, _CUT))
    return TaskOutcomes(task, outcomes, edited=texts, cut=cut, texts=texts)
