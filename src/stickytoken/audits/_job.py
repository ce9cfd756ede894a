"""What an audit measures and with which model, and the record that says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stickytoken.audits._index import Index
from stickytoken.audits._tokens import Candidates
from stickytoken.audits.results import AuditRecord, RuleRecord
from stickytoken.cleaning import Cleaner
from stickytoken.data.documents import DocumentSource
from stickytoken.detection.run import Run, rule_of
from stickytoken.encoders.protocol import EncoderIdentity, WordEncoder, similarity_of
from stickytoken.encoders.roles import identity_of_queries
from stickytoken.machine import digest
from stickytoken.measurement import resume
from stickytoken.settings.audit import AuditSettings
from stickytoken.settings.profile import RuleSettings
from stickytoken.settings.reading import ColumnChoice, columns_of
from stickytoken.unit_vectors import Similarity

# Increase this version when the same inputs no longer give the same numbers.
_IDENTITY_VERSION = 16


@dataclass(frozen=True)
class AuditJob:
    """Everything that decides the numbers of an audit.

    Attributes:
        run: says what is known of the tokens.
        encoder: the model of the run.
        settings: settings of the audit.
        candidates: the tokens that may be measured.
        index: the documents and queries.
        cleaner: finds the copies that documents have now.
    """

    run: Run
    encoder: WordEncoder
    settings: AuditSettings
    candidates: Candidates
    index: Index
    cleaner: Cleaner

    @property
    def rule(self) -> RuleSettings:
        """The thresholds of the run, which decide which tokens are sticky."""
        return rule_of(self.run)


def make_record(
    job: AuditJob,
    documents: DocumentSource,
    column: ColumnChoice,
    allow: str | Path | None,
    known: str | Path | None,
    notes: list[str],
) -> AuditRecord:
    """Return the record of an audit that has not begun. Its identity is a hash of what decides its numbers.

    What the user passed as documents, columns and files of what is accepted (``allow``, ``known``) is
    recorded for the suggested commands. What these files hold is in the rules of the job's cleaner.
    """
    run = job.run
    inputs: dict[str, Any] = {"run": run.record.identity, "index": job.index.record.fingerprint}
    queries_identity = identity_of_queries(job.encoder)
    if queries_identity is not None:
        inputs["queries"] = asdict(queries_identity)
    similarity = similarity_of(job.encoder)
    if similarity is not Similarity.COSINE:
        inputs["similarity"] = similarity.value
    if job.candidates.named_ids is not None:
        inputs["tokens"] = job.candidates.named_ids
    rules = job.cleaner.rules
    if rules.normalized_specials:  # a run of an earlier version records them when it is opened by `detect`
        inputs["normalized_specials"] = list(rules.normalized_specials)
    # Of the cleaner's rules, only these are chosen by the user. All others come from the run.
    if rules.allowed or rules.known:
        inputs["accepted"] = digest([sorted(rules.allowed), sorted(rules.known)])
    # The model is the one of the run, so its identity is in the record of the run.
    model_identity = EncoderIdentity(**run.record.identity_parts["encoder"])
    identity_parts = resume.identity_of(_IDENTITY_VERSION, model_identity, job.settings, **inputs)
    return AuditRecord(
        identity=digest(identity_parts),
        identity_parts=identity_parts,
        run=str(run.path),
        run_identity=run.record.identity,
        repairable=run.repairable,
        model=run.model_name,
        device=job.encoder.device,
        settings=asdict(job.settings),
        rule=RuleRecord.model_validate(job.rule, from_attributes=True),
        index=job.index.record,
        documents=str(documents) if isinstance(documents, (str, Path)) else "YOUR_DOCUMENTS",
        column=columns_of(column),
        allow=None if allow is None else str(allow),
        known=None if known is None else str(known),
        notes=notes,
        versions=resume.package_versions(),
        hardware=resume.hardware(job.encoder.device),
        started=resume.now(),
    )


def rename(held: resume.Resumed[AuditRecord], named: AuditRecord) -> resume.Resumed[AuditRecord]:
    """Return an audit that names files and folders as ``named`` does, and write so if it is finished.

    They may have been moved since an earlier session, and the suggested commands name them.
    """
    entries = ("run", "repairable", "index", "documents", "column", "allow", "known")
    record = held.record.model_copy(update={entry: getattr(named, entry) for entry in entries})
    if held.finished and record != held.record:
        held.folder.write_record(held.kind.file, record)
    return replace(held, record=record)
