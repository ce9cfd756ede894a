"""The profile method, the default: lift and erased share of every token, judged by one rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.methods as terms
from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.errors import InputError, ModelError
from stickytoken.insertion import Placement
from stickytoken.inspection import inspector_of
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import base, probes, wording
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.probes import SYMPTOM_CARRIERS, EvidenceStage
from stickytoken.methods.profile import _corpus, estimates, plan as planning, rounds, texts
from stickytoken.methods.profile.estimates import Measured, TokenNumbers
from stickytoken.methods.profile.rounds import Round, round_stage
from stickytoken.methods.profile.settings import ProfilePlanRecord, ProfileResultRecord, ProfileSettings
from stickytoken.methods.profile.verdict import UNUSUAL_SHARE, Judged, Thresholds, apply_rule, reasons
from stickytoken.methods.statistics import TokenEffects
from stickytoken.token_vectors import vector_deviations
from stickytoken.vocabulary import Vocabulary

Run: TypeAlias = base.FinishedRun[ProfilePlanRecord, ProfileResultRecord]

# Ordinary tokens behind the curve that a probed token is compared with.
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
    "rising_share": pl.Float64,
    "texts": pl.Int64,
}


def run_profile(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: base.FolderRunner
) -> tuple[pl.DataFrame, ProfileResultRecord]:
    """Measure and judge the job's tokens; return tokens.parquet and the result in run.json."""
    deviations = token_vector_deviations(job.encoder, job.vocabulary)
    measured = rounds.measure_rounds(job, plan, run, deviations)
    estimates.write_effects(run.folder, measured.screened)
    numbers = estimates.estimate(measured)
    judged = apply_rule(numbers.measures, Thresholds.of(job.settings))
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
        seconds=round(cost.seconds, 1),
    )


def token_vector_deviations(encoder: Encoder, vocabulary: Vocabulary) -> dict[int, float] | None:
    """Measure how unusual the vector of each available token is; None where vectors cannot be compared."""
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
    """Build tokens.parquet: one row for each token of the job, with nulls where nothing was measured."""
    job, plan, measures = measured.job, measured.plan, numbers.measures
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
        "reason": reasons(measures, judged, Thresholds.of(job.settings), numbers.ordinary_contraction),
        "lift": measures.lift.value * plan.similarity_spread + numbers.ordinary_lift,
        "contraction": measures.erased.value * left_by_ordinary + numbers.ordinary_contraction,
        "rising_share": numbers.rising,
        "texts": numbers.texts,
    }
    types = {name: dtype for name, dtype in TOKEN_COLUMNS.items() if name in columns}
    table = pl.DataFrame(columns, schema_overrides=types).with_columns(pl.col(pl.Float64).fill_nan(None))
    table = table.join(job.vocabulary.frame(), on="token_id", how="left", validate="1:1")
    table = table.select(list(TOKEN_COLUMNS))
    copies_seen = _copies_seen(measured)
    if copies_seen is not None:
        table = table.with_columns(pl.Series("copies_seen", copies_seen))
    wanted = [token.id for token in job.tokens]
    table = table.filter(pl.col("token_id").is_in(wanted))
    return pl.concat([table, _unspelled_rows(job)], how="diagonal_relaxed").sort("token_id")


def _strongest_kinds(numbers: TokenNumbers, plan: ProfilePlanRecord) -> list[str | None]:
    """Name the kind of text that each token lifts most; None where no kind was measured."""
    names = [group.name for group in plan.groups if group.kind]
    if not names:
        return [None] * len(numbers.measures.ids)
    lifts = np.where(np.isfinite(numbers.kind_lifts), numbers.kind_lifts, -np.inf)
    is_known: NDArray[np.bool_] = np.isfinite(lifts.max(axis=1))
    strongest: NDArray[np.intp] = lifts.argmax(axis=1)
    return [names[place] if known else None for place, known in zip(strongest, is_known, strict=True)]


def _copies_seen(measured: Measured) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Compute the share of the planned copies that the tokenizer saw, in each token's last round."""
    screened, confirmed = measured.screened, measured.confirmed
    if screened.seen is None or confirmed.seen is None:
        return None
    cells = rounds.cells(measured.job.settings, len(measured.plan.carriers))
    copies = np.array([cell.copies for cell in cells])
    in_screen = copies[measured.screening_carriers]
    in_confirm = np.delete(copies, measured.screening_carriers)
    shares: np.ndarray[Any, np.dtype[np.float64]]
    shares = np.minimum(screened.seen, in_screen).sum(axis=1) / in_screen.sum()
    rows = screened.rows_of(confirmed.ids)
    shares[rows] = np.minimum(confirmed.seen, in_confirm).sum(axis=1) / in_confirm.sum()
    return shares


