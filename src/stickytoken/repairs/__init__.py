"""Repair a model: choose a repair for each token, build the repaired model, and verify it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.measurement as store
from stickytoken import wall_time
from stickytoken.data import Sentences, SentenceSource, load_sentences
from stickytoken.data.readability import require_readable
from stickytoken.data.tasks import find_task, kinds_task
from stickytoken.detection.naming import TokenSource, token_ids
from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.files.resolution import load_tokenizer
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RepairError, RunError
from stickytoken.insertion import Token
from stickytoken.loading import AnyModel, load_from_spec
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
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
from stickytoken.repairs._verification import Neighbour, nearest_neighbours, verify as verify_model
from stickytoken.repairs.documents import write_documents
from stickytoken.repairs.model_folder import RepairableModel
from stickytoken.repairs.recheck import (
    Copies,
    Recheck,
    RecheckedToken,
    describe_effect,
    find_written_tokens,
    make_recheck,
)
from stickytoken.repairs.result import ROWS, Repair, RepairedTokenRecord, open_repair
from stickytoken.repairs.rows import Row, make_related_rows
from stickytoken.repairs.tokenizer_edit import ModelEdit, reasons_against_splitting
from stickytoken.settings.repair import RepairSettings, Strategy
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import file_path, require_callable
from stickytoken.vocabulary import Category, Vocabulary, categorize
from stickytoken.words import quoted

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

__all__ = ["Repair", "open_repair", "repair"]


# Version of the repair code, which is part of a repair's identity. Increment it when a change to the code
# produces a different model or different numbers for the same inputs.
_VERSION = 10

# Minimum number of benign tokens that a run must have for its own median erased share to be used. If
# it has fewer, the medians come from the random tokens that the recheck measures.
_ENOUGH_BENIGN = 128

# Number of other tokens to verify for each repaired token: those with the nearest rows.
_NEIGHBOURS = 2


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
        tokens: ids or texts of tokens to repair, or files that list them; if None, all of the run's sticky
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

    Examples:
        >>> repaired = stickytoken.repair(run, ["[CLS]"], out="repaired", encoder=model, verify=False)
        >>> repaired.tokens.select("token", "strategy").rows()
        [('[CLS]', 'plain-specials')]
    """
    began = wall_time.beginning()
    settings = RepairSettings(cast("Strategy", strategy), verify, seed)
    require_callable("progress", progress)
    folder = file_path("out", out)
    opened = open_run(run)
    result.require_empty_or_repair(folder)
    chosen_task = kinds_task() if task is None else find_task(task)[0]
    alternative = "its tokens can be removed from documents with stickytoken clean"
    loaded = require_ids(encoder_for(encoder, opened, "repair"), "repair", alternative)
    model = model_folder.repairable(loaded)
    if model.folder.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise RunError(f"{folder} is inside the folder of the model: choose another folder")
    vocabulary = categorize(model.encoder.tokenizer)
    ids = _choose_ids(opened, vocabulary, tokens)
    sentences_to_read, note_on_corpus = _choose_corpus(opened, sentences)
    notes = [note for note in (model.note_on_routes(), note_on_corpus) if note is not None]
    corpus = require_readable(sentences_to_read, model.encoder.tokenizer, model.encoder.name)
    identity_parts = resume.identity_of(
        _VERSION,
        model.encoder.identify(),
        settings,
        run=opened.record.identity,
        tokens=sorted(ids),
        task=chosen_task.fingerprint,
        corpus=corpus.fingerprint,
    )
    finished = result.finished_repair(folder)
    if finished is not None:
        if finished.identity != digest(identity_parts):
            resume.refuse_different(folder, "repair", identity_parts, finished.identity_parts)
        model_folder.clear_workshop(folder)
        if finished not in result.repairs_in(opened.path)[0]:
            # An earlier process finished the repair, but was killed before it copied the record into the run
            # folder.
            result.keep_copy(opened.path, finished)
        return Repair(folder)
    with model_folder.workshop(folder) as build_folder:
        started = resume.now()
        plans = _plan_repairs(model, vocabulary, ids, settings.strategy)
        neighbours = _find_neighbours(opened, model, vocabulary, ids) if settings.verify else []
        recheck = make_recheck(
            opened,
            model.encoder,
            vocabulary,
            corpus,
            seed=settings.seed,
            excluded=opened.sticky_ids.union(ids, [neighbour.token.id for neighbour in neighbours]),
            progress=progress,
        )
        job = _RepairJob(opened, model, vocabulary, ids, settings, recheck, build_folder)
        choices = job.choose(plans)
        job.write({token_id: choice.candidate for token_id, choice in choices.items()})
        token_records = job.make_records(plans, choices)
        verification = None
        if settings.verify:
            verification, token_records = verify_model(
                model, job.load(), recheck, token_records, neighbours, corpus, chosen_task
            )
        recorded_settings: dict[str, Any] = {"neighbours": _NEIGHBOURS, "seed": settings.seed}
        if model.named_route is not None:
            recorded_settings["route"] = model.named_route
        record = result.RepairRecord(
            identity=digest(identity_parts),
            identity_parts=identity_parts,
            model=Path(model.encoder.name).name,
            run=opened.record.identity,
            strategy=settings.strategy.value,
            settings=recorded_settings,
            tokens=token_records,
            verification=verification,
            notes=notes,
            versions=resume.package_versions(),
            hardware=resume.hardware(model.encoder.device),
            started=started,
            seconds=round(time.perf_counter() - began, 1),
        )
        write_documents(build_folder, record)
        store.move_folder(build_folder, folder)
    result.keep_copy(opened.path, record)
    return Repair(folder)


