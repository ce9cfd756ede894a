"""Judge the tokens of a finished run on the texts of another corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stickytoken.encoders.protocol import without_refused_texts
from stickytoken.errors import InputError, RunError
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import base
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.probes import AnchorPanel, Vector
from stickytoken.methods.profile import estimates, plan as planning, texts
from stickytoken.methods.profile.estimates import EFFECTS_FILE, Ids
from stickytoken.methods.profile.rounds import Round, round_measurements, round_stage
from stickytoken.methods.profile.settings import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.profile.verdict import (
    Measures,
    Thresholds,
    apply_rule,
    reasons,
    threshold_shares,
)
from stickytoken.methods.statistics import (
    Estimates,
    Relative,
    TokenEffects,
    beyond_ordinary,
    predicted_lifts,
)
from stickytoken.unit_vectors import unit_vectors

# Texts of the corpus that tokens are put into.
_CARRIERS = 24
# A text as a query, and another as a document.
_LEAST_ANCHORS = 2
# Tokens that are measured on the corpus, at most.
_SHORTLIST = 256


def require_judging(run: base.FinishedRun[Any, Any]) -> None:
    """Refuse a run without the effects that computed lifts need."""
    if not (run.path / EFFECTS_FILE).is_file():
        raise RunError(
            f"{run.path} has no {EFFECTS_FILE}, which judging a corpus needs: run the detection again, into "
            "another folder"
        )


class _Corpus(NamedTuple):
    """The texts of the corpus, ready to measure tokens on."""

    job: Job[ProfileSettings]
    plan: ProfilePlanRecord  # of the run, with carriers, spread and limit of the corpus
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

    Lifts on the corpus are computed from the pulls and contractions of the run. The tokens that may reach a
    threshold are then measured in texts of the corpus, and the rule is applied to what was measured. What a
    token erases does not depend on the texts it is compared with: it is the run's.
    """
    corpus = without_refused_texts(job.encoder, lambda: _prepared(job, run.plan, anchors, queries))
    effects = estimates.read_effects(run.path)
    tokens = run.tokens.drop_nulls("verdict")
    thresholds = Thresholds.of(job.settings)
    stage_places = range(_CARRIERS)
    stage = round_stage(job.encoder, job.settings, corpus.plan, corpus.panel, Round.CONFIRM, stage_places)
    computed = predicted_lifts(effects, stage.panel)
    shortlist = _shortlist(tokens, effects, computed, thresholds, corpus.plan, measure_all)

    pilots = np.array(run.plan.pilots, dtype=np.int64)
    available = {token.id: token for token in job.vocabulary.available}
    ids = np.union1d(shortlist.ids, pilots)
    runner = MemoryRunner(job.encoder, progress)
    rows = runner(replace(stage, name=base.MEASURING), [available[token_id] for token_id in ids.tolist()])
    measured = round_measurements(rows, stage, job.encoder)
    nobody_selected = np.isin(measured.ids, pilots)
    least_variance = corpus.plan.call_noise**2
    lift = beyond_ordinary(measured.lifts, nobody_selected, job.settings.confidence, least_variance)
    table = _table(corpus, run, tokens, measured.ids, lift, thresholds)
    return base.Judgement(
        tokens=table,
        source=job.sentences.source,
        texts=len(job.sentences),
        anchors=len(corpus.panel.vectors),
        left_out=corpus.plan.left_out,
        ordinary_lift=lift.ordinary,
        similarity_spread=corpus.plan.similarity_spread,
        measured=table["verdict"].count(),
        undecided=shortlist.left_out,
        narrow_limit=corpus.plan.narrow_limit,
    )


def _prepared(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    most_anchors: int,
    queries: Sequence[str] | None,
) -> _Corpus:
    """Draw carriers and anchors from the corpus; with queries, these are the anchors."""
    encoder = job.encoder
    source = job.sentences.source
    settings = replace(job.settings, anchors=most_anchors)
    group = texts.TextGroup("corpus", list(job.sentences.texts), 1.0, False)
    candidates = texts.short_texts(encoder, settings, [group], _CARRIERS, source)
    if queries is not None:
        group = texts.TextGroup("queries", list(queries), 1.0, False)
        source = "the list of queries"
    groups, left_out = texts.choose_anchors(encoder, settings, [[group]], set(candidates.values()))
    anchors = [text for anchor_group in groups for text in anchor_group.texts]
    if len(anchors) < _LEAST_ANCHORS:
        words = "1 text" if len(anchors) == 1 else f"{len(anchors)} texts"
        raise InputError(
            f"{source} has {words} left to compare with, and {_LEAST_ANCHORS} are needed: use more texts"
        )
    vectors = unit_vectors(encoder.encode(anchors))
    panel = AnchorPanel(vectors, np.zeros(len(vectors), dtype=np.intp), np.ones(1))
    usable = planning.usable_carriers(
        encoder, list(candidates), panel, plan.mean_similarity, _CARRIERS, source
    )
    of_corpus = {
        "carriers": usable.texts,
        "narrow_limit": usable.narrow_limit,
        "similarity_spread": planning.spread_of(usable.similarities, panel.weights),
        "left_out": left_out,
    }
    return _Corpus(job, plan.model_copy(update=of_corpus), panel)


