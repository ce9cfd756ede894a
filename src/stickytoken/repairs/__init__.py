"""Repair a model: choose a repair for each token, build the repaired model, and verify it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from stickytoken.data import Sentences, SentenceSource, corpus_fingerprint, load_sentences
from stickytoken.data.readability import require_readable
from stickytoken.data.tasks import find_task, kinds_task
from stickytoken.detection.naming import TokenSource, token_ids
from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.protocol import Encoder, require_ids
from stickytoken.errors import InputError, RunError, warn
from stickytoken.loading import AnyModel
from stickytoken.machine import digest
from stickytoken.measurement import resume, store
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.repairs import model_folder, records
from stickytoken.repairs._documents import write_documents
from stickytoken.repairs._job import RepairJob
from stickytoken.repairs._plans import plan_repairs
from stickytoken.repairs._verification import NEIGHBOURS, find_neighbours, verify
from stickytoken.repairs.model_folder import RepairableModel
from stickytoken.repairs.result import Repair, open_repair
from stickytoken.settings.reading import ColumnChoice
from stickytoken.settings.repair import RepairSettings
from stickytoken.validation import file_path, or_default, require_callable
from stickytoken.vocabulary import Vocabulary, categorize

__all__ = ["Repair", "RepairSettings", "open_repair", "repair"]


# Version of the repair code, which is part of a repair's identity. Increment it when a change to the code
# produces a different model or different numbers for the same inputs.
_VERSION = 12


def repair(
    run: Run | str | Path,
    tokens: TokenSource | None = None,
    *,
    out: str | Path,
    encoder: AnyModel | None = None,
    sentences: SentenceSource | None = None,
    task: str | Path | None = None,
    settings: RepairSettings | None = None,
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
        encoder: the run's model, loaded by name or from a folder; if None, the model that the run names is
            loaded.
        sentences: corpus to verify the repaired model on; if None, the run's corpus is used, without the
            texts that the run used.
        task: task to score the model on before and after the repair: a task file, a BEIR folder or the name
            of an MTEB task; if None, the packaged task is used.
        settings: the strategy, whether to verify the repaired model, and the seed; if None, the defaults are
            used. `RepairSettings` says what the strategy ``auto`` does.
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
        >>> settings = stickytoken.RepairSettings(verify=False)
        >>> repaired = stickytoken.repair(run, ["[CLS]"], out="repaired", encoder=model, settings=settings)
        >>> repaired.tokens.select("token", "strategy").rows()
        [('[CLS]', 'plain-specials')]
    """
    began = time.perf_counter()
    settings = or_default("settings", settings, RepairSettings())
    require_callable("progress", progress)
    folder = file_path("out", out)
    opened = open_run(run)
    records.require_empty_or_repair(folder)
    chosen_task, notes_on_task = (kinds_task(), []) if task is None else find_task(task)
    model = _load_repairable_model(encoder, opened, folder)
    vocabulary = categorize(model.encoder.tokenizer)
    ids = _choose_ids(opened, vocabulary, tokens)
    corpus, note_on_corpus = _choose_corpus_and_note(opened, sentences, model.encoder)
    possible_notes = [model.note_on_routes()]
    if settings.verify:  # else, the task isn't scored either
        possible_notes += [note_on_corpus, *notes_on_task]
    notes = [note for note in possible_notes if note is not None]
    identity_parts = resume.identity_of(
        _VERSION,
        model.encoder.identify(),
        settings,
        run=opened.record.identity,
        tokens=sorted(ids),
        task=chosen_task.fingerprint,
        corpus=corpus.fingerprint,
    )
    finished = records.finished_repair(folder)
    if finished is not None:
        if finished.identity != digest(identity_parts):
            resume.refuse_different(folder, "repair", identity_parts, finished.identity_parts)
        # An earlier process finished the repair. If this process was killed right then, it left its build
        # folder, and no copy of the record in the run folder. The copy is also missing if the run folder
        # could not be written.
        model_folder.clear_workshop(folder)
        known_repairs, _damaged_ones = records.repairs_in(opened.path)
        if finished not in known_repairs:
            _keep_copy_for_reports(opened, finished, folder)
        return Repair(folder)
    with model_folder.workshop(folder) as build_folder:
        started = resume.now()
        plans = plan_repairs(model, vocabulary, ids, settings.strategy)
        neighbours = []
        if settings.verify:
            neighbours = find_neighbours(model, vocabulary, ids, opened)
        neighbour_ids = [neighbour.token.id for neighbour in neighbours]
        job = RepairJob(
            opened, model, vocabulary, ids, neighbour_ids, corpus, settings, progress, build_folder
        )
        # Made before anything is built, because it may find that there is too little to measure in.
        recheck = job.recheck if settings.verify else None
        choices = job.choose(plans)
        job.write({token_id: choice.candidate for token_id, choice in choices.items()})
        token_records = job.make_records(plans, choices)
        verification = None
        if recheck is not None:
            verification, token_records = verify(
                model, job.load(), recheck, token_records, neighbours, chosen_task
            )
        recorded_settings: dict[str, Any] = {"neighbours": NEIGHBOURS, "seed": settings.seed}
        if model.named_route is not None:
            recorded_settings["route"] = model.named_route
        record = records.RepairRecord(
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
    _keep_copy_for_reports(opened, record, folder)
    return Repair(folder)


def _load_repairable_model(encoder: AnyModel | None, run: Run, folder: Path) -> RepairableModel:
    advice_without_ids = "its tokens can be removed from documents with stickytoken clean"
    loaded = require_ids(encoder_for(encoder, run, "repair"), "repair", advice_without_ids)
    model = model_folder.require_repairable(loaded)
    target = folder.resolve()
    is_target_inside = model.folder.resolve() in (target, *target.parents)
    if is_target_inside:
        raise RunError(f"{folder} is inside the folder of the model: choose another folder")
    return model


def _keep_copy_for_reports(run: Run, record: records.RepairRecord, folder: Path) -> None:
    try:
        records.keep_copy(run.path, record)
    except RunError as error:
        warn(f"the model in {folder} is finished, but reports of the run will not show it: {error}")


def _choose_ids(run: Run, vocabulary: Vocabulary, tokens: TokenSource | None) -> list[int]:
    if tokens is None:
        ids: list[int] = run.sticky["token_id"].to_list()
    else:
        ids = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    if not ids:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to repair")
    for token_id in ids:
        vocabulary.index_of(token_id)  # raises an InputError if the model does not have this id
    return ids


def _choose_corpus_and_note(
    run: Run, sentences: SentenceSource | None, encoder: Encoder
) -> tuple[Sentences, str | None]:
    """Return the corpus to verify on, and a note if it is not the corpus of the run."""

    def read(source: SentenceSource | None, columns: ColumnChoice = None) -> Sentences:
        return require_readable(load_sentences(source, columns), encoder.tokenizer, encoder.name)

    if sentences is not None:
        return read(sentences), None
    packaged_corpus = load_sentences()
    run_corpus = run.record.corpus
    if run_corpus.source == packaged_corpus.source:
        return read(packaged_corpus), None
    # A run on sentence pairs records no number of sentences. Pairs cannot be loaded as sentences.
    has_sentences = run_corpus.sentences is not None
    if has_sentences and Path(run_corpus.source).is_file():
        corpus = read(Path(run_corpus.source), run_corpus.columns)
        # Each method has a fingerprint of its own in the identity of its runs.
        if run.record.identity_parts["corpus"] in (corpus.fingerprint, corpus_fingerprint(corpus)):
            return corpus, None
        return corpus, f"verified on {run_corpus.source} as it is now: its texts aren't those of the run"
    note = (
        f"verified on {packaged_corpus.source}, because the corpus of the run, {run_corpus.source}, "
        "cannot be read again: pass sentences to verify on your own texts"
    )
    return read(packaged_corpus), note