def _unspelled_rows(job: Job[ProfileSettings]) -> pl.DataFrame:
    """Make rows for tokens whose copies texts read as other entries: they have no verdict."""
    unread = [token.id for token in job.tokens if token.id in job.vocabulary.unspelled]
    shares = [job.vocabulary.unspelled[token_id] for token_id in unread]
    reasons = [f"not judged: texts spell {share:.0%} of its copies as this entry" for share in shares]
    rows = pl.DataFrame(
        {"token_id": unread, "texts": 0, "confirmed": False, "reason": reasons, "copies_seen": shares},
        schema_overrides={"token_id": pl.Int64, "reason": pl.String, "copies_seen": pl.Float64},
    )
    rows = job.vocabulary.frame().join(rows, on="token_id")
    return rows if unread else rows.drop("copies_seen")


@dataclass(frozen=True, slots=True)
class SymptomCurve:
    """Mean similarities by number of copies."""

    copies: list[int]  # 0 first
    below: list[float]  # over the pairs below the mean similarity
    above: list[float]  # over the pairs above it
    ordinary_below: list[float]  # the same of ordinary tokens, as a control
    ordinary_above: list[float]


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
    """What a probe measured of one token."""

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
    rising_share: float  # share of the pairs below the mean similarity that rise
    texts: int
    ordinary_lift: float
    ordinary_contraction: float
    smallest_lift: float  # the thresholds of the rule
    smallest_erased: float
    unusual: float
    vectors_compared: bool
    lift_by_placement: dict[str, float]  # the raw lift, by placement of the copies
    mean_similarity: float  # u of the model
    curve: SymptomCurve


def probe_profile(job: Job[ProfileSettings], progress: ProgressCallback) -> list[ProfileEvidence]:
    """Measure the job's tokens closely, without a run folder, in the job's order."""
    unread = [token for token in job.tokens if token.id in job.vocabulary.unspelled]
    if unread:
        raise InputError(
            f"in texts, copies of {unread[0].text!r} (token id {unread[0].id}) are read as other entries: "
            "leave it out"
        )
    once = replace(job, tokens=list({token.id: token for token in job.tokens}.values()))
    plan = planning.make_profile_plan(once, progress)
    runner = MemoryRunner(job.encoder, progress)
    deviations = token_vector_deviations(job.encoder, job.vocabulary)
    measured = rounds.measure_rounds(once, plan, runner, deviations, confirm_all=True)
    numbers = estimates.estimate(measured)
    thresholds = Thresholds.of(job.settings)
    table = token_table(measured, numbers, apply_rule(numbers.measures, thresholds))
    rows = {row["token_id"]: row for row in table.to_dicts()}
    curves = _curves(once, plan, runner)
    evidence = []
    for token in job.tokens:
        row = rows[token.id]
        of_token = ProfileEvidence(
            **{name: row[name] for name in ProfileEvidence.__slots__ if name in row},
            ordinary_lift=numbers.ordinary_lift,
            ordinary_contraction=numbers.ordinary_contraction,
            smallest_lift=thresholds.lift,
            smallest_erased=thresholds.erased,
            unusual=thresholds.unusual,
            vectors_compared=deviations is not None,
            lift_by_placement=_lift_by_placement(measured, token.id),
            mean_similarity=plan.mean_similarity,
            curve=curves[token.id],
        )
        evidence.append(of_token)
    return evidence


def _lift_by_placement(measured: Measured, token_id: int) -> dict[str, float]:
    """Average the raw lifts of a confirmed token over the carriers of each placement."""
    cells = rounds.cells(measured.job.settings, len(measured.plan.carriers))
    placements = np.array([cell.placement for cell in cells])
    placements = np.delete(placements, measured.screening_carriers)
    row = measured.confirmed.rows_of(np.array([token_id]))[0]
    lifts = measured.confirmed.lifts[row]
    return {
        placement.value: float(lifts[placements == placement].mean())
        for placement in Placement
        if (placements == placement).any()
    }


