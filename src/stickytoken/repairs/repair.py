"""Repair a model: choose what to do about every token, build the model, verify it, and only then show it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from stickytoken.data import Sentences, load_sentences
from stickytoken.data.corpora import SentenceSource, readable
from stickytoken.data.tasks import AnyTask, find_task, kinds_task
from stickytoken.detection.run import Run, encoder_for, flagged_tokens, open_run, restored_settings
from stickytoken.detection.selection import TokenSource, token_ids
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.loading.resolution import load_tokenizer
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Token
from stickytoken.machine import digest
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.measurement.resume import differences, hardware, identity_of, now, package_versions
from stickytoken.measurement.store import move_folder
from stickytoken.methods.base import Recheck, RecheckJob, Tokens
from stickytoken.methods.registry import choose_method
from stickytoken.repairs._plan import (
    RepairSettings,
    Row,
    RowChoice,
    TokenFacts,
    TokenPlan,
    choose_rows,
    plan_tokens,
)
from stickytoken.repairs._verification import Neighbour, Verification
from stickytoken.repairs.documents import write_documents
from stickytoken.repairs.model_folder import Workshop, clear_workshop, repairable, rows_writable, workshop
from stickytoken.repairs.result import (
    ROWS,
    TOKENIZER,
    Repair,
    RepairedTokenRecord,
    RepairRecord,
    Strategy,
    TriedRecord,
    edit_of,
    finished_repair,
    keep_copy,
    repairs_in,
    require_place,
)
from stickytoken.repairs.rows import RowContext, new_rows
from stickytoken.repairs.tokenizer_edit import splittable
from stickytoken.validation import file_path, require_callable
from stickytoken.vocabulary import Vocabulary, categorize

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


_VERSION = 2
_CLEANER = "its tokens can be removed from documents with stickytoken clean"
# Ordinary tokens that new rows are compared with before one is chosen.
_ORDINARY = 64


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
            ``unreachable``, ``plain-specials``, ``relatives`` or ``keep-meaning``.
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
    place = file_path("out", out)
    opened = open_run(run)
    require_place(place)
    chosen = kinds_task() if task is None else find_task(task)[0]
    loaded = require_ids(encoder_for(encoder, opened, "repair"), "repair", _CLEANER)
    model, source = repairable(loaded)
    if place.resolve() == source.resolve() or source.resolve() in place.resolve().parents:
        raise RunError(f"{place} is inside the folder of the model: choose another folder")
    vocabulary = categorize(model.tokenizer)
    if tokens is None:
        ids: list[int] = opened.sticky["token_id"].to_list()
    else:
        ids = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    if not ids:
        raise InputError(f"the run in {opened.path} found no sticky tokens: name the tokens to repair")
    for token_id in ids:
        vocabulary.place(token_id)  # refuses other ids
    corpus, notes = verification_corpus(opened, sentences, model)
    parts = identity_of(
        _VERSION,
        model.identity,
        settings,
        run=opened.record.identity,
        tokens=sorted(ids),
        task=chosen.fingerprint,
        corpus=corpus.fingerprint,
    )
    if (done := finished_repair(place)) is not None:
        if done.identity != digest(parts):
            found = ", ".join(differences(parts, done.identity_parts)) or "its identity"
            raise RunError(
                f"{place} contains a different repair (it differs in {found}): choose another folder"
            )
        clear_workshop(place)
        if done not in repairs_in(opened.path)[0]:  # a kill came between the last two steps
            keep_copy(opened.path, done)
        return Repair(place)
    job = _Job(opened, model, source, vocabulary, settings, corpus, chosen, ids, notes, progress)
    with workshop(place, source, model) as bench:
        record = job.build(bench, parts, place)
    keep_copy(opened.path, record)
    return Repair(place)


@dataclass(frozen=True)
class _Job:
    run: Run
    encoder: SentenceTransformerEncoder
    source: Path
    vocabulary: Vocabulary
    settings: RepairSettings
    corpus: Sentences
    task: AnyTask
    ids: list[int]
    notes: list[str]
    progress: ProgressCallback

    def build(self, bench: Workshop, parts: dict[str, object], out: Path) -> RepairRecord:
        """Build, verify and document the model, then put it in its place."""
        began, started = time.perf_counter(), now()
        facts = token_facts(self.encoder, self.source, self.vocabulary, self.ids)
        asked = self.settings.strategy
        plans = plan_tokens(asked, facts, asked is Strategy.AUTO and rows_writable(self.source))
        choices = self._rows(plans, bench)
        tokens = [_decided(plan, choices.get(plan.facts.token_id)) for plan in plans]
        rows = {token_id: choice.row for token_id, choice in choices.items() if choice.row is not None}
        folder = bench.build(edit_of(tokens, rows))
        tokenizer = load_tokenizer(folder)
        falling = [each.text.strip() if each.strategy in TOKENIZER else "" for each in tokens]
        tokens = [
            each.model_copy(update={"pieces": [tokenizer.entries[piece] for piece in pieces]})
            for each, pieces in zip(tokens, tokenizer.encode_many(falling), strict=True)
        ]
        verification = None
        if self.settings.verify:
            verification, tokens = self._verification(bench.load(folder), folder, tokens).run()
        record = RepairRecord(
            identity=digest(parts),
            identity_parts=parts,
            model=Path(self.encoder.name).name,
            run=self.run.record.identity,
            strategy=self.settings.strategy.value,
            settings={"neighbours": self.settings.neighbours, "seed": self.settings.seed},
            tokens=tokens,
            verification=verification,
            notes=self.notes,
            versions=package_versions(),
            hardware=hardware(self.encoder.device),
            started=started,
            seconds=round(time.perf_counter() - began, 1),
        )
        write_documents(folder, record)
        move_folder(folder, out)
        return record

    def _rows(self, plans: list[TokenPlan], bench: Workshop) -> dict[int, RowChoice]:
        candidates = {plan.facts.token_id: plan.candidates for plan in plans if plan.candidates[0] in ROWS}
        if not candidates:
            return {}
        avoided = flagged_tokens(self.run).union(self.ids)
        texts, seed = used_texts(self.run), self.settings.seed
        context = RowContext(self.encoder.model, texts, seed, self.progress, avoided)
        names = dict(zip(self.vocabulary.ids, self.vocabulary.decoded, strict=True))

        def compute(strategy: Strategy, ids: list[int]) -> Mapping[int, Row]:
            return new_rows(strategy, ids, context)

        def trial(rows: Mapping[int, Row]) -> dict[int, float]:
            folder = bench.build(edit_of([], rows), "candidate")
            again = self._recheck(bench.load(folder), "try")
            found = again.measured(Tokens([Token(token_id, names[token_id]) for token_id in rows], [], []))
            ordinary, spread = self._ordinary_lift, again.similarity_spread
            return {token_id: (lift - ordinary) / spread for token_id, lift in found.lifts.items()}

        return choose_rows(candidates, compute, trial if self.settings.verify else None)

    @cached_property
    def _ordinary_lift(self) -> float:
        usual = self._original.ordinary((*flagged_tokens(self.run), *self.ids), _ORDINARY)
        return float(np.median(list(self._original.measured(Tokens(usual, [], [])).lifts.values())))

    @cached_property
    def _original(self) -> Recheck:
        """The model of the run on texts that the run has not used."""
        job = RecheckJob(
            self.encoder,
            self.vocabulary,
            self.corpus,
            self.run.plan,
            used_texts(self.run),
            restored_settings(self.run),
            self.settings.seed,
            True,
            self.progress,
        )
        # The default method, whatever the method of the run.
        return choose_method(None, None, pairs_given=False).recheck(job, "before")

    def _recheck(self, encoder: SentenceTransformerEncoder, name: str) -> Recheck:
        return self._original.of_model(encoder, categorize(encoder.tokenizer), name)

    def _verification(
        self, repaired: SentenceTransformerEncoder, folder: Path, tokens: list[RepairedTokenRecord]
    ) -> Verification:
        judged = self.run.tokens.filter(pl.col("verdict").is_not_null()).select("token_id", "verdict")
        verdicts: dict[int, str] = dict(judged.iter_rows())
        return Verification(
            self.encoder,
            repaired,
            folder,
            self._original,
            self._recheck(repaired, "after"),
            tokens,
            neighbours_of(self.encoder, self.vocabulary, self.ids, self.settings.neighbours, verdicts),
            flagged_tokens(self.run),
            self.corpus,
            self.task,
            self.settings.seed,
            self.progress,
        )


def _decided(plan: TokenPlan, choice: RowChoice | None) -> RepairedTokenRecord:
    facts, strategy, reason = plan.facts, plan.candidates[0], plan.reason
    tried = () if choice is None else choice.tried
    if choice is not None:
        strategy = choice.strategy
        if strategy is Strategy.UNREACHABLE:
            reason = "text falls into its pieces, because no new row is ordinary"
        rejected = [f"{each} {lift:.2f} SD" for each, lift in tried if each is not strategy]
        if rejected:
            reason += f"; rejected, with the lift that they leave: {', '.join(rejected)}"
    return RepairedTokenRecord(
        token_id=facts.token_id,
        token=facts.token,
        text=facts.text,
        strategy=strategy.value,
        reason=reason,
        pieces=[],
        tried=[TriedRecord(strategy=each.value, deviations=lift) for each, lift in tried],
    )


# What a repair starts from.


def token_facts(
    encoder: SentenceTransformerEncoder, folder: Path, vocabulary: Vocabulary, ids: Sequence[int]
) -> list[TokenFacts]:
    places = {token_id: place for place, token_id in enumerate(vocabulary.ids)}
    # Entries that the tokenizer matches in text before anything else.
    tokenizer: Any = encoder.user_tokenizer
    added = getattr(tokenizer, "added_tokens_decoder", None)
    added = tokenizer.get_added_tokens_decoder() if added is None else added
    special = {*added, *getattr(tokenizer, "all_special_ids", ())}
    template = {*encoder.template.before, *encoder.template.after}
    reasons = splittable(folder, [token_id for token_id in ids if token_id not in special])
    return [
        TokenFacts(
            token_id,
            vocabulary.tokens[places[token_id]],
            vocabulary.decoded[places[token_id]],
            token_id in special,
            token_id in template,
            reasons.get(token_id),
        )
        for token_id in ids
    ]


def neighbours_of(
    encoder: SentenceTransformerEncoder,
    vocabulary: Vocabulary,
    ids: Sequence[int],
    count: int,
    verdicts: Mapping[int, str],
) -> tuple[Neighbour, ...]:
    """Find the available tokens whose rows are closest to those of the repaired tokens."""
    from stickytoken.inspection import inspector_of

    matrix = inspector_of(encoder).embedding_matrix()
    if matrix is None or not count:
        return ()
    repaired = set(ids)
    others = [token for token in vocabulary.available if token.id not in repaired and token.id < len(matrix)]
    if not others:
        return ()
    rows = np.array([token.id for token in others])
    norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
    names = dict(zip(vocabulary.ids, vocabulary.tokens, strict=True))
    found: dict[int, Neighbour] = {}
    for token_id in ids:
        cosines = (matrix @ matrix[token_id]) / norms
        for place in np.argsort(-cosines[rows])[:count]:
            token = others[int(place)]
            found.setdefault(token.id, Neighbour(token, names[token_id], verdicts.get(token.id)))
    return tuple(found.values())


def verification_corpus(
    run: Run, given: SentenceSource | None, encoder: SentenceTransformerEncoder
) -> tuple[Sentences, list[str]]:
    """Return the corpus to verify on, and a note where it is not that of the run."""
    notes = []
    source = run.record.corpus.source
    corpus = load_sentences(given)
    if given is None and source != corpus.source:
        if Path(source).is_file() and run.record.corpus.sentences is not None:
            corpus = load_sentences(Path(source))
        else:
            notes.append(
                f"verified on {corpus.source}, because {source}, which the run was made on, cannot be read "
                "again: pass sentences to verify on your own texts"
            )
    return readable(corpus, encoder.tokenizer, encoder.name), notes


def used_texts(run: Run) -> list[str]:
    texts = run.method.texts(run.plan)
    return list(dict.fromkeys((*texts.carriers, *texts.anchors)))
