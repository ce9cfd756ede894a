"""Run MTEB tasks on edited texts, with the evaluation code of MTEB."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import tasks as task_data
from stickytoken.data.tasks import MtebTask
from stickytoken.encoders import protocol
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import Encoder, IdEncoder
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import InputError
from stickytoken.impacts._editing import Condition, compute_room, edit_as_published, insert_copies
from stickytoken.impacts._running import (
    UNIT,
    Group,
    GroupWork,
    TaskRunner,
    find_answers,
    make_stage_name,
    make_task_record,
)
from stickytoken.impacts.results import TaskRecord
from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.machine import digest
from stickytoken.settings.impact import ImpactSettings

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# Columns in addition to the score: numbers of texts that were encoded, edited and truncated.
_TEXTS = "texts"
_EDITED = "edited"
_CUT = "cut"
# Batch size if MTEB does not set one.
_BATCH = 32


class EditingEncoder:
    """MTEB's wrapper of a SentenceTransformer, extended so that it edits texts before it encodes them."""

    # Conditions must not share cached vectors or scores. Caches are therefore keyed by the edited texts. In
    # the results, the model's name and revision identify the condition.

    def __init__(self, encoder: IdEncoder, condition: Condition, settings: ImpactSettings, room: int) -> None:
        """Wrap an encoder to run MTEB tasks under one condition.

        Args:
            encoder: the encoder of a SentenceTransformer.
            condition: the condition, whose tokens are inserted into texts.
            settings: settings that give the number and placement of the copies, and the side whose texts get
                copies. Copies are inserted as text, even if ``settings.insertion`` says otherwise.
            room: number of tokens to leave free for copies when texts are truncated.
        """
        from mteb.models import SentenceTransformerEncoderWrapper

        self._encoder = encoder
        self._condition = condition
        self._settings = settings
        # With the edits of the paper, `inserted_as` is always TEXT, and the setting `insertion` is refused.
        if settings.inserted_as is not Insertion.TEXT:
            self._settings = replace(settings, insertion=Insertion.TEXT)
        self._room = room
        self._inner: Any = SentenceTransformerEncoderWrapper(task_data.require_module(encoder))
        # MTEB calls `similarity`, `similarity_pairwise` and `encode`.
        self.similarity = self._inner.similarity
        self.similarity_pairwise = self._inner.similarity_pairwise
        # Numbers of texts that were encoded, edited and truncated.
        self.encoded = 0
        self.edited = 0
        self.cut = 0
        # MTEB tells results apart by name and revision.
        identity = [asdict(encoder.identify()), asdict(condition), asdict(self._settings), room]
        self.mteb_model_meta = self._inner.mteb_model_meta.model_copy(
            update={"name": f"stickytoken/{condition.kind.value}", "revision": digest(identity)}
        )

    def encode(self, inputs: DataLoader[Any], *, prompt_type: Any = None, **options: Any) -> Any:
        """Encode the texts of a data loader, and return the vectors.

        Args:
            inputs: the texts, in batches.
            prompt_type: whether the texts are queries or documents; None if the task does not distinguish
                queries from documents. Copies are inserted into queries, documents or both, as the settings
                say. If ``prompt_type`` is None, copies are inserted into all texts.
            options: passed on to MTEB's encoder.
        """
        side = self._settings.side
        gets_copies = prompt_type is None or side is Side.BOTH or str(prompt_type.value) == side.value
        if gets_copies:
            from datasets import Dataset
            from torch.utils.data import DataLoader as Loader

            role = None if prompt_type is None else Role(prompt_type.value)
            texts = self.edit([text for batch in inputs for text in batch["text"]], role)
            self.edited += len(texts)
            inputs = Loader(Dataset.from_dict({"text": texts}), batch_size=inputs.batch_size or _BATCH)
        self.encoded += len(inputs.dataset)  # type: ignore[arg-type]
        return self._inner.encode(inputs, prompt_type=prompt_type, **options)

    def edit(self, texts: Sequence[str], role: Role | None = None) -> list[str]:
        """Return the texts of a role after inserting the copies of the condition."""
        if not self._condition.tokens and not self._room:  # nothing is inserted, and no room is kept free
            return list(texts)
        encoder = in_role(self._encoder, role)
        fitted_texts = fit_texts(encoder, texts, self._room, Insertion.TEXT, "an MTEB task")
        self.cut += sum(fitted.cut for fitted in fitted_texts)
        copies = self._settings.copies
        return [
            str(insert_copies(self._settings, fitted, self._condition, copies)) for fitted in fitted_texts
        ]


# Columns that Chen et al. edit, keyed by MTEB's type of task. In retrieval and reranking, they edit documents
# instead.
_EDITED_COLUMNS = {
    "STS": "sentence2",
    "PairClassification": "sentence2",
    "Classification": "text",
    "Clustering": "sentences",
    "Summarization": "machine_summaries",
}


