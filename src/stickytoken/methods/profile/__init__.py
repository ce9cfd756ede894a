"""The default method, profile: measures the lift and erased share of every token, and judges by one rule."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.errors import InputError, ModelError
from stickytoken.insertion import Placement
from stickytoken.inspection import inspector_of
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import PlanTexts, Verdict, base, probes
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.probes import SYMPTOM_CARRIERS, EvidenceStage, Vector
from stickytoken.methods.profile import estimates, rounds, texts
from stickytoken.methods.profile._corpus import judge_corpus, most_texts_to_judge
from stickytoken.methods.profile._wording import (
    GLOSSARY,
    LISTED,
    RANKED_BY,
    REPORTED,
    describe,
    figures,
    headline,
    key_facts,
    lines,
    notes,
    plan_facts,
    probe_lines,
)
from stickytoken.methods.profile.estimates import Measured, TokenNumbers
from stickytoken.methods.profile.plan import make_profile_plan as make_plan
from stickytoken.methods.profile.records import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.profile.rounds import Round, round_stage
from stickytoken.methods.profile.verdict import Judged, apply_rule
from stickytoken.settings.profile import ProfileSettings
from stickytoken.token_vectors import vector_deviations
from stickytoken.vocabulary import Vocabulary

__all__ = [
    "COLUMNS",
    "GLOSSARY",
    "LISTED",
    "PLAN_RECORD",
    "RANKED_BY",
    "REPORTED",
    "RESULT_RECORD",
    "VERDICTS",
    "ProfileEvidence",
    "SymptomCurve",
    "compute",
    "describe",
    "evidence_stage",
    "figures",
    "headline",
    "judge_corpus",
    "key_facts",
    "lines",
    "make_plan",
    "most_texts_to_judge",
    "notes",
    "plan_facts",
    "plan_texts",
    "probe",
    "probe_lines",
    "token_vector_deviations",
]

PLAN_RECORD: type[base.PlanRecord] = ProfilePlanRecord
RESULT_RECORD: type[base.ResultRecord] = ProfileResultRecord
VERDICTS = tuple(Verdict)

# Number of ordinary tokens whose mean curve is shown beside the curves of probed tokens.
_ORDINARY_TOKENS = 8

# The columns of tokens.parquet that every run has, with their types.
TOKEN_COLUMNS: dict[str, Any] = {
    "token_id": pl.Int64,
    "token": pl.String,
    "decoded": pl.String,
    "category": pl.String,
    "erased": pl.Float64,
    "erased_low": pl.Float64,
    "erased_high": pl.Float64,
    "lift_sd": pl.Float64,
    "lift_sd_low": pl.Float64,
    "lift_sd_high": pl.Float64,
    "vector_deviation": pl.Float64,
    "kinds_lifted": pl.Int64,
    "strongest_kind": pl.String,
    "confirmed": pl.Boolean,
    "verdict": pl.String,
    "severity": pl.String,
    "reason": pl.String,
    "lift": pl.Float64,
    "contraction": pl.Float64,
    "texts": pl.Int64,
}
COLUMNS = tuple(TOKEN_COLUMNS)


def compute(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, run: base.FolderRunner
) -> tuple[pl.DataFrame, ProfileResultRecord]:
    """Measure and judge the job's tokens. Return the table tokens.parquet and the result for run.json."""
    deviations = token_vector_deviations(job.encoder, job.vocabulary)
    measured = rounds.measure_rounds(job, plan, run, deviations)
    estimates.write_effects(run.folder, measured.screened)
    numbers = estimates.estimate(measured)
    judged = apply_rule(numbers.measures, job.settings)
    tokens = token_table(measured, numbers, judged)
    judged_count = tokens["verdict"].count()
    cost = run.cost
    return tokens, ProfileResultRecord(
        looked_at=judged_count,
        confirmed=int(tokens["confirmed"].sum()),
        unconfirmed=measured.unconfirmed,
        sticky=int((tokens["verdict"] == "sticky").sum()),
        topical=int((tokens["verdict"] == "topical").sum()),
        ordinary_lift=numbers.ordinary_lift,
        ordinary_contraction=numbers.ordinary_contraction,
        vectors_compared=deviations is not None,
        screening_carriers=measured.screening_carriers,
        texts_per_token=round(cost.sequences / max(1, judged_count), 2),
        sequences=cost.sequences,
        seconds=round(run.seconds, 1),
    )


