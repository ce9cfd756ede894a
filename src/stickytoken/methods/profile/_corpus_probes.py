"""Probe a corpus for a judgement: random tokens in its texts, and the tokens that may matter there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.encoders.view_encoder import ViewEncoder
from stickytoken.encoders.views import View
from stickytoken.errors import InputError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.measurement.progress import Progress, ProgressCallback, ignore_progress
from stickytoken.methods.job import Job
from stickytoken.methods.judgement import MEASURING
from stickytoken.methods.memory_runner import MemoryRunner
from stickytoken.methods.panel import AnchorPanel
from stickytoken.methods.profile._calibration import Calibrated, calibrate
from stickytoken.methods.profile._copies import round_measurements
from stickytoken.methods.profile._effects import RoundEffects
from stickytoken.methods.profile.anchors import Sources, TextGroup, choose_anchors
from stickytoken.methods.profile.carriers import short_texts
from stickytoken.methods.profile.estimates import Ids, Measurements, Vector
from stickytoken.methods.profile.plan import round_stage
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round, screening_carriers
from stickytoken.methods.profile.seen import Seen, spread_of, usable_carriers
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.pull import Pull, anchorage, predicted_lifts
from stickytoken.methods.statistics import Estimates, mean_with_interval
from stickytoken.unit_vectors import unit_vectors

_CARRIERS = 24
# Carriers that each calibrating token is put into; all tokens together cover all carriers. Many tokens in few
# carriers teach more than few in many.
_CALIBRATING = 2
_TOKENS = 2400
_LEAST_TOKENS = 24
# A text as a query, and another as a document.
_LEAST_ANCHORS = 2
_CALIBRATING_TOKENS = 5  # key of the generator


@dataclass(frozen=True)
class Corpus:
    """Carriers and anchors of the corpus.

    Attributes:
        plan: the run's plan with carriers of the corpus.
        panel: anchors.
        spread: standard deviation of the carriers' similarities to them.
        left_out: texts that the model does not read whole.
    """

    plan: ProfilePlanRecord
    panel: AnchorPanel
    spread: float
    left_out: int


def encoded_corpus(job: Job[ProfileSettings], plan: ProfilePlanRecord, anchors: int) -> Corpus:
    """Choose carriers and anchors of the job's corpus, and encode them."""
    encoder, settings = job.encoder, replace(job.settings, anchors=anchors)
    group = TextGroup("corpus", list(job.sentences.texts), 1.0, False)
    source = job.sentences.source
    carriers = short_texts(encoder, settings, [group], _CARRIERS, source)
    chosen = choose_anchors(encoder, settings, Sources([group], []), set(carriers.values()))
    if (left := len(chosen.texts)) < _LEAST_ANCHORS:
        counted = "1 text" if left == 1 else f"{left} texts"
        raise InputError(
            f"{source} has {counted} left to compare with, and {_LEAST_ANCHORS} are needed: use more texts"
        )
    vectors = unit_vectors(encoder.encode(chosen.texts))
    panel = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
    seen = Seen(View(encoder.dimension), panel, plan.mean_similarity)
    texts, (before,) = usable_carriers(encoder, list(carriers), [seen], _CARRIERS, source)
    return Corpus(
        plan.model_copy(update={"carriers": texts}),
        panel,
        spread_of(before, panel.weights),
        chosen.left_out,
    )


class Calibrating(NamedTuple):
    """What the random tokens showed.

    Attributes:
        common: common effect of each carrier, beside their mean, shape (K,).
        effects: contraction and pull of each token in a few of the carriers.
    """

    common: Vector
    effects: Pull


def calibrating_tokens(available: Ids, seed: int) -> Ids:
    """Draw the random tokens that calibrate, ascending.

    Args:
        available: ids of the tokens that were not chosen for their results.
        seed: seed of the draw.
    """
    if len(available) < _LEAST_TOKENS:
        raise InputError(
            f"the run measured {len(available)} random tokens, and {_LEAST_TOKENS} are needed to judge "
            "another corpus: detect without --tokens"
        )
    return np.sort(np.random.default_rng([seed, _CALIBRATING_TOKENS]).permutation(available)[:_TOKENS])


