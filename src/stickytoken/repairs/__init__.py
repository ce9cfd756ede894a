"""Repair a model: choose what to do about every token, build the model, verify it, and only then show it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.measurement as store
from stickytoken.data import Sentences, SentenceSource, load_sentences, readable
from stickytoken.data.tasks import AnyTask, find_task, kinds_task
from stickytoken.detection import TokenSource, token_ids
from stickytoken.detection.run import Run, encoder_for, flagged_tokens, open_run
from stickytoken.encoders.loading import AnyModel, loaded_like
from stickytoken.encoders.loading.resolution import load_tokenizer
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RepairError, RunError
from stickytoken.insertion import Token
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import wording
from stickytoken.repairs import model_folder, result
from stickytoken.repairs._plans import (
    Candidate,
    Choice,
    RepairPlan,
    TokenFacts,
    choose_candidates,
    plan_token,
    plan_without_editing,
)
from stickytoken.repairs._verification import Neighbour, Verification, Verified, nearest_neighbours
from stickytoken.repairs.documents import write_documents
from stickytoken.repairs.recheck import (
    Copies,
    Recheck,
    RecheckedToken,
    make_recheck,
    used_texts,
    written_tokens,
)
from stickytoken.repairs.result import ROWS, Repair, RepairedTokenRecord, Strategy, open_repair
from stickytoken.repairs.rows import Row, new_rows
from stickytoken.repairs.tokenizer_edit import ModelEdit, splittable
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import (
    file_path,
    require_callable,
    require_switch,
    set_choices,
    set_whole_numbers,
)
from stickytoken.vocabulary import Category, Vocabulary, categorize

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

__all__ = ["Repair", "open_repair", "repair"]


# Increase it when the same inputs give another model or other numbers than before.
_VERSION = 6

# Benign tokens of a run that show what is typical; with fewer, 128 random ones are measured.
_ENOUGH_BENIGN = 128


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """Settings of a repair; all of them are part of its identity.

    Attributes:
        strategy: what to do about the tokens.
        verify: whether the repaired model is measured.
        neighbours: nearest rows of the embedding matrix to measure again, per repaired token.
        seed: seed of new rows, and of the texts and placements of the verification; another one than that of
            the run.

    Raises:
        InputError: a value is out of range.
    """

    strategy: Strategy = Strategy.AUTO
    verify: bool = True
    neighbours: int = 2
    seed: int = 4242

    def __post_init__(self) -> None:
        set_whole_numbers(self, {"neighbours": 0, "seed": 0})
        set_choices(self, {"strategy": Strategy})
        require_switch("verify", self.verify)


def repair(
    run: Run | str | Path,
    tokens: TokenSource | None = None,
    *,
    out: str | Path,
    strategy: str = Strategy.AUTO,
    encoder: AnyModel | None = None,
    sentences: SentenceSource | None = None,
    task: str | Path | None = None,
    verify: bool = True,
    seed: int = 4242,
    progress: ProgressCallback = ignore_progress,
) -> Repair:
    """Write a copy of a run's model with its sticky tokens repaired, and verify it.

    The model of the run stays as it is. The same call opens a finished repair.

    Args:
        run: a finished run, or its folder.
        tokens: ids or texts of tokens to repair, or a file of them; None takes all sticky ones of the run.
        out: folder of the repaired model, a SentenceTransformer that loads without this package.
        strategy: what to do about the tokens, a `Strategy`: ``auto`` makes special tokens plain text, and
            gives other tokens a new row, or makes them unreachable if no row is ordinary; or
            ``unreachable``, ``plain-specials``, ``relatives``, ``keep-meaning`` or ``nearest``.
        encoder: the run's model, loaded by name or from a folder; None loads the one that the run names.
        sentences: corpus to verify on; None takes that of the run, without the texts that it used.
        task: task to score before and after: a task file, a BEIR folder or the name of an MTEB task; None
            takes the packaged one.
        verify: measure the repaired model. The folder says so if it was not verified.
        seed: seed of new rows, and of the texts and placements of the verification.
        progress: called after every step.

    Raises:
        InputError: tokens, sentences or the task cannot be used.
        ModelError: the model cannot be found or used.
        RepairError: the model or a token cannot be repaired in this way.
        RunError: the run is of another model, or ``out`` holds something else or cannot be written.
    """
    settings = RepairSettings(cast("Strategy", strategy), verify, seed=seed)
    require_callable("progress", progress)
    folder = file_path("out", out)
    opened = open_run(run)
    result.require_place(folder)
    chosen_task = kinds_task() if task is None else find_task(task)[0]
    instead = "its tokens can be removed from documents with stickytoken clean"
    loaded = require_ids(encoder_for(encoder, opened, "repair"), "repair", instead)
    model, source = model_folder.repairable(loaded)
    if source.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise RunError(f"{folder} is inside the folder of the model: choose another folder")
    vocabulary = categorize(model.tokenizer)
    ids = _ids_to_repair(opened, vocabulary, tokens)
    notes: list[str] = []
    corpus = readable(_verification_corpus(opened, sentences, notes), model.tokenizer, model.name)
    parts = resume.identity_of(
        _VERSION,
        model.identity,
        settings,
        run=opened.record.identity,
        tokens=sorted(ids),
        task=chosen_task.fingerprint,
        corpus=corpus.fingerprint,
    )
    finished = result.finished_repair(folder)
    if finished is not None:
        _require_same_repair(finished, parts, folder)
        model_folder.clear_workshop(folder)
        if finished not in result.repairs_in(opened.path)[0]:  # a kill came between the last two steps
            result.keep_copy(opened.path, finished)
        return Repair(folder)
    with model_folder.workshop(folder) as place:
        job = Job(
            opened, model, source, place, vocabulary, settings, corpus, chosen_task, ids, notes, progress
        )
        record = job.build(parts, folder)
    result.keep_copy(opened.path, record)
    return Repair(folder)


def _ids_to_repair(run: Run, vocabulary: Vocabulary, tokens: TokenSource | None) -> list[int]:
    """Return the ids of the named tokens, or those of the run's sticky tokens."""
    if tokens is None:
        ids: list[int] = run.sticky["token_id"].to_list()
    else:
        ids = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    if not ids:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to repair")
    for token_id in ids:
        vocabulary.place(token_id)  # refuses ids that the model does not have
    return ids


