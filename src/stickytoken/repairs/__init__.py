"""Repair a model: choose what to do about every token, build the model, verify it, and only then show it."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.measurement as store
from stickytoken.data import Sentences, SentenceSource, load_sentences, readable
from stickytoken.data.tasks import AnyTask, find_task, kinds_task
from stickytoken.detection import TokenSource, token_ids
from stickytoken.detection.run import Run, encoder_for, flagged_tokens, open_run, restored_settings
from stickytoken.encoders.loading import AnyModel, loaded_like
from stickytoken.encoders.loading.resolution import load_tokenizer
from stickytoken.encoders.protocol import require_ids
from stickytoken.errors import InputError, RepairError, RunError
from stickytoken.insertion import Token
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import base, registry
from stickytoken.methods.statistics import share_erased
from stickytoken.repairs import model_folder, result
from stickytoken.repairs._verification import Neighbour, Verification, as_text
from stickytoken.repairs.documents import write_documents
from stickytoken.repairs.result import ROWS, Repair, Strategy, open_repair
from stickytoken.repairs.rows import Row, new_rows
from stickytoken.repairs.tokenizer_edit import ModelEdit, splittable
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import (
    file_path,
    require_callable,
    require_switch,
    set_choices,
    set_whole_numbers,
    visible,
)
from stickytoken.vocabulary import Category, Vocabulary, categorize

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder

__all__ = ["Repair", "open_repair", "repair"]


_VERSION = 5


@dataclass(frozen=True, slots=True)
class RepairSettings:
    strategy: Strategy = Strategy.AUTO
    verify: bool = True
    neighbours: int = 2  # nearest rows of the embedding matrix to measure again, per repaired token
    seed: int = 4242  # of rows, random texts and random placements; another one than that of the run

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
    chosen = kinds_task() if task is None else find_task(task)[0]
    instead = "its tokens can be removed from documents with stickytoken clean"
    loaded = require_ids(encoder_for(encoder, opened, "repair"), "repair", instead)
    model, source = model_folder.repairable(loaded)
    if source.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise RunError(f"{folder} is inside the folder of the model: choose another folder")
    vocabulary = categorize(model.tokenizer)
    if tokens is None:
        ids: list[int] = opened.sticky["token_id"].to_list()
    else:
        ids = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    if not ids:
        raise InputError(f"the run in {opened.path} found no sticky tokens: name the tokens to repair")
    for token_id in ids:
        vocabulary.place(token_id)  # refuses other ids
    notes = []
    corpus, corpus_of_run = load_sentences(sentences), opened.record.corpus
    if sentences is None and corpus_of_run.source != corpus.source:
        if Path(corpus_of_run.source).is_file() and corpus_of_run.sentences is not None:
            corpus = load_sentences(Path(corpus_of_run.source))
        else:
            notes.append(
                f"verified on {corpus.source}, because {corpus_of_run.source}, which the run was made on, "
                "cannot be read again: pass sentences to verify on your own texts"
            )
    corpus = readable(corpus, model.tokenizer, model.name)
    parts = resume.identity_of(
        _VERSION,
        model.identity,
        settings,
        run=opened.record.identity,
        tokens=sorted(ids),
        task=chosen.fingerprint,
        corpus=corpus.fingerprint,
    )
    if (done := result.finished_repair(folder)) is not None:
        if done.identity != digest(parts):
            different = ", ".join(resume.differences(parts, done.identity_parts)) or "its identity"
            raise RunError(
                f"{folder} contains a different repair (it differs in {different}): choose another folder"
            )
        model_folder.clear_workshop(folder)
        if done not in result.repairs_in(opened.path)[0]:  # a kill came between the last two steps
            result.keep_copy(opened.path, done)
        return Repair(folder)
    with model_folder.workshop(folder) as place:
        job = Job(opened, model, source, place, vocabulary, settings, corpus, chosen, ids, notes, progress)
        record = job.build(parts, folder)
    result.keep_copy(opened.path, record)
    return Repair(folder)


@dataclass(frozen=True)
class Job:
    run: Run
    encoder: SentenceTransformerEncoder
    source: Path
    place: Path  # where the model is built
    vocabulary: Vocabulary
    settings: RepairSettings
    corpus: Sentences
    task: AnyTask
    ids: list[int]
    notes: list[str]
    progress: ProgressCallback

    @property
    def flagged(self) -> frozenset[int]:
        return flagged_tokens(self.run)

    def build(self, parts: dict[str, object], out: Path) -> result.RepairRecord:
        began, started = time.perf_counter(), resume.now()
        plans = self._plans()
        choices = {token_id: RowChoice(each[0], None, []) for token_id, (each, _) in plans.items()}
        choices |= self._chosen({key: each for key, (each, _) in plans.items() if each[0] in ROWS})
        rows = {token_id: choice.row for token_id, choice in choices.items() if choice.row is not None}
        unreachable, plain_specials = (
            tuple(sorted(token_id for token_id, choice in choices.items() if choice.strategy is kind))
            for kind in result.TOKENIZER
        )
        self._write(ModelEdit(rows, unreachable, plain_specials))
        tokenizer = load_tokenizer(self.place)
        tokens, names = [], dict(zip(self.vocabulary.ids, self.vocabulary.tokens, strict=True))
        replaced = [each for each, choice in choices.items() if choice.strategy is Strategy.NEAREST]
        _, nearest = self._nearest(replaced) if replaced else (None, {})
        for token_id, (strategy, _, tried) in choices.items():
            index = self.vocabulary.place(token_id)
            token, text = self.vocabulary.tokens[index], self.vocabulary.decoded[index]
            (pieces,) = tokenizer.encode_many([text.strip() if strategy in result.TOKENIZER else ""])
            candidates, reason = plans[token_id]
            if strategy is not candidates[0] and Strategy.UNREACHABLE in candidates:
                reason = _SECOND_CHOICE[strategy]
            if token_id in nearest:
                reason += f" (that of {visible(repr(names[nearest[token_id]]))})"
            others = [each for each in tried if each.strategy != strategy]
            if rejected := ", ".join(f"{each.strategy} {each.deviations:.2f} SD" for each in others):
                reason += f"; rejected, with the effect that they leave: {rejected}"
            repaired_token = result.RepairedTokenRecord(
                token_id=token_id,
                token=token,
                text=text,
                strategy=strategy.value,
                reason=reason,
                pieces=[tokenizer.entries[piece] for piece in pieces],
                tried=tried,
            )
            tokens.append(repaired_token)
        verification = None
        if self.settings.verify:
            judged = self.run.tokens.filter(pl.col("verdict").is_not_null())
            verdicts = dict(judged.select("token_id", "verdict").iter_rows())
            repaired, vocabulary = self._load()
            neighbours = neighbours_of(
                self.encoder, self.vocabulary, self.ids, self.settings.neighbours, verdicts
            )
            after = self.original.of_model(repaired, vocabulary, "after")
            verification, tokens = Verification(self, repaired, after, tokens, neighbours).run()
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

    def _plans(self) -> dict[int, tuple[tuple[Strategy, ...], str]]:
        asked = self.settings.strategy
        # Entries that the tokenizer matches in text before anything else.
        tokenizer: Any = self.encoder.user_tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", None)
        added = tokenizer.get_added_tokens_decoder() if added is None else added
        special = {*added, *getattr(tokenizer, "all_special_ids", ())}
        template = {*self.encoder.template.before, *self.encoder.template.after}
        reasons = splittable(self.source, [token_id for token_id in self.ids if token_id not in special])
        writable = asked is Strategy.AUTO and model_folder.rows_writable(self.source)
        plans = {}
        for token_id in self.ids:
            name = f"token {self.vocabulary.tokens[self.vocabulary.place(token_id)]!r} (id {token_id})"
            about = token_id in special, token_id in template, reasons.get(token_id)
            plans[token_id] = plan_token(asked, name, *about, writable)
        return plans

    def _chosen(self, candidates: Mapping[int, Sequence[Strategy]]) -> dict[int, RowChoice]:
        if not candidates:  # texts are needed for rows alone
            return {}
        asked, seed = self.settings.strategy, self.settings.seed
        avoided = self.flagged.union(self.ids)
        texts = used_texts(self.run)
        names = dict(zip(self.vocabulary.ids, self.vocabulary.decoded, strict=True))

        def compute(strategy: Strategy, ids: list[int]) -> Mapping[int, Row]:
            if strategy is Strategy.NEAREST:
                matrix, nearest = self._nearest(ids)
                return {token_id: matrix[each].copy() for token_id, each in nearest.items()}
            return new_rows(strategy, ids, self.encoder.model, texts, seed, self.progress, avoided)

        def trial(rows: Mapping[int, Row | None]) -> dict[int, float]:
            written = {token_id: row for token_id, row in rows.items() if row is not None}
            tokens = [Token(token_id, names[token_id]) for token_id in rows]
            copies = base.Tokens(tokens, [], []) if written else as_text(self.encoder, tokens)
            self._write(ModelEdit(written, () if written else tuple(sorted(rows))))
            again = self.original.of_model(*self._load(), "try")
            lift, contraction = self._ordinary.drop("token_id").median().row(0)
            return {
                each: max((own - lift) / again.similarity_spread, share_erased(erased, contraction))
                for each, (own, erased) in again.measured(copies).items()
            }

        if asked in ROWS:
            rows = compute(asked, list(candidates))
            for token_id in candidates.keys() - rows.keys():
                compute(asked, [token_id])  # raises, with the reason
            return {each: RowChoice(asked, row, []) for each, row in rows.items()}
        return choose_strategies(candidates, compute, trial if self.settings.verify else None)

    def _write(self, edit: ModelEdit) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        model_folder.write_model(self.source, self.place, edit)

    def _load(self) -> tuple[SentenceTransformerEncoder, Vocabulary]:
        encoder, _ = model_folder.repairable(loaded_like(self.encoder, self.place))
        return encoder, categorize(encoder.tokenizer)

    def _nearest(self, ids: Sequence[int]) -> tuple[NDArray[np.float32], dict[int, int]]:
        # All rows, and of each id the nearest entry that lifts and erases no more than the typical one.
        from stickytoken.inspection import inspector_of

        matrix = inspector_of(self.encoder).embedding_matrix()
        if matrix is None:
            raise RepairError("the model has no matrix of rows to take one from: use unreachable")
        ordinary = self._ordinary
        if self.run.method.measures_lift:
            benign = self.run.tokens.filter(
                pl.col("verdict") == "benign",
                pl.col("category") == Category.OK,
                ~pl.col("token_id").is_in(self.flagged.union(self.ids)),
            )  # few, where the run examined a selection
            ordinary = max(ordinary, benign.select(ordinary.columns), key=len)
        effects = [pl.col("lift"), pl.col("contraction")]
        typical = ordinary.filter(pl.all_horizontal(each <= each.median() for each in effects))
        known = np.array([each for each in typical["token_id"] if each < len(matrix)])
        if not len(known):
            raise RepairError("no ordinary token is known that another could be given the row of")
        centred = unit_vectors(matrix - matrix.mean(axis=0))
        return matrix, {each: int(known[np.argmax(centred[known] @ centred[each])]) for each in ids}

    @cached_property
    def _ordinary(self) -> pl.DataFrame:
        measured = self.original.measured(
            base.Tokens(self.original.ordinary((*self.flagged, *self.ids), 64), [], [])
        )
        rows = [(token_id, *effects) for token_id, effects in measured.items()]
        return pl.DataFrame(rows, ["token_id", "lift", "contraction"], orient="row")

    @cached_property
    def original(self) -> base.Recheck:
        job = base.RecheckJob(
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
        return registry.choose_method(None, None, pairs_given=False).recheck(job, "before")


def neighbours_of(
    encoder: SentenceTransformerEncoder,
    vocabulary: Vocabulary,
    ids: Sequence[int],
    count: int,
    verdicts: Mapping[int, str],
) -> list[Neighbour]:
    from stickytoken.inspection import inspector_of

    matrix = inspector_of(encoder).embedding_matrix()
    if matrix is None:
        return []
    others = [token for token in vocabulary.available if token.id not in ids and token.id < len(matrix)]
    rows = np.array([token.id for token in others], dtype=np.intp)
    norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
    names = dict(zip(vocabulary.ids, vocabulary.tokens, strict=True))
    found: dict[int, Neighbour] = {}
    for token_id in ids:
        cosines = (matrix @ matrix[token_id]) / norms
        for place in np.argsort(-cosines[rows])[:count]:
            token = others[int(place)]
            found.setdefault(token.id, (token, names[token_id], verdicts.get(token.id)))
    return list(found.values())


def used_texts(run: Run) -> list[str]:
    texts = run.method.texts(run.plan)
    return list(dict.fromkeys((*texts.carriers, *texts.anchors)))


_ALL_TEXTS = "the model itself puts it into every text, so a new row would change every vector"
_REASONS = {
    Strategy.RELATIVES: "a new row from entries with similar spelling",
    Strategy.NEAREST: "the row of the nearest ordinary entry",
    Strategy.UNREACHABLE: "text falls into its pieces, and nothing else changes",
    Strategy.PLAIN_SPECIALS: "a special token: as text it becomes plain text, and the model's own stays",
}

_SECOND_CHOICE = {
    Strategy.UNREACHABLE: "text falls into its pieces, because no row from similar spelling is ordinary",
    Strategy.KEEP_MEANING: "a new row that keeps the effect of a single copy",
    Strategy.NEAREST: "the row of the nearest ordinary entry, because no other repair is ordinary",
}
_ANY = (Strategy.RELATIVES, Strategy.UNREACHABLE, Strategy.KEEP_MEANING, Strategy.NEAREST)


def plan_token(
    asked: Strategy, token: str, special: bool, templated: bool, unsplittable: str | None, rows_writable: bool
) -> tuple[tuple[Strategy, ...], str]:
    """Return the strategies to try, the preferred one first, and the reason; one alone needs no trial."""
    refused, advice = None, "use auto, or leave the token out"
    if asked in ROWS and templated:
        refused, advice = _ALL_TEXTS, "use plain-specials or auto"
    elif asked is Strategy.PLAIN_SPECIALS and not special:
        refused = "it is not a special token"
    elif asked is Strategy.UNREACHABLE and special:
        refused, advice = "it is a special token", "use plain-specials or auto"
    elif asked is Strategy.UNREACHABLE:
        refused = unsplittable
    elif asked is Strategy.AUTO and templated and not special and unsplittable is not None:
        refused, advice = f"{unsplittable}; {_ALL_TEXTS}", "leave the token out"
    if refused is not None:
        by = "" if asked is Strategy.AUTO else f" by {asked}"
        raise RepairError(f"{token} cannot be repaired{by}: {refused}; {advice}")
    if asked is not Strategy.AUTO:
        return (asked,), _REASONS.get(asked, "asked for")
    if special:
        return (Strategy.PLAIN_SPECIALS,), _REASONS[Strategy.PLAIN_SPECIALS]
    if unsplittable is not None:
        return ROWS, f"a new row, because {unsplittable}"
    if templated:
        return (Strategy.UNREACHABLE,), f"text falls into its pieces; {_ALL_TEXTS}"
    if not rows_writable:
        return (Strategy.UNREACHABLE,), "text falls into its pieces; no row can be written into these weights"
    return _ANY, _REASONS[Strategy.RELATIVES]


class RowChoice(NamedTuple):
    strategy: Strategy  # how its row was made, or one that changes the tokenizer
    row: Row | None  # shape (D,); None if no row is written
    tried: list[result.TriedRecord]  # with the effects beyond an ordinary token's that they leave


def choose_strategies(
    candidates: Mapping[int, Sequence[Strategy]],
    compute: Callable[[Strategy, list[int]], Mapping[int, Row]],
    trial: Callable[[Mapping[int, Row | None]], Mapping[int, float]] | None,
) -> dict[int, RowChoice]:
    """Choose the first that leaves an ordinary token, as all do without a trial, or the smallest effect."""
    made: dict[int, list[tuple[float, Strategy, Row | None]]] = {token_id: [] for token_id in candidates}
    for strategy in _ANY:
        # Tokens of which every row so far, if any, leaves more than half of what matters to a run.
        unsolved = [each for each, tried in made.items() if not any(effect <= 0.25 for effect, _, _ in tried)]
        ids = [each for each in unsolved if strategy in candidates[each]]
        rows: Mapping[int, Row | None] = dict.fromkeys(ids)
        if ids and strategy is not Strategy.UNREACHABLE:
            with suppress(RepairError):  # no row by this strategy: another may do
                rows = compute(strategy, ids)
            rows = {each: row for each, row in rows.items() if row is not None}
        effects = trial(rows) if rows and trial is not None else dict.fromkeys(rows, -np.inf)
        for token_id, row in rows.items():
            made[token_id].append((effects[token_id], strategy, row))
    chosen = {}
    for token_id, own in candidates.items():
        if not made[token_id]:
            compute(own[-1], [token_id])  # raises, with the reason
        tried = [
            result.TriedRecord(strategy=each.value, deviations=effect)
            for effect, each, _ in made[token_id]
            if np.isfinite(effect)
        ]
        # The last one, where it is ordinary, has the smallest effect.
        _, best, row = min(made[token_id], key=lambda each: (math.isnan(each[0]), each[0]))
        chosen[token_id] = RowChoice(best, row, tried)
    return chosen
