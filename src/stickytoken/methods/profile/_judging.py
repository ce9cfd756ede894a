"""Judge the tokens of a finished run on another corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.encoders.views import View, ViewEncoder
from stickytoken.errors import InputError, ModelError, RunError
from stickytoken.insertion import Insertion, Placement
from stickytoken.inspection import inspector_of
from stickytoken.measurement.stage import Progress, ProgressCallback, ignore_progress
from stickytoken.methods.job import Job, MemoryRunner
from stickytoken.methods.probes import SYMPTOM_CARRIERS, AnchorPanel, SymptomStage, Vector
from stickytoken.methods.profile._run import Measured, known_in, measure_rounds, plan_profile
from stickytoken.methods.profile._words import ProfileRun
from stickytoken.methods.profile.anchors import (
    ProfilePlanRecord,
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
    RoundEffects,
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
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import (
    NEGLIGIBLE_SHARE,
    Findings,
    find_lifts,
    severities,
    universality,
    verdicts,
)
from stickytoken.methods.protocol import MEASURING, Judgement, fitting_copies
from stickytoken.methods.statistics import (
    Estimates,
    Null,
    Pull,
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
    """Draw the random tokens that calibrate, ascending."""
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
    """Put tokens into all carriers of the corpus."""
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
    """Compute the lift of every token on a corpus, measure those that may matter, and judge."""
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


# Number of ordinary tokens behind the curve that a probed token is compared with.
_ORDINARY_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SymptomCurve:
    """Mean similarity of pairs by number of copies; the curve of a side without pairs is empty.

    Attributes:
        copies: numbers of copies, 0 first.
        below: mean over the pairs below the mean similarity.
        above: mean over the pairs above it.
        ordinary_below: ``below`` of ordinary tokens, as a control.
        ordinary_above: ``above`` of ordinary tokens.
    """

    copies: list[int]
    below: list[float]
    above: list[float]
    ordinary_below: list[float]
    ordinary_above: list[float]


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
    """Result for one token; fields not listed are as in tokens.parquet.

    Attributes:
        validation_rate: by metric, the share of pairs below the mean similarity that rise.
        by_placement: the lift by placement.
        mean_similarity: u of the model.
        curve: the symptom curve.
    """

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
    validation_rate: dict[str, float]
    by_placement: dict[str, dict[str, float]]
    contraction: float
    fixed_point: float | None
    q_value: float | None
    texts: int
    mean_similarity: float
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
    measured = measure_rounds(once, plan, runner)
    findings = measured.findings(once, plan, job.vocabulary.frame())
    curves = _curves(once, plan, runner)
    rows = {row["token_id"]: row for row in findings.tokens.to_dicts()}
    return [
        _evidence(rows[token.id], measured, findings, plan, job.settings, curves[token.id])
        for token in job.tokens
    ]


def _curves(job: Job[ProfileSettings], plan: ProfilePlanRecord, run: MemoryRunner) -> dict[int, SymptomCurve]:
    """Compute the curve of each token, with the mean curve of a few ordinary ones."""
    places = range(min(SYMPTOM_CARRIERS, len(plan.carriers)))
    anchors = anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
    confirming = round_stage(job.encoder, job.settings, plan, anchors, Round.CONFIRM, places)
    longest = max(job.encoder.content_ids([plan.carriers[place] for place in places]), key=len)
    asked = {token.id for token in job.tokens}
    available = {token.id: token for token in job.vocabulary.available}
    ordinary = [available[k] for k in plan.late_reference if k not in asked][:_ORDINARY_TOKENS]
    pieces = 1 if job.settings.insertion is Insertion.IDS else 8
    copies = fitting_copies(job.encoder, longest, pieces)
    stage = SymptomStage(confirming.carriers, copies, confirming.panel)
    rows = {row["token_id"]: row for row in run(stage, [*job.tokens, *ordinary]).to_dicts()}
    controls = {
        side: np.mean([rows[token.id][side] for token in ordinary], axis=0).tolist() if ordinary else []
        for side in ("below", "above")
    }
    return {
        token_id: SymptomCurve(
            [0, *copies],
            rows[token_id]["below"],
            rows[token_id]["above"],
            controls["below"],
            controls["above"],
        )
        for token_id in asked
    }


def _evidence(
    row: dict[str, Any],
    measured: Measured,
    findings: Findings,
    plan: ProfilePlanRecord,
    settings: ProfileSettings,
    curve: SymptomCurve,
) -> ProfileEvidence:
    confirmed = measured.rounds[Round.CONFIRM]
    lifts = confirmed.lifts[confirmed.rows(np.array([row["token_id"]]))[0]]
    every = cells(settings, len(plan.carriers))
    places = np.array([cell.placement for place, cell in enumerate(every) if place not in measured.carriers])
    shared = {name: row[name] for name in ProfileEvidence.__slots__ if name in row}
    return ProfileEvidence(
        **shared | {"validation_rate": {"cosine": row["validation_rate"]}},
        ordinary_lift=findings.ordinary_lift,
        by_placement={
            placement.value: {"lift": float(lifts[places == placement].mean())}
            for placement in Placement
            if (places == placement).any()
        },
        mean_similarity=plan.mean_similarity,
        curve=curve,
    )