def token_vector_deviations(encoder: Encoder, vocabulary: Vocabulary) -> dict[int, float] | None:
    """Measure how unusual the token vector of each available token is, in median absolute deviations.

    Returns:
        The deviations, keyed by token id; None if the model has no token vectors, or too few to compare.
    """
    if not reads_ids(encoder):
        return None
    try:
        matrix = inspector_of(encoder).embedding_matrix()
    except ModelError:
        return None
    if matrix is None:
        return None
    ids = [token.id for token in vocabulary.available if token.id < len(matrix)]
    deviations = vector_deviations(matrix[ids])
    if deviations is None:
        return None
    return dict(zip(ids, deviations.tolist(), strict=True))


def token_table(measured: Measured, numbers: TokenNumbers, judged: Judged) -> pl.DataFrame:
    """Return the table tokens.parquet, with one row per token of the job and null for missing values."""
    job = measured.job
    plan = measured.plan
    measures = numbers.measures
    left_by_ordinary = 1 - numbers.ordinary_contraction
    columns: dict[str, Any] = {
        "token_id": measures.ids,
        "erased": measures.erased.value,
        "erased_low": measures.erased.low,
        "erased_high": measures.erased.high,
        "lift_sd": measures.lift.value,
        "lift_sd_low": measures.lift.low,
        "lift_sd_high": measures.lift.high,
        "vector_deviation": measures.vector_deviation,
        "kinds_lifted": measures.kinds_lifted if measures.kinds else None,
        "strongest_kind": _strongest_kinds(numbers, plan),
        "confirmed": measures.confirmed,
        "verdict": judged.verdicts,
        "severity": judged.severities,
        "reason": judged.reasons,
        # The measures are relative to the ordinary token. Convert them to a difference of cosines and to the
        # share of a text that copies of the token erase.
        "lift": measures.lift.value * plan.similarity_spread + numbers.ordinary_lift,
        "contraction": measures.erased.value * left_by_ordinary + numbers.ordinary_contraction,
        "texts": numbers.texts,
    }
    types = {name: dtype for name, dtype in TOKEN_COLUMNS.items() if name in columns}
    table = pl.DataFrame(columns, schema_overrides=types).with_columns(pl.col(pl.Float64).fill_nan(None))
    table = table.join(job.vocabulary.frame(), on="token_id", how="left", validate="1:1")
    table = table.select(list(TOKEN_COLUMNS))
    recognized_shares = _recognized_copies(measured)
    if recognized_shares is not None:
        table = table.with_columns(pl.Series("copies_seen", recognized_shares))
    table = table.filter(pl.col("token_id").is_in([token.id for token in job.tokens]))
    return pl.concat([table, _rows_of_unmeasured_tokens(job)], how="diagonal_relaxed").sort("token_id")


def _strongest_kinds(numbers: TokenNumbers, plan: ProfilePlanRecord) -> list[str | None]:
    """Return, for each token, the kind of text that it lifts most, or None if no kind was measured."""
    names = [group.name for group in plan.groups if group.kind]
    if not names:
        return [None] * len(numbers.measures.ids)
    lifts = np.where(np.isfinite(numbers.kind_lifts), numbers.kind_lifts, -np.inf)
    is_known: NDArray[np.bool_] = np.isfinite(lifts.max(axis=1))
    strongest: NDArray[np.intp] = lifts.argmax(axis=1)
    return [
        names[index] if is_known_token else None
        for index, is_known_token in zip(strongest, is_known, strict=True)
    ]


def _recognized_copies(measured: Measured) -> Vector | None:
    """Return the share of each token's inserted copies that the tokenizer recognized as the token.

    If a token was measured in the confirming carriers, the share is computed from these carriers; if not, the
    share is computed from the screening carriers.

    Returns:
        One share for each screened token, in ascending order of token id; None if copies were not counted.
    """
    screened = measured.screened
    confirmed = measured.confirmed
    if screened.copies_seen is None or confirmed.copies_seen is None:
        return None
    cells = rounds.cells(measured.job.settings, len(measured.plan.carriers))
    copies = np.array([cell.copies for cell in cells])
    shares = _recognized_share(screened.copies_seen, copies[measured.screening_carriers])
    # The confirming carriers are all carriers except the screening carriers.
    copies_in_confirming = np.delete(copies, measured.screening_carriers)
    confirmed_rows = screened.rows_of(confirmed.ids)
    shares[confirmed_rows] = _recognized_share(confirmed.copies_seen, copies_in_confirming)
    return shares


