"""Repair a model: choose what to do about every token, build the model, verify it, and only then show it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import Sentences, load_sentences, text_kinds
from stickytoken.corpora.choice import SentenceSource, as_read, readable
from stickytoken.detection.model_files import encoder_for, restored_settings
from stickytoken.detection.run import Run, open_run
from stickytoken.detection.run_folder import flagged_tokens
from stickytoken.detection.selection import TokenSource, token_ids
from stickytoken.encoders.loading.load import AnyModel
from stickytoken.encoders.loading.tokenizers import load_tokenizer, tokenizer_folder
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Token
from stickytoken.machine import digest
from stickytoken.measurement.resume import differences, hardware, identity_of, now, package_versions
from stickytoken.measurement.stage import ProgressCallback, ignore_progress
from stickytoken.methods.job import Recheck, RecheckJob, Tokens
from stickytoken.methods.registry import choose_method
from stickytoken.repairs._verification import Neighbour, Verification, Verified, verdicts_of
from stickytoken.repairs.documents import Workshop, clear_workshop, repairable, workshop, write_documents
from stickytoken.repairs.model_folder import rows_writable
from stickytoken.repairs.plan import (
    RepairedToken,
    RepairSettings,
    RowContext,
    Subject,
    TokenFacts,
    TokenPlan,
    plan_tokens,
)
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
from stickytoken.repairs.rows import RowChoice, choose_rows, new_rows
from stickytoken.repairs.tokenizer_edit import splittable
from stickytoken.tasks.files import kinds_task
from stickytoken.tasks.mteb import AnyTask, find_task
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import file_path, require_callable
from stickytoken.vocabulary import Vocabulary, categorize

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


def named_tokens(run: Run, vocabulary: Vocabulary, tokens: TokenSource | None) -> list[int]:
    """Return the ids of the tokens to repair, without repetitions."""
    if tokens is None:
        ids: list[int] = run.sticky["token_id"].to_list()
        if not ids:
            raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to repair")
        return ids
    found = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    for token_id in found:
        vocabulary.place(token_id)  # refuses other ids
    return found


def token_facts(
    encoder: SentenceTransformerEncoder, folder: Path, vocabulary: Vocabulary, ids: Sequence[int]
) -> list[TokenFacts]:
    """Collect what the choice of a strategy depends on."""
    places = {token_id: place for place, token_id in enumerate(vocabulary.ids)}
    special = _matched_first(encoder.user_tokenizer)
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


def _matched_first(tokenizer: Any) -> frozenset[int]:
    """Return the ids of the entries that a tokenizer matches in text before anything else."""
    added: Mapping[int, Any] | None = getattr(tokenizer, "added_tokens_decoder", None)
    if added is None:
        added = tokenizer.get_added_tokens_decoder()
    return frozenset(added) | frozenset(getattr(tokenizer, "all_special_ids", ()))


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
    """Return the carriers and anchors of a run."""
    texts = run.method.texts(run.plan)
    return list(dict.fromkeys((*texts.carriers, *texts.anchors)))


def mean_direction(encoder: SentenceTransformerEncoder, corpus: Sentences) -> np.ndarray:
    """Return the mean direction of the vectors of texts, of length 1, shape (d,)."""
    kinds = as_read(text_kinds(), encoder.tokenizer)
    texts = list(dict.fromkeys((*kinds.texts, *corpus.texts)))
    fitting = [text for text, ids in zip(texts, encoder.content_ids(texts), strict=True) if encoder.fits(ids)]
    mean = unit_vectors(encoder.encode(fitting)).astype(np.float64).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)


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
            ``unreachable``, ``plain-specials``, ``relatives``, ``pieces``, ``distil``, ``keep-meaning``,
            ``collapse`` or ``centre``.
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
    ids = named_tokens(opened, vocabulary, tokens)
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
        rows = self._rows(plans, bench)
        tokens = tuple(_decided(plan, rows.get(plan.facts.token_id)) for plan in plans)
        edit = edit_of(
            {token.token_id: token.strategy for token in tokens},
            {token_id: choice.row for token_id, choice in rows.items() if choice.row is not None},
            mean_direction(self.encoder, self.corpus) if self.settings.strategy is Strategy.CENTRE else None,
        )
        folder = bench.build(edit)
        verified = self._verified(bench, folder, tokens) if self.settings.verify else None
        record = RepairRecord(
            identity=digest(parts),
            identity_parts=parts,
            model=Path(self.encoder.name).name,
            run=self.run.record.identity,
            strategy=self.settings.strategy.value,
            settings={"neighbours": self.settings.neighbours, "seed": self.settings.seed},
            tokens=_token_records(tokens, folder, verified),
            verification=None if verified is None else verified.record,
            notes=self.notes,
            versions=package_versions(),
            hardware=hardware(self.encoder.device),
            started=started,
            seconds=round(time.perf_counter() - began, 1),
        )
        write_documents(folder, record, edit.centre)
        bench.finish(folder, out)
        return record

    # Rows.

    def _rows(self, plans: list[TokenPlan], bench: Workshop) -> dict[int, RowChoice]:
        own = [plan for plan in plans if plan.candidates[0] in ROWS]
        if not own:
            return {}
        context = RowContext(
            self.encoder.model,
            used_texts(self.run),
            self.settings.seed,
            self.progress,
            self._flagged.union(self.ids),
        )

        def compute(strategy: Strategy, ids: list[int]) -> Mapping[int, NDArray[np.float32]]:
            return new_rows(strategy, ids, context)

        def trial(rows: Mapping[int, NDArray[np.float32]]) -> dict[int, float]:
            folder = bench.build(edit_of({}, rows, None), "candidate")
            again = self._recheck(bench.load(folder), name="try")
            found = again.measured(self._as_ids(list(rows)))
            ordinary, spread = self._ordinary_lift, again.similarity_spread
            return {token_id: (lift - ordinary) / spread for token_id, lift in found.lifts.items()}

        return choose_rows(own, compute, trial if self.settings.verify else None)

    def _as_ids(self, ids: list[int]) -> Tokens:
        names = dict(zip(self.vocabulary.ids, self.vocabulary.decoded, strict=True))
        return Tokens([Token(token_id, names[token_id]) for token_id in ids], [], [])

    @cached_property
    def _ordinary_lift(self) -> float:
        usual = self._original.ordinary((*self._flagged, *self.ids), _ORDINARY)
        return float(np.median(list(self._original.measured(Tokens(usual, [], [])).lifts.values())))

    # Verification.

    @cached_property
    def _flagged(self) -> frozenset[int]:
        return flagged_tokens(self.run)

    @cached_property
    def _original(self) -> Recheck:
        return self._recheck(self.encoder, fresh=True, name="before")

    def _recheck(
        self, encoder: SentenceTransformerEncoder, *, fresh: bool = False, name: str = "after"
    ) -> Recheck:
        """Put a model on texts that the run has not used."""
        own = encoder is self.encoder
        vocabulary = self.vocabulary if own else categorize(encoder.tokenizer)
        if not fresh:
            return self._original.of_model(encoder, vocabulary, name)
        job = RecheckJob(
            encoder,
            vocabulary,
            self.corpus,
            self.run.plan,
            used_texts(self.run),
            restored_settings(self.run),
            self.settings.seed,
            own,
            self.progress,
        )
        # The default method, whatever the method of the run.
        return choose_method(None, None, pairs_given=False).recheck(job, name)

    def _verified(self, bench: Workshop, folder: Path, tokens: tuple[RepairedToken, ...]) -> Verified:
        repaired = bench.load(folder)
        verdicts = verdicts_of(self.run.tokens)
        verification = Verification(
            self._original,
            self.corpus,
            neighbours_of(self.encoder, self.vocabulary, self.ids, self.settings.neighbours, verdicts),
            self._flagged,
            self.task,
            self.encoder.prompt,
            self.settings.seed,
            self.progress,
        )
        subject = Subject(
            self.encoder, repaired, folder, tokenizer_folder(folder, folder.name), self.vocabulary, tokens
        )
        # A model without its mean direction has other similarities.
        return verification.of(
            subject, self._recheck(repaired, fresh=self.settings.strategy is Strategy.CENTRE)
        )


def _decided(plan: TokenPlan, choice: RowChoice | None) -> RepairedToken:
    facts, strategy, reason = plan.facts, plan.candidates[0], plan.reason
    tried = () if choice is None else choice.tried
    if choice is not None:
        strategy = choice.strategy
        if strategy is Strategy.UNREACHABLE:
            reason = "text falls into its pieces, because no new row is ordinary"
        rejected = [f"{each} {lift:.2f} SD" for each, lift in tried if each is not strategy]
        if rejected:
            reason += f"; rejected, with the lift that they leave: {', '.join(rejected)}"
    return RepairedToken(facts.token_id, facts.token, facts.text, strategy, reason, tried)


def _token_records(
    tokens: tuple[RepairedToken, ...], folder: Path, verified: Verified | None
) -> list[RepairedTokenRecord]:
    tokenizer = load_tokenizer(folder)
    falling = [each.text.strip() if each.strategy in TOKENIZER else "" for each in tokens]
    pieces = tokenizer.encode_many(falling)
    return [
        RepairedTokenRecord(
            token_id=each.token_id,
            token=each.token,
            text=each.text,
            strategy=each.strategy.value,
            reason=each.reason,
            pieces=[tokenizer.entries[piece] for piece in own],
            tried=[TriedRecord(strategy=name.value, deviations=lift) for name, lift in each.tried],
            before=None if verified is None else verified.before[each.token_id],
            after=None if verified is None else verified.after[each.token_id],
            curve=None if verified is None else verified.curves[each.token_id],
        )
        for each, own in zip(tokens, pieces, strict=True)
    ]
