"""Compute evidence for further tokens of a finished run; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from stickytoken.corpora import Sentences
from stickytoken.detection._embedding_map import NO_MAP
from stickytoken.detection.evidence import (
    RunEvidence,
    measured_evidence,
    ordinary_tokens,
    run_evidence,
    tokens_to_show,
)
from stickytoken.detection.run import Run
from stickytoken.detection.run_model import require_same_model, restored_settings
from stickytoken.detection.selection import available_tokens
from stickytoken.encoders.protocol import Encoder
from stickytoken.methods.evidence_panel import EvidencePanel
from stickytoken.methods.job import Job, MethodSettings
from stickytoken.vocabulary.categories import Vocabulary


@dataclass(frozen=True)
class Reopened:
    """A finished run with its model, ready to measure further tokens.

    Attributes:
        run: the run.
        job: job of the run; its corpus is empty, because the plan holds all texts.
        panel: carriers and anchors, encoded once.
    """

    run: Run
    job: Job[MethodSettings]
    panel: EvidencePanel


def reopen(run: Run, encoder: Encoder, vocabulary: Vocabulary) -> Reopened:
    """Encode the carriers and anchors of a run's plan.

    Raises:
        RunError: the run is of another model, or its settings cannot be used.
    """
    require_same_model(run, encoder)
    job = Job(
        encoder, restored_settings(run), Sentences((), "the plan of the run"), vocabulary, [], True, False
    )
    return Reopened(run, job, run.method.evidence_panel(job, run.plan))


def token_evidence(opened: Reopened, token_ids: Sequence[int], with_ordinary: bool) -> RunEvidence:
    """Compute curves and pairs as `detect` does for the worst tokens; without a map.

    Args:
        opened: the run.
        token_ids: ids of available tokens.
        with_ordinary: whether to measure ordinary tokens as well.

    Raises:
        InputError: a token cannot occur in text.
        EncodingError: a text without a usable vector.
    """
    started = time.perf_counter()
    job, panel = opened.job, opened.panel
    tokens = available_tokens(job.vocabulary, token_ids)
    ordinary = []
    if with_ordinary:
        # Those that detect would draw.
        shown = [*token_ids, *tokens_to_show(opened.run.tokens, opened.run.method.ranked_by.key)]
        ordinary = ordinary_tokens(
            job.vocabulary.available,
            opened.run.tokens,
            available_tokens(job.vocabulary, shown),
            job.settings.seed,
        )
    frame = measured_evidence(job, tokens, ordinary, panel)
    return run_evidence(panel, frame, NO_MAP, started)