class _Shortlist(NamedTuple):
    """The tokens to measure, and how many more may reach a threshold."""

    ids: Ids
    left_out: int


def _shortlist(
    tokens: pl.DataFrame,
    effects: TokenEffects,
    computed: Vector,
    thresholds: Thresholds,
    plan: ProfilePlanRecord,
    measure_all: bool,
) -> _Shortlist:
    """Choose the tokens that the run flags, and those with the largest computed lifts on the corpus.

    At most 256 are chosen, or as many as are flagged or may reach a threshold if all are asked for.
    """
    flagged = tokens.filter(pl.col("verdict") != "benign")["token_id"].to_list()
    ids = tokens["token_id"].to_numpy()
    rows = np.searchsorted(effects.ids, ids)
    ordinary = float(np.median(computed[np.searchsorted(effects.ids, plan.pilots)]))
    lifts = (computed[rows] - ordinary) / plan.similarity_spread
    deviations = tokens["vector_deviation"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    ratios = lifts / (threshold_shares(deviations, thresholds) * thresholds.lift)
    by_ratio = ids[np.lexsort((ids, -ratios))].tolist()
    reaching = set(ids[ratios >= 1].tolist())
    count = _SHORTLIST
    if measure_all:
        count = max(count, len(reaching.union(flagged)))
    chosen = list(dict.fromkeys([*flagged, *by_ratio]))[:count]
    return _Shortlist(np.array(sorted(chosen), dtype=np.int64), len(reaching.difference(chosen)))


def _table(
    corpus: _Corpus,
    run: base.FinishedRun[ProfilePlanRecord, Any],
    tokens: pl.DataFrame,
    measured_ids: Ids,
    lift: Relative,
    thresholds: Thresholds,
) -> pl.DataFrame:
    """Put lifts on the corpus in the place of the run's, and judge the tokens that were measured."""
    measured = tokens.filter(pl.col("token_id").is_in(measured_ids)).sort("token_id")
    ids = measured["token_id"].to_numpy()
    rows = np.searchsorted(measured_ids, ids)
    spread = corpus.plan.similarity_spread
    of_corpus = lift.estimates.of_rows(rows)
    measures = Measures(
        ids=ids,
        lift=of_corpus.divided_by(spread),
        erased=_erased_in_run(measured),
        vector_deviation=_numbers(measured, "vector_deviation"),
        confirmed=np.ones(len(ids), dtype=np.bool_),
        kinds_lifted=np.nan_to_num(_numbers(measured, "kinds_lifted")).astype(np.int64),
        kinds=corpus.plan.kinds,
    )
    judged = apply_rule(measures, thresholds)
    new_columns = pl.DataFrame(
        {
            "token_id": ids,
            "lift_sd": measures.lift.value,
            "lift_sd_low": measures.lift.low,
            "lift_sd_high": measures.lift.high,
            "confirmed": measures.confirmed,
            "verdict": judged.verdicts,
            "severity": judged.severities,
            "reason": reasons(measures, judged, thresholds),
            "lift": of_corpus.value + lift.ordinary,
            "texts": np.full(len(ids), _CARRIERS),
        },
        schema_overrides={"verdict": pl.String, "severity": pl.String, "reason": pl.String},
    )
    # Tokens that were not measured on the corpus keep what the run says of them, but have no verdict there.
    others_reason = pl.when(pl.col("verdict").is_null()).then("reason").alias("reason")
    unmeasured = run.tokens.drop("strongest_kind", "rising_share", strict=False).with_columns(
        pl.lit(None, dtype=pl.Float64).alias(name)
        for name in ("lift", "lift_sd", "lift_sd_low", "lift_sd_high")
    )
    unmeasured = unmeasured.with_columns(
        others_reason,
        verdict=pl.lit(None, dtype=pl.String),
        severity=pl.lit(None, dtype=pl.String),
        confirmed=pl.lit(False),
        texts=pl.lit(0, dtype=pl.Int64),
    )
    return unmeasured.update(new_columns, on="token_id").sort("token_id")


def _erased_in_run(tokens: pl.DataFrame) -> Estimates:
    """Read what tokens erase; one that the run only screened reaches no threshold."""
    value = _numbers(tokens, "erased")
    closely = tokens["confirmed"].fill_null(value=False).to_numpy()
    low = np.where(closely, _numbers(tokens, "erased_low"), -np.inf)
    return Estimates(value, np.full(len(value), np.nan), low, _numbers(tokens, "erased_high"))


def _numbers(tokens: pl.DataFrame, column: str) -> Vector:
    return tokens[column].cast(pl.Float64).fill_null(np.nan).to_numpy()
