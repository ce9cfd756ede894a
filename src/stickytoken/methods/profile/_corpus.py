"""Judge the tokens of a finished run on the texts of another corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import without_refused_texts
from stickytoken.errors import InputError
from stickytoken.measurement.engine import ProgressCallback, encode_texts
from stickytoken.methods import Verdict, base
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.probes import AnchorPanel, Vector
from stickytoken.methods.profile import estimates, plan as planning, texts
from stickytoken.methods.profile.estimates import Ids
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.rounds import PILOT_TOKENS, Round, round_measurements, round_stage
from stickytoken.methods.profile.verdict import Measures, apply_rule, required_shares, select_to_judge
from stickytoken.methods.statistics import Estimates, Relative, TokenEffects, beyond_ordinary, predicted_lifts
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors

# Number of carriers (texts of the corpus into which copies are inserted) in which every selected token is
# measured. A corpus must have at least as many usable texts.
_FIRST_CARRIERS = 24
# Coverage of the intervals in the first carriers that decide which tokens are measured in the other carriers.
# A token that is not measured again cannot be flagged for its lift, so few tokens should be left out wrongly.
_FIRST_CONFIDENCE = 0.99
# Maximum number of carriers in which a token is measured if its lift may reach the threshold. With 192
# carriers, the intervals are half as wide as those of a run, which has 48 confirming carriers.
_MOST_CARRIERS = 192
# Minimum number of anchors: texts that the carriers are compared with.
_LEAST_ANCHORS = 2
# Maximum number of tokens that are measured on the corpus, unless the user asks for all tokens.
_SHORTLIST = 256


class _Corpus(NamedTuple):
    """The carriers and anchors that were drawn from the corpus.

    Attributes:
        plan: a copy of the run's plan, in which the carriers, the standard deviation of the similarities, the
            limit for unrelated pairs (``narrow_limit``) and the number of left-out texts are those of the
            corpus.
        panel: the vectors of the anchors, as a single group.
    """

    plan: ProfilePlanRecord
    panel: AnchorPanel


def judge_corpus(
    job: Job[ProfileSettings],
    run: base.FinishedRun[ProfilePlanRecord, Any],
    anchors: int,
    progress: ProgressCallback,
    *,
    measure_all: bool = False,
    queries: Sequence[str] | None = None,
) -> base.Judgement:
    """Judge the tokens of a run on the job's corpus.

    First, the lift of every token on the corpus is predicted from the effects of copies that the run
    measured (see `stickytoken.methods.statistics.Effects`). Then the tokens that the run flags as sticky or
    topical, and the tokens whose predicted lifts are largest relative to their thresholds, are measured in
    texts of the corpus. Finally, the rule is applied to the measured lifts and to the erased shares from the
    run. Erased shares are not measured again, because they do not depend on the anchors.

    Args:
        job: provides the model, the settings and the vocabulary of the run, and the corpus.
        run: the finished run.
        anchors: maximum number of anchors, the texts that carriers are compared with.
        progress: called with the progress after every step.
        measure_all: whether to measure all tokens that may reach a threshold, regardless of their number.
        queries: texts from which the anchors are drawn. If ``queries`` is None, the anchors are drawn from
            the corpus.

    Returns:
        The judgement: a table of all tokens of the run, with the lifts and verdicts of the tokens that were
        measured on the corpus, and the numbers that describe the corpus.
    """
    # If the model's server refuses a text, the corpus is prepared again without this text.
    corpus = without_refused_texts(job.encoder, lambda: _prepared(job, run.plan, anchors, queries, progress))
    tokens = run.tokens.drop_nulls("verdict").sort("token_id")
    thresholds = _lift_thresholds(tokens, job.settings, corpus.plan)
    run_effects = estimates.read_effects(run.path)
    is_flagged = pl.col("verdict") != Verdict.BENIGN
    shortlist = select_to_judge(
        ids=tokens["token_id"].to_numpy(),
        lift_ratios=_predicted_lifts(job, corpus, run_effects, tokens) / thresholds,
        flagged_ids=tokens.filter(is_flagged)["token_id"].to_list(),
        count=_SHORTLIST,
        measure_all=measure_all,
    )
    is_selected = np.isin(tokens["token_id"].to_numpy(), shortlist.ids)
    selected_tokens = tokens.filter(is_selected)
    lifts = _measured_lifts(job, corpus, selected_tokens, thresholds[is_selected], progress)
    table = _table(corpus.plan, run, selected_tokens, lifts, job.settings)
    return base.Judgement(
        tokens=table,
        source=job.sentences.source,
        texts=len(job.sentences),
        anchors=len(corpus.panel.vectors),
        left_out=corpus.plan.left_out,  # number of texts
        ordinary_lift=lifts.ordinary,
        similarity_spread=corpus.plan.similarity_spread,
        measured=table["verdict"].count(),
        undecided=shortlist.left_out,  # number of tokens
        narrow_limit=corpus.plan.narrow_limit,  # limit for unrelated pairs, or None for the usual limit
    )


def most_texts_to_judge(tokens: pl.DataFrame, corpus_texts: int, *, measure_all: bool) -> int:
    """Return how many texts with copies a judgement encodes at most.

    Args:
        tokens: the rows of the run's tokens.parquet.
        corpus_texts: number of texts in the corpus.
        measure_all: as for `judge_corpus`.
    """
    judged = tokens.drop_nulls("verdict")
    flagged_count = judged.filter(pl.col("verdict") != Verdict.BENIGN).height
    selected = judged.height if measure_all else min(judged.height, max(_SHORTLIST, flagged_count))
    return (selected + PILOT_TOKENS) * min(_MOST_CARRIERS, corpus_texts)


def _prepared(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    most_anchors: int,
    queries: Sequence[str] | None,
    progress: ProgressCallback,
) -> _Corpus:
    """Draw carriers and anchors from the corpus, and encode the anchors.

    Args:
        job: provides the model, the settings and the corpus.
        plan: the run's plan, which provides the model's mean similarity.
        most_anchors: maximum number of anchors.
        queries: texts from which the anchors are drawn. If ``queries`` is None, the anchors are drawn from
            the corpus.
        progress: called with the number of encoded anchors.

    Returns:
        The carriers, in a copy of the run's plan, and the anchors, as a panel with their vectors.

    Raises:
        InputError: The corpus or the queries have too few usable texts.
    """
    encoder = job.encoder
    source = job.sentences.source
    settings = replace(job.settings, anchors=most_anchors)  # `choose_anchors` draws this many anchors
    # The whole corpus is one group, which has the full weight. The group does not count as a kind of text.
    group = texts.TextGroup("corpus", list(job.sentences.texts), weight=1.0, kind=False)
    source_by_short_text = texts.short_texts(
        encoder, settings, [group], _FIRST_CARRIERS, source, wanted=_MOST_CARRIERS
    )
    carrier_candidates = list(source_by_short_text)
    # A text of the corpus that may provide a carrier must not become an anchor as well.
    taken = set(source_by_short_text.values())
    if queries is not None:
        group = texts.TextGroup("queries", list(queries), weight=1.0, kind=False)
        source = "the list of queries"
    groups, left_out = texts.choose_anchors(encoder, settings, group_lists=[[group]], taken=taken)
    anchors = [text for anchor_group in groups for text in anchor_group.texts]
    if len(anchors) < _LEAST_ANCHORS:
        words = "1 text" if len(anchors) == 1 else f"{len(anchors)} texts"
        raise InputError(
            f"{source} has only {words} usable for comparison, but {_LEAST_ANCHORS} are needed: use more "
            "texts"
        )
    vectors = unit_vectors(encode_texts(encoder, anchors, base.PLAIN_TEXTS, progress))
    panel = AnchorPanel.of_one_group(vectors)
    usable = planning.usable_carriers(
        encoder,
        carrier_candidates,
        panel,
        plan.mean_similarity,
        needed=_FIRST_CARRIERS,
        most=_MOST_CARRIERS,
        source=source,
    )
    of_corpus = {
        "carriers": usable.texts,
        # Below this similarity, a carrier and an anchor are unrelated. If ``narrow_limit`` is None, the limit
        # is the model's mean similarity.
        "narrow_limit": usable.narrow_limit,
        "similarity_spread": planning.spread_of(usable.similarities, panel.weights),
        "left_out": left_out,
    }
    return _Corpus(plan.model_copy(update=of_corpus), panel)


def _lift_thresholds(tokens: pl.DataFrame, settings: ProfileSettings, plan: ProfilePlanRecord) -> Vector:
    """Return the threshold for the lift of each token on the corpus, as a difference of cosines.

    The threshold is ``smallest_lift`` standard deviations of the similarities on the corpus. It is halved for
    a token with an unusual vector.
    """
    shares_of_threshold = required_shares(_numbers(tokens, "vector_deviation"), settings)
    return shares_of_threshold * settings.smallest_lift * plan.similarity_spread


def _predicted_lifts(
    job: Job[ProfileSettings], corpus: _Corpus, run_effects: TokenEffects, tokens: pl.DataFrame
) -> Vector:
    """Predict the lift of each token on the corpus, relative to the ordinary token.

    Args:
        job: provides the model.
        corpus: the carriers and anchors of the corpus, and the run's pilots. The median lift of the pilots is
            that of the ordinary token.
        run_effects: contraction and pull of all tokens in the run.
        tokens: the T tokens.

    Returns:
        The lifts as differences of cosines, shape (T,).
    """
    carrier_vectors = unit_vectors(job.encoder.encode(corpus.plan.carriers))
    panel = corpus.panel.against(carrier_vectors, corpus.plan.unrelated_below)
    lifts = predicted_lifts(run_effects, panel)
    ordinary = float(np.median(lifts[np.searchsorted(run_effects.ids, corpus.plan.pilots)]))
    rows = np.searchsorted(run_effects.ids, tokens["token_id"].to_numpy())
    lifts_of_tokens: Vector = lifts[rows] - ordinary
    return lifts_of_tokens


class _CorpusLifts(NamedTuple):
    """Measured lifts of T tokens on the corpus, as differences of cosines.

    Attributes:
        beyond_ordinary: each token's lift minus the lift of the ordinary token, with intervals.
        carrier_counts: number of carriers in which each token was measured, shape (T,).
        ordinary: lift of the ordinary token, in as many carriers as any token was measured in.
    """

    beyond_ordinary: Estimates
    carrier_counts: NDArray[np.int64]
    ordinary: float


def _measured_lifts(
    job: Job[ProfileSettings],
    corpus: _Corpus,
    tokens: pl.DataFrame,
    thresholds: Vector,
    progress: ProgressCallback,
) -> _CorpusLifts:
    """Measure the lifts of tokens on the corpus, in one or two rounds.

    In the first round, all tokens are measured in `_FIRST_CARRIERS` carriers. In the second round, the tokens
    that may reach their thresholds are measured in all other carriers of the corpus. The lift of a token is
    the mean over all carriers in which it was measured.

    Args:
        job: provides the model, the settings and the vocabulary.
        corpus: the carriers and anchors of the corpus.
        tokens: the T tokens, in ascending order of token id.
        thresholds: threshold for the lift of each token, as a difference of cosines, shape (T,).
        progress: called with the progress of the measurements.
    """
    settings = job.settings
    runner = MemoryRunner(job.encoder, progress)
    available = {token.id: token for token in job.vocabulary.available}
    # The pilots are measured as well, because they define the ordinary token, to which lifts are relative.
    pilot_ids = np.array(corpus.plan.pilots, dtype=np.int64)

    def measure(stage_name: str, ids: Ids, carriers: range) -> Vector:
        """Return the lifts of tokens in the carriers with these indices, shape (tokens, carriers)."""
        stage = round_stage(
            job.encoder, settings, corpus.plan, corpus.panel, Round.CONFIRM, carriers, stage_name
        )
        rows = runner(stage, [available[token_id] for token_id in ids.tolist()])
        return round_measurements(rows, stage, job.encoder).lifts

    def mean_lifts(lifts: Vector, ids: Ids, confidence: float) -> Relative:
        """Average lifts over the carriers, relative to the ordinary token."""
        # Repeated calls to a server give slightly different cosines, so the variance of a single lift is at
        # least the variance between calls.
        least_variance = corpus.plan.call_noise**2
        return beyond_ordinary(lifts, np.isin(ids, pilot_ids), confidence, least_variance)

    token_ids = tokens["token_id"].to_numpy()
    first_ids = np.union1d(token_ids, pilot_ids)
    first_lifts = measure(base.MEASURING, first_ids, range(_FIRST_CARRIERS))
    first = mean_lifts(first_lifts, first_ids, settings.confidence)
    token_rows = np.searchsorted(first_ids, token_ids)
    lifts = first.estimates.of_rows(token_rows)
    carrier_counts = np.full(len(token_ids), _FIRST_CARRIERS)

    # A token that the second round leaves out does not reach its threshold, and a token that it measures is
    # judged by its mean over all carriers. So the choice of tokens does not make false positives more likely.
    wide_confidence = max(_FIRST_CONFIDENCE, settings.confidence)
    wide = mean_lifts(first_lifts, first_ids, wide_confidence).estimates.of_rows(token_rows)
    may_reach = wide.high >= thresholds
    other_carriers = range(_FIRST_CARRIERS, len(corpus.plan.carriers))
    if not may_reach.any() or not other_carriers:
        return _CorpusLifts(lifts, carrier_counts, first.ordinary)

    second_ids = np.union1d(token_ids[may_reach], pilot_ids)
    second_lifts = measure(base.MEASURING_CLOSELY, second_ids, other_carriers)
    lifts_in_all = np.concatenate([first_lifts[np.searchsorted(first_ids, second_ids)], second_lifts], axis=1)
    in_all = mean_lifts(lifts_in_all, second_ids, settings.confidence)
    closer = in_all.estimates.of_rows(np.searchsorted(second_ids, token_ids[may_reach]))
    lifts.value[may_reach] = closer.value
    lifts.low[may_reach] = closer.low
    lifts.high[may_reach] = closer.high
    carrier_counts[may_reach] = len(corpus.plan.carriers)
    return _CorpusLifts(lifts, carrier_counts, in_all.ordinary)


def _table(
    plan: ProfilePlanRecord,
    run: base.FinishedRun[ProfilePlanRecord, Any],
    tokens: pl.DataFrame,
    lifts: _CorpusLifts,
    settings: ProfileSettings,
) -> pl.DataFrame:
    """Replace the run's lifts with lifts on the corpus, and judge the tokens measured on the corpus.

    Args:
        plan: provides the run's kinds of text, and the corpus's similarity spread.
        run: the finished run.
        tokens: the rows of the run's tokens.parquet that were measured on the corpus, in order of token id.
        lifts: lifts of these tokens on the corpus.
        settings: the thresholds of the rule.

    Returns:
        One row for each token of the run. A token that was not measured on the corpus has no lift and no
        verdict.
    """
    ids = tokens["token_id"].to_numpy()
    # The number of kinds of text that a token lifts is a result of the run and does not depend on the corpus.
    measures = Measures(
        ids=ids,
        lift=lifts.beyond_ordinary.divided_by(plan.similarity_spread),
        erased=_erased_in_run(tokens),
        vector_deviation=_numbers(tokens, "vector_deviation"),
        confirmed=np.ones(len(ids), dtype=np.bool_),  # all were measured on the corpus
        kinds_lifted=np.nan_to_num(_numbers(tokens, "kinds_lifted")).astype(np.int64),
        kinds=plan.kinds,
    )
    judged = apply_rule(measures, settings)
    new_columns = pl.DataFrame(
        {
            "token_id": ids,
            "lift_sd": measures.lift.value,
            "lift_sd_low": measures.lift.low,
            "lift_sd_high": measures.lift.high,
            "confirmed": measures.confirmed,
            "verdict": judged.verdicts,
            "severity": judged.severities,
            "reason": judged.reasons,
            # The column ``lift`` is a difference of cosines that is not relative to the ordinary token.
            "lift": lifts.beyond_ordinary.value + lifts.ordinary,
            "texts": lifts.carrier_counts,
        },
        schema_overrides={"verdict": pl.String, "severity": pl.String, "reason": pl.String},
    )
    # `update` keeps the old value wherever the new value is null, so the old lifts and verdicts are removed.
    return _without_lifts(run.tokens).update(new_columns, on="token_id").sort("token_id")


def _without_lifts(run_tokens: pl.DataFrame) -> pl.DataFrame:
    """Return a run's tokens without their lifts, and without the verdicts, which depend on the lifts.

    The strongest kind is dropped, because it is one of the run's kinds of text. The erased shares are kept,
    because they are not measured on the corpus. If the run gave a token no verdict, the reason for this is
    kept. The reason for a verdict is removed with the verdict.
    """
    missing_number = pl.lit(None, dtype=pl.Float64)
    missing_text = pl.lit(None, dtype=pl.String)
    # All expressions in one call of `with_columns` read the original columns. The new ``reason`` therefore
    # depends on the run's verdicts, although the call also removes them.
    return run_tokens.drop("strongest_kind", strict=False).with_columns(
        lift=missing_number,
        lift_sd=missing_number,
        lift_sd_low=missing_number,
        lift_sd_high=missing_number,
        reason=pl.when(pl.col("verdict").is_null()).then(pl.col("reason")),
        verdict=missing_text,
        severity=missing_text,
        confirmed=pl.lit(False),
        texts=pl.lit(0, dtype=pl.Int64),
    )


def _erased_in_run(tokens: pl.DataFrame) -> Estimates:
    """Return the erased shares that the run measured, with their intervals.

    If a token was only screened, the lower end of its interval is -inf, so that its erased share cannot reach
    a threshold.
    """
    is_confirmed = tokens["confirmed"].fill_null(value=False).to_numpy()
    low = np.where(is_confirmed, _numbers(tokens, "erased_low"), -np.inf)
    return Estimates(_numbers(tokens, "erased"), low, _numbers(tokens, "erased_high"))


def _numbers(tokens: pl.DataFrame, column: str) -> Vector:
    """Return a column as an array of floats, with NaN instead of null."""
    return tokens[column].cast(pl.Float64).fill_null(np.nan).to_numpy()
