"""Judge the tokens of a finished run on another corpus; measure single tokens closely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.views import View
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Placement
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.base import (
    DIMENSIONS_FILE,
    MEASURING,
    DimensionsRecord,
    FinishedRun,
    Job,
    Judgement,
    MemoryRunner,
    tokens_in,
)
from stickytoken.methods.probes import SYMPTOM_CARRIERS, AnchorPanel, SymptomStage, Vector, fitting_copies
from stickytoken.methods.profile._run import findings, job_views, measure_views, plan_profile
from stickytoken.methods.profile.anchors import (
    ProfilePlanRecord,
    ProfileSettings,
    Sources,
    TextGroup,
    anchor_panel,
    choose_anchors,
    short_texts,
)
from stickytoken.methods.profile.estimates import (
    EFFECTS_FILE,
    Calibrated,
    Ids,
    Measurements,
    TokenEstimates,
    calibrate,
    read_effects,
    round_measurements,
)
from stickytoken.methods.profile.plan import (
    Round,
    Seen,
    cells,
    round_stage,
    screening_carriers,
    spread_of,
    usable_carriers,
)
from stickytoken.methods.profile.verdict import (
    NEGLIGIBLE_SHARE,
    embedding_matrix,
    find_lifts,
    severities,
    share_erased,
    universality,
    verdicts,
)
from stickytoken.methods.statistics import (
    Estimates,
    Null,
    Pull,
    TokenEffects,
    anchorage,
    fixed_points,
    mean_with_interval,
    predicted_lifts,
)
from stickytoken.unit_vectors import unit_vectors

_CARRIERS = 24
# Carriers that each calibrating token is put into; all tokens together cover all carriers. Many tokens in few
# carriers teach more than few in many.
_CALIBRATING = 2
_TOKENS = 2400
_LEAST_TOKENS = 24
# A text as a query, and another as a document.
_LEAST_ANCHORS = 2
# Tokens that may be flagged and are measured on the corpus, at most.
_MEASURED = 256
# They may be flagged if their lift is not further than this many errors below what matters.
_ERRORS = 2.0
# Documents and queries to draw; together they are many pairs.
_DRAWN = 100
# A document moves up if it passes this share of the corpus.
_PASSED = 0.1
_SPLIT, _CALIBRATING_TOKENS = 4, 5  # keys of the generators


def require_judging(run: FinishedRun[Any, Any]) -> None:
    if not (run.path / EFFECTS_FILE).is_file():
        raise RunError(
            f"{run.path} has no {EFFECTS_FILE}, which judging a corpus needs: run the detection "
            "again, into another folder"
        )


def judge_corpus(
    job: Job[ProfileSettings],
    run: FinishedRun[ProfilePlanRecord, Any],
    anchors: int,
    progress: ProgressCallback,
    view: View | None = None,
) -> Judgement:
    """Compute the lift of every token on a corpus, measure those that may matter, and judge."""
    plan = run.plan.seen_in(view)
    tokens = run.tokens if view is None else tokens_in(run.path, view)
    corpus = _encoded_corpus(job, plan, anchors)
    effects = read_effects(run.path, view).of(Round.SCREEN)
    every = len(tokens) == len(job.vocabulary.available)
    unselected = np.isin(effects.ids, effects.ids if every else plan.reference)
    if (count := int(unselected.sum())) < _LEAST_TOKENS:
        raise InputError(
            f"the run measured {count} random tokens, and {_LEAST_TOKENS} are needed to judge another "
            "corpus: detect without --tokens"
        )
    generator = np.random.default_rng([job.settings.seed, _CALIBRATING_TOKENS])
    reference = np.sort(generator.permutation(effects.ids[unselected])[:_TOKENS])
    found, common, calibrating = _calibrated(job, corpus, effects, reference, progress)
    # Ordinary lifts: those that were computed, and their error.
    fitted = Null.fit(found.values[unselected], 0.0)
    null = Null(fitted.center, float(np.hypot(fitted.spread, found.error)), fitted.shape)
    gate = null.center + NEGLIGIBLE_SHARE * job.settings.smallest_effect * corpus.spread
    asked = np.isin(effects.ids, tokens["token_id"].to_numpy())
    # Where vectors are made up to count the texts, as many tokens are measured as ever may be.
    counting = getattr(job.encoder, "makes_up_vectors", False)
    may = asked & (counting | (found.values + _ERRORS * found.error >= gate))
    order = np.lexsort((effects.ids, -found.values))
    chosen = np.sort(effects.ids[order[may[order]][:_MEASURED]])

    # Computed lifts, and those of the chosen tokens, which are put into all carriers of the corpus.
    half = scipy.stats.norm.ppf((1 + job.settings.confidence) / 2) * found.error
    values, errors = found.values, np.full(len(effects.ids), found.error)
    lift = Estimates(values.copy(), errors, values - half, values + half)
    texts = np.zeros(len(effects.ids), dtype=np.int64)
    effects = effects._replace(contraction=effects.contraction.copy(), pull=effects.pull.copy())
    rows = np.searchsorted(effects.ids, chosen)
    if len(chosen):
        measured = _measure(job, corpus, chosen, range(_CARRIERS), MemoryRunner(job.encoder, progress))
        variance = found.error**2 / len(reference)
        lifts = measured.lifts - common
        close = mean_with_interval(lifts, job.settings.confidence, variance, corpus.plan.call_noise**2)
        for target, source in zip(lift, close, strict=True):
            target[rows] = source
        texts[rows] = _CARRIERS
        effects.contraction[rows], effects.pull[rows] = measured.effects
    estimates = TokenEstimates(effects.ids, texts, lift, lift, null, 0.0)
    universal = _universality(job, plan, tokens, effects, chosen, calibrating)
    record = ResultFolder(run.path).read_record(DIMENSIONS_FILE, DimensionsRecord)
    seen = next((each for each in (record.views if record else ()) if each.view == view), run.result)
    if (ordinary := seen.ordinary_contraction) is None:  # a run of an earlier version
        ordinary = float(np.median(tokens["contraction"].to_numpy()))
    return Judgement(
        tokens=_table(job, corpus, tokens, effects, estimates, universal, count, ordinary),
        source=job.sentences.source,
        texts=len(job.sentences),
        anchors=len(corpus.panel.vectors),
        left_out=corpus.left_out,
        ordinary_lift=null.center,
        similarity_spread=corpus.spread,
        error=found.error,
        measured=len(chosen),
        undecided=int(may.sum()) - len(chosen),
        narrow_limit=corpus.plan.narrow_limit,
    )


class _Corpus(NamedTuple):
    plan: ProfilePlanRecord  # of the run, with carriers of the corpus
    panel: AnchorPanel
    spread: float  # standard deviation of the carriers' similarities to the anchors
    left_out: int  # texts that the model does not read whole


def _encoded_corpus(job: Job[ProfileSettings], plan: ProfilePlanRecord, anchors: int) -> _Corpus:
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
    texts, (before,), (limit,) = usable_carriers(encoder, list(carriers), [seen], _CARRIERS, source)
    own = plan.model_copy(update={"carriers": texts, "narrow_limit": limit})
    return _Corpus(own, panel, spread_of(before, panel.weights), chosen.left_out)


def _calibrated(
    job: Job[ProfileSettings],
    corpus: _Corpus,
    screened: TokenEffects,
    reference: Ids,
    progress: ProgressCallback,
) -> tuple[Calibrated, Vector, Pull]:
    """Correct the predicted lifts by random tokens, each of which is put into a few of the carriers.

    Return also the common effect of each carrier beside their mean, and the tokens' pulls and contractions.
    """
    every = round_stage(job.encoder, job.settings, corpus.plan, corpus.panel, Round.CONFIRM, range(_CARRIERS))
    predicted = predicted_lifts(screened, anchorage(every.panel))
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
    found = calibrate(predicted, _features(job.encoder, screened), rows, lifts, noise)
    # Pull and contraction carry the noise of the calls that they were measured by.
    carriers = screening_carriers(job.settings)
    found = found._replace(error=max(found.error, float(np.sqrt(least / carriers))))
    return found, common - level, Pull(contractions, pulls)


def _features(encoder: Encoder, screened: TokenEffects) -> list[NDArray[np.floating[Any]]]:
    """List what is known about every token: pull and contraction, and its row of the embedding matrix if any.

    The row is free of the noise of measuring.
    """
    known = [np.column_stack([screened.pull, screened.contraction.astype(screened.pull.dtype)])]
    rows = embedding_matrix(encoder)
    return known if rows is None else [*known, rows[screened.ids]]


def _measure(
    job: Job[ProfileSettings], corpus: _Corpus, ids: Ids, places: Sequence[int], run: MemoryRunner
) -> Measurements:
    tokens = {token.id: token for token in job.vocabulary.available}
    wanted = [tokens[token_id] for token_id in ids.tolist()]
    stage = round_stage(
        job.encoder, job.settings, corpus.plan, corpus.panel, Round.CONFIRM, places, MEASURING
    )
    return round_measurements(run(stage, wanted), stage, job.encoder)


def _universality(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    tokens: pl.DataFrame,
    effects: TokenEffects,
    probed: Ids,
    calibrating: Pull,
) -> Vector:
    """Return the run's universality; of tokens that it did not measure closely, that of their pulls here."""
    found = np.full(len(effects.ids), np.nan)
    known = tokens.select("token_id", "texts", pl.col("universality").cast(pl.Float64))
    found[np.searchsorted(effects.ids, known["token_id"].to_numpy())] = known["universality"].to_numpy()
    closely = known.filter(pl.col("texts") == known["texts"].max())["token_id"].to_numpy()
    rough = np.searchsorted(effects.ids, probed[~np.isin(probed, closely)])
    kinds = [place for place, group in enumerate(plan.groups) if group.kind]
    if not len(rough) or not kinds:
        return found
    panel = anchor_panel(job.encoder, plan, job.vocabulary.available)
    carriers = unit_vectors(job.encoder.encode(plan.carriers))
    lifts = []
    for kind in kinds:
        alone = np.eye(len(panel.group_weights))[kind]
        of_kind = anchorage(replace(panel, group_weights=alone).against(carriers, plan.unrelated_below))
        ordinary = float(np.median(predicted_lifts(calibrating, of_kind)))
        own = Pull(effects.contraction[rough], effects.pull[rough])
        lifts.append(predicted_lifts(own, of_kind) - ordinary)
    spreads = np.array([plan.groups[kind].spread for kind in kinds])
    found[rough] = universality(np.column_stack(lifts), spreads, job.settings.smallest_effect)
    return found