def _recognized_share(recognized: NDArray[np.int64], inserted: NDArray[np.int64]) -> Vector:
    """Return the share of the inserted copies of T tokens that the tokenizer recognized, shape (T,).

    Args:
        recognized: number of copies of each token that the tokenizer recognized in each of K carriers, shape
            (T, K). In each carrier, no more copies are counted than were inserted.
        inserted: number of copies inserted into each carrier, shape (K,).
    """
    shares: Vector = np.minimum(recognized, inserted).sum(axis=1) / inserted.sum()
    return shares


def _rows_of_unmeasured_tokens(job: Job[ProfileSettings]) -> pl.DataFrame:
    """Return rows without verdicts for the tokens whose copies the tokenizer reads as other entries.

    Each row has the token's columns of the vocabulary, the reason and ``copies_seen``, the share of the
    copies that the tokenizer reads as the token. If there are no such tokens, the table is empty and has no
    column ``copies_seen``.
    """
    ids = [token.id for token in job.tokens if token.id in job.vocabulary.unspelled]
    shares = [job.vocabulary.unspelled[token_id] for token_id in ids]
    reasons = [f"not judged: the tokenizer reads {share:.0%} of its copies as this entry" for share in shares]
    rows = pl.DataFrame(
        {"token_id": ids, "texts": 0, "confirmed": False, "reason": reasons, "copies_seen": shares},
        schema_overrides={"token_id": pl.Int64, "reason": pl.String, "copies_seen": pl.Float64},
    )
    rows = job.vocabulary.frame().join(rows, on="token_id")
    # An empty column would appear in tokens.parquet even if no copies were counted.
    return rows if ids else rows.drop("copies_seen")


@dataclass(frozen=True, slots=True)
class SymptomCurve:
    """Mean similarities of text pairs as a function of the number of copies.

    A pair is unrelated if its similarity without copies is below a limit, usually the model's mean
    similarity.

    Attributes:
        copies: numbers of copies, beginning with 0.
        below: for each number of copies, the mean over the unrelated pairs.
        above: for each number of copies, the mean over all other pairs.
        ordinary_below: the mean of ``below`` over ordinary tokens, as a control.
        ordinary_above: the mean of ``above`` over ordinary tokens, as a control.
    """

    copies: list[int]
    below: list[float]
    above: list[float]
    ordinary_below: list[float]
    ordinary_above: list[float]


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
    """The results of a probe for one token. Fields not described here are columns of tokens.parquet.

    Attributes:
        ordinary_lift: lift of the ordinary token, as a difference of cosines.
        ordinary_contraction: the ordinary token's erased share, which is the share of a text that its copies
            erase.
        smallest_lift: threshold for the lift, in SD.
        smallest_erased: threshold for the erased share.
        unusual: threshold for the vector deviation: a token vector is unusual if its deviation is at least
            ``unusual``.
        vectors_compared: whether token vectors could be compared.
        lift_by_placement: lift for each placement of the copies, as a difference of cosines. The lift of the
            ordinary token is not subtracted.
        mean_similarity: mean similarity u of the model.
        curve: mean similarities as a function of the number of copies.
    """

    token_id: int
    token: str
    category: str
    verdict: str
    severity: str | None
    reason: str | None
    erased: float
    erased_low: float
    erased_high: float
    lift_sd: float
    lift_sd_low: float
    lift_sd_high: float
    vector_deviation: float | None
    kinds_lifted: int | None
    strongest_kind: str | None
    lift: float
    contraction: float
    texts: int
    ordinary_lift: float
    ordinary_contraction: float
    smallest_lift: float
    smallest_erased: float
    unusual: float
    vectors_compared: bool
    lift_by_placement: dict[str, float]
    mean_similarity: float
    curve: SymptomCurve


