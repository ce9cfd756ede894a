"""Judge the tokens of a finished run on another corpus."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.views import View
from stickytoken.errors import RunError
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods._null import Null
from stickytoken.methods.job import Job
from stickytoken.methods.judgement import Judgement
from stickytoken.methods.memory_runner import MemoryRunner
from stickytoken.methods.profile._calibration import Calibrated
from stickytoken.methods.profile._corpus_probes import (
    Calibrating,
    Corpus,
    Probed,
    calibrated,
    calibrating_tokens,
    encoded_corpus,
    probed_tokens,
)
from stickytoken.methods.profile._effects import EFFECTS_FILE, RoundEffects, read_effects
from stickytoken.methods.profile._views import known_in
from stickytoken.methods.profile._words import ProfileRun
from stickytoken.methods.profile.anchors import anchor_panel
from stickytoken.methods.profile.estimates import Ids, TokenEstimates, Vector
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import (
    NEGLIGIBLE_SHARE,
    find_lifts,
    severities,
    universality,
    verdicts,
)
from stickytoken.methods.pull import Pull, anchorage, fixed_points, predicted_lifts
from stickytoken.methods.statistics import Estimates
from stickytoken.unit_vectors import unit_vectors

# Tokens that may be flagged and are measured on the corpus, at most.
_MEASURED = 256
# They may be flagged if their lift is not further than this many errors below what matters.
_ERRORS = 2.0
# Documents and queries to draw; together they are many pairs.
_DRAWN = 100
# A document moves up if it passes this share of the corpus.
_PASSED = 0.1
_SPLIT = 4  # key of the generator


def require_judging(run: ProfileRun) -> None:
    """Refuse a run without effects."""
    if not (run.path / EFFECTS_FILE).is_file():
        raise RunError(
            f"{run.path} has no {EFFECTS_FILE}, which judging a corpus needs: run the detection "
            "again, into another folder"
        )


def judge_corpus(
    job: Job[ProfileSettings],
    run: ProfileRun,
    anchors: int,
    progress: ProgressCallback,
    view: View | None = None,
) -> Judgement:
    """Compute the lift of every token on a corpus, measure those that may matter, and judge.

    Args:
        job: model, settings, corpus, and the tokens of the run.
        run: the run.
        anchors: number of texts of the corpus to compare with, at most.
        progress: called after every step.
        view: of the vectors; None is the model as it is.
    """
    plan, tokens = known_in(run, view)
    corpus = encoded_corpus(job, plan, anchors)
    memory = MemoryRunner(job.encoder, progress)
    screened = read_effects(run.path, view).of(Round.SCREEN)
    every = len(tokens) == len(job.vocabulary.available)
    unselected = np.isin(screened.ids, screened.ids if every else plan.reference)
    reference = calibrating_tokens(screened.ids[unselected], job.settings.seed)
    found, calibrating = calibrated(job, corpus, screened, reference, progress)
    null = _null(found, unselected)
    gate = null.center + NEGLIGIBLE_SHARE * job.settings.smallest_effect * corpus.spread
    asked = np.isin(screened.ids, tokens["token_id"].to_numpy())
    # Where vectors are made up to count the texts, as many tokens are measured as ever may be.
    counting = getattr(job.encoder, "makes_up_vectors", False)
    may = asked & (counting | (found.values + _ERRORS * found.error >= gate))
    order = np.lexsort((screened.ids, -found.values))
    chosen = np.sort(screened.ids[order[may[order]][:_MEASURED]])
    common_variance = found.error**2 / len(reference)
    probed = probed_tokens(job, corpus, chosen, calibrating.common, common_variance, memory)
    estimates = _estimates(screened.ids, found, null, probed, job.settings.confidence)
    universal = _universality(job, plan, tokens, screened.ids, probed, calibrating)
    table = _table(job, corpus, tokens, screened, probed, estimates, universal, int(unselected.sum()))
    return Judgement(
        tokens=table,
        source=job.sentences.source,
        texts=len(job.sentences),
        anchors=len(corpus.panel.vectors),
        left_out=corpus.left_out,
        ordinary_lift=null.center,
        similarity_spread=corpus.spread,
        error=found.error,
        measured=len(probed.ids),
        undecided=int(may.sum()) - len(chosen),
    )


def _null(found: Calibrated, unselected: NDArray[np.bool_]) -> Null:
    """Fit the distribution of ordinary lifts: that of the computed ones, and their error."""
    fitted = Null.fit(found.values[unselected], 0.0)
    return Null(fitted.center, float(np.hypot(fitted.spread, found.error)), fitted.shape)


def _universality(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    measured: pl.DataFrame,
    ids: Ids,
    probed: Probed,
    calibrating: Calibrating,
) -> Vector:
    """Return the run's universality; of tokens that it did not measure closely, that of their pulls here."""
    found = np.full(len(ids), np.nan)
    tokens = measured.select("token_id", "texts", pl.col("universality").cast(pl.Float64))
    found[np.searchsorted(ids, tokens["token_id"].to_numpy())] = tokens["universality"].to_numpy()
    closely = tokens.filter(pl.col("texts") == tokens["texts"].max())["token_id"].to_numpy()
    rough = ~np.isin(probed.ids, closely)
    kinds = [place for place, group in enumerate(plan.groups) if group.kind]
    if not rough.any() or not kinds:
        return found
    panel = anchor_panel(job.encoder, plan, job.vocabulary.available)
    carriers = unit_vectors(job.encoder.encode(plan.carriers))
    effects = Pull(probed.effects.contraction[rough], probed.effects.pull[rough])
    lifts = []
    for kind in kinds:
        alone = np.eye(len(panel.group_weights))[kind]
        of_kind = anchorage(replace(panel, group_weights=alone).against(carriers, plan.mean_similarity))
        ordinary = float(np.median(predicted_lifts(calibrating.effects, of_kind)))
        lifts.append(predicted_lifts(effects, of_kind) - ordinary)
    spreads = np.array([plan.groups[kind].spread for kind in kinds])
    found[np.searchsorted(ids, probed.ids[rough])] = universality(
        np.column_stack(lifts), spreads, job.settings.smallest_effect
    )
    return found