def calibrated(
    job: Job[ProfileSettings],
    corpus: Corpus,
    screened: RoundEffects,
    reference: Ids,
    progress: ProgressCallback,
) -> tuple[Calibrated, Calibrating]:
    """Correct the predicted lifts by random tokens, each of which is put into a few of the carriers."""
    every = round_stage(job.encoder, job.settings, corpus.plan, corpus.panel, Round.CONFIRM, range(_CARRIERS))
    predicted = predicted_lifts(screened.effects, anchorage(every.panel))
    common, residuals = np.empty(_CARRIERS), np.empty((len(reference), _CALIBRATING))
    pulls = np.empty((len(reference), corpus.panel.vectors.shape[1]))
    contractions = np.empty(len(reference))
    parts = _CARRIERS // _CALIBRATING
    silent = MemoryRunner(job.encoder, ignore_progress)
    for part in range(parts):
        ids, places = reference[part::parts], list(range(part, _CARRIERS, parts))
        measured = _measure(job, corpus, ids, places, silent)
        left = measured.lifts - predicted[np.searchsorted(screened.ids, ids), None]
        common[places] = left.mean(axis=0)
        residuals[part::parts] = left - common[places]
        contractions[part::parts], pulls[part::parts] = measured.effects
        done = (part + 1) * len(reference) // parts
        progress(Progress("calibrate", done, len(reference), done, done * _CALIBRATING))
    level = float(common.mean())
    rows = np.searchsorted(screened.ids, reference)
    lifts = predicted[rows] + residuals.mean(axis=1) + level
    least = corpus.plan.call_noise**2
    noise = max(float(residuals.var(axis=1, ddof=1).mean()), least) / _CALIBRATING
    found = calibrate(predicted, features(job.encoder, screened), rows, lifts, noise)
    # Pull and contraction carry the noise of the calls that they were measured by.
    carriers = screening_carriers(job.settings)
    found = found._replace(error=max(found.error, float(np.sqrt(least / carriers))))
    return found, Calibrating(common - level, Pull(contractions, pulls))


def features(encoder: Encoder, screened: RoundEffects) -> list[NDArray[np.floating[Any]]]:
    """List what is known about every token: pull and contraction, and its row of the embedding matrix if any.

    The row is free of the noise of measuring.
    """
    contraction, pull = screened.effects
    known = [np.column_stack([pull, contraction.astype(pull.dtype)])]
    try:
        model = encoder.model if isinstance(encoder, ViewEncoder) else encoder
        rows = inspector_of(model).embedding_matrix() if reads_ids(model) else None
    except ModelError:
        rows = None
    return known if rows is None else [*known, rows[screened.ids]]


class Probed(NamedTuple):
    """Tokens that were put into all carriers of the corpus.

    Attributes:
        ids: their ids, ascending.
        lifts: estimates of their lifts.
        effects: their effects there.
        texts: number of carriers.
    """

    ids: Ids
    lifts: Estimates
    effects: Pull
    texts: int = _CARRIERS


def probed_tokens(
    job: Job[ProfileSettings],
    corpus: Corpus,
    ids: Ids,
    common: Vector,
    common_variance: float,
    run: MemoryRunner,
) -> Probed:
    """Put tokens into all carriers of the corpus.

    Args:
        job: model and settings.
        corpus: carriers and anchors.
        ids: ids of the tokens.
        common: common effect of each carrier, shape (K,).
        common_variance: variance of an error that all lifts share.
        run: runs the stage.
    """
    if not len(ids):
        nothing = np.empty(0)
        effects = Pull(nothing, np.empty((0, corpus.panel.vectors.shape[1])))
        return Probed(ids, Estimates(nothing, nothing, nothing, nothing), effects)
    measured = _measure(job, corpus, ids, range(_CARRIERS), run)
    lifts = mean_with_interval(
        measured.lifts - common, job.settings.confidence, common_variance, corpus.plan.call_noise**2
    )
    return Probed(measured.ids, lifts, measured.effects)


def _measure(
    job: Job[ProfileSettings], corpus: Corpus, ids: Ids, places: Sequence[int], run: MemoryRunner
) -> Measurements:
    tokens = {token.id: token for token in job.vocabulary.available}
    wanted = [tokens[token_id] for token_id in ids.tolist()]
    stage = round_stage(
        job.encoder, job.settings, corpus.plan, corpus.panel, Round.CONFIRM, places, MEASURING
    )
    return round_measurements(run(stage, wanted), stage, job.encoder)