def _curves(job: Job[ProfileSettings], plan: ProfilePlanRecord, run: MemoryRunner) -> dict[int, SymptomCurve]:
    """Measure mean similarities by number of copies, for the job's tokens and for a few ordinary ones."""
    places = range(min(SYMPTOM_CARRIERS, len(plan.carriers)))
    panel = texts.anchor_panel(job.encoder, plan, lift_only=True)
    confirming = round_stage(job.encoder, job.settings, plan, panel, Round.CONFIRM, places)
    asked = {token.id for token in job.tokens}
    available = {token.id: token for token in job.vocabulary.available}
    pilots = [available[token_id] for token_id in plan.pilots if token_id not in asked]
    ordinary = pilots[:_ORDINARY_TOKENS]
    copies = probes.fitting_copies(job.encoder, job.settings.insertion, plan.carriers[: len(places)])
    stage = probes.SymptomStage(confirming.carriers, copies, confirming.panel)
    rows = {row["token_id"]: row for row in run(stage, [*job.tokens, *ordinary]).to_dicts()}

    def ordinary_mean(side: str) -> list[float]:
        if not ordinary:
            return []
        mean: list[float] = np.mean([rows[token.id][side] for token in ordinary], axis=0).tolist()
        return mean

    below, above = ordinary_mean("below"), ordinary_mean("above")
    return {
        token_id: SymptomCurve([0, *copies], rows[token_id]["below"], rows[token_id]["above"], below, above)
        for token_id in asked
    }


_VECTOR = terms.Column("vector_deviation", "vector", 1)
_SEVERITY = terms.Column("severity", "severity")
_REASON = terms.Column("reason", "reason")