def _estimates(ids: Ids, found: Calibrated, null: Null, probed: Probed, confidence: float) -> TokenEstimates:
    """Put computed and measured lifts together."""
    from scipy import stats

    half = stats.norm.ppf((1 + confidence) / 2) * found.error
    values = found.values
    lift = Estimates(values.copy(), np.full(len(ids), found.error), values - half, values + half)
    rows = np.searchsorted(ids, probed.ids)
    for target, source in zip(lift, probed.lifts, strict=True):
        target[rows] = source
    texts = np.zeros(len(ids), dtype=np.int64)
    texts[rows] = probed.texts
    return TokenEstimates(ids, texts, lift, lift, null, 0.0)


def _table(
    job: Job[ProfileSettings],
    corpus: Corpus,
    tokens: pl.DataFrame,
    screened: RoundEffects,
    probed: Probed,
    estimates: TokenEstimates,
    universal: Vector,
    null_tokens: int,
) -> pl.DataFrame:
    settings, ids = job.settings, screened.ids
    rows = np.searchsorted(ids, tokens["token_id"].to_numpy())
    available, smallest = len(job.vocabulary.available), settings.smallest_effect * corpus.spread
    mattering = find_lifts(estimates, null_tokens, available, smallest, settings.fdr)
    found = mattering.found & (estimates.texts > 0)
    given = verdicts(found[rows], np.zeros(len(rows), dtype=np.bool_), universal[rows])
    effects = (estimates.lift.value - estimates.null.center) / corpus.spread
    contraction, pull = screened.effects.contraction.copy(), screened.effects.pull.copy()
    places = np.searchsorted(ids, probed.ids)
    contraction[places], pull[places] = probed.effects
    flagged = np.flatnonzero(found)
    up = np.full(len(ids), np.nan)
    up[flagged] = moves_up(Pull(contraction[flagged], pull[flagged]), corpus.panel.vectors, settings.seed)
    unknown, center = np.full(len(ids), np.nan), corpus.panel.weights @ corpus.panel.vectors
    q_values = unknown if mattering.q_values is None else mattering.q_values
    columns = {
        "texts": estimates.texts,
        "lift": estimates.lift.value,
        "lift_low": estimates.lift.low,
        "lift_high": estimates.lift.high,
        "universality": universal,
        "moves_up": up,
        "contraction": contraction,
        "fixed_point": fixed_points(Pull(contraction, pull), center),
        "q_value": q_values,
    }
    return (
        tokens.select("token_id", "token", "decoded", "category")
        .with_columns(**{name: pl.Series(values[rows]) for name, values in columns.items()})
        .with_columns(
            severity=pl.Series(severities(effects[rows], given), dtype=pl.String),
            verdict=pl.Series(given, dtype=pl.String),
        )
        .with_columns(pl.col(pl.Float64).fill_nan(None))
    )


def moves_up(effects: Pull, texts: NDArray[np.float32], seed: int) -> Vector:
    """Compute the share of random queries and documents for which copies move the document up.

    Random texts of the corpus are the queries, others the documents; a document moves up if it passes at
    least a tenth of all texts. cos(after) is computed from the token's pull and contraction.

    Args:
        effects: of T tokens.
        texts: unit vectors of the corpus, shape (n, d).
        seed: seed of the draw.

    Returns:
        Shape (T,).
    """
    order = np.random.default_rng([seed, _SPLIT]).permutation(len(texts))
    count = min(_DRAWN, len(texts) // 2)
    queries, documents = order[:count], order[count : 2 * count]
    similarities = (texts @ texts[queries].T).astype(np.float64)
    before = similarities[documents]
    ranked = np.sort(similarities, axis=0)
    ahead = _ahead(ranked, before)
    shares = []
    for contraction, pull in zip(effects.contraction, effects.pull, strict=True):
        after = (1 - contraction) * before + texts[queries] @ pull
        shares.append(float((ahead - _ahead(ranked, after) >= _PASSED * len(texts)).mean()))
    return np.array(shares)


def _ahead(ranked: Vector, similarities: Vector) -> NDArray[np.intp]:
    """Count the texts that are more similar to each query, shape (documents, queries)."""
    columns = [
        len(ranked) - np.searchsorted(ranked[:, query], similarities[:, query], side="right")
        for query in range(ranked.shape[1])
    ]
    return np.stack(columns, axis=1)
