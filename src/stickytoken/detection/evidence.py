"""Measure the evidence that reports show, on which no verdict depends: symptom curves and sentence pairs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import polars as pl

from stickytoken.data import Sentences
from stickytoken.data.readability import SpanTokenizer
from stickytoken.detection.naming import available_tokens
from stickytoken.detection.run import Run
from stickytoken.detection.run_folder import EVIDENCE_SCHEMA, EvidenceRecord, RunEvidence
from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Token
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import base
from stickytoken.methods.runner import Runner
from stickytoken.methods.symptoms import EvidenceStage, similarity_counts
from stickytoken.vocabulary import Vocabulary

# Maximum number of tokens to measure, not counting ordinary tokens.
_MAX_TOKENS = 12
# If fewer tokens than this are sticky, the strongest of the other tokens are measured too.
_MIN_TOKENS = 4
# Number of ordinary tokens that are measured as a control, and in a run over some tokens.
_ORDINARY_TOKENS = 8
_ORDINARY_IN_FEW = 4
# Together with the seed, this number makes the choice of ordinary tokens independent of other random choices.
_ORDINARY_STREAM = 12


class EvidenceMeasurer:
    """Measures curves and pairs for tokens of a finished run, in the carriers and anchors of its plan.

    Args:
        run: The finished run.
        encoder: The model of the run. It encodes carriers and anchors at once, which takes a few seconds.
        vocabulary: The vocabulary of the model.
    """

    def __init__(self, run: Run, encoder: Encoder, vocabulary: Vocabulary) -> None:
        measured_ids = set(run.tokens["token_id"])
        self._run = run
        self._job = base.Job(
            encoder,
            run.settings,
            Sentences((), "the plan of the run"),  # empty, because the plan holds all texts
            vocabulary,
            [token for token in vocabulary.available if token.id in measured_ids],
            restricted=run.record.identity_parts["tokens"] is not None,
            sampled=False,
        )
        self._stage: EvidenceStage = run.method.evidence_stage(self._job, run.plan, run.mean_similarity)

    def measure(
        self,
        named: Sequence[int] | None = None,
        with_ordinary: bool = True,
        progress: ProgressCallback = ignore_progress,
    ) -> RunEvidence:
        """Measure curves and pairs for the worst tokens, and for ordinary tokens as a control.

        Args:
            named: Ids of the tokens to measure. If None, the worst sticky tokens are measured and, if there
                are few of them, also the strongest of the other tokens.
            with_ordinary: Whether to also measure a few random tokens that are not sticky.
            progress: Called with the progress at every step.

        Returns:
            The record and the table of the evidence.

        Raises:
            InputError: A named token cannot occur in text.
        """
        started = time.perf_counter()
        encoder = self._job.encoder
        stage = self._stage
        worst_ids = _list_worst_ids(self._run)
        tokens = available_tokens(self._job.vocabulary, worst_ids if named is None else named)
        ordinary_ids: set[int] = set()
        if with_ordinary:
            # No token that a report may show as one of the worst serves as a control.
            excluded = {*self._run.sticky_ids, *worst_ids, *(token.id for token in tokens)}
            count = _ORDINARY_IN_FEW if self._job.restricted else _ORDINARY_TOKENS
            ordinary = list(islice(self._draw_ordinary(excluded), count))
            ordinary_ids = {token.id for token in ordinary}
            tokens += ordinary
        # One shard for all tokens would fill batches best, but small shards need less memory.
        runner = Runner.in_memory(encoder, progress, _ORDINARY_TOKENS * stage.probes_per_token)
        rows = [row for row in runner(stage, tokens).to_dicts() if row["token_id"] not in runner.unanswered]
        tokens_by_id = {token.id: token for token in tokens}
        for row in rows:
            row["ordinary"] = row["token_id"] in ordinary_ids
            row["copies"] = [0, *stage.copies]
            unknown = unknown_copies(encoder, stage, tokens_by_id[row["token_id"]])
            _leave_out_unknown(row, unknown, stage.pair_copies)
        record = EvidenceRecord(
            carriers=list(stage.texts),
            anchors=len(stage.panel.anchors.vectors),
            pair_copies=stage.pair_copies,
            sequences=len(tokens) * stage.probes_per_token,
            seconds=round(time.perf_counter() - started, 1),
            similarities_before=tuple(similarity_counts(stage.panel.before)),
        )
        return RunEvidence(record, pl.DataFrame(rows, schema=EVIDENCE_SCHEMA))

    def _draw_ordinary(self, excluded: set[int]) -> Iterator[Token]:
        """Yield random tokens that are not excluded, and whose copies the tokenizer reads in every number."""
        available = self._job.vocabulary.available
        order = np.random.default_rng([self._job.settings.seed, _ORDINARY_STREAM]).permutation(len(available))
        for index in order:
            token = available[index]
            if token.id not in excluded and not unknown_copies(self._job.encoder, self._stage, token):
                yield token


def _list_worst_ids(run: Run) -> list[int]:
    sticky_ids = run.sticky["token_id"].to_list()
    strongest_others = run.strongest(_MAX_TOKENS)["token_id"].to_list()  # none of them is sticky
    count = min(_MAX_TOKENS, max(len(sticky_ids), _MIN_TOKENS))
    return [*sticky_ids, *strongest_others][:count]


def _leave_out_unknown(row: dict[str, Any], unknown: set[int], pair_copies: int) -> None:
    """Replace by null a row's values at ``unknown`` numbers of copies: so many are read as another word.

    The pairs of the row, and its similarities, are those with ``pair_copies``.
    """
    for curve in ("below", "above"):
        points = zip(row["copies"], row[curve], strict=False)  # a curve may be empty
        row[curve] = [None if copies in unknown else value for copies, value in points]
    if pair_copies in unknown:
        row["similarities_after"] = None
        for pair in ("typical", "largest"):
            for part in ("carrier", "anchor", "before", "after"):
                row[f"{pair}_{part}"] = None


def unknown_copies(encoder: Encoder, stage: EvidenceStage, token: Token) -> set[int]:
    """Return the numbers of copies that make the tokenizer read part of a text as an unknown word.

    Without spaces, copies after a text form one long word with the last word of the text. A BERT tokenizer
    reads a word of more than 100 characters as unknown.
    """
    carriers = [carrier for carrier in stage.carriers if isinstance(carrier, str)]
    tokenizer = encoder.tokenizer
    if not carriers or not isinstance(tokenizer, SpanTokenizer) or tokenizer.unknown_id in (None, token.id):
        return set()
    unknown_id = tokenizer.unknown_id
    counts_without_copies = [ids.count(unknown_id) for ids in encoder.content_ids(carriers)]
    texts = [probe for probe in stage.probes(token) if isinstance(probe, str)]
    unknown: set[int] = set()
    # The probes of a token are ordered by carrier, and then by number of copies.
    for index, ids in enumerate(encoder.content_ids(texts)):
        carrier, number = divmod(index, len(stage.copies))
        if ids.count(unknown_id) > counts_without_copies[carrier]:
            unknown.add(stage.copies[number])
    return unknown