def probe(job: Job[ProfileSettings], progress: ProgressCallback) -> list[ProfileEvidence]:
    """Measure all tokens of the job in all carriers, as a run does with selected tokens, and judge them.

    Nothing is stored on disk.

    Returns:
        One result for each token of the job, in the same order. A token that occurs twice has two equal
        results.

    Raises:
        InputError: The tokenizer reads copies of a token as other vocabulary entries.
    """
    unspelled = [token for token in job.tokens if token.id in job.vocabulary.unspelled]
    if unspelled:
        raise InputError(
            f"in a text, the tokenizer reads copies of {unspelled[0].text!r} (token id {unspelled[0].id}) as "
            "other vocabulary entries: leave this token out"
        )
    # If a token was named twice, measure it only once.
    distinct_tokens = list({token.id: token for token in job.tokens}.values())
    job_without_repeats = replace(job, tokens=distinct_tokens)
    plan = make_plan(job_without_repeats, progress)
    runner = MemoryRunner(job.encoder, progress)
    deviations = token_vector_deviations(job.encoder, job.vocabulary)
    # With ``confirm_all``, no token is judged by the few screening carriers alone.
    measured = rounds.measure_rounds(job_without_repeats, plan, runner, deviations, confirm_all=True)
    numbers = estimates.estimate(measured)
    settings = job.settings
    table = token_table(measured, numbers, apply_rule(numbers.measures, settings))
    rows = {row["token_id"]: row for row in table.to_dicts()}
    curves = _curves(job_without_repeats, plan, runner)
    columns = [field.name for field in fields(ProfileEvidence) if field.name in table.columns]
    evidence = []
    for token in job.tokens:
        row = rows[token.id]
        evidence_of_token = ProfileEvidence(
            **{name: row[name] for name in columns},
            ordinary_lift=numbers.ordinary_lift,
            ordinary_contraction=numbers.ordinary_contraction,
            smallest_lift=settings.smallest_lift,
            smallest_erased=settings.smallest_erased,
            unusual=settings.unusual,
            vectors_compared=deviations is not None,
            lift_by_placement=_lift_by_placement(measured, token.id),
            mean_similarity=plan.mean_similarity,
            curve=curves[token.id],
        )
        evidence.append(evidence_of_token)
    return evidence


def _lift_by_placement(measured: Measured, token_id: int) -> dict[str, float]:
    """Return the mean lift of a token for each placement of the copies.

    The token must have been measured in the confirming carriers, which are all carriers except the screening
    carriers. Only the confirming carriers are used.

    Returns:
        The lifts as differences of cosines, keyed by placement.
    """
    cells = rounds.cells(measured.job.settings, len(measured.plan.carriers))
    placements = np.array([cell.placement for cell in cells])  # placement of the copies in each carrier
    placements = np.delete(placements, measured.screening_carriers)
    row = measured.confirmed.rows_of(np.array([token_id]))[0]
    lifts = measured.confirmed.lifts[row]
    return {
        placement.value: float(lifts[placements == placement].mean())
        for placement in Placement
        if (placements == placement).any()
    }


def _curves(job: Job[ProfileSettings], plan: ProfilePlanRecord, run: MemoryRunner) -> dict[int, SymptomCurve]:
    """Measure the symptom curve of each token, and the mean curve of a few ordinary tokens as a control.

    Returns:
        One curve for each token of the job, keyed by token id.
    """
    carriers = range(min(SYMPTOM_CARRIERS, len(plan.carriers)))
    panel = texts.anchor_panel(job.encoder, plan, lift_only=True)
    confirming = round_stage(job.encoder, job.settings, plan, panel, Round.CONFIRM, carriers)
    requested_ids = {token.id for token in job.tokens}
    available = {token.id: token for token in job.vocabulary.available}
    pilots = [available[token_id] for token_id in plan.pilots if token_id not in requested_ids]
    ordinary = pilots[:_ORDINARY_TOKENS]
    copies = probes.fitting_copies(job.encoder, job.settings.insertion, plan.carriers[: len(carriers)])
    stage = probes.SymptomStage(confirming.carriers, copies, confirming.panel)
    rows = {row["token_id"]: row for row in run(stage, [*job.tokens, *ordinary]).to_dicts()}

    def ordinary_mean(side: str) -> list[float]:
        """Return the ordinary tokens' mean curve over unrelated (``below``) or other pairs (``above``)."""
        if not ordinary:
            return []
        mean: list[float] = np.mean([rows[token.id][side] for token in ordinary], axis=0).tolist()
        return mean

    copies_of_curve = [0, *copies]  # the stage also returns the means for 0 copies
    ordinary_below = ordinary_mean("below")
    ordinary_above = ordinary_mean("above")
    return {
        token_id: SymptomCurve(
            copies=copies_of_curve,
            below=rows[token_id]["below"],
            above=rows[token_id]["above"],
            ordinary_below=ordinary_below,
            ordinary_above=ordinary_above,
        )
        for token_id in requested_ids
    }


def evidence_stage(job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidenceStage:
    """Return the stage that measures the curves and pairs that reports show."""
    panel = texts.anchor_panel(job.encoder, plan, lift_only=True)
    anchors = plan_texts(plan).anchors
    return base.evidence_stage(job, plan.carriers[:SYMPTOM_CARRIERS], anchors, panel, plan.unrelated_below)


def plan_texts(plan: ProfilePlanRecord) -> PlanTexts:
    """Return the carriers of a plan, and the anchors from which the lift is computed."""
    anchors = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
    return PlanTexts(plan.carriers, anchors, by_topic=True)
