"""Run the profile method: rounds, each planned from the results of the earlier ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import polars as pl

from stickytoken.encoders.protocol import require_ids
from stickytoken.encoders.views import View, Views
from stickytoken.errors import InputError
from stickytoken.insertion import Placement
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods import base, probes
from stickytoken.methods.base import Job, MemoryRunner
from stickytoken.methods.entry import severity_counts
from stickytoken.methods.probes import Vector
from stickytoken.methods.profile import anchors, estimates, verdict
from stickytoken.methods.profile import plan as planning
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileResultRecord, ProfileSettings
from stickytoken.methods.profile.estimates import Ids, Measurements
from stickytoken.methods.profile.plan import Round, cells, round_stage
from stickytoken.methods.profile.verdict import Findings, Measured

# Every further view adds at least this share of the number of tokens that whole vectors choose.
_OF_A_VIEW = 0.15
# Number of ordinary tokens behind the curve that a probed token is compared with.
_ORDINARY_TOKENS = 8


def run_profile(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, vocabulary: pl.DataFrame, run: base.FolderRunner
) -> tuple[pl.DataFrame, ProfileResultRecord]:
    views, ids = planning.views_in(job), np.array([token.id for token in job.tokens])
    every = _measure(job, plan, run, views)
    found: dict[View, Findings] = {}
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
                **severity_counts(tokens),
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


def _judged(measured: Measured) -> Findings:
    """Judge the tokens; add the precision behind their numbers, and the copies that the tokenizer saw."""
    found, rounds = verdict.decide(measured), measured.rounds
    # The last round has the model's own precision.
    own = measured.job.encoder.identity.dtype
    early = pl.lit(str(measured.job.settings.screen_precision or own))
    last = rounds[Round.CONFIRM].ids.tolist() if Round.CONFIRM in rounds else []
    precision = pl.when(pl.col("token_id").is_in(last)).then(pl.lit(own)).otherwise(early)
    tokens = found.tokens.with_columns(precision.alias("precision"))
    if (seen := _copies_seen(measured)) is not None:
        tokens = tokens.with_columns(pl.Series("copies_seen", seen))
    job = measured.job
    if unread := [token.id for token in job.tokens if token.id in job.vocabulary.unspelled]:
        shares = [job.vocabulary.unspelled[token_id] for token_id in unread]
        said = [f"not judged: texts spell {share:.0%} of its copies as this entry" for share in shares]
        rows = pl.DataFrame({"token_id": unread, "texts": 0, "reason": said, "copies_seen": shares})
        rows = job.vocabulary.frame().join(rows, on="token_id")
        tokens = pl.concat([tokens, rows], how="diagonal_relaxed").sort("token_id")
    return found._replace(tokens=tokens)


def _copies_seen(measured: Measured) -> Vector | None:
    """Compute the share of copies that the tokenizer sees, in the last round of each token, if counted."""
    every = cells(measured.job.settings, len(measured.plan.carriers))
    copies, few = np.array([cell.copies for cell in every]), np.array(measured.carriers)
    first = measured.rounds[Round.SCREEN]
    shares = np.full(len(first.ids), np.nan)
    for step, each in measured.rounds.items():
        if each.seen is None:
            return None
        planned = copies[few] if step is Round.SCREEN else np.delete(copies, few)
        shares[first.rows(each.ids)] = np.minimum(each.seen, planned).sum(axis=1) / planned.sum()
    return shares


def _measure(
    job: Job[ProfileSettings],
    plan: ProfilePlanRecord,
    run: base.FolderRunner | MemoryRunner,
    views: Views,
    confirm_all: bool = False,
) -> dict[View, Measured]:
    """Run the rounds: a pilot of random tokens, all tokens, and those that lift most.

    What is encoded for all views is chosen by whole vectors, so that a run on the truncated model chooses the
    same. Every other view adds the tokens of the last round that lift most in it, and rests on its own alone.
    """
    # A probe may name tokens that cannot occur in text.
    tokens = {token.id: token for token in (*job.vocabulary.available, *job.tokens)}
    unspelled = job.vocabulary.unspelled
    wanted = unselected = np.array([token.id for token in job.tokens if token.id not in unspelled], np.int64)
    if job.restricted:
        unselected = np.union1d(wanted, plan.reference) if job.sampled else np.array(plan.reference)
    in_views, reading = (views.own, *views.further), views.reading(job.encoder)
    found = anchors.anchor_panels(reading, plan, job.vocabulary.available, views=in_views)
    panels = dict(zip(in_views, found, strict=True))

    def measure(step: Round, ids: Ids, places: list[int]) -> dict[View, Measurements]:
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


def _candidates(measured: Measured, of_a_view: bool = False) -> Ids:
    """Choose the tokens that lift most, over all anchors or on one kind of text, or erase most."""
    job, plan, screened = measured.job, measured.plan, measured.rounds[Round.SCREEN]
    found, count = measured.lifts(), planning.tokens_to_confirm(job.settings, len(job.tokens))
    means = screened.group_means()[:, np.array([group.weight > 0 for group in plan.groups])]
    ordinary = means[np.isin(screened.ids, measured.unselected)]
    deviations = means - np.median(ordinary, axis=0)
    spreads = np.median(np.abs(ordinary - np.median(ordinary, axis=0)), axis=0)
    standard = np.divide(deviations, spreads, out=np.zeros_like(deviations), where=spreads > 0)
    # Not by posterior means: with one error for all tokens they rank alike.
    erased = verdict.erasures(measured).standard()
    values = np.column_stack([found.tested.value, np.nan_to_num(standard).max(axis=1), erased])
    asked = np.isin(found.ids, [token.id for token in job.tokens])
    if of_a_view:
        smallest = job.settings.smallest_effect * plan.similarity_spread
        reaching = asked & (found.lift.high >= found.null.center + smallest)
        count = min(count, max(math.ceil(_OF_A_VIEW * count), int(reaching.sum())))
    return planning.highest(found.ids[asked], values[asked], count)


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
    """Measure named tokens as closely as `detect` measures its candidates.

    Random tokens of the vocabulary are measured with them, to show what is ordinary.
    """
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
    texts = range(min(probes.SYMPTOM_CARRIERS, len(plan.carriers)))
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
