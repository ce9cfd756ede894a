"""Evidence of tokens that a finished run kept none of, computed with its model; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

import polars as pl

from stickytoken.corpora import Sentences
from stickytoken.detection.embedding_map import MAP_SCHEMA
from stickytoken.detection.evidence import RunEvidence, measured_evidence, ordinary_tokens
from stickytoken.detection.evidence_record import EvidenceRecord
from stickytoken.detection.run import Run
from stickytoken.detection.same_model import require_same_model
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError, RunError
from stickytoken.methods.evidence_panel import EvidencePanel
from stickytoken.methods.job import Job, MethodSettings
from stickytoken.vocabulary.categories import Vocabulary


@dataclass(frozen=True)
class Reopened:
    """A finished run with its model, ready to show what further tokens do.

    Attributes:
        run: the run.
        job: what it was computed from; its corpus is empty, for its plan holds all texts.
        panel: carriers against anchors, encoded once.
    """

    run: Run
    job: Job[MethodSettings]
    panel: EvidencePanel


def reopen(run: Run, encoder: Encoder, vocabulary: Vocabulary) -> Reopened:
    """Encode the carriers and anchors of a run's plan.

    Args:
        run: a finished run.
        encoder: its model.
        vocabulary: of the model.

    Raises:
        RunError: the run is of another model, or its settings cannot be read.
    """
    require_same_model(run, encoder)
    kind = run.method.settings
    known = {field.name for field in fields(kind)}
    # Weights and constants of scores are no part of evidence.
    plain = {
        name: value
        for name, value in run.record.settings.items()
        if name in known and not isinstance(value, dict)
    }
    try:
        settings = kind(**plain)
    except (TypeError, InputError) as error:
        raise RunError(f"the settings in {run.path} cannot be used: {error}") from error
    job = Job(encoder, settings, Sentences((), "the plan of the run"), vocabulary, [], True, False)
    return Reopened(run, job, run.method.evidence_panel(job, run.plan))


def token_evidence(opened: Reopened, token_ids: Sequence[int], with_ordinary: bool) -> RunEvidence:
    """Curves and pairs of some tokens, as `detect` computes them for the worst ones; without a map.

    Args:
        opened: the run.
        token_ids: available tokens.
        with_ordinary: also the ordinary tokens that stand beside them.

    Raises:
        InputError: a token cannot occur in text.
        EncodingError: a text without a usable vector.
    """
    started = time.perf_counter()
    job, panel = opened.job, opened.panel
    available = {token.id: token for token in job.vocabulary.available}
    for token_id in token_ids:
        if token_id not in available:
            raise InputError(f"token id {token_id} cannot occur in text: choose another one")
    tokens = [available[token_id] for token_id in token_ids]
    ordinary = (
        ordinary_tokens(job.vocabulary.available, opened.run.tokens, tokens, job.settings.seed)
        if with_ordinary
        else []
    )
    frame = measured_evidence(job, tokens, ordinary, panel)
    record = EvidenceRecord(
        carriers=panel.carriers,
        anchors=len(panel.stage.symptoms.panel.panel.vectors),
        pair_copies=panel.stage.copies,
        map_explained=None,
        sequences=len(frame) * panel.stage.probes_per_token,
        seconds=round(time.perf_counter() - started, 1),
    )
    return RunEvidence(record, frame, pl.DataFrame(schema=MAP_SCHEMA))