class ProfileMethod(base.Method[ProfileSettings, ProfilePlanRecord, ProfileResultRecord]):
    """The default method; see `stickytoken.methods.profile.verdict` for its rule."""

    settings = ProfileSettings
    plan_record = ProfilePlanRecord
    result_record = ProfileResultRecord
    columns = tuple(TOKEN_COLUMNS)
    listed = (wording.ERASED, wording.LIFT, _VECTOR, _SEVERITY, _REASON)
    reported = (
        _SEVERITY,
        _REASON,
        wording.ERASED,
        terms.Column("erased_low", "erased, low", 0, "%"),
        terms.Column("erased_high", "erased, high", 0, "%"),
        wording.LIFT,
        terms.Column("lift_sd_low", "lift, low", 2, "SD"),
        terms.Column("lift_sd_high", "lift, high", 2, "SD"),
        _VECTOR,
        terms.Column("kinds_lifted", "kinds lifted", 0),
        terms.Column("strongest_kind", "strongest kind"),
    )
    ranked_by = wording.ERASED
    verdicts = tuple(terms.Verdict)
    uncertain_stage = rounds.Round.CONFIRM.value
    rule_since = 4
    judges_corpora = True
    uses_topics = True
    effort = frozenset({"anchors", "budget", "screening_texts", "confirming_texts", "screen_precision"})
    glossary = wording.GLOSSARY

    make_plan = staticmethod(planning.make_profile_plan)
    compute = staticmethod(run_profile)
    probe = staticmethod(probe_profile)
    require_judging = staticmethod(_corpus.require_judging)
    judge = staticmethod(_corpus.judge_corpus)

    def evidence_stage(self, job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidenceStage:
        panel = texts.anchor_panel(job.encoder, plan, lift_only=True)
        anchors = self.texts(plan).anchors
        return base.evidence_stage(
            job, plan.carriers[:SYMPTOM_CARRIERS], anchors, panel, plan.unrelated_below
        )

    def texts(self, plan: ProfilePlanRecord) -> terms.PlanTexts:
        anchors = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
        return terms.PlanTexts(plan.carriers, anchors, by_topic=True)

    def token_effects(self, run: Run) -> TokenEffects:
        return estimates.read_effects(run.path)

    def headline(self, run: Run) -> str:
        result = run.result
        scope = f"among {result.looked_at:,}"
        if result.looked_at < run.available:
            scope += " examined"
        if not result.sticky:
            return f"{run.model_title}: no sticky tokens {scope}"
        return f"{run.model_title}: {wording.counted(result.sticky, 'sticky token')} {scope}"

    def lines(self, run: Run) -> list[str]:
        settings, result = run.settings, run.result
        lines = []
        if not run.is_of_older_rule:
            lines.append(wording.rule(settings.number("smallest_lift"), settings.number("smallest_erased")))
            if not result.vectors_compared:
                lines.append(wording.WITHOUT_VECTORS)
        if result.topical:
            listing = "list them with `stickytoken show RUN --verdict topical`"
            words = wording.counted(result.topical, "more token")
            lift = "lifts" if result.topical == 1 else "lift"
            lines.append(f"{words} {lift} only some kinds of text, because of their meaning: {listing}")
        return lines

    def answer_table(self, run: Run, tokens: pl.DataFrame) -> base.AnswerTable:
        settings = run.settings
        thresholds = [settings.number(name) for name in ("smallest_lift", "smallest_erased", "unusual")]
        rows = [wording.table_row(row, *thresholds) for row in tokens.iter_rows(named=True)]
        types = {"token": pl.String, "erased": pl.Float64, "lift_sd": pl.Float64}
        types |= {"vector": pl.String, "verdict": pl.String}
        columns = (
            terms.Column("token", "token"),
            wording.ERASED,
            wording.LIFT,
            terms.Column("vector", "vector"),
            terms.Column("verdict", "verdict"),
        )
        return base.AnswerTable(columns, pl.DataFrame(rows, schema=types))

    def thresholds(self, run: Run, row: Mapping[str, Any] | None = None) -> dict[str, float]:
        number = run.settings.number
        deviation = None if row is None else row["vector_deviation"]
        is_unusual = deviation is not None and deviation >= number("unusual")
        share = UNUSUAL_SHARE if is_unusual else 1.0
        return {"erased": share * number("smallest_erased"), "lift_sd": share * number("smallest_lift")}

    def notes(self, run: Run) -> list[str]:
        notes = []
        if run.is_of_older_rule:
            notes.append(
                "the verdicts of this run are of an older rule: run the detection again, into another "
                "folder, for today's"
            )
        if run.result.unconfirmed:
            words = wording.counted(run.result.unconfirmed, "token")
            notes.append(
                f"{words} may reach a threshold, but the budget did not allow to measure them closely: raise "
                "it with --set budget=N (texts per token)"
            )
        if run.plan.narrow_limit is not None:
            notes.append(
                "to the model, the sentences are more alike than random words: lifts are measured on the "
                f"less similar half of their pairs, below {run.plan.narrow_limit:.4f}"
            )
        without_verdict = run.tokens.filter(pl.col("verdict").is_null())
        reasons = without_verdict["reason"].fill_null("")
        unanswered = int(reasons.str.contains("the server gives no vector", literal=True).sum())
        if unanswered:
            words = wording.counted(unanswered, "token")
            has = "has" if unanswered == 1 else "have"
            notes.append(
                f"{words} {has} no verdict: the server gives no vector for texts with copies (column reason)"
            )
        unspelled = len(without_verdict) - unanswered
        if unspelled:
            words = wording.counted(unspelled, "token")
            has = "has" if unspelled == 1 else "have"
            notes.append(
                f"{words} {has} no verdict: copies in texts are read as other entries (column reason)"
            )
        if run.plan.left_out:
            words = wording.counted(run.plan.left_out, "sentence")
            notes.append(f"{words} left out: longer than the model reads")
        return notes

    def key_facts(self, run: Run) -> list[terms.Fact]:
        facts = []
        settings, result = run.settings, run.result
        measured = run.tokens.filter(pl.col("confirmed") | pl.col("severity").is_not_null())
        measured = measured.drop_nulls(["erased", "lift_sd"])
        if not measured.is_empty():
            most_erased = measured.sort("erased", "token_id", descending=[True, False]).row(0, named=True)
            most_lifted = measured.sort("lift_sd", "token_id", descending=[True, False]).row(0, named=True)
            erased_from = wording.percent(settings.number("smallest_erased"))
            facts.append(
                terms.Fact(
                    wording.percent(most_erased["erased"]),
                    f"the most that copies of a token erase, {wording.quoted(most_erased['token'])}; sticky "
                    f"from {erased_from}",
                )
            )
            facts.append(
                terms.Fact(
                    wording.in_sd(most_lifted["lift_sd"]),
                    f"the largest lift of unrelated texts, {wording.quoted(most_lifted['token'])}; sticky "
                    f"from {settings.number('smallest_lift'):g} SD",
                )
            )
        if result.topical:
            noun = "topical token" if result.topical == 1 else "topical tokens"
            facts.append(terms.Fact(f"{result.topical:,}", f"{noun}, which lift only some kinds of text"))
        return facts

    def how(self, settings: base.StoredSettings) -> str:
        return (
            "Copies of every token were put into short texts (carriers), at their beginning, their end and "
            f"between their words, {settings.text('copies')} at a time. Each text was compared with texts of "
            "several kinds (anchors) before and after. Random tokens went through all carriers first, to "
            "find the few that best represent all, and to measure what is ordinary. All tokens then went "
            "through these few. Those that may reach a threshold got "
            f"{settings.number('confirming_texts'):g} further texts, and their verdicts rest on these alone."
        )

    def plan_facts(self, plan: ProfilePlanRecord) -> dict[str, Any]:
        numbers = (
            "mean_similarity",
            "mean_similarity_entries",
            "mean_similarity_error",
            "isoscore",
            "similarity_spread",
            "share_below",
            "left_out",
        )
        facts = {name: getattr(plan, name) for name in numbers}
        for name in ("groups", "anchors", "carriers", "pilots"):
            facts[name] = len(getattr(plan, name))
        return facts

    def scale(self, run: Run) -> terms.Scale:
        return terms.Scale(
            run.result.ordinary_lift,
            run.plan.similarity_spread,
            run.settings.number("confidence"),
            run.settings.number("smallest_lift"),
        )

    def figures(self, run: Run) -> list[terms.Figure]:
        return [
            terms.Distribution(
                "erased-distribution",
                "What copies erase, over the vocabulary",
                wording.ERASED,
                {"threshold": run.settings.number("smallest_erased")},
                "The share that copies of each token erase of what copies of an ordinary token leave of a "
                "text. The grey bars count all tokens; their axis is logarithmic, so that a single token is "
                "visible. A token whose interval lies beyond the threshold is sticky.",
            ),
            terms.Distribution(
                "lift-distribution",
                "Lifts over the vocabulary",
                wording.LIFT,
                {"threshold": run.settings.number("smallest_lift")},
                "How much closer copies of each token move unrelated texts than copies of an ordinary token, "
                "in standard deviations of the model's similarities. A token whose interval lies beyond the "
                "threshold is sticky, or topical if it lifts fewer than half of the kinds of text.",
            ),
            terms.Scatter(
                "lift-erased",
                "Lift against erased share",
                wording.LIFT,
                wording.ERASED,
                "A token in the upper part erases texts: documents with its copies are no longer found. One "
                "far to the right lifts them: such documents turn up in searches for other things.",
            ),
        ]

    def probe_lines(self, probed: Sequence[ProfileEvidence]) -> list[terms.ProbeTable | str]:
        first = probed[0]
        names = (
            "id",
            "token",
            "category",
            "erased",
            "interval",
            "lift",
            "interval",
            "vector",
            "verdict",
        )
        lines: list[terms.ProbeTable | str] = [
            terms.ProbeTable(
                "Erased: share of what an ordinary token leaves of a text. Lift: of unrelated texts, beyond "
                "an ordinary token",
                names,
                [_probe_row(evidence) for evidence in probed],
            ),
        ]
        lines += [
            f"{wording.quoted(evidence.token)}: {evidence.reason}"
            for evidence in probed
            if evidence.reason is not None
        ]
        lines += [
            _curve_table(probed, "below"),
            _curve_table(probed, "above"),
            wording.rule(first.smallest_lift, first.smallest_erased),
        ]
        if not first.vectors_compared:
            lines.append(wording.WITHOUT_VECTORS)
        return lines


def _probe_row(evidence: ProfileEvidence) -> list[object]:
    get = attrgetter("token_id", "token", "category")
    erased_ends = f"{wording.percent(evidence.erased_low)} to {wording.percent(evidence.erased_high)}"
    lift_ends = f"{evidence.lift_sd_low:.2f} to {evidence.lift_sd_high:.2f}".replace("-", wording.MINUS)
    vector = ""
    if evidence.vector_deviation is not None:
        vector = "unusual" if evidence.vector_deviation >= evidence.unusual else "usual"
    verdict = evidence.verdict
    if evidence.severity is not None:
        verdict += f", {evidence.severity}"
    return [
        *get(evidence),
        wording.percent(evidence.erased),
        erased_ends,
        wording.in_sd(evidence.lift_sd),
        lift_ends,
        vector,
        verdict,
    ]


# Numbers of copies that a terminal has room for.
_TABLE_COPIES = (0, 1, 2, 4, 8, 16, 32)


def _curve_table(probed: Sequence[ProfileEvidence], side: str) -> terms.ProbeTable | str:
    """Lay out similarities by number of copies, of the pairs below or above the mean similarity."""
    curve = probed[0].curve
    if not getattr(curve, side):
        return f"No pair of these texts lies {side} the model's mean similarity."
    places = [place for place, copies in enumerate(curve.copies) if copies in _TABLE_COPIES]
    rows = [(evidence.token, getattr(evidence.curve, side)) for evidence in probed]
    rows.append(("(ordinary tokens)", getattr(curve, f"ordinary_{side}")))
    return terms.ProbeTable(
        f"Similarity of pairs {side} the mean similarity, by number of copies",
        ("token", *(str(curve.copies[place]) for place in places)),
        [(token, *(values[place] for place in places)) for token, values in rows if values],
    )