def _choose_ids(run: Run, vocabulary: Vocabulary, tokens: TokenSource | None) -> list[int]:
    if tokens is None:
        ids: list[int] = run.sticky["token_id"].to_list()
    else:
        ids = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    if not ids:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to repair")
    for token_id in ids:
        vocabulary.place(token_id)  # raises an error if the model does not have this id
    return ids


def _choose_corpus(run: Run, sentences: SentenceSource | None) -> tuple[Sentences, str | None]:
    """Return the corpus to verify on, and a note if it should have been another one."""
    corpus = load_sentences(sentences)
    run_corpus = run.record.corpus
    if sentences is not None or run_corpus.source == corpus.source:
        return corpus, None
    # A corpus of pairs, for which the run records no number of sentences, cannot be loaded as sentences.
    has_sentences = run_corpus.sentences is not None
    if has_sentences and Path(run_corpus.source).is_file():
        return load_sentences(Path(run_corpus.source)), None
    note = (
        f"verified on {corpus.source}, because the corpus of the run, {run_corpus.source}, "
        "cannot be read again: pass sentences to verify on your own texts"
    )
    return corpus, note


def _plan_repairs(
    model: RepairableModel, vocabulary: Vocabulary, ids: Sequence[int], strategy: Strategy
) -> dict[int, RepairPlan]:
    """Return the repairs to try for each token, keyed by token id."""
    encoder = model.encoder
    route = model.named_route
    # Special and added tokens, which the tokenizer matches before other entries. Tokenizers from the
    # transformers package have the attribute added_tokens_decoder. Tokenizers from the tokenizers package
    # have a method instead.
    tokenizer: Any = encoder.user_tokenizer
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if added is None:
        added = tokenizer.get_added_tokens_decoder()
    special_ids = {*added, *getattr(tokenizer, "all_special_ids", ())}
    template_ids = {*encoder.template.before, *encoder.template.after}
    is_editable = encoder.own_tokenizer.is_fast
    ordinary_ids = [token_id for token_id in ids if token_id not in special_ids]
    unsplittable: Mapping[int, str | None] = {}
    if is_editable and strategy not in ROWS:
        unsplittable = reasons_against_splitting(model.folder, ordinary_ids, route)
    rows_writable = False
    if strategy is Strategy.AUTO and ordinary_ids:
        rows_writable = model_folder.rows_writable(model.folder, route)
    plans = {}
    for token_id in ids:
        facts = TokenFacts(
            name=f"token {vocabulary.tokens[vocabulary.place(token_id)]!r} (id {token_id})",
            special=token_id in special_ids,
            templated=token_id in template_ids,
            unsplittable=unsplittable.get(token_id),
        )
        if is_editable:
            plans[token_id] = plan_token(strategy, facts, rows_writable)
        else:
            plans[token_id] = plan_without_editing(strategy, facts, type(tokenizer).__name__)
    return plans