def _table(
    job: Job[ProfileSettings],
    corpus: _Corpus,
    tokens: pl.DataFrame,
    effects: TokenEffects,
    estimates: TokenEstimates,
    universal: Vector,
    null_tokens: int,
    ordinary: float,
) -> pl.DataFrame:
    settings, unknown = job.settings, np.full(len(effects.ids), np.nan)
    available, smallest = len(job.vocabulary.available), settings.smallest_effect * corpus.spread
    mattering = find_lifts(estimates, null_tokens, available, smallest, settings.fdr)
    found = mattering.found & (estimates.texts > 0)
    up, flagged = unknown.copy(), np.flatnonzero(found)
    pulls = Pull(effects.contraction, effects.pull)
    lifting = Pull(pulls.contraction[flagged], pulls.pull[flagged])
    up[flagged] = moves_up(lifting, corpus.panel.vectors, settings.seed)
    columns: dict[str, Any] = {
        "texts": estimates.texts,
        "lift": estimates.lift.value,
        "lift_low": estimates.lift.low,
        "lift_high": estimates.lift.high,
        "universality": universal,
        "moves_up": up,
        "contraction": effects.contraction,
        "fixed_point": fixed_points(pulls, corpus.panel.weights @ corpus.panel.vectors),
        "q_value": unknown if mattering.q_values is None else mattering.q_values,
    }
    rows = np.searchsorted(effects.ids, tokens["token_id"].to_numpy())
    columns = {name: pl.Series(values[rows]) for name, values in columns.items()}
    deviations = ((estimates.lift.value - estimates.null.center) / corpus.spread)[rows]
    # What copies leave of a text is the run's answer: it does not depend on what it is compared with.
    columns |= {name: tokens[name] for name in ("contraction_low", "contraction_high", "erases")}
    erases, lost = tokens["erases"].fill_null(False).to_numpy(), tokens["contraction"].to_numpy()
    said = _reasons(found[rows], mattering.large[rows], erases, lost, ordinary)
    columns |= {"contraction": lost, "reason": said}
    given = verdicts(found[rows], np.zeros(len(rows), dtype=np.bool_), universal[rows], erases)
    grades = severities(deviations, share_erased(lost, ordinary), erases, given)
    return (
        tokens.select("token_id", "token", "decoded", "category")
        .with_columns(**columns)
        .with_columns(
            severity=pl.Series(grades, dtype=pl.String),
            verdict=pl.Series(given, dtype=pl.String),
        )
        .with_columns(pl.col(pl.Float64).fill_nan(None))
    )


