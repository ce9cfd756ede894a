"""Repair a model: choose a repair for each token, build the repaired model, and verify it."""

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
from stickytoken import wall_time
from stickytoken.data import Sentences, SentenceSource, load_sentences, readable
from stickytoken.data.tasks import AnyTask, find_task, kinds_task
from stickytoken.detection.naming import TokenSource, token_ids
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
    written_tokens,
)
from stickytoken.repairs.result import ROWS, Repair, RepairedTokenRecord, open_repair
from stickytoken.repairs.rows import Row, related_rows
from stickytoken.repairs.tokenizer_edit import ModelEdit, reasons_against_splitting
from stickytoken.settings.repair import RepairSettings, Strategy
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import (
    file_path,
    require_callable,
)
from stickytoken.vocabulary import Category, Vocabulary, categorize

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

__all__ = ["Repair", "open_repair", "repair"]


# Version of the repair code, which is part of a repair's identity. Increment it when a change to the code
# produces a different model or different numbers for the same inputs.
_VERSION = 8

# Minimum number of benign tokens that a run must have for its own median lift and erased share to be used. If
# it has fewer, the medians come from the random tokens that the recheck measures.
_ENOUGH_BENIGN = 128


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

    The original model does not change. If ``out`` already holds the finished repair, that repair is opened
    and nothing is computed.

    Args:
        run: a finished run, or its folder.
        tokens: ids or texts of tokens to repair, or a file that lists them; if None, all of the run's sticky
            tokens are repaired.
        out: folder for the repaired model, a SentenceTransformer that loads without this package.
        strategy: how to repair the tokens, a `Strategy`: ``auto``, ``unreachable``, ``plain-specials``,
            ``relatives`` or ``nearest``. ``auto`` makes the tokenizer read the text of special tokens as
            plain text. For any other token, ``auto`` tries ``relatives``, ``unreachable`` and ``nearest`` in
            this order, skips those that are impossible, and keeps the first one that leaves no clear effect
            of copies. If every strategy leaves a clear effect,
            ``auto`` keeps the one that leaves the smallest.
        encoder: the run's model, loaded by name or from a folder; if None, the model that the run names is
            loaded.
        sentences: corpus to verify the repaired model on; if None, the run's corpus is used, without the
            texts that the run used.
        task: task to score the model on before and after the repair: a task file, a BEIR folder or the name
            of an MTEB task; if None, the packaged task is used.
        verify: whether to verify the repaired model. If False, REPAIR.md and the model card say that the
            model is not verified.
        seed: seed for making new rows, and for choosing the texts of the verification and where copies go in
            them.
        progress: called after every step.

    Returns:
        The repaired model with its measurements.

    Raises:
        InputError: tokens, sentences or the task cannot be used.
        ModelError: the model cannot be found or used.
        RepairError: the model or a token cannot be repaired with this strategy.
        RunError: the run belongs to another model, ``out`` is neither empty nor the folder of this repair, or
            ``out`` cannot be written.
    """
    began = wall_time.beginning()
    settings = RepairSettings(cast("Strategy", strategy), verify, seed=seed)
    require_callable("progress", progress)
    folder = file_path("out", out)
    opened = open_run(run)
    result.require_place(folder)
    chosen_task = kinds_task() if task is None else find_task(task)[0]
    alternative = "its tokens can be removed from documents with stickytoken clean"
    loaded = require_ids(encoder_for(encoder, opened, "repair"), "repair", alternative)
    model = model_folder.repairable(loaded)
    if model.folder.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise RunError(f"{folder} is inside the folder of the model: choose another folder")
    vocabulary = categorize(model.encoder.tokenizer)
    ids = _ids_to_repair(opened, vocabulary, tokens)
    notes: list[str] = []
    note_on_routes = model.note_on_routes()
    if note_on_routes is not None:
        notes.append(note_on_routes)
    sentences_to_read = _verification_corpus(opened, sentences, notes)
    corpus = readable(sentences_to_read, model.encoder.tokenizer, model.encoder.name)
    identity_parts = resume.identity_of(
        _VERSION,
        model.encoder.identity,
        settings,
        run=opened.record.identity,
        tokens=sorted(ids),
        task=chosen_task.fingerprint,
        corpus=corpus.fingerprint,
    )
    finished = result.finished_repair(folder)
    if finished is not None:
        _require_same_repair(finished, identity_parts, folder)
        model_folder.clear_workshop(folder)
        if finished not in result.repairs_in(opened.path)[0]:
            # An earlier process finished the repair, but was killed before it copied the record into the run
            # folder.
            result.keep_copy(opened.path, finished)
        return Repair(folder)
    with model_folder.workshop(folder) as build_folder:
        job = RepairJob(
            run=opened,
            encoder=model.encoder,
            source=model.folder,
            route=model.named_route,
            build_folder=build_folder,
            vocabulary=vocabulary,
            settings=settings,
            corpus=corpus,
            task=chosen_task,
            ids=ids,
            notes=notes,
            progress=progress,
        )
        record = job.build(identity_parts, folder, began)
    result.keep_copy(opened.path, record)
    return Repair(folder)


def _ids_to_repair(run: Run, vocabulary: Vocabulary, tokens: TokenSource | None) -> list[int]:
    """Return the ids of the named tokens, or of the run's sticky tokens if ``tokens`` is None.

    Raises:
        InputError: there is no token to repair, or the model has no such token.
    """
    if tokens is None:
        ids: list[int] = run.sticky["token_id"].to_list()
    else:
        ids = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    if not ids:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to repair")
    for token_id in ids:
        vocabulary.place(token_id)  # raises an error if the model does not have this id
    return ids


def _verification_corpus(run: Run, sentences: SentenceSource | None, notes: list[str]) -> Sentences:
    """Choose the texts to verify the repaired model on.

    Args:
        run: the run that flagged the tokens.
        sentences: the user's corpus; None if the user passed none.
        notes: list to which a note is appended if the run's corpus can no longer be read.

    Returns:
        The corpus that the user passed; otherwise the run's corpus, or the bundled corpus if the run's corpus
        can no longer be read.
    """
    corpus = load_sentences(sentences)
    run_corpus = run.record.corpus
    if sentences is not None or run_corpus.source == corpus.source:
        return corpus
    # A corpus of pairs, for which the run records no number of sentences, cannot be loaded as sentences.
    has_sentences = run_corpus.sentences is not None
    if has_sentences and Path(run_corpus.source).is_file():
        return load_sentences(Path(run_corpus.source))
    notes.append(
        f"verified on {corpus.source}, because the corpus of the run, {run_corpus.source}, "
        "cannot be read again: pass sentences to verify on your own texts"
    )
    return corpus


def _require_same_repair(
    finished: result.RepairRecord, identity_parts: Mapping[str, Any], folder: Path
) -> None:
    """Raise a RunError if the finished repair in the folder is not the one that was asked for."""
    if finished.identity == digest(identity_parts):
        return
    different = ", ".join(resume.differences(identity_parts, finished.identity_parts)) or "its identity"
    raise RunError(f"{folder} contains a different repair (it differs in {different}): choose another folder")


@dataclass(frozen=True)
class RepairJob:
    """Repairs tokens of a model: chooses the repairs, and builds, verifies and writes the repaired model.

    Attributes:
        run: the run that flagged the tokens.
        encoder: the model before the repair.
        source: folder of the model before the repair.
        route: route to repair, if the model has several. If None, the default route is used.
        build_folder: folder to build the repaired model in.
        vocabulary: vocabulary of the model before the repair.
        settings: settings of the repair.
        corpus: texts to verify the repaired model on.
        task: task to score before and after the repair.
        ids: ids of the tokens to repair.
        notes: remarks to store in the record.
        progress: called after every step.
    """

    run: Run
    encoder: SentenceTransformerEncoder
    source: Path
    route: str | None
    build_folder: Path
    vocabulary: Vocabulary
    settings: RepairSettings
    corpus: Sentences
    task: AnyTask
    ids: list[int]
    notes: list[str]
    progress: ProgressCallback

    def build(self, identity_parts: dict[str, object], out: Path, began: float) -> result.RepairRecord:
        """Build, verify and document the repaired model, and finally move it to ``out``.

        Args:
            identity_parts: all inputs that can change the result of the repair, which is identified by the
                digest of the inputs.
            out: final folder of the model.
            began: value of `time.perf_counter` when the repair began.

        Returns:
            The record of the repair, as stored in repair.json.
        """
        started = resume.now()
        plans = self._plan_repairs()
        choices = self._choose_repairs(plans)
        chosen_repairs = {token_id: choice.candidate for token_id, choice in choices.items()}
        self._write_model(chosen_repairs)
        tokens = self._token_records(plans, choices)
        verification = None
        if self.settings.verify:
            verified = self._verified(tokens)
            verification = verified.record
            tokens = verified.tokens
        settings: dict[str, Any] = {"neighbours": self.settings.neighbours, "seed": self.settings.seed}
        if self.route is not None:
            settings["route"] = self.route
        record = result.RepairRecord(
            identity=digest(identity_parts),
            identity_parts=identity_parts,
            model=Path(self.encoder.name).name,
            run=self.run.record.identity,
            strategy=self.settings.strategy.value,
            settings=settings,
            tokens=tokens,
            verification=verification,
            notes=self.notes,
            versions=resume.package_versions(),
            hardware=resume.hardware(self.encoder.device),
            started=started,
            seconds=round(time.perf_counter() - began, 1),
        )
        write_documents(self.build_folder, record)
        store.move_folder(self.build_folder, out)
        return record

    def _plan_repairs(self) -> dict[int, RepairPlan]:
        """Return the repairs to try for each token, keyed by token id."""
        strategy = self.settings.strategy
        special_ids = self._special_ids()
        template_ids = {*self.encoder.template.before, *self.encoder.template.after}
        is_editable = self.encoder.own_tokenizer.is_fast
        unsplittable: Mapping[int, str | None] = {}
        if is_editable and strategy not in ROWS:
            plain_ids = [token_id for token_id in self.ids if token_id not in special_ids]
            unsplittable = reasons_against_splitting(self.source, plain_ids, self.route)
        rows_writable = False
        if strategy is Strategy.AUTO:
            rows_writable = model_folder.rows_writable(self.source, self.route)
        plans = {}
        for token_id in self.ids:
            facts = TokenFacts(
                name=f"token {self._name(token_id)!r} (id {token_id})",
                special=token_id in special_ids,
                templated=token_id in template_ids,
                unsplittable=unsplittable.get(token_id),
            )
            if is_editable:
                plans[token_id] = plan_token(strategy, facts, rows_writable)
            else:
                tokenizer_kind = type(self.encoder.user_tokenizer).__name__
                plans[token_id] = plan_without_editing(strategy, facts, tokenizer_kind)
        return plans

    def _special_ids(self) -> set[int]:
        """Return the ids of special and added tokens, which the tokenizer matches before other entries."""
        # Tokenizers from the transformers package have the attribute added_tokens_decoder. Tokenizers from
        # the tokenizers package have a method instead.
        tokenizer: Any = self.encoder.user_tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", None)
        if added is None:
            added = tokenizer.get_added_tokens_decoder()
        return {*added, *getattr(tokenizer, "all_special_ids", ())}

    def _choose_repairs(self, plans: Mapping[int, RepairPlan]) -> dict[int, Choice]:
        """Return the repair chosen for each token, keyed by token id.

        - If the first strategy of a token's plan edits the tokenizer, this strategy is chosen.
        - If the user requested a strategy that makes new rows, this strategy is chosen.
        - For any other token, the strategies of its plan are tried one after another: for each strategy, the
          repaired model is built and measured, until copies of the token act like copies of an ordinary
          token. Without verification, nothing is measured, so the first possible repair is chosen.
        """
        choices = {}
        strategies_to_try = {}
        for token_id, plan in plans.items():
            first_strategy = plan.strategies[0]
            if first_strategy in ROWS:
                strategies_to_try[token_id] = plan.strategies
            else:
                choices[token_id] = Choice(Candidate(first_strategy, row=None))
        if not strategies_to_try:
            return choices
        if self.settings.strategy in ROWS:
            return choices | self._rows_as_requested(list(strategies_to_try))
        trial = self._measured_candidates if self.settings.verify else None
        return choices | choose_candidates(strategies_to_try, self._rows, trial)

    def _rows_as_requested(self, ids: list[int]) -> dict[int, Choice]:
        """Make new rows with the requested strategy, and return them as choices, keyed by token id.

        Raises:
            RepairError: the strategy cannot make a row for one of the tokens.
        """
        strategy = self.settings.strategy
        rows = self._rows(strategy, ids)
        ids_without_row = set(ids) - rows.keys()
        if ids_without_row:
            # `_rows` leaves out tokens for which it can make no row. If it can make no row at all, it raises
            # an error that says why.
            self._rows(strategy, [min(ids_without_row)])
            raise RepairError(
                f"the strategy {strategy} has no new row for the token ids {sorted(ids_without_row)}"
            )
        return {token_id: Choice(Candidate(strategy, row)) for token_id, row in rows.items()}

    def _rows(self, strategy: Strategy, ids: list[int]) -> Mapping[int, Row]:
        """Return new rows of shape (D,), keyed by token id. Tokens that cannot get a new row are left out."""
        if strategy is Strategy.NEAREST:
            matrix = self._matrix()
            return {token_id: matrix[nearest].copy() for token_id, nearest in self._nearest(ids).items()}
        avoided = self._flagged.union(self.ids)
        return related_rows(self.encoder.model, ids, avoided, self.settings.seed)

    def _measured_candidates(self, candidates: Mapping[int, Candidate]) -> Mapping[int, RecheckedToken]:
        """Build the model with the given repairs; measure the effect of copies of each repaired token.

        Args:
            candidates: a repair for each token, keyed by token id.

        Returns:
            The effects, keyed by token id.
        """
        self._write_model(candidates)
        # A repair without a new row edits the tokenizer, which then no longer produces the token from text.
        # So copies of such a token are inserted as text, and all other copies as token ids.
        as_ids: list[Token] = []
        as_text: list[Token] = []
        for token_id, candidate in candidates.items():
            token = Token(token_id, self._text(token_id))
            if candidate.row is None:
                as_text.append(token)
            else:
                as_ids.append(token)
        copies = Copies(as_ids, written_tokens(self.encoder, as_text))
        repaired, vocabulary = self._load()
        recheck = self._recheck.of_model(repaired, vocabulary, "try", same_ordinary=True)
        return recheck.judged(copies).tokens

    def _token_records(
        self, plans: Mapping[int, RepairPlan], choices: Mapping[int, Choice]
    ) -> list[RepairedTokenRecord]:
        """Return one record per token, with its repair, the reason for the repair, and the tried repairs."""
        repaired_tokenizer = load_tokenizer(self.build_folder, route=self.route)
        replaced_ids = [
            token_id for token_id, choice in choices.items() if choice.candidate.strategy is Strategy.NEAREST
        ]
        nearest = self._nearest(replaced_ids) if replaced_ids else {}
        records = []
        for token_id, choice in choices.items():
            strategy = choice.candidate.strategy
            text = self._text(token_id)
            # ids of the tokens into which an edited tokenizer splits the token's text; empty if the tokenizer
            # is not edited
            piece_ids: Sequence[int] = ()
            if strategy in result.TOKENIZER:
                (piece_ids,) = repaired_tokenizer.encode_many([text.strip()])
            # The reason for the repair, followed by the token whose row is copied, and the rejected repairs.
            reason = plans[token_id].reason_for(strategy)
            if token_id in nearest:
                reason += f" ({wording.quoted(self._name(nearest[token_id]))})"
            rejected = [
                _described(tried_strategy, effect)
                for tried_strategy, effect in choice.tried.items()
                if tried_strategy is not strategy
            ]
            if rejected:
                reason += f"; rejected: {', '.join(rejected)}"
            tried = [
                result.TriedRecord(
                    strategy=tried_strategy.value, lift_sd=effect.lift_sd, erased=effect.erased
                )
                for tried_strategy, effect in choice.tried.items()
            ]
            record = RepairedTokenRecord(
                token_id=token_id,
                token=self._name(token_id),
                text=text,
                strategy=strategy.value,
                reason=reason,
                pieces=[repaired_tokenizer.entries[piece_id] for piece_id in piece_ids],
                tried=tried,
            )
            records.append(record)
        return records

    def _verified(self, tokens: list[RepairedTokenRecord]) -> Verified:
        """Verify the model in the build folder; return the verification record and the measured tokens."""
        repaired, vocabulary = self._load()
        verification = Verification(
            original=self.encoder,
            repaired=repaired,
            source=self.source,
            folder=self.build_folder,
            route=self.route,
            before=self._recheck,
            after=self._recheck.of_model(repaired, vocabulary, "after"),
            corpus=self.corpus,
            task=self.task,
            seed=self.settings.seed,
            progress=self.progress,
        )
        return verification.run(tokens, self._neighbours)

    def _write_model(self, candidates: Mapping[int, Candidate]) -> None:
        """Write the model into the build folder, with the given repairs, which are keyed by token id."""
        edit = _edit(candidates, self.route)
        shutil.rmtree(self.build_folder, ignore_errors=True)
        model_folder.write_model(self.source, self.build_folder, edit)

    def _load(self) -> tuple[SentenceTransformerEncoder, Vocabulary]:
        """Load the model in the build folder, and return it with its vocabulary."""
        encoder = model_folder.repairable(loaded_like(self.encoder, self.build_folder)).encoder
        return encoder, categorize(encoder.tokenizer)

    def _nearest(self, ids: Sequence[int]) -> dict[int, int]:
        """Return the id of the entry whose row will replace the row of each token, keyed by token id.

        For each token, the entry is the one with the most similar row among all entries whose lift and erased
        share are at most the median. Similarity is the cosine after the mean row is subtracted from both
        rows.

        Raises:
            RepairError: no entry is known whose lift and erased share are at most the median.
        """
        matrix = self._matrix()
        typical_ids = [token_id for token_id in self._typical_tokens if token_id < len(matrix)]
        if not typical_ids:
            raise RepairError(
                "there is no ordinary token whose row can be copied: use the strategy unreachable"
            )
        centred = unit_vectors(matrix - matrix.mean(axis=0))
        nearest = {}
        for token_id in ids:
            similarities = centred[typical_ids] @ centred[token_id]
            nearest[token_id] = typical_ids[int(np.argmax(similarities))]
        return nearest

    @cached_property
    def _typical_tokens(self) -> list[int]:
        """Ids of tokens whose lift and erased share are each at most the median.

        The tokens and the medians come from the run if it has enough benign tokens, and otherwise from the
        recheck.
        """
        columns = ["lift_sd", "erased"]
        tokens = self.run.tokens
        if set(columns) <= set(tokens.columns):
            benign = tokens.filter(
                pl.col("verdict") == "benign",
                pl.col("category") == Category.OK,
                ~pl.col("token_id").is_in(self._flagged.union(self.ids)),
            )
            if len(benign) >= _ENOUGH_BENIGN:
                at_most_median = [pl.col(column) <= pl.col(column).median() for column in columns]
                typical: list[int] = benign.filter(*at_most_median)["token_id"].to_list()
                return typical
        return self._recheck.typical_tokens()

    def _matrix(self) -> NDArray[np.float32]:
        """Return the token embeddings, shape (V, D).

        Raises:
            RepairError: the model has no embedding matrix.
        """
        matrix = _embedding_matrix(self.encoder)
        if matrix is None:
            raise RepairError(
                "the model has no embedding matrix to copy a row from: use the strategy unreachable"
            )
        return matrix

    @cached_property
    def _neighbours(self) -> list[Neighbour]:
        """Tokens whose rows are nearest to the repaired tokens' rows; empty if verification is off."""
        matrix = _embedding_matrix(self.encoder)
        if matrix is None or not self.settings.verify:
            return []
        judged = self.run.tokens.filter(pl.col("verdict").is_not_null())
        verdicts = dict(judged.select("token_id", "verdict").iter_rows())
        return nearest_neighbours(matrix, self.vocabulary, self.ids, self.settings.neighbours, verdicts)

    @cached_property
    def _recheck(self) -> Recheck:
        """A recheck of the model before the repair, on texts that the run has not used."""
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


def _edit(candidates: Mapping[int, Candidate], route: str | None) -> ModelEdit:
    """Combine repairs, keyed by token id, into a single edit of the model."""
    rows = {
        token_id: candidate.row for token_id, candidate in candidates.items() if candidate.row is not None
    }

    def ids_of(strategy: Strategy) -> tuple[int, ...]:
        ids = [token_id for token_id, candidate in candidates.items() if candidate.strategy is strategy]
        return tuple(sorted(ids))

    return ModelEdit(rows, ids_of(Strategy.UNREACHABLE), ids_of(Strategy.PLAIN_SPECIALS), route)


def _described(strategy: Strategy, effect: RecheckedToken) -> str:
    """Describe a rejected strategy by the effect that copies still have: ``relatives (lifts by 0.4 SD)``."""
    lift = f"lifts by {wording.in_sd(effect.lift_sd)}"
    if effect.erased is None:
        return f"{strategy} ({lift})"
    return f"{strategy} (erases {wording.percent(effect.erased)}, {lift})"