class _TaskEditor:
    """Edits the data of an MTEB task as Chen et al. (2025) do.

    Attributes:
        edited: Number of texts edited so far.
    """

    def __init__(self, kind: str, condition: Condition) -> None:
        self.edited = 0
        self._kind = kind
        self._tokens = [token.text for token in condition.tokens]
        self._stream = random.Random(condition.seed)  # runs through all splits of a task

    def edit_data(self, data: Any) -> Any:
        """Return the data of a task, or of one of its splits or languages, with edited texts."""
        if isinstance(data, Mapping) and "corpus" in data:  # a split of retrieval or reranking
            return {**data, "corpus": self._edit_corpus(data)}
        if isinstance(data, Mapping):  # splits or languages, keyed by name
            # The split "train", on which a classifier is trained, is not edited.
            return {name: split if name == "train" else self.edit_data(split) for name, split in data.items()}
        # A split of another task is a table.
        column = _EDITED_COLUMNS[self._kind]
        texts = data[column][:]  # as a list
        return data.remove_columns(column).add_column(column, self._edit_texts(texts))

    def _edit_corpus(self, data: Mapping[str, Any]) -> Any:
        corpus = data["corpus"]
        has_titles = "title" in corpus.column_names
        titles = corpus["title"][:] if has_titles else [""] * len(corpus)
        texts = [f"{title} {text}".strip() for title, text in zip(titles, corpus["text"][:], strict=True)]
        unedited = find_answers(data["relevant_docs"]) if self._kind == "Reranking" else set()
        to_edit = [index for index, document in enumerate(corpus["id"][:]) if document not in unedited]
        edited_texts = self._edit_texts([texts[index] for index in to_edit])
        for index, text in zip(to_edit, edited_texts, strict=True):
            texts[index] = text
        return corpus.remove_columns(["title", "text"] if has_titles else "text").add_column("text", texts)

    def _edit_texts(self, texts: list[Any]) -> list[Any]:
        if texts and not isinstance(texts[0], str):  # each entry of the column is a list of texts
            return [self._edit_texts(list(inner)) for inner in texts]
        self.edited += len(texts)
        return list(edit_as_published(texts, self._tokens, self._stream))


def edit_task(task: MtebTask, condition: Condition) -> tuple[MtebTask, int]:
    """Return a copy of an MTEB task, edited as by Chen et al. (2025), and the number of its edited texts.

    Edited are the documents of retrieval, the documents of reranking that answer no query, the second
    sentences of pairs, the summaries by machines, and the texts of clustering and of classification, except
    the texts that the classifier is trained on.

    Raises:
        InputError: Chen et al. had no task of this type.
    """
    kind = str(task.task.metadata.type)
    if kind not in _EDITED_COLUMNS and kind not in ("Retrieval", "Reranking"):
        raise InputError(
            f"{task.name} is a task of the type {kind}, which Chen et al. (2025) did not edit: measure it "
            "without --preset paper and --set edits=paper"
        )
    editor = _TaskEditor(kind, condition)
    copied = copy.copy(task.task)
    copied.dataset = editor.edit_data(task.task.dataset)
    return MtebTask(copied), editor.edited


@dataclass(frozen=True)
class _MtebWork(GroupWork):
    """Computes the score of an MTEB task."""

    name: str
    task: MtebTask
    settings: ImpactSettings
    room: int  # number of tokens to leave free for copies when texts are truncated

    def compute(self, prepared: Group, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Evaluate the task under each condition of a group.

        The conditions of a group are the repetitions of one condition. They insert the same tokens, and
        differ only in their repetition and seed. Conditions whose texts are edited in the same way are
        evaluated only once.

        Returns:
            A row per condition with the score and the numbers of encoded, edited and truncated texts, and the
            total number of texts that this call encoded.
        """
        task_data.load_data(self.task)
        id_encoder = protocol.require_ids(encoder, "impact")
        # Within the group, the seed alone decides how the texts are edited, so it identifies a result. The
        # key is None if the seed makes no difference.
        row_by_seed: dict[int | None, dict[str, Any]] = {}
        rows: list[dict[str, Any]] = []
        for condition in prepared:
            seed = condition.seed if self._depends_on_seed(condition) else None
            if seed not in row_by_seed:
                task = self.task
                edited_in_data = 0
                condition_of_model = condition
                if condition.draws_token:  # the data of the task are edited, and the model inserts nothing
                    task, edited_in_data = edit_task(task, condition)
                    condition_of_model = replace(condition, tokens=())
                model = EditingEncoder(id_encoder, condition_of_model, self.settings, self.room)
                score = task_data.evaluate(model, task)
                row_by_seed[seed] = {
                    UNIT: 0,  # the task has a single outcome, its score
                    self.task.columns[0]: score,
                    _TEXTS: model.encoded,
                    _EDITED: edited_in_data + model.edited,
                    _CUT: model.cut,
                }
            rows.append(row_by_seed[seed])
        return rows, sum(row[_TEXTS] for row in row_by_seed.values())

    def _depends_on_seed(self, condition: Condition) -> bool:
        if condition.draws_token:  # each text draws its token, as in the edits of the paper
            return True
        has_copies = bool(condition.tokens)
        has_random_gaps = self.settings.placement is Placement.RANDOM
        has_random_order = len(condition.tokens) > 1
        return has_copies and (has_random_gaps or has_random_order)


def run_mteb_task(runner: TaskRunner, task: MtebTask) -> tuple[NDArray[np.float64], TaskRecord]:
    """Run an MTEB task under all conditions, and return its scores, shape (conditions, units, columns).

    Raises:
        UnreachableTaskError: the data of the task cannot be loaded.
        ModelError: the model is not on this machine.
    """
    settings = runner.settings
    id_encoder = protocol.require_ids(runner.encoder, "an MTEB task", "use a task from files")
    room = compute_room(id_encoder, runner.conditions, settings.copies, Insertion.TEXT)
    work = _MtebWork(make_stage_name(task.name), task, settings, room)

    counts = (_TEXTS, _EDITED, _CUT)
    columns = (*task.columns, *counts)
    outcomes = runner.run(work, task.units, columns, task.name)
    # The score of an MTEB task is stored as the outcome of a single unit. Every condition encodes, edits and
    # truncates the same numbers of texts, so the numbers are taken from the first condition.
    texts, edited, cut = outcomes[0, 0, -len(counts) :].astype(int).tolist()
    return outcomes[:, :, : -len(counts)], make_task_record(task, texts, edited, cut)