def _reasons(
    lifting: NDArray[np.bool_],
    large: NDArray[np.bool_],
    erasing: NDArray[np.bool_],
    lost: Vector,
    ordinary: float,
) -> pl.Series:
    said = []
    for lifts, is_large, erases, share in zip(lifting, large, erasing, lost, strict=True):
        parts = [f"erases {share:.0%} of a text (an ordinary token: {ordinary:.0%})"] if erases else []
        parts += [f"{'large lift' if is_large else 'outlier'} on these texts"] if lifts else []
        said.append("; ".join(parts) or None)
    return pl.Series(said, dtype=pl.String)


def moves_up(effects: Pull, texts: NDArray[np.float32], seed: int) -> Vector:
    """Compute the share of random queries and documents for which copies move the document up.

    Random texts of the corpus are the queries, others the documents; a document moves up if it passes at
    least a tenth of all texts. cos(after) is computed from the token's pull and contraction.
    """
    order = np.random.default_rng([seed, _SPLIT]).permutation(len(texts))
    count = min(_DRAWN, len(texts) // 2)
    queries, documents = order[:count], order[count : 2 * count]
    similarities = (texts @ texts[queries].T).astype(np.float64)
    before, ranked = similarities[documents], np.sort(similarities, axis=0)

    def ahead(of: Vector) -> NDArray[np.intp]:
        """Count the texts that are more similar to each query, shape (documents, queries)."""
        places = [np.searchsorted(ranked[:, query], of[:, query], side="right") for query in range(count)]
        return len(ranked) - np.stack(places, axis=1)

    at_first, shares = ahead(before), []
    for contraction, pull in zip(effects.contraction, effects.pull, strict=True):
        after = (1 - contraction) * before + texts[queries] @ pull
        shares.append(float((at_first - ahead(after) >= _PASSED * len(texts)).mean()))
    return np.array(shares)


# Number of ordinary tokens behind the curve that a probed token is compared with.
_ORDINARY_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SymptomCurve:
    """Mean similarity of pairs by number of copies; the curve of a side without pairs is empty."""

    copies: list[int]  # 0 first
    below: list[float]  # over the pairs below the mean similarity
    above: list[float]  # over the pairs above it
    ordinary_below: list[float]  # the same of ordinary tokens, as a control
    ordinary_above: list[float]


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
    """Result for one token; the other fields are as in tokens.parquet."""

    token_id: int
    token: str
    category: str
    verdict: str
    severity: str | None
    lift: float
    lift_low: float
    lift_high: float
    lift_words: float | None
    ordinary_lift: float
    universality: float | None
    validation_rate: dict[str, float]  # by metric, share of pairs below the mean similarity that rise
    by_placement: dict[str, dict[str, float]]  # the lift
    contraction: float
    fixed_point: float | None
    q_value: float | None
    texts: int
    mean_similarity: float  # u of the model
    curve: SymptomCurve


def probe_profile(job: Job[ProfileSettings], progress: ProgressCallback) -> list[ProfileEvidence]:
    """Measure named tokens as closely as `detect` measures its candidates.

    Random tokens of the vocabulary are measured with them, to show what is ordinary.
    """
    if not job.settings.adaptive:
        raise InputError("a probe measures its tokens in all rounds: leave adaptive on")
    distinct = list({token.id: token for token in job.tokens}.values())
    once = replace(job, tokens=distinct)
    plan = plan_profile(once, progress)
    runner = MemoryRunner(job.encoder, progress)
    views = job_views(once)
    measured = measure_views(once, plan, runner, views, confirm_all=True)[views.own]
    found = findings(once, plan, job.vocabulary.frame(), measured)
    curves = _curves(once, plan, runner)
    rows = {row["token_id"]: row for row in found.tokens.to_dicts()}
    confirmed = measured.rounds[Round.CONFIRM]
    every = cells(job.settings, len(plan.carriers))
    places = np.array([cell.placement for place, cell in enumerate(every) if place not in measured.carriers])
    evidence = []
    for token in job.tokens:
        row = rows[token.id]
        lifts = confirmed.lifts[confirmed.rows(np.array([token.id]))[0]]
        shared = {name: row[name] for name in ProfileEvidence.__slots__ if name in row}
        evidence.append(
            ProfileEvidence(
                **shared | {"validation_rate": {"cosine": row["validation_rate"]}},
                ordinary_lift=found.ordinary_lift,
                by_placement={
                    placement.value: {"lift": float(lifts[places == placement].mean())}
                    for placement in Placement
                    if (places == placement).any()
                },
                mean_similarity=plan.mean_similarity,
                curve=curves[token.id],
            )
        )
    return evidence


def _curves(job: Job[ProfileSettings], plan: ProfilePlanRecord, run: MemoryRunner) -> dict[int, SymptomCurve]:
    places = range(min(SYMPTOM_CARRIERS, len(plan.carriers)))
    anchors = anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
    confirming = round_stage(job.encoder, job.settings, plan, anchors, Round.CONFIRM, places)
    asked = {token.id for token in job.tokens}
    available = {token.id: token for token in job.vocabulary.available}
    ordinary = [available[k] for k in plan.late_reference if k not in asked][:_ORDINARY_TOKENS]
    copies = fitting_copies(job.encoder, job.settings.insertion, plan.carriers[: len(places)])
    stage = SymptomStage(confirming.carriers, copies, confirming.panel)
    rows = {row["token_id"]: row for row in run(stage, [*job.tokens, *ordinary]).to_dicts()}
    below, above = (
        np.mean([rows[token.id][side] for token in ordinary], axis=0).tolist() if ordinary else []
        for side in ("below", "above")
    )
    return {
        token_id: SymptomCurve([0, *copies], rows[token_id]["below"], rows[token_id]["above"], below, above)
        for token_id in asked
    }
