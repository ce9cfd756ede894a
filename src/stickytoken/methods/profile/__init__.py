"""The profile method: every token's lift with an interval, in rounds that narrow the upper tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import polars as pl

import stickytoken.methods as terms
from stickytoken.encoders.protocol import require_ids
from stickytoken.encoders.views import View, Views
from stickytoken.errors import InputError
from stickytoken.insertion import Placement
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import base, probes
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.probes import SYMPTOM_CARRIERS, EvidenceStage
from stickytoken.methods.profile import anchors, estimates, other_texts, plan as planning, verdict
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileResultRecord, ProfileSettings
from stickytoken.methods.profile.estimates import Measurements
from stickytoken.methods.profile.plan import Round, cells, round_stage
from stickytoken.methods.profile.verdict import Measured
from stickytoken.methods.statistics import TokenEffects, share_erased
from stickytoken.validation import visible

Run: TypeAlias = base.FinishedRun[ProfilePlanRecord, ProfileResultRecord]

# Number of ordinary tokens behind the curve that a probed token is compared with.
_ORDINARY_TOKENS = 8


def run_profile(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: base.FolderRunner
) -> tuple[pl.DataFrame, ProfileResultRecord]:
    views, ids = planning.views_in(job), np.array([token.id for token in job.tokens])
    every = _measure(job, plan, run, views)
    found: dict[View, verdict.Findings] = {}
    for view in dict.fromkeys([views.own, *views.asked]):
        judged = _judged(every[view])
        found[view] = judged._replace(tokens=judged.tokens.filter(pl.col("token_id").is_in(ids)))
        estimates.write_effects(run.folder, every[view].rounds, None if view == views.own else view)
    if views.asked:
        tables, records = [], []
        for view, (tokens, ordinary, spread, contraction, _) in found.items():
            in_view = every[view].plan
            layer, dimension = (pl.lit(each, dtype=pl.Int64) for each in (view.layer, view.dimension))
            tables.append(tokens.select(layer.alias("layer"), dimension.alias("dimension"), pl.all()))
            lifts = (tokens["lift"].to_numpy() - ordinary) / in_view.similarity_spread
            record = base.DimensionRecord(
                layer=view.layer,
                dimension=view.dimension,
                sticky=int((tokens["verdict"] == "sticky").sum()),
                topical=int((tokens["verdict"] == "topical").sum()),
                **terms.severity_counts(tokens),
                similarity_spread=in_view.similarity_spread,
                ordinary_lift=ordinary,
                ordinary_sd=spread / in_view.similarity_spread,
                largest_sd=float(np.nanmax(lifts)) if np.isfinite(lifts).any() else None,
                mean_similarity=in_view.mean_similarity,
                ordinary_contraction=contraction,
            )
            records.append(record)
        run.folder.write_table(base.DIMENSION_TOKENS_FILE, pl.concat(tables))
        run.folder.write_record(base.DIMENSIONS_FILE, base.DimensionsRecord(views=records))
    own, tokens, measured = found[views.own], found[views.own].tokens, every[views.own]
    cost, last = run.cost, measured.rounds[Round.CONFIRM if job.settings.adaptive else Round.SCREEN]
    return tokens, ProfileResultRecord(
        looked_at=tokens["verdict"].count(),
        candidates=int(np.isin(last.ids, ids).sum()),
        sticky=int((tokens["verdict"] == "sticky").sum()),
        topical=int((tokens["verdict"] == "topical").sum()),
        ordinary_lift=own.ordinary_lift,
        ordinary_spread=own.ordinary_spread,
        ordinary_contraction=own.ordinary_contraction,
        erasing=int(tokens["erases"].sum()),
        empirical_null=own.empirical_null,
        screening_carriers=measured.carriers,
        texts_per_token=round(cost.sequences / tokens["verdict"].count(), 2),
        sequences=cost.sequences,
        seconds=round(cost.seconds, 1),
    )


def _judged(measured: Measured) -> verdict.Findings:
    found, rounds = verdict.decide(measured), measured.rounds
    # The last round has the model's own precision.
    own = measured.job.encoder.identity.dtype
    early = pl.lit(str(measured.job.settings.screen_precision or own))
    last = rounds[Round.CONFIRM].ids.tolist() if Round.CONFIRM in rounds else []
    precision = pl.when(pl.col("token_id").is_in(last)).then(pl.lit(own)).otherwise(early)
    tokens = found.tokens.with_columns(precision.alias("precision"))
    job, few = measured.job, np.array(measured.carriers)
    counted = {step: each.seen for step, each in rounds.items() if each.seen is not None}
    if len(counted) == len(rounds):
        # The share of copies that the tokenizer sees, in the last round of each token.
        copies = np.array([cell.copies for cell in cells(job.settings, len(measured.plan.carriers))])
        of_copies = np.full(len(rounds[Round.SCREEN].ids), np.nan)
        for step, seen in counted.items():
            planned = copies[few] if step is Round.SCREEN else np.delete(copies, few)
            places = rounds[Round.SCREEN].rows(rounds[step].ids)
            of_copies[places] = np.minimum(seen, planned).sum(axis=1) / planned.sum()
        tokens = tokens.with_columns(pl.Series("copies_seen", of_copies))
    if unread := [token.id for token in job.tokens if token.id in job.vocabulary.unspelled]:
        shares = [job.vocabulary.unspelled[token_id] for token_id in unread]
        said = [f"not judged: texts spell {share:.0%} of its copies as this entry" for share in shares]
        rows = pl.DataFrame({"token_id": unread, "texts": 0, "reason": said, "copies_seen": shares})
        rows = job.vocabulary.frame().join(rows, on="token_id")
        tokens = pl.concat([tokens, rows], how="diagonal_relaxed").sort("token_id")
    return found._replace(tokens=tokens)


def _measure(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    run: base.FolderRunner | MemoryRunner,
    views: Views,
    confirm_all: bool = False,
) -> dict[View, Measured]:
    # What is encoded for all views is chosen by whole vectors, so that a run on the truncated model chooses
    # the same. Every other view adds the tokens that lift most in it to the last round.
    # A probe may name tokens that cannot occur in text.
    tokens = {token.id: token for token in (*job.vocabulary.available, *job.tokens)}
    unspelled = job.vocabulary.unspelled
    wanted = unselected = np.array([token.id for token in job.tokens if token.id not in unspelled], np.int64)
    if job.restricted:
        unselected = np.union1d(wanted, plan.reference) if job.sampled else np.array(plan.reference)
    in_views, reading = (views.own, *views.further), views.reading(job.encoder)
    found = anchors.anchor_panels(reading, plan, job.vocabulary.available, views=in_views)
    panels = dict(zip(in_views, found, strict=True))

    def measure(step: Round, ids: estimates.Ids, places: list[int]) -> dict[View, Measurements]:
        stage = round_stage(job.encoder, job.settings, plan, panels[views.own], step, places)
        if views.further:
            lower = reading
            if stage.precision is not None:
                lower = require_ids(reading, f"screening in {stage.precision}").at(stage.precision)
            vectors = lower.encode([plan.carriers[place] for place in places])
            further = [
                (view, panels[view].against(view.units(vectors), plan.seen_in(view).unrelated_below))
                for view in views.further
            ]
            stage = replace(stage, layers=views.layers, further=tuple(further))
        rows = run(stage, [tokens[token_id] for token_id in ids.tolist()])
        return {
            view: estimates.round_measurements(rows, stage, job.encoder, None if view == views.own else view)
            for view in in_views
        }

    def measured(view: View, carriers: list[int], rounds: dict[Round, Measurements]) -> Measured:
        return Measured(job, plan.seen_in(view), panels[view], unselected, carriers, rounds)

    every = list(range(len(plan.carriers)))
    if not job.settings.adaptive:
        screened = measure(Round.SCREEN, np.union1d(wanted, unselected), every)
        return {view: measured(view, every, {Round.SCREEN: each}) for view, each in screened.items()}
    late = np.array(plan.late_reference)
    pilot = measure(Round.PILOT, late, every)
    few = _few_carriers(job, plan, pilot[views.whole])
    rest = [place for place in every if place not in few]
    screened = measure(Round.SCREEN, np.union1d(wanted, unselected), few)
    chosen = dict.fromkeys(in_views, wanted)
    if not confirm_all:
        first = {view: measured(view, few, {Round.SCREEN: each}) for view, each in screened.items()}
        of_whole = _candidates(first[views.whole])
        further = {view: _candidates(first[view], of_a_view=True) for view in in_views if view != views.whole}
        chosen = dict.fromkeys(in_views, of_whole) | {
            view: np.union1d(of_whole, ids) for view, ids in further.items()
        }
    chosen = {view: np.setdiff1d(ids, late) for view, ids in chosen.items()}
    union = reduce(np.union1d, chosen.values())
    confirmed = measure(Round.CONFIRM, union, rest) if len(union) else {}
    result = {}
    for view, ids in chosen.items():
        last = pilot[view].chosen(np.arange(len(late)), rest)
        if len(ids):
            rows = confirmed[view].rows(ids)
            last = estimates.together(last, confirmed[view].chosen(rows, list(range(len(rest)))))
        result[view] = measured(view, few, {Round.SCREEN: screened[view], Round.CONFIRM: last})
    return result


def _few_carriers(job: Job[ProfileSettings], plan: ProfilePlanRecord, pilot: Measurements) -> list[int]:
    count = planning.screening_carriers(job.settings)
    if getattr(job.encoder, "makes_up_vectors", False):  # made-up lifts would favour the shortest texts
        carriers = zip(
            job.encoder.content_ids(plan.carriers), cells(job.settings, len(plan.carriers)), strict=True
        )
        return anchors.typical_carriers(np.array([len(ids) + cell.copies for ids, cell in carriers]), count)
    # Groups of the lift, kinds of text and contractions count alike.
    weights = np.array([group.weight for group in plan.groups])
    kinds = np.array([group.kind for group in plan.groups], dtype=np.float64)
    importance = np.append(weights + kinds / max(1.0, kinds.sum()), 1.0)
    values = np.concatenate([pilot.groups.astype(np.float64), pilot.contractions[:, :, None]], axis=2)
    return anchors.representative_carriers(values, importance, count)


def _candidates(measured: Measured, of_a_view: bool = False) -> estimates.Ids:
    job, plan, screened = measured.job, measured.plan, measured.rounds[Round.SCREEN]
    found, count = measured.lifts(), planning.tokens_to_confirm(job.settings, len(job.tokens))
    means = screened.group_means()[:, np.array([group.weight > 0 for group in plan.groups])]
    ordinary = means[np.isin(screened.ids, measured.unselected)]
    deviations = means - np.median(ordinary, axis=0)
    spreads = np.median(np.abs(ordinary - np.median(ordinary, axis=0)), axis=0)
    standard = np.divide(deviations, spreads, out=np.zeros_like(deviations), where=spreads > 0)
    # Not by posterior means: with one error for all tokens they rank alike.
    lost, chances = verdict.erasing_chances(measured, found)
    erased = lost.standard()
    if chances is not None and chances.unusual is not None:
        erased = -np.log(np.maximum(lost.exceedance(), np.finfo(float).tiny)) - np.log(chances.unusual)
    values = np.column_stack([found.tested.value, np.nan_to_num(standard).max(axis=1), erased])
    asked = np.isin(found.ids, [token.id for token in job.tokens])
    if of_a_view:
        smallest = job.settings.smallest_effect * plan.similarity_spread
        reaching = asked & (found.lift.high >= found.null.center + smallest)
        # A further view adds at least a share of the number of tokens that whole vectors choose.
        count = min(count, max(math.ceil(0.15 * count), int(reaching.sum())))
    chosen = planning.highest(found.ids[asked], values[asked], count)
    if chances is None:
        return chosen
    # What seems to erase texts already is measured closely, however many tokens do; the places of a selection
    # are few, and the screen knows the chances of its tokens to within an order of magnitude.
    likely = chances.together <= (10 if job.restricted else 1) / verdict.RARE
    likely |= chances.made <= 10 * verdict.MADE  # the screen knows what they erase roughly
    return np.union1d(chosen, found.ids[asked & likely])


@dataclass(frozen=True, slots=True)
class SymptomCurve:
    copies: list[int]  # 0 first
    below: list[float]  # over the pairs below the mean similarity
    above: list[float]  # over the pairs above it
    ordinary_below: list[float]  # the same of ordinary tokens, as a control
    ordinary_above: list[float]


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
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
    if not job.settings.adaptive:
        raise InputError("a probe measures its tokens in all rounds: leave adaptive on")
    if unread := [token for token in job.tokens if token.id in job.vocabulary.unspelled]:
        raise InputError(
            f"in texts, copies of {unread[0].text!r} (token id {unread[0].id}) are read as other entries: "
            "leave it out"
        )
    once = replace(job, tokens=list({token.id: token for token in job.tokens}.values()))
    plan, views = planning.make_profile_plan(once, progress), planning.views_in(once)
    runner = MemoryRunner(job.encoder, progress)
    measured = _measure(once, plan, runner, views, confirm_all=True)[views.own]
    found, curves = _judged(measured), _curves(once, plan, runner)
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
    texts = range(min(SYMPTOM_CARRIERS, len(plan.carriers)))
    panel = anchors.anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
    confirming = round_stage(job.encoder, job.settings, plan, panel, Round.CONFIRM, texts)
    asked = {token.id for token in job.tokens}
    available = {token.id: token for token in job.vocabulary.available}
    ordinary = [available[k] for k in plan.late_reference if k not in asked][:_ORDINARY_TOKENS]
    copies = probes.fitting_copies(job.encoder, job.settings.insertion, plan.carriers[: len(texts)])
    stage = probes.SymptomStage(confirming.carriers, copies, confirming.panel)
    rows = {row["token_id"]: row for row in run(stage, [*job.tokens, *ordinary]).to_dicts()}
    below, above = (
        np.mean([rows[token.id][side] for token in ordinary], axis=0).tolist() if ordinary else []
        for side in ("below", "above")
    )
    return {
        token_id: SymptomCurve([0, *copies], rows[token_id]["below"], rows[token_id]["above"], below, above)
        for token_id in asked
    }


_LIFT = terms.Column("lift", "lift", 4)
_CONTRACTION = terms.Column("contraction", "contraction", 2)
_INTERVAL = (_LIFT, terms.Column("lift_low", "low", 4), terms.Column("lift_high", "high", 4))
_SEVERITY = terms.Column("severity", "severity")
_UNIVERSALITY = terms.Column("universality", "universality", 2)
_REASON = terms.Column("reason", "reason")
# A note on single characters needs so many of them, and of others, beyond this quantile of the others.
_LEAST_COMPARED, _NEARLY_ALL, _MANY = 50, 0.99, 0.1
# The least that one decimal shows.
_SHOWN = 0.05
_GLOSSARY = {
    "interval": "The plausible range of the lift, given that only some texts were tried, at the confidence "
    "in the settings. The text, not the pair, is the unit of sampling.",
    "SD": "The lift beyond an ordinary token's, in standard deviations of the similarities between the "
    "model's own vectors of texts, so that models can be compared.",
    "severity": "Grade of a flagged token by SD, or by the share of a text that it erases beyond an ordinary "
    "token, if that is larger: below 0.2 negligible, from 0.2 mild, from 0.5 serious, from 0.8 severe "
    "(Cohen's small, medium and large effects). At 0.8, a typical unrelated text overtakes about four in "
    "five of the others. A topical token is graded on the kind of text that it lifts most.",
    "verdict": "Sticky: copies erase far more of a text than those of an ordinary token, or lift most kinds "
    "of text. Topical: they lift only some kinds of text, which comes from the token's meaning and is not a "
    "defect. Benign: everything else.",
    "reason": "Why a token is flagged: its copies erase far more of a text than those of ordinary tokens do, "
    "or its lift is large enough to matter, or an outlier among the tokens over all texts or on one kind of "
    "text. Or why it is not judged: texts do not spell it.",
    "universality": "The share of the kinds of text (news, law, code, chat, ...) that the token lifts by at "
    "least half of what matters. Sticky tokens exceed 0.5.",
    "lift on single words": "The lift if the carrier is compared with single vocabulary entries instead of "
    "texts. Nobody embeds single entries, and no verdict rests on it.",
    "contraction": "The share of a text's own meaning that copies erase: 0 keeps all of it, 1 leaves none.",
    "q value": "The expected share of ordinary tokens among those that stand out at least as much over all "
    "texts. A token that stands out on one kind of text is flagged whatever its q value.",
}


class ProfileMethod(base.Method[ProfileSettings, ProfilePlanRecord, ProfileResultRecord]):
    settings = ProfileSettings
    plan_record = ProfilePlanRecord
    result_record = ProfileResultRecord
    columns = verdict.MEASURED_COLUMNS
    later_columns = verdict.LATER_COLUMNS
    listed = (*_INTERVAL, _UNIVERSALITY, _SEVERITY, _REASON)
    reported = (
        _SEVERITY,
        _REASON,
        terms.Column("sd", "SD", 2),
        *_INTERVAL,
        _UNIVERSALITY,
        _CONTRACTION,
        terms.Column("validation_rate", "validation rate", 2),
        terms.Column("q_value", "q value", 4),
        terms.Column("lift_words", "lift on single words", 4),
    )
    ranked_by = _LIFT
    verdicts = tuple(terms.Verdict)
    judges_corpora = True
    uses_topics = True
    uses_whole_vectors = True
    effort = frozenset(
        {"adaptive", "anchors", "budget", "confirming_texts", "dimensions", "layers", "reference"}
        | {"screen_precision"}
    )
    glossary = _GLOSSARY

    make_plan = staticmethod(planning.make_profile_plan)
    compute = staticmethod(run_profile)
    probe = staticmethod(probe_profile)
    require_judging = staticmethod(other_texts.require_judging)
    judge = staticmethod(other_texts.judge_corpus)
    recheck = staticmethod(other_texts.recheck)

    def evidence_stage(self, job: Job[ProfileSettings], plan: ProfilePlanRecord) -> EvidenceStage:
        panel = anchors.anchor_panel(job.encoder, plan, job.vocabulary.available, beside=False)
        texts = self.texts(plan).anchors
        return base.evidence_stage(job, plan.carriers[:SYMPTOM_CARRIERS], texts, panel, plan.unrelated_below)

    def texts(self, plan: ProfilePlanRecord) -> terms.PlanTexts:
        anchors = [anchor.text for anchor in plan.anchors if plan.groups[anchor.group].weight > 0]
        return terms.PlanTexts(plan.carriers, anchors, by_topic=True)

    def token_effects(self, run: Run) -> TokenEffects:
        return estimates.read_effects(run.path)

    def headline(self, run: Run) -> str:
        name, sticky = run.model_name, run.sticky
        if not sticky.is_empty():
            counts = terms.severity_counts(sticky).items()
            grades = ", ".join(f"{count} {grade}" for grade, count in counts if count)
            tokens = "sticky token" if len(sticky) == 1 else "sticky tokens"
            return (
                f"{name} has {len(sticky)} {tokens} ({grades}): {self._done(run, sticky.row(0, named=True))}."
            )
        scope = "" if run.result.looked_at == run.available else " among those measured"
        strongest = ""
        if (token := self._highest(run)) is not None:
            strongest = "; none of them moves unrelated texts together more than an ordinary token does"
            if self._moved(run, token["lift"]) >= _SHOWN:
                strongest = f"; for scale, {self._done(run, token, ', the strongest,')}"
        return f"{name} has no sticky tokens{scope}{strongest}."

    def _done(self, run: Run, row: dict[str, Any], who: str = "") -> str:
        token, moved = f"{visible(repr(row['token']))}{who}", run.moved(row["token_id"])
        lift, ordinary = self._moved(run, row["lift"]), run.result.ordinary_contraction
        if row["erases"] and ordinary is not None and share_erased(row["contraction"], ordinary) >= lift:
            copies = " to ".join(sorted(run.settings.text("copies").split(" or "), key=int))
            return (
                f"{copies} copies of {token} erase {row['contraction']:.0%} of what a text says; those of an "
                f"ordinary token erase {ordinary:.0%}"
            )
        if moved is None:
            more = f"{lift:.1f} SD more than those of an ordinary token do"
            return f"copies of {token} lift unrelated texts by {more}"
        return moved.sentence(token)

    def _highest(self, run: Run) -> dict[str, Any] | None:
        known = run.tokens.filter(pl.col("lift").is_not_null()).sort("lift", descending=True)
        return None if known.is_empty() else known.row(0, named=True)

    def _moved(self, run: Run, lift: float) -> float:
        return (lift - run.result.ordinary_lift) / run.plan.similarity_spread

    def lines(self, run: Run) -> list[str]:
        result, plan = run.result, run.plan
        whole = result.looked_at == run.available
        scope = "all" if whole else "a selection of"
        # Random tokens are measured beside a selection; the texts they take are not texts of its tokens.
        spent = f"{result.texts_per_token:g} texts per token" if whole else "random tokens measured with them"
        token, highest = self._highest(run), ""
        if token is not None and (deviations := self._moved(run, token["lift"])) >= _SHOWN:
            highest = f", {visible(repr(token['token']))} by {deviations:.1f} SD more"
        found = [
            self.headline(run),
            f"method profile, {scope} {result.looked_at:,} of {run.available:,} available tokens; "
            f"{spent}, more for the {result.candidates} that stood out",
            f"an ordinary token lifts by {result.ordinary_lift:.4f} ± {result.ordinary_spread:.4f}{highest}; "
            f"1 SD is the spread of the model's similarities, {plan.similarity_spread:.4f}; "
            f"mean similarity u = {plan.mean_similarity_text}",
            *plan.space,
        ]
        if result.erasing:
            erase = "token erases" if result.erasing == 1 else "tokens erase"
            found.append(
                f"{result.erasing} {erase} texts whatever they are compared with (an ordinary token: "
                f"{result.ordinary_contraction:.0%}); column reason says how much, and toward what"
            )
        if screened := run.settings.values.get("screen_precision"):
            found.append(
                f"screened in {screened}; numbers of the {result.candidates} tokens that stood out "
                "are in the model's own precision (column precision of tokens.parquet)"
            )
        if result.topical:
            lift = "token lifts" if result.topical == 1 else "tokens lift"
            found.append(
                f"{result.topical} more {lift} only some kinds of text, because of their meaning: "
                "list them with `stickytoken show --verdict topical`"
            )
        return found

    def notes(self, run: Run) -> list[str]:
        found = []
        if not run.result.empirical_null:
            found.append(
                "the vocabulary is too small, or its tokens too similar, to tell what is ordinary: verdicts "
                "rest on the intervals alone, without control of false discoveries"
            )
        if (limit := run.plan.narrow_limit) is not None:
            found.append(
                "to the model, the sentences are more alike than random words: lifts are measured on the "
                f"less similar half of their pairs, below {limit:.4f}"
            )
        measured = run.tokens.drop_nulls("contraction")
        single, known = verdict.is_character(measured), measured["contraction"].to_numpy()
        few = min(single.sum(), (~single).sum()) < _LEAST_COMPARED
        if run.result.ordinary_contraction is not None and not few:
            bound = float(np.quantile(known[~single], _NEARLY_ALL))
            beyond = measured.filter(single & (known > bound)).sort("contraction", descending=True)
            if len(beyond) >= _MANY * single.sum():
                first = visible(repr(beyond["token"][0]))
                found.append(
                    f"{len(beyond):,} of {single.sum():,} single characters, such as {first}, erase more of "
                    f"a text than {_NEARLY_ALL:.0%} of the longer entries do (more than {bound:.0%}). The "
                    "model has seen too little of them to keep the text; they are compared with one another, "
                    "and flagged only if they stand out among themselves"
                )
        if unspelled := run.tokens["verdict"].null_count():
            some = (
                "1 token has no verdict: copies of it"
                if unspelled == 1
                else f"{unspelled:,} tokens have no verdict: copies of them"
            )
            found.append(f"{some} in texts are read as other entries (column reason)")
        if run.plan.left_out:
            found.append(f"{run.plan.left_out} sentences were left out: the model cannot read them in full")
        return found

    def key_facts(self, run: Run) -> list[terms.Fact]:
        found, result, smallest = [], run.result, run.settings.number("smallest_effect")
        token, erased = self._highest(run), run.tokens["contraction"].max()
        if token is not None:
            if (ordinary := result.ordinary_contraction) is not None and isinstance(erased, float):
                flagged = run.tokens.sort("contraction")["erases"][-1]
                note = "" if flagged else ", not exceptional enough to be flagged for it"
                most = f"of a text, the most that a token erases{note}; an ordinary one erases {ordinary:.0%}"
                found.append(terms.Fact(f"{erased:.0%}", most))
            fact = (
                "largest lift beyond an ordinary token's, in standard deviations of the similarities of "
                f"texts; from {smallest:g}, a token is always flagged"
            )
            found.append(terms.Fact(f"{self._moved(run, token['lift']):.1f} SD", fact))
        topical = "topical tokens, which lift only texts about their own subject"
        if result.topical == 1:
            topical = "topical token, which lifts only texts about its own subject"
        return [*found, terms.Fact(f"{result.topical:,}", topical)]

    def how(self, settings: base.StoredSettings) -> str:
        return (
            "Copies of every token were put into short texts (carriers), at their beginning, their end and "
            f"between their words, {settings.text('copies')} at a time. Each text was compared with texts of "
            "several kinds (anchors) before and after. A few random tokens went through all carriers first, "
            "to find the few that best represent all; all tokens then went through these. Those that lift "
            f"most got {settings.number('confirming_texts'):g} further texts, and their numbers rest on "
            "these alone. What is ordinary was learned from the vocabulary itself."
        )

    def plan_facts(self, plan: ProfilePlanRecord) -> dict[str, Any]:
        u = ("mean_similarity", "mean_similarity_entries", "mean_similarity_error")
        numbers = (*u, "isoscore", "similarity_spread", "share_below", "left_out")
        lists = ("groups", "anchors", "vocabulary_anchors", "carriers")
        found = {name: getattr(plan, name) for name in numbers}
        return found | {name: len(getattr(plan, name)) for name in lists}

    def scale(self, run: Run) -> terms.Scale:
        return terms.Scale(
            run.result.ordinary_lift,
            run.plan.similarity_spread,
            run.settings.number("confidence"),
            terms.SEVERITY_BOUNDS[terms.Severity.SERIOUS],
        )

    def figures(self, run: Run) -> list[terms.Figure]:
        ordinary = run.result.ordinary_lift
        matters = ordinary + run.settings.number("smallest_effect") * run.plan.similarity_spread
        return [
            terms.Distribution(
                "lift-distribution",
                "Lifts over the vocabulary",
                _LIFT,
                {"ordinary": ordinary, "matters": matters},
                "How far copies of a token raise the similarity of unrelated texts. The grey bars count all "
                "tokens; their axis is logarithmic, so that a single token is visible. “Ordinary” is the "
                "typical token. A token beyond “matters” is flagged: as sticky if on most kinds of text, as "
                "topical if on only some. One that lifts at least half as much is flagged if ordinary tokens "
                "never do, over all texts or on one kind of text.",
            ),
            terms.Scatter(
                "lift-contraction",
                "Lift against contraction",
                _LIFT,
                _CONTRACTION,
                "Lift says how far unrelated texts come together, contraction how much of the difference "
                "between similarities is lost (0: none, 1: all). Among ordinary tokens, one rises as the "
                "other falls: a word close to many texts lifts and contracts little, and noise contracts but "
                "does not lift. A sticky token lifts far more than others of its contraction.",
            ),
        ]

    def probe_lines(self, probed: Sequence[ProfileEvidence]) -> list[terms.ProbeTable | str]:
        first = probed[0]
        measured = ("lift", "lift_low", "lift_high", "universality", "severity", "verdict")
        return [
            terms.ProbeTable(
                "Lift: mean rise of the similarity of unrelated texts",
                ("id", "token", "category", "lift", "low", "high", "universality", "severity", "verdict"),
                list(map(attrgetter("token_id", "token", "category", *measured), probed)),
            ),
            self._curves(probed, "below"),
            self._curves(probed, "above"),
            f"An ordinary token lifts by {first.ordinary_lift:.4f}. "
            "Sticky tokens pull both kinds of pairs toward one value; "
            f"the model's mean similarity is {first.mean_similarity:.4f}.",
        ]

    def _curves(self, evidence: Sequence[ProfileEvidence], side: str) -> terms.ProbeTable | str:
        curve = evidence[0].curve
        if not getattr(curve, side):
            return f"No pair of these texts lies {side} the model's mean similarity."
        places = [place for place, copies in enumerate(curve.copies) if copies in (0, 1, 2, 4, 8, 16, 32)]
        rows = [(each.token, getattr(each.curve, side)) for each in evidence]
        rows.append(("(ordinary tokens)", getattr(curve, f"ordinary_{side}")))
        return terms.ProbeTable(
            f"Similarity of pairs {side} the mean similarity, by number of copies",
            ("token", *(str(curve.copies[place]) for place in places)),
            [(token, *(values[place] for place in places)) for token, values in rows if values],
        )