def _find_neighbours(
    run: Run, model: RepairableModel, vocabulary: Vocabulary, ids: Sequence[int]
) -> list[Neighbour]:
    matrix = _embedding_matrix(model.encoder)
    if matrix is None:
        return []
    judged = run.tokens.filter(pl.col("verdict").is_not_null())
    verdicts = dict(judged.select("token_id", "verdict").iter_rows())
    return nearest_neighbours(matrix, vocabulary, ids, _NEIGHBOURS, verdicts)


@dataclass
class _RepairJob:
    """Chooses a repair for each token, and builds the repaired model.

    A model is written and loaded for every set of repairs that is measured, and once for all that are chosen,
    unless these were measured last.

    Attributes:
        run: the run that flagged the tokens.
        model: the model before the repair, with its folder.
        vocabulary: vocabulary of the model before the repair.
        ids: ids of the tokens to repair.
        settings: settings of the repair.
        recheck: measures tokens of the model before the repair, in other texts than those of the run.
        build_folder: folder to build the repaired model in.
        written: strategy of each repair in the model in the build folder, keyed by token id.
        loaded: the model in the build folder; None if it is not loaded.
    """

    run: Run
    model: RepairableModel
    vocabulary: Vocabulary
    ids: list[int]
    settings: RepairSettings
    recheck: Recheck
    build_folder: Path
    written: dict[int, Strategy] | None = None
    loaded: RepairableModel | None = None

    def choose(self, plans: Mapping[int, RepairPlan]) -> dict[int, Choice]:
        """Return the repair chosen for each token, keyed by token id.

        A token whose plan begins with an edit of the tokenizer gets this edit. For any other token, the
        strategies of its plan are tried in turn: for each, the repaired model is built and measured, until
        copies of the token act like copies of an ordinary token. If there is no verification or no choice,
        nothing is measured, and the first row that can be made is taken.
        """
        edits = {}
        strategies_to_try = {}
        for token_id, plan in plans.items():
            first_strategy = plan.strategies[0]
            if first_strategy in ROWS:
                strategies_to_try[token_id] = plan.strategies
            else:
                edits[token_id] = Candidate(first_strategy, row=None)

        def measure(
            candidates: Mapping[int, Candidate], solved: Mapping[int, Candidate]
        ) -> Mapping[int, RecheckedToken]:
            self.write({**edits, **solved, **candidates})
            return self._measure(candidates)

        is_measured = self.settings.verify and self.settings.strategy is Strategy.AUTO
        choices = choose_candidates(strategies_to_try, self._make_rows, measure if is_measured else None)
        return {token_id: Choice(candidate) for token_id, candidate in edits.items()} | choices

    def _make_rows(self, strategy: Strategy, ids: list[int]) -> Mapping[int, Row]:
        """Return new rows of shape (D,), keyed by token id. Tokens that cannot get a new row are left out."""
        if strategy is Strategy.NEAREST:
            matrix = self._require_matrix()
            return {token_id: matrix[nearest].copy() for token_id, nearest in self._find_nearest(ids).items()}
        avoided = self.run.sticky_ids.union(self.ids)
        return make_related_rows(self.model.encoder.model, ids, avoided, self.settings.seed)

    def _measure(self, candidates: Mapping[int, Candidate]) -> Mapping[int, RecheckedToken]:
        """Return the effects of copies in the model in the build folder, keyed by token id.

        Ordinary tokens are not measured again, because a repair hardly changes their effects.
        """
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
        copies = Copies(as_ids, find_written_tokens(self.model.encoder, as_text))
        repaired = self.load().encoder
        vocabulary = categorize(repaired.tokenizer)
        return self.recheck.of_model(repaired, vocabulary, "try", same_ordinary=True).judge(copies).tokens

    def make_records(
        self, plans: Mapping[int, RepairPlan], choices: Mapping[int, Choice]
    ) -> list[RepairedTokenRecord]:
        """Return one record per token, with its repair, the reason for the repair, and the tried repairs."""
        repaired_tokenizer = load_tokenizer(self.build_folder, route=self.model.named_route)
        replaced_ids = [
            token_id for token_id, choice in choices.items() if choice.candidate.strategy is Strategy.NEAREST
        ]
        nearest = self._find_nearest(replaced_ids) if replaced_ids else {}
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
                reason += f" ({quoted(self._name(nearest[token_id]))})"
            rejected = [
                f"{tried_strategy} ({describe_effect(effect)})"
                for tried_strategy, effect in choice.tried.items()
                if tried_strategy is not strategy
            ]
            if rejected:
                reason += f"; rejected: {', '.join(rejected)}"
            tried = [
                result.TriedRecord(strategy=tried_strategy.value, push=effect.push, erased=effect.erased)
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

    def write(self, candidates: Mapping[int, Candidate]) -> None:
        """Write the model with these repairs, keyed by token id, unless it is what the build folder has."""
        strategies = {token_id: candidate.strategy for token_id, candidate in candidates.items()}
        if strategies == self.written:
            return

        def ids_of(strategy: Strategy) -> tuple[int, ...]:
            ids = [token_id for token_id, candidate in candidates.items() if candidate.strategy is strategy]
            return tuple(sorted(ids))

        edit = ModelEdit(
            rows={
                token_id: candidate.row
                for token_id, candidate in candidates.items()
                if candidate.row is not None
            },
            unreachable=ids_of(Strategy.UNREACHABLE),
            plain_specials=ids_of(Strategy.PLAIN_SPECIALS),
            route=self.model.named_route,
        )
        self.loaded = None
        shutil.rmtree(self.build_folder, ignore_errors=True)
        model_folder.write_model(self.model.folder, self.build_folder, edit)
        self.written = strategies

    def load(self) -> RepairableModel:
        """Return the model in the build folder, which is loaded once, as the original was."""
        if self.loaded is None:
            spec = replace(
                self.model.spec, model=str(self.build_folder), revision=None, device=self.model.encoder.device
            )
            self.loaded = model_folder.repairable(load_from_spec(spec))
        return self.loaded

    def _find_nearest(self, ids: Sequence[int]) -> dict[int, int]:
        matrix = self._require_matrix()
        typical_ids = [token_id for token_id in self._find_typical_tokens() if token_id < len(matrix)]
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

    def _find_typical_tokens(self) -> list[int]:
        """Return the ids of tokens whose erased share is at most the median.

        The tokens and the median come from the run if it has enough benign tokens, and otherwise from the
        recheck.
        """
        tokens = self.run.tokens
        if "erased" in tokens.columns:
            benign = tokens.filter(
                pl.col("verdict") == "benign",
                pl.col("category") == Category.OK,
                ~pl.col("token_id").is_in(self.run.sticky_ids.union(self.ids)),
            )
            if len(benign) >= _ENOUGH_BENIGN:
                at_most_median = pl.col("erased") <= pl.col("erased").median()
                typical: list[int] = benign.filter(at_most_median)["token_id"].to_list()
                return typical
        return self.recheck.find_typical_tokens()

    def _require_matrix(self) -> NDArray[np.float32]:
        matrix = _embedding_matrix(self.model.encoder)
        if matrix is None:
            raise RepairError(
                "the model has no embedding matrix to copy a row from: use the strategy unreachable"
            )
        return matrix

    def _name(self, token_id: int) -> str:
        return self.vocabulary.tokens[self.vocabulary.place(token_id)]

    def _text(self, token_id: int) -> str:
        return self.vocabulary.decoded[self.vocabulary.place(token_id)]


def _embedding_matrix(encoder: SentenceTransformerEncoder) -> NDArray[np.float32] | None:
    from stickytoken.inspection import inspector_of

    return inspector_of(encoder).embedding_matrix()