def _verification_corpus(run: Run, sentences: SentenceSource | None, notes: list[str]) -> Sentences:
    """Return the given texts, or else those of the run; if these cannot be read again, add a note."""
    given = load_sentences(sentences)
    of_run = run.record.corpus
    if sentences is not None or of_run.source == given.source:
        return given
    if Path(of_run.source).is_file() and of_run.sentences is not None:
        return load_sentences(Path(of_run.source))
    notes.append(
        f"verified on {given.source}, because {of_run.source}, which the run was made on, "
        "cannot be read again: pass sentences to verify on your own texts"
    )
    return given


def _require_same_repair(finished: result.RepairRecord, parts: Mapping[str, Any], folder: Path) -> None:
    if finished.identity == digest(parts):
        return
    different = ", ".join(resume.differences(parts, finished.identity_parts)) or "its identity"
    raise RunError(f"{folder} contains a different repair (it differs in {different}): choose another folder")


@dataclass(frozen=True)
class Job:
    """One repair: from the tokens to a finished folder."""

    run: Run
    encoder: SentenceTransformerEncoder  # the model before the repair
    source: Path  # its folder
    place: Path  # where the repaired model is built
    vocabulary: Vocabulary
    settings: RepairSettings
    corpus: Sentences  # to verify on
    task: AnyTask
    ids: list[int]  # of the tokens to repair
    notes: list[str]
    progress: ProgressCallback

    def build(self, parts: dict[str, object], out: Path) -> result.RepairRecord:
        """Build, verify and describe the repaired model, and move it to its folder as the last step."""
        began = time.perf_counter()
        started = resume.now()
        plans = self._plans()
        choices = self._choices(plans)
        self._write(_edit({token_id: choice.taken for token_id, choice in choices.items()}))
        tokens = self._token_records(plans, choices)
        verification = None
        if self.settings.verify:
            verified = self._verified(tokens)
            verification = verified.record
            tokens = verified.tokens
        record = result.RepairRecord(
            identity=digest(parts),
            identity_parts=parts,
            model=Path(self.encoder.name).name,
            run=self.run.record.identity,
            strategy=self.settings.strategy.value,
            settings={"neighbours": self.settings.neighbours, "seed": self.settings.seed},
            tokens=tokens,
            verification=verification,
            notes=self.notes,
            versions=resume.package_versions(),
            hardware=resume.hardware(self.encoder.device),
            started=started,
            seconds=round(time.perf_counter() - began, 1),
        )
        write_documents(self.place, record)
        store.move_folder(self.place, out)
        return record

    def _plans(self) -> dict[int, RepairPlan]:
        """Decide for each token what may be done about it."""
        asked = self.settings.strategy
        special = self._special_ids()
        template = {*self.encoder.template.before, *self.encoder.template.after}
        is_editable = self.encoder.own_tokenizer.is_fast
        unsplittable: Mapping[int, str | None] = {}
        if is_editable and asked not in ROWS:
            plain = [token_id for token_id in self.ids if token_id not in special]
            unsplittable = splittable(self.source, plain)
        writable = asked is Strategy.AUTO and model_folder.rows_writable(self.source)
        plans = {}
        for token_id in self.ids:
            facts = TokenFacts(
                name=f"token {self._name(token_id)!r} (id {token_id})",
                special=token_id in special,
                templated=token_id in template,
                unsplittable=unsplittable.get(token_id),
            )
            if is_editable:
                plans[token_id] = plan_token(asked, facts, writable)
            else:
                kind = type(self.encoder.user_tokenizer).__name__
                plans[token_id] = plan_without_editing(asked, facts, kind)
        return plans

    def _special_ids(self) -> set[int]:
        """Return the entries that the tokenizer matches in text before anything else."""
        # A tokenizer of transformers, or one of the package tokenizers.
        tokenizer: Any = self.encoder.user_tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", None)
        if added is None:
            added = tokenizer.get_added_tokens_decoder()
        return {*added, *getattr(tokenizer, "all_special_ids", ())}

    def _choices(self, plans: Mapping[int, RepairPlan]) -> dict[int, Choice]:
        """Choose a repair for each token; where several may do, by measuring them."""
        choices = {}
        with_rows = {}
        for token_id, plan in plans.items():
            preferred = plan.strategies[0]
            if preferred in ROWS:
                with_rows[token_id] = plan.strategies
            else:
                choices[token_id] = Choice(Candidate(preferred, None))
        if not with_rows:
            return choices
        asked = self.settings.strategy
        if asked in ROWS:
            rows = self._rows(asked, list(with_rows))
            for token_id in with_rows.keys() - rows.keys():
                self._rows(asked, [token_id])  # raises, with the reason
            return choices | {token_id: Choice(Candidate(asked, row)) for token_id, row in rows.items()}
        trial = self._tried if self.settings.verify else None
        return choices | choose_candidates(with_rows, self._rows, trial)

    def _rows(self, strategy: Strategy, ids: list[int]) -> Mapping[int, Row]:
        """Make new rows by a strategy."""
        if strategy is Strategy.NEAREST:
            matrix = self._matrix()
            return {token_id: matrix[near].copy() for token_id, near in self._nearest(ids).items()}
        avoided = self._flagged.union(self.ids)
        model = self.encoder.model
        texts = used_texts(self.run)
        return new_rows(strategy, ids, model, texts, self.settings.seed, self.progress, avoided)

    def _tried(self, candidates: Mapping[int, Candidate]) -> Mapping[int, RecheckedToken]:
        """Build the model with these candidates, and measure what copies of the tokens then do."""
        self._write(_edit(candidates))
        as_ids: list[Token] = []
        to_write: list[Token] = []
        for token_id, candidate in candidates.items():
            token = Token(token_id, self._text(token_id))
            (to_write if candidate.row is None else as_ids).append(token)
        copies = Copies(as_ids, written_tokens(self.encoder, to_write))
        repaired, vocabulary = self._load()
        recheck = self._recheck.of_model(repaired, vocabulary, "try", same_ordinary=True)
        return recheck.judged(copies).tokens

    def _token_records(
        self, plans: Mapping[int, RepairPlan], choices: Mapping[int, Choice]
    ) -> list[RepairedTokenRecord]:
        """Describe what was done about each token, and why."""
        tokenizer = load_tokenizer(self.place)
        replaced = [
            token_id for token_id, choice in choices.items() if choice.taken.strategy is Strategy.NEAREST
        ]
        nearest = self._nearest(replaced) if replaced else {}
        records = []
        for token_id, choice in choices.items():
            strategy = choice.taken.strategy
            text = self._text(token_id)
            pieces: Sequence[int] = ()
            if strategy in result.TOKENIZER:
                (pieces,) = tokenizer.encode_many([text.strip()])
            reason = plans[token_id].reason_for(strategy)
            if token_id in nearest:
                reason += f" (that of {wording.quoted(self._name(nearest[token_id]))})"
            rejected = [
                _described(tried, effect) for tried, effect in choice.tried.items() if tried is not strategy
            ]
            if rejected:
                reason += f"; rejected: {', '.join(rejected)}"
            record = RepairedTokenRecord(
                token_id=token_id,
                token=self._name(token_id),
                text=text,
                strategy=strategy.value,
                reason=reason,
                pieces=[tokenizer.entries[piece] for piece in pieces],
                tried=[
                    result.TriedRecord(strategy=tried.value, lift_sd=effect.lift_sd, erased=effect.erased)
                    for tried, effect in choice.tried.items()
                ],
            )
            records.append(record)
        return records

    def _verified(self, tokens: list[RepairedTokenRecord]) -> Verified:
        """Verify the model that was built."""
        repaired, vocabulary = self._load()
        verification = Verification(
            original=self.encoder,
            repaired=repaired,
            source=self.source,
            folder=self.place,
            before=self._recheck,
            after=self._recheck.of_model(repaired, vocabulary, "after"),
            corpus=self.corpus,
            task=self.task,
            seed=self.settings.seed,
            progress=self.progress,
        )
        return verification.run(tokens, self._neighbours)

    def _write(self, edit: ModelEdit) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        model_folder.write_model(self.source, self.place, edit)

    def _load(self) -> tuple[SentenceTransformerEncoder, Vocabulary]:
        """Load the model that was written last."""
        encoder, _ = model_folder.repairable(loaded_like(self.encoder, self.place))
        return encoder, categorize(encoder.tokenizer)

    def _nearest(self, ids: Sequence[int]) -> dict[int, int]:
        """Return for each id the nearest entry that lifts and erases no more than the typical one."""
        matrix = self._matrix()
        known = np.array([token_id for token_id in self._typical_tokens if token_id < len(matrix)], np.intp)
        if not len(known):
            raise RepairError("no ordinary token is known that another could be given the row of")
        centred = unit_vectors(matrix - matrix.mean(axis=0))
        return {token_id: int(known[np.argmax(centred[known] @ centred[token_id])]) for token_id in ids}

    @cached_property
    def _typical_tokens(self) -> list[int]:
        """Tokens whose lift and erased share are at most the median; of the run, if it knows enough."""
        columns = ["lift_sd", "erased"]
        tokens = self.run.tokens
        if set(columns) <= set(tokens.columns):
            benign = tokens.filter(
                pl.col("verdict") == "benign",
                pl.col("category") == Category.OK,
                ~pl.col("token_id").is_in(self._flagged.union(self.ids)),
            )
            if len(benign) >= _ENOUGH_BENIGN:  # a run that examined a selection knows fewer
                at_most_median = [pl.col(column) <= pl.col(column).median() for column in columns]
                typical: list[int] = benign.filter(*at_most_median)["token_id"].to_list()
                return typical
        return self._recheck.typical_tokens()

    def _matrix(self) -> NDArray[np.float32]:
        matrix = _embedding_matrix(self.encoder)
        if matrix is None:
            raise RepairError("the model has no matrix of rows to take one from: use unreachable")
        return matrix

    @cached_property
    def _neighbours(self) -> list[Neighbour]:
        """The tokens whose rows are nearest to those of the repaired tokens."""
        matrix = _embedding_matrix(self.encoder)
        if matrix is None or not self.settings.verify:
            return []
        judged = self.run.tokens.filter(pl.col("verdict").is_not_null())
        verdicts = dict(judged.select("token_id", "verdict").iter_rows())
        return nearest_neighbours(matrix, self.vocabulary, self.ids, self.settings.neighbours, verdicts)

    @cached_property
    def _recheck(self) -> Recheck:
        """The model before the repair, in texts that the run has not used."""
        neighbour_ids = [neighbour.token.id for neighbour in self._neighbours]
        return make_recheck(
            self.run,
            self.encoder,
            self.vocabulary,
            self.corpus,
            seed=self.settings.seed,
            excluded=self._flagged.union(self.ids, neighbour_ids),
            progress=self.progress,
        )

    @property
    def _flagged(self) -> frozenset[int]:
        return flagged_tokens(self.run)

    def _name(self, token_id: int) -> str:
        return self.vocabulary.tokens[self.vocabulary.place(token_id)]

    def _text(self, token_id: int) -> str:
        return self.vocabulary.decoded[self.vocabulary.place(token_id)]


def _embedding_matrix(encoder: SentenceTransformerEncoder) -> NDArray[np.float32] | None:
    from stickytoken.inspection import inspector_of

    return inspector_of(encoder).embedding_matrix()


def _edit(candidates: Mapping[int, Candidate]) -> ModelEdit:
    """Collect what changes in the model."""
    rows = {
        token_id: candidate.row for token_id, candidate in candidates.items() if candidate.row is not None
    }

    def ids_by(strategy: Strategy) -> tuple[int, ...]:
        ids = [token_id for token_id, candidate in candidates.items() if candidate.strategy is strategy]
        return tuple(sorted(ids))

    return ModelEdit(rows, ids_by(Strategy.UNREACHABLE), ids_by(Strategy.PLAIN_SPECIALS))


def _described(strategy: Strategy, effect: RecheckedToken) -> str:
    """Name a strategy that was tried, and what copies did with it."""
    lift = f"lifts by {wording.in_sd(effect.lift_sd)}"
    if effect.erased is None:
        return f"{strategy} ({lift})"
    return f"{strategy} (erases {wording.percent(effect.erased)}, {lift})"
