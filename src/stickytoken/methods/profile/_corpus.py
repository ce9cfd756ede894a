"""Judge the tokens of a finished run on the texts of another corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stickytoken.encoders.protocol import without_refused_texts
from stickytoken.errors import InputError, RunError
from stickytoken.measurement.engine import ProgressCallback, encode_texts
from stickytoken.methods import Verdict, base
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.probes import AnchorPanel, Vector
from stickytoken.methods.profile import estimates, plan as planning, texts
from stickytoken.methods.profile.estimates import EFFECTS_FILE, Ids
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round, round_measurements, round_stage
from stickytoken.methods.profile.verdict import Measures, apply_rule, required_shares, select_to_judge
from stickytoken.methods.statistics import Estimates, Relative, TokenEffects, beyond_ordinary, predicted_lifts
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors

# Minimum number of carriers: texts of the corpus into which copies are inserted.
_LEAST_CARRIERS = 24
# Minimum number of anchors: texts that the carriers are compared with.
_LEAST_ANCHORS = 2
# Maximum number of tokens that are measured on the corpus, unless the user asks for all tokens.
_SHORTLIST = 256


def require_judging(run: base.FinishedRun[Any, Any]) -> None:
    """Raise a RunError if a run lacks the file that is needed to predict lifts on another corpus."""
    if not (run.path / EFFECTS_FILE).is_file():
        raise RunError(
            f"{run.path} has no {EFFECTS_FILE}, which is needed to judge a corpus: run the detection again, "
            "in another folder"
        )


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

    First, the lifts of all tokens on the corpus are predicted from the effects of copies that the run
    measured (see `stickytoken.methods.statistics.Effects`). Then the tokens that the run flags as sticky or
    topical, and the tokens with the largest predicted lifts, are measured in texts of the corpus. Finally,
    the rule is applied to the measured lifts and to the erased shares from the run, which do not depend on
    the anchors.

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
    effects = estimates.read_effects(run.path)
    tokens = run.tokens.drop_nulls("verdict")
    is_flagged = pl.col("verdict") != Verdict.BENIGN
    settings = job.settings
    stage = round_stage(
        job.encoder,
        settings,
        corpus.plan,
        corpus.panel,
        Round.CONFIRM,
        range(len(corpus.plan.carriers)),
        name=base.MEASURING,
    )
    predicted = predicted_lifts(effects, stage.panel)
    shortlist = select_to_judge(
        ids=tokens["token_id"].to_numpy(),
        lift_ratios=_lift_ratios(tokens, effects, predicted, settings, corpus.plan),
        flagged_ids=tokens.filter(is_flagged)["token_id"].to_list(),
        count=_SHORTLIST,
        measure_all=measure_all,
    )

    # The pilots are measured as well, because they define the ordinary token, to which lifts are relative.
    pilots = np.array(run.plan.pilots, dtype=np.int64)
    available = {token.id: token for token in job.vocabulary.available}
    ids = np.union1d(shortlist.ids, pilots)
    runner = MemoryRunner(job.encoder, progress)
    rows = runner(stage, [available[token_id] for token_id in ids.tolist()])
    measured = round_measurements(rows, stage, job.encoder)
    is_pilot = np.isin(measured.ids, pilots)
    # Repeated calls to a server give slightly different cosines, so the variance of a single lift is at least
    # the variance between calls.
    least_variance = corpus.plan.call_noise**2
    lift = beyond_ordinary(measured.lifts, is_pilot, settings.confidence, least_variance)
    table = _table(corpus.plan, run, tokens, measured.ids, lift, settings)
    return base.Judgement(
        tokens=table,
        source=job.sentences.source,
        texts=len(job.sentences),
        anchors=len(corpus.panel.vectors),
        left_out=corpus.plan.left_out,  # number of texts
        ordinary_lift=lift.ordinary,
        similarity_spread=corpus.plan.similarity_spread,
        measured=table["verdict"].count(),
        undecided=shortlist.left_out,  # number of tokens
        narrow_limit=corpus.plan.narrow_limit,  # limit for unrelated pairs, or None for the usual limit
    )


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
    # As many carriers as in the confirming round of the run make lifts as exact as in the run. A small corpus
    # gives fewer.
    most_carriers = max(_LEAST_CARRIERS, settings.confirming_texts)
    source_by_short_text = texts.short_texts(
        encoder, settings, [group], _LEAST_CARRIERS, source, wanted=most_carriers
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
        needed=_LEAST_CARRIERS,
        most=most_carriers,
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


def _lift_ratios(
    tokens: pl.DataFrame,
    effects: TokenEffects,
    predicted: Vector,
    settings: ProfileSettings,
    plan: ProfilePlanRecord,
) -> Vector:
    """Divide the predicted lift of each token, relative to the ordinary token, by the token's threshold.

    The threshold is ``smallest_lift``, or half of it if the token has an unusual vector. The predicted lift
    of the ordinary token, the median over the pilots, is subtracted first. The difference is divided by the
    standard deviation of the similarities, which is the unit of the threshold.

    Args:
        tokens: the T rows of tokens.parquet that have a verdict.
        effects: contraction and pull of all tokens in the run.
        predicted: for each token in ``effects``, its predicted lift on the corpus, as a difference of
            cosines.
        settings: the thresholds of the rule.
        plan: provides the pilots, and the standard deviation of the similarities on the corpus.

    Returns:
        One ratio for each row of ``tokens``, shape (T,).
    """
    rows = np.searchsorted(effects.ids, tokens["token_id"].to_numpy())
    ordinary = float(np.median(predicted[np.searchsorted(effects.ids, plan.pilots)]))
    lifts = (predicted[rows] - ordinary) / plan.similarity_spread
    # 0.5 for a token with an unusual vector, and 1 for any other token; shape (T,)
    shares_of_threshold = required_shares(_numbers(tokens, "vector_deviation"), settings)
    ratios: Vector = lifts / (shares_of_threshold * settings.smallest_lift)
    return ratios


def _table(
    plan: ProfilePlanRecord,
    run: base.FinishedRun[ProfilePlanRecord, Any],
    tokens: pl.DataFrame,
    measured_ids: Ids,
    lift: Relative,
    settings: ProfileSettings,
) -> pl.DataFrame:
    """Replace the run's lifts with lifts on the corpus, and judge the tokens measured on the corpus.

    Args:
        plan: provides the run's kinds of text, and the corpus's carriers and similarity spread.
        run: the finished run.
        tokens: the rows of the run's tokens.parquet that have a verdict.
        measured_ids: ids of the tokens that were measured on the corpus, in ascending order.
        lift: lifts of the measured tokens on the corpus, as differences of cosines.
        settings: the thresholds of the rule.

    Returns:
        One row for each token of the run. A token that was not measured on the corpus has no lift and no
        verdict.
    """
    # The tokens to judge. Pilots without a verdict in the run were measured as well, but are not judged.
    measured = tokens.filter(pl.col("token_id").is_in(measured_ids)).sort("token_id")
    ids = measured["token_id"].to_numpy()
    lifts_on_corpus = lift.estimates.of_rows(np.searchsorted(measured_ids, ids))
    # The number of kinds of text that a token lifts is a result of the run and does not depend on the corpus.
    measures = Measures(
        ids=ids,
        lift=lifts_on_corpus.divided_by(plan.similarity_spread),
        erased=_erased_in_run(measured),
        vector_deviation=_numbers(measured, "vector_deviation"),
        confirmed=np.ones(len(ids), dtype=np.bool_),  # all were measured in all carriers of the corpus
        kinds_lifted=np.nan_to_num(_numbers(measured, "kinds_lifted")).astype(np.int64),
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
            "lift": lifts_on_corpus.value + lift.ordinary,
            "texts": np.full(len(ids), len(plan.carriers)),
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
