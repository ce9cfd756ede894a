"""Audit a search index: which tokens hide or push its documents, and which documents have copies already?"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from stickytoken.audits import results
from stickytoken.audits.results import Audit, audits_in, open_audit
from stickytoken.audits.vectors import StoredVectors, VectorSource, open_vectors
from stickytoken.cleaning import Cleaner
from stickytoken.cleaning.rules import CleaningRules, rules_of_run
from stickytoken.data.documents import DocumentSource, NamedColumns, open_documents
from stickytoken.detection.finding import find_run, refuse_for_run
from stickytoken.detection.naming import TokenSource
from stickytoken.detection.run import Run, encoder_for
from stickytoken.encoders import protocol
from stickytoken.insertion import Insertion
from stickytoken.loading import AnyModel, load_encoder
from stickytoken.machine import RUNS_FOLDER
from stickytoken.measurement import engine as engines, resume, store
from stickytoken.measurement.ray_engine import EngineChoice, chosen_engine
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.probes import require_insertion
from stickytoken.methods.runner import Runner
from stickytoken.settings import choose_insertion
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.reading import ColumnChoice
from stickytoken.validation import file_path, or_default, require_callable

__all__ = ["Audit", "AuditSettings", "audit", "audits_in", "open_audit"]


def audit(  # noqa: PLR0913 - all of them keyword-only, one decision each
    source: AnyModel | Run,
    documents: DocumentSource,
    *,
    queries: DocumentSource | None = None,
    column: ColumnChoice = None,
    source_column: str | None = None,
    vectors: VectorSource | StoredVectors | None = None,
    allow: str | Path | None = None,
    known: str | Path | None = None,
    tokens: TokenSource | None = None,
    encoder: AnyModel | None = None,
    runs: str | Path | None = None,
    settings: AuditSettings | None = None,
    out: str | Path | None = None,
    engine: EngineChoice = "local",
    progress: engines.ProgressCallback = engines.ignore_progress,
) -> Audit:
    """Measure which tokens hide or push documents of an index, and find documents that have copies already.

    Repeating the call continues an interrupted audit, and opens a finished one.

    Args:
        source: a run or its folder, or a model (anything that `load_encoder` takes). For a model, the newest
            run over its whole vocabulary is used; if there is none, a detection is run.
        documents: the documents to index: anything that `stickytoken.scan` takes.
        queries: the queries, in any format that ``documents`` may have. If None, the queries of a BEIR folder
            are used; for any other documents, the first sentences of some documents serve as queries. With
            the relevance judgements of a BEIR folder, copies are also measured by whether the relevant
            documents are still found; without them, by whether documents are found by their first sentences.
        column: the column that contains the text of the documents, several columns, or `Columns`.
        source_column: the column with the source of documents, by which the places that copies cost or bring
            are also counted. If None, it is ``source`` or ``topic``, if there is one.
        vectors: the vectors of the documents, if an index has them already, so that only queries and
            documents with copies are encoded: anything that `stickytoken.audits.vectors.open_vectors`
            takes. A few documents are encoded to compare.
        allow: file of words and special tokens whose copies in documents are accepted, one on each line.
        known: file of documents whose copies are accepted, as ``scan --set write-known=FILE`` writes it.
        tokens: ids or texts of the tokens to measure, or files of them. If None, flagged, special and other
            suspicious tokens are measured. Random tokens are measured with either.
        encoder: the model of the run. If None, the model that the run names is loaded.
        runs: for a model: the folder that holds its runs; if None, ``runs``.
        settings: settings of the audit. If None, the default settings are used.
        out: folder of the audit. If None, the audit is stored as ``audit-<identity>`` in the run folder, and
            the report of the run includes the audit.
        engine: where to compute, as in `detect`.
        progress: called after every step.

    Returns:
        The finished audit.

    Raises:
        InputError: documents, queries, vectors, settings, or a file of what is accepted cannot be used.
        ModelError: the model cannot be found or used.
        EncodingError: the model returns no usable vector for a text.
        RunError: a run is damaged or belongs to another model, or the folder contains something other than
            this audit.

    Examples:
        >>> settings = stickytoken.AuditSettings(tokens=2, stuffed=5)
        >>> audit = stickytoken.audit(run, documents, encoder=model, settings=settings, out="audit")
        >>> audit.result.searched, audit.result.with_copies
        (33, 2)
    """
    # Reports open audits, and need none of what measures them.
    from stickytoken.audits import _index, _job, _measuring, _stuffing, _tokens

    settings = or_default("settings", settings, AuditSettings())
    began = time.perf_counter()
    require_callable("progress", progress)
    # What cannot be used is refused before the model is loaded or a run is made, which may take hours.
    refuse_for_run(source, runs=runs)
    runs = RUNS_FOLDER if runs is None else file_path("runs", runs)
    if out is not None:
        out = file_path("out", out)
        resume.require_place(out, results.AUDITS)
    if isinstance(documents, (str, Path)):
        open_documents(documents, NamedColumns(column))  # refuses what it cannot read; read further below
    if isinstance(queries, (str, Path)):
        open_documents(queries, NamedColumns())
    stored_vectors = None if vectors is None else open_vectors(vectors)
    accepted = CleaningRules().extended(allow=allow, known=known)
    if not isinstance(source, (str, Path, Run)):
        source = load_encoder(source)
    if encoder is not None:
        encoder = load_encoder(encoder)
    for passed in (source, encoder):
        if settings.insertion is not None and protocol.is_encoder(passed):
            require_insertion(passed, settings.insertion)
    run, model, notes = find_run(source, runs, progress=progress, engine=engine)
    # If `find_run` had to load the model, it has compared it with the run. Any other model is compared here.
    if encoder is not None or model is None:
        model = encoder_for(encoder, run, "audit")
    model = protocol.require_words(model, "audit")
    texts_only = not protocol.reads_ids(model)
    settings, insertion_notes = _insert_as_the_run(settings, run, texts_only=texts_only)
    notes = [*notes, *insertion_notes]
    require_insertion(model, settings.inserted_as)
    candidates = _tokens.read_candidates(run, model, settings, tokens)
    cleaner = Cleaner(replace(rules_of_run(run), allowed=accepted.allowed, known=accepted.known))
    index = _index.read_index(
        documents, queries, column, source_column, model, settings, cleaner, stored_vectors
    )
    notes = [*notes, *index.notes]
    _stuffing.require_queries(index, settings)
    job = _job.AuditJob(run, model, settings, candidates, index, cleaner)
    record = _job.make_record(job, documents, column, allow, known, notes)
    folder_path = out or run.path / store.folder_name(results.AUDIT, record.identity)
    folder = ResultFolder(folder_path, began)
    with resume.resumed(folder, results.AUDITS, record) as earlier:
        held = _job.rename(earlier, record)
        if not held.finished:
            if stored_vectors is not None:
                compared_index = _index.compare_stored(index, stored_vectors, model, settings)
                job = replace(job, index=compared_index)
            held.prepare(held.record)
            folder.begin()
            with chosen_engine(engine, model) as opened_engine:
                runner = Runner(opened_engine, folder, progress, _stuffing.SHARD_TEXTS)
                _measuring.measure(job, runner, held)
    return open_audit(folder_path)


def _insert_as_the_run(
    settings: AuditSettings, run: Run, *, texts_only: bool
) -> tuple[AuditSettings, list[str]]:
    """Return settings with an insertion, and a note if it isn't that of the run.

    Unless the user has chosen another, copies are inserted as in the run, so that what it measured is true of
    the same copies. A run of `std` measured nothing that an audit takes over.
    """
    if not run.is_profile:
        return choose_insertion(settings, texts_only), []
    of_run = run.settings.inserted_as
    if settings.insertion is None and not (texts_only and of_run is Insertion.IDS):
        settings = replace(settings, insertion=of_run)
    settings = choose_insertion(settings, texts_only)
    if settings.insertion is of_run:
        return settings, []
    note = (
        f"copies were inserted with insertion={settings.insertion}, and those of the run with "
        f"insertion={of_run}: its erased shares are of other copies"
    )
    return settings, [note]
